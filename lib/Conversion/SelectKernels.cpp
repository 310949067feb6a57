//===- SelectKernels.cpp - Cache ops become launches of kernels -----------===//
//
// Grids, workspaces and splits come from capacities (kernels/Geometry.h), and
// scales become launch constants. Nothing here looks at live data.
//
//===----------------------------------------------------------------------===//

#include "../../kernels/Geometry.h"
#include "kvcache/Conversion/DeviceFunctions.h"
#include "kvcache/Conversion/Passes.h"
#include "kvcache/IR/SymbolLookup.h"
#include "mlir/Dialect/Arith/IR/Arith.h"
#include "mlir/Dialect/MemRef/IR/MemRef.h"
#include "mlir/IR/Builders.h"
#include "mlir/IR/Matchers.h"
#include "llvm/ADT/StringExtras.h"
#include "llvm/Support/FormatVariadic.h"
#include "llvm/Support/SHA256.h"
#include <cmath>
#include <map>

namespace mlir::kvcache {
#define GEN_PASS_DEF_SELECTKERNELS
#include "kvcache/Conversion/Passes.h.inc"
} // namespace mlir::kvcache

using namespace mlir;
using namespace mlir::kvcache;
namespace geometry = ::kvcache::kernels;

namespace {

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
  /// Strides of the pages of K and V, in bytes: in the code, or constants that
  /// follow all others and that the runtime may replace.
  void strides(ArrayRef<int64_t> page, bool atRunTime) {
    for (StringRef side : {"k", "v"}) {
      if (!atRunTime) {
        structural64(page[0]);
        structural(page[1]);
        structural(page[2]);
        continue;
      }
      i64(page[0], (side + "_page_stride").str());
      i32(page[1], (side + "_token_stride").str());
      i32(page[2], (side + "_head_stride").str());
    }
  }

  /// A readable name that ends in a digest of the structure: equal structures
  /// share a kernel, unequal ones never do.
  std::string name(const Twine &readable) const {
    llvm::SHA256 hash;
    for (Attribute value : structure)
      hash.update(llvm::utostr(static_cast<uint64_t>(
                      cast<IntegerAttr>(value).getInt())) +
                  ",");
    return (readable + "_" +
            llvm::toHex(hash.final(), /*LowerCase=*/true).substr(0, 8))
        .str();
  }
};

/// Rows of each sequence from which the prefill kernel is chosen.
constexpr int64_t kPrefillRows = 16;

struct SelectKernels
    : public mlir::kvcache::impl::SelectKernelsBase<SelectKernels> {
  using SelectKernelsBase::SelectKernelsBase;

  /// Set while the pass runs.
  SymbolTableCollection *symbols = nullptr;
  /// Workspaces of a program, by name.
  std::map<std::pair<Operation *, std::string>, Value> workspaces;

  int arch = 0;
  int numerics = geometry::MathF16;
  /// What `tune` sets, by key.
  std::map<std::string, int> tuned;

  /// Reads `math` and `tune`.
  LogicalResult readOptions(ModuleOp module) {
    if (math != "f16" && math != "fp8")
      return module.emitError()
             << "math: expected f16 or fp8, but found '" << math << "'";
    numerics = math == "fp8" ? geometry::MathFP8 : geometry::MathF16;
    tuned.clear();
    for (StringRef entry : tune) {
      constexpr StringRef keys[] = {"tile", "stages", "unroll", "rows",
                                    "splits"};
      auto [key, text] = entry.split('=');
      int value = 0;
      if (!llvm::is_contained(keys, key))
        return module.emitError()
               << "tune: expected " << llvm::join(ArrayRef(keys), ", ")
               << ", each as KEY=N, but found '" << entry << "'";
      if (text.getAsInteger(10, value) || value < 1)
        return module.emitError() << "tune: expected a positive number for "
                                  << key << ", but found '" << text << "'";
      if (!tuned.try_emplace(key.str(), value).second)
        return module.emitError() << "tune: " << key << " is given twice";
    }
    return success();
  }

  /// What `tune` says, else `chosen`.
  int tunedOr(StringRef key, int chosen) const {
    auto found = tuned.find(key.str());
    return found == tuned.end() ? chosen : found->second;
  }

  /// " (tuned)" behind a number that `tune` gave.
  StringRef tunedMark(StringRef key) const {
    return tuned.count(key.str()) ? " (tuned)" : "";
  }

  /// Why a launch has so many splits: what of it fits on the chip at once.
  void explainSplits(InFlightDiagnostic &remark,
                     const geometry::SplitChoice &split, int64_t ctas,
                     int64_t shared, int64_t keys, int64_t perIteration) const {
    int fit = geometry::ctasPerSM(arch, shared);
    int processors = geometry::machineOf(arch).multiprocessors;
    int64_t all = ctas * split.numSplits,
            resident = std::max<int64_t>(1, int64_t(fit) * processors);
    int64_t waves = llvm::divideCeil(all, resident);
    int64_t share = llvm::divideCeil(keys, split.numSplits);
    remark << ", " << split.numSplits
           << (split.numSplits == 1 ? " split" : " splits")
           << tunedMark("splits") << " of at least " << split.splitTokens
           << " tokens (" << all << (all == 1 ? " CTA" : " CTAs") << " in "
           << waves << (waves == 1 ? " wave" : " waves") << " of " << resident
           << ", each of up to " << llvm::divideCeil(share, perIteration)
           << " iterations and a fixed cost of "
           << llvm::formatv("{0:F1}", geometry::fixedIterations).str() << ")";
  }

  void runOnOperation() override {
    ModuleOp module = getOperation();
    SymbolTableCollection tables;
    symbols = &tables;
    workspaces.clear();
    // LLVM ends the process at a chip that the PTX version cannot name.
    constexpr StringRef chips[] = {"sm_80",   "sm_86",  "sm_87",
                                   "sm_89",   "sm_90",  "sm_100",
                                   "sm_100a", "sm_120", "sm_120a"};
    if (!llvm::is_contained(chips, StringRef(target))) {
      module.emitError() << "target: expected one of "
                         << llvm::join(ArrayRef(chips), ", ") << ", but found '"
                         << target << "'";
      return signalPassFailure();
    }
    arch = *archOf(target);
    if (failed(readOptions(module)))
      return signalPassFailure();
    bool failedAny = false;
    module.walk([&](ProgramOp program) {
      for (auto segment : program.getBody().front().getOps<SegmentOp>())
        failedAny |= failed(selectSegment(program, segment));
    });
    shareWorkspaces();
    if (failedAny)
      signalPassFailure();
  }

  /// Gives workspaces of one name in several programs the size of the largest.
  void shareWorkspaces() {
    llvm::StringMap<MemRefType> largest;
    for (auto &[key, value] : workspaces) {
      auto type = cast<MemRefType>(value.getType());
      MemRefType &known = largest[key.second];
      if (!known || known.getDimSize(0) < type.getDimSize(0))
        known = type;
    }
    for (auto &[key, value] : workspaces) {
      value.setType(largest[key.second]);
      auto program = cast<ProgramOp>(key.first);
      program.setFunctionType(FunctionType::get(
          &getContext(), program.getBody().front().getArgumentTypes(), {}));
    }
  }

  LogicalResult selectSegment(ProgramOp program, SegmentOp segment) {
    bool failedAny = false;
    for (Operation &op :
         llvm::make_early_inc_range(segment.getBody().front())) {
      LogicalResult result = success();
      if (auto write = dyn_cast<WriteOp>(op))
        result = select(write);
      else if (auto attention = dyn_cast<PagedAttentionOp>(op))
        result = select(program, segment, attention);
      else if (auto write = dyn_cast<WriteLatentOp>(op))
        result = select(write);
      else if (auto attention = dyn_cast<MLAAttentionOp>(op))
        result = select(program, attention);
      else if (auto quantize = dyn_cast<QuantizeOp>(op))
        result = selectElementwise(quantize);
      else if (auto dequantize = dyn_cast<DequantizeOp>(op))
        result = selectElementwise(dequantize);
      else if (auto merge = dyn_cast<MergeStatesOp>(op))
        result = select(program, merge);
      else if (auto copy = dyn_cast<CopyPagesOp>(op))
        result = select(copy);
      else if (isa<CacheOpInterface>(op))
        result = op.emitError()
                 << "no kernel for '" << op.getName()
                 << "'; 'convert-kvcache-to-reference' lowers it on functions, "
                    "before 'kvcache-form-programs'";
      else
        continue;
      failedAny |= failed(result);
    }
    for (Operation &op :
         llvm::make_early_inc_range(llvm::reverse(segment.getBody().front())))
      if (isa<ViewCacheOp, arith::ConstantOp>(op) && op.use_empty())
        op.erase();
    return failure(failedAny);
  }

  //===--------------------------------------------------------------------===//
  // What all cache ops need
  //===--------------------------------------------------------------------===//

  struct Cache {
    CacheOp op;
    CacheGroupOp group;
    ViewCacheOp view;
    int type;                        // as the device library numbers it
    SmallVector<float> k, v;         // one scale, or one for each KV head
    SmallVector<int64_t, 4> strides; // bytes
    int64_t maxTokens, maxSequences, maxPages, numPages;
  };

  FailureOr<ScaleAttr> staticScale(Operation *op, CacheOp cache,
                                   FlatSymbolRefAttr name, StringRef role) {
    ScaleAttr scale =
        getBeside<ScaleBufferOp>(cache, name, *symbols).getScale();
    if (!scale.isStatic())
      return op->emitError()
             << "no kernel selected: the " << role << " scale " << name
             << " has no value; run 'kvcache-fold-checkpoint-scales' first";
    return scale;
  }

  /// The scale of FP8 queries or outputs, or 1.
  FailureOr<double> otherScale(Operation *op, CacheOp cache,
                               FlatSymbolRefAttr name, StringRef role) {
    if (!name)
      return 1.0;
    FailureOr<ScaleAttr> scale = staticScale(op, cache, name, role);
    if (failed(scale))
      return failure();
    return static_cast<double>(scale->getValue());
  }

  FailureOr<Cache> describe(CacheOpInterface op) {
    Cache cache;
    cache.op = getCacheDeclaration(op.getCacheHandle(), *symbols);
    cache.view = op.getCacheHandle().getDefiningOp<ViewCacheOp>();
    if (!cache.op || !cache.view)
      return op->emitError()
             << "no kernel selected: the cache handle is not the result of "
                "'kvcache.view_cache'; run 'kvcache-form-programs' first";
    cache.group =
        getBeside<CacheGroupOp>(cache.op, cache.op.getGroupAttr(), *symbols);
    CacheType type = cache.op.getCacheType();
    std::optional<int> element = cacheType(type.getElementType());
    if (!element)
      return op->emitError()
             << "no kernel for a cache of " << type.getElementType()
             << " (layer '" << cache.op.getLayer()
             << "'); f8E4M3FN, f8E5M2, f16 and bf16 are supported"
             << (type.isLatent() ? ", and fp8_ds_mla" : "")
             << ": choose one with kv-cache-dtype";
    cache.type = *element;
    for (auto [role, name, values] :
         {std::tuple<StringRef, FlatSymbolRefAttr, SmallVector<float> *>{
              "k", cache.op.getKScaleAttr(), &cache.k},
          {"v", cache.op.getVScaleAttr(), &cache.v}}) {
      // What is not quantized has no scale, whatever the checkpoint holds.
      // Nor has one whose tokens have their own.
      if (cache.type >= geometry::CacheF16 || cache.op.getTokenScales()) {
        values->assign(1, 1.0f);
        continue;
      }
      FailureOr<ScaleAttr> scale = staticScale(op, cache.op, name, role);
      if (failed(scale))
        return failure();
      llvm::append_range(*values, scale->getValues().asArrayRef());
    }
    // A kernel has one scale for K and one for V, or both for each KV head.
    for (auto [values, other] :
         {std::pair{&cache.k, &cache.v}, {&cache.v, &cache.k}})
      if (values->size() == 1)
        values->assign(other->size(), values->front());
    for (auto [name, value, result] :
         {std::tuple<StringRef, std::optional<uint64_t>, int64_t *>{
              "max-tokens", cache.group.getMaxTokens(), &cache.maxTokens},
          {"max-sequences", cache.group.getMaxSequences(), &cache.maxSequences},
          {"max-pages-per-sequence", cache.group.getMaxPagesPerSequence(),
           &cache.maxPages},
          {"num-pages", cache.group.getNumPages(), &cache.numPages}}) {
      if (!value) {
        InFlightDiagnostic diag =
            op->emitError()
            << "no kernel selected: the grid needs the capacity '" << name
            << "' of @" << cache.group.getSymName();
        diag.attachNote(cache.group.getLoc())
            << "give it to 'kvcache-import', as " << name
            << "=N, or write it here";
        return diag;
      }
      *result = static_cast<int64_t>(*value);
    }
    if (auto program = op->getParentOfType<ProgramOp>())
      std::tie(cache.maxSequences, cache.maxTokens) =
          program.getRoom(cache.group);
    for (int64_t stride : cache.op.getPageStrides())
      cache.strides.push_back(cache.type == geometry::TileScaled
                                  ? stride
                                  : stride * geometry::cacheBytes(cache.type));
    if (std::max(cache.strides[1], cache.strides[2]) >
        std::numeric_limits<int32_t>::max())
      return op->emitError()
             << "no kernel selected: layout " << cache.op.getLayoutText()
             << " of layer '" << cache.op.getLayer()
             << "' has strides of tokens or heads of 2 GiB or more";
    return cache;
  }

  /// Types as the device library numbers them.
  static std::optional<int> activationType(Type type) {
    if (type.isF16())
      return geometry::F16;
    if (type.isBF16())
      return geometry::BF16;
    if (type.isF32())
      return geometry::F32;
    if (isa<Float8E4M3FNType>(type))
      return geometry::CodesE4M3;
    if (isa<Float8E5M2Type>(type))
      return geometry::CodesE5M2;
    return std::nullopt;
  }
  static std::optional<int> cacheType(Type type) {
    if (isa<Float8E4M3FNType>(type))
      return geometry::E4M3;
    if (isa<Float8E5M2Type>(type))
      return geometry::E5M2;
    if (type.isF16())
      return geometry::CacheF16;
    if (type.isBF16())
      return geometry::CacheBF16;
    if (type.isInteger(8)) // fp8_ds_mla rows, of a latent cache
      return geometry::TileScaled;
    return std::nullopt;
  }

  static StringRef activationName(int type) {
    static constexpr StringRef names[] = {"f16", "bf16", "f32", "e4m3", "e5m2"};
    return names[type];
  }
  static StringRef cacheName(int type) {
    static constexpr StringRef names[] = {"e4m3", "e5m2", "f16", "bf16",
                                          "ds_mla"};
    return names[type];
  }

  /// One constant for a scale, or one for each KV head.
  static void addScales(LaunchBuilder &launch, ArrayRef<float> values,
                        StringRef origin, StringRef perHeadOrigin) {
    for (float value : values)
      launch.f32(value, values.size() == 1 ? origin : perHeadOrigin);
  }

  LogicalResult checkTokens(Operation *op, Value rows, const Cache &cache) {
    int64_t tokens = cast<MemRefType>(rows.getType()).getDimSize(0);
    if (!ShapedType::isDynamic(tokens) && tokens > cache.maxTokens)
      return op->emitError()
             << "the graph has " << tokens
             << " tokens, more than max-tokens=" << cache.maxTokens
             << "; raise max-tokens";
    return success();
  }

  void replace(Operation *op, const LaunchBuilder &launch, StringRef kernel,
               StringRef function, geometry::Grid grid, int64_t shared,
               int64_t minCtasPerSM, StringAttr layer,
               int64_t threads = geometry::threadsPerCta) {
    OpBuilder builder(op);
    LaunchOp::create(builder, op->getLoc(), kernel, function,
                     ArrayRef<int64_t>{grid.x, grid.y, grid.z},
                     ArrayRef<int64_t>{threads, 1, 1}, shared, launch.buffers,
                     builder.getArrayAttr(launch.constants),
                     builder.getArrayAttr(launch.origins),
                     builder.getArrayAttr(launch.structure), layer,
                     minCtasPerSM ? builder.getI64IntegerAttr(minCtasPerSM)
                                  : IntegerAttr());
    ++numLaunches;
    op->erase();
  }

  //===--------------------------------------------------------------------===//
  // Quantize and dequantize
  //===--------------------------------------------------------------------===//

  /// The attention that takes its queries from `buffer`, or null.
  static PagedAttentionOp attentionOf(Value buffer, SegmentOp segment) {
    for (Operation *user : buffer.getUsers())
      if (auto attention = dyn_cast<PagedAttentionOp>(user))
        if (attention.getQuery() == buffer &&
            attention->getParentOp() == segment)
          return attention;
    return nullptr;
  }

  /// The most tokens of a step of the program; 0 if nothing bounds them.
  int64_t maxTokens(ProgramOp program) {
    int64_t tokens = 0;
    for (auto group : getOperation().getOps<CacheGroupOp>())
      if (group.getMaxTokens() && group.getMaxSequences())
        tokens = std::max(tokens, program.getRoom(group).second);
    return tokens;
  }

  template <typename OpT> LogicalResult selectElementwise(OpT op) {
    constexpr bool quantizes = std::is_same_v<OpT, QuantizeOp>;
    auto input = cast<MemRefType>(op.getInput().getType());
    auto output = cast<MemRefType>(op.getTargetType());
    MemRefType plain = quantizes ? input : output,
               codes = quantizes ? output : input;
    std::optional<int> codeType = cacheType(codes.getElementType());
    std::optional<int> plainType = activationType(plain.getElementType());
    FloatAttr scale;
    if (!codeType || !matchPattern(op.getScale(), m_Constant(&scale)))
      return op.emitError()
             << "no kernel for this '" << op->getName() << "': "
             << (codeType ? "its scale is not a constant; a graph captures the "
                            "value of a scale"
                          : "codes are f8E4M3FN or f8E5M2");
    if (!input.getLayout().isIdentity() || !output.getLayout().isIdentity())
      return op.emitError() << "no kernel for this '" << op->getName()
                            << "': it takes contiguous buffers, but has "
                            << input << " and " << output;
    int64_t tokens = maxTokens(op->template getParentOfType<ProgramOp>());
    int64_t count = 1;
    for (auto [dim, size] : llvm::enumerate(input.getShape())) {
      if (ShapedType::isDynamic(size) && (dim > 0 || tokens == 0))
        return op.emitError()
               << "no kernel for this '" << op->getName() << "': dimension "
               << dim << " of " << input
               << " is not bounded; bounded by max-tokens is the first";
      count *= ShapedType::isDynamic(size) ? tokens : size;
    }

    OpBuilder builder(op);
    LaunchBuilder launch(builder);
    launch.buffers = {op.getInput(), op.getOut()};
    PagedAttentionOp attention =
        attentionOf(op.getOut(), op->template getParentOfType<SegmentOp>());
    launch.f32(scale.getValue().convertToFloat(),
               attention ? "q_scale" : "scale");
    launch.i64(count, "elements");
    launch.structural(arch);
    launch.structural(quantizes ? *plainType : *codeType);
    launch.structural(quantizes ? *codeType : *plainType);
    StringRef from =
                  quantizes ? activationName(*plainType) : cacheName(*codeType),
              to =
                  quantizes ? cacheName(*codeType) : activationName(*plainType);
    std::string name = launch.name(
        Twine(quantizes ? "quantize_" : "dequantize_") + from + "_to_" + to);
    int grid = geometry::elementwiseGrid(count);
    op.emitRemark() << name << ", " << geometry::writeElements
                    << " elements a thread, grid " << grid << " x 1 x 1";
    StringAttr layer;
    if (attention)
      layer =
          getCacheDeclaration(attention.getCache(), *symbols).getSymNameAttr();
    replace(op, launch, name,
            quantizes ? "kvcache_quantize" : "kvcache_dequantize", {grid, 1, 1},
            0, 0, layer);
    return success();
  }

  //===--------------------------------------------------------------------===//
  // Merges and copies
  //===--------------------------------------------------------------------===//

  LogicalResult select(ProgramOp program, MergeStatesOp op) {
    auto partial = cast<MemRefType>(op.getA().getType());
    int64_t tokens = partial.getDimSize(0), heads = partial.getDimSize(1),
            dim = partial.getDimSize(2);
    if (ShapedType::isDynamic(tokens))
      tokens = maxTokens(program);
    const char *problem = nullptr;
    if (!partial.getLayout().isIdentity() ||
        !cast<MemRefType>(op.getLse().getType()).getLayout().isIdentity())
      problem = "partials need contiguous buffers";
    else if (tokens == 0 || ShapedType::isDynamic(heads) ||
             ShapedType::isDynamic(dim))
      problem = "dimensions need a bound; max-tokens bounds the first";
    else if (dim % geometry::writeElements)
      problem = "the head dim must be a multiple of 16";
    else if (tokens * heads > std::numeric_limits<int32_t>::max())
      problem = "there are more than 2^31 rows of heads";
    if (problem)
      return op.emitError() << "no kernel for this '" << op->getName()
                            << "' of " << partial << ": " << problem;
    int type = *activationType(partial.getElementType());

    OpBuilder builder(op);
    LaunchBuilder launch(builder);
    llvm::append_range(launch.buffers, op->getOperands());
    launch.i32(tokens * heads, "tokens * query heads");
    launch.structural(arch);
    launch.structural(type);
    launch.structural(dim);
    std::string name = launch.name(Twine("merge_states_") +
                                   activationName(type) + "_d" + Twine(dim));
    int grid = geometry::elementwiseGrid(tokens * heads * dim);
    op.emitRemark() << name << ", " << geometry::writeElements
                    << " elements a thread, grid " << grid << " x 1 x 1";
    replace(op, launch, name, "kvcache_merge_states", {grid, 1, 1}, 0, 0,
            StringAttr());
    return success();
  }

  LogicalResult select(CopyPagesOp op) {
    FailureOr<Cache> cache = describe(op);
    if (failed(cache))
      return failure();
    CacheType type = cache->op.getCacheType();
    int page = cache->group.getPageSize(), heads = type.getNumHeads(),
        sides = type.isLatent() ? 1 : 2;
    int rowBytes =
        type.getRowWidth() * type.getElementType().getIntOrFloatBitWidth() / 8;
    auto pairsType = cast<MemRefType>(op.getPairs().getType());
    int64_t pairs =
        pairsType.isDynamicDim(0) ? cache->numPages : pairsType.getDimSize(0);
    const char *problem = nullptr;
    if (rowBytes % 16 || llvm::any_of(ArrayRef(cache->strides).drop_back(),
                                      [](int64_t s) { return s % 16 != 0; }))
      problem = "rows of a head and strides must be multiples of 16 bytes";
    else if (!pairsType.getLayout().isIdentity())
      problem = "pairs need a contiguous buffer";
    if (problem)
      return op.emitError()
             << "no kernel for '" << op->getName() << "' in " << type
             << " (layer '" << cache->op.getLayer() << "'): " << problem;

    OpBuilder builder(op);
    LaunchBuilder launch(builder);
    launch.buffers = {cache->view.getKPages()};
    if (sides == 2)
      launch.buffers.push_back(cache->view.getVPages());
    launch.buffers.push_back(op.getPairs());
    launch.i64(cache->numPages, "num_pages");
    launch.structural(arch);
    launch.structural(heads);
    launch.structural(page);
    launch.structural(rowBytes);
    launch.structural(sides == 2 ? rowBytes : 0);
    launch.strides(cache->strides, /*atRunTime=*/true);
    std::string name = launch.name(Twine("copy_pages_h") + Twine(heads) + "_b" +
                                   Twine(rowBytes) + "_p" + Twine(page));
    geometry::Grid grid = geometry::copyPagesGrid(
        pairs, sides * geometry::copyUnits(heads, rowBytes, page));
    op.emitRemark() << "layer '" << cache->op.getLayer() << "': " << name
                    << ", 16 bytes a thread, grid " << grid.x << " x " << grid.y
                    << " x 1";
    replace(op, launch, name, "kvcache_copy_pages", grid, 0, 0,
            cache->op.getSymNameAttr());
    return success();
  }

  //===--------------------------------------------------------------------===//
  // Write
  //===--------------------------------------------------------------------===//

  static bool isPowerOfTwo(float value) {
    int exponent;
    return std::frexp(value, &exponent) == 0.5f;
  }

  /// The table that keys are rotated by needs a size that kernels know.
  static LogicalResult checkRope(Operation *op) {
    KeyRotation rope = getKeyRotation(op);
    if (!rope || cast<ShapedType>(rope.table.getType()).hasStaticShape())
      return success();
    return op->emitError() << "no write kernel for a rope table of "
                           << rope.table.getType()
                           << ": kernels skip positions past its end; give it "
                              "a static number of positions";
  }

  /// Buffers and structural constants of a rotation, in the order of the
  /// kernels. Returns what it adds to a kernel's name.
  static std::string addRope(LaunchBuilder &launch, Operation *op) {
    KeyRotation rope = getKeyRotation(op);
    int64_t dim = rope ? rope.getRotaryDim() : 0, positions = 0;
    if (rope) {
      launch.buffers.append({rope.table, rope.positions});
      positions = cast<ShapedType>(rope.table.getType()).getDimSize(0);
    }
    launch.structural(dim);
    launch.structural(rope.isInterleaved);
    launch.structural(positions);
    if (!rope)
      return "";
    return (Twine("_rope") + Twine(dim) +
            (rope.isInterleaved ? "_interleaved" : ""))
        .str();
  }

  LogicalResult select(WriteOp op) {
    FailureOr<Cache> cache = describe(op);
    if (failed(cache) || failed(checkTokens(op, op.getKey(), *cache)) ||
        failed(checkRope(op)))
      return failure();
    Type element = cast<MemRefType>(op.getKey().getType()).getElementType();
    std::optional<int> input = activationType(element);
    if (!input)
      return op.emitError() << "no write kernel for rows of " << element
                            << "; f16, bf16 and f32 are supported";
    CacheType type = cache->op.getCacheType();
    int heads = type.getNumHeads(), dim = type.getHeadDim(),
        page = cache->group.getPageSize();
    bool perHead = cache->k.size() > 1;
    if (!geometry::writeIsLegal(heads, dim, page, cache->strides[0],
                                cache->strides[1], cache->strides[2]))
      return op.emitError() << "no write kernel for " << heads
                            << " KV heads of " << dim << " in pages of " << page
                            << " with layout " << cache->op.getLayoutText()
                            << "; the head dim must be a multiple of 16, and "
                               "strides multiples of 16 bytes";

    OpBuilder builder(op);
    LaunchBuilder launch(builder);
    launch.buffers = {op.getKey(), op.getValue(), cache->view.getKPages(),
                      cache->view.getVPages(), cache->view.getSlots()};
    if (cache->op.getTokenScales())
      return selectTokenScaled(op, *cache, *input, launch);
    addScales(launch, cache->k, "k_scale", "k_scale[head]");
    addScales(launch, cache->v, "v_scale", "v_scale[head]");
    launch.i32(cache->maxTokens, "max_tokens");
    launch.i64(cache->numPages * page, "num_pages * page_size");
    launch.structural(arch);
    launch.structural(*input);
    launch.structural(cache->type);
    launch.structural(heads);
    launch.structural(dim);
    launch.structural(page);
    launch.strides(cache->strides, runtimeStrides);
    launch.structural(llvm::all_of(cache->k, isPowerOfTwo));
    launch.structural(llvm::all_of(cache->v, isPowerOfTwo));
    launch.structural(perHead);
    std::string rope = addRope(launch, op);
    std::string name = launch.name(Twine("write_") + activationName(*input) +
                                   "_" + cacheName(cache->type) + "_h" +
                                   Twine(heads) + "_d" + Twine(dim) + "_p" +
                                   Twine(page) + (perHead ? "_perhead" : "") +
                                   rope + (runtimeStrides ? "_strided" : ""));
    replace(op, launch, name,
            runtimeStrides ? "kvcache_write_strided" : "kvcache_write",
            geometry::writeLaunchGrid(cache->maxTokens, heads, dim, perHead), 0,
            0, cache->op.getSymNameAttr());
    return success();
  }

  /// The write that computes scales of tokens.
  LogicalResult selectTokenScaled(WriteOp op, Cache &cache, int input,
                                  LaunchBuilder &launch) {
    CacheType type = cache.op.getCacheType();
    int heads = type.getNumHeads(), dim = type.getHeadDim(),
        page = cache.group.getPageSize();
    if (dim > 32 * geometry::writeElements)
      return op.emitError() << "no write kernel with token scales for a head "
                               "dim of "
                            << dim << "; up to " << 32 * geometry::writeElements
                            << " are supported";
    if (runtimeStrides)
      return op.emitError()
             << "no write kernel with token scales takes the strides of pages "
                "at run time; compile without runtime-strides, with a "
                "kv-layout that says the strides";
    launch.buffers.append({cache.view.getKScales(), cache.view.getVScales()});
    launch.i32(cache.maxTokens, "max_tokens");
    launch.i64(cache.numPages * page, "num_pages * page_size");
    launch.structural(arch);
    launch.structural(input);
    launch.structural(heads);
    launch.structural(dim);
    launch.structural(page);
    launch.strides(cache.strides, /*atRunTime=*/false);
    std::string rope = addRope(launch, op);
    std::string name =
        launch.name(Twine("write_token_scaled_") + activationName(input) + "_" +
                    cacheName(cache.type) + "_h" + Twine(heads) + "_d" +
                    Twine(dim) + "_p" + Twine(page) + rope);
    replace(op, launch, name, "kvcache_write_token_scaled",
            {geometry::tokenScaledWriteGrid(cache.maxTokens, heads, dim), 1, 1},
            0, 0, cache.op.getSymNameAttr());
    return success();
  }

  /// Refuses latent rows that no kernel has.
  static LogicalResult checkLatent(Operation *op, Cache &cache) {
    CacheType type = cache.op.getCacheType();
    if (const char *problem = geometry::latentProblem(
            cache.type, type.getLatentDim(), type.getRopeDim(),
            cache.group.getPageSize(), cache.strides[0], cache.strides[1]))
      return op->emitError()
             << "no kernel for the latent cache " << type << " of layer '"
             << cache.op.getLayer() << "': " << problem;
    return success();
  }

  /// Structural constants of a latent cache, in the order of the kernels.
  static void addLatent(LaunchBuilder &launch, Cache &cache) {
    CacheType type = cache.op.getCacheType();
    launch.structural(type.getLatentDim());
    launch.structural(type.getRopeDim());
    launch.structural(cache.group.getPageSize());
    launch.structural64(cache.strides[0]);
    launch.structural(cache.strides[1]);
  }

  LogicalResult select(WriteLatentOp op) {
    FailureOr<Cache> cache = describe(op);
    if (failed(cache) || failed(checkTokens(op, op.getLatent(), *cache)) ||
        failed(checkLatent(op, *cache)) || failed(checkRope(op)))
      return failure();
    Type element = cast<MemRefType>(op.getLatent().getType()).getElementType();
    int input = *activationType(element); // the op takes no other
    CacheType type = cache->op.getCacheType();
    int page = cache->group.getPageSize();

    OpBuilder builder(op);
    LaunchBuilder launch(builder);
    launch.buffers = {op.getLatent(), op.getRope(), cache->view.getKPages(),
                      cache->view.getSlots()};
    launch.f32(cache->k.front(), latentScale(*cache));
    launch.i32(cache->maxTokens, "max_tokens");
    launch.i64(cache->numPages * page, "num_pages * page_size");
    launch.structural(arch);
    launch.structural(input);
    launch.structural(cache->type);
    addLatent(launch, *cache);
    launch.structural(isPowerOfTwo(cache->k.front()));
    std::string rope = addRope(launch, op);
    std::string name =
        launch.name(Twine("write_latent_") + activationName(input) + "_" +
                    cacheName(cache->type) + "_d" + Twine(type.getLatentDim()) +
                    "x" + Twine(type.getRopeDim()) + "_p" + Twine(page) + rope);
    replace(op, launch, name, "kvcache_write_latent",
            {geometry::latentWriteGrid(cache->maxTokens, type.getLatentDim(),
                                       type.getRopeDim()),
             1, 1},
            0, 0, cache->op.getSymNameAttr());
    return success();
  }

  /// Origin of the scale of a latent cache: rows of 16 bits have none, and
  /// those of fp8_ds_mla their own.
  static StringRef latentScale(const Cache &cache) {
    return cache.type < geometry::CacheF16 ? "k_scale" : "no scale";
  }

  //===--------------------------------------------------------------------===//
  // Paged attention
  //===--------------------------------------------------------------------===//

  /// One f32 launch constant from a product in double precision.
  static FailureOr<float> fold(Operation *op, double product,
                               StringRef formula) {
    float folded = static_cast<float>(product);
    if (!std::isnormal(folded))
      return op->emitError()
             << formula << " = " << product
             << " is not a normal f32; the scales cannot be right";
    return folded;
  }

  /// Launches of one kernel run one after the other, so they share a workspace;
  /// also those of several programs, of which the largest decides its size.
  Value workspace(ProgramOp program, const Twine &suffix, int64_t bytes,
                  Type element) {
    Builder builder(program);
    std::string name = ("workspace." + suffix).str();
    Value &known = workspaces[{program, name}];
    if (known)
      return known;
    auto type =
        MemRefType::get(bytes * 8 / element.getIntOrFloatBitWidth(), element);
    unsigned index = program.getNumArguments();
    auto attributes = builder.getDictionaryAttr(
        {builder.getNamedAttr(kBufferName, builder.getStringAttr(name)),
         builder.getNamedAttr(
             kBufferRole,
             BufferRoleAttr::get(&getContext(), BufferRole::Workspace))});
    (void)program.insertArgument(index, type, attributes, program.getLoc());
    return known = program.getArgument(index);
  }

  static LogicalResult checkSoftmaxScale(AttentionOpInterface op,
                                         Cache &cache) {
    if (op.getSoftmaxScaleAttr())
      return success();
    return op->emitError()
           << "no kernel selected: the softmax scale of layer '"
           << cache.op.getLayer()
           << "' is not known; run 'kvcache-apply-model-config' with a "
              "checkpoint or with softmax-scale=F";
  }

  /// Adds the workspaces of several splits to the buffers of a launch.
  void addWorkspaces(ProgramOp program, LaunchBuilder &launch, StringRef name,
                     int gridX, int gridY, int columns, int dim, int splits) {
    if (splits == 1)
      return;
    launch.buffers.push_back(
        workspace(program, name + ".partials",
                  geometry::partialsBytes(gridX, gridY, columns, dim, splits),
                  launch.builder.getF32Type()));
    launch.buffers.push_back(
        workspace(program, name + ".counters",
                  geometry::countersBytes(gridX, gridY, splits),
                  launch.builder.getI32Type()));
  }

  LogicalResult select(ProgramOp program, SegmentOp segment,
                       PagedAttentionOp op) {
    FailureOr<Cache> cache = describe(op);
    if (failed(cache) || failed(checkTokens(op, op.getQuery(), *cache)))
      return failure();
    if (failed(checkSoftmaxScale(op, *cache)))
      return failure();
    auto queryType = cast<MemRefType>(op.getQuery().getType());
    std::optional<int> query = activationType(queryType.getElementType());
    Type outType = cast<MemRefType>(op.getOut().getType()).getElementType();
    std::optional<int> out = activationType(outType);
    if (!query || !out)
      return op.emitError()
             << "no attention kernel for queries of "
             << queryType.getElementType() << " and an output of " << outType
             << "; f16, bf16, f32, f8E4M3FN and f8E5M2 are supported for both";
    CacheType type = cache->op.getCacheType();
    int heads = queryType.getDimSize(1), kvHeads = type.getNumHeads(),
        dim = type.getHeadDim();
    int group = heads / kvHeads, page = cache->group.getPageSize();
    int elementBytes = geometry::cacheBytes(cache->type);
    if (group > geometry::maxGroup)
      return op.emitError() << "no attention kernel for " << group
                            << " query heads on one KV head; up to "
                            << geometry::maxGroup << " are supported";
    if (!geometry::headDimIsLegal(dim))
      return op.emitError() << "no attention kernel for head dim " << dim
                            << " (layer '" << cache->op.getLayer()
                            << "'); 64, 80, 96, 112, 128, 192 and 256 are "
                               "supported";

    // With room for many rows of each sequence, tiles of K and V serve all rows
    // of a CTA.
    // Tiles that many rows share are converted without scales of tokens.
    const bool tokenScales = cache->op.getTokenScales();
    int warps = !tokenScales && !runtimeStrides &&
                        cache->maxTokens >= kPrefillRows * cache->maxSequences
                    ? geometry::prefillWarps(arch, *query, cache->type, heads,
                                             kvHeads, dim, page)
                    : 0;
    // Rows of a sequence that share the loads of K and V, and the tuning.
    int rows =
        warps
            ? geometry::prefillRows(group, dim, warps)
            : tunedOr("rows", geometry::chooseRows(group, dim, cache->maxTokens,
                                                   cache->maxSequences));
    if (rows > geometry::maxRowsPerCta && !warps)
      return op.emitError() << "tune: rows=" << rows << ": a CTA takes 1 to "
                            << geometry::maxRowsPerCta << " query rows";
    // fp8-math for a whole graph leaves layers that are not quantized as they
    // are; a chip that has no such products is no place for it.
    int mathOfLayer = numerics;
    if (numerics == geometry::MathFP8) {
      const char *why = geometry::fp8MathProblem(arch, cache->type);
      if (why && elementBytes == 1)
        return op.emitError()
               << "no fp8-math on " << target << " (layer '"
               << cache->op.getLayer() << "'): " << why
               << "; use math=f16, which takes FP8 caches and FP8 queries, too";
      if (!why && warps)
        why = "the prefill kernel, chosen because max-tokens is at least 16 "
              "times max-sequences, has no fp8-math";
      if (!why && tokenScales)
        why = "probabilities that carry scales of tokens do not fit codes";
      if (why) {
        op.emitWarning() << "layer '" << cache->op.getLayer()
                         << "' takes f16-math: " << why;
        mathOfLayer = geometry::MathF16;
      }
    }
    int gridY =
        geometry::rowBlocks(cache->maxTokens, cache->maxSequences, rows);
    if (gridY > geometry::maxRows)
      return op.emitError()
             << "max-tokens=" << cache->maxTokens << " exceeds the "
             << geometry::maxRows << " rows that one grid can have";
    int tuningRows = warps ? 1 : rows;
    int columns = geometry::columnsPerCta(group, tuningRows, dim);
    int gridX = geometry::attentionGridX(heads, kvHeads, tuningRows, dim);
    geometry::AttentionTuning tuning = geometry::attentionDefaults(
        arch, dim, elementBytes, columns, *query, page, mathOfLayer);
    if (!warps) {
      tuning.tile = tunedOr("tile", tuning.tile);
      tuning.stages = tunedOr("stages", tuning.stages);
      tuning.unroll = tunedOr("unroll", tuning.unroll);
    }
    int shared =
        geometry::dynamicSharedBytes(dim, elementBytes, columns, *query,
                                     tuning.tile, tuning.stages, mathOfLayer);
    tuning.minCtasPerSM =
        std::clamp(geometry::ctasPerSM(arch, shared), 1, tuning.minCtasPerSM);
    // What a row can see at most, in whole tiles.
    constexpr int64_t endless = 1 << 30;
    int64_t keys = cache->maxPages * page;
    int64_t window = 0;
    if (op.getWindow()) {
      window = std::min<int64_t>(*op.getWindow(), endless);
      keys = std::min<int64_t>(keys, window + rows + tuning.tile);
    }
    int prefillColumns = warps * geometry::prefillColumns(group, dim);
    int prefillBytes = geometry::prefillSharedBytes(
        dim, geometry::prefillColumns(group, dim), *query, warps);
    geometry::SplitChoice split =
        warps
            ? geometry::choosePrefillSplits(arch, prefillBytes, prefillColumns,
                                            warps, gridX, gridY, keys)
            : geometry::chooseSplits(arch, shared, page, tuning.tile, gridX,
                                     gridY, keys);
    if (!warps)
      split.numSplits = tunedOr("splits", split.numSplits);
    // Prefill looks up the page of each token, and may split where it likes.
    const char *problem = geometry::attentionProblem(
        arch, *query, cache->type, heads, kvHeads, dim, page, tuningRows,
        tuning.tile, tuning.stages, tuning.unroll,
        warps ? geometry::splitGranule(tuning.tile, page) : split.splitTokens,
        split.numSplits, op.getWindow().has_value(), mathOfLayer);
    if (!problem && !geometry::attentionStridesAreLegal(cache->strides[0],
                                                        cache->strides[1],
                                                        cache->strides[2]))
      problem = "pages need strides of multiples of 16 bytes";
    if (problem)
      return op.emitError()
             << "no attention kernel for queries of "
             << queryType.getElementType() << ", " << heads << "/" << kvHeads
             << " heads of " << dim << " and a cache of "
             << type.getElementType() << " in pages of " << page << " (layer '"
             << cache->op.getLayer() << "'): " << problem;

    double scale = op.getSoftmaxScale()->convertToDouble();
    double log2e = std::log2(std::exp(1.0));
    double cap = op.getSoftCap() ? op.getSoftCap()->convertToDouble() : 0;
    FailureOr<double> q = otherScale(op, cache->op, op.getQScaleAttr(), "q");
    FailureOr<double> o = otherScale(op, cache->op, op.getOScaleAttr(), "o");
    if (failed(q) || failed(o))
      return failure();
    std::string formula =
        (Twine(op.getSoftCap() ? "2 * " : "") + "softmax_scale" +
         (op.getQScaleAttr() ? " * q_scale" : "") + " * k_scale * log2(e)" +
         (op.getSoftCap() ? " / soft_cap" : ""))
            .str();
    StringRef outputFormula =
        op.getOScaleAttr() ? "v_scale / o_scale" : "v_scale";
    SmallVector<float> factors, outputFactors;
    for (float k : cache->k) {
      FailureOr<float> factor =
          fold(op,
               (op.getSoftCap() ? 2 * scale / cap : scale) * *q *
                   static_cast<double>(k) * log2e,
               formula);
      if (failed(factor))
        return failure();
      factors.push_back(*factor);
    }
    for (float v : cache->v) {
      FailureOr<float> factor =
          fold(op, static_cast<double>(v) / *o, outputFormula);
      if (failed(factor))
        return failure();
      outputFactors.push_back(*factor);
    }
    float capConstant = 0;
    if (op.getSoftCap()) {
      FailureOr<float> folded = fold(op, cap * log2e, "soft_cap * log2(e)");
      if (failed(folded))
        return failure();
      capConstant = *folded;
    }
    bool perHead = factors.size() > 1;

    OpBuilder builder(op);
    LaunchBuilder launch(builder);
    launch.buffers = {op.getQuery(),
                      cache->view.getKPages(),
                      cache->view.getVPages(),
                      cache->view.getPageTable(),
                      cache->view.getLengths(),
                      cache->view.getQueryStart(),
                      op.getOut()};
    if (op.getLse())
      launch.buffers.push_back(op.getLse());
    auto addFactors = [&](ArrayRef<float> values, StringRef folded,
                          StringRef scale) {
      std::string perHead = folded.str();
      perHead.insert(perHead.find(scale) + scale.size(), "[head]");
      addScales(launch, values, folded, perHead);
    };
    addFactors(factors, formula, "k_scale");
    addFactors(outputFactors, outputFormula, "v_scale");
    launch.f32(capConstant,
               op.getSoftCap() ? "soft_cap * log2(e)" : "no soft_cap");
    launch.i32(cache->maxTokens, "max_tokens");
    launch.i32(cache->maxSequences, "max_sequences");
    launch.i32(cache->maxPages, "max_pages_per_sequence");
    launch.i32(window, op.getWindow() ? "window" : "no window");
    launch.structural(arch);
    launch.structural(*query);
    launch.structural(*out);
    launch.structural(cache->type);
    launch.structural(heads);
    launch.structural(kvHeads);
    launch.structural(dim);
    launch.structural(page);
    launch.strides(cache->strides, runtimeStrides);
    std::string readable =
        (Twine(activationName(*query)) + "_" + cacheName(cache->type) +
         (*out != *query ? Twine("_to_") + activationName(*out) : Twine()) +
         "_h" + Twine(heads) + "x" + Twine(kvHeads) + "_d" + Twine(dim) + "_p" +
         Twine(page) + (op.getWindow() ? "_window" : "") +
         (op.getSoftCap() ? "_cap" : "") + (op.getSinks() ? "_sinks" : "") +
         (op.getAlibiSlopes() ? "_alibi" : "") +
         (tokenScales ? "_tokenscales" : "") + (perHead ? "_perhead" : "") +
         (runtimeStrides ? "_strided" : "") +
         (mathOfLayer == geometry::MathFP8 ? "_fp8math" : ""))
            .str();
    auto addFeatures = [&] {
      for (bool feature :
           {op.getWindow().has_value(), op.getSoftCap().has_value(),
            bool(op.getSinks()), bool(op.getAlibiSlopes())})
        launch.structural(feature);
    };
    auto addPerHead = [&] {
      for (Value values : {op.getSinks(), op.getAlibiSlopes()})
        if (values)
          launch.buffers.push_back(values);
    };
    if (warps) {
      addFeatures();
      launch.structural(split.splitTokens);
      launch.structural(split.numSplits);
      launch.structural(op.getLse() ? 1 : 0);
      launch.structural(warps);
      std::string name = launch.name("prefill_" + readable);
      addWorkspaces(program, launch, name, gridX, gridY, prefillColumns, dim,
                    split.numSplits);
      addPerHead();
      op.emitRemark() << "layer '" << cache->op.getLayer() << "': " << name
                      << ", f16-math, because max-tokens is at least "
                      << kPrefillRows << " times max-sequences: tiles of "
                      << geometry::prefillTile << " tokens for " << rows
                      << " rows of a sequence in a CTA of " << warps
                      << " warps, " << split.numSplits
                      << (split.numSplits == 1 ? " split" : " splits")
                      << " of at least " << split.splitTokens
                      << " tokens, grid " << gridX << " x " << gridY << " x "
                      << split.numSplits << ", " << prefillBytes
                      << " bytes of shared memory";
      replace(op, launch, name, "kvcache_prefill",
              geometry::prefillLaunchGrid(cache->maxTokens, cache->maxSequences,
                                          heads, kvHeads, dim, warps,
                                          split.numSplits),
              prefillBytes,
              std::min(geometry::ctasPerSM(arch, prefillBytes), 8 / warps),
              cache->op.getSymNameAttr(), 32 * warps);
      return success();
    }
    launch.structural(tuning.tile);
    launch.structural(tuning.stages);
    launch.structural(tuning.unroll);
    launch.structural(rows);
    addFeatures();
    launch.structural(tokenScales);
    launch.structural(split.splitTokens);
    launch.structural(split.numSplits);
    launch.structural(op.getLse() ? 1 : 0);
    launch.structural(mathOfLayer);
    std::string name = launch.name("paged_attention_" + readable);
    addWorkspaces(program, launch, name, gridX, gridY, columns, dim,
                  split.numSplits);
    addPerHead();
    if (tokenScales)
      launch.buffers.append(
          {cache->view.getKScales(), cache->view.getVScales()});
    InFlightDiagnostic remark =
        op.emitRemark() << "layer '" << cache->op.getLayer() << "': " << name
                        << ", "
                        << (mathOfLayer == geometry::MathFP8 ? "fp8" : "f16")
                        << "-math, tiles of " << tuning.tile << " tokens"
                        << tunedMark("tile");
    if (!tuned.count("tile"))
      remark << " (" << tuning.why << ")";
    remark << " in " << tuning.stages << " stages" << tunedMark("stages")
           << " ("
           << geometry::bytesInFlight(arch, dim, elementBytes, columns, *query,
                                      tuning.tile, tuning.stages, mathOfLayer) /
                  1024
           << " KiB in flight on a multiprocessor)";
    if (tuning.unroll > 1)
      remark << ", unrolled by " << tuning.unroll << tunedMark("unroll");
    if (rows > 1)
      remark << ", " << rows << " rows of a sequence in a CTA"
             << tunedMark("rows");
    if (geometry::queriesInShared(dim, columns, *query, mathOfLayer))
      remark << ", queries in shared memory";
    if (gridX > kvHeads)
      remark << ", " << gridX / kvHeads << " blocks of query heads";
    explainSplits(remark, split, int64_t(gridX) * gridY, shared, keys,
                  geometry::warpsPerCta * tuning.tile);
    remark << ", grid " << gridX << " x " << gridY << " x " << split.numSplits
           << ", " << shared << " bytes of shared memory";
    replace(op, launch, name,
            runtimeStrides ? "kvcache_paged_attention_strided"
                           : "kvcache_paged_attention",
            geometry::attentionLaunchGrid(cache->maxTokens, cache->maxSequences,
                                          heads, kvHeads, dim, rows,
                                          split.numSplits),
            shared, tuning.minCtasPerSM, cache->op.getSymNameAttr());
    return success();
  }

  //===--------------------------------------------------------------------===//
  // MLA
  //===--------------------------------------------------------------------===//

  LogicalResult select(ProgramOp program, MLAAttentionOp op) {
    FailureOr<Cache> cache = describe(op);
    if (failed(cache) || failed(checkTokens(op, op.getQuery(), *cache)) ||
        failed(checkLatent(op, *cache)) ||
        failed(checkSoftmaxScale(op, *cache)))
      return failure();
    auto queryType = cast<MemRefType>(op.getQuery().getType());
    Type element = queryType.getElementType();
    CacheType type = cache->op.getCacheType();
    int latent = type.getLatentDim(), rope = type.getRopeDim();
    int heads = queryType.getDimSize(1), page = cache->group.getPageSize();
    int query = *activationType(element); // the op takes no other
    // Rows of a sequence that share the loads of a tile, and the tuning.
    int rows = tunedOr("rows", geometry::chooseMlaRows(heads, cache->maxTokens,
                                                       cache->maxSequences));
    if (rows > geometry::maxRowsPerCta || tuned.count("unroll"))
      return op.emitError()
             << "tune: the kernels of MLA take 1 to " << geometry::maxRowsPerCta
             << " rows in a CTA and have no unroll";
    if (numerics == geometry::MathFP8)
      op.emitWarning() << "layer '" << cache->op.getLayer()
                       << "' takes f16-math: the kernels of MLA have no "
                          "fp8-math";
    int gridY =
        geometry::rowBlocks(cache->maxTokens, cache->maxSequences, rows);
    if (gridY > geometry::maxRows)
      return op.emitError()
             << "max-tokens=" << cache->maxTokens << " exceeds the "
             << geometry::maxRows << " rows that one grid can have";
    int columns = geometry::mlaColumns(heads, rows);
    int gridX = geometry::ceilDiv(heads, geometry::mlaHeadsPerCta(heads, rows));
    geometry::MlaTuning tuning =
        geometry::mlaDefaults(arch, cache->type, latent, rope, columns);
    tuning.tile = tunedOr("tile", tuning.tile);
    tuning.stages = tunedOr("stages", tuning.stages);
    int shared = geometry::mlaSharedBytes(arch, cache->type, latent, rope,
                                          columns, tuning.tile, tuning.stages);
    geometry::SplitChoice split =
        geometry::chooseMlaSplits(arch, shared, columns, tuning.tile, gridX,
                                  gridY, cache->maxPages * page);
    split.numSplits = tunedOr("splits", split.numSplits);
    const char *problem = geometry::mlaProblem(
        arch, query, cache->type, heads, latent, rope, rows, tuning.tile,
        tuning.stages, split.splitTokens, split.numSplits);
    if (!problem &&
        cast<MemRefType>(op.getOut().getType()).getElementType() != element)
      problem = "the output has the element type of the queries";
    if (problem)
      return op.emitError()
             << "no attention kernel for queries of " << element << ", "
             << heads << " heads over " << type << " in pages of " << page
             << " (layer '" << cache->op.getLayer() << "'): " << problem;
    FailureOr<float> factor = fold(op,
                                   op.getSoftmaxScale()->convertToDouble() *
                                       static_cast<double>(cache->k.front()) *
                                       std::log2(std::exp(1.0)),
                                   "softmax_scale * k_scale * log2(e)");
    if (failed(factor))
      return failure();

    OpBuilder builder(op);
    LaunchBuilder launch(builder);
    launch.buffers = {op.getQuery(),
                      cache->view.getKPages(),
                      cache->view.getPageTable(),
                      cache->view.getLengths(),
                      cache->view.getQueryStart(),
                      op.getOut()};
    if (op.getLse())
      launch.buffers.push_back(op.getLse());
    launch.f32(*factor, cache->type < geometry::CacheF16
                            ? "softmax_scale * k_scale * log2(e)"
                            : "softmax_scale * log2(e)");
    launch.f32(cache->k.front(), latentScale(*cache));
    launch.i32(cache->maxTokens, "max_tokens");
    launch.i32(cache->maxSequences, "max_sequences");
    launch.i32(cache->maxPages, "max_pages_per_sequence");
    launch.structural(arch);
    launch.structural(query);
    launch.structural(cache->type);
    launch.structural(heads);
    addLatent(launch, *cache);
    launch.structural(tuning.tile);
    launch.structural(tuning.stages);
    launch.structural(rows);
    launch.structural(split.splitTokens);
    launch.structural(split.numSplits);
    launch.structural(op.getLse() ? 1 : 0);
    std::string name =
        launch.name(Twine("mla_attention_") + activationName(query) + "_" +
                    cacheName(cache->type) + "_h" + Twine(heads) + "_d" +
                    Twine(latent) + "x" + Twine(rope) + "_p" + Twine(page));
    addWorkspaces(program, launch, name, gridX, gridY, columns, latent,
                  split.numSplits);
    InFlightDiagnostic remark =
        op.emitRemark() << "layer '" << cache->op.getLayer() << "': " << name
                        << ", f16-math, tiles of " << tuning.tile
                        << tunedMark("tile")
                        << " latent rows, which are K and V at once, in "
                        << tuning.stages << " stages" << tunedMark("stages");
    if (rows > 1)
      remark << ", " << rows << " rows of a sequence in a CTA"
             << tunedMark("rows");
    if (gridX > 1)
      remark << ", " << gridX << " blocks of query heads";
    explainSplits(remark, split, int64_t(gridX) * gridY, shared,
                  cache->maxPages * page, tuning.tile);
    remark << ", grid " << gridX << " x " << gridY << " x " << split.numSplits
           << ", " << shared << " bytes of shared memory";
    replace(op, launch, name, "kvcache_mla_attention",
            {gridX, gridY, split.numSplits}, shared, 1,
            cache->op.getSymNameAttr(), geometry::mlaThreads);
    return success();
  }
};
} // namespace
