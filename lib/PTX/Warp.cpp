//===- Warp.cpp - Divergence and convergence of one warp ------------------===//
//
// Diverged lanes are kept in groups; the group with the smallest pc runs, and
// groups that meet at one pc merge. A .sync instruction waits for the lanes of
// its member mask; if they cannot come, that is a finding, and execution goes
// on with the lanes that are there. Lanes with different masks (tiles of a
// warp) execute it mask by mask.
//
// A group that polls memory while others could run lets the others go first now
// and then: the lane that it waits for may be one of them.
//
//===----------------------------------------------------------------------===//

#include "Execution.h"

#include <algorithm>

using namespace kvcache::ptx;

void Warp::report(FindingKind kind, const Instr &i, int lane,
                  const std::string &message, u64 address,
                  const std::string &buffer) {
  if (quiet)
    return;
  Launch &l = *launch;
  ++l.findingCount;
  std::lock_guard<std::mutex> guard(l.reportLock);
  for (Finding &f : l.report.findings)
    if (f.kind == kind && f.line == i.line) {
      ++f.count;
      return;
    }
  if (l.report.findings.size() >= 200)
    return;
  Finding f;
  f.kind = kind;
  f.kernel = kernel->info.name;
  f.line = i.line;
  if (i.line && i.line <= l.module.lines.size()) {
    const std::string &text = l.module.lines[i.line - 1];
    size_t begin = text.find_first_not_of(" \t\r");
    size_t end = text.find_last_not_of(" \t\r");
    if (begin != std::string::npos)
      f.text = text.substr(begin, end - begin + 1);
  }
  f.block = {cta->x, cta->y, cta->z};
  u32 t = id * 32 + u32(std::max(lane, 0));
  f.thread = {t % l.block.x, t / l.block.x % l.block.y,
              t / l.block.x / l.block.y};
  f.address = address;
  f.buffer = buffer;
  f.message = message;
  l.report.findings.push_back(std::move(f));
}

void Warp::setup(Cta &owner, u32 warp, u32 threads) {
  const Kernel &k = *owner.kernel;
  if (kernel != &k) { // the worker's first block: memory and constants
    // 64 bytes for alignment, and 256 are read and written at the last slot.
    kernel = &k;
    registerMemory.assign(size_t(k.totalUnits) * 128 + 320, 0);
    shadowMemory.assign(size_t(k.totalUnits) * 128 + 320, 0);
    flagMemory.assign(k.totalUnits + 1, 0);
    predicateMemory.assign(k.numPredicates + 1, 0);
    predicateTaintMemory.assign(k.numPredicates + 1, 0);
    auto aligned = [](std::vector<u8> &v) {
      return (u8 *)((uintptr_t(v.data()) + 63) & ~uintptr_t(63));
    };
    registers = aligned(registerMemory);
    shadow = aligned(shadowMemory);
    flags = flagMemory.data();
    predicates = predicateMemory.data();
    predicateTaint = predicateTaintMemory.data();
    for (size_t c = 0; c < k.constants.size(); ++c)
      for (int l = 0; l < 32; ++l)
        if (k.constants[c].units == 2)
          r<u64>(u16(k.constantUnit[c]))[l] = k.constants[c].bits;
        else
          r<u32>(u16(k.constantUnit[c]))[l] = u32(k.constants[c].bits);
    local.resize(size_t(k.info.localBytes) * 32);
    localInit.resize(local.size());
  }
  cta = &owner;
  launch = owner.launch;
  counters = &owner.counters;
  profile = owner.profile.empty() ? nullptr : owner.profile.data();
  id = warp;
  state = Ready;
  yield = forced = quiet = false;
  polls = 0;
  steps = stepsSinceYield = 0;
  pc = 0;
  nextMerge = INT32_MAX;
  others.clear();
  this->threads = alive = active = threads == 32 ? ~0u : (1u << threads) - 1;
  cta->startOrder(*this);
  jobs.clear();
  firstJob = 0;
  groupBytes.clear();
  openBytes = bytesInFlight = 0;
  std::fill(committed, committed + 32, 0);
  memset(registers, 0xcd, size_t(k.registerUnits) * 128);
  std::fill(localInit.begin(), localInit.end(), 0);
  if (taintLive) {
    memset(shadow, 0, size_t(k.registerUnits) * 128);
    std::fill(flagMemory.begin(), flagMemory.end(), 0);
    std::fill(predicateTaintMemory.begin(), predicateTaintMemory.end(), 0);
    taintLive = 0;
  }
  if (launch->options.initcheck) {
    for (u16 slot : k.liveInSlots) {
      memset(shadowOf<u8>(slot), 0xff, isWideSlot(slot) ? 256 : 128);
      flags[slot] = 1;
      ++taintLive;
    }
    for (u16 p : k.liveInPredicates)
      setPredicateTaint(p, ~0u);
  }
  auto special = [&](int s) { return r<u32>(u16(k.specialBase + u32(s))); };
  const Dim3 &b = launch->block, &g = launch->grid;
  u32 numWarps = u32(owner.warps.size());
  for (u32 l = 0; l < 32; ++l) {
    u32 t = warp * 32 + l, bit = 1u << l;
    special(TidX)[l] = t % b.x;
    special(TidY)[l] = t / b.x % b.y;
    special(TidZ)[l] = t / b.x / b.y;
    special(NTidX)[l] = b.x;
    special(NTidY)[l] = b.y;
    special(NTidZ)[l] = b.z;
    special(CtaIdX)[l] = owner.x;
    special(CtaIdY)[l] = owner.y;
    special(CtaIdZ)[l] = owner.z;
    special(NCtaIdX)[l] = g.x;
    special(NCtaIdY)[l] = g.y;
    special(NCtaIdZ)[l] = g.z;
    special(LaneId)[l] = l;
    special(WarpId)[l] = warp;
    special(NWarpId)[l] = numWarps;
    special(LaneMaskEq)[l] = bit;
    special(LaneMaskLt)[l] = bit - 1;
    special(LaneMaskLe)[l] = (bit - 1) | bit;
    special(LaneMaskGe)[l] = ~(bit - 1);
    special(LaneMaskGt)[l] = ~((bit - 1) | bit);
    special(DynamicSharedSize)[l] = launch->dynamicSharedBytes;
    special(TotalSharedSize)[l] = launch->sharedBytes;
    special(Zero)[l] = 0;
  }
}

/// Picks the group with the smallest pc that is not blocked; merges groups at
/// the same pc.
void Warp::schedule() {
  if (active)
    others.push_back({pc, active, false});
  active = 0;
  nextMerge = INT32_MAX;
  if (others.empty())
    return;
  bool othersFirst = polls >= pollsInARow;
  if (othersFirst && ++polls >= pollsInARow + 64)
    polls = 0;
  int best = -1;
  for (size_t g = 0; g < others.size(); ++g)
    if (!others[g].blocked &&
        (best < 0 || (others[g].pc < others[size_t(best)].pc) != othersFirst))
      best = int(g);
  if (best < 0) { // every group waits at a different .sync instruction
    best = 0;
    for (size_t g = 1; g < others.size(); ++g)
      if (others[g].pc < others[size_t(best)].pc)
        best = int(g);
    LaneGroup chosen = others[size_t(best)];
    if (launch->options.synccheck)
      report(FindingKind::Sync, kernel->code[size_t(chosen.pc)],
             __builtin_ctz(chosen.mask),
             "lanes " + hex(chosen.mask) + " wait here while other lanes (" +
                 hex(alive & ~chosen.mask) +
                 ") wait at other .sync instructions or barriers");
    pc = chosen.pc;
    active = lanes = chosen.mask;
    others.erase(others.begin() + best);
    for (LaneGroup &g : others)
      if (!g.blocked)
        nextMerge = std::min(nextMerge, g.pc);
    forced = true;
    return;
  }
  pc = others[size_t(best)].pc;
  for (size_t g = 0; g < others.size();)
    if (others[g].pc == pc) {
      active |= others[g].mask;
      others[g] = others.back();
      others.pop_back();
    } else {
      ++g;
    }
  for (LaneGroup &g : others)
    if (g.pc > pc)
      nextMerge = std::min(nextMerge, g.pc);
}

/// Of `among`, the lanes with the member mask of the first one.
u32 Warp::sameMask(const Instr &i, u32 among) const {
  if (!i.hasMemberMask || i.s[i.ns - 1] >= kernel->constantBase)
    return among;
  const u32 *masks = r<u32>(i.s[i.ns - 1]);
  const u32 first = masks[__builtin_ctz(among)];
  u32 same = 0;
  for (u32 m = among; m; m &= m - 1)
    same |= u32(masks[__builtin_ctz(m)] == first) << __builtin_ctz(m);
  return same;
}

/// A .sync instruction needs all lanes of its member mask. False: this group
/// has to wait for others.
bool Warp::converged(const Instr &i) {
  u32 need = ~0u;
  if (i.hasMemberMask) {
    need = 0;
    for (u32 rest = lanes; rest;) {
      const u32 same = sameMask(i, rest);
      const u32 mask = r<u32>(i.s[i.ns - 1])[__builtin_ctz(same)];
      need |= mask;
      rest &= ~same;
      if (!launch->options.synccheck)
        continue;
      if (same & ~mask)
        report(FindingKind::Sync, i, __builtin_ctz(same & ~mask),
               "executing lane is not in the member mask " + hex(mask));
      if (mask & ~alive)
        report(FindingKind::Sync, i, __builtin_ctz(same),
               "member mask " + hex(mask) +
                   " names lanes that have exited (alive: " + hex(alive) + ")");
    }
  }
  need &= alive;
  if ((need & ~active) == 0 || forced) {
    forced = false;
    return true;
  }
  others.push_back({pc, active, true});
  active = 0;
  schedule();
  return false;
}

void Warp::branch(s32 target, u32 taken, u32 rest) {
  if (!rest) {
    pc = target;
  } else if (!taken) {
    ++pc;
  } else {
    others.push_back({target, taken, false});
    others.push_back({pc + 1, rest, false});
    active = 0;
    if (launch->options.counters)
      ++counters->divergentBranches;
    schedule();
    return;
  }
  if (!others.empty())
    schedule();
}

void Warp::branchTable(const Instr &i, u32 mask) {
  const std::vector<s32> &table = kernel->branchTables[size_t(i.imm)];
  const u32 *index = r<u32>(i.s[0]);
  checkUse(i, i.s[0], mask, "branch index");
  if (launch->options.counters) {
    bool uniform = active == mask;
    for (u32 m = mask; m; m &= m - 1)
      uniform &= index[__builtin_ctz(m)] == index[__builtin_ctz(mask)];
    counters->divergentBranches += !uniform && mask;
  }
  for (u32 m = mask; m; m &= m - 1) {
    int l = __builtin_ctz(m);
    u32 n = index[l];
    if (n >= table.size()) {
      report(FindingKind::OutOfBounds, i, l,
             "branch index " + std::to_string(n) + " into a table of " +
                 std::to_string(table.size()));
      n = 0;
    }
    others.push_back({table[n], 1u << l, false});
  }
  if (u32 rest = active & ~mask)
    others.push_back({pc + 1, rest, false});
  active = 0;
  schedule();
}

/// A predicate that decides over a memory access, a barrier or a branch must
/// not depend on bytes that nobody wrote.
void Warp::checkGuard(const Instr &i, u32 mask) {
  u32 taint = predicateTaint[i.guard] & mask;
  if (!taint)
    return;
  bool branches =
      i.control == Control::Branch || i.control == Control::BranchTable;
  report(FindingKind::Uninitialised, i, __builtin_ctz(taint),
         branches ? "the branch depends on bytes that nobody wrote"
                  : "the predicate of this instruction depends on bytes that "
                    "nobody wrote");
}

void Warp::run() {
  const Instr *code = kernel->code.data();
  const LaunchOptions &options = launch->options;
  const u64 limit = turn ? turn : ~0ull;
  const u64 maximum = options.maxInstructions ? options.maxInstructions : ~0ull;
  const bool count = options.counters;
  u64 n = 0;
  auto uncount = [&](const Instr &i) {
    --n;
    if (count) {
      --counters->byClass[size_t(i.cls)];
      counters->activeLanes -= u64(__builtin_popcount(lanes));
    }
  };
  for (;;) {
    if (!active) {
      if (others.empty()) {
        state = Done;
        steps += n;
        return;
      }
      schedule();
      continue;
    }
    const Instr &i = code[pc];
    u32 mask = active;
    if (i.guard != none) {
      u32 g = predicates[i.guard];
      mask &= i.guardNeg ? ~g : g;
    }
    lanes = mask;
    ++n;
    if (count) {
      if (profile)
        counters = profile + pc;
      ++counters->byClass[size_t(i.cls)];
      counters->activeLanes += u64(__builtin_popcount(mask));
    }
    u32 uncertain = 0; // lanes whose guard is not known
    if (__builtin_expect(taintLive != 0, 0)) {
      if (i.guard != none) {
        uncertain = predicateTaint[i.guard] & active;
        if (uncertain &&
            (i.control != Control::Plain || i.taint == TaintRule::Own)) {
          checkGuard(i, active);
          uncertain = 0;
        }
      }
      if (mask && i.control == Control::Plain)
        taintBefore(i);
    }
    switch (i.control) {
    case Control::Plain:
      if (mask)
        i.fn(*this, i);
      if (uncertain)
        taintGuarded(i, uncertain);
      ++pc;
      break;
    case Control::Sync:
    case Control::WarpBarrier:
      if (!converged(i)) {
        uncount(i);
        continue;
      }
      if (i.control == Control::WarpBarrier) {
        if (count)
          ++counters->warpBarriers;
        if ((mask | ~alive) == ~0u)
          cta->warpBarrier(*this);
      } else {
        for (u32 rest = mask; rest; rest &= ~lanes) {
          lanes = sameMask(i, rest);
          if (taintLive)
            taintBefore(i);
          i.fn(*this, i);
        }
      }
      ++pc;
      break;
    case Control::Branch:
      branch(s32(i.imm), mask, active & ~mask);
      break;
    case Control::BranchTable:
      branchTable(i, mask);
      break;
    case Control::Trap:
      if (mask)
        report(FindingKind::Sync, i, __builtin_ctz(mask), "trap");
      [[fallthrough]];
    case Control::Exit:
      alive &= ~mask;
      active &= ~mask;
      ++pc;
      if (!active || !others.empty()) {
        for (LaneGroup &g : others)
          g.blocked = false;
        schedule();
      }
      break;
    case Control::CtaBarrier:
      if (!mask) {
        ++pc;
        break;
      }
      if (active != alive && !forced) {
        uncount(i);
        others.push_back({pc, active, true});
        active = 0;
        schedule();
        continue;
      }
      forced = false;
      if (count)
        ++counters->ctaBarriers;
      i.fn(*this, i); // barrier number and thread count
      ++pc;
      barrierInstr = &i;
      barrierLanes = mask;
      if (i.flags & 1) { // bar.arrive does not wait
        cta->namedBarriers[barrierId].arrived += 32;
        cta->release(*this, mask, cta->namedBarriers[barrierId].released);
        break;
      }
      state = AtBarrier;
      steps += n;
      return;
    case Control::Wait:
      i.fn(*this, i);
      ++pc;
      if (yield) {
        yield = false;
        stepsSinceYield = 0;
        steps += n;
        return;
      }
      break;
    case Control::Unsupported: // launch refuses kernels that have any
      state = Done;
      steps += n;
      return;
    }
    if (pc >= nextMerge && active)
      schedule();
    if (steps + n > maximum) {
      report(FindingKind::Limit, code[pc], 0,
             "a warp executed " + std::to_string(maximum) +
                 " instructions, the limit of this launch");
      state = Done;
      steps += n;
      return;
    }
    if (n >= limit) {
      steps += n;
      stepsSinceYield += n;
      return;
    }
  }
}
