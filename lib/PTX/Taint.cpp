//===- Taint.cpp - Follows bits that nobody wrote -------------------------===//
//
// Each register has a shadow: a set bit was never written. A register whose
// flag is 0 has an all-zero shadow, so nothing is looked at while no register
// of the warp is flagged. taintBefore runs ahead of the instruction, while the
// sources still hold their values.
//
//===----------------------------------------------------------------------===//

#include "Execution.h"

using namespace kvcache::ptx;

bool Warp::isWideSlot(u16 slot) const {
  return slot >= kernel->wideBase && slot < kernel->registerUnits;
}

u32 Warp::laneTaint(u16 slot) const {
  if (!isRegister(slot) || !flags[slot])
    return 0;
  u32 mask = 0;
  if (isWideSlot(slot)) {
    const u64 *s = shadowOf<u64>(slot);
    for (int l = 0; l < 32; ++l)
      mask |= u32(s[l] != 0) << l;
  } else {
    const u32 *s = shadowOf<u32>(slot);
    for (int l = 0; l < 32; ++l)
      mask |= u32(s[l] != 0) << l;
  }
  return mask;
}

/// After a shadow has been written: keeps flag and count in step.
void Warp::updateFlag(u16 slot) {
  const u64 *s = shadowOf<u64>(slot);
  u64 any = 0;
  for (int n = 0, end = isWideSlot(slot) ? 32 : 16; n < end; ++n)
    any |= s[n];
  u8 flag = any != 0;
  taintLive += flag;
  taintLive -= flags[slot];
  flags[slot] = flag;
}

void Warp::setPredicateTaint(u16 predicate, u32 taint) {
  taintLive += taint != 0;
  taintLive -= predicateTaint[predicate] != 0;
  predicateTaint[predicate] = taint;
}

void Warp::clearTaint(u16 slot, u32 mask) {
  if (!isRegister(slot) || !flags[slot])
    return;
  if (isWideSlot(slot)) {
    u64 *s = shadowOf<u64>(slot);
    for (int l = 0; l < 32; ++l)
      s[l] = mask >> l & 1 ? 0 : s[l];
  } else {
    u32 *s = shadowOf<u32>(slot);
    for (int l = 0; l < 32; ++l)
      s[l] = mask >> l & 1 ? 0 : s[l];
  }
  updateFlag(slot);
}

/// Reports when active lanes use a value of which any bit was never written.
void Warp::checkUse(const Instr &i, u16 slot, u32 mask, const char *what) {
  if (!taintLive)
    return;
  u32 taint = laneTaint(slot) & mask;
  if (taint)
    report(FindingKind::Uninitialised, i, __builtin_ctz(taint),
           std::string("the ") + what + " depends on bytes that nobody wrote");
}

namespace {

u32 predicateValue(const Warp &w, u16 p, bool negated) {
  u32 v = p == none ? ~0u : w.predicates[p];
  return negated ? ~v : v;
}

/// Writes computed shadows to the executing lanes of destination registers.
struct Writer {
  Warp &w;

  /// value(lane) -> shadow bits.
  template <class F> void put(u16 slot, F value) {
    if (!w.isRegister(slot))
      return;
    if (w.isWideSlot(slot)) {
      u64 *s = w.shadowOf<u64>(slot);
      for (int l = 0; l < 32; ++l)
        s[l] = w.lanes >> l & 1 ? u64(value(l)) : s[l];
    } else {
      u32 *s = w.shadowOf<u32>(slot);
      for (int l = 0; l < 32; ++l)
        s[l] = w.lanes >> l & 1 ? u32(value(l)) : s[l];
    }
    w.updateFlag(slot);
  }
  void putLanes(u16 slot, u32 mask) {
    put(slot, [=](int l) { return mask >> l & 1 ? ~0ull : 0ull; });
  }
  void putPredicate(u16 p, u32 mask) {
    if (p != none)
      w.setPredicateTaint(p,
                          (w.predicateTaint[p] & ~w.lanes) | (mask & w.lanes));
  }
};

/// Shadow or value of a source in one lane.
struct Reader {
  const Warp &w;
  u64 taint(u16 slot, int l) const {
    if (!w.isRegister(slot) || !w.flags[slot])
      return 0;
    return w.isWideSlot(slot) ? w.shadowOf<u64>(slot)[l]
                              : w.shadowOf<u32>(slot)[l];
  }
  u64 value(u16 slot, int l, bool wide) const {
    return wide ? w.r<u64>(slot)[l] : w.r<u32>(slot)[l];
  }
};

/// Any source bit of a lane.
u32 anySource(const Warp &w, const Instr &i) {
  u32 mask = 0;
  for (int n = 0; n < i.ns; ++n)
    mask |= w.laneTaint(i.s[n]);
  return mask;
}

/// A result bit is known when all inputs that are possible give the same. The
/// truth table: bit 2a+b of i.flags for two inputs, bit 4a+2b+c of i.imm for
/// lop3.
void bitwise(Warp &w, const Instr &i) {
  Reader in{w};
  Writer out{w};
  bool wide = w.isWideSlot(i.d[0]);
  const int inputs = i.ns;
  const u64 table = inputs == 3 ? u64(i.imm) : i.flags;
  out.put(i.d[0], [&](int l) -> u64 {
    u64 taint[3], value[3], any = 0;
    for (int n = 0; n < inputs; ++n) {
      taint[n] = in.taint(i.s[n], l);
      value[n] = in.value(i.s[n], l, wide);
      any |= taint[n];
    }
    if (!any || inputs == 1)
      return any;
    u64 canBeOne = 0, canBeZero = 0;
    for (u32 p = 0; p < 1u << inputs; ++p) {
      u64 possible = ~0ull;
      for (int n = 0; n < inputs; ++n) {
        u64 wanted = p >> (inputs - 1 - n) & 1 ? ~0ull : 0;
        possible &= taint[n] | ~(value[n] ^ wanted);
      }
      (table >> p & 1 ? canBeOne : canBeZero) |= possible;
    }
    return canBeOne & canBeZero;
  });
}

/// Runs the handler itself on the shadow registers. Control operands (shift
/// counts, selectors, lanes) keep their values.
void structural(Warp &w, const Instr &i) {
  u32 uncertain = 0;
  for (int n = 0; n < i.ns; ++n)
    if (i.controlMask >> n & 1) {
      uncertain |= w.laneTaint(i.s[n]);
      for (int m = 0; m < i.ns; ++m)
        if (!(i.controlMask >> m & 1) && i.s[m] == i.s[n]) {
          Writer{w}.putLanes(i.d[0], anySource(w, i));
          return;
        }
    }
  alignas(64) u8 saved[10][256];
  for (int n = 0; n < i.ns; ++n)
    if (i.controlMask >> n & 1) {
      memcpy(saved[n], w.shadowOf<u8>(i.s[n]), 256);
      memcpy(w.shadowOf<u8>(i.s[n]), w.r<u8>(i.s[n]),
             w.isWideSlot(i.s[n]) ? 256 : 128);
    }
  u8 *registers = w.registers;
  u32 predicate = i.pd[0] != none ? w.predicates[i.pd[0]] : 0;
  w.registers = w.shadow;
  w.quiet = true;
  i.fn(w, i);
  w.quiet = false;
  w.registers = registers;
  if (i.pd[0] != none) {
    w.predicates[i.pd[0]] = predicate;
    Writer{w}.putPredicate(i.pd[0], uncertain);
  }
  // A destination may be a control operand too: then the result stays.
  for (int n = i.ns; n-- > 0;) {
    bool isDestination = false;
    for (int m = 0; m < i.nd; ++m)
      isDestination |= i.d[m] == i.s[n];
    if (!(i.controlMask >> n & 1))
      continue;
    if (!isDestination) {
      memcpy(w.shadowOf<u8>(i.s[n]), saved[n], 256);
    } else if (w.lanes != ~0u) {
      bool wide = w.isWideSlot(i.s[n]);
      size_t size = wide ? 8 : 4;
      for (size_t l = 0; l < 32; ++l)
        if (!(w.lanes >> l & 1))
          memcpy(w.shadowOf<u8>(i.s[n]) + l * size, saved[n] + l * size, size);
    }
  }
  for (int m = 0; m < i.nd; ++m) {
    if (!w.isRegister(i.d[m]))
      continue;
    w.updateFlag(i.d[m]);
    if (uncertain & w.lanes) {
      Reader in{w};
      Writer{w}.put(i.d[m], [&](int l) -> u64 {
        return uncertain >> l & 1 ? ~0ull : in.taint(i.d[m], l);
      });
    }
  }
}

u64 spread(u64 taint, int from, int to) {
  u64 r = 0;
  for (int n = 0; n * from < 32 && n * to < 32; ++n)
    if (taint >> (n * from) & ((1ull << from) - 1))
      r |= ((1ull << to) - 1) << (n * to);
  return r;
}

void compare(Warp &w, const Instr &i) {
  Reader in{w};
  u32 taint = 0;
  // flags >> 8: 1 eq, 2 ne; a difference in known bits decides those.
  bool equality = i.flags >> 8;
  u64 valueMask = i.width == 8 ? ~0ull : (1ull << (8 * i.width)) - 1;
  for (int l = 0; l < 32; ++l) {
    u64 t = (in.taint(i.s[0], l) | in.taint(i.s[1], l)) & valueMask;
    if (t && equality) {
      u64 a = in.value(i.s[0], l, i.width == 8);
      u64 b = in.value(i.s[1], l, i.width == 8);
      if ((a ^ b) & valueMask & ~t)
        t = 0;
    }
    taint |= u32(t != 0) << l;
  }
  if (i.ps != none) {
    u32 pt = w.predicateTaint[i.ps];
    u32 p = predicateValue(w, i.ps, i.psNeg);
    u32 combine = i.flags & 3; // 1 and, 2 or, 3 xor
    // A known false (and) or true (or) decides whatever the comparison gives.
    if (combine == 1)
      taint = (taint & (p | pt)) | pt;
    else if (combine == 2)
      taint = (taint & (~p | pt)) | pt;
    else
      taint |= pt;
  }
  Writer out{w};
  out.putPredicate(i.pd[0], taint);
  out.putPredicate(i.pd[1], taint);
}

void predicateLogic(Warp &w, const Instr &i) {
  u32 value[2] = {0, 0}, taint[2] = {0, 0};
  for (int n = 0; n < 2; ++n) {
    u16 id = u16(i.imm >> (16 * n));
    if (id != none) {
      value[n] = w.predicates[id];
      taint[n] = w.predicateTaint[id];
    }
    if (i.flags >> n & 1)
      value[n] = ~value[n];
  }
  u32 t = taint[0];
  if (i.vec == 2) { // and
    t = (taint[0] & taint[1]) | (taint[0] & value[1]) | (taint[1] & value[0]);
  } else if (i.vec == 3) { // or
    t = (taint[0] & taint[1]) | (taint[0] & ~value[1]) | (taint[1] & ~value[0]);
  } else if (i.vec == 4) { // xor
    t = taint[0] | taint[1];
  }
  Writer{w}.putPredicate(i.pd[0], t);
}

void vote(Warp &w, const Instr &i) {
  Writer out{w};
  u32 t = i.ps == none ? 0 : w.predicateTaint[i.ps] & w.lanes;
  u32 v = predicateValue(w, i.ps, i.psNeg) & w.lanes;
  if (i.d[0] != none) // ballot: bit l of every lane
    out.put(i.d[0], [=](int) { return t; });
  bool decided = i.flags == 1   ? (v & ~t) != 0                   // any
                 : i.flags == 2 ? (~v & ~t & w.lanes) != 0        // all
                 : i.flags == 3 ? (v & ~t) && (~v & ~t & w.lanes) // uni
                                : false;
  out.putPredicate(i.pd[0], t && !decided ? ~0u : 0);
}

/// Rows of A and columns of B, as exact as the fragment layouts allow.
void mma(Warp &w, const Instr &i) {
  Reader in{w};
  Writer out{w};
  const int numA = i.width, numB = numA / 2, numC = i.nd;
  // Element (row 8h + g, k): A register with h = n & 1, lane 4g + t.
  u32 rows = 0, columns = 0;
  for (int n = 0; n < numA; ++n)
    for (int l = 0; l < 32; ++l)
      if (in.taint(i.s[n], l))
        rows |= 1u << (8 * (numA == 1 ? 0 : n & 1) + l / 4);
  for (int n = 0; n < (numB ? numB : 1); ++n)
    for (int l = 0; l < 32; ++l)
      if (in.taint(i.s[numA + n], l))
        columns |= 1u << (l / 4);
  // C and D: rows g and g + 8, columns 2t and 2t + 1; f32 has one register an
  // element, f16 two elements a register.
  int base = numA + (numB ? numB : 1);
  u64 shadows[4][32];
  for (int n = 0; n < numC; ++n)
    for (int l = 0; l < 32; ++l) {
      u64 c = in.taint(i.s[base + n], l);
      int t = l & 3, g = l / 4;
      if (numC == 4) {
        bool any = (rows >> (g + 8 * (n >> 1)) & 1) ||
                   (columns >> (2 * t + (n & 1)) & 1);
        shadows[n][l] = c || any ? ~0ull : 0;
      } else {
        bool row = rows >> (g + 8 * n) & 1;
        u64 lo = row || (c & 0xffff) || (columns >> (2 * t) & 1);
        u64 hi = row || (c >> 16) || (columns >> (2 * t + 1) & 1);
        shadows[n][l] = (lo ? 0xffff : 0) | (hi ? 0xffff0000 : 0);
      }
    }
  for (int n = 0; n < numC; ++n)
    out.put(i.d[n], [&](int l) { return shadows[n][l]; });
}

} // namespace

void Warp::taintBefore(const Instr &i) {
  if (i.taint == TaintRule::Own)
    return;
  bool sources = i.ps != none && predicateTaint[i.ps];
  bool destinations = false;
  for (int n = 0; n < i.ns && !sources; ++n)
    sources |= isRegister(i.s[n]) && flags[i.s[n]];
  if (i.taint == TaintRule::Logic)
    for (int n = 0; n < 2; ++n) {
      u16 id = u16(i.imm >> (16 * n));
      sources |= id != none && predicateTaint[id];
    }
  for (int n = 0; n < i.nd; ++n)
    destinations |= isRegister(i.d[n]) && flags[i.d[n]];
  for (u16 p : i.pd)
    destinations |= p != none && predicateTaint[p];
  if (!sources && !destinations)
    return;
  Writer out{*this};
  if (!sources) {
    for (int n = 0; n < i.nd; ++n)
      clearTaint(i.d[n], lanes);
    for (u16 p : i.pd)
      out.putPredicate(p, 0);
    return;
  }
  Reader in{*this};
  switch (i.taint) {
  case TaintRule::Whole: {
    u32 mask = anySource(*this, i);
    if (i.ps != none)
      mask |= predicateTaint[i.ps];
    for (int n = 0; n < i.nd; ++n)
      out.putLanes(i.d[n], mask);
    for (u16 p : i.pd)
      out.putPredicate(p, mask);
    break;
  }
  case TaintRule::CarryUp:
    out.put(i.d[0], [&](int l) {
      u64 t = 0;
      for (int n = 0; n < i.ns; ++n)
        t |= in.taint(i.s[n], l);
      return t | (0 - t);
    });
    break;
  case TaintRule::Bitwise:
    bitwise(*this, i);
    break;
  case TaintRule::Structural:
    structural(*this, i);
    break;
  case TaintRule::Select: {
    u32 p = predicateValue(*this, i.ps, i.psNeg);
    u32 uncertain = i.ps == none ? 0 : predicateTaint[i.ps];
    if (i.ns > 2) { // slct: the sign of s[2] decides
      uncertain = laneTaint(i.s[2]);
      p = 0;
      for (int l = 0; l < 32; ++l)
        p |= u32((r<u32>(i.s[2])[l] >> 31) == 0) << l;
    }
    out.put(i.d[0], [&](int l) -> u64 {
      if (uncertain >> l & 1)
        return ~0ull;
      return in.taint(i.s[p >> l & 1 ? 0 : 1], l);
    });
    break;
  }
  case TaintRule::Halves:
    out.put(i.d[0], [&](int l) {
      u64 t = 0;
      for (int n = 0; n < i.ns; ++n)
        t |= in.taint(i.s[n], l);
      return spread(t, 16, 16);
    });
    break;
  case TaintRule::PackHalves:
  case TaintRule::PackBytes: {
    int bits = i.taint == TaintRule::PackHalves ? 16 : 8;
    u64 ones = (1ull << bits) - 1;
    out.put(i.d[0], [&](int l) {
      u64 low = in.taint(i.s[1], l) ? ones : 0;
      u64 high = in.taint(i.s[0], l) ? ones << bits : 0;
      return low | high;
    });
    break;
  }
  case TaintRule::Widen8:
    out.put(i.d[0], [&](int l) { return spread(in.taint(i.s[0], l), 8, 16); });
    break;
  case TaintRule::Narrow16:
    out.put(i.d[0], [&](int l) { return spread(in.taint(i.s[0], l), 16, 8); });
    break;
  case TaintRule::Compare:
    compare(*this, i);
    break;
  case TaintRule::Logic:
    predicateLogic(*this, i);
    break;
  case TaintRule::Vote:
    vote(*this, i);
    break;
  case TaintRule::Reduce: {
    u32 mask = anySource(*this, i) & lanes ? ~0u : 0;
    for (int n = 0; n < i.nd; ++n)
      out.putLanes(i.d[n], mask);
    for (u16 p : i.pd)
      out.putPredicate(p, mask);
    break;
  }
  case TaintRule::Mma:
    mma(*this, i);
    break;
  case TaintRule::Own:
    break;
  }
}

/// Lanes whose guard is not known may or may not have got the result.
void Warp::taintGuarded(const Instr &i, u32 uncertain) {
  u32 executing = lanes;
  lanes = uncertain;
  Writer out{*this};
  for (int n = 0; n < i.nd; ++n)
    out.putLanes(i.d[n], ~0u);
  for (u16 p : i.pd)
    out.putPredicate(p, ~0u);
  lanes = executing;
}
