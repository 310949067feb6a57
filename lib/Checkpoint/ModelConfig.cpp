//===- ModelConfig.cpp - What config.json decides per layer ---------------===//
//
// One function a family; which one a model type uses is in `families`. "Class
// default" is what transformers takes where the file has no key.
//
//===----------------------------------------------------------------------===//

#include "kvcache/Checkpoint/ModelConfig.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>

using namespace kvcache;

const char *kvcache::layerKindName(LayerKind kind) {
  switch (kind) {
  case LayerKind::Attention:
    return "attention";
  case LayerKind::Sliding:
    return "sliding";
  case LayerKind::Chunked:
    return "chunked";
  case LayerKind::MLA:
    return "mla";
  case LayerKind::Cross:
    return "cross";
  case LayerKind::Recurrent:
    return "recurrent";
  case LayerKind::None:
    break;
  }
  return "none";
}

std::vector<double> kvcache::alibiSlopes(const Alibi &alibi, int64_t heads,
                                         int64_t first, int64_t count) {
  int64_t power = 1;
  while (2 * power <= heads)
    power *= 2;
  std::vector<double> slopes;
  for (int64_t head = first; head < first + count; ++head) {
    double share = head < power
                       ? double(head + 1) / double(power)
                       : double(2 * (head - power) + 1) / double(2 * power);
    slopes.push_back(std::exp2(-alibi.biasMax * share));
  }
  return slopes;
}

namespace {

constexpr int64_t maxLayers = 100000;

/// Reads one config; the first problem sticks and later reads are harmless.
class Family {
public:
  Family(const JsonFile &file, const JsonValue &text, std::string prefix,
         std::string modelType)
      : file(baseName(file.path)), text(text), prefix(std::move(prefix)) {
    model.modelType = std::move(modelType);
  }

  Error error;
  ModelAttention model;
  std::string file;
  const JsonValue &text;
  std::string prefix; ///< "text_config." or empty

  bool isMultimodal() const { return !prefix.empty(); }

  std::string source(std::string_view key) const {
    return file + ": " + prefix + std::string(key);
  }

  void fail(std::string_view key, const std::string &what) {
    if (!error)
      error = makeError(source(key) + ": " + what);
  }

  bool has(std::string_view key) const { return text.findNonNull(key); }

  /// The first of `keys` that is there (null counts as absent); an integer of
  /// at least `minimum`.
  std::optional<Sourced<int64_t>>
  findInteger(std::initializer_list<std::string_view> keys,
              int64_t minimum = 1) {
    for (std::string_view key : keys) {
      const JsonValue *value = text.findNonNull(key);
      if (!value)
        continue;
      if (!value->isInteger()) {
        fail(key,
             std::string("expected an integer, found ") + value->kindName());
        return std::nullopt;
      }
      constexpr int64_t maximum = int64_t(1) << 40;
      if (value->asInteger() < minimum || value->asInteger() > maximum) {
        fail(key, "expected " + std::to_string(minimum) + " to " +
                      std::to_string(maximum) + ", found " +
                      std::to_string(value->asInteger()));
        return std::nullopt;
      }
      return Sourced<int64_t>{value->asInteger(), source(key)};
    }
    return std::nullopt;
  }

  Sourced<int64_t> integer(std::initializer_list<std::string_view> keys,
                           std::optional<int64_t> classDefault = {},
                           int64_t minimum = 1) {
    if (std::optional<Sourced<int64_t>> found = findInteger(keys, minimum))
      return *found;
    if (classDefault)
      return {*classDefault, "class default of " + model.modelType + " for " +
                                 std::string(*keys.begin())};
    fail(*keys.begin(), "this key is missing, expected an integer");
    return {minimum, "nothing"};
  }

  std::optional<Sourced<double>> findNumber(std::string_view key) {
    const JsonValue *value = text.findNonNull(key);
    if (!value)
      return std::nullopt;
    if (!value->isNumber() || !std::isfinite(value->asDouble())) {
      fail(key,
           std::string("expected a finite number, found ") + value->kindName());
      return std::nullopt;
    }
    return Sourced<double>{value->asDouble(), source(key)};
  }

  bool flag(std::string_view key, bool otherwise) {
    const JsonValue *value = text.findNonNull(key);
    if (!value)
      return otherwise;
    if (!value->isBool()) {
      fail(key,
           std::string("expected true or false, found ") + value->kindName());
      return otherwise;
    }
    return value->asBool();
  }

  /// A list of words, one a layer (or fewer, for the caller to repeat).
  std::vector<std::string> words(std::initializer_list<std::string_view> keys) {
    for (std::string_view key : keys) {
      const JsonValue *value = text.findNonNull(key);
      if (!value)
        continue;
      std::vector<std::string> list;
      if (!value->isArray()) {
        fail(key, std::string("expected a list, found ") + value->kindName());
        return list;
      }
      for (const JsonValue &word : value->asArray()) {
        if (!word.isString()) {
          fail(key, std::string("expected a list of strings, found ") +
                        word.kindName() + " in it");
          return {};
        }
        list.push_back(word.asString());
      }
      return list;
    }
    return {};
  }

  std::vector<int64_t> integers(std::string_view key) {
    std::vector<int64_t> list;
    const JsonValue *value = text.findNonNull(key);
    if (!value)
      return list;
    if (!value->isArray()) {
      fail(key, std::string("expected a list, found ") + value->kindName());
      return list;
    }
    for (const JsonValue &element : value->asArray()) {
      if (!element.isInteger()) {
        fail(key, std::string("expected a list of integers, found ") +
                      element.kindName() + " in it");
        return {};
      }
      list.push_back(element.asInteger());
    }
    return list;
  }

  /// layer_types, checked against the number of layers.
  std::vector<std::string> layerTypes() {
    std::vector<std::string> types = words({"layer_types"});
    if (!types.empty() && types.size() < model.layers.size()) {
      fail("layer_types", "has " + std::to_string(types.size()) +
                              " entries for " +
                              std::to_string(model.layers.size()) + " layers");
      return {};
    }
    return types;
  }

  void makeLayers(int64_t count, std::string_view key) {
    if (count > maxLayers) {
      fail(key, "expected at most " + std::to_string(maxLayers) +
                    " layers, found " + std::to_string(count));
      return;
    }
    model.layers.resize(size_t(count));
    for (int64_t i = 0; i < count; ++i)
      model.layers[size_t(i)].index = i;
  }

  void refuse(std::string reason, bool imagesOnly = false, int64_t layer = -1) {
    model.refusals.push_back({layer, imagesOnly, std::move(reason)});
  }
};

struct Defaults {
  std::optional<int64_t> layers, heads, hidden, kvHeads, headDim;
};

/// Heads, dims and head_dim^-0.5 for every layer: the common ground.
void readHeads(Family &f, const Defaults &defaults = {}) {
  Sourced<int64_t> layers =
      f.integer({"num_hidden_layers", "n_layer", "n_layers", "num_layers"},
                defaults.layers);
  Sourced<int64_t> heads =
      f.integer({"num_attention_heads", "n_head", "n_heads", "num_heads"},
                defaults.heads);
  std::optional<Sourced<int64_t>> kv = f.findInteger({"num_key_value_heads"});
  if (!kv && defaults.kvHeads && !f.has("num_key_value_heads"))
    kv = f.integer({"num_key_value_heads"}, defaults.kvHeads);
  std::optional<Sourced<int64_t>> dim = f.findInteger({"head_dim"});
  if (!dim && defaults.headDim)
    dim = f.integer({"head_dim"}, defaults.headDim);
  if (!dim) {
    Sourced<int64_t> hidden = f.integer(
        {"hidden_size", "n_embed", "n_embd", "d_model"}, defaults.hidden);
    if (!f.error && hidden.value % heads.value != 0)
      f.fail("hidden_size", "expected a multiple of the " +
                                std::to_string(heads.value) +
                                " heads where head_dim is absent, found " +
                                std::to_string(hidden.value));
    dim = Sourced<int64_t>{std::max<int64_t>(hidden.value / heads.value, 1),
                           hidden.from + " / number of heads"};
  }
  f.makeLayers(layers.value, "num_hidden_layers");
  Sourced<double> scale{std::pow(double(dim->value), -0.5), dim->from};
  for (LayerAttention &layer : f.model.layers) {
    layer.queryHeads = heads;
    layer.kvHeads = kv ? *kv : heads;
    layer.headDim = layer.valueHeadDim = *dim;
    layer.softmaxScale = scale;
  }
}

void setScale(Family &f, const Sourced<double> &scale) {
  for (LayerAttention &layer : f.model.layers)
    layer.softmaxScale = scale;
}

/// Makes a layer a windowed one; `window` counts the query itself.
void setWindow(LayerAttention &layer, const Sourced<int64_t> &window) {
  layer.kind = LayerKind::Sliding;
  layer.windowLeft = Sourced<int64_t>{window.value - 1, window.from};
}

bool isSlidingWord(std::string_view word) {
  return word == "sliding_attention" || word == "sliding";
}

bool isFullWord(std::string_view word) {
  return word == "full_attention" || word == "attention" || word == "full";
}

/// Windows by layer_types if present, else where `isSliding(i)`.
void readWindows(Family &f, const std::function<bool(int64_t)> &isSliding,
                 std::optional<int64_t> defaultWindow = {}) {
  std::vector<std::string> types = f.layerTypes();
  std::optional<Sourced<int64_t>> window;
  for (LayerAttention &layer : f.model.layers) {
    bool sliding;
    if (types.empty()) {
      sliding = isSliding(layer.index);
    } else {
      const std::string &type = types[size_t(layer.index)];
      sliding = isSlidingWord(type);
      if (!sliding && !isFullWord(type))
        f.fail("layer_types", "the layer type '" + type + "' of layer " +
                                  std::to_string(layer.index) +
                                  " is not known for " + f.model.modelType +
                                  "; expected full_attention or "
                                  "sliding_attention");
    }
    if (!sliding)
      continue;
    if (!window)
      window = f.integer({"sliding_window"}, f.text.find("sliding_window")
                                                 ? std::optional<int64_t>()
                                                 : defaultWindow);
    setWindow(layer, *window);
  }
}

/// Sliding but for every `period`-th layer.
std::function<bool(int64_t)> allButEvery(int64_t period) {
  return [period](int64_t i) { return (i + 1) % period != 0; };
}

bool never(int64_t) { return false; }
bool always(int64_t) { return true; }
bool onEven(int64_t i) { return i % 2 == 0; }

//===----------------------------------------------------------------------===//
// Families
//===----------------------------------------------------------------------===//

void readLlama(Family &f) { readHeads(f, {32, 32, 4096, {}, {}}); }

void readPlain(Family &f) { readHeads(f); }

void readGranite(Family &f) {
  readHeads(f);
  std::optional<Sourced<double>> multiplier =
      f.findNumber("attention_multiplier");
  setScale(f, multiplier ? *multiplier
                         : Sourced<double>{1.0, "class default of granite for "
                                                "attention_multiplier"});
}

/// One window for every layer, if there is one.
void readMistral(Family &f) {
  readHeads(f);
  if (std::optional<Sourced<int64_t>> window =
          f.findInteger({"sliding_window"}))
    for (LayerAttention &layer : f.model.layers)
      setWindow(layer, *window);
}

void readMinistral3(Family &f) {
  readMistral(f);
  const JsonValue *rope = f.text.findNonNull("rope_parameters");
  if (!rope)
    rope = f.text.findNonNull("rope_scaling");
  if (rope && rope->findNonNull("llama_4_scaling_beta"))
    f.refuse("attention temperature: rope_parameters.llama_4_scaling_beta "
             "makes the scale of a query depend on its position");
}

void readMinistral(Family &f) {
  readHeads(f);
  readWindows(f, f.has("sliding_window") ? always : never);
}

/// MiniMax: full layers as in Mistral, the others are linear attention.
void readMiniMax(Family &f) {
  readMistral(f);
  std::vector<std::string> types = f.layerTypes();
  std::vector<int64_t> list = f.integers("attn_type_list");
  for (LayerAttention &layer : f.model.layers) {
    size_t i = size_t(layer.index);
    bool full = true;
    if (!types.empty())
      full = isFullWord(types[i]);
    else if (i < list.size())
      full = list[i] == 1;
    else
      f.fail("layer_types", "expected layer_types or attn_type_list, which say "
                            "which layers are linear attention");
    if (!full)
      layer.kind = LayerKind::Recurrent;
  }
}

void readQwen2(Family &f) {
  readHeads(f);
  bool on = f.flag("use_sliding_window", false);
  std::vector<std::string> types = f.layerTypes();
  if (!on) {
    if (std::any_of(types.begin(), types.end(), isSlidingWord))
      f.fail("layer_types", "has sliding_attention layers, but "
                            "use_sliding_window is false");
    return;
  }
  int64_t first = f.integer({"max_window_layers"}, 28, 0).value;
  readWindows(f, [first](int64_t i) { return i >= first; }, 4096);
}

void readQwen3Moe(Family &f) {
  readHeads(f);
  if (!f.flag("use_sliding_window", false))
    return;
  Sourced<int64_t> window = f.integer({"sliding_window"}, 4096);
  for (LayerAttention &layer : f.model.layers)
    setWindow(layer, window);
}

void readQwen2Moe(Family &f) {
  readHeads(f);
  if (!f.flag("use_sliding_window", false))
    return;
  int64_t end = f.integer({"max_window_layers"}, 28, 0).value;
  readWindows(f, [end](int64_t i) { return i % 2 == 0 && i < end; }, 4096);
  f.refuse("versions disagree on which layers are windowed: transformers "
           "5.24.0 masks even layers below max_window_layers, 4.57.6 others");
}

/// Recurrent but where `isAttention(i)`.
void keepAttention(Family &f, const std::function<bool(int64_t)> &isAttention) {
  for (LayerAttention &layer : f.model.layers)
    if (!isAttention(layer.index))
      layer.kind = LayerKind::Recurrent;
}

void readQwen3Next(Family &f) {
  readHeads(f, {{}, {}, {}, 2, 256});
  std::vector<std::string> types = f.layerTypes();
  int64_t interval = f.integer({"full_attention_interval"}, 4).value;
  keepAttention(f, [&](int64_t i) {
    return types.empty() ? (i + 1) % interval == 0
                         : isFullWord(types[size_t(i)]);
  });
}

void readQueryScalar(Family &f) {
  std::optional<Sourced<double>> scalar = f.findNumber("query_pre_attn_scalar");
  if (!scalar)
    scalar = Sourced<double>{256.0, "class default of " + f.model.modelType +
                                        " for query_pre_attn_scalar"};
  if (!(scalar->value > 0))
    f.fail("query_pre_attn_scalar",
           "expected a positive number, found " + formatDouble(scalar->value));
  setScale(f, {std::pow(scalar->value, -0.5), scalar->from});
}

void readGemma2(Family &f) {
  readHeads(f, {26, 8, 2304, 4, 256});
  readQueryScalar(f);
  readWindows(f, onEven, 4096);
  std::optional<Sourced<double>> cap = f.findNumber("attn_logit_softcapping");
  if (!cap && !f.text.find("attn_logit_softcapping"))
    cap = Sourced<double>{50.0,
                          "class default of gemma2 for attn_logit_softcapping"};
  for (LayerAttention &layer : f.model.layers)
    layer.softCap = cap;
}

int64_t slidingPattern(Family &f, int64_t classDefault) {
  return f
      .integer({"sliding_window_pattern", "_sliding_window_pattern"},
               classDefault)
      .value;
}

void readGemma3(Family &f) {
  readHeads(f, {26, 8, 2304, 4, 256});
  readQueryScalar(f);
  readWindows(f, allButEvery(slidingPattern(f, 6)), 4096);
  if (f.flag("use_bidirectional_attention", false)) {
    f.refuse("bidirectional attention (use_bidirectional_attention true): an "
             "encoder, without causal mask and without use for a KV cache");
    for (LayerAttention &layer : f.model.layers) {
      layer.ownsCache = false;
      // The window is symmetric: half of it lies on each side.
      if (layer.windowLeft)
        layer.windowLeft->value = (layer.windowLeft->value + 1) / 2;
    }
  }
  if (f.isMultimodal())
    f.refuse("image tokens attend to each other in both directions during "
             "prefill",
             true);
}

/// The last num_kv_shared_layers read the cache of the last earlier layer of
/// their own type.
void shareLastLayers(Family &f) {
  int64_t shared = f.integer({"num_kv_shared_layers"}, 0, 0).value;
  int64_t count = int64_t(f.model.layers.size());
  int64_t first = count - shared;
  if (first < 0) {
    f.fail("num_kv_shared_layers", "expected at most " + std::to_string(count) +
                                       ", found " + std::to_string(shared));
    return;
  }
  for (int64_t i = first; i < count; ++i) {
    LayerAttention &layer = f.model.layers[size_t(i)];
    int64_t owner = first - 1;
    while (owner >= 0 && f.model.layers[size_t(owner)].kind != layer.kind)
      --owner;
    if (owner < 0)
      f.fail("num_kv_shared_layers", "layer " + std::to_string(i) +
                                         " has no earlier layer of its type "
                                         "to share with");
    layer.sharesCacheWith = owner;
    layer.ownsCache = false;
  }
}

void readGemma3n(Family &f) {
  readHeads(f, {{}, {}, {}, {}, 256});
  setScale(f, {1.0, "model type " + f.model.modelType});
  readWindows(f, allButEvery(5), 512);
  shareLastLayers(f);
}

void readGemma4(Family &f) {
  readHeads(f, {{}, {}, {}, {}, 256});
  setScale(f, {1.0, "model type " + f.model.modelType});
  int64_t last = int64_t(f.model.layers.size()) - 1;
  readWindows(
      f, [last](int64_t i) { return (i + 1) % 6 != 0 && i != last; }, 512);
  Sourced<int64_t> globalDim = f.integer({"global_head_dim"}, 512);
  std::optional<Sourced<int64_t>> globalHeads;
  if (f.flag("attention_k_eq_v", false))
    globalHeads = f.findInteger({"num_global_key_value_heads"});
  const JsonValue *perLayer = f.text.findNonNull("per_layer_config");
  for (LayerAttention &layer : f.model.layers) {
    if (layer.kind == LayerKind::Attention) {
      layer.headDim = layer.valueHeadDim = globalDim;
      if (globalHeads)
        layer.kvHeads = *globalHeads;
    }
    std::string index = std::to_string(layer.index);
    const JsonValue *own = perLayer ? perLayer->findNonNull(index) : nullptr;
    auto overwrite = [&](const char *key, Sourced<int64_t> &value) {
      const JsonValue *number = own ? own->findNonNull(key) : nullptr;
      std::string path = "per_layer_config." + index + "." + key;
      if (!number)
        return;
      if (number->isInteger() && number->asInteger() > 0)
        value = {number->asInteger(), f.source(path)};
      else
        f.fail(path, std::string("expected a positive integer, found ") +
                         number->print(0));
    };
    overwrite("head_dim", layer.headDim);
    layer.valueHeadDim = layer.headDim;
    overwrite("num_key_value_heads", layer.kvHeads);
  }
  shareLastLayers(f);
  const JsonValue *both = f.text.findNonNull("use_bidirectional_attention");
  if (both && both->isString() && both->asString() == "vision")
    f.refuse("use_bidirectional_attention is \"vision\": image tokens attend "
             "to each other in both directions",
             true);
  else if (both && ((both->isString() && both->asString() == "all") ||
                    (both->isBool() && both->asBool())))
    f.refuse("bidirectional attention (use_bidirectional_attention): an "
             "encoder, without causal mask");
}

void readGptOss(Family &f) {
  readHeads(f, {{}, {}, {}, 8, 64});
  readWindows(f, onEven, 128);
  for (LayerAttention &layer : f.model.layers)
    layer.sinks = true;
}

void readMimo(Family &f) {
  readHeads(f);
  Sourced<int64_t> window{0, ""};
  if (std::optional<Sourced<int64_t>> given = f.findInteger({"sliding_window"}))
    window = *given;
  else if (std::optional<Sourced<int64_t>> size =
               f.findInteger({"sliding_window_size"}))
    window = {size->value + 1, size->from + " + 1"};
  else
    f.fail("sliding_window",
           "this key is missing, expected it or sliding_window_size");
  std::vector<std::string> types = f.layerTypes();
  Sourced<int64_t> valueDim = f.integer({"v_head_dim"});
  for (LayerAttention &layer : f.model.layers) {
    layer.valueHeadDim = valueDim;
    bool full = types.empty() ? layer.index == 0 || (layer.index + 1) % 6 == 0
                              : isFullWord(types[size_t(layer.index)]);
    if (full)
      continue;
    setWindow(layer, window);
    layer.kvHeads.value *= 2;
    layer.kvHeads.from += ", doubled on sliding layers";
    layer.sinks = true;
  }
}

void readCohere2(Family &f) {
  readHeads(f);
  readWindows(f, allButEvery(slidingPattern(f, 4)), 4096);
}

void readOlmo3(Family &f) {
  readHeads(f);
  readWindows(f, allButEvery(4), 4096);
}

void readExaone4(Family &f) {
  readHeads(f);
  // Null switches the windows off.
  if (!f.has("sliding_window"))
    return;
  const JsonValue *pattern = f.text.findNonNull("sliding_window_pattern");
  if (pattern && pattern->isString() && !pattern->asString().empty()) {
    // "LLLG": local and global layers in turn.
    std::string letters = pattern->asString();
    readWindows(f, [letters](int64_t i) {
      return letters[size_t(i) % letters.size()] == 'L';
    });
    return;
  }
  if (pattern || f.has("layer_types"))
    readWindows(f, allButEvery(slidingPattern(f, 4)));
  else
    readWindows(f, allButEvery(4));
}

void readSmolLM3(Family &f) {
  readHeads(f);
  if (!f.flag("use_sliding_window", false))
    return;
  std::vector<int64_t> rope = f.integers("no_rope_layers");
  int64_t interval = f.integer({"no_rope_layer_interval"}, 4).value;
  readWindows(f, [&](int64_t i) {
    return size_t(i) < rope.size() ? rope[size_t(i)] == 0
                                   : (i + 1) % interval == 0;
  });
}

/// m of DeepSeek's YaRN: enters the softmax scale squared.
double yarnScale(Family &f, std::string &from) {
  std::string_view key = "rope_parameters";
  const JsonValue *rope = f.text.findNonNull(key);
  if (!rope) {
    key = "rope_scaling";
    rope = f.text.findNonNull(key);
  }
  if (!rope || !rope->isObject())
    return 1;
  const JsonValue *type = rope->findNonNull("rope_type");
  if (!type)
    type = rope->findNonNull("type");
  const JsonValue *all = rope->findNonNull("mscale_all_dim");
  const JsonValue *factor = rope->findNonNull("factor");
  if (!type || !type->isString() || type->asString() == "default" || !all ||
      !all->isNumber() || all->asDouble() == 0 || !factor ||
      !factor->isNumber() || !(factor->asDouble() > 1))
    return 1;
  from += ", " + std::string(key) + ".mscale_all_dim";
  return 0.1 * all->asDouble() * std::log(factor->asDouble()) + 1.0;
}

void readLatent(Family &f, int64_t layers, std::string_view key) {
  f.makeLayers(layers, key);
  Sourced<int64_t> heads = f.integer({"num_attention_heads"});
  Sourced<int64_t> nope = f.integer({"qk_nope_head_dim"});
  Sourced<int64_t> rope = f.integer({"qk_rope_head_dim"});
  Sourced<int64_t> latent = f.integer({"kv_lora_rank"});
  Sourced<int64_t> value = f.integer({"v_head_dim"});
  Sourced<int64_t> dim{nope.value + rope.value,
                       nope.from + " + qk_rope_head_dim"};
  std::string from = dim.from;
  double m = yarnScale(f, from);
  Sourced<double> scale{std::pow(double(dim.value), -0.5) * m * m, from};
  for (LayerAttention &layer : f.model.layers) {
    layer.kind = LayerKind::MLA;
    layer.queryHeads = heads;
    layer.kvHeads = {1, "one latent row"};
    layer.headDim = dim;
    layer.valueHeadDim = value;
    layer.softmaxScale = scale;
    layer.latentDim = latent.value;
    layer.nopeDim = nope.value;
    layer.ropeDim = rope.value;
  }
}

void readDeepSeek(Family &f) {
  readLatent(f, f.integer({"num_hidden_layers"}).value, "num_hidden_layers");
}

/// Two attentions a decoder layer.
void readLongCat(Family &f) {
  readLatent(f, 2 * f.integer({"num_layers", "num_hidden_layers"}).value,
             "num_layers");
}

void readMllama(Family &f) {
  readHeads(f);
  for (int64_t i : f.integers("cross_attention_layers")) {
    if (i < 0 || size_t(i) >= f.model.layers.size()) {
      f.fail("cross_attention_layers",
             "there is no layer " + std::to_string(i));
      return;
    }
    f.model.layers[size_t(i)].kind = LayerKind::Cross;
    f.refuse("cross-attention layer: its keys come from an image and are "
             "written once",
             false, i);
  }
}

void readLlama4(Family &f) {
  readHeads(f, {{}, {}, {}, {}, 128});
  std::vector<std::string> types = f.layerTypes();
  std::vector<int64_t> rope = f.integers("no_rope_layers");
  int64_t interval = f.integer({"no_rope_layer_interval"}, 4).value;
  bool anyChunked = false;
  std::string full;
  for (LayerAttention &layer : f.model.layers) {
    size_t i = size_t(layer.index);
    bool chunked = !types.empty()    ? types[i] == "chunked_attention"
                   : i < rope.size() ? rope[i] == 1
                                     : (layer.index + 1) % interval != 0;
    if (!chunked) {
      full += (full.empty() ? "" : ", ") + std::to_string(i);
      continue;
    }
    layer.kind = LayerKind::Chunked;
    layer.chunk = f.integer({"attention_chunk_size"}, 8192).value;
    anyChunked = true;
  }
  if (anyChunked)
    f.refuse("chunked attention (attention_chunk_size): a query sees only "
             "keys of its own aligned chunk, which no window expresses");
  if (f.flag("attn_temperature_tuning", true) && !full.empty())
    f.refuse("attention temperature tuning (attn_temperature_tuning): queries "
             "of the layers without RoPE (" +
             full + ") are multiplied by a factor that grows with position");
}

/// Jamba, Bamba, LFM2: attention among recurrent layers.
void readHybrid(Family &f) {
  readHeads(f);
  std::vector<std::string> types =
      f.words({"layers_block_type", "layer_types"});
  std::vector<int64_t> indices = f.integers("attn_layer_indices");
  if (indices.empty())
    indices = f.integers("full_attn_idxs");
  if (!types.empty()) {
    if (types.size() < f.model.layers.size())
      f.fail("layer_types",
             "has " + std::to_string(types.size()) + " entries for " +
                 std::to_string(f.model.layers.size()) + " layers");
    else
      keepAttention(f, [&](int64_t i) { return isFullWord(types[size_t(i)]); });
  } else if (!indices.empty()) {
    keepAttention(f, [&](int64_t i) {
      return std::find(indices.begin(), indices.end(), i) != indices.end();
    });
  } else if (f.has("attn_layer_period") || f.model.modelType == "jamba") {
    int64_t period = f.integer({"attn_layer_period"}, 8).value;
    int64_t offset = f.integer({"attn_layer_offset"}, 4, 0).value;
    keepAttention(f, [=](int64_t i) { return i % period == offset; });
  } else {
    f.fail("layer_types", "expected layer_types, attn_layer_indices or "
                          "full_attn_idxs, which say which layers have "
                          "attention");
  }
}

void readNemotronH(Family &f) {
  // The pattern, not num_hidden_layers, says how many layers there are.
  std::vector<std::string> types =
      f.words({"layers_block_type", "layer_types"});
  const JsonValue *pattern = f.text.findNonNull("hybrid_override_pattern");
  if (types.empty() && pattern && pattern->isString())
    for (char letter : pattern->asString())
      types.push_back(letter == '*'   ? "attention"
                      : letter == 'M' ? "mamba"
                      : letter == '-' || letter == 'E'
                          ? "mlp"
                          : std::string(1, letter));
  if (types.empty()) {
    f.fail("layers_block_type",
           "this key is missing, expected it or hybrid_override_pattern");
    return;
  }
  Sourced<int64_t> heads = f.integer({"num_attention_heads"});
  std::optional<Sourced<int64_t>> kv = f.findInteger({"num_key_value_heads"});
  std::optional<Sourced<int64_t>> given =
      f.findInteger({"head_dim", "attention_head_dim"});
  Sourced<int64_t> dim =
      given ? *given
            : Sourced<int64_t>{
                  std::max<int64_t>(
                      f.integer({"hidden_size"}).value / heads.value, 1),
                  f.source("hidden_size") + " / number of heads"};
  f.makeLayers(int64_t(types.size()), "layers_block_type");
  for (LayerAttention &layer : f.model.layers) {
    const std::string &type = types[size_t(layer.index)];
    layer.queryHeads = heads;
    layer.kvHeads = kv ? *kv : heads;
    layer.headDim = layer.valueHeadDim = dim;
    layer.softmaxScale = {std::pow(double(dim.value), -0.5), dim.from};
    if (type == "mamba" || type == "linear_attention")
      layer.kind = LayerKind::Recurrent;
    else if (type == "mlp" || type == "moe")
      layer.kind = LayerKind::None;
    else if (!isFullWord(type))
      f.fail("layers_block_type", "the layer type '" + type + "' of layer " +
                                      std::to_string(layer.index) +
                                      " is not known for nemotron_h");
  }
}

void readRecurrentGemma(Family &f) {
  readHeads(f);
  std::vector<std::string> types =
      f.words({"block_types", "layers_block_type", "layer_types"});
  if (types.empty())
    types = {"recurrent", "recurrent", "attention"};
  Sourced<int64_t> window = f.integer({"attention_window_size"}, 2048);
  for (LayerAttention &layer : f.model.layers) {
    const std::string &type = types[size_t(layer.index) % types.size()];
    if (isFullWord(type) || isSlidingWord(type))
      setWindow(layer, window);
    else
      layer.kind = LayerKind::Recurrent;
  }
}

void readZamba2(Family &f) {
  readHeads(f);
  // Attention works on the hidden state beside the embedding: twice as wide.
  std::optional<Sourced<int64_t>> given = f.findInteger({"attention_head_dim"});
  std::vector<std::string> types =
      f.words({"layers_block_type", "layer_types"});
  if (types.size() < f.model.layers.size())
    f.fail("layers_block_type", "expected an entry for each of the " +
                                    std::to_string(f.model.layers.size()) +
                                    " layers, found " +
                                    std::to_string(types.size()));
  Sourced<int64_t> hidden = f.integer({"hidden_size"});
  for (LayerAttention &layer : f.model.layers) {
    Sourced<int64_t> dim =
        given ? *given
              : Sourced<int64_t>{2 * hidden.value / layer.queryHeads.value,
                                 "2 * " + hidden.from + " / number of heads"};
    layer.headDim = layer.valueHeadDim = dim;
    layer.softmaxScale = {std::pow(double(dim.value) / 2, -0.5),
                          "half of " + dim.from};
    if (f.error)
      return;
    if (types[size_t(layer.index)] == "hybrid")
      layer.alsoRecurrent = true;
    else
      layer.kind = LayerKind::Recurrent;
  }
}

void readFalconH1(Family &f) {
  readHeads(f);
  for (LayerAttention &layer : f.model.layers)
    layer.alsoRecurrent = true;
}

void setAlibi(Family &f, const Sourced<Alibi> &alibi) {
  for (LayerAttention &layer : f.model.layers)
    layer.alibi = alibi;
}

/// What no family has a rule for: keys that say how positions enter, which must
/// agree with it and with each other. `alibi` is a key of Falcon, and
/// `position_embedding_type` one that several model types have.
void readPositions(Family &f) {
  constexpr std::string_view word = "position_embedding_type", key = "alibi";
  const JsonValue *given = f.text.findNonNull(word);
  if (given && !given->isString())
    return f.fail(word,
                  std::string("expected a string, found ") + given->kindName());
  bool isOn = f.flag(key, false), isOff = f.has(key) && !isOn;
  bool says = given && given->asString() == key;
  std::string of;
  for (const LayerAttention &layer : f.model.layers)
    if (layer.alibi)
      of = layer.alibi->from;
  if (of.empty() && isOn)
    of = f.source(key);
  if (isOff && (says || !of.empty()))
    return f.fail(key, "is false, but " + (says ? f.source(word) : of) +
                           " says that positions enter by ALiBi");
  if (given && !says && !of.empty())
    return f.fail(word, "is " + given->print(0) + ", but " + of +
                            " says that positions enter by ALiBi");
  bool isMissing = false;
  for (const LayerAttention &layer : f.model.layers)
    isMissing |= !layer.alibi;
  if (isMissing && (isOn || says))
    setAlibi(f, {Alibi(), f.source(isOn ? key : word)});
}

void readFalcon(Family &f) {
  readHeads(f);
  Sourced<int64_t> kv{1, f.source("multi_query")};
  if (f.flag("new_decoder_architecture", false)) {
    if (std::optional<Sourced<int64_t>> given =
            f.findInteger({"num_kv_heads", "n_head_kv"}))
      kv = *given;
    else if (!f.model.layers.empty())
      kv = f.model.layers[0].queryHeads;
  } else if (!f.flag("multi_query", true) && !f.model.layers.empty()) {
    kv = f.model.layers[0].queryHeads;
  }
  for (LayerAttention &layer : f.model.layers)
    layer.kvHeads = kv;
  // Falcon adds the bias to the products, and then scales both.
  if (f.flag("alibi", false))
    setAlibi(f, {{8, /*isScaled=*/true}, f.source("alibi")});
}

void readBloom(Family &f) {
  readHeads(f);
  setAlibi(f, {Alibi(), "model type bloom"});
}

void readMpt(Family &f) {
  readHeads(f);
  const JsonValue *attention = f.text.findNonNull("attn_config");
  auto find = [&](const char *key) {
    return attention ? attention->findNonNull(key) : nullptr;
  };
  // As MPT itself does it: 1 / sqrt, not a power.
  for (LayerAttention &layer : f.model.layers)
    layer.softmaxScale.value = 1 / std::sqrt(double(layer.headDim.value));
  if (const JsonValue *scale = find("softmax_scale")) {
    if (scale->isNumber() && scale->asDouble() > 0)
      setScale(f, {scale->asDouble(), f.source("attn_config.softmax_scale")});
    else
      f.fail("attn_config.softmax_scale",
             "expected a positive number, found " + scale->print(0));
  }
  const JsonValue *kv = find("kv_n_heads");
  if (kv && kv->isInteger() && kv->asInteger() > 0)
    for (LayerAttention &layer : f.model.layers)
      layer.kvHeads = {kv->asInteger(), f.source("attn_config.kv_n_heads")};
  auto isTrue = [&](const char *key, bool otherwise) {
    const JsonValue *value = find(key);
    if (value && !value->isBool())
      f.fail(std::string("attn_config.") + key,
             std::string("expected true or false, found ") + value->kindName());
    return value && value->isBool() ? value->asBool() : otherwise;
  };
  if (isTrue("alibi", true)) {
    std::string from = find("alibi")
                           ? f.source("attn_config.alibi")
                           : "class default of mpt for attn_config.alibi";
    if (isTrue("rope", false))
      f.fail("attn_config.rope",
             "is true, but " + from + " says that positions enter by ALiBi");
    Alibi alibi;
    if (const JsonValue *most = find("alibi_bias_max")) {
      alibi.biasMax = most->isNumber() ? most->asDouble() : 0;
      if (!(alibi.biasMax > 0 && alibi.biasMax <= 64))
        f.fail("attn_config.alibi_bias_max",
               "expected a positive number up to 64, found " + most->print(0));
    }
    setAlibi(f, {alibi, from});
  }
  const JsonValue *prefix = find("prefix_lm");
  if (prefix && prefix->isBool() && prefix->asBool())
    f.refuse("bidirectional prefix (attn_config.prefix_lm)");
}

void readGpt2(Family &f) {
  readHeads(f);
  bool scaled = f.flag("scale_attn_weights", true);
  bool byLayer = f.flag("scale_attn_by_inverse_layer_idx", false);
  for (LayerAttention &layer : f.model.layers) {
    if (!scaled)
      layer.softmaxScale = {1.0, f.source("scale_attn_weights")};
    if (!byLayer)
      continue;
    layer.softmaxScale.value /= double(layer.index + 1);
    layer.softmaxScale.from += ", scale_attn_by_inverse_layer_idx";
  }
}

void readGptNeo(Family &f) {
  readHeads(f);
  setScale(f, {1.0, "model type gpt_neo"});
  std::vector<std::string> kinds;
  if (f.has("attention_layers")) {
    kinds = f.words({"attention_layers"});
  } else if (const JsonValue *types = f.text.findNonNull("attention_types");
             types && types->isArray()) {
    // [[["global", "local"], 3]]: the list, that many times.
    for (const JsonValue &group : types->asArray()) {
      if (!group.isArray() || group.asArray().size() != 2 ||
          !group.asArray()[0].isArray() || !group.asArray()[1].isInteger()) {
        f.fail("attention_types", "expected pairs of a list and a count");
        return;
      }
      int64_t times = std::min(group.asArray()[1].asInteger(), maxLayers);
      for (int64_t i = 0; i < times && int64_t(kinds.size()) < maxLayers; ++i)
        for (const JsonValue &kind : group.asArray()[0].asArray())
          kinds.push_back(kind.isString() ? kind.asString() : "");
    }
  }
  if (kinds.size() < f.model.layers.size()) {
    f.fail("attention_layers", "expected an entry for each of the " +
                                   std::to_string(f.model.layers.size()) +
                                   " layers, found " +
                                   std::to_string(kinds.size()));
    return;
  }
  Sourced<int64_t> window = f.integer({"window_size"}, 256);
  for (LayerAttention &layer : f.model.layers)
    if (kinds[size_t(layer.index)] == "local")
      setWindow(layer, window);
}

using Reader = void (*)(Family &);

const std::map<std::string_view, Reader> &families() {
  static const std::map<std::string_view, Reader> table = {
      {"llama", readLlama},
      {"glm4", readPlain},
      {"olmo2", readPlain},
      {"cohere", readPlain},
      {"granite", readGranite},
      {"mistral", readMistral},
      {"mixtral", readMistral},
      {"phi3", readMistral},
      {"phimoe", readMistral},
      {"starcoder2", readMistral},
      {"ministral3", readMinistral3},
      {"ministral", readMinistral},
      {"minimax", readMiniMax},
      {"qwen2", readQwen2},
      {"qwen3", readQwen2},
      {"qwen2_5_vl", readQwen2},
      {"qwen2_5_vl_text", readQwen2},
      {"dots1", readQwen2},
      {"qwen3_moe", readQwen3Moe},
      {"qwen2_moe", readQwen2Moe},
      {"qwen3_next", readQwen3Next},
      {"gemma2", readGemma2},
      {"gemma3", readGemma3},
      {"gemma3_text", readGemma3},
      {"gemma3n", readGemma3n},
      {"gemma3n_text", readGemma3n},
      {"gemma4", readGemma4},
      {"gemma4_text", readGemma4},
      {"gpt_oss", readGptOss},
      {"mimo_v2_flash", readMimo},
      {"cohere2", readCohere2},
      {"exaone4", readExaone4},
      {"olmo3", readOlmo3},
      {"smollm3", readSmolLM3},
      {"deepseek_v2", readDeepSeek},
      {"deepseek_v3", readDeepSeek},
      {"longcat_flash", readLongCat},
      {"mllama", readMllama},
      {"mllama_text_model", readMllama},
      {"llama4", readLlama4},
      {"llama4_text", readLlama4},
      {"jamba", readHybrid},
      {"bamba", readHybrid},
      {"lfm2", readHybrid},
      {"nemotron_h", readNemotronH},
      {"recurrent_gemma", readRecurrentGemma},
      {"zamba2", readZamba2},
      {"falcon_h1", readFalconH1},
      {"falcon", readFalcon},
      {"bloom", readBloom},
      {"mpt", readMpt},
      {"gpt2", readGpt2},
      {"gpt_neo", readGptNeo},
  };
  return table;
}

/// The part of a config that describes the language model.
const JsonValue &textConfig(const JsonValue &config, std::string &prefix) {
  const JsonValue *text = config.find("text_config");
  if (!text || !text->isObject())
    return config;
  prefix = "text_config.";
  return *text;
}

} // namespace

Expected<std::optional<Sourced<CacheType>>>
kvcache::readModelDType(const JsonFile &config) {
  using Result = std::optional<Sourced<CacheType>>;
  std::string prefix;
  const JsonValue &text = textConfig(config.value, prefix);
  std::string file = baseName(config.path);
  for (const JsonValue *part : {&text, &config.value})
    for (const char *key : {"dtype", "torch_dtype"}) {
      const JsonValue *value = part->findNonNull(key);
      if (!value)
        continue;
      std::string from =
          file + ": " + (part == &config.value ? "" : prefix) + key;
      std::string word = value->isString() ? value->asString() : "";
      if (word.substr(0, 6) == "torch.")
        word.erase(0, 6);
      if (word == "auto")
        continue;
      if (word == "bfloat16")
        return Result({CacheType::BF16, from});
      if (word == "float16" || word == "half")
        return Result({CacheType::F16, from});
      if (word == "float32" || word == "float")
        return Result({CacheType::F32, from});
      return makeError(from +
                       ": expected bfloat16, float16 or float32, found " +
                       value->print(0));
    }
  return Result();
}

Expected<ModelAttention> kvcache::readModelAttention(const JsonFile &config) {
  std::string prefix;
  const JsonValue &text = textConfig(config.value, prefix);
  std::string file = baseName(config.path);
  const JsonValue *type = text.findNonNull("model_type");
  if (!type)
    type = config.value.findNonNull("model_type");
  if (!type || !type->isString())
    return makeError(file + ": expected a string 'model_type', found " +
                     (type ? type->kindName() : "nothing"));
  auto it = families().find(type->asString());
  if (it == families().end())
    return makeError(file + ": the attention rules of model_type '" +
                     type->asString() +
                     "' are not known; give the softmax scale, and where "
                     "there are any the window and the soft cap, explicitly");
  Family family(config, text, prefix, type->asString());
  Expected<std::optional<Sourced<CacheType>>> dtype = readModelDType(config);
  if (!dtype)
    return dtype.error();
  family.model.dtype = *dtype;
  it->second(family);
  readPositions(family);
  if (family.error)
    return family.error;
  for (LayerAttention &layer : family.model.layers)
    if (layer.kind == LayerKind::Recurrent || layer.kind == LayerKind::None)
      layer.ownsCache = false;
  return std::move(family.model);
}
