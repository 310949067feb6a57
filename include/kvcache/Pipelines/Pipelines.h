//===- Pipelines.h - From a graph to kernels -------------------*- C++ -*-===//
//
// Stages of the compiler as functions that fill a pass manager, and one struct
// with every choice that neither the graph nor the checkpoint makes. The
// names of the options are the same in passes, tools and the manifest.
//
//===----------------------------------------------------------------------===//

#ifndef KVCACHE_PIPELINES_PIPELINES_H
#define KVCACHE_PIPELINES_PIPELINES_H

#include "mlir/IR/BuiltinOps.h"
#include "mlir/Pass/PassManager.h"
#include "mlir/Pass/PassOptions.h"

namespace mlir::kvcache {

struct CompileOptions : public PassPipelineOptions<CompileOptions> {
  Option<std::string> checkpoint{
      *this, "checkpoint",
      llvm::cl::desc("Folder with safetensors files and config.json, or one "
                     "safetensors file")};
  Option<std::string> kvCacheDtype{
      *this, "kv-cache-dtype",
      llvm::cl::desc("Element type of caches: auto, fp8, fp8_e4m3, fp8_e5m2, "
                     "fp8_per_token_head, float16, bfloat16"),
      llvm::cl::init("auto")};
  Option<std::string> tokenScales{
      *this, "token-scales",
      llvm::cl::desc("Where caches of fp8_per_token_head keep the scales of "
                     "tokens: side, in tensors of their own, or inline, behind "
                     "the codes of each row (none: as the graph says, else "
                     "side)")};
  ListOption<std::string> skipLayers{
      *this, "kv-cache-dtype-skip-layers",
      llvm::cl::desc("Layers whose cache stays in the model's type: indices, "
                     "or sliding_window")};
  Option<std::string> scalePolicy{
      *this, "scale-policy",
      llvm::cl::desc("strict: doubtful scales are errors; compatible: as the "
                     "serving stacks do"),
      llvm::cl::init("strict")};
  ListOption<std::string> scales{
      *this, "scale",
      llvm::cl::desc("Override, as LAYER.ROLE=F; may be repeated")};
  ListOption<std::string> scaleOverlay{
      *this, "scale-overlay",
      llvm::cl::desc("safetensors file with scales; the last one wins")};
  Option<std::string> roundScalesTo{
      *this, "round-scales-to",
      llvm::cl::desc("Round loaded scales to bf16 or f16 first, as the serving "
                     "stacks do")};
  Option<bool> requireCalibrated{
      *this, "require-calibrated",
      llvm::cl::desc("A scale that is not given is an error"),
      llvm::cl::init(false)};
  Option<int64_t> tpSize{
      *this, "tp-size",
      llvm::cl::desc("Tensor parallel ranks; scales per head of the checkpoint "
                     "are those of all ranks"),
      llvm::cl::init(1)};
  Option<int64_t> tpRank{*this, "tp-rank",
                         llvm::cl::desc("The rank that the graph is for"),
                         llvm::cl::init(0)};
  Option<double> softmaxScale{
      *this, "softmax-scale",
      llvm::cl::desc("Softmax scale of every layer (0: from the config)"),
      llvm::cl::init(0.0)};
  Option<double> softCap{
      *this, "soft-cap",
      llvm::cl::desc(
          "Soft cap of attention scores (negative: from the config)"),
      llvm::cl::init(-1.0)};
  Option<int64_t> window{
      *this, "window",
      llvm::cl::desc("Keys that a query sees, itself included (negative: from "
                     "the config; 0: all)"),
      llvm::cl::init(-1)};
  Option<bool> requireAttention{
      *this, "require-attention",
      llvm::cl::desc("A graph without attention is an error"),
      llvm::cl::init(false)};
  ListOption<std::string> opTable{
      *this, "op-table",
      llvm::cl::desc("JSON files with more ops for the import")};
  Option<int64_t> pageSize{*this, "page-size",
                           llvm::cl::desc("Tokens of a page"),
                           llvm::cl::init(16)};
  Option<std::string> kvLayout{
      *this, "kv-layout",
      llvm::cl::desc("Order of a page: nhd, hnd, packed, or "
                     "strides:PAGE,TOKEN,HEAD in elements"),
      llvm::cl::init("nhd")};
  Option<bool> runtimeStrides{
      *this, "runtime-strides",
      llvm::cl::desc("Strides of pages come from the buffers that are bound, "
                     "and kv-layout is their default"),
      llvm::cl::init(false)};
  Option<int64_t> maxTokens{
      *this, "max-tokens",
      llvm::cl::desc("Rows of one step over all sequences (0: not known)"),
      llvm::cl::init(0)};
  Option<int64_t> maxSequences{
      *this, "max-sequences",
      llvm::cl::desc("Sequences of one step (0: not known)"),
      llvm::cl::init(0)};
  Option<int64_t> maxPagesPerSequence{
      *this, "max-pages-per-sequence",
      llvm::cl::desc("Pages of one sequence (0: not known)"),
      llvm::cl::init(0)};
  Option<int64_t> numPages{*this, "num-pages",
                           llvm::cl::desc("Pages in the pool (0: not known)"),
                           llvm::cl::init(0)};
  ListOption<int64_t> batchSizes{
      *this, "batch-sizes",
      llvm::cl::desc("Batches to compile a program for, ascending; the largest "
                     "is max-sequences")};
  Option<bool> oneGraph{
      *this, "one-graph",
      llvm::cl::desc("A foreign op that splits the graph is an error"),
      llvm::cl::init(false)};
  Option<std::string> target{*this, "target",
                             llvm::cl::desc("Chip, such as sm_90"),
                             llvm::cl::init("sm_90")};
  Option<std::string> math{
      *this, "math",
      llvm::cl::desc("Numerics of decode attention: f16, or fp8 (Q and P in "
                     "e4m3) on sm_89 and sm_120"),
      llvm::cl::init("f16")};
  ListOption<std::string> tune{
      *this, "tune",
      llvm::cl::desc("Choices of decode kernels, instead of the cost model's: "
                     "tile=N, stages=N, unroll=N, rows=N, splits=N")};
  Option<std::string> kernelLibrary{
      *this, "kernel-library",
      llvm::cl::desc(
          "Bitcode of the device library (default: the one beside the tool)")};
};

/// Import, and scales to constants: the graph's ops become cache ops whose
/// caches have a type and whose scales have values.
void buildScalePipeline(OpPassManager &pm, const CompileOptions &options);

/// Gives cache groups their capacities: those of `options`, else those they
/// have, else the number of tokens of a static graph, else 256 tokens, 64
/// sequences, 128 pages a sequence and as many pages as these need. With batch
/// sizes, sequences and tokens are the largest of them. An error when `options`
/// contradict a static graph or each other.
LogicalResult completeCapacities(ModuleOp module,
                                 const CompileOptions &options);

/// Cache ops move into programs, which are proven capturable.
void buildProgramPipeline(OpPassManager &pm, const CompileOptions &options);

/// Cache ops become launches of kernels that are selected for one target.
void buildSelectionPipeline(OpPassManager &pm, const CompileOptions &options);

/// Kernels are specialised from the device library and compiled to PTX.
void buildCodePipeline(OpPassManager &pm, const CompileOptions &options);

/// The scale pipeline, then the executable definition of the ops instead of
/// kernels; caches and tables become arguments of the functions.
void buildReferencePipeline(OpPassManager &pm, const CompileOptions &options);

/// `kvcache-compile-pipeline`, `kvcache-reference-pipeline`, and each stage by
/// itself: `kvcache-scale-pipeline`, `kvcache-program-pipeline`,
/// `kvcache-selection-pipeline`, `kvcache-code-pipeline`.
void registerPipelines();

/// The device library beside the running executable or library, else where
/// kvcache was installed; empty when there is none.
std::string findKernelLibrary();

} // namespace mlir::kvcache

#endif // KVCACHE_PIPELINES_PIPELINES_H
