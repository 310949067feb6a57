//===- Geometry.h - Launch geometry of the device kernels -----------------===//
//
// Part of the kvcache project.
//
//===----------------------------------------------------------------------===//
//
// What the kernels and whoever launches them must agree on: grids, tile shapes,
// shared memory, workspace and the choice of splits. Plain constexpr C++17
// without includes: the device library and the compiler both read this file.
//
//===----------------------------------------------------------------------===//

#ifndef KVCACHE_KERNELS_GEOMETRY_H
#define KVCACHE_KERNELS_GEOMETRY_H

namespace kvcache {
namespace kernels {

/// Values of the structural arguments `in_type`, `q_type` and `out_type`. The
/// last two are codes, for queries and attention outputs.
enum ActivationType : int {
  F16 = 0,
  BF16 = 1,
  F32 = 2,
  CodesE4M3 = 3,
  CodesE5M2 = 4
};

/// Bytes of an activation.
[[gnu::always_inline]] constexpr inline int activationBytes(int type) {
  return type >= CodesE4M3 ? 1 : type == F32 ? 4 : 2;
}

/// Values of the structural argument `cache_type`. CacheF16 and CacheBF16 are
/// not quantized. TileScaled are the rows of fp8_ds_mla, of a latent cache
/// only: e4m3 codes, an f32 scale for each 128 of them, and a rotary part in
/// bf16.
enum CacheType : int {
  E4M3 = 0,
  E5M2 = 1,
  CacheF16 = 2,
  CacheBF16 = 3,
  TileScaled = 4
};

/// Values of the structural argument `token_scales`: where a cache keeps the
/// f32 scales that the rows of a token and KV head have of their own.
enum TokenScaleStorage : int {
  NoTokenScales = 0,
  /// Behind the codes of each row.
  InlineTokenScales = 1,
  /// In side tensors [pages][page_size][kv_heads].
  SideTokenScales = 2
};

/// Values of the structural argument `math`: the numerics of decode attention.
enum Math : int {
  /// Codes and queries become f16 (bf16 over a bf16 cache), exactly where the
  /// range allows; probabilities are f16.
  MathF16 = 0,
  /// Codes are multiplied as they are; queries that are not codes become e4m3
  /// with a power of two for each row, and probabilities e4m3.
  MathFP8 = 1
};

/// True where the tensor core multiplies 8-bit floats. Elsewhere ptxas emulates
/// it, from sm_90 on: 12 conversions, two products of f16 and four additions
/// for one m16n8k32.
[[gnu::always_inline]] constexpr inline bool multipliesFP8(int arch) {
  return arch == 89 || arch >= 120;
}

/// The cache type of the same codes as an activation type.
[[gnu::always_inline]] constexpr inline int codeType(int activationType) {
  return activationType == CodesE5M2 ? E5M2 : E4M3;
}

/// Bytes of a cache element.
[[gnu::always_inline]] constexpr inline int cacheBytes(int cacheType) {
  return cacheType >= CacheF16 ? 2 : 1;
}

/// Bytes of a copy between rows with these strides of page, token and head: 16,
/// or 4 where a scale behind each row leaves no more in common.
[[gnu::always_inline]] constexpr inline int
copyWidth(long long pageStride, long long tokenStride, long long headStride) {
  return pageStride % 16 || tokenStride % 16 || headStride % 16 ? 4 : 16;
}

/// Threads of a CTA, in every kernel.
constexpr int threadsPerCta = 128;
constexpr int warpsPerCta = threadsPerCta / 32;

/// Columns of one MMA N tile. A column is one query head of one query row.
constexpr int columnsPerTile = 8;

/// Largest number of query heads that share one KV head.
constexpr int maxGroup = 128;

/// Query rows of one sequence that a CTA may take.
constexpr int maxRowsPerCta = 8;

/// Upper bound of `num_splits`.
constexpr int maxSplits = 64;

/// Fixed cost of a CTA in main-loop iterations. Counted in SASS for sm_90:
/// about 520 instructions before the loop, 93 for the first reference and 230
/// in the merge, against 298 an iteration.
constexpr double fixedIterations = 2.8;

[[gnu::always_inline]] constexpr inline int ceilDiv(int a, int b) {
  return (a + b - 1) / b;
}
[[gnu::always_inline]] constexpr inline int maxOf(int a, int b) {
  return a > b ? a : b;
}
[[gnu::always_inline]] constexpr inline int minOf(int a, int b) {
  return a < b ? a : b;
}

//===----------------------------------------------------------------------===//
// Machines
//===----------------------------------------------------------------------===//

/// What the choice of tiles and splits needs to know of an architecture.
struct Machine {
  int multiprocessors; // of the card the defaults aim at
  int sharedPerSM;     // bytes
  int sharedPerCta;    // bytes, with the opt-in attribute
  int reservedPerCta;  // bytes the driver takes from each CTA
  bool convertsFP8;    // cvt between f16x2/f32 and e4m3x2 exists
};

/// `arch` is 10 * major + minor of the compute capability: 80, 86, 89, 90, ...
/// Sources: CUDA C++ Programming Guide, table "Technical Specifications per
/// Compute Capability"; multiprocessors of A100, RTX 3090, L40S, H100/H200
/// SXM, B200, RTX 5090.
constexpr Machine machineOf(int arch) {
  if (arch >= 120)
    return {170, 102400, 101376, 1024, true};
  if (arch >= 100)
    return {148, 233472, 232448, 1024, true};
  if (arch >= 90)
    return {132, 233472, 232448, 1024, true};
  if (arch >= 89)
    return {142, 102400, 101376, 1024, true};
  if (arch >= 86)
    return {82, 102400, 101376, 1024, false};
  return {108, 167936, 166912, 1024, false};
}

/// PTX version, 10 * major + minor, that has the kernels' instructions on an
/// architecture: movmatrix needs 7.8, products of e4m3 8.4. LLVM's own choice
/// for sm_80 (7.0) and sm_89 (7.8) is older, so pass it as `+ptxN`.
[[gnu::always_inline]] constexpr inline int ptxVersion(int arch) {
  if (arch >= 120)
    return 87;
  if (arch >= 100)
    return 86;
  return arch == 89 ? 84 : 78;
}

//===----------------------------------------------------------------------===//
// Write
//===----------------------------------------------------------------------===//

/// Elements a thread quantizes at once: one 16-byte store.
constexpr int writeElements = 16;

/// 16-element units of one token, K and V together.
[[gnu::always_inline]] constexpr inline int writeUnits(int kvHeads, int headDim,
                                                       int vHeadDim) {
  return kvHeads * (headDim + vHeadDim) / writeElements;
}

/// Tokens one CTA of the write kernel takes.
[[gnu::always_inline]] constexpr inline int
writeTokensPerCta(int kvHeads, int headDim, int vHeadDim) {
  return maxOf(1, threadsPerCta / writeUnits(kvHeads, headDim, vHeadDim));
}

/// grid.x of the write kernel; grid.y = grid.z = 1.
[[gnu::always_inline]] constexpr inline int
writeGrid(int maxTokens, int kvHeads, int headDim, int vHeadDim) {
  return ceilDiv(maxTokens, writeTokensPerCta(kvHeads, headDim, vHeadDim));
}

/// grid.y of the write kernel: with a scale for each KV head, a CTA looks after
/// one of them, and grid.x is that of one head.
[[gnu::always_inline]] constexpr inline int writeGridY(int kvHeads,
                                                       bool perHead) {
  return perHead ? kvHeads : 1;
}

/// Threads of a row of one token and KV head, of K or of V, in the write that
/// computes its scale: a power of two, so that a row lies in one warp.
[[gnu::always_inline]] constexpr inline int tokenScaledLanes(int headDim,
                                                             int vHeadDim) {
  const int units = maxOf(headDim, vHeadDim) / writeElements;
  return units > 16 ? 32 : units > 8 ? 16 : units > 4 ? 8 : 4;
}

/// grid.x of that write; grid.y = grid.z = 1.
[[gnu::always_inline]] constexpr inline int
tokenScaledWriteGrid(int maxTokens, int kvHeads, int headDim, int vHeadDim) {
  // Of a CTA.
  const int rows = threadsPerCta / tokenScaledLanes(headDim, vHeadDim);
  return ceilDiv(2 * kvHeads * maxTokens, rows);
}

/// True if the write kernel exists for these constants. Strides are in bytes;
/// stores of `width` bytes need them, and the base addresses, to be multiples
/// of it: 16, or 4 for rows that end in their scale.
constexpr bool writeIsLegal(int kvHeads, int headDim, int pageSize,
                            long long pageStride, int tokenStride,
                            int headStride, int width = 16) {
  return kvHeads >= 1 && headDim >= 16 && headDim % 16 == 0 && pageSize >= 1 &&
         (pageSize & (pageSize - 1)) == 0 && pageStride % width == 0 &&
         tokenStride % width == 0 && headStride % width == 0;
}

/// Bytes of a latent row (MLA).
[[gnu::always_inline]] constexpr inline int
latentRowBytes(int cacheType, int latentDim, int ropeDim) {
  return cacheType == TileScaled
             ? latentDim + latentDim / 32 + 2 * ropeDim
             : (latentDim + ropeDim) * (cacheType >= CacheF16 ? 2 : 1);
}

/// Threads of a token in the write of latent rows: a power of two, so that the
/// tiles of 128 elements lie in eight lanes of a warp each.
[[gnu::always_inline]] constexpr inline int latentWriteLanes(int latentDim,
                                                             int ropeDim) {
  return (latentDim + ropeDim) / writeElements > 32 ? 64 : 32;
}

/// grid.x of the write of latent rows; grid.y = grid.z = 1.
[[gnu::always_inline]] constexpr inline int
latentWriteGrid(int maxTokens, int latentDim, int ropeDim) {
  return ceilDiv(maxTokens,
                 threadsPerCta / latentWriteLanes(latentDim, ropeDim));
}

/// What is wrong with the constants of a latent cache, for writes and for
/// attention; null if nothing. Strides are in bytes.
constexpr const char *latentProblem(int cacheType, int latentDim, int ropeDim,
                                    int pageSize, long long pageStride,
                                    int tokenStride) {
  if ((latentDim != 512 && latentDim != 256) || ropeDim != 64)
    return "a latent row has 512 + 64 or 256 + 64 elements";
  if (cacheType == TileScaled && latentDim != 512)
    return "fp8_ds_mla rows have 512 + 64 elements";
  if (pageSize < 1 || (pageSize & (pageSize - 1)) != 0)
    return "the page size must be a power of two";
  if (pageStride < 0 || pageStride % 16 != 0 || tokenStride % 16 != 0 ||
      tokenStride < latentRowBytes(cacheType, latentDim, ropeDim))
    return "the strides of latent rows must be multiples of 16 bytes, and of "
           "tokens a row at least";
  return nullptr;
}

/// grid.x of the kernels that take 16 elements a thread.
constexpr int elementwiseGrid(long long elements) {
  return static_cast<int>((elements + threadsPerCta * writeElements - 1) /
                          (threadsPerCta * writeElements));
}

/// Whether the rows of a pool lie apart with these strides of page, token and
/// head, in units of `width`, the size of a row. The dimension with the smaller
/// stride lies inside the other.
constexpr bool rowsAreApart(long long pageStride, long long tokenStride,
                            long long headStride, long long pageSize,
                            long long kvHeads, long long width) {
  // No pool is that large; sums and products stay far from 2^63.
  constexpr long long most = 1ll << 36;
  if (pageStride <= 0 || tokenStride <= 0 || headStride <= 0 ||
      pageStride > most || tokenStride > most || headStride > most)
    return false;
  const bool headsInside = headStride <= tokenStride;
  const long long inner = headsInside ? headStride : tokenStride,
                  outer = headsInside ? tokenStride : headStride,
                  innerSize = headsInside ? kvHeads : pageSize,
                  outerSize = headsInside ? pageSize : kvHeads;
  if (innerSize > 1 && inner < width)
    return false;
  const long long extent = width + inner * (innerSize - 1);
  if (outerSize > 1 && outer < extent)
    return false;
  return pageStride >= extent + outer * (outerSize - 1);
}

/// Units of the rows of a page that a copy of pages moves at once.
[[gnu::always_inline]] constexpr inline int copyUnits(int kvHeads, int rowBytes,
                                                      int pageSize) {
  return kvHeads * pageSize * (rowBytes / copyWidth(0, 0, rowBytes));
}

//===----------------------------------------------------------------------===//
// Paged attention
//===----------------------------------------------------------------------===//

/// True where the attention kernel exists for a head dim, of K or of V. They
/// are independent: scores take `headDim` elements of a row of K, outputs have
/// the `vHeadDim` of V.
[[gnu::always_inline]] constexpr inline bool headDimIsLegal(int headDim) {
  return headDim == 64 || headDim == 80 || headDim == 96 || headDim == 112 ||
         headDim == 128 || headDim == 192 || headDim == 256;
}

/// MMA N tiles for so many columns.
[[gnu::always_inline]] constexpr inline int tilesN(int columns) {
  return ceilDiv(columns, columnsPerTile);
}

/// The most N tiles of one CTA: the output of a warp takes
/// tilesN * vHeadDim / 4 registers, 128 at most.
[[gnu::always_inline]] constexpr inline int maxTilesNOf(int vHeadDim) {
  return minOf(4, 512 / vHeadDim);
}

/// Query heads of one CTA. A group whose heads (times the rows of a CTA) need
/// more N tiles than fit is cut into equal blocks, a CTA each.
[[gnu::always_inline]] constexpr inline int headsPerCta(int group, int rows,
                                                        int vHeadDim) {
  int most = maxOf(1, columnsPerTile * maxTilesNOf(vHeadDim) / rows);
  return ceilDiv(group, ceilDiv(group, most));
}

/// Columns of one CTA.
[[gnu::always_inline]] constexpr inline int columnsPerCta(int group, int rows,
                                                          int vHeadDim) {
  return rows * headsPerCta(group, rows, vHeadDim);
}

/// Query rows that a CTA takes from one sequence, so that they share the loads
/// of K and V: the rows that a sequence has when all are in use, up to 8, as
/// far as the columns reach. 1 when there is a sequence for each row.
constexpr int chooseRows(int group, int vHeadDim, int maxTokens,
                         int maxSequences) {
  int wanted = minOf(ceilDiv(maxTokens, maxOf(1, maxSequences)), maxRowsPerCta);
  int rows = 1;
  while (rows < wanted &&
         2 * rows * group <= columnsPerTile * maxTilesNOf(vHeadDim))
    rows *= 2;
  return rows;
}

/// Blocks of query rows: grid.y. Block b of a sequence s that starts at row q
/// has the index q / rows + s + b, which needs no look at other sequences and
/// leaves some CTAs without work.
[[gnu::always_inline]] constexpr inline int
rowBlocks(int maxTokens, int maxSequences, int rows) {
  return rows == 1 ? maxTokens : maxTokens / rows + maxSequences;
}

/// Bytes between rows (tokens) in shared memory: an odd number of 16-byte
/// units, which makes ldmatrix and cp.async free of bank conflicts.
[[gnu::always_inline]] constexpr inline int rowPitch(int headDim,
                                                     int elementBytes) {
  return headDim * elementBytes + (headDim * elementBytes / 16 % 2 ? 0 : 16);
}

/// Bytes of one ring stage of one warp: K rows, then V rows, and where tokens
/// have scales those of K and of V.
[[gnu::always_inline]] constexpr inline int
stageBytes(int headDim, int vHeadDim, int elementBytes, int tile,
           bool tokenScales = false) {
  return tile * (rowPitch(headDim, elementBytes) +
                 rowPitch(vHeadDim, elementBytes) + (tokenScales ? 8 : 0));
}

/// f32 queries are the sum of two f16.
[[gnu::always_inline]] constexpr inline int queryTerms(int queryType,
                                                       int math = MathF16) {
  return queryType == F32 && math == MathF16 ? 2 : 1;
}

/// Registers of a term of the queries of one N tile.
[[gnu::always_inline]] constexpr inline int queryRegisters(int headDim,
                                                           int math = MathF16) {
  return headDim / (math == MathFP8 ? 16 : 8);
}

/// Beyond 32 registers queries stay in shared memory.
[[gnu::always_inline]] constexpr inline bool
queriesInShared(int headDim, int columns, int queryType, int math = MathF16) {
  return tilesN(columns) * queryRegisters(headDim, math) *
             queryTerms(queryType, math) >
         32;
}

/// Shared memory of the queries, in front of the rings: for each N tile and
/// term 512 bytes for four registers, then the score factors of the columns.
[[gnu::always_inline]] constexpr inline int
queryBytes(int headDim, int columns, int queryType, int math = MathF16) {
  return queriesInShared(headDim, columns, queryType, math)
             ? tilesN(columns) *
                   (queryTerms(queryType, math) *
                        ceilDiv(queryRegisters(headDim, math), 4) * 512 +
                    columnsPerTile * 4)
             : 0;
}

/// Floats between columns in the merge buffer of the four warps.
[[gnu::always_inline]] constexpr inline int mergePitch(int vHeadDim) {
  return vHeadDim + 4;
}

/// Dynamic shared memory of a CTA: queries, then the rings. The rings are dead
/// when the warps merge; the merge buffer takes their place: f32 partials,
/// (reference, sum) per warp and column, and one word that tells whether this
/// CTA arrived last.
[[gnu::always_inline]] constexpr inline int
dynamicSharedBytes(int headDim, int vHeadDim, int elementBytes, int columns,
                   int queryType, int tile, int stages, int math = MathF16,
                   bool tokenScales = false) {
  return queryBytes(headDim, columns, queryType, math) +
         maxOf(
             warpsPerCta * stages *
                 stageBytes(headDim, vHeadDim, elementBytes, tile, tokenScales),
             warpsPerCta * tilesN(columns) * columnsPerTile *
                     (mergePitch(vHeadDim) + 2) * 4 +
                 16);
}

/// Bytes of K and V that one iteration of a warp's main loop consumes.
constexpr int kvBytesPerIteration(int headDim, int vHeadDim, int elementBytes,
                                  int tile) {
  return tile * (headDim + vHeadDim) * elementBytes;
}

/// CTAs that fit on a multiprocessor by shared memory.
constexpr int ctasPerSM(int arch, int sharedBytes) {
  return machineOf(arch).sharedPerSM /
         (sharedBytes + machineOf(arch).reservedPerCta);
}

/// KV bytes in flight on a multiprocessor when a warp waits for its oldest
/// stage: one stage is awaited, `stages - 2` younger ones are outstanding.
constexpr int bytesInFlight(int arch, int headDim, int vHeadDim,
                            int elementBytes, int columns, int queryType,
                            int tile, int stages, int math = MathF16,
                            bool tokenScales = false) {
  return ctasPerSM(arch, dynamicSharedBytes(headDim, vHeadDim, elementBytes,
                                            columns, queryType, tile, stages,
                                            math, tokenScales)) *
         warpsPerCta * (stages - 1) *
         kvBytesPerIteration(headDim, vHeadDim, elementBytes, tile);
}

/// The structural constants that are free to choose.
struct AttentionTuning {
  int tile;         // tokens a warp takes at once: 16 or 32
  int stages;       // depth of a warp's ring: 2 to 6
  int unroll;       // 1, or `stages`
  int minCtasPerSM; // for nvvm.minctasm
  const char *why;  // the tile, for people
};

/// Default tuning, by the longer of the rows of K and V. Tiles of 32 tokens
/// need the fewest instructions per byte; the stages fill the shared memory of
/// two CTAs (three for rows of 64 bytes). Rows above 128 bytes, and more
/// columns than the registers hold beside two tiles of scores, take tiles
/// of 16. So do rows of 65 to 128 bytes on sm_80, where FP8 is converted by
/// long integer code: half of it to compile and more bytes on their way, for 4
/// % more instructions. 99 KB machines have room for one CTA.
constexpr AttentionTuning attentionDefaults(int arch, int headDim, int vHeadDim,
                                            int elementBytes, int columns,
                                            int queryType, int pageSize,
                                            int math = MathF16,
                                            bool tokenScales = false) {
  const int rowBytes = maxOf(headDim, vHeadDim) * elementBytes;
  const int limit = machineOf(arch).sharedPerCta;
  bool small = limit < 128 * 1024;
  AttentionTuning tuning = {32, 2, 1, 2, ""};
  if (rowBytes <= 64) {
    tuning = {32, small ? 4 : 3, 1, small ? 1 : 2,
              "for rows of at most 64 bytes"};
    if (arch >= 90 && !small && tilesN(columns) == 1)
      tuning.minCtasPerSM = 3;
  } else if (rowBytes <= 128 && !small) {
    tuning = arch >= 90
                 ? AttentionTuning{32, 3, 1, 2, "for rows of 65 to 128 bytes"}
                 : AttentionTuning{16, 4, 1, 2,
                                   "for rows of 65 to 128 bytes on "
                                   "sm_80"};
  } else if (rowBytes <= 128) {
    tuning = {32, rowBytes < 128 ? 3 : 2, 1, 1,
              "for rows of 65 to 128 bytes in 99 KB"};
  } else {
    tuning = {16, rowBytes > 256 && small ? 2 : 3, 1, 2,
              "for rows of more than 128 bytes"};
  }
  if (tilesN(columns) > 2 || pageSize < 8) {
    tuning.tile = 16;
    tuning.why = tilesN(columns) > 2 ? "for more than 16 columns"
                                     : "for pages of fewer than 8 tokens";
  }
  while (tuning.stages > 2 &&
         dynamicSharedBytes(headDim, vHeadDim, elementBytes, columns, queryType,
                            tuning.tile, tuning.stages, math,
                            tokenScales) > limit)
    --tuning.stages;
  int fit =
      ctasPerSM(arch, dynamicSharedBytes(headDim, vHeadDim, elementBytes,
                                         columns, queryType, tuning.tile,
                                         tuning.stages, math, tokenScales));
  tuning.minCtasPerSM = maxOf(1, minOf(tuning.minCtasPerSM, fit));
  return tuning;
}

/// The smallest unit of a split: whole pages, and one tile for every warp.
[[gnu::always_inline]] constexpr inline int splitGranule(int tile,
                                                         int pageSize) {
  return maxOf(warpsPerCta * tile, pageSize);
}

/// Tokens that each split of a row with `keys` keys takes. `split_tokens` is
/// the least amount of work worth a CTA of its own; beyond
/// `split_tokens * num_splits` keys the share grows in the same steps, so any
/// length is covered. Called on the device, for every row.
[[gnu::always_inline]] constexpr inline int
tokensPerSplit(int keys, int splitTokens, int numSplits) {
  if (numSplits == 1)
    return keys;
  return ceilDiv(ceilDiv(keys, numSplits), splitTokens) * splitTokens;
}

/// What stands against fp8-math; null if nothing.
constexpr const char *fp8MathProblem(int arch, int cacheType) {
  if (cacheBytes(cacheType) != 1)
    return "fp8-math multiplies the codes of an FP8 cache, and this cache is "
           "not quantized";
  if (arch < 89)
    return "fp8-math needs tensor cores that multiply e4m3, as sm_89 and "
           "sm_120 have them";
  if (!multipliesFP8(arch))
    return "the mma of e4m3 is emulated here, with more instructions than "
           "f16-math takes; sm_89 and sm_120 have it";
  return nullptr;
}

/// What is wrong with the constants of an attention kernel; null if nothing.
/// The compiler refuses everything else.
constexpr const char *attentionProblem(int arch, int queryType, int cacheType,
                                       int queryHeads, int kvHeads, int headDim,
                                       int vHeadDim, int pageSize, int rows,
                                       int tile, int stages, int unroll,
                                       int splitTokens, int numSplits,
                                       bool hasWindow, int math = MathF16,
                                       bool tokenScales = false) {
  if (kvHeads < 1 || queryHeads < kvHeads || queryHeads % kvHeads != 0 ||
      queryHeads / kvHeads > maxGroup)
    return "the query heads must be a multiple of the KV heads, 128 times as "
           "many at most";
  if (!headDimIsLegal(headDim) || !headDimIsLegal(vHeadDim))
    return "the head dims must be 64, 80, 96, 112, 128, 192 or 256";
  if (pageSize < 1 || (pageSize & (pageSize - 1)) != 0)
    return "the page size must be a power of two";
  if (cacheType >= CacheF16 && queryType < CodesE4M3 &&
      queryType != (cacheType == CacheF16 ? F16 : BF16))
    return "a cache that is not quantized takes queries of its own type, or "
           "FP8 queries";
  if (math == MathFP8)
    if (const char *problem = fp8MathProblem(arch, cacheType))
      return problem;
  if (rows < 1 || rows > maxRowsPerCta)
    return "a CTA takes 1 to 8 query rows";
  int group = queryHeads / kvHeads;
  int columns = columnsPerCta(group, rows, vHeadDim);
  if (tilesN(columns) > maxTilesNOf(vHeadDim))
    return "rows times heads of a CTA exceed its registers";
  if ((tile != 16 && tile != 32) || stages < 2 || stages > 6)
    return "tiles have 16 or 32 tokens, rings 2 to 6 stages";
  if (unroll != 1 && (unroll != stages || hasWindow))
    return "the main loop is unrolled by 1, or without a window by the stages";
  if (numSplits < 1 || numSplits > maxSplits)
    return "there are 1 to 64 splits";
  if (splitTokens <= 0 || splitTokens % splitGranule(tile, pageSize) != 0)
    return "a split takes whole pages and whole tiles of the four warps";
  if (dynamicSharedBytes(headDim, vHeadDim, cacheBytes(cacheType), columns,
                         queryType, tile, stages, math,
                         tokenScales) > machineOf(arch).sharedPerCta)
    return "the rings exceed the shared memory of a CTA";
  return nullptr;
}

/// Strides of K or V pages, in bytes: copies are `width` bytes wide, 16 or of
/// rows that end in their scale 4, so strides and base addresses are multiples
/// of it.
constexpr bool attentionStridesAreLegal(long long pageStride, int tokenStride,
                                        int headStride, int width = 16) {
  return pageStride >= 0 && tokenStride > 0 && headStride >= 0 &&
         pageStride % width == 0 && tokenStride % width == 0 &&
         headStride % width == 0;
}

/// Grid of the attention kernel: x here, y = rowBlocks, z = splits. y is
/// limited to 65535 by the hardware.
constexpr int attentionGridX(int queryHeads, int kvHeads, int rows,
                             int vHeadDim) {
  int group = queryHeads / kvHeads;
  return kvHeads * ceilDiv(group, headsPerCta(group, rows, vHeadDim));
}
constexpr int maxRows = 65535;

/// Floats of one partial result: O of all columns of the CTA, then pairs
/// (reference in log2 units, sum), padded to 16 bytes.
[[gnu::always_inline]] constexpr inline int partialFloats(int vHeadDim,
                                                          int columns) {
  return columns * vHeadDim + (columns + 1) / 2 * 4;
}

/// Bytes of the workspace `partials`; 0 with one split (the pointer may be
/// null then). Order: [grid y][grid x][split][partialFloats]. 16-byte aligned.
constexpr long long partialsBytes(int gridX, int gridY, int columns,
                                  int vHeadDim, int numSplits) {
  return numSplits == 1 ? 0
                        : 4ll * gridX * gridY * numSplits *
                              partialFloats(vHeadDim, columns);
}

/// Bytes of the workspace `counters`, [grid y][grid x] u32; 0 with one split.
/// Zero before the first launch; every launch leaves zeros.
constexpr long long countersBytes(int gridX, int gridY, int numSplits) {
  return numSplits == 1 ? 0 : 4ll * gridX * gridY;
}

//===----------------------------------------------------------------------===//
// Prefill
//===----------------------------------------------------------------------===//

/// Keys that a CTA of the prefill kernel takes at once.
constexpr int prefillTile = 64;

/// Keys of one step of a warp over a tile: they share what is done once a step,
/// and the loads of queries from shared memory.
constexpr int prefillStep = 32;

/// Query rows of a warp: as many as fill its columns with the heads of a block.
[[gnu::always_inline]] constexpr inline int prefillRowsPerWarp(int group,
                                                               int vHeadDim) {
  return maxOf(1, columnsPerTile * maxTilesNOf(vHeadDim) /
                      headsPerCta(group, 1, vHeadDim));
}
[[gnu::always_inline]] constexpr inline int prefillColumns(int group,
                                                           int vHeadDim) {
  return prefillRowsPerWarp(group, vHeadDim) * headsPerCta(group, 1, vHeadDim);
}

/// Query rows of a CTA. Grid: attentionGridX of one row, rowBlocks of these.
constexpr int prefillRows(int group, int vHeadDim, int warps) {
  return warps * prefillRowsPerWarp(group, vHeadDim);
}

/// MMA M tiles for so many columns: prefill has them on the M side.
[[gnu::always_inline]] constexpr inline int rowTiles(int columns) {
  return ceilDiv(columns, 16);
}

/// Shared memory of the queries of a warp: for each M tile, term and 16 dims
/// 512 bytes, then the score factors of the columns.
[[gnu::always_inline]] constexpr inline int
rowQueryBytes(int headDim, int columns, int queryType) {
  return rowTiles(columns) * (queryTerms(queryType) * headDim * 32 + 64);
}

/// Shared memory of the prefill kernel: queries of each warp, K and V of a tile
/// in f16, and the codes of two tiles. The results of the warps take the place
/// of the tiles. Behind them, what a CTA keeps for the end, and a word that
/// tells whether it arrived last.
[[gnu::always_inline]] constexpr inline int
prefillSharedBytes(int headDim, int vHeadDim, int columns, int queryType,
                   int warps) {
  return warps * rowQueryBytes(headDim, columns, queryType) +
         maxOf(prefillTile * (rowPitch(headDim, 2) + rowPitch(vHeadDim, 2)) +
                   2 * prefillTile * (headDim + vHeadDim),
               warps * tilesN(columns) * columnsPerTile *
                   (mergePitch(vHeadDim) + 2) * 4) +
         32;
}

/// Warps of a prefill CTA: 8 share the work of copying and converting a tile,
/// or 4 or 2 where the shared memory does not hold the queries of 8. 0 where
/// the kernel does not exist: for caches that are not quantized, or no room.
constexpr int prefillWarps(int arch, int queryType, int cacheType,
                           int queryHeads, int kvHeads, int headDim,
                           int vHeadDim, int pageSize) {
  if (cacheBytes(cacheType) != 1 || !headDimIsLegal(headDim) ||
      !headDimIsLegal(vHeadDim) || kvHeads < 1 || queryHeads % kvHeads != 0 ||
      queryHeads / kvHeads < 1 || queryHeads / kvHeads > maxGroup ||
      pageSize < 1 || (pageSize & (pageSize - 1)) != 0)
    return 0;
  int columns = prefillColumns(queryHeads / kvHeads, vHeadDim);
  int limit = machineOf(arch).sharedPerCta;
  for (int warps = 8; warps >= 2; warps /= 2)
    if (prefillSharedBytes(headDim, vHeadDim, columns, queryType, warps) <=
        limit)
      return warps;
  return 0;
}

//===----------------------------------------------------------------------===//
// MLA
//===----------------------------------------------------------------------===//

/// Threads of an MLA CTA. Its warps share the tile: for the scores they divide
/// the columns, the tokens and the two halves of the row, for the output the
/// latent dims.
constexpr int mlaThreads = 256;
constexpr int mlaWarps = mlaThreads / 32;

/// The most columns of an MLA CTA: the output takes columns * latentDim / 256
/// registers, 128 at most. Queries of f32 take twice the registers of others.
constexpr int maxMlaColumns = 64;
[[gnu::always_inline]] constexpr inline int mlaColumnLimit(int queryType) {
  return maxMlaColumns / queryTerms(queryType);
}

/// Query heads of one MLA CTA; more heads are cut into equal blocks.
[[gnu::always_inline]] constexpr inline int mlaHeadsPerCta(int heads, int rows,
                                                           int queryType) {
  return ceilDiv(heads,
                 ceilDiv(heads, maxOf(1, mlaColumnLimit(queryType) / rows)));
}
[[gnu::always_inline]] constexpr inline int mlaColumns(int heads, int rows,
                                                       int queryType) {
  return rows * mlaHeadsPerCta(heads, rows, queryType);
}
/// Columns in the products: 8, 16, 32 or 64. What is more than mlaColumns is
/// zero.
[[gnu::always_inline]] constexpr inline int mlaPadded(int columns) {
  return columns > 32 ? 64 : columns > 16 ? 32 : columns > 8 ? 16 : 8;
}

/// Query rows of one sequence that an MLA CTA takes: see chooseRows.
constexpr int chooseMlaRows(int heads, int maxTokens, int maxSequences,
                            int queryType) {
  int wanted = minOf(ceilDiv(maxTokens, maxOf(1, maxSequences)), maxRowsPerCta);
  int rows = 1;
  while (rows < wanted && 2 * rows * heads <= mlaColumnLimit(queryType))
    rows *= 2;
  return rows;
}

/// Bytes between the rows of a ring stage. Rows of 8-bit codes are taken by
/// four lanes at a time, hence half a line of 128 bytes apart; rows of 16 bits
/// are what the products read.
[[gnu::always_inline]] constexpr inline int
mlaStagePitch(int cacheType, int latentDim, int ropeDim) {
  const int bytes = latentRowBytes(cacheType, latentDim, ropeDim);
  return cacheType == CacheF16 || cacheType == CacheBF16
             ? rowPitch(latentDim + ropeDim, 2)
             : (bytes + 63) / 128 * 128 + 64;
}
/// Bytes of a tile of 16-bit rows beside the ring: codes are converted into it.
[[gnu::always_inline]] constexpr inline int
mlaTileBytes(int cacheType, int latentDim, int ropeDim, int tile) {
  return cacheType == CacheF16 || cacheType == CacheBF16
             ? 0
             : tile * rowPitch(latentDim + ropeDim, 2);
}
/// Bytes of the probabilities of a tile, [token][column] of 16 bits. They are
/// multiplied by the scales of TileScaled rows, four of them.
[[gnu::always_inline]] constexpr inline int
mlaProbBytes(int cacheType, int latentDim, int columns, int tile) {
  return (cacheType == TileScaled ? latentDim / 128 : 1) * tile *
         rowPitch(mlaPadded(columns), 2);
}

/// Chunks of 16 dims of a warp's queries that stay in shared memory. A warp has
/// 16 columns and half a row; beside the output of 64 columns the registers do
/// not hold all of it: what converts codes needs more of them.
[[gnu::always_inline]] constexpr inline int
mlaSharedChunks(int arch, int cacheType, int latentDim, int columns, int tile) {
  if (mlaPadded(columns) * latentDim < 64 * 512)
    return 0;
  if (machineOf(arch).sharedPerCta < 128 * 1024)
    return 3;
  return cacheType == CacheF16 || cacheType == CacheBF16 ? 6
         : tile == 64                                    ? 12
                                                         : 10;
}

/// Dynamic shared memory of an MLA CTA: the tile, the ring, queries,
/// probabilities, halves of scores on their way to the warp that sums them, and
/// four f32 for each column. After the last tile the output takes their place,
/// 16 columns at a time.
[[gnu::always_inline]] constexpr inline int
mlaSharedBytes(int arch, int cacheType, int latentDim, int ropeDim, int columns,
               int tile, int stages) {
  return mlaTileBytes(cacheType, latentDim, ropeDim, tile) +
         stages * tile * mlaStagePitch(cacheType, latentDim, ropeDim) +
         mlaWarps * 512 *
             mlaSharedChunks(arch, cacheType, latentDim, columns, tile) +
         mlaProbBytes(cacheType, latentDim, columns, tile) +
         4 * tile * mlaPadded(columns) + 16 * mlaPadded(columns) + 32;
}

/// Tile and depth of the ring of an MLA kernel.
struct MlaTuning {
  int tile, stages;
};

/// Default tuning: tiles of 64 tokens, so that the barriers are few, where they
/// and two stages fit, else of 32. The ring is as deep as the shared memory
/// allows, five stages at most.
constexpr MlaTuning mlaDefaults(int arch, int cacheType, int latentDim,
                                int ropeDim, int columns) {
  const bool codes = mlaTileBytes(cacheType, latentDim, ropeDim, 32) != 0;
  for (int tile = codes ? 64 : 32; tile >= 32; tile /= 2) {
    for (int stages = 5; stages >= 2; --stages) {
      if (mlaSharedBytes(arch, cacheType, latentDim, ropeDim, columns, tile,
                         stages) <= machineOf(arch).sharedPerCta)
        return {tile, stages};
    }
  }
  return {32, 2};
}

/// What is wrong with the constants of an MLA kernel beside those of its cache;
/// null if nothing.
constexpr const char *mlaProblem(int arch, int queryType, int cacheType,
                                 int heads, int latentDim, int ropeDim,
                                 int rows, int tile, int stages,
                                 int splitTokens, int numSplits) {
  if (heads < 1 || heads > maxGroup)
    return "there are 1 to 128 query heads";
  if (cacheType >= CacheF16 && queryType < CodesE4M3 &&
      queryType != (cacheType == CacheF16 ? F16 : BF16))
    return "a latent cache with 16-bit elements or tile scales takes queries "
           "of its own type, bf16 for fp8_ds_mla, or FP8";
  if (rows < 1 || rows > maxRowsPerCta ||
      (rows > 1 && rows * heads > mlaColumnLimit(queryType)))
    return "a CTA takes 1 to 8 query rows, and 64 columns, of f32 queries 32";
  if ((tile != 32 && tile != 64) || stages < 2 || stages > 5)
    return "tiles have 32 or 64 tokens, rings 2 to 5 stages";
  if (tile != 32 && mlaTileBytes(cacheType, latentDim, ropeDim, tile) == 0)
    return "tiles of a latent cache of 16 bits have 32 tokens";
  if (numSplits < 1 || numSplits > maxSplits)
    return "there are 1 to 64 splits";
  if (splitTokens <= 0 || splitTokens % tile != 0)
    return "a split takes whole tiles";
  if (mlaSharedBytes(arch, cacheType, latentDim, ropeDim,
                     mlaColumns(heads, rows, queryType), tile,
                     stages) > machineOf(arch).sharedPerCta)
    return "the tiles exceed the shared memory of a CTA";
  return nullptr;
}

//===----------------------------------------------------------------------===//
// Grids
//===----------------------------------------------------------------------===//

/// A grid is a function of a kernel's structure and of capacities, so one graph
/// serves all lengths; blocks that find nothing to do return.
struct Grid {
  int x, y, z;
};

constexpr Grid writeLaunchGrid(int maxTokens, int kvHeads, int headDim,
                               int vHeadDim, bool perHead) {
  return {writeGrid(maxTokens, perHead ? 1 : kvHeads, headDim, vHeadDim),
          writeGridY(kvHeads, perHead), 1};
}

/// Of the copies of `pairs` pages; `units` are those of K and V.
constexpr Grid copyPagesGrid(int pairs, int units) {
  return {pairs, ceilDiv(units, threadsPerCta), 1};
}

constexpr Grid attentionLaunchGrid(int maxTokens, int maxSequences,
                                   int queryHeads, int kvHeads, int vHeadDim,
                                   int rows, int numSplits) {
  return {attentionGridX(queryHeads, kvHeads, rows, vHeadDim),
          rowBlocks(maxTokens, maxSequences, rows), numSplits};
}

constexpr Grid prefillLaunchGrid(int maxTokens, int maxSequences,
                                 int queryHeads, int kvHeads, int vHeadDim,
                                 int warps, int numSplits) {
  return {attentionGridX(queryHeads, kvHeads, 1, vHeadDim),
          rowBlocks(maxTokens, maxSequences,
                    prefillRows(queryHeads / kvHeads, vHeadDim, warps)),
          numSplits};
}

constexpr Grid mlaLaunchGrid(int maxTokens, int maxSequences, int heads,
                             int rows, int numSplits, int queryType) {
  return {ceilDiv(heads, mlaHeadsPerCta(heads, rows, queryType)),
          rowBlocks(maxTokens, maxSequences, rows), numSplits};
}

struct SplitChoice {
  int splitTokens;
  int numSplits;
};

/// Splits from capacities alone. With n splits the launch has
/// `gridX * gridY * n` CTAs, hence `waves = ceil(CTAs / resident CTAs)`, and
/// takes about
///
///     waves * (ceil(capacity / n / tokens per iteration) + 2.8) + merge(n)
///
/// iterations, where merge(n) = n > 1 ? 0.5 + n * mergePerSplit : 0: reading a
/// partial of 8 heads moves an eighth of the bytes of an iteration of four
/// warps. The smallest cost wins, fewer splits at ties. The unit `splitTokens`
/// is two iterations, so that the fixed cost does not dominate a live split.
/// `keys` is the most that a row can see: the capacity of its pages or the
/// window. `sharedBytes` is that of the launch.
constexpr SplitChoice chooseSplits(int arch, int sharedBytes, int pageSize,
                                   int tile, int gridX, int gridY,
                                   long long keys, double mergePerSplit = 0.125,
                                   int most = maxSplits) {
  long long resident =
      static_cast<long long>(maxOf(1, ctasPerSM(arch, sharedBytes))) *
      machineOf(arch).multiprocessors;
  long long ctas = static_cast<long long>(gridX) * gridY;
  long long capacity = keys;
  int granule = 2 * splitGranule(tile, pageSize);
  int perIteration = warpsPerCta * tile;
  int best = 1;
  double bestCost = 0;
  for (int n = 1; n <= most; ++n) {
    // Splits that the step of `splitTokens` leaves without work are no use.
    if (n > 1 && (capacity + granule - 1) / granule < n)
      break;
    long long share = (capacity + n - 1) / n;
    long long iterations = (share + perIteration - 1) / perIteration;
    long long waves = (ctas * n + resident - 1) / resident;
    double cost = static_cast<double>(waves) *
                      (static_cast<double>(iterations) + fixedIterations) +
                  (n > 1 ? 0.5 + n * mergePerSplit : 0.0);
    if (n == 1 || cost < bestCost) {
      best = n;
      bestCost = cost;
    }
  }
  return {granule, best};
}

/// The same for MLA, whose splits take whole tiles: all warps of a CTA share a
/// tile, and look up the page of each token. A partial of 64 columns is counted
/// as one iteration: it has 128 KiB, which L2 gives in half the time that the
/// products of a tile of 64 rows take.
constexpr SplitChoice chooseMlaSplits(int arch, int sharedBytes, int columns,
                                      int tile, int gridX, int gridY,
                                      long long keys) {
  return chooseSplits(arch, sharedBytes, 1, tile / warpsPerCta, gridX, gridY,
                      keys, columns / 64.0);
}

/// The same for prefill, where a tile serves all warps of a CTA. A partial is
/// written and read: 256 columns of 128 dims are 128 KiB, about as long on
/// their way through L2 as the products of a tile take. So there are no more
/// splits than fill the machine once, which bounds the workspace, too.
constexpr SplitChoice choosePrefillSplits(int arch, int sharedBytes,
                                          int columns, int warps, int gridX,
                                          int gridY, long long keys) {
  // The registers hold 8 warps on a multiprocessor.
  int shared = maxOf(sharedBytes, machineOf(arch).sharedPerSM * warps / 8 -
                                      machineOf(arch).reservedPerCta);
  long long resident = static_cast<long long>(ctasPerSM(arch, shared)) *
                       machineOf(arch).multiprocessors;
  long long most = resident / (static_cast<long long>(gridX) * gridY);
  return chooseSplits(arch, shared, 1, prefillTile / warpsPerCta, gridX, gridY,
                      keys, columns / 256.0,
                      most < 1           ? 1
                      : most > maxSplits ? maxSplits
                                         : static_cast<int>(most));
}

} // namespace kernels
} // namespace kvcache

#endif // KVCACHE_KERNELS_GEOMETRY_H
