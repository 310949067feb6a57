//===- CaptureHazards.h - What ops do to a capture -------------*- C++ -*-===//

#ifndef KVCACHE_TRANSFORMS_CAPTUREHAZARDS_H
#define KVCACHE_TRANSFORMS_CAPTUREHAZARDS_H

#include "mlir/IR/DialectRegistry.h"
#include "mlir/IR/Value.h"

namespace mlir::kvcache {

/// Gives ops of bufferization, func, gpu, memref, scf and tensor the interface
/// CaptureHazardOpInterface.
void registerCaptureHazardExternalModels(DialectRegistry &registry);

/// The op behind `value` that reads live data or a dimension that is not
/// static; null when the value is a function of constants and arguments.
Operation *findLiveSource(Value value);

/// Whether `value` is a scalar that depends on a block argument.
bool dependsOnHostScalar(Value value);

} // namespace mlir::kvcache

#endif // KVCACHE_TRANSFORMS_CAPTUREHAZARDS_H
