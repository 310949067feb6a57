//===- kvcache-translate.cpp - Other formats to MLIR ----------------------===//

#include "kvcache/TorchExport/TorchExport.h"
#include "mlir/Tools/mlir-translate/MlirTranslateMain.h"
#include "llvm/Support/LogicalResult.h"

int main(int argc, char **argv) {
  mlir::kvcache::registerTorchExportTranslation();
  return failed(mlir::mlirTranslateMain(
      argc, argv, "Translations of model formats to MLIR\n"));
}
