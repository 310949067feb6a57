//===- paged_attention.cu - Attention over a paged FP8 cache --------------===//
//
// Part of the kvcache project.
//
//===----------------------------------------------------------------------===//
//
// A CTA is one (KV head, query row, split). Its four warps take every fourth
// tile of tokens, each with its own ring and its own full accumulator, and meet
// only in the merge. The last split of a row to arrive merges all of them in
// the same launch. The grid depends on capacities alone: lengths, page table
// and query starts are read here.
//
//===----------------------------------------------------------------------===//

#include "ring.h"
#include "tile.h"

namespace kvcache {
namespace kernels {

/// Arguments of the launch and what the CTA found out about its row.
struct Job {
  const u8 *kHead, *vHead; // pages at the KV head
  const int *entries;      // page table row of the sequence
  int begin, end;          // tokens of this split
};

/// The sequence of `row`: the last one that starts at or before it, found 32
/// candidates at a time. `queryStart` is not decreasing. -1 without one.
KVCACHE_DEVICE int findSequence(const int *queryStart, int sequences, int row,
                                u32 lane) {
  int low = 0, count = sequences;
  do {
    int step = ceilDiv(count, 32);
    int i = low + static_cast<int>(lane) * step;
    bool starts = static_cast<int>(lane) * step < count &&
                  ptx::loadI32(queryStart, i) <= row;
    int before = static_cast<int>(ptx::popcount(ptx::ballot(starts)));
    if (before == 0)
      return -1;
    int skip = (before - 1) * step;
    low += skip;
    count = minOf(step, count - skip);
  } while (count > 1);
  return low;
}

/// Query fragments. bf16 rows become f16 with their largest magnitude in
/// [2^14, 2^15): exact but for elements 2^-29 below it, whatever the range of
/// the row. The power of two is undone in the score factor.
KVCACHE_DEVICE void loadQueries(const AttentionShape &shape, const u16 *q,
                                float scale, u32 lane, Queries &out) {
  u32 g = lane >> 2, t = lane & 3;
  const int chunks = shape.headDim / 16;
#pragma unroll
  for (int i = 0; i < tilesN(shape.group); ++i) {
    int head = i * headsPerTile + static_cast<int>(g);
    bool real = (i + 1) * headsPerTile <= shape.group || head < shape.group;
    u32 w[2 * maxChunks];
#pragma unroll
    for (int c = 0; c < chunks; ++c) {
      w[2 * c] = w[2 * c + 1] = 0;
      if (real)
        ptx::loadV2(&w[2 * c], q + head * shape.headDim + c * 16 + t * 4);
    }
    if (shape.queryType == F16) {
#pragma unroll
      for (int c = 0; c < 2 * chunks; ++c)
        out.b[i][c] = w[c];
      out.scale[i][0] = out.scale[i][1] = scale;
      continue;
    }
    float top = 0.f;
#pragma unroll
    for (int c = 0; c < 2 * chunks; ++c) {
      float low = ptx::asFloat(w[c] << 16);
      float high = ptx::asFloat(w[c] & 0xffff0000u);
      top = ptx::maxF32(
          top, ptx::maxF32(__builtin_fabsf(low), __builtin_fabsf(high)));
    }
    top = ptx::maxF32(top, ptx::shuffleXor(top, 1));
    top = ptx::maxF32(top, ptx::shuffleXor(top, 2));
    // Biased exponent e of the maximum; below 15 the inverse has no normal f32.
    u32 e = ptx::asBits(top) >> 23;
    e = e < 15 ? 15 : e;
    float up = ptx::asFloat((268 - e) << 23);  // 2^(14 - (e - 127))
    float down = ptx::asFloat((e - 14) << 23); // its inverse
#pragma unroll
    for (int c = 0; c < 2 * chunks; ++c) {
      float low = ptx::asFloat(w[c] << 16);
      float high = ptx::asFloat(w[c] & 0xffff0000u);
      out.b[i][c] = ptx::packF16(low * up, high * up);
    }
    // Lane 4g has head g; scores are wanted for heads 2t and 2t + 1.
    out.scale[i][0] = scale * ptx::shuffle(down, 8 * t);
    out.scale[i][1] = scale * ptx::shuffle(down, 8 * t + 4);
  }
}

/// Runs a warp over its tiles of the split.
KVCACHE_DEVICE void runWarp(const AttentionShape &shape, const Job &job,
                            const Queries &q, u32 ring, u32 warp, u32 lane,
                            WarpState &state) {
  const int pitch = rowPitch(shape.headDim), stages = shape.stages;
  const int stage = stageBytes(shape.headDim, shape.tile);
  const int entriesPerTile = warpsPerCta * shape.tile / shape.pageSize;

  int tokens = job.end - job.begin;
  int full = tokens / shape.tile, rest = tokens % shape.tile;
  int fullTiles = full > static_cast<int>(warp)
                      ? (full - 1 - static_cast<int>(warp)) / warpsPerCta + 1
                      : 0;
  bool hasTail = rest && full % warpsPerCta == static_cast<int>(warp);
  int tiles = fullTiles + hasTail;

  int token = warp * shape.tile + firstRow(shape, lane);
  Source source = makeSource(shape, job.kHead, job.vHead, token, lane);
  const int *entries =
      job.entries + job.begin / shape.pageSize + token / shape.pageSize;
  ptx::opaque(entries);
  // Entry of the split's last token, counted from the lane's first; without
  // tiles it may be negative and is not used.
  int last = (job.end - 1) / shape.pageSize - job.begin / shape.pageSize -
             token / shape.pageSize;

  u32 row = (lane & 7) + (lane >> 3 & 1) * 8;
  u32 k = ring + row * pitch + (lane >> 4) * 16;
  const int toV = shape.tile * pitch;

#pragma unroll
  for (int i = 0; i < tilesN(shape.group); ++i) {
#pragma unroll
    for (int c = 0; c < shape.headDim / 16; ++c) {
#pragma unroll
      for (int e = 0; e < 4; ++e)
        state.o[i][c][e] = 0.f;
    }
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      state.sum[i][h] = 0.f;
      // Without tokens: reference minus infinity, no weight in the merge.
      state.negRef[i][h] = tiles > 0 ? 0.f : ptx::asFloat(plusInfinity);
    }
  }
  state.fresh = 0x40004000u;
  state.nanK = 0;
#pragma unroll
  for (int c = 0; c < shape.headDim / 16; ++c)
    state.nanV[c] = 0;

  int page = 0;
#pragma unroll
  for (int i = 0; i < stages - 1; ++i) {
    if (i < tiles) {
      page = loadPage(shape, entries, i * entriesPerTile, last);
      copyTile(shape, source, ring + i * stage, page);
    }
    ptx::copyCommit();
  }
  int next = (stages - 1) * entriesPerTile;
  int left = tiles - (stages - 1); // tiles not requested yet
  if (left > 0)
    page = loadPage(shape, entries, next, last);

  u32 read = 0, write = (stages - 1) * stage;
  int done = 0;
  while (done < fullTiles) {
    // With `unroll` the stage offsets are immediates.
#pragma unroll
    for (int u = 0; u < shape.unroll; ++u) {
      if (shape.unroll > 1) {
        if (u > 0 && done >= fullTiles)
          break;
        read = u * stage;
        write = (u + stages - 1) % stages * stage;
      }
      ptx::copyWait(stages - 2);
      // All lanes' copies have landed, and nobody reads stage `write` any more.
      ptx::warpSync();
      if (left > 0) {
        copyTile(shape, source, ring + write, page);
        next += entriesPerTile;
        if (left > 1)
          page = loadPage(shape, entries, next, last);
      }
      ptx::copyCommit();
      --left;
      tileStep(shape, k + read, k + read + toV, q, state, false, 0, lane);
      ++done;
      if (shape.unroll > 1) {
        read = (u + 1) % stages * stage;
      } else {
        write = read;
        read += stage;
        if (read == static_cast<u32>(stages * stage))
          read = 0;
      }
    }
  }
  if (hasTail) {
    ptx::copyWait(0);
    ptx::warpSync();
    tileStep(shape, k + read, k + read + toV, q, state, true, rest, lane);
  }
  ptx::copyWait(0);
  if (shape.cacheType == E4M3 && !convertsFP8(shape.arch))
    applyNaN(shape, state);
}

/// Where the results of a row go.
struct Results {
  u16 *out;   // [heads of the CTA][headDim]
  float *lse; // [heads of the CTA], or null
  float factor;
};

/// Four dims of one head: `o` relative to 2^ref, as is `sum`.
KVCACHE_DEVICE void storeResult(const AttentionShape &shape, bool hasLse,
                                const Results &to, int head, int dim,
                                const float *o, float ref, float sum) {
  float f = to.factor * ptx::reciprocal(sum);
  u16 *out = to.out + head * shape.headDim + dim;
  if (shape.queryType == F16)
    ptx::storeV2(out, ptx::packF16(o[0] * f, o[1] * f),
                 ptx::packF16(o[2] * f, o[3] * f));
  else
    ptx::storeV2(out, ptx::packBF16(o[0] * f, o[1] * f),
                 ptx::packBF16(o[2] * f, o[3] * f));
  if (hasLse && dim == 0)
    ptx::storeF32(to.lse + head,
                  (ref + ptx::log2(sum)) * 0.693147180559945309f);
}

/// A row that sees no key: output 0, LSE minus infinity.
KVCACHE_DEVICE void storeEmpty(const AttentionShape &shape, bool hasLse,
                               const Results &to, u32 thread) {
  for (int i = thread; i < shape.group * shape.headDim / 4; i += threadsPerCta)
    ptx::storeV2(to.out + 4 * i, 0u, 0u);
  if (hasLse && static_cast<int>(thread) < shape.group)
    ptx::storeF32(to.lse + thread, ptx::asFloat(minusInfinity));
}

/// The warps' accumulators go to shared memory, [warp][head][dim] f32. Pairs of
/// dims and a pitch of headDim + 4 keep the stores free of bank conflicts.
KVCACHE_DEVICE void publish(const AttentionShape &shape, u32 shared, u32 pairs,
                            u32 warp, u32 lane, WarpState &state) {
  u32 g = lane >> 2, t = lane & 3;
  const int pitch = 4 * mergePitch(shape.headDim);
  const int heads = tilesN(shape.group) * headsPerTile;
#pragma unroll
  for (int i = 0; i < tilesN(shape.group); ++i) {
    u32 head = i * headsPerTile + 2 * t;
    u32 at = shared + (warp * heads + head) * pitch + 8 * g;
#pragma unroll
    for (int c = 0; c < shape.headDim / 16; ++c) {
      const float *o = state.o[i][c];
      ptx::storeSharedV2(at + 64 * c, o[0], o[2]);
      ptx::storeSharedV2(at + 64 * c + pitch, o[1], o[3]);
    }
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      float sum = state.sum[i][h];
      sum += ptx::shuffleXor(sum, 4);
      sum += ptx::shuffleXor(sum, 8);
      sum += ptx::shuffleXor(sum, 16);
      if (g == 0)
        ptx::storeSharedV2(pairs + (warp * heads + head + h) * 8,
                           -state.negRef[i][h], sum);
    }
  }
}

/// Merges the four warps for four dims of a head.
KVCACHE_DEVICE void mergeWarps(const AttentionShape &shape, u32 shared,
                               u32 pairs, int head, int dim, float *o,
                               float &ref, float &sum) {
  const int pitch = 4 * mergePitch(shape.headDim);
  const int heads = tilesN(shape.group) * headsPerTile;
  float pair[warpsPerCta][2];
#pragma unroll
  for (int w = 0; w < warpsPerCta; ++w)
    ptx::loadSharedV2(pair[w], pairs + (w * heads + head) * 8);
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
    float f = ptx::exp2(pair[w][0] - ref), x[4];
    ptx::loadSharedV4(x, shared + (w * heads + head) * pitch + dim * 4);
    sum = __builtin_fmaf(f, pair[w][1], sum);
#pragma unroll
    for (int e = 0; e < 4; ++e)
      o[e] = __builtin_fmaf(f, x[e], o[e]);
  }
}

/// Merges the partial results of `splits` CTAs for four dims of a head, read
/// from global memory. All lanes take part; headDim / 4 of them share a head
/// and each looks after the weights of one split in so many. Four values are on
/// their way at a time: one after the other would cost a memory latency each.
KVCACHE_DEVICE void mergeSplits(const AttentionShape &shape,
                                const float *partials, int splits,
                                int numSplits, int head, u32 lane, float *o,
                                float &ref, float &sum) {
  constexpr int maxSteps = maxSplits / 16;
  const int record = partialFloats(shape.headDim, shape.group);
  const int lanes = shape.headDim / 4, steps = ceilDiv(numSplits, lanes);
  int within = static_cast<int>(lane) % lanes;
  const float *pairs = partials + shape.group * shape.headDim + 2 * head;
  const float *values = partials + head * shape.headDim + within * 4;
  float pair[maxSteps][2], weight[maxSteps];
  ref = ptx::asFloat(minusInfinity);
#pragma unroll
  for (int s = 0; s < steps; ++s) {
    i64 i = minOf(s * lanes + within, splits - 1);
    ptx::loadCoherentV2(pair[s], pairs + i * record);
    ref = ptx::maxF32(ref, pair[s][0]);
  }
#pragma unroll
  for (int mask = 1; mask < lanes; mask *= 2)
    ref = ptx::maxF32(ref, ptx::shuffleXor(ref, mask));
  sum = 0.f;
#pragma unroll
  for (int s = 0; s < steps; ++s) {
    weight[s] = ptx::exp2(pair[s][0] - ref);
    sum += s * lanes + within < splits ? weight[s] * pair[s][1] : 0.f;
  }
#pragma unroll
  for (int mask = 1; mask < lanes; mask *= 2)
    sum += ptx::shuffleXor(sum, mask);

#pragma unroll
  for (int e = 0; e < 4; ++e)
    o[e] = 0.f;
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
}

} // namespace kernels
} // namespace kvcache

using namespace kvcache::kernels;

// Pages, lengths and query starts as in Geometry.h and the specification;
// sizes:
//   q, out [max_tokens][q_heads][head_dim]; lse [max_tokens][q_heads] f32
//   page_table [max_sequences][max_pages_per_sequence]; lengths [max_sequences]
//   query_start [max_sequences + 1], not decreasing
// Row r of the batch is query i = r - query_start[s] of the n queries of its
// sequence s; it stands at position length - n + i and sees keys [0, position].
// Rows at or past query_start[max_sequences] stay untouched.
// score_scale turns q . k codes into log2 units; output_scale is V's scale.
// Grid (attentionGridX, max_tokens, num_splits), 128 threads,
// dynamicSharedBytes of shared memory.
KVCACHE_EXPORT kvcache_paged_attention(
    const void *q, const void *k_pages, const void *v_pages,
    const int *page_table, const int *lengths, const int *query_start,
    void *out, float *lse, float *partials, unsigned *counters,
    float score_scale, float output_scale, int max_tokens, int max_sequences,
    int max_pages_per_sequence,
    // structural constants
    int arch, int q_type, int cache_type, int q_heads, int kv_heads,
    int head_dim, int page_size, long long k_page_stride, int k_token_stride,
    int k_head_stride, long long v_page_stride, int v_token_stride,
    int v_head_stride, int tile, int stages, int unroll, int split_tokens,
    int num_splits, int has_lse) {
  const AttentionShape shape = {
      arch,           q_type,        cache_type,
      q_heads,        kv_heads,      q_heads / kv_heads,
      head_dim,       page_size,     k_page_stride,
      k_token_stride, k_head_stride, v_page_stride,
      v_token_stride, v_head_stride, tile,
      stages,         unroll};
  const int group = shape.group;
  const float unit = decodedUnit(arch, cache_type);

  u32 thread = ptx::threadX(), lane = thread & 31;
  u32 warp = ptx::shuffle(thread >> 5, 0); // uniform for the compiler, too
  int kvHead = static_cast<int>(ptx::ctaX()),
      row = static_cast<int>(ptx::ctaY());
  int split = num_splits > 1 ? static_cast<int>(ptx::ctaZ()) : 0;
  if (row >= max_tokens || row >= ptx::loadI32(query_start, max_sequences))
    return;
  int sequence = findSequence(query_start, max_sequences, row, lane);
  if (sequence < 0)
    return;
  int first = ptx::loadI32(query_start, sequence);
  int end = ptx::loadI32(query_start, sequence + 1);
  int keys =
      ptx::loadI32(lengths, sequence) - (end - first) + (row - first) + 1;
  // A length past the page table would read other sequences' entries.
  i64 capacity = static_cast<i64>(max_pages_per_sequence) * page_size;
  keys = keys > capacity ? static_cast<int>(capacity) : keys;

  i64 firstHead = static_cast<i64>(row) * q_heads + kvHead * group;
  Results results = {static_cast<u16 *>(out) + firstHead * head_dim,
                     lse + firstHead, output_scale * unit};
  if (keys <= 0) {
    if (split == 0)
      storeEmpty(shape, has_lse != 0, results, thread);
    return;
  }
  int share = tokensPerSplit(keys, split_tokens, num_splits);
  int splits = num_splits > 1 ? ceilDiv(keys, share) : 1; // that have tokens
  if (split >= splits)
    return;

  Job job;
  job.begin = split * share;
  job.end = minOf(job.begin + share, keys);
  job.kHead = static_cast<const u8 *>(k_pages) +
              static_cast<i64>(kvHead) * k_head_stride;
  job.vHead = static_cast<const u8 *>(v_pages) +
              static_cast<i64>(kvHead) * v_head_stride;
  job.entries =
      page_table + static_cast<i64>(sequence) * max_pages_per_sequence;

  Queries queries;
  loadQueries(shape, static_cast<const u16 *>(q) + firstHead * head_dim,
              score_scale * unit, lane, queries);
  u32 shared = ptx::dynamicShared();
  WarpState state;
  runWarp(shape, job, queries,
          shared + warp * stages * stageBytes(head_dim, tile), warp, lane,
          state);

  // The rings are dead once all warps are here.
  ptx::ctaSync();
  const int heads = tilesN(group) * headsPerTile;
  u32 pairs = shared + warpsPerCta * heads * mergePitch(head_dim) * 4;
  u32 flag = pairs + warpsPerCta * heads * 8;
  publish(shape, shared, pairs, warp, lane, state);
  ptx::ctaSync();

  const int threadsPerHead = head_dim / 4;
  const int headsAtOnce = threadsPerCta / threadsPerHead;
  int dim = static_cast<int>(thread) % threadsPerHead * 4;
  int head0 = static_cast<int>(thread) / threadsPerHead;
  i64 block = static_cast<i64>(row) * kv_heads + kvHead;
  const int record = partialFloats(head_dim, group);
  float *rowPartials = partials + block * num_splits * record;
#pragma unroll
  for (int i = 0; i < ceilDiv(group, headsAtOnce); ++i) {
    int head = head0 + i * headsAtOnce;
    if (head >= group)
      continue;
    float o[4], ref, sum;
    mergeWarps(shape, shared, pairs, head, dim, o, ref, sum);
    if (num_splits == 1 || splits == 1) {
      storeResult(shape, has_lse != 0, results, head, dim, o, ref, sum);
      continue;
    }
    float *mine = rowPartials + static_cast<i64>(split) * record;
    ptx::storeV4(mine + head * head_dim + dim, o);
    if (dim == 0)
      ptx::storeV2(mine + group * head_dim + 2 * head, ref, sum);
  }
  if (num_splits == 1 || splits == 1)
    return;

  // Partials before the count; the last to count sees all of them. The counter
  // wraps to zero by itself, for the next launch.
  ptx::fenceGpu();
  ptx::ctaSync();
  if (thread == 0) {
    u32 arrived = ptx::atomicIncWrap(counters + block, splits - 1);
    ptx::fenceGpu();
    ptx::storeSharedU32(flag, arrived == static_cast<u32>(splits - 1));
  }
  ptx::ctaSync();
  if (!ptx::loadSharedU32(flag))
    return;
  ptx::fenceGpu();
#pragma unroll
  for (int i = 0; i < ceilDiv(group, headsAtOnce); ++i) {
    int head = head0 + i * headsAtOnce;
    float o[4], ref, sum;
    mergeSplits(shape, rowPartials, splits, num_splits, minOf(head, group - 1),
                lane, o, ref, sum);
    if (head < group)
      storeResult(shape, has_lse != 0, results, head, dim, o, ref, sum);
  }
}
