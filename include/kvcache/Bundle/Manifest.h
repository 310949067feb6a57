//===- Manifest.h - What a bundle says about itself -------------*- C++ -*-===//
//
// The compiler fills a Manifest and writes it; the runtime reads it back. Both
// sides use these structs, `writeManifest` and `validateManifest`, so that they
// cannot drift. Plain data, no LLVM.
//
// Sizes are in elements where a field says so and in bytes otherwise. Every
// number a kernel receives is kept as an exact bit pattern.
//
//===----------------------------------------------------------------------===//

#ifndef KVCACHE_BUNDLE_MANIFEST_H
#define KVCACHE_BUNDLE_MANIFEST_H

#include "kvcache/Support/Expected.h"

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace kvcache {

/// The value of "format" in every manifest.
inline constexpr std::string_view manifestFormat = "kvcache-bundle";
/// The only version that this library writes and reads.
inline constexpr int64_t manifestVersion = 1;

enum class ElementType { BF16, F16, F32, F8E4M3FN, F8E5M2, I32, I64, U8 };

/// The MLIR spelling: bf16, f16, f32, f8E4M3FN, f8E5M2, i32, i64, u8.
std::string_view elementTypeName(ElementType type);
std::optional<ElementType> parseElementType(std::string_view name);
/// Bytes of one element.
unsigned elementTypeBytes(ElementType type);
/// f8E4M3FN or f8E5M2.
bool isFP8(ElementType type);

/// An option as given or defaulted: an integer or a string.
using OptionValue = std::variant<int64_t, std::string>;
using OptionMap = std::map<std::string, OptionValue>;

/// The static sizes that grids and workspaces come from.
struct Capacities {
  int64_t maxTokens = 0;
  int64_t maxSequences = 0;
  int64_t maxPagesPerSequence = 0;
  int64_t numPages = 0;
};

/// One f32 with its exact bits. The manifest shows the decimal value too; the
/// reader refuses a manifest in which the two differ.
struct ScalarF32 {
  uint32_t bits = 0;

  static ScalarF32 of(float value);
  float value() const;
};

/// Where a scale came from.
enum class Provenance { Checkpoint, Default, Duplicate, Maximum, Override };

/// The manifest's spelling: checkpoint, default, duplicate, maximum, override.
std::string_view provenanceName(Provenance provenance);
std::optional<Provenance> parseProvenance(std::string_view name);

struct ManifestScale {
  /// The scale of all heads; of one per head the largest.
  ScalarF32 value;
  Provenance provenance = Provenance::Default;
  /// Checkpoint key, or what an override was given as; empty for a default.
  std::string key;
  /// One for each KV head; empty when all have the same.
  std::vector<ScalarF32> perHead = {};

  /// How many scales there are: one, or one for each KV head.
  size_t count() const { return perHead.empty() ? 1 : perHead.size(); }
  float ofHead(int64_t head) const {
    return perHead.empty() ? value.value() : perHead[size_t(head)].value();
  }
};

/// Names of the buffers that a layer's ops work on. Empty where a layer has
/// none (`lse` without LSE output, `sinks` without sinks; `key` and `value` of
/// a layer that only reads a cache).
/// Where a cache keeps the f32 scales that the write computes for each token
/// and KV head.
enum class TokenScales {
  None,  // it has none: `kScale` and `vScale` of the layer apply
  Side,  // in the buffers `kScales` and `vScales`
  Inline // behind the codes of each row; the caches are of u8
};
/// The manifest's spelling: side, inline; of None an empty string.
std::string_view tokenScalesName(TokenScales storage);
std::optional<TokenScales> parseTokenScales(std::string_view name);

struct LayerBuffers {
  std::string query;       // [max_tokens][query_heads][head_dim]
  std::string querySource; // as query: what FP8 queries are quantized from,
                           // if the segment does it
  std::string key, value;  // [max_tokens][kv_heads][head_dim], of value its own
  std::string ropeTable;   // [positions][rotary dim] f32, cosines then sines,
                           // if the write rotates keys
  std::string positions;   // [max_tokens] i64, with a rope table
  std::string output;      // as query, with the head dim of values
  std::string lse;         // [max_tokens][query_heads] f32, natural logarithm
  std::string sinks;       // [query_heads] f32, logits
  std::string alibiSlopes; // [query_heads] f32
  std::string kCache;      // [num_pages][page_size][kv_heads][head_dim] ...
  std::string vCache;      // ... in this logical order whatever the strides
  std::string kScales;     // [num_pages][page_size][kv_heads] f32, with
  std::string vScales;     // TokenScales::Side; else empty
  // Of a latent layer: key is the latent part [max_tokens][head_dim -
  // rope_dim], value the rotary part [max_tokens][rope_dim], the output
  // [max_tokens][query_heads][head_dim - rope_dim], and both caches are one.
  std::string pageTable;   // [max_sequences][max_pages_per_sequence] i32
  std::string lengths;     // [max_sequences] i32
  std::string queryStart;  // [max_sequences + 1] i32
  std::string slotMapping; // [max_tokens] i64

  /// What callers give as queries.
  const std::string &queryInput() const {
    return querySource.empty() ? query : querySource;
  }
};

struct Layer {
  /// Unique and short: what launches name, and the prefix of buffer names.
  std::string id;
  /// The layer's name in the graph.
  std::string name;
  /// The cache's symbol; layers that share a cache name the same one.
  std::string cache;
  ElementType elementType = ElementType::F8E4M3FN; // of keys and values
  int64_t queryHeads = 0;
  int64_t kvHeads = 0;
  int64_t headDim = 0;
  /// Of values and outputs, where that is not headDim; else 0.
  int64_t vHeadDim = 0;
  /// Rotary elements at the end of the rows of a latent cache (MLA), whose
  /// other elements are the values; 0 of other caches. A latent cache of u8 has
  /// fp8_ds_mla rows of `rowWidth` bytes.
  int64_t ropeDim = 0;
  int64_t pageSize = 0;
  std::string layout; // nhd, hnd, packed, or strides:...
  TokenScales tokenScales = TokenScales::None;
  ScalarF32 softmaxScale;
  std::string softmaxScaleFrom;     // e.g. "config.json: head_dim"
  std::optional<ScalarF32> softCap; // score = cap * tanh(score / cap)
  std::optional<int64_t> window;    // keys seen in front of the query
  /// With a rope table: elements 2i and 2i + 1 are a pair, not i and i + half.
  bool ropeInterleaved = false;
  ManifestScale kScale, vScale;
  std::optional<ManifestScale> qScale, oScale; // of FP8 queries and outputs
  /// SHA-256 (hex) of what makes two caches compatible; `cacheCompatibility`.
  std::string compatibility;
  LayerBuffers buffers;

  bool isLatent() const { return ropeDim != 0; }
  bool hasTokenScales() const { return tokenScales != TokenScales::None; }
  bool hasInlineScales() const { return tokenScales == TokenScales::Inline; }
  /// fp8_ds_mla rows, each 128 codes of which have a scale.
  bool isTileScaled() const { return elementType == ElementType::U8; }
  /// Of the buffers kCache and vCache.
  ElementType pageElementType() const {
    return hasInlineScales() ? ElementType::U8 : elementType;
  }
  /// Elements of an output row of a head.
  int64_t valueDim() const { return vHeadDim ? vHeadDim : headDim - ropeDim; }
  /// The last dimension of the pages of keys: `headDim`; of rows that end in
  /// their scale the bytes of codes and scale; or the bytes of an fp8_ds_mla
  /// row: codes, an f32 scale for each 128 of them, the rotary part in bf16.
  int64_t rowWidth() const {
    return isTileScaled()      ? valueDim() + valueDim() / 32 + 2 * ropeDim
           : hasInlineScales() ? headDim + 4
                               : headDim;
  }
  /// That of the pages of values.
  int64_t vRowWidth() const {
    return vHeadDim ? rowWidth() - headDim + vHeadDim : rowWidth();
  }
};

enum class BufferRole {
  Activation,
  Cache,
  PageTable,
  Lengths,
  Slots,
  QueryStart,
  Workspace,
  Parameter, // weights of the model, the same in every step
  PageCopies // pairs of pages, [n][2] i64: copied from, copied to
};

/// The manifest's spelling: activation, cache, page_table, lengths, slots,
/// query_start, workspace, parameter, page_copies.
std::string_view bufferRoleName(BufferRole role);
std::optional<BufferRole> parseBufferRole(std::string_view name);

enum class BufferAccess { Read, Write, ReadWrite };
std::string_view bufferAccessName(BufferAccess access);
std::optional<BufferAccess> parseBufferAccess(std::string_view name);

enum class BufferOwner { Caller, Runtime };
std::string_view bufferOwnerName(BufferOwner owner);
std::optional<BufferOwner> parseBufferOwner(std::string_view name);

struct BufferView {
  std::string buffer;  // the buffer that holds the memory; not itself a view
  uint64_t offset = 0; // bytes
};

struct Buffer {
  std::string name;
  BufferRole role = BufferRole::Activation;
  ElementType elementType = ElementType::BF16;
  std::vector<int64_t> shape;       // at capacity
  std::vector<int64_t> strides;     // elements, positive
  std::vector<int64_t> dynamicDims; // ascending; live extent may be smaller
  BufferAccess access = BufferAccess::Read;
  BufferOwner owner = BufferOwner::Caller;
  bool stableAddress = false;
  /// A buffer with memory of its own: its size, at least `spanBytes`. A view:
  /// exactly `spanBytes`.
  uint64_t bytes = 0;
  std::optional<BufferView> offsetIn;
};

/// Bytes from a buffer's first element to the end of its last, by shape and
/// strides; 0 when a dimension is 0; nothing when it overflows 63 bits, or
/// shape and strides do not fit each other.
std::optional<uint64_t> spanBytes(const Buffer &buffer);

/// Contiguous row-major strides of `shape`, in elements.
std::vector<int64_t> contiguousStrides(const std::vector<int64_t> &shape);

struct FileDigest {
  std::string file;   // relative to the bundle, '/' as separator, no ".."
  std::string sha256; // 64 lower-case hex digits
};

struct HostValue {
  std::string name;
  ElementType elementType = ElementType::BF16;
  std::vector<int64_t> shape; // -1 = any extent
};

/// The graph around the segments, as MLIR on tensors.
struct HostCode {
  FileDigest file;
  std::string function;
  std::vector<HostValue> arguments;
  std::vector<HostValue> results;
};

struct Segment {
  std::string name;
  std::string function; // symbol in host code: "kvcache.<program>.<segment>"
  /// Buffers that host code passes as memrefs, in order.
  std::vector<std::string> arguments;
};

/// What makes a program a bucket: it does what the program `of` does, over the
/// same buffers, for steps of at most so many sequences and tokens.
struct Bucket {
  std::string of;
  int64_t sequences = 0, tokens = 0;
};

struct Program {
  std::string name;
  std::optional<Bucket> bucket;
  std::optional<HostCode> host;
  std::vector<Segment> segments;
};

/// What ptxas said about a kernel, when it ran.
struct KernelReport {
  std::string ptxas; // version
  int64_t registers = 0;
  int64_t stackBytes = 0;
  int64_t spillStoreBytes = 0;
  int64_t spillLoadBytes = 0;
  int64_t staticSharedBytes = 0;
};

struct Kernel {
  std::string name;
  /// Structural constants it was specialised for, by name.
  OptionMap structure;
  std::optional<KernelReport> report;
};

enum class LaunchOp {
  Write,
  PagedAttention,
  WriteLatent,
  MLAAttention,
  Quantize,
  Dequantize,
  MergeStates,
  CopyPages
};
/// The manifest's spelling: write, paged_attention, write_latent,
/// mla_attention, quantize, dequantize, merge_states, copy_pages.
std::string_view launchOpName(LaunchOp op);
/// True of the writes, and of the attentions.
bool isWrite(LaunchOp op);
bool isAttention(LaunchOp op);
/// True of what works on activations alone, so that a launch need not name a
/// layer.
bool needsNoLayer(LaunchOp op);
std::optional<LaunchOp> parseLaunchOp(std::string_view name);

/// Numerics of an attention: in F16 queries, the decoded cache and
/// probabilities are 16-bit floats; in FP8 queries and probabilities are e4m3,
/// and codes are multiplied.
enum class Math { F16, FP8 };
/// The manifest's spelling: f16, fp8.
std::string_view mathName(Math math);
std::optional<Math> parseMath(std::string_view name);

/// One kernel argument. Only the members of its kind mean something.
struct Argument {
  enum class Kind { Buffer, F32, I32, I64, Null };

  Kind kind = Kind::Null;
  std::string buffer; // Buffer: its name; the kernel gets its address
  ScalarF32 f32;      // F32
  int64_t integer = 0;
  /// F32, I32, I64: the formula it was folded from, such as
  /// "softmax_scale * k_scale * log2(e)" or "max_tokens"; may be empty.
  std::string from;

  static Argument ofBuffer(std::string name);
  static Argument ofF32(float value, std::string from);
  static Argument ofI32(int32_t value, std::string from = "");
  static Argument ofI64(int64_t value, std::string from = "");
  static Argument null();
};

struct Launch {
  std::string program;
  std::string segment;
  std::string kernel;
  LaunchOp op = LaunchOp::Write;
  std::string layer; // Layer::id; may be empty where `needsNoLayer`
  std::array<int64_t, 3> grid = {1, 1, 1};
  std::array<int64_t, 3> block = {128, 1, 1};
  int64_t sharedBytes = 0; // dynamic
  /// Of the device library's attentions.
  std::optional<Math> math;
  std::vector<Argument> arguments;
};

struct Target {
  std::string chip; // sm_90
  FileDigest ptx;
  std::optional<FileDigest> cubin;
  std::vector<Kernel> kernels;
  std::vector<Launch> launches; // in launch order; a segment's are contiguous
};

struct Manifest {
  std::string producer; // "kvcache 0.1.0"
  OptionMap options;
  Capacities capacities;
  std::vector<Layer> layers;
  std::vector<Buffer> buffers;
  std::vector<Program> programs;
  std::vector<Target> targets;

  const Layer *findLayer(std::string_view id) const;
  const Buffer *findBuffer(std::string_view name) const;
  const Program *findProgram(std::string_view name) const;
  const Target *findTarget(std::string_view chip) const;
  /// The pairs of pages that a launch copies; null if it has none.
  const Buffer *findPageCopies(const Launch &launch) const;

  /// The program of that name; with an empty name the only one, or "main",
  /// buckets aside. The error lists what there is.
  Expected<const Program *> chooseProgram(std::string_view name) const;
  /// Of `program` and its buckets the smallest that has room for a step of so
  /// many sequences and tokens; null when none has. Of a bucket it is itself.
  const Program *programFor(const Program &program, int64_t sequences,
                            int64_t tokens) const;
  /// What the grids and constants of a program's launches are made for.
  Capacities capacitiesOf(const Program &program) const;
};

/// The grid that a kernel of this structure has for these capacities, at most
/// 2^29 tokens and sequences; nothing for a kernel that others made.
std::optional<std::array<int64_t, 3>> capacityGrid(const OptionMap &structure,
                                                   const Capacities &sizes);

/// What the capacity or product of capacities that `formula` names is, or
/// nothing when it names none: "max_tokens", "num_pages * page_size", ...
std::optional<int64_t> capacityConstant(std::string_view formula,
                                        const Capacities &sizes,
                                        int64_t pageSize);

/// What a stride of pages that `formula` names is for this layer, in bytes, or
/// nothing when it names none: "k_page_stride", "v_head_stride", ...
std::optional<int64_t> strideConstant(std::string_view formula,
                                      const Manifest &manifest,
                                      const Layer &layer);

/// Gives a cache buffer other strides, in elements, the last of them 1: those
/// of the memory that will be bound. Launches, layers and digests follow. An
/// error that changes nothing: strides with which rows overlap or that are no
/// multiples of 16 bytes, a view, or kernels with the strides in their code
/// (compile with runtime-strides).
Error setStrides(Manifest &manifest, const std::string &buffer,
                 const std::vector<int64_t> &strides);

/// The scales for people: "0.0123", or "0.0123, 0.0246" for each head.
std::string scaleText(const ManifestScale &scale);

/// SHA-256 (hex) over scale bits, element type, layout, page size and
/// dimensions of a layer's cache: a prefix cache written under another digest
/// must not be read by this layer.
std::string cacheCompatibility(const Layer &layer);

/// The manifest as JSON text: members in a fixed order, two spaces of
/// indentation, the same bytes for the same manifest.
std::string writeManifest(const Manifest &manifest);

/// Everything that must hold across fields: unique names, references that
/// exist, sizes that agree with shape and strides, launch limits of CUDA, file
/// names that stay inside the bundle. The message starts with the path of the
/// offending field, e.g. "targets[0].launches[2].grid[1]: expected ...".
Error validateManifest(const Manifest &manifest);

/// Reads and validates. Refuses unknown members, wrong types, numbers out of
/// range, and every other version. `file` starts each message.
Expected<Manifest> parseManifest(std::string_view json,
                                 const std::string &file = "manifest.json");

} // namespace kvcache

#endif // KVCACHE_BUNDLE_MANIFEST_H
