//===- Atomics.cpp - atom and red -----------------------------------------===//

#include "FloatFormats.h"
#include "GlobalRace.h"
#include "Lanes.h"
#include "Statement.h"

#include <algorithm>

using namespace kvcache::ptx;

namespace {

enum AtomicOp {
  AtomicAdd,
  AtomicMin,
  AtomicMax,
  AtomicAnd,
  AtomicOr,
  AtomicXor,
  AtomicExchange,
  AtomicCompareSwap,
  AtomicIncrement,
  AtomicDecrement
};
const char *const atomicNames[] = {"add", "min",  "max", "and", "or",
                                   "xor", "exch", "cas", "inc", "dec"};

template <class T> T apply(int op, T old, T value, T other) {
  switch (op) {
  case AtomicAdd:
    return T(old + value);
  case AtomicMin:
    return value < old ? value : old;
  case AtomicMax:
    return value > old ? value : old;
  case AtomicExchange:
    return value;
  case AtomicCompareSwap:
    return old == value ? other : old;
  default:
    break;
  }
  if constexpr (std::is_integral<T>::value) {
    switch (op) {
    case AtomicAnd:
      return old & value;
    case AtomicOr:
      return old | value;
    case AtomicXor:
      return old ^ value;
    case AtomicIncrement: // wraps to 0 after `value`
      return old >= value ? T(0) : T(old + 1);
    case AtomicDecrement:
      return old == 0 || old > value ? value : T(old - 1);
    }
  }
  return old;
}

struct PackedHalf { // f16x2 and bf16x2 add
  static u32 add(u32 a, u32 b, bool brain) {
    u32 r = 0;
    for (int h = 0; h < 2; ++h) {
      u16 x = u16(a >> (16 * h)), y = u16(b >> (16 * h)), z;
      if (brain) {
        z = floatToBfloat(bfloatToFloat(x) + bfloatToFloat(y));
      } else {
        f16 sum = __builtin_bit_cast(f16, x) + __builtin_bit_cast(f16, y);
        z = sum != sum ? u16(0x7fff) : __builtin_bit_cast(u16, sum);
      }
      r |= u32(z) << (16 * h);
    }
    return r;
  }
};

/// Lanes go in order. An atomic on bytes that nobody wrote is a finding unless
/// it is an exchange.
template <class T, class F>
void atomicLanes(Warp &w, const Instr &i, F operation) {
  u64 a[32];
  Where x;
  readAddresses(w, i, 0, a);
  w.checkUse(i, i.s[0], w.lanes, "address");
  for (int n = 1; n < i.ns; ++n)
    w.checkUse(i, i.s[n], w.lanes, "operand of this atomic");
  std::lock_guard<std::mutex> guard(w.launch->atomicLock);
  if ((i.ordering & 1) && w.launch->globalRace)
    GlobalRaceChecker::releaseFence(w);
  locate(w, i, a, sizeof(T), Access::Atomic, x, ~0u);
  if ((i.ordering & 2) && w.launch->globalRace)
    GlobalRaceChecker::acquireFence(w);
  if (w.launch->options.counters)
    ++w.counters->atomicRequests;
  const Box<T> *value = w.r<Box<T>>(i.s[1]);
  const Box<T> *other = i.ns > 2 ? w.r<Box<T>>(i.s[2]) : value;
  Box<T> *d = i.nd ? w.r<Box<T>>(i.d[0]) : nullptr;
  if (w.launch->options.initcheck) {
    if (x.anyInit)
      for (u32 m = x.ok; m; m &= m - 1) {
        int l = __builtin_ctz(m);
        if (!x.init[l])
          continue;
        if (i.flags != AtomicExchange && !allValid(x.init[l], sizeof(T)))
          w.report(
              FindingKind::Uninitialised, i, l,
              "atomic update of bytes at " + hex(a[l]) + " that nobody wrote",
              a[l], x.global >> l & 1 ? bufferName(*w.cta, a[l]) : "shared");
        markValid(x.init[l], sizeof(T));
      }
    if (i.nd)
      w.clearTaint(i.d[0], w.lanes);
  }
  w.notePoll();
  for (u32 m = x.ok; m; m &= m - 1) {
    int l = __builtin_ctz(m);
    T old;
    memcpy(&old, x.host[l], sizeof(T));
    T result = operation(old, unbox<T>(value[l]), unbox<T>(other[l]),
                         x.global >> l & 1);
    memcpy(x.host[l], &result, sizeof(T));
    if (d)
      d[l] = box<T>(old);
  }
}

template <class T> void atomic(Warp &w, const Instr &i) {
  int op = i.flags;
  atomicLanes<T>(w, i, [op](T o, T v, T c, bool global) {
    // Subnormal f32 are flushed in global memory, and only there.
    if constexpr (std::is_same<T, float>::value)
      if (op == AtomicAdd && global)
        return flush(flush(o) + flush(v));
    return apply<T>(op, o, v, c);
  });
}
template <bool Brain> void atomicPackedAdd(Warp &w, const Instr &i) {
  atomicLanes<u32>(w, i, [](u32 o, u32 v, u32, bool) {
    return PackedHalf::add(o, v, Brain);
  });
}
template <bool Brain> void atomicHalfAdd(Warp &w, const Instr &i) {
  atomicLanes<u16>(w, i, [](u16 o, u16 v, u16, bool) {
    return u16(PackedHalf::add(o, v, Brain));
  });
}

} // namespace

bool kvcache::ptx::lowerAtomic(Builder &b, const Statement &s, Instr &i) {
  if (s.op() != "atom" && s.op() != "red")
    return false;
  if (!onlyParts(s, "global shared shared::cta relaxed acquire release acq_rel "
                    "cta gpu sys add min max and or xor exch cas inc dec "
                    "noftz L2::cache_hint"))
    return false;
  const std::vector<Operand> &o = s.operands;
  Type t = s.type();
  bool returns = s.op() == "atom";
  size_t first = returns ? 1 : 0;
  if (o.size() < first + 2)
    return false;
  i.space = spaceOf(s);
  i.cls = InstrClass::Atomic;
  i.taint = TaintRule::Own;
  if (!s.has("cta"))
    i.ordering = u8((s.has("release") || s.has("acq_rel") ? 1 : 0) |
                    (s.has("acquire") || s.has("acq_rel") ? 2 : 0));
  int op = -1;
  for (int n = 0; n < 10; ++n)
    if (s.has(atomicNames[n]))
      op = n;
  if (op < 0)
    return false;
  i.flags = u16(op);
  const int units = t.units();
  if (returns) {
    i.d[0] = b.destination(o[0], units);
    i.nd = 1;
  }
  lowerAddress(b, o[first], i, 0);
  i.s[1] = b.source(o[first + 1], units);
  i.ns = 2;
  if (op == AtomicCompareSwap) {
    if (o.size() < first + 3)
      return false;
    i.s[2] = b.source(o[first + 2], units);
    i.ns = 3;
  }
  if (i.space != Space::Global)
    b.kernel.minSharedAccess =
        std::min<u8>(b.kernel.minSharedAccess, u8(t.bits / 8));
  bool add = op == AtomicAdd;
  switch (t.kind) {
  case 'f':
    if (!add && op != AtomicExchange)
      return false;
    i.fn = t.bits == 32 ? atomic<float> : atomic<double>;
    return true;
  case 'H':
    i.fn = add ? atomicPackedAdd<false> : nullptr;
    return add;
  case 'X':
    i.fn = add ? atomicPackedAdd<true> : nullptr;
    return add;
  case 'h':
    i.fn = add ? atomicHalfAdd<false> : nullptr;
    return add;
  case 'B':
    i.fn = add ? atomicHalfAdd<true> : nullptr;
    return add;
  case 's':
    i.fn = t.bits == 32   ? Handler(atomic<s32>)
           : t.bits == 64 ? Handler(atomic<s64>)
                          : nullptr;
    return i.fn;
  case 'u':
  case 'b':
    i.fn = t.bits == 16   ? Handler(atomic<u16>)
           : t.bits == 32 ? Handler(atomic<u32>)
           : t.bits == 64 ? Handler(atomic<u64>)
                          : nullptr;
    return i.fn;
  }
  return false;
}
