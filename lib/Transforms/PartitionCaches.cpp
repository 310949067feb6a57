//===- PartitionCaches.cpp - Declarations of one rank's caches ------------===//

#include "kvcache/Transforms/Passes.h"
#include "llvm/ADT/MapVector.h"

namespace mlir::kvcache {
#define GEN_PASS_DEF_PARTITIONCACHES
#include "kvcache/Transforms/Passes.h.inc"
} // namespace mlir::kvcache

using namespace mlir;
using namespace mlir::kvcache;

namespace {

class PartitionCachesPass
    : public mlir::kvcache::impl::PartitionCachesBase<PartitionCachesPass> {
public:
  using PartitionCachesBase::PartitionCachesBase;

  void runOnOperation() override {
    llvm::MapVector<CacheOp, SmallVector<Operation *>> handles;
    SymbolTable symbols(getOperation());
    getOperation().walk([&](Operation *op) {
      FlatSymbolRefAttr name;
      if (auto get = dyn_cast<GetCacheOp>(op))
        name = get.getCacheAttr();
      else if (auto view = dyn_cast<ViewCacheOp>(op))
        name = view.getCacheAttr();
      else
        return;
      if (auto cache = symbols.lookup<CacheOp>(name.getValue()))
        handles[cache].push_back(op);
    });
    bool failedAny = false;
    for (auto &[cache, ops] : handles)
      failedAny |= failed(check(cache, ops));
    if (failedAny)
      return signalPassFailure();
    for (auto &[cache, ops] : handles)
      if (int64_t shards = getShards(ops.front()); shards != 1)
        apply(cache, ops, shards);
  }

private:
  static int64_t getShards(Operation *handle) {
    auto get = dyn_cast<GetCacheOp>(handle);
    return get ? get.getShards().value_or(1) : 1;
  }

  static LogicalResult check(CacheOp cache, ArrayRef<Operation *> ops) {
    int64_t shards = getShards(ops.front());
    for (Operation *op : ops)
      if (getShards(op) != shards) {
        InFlightDiagnostic diag =
            op->emitOpError()
            << "is one of " << getShards(op) << " shards of @"
            << cache.getSymName() << ", but another handle is one of " << shards
            << "; partition all functions that use the cache in the same way";
        diag.attachNote(ops.front()->getLoc()) << "the other handle is here";
        return diag;
      }
    if (shards == 1)
      return success();
    for (ScaleBufferOp scale : {cache.getKScaleOp(), cache.getVScaleOp()})
      if (scale.getScale().getValues().size() > 1) {
        InFlightDiagnostic diag =
            cache.emitOpError()
            << "is split into " << shards << " shards, but the scale @"
            << scale.getSymName()
            << " has the values of all KV heads; run "
               "kvcache-fold-checkpoint-scales behind this pass, for each rank "
               "with tp-size and tp-rank";
        diag.attachNote(scale.getLoc()) << "the scale is declared here";
        return diag;
      }
    return success();
  }

  void apply(CacheOp cache, ArrayRef<Operation *> ops, int64_t shards) {
    cache.setTypeAttr(TypeAttr::get(ops.front()->getResult(0).getType()));
    cache.setShards(shards * cache.getShards().value_or(1));
    for (Operation *op : ops)
      cast<GetCacheOp>(op).removeShardsAttr();
    ++numPartitioned;
  }
};

} // namespace
