//===- attention.h - Queries and results of attention kernels -------------===//
//
// Part of the kvcache project.
//
//===----------------------------------------------------------------------===//
//
// What attention kernels do before and after the tiles: find the sequence of
// their rows, load queries as fragments, and store results.
//
//===----------------------------------------------------------------------===//

#ifndef KVCACHE_KERNELS_ATTENTION_H
#define KVCACHE_KERNELS_ATTENTION_H

#include "tile.h"

namespace kvcache {
namespace kernels {

/// The sequence of row block `block`: the last one whose first block (see
/// rowBlocks) is at or before it, found 32 candidates at a time. `queryStart`
/// is not decreasing. -1 without one.
KVCACHE_DEVICE int findSequence(const int *queryStart, int sequences, int rows,
                                int block, u32 lane) {
  int low = 0, count = sequences;
  do {
    int step = ceilDiv(count, 32);
    int i = low + static_cast<int>(lane) * step;
    bool starts =
        static_cast<int>(lane) * step < count &&
        ptx::loadI32(queryStart, i) / rows + (rows > 1 ? i : 0) <= block;
    int before = static_cast<int>(ptx::popcount(ptx::ballot(starts)));
    if (before == 0)
      return -1;
    int skip = (before - 1) * step;
    low += skip;
    count = minOf(step, count - skip);
  } while (count > 1);
  return low;
}

/// Which of a CTA's columns have a query, and where it is.
struct Columns {
  int rows, heads; // live ones, at most shape.rows and shape.heads
};

KVCACHE_DEVICE bool isLive(const AttentionShape &shape, const Columns &live,
                           int column) {
  int head = shape.rows > 1 ? column % shape.heads : column;
  bool real = shape.rows > 1 ? column / shape.heads < live.rows
                             : live.rows > 0 && column < shape.columns;
  return real && (shape.group % shape.heads == 0 || head < live.heads);
}
/// Columns among which the live ones are.
KVCACHE_DEVICE int liveColumns(const AttentionShape &shape,
                               const Columns &live) {
  return shape.rows > 1 ? live.rows * shape.heads : shape.columns;
}
/// Rows of a head between the CTA's first query and that of a column.
KVCACHE_DEVICE int columnOffset(const AttentionShape &shape, int column) {
  return shape.rows > 1
             ? column / shape.heads * shape.queryHeads + column % shape.heads
             : column;
}

/// What a CTA found out about its query rows.
struct Block {
  int sequence, first; // `first`: its first row in the batch
  Columns live;
  int high; // keys that the first row sees; not positive where it sees none
  int keys; // keys that any of its rows sees
};

/// Finds row block `index` of blocks of `rows` rows (see rowBlocks), of which
/// the CTA takes block `headBlock` of the heads. False if there is no such row.
KVCACHE_DEVICE bool findBlock(const AttentionShape &shape,
                              const int *queryStart, const int *lengths,
                              int maxTokens, int maxSequences,
                              int maxPagesPerSequence, int rows, int index,
                              int headBlock, u32 lane, Block &block) {
  if (rows == 1 &&
      (index >= maxTokens || index >= ptx::loadI32(queryStart, maxSequences)))
    return false;
  int sequence = findSequence(queryStart, maxSequences, rows, index, lane);
  if (sequence < 0)
    return false;
  int first = ptx::loadI32(queryStart, sequence);
  int queries = ptx::loadI32(queryStart, sequence + 1) - first;
  // The first row, counted from the sequence's first.
  int row0 =
      rows > 1 ? (index - first / rows - sequence) * rows : index - first;
  block.live = {rows, shape.heads};
  if (rows > 1) {
    block.live.rows = minOf(rows, queries - row0);
    if (block.live.rows <= 0)
      return false;
  }
  if (shape.group % shape.heads != 0)
    block.live.heads =
        minOf(shape.heads, shape.group - headBlock * shape.heads);
  block.sequence = sequence;
  block.first = first + row0;
  block.high = ptx::loadI32(lengths, sequence) - queries + row0 + 1;
  // A length past the page table would read other sequences' entries.
  i64 capacity = static_cast<i64>(maxPagesPerSequence) * shape.pageSize;
  int keys = block.high + block.live.rows - 1;
  block.keys = keys > capacity ? static_cast<int>(capacity) : keys;
  return true;
}

/// The part of a query row that one warp multiplies: chunk c of 16 dims starts
/// at dim 16 c + base, from chunk `turn` on at 16 c + rest.
struct QueryPart {
  int chunks, turn, base, rest;
};

/// A power of two for a row of queries, and its inverse.
struct RowScale {
  float up, down;
};

/// The one that brings the largest magnitude of a row, spread over the lanes t,
/// to [2^exponent, 2^(exponent + 1)), or as far as f32 has an inverse.
KVCACHE_DEVICE RowScale rowScale(float top, u32 exponent) {
  top = ptx::maxF32(top, ptx::shuffleXor(top, 1));
  top = ptx::maxF32(top, ptx::shuffleXor(top, 2));
  u32 e = ptx::asBits(top) >> 23; // biased by 127
  e = e <= exponent ? exponent + 1 : e;
  return {ptx::asFloat((254 + exponent - e) << 23),
          ptx::asFloat((e - exponent) << 23)};
}

/// What a decoded query has to be multiplied with: see decodedUnit.
KVCACHE_DEVICE float queryUnit(const AttentionShape &shape) {
  return shape.queryType >= CodesE4M3
             ? decodedUnit(shape.arch, codeType(shape.queryType))
             : 1.f;
}

/// Query fragments of one N tile. Codes become f16 up to decodedUnit, exactly;
/// in fp8-math they stay codes.
/// Rows of bf16 and f32 that meet f16 keys
/// become f16 with their largest magnitude in [2^14, 2^15): exact for bf16, but
/// for elements 2^-29 below it, whatever the range of the row, and the sum of
/// two f16 for f32. In fp8-math rows become e4m3 with their largest magnitude
/// in [2^7, 2^8), which rounds elements to four bits. `down` undoes the power
/// of two for column g.
KVCACHE_DEVICE void loadFragments(const AttentionShape &shape, const u8 *q,
                                  const QueryPart &part, const Columns &live,
                                  int i, u32 lane, u32 (&out)[2][2 * maxChunks],
                                  float &down) {
  u32 g = lane >> 2, t = lane & 3;
  const int chunks = part.chunks;
  const int bytes = activationBytes(shape.queryType);
  int column = i * columnsPerTile + static_cast<int>(g);
  bool real = ((i + 1) * columnsPerTile <= shape.columns && shape.rows == 1 &&
               live.rows == 1 && shape.group % shape.heads == 0) ||
              isLive(shape, live, column);
  const u8 *row = q + static_cast<i64>(columnOffset(shape, column)) *
                          (shape.headDim + shape.ropeDim) * bytes;
  down = 1.f;
  const bool codes = multipliesCodes(shape);
  const u32 exponent = codes ? 7 : 14;
  if (shape.queryType == F32) {
    u32 w[4 * maxChunks];
    float top = 0.f;
#pragma unroll
    for (int c = 0; c < chunks; ++c) {
#pragma unroll
      for (int e = 0; e < 4; ++e)
        w[4 * c + e] = 0;
      const u8 *from =
          row + (c * 16 + (c < part.turn ? part.base : part.rest)) * 4;
      if (real && is16Bit(shape)) {
        ptx::loadV2(&w[4 * c], from + t * 8);
        ptx::loadV2(&w[4 * c + 2], from + 32 + t * 8);
      } else if (real) {
        ptx::loadV4(&w[4 * c], from + t * 16);
      }
#pragma unroll
      for (int e = 0; e < 4; ++e)
        top = ptx::maxF32(top, __builtin_fabsf(ptx::asFloat(w[4 * c + e])));
    }
    const RowScale scale = rowScale(top, exponent);
    down = scale.down;
#pragma unroll
    for (int c = 0; c < 2 * chunks; ++c) {
      float low = ptx::asFloat(w[2 * c]) * scale.up;
      float high = ptx::asFloat(w[2 * c + 1]) * scale.up;
      if (codes) {
        w[2 * c] = ptx::asBits(low);
        w[2 * c + 1] = ptx::asBits(high);
        continue;
      }
      u32 first = ptx::packF16(low, high);
      out[0][c] = first;
      out[1][c] = ptx::packF16(low - ptx::f16ToF32Low(first),
                               high - ptx::f16ToF32High(first));
    }
    if (codes) {
#pragma unroll
      for (int c = 0; c < chunks; ++c) {
        float x[4];
#pragma unroll
        for (int e = 0; e < 4; ++e)
          x[e] = ptx::asFloat(w[4 * c + e]);
        out[0][c] = ptx::f32ToE4M3x4(x);
      }
    }
    return;
  }
  u32 w[2 * maxChunks];
  if (shape.queryType >= CodesE4M3) {
#pragma unroll
    for (int c = 0; c < chunks; ++c) {
      u32 x = 0;
      const u8 *from = row + c * 16 + (c < part.turn ? part.base : part.rest);
      if (real)
        x = is16Bit(shape) ? ptx::loadU16(from + t * 2) |
                                 ptx::loadU16(from + 8 + t * 2) << 16
                           : ptx::loadU32(from + t * 4);
      if (codes) {
        out[0][c] = x;
        continue;
      }
      u32 pairs[2];
      decodeExact(shape.arch, codeType(shape.queryType), 1, &x, pairs);
#pragma unroll
      for (int e = 0; e < 2; ++e)
        out[0][2 * c + e] = shape.cacheType == CacheBF16
                                ? ptx::packBF16(ptx::f16ToF32Low(pairs[e]),
                                                ptx::f16ToF32High(pairs[e]))
                                : pairs[e];
    }
    return;
  }
#pragma unroll
  for (int c = 0; c < chunks; ++c) {
    w[2 * c] = w[2 * c + 1] = 0;
    if (!real)
      continue;
    const u8 *from =
        row + (c * 16 + (c < part.turn ? part.base : part.rest)) * 2;
    if (is16Bit(shape)) {
      w[2 * c] = ptx::loadU32(from + t * 4);
      w[2 * c + 1] = ptx::loadU32(from + 16 + t * 4);
    } else {
      ptx::loadV2(&w[2 * c], from + t * 8);
    }
  }
  const bool isF16 = shape.queryType == F16;
  if ((isF16 && !codes) || shape.cacheType == CacheBF16) {
#pragma unroll
    for (int c = 0; c < 2 * chunks; ++c)
      out[0][c] = w[c];
    return;
  }
  float top = 0.f;
#pragma unroll
  for (int c = 0; c < 2 * chunks; ++c) {
    float low = isF16 ? ptx::f16ToF32Low(w[c]) : ptx::asFloat(w[c] << 16);
    float high =
        isF16 ? ptx::f16ToF32High(w[c]) : ptx::asFloat(w[c] & 0xffff0000u);
    top = ptx::maxF32(top,
                      ptx::maxF32(__builtin_fabsf(low), __builtin_fabsf(high)));
  }
  const RowScale scale = rowScale(top, exponent);
  down = scale.down;
#pragma unroll
  for (int c = 0; c < chunks; ++c) {
    float x[4];
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      u32 pair = w[2 * c + e];
      float low = isF16 ? ptx::f16ToF32Low(pair) : ptx::asFloat(pair << 16);
      float high =
          isF16 ? ptx::f16ToF32High(pair) : ptx::asFloat(pair & 0xffff0000u);
      x[2 * e] = low * scale.up;
      x[2 * e + 1] = high * scale.up;
      if (!codes)
        out[0][2 * c + e] = ptx::packF16(x[2 * e], x[2 * e + 1]);
    }
    if (codes)
      out[0][c] = ptx::f32ToE4M3x4(x);
  }
}

/// The queries: every warp keeps all of them in registers, or `warps` of them
/// load their share of the N tiles to shared memory, from `shared` on.
KVCACHE_DEVICE void loadQueries(const AttentionShape &shape, const u8 *q,
                                const Columns &live, float scale, u32 shared,
                                u32 warp, int warps, u32 lane, Queries &out) {
  u32 g = lane >> 2, t = lane & 3;
  const int n = tilesN(shape.columns);
  const int terms = queryTerms(shape.queryType, shape.math);
  const int registers = queryRegisters(shape.headDim, shape.math);
  const int stores = ceilDiv(registers, 4);
  bool converts = (shape.queryType == BF16 || shape.queryType == F32 ||
                   (shape.queryType == F16 && multipliesCodes(shape))) &&
                  shape.cacheType != CacheBF16;
  scale *= queryUnit(shape);
  const QueryPart whole = {chunksOf(shape), chunksOf(shape), 0, 0};
  if (!queriesInShared(shape.headDim, shape.columns, shape.queryType,
                       shape.math)) {
#pragma unroll
    for (int i = 0; i < n; ++i) {
      float down;
      loadFragments(shape, q, whole, live, i, lane, out.b[i], down);
      // Lane 4g has column g; scores are wanted for columns 2t and 2t + 1.
      out.scale[i][0] = out.scale[i][1] = scale;
      if (converts) {
        out.scale[i][0] = scale * ptx::shuffle(down, 8 * t);
        out.scale[i][1] = scale * ptx::shuffle(down, 8 * t + 4);
      }
    }
    return;
  }
  u32 scales = shared + n * terms * stores * 512;
  out.shared = shared + lane * 16;
#pragma unroll 1
  for (int i = static_cast<int>(warp); i < n; i += warps) {
    u32 b[2][2 * maxChunks];
    float down;
    loadFragments(shape, q, whole, live, i, lane, b, down);
#pragma unroll
    for (int term = 0; term < terms; ++term) {
#pragma unroll
      for (int j = 0; j < stores; ++j) {
        u32 x[4];
#pragma unroll
        for (int e = 0; e < 4; ++e)
          x[e] = 4 * j + e < registers ? b[term][4 * j + e] : 0u;
        ptx::storeSharedV4(out.shared + ((i * terms + term) * stores + j) * 512,
                           x);
      }
    }
    if (t == 0)
      ptx::storeSharedF32(scales + (i * columnsPerTile + g) * 4, scale * down);
  }
  if (warps > 1)
    ptx::ctaSync();
  else
    ptx::warpSync();
#pragma unroll
  for (int i = 0; i < n; ++i)
    ptx::loadSharedV2(out.scale[i], scales + (i * columnsPerTile + 2 * t) * 4);
}

/// ALiBi slope of a column in log2 units; 0 without a query.
KVCACHE_DEVICE float slopeOf(const AttentionShape &shape, const float *slopes,
                             const Columns &live, int column) {
  int head = shape.rows > 1 ? column % shape.heads : column;
  return isLive(shape, live, column)
             ? ptx::loadF32(slopes + head) * 1.44269504088896341f
             : 0.f;
}

/// ALiBi slopes of the columns, and their distance from token `begin` + g.
/// `position` is that of row 0.
KVCACHE_DEVICE void loadSlopes(const AttentionShape &shape, const float *slopes,
                               const Columns &live, int begin, int position,
                               u32 lane, Queries &out) {
  u32 g = lane >> 2, t = lane & 3;
#pragma unroll
  for (int i = 0; i < tilesN(shape.columns); ++i) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      int column = i * columnsPerTile + static_cast<int>(t) * 2 + h;
      out.slope[i][h] = slopeOf(shape, slopes, live, column);
      out.key[i][h] = static_cast<float>(
          begin - position - rowOf(shape, i, t, h) + static_cast<int>(g));
    }
  }
}

/// Where the results of the CTA go.
struct Results {
  u8 *out;    // [query row][query heads][vHeadDim], at the first column
  float *lse; // [query row][query heads], or null
  float factor;
  const float *sinks; // [heads], at the first column, or null
};

KVCACHE_DEVICE void storeFour(const AttentionShape &shape, u8 *out, i64 element,
                              const float *x) {
  if (shape.outType >= CodesE4M3)
    ptx::storeU32(out + element,
                  encode4(shape.arch, codeType(shape.outType), x));
  else if (shape.outType == F32)
    ptx::storeV4(reinterpret_cast<float *>(out) + element, x);
  else if (shape.outType == F16)
    ptx::storeV2(out + 2 * element, ptx::packF16(x[0], x[1]),
                 ptx::packF16(x[2], x[3]));
  else
    ptx::storeV2(out + 2 * element, ptx::packBF16(x[0], x[1]),
                 ptx::packBF16(x[2], x[3]));
}

/// Four dims of one column: `o` relative to 2^ref, as is `sum`. A column that
/// sees no key has reference minus infinity and gets output 0. A sink logit is
/// one more score without a value.
KVCACHE_DEVICE void storeResult(const AttentionShape &shape, bool hasLse,
                                const Results &to, int column, int dim,
                                const float *o, float ref, float sum) {
  bool empty = ref == ptx::asFloat(minusInfinity) && sum == 0.f;
  float factor = to.factor;
  if (shape.hasSinks && !empty) {
    int head = shape.rows > 1 ? column % shape.heads : column;
    float sink =
        ptx::asFloat(ptx::loadU32(to.sinks + head)) * 1.44269504088896341f;
    float top = ptx::maxF32(ref, sink);
    sum = __builtin_fmaf(sum, ptx::exp2(ref - top), ptx::exp2(sink - top));
    // `o` stays relative to the old reference.
    factor *= ptx::exp2(ref - top);
    ref = top;
  }
  float f = empty ? 0.f : factor * ptx::reciprocal(sum), x[4];
#pragma unroll
  for (int e = 0; e < 4; ++e)
    x[e] = o[e] * f;
  int at = columnOffset(shape, column);
  storeFour(shape, to.out, static_cast<i64>(at) * shape.vHeadDim + dim, x);
  if (hasLse && dim == 0)
    ptx::storeF32(to.lse + at,
                  empty ? ref : (ref + ptx::log2(sum)) * 0.693147180559945309f);
}

/// Rows that see no key: output 0, LSE minus infinity.
KVCACHE_DEVICE void storeEmpty(const AttentionShape &shape, bool hasLse,
                               const Results &to, const Columns &live,
                               int threads, u32 thread) {
  const float zero[4] = {};
  const int quads = shape.vHeadDim / 4;
  for (int i = thread; i < shape.columns * quads; i += threads) {
    int column = i / quads;
    if (!isLive(shape, live, column))
      continue;
    int at = columnOffset(shape, column);
    storeFour(shape, to.out,
              static_cast<i64>(at) * shape.vHeadDim + i % quads * 4, zero);
    if (hasLse && i % quads == 0)
      ptx::storeF32(to.lse + at, ptx::asFloat(minusInfinity));
  }
}

/// The accumulators of 16 dims and of the columns 2t and 2t + 1 go to shared
/// memory, [column][dim] f32; `at` + `offset`: column 2t, dim g of them, or dim
/// 2g. Pairs of dims and a pitch of a multiple of 32 plus 4 floats keep the
/// stores free of bank conflicts.
KVCACHE_DEVICE void publishChunk(const AttentionShape &shape, u32 at,
                                 int offset, int pitch, const float *o) {
  if (is16Bit(shape)) {
    ptx::storeSharedF32(at, o[0], offset);
    ptx::storeSharedF32(at, o[1], offset + pitch);
    ptx::storeSharedF32(at, o[2], offset + 32);
    ptx::storeSharedF32(at, o[3], offset + pitch + 32);
  } else {
    ptx::storeSharedV2(at + offset, o[0], o[2]);
    ptx::storeSharedV2(at + offset + pitch, o[1], o[3]);
  }
}

/// Puts NaN into the results of a warp where decode4 saw NaN codes in V: in
/// their dim, for every column. `shared`: the results, see publish.
KVCACHE_DEVICE void publishNaN(const AttentionShape &shape, u32 shared,
                               u32 lane, const WarpState &state) {
  u32 g = lane >> 2, t = lane & 3, seen = 0; // bit 2c + h: dim 16c + 2g + h
#pragma unroll
  for (int c = 0; c < vChunksOf(shape); ++c)
    seen |= state.nanV[c];
  if (__builtin_expect(!ptx::any((seen & 0x80808080u) != 0), 1))
    return;
  seen = 0;
#pragma unroll
  for (int c = 0; c < vChunksOf(shape); ++c) {
    u32 v = state.nanV[c] | state.nanV[c] >> 16;
    seen |= (v >> 7 & 1u) << 2 * c | (v >> 15 & 1u) << (2 * c + 1);
  }
  seen |= ptx::shuffleXor(seen, 1); // tokens are spread over t
  seen |= ptx::shuffleXor(seen, 2);
  ptx::warpSync();
#pragma unroll 1
  for (int i = 0; i < 2 * vChunksOf(shape); ++i) {
    if ((seen >> i & 1u) == 0)
      continue;
    u32 at = shared + (i / 2 * 16 + 2 * g + i % 2) * 4;
#pragma unroll 1
    for (int column = static_cast<int>(t); column < shape.columns; column += 4)
      ptx::storeSharedF32(at + column * 4 * mergePitch(shape.vHeadDim),
                          ptx::asFloat(quietNaN));
  }
}

/// The warps' accumulators go to shared memory, [warp][column][dim] f32. `cap`:
/// see Queries. A NaN code in K makes every score of its token NaN, and so the
/// sums.
KVCACHE_DEVICE void publish(const AttentionShape &shape, float cap, u32 shared,
                            u32 pairs, u32 warp, u32 lane, WarpState &state) {
  u32 g = lane >> 2, t = lane & 3;
  const int pitch = 4 * mergePitch(shape.vHeadDim);
  const int columns = tilesN(shape.columns) * columnsPerTile;
  const bool isNaN =
      flagsNaN(shape) && ptx::any((state.nanK & 0x80808080u) != 0);
#pragma unroll
  for (int i = 0; i < tilesN(shape.columns); ++i) {
    u32 column = i * columnsPerTile + 2 * t;
    u32 at = shared + (warp * columns + column) * pitch +
             (is16Bit(shape) ? 4 : 8) * g;
#pragma unroll
    for (int c = 0; c < vChunksOf(shape); ++c)
      publishChunk(shape, at, 64 * c, pitch, state.o[i][c]);
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      float sum = state.sum[i][h], negRef = state.negRef[i][h];
      if (sumsByProduct(shape) && multipliesCodes(shape)) {
        // Every lane has it.
      } else if (sumsByProduct(shape)) {
        sum = ptx::shuffle(state.sum[i][0] + state.sum[i][2], 8 * t + 4 * h);
      } else {
        sum += ptx::shuffleXor(sum, 4);
        sum += ptx::shuffleXor(sum, 8);
        sum += ptx::shuffleXor(sum, 16);
      }
      if (isNaN)
        sum = ptx::asFloat(quietNaN);
      if (shape.hasSoftCap)
        negRef -= cap;
      // Without tokens: reference minus infinity, no weight in the merge.
      bool unset = (state.fresh >> (2 * i + h) & 1u) != 0;
      if (g == 0)
        ptx::storeSharedV2(pairs + (warp * columns + column + h) * 8,
                           unset ? ptx::asFloat(minusInfinity) : -negRef, sum);
    }
  }
  if (flagsNaN(shape))
    publishNaN(shape, shared + warp * columns * pitch, lane, state);
}

/// Weight of a partial result: 0 without tokens, whatever the common reference.
KVCACHE_DEVICE float weightOf(float part, float ref) {
  return ptx::exp2(part - (ref == ptx::asFloat(minusInfinity) ? 0.f : ref));
}

/// Merges `count` warps from `first` on, each with results of `columns`
/// columns, for four dims of a column.
KVCACHE_DEVICE void mergeWarps(const AttentionShape &shape, u32 shared,
                               u32 pairs, int first, int count, int columns,
                               int column, int dim, float *o, float &ref,
                               float &sum) {
  const int pitch = 4 * mergePitch(shape.vHeadDim);
  const int padded = tilesN(columns) * columnsPerTile;
  const int row = first * padded + column;
  float pair[warpsPerCta][2];
#pragma unroll
  for (int w = 0; w < warpsPerCta; ++w)
    ptx::loadSharedV2(pair[w],
                      pairs + (minOf(w, count - 1) * padded + row) * 8);
  ref = pair[0][0];
#pragma unroll
  for (int w = 1; w < warpsPerCta; ++w)
    ref = ptx::maxF32(ref, pair[w][0]);
  sum = 0.f;
#pragma unroll
  for (int e = 0; e < 4; ++e)
    o[e] = 0.f;
#pragma unroll
  for (int w = 0; w < warpsPerCta; ++w) {
    if (w >= count)
      break;
    float f = weightOf(pair[w][0], ref), x[4];
    ptx::loadSharedV4(x, shared + (w * padded + row) * pitch + dim * 4);
    sum = __builtin_fmaf(f, pair[w][1], sum);
#pragma unroll
    for (int e = 0; e < 4; ++e)
      o[e] = __builtin_fmaf(f, x[e], o[e]);
  }
}

} // namespace kernels
} // namespace kvcache

#endif // KVCACHE_KERNELS_ATTENTION_H
