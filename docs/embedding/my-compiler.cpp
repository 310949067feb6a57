//===- my-compiler.cpp - kvcache inside another ML compiler ---------------===//
//
//   my-compiler GRAPH.mlir CHECKPOINT
//
// Registers the dialect, runs the pipeline, and takes the two results: stock
// IR (a gpu.binary, and functions with gpu.launch_func that gpu-to-llvm takes
// on), and the manifest, which says what each buffer and each scale is.
//
//===----------------------------------------------------------------------===//

#include "kvcache/InitAll.h"
#include "kvcache/Pipelines/Compile.h"
#include "mlir/Dialect/Arith/IR/Arith.h"
#include "mlir/Dialect/Bufferization/IR/Bufferization.h"
#include "mlir/Dialect/ControlFlow/IR/ControlFlowOps.h"
#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "mlir/Dialect/GPU/IR/GPUDialect.h"
#include "mlir/Dialect/Linalg/IR/Linalg.h"
#include "mlir/Dialect/Math/IR/Math.h"
#include "mlir/Dialect/Tensor/IR/Tensor.h"
#include "mlir/Parser/Parser.h"
#include "mlir/Pass/PassManager.h"
#include "llvm/Support/raw_ostream.h"

using namespace mlir;
namespace kv = mlir::kvcache;

int main(int argc, char **argv) {
  if (argc != 3) {
    llvm::errs() << "usage: my-compiler GRAPH.mlir CHECKPOINT\n";
    return 2;
  }

  // 1. The dialect, what its ops need to become code, and your own dialects.
  DialectRegistry registry;
  kv::registerKVCacheDialect(registry);
  kv::registerKVCacheTranslations(registry);
  registry
      .insert<arith::ArithDialect, bufferization::BufferizationDialect,
              cf::ControlFlowDialect, func::FuncDialect, linalg::LinalgDialect,
              math::MathDialect, tensor::TensorDialect>();
  MLIRContext context(registry);
  context.allowUnregisteredDialects(); // the serving stack's custom ops

  auto graph = parseSourceFile<ModuleOp>(argv[1], &context);
  if (!graph)
    return 1;

  // 2. Scales to constants, programs that one static graph can hold. The
  // capacities bound every grid and every buffer.
  kv::CompileOptions options;
  options.checkpoint = argv[2];
  options.kernelLibrary = KERNEL_LIBRARY;
  options.target = "sm_90";
  options.maxTokens = 8;
  options.maxSequences = 2;
  options.maxPagesPerSequence = 2;
  options.numPages = 7;
  // The kernels that are compiled here serve later graphs too.
  kv::KernelCache kernels;
  kv::BundleOptions bundleOptions;
  bundleOptions.targets = {"sm_80", "sm_90"};
  bundleOptions.cache = &kernels;
  auto bundle = kv::compile(*graph, options, bundleOptions);
  if (failed(bundle))
    return 1;

  // 3. The manifest, and the code of every target, in memory.
  for (const auto &layer : bundle->manifest.layers)
    llvm::outs() << layer.name << ": k scale " << layer.kScale.value.value()
                 << " from " << layer.kScale.key << "\n";
  for (const auto &buffer : bundle->manifest.buffers)
    llvm::outs() << "buffer " << buffer.name << ": " << buffer.bytes
                 << " bytes\n";

  // 4. Or the same kernels as stock IR, inside your own module: the graph now
  // holds the programs.
  PassManager back(&context);
  kv::buildSelectionPipeline(back, options);
  kv::buildCodePipeline(back, options);
  if (failed(back.run(*graph)))
    return 1;
  graph->walk([](gpu::BinaryOp binary) {
    for (Attribute object : binary.getObjects())
      llvm::outs() << "gpu.binary @" << binary.getSymName() << ": "
                   << cast<gpu::ObjectAttr>(object).getObject().size()
                   << " bytes\n";
  });
  graph->walk([](gpu::LaunchFuncOp launch) {
    llvm::outs() << launch->getParentOfType<func::FuncOp>().getSymName()
                 << " launches " << launch.getKernelName().getValue() << "\n";
  });
  return 0;
}
