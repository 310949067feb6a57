//===- BufferizableOpInterfaceImpl.h - Bufferization ------------*- C++ -*-===//

#ifndef KVCACHE_TRANSFORMS_BUFFERIZABLEOPINTERFACEIMPL_H
#define KVCACHE_TRANSFORMS_BUFFERIZABLEOPINTERFACEIMPL_H

#include "mlir/IR/DialectRegistry.h"

namespace mlir::kvcache {

/// Gives cache ops on tensors the interface BufferizableOpInterface, for
/// upstream's `one-shot-bufferize`. A cache is reached through its handle and
/// is memory already, so it is never copied; `outs` of an attention is written
/// in place when nobody reads its old value later.
void registerBufferizableOpInterfaceExternalModels(DialectRegistry &registry);

} // namespace mlir::kvcache

#endif // KVCACHE_TRANSFORMS_BUFFERIZABLEOPINTERFACEIMPL_H
