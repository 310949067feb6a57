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

/// Values of the structural arguments `in_type` and `q_type`.
enum ActivationType : int { F16 = 0, BF16 = 1 };

/// Values of the structural argument `cache_type`.
enum CacheType : int { E4M3 = 0, E5M2 = 1 };

/// Threads of a CTA, in every kernel.
constexpr int threadsPerCta = 128;
constexpr int warpsPerCta = threadsPerCta / 32;

/// Query heads of one MMA N tile.
constexpr int headsPerTile = 8;

/// Largest number of query heads that share one KV head.
constexpr int maxGroup = 16;

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
/// architecture: movmatrix needs 7.8, e4m3 conversions 8.1 on sm_89. LLVM's own
/// choice for sm_80 (7.0) and sm_89 (7.8) is older, so pass it as `+ptxN`.
[[gnu::always_inline]] constexpr inline int ptxVersion(int arch) {
  if (arch >= 120)
    return 87;
  if (arch >= 100)
    return 86;
  return arch == 89 ? 81 : 78;
}

//===----------------------------------------------------------------------===//
// Write
//===----------------------------------------------------------------------===//

/// Elements a thread quantizes at once: one 16-byte store.
constexpr int writeElements = 16;

/// 16-element units of one token, K and V together.
[[gnu::always_inline]] constexpr inline int writeUnits(int kvHeads,
                                                       int headDim) {
  return 2 * kvHeads * headDim / writeElements;
}

/// Tokens one CTA of the write kernel takes.
[[gnu::always_inline]] constexpr inline int writeTokensPerCta(int kvHeads,
                                                              int headDim) {
  return maxOf(1, threadsPerCta / writeUnits(kvHeads, headDim));
}

/// grid.x of the write kernel; grid.y = grid.z = 1.
[[gnu::always_inline]] constexpr inline int
writeGrid(int maxTokens, int kvHeads, int headDim) {
  return ceilDiv(maxTokens, writeTokensPerCta(kvHeads, headDim));
}

/// True if the write kernel exists for these constants. Strides are in
/// elements of one byte; 16-byte stores need them, and the base addresses, to
/// be multiples of 16.
constexpr bool writeIsLegal(int kvHeads, int headDim, int pageSize,
                            long long pageStride, int tokenStride,
                            int headStride) {
  return kvHeads >= 1 && headDim >= 16 && headDim % 16 == 0 && pageSize >= 1 &&
         (pageSize & (pageSize - 1)) == 0 && pageStride % 16 == 0 &&
         tokenStride % 16 == 0 && headStride % 16 == 0;
}

//===----------------------------------------------------------------------===//
// Paged attention
//===----------------------------------------------------------------------===//

/// Query heads of one CTA: all that share a KV head.
[[gnu::always_inline]] constexpr inline int headsPerCta(int group) {
  return group;
}

/// MMA N tiles of one CTA.
[[gnu::always_inline]] constexpr inline int tilesN(int group) {
  return ceilDiv(group, headsPerTile);
}

/// Bytes between rows (tokens) in shared memory. The 16 bytes of padding make
/// ldmatrix and cp.async free of bank conflicts and keep offsets immediate.
[[gnu::always_inline]] constexpr inline int rowPitch(int headDim) {
  return headDim + 16;
}

/// Bytes of one ring stage of one warp: K rows, then V rows.
[[gnu::always_inline]] constexpr inline int stageBytes(int headDim, int tile) {
  return 2 * tile * rowPitch(headDim);
}

/// Floats between heads in the merge buffer of the four warps.
[[gnu::always_inline]] constexpr inline int mergePitch(int headDim) {
  return headDim + 4;
}

/// Dynamic shared memory of a CTA. The ring is dead when the warps merge; the
/// merge buffer takes its place: f32 partials, (reference, sum) per warp and
/// head, and one word that tells whether this CTA arrived last.
[[gnu::always_inline]] constexpr inline int
dynamicSharedBytes(int headDim, int group, int tile, int stages) {
  return maxOf(warpsPerCta * stages * stageBytes(headDim, tile),
               warpsPerCta * tilesN(group) * headsPerTile *
                       (mergePitch(headDim) + 2) * 4 +
                   16);
}

/// Bytes of K and V that one iteration of a warp's main loop consumes.
constexpr int kvBytesPerIteration(int headDim, int tile) {
  return 2 * tile * headDim;
}

/// CTAs that fit on a multiprocessor by shared memory.
constexpr int ctasPerSM(int arch, int sharedBytes) {
  return machineOf(arch).sharedPerSM /
         (sharedBytes + machineOf(arch).reservedPerCta);
}

/// KV bytes in flight on a multiprocessor when a warp waits for its oldest
/// stage: one stage is awaited, `stages - 2` younger ones are outstanding.
constexpr int bytesInFlight(int arch, int headDim, int group, int tile,
                            int stages) {
  return ctasPerSM(arch, dynamicSharedBytes(headDim, group, tile, stages)) *
         warpsPerCta * (stages - 1) * kvBytesPerIteration(headDim, tile);
}

/// The structural constants that are free to choose.
struct AttentionTuning {
  int tile;         // tokens a warp takes at once: 16 or 32
  int stages;       // depth of a warp's ring: 2 to 6
  int unroll;       // 1, or `stages`
  int minCtasPerSM; // for nvvm.minctasm
};

/// Default tuning. Tiles of 32 tokens need the fewest instructions per byte;
/// the stages fill the shared memory of two CTAs (three for head dim 64).
/// 99 KB machines have room for one CTA of head dim 128.
constexpr AttentionTuning attentionDefaults(int arch, int headDim, int group,
                                            int pageSize) {
  bool small = machineOf(arch).sharedPerCta < 128 * 1024;
  if (headDim <= 64) {
    if (arch >= 90 && !small)
      return {32, 3, 1, tilesN(group) > 1 ? 2 : 3};
    return {32, small ? 4 : 3, 1, small ? 1 : 2};
  }
  if (small) // Four stages of 16 tokens keep 48 KB in flight, two of 32
             // only 32.
    return pageSize <= 64 ? AttentionTuning{16, 4, 1, 1}
                          : AttentionTuning{32, 2, 1, 1};
  if (arch >= 90)
    return {32, 3, 1, 2};
  return {32, 2, 1, 2};
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

/// True if the attention kernel exists for these constants; everything else is
/// to be refused by the compiler.
constexpr bool attentionIsLegal(int queryHeads, int kvHeads, int headDim,
                                int pageSize, int tile, int stages, int unroll,
                                int splitTokens, int numSplits) {
  return kvHeads >= 1 && queryHeads >= kvHeads && queryHeads % kvHeads == 0 &&
         queryHeads / kvHeads <= maxGroup &&
         (headDim == 64 || headDim == 128) && pageSize >= 16 &&
         pageSize <= 128 && (pageSize & (pageSize - 1)) == 0 &&
         (tile == 16 || tile == 32) && (4 * tile) % pageSize == 0 &&
         stages >= 2 && stages <= 6 && (unroll == 1 || unroll == stages) &&
         numSplits >= 1 && numSplits <= maxSplits && splitTokens > 0 &&
         splitTokens % splitGranule(tile, pageSize) == 0;
}

/// Strides of K or V pages, in bytes: copies are 16 bytes wide, so strides and
/// base addresses are multiples of 16.
constexpr bool attentionStridesAreLegal(long long pageStride, int tokenStride,
                                        int headStride) {
  return pageStride >= 0 && tokenStride > 0 && headStride >= 0 &&
         pageStride % 16 == 0 && tokenStride % 16 == 0 && headStride % 16 == 0;
}

/// Grid of the attention kernel. y is limited to 65535 by the hardware.
constexpr int attentionGridX(int queryHeads, int kvHeads) {
  return kvHeads *
         ceilDiv(queryHeads / kvHeads, headsPerCta(queryHeads / kvHeads));
}
constexpr int maxRows = 65535;

/// Floats of one partial result: O rows of all heads of the CTA, then pairs
/// (reference in log2 units, sum), padded to 16 bytes.
[[gnu::always_inline]] constexpr inline int partialFloats(int headDim,
                                                          int group) {
  return group * headDim + (group + 1) / 2 * 4;
}

/// Bytes of the workspace `partials`; 0 with one split (the pointer may be
/// null then). Order: [row][grid x][split][partialFloats]. 16-byte aligned.
constexpr long long partialsBytes(int maxTokens, int queryHeads, int kvHeads,
                                  int headDim, int numSplits) {
  return numSplits == 1
             ? 0
             : 4ll * maxTokens * attentionGridX(queryHeads, kvHeads) *
                   numSplits * partialFloats(headDim, queryHeads / kvHeads);
}

/// Bytes of the workspace `counters`, [row][grid x] u32; 0 with one split.
/// Zero before the first launch; every launch leaves zeros.
constexpr long long countersBytes(int maxTokens, int queryHeads, int kvHeads,
                                  int numSplits) {
  return numSplits == 1 ? 0
                        : 4ll * maxTokens * attentionGridX(queryHeads, kvHeads);
}

struct SplitChoice {
  int splitTokens;
  int numSplits;
};

/// Splits from capacities alone. With n splits the launch has
/// `kvHeads * rows * n` CTAs, hence `waves = ceil(CTAs / resident CTAs)`, and
/// takes about
///
///     waves * (ceil(capacity / n / tokens per iteration) + 2.8) + merge(n)
///
/// iterations, where merge(n) = n > 1 ? 0.5 + n / 8 : 0: reading a partial of
/// 8 heads moves an eighth of the bytes of an iteration of four warps. The
/// smallest cost wins, fewer splits at ties. The unit `splitTokens` is two
/// iterations, so that the fixed cost does not dominate a live split.
constexpr SplitChoice chooseSplits(int arch, int queryHeads, int kvHeads,
                                   int headDim, int pageSize, int tile,
                                   int stages, int maxTokens,
                                   int maxPagesPerSequence) {
  int group = queryHeads / kvHeads;
  int shared = dynamicSharedBytes(headDim, group, tile, stages);
  long long resident =
      static_cast<long long>(maxOf(1, ctasPerSM(arch, shared))) *
      machineOf(arch).multiprocessors;
  long long rows = maxTokens;
  long long ctas = rows * attentionGridX(queryHeads, kvHeads);
  long long capacity = static_cast<long long>(maxPagesPerSequence) * pageSize;
  int granule = 2 * splitGranule(tile, pageSize);
  int perIteration = warpsPerCta * tile;
  int best = 1;
  double bestCost = 0;
  for (int n = 1; n <= maxSplits; ++n) {
    // Splits that the step of `splitTokens` leaves without work are no use.
    if (n > 1 && (capacity + granule - 1) / granule < n)
      break;
    long long share = (capacity + n - 1) / n;
    long long iterations = (share + perIteration - 1) / perIteration;
    long long waves = (ctas * n + resident - 1) / resident;
    double cost = static_cast<double>(waves) *
                      (static_cast<double>(iterations) + fixedIterations) +
                  (n > 1 ? 0.5 + n / 8.0 : 0.0);
    if (n == 1 || cost < bestCost) {
      best = n;
      bestCost = cost;
    }
  }
  return {granule, best};
}

} // namespace kernels
} // namespace kvcache

#endif // KVCACHE_KERNELS_GEOMETRY_H
