//===- Pipelines.cpp - From a graph to kernels ----------------------------===//

#include "kvcache/Pipelines/Pipelines.h"
#include "kvcache/Conversion/Passes.h"
#include "kvcache/IR/KVCache.h"
#include "kvcache/Import/Passes.h"
#include "kvcache/Transforms/Passes.h"
#include "mlir/Dialect/GPU/Transforms/Passes.h"
#include "mlir/Pass/PassRegistry.h"
#include "mlir/Transforms/Passes.h"
#include "llvm/Support/FileSystem.h"
#include "llvm/Support/Path.h"
#include <dlfcn.h>

using namespace mlir;
using namespace mlir::kvcache;

//===----------------------------------------------------------------------===//
// Import, and scales to constants
//===----------------------------------------------------------------------===//

void mlir::kvcache::buildScalePipeline(OpPassManager &pm,
                                       const CompileOptions &options) {
  ImportOptions import;
  import.opTable = llvm::to_vector(options.opTable);
  import.checkpoint = options.checkpoint;
  import.requireAttention = options.requireAttention;
  import.pageSize = options.pageSize;
  import.kvLayout = options.kvLayout;
  import.maxTokens = options.maxTokens;
  import.maxSequences = options.maxSequences;
  import.maxPagesPerSequence = options.maxPagesPerSequence;
  import.numPages = options.numPages;
  pm.addPass(createImport(import));

  // Before the types: `skip-layers=sliding_window` asks for windows, which the
  // config knows.
  ApplyModelConfigOptions config;
  config.checkpoint = options.checkpoint;
  config.softmaxScale = options.softmaxScale;
  config.softCap = options.softCap;
  config.window = options.window;
  config.tpSize = options.tpSize;
  config.tpRank = options.tpRank;
  pm.addPass(createApplyModelConfig(config));

  ResolveCacheTypesOptions types;
  types.checkpoint = options.checkpoint;
  types.kvCacheDtype = options.kvCacheDtype;
  types.tokenScales = options.tokenScales;
  types.skipLayers = llvm::to_vector(options.skipLayers);
  pm.addPass(createResolveCacheTypes(types));

  FoldCheckpointScalesOptions fold;
  fold.checkpoint = options.checkpoint;
  fold.scalePolicy = options.scalePolicy;
  fold.scale = llvm::to_vector(options.scales);
  fold.scaleOverlay = llvm::to_vector(options.scaleOverlay);
  fold.roundScalesTo = options.roundScalesTo;
  fold.requireCalibrated = options.requireCalibrated;
  fold.tpSize = options.tpSize;
  fold.tpRank = options.tpRank;
  pm.addPass(createFoldCheckpointScales(fold));

  pm.addPass(createDropDynamicScales());
  pm.addPass(createVerifyStaticScales());
}

//===----------------------------------------------------------------------===//
// Capacities
//===----------------------------------------------------------------------===//

/// The number of tokens that every cache op of the group has; nothing when one
/// of them has a dynamic dimension.
static std::optional<int64_t> staticTokens(ModuleOp module,
                                           CacheGroupOp group) {
  int64_t tokens = 0;
  bool isStatic = true;
  module.walk([&](CacheOpInterface op) {
    CacheOp cache = getCacheDeclaration(op.getCacheHandle());
    if (!cache || cache.getGroup() != group.getSymName())
      return;
    int64_t rows = cast<ShapedType>(op->getOperand(0).getType()).getDimSize(0);
    isStatic &= !ShapedType::isDynamic(rows);
    tokens = std::max(tokens, rows);
  });
  if (!isStatic || tokens == 0)
    return std::nullopt;
  return tokens;
}

LogicalResult mlir::kvcache::completeCapacities(ModuleOp module,
                                                const CompileOptions &options) {
  for (auto group : module.getOps<CacheGroupOp>()) {
    auto choose = [](int64_t given, std::optional<uint64_t> present,
                     int64_t otherwise) -> uint64_t {
      return given ? given : present ? *present : otherwise;
    };
    std::optional<int64_t> tokens = staticTokens(module, group);
    if (tokens && options.maxTokens && options.maxTokens != *tokens)
      return group.emitError()
             << "max-tokens=" << options.maxTokens.getValue()
             << " contradicts the graph, which has " << *tokens
             << " tokens in every step; leave max-tokens out";
    int64_t batch =
        options.batchSizes.empty() ? 0 : *llvm::max_element(options.batchSizes);
    group.setMaxTokens(choose(options.maxTokens, group.getMaxTokens(),
                              tokens.value_or(batch ? batch : 256)));
    uint64_t sequences =
        choose(options.maxSequences, group.getMaxSequences(),
               batch ? batch : std::min<uint64_t>(64, *group.getMaxTokens()));
    group.setMaxSequences(sequences);
    uint64_t pages = choose(options.maxPagesPerSequence,
                            group.getMaxPagesPerSequence(), 128);
    group.setMaxPagesPerSequence(pages);
    group.setNumPages(
        choose(options.numPages, group.getNumPages(), sequences * pages));
  }
  return success();
}

//===----------------------------------------------------------------------===//
// Programs
//===----------------------------------------------------------------------===//

void mlir::kvcache::buildProgramPipeline(OpPassManager &pm,
                                         const CompileOptions &options) {
  // Graphs that differ only in what the scale pipeline removed become the same
  // graph, so they give the same bundle.
  pm.addPass(createCanonicalizerPass());
  pm.addPass(createCSEPass());
  pm.addPass(createSortPureOps());

  VerifyCapturableOptions capture;
  capture.oneGraph = options.oneGraph;
  pm.addPass(createVerifyCapturable(capture));

  FormProgramsOptions form;
  form.batchSizes = llvm::to_vector(options.batchSizes);
  pm.addPass(createFormPrograms(form));
}

//===----------------------------------------------------------------------===//
// Kernels
//===----------------------------------------------------------------------===//

void mlir::kvcache::buildSelectionPipeline(OpPassManager &pm,
                                           const CompileOptions &options) {
  SelectKernelsOptions select;
  select.target = options.target;
  select.math = options.math;
  select.tune = llvm::to_vector(options.tune);
  select.runtimeStrides = options.runtimeStrides;
  pm.addPass(createSelectKernels(select));

  VerifyCapturableOptions capture;
  capture.oneGraph = options.oneGraph;
  pm.addPass(createVerifyCapturable(capture));
}

void mlir::kvcache::buildCodePipeline(OpPassManager &pm,
                                      const CompileOptions &options) {
  ConvertKVCacheToNVVMOptions nvvm;
  nvvm.target = options.target;
  nvvm.kernelLibrary = options.kernelLibrary.empty()
                           ? findKernelLibrary()
                           : std::string(options.kernelLibrary);
  pm.addPass(createConvertKVCacheToNVVM(nvvm));

  GpuModuleToBinaryPassOptions binary;
  binary.compilationTarget = "isa";
  pm.addPass(createGpuModuleToBinaryPass(binary));
}

//===----------------------------------------------------------------------===//
// Reference
//===----------------------------------------------------------------------===//

void mlir::kvcache::buildReferencePipeline(OpPassManager &pm,
                                           const CompileOptions &options) {
  buildScalePipeline(pm, options);
  pm.addPass(createCachesToArguments());
  pm.addPass(createConvertKVCacheToReference());
}

//===----------------------------------------------------------------------===//
// Registration
//===----------------------------------------------------------------------===//

void mlir::kvcache::registerPipelines() {
  PassPipelineRegistration<CompileOptions>(
      "kvcache-compile-pipeline",
      "From a graph with a checkpoint to launches and a gpu.binary of PTX",
      [](OpPassManager &pm, const CompileOptions &options) {
        buildScalePipeline(pm, options);
        buildProgramPipeline(pm, options);
        buildSelectionPipeline(pm, options);
        buildCodePipeline(pm, options);
      });
  PassPipelineRegistration<CompileOptions>(
      "kvcache-scale-pipeline", "Stage 1: import, and scales to constants",
      buildScalePipeline);
  PassPipelineRegistration<CompileOptions>(
      "kvcache-program-pipeline", "Stage 2: programs, proven capturable",
      buildProgramPipeline);
  PassPipelineRegistration<CompileOptions>(
      "kvcache-selection-pipeline", "Stage 3: launches of selected kernels",
      buildSelectionPipeline);
  PassPipelineRegistration<CompileOptions>(
      "kvcache-code-pipeline", "Stage 4: kernels as a gpu.binary of PTX",
      buildCodePipeline);
  PassPipelineRegistration<CompileOptions>(
      "kvcache-reference-pipeline",
      "From a graph with a checkpoint to loops that define the ops, with "
      "caches as arguments",
      buildReferencePipeline);
}

std::string mlir::kvcache::findKernelLibrary() {
  // The executable or the plugin that holds this code.
  Dl_info info;
  if (!dladdr(reinterpret_cast<void *>(&findKernelLibrary), &info) ||
      !info.dli_fname)
    return "";
  SmallString<256> real;
  // An executable that was found through PATH has a name without a folder here.
  if (!StringRef(info.dli_fname).contains('/'))
    real = llvm::sys::fs::getMainExecutable(
        info.dli_fname, reinterpret_cast<void *>(&findKernelLibrary));
  else if (llvm::sys::fs::real_path(info.dli_fname, real))
    real = info.dli_fname;
  StringRef folder = llvm::sys::path::parent_path(real);
  for (StringRef relative : {"../lib/kvcache", "kvcache", "../lib"}) {
    SmallString<256> candidate(folder);
    llvm::sys::path::append(candidate, relative, "kvcache_kernels.bc");
    llvm::sys::path::remove_dots(candidate, /*remove_dot_dot=*/true);
    if (llvm::sys::fs::exists(candidate))
      return std::string(candidate);
  }
  if (llvm::sys::fs::exists(KVCACHE_INSTALLED_KERNELS))
    return KVCACHE_INSTALLED_KERNELS;
  return "";
}
