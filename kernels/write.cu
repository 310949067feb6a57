//===- write.cu - Quantized write of K and V rows into pages --------------===//
//
// Part of the kvcache project.
//
//===----------------------------------------------------------------------===//
//
// A thread quantizes 16 neighbouring elements of K or V: two 16-byte loads, one
// 16-byte store. A CTA takes as many tokens as fill its threads, one at least.
//
//===----------------------------------------------------------------------===//

#include "fp8.h"

namespace kvcache {
namespace kernels {

/// Two f16 or bf16 to f32, exactly.
KVCACHE_DEVICE void widen(int type, u32 pair, float *x) {
  if (type == F16) {
    x[0] = ptx::f16ToF32Low(pair);
    x[1] = ptx::f16ToF32High(pair);
  } else {
    x[0] = ptx::asFloat(pair << 16);
    x[1] = ptx::asFloat(pair & 0xffff0000u);
  }
}

/// code = saturate(x / scale), division and conversion to nearest even. For a
/// power of two the product with the reciprocal is the same number: both are
/// the correctly rounded x 2^-e, and the reciprocal is exact (2^-127 is a
/// subnormal f32).
KVCACHE_DEVICE void quantize16(int arch, int type, const void *from, void *to,
                               float scale, bool scaleIsPowerOfTwo) {
  u32 in[8], codes[4];
  ptx::loadV4(in, from);
  ptx::loadV4(in + 4, static_cast<const u8 *>(from) + 16);
  float reciprocal = scaleIsPowerOfTwo ? ptx::divide(1.f, scale) : 0.f;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    float x[4];
    widen(type, in[2 * i], x);
    widen(type, in[2 * i + 1], x + 2);
#pragma unroll
    for (int e = 0; e < 4; ++e)
      x[e] = scaleIsPowerOfTwo ? x[e] * reciprocal : ptx::divide(x[e], scale);
    codes[i] = encode4(arch, x);
  }
  ptx::storeV4(to, codes);
}

} // namespace kernels
} // namespace kvcache

using namespace kvcache::kernels;

// k, v [max_tokens][kv_heads][head_dim] f16 or bf16, contiguous, 16-byte
// aligned; slots [max_tokens]: page * page_size + offset. A slot below 0 skips
// its row, one at or past num_slots is ignored. Strides in elements of one
// byte, multiples of 16. Grid (writeGrid, 1, 1), 128 threads, no shared memory.
KVCACHE_EXPORT
kvcache_write(const void *k, const void *v, void *k_pages, void *v_pages,
              const long long *slots, float k_scale, float v_scale,
              int max_tokens, long long num_slots,
              // structural constants
              int arch, int in_type, int cache_type, int kv_heads, int head_dim,
              int page_size, long long k_page_stride, int k_token_stride,
              int k_head_stride, long long v_page_stride, int v_token_stride,
              int v_head_stride, int k_scale_is_pow2, int v_scale_is_pow2) {
  (void)cache_type; // e4m3
  const int units = writeUnits(kv_heads, head_dim), half = units / 2;
  const int tokens = writeTokensPerCta(kv_heads, head_dim);
  const int unitsPerHead = head_dim / writeElements;
  int thread = static_cast<int>(ptx::threadX());
  int inCta = thread / units;
  int token = static_cast<int>(ptx::ctaX()) * tokens + inCta;
  if (inCta >= tokens || token >= max_tokens)
    return;
  i64 slot = ptx::loadI64(slots, token);
  if (slot < 0 || slot >= num_slots)
    return;
  i64 page = slot / page_size;
  int offset = static_cast<int>(slot % page_size);
  i64 row = static_cast<i64>(token) * half * writeElements;

  for (int unit = thread % units; unit < units; unit += threadsPerCta) {
    bool isV = unit >= half;
    int inRow = isV ? unit - half : unit;
    int head = inRow / unitsPerHead;
    int dim = inRow % unitsPerHead * writeElements;
    const u16 *from =
        static_cast<const u16 *>(isV ? v : k) + row + inRow * writeElements;
    i64 at =
        isV ? page * v_page_stride + static_cast<i64>(offset) * v_token_stride +
                  static_cast<i64>(head) * v_head_stride + dim
            : page * k_page_stride + static_cast<i64>(offset) * k_token_stride +
                  static_cast<i64>(head) * k_head_stride + dim;
    u8 *to = static_cast<u8 *>(isV ? v_pages : k_pages) + at;
    if (k_scale_is_pow2 == v_scale_is_pow2)
      quantize16(arch, in_type, from, to, isV ? v_scale : k_scale,
                 k_scale_is_pow2 != 0);
    else if (isV)
      quantize16(arch, in_type, from, to, v_scale, v_scale_is_pow2 != 0);
    else
      quantize16(arch, in_type, from, to, k_scale, k_scale_is_pow2 != 0);
  }
}
