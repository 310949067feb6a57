//===- Passes.h - Conversions from the kvcache dialect ---------*- C++ -*-===//
//
// What each pass does, needs and refuses is in Passes.td.
//
//===----------------------------------------------------------------------===//

#ifndef KVCACHE_CONVERSION_PASSES_H
#define KVCACHE_CONVERSION_PASSES_H

#include "kvcache/IR/PassStatistics.h"
#include "mlir/Dialect/GPU/IR/GPUDialect.h"
#include "mlir/IR/BuiltinOps.h"
#include "mlir/Pass/Pass.h"
#include <memory>

namespace mlir::kvcache {

#define GEN_PASS_DECL
#include "kvcache/Conversion/Passes.h.inc"

#define GEN_PASS_REGISTRATION
#include "kvcache/Conversion/Passes.h.inc"

/// Registers all passes of this folder by their command-line names.
inline void registerKVCacheConversionPasses() { registerConversionPasses(); }

} // namespace mlir::kvcache

#endif // KVCACHE_CONVERSION_PASSES_H
