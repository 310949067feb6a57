//===- SharedRace.cpp - Races in shared memory ----------------------------===//
//
// Barriers and mbarriers order warps and the lanes of a warp (Order.cpp);
// bar.warp.sync over all live lanes orders those too; shfl, vote and mma do
// not. A cp.async is in flight until the lane that issued it waits; other lanes
// then need a barrier. A bulk copy is in flight until a wait for its mbarrier
// succeeds; other warps then need to wait as well, or a barrier.
//
//===----------------------------------------------------------------------===//

#include "Execution.h"

#include <algorithm>

using namespace kvcache::ptx;

#define KVCACHE_INLINE __attribute__((always_inline))

namespace {

std::string thread(u16 t) {
  if (t == severalWarps)
    return "several warps";
  if (t >= bulkWriter)
    return "a bulk copy of warp " + std::to_string(t - bulkWriter);
  return "warp " + std::to_string((t - 1) >> 5) + " lane " +
         std::to_string((t - 1) & 31);
}

std::string at(u32 address) {
  return "shared+" + hex(address - sharedStart) + ": ";
}

u16 threadOf(const Warp &w, int lane) { return u16(w.id * 32 + u32(lane) + 1); }

bool sameWarp(u16 t, const Warp &w) {
  return t != severalWarps && u32(t - 1) >> 5 == w.id;
}

} // namespace

/// Reports when `w` may not touch what `x.writer` wrote.
void Cta::checkWriter(Warp &w, const Instr &i, int lane, u32 addr,
                      const RaceCell &x, const char *verb, const char *after) {
  if (x.writeEpoch == pendingCopy) {
    bool bulk = x.writer >= bulkWriter;
    w.report(FindingKind::AsyncRace, i, lane,
             at(addr) + verb +
                 (bulk ? " a byte of a bulk copy ("
                       : " a byte whose cp.async (issued by ") +
                 thread(x.writer) +
                 (bulk ? ") whose mbarrier has not been waited for"
                       : ") has not been waited for"),
             addr, "shared");
    return;
  }
  if (x.writer == threadOf(w, lane))
    return;
  if (!sameWarp(x.writer, w)) {
    if (!ordered(w, x.writer, x.writeEpoch))
      w.report(FindingKind::Race, i, lane,
               at(addr) + after + " by " + thread(x.writer) +
                   ", no CTA barrier between",
               addr, "shared");
  } else if (x.writeEpoch >= w.syncEpoch &&
             !ordered(w, x.writer, x.writeEpoch)) {
    w.report(FindingKind::Race, i, lane,
             at(addr) + after + " by " + thread(x.writer) +
                 ", no warp barrier between",
             addr, "shared");
  }
}

/// Reports when `w` may not overwrite what `x.reader` read.
void Cta::checkReader(Warp &w, const Instr &i, int lane, u32 addr,
                      const RaceCell &x) {
  if (!x.reader || x.reader == threadOf(w, lane) || x.reader == atomicCell)
    return;
  bool otherWarp = false, otherLane = false;
  if (x.reader == readByAll) {
    otherWarp = !partialOrder;
    if (partialOrder) {
      const std::array<u16, 32> &set =
          readSets[x.readEpoch | u32(x.plainEpoch) << 16];
      for (u32 v = 0; v < warps.size(); ++v)
        if (v == w.id)
          otherLane |= set[v] >= w.syncEpoch && !orderedWarp(w, v, set[v]);
        else
          otherWarp |= set[v] && !orderedWarp(w, v, set[v]);
    }
  } else if (x.reader & readByWarp) {
    u32 v = x.reader & 0x7fff;
    if (v == w.id)
      otherLane = x.readEpoch >= w.syncEpoch && !orderedWarp(w, v, x.readEpoch);
    else
      otherWarp = !orderedWarp(w, v, x.readEpoch);
  } else if (sameWarp(x.reader, w)) {
    otherLane =
        x.readEpoch >= w.syncEpoch && !ordered(w, x.reader, x.readEpoch);
  } else {
    otherWarp = !ordered(w, x.reader, x.readEpoch);
  }
  if (otherWarp)
    w.report(FindingKind::Race, i, lane,
             at(addr) +
                 "write after read by another warp, no CTA barrier between",
             addr, "shared");
  else if (otherLane)
    w.report(FindingKind::Race, i, lane,
             at(addr) +
                 "write after read by another lane, no warp barrier between",
             addr, "shared");
}

static bool same(const RaceCell &a, const RaceCell &b) {
  return memcmp(&a, &b, sizeof(RaceCell)) == 0;
}

/// The cells of the parts of a granule, made from its one cell when needed.
RaceCell *Cta::partsOf(u32 granule) {
  const u32 perGranule = 16u >> cellShift;
  RaceCell &whole = cells[granule], *parts = &fineCells[granule * perGranule];
  if (!whole.split)
    std::fill(parts, parts + perGranule, whole);
  whole.split = 1;
  return parts;
}

/// Calls update(cell) for the cells of [offset, offset + n). A granule of 16
/// bytes has one cell until an access covers a part of it; from then on it has
/// cells of its own for each 1 << cellShift bytes, until they agree again or
/// are all out of date. The generation of the one cell is then the latest of
/// theirs.
template <class F> void Cta::updateCells(u32 offset, u32 n, F update) {
  const u32 end = offset + n;
  const u32 perGranule = 16u >> cellShift;
  for (u32 granule = offset >> 4; granule << 4 < end; ++granule) {
    RaceCell &whole = cells[granule];
    const u32 first = granule << 4;
    if (perGranule == 1 ||
        (!whole.split && offset <= first && end >= first + 16)) {
      update(whole);
      continue;
    }
    RaceCell *parts = partsOf(granule);
    const u32 from = std::max(offset, first) - first;
    const u32 to = std::min(end, first + 16) - first;
    bool agree = true;
    for (u32 c = 0; c < perGranule; ++c) {
      if (c << cellShift < to && (c + 1) << cellShift > from)
        update(parts[c]);
      agree &= same(parts[c], parts[0]);
    }
    if (agree)
      whole = parts[0];
    else
      whole.generation = generation;
  }
}

/// update(cell, lane, address) for all cells of an access.
template <class F>
void Cta::updateLanes(const u64 *a, u32 mask, u32 n, F update) {
  const bool isPart = n < 16 && n == 1u << cellShift;
  for (u32 m = mask; m; m &= m - 1) {
    int l = __builtin_ctz(m);
    u32 addr = u32(a[l]), offset = addr - sharedStart;
    RaceCell *cell = &cells[offset >> 4];
    if (cell->split && cell->generation != generation)
      cell->split = 0;
    if (isPart && !(offset & (n - 1))) {
      RaceCell *parts = partsOf(offset >> 4);
      cell->generation = generation;
      cell = parts + ((offset & 15) >> cellShift);
    } else if (n != 16 || offset & 15 || cell->split) {
      updateCells(offset, n, [&](RaceCell &x) __attribute__((noinline)) {
        update(x, l, addr);
      });
      continue;
    }
    update(*cell, l, addr);
  }
}

/// Another warp has read the cell already.
__attribute__((noinline)) void Cta::joinReaders(const Warp &w, RaceCell &x) {
  if (!partialOrder) {
    x.reader = readByAll;
    return;
  }
  std::array<u16, 32> set{};
  if (x.reader == readByAll)
    set = readSets[x.readEpoch | u32(x.plainEpoch) << 16];
  else
    set[x.reader & readByWarp ? x.reader & 0x7fff : (x.reader - 1) >> 5] =
        x.readEpoch;
  set[w.id] = w.epoch;
  u32 id = readSet(set);
  x.reader = readByAll;
  x.readEpoch = u16(id);
  x.plainEpoch = u16(id >> 16);
}

void Cta::noteReads(Warp &w, const Instr &i, const u64 *a, u32 mask, u32 n) {
  const u32 now = generation, warp = w.id;
  const u16 epoch = w.epoch, syncEpoch = w.syncEpoch;
  const u16 first = u16(warp * 32 + 1), byWarp = u16(readByWarp | warp);
  updateLanes(a, mask, n, [&](RaceCell &x, int lane, u32 addr) KVCACHE_INLINE {
    const u16 me = u16(first + lane);
    if (x.generation != now) {
      x = {now, 0, 0, me, epoch, 0, 0};
      return;
    }
    if (x.writer && x.writer != me &&
        (u32(x.writer - 1) >> 5 != warp || x.writeEpoch >= syncEpoch))
      checkWriter(w, i, lane, addr, x, "reads", "read after write");
    else if (x.writeEpoch == pendingCopy)
      checkWriter(w, i, lane, addr, x, "reads", "read after write");
    if (x.reader == 0 || x.reader == me) {
      x.reader = me;
      x.readEpoch = epoch;
    } else if (x.reader == byWarp || u32(x.reader - 1) >> 5 == warp) {
      x.reader = x.readEpoch >= syncEpoch ? byWarp : me;
      x.readEpoch = epoch;
    } else if (x.reader != atomicCell &&
               (x.reader != readByAll || partialOrder)) {
      joinReaders(w, x);
    }
  });
}

void Cta::noteWrites(Warp &w, const Instr &i, const u64 *a, u32 mask, u32 n,
                     bool async) {
  const u32 now = generation, warp = w.id;
  const u16 epoch = async ? pendingCopy : w.epoch, syncEpoch = w.syncEpoch;
  const u16 first = u16(warp * 32 + 1), byWarp = u16(readByWarp | warp);
  updateLanes(a, mask, n, [&](RaceCell &x, int lane, u32 addr) KVCACHE_INLINE {
    if (x.generation == now) {
      // What this warp did before its last barrier is no conflict.
      if (x.writer &&
          (u32(x.writer - 1) >> 5 != warp || x.writeEpoch >= syncEpoch))
        checkWriter(w, i, lane, addr, x, "writes", "write after write");
      bool own = x.reader == byWarp || u32(x.reader - 1) >> 5 == warp;
      if (x.reader && (!own || x.readEpoch >= syncEpoch))
        checkReader(w, i, lane, addr, x);
    }
    x = {now, u16(first + lane), epoch, 0, 0, 0, 0};
  });
}

/// Atomics do not conflict with each other. The last plain write stays known
/// beside them.
void Cta::noteAtomics(Warp &w, const Instr &i, const u64 *a, u32 mask, u32 n) {
  const u32 now = generation;
  updateLanes(a, mask, n, [&](RaceCell &x, int lane, u32 addr) {
    u16 writer = threadOf(w, lane);
    if (x.generation != now) {
      x = {now, writer, w.epoch, atomicCell, 0, 0, 0};
      return;
    }
    RaceCell plain = x;
    if (x.reader == atomicCell) {
      plain.writer = x.readEpoch;
      plain.writeEpoch = x.plainEpoch;
      if (!sameWarp(x.writer, w))
        writer = severalWarps;
    }
    if (plain.writer)
      checkWriter(w, i, lane, addr, plain, "updates",
                  "atomic update after plain write");
    checkReader(w, i, lane, addr, x);
    x = {now, writer, w.epoch, atomicCell, plain.writer, plain.writeEpoch, 0};
  });
}

void Cta::noteLanded(Warp &w, const u32 *a, u32 mask, u32 n) {
  u64 addresses[32];
  for (int l = 0; l < 32; ++l)
    addresses[l] = a[l];
  const u32 now = generation;
  const u16 first = u16(w.id * 32 + 1), epoch = w.epoch;
  updateLanes(addresses, mask, n,
              [&](RaceCell &x, int lane, u32) KVCACHE_INLINE {
                if (x.generation == now && x.writer == first + lane)
                  x.writeEpoch = epoch;
              });
}

void Cta::noteBulkIssued(Warp &w, const Instr &i, int lane, u32 addr, u32 n) {
  const u16 writer = u16(bulkWriter + w.id);
  updateCells(addr - sharedStart, n, [&](RaceCell &x) {
    if (x.generation == generation) {
      if (x.writer)
        checkWriter(w, i, lane, addr, x, "overwrites", "write after write");
      checkReader(w, i, lane, addr, x);
    }
    x = {generation, writer, pendingCopy, 0, 0, 0, 0};
  });
}

/// A wait for its mbarrier has succeeded: the copy is a write that the mbarrier
/// has released.
void Cta::noteBulkLanded(const BulkJob &job) {
  Warp &w = warps[job.warp];
  if (++w.bulkEpoch >= 0xfff0)
    nextGeneration();
  const u16 writer = u16(bulkWriter + job.warp), epoch = w.bulkEpoch;
  updateCells(job.destination - sharedStart, job.bytes, [&](RaceCell &x) {
    if (x.generation == generation && x.writer == writer)
      x.writeEpoch = epoch;
  });
  if (!partialOrder)
    return;
  Released &completed = mbarrierOrder[job.barrier].completed;
  completed.shared.resize(warps.size() * 33, 0);
  completed.shared[warps.size() * 32 + job.warp] = u16(epoch + 1);
}

/// Everything so far is ordered, but for copies in flight.
void Cta::nextGeneration() {
  u32 old = generation++;
  auto keepPending = [&](u32 addr, u32 n) {
    updateCells(addr - sharedStart, n, [&](RaceCell &x) {
      if (x.generation == old && x.writeEpoch == pendingCopy) {
        x.generation = generation;
        x.reader = 0;
      }
    });
  };
  for (Warp &w : warps) {
    w.epoch = w.syncEpoch = w.bulkEpoch = 1;
    std::fill(w.order.shared.begin(), w.order.shared.end(), 0);
    for (const CopyJob &job : w.jobs)
      for (u32 m = job.mask; m; m &= m - 1)
        keepPending(job.destination[__builtin_ctz(m)], job.bytes);
  }
  for (const BulkJob &job : bulkJobs)
    keepPending(job.destination, job.bytes);
  for (auto &[address, order] : mbarrierOrder)
    for (Released *r : {&order.arriving, &order.completed})
      std::fill(r->shared.begin(), r->shared.end(), 0);
  for (auto &[id, named] : namedBarriers)
    std::fill(named.released.shared.begin(), named.released.shared.end(), 0);
  readSets.clear();
  readSetIds.clear();
}
