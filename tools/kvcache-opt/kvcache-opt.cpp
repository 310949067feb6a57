//===- kvcache-opt.cpp - mlir-opt with kvcache ----------------------------===//

#include "kvcache/InitAll.h"
#include "kvcache/Support/Migration.h"
#include "mlir/InitAllDialects.h"
#include "mlir/InitAllExtensions.h"
#include "mlir/InitAllPasses.h"
#include "mlir/Target/LLVM/NVVM/Target.h"
#include "mlir/Target/LLVMIR/Dialect/All.h"
#include "mlir/Tools/mlir-opt/MlirOptMain.h"
#include "llvm/Support/raw_ostream.h"

int main(int argc, char **argv) {
  if (::kvcache::asksForRunTimeScales(argc, argv)) {
    llvm::errs() << "kvcache-opt: " << ::kvcache::calculateScalesMigration;
    return 1;
  }
  mlir::DialectRegistry registry;
  mlir::registerAllDialects(registry);
  mlir::registerAllExtensions(registry);
  mlir::registerAllToLLVMIRTranslations(registry);
  mlir::NVVM::registerNVVMTargetInterfaceExternalModels(registry);
  mlir::registerAllPasses();
  mlir::kvcache::registerKVCacheDialect(registry);
  mlir::kvcache::registerKVCachePasses();
  return mlir::asMainReturnCode(mlir::MlirOptMain(
      argc, argv,
      "mlir-opt with the kvcache dialect, its passes and its pipelines\n",
      registry));
}
