//===- ScaleTable.cpp - What every KV scale is worth, and why -------------===//

#include "kvcache/Checkpoint/ScaleTable.h"
#include "ScaleNames.h"
#include "ScaleSources.h"
#include "kvcache/Support/FP8.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstring>
#include <map>

using namespace kvcache;

static constexpr const char *roleNames[numScaleRoles] = {"q", "k", "v", "prob",
                                                         "o"};

const char *kvcache::scaleRoleName(ScaleRole role) {
  return roleNames[unsigned(role)];
}

std::optional<ScaleRole> kvcache::parseScaleRole(std::string_view name) {
  for (unsigned i = 0; i < numScaleRoles; ++i)
    if (name == roleNames[i])
      return ScaleRole(i);
  return std::nullopt;
}

const char *kvcache::provenanceName(ScaleProvenance provenance) {
  switch (provenance) {
  case ScaleProvenance::Checkpoint:
    return "checkpoint";
  case ScaleProvenance::Default:
    return "default";
  case ScaleProvenance::Duplicate:
    return "duplicate";
  case ScaleProvenance::Maximum:
    return "maximum";
  case ScaleProvenance::Override:
    break;
  }
  return "override";
}

const LayerScales *ScaleTable::find(std::string_view layer) const {
  for (const LayerScales &scales : layers)
    if (scales.layer == layer)
      return &scales;
  return nullptr;
}

Expected<ScaleOverride> kvcache::parseScaleOverride(std::string_view text) {
  auto fail = [&](const std::string &what) {
    return makeError("scale override '" + std::string(text) + "': " + what +
                     "; expected LAYER.ROLE=VALUE, such as "
                     "model.layers.0.self_attn.k=0.0123");
  };
  size_t equals = text.rfind('=');
  if (equals == std::string_view::npos)
    return fail("there is no '='");
  std::string_view layer, role;
  if (!splitLast(text.substr(0, equals), layer, role) || layer.empty())
    return fail("there is no layer in front of the role");
  std::optional<ScaleRole> parsed = parseScaleRole(role);
  if (!parsed)
    return fail("the role '" + std::string(role) +
                "' is none of q, k, v, prob, o");
  std::string_view digits = text.substr(equals + 1);
  float value = 0;
  std::from_chars_result result =
      std::from_chars(digits.data(), digits.data() + digits.size(), value);
  if (result.ec != std::errc() || digits.empty() ||
      result.ptr != digits.data() + digits.size())
    return fail("'" + std::string(digits) + "' is not a number of f32");
  if (!std::isfinite(value) || !(value > 0))
    return fail("a scale must be positive and finite");
  return ScaleOverride{std::string(layer), *parsed, value, std::string(text)};
}

namespace {

/// "a, b, c and 4 more".
std::string listNames(const std::vector<std::string> &names) {
  constexpr size_t shown = 4;
  std::string text;
  for (size_t i = 0; i < names.size() && i < shown; ++i)
    text += (i ? ", " : "") + names[i];
  if (names.size() > shown)
    text += " and " + std::to_string(names.size() - shown) + " more";
  return text;
}

/// "1 layer", "3 layers".
std::string countOf(size_t count, const char *noun) {
  return std::to_string(count) + " " + noun + (count == 1 ? "" : "s");
}

/// The first element that is not zero, as text; empty: there is none.
std::string findNonZero(const Tensor &tensor) {
  if (readFloatElement(tensor, 0)) {
    for (int64_t i = 0; i < tensor.numElements(); ++i)
      if (double value = *readFloatElement(tensor, i); value != 0)
        return formatDouble(value);
    return "";
  }
  size_t size = std::max(1u, dtypeBits(tensor.dtype) / 8);
  for (uint64_t at = 0; at < tensor.bytes; at += size) {
    uint64_t bits = 0;
    std::memcpy(&bits, tensor.data + at, size);
    unsigned above = 64 - 8 * unsigned(size);
    if (bits != 0 && dtypeName(tensor.dtype)[0] == 'I')
      return std::to_string(int64_t(bits << above) >> above);
    if (bits != 0)
      return std::to_string(bits);
  }
  return "";
}

class ScaleResolver {
public:
  ScaleResolver(const Checkpoint *checkpoint,
                const std::vector<ScaleRequest> &layers,
                const ScaleOptions &options)
      : checkpoint(checkpoint), requests(layers), options(options),
        strict(options.policy == ScalePolicy::Strict),
        quant(readQuantConfig(checkpoint)),
        isCompressed(quant.family == QuantFamily::CompressedTensors),
        overrides(layers.size()), resolved(layers.size(), false) {}

  ScaleTable run() {
    for (const ScaleRequest &request : requests) {
      LayerScales scales;
      scales.layer = request.layer;
      scales.module = attentionModule(request.layer);
      scales.cacheType = request.cacheType;
      anyQuantized = anyQuantized || usesCheckpointScales(request.cacheType);
      table.layers.push_back(std::move(scales));
    }
    if (options.tpSize < 1 || options.tpRank < 0 ||
        options.tpRank >= options.tpSize) {
      reportAll(Severity::Error,
                "tp-rank " + std::to_string(options.tpRank) + " of tp-size " +
                    std::to_string(options.tpSize) +
                    ": expected at least one rank, and a rank from 0 to "
                    "tp-size - 1");
      return std::move(table);
    }
    assignOverrides();
    if (!openSources())
      return std::move(table);
    if (anyQuantized && !checkScheme())
      return std::move(table);
    for (size_t i = 0; i < requests.size(); ++i)
      if (requests[i].sharesCacheWith.empty())
        resolveLayer(i);
    for (size_t i = 0; i < requests.size(); ++i)
      if (!requests[i].sharesCacheWith.empty())
        shareLayer(i);
    reportModel();
    return std::move(table);
  }

private:
  using Candidates = std::vector<const ScaleCandidate *>;

  void report(Severity severity, size_t layer, const std::string &message,
              const std::string &key = "", const std::string &file = "") {
    const std::string &name = requests[layer].layer;
    table.diagnostics.push_back(
        {severity, name, key, file, "layer " + name + ": " + message});
  }

  void reportAll(Severity severity, const std::string &message,
                 const std::string &key = "", const std::string &file = "") {
    table.diagnostics.push_back({severity, "", key, file, message});
  }

  void ignore(const ScaleCandidate &candidate, const std::string &reason) {
    table.ignored.push_back({candidate.key, candidate.file, reason});
  }

  /// An output scale belongs to the next linear layer and says nothing about
  /// the cache.
  static bool isCacheScale(const ScaleCandidate &candidate) {
    return candidate.role != ScaleRole::O;
  }

  static std::string place(const ScaleCandidate &candidate) {
    return "'" + candidate.key + "' in " + candidate.file;
  }

  //===--------------------------------------------------------------------===//
  // Sources
  //===--------------------------------------------------------------------===//

  void assignOverrides() {
    for (const ScaleOverride &given : options.overrides) {
      std::vector<size_t> matching;
      for (size_t i = 0; i < requests.size(); ++i)
        if (given.layer == requests[i].layer ||
            given.layer == table.layers[i].module ||
            given.layer == std::to_string(layerIndex(requests[i].layer)))
          matching.push_back(i);
      if (matching.size() == 1) {
        // Of two overrides of one scale the later one wins.
        overrides[matching[0]][unsigned(given.role)] = &given;
        continue;
      }
      std::vector<std::string> names;
      for (const ScaleRequest &request : requests)
        names.push_back(request.layer);
      reportAll(Severity::Error,
                "scale override '" + given.text + "': '" + given.layer +
                    (matching.empty()
                         ? "' is no attention layer of the graph; there are " +
                               listNames(names)
                         : "' names " + countOf(matching.size(), "layer") +
                               " of the graph"),
                given.layer);
    }
  }

  bool openSources() {
    std::vector<std::vector<Candidates>> matches;
    auto add = [&](ScaleSource source) {
      sources.push_back(std::move(source));
      const ScaleSource &added = sources.back();
      Candidates unmatched;
      matches.push_back(matchLayers(added,
                                    added.isOverlay ? nullptr : checkpoint,
                                    requests, unmatched, table.diagnostics));
      reportUnmatched(added, unmatched);
    };
    if (checkpoint)
      add(collectScales(*checkpoint));
    bool good = true;
    for (const std::string &path : options.overlays) {
      Expected<ScaleSource> source = openScaleOverlay(path);
      if (!source) {
        reportAll(Severity::Error, "scale overlay " + source.message(), "",
                  path);
        good = false;
        continue;
      }
      add(std::move(*source));
    }
    candidates.resize(requests.size());
    for (const std::vector<Candidates> &match : matches)
      for (size_t i = 0; i < requests.size(); ++i)
        candidates[i].push_back(match[i]);
    return good;
  }

  void reportUnmatched(const ScaleSource &source, const Candidates &unmatched) {
    std::vector<std::string> names;
    auto note = [&](const std::string &key, const std::string &file,
                    const std::string &reason) {
      table.ignored.push_back({key, file, reason});
      names.push_back("'" + key + "'");
    };
    for (const ScaleCandidate *candidate : unmatched)
      if (isCacheScale(*candidate) && candidate->kind != ScaleName::ZeroPoint)
        note(candidate->key, candidate->file, "no such layer in the graph");
    if (!names.empty())
      reportAll(Severity::Warning,
                source.name + ": " + countOf(names.size(), "scale tensor") +
                    (names.size() == 1 ? " belongs" : " belong") +
                    " to no attention layer of the graph: " + listNames(names),
                table.ignored.back().key, table.ignored.back().file);
    names.clear();
    for (const IgnoredScale &unknown : source.unknown)
      note(unknown.key, unknown.file, unknown.reason);
    if (!names.empty())
      reportAll(Severity::Warning,
                source.name + ": " +
                    countOf(names.size(), "scale-like tensor") +
                    " under attention modules " +
                    (names.size() == 1 ? "has a name" : "have names") +
                    " of no known form, not used: " + listNames(names),
                table.ignored.back().key, table.ignored.back().file);
    for (const ScaleCandidate &candidate : source.candidates)
      haveScales = haveScales || (isCacheScale(candidate) &&
                                  candidate.kind != ScaleName::ZeroPoint);
  }

  /// What the configuration says about the scales' meaning.
  bool checkScheme() {
    if (!quant.problem.empty() && isCompressed) {
      reportAll(Severity::Error, quant.problem, quant.kvKey, quant.kvFile);
      return false;
    }
    if (!quant.problem.empty())
      reportAll(Severity::Warning,
                quant.problem + "; the scales are read as per-tensor FP8 ones",
                quant.kvKey, quant.kvFile);
    perHead = isCompressed && quant.strategy == "attn_head";
    return true;
  }

  //===--------------------------------------------------------------------===//
  // Values
  //===--------------------------------------------------------------------===//

  /// Reads a candidate; false after an error.
  bool load(size_t layer, const ScaleCandidate &candidate, Scale &scale) {
    scale.provenance = ScaleProvenance::Checkpoint;
    scale.key = candidate.key;
    scale.file = candidate.file;
    const Tensor *tensor = candidate.tensor;
    if (!tensor)
      return convert(layer, candidate, candidate.number, scale);
    scale.dtype = tensor->dtype;
    scale.shape = tensor->shape;
    int64_t count = tensor->numElements();
    if (count == 0 || (count != 1 && !perHead)) {
      report(Severity::Error, layer,
             "only per-tensor scaling factors are supported for an FP8 KV "
             "cache here: expected one element, found shape " +
                 formatShape(tensor->shape) + " of " + place(candidate),
             candidate.key, candidate.file);
      return false;
    }
    std::vector<float> values;
    for (int64_t i = 0; i < count; ++i) {
      Expected<double> value = readFloatElement(*tensor, i);
      if (!value) {
        report(Severity::Error, layer,
               "scale " + value.message() + ", in " + candidate.file,
               candidate.key, candidate.file);
        return false;
      }
      if (!convert(layer, candidate, *value, scale))
        return false;
      values.push_back(scale.value);
    }
    return count == 1 || takeHeads(layer, candidate, values, scale);
  }

  /// The heads of this rank out of those of the whole model.
  bool takeHeads(size_t layer, const ScaleCandidate &candidate,
                 std::vector<float> values, Scale &scale) {
    auto fail = [&](const std::string &what) {
      report(Severity::Error, layer,
             what + ", found shape " + formatShape(scale.shape) + " of " +
                 place(candidate),
             candidate.key, candidate.file);
      return false;
    };
    // q has one value per query head, and each KV head needs one value.
    if (candidate.role == ScaleRole::Q && candidate.kind == ScaleName::Single) {
      size_t heads = countHeads(layer);
      if (heads == 0 || values.size() % heads != 0)
        return fail("expected a q scale for each query head, a multiple of "
                    "the " +
                    std::to_string(heads) + " KV heads");
      std::vector<float> reduced;
      size_t group = values.size() / heads;
      for (size_t head = 0; head < heads; ++head)
        reduced.push_back(
            *std::max_element(values.begin() + ptrdiff_t(head * group),
                              values.begin() + ptrdiff_t((head + 1) * group)));
      values = std::move(reduced);
      scale.note += (scale.note.empty() ? "" : ", ") +
                    std::string("maximum of each KV head's group");
    }
    size_t heads = values.size(), ranks = size_t(options.tpSize);
    size_t first, count;
    if (heads % ranks == 0) {
      count = heads / ranks;
      first = count * size_t(options.tpRank);
    } else if (ranks % heads == 0) {
      count = 1;
      first = size_t(options.tpRank) / (ranks / heads);
    } else {
      return fail("expected a number of KV heads that divides the " +
                  std::to_string(ranks) +
                  " tensor parallel ranks or is a multiple of them");
    }
    int64_t expected = requests[layer].kvHeads;
    if (expected != 0 && size_t(expected) != count)
      return fail("expected a scale for each of the " +
                  std::to_string(expected) + " KV heads of this rank" +
                  (ranks > 1 ? " (rank " + std::to_string(options.tpRank) +
                                   " of " + std::to_string(ranks) + ")"
                             : ""));
    if (ranks > 1)
      scale.note += (scale.note.empty() ? "" : ", ") +
                    (count == 1 ? "head " + std::to_string(first)
                                : "heads " + std::to_string(first) + " to " +
                                      std::to_string(first + count - 1)) +
                    " of " + std::to_string(heads);
    scale.perHead.assign(values.begin() + ptrdiff_t(first),
                         values.begin() + ptrdiff_t(first + count));
    scale.value = *std::max_element(scale.perHead.begin(), scale.perHead.end());
    return true;
  }

  /// KV heads of the whole model, by the layer's own k and v scales, else by
  /// the graph; 0: not known.
  size_t countHeads(size_t layer) const {
    for (const Candidates &list : candidates[layer])
      for (const ScaleCandidate *candidate : list)
        if (candidate->kind == ScaleName::Single && candidate->tensor &&
            (candidate->role == ScaleRole::K ||
             candidate->role == ScaleRole::V) &&
            // The [1, 1, 1] of a single KV head, too.
            (candidate->tensor->numElements() > 1 ||
             candidate->tensor->shape.size() == 3))
          return size_t(candidate->tensor->numElements());
    return size_t(requests[layer].kvHeads * options.tpSize);
  }

  /// One number as it enters the table; false after an error.
  bool convert(size_t layer, const ScaleCandidate &candidate, double exact,
               Scale &scale) {
    scale.note.clear();
    scale.value = float(exact);
    bool is64Bit = !candidate.tensor || candidate.tensor->dtype == DType::F64;
    if (is64Bit && std::isfinite(exact) && double(scale.value) != exact) {
      scale.note = "rounded to f32";
      // Decimal numbers of a JSON file are hardly ever exact.
      if (candidate.tensor)
        report(Severity::Remark, layer,
               "the F64 scale " + formatDouble(exact) + " of " +
                   place(candidate) + " is rounded to f32 (" +
                   formatFloat(scale.value) + ")",
               candidate.key, candidate.file);
    }
    if (options.roundScalesTo) {
      bool toBF = *options.roundScalesTo == DType::BF16;
      float rounded =
          toBF ? fromBF16(toBF16(scale.value)) : fromF16(toF16(scale.value));
      if (rounded != scale.value && !std::isnan(rounded))
        scale.note = toBF ? "rounded to bf16" : "rounded to f16";
      scale.value = rounded;
    }
    // Formats with half the exponent bias need twice the scale.
    if (table.layers[layer].cacheType == CacheType::F8E4M3FNUZ &&
        !isCompressed) {
      scale.value *= 2;
      scale.note +=
          (scale.note.empty() ? "" : ", ") + std::string("doubled for fnuz");
    }
    if (std::isfinite(scale.value))
      return true;
    report(Severity::Error, layer,
           "the scale " + formatDouble(exact) + " of " + place(candidate) +
               " is not finite" + (std::isfinite(exact) ? " in f32" : "") +
               "; expected a positive finite number",
           candidate.key, candidate.file);
    return false;
  }

  /// Names that occur in several shards; false after an error.
  bool checkRepetitions(size_t layer, const ScaleCandidate &candidate) {
    for (const ScaleRepetition &repetition : candidate.repetitions) {
      if (strict || !repetition.equal) {
        report(Severity::Error, layer,
               place(candidate) + " is also in " + repetition.file + ", with " +
                   (repetition.equal ? "equal" : "other") + " content",
               candidate.key, candidate.file);
        return false;
      }
      repeated.push_back("'" + candidate.key + "'");
      ignore({candidate.kind,
              candidate.role,
              candidate.module,
              -1,
              candidate.key,
              repetition.file,
              nullptr,
              0,
              {}},
             "the same in " + candidate.file);
    }
    return true;
  }

  /// Bit for bit.
  static bool isSame(const Scale &a, const Scale &b) {
    auto sameBits = [](float x, float y) {
      return bitsOfFloat(x) == bitsOfFloat(y);
    };
    return sameBits(a.value, b.value) &&
           std::equal(a.perHead.begin(), a.perHead.end(), b.perHead.begin(),
                      b.perHead.end(), sameBits);
  }

  /// The least value of a scale's heads.
  static float smallest(const Scale &scale) {
    return scale.perHead.empty()
               ? scale.value
               : *std::min_element(scale.perHead.begin(), scale.perHead.end());
  }

  enum class Found { Nothing, Value, Failure };

  /// Loads the one value that several names of equal rank give.
  Found loadEqual(size_t layer, const Candidates &names, Scale &scale) {
    Found found = Found::Nothing;
    for (const ScaleCandidate *candidate : names) {
      Scale other;
      if (!checkRepetitions(layer, *candidate) ||
          !load(layer, *candidate, other))
        return Found::Failure;
      if (found == Found::Nothing) {
        scale = std::move(other);
        found = Found::Value;
        continue;
      }
      if (!isSame(other, scale)) {
        report(Severity::Error, layer,
               "two names give one scale different values: '" + scale.key +
                   "' is " + formatFloat(scale.value) + ", '" + other.key +
                   "' is " + formatFloat(other.value),
               other.key, other.file);
        return Found::Failure;
      }
      ignore(*candidate, "the same scale as '" + scale.key + "'");
      report(Severity::Remark, layer,
             place(*candidate) + " gives the same scale as '" + scale.key + "'",
             candidate->key, candidate->file);
    }
    return found;
  }

  /// What the sources say about one role. The last source that says anything
  /// wins; in it, a role's own name over kv_scale.
  Found findScale(size_t layer, ScaleRole role, Scale &scale) {
    bool isKV = role == ScaleRole::K || role == ScaleRole::V;
    for (size_t s = sources.size(); s-- > 0;) {
      Candidates own, common;
      for (const ScaleCandidate *candidate : candidates[layer][s]) {
        if (candidate->kind == ScaleName::Single && candidate->role == role)
          own.push_back(candidate);
        else if (candidate->kind == ScaleName::KV && isKV)
          common.push_back(candidate);
      }
      if (own.empty() && common.empty())
        continue;
      if (sources[s].isOverlay)
        noteOverlaid(layer, s, role, isKV);
      Found found = loadEqual(layer, own, scale);
      Scale shared;
      Found foundCommon = found == Found::Failure
                              ? Found::Failure
                              : loadEqual(layer, common, shared);
      if (foundCommon == Found::Failure)
        return Found::Failure;
      if (found == Found::Nothing) {
        scale = std::move(shared);
        return foundCommon;
      }
      if (foundCommon == Found::Value && !isSame(shared, scale)) {
        report(strict ? Severity::Error : Severity::Warning, layer,
               "'" + shared.key + "' is " + formatFloat(shared.value) +
                   ", but '" + scale.key + "' is " + formatFloat(scale.value) +
                   (strict ? "; expected equal values"
                           : "; the specific name wins"),
               scale.key, scale.file);
        if (strict)
          return Found::Failure;
        scale.note = "wins over '" + shared.key + "'";
      }
      return Found::Value;
    }
    return Found::Nothing;
  }

  void noteOverlaid(size_t layer, size_t source, ScaleRole role, bool isKV) {
    overlayUses[source] += 1;
    for (size_t s = 0; s < source; ++s)
      for (const ScaleCandidate *candidate : candidates[layer][s])
        if ((candidate->kind == ScaleName::Single && candidate->role == role) ||
            (candidate->kind == ScaleName::KV && isKV))
          ignore(*candidate, "replaced by " + sources[source].name);
  }

  //===--------------------------------------------------------------------===//
  // Layers
  //===--------------------------------------------------------------------===//

  static Scale defaulted(const char *note = "") {
    Scale scale;
    scale.note = note;
    return scale;
  }

  /// The value of the other of k and v.
  static Scale copied(const Scale &from, ScaleProvenance provenance,
                      const char *note) {
    Scale scale = from;
    scale.provenance = provenance;
    scale.note = note;
    return scale;
  }

  static std::string describe(const Scale &scale) {
    std::string value = formatFloat(scale.value);
    for (size_t i = 0; i < scale.perHead.size(); ++i)
      value = (i ? value + ", " : "") + formatFloat(scale.perHead[i]);
    return "'" + scale.key + "' (" + value + ") in " + scale.file;
  }

  void resolveLayer(size_t i) {
    LayerScales &layer = table.layers[i];
    for (const Candidates &list : candidates[i])
      for (const ScaleCandidate *candidate : list)
        if (candidate->tensor && isCacheScale(*candidate))
          layer.module = candidate->module;
    readOutputScale(i);
    if (usesCheckpointScales(layer.cacheType)) {
      ++quantizedLayers;
      // All of them, so that all errors are reported.
      bool zeroPoints = checkZeroPoints(i), kv = resolveKV(i);
      bool q = resolveQ(i), prob = resolveProb(i);
      resolved[i] = zeroPoints && kv && q && prob;
    } else {
      leaveUnquantized(i);
    }
    for (unsigned role = 0; role < numScaleRoles; ++role) {
      const ScaleOverride *given = overrides[i][role];
      if (!given)
        continue;
      if (!usesCheckpointScales(layer.cacheType)) {
        report(Severity::Warning, i,
               "scale override '" + given->text +
                   "' is not used: the cache is " +
                   cacheTypeName(layer.cacheType));
        continue;
      }
      if (requests[i].mla && ScaleRole(role) == ScaleRole::V) {
        report(Severity::Warning, i,
               "scale override '" + given->text +
                   "' is not used: MLA has one scale for its latent cache, k");
        continue;
      }
      Scale scale;
      scale.value = given->value;
      scale.provenance = ScaleProvenance::Override;
      scale.used = layer.scales[role].used;
      layer.scales[role] = scale;
    }
    if (requests[i].mla && overrides[i][unsigned(ScaleRole::K)] &&
        usesCheckpointScales(layer.cacheType))
      layer[ScaleRole::V] = layer[ScaleRole::K];
  }

  bool isOverridden(size_t layer, ScaleRole role) const {
    return overrides[layer][unsigned(role)] != nullptr;
  }

  bool checkZeroPoints(size_t i) {
    bool good = true;
    for (const Candidates &list : candidates[i])
      for (const ScaleCandidate *candidate : list) {
        if (candidate->kind != ScaleName::ZeroPoint)
          continue;
        std::string found = findNonZero(*candidate->tensor);
        if (!found.empty()) {
          report(Severity::Error, i,
                 "the zero point " + place(*candidate) + " is " + found +
                     ", expected 0: only symmetric quantization is supported",
                 candidate->key, candidate->file);
          good = false;
        } else {
          ignore(*candidate, "a zero point of zero");
        }
      }
    return good;
  }

  /// Section by section the table of k and v; false after an error.
  bool resolveKV(size_t i) {
    LayerScales &layer = table.layers[i];
    Scale &k = layer[ScaleRole::K], &v = layer[ScaleRole::V];
    bool setK = isOverridden(i, ScaleRole::K);
    bool setV = isOverridden(i, ScaleRole::V);
    Found foundK = setK ? Found::Nothing : findScale(i, ScaleRole::K, k);
    Found foundV = setV ? Found::Nothing : findScale(i, ScaleRole::V, v);
    k.used = v.used = true;
    if (foundK == Found::Failure || foundV == Found::Failure)
      return false;
    bool good = false;
    if (requests[i].mla)
      good = resolveLatent(i, foundK, foundV, setK);
    else if (isCompressed || setK || setV) {
      bool goodK = resolveAlone(i, ScaleRole::K, foundK, setK);
      good = resolveAlone(i, ScaleRole::V, foundV, setV) && goodK;
    } else
      good = resolvePair(i, foundK, foundV);
    k.used = true;
    v.used = !requests[i].mla;
    return good;
  }

  /// One role without regard to the other: compressed-tensors, and the partner
  /// of an override.
  bool resolveAlone(size_t i, ScaleRole role, Found found, bool overridden) {
    Scale &scale = table.layers[i][role];
    if (overridden)
      return true;
    if (found == Found::Nothing) {
      scale = defaulted();
      missing.push_back(requests[i].layer + " (" + scaleRoleName(role) + ")");
      return true;
    }
    if (smallest(scale) > 0)
      return true;
    if (!isCompressed && !strict && scale.value < 0) {
      report(Severity::Warning, i,
             "the scale " + describe(scale) + " is negative; 1.0 is used",
             scale.key, scale.file);
      scale = defaulted("negative in the checkpoint");
      return true;
    }
    report(Severity::Error, i,
           "the scale " + describe(scale) +
               " is not positive; expected a positive finite number",
           scale.key, scale.file);
    return false;
  }

  bool resolvePair(size_t i, Found foundK, Found foundV) {
    LayerScales &layer = table.layers[i];
    Scale &k = layer[ScaleRole::K], &v = layer[ScaleRole::V];
    bool haveK = foundK == Found::Value, haveV = foundV == Found::Value;
    if (!haveK && !haveV) {
      k = defaulted();
      v = defaulted();
      missing.push_back(requests[i].layer);
      return true;
    }
    bool goodK = haveK && k.value > 0, goodV = haveV && v.value > 0;
    if (goodK && goodV)
      return true;
    if (goodK && !haveV) {
      report(Severity::Remark, i,
             "there is no v scale; " + describe(k) + " is used for v, too",
             k.key, k.file);
      v = copied(k, ScaleProvenance::Duplicate, "there is no v scale");
      return true;
    }
    if (goodV && !haveK) {
      report(Severity::Warning, i,
             "there is no k scale; " + describe(v) + " is used for k, too",
             v.key, v.file);
      k = copied(v, ScaleProvenance::Duplicate, "there is no k scale");
      return true;
    }
    // From here on something was loaded that is not positive.
    Scale &bad = haveK && !goodK ? k : v;
    if (!strict && (goodK || goodV)) {
      Scale &good = goodK ? k : v;
      report(Severity::Warning, i,
             "the scale " + describe(bad) + " is not positive; " +
                 describe(good) + " is used for both k and v",
             bad.key, bad.file);
      ignoreLoaded(bad, "not positive");
      bad =
          copied(good, ScaleProvenance::Maximum, "the partner is not positive");
      return true;
    }
    bool sentinel = (!haveK || k.value < 0) && (!haveV || v.value < 0);
    if (!strict && sentinel) {
      report(Severity::Warning, i,
             "the scale " + describe(bad) +
                 " is negative (no scale); 1.0 is used for k and v",
             bad.key, bad.file);
      for (Scale *scale : {&k, &v}) {
        if (!scale->key.empty())
          ignoreLoaded(*scale, "negative: stands for no scale");
        *scale = defaulted("negative in the checkpoint");
      }
      if (options.requireCalibrated)
        missing.push_back(requests[i].layer);
      return true;
    }
    for (const Scale *scale : {&k, &v})
      if (!scale->key.empty() && !(scale->value > 0))
        report(Severity::Error, i,
               "the scale " + describe(*scale) +
                   " is not positive; expected a positive finite number",
               scale->key, scale->file);
    return false;
  }

  void ignoreLoaded(const Scale &scale, const std::string &reason) {
    table.ignored.push_back({scale.key, scale.file, reason});
  }

  /// MLA: the latent row is both K and V, so there is one scale.
  bool resolveLatent(size_t i, Found foundK, Found foundV, bool setK) {
    LayerScales &layer = table.layers[i];
    Scale &k = layer[ScaleRole::K], &v = layer[ScaleRole::V];
    if (setK)
      return true;
    if (foundK == Found::Value && foundV == Found::Value && !isSame(k, v)) {
      report(strict ? Severity::Error : Severity::Warning, i,
             "MLA has one scale for its latent cache, but k is " + describe(k) +
                 " and v is " + describe(v) +
                 (strict
                      ? "; expected equal values (scale-policy=compatible uses "
                        "only k)"
                      : "; only k is used"),
             v.key, v.file);
      if (strict)
        return false;
      ignoreLoaded(v, "MLA uses only k");
      foundV = Found::Nothing;
    }
    if (foundV == Found::Nothing && foundK == Found::Value) {
      if (!resolveAlone(i, ScaleRole::K, foundK, false))
        return false;
    } else if (isCompressed) {
      if (!resolveAlone(i, ScaleRole::K, foundK, false))
        return false;
    } else if (!resolvePair(i, foundK, foundV)) {
      return false;
    }
    Scale shared = k;
    if (shared.provenance == ScaleProvenance::Checkpoint)
      shared.provenance = ScaleProvenance::Duplicate;
    shared.note = "MLA uses only k";
    v = shared;
    return true;
  }

  bool resolveQ(size_t i) {
    Scale &q = table.layers[i][ScaleRole::Q];
    bool isUsed = requests[i].queryIsFP8;
    q.used = isUsed;
    if (isOverridden(i, ScaleRole::Q))
      return true;
    if (!isUsed && hasUnreadableQ(i)) {
      q.used = false;
      return true;
    }
    Found found = findScale(i, ScaleRole::Q, q);
    q.used = isUsed;
    if (found == Found::Failure)
      return false;
    if (found == Found::Nothing) {
      if (isUsed)
        missingQ.push_back(requests[i].layer);
      return true;
    }
    if (!(smallest(q) > 0)) {
      if (isCompressed && isUsed) {
        report(Severity::Error, i,
               "the scale " + describe(q) +
                   " is not positive; expected a positive finite number",
               q.key, q.file);
        return false;
      }
      report(isUsed ? Severity::Warning : Severity::Remark, i,
             "the scale " + describe(q) + " is not positive; 1.0 is used",
             q.key, q.file);
      ignoreLoaded(q, "not positive");
      q = defaulted("not positive in the checkpoint");
      q.used = isUsed;
      return true;
    }
    if (!isUsed) {
      unusedQ.push_back("'" + q.key + "'");
      ignoreLoaded(q, "the queries are not FP8");
    }
    return true;
  }

  bool hasReadableShape(size_t layer, const Tensor &q) const {
    int64_t count = q.numElements();
    size_t heads = countHeads(layer);
    return count == 1 ||
           (perHead && count != 0 && heads != 0 && size_t(count) % heads == 0);
  }

  /// A q scale that nothing reads does not have to make sense.
  bool hasUnreadableQ(size_t i) {
    for (const Candidates &list : candidates[i])
      for (const ScaleCandidate *candidate : list)
        if (candidate->kind == ScaleName::Single &&
            candidate->role == ScaleRole::Q && candidate->tensor &&
            (!hasReadableShape(i, *candidate->tensor) ||
             !readFloatElement(*candidate->tensor, 0) ||
             !std::isfinite(*readFloatElement(*candidate->tensor, 0)))) {
          unusedQ.push_back("'" + candidate->key + "'");
          ignore(*candidate, "the queries are not FP8");
          return true;
        }
    return false;
  }

  bool resolveProb(size_t i) {
    Scale &prob = table.layers[i][ScaleRole::Prob];
    if (isCompressed || isOverridden(i, ScaleRole::Prob))
      return true;
    Found found = findScale(i, ScaleRole::Prob, prob);
    if (found == Found::Failure)
      return false;
    if (found == Found::Value && !(prob.value > 0)) {
      report(Severity::Warning, i,
             "the scale " + describe(prob) + " is not positive; 1.0 is used",
             prob.key, prob.file);
      ignoreLoaded(prob, "not positive");
      prob = defaulted("not positive in the checkpoint");
    }
    return true;
  }

  /// The input scale of the linear layer behind the attention: what its output
  /// is divided by where the graph quantizes it.
  void readOutputScale(size_t i) {
    for (size_t s = sources.size(); s-- > 0;)
      for (const ScaleCandidate *candidate : candidates[i][s]) {
        if (candidate->role != ScaleRole::O || !candidate->tensor ||
            candidate->tensor->numElements() != 1)
          continue;
        Expected<double> value = readFloatElement(*candidate->tensor, 0);
        if (!value || !std::isfinite(float(*value)) || !(float(*value) > 0))
          continue;
        Scale &scale = table.layers[i][ScaleRole::O];
        scale.value = float(*value);
        scale.provenance = ScaleProvenance::Checkpoint;
        scale.key = candidate->key;
        scale.file = candidate->file;
        scale.dtype = candidate->tensor->dtype;
        scale.shape = candidate->tensor->shape;
        return;
      }
  }

  void leaveUnquantized(size_t i) {
    CacheType type = table.layers[i].cacheType;
    bool computed = type == CacheType::FP8PerTokenHead ||
                    type == CacheType::INT8PerTokenHead ||
                    type == CacheType::FP8DSMLA;
    std::string reason =
        computed ? std::string("the write computes the scales of a ") +
                       cacheTypeName(type) + " cache"
                 : std::string("the cache is not quantized (") +
                       cacheTypeName(type) + ")";
    bool any = false;
    for (const Candidates &list : candidates[i])
      for (const ScaleCandidate *candidate : list) {
        if (!isCacheScale(*candidate))
          continue;
        ignore(*candidate, reason);
        any = true;
        if (unusedReason.empty()) {
          unusedReason = reason;
          unusedKey = candidate->key;
          unusedFile = candidate->file;
        }
      }
    if (any)
      unusedLayers.push_back(requests[i].layer);
  }

  void shareLayer(size_t i) {
    const std::string &owner = requests[i].sharesCacheWith;
    size_t index = 0;
    while (index < requests.size() && requests[index].layer != owner)
      ++index;
    if (index == requests.size() || !requests[index].sharesCacheWith.empty()) {
      report(Severity::Error, i,
             "reads the cache of '" + owner +
                 "', which is not a layer of the graph with a cache of its "
                 "own");
      return;
    }
    LayerScales &layer = table.layers[i];
    std::string own;
    for (const Candidates &list : candidates[i])
      for (const ScaleCandidate *candidate : list) {
        if (!isCacheScale(*candidate))
          continue;
        ignore(*candidate, "the layer reads the cache of " + owner);
        own = candidate->key;
      }
    if (!own.empty())
      report(Severity::Remark, i,
             "reads the cache of " + owner +
                 ": that layer's scales hold, and its own are not used, such "
                 "as '" +
                 own + "'",
             own);
    for (ScaleRole role : {ScaleRole::K, ScaleRole::V})
      layer[role] = table.layers[index][role];
    layer.cacheType = table.layers[index].cacheType;
  }

  //===--------------------------------------------------------------------===//
  // The whole model
  //===--------------------------------------------------------------------===//

  void reportModel() {
    std::string where = checkpoint ? checkpoint->path() : "no checkpoint";
    if (!missing.empty()) {
      std::string declared = !quant.kvAlgorithm.empty() && !haveScales
                                 ? ", although " + quant.kvFile + ": " +
                                       quant.kvKey + " declares " +
                                       quant.kvAlgorithm
                                 : "";
      reportAll(options.requireCalibrated ? Severity::Error : Severity::Warning,
                where + ": no KV cache scale for " +
                    std::to_string(missing.size()) + " of " +
                    countOf(quantizedLayers, "quantized layer") + declared +
                    ": " + listNames(missing) +
                    (options.requireCalibrated
                         ? "; calibrated scales are required"
                         : "; 1.0 is used, which loses accuracy where values "
                           "are small or beyond 448") +
                    ". kvcache-scales calibrate makes calibrated scales from "
                    "sampled activations, to be given as a scale overlay",
                quant.kvKey, where);
    }
    if (!missingQ.empty())
      reportAll(
          Severity::Warning,
          where + ": no q scale for " + countOf(missingQ.size(), "layer") +
              " with FP8 queries: " + listNames(missingQ) + "; 1.0 is used");
    if (!unusedQ.empty())
      reportAll(Severity::Remark,
                countOf(unusedQ.size(), "q scale") +
                    (unusedQ.size() == 1 ? " is" : " are") +
                    " not used, because the queries are not FP8: " +
                    listNames(unusedQ));
    if (!unusedLayers.empty())
      reportAll(Severity::Remark,
                "scale unused: " + unusedReason +
                    ", so the checkpoint's scales of " +
                    countOf(unusedLayers.size(), "layer") +
                    " do not apply, such as '" + unusedKey + "'",
                unusedKey, unusedFile);
    if (!repeated.empty())
      reportAll(Severity::Remark, countOf(repeated.size(), "scale") +
                                      (repeated.size() == 1 ? " is" : " are") +
                                      " in two shards with equal content: " +
                                      listNames(repeated));
    for (const auto &[source, count] : overlayUses)
      reportAll(Severity::Remark,
                "scale overlay " + sources[source].name + " gives " +
                    countOf(count, "scale"),
                "", sources[source].name);
    if (haveScales && checkpoint && quant.kvAlgorithm.empty() &&
        quantizedLayers != 0 && hasCheckpointScales())
      reportAll(Severity::Remark,
                where + ": has KV cache scales, but no configuration file "
                        "declares a quantized KV cache");
    reportUniform();
  }

  bool hasCheckpointScales() const {
    const std::vector<ScaleCandidate> &list = sources.front().candidates;
    return std::any_of(list.begin(), list.end(), [](const ScaleCandidate &c) {
      return isCacheScale(c) && c.kind != ScaleName::ZeroPoint;
    });
  }

  void reportUniform() {
    bool any = false;
    for (size_t i = 0; i < requests.size(); ++i) {
      const LayerScales &layer = table.layers[i];
      if (!resolved[i])
        continue;
      for (ScaleRole role : {ScaleRole::K, ScaleRole::V}) {
        const Scale &scale = layer[role];
        if (scale.provenance == ScaleProvenance::Default ||
            scale.provenance == ScaleProvenance::Override ||
            scale.value != 1.0f || smallest(scale) != 1.0f)
          return;
        any = true;
      }
    }
    if (any)
      reportAll(Severity::Remark,
                "every k and v scale of the checkpoint is 1.0: probably "
                "clamped at export, not calibrated");
  }

  const Checkpoint *checkpoint;
  const std::vector<ScaleRequest> &requests;
  const ScaleOptions &options;
  bool strict;
  QuantConfig quant;
  bool isCompressed;
  bool perHead = false; ///< one scale per KV head
  bool anyQuantized = false, haveScales = false;
  std::vector<std::array<const ScaleOverride *, numScaleRoles>> overrides;
  std::vector<bool> resolved;
  std::deque<ScaleSource> sources;
  /// Per layer, per source.
  std::vector<std::vector<Candidates>> candidates;

  size_t quantizedLayers = 0;
  std::vector<std::string> missing, missingQ, unusedQ, unusedLayers, repeated;
  std::string unusedReason, unusedKey, unusedFile;
  std::map<size_t, size_t> overlayUses;
  ScaleTable table;
};

} // namespace

ScaleTable kvcache::resolveScales(const Checkpoint *checkpoint,
                                  const std::vector<ScaleRequest> &layers,
                                  const ScaleOptions &options) {
  return ScaleResolver(checkpoint, layers, options).run();
}
