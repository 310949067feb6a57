//===- FP8.h - 8 and 16 bit floating point formats --------------*- C++ -*-===//
//
// Exact conversions between binary32/binary64 and the narrow formats of a KV
// cache: round to nearest even, one rounding only, saturation for 8 bit.
//
// NaN is written as the canonical pattern that PTX `cvt` writes (0x7F for both
// 8 bit formats, 0x7FFF for f16 and bf16) and stays a NaN when read.
//
//===----------------------------------------------------------------------===//

#ifndef KVCACHE_SUPPORT_FP8_H
#define KVCACHE_SUPPORT_FP8_H

#include <cstdint>
#include <cstring>

namespace kvcache {

namespace detail {

/// A sign, exponent, mantissa format of at most 16 bits.
struct NarrowFormat {
  int mantissaBits;
  int minExponent;    ///< of the smallest normal number
  uint32_t signBit;   ///< mask
  uint32_t maxFinite; ///< code of the largest finite number
  uint32_t infinity;  ///< what a magnitude beyond maxFinite becomes
  uint32_t nan;       ///< canonical NaN
};

// Overflow becomes maxFinite in the 8 bit formats: they saturate.
inline constexpr NarrowFormat formatE4M3FN{3, -6, 0x80, 0x7E, 0x7E, 0x7F};
inline constexpr NarrowFormat formatE5M2{2, -14, 0x80, 0x7B, 0x7B, 0x7F};
inline constexpr NarrowFormat formatF16{10,     -14,    0x8000,
                                        0x7BFF, 0x7C00, 0x7FFF};
inline constexpr NarrowFormat formatBF16{7,      -126,   0x8000,
                                         0x7F7F, 0x7F80, 0x7FFF};

/// Rounds `x` to nearest even in `format`. Exact for every double, hence also
/// for every float.
inline uint32_t encodeNarrow(double x, const NarrowFormat &format) {
  uint64_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  uint32_t sign = (bits >> 63) ? format.signBit : 0;
  uint64_t magnitude = bits & ~(uint64_t(1) << 63);
  if (magnitude > (uint64_t(0x7FF) << 52))
    return format.nan;
  int exponentField = int(magnitude >> 52);
  if (exponentField == 0x7FF)
    return sign | format.infinity;
  // Subnormal doubles lie far below half of the smallest code.
  if (exponentField == 0)
    return sign;
  int exponent = exponentField - 1023;
  int scaled = exponent < format.minExponent ? format.minExponent : exponent;
  int shift = 52 - format.mantissaBits + (scaled - exponent);
  if (shift > 54)
    return sign;
  uint64_t significand =
      (magnitude & ((uint64_t(1) << 52) - 1)) | (uint64_t(1) << 52);
  uint64_t rounded = significand >> shift;
  uint64_t rest = significand & ((uint64_t(1) << shift) - 1);
  uint64_t half = uint64_t(1) << (shift - 1);
  if (rest > half || (rest == half && (rounded & 1)))
    ++rounded;
  // `rounded` has the implicit bit of a normal number, which adds the 1 by
  // which exponent fields start; a carry out of the mantissa is correct too.
  uint64_t code =
      rounded + (uint64_t(scaled - format.minExponent) << format.mantissaBits);
  return sign | (code > format.maxFinite ? format.infinity : uint32_t(code));
}

inline float floatFromBits(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

/// The value of a code that is neither infinity nor NaN, without its sign.
/// Only for formats with a smaller exponent range than f32.
inline float decodeFinite(uint32_t code, int mantissaBits, int minExponent) {
  uint32_t field = code >> mantissaBits;
  uint32_t mantissa = code & ((1u << mantissaBits) - 1);
  if (field == 0) {
    // 2^(minExponent - mantissaBits) is a normal f32 here.
    float step =
        floatFromBits(uint32_t(minExponent - mantissaBits + 127) << 23);
    return float(mantissa) * step;
  }
  return floatFromBits((uint32_t(int(field) - 1 + minExponent + 127) << 23) |
                       (mantissa << (23 - mantissaBits)));
}

} // namespace detail

/// The bit pattern of a float, and back.
inline uint32_t bitsOfFloat(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}
inline float floatFromBits(uint32_t bits) {
  return detail::floatFromBits(bits);
}

/// e4m3fn (1-4-3, bias 7, no infinity, largest finite 448). Values beyond 448
/// and infinities saturate; NaN stays NaN.
inline uint8_t toE4M3FN(double x) {
  return uint8_t(detail::encodeNarrow(x, detail::formatE4M3FN));
}

/// e5m2 (1-5-2, bias 15, largest finite 57344). Values beyond 57344 and
/// infinities saturate; NaN stays NaN. The code of infinity is never written.
inline uint8_t toE5M2(double x) {
  return uint8_t(detail::encodeNarrow(x, detail::formatE5M2));
}

/// IEEE binary16. Values that round beyond 65504 become infinity.
inline uint16_t toF16(double x) {
  return uint16_t(detail::encodeNarrow(x, detail::formatF16));
}

/// bfloat16. Values that round beyond the largest finite become infinity.
inline uint16_t toBF16(double x) {
  return uint16_t(detail::encodeNarrow(x, detail::formatBF16));
}

inline float fromE4M3FN(uint8_t code) {
  uint32_t sign = uint32_t(code & 0x80) << 24;
  if ((code & 0x7F) == 0x7F)
    return floatFromBits(sign | 0x7FC00000u);
  return floatFromBits(sign |
                       bitsOfFloat(detail::decodeFinite(code & 0x7F, 3, -6)));
}

inline float fromE5M2(uint8_t code) {
  uint32_t sign = uint32_t(code & 0x80) << 24;
  uint32_t magnitude = code & 0x7F;
  if (magnitude >= 0x7C)
    return floatFromBits(sign |
                         (magnitude == 0x7C ? 0x7F800000u : 0x7FC00000u));
  return floatFromBits(sign |
                       bitsOfFloat(detail::decodeFinite(magnitude, 2, -14)));
}

inline float fromF16(uint16_t code) {
  uint32_t sign = uint32_t(code & 0x8000) << 16;
  uint32_t magnitude = code & 0x7FFF;
  // A NaN keeps its payload and becomes quiet.
  if (magnitude >= 0x7C00)
    return floatFromBits(sign | 0x7F800000u | ((magnitude & 0x3FF) << 13) |
                         (magnitude > 0x7C00 ? 0x00400000u : 0));
  return floatFromBits(sign |
                       bitsOfFloat(detail::decodeFinite(magnitude, 10, -14)));
}

inline float fromBF16(uint16_t code) {
  return floatFromBits(uint32_t(code) << 16);
}

/// The write of a cache (one element): f32 division by the scale, then rounded
/// and saturated. Multiplying by a reciprocal differs at ties.
inline uint8_t quantizeE4M3FN(float x, float scale) {
  return toE4M3FN(x / scale);
}
inline uint8_t quantizeE5M2(float x, float scale) { return toE5M2(x / scale); }

} // namespace kvcache

#endif // KVCACHE_SUPPORT_FP8_H
