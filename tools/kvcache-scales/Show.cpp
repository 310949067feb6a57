//===- Show.cpp - kvcache-scales show: every scale, and why ---------------===//

#include "Tool.h"
#include "kvcache/Support/FP8.h"

#include <iostream>
#include <sstream>

namespace kvcache::scales {

namespace {

std::string count(size_t number, const char *noun) {
  return std::to_string(number) + " " + noun + (number == 1 ? "" : "s");
}

std::string pad(std::string text, size_t width) {
  if (text.size() < width)
    text.append(width - text.size(), ' ');
  return text;
}

/// "k     0.0123  0x3C498C7E  checkpoint: 'KEY' F32 [] in FILE".
void printScale(std::ostream &os, ScaleRole role, const Scale &scale) {
  os << "  " << pad(scaleRoleName(role), 5) << " "
     << pad(formatScale(scale), 14) << " "
     << (scale.perHead.empty() ? formatBits(scale.value) : "per head") << "  "
     << provenanceName(scale.provenance);
  if (std::string origin = describeOrigin(scale); !origin.empty())
    os << ": " << origin;
  if (!scale.note.empty())
    os << "; " << scale.note;
  if (!scale.used)
    os << "; nothing reads it";
  os << "\n";
}

void printAttention(std::ostream &os, const LayerAttention &entry) {
  os << "  softmax scale " << formatDouble(entry.softmaxScale.value) << " ("
     << entry.softmaxScale.from << ")";
  if (entry.windowLeft)
    os << "; window " << entry.windowLeft->value + 1 << " ("
       << entry.windowLeft->from << ")";
  if (entry.chunk)
    os << "; chunks of " << entry.chunk;
  if (entry.softCap)
    os << "; soft cap " << formatDouble(entry.softCap->value) << " ("
       << entry.softCap->from << ")";
  if (entry.sinks)
    os << "; sinks";
  if (entry.alibi)
    os << "; ALiBi (" << entry.alibi->from << ")";
  os << "\n  heads " << entry.queryHeads.value;
  if (entry.kind == LayerKind::MLA)
    os << ", latent " << entry.latentDim << " + rope " << entry.ropeDim;
  else
    os << " query, " << entry.kvHeads.value << " KV, head dim "
       << entry.headDim.value;
  if (entry.valueHeadDim.value != 0 &&
      entry.valueHeadDim.value != entry.headDim.value)
    os << ", values of " << entry.valueHeadDim.value;
  os << "\n";
}

void printLayer(std::ostream &os, const ModelLayer &layer,
                const LayerScales *scales) {
  os << "layer " << layer.index << "  " << layer.name;
  if (layer.attention)
    os << "  " << layerKindName(layer.attention->kind);
  else if (layer.mla)
    os << "  mla";
  if (!layer.cache || !scales) {
    os << "  no KV cache\n";
    return;
  }
  os << "\n  cache " << cacheTypeName(scales->cacheType) << " ("
     << layer.cache->from << ")";
  if (!layer.sharesCacheWith.empty())
    os << "; reads the cache of " << layer.sharesCacheWith
       << ", whose scales hold";
  os << "\n";
  if (layer.attention)
    printAttention(os, *layer.attention);
  if (!usesCheckpointScales(scales->cacheType)) {
    os << "  no scales of the checkpoint apply to this cache\n";
    return;
  }
  for (ScaleRole role : {ScaleRole::K, ScaleRole::V, ScaleRole::Q,
                         ScaleRole::Prob, ScaleRole::O}) {
    const Scale &scale = (*scales)[role];
    // What is neither there nor read is not worth a line.
    if (role != ScaleRole::K && role != ScaleRole::V && scale.key.empty() &&
        !scale.used)
      continue;
    printScale(os, role, scale);
  }
}

JsonValue toJson(const Scale &scale) {
  JsonValue json = JsonValue::object();
  if (scale.perHead.empty()) {
    json.set("value", double(scale.value));
    json.set("bits", formatBits(scale.value));
  } else {
    JsonValue values = JsonValue::array(), bits = JsonValue::array();
    for (float value : scale.perHead) {
      values.push(double(value));
      bits.push(formatBits(value));
    }
    json.set("value", std::move(values));
    json.set("bits", std::move(bits));
  }
  json.set("provenance", provenanceName(scale.provenance));
  if (!scale.key.empty()) {
    json.set("key", scale.key);
    json.set("file", scale.file);
  }
  if (scale.dtype) {
    json.set("dtype", dtypeName(*scale.dtype));
    JsonValue shape = JsonValue::array();
    for (int64_t extent : scale.shape)
      shape.push(extent);
    json.set("shape", std::move(shape));
  }
  if (!scale.note.empty())
    json.set("rule", scale.note);
  json.set("used", scale.used);
  return json;
}

template <typename T> JsonValue toJson(const Sourced<T> &value) {
  JsonValue json = JsonValue::object();
  json.set("value", value.value);
  json.set("from", value.from);
  return json;
}

JsonValue toJson(const LayerAttention &entry) {
  JsonValue json = JsonValue::object();
  json.set("softmax_scale", toJson(entry.softmaxScale));
  if (entry.softCap)
    json.set("soft_cap", toJson(*entry.softCap));
  if (entry.windowLeft)
    json.set("window_left", toJson(*entry.windowLeft));
  if (entry.chunk)
    json.set("chunk", entry.chunk);
  json.set("query_heads", entry.queryHeads.value);
  json.set("kv_heads", entry.kvHeads.value);
  json.set("head_dim", entry.headDim.value);
  json.set("value_head_dim", entry.valueHeadDim.value);
  if (entry.kind == LayerKind::MLA) {
    json.set("latent_dim", entry.latentDim);
    json.set("nope_dim", entry.nopeDim);
    json.set("rope_dim", entry.ropeDim);
  }
  json.set("sinks", entry.sinks);
  json.set("alibi", entry.alibi.has_value());
  return json;
}

JsonValue toJson(const ModelLayer &layer, const LayerScales *scales) {
  JsonValue json = JsonValue::object();
  json.set("index", layer.index);
  json.set("name", layer.name);
  if (layer.attention)
    json.set("kind", layerKindName(layer.attention->kind));
  if (!layer.cache || !scales) {
    json.set("cache", nullptr);
    return json;
  }
  JsonValue cache = JsonValue::object();
  cache.set("type", cacheTypeName(scales->cacheType));
  cache.set("from", layer.cache->from);
  if (!layer.sharesCacheWith.empty())
    cache.set("shared_with", layer.sharesCacheWith);
  json.set("cache", std::move(cache));
  JsonValue roles = JsonValue::object();
  if (usesCheckpointScales(scales->cacheType))
    for (unsigned role = 0; role < numScaleRoles; ++role)
      roles.set(scaleRoleName(ScaleRole(role)), toJson(scales->scales[role]));
  json.set("scales", std::move(roles));
  if (layer.attention)
    json.set("attention", toJson(*layer.attention));
  return json;
}

} // namespace

std::string renderText(const std::string &path, const OpenedModel &opened) {
  const ModelScales &model = opened.model;
  std::ostringstream os;
  size_t tensors = 0;
  for (const SafetensorsFile &file : opened.checkpoint.shards())
    tensors += file.tensors().size();
  os << "checkpoint    " << path << " ("
     << count(opened.checkpoint.shards().size(), "safetensors file") << ", "
     << count(tensors, "tensor") << ")\n"
     << "model type    "
     << (model.modelType.empty() ? "not known" : model.modelType) << "\n"
     << "quantization  " << quantFamilyName(model.quant.family);
  if (!model.quant.kvAlgorithm.empty())
    os << "; " << model.quant.kvFile << ": " << model.quant.kvKey
       << " declares " << model.quant.kvAlgorithm;
  os << "\n";
  size_t quantized = 0, caches = 0;
  for (const LayerScales &layer : model.scales.layers) {
    ++caches;
    quantized += usesCheckpointScales(layer.cacheType);
  }
  os << "caches        " << caches << " in "
     << count(model.layers.size(), "layer") << ", " << quantized
     << " with scales of the checkpoint\n\n";
  if (!model.diagnostics.empty()) {
    printDiagnostics(os, model.diagnostics);
    os << "\n";
  }
  for (const ModelLayer &layer : model.layers)
    printLayer(os, layer, model.scalesOf(layer));
  if (!model.scales.ignored.empty())
    os << "\nnot used\n";
  for (const IgnoredScale &ignored : model.scales.ignored)
    os << "  '" << ignored.key << "' in " << ignored.file << ": "
       << ignored.reason << "\n";
  return os.str();
}

std::string renderJson(const std::string &path, const OpenedModel &opened) {
  const ModelScales &model = opened.model;
  JsonValue json = JsonValue::object();
  json.set("checkpoint", path);
  json.set("model_type",
           model.modelType.empty() ? JsonValue() : JsonValue(model.modelType));
  JsonValue quant = JsonValue::object();
  quant.set("family", quantFamilyName(model.quant.family));
  if (!model.quant.kvAlgorithm.empty()) {
    quant.set("kv_cache", model.quant.kvAlgorithm);
    quant.set("key", model.quant.kvKey);
    quant.set("file", model.quant.kvFile);
  }
  json.set("quantization", std::move(quant));
  JsonValue layers = JsonValue::array();
  for (const ModelLayer &layer : model.layers)
    layers.push(toJson(layer, model.scalesOf(layer)));
  json.set("layers", std::move(layers));
  JsonValue ignored = JsonValue::array();
  for (const IgnoredScale &scale : model.scales.ignored) {
    JsonValue entry = JsonValue::object();
    entry.set("key", scale.key);
    entry.set("file", scale.file);
    entry.set("reason", scale.reason);
    ignored.push(std::move(entry));
  }
  json.set("ignored", std::move(ignored));
  JsonValue diagnostics = JsonValue::array();
  for (const Diagnostic &diagnostic : model.diagnostics)
    diagnostics.push(diagnosticToJson(diagnostic));
  json.set("diagnostics", std::move(diagnostics));
  return json.print() + "\n";
}

int show(const ShowOptions &options) {
  // Never freed: a whole model's headers, and the process ends here.
  static Expected<OpenedModel> opened =
      openModel(options.path, options.resolve, /*tensorsOptional=*/true);
  if (!opened)
    return fail(opened.message());
  std::string text =
      options.format == "json"   ? renderJson(options.path, *opened)
      : options.format == "html" ? renderHtml(options.path, *opened)
                                 : renderText(options.path, *opened);
  if (options.output.empty()) {
    std::cout << text << std::flush;
    if (!std::cout)
      return fail("cannot write to the standard output");
  } else if (Error error = writeFileAtomically(options.output, text)) {
    return fail(error.message());
  }
  return hasErrors(opened->model.diagnostics) ? ExitError : ExitClean;
}

} // namespace kvcache::scales
