//===- CheckpointSupport.h - Between IR and checkpoint library --*- C++ -*-===//

#ifndef KVCACHE_LIB_TRANSFORMS_CHECKPOINTSUPPORT_H
#define KVCACHE_LIB_TRANSFORMS_CHECKPOINTSUPPORT_H

#include "kvcache/Checkpoint/CacheType.h"
#include "kvcache/Checkpoint/Checkpoint.h"
#include "kvcache/IR/KVCache.h"
#include "mlir/IR/BuiltinOps.h"

namespace mlir::kvcache {

/// Opens the checkpoint of option `checkpoint`; none if the path is empty.
/// Emits an error at the module.
FailureOr<std::optional<::kvcache::Checkpoint>> openCheckpoint(ModuleOp module,
                                                               StringRef path);

/// Emits each finding at the op of its layer, else at the module. Fails if one
/// of them is an error.
LogicalResult
emitDiagnostics(ModuleOp module,
                const std::vector<::kvcache::Diagnostic> &diagnostics,
                llvm::function_ref<Operation *(StringRef layer)> findOp);

/// The element type in the words of the checkpoint library.
::kvcache::CacheType toCheckpointType(Type elementType);

/// The other way round; null for formats that `!kvcache.cache` does not have.
Type fromCheckpointType(MLIRContext *context, ::kvcache::CacheType type);

} // namespace mlir::kvcache

#endif // KVCACHE_LIB_TRANSFORMS_CHECKPOINTSUPPORT_H
