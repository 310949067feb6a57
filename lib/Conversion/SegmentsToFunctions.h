//===- SegmentsToFunctions.h - Programs as functions -----------*- C++ -*-===//

#ifndef KVCACHE_LIB_CONVERSION_SEGMENTSTOFUNCTIONS_H
#define KVCACHE_LIB_CONVERSION_SEGMENTSTOFUNCTIONS_H

#include "mlir/IR/BuiltinOps.h"

namespace mlir::kvcache {

/// Names of the buffers that a function took on behind its own arguments, in
/// order: a discardable attribute that needs no dialect.
inline constexpr llvm::StringLiteral kTakenBuffers = "kvcache_buffers";

/// Turns each segment, whose launches are lowered, into a `func.func` of the
/// segment's activations and then the other buffers that it uses; callers take
/// these buffers too and hand them on. Then programs and declarations go.
LogicalResult segmentsToFunctions(ModuleOp module);

} // namespace mlir::kvcache

#endif // KVCACHE_LIB_CONVERSION_SEGMENTSTOFUNCTIONS_H
