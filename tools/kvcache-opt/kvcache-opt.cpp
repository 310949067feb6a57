#include "kvcache/IR/KVCache.h"
#include "mlir/InitAllDialects.h"
#include "mlir/InitAllPasses.h"
#include "mlir/Tools/mlir-opt/MlirOptMain.h"
int main(int argc, char **argv) {
  mlir::DialectRegistry registry;
  mlir::registerAllDialects(registry);
  mlir::registerAllPasses();
  registry.insert<mlir::kvcache::KVCacheDialect>();
  return mlir::asMainReturnCode(mlir::MlirOptMain(argc, argv, "kvcache-opt\n", registry));
}
