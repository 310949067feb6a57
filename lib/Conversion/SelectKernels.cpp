//===- SelectKernels.cpp - Cache ops become launches of kernels -----------===//
//
// Grids, workspaces and splits come from capacities (kernels/Geometry.h), and
// scales become launch constants. Nothing here looks at live data.
//
//===----------------------------------------------------------------------===//

#include "KernelSelector.h"
#include "kvcache/Conversion/Passes.h"
#include "mlir/Dialect/Arith/IR/Arith.h"
#include "mlir/Dialect/MemRef/IR/MemRef.h"
#include "llvm/Support/SHA256.h"

namespace mlir::kvcache {
#define GEN_PASS_DEF_SELECTKERNELS
#include "kvcache/Conversion/Passes.h.inc"
} // namespace mlir::kvcache

using namespace mlir;
using namespace mlir::kvcache;

std::string LaunchBuilder::name(const Twine &readable) const {
  llvm::SHA256 hash;
  for (Attribute value : structure)
    hash.update(
        llvm::utostr(static_cast<uint64_t>(cast<IntegerAttr>(value).getInt())) +
        ",");
  return (readable + "_" +
          llvm::toHex(hash.final(), /*LowerCase=*/true).substr(0, 8))
      .str();
}

void KernelSelector::shareWorkspaces() {
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
        module.getContext(), program.getBody().front().getArgumentTypes(), {}));
  }
}

LogicalResult KernelSelector::selectSegment(ProgramOp program,
                                            SegmentOp segment) {
  bool failedAny = false;
  for (Operation &op : llvm::make_early_inc_range(segment.getBody().front())) {
    LogicalResult result = success();
    if (auto write = dyn_cast<WriteOp>(op))
      result = select(write);
    else if (auto attention = dyn_cast<PagedAttentionOp>(op))
      result = select(program, attention);
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

FailureOr<ScaleAttr> KernelSelector::staticScale(Operation *op, CacheOp cache,
                                                 FlatSymbolRefAttr name,
                                                 StringRef role) {
  ScaleAttr scale = getBeside<ScaleBufferOp>(cache, name, symbols).getScale();
  if (!scale.isStatic())
    return op->emitError()
           << "no kernel selected: the " << role << " scale " << name
           << " has no value; run 'kvcache-fold-checkpoint-scales' first";
  return scale;
}

FailureOr<double> KernelSelector::otherScale(Operation *op, CacheOp cache,
                                             FlatSymbolRefAttr name,
                                             StringRef role) {
  if (!name)
    return 1.0;
  FailureOr<ScaleAttr> scale = staticScale(op, cache, name, role);
  if (failed(scale))
    return failure();
  return static_cast<double>(scale->getValue());
}

FailureOr<KernelSelector::Cache> KernelSelector::describe(CacheOpInterface op) {
  Cache cache;
  cache.op = getCacheDeclaration(op.getCacheHandle(), symbols);
  cache.view = op.getCacheHandle().getDefiningOp<ViewCacheOp>();
  if (!cache.op || !cache.view)
    return op->emitError()
           << "no kernel selected: the cache handle is not the result of "
              "'kvcache.view_cache'; run 'kvcache-form-programs' first";
  cache.group =
      getBeside<CacheGroupOp>(cache.op, cache.op.getGroupAttr(), symbols);
  CacheType type = cache.op.getCacheType();
  std::optional<int> element = cacheType(type.getElementType());
  if (!element)
    return op->emitError() << "no kernel for a cache of "
                           << type.getElementType() << " (layer '"
                           << cache.op.getLayer()
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
          op->emitError() << "no kernel selected: the grid needs the capacity '"
                          << name << "' of @" << cache.group.getSymName();
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
  int64_t bytes = cache.op.getPageElementType().getIntOrFloatBitWidth() / 8;
  for (int64_t stride : cache.op.getPageStrides())
    cache.strides.push_back(stride * bytes);
  for (int64_t stride : cache.op.getPageStrides(/*ofV=*/true))
    cache.vStrides.push_back(stride * bytes);
  cache.tokenScales = cache.op.hasInlineScales() ? geometry::InlineTokenScales
                      : cache.op.hasSideScales() ? geometry::SideTokenScales
                                                 : geometry::NoTokenScales;
  if (std::max({cache.strides[1], cache.strides[2], cache.vStrides[1],
                cache.vStrides[2]}) > std::numeric_limits<int32_t>::max())
    return op->emitError()
           << "no kernel selected: layout " << cache.op.getLayoutText()
           << " of layer '" << cache.op.getLayer()
           << "' has strides of tokens or heads of 2 GiB or more";
  return cache;
}

std::optional<int> KernelSelector::activationType(Type type) {
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

std::optional<int> KernelSelector::cacheType(Type type) {
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

void KernelSelector::addScales(LaunchBuilder &launch, ArrayRef<float> values,
                               StringRef origin, StringRef perHeadOrigin) {
  for (float value : values)
    launch.f32(value, values.size() == 1 ? origin : perHeadOrigin);
}

LogicalResult KernelSelector::checkTokens(Operation *op, Value rows,
                                          const Cache &cache) {
  int64_t tokens = cast<MemRefType>(rows.getType()).getDimSize(0);
  if (!ShapedType::isDynamic(tokens) && tokens > cache.maxTokens)
    return op->emitError() << "the graph has " << tokens
                           << " tokens, more than max-tokens="
                           << cache.maxTokens << "; raise max-tokens";
  return success();
}

LogicalResult KernelSelector::checkLatent(Operation *op, Cache &cache) {
  CacheType type = cache.op.getCacheType();
  if (const char *problem = geometry::latentProblem(
          cache.type, type.getLatentDim(), type.getRopeDim(),
          cache.group.getPageSize(), cache.strides[0], cache.strides[1]))
    return op->emitError() << "no kernel for the latent cache " << type
                           << " of layer '" << cache.op.getLayer()
                           << "': " << problem;
  return success();
}

void KernelSelector::addLatent(LaunchBuilder &launch, Cache &cache) {
  CacheType type = cache.op.getCacheType();
  launch.structural(type.getLatentDim());
  launch.structural(type.getRopeDim());
  launch.structural(cache.group.getPageSize());
  launch.structural64(cache.strides[0]);
  launch.structural(cache.strides[1]);
}

std::string KernelSelector::Cache::narrowCopiesText() const {
  return "copies of 4 bytes, because rows that end in their scale are " +
         std::to_string(strides[2]) +
         " bytes apart: four times as many; strides of multiples of "
         "16 bytes (kv-layout=strides:PAGE,TOKEN,HEAD) or token-scales=side "
         "avoid them";
}

void KernelSelector::launchBefore(Operation *op, const LaunchBuilder &launch,
                                  StringRef kernel, StringRef function,
                                  geometry::Grid grid, int64_t shared,
                                  int64_t minCtasPerSM, StringAttr layer,
                                  int64_t threads) {
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
}

LogicalResult KernelSelector::run() {
  bool failedAny = false;
  module.walk([&](ProgramOp program) {
    for (auto segment : program.getBody().front().getOps<SegmentOp>())
      failedAny |= failed(selectSegment(program, segment));
  });
  shareWorkspaces();
  return failure(failedAny);
}

namespace {

struct SelectKernels
    : public mlir::kvcache::impl::SelectKernelsBase<SelectKernels> {
  using SelectKernelsBase::SelectKernelsBase;

  void runOnOperation() override {
    FailureOr<KernelSelector::Options> options = readOptions(getOperation());
    if (failed(options))
      return signalPassFailure();
    KernelSelector selector(getOperation(), std::move(*options));
    if (failed(selector.run()))
      signalPassFailure();
    numLaunches += selector.getNumLaunches();
  }

  FailureOr<KernelSelector::Options> readOptions(ModuleOp module) {
    // LLVM ends the process at a chip that the PTX version cannot name.
    constexpr StringRef chips[] = {"sm_80",   "sm_86",  "sm_87",
                                   "sm_89",   "sm_90",  "sm_100",
                                   "sm_100a", "sm_120", "sm_120a"};
    if (!llvm::is_contained(chips, StringRef(target)))
      return module.emitError()
             << "target: expected one of " << llvm::join(ArrayRef(chips), ", ")
             << ", but found '" << target << "'";
    if (math != "f16" && math != "fp8")
      return module.emitError()
             << "math: expected f16 or fp8, but found '" << math << "'";
    int numerics = math == "fp8" ? geometry::MathFP8 : geometry::MathF16;
    std::map<std::string, int> tuned;
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
    return KernelSelector::Options{StringRef(target), runtimeStrides, numerics,
                                   std::move(tuned)};
  }
};

} // namespace
