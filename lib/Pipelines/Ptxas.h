//===- Ptxas.h - Running ptxas ---------------------------------*- C++ -*-===//

#ifndef KVCACHE_LIB_PIPELINES_PTXAS_H
#define KVCACHE_LIB_PIPELINES_PTXAS_H

#include "kvcache/Bundle/Manifest.h"
#include "llvm/ADT/StringMap.h"
#include "llvm/ADT/StringRef.h"
#include "llvm/Support/Error.h"

namespace mlir::kvcache {

struct Cubin {
  std::string object;
  /// What ptxas said about each kernel.
  llvm::StringMap<::kvcache::KernelReport> reports;
};

/// Assembles `ptx` for `chip` with the ptxas at `path`. The error holds what
/// ptxas printed.
llvm::Expected<Cubin> runPtxas(llvm::StringRef path, llvm::StringRef chip,
                               llvm::StringRef ptx);

} // namespace mlir::kvcache

#endif // KVCACHE_LIB_PIPELINES_PTXAS_H
