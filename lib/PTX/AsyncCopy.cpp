//===- AsyncCopy.cpp - cp.async, mbarrier and bulk copies -----------------===//

#include "GlobalRace.h"
#include "Lanes.h"
#include "Statement.h"

#include <algorithm>

using namespace kvcache::ptx;

//===----------------------------------------------------------------------===//
// cp.async
//===----------------------------------------------------------------------===//

static void copyInit(u8 *to, const u8 *from, u32 n) {
  if (from)
    memcpy(to, from, n);
  else
    markValid(to, n);
}

static void land(Warp &w, const CopyJob &job, u32 mask) {
  Cta &c = *w.cta;
  const bool track = w.launch->options.initcheck;
  for (u32 m = mask; m; m &= m - 1) {
    int l = __builtin_ctz(m);
    u32 offset = job.destination[l] - sharedStart, n = job.count[l];
    u8 *to = &c.shared[offset];
    if (n == 16) {
      memcpy(to, job.source[l], 16);
    } else {
      if (n)
        memcpy(to, job.source[l], n);
      memset(to + n, 0, job.bytes - n);
    }
    if (!track)
      continue;
    markValid(&c.init[offset], job.bytes);
    if (n && job.sourceInit[l])
      memcpy(&c.init[offset], job.sourceInit[l], n);
  }
}

static void copyAsync(Warp &w, const Instr &i) {
  u64 to[32], from[32];
  Where x;
  const LaunchOptions &options = w.launch->options;
  const u32 n = i.width;
  const u64 toOffset = u64(s64(s32(u32(i.imm)))), fromOffset = u64(i.imm >> 32);
  if (i.wide & 1) {
    const u64 *base = w.r<u64>(i.s[0]);
    KVCACHE_FOR_LANES to[l] = base[l] + toOffset;
  } else {
    const u32 *base = w.r<u32>(i.s[0]);
    KVCACHE_FOR_LANES to[l] = u32(base[l] + toOffset);
  }
  const u64 *source = w.r<u64>(i.s[1]);
  KVCACHE_FOR_LANES from[l] = source[l] + fromOffset;
  w.checkUse(i, i.s[0], w.lanes, "shared address");
  w.checkUse(i, i.s[1], w.lanes, "global address");
  const u32 *size = i.ns > 2 ? w.r<u32>(i.s[2]) : nullptr;
  u32 mask = w.lanes, reads = mask;
  if (size) {
    w.checkUse(i, i.s[2], w.lanes, "source size");
    reads = 0;
    for (u32 m = mask; m; m &= m - 1) {
      int l = __builtin_ctz(m);
      reads |= u32(size[l] > 0) << l;
    }
  }
  if (reads)
    globalAccess(w, i, from, reads, n, Access::AsyncRead, x);
  mask = (mask & ~reads) | x.ok;
  mask = sharedAccess(w, i, to, mask, n, Access::Store, true);
  if (options.counters) {
    ++w.counters->asyncCopy.requests;
    w.counters->asyncCopy.sectors += countSectors(from, x.ok, n);
    w.counters->asyncCopy.bytes += u64(__builtin_popcount(x.ok)) * n;
    countWavefronts(w.counters->asyncWrite, to, mask, n);
    u32 bytes = u32(__builtin_popcount(x.ok)) * n;
    w.openBytes += bytes;
    w.bytesInFlight += bytes;
    u64 &peak = w.counters->inFlight.peak;
    peak = std::max(peak, u64(w.bytesInFlight));
  }
  Cta &c = *w.cta;
  if (!options.lateCopies && !options.racecheck && !size && n == 16 &&
      mask == x.ok) { // nothing to remember
    for (u32 m = mask; m; m &= m - 1) {
      int l = __builtin_ctz(m);
      memcpy(&c.shared[to[l] - sharedStart], x.host[l], 16);
      if (options.initcheck)
        copyInit(&c.init[to[l] - sharedStart], x.anyInit ? x.init[l] : nullptr,
                 16);
    }
    return;
  }
  w.jobs.emplace_back();
  CopyJob &job = w.jobs.back();
  job.mask = mask;
  job.bytes = u8(n);
  job.group = w.committed[__builtin_ctz(w.lanes)];
  for (u32 m = mask; m; m &= m - 1) {
    int l = __builtin_ctz(m);
    bool full = reads >> l & 1;
    job.destination[l] = u32(to[l]);
    job.source[l] = full ? x.host[l] : nullptr;
    job.sourceInit[l] = full && x.anyInit ? x.init[l] : nullptr;
    job.count[l] = u8(full ? (size ? std::min(size[l], n) : n) : 0);
  }
  if (options.lateCopies)
    return;
  land(w, job, mask);
  if (!options.racecheck)
    w.jobs.pop_back();
}

static void commitGroup(Warp &w, const Instr &) {
  for (u32 m = w.lanes; m; m &= m - 1)
    ++w.committed[__builtin_ctz(m)];
  w.groupBytes.push_back(w.openBytes);
  w.openBytes = 0;
}

/// The estimate of the bytes in flight goes by the warp, not by its lanes.
static void countWait(Warp &w, u32 groupsLeft) {
  Counters::InFlight &c = w.counters->inFlight;
  c.atWait += w.bytesInFlight;
  ++c.waits;
  if (groupsLeft == ~0u) {
    w.openBytes = 0;
    groupsLeft = 0;
  }
  size_t done =
      w.groupBytes.size() - std::min<size_t>(w.groupBytes.size(), groupsLeft);
  w.groupBytes.erase(w.groupBytes.begin(), w.groupBytes.begin() + long(done));
  w.bytesInFlight = w.openBytes;
  for (u32 bytes : w.groupBytes)
    w.bytesInFlight += bytes;
}

/// groupsLeft = ~0: wait_all, which also covers copies not committed.
void kvcache::ptx::waitCopies(Warp &w, u32 mask, u32 groupsLeft) {
  const LaunchOptions &options = w.launch->options;
  for (size_t q = w.firstJob; q < w.jobs.size(); ++q) {
    CopyJob &job = w.jobs[q];
    u32 done = 0;
    for (u32 m = job.mask & mask; m; m &= m - 1) {
      int l = __builtin_ctz(m);
      if (groupsLeft == ~0u ||
          s64(job.group) < s64(w.committed[l]) - s64(groupsLeft))
        done |= 1u << l;
    }
    if (done) {
      if (options.lateCopies)
        land(w, job, done);
      if (options.racecheck)
        w.cta->noteLanded(w, job.destination, done, job.bytes);
      job.mask &= ~done;
    }
    if (!job.mask && q == w.firstJob)
      ++w.firstJob;
  }
  if (w.firstJob == w.jobs.size()) {
    w.jobs.clear();
    w.firstJob = 0;
  } else if (w.firstJob > 256) {
    w.jobs.erase(w.jobs.begin(), w.jobs.begin() + long(w.firstJob));
    w.firstJob = 0;
  }
}

static void waitGroup(Warp &w, const Instr &i) {
  if (w.launch->options.counters)
    countWait(w, u32(i.imm));
  waitCopies(w, w.lanes, u32(i.imm));
}

//===----------------------------------------------------------------------===//
// mbarrier and 1-D bulk copies
//===----------------------------------------------------------------------===//

namespace {
/// The 64-bit mbarrier object; outstanding bytes are kept beside it. A state
/// token is such an object as it was at the arrival.
struct Mbarrier {
  u64 expected : 20, pending : 20, phase : 24;
};
constexpr u32 maxArrivals = (1u << 20) - 1;

enum ArriveFlags {
  ExpectBytes = 1, // s[2]: bytes
  NoArrival = 2,   // a bare expect_tx
  Drop = 4,        // one expected arrival less from the next phase on
  NoComplete = 8,
  AfterCopies = 16, // cp.async.mbarrier.arrive
  Increments = 64,  // this arrival is expected on top
  Counted = 32      // s[1]: number of arrivals
};
} // namespace

static Mbarrier *mbarrierAt(Warp &w, const Instr &i, int lane, u32 a) {
  Cta &c = *w.cta;
  bool outside = a < sharedStart || a + 8 > sharedStart + c.sharedBytes;
  if (outside || (a & 7)) {
    w.report(outside ? FindingKind::OutOfBounds : FindingKind::Misaligned, i,
             lane, "mbarrier at shared address " + hex(a), a, "shared");
    return nullptr;
  }
  if (w.launch->options.initcheck && !allValid(&c.init[a - sharedStart], 8)) {
    w.report(FindingKind::Uninitialised, i, lane,
             "mbarrier at shared address " + hex(a) + " was not initialised", a,
             "shared");
    return nullptr;
  }
  return (Mbarrier *)&c.shared[a - sharedStart];
}

static void completePhase(Cta &c, u32 a) {
  Mbarrier *b = (Mbarrier *)&c.shared[a - sharedStart];
  if (b->pending == 0 && c.pendingBytes[a] == 0) {
    ++b->phase;
    b->pending = b->expected;
    if (c.tracksOrder()) {
      Cta::MbarrierOrder &order = c.mbarrierOrder[a];
      order.completed.join(order.arriving);
      order.arriving.clear();
    }
  }
}

/// mbarrier operations are atomic accesses of the object, its initialisation is
/// a plain write: the other threads need a barrier after it.
static void noteMbarrier(Warp &w, const Instr &i, int lane, u32 a, bool init) {
  if (!w.launch->options.racecheck)
    return;
  u64 address[32];
  address[lane] = a;
  if (init)
    w.cta->noteWrites(w, i, address, 1u << lane, 8, false);
  else
    w.cta->noteAtomics(w, i, address, 1u << lane, 8);
}

static u32 mbarrierAddress(const Warp &w, const Instr &i, int l) {
  return (i.addr64 ? u32(w.r<u64>(i.s[0])[l]) : w.r<u32>(i.s[0])[l]) +
         u32(i.imm);
}

static void mbarrierInit(Warp &w, const Instr &i) {
  const u32 *count = w.r<u32>(i.s[1]);
  for (u32 m = w.lanes; m; m &= m - 1) {
    int l = __builtin_ctz(m);
    u32 a = mbarrierAddress(w, i, l);
    if (a >= sharedStart && a + 8 <= sharedStart + w.cta->sharedBytes)
      markValid(&w.cta->init[a - sharedStart], 8);
    if (Mbarrier *b = mbarrierAt(w, i, l, a)) {
      noteMbarrier(w, i, l, a, true);
      if (!count[l] || count[l] > maxArrivals)
        w.report(FindingKind::Sync, i, l,
                 "mbarrier for " + std::to_string(count[l]) +
                     " arrivals; expected 1 to " + std::to_string(maxArrivals),
                 a, "shared");
      *b = {count[l], count[l], 0};
      w.cta->pendingBytes[a] = 0;
      w.cta->mbarrierOrder.erase(a);
    }
  }
}

static void mbarrierArrive(Warp &w, const Instr &i) {
  Cta &c = *w.cta;
  const u32 lanes = w.lanes;
  if (i.flags & AfterCopies) // all of this thread's have landed
    waitCopies(w, lanes, ~0u);
  // Lanes that arrive at one mbarrier release together.
  u32 last = 0;
  for (u32 m = lanes; m; m &= m - 1) {
    int l = __builtin_ctz(m);
    u32 a = mbarrierAddress(w, i, l);
    Mbarrier *b = mbarrierAt(w, i, l, a);
    if (!b)
      continue;
    noteMbarrier(w, i, l, a, false);
    if (i.nd) {
      memcpy(&w.r<u64>(i.d[0])[l], b, 8);
      if (w.taintLive)
        w.clearTaint(i.d[0], 1u << l);
    }
    if (i.flags & ExpectBytes)
      c.pendingBytes[a] += w.r<u32>(i.s[2])[l];
    if (!(i.flags & NoArrival)) {
      if (c.tracksOrder() && a != last) {
        u32 same = 0;
        for (u32 k = m; k; k &= k - 1)
          if (mbarrierAddress(w, i, __builtin_ctz(k)) == a)
            same |= k & (0 - k);
        c.release(w, same, c.mbarrierOrder[a].arriving);
        last = a;
      }
      u32 count = i.flags & Counted ? w.r<u32>(i.s[1])[l] : 1;
      if (i.flags & Increments)
        ++b->pending;
      if (count > b->pending || (i.flags & NoComplete && count == b->pending)) {
        w.report(FindingKind::Sync, i, l,
                 std::to_string(count) +
                     " arrivals at this mbarrier, which "
                     "expects " +
                     std::to_string(b->pending) +
                     (i.flags & NoComplete
                          ? " more in this phase; .noComplete must not end it"
                          : " more in this phase"),
                 a, "shared");
        continue;
      }
      if (i.flags & Drop)
        --b->expected;
      b->pending = b->pending - count;
    }
    completePhase(c, a);
  }
}

/// Arrivals that the phase of a state token still expected.
static void mbarrierPendingCount(Warp &w, const Instr &i) {
  const u64 *state = w.r<u64>(i.s[0]);
  u32 t[32];
  for (int l = 0; l < 32; ++l)
    t[l] = u32(state[l] >> 20 & maxArrivals);
  each<u32>(w, i.d[0], [&](int l) { return t[l]; });
}

static void landBulk(Warp &w, BulkJob &job) {
  Cta &c = *w.cta;
  u32 offset = job.destination - sharedStart;
  memcpy(&c.shared[offset], job.source, job.bytes);
  if (w.launch->options.initcheck) {
    memset(&c.init[offset], 1, job.bytes);
    if (job.sourceInit)
      memcpy(&c.init[offset], job.sourceInit, job.bytes);
  }
  job.landed = true;
  c.pendingBytes[job.barrier] -= job.bytes;
  completePhase(c, job.barrier);
}

/// A wait for the mbarrier at `a` has succeeded: copies of phases that are
/// complete are no longer in flight.
static void finishBulk(Warp &w, u32 a) {
  Cta &c = *w.cta;
  const Mbarrier *b = (const Mbarrier *)&c.shared[a - sharedStart];
  u64 all = 0;
  for (const BulkJob &job : c.bulkJobs)
    all += job.bytes;
  bool any = false;
  for (size_t q = 0; q < c.bulkJobs.size();) {
    const BulkJob job = c.bulkJobs[q];
    if (job.barrier != a || !job.landed || job.phase == b->phase) {
      ++q;
      continue;
    }
    any = true;
    c.bulkJobs.erase(c.bulkJobs.begin() + long(q));
    if (w.launch->options.racecheck)
      c.noteBulkLanded(job);
  }
  if (any && w.launch->options.counters) {
    w.counters->inFlight.atWait += all;
    ++w.counters->inFlight.waits;
  }
}

/// flags 1: s[1] is a parity, otherwise a state token. The first failed try
/// lets late copies land.
static void mbarrierTryWait(Warp &w, const Instr &i) {
  u32 ready = 0;
  Cta &c = *w.cta;
  if (!w.lanes)
    return;
  u32 last = 0;
  for (u32 m = w.lanes; m; m &= m - 1) {
    int l = __builtin_ctz(m);
    u32 a = mbarrierAddress(w, i, l);
    Mbarrier *b = mbarrierAt(w, i, l, a);
    if (!b) {
      ready |= 1u << l; // reported; polling it for ever would help nobody
      continue;
    }
    noteMbarrier(w, i, l, a, false);
    bool done = i.flags & 1 ? (b->phase & 1) != (w.r<u32>(i.s[1])[l] & 1)
                            : b->phase != u32(w.r<u64>(i.s[1])[l] >> 40);
    if (!done)
      continue;
    ready |= 1u << l;
    if (a == last)
      continue;
    last = a;
    finishBulk(w, a);
    auto order = c.mbarrierOrder.find(a);
    if (order != c.mbarrierOrder.end())
      c.acquire(w, order->second.completed);
  }
  if (ready != w.lanes) {
    for (u32 m = w.lanes & ~ready; m; m &= m - 1) {
      u32 a = mbarrierAddress(w, i, __builtin_ctz(m));
      for (BulkJob &job : c.bulkJobs)
        if (job.barrier == a && !job.landed)
          landBulk(w, job);
    }
    w.yield = true;
    w.notePoll();
  }
  putPredicate(w, i.pd[0], ready);
  if (w.taintLive)
    w.setPredicateTaint(i.pd[0], w.predicateTaint[i.pd[0]] & ~w.lanes);
}

/// From now on the bytes are nobody's; other uses need another init.
static void mbarrierInvalidate(Warp &w, const Instr &i) {
  for (u32 m = w.lanes; m; m &= m - 1) {
    int l = __builtin_ctz(m);
    u32 a = mbarrierAddress(w, i, l);
    if (!mbarrierAt(w, i, l, a))
      continue;
    noteMbarrier(w, i, l, a, false); // as libcu++ orders it: by atomics
    memset(&w.cta->init[a - sharedStart], 0, 8);
  }
}

static void nothing(Warp &, const Instr &) {}

/// Global to shared, one copy per active lane.
static void bulkCopy(Warp &w, const Instr &i) {
  const u32 *to = w.r<u32>(i.s[0]), *bytes = w.r<u32>(i.s[2]);
  const u64 *from = w.r<u64>(i.s[1]);
  const u32 *barrier = w.r<u32>(i.s[3]);
  Cta &c = *w.cta;
  const LaunchOptions &options = w.launch->options;
  const char *what[] = {"shared address", "global address", "size", "mbarrier"};
  for (int n = 0; n < 4; ++n)
    w.checkUse(i, i.s[n], w.lanes, what[n]);
  for (u32 m = w.lanes; m; m &= m - 1) {
    int l = __builtin_ctz(m);
    u32 n = bytes[l];
    if ((to[l] & 15) || (from[l] & 15) || (n & 15))
      w.report(FindingKind::Misaligned, i, l,
               "bulk copy of " + std::to_string(n) + " bytes from " +
                   hex(from[l]) + " to shared address " + hex(to[l]) +
                   "; all must be multiples of 16",
               from[l], bufferName(c, from[l]));
    Buffer *b = c.findBuffer(from[l], from[l] + n);
    if (!b) {
      reportOutside(w, i, l, from[l], n, Access::AsyncRead);
      continue;
    }
    if (to[l] < sharedStart || u64(to[l]) + n > sharedStart + c.sharedBytes) {
      w.report(FindingKind::OutOfBounds, i, l,
               "bulk copy of " + std::to_string(n) +
                   " bytes to shared address " + hex(to[l]),
               to[l], "shared");
      continue;
    }
    if (!n || !mbarrierAt(w, i, l, barrier[l]))
      continue;
    if (options.racecheck)
      c.noteBulkIssued(w, i, l, to[l], n);
    if (w.launch->globalRace && !b->readOnly)
      for (u32 done = 0; done < n; done += 16) {
        u64 address[32];
        address[l] = from[l] + done;
        w.launch->globalRace->access(w, i, address, 1u << l, 16, false);
      }
    if (options.counters) {
      ++w.counters->asyncCopy.requests;
      w.counters->asyncCopy.sectors += n / 32;
      w.counters->asyncCopy.bytes += n;
    }
    const Mbarrier *phase =
        (const Mbarrier *)&c.shared[barrier[l] - sharedStart];
    c.bulkJobs.push_back({to[l], n, barrier[l], w.id, phase->phase,
                          b->host + (from[l] - b->address), b->initAt(from[l]),
                          false});
    if (options.counters) {
      u64 all = 0;
      for (const BulkJob &job : c.bulkJobs)
        all += job.bytes;
      u64 &peak = w.counters->inFlight.peak;
      peak = std::max(peak, all);
    }
    if (!options.lateCopies)
      landBulk(w, c.bulkJobs.back());
  }
}

//===----------------------------------------------------------------------===//
// Lowering
//===----------------------------------------------------------------------===//

static bool lowerCpAsync(Builder &b, const Statement &s, Instr &i) {
  const std::vector<Operand> &o = s.operands;
  i.cls = InstrClass::CpAsync;
  if (s.has("commit_group")) {
    i.fn = commitGroup;
    return true;
  }
  if (s.has("wait_group")) {
    if (o.size() != 1 || o[0].kind != Operand::Imm)
      return false;
    i.imm = s64(o[0].imm);
    i.fn = waitGroup;
    return true;
  }
  if (s.has("wait_all")) {
    i.imm = 0xffffffff;
    i.fn = waitGroup;
    return true;
  }
  if (!onlyParts(s, "async ca cg shared shared::cta global L2::64B L2::128B "
                    "L2::256B L2::cache_hint") ||
      o.size() < 3 || o[2].kind != Operand::Imm)
    return false;
  Instr to, from;
  lowerAddress(b, o[0], to, 0);
  lowerAddress(b, o[1], from, 0);
  i.s[0] = to.s[0];
  i.s[1] = from.s[0];
  i.ns = 2;
  i.wide = to.addr64;
  i.flags = to.addr64;
  i.imm = s64(u64(from.imm) << 32 | (u64(to.imm) & 0xffffffff));
  i.width = u8(o[2].imm);
  if (i.width != 4 && i.width != 8 && i.width != 16)
    return false;
  size_t extra = s.has("L2::cache_hint") ? 1 : 0;
  if (o.size() > 3 + extra) {
    if (o[3].kind == Operand::Pred)
      return false; // ignore-src
    i.s[2] = b.source(o[3], 1);
    i.ns = 3;
  }
  i.fn = copyAsync;
  b.kernel.minSharedAccess = std::min<u8>(b.kernel.minSharedAccess, i.width);
  return true;
}

static bool lowerMbarrier(Builder &b, const Statement &s, Instr &i) {
  const std::vector<Operand> &o = s.operands;
  i.cls = InstrClass::Barrier;
  if (!onlyParts(s, "init inval arrive expect_tx try_wait test_wait parity "
                    "shared shared::cta release acquire relaxed cta "
                    "arrive_drop noComplete pending_count"))
    return false;
  b.kernel.partialOrder = true;
  b.kernel.minSharedAccess = std::min<u8>(b.kernel.minSharedAccess, 8);
  if (o.empty() || (s.has("init") && o.size() != 2))
    return false;
  if (s.has("init")) {
    lowerAddress(b, o[0], i, 0);
    i.s[1] = b.source(o[1], 1);
    i.ns = 2;
    i.fn = mbarrierInit;
    return true;
  }
  if (s.has("inval")) {
    lowerAddress(b, o[0], i, 0);
    i.ns = 1;
    i.fn = mbarrierInvalidate;
    return true;
  }
  if (s.has("pending_count")) {
    return lowerOperands(b, s, i, 1, {2}) &&
           choose(i, mbarrierPendingCount, InstrClass::Barrier,
                  TaintRule::Whole);
  }
  if (s.has("try_wait") || s.has("test_wait")) {
    // A third operand is a hint, how long to wait.
    if (o.size() < 3 || o[0].kind != Operand::Pred)
      return false;
    lowerAddress(b, o[1], i, 0);
    i.flags = s.has("parity");
    i.s[1] = b.source(o[2], i.flags ? 1 : 2);
    i.ns = 2;
    i.pd[0] = u16(o[0].id);
    i.fn = mbarrierTryWait;
    i.control = Control::Wait;
    return true;
  }
  const bool drops = s.has("arrive_drop");
  const bool arrives = s.has("arrive") || drops;
  if (!arrives && !s.has("expect_tx"))
    return false;
  size_t first = arrives ? 1 : 0;
  if (o.size() <= first)
    return false;
  if (arrives && o[0].kind == Operand::Reg) {
    i.d[0] = b.destination(o[0], 2);
    i.nd = 1;
  } else if (arrives && o[0].kind != Operand::Sink) {
    return false;
  }
  lowerAddress(b, o[first], i, 0);
  i.ns = 1;
  i.flags = u16((arrives ? 0 : NoArrival) | (drops ? Drop : 0) |
                (s.has("noComplete") ? NoComplete : 0));
  if (o.size() > first + 1) {
    bool bytes = s.has("expect_tx");
    i.flags |= bytes ? ExpectBytes : Counted;
    i.s[1] = i.s[2] = b.source(o[first + 1], 1);
    i.ns = 3;
  }
  i.fn = mbarrierArrive;
  return o.size() <= first + 2;
}

/// Arrives for the thread when its copies so far have landed. Without .noinc
/// the phase expects one arrival more for it.
static bool lowerCopyArrive(Builder &b, const Statement &s, Instr &i) {
  if (!onlyParts(s, "async mbarrier arrive noinc shared shared::cta") ||
      s.operands.size() != 1)
    return false;
  i.cls = InstrClass::Barrier;
  b.kernel.partialOrder = true;
  b.kernel.minSharedAccess = std::min<u8>(b.kernel.minSharedAccess, 8);
  lowerAddress(b, s.operands[0], i, 0);
  i.ns = 1;
  i.flags = u16(AfterCopies | (s.has("noinc") ? 0 : Increments));
  i.fn = mbarrierArrive;
  return true;
}

bool kvcache::ptx::lowerAsyncCopy(Builder &b, const Statement &s, Instr &i) {
  const std::vector<Operand> &o = s.operands;
  i.taint = TaintRule::Own;
  if (s.op() == "cp" && s.has("mbarrier") && s.has("arrive"))
    return lowerCopyArrive(b, s, i);
  if (s.op() == "cp" && s.has("async") && !s.has("bulk"))
    return lowerCpAsync(b, s, i);
  if (s.op() == "mbarrier")
    return lowerMbarrier(b, s, i);
  if (s.op() != "cp" || !s.has("bulk"))
    return false;
  if (s.has("prefetch")) {
    i.fn = nothing;
    i.cls = InstrClass::Other;
    return !s.has("tensor");
  }
  bool toShared = s.parts.size() > 3 && (s.parts[3] == "shared::cluster" ||
                                         s.parts[3] == "shared::cta");
  if (s.has("tensor") || s.has("multicast::cluster") || !toShared ||
      !s.has("global") || o.size() != 4)
    return false;
  i.cls = InstrClass::CpAsync;
  b.kernel.partialOrder = true;
  for (size_t n = 0; n < 4; ++n) {
    if (n == 2) {
      i.s[n] = b.source(o[n], 1);
      continue;
    }
    if (o[n].elements.size() != 1 || o[n].offset)
      return false;
    i.s[n] = b.source(o[n].elements[0], n == 1 ? 2 : 1);
  }
  i.ns = 4;
  i.fn = bulkCopy;
  return true;
}
