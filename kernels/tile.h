//===- tile.h - Attention of one warp over one tile of tokens -------------===//
//
// Part of the kvcache project.
//
//===----------------------------------------------------------------------===//
//
// A warp multiplies with A and B swapped, so that 8 query heads fill the N side
// and tokens and dims the M side:
//
//   S^T (16 tokens x 8 columns) = K   (16 x headDim)  Q^T (headDim x 8)
//   O^T (16 dims x 8 columns)  += V^T (16 x 16 tokens) P^T (16 tokens x 8)
//
// for each 16 of V's dims, which may be more or fewer than those of K.
//
// A column is one query head of one query row; column c of a CTA is head
// c % heads of row c / heads. More than 8 columns use further N tiles for every
// K and V fragment; columns without a query are zero, and nobody stores them.
//
// K takes no shuffle: ldmatrix on 8-bit rows gives a lane four neighbouring
// dims; the order of k in the product is free, so Q is loaded in that order:
//
//   ldmatrix.x4, lane address row (l & 7) + 8 (l >> 3 & 1), bytes 16 (l >> 4):
//     r0, r1 = tokens g, g + 8, dims 32j + 4t ..      (chunk 2j)
//     r2, r3 = tokens g, g + 8, dims 32j + 16 + 4t .. (chunk 2j + 1)
//   A = (lower two of r0, lower two of r1, upper two of r0, upper two of r1)
//   B = Q of head g: dims 4t, 4t + 1 and 4t + 2, 4t + 3 of the chunk
//
// V comes transposed from ldmatrix.trans with the same addresses:
//
//     x  = (token 2t | token 2t + 1) x (dims 2g, 2g + 1)
//     A row g = dim 16c + 2g (codes b0, b2), row g + 8 = dim 16c + 2g + 1
//     O: d[0], d[1] = dim 16c + 2g, heads 2t, 2t + 1; d[2], d[3] = dim + 1
//
// Rows of 16 bits come as they are needed: with the same addresses r0..r3 are
// (tokens g | g + 8) x (dims 2t, 2t + 1 | + 8) of K; with the two halves of the
// lane swapped in the address, and transposed, (dims g | g + 8) x (tokens 2t,
// 2t + 1 | + 8) of V, in the order of A. O's rows are then in order.
//
// P leaves the first product with tokens on g and is needed with heads on g:
// two movmatrix for 16 tokens. No permutation of tokens avoids them.
//
// fp8-math multiplies codes, 32 to a product. K comes as it is needed: r0..r3
// are A, and Q is loaded as B, dims 4t .. 4t + 3 of two chunks. V takes two
// prmt for two registers of ldmatrix.trans, x (tokens 0..7) and y (8..15):
//
//     A row g = dim 16c + 2g (x.b0, y.b0, x.b2, y.b2), row g + 8 the odd bytes:
//     tokens 2t, 2t + 8, 2t + 1, 2t + 9
//
// P of tokens g and g + 8 become the two codes of one element, so that a single
// movmatrix for 16 tokens gives B in the same order.
//
//===----------------------------------------------------------------------===//

#ifndef KVCACHE_KERNELS_TILE_H
#define KVCACHE_KERNELS_TILE_H

#include "fp8.h"

namespace kvcache {
namespace kernels {

/// Structural constants of the attention kernel. All fields are compile-time
/// constants once the kernel is inlined into its caller.
struct AttentionShape {
  int arch, queryType, outType, cacheType;
  int queryHeads, kvHeads, group;
  int headDim, vHeadDim; // of K and queries; of V and outputs
  int pageSize;
  i64 kPageStride;
  int kTokenStride, kHeadStride;
  i64 vPageStride;
  int vTokenStride, vHeadStride;
  int tile, stages, unroll;
  int rows, heads, columns; // query rows, heads and columns of a CTA
  bool hasWindow, hasSoftCap, hasSinks, hasAlibi, runtimeStrides;
  int ropeDim = 0; // elements of a row of K behind those of headDim (MLA)
  bool hasLse = true;
  int math = MathF16;
  int tokenScales = NoTokenScales;
};

/// The largest values of an array extent below. A warp has at most 18 chunks of
/// a row: half a row of MLA.
constexpr int maxTilesN = 4, maxTilesM = 2, maxChunks = 18;

/// Chunks of 16 dims of K, and of V.
KVCACHE_DEVICE int chunksOf(const AttentionShape &shape) {
  return shape.headDim / 16;
}
KVCACHE_DEVICE int vChunksOf(const AttentionShape &shape) {
  return shape.vHeadDim / 16;
}
/// V of MLA lies in the rows of K.
KVCACHE_DEVICE int pitchOf(const AttentionShape &shape, bool isV = false) {
  return rowPitch(isV && !shape.ropeDim ? shape.vHeadDim
                                        : shape.headDim + shape.ropeDim,
                  cacheBytes(shape.cacheType));
}
KVCACHE_DEVICE bool is16Bit(const AttentionShape &shape) {
  return shape.cacheType >= CacheF16;
}
KVCACHE_DEVICE bool hasTokenScales(const AttentionShape &shape) {
  return shape.tokenScales != NoTokenScales;
}
KVCACHE_DEVICE bool multipliesCodes(const AttentionShape &shape) {
  return shape.math == MathFP8;
}

/// True where NaN codes are flagged, and put in place at the end: see decode4.
KVCACHE_DEVICE bool flagsNaN(const AttentionShape &shape) {
  return shape.cacheType == E4M3 && !convertsFP8(shape.arch);
}

/// A new reference is the maximum plus this many binades: P starts at 2^-3 and
/// may grow to 2 before the accumulators are rescaled. With 6, a sink token 14
/// binades above thousands of equal ones costs 30 times the accuracy (f16
/// subnormals); with 0.5, rescales are a hundred times as frequent.
constexpr float headroom = 3.f;

/// In fp8-math P is multiplied by 2^8, which the row's sum undoes: its
/// reference is the maximum plus this, rounded up. P starts above 64 and may
/// grow to 248 before the accumulators are rescaled. A reference that is an
/// integer leaves the rounding of P to e4m3 to the score alone, whatever the
/// order of tiles.
constexpr float fp8Headroom = 1.f - 8.f;

constexpr u32 minusInfinity = 0xff800000u, plusInfinity = 0x7f800000u,
              quietNaN = 0x7fc00000u;

/// Offset of a lane's ldmatrix row within a tile of rows `pitch` apart; the two
/// halves of the lane may be swapped.
KVCACHE_DEVICE u32 laneOffset(int pitch, bool swaps, u32 lane) {
  u32 first = lane >> 3 & 1, second = lane >> 4;
  return ((lane & 7) + (swaps ? second : first) * 8) * pitch +
         (swaps ? first : second) * 16;
}
/// That of a tile of K or V.
KVCACHE_DEVICE u32 fragmentOffset(const AttentionShape &shape, bool isV,
                                  u32 lane) {
  return laneOffset(pitchOf(shape, isV), isV && is16Bit(shape), lane);
}

/// In WarpState::fresh: the next tile goes through `rescale`. The bits are
/// those of a P, f16 or bf16, that is 2 or more, infinite or NaN.
constexpr u32 rescaleNow = 0x40004000u;

/// The same bits of fp8-math: those that codes of 256 and more, and NaN, have
/// after the addition of 8.
constexpr u32 codesOutgrow = 0x08080808u, rescaleCodesNow = 0x80808080u;
KVCACHE_DEVICE u32 rescaleBits(const AttentionShape &shape) {
  return multipliesCodes(shape) ? rescaleCodesNow : rescaleNow;
}
/// Those of WarpState::fresh, whose lowest eight stand for columns.
KVCACHE_DEVICE u32 freshFlag(const AttentionShape &shape) {
  return rescaleBits(shape) & ~0xffu;
}

/// Whether the sums of P are a product with ones, of what P was rounded to: one
/// instruction for 16 tokens of 8 columns. An LSE asks for more than the 11
/// bits of P, which may have lost its smallest values. A sum takes two
/// registers more, which ptxas finds beside the largest outputs for sm_90 and
/// sm_100 alone.
KVCACHE_DEVICE bool sumsByProduct(const AttentionShape &shape) {
  return !shape.hasLse && !hasTokenScales(shape) &&
         (tilesN(shape.columns) * shape.vHeadDim < 512 ||
          (shape.arch >= 90 && shape.arch < 120));
}

/// What a warp carries from tile to tile. Index n: N tile; h: columns 2t + h.
struct WarpState {
  float o[maxTilesN][maxChunks][4];
  // [h], of this lane's tokens; by a product see mmaSums, or [h] of all.
  float sum[maxTilesN][4];
  float negRef[maxTilesN][2]; // minus the reference, plus a soft cap; log2
  u32 fresh;                  // bit 2n + h: no reference yet; rescaleNow
  u32 nanK;                   // see decode4
  u32 nanV[maxChunks]; // bytes 0, 2: dim 16c + 2g; 1, 3: dim 16c + 2g + 1
};

/// Nothing accumulated, no column with a reference. `cap`: see Queries.
KVCACHE_DEVICE void clear(const AttentionShape &shape, float cap,
                          WarpState &state) {
#pragma unroll
  for (int i = 0; i < tilesN(shape.columns); ++i) {
#pragma unroll
    for (int c = 0; c < vChunksOf(shape); ++c) {
#pragma unroll
      for (int e = 0; e < 4; ++e)
        state.o[i][c][e] = 0.f;
    }
#pragma unroll
    for (int e = 0; e < 4; ++e)
      state.sum[i][e] = 0.f;
    state.negRef[i][0] = state.negRef[i][1] = shape.hasSoftCap ? cap : 0.f;
  }
  state.fresh = freshFlag(shape) | ((1u << 2 * tilesN(shape.columns)) - 1);
  state.nanK = 0;
#pragma unroll
  for (int c = 0; c < vChunksOf(shape); ++c)
    state.nanV[c] = 0;
}

/// Queries of column g of each N tile in B fragments, and the factor of the
/// products for columns 2t and 2t + 1. The fragments are in registers, or in
/// shared memory: 512 bytes for (N tile, term, four registers), 16 a lane.
struct Queries {
  u32 b[maxTilesN][2][2 * maxChunks];
  float scale[maxTilesN][2];
  float slope[maxTilesN][2]; // ALiBi, log2 units a token
  float key[maxTilesN][2];   // token g of the first tile minus the position
  u32 shared;                // this lane's first fragment
  float cap;                 // soft cap in log2 units
};

/// Tokens that the columns of a masked tile see, counted from its first.
struct Mask {
  int low, high;          // row 0 sees tokens low <= x < high, row r r more
  int firstLow, lastHigh; // what any row sees
};

KVCACHE_DEVICE bool rowsDiffer(const AttentionShape &shape) {
  return shape.rows > 1;
}

/// Where each token has scales of its own: those of a tile's tokens 16m + 8i +
/// g at [m][i]. V's goes into P with the score, so that references follow P
/// times the scale, and P keeps the precision of f16 whatever the scales are;
/// the sums take it out again.
struct TokenScales {
  float k[maxTilesM][2];        // factor of the score
  float logV[maxTilesM][2];     // log2 of V's scale
  float inverseV[maxTilesM][2]; // 1 / V's scale
};

using Scores = float[maxTilesN][maxTilesM][4];

/// Product of one K or V fragment with a B fragment.
KVCACHE_DEVICE void product(const AttentionShape &shape, float *d, u32 a0,
                            u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
  if (shape.cacheType == CacheBF16)
    ptx::mmaBF16(d, a0, a1, a2, a3, b0, b1);
  else
    ptx::mma(d, a0, a1, a2, a3, b0, b1);
}

/// Adds K of 16 tokens in chunk `c` times all queries; codes in the chunks `c`
/// and c + 1.
KVCACHE_DEVICE void addScores(const AttentionShape &shape, int m, int c, u32 a0,
                              u32 a1, u32 a2, u32 a3, const Queries &q,
                              const u32 (&fragment)[maxTilesN][2][4],
                              Scores &s) {
  const bool codes = multipliesCodes(shape);
  const bool shared = queriesInShared(shape.headDim, shape.columns,
                                      shape.queryType, shape.math);
  // The first of two registers of B; a last chunk of codes has one alone.
  const int at = codes ? c : 2 * c;
  const bool single = codes && c + 1 == chunksOf(shape);
#pragma unroll
  for (int i = 0; i < tilesN(shape.columns); ++i) {
#pragma unroll
    for (int term = 0; term < queryTerms(shape.queryType, shape.math); ++term) {
      u32 b0 = shared ? fragment[i][term][at % 4] : q.b[i][term][at];
      u32 b1 = single   ? 0u
               : shared ? fragment[i][term][at % 4 + 1]
                        : q.b[i][term][at + 1];
      if (codes)
        ptx::mmaFP8(shape.cacheType == E5M2, shape.queryType == CodesE5M2,
                    s[i][m], a0, a1, a2, a3, b0, b1);
      else
        product(shape, s[i][m], a0, a1, a2, a3, b0, b1);
    }
  }
}

/// A score minus reference, log2 units, of the product `x`.
///
/// With a soft cap the factor is 2 log2(e) / cap times the score's own, and
/// cap * tanh(x) = cap - 2 cap / (1 + e^2x), whose error is 2^-22 of the cap;
/// tanh.approx would leave 2^-11 of it in the exponent.
KVCACHE_DEVICE float scoreOf(const AttentionShape &shape, float x, float factor,
                             float cap, float negRef) {
  if (shape.hasSoftCap)
    return __builtin_fmaf(ptx::reciprocal(ptx::exp2(x * factor) + 1.f),
                          -2.f * cap, negRef);
  return __builtin_fmaf(x, factor, negRef);
}

/// S^T minus reference, log2 units: s[n][m][h] is token 16m + g, s[n][m][2 + h]
/// token 16m + g + 8. `nan[m][i]` collects NaN codes of token 16m + g + 8i.
/// ALiBi adds slope times (key - position); `token` is the tile's first,
/// counted as q.key is.
KVCACHE_DEVICE void tileScores(const AttentionShape &shape, u32 kAddress,
                               const Queries &q, const WarpState &state,
                               float token, Scores &s, u32 (&nan)[maxTilesM][2],
                               const TokenScales &scales) {
  const int tilesM = shape.tile / 16, n = tilesN(shape.columns);
  const int pitch = pitchOf(shape), chunks = chunksOf(shape);
  const bool shared = queriesInShared(shape.headDim, shape.columns,
                                      shape.queryType, shape.math);
  // Pairs of chunks in four registers of a query.
  const int pairs = multipliesCodes(shape) ? 2 : 1;
  // Fragments from shared memory serve both halves of a tile.
  const int outer = shared ? 1 : tilesM, inner = shared ? tilesM : 1;
#pragma unroll
  for (int mo = 0; mo < outer; ++mo) {
#pragma unroll
    for (int mi = 0; mi < inner; ++mi) {
#pragma unroll
      for (int i = 0; i < n; ++i) {
#pragma unroll
        for (int e = 0; e < 4; ++e)
          s[i][mo + mi][e] = 0.f;
      }
    }
    u32 fragment[maxTilesN][2][4];
#pragma unroll
    for (int j = 0; j < (chunks + 1) / 2; ++j) {
      if (shared && j % pairs == 0) {
        const int terms = queryTerms(shape.queryType, shape.math);
        const int loads = ceilDiv((chunks + 1) / 2, pairs);
#pragma unroll
        for (int i = 0; i < n; ++i) {
#pragma unroll
          for (int term = 0; term < terms; ++term)
            ptx::loadSharedV4(
                fragment[i][term],
                q.shared + ((i * terms + term) * loads + j / pairs) * 512);
        }
      }
#pragma unroll
      for (int mi = 0; mi < inner; ++mi) {
        const int m = mo + mi;
        if (is16Bit(shape)) {
#pragma unroll
          for (int c = 2 * j; c < minOf(chunks, 2 * j + 2); ++c) {
            u32 r[4];
            ptx::ldmatrix(r, kAddress + m * 16 * pitch + 32 * c);
            addScores(shape, m, c, r[0], r[1], r[2], r[3], q, fragment, s);
          }
          continue;
        }
        u32 r[4];
        if (2 * j + 1 < chunks)
          ptx::ldmatrix(r, kAddress + m * 16 * pitch + 32 * j);
        else
          ptx::ldmatrixHalf(r, kAddress + m * 16 * pitch + 32 * j);
        if (multipliesCodes(shape)) {
          bool whole = 2 * j + 1 < chunks;
          addScores(shape, m, 2 * j, r[0], r[1], whole ? r[2] : 0u,
                    whole ? r[3] : 0u, q, fragment, s);
          continue;
        }
#pragma unroll
        for (int half = 0; half < minOf(2, chunks - 2 * j); ++half) {
          u32 low0, high0, low1, high1;
          decode4(shape.arch, shape.cacheType, Neighbours, r[2 * half], low0,
                  high0, nan[m][0]);
          decode4(shape.arch, shape.cacheType, Neighbours, r[2 * half + 1],
                  low1, high1, nan[m][1]);
          addScores(shape, m, 2 * j + half, low0, low1, high0, high1, q,
                    fragment, s);
        }
      }
    }
#pragma unroll
    for (int mi = 0; mi < inner; ++mi) {
#pragma unroll
      for (int i = 0; i < n; ++i) {
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          float &x = s[i][mo + mi][e];
          float negRef = state.negRef[i][e & 1];
          float factor = q.scale[i][e & 1];
          if (hasTokenScales(shape)) {
            factor *= scales.k[mo + mi][e / 2];
            negRef += scales.logV[mo + mi][e / 2];
          }
          if (shape.hasAlibi) {
            const float within = static_cast<float>(16 * (mo + mi) + e / 2 * 8);
            negRef = __builtin_fmaf(q.slope[i][e & 1],
                                    q.key[i][e & 1] + (token + within), negRef);
          }
          x = scoreOf(shape, x, factor, q.cap, negRef);
        }
      }
    }
  }
}

/// Row of column 8i + 2t + h within the CTA's rows.
KVCACHE_DEVICE int rowOf(const AttentionShape &shape, int i, u32 t, int h) {
  return rowsDiffer(shape)
             ? static_cast<int>(i * columnsPerTile + 2 * t + h) / shape.heads
             : 0;
}

/// Scores of tokens that a column does not see become minus infinity. `nan` as
/// in tileScores: a NaN code makes its token's scores NaN here, for the columns
/// that see it.
KVCACHE_DEVICE void maskScores(const AttentionShape &shape, Scores &s,
                               const Mask &mask, u32 (&nan)[maxTilesM][2],
                               u32 lane) {
  u32 g = lane >> 2, t = lane & 3;
  const bool flags = flagsNaN(shape);
#pragma unroll
  for (int m = 0; m < shape.tile / 16; ++m) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      int token = static_cast<int>(16 * m + g + 8 * half);
      u32 bad = 0;
      if (flags) {
        bad = nan[m][half]; // dims are spread over t
        bad |= ptx::shuffleXor(bad, 1);
        bad |= ptx::shuffleXor(bad, 2);
        bad &= 0x80808080u;
        nan[m][half] = 0;
      }
#pragma unroll
      for (int i = 0; i < tilesN(shape.columns); ++i) {
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          int row = rowOf(shape, i, t, h);
          bool masked = token >= minOf(mask.high + row, mask.lastHigh) ||
                        (shape.hasWindow && token < mask.low + row);
          float &x = s[i][m][2 * half + h];
          if (flags)
            x = bad ? ptx::asFloat(quietNaN) : x;
          x = masked ? ptx::asFloat(minusInfinity) : x;
        }
      }
    }
  }
}

/// Maximum over the tokens of a tile for column 2t + h of N tile i, in all
/// lanes.
KVCACHE_DEVICE float tileMaximum(const AttentionShape &shape, const Scores &s,
                                 int i, int h) {
  float r = ptx::maxF32(s[i][0][h], s[i][0][2 + h]);
  if (shape.tile == 32)
    r = ptx::maxF32(r, ptx::maxF32(s[i][1][h], s[i][1][2 + h]));
  r = ptx::maxF32(r, ptx::shuffleXor(r, 4));
  r = ptx::maxF32(r, ptx::shuffleXor(r, 8));
  return ptx::maxF32(r, ptx::shuffleXor(r, 16));
}

/// P = 2^s in pairs of f16 (bf16 for such a cache) of columns 2t, 2t + 1, or of
/// a tile's tokens g, g + 8 as codes, column 2t below; and its sums over this
/// lane's tokens, where they are no product.
KVCACHE_DEVICE void exponentials(const AttentionShape &shape, const Scores &s,
                                 u32 (&p)[maxTilesN][2 * maxTilesM],
                                 float (&sum)[maxTilesN][2],
                                 const TokenScales &scales) {
#pragma unroll
  for (int i = 0; i < tilesN(shape.columns); ++i) {
#pragma unroll
    for (int m = 0; m < shape.tile / 16; ++m) {
      float x[4]; // column 2t: tokens g, g + 8; column 2t + 1
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        float a = ptx::exp2(s[i][m][2 * e]), b = ptx::exp2(s[i][m][2 * e + 1]);
        x[e] = a, x[2 + e] = b;
        if (!multipliesCodes(shape))
          p[i][2 * m + e] = shape.cacheType == CacheBF16 ? ptx::packBF16(a, b)
                                                         : ptx::packF16(a, b);
        if (sumsByProduct(shape))
          continue;
        if (hasTokenScales(shape))
          a *= scales.inverseV[m][e], b *= scales.inverseV[m][e];
        sum[i][0] = m + e ? sum[i][0] + a : a;
        sum[i][1] = m + e ? sum[i][1] + b : b;
      }
      if (multipliesCodes(shape))
        p[i][m] = ptx::f32ToE4M3x4(x);
    }
  }
}

/// Raises the reference of a column, whose bit in `fresh` tells that it has
/// none, by `raise`, if its greatest score `top`, relative to it, calls for
/// that. A column that stays without gets its bit in `unset`. Returns the
/// factor of what was accumulated.
KVCACHE_DEVICE float raiseReference(int math, float top, u32 fresh, u32 bit,
                                    float &negRef, float &raise, u32 &unset) {
  bool first = (fresh & bit) != 0, codes = math == MathFP8;
  bool moves = top > (first   ? ptx::asFloat(minusInfinity)
                      : codes ? -fp8Headroom
                              : 0.f);
  float above = codes ? __builtin_ceilf(top) + fp8Headroom : top + headroom;
  raise = moves ? above : 0.f;
  unset |= first && !moves ? bit : 0u;
  negRef -= raise;
  // Nothing is accumulated yet; 2^-raise may be infinite.
  return first ? 0.f : ptx::exp2(-raise);
}

/// Raises the references of columns whose scores outgrew them by more than the
/// headroom, and rescales what was accumulated. The first tile comes here as
/// well and sets the references, but for columns that see none of its tokens.
/// Rare otherwise.
KVCACHE_DEVICE void rescale(const AttentionShape &shape, Scores &s, u32 lane,
                            WarpState &state) {
  u32 unset = 0;
#pragma unroll
  for (int i = 0; i < tilesN(shape.columns); ++i) {
    float f[2];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      float raise;
      f[h] =
          raiseReference(shape.math, tileMaximum(shape, s, i, h), state.fresh,
                         1u << (2 * i + h), state.negRef[i][h], raise, unset);
      if (!sumsByProduct(shape) || multipliesCodes(shape))
        state.sum[i][h] *= f[h];
#pragma unroll
      for (int m = 0; m < shape.tile / 16; ++m) {
        s[i][m][h] -= raise;
        s[i][m][2 + h] -= raise;
      }
    }
    if (sumsByProduct(shape) && !multipliesCodes(shape)) {
      const float even = ptx::shuffle(f[0], lane >> 3);
      const float odd = ptx::shuffle(f[1], lane >> 3);
#pragma unroll
      for (int e = 0; e < 4; ++e)
        state.sum[i][e] *= lane & 4 ? odd : even;
    }
#pragma unroll
    for (int c = 0; c < vChunksOf(shape); ++c) {
#pragma unroll
      for (int e = 0; e < 4; ++e)
        state.o[i][c][e] *= f[e & 1];
    }
  }
  state.fresh = unset ? unset | freshFlag(shape) : 0u;
}

/// Adds V of 16 tokens in chunk `c` times P.
KVCACHE_DEVICE void addOutputs(const AttentionShape &shape, int c, u32 a0,
                               u32 a1, u32 a2, u32 a3,
                               const u32 (&b0)[maxTilesN],
                               const u32 (&b1)[maxTilesN], WarpState &state) {
#pragma unroll
  for (int i = 0; i < tilesN(shape.columns); ++i)
    product(shape, state.o[i][c], a0, a1, a2, a3, b0[i], b1[i]);
}

/// Zeroes the rows of V that no column sees: an unused slot may hold NaN, and
/// 0 * NaN is NaN. `v`: the tile in shared memory.
KVCACHE_DEVICE void zeroUnseen(const AttentionShape &shape, u32 v,
                               const Mask &mask, u32 lane) {
  const int units = shape.vHeadDim * cacheBytes(shape.cacheType) / 16;
  const u32 zeros[4] = {};
#pragma unroll 1
  for (int i = static_cast<int>(lane); i < shape.tile * units; i += 32) {
    int row = i / units;
    if (row >= mask.lastHigh || (shape.hasWindow && row < mask.firstLow))
      ptx::storeSharedV4(v + row * pitchOf(shape, true) + i % units * 16,
                         zeros);
  }
  ptx::warpSync();
}

/// Adds a tile's V times P, both codes. The sums of a tile are added in f32:
/// the tensor core's own accumulators keep fewer bits.
KVCACHE_DEVICE void addCodes(const AttentionShape &shape, u32 vAddress,
                             const u32 (&p)[maxTilesN][2 * maxTilesM],
                             WarpState &state) {
  const int tilesM = shape.tile / 16, chunks = vChunksOf(shape);
  u32 b[maxTilesN][maxTilesM];
#pragma unroll
  for (int i = 0; i < tilesN(shape.columns); ++i) {
#pragma unroll
    for (int m = 0; m < maxTilesM; ++m)
      b[i][m] = m < tilesM ? ptx::movmatrix(p[i][m]) : 0u;
    if (sumsByProduct(shape)) {
      // Of columns 2t and 2t + 1, in every row.
      float d[4] = {};
      const u32 ones = 0x38383838u;
      ptx::mmaFP8(false, false, d, ones, ones, ones, ones, b[i][0], b[i][1]);
      state.sum[i][0] += d[0];
      state.sum[i][1] += d[1];
    }
  }
#pragma unroll
  for (int j = 0; j < (chunks + 1) / 2; ++j) {
    u32 a[2][2 * maxTilesM] = {}; // of two chunks
#pragma unroll
    for (int m = 0; m < tilesM; ++m) {
      u32 r[4];
      u32 from = vAddress + m * 16 * pitchOf(shape, true) + 32 * j;
      if (2 * j + 1 < chunks)
        ptx::ldmatrixTrans(r, from);
      else
        ptx::ldmatrixTransHalf(r, from);
#pragma unroll
      for (int half = 0; half < minOf(2, chunks - 2 * j); ++half) {
        a[half][2 * m] = ptx::prmt(r[2 * half], r[2 * half + 1], 0x6240u);
        a[half][2 * m + 1] = ptx::prmt(r[2 * half], r[2 * half + 1], 0x7351u);
      }
    }
#pragma unroll
    for (int half = 0; half < minOf(2, chunks - 2 * j); ++half) {
#pragma unroll
      for (int i = 0; i < tilesN(shape.columns); ++i) {
        float d[4] = {};
        ptx::mmaFP8(shape.cacheType == E5M2, false, d, a[half][0], a[half][1],
                    a[half][2], a[half][3], b[i][0], b[i][1]);
#pragma unroll
        for (int e = 0; e < 4; ++e)
          state.o[i][2 * j + half][e] += d[e];
      }
    }
  }
}

/// One tile, `token` tokens after the first of the split: scores,
/// probabilities, output. A `masked` tile, like any sequence's first one, takes
/// the way through `rescale`, where tokens that a column does not see are taken
/// out: their scores become minus infinity, and with `zeroesV` their V is
/// zeroed; without it, the caller has seen to that.
KVCACHE_DEVICE void tileStep(const AttentionShape &shape, u32 kAddress,
                             u32 vAddress, const Queries &q, WarpState &state,
                             bool masked, bool zeroesV, const Mask &mask,
                             int token, u32 lane,
                             const TokenScales &scales = {}) {
  const int tilesM = shape.tile / 16, n = tilesN(shape.columns);
  const int pitch = pitchOf(shape, true), chunks = vChunksOf(shape);
  Scores s;
  u32 nan[maxTilesM][2] = {};
  tileScores(shape, kAddress, q, state, static_cast<float>(token), s, nan,
             scales);

  u32 p[maxTilesN][2 * maxTilesM];
  float sum[maxTilesN][2];
  exponentials(shape, s, p, sum, scales);
  u32 big = state.fresh;
#pragma unroll
  for (int i = 0; i < n; ++i) {
#pragma unroll
    for (int m = 0; m < (multipliesCodes(shape) ? 1 : 2) * tilesM; ++m)
      big |= multipliesCodes(shape) ? p[i][m] + codesOutgrow : p[i][m];
  }
  if (__builtin_expect(ptx::any((big & rescaleBits(shape)) != 0 || masked),
                       0)) {
    maskScores(shape, s, mask, nan, lane);
    rescale(shape, s, lane, state);
    exponentials(shape, s, p, sum, scales);
    if (zeroesV)
      zeroUnseen(shape, vAddress - fragmentOffset(shape, true, lane), mask,
                 lane);
  }
#pragma unroll
  for (int m = 0; m < tilesM; ++m) {
#pragma unroll
    for (int e = 0; e < 2; ++e)
      state.nanK |= nan[m][e];
  }
#pragma unroll
  for (int i = 0; i < n; ++i) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      if (!sumsByProduct(shape))
        state.sum[i][h] += sum[i][h];
    }
  }

  if (multipliesCodes(shape)) {
    addCodes(shape, vAddress, p, state);
    return;
  }
#pragma unroll
  for (int m = 0; m < tilesM; ++m) {
    // Column g; tokens 2t, 2t+1 and 2t+8, 2t+9.
    u32 b0[maxTilesN], b1[maxTilesN];
#pragma unroll
    for (int i = 0; i < n; ++i) {
      b0[i] = ptx::movmatrix(p[i][2 * m]);
      b1[i] = ptx::movmatrix(p[i][2 * m + 1]);
      // Two halves of the sum of column g.
      if (sumsByProduct(shape) && shape.cacheType == CacheBF16)
        ptx::mmaSumsBF16(state.sum[i], b0[i], b1[i]);
      else if (sumsByProduct(shape))
        ptx::mmaSums(state.sum[i], b0[i], b1[i]);
    }
    if (is16Bit(shape)) {
#pragma unroll
      for (int c = 0; c < chunks; ++c) {
        u32 r[4];
        ptx::ldmatrixTrans(r, vAddress + m * 16 * pitch + 32 * c);
        addOutputs(shape, c, r[0], r[1], r[2], r[3], b0, b1, state);
      }
      continue;
    }
#pragma unroll
    for (int j = 0; j < (chunks + 1) / 2; ++j) {
      u32 r[4];
      if (2 * j + 1 < chunks)
        ptx::ldmatrixTrans(r, vAddress + m * 16 * pitch + 32 * j);
      else
        ptx::ldmatrixTransHalf(r, vAddress + m * 16 * pitch + 32 * j);
#pragma unroll
      for (int half = 0; half < minOf(2, chunks - 2 * j); ++half) {
        int c = 2 * j + half;
        u32 a0, a1, a2, a3;
        decode4(shape.arch, shape.cacheType, Alternate, r[2 * half], a0, a1,
                state.nanV[c]);
        decode4(shape.arch, shape.cacheType, Alternate, r[2 * half + 1], a2, a3,
                state.nanV[c]);
        addOutputs(shape, c, a0, a1, a2, a3, b0, b1, state);
      }
    }
  }
}

} // namespace kernels
} // namespace kvcache

#endif // KVCACHE_KERNELS_TILE_H
