//===- InitAll.h - Registers everything of kvcache -------------*- C++ -*-===//

#ifndef KVCACHE_INITALL_H
#define KVCACHE_INITALL_H

#include "kvcache/Conversion/Passes.h"
#include "kvcache/IR/KVCache.h"
#include "kvcache/Import/Passes.h"
#include "kvcache/Pipelines/Pipelines.h"
#include "kvcache/Transforms/BufferizableOpInterfaceImpl.h"
#include "kvcache/Transforms/CaptureHazards.h"
#include "kvcache/Transforms/Passes.h"
#include "kvcache/Transforms/ShardingInterfaceImpl.h"
#include "mlir/Target/LLVM/NVVM/Target.h"
#include "mlir/Target/LLVMIR/Dialect/Builtin/BuiltinToLLVMIRTranslation.h"
#include "mlir/Target/LLVMIR/Dialect/GPU/GPUToLLVMIRTranslation.h"
#include "mlir/Target/LLVMIR/Dialect/LLVMIR/LLVMToLLVMIRTranslation.h"
#include "mlir/Target/LLVMIR/Dialect/NVVM/NVVMToLLVMIRTranslation.h"

namespace mlir::kvcache {

/// The dialect, and the interfaces that its passes ask foreign ops for.
inline void registerKVCacheDialect(DialectRegistry &registry) {
  registry.insert<KVCacheDialect>();
  registerCaptureHazardExternalModels(registry);
  registerBufferizableOpInterfaceExternalModels(registry);
  registerShardingInterfaceExternalModels(registry);
}

/// What turns kernels into PTX: the NVVM target and the translations to LLVM IR
/// that `buildCodePipeline` and `compile` use.
inline void registerKVCacheTranslations(DialectRegistry &registry) {
  NVVM::registerNVVMTargetInterfaceExternalModels(registry);
  registerBuiltinDialectTranslation(registry);
  registerGPUDialectTranslation(registry);
  registerLLVMDialectTranslation(registry);
  registerNVVMDialectTranslation(registry);
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
