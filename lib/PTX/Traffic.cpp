//===- Traffic.cpp - Sectors and shared-memory wavefronts -----------------===//

#include "Execution.h"

#include <algorithm>

using namespace kvcache::ptx;

u32 kvcache::ptx::countSectors(const u64 *a, u32 mask, u32 n) {
  // Mostly the lanes' addresses ascend.
  u32 ascending = 0;
  u64 last = 0; // sector, plus one
  bool ordered = true;
  for (u32 m = mask; m && ordered; m &= m - 1) {
    int l = __builtin_ctz(m);
    u64 from = (a[l] >> 5) + 1, to = ((a[l] + n - 1) >> 5) + 1;
    ordered = from >= last;
    ascending += u32(to - from) + (from != last);
    last = to;
  }
  if (ordered)
    return ascending;
  u64 sectors[160];
  int count = 0;
  for (u32 m = mask; m; m &= m - 1) {
    int l = __builtin_ctz(m);
    for (u64 s = a[l] >> 5, end = (a[l] + n - 1) >> 5; s <= end; ++s)
      sectors[count++] = s;
  }
  std::sort(sectors, sectors + count);
  return u32(std::unique(sectors, sectors + count) - sectors);
}

/// Lanes go in groups of 32, 16 or 8 for up to 4, 8 or 16 bytes each; a bank
/// delivers one 4-byte word a wavefront, to any number of lanes.
void kvcache::ptx::countWavefronts(Counters::Shared &c, const u64 *a, u32 mask,
                                   u32 n, int lanes) {
  c.bytes += u64(__builtin_popcount(mask)) * n;
  const int group = n <= 4 ? 32 : n == 8 ? 16 : 8;
  const u32 allLanes = lanes == 32 ? ~0u : (1u << lanes) - 1;
  if (mask == allLanes && (n == 16 || n == 4)) { // often: all banks once
    const int shift = n == 16 ? 4 : 2;
    const u32 banks = n == 16 ? 7 : 31, all = n == 16 ? 255 : ~0u;
    bool clean = true;
    for (int first = 0; first < lanes && clean; first += group) {
      u32 used = 0;
      for (int l = first; l < first + group; ++l)
        used |= 1u << (a[l] >> shift & banks);
      clean = used == (group == 32 && lanes < 32 ? allLanes : all);
    }
    if (clean) {
      u64 count = u64(std::max(1, lanes / group));
      c.wavefronts += count;
      c.ideal += count;
      return;
    }
  }
  for (int first = 0; first < lanes; first += group) {
    u64 words[160], inBank[32];
    u32 used = 0;
    int count = 0;
    bool conflict = false;
    for (int l = first; l < std::min(first + group, 32); ++l)
      if (mask >> l & 1)
        for (u64 word = a[l] >> 2, end = (a[l] + n - 1) >> 2; word <= end;
             ++word) {
          u32 bank = word & 31;
          conflict |= (used >> bank & 1) && inBank[bank] != word;
          used |= 1u << bank;
          inBank[bank] = word;
          words[count++] = word;
        }
    if (!count)
      continue;
    if (!conflict) { // each bank once, for any number of lanes
      ++c.wavefronts;
      ++c.ideal;
      continue;
    }
    std::sort(words, words + count);
    count = int(std::unique(words, words + count) - words);
    u8 perBank[32] = {};
    for (int w = 0; w < count; ++w)
      ++perBank[words[w] & 31];
    c.wavefronts += *std::max_element(perBank, perBank + 32);
    c.ideal += u64((count + 31) / 32);
  }
}
