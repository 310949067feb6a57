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

template <class T> inline bool compare(int comparison, T a, T b) {
  bool unordered = a != a || b != b;
  switch (comparison) {
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
template <class T, int C> bool compare(T a, T b) { return compare(C, a, b); }

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
    return unbox<T>(Comparable<C>::get(c[l]) >= 0 ? x : y);
  });
}
template <class T> Handler slctFor(const Statement &s, Type t) {
  return t.kind == 's'  ? slct<T, s32>
         : s.has("ftz") ? slct<T, FlushedFloat>
                        : slct<T, float>;
}

//===----------------------------------------------------------------------===//
// set, and setp of packed halves: one lane after the other
//===----------------------------------------------------------------------===//

// i.imm: kind of the source type | kind of the result << 8; i.width: bits of a
// compared value; i.flags: comparison << 2 | as for setp | ftz << 7.
bool compareBits(const Instr &i, u64 a, u64 b) {
  const int c = i.flags >> 2 & 15;
  switch (char(i.imm & 255)) {
  case 'f':
    if (i.width == 64)
      return compare(c, __builtin_bit_cast(double, a),
                     __builtin_bit_cast(double, b));
    if (i.flags >> 7 & 1)
      return compare(c, Comparable<FlushedFloat>::get(u32(a)),
                     Comparable<FlushedFloat>::get(u32(b)));
    return compare(c, __builtin_bit_cast(float, u32(a)),
                   __builtin_bit_cast(float, u32(b)));
  case 'h':
  case 'H':
    return compare(c, float(unbox<f16>(u32(a))), float(unbox<f16>(u32(b))));
  case 'B':
  case 'X':
    return compare(c, Comparable<BFloat>::get(u32(a)),
                   Comparable<BFloat>::get(u32(b)));
  case 's':
    return compare(c, s64(a << (64 - i.width)) >> (64 - i.width),
                   s64(b << (64 - i.width)) >> (64 - i.width));
  default:
    return compare(c, a << (64 - i.width), b << (64 - i.width));
  }
}

/// Bit n of the result: half n, or the whole of a type that is not packed.
u32 compareHalves(const Warp &w, const Instr &i, int l) {
  const bool packed = (i.imm & 255) == 'H' || (i.imm & 255) == 'X';
  auto value = [&](u16 slot) -> u64 {
    return i.width == 64 ? w.r<u64>(slot)[l] : w.r<u32>(slot)[l];
  };
  u64 a = value(i.s[0]), b = value(i.s[1]);
  if (!packed)
    return compareBits(i, a, b);
  return u32(compareBits(i, a & 0xffff, b & 0xffff)) |
         u32(compareBits(i, a >> 16, b >> 16)) << 1;
}

bool combined(const Instr &i, bool r, u32 predicate, int l) {
  const bool c = predicate >> l & 1;
  switch (i.flags & 3) { // 1 and, 2 or, 3 xor
  case 1:
    return r & c;
  case 2:
    return r | c;
  case 3:
    return r ^ c;
  }
  return r;
}

/// All ones or 1.0 instead of a predicate.
void set(Warp &w, const Instr &i) {
  const bool packed = (i.imm & 255) == 'H' || (i.imm & 255) == 'X';
  u32 yes = 0;
  switch (char(i.imm >> 8 & 255)) {
  case 'f':
    yes = 0x3f800000;
    break;
  case 'h':
  case 'H':
    yes = 0x3c00;
    break;
  case 'B':
  case 'X':
    yes = 0x3f80;
    break;
  default:
    yes = packed ? 0xffff : ~0u;
  }
  const u32 predicate = getPredicate(w, i.ps, i.psNeg);
  each<u32>(w, i.d[0], [&](int l) {
    u32 halves = compareHalves(w, i, l), r = 0;
    for (int h = 0; h < (packed ? 2 : 1); ++h)
      if (combined(i, halves >> h & 1, predicate, l))
        r |= yes << (16 * h);
    return r;
  });
}

/// One predicate a half.
void setpPacked(Warp &w, const Instr &i) {
  const u32 predicate = getPredicate(w, i.ps, i.psNeg);
  u32 r[2] = {0, 0};
  for (int l = 0; l < 32; ++l) {
    u32 halves = compareHalves(w, i, l);
    for (int h = 0; h < 2; ++h)
      r[h] |= u32(combined(i, halves >> h & 1, predicate, l)) << l;
  }
  putPredicate(w, i.pd[0], r[0]);
  putPredicate(w, i.pd[1], r[1]);
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
  if (!w.launch->options.synccheck)
    return;
  if ((i.flags & 8) && w.lanes != w.alive)
    w.report(FindingKind::Sync, i, __builtin_ctz(w.alive & ~w.lanes),
             "lanes " + hex(w.alive & ~w.lanes) +
                 " of the warp do not execute this barrier, which needs all");
  const u32 most = u32(w.cta->warps.size()) * 32;
  if (w.barrierId > 15)
    w.report(FindingKind::Sync, i, l,
             "barrier " + std::to_string(w.barrierId) +
                 "; a block has barriers 0 to 15");
  if (i.s[1] != none &&
      (w.barrierCount % 32 || !w.barrierCount || w.barrierCount > most))
    w.report(FindingKind::Sync, i, l,
             "barrier for " + std::to_string(w.barrierCount) +
                 " threads; expected a multiple of 32 up to the " +
                 std::to_string(most) + " of this block");
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
  else if (o[0].kind != Operand::Sink)
    return false;
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
  case 'H':
  case 'X':
    fn = setpPacked;
    i.imm = t.kind;
    i.flags = u16((i.flags & 3) | c << 2);
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

/// set.cmp(.boolop)(.ftz).dtype.stype
bool lowerSet(Builder &b, const Statement &s, Instr &i) {
  const std::vector<Operand> &o = s.operands;
  const int c = comparisonOf(s);
  const size_t n = s.parts.size();
  if (c < 0 || n < 4 || o.size() < 3)
    return false;
  const Type d = parseType(s.parts[n - 2]), t = parseType(s.parts[n - 1]);
  const bool packed = t.kind == 'H' || t.kind == 'X';
  const bool integer = d.kind == 'u' || d.kind == 's';
  const bool combines = s.has("and") || s.has("or") || s.has("xor");
  if (n != 4 + size_t(combines) + size_t(s.has("ftz")) ||
      o.size() != 3 + size_t(combines))
    return false;
  // Halves of floats compare to halves of floats, or of integers.
  const bool half = t.kind == 'h' || t.kind == 'B' || packed;
  if (!strchr("busfhBHX", t.kind) || t.bits < 16 ||
      !(half ? d.kind == t.kind || (integer && (!packed || d.bits == 32))
             : (integer || d.kind == 'f') && d.bits == 32))
    return false;
  if (!lowerOperands(b, s, i, 1, {t.units(), t.units()}))
    return false;
  if (combines)
    i.ps = b.predicateSource(o[3], i.psNeg);
  i.imm = t.kind | d.kind << 8;
  i.width = packed ? 16 : t.bits;
  i.flags = u16(c << 2 |
                (s.has("and")   ? 1
                 : s.has("or")  ? 2
                 : s.has("xor") ? 3
                                : 0) |
                int(s.has("ftz") && t.kind == 'f') << 7);
  return choose(i, set, InstrClass::Logic, TaintRule::Whole);
}

bool lowerPredicateLogic(const Statement &s, Instr &i) {
  const std::vector<Operand> &o = s.operands;
  const std::string &op = s.op();
  if (o.size() != (op == "mov" || op == "not" ? 2 : 3) ||
      o[0].kind != Operand::Pred)
    return false;
  i.pd[0] = u16(o[0].id);
  i.imm = 0;
  for (size_t n = 1; n < o.size(); ++n) {
    bool isPredicate = o[n].kind == Operand::Pred;
    if (!isPredicate && o[n].kind != Operand::Imm)
      return false;
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
  if (o.empty())
    return false;
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
  // bar is barrier.aligned: all lanes of a warp together.
  const int aligned = s.op() == "bar" || s.has("aligned") ? 8 : 0;
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
    i.flags = u16(aligned | (s.has("arrive") ? 1 : 0));
    return !s.has("arrive") || o.size() == 2;
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
    i.flags = u16(aligned | 2 | (s.has("or") ? 4 : 0));
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
    bool flushes = s.has("ftz");
    if (s.parts.size() != (flushes ? 4 : 3) || o.size() != 4 || t.bits != 32 ||
        (t.kind != 'f' && (t.kind != 's' || flushes)))
      return false;
    int du = parseType(s.parts[flushes ? 2 : 1]).units();
    return lowerOperands(b, s, i, du, {du, du, 1}) &&
           choose(i, du == 2 ? slctFor<u64>(s, t) : slctFor<u32>(s, t),
                  InstrClass::Logic, TaintRule::Select);
  }
  if (op == "set")
    return lowerSet(b, s, i);
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
