//===- SelectWrites.cpp - Launches of writes ------------------------------===//

#include "KernelSelector.h"
#include <cmath>

using namespace mlir;
using namespace mlir::kvcache;

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

LogicalResult KernelSelector::select(WriteOp op) {
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
      vDim = type.getVHeadDim(), page = cache->group.getPageSize();
  bool perHead = cache->k.size() > 1;
  if (!geometry::writeIsLegal(heads, dim, page, cache->strides[0],
                              cache->strides[1], cache->strides[2],
                              cache->minCopyWidth()) ||
      !geometry::writeIsLegal(heads, vDim, page, cache->vStrides[0],
                              cache->vStrides[1], cache->vStrides[2],
                              cache->minCopyWidth()))
    return op.emitError() << "no write kernel for " << heads << " KV heads of "
                          << headDimText(type) << " in pages of " << page
                          << " with layout " << cache->op.getLayoutText()
                          << "; the head dim must be a multiple of 16, and "
                             "strides multiples of "
                          << cache->minCopyWidth() << " bytes";

  OpBuilder builder(op);
  LaunchBuilder launch(builder);
  launch.buffers = {op.getKey(), op.getValue(), cache->view.getKPages(),
                    cache->view.getVPages(), cache->view.getSlots()};
  if (cache->tokenScales)
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
  launch.strides(cache->strides, cache->vStrides, runtimeStrides);
  launch.structural(llvm::all_of(cache->k, isPowerOfTwo));
  launch.structural(llvm::all_of(cache->v, isPowerOfTwo));
  launch.structural(perHead);
  std::string rope = addRope(launch, op);
  addVHeadDim(launch, type);
  std::string name = launch.name(
      Twine("write_") + activationName(*input) + "_" + cacheName(cache->type) +
      "_h" + Twine(heads) + "_d" + headDimText(type) + "_p" + Twine(page) +
      (perHead ? "_perhead" : "") + rope + (runtimeStrides ? "_strided" : ""));
  replace(
      op, launch, name,
      runtimeStrides ? "kvcache_write_strided" : "kvcache_write",
      geometry::writeLaunchGrid(cache->maxTokens, heads, dim, vDim, perHead), 0,
      0, cache->op.getSymNameAttr());
  return success();
}

LogicalResult KernelSelector::selectTokenScaled(WriteOp op, Cache &cache,
                                                int input,
                                                LaunchBuilder &launch) {
  CacheType type = cache.op.getCacheType();
  int heads = type.getNumHeads(), dim = type.getHeadDim(),
      vDim = type.getVHeadDim(), page = cache.group.getPageSize();
  if (std::max(dim, vDim) > 32 * geometry::writeElements)
    return op.emitError() << "no write kernel with token scales for a head "
                             "dim of "
                          << std::max(dim, vDim) << "; up to "
                          << 32 * geometry::writeElements << " are supported";
  if (runtimeStrides)
    return op.emitError()
           << "no write kernel with token scales takes the strides of pages "
              "at run time; compile without runtime-strides, with a "
              "kv-layout that says the strides";
  if (cache.tokenScales == geometry::SideTokenScales)
    launch.buffers.append({cache.view.getKScales(), cache.view.getVScales()});
  launch.i32(cache.maxTokens, "max_tokens");
  launch.i64(cache.numPages * page, "num_pages * page_size");
  launch.structural(arch);
  launch.structural(input);
  launch.structural(heads);
  launch.structural(dim);
  launch.structural(page);
  launch.strides(cache.strides, cache.vStrides, /*atRunTime=*/false);
  launch.structural(cache.tokenScales);
  std::string rope = addRope(launch, op);
  addVHeadDim(launch, type);
  std::string name = launch.name(
      Twine("write_token_scaled_") + activationName(input) + "_" +
      cacheName(cache.type) + "_h" + Twine(heads) + "_d" + headDimText(type) +
      "_p" + Twine(page) +
      (cache.tokenScales == geometry::InlineTokenScales ? "_inline" : "") +
      rope);
  if (cache.copyWidth() != 16)
    op.emitRemark() << "layer '" << cache.op.getLayer() << "': " << name << ", "
                    << cache.narrowCopiesText();
  replace(
      op, launch, name, "kvcache_write_token_scaled",
      {geometry::tokenScaledWriteGrid(cache.maxTokens, heads, dim, vDim), 1, 1},
      0, 0, cache.op.getSymNameAttr());
  return success();
}

LogicalResult KernelSelector::select(WriteLatentOp op) {
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
