//===- BundleBuilder.h - From programs to a bundle -------------*- C++ -*-===//

#ifndef KVCACHE_PIPELINES_BUNDLEBUILDER_H
#define KVCACHE_PIPELINES_BUNDLEBUILDER_H

#include "kvcache/Bundle/Bundle.h"
#include "kvcache/Pipelines/Pipelines.h"
#include "mlir/IR/BuiltinOps.h"
#include "llvm/Support/Error.h"

namespace mlir::kvcache {

struct BundleOptions {
  /// Chips to emit code for, such as sm_80 and sm_90, in this order.
  SmallVector<std::string> targets;
  /// Path of ptxas. Empty: the bundle gets PTX only, which the driver finishes.
  std::string ptxas;
  /// Names of the host function's arguments, by position; an argument without
  /// one has its `kvcache.name`, else `arg<position>`.
  llvm::DenseMap<unsigned, std::string> argumentNames;
};

/// Compiles the programs of `module`, as buildProgramPipeline leaves it, for
/// every target. `module` is not changed. Equal inputs give equal bytes.
/// Errors are reported at the op they concern.
FailureOr<::kvcache::Bundle> buildBundle(ModuleOp module,
                                         const CompileOptions &options,
                                         const BundleOptions &bundleOptions);

/// The cubin that the ptxas at `path` makes of `ptx` for `chip`.
llvm::Expected<std::string> assemblePtx(StringRef path, StringRef chip,
                                        StringRef ptx);

} // namespace mlir::kvcache

#endif // KVCACHE_PIPELINES_BUNDLEBUILDER_H
