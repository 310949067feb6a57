//===- Passes.cpp - The plugin's dialect, passes and pipelines ------------===//
//
// Everything of MLIR comes from the mlir-opt that loads the plugin; Plugin.cpp
// opens this library once it knows that the two fit.
//
//===----------------------------------------------------------------------===//

#include "kvcache/InitAll.h"
#include "mlir/Tools/Plugins/DialectPlugin.h"
#include "mlir/Tools/Plugins/PassPlugin.h"

using namespace mlir;

extern "C" LLVM_ATTRIBUTE_WEAK DialectPluginLibraryInfo
mlirGetDialectPluginInfo() {
  return {MLIR_PLUGIN_API_VERSION, "kvcache", KVCACHE_VERSION,
          [](DialectRegistry *registry) {
            mlir::kvcache::registerKVCacheDialect(*registry);
          }};
}

extern "C" LLVM_ATTRIBUTE_WEAK PassPluginLibraryInfo mlirGetPassPluginInfo() {
  return {MLIR_PLUGIN_API_VERSION, "kvcache", KVCACHE_VERSION,
          mlir::kvcache::registerKVCachePasses};
}
