//===- Memory.cpp - Loads, stores and the checks of every access ----------===//

#include "GlobalRace.h"
#include "Lanes.h"
#include "Statement.h"

#include <algorithm>

using namespace kvcache::ptx;

std::string kvcache::ptx::hex(u64 value) {
  char text[24];
  snprintf(text, sizeof text, "0x%llx", (unsigned long long)value);
  return text;
}

void kvcache::ptx::markValid(u8 *p, u32 n) {
  const u64 one = 0x0101010101010101ull;
  if (n == 16) {
    memcpy(p, &one, 8);
    memcpy(p + 8, &one, 8);
  } else if (n == 8) {
    memcpy(p, &one, 8);
  } else if (n == 4) {
    memcpy(p, &one, 4);
  } else {
    memset(p, 1, n);
  }
}

bool kvcache::ptx::allValid(const u8 *p, u32 n) {
  const u64 one = 0x0101010101010101ull;
  u64 q[2];
  if (n == 16) {
    memcpy(q, p, 16);
    return (q[0] & q[1]) == one;
  }
  if (n == 8) {
    memcpy(q, p, 8);
    return q[0] == one;
  }
  if (n == 4) {
    u32 d;
    memcpy(&d, p, 4);
    return d == u32(one);
  }
  for (u32 k = 0; k < n; ++k)
    if (!p[k])
      return false;
  return true;
}

void kvcache::ptx::readAddresses(Warp &w, const Instr &i, int slot, u64 *a) {
  if (i.addr64) {
    const u64 *base = w.r<u64>(i.s[slot]);
    const u64 offset = u64(i.imm);
    KVCACHE_FOR_LANES a[l] = base[l] + offset;
  } else {
    const u32 *base = w.r<u32>(i.s[slot]);
    const u32 offset = u32(i.imm);
    KVCACHE_FOR_LANES a[l] = u32(base[l] + offset);
  }
}

//===----------------------------------------------------------------------===//
// Checks
//===----------------------------------------------------------------------===//

static const char *verb(Access access) {
  switch (access) {
  case Access::Load:
    return "load";
  case Access::Store:
    return "store";
  case Access::Atomic:
    return "atomic access";
  case Access::AsyncRead:
    return "asynchronous copy";
  }
  return "";
}

std::string kvcache::ptx::bufferName(Cta &c, u64 address) {
  const Buffer *b = c.findBuffer(address, address + 1);
  return b ? b->name : std::string();
}

void kvcache::ptx::reportOutside(Warp &w, const Instr &i, int lane, u64 address,
                                 u32 n, Access access) {
  for (const RemovedBuffer &b : *w.launch->removed)
    if (address >= b.address && address < b.address + b.size) {
      w.report(FindingKind::UseAfterFree, i, lane,
               std::string(verb(access)) + " of " + std::to_string(n) +
                   " bytes at offset " + std::to_string(address - b.address) +
                   " of buffer " + b.name + ", which was removed",
               address, b.name);
      return;
    }
  std::string near, name;
  for (const Buffer *b : w.launch->buffers)
    if (address + (1 << 19) >= b->address &&
        address < b->address + b->size + (1 << 19)) {
      name = b->name;
      near = "; buffer " + name + " has " + std::to_string(b->size) +
             " bytes, this is offset " +
             std::to_string(s64(address - b->address));
    }
  w.report(FindingKind::OutOfBounds, i, lane,
           std::string(verb(access)) + " of " + std::to_string(n) +
               " bytes at " + hex(address) + ", which is in no buffer" + near,
           address, name);
}

void kvcache::ptx::globalAccess(Warp &w, const Instr &i, const u64 *a, u32 mask,
                                u32 n, Access access, Where &x) {
  const LaunchOptions &options = w.launch->options;
  const bool writes = access == Access::Store || access == Access::Atomic;
  x.global = mask;
  x.ok = mask;
  x.anyInit = false;
  u64 lo = ~0ull, hi = 0, low = 0;
  for (u32 m = mask; m; m &= m - 1) {
    int l = __builtin_ctz(m);
    lo = std::min(lo, a[l]);
    hi = std::max(hi, a[l]);
    low |= a[l];
  }
  if (options.memcheck && (low & (n - 1)))
    for (u32 m = mask; m; m &= m - 1) {
      int l = __builtin_ctz(m);
      if (a[l] & (n - 1)) {
        w.report(FindingKind::Misaligned, i, l,
                 std::string(verb(access)) + " at " + hex(a[l]) +
                     ", which is not a multiple of " + std::to_string(n),
                 a[l], bufferName(*w.cta, a[l]));
        break;
      }
    }
  Buffer *common = mask ? w.cta->findBuffer(lo, hi + n) : nullptr;
  if (common && !(writes && common->readOnly)) {
    const u64 base = u64(common->host) - common->address;
    KVCACHE_FOR_LANES x.host[l] = (u8 *)(base + a[l]);
    if (!common->init.empty() && options.initcheck) {
      const u64 init = u64(common->init.data()) - common->address;
      KVCACHE_FOR_LANES x.init[l] = (u8 *)(init + a[l]);
      x.anyInit = true;
    }
  } else {
    for (u32 m = mask; m; m &= m - 1) {
      int l = __builtin_ctz(m);
      Buffer *b = w.cta->findBuffer(a[l], a[l] + n);
      if (!b) {
        if (options.memcheck)
          reportOutside(w, i, l, a[l], n, access);
        x.ok &= ~(1u << l);
        continue;
      }
      if (writes && b->readOnly) {
        if (options.memcheck)
          w.report(FindingKind::ReadOnlyWrite, i, l,
                   "store to read-only buffer " + b->name + ", offset " +
                       std::to_string(a[l] - b->address),
                   a[l], b->name);
        x.ok &= ~(1u << l);
        continue;
      }
      x.host[l] = b->host + (a[l] - b->address);
      x.init[l] = options.initcheck ? b->initAt(a[l]) : nullptr;
    }
    x.anyInit = true;
    for (u32 m = ~x.ok; m; m &= m - 1)
      x.init[__builtin_ctz(m)] = nullptr;
  }
  if (!w.launch->globalRace || !x.ok)
    return;
  GlobalRaceChecker &race = *w.launch->globalRace;
  if (i.strong || access == Access::Atomic) {
    race.strong(w, i, a, x.ok, n, writes);
    return;
  }
  u32 tracked = x.ok;
  if (common) {
    tracked = common->readOnly ? 0 : x.ok;
  } else {
    for (u32 m = x.ok; m; m &= m - 1) {
      int l = __builtin_ctz(m);
      if (w.cta->findBuffer(a[l], a[l] + n)->readOnly)
        tracked &= ~(1u << l);
    }
  }
  if (tracked)
    race.access(w, i, a, tracked, n, writes);
}

u32 kvcache::ptx::sharedAccess(Warp &w, const Instr &i, const u64 *a, u32 mask,
                               u32 n, Access access, bool async, u32 raceMask) {
  const LaunchOptions &options = w.launch->options;
  Cta &c = *w.cta;
  u32 ok = mask;
  const u64 end = sharedStart + u64(c.sharedBytes);
  u64 bad = 0;
  {
    const u64 top = end - n, low = n - 1;
    const bool fits = c.sharedBytes >= n;
    KVCACHE_FOR_LANES {
      u64 b = u64(a[l] < sharedStart) | u64(a[l] > top) |
              u64((a[l] & low) != 0) | u64(!fits);
      bad |= (mask >> l & 1) ? b : 0;
    }
  }
  if (bad)
    for (u32 m = mask; m; m &= m - 1) {
      int l = __builtin_ctz(m);
      if (a[l] < sharedStart || a[l] + n > end) {
        if (options.memcheck)
          w.report(FindingKind::OutOfBounds, i, l,
                   std::string(verb(access)) + " of " + std::to_string(n) +
                       " bytes at shared address " + hex(a[l]) +
                       "; this block has " + hex(sharedStart) + " to " +
                       hex(end),
                   a[l], "shared");
        ok &= ~(1u << l);
      } else if ((a[l] & (n - 1)) && options.memcheck) {
        w.report(FindingKind::Misaligned, i, l,
                 std::string(verb(access)) + " at shared address " + hex(a[l]) +
                     ", which is not a multiple of " + std::to_string(n),
                 a[l], "shared");
      }
    }
  if (!options.racecheck)
    return ok;
  if (access == Access::Atomic)
    c.noteAtomics(w, i, a, ok & raceMask, n);
  else if (access == Access::Store)
    c.noteWrites(w, i, a, ok & raceMask, n, async);
  else
    c.noteReads(w, i, a, ok & raceMask, n);
  return ok;
}

static void locateIn(Space space, Warp &w, const Instr &i, u64 *a, u32 n,
                     Access access, Where &x, u32 raceMask) {
  Cta &c = *w.cta;
  const LaunchOptions &options = w.launch->options;
  switch (space) {
  case Space::Shared: {
    // Strong accesses of shared memory are taken as atomic ones.
    Access kind = i.strong ? Access::Atomic : access;
    x.ok = sharedAccess(w, i, a, w.lanes, n, kind, false, raceMask);
    for (u32 m = x.ok; m; m &= m - 1) {
      int l = __builtin_ctz(m);
      x.host[l] = &c.shared[a[l] - sharedStart];
      x.init[l] = &c.init[a[l] - sharedStart];
    }
    x.anyInit = options.initcheck;
    if (options.counters && access != Access::Atomic)
      countWavefronts(access == Access::Store ? w.counters->sharedStore
                                              : w.counters->sharedLoad,
                      a, x.ok, n);
    break;
  }
  case Space::Local:
  case Space::Param: {
    bool local = space == Space::Local;
    u64 size = local ? w.kernel->info.localBytes : u64(w.launch->params.size());
    x.ok = w.lanes;
    x.anyInit = local && options.initcheck;
    for (u32 m = w.lanes; m; m &= m - 1) {
      int l = __builtin_ctz(m);
      if (a[l] + n > size || a[l] > size) {
        w.report(FindingKind::OutOfBounds, i, l,
                 std::string(verb(access)) + " of " + std::to_string(n) +
                     " bytes at " + (local ? "local" : "parameter") +
                     " address " + hex(a[l]) + "; there are " +
                     std::to_string(size) + " bytes",
                 a[l], local ? "local" : "");
        x.ok &= ~(1u << l);
        continue;
      }
      x.host[l] =
          local ? &w.local[size_t(l) * size + a[l]] : &w.launch->params[a[l]];
      x.init[l] = local ? &w.localInit[size_t(l) * size + a[l]] : nullptr;
    }
    break;
  }
  default: {
    globalAccess(w, i, a, w.lanes, n, access, x);
    if (options.counters && access != Access::Atomic) {
      Counters::Global &g = access == Access::Store ? w.counters->globalStore
                                                    : w.counters->globalLoad;
      ++g.requests;
      g.sectors += countSectors(a, x.ok, n);
      g.bytes += u64(__builtin_popcount(x.ok)) * n;
    }
  }
  }
}

void kvcache::ptx::locate(Warp &w, const Instr &i, u64 *a, u32 n, Access access,
                          Where &x, u32 raceMask) {
  if (i.space != Space::Generic) {
    locateIn(i.space, w, i, a, n, access, x, raceMask);
    return;
  }
  // Lanes may point into different spaces: one after the other.
  const u32 lanes = w.lanes;
  Where all;
  for (u32 rest = lanes; rest; rest &= ~w.lanes) {
    const u64 window = a[__builtin_ctz(rest)] >> 48;
    const bool shared = window == sharedWindow >> 48,
               local = window == localWindow >> 48;
    const u64 start = shared ? sharedWindow : local ? localWindow : 0;
    w.lanes = 0;
    for (u32 m = rest; m; m &= m - 1) {
      int l = __builtin_ctz(m);
      const u64 other = a[l] >> 48;
      const bool same =
          start ? other == window
                : other != sharedWindow >> 48 && other != localWindow >> 48;
      if (!same)
        continue;
      w.lanes |= 1u << l;
      a[l] -= start;
    }
    locateIn(shared  ? Space::Shared
             : local ? Space::Local
                     : Space::Global,
             w, i, a, n, access, x, raceMask);
    if (w.lanes == lanes)
      return;
    for (u32 m = x.ok; m; m &= m - 1) {
      int l = __builtin_ctz(m);
      all.host[l] = x.host[l];
      all.init[l] = x.anyInit ? x.init[l] : nullptr;
    }
    all.ok |= x.ok;
    all.global |= x.global & w.lanes;
    all.anyInit |= x.anyInit;
  }
  w.lanes = lanes;
  x = all;
}

//===----------------------------------------------------------------------===//
// Loads and stores
//===----------------------------------------------------------------------===//

void kvcache::ptx::taintFromMemory(Warp &w, const Instr &i, const Where &x,
                                   u32 n) {
  u32 bad = 0;
  if (x.anyInit)
    for (u32 m = x.ok; m; m &= m - 1) {
      int l = __builtin_ctz(m);
      bad |= u32(x.init[l] && !allValid(x.init[l], n)) << l;
    }
  if (!bad) {
    if (w.taintLive)
      for (int e = 0; e < i.nd; ++e)
        w.clearTaint(i.d[e], x.ok);
    return;
  }
  for (int e = 0; e < i.nd; ++e) {
    if (!w.isRegister(i.d[e]))
      continue;
    bool wide = w.isWideSlot(i.d[e]);
    for (u32 m = x.ok; m; m &= m - 1) {
      int l = __builtin_ctz(m);
      u64 t = 0;
      if (bad >> l & 1) {
        const u8 *init = x.init[l] + e * i.width;
        for (int k = 0; k < i.width; ++k)
          if (!init[k])
            t |= 0xffull << (8 * k);
        if (i.signExtend && !init[i.width - 1] && i.width < 8)
          t |= ~0ull << (8 * i.width);
      }
      if (wide)
        w.shadowOf<u64>(i.d[e])[l] = t;
      else
        w.shadowOf<u32>(i.d[e])[l] = u32(t);
    }
    w.updateFlag(i.d[e]);
  }
}

template <class T, class R>
static inline void loadElement(Warp &w, u16 d, const Where &x, int e) {
  R *r = w.r<R>(d);
  auto one = [&](int l) {
    T v;
    memcpy(&v, x.host[l] + size_t(e) * sizeof(T), sizeof(T));
    r[l] = R(v);
  };
  if (x.ok == ~0u)
    for (int l = 0; l < 32; ++l)
      one(l);
  else
    for (u32 m = x.ok; m; m &= m - 1)
      one(__builtin_ctz(m));
}

template <class T>
static inline void loadNarrow(Warp &w, const Instr &i, const Where &x, int e) {
  bool wide = i.wide >> e & 1;
  using S = typename std::make_signed<T>::type;
  if (i.signExtend)
    wide ? loadElement<S, s64>(w, i.d[e], x, e)
         : loadElement<S, s32>(w, i.d[e], x, e);
  else
    wide ? loadElement<T, u64>(w, i.d[e], x, e)
         : loadElement<T, u32>(w, i.d[e], x, e);
}

static void load(Warp &w, const Instr &i) {
  u64 a[32];
  Where x;
  readAddresses(w, i, 0, a);
  w.checkUse(i, i.s[0], w.lanes, "address");
  if (i.flags)
    w.notePoll();
  u32 n = u32(i.width) * i.vec;
  locate(w, i, a, n, Access::Load, x, ~0u);
  for (int e = 0; e < i.vec; ++e) {
    if (i.d[e] == none)
      continue;
    switch (i.width) {
    case 1:
      loadNarrow<u8>(w, i, x, e);
      break;
    case 2:
      loadNarrow<u16>(w, i, x, e);
      break;
    case 4:
      loadNarrow<u32>(w, i, x, e);
      break;
    default:
      loadElement<u64, u64>(w, i.d[e], x, e);
    }
  }
  if (w.launch->options.initcheck)
    taintFromMemory(w, i, x, n);
}

/// Element `e` of what lane `l` stores: the low bytes of a register, which may
/// be wider than the type.
static const u8 *storedBytes(const Warp &w, const Instr &i, int e, int l) {
  u16 slot = i.s[1 + e];
  return (const u8 *)(i.width == 8 || w.isWideSlot(slot)
                          ? (const void *)&w.r<u64>(slot)[l]
                          : (const void *)&w.r<u32>(slot)[l]);
}

/// Whether two of the addresses are the same; those of lanes that do not store
/// count as well.
static bool anyEqual(const u64 *a) {
  u64 twice[64], equal = 0;
  memcpy(twice, a, 256);
  memcpy(twice + 32, a, 256);
  for (int distance = 1; distance <= 16; ++distance)
    KVCACHE_FOR_LANES equal |= u64(twice[l] == twice[l + distance]);
  return equal;
}

/// Lanes that store the same values to the address of an earlier lane: one of
/// them is enough for the race checker.
static u32 duplicateStores(Warp &w, const Instr &i, const u64 *a) {
  if (!anyEqual(a))
    return 0;
  u32 duplicates = 0;
  for (int l = 1; l < 32; ++l) {
    if (!(w.lanes >> l & 1))
      continue;
    for (int k = l - 1; k >= 0 && !(duplicates >> l & 1); --k) {
      if (!(w.lanes >> k & 1) || a[k] != a[l])
        continue;
      bool same = true;
      for (int e = 0; e < i.vec; ++e)
        same &= memcmp(storedBytes(w, i, e, l), storedBytes(w, i, e, k),
                       i.width) == 0;
      if (!same)
        break;
      duplicates |= 1u << l;
    }
  }
  return duplicates;
}

/// Marks stored bytes as valid, or as not valid where the value is not.
static void storeInit(Warp &w, const Instr &i, const Where &x, const u64 *a,
                      u32 n) {
  bool tainted = false;
  if (w.taintLive)
    for (int e = 0; e < i.vec; ++e)
      tainted |= (w.laneTaint(i.s[1 + e]) & x.ok) != 0;
  if (!tainted) {
    if (x.anyInit)
      for (u32 m = x.ok; m; m &= m - 1) {
        int l = __builtin_ctz(m);
        if (x.init[l])
          markValid(x.init[l], n);
      }
    return;
  }
  for (u32 m = x.ok; m; m &= m - 1) {
    int l = __builtin_ctz(m);
    bool bad = false;
    for (int e = 0; e < i.vec; ++e) {
      u64 t = 0;
      u16 slot = i.s[1 + e];
      if (w.isRegister(slot) && w.flags[slot])
        t = w.isWideSlot(slot) ? w.shadowOf<u64>(slot)[l]
                               : w.shadowOf<u32>(slot)[l];
      for (int k = 0; k < i.width; ++k) {
        bool valid = !(t >> (8 * k) & 0xff);
        bad |= !valid;
        if (x.anyInit && x.init[l])
          x.init[l][e * i.width + k] = valid;
      }
    }
    if (!bad || !(x.global >> l & 1))
      continue;
    Buffer *b = w.cta->findBuffer(a[l], a[l] + n);
    if (b && b->uninitStore == UninitStore::Report)
      w.report(FindingKind::Uninitialised, i, l,
               "stores to buffer " + b->name + ", offset " +
                   std::to_string(a[l] - b->address) +
                   ", a value that depends on bytes that nobody wrote",
               a[l], b->name);
  }
}

static void store(Warp &w, const Instr &i) {
  u64 a[32];
  Where x;
  readAddresses(w, i, 0, a);
  w.checkUse(i, i.s[0], w.lanes, "address");
  u32 n = u32(i.width) * i.vec, raceMask = ~0u;
  if ((i.space == Space::Shared || i.space == Space::Generic) &&
      w.launch->options.racecheck)
    raceMask = ~duplicateStores(w, i, a);
  locate(w, i, a, n, Access::Store, x, raceMask);
  for (int e = 0; e < i.vec; ++e) {
    const u8 *from = storedBytes(w, i, e, 0);
    const ptrdiff_t step = storedBytes(w, i, e, 1) - from;
    for (u32 m = x.ok; m; m &= m - 1) {
      int l = __builtin_ctz(m);
      memcpy(x.host[l] + e * i.width, from + l * step, i.width);
    }
  }
  if (w.launch->options.initcheck)
    storeInit(w, i, x, a, n);
}

static void fence(Warp &w, const Instr &) {
  if (!w.launch->globalRace)
    return;
  GlobalRaceChecker::releaseFence(w);
  GlobalRaceChecker::acquireFence(w);
}
static void nothing(Warp &, const Instr &) {}

static void releaseStore(Warp &w, const Instr &i) {
  if (w.launch->globalRace)
    GlobalRaceChecker::releaseFence(w);
  store(w, i);
}
static void acquireLoad(Warp &w, const Instr &i) {
  load(w, i);
  if (w.launch->globalRace)
    GlobalRaceChecker::acquireFence(w);
}

//===----------------------------------------------------------------------===//
// Lowering
//===----------------------------------------------------------------------===//

Space kvcache::ptx::spaceOf(const Statement &s) {
  for (const std::string &p : s.parts) {
    if (p == "global")
      return Space::Global;
    if (p.rfind("shared", 0) == 0)
      return Space::Shared;
    if (p == "local")
      return Space::Local;
    if (p.rfind("param", 0) == 0)
      return Space::Param;
    if (p == "const")
      return Space::Const;
  }
  return Space::Generic;
}

void kvcache::ptx::lowerAddress(Builder &b, const Operand &o, Instr &i, int n) {
  if (o.kind != Operand::Addr)
    throw SyntaxError("an address in brackets is expected here");
  i.imm = o.offset;
  i.addr64 = true;
  if (o.elements.empty()) {
    i.s[n] = b.constant(0, 2);
  } else if (o.elements[0].kind == Operand::Reg) {
    i.s[n] = u16(o.elements[0].id);
    i.addr64 = b.isWide(o.elements[0]);
  } else {
    Symbol symbol = b.symbol(o.elements[0].name);
    i.s[n] = b.constant(symbol.address, 2);
    // .param variables of an inlined function are local memory.
    if (symbol.space == Space::Local && i.space == Space::Param)
      i.space = Space::Local;
  }
}

bool kvcache::ptx::lowerMemory(Builder &b, const Statement &s, Instr &i) {
  const std::string &op = s.op();
  const std::vector<Operand> &o = s.operands;
  if (op == "ld" || op == "st" || op == "ldu") {
    Type t = s.type();
    if (!onlyParts(s, "global shared shared::cta local param param::entry "
                      "param::func const volatile relaxed acquire release weak "
                      "cta gpu sys nc ca cg cs lu cv wb wt v2 v4 v8 "
                      "L1::evict_normal L1::evict_first L1::evict_last "
                      "L1::evict_unchanged L1::no_allocate L2::evict_last "
                      "L2::evict_first L2::evict_normal L2::64B L2::128B "
                      "L2::256B L2::cache_hint unified") ||
        !t.kind || t.kind == 'p' || o.size() < 2)
      return false;
    i.taint = TaintRule::Own;
    i.space = spaceOf(s);
    i.strong = s.has("volatile") || s.has("relaxed") || s.has("acquire") ||
               s.has("release");
    i.flags = i.strong; // a load that may wait for others
    if (i.space == Space::Shared && s.has("volatile"))
      i.strong = false; // volatile alone orders no lanes
    bool stores = op == "st";
    const Operand &address = stores ? o[0] : o[1];
    const Operand &value = stores ? o[1] : o[0];
    i.width = u8(std::max(1, t.bits / 8));
    i.signExtend = t.kind == 's';
    i.vec = s.has("v8") ? 8 : s.has("v4") ? 4 : s.has("v2") ? 2 : 1;
    // 256 bits: global memory only.
    if (i.width * i.vec > 16 &&
        (i.width * i.vec > 32 || i.space != Space::Global || i.strong))
      return false;
    lowerAddress(b, address, i, 0);
    i.ns = 1;
    std::vector<Operand> values = value.kind == Operand::Vec
                                      ? value.elements
                                      : std::vector<Operand>{value};
    if (int(values.size()) != i.vec)
      return false;
    for (int e = 0; e < i.vec; ++e)
      if (stores) {
        i.s[1 + e] = b.source(values[size_t(e)], t.units());
        ++i.ns;
      } else {
        i.d[e] = b.destination(values[size_t(e)], t.units());
        ++i.nd;
      }
    bool wide = !s.has("cta");
    i.fn = stores ? (wide && s.has("release") ? releaseStore : store)
                  : (wide && s.has("acquire") ? acquireLoad : load);
    switch (i.space) {
    case Space::Shared:
      i.cls = stores ? InstrClass::StoreShared : InstrClass::LoadShared;
      break;
    case Space::Local:
      i.cls = InstrClass::Local;
      break;
    case Space::Param:
      i.cls = InstrClass::Param;
      break;
    default:
      i.cls = stores ? InstrClass::StoreGlobal : InstrClass::LoadGlobal;
    }
    if (i.space == Space::Shared || i.space == Space::Generic)
      b.kernel.minSharedAccess =
          std::min<u8>(b.kernel.minSharedAccess, u8(i.width * i.vec));
    return true;
  }
  if (op == "fence" || op == "membar") {
    i.taint = TaintRule::Own;
    i.cls = InstrClass::Other;
    bool wide = s.has("gpu") || s.has("sys") || s.has("gl");
    if (s.has("proxy") || !wide)
      i.fn = nothing;
    else
      i.fn = fence;
    return true;
  }
  if (op == "prefetch" || op == "prefetchu" || op == "discard" ||
      op == "applypriority" || op == "griddepcontrol" || op == "nanosleep" ||
      op == "setmaxnreg" || op == "pmevent") {
    i.taint = TaintRule::Own;
    i.cls = InstrClass::Other;
    i.fn = nothing;
    return true;
  }
  return false;
}
