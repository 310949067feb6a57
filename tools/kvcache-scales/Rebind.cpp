//===- Rebind.cpp - kvcache-scales rebind ---------------------------------===//
//
// New scales for a bundle whose weights were refitted. Scales are launch
// constants, so nothing is compiled: constants are folded again by the formula
// that the manifest keeps beside each.
//
//===----------------------------------------------------------------------===//

#include "Tool.h"
#include "kvcache/Bundle/Bundle.h"
#include "kvcache/Support/FP8.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <iostream>

namespace kvcache::scales {

namespace {

/// The terms of a formula: softmax_scale * k_scale / soft_cap.
struct Term {
  std::string name;
  bool divides;
};

Expected<std::vector<Term>> parseFormula(std::string_view formula) {
  std::vector<Term> terms;
  bool divides = false;
  std::string_view rest = formula;
  while (!rest.empty()) {
    size_t end = rest.find(' ');
    terms.push_back({std::string(rest.substr(0, end)), divides});
    if (end == std::string_view::npos)
      return terms;
    rest.remove_prefix(end + 1);
    if (rest.size() < 2 || (rest[0] != '*' && rest[0] != '/') || rest[1] != ' ')
      break;
    divides = rest[0] == '/';
    rest.remove_prefix(2);
  }
  return makeError("cannot read the formula '" + std::string(formula) +
                   "'; expected factors joined by ' * ' and ' / '");
}

struct Values {
  double softmaxScale = 0, softCap = 0;
  double q = 1, k = 0, v = 0, o = 1;
};

/// The product in double, rounded once; nullopt for a name that is not known
/// here. `k_scale[head]` is the scale of the head that `values` is for.
std::optional<float> evaluate(const std::vector<Term> &terms,
                              const Values &values) {
  double product = 1;
  for (const Term &term : terms) {
    double factor;
    if (term.name == "softmax_scale")
      factor = values.softmaxScale;
    else if (term.name == "k_scale" || term.name == "k_scale[head]")
      factor = values.k;
    else if (term.name == "v_scale" || term.name == "v_scale[head]")
      factor = values.v;
    else if (term.name == "q_scale")
      factor = values.q;
    else if (term.name == "o_scale")
      factor = values.o;
    else if (term.name == "log2(e)")
      factor = std::log2(std::exp(1.0));
    else if (term.name == "soft_cap" && values.softCap > 0)
      factor = values.softCap;
    else if (term.name == "2")
      factor = 2;
    else
      return std::nullopt;
    product = term.divides ? product / factor : product * factor;
  }
  return float(product);
}

/// Others follow from no scale that a checkpoint gives.
bool hasCheckpointScale(std::string_view formula) {
  for (std::string_view name : {"q_scale", "k_scale", "v_scale", "o_scale"})
    if (formula.find(name) != std::string_view::npos)
      return true;
  return false;
}

/// The softmax scale may have been a double that the manifest shows rounded:
/// those that could have been meant. `config`: that of config.json, if any.
std::vector<double> softmaxCandidates(float shown,
                                      std::optional<double> config) {
  std::vector<double> candidates = {double(shown)};
  if (config && float(*config) == shown)
    candidates.push_back(*config);
  double width = std::round(1 / (double(shown) * double(shown)));
  if (width >= 1 && width < 1e6)
    for (double exact : {1 / std::sqrt(width), std::pow(width, -0.5)})
      if (float(exact) == shown)
        candidates.push_back(exact);
  return candidates;
}

/// The soft cap, which the manifest shows only as a constant times log2(e): a
/// decimal number of a config. 0: there is none.
double softCapOf(const Launch &launch) {
  for (const Argument &argument : launch.arguments)
    if (argument.kind == Argument::Kind::F32 &&
        argument.from == "soft_cap * log2(e)") {
      char text[32];
      std::snprintf(text, sizeof text, "%.6g",
                    double(argument.f32.value()) / std::log2(std::exp(1.0)));
      return std::strtod(text, nullptr);
    }
  return 0;
}

bool isPowerOfTwo(float value) {
  int exponent;
  return std::frexp(value, &exponent) == 0.5f;
}

std::optional<CacheType> cacheTypeOf(ElementType type) {
  switch (type) {
  case ElementType::F8E4M3FN:
    return CacheType::F8E4M3FN;
  case ElementType::F8E5M2:
    return CacheType::F8E5M2;
  case ElementType::BF16:
    return CacheType::BF16;
  case ElementType::F16:
    return CacheType::F16;
  case ElementType::F32:
    return CacheType::F32;
  case ElementType::U8:
    return CacheType::FP8DSMLA;
  default:
    return std::nullopt;
  }
}

Provenance provenanceOf(ScaleProvenance provenance) {
  switch (provenance) {
  case ScaleProvenance::Checkpoint:
    return Provenance::Checkpoint;
  case ScaleProvenance::Default:
    return Provenance::Default;
  case ScaleProvenance::Duplicate:
    return Provenance::Duplicate;
  case ScaleProvenance::Maximum:
    return Provenance::Maximum;
  case ScaleProvenance::Override:
    break;
  }
  return Provenance::Override;
}

class Rebinder {
public:
  Rebinder(Manifest &manifest, const ScaleTable &table,
           const std::map<std::string, double> &softmaxScales)
      : manifest(manifest), table(table), softmaxScales(softmaxScales) {}

  Error run() {
    for (Layer &layer : manifest.layers)
      if (Error error = takeScales(layer))
        return error;
    for (Target &target : manifest.targets)
      for (Launch &launch : target.launches)
        if (Error error = rebindLaunch(target, launch))
          return error.withContext("target " + target.chip + ", kernel " +
                                   launch.kernel + " of " + launch.layer);
    return Error::success();
  }

  size_t changedLayers = 0, changedConstants = 0;

private:
  Error takeScales(Layer &layer) {
    before[layer.id] = layer;
    const LayerScales *scales = table.find(layer.name);
    if (!scales || !usesCheckpointScales(scales->cacheType))
      return Error::success();
    auto take = [&](ManifestScale &into, ScaleRole role) {
      const Scale &scale = (*scales)[role];
      std::string what =
          "layer " + layer.name + ": the " + scaleRoleName(role) + " scale ";
      if (scale.perHead.empty() != into.perHead.empty())
        return makeError(what + "of this checkpoint has " +
                         (scale.perHead.empty() ? "one value"
                                                : "a value per "
                                                  "head") +
                         ", the bundle's has " +
                         (into.perHead.empty() ? "one" : "one per head") +
                         "; compile again");
      std::vector<float> values = scale.perHead;
      values.push_back(scale.value);
      for (float value : values)
        if (!std::isnormal(value) || !(value > 0))
          return makeError(what +
                           "must be positive, finite and normal in f32, but "
                           "is " +
                           formatFloat(value));
      into.value = ScalarF32::of(scale.value);
      into.perHead.clear();
      for (float value : scale.perHead)
        into.perHead.push_back(ScalarF32::of(value));
      into.provenance = provenanceOf(scale.provenance);
      into.key = scale.provenance == ScaleProvenance::Default ||
                         scale.provenance == ScaleProvenance::Override
                     ? std::string()
                     : scale.key;
      return Error::success();
    };
    if (Error error = take(layer.kScale, ScaleRole::K))
      return error;
    // A latent row is both K and V, under one scale.
    if (layer.isLatent())
      layer.vScale = layer.kScale;
    else if (Error error = take(layer.vScale, ScaleRole::V))
      return error;
    if (layer.qScale)
      if (Error error = take(*layer.qScale, ScaleRole::Q))
        return error;
    if (layer.oScale)
      if (Error error = take(*layer.oScale, ScaleRole::O))
        return error;
    layer.compatibility = cacheCompatibility(layer);
    const Layer &old = before[layer.id];
    // Host code has the constants of what it quantizes and dequantizes itself.
    bool hasHost = std::any_of(
        manifest.programs.begin(), manifest.programs.end(),
        [](const Program &program) { return program.host.has_value(); });
    bool hostQuantizes = hasHost && layer.buffers.querySource.empty();
    if (hostQuantizes && layer.qScale && !sameBits(*layer.qScale, *old.qScale))
      return hostScaleChanged(layer, "q", *old.qScale, *layer.qScale);
    if (hasHost && layer.oScale && !sameBits(*layer.oScale, *old.oScale))
      return hostScaleChanged(layer, "o", *old.oScale, *layer.oScale);
    changedLayers += !sameBits(layer.kScale, old.kScale) ||
                     !sameBits(layer.vScale, old.vScale) ||
                     (layer.qScale && !sameBits(*layer.qScale, *old.qScale)) ||
                     (layer.oScale && !sameBits(*layer.oScale, *old.oScale));
    return Error::success();
  }

  static Error hostScaleChanged(const Layer &layer, const char *role,
                                const ManifestScale &old,
                                const ManifestScale &now) {
    return makeError("layer " + layer.name + ": the host code was compiled " +
                     "for the " + role + " scale " +
                     formatFloat(old.value.value()) + ", but the new one is " +
                     formatFloat(now.value.value()) + "; compile again");
  }

  static Values valuesOf(const Layer &layer, int64_t head, double softmaxScale,
                         double softCap) {
    Values values;
    values.softmaxScale = softmaxScale;
    values.softCap = softCap;
    values.k = double(layer.kScale.ofHead(head));
    values.v = double(layer.vScale.ofHead(head));
    if (layer.qScale)
      values.q = double(layer.qScale->value.value());
    if (layer.oScale)
      values.o = double(layer.oScale->value.value());
    return values;
  }

  static bool sameBits(const ManifestScale &a, const ManifestScale &b) {
    if (a.value.bits != b.value.bits || a.perHead.size() != b.perHead.size())
      return false;
    for (size_t i = 0; i < a.perHead.size(); ++i)
      if (a.perHead[i].bits != b.perHead[i].bits)
        return false;
    return true;
  }

  /// What specialised the code must stay as it was.
  Error checkStructure(const Target &target, const Launch &launch,
                       const Layer &layer) {
    for (const Kernel &kernel : target.kernels) {
      if (kernel.name != launch.kernel)
        continue;
      for (const auto &[name, scale] :
           {std::pair("k_scale_is_pow2", &layer.kScale),
            std::pair("v_scale_is_pow2", &layer.vScale)}) {
        auto it = kernel.structure.find(name);
        if (it == kernel.structure.end())
          continue;
        const int64_t *was = std::get_if<int64_t>(&it->second);
        // Of scales per head, all must be powers of two.
        bool now = isPowerOfTwo(scale->value.value());
        for (ScalarF32 head : scale->perHead)
          now = now && isPowerOfTwo(head.value());
        // Division is right for every scale; a kernel without it only for
        // powers of two.
        if (was && *was != 0 && !now)
          return makeError(
              std::string("was compiled for a power of two (") + name +
              " = 1), but the new scale of layer " + layer.name + " is " +
              formatFloat(scale->value.value()) + "; compile again");
        if (was && *was == 0 && now)
          return makeError(
              std::string(
                  "was compiled for a scale that is no power of two (") +
              name + " = 0), but the new scale of layer " + layer.name +
              " is " + formatFloat(scale->value.value()) + "; compile again");
      }
    }
    return Error::success();
  }

  Error rebindLaunch(const Target &target, Launch &launch) {
    const Layer *layer = manifest.findLayer(launch.layer);
    auto old = before.find(launch.layer);
    if (!layer || old == before.end())
      return makeError("there is no layer of that name");
    if (Error error = checkStructure(target, launch, *layer))
      return error;
    // Constants of one formula per head follow each other, head by head.
    std::string lastFormula;
    int64_t head = 0;
    for (Argument &argument : launch.arguments) {
      if (argument.kind != Argument::Kind::F32)
        continue;
      head = argument.from == lastFormula ? head + 1 : 0;
      lastFormula = argument.from;
      if (!hasCheckpointScale(argument.from))
        continue;
      Expected<std::vector<Term>> terms = parseFormula(argument.from);
      if (!terms)
        return terms.error();
      if (argument.from.find("[head]") == std::string::npos)
        head = 0;
      if (head >= layer->kvHeads)
        return makeError("there are more constants '" + argument.from +
                         "' than KV heads");
      Expected<float> value =
          fold(argument, *terms, old->second, *layer, head, softCapOf(launch));
      if (!value)
        return value.error();
      if (bitsOfFloat(*value) == argument.f32.bits)
        continue;
      argument.f32 = ScalarF32::of(*value);
      ++changedConstants;
    }
    return Error::success();
  }

  /// Only a formula that reproduces the bundle's own constant from its own
  /// scales is believed.
  Expected<float> fold(const Argument &argument, const std::vector<Term> &terms,
                       const Layer &old, const Layer &now, int64_t head,
                       double softCap) {
    std::optional<float> result;
    auto config = softmaxScales.find(old.name);
    for (double softmax :
         softmaxCandidates(old.softmaxScale.value(),
                           config == softmaxScales.end()
                               ? std::nullopt
                               : std::optional<double>(config->second))) {
      std::optional<float> was =
          evaluate(terms, valuesOf(old, head, softmax, softCap));
      if (!was)
        return makeError("the constant '" + argument.from +
                         "' has a factor that only the compiler knows; "
                         "compile again");
      if (bitsOfFloat(*was) != argument.f32.bits)
        continue;
      std::optional<float> value =
          evaluate(terms, valuesOf(now, head, softmax, softCap));
      if (result && bitsOfFloat(*result) != bitsOfFloat(*value))
        return makeError("the constant '" + argument.from +
                         "' depends on digits of the softmax scale that the "
                         "manifest does not show; compile again");
      result = value;
    }
    if (!result)
      return makeError("the constant '" + argument.from + "' is " +
                       formatFloat(argument.f32.value()) +
                       ", which does not follow from the bundle's own scales; "
                       "compile again");
    if (!std::isnormal(*result))
      return makeError(argument.from + " = " + formatFloat(*result) +
                       " is not a normal f32; the scales cannot be right");
    return *result;
  }

  Manifest &manifest;
  const ScaleTable &table;
  const std::map<std::string, double> &softmaxScales;
  std::map<std::string, Layer> before;
};

/// Errors where config.json says that this is another model than that of the
/// bundle. Returns the layers' softmax scales as it gives them.
std::map<std::string, double>
compareWithConfig(const Manifest &manifest, const Checkpoint &checkpoint,
                  int64_t ranks, std::vector<Diagnostic> &diagnostics) {
  std::map<std::string, double> softmaxScales;
  if (!checkpoint.config())
    return softmaxScales;
  std::vector<AttentionRequest> requests;
  for (const Layer &layer : manifest.layers) {
    AttentionRequest request;
    request.layer = layer.name;
    request.headDim = layer.headDim;
    request.vHeadDim = layer.valueDim();
    if (layer.isLatent())
      request.latentDim = layer.valueDim();
    // Of several ranks, each has a part of the heads.
    if (ranks == 1) {
      request.queryHeads = layer.queryHeads;
      request.kvHeads = layer.kvHeads;
    }
    if (layer.softmaxScaleFrom.rfind("config.json", 0) != 0)
      request.softmaxScale = double(layer.softmaxScale.value());
    requests.push_back(std::move(request));
  }
  AttentionTable table = resolveAttention(checkpoint.config(), requests);
  for (Diagnostic &diagnostic : table.diagnostics)
    if (diagnostic.severity == Severity::Error)
      diagnostics.push_back(std::move(diagnostic));
  for (const ResolvedAttention &found : table.layers) {
    softmaxScales[found.layer] = found.softmaxScale.value;
    for (const Layer &layer : manifest.layers)
      if (layer.name == found.layer &&
          float(found.softmaxScale.value) != layer.softmaxScale.value())
        diagnostics.push_back(
            {Severity::Error, layer.name, "", checkpoint.config()->path,
             "layer " + layer.name + ": expected the bundle's softmax scale " +
                 formatFloat(layer.softmaxScale.value()) + ", found " +
                 formatDouble(found.softmaxScale.value) + " (" +
                 found.softmaxScale.from + "); compile again"});
  }
  return softmaxScales;
}

} // namespace

int rebind(const RebindOptions &options) {
  Expected<ModelScaleOptions> read = readOptions(options.resolve);
  if (!read)
    return fail(read.message());
  Expected<Bundle> bundle = openBundle(options.bundle);
  if (!bundle)
    return fail(bundle.message());
  Expected<Checkpoint> checkpoint = Checkpoint::open(options.checkpoint);
  if (!checkpoint)
    return fail(checkpoint.message());

  std::vector<ScaleRequest> requests;
  for (const Layer &layer : bundle->manifest.layers) {
    ScaleRequest request;
    request.layer = layer.name;
    std::optional<CacheType> type = cacheTypeOf(layer.elementType);
    if (!type)
      return fail(options.bundle + ": layer " + layer.name +
                  " has a cache of " +
                  std::string(elementTypeName(layer.elementType)) +
                  ", expected f8E4M3FN, f8E5M2, u8, bf16, f16 or f32");
    request.cacheType = *type;
    request.kvHeads = layer.kvHeads;
    request.queryIsFP8 = layer.qScale.has_value();
    request.mla = layer.isLatent();
    for (const Layer &owner : bundle->manifest.layers) {
      if (&owner == &layer)
        break;
      if (owner.cache == layer.cache) {
        request.sharesCacheWith = owner.name;
        break;
      }
    }
    requests.push_back(std::move(request));
  }
  ScaleTable table = resolveScales(&*checkpoint, requests, read->scales);
  std::map<std::string, double> softmaxScales = compareWithConfig(
      bundle->manifest, *checkpoint, read->scales.tpSize, table.diagnostics);
  printDiagnostics(std::cerr, table.diagnostics, !options.quiet);
  if (table.hasErrors())
    return ExitError;

  Rebinder rebinder(bundle->manifest, table, softmaxScales);
  if (Error error = rebinder.run())
    return fail(options.bundle + ": " + error.message() +
                "; the bundle is unchanged");
  const std::string &output =
      options.output.empty() ? options.bundle : options.output;
  if (Error error = writeBundle(output, std::move(*bundle)))
    return fail(error.message());
  if (!options.quiet)
    std::cout << output << ": " << rebinder.changedLayers << " of "
              << requests.size() << " layers have other scales, "
              << rebinder.changedConstants
              << " launch constants changed; no code was compiled\n";
  return exitCodeOf(table.diagnostics);
}

} // namespace kvcache::scales
