//===- paged_attention.cu - Attention over a paged cache ------------------===//
//
// Part of the kvcache project.
//
//===----------------------------------------------------------------------===//
//
// A CTA is one (KV head and block of its query heads, block of a sequence's
// query rows, split). Its four warps take every fourth tile of tokens, each
// with its own ring and its own full accumulator, and meet only in the merge.
// The last split of a row to arrive merges all of them in the same launch. The
// grid depends on capacities alone: lengths, page table and query starts are
// read here.
//
//===----------------------------------------------------------------------===//

#include "attention.h"
#include "ring.h"
#include "splits.h"

namespace kvcache {
namespace kernels {

/// Arguments of the launch and what the CTA found out about its rows.
struct Job {
  HeadPages pages;
  const int *table; // page table row of the sequence
  int begin, end;   // tokens of this split
  // Row 0 sees the keys low <= x < high, row r of the CTA r more of both; all
  // rows together firstKey <= x < keys.
  int low, high, firstKey, keys;
};

/// What a warp's walk over its tiles needs beside the accumulators.
struct Walk {
  Source source;
  Pages pages;     // of the next tile to request
  u32 ring, k;     // stage 0, and the lane's ldmatrix row of K in it
  u32 read, write; // byte offsets of stages
};

KVCACHE_DEVICE void advance(const AttentionShape &shape, Walk &walk) {
  const u32 stage =
      stageBytes(shape.headDim, shape.vHeadDim, cacheBytes(shape.cacheType),
                 shape.tile, hasTokenScales(shape));
  walk.write = walk.read;
  walk.read += stage;
  if (walk.read == shape.stages * stage)
    walk.read = 0;
}

/// What the columns see of the tile at `token`.
KVCACHE_DEVICE Mask maskAt(const AttentionShape &shape, const Job &job,
                           int token) {
  Mask mask;
  mask.high = job.high - token;
  mask.lastHigh = job.end - token;
  mask.low = shape.hasWindow ? job.low - token : 0;
  mask.firstLow = shape.hasWindow ? job.firstKey - token : 0;
  return mask;
}

/// Scales of the tokens of the tile at `token`, behind its rows in `stage`; 1
/// for those that no row sees.
KVCACHE_DEVICE void loadTokenScales(const AttentionShape &shape, const Job &job,
                                    u32 stage, int token, u32 lane,
                                    TokenScales &scales) {
#pragma unroll
  for (int m = 0; m < shape.tile / 16; ++m) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      int row = 16 * m + 8 * i + static_cast<int>(lane >> 2);
      bool seen = token + row >= job.firstKey && token + row < job.end;
      u32 at = stage + shape.tile * (pitchOf(shape) + pitchOf(shape, true)) +
               4 * row;
      float k = seen ? ptx::loadSharedF32(at) : 1.f;
      float v = seen ? ptx::loadSharedF32(at + 4 * shape.tile) : 1.f;
      scales.k[m][i] = k;
      scales.logV[m][i] = ptx::log2(v);
      scales.inverseV[m][i] = ptx::divide(1.f, v);
    }
  }
}

/// Runs a warp over its tiles of the split.
KVCACHE_DEVICE void runWarp(const AttentionShape &shape, const Job &job,
                            const Queries &q, u32 ring, u32 warp, u32 lane,
                            WarpState &state) {
  const int pitch = pitchOf(shape), stages = shape.stages;
  const int stage =
      stageBytes(shape.headDim, shape.vHeadDim, cacheBytes(shape.cacheType),
                 shape.tile, hasTokenScales(shape));
  const int tile = shape.tile;
  const int first = static_cast<int>(warp);

  // Tiles from `full` on lack keys above; they are at most two, hence a warp's
  // last. So are those that lack keys below a window: a warp's first, which
  // goes through `rescale` in any case.
  int tokens = job.end - job.begin;
  int seen = shape.rows > 1 ? minOf(job.end, job.high) - job.begin : tokens;
  int full = maxOf(0, seen) / tile;
  int fullTiles = (full + warpsPerCta - 1 - first) / warpsPerCta;
  int tiles =
      ((tokens + tile - 1) / tile + warpsPerCta - 1 - first) / warpsPerCta;

  // From a lane's row of K to its row of V.
  const int toV = tile * pitch + fragmentOffset(shape, true, lane) -
                  fragmentOffset(shape, false, lane);
  Walk walk;
  walk.source = makeSource(shape, job.pages, job.table, job.begin, job.firstKey,
                           job.end, warp, lane);
  walk.ring = ring;
  walk.k = ring + fragmentOffset(shape, false, lane);

  clear(shape, q.cap, state);
#pragma unroll 1
  for (int i = 0; i < stages - 1; ++i) {
    if (i < tiles) {
      loadPages(shape, walk.source, i, true, walk.pages);
      copyTile(shape, walk.source, ring + i * stage, walk.pages, lane);
    }
    ptx::copyCommit();
  }
  if (stages - 1 < tiles)
    loadPages(shape, walk.source, stages - 1, false, walk.pages);

  walk.read = 0, walk.write = (stages - 1) * stage;
  // One counter for all: the tile that is requested while one is read.
  const int ahead = stages - 1;
  const int end = tiles + ahead, fullEnd = fullTiles + ahead;
  int next = ahead;
  while (next < end) {
    // With `unroll` the stage offsets are immediates.
#pragma unroll
    for (int u = 0; u < shape.unroll; ++u) {
      if (shape.unroll > 1) {
        if (u > 0 && next >= end)
          break;
        walk.read = u * stage;
        walk.write = (u + ahead) % stages * stage;
      }
      const int token = (first + (next - ahead) * warpsPerCta) * tile;
      ptx::copyWait(stages - 2);
      // All lanes' copies of the oldest tile have landed, and nobody reads
      // stage `write` any more.
      ptx::warpSync();
      const int after = next + 1;
      if (next < tiles) {
        copyTile(shape, walk.source, ring + walk.write, walk.pages, lane);
        // Behind the last tile its own pages again, which costs less than a
        // jump.
        loadPages(shape, walk.source, minOf(after, tiles - 1), false,
                  walk.pages);
      }
      ptx::copyCommit();
      TokenScales scales = {};
      if (hasTokenScales(shape))
        loadTokenScales(shape, job, ring + walk.read, job.begin + token, lane,
                        scales);
      tileStep(shape, walk.k + walk.read, walk.k + walk.read + toV, q, state,
               next >= fullEnd, true, maskAt(shape, job, job.begin + token),
               token, lane, scales);
      next = after;
      if (shape.unroll > 1)
        walk.read = (u + 1) % stages * stage;
      else
        advance(shape, walk);
    }
  }
  ptx::copyWait(0);
}

/// The kernel: see kvcache_paged_attention.
KVCACHE_DEVICE void
pagedAttention(const AttentionShape &shape, const void *q, const void *k_pages,
               const void *v_pages, const int *page_table, const int *lengths,
               const int *query_start, void *out, float *lse, float *partials,
               unsigned *counters, const float *sinks,
               const float *alibi_slopes, const float *k_scales,
               const float *v_scales, float score_scale, float output_scale,
               float soft_cap, int max_tokens, int max_sequences,
               int max_pages_per_sequence, int window, int split_tokens,
               int num_splits, int has_lse) {
  const int arch = shape.arch, q_type = shape.queryType;
  const int cache_type = shape.cacheType, q_heads = shape.queryHeads;
  const int kv_heads = shape.kvHeads, group = shape.group, rows = shape.rows;
  const int head_dim = shape.headDim, v_head_dim = shape.vHeadDim;
  const int tile = shape.tile, stages = shape.stages;
  const bool has_window = shape.hasWindow, has_alibi = shape.hasAlibi;
  const float unit = decodedUnit(arch, cache_type);
  const int blocks = ceilDiv(group, shape.heads); // of heads

  u32 thread = ptx::threadX(), lane = thread & 31;
  u32 warp = ptx::shuffle(thread >> 5, 0); // uniform for the compiler, too
  int x = static_cast<int>(ptx::ctaX()), y = static_cast<int>(ptx::ctaY());
  int kvHead = x / blocks, head0 = kvHead * group + x % blocks * shape.heads;
  int split = num_splits > 1 ? static_cast<int>(ptx::ctaZ()) : 0;
  Block block;
  if (!findBlock(shape, query_start, lengths, max_tokens, max_sequences,
                 max_pages_per_sequence, rows, y, x % blocks, lane, block))
    return;
  const Columns live = block.live;
  const int high = block.high, keys = block.keys;
  i64 firstColumn = static_cast<i64>(block.first) * q_heads + head0;
  Results results = {static_cast<u8 *>(out) +
                         firstColumn * v_head_dim *
                             activationBytes(shape.outType),
                     lse + firstColumn, output_scale * unit, sinks + head0};
  if (keys <= 0) {
    if (split == 0)
      storeEmpty(shape, has_lse != 0, results, live, threadsPerCta, thread);
    return;
  }
  Job job;
  job.high = high;
  job.keys = keys;
  job.low = job.firstKey = 0;
  int base = 0;
  if (has_window) {
    job.low = high - 1 - window;
    job.firstKey = maxOf(0, job.low);
    base = job.firstKey / tile * tile;
  }
  int share = tokensPerSplit(keys - base, split_tokens, num_splits);
  int splits = num_splits > 1 ? ceilDiv(keys - base, share) : 1; // with tokens
  if (split >= splits)
    return;
  job.begin = base + split * share;
  job.end = minOf(job.begin + share, keys);
  HeadPages &pages = job.pages;
  pages.k = static_cast<const u8 *>(k_pages) +
            static_cast<i64>(kvHead) * shape.kHeadStride;
  pages.v = static_cast<const u8 *>(v_pages) +
            static_cast<i64>(kvHead) * shape.vHeadStride;
  const bool isInline = shape.tokenScales == InlineTokenScales;
  pages.kScales = isInline ? pages.k + head_dim
                           : reinterpret_cast<const u8 *>(k_scales + kvHead);
  pages.vScales = isInline ? pages.v + v_head_dim
                           : reinterpret_cast<const u8 *>(v_scales + kvHead);
  job.table =
      page_table + static_cast<i64>(block.sequence) * max_pages_per_sequence;

  u32 shared = ptx::dynamicShared();
  Queries fragments;
  fragments.cap = soft_cap;
  loadQueries(shape,
              static_cast<const u8 *>(q) +
                  firstColumn * head_dim * activationBytes(q_type),
              live, score_scale * unit, shared, warp, warpsPerCta, lane,
              fragments);
  if (has_alibi)
    loadSlopes(shape, alibi_slopes + head0, live, job.begin, high - 1, lane,
               fragments);
  shared += queryBytes(head_dim, shape.columns, q_type, shape.math);
  WarpState state;
  runWarp(shape, job, fragments,
          shared + warp * stages *
                       stageBytes(head_dim, v_head_dim, cacheBytes(cache_type),
                                  tile, hasTokenScales(shape)),
          warp, lane, state);

  // The rings are dead once all warps are here.
  ptx::ctaSync();
  const int padded = tilesN(shape.columns) * columnsPerTile;
  u32 pairs = shared + warpsPerCta * padded * mergePitch(v_head_dim) * 4;
  u32 flag = pairs + warpsPerCta * padded * 8;
  publish(shape, soft_cap, shared, pairs, warp, lane, state);
  ptx::ctaSync();

  const Partials part = partialsOf(
      shape, partials, counters, static_cast<i64>(y) * (kv_heads * blocks) + x,
      split, splits, num_splits);
  storeColumns(shape, has_lse != 0, results, part, live, shape.columns,
               warpsPerCta, shared, pairs, threadsPerCta, thread);
  finishSplits(shape, has_lse != 0, results, live, part, flag, threadsPerCta,
               thread);
}

} // namespace kernels
} // namespace kvcache

using namespace kvcache::kernels;

// Pages, lengths and query starts as in Geometry.h and the specification;
// sizes:
//   q [max_tokens][q_heads][head_dim], out [max_tokens][q_heads][v_head_dim];
//   lse [max_tokens][q_heads] f32
//   page_table [max_sequences][max_pages_per_sequence]; lengths [max_sequences]
//   query_start [max_sequences + 1], not decreasing
// Row r of the batch is query i = r - query_start[s] of the n queries of its
// sequence s; it stands at position p = length - n + i and sees the keys
// [max(0, p - window), p], without has_window [0, p]. Rows at or past
// query_start[max_sequences] stay untouched. Rows of one sequence share a CTA,
// `rows` of them; NaN and infinities in a value that only some of them see may
// reach them all.
// score_scale turns q . k codes into log2 units; with has_soft_cap it is
// 2 log2(e) / cap times the score's factor, and soft_cap is cap * log2(e).
// output_scale is V's scale, over that of an FP8 output. sinks [q_heads]:
// logits that join the softmax. alibi_slopes [q_heads]: times (key - p), added
// to the scores. token_scales and math: see Geometry.h; k_scales and v_scales
// are the side tensors. Strides are in bytes.
// Grid (attentionGridX, rowBlocks, num_splits), 128 threads,
// dynamicSharedBytes of shared memory.
KVCACHE_EXPORT kvcache_paged_attention(
    const void *q, const void *k_pages, const void *v_pages,
    const int *page_table, const int *lengths, const int *query_start,
    void *out, float *lse, float *partials, unsigned *counters,
    const float *sinks, const float *alibi_slopes, const float *k_scales,
    const float *v_scales, float score_scale, float output_scale,
    float soft_cap, int max_tokens, int max_sequences,
    int max_pages_per_sequence, int window,
    // structural constants
    int arch, int q_type, int out_type, int cache_type, int q_heads,
    int kv_heads, int head_dim, int page_size, long long k_page_stride,
    int k_token_stride, int k_head_stride, long long v_page_stride,
    int v_token_stride, int v_head_stride, int tile, int stages, int unroll,
    int rows, int has_window, int has_soft_cap, int has_sinks, int has_alibi,
    int token_scales, int split_tokens, int num_splits, int has_lse, int math,
    int v_head_dim) {
  const int group = q_heads / kv_heads;
  const AttentionShape shape = {arch,
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
                                tile,
                                stages,
                                unroll,
                                rows,
                                headsPerCta(group, rows, v_head_dim),
                                columnsPerCta(group, rows, v_head_dim),
                                has_window != 0,
                                has_soft_cap != 0,
                                has_sinks != 0,
                                has_alibi != 0,
                                false,
                                0,
                                has_lse != 0,
                                math,
                                token_scales};
  pagedAttention(shape, q, k_pages, v_pages, page_table, lengths, query_start,
                 out, lse, partials, counters, sinks, alibi_slopes, k_scales,
                 v_scales, score_scale, output_scale, soft_cap, max_tokens,
                 max_sequences, max_pages_per_sequence, window, split_tokens,
                 num_splits, has_lse);
}

// The same with strides of the pages that are not known before the launch.
KVCACHE_EXPORT kvcache_paged_attention_strided(
    const void *q, const void *k_pages, const void *v_pages,
    const int *page_table, const int *lengths, const int *query_start,
    void *out, float *lse, float *partials, unsigned *counters,
    const float *sinks, const float *alibi_slopes, const float *k_scales,
    const float *v_scales, float score_scale, float output_scale,
    float soft_cap, int max_tokens, int max_sequences,
    int max_pages_per_sequence, int window, long long k_page_stride,
    int k_token_stride, int k_head_stride, long long v_page_stride,
    int v_token_stride, int v_head_stride,
    // structural constants
    int arch, int q_type, int out_type, int cache_type, int q_heads,
    int kv_heads, int head_dim, int page_size, int tile, int stages, int unroll,
    int rows, int has_window, int has_soft_cap, int has_sinks, int has_alibi,
    int token_scales, int split_tokens, int num_splits, int has_lse, int math,
    int v_head_dim) {
  const int group = q_heads / kv_heads;
  const AttentionShape shape = {arch,
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
                                tile,
                                stages,
                                unroll,
                                rows,
                                headsPerCta(group, rows, v_head_dim),
                                columnsPerCta(group, rows, v_head_dim),
                                has_window != 0,
                                has_soft_cap != 0,
                                has_sinks != 0,
                                has_alibi != 0,
                                true,
                                0,
                                has_lse != 0,
                                math,
                                token_scales};
  pagedAttention(shape, q, k_pages, v_pages, page_table, lengths, query_start,
                 out, lse, partials, counters, sinks, alibi_slopes, k_scales,
                 v_scales, score_scale, output_scale, soft_cap, max_tokens,
                 max_sequences, max_pages_per_sequence, window, split_tokens,
                 num_splits, has_lse);
}
