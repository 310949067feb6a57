//===- prefill.cu - Attention of many query rows over a paged FP8 cache ---===//
//
// Part of the kvcache project.
//
//===----------------------------------------------------------------------===//
//
// A CTA is one (KV head and block of its query heads, block of a sequence's
// query rows, split). Each warp has rows of its own, 32 columns of (row, head)
// for head dims up to 128; all share the tiles of K and V. A tile of 64 keys
// arrives as codes by cp.async, one tile ahead, becomes f16 once, and then
// serves all warps:
//
//   codes of tile i + 1, i + 2 on their way
//   barrier | codes i -> f16, each its share | barrier | steps of each warp
//
// Where a block has so few rows that warps would have none, as that of a
// sequence in decode, the warps divide the steps of a tile, too, and merge at
// the end.
//
// Steps of 32 keys that a warp's rows see wholly skip the mask; those
// that none of its rows sees are skipped themselves. A value that is NaN or
// infinite reaches all rows of a CTA that share a step with one that sees it.
//
//===----------------------------------------------------------------------===//

#include "rows.h"
#include "splits.h"

namespace kvcache {
namespace kernels {

/// What the copies of a CTA need.
struct Tiles {
  const u8 *kHead, *vHead;
  const int *table;
  int firstKey, keys; // keys that any row sees
};

/// Requests the codes of the keys `token` .. `token` + 63 of K and V. Keys that
/// no row sees are replaced by the next one that is seen, in the same step:
/// they are masked, and what is in unused slots does not get in.
KVCACHE_DEVICE void copyCodes(const AttentionShape &shape, const Tiles &tiles,
                              int token, u32 shared, int threads, u32 thread) {
  const int kUnits = shape.headDim / 16, vUnits = shape.vHeadDim / 16;
  // Of a key: those of K and of V, of which one may have fewer.
  const int units = maxOf(kUnits, vUnits), all = prefillTile * units;
#pragma unroll
  for (int i = 0; i < ceilDiv(all, threads); ++i) {
    int unit = static_cast<int>(thread) + i * threads;
    if (all % threads != 0 && unit >= all)
      continue;
    const int row = unit / units;
    int key = minOf(token + row, tiles.keys - 1);
    if (shape.hasWindow)
      key = maxOf(tiles.firstKey, key);
    // Not negative, and divided as such.
    const u32 at = static_cast<u32>(key), size = shape.pageSize;
    const u64 page = static_cast<u32>(ptx::loadI32(tiles.table, at / size));
    const i64 inPage = at % size;
    // Registers are there to add it to the base outside the loop, or not.
    const int inRow = unit % units, chunk = inRow * 16;
    const int before = units <= 4 ? chunk : 0, behind = chunk - before;
    if (inRow < kUnits)
      ptx::copyAsync16(shared + (unit - row * (units - kUnits)) * 16,
                       tiles.kHead + before +
                           page * static_cast<u64>(shape.kPageStride) +
                           inPage * shape.kTokenStride + behind);
    if (inRow < vUnits)
      ptx::copyAsync16(
          shared + (prefillTile * kUnits + unit - row * (units - vUnits)) * 16,
          tiles.vHead + before + page * static_cast<u64>(shape.vPageStride) +
              inPage * shape.vTokenStride + behind);
  }
}

/// 16 codes of rows of `dim` to f16; `unit`: which.
KVCACHE_DEVICE void convertUnit(const AttentionShape &shape, int dim, u32 codes,
                                u32 tile, int unit) {
  const int units = dim / 16, pitch = rowPitch(dim, 2);
  u32 x[4], f[8];
  ptx::loadSharedV4(x, codes + unit * 16);
  decodeExact(shape.arch, shape.cacheType, 4, x, f);
  u32 at = tile + unit / units * pitch + unit % units * 32;
  ptx::storeSharedV4(at, f);
  ptx::storeSharedV4(at + 16, f + 4);
}

/// Codes of `rows` rows to f16. Where that is long integer code there is one
/// copy of it.
KVCACHE_DEVICE void convertRows(const AttentionShape &shape, int rows, int dim,
                                u32 codes, u32 tile, int threads, u32 thread) {
  const int all = rows * dim / 16;
  if (shape.cacheType == E4M3 && !convertsFP8(shape.arch)) {
#pragma unroll 1
    for (int unit = static_cast<int>(thread); unit < all; unit += threads)
      convertUnit(shape, dim, codes, tile, unit);
    return;
  }
#pragma unroll
  for (int i = 0; i < ceilDiv(all, threads); ++i) {
    int unit = static_cast<int>(thread) + i * threads;
    if (all % threads == 0 || unit < all)
      convertUnit(shape, dim, codes, tile, unit);
  }
}

/// Codes of a tile to f16: K rows and then V rows, together where they are
/// alike.
KVCACHE_DEVICE void convertCodes(const AttentionShape &shape, u32 codes,
                                 u32 tile, int threads, u32 thread) {
  const int k = shape.headDim, v = shape.vHeadDim;
  convertRows(shape, (k == v ? 2 : 1) * prefillTile, k, codes, tile, threads,
              thread);
  if (k != v)
    convertRows(shape, prefillTile, v, codes + prefillTile * k,
                tile + prefillTile * rowPitch(k, 2), threads, thread);
}

/// How many warps, as a power of two, share the rows of one and divide the
/// steps of a tile. `live`: rows of the CTA.
KVCACHE_DEVICE int sharingOf(int live, int warpRows, int warps, int steps) {
  const int groups = ceilDiv(live, warpRows);
  return steps >= 4 && 4 * groups <= warps ? 2 : 2 * groups <= warps ? 1 : 0;
}

} // namespace kernels
} // namespace kvcache

using namespace kvcache::kernels;

// Arguments as those of kvcache_paged_attention. Grid (attentionGridX of one
// row, rowBlocks of prefillRows, num_splits), 32 threads for each of
// prefillWarps, prefillSharedBytes.
KVCACHE_EXPORT
kvcache_prefill(const void *q, const void *k_pages, const void *v_pages,
                const int *page_table, const int *lengths,
                const int *query_start, void *out, float *lse, float *partials,
                unsigned *counters, const float *sinks,
                const float *alibi_slopes, float score_scale,
                float output_scale, float soft_cap, int max_tokens,
                int max_sequences, int max_pages_per_sequence, int window,
                // structural constants
                int arch, int q_type, int out_type, int cache_type, int q_heads,
                int kv_heads, int head_dim, int page_size,
                long long k_page_stride, int k_token_stride, int k_head_stride,
                long long v_page_stride, int v_token_stride, int v_head_stride,
                int has_window, int has_soft_cap, int has_sinks, int has_alibi,
                int split_tokens, int num_splits, int has_lse, int warps,
                int v_head_dim) {
  const int group = q_heads / kv_heads, threads = 32 * warps;
  const int heads = headsPerCta(group, 1, v_head_dim);
  const int warpRows = prefillRowsPerWarp(group, v_head_dim);
  const int rows = warps * warpRows;
  const AttentionShape codes = {arch,
                                q_type,
                                out_type,
                                cache_type,
                                q_heads,
                                kv_heads,
                                group,
                                head_dim,
                                v_head_dim,
                                page_size,
                                k_page_stride,
                                k_token_stride,
                                k_head_stride,
                                v_page_stride,
                                v_token_stride,
                                v_head_stride,
                                prefillStep,
                                2,
                                1,
                                warpRows,
                                heads,
                                warpRows * heads,
                                has_window != 0,
                                has_soft_cap != 0,
                                has_sinks != 0,
                                has_alibi != 0,
                                false,
                                0,
                                has_lse != 0};
  AttentionShape shape = codes;
  shape.cacheType = CacheF16; // what the tiles hold
  AttentionShape ofCta = shape;
  ofCta.rows = rows;
  ofCta.columns = warps * shape.columns;
  const float unit = decodedUnit(arch, cache_type);
  const int blocks = ceilDiv(group, heads);

  u32 thread = ptx::threadX(), lane = thread & 31;
  u32 warp = ptx::shuffle(thread >> 5, 0);
  int x = static_cast<int>(ptx::ctaX()), y = static_cast<int>(ptx::ctaY());
  int kvHead = x / blocks, head0 = kvHead * group + x % blocks * heads;
  Block block;
  if (!findBlock(shape, query_start, lengths, max_tokens, max_sequences,
                 max_pages_per_sequence, rows, y, x % blocks, lane, block))
    return;
  const int split = num_splits > 1 ? static_cast<int>(ptx::ctaZ()) : 0;
  const int firstKey = has_window ? maxOf(0, block.high - 1 - window) : 0;
  const int step = shape.tile;
  const auto resultsAt = [&](int row) -> Results {
    i64 column = static_cast<i64>(row) * q_heads + head0;
    return {static_cast<u8 *>(out) +
                column * v_head_dim * activationBytes(out_type),
            lse + column, output_scale * unit, sinks + head0};
  };
  if (block.keys <= 0) {
    if (split == 0)
      storeEmpty(ofCta, has_lse != 0, resultsAt(block.first), block.live,
                 threads, thread);
    return;
  }
  int begin = firstKey / step * step;
  int share = tokensPerSplit(block.keys - begin, split_tokens, num_splits);
  int splits = num_splits > 1 ? ceilDiv(block.keys - begin, share) : 1;
  if (split >= splits)
    return;
  begin += split * share;
  Tiles tiles;
  tiles.firstKey = firstKey;
  tiles.keys = minOf(begin + share, block.keys);

  // This warp's rows, and which steps of a tile it takes.
  const int shift =
      sharingOf(block.live.rows, warpRows, warps, prefillTile / step);
  int row0 = static_cast<int>(warp >> shift) * warpRows;
  Columns live = {maxOf(0, minOf(warpRows, block.live.rows - row0)),
                  block.live.heads};
  int high = block.high + row0; // keys of the warp's first row
  int keys = live.rows > 0 ? minOf(high + live.rows - 1, tiles.keys) : 0;
  int low = has_window ? high - 1 - window : 0;
  const int whole = minOf(high, keys) - step, stride = step << shift;

  u32 shared = ptx::dynamicShared();
  const u32 kept =
      shared +
      prefillSharedBytes(head_dim, v_head_dim, shape.columns, q_type, warps) -
      32;
  if (thread == 0) { // registers are scarce until the end
    const u32 words[4] = {
        static_cast<u32>(block.first), static_cast<u32>(block.live.rows),
        static_cast<u32>(block.live.heads), static_cast<u32>(splits)};
    ptx::storeSharedV4(kept, words);
  }
  const int queryArea = rowQueryBytes(head_dim, shape.columns, q_type);
  RowQueries fragments;
  fragments.cap = soft_cap;
  loadRows(shape,
           static_cast<const u8 *>(q) +
               (static_cast<i64>(block.first + row0) * q_heads + head0) *
                   head_dim * activationBytes(q_type),
           live, score_scale * unit, shared + warp * queryArea, lane,
           fragments);
  if (has_alibi)
    loadRowSlopes(shape, alibi_slopes + head0, live, 0, high - 1, lane,
                  fragments);
  shared += warps * queryArea;

  RowState state;
  clear(shape, soft_cap, state);
  const int pitch = rowPitch(head_dim, 2), vPitch = rowPitch(v_head_dim, 2);
  // From a lane's row of K to its row of V.
  const int toV = prefillTile * pitch + laneOffset(vPitch, false, lane) -
                  laneOffset(pitch, true, lane);
  const int stage = prefillTile * (head_dim + v_head_dim);
  u32 staging = shared + prefillTile * (pitch + vPitch);
  tiles.kHead = static_cast<const u8 *>(k_pages) +
                static_cast<i64>(kvHead) * k_head_stride;
  tiles.vHead = static_cast<const u8 *>(v_pages) +
                static_cast<i64>(kvHead) * v_head_stride;
  tiles.table =
      page_table + static_cast<i64>(block.sequence) * max_pages_per_sequence;
#pragma unroll 1
  for (int i = 0; i < 2; ++i) {
    if (begin + i * prefillTile < tiles.keys)
      copyCodes(codes, tiles, begin + i * prefillTile, staging + i * stage,
                threads, thread);
    ptx::copyCommit();
  }
  u32 k = shared + laneOffset(pitch, true, lane);
  u32 from = staging;
  for (int token = begin; token < tiles.keys; token += prefillTile) {
    ptx::copyWait(1);
    // All codes of this tile have landed, and nobody reads the last one's f16.
    ptx::ctaSync();
    convertCodes(codes, from, shared, threads, thread);
    ptx::ctaSync();
    if (token + 2 * prefillTile < tiles.keys)
      copyCodes(codes, tiles, token + 2 * prefillTile, from, threads, thread);
    ptx::copyCommit();
    from = from == staging ? staging + stage : staging;
    // Its steps that this warp's rows see any key of.
    int first = has_window && low > token ? (low - token) / step : 0;
    first += (static_cast<int>(warp) - first) & ((1 << shift) - 1);
    const int end = minOf(token + prefillTile, keys);
    u32 at = k + first * step * pitch;
#pragma unroll 1
    for (int key = token + first * step; key < end; key += stride) {
      bool seen =
          key + step <= whole && (!has_window || key >= low + warpRows - 1);
      Mask mask = {low - key, high - key, has_window ? low - key : 0,
                   keys - key};
      rowStep(shape, at, at + toV + (key - token) * (vPitch - pitch), fragments,
              state, !seen, mask, key, lane);
      at += stride * pitch;
    }
  }
  ptx::copyWait(0);
  ptx::ctaSync();

  const int padded = tilesN(shape.columns) * columnsPerTile;
  u32 pairs = shared + warps * padded * mergePitch(v_head_dim) * 4;
  publishRows(shape, soft_cap, shared, pairs, warp, lane, state);
  ptx::ctaSync();
  u32 words[4];
  ptx::loadSharedV4(words, kept);
  const Results results = resultsAt(static_cast<int>(words[0]));
  const Columns rowsOfCta = {static_cast<int>(words[1]),
                             group % heads != 0 ? static_cast<int>(words[2])
                                                : heads};
  const Partials part = partialsOf(
      ofCta, partials, counters, static_cast<i64>(y) * (kv_heads * blocks) + x,
      split, static_cast<int>(words[3]), num_splits);
  const int sharing =
      1 << sharingOf(rowsOfCta.rows, warpRows, warps, prefillTile / step);
  storeColumns(ofCta, has_lse != 0, results, part, rowsOfCta, shape.columns,
               sharing, shared, pairs, threads, thread);
  finishSplits(ofCta, has_lse != 0, results, rowsOfCta, part, kept + 16,
               threads, thread);
}
