//===- kvcache-lsp-server.cpp - Editor support for graphs -----------------===//
//
// Diagnostics, definitions, hovers and completion for .mlir files with kvcache
// ops, for any editor that speaks the Language Server Protocol.
//
//===----------------------------------------------------------------------===//

#include "kvcache/InitAll.h"
#include "mlir/InitAllDialects.h"
#include "mlir/InitAllExtensions.h"
#include "mlir/Tools/mlir-lsp-server/MlirLspServerMain.h"

int main(int argc, char **argv) {
  mlir::DialectRegistry registry;
  mlir::registerAllDialects(registry);
  mlir::registerAllExtensions(registry);
  mlir::kvcache::registerKVCacheDialect(registry);
  return failed(mlir::MlirLspServerMain(argc, argv, registry));
}
