//===- InitAll.h - Registers everything of kvcache -------------*- C++ -*-===//

#ifndef KVCACHE_INITALL_H
#define KVCACHE_INITALL_H

#include "kvcache/Conversion/Passes.h"
#include "kvcache/IR/KVCache.h"
#include "kvcache/Import/Passes.h"
#include "kvcache/Pipelines/Pipelines.h"
#include "kvcache/Transforms/CaptureHazards.h"
#include "kvcache/Transforms/Passes.h"

namespace mlir::kvcache {

/// The dialect, and the interfaces that its passes ask foreign ops for.
inline void registerKVCacheDialect(DialectRegistry &registry) {
  registry.insert<KVCacheDialect>();
  registerCaptureHazardExternalModels(registry);
}

/// All passes and pipelines of kvcache.
inline void registerKVCachePasses() {
  registerKVCacheImportPasses();
  registerKVCacheTransformsPasses();
  registerKVCacheConversionPasses();
  registerPipelines();
}

} // namespace mlir::kvcache

#endif // KVCACHE_INITALL_H
