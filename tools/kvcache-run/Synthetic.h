//===- Synthetic.h - Inputs without files -----------------------*- C++ -*-===//

#ifndef KVCACHE_TOOLS_RUN_SYNTHETIC_H
#define KVCACHE_TOOLS_RUN_SYNTHETIC_H

#include "kvcache/Runtime/Session.h"

namespace kvcache::run {

/// Sequence lengths of one step; a sequence of length 0 is an empty place of
/// the batch, any other gets new tokens.
using StepLengths = std::vector<int64_t>;

struct SyntheticOptions {
  /// New tokens of each sequence, as far as its length goes.
  int64_t newTokens = 1;
  /// NaN in every cache slot outside the lengths, and page ids far outside the
  /// pool past the end of each sequence: whoever reads them shows it.
  bool poison = false;
};

/// "8,1,17+3": steps by commas, sequences of a step by '+'; a step with one
/// number gives it to every sequence. The error says what is wrong.
Expected<std::vector<StepLengths>>
parseLengths(const std::vector<std::string> &steps);

/// Gives every cache a value in each slot, once before the first step; not with
/// poison, which sets the caches in each step.
Error fillCaches(Session &session);

/// Sets tables, queries, keys and values of one step of the session's program.
/// The same step number gives the same numbers everywhere.
Error setStep(Session &session, const StepLengths &lengths, uint64_t step,
              const SyntheticOptions &options = {});

} // namespace kvcache::run

#endif // KVCACHE_TOOLS_RUN_SYNTHETIC_H
