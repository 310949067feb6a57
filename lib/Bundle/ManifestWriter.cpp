//===- ManifestWriter.cpp - Manifest to JSON text -------------------------===//
//
// Members come in one fixed order and numbers in one spelling, so that equal
// manifests are equal bytes.
//
//===----------------------------------------------------------------------===//

#include "kvcache/Bundle/Manifest.h"
#include "kvcache/Support/Json.h"

#include <cmath>
#include <cstdio>
#include <cstdlib>

namespace kvcache {

namespace {

JsonValue name(std::string_view text) { return JsonValue(std::string(text)); }

std::string hexBits(uint32_t bits) {
  char text[16];
  std::snprintf(text, sizeof(text), "0x%08X", bits);
  return text;
}

/// Applies `toJson` to each item.
template <typename T>
JsonValue list(const std::vector<T> &items, JsonValue (*toJson)(const T &)) {
  JsonValue array = JsonValue::array();
  for (const T &item : items)
    array.push(toJson(item));
  return array;
}

template <typename Range> JsonValue integers(const Range &values) {
  JsonValue array = JsonValue::array();
  for (int64_t value : values)
    array.push(value);
  return array;
}

JsonValue optionsJson(const OptionMap &map) {
  JsonValue object = JsonValue::object();
  for (const auto &[key, value] : map)
    if (const int64_t *integer = std::get_if<int64_t>(&value))
      object.set(key, *integer);
    else
      object.set(key, std::get<std::string>(value));
  return object;
}

JsonValue capacitiesJson(const Capacities &sizes) {
  JsonValue object = JsonValue::object();
  object.set("max_tokens", sizes.maxTokens);
  object.set("max_sequences", sizes.maxSequences);
  object.set("max_pages_per_sequence", sizes.maxPagesPerSequence);
  object.set("num_pages", sizes.numPages);
  return object;
}

/// Adds the shortest decimal of `scalar`, for people, and its bits.
void setScalar(JsonValue &object, ScalarF32 scalar) {
  float value = scalar.value();
  double shown = std::strtod(formatFloat(value).c_str(), nullptr);
  if (static_cast<float>(shown) != value)
    shown = value;
  object.set("value", shown);
  object.set("bits", hexBits(scalar.bits));
}

JsonValue scaleJson(const ManifestScale &scale) {
  JsonValue object = JsonValue::object();
  setScalar(object, scale.value);
  if (!scale.perHead.empty()) {
    JsonValue heads = JsonValue::array();
    for (ScalarF32 head : scale.perHead)
      heads.push(hexBits(head.bits));
    object.set("head_bits", std::move(heads));
  }
  object.set("provenance", name(provenanceName(scale.provenance)));
  if (!scale.key.empty())
    object.set("key", scale.key);
  return object;
}

JsonValue layerBuffersJson(const LayerBuffers &buffers) {
  JsonValue object = JsonValue::object();
  auto optional = [&](const char *key, const std::string &value) {
    if (!value.empty())
      object.set(key, value);
  };
  object.set("query", buffers.query);
  optional("query_source", buffers.querySource);
  optional("key", buffers.key);
  optional("value", buffers.value);
  optional("rope_table", buffers.ropeTable);
  optional("positions", buffers.positions);
  object.set("output", buffers.output);
  optional("lse", buffers.lse);
  optional("sinks", buffers.sinks);
  optional("alibi_slopes", buffers.alibiSlopes);
  object.set("k_cache", buffers.kCache);
  object.set("v_cache", buffers.vCache);
  optional("k_scales", buffers.kScales);
  optional("v_scales", buffers.vScales);
  object.set("page_table", buffers.pageTable);
  object.set("lengths", buffers.lengths);
  object.set("query_start", buffers.queryStart);
  optional("slot_mapping", buffers.slotMapping);
  return object;
}

JsonValue layerJson(const Layer &layer) {
  JsonValue object = JsonValue::object();
  object.set("id", layer.id);
  object.set("name", layer.name);
  object.set("cache", layer.cache);
  object.set("element_type", name(elementTypeName(layer.elementType)));
  object.set("query_heads", layer.queryHeads);
  object.set("kv_heads", layer.kvHeads);
  object.set("head_dim", layer.headDim);
  if (layer.vHeadDim)
    object.set("v_head_dim", layer.vHeadDim);
  if (layer.isLatent())
    object.set("rope_dim", layer.ropeDim);
  object.set("page_size", layer.pageSize);
  object.set("layout", layer.layout);
  if (layer.hasTokenScales())
    object.set("token_scales", name(tokenScalesName(layer.tokenScales)));
  JsonValue softmax = JsonValue::object();
  setScalar(softmax, layer.softmaxScale);
  softmax.set("from", layer.softmaxScaleFrom);
  object.set("softmax_scale", std::move(softmax));
  if (layer.softCap) {
    JsonValue cap = JsonValue::object();
    setScalar(cap, *layer.softCap);
    object.set("soft_cap", std::move(cap));
  }
  if (layer.window)
    object.set("window", *layer.window);
  if (layer.ropeInterleaved)
    object.set("rope_interleaved", true);
  JsonValue scales = JsonValue::object();
  scales.set("k", scaleJson(layer.kScale));
  scales.set("v", scaleJson(layer.vScale));
  if (layer.qScale)
    scales.set("q", scaleJson(*layer.qScale));
  if (layer.oScale)
    scales.set("o", scaleJson(*layer.oScale));
  object.set("scales", std::move(scales));
  object.set("compatibility", layer.compatibility);
  object.set("buffers", layerBuffersJson(layer.buffers));
  return object;
}

JsonValue bufferJson(const Buffer &buffer) {
  JsonValue object = JsonValue::object();
  object.set("name", buffer.name);
  object.set("role", name(bufferRoleName(buffer.role)));
  object.set("element_type", name(elementTypeName(buffer.elementType)));
  object.set("shape", integers(buffer.shape));
  object.set("strides", integers(buffer.strides));
  object.set("dynamic_dims", integers(buffer.dynamicDims));
  object.set("access", name(bufferAccessName(buffer.access)));
  object.set("owner", name(bufferOwnerName(buffer.owner)));
  object.set("stable_address", buffer.stableAddress);
  object.set("bytes", buffer.bytes);
  if (buffer.offsetIn) {
    JsonValue view = JsonValue::object();
    view.set("buffer", buffer.offsetIn->buffer);
    view.set("bytes", buffer.offsetIn->offset);
    object.set("offset_in", std::move(view));
  }
  return object;
}

void setFile(JsonValue &object, const FileDigest &digest) {
  object.set("file", digest.file);
  object.set("sha256", digest.sha256);
}

JsonValue fileJson(const FileDigest &digest) {
  JsonValue object = JsonValue::object();
  setFile(object, digest);
  return object;
}

JsonValue hostValueJson(const HostValue &value) {
  JsonValue object = JsonValue::object();
  object.set("name", value.name);
  object.set("element_type", name(elementTypeName(value.elementType)));
  object.set("shape", integers(value.shape));
  return object;
}

JsonValue segmentJson(const Segment &segment) {
  JsonValue object = JsonValue::object();
  object.set("name", segment.name);
  object.set("function", segment.function);
  JsonValue arguments = JsonValue::array();
  for (const std::string &argument : segment.arguments)
    arguments.push(argument);
  object.set("arguments", std::move(arguments));
  return object;
}

JsonValue programJson(const Program &program) {
  JsonValue object = JsonValue::object();
  object.set("name", program.name);
  if (program.bucket) {
    JsonValue bucket = JsonValue::object();
    bucket.set("of", program.bucket->of);
    bucket.set("sequences", program.bucket->sequences);
    bucket.set("tokens", program.bucket->tokens);
    object.set("bucket", std::move(bucket));
  }
  JsonValue host;
  if (program.host) {
    host = JsonValue::object();
    setFile(host, program.host->file);
    host.set("function", program.host->function);
    host.set("arguments", list(program.host->arguments, hostValueJson));
    host.set("results", list(program.host->results, hostValueJson));
  }
  object.set("host", std::move(host));
  object.set("segments", list(program.segments, segmentJson));
  return object;
}

JsonValue kernelJson(const Kernel &kernel) {
  JsonValue object = JsonValue::object();
  object.set("name", kernel.name);
  object.set("structure", optionsJson(kernel.structure));
  if (kernel.report) {
    JsonValue report = JsonValue::object();
    report.set("ptxas", kernel.report->ptxas);
    report.set("registers", kernel.report->registers);
    report.set("stack_bytes", kernel.report->stackBytes);
    report.set("spill_store_bytes", kernel.report->spillStoreBytes);
    report.set("spill_load_bytes", kernel.report->spillLoadBytes);
    report.set("static_shared_bytes", kernel.report->staticSharedBytes);
    object.set("report", std::move(report));
  }
  return object;
}

JsonValue argumentJson(const Argument &argument) {
  JsonValue object = JsonValue::object();
  switch (argument.kind) {
  case Argument::Kind::Buffer:
    object.set("kind", "buffer");
    object.set("name", argument.buffer);
    break;
  case Argument::Kind::F32:
    object.set("kind", "f32");
    object.set("bits", hexBits(argument.f32.bits));
    if (!argument.from.empty())
      object.set("from", argument.from);
    break;
  case Argument::Kind::I32:
    object.set("kind", "i32");
    object.set("value", argument.integer);
    if (!argument.from.empty())
      object.set("from", argument.from);
    break;
  case Argument::Kind::I64:
    object.set("kind", "i64");
    object.set("value", argument.integer);
    if (!argument.from.empty())
      object.set("from", argument.from);
    break;
  case Argument::Kind::Null:
    object.set("kind", "null");
    break;
  }
  return object;
}

JsonValue launchJson(const Launch &launch) {
  JsonValue object = JsonValue::object();
  object.set("program", launch.program);
  object.set("segment", launch.segment);
  object.set("kernel", launch.kernel);
  object.set("op", name(launchOpName(launch.op)));
  object.set("layer", launch.layer);
  object.set("grid", integers(launch.grid));
  object.set("block", integers(launch.block));
  object.set("shared_bytes", launch.sharedBytes);
  if (launch.math)
    object.set("math", name(mathName(*launch.math)));
  object.set("arguments", list(launch.arguments, argumentJson));
  return object;
}

JsonValue targetJson(const Target &target) {
  JsonValue object = JsonValue::object();
  object.set("chip", target.chip);
  object.set("ptx", fileJson(target.ptx));
  if (target.cubin)
    object.set("cubin", fileJson(*target.cubin));
  object.set("kernels", list(target.kernels, kernelJson));
  object.set("launches", list(target.launches, launchJson));
  return object;
}

} // namespace

std::string writeManifest(const Manifest &manifest) {
  JsonValue root = JsonValue::object();
  root.set("format", name(manifestFormat));
  root.set("version", manifestVersion);
  root.set("producer", manifest.producer);
  root.set("options", optionsJson(manifest.options));
  root.set("capacities", capacitiesJson(manifest.capacities));
  root.set("layers", list(manifest.layers, layerJson));
  root.set("buffers", list(manifest.buffers, bufferJson));
  root.set("programs", list(manifest.programs, programJson));
  root.set("targets", list(manifest.targets, targetJson));
  std::string text = root.print(2);
  if (text.empty() || text.back() != '\n')
    text += '\n';
  return text;
}

} // namespace kvcache
