//===- Convert.cpp - cvt --------------------------------------------------===//

#include "FloatFormats.h"
#include "Lanes.h"
#include "Statement.h"

#include <limits>

using namespace kvcache::ptx;

namespace {

//===----------------------------------------------------------------------===//
// Scalars: integers, f16, bf16, f32, f64
//===----------------------------------------------------------------------===//

enum class Integral : u8 {
  None,
  Nearest,
  Zero,
  Down,
  Up
}; // .rni .rzi .rmi .rpi

// i.flags of a general conversion.
enum : u16 {
  Saturate = 1,
  Flush = 2,
  Relu = 4,
  WideSource = 8,     // the source register has 64 bits, whatever the type
  SaturateFinite = 16 // beyond the largest number: that number
};

struct Scalar {
  Type type;
  int units() const { return type.units(); }
};

s64 signExtend(u64 x, int bits) { return s64(x << (64 - bits)) >> (64 - bits); }
u64 lowBits(u64 x, int bits) {
  return bits == 64 ? x : x & ((1ull << bits) - 1);
}

double integral(double x, Integral mode) {
  switch (mode) {
  case Integral::Nearest:
    return std::nearbyint(x);
  case Integral::Zero:
    return std::trunc(x);
  case Integral::Down:
    return std::floor(x);
  case Integral::Up:
    return std::ceil(x);
  case Integral::None:
    break;
  }
  return x;
}

/// Float to integer clamps to the type; NaN gives 0.
u64 toInteger(double x, Type d) {
  if (x != x)
    return 0;
  int bits = d.bits;
  if (d.isSigned()) {
    double hi = std::ldexp(1.0, bits - 1);
    s64 v = x >= hi   ? s64(lowBits(~0ull, bits) >> 1)
            : x < -hi ? -s64(lowBits(~0ull, bits) >> 1) - 1
                      : s64(x);
    return lowBits(u64(v), bits);
  }
  double hi = std::ldexp(1.0, bits);
  return x >= hi ? lowBits(~0ull, bits) : x <= 0 ? 0 : u64(x);
}

/// Integer to double, rounded to odd so that a second rounding is correct.
double integerToOdd(u64 magnitude, bool negative) {
  double hi = double(magnitude >> 32) * 4294967296.0;
  double r = addToOdd(hi, double(magnitude & 0xffffffff));
  return negative ? -r : r;
}

const FloatFormat &formatOf(Type t) {
  return t.kind == 'h' ? formatF16 : t.kind == 'B' ? formatBF16 : formatF32;
}
bool isFloat(Type t) { return t.kind == 'f' || t.kind == 'h' || t.kind == 'B'; }

double loadFloat(Type t, u64 bits) {
  if (t.kind == 'f' && t.bits == 64)
    return __builtin_bit_cast(double, bits);
  if (t.kind == 'f')
    return double(__builtin_bit_cast(float, u32(bits)));
  return expand(formatOf(t), u32(bits));
}
u64 storeFloat(Type t, double x, Rounding mode, bool finite = false) {
  if (t.kind == 'f' && t.bits == 64)
    return __builtin_bit_cast(u64, x);
  return roundTo(formatOf(t), x, mode, finite);
}

struct Conversion {
  Type d, s;
  Rounding rounding;
  Integral integralMode;
  u16 flags;
};

u64 convert(const Conversion &c, u64 bits) {
  bits = lowBits(bits, c.s.bits);
  if (isFloat(c.s)) {
    double x = loadFloat(c.s, bits);
    bool f32Source = c.s.kind == 'f' && c.s.bits == 32;
    if ((c.flags & Flush) && f32Source && std::fabs(x) < 0x1p-126)
      x = std::copysign(0.0, x);
    x = integral(x, c.integralMode);
    if (!isFloat(c.d))
      return toInteger(x, c.d);
    if (c.flags & Saturate)
      x = x > 0 ? (x < 1 ? x : 1) : 0;
    if ((c.flags & Relu) && x < 0)
      x = 0;
    u64 r = storeFloat(c.d, x, c.rounding, c.flags & SaturateFinite);
    bool f32Result = c.d.kind == 'f' && c.d.bits == 32;
    if ((c.flags & Flush) && f32Result && !(r & 0x7f800000))
      r &= 0x80000000;
    return r;
  }
  if (isFloat(c.d)) {
    bool negative = c.s.isSigned() && signExtend(bits, c.s.bits) < 0;
    u64 magnitude = negative ? 0 - u64(signExtend(bits, c.s.bits)) : bits;
    if (c.d.kind == 'f' && c.d.bits == 64) {
      if (c.rounding == Rounding::Nearest)
        return __builtin_bit_cast(u64, negative ? -double(magnitude)
                                                : double(magnitude));
      double near = negative ? -double(magnitude) : double(magnitude);
      double odd = integerToOdd(magnitude, negative);
      // `odd` is exact or lies strictly between two neighbours.
      if (odd != near || (__builtin_bit_cast(u64, odd) & 1)) {
        bool towardsZero = c.rounding == Rounding::Zero ||
                           (c.rounding == Rounding::Down) != negative;
        double floor = near, ceil = near;
        if (std::fabs(near) >= 0x1p64 || u64(std::fabs(near)) > magnitude)
          floor = std::nextafter(near, 0.0);
        else if (u64(std::fabs(near)) < magnitude)
          ceil = std::nextafter(near, negative ? -INFINITY : INFINITY);
        near = towardsZero ? floor : ceil;
      }
      return __builtin_bit_cast(u64, near);
    }
    return storeFloat(c.d, integerToOdd(magnitude, negative), c.rounding);
  }
  // Integer to integer.
  if (!(c.flags & Saturate))
    return c.s.isSigned() ? u64(signExtend(bits, c.s.bits)) : bits;
  if (c.s.isSigned()) {
    s64 v = signExtend(bits, c.s.bits);
    if (!c.d.isSigned())
      return v < 0                               ? 0
             : u64(v) > lowBits(~0ull, c.d.bits) ? lowBits(~0ull, c.d.bits)
                                                 : u64(v);
    s64 hi = s64(lowBits(~0ull, c.d.bits) >> 1);
    return u64(v > hi ? hi : v < -hi - 1 ? -hi - 1 : v);
  }
  u64 hi = lowBits(~0ull, c.d.bits) >> (c.d.isSigned() ? 1 : 0);
  return bits > hi ? hi : bits;
}

// A conversion is packed into i.imm so that the handler has no state.
s64 encode(const Conversion &c) {
  return s64(u64(u8(c.d.kind)) | u64(c.d.bits) << 8 | u64(u8(c.s.kind)) << 16 |
             u64(c.s.bits) << 24 | u64(c.rounding) << 32 |
             u64(c.integralMode) << 36 | u64(c.flags) << 40);
}
Conversion decode(s64 imm) {
  u64 x = u64(imm);
  Conversion c;
  c.d = {char(x & 255), u8(x >> 8 & 255)};
  c.s = {char(x >> 16 & 255), u8(x >> 24 & 255)};
  c.rounding = Rounding(x >> 32 & 15);
  c.integralMode = Integral(x >> 36 & 15);
  c.flags = u16(x >> 40);
  return c;
}

void general(Warp &w, const Instr &i) {
  const Conversion c = decode(i.imm);
  const bool wideSource = c.s.bits == 64 || (c.flags & WideSource);
  const bool wide = c.d.bits == 64 || (i.wide & 1);
  for (u32 m = w.lanes; m; m &= m - 1) {
    int l = __builtin_ctz(m);
    u64 x = wideSource ? w.r<u64>(i.s[0])[l] : w.r<u32>(i.s[0])[l];
    u64 r = lowBits(convert(c, x), c.d.bits);
    // Narrow integers live sign-extended or zero-extended in wider registers.
    if (c.d.bits < 64 && c.d.isSigned())
      r = u64(signExtend(r, c.d.bits));
    if (wide)
      w.r<u64>(i.d[0])[l] = r;
    else
      w.r<u32>(i.d[0])[l] = c.d.bits == 16 ? u32(r) & 0xffff : u32(r);
  }
}

//===----------------------------------------------------------------------===//
// Frequent conversions, vectorised
//===----------------------------------------------------------------------===//

template <class R, class A> struct Cast {
  static R f(A a) { return R(a); }
};
struct FromBfloat {
  static float f(u16 a) { return bfloatToFloat(a); }
};
struct ToBfloat {
  static u16 f(float a) { return floatToBfloat(a); }
};
struct ToHalf {
  static u16 f(float a) {
    return a != a ? u16(0x7fff) : __builtin_bit_cast(u16, f16(a));
  }
};

template <class F> void packHalves(Warp &w, const Instr &i) {
  auto a = in<float>(w, i.s[0]), b = in<float>(w, i.s[1]);
  each<u32>(w, i.d[0], [=](int l) {
    return u32(F::f(unbox<float>(a[l]))) << 16 | F::f(unbox<float>(b[l]));
  });
}

/// Exact, by f32 arithmetic on the f16 pattern times 256.
inline u32 e4m3ToHalf(u32 c) {
  u32 h = (c & 0x7f) << 7;
  float v = float(__builtin_bit_cast(f16, u16(h))) * 256.f;
  u32 r = box<f16>(f16(v));
  r = (c & 0x7f) == 0x7f ? 0x7fff : r;
  return r | (c & 0x80) << 8;
}
/// .relu: negative numbers become 0, NaN the positive one.
template <bool WithRelu> void e4m3Halves(Warp &w, const Instr &i) {
  auto a = in<u32>(w, i.s[0]);
  each<u32>(w, i.d[0], [=](int l) {
    u32 x = a[l];
    u32 low = x & 255, high = x >> 8 & 255;
    if (WithRelu) {
      low = (low & 0x7f) == 0x7f ? 0x7f : low & 0x80 ? 0 : low;
      high = (high & 0x7f) == 0x7f ? 0x7f : high & 0x80 ? 0 : high;
    }
    return e4m3ToHalf(low) | e4m3ToHalf(high) << 16;
  });
}
template <bool WithRelu> void e5m2Halves(Warp &w, const Instr &i) {
  auto a = in<u32>(w, i.s[0]);
  each<u32>(w, i.d[0], [=](int l) {
    u32 r = 0;
    for (int h = 0; h < 2; ++h) {
      u32 c = a[l] >> (8 * h) & 255;
      u32 code = (c & 0x7f) > 0x7c ? 0x7fff : WithRelu && c & 0x80 ? 0 : c << 8;
      r |= code << (16 * h);
    }
    return r;
  });
}

/// Two f32, or the halves of an f16x2 or bf16x2, to two FP8 codes; saturating.
/// flags: 1 e5m2, 2 relu, 4 packed f16 source, 8 packed bf16 source.
void toFp8(Warp &w, const Instr &i) {
  const FloatFormat &format = i.flags & 1 ? formatE5M2 : formatE4M3;
  auto code = [&](double x) {
    if ((i.flags & 2) && x < 0)
      x = 0;
    return roundTo(format, x, Rounding::Nearest, true);
  };
  each<u32>(w, i.d[0], [&](int l) {
    double high, low;
    if (i.flags & 12) {
      const FloatFormat &source = i.flags & 4 ? formatF16 : formatBF16;
      u32 x = w.r<u32>(i.s[0])[l];
      high = expand(source, x >> 16);
      low = expand(source, x & 0xffff);
    } else {
      high = double(w.r<float>(i.s[0])[l]);
      low = double(w.r<float>(i.s[1])[l]);
    }
    return code(high) << 8 | code(low);
  });
}

/// cvt.{rz,rn}.relu variants of f16x2 and bf16x2 from two f32.
void packGeneral(Warp &w, const Instr &i) {
  Conversion c = decode(i.imm);
  each<u32>(w, i.d[0], [&](int l) {
    u64 high = convert(c, w.r<u32>(i.s[0])[l]);
    u64 low = convert(c, w.r<u32>(i.s[1])[l]);
    return u32(high << 16 | low);
  });
}

template <class R> Handler integerCast(Type s) {
  bool sg = s.isSigned();
  switch (s.bits) {
  case 8:
    return sg ? unary<Cast<R, s8>, R, s8> : unary<Cast<R, u8>, R, u8>;
  case 16:
    return sg ? unary<Cast<R, s16>, R, s16> : unary<Cast<R, u16>, R, u16>;
  case 32:
    return sg ? unary<Cast<R, s32>, R, s32> : unary<Cast<R, u32>, R, u32>;
  case 64:
    return sg ? unary<Cast<R, s64>, R, s64> : unary<Cast<R, u64>, R, u64>;
  }
  return nullptr;
}

/// Plain conversions that need no rounding mode or use the default one.
Handler fastPath(const Conversion &c) {
  bool plain = !c.flags && c.integralMode == Integral::None &&
               c.rounding == Rounding::Nearest;
  if (!plain)
    return nullptr;
  Type d = c.d, s = c.s;
  if (!isFloat(d) && !isFloat(s)) {
    // A narrow result in a wide register is the general handler's business.
    if (d.bits == 32)
      return d.isSigned() ? integerCast<s32>(s) : integerCast<u32>(s);
    if (d.bits == 64)
      return d.isSigned() ? integerCast<s64>(s) : integerCast<u64>(s);
    if (d.bits == 16)
      return integerCast<u16>(s);
    return nullptr;
  }
  bool f32d = d.kind == 'f' && d.bits == 32,
       f32s = s.kind == 'f' && s.bits == 32;
  bool f64d = d.kind == 'f' && d.bits == 64,
       f64s = s.kind == 'f' && s.bits == 64;
  if (f32d && s.kind == 'h')
    return unary<Cast<float, f16>, float, f16>;
  if (f32d && s.kind == 'B')
    return unary<FromBfloat, float, u16>;
  if (d.kind == 'h' && f32s)
    return unary<ToHalf, u16, float>;
  if (d.kind == 'B' && f32s)
    return unary<ToBfloat, u16, float>;
  if (f64d && f32s)
    return unary<Cast<double, float>, double, float>;
  if (f32d && f64s)
    return unary<Cast<float, double>, float, double>;
  if (f32d && s.bits == 32 && !isFloat(s))
    return s.isSigned() ? unary<Cast<float, s32>, float, s32>
                        : unary<Cast<float, u32>, float, u32>;
  return nullptr;
}

bool lowerPacked(Builder &b, const Statement &s, Instr &i, Type d, Type src,
                 Conversion &c) {
  const InstrClass cls = InstrClass::Convert;
  size_t count = s.operands.size();
  bool fp8Result = d.kind == 'e' || d.kind == 'E';
  bool fp8Source = src.kind == 'e' || src.kind == 'E';
  bool relu = s.has("relu");
  if (fp8Source) {
    if (d.kind != 'H' || count != 2 || !s.has("rn"))
      return false;
    Handler fn = src.kind == 'e'
                     ? (relu ? e4m3Halves<true> : e4m3Halves<false>)
                     : (relu ? e5m2Halves<true> : e5m2Halves<false>);
    return lowerOperands(b, s, i, 1, {1}) &&
           choose(i, fn, cls, TaintRule::Widen8);
  }
  if (fp8Result) {
    if (!s.has("satfinite") || !s.has("rn"))
      return false;
    i.flags = u16((d.kind == 'E' ? 1 : 0) | (relu ? 2 : 0));
    if (src.kind == 'f' && src.bits == 32 && count == 3)
      return lowerOperands(b, s, i, 1, {1, 1}) &&
             choose(i, toFp8, cls, TaintRule::PackBytes);
    if ((src.kind == 'H' || src.kind == 'X') && count == 2) {
      i.flags |= src.kind == 'H' ? 4 : 8;
      return lowerOperands(b, s, i, 1, {1}) &&
             choose(i, toFp8, cls, TaintRule::Narrow16);
    }
    return false;
  }
  if (src.kind != 'f' || src.bits != 32 || count != 3)
    return false;
  if (!lowerOperands(b, s, i, 1, {1, 1}))
    return false;
  if (c.rounding == Rounding::Nearest && !c.flags)
    return choose(i, d.kind == 'H' ? packHalves<ToHalf> : packHalves<ToBfloat>,
                  cls, TaintRule::PackHalves);
  c.d = {d.kind == 'H' ? 'h' : 'B', 16};
  i.imm = encode(c);
  return choose(i, packGeneral, cls, TaintRule::PackHalves);
}

/// To the top 10 mantissa bits. i.imm: what is added to the magnitude before
/// the others are cut off; bit 32: ties go to even.
void toTf32(Warp &w, const Instr &i) {
  auto a = in<u32>(w, i.s[0]);
  const u32 add = u32(i.imm), even = u32(i.imm >> 32);
  const u16 flags = i.flags;
  each<u32>(w, i.d[0], [=](int l) {
    u32 x = a[l], magnitude = x & 0x7fffffff;
    if (magnitude > 0x7f800000) // canonical where the result may be clamped
      return flags ? 0x7fffffffu : x;
    if (flags & Relu && x >> 31)
      return 0u;
    if (magnitude < 0x7f800000)
      magnitude = (magnitude + add + (magnitude >> 13 & even)) & 0xffffe000;
    if (flags & SaturateFinite && magnitude >= 0x7f800000)
      magnitude = 0x7f7fe000;
    return (x & 0x80000000) | magnitude;
  });
}

} // namespace

bool kvcache::ptx::lowerConversion(Builder &b, const Statement &s, Instr &i) {
  if (s.op() != "cvt")
    return false;
  if (!onlyParts(s, "rn rz rm rp rna rni rzi rmi rpi ftz sat satfinite relu"))
    return false;
  std::vector<Type> types;
  for (size_t n = 1; n < s.parts.size(); ++n)
    if (Type t = parseType(s.parts[n]); t.kind)
      types.push_back(t);
  if (types.size() != 2 || s.operands.size() < 2)
    return false;
  Conversion c;
  c.d = types[0];
  c.s = types[1];
  c.rounding = s.has("rz")   ? Rounding::Zero
               : s.has("rm") ? Rounding::Down
               : s.has("rp") ? Rounding::Up
                             : Rounding::Nearest;
  c.integralMode = s.has("rni")   ? Integral::Nearest
                   : s.has("rzi") ? Integral::Zero
                   : s.has("rmi") ? Integral::Down
                   : s.has("rpi") ? Integral::Up
                                  : Integral::None;
  c.flags = u16((s.has("sat") ? Saturate : 0) | (s.has("ftz") ? Flush : 0) |
                (s.has("relu") ? Relu : 0) |
                (s.has("satfinite") ? SaturateFinite : 0));
  const InstrClass cls = InstrClass::Convert;
  if (c.d.kind == 't') {
    const bool away = s.has("rna"), even = s.has("rn");
    if (c.s.kind != 'f' || c.s.bits != 32 || !(away || even || s.has("rz")))
      return false;
    i.flags = c.flags;
    i.imm = away ? 0x1000 : even ? 0xfff | 1ll << 32 : 0;
    return lowerOperands(b, s, i, 1, {1}) &&
           choose(i, toTf32, cls, TaintRule::Whole);
  }
  auto packed = [](Type t) {
    return t.kind == 'H' || t.kind == 'X' || t.kind == 'e' || t.kind == 'E';
  };
  if (packed(c.d) || packed(c.s))
    return lowerPacked(b, s, i, c.d, c.s, c);
  if (s.operands.size() != 2 || s.has("rna") ||
      (s.has("satfinite") && c.d.kind != 'h' && c.d.kind != 'B'))
    return false;
  bool known = (isFloat(c.d) || strchr("bus", c.d.kind)) &&
               (isFloat(c.s) || strchr("bus", c.s.kind));
  if (!known)
    return false;
  // Float to integer needs an integral rounding.
  if (isFloat(c.s) && !isFloat(c.d) && c.integralMode == Integral::None)
    return false;
  if (!lowerOperands(b, s, i, c.d.units(), {c.s.units()}))
    return false;
  bool integers = !isFloat(c.d) && !isFloat(c.s), whole = !c.flags;
  Handler fn = fastPath(c);
  // Registers may be wider than the types of what they hold.
  if (c.s.bits < 64 && b.isWide(s.operands[1]))
    c.flags |= WideSource;
  if ((c.flags & WideSource) || (c.d.bits < 64 && b.isWide(s.operands[0])))
    fn = nullptr;
  if (!fn) {
    fn = general;
    i.imm = encode(c);
  }
  return choose(i, fn, cls,
                integers && whole ? TaintRule::Structural : TaintRule::Whole);
}
