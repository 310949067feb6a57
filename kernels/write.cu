//===- write.cu - Write of K and V rows into pages ------------------------===//
//
// Part of the kvcache project.
//
//===----------------------------------------------------------------------===//
//
// A thread takes 16 neighbouring elements of K or V: 16-byte loads, and one
// 16-byte store, or two for a cache of 16 bits. A CTA takes as many tokens as
// fill its threads, one at least.
//
//===----------------------------------------------------------------------===//

#include "elementwise.h"

namespace kvcache {
namespace kernels {

/// Writes 16 elements of a type. Codes: code = saturate(x / scale), division
/// and conversion to nearest even. For a power of two the product with the
/// reciprocal is the same number: both are the correctly rounded x 2^-e, and
/// the reciprocal is exact (2^-127 is a subnormal f32). Caches of 16 bits have
/// no scale; their own type is copied bit by bit.
KVCACHE_DEVICE void write16(int arch, int cacheType, int type, const u32 *in,
                            u8 *to, float scale, bool scaleIsPowerOfTwo) {
  if (cacheType >= CacheF16) {
    u32 out[8];
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      float x[4];
      widen4(type, in, i / 2, x);
      const float low = x[i % 2 * 2], high = x[i % 2 * 2 + 1];
      bool same = cacheType == CacheF16 ? type == F16 : type == BF16;
      out[i] = same                    ? in[i]
               : cacheType == CacheF16 ? ptx::packF16(low, high)
                                       : ptx::packBF16(low, high);
    }
    ptx::storeV4(to, out);
    ptx::storeV4(to + 16, out + 4);
    return;
  }
  u32 codes[4];
  float reciprocal = scaleIsPowerOfTwo ? ptx::divide(1.f, scale) : 0.f;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    float x[4];
    widen4(type, in, i, x);
#pragma unroll
    for (int e = 0; e < 4; ++e)
      x[e] = scaleIsPowerOfTwo ? x[e] * reciprocal : ptx::divide(x[e], scale);
    codes[i] = encode4(arch, cacheType, x);
  }
  ptx::storeV4(to, codes);
}

/// The same of 16 elements in memory.
KVCACHE_DEVICE void write16(int arch, int cacheType, int type, const u8 *from,
                            u8 *to, float scale, bool scaleIsPowerOfTwo) {
  u32 in[16];
  load16(type, from, in);
  write16(arch, cacheType, type, in, to, scale, scaleIsPowerOfTwo);
}

/// How keys are rotated: `row` has the cosines of dim / 2 angles and then their
/// sines. Angle i turns elements i and i + dim / 2, or 2i and 2i + 1.
struct Rotation {
  const float *row;
  int dim;
  bool interleaved;
};

/// The rotation of a position; false if the table has none.
KVCACHE_DEVICE bool rotationOf(const void *table, const long long *positions,
                               int token, int dim, int interleaved,
                               int numPositions, Rotation &rotation) {
  i64 position = ptx::loadI64(positions, token);
  rotation = {static_cast<const float *>(table) + position * dim, dim,
              interleaved != 0};
  return position >= 0 && position < numPositions;
}

/// Elements first .. first + 15 of a row of an activation type, rotated, as
/// f32: (x, y) becomes (x cos - y sin, x sin + y cos), each product and sum
/// rounded. Elements behind the rotary ones are as they were.
KVCACHE_DEVICE void rotate16(int type, const u8 *from, int first,
                             const Rotation &rotation, u32 *out) {
#pragma clang fp contract(off)
  const int dim = rotation.dim, half = dim / 2, bytes = activationBytes(type);
  const bool interleaved = rotation.interleaved;
  u32 in[16];
  float x[16], y[16], cosine[16], sine[16];
  load16(type, from, in);
#pragma unroll
  for (int i = 0; i < 4; ++i)
    widen4(type, in, i, x + 4 * i);
  bool rotates[16], isFirst[16];
#pragma unroll
  for (int e = 0; e < 16; ++e) {
    rotates[e] = first + e < dim;
    isFirst[e] = interleaved ? e % 2 == 0 : first + e < half;
    y[e] = interleaved ? x[e ^ 1] : 0.f;
  }
  if (interleaved ? dim % 16 == 0 : half % 16 == 0) {
    // All 16 elements are on one side of each border.
    if (rotates[0]) {
      int angle = interleaved ? first / 2 : isFirst[0] ? first : first - half;
      u32 bits[16], sines[16];
      const int loads = interleaved ? 2 : 4;
#pragma unroll
      for (int i = 0; i < loads; ++i) {
        ptx::loadV4(bits + 4 * i, rotation.row + angle + 4 * i);
        ptx::loadV4(sines + 4 * i, rotation.row + half + angle + 4 * i);
      }
#pragma unroll
      for (int e = 0; e < 16; ++e) {
        cosine[e] = ptx::asFloat(bits[interleaved ? e / 2 : e]);
        sine[e] = ptx::asFloat(sines[interleaved ? e / 2 : e]);
      }
      if (!interleaved) {
        load16(type, from + (isFirst[0] ? half : -half) * bytes, in);
#pragma unroll
        for (int i = 0; i < 4; ++i)
          widen4(type, in, i, y + 4 * i);
      }
    }
  } else {
#pragma unroll
    for (int e = 0; e < 16; ++e) {
      if (!rotates[e])
        continue;
      int d = first + e;
      int angle = interleaved ? d / 2 : isFirst[e] ? d : d - half;
      cosine[e] = ptx::loadF32(rotation.row + angle);
      sine[e] = ptx::loadF32(rotation.row + half + angle);
      if (!interleaved)
        y[e] = loadElement(type,
                           from + (isFirst[e] ? e + half : e - half) * bytes);
    }
  }
#pragma unroll
  for (int e = 0; e < 16; ++e) {
    if (rotates[e])
      x[e] = x[e] * cosine[e] + (isFirst[e] ? -y[e] : y[e]) * sine[e];
    out[e] = ptx::asBits(x[e]);
  }
}

/// The largest magnitude of 16 elements in f32 that is no NaN, over `lanes`
/// neighbouring lanes.
KVCACHE_DEVICE float largestMagnitude(const float (&x)[4][4], int lanes) {
  float top = 0.f;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
#pragma unroll
    for (int e = 0; e < 4; ++e)
      top = ptx::maxF32(top, __builtin_fabsf(x[i][e]));
  }
#pragma unroll
  for (int mask = 1; mask < lanes; mask *= 2)
    top = ptx::maxF32(top, ptx::shuffleXor(top, mask));
  return top;
}

/// Writes 16 elements of a tile of 128 as e4m3 codes, and its scale: the
/// largest magnitude that is no NaN / 448, at least 2^-126. Eight neighbouring
/// lanes have the tile.
KVCACHE_DEVICE void writeScaled16(int arch, int type, const u8 *from, u8 *to,
                                  u8 *scales, bool first) {
  u32 in[16], codes[4];
  float x[4][4];
  load16(type, from, in);
#pragma unroll
  for (int i = 0; i < 4; ++i)
    widen4(type, in, i, x[i]);
  float scale =
      ptx::maxF32(ptx::divide(largestMagnitude(x, 8), 448.f), 0x1p-126f);
#pragma unroll
  for (int i = 0; i < 4; ++i) {
#pragma unroll
    for (int e = 0; e < 4; ++e)
      x[i][e] = ptx::divide(x[i][e], scale);
    codes[i] = encode4(arch, E4M3, x[i]);
  }
  ptx::storeV4(to, codes);
  if (first)
    ptx::storeF32(reinterpret_cast<float *>(scales), scale);
}

/// The kernel: see kvcache_write.
KVCACHE_DEVICE void writeRows(
    const void *k, const void *v, void *k_pages, void *v_pages,
    const long long *slots, const void *rope_table, const long long *positions,
    float k_scale, float v_scale, int max_tokens, long long num_slots, int arch,
    int in_type, int cache_type, int kv_heads, int head_dim, int v_head_dim,
    int page_size, i64 k_page_stride, int k_token_stride, int k_head_stride,
    i64 v_page_stride, int v_token_stride, int v_head_stride,
    int k_scale_is_pow2, int v_scale_is_pow2, int per_head, int rotary_dim,
    int rope_interleaved, int rope_positions) {
  const int heads = per_head ? 1 : kv_heads; // of a CTA
  const int units = writeUnits(heads, head_dim, v_head_dim);
  const int kUnits = heads * head_dim / writeElements;
  const int tokens = writeTokensPerCta(heads, head_dim, v_head_dim);
  const int kPerHead = head_dim / writeElements,
            vPerHead = v_head_dim / writeElements;
  int thread = static_cast<int>(ptx::threadX());
  int inCta = thread / units;
  int token = static_cast<int>(ptx::ctaX()) * tokens + inCta;
  int head0 = per_head ? static_cast<int>(ptx::ctaY()) : 0;
  if (inCta >= tokens || token >= max_tokens)
    return;
  i64 slot = ptx::loadI64(slots, token);
  if (slot < 0 || slot >= num_slots)
    return;
  Rotation rotation = {};
  if (rotary_dim && !rotationOf(rope_table, positions, token, rotary_dim,
                                rope_interleaved, rope_positions, rotation))
    return;
  i64 page = slot / page_size;
  int offset = static_cast<int>(slot % page_size);
  i64 row = static_cast<i64>(token) * kv_heads + head0;

  for (int unit = thread % units; unit < units; unit += threadsPerCta) {
    bool isV = unit >= kUnits;
    int inRow = isV ? unit - kUnits : unit;
    int head = head0 + (isV ? inRow / vPerHead : inRow / kPerHead);
    int inHead = isV ? inRow % vPerHead : inRow % kPerHead;
    int dim = inHead * writeElements * cacheBytes(cache_type);
    const u8 *from =
        static_cast<const u8 *>(isV ? v : k) +
        (row * (isV ? v_head_dim : head_dim) + inRow * writeElements) *
            activationBytes(in_type);
    i64 at =
        isV ? page * v_page_stride + static_cast<i64>(offset) * v_token_stride +
                  static_cast<i64>(head) * v_head_stride + dim
            : page * k_page_stride + static_cast<i64>(offset) * k_token_stride +
                  static_cast<i64>(head) * k_head_stride + dim;
    u8 *to = static_cast<u8 *>(isV ? v_pages : k_pages) + at;
    if (rotary_dim && !isV) {
      u32 rotated[16];
      rotate16(in_type, from, inHead * writeElements, rotation, rotated);
      write16(arch, cache_type, F32, rotated, to, k_scale,
              k_scale_is_pow2 != 0);
      continue;
    }
    if (k_scale_is_pow2 == v_scale_is_pow2)
      write16(arch, cache_type, in_type, from, to, isV ? v_scale : k_scale,
              k_scale_is_pow2 != 0);
    else if (isV)
      write16(arch, cache_type, in_type, from, to, v_scale,
              v_scale_is_pow2 != 0);
    else
      write16(arch, cache_type, in_type, from, to, k_scale,
              k_scale_is_pow2 != 0);
  }
}

} // namespace kernels
} // namespace kvcache

using namespace kvcache::kernels;

// k [max_tokens][kv_heads][head_dim] and v [max_tokens][kv_heads][v_head_dim]
// of in_type, contiguous, 16-byte aligned; slots [max_tokens]: page * page_size
// + offset. A slot below 0 skips its row, one at or past num_slots is ignored.
// Strides in bytes, multiples of 16. With per_head a CTA writes KV head
// blockIdx.y, whose scales it is given. With a rotary_dim the first elements of
// keys are rotated: table [rope_positions][rotary_dim] of f32, 16-byte aligned,
// positions [max_tokens]; a row whose position is outside the table is skipped.
// Grid (writeGrid, writeGridY, 1), 128 threads, no shared memory.
KVCACHE_EXPORT
kvcache_write(const void *k, const void *v, void *k_pages, void *v_pages,
              const long long *slots, const void *rope_table,
              const long long *positions, float k_scale, float v_scale,
              int max_tokens, long long num_slots,
              // structural constants
              int arch, int in_type, int cache_type, int kv_heads, int head_dim,
              int page_size, long long k_page_stride, int k_token_stride,
              int k_head_stride, long long v_page_stride, int v_token_stride,
              int v_head_stride, int k_scale_is_pow2, int v_scale_is_pow2,
              int per_head, int rotary_dim, int rope_interleaved,
              int rope_positions, int v_head_dim) {
  writeRows(k, v, k_pages, v_pages, slots, rope_table, positions, k_scale,
            v_scale, max_tokens, num_slots, arch, in_type, cache_type, kv_heads,
            head_dim, v_head_dim, page_size, k_page_stride, k_token_stride,
            k_head_stride, v_page_stride, v_token_stride, v_head_stride,
            k_scale_is_pow2, v_scale_is_pow2, per_head, rotary_dim,
            rope_interleaved, rope_positions);
}

// The same with strides of the pages that are not known before the launch.
KVCACHE_EXPORT kvcache_write_strided(
    const void *k, const void *v, void *k_pages, void *v_pages,
    const long long *slots, const void *rope_table, const long long *positions,
    float k_scale, float v_scale, int max_tokens, long long num_slots,
    long long k_page_stride, int k_token_stride, int k_head_stride,
    long long v_page_stride, int v_token_stride, int v_head_stride,
    // structural constants
    int arch, int in_type, int cache_type, int kv_heads, int head_dim,
    int page_size, int k_scale_is_pow2, int v_scale_is_pow2, int per_head,
    int rotary_dim, int rope_interleaved, int rope_positions, int v_head_dim) {
  writeRows(k, v, k_pages, v_pages, slots, rope_table, positions, k_scale,
            v_scale, max_tokens, num_slots, arch, in_type, cache_type, kv_heads,
            head_dim, v_head_dim, page_size, k_page_stride, k_token_stride,
            k_head_stride, v_page_stride, v_token_stride, v_head_stride,
            k_scale_is_pow2, v_scale_is_pow2, per_head, rotary_dim,
            rope_interleaved, rope_positions);
}

// latent [max_tokens][latent_dim] and rope [max_tokens][rope_dim] of in_type,
// contiguous, 16-byte aligned, to rows of latentRowBytes; slots and strides as
// above. The scale is that of the latent cache; TileScaled rows have their own.
// With a rotary_dim, which is rope_dim, the rotary part is rotated as above.
// Grid (latentWriteGrid, 1, 1), 128 threads, no shared memory.
KVCACHE_EXPORT
kvcache_write_latent(const void *latent, const void *rope, void *pages,
                     const long long *slots, const void *rope_table,
                     const long long *positions, float scale, int max_tokens,
                     long long num_slots,
                     // structural constants
                     int arch, int in_type, int cache_type, int latent_dim,
                     int rope_dim, int page_size, long long page_stride,
                     int token_stride, int scale_is_pow2, int rotary_dim,
                     int rope_interleaved, int rope_positions) {
  const int lanes = latentWriteLanes(latent_dim, rope_dim);
  const int latentUnits = latent_dim / writeElements;
  int thread = static_cast<int>(ptx::threadX());
  int token =
      static_cast<int>(ptx::ctaX()) * (threadsPerCta / lanes) + thread / lanes;
  int unit = thread % lanes;
  if (token >= max_tokens || unit >= latentUnits + rope_dim / writeElements)
    return;
  i64 slot = ptx::loadI64(slots, token);
  if (slot < 0 || slot >= num_slots)
    return;
  Rotation rotation = {};
  if (rotary_dim && !rotationOf(rope_table, positions, token, rotary_dim,
                                rope_interleaved, rope_positions, rotation))
    return;
  u8 *row = static_cast<u8 *>(pages) + slot / page_size * page_stride +
            slot % page_size * token_stride;
  bool isRope = unit >= latentUnits;
  int inPart = (isRope ? unit - latentUnits : unit) * writeElements;
  const u8 *from =
      static_cast<const u8 *>(isRope ? rope : latent) +
      (static_cast<i64>(token) * (isRope ? rope_dim : latent_dim) + inPart) *
          activationBytes(in_type);
  if (rotary_dim && isRope) {
    u32 rotated[16];
    rotate16(in_type, from, inPart, rotation, rotated);
    bool isScaled = cache_type != TileScaled;
    write16(arch, isScaled ? cache_type : CacheBF16, F32, rotated,
            row + (isScaled ? unit * writeElements * cacheBytes(cache_type)
                            : latent_dim + latent_dim / 32 + inPart * 2),
            isScaled ? scale : 1.f, isScaled ? scale_is_pow2 != 0 : true);
    return;
  }
  if (cache_type != TileScaled) {
    write16(arch, cache_type, in_type, from,
            row + unit * writeElements * cacheBytes(cache_type), scale,
            scale_is_pow2 != 0);
    return;
  }
  u8 *scales = row + latent_dim;
  if (isRope)
    write16(arch, CacheBF16, in_type, from,
            scales + latent_dim / 32 + inPart * 2, 1.f, true);
  else
    writeScaled16(arch, in_type, from, row + inPart, scales + inPart / 128 * 4,
                  unit % 8 == 0);
}

// The same as kvcache_write into a cache of e4m3 whose rows of a token and KV
// head have scales of their own, max(amax / 448, 1e-6); code = x * (1 / scale).
// token_scales: see Geometry.h; k_scales and v_scales are the side tensors.
// Strides of rows that end in their scale are multiples of 4 bytes. Grid
// (tokenScaledWriteGrid, 1, 1), 128 threads, no shared memory.
KVCACHE_EXPORT
kvcache_write_token_scaled(const void *k, const void *v, void *k_pages,
                           void *v_pages, const long long *slots,
                           float *k_scales, float *v_scales,
                           const void *rope_table, const long long *positions,
                           int max_tokens, long long num_slots,
                           // structural constants
                           int arch, int in_type, int kv_heads, int head_dim,
                           int page_size, long long k_page_stride,
                           int k_token_stride, int k_head_stride,
                           long long v_page_stride, int v_token_stride,
                           int v_head_stride, int token_scales, int rotary_dim,
                           int rope_interleaved, int rope_positions,
                           int v_head_dim) {
  const int lanes = tokenScaledLanes(head_dim, v_head_dim);
  int thread = static_cast<int>(ptx::threadX());
  // Rows are [token][K, V][head].
  int row =
      static_cast<int>(ptx::ctaX()) * (threadsPerCta / lanes) + thread / lanes;
  int unit = thread % lanes;
  int token = row / (2 * kv_heads), inToken = row % (2 * kv_heads);
  bool isV = inToken >= kv_heads;
  int head = isV ? inToken - kv_heads : inToken;
  // All lanes of a warp take part in the shuffles.
  i64 slot = token < max_tokens ? ptx::loadI64(slots, token) : -1;
  bool writes = slot >= 0 && slot < num_slots;
  Rotation rotation = {};
  if (rotary_dim && writes)
    writes = rotationOf(rope_table, positions, token, rotary_dim,
                        rope_interleaved, rope_positions, rotation);
  const int dim = isV ? v_head_dim : head_dim;
  bool isElement = writes && unit < dim / writeElements;
  float x[4][4] = {};
  if (isElement) {
    const u8 *from = static_cast<const u8 *>(isV ? v : k) +
                     ((static_cast<i64>(token) * kv_heads + head) * dim +
                      unit * writeElements) *
                         activationBytes(in_type);
    u32 in[16];
    if (rotary_dim && !isV) {
      rotate16(in_type, from, unit * writeElements, rotation, in);
#pragma unroll
      for (int i = 0; i < 4; ++i)
        widen4(F32, in, i, x[i]);
    } else {
      load16(in_type, from, in);
#pragma unroll
      for (int i = 0; i < 4; ++i)
        widen4(in_type, in, i, x[i]);
    }
  }
  float scale =
      ptx::maxF32(ptx::divide(largestMagnitude(x, lanes), 448.f), 1e-6f);
  if (!isElement)
    return;
  float reciprocal = ptx::divide(1.f, scale);
  u32 codes[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
#pragma unroll
    for (int e = 0; e < 4; ++e)
      x[i][e] *= reciprocal;
    codes[i] = encode4(arch, E4M3, x[i]);
  }
  i64 page = slot / page_size;
  int offset = static_cast<int>(slot % page_size);
  i64 at =
      isV ? page * v_page_stride + static_cast<i64>(offset) * v_token_stride +
                static_cast<i64>(head) * v_head_stride
          : page * k_page_stride + static_cast<i64>(offset) * k_token_stride +
                static_cast<i64>(head) * k_head_stride;
  u8 *to = static_cast<u8 *>(isV ? v_pages : k_pages) + at;
  storeBytes(to + unit * writeElements, codes,
             minOf(copyWidth(k_page_stride, k_token_stride, k_head_stride),
                   copyWidth(v_page_stride, v_token_stride, v_head_stride)));
  if (unit == 0)
    ptx::storeF32(token_scales == InlineTokenScales
                      ? reinterpret_cast<float *>(to + dim)
                      : (isV ? v_scales : k_scales) + slot * kv_heads + head,
                  scale);
}
