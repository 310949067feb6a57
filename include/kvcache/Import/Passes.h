//===- Passes.h - Import passes ---------------------------------*- C++ -*-===//

#ifndef KVCACHE_IMPORT_PASSES_H
#define KVCACHE_IMPORT_PASSES_H

#include "kvcache/IR/KVCache.h"
#include "kvcache/IR/PassStatistics.h"
#include "mlir/IR/BuiltinOps.h"
#include "mlir/Pass/Pass.h"

namespace mlir::kvcache {

#define GEN_PASS_DECL
#include "kvcache/Import/Passes.h.inc"

#define GEN_PASS_REGISTRATION
#include "kvcache/Import/Passes.h.inc"

/// Registers all passes of the Import library.
inline void registerKVCacheImportPasses() { registerImportPasses(); }

} // namespace mlir::kvcache

#endif // KVCACHE_IMPORT_PASSES_H
