//===- Passes.h - kvcache to kvcache passes ---------------------*- C++ -*-===//

#ifndef KVCACHE_TRANSFORMS_PASSES_H
#define KVCACHE_TRANSFORMS_PASSES_H

#include "kvcache/IR/KVCache.h"
#include "kvcache/IR/PassStatistics.h"
#include "mlir/Dialect/Arith/IR/Arith.h"
#include "mlir/IR/BuiltinOps.h"
#include "mlir/Pass/Pass.h"

namespace kvcache {
struct ScaleTable;
} // namespace kvcache

namespace mlir::kvcache {

#define GEN_PASS_DECL
#include "kvcache/Transforms/Passes.h.inc"

#define GEN_PASS_REGISTRATION
#include "kvcache/Transforms/Passes.h.inc"

/// `kvcache-fold-checkpoint-scales` with scales that are in memory instead of
/// files: `table` has every layer whose cache has no static scales yet, under
/// the graph's name, and says what the pass would have read (fill it by hand or
/// by ::kvcache::resolveScales). Its diagnostics are emitted, and an error
/// among them fails the pass; so does a layer that it lacks.
std::unique_ptr<Pass>
createFoldCheckpointScalesPass(::kvcache::ScaleTable table);

/// Registers all passes of the Transforms library.
inline void registerKVCacheTransformsPasses() { registerTransformsPasses(); }

} // namespace mlir::kvcache

#endif // KVCACHE_TRANSFORMS_PASSES_H
