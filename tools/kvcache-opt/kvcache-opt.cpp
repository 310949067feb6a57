//===- kvcache-opt.cpp - mlir-opt with kvcache ----------------------------===//

#include "kvcache/IR/PassStatistics.h"
#include "kvcache/InitAll.h"
#include "kvcache/Support/Migration.h"
#include "mlir/InitAllDialects.h"
#include "mlir/InitAllExtensions.h"
#include "mlir/InitAllPasses.h"
#include "mlir/Target/LLVM/NVVM/Target.h"
#include "mlir/Target/LLVMIR/Dialect/All.h"
#include "mlir/Tools/mlir-opt/MlirOptMain.h"
#include "llvm/ADT/Statistic.h"
#include "llvm/Support/CommandLine.h"
#include "llvm/Support/Timer.h"
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
  auto [input, output] = mlir::registerAndParseCLIOptions(
      argc, argv,
      "mlir-opt with the kvcache dialect, its passes and its pipelines\n",
      registry);
  // Where LLVM has no statistics, upstream's report has a heading alone. Asked
  // here because MlirOptMain leaves no options behind.
  std::unique_ptr<llvm::raw_ostream> statistics;
  if (!LLVM_ENABLE_STATS && llvm::cl::getRegisteredOptions()
                                    .lookup("mlir-pass-statistics")
                                    ->getNumOccurrences() != 0)
    statistics = llvm::CreateInfoOutputFile();
  llvm::LogicalResult result =
      mlir::MlirOptMain(argc, argv, input, output, registry);
  if (statistics)
    mlir::kvcache::printPassStatistics(*statistics, /*heading=*/false);
  return mlir::asMainReturnCode(result);
}
