//===- PassStatistics.cpp - Pass statistics that count always -------------===//

#include "kvcache/IR/PassStatistics.h"
#include "llvm/Support/Format.h"
#include "llvm/Support/raw_ostream.h"
#include <map>
#include <mutex>
#include <string>

using namespace mlir;
using namespace mlir::kvcache;

namespace {
struct Total {
  std::string description;
  std::atomic<uint64_t> value{0};
};

/// All totals of the process; their addresses stay.
struct Totals {
  std::mutex mutex;
  /// By the pass's name, then by the statistic's: the order of the report.
  std::map<std::string, std::map<std::string, Total>> passes;
};
} // namespace

static Totals &totals() {
  static Totals all;
  return all;
}

static std::atomic<uint64_t> &findTotal(const Pass &owner, const char *name,
                                        const char *description) {
  Totals &all = totals();
  std::lock_guard<std::mutex> lock(all.mutex);
  Total &total = all.passes[owner.getName().str()][name];
  total.description = description;
  return total.value;
}

PassStatistic::PassStatistic(Pass *owner, const char *name,
                             const char *description)
    : Pass::Statistic(owner, name, description),
      total(findTotal(*owner, name, description)) {}

void mlir::kvcache::printPassStatistics(raw_ostream &os, bool heading) {
  if (heading) {
    const std::string rule = "===" + std::string(73, '-') + "===\n";
    os << rule << std::string(25, ' ') << "... Pass statistics report ...\n"
       << rule;
  }
  Totals &all = totals();
  std::lock_guard<std::mutex> lock(all.mutex);
  for (const auto &[pass, statistics] : all.passes) {
    size_t nameWidth = 0, valueWidth = 0;
    bool hasCounted = false;
    for (const auto &[name, total] : statistics) {
      nameWidth = std::max(nameWidth, name.size());
      valueWidth = std::max(valueWidth, std::to_string(total.value).size());
      hasCounted = hasCounted || total.value != 0;
    }
    if (!hasCounted)
      continue;
    os << "  " << pass << "\n";
    for (const auto &[name, total] : statistics)
      os << llvm::format("    (S) %*llu %-*s - ", int(valueWidth),
                         (unsigned long long)total.value, int(nameWidth),
                         name.c_str())
         << total.description << "\n";
  }
}
