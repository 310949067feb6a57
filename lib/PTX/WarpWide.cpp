//===- WarpWide.cpp - shfl, vote, match, redux, elect ---------------------===//

#include "Lanes.h"
#include "Statement.h"

using namespace kvcache::ptx;

namespace {

enum ShuffleMode { Index, Up, Down, Butterfly };

template <int Mode> void shuffle(Warp &w, const Instr &i) {
  auto a = in<u32>(w, i.s[0]), b = in<u32>(w, i.s[1]), c = in<u32>(w, i.s[2]);
  u32 t[32], inRange = 0, bad = 0;
  for (int l = 0; l < 32; ++l) {
    int segment = c[l] >> 8 & 31, clamp = c[l] & 31;
    int highest = (l & segment) | (clamp & ~segment), lowest = l & segment;
    int n = b[l] & 31, j;
    bool p;
    if (Mode == Index) {
      j = lowest | (n & ~segment);
      p = j <= highest;
    } else if (Mode == Up) {
      j = l - n;
      p = j >= highest;
    } else if (Mode == Down) {
      j = l + n;
      p = j <= highest;
    } else {
      j = l ^ n;
      p = j <= highest;
    }
    if (!p)
      j = l;
    if ((w.lanes >> l & 1) && !(w.lanes >> j & 1))
      bad |= 1u << l;
    t[l] = a[j];
    inRange |= u32(p) << l;
  }
  if (bad && w.launch->options.synccheck)
    w.report(FindingKind::Sync, i, __builtin_ctz(bad),
             "shfl reads a lane that does not take part");
  each<u32>(w, i.d[0], [&](int l) { return t[l]; });
  putPredicate(w, i.pd[0], inRange);
}

u32 votes(const Warp &w, const Instr &i) {
  return getPredicate(w, i.ps, i.psNeg) & w.lanes;
}
void voteAny(Warp &w, const Instr &i) {
  putPredicate(w, i.pd[0], votes(w, i) ? ~0u : 0);
}
void voteAll(Warp &w, const Instr &i) {
  putPredicate(w, i.pd[0], votes(w, i) == w.lanes ? ~0u : 0);
}
void voteUniform(Warp &w, const Instr &i) {
  u32 v = votes(w, i);
  putPredicate(w, i.pd[0], v == w.lanes || !v ? ~0u : 0);
}
void voteBallot(Warp &w, const Instr &i) {
  u32 v = votes(w, i);
  each<u32>(w, i.d[0], [=](int) { return v; });
}
void activeMask(Warp &w, const Instr &i) {
  u32 v = w.lanes;
  each<u32>(w, i.d[0], [=](int) { return v; });
}
void elect(Warp &w, const Instr &i) {
  u32 leader = u32(__builtin_ctz(w.lanes));
  if (i.d[0] != none)
    each<u32>(w, i.d[0], [=](int) { return leader; });
  putPredicate(w, i.pd[0], 1u << leader);
}

template <class T> void matchAny(Warp &w, const Instr &i) {
  auto a = in<T>(w, i.s[0]);
  u32 t[32] = {};
  for (int l = 0; l < 32; ++l)
    for (int k = 0; k < 32; ++k)
      t[l] |= u32((w.lanes >> k & 1) && a[k] == a[l]) << k;
  each<u32>(w, i.d[0], [&](int l) { return t[l]; });
}
template <class T> void matchAll(Warp &w, const Instr &i) {
  auto a = in<T>(w, i.s[0]);
  int first = __builtin_ctz(w.lanes);
  bool all = true;
  for (u32 m = w.lanes; m; m &= m - 1)
    all &= a[__builtin_ctz(m)] == a[first];
  u32 v = all ? w.lanes : 0;
  each<u32>(w, i.d[0], [=](int) { return v; });
  putPredicate(w, i.pd[0], all ? ~0u : 0);
}

struct Add {
  static u32 f(u32 a, u32 b) { return a + b; }
};
struct And {
  static u32 f(u32 a, u32 b) { return a & b; }
};
struct Or {
  static u32 f(u32 a, u32 b) { return a | b; }
};
struct Xor {
  static u32 f(u32 a, u32 b) { return a ^ b; }
};
template <class T> struct Min {
  static u32 f(u32 a, u32 b) { return u32(T(a) < T(b) ? T(a) : T(b)); }
};
template <class T> struct Max {
  static u32 f(u32 a, u32 b) { return u32(T(a) > T(b) ? T(a) : T(b)); }
};
template <class F> void reduce(Warp &w, const Instr &i) {
  auto a = w.r<u32>(i.s[0]);
  u32 v = a[__builtin_ctz(w.lanes)];
  for (u32 m = w.lanes & (w.lanes - 1); m; m &= m - 1)
    v = F::f(v, a[__builtin_ctz(m)]);
  each<u32>(w, i.d[0], [=](int) { return v; });
}

bool lowerShuffle(Builder &b, const Statement &s, Instr &i) {
  const std::vector<Operand> &o = s.operands;
  if (o.size() != 5 || !s.has("sync"))
    return false;
  i.d[0] = b.destination(o[0], 1);
  i.nd = 1;
  for (size_t n = 0; n < 4; ++n)
    i.s[n] = b.source(o[n + 1], 1);
  i.ns = 4;
  i.controlMask = 14;
  if (o[0].id2 >= 0)
    i.pd[0] = u16(o[0].id2);
  Handler fn = s.has("idx")    ? shuffle<Index>
               : s.has("up")   ? shuffle<Up>
               : s.has("down") ? shuffle<Down>
               : s.has("bfly") ? shuffle<Butterfly>
                               : Handler(nullptr);
  return choose(i, fn, InstrClass::Shuffle, TaintRule::Structural);
}

bool lowerVote(Builder &b, const Statement &s, Instr &i) {
  const std::vector<Operand> &o = s.operands;
  if (o.size() != 3 || !s.has("sync"))
    return false;
  i.s[0] = b.source(o[2], 1);
  i.ns = 1;
  i.ps = b.predicateSource(o[1], i.psNeg);
  if (s.has("ballot")) {
    i.d[0] = b.destination(o[0], 1);
    i.nd = 1;
    return choose(i, voteBallot, InstrClass::Vote, TaintRule::Vote);
  }
  i.pd[0] = b.predicateDestination(o[0]);
  i.flags = s.has("any") ? 1 : s.has("all") ? 2 : 3; // for Taint.cpp
  return choose(i,
                s.has("any")   ? voteAny
                : s.has("all") ? voteAll
                               : voteUniform,
                InstrClass::Vote, TaintRule::Vote);
}

bool lowerRedux(Builder &b, const Statement &s, Instr &i) {
  Type t = s.type();
  if (t.bits != 32 || t.kind == 'f' || !lowerOperands(b, s, i, 1, {1, 1}))
    return false;
  bool sg = t.isSigned();
  Handler fn = s.has("add")   ? reduce<Add>
               : s.has("and") ? reduce<And>
               : s.has("or")  ? reduce<Or>
               : s.has("xor") ? reduce<Xor>
               : s.has("min") ? (sg ? reduce<Min<s32>> : reduce<Min<u32>>)
               : s.has("max") ? (sg ? reduce<Max<s32>> : reduce<Max<u32>>)
                              : Handler(nullptr);
  return choose(i, fn, InstrClass::Vote, TaintRule::Reduce);
}

} // namespace

bool kvcache::ptx::lowerWarpWide(Builder &b, const Statement &s, Instr &i) {
  const std::string &op = s.op();
  const std::vector<Operand> &o = s.operands;
  if (op == "activemask") {
    i.d[0] = b.destination(o[0], 1);
    i.nd = 1;
    return choose(i, activeMask, InstrClass::Vote, TaintRule::Reduce);
  }
  bool known = op == "shfl" || op == "vote" || op == "redux" || op == "match" ||
               op == "elect";
  if (!known)
    return false;
  i.control = Control::Sync;
  i.hasMemberMask = true; // the last source
  if (op == "shfl")
    return lowerShuffle(b, s, i);
  if (op == "vote")
    return lowerVote(b, s, i);
  if (op == "redux")
    return lowerRedux(b, s, i);
  if (op == "match") {
    Type t = s.type();
    bool all = s.has("all");
    if (o.size() != 3)
      return false;
    i.d[0] = b.destination(o[0], 1);
    i.nd = 1;
    if (o[0].id2 >= 0)
      i.pd[0] = u16(o[0].id2);
    i.s[0] = b.source(o[1], t.units());
    i.s[1] = b.source(o[2], 1);
    i.ns = 2;
    return choose(i,
                  t.bits == 64 ? (all ? matchAll<u64> : matchAny<u64>)
                               : (all ? matchAll<u32> : matchAny<u32>),
                  InstrClass::Vote, TaintRule::Reduce);
  }
  // elect.sync d|p, mask
  if (o.size() != 2 || o[0].id2 < 0)
    return false;
  if (o[0].kind == Operand::Reg) {
    i.d[0] = b.destination(o[0], 1);
    i.nd = 1;
  }
  i.s[0] = b.source(o[1], 1);
  i.ns = 1;
  i.pd[0] = u16(o[0].id2);
  return choose(i, elect, InstrClass::Vote, TaintRule::Reduce);
}
