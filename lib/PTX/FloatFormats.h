//===- FloatFormats.h - Rounding to small floating-point formats *- C++ -*-===//
//
// Correctly rounded conversion of a double to f32, f16, bf16, e4m3 and e5m2 in
// all four PTX rounding modes, and back.
//
//===----------------------------------------------------------------------===//

#ifndef KVCACHE_LIB_PTX_FLOATFORMATS_H
#define KVCACHE_LIB_PTX_FLOATFORMATS_H

#include "Instruction.h"

#include <cmath>

namespace kvcache::ptx {

enum class Rounding : u8 { Nearest, Zero, Down, Up };

struct FloatFormat {
  int exponentBits, mantissaBits;
  bool hasInfinity; // e4m3 has none, and one NaN code a sign
  int bias() const { return (1 << (exponentBits - 1)) - 1; }
};
constexpr FloatFormat formatF32{8, 23, true}, formatF16{5, 10, true},
    formatBF16{8, 7, true}, formatE5M2{5, 2, true}, formatE4M3{4, 3, false};

/// Rounds to `f`; NaN becomes the format's canonical NaN (positive). On
/// overflow: the largest number when `saturate`, else what the mode says
/// (e4m3: NaN).
inline u32 roundTo(const FloatFormat &f, double x, Rounding mode,
                   bool saturate) {
  const u32 sign =
      std::signbit(x) ? 1u << (f.exponentBits + f.mantissaBits) : 0;
  const u32 exponentOnes = (1u << f.exponentBits) - 1;
  const u32 nan = f.hasInfinity ? (exponentOnes << f.mantissaBits) |
                                      ((1u << f.mantissaBits) - 1)
                                : (1u << (f.exponentBits + f.mantissaBits)) - 1;
  const u32 infinity = exponentOnes << f.mantissaBits;
  const u32 largest = (f.hasInfinity ? infinity : nan) - 1;
  if (x != x)
    return nan;
  const double magnitude = std::fabs(x);
  auto overflow = [&] {
    if (saturate)
      return sign | largest;
    bool toLargest = mode == Rounding::Zero ||
                     (mode == Rounding::Down && !sign) ||
                     (mode == Rounding::Up && sign);
    if (toLargest && !std::isinf(x))
      return sign | largest;
    return f.hasInfinity ? sign | infinity : sign | nan;
  };
  if (std::isinf(x))
    return overflow();
  if (magnitude == 0)
    return sign;
  int exponent;
  std::frexp(magnitude, &exponent); // magnitude = m * 2^exponent, 0.5 <= m < 1
  --exponent;
  const int minimum = 1 - f.bias();
  const int unit = (exponent < minimum ? minimum : exponent) - f.mantissaBits;
  const double scaled = std::ldexp(magnitude, -unit); // exact
  double whole = std::floor(scaled);
  const double rest = scaled - whole;
  bool up = false;
  switch (mode) {
  case Rounding::Nearest:
    up = rest > 0.5 || (rest == 0.5 && std::fmod(whole, 2) != 0);
    break;
  case Rounding::Zero:
    break;
  case Rounding::Down:
    up = sign && rest > 0;
    break;
  case Rounding::Up:
    up = !sign && rest > 0;
    break;
  }
  // The code counts units; a carry into the exponent does the right thing.
  const u64 base =
      exponent < minimum ? 0 : u64(exponent - minimum) << f.mantissaBits;
  const u64 code = base + u64(whole) + (up ? 1 : 0);
  if (code > largest)
    return overflow();
  return sign | u32(code);
}

inline double expand(const FloatFormat &f, u32 code) {
  const u32 mantissa = code & ((1u << f.mantissaBits) - 1);
  const u32 exponent = code >> f.mantissaBits & ((1u << f.exponentBits) - 1);
  const u32 exponentOnes = (1u << f.exponentBits) - 1;
  const bool negative = code >> (f.exponentBits + f.mantissaBits) & 1;
  double v;
  if (exponent == exponentOnes && f.hasInfinity)
    v = mantissa ? NAN : INFINITY;
  else if (!f.hasInfinity && exponent == exponentOnes &&
           mantissa == (1u << f.mantissaBits) - 1)
    v = NAN;
  else if (exponent == 0)
    v = std::ldexp(double(mantissa), 1 - f.bias() - f.mantissaBits);
  else
    v = std::ldexp(double(mantissa | 1u << f.mantissaBits),
                   int(exponent) - f.bias() - f.mantissaBits);
  return negative ? -v : v;
}

/// a + b rounded to odd: a later rounding to a narrower format is then the
/// correct rounding of the exact sum.
inline double addToOdd(double a, double b) {
  const double sum = a + b;
  if (!std::isfinite(sum))
    return sum;
  const double bb = sum - a;
  const double error = (a - (sum - bb)) + (b - bb);
  u64 bits;
  memcpy(&bits, &sum, 8);
  if (error == 0 || (bits & 1))
    return sum;
  return std::nextafter(sum, error > 0 ? INFINITY : -INFINITY);
}

/// .ftz: a subnormal becomes zero of its sign.
inline float flush(float x) {
  u32 b = __builtin_bit_cast(u32, x);
  return b & 0x7f800000u ? x : __builtin_bit_cast(float, b & 0x80000000u);
}

inline float bfloatToFloat(u16 b) {
  return __builtin_bit_cast(float, u32(b) << 16);
}
/// Nearest even; NaN becomes 0x7fff.
inline u16 floatToBfloat(float x) {
  u32 bits = __builtin_bit_cast(u32, x);
  return x != x ? u16(0x7fff) : u16((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

} // namespace kvcache::ptx

#endif // KVCACHE_LIB_PTX_FLOATFORMATS_H
