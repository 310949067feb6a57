//===- SequenceSharding.h - Tokens of a sequence over ranks -----*- C++ -*-===//
//
// Each rank attends over the tokens that it has; LSEs say how its part weighs.
//
//===----------------------------------------------------------------------===//

#ifndef KVCACHE_LIB_TRANSFORMS_SEQUENCESHARDING_H
#define KVCACHE_LIB_TRANSFORMS_SEQUENCESHARDING_H

#include "kvcache/IR/KVCache.h"
#include "mlir/Dialect/Shard/IR/ShardOps.h"
#include "mlir/IR/IRMapping.h"

namespace mlir::kvcache {

/// Axes of a grid over which the tokens of a sequence are split.
struct SequenceSplit {
  FlatSymbolRefAttr grid;
  SmallVector<shard::GridAxis> axes;
  int64_t ranks = 1; ///< product of the sizes of `axes`
};

/// What the attribute says; one rank without it. A faulty one is a failure,
/// which `emitError`, if given, reports.
FailureOr<SequenceSplit>
readSequenceSplit(GetCacheOp get,
                  function_ref<InFlightDiagnostic()> emitError = {});

/// Why the attention over the tokens of one rank is no part of the attention
/// over all of them; empty if it is one.
std::string getSequenceProblem(AttentionOpInterface op);

/// The attention over this rank's tokens, and its merge with those of the other
/// ranks: parts in f32 and their LSEs are gathered, and merged in the order of
/// the ranks, so that all ranks have the same bits. Sinks are merged last, as a
/// part without values. `partitioned` are the operands on this rank; `map` gets
/// the results.
void attendOverRanks(AttentionOpInterface op, ArrayRef<Value> partitioned,
                     const SequenceSplit &split, IRMapping &map,
                     OpBuilder &builder);

} // namespace mlir::kvcache

#endif // KVCACHE_LIB_TRANSFORMS_SEQUENCESHARDING_H
