//===- GlobalRace.cpp - Conflicts between blocks in global memory ---------===//

#include "GlobalRace.h"

#include <algorithm>

using namespace kvcache::ptx;

GlobalRaceChecker::GlobalRaceChecker(Launch &launch, u64 numCtas)
    : launch(launch), states(numCtas) {}

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

/// Whether what block `other` did in `epoch` happened before what `me` does.
bool GlobalRaceChecker::ordered(u32 other, u32 epoch, u64 me) const {
  const auto &published = states[other].published;
  auto it = std::upper_bound(
      published.begin(), published.end(), epoch,
      [](u32 value, const std::pair<u32, u64> &p) { return value < p.first; });
  return it != published.end() && it->second <= states[me].acquired;
}

void GlobalRaceChecker::check(Warp &w, const Instr &i, int lane, u64 granule,
                              u32 mask, const Cell &cell, bool writers,
                              const char *what) {
  u64 me = w.cta->index;
  auto conflict = [&](const Cell &c) {
    return c.cta && c.cta != me + 1 &&
           (c.cta == several || !ordered(c.cta - 1, c.epoch, me));
  };
  u64 address = granule << 4;
  u32 other = cell.cta;
  if (other == expanded) {
    const ByteCells &bytes = (writers ? writerBytes : readerBytes)[granule];
    int bad = -1;
    for (u32 m = mask; m && bad < 0; m &= m - 1)
      if (conflict(bytes.bytes[__builtin_ctz(m)]))
        bad = __builtin_ctz(m);
    if (bad < 0)
      return;
    other = bytes.bytes[bad].cta;
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
  if (other != several) {
    u64 n = other - 1;
    const Dim3 &g = launch.grid;
    block = "block (" + std::to_string(n % g.x) + "," +
            std::to_string(n / g.x % g.y) + "," +
            std::to_string(n / g.x / g.y) + ")";
  }
  w.report(FindingKind::Race, i, lane,
           hex(address) + offset + ": " + what + " by " + block +
               ", no fence and atomic between",
           address, name);
}

void GlobalRaceChecker::note(u64 granule, u32 mask, Cell &cell, bool writers,
                             u64 me) {
  u32 id = u32(me) + 1, epoch = states[me].epoch;
  if (cell.cta == 0 || (cell.cta == id && cell.epoch == epoch)) {
    cell = {id, epoch, cell.mask | mask};
    return;
  }
  auto &table = writers ? writerBytes : readerBytes;
  if (cell.cta != expanded) {
    // A writer takes a byte over; of readers, all count.
    if (writers && (cell.mask & ~mask) == 0) {
      cell = {id, epoch, mask};
      return;
    }
    ByteCells &bytes = table[granule];
    for (u32 m = cell.mask; m; m &= m - 1)
      bytes.bytes[__builtin_ctz(m)] = {cell.cta, cell.epoch, 1};
    cell.cta = expanded;
  }
  ByteCells &bytes = table[granule];
  for (u32 m = mask; m; m &= m - 1) {
    Cell &c = bytes.bytes[__builtin_ctz(m)];
    bool others = !writers && c.cta && c.cta != id;
    c = {others ? several : id, epoch, 1};
  }
}

void GlobalRaceChecker::access(Warp &w, const Instr &i, const u64 *a, u32 mask,
                               u32 n, bool store) {
  std::lock_guard<std::mutex> guard(lock);
  u64 me = w.cta->index;
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
      if (store)
        note(granule, bytes, writer, true, me);
      else
        note(granule, bytes, reader, false, me);
      lo = hi;
    }
  }
}

void GlobalRaceChecker::strong(Warp &w, const Instr &i, const u64 *a, u32 mask,
                               u32 n, bool store) {
  std::lock_guard<std::mutex> guard(lock);
  CtaState &state = states[w.cta->index];
  if (store &&
      (state.published.empty() || state.published.back().first < state.epoch))
    state.published.push_back({state.epoch, ++sequence});
  state.acquired = sequence;
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

void GlobalRaceChecker::fence(const Cta &cta) {
  std::lock_guard<std::mutex> guard(lock);
  ++states[cta.index].epoch;
}
