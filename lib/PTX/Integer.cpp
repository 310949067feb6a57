//===- Integer.cpp - Integer arithmetic, logic, moves ---------------------===//

#include "Lanes.h"
#include "Statement.h"

#include <algorithm>
#include <utility>

using namespace kvcache::ptx;

namespace {

//===----------------------------------------------------------------------===//
// Scalar semantics
//===----------------------------------------------------------------------===//

template <class T> struct Add {
  static T f(T a, T b) { return T(a + b); }
};
template <class T> struct Sub {
  static T f(T a, T b) { return T(a - b); }
};
template <class T> struct Mul {
  static T f(T a, T b) { return T(a * b); }
};
template <class T> struct MulHi {
  static T f(T a, T b) {
    constexpr int bits = 8 * sizeof(T);
    if constexpr (std::is_signed<T>::value)
      return T((__int128(a) * b) >> bits);
    else
      return T(((unsigned __int128)(a)*b) >> bits);
  }
};
template <class T> struct Div { // by zero: all ones, as the hardware does
  static T f(T a, T b) {
    if (b == 0)
      return T(-1);
    if (std::is_signed<T>::value && b == T(-1))
      return T(0 - u64(a));
    return T(a / b);
  }
};
template <class T> struct Rem {
  static T f(T a, T b) {
    if (b == 0)
      return a;
    if (std::is_signed<T>::value && b == T(-1))
      return T(0);
    return T(a % b);
  }
};
template <class T> struct Min {
  static T f(T a, T b) { return a < b ? a : b; }
};
template <class T> struct Max {
  static T f(T a, T b) { return a > b ? a : b; }
};
/// .relu: a negative result becomes 0.
template <class F> struct Relu {
  static s32 f(s32 a, s32 b) { return std::max(F::f(a, b), 0); }
};
template <class T> struct And {
  static T f(T a, T b) { return a & b; }
};
template <class T> struct Or {
  static T f(T a, T b) { return a | b; }
};
template <class T> struct Xor {
  static T f(T a, T b) { return a ^ b; }
};
template <class T> struct Move {
  static T f(T a) { return a; }
};
template <class T> struct Not {
  static T f(T a) { return T(~a); }
};
template <class T> struct Neg {
  static T f(T a) { return T(0 - u64(a)); }
};
template <class T> struct Abs {
  static T f(T a) { return a < 0 ? T(0 - u64(a)) : a; }
};
template <class T> struct Sad {
  static T f(T a, T b, T c) {
    return T(u64(c) + (a < b ? u64(b) - u64(a) : u64(a) - u64(b)));
  }
};
template <class T> struct MadHi {
  static T f(T a, T b, T c) { return T(u64(MulHi<T>::f(a, b)) + u64(c)); }
};
struct Popc32 {
  static u32 f(u32 a) { return u32(__builtin_popcount(a)); }
};
struct Popc64 {
  static u32 f(u64 a) { return u32(__builtin_popcountll(a)); }
};
struct Clz32 {
  static u32 f(u32 a) { return a ? u32(__builtin_clz(a)) : 32; }
};
struct Clz64 {
  static u32 f(u64 a) { return a ? u32(__builtin_clzll(a)) : 64; }
};
struct Brev32 {
  static u32 f(u32 a) { return __builtin_bitreverse32(a); }
};
struct Brev64 {
  static u64 f(u64 a) { return __builtin_bitreverse64(a); }
};
/// Position of the highest bit that differs from the sign; ~0: none.
template <class T, bool Shift> struct Bfind {
  static u32 f(T a) {
    using U = typename std::make_unsigned<T>::type;
    U x = a < 0 ? U(~a) : U(a);
    if (!x)
      return ~0u;
    u32 position = 63 - u32(__builtin_clzll(u64(x)));
    return Shift ? u32(8 * sizeof(T)) - 1 - position : position;
  }
};

//===----------------------------------------------------------------------===//
// Handlers
//===----------------------------------------------------------------------===//

template <class T> void shiftLeft(Warp &w, const Instr &i) {
  auto a = in<T>(w, i.s[0]);
  auto n = in<u32>(w, i.s[1]);
  constexpr u32 bits = 8 * sizeof(T);
  each<T>(w, i.d[0], [=](int l) {
    u32 k = n[l];
    T x = unbox<T>(a[l]);
    return k >= bits ? T(0) : T(x << (k & (bits - 1)));
  });
}
template <class T> void shiftRight(Warp &w, const Instr &i) {
  auto a = in<T>(w, i.s[0]);
  auto n = in<u32>(w, i.s[1]);
  constexpr u32 bits = 8 * sizeof(T);
  each<T>(w, i.d[0], [=](int l) {
    u32 k = n[l] > bits - 1 ? bits - 1 : n[l];
    T r = T(unbox<T>(a[l]) >> k);
    return std::is_signed<T>::value || n[l] < bits ? r : T(0);
  });
}
template <class T> void mad(Warp &w, const Instr &i) {
  auto a = in<T>(w, i.s[0]), b = in<T>(w, i.s[1]), c = in<T>(w, i.s[2]);
  each<T>(w, i.d[0], [=](int l) {
    return T(unbox<T>(a[l]) * unbox<T>(b[l]) + unbox<T>(c[l]));
  });
}
template <class N, class W> void mulWide(Warp &w, const Instr &i) {
  auto a = in<N>(w, i.s[0]), b = in<N>(w, i.s[1]);
  each<W>(w, i.d[0],
          [=](int l) { return W(W(unbox<N>(a[l])) * W(unbox<N>(b[l]))); });
}
template <class N, class W> void madWide(Warp &w, const Instr &i) {
  auto a = in<N>(w, i.s[0]), b = in<N>(w, i.s[1]);
  auto c = in<W>(w, i.s[2]);
  each<W>(w, i.d[0], [=](int l) {
    return W(W(unbox<N>(a[l])) * W(unbox<N>(b[l])) + unbox<W>(c[l]));
  });
}
template <class T> void bfe(Warp &w, const Instr &i) {
  auto a = in<T>(w, i.s[0]);
  auto p = in<u32>(w, i.s[1]), n = in<u32>(w, i.s[2]);
  constexpr u32 bits = 8 * sizeof(T);
  using U = typename std::make_unsigned<T>::type;
  each<T>(w, i.d[0], [=](int l) {
    u32 position = p[l] & 255, length = n[l] & 255;
    U x = U(unbox<T>(a[l]));
    if (!length)
      return T(0);
    if (position >= bits)
      return T(std::is_signed<T>::value ? T(x) >> (bits - 1) : 0);
    u32 k = length > bits - position ? bits - position : length;
    U y = U(x << (bits - position - k));
    return T(T(y) >> (bits - k));
  });
}
template <class T> void bfi(Warp &w, const Instr &i) {
  auto a = in<T>(w, i.s[0]), b = in<T>(w, i.s[1]);
  auto p = in<u32>(w, i.s[2]), n = in<u32>(w, i.s[3]);
  constexpr u32 bits = 8 * sizeof(T);
  each<T>(w, i.d[0], [=](int l) {
    u32 position = p[l] & 255, length = n[l] & 255;
    T x = unbox<T>(a[l]), y = unbox<T>(b[l]);
    if (!length || position >= bits)
      return y;
    T m = length >= bits ? T(-1) : T((T(1) << length) - 1);
    m = T(m << position);
    return T((y & ~m) | (x << position & m));
  });
}
template <bool Right, bool Wrap> void funnelShift(Warp &w, const Instr &i) {
  auto a = in<u32>(w, i.s[0]), b = in<u32>(w, i.s[1]), c = in<u32>(w, i.s[2]);
  each<u32>(w, i.d[0], [=](int l) {
    u64 x = u64(b[l]) << 32 | a[l];
    u32 k = Wrap ? c[l] & 31 : c[l] > 32 ? 32 : c[l];
    return Right ? u32(x >> k) : u32((x << k) >> 32);
  });
}

enum CarryFlags { CarryIn = 1, CarryOut = 2, Subtract = 4, High = 8 };

/// add, sub, mad with the carry of the condition-code register; of sub it is
/// the borrow.
template <class T, bool Multiplies> void carrying(Warp &w, const Instr &i) {
  using U = typename std::make_unsigned<T>::type;
  auto a = in<T>(w, i.s[0]), b = in<T>(w, i.s[1]);
  auto c = in<T>(w, i.s[Multiplies ? 2 : 1]);
  const u32 before = i.flags & CarryIn ? w.predicates[i.ps] : 0;
  U result[32];
  u32 after = 0;
  for (int l = 0; l < 32; ++l) {
    U x = U(unbox<T>(a[l])), y = U(unbox<T>(c[l])), k = before >> l & 1;
    if (Multiplies)
      x = i.flags & High ? U(MulHi<T>::f(unbox<T>(a[l]), unbox<T>(b[l])))
                         : U(x * U(unbox<T>(b[l])));
    bool over;
    if (i.flags & Subtract) {
      U t = x - y;
      result[l] = t - k;
      over = x < y || t < k;
    } else {
      U t = x + y;
      result[l] = t + k;
      over = t < x || result[l] < k;
    }
    after |= u32(over) << l;
  }
  each<U>(w, i.d[0], [&](int l) { return result[l]; });
  putPredicate(w, i.pd[0], after);
}

inline s32 saturated(s64 x) {
  return x > INT32_MAX ? INT32_MAX : x < INT32_MIN ? INT32_MIN : s32(x);
}
struct SatAdd {
  static s32 f(s32 a, s32 b) { return saturated(s64(a) + b); }
};
struct SatSub {
  static s32 f(s32 a, s32 b) { return saturated(s64(a) - b); }
};
struct SatMadHi {
  static s32 f(s32 a, s32 b, s32 c) {
    return saturated(s64(MulHi<s32>::f(a, b)) + c);
  }
};
template <class T> struct CNot {
  static T f(T a) { return a == 0; }
};

/// Both halves; T: of one half.
template <template <class> class F, class T, bool Relu> struct Halves {
  static u32 f(u32 a, u32 b) {
    u32 r = 0;
    for (int h = 0; h < 32; h += 16) {
      T x = F<T>::f(T(a >> h), T(b >> h));
      r |= u32(u16(Relu && x < 0 ? T(0) : x)) << h;
    }
    return r;
  }
};
template <template <class> class F> struct Relu32 {
  static s32 f(s32 a, s32 b) { return Max<s32>::f(F<s32>::f(a, b), 0); }
};

/// 24-bit factors; the low or the high 32 of 48 bits.
template <class T, bool Hi> struct Mul24 {
  static T f(T a, T b) {
    s64 x = s64(u64(a) << 40) >> 40, y = s64(u64(b) << 40) >> 40;
    if (!std::is_signed<T>::value) {
      x &= 0xffffff;
      y &= 0xffffff;
    }
    return T(Hi ? (x * y) >> 16 : x * y);
  }
};
template <class T, bool Hi> struct Mad24 {
  static T f(T a, T b, T c) { return T(u32(Mul24<T, Hi>::f(a, b)) + u32(c)); }
};

#ifdef __AVX2__
typedef u8 Bytes32 __attribute__((vector_size(32)));
typedef char Chars32 __attribute__((vector_size(32)));
/// Selector known when the module is loaded: two byte shuffles and an or.
void permuteConstant(Warp &w, const Instr &i) {
  auto a = in<u32>(w, i.s[0]), b = in<u32>(w, i.s[1]);
  u32 selector = u32(i.imm);
  u8 fromA[32], fromB[32];
  for (int j = 0; j < 32; ++j) {
    u32 n = selector >> 4 * (j & 3) & 7;
    fromA[j] = n < 4 ? u8(u32(j & 12) + n) : 0x80;
    fromB[j] = n >= 4 ? u8(u32(j & 12) + n - 4) : 0x80;
  }
  Bytes32 indexA, indexB;
  memcpy(&indexA, fromA, 32);
  memcpy(&indexB, fromB, 32);
  alignas(32) u32 t[32];
  for (int v = 0; v < 4; ++v) {
    Chars32 x, y, r;
    memcpy(&x, a + 8 * v, 32);
    memcpy(&y, b + 8 * v, 32);
    r = (Chars32)__builtin_ia32_pshufb256(x, (Chars32)indexA) |
        (Chars32)__builtin_ia32_pshufb256(y, (Chars32)indexB);
    memcpy(t + 8 * v, &r, 32);
  }
  each<u32>(w, i.d[0], [&](int l) { return t[l]; });
}
#else
void permuteConstant(Warp &w, const Instr &i) {
  auto a = in<u32>(w, i.s[0]), b = in<u32>(w, i.s[1]);
  u32 selector = u32(i.imm);
  each<u32>(w, i.d[0], [=](int l) {
    u64 x = u64(b[l]) << 32 | a[l];
    u32 r = 0;
    for (int k = 0; k < 4; ++k)
      r |= (u32(x >> 8 * (selector >> 4 * k & 7)) & 255) << 8 * k;
    return r;
  });
}
#endif

/// Default mode: 3 bits choose the byte, the fourth replicates its sign.
void permute(Warp &w, const Instr &i) {
  auto a = in<u32>(w, i.s[0]), b = in<u32>(w, i.s[1]), c = in<u32>(w, i.s[2]);
  each<u32>(w, i.d[0], [=](int l) {
    u64 x = u64(b[l]) << 32 | a[l];
    u32 r = 0;
    for (int k = 0; k < 4; ++k) {
      u32 n = c[l] >> 4 * k & 15, y = u32(x >> 8 * (n & 7)) & 255;
      if (n & 8)
        y = y & 128 ? 255 : 0;
      r |= y << 8 * k;
    }
    return r;
  });
}
enum PermuteMode { F4e, B4e, Rc8, Ecl, Ecr, Rc16 };
template <int Mode> void permuteMode(Warp &w, const Instr &i) {
  auto a = in<u32>(w, i.s[0]), b = in<u32>(w, i.s[1]), c = in<u32>(w, i.s[2]);
  each<u32>(w, i.d[0], [=](int l) {
    u64 x = u64(b[l]) << 32 | a[l];
    u32 s = c[l] & 3, r = 0;
    for (u32 k = 0; k < 4; ++k) {
      u32 n = Mode == F4e   ? s + k
              : Mode == B4e ? (s - k) & 7
              : Mode == Rc8 ? s
              : Mode == Ecl ? (k > s ? k : s)
              : Mode == Ecr ? (k < s ? k : s)
                            : (s & 1) * 2 + (k & 1);
      r |= (u32(x >> 8 * n) & 255) << 8 * k;
    }
    return r;
  });
}

template <int Table> void lop3(Warp &w, const Instr &i) {
  auto a = in<u32>(w, i.s[0]), b = in<u32>(w, i.s[1]), c = in<u32>(w, i.s[2]);
  each<u32>(w, i.d[0], [=](int l) {
    u32 x = a[l], y = b[l], z = c[l], r = 0;
    if (Table & 1)
      r |= ~x & ~y & ~z;
    if (Table & 2)
      r |= ~x & ~y & z;
    if (Table & 4)
      r |= ~x & y & ~z;
    if (Table & 8)
      r |= ~x & y & z;
    if (Table & 16)
      r |= x & ~y & ~z;
    if (Table & 32)
      r |= x & ~y & z;
    if (Table & 64)
      r |= x & y & ~z;
    if (Table & 128)
      r |= x & y & z;
    return r;
  });
}
template <size_t... N>
Handler lop3Handler(int table, std::index_sequence<N...>) {
  static const Handler all[] = {lop3<int(N)>...};
  return all[table];
}

/// Two products of 16 and 8 bits: bytes 0 and 1 of b, or with flags 1 bytes 2
/// and 3.
template <bool SignedA, bool SignedB> void dp2a(Warp &w, const Instr &i) {
  auto a = in<u32>(w, i.s[0]), b = in<u32>(w, i.s[1]), c = in<u32>(w, i.s[2]);
  const int first = i.flags & 1 ? 16 : 0;
  each<u32>(w, i.d[0], [=](int l) {
    s32 sum = s32(c[l]);
    for (int k = 0; k < 2; ++k) {
      u16 x = u16(a[l] >> 16 * k);
      u8 y = u8(b[l] >> (8 * k + first));
      sum += (SignedA ? s32(s16(x)) : s32(x)) * (SignedB ? s32(s8(y)) : s32(y));
    }
    return u32(sum);
  });
}

/// Four 8-bit products; the signs of a and b are template arguments.
template <bool SignedA, bool SignedB> void dp4a(Warp &w, const Instr &i) {
  auto a = in<u32>(w, i.s[0]), b = in<u32>(w, i.s[1]), c = in<u32>(w, i.s[2]);
  each<u32>(w, i.d[0], [=](int l) {
    s32 sum = s32(c[l]);
    for (int k = 0; k < 4; ++k) {
      u8 x = u8(a[l] >> 8 * k), y = u8(b[l] >> 8 * k);
      sum += (SignedA ? s32(s8(x)) : s32(x)) * (SignedB ? s32(s8(y)) : s32(y));
    }
    return u32(sum);
  });
}

//===----------------------------------------------------------------------===//
// Packing moves
//===----------------------------------------------------------------------===//

template <class Whole, class Part, int N> void unpack(Warp &w, const Instr &i) {
  auto a = in<Whole>(w, i.s[0]);
  Box<Whole> t[32];
  KVCACHE_FOR_LANES t[l] = a[l];
  for (int n = 0; n < N; ++n)
    if (i.d[n] != none)
      each<Part>(w, i.d[n], [&](int l) {
        return Part(t[l] >> (8 * int(sizeof(Part)) * n));
      });
}
template <class Whole, class Part, int N> void pack(Warp &w, const Instr &i) {
  const Box<Part> *a[N];
  for (int n = 0; n < N; ++n)
    a[n] = in<Part>(w, i.s[n]);
  Whole t[32];
  KVCACHE_FOR_LANES {
    u64 r = 0;
    for (int n = 0; n < N; ++n)
      r |= u64(unbox<Part>(a[n][l])) << (8 * int(sizeof(Part)) * n);
    t[l] = Whole(r);
  }
  each<Whole>(w, i.d[0], [&](int l) { return t[l]; });
}

template <int Sign> void addWindow(Warp &w, const Instr &i) {
  auto a = in<u64>(w, i.s[0]);
  u64 window = u64(i.imm);
  each<u64>(w, i.d[0],
            [=](int l) { return Sign > 0 ? a[l] + window : a[l] - window; });
}

//===----------------------------------------------------------------------===//
// Choosing by type
//===----------------------------------------------------------------------===//

template <template <class> class F> Handler binaryFor(Type t) {
  bool s = t.isSigned();
  switch (t.bits) {
  case 16:
    return s ? binary<F<s16>, s16> : binary<F<u16>, u16>;
  case 32:
    return s ? binary<F<s32>, s32> : binary<F<u32>, u32>;
  case 64:
    return s ? binary<F<s64>, s64> : binary<F<u64>, u64>;
  }
  return nullptr;
}
template <template <class> class F> Handler unaryFor(Type t) {
  switch (t.bits) {
  case 16:
    return unary<F<s16>, s16, s16>;
  case 32:
    return unary<F<s32>, s32, s32>;
  case 64:
    return unary<F<s64>, s64, s64>;
  }
  return nullptr;
}
template <template <class> class F> Handler ternaryFor(Type t) {
  bool s = t.isSigned();
  switch (t.bits) {
  case 16:
    return s ? ternary<F<s16>, s16> : ternary<F<u16>, u16>;
  case 32:
    return s ? ternary<F<s32>, s32> : ternary<F<u32>, u32>;
  case 64:
    return s ? ternary<F<s64>, s64> : ternary<F<u64>, u64>;
  }
  return nullptr;
}

bool lowerMove(Builder &b, const Statement &s, Instr &i) {
  const std::vector<Operand> &o = s.operands;
  Type t = s.type();
  const int units = t.units();
  if (o.size() != 2)
    return false;
  const InstrClass cls = InstrClass::Move;
  const TaintRule rule = TaintRule::Structural;
  if (o[0].kind == Operand::Vec) {
    size_t n = o[0].elements.size();
    int part = t.bits / int(n);
    i.s[0] = b.source(o[1], units);
    i.ns = 1;
    i.nd = u8(n);
    for (size_t e = 0; e < n; ++e)
      i.d[e] = b.destination(o[0].elements[e], 1);
    Handler fn = t.bits == 64 && n == 2   ? unpack<u64, u32, 2>
                 : t.bits == 64 && n == 4 ? unpack<u64, u16, 4>
                 : t.bits == 32 && n == 2 ? unpack<u32, u16, 2>
                 : t.bits == 32 && n == 4 ? unpack<u32, u8, 4>
                 : t.bits == 16 && n == 2 ? unpack<u16, u8, 2>
                                          : Handler(nullptr);
    return part && choose(i, fn, cls, rule);
  }
  if (o[1].kind == Operand::Vec) {
    size_t n = o[1].elements.size();
    for (size_t e = 0; e < n && e < 4; ++e)
      i.s[e] = b.source(o[1].elements[e], 1);
    i.ns = u8(n);
    i.d[0] = b.destination(o[0], units);
    i.nd = 1;
    Handler fn = t.bits == 64 && n == 2   ? pack<u64, u32, 2>
                 : t.bits == 64 && n == 4 ? pack<u64, u16, 4>
                 : t.bits == 32 && n == 2 ? pack<u32, u16, 2>
                 : t.bits == 32 && n == 4 ? pack<u32, u8, 4>
                 : t.bits == 16 && n == 2 ? pack<u16, u8, 2>
                                          : Handler(nullptr);
    return choose(i, fn, cls, rule);
  }
  i.d[0] = b.destination(o[0], units);
  i.nd = 1;
  if (o[1].kind == Operand::Special && units == 2) { // %clock64
    i.s[0] = b.constant(0, 2);
  } else {
    i.s[0] = b.source(o[1], units);
    i.isMove = true;
  }
  i.ns = 1;
  return choose(
      i, units == 2 ? unary<Move<u64>, u64, u64> : unary<Move<u32>, u32, u32>,
      cls, rule);
}

bool lowerPermute(Builder &b, const Statement &s, Instr &i) {
  const std::vector<Operand> &o = s.operands;
  if (o.size() != 4)
    return false;
  i.controlMask = 4;
  if (s.parts.size() == 2) {
    if (o[3].kind == Operand::Imm && !(o[3].imm & 0x8888)) {
      if (!lowerOperands(b, s, i, 1, {1, 1}))
        return false;
      i.imm = s64(o[3].imm);
      i.controlMask = 0;
      return choose(i, permuteConstant, InstrClass::Logic,
                    TaintRule::Structural);
    }
    return lowerOperands(b, s, i, 1, {1, 1, 1}) &&
           choose(i, permute, InstrClass::Logic, TaintRule::Structural);
  }
  Handler fn = s.has("f4e")    ? permuteMode<F4e>
               : s.has("b4e")  ? permuteMode<B4e>
               : s.has("rc8")  ? permuteMode<Rc8>
               : s.has("ecl")  ? permuteMode<Ecl>
               : s.has("ecr")  ? permuteMode<Ecr>
               : s.has("rc16") ? permuteMode<Rc16>
                               : Handler(nullptr);
  return lowerOperands(b, s, i, 1, {1, 1, 1}) &&
         choose(i, fn, InstrClass::Logic, TaintRule::Structural);
}

template <template <class> class F> Handler halvesFor(bool sg, bool relu) {
  if (!sg)
    return relu ? nullptr : binary<Halves<F, u16, false>, u32>;
  return relu ? binary<Halves<F, s16, true>, u32>
              : binary<Halves<F, s16, false>, u32>;
}

/// add, min, max of u16x2 and s16x2, and min, max .relu of s32.
bool lowerHalves(Builder &b, const Statement &s, Instr &i) {
  const std::string &op = s.op();
  const Type t = s.type();
  const bool relu = s.has("relu"), sg = t.kind == 'W', packed = t.kind != 's';
  if (s.parts.size() != 2 + size_t(relu) || (op == "add" && relu))
    return false;
  Handler fn = nullptr;
  if (op == "add" && packed)
    fn = halvesFor<Add>(sg, false);
  else if (op == "min")
    fn = packed ? halvesFor<Min>(sg, relu) : binary<Relu32<Min>, s32>;
  else if (op == "max")
    fn = packed ? halvesFor<Max>(sg, relu) : binary<Relu32<Max>, s32>;
  return lowerOperands(b, s, i, 1, {1, 1}) &&
         choose(i, fn, InstrClass::Int,
                packed ? TaintRule::Halves : TaintRule::Whole);
}

bool lowerLogic(Builder &b, const Statement &s, Instr &i) {
  const std::string &op = s.op();
  const std::vector<Operand> &o = s.operands;
  Type t = s.type();
  const int units = t.units();
  const InstrClass cls = InstrClass::Logic;
  const bool sg = t.isSigned();
  if (op == "shl" || op == "shr") {
    if (!lowerOperands(b, s, i, units, {units, 1}))
      return false;
    i.controlMask = 2;
    Handler fn = nullptr;
    if (op == "shl")
      fn = t.bits == 16   ? shiftLeft<u16>
           : t.bits == 32 ? shiftLeft<u32>
                          : shiftLeft<u64>;
    else if (sg)
      fn = t.bits == 16   ? shiftRight<s16>
           : t.bits == 32 ? shiftRight<s32>
                          : shiftRight<s64>;
    else
      fn = t.bits == 16   ? shiftRight<u16>
           : t.bits == 32 ? shiftRight<u32>
                          : shiftRight<u64>;
    return choose(i, fn, cls, TaintRule::Structural);
  }
  if (op == "and" || op == "or" || op == "xor") {
    i.flags = op == "and" ? 8 : op == "or" ? 14 : 6; // truth table
    return lowerOperands(b, s, i, units, {units, units}) &&
           choose(i,
                  op == "and"  ? binaryFor<And>(t)
                  : op == "or" ? binaryFor<Or>(t)
                               : binaryFor<Xor>(t),
                  cls, TaintRule::Bitwise);
  }
  if (op == "cnot")
    return lowerOperands(b, s, i, units, {units}) &&
           choose(i, unaryFor<CNot>(t), cls, TaintRule::Whole);
  if (op == "not")
    return lowerOperands(b, s, i, units, {units}) &&
           choose(i,
                  t.bits == 16 ? unary<Not<u16>, u16, u16>
                  : units == 2 ? unary<Not<u64>, u64, u64>
                               : unary<Not<u32>, u32, u32>,
                  cls, TaintRule::Bitwise);
  if (op == "prmt")
    return lowerPermute(b, s, i);
  if (op == "lop3") {
    if (o.size() != 5 || o[4].kind != Operand::Imm || s.parts.size() != 2)
      return false;
    i.imm = s64(o[4].imm & 255);
    return lowerOperands(b, s, i, 1, {1, 1, 1}) &&
           choose(i, lop3Handler(int(i.imm), std::make_index_sequence<256>()),
                  cls, TaintRule::Bitwise);
  }
  if (op == "shf") {
    bool wrap = s.has("wrap"), right = s.has("r");
    i.controlMask = 4;
    return lowerOperands(b, s, i, 1, {1, 1, 1}) &&
           choose(i,
                  right ? (wrap ? funnelShift<true, true>
                                : funnelShift<true, false>)
                        : (wrap ? funnelShift<false, true>
                                : funnelShift<false, false>),
                  cls, TaintRule::Structural);
  }
  if (op == "bfe") {
    i.controlMask = 6;
    return lowerOperands(b, s, i, units, {units, 1, 1}) &&
           choose(i,
                  sg ? (units == 2 ? Handler(bfe<s64>) : Handler(bfe<s32>))
                     : (units == 2 ? Handler(bfe<u64>) : Handler(bfe<u32>)),
                  cls, TaintRule::Structural);
  }
  if (op == "bfi") {
    i.controlMask = 12;
    return lowerOperands(b, s, i, units, {units, units, 1, 1}) &&
           choose(i, units == 2 ? Handler(bfi<u64>) : Handler(bfi<u32>), cls,
                  TaintRule::Structural);
  }
  if (op == "popc" || op == "clz")
    return lowerOperands(b, s, i, 1, {units}) &&
           choose(i,
                  op == "popc" ? (units == 2 ? unary<Popc64, u32, u64>
                                             : unary<Popc32, u32, u32>)
                               : (units == 2 ? unary<Clz64, u32, u64>
                                             : unary<Clz32, u32, u32>),
                  cls, TaintRule::Whole);
  if (op == "brev")
    return lowerOperands(b, s, i, units, {units}) &&
           choose(i,
                  units == 2 ? unary<Brev64, u64, u64>
                             : unary<Brev32, u32, u32>,
                  cls, TaintRule::Structural);
  if (op == "bfind") {
    bool shift = s.has("shiftamt");
    Handler fn = nullptr;
    if (shift)
      fn = units == 2 ? (sg ? unary<Bfind<s64, true>, u32, s64>
                            : unary<Bfind<u64, true>, u32, u64>)
                      : (sg ? unary<Bfind<s32, true>, u32, s32>
                            : unary<Bfind<u32, true>, u32, u32>);
    else
      fn = units == 2 ? (sg ? unary<Bfind<s64, false>, u32, s64>
                            : unary<Bfind<u64, false>, u32, u64>)
                      : (sg ? unary<Bfind<s32, false>, u32, s32>
                            : unary<Bfind<u32, false>, u32, u32>);
    return lowerOperands(b, s, i, 1, {units}) &&
           choose(i, fn, cls, TaintRule::Whole);
  }
  return false;
}

/// mul, mad: .lo, .hi, .wide.
bool lowerMultiply(Builder &b, const Statement &s, Instr &i) {
  Type t = s.type();
  const bool adds = s.op() == "mad", sg = t.isSigned();
  const InstrClass cls = InstrClass::Int;
  int units = t.units();
  if (s.has("wide")) {
    int wide = t.bits == 16 ? 1 : 2;
    if (!(adds ? lowerOperands(b, s, i, wide, {1, 1, wide})
               : lowerOperands(b, s, i, wide, {1, 1})))
      return false;
    Handler fn = nullptr;
    if (t.bits == 32)
      fn = adds ? (sg ? madWide<s32, s64> : madWide<u32, u64>)
                : (sg ? mulWide<s32, s64> : mulWide<u32, u64>);
    if (t.bits == 16)
      fn = adds ? (sg ? madWide<s16, s32> : madWide<u16, u32>)
                : (sg ? mulWide<s16, s32> : mulWide<u16, u32>);
    return choose(i, fn, cls, TaintRule::CarryUp);
  }
  if (!onlyParts(s, "lo hi"))
    return false;
  bool high = s.has("hi");
  if (adds)
    return lowerOperands(b, s, i, units, {units, units, units}) &&
           choose(i,
                  high           ? ternaryFor<MadHi>(t)
                  : t.bits == 16 ? Handler(mad<u16>)
                  : units == 2   ? Handler(mad<u64>)
                                 : Handler(mad<u32>),
                  cls, high ? TaintRule::Whole : TaintRule::CarryUp);
  return lowerOperands(b, s, i, units, {units, units}) &&
         choose(i, high ? binaryFor<MulHi>(t) : binaryFor<Mul>(t), cls,
                high ? TaintRule::Whole : TaintRule::CarryUp);
}

/// add.cc, addc, sub.cc, subc, mad.lo.cc, madc.hi and so on.
bool lowerCarrying(Builder &b, const Statement &s, Instr &i) {
  const std::string &op = s.op();
  Type t = s.type();
  const int units = t.units();
  const bool multiplies = op == "mad" || op == "madc";
  if (t.bits < 32 || !onlyParts(s, multiplies ? "lo hi cc" : "cc") ||
      (multiplies && s.has("lo") == s.has("hi")))
    return false;
  if (!(multiplies ? lowerOperands(b, s, i, units, {units, units, units})
                   : lowerOperands(b, s, i, units, {units, units})))
    return false;
  if (op == "addc" || op == "subc" || op == "madc") {
    i.flags |= CarryIn;
    i.ps = b.carry();
  }
  if (s.has("cc")) {
    i.flags |= CarryOut;
    i.pd[0] = b.carry();
  }
  if (op == "sub" || op == "subc")
    i.flags |= Subtract;
  if (s.has("hi"))
    i.flags |= High;
  bool sg = t.isSigned();
  Handler fn =
      multiplies
          ? (units == 2 ? (sg ? carrying<s64, true> : carrying<u64, true>)
                        : (sg ? carrying<s32, true> : carrying<u32, true>))
          : (units == 2 ? carrying<u64, false> : carrying<u32, false>);
  return choose(i, fn, InstrClass::Int, TaintRule::Whole);
}

} // namespace

bool kvcache::ptx::lowerInteger(Builder &b, const Statement &s, Instr &i) {
  const std::string &op = s.op();
  Type t = s.type();
  const int units = t.units();
  if (op == "mov")
    return t.kind != 'p' && lowerMove(b, s, i);
  if (op == "cvta") {
    u64 window = s.has("shared")  ? sharedWindow
                 : s.has("local") ? localWindow
                                  : 0;
    if (t.bits != 64 || !onlyParts(s, "to global shared shared::cta local "
                                      "const param"))
      return false;
    if (!lowerOperands(b, s, i, 2, {2}))
      return false;
    i.imm = s64(window);
    i.isMove = !window;
    Handler fn = !window       ? unary<Move<u64>, u64, u64>
                 : s.has("to") ? addWindow<-1>
                               : addWindow<1>;
    return choose(i, fn, InstrClass::Int,
                  window ? TaintRule::CarryUp : TaintRule::Structural);
  }
  if (op == "createpolicy") { // a cache hint; nothing here has a cache
    i.d[0] = b.destination(s.operands[0], 2);
    i.s[0] = b.constant(0, 2);
    i.nd = i.ns = 1;
    return choose(i, unary<Move<u64>, u64, u64>, InstrClass::Other,
                  TaintRule::Structural);
  }
  if (t.kind == 'w' || t.kind == 'W' ||
      (t.kind == 's' && t.bits == 32 && s.has("relu")))
    return lowerHalves(b, s, i);
  if (t.kind != 'u' && t.kind != 's' && t.kind != 'b')
    return false;
  if (lowerLogic(b, s, i))
    return true;
  const InstrClass cls = InstrClass::Int;
  if (op == "addc" || op == "subc" || op == "madc" ||
      (s.has("cc") && (op == "add" || op == "sub" || op == "mad")))
    return lowerCarrying(b, s, i);
  if (s.has("sat")) {
    if (t.kind != 's' || t.bits != 32)
      return false;
    if ((op == "add" || op == "sub") && s.parts.size() == 3)
      return lowerOperands(b, s, i, 1, {1, 1}) &&
             choose(i, op == "add" ? binary<SatAdd, s32> : binary<SatSub, s32>,
                    cls, TaintRule::Whole);
    return op == "mad" && s.has("hi") && s.parts.size() == 4 &&
           lowerOperands(b, s, i, 1, {1, 1, 1}) &&
           choose(i, ternary<SatMadHi, s32>, cls, TaintRule::Whole);
  }
  if (op == "mul24" || op == "mad24") {
    bool hi = s.has("hi"), sg = t.isSigned();
    if (s.parts.size() != 3 || t.bits != 32 || !(hi || s.has("lo")))
      return false;
    if (op == "mul24")
      return lowerOperands(b, s, i, 1, {1, 1}) &&
             choose(i,
                    hi ? (sg ? binary<Mul24<s32, true>, s32>
                             : binary<Mul24<u32, true>, u32>)
                       : (sg ? binary<Mul24<s32, false>, s32>
                             : binary<Mul24<u32, false>, u32>),
                    cls, TaintRule::Whole);
    return lowerOperands(b, s, i, 1, {1, 1, 1}) &&
           choose(i,
                  hi ? (sg ? ternary<Mad24<s32, true>, s32>
                           : ternary<Mad24<u32, true>, u32>)
                     : (sg ? ternary<Mad24<s32, false>, s32>
                           : ternary<Mad24<u32, false>, u32>),
                  cls, TaintRule::Whole);
  }
  if (op == "mul" || op == "mad")
    return lowerMultiply(b, s, i);
  if (op == "dp2a") {
    if (s.parts.size() != 4 || s.has("lo") == s.has("hi"))
      return false;
    bool signedA = parseType(s.parts[2]).isSigned();
    i.flags = s.has("hi");
    return lowerOperands(b, s, i, 1, {1, 1, 1}) &&
           choose(i,
                  signedA
                      ? (t.isSigned() ? dp2a<true, true> : dp2a<true, false>)
                      : (t.isSigned() ? dp2a<false, true> : dp2a<false, false>),
                  cls, TaintRule::Whole);
  }
  if (op == "dp4a") {
    bool signedA = parseType(s.parts[1]).isSigned();
    bool signedB = t.isSigned();
    return lowerOperands(b, s, i, 1, {1, 1, 1}) &&
           choose(i,
                  signedA ? (signedB ? dp4a<true, true> : dp4a<true, false>)
                          : (signedB ? dp4a<false, true> : dp4a<false, false>),
                  cls, TaintRule::Whole);
  }
  if (s.has("relu") && s.parts.size() == 3 && t.kind == 's' && t.bits == 32 &&
      (op == "min" || op == "max"))
    return lowerOperands(b, s, i, 1, {1, 1}) &&
           choose(i,
                  op == "min" ? binary<Relu<Min<s32>>, s32>
                              : binary<Relu<Max<s32>>, s32>,
                  cls, TaintRule::Whole);
  if (s.parts.size() != 2) // .sat, .cc
    return false;
  if (op == "add" || op == "sub")
    return lowerOperands(b, s, i, units, {units, units}) &&
           choose(i, op == "add" ? binaryFor<Add>(t) : binaryFor<Sub>(t), cls,
                  TaintRule::CarryUp);
  if (op == "min" || op == "max" || op == "div" || op == "rem")
    return lowerOperands(b, s, i, units, {units, units}) &&
           choose(i,
                  op == "min"   ? binaryFor<Min>(t)
                  : op == "max" ? binaryFor<Max>(t)
                  : op == "div" ? binaryFor<Div>(t)
                                : binaryFor<Rem>(t),
                  cls, TaintRule::Whole);
  if (op == "neg" || op == "abs")
    return lowerOperands(b, s, i, units, {units}) &&
           choose(i, op == "neg" ? unaryFor<Neg>(t) : unaryFor<Abs>(t), cls,
                  op == "neg" ? TaintRule::CarryUp : TaintRule::Whole);
  if (op == "sad")
    return lowerOperands(b, s, i, units, {units, units, units}) &&
           choose(i, ternaryFor<Sad>(t), cls, TaintRule::Whole);
  return false;
}

void kvcache::ptx::specialise(Instr &i, const Kernel &k) {
  if (i.fn != Handler(permute) || i.s[2] == none || i.s[2] < constantId)
    return;
  u32 selector = u32(k.constants[i.s[2] - constantId].bits);
  if (selector & 0x8888)
    return;
  i.fn = permuteConstant;
  i.imm = s64(selector);
  i.s[2] = none;
  i.ns = 2;
  i.controlMask = 0;
}
