//===- mla_attention.cu - Attention over a paged latent cache -------------===//
//
// Part of the kvcache project.
//
//===----------------------------------------------------------------------===//
//
// Multi-head latent attention in its absorbed form: one row of latent and
// rotary elements is the key of all query heads, and its latent part the value.
// A CTA is one (block of query heads, block of a sequence's query rows, split),
// 64 columns at most. Its eight warps share each tile, which is K and V at
// once:
//
//   codes -> 16 bits, each thread those that it copied    barrier
//   S^T of a warp: 16 columns, some tokens, half a row    barrier
//   the halves meet, P = 2^s to shared memory             barrier, any P >= 2?
//   O^T += V^T P^T of a warp: an eighth of the latent dims, all columns
//
// Queries stay in registers: 16 columns and half a row are 72 of them, and the
// output 128. A warp of half h sums what both halves have of the tokens g + 8h
// of 16, which are rows 0 to 7 of its products: it loads K in that order.
//
// Codes of e4m3 and e5m2 become f16, those of fp8_ds_mla bf16, because of the
// range of their scales: these multiply the scores of each 128 dims, and P.
// Rows of 16 bits are copied to where they are read, and there is no
// conversion.
//
// Tokens beyond the last one are copies of it, with P = 0.
//
//===----------------------------------------------------------------------===//

#include "splits.h"

namespace kvcache {
namespace kernels {

constexpr int mlaMaxTilesN = maxMlaColumns / columnsPerTile;
constexpr int mlaMaxSteps = 4, mlaMaxScaled = 4;

/// Structural constants beside those of AttentionShape, whose headDim is the
/// latent dim, and whose cacheType is what the products read.
struct MlaShape {
  AttentionShape a;
  int stored; // cache type in the pages
  int tilesN; // of the CTA
  int warpN;  // N tiles of a warp's scores
  int steps;  // of 16 tokens that a warp has scores of
  int columnGroups, tokenGroups;
};

KVCACHE_DEVICE bool converts(const MlaShape &shape) {
  return shape.stored != CacheF16 && shape.stored != CacheBF16;
}
/// Scales of a row of the cache that multiply its codes.
KVCACHE_DEVICE int scaledParts(const MlaShape &shape) {
  return shape.stored == TileScaled ? shape.a.headDim / 128 : 1;
}

/// Queries of bf16 and f32 that become f16 have a power of two of their own:
/// see loadFragments.
KVCACHE_DEVICE bool scalesQueries(const MlaShape &shape) {
  return (shape.a.queryType == BF16 || shape.a.queryType == F32) &&
         shape.a.cacheType == CacheF16;
}

/// Chunks of a warp's queries that stay in shared memory, 16 bytes a lane each.
KVCACHE_DEVICE int sharedChunks(const MlaShape &shape) {
  return mlaSharedChunks(shape.a.arch, shape.stored, shape.a.headDim,
                         shape.a.columns, shape.a.tile);
}

/// Which part of a tile's scores a warp has.
struct Part {
  int half, columns, tokens; // of the row; first column; first token
  bool scores;               // small tiles leave some warps without
};

/// Where a thread copies its units of 16 bytes from and to. Rows of codes are
/// taken by four lanes, rows of 16 bits by eight. A tile of 32 rows of codes
/// leaves half of the threads every other turn.
struct Copies {
  const u8 *pages;
  const int *table;
  int row, last; // of a tile; the last token there is
  int id;        // page of the token to request next
  u32 from;      // byte in the row
  u32 to, tile;  // its place in a stage, and what it becomes in the tile
  u32 rotary[2]; // bytes in the rotary part of TileScaled rows
};

KVCACHE_DEVICE Part partOf(const MlaShape &shape, u32 warp) {
  u32 pair = warp >> 1;
  Part part;
  part.half = warp & 1;
  part.columns = pair % shape.columnGroups * shape.warpN * columnsPerTile;
  part.tokens = pair / shape.columnGroups * shape.steps * 16;
  part.scores = shape.tokenGroups * shape.steps * 16 == shape.a.tile ||
                part.tokens < shape.a.tile;
  return part;
}

KVCACHE_DEVICE int lanesPerRow(const MlaShape &shape) {
  return converts(shape) ? 4 : 8;
}
/// Turns of 4 or 8 units in a row, without scales and rotary part of TileScaled
/// rows.
KVCACHE_DEVICE int turns(const MlaShape &shape) {
  const int dims =
      shape.a.headDim + (shape.stored == TileScaled ? 0 : shape.a.ropeDim);
  return dims * cacheBytes(shape.stored == TileScaled ? E4M3 : shape.stored) /
         (16 * lanesPerRow(shape));
}
/// Threads that share a row, in groups of lanesPerRow.
KVCACHE_DEVICE int rowShares(const MlaShape &shape) {
  return mlaThreads / lanesPerRow(shape) / shape.a.tile;
}
KVCACHE_DEVICE int stagePitch(const MlaShape &shape) {
  return mlaStagePitch(shape.stored, shape.a.headDim, shape.a.ropeDim);
}

/// Unit of the rotary part of a TileScaled row that a lane moves in a turn. Two
/// rows of 16 bits are a unit apart in their banks: the second of a pair starts
/// three units later, which is four banks of 16 bytes away from the first.
KVCACHE_DEVICE u32 rotaryUnit(int row, int turn, u32 lane) {
  return (4 * turn + (lane & 3) + (row & 1 ? 3 : 0)) & 7;
}

/// Looks up the page of the thread's row of the tile at `first`.
KVCACHE_DEVICE void loadPage(const MlaShape &shape, Copies &copies, int first) {
  int token = minOf(first + copies.row, copies.last);
  copies.id = ptx::loadI32(copies.table, token / shape.a.pageSize);
}

/// Requests the thread's part of the tile at `first` into a stage, and looks up
/// the page of the next tile.
KVCACHE_DEVICE void request(const MlaShape &shape, Copies &copies, int first,
                            u32 stage) {
  const int shares = rowShares(shape), all = turns(shape);
  const u32 width = 16 * lanesPerRow(shape);
  int inPage = minOf(first + copies.row, copies.last) % shape.a.pageSize;
  const u8 *row = copies.pages +
                  static_cast<u64>(static_cast<u32>(copies.id)) *
                      static_cast<u64>(shape.a.kPageStride) +
                  static_cast<i64>(inPage) * shape.a.kTokenStride;
  u32 to = stage + copies.to;
#pragma unroll
  for (int i = 0; i < ceilDiv(all, shares); ++i) {
    if (i < all / shares || copies.from < width)
      ptx::copyAsync16(to + i * shares * width,
                       row + copies.from + i * shares * width);
  }
  if (shape.stored == TileScaled) {
    const int codes = shape.a.headDim, scales = codes / 32;
#pragma unroll
    for (int i = 0; i < 2 / shares; ++i)
      ptx::copyAsync16(to + codes + scales + i * width,
                       row + codes + scales + copies.rotary[i]);
    if (copies.from == 0)
      ptx::copyAsync16(to + codes, row + codes);
  }
  loadPage(shape, copies, first + shape.a.tile);
}

/// Sixteen codes at `from` to elements at `to`. `nan` as in decode4, or null:
/// NaN in place.
KVCACHE_DEVICE void convertUnit(const MlaShape &shape, u32 from, u32 to,
                                u32 *nan) {
  const int type = shape.stored == TileScaled ? E4M3 : shape.stored;
  u32 codes[4], pairs[8];
  ptx::loadSharedV4(codes, from);
  if (nan) {
#pragma unroll
    for (int e = 0; e < 4; ++e)
      decode4(shape.a.arch, type, Neighbours, codes[e], pairs[2 * e],
              pairs[2 * e + 1], *nan);
  } else {
    decodeExact(shape.a.arch, type, 4, codes, pairs);
  }
  if (shape.stored == TileScaled) {
#pragma unroll
    for (int e = 0; e < 8; ++e)
      pairs[e] = ptx::packBF16(ptx::f16ToF32Low(pairs[e]),
                               ptx::f16ToF32High(pairs[e]));
  }
  ptx::storeSharedV4(to, pairs);
  ptx::storeSharedV4(to + 16, pairs + 4);
}

/// Converts the codes that the thread has requested into the tile. The scales
/// of TileScaled rows follow each row of the tile, in its padding.
KVCACHE_DEVICE void convertTile(const MlaShape &shape, const Copies &copies,
                                u32 stage, u32 tile) {
  const int shares = rowShares(shape), all = turns(shape);
  const u32 width = 16 * lanesPerRow(shape), step = shares * width;
  u32 from = stage + copies.to, to = tile + copies.tile, nan = 0;
#pragma unroll
  for (int i = 0; i < ceilDiv(all, shares); ++i) {
    if (i < all / shares || copies.from < width)
      convertUnit(shape, from + i * step, to + 2 * i * step, &nan);
  }
  if (__builtin_expect((nan & 0x80808080u) != 0, 0)) { // once more, exactly
#pragma unroll 1
    for (u32 i = 0; i * width + copies.from < all * width; i += shares)
      convertUnit(shape, from + i * width, to + 2 * i * width, nullptr);
  }
  if (shape.stored == TileScaled) {
    const int codes = shape.a.headDim, scales = codes / 32;
    u32 row = to - 2 * copies.from;
#pragma unroll
    for (int i = 0; i < 2 / shares; ++i) {
      u32 x[4];
      ptx::loadSharedV4(x, from + codes + scales + i * width);
      ptx::storeSharedV4(row + 2 * codes + copies.rotary[i], x);
    }
    if (copies.from == 0) {
      float x[4];
      ptx::loadSharedV4(x, from + codes);
#pragma unroll
      for (int e = 0; e < 4; ++e)
        x[e] *= decodedUnit(shape.a.arch, E4M3);
      ptx::storeSharedV4(row + 2 * (codes + shape.a.ropeDim), x);
    }
  }
}

/// Shared memory behind the tile and the ring.
struct Areas {
  u32 tile, ring, queries, probs, halves, tops, factors, scales, references,
      flag, block;
};

KVCACHE_DEVICE Areas areasOf(const MlaShape &shape) {
  const int latent = shape.a.headDim, rope = shape.a.ropeDim;
  const int padded = shape.tilesN * columnsPerTile;
  Areas areas;
  areas.tile = ptx::dynamicShared();
  areas.ring =
      areas.tile + mlaTileBytes(shape.stored, latent, rope, shape.a.tile);
  areas.queries =
      areas.ring + shape.a.stages * shape.a.tile * stagePitch(shape);
  areas.probs = areas.queries + mlaWarps * 512 * sharedChunks(shape);
  areas.halves = areas.probs + mlaProbBytes(shape.stored, latent,
                                            shape.a.columns, shape.a.tile);
  areas.tops = areas.halves; // read by then
  areas.factors = areas.halves + 4 * shape.a.tile * padded;
  areas.scales = areas.factors + 4 * padded;
  areas.references = areas.scales + 8 * padded;
  areas.flag = areas.references + 4 * padded;
  areas.block = areas.flag + 16;
  return areas;
}

/// N tiles of the output that fit into shared memory in front of the sums.
KVCACHE_DEVICE int outputTiles(const MlaShape &shape) {
  const int latent = shape.a.headDim, rope = shape.a.ropeDim;
  const int room =
      mlaTileBytes(shape.stored, latent, rope, shape.a.tile) +
      shape.a.stages * shape.a.tile * stagePitch(shape) +
      mlaWarps * 512 * sharedChunks(shape) +
      mlaProbBytes(shape.stored, latent, shape.a.columns, shape.a.tile);
  const int bytes = columnsPerTile * 4 * mergePitch(latent);
  return shape.tilesN * bytes <= room       ? shape.tilesN
         : shape.tilesN / 2 * bytes <= room ? shape.tilesN / 2
                                            : shape.tilesN / 4;
}

/// What a warp carries from tile to tile: the output of its dims, and sums of
/// the columns that it has scores of, whose references are in shared memory.
/// `fresh` as in WarpState.
struct MlaState {
  float o[mlaMaxTilesN][mlaMaxSteps][4];
  float sum[2][2];
  u32 fresh;
};

using MlaScores = float[2][mlaMaxSteps][2];

/// Address of what a warp leaves for its other half, or finds there: for each
/// step and N tile 256 bytes, two scores a lane.
KVCACHE_DEVICE u32 halfAddress(const MlaShape &shape, const Areas &areas,
                               u32 pair, u32 half, u32 lane) {
  return areas.halves + (pair * 2 + half) * (shape.steps * shape.warpN * 256) +
         lane * 8;
}

/// Adds the products of the chunks first .. last - 1 of the half row for the
/// tokens of step `m` and those after it, `count` steps.
KVCACHE_DEVICE void addHalf(const MlaShape &shape, u32 k, int first, int last,
                            int m, int count, const Queries &q,
                            float (&d)[2][2][4]) {
  const int stored = sharedChunks(shape);
#pragma unroll
  for (int c = first; c < last; ++c) {
    u32 b[4];
    if (c < stored)
      ptx::loadSharedV4(b, q.shared + c * 512);
#pragma unroll
    for (int j = 0; j < count; ++j) {
      u32 r[4];
      ptx::ldmatrix(r, k, (m + j) * 16 * pitchOf(shape.a) + 32 * c);
#pragma unroll
      for (int i = 0; i < shape.warpN; ++i) {
#pragma unroll
        for (int term = 0; term < queryTerms(shape.a.queryType); ++term)
          product(shape.a, d[i][j], r[0], r[1], r[2], r[3],
                  c < stored ? b[2 * i] : q.b[i][term][2 * c],
                  c < stored ? b[2 * i + 1] : q.b[i][term][2 * c + 1]);
      }
    }
  }
}

/// The warp's half of the scores, without factor: s[i][m][h] of the tokens
/// g + 8 half of each 16; those of the others go to the other half. With
/// TileScaled rows the scales are in. Few steps at a time need few registers.
KVCACHE_DEVICE void halfScores(const MlaShape &shape, const Part &part,
                               u32 tile, u32 to, const Queries &q, u32 lane,
                               MlaScores &s) {
  const bool scaled = shape.stored == TileScaled;
  const int pitch = pitchOf(shape.a), latent = shape.a.headDim;
  const int chunks = (latent + shape.a.ropeDim) / 32, turn = latent / 32;
  const int count = minOf(2, shape.steps), n = shape.warpN;
  u32 half = static_cast<u32>(part.half), g = lane >> 2;
  u32 row = tile + part.tokens * pitch +
            ((lane & 7) + ((lane >> 3 & 1) ^ half) * 8) * pitch +
            (lane >> 4) * 16;
  u32 k = row + half * latent, rotary = row + latent + half * shape.a.ropeDim;
  u32 scales = tile + 2 * (latent + shape.a.ropeDim) +
               (part.tokens + g + half * 8) * pitch + half * (latent / 64);
#pragma unroll
  for (int m = 0; m < shape.steps; m += count) {
    float d[2][2][4];
#pragma unroll
    for (int i = 0; i < n; ++i) {
#pragma unroll
      for (int j = 0; j < count; ++j) {
#pragma unroll
        for (int e = 0; e < 4; ++e)
          d[i][j][e] = 0.f;
      }
    }
    if (!scaled)
      addHalf(shape, k, 0, turn, m, count, q, d);
    if (scaled) {
#pragma unroll
      for (int c = 0; c < turn; c += 8) { // 128 dims
        float x[2][2][4] = {};
        addHalf(shape, k, c, c + 8, m, count, q, x);
#pragma unroll
        for (int j = 0; j < count; ++j) {
          u32 at = scales + (m + j) * 16 * pitch + c / 2;
          const float scale[2] = {
              ptx::loadSharedF32(at),
              ptx::loadSharedF32(half ? at - 8 * pitch : at + 8 * pitch)};
#pragma unroll
          for (int i = 0; i < n; ++i) {
#pragma unroll
            for (int e = 0; e < 4; ++e)
              d[i][j][e] = __builtin_fmaf(x[i][j][e], scale[e / 2], d[i][j][e]);
          }
        }
      }
    }
    addHalf(shape, rotary, turn, chunks, m, count, q, d);
#pragma unroll
    for (int j = 0; j < count; ++j) {
#pragma unroll
      for (int i = 0; i < n; ++i) {
        s[i][m + j][0] = d[i][j][0];
        s[i][m + j][1] = d[i][j][1];
        ptx::storeSharedV2(to + ((m + j) * n + i) * 256, d[i][j][2],
                           d[i][j][3]);
      }
    }
  }
}

/// P of the warp's tokens to shared memory, [token][column] for each scale;
/// adds to the sums. Returns the bits of all P.
KVCACHE_DEVICE u32 storeProbs(const MlaShape &shape, const Part &part,
                              const Areas &areas, const MlaScores &s, u32 lane,
                              float (&sum)[2][2]) {
  const int pitch = rowPitch(shape.tilesN * columnsPerTile, 2);
  const int parts = scaledParts(shape);
  u32 g = lane >> 2, t = lane & 3, big = 0;
#pragma unroll
  for (int m = 0; m < shape.steps; ++m) {
    u32 row = part.tokens + m * 16 + g + part.half * 8;
    u32 to = areas.probs + row * pitch + (part.columns + 2 * t) * 2;
    float scale[mlaMaxScaled] = {1.f, 1.f, 1.f, 1.f};
    if (parts > 1)
      ptx::loadSharedV4(scale, areas.tile + row * pitchOf(shape.a) +
                                   2 * (shape.a.headDim + shape.a.ropeDim));
#pragma unroll
    for (int i = 0; i < shape.warpN; ++i) {
      float a = ptx::exp2(s[i][m][0]), b = ptx::exp2(s[i][m][1]);
      sum[i][0] = m ? sum[i][0] + a : a;
      sum[i][1] = m ? sum[i][1] + b : b;
      if (parts == 1) {
        u32 p = shape.a.cacheType == CacheBF16 ? ptx::packBF16(a, b)
                                               : ptx::packF16(a, b);
        big |= p;
        ptx::storeSharedU32(to + 16 * i, p);
        continue;
      }
      big |= ptx::packBF16(a, b);
#pragma unroll
      for (int n = 0; n < parts; ++n)
        ptx::storeSharedU32(to + n * shape.a.tile * pitch + 16 * i,
                            ptx::packBF16(a * scale[n], b * scale[n]));
    }
  }
  return big;
}

/// Takes tokens out that a column does not see, raises the references of
/// columns whose scores outgrew them in any warp, and rescales the output: see
/// rescale. All warps take part. `high`: keys of the tile that the first row
/// sees; `tokens`: that there are.
KVCACHE_DEVICE void mlaRescale(const MlaShape &shape, const Part &part,
                               const Areas &areas, int high, int tokens,
                               u32 warp, u32 lane, MlaScores &s,
                               float (&negRef)[2][2], MlaState &state) {
  const int padded = shape.tilesN * columnsPerTile;
  const u32 g = lane >> 2, t = lane & 3;
  ptx::warpSync(); // or ptxas prepares the shuffles for lanes that have parted
  u32 mine = (part.columns + 2 * t) * 4,
      group = (warp >> 1) / shape.columnGroups;
  float top[2][2];
  if (part.scores) {
#pragma unroll
    for (int i = 0; i < shape.warpN; ++i) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        int column = part.columns + i * columnsPerTile + 2 * t + h;
        int sees = minOf(
            tokens, high + (shape.a.rows > 1 ? column / shape.a.heads : 0));
        float r = ptx::asFloat(minusInfinity);
#pragma unroll
        for (int m = 0; m < shape.steps; ++m) {
          int token = part.tokens + m * 16 + g + part.half * 8;
          s[i][m][h] = token < sees ? s[i][m][h] : ptx::asFloat(minusInfinity);
          r = ptx::maxF32(r, s[i][m][h]);
        }
        r = ptx::maxF32(r, ptx::shuffleXor(r, 4));
        r = ptx::maxF32(r, ptx::shuffleXor(r, 8));
        top[i][h] = ptx::maxF32(r, ptx::shuffleXor(r, 16));
      }
      if (g == 0)
        ptx::storeSharedV2(areas.tops + (group * 2 + part.half) * padded * 4 +
                               mine + 32 * i,
                           top[i][0], top[i][1]);
    }
  }
  ptx::ctaSync();
  if (part.scores) {
    // Groups of tokens that have scores, two halves each.
    const int slots =
        2 * minOf(shape.tokenGroups, shape.a.tile / 16 / shape.steps);
    u32 unset = 0;
#pragma unroll
    for (int i = 0; i < shape.warpN; ++i) {
#pragma unroll
      for (int slot = 0; slot < slots; ++slot) {
        float x[2];
        ptx::loadSharedV2(x, areas.tops + slot * padded * 4 + mine + 32 * i);
        top[i][0] = ptx::maxF32(top[i][0], x[0]);
        top[i][1] = ptx::maxF32(top[i][1], x[1]);
      }
      float f[2];
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        float raise;
        f[h] = raiseReference(MathF16, top[i][h], state.fresh,
                              1u << (2 * i + h), negRef[i][h], raise, unset);
        state.sum[i][h] *= f[h];
#pragma unroll
        for (int m = 0; m < shape.steps; ++m)
          s[i][m][h] -= raise;
      }
      if (part.tokens == 0 && part.half == 0 && g == 0) {
        ptx::storeSharedV2(areas.factors + mine + 32 * i, f[0], f[1]);
        ptx::storeSharedV2(areas.references + mine + 32 * i, negRef[i][0],
                           negRef[i][1]);
      }
    }
    state.fresh = unset ? unset | rescaleNow : 0u;
  }
  ptx::ctaSync();
#pragma unroll
  for (int i = 0; i < shape.tilesN; ++i) {
    float f[2];
    ptx::loadSharedV2(f, areas.factors + (i * columnsPerTile + 2 * t) * 4);
#pragma unroll
    for (int c = 0; c < shape.a.headDim / 16 / mlaWarps; ++c) {
#pragma unroll
      for (int e = 0; e < 4; ++e)
        state.o[i][c][e] *= f[e & 1];
    }
  }
}

/// The warp's scores of a tile: products, the meeting of the halves, P. A
/// `masked` tile, like one whose scores outgrew a reference, goes through
/// mlaRescale.
KVCACHE_DEVICE void mlaScores(const MlaShape &shape, const Areas &areas,
                              u32 tile, const Queries &q, float scale,
                              bool masked, int high, int tokens, u32 warp,
                              u32 lane, MlaState &state) {
  const int n = shape.warpN, padded = shape.tilesN * columnsPerTile;
  const u32 pair = warp >> 1, half = warp & 1;
  const Part part = partOf(shape, warp);
  MlaScores s;
  float sum[2][2], negRef[2][2];
  if (part.scores)
    halfScores(shape, part, tile, halfAddress(shape, areas, pair, half, lane),
               q, lane, s);
  ptx::ctaSync();
  if (part.scores) {
    u32 from = halfAddress(shape, areas, pair, 1 - half, lane);
    u32 mine = (part.columns + 2 * (lane & 3)) * 4;
#pragma unroll
    for (int i = 0; i < n; ++i) {
      u32 at = areas.scales + mine + 32 * i;
      float own[2] = {scale, scale}, other[2] = {scale, scale};
      if (scalesQueries(shape)) {
        ptx::loadSharedV2(own, at + half * padded * 4);
        ptx::loadSharedV2(other, at + (1 - half) * padded * 4);
      }
      ptx::loadSharedV2(negRef[i], areas.references + mine + 32 * i);
#pragma unroll
      for (int m = 0; m < shape.steps; ++m) {
        float x[2];
        ptx::loadSharedV2(x, from + (m * n + i) * 256);
#pragma unroll
        for (int h = 0; h < 2; ++h)
          s[i][m][h] = __builtin_fmaf(
              s[i][m][h], own[h], __builtin_fmaf(x[h], other[h], negRef[i][h]));
      }
    }
  }
  for (bool again = false;; again = true) {
    u32 big = 0;
    if (part.scores)
      big = storeProbs(shape, part, areas, s, lane, sum) | state.fresh;
    bool rescales = ((big & rescaleNow) != 0 || masked) && !again;
    if (__builtin_expect(!ptx::anyInCta(rescales), 1)) // P is there for all
      break;
    mlaRescale(shape, part, areas, high, tokens, warp, lane, s, negRef, state);
  }
  if (part.scores) {
#pragma unroll
    for (int i = 0; i < n; ++i) {
#pragma unroll
      for (int h = 0; h < 2; ++h)
        state.sum[i][h] += sum[i][h];
    }
  }
}

/// Adds V^T P^T of a tile in the warp's dims.
KVCACHE_DEVICE void mlaOutputs(const MlaShape &shape, const Areas &areas,
                               u32 tile, u32 warp, u32 lane, MlaState &state) {
  const int pitch = pitchOf(shape.a), dims = shape.a.headDim / mlaWarps;
  const int padded = shape.tilesN * columnsPerTile;
  const int probPitch = rowPitch(padded, 2);
  u32 v = tile + fragmentOffset(shape.a, true, lane) + warp * dims * 2;
  // Tokens 0..7 and 8..15 of an N tile, then of the next one.
  u32 probs = areas.probs + ((lane & 7) + (lane >> 3 & 1) * 8) * probPitch +
              (lane >> 4) * 16;
  if (scaledParts(shape) > 1)
    probs += warp * dims / 128 * (shape.a.tile * probPitch);
#pragma unroll
  for (int m = 0; m < shape.a.tile / 16; ++m) {
    u32 b[mlaMaxTilesN][2];
#pragma unroll
    for (int i = 0; i < shape.tilesN; i += 2) {
      u32 r[4];
      if (shape.tilesN > 1)
        ptx::ldmatrixTrans(r, probs, m * 16 * probPitch + i * 16);
      else
        ptx::ldmatrixTransHalf(r, probs + m * 16 * probPitch);
      b[i][0] = r[0];
      b[i][1] = r[1];
      if (shape.tilesN > 1) {
        b[i + 1][0] = r[2];
        b[i + 1][1] = r[3];
      }
    }
#pragma unroll
    for (int c = 0; c < dims / 16; ++c) {
      u32 r[4];
      ptx::ldmatrixTrans(r, v, m * 16 * pitch + 32 * c);
#pragma unroll
      for (int i = 0; i < shape.tilesN; ++i)
        product(shape.a, state.o[i][c], r[0], r[1], r[2], r[3], b[i][0],
                b[i][1]);
    }
  }
}

/// The queries of the warp's columns and half of the row, and to shared memory
/// the factors of their scores: each half has a power of two of its own.
KVCACHE_DEVICE void loadMlaQueries(const MlaShape &shape, const Part &part,
                                   const Areas &areas, const u8 *q,
                                   const Columns &live, float scale, u32 lane,
                                   Queries &out) {
  const int latent = shape.a.headDim, rope = shape.a.ropeDim;
  const int padded = shape.tilesN * columnsPerTile;
  const QueryPart row = {(latent + rope) / 32, latent / 32,
                         part.half * (latent / 2),
                         latent / 2 + part.half * (rope / 2)};
  u32 g = lane >> 2, t = lane & 3;
  // One body for both N tiles: what one turn loads, the next one moves to its
  // place. Where registers are scarcest that costs one too many.
  const int atOnce =
      machineOf(shape.a.arch).sharedPerCta < 128 * 1024 ? shape.warpN : 1;
#pragma unroll 1
  for (int first = 0; first < shape.warpN; first += atOnce) {
    if (atOnce < shape.warpN) {
#pragma unroll
      for (int c = 0; c < 2 * row.chunks; ++c)
        out.b[0][0][c] = out.b[1][0][c];
    }
#pragma unroll
    for (int j = 0; j < atOnce; ++j) {
      float down;
      u32 tile = part.columns / columnsPerTile + first + j;
      loadFragments(shape.a, q, row, live, tile, lane,
                    out.b[shape.warpN - atOnce + j], down);
      u32 column = tile * columnsPerTile + g;
      if (t == 0 && part.tokens == 0) {
        ptx::storeSharedF32(areas.scales + (part.half * padded + column) * 4,
                            scale * down);
        if (part.half == 0)
          ptx::storeSharedF32(areas.references + column * 4, 0.f);
      }
    }
  }
#pragma unroll
  for (int c = 0; c < sharedChunks(shape); ++c) { // of two N tiles
    const u32 x[4] = {out.b[0][0][2 * c], out.b[0][0][2 * c + 1],
                      out.b[1][0][2 * c], out.b[1][0][2 * c + 1]};
    ptx::storeSharedV4(out.shared + c * 512, x);
  }
}

/// Where the results of a CTA go, whose first row is `first` and whose heads
/// are block `x`.
KVCACHE_DEVICE Results mlaResults(const AttentionShape &shape, u8 *out,
                                  float *lse, float factor, int first, int x) {
  i64 column = static_cast<i64>(first) * shape.queryHeads + x * shape.heads;
  return {out + column * shape.headDim * activationBytes(shape.outType),
          lse + column, factor, nullptr};
}

/// The kernel: see kvcache_mla_attention.
KVCACHE_DEVICE void
mlaAttention(const MlaShape &shape, const u8 *q, const u8 *pages,
             const int *page_table, const int *lengths, const int *query_start,
             u8 *out, float *lse, float *partials, unsigned *counters,
             float score_scale, float output_scale, int max_tokens,
             int max_sequences, int max_pages_per_sequence, int split_tokens,
             int num_splits, int has_lse) {
  const AttentionShape &a = shape.a;
  const int tile = a.tile, stages = a.stages, latent = a.headDim;
  const int heads = a.queryHeads, padded = shape.tilesN * columnsPerTile;
  const int stage = tile * stagePitch(shape);
  const bool copiesCodes = converts(shape);
  const float unit =
      shape.stored == TileScaled ? 1.f : decodedUnit(a.arch, shape.stored);
  const float factor = score_scale * unit * queryUnit(a);

  u32 thread = ptx::threadX(), lane = thread & 31;
  u32 warp = ptx::shuffle(thread >> 5, 0); // uniform for the compiler, too
  int x = static_cast<int>(ptx::ctaX()), y = static_cast<int>(ptx::ctaY());
  int split = num_splits > 1 ? static_cast<int>(ptx::ctaZ()) : 0;
  Block block;
  if (!findBlock(a, query_start, lengths, max_tokens, max_sequences,
                 max_pages_per_sequence, a.rows, y, x, lane, block))
    return;
  const int keys = block.keys;
  Results results =
      mlaResults(a, out, lse, output_scale * unit, block.first, x);
  if (keys <= 0) {
    if (split == 0)
      storeEmpty(a, has_lse != 0, results, block.live, mlaThreads, thread);
    return;
  }
  int share = tokensPerSplit(keys, split_tokens, num_splits);
  int splits = num_splits > 1 ? ceilDiv(keys, share) : 1; // with tokens
  if (split >= splits)
    return;
  int begin = split * share, end = minOf(begin + share, keys);

  const Areas areas = areasOf(shape);
  // For the end: registers are scarce until then. Not `thread == 0`, which
  // finishSplits asks, and would find in a register.
  if (warp == 0 && lane == 0) {
    const u32 words[4] = {
        static_cast<u32>(block.first), static_cast<u32>(block.live.rows),
        static_cast<u32>(block.live.heads), static_cast<u32>(splits)};
    ptx::storeSharedV4(areas.block, words);
  }
  Copies copies;
  copies.pages = pages;
  copies.table =
      page_table + static_cast<i64>(block.sequence) * max_pages_per_sequence;
  {
    const u32 lanes = static_cast<u32>(lanesPerRow(shape));
    int row = static_cast<int>(thread / lanes % static_cast<u32>(tile));
    int turn = static_cast<int>(thread / (lanes * static_cast<u32>(tile)));
    copies.row = row;
    copies.last = end - 1;
    copies.from = (turn * lanes + thread % lanes) * 16;
    copies.to = row * stagePitch(shape) + copies.from;
    copies.tile = row * pitchOf(a) + 2 * copies.from;
#pragma unroll
    for (int i = 0; i < 2; ++i)
      copies.rotary[i] = rotaryUnit(row, i + turn, lane) * 16;
  }
  loadPage(shape, copies, begin);
  // Codes leave their stage before it is requested again; rows of 16 bits stay
  // until the next tile.
  const int ahead = copiesCodes ? stages : stages - 1;
#pragma unroll 1
  for (int i = 0; i < ahead; ++i) {
    if (begin + i * tile < end)
      request(shape, copies, begin + i * tile, areas.ring + i * stage);
    ptx::copyCommit();
  }

  Queries fragments = {};
  fragments.shared =
      areas.queries + warp * (512 * sharedChunks(shape)) + lane * 16;
  loadMlaQueries(shape, partOf(shape, warp), areas,
                 q + (static_cast<i64>(block.first) * heads + x * a.heads) *
                         (latent + a.ropeDim) * activationBytes(a.queryType),
                 block.live, factor, lane, fragments);
  MlaState state;
#pragma unroll
  for (int i = 0; i < shape.tilesN; ++i) {
#pragma unroll
    for (int c = 0; c < latent / 16 / mlaWarps; ++c) {
#pragma unroll
      for (int e = 0; e < 4; ++e)
        state.o[i][c][e] = 0.f;
    }
  }
#pragma unroll
  for (int i = 0; i < 2; ++i)
    state.sum[i][0] = state.sum[i][1] = 0.f;
  state.fresh = rescaleNow | ((1u << 2 * shape.warpN) - 1);

  u32 read = areas.ring, write = areas.ring + (stages - 1) * stage;
#pragma unroll 1
  for (int token = begin; token < end; token += tile) {
    u32 rows = read;
    ptx::copyWait(ahead - 1);
    ptx::ctaSync(); // nobody reads the last tile any more
    if (copiesCodes) {
      rows = areas.tile;
      convertTile(shape, copies, read, rows);
    }
    if (token + ahead * tile < end)
      request(shape, copies, token + ahead * tile, copiesCodes ? read : write);
    ptx::copyCommit();
    if (copiesCodes)
      ptx::ctaSync();
    write = read;
    read =
        read == areas.ring + (stages - 1) * stage ? areas.ring : read + stage;
    // Tokens that all rows see need no mask.
    bool masked = token + tile > minOf(end, block.high);

    mlaScores(shape, areas, rows, fragments, factor, masked, block.high - token,
              end - token, warp, lane, state);
    mlaOutputs(shape, areas, rows, warp, lane, state);
  }
  ptx::copyWait(0);
  ptx::ctaSync();

  // Sums and references of the columns.
  warp = ptx::shuffle(thread >> 5, 0); // rather than a register until here
  const Part part = partOf(shape, warp);
  u32 g = lane >> 2, t = lane & 3;
  if (part.scores) {
#pragma unroll
    for (int i = 0; i < shape.warpN; ++i) {
      float sum[2];
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        sum[h] = state.sum[i][h];
        sum[h] += ptx::shuffleXor(sum[h], 4);
        sum[h] += ptx::shuffleXor(sum[h], 8);
        sum[h] += ptx::shuffleXor(sum[h], 16);
      }
      u32 mine = (part.columns + i * columnsPerTile + 2 * t) * 4;
      u32 slot = (warp >> 1) / shape.columnGroups * 2 + part.half;
      if (g == 0) {
        ptx::storeSharedV2(areas.tops + slot * padded * 4 + mine, sum[0],
                           sum[1]);
        // Without a key: minus infinity, no weight in the merge.
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          if (slot == 0 && (state.fresh >> (2 * i + h) & 1u) != 0)
            ptx::storeSharedU32(areas.references + mine + 4 * h, plusInfinity);
        }
      }
    }
  }
  u32 words[4];
  ptx::loadSharedV4(words, areas.block);
  results = mlaResults(a, out, lse, output_scale * unit,
                       static_cast<int>(words[0]), x);
  const Columns live = {static_cast<int>(words[1]),
                        a.group % a.heads != 0 ? static_cast<int>(words[2])
                                               : a.heads};
  splits = static_cast<int>(words[3]);
  const Partials partial = partialsOf(
      a, partials, counters, static_cast<i64>(y) * ceilDiv(heads, a.heads) + x,
      split, splits, num_splits);
  const int slots = 2 * minOf(shape.tokenGroups, tile / 16 / shape.steps);
  const int pitch = 4 * mergePitch(latent);
  const u32 quads = static_cast<u32>(latent / 4);
  const int atOnce = outputTiles(shape);
#pragma unroll
  for (int i = 0; i < shape.tilesN; i += atOnce) {
    ptx::ctaSync();
#pragma unroll
    for (int j = i; j < i + atOnce; ++j) {
      u32 at = areas.tile + ((j - i) * columnsPerTile + 2 * t) * pitch +
               warp * (latent / mlaWarps) * 4 + 4 * g;
#pragma unroll
      for (int c = 0; c < latent / 16 / mlaWarps; ++c)
        publishChunk(a, at, 64 * c, pitch, state.o[j][c]);
    }
    ptx::ctaSync();
#pragma unroll 1
    for (u32 k = thread; k < static_cast<u32>(atOnce * columnsPerTile) * quads;
         k += mlaThreads) {
      int within = static_cast<int>(k / quads);
      int column = i * columnsPerTile + within;
      int dim = static_cast<int>(k % quads) * 4;
      if (!isLive(a, live, column))
        continue;
      float o[4], sum = 0.f;
      ptx::loadSharedV4(o, areas.tile + within * pitch + dim * 4);
#pragma unroll
      for (int slot = 0; slot < slots; ++slot)
        sum += ptx::loadSharedF32(areas.tops + (slot * padded + column) * 4);
      float ref = -ptx::loadSharedF32(areas.references + column * 4);
      storePart(a, has_lse != 0, results, partial, column, dim, o, ref, sum);
    }
  }
  finishSplits(a, has_lse != 0, results, live, partial, areas.flag, mlaThreads,
               thread);
}

} // namespace kernels
} // namespace kvcache

using namespace kvcache::kernels;

// Attention of `heads` query heads over one latent row a token, [latent_dim +
// rope_dim]; the value is its latent part. Arguments as those of
// kvcache_paged_attention:
//   q [max_tokens][heads][latent_dim + rope_dim]
//   out [max_tokens][heads][latent_dim]; lse [max_tokens][heads] f32
//   pages [page][token] of latentRowBytes, strides in bytes
// score_scale turns q . codes into log2 units, output_scale is the latent's
// scale, over that of an FP8 output. Scales of TileScaled rows are in the rows.
// Grid (heads / mlaHeadsPerCta rounded up, rowBlocks, num_splits), mlaThreads,
// mlaSharedBytes.
KVCACHE_EXPORT kvcache_mla_attention(
    const void *q, const void *pages, const int *page_table, const int *lengths,
    const int *query_start, void *out, float *lse, float *partials,
    unsigned *counters, float score_scale, float output_scale, int max_tokens,
    int max_sequences, int max_pages_per_sequence,
    // structural constants
    int arch, int q_type, int out_type, int cache_type, int heads,
    int latent_dim, int rope_dim, int page_size, long long page_stride,
    int token_stride, int tile, int stages, int rows, int split_tokens,
    int num_splits, int has_lse) {
  const bool bf16 = cache_type == CacheBF16 || cache_type == TileScaled;
  const int columns = mlaColumns(heads, rows, q_type);
  MlaShape shape = {{arch,
                     q_type,
                     out_type,
                     bf16 ? CacheBF16 : CacheF16,
                     heads,
                     1,
                     heads,
                     latent_dim,
                     latent_dim,
                     page_size,
                     page_stride,
                     token_stride,
                     0,
                     page_stride,
                     token_stride,
                     0,
                     tile,
                     stages,
                     1,
                     rows,
                     mlaHeadsPerCta(heads, rows, q_type),
                     columns,
                     false,
                     false,
                     false,
                     false,
                     false,
                     rope_dim},
                    cache_type,
                    mlaPadded(columns) / columnsPerTile,
                    0,
                    0,
                    0,
                    0};
  // Two terms of a query are as many registers as two N tiles.
  shape.warpN = minOf(2 / queryTerms(q_type), shape.tilesN);
  shape.columnGroups = shape.tilesN / shape.warpN;
  shape.tokenGroups = mlaWarps / 2 / shape.columnGroups;
  shape.steps = maxOf(1, tile / 16 / shape.tokenGroups);
  mlaAttention(shape, static_cast<const u8 *>(q),
               static_cast<const u8 *>(pages), page_table, lengths, query_start,
               static_cast<u8 *>(out), lse, partials, counters, score_scale,
               output_scale, max_tokens, max_sequences, max_pages_per_sequence,
               split_tokens, num_splits, has_lse);
}
