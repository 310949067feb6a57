//===- Compile.h - From a graph to a bundle in memory ----------*- C++ -*-===//
//
// One call from a graph to a bundle, and a cache that keeps the kernels it
// compiles for the next call. kvcache-compile is this call with a command line
// in front and a writer behind.
//
//===----------------------------------------------------------------------===//

#ifndef KVCACHE_PIPELINES_COMPILE_H
#define KVCACHE_PIPELINES_COMPILE_H

#include "kvcache/Bundle/Bundle.h"
#include "kvcache/Pipelines/Pipelines.h"
#include "mlir/IR/BuiltinOps.h"
#include "llvm/Support/Error.h"

namespace mlir::kvcache {

/// Kernels that were compiled before, by structure: chip, device library and
/// everything that the compiler folds into the code, but not scales, grids or
/// layers. Any number of compilations may use one cache at the same time, each
/// in an MLIRContext of its own; of several that need one kernel, one compiles
/// it and the others wait.
class KernelCache {
public:
  KernelCache();
  ~KernelCache();

  struct Statistics {
    uint64_t compiled = 0;  ///< kernels that LLVM compiled to PTX
    uint64_t assembled = 0; ///< times that ptxas ran
    uint64_t reused = 0;    ///< kernels and cubins that were there already
  };
  Statistics statistics() const;

  struct Implementation;
  Implementation &implementation() { return *impl; }

private:
  std::unique_ptr<Implementation> impl;
};

struct BundleOptions {
  /// Chips to emit code for, such as sm_80 and sm_90, in this order.
  SmallVector<std::string> targets;
  /// Path of ptxas. Empty: the bundle gets PTX only, which the driver finishes.
  std::string ptxas;
  /// Names of the host function's arguments, by position; an argument without
  /// one has its `kvcache.name`, else `arg<position>`.
  llvm::DenseMap<unsigned, std::string> argumentNames;
  /// Kernels of earlier calls, to which this one adds; null: none are kept.
  KernelCache *cache = nullptr;
};

/// Compiles a graph with its checkpoint. On return `module` holds the graph's
/// programs, before kernels are selected; the same module in gives the same
/// bytes out, with and without a cache. The context needs
/// registerKVCacheDialect and registerKVCacheTranslations (kvcache/InitAll.h).
/// Errors are reported at the op they concern.
FailureOr<::kvcache::Bundle> compile(ModuleOp module,
                                     const CompileOptions &options,
                                     const BundleOptions &bundleOptions);

/// The last step of `compile` by itself: `module` is as buildProgramPipeline
/// leaves it, and is not changed.
FailureOr<::kvcache::Bundle> buildBundle(ModuleOp module,
                                         const CompileOptions &options,
                                         const BundleOptions &bundleOptions);

/// The cubin that the ptxas at `path` makes of `ptx` for `chip`.
llvm::Expected<std::string> assemblePtx(StringRef path, StringRef chip,
                                        StringRef ptx);

} // namespace mlir::kvcache

#endif // KVCACHE_PIPELINES_COMPILE_H
