//===- fp8.h - FP8 codes to f16 and f32 to FP8 codes ----------------------===//
//
// Part of the kvcache project.
//
//===----------------------------------------------------------------------===//
//
// e4m3 here is e4m3fn: sign, 4 exponent bits (bias 7), 3 mantissa bits, NaN
// 0x7F and 0xFF, no infinity, largest value 448. e5m2 is the top byte of an
// f16: 5 exponent bits (bias 15), 2 mantissa bits, infinity 0x7C, largest value
// 57344.
//
//===----------------------------------------------------------------------===//

#ifndef KVCACHE_KERNELS_FP8_H
#define KVCACHE_KERNELS_FP8_H

#include "Geometry.h"
#include "ptx.h"

namespace kvcache {
namespace kernels {

/// True where an e4m3 code is converted by one instruction. `arch` is a
/// constant after inlining.
KVCACHE_DEVICE bool convertsFP8(int arch) { return arch >= 89; }

/// What a decoded cache value has to be multiplied with. Without the
/// conversion instruction e4m3 values arrive times 2^-8, because the code's
/// bits are moved into an f16 whose exponent bias is 15 instead of 7.
KVCACHE_DEVICE float decodedUnit(int arch, int cacheType) {
  return cacheType == E4M3 && !convertsFP8(arch) ? 256.f : 1.f;
}

/// Which codes of a register become one f16x2.
enum Pairing {
  Neighbours, // low = {b0, b1}, high = {b2, b3}
  Alternate,  // low = {b0, b2}, high = {b1, b3}
};

/// Four codes `x` = b3 b2 b1 b0 to two f16x2, exactly, up to decodedUnit.
///
/// Hardware conversions and e5m2 (the top byte of an f16) give NaN and
/// infinity for such codes. The integer path gives the finite +-1.875 for a
/// NaN code and sets bit 7 of the code's byte in `nan`; the caller puts NaN in
/// place at the end, because a per-element test would cost as much as the
/// conversion itself.
///
/// The assembly in the integer path keeps the optimizer from undoing the
/// sharing of its masks: 6 operations for 4 codes, and 1.5 for `nan`.
KVCACHE_DEVICE void decode4(int arch, int cacheType, Pairing pairing, u32 x,
                            u32 &low, u32 &high, u32 &nan) {
  if (cacheType == E5M2) {
    low = ptx::prmt(x, 0, pairing == Alternate ? 0x2404u : 0x1404u);
    high = pairing == Alternate ? (x & 0xff00ff00u) : ptx::prmt(x, 0, 0x3424u);
    return;
  }
  if (convertsFP8(arch)) {
    if (pairing == Alternate)
      x = ptx::prmt(x, 0, 0x3120u);
    low = ptx::e4m3ToF16Low(x);
    high = ptx::e4m3ToF16High(x);
    return;
  }
  // f16: s 0eeee mmm0000000
  u32 sign = ptx::andBits(x, 0x80808080u);
  nan |= x - sign + 0x01010101u;
  if (pairing == Alternate) {
    high = ptx::selectBits(x >> 1, sign, 0x3f803f80u);
    low = ptx::selectBits(x << 7, sign << 8, 0x3f803f80u);
    return;
  }
  u32 y = ptx::rotateRight1(x); // bit 0 of byte i + 1 lands in bit 7 of byte i
  u32 upper = ptx::selectBits(y, sign, 0x3f3f3f3fu);
  u32 lower = ptx::andBits(y, 0x80808080u);
  low = ptx::prmt(upper, lower, 0x1407u);
  high = ptx::prmt(upper, lower, 0x3625u);
}

/// `registers` times four codes to two f16x2 of neighbours each, exactly up to
/// decodedUnit, and NaN in its place: one branch where the codes have no
/// conversion instruction.
KVCACHE_DEVICE void decodeExact(int arch, int cacheType, int registers,
                                const u32 *codes, u32 *pairs) {
  u32 nan[4] = {};
#pragma unroll
  for (int i = 0; i < registers; ++i)
    decode4(arch, cacheType, Neighbours, codes[i], pairs[2 * i],
            pairs[2 * i + 1], nan[i]);
  if (__builtin_expect(!((nan[0] | nan[1] | nan[2] | nan[3]) & 0x80808080u), 1))
    return;
#pragma unroll
  for (int i = 0; i < registers; ++i) {
    pairs[2 * i] |=
        (nan[i] & 0x80u ? 0x7e00u : 0u) | (nan[i] & 0x8000u ? 0x7e000000u : 0u);
    pairs[2 * i + 1] |= (nan[i] & 0x800000u ? 0x7e00u : 0u) |
                        (nan[i] & 0x80000000u ? 0x7e000000u : 0u);
  }
}

/// One f32 to an e4m3 code, round to nearest even, saturating: the bytes of
/// cvt.rn.satfinite.e4m3x2.f32, which gives 0x7F for every NaN, whatever its
/// sign.
KVCACHE_DEVICE u32 encodeE4M3(float x) {
  u32 bits = ptx::asBits(x), sign = bits >> 24 & 0x80u;
  u32 magnitude = bits & 0x7fffffffu;
  u32 clamped = magnitude < 0x43e00000u ? magnitude : 0x43e00000u; // 448
  // Normal codes start at 2^-6: drop 20 mantissa bits, rebias 127 to 7.
  u32 normal = (clamped + 0x7ffffu + (clamped >> 20 & 1u)) >> 20;
  normal -= 120u << 3;
  // Below, codes count steps of 2^-9; so do the last bits of 2^14 + x.
  u32 subnormal = ptx::asBits(ptx::asFloat(clamped) + 16384.f) - 0x46800000u;
  u32 code = sign | (clamped < 0x3c800000u ? subnormal : normal);
  return magnitude > 0x7f800000u ? 0x7fu : code;
}

/// The same for e5m2 and cvt.rn.satfinite.e5m2x2.f32; infinities saturate.
KVCACHE_DEVICE u32 encodeE5M2(float x) {
  u32 bits = ptx::asBits(x), sign = bits >> 24 & 0x80u;
  u32 magnitude = bits & 0x7fffffffu;
  u32 clamped = magnitude < 0x47600000u ? magnitude : 0x47600000u; // 57344
  // Normal codes start at 2^-14: drop 21 mantissa bits, rebias 127 to 15.
  u32 normal = (clamped + 0xfffffu + (clamped >> 21 & 1u)) >> 21;
  normal -= 112u << 2;
  // Below, codes count steps of 2^-16; so do the last bits of 2^7 + x.
  u32 subnormal = ptx::asBits(ptx::asFloat(clamped) + 128.f) - 0x43000000u;
  u32 code = sign | (clamped < 0x38800000u ? subnormal : normal);
  return magnitude > 0x7f800000u ? 0x7fu : code;
}

/// Four f32 to four codes, x[0] in the lowest byte.
KVCACHE_DEVICE u32 encode4(int arch, int cacheType, const float *x) {
  if (cacheType == E5M2) {
    if (convertsFP8(arch))
      return ptx::f32ToE5M2x4(x);
    return encodeE5M2(x[0]) | encodeE5M2(x[1]) << 8 | encodeE5M2(x[2]) << 16 |
           encodeE5M2(x[3]) << 24;
  }
  if (convertsFP8(arch))
    return ptx::f32ToE4M3x4(x);
  return encodeE4M3(x[0]) | encodeE4M3(x[1]) << 8 | encodeE4M3(x[2]) << 16 |
         encodeE4M3(x[3]) << 24;
}

} // namespace kernels
} // namespace kvcache

#endif // KVCACHE_KERNELS_FP8_H
