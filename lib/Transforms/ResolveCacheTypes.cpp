//===- ResolveCacheTypes.cpp - Element type of each cache -----------------===//

#include "CheckpointSupport.h"
#include "kvcache/Checkpoint/CacheType.h"
#include "kvcache/Transforms/Passes.h"
#include "llvm/ADT/StringMap.h"
#include "llvm/ADT/StringSet.h"

namespace mlir::kvcache {
#define GEN_PASS_DEF_RESOLVECACHETYPES
#include "kvcache/Transforms/Passes.h.inc"
} // namespace mlir::kvcache

using namespace mlir;
using namespace mlir::kvcache;

namespace {

class ResolveCacheTypesPass
    : public mlir::kvcache::impl::ResolveCacheTypesBase<ResolveCacheTypesPass> {
public:
  using ResolveCacheTypesBase::ResolveCacheTypesBase;
  void runOnOperation() override;

private:
  LogicalResult retype(const llvm::StringMap<CacheType> &types);
};

} // namespace

/// Gives handles the type of their cache. Ops that use a handle take its type
/// from the operand, so nothing else changes.
LogicalResult
ResolveCacheTypesPass::retype(const llvm::StringMap<CacheType> &types) {
  SmallVector<std::pair<Value, CacheType>> handles;
  LogicalResult result = success();
  getOperation().walk([&](Operation *op) {
    Value handle;
    if (auto with = dyn_cast<WithPagesOp>(op))
      handle = with.getHandle();
    else if (isa<GetCacheOp, ViewCacheOp>(op))
      handle = op->getResult(0);
    else
      return;
    FlatSymbolRefAttr name = getHandleSource(handle).second;
    auto it = types.find(name.getValue());
    if (it == types.end())
      return;
    // A handle of one shard has fewer heads than its cache.
    auto old = cast<CacheType>(handle.getType());
    CacheType type = old.withElementType(it->second.getElementType());
    if (type == old)
      return;
    if (!isa<GetCacheOp>(op)) {
      result = op->emitError()
               << "the cache " << name << " becomes " << type << ", but its "
               << (isa<ViewCacheOp>(op) ? "buffers are made for "
                                        : "pages are values for ")
               << handle.getType()
               << "; run kvcache-resolve-cache-types before buffers are made, "
                  "or ask for the type that they have";
      return;
    }
    for (Operation *user : op->getResult(0).getUsers())
      if (!isa<CacheOpInterface>(user)) {
        InFlightDiagnostic diag =
            user->emitError()
            << "the handle of cache " << name << " becomes " << type
            << ", but '" << user->getName()
            << "' is no cache op, so its types cannot follow; use "
               "kvcache.get_cache where the cache is read or written";
        diag.attachNote(op->getLoc()) << "the handle is made here";
        result = diag;
        return;
      }
    handles.push_back({op->getResult(0), type});
  });
  if (failed(result))
    return failure();
  for (auto [handle, type] : handles)
    handle.setType(type);
  return success();
}

void ResolveCacheTypesPass::runOnOperation() {
  ModuleOp module = getOperation();
  SmallVector<CacheOp> caches(module.getOps<CacheOp>());
  if (caches.empty())
    return markAllAnalysesPreserved();
  std::optional<TokenScales> storage = symbolizeTokenScales(tokenScales);
  if (!storage && !tokenScales.empty()) {
    module.emitError() << "token-scales: expected side or inline, but found '"
                       << tokenScales << "'";
    return signalPassFailure();
  }
  auto opened = openCheckpoint(module, checkpoint);
  if (failed(opened))
    return signalPassFailure();

  llvm::StringSet<> windowed;
  module.walk([&](PagedAttentionOp attention) {
    if (CacheOp cache = attention.getWindow()
                            ? getCacheDeclaration(attention.getCache())
                            : CacheOp())
      windowed.insert(cache.getSymName());
  });

  std::vector<::kvcache::CacheTypeRequest> requests;
  llvm::StringMap<Operation *> layerOps;
  for (CacheOp cache : caches) {
    ::kvcache::CacheTypeRequest request;
    request.layer = cache.getLayer().str();
    request.graphWord = cache.getGraphDtype().value_or("").str();
    request.windowed = windowed.contains(cache.getSymName());
    request.modelType = toCheckpointType(cache.getCacheType().getElementType());
    requests.push_back(std::move(request));
    layerOps[cache.getLayer()] = cache;
  }
  ::kvcache::CacheTypeOptions options;
  options.word = kvCacheDtype;
  options.skipLayers.assign(skipLayers.begin(), skipLayers.end());
  ::kvcache::CacheTypeTable table = ::kvcache::resolveCacheTypes(
      *opened ? &**opened : nullptr, requests, options);
  if (failed(emitDiagnostics(module, table.diagnostics, [&](StringRef layer) {
        return layerOps.lookup(layer);
      })))
    return signalPassFailure();

  llvm::StringMap<CacheType> types;
  SmallVector<CacheOp> tokenScaled;
  for (auto [cache, resolved] : llvm::zip(caches, table.layers)) {
    Type elementType = fromCheckpointType(&getContext(), resolved.type);
    CacheType type = cache.getCacheType();
    if (resolved.type == ::kvcache::CacheType::FP8DSMLA) {
      if (!type.isLatent() || type.getLatentDim() % CacheType::kTileSize) {
        cache.emitError()
            << "layer '" << cache.getLayer()
            << "': cache type 'fp8_ds_mla' (from " << resolved.from
            << ") is a format of latent rows with a latent part that is a "
               "multiple of 128, but the cache is "
            << type << "; use fp8 instead";
        return signalPassFailure();
      }
      elementType = Builder(&getContext()).getI8Type();
    }
    if (resolved.type == ::kvcache::CacheType::FP8PerTokenHead) {
      if (type.isLatent()) {
        cache.emitError() << "layer '" << cache.getLayer()
                          << "': cache type 'fp8_per_token_head' (from "
                          << resolved.from
                          << ") is for keys and values of heads, but the cache "
                             "is "
                          << type << "; use fp8_ds_mla or fp8 instead";
        return signalPassFailure();
      }
      elementType = Builder(&getContext()).getType<Float8E4M3FNType>();
      tokenScaled.push_back(cache);
    }
    if (!elementType) {
      cache.emitError()
          << "layer '" << cache.getLayer() << "': cache type '"
          << ::kvcache::cacheTypeName(resolved.type) << "' (from "
          << resolved.from
          << ") is not supported yet; supported are float16, bfloat16, fp8, "
             "fp8_e4m3, fp8_e5m2, fp8_e4m3fnuz, fp8_per_token_head, and of "
             "MLA fp8_ds_mla";
      return signalPassFailure();
    }
    types[cache.getSymName()] = type.withElementType(elementType);
  }
  if (failed(retype(types)))
    return signalPassFailure();
  for (CacheOp cache : caches) {
    CacheType type = types.lookup(cache.getSymName());
    if (type.isQuantized())
      ++numQuantized;
    else
      ++numUnquantized;
    if (type == cache.getCacheType())
      continue;
    cache.setTypeAttr(TypeAttr::get(type));
    ++numChanged;
  }
  for (CacheOp cache : tokenScaled)
    if (storage || !cache.getTokenScales())
      cache.setTokenScales(storage.value_or(TokenScales::Side));
}
