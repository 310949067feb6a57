//===- Order.cpp - What happens before what inside a block ----------------===//
//
// Vector clocks. A barrier of the whole block orders everything before it: the
// race checker of shared memory then starts a new generation, in which the
// clocks start over. Barriers for a part of the block, bar.arrive and mbarriers
// hand on clocks. Shared memory is followed by thread on the releasing side and
// by warp on the acquiring side, global memory by warp.
//
//===----------------------------------------------------------------------===//

#include "GlobalRace.h"

#include <algorithm>

using namespace kvcache::ptx;

template <class T>
static void joinBounds(std::vector<T> &to, const std::vector<T> &from) {
  if (to.size() < from.size())
    to.resize(from.size(), 0);
  for (size_t n = 0; n < from.size(); ++n)
    to[n] = std::max(to[n], from[n]);
}

void Released::join(const Released &other) {
  joinBounds(shared, other.shared);
  joinBounds(global, other.global);
  joinBounds(fenced, other.fenced);
  seen = std::max(seen, other.seen);
  acquired = std::max(acquired, other.acquired);
}

void Released::clear() {
  shared.clear();
  global.clear();
  fenced.clear();
  seen = acquired = 0;
}

bool Cta::tracksOrder() const { return partialOrder || launch->globalRace; }

void Cta::startOrder(Warp &w) {
  w.epoch = w.syncEpoch = w.bulkEpoch = 1;
  w.globalEpoch = 1;
  w.order.clear();
  if (partialOrder)
    w.order.shared.assign(warps.size() * 33, 0);
  if (launch->globalRace) {
    w.order.global.assign(warps.size(), 0);
    w.order.fenced.assign(warps.size(), 0);
  }
}

static void nextEpoch(Cta &c, Warp &w) {
  // Out of numbers: forget the past of the block, which only misses races.
  if (++w.epoch >= 0xfff0)
    c.nextGeneration();
}

void Cta::warpBarrier(Warp &w) {
  nextEpoch(*this, w);
  w.syncEpoch = w.epoch;
}

void Cta::release(Warp &w, u32 lanes, Released &to) {
  if (!tracksOrder())
    return;
  to.join(w.order);
  if (partialOrder) {
    for (u32 l = 0; l < 32; ++l) {
      u16 &bound = to.shared[w.id * 32 + l];
      u16 own = lanes >> l & 1 ? u16(w.epoch + 1) : w.syncEpoch;
      bound = std::max(bound, own);
    }
    nextEpoch(*this, w);
  }
  if (launch->globalRace) {
    to.global[w.id] = w.globalEpoch + 1;
    ++w.globalEpoch;
  }
}

void Cta::acquire(Warp &w, const Released &from) {
  if (tracksOrder())
    w.order.join(from);
}

void Cta::barrier(const std::vector<Warp *> &participants,
                  const Released *arrived, bool all) {
  if (tracksOrder()) {
    Released together;
    if (arrived)
      together = *arrived;
    for (Warp *w : participants) {
      release(*w, ~0u, together);
      w->syncEpoch = w->epoch;
    }
    for (Warp *w : participants)
      acquire(*w, together);
  }
  if (all)
    nextGeneration();
}

bool Cta::ordered(const Warp &w, u16 thread, u16 epoch) const {
  if (!partialOrder || thread == severalWarps)
    return false;
  size_t index = thread >= bulkWriter ? warps.size() * 32 + thread - bulkWriter
                                      : size_t(thread) - 1;
  return w.order.shared[index] > epoch;
}

bool Cta::orderedWarp(const Warp &w, u32 warp, u16 epoch) const {
  if (!partialOrder)
    return false;
  const u16 *bounds = &w.order.shared[warp * 32];
  for (u32 l = 0; l < 32; ++l)
    if ((warps[warp].threads >> l & 1) && bounds[l] <= epoch)
      return false;
  return true;
}

u32 Cta::readSet(const std::array<u16, 32> &epochs) {
  auto [it, fresh] = readSetIds.try_emplace(epochs, u32(readSets.size()));
  if (fresh)
    readSets.push_back(epochs);
  return it->second;
}
