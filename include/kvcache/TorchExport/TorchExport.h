//===- TorchExport.h - Programs of torch.export -----------------*- C++ -*-===//
//
// Reads what torch.export.save writes, a `.pt2` archive, without torch.
//
//===----------------------------------------------------------------------===//

#ifndef KVCACHE_TORCHEXPORT_TORCHEXPORT_H
#define KVCACHE_TORCHEXPORT_TORCHEXPORT_H

#include "mlir/IR/BuiltinOps.h"
#include "mlir/IR/OwningOpRef.h"
#include "llvm/Support/MemoryBufferRef.h"

namespace mlir::kvcache {

/// The graph of `file`, a `.pt2` archive (NAME/models/NAME.json in a zip) or
/// the JSON in it (schema version 8), as a function @main in torch's dialect:
/// values are `!torch.vtensor`s, and each node is a `torch.operator` with
/// `operand_names`. An op that `auto_functionalized` wraps (v1 or v2) returns
/// the new values of what it mutates; a plain one writes them in place. Weights
/// are arguments under their names (`kvcache.name`). Null, with an error that
/// names the place in the JSON, if that cannot be done. Unregistered dialects
/// become allowed in `context`.
OwningOpRef<ModuleOp> readTorchExport(llvm::MemoryBufferRef file,
                                      MLIRContext *context);

/// Registers `--pt2-to-mlir`.
void registerTorchExportTranslation();

} // namespace mlir::kvcache

#endif // KVCACHE_TORCHEXPORT_TORCHEXPORT_H
