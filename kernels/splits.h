//===- splits.h - Partial results of a split row and their merge ----------===//
//
// Part of the kvcache project.
//
//===----------------------------------------------------------------------===//
//
// With several splits a CTA stores its result as a partial. The last one of a
// block of rows to arrive merges all of them, in the same launch. The counter
// of the block wraps to zero by itself, so that replays need no memset.
//
//===----------------------------------------------------------------------===//

#ifndef KVCACHE_KERNELS_SPLITS_H
#define KVCACHE_KERNELS_SPLITS_H

#include "attention.h"

namespace kvcache {
namespace kernels {

/// Partial results of one block of rows and heads: records of partialFloats.
struct Partials {
  float *block;
  unsigned *counter;
  int split, splits; // this CTA's, and those that have tokens
  int numSplits;     // a constant
};

KVCACHE_DEVICE Partials partialsOf(const AttentionShape &shape, float *partials,
                                   unsigned *counters, i64 block, int split,
                                   int splits, int numSplits) {
  return {partials +
              block * numSplits * partialFloats(shape.vHeadDim, shape.columns),
          counters + block, split, splits, numSplits};
}

/// Stores four dims of a column: the result, or a part of it.
KVCACHE_DEVICE void storePart(const AttentionShape &shape, bool hasLse,
                              const Results &to, const Partials &part,
                              int column, int dim, const float *o, float ref,
                              float sum) {
  if (part.numSplits == 1 || part.splits == 1) {
    storeResult(shape, hasLse, to, column, dim, o, ref, sum);
    return;
  }
  float *mine = part.block + static_cast<i64>(part.split) *
                                 partialFloats(shape.vHeadDim, shape.columns);
  ptx::storeV4(mine + column * shape.vHeadDim + dim, o);
  if (dim == 0)
    ptx::storeV2(mine + shape.columns * shape.vHeadDim + 2 * column, ref, sum);
}

/// Lanes that share a column in the merges, four dims each at a time.
KVCACHE_DEVICE int lanesPerColumn(const AttentionShape &shape) {
  return shape.vHeadDim <= 64 ? 16 : 32;
}

/// Merges the warps of a CTA and stores their columns. Warps have `perWarp`
/// columns each, and `sharers` of them in a row the same ones.
KVCACHE_DEVICE void storeColumns(const AttentionShape &shape, bool hasLse,
                                 const Results &to, const Partials &part,
                                 const Columns &live, int perWarp, int sharers,
                                 u32 shared, u32 pairs, int threads,
                                 u32 thread) {
  const int lanes = lanesPerColumn(shape), quads = shape.vHeadDim / 4;
  const int columnsAtOnce = threads / lanes;
#pragma unroll 1
  for (int i = 0; i < ceilDiv(liveColumns(shape, live), columnsAtOnce); ++i) {
    int column = static_cast<int>(thread) / lanes + i * columnsAtOnce;
    if (!isLive(shape, live, column))
      continue;
#pragma unroll
    for (int k = 0; k < ceilDiv(quads, lanes); ++k) {
      int dim = (static_cast<int>(thread) % lanes + k * lanes) * 4;
      if (dim >= shape.vHeadDim)
        continue;
      float o[4], ref, sum;
      mergeWarps(shape, shared, pairs, column / perWarp * sharers, sharers,
                 perWarp, column % perWarp, dim, o, ref, sum);
      storePart(shape, hasLse, to, part, column, dim, o, ref, sum);
    }
  }
}

/// Merges the partial results of `splits` CTAs for one column and stores it.
/// All lanes take part; lanesPerColumn of them share a column, and each looks
/// after the weights of one split in so many. Four values are on their way at a
/// time: one after the other would cost a memory latency each.
KVCACHE_DEVICE void mergeSplits(const AttentionShape &shape,
                                const Partials &part, int column, bool live,
                                bool hasLse, const Results &to, u32 lane) {
  constexpr int maxSteps = maxSplits / 16;
  const float *partials = part.block;
  const int splits = part.splits, numSplits = part.numSplits;
  const int record = partialFloats(shape.vHeadDim, shape.columns);
  const int lanes = lanesPerColumn(shape), steps = ceilDiv(numSplits, lanes);
  const int quads = shape.vHeadDim / 4;
  int within = static_cast<int>(lane) % lanes;
  const float *pairs = partials + shape.columns * shape.vHeadDim + 2 * column;
  float pair[maxSteps][2], weight[maxSteps];
  float ref = ptx::asFloat(minusInfinity);
#pragma unroll
  for (int s = 0; s < steps; ++s) {
    i64 i = minOf(s * lanes + within, splits - 1);
    ptx::loadCoherentV2(pair[s], pairs + i * record);
    ref = ptx::maxF32(ref, pair[s][0]);
  }
#pragma unroll
  for (int mask = 1; mask < lanes; mask *= 2)
    ref = ptx::maxF32(ref, ptx::shuffleXor(ref, mask));
  float sum = 0.f;
#pragma unroll
  for (int s = 0; s < steps; ++s) {
    weight[s] = weightOf(pair[s][0], ref);
    sum += s * lanes + within < splits ? weight[s] * pair[s][1] : 0.f;
  }
#pragma unroll
  for (int mask = 1; mask < lanes; mask *= 2)
    sum += ptx::shuffleXor(sum, mask);

#pragma unroll 1
  for (int k = 0; k < ceilDiv(quads, lanes); ++k) {
    int quad = within + k * lanes;
    bool mine = quads % lanes == 0 || quad < quads;
    const float *values =
        partials + column * shape.vHeadDim + (mine ? quad : 0) * 4;
    float o[4] = {};
#pragma unroll
    for (int s = 0; s < steps; ++s) {
      for (int j = s * lanes; j < minOf(splits, (s + 1) * lanes); j += 4) {
        float x[4][4];
#pragma unroll
        for (int u = 0; u < 4; ++u) {
          i64 i = minOf(j + u, splits - 1);
          ptx::loadCoherentV4(x[u], values + i * record);
        }
#pragma unroll
        for (int u = 0; u < 4; ++u) {
          float f = ptx::shuffle(weight[s], lane - within + j - s * lanes + u);
#pragma unroll
          for (int e = 0; e < 4; ++e) {
            float next = __builtin_fmaf(f, x[u][e], o[e]);
            o[e] = j + u < splits ? next : o[e];
          }
        }
      }
    }
    if (live && mine)
      storeResult(shape, hasLse, to, column, quad * 4, o, ref, sum);
  }
}

/// After storePart for all columns: the last CTA of the block merges. `flag` is
/// a word of shared memory.
KVCACHE_DEVICE void finishSplits(const AttentionShape &shape, bool hasLse,
                                 const Results &to, const Columns &live,
                                 const Partials &part, u32 flag, int threads,
                                 u32 thread) {
  if (part.numSplits == 1 || part.splits == 1)
    return;
  // Partials before the count; the last to count sees all of them.
  ptx::fenceGpu();
  ptx::ctaSync();
  if (thread == 0) {
    u32 arrived = ptx::atomicIncWrap(part.counter, part.splits - 1);
    ptx::fenceGpu();
    ptx::storeSharedU32(flag, arrived == static_cast<u32>(part.splits - 1));
  }
  ptx::ctaSync();
  if (!ptx::loadSharedU32(flag))
    return;
  ptx::fenceGpu();
  const int lanes = lanesPerColumn(shape), columnsAtOnce = threads / lanes;
  const int first = static_cast<int>(thread / static_cast<u32>(lanes));
#pragma unroll 1
  for (int i = 0; i < ceilDiv(liveColumns(shape, live), columnsAtOnce); ++i) {
    int column = first + i * columnsAtOnce;
    bool mine = isLive(shape, live, column);
    // Lanes without a column of their own read one that was written.
    mergeSplits(shape, part, mine ? column : 0, mine, hasLse, to, thread & 31);
  }
}

} // namespace kernels
} // namespace kvcache

#endif // KVCACHE_KERNELS_SPLITS_H
