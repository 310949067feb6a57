//===- Predicates.cpp - setp, selp, predicate logic, control --------------===//

#include "Lanes.h"
#include "Statement.h"

using namespace kvcache::ptx;

namespace {

enum Comparison {
  Eq,
  Ne,
  Lt,
  Le,
  Gt,
  Ge,
  EqU,
  NeU,
  LtU,
  LeU,
  GtU,
  GeU,
  Num,
  NaN
};
const char *const comparisonNames[] = {"eq",  "ne",  "lt",  "le",  "gt",
                                       "ge",  "equ", "neu", "ltu", "leu",
                                       "gtu", "geu", "num", "nan"};

template <class T, int C> bool compare(T a, T b) {
  bool unordered = a != a || b != b;
  switch (C) {
  case Eq:
    return a == b;
  case Ne:
    return a != b && !unordered;
  case Lt:
    return a < b;
  case Le:
    return a <= b;
  case Gt:
    return a > b;
  case Ge:
    return a >= b;
  case EqU:
    return unordered || a == b;
  case NeU:
    return unordered || a != b;
  case LtU:
    return unordered || a < b;
  case LeU:
    return unordered || a <= b;
  case GtU:
    return unordered || a > b;
  case GeU:
    return unordered || a >= b;
  case Num:
    return !unordered;
  default:
    return unordered;
  }
}

struct BFloat { // compares as float
  u16 bits;
};
template <class T> struct Comparable {
  static T get(Box<T> x) { return unbox<T>(x); }
};
template <> struct Comparable<BFloat> {
  static float get(u32 x) { return __builtin_bit_cast(float, x << 16); }
};
struct FlushedFloat { // .ftz
  u32 bits;
};
template <> struct Comparable<FlushedFloat> {
  static float get(u32 x) {
    return __builtin_bit_cast(float, x & 0x7f800000u ? x : x & 0x80000000u);
  }
};

template <class T, int C> void setp(Warp &w, const Instr &i) {
  auto a = in<T>(w, i.s[0]), b = in<T>(w, i.s[1]);
  using V = decltype(Comparable<T>::get(0));
  u32 r = 0;
  KVCACHE_FOR_LANES r |=
      u32(compare<V, C>(Comparable<T>::get(a[l]), Comparable<T>::get(b[l])))
      << l;
  u32 n = ~r;
  if (u32 combine = i.flags & 3) { // 1 and, 2 or, 3 xor
    u32 c = getPredicate(w, i.ps, i.psNeg);
    r = combine == 1 ? r & c : combine == 2 ? r | c : r ^ c;
    n = combine == 1 ? n & c : combine == 2 ? n | c : n ^ c;
  }
  putPredicate(w, i.pd[1], n);
  putPredicate(w, i.pd[0], r);
}

template <class T> Handler setpFor(int c) {
  static const Handler table[] = {
      setp<T, 0>,  setp<T, 1>,  setp<T, 2>,  setp<T, 3>, setp<T, 4>,
      setp<T, 5>,  setp<T, 6>,  setp<T, 7>,  setp<T, 8>, setp<T, 9>,
      setp<T, 10>, setp<T, 11>, setp<T, 12>, setp<T, 13>};
  return table[c];
}

template <class T> void selp(Warp &w, const Instr &i) {
  auto a = in<T>(w, i.s[0]), b = in<T>(w, i.s[1]);
  u32 p = getPredicate(w, i.ps, i.psNeg);
  each<T>(w, i.d[0], [=](int l) {
    Box<T> x = a[l], y = b[l];
    return unbox<T>(p >> l & 1 ? x : y);
  });
}

/// d = c >= 0 ? a : b
template <class T, class C> void slct(Warp &w, const Instr &i) {
  auto a = in<T>(w, i.s[0]), b = in<T>(w, i.s[1]);
  auto c = in<C>(w, i.s[2]);
  each<T>(w, i.d[0], [=](int l) {
    Box<T> x = a[l], y = b[l];
    return unbox<T>(unbox<C>(c[l]) >= 0 ? x : y);
  });
}

/// set: all ones or 1.0 instead of a predicate.
template <class T, int C, bool FloatResult> void set(Warp &w, const Instr &i) {
  auto a = in<T>(w, i.s[0]), b = in<T>(w, i.s[1]);
  each<u32>(w, i.d[0], [=](int l) {
    bool r = compare<T, C>(unbox<T>(a[l]), unbox<T>(b[l]));
    return r ? (FloatResult ? 0x3f800000u : ~0u) : 0u;
  });
}
template <class T, bool FloatResult> Handler setFor(int c) {
  static const Handler table[] = {
      set<T, 0, FloatResult>,  set<T, 1, FloatResult>,  set<T, 2, FloatResult>,
      set<T, 3, FloatResult>,  set<T, 4, FloatResult>,  set<T, 5, FloatResult>,
      set<T, 6, FloatResult>,  set<T, 7, FloatResult>,  set<T, 8, FloatResult>,
      set<T, 9, FloatResult>,  set<T, 10, FloatResult>, set<T, 11, FloatResult>,
      set<T, 12, FloatResult>, set<T, 13, FloatResult>};
  return table[c];
}

// Predicate logic: imm holds the two source ids (none: false), bit n of flags
// inverts source n.
u32 logicArgument(const Warp &w, const Instr &i, int n) {
  u16 id = u16(i.imm >> (16 * n));
  u32 v = id == none ? 0 : w.predicates[id];
  return i.flags >> n & 1 ? ~v : v;
}
void movePredicate(Warp &w, const Instr &i) {
  putPredicate(w, i.pd[0], logicArgument(w, i, 0));
}
void notPredicate(Warp &w, const Instr &i) {
  putPredicate(w, i.pd[0], ~logicArgument(w, i, 0));
}
void andPredicate(Warp &w, const Instr &i) {
  putPredicate(w, i.pd[0], logicArgument(w, i, 0) & logicArgument(w, i, 1));
}
void orPredicate(Warp &w, const Instr &i) {
  putPredicate(w, i.pd[0], logicArgument(w, i, 0) | logicArgument(w, i, 1));
}
void xorPredicate(Warp &w, const Instr &i) {
  putPredicate(w, i.pd[0], logicArgument(w, i, 0) ^ logicArgument(w, i, 1));
}

template <class T, int Kind> void testp(Warp &w, const Instr &i) {
  auto a = in<T>(w, i.s[0]);
  u32 r = 0;
  for (int l = 0; l < 32; ++l) {
    T x = unbox<T>(a[l]);
    int c = __builtin_fpclassify(0, 1, 2, 3, 4, x); // nan inf normal sub zero
    bool v = Kind == 0   ? c >= 2
             : Kind == 1 ? c == 1
             : Kind == 2 ? c != 0
             : Kind == 3 ? c == 0
             : Kind == 4 ? c == 2 || c == 4 // zero is normal here
                         : c == 3;
    r |= u32(v) << l;
  }
  putPredicate(w, i.pd[0], r);
}
template <class T> Handler testpFor(const Statement &s) {
  if (s.has("finite"))
    return testp<T, 0>;
  if (s.has("infinite"))
    return testp<T, 1>;
  if (s.has("number"))
    return testp<T, 2>;
  if (s.has("notanumber"))
    return testp<T, 3>;
  if (s.has("normal"))
    return testp<T, 4>;
  return s.has("subnormal") ? testp<T, 5> : nullptr;
}

void isSpace(Warp &w, const Instr &i) { // flags 1 shared, 2 local, 0 global
  auto a = in<u64>(w, i.s[0]);
  u32 r = 0;
  for (int l = 0; l < 32; ++l) {
    u64 window = a[l] >> 48;
    int space = window == sharedWindow >> 48  ? 1
                : window == localWindow >> 48 ? 2
                                              : 0;
    r |= u32(space == i.flags) << l;
  }
  putPredicate(w, i.pd[0], r);
}

void ctaBarrier(Warp &w, const Instr &i) {
  int l = __builtin_ctz(w.lanes);
  w.barrierId = w.r<u32>(i.s[0])[l];
  w.barrierCount = i.s[1] == none ? 0 : w.r<u32>(i.s[1])[l];
}

int comparisonOf(const Statement &s) {
  if (s.parts.size() < 2)
    return -1;
  const std::string &name = s.parts[1];
  for (int n = 0; n < 14; ++n)
    if (name == comparisonNames[n])
      return n;
  return name == "lo"   ? int(Lt)
         : name == "ls" ? int(Le)
         : name == "hi" ? int(Gt)
         : name == "hs" ? int(Ge)
                        : -1;
}

bool lowerSetp(Builder &b, const Statement &s, Instr &i) {
  const std::vector<Operand> &o = s.operands;
  Type t = s.type();
  int c = comparisonOf(s);
  if (c < 0 || o.size() < 3)
    return false;
  bool equality = c == Eq || c == Ne;
  if (o.size() == 4) {
    i.flags = s.has("and") ? 1 : s.has("or") ? 2 : s.has("xor") ? 3 : 0;
    if (!i.flags)
      return false;
    i.ps = b.predicateSource(o[3], i.psNeg);
  }
  if (equality && !t.isFloat())
    i.flags |= 1 << 8;
  if (o[0].kind == Operand::Pred)
    i.pd[0] = u16(o[0].id);
  if (o[0].id2 >= 0)
    i.pd[1] = u16(o[0].id2);
  i.s[0] = b.source(o[1], t.units());
  i.s[1] = b.source(o[2], t.units());
  i.ns = 2;
  i.width = u8(t.bits / 8);
  Handler fn = nullptr;
  bool sg = t.isSigned(), ftz = s.has("ftz");
  switch (t.kind) {
  case 'f':
    fn = t.bits == 64 ? setpFor<double>(c)
         : ftz        ? setpFor<FlushedFloat>(c)
                      : setpFor<float>(c);
    break;
  case 'h':
    fn = setpFor<f16>(c);
    break;
  case 'B':
    fn = setpFor<BFloat>(c);
    break;
  case 'b':
  case 'u':
  case 's':
    fn = t.bits == 16   ? (sg ? setpFor<s16>(c) : setpFor<u16>(c))
         : t.bits == 32 ? (sg ? setpFor<s32>(c) : setpFor<u32>(c))
         : t.bits == 64 ? (sg ? setpFor<s64>(c) : setpFor<u64>(c))
                        : nullptr;
  }
  return choose(i, fn, InstrClass::Predicate, TaintRule::Compare);
}

bool lowerPredicateLogic(const Statement &s, Instr &i) {
  const std::vector<Operand> &o = s.operands;
  const std::string &op = s.op();
  if (o.empty() || o[0].kind != Operand::Pred)
    return false;
  i.pd[0] = u16(o[0].id);
  i.imm = 0;
  for (size_t n = 1; n < o.size(); ++n) {
    bool isPredicate = o[n].kind == Operand::Pred;
    i.imm |= s64(isPredicate ? u16(o[n].id) : none) << (16 * (n - 1));
    if (isPredicate ? o[n].negated : o[n].imm != 0)
      i.flags |= u16(1 << (n - 1));
  }
  if (o.size() < 3)
    i.imm |= s64(none) << 16;
  // vec tells Taint.cpp which operation it is.
  i.vec = op == "and" ? 2 : op == "or" ? 3 : op == "xor" ? 4 : 1;
  Handler fn = op == "mov"   ? movePredicate
               : op == "not" ? notPredicate
               : op == "and" ? andPredicate
               : op == "or"  ? orPredicate
                             : xorPredicate;
  return choose(i, fn, InstrClass::Predicate, TaintRule::Logic);
}

bool lowerBarrier(Builder &b, const Statement &s, Instr &i) {
  const std::vector<Operand> &o = s.operands;
  i.cls = InstrClass::Barrier;
  i.taint = TaintRule::Own;
  if (s.has("warp")) {
    i.control = Control::WarpBarrier;
    i.hasMemberMask = true;
    i.s[0] = b.source(o[0], 1);
    i.ns = 1;
    return true;
  }
  if (s.has("cluster"))
    return false;
  i.control = Control::CtaBarrier;
  i.fn = ctaBarrier;
  // A thread count, or a barrier number that is not fixed: maybe a part only.
  if (o.size() > (s.has("red") ? 3 : 1) || s.has("arrive"))
    b.kernel.partialOrder = true;
  if (s.has("sync") || s.has("arrive")) {
    if (o.empty() || o.size() > 2)
      return false;
    i.s[0] = b.source(o[0], 1);
    i.ns = 1;
    if (o.size() == 2) {
      i.s[1] = b.source(o[1], 1);
      i.ns = 2;
    }
    i.flags = s.has("arrive") ? 1 : 0;
    return i.flags == 0 || o.size() == 2;
  }
  if (s.has("red")) { // d|p, barrier, (count,) predicate
    if (o.size() < 3)
      return false;
    i.s[0] = b.source(o[1], 1);
    i.ns = 1;
    if (o.size() == 4) {
      i.s[1] = b.source(o[2], 1);
      i.ns = 2;
    }
    i.ps = b.predicateSource(o.back(), i.psNeg);
    i.flags = u16(2 | (s.has("or") ? 4 : 0));
    if (s.has("popc")) {
      i.d[0] = b.destination(o[0], 1);
      i.nd = 1;
      return true;
    }
    i.pd[0] = b.predicateDestination(o[0]);
    return s.has("and") || s.has("or");
  }
  return false;
}

} // namespace

bool kvcache::ptx::lowerPredicate(Builder &b, const Statement &s, Instr &i) {
  const std::string &op = s.op();
  const std::vector<Operand> &o = s.operands;
  Type t = s.type();
  const int units = t.units();
  if (t.kind == 'p' &&
      (op == "mov" || op == "and" || op == "or" || op == "xor" || op == "not"))
    return lowerPredicateLogic(s, i);
  if (op == "setp")
    return lowerSetp(b, s, i);
  if (op == "selp") {
    if (o.size() != 4)
      return false;
    i.d[0] = b.destination(o[0], units);
    i.nd = 1;
    i.s[0] = b.source(o[1], units);
    i.s[1] = b.source(o[2], units);
    i.ns = 2;
    i.ps = b.predicateSource(o[3], i.psNeg);
    return choose(i, units == 2 ? selp<u64> : selp<u32>, InstrClass::Logic,
                  TaintRule::Select);
  }
  if (op == "slct") {
    // slct.b32.s32: the first type is the data's.
    Type data = parseType(s.parts[1] == "ftz" ? s.parts[2] : s.parts[1]);
    if (t.bits != 32)
      return false;
    int du = data.units();
    if (!lowerOperands(b, s, i, du, {du, du, 1}))
      return false;
    bool isFloat = t.kind == 'f';
    return choose(i,
                  du == 2 ? (isFloat ? slct<u64, float> : slct<u64, s32>)
                          : (isFloat ? slct<u32, float> : slct<u32, s32>),
                  InstrClass::Logic, TaintRule::Select);
  }
  if (op == "set") { // set.cmp.dtype.stype
    int c = comparisonOf(s);
    Type d = parseType(s.parts[s.parts.size() - 2]);
    if (c < 0 || d.bits != 32 || t.bits != 32 || o.size() != 3 || s.has("ftz"))
      return false;
    if (!lowerOperands(b, s, i, 1, {1, 1}))
      return false;
    bool f = d.kind == 'f';
    Handler fn =
        t.kind == 'f'  ? (f ? setFor<float, true>(c) : setFor<float, false>(c))
        : t.isSigned() ? (f ? setFor<s32, true>(c) : setFor<s32, false>(c))
                       : (f ? setFor<u32, true>(c) : setFor<u32, false>(c));
    return choose(i, fn, InstrClass::Logic, TaintRule::Whole);
  }
  if (op == "testp") {
    if (o.size() != 2 || t.kind != 'f')
      return false;
    i.pd[0] = b.predicateDestination(o[0]);
    i.s[0] = b.source(o[1], units);
    i.ns = 1;
    return choose(i, t.bits == 32 ? testpFor<float>(s) : testpFor<double>(s),
                  InstrClass::Predicate, TaintRule::Whole);
  }
  if (op == "isspacep") {
    if (o.size() != 2 || s.has("const") || s.has("param"))
      return false;
    i.pd[0] = b.predicateDestination(o[0]);
    i.s[0] = b.source(o[1], 2);
    i.ns = 1;
    Space space = spaceOf(s);
    i.flags = space == Space::Shared ? 1 : space == Space::Local ? 2 : 0;
    return choose(i, isSpace, InstrClass::Predicate, TaintRule::Whole);
  }
  if (op == "ret" || op == "exit") {
    i.control = Control::Exit;
    i.cls = InstrClass::Branch;
    return true;
  }
  if (op == "trap" || op == "brkpt") {
    i.control = Control::Trap;
    i.cls = InstrClass::Branch;
    return true;
  }
  if (op == "bar" || op == "barrier")
    return lowerBarrier(b, s, i);
  return false;
}
