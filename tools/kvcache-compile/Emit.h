//===- Emit.h - What kvcache-compile writes ---------------------*- C++ -*-===//

#ifndef KVCACHE_TOOLS_COMPILE_EMIT_H
#define KVCACHE_TOOLS_COMPILE_EMIT_H

#include "kvcache/Bundle/Bundle.h"
#include "mlir/IR/BuiltinOps.h"

namespace kvcache::compile {

struct EmitOptions {
  std::string kind = "bundle"; // bundle, mlir, ptx, cubin, header, triton
  std::string output;          // a folder, or a file
  std::string ptxas;           // empty: none
  std::string tritonAbi;       // release of Triton
};

/// What is wrong with the options, before anything is compiled.
Error checkEmit(const EmitOptions &options, size_t targets);

/// Writes one form of a compiled module, complete or not at all. Code of
/// several targets goes to a folder, of one to a file.
Error emit(const EmitOptions &options, const Bundle &bundle,
           mlir::ModuleOp module);

} // namespace kvcache::compile

#endif // KVCACHE_TOOLS_COMPILE_EMIT_H
