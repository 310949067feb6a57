//===- PassStatistics.h - Pass statistics that count always -----*- C++ -*-===//
//
// Packages of LLVM mostly come without statistics: there Pass::Statistic counts
// nothing, and --mlir-pass-statistics prints an empty report. The generated
// classes of kvcache's passes have PassStatistic instead.
//
//===----------------------------------------------------------------------===//

#ifndef KVCACHE_IR_PASSSTATISTICS_H
#define KVCACHE_IR_PASSSTATISTICS_H

#include "mlir/Pass/Pass.h"
#include <atomic>

namespace mlir::kvcache {

/// A Pass::Statistic that also counts into a total of the process: that of all
/// passes of its owner's name, from any thread.
class PassStatistic : public Pass::Statistic {
public:
  PassStatistic(Pass *owner, const char *name, const char *description);

  PassStatistic &operator++() { return *this += 1; }
  PassStatistic &operator+=(uint64_t count) {
    Pass::Statistic::operator+=(count);
    total.fetch_add(count, std::memory_order_relaxed);
    return *this;
  }

private:
  std::atomic<uint64_t> &total;
};

/// Prints the totals in the form of --mlir-pass-statistics-display=list, behind
/// its heading unless `heading` is false. Passes that have counted nothing are
/// left out.
void printPassStatistics(raw_ostream &os, bool heading = true);

} // namespace mlir::kvcache

#endif // KVCACHE_IR_PASSSTATISTICS_H
