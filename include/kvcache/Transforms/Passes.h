//===- Passes.h - kvcache to kvcache passes ---------------------*- C++ -*-===//

#ifndef KVCACHE_TRANSFORMS_PASSES_H
#define KVCACHE_TRANSFORMS_PASSES_H

#include "kvcache/IR/KVCache.h"
#include "mlir/Dialect/Arith/IR/Arith.h"
#include "mlir/IR/BuiltinOps.h"
#include "mlir/Pass/Pass.h"

namespace mlir::kvcache {

#define GEN_PASS_DECL
#include "kvcache/Transforms/Passes.h.inc"

#define GEN_PASS_REGISTRATION
#include "kvcache/Transforms/Passes.h.inc"

/// Registers all passes of the Transforms library.
inline void registerKVCacheTransformsPasses() { registerTransformsPasses(); }

} // namespace mlir::kvcache

#endif // KVCACHE_TRANSFORMS_PASSES_H
