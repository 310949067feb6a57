//===- GlobalRace.h - Conflicts between blocks in global memory -*- C++ -*-===//
//
// Two blocks of a launch conflict when both touch a byte, at least one of them
// writes it with a plain store, and nothing orders them. Ordered means: the
// first block executed a fence of gpu scope (or a release) after its access and
// then an atomic or strong access, and the second block executed an atomic or
// strong access later than that: the pattern of "the last block to arrive
// merges". Atomics and strong accesses do not conflict with each other.
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
  void fence(const Cta &cta);

private:
  /// Who touched a granule of 16 bytes. `cta` is the linear block + 1, 0 for
  /// nobody, `expanded` when the bytes have cells of their own.
  struct Cell {
    u32 cta = 0, epoch = 0, mask = 0;
  };
  static constexpr u32 expanded = ~0u;
  static constexpr u32 several = ~0u - 1;
  struct Page {
    Cell writers[256], readers[256];
  };
  struct ByteCells {
    Cell bytes[16];
  };
  struct CtaState {
    u32 epoch = 0;
    u64 acquired = 0;
    /// (epoch, sequence number of the atomic that made it visible).
    std::vector<std::pair<u32, u64>> published;
  };

  Launch &launch;
  std::mutex lock;
  std::unordered_map<u64, std::unique_ptr<Page>> pages;
  std::unordered_map<u64, ByteCells> writerBytes, readerBytes;
  std::vector<CtaState> states;
  u64 sequence = 0;
  u64 lastPageId = ~0ull;
  Page *lastPage = nullptr;

  Page &pageOf(u64 address);
  bool ordered(u32 other, u32 epoch, u64 me) const;
  void check(Warp &w, const Instr &i, int lane, u64 granule, u32 mask,
             const Cell &cell, bool writers, const char *what);
  void note(u64 granule, u32 mask, Cell &cell, bool writers, u64 me);
};

} // namespace kvcache::ptx

#endif // KVCACHE_LIB_PTX_GLOBALRACE_H
