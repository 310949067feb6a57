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

/// Writes 16 elements. Codes: code = saturate(x / scale), division and
/// conversion to nearest even. For a power of two the product with the
/// reciprocal is the same number: both are the correctly rounded x 2^-e, and
/// the reciprocal is exact (2^-127 is a subnormal f32). Caches of 16 bits have
/// no scale; their own type is copied bit by bit.
KVCACHE_DEVICE void write16(int arch, int cacheType, int type, const u8 *from,
                            u8 *to, float scale, bool scaleIsPowerOfTwo) {
  u32 in[16];
  load16(type, from, in);
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

/// Writes 16 elements of a tile of 128 as e4m3 codes, and its scale: the
/// largest magnitude that is no NaN / 448, at least 2^-126. Eight neighbouring
/// lanes have the tile.
KVCACHE_DEVICE void writeScaled16(int arch, int type, const u8 *from, u8 *to,
                                  u8 *scales, bool first) {
  u32 in[16], codes[4];
  float x[4][4], top = 0.f;
  load16(type, from, in);
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    widen4(type, in, i, x[i]);
#pragma unroll
    for (int e = 0; e < 4; ++e)
      top = ptx::maxF32(top, __builtin_fabsf(x[i][e]));
  }
#pragma unroll
  for (int mask = 1; mask < 8; mask *= 2)
    top = ptx::maxF32(top, ptx::shuffleXor(top, mask));
  float scale = ptx::maxF32(ptx::divide(top, 448.f), 0x1p-126f);
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

} // namespace kernels
} // namespace kvcache

using namespace kvcache::kernels;

// k, v [max_tokens][kv_heads][head_dim] of in_type, contiguous, 16-byte
// aligned; slots [max_tokens]: page * page_size + offset. A slot below 0 skips
// its row, one at or past num_slots is ignored. Strides in bytes, multiples of
// 16. With per_head a CTA writes KV head blockIdx.y, whose scales it is given.
// Grid (writeGrid, writeGridY, 1), 128 threads, no shared memory.
KVCACHE_EXPORT
kvcache_write(const void *k, const void *v, void *k_pages, void *v_pages,
              const long long *slots, float k_scale, float v_scale,
              int max_tokens, long long num_slots,
              // structural constants
              int arch, int in_type, int cache_type, int kv_heads, int head_dim,
              int page_size, long long k_page_stride, int k_token_stride,
              int k_head_stride, long long v_page_stride, int v_token_stride,
              int v_head_stride, int k_scale_is_pow2, int v_scale_is_pow2,
              int per_head) {
  const int heads = per_head ? 1 : kv_heads; // of a CTA
  const int units = writeUnits(heads, head_dim), half = units / 2;
  const int tokens = writeTokensPerCta(heads, head_dim);
  const int unitsPerHead = head_dim / writeElements;
  int thread = static_cast<int>(ptx::threadX());
  int inCta = thread / units;
  int token = static_cast<int>(ptx::ctaX()) * tokens + inCta;
  int head0 = per_head ? static_cast<int>(ptx::ctaY()) : 0;
  if (inCta >= tokens || token >= max_tokens)
    return;
  i64 slot = ptx::loadI64(slots, token);
  if (slot < 0 || slot >= num_slots)
    return;
  i64 page = slot / page_size;
  int offset = static_cast<int>(slot % page_size);
  i64 row = (static_cast<i64>(token) * kv_heads + head0) * head_dim;

  for (int unit = thread % units; unit < units; unit += threadsPerCta) {
    bool isV = unit >= half;
    int inRow = isV ? unit - half : unit;
    int head = head0 + inRow / unitsPerHead;
    int dim = inRow % unitsPerHead * writeElements * cacheBytes(cache_type);
    const u8 *from = static_cast<const u8 *>(isV ? v : k) +
                     (row + inRow * writeElements) * activationBytes(in_type);
    i64 at =
        isV ? page * v_page_stride + static_cast<i64>(offset) * v_token_stride +
                  static_cast<i64>(head) * v_head_stride + dim
            : page * k_page_stride + static_cast<i64>(offset) * k_token_stride +
                  static_cast<i64>(head) * k_head_stride + dim;
    u8 *to = static_cast<u8 *>(isV ? v_pages : k_pages) + at;
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

// latent [max_tokens][latent_dim] and rope [max_tokens][rope_dim] of in_type,
// contiguous, 16-byte aligned, to rows of latentRowBytes; slots and strides as
// above. The scale is that of the latent cache; TileScaled rows have their own.
// Grid (latentWriteGrid, 1, 1), 128 threads, no shared memory.
KVCACHE_EXPORT
kvcache_write_latent(const void *latent, const void *rope, void *pages,
                     const long long *slots, float scale, int max_tokens,
                     long long num_slots,
                     // structural constants
                     int arch, int in_type, int cache_type, int latent_dim,
                     int rope_dim, int page_size, long long page_stride,
                     int token_stride, int scale_is_pow2) {
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
  u8 *row = static_cast<u8 *>(pages) + slot / page_size * page_stride +
            slot % page_size * token_stride;
  bool isRope = unit >= latentUnits;
  int inPart = (isRope ? unit - latentUnits : unit) * writeElements;
  const u8 *from =
      static_cast<const u8 *>(isRope ? rope : latent) +
      (static_cast<i64>(token) * (isRope ? rope_dim : latent_dim) + inPart) *
          activationBytes(in_type);
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
