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
  waitCopies(w, w.lanes, u32(i.imm));
}

//===----------------------------------------------------------------------===//
// mbarrier and 1-D bulk copies
//===----------------------------------------------------------------------===//

namespace {
/// The 64-bit mbarrier object; outstanding bytes are kept beside it.
struct Mbarrier {
  u16 expected, pending;
  u32 phase;
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
  }
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
      *b = {u16(count[l]), u16(count[l]), 0};
      w.cta->pendingBytes[a] = 0;
    }
  }
}

static void mbarrierArrive(Warp &w, const Instr &i) { // flags 1: expect_tx
  for (u32 m = w.lanes; m; m &= m - 1) {
    int l = __builtin_ctz(m);
    u32 a = mbarrierAddress(w, i, l);
    Mbarrier *b = mbarrierAt(w, i, l, a);
    if (!b)
      continue;
    if (i.flags & 1)
      w.cta->pendingBytes[a] += w.r<u32>(i.s[1])[l];
    if (!(i.flags & 2)) { // not a bare expect_tx
      if (!b->pending)
        w.report(FindingKind::Sync, i, l,
                 "more arrivals at this mbarrier than its count", a, "shared");
      else
        --b->pending;
    }
    completePhase(*w.cta, a);
  }
}

static void landBulk(Warp &w, const BulkJob &job) {
  Cta &c = *w.cta;
  u32 offset = job.destination - sharedStart;
  memcpy(&c.shared[offset], job.source, job.bytes);
  if (w.launch->options.initcheck) {
    memset(&c.init[offset], 1, job.bytes);
    if (job.sourceInit)
      memcpy(&c.init[offset], job.sourceInit, job.bytes);
  }
  if (w.launch->options.racecheck)
    c.noteBulkLanded(job.destination, job.bytes);
  c.pendingBytes[job.barrier] -= job.bytes;
  completePhase(c, job.barrier);
}

/// The first failed try lets late copies land.
static void mbarrierTryWait(Warp &w, const Instr &i) {
  const u32 *parity = w.r<u32>(i.s[1]);
  u32 ready = 0;
  Cta &c = *w.cta;
  if (!w.lanes)
    return;
  for (u32 m = w.lanes; m; m &= m - 1) {
    int l = __builtin_ctz(m);
    if (Mbarrier *b = mbarrierAt(w, i, l, mbarrierAddress(w, i, l)))
      ready |= u32((b->phase & 1) != (parity[l] & 1)) << l;
    else
      ready |= 1u << l; // reported; polling it for ever would help nobody
  }
  if (ready != w.lanes) {
    for (u32 m = w.lanes & ~ready; m; m &= m - 1) {
      u32 a = mbarrierAddress(w, i, __builtin_ctz(m));
      for (size_t q = 0; q < c.bulkJobs.size();)
        if (c.bulkJobs[q].barrier == a) {
          BulkJob job = c.bulkJobs[q];
          c.bulkJobs.erase(c.bulkJobs.begin() + long(q));
          landBulk(w, job);
        } else {
          ++q;
        }
    }
    w.yield = true;
  }
  putPredicate(w, i.pd[0], ready);
  if (w.taintLive)
    w.setPredicateTaint(i.pd[0], w.predicateTaint[i.pd[0]] & ~w.lanes);
}

static void mbarrierInvalidate(Warp &, const Instr &) {}

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
               from[l]);
    Buffer *b = c.findBuffer(from[l], from[l] + n);
    if (!b) {
      w.report(FindingKind::OutOfBounds, i, l,
               "bulk copy of " + std::to_string(n) + " bytes from " +
                   hex(from[l]) + ", which is not inside one buffer",
               from[l]);
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
    if (options.racecheck) {
      u64 target[32];
      target[l] = to[l];
      c.noteWrites(w, i, target, 1u << l, n, true);
    }
    if (options.counters) {
      ++w.counters->asyncCopy.requests;
      w.counters->asyncCopy.sectors += n / 32;
      w.counters->asyncCopy.bytes += n;
    }
    BulkJob job = {to[l],
                   n,
                   barrier[l],
                   w.id * 32 + u32(l),
                   b->host + (from[l] - b->address),
                   b->initAt(from[l])};
    if (options.lateCopies)
      c.bulkJobs.push_back(job);
    else
      landBulk(w, job);
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
                    "shared shared::cta release acquire relaxed cta"))
    return false;
  if (s.has("init")) {
    lowerAddress(b, o[0], i, 0);
    i.s[1] = b.source(o[1], 1);
    i.ns = 2;
    i.fn = mbarrierInit;
    return true;
  }
  if (s.has("inval")) {
    i.fn = mbarrierInvalidate;
    return true;
  }
  if (s.has("try_wait") || s.has("test_wait")) {
    if (!s.has("parity") || o[0].kind != Operand::Pred)
      return false;
    lowerAddress(b, o[1], i, 0);
    i.s[1] = b.source(o[2], 1);
    i.ns = 2;
    i.pd[0] = u16(o[0].id);
    i.fn = mbarrierTryWait;
    i.control = Control::Wait;
    return true;
  }
  if (s.has("arrive") || s.has("expect_tx")) {
    bool arrives = s.has("arrive");
    size_t first = arrives ? 1 : 0;
    if (arrives && o[0].kind != Operand::Sink)
      return false; // a state token
    lowerAddress(b, o[first], i, 0);
    i.ns = 1;
    if (s.has("expect_tx")) {
      i.flags = arrives ? 1 : 3;
      i.s[1] = b.source(o[first + 1], 1);
      i.ns = 2;
    } else if (o.size() > 2) {
      return false;
    }
    i.fn = mbarrierArrive;
    return true;
  }
  return false;
}

bool kvcache::ptx::lowerAsyncCopy(Builder &b, const Statement &s, Instr &i) {
  const std::vector<Operand> &o = s.operands;
  i.taint = TaintRule::Own;
  if (s.op() == "cp" && s.has("async") && !s.has("bulk"))
    return lowerCpAsync(b, s, i);
  if (s.op() == "mbarrier")
    return lowerMbarrier(b, s, i);
  if (s.op() != "cp" || !s.has("bulk"))
    return false;
  if (s.has("prefetch")) {
    i.fn = mbarrierInvalidate; // no effect here
    i.cls = InstrClass::Other;
    return !s.has("tensor");
  }
  bool toShared = s.parts.size() > 3 && (s.parts[3] == "shared::cluster" ||
                                         s.parts[3] == "shared::cta");
  if (s.has("tensor") || s.has("multicast::cluster") || !toShared ||
      !s.has("global") || o.size() != 4)
    return false;
  i.cls = InstrClass::CpAsync;
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
