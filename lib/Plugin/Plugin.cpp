//===- Plugin.cpp - kvcache in a stock mlir-opt ---------------------------===//
//
//   mlir-opt --load-dialect-plugin=libKVCachePlugin.so \
//            --load-pass-plugin=libKVCachePlugin.so --kvcache-import ...
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
