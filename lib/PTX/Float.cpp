//===- Float.cpp - Floating-point arithmetic ------------------------------===//
//
// Approximate instructions (ex2, lg2, rcp, ...) are computed to about 1 ulp;
// they are not the hardware's tables.
//
//===----------------------------------------------------------------------===//

#include "FloatFormats.h"
#include "Lanes.h"
#include "Statement.h"

#include <cfenv>

using namespace kvcache::ptx;

namespace {

//===----------------------------------------------------------------------===//
// Scalar semantics
//===----------------------------------------------------------------------===//

struct BF16 {
  u16 bits;
};

/// f16 and bf16 are computed in f32: for one +, -, *, / or sqrt the second
/// rounding is innocuous (24 >= 2 * 11 + 2 bits).
template <class T> struct Arithmetic {
  using Compute = T;
  static T load(Box<T> x) { return unbox<T>(x); }
  static Box<T> store(T x) { return box<T>(x); }
};
template <> struct Arithmetic<f16> {
  using Compute = float;
  static float load(u32 x) { return float(unbox<f16>(x)); }
  static u32 store(float x) { return x != x ? 0x7fff : box<f16>(f16(x)); }
};
template <> struct Arithmetic<BF16> {
  using Compute = float;
  static float load(u32 x) { return bfloatToFloat(u16(x)); }
  static u32 store(float x) { return floatToBfloat(x); }
};

template <class T> T maxOf(T a, T b) {
  if (a > b)
    return a;
  if (b > a)
    return b;
  if (a != a)
    return b;
  if (b != b)
    return a;
  return std::signbit(a) ? b : a;
}
template <class T> T minOf(T a, T b) {
  if (a < b)
    return a;
  if (b < a)
    return b;
  if (a != a)
    return b;
  if (b != b)
    return a;
  return std::signbit(a) ? a : b;
}

struct Add {
  template <class T> static T f(T a, T b) { return a + b; }
};
struct Sub {
  template <class T> static T f(T a, T b) { return a - b; }
};
struct Mul {
  template <class T> static T f(T a, T b) { return a * b; }
};
struct Div {
  template <class T> static T f(T a, T b) { return a / b; }
};
struct Min {
  template <class T> static T f(T a, T b) { return minOf(a, b); }
};
struct Max {
  template <class T> static T f(T a, T b) { return maxOf(a, b); }
};
struct MinNaN {
  template <class T> static T f(T a, T b) {
    return a != a || b != b ? T(NAN) : minOf(a, b);
  }
};
struct MaxNaN {
  template <class T> static T f(T a, T b) {
    return a != a || b != b ? T(NAN) : maxOf(a, b);
  }
};
struct CopySign { // sign of a, magnitude of b
  template <class T> static T f(T a, T b) { return std::copysign(b, a); }
};
struct Fma {
  static float f(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
  static double f(double a, double b, double c) {
    return __builtin_fma(a, b, c);
  }
};

/// 2^x to about 1 ulp, subnormal results included.
template <bool Flush> inline float exp2Of(float x) {
  float c = x < -151.f ? -151.f : x > 128.f ? 128.f : x; // NaN stays
  float n = __builtin_rintf(c), f = c - n;
  float p = 1.5252733804e-5f;
  p = __builtin_fmaf(p, f, 1.5403530393e-4f);
  p = __builtin_fmaf(p, f, 1.3333558146e-3f);
  p = __builtin_fmaf(p, f, 9.6181291076e-3f);
  p = __builtin_fmaf(p, f, 5.5504108665e-2f);
  p = __builtin_fmaf(p, f, 2.4022650696e-1f);
  p = __builtin_fmaf(p, f, 6.9314718056e-1f);
  p = __builtin_fmaf(p, f, 1.f);
  s32 e = s32(n), h = e >> 1;
  float s1 = __builtin_bit_cast(float, (h + 127) << 23);
  float s2 = __builtin_bit_cast(float, (e - h + 127) << 23);
  float r = p * s1 * s2;
  r = x >= 128.f ? __builtin_inff() : r;
  if (Flush)
    r = x < -126.f ? 0.f : r;
  return x != x ? x : r;
}

struct Exp2 {
  static float f(float a) { return exp2Of<false>(a); }
};
struct Exp2Flush {
  static float f(float a) { return exp2Of<true>(flush(a)); }
};
struct Log2 {
  static float f(float a) { return std::log2(a); }
};
struct Rcp {
  template <class T> static T f(T a) { return T(1) / a; }
};
struct RcpFlush {
  static float f(float a) { return flush(1.f / flush(a)); }
};
struct Sqrt {
  template <class T> static T f(T a) { return std::sqrt(a); }
};
struct Rsqrt {
  template <class T> static T f(T a) { return T(1) / std::sqrt(a); }
};
struct Sin {
  static float f(float a) { return std::sin(a); }
};
struct Cos {
  static float f(float a) { return std::cos(a); }
};
struct Tanh {
  static float f(float a) { return std::tanh(a); }
};
struct Neg {
  template <class T> static T f(T a) { return -a; }
};
struct Abs {
  template <class T> static T f(T a) { return std::fabs(a); }
};

//===----------------------------------------------------------------------===//
// Handlers
//===----------------------------------------------------------------------===//

// i.flags of modified operations.
enum Modifier : u16 {
  Flush = 1,
  Saturate = 2,
  RoundZero = 4,
  RoundDown = 8,
  RoundUp = 12,
  RoundMask = 12,
  Relu = 16
};

template <class T> T modifyInput(T x, u16 flags) {
  if constexpr (sizeof(T) == 4)
    return flags & Flush ? flush(x) : x;
  return x;
}
template <class T> T modifyResult(T x, u16 flags) {
  x = modifyInput(x, flags);
  if (flags & Saturate)
    x = x > 0 ? (x < 1 ? x : T(1)) : T(0); // NaN: 0
  if (flags & Relu)
    x = x != x ? x : maxOf(x, T(0));
  return x;
}

/// The host's rounding mode while one instruction is executed.
struct RoundingScope {
  int old = std::fegetround();
  explicit RoundingScope(u16 flags) {
    static const int modes[] = {FE_TONEAREST, FE_TOWARDZERO, FE_DOWNWARD,
                                FE_UPWARD};
    std::fesetround(modes[(flags & RoundMask) >> 2]);
  }
  ~RoundingScope() { std::fesetround(old); }
};

template <class F, class T, int N> void modified(Warp &w, const Instr &i) {
  const Box<T> *source[N];
  for (int n = 0; n < N; ++n)
    source[n] = in<T>(w, i.s[n]);
  RoundingScope scope(i.flags);
  Box<T> *d = w.r<Box<T>>(i.d[0]);
  for (u32 m = w.lanes; m; m &= m - 1) {
    int l = __builtin_ctz(m);
    volatile T a[N]; // keeps the operation inside the rounding scope
    for (int n = 0; n < N; ++n)
      a[n] = modifyInput(unbox<T>(source[n][l]), i.flags);
    volatile T r;
    if constexpr (N == 1)
      r = F::f(T(a[0]));
    else if constexpr (N == 2)
      r = F::f(T(a[0]), T(a[1]));
    else
      r = F::f(T(a[0]), T(a[1]), T(a[2]));
    d[l] = box<T>(modifyResult(T(r), i.flags));
  }
}

/// f16, bf16 and their packed forms (Halves = 1 or 2).
template <class F, class T, int N, int Halves>
void small(Warp &w, const Instr &i) {
  const u32 *source[N];
  for (int n = 0; n < N; ++n)
    source[n] = w.r<u32>(i.s[n]);
  const u16 flags = i.flags;
  const FloatFormat &format =
      std::is_same<T, f16>::value ? formatF16 : formatBF16;
  each<u32>(w, i.d[0], [&](int l) {
    u32 r = 0;
    for (int h = 0; h < Halves; ++h) {
      float a[N];
      for (int n = 0; n < N; ++n)
        a[n] = Arithmetic<T>::load(source[n][l] >> (16 * h) & 0xffff);
      u32 code;
      if constexpr (N == 3) { // fma: one rounding
        double exact = addToOdd(double(a[0]) * double(a[1]), double(a[2]));
        if (flags & Saturate)
          exact = exact > 0 ? std::min(exact, 1.0) : 0;
        if (flags & Relu && exact < 0)
          exact = 0;
        code = roundTo(format, exact, Rounding::Nearest, false);
      } else {
        float x;
        if constexpr (N == 1)
          x = F::f(a[0]);
        else
          x = F::f(a[0], a[1]);
        code = Arithmetic<T>::store(modifyResult(x, u16(flags & ~Flush)));
      }
      r |= code << (16 * h);
    }
    return r;
  });
}

/// neg and abs act on the sign bit and keep NaN payloads.
template <bool Negate, class T, u64 Signs>
void signBits(Warp &w, const Instr &i) {
  auto a = in<T>(w, i.s[0]);
  each<T>(w, i.d[0], [=](int l) {
    T x = unbox<T>(a[l]);
    return Negate ? T(x ^ T(Signs)) : T(x & T(~Signs));
  });
}

//===----------------------------------------------------------------------===//
// Lowering
//===----------------------------------------------------------------------===//

/// Modifiers of an instruction; false when one is unknown here.
bool modifiersOf(const Statement &s, u16 &flags) {
  if (!onlyParts(s, "rn rz rm rp ftz sat approx full relu NaN"))
    return false;
  flags = 0;
  if (s.has("ftz"))
    flags |= Flush;
  if (s.has("sat"))
    flags |= Saturate;
  if (s.has("relu"))
    flags |= Relu;
  if (s.has("rz"))
    flags |= RoundZero;
  if (s.has("rm"))
    flags |= RoundDown;
  if (s.has("rp"))
    flags |= RoundUp;
  return true;
}

template <class F> Handler small2(Type t) {
  return t.kind == 'h'   ? small<F, f16, 2, 1>
         : t.kind == 'H' ? small<F, f16, 2, 2>
         : t.kind == 'B' ? small<F, BF16, 2, 1>
                         : small<F, BF16, 2, 2>;
}
template <class F> Handler small1(Type t) {
  return t.kind == 'h'   ? small<F, f16, 1, 1>
         : t.kind == 'H' ? small<F, f16, 1, 2>
         : t.kind == 'B' ? small<F, BF16, 1, 1>
                         : small<F, BF16, 1, 2>;
}
struct ScalarBinary {
  template <class F> static Handler get(Type t, u16 flags) {
    if (t.kind != 'f')
      return flags & RoundMask ? nullptr : small2<F>(t);
    if (flags)
      return t.bits == 32 ? Handler(modified<F, float, 2>)
                          : Handler(modified<F, double, 2>);
    return t.bits == 32 ? Handler(binaryOf<F, float>)
                        : Handler(binaryOf<F, double>);
  }
  template <class F, class T> static void binaryOf(Warp &w, const Instr &i) {
    auto a = in<T>(w, i.s[0]), b = in<T>(w, i.s[1]);
    each<T>(w, i.d[0],
            [=](int l) { return F::f(unbox<T>(a[l]), unbox<T>(b[l])); });
  }
};
template <class F> Handler unaryFloat(Type t, u16 flags) {
  if (flags & ~Flush)
    return t.kind == 'f' ? modified<F, float, 1> : nullptr;
  if (t.kind != 'f')
    return small1<F>(t);
  return flags ? modified<F, float, 1> : unary<F, float, float>;
}

bool lowerTranscendental(Builder &b, const Statement &s, Instr &i, Type t,
                         u16 flags) {
  const std::string &op = s.op();
  const InstrClass cls = InstrClass::Special;
  Handler fn = nullptr;
  if (t.kind == 'f' && t.bits == 64) {
    fn = op == "rcp"     ? modified<Rcp, double, 1>
         : op == "sqrt"  ? modified<Sqrt, double, 1>
         : op == "rsqrt" ? modified<Rsqrt, double, 1>
                         : Handler(nullptr);
  } else if (op == "ex2") {
    fn = t.kind != 'f'   ? small1<Exp2>(t)
         : flags & Flush ? unary<Exp2Flush, float, float>
                         : unary<Exp2, float, float>;
  } else if (op == "rcp") {
    fn = flags == Flush ? unary<RcpFlush, float, float>
                        : unaryFloat<Rcp>(t, flags);
  } else if (op == "lg2") {
    fn = unaryFloat<Log2>(t, flags);
  } else if (op == "sqrt") {
    fn = unaryFloat<Sqrt>(t, flags);
  } else if (op == "rsqrt") {
    fn = unaryFloat<Rsqrt>(t, flags);
  } else if (op == "sin") {
    fn = unaryFloat<Sin>(t, flags);
  } else if (op == "cos") {
    fn = unaryFloat<Cos>(t, flags);
  } else if (op == "tanh") {
    fn = unaryFloat<Tanh>(t, flags);
  }
  if (!fn)
    return false;
  i.flags = flags;
  int units = t.units();
  return lowerOperands(b, s, i, units, {units}) &&
         choose(i, fn, cls,
                t.kind == 'H' || t.kind == 'X' ? TaintRule::Halves
                                               : TaintRule::Whole);
}

} // namespace

bool kvcache::ptx::lowerFloat(Builder &b, const Statement &s, Instr &i) {
  const std::string &op = s.op();
  Type t = s.type();
  if (t.kind != 'f' && t.kind != 'h' && t.kind != 'H' && t.kind != 'B' &&
      t.kind != 'X')
    return false;
  const int units = t.units();
  const InstrClass cls = InstrClass::Float;
  const TaintRule rule =
      t.kind == 'H' || t.kind == 'X' ? TaintRule::Halves : TaintRule::Whole;
  u16 flags;
  if (!modifiersOf(s, flags))
    return false;
  size_t count = s.operands.size();
  bool nan = s.has("NaN");
  Handler fn = nullptr;
  if (count == 2 && (op == "neg" || op == "abs")) {
    bool neg = op == "neg";
    if (t.kind == 'f' && (flags & Flush))
      fn = neg ? modified<Neg, float, 1> : modified<Abs, float, 1>;
    else if (t.kind == 'f' && t.bits == 64)
      fn = neg ? signBits<true, u64, 1ull << 63>
               : signBits<false, u64, 1ull << 63>;
    else if (t.kind == 'f')
      fn = neg ? signBits<true, u32, 0x80000000>
               : signBits<false, u32, 0x80000000>;
    else if (t.bits == 16)
      fn = neg ? signBits<true, u32, 0x8000> : signBits<false, u32, 0x8000>;
    else
      fn = neg ? signBits<true, u32, 0x80008000>
               : signBits<false, u32, 0x80008000>;
    i.flags = flags;
    return lowerOperands(b, s, i, units, {units}) && choose(i, fn, cls, rule);
  }
  if (count == 2)
    return lowerTranscendental(b, s, i, t, flags);
  if (count == 4 && (op == "fma" || op == "mad")) {
    if (t.kind == 'f')
      fn = flags ? (t.bits == 32 ? Handler(modified<Fma, float, 3>)
                                 : Handler(modified<Fma, double, 3>))
                 : (t.bits == 32 ? Handler(ternary<Fma, float>)
                                 : Handler(ternary<Fma, double>));
    else if (!(flags & RoundMask))
      fn = t.kind == 'h'   ? small<Fma, f16, 3, 1>
           : t.kind == 'H' ? small<Fma, f16, 3, 2>
           : t.kind == 'B' ? small<Fma, BF16, 3, 1>
                           : small<Fma, BF16, 3, 2>;
    i.flags = flags;
    return lowerOperands(b, s, i, units, {units, units, units}) &&
           choose(i, fn, cls, rule);
  }
  if (count != 3)
    return false;
  if (op == "add")
    fn = ScalarBinary::get<Add>(t, flags);
  else if (op == "sub")
    fn = ScalarBinary::get<Sub>(t, flags);
  else if (op == "mul")
    fn = ScalarBinary::get<Mul>(t, flags);
  else if (op == "min")
    fn = nan ? ScalarBinary::get<MinNaN>(t, flags)
             : ScalarBinary::get<Min>(t, flags);
  else if (op == "max")
    fn = nan ? ScalarBinary::get<MaxNaN>(t, flags)
             : ScalarBinary::get<Max>(t, flags);
  else if (op == "div" && t.kind == 'f')
    fn = ScalarBinary::get<Div>(t, flags);
  else if (op == "copysign" && t.kind == 'f')
    fn = ScalarBinary::get<CopySign>(t, flags);
  i.flags = flags;
  return fn && lowerOperands(b, s, i, units, {units, units}) &&
         choose(i, fn, op == "div" ? InstrClass::Special : cls, rule);
}
