//===- tile.h - Attention of one warp over one tile of tokens -------------===//
//
// Part of the kvcache project.
//
//===----------------------------------------------------------------------===//
//
// A warp multiplies with A and B swapped, so that a group of up to 8 query
// heads fills the N side and tokens and dims the M side:
//
//   S^T (16 tokens x 8 heads) = K   (16 x headDim)  Q^T (headDim x 8)
//   O^T (16 dims x 8 heads)  += V^T (16 x 16 tokens) P^T (16 tokens x 8)
//
// Groups of 9 to 16 use a second N tile for every K and V fragment; groups
// below 8 leave columns idle, whose queries are zero and which nobody stores.
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
// P leaves the first product with tokens on g and is needed with heads on g:
// two movmatrix for 16 tokens. No permutation of tokens avoids them.
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
  int arch, queryType, cacheType;
  int queryHeads, kvHeads, group, headDim, pageSize;
  i64 kPageStride;
  int kTokenStride, kHeadStride;
  i64 vPageStride;
  int vTokenStride, vHeadStride;
  int tile, stages, unroll;
};

/// The largest values of an array extent below.
constexpr int maxTilesN = 2, maxTilesM = 2, maxChunks = 8;

/// A new reference is the maximum plus this many binades: P starts at 2^-3 and
/// may grow to 2 before the accumulators are rescaled. With 6, a sink token 14
/// binades above thousands of equal ones costs 30 times the accuracy (f16
/// subnormals); with 0.5, rescales are a hundred times as frequent.
constexpr float headroom = 3.f;

constexpr u32 minusInfinity = 0xff800000u, plusInfinity = 0x7f800000u,
              quietNaN = 0x7fc00000u;

/// What a warp carries from tile to tile. Index n: N tile; h: heads 2t + h.
struct WarpState {
  float o[maxTilesN][maxChunks][4];
  float sum[maxTilesN][2];    // this lane's tokens only
  float negRef[maxTilesN][2]; // minus the reference, log2 units
  u32 fresh;                  // 0x40004000 before the first tile, else 0
  u32 nanK;                   // see decode4
  u32 nanV[maxChunks]; // bytes 0, 2: dim 16c + 2g; 1, 3: dim 16c + 2g + 1
};

/// Queries of head g of each N tile in B fragments, and the factor that turns
/// products into log2 units, for heads 2t and 2t + 1.
struct Queries {
  u32 b[maxTilesN][2 * maxChunks];
  float scale[maxTilesN][2];
};

using Scores = float[maxTilesN][maxTilesM][4];

/// S^T minus reference, log2 units: s[n][m][h] is token 16m + g, s[n][m][2 + h]
/// token 16m + g + 8. `nan[m][i]` collects NaN codes of token 16m + g + 8i.
KVCACHE_DEVICE void tileScores(const AttentionShape &shape, u32 kAddress,
                               const Queries &q, const WarpState &state,
                               Scores &s, u32 (&nan)[maxTilesM][2]) {
  const int tilesM = shape.tile / 16, n = tilesN(shape.group);
  const int pitch = rowPitch(shape.headDim);
#pragma unroll
  for (int m = 0; m < tilesM; ++m) {
#pragma unroll
    for (int i = 0; i < n; ++i) {
#pragma unroll
      for (int e = 0; e < 4; ++e)
        s[i][m][e] = 0.f;
    }
#pragma unroll
    for (int j = 0; j < shape.headDim / 32; ++j) {
      u32 r[4];
      ptx::ldmatrix(r, kAddress + m * 16 * pitch + 32 * j);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        u32 low0, high0, low1, high1;
        decode4(shape.arch, shape.cacheType, Neighbours, r[2 * half], low0,
                high0, nan[m][0]);
        decode4(shape.arch, shape.cacheType, Neighbours, r[2 * half + 1], low1,
                high1, nan[m][1]);
        int c = 2 * j + half;
#pragma unroll
        for (int i = 0; i < n; ++i)
          ptx::mma(s[i][m], low0, low1, high0, high1, q.b[i][2 * c],
                   q.b[i][2 * c + 1]);
      }
    }
#pragma unroll
    for (int i = 0; i < n; ++i) {
#pragma unroll
      for (int e = 0; e < 4; ++e)
        s[i][m][e] = __builtin_fmaf(s[i][m][e], q.scale[i][e & 1],
                                    state.negRef[i][e & 1]);
    }
  }
}

/// Scores of tokens at or past `valid` become minus infinity.
KVCACHE_DEVICE void maskScores(const AttentionShape &shape, Scores &s,
                               int valid, u32 g) {
#pragma unroll
  for (int m = 0; m < shape.tile / 16; ++m) {
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      bool masked = static_cast<int>(16 * m + g + 8 * (e >> 1)) >= valid;
#pragma unroll
      for (int i = 0; i < tilesN(shape.group); ++i)
        s[i][m][e] = masked ? ptx::asFloat(minusInfinity) : s[i][m][e];
    }
  }
}

/// Maximum over the tokens of a tile for head 2t + h of N tile i, in all lanes.
KVCACHE_DEVICE float tileMaximum(const AttentionShape &shape, const Scores &s,
                                 int i, int h) {
  float r = ptx::maxF32(s[i][0][h], s[i][0][2 + h]);
  if (shape.tile == 32)
    r = ptx::maxF32(r, ptx::maxF32(s[i][1][h], s[i][1][2 + h]));
  r = ptx::maxF32(r, ptx::shuffleXor(r, 4));
  r = ptx::maxF32(r, ptx::shuffleXor(r, 8));
  return ptx::maxF32(r, ptx::shuffleXor(r, 16));
}

/// P = 2^s in f16 pairs (heads 2t, 2t + 1) and its sums over this lane's
/// tokens.
KVCACHE_DEVICE void exponentials(const AttentionShape &shape, const Scores &s,
                                 u32 (&p)[maxTilesN][2 * maxTilesM],
                                 float (&sum)[maxTilesN][2]) {
#pragma unroll
  for (int i = 0; i < tilesN(shape.group); ++i) {
#pragma unroll
    for (int m = 0; m < shape.tile / 16; ++m) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        float a = ptx::exp2(s[i][m][2 * e]), b = ptx::exp2(s[i][m][2 * e + 1]);
        p[i][2 * m + e] = ptx::packF16(a, b);
        sum[i][0] = m + e ? sum[i][0] + a : a;
        sum[i][1] = m + e ? sum[i][1] + b : b;
      }
    }
  }
}

/// Raises the references of heads whose scores outgrew them by more than the
/// headroom, and rescales what was accumulated. The first tile comes here as
/// well and sets the references. Rare otherwise.
KVCACHE_DEVICE void rescale(const AttentionShape &shape, Scores &s,
                            WarpState &state) {
  bool first = state.fresh != 0;
  state.fresh = 0;
#pragma unroll
  for (int i = 0; i < tilesN(shape.group); ++i) {
    float f[2];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      float top = tileMaximum(shape, s, i, h);
      bool moves = top > (first ? ptx::asFloat(minusInfinity) : 0.f);
      float raise = moves ? top + headroom : 0.f;
      state.negRef[i][h] -= raise;
      // Nothing is accumulated yet; 2^-raise may be infinite.
      f[h] = first ? 0.f : ptx::exp2(-raise);
      state.sum[i][h] *= f[h];
#pragma unroll
      for (int m = 0; m < shape.tile / 16; ++m) {
        s[i][m][h] -= raise;
        s[i][m][2 + h] -= raise;
      }
    }
#pragma unroll
    for (int c = 0; c < shape.headDim / 16; ++c) {
#pragma unroll
      for (int e = 0; e < 4; ++e)
        state.o[i][c][e] *= f[e & 1];
    }
  }
}

/// One tile: scores, probabilities, output. A `masked` tile has `valid` tokens:
/// scores beyond are minus infinity, and V is zero there by selection, because
/// an unused slot may hold NaN and 0 * NaN is NaN.
KVCACHE_DEVICE void tileStep(const AttentionShape &shape, u32 kAddress,
                             u32 vAddress, const Queries &q, WarpState &state,
                             bool masked, int valid, u32 lane) {
  const int tilesM = shape.tile / 16, n = tilesN(shape.group);
  const int pitch = rowPitch(shape.headDim);
  u32 t2 = (lane & 3) * 2, g = lane >> 2;
  Scores s;
  u32 nan[maxTilesM][2] = {};
  tileScores(shape, kAddress, q, state, s, nan);
  if (masked)
    maskScores(shape, s, valid, g);
#pragma unroll
  for (int m = 0; m < tilesM; ++m) {
#pragma unroll
    for (int e = 0; e < 2; ++e)
      state.nanK |= !masked || static_cast<int>(16 * m + g + 8 * e) < valid
                        ? nan[m][e]
                        : 0u;
  }

  u32 p[maxTilesN][2 * maxTilesM];
  float sum[maxTilesN][2];
  exponentials(shape, s, p, sum);
  u32 big = state.fresh; // bit 14 of an f16: 2 or more, infinity, NaN
#pragma unroll
  for (int i = 0; i < n; ++i) {
#pragma unroll
    for (int m = 0; m < 2 * tilesM; ++m)
      big |= p[i][m];
  }
  if (__builtin_expect(ptx::anyBit(big, 0x40004000u), 0)) {
    rescale(shape, s, state);
    exponentials(shape, s, p, sum);
  }
#pragma unroll
  for (int i = 0; i < n; ++i) {
#pragma unroll
    for (int h = 0; h < 2; ++h)
      state.sum[i][h] += sum[i][h];
  }

#pragma unroll
  for (int m = 0; m < tilesM; ++m) {
    u32 b0[maxTilesN], b1[maxTilesN]; // head g; tokens 2t, 2t+1 and 2t+8, 2t+9
#pragma unroll
    for (int i = 0; i < n; ++i) {
      b0[i] = ptx::movmatrix(p[i][2 * m]);
      b1[i] = ptx::movmatrix(p[i][2 * m + 1]);
    }
    u32 keep0 = ~0u, keep1 = ~0u; // halves of the valid ones of two tokens
    if (masked) {
      int v = valid - 16 * m - static_cast<int>(t2);
      keep0 = v >= 2 ? ~0u : v == 1 ? 0xffffu : 0u;
      keep1 = v >= 10 ? ~0u : v == 9 ? 0xffffu : 0u;
    }
#pragma unroll
    for (int j = 0; j < shape.headDim / 32; ++j) {
      u32 r[4];
      ptx::ldmatrixTrans(r, vAddress + m * 16 * pitch + 32 * j);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        int c = 2 * j + half;
        u32 x0 = r[2 * half], x1 = r[2 * half + 1], a0, a1, a2, a3;
        if (masked) {
          x0 &= keep0;
          x1 &= keep1;
        }
        decode4(shape.arch, shape.cacheType, Alternate, x0, a0, a1,
                state.nanV[c]);
        decode4(shape.arch, shape.cacheType, Alternate, x1, a2, a3,
                state.nanV[c]);
#pragma unroll
        for (int i = 0; i < n; ++i)
          ptx::mma(state.o[i][c], a0, a1, a2, a3, b0[i], b1[i]);
      }
    }
  }
}

/// Puts NaN where decode4 saw NaN codes: a NaN in K makes every score of its
/// token NaN, and so the whole output of the KV head; a NaN in V makes its dim
/// NaN for every head.
KVCACHE_DEVICE void applyNaN(const AttentionShape &shape, WarpState &state) {
  const int chunks = shape.headDim / 16;
  u32 seen = state.nanK;
#pragma unroll
  for (int c = 0; c < chunks; ++c)
    seen |= state.nanV[c];
  if (!ptx::anyBit(seen, 0x80808080u))
    return;
  bool all = ptx::anyBit(state.nanK, 0x80808080u);
#pragma unroll
  for (int c = 0; c < chunks; ++c) {
    u32 v = state.nanV[c]; // tokens are spread over t
    v |= ptx::shuffleXor(v, 1);
    v |= ptx::shuffleXor(v, 2);
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      bool bad = all || (v & (e < 2 ? 0x00800080u : 0x80008000u)) != 0;
#pragma unroll
      for (int i = 0; i < tilesN(shape.group); ++i)
        state.o[i][c][e] = bad ? ptx::asFloat(quietNaN) : state.o[i][c][e];
    }
  }
#pragma unroll
  for (int i = 0; i < tilesN(shape.group); ++i) {
#pragma unroll
    for (int h = 0; h < 2; ++h)
      state.sum[i][h] = all ? ptx::asFloat(quietNaN) : state.sum[i][h];
  }
}

} // namespace kernels
} // namespace kvcache

#endif // KVCACHE_KERNELS_TILE_H
