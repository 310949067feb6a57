//===- TestBundle.cpp - A small bundle for tests --------------------------===//

#include "TestBundle.h"

#include <cmath>

namespace kvcache::test {

namespace {

constexpr int64_t tokens = 8, sequences = 2, pagesPerSequence = 2, pages = 7,
                  pageSize = 16, queryHeads = 4, kvHeads = 2, headDim = 64;

Buffer makeBuffer(const std::string &name, BufferRole role, ElementType type,
                  std::vector<int64_t> shape, BufferAccess access) {
  Buffer buffer;
  buffer.name = name;
  buffer.role = role;
  buffer.elementType = type;
  buffer.strides = contiguousStrides(shape);
  buffer.shape = std::move(shape);
  buffer.access = access;
  buffer.bytes = *spanBytes(buffer);
  return buffer;
}

Buffer makeDynamic(const std::string &name, BufferRole role, ElementType type,
                   std::vector<int64_t> shape,
                   BufferAccess access = BufferAccess::Read) {
  Buffer buffer = makeBuffer(name, role, type, std::move(shape), access);
  buffer.dynamicDims = {0};
  if (role == BufferRole::PageTable)
    buffer.dynamicDims = {0, 1};
  return buffer;
}

void addCaches(Manifest &manifest, const std::string &id, bool packed) {
  std::vector<int64_t> shape = {pages, pageSize, kvHeads, headDim};
  ElementType type = ElementType::F8E4M3FN;
  if (packed) {
    Buffer both = makeBuffer(id + ".kv_cache", BufferRole::Cache, type,
                             {pages, 2, pageSize, kvHeads, headDim},
                             BufferAccess::ReadWrite);
    both.stableAddress = true;
    manifest.buffers.push_back(both);
  }
  for (const char *name : {".k_cache", ".v_cache"}) {
    Buffer cache = makeBuffer(id + name, BufferRole::Cache, type, shape,
                              BufferAccess::ReadWrite);
    cache.stableAddress = true;
    if (packed) {
      uint64_t pageBytes = uint64_t(pageSize * kvHeads * headDim);
      cache.strides[0] = int64_t(2 * pageBytes);
      cache.offsetIn = {id + ".kv_cache", name[1] == 'v' ? pageBytes : 0};
      cache.bytes = *spanBytes(cache);
    }
    manifest.buffers.push_back(cache);
  }
}

Layer makeLayer(int index, bool packed) {
  std::string id = "layer" + std::to_string(index);
  Layer layer;
  layer.id = layer.cache = id;
  layer.name = "model.layers." + std::to_string(index) + ".self_attn.attn";
  layer.queryHeads = queryHeads;
  layer.kvHeads = kvHeads;
  layer.headDim = headDim;
  layer.pageSize = pageSize;
  layer.layout = packed ? "packed" : "nhd";
  layer.softmaxScale = ScalarF32::of(0.125f);
  layer.softmaxScaleFrom = "config.json: head_dim";
  layer.kScale = {ScalarF32::of(kScale(index)), Provenance::Checkpoint,
                  "model.layers." + std::to_string(index) +
                      ".self_attn.k_proj.k_scale"};
  layer.vScale = {ScalarF32::of(vScale(index)), Provenance::Override, "0.0345"};
  layer.compatibility = cacheCompatibility(layer);
  layer.buffers.query = id + ".query";
  layer.buffers.key = id + ".key";
  layer.buffers.value = id + ".value";
  layer.buffers.output = id + ".output";
  layer.buffers.kCache = id + ".k_cache";
  layer.buffers.vCache = id + ".v_cache";
  layer.buffers.pageTable = "page_table";
  layer.buffers.lengths = "lengths";
  layer.buffers.queryStart = "query_start";
  layer.buffers.slotMapping = "slot_mapping";
  return layer;
}

Launch makeWrite(const Layer &layer) {
  const LayerBuffers &names = layer.buffers;
  Launch launch;
  launch.program = "main";
  launch.segment = launch.layer = layer.id;
  launch.kernel = "simple_write";
  launch.op = LaunchOp::Write;
  launch.grid = {tokens, 1, 1};
  launch.arguments = {Argument::ofBuffer(names.key),
                      Argument::ofBuffer(names.value),
                      Argument::ofBuffer(names.kCache),
                      Argument::ofBuffer(names.vCache),
                      Argument::ofBuffer(names.slotMapping),
                      Argument::ofF32(layer.kScale.value.value(), "k_scale"),
                      Argument::ofF32(layer.vScale.value.value(), "v_scale"),
                      Argument::ofI32(int32_t(tokens), "max_tokens"),
                      Argument::ofI64(pages * pageSize)};
  return launch;
}

Launch makeAttention(const Layer &layer) {
  const LayerBuffers &names = layer.buffers;
  Launch launch;
  launch.program = "main";
  launch.segment = launch.layer = layer.id;
  launch.kernel = "simple_attention";
  launch.op = LaunchOp::PagedAttention;
  launch.grid = {queryHeads, tokens, 1};
  double score = double(layer.softmaxScale.value()) *
                 double(layer.kScale.value.value()) * 1.4426950408889634;
  launch.arguments = {
      Argument::ofBuffer(names.query),
      Argument::ofBuffer(names.kCache),
      Argument::ofBuffer(names.vCache),
      Argument::ofBuffer(names.pageTable),
      Argument::ofBuffer(names.lengths),
      Argument::ofBuffer(names.queryStart),
      Argument::ofBuffer(names.output),
      Argument::null(),
      Argument::ofBuffer("workspace.partials"),
      Argument::ofBuffer("workspace.counters"),
      Argument::ofF32(float(score), "softmax_scale * k_scale * log2(e)"),
      Argument::ofF32(layer.vScale.value.value(), "v_scale"),
      Argument::ofI32(int32_t(tokens)),
      Argument::ofI32(int32_t(sequences)),
      Argument::ofI32(int32_t(pagesPerSequence))};
  return launch;
}

} // namespace

void addBucket(Manifest &manifest) {
  Program bucket = manifest.programs[0];
  bucket.name = "main.b1";
  bucket.bucket = Bucket{"main", 1, 4};
  manifest.programs.push_back(bucket);
  std::vector<Launch> &launches = manifest.targets[0].launches;
  for (size_t i = 0, n = launches.size(); i < n; ++i) {
    Launch launch = launches[i];
    launch.program = bucket.name;
    launch.grid[launch.op == LaunchOp::Write ? 0 : 1] = 4;
    for (Argument &argument : launch.arguments)
      if (argument.from == "max_tokens")
        argument.integer = 4;
    launches.push_back(launch);
  }
}

float kScale(int layer) { return float(0.0123 * (1 + layer)); }
float vScale(int layer) { return float(0.0345 * (1 + layer)); }

Bundle makeBundle(const std::string &ptx, bool packed) {
  Bundle bundle;
  Manifest &manifest = bundle.manifest;
  manifest.producer = "kvcache tests";
  manifest.options = {{"page-size", int64_t(16)},
                      {"kv-layout", std::string(packed ? "packed" : "nhd")}};
  manifest.capacities = {tokens, sequences, pagesPerSequence, pages};
  manifest.buffers = {makeDynamic("page_table", BufferRole::PageTable,
                                  ElementType::I32,
                                  {sequences, pagesPerSequence}),
                      makeDynamic("lengths", BufferRole::Lengths,
                                  ElementType::I32, {sequences}),
                      makeDynamic("query_start", BufferRole::QueryStart,
                                  ElementType::I32, {sequences + 1}),
                      makeDynamic("slot_mapping", BufferRole::Slots,
                                  ElementType::I64, {tokens})};
  for (const char *name : {"workspace.partials", "workspace.counters"}) {
    Buffer workspace =
        makeBuffer(name, BufferRole::Workspace,
                   name[10] == 'p' ? ElementType::F32 : ElementType::I32, {64},
                   BufferAccess::ReadWrite);
    workspace.owner = BufferOwner::Runtime;
    manifest.buffers.push_back(workspace);
  }
  Target target;
  target.chip = "sm_90";
  target.ptx.file = "code/sm_90.ptx";
  target.kernels = {{"simple_write", {{"head_dim", headDim}}, std::nullopt},
                    {"simple_attention",
                     {{"head_dim", headDim}, {"query_heads", queryHeads}},
                     KernelReport{"13.0.88", 40, 0, 0, 0, 0}}};
  Program program;
  program.name = "main";
  for (int i = 0; i < 2; ++i) {
    Layer layer = makeLayer(i, packed);
    for (const std::string *name : {&layer.buffers.query, &layer.buffers.output,
                                    &layer.buffers.key, &layer.buffers.value}) {
      bool rows = name == &layer.buffers.key || name == &layer.buffers.value;
      manifest.buffers.push_back(
          makeDynamic(*name, BufferRole::Activation, ElementType::BF16,
                      {tokens, rows ? kvHeads : queryHeads, headDim},
                      name == &layer.buffers.output ? BufferAccess::Write
                                                    : BufferAccess::Read));
    }
    addCaches(manifest, layer.id, packed);
    target.launches.push_back(makeWrite(layer));
    target.launches.push_back(makeAttention(layer));
    Segment segment;
    segment.name = layer.id;
    segment.function = "kvcache.main." + layer.id;
    segment.arguments = {layer.buffers.query, layer.buffers.key,
                         layer.buffers.value, layer.buffers.output};
    program.segments.push_back(segment);
    manifest.layers.push_back(layer);
  }
  manifest.programs = {program};
  manifest.targets = {target};
  bundle.files["code/sm_90.ptx"] = ptx;
  if (Error error = updateDigests(bundle))
    return {};
  return bundle;
}

} // namespace kvcache::test
