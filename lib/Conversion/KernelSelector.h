//===- KernelSelector.h - Cache ops become launches of kernels --*- C++ -*-===//
//
// Shared by the files that select kernels, one for each file of kernels/.
//
//===----------------------------------------------------------------------===//

#ifndef KVCACHE_LIB_CONVERSION_KERNELSELECTOR_H
#define KVCACHE_LIB_CONVERSION_KERNELSELECTOR_H

#include "../../kernels/Geometry.h"
#include "kvcache/Conversion/DeviceFunctions.h"
#include "kvcache/IR/SymbolLookup.h"
#include "mlir/IR/Builders.h"
#include "mlir/IR/BuiltinOps.h"
#include "llvm/ADT/StringExtras.h"
#include <map>

namespace mlir::kvcache {

namespace geometry = ::kvcache::kernels;

/// A launch in the making: buffers, constants with their origins, and the
/// structural constants in the order of the device function's parameters.
struct LaunchBuilder {
  explicit LaunchBuilder(OpBuilder &builder) : builder(builder) {}
  OpBuilder &builder;
  SmallVector<Value> buffers;
  SmallVector<Attribute> constants, origins, structure;

  void f32(float value, StringRef origin) {
    constants.push_back(builder.getF32FloatAttr(value));
    origins.push_back(builder.getStringAttr(origin));
  }
  void i32(int64_t value, StringRef origin) {
    constants.push_back(builder.getI32IntegerAttr(value));
    origins.push_back(builder.getStringAttr(origin));
  }
  void i64(int64_t value, StringRef origin) {
    constants.push_back(builder.getI64IntegerAttr(value));
    origins.push_back(builder.getStringAttr(origin));
  }
  void structural(int64_t value) {
    structure.push_back(builder.getI32IntegerAttr(value));
  }
  void structural64(int64_t value) {
    structure.push_back(builder.getI64IntegerAttr(value));
  }
  /// Strides of the pages of K and V, or of what else there is `of` them, in
  /// bytes: in the code, or constants that follow all others; the runtime may
  /// replace those of pages.
  void strides(ArrayRef<int64_t> ofK, ArrayRef<int64_t> ofV, bool atRunTime,
               StringRef of = "") {
    for (auto [side, page] :
         {std::pair<std::string, ArrayRef<int64_t>>{("k" + of).str(), ofK},
          {("v" + of).str(), ofV}}) {
      if (!atRunTime) {
        structural64(page[0]);
        structural(page[1]);
        structural(page[2]);
        continue;
      }
      i64(page[0], side + "_page_stride");
      i32(page[1], side + "_token_stride");
      i32(page[2], side + "_head_stride");
    }
  }

  /// A readable name that ends in a digest of the structure: equal structures
  /// share a kernel, unequal ones never do.
  std::string name(const Twine &readable) const;
};

/// Replaces the cache ops of a module by launches, for one target. Each op has
/// a `select` that finds its kernel, or says at the op why there is none.
class KernelSelector {
public:
  /// Choices of the user, as the options of 'kvcache-select-kernels' say them.
  struct Options {
    StringRef target;
    bool runtimeStrides;
    int numerics;                     ///< geometry::MathF16 or MathFP8
    std::map<std::string, int> tuned; ///< `tune`, by key
  };

  KernelSelector(ModuleOp module, Options options)
      : module(module), target(options.target),
        runtimeStrides(options.runtimeStrides), arch(*archOf(options.target)),
        numerics(options.numerics), tuned(std::move(options.tuned)) {}

  /// All programs of the module.
  LogicalResult run();
  int64_t getNumLaunches() const { return numLaunches; }

  /// A cache, and what launches over it are made of.
  struct Cache {
    CacheOp op;
    CacheGroupOp group;
    ViewCacheOp view;
    int type, tokenScales;   // as the device library numbers them
    SmallVector<float> k, v; // one scale, or one for each KV head
    SmallVector<int64_t, 4> strides, vStrides; // bytes, of K and of V
    int64_t maxTokens, maxSequences, maxPages, numPages;

    /// The least bytes of a copy between rows: those that end in their scale
    /// may be multiples of 4 bytes apart, others of 16.
    int minCopyWidth() const {
      return tokenScales == geometry::InlineTokenScales ? 4 : 16;
    }
    /// Bytes of a copy between rows of these strides.
    int copyWidth() const {
      return std::min(
          geometry::copyWidth(strides[0], strides[1], strides[2]),
          geometry::copyWidth(vStrides[0], vStrides[1], vStrides[2]));
    }
    /// "4 bytes a copy, ...", where rows end in their scale and are not padded.
    std::string narrowCopiesText() const;
  };

private:
  ModuleOp module;
  StringRef target;
  bool runtimeStrides;
  int arch, numerics;
  std::map<std::string, int> tuned;
  SymbolTableCollection symbols;
  /// Workspaces of a program, by name.
  std::map<std::pair<Operation *, std::string>, Value> workspaces;
  int64_t numLaunches = 0;

  /// Gives workspaces of one name in several programs the size of the largest.
  void shareWorkspaces();
  LogicalResult selectSegment(ProgramOp program, SegmentOp segment);

  // The kernels of each op.
  LogicalResult select(WriteOp op);
  /// The write that computes scales of tokens.
  LogicalResult selectTokenScaled(WriteOp op, Cache &cache, int input,
                                  LaunchBuilder &launch);
  LogicalResult select(WriteLatentOp op);
  LogicalResult select(ProgramOp program, PagedAttentionOp op);
  /// The numerics of a layer under `math`, with a warning where they are
  /// others.
  FailureOr<int> chooseMath(PagedAttentionOp op, Cache &cache, bool prefills);
  /// What the scales, the softmax scale and the soft cap come to.
  struct Factors {
    SmallVector<float> scores, outputs; // one, or one for each KV head
    float softCap;
    std::string scoreFormula, outputFormula;
  };
  FailureOr<Factors> foldFactors(AttentionOpInterface op, Cache &cache);
  LogicalResult select(ProgramOp program, MLAAttentionOp op);
  LogicalResult select(QuantizeOp op);
  LogicalResult select(DequantizeOp op);
  template <typename OpT> LogicalResult selectElementwise(OpT op);
  LogicalResult select(ProgramOp program, MergeStatesOp op);
  LogicalResult select(CopyPagesOp op);

  // What several of them need.
  /// What `tune` says, else `chosen`.
  int tunedOr(StringRef key, int chosen) const {
    auto found = tuned.find(key.str());
    return found == tuned.end() ? chosen : found->second;
  }
  /// " (tuned)" behind a number that `tune` gave.
  StringRef tunedMark(StringRef key) const {
    return tuned.count(key.str()) ? " (tuned)" : "";
  }
  FailureOr<ScaleAttr> staticScale(Operation *op, CacheOp cache,
                                   FlatSymbolRefAttr name, StringRef role);
  /// The scale of FP8 queries or outputs, or 1.
  FailureOr<double> otherScale(Operation *op, CacheOp cache,
                               FlatSymbolRefAttr name, StringRef role);
  FailureOr<Cache> describe(CacheOpInterface op);
  LogicalResult checkTokens(Operation *op, Value rows, const Cache &cache);
  /// Refuses latent rows that no kernel has.
  static LogicalResult checkLatent(Operation *op, Cache &cache);
  /// The most tokens of a step of the program; 0 if nothing bounds them.
  int64_t maxTokens(ProgramOp program);
  /// Types as the device library numbers them.
  static std::optional<int> activationType(Type type);
  static std::optional<int> cacheType(Type type);
  static StringRef activationName(int type) {
    static constexpr StringRef names[] = {"f16", "bf16", "f32", "e4m3", "e5m2"};
    return names[type];
  }
  static StringRef cacheName(int type) {
    static constexpr StringRef names[] = {"e4m3", "e5m2", "f16", "bf16",
                                          "ds_mla"};
    return names[type];
  }
  /// Origin of the scale of a latent cache: rows of 16 bits have none, and
  /// those of fp8_ds_mla their own.
  static StringRef latentScale(const Cache &cache) {
    return cache.type < geometry::CacheF16 ? "k_scale" : "no scale";
  }
  /// One constant for a scale, or one for each KV head.
  static void addScales(LaunchBuilder &launch, ArrayRef<float> values,
                        StringRef origin, StringRef perHeadOrigin);
  /// The last structural constant of kernels with a head dim, where V has
  /// another than K.
  static void addVHeadDim(LaunchBuilder &launch, CacheType type) {
    if (type.hasOwnVHeadDim())
      launch.structural(type.getVHeadDim());
  }
  /// `128`, or `192v128`, of K and of V, in names of kernels.
  static std::string headDimText(CacheType type) {
    return std::to_string(type.getHeadDim()) +
           (type.hasOwnVHeadDim() ? "v" + std::to_string(type.getVHeadDim())
                                  : "");
  }
  /// Structural constants of a latent cache, in the order of the kernels.
  static void addLatent(LaunchBuilder &launch, Cache &cache);
  /// Launches of one kernel run one after the other, so they share a workspace;
  /// also those of several programs, of which the largest decides its size.
  Value workspace(ProgramOp program, const Twine &suffix, int64_t bytes,
                  Type element);
  /// Adds the workspaces of several splits to the buffers of a launch.
  void addWorkspaces(ProgramOp program, LaunchBuilder &launch, StringRef name,
                     int gridX, int gridY, int columns, int dim, int splits);
  /// Why a launch of `ctas` times the splits has so many: `fit` CTAs are on a
  /// multiprocessor at once.
  void explainSplits(InFlightDiagnostic &remark,
                     const geometry::SplitChoice &split, int64_t ctas, int fit,
                     int64_t keys, int64_t perIteration) const;
  void launchBefore(Operation *op, const LaunchBuilder &launch,
                    StringRef kernel, StringRef function, geometry::Grid grid,
                    int64_t shared, int64_t minCtasPerSM, StringAttr layer,
                    int64_t threads = geometry::threadsPerCta);
  /// The same in the place of `op`.
  void replace(Operation *op, const LaunchBuilder &launch, StringRef kernel,
               StringRef function, geometry::Grid grid, int64_t shared,
               int64_t minCtasPerSM, StringAttr layer,
               int64_t threads = geometry::threadsPerCta) {
    launchBefore(op, launch, kernel, function, grid, shared, minCtasPerSM,
                 layer, threads);
    op->erase();
  }
};

} // namespace mlir::kvcache

#endif // KVCACHE_LIB_CONVERSION_KERNELSELECTOR_H
