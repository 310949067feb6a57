//===- GlobalRace.h - Conflicts between blocks in global memory -*- C++ -*-===//
//
// Two warps of a launch conflict when both touch a byte, at least one of them
// writes it with a plain store, and nothing orders them. Inside a block,
// barriers and mbarriers do (Order.cpp). Between blocks: after the first access
// its warp, or one that a barrier orders after it, executed a fence of gpu
// scope (or a release), then a warp of that block an atomic or strong store;
// later a warp of the second block executed an atomic or strong load, then a
// fence (or that was an acquire), and barriers order the second access after
// that. This is the pattern of "the last block to arrive merges". Atomics and
// strong accesses do not conflict with each other.
//
// Blocks run one after the other, so a conflict is found in whatever order they
// run. Buffers that are read-only are not tracked.
//
//===----------------------------------------------------------------------===//

#ifndef KVCACHE_LIB_PTX_GLOBALRACE_H
#define KVCACHE_LIB_PTX_GLOBALRACE_H

#include "Execution.h"

namespace kvcache::ptx {

class GlobalRaceChecker {
public:
  GlobalRaceChecker(Launch &launch, u64 numCtas);

  /// Plain accesses of the lanes in `mask`, all in tracked buffers.
  void access(Warp &w, const Instr &i, const u64 *a, u32 mask, u32 n,
              bool store);
  /// Atomics and strong accesses: conflict with plain ones, and order blocks.
  void strong(Warp &w, const Instr &i, const u64 *a, u32 mask, u32 n,
              bool store);
  /// Of gpu scope or wider.
  static void releaseFence(Warp &w);
  static void acquireFence(Warp &w);

private:
  /// Who touched a granule of 16 bytes. `cta` is the linear block + 1, 0 for
  /// nobody, `expanded` when the bytes have cells of their own.
  struct Cell {
    u32 cta = 0, epoch = 0;
    u16 mask = 0, warp = 0;
  };
  static constexpr u32 expanded = ~0u;
  static constexpr u32 several = ~0u - 1;
  struct Page {
    Cell writers[256], readers[256];
  };
  struct ByteCells {
    Cell bytes[16];
  };
  /// For each warp of a block: (epochs below this, sequence number of the
  /// atomic that made them visible), ascending.
  using Published = std::vector<std::vector<std::pair<u32, u64>>>;

  Launch &launch;
  std::mutex lock;
  std::unordered_map<u64, std::unique_ptr<Page>> pages;
  std::unordered_map<u64, ByteCells> writerBytes, readerBytes;
  std::vector<Published> published; // per block
  u64 sequence = 0;
  u64 lastPageId = ~0ull;
  Page *lastPage = nullptr;

  Page &pageOf(u64 address);
  bool ordered(const Cell &cell, const Warp &w) const;
  void check(Warp &w, const Instr &i, int lane, u64 granule, u32 mask,
             const Cell &cell, bool writers, const char *what);
  void note(u64 granule, u32 mask, Cell &cell, bool writers, const Warp &w);
};

} // namespace kvcache::ptx

#endif // KVCACHE_LIB_PTX_GLOBALRACE_H
