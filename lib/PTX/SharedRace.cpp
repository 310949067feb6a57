//===- SharedRace.cpp - Races in shared memory ----------------------------===//
//
// Only CTA barriers order warps, and only bar.warp.sync over all live lanes
// orders the lanes of a warp; shfl, vote and mma do not. A cp.async is in
// flight until the lane that issued it waits; other lanes then need a barrier.
//
//===----------------------------------------------------------------------===//

#include "Execution.h"

#include <algorithm>

using namespace kvcache::ptx;

namespace {

std::string thread(u16 t) {
  if (t == severalWarps)
    return "several warps";
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

/// Reports when `w` may not touch what `x.writer` wrote.
void checkWriter(Warp &w, const Instr &i, int lane, u32 addr, const RaceCell &x,
                 const char *verb, const char *after) {
  if (x.writeEpoch == pendingCopy) {
    w.report(FindingKind::AsyncRace, i, lane,
             at(addr) + verb + " a byte whose cp.async (issued by " +
                 thread(x.writer) + ") has not been waited for",
             addr, "shared");
    return;
  }
  if (x.writer == threadOf(w, lane))
    return;
  if (!sameWarp(x.writer, w))
    w.report(FindingKind::Race, i, lane,
             at(addr) + after + " by " + thread(x.writer) +
                 ", no CTA barrier between",
             addr, "shared");
  else if (x.writeEpoch == w.epoch)
    w.report(FindingKind::Race, i, lane,
             at(addr) + after + " by " + thread(x.writer) +
                 ", no warp barrier between",
             addr, "shared");
}

void checkReader(Warp &w, const Instr &i, int lane, u32 addr,
                 const RaceCell &x) {
  if (!x.reader || x.reader == threadOf(w, lane) || x.reader == atomicCell)
    return;
  bool same = x.reader != readByAll &&
              (x.reader & readByWarp ? u32(x.reader & 0x7fff) == w.id
                                     : sameWarp(x.reader, w));
  if (!same)
    w.report(FindingKind::Race, i, lane,
             at(addr) +
                 "write after read by another warp, no CTA barrier between",
             addr, "shared");
  else if (x.readEpoch == w.epoch)
    w.report(FindingKind::Race, i, lane,
             at(addr) +
                 "write after read by another lane, no warp barrier between",
             addr, "shared");
}

} // namespace

static bool same(const RaceCell &a, const RaceCell &b) {
  return memcmp(&a, &b, sizeof(RaceCell)) == 0;
}

/// Calls update(cell) for the cells of [offset, offset + n). A granule of 16
/// bytes has one cell until an access covers a part of it; from then on it has
/// cells of its own for each 1 << cellShift bytes, until they agree again.
template <class F> void Cta::updateCells(u32 offset, u32 n, F update) {
  const u32 end = offset + n;
  const u32 perGranule = 16u >> cellShift;
  for (u32 granule = offset >> 4; granule << 4 < end; ++granule) {
    RaceCell &whole = cells[granule];
    const u32 first = granule << 4;
    if (perGranule == 1 ||
        (!whole.split && offset <= first && end >= first + 16)) {
      whole = update(whole);
      continue;
    }
    RaceCell *parts = &fineCells[granule * perGranule];
    if (!whole.split)
      std::fill(parts, parts + perGranule, whole);
    const u32 from = std::max(offset, first) - first;
    const u32 to = std::min(end, first + 16) - first;
    bool agree = true;
    for (u32 c = 0; c < perGranule; ++c) {
      if (c << cellShift < to && (c + 1) << cellShift > from)
        parts[c] = update(parts[c]);
      agree &= same(parts[c], parts[0]);
    }
    if (agree)
      whole = parts[0];
    else
      whole.split = 1;
  }
}

/// update(cell, lane, address) -> new state, for all cells of an access.
template <class F>
void Cta::updateLanes(const u64 *a, u32 mask, u32 n, F update) {
  for (u32 m = mask; m; m &= m - 1) {
    int l = __builtin_ctz(m);
    u32 addr = u32(a[l]);
    if (n == 16 && !(addr & 15)) { // most of the traffic
      RaceCell &whole = cells[(addr - sharedStart) >> 4];
      if (!whole.split) {
        whole = update(whole, l, addr);
        continue;
      }
    }
    updateCells(addr - sharedStart, n,
                [&](const RaceCell &x) { return update(x, l, addr); });
  }
}

void Cta::noteReads(Warp &w, const Instr &i, const u64 *a, u32 mask, u32 n) {
  const u32 now = generation;
  const u16 epoch = w.epoch, byWarp = u16(readByWarp | w.id);
  updateLanes(a, mask, n, [&](RaceCell x, int lane, u32 addr) -> RaceCell {
    const u16 me = threadOf(w, lane);
    if (x.generation != now)
      return {now, 0, 0, me, epoch, 0, 0};
    if (x.writer &&
        (x.writeEpoch == pendingCopy ||
         (x.writer != me && (!sameWarp(x.writer, w) || x.writeEpoch == epoch))))
      checkWriter(w, i, lane, addr, x, "reads", "read after write");
    if (x.reader == 0 || x.reader == me) {
      x.reader = me;
      x.readEpoch = epoch;
    } else if (x.reader == readByAll || x.reader == atomicCell) {
    } else if (x.reader == byWarp ||
               (!(x.reader & readByWarp) && sameWarp(x.reader, w))) {
      x.reader = x.readEpoch == epoch ? byWarp : me;
      x.readEpoch = epoch;
    } else {
      x.reader = readByAll;
    }
    return x;
  });
}

void Cta::noteWrites(Warp &w, const Instr &i, const u64 *a, u32 mask, u32 n,
                     bool async) {
  const u32 now = generation;
  const u16 epoch = async ? pendingCopy : w.epoch;
  updateLanes(a, mask, n, [&](RaceCell x, int lane, u32 addr) -> RaceCell {
    if (x.generation == now) {
      if (x.writer)
        checkWriter(w, i, lane, addr, x, "writes", "write after write");
      checkReader(w, i, lane, addr, x);
    }
    return {now, threadOf(w, lane), epoch, 0, 0, 0, 0};
  });
}

/// Atomics do not conflict with each other. The last plain write stays known
/// beside them.
void Cta::noteAtomics(Warp &w, const Instr &i, const u64 *a, u32 mask, u32 n) {
  const u32 now = generation;
  updateLanes(a, mask, n, [&](RaceCell x, int lane, u32 addr) -> RaceCell {
    u16 writer = threadOf(w, lane);
    if (x.generation != now)
      return {now, writer, w.epoch, atomicCell, 0, 0, 0};
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
    return {now,          writer,           w.epoch, atomicCell,
            plain.writer, plain.writeEpoch, 0};
  });
}

void Cta::noteLanded(Warp &w, const u32 *a, u32 mask, u32 n) {
  u64 addresses[32];
  for (int l = 0; l < 32; ++l)
    addresses[l] = a[l];
  const u32 now = generation;
  updateLanes(addresses, mask, n, [&](RaceCell x, int lane, u32) {
    if (x.generation == now && x.writer == threadOf(w, lane))
      x.writeEpoch = w.epoch;
    return x;
  });
}

/// An mbarrier orders a bulk copy for all threads that wait for it.
void Cta::noteBulkLanded(u32 addr, u32 n) {
  updateCells(addr - sharedStart, n, [&](RaceCell x) {
    if (x.generation == generation)
      x.writer = 0;
    return x;
  });
}

/// A CTA barrier orders everything but copies in flight.
void Cta::nextGeneration() {
  u32 old = generation++;
  auto keepPending = [&](u32 addr, u32 n) {
    updateCells(addr - sharedStart, n, [&](RaceCell x) {
      if (x.generation == old && x.writeEpoch == pendingCopy)
        x.generation = generation;
      return x;
    });
  };
  for (Warp &w : warps) {
    w.epoch = u16((w.epoch + 1) % 0xfff0);
    for (const CopyJob &job : w.jobs)
      for (u32 m = job.mask; m; m &= m - 1)
        keepPending(job.destination[__builtin_ctz(m)], job.bytes);
  }
  for (const BulkJob &job : bulkJobs)
    keepPending(job.destination, job.bytes);
}
