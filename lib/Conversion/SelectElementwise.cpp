//===- SelectElementwise.cpp - Launches of quantizations, merges, copies --===//

#include "KernelSelector.h"
#include "mlir/IR/Matchers.h"

using namespace mlir;
using namespace mlir::kvcache;

int64_t KernelSelector::maxTokens(ProgramOp program) {
  int64_t tokens = 0;
  for (auto group : module.getOps<CacheGroupOp>())
    if (group.getMaxTokens() && group.getMaxSequences())
      tokens = std::max(tokens, program.getRoom(group).second);
  return tokens;
}

/// The attention that takes its queries from `buffer`, or null.
static PagedAttentionOp attentionOf(Value buffer, SegmentOp segment) {
  for (Operation *user : buffer.getUsers())
    if (auto attention = dyn_cast<PagedAttentionOp>(user))
      if (attention.getQuery() == buffer && attention->getParentOp() == segment)
        return attention;
  return nullptr;
}

template <typename OpT>
LogicalResult KernelSelector::selectElementwise(OpT op) {
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
                          << "': it takes contiguous buffers, but has " << input
                          << " and " << output;
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
            to = quantizes ? cacheName(*codeType) : activationName(*plainType);
  std::string name = launch.name(
      Twine(quantizes ? "quantize_" : "dequantize_") + from + "_to_" + to);
  int grid = geometry::elementwiseGrid(count);
  op.emitRemark() << name << ", " << geometry::writeElements
                  << " elements a thread, grid " << grid << " x 1 x 1";
  StringAttr layer;
  if (attention)
    layer = getCacheDeclaration(attention.getCache(), symbols).getSymNameAttr();
  replace(op, launch, name,
          quantizes ? "kvcache_quantize" : "kvcache_dequantize", {grid, 1, 1},
          0, 0, layer);
  return success();
}

LogicalResult KernelSelector::select(QuantizeOp op) {
  return selectElementwise(op);
}

LogicalResult KernelSelector::select(DequantizeOp op) {
  return selectElementwise(op);
}

LogicalResult KernelSelector::select(ProgramOp program, MergeStatesOp op) {
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
    return op.emitError() << "no kernel for this '" << op->getName() << "' of "
                          << partial << ": " << problem;
  int type = *activationType(partial.getElementType());

  OpBuilder builder(op);
  LaunchBuilder launch(builder);
  llvm::append_range(launch.buffers, op->getOperands());
  launch.i32(tokens * heads, "tokens * query heads");
  launch.structural(arch);
  launch.structural(type);
  launch.structural(dim);
  std::string name = launch.name(Twine("merge_states_") + activationName(type) +
                                 "_d" + Twine(dim));
  int grid = geometry::elementwiseGrid(tokens * heads * dim);
  op.emitRemark() << name << ", " << geometry::writeElements
                  << " elements a thread, grid " << grid << " x 1 x 1";
  replace(op, launch, name, "kvcache_merge_states", {grid, 1, 1}, 0, 0,
          StringAttr());
  return success();
}

LogicalResult KernelSelector::select(CopyPagesOp op) {
  FailureOr<Cache> cache = describe(op);
  if (failed(cache))
    return failure();
  CacheType type = cache->op.getCacheType();
  int page = cache->group.getPageSize(), heads = type.getNumHeads();
  int elementBytes = cache->op.getPageElementType().getIntOrFloatBitWidth() / 8;
  int rowBytes = cache->op.getRowWidth() * elementBytes,
      vRowBytes = cache->op.getRowWidth(/*ofV=*/true) * elementBytes;
  int width = geometry::copyWidth(0, 0, rowBytes);
  auto pairsType = cast<MemRefType>(op.getPairs().getType());
  int64_t pairs =
      pairsType.isDynamicDim(0) ? cache->numPages : pairsType.getDimSize(0);
  const char *problem = nullptr;
  auto isOdd = [width](int64_t bytes) { return bytes % width != 0; };
  if (isOdd(rowBytes) || isOdd(vRowBytes) ||
      llvm::any_of(ArrayRef(cache->strides).drop_back(), isOdd) ||
      llvm::any_of(ArrayRef(cache->vStrides).drop_back(), isOdd))
    problem = "rows of a head and strides must be multiples of 16 bytes, or "
              "both of 4";
  else if (!pairsType.getLayout().isIdentity())
    problem = "pairs need a contiguous buffer";
  if (problem)
    return op.emitError() << "no kernel for '" << op->getName() << "' in "
                          << type << " (layer '" << cache->op.getLayer()
                          << "'): " << problem;

  OpBuilder builder(op);
  auto copy = [&](Value k, Value v, int rowBytes, int vRowBytes,
                  ArrayRef<int64_t> strides, ArrayRef<int64_t> vStrides,
                  StringRef of) {
    LaunchBuilder launch(builder);
    launch.buffers = {k};
    if (v)
      launch.buffers.push_back(v);
    launch.buffers.push_back(op.getPairs());
    launch.i64(cache->numPages, "num_pages");
    launch.structural(arch);
    launch.structural(heads);
    launch.structural(page);
    launch.structural(rowBytes);
    launch.structural(v ? vRowBytes : 0);
    launch.strides(strides, vStrides, /*atRunTime=*/true, of);
    std::string name = launch.name(
        Twine("copy_pages_h") + Twine(heads) + "_b" + Twine(rowBytes) +
        (vRowBytes != rowBytes ? "v" + Twine(vRowBytes) : Twine()) + "_p" +
        Twine(page));
    geometry::Grid grid = geometry::copyPagesGrid(
        pairs, geometry::copyUnits(heads, rowBytes, page) +
                   (v ? geometry::copyUnits(heads, vRowBytes, page) : 0));
    op.emitRemark() << "layer '" << cache->op.getLayer() << "': " << name
                    << ", " << geometry::copyWidth(0, 0, rowBytes)
                    << " bytes a thread, grid " << grid.x << " x " << grid.y
                    << " x 1";
    launchBefore(op, launch, name, "kvcache_copy_pages", grid, 0, 0,
                 cache->op.getSymNameAttr());
  };
  copy(cache->view.getKPages(),
       type.isLatent() ? Value() : cache->view.getVPages(), rowBytes, vRowBytes,
       cache->strides, cache->vStrides, "");
  if (cache->tokenScales == geometry::SideTokenScales) {
    int64_t strides[] = {int64_t(4) * heads * page, 4 * heads, 4};
    copy(cache->view.getKScales(), cache->view.getVScales(), 4, 4, strides,
         strides, "_scales");
  }
  op.erase();
  return success();
}
