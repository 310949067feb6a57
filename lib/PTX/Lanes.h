//===- Lanes.h - Loops over the 32 lanes of a warp --------------*- C++ -*-===//
//
// A handler is one loop over 32 lanes, which the compiler vectorises; full
// warps take the branch without the blend.
//
//===----------------------------------------------------------------------===//

#ifndef KVCACHE_LIB_PTX_LANES_H
#define KVCACHE_LIB_PTX_LANES_H

#include "Execution.h"

#include <type_traits>

namespace kvcache::ptx {

using f16 = _Float16;

#define KVCACHE_FOR_LANES                                                      \
  _Pragma(                                                                     \
      "clang loop vectorize(assume_safety) interleave(enable)") for (int l =   \
                                                                         0;    \
                                                                     l < 32;   \
                                                                     ++l)

/// What a lane of type T is stored in.
template <class T>
using Box = typename std::conditional<sizeof(T) == 8, u64, u32>::type;

template <class T> static inline T unbox(Box<T> x) {
  if constexpr (sizeof(T) == sizeof(Box<T>))
    return __builtin_bit_cast(T, x);
  else if constexpr (sizeof(T) == 2)
    return __builtin_bit_cast(T, u16(x));
  else
    return __builtin_bit_cast(T, u8(x));
}

template <class T> static inline Box<T> box(T v) {
  if constexpr (sizeof(T) == sizeof(Box<T>))
    return __builtin_bit_cast(Box<T>, v);
  else if constexpr (sizeof(T) == 2)
    return __builtin_bit_cast(u16, v);
  else
    return __builtin_bit_cast(u8, v);
}

template <class T> static inline const Box<T> *in(const Warp &w, u16 slot) {
  return w.r<Box<T>>(slot);
}

/// Writes f(lane) to the active lanes of a register.
template <class R, class F> static inline void each(Warp &w, u16 slot, F f) {
  Box<R> *d = w.r<Box<R>>(slot);
  const u32 mask = w.lanes;
  if (mask == ~0u) {
    KVCACHE_FOR_LANES d[l] = box<R>(f(l));
  } else {
    KVCACHE_FOR_LANES {
      Box<R> v = box<R>(f(l)), old = d[l];
      d[l] = (mask >> l & 1) ? v : old;
    }
  }
}

/// Handlers of one and two sources; F::f is the scalar operation.
template <class F, class R, class A>
static void unary(Warp &w, const Instr &i) {
  auto a = in<A>(w, i.s[0]);
  each<R>(w, i.d[0], [=](int l) { return F::f(unbox<A>(a[l])); });
}
template <class F, class T> static void binary(Warp &w, const Instr &i) {
  auto a = in<T>(w, i.s[0]), b = in<T>(w, i.s[1]);
  each<T>(w, i.d[0],
          [=](int l) { return F::f(unbox<T>(a[l]), unbox<T>(b[l])); });
}
template <class F, class T> static void ternary(Warp &w, const Instr &i) {
  auto a = in<T>(w, i.s[0]), b = in<T>(w, i.s[1]), c = in<T>(w, i.s[2]);
  each<T>(w, i.d[0], [=](int l) {
    return F::f(unbox<T>(a[l]), unbox<T>(b[l]), unbox<T>(c[l]));
  });
}

static inline void putPredicate(Warp &w, u16 d, u32 v) {
  if (d != none)
    w.predicates[d] = (w.predicates[d] & ~w.lanes) | (v & w.lanes);
}
static inline u32 getPredicate(const Warp &w, u16 s, bool negated) {
  u32 v = s == none ? ~0u : w.predicates[s];
  return negated ? ~v : v;
}

/// Fills in handler, class and rule; false (unknown) without a handler.
static inline bool choose(Instr &i, Handler fn, InstrClass cls,
                          TaintRule taint) {
  i.fn = fn;
  i.cls = cls;
  i.taint = taint;
  return fn != nullptr;
}

} // namespace kvcache::ptx

#endif // KVCACHE_LIB_PTX_LANES_H
