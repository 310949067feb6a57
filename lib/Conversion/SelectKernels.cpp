//===- SelectKernels.cpp - Cache ops become launches of kernels
//-------------===//
//
// Grids, workspaces and splits come from capacities (kernels/Geometry.h), and
// scales become launch constants. Nothing here looks at live data.
//
//===----------------------------------------------------------------------===//

#include "../../kernels/Geometry.h"
#include "kvcache/Conversion/DeviceFunctions.h"
#include "kvcache/Conversion/Passes.h"
#include "kvcache/IR/KVCache.h"
#include "mlir/Dialect/MemRef/IR/MemRef.h"
#include "mlir/IR/Builders.h"
#include "llvm/ADT/StringExtras.h"
#include "llvm/Support/SHA256.h"
#include <cmath>

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
  SmallVector<Attribute> constants, structure;
  SmallVector<StringRef> origins;

  void f32(float value, StringRef origin) {
    constants.push_back(builder.getF32FloatAttr(value));
    origins.push_back(origin);
  }
  void i32(int64_t value, StringRef origin) {
    constants.push_back(builder.getI32IntegerAttr(value));
    origins.push_back(origin);
  }
  void i64(int64_t value, StringRef origin) {
    constants.push_back(builder.getI64IntegerAttr(value));
    origins.push_back(origin);
  }
  void structural(int64_t value) {
    structure.push_back(builder.getI32IntegerAttr(value));
  }
  void structural64(int64_t value) {
    structure.push_back(builder.getI64IntegerAttr(value));
  }
  void strides(ArrayRef<int64_t> page) {
    structural64(page[0]);
    structural(page[1]);
    structural(page[2]);
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

struct SelectKernels
    : public mlir::kvcache::impl::SelectKernelsBase<SelectKernels> {
  using SelectKernelsBase::SelectKernelsBase;

  int arch = 0;

  void runOnOperation() override {
    ModuleOp module = getOperation();
    std::optional<int> parsed = archOf(target);
    if (!parsed || *parsed < 80) {
      module.emitError()
          << "target: expected a chip from sm_80 on, such as sm_90, but found '"
          << target << "'";
      return signalPassFailure();
    }
    arch = *parsed;
    bool failedAny = false;
    module.walk([&](ProgramOp program) {
      for (auto segment : program.getBody().front().getOps<SegmentOp>())
        failedAny |= failed(selectSegment(program, segment));
    });
    if (failedAny)
      signalPassFailure();
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
      else
        continue;
      failedAny |= failed(result);
    }
    for (Operation &op :
         llvm::make_early_inc_range(llvm::reverse(segment.getBody().front())))
      if (isa<ViewCacheOp>(op) && op.use_empty())
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
    ScaleAttr k, v;
    SmallVector<int64_t, 4> strides;
    int64_t maxTokens, maxSequences, maxPages, numPages;
  };

  FailureOr<Cache> describe(CacheOpInterface op) {
    Cache cache;
    cache.op = getCacheDeclaration(op.getCacheHandle());
    cache.view = op.getCacheHandle().getDefiningOp<ViewCacheOp>();
    if (!cache.op || !cache.view)
      return op->emitError()
             << "no kernel selected: the cache handle is not the result of "
                "'kvcache.view_cache'; run 'kvcache-form-programs' first";
    cache.group = cache.op.getGroupOp();
    CacheType type = cache.op.getCacheType();
    if (!isa<Float8E4M3FNType>(type.getElementType()))
      return op->emitError()
             << "no kernel for a cache of " << type.getElementType()
             << " (layer \"" << cache.op.getLayer()
             << "\"); f8E4M3FN is supported: choose it with kv-cache-dtype=fp8";
    for (auto [role, buffer, scale] :
         {std::tuple<StringRef, ScaleBufferOp, ScaleAttr *>{
              "k", cache.op.getKScaleOp(), &cache.k},
          {"v", cache.op.getVScaleOp(), &cache.v}}) {
      *scale = buffer.getScale();
      if (!scale->isStatic())
        return op->emitError()
               << "no kernel selected: the " << role << " scale @"
               << buffer.getSymName()
               << " has no value; run 'kvcache-fold-checkpoint-scales' first";
      if (scale->getValues().size() != 1)
        return op->emitError()
               << "no kernel for the per-head " << role << " scale @"
               << buffer.getSymName() << "; per-tensor scales are supported";
    }
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
    cache.strides = cache.op.getPageStrides();
    return cache;
  }

  /// 0 for f16, 1 for bf16, as the device library numbers them.
  static std::optional<int> activationType(Type type) {
    if (type.isF16())
      return geometry::F16;
    if (type.isBF16())
      return geometry::BF16;
    return std::nullopt;
  }

  static StringRef activationName(int type) {
    return type == geometry::F16 ? "f16" : "bf16";
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
               StringRef function, ArrayRef<int64_t> grid, int64_t shared,
               int64_t minCtasPerSM, CacheOp cache) {
    OpBuilder builder(op);
    LaunchOp::create(
        builder, op->getLoc(), kernel, function, grid,
        ArrayRef<int64_t>{geometry::threadsPerCta, 1, 1}, shared,
        launch.buffers, builder.getArrayAttr(launch.constants),
        builder.getStrArrayAttr(launch.origins),
        builder.getArrayAttr(launch.structure), cache.getSymNameAttr(),
        minCtasPerSM ? builder.getI64IntegerAttr(minCtasPerSM) : IntegerAttr());
    ++numLaunches;
    op->erase();
  }

  //===--------------------------------------------------------------------===//
  // Write
  //===--------------------------------------------------------------------===//

  static bool isPowerOfTwo(float value) {
    int exponent;
    return std::frexp(value, &exponent) == 0.5f;
  }

  LogicalResult select(WriteOp op) {
    FailureOr<Cache> cache = describe(op);
    if (failed(cache) || failed(checkTokens(op, op.getKey(), *cache)))
      return failure();
    Type element = cast<MemRefType>(op.getKey().getType()).getElementType();
    std::optional<int> input = activationType(element);
    if (!input)
      return op.emitError() << "no write kernel for rows of " << element
                            << "; f16 and bf16 are supported";
    CacheType type = cache->op.getCacheType();
    int heads = type.getNumHeads(), dim = type.getHeadDim(),
        page = cache->group.getPageSize();
    if (!geometry::writeIsLegal(heads, dim, page, cache->strides[0],
                                cache->strides[1], cache->strides[2]))
      return op.emitError() << "no write kernel for " << heads
                            << " KV heads of " << dim << " in pages of " << page
                            << "; the head dim must be a multiple of 16";

    OpBuilder builder(op);
    LaunchBuilder launch(builder);
    launch.buffers = {op.getKey(), op.getValue(), cache->view.getKPages(),
                      cache->view.getVPages(), cache->view.getSlots()};
    launch.f32(cache->k.getValue(), "k_scale");
    launch.f32(cache->v.getValue(), "v_scale");
    launch.i32(cache->maxTokens, "max_tokens");
    launch.i64(cache->numPages * page, "num_pages * page_size");
    launch.structural(arch);
    launch.structural(*input);
    launch.structural(geometry::E4M3);
    launch.structural(heads);
    launch.structural(dim);
    launch.structural(page);
    launch.strides(cache->strides);
    launch.strides(cache->strides);
    launch.structural(isPowerOfTwo(cache->k.getValue()));
    launch.structural(isPowerOfTwo(cache->v.getValue()));
    std::string name =
        launch.name(Twine("write_") + activationName(*input) + "_e4m3_h" +
                    Twine(heads) + "_d" + Twine(dim) + "_p" + Twine(page));
    replace(op, launch, name, "kvcache_write",
            {geometry::writeGrid(cache->maxTokens, heads, dim), 1, 1}, 0, 0,
            cache->op);
    return success();
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

  /// Launches of one kernel run one after the other, so they share a workspace.
  Value workspace(ProgramOp program, const Twine &suffix, int64_t bytes,
                  Type element) {
    Builder builder(program);
    std::string name = ("workspace." + suffix).str();
    for (unsigned i = 0, e = program.getNumArguments(); i < e; ++i)
      if (program.getBufferName(i) == name)
        return program.getArgument(i);
    auto type =
        MemRefType::get(bytes * 8 / element.getIntOrFloatBitWidth(), element);
    unsigned index = program.getNumArguments();
    auto attributes = builder.getDictionaryAttr(
        {builder.getNamedAttr(kBufferName, builder.getStringAttr(name)),
         builder.getNamedAttr(
             kBufferRole,
             BufferRoleAttr::get(&getContext(), BufferRole::Workspace))});
    (void)program.insertArgument(index, type, attributes, program.getLoc());
    return program.getArgument(index);
  }

  LogicalResult select(ProgramOp program, SegmentOp segment,
                       PagedAttentionOp op) {
    FailureOr<Cache> cache = describe(op);
    if (failed(cache) || failed(checkTokens(op, op.getQuery(), *cache)))
      return failure();
    for (auto [feature, present] :
         {std::pair<StringRef, bool>{"soft_cap", !!op.getSoftCap()},
          {"window", !!op.getWindow()}})
      if (present)
        return op.emitError()
               << "no kernel for attention with '" << feature << "' (layer \""
               << cache->op.getLayer()
               << "\"); 'convert-kvcache-to-reference' supports it";
    if (!op.getSoftmaxScale())
      return op.emitError()
             << "no kernel selected: the softmax scale of layer \""
             << cache->op.getLayer()
             << "\" is not known; run 'kvcache-apply-model-config' with a "
                "checkpoint or with softmax-scale=F";
    auto queryType = cast<MemRefType>(op.getQuery().getType());
    std::optional<int> query = activationType(queryType.getElementType());
    if (!query || cast<MemRefType>(op.getOut().getType()).getElementType() !=
                      queryType.getElementType())
      return op.emitError()
             << "no attention kernel for queries of "
             << queryType.getElementType() << " and an output of "
             << cast<MemRefType>(op.getOut().getType()).getElementType()
             << "; f16 and bf16, the same for both, are supported";
    CacheType type = cache->op.getCacheType();
    int heads = queryType.getDimSize(1), kvHeads = type.getNumHeads(),
        dim = type.getHeadDim();
    int group = heads / kvHeads, page = cache->group.getPageSize();
    if (dim != 64 && dim != 128)
      return op.emitError()
             << "no attention kernel for head dim " << dim << " (layer \""
             << cache->op.getLayer() << "\"); 64 and 128 are supported";
    if (group > geometry::maxGroup)
      return op.emitError() << "no attention kernel for " << group
                            << " query heads on one KV head; up to "
                            << geometry::maxGroup << " are supported";
    if (page < 16 || page > 128)
      return op.emitError() << "no attention kernel for page size " << page
                            << "; 16, 32, 64 and 128 are supported";
    if (cache->maxTokens > geometry::maxRows)
      return op.emitError()
             << "max-tokens=" << cache->maxTokens << " exceeds the "
             << geometry::maxRows << " rows that one grid can have";

    geometry::AttentionTuning tuning =
        geometry::attentionDefaults(arch, dim, group, page);
    geometry::SplitChoice split = geometry::chooseSplits(
        arch, heads, kvHeads, dim, page, tuning.tile, tuning.stages,
        cache->maxTokens, cache->maxPages);
    if (!geometry::attentionIsLegal(heads, kvHeads, dim, page, tuning.tile,
                                    tuning.stages, tuning.unroll,
                                    split.splitTokens, split.numSplits) ||
        !geometry::attentionStridesAreLegal(
            cache->strides[0], cache->strides[1], cache->strides[2]))
      return op.emitError()
             << "no attention kernel for " << heads << "/" << kvHeads
             << " heads of " << dim << " in pages of " << page;

    double scale = op.getSoftmaxScale()->convertToDouble();
    FailureOr<float> scoreFactor =
        fold(op,
             scale * static_cast<double>(cache->k.getValue()) *
                 std::log2(std::exp(1.0)),
             "softmax_scale * k_scale * log2(e)");
    if (failed(scoreFactor))
      return failure();

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
    launch.f32(*scoreFactor, "softmax_scale * k_scale * log2(e)");
    launch.f32(cache->v.getValue(), "v_scale");
    launch.i32(cache->maxTokens, "max_tokens");
    launch.i32(cache->maxSequences, "max_sequences");
    launch.i32(cache->maxPages, "max_pages_per_sequence");
    launch.structural(arch);
    launch.structural(*query);
    launch.structural(geometry::E4M3);
    launch.structural(heads);
    launch.structural(kvHeads);
    launch.structural(dim);
    launch.structural(page);
    launch.strides(cache->strides);
    launch.strides(cache->strides);
    launch.structural(tuning.tile);
    launch.structural(tuning.stages);
    launch.structural(tuning.unroll);
    launch.structural(split.splitTokens);
    launch.structural(split.numSplits);
    launch.structural(op.getLse() ? 1 : 0);
    std::string name =
        launch.name(Twine("paged_attention_") + activationName(*query) +
                    "_e4m3_h" + Twine(heads) + "x" + Twine(kvHeads) + "_d" +
                    Twine(dim) + "_p" + Twine(page));
    if (split.numSplits > 1) {
      int64_t partials = geometry::partialsBytes(cache->maxTokens, heads,
                                                 kvHeads, dim, split.numSplits);
      int64_t counters = geometry::countersBytes(cache->maxTokens, heads,
                                                 kvHeads, split.numSplits);
      Value workspaces[] = {workspace(program, name + ".partials", partials,
                                      builder.getF32Type()),
                            workspace(program, name + ".counters", counters,
                                      builder.getI32Type())};
      launch.buffers.append(std::begin(workspaces), std::end(workspaces));
    }
    int64_t shared =
        geometry::dynamicSharedBytes(dim, group, tuning.tile, tuning.stages);
    int64_t gridX = geometry::attentionGridX(heads, kvHeads);
    op.emitRemark() << "layer \"" << cache->op.getLayer() << "\": " << name
                    << ", tiles of " << tuning.tile << " tokens in "
                    << tuning.stages << " stages, " << split.numSplits
                    << " splits of at least " << split.splitTokens
                    << " tokens, grid " << gridX << " x " << cache->maxTokens
                    << " x " << split.numSplits << ", " << shared
                    << " bytes of shared memory";
    replace(op, launch, name, "kvcache_paged_attention",
            {gridX, cache->maxTokens, split.numSplits}, shared,
            tuning.minCtasPerSM, cache->op);
    return success();
  }
};
} // namespace
