//===- elementwise.h - Sixteen elements in a thread's registers -----------===//
//
// Part of the kvcache project.
//
//===----------------------------------------------------------------------===//

#ifndef KVCACHE_KERNELS_ELEMENTWISE_H
#define KVCACHE_KERNELS_ELEMENTWISE_H

#include "fp8.h"

namespace kvcache {
namespace kernels {

/// Loads 16 elements of an activation type; 16-byte aligned.
KVCACHE_DEVICE void load16(int type, const u8 *from, u32 (&in)[16]) {
  const int loads = activationBytes(type);
#pragma unroll
  for (int i = 0; i < loads; ++i)
    ptx::loadV4(in + 4 * i, from + 16 * i);
}

/// One element of an activation type as f32, exactly.
KVCACHE_DEVICE float loadElement(int type, const u8 *from) {
  if (type == F32)
    return ptx::loadF32(reinterpret_cast<const float *>(from));
  u32 bits = ptx::loadU16(from);
  return type == F16 ? ptx::f16ToF32Low(bits) : ptx::asFloat(bits << 16);
}

/// Elements 4i .. 4i + 3 of 16 elements in registers, as f32, exactly.
KVCACHE_DEVICE void widen4(int type, const u32 *in, int i, float *x) {
#pragma unroll
  for (int e = 0; e < 4; ++e) {
    if (type == F32) {
      x[e] = ptx::asFloat(in[4 * i + e]);
      continue;
    }
    u32 pair = in[2 * i + e / 2];
    if (type == F16)
      x[e] = e & 1 ? ptx::f16ToF32High(pair) : ptx::f16ToF32Low(pair);
    else
      x[e] = ptx::asFloat(e & 1 ? pair & 0xffff0000u : pair << 16);
  }
}

/// Stores 16 f32 as an activation type, rounded once; 16-byte aligned.
KVCACHE_DEVICE void store16(int type, u8 *to, const float *x) {
  u32 out[16];
  const int stores = activationBytes(type);
#pragma unroll
  for (int i = 0; i < 4 * stores; ++i)
    out[i] = type == F32   ? ptx::asBits(x[i])
             : type == F16 ? ptx::packF16(x[2 * i], x[2 * i + 1])
                           : ptx::packBF16(x[2 * i], x[2 * i + 1]);
#pragma unroll
  for (int i = 0; i < stores; ++i)
    ptx::storeV4(to + 16 * i, out + 4 * i);
}

/// Stores 16 bytes, `width` at a time: 16 or 4.
KVCACHE_DEVICE void storeBytes(u8 *to, const u32 (&x)[4], int width) {
  if (width == 16) {
    ptx::storeV4(to, x);
    return;
  }
#pragma unroll
  for (int i = 0; i < 4; ++i)
    ptx::storeU32(to + 4 * i, x[i]);
}

} // namespace kernels
} // namespace kvcache

#endif // KVCACHE_KERNELS_ELEMENTWISE_H
