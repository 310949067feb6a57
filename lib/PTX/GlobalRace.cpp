//===- GlobalRace.cpp - Conflicts between blocks in global memory ---------===//

#include "GlobalRace.h"

#include <algorithm>

using namespace kvcache::ptx;

GlobalRaceChecker::GlobalRaceChecker(Launch &launch, u64 numCtas)
    : launch(launch), published(numCtas) {}

GlobalRaceChecker::Page &GlobalRaceChecker::pageOf(u64 address) {
  u64 id = address >> 12;
  if (id != lastPageId) {
    std::unique_ptr<Page> &page = pages[id];
    if (!page)
      page = std::make_unique<Page>();
    lastPageId = id;
    lastPage = page.get();
  }
  return *lastPage;
}

/// Whether that access happened before what `w` does now.
bool GlobalRaceChecker::ordered(const Cell &cell, const Warp &w) const {
  const u64 other = cell.cta - 1;
  if (other == w.cta->index)
    return cell.warp == w.id || w.order.global[cell.warp] > cell.epoch;
  if (published[other].empty())
    return false;
  const auto &list = published[other][cell.warp];
  auto it = std::upper_bound(
      list.begin(), list.end(), cell.epoch,
      [](u32 value, const std::pair<u32, u64> &p) { return value < p.first; });
  return it != list.end() && it->second <= w.order.acquired;
}

void GlobalRaceChecker::check(Warp &w, const Instr &i, int lane, u64 granule,
                              u32 mask, const Cell &cell, bool writers,
                              const char *what) {
  auto conflict = [&](const Cell &c) {
    return c.cta && (c.cta == several || !ordered(c, w));
  };
  u64 address = granule << 4;
  u32 other = cell.cta, otherWarp = cell.warp;
  if (other == expanded) {
    const ByteCells &bytes = (writers ? writerBytes : readerBytes)[granule];
    int bad = -1;
    for (u32 m = mask; m && bad < 0; m &= m - 1)
      if (conflict(bytes.bytes[__builtin_ctz(m)]))
        bad = __builtin_ctz(m);
    if (bad < 0)
      return;
    other = bytes.bytes[bad].cta;
    otherWarp = bytes.bytes[bad].warp;
    address += u64(bad);
  } else {
    if (!(cell.mask & mask) || !conflict(cell))
      return;
    address += u64(__builtin_ctz(cell.mask & mask));
  }
  Buffer *b = w.cta->findBuffer(address, address + 1);
  std::string name = b ? b->name : "", offset, block = "several blocks";
  if (b)
    offset = " (buffer " + name + ", offset " +
             std::to_string(address - b->address) + ")";
  const bool here = other == w.cta->index + 1;
  if (here) {
    block = "warp " + std::to_string(otherWarp) + " of this block";
  } else if (other != several) {
    u64 n = other - 1;
    const Dim3 &g = launch.grid;
    block = "block (" + std::to_string(n % g.x) + "," +
            std::to_string(n / g.x % g.y) + "," +
            std::to_string(n / g.x / g.y) + ")";
  }
  w.report(FindingKind::Race, i, lane,
           hex(address) + offset + ": " + what + " by " + block +
               (here ? ", no barrier between"
                     : ", not ordered by fence, atomic, atomic and fence"),
           address, name);
}

void GlobalRaceChecker::note(u64 granule, u32 mask, Cell &cell, bool writers,
                             const Warp &w) {
  const u32 id = u32(w.cta->index) + 1;
  const Cell mine{id, w.globalEpoch, u16(mask), u16(w.id)};
  auto isMine = [&](const Cell &c) {
    return c.cta == id && c.warp == mine.warp && c.epoch == mine.epoch;
  };
  if (cell.cta == 0 || isMine(cell)) {
    u16 before = cell.mask;
    cell = mine;
    cell.mask |= before;
    return;
  }
  auto &table = writers ? writerBytes : readerBytes;
  if (cell.cta != expanded) {
    // A writer takes a byte over; of readers, all blocks count.
    if ((writers || cell.cta == id) && (cell.mask & ~mask) == 0) {
      cell = mine;
      return;
    }
    ByteCells &bytes = table[granule];
    for (u32 m = cell.mask; m; m &= m - 1)
      bytes.bytes[__builtin_ctz(m)] = {cell.cta, cell.epoch, 1, cell.warp};
    cell.cta = expanded;
  }
  ByteCells &bytes = table[granule];
  for (u32 m = mask; m; m &= m - 1) {
    Cell &c = bytes.bytes[__builtin_ctz(m)];
    bool others = !writers && c.cta && c.cta != id;
    c = {others ? several : id, mine.epoch, 1, mine.warp};
  }
}

void GlobalRaceChecker::access(Warp &w, const Instr &i, const u64 *a, u32 mask,
                               u32 n, bool store) {
  std::lock_guard<std::mutex> guard(lock);
  for (u32 m = mask; m; m &= m - 1) {
    int l = __builtin_ctz(m);
    u64 end = a[l] + n;
    for (u64 lo = a[l]; lo < end;) {
      u64 granule = lo >> 4, hi = std::min(end, (granule + 1) << 4);
      u32 bytes = ((1u << (hi - lo)) - 1) << (lo & 15);
      Page &page = pageOf(lo);
      Cell &writer = page.writers[granule & 255];
      Cell &reader = page.readers[granule & 255];
      if (writer.cta)
        check(w, i, l, granule, bytes, writer, true,
              store ? "write after write" : "read after write");
      if (store && reader.cta)
        check(w, i, l, granule, bytes, reader, false, "write after read");
      note(granule, bytes, store ? writer : reader, store, w);
      lo = hi;
    }
  }
}

void GlobalRaceChecker::strong(Warp &w, const Instr &i, const u64 *a, u32 mask,
                               u32 n, bool store) {
  std::lock_guard<std::mutex> guard(lock);
  if (store) {
    Published &mine = published[w.cta->index];
    mine.resize(w.order.fenced.size());
    bool fresh = false;
    for (size_t v = 0; v < mine.size(); ++v) {
      u32 known = mine[v].empty() ? 0 : mine[v].back().first;
      if (w.order.fenced[v] <= known)
        continue;
      mine[v].push_back({w.order.fenced[v], sequence + 1});
      fresh = true;
    }
    sequence += fresh;
  }
  w.order.seen = sequence;
  for (u32 m = mask; m; m &= m - 1) {
    int l = __builtin_ctz(m);
    Buffer *b = w.cta->findBuffer(a[l], a[l] + n);
    if (!b || b->readOnly)
      continue;
    u64 granule = a[l] >> 4;
    u32 bytes = ((1u << n) - 1) << (a[l] & 15);
    Page &page = pageOf(a[l]);
    check(w, i, l, granule, bytes, page.writers[granule & 255], true,
          "atomic access after plain write");
    if (store)
      check(w, i, l, granule, bytes, page.readers[granule & 255], false,
            "atomic update after plain read");
  }
}

void GlobalRaceChecker::releaseFence(Warp &w) {
  Released &o = w.order;
  for (size_t v = 0; v < o.fenced.size(); ++v)
    o.fenced[v] = std::max(o.fenced[v], o.global[v]);
  o.fenced[w.id] = ++w.globalEpoch;
}

void GlobalRaceChecker::acquireFence(Warp &w) {
  w.order.acquired = w.order.seen;
}
