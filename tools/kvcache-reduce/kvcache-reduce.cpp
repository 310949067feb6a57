//===- kvcache-reduce.cpp - mlir-reduce with kvcache ----------------------===//
//
//   kvcache-reduce BIG.mlir --kvcache-reduction=test=SCRIPT
//
// SCRIPT gets a file and exits with 1 when the file still shows the failure.
//
//===----------------------------------------------------------------------===//

#include "Reduction.h"
#include "kvcache/InitAll.h"
#include "mlir/InitAllDialects.h"
#include "mlir/InitAllExtensions.h"
#include "mlir/InitAllPasses.h"
#include "mlir/Reducer/Passes.h"
#include "mlir/Tools/mlir-reduce/MlirReduceMain.h"

int main(int argc, char **argv) {
  mlir::DialectRegistry registry;
  mlir::registerAllDialects(registry);
  mlir::registerAllExtensions(registry);
  mlir::registerAllPasses();
  mlir::registerReducerPasses();
  mlir::kvcache::registerKVCacheDialect(registry);
  mlir::kvcache::registerKVCachePasses();
  mlir::kvcache::registerReductionPass();
  mlir::MLIRContext context(registry);
  return failed(mlir::mlirReduceMain(argc, argv, context));
}
