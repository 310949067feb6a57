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
    std::vector<Warp *> participants;
    for (Warp &w : warps)
      if (w.state == Warp::AtBarrier && w.barrierId == id)
        participants.push_back(&w);
    Released arrived = std::move(namedBarriers[id].released);
    namedBarriers.erase(id);
    // Warps that have ended count for barriers of the whole block only.
    bool all = waiting + (first.barrierCount ? 0 : done) == warps.size();
    barrier(participants, &arrived, all);
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

static u64 mix(u64 x) { // splitmix64
  x += 0x9e3779b97f4a7c15ull;
  x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ x >> 27) * 0x94d049bb133111ebull;
  return x ^ x >> 31;
}

/// The n-th block of a random order of `total` blocks: a Feistel network over
/// the next power of four, walked until it is inside.
static u64 permuted(u64 n, u64 total, u64 seed) {
  if (!seed)
    return n;
  int half = 1;
  while (1ull << 2 * half < total)
    ++half;
  const u64 mask = (1ull << half) - 1;
  do {
    u64 left = n >> half, right = n & mask;
    for (u64 round = 0; round < 4; ++round) {
      u64 next = left ^ (mix(seed ^ mix(right << 2 | round)) & mask);
      left = right;
      right = next;
    }
    n = left << half | right;
  } while (n >= total);
  return n;
}

/// A round lets each warp that is ready run for one turn.
void Cta::orderWarps(std::vector<u32> &order) {
  const LaunchOptions &options = launch->options;
  for (Warp &w : warps)
    w.turn = options.quantum;
  if (!options.seed)
    return;
  for (size_t n = order.size(); n > 1; --n)
    std::swap(order[n - 1], order[(random = mix(random)) % n]);
  if (options.quantum)
    return;
  for (Warp &w : warps) { // 1 to 1,024 instructions, short turns more often
    random = mix(random);
    w.turn = 1 + (random >> 8) % (1ull << random % 11);
  }
}

void Cta::run() {
  const Dim3 &b = launch->block;
  random = mix(launch->options.seed ^ mix(index));
  std::vector<u32> order(warps.size());
  for (u32 w = 0; w < order.size(); ++w)
    order[w] = w;
  std::fill(shared.begin(), shared.end(), 0xEE);
  if (launch->options.initcheck)
    std::fill(init.begin(), init.end(), 0);
  ++generation;
  bulkJobs.clear();
  pendingBytes.clear();
  namedBarriers.clear();
  mbarrierOrder.clear();
  readSets.clear();
  readSetIds.clear();
  u32 threads = b.x * b.y * b.z;
  for (u32 w = 0; w < warps.size(); ++w)
    warps[w].setup(*this, w, std::min(32u, threads - w * 32));
  u64 idle = 0;
  for (;;) {
    bool anyReady = false, moved = false;
    size_t done = 0;
    orderWarps(order);
    for (u32 n : order) {
      Warp &w = warps[n];
      if (w.state == Warp::Ready) {
        anyReady = true;
        w.run();
        // A warp that polls an mbarrier takes a few steps a turn for ever.
        moved |= w.stepsSinceYield > 64 || w.state != Warp::Ready;
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
    if (anyReady && idle <= 5000)
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
  if (options.racecheck && (total > 1 || threads > 32))
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
    c.partialOrder = kernel.partialOrder && options.racecheck;
    if (options.racecheck) {
      size_t granules = size_t(sharedBytes) / 16 + 2;
      c.cells.assign(granules, RaceCell{});
      c.fineCells.assign(granules * (16u >> c.cellShift), RaceCell{});
    }
    if (options.regions && options.counters)
      c.profile.resize(kernel.code.size());
    for (;;) {
      u64 n = next++;
      if (n >= total)
        break;
      c.index = n = permuted(n, total, options.seed);
      c.x = u32(n % grid.x);
      c.y = u32(n / grid.x % grid.y);
      c.z = u32(n / grid.x / grid.y);
      c.run();
      for (Warp &w : c.warps)
        steps += w.steps;
    }
    std::lock_guard<std::mutex> guard(reportLock);
    report.counters.add(c.counters);
    for (size_t pc = 0; pc < c.profile.size(); ++pc)
      profile[pc].add(c.profile[pc]);
  };
  if (options.regions && options.counters)
    profile.resize(kernel.code.size());
  std::vector<std::thread> helpers;
  for (u32 t = 1; t < options.threads && t < total; ++t)
    helpers.emplace_back(work);
  work();
  for (std::thread &t : helpers)
    t.join();
  report.blocks = total;
  report.findingCount = findingCount;
  if (!profile.empty())
    fillRegions(report, kernel, profile);
  report.counters.instructions = steps;
  report.seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start)
          .count();
}
