//===- ManifestValidator.cpp - What must hold across a manifest -----------===//

#include "kvcache/Bundle/Manifest.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

namespace kvcache {

namespace {

/// Above this, sums of sizes could leave 63 bits; no machine has as much.
constexpr uint64_t maxBufferBytes = uint64_t(1) << 46;
/// More blocks in one launch than any capacities ask for.
constexpr int64_t maxBlocksPerLaunch = int64_t(1) << 26;

std::string index(const std::string &path, size_t i) {
  return path + "[" + std::to_string(i) + "]";
}

std::string quoted(const std::string &text) { return "\"" + text + "\""; }

std::string shapeText(const std::vector<int64_t> &shape) {
  std::string text = "[";
  for (size_t i = 0; i < shape.size(); ++i)
    text += (i ? ", " : "") + std::to_string(shape[i]);
  return text + "]";
}

/// Dynamic shared memory that one block may have, in bytes: CUDA C++
/// Programming Guide, "Technical Specifications per Compute Capability".
int64_t maxSharedBytes(const std::string &chip) {
  std::string number;
  for (char c : chip)
    if (c >= '0' && c <= '9')
      number += c;
  int64_t capability = std::stoll(number);
  switch (capability) {
  case 75:
    return 64 << 10;
  case 80:
  case 87:
    return 163 << 10;
  case 86:
  case 89:
  case 120:
  case 121:
    return 99 << 10;
  default:
    return 227 << 10;
  }
}

bool isChip(const std::string &chip) {
  if (chip.compare(0, 3, "sm_") != 0 || chip.size() < 5 || chip.size() > 7)
    return false;
  for (size_t i = 3; i < chip.size(); ++i) {
    bool digit = chip[i] >= '0' && chip[i] <= '9';
    bool suffix =
        i > 4 && i + 1 == chip.size() && (chip[i] == 'a' || chip[i] == 'f');
    if (!digit && !suffix)
      return false;
  }
  return true;
}

bool isSha256(const std::string &digest) {
  if (digest.size() != 64)
    return false;
  for (char c : digest)
    if (!((c >= '0' && c <= '9') || (c >= 'a' && c <= 'f')))
      return false;
  return true;
}

/// A relative path of plain components: no "", ".", "..", backslash or control
/// character.
bool isInside(const std::string &file) {
  if (file.empty() || file.size() > 1024 || file.front() == '/')
    return false;
  size_t start = 0;
  while (start <= file.size()) {
    size_t end = file.find('/', start);
    if (end == std::string::npos)
      end = file.size();
    std::string part = file.substr(start, end - start);
    if (part.empty() || part == "." || part == "..")
      return false;
    start = end + 1;
  }
  for (char c : file)
    if (c == '\\' || static_cast<unsigned char>(c) < 0x20 || c == 0x7f)
      return false;
  return true;
}

class Validator {
public:
  explicit Validator(const Manifest &manifest) : manifest(manifest) {}

  Error run() {
    capacities();
    each("buffers", manifest.buffers, &Validator::buffer);
    each("layers", manifest.layers, &Validator::layer);
    each("programs", manifest.programs, &Validator::program);
    each("targets", manifest.targets, &Validator::target);
    needOne("buffers", manifest.buffers.size());
    needOne("programs", manifest.programs.size());
    needOne("targets", manifest.targets.size());
    return failure;
  }

private:
  void fail(const std::string &path, const std::string &message) {
    if (!failure)
      failure = makeError(path + ": " + message);
  }

  void needOne(const std::string &path, size_t size) {
    if (size == 0)
      fail(path, "expected at least one, found none");
  }

  template <typename T>
  void each(const std::string &path, const std::vector<T> &items,
            void (Validator::*check)(const std::string &, const T &)) {
    for (size_t i = 0; i < items.size() && !failure; ++i)
      (this->*check)(index(path, i), items[i]);
  }

  /// A name that is not empty and was not seen before in `seen`.
  void uniqueName(const std::string &path, const std::string &name,
                  std::set<std::string> &seen) {
    if (name.empty())
      return fail(path, "expected a name, found an empty string");
    for (char c : name)
      if (static_cast<unsigned char>(c) < 0x20)
        return fail(path, "expected a name without control characters");
    if (!seen.insert(name).second)
      fail(path, quoted(name) + " is used twice");
  }

  void inRange(const std::string &path, int64_t value, int64_t low,
               int64_t high) {
    if (value < low || value > high)
      fail(path, "expected an integer from " + std::to_string(low) + " to " +
                     std::to_string(high) + ", found " + std::to_string(value));
  }

  void capacities() {
    const Capacities &sizes = manifest.capacities;
    constexpr int64_t most = INT32_MAX;
    inRange("capacities.max_tokens", sizes.maxTokens, 1, most);
    inRange("capacities.max_sequences", sizes.maxSequences, 1, most - 1);
    inRange("capacities.max_pages_per_sequence", sizes.maxPagesPerSequence, 1,
            most);
    inRange("capacities.num_pages", sizes.numPages, 1, most);
  }

  void buffer(const std::string &path, const Buffer &buffer) {
    uniqueName(path + ".name", buffer.name, bufferNames);
    if (failure)
      return;
    size_t rank = buffer.shape.size();
    if (rank == 0)
      return fail(path + ".shape", "expected at least one dimension");
    if (buffer.strides.size() != rank)
      return fail(path + ".strides",
                  "expected " + std::to_string(rank) +
                      " strides, one per dimension of shape, found " +
                      std::to_string(buffer.strides.size()));
    for (size_t i = 0; i < rank; ++i)
      if (buffer.shape[i] < 1 || buffer.strides[i] < 1)
        return fail(
            index(path + (buffer.shape[i] < 1 ? ".shape" : ".strides"), i),
            "expected a positive number, found " +
                std::to_string(buffer.shape[i] < 1 ? buffer.shape[i]
                                                   : buffer.strides[i]));
    for (size_t i = 0; i < buffer.dynamicDims.size(); ++i) {
      int64_t dim = buffer.dynamicDims[i];
      int64_t low = i ? buffer.dynamicDims[i - 1] + 1 : 0;
      if (dim < low || dim >= int64_t(rank))
        return fail(index(path + ".dynamic_dims", i),
                    "expected ascending dimensions below " +
                        std::to_string(rank) + ", found " +
                        std::to_string(dim));
    }
    std::optional<uint64_t> span = spanBytes(buffer);
    if (!span || *span > maxBufferBytes)
      return fail(path + ".shape",
                  shapeText(buffer.shape) + " with strides " +
                      shapeText(buffer.strides) + " of " +
                      std::string(elementTypeName(buffer.elementType)) +
                      " is more than " + std::to_string(maxBufferBytes) +
                      " bytes");
    if (buffer.bytes > maxBufferBytes)
      return fail(path + ".bytes",
                  "expected at most " + std::to_string(maxBufferBytes) +
                      ", found " + std::to_string(buffer.bytes));
    if (buffer.offsetIn)
      return view(path, buffer, *span);
    if (buffer.bytes < *span)
      return fail(path + ".bytes", "expected at least " +
                                       std::to_string(*span) +
                                       " for shape and strides, found " +
                                       std::to_string(buffer.bytes));
    memory(path, buffer);
  }

  void view(const std::string &path, const Buffer &buffer, uint64_t span) {
    std::string where = path + ".offset_in";
    const Buffer *parent = manifest.findBuffer(buffer.offsetIn->buffer);
    if (!parent)
      return fail(where + ".buffer",
                  "no buffer is named " + quoted(buffer.offsetIn->buffer));
    if (parent->offsetIn)
      return fail(where + ".buffer",
                  "expected a buffer with memory of its own, found the view " +
                      quoted(parent->name));
    if (parent->role != buffer.role)
      return fail(where + ".buffer",
                  "expected a buffer of role " +
                      std::string(bufferRoleName(buffer.role)) + ", found " +
                      std::string(bufferRoleName(parent->role)));
    if (buffer.bytes != span)
      return fail(path + ".bytes", "expected " + std::to_string(span) +
                                       " by shape and strides, found " +
                                       std::to_string(buffer.bytes));
    uint64_t offset = buffer.offsetIn->offset;
    if (offset % elementTypeBytes(buffer.elementType) != 0)
      return fail(where + ".bytes",
                  "expected a multiple of the element size " +
                      std::to_string(elementTypeBytes(buffer.elementType)) +
                      ", found " + std::to_string(offset));
    if (offset > parent->bytes || span > parent->bytes - offset)
      fail(where + ".bytes", "expected the view's " + std::to_string(span) +
                                 " bytes to end within the " +
                                 std::to_string(parent->bytes) + " bytes of " +
                                 quoted(parent->name) + ", found offset " +
                                 std::to_string(offset));
    memory(path, buffer);
  }

  /// Element type and shape that a buffer's role asks for.
  void memory(const std::string &path, const Buffer &buffer) {
    const Capacities &sizes = manifest.capacities;
    switch (buffer.role) {
    case BufferRole::PageTable:
      return table(path, buffer, ElementType::I32,
                   {sizes.maxSequences, sizes.maxPagesPerSequence});
    case BufferRole::Lengths:
      return table(path, buffer, ElementType::I32, {sizes.maxSequences});
    case BufferRole::QueryStart:
      return table(path, buffer, ElementType::I32, {sizes.maxSequences + 1});
    case BufferRole::Slots:
      return table(path, buffer, ElementType::I64, {sizes.maxTokens});
    case BufferRole::PageCopies:
      return table(path, buffer, ElementType::I64, {buffer.shape[0], 2});
    case BufferRole::Activation:
      return expectExtent(path, buffer, sizes.maxTokens, "max_tokens");
    case BufferRole::Cache:
      return expectExtent(path, buffer, sizes.numPages, "num_pages");
    case BufferRole::Parameter:
      return;
    case BufferRole::Workspace:
      if (buffer.owner != BufferOwner::Runtime)
        fail(path + ".owner", "expected runtime for a workspace, found caller");
      return;
    }
  }

  void table(const std::string &path, const Buffer &buffer, ElementType type,
             const std::vector<int64_t> &shape) {
    if (buffer.elementType != type)
      return fail(path + ".element_type",
                  "expected " + std::string(elementTypeName(type)) +
                      " for role " + std::string(bufferRoleName(buffer.role)) +
                      ", found " +
                      std::string(elementTypeName(buffer.elementType)));
    if (buffer.shape != shape)
      return fail(path + ".shape", "expected " + shapeText(shape) +
                                       " by the capacities, found " +
                                       shapeText(buffer.shape));
    if (buffer.strides != contiguousStrides(shape))
      fail(path + ".strides",
           "expected " + shapeText(contiguousStrides(shape)) +
               " (contiguous), found " + shapeText(buffer.strides));
  }

  void expectExtent(const std::string &path, const Buffer &buffer,
                    int64_t extent, const std::string &name) {
    if (buffer.shape[0] != extent)
      fail(path + ".shape[0]", "expected " + std::to_string(extent) + " (" +
                                   name + "), found " +
                                   std::to_string(buffer.shape[0]));
  }

  void layer(const std::string &path, const Layer &layer) {
    uniqueName(path + ".id", layer.id, layerIds);
    if (layer.name.empty() || layer.cache.empty())
      fail(path + (layer.name.empty() ? ".name" : ".cache"),
           "expected a name, found an empty string");
    inRange(path + ".query_heads", layer.queryHeads, 1, 1 << 16);
    inRange(path + ".kv_heads", layer.kvHeads, 1, 1 << 16);
    inRange(path + ".head_dim", layer.headDim, 1, 1 << 16);
    inRange(path + ".v_head_dim", layer.vHeadDim, 0, 1 << 16);
    if (layer.vHeadDim && (layer.isLatent() || layer.vHeadDim == layer.headDim))
      fail(path + ".v_head_dim",
           "expected one only where it differs from head_dim, of a cache that "
           "is not latent, found " +
               std::to_string(layer.vHeadDim));
    inRange(path + ".page_size", layer.pageSize, 1, 1 << 20);
    if (failure)
      return;
    if (layer.queryHeads % layer.kvHeads != 0)
      fail(path + ".query_heads",
           "expected a multiple of kv_heads (" + std::to_string(layer.kvHeads) +
               "), found " + std::to_string(layer.queryHeads));
    if ((layer.pageSize & (layer.pageSize - 1)) != 0)
      fail(path + ".page_size",
           "expected a power of two, found " + std::to_string(layer.pageSize));
    switch (layer.elementType) {
    case ElementType::F8E4M3FN:
    case ElementType::F8E5M2:
    case ElementType::BF16:
    case ElementType::F16:
      break;
    case ElementType::U8:
      if (layer.isLatent())
        break;
      [[fallthrough]];
    default:
      fail(path + ".element_type",
           "expected f8E4M3FN, f8E5M2, bf16 or f16 for a cache, or u8 for a "
           "latent one, found " +
               std::string(elementTypeName(layer.elementType)));
    }
    if (layer.isLatent() && (layer.kvHeads != 1 || layer.valueDim() < 1))
      fail(path + ".rope_dim",
           "expected one KV head and a rotary part shorter than head_dim, "
           "found " +
               std::to_string(layer.kvHeads) + " KV heads and " +
               std::to_string(layer.ropeDim) + " of " +
               std::to_string(layer.headDim));
    if (layer.elementType == ElementType::U8 && layer.valueDim() % 128 != 0)
      fail(path + ".rope_dim",
           "expected a latent part that is a multiple of 128 for fp8_ds_mla "
           "rows, found " +
               std::to_string(layer.valueDim()));
    positive(path + ".softmax_scale", layer.softmaxScale);
    if (layer.softCap)
      positive(path + ".soft_cap", *layer.softCap);
    scale(path + ".scales.k", layer.kScale, layer.kvHeads);
    scale(path + ".scales.v", layer.vScale, layer.kvHeads);
    if (layer.qScale)
      positive(path + ".scales.q", layer.qScale->value);
    if (layer.oScale)
      positive(path + ".scales.o", layer.oScale->value);
    std::string digest = cacheCompatibility(layer);
    if (layer.compatibility != digest)
      fail(path + ".compatibility",
           "expected " + digest +
               " for this layer's scales, element type, layout, page size "
               "and dimensions, found " +
               quoted(layer.compatibility));
    for (const Layer &other : manifest.layers) {
      if (&other == &layer)
        break;
      if (other.cache == layer.cache &&
          other.compatibility != layer.compatibility)
        fail(path + ".cache", quoted(layer.cache) + " is the cache of layer " +
                                  quoted(other.id) +
                                  " too, with other scales or another layout");
    }
    layerBuffers(path + ".buffers", layer);
  }

  void positive(const std::string &path, ScalarF32 scalar) {
    float value = scalar.value();
    if (!std::isfinite(value) || value <= 0)
      fail(path,
           "expected a positive finite value, found " + std::to_string(value));
  }

  void scale(const std::string &path, const ManifestScale &scale,
             int64_t kvHeads) {
    positive(path, scale.value);
    if (scale.perHead.empty())
      return;
    if (int64_t(scale.perHead.size()) != kvHeads)
      fail(path + ".head_bits",
           "expected one for each of the " + std::to_string(kvHeads) +
               " KV heads, found " + std::to_string(scale.perHead.size()));
    float largest = 0;
    for (ScalarF32 head : scale.perHead) {
      positive(path + ".head_bits", head);
      largest = std::max(largest, head.value());
    }
    if (largest != scale.value.value())
      fail(path + ".value", "expected the largest of all heads, " +
                                std::to_string(largest) + ", found " +
                                std::to_string(scale.value.value()));
  }

  void layerBuffers(const std::string &path, const Layer &layer) {
    const LayerBuffers &names = layer.buffers;
    const Capacities &sizes = manifest.capacities;
    std::vector<int64_t> queries = {sizes.maxTokens, layer.queryHeads,
                                    layer.headDim};
    std::vector<int64_t> outputs = queries;
    outputs.back() = layer.valueDim();
    std::vector<int64_t> keys = {sizes.maxTokens, layer.kvHeads, layer.headDim};
    std::vector<int64_t> values = keys;
    values.back() = layer.valueDim();
    if (layer.isLatent()) {
      keys = {sizes.maxTokens, layer.valueDim()};
      values = {sizes.maxTokens, layer.ropeDim};
      if (names.kCache != names.vCache)
        fail(path + ".v_cache", "expected " + quoted(names.kCache) +
                                    ", as k_cache of a latent layer, found " +
                                    quoted(names.vCache));
    }
    std::vector<int64_t> pages = {sizes.numPages, layer.pageSize, layer.kvHeads,
                                  layer.rowWidth()};
    std::vector<int64_t> vPages = pages;
    vPages.back() = layer.vRowWidth();
    // Queries that the segment quantizes itself may be in its workspace.
    const Buffer *query = manifest.findBuffer(names.query);
    bool isInner = !names.querySource.empty() && query &&
                   query->role == BufferRole::Workspace;
    layerBuffer(path + ".query", names.query,
                isInner ? BufferRole::Workspace : BufferRole::Activation,
                queries);
    if (!names.querySource.empty())
      layerBuffer(path + ".query_source", names.querySource,
                  BufferRole::Activation, queries);
    layerBuffer(path + ".output", names.output, BufferRole::Activation,
                outputs);
    if (failure)
      return;
    scaleOfCodes(path + ".query", *query, layer.qScale.has_value(), "q");
    scaleOfCodes(path + ".output", *manifest.findBuffer(names.output),
                 layer.oScale.has_value(), "o");
    for (const std::string *values : {&names.sinks, &names.alibiSlopes})
      if (!values->empty())
        layerBuffer(path +
                        (values == &names.sinks ? ".sinks" : ".alibi_slopes"),
                    *values, BufferRole::Parameter, {layer.queryHeads});
    if (names.key.empty() != names.value.empty())
      fail(path + (names.key.empty() ? ".key" : ".value"),
           "expected key and value together, found one of them");
    if (!names.key.empty()) {
      layerBuffer(path + ".key", names.key, BufferRole::Activation, keys);
      layerBuffer(path + ".value", names.value, BufferRole::Activation, values);
      layerBuffer(path + ".slot_mapping", names.slotMapping, BufferRole::Slots,
                  {sizes.maxTokens});
    }
    if (names.ropeTable.empty() != names.positions.empty() ||
        (names.ropeTable.empty() ? layer.ropeInterleaved : names.key.empty()))
      fail(path + ".rope_table", "expected a rope table, positions and keys "
                                 "that are rotated together");
    if (!names.ropeTable.empty())
      rope(path, layer);
    if (!names.lse.empty())
      layerBuffer(path + ".lse", names.lse, BufferRole::Activation,
                  {sizes.maxTokens, layer.queryHeads});
    for (const std::string *cache : {&names.kCache, &names.vCache}) {
      std::string where =
          path + (cache == &names.kCache ? ".k_cache" : ".v_cache");
      layerBuffer(where, *cache, BufferRole::Cache,
                  cache == &names.kCache ? pages : vPages);
      if (failure)
        return;
      ElementType type = manifest.findBuffer(*cache)->elementType;
      ElementType expected = layer.pageElementType();
      if (type != expected)
        fail(where, quoted(*cache) + " is of " +
                        std::string(elementTypeName(type)) +
                        ", expected the layer's " +
                        std::string(elementTypeName(expected)));
    }
    bool isSide = layer.tokenScales == TokenScales::Side;
    if (names.kScales.empty() == isSide || names.vScales.empty() == isSide ||
        (layer.hasTokenScales() &&
         (layer.isLatent() || layer.elementType != ElementType::F8E4M3FN)))
      fail(path + ".k_scales",
           "expected scales of tokens for both K and V of f8E4M3FN, just when "
           "token_scales is side");
    for (const std::string *scales : {&names.kScales, &names.vScales}) {
      if (scales->empty())
        continue;
      std::string where =
          path + (scales == &names.kScales ? ".k_scales" : ".v_scales");
      layerBuffer(where, *scales, BufferRole::Cache,
                  {sizes.numPages, layer.pageSize, layer.kvHeads});
      if (!failure &&
          manifest.findBuffer(*scales)->elementType != ElementType::F32)
        fail(where, quoted(*scales) + " is not of f32");
    }
    layerBuffer(path + ".page_table", names.pageTable, BufferRole::PageTable,
                {sizes.maxSequences, sizes.maxPagesPerSequence});
    layerBuffer(path + ".lengths", names.lengths, BufferRole::Lengths,
                {sizes.maxSequences});
    layerBuffer(path + ".query_start", names.queryStart, BufferRole::QueryStart,
                {sizes.maxSequences + 1});
  }

  void rope(const std::string &path, const Layer &layer) {
    const LayerBuffers &names = layer.buffers;
    const Buffer *table = manifest.findBuffer(names.ropeTable);
    if (!table || table->shape.size() != 2)
      return fail(path + ".rope_table",
                  "expected a buffer [positions, rotary dim], found " +
                      quoted(names.ropeTable));
    int64_t most = layer.isLatent() ? layer.ropeDim : layer.headDim,
            dim = table->shape[1];
    if (dim < 2 || dim % 2 != 0 || dim > most ||
        (layer.isLatent() && dim != most))
      fail(path + ".rope_table",
           "expected an even rotary dim " +
               std::string(layer.isLatent() ? "of " : "up to ") +
               std::to_string(most) + ", found " + std::to_string(dim));
    layerBuffer(path + ".rope_table", names.ropeTable, BufferRole::Parameter,
                table->shape);
    layerBuffer(path + ".positions", names.positions, BufferRole::Activation,
                {manifest.capacities.maxTokens});
    if (!failure &&
        (table->elementType != ElementType::F32 ||
         manifest.findBuffer(names.positions)->elementType != ElementType::I64))
      fail(path + ".rope_table",
           "expected a table of f32 and positions of i64");
  }

  /// Codes have a scale, and nothing else has.
  void scaleOfCodes(const std::string &path, const Buffer &buffer,
                    bool hasScale, const std::string &role) {
    if (isFP8(buffer.elementType) != hasScale)
      fail(path, quoted(buffer.name) + " is of " +
                     std::string(elementTypeName(buffer.elementType)) +
                     (hasScale ? ", but the layer has a scale "
                               : ", but the layer has no scale ") +
                     quoted(role));
  }

  void layerBuffer(const std::string &path, const std::string &name,
                   BufferRole role, const std::vector<int64_t> &shape) {
    const Buffer *buffer = manifest.findBuffer(name);
    if (!buffer)
      return fail(path, "no buffer is named " + quoted(name));
    if (buffer->role != role)
      return fail(path, quoted(name) + " has role " +
                            std::string(bufferRoleName(buffer->role)) +
                            ", expected " + std::string(bufferRoleName(role)));
    if (buffer->shape != shape)
      fail(path, quoted(name) + " has shape " + shapeText(buffer->shape) +
                     ", expected " + shapeText(shape));
  }

  void file(const std::string &path, const FileDigest &digest) {
    if (!isInside(digest.file) || digest.file == "manifest.json")
      return fail(path + ".file",
                  "expected a path inside the bundle without \"..\", found " +
                      quoted(digest.file));
    if (!isSha256(digest.sha256))
      fail(path + ".sha256",
           "expected 64 lower-case hex digits, found " + quoted(digest.sha256));
  }

  void program(const std::string &path, const Program &program) {
    uniqueName(path + ".name", program.name, programNames);
    if (program.bucket)
      bucket(path + ".bucket", program);
    if (program.host)
      host(path + ".host", *program.host);
    needOne(path + ".segments", program.segments.size());
    std::set<std::string> names, functions;
    for (size_t i = 0; i < program.segments.size(); ++i) {
      const Segment &segment = program.segments[i];
      std::string where = index(path + ".segments", i);
      uniqueName(where + ".name", segment.name, names);
      uniqueName(where + ".function", segment.function, functions);
      for (size_t j = 0; j < segment.arguments.size() && !failure; ++j) {
        const Buffer *buffer = manifest.findBuffer(segment.arguments[j]);
        std::string argument = index(where + ".arguments", j);
        if (!buffer)
          fail(argument, "no buffer is named " + quoted(segment.arguments[j]));
        else if (buffer->role == BufferRole::Workspace)
          fail(argument, quoted(buffer->name) +
                             " is a workspace, which host code cannot pass");
      }
    }
  }

  void bucket(const std::string &path, const Program &program) {
    const Bucket &bucket = *program.bucket;
    const Program *whole = manifest.findProgram(bucket.of);
    if (!whole || whole->bucket)
      return fail(path + ".of", "expected a program that is no bucket, found " +
                                    quoted(bucket.of));
    inRange(path + ".sequences", bucket.sequences, 1,
            manifest.capacities.maxSequences);
    inRange(path + ".tokens", bucket.tokens, 1, manifest.capacities.maxTokens);
    bool same = whole->segments.size() == program.segments.size();
    for (size_t i = 0; same && i < program.segments.size(); ++i)
      same = whole->segments[i].name == program.segments[i].name &&
             whole->segments[i].arguments == program.segments[i].arguments;
    if (!same)
      fail(path + ".of",
           "expected the segments of " + quoted(bucket.of) + ", found others");
  }

  void host(const std::string &path, const HostCode &host) {
    file(path, host.file);
    if (host.function.empty())
      fail(path + ".function", "expected a name, found an empty string");
    std::set<std::string> names;
    for (size_t i = 0; i < host.arguments.size(); ++i)
      uniqueName(index(path + ".arguments", i) + ".name",
                 host.arguments[i].name, names);
    for (size_t i = 0; i < host.results.size(); ++i)
      uniqueName(index(path + ".results", i) + ".name", host.results[i].name,
                 names);
  }

  void target(const std::string &path, const Target &target) {
    if (!isChip(target.chip))
      return fail(path + ".chip", "expected a chip such as sm_90, found " +
                                      quoted(target.chip));
    uniqueName(path + ".chip", target.chip, chips);
    file(path + ".ptx", target.ptx);
    if (target.cubin)
      file(path + ".cubin", *target.cubin);
    std::set<std::string> names;
    std::map<std::string, const Kernel *> kernels;
    for (size_t i = 0; i < target.kernels.size(); ++i) {
      uniqueName(index(path + ".kernels", i) + ".name", target.kernels[i].name,
                 names);
      kernels[target.kernels[i].name] = &target.kernels[i];
    }
    std::set<std::pair<std::string, std::string>> launched;
    for (size_t i = 0; i < target.launches.size() && !failure; ++i) {
      const Launch &entry = target.launches[i];
      launch(index(path + ".launches", i), target, kernels, entry);
      launched.insert({entry.program, entry.segment});
    }
    for (const Program &program : manifest.programs)
      for (const Segment &segment : program.segments)
        if (!launched.count({program.name, segment.name}))
          fail(path + ".launches", "expected a launch for segment " +
                                       quoted(segment.name) + " of program " +
                                       quoted(program.name) + ", found none");
  }

  void launch(const std::string &path, const Target &target,
              const std::map<std::string, const Kernel *> &kernels,
              const Launch &launch) {
    const Program *program = manifest.findProgram(launch.program);
    if (!program)
      return fail(path + ".program",
                  "no program is named " + quoted(launch.program));
    bool found = false;
    for (const Segment &segment : program->segments)
      found |= segment.name == launch.segment;
    if (!found)
      return fail(path + ".segment", "program " + quoted(program->name) +
                                         " has no segment " +
                                         quoted(launch.segment));
    auto kernel = kernels.find(launch.kernel);
    if (kernel == kernels.end())
      return fail(path + ".kernel", "target " + target.chip +
                                        " has no kernel " +
                                        quoted(launch.kernel));
    const Layer *layer = manifest.findLayer(launch.layer);
    bool needsNone = needsNoLayer(launch.op);
    if (!layer && !(needsNone && launch.layer.empty()))
      return fail(path + ".layer",
                  "no layer has the id " + quoted(launch.layer));
    // CUDA C++ Programming Guide, compute capability 7.5 and up.
    constexpr int64_t gridLimits[] = {INT32_MAX, 65535, 65535};
    constexpr int64_t blockLimits[] = {1024, 1024, 64};
    int64_t blocks = 1, threads = 1;
    for (size_t i = 0; i < 3 && !failure; ++i) {
      inRange(index(path + ".grid", i), launch.grid[i], 1, gridLimits[i]);
      inRange(index(path + ".block", i), launch.block[i], 1, blockLimits[i]);
      if (failure)
        return;
      blocks = blocks > maxBlocksPerLaunch ? blocks : blocks * launch.grid[i];
      threads *= launch.block[i];
    }
    if (blocks > maxBlocksPerLaunch)
      return fail(path + ".grid", "expected at most " +
                                      std::to_string(maxBlocksPerLaunch) +
                                      " blocks, found more");
    if (threads > 1024)
      return fail(path + ".block", "expected at most 1024 threads, found " +
                                       std::to_string(threads));
    if (layer)
      grid(path + ".grid", *kernel->second, *program, *layer, launch);
    math(path + ".math", *kernel->second, launch);
    inRange(path + ".shared_bytes", launch.sharedBytes, 0,
            maxSharedBytes(target.chip));
    Capacities sizes = manifest.capacitiesOf(*program);
    for (size_t i = 0; i < launch.arguments.size() && !failure; ++i) {
      const Argument &entry = launch.arguments[i];
      argument(index(path + ".arguments", i), entry);
      std::optional<int64_t> expected =
          capacityConstant(entry.from, sizes, layer ? layer->pageSize : 0);
      if (!expected && layer)
        expected = strideConstant(entry.from, manifest, *layer);
      if (expected && *expected != entry.integer)
        fail(index(path + ".arguments", i) + ".value",
             "expected " + std::to_string(*expected) + " (" + entry.from +
                 "), found " + std::to_string(entry.integer));
    }
    if (failure)
      return;
    // Of a merge: each partial and its LSE, the output and its LSE.
    size_t buffers = launch.op == LaunchOp::MergeStates ? 6 : 2;
    auto isBuffer = [](const Argument &argument) {
      return argument.kind == Argument::Kind::Buffer;
    };
    if (needsNone && (launch.arguments.size() < buffers ||
                      !std::all_of(launch.arguments.begin(),
                                   launch.arguments.begin() +
                                       static_cast<std::ptrdiff_t>(buffers),
                                   isBuffer)))
      return fail(path + ".arguments",
                  "expected the buffers that are read and written first");
    if (launch.op == LaunchOp::MergeStates)
      return merge(path + ".arguments", launch);
    if (!layer)
      return;
    const LayerBuffers &names = layer->buffers;
    bool latent = launch.op == LaunchOp::WriteLatent ||
                  launch.op == LaunchOp::MLAAttention;
    bool copies = launch.op == LaunchOp::CopyPages;
    if (copies && !manifest.findPageCopies(launch))
      return fail(path + ".arguments",
                  "expected a buffer of role page_copies, found none");
    if (!needsNone && !copies && latent != layer->isLatent())
      return fail(path + ".op",
                  "expected the " +
                      std::string(layer->isLatent() ? "" : "non-") +
                      "latent form, as layer " + quoted(launch.layer) +
                      " is, found " + std::string(launchOpName(launch.op)));
    bool writes = isWrite(launch.op);
    auto isUsed = [&](const std::string &name) {
      return std::any_of(launch.arguments.begin(), launch.arguments.end(),
                         [&](const Argument &argument) {
                           return argument.kind == Argument::Kind::Buffer &&
                                  argument.buffer == name;
                         });
    };
    // A copy of pages takes the pages, or the scales beside them.
    bool ofScales = copies && !names.kScales.empty() && isUsed(names.kScales);
    for (const std::string *name : {writes      ? &names.key
                                    : needsNone ? &names.querySource
                                    : ofScales  ? &names.kScales
                                    : copies    ? &names.kCache
                                                : &names.query,
                                    writes      ? &names.value
                                    : needsNone ? &names.query
                                    : ofScales  ? &names.vScales
                                    : copies    ? &names.vCache
                                                : &names.output}) {
      if (!isUsed(*name))
        return fail(path + ".arguments",
                    "expected " + quoted(*name) + " of layer " +
                        quoted(launch.layer) + " among them, found it nowhere");
    }
  }

  /// Both partials and the output are of one type and shape, and so are their
  /// LSEs, with the heads and rows of the partials.
  void merge(const std::string &path, const Launch &launch) {
    for (size_t i = 0; i < 6; ++i) {
      const Buffer &buffer = *manifest.findBuffer(launch.arguments[i].buffer);
      const Buffer &first = *manifest.findBuffer(launch.arguments[0].buffer);
      bool isLse = i % 2 != 0;
      std::vector<int64_t> shape = first.shape;
      if (isLse)
        shape.resize(2);
      ElementType type = isLse ? ElementType::F32 : first.elementType;
      if (first.shape.size() != 3 || buffer.shape != shape ||
          buffer.strides != contiguousStrides(shape) ||
          buffer.elementType != type)
        return fail(index(path, i),
                    "expected " + std::string(elementTypeName(type)) + " " +
                        shapeText(shape) + " without gaps, found " +
                        std::string(elementTypeName(buffer.elementType)) + " " +
                        shapeText(buffer.shape) + " of " + quoted(buffer.name));
    }
  }

  /// A kernel of the device library has one grid for given capacities, and a
  /// structure that is its layer's.
  void grid(const std::string &path, const Kernel &kernel,
            const Program &program, const Layer &layer, const Launch &launch) {
    for (const auto &[name, expected] :
         {std::pair<const char *, int64_t>{"q_heads", layer.queryHeads},
          {"kv_heads", layer.kvHeads},
          {"head_dim", layer.headDim},
          {"page_size", layer.pageSize}}) {
      auto found = kernel.structure.find(name);
      if (found != kernel.structure.end() &&
          found->second != OptionValue(expected))
        return fail(path, "the " + std::string(name) + " of kernel " +
                              quoted(kernel.name) + " is not the " +
                              std::to_string(expected) + " of layer " +
                              quoted(layer.id));
    }
    // The device library's own kernels say the head dim of V where it differs.
    auto own = kernel.structure.find("v_head_dim");
    bool saysOne = own != kernel.structure.end();
    bool needsOne = layer.vHeadDim && kernel.structure.count("arch") &&
                    kernel.structure.count("head_dim");
    if (saysOne ? own->second != OptionValue(layer.valueDim()) : needsOne)
      return fail(path, "the v_head_dim of kernel " + quoted(kernel.name) +
                            " is not the " + std::to_string(layer.valueDim()) +
                            " of layer " + quoted(layer.id));
    Capacities sizes = manifest.capacitiesOf(program);
    for (const char *name : {"rows", "num_splits", "warps"}) {
      auto found = kernel.structure.find(name);
      const int64_t *value = found == kernel.structure.end()
                                 ? nullptr
                                 : std::get_if<int64_t>(&found->second);
      if (found != kernel.structure.end() &&
          (!value || *value < 1 || *value > 1 << 16))
        return fail(path, "kernel " + quoted(kernel.name) + ": structure." +
                              name + ": expected an integer from 1 to 65536");
    }
    constexpr int64_t most = int64_t(1) << 29;
    if (kernel.structure.count("arch") &&
        (sizes.maxTokens > most || sizes.maxSequences > most))
      return fail(path, "expected capacities of at most " +
                            std::to_string(most) +
                            " tokens and sequences, for which there are grids");
    std::optional<std::array<int64_t, 3>> expected =
        capacityGrid(kernel.structure, sizes);
    if (expected && *expected != launch.grid)
      fail(path, "expected " + shapeText({expected->begin(), expected->end()}) +
                     ", which kernel " + quoted(kernel.name) +
                     " has for these capacities, found " +
                     shapeText({launch.grid.begin(), launch.grid.end()}));
  }

  /// Attentions alone have numerics, those of their kernel.
  void math(const std::string &path, const Kernel &kernel,
            const Launch &launch) {
    if (launch.math && !isAttention(launch.op))
      return fail(path, "expected none for " +
                            std::string(launchOpName(launch.op)) + ", found " +
                            quoted(std::string(mathName(*launch.math))));
    auto found = kernel.structure.find("math");
    if (found == kernel.structure.end())
      return;
    Math expected =
        found->second == OptionValue(int64_t(1)) ? Math::FP8 : Math::F16;
    if (launch.math != expected)
      fail(path, "expected " + quoted(std::string(mathName(expected))) +
                     ", the numerics of kernel " + quoted(kernel.name) +
                     ", found " +
                     (launch.math ? quoted(std::string(mathName(*launch.math)))
                                  : "none"));
  }

  void argument(const std::string &path, const Argument &argument) {
    switch (argument.kind) {
    case Argument::Kind::Buffer:
      if (!manifest.findBuffer(argument.buffer))
        fail(path + ".name", "no buffer is named " + quoted(argument.buffer));
      return;
    case Argument::Kind::F32:
      if (std::isnan(argument.f32.value()))
        fail(path + ".bits", "expected a number, found NaN");
      return;
    case Argument::Kind::I32:
      return inRange(path + ".value", argument.integer, INT32_MIN, INT32_MAX);
    case Argument::Kind::I64:
    case Argument::Kind::Null:
      return;
    }
  }

  const Manifest &manifest;
  Error failure;
  std::set<std::string> bufferNames, layerIds, programNames, chips;
};

} // namespace

Error validateManifest(const Manifest &manifest) {
  return Validator(manifest).run();
}

} // namespace kvcache
