//===- rows.h - Attention of one warp with many query rows ----------------===//
//
// Part of the kvcache project.
//
//===----------------------------------------------------------------------===//
//
// With 16 columns of (query row, head) and more a warp multiplies with A and B
// not swapped (compare tile.h), over K and V in f16:
//
//   S (16 columns x 8 keys)  = Q (16 x headDim)  K^T (headDim x 8)
//   O (16 columns x 8 dims) += P (16 x 16 keys)  V (16 keys x 8 dims)
//
// The accumulators of two S tiles are a fragment A of P as they are: no
// movmatrix, and what belongs to a column, its factor, reference and sum, is
// that of two columns a lane in 16 and not of four:
//
//   S: d[0], d[1] = column g,     keys 2t, 2t + 1      P: a0, a2 of two tiles
//      d[2], d[3] = column g + 8                          a1, a3
//
// K comes from ldmatrix, V from ldmatrix.trans, each register pair of which is
// a B fragment of 8 keys, or of 8 dims:
//
//   K: r0, r1 = keys g,     dims 2t, 2t + 1 | + 8;  r2, r3 = keys g + 8
//   V: r0, r1 = dims g,     keys 2t, 2t + 1 | + 8;  r2, r3 = dims g + 8
//
//===----------------------------------------------------------------------===//

#ifndef KVCACHE_KERNELS_ROWS_H
#define KVCACHE_KERNELS_ROWS_H

#include "attention.h"

namespace kvcache {
namespace kernels {

constexpr int maxRowTiles = 2;       // M tiles of a warp
constexpr int maxRowRegisters = 128; // of O
constexpr int maxKeyTiles = 4;       // N tiles of a step
constexpr int maxKeptChunks = 4;     // of queries in registers

/// Queries of a warp. Fragments lie in shared memory: 512 bytes for (M tile,
/// term, chunk of 16 dims), 16 a lane. Those of one term and few dims are kept
/// in registers. Index i: M tile; h: columns 16i + g + 8h.
struct RowQueries {
  u32 a[maxRowTiles][maxKeptChunks][4];
  float scale[maxRowTiles][2];
  float slope[maxRowTiles][2]; // ALiBi, log2 units a token
  float key[maxRowTiles][2];   // key 2t of the first step minus the position
  u32 shared;                  // this lane's first fragment
  float cap;                   // soft cap in log2 units
};

/// What a warp carries from step to step.
struct RowState {
  float o[maxRowTiles][maxRowRegisters / 4][4];
  float sum[maxRowTiles][4];    // [h], of this lane's keys; by a product [2h]
  float negRef[maxRowTiles][2]; // minus the reference, plus a soft cap; log2
  u32 fresh;                    // bit 2i + h: no reference yet; rescaleNow
};

KVCACHE_DEVICE bool keepsQueries(const AttentionShape &shape) {
  return chunksOf(shape) <= maxKeptChunks && queryTerms(shape.queryType) == 1;
}

/// Whether the sums of P are a product with ones: see sumsByProduct.
KVCACHE_DEVICE bool sumsRowsByProduct(const AttentionShape &shape) {
  return !shape.hasLse;
}

/// Loads the queries of a warp by way of `shared`.
KVCACHE_DEVICE void loadRows(const AttentionShape &shape, const u8 *q,
                             const Columns &live, float scale, u32 shared,
                             u32 lane, RowQueries &out) {
  u32 g = lane >> 2, t = lane & 3;
  const int terms = queryTerms(shape.queryType), chunks = chunksOf(shape);
  const int tiles = rowTiles(shape.columns);
  if (shape.queryType >= CodesE4M3)
    scale *= decodedUnit(shape.arch, codeType(shape.queryType));
  const QueryPart whole = {chunks, chunks, 0, 0};
  const u32 scales = shared + tiles * terms * chunks * 512;
  out.shared = shared + lane * 16;
#pragma unroll 1
  for (int i = 0; i < 2 * tiles; ++i) {
    u32 b[2][2 * maxChunks];
    float down;
    loadFragments(shape, q, whole, live, i, lane, b, down);
    const u32 at = out.shared + i / 2 * terms * chunks * 512 + i % 2 * 4;
#pragma unroll
    for (int term = 0; term < terms; ++term) {
#pragma unroll
      for (int c = 0; c < chunks; ++c) {
        ptx::storeSharedU32(at + (term * chunks + c) * 512, b[term][2 * c]);
        ptx::storeSharedU32(at + (term * chunks + c) * 512 + 8,
                            b[term][2 * c + 1]);
      }
    }
    if (t == 0)
      ptx::storeSharedF32(scales + (i * columnsPerTile + g) * 4, scale * down);
  }
  ptx::warpSync();
#pragma unroll
  for (int i = 0; i < tiles; ++i) {
#pragma unroll
    for (int h = 0; h < 2; ++h)
      out.scale[i][h] = ptx::loadSharedF32(scales + (16 * i + 8 * h + g) * 4);
#pragma unroll
    for (int c = 0; c < (keepsQueries(shape) ? chunks : 0); ++c)
      ptx::loadSharedV4(out.a[i][c], out.shared + (i * chunks + c) * 512);
  }
}

/// Row of column 16i + g + 8h within the CTA's rows.
KVCACHE_DEVICE int rowOfColumn(const AttentionShape &shape, int i, int h,
                               u32 g) {
  return rowsDiffer(shape)
             ? (16 * i + 8 * h + static_cast<int>(g)) / shape.heads
             : 0;
}

/// ALiBi slopes of the columns, and their distance from key `begin` + 2t.
/// `position` is that of row 0.
KVCACHE_DEVICE void loadRowSlopes(const AttentionShape &shape,
                                  const float *slopes, const Columns &live,
                                  int begin, int position, u32 lane,
                                  RowQueries &out) {
  u32 g = lane >> 2, t = lane & 3;
#pragma unroll
  for (int i = 0; i < rowTiles(shape.columns); ++i) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      out.slope[i][h] =
          slopeOf(shape, slopes, live, 16 * i + 8 * h + static_cast<int>(g));
      out.key[i][h] =
          static_cast<float>(begin - position - rowOfColumn(shape, i, h, g) +
                             static_cast<int>(2 * t));
    }
  }
}

KVCACHE_DEVICE void clear(const AttentionShape &shape, float cap,
                          RowState &state) {
#pragma unroll
  for (int i = 0; i < rowTiles(shape.columns); ++i) {
#pragma unroll
    for (int n = 0; n < 2 * vChunksOf(shape); ++n) {
#pragma unroll
      for (int e = 0; e < 4; ++e)
        state.o[i][n][e] = 0.f;
    }
#pragma unroll
    for (int e = 0; e < 4; ++e)
      state.sum[i][e] = 0.f;
    state.negRef[i][0] = state.negRef[i][1] = shape.hasSoftCap ? cap : 0.f;
  }
  state.fresh = freshFlag(shape) | ((1u << 2 * rowTiles(shape.columns)) - 1);
}

using RowScores = float[maxRowTiles][maxKeyTiles][4];

/// S minus reference, log2 units. `token` is the step's first key, counted as
/// q.key is.
KVCACHE_DEVICE void rowScores(const AttentionShape &shape, u32 kAddress,
                              const RowQueries &q, const RowState &state,
                              float token, RowScores &s) {
  const int tiles = rowTiles(shape.columns), chunks = chunksOf(shape);
  const int terms = queryTerms(shape.queryType), keyTiles = shape.tile / 8;
#pragma unroll
  for (int i = 0; i < tiles; ++i) {
#pragma unroll
    for (int n = 0; n < keyTiles; ++n) {
#pragma unroll
      for (int e = 0; e < 4; ++e)
        s[i][n][e] = 0.f;
    }
  }
#pragma unroll
  for (int c = 0; c < chunks; ++c) {
    u32 a[maxRowTiles][2][4];
#pragma unroll
    for (int i = 0; i < tiles; ++i) {
#pragma unroll
      for (int term = 0; term < terms; ++term) {
        if (!keepsQueries(shape))
          ptx::loadSharedV4(a[i][term],
                            q.shared + ((i * terms + term) * chunks + c) * 512);
      }
    }
#pragma unroll
    for (int m = 0; m < keyTiles / 2; ++m) {
      u32 r[4];
      ptx::ldmatrix(r, kAddress + m * 16 * pitchOf(shape) + 32 * c);
#pragma unroll
      for (int i = 0; i < tiles; ++i) {
#pragma unroll
        for (int term = 0; term < terms; ++term) {
          const u32(&x)[4] = keepsQueries(shape) ? q.a[i][c] : a[i][term];
          ptx::mma(s[i][2 * m], x[0], x[1], x[2], x[3], r[0], r[1]);
          ptx::mma(s[i][2 * m + 1], x[0], x[1], x[2], x[3], r[2], r[3]);
        }
      }
    }
  }
#pragma unroll
  for (int i = 0; i < tiles; ++i) {
#pragma unroll
    for (int n = 0; n < keyTiles; ++n) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int h = e / 2;
        float negRef = state.negRef[i][h];
        if (shape.hasAlibi) {
          const float within = static_cast<float>(8 * n + e % 2);
          negRef = __builtin_fmaf(q.slope[i][h], q.key[i][h] + (token + within),
                                  negRef);
        }
        s[i][n][e] = scoreOf(shape, s[i][n][e], q.scale[i][h], q.cap, negRef);
      }
    }
  }
}

/// Scores of keys that a column does not see become minus infinity.
KVCACHE_DEVICE void maskRows(const AttentionShape &shape, RowScores &s,
                             const Mask &mask, u32 lane) {
  u32 g = lane >> 2;
  const int t2 = static_cast<int>(lane & 3) * 2;
#pragma unroll
  for (int i = 0; i < rowTiles(shape.columns); ++i) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int row = rowOfColumn(shape, i, h, g);
      const int high = minOf(mask.high + row, mask.lastHigh) - t2;
      const int low = mask.low + row - t2;
#pragma unroll
      for (int n = 0; n < shape.tile / 8; ++n) {
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          const int key = 8 * n + e;
          float &x = s[i][n][2 * h + e];
          x = key >= high || (shape.hasWindow && key < low)
                  ? ptx::asFloat(minusInfinity)
                  : x;
        }
      }
    }
  }
}

/// P = 2^s in pairs of f16 of the keys 2t, 2t + 1: [n][h] of columns g + 8h and
/// keys of tile n; and its sums over this lane's keys, where they are no
/// product.
KVCACHE_DEVICE void rowExponentials(const AttentionShape &shape,
                                    const RowScores &s,
                                    u32 (&p)[maxRowTiles][maxKeyTiles][2],
                                    float (&sum)[maxRowTiles][2]) {
#pragma unroll
  for (int i = 0; i < rowTiles(shape.columns); ++i) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
#pragma unroll
      for (int n = 0; n < shape.tile / 8; ++n) {
        float a = ptx::exp2(s[i][n][2 * h]), b = ptx::exp2(s[i][n][2 * h + 1]);
        p[i][n][h] = ptx::packF16(a, b);
        sum[i][h] = n ? sum[i][h] + a : a;
        sum[i][h] += b;
      }
    }
  }
}

/// See rescale.
KVCACHE_DEVICE void rescaleRows(const AttentionShape &shape, RowScores &s,
                                RowState &state) {
  const int keyTiles = shape.tile / 8;
  u32 unset = 0;
#pragma unroll
  for (int i = 0; i < rowTiles(shape.columns); ++i) {
    float f[2];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      float top = ptx::maxF32(s[i][0][2 * h], s[i][0][2 * h + 1]), raise;
#pragma unroll
      for (int n = 1; n < keyTiles; ++n)
        top = ptx::maxF32(top, ptx::maxF32(s[i][n][2 * h], s[i][n][2 * h + 1]));
      top = ptx::maxF32(top, ptx::shuffleXor(top, 1));
      top = ptx::maxF32(top, ptx::shuffleXor(top, 2));
      f[h] = raiseReference(shape.math, top, state.fresh, 1u << (2 * i + h),
                            state.negRef[i][h], raise, unset);
#pragma unroll
      for (int n = 0; n < keyTiles; ++n) {
        s[i][n][2 * h] -= raise;
        s[i][n][2 * h + 1] -= raise;
      }
    }
#pragma unroll
    for (int e = 0; e < 4; ++e)
      state.sum[i][e] *= f[sumsRowsByProduct(shape) ? e / 2 : e % 2];
#pragma unroll
    for (int n = 0; n < 2 * vChunksOf(shape); ++n) {
#pragma unroll
      for (int e = 0; e < 4; ++e)
        state.o[i][n][e] *= f[e / 2];
    }
  }
  state.fresh = unset ? unset | freshFlag(shape) : 0u;
}

/// One step: see tileStep.
KVCACHE_DEVICE void rowStep(const AttentionShape &shape, u32 kAddress,
                            u32 vAddress, const RowQueries &q, RowState &state,
                            bool masked, const Mask &mask, int token,
                            u32 lane) {
  const int tiles = rowTiles(shape.columns), keyTiles = shape.tile / 8;
  RowScores s;
  rowScores(shape, kAddress, q, state, static_cast<float>(token), s);
  u32 p[maxRowTiles][maxKeyTiles][2];
  float sum[maxRowTiles][2];
  rowExponentials(shape, s, p, sum);
  u32 big = state.fresh;
#pragma unroll
  for (int i = 0; i < tiles; ++i) {
#pragma unroll
    for (int n = 0; n < keyTiles; ++n)
      big |= p[i][n][0] | p[i][n][1];
  }
  if (__builtin_expect(ptx::any((big & rescaleBits(shape)) != 0 || masked),
                       0)) {
    maskRows(shape, s, mask, lane);
    rescaleRows(shape, s, state);
    rowExponentials(shape, s, p, sum);
  }
#pragma unroll
  for (int i = 0; i < tiles; ++i) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      if (!sumsRowsByProduct(shape))
        state.sum[i][h] += sum[i][h];
    }
  }
#pragma unroll
  for (int m = 0; m < keyTiles / 2; ++m) {
#pragma unroll
    for (int i = 0; i < tiles; ++i) {
      const u32 ones = 0x3c003c00u;
      if (sumsRowsByProduct(shape))
        ptx::mma(state.sum[i], p[i][2 * m][0], p[i][2 * m][1],
                 p[i][2 * m + 1][0], p[i][2 * m + 1][1], ones, ones);
    }
#pragma unroll
    for (int c = 0; c < vChunksOf(shape); ++c) {
      u32 r[4];
      ptx::ldmatrixTrans(r, vAddress + m * 16 * pitchOf(shape, true) + 32 * c);
#pragma unroll
      for (int i = 0; i < tiles; ++i) {
#pragma unroll
        for (int n = 0; n < 2; ++n)
          ptx::mma(state.o[i][2 * c + n], p[i][2 * m][0], p[i][2 * m][1],
                   p[i][2 * m + 1][0], p[i][2 * m + 1][1], r[2 * n],
                   r[2 * n + 1]);
      }
    }
  }
}

/// The warps' accumulators go to shared memory: see publish.
KVCACHE_DEVICE void publishRows(const AttentionShape &shape, float cap,
                                u32 shared, u32 pairs, u32 warp, u32 lane,
                                const RowState &state) {
  u32 g = lane >> 2, t = lane & 3;
  const int pitch = 4 * mergePitch(shape.vHeadDim);
  const int columns = tilesN(shape.columns) * columnsPerTile;
#pragma unroll
  for (int i = 0; i < rowTiles(shape.columns); ++i) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      if (16 * i + 8 * h >= columns)
        continue;
      u32 column = warp * columns + 16 * i + 8 * h + g;
      u32 at = shared + column * pitch + 8 * t;
#pragma unroll
      for (int n = 0; n < 2 * vChunksOf(shape); ++n)
        ptx::storeSharedV2(at + 32 * n, state.o[i][n][2 * h],
                           state.o[i][n][2 * h + 1]);
      float sum = state.sum[i][2 * h], negRef = state.negRef[i][h];
      if (!sumsRowsByProduct(shape)) {
        sum = state.sum[i][h];
        sum += ptx::shuffleXor(sum, 1);
        sum += ptx::shuffleXor(sum, 2);
      }
      if (shape.hasSoftCap)
        negRef -= cap;
      bool unset = (state.fresh >> (2 * i + h) & 1u) != 0;
      if (t == 0)
        ptx::storeSharedV2(pairs + column * 8,
                           unset ? ptx::asFloat(minusInfinity) : -negRef, sum);
    }
  }
}

} // namespace kernels
} // namespace kvcache

#endif // KVCACHE_KERNELS_ROWS_H
