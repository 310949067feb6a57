//===- CacheType.cpp - Which element type a layer's cache has -------------===//

#include "kvcache/Checkpoint/CacheType.h"
#include "kvcache/Checkpoint/ModelConfig.h"

#include <algorithm>
#include <array>
#include <cctype>

using namespace kvcache;

const char *kvcache::cacheTypeName(CacheType type) {
  switch (type) {
  case CacheType::F32:
    return "f32";
  case CacheType::F16:
    return "f16";
  case CacheType::BF16:
    return "bf16";
  case CacheType::F8E4M3FN:
    return "f8E4M3FN";
  case CacheType::F8E5M2:
    return "f8E5M2";
  case CacheType::F8E4M3FNUZ:
    return "f8E4M3FNUZ";
  case CacheType::FP8PerTokenHead:
    return "fp8_per_token_head";
  case CacheType::INT8PerTokenHead:
    return "int8_per_token_head";
  case CacheType::FP8DSMLA:
    break;
  }
  return "fp8_ds_mla";
}

bool kvcache::usesCheckpointScales(CacheType type) {
  return type == CacheType::F8E4M3FN || type == CacheType::F8E5M2 ||
         type == CacheType::F8E4M3FNUZ;
}

Expected<std::optional<CacheType>>
kvcache::parseCacheWord(std::string_view word) {
  using Result = std::optional<CacheType>;
  static constexpr std::pair<std::string_view, CacheType> words[] = {
      {"float16", CacheType::F16},
      {"bfloat16", CacheType::BF16},
      {"fp8", CacheType::F8E4M3FN},
      {"fp8_e4m3", CacheType::F8E4M3FN},
      {"fp8_e5m2", CacheType::F8E5M2},
      {"fp8_e4m3fnuz", CacheType::F8E4M3FNUZ},
      {"fp8_per_token_head", CacheType::FP8PerTokenHead},
      {"int8_per_token_head", CacheType::INT8PerTokenHead},
      {"fp8_ds_mla", CacheType::FP8DSMLA}};
  if (word == "auto")
    return Result();
  for (const auto &[name, type] : words)
    if (word == name)
      return Result(type);
  std::string accepted = "auto";
  for (const auto &[name, type] : words)
    accepted += ", " + std::string(name);
  bool known = word == "nvfp4" || word == "int4_per_token_head" ||
               word.substr(0, 11) == "turboquant_";
  return makeError("kv-cache-dtype '" + std::string(word) + "' is " +
                   (known ? "not supported yet" : "not a cache type") +
                   "; accepted are " + accepted);
}

const char *kvcache::quantFamilyName(QuantFamily family) {
  switch (family) {
  case QuantFamily::None:
    return "none";
  case QuantFamily::FP8:
    return "fp8";
  case QuantFamily::ModelOpt:
    return "modelopt";
  case QuantFamily::Quark:
    return "quark";
  case QuantFamily::CompressedTensors:
    return "compressed-tensors";
  case QuantFamily::Other:
    break;
  }
  return "other";
}

int64_t kvcache::layerIndex(std::string_view name) {
  int64_t last = -1;
  std::string_view previous;
  while (!name.empty()) {
    size_t dot = name.find('.');
    std::string_view part = name.substr(0, dot);
    name.remove_prefix(dot == std::string_view::npos ? name.size() : dot + 1);
    bool number = !part.empty() && part.size() < 10 &&
                  std::all_of(
                      part.begin(), part.end(),
                      [](unsigned char c) { return std::isdigit(c); });
    if (number) {
      last = std::stoll(std::string(part));
      if (previous == "layers" || previous == "layer" || previous == "h" ||
          previous == "blocks" || previous == "block")
        return last;
    }
    previous = part;
  }
  return last;
}

//===----------------------------------------------------------------------===//
// Quantization configuration
//===----------------------------------------------------------------------===//

namespace {

std::string lowerCase(std::string_view text) {
  std::string lower(text);
  for (char &c : lower)
    c = char(std::tolower(static_cast<unsigned char>(c)));
  return lower;
}

std::string describe(const JsonValue *value) {
  return value ? value->print(0) : "nothing";
}

const JsonValue *findObject(const JsonValue *parent, std::string_view key) {
  const JsonValue *value = parent ? parent->find(key) : nullptr;
  return value && value->isObject() ? value : nullptr;
}

std::string_view findString(const JsonValue *parent, std::string_view key) {
  const JsonValue *value = parent ? parent->find(key) : nullptr;
  return value && value->isString() ? std::string_view(value->asString())
                                    : std::string_view();
}

bool isInteger(const JsonValue *value, int64_t expected) {
  return value && value->isInteger() && value->asInteger() == expected;
}

bool isBool(const JsonValue *value, bool expected) {
  return value && value->isBool() && value->asBool() == expected;
}

bool isText(const JsonValue *value, std::string_view expected) {
  return value && value->isString() && value->asString() == expected;
}

/// Null, "" and {} declare nothing.
bool isEmptyDeclaration(const JsonValue *value) {
  return !value || value->isNull() ||
         (value->isString() && value->asString().empty()) ||
         (value->isObject() && value->asObject().empty());
}

/// What ModelOpt declares under one key. Returns the algorithm ("FP8", or as
/// written) and, if it cannot be honoured, the problem.
std::string readModelOptValue(const JsonValue &value, const std::string &where,
                              std::string &problem) {
  if (value.isString()) {
    if (lowerCase(value.asString()) == "fp8")
      return "FP8";
    problem = where + ": the KV cache algorithm '" + value.asString() +
              "' is not supported yet; supported is FP8";
    return value.asString();
  }
  if (!value.isObject()) {
    problem =
        where + ": expected a string or an object, found " + value.kindName();
    return value.print(0);
  }
  const JsonValue *type = value.findNonNull("type");
  const JsonValue *bits = value.findNonNull("num_bits");
  const JsonValue *dynamic = value.findNonNull("dynamic");
  if (!isText(type, "float"))
    problem = where + ".type: expected \"float\", found " + describe(type);
  else if (!isInteger(bits, 8))
    problem = where + ".num_bits: expected 8, found " + describe(bits);
  else if (!isBool(dynamic, false))
    problem = where + ".dynamic: expected false (static scales), found " +
              describe(dynamic);
  return problem.empty() ? "FP8" : value.print(0);
}

struct ModelOptSource {
  const JsonValue *object;
  std::string path; ///< of the object, with a final '.', or empty
  std::string file;
};

void readModelOpt(const std::array<ModelOptSource, 4> &sources,
                  QuantConfig &quant) {
  for (std::string_view key : {"kv_cache_scheme", "kv_cache_quant_algo"}) {
    for (const ModelOptSource &source : sources) {
      const JsonValue *value =
          source.object ? source.object->find(key) : nullptr;
      if (isEmptyDeclaration(value))
        continue;
      std::string where = source.file + ": " + source.path + std::string(key);
      std::string problem;
      std::string algorithm = readModelOptValue(*value, where, problem);
      if (quant.kvAlgorithm.empty()) {
        quant.kvAlgorithm = algorithm;
        quant.kvKey = source.path + std::string(key);
        quant.kvFile = source.file;
        quant.problem = problem;
      } else if (quant.problem.empty() && algorithm != quant.kvAlgorithm) {
        quant.problem = "conflicting KV cache algorithms: " + quant.kvFile +
                        ": " + quant.kvKey + " says " + quant.kvAlgorithm +
                        ", " + where + " says " + algorithm;
      }
    }
  }
}

void readCompressedTensors(const JsonValue &config, const std::string &path,
                           const std::string &file, QuantConfig &quant) {
  const JsonValue *scheme = config.find("kv_cache_scheme");
  if (isEmptyDeclaration(scheme))
    return;
  quant.kvKey = path + "kv_cache_scheme";
  quant.kvFile = file;
  quant.kvAlgorithm = "FP8";
  std::string where = file + ": " + quant.kvKey;
  if (!scheme->isObject()) {
    quant.problem = where + ": expected an object, found " + scheme->kindName();
    return;
  }
  const JsonValue *type = scheme->findNonNull("type");
  const JsonValue *bits = scheme->findNonNull("num_bits");
  const JsonValue *dynamic = scheme->findNonNull("dynamic");
  const JsonValue *symmetric = scheme->findNonNull("symmetric");
  const JsonValue *strategy = scheme->findNonNull("strategy");
  // Absent fields have the format's own defaults: 8, false, true, tensor; its
  // default type is int.
  if (!isText(type, "float"))
    quant.problem =
        where + ".type: expected \"float\", found " + describe(type);
  else if (bits && !isInteger(bits, 8))
    quant.problem = where + ".num_bits: expected 8, found " + describe(bits);
  else if (dynamic && !isBool(dynamic, false))
    quant.problem = where + ".dynamic: expected false (static scales), found " +
                    describe(dynamic);
  else if (symmetric && !isBool(symmetric, true))
    quant.problem =
        where + ".symmetric: expected true, found " + describe(symmetric);
  else if (strategy && !isText(strategy, "tensor") &&
           !isText(strategy, "attn_head"))
    quant.problem = where +
                    ".strategy: expected \"tensor\" or \"attn_head\", found " +
                    describe(strategy);
  else if (strategy)
    quant.strategy = strategy->asString();
}

/// Quark names the projections whose outputs are cached; all of them must be
/// quantized alike, to e4m3 by one static scale.
void readQuark(const JsonValue &config, const std::string &path,
               const std::string &file, QuantConfig &quant) {
  const JsonValue *exported = findObject(&config, "export");
  const JsonValue *group =
      exported ? exported->find("kv_cache_group") : nullptr;
  std::string key = path + "export.kv_cache_group";
  if (!group || !group->isArray()) {
    group = config.find("kv_cache_group");
    key = path + "kv_cache_group";
  }
  if (!group || !group->isArray() || group->asArray().empty())
    return;
  quant.kvAlgorithm = "FP8";
  quant.kvKey = key;
  quant.kvFile = file;
  const JsonValue *layers = findObject(&config, "layer_quant_config");
  std::string first;
  for (const JsonValue &pattern : group->asArray()) {
    if (!pattern.isString() || !quant.problem.empty())
      continue;
    const JsonValue *output =
        findObject(findObject(layers, pattern.asString()), "output_tensors");
    if (!output)
      continue;
    std::string where = file + ": " + path + "layer_quant_config." +
                        pattern.asString() + ".output_tensors";
    const JsonValue *dtype = output->findNonNull("dtype");
    const JsonValue *scheme = output->findNonNull("qscheme");
    const JsonValue *dynamic = output->findNonNull("is_dynamic");
    if (!isText(dtype, "fp8_e4m3"))
      quant.problem =
          where + ".dtype: expected \"fp8_e4m3\", found " + describe(dtype);
    else if (!isText(scheme, "per_tensor"))
      quant.problem = where + ".qscheme: expected \"per_tensor\", found " +
                      describe(scheme);
    else if (dynamic && !isBool(dynamic, false))
      quant.problem =
          where + ".is_dynamic: expected false, found " + describe(dynamic);
    else if (!first.empty() && first != output->print(0))
      quant.problem = where + ": differs from that of the other members of " +
                      key + ", expected equal ones";
    if (first.empty())
      first = output->print(0);
  }
}

QuantFamily familyOf(const JsonValue *config, std::string_view method,
                     bool isCompressionConfig) {
  std::string word = lowerCase(method);
  if (word.substr(0, 8) == "modelopt")
    return QuantFamily::ModelOpt;
  if (word == "compressed-tensors" || word == "compressed_tensors")
    return QuantFamily::CompressedTensors;
  if (word == "fp8")
    return QuantFamily::FP8;
  if (word == "quark")
    return QuantFamily::Quark;
  if (!word.empty())
    return QuantFamily::Other;
  if (findString(findObject(config, "producer"), "name") == "modelopt")
    return QuantFamily::ModelOpt;
  return isCompressionConfig ? QuantFamily::CompressedTensors
                             : QuantFamily::Other;
}

} // namespace

QuantConfig kvcache::readQuantConfig(const Checkpoint *checkpoint) {
  QuantConfig quant;
  if (!checkpoint)
    return quant;
  const JsonValue *config = nullptr, *hf = nullptr;
  std::string path, file, hfFile;
  bool isCompressionConfig = false;
  if (const JsonFile *json = checkpoint->config()) {
    file = baseName(json->path);
    // Multimodal models may keep it with the text model.
    for (const JsonValue *parent :
         {&json->value, findObject(&json->value, "text_config")}) {
      std::string prefix = parent == &json->value ? "" : "text_config.";
      for (std::string_view key :
           {"quantization_config", "compression_config"}) {
        if (config)
          continue;
        config = findObject(parent, key);
        path = prefix + std::string(key) + ".";
        isCompressionConfig = key == "compression_config";
      }
    }
  }
  if (const JsonFile *json = checkpoint->hfQuantConfig()) {
    hf = &json->value;
    hfFile = baseName(json->path);
  }

  if (config) {
    quant.method = findString(config, "quant_method");
    quant.family = familyOf(config, quant.method, isCompressionConfig);
  } else if (hf) {
    quant.method = "modelopt";
    quant.family = QuantFamily::ModelOpt;
  }
  if (hf && quant.family != QuantFamily::ModelOpt)
    quant.unreadFile = hfFile + " is ModelOpt's, but " + file +
                       " says quant_method '" + quant.method + "'";
  switch (quant.family) {
  case QuantFamily::ModelOpt:
    readModelOpt(
        {{{config, path, file},
          {findObject(config, "quantization"), path + "quantization.", file},
          {findObject(hf, "quantization"), "quantization.", hfFile},
          {hf, "", hfFile}}},
        quant);
    break;
  case QuantFamily::CompressedTensors:
    readCompressedTensors(*config, path, file, quant);
    break;
  case QuantFamily::Quark:
    readQuark(*config, path, file, quant);
    break;
  case QuantFamily::FP8: {
    const JsonValue *scheme = config->find("kv_cache_scheme");
    if (isEmptyDeclaration(scheme))
      break;
    quant.kvAlgorithm = scheme->isString() ? scheme->asString() : "FP8";
    quant.kvKey = path + "kv_cache_scheme";
    quant.kvFile = file;
    break;
  }
  case QuantFamily::None:
  case QuantFamily::Other:
    break;
  }
  return quant;
}

//===----------------------------------------------------------------------===//
// Resolution
//===----------------------------------------------------------------------===//

namespace {

/// The most frequent of the three types among the checkpoint's weights.
std::optional<Sourced<CacheType>> typeOfTensors(const Checkpoint &checkpoint) {
  size_t counts[3] = {0, 0, 0};
  for (const SafetensorsFile &file : checkpoint.shards())
    for (const Tensor &tensor : file.tensors()) {
      std::string_view name = tensor.name;
      if (name.size() < 7 || name.substr(name.size() - 7) != ".weight")
        continue;
      if (tensor.dtype == DType::BF16)
        ++counts[0];
      else if (tensor.dtype == DType::F16)
        ++counts[1];
      else if (tensor.dtype == DType::F32)
        ++counts[2];
    }
  size_t best = size_t(std::max_element(counts, counts + 3) - counts);
  if (counts[best] == 0)
    return std::nullopt;
  static constexpr CacheType types[] = {CacheType::BF16, CacheType::F16,
                                        CacheType::F32};
  return Sourced<CacheType>{types[best], "most weights of the checkpoint"};
}

class CacheTypeResolver {
public:
  CacheTypeResolver(const Checkpoint *checkpoint,
                    const CacheTypeOptions &options)
      : checkpoint(checkpoint), options(options),
        quant(readQuantConfig(checkpoint)),
        skipMatched(options.skipLayers.size(), false) {}

  CacheTypeTable run(const std::vector<CacheTypeRequest> &layers) {
    Expected<std::optional<CacheType>> word = parseCacheWord(options.word);
    if (!word) {
      report(Severity::Error, "", "kv-cache-dtype", word.message());
      return std::move(table);
    }
    user = *word;
    if (!quant.unreadFile.empty())
      report(Severity::Remark, "", "quant_method",
             quant.unreadFile + "; only the latter is considered");
    readModelType();
    for (const CacheTypeRequest &layer : layers)
      resolve(layer);
    reportConflicts();
    for (size_t i = 0; i < options.skipLayers.size(); ++i)
      if (!skipMatched[i])
        report(Severity::Warning, "", "kv_cache_dtype_skip_layers",
               "kv_cache_dtype_skip_layers: '" + options.skipLayers[i] +
                   "' matches no layer; expected \"sliding_window\" or the "
                   "index of an attention layer in decimal");
    return std::move(table);
  }

private:
  void report(Severity severity, const std::string &layer,
              const std::string &key, const std::string &message,
              const std::string &file = "") {
    table.diagnostics.push_back({severity, layer, key, file, message});
  }

  void readModelType() {
    if (!checkpoint)
      return;
    if (checkpoint->config()) {
      Expected<std::optional<Sourced<CacheType>>> dtype =
          readModelDType(*checkpoint->config());
      if (!dtype) {
        // Only matters if the graph does not say either.
        modelTypeProblem = dtype.message();
        return;
      }
      modelType = *dtype;
    }
    if (!modelType)
      modelType = typeOfTensors(*checkpoint);
  }

  /// The literal or index of the skip list that matches, or null.
  const std::string *findSkip(const CacheTypeRequest &layer) {
    const std::string *found = nullptr;
    std::string index = std::to_string(layerIndex(layer.layer));
    for (size_t i = 0; i < options.skipLayers.size(); ++i) {
      const std::string &entry = options.skipLayers[i];
      // A layer without an index (-1) is matched by no entry.
      bool matches = entry == "sliding_window"
                         ? layer.windowed
                         : entry == index && index != "-1";
      if (!matches)
        continue;
      skipMatched[i] = true;
      if (!found)
        found = &entry;
    }
    return found;
  }

  void resolve(const CacheTypeRequest &layer) {
    ResolvedCacheType result;
    result.layer = layer.layer;
    bool done = false;
    auto choose = [&](CacheType type, std::string from) {
      result.type = type;
      result.from = std::move(from);
      done = true;
    };

    std::optional<CacheType> graph;
    if (!layer.graphWord.empty()) {
      Expected<std::optional<CacheType>> word = parseCacheWord(layer.graphWord);
      if (!word)
        report(Severity::Error, layer.layer, "kv_cache_dtype",
               "layer " + layer.layer +
                   ": graph attribute kv_cache_dtype: " + word.message());
      else
        graph = *word;
    }

    bool declares = !quant.kvAlgorithm.empty() &&
                    (quant.family == QuantFamily::ModelOpt ||
                     quant.family == QuantFamily::CompressedTensors);
    if (const std::string *skip = findSkip(layer)) {
      chooseModelType(layer, choose,
                      "kv_cache_dtype_skip_layers '" + *skip + "', ");
    } else if (user) {
      choose(*user, "option kv-cache-dtype");
      if (graph && *graph != *user)
        ++graphOverruled;
      checkE5M2(layer, *user);
    } else if (graph) {
      choose(*graph, "graph attribute kv_cache_dtype");
      checkE5M2(layer, *graph);
    } else if (declares) {
      if (!quant.problem.empty())
        declarationNeeded = true;
      choose(CacheType::F8E4M3FN, quant.kvFile + ": " + quant.kvKey);
    } else {
      chooseModelType(layer, choose, "");
    }
    if (!done)
      result.from = "nothing";
    if (declares && result.type != CacheType::F8E4M3FN)
      ++declarationOverruled;
    table.layers.push_back(std::move(result));
  }

  template <typename Choose>
  void chooseModelType(const CacheTypeRequest &layer, const Choose &choose,
                       const std::string &prefix) {
    if (layer.modelType) {
      if (modelType && *layer.modelType != modelType->value && !differs) {
        differs = true;
        report(Severity::Remark, layer.layer, "dtype",
               "layer " + layer.layer + ": the graph computes in " +
                   cacheTypeName(*layer.modelType) + ", but " +
                   modelType->from + " says " +
                   cacheTypeName(modelType->value) +
                   "; an unquantized cache follows the graph");
      }
      choose(*layer.modelType, prefix + "model type of the graph");
    } else if (modelType) {
      choose(modelType->value, prefix + modelType->from);
    } else {
      report(
          Severity::Error, layer.layer, "dtype",
          "layer " + layer.layer + ": nothing says the model's type" +
              (modelTypeProblem.empty() ? "" : " (" + modelTypeProblem + ")") +
              "; expected 'dtype' in config.json, or a kv-cache-dtype "
              "other than auto");
    }
  }

  /// The plain FP8 methods store their caches as e4m3; compressed-tensors only
  /// where it has a scheme for them.
  void checkE5M2(const CacheTypeRequest &layer, CacheType type) {
    if (type != CacheType::F8E5M2 || e5m2Layer)
      return;
    bool declares = quant.family == QuantFamily::FP8 ||
                    quant.family == QuantFamily::ModelOpt ||
                    quant.family == QuantFamily::Quark ||
                    (quant.family == QuantFamily::CompressedTensors &&
                     !quant.kvAlgorithm.empty());
    if (declares)
      e5m2Layer = layer.layer;
  }

  void reportConflicts() {
    if (e5m2Layer)
      report(Severity::Error, *e5m2Layer, "kv-cache-dtype",
             "layer " + *e5m2Layer +
                 ": fp8_e5m2 is not possible with this checkpoint, which is "
                 "quantized by '" +
                 quant.method +
                 "' and brings e4m3 scales; use fp8_e4m3, or a cache that is "
                 "not quantized",
             quant.kvFile);
    if (declarationNeeded)
      report(Severity::Error, "", quant.kvKey,
             quant.problem + "; or choose another kv-cache-dtype explicitly",
             quant.kvFile);
    if (graphOverruled != 0)
      report(Severity::Remark, "", "kv_cache_dtype",
             "option kv-cache-dtype=" + options.word +
                 " overrules another kv_cache_dtype attribute of " +
                 std::to_string(graphOverruled) +
                 (graphOverruled == 1 ? " layer" : " layers") +
                 " of the graph");
    if (declarationOverruled != 0)
      report(Severity::Remark, "", quant.kvKey,
             std::to_string(declarationOverruled) +
                 (declarationOverruled == 1 ? " layer does" : " layers do") +
                 " not have the e4m3 cache that " + quant.kvFile + ": " +
                 quant.kvKey + " declares",
             quant.kvFile);
  }

  const Checkpoint *checkpoint;
  const CacheTypeOptions &options;
  QuantConfig quant;
  std::optional<CacheType> user;
  std::optional<Sourced<CacheType>> modelType;
  std::string modelTypeProblem;
  std::vector<bool> skipMatched;
  bool differs = false, declarationNeeded = false;
  std::optional<std::string> e5m2Layer;
  size_t graphOverruled = 0, declarationOverruled = 0;
  CacheTypeTable table;
};

} // namespace

CacheTypeTable
kvcache::resolveCacheTypes(const Checkpoint *checkpoint,
                           const std::vector<CacheTypeRequest> &layers,
                           const CacheTypeOptions &options) {
  return CacheTypeResolver(checkpoint, options).run(layers);
}
