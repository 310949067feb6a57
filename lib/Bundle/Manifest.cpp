//===- Manifest.cpp - Names, sizes and look-ups of a manifest -------------===//

#include "kvcache/Bundle/Manifest.h"
#include "../../kernels/Geometry.h"
#include "kvcache/Support/Json.h"
#include "kvcache/Support/Sha256.h"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <limits>

namespace kvcache {

namespace {

template <typename Enum> struct NamedValue {
  Enum value;
  std::string_view name;
};

constexpr NamedValue<ElementType> elementTypes[] = {
    {ElementType::BF16, "bf16"},     {ElementType::F16, "f16"},
    {ElementType::F32, "f32"},       {ElementType::F8E4M3FN, "f8E4M3FN"},
    {ElementType::F8E5M2, "f8E5M2"}, {ElementType::I32, "i32"},
    {ElementType::I64, "i64"},       {ElementType::U8, "u8"}};

constexpr NamedValue<Provenance> provenances[] = {
    {Provenance::Checkpoint, "checkpoint"},
    {Provenance::Default, "default"},
    {Provenance::Duplicate, "duplicate"},
    {Provenance::Maximum, "maximum"},
    {Provenance::Override, "override"}};

constexpr NamedValue<TokenScales> tokenScales[] = {
    {TokenScales::Side, "side"}, {TokenScales::Inline, "inline"}};

constexpr NamedValue<BufferRole> bufferRoles[] = {
    {BufferRole::Activation, "activation"},
    {BufferRole::Cache, "cache"},
    {BufferRole::PageTable, "page_table"},
    {BufferRole::Lengths, "lengths"},
    {BufferRole::Slots, "slots"},
    {BufferRole::QueryStart, "query_start"},
    {BufferRole::Workspace, "workspace"},
    {BufferRole::Parameter, "parameter"},
    {BufferRole::PageCopies, "page_copies"}};

constexpr NamedValue<BufferAccess> bufferAccesses[] = {
    {BufferAccess::Read, "read"},
    {BufferAccess::Write, "write"},
    {BufferAccess::ReadWrite, "readwrite"}};

constexpr NamedValue<BufferOwner> bufferOwners[] = {
    {BufferOwner::Caller, "caller"}, {BufferOwner::Runtime, "runtime"}};

constexpr NamedValue<LaunchOp> launchOps[] = {
    {LaunchOp::Write, "write"},
    {LaunchOp::PagedAttention, "paged_attention"},
    {LaunchOp::WriteLatent, "write_latent"},
    {LaunchOp::MLAAttention, "mla_attention"},
    {LaunchOp::Quantize, "quantize"},
    {LaunchOp::Dequantize, "dequantize"},
    {LaunchOp::MergeStates, "merge_states"},
    {LaunchOp::CopyPages, "copy_pages"}};

constexpr NamedValue<Math> maths[] = {{Math::F16, "f16"}, {Math::FP8, "fp8"}};

template <typename Enum, size_t N>
std::string_view nameOf(const NamedValue<Enum> (&table)[N], Enum value) {
  for (const NamedValue<Enum> &entry : table)
    if (entry.value == value)
      return entry.name;
  return "";
}

template <typename Enum, size_t N>
std::optional<Enum> valueOf(const NamedValue<Enum> (&table)[N],
                            std::string_view name) {
  for (const NamedValue<Enum> &entry : table)
    if (entry.name == name)
      return entry.value;
  return std::nullopt;
}

template <typename Item, typename Key>
const Item *findBy(const std::vector<Item> &items, Key Item::*key,
                   std::string_view name) {
  for (const Item &item : items)
    if (item.*key == name)
      return &item;
  return nullptr;
}

} // namespace

std::string_view elementTypeName(ElementType type) {
  return nameOf(elementTypes, type);
}
std::optional<ElementType> parseElementType(std::string_view name) {
  return valueOf(elementTypes, name);
}

bool isFP8(ElementType type) {
  return type == ElementType::F8E4M3FN || type == ElementType::F8E5M2;
}

unsigned elementTypeBytes(ElementType type) {
  switch (type) {
  case ElementType::F8E4M3FN:
  case ElementType::F8E5M2:
  case ElementType::U8:
    return 1;
  case ElementType::BF16:
  case ElementType::F16:
    return 2;
  case ElementType::F32:
  case ElementType::I32:
    return 4;
  case ElementType::I64:
    return 8;
  }
  return 0;
}

std::string_view provenanceName(Provenance provenance) {
  return nameOf(provenances, provenance);
}
std::optional<Provenance> parseProvenance(std::string_view name) {
  return valueOf(provenances, name);
}
std::string_view tokenScalesName(TokenScales storage) {
  return nameOf(tokenScales, storage);
}
std::optional<TokenScales> parseTokenScales(std::string_view name) {
  return valueOf(tokenScales, name);
}
std::string_view bufferRoleName(BufferRole role) {
  return nameOf(bufferRoles, role);
}
std::optional<BufferRole> parseBufferRole(std::string_view name) {
  return valueOf(bufferRoles, name);
}
std::string_view bufferAccessName(BufferAccess access) {
  return nameOf(bufferAccesses, access);
}
std::optional<BufferAccess> parseBufferAccess(std::string_view name) {
  return valueOf(bufferAccesses, name);
}
std::string_view bufferOwnerName(BufferOwner owner) {
  return nameOf(bufferOwners, owner);
}
std::optional<BufferOwner> parseBufferOwner(std::string_view name) {
  return valueOf(bufferOwners, name);
}
std::string_view launchOpName(LaunchOp op) { return nameOf(launchOps, op); }
std::optional<LaunchOp> parseLaunchOp(std::string_view name) {
  return valueOf(launchOps, name);
}

std::string_view mathName(Math math) { return nameOf(maths, math); }
std::optional<Math> parseMath(std::string_view name) {
  return valueOf(maths, name);
}

ScalarF32 ScalarF32::of(float value) {
  ScalarF32 scalar;
  std::memcpy(&scalar.bits, &value, sizeof(value));
  return scalar;
}

float ScalarF32::value() const {
  float result;
  std::memcpy(&result, &bits, sizeof(result));
  return result;
}

std::vector<int64_t> contiguousStrides(const std::vector<int64_t> &shape) {
  std::vector<int64_t> strides(shape.size(), 1);
  for (size_t i = shape.size(); i-- > 1;)
    strides[i - 1] = strides[i] * (shape[i] > 0 ? shape[i] : 1);
  return strides;
}

std::optional<uint64_t> spanBytes(const Buffer &buffer) {
  if (buffer.shape.size() != buffer.strides.size())
    return std::nullopt;
  int64_t last = 0; // element offset of the last element
  bool empty = false;
  for (size_t i = 0; i < buffer.shape.size(); ++i) {
    int64_t extent = buffer.shape[i], stride = buffer.strides[i], reach;
    if (extent < 0 || stride < 0)
      return std::nullopt;
    if (extent == 0) {
      empty = true;
      continue;
    }
    if (__builtin_mul_overflow(extent - 1, stride, &reach) ||
        __builtin_add_overflow(last, reach, &last))
      return std::nullopt;
  }
  int64_t bytes;
  if (__builtin_add_overflow(last, int64_t(1), &last) ||
      __builtin_mul_overflow(
          last, int64_t(elementTypeBytes(buffer.elementType)), &bytes))
    return std::nullopt;
  return empty ? 0 : uint64_t(bytes);
}

Argument Argument::ofBuffer(std::string name) {
  Argument argument;
  argument.kind = Kind::Buffer;
  argument.buffer = std::move(name);
  return argument;
}
Argument Argument::ofF32(float value, std::string from) {
  Argument argument;
  argument.kind = Kind::F32;
  argument.f32 = ScalarF32::of(value);
  argument.from = std::move(from);
  return argument;
}
Argument Argument::ofI32(int32_t value, std::string from) {
  Argument argument;
  argument.kind = Kind::I32;
  argument.integer = value;
  argument.from = std::move(from);
  return argument;
}
Argument Argument::ofI64(int64_t value, std::string from) {
  Argument argument;
  argument.kind = Kind::I64;
  argument.integer = value;
  argument.from = std::move(from);
  return argument;
}
Argument Argument::null() { return Argument(); }

const Layer *Manifest::findLayer(std::string_view id) const {
  return findBy(layers, &Layer::id, id);
}
const Buffer *Manifest::findBuffer(std::string_view name) const {
  return findBy(buffers, &Buffer::name, name);
}
const Program *Manifest::findProgram(std::string_view name) const {
  return findBy(programs, &Program::name, name);
}
const Target *Manifest::findTarget(std::string_view chip) const {
  return findBy(targets, &Target::chip, chip);
}

const Buffer *Manifest::findPageCopies(const Launch &launch) const {
  for (const Argument &argument : launch.arguments) {
    const Buffer *buffer = argument.kind == Argument::Kind::Buffer
                               ? findBuffer(argument.buffer)
                               : nullptr;
    if (buffer && buffer->role == BufferRole::PageCopies)
      return buffer;
  }
  return nullptr;
}

Expected<const Program *> Manifest::chooseProgram(std::string_view name) const {
  const Program *only = nullptr;
  size_t count = 0;
  std::string names;
  for (const Program &program : programs) {
    if (!program.bucket && ++count == 1)
      only = &program;
    names += (names.empty() ? "" : ", ") + program.name;
  }
  if (name.empty() && count == 1)
    return only;
  if (const Program *program = findProgram(name.empty() ? "main" : name))
    return program;
  return makeError("the bundle has no program \"" +
                   std::string(name.empty() ? "main" : name) + "\"; it has " +
                   names);
}

const Program *Manifest::programFor(const Program &program, int64_t sequences,
                                    int64_t tokens) const {
  const Program *best = nullptr;
  int64_t room = 0;
  for (const Program &entry : programs) {
    if (&entry != &program &&
        !(entry.bucket && entry.bucket->of == program.name))
      continue;
    Capacities sizes = capacitiesOf(entry);
    if (sizes.maxSequences < sequences || sizes.maxTokens < tokens ||
        (best && sizes.maxSequences >= room))
      continue;
    best = &entry;
    room = sizes.maxSequences;
  }
  return best;
}

Capacities Manifest::capacitiesOf(const Program &program) const {
  Capacities sizes = capacities;
  if (program.bucket) {
    sizes.maxSequences = program.bucket->sequences;
    sizes.maxTokens = program.bucket->tokens;
  }
  return sizes;
}

std::optional<std::array<int64_t, 3>> capacityGrid(const OptionMap &structure,
                                                   const Capacities &sizes) {
  auto value = [&](const char *name) {
    auto found = structure.find(name);
    const int64_t *integer = found == structure.end()
                                 ? nullptr
                                 : std::get_if<int64_t>(&found->second);
    return integer && *integer > 0 && *integer <= 1 << 16 ? int(*integer) : 0;
  };
  int heads = value("q_heads"), kvHeads = value("kv_heads"),
      dim = value("head_dim"), tokens = int(sizes.maxTokens),
      sequences = int(sizes.maxSequences);
  const int vDim = structure.count("v_head_dim") ? value("v_head_dim") : dim;
  if (int latent = value("latent_dim"); latent && value("rope_dim")) {
    kernels::Grid grid = {
        kernels::latentWriteGrid(tokens, latent, value("rope_dim")), 1, 1};
    if (int latentHeads = value("heads");
        latentHeads && value("rows") && value("num_splits"))
      grid =
          kernels::mlaLaunchGrid(tokens, sequences, latentHeads, value("rows"),
                                 value("num_splits"), value("q_type"));
    return std::array<int64_t, 3>{grid.x, grid.y, grid.z};
  }
  if (!value("arch") || !kvHeads || dim < 16 || dim > 512 || vDim < 16 ||
      vDim > 512 || kvHeads > 1 << 12 || (heads && heads < kvHeads))
    return std::nullopt;
  kernels::Grid grid = {0, 0, 0};
  if (structure.count("in_type") && !structure.count("k_scale_is_pow2"))
    grid = {kernels::tokenScaledWriteGrid(tokens, kvHeads, dim, vDim), 1, 1};
  else if (structure.count("k_scale_is_pow2"))
    grid =
        kernels::writeLaunchGrid(tokens, kvHeads, dim, vDim, value("per_head"));
  else if (heads && value("rows") && value("num_splits"))
    grid = kernels::attentionLaunchGrid(tokens, sequences, heads, kvHeads, vDim,
                                        value("rows"), value("num_splits"));
  else if (heads && value("warps") && value("num_splits"))
    grid = kernels::prefillLaunchGrid(tokens, sequences, heads, kvHeads, vDim,
                                      value("warps"), value("num_splits"));
  else
    return std::nullopt;
  return std::array<int64_t, 3>{grid.x, grid.y, grid.z};
}

std::optional<int64_t> capacityConstant(std::string_view formula,
                                        const Capacities &sizes,
                                        int64_t pageSize) {
  if (formula == "max_tokens")
    return sizes.maxTokens;
  if (formula == "max_sequences")
    return sizes.maxSequences;
  if (formula == "max_pages_per_sequence")
    return sizes.maxPagesPerSequence;
  if (formula == "num_pages")
    return sizes.numPages;
  if (formula == "num_pages * page_size")
    return sizes.numPages * pageSize;
  return std::nullopt;
}

std::optional<int64_t> strideConstant(std::string_view formula,
                                      const Manifest &manifest,
                                      const Layer &layer) {
  constexpr std::string_view names[] = {"_page_stride", "_token_stride",
                                        "_head_stride"};
  for (char side : {'k', 'v'})
    for (size_t dim = 0; dim < std::size(names); ++dim)
      if (formula == side + std::string(names[dim])) {
        const Buffer *cache = manifest.findBuffer(
            side == 'k' ? layer.buffers.kCache : layer.buffers.vCache);
        if (!cache || cache->strides.size() != 4)
          return std::nullopt;
        return cache->strides[dim] * elementTypeBytes(cache->elementType);
      }
  return std::nullopt;
}

/// `strides:` and those of page, token and head of K, and of V if they differ.
static std::string layoutText(const Manifest &manifest, const Layer &layer) {
  auto text = [&](const std::string &name) {
    std::string numbers;
    const std::vector<int64_t> &strides = manifest.findBuffer(name)->strides;
    for (size_t i = 0; i < 3; ++i)
      numbers += (i ? "," : "") + std::to_string(strides[i]);
    return numbers;
  };
  std::string k = text(layer.buffers.kCache), v = text(layer.buffers.vCache);
  return "strides:" + k + (k == v ? "" : ";" + v);
}

Error setStrides(Manifest &manifest, const std::string &name,
                 const std::vector<int64_t> &strides) {
  Manifest changed = manifest;
  auto buffer = std::find_if(
      changed.buffers.begin(), changed.buffers.end(),
      [&](const Buffer &candidate) { return candidate.name == name; });
  if (buffer == changed.buffers.end() || buffer->role != BufferRole::Cache ||
      buffer->shape.size() != 4)
    return makeError(name + ": expected the name of a cache of 4 dimensions");
  if (buffer->offsetIn)
    return makeError(name + ": is a view of " + buffer->offsetIn->buffer +
                     ", whose strides are fixed; compile with another "
                     "kv-layout than packed, and bind both halves");
  int64_t bytes = elementTypeBytes(buffer->elementType);
  bool isLegal = strides.size() == 4 && strides[3] == 1 &&
                 kernels::rowsAreApart(strides[0], strides[1], strides[2],
                                       buffer->shape[1], buffer->shape[2],
                                       buffer->shape[3]) &&
                 std::max(strides[1], strides[2]) * bytes <= INT32_MAX;
  for (size_t i = 0; isLegal && i < 3; ++i)
    isLegal = strides[i] * bytes % 16 == 0;
  if (!isLegal) {
    std::string found;
    for (int64_t stride : strides)
      found += (found.empty() ? "" : ", ") + std::to_string(stride);
    return makeError(name +
                     ": expected strides of page, token, head and 1, multiples "
                     "of 16 bytes, tokens and heads below 2 GiB, with which no "
                     "row overlaps another, found [" +
                     found + "]");
  }
  buffer->strides = strides;
  std::optional<uint64_t> span = spanBytes(*buffer);
  buffer->bytes = span.value_or(0);
  for (Layer &layer : changed.layers)
    if (layer.buffers.kCache == name || layer.buffers.vCache == name) {
      layer.layout = layoutText(changed, layer);
      layer.compatibility = cacheCompatibility(layer);
    }
  for (Target &target : changed.targets)
    for (Launch &launch : target.launches) {
      bool isUsed =
          std::any_of(launch.arguments.begin(), launch.arguments.end(),
                      [&](const Argument &argument) {
                        return argument.kind == Argument::Kind::Buffer &&
                               argument.buffer == name;
                      });
      if (!isUsed)
        continue;
      const Layer *layer = changed.findLayer(launch.layer);
      bool takesStrides = false;
      for (Argument &argument : launch.arguments)
        if (std::optional<int64_t> stride =
                layer ? strideConstant(argument.from, changed, *layer)
                      : std::nullopt) {
          argument.integer = *stride;
          takesStrides = true;
        }
      if (!takesStrides)
        return makeError(name + ": kernel " + launch.kernel +
                         " has the strides of its pages in its code; compile "
                         "with runtime-strides (caches of keys and values "
                         "only)");
    }
  if (Error error = validateManifest(changed))
    return error;
  manifest = std::move(changed);
  return Error::success();
}

std::string scaleText(const ManifestScale &scale) {
  std::string text;
  for (size_t i = 0; i < scale.count(); ++i)
    text += (i ? ", " : "") + formatFloat(scale.ofHead(int64_t(i)));
  return text;
}

bool isWrite(LaunchOp op) {
  return op == LaunchOp::Write || op == LaunchOp::WriteLatent;
}

bool needsNoLayer(LaunchOp op) {
  return op == LaunchOp::Quantize || op == LaunchOp::Dequantize ||
         op == LaunchOp::MergeStates;
}

bool isAttention(LaunchOp op) {
  return op == LaunchOp::PagedAttention || op == LaunchOp::MLAAttention;
}

std::string cacheCompatibility(const Layer &layer) {
  char text[512];
  int size = std::snprintf(
      text, sizeof(text),
      "kvcache-cache-1;%s;k=%08X;v=%08X;page=%lld;heads=%lld;dim=%lld;",
      std::string(elementTypeName(layer.elementType)).c_str(),
      layer.kScale.value.bits, layer.vScale.value.bits,
      static_cast<long long>(layer.pageSize),
      static_cast<long long>(layer.kvHeads),
      static_cast<long long>(layer.headDim));
  std::string key(text, size_t(size));
  if (layer.vHeadDim)
    key += "v_dim=" + std::to_string(layer.vHeadDim) + ";";
  key += "layout=" + layer.layout;
  if (layer.isLatent())
    key += ";rope=" + std::to_string(layer.ropeDim);
  if (layer.hasTokenScales())
    key += ";token_scales=" + std::string(tokenScalesName(layer.tokenScales));
  for (const auto &[role, scale] :
       {std::pair("k", &layer.kScale), std::pair("v", &layer.vScale)}) {
    if (scale->perHead.empty())
      continue;
    key += std::string(";") + role + "_heads=";
    for (ScalarF32 head : scale->perHead) {
      std::snprintf(text, sizeof(text), "%08X,", head.bits);
      key += text;
    }
  }
  return sha256Hex(key.data(), key.size());
}

} // namespace kvcache
