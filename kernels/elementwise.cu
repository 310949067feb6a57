//===- elementwise.cu - Quantize, dequantize, merge of partial results ----===//
//
// Part of the kvcache project.
//
//===----------------------------------------------------------------------===//

#include "elementwise.h"

namespace kvcache {
namespace kernels {

/// An FP8 code as f32, exactly.
KVCACHE_DEVICE float decode(int cacheType, u32 code) {
  u32 magnitude = code & 0x7fu, sign = (code & 0x80u) << 24;
  if (cacheType == E5M2)
    return ptx::f16ToF32Low(code << 8);
  // The code's exponent and mantissa in place, but for the bias: 2^(127 - 7).
  float x = ptx::asFloat(magnitude << 20) * 0x1p120f;
  return ptx::asFloat(sign |
                      (magnitude == 0x7fu ? 0x7fc00000u : ptx::asBits(x)));
}

} // namespace kernels
} // namespace kvcache

using namespace kvcache::kernels;

// in [count] of in_type, out [count] codes; both 16-byte aligned. code =
// saturate(x * (1 / scale)): the reciprocal is rounded, then the product. A
// thread takes 16 elements. Grid (elementwiseGrid, 1, 1), 128 threads.
KVCACHE_EXPORT kvcache_quantize(const void *in, void *out, float scale,
                                long long count,
                                // structural constants
                                int arch, int in_type, int cache_type) {
  i64 first = (static_cast<i64>(ptx::ctaX()) * threadsPerCta + ptx::threadX()) *
              writeElements;
  const u8 *from =
      static_cast<const u8 *>(in) + first * activationBytes(in_type);
  u8 *to = static_cast<u8 *>(out) + first;
  float reciprocal = ptx::divide(1.f, scale);
  if (first + writeElements <= count) {
    u32 x[16], codes[4];
    load16(in_type, from, x);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      float y[4];
      widen4(in_type, x, i, y);
#pragma unroll
      for (int e = 0; e < 4; ++e)
        y[e] *= reciprocal;
      codes[i] = encode4(arch, cache_type, y);
    }
    ptx::storeV4(to, codes);
    return;
  }
#pragma unroll 1
  for (int i = 0; first + i < count; ++i) {
    u32 bits = in_type == F32 ? ptx::loadU32(from + 4 * i)
                              : ptx::loadU16(from + 2 * i);
    float y[4], x[4] = {};
    widen4(in_type, &bits, 0, y);
    x[0] = y[0] * reciprocal;
    ptx::storeU8(to + i, encode4(arch, cache_type, x));
  }
}

// in [count] codes, out [count] of out_type; both 16-byte aligned. The code is
// widened exactly, the product with the scale is rounded to f32, then to the
// type. Grid (elementwiseGrid, 1, 1), 128 threads.
KVCACHE_EXPORT kvcache_dequantize(const void *in, void *out, float scale,
                                  long long count,
                                  // structural constants
                                  int arch, int cache_type, int out_type) {
  (void)arch;
  i64 first = (static_cast<i64>(ptx::ctaX()) * threadsPerCta + ptx::threadX()) *
              writeElements;
  const u8 *from = static_cast<const u8 *>(in) + first;
  u8 *to = static_cast<u8 *>(out) + first * activationBytes(out_type);
  if (first + writeElements <= count) {
    u32 codes[4];
    float x[16];
    ptx::loadV4(codes, from);
#pragma unroll
    for (int i = 0; i < 16; ++i)
      x[i] = decode(cache_type, codes[i / 4] >> 8 * (i % 4) & 0xffu) * scale;
    store16(out_type, to, x);
    return;
  }
#pragma unroll 1
  for (int i = 0; first + i < count; ++i) {
    float x = decode(cache_type, ptx::loadU8(from + i)) * scale;
    if (out_type == F32)
      ptx::storeF32(reinterpret_cast<float *>(to) + i, x);
    else
      ptx::storeU16(to + 2 * i, out_type == F16 ? ptx::packF16(x, 0.f)
                                                : ptx::packBF16(x, 0.f));
  }
}

// Two partial attentions of the same queries over disjoint keys become one:
// a, b, out [rows][head_dim] of type, lse_* [rows] f32, natural logarithm, all
// apart. An empty partial has LSE minus infinity; two
// of them give output 0 and minus infinity. head_dim is a multiple of 16. Grid
// (elementwiseGrid of rows * head_dim, 1, 1), 128 threads.
KVCACHE_EXPORT kvcache_merge_states(const void *a, const float *lse_a,
                                    const void *b, const float *lse_b,
                                    void *out, float *lse, int rows,
                                    // structural constants
                                    int arch, int type, int head_dim) {
  (void)arch;
  const int units = head_dim / writeElements;
  i64 unit = static_cast<i64>(ptx::ctaX()) * threadsPerCta + ptx::threadX();
  i64 row = unit / units;
  if (row >= rows)
    return;
  float la = ptx::loadF32(lse_a + row), lb = ptx::loadF32(lse_b + row);
  float top = ptx::maxF32(la, lb); // of NaN and a number the number
  bool empty = la == lb && la == ptx::asFloat(0xff800000u);
  float shift = empty ? 0.f : top;
  float wa = ptx::exp2((la - shift) * 1.44269504088896341f);
  float wb = ptx::exp2((lb - shift) * 1.44269504088896341f);
  // Without branches: rows behind the batch may hold anything. Of two empty
  // partials all is 0 but for the inverse.
  float sum = wa + wb, reciprocal = ptx::divide(1.f, sum);
  float logarithm = shift + ptx::log2(sum) * 0.693147180559945309f;
  float inverse = empty ? 0.f : reciprocal;
  // What a partial without weight holds does not count, be it NaN.
  float fa = wa * inverse, fb = wb * inverse;
  i64 at = unit * writeElements * activationBytes(type);
  u32 x[16], y[16];
  float merged[16];
  load16(type, static_cast<const u8 *>(a) + at, x);
  load16(type, static_cast<const u8 *>(b) + at, y);
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    float p[4], q[4];
    widen4(type, x, i, p);
    widen4(type, y, i, q);
#pragma unroll
    for (int e = 0; e < 4; ++e)
      merged[4 * i + e] =
          (fa == 0.f ? 0.f : fa * p[e]) + (fb == 0.f ? 0.f : fb * q[e]);
  }
  store16(type, static_cast<u8 *>(out) + at, merged);
  if (lse && unit % units == 0)
    ptx::storeF32(lse + row, empty ? top : logarithm);
}

// Copies pages within the pools of K and V (v_row_bytes 0: of K alone): pairs
// [count][2] i64, (from, to). A pair with a negative or too large page is
// skipped; no page is written twice, and none is both written and read. Rows
// and strides, in bytes, are multiples of 16, or both of 4 (copyWidth). Grid
// copyPagesGrid, 128 threads.
KVCACHE_EXPORT kvcache_copy_pages(void *k_pages, void *v_pages,
                                  const long long *pairs, long long num_pages,
                                  long long k_page_stride, int k_token_stride,
                                  int k_head_stride, long long v_page_stride,
                                  int v_token_stride, int v_head_stride,
                                  // structural constants
                                  int arch, int kv_heads, int page_size,
                                  int k_row_bytes, int v_row_bytes) {
  (void)arch;
  int unit = static_cast<int>(ptx::ctaY()) * threadsPerCta + ptx::threadX();
  i64 pair = ptx::ctaX();
  i64 from = ptx::loadI64(pairs, 2 * pair),
      to = ptx::loadI64(pairs, 2 * pair + 1);
  const int kUnits = copyUnits(kv_heads, k_row_bytes, page_size);
  const int units = kUnits + copyUnits(kv_heads, v_row_bytes, page_size);
  if (unit >= units || from < 0 || to < 0 || from >= num_pages ||
      to >= num_pages)
    return;
  const bool isKey = unit < kUnits;
  u8 *pages = static_cast<u8 *>(isKey ? k_pages : v_pages);
  i64 pageStride = isKey ? k_page_stride : v_page_stride;
  int tokenStride = isKey ? k_token_stride : v_token_stride;
  int headStride = isKey ? k_head_stride : v_head_stride;
  const int rowBytes = isKey ? k_row_bytes : v_row_bytes;
  const int width = copyWidth(0, 0, rowBytes), chunks = rowBytes / width;
  unit -= isKey ? 0 : kUnits;
  // Neighbouring threads take neighbouring rows.
  bool headsInside = headStride <= tokenStride;
  int row = unit / chunks;
  int inner = headsInside ? kv_heads : page_size;
  i64 at =
      static_cast<i64>(row / inner) * (headsInside ? tokenStride : headStride) +
      static_cast<i64>(row % inner) * (headsInside ? headStride : tokenStride) +
      unit % chunks * width;
  const u8 *source = pages + from * pageStride + at;
  u8 *target = pages + to * pageStride + at;
  if (width == 4) {
    ptx::storeU32(target, ptx::loadU32Coherent(source));
    return;
  }
  u32 x[4];
  ptx::loadV4Coherent(x, source);
  ptx::storeV4(target, x);
}
