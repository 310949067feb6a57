//===- Synthetic.h - Inputs without files -----------------------*- C++ -*-===//

#ifndef KVCACHE_TOOLS_RUN_SYNTHETIC_H
#define KVCACHE_TOOLS_RUN_SYNTHETIC_H

#include "kvcache/Runtime/Session.h"

namespace kvcache::run {

/// Sequence lengths of one step; a sequence of length 0 is an empty place of
/// the batch, any other gets one new token.
using StepLengths = std::vector<int64_t>;

/// "8,1,17+3": steps by commas, sequences of a step by '+'; a step with one
/// number gives it to every sequence. The error says what is wrong.
Expected<std::vector<StepLengths>>
parseLengths(const std::vector<std::string> &steps);

/// Gives every cache a value in each slot, once before the first step.
Error fillCaches(Session &session);

/// Sets tables, queries, keys and values of one step. The same step number
/// gives the same numbers everywhere.
Error setStep(Session &session, const StepLengths &lengths, uint64_t step);

} // namespace kvcache::run

#endif // KVCACHE_TOOLS_RUN_SYNTHETIC_H
