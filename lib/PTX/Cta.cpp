//===- Cta.cpp - Blocks, their barriers, and launches ---------------------===//

#include "GlobalRace.h"

#include <algorithm>
#include <chrono>
#include <thread>

using namespace kvcache::ptx;

Buffer *Cta::findBuffer(u64 lo, u64 hi) {
  if (lastBuffer && lastBuffer->contains(lo, hi))
    return lastBuffer;
  std::vector<Buffer *> &all = launch->buffers;
  auto it = std::upper_bound(
      all.begin(), all.end(), lo,
      [](u64 value, const Buffer *b) { return value < b->address; });
  if (it == all.begin() || !(*--it)->contains(lo, hi))
    return nullptr;
  return lastBuffer = *it;
}

/// Lets the warps of one complete barrier go on. False: none is complete.
bool Cta::releaseBarrier() {
  u32 done = 0;
  for (Warp &w : warps)
    done += w.state == Warp::Done;
  for (Warp &first : warps) {
    if (first.state != Warp::AtBarrier)
      continue;
    u32 id = first.barrierId, waiting = 0, threads = 0;
    for (Warp &w : warps)
      if (w.state == Warp::AtBarrier && w.barrierId == id) {
        ++waiting;
        threads += 32;
      }
    threads += namedBarriers.count(id) ? namedBarriers[id].arrived : 0;
    bool complete = first.barrierCount ? threads >= first.barrierCount
                                       : waiting + done == warps.size();
    if (!complete)
      continue;
    namedBarriers.erase(id);
    nextGeneration();
    // barrier.red: combine the predicates of all participating threads.
    const Instr &i = *first.barrierInstr;
    if (i.flags & 2) {
      u32 any = 0, all = 1, population = 0;
      for (Warp &w : warps)
        if (w.state == Warp::AtBarrier && w.barrierId == id) {
          u32 p = w.predicates[i.ps];
          p = (i.psNeg ? ~p : p) & w.barrierLanes;
          any |= p != 0;
          all &= p == w.barrierLanes;
          population += u32(__builtin_popcount(p));
        }
      for (Warp &w : warps)
        if (w.state == Warp::AtBarrier && w.barrierId == id) {
          u32 lanes = w.barrierLanes;
          if (i.pd[0] != none) {
            u32 v = (i.flags & 4) ? any : all;
            u32 &p = w.predicates[i.pd[0]];
            p = (p & ~lanes) | (v ? lanes : 0);
            if (w.taintLive)
              w.setPredicateTaint(i.pd[0], 0);
          } else {
            for (int l = 0; l < 32; ++l)
              if (lanes >> l & 1)
                w.r<u32>(i.d[0])[l] = population;
            w.clearTaint(i.d[0], lanes);
          }
        }
    }
    for (Warp &w : warps)
      if (w.state == Warp::AtBarrier && w.barrierId == id)
        w.state = Warp::Ready;
    return true;
  }
  return false;
}

void Cta::run() {
  const Dim3 &b = launch->block;
  std::fill(shared.begin(), shared.end(), 0xEE);
  if (launch->options.initcheck)
    std::fill(init.begin(), init.end(), 0);
  ++generation;
  bulkJobs.clear();
  pendingBytes.clear();
  namedBarriers.clear();
  u32 threads = b.x * b.y * b.z;
  for (u32 w = 0; w < warps.size(); ++w)
    warps[w].setup(*this, w, std::min(32u, threads - w * 32));
  u64 idle = 0;
  for (;;) {
    bool anyReady = false, moved = false;
    size_t done = 0;
    for (Warp &w : warps) {
      if (w.state == Warp::Ready) {
        anyReady = true;
        u64 before = w.steps;
        w.run();
        // A warp that polls an mbarrier takes a few steps a turn for ever.
        moved |= w.steps - before > 64 || w.state != Warp::Ready;
      }
      done += w.state == Warp::Done;
    }
    if (done == warps.size())
      return;
    if (releaseBarrier()) {
      idle = 0;
      continue;
    }
    idle = moved ? 0 : idle + 1;
    if (anyReady && idle <= 100000)
      continue;
    for (Warp &w : warps) {
      if (w.state == Warp::Done)
        continue;
      bool waits = w.state == Warp::AtBarrier;
      w.report(FindingKind::Deadlock,
               waits ? *w.barrierInstr : kernel->code[size_t(w.pc)], 0,
               waits ? "warps wait at a barrier that the others never reach"
                     : "no warp makes progress");
      return;
    }
  }
}

Launch::Launch(const ModuleImpl &m, const Kernel &k) : module(m), kernel(k) {}
Launch::~Launch() = default;

void Launch::run() {
  auto start = std::chrono::steady_clock::now();
  u32 threads = block.x * block.y * block.z;
  u64 total = u64(grid.x) * grid.y * grid.z;
  if (options.racecheck && total > 1)
    globalRace = std::make_unique<GlobalRaceChecker>(*this, total);
  auto work = [&] {
    Cta c;
    c.launch = this;
    c.kernel = &kernel;
    c.warps.resize((threads + 31) / 32);
    c.sharedBytes = sharedBytes;
    c.shared.resize(sharedBytes + 64);
    c.init.resize(sharedBytes + 64);
    // Cells are as small as the smallest shared-memory access of the kernel.
    for (c.cellShift = 4; (1 << c.cellShift) > kernel.minSharedAccess;)
      --c.cellShift;
    if (options.racecheck) {
      size_t granules = size_t(sharedBytes) / 16 + 2;
      c.cells.assign(granules, RaceCell{});
      c.fineCells.assign(granules * (16u >> c.cellShift), RaceCell{});
    }
    for (;;) {
      u64 n = next++;
      if (n >= total)
        break;
      c.index = n;
      c.x = u32(n % grid.x);
      c.y = u32(n / grid.x % grid.y);
      c.z = u32(n / grid.x / grid.y);
      c.run();
      for (Warp &w : c.warps)
        steps += w.steps;
    }
    std::lock_guard<std::mutex> guard(reportLock);
    report.counters.add(c.counters);
  };
  std::vector<std::thread> helpers;
  for (u32 t = 1; t < options.threads && t < total; ++t)
    helpers.emplace_back(work);
  work();
  for (std::thread &t : helpers)
    t.join();
  report.blocks = total;
  report.findingCount = findingCount;
  report.counters.instructions = steps;
  report.seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start)
          .count();
}
