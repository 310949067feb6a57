//===- ShardingInterfaceImpl.cpp - Sharding of cache ops ------------------===//

#include "kvcache/Transforms/ShardingInterfaceImpl.h"
#include "SequenceSharding.h"
#include "kvcache/IR/KVCache.h"
#include "mlir/Dialect/Arith/IR/Arith.h"
#include "mlir/Dialect/Linalg/IR/Linalg.h"
#include "mlir/Dialect/Shard/IR/ShardDialect.h"
#include "mlir/Dialect/Shard/Interfaces/ShardingInterfaceImpl.h"
#include "mlir/Dialect/Tensor/IR/Tensor.h"
#include "mlir/IR/IRMapping.h"
#include "mlir/Interfaces/DestinationStyleOpInterface.h"
#include "mlir/Interfaces/FunctionInterfaces.h"

using namespace mlir;
using namespace mlir::kvcache;
using shard::GridAxis;
using shard::Sharding;
using shard::ShardingOption;

namespace {

/// Axes of a grid over which heads are split, the outermost first.
struct HeadSplit {
  FlatSymbolRefAttr grid;
  SmallVector<GridAxis> axes;
};

/// The axes of a split that divide the KV heads, and those behind them, over
/// which query heads of one KV head are divided. `excess` cannot be used.
struct AxesOfHeads {
  ArrayRef<GridAxis> kvHeads, group, excess;
  int64_t shards = 1; ///< product of the sizes of `kvHeads`
};

} // namespace

/// The dimension of a tensor of a cache op that counts heads: the second, or
/// the only one of a parameter of each head. Latent rows have none, because all
/// query heads share them, nor have page ids or what rotates keys.
static std::optional<unsigned> dimOfHeads(Operation *op, Type type) {
  int64_t rank = cast<RankedTensorType>(type).getRank();
  if (isa<WriteLatentOp, CopyPagesOp>(op) || (isa<WriteOp>(op) && rank != 3))
    return std::nullopt;
  return rank == 1 ? 0 : 1;
}

static ArrayRef<GridAxis> axesOfHeads(Operation *op, Type type,
                                      const Sharding &sharding) {
  if (!sharding)
    return {};
  std::optional<unsigned> dim = dimOfHeads(op, type);
  if (!dim || sharding.getSplitAxes().size() <= *dim)
    return {};
  return sharding.getSplitAxes()[*dim].asArrayRef();
}

static AxesOfHeads divide(ArrayRef<GridAxis> axes, shard::GridOp grid,
                          CacheType cache, int64_t queryHeads) {
  AxesOfHeads result;
  auto size = [&](GridAxis axis) {
    return axis < grid.getRank() ? grid.getShape()[axis] : ShapedType::kDynamic;
  };
  auto divides = [&](int64_t heads, GridAxis axis) {
    return !ShapedType::isDynamic(size(axis)) && heads % size(axis) == 0;
  };
  int64_t kvHeads = cache.getNumHeads(), group = queryHeads / kvHeads;
  size_t i = 0;
  for (; i < axes.size() && divides(kvHeads, axes[i]); ++i) {
    kvHeads /= size(axes[i]);
    result.shards *= size(axes[i]);
  }
  result.kvHeads = axes.take_front(i);
  // A rank with several KV heads would need all query heads of each.
  size_t j = i;
  for (; j < axes.size() && kvHeads == 1 && divides(group, axes[j]); ++j)
    group /= size(axes[j]);
  result.group = axes.slice(i, j - i);
  result.excess = axes.drop_front(j);
  return result;
}

/// That of the cache of `op`; whole where it is faulty, which the handle's
/// partition reports.
static SequenceSplit getSequenceSplit(CacheOpInterface op) {
  FailureOr<SequenceSplit> split =
      readSequenceSplit(op.getCacheHandle().getDefiningOp<GetCacheOp>());
  return succeeded(split) ? *split : SequenceSplit();
}

/// The ops of this function that use the cache of `get`.
static SmallVector<CacheOpInterface> getAccesses(GetCacheOp get) {
  SmallVector<CacheOpInterface> accesses;
  get->getParentOfType<FunctionOpInterface>().walk([&](CacheOpInterface op) {
    auto other = op.getCacheHandle().getDefiningOp<GetCacheOp>();
    if (other && other.getCacheAttr() == get.getCacheAttr())
      accesses.push_back(op);
  });
  return accesses;
}

static AxesOfHeads divide(ArrayRef<GridAxis> axes, FlatSymbolRefAttr grid,
                          CacheOpInterface op) {
  AxesOfHeads none;
  none.excess = axes;
  auto gridOp = SymbolTable::lookupNearestSymbolFrom<shard::GridOp>(op, grid);
  if (!gridOp)
    return none;
  CacheType cache = op.getCacheHandle().getType();
  auto attention = dyn_cast<AttentionOpInterface>(*op);
  return divide(axes, gridOp, cache,
                attention ? attention.getNumQueryHeads() : cache.getNumHeads());
}

/// The split over most axes that annotations of `op` (given) and of the other
/// ops of its cache ask for. Without any annotation there is no grid.
static HeadSplit findSplit(CacheOpInterface op, ArrayRef<Sharding> operands,
                           ArrayRef<Sharding> results) {
  HeadSplit split;
  SequenceSplit sequence = getSequenceSplit(op);
  if (sequence.ranks > 1)
    split.grid = sequence.grid;
  auto consider = [&](Operation *user, Type type, const Sharding &sharding) {
    // An axis of tokens is none of heads.
    ArrayRef<GridAxis> axes =
        axesOfHeads(user, type, sharding).take_while([&](GridAxis axis) {
          return !llvm::is_contained(sequence.axes, axis);
        });
    if (sharding && (!split.grid || axes.size() > split.axes.size()))
      split = {sharding.getGridAttr(), llvm::to_vector(axes)};
  };
  for (auto [type, sharding] : llvm::zip(op->getOperandTypes(), operands))
    consider(op, type, sharding);
  for (auto [type, sharding] : llvm::zip(op->getResultTypes(), results))
    consider(op, type, sharding);
  auto get = op.getCacheHandle().getDefiningOp<GetCacheOp>();
  if (!get)
    return split;
  for (CacheOpInterface other : getAccesses(get)) {
    if (other == op)
      continue;
    for (OpOperand &operand : other->getOpOperands())
      if (auto found = shard::getSharding(operand); succeeded(found))
        consider(other, operand.get().getType(), found->second);
    for (OpResult result : other->getResults())
      if (auto found = shard::getSharding(result); succeeded(found))
        consider(other, result.getType(), found->second);
  }
  return split;
}

/// Heads of `op` on a rank, from the annotation of its first operand, which is
/// the query or the key.
static std::optional<AxesOfHeads> getAnnotatedHeads(CacheOpInterface op) {
  auto sharding = shard::getSharding(op->getOpOperand(0));
  if (failed(sharding))
    return std::nullopt;
  return divide(axesOfHeads(op, op->getOperand(0).getType(), sharding->second),
                sharding->second.getGridAttr(), op);
}

/// The op of one rank. Results have the types of `outs`, also those that nobody
/// uses, which have no annotation.
static void cloneOn(Operation *op, ArrayRef<Value> partitioned, IRMapping &map,
                    OpBuilder &builder) {
  Operation *clone = builder.clone(*op);
  clone->setOperands(partitioned);
  if (auto destination = dyn_cast<DestinationStyleOpInterface>(clone))
    for (OpResult result : clone->getResults())
      result.setType(destination.getTiedOpOperand(result)->get().getType());
  map.map(op->getResults(), clone->getResults());
}

static LogicalResult checkTensors(CacheOpInterface op) {
  if (llvm::none_of(op->getOperandTypes(), llvm::IsaPred<MemRefType>))
    return success();
  return op->emitOpError()
         << "works on memrefs, which the dialect 'shard' does not split; run "
            "shard-partition before bufferization";
}

/// Annotates tensors; other operands have none.
static LogicalResult
addAnnotations(Operation *op, OpBuilder &builder,
               const FailureOr<std::vector<Sharding>> &annotations) {
  if (failed(annotations))
    return failure();
  for (auto [result, sharding] :
       llvm::zip(op->getResults(),
                 llvm::drop_begin(*annotations, op->getNumOperands())))
    shard::maybeInsertTargetShardingAnnotation(sharding, result, builder);
  for (auto [operand, sharding] : llvm::zip(op->getOpOperands(), *annotations))
    if (sharding)
      shard::maybeInsertSourceShardingAnnotation(sharding, operand, builder);
  return success();
}

namespace {

/// Writes and attentions. The loops of the interface are KV heads, within one
/// the query heads that read it, and the tokens of a sequence, over which an
/// attention reduces.
template <typename OpTy>
struct AccessModel
    : public shard::ShardingInterface::ExternalModel<AccessModel<OpTy>, OpTy> {
  SmallVector<utils::IteratorType> getLoopIteratorTypes(Operation *) const {
    return {utils::IteratorType::parallel, utils::IteratorType::parallel,
            utils::IteratorType::reduction};
  }

  SmallVector<shard::ReductionKind>
  getReductionLoopIteratorKinds(Operation *) const {
    return {shard::ReductionKind::Generic};
  }

  FailureOr<ShardingOption>
  getShardingOption(Operation *op, ArrayRef<Sharding> operands,
                    ArrayRef<Sharding> results) const {
    auto access = cast<CacheOpInterface>(op);
    HeadSplit split = findSplit(access, operands, results);
    if (!split.grid)
      return ShardingOption::makeEmpty();
    AxesOfHeads heads = divide(dimOfHeads(op, op->getOperand(0).getType())
                                   ? split.axes
                                   : ArrayRef<GridAxis>(),
                               split.grid, access);
    return ShardingOption({llvm::to_vector(heads.kvHeads),
                           llvm::to_vector(heads.group),
                           getSequenceSplit(access).axes},
                          split.grid);
  }

  static Sharding annotate(Operation *op, Type type,
                           const ShardingOption &option) {
    if (!isa<RankedTensorType>(type))
      return Sharding();
    SmallVector<GridAxis> axes;
    for (ArrayRef<GridAxis> loop : ArrayRef(option.shardingArray).take_front(2))
      llvm::append_range(axes, loop);
    MLIRContext *context = op->getContext();
    auto whole = shard::GridAxesAttr::get(context, {});
    SmallVector<shard::GridAxesAttr> split = {whole};
    if (std::optional<unsigned> dim = dimOfHeads(op, type);
        dim && !axes.empty()) {
      split.resize(*dim + 1, whole);
      split[*dim] = shard::GridAxesAttr::get(context, axes);
    }
    return Sharding::get(option.grid, split);
  }

  FailureOr<std::vector<Sharding>>
  getShardingAnnotations(Operation *op, const ShardingOption &option) const {
    std::vector<Sharding> annotations;
    for (Type type : op->getOperandTypes())
      annotations.push_back(annotate(op, type, option));
    for (Type type : op->getResultTypes())
      annotations.push_back(annotate(op, type, option));
    return annotations;
  }

  LogicalResult addShardingAnnotations(Operation *op, OpBuilder &builder,
                                       const ShardingOption &option) const {
    return addAnnotations(op, builder, getShardingAnnotations(op, option));
  }

  LogicalResult partition(Operation *op, ArrayRef<Value> partitioned,
                          ArrayRef<Sharding> operands, ArrayRef<Sharding>,
                          IRMapping &map, SymbolTableCollection &,
                          OpBuilder &builder) const {
    auto access = cast<CacheOpInterface>(op);
    SequenceSplit sequence = getSequenceSplit(access);
    if (failed(check(access, operands)) ||
        failed(checkSequence(access, operands, sequence)))
      return failure();
    auto attention = dyn_cast<AttentionOpInterface>(op);
    if (attention && sequence.ranks > 1)
      attendOverRanks(attention, partitioned, sequence, map, builder);
    else
      cloneOn(op, partitioned, map, builder);
    return success();
  }

private:
  static LogicalResult checkSequence(CacheOpInterface op,
                                     ArrayRef<Sharding> operands,
                                     const SequenceSplit &split) {
    if (split.ranks == 1)
      return success();
    InFlightDiagnostic diag =
        op->emitOpError() << "cannot split the tokens of a sequence over axes "
                          << shard::GridAxesAttr::get(op->getContext(),
                                                      split.axes)
                          << " of " << split.grid << ": ";
    if (operands[0].getGridAttr() != split.grid)
      return diag << "its heads are split over " << operands[0].getGridAttr();
    for (GridAxis axis :
         axesOfHeads(op, op->getOperand(0).getType(), operands[0]))
      if (llvm::is_contained(split.axes, axis))
        return diag << "axis " << axis << " splits its heads";
    auto attention = dyn_cast<AttentionOpInterface>(*op);
    std::string problem = attention ? getSequenceProblem(attention) : "";
    if (!problem.empty())
      return diag << problem;
    diag.abandon();
    return success();
  }

  static LogicalResult check(CacheOpInterface op, ArrayRef<Sharding> operands) {
    if (failed(checkTensors(op)))
      return failure();
    ArrayRef<GridAxis> axes =
        axesOfHeads(op, op->getOperand(0).getType(), operands[0]);
    for (auto [operand, sharding] : llvm::zip(op->getOpOperands(), operands)) {
      if (!sharding)
        continue;
      Type type = operand.get().getType();
      std::optional<unsigned> heads = dimOfHeads(op, type);
      for (auto [dim, split] : llvm::enumerate(sharding.getSplitAxes()))
        if (dim != heads && !split.empty())
          return op->emitOpError()
                 << "splits dimension " << dim << " of operand "
                 << operand.getOperandNumber()
                 << (heads ? "; only heads (dimension " +
                                 std::to_string(*heads) + ") can be split"
                     : isa<WriteLatentOp>(op.getOperation())
                         ? "; latent rows are whole on every rank"
                     : isa<CopyPagesOp>(op.getOperation())
                         ? "; page ids are whole on every rank"
                         : "; tables and positions are whole on every rank");
      if (!sharding.getStaticHaloSizes().empty() ||
          !sharding.getStaticShardedDimsOffsets().empty())
        return op->emitOpError()
               << "splits heads unevenly or with halos; expected equal parts";
      if (heads && axesOfHeads(op, type, sharding) != axes)
        return op->emitOpError()
               << "splits operands over different axes: "
               << shard::GridAxesAttr::get(op->getContext(), axes) << " and "
               << shard::GridAxesAttr::get(op->getContext(),
                                           axesOfHeads(op, type, sharding));
    }
    AxesOfHeads heads = divide(axes, operands[0].getGridAttr(), op);
    if (!heads.excess.empty() ||
        (!heads.group.empty() && !isa<AttentionOpInterface>(*op)))
      return op->emitOpError()
             << "cannot split the heads of " << op.getCacheHandle().getType()
             << " over axes "
             << shard::GridAxesAttr::get(op->getContext(), axes) << " of "
             << operands[0].getGridAttr()
             << ", whose sizes do not divide them; with fewer KV heads than "
                "ranks, use a grid with an axis for the KV heads and one for "
                "the query heads of each";
    return success();
  }
};

/// A handle is that of one shard's heads when the ops that use it are split.
struct HandleModel
    : public shard::ShardingInterface::ExternalModel<HandleModel, GetCacheOp> {
  FailureOr<ShardingOption> getShardingOption(Operation *, ArrayRef<Sharding>,
                                              ArrayRef<Sharding>) const {
    return ShardingOption::makeEmpty();
  }

  LogicalResult partition(Operation *op, ArrayRef<Value>, ArrayRef<Sharding>,
                          ArrayRef<Sharding>, IRMapping &map,
                          SymbolTableCollection &, OpBuilder &builder) const {
    auto get = cast<GetCacheOp>(op);
    FailureOr<SequenceSplit> sequence =
        readSequenceSplit(get, [&] { return get.emitOpError(); });
    if (failed(sequence))
      return failure();
    CacheOpInterface first;
    int64_t shards = 1;
    bool splitsQueries = false;
    for (CacheOpInterface access : getAccesses(get)) {
      if (failed(checkTensors(access)))
        return failure();
      auto other = access.getCacheHandle().getDefiningOp<GetCacheOp>();
      if (other->getAttr(kSequenceAxes) != get->getAttr(kSequenceAxes)) {
        InFlightDiagnostic diag =
            get.emitOpError() << "and another handle to " << get.getCacheAttr()
                              << " disagree about '" << kSequenceAxes << "'";
        diag.attachNote(other.getLoc()) << "the other one is here";
        return diag;
      }
      if (isa<CopyPagesOp>(access)) // of whatever heads a rank has
        continue;
      std::optional<AxesOfHeads> heads = getAnnotatedHeads(access);
      if (!heads)
        return access->emitOpError()
               << "has operands without a sharding; run sharding-propagation "
                  "first";
      splitsQueries |= !heads->group.empty();
      if (!first) {
        first = access;
        shards = heads->shards;
      } else if (heads->shards != shards) {
        InFlightDiagnostic diag =
            access->emitOpError()
            << "splits the KV heads of " << get.getCacheAttr() << " into "
            << heads->shards << ", but another op of this cache into " << shards
            << "; annotate keys, values and queries with the same split of "
               "heads";
        diag.attachNote(first->getLoc()) << "the other op is here";
        return diag;
      }
    }
    CacheType type = get.getHandle().getType();
    if (first && shards == 1 && !splitsQueries && sequence->ranks == 1)
      get.emitRemark() << "every rank holds all " << type.getNumHeads()
                       << " KV heads of " << get.getCacheAttr()
                       << ", because nothing splits them";
    if (sequence->ranks > 1)
      get.emitRemark() << "each of " << sequence->ranks
                       << " ranks has tokens of its own of every sequence of "
                       << get.getCacheAttr()
                       << ": its lengths, page table and slots are those of "
                          "its tokens, and a sequence has one query row a step";
    auto clone = cast<GetCacheOp>(builder.clone(*op));
    clone->removeAttr(kSequenceAxes);
    if (shards != 1) {
      clone.setShards(shards * get.getShards().value_or(1));
      clone.getHandle().setType(type.withNumHeads(type.getNumHeads() / shards));
    }
    map.map(get.getHandle(), clone.getHandle());
    return success();
  }
};

/// `quantize`, `dequantize` and `merge_states`: every dimension may be split;
/// the LSE has all but the last. A scale is a number and not annotated, unlike
/// what upstream's elementwise model expects.
template <typename OpTy>
struct ElementwiseModel
    : public shard::ShardingInterface::ExternalModel<ElementwiseModel<OpTy>,
                                                     OpTy> {
  static int64_t getRank(Operation *op) {
    return cast<ShapedType>(op->getOperand(0).getType()).getRank();
  }
  SmallVector<utils::IteratorType> getLoopIteratorTypes(Operation *op) const {
    return SmallVector<utils::IteratorType>(getRank(op),
                                            utils::IteratorType::parallel);
  }
  SmallVector<AffineMap> getIndexingMaps(Operation *op) const {
    unsigned rank = getRank(op);
    AffineMap identity =
        AffineMap::getMultiDimIdentityMap(rank, op->getContext());
    SmallVector<AffineMap> maps;
    auto add = [&](Type type) {
      auto shaped = dyn_cast<ShapedType>(type);
      maps.push_back(AffineMap::get(
          rank, 0,
          identity.getResults().take_front(shaped ? shaped.getRank() : 0),
          op->getContext()));
    };
    llvm::for_each(op->getOperandTypes(), add);
    llvm::for_each(op->getResultTypes(), add);
    return maps;
  }
  LogicalResult addShardingAnnotations(Operation *op, OpBuilder &builder,
                                       const ShardingOption &option) const {
    return addAnnotations(
        op, builder, shard::detail::defaultGetShardingAnnotations(op, option));
  }
  LogicalResult partition(Operation *op, ArrayRef<Value> partitioned,
                          ArrayRef<Sharding> operands,
                          ArrayRef<Sharding> results, IRMapping &map,
                          SymbolTableCollection &symbols,
                          OpBuilder &builder) const {
    if (isa<DestinationStyleOpInterface>(op))
      cloneOn(op, partitioned, map, builder);
    else
      shard::partitionTriviallyShardableOperation(
          *op, partitioned, operands, results, map, symbols, builder);
    return success();
  }
};

/// Pages that are values are not split: upstream's passes do not look into
/// regions. The ops around the pages would be left without annotations, so
/// propagation ends here.
struct WithPagesModel
    : public shard::ShardingInterface::ExternalModel<WithPagesModel,
                                                     WithPagesOp> {
  FailureOr<ShardingOption> getShardingOption(Operation *op, ArrayRef<Sharding>,
                                              ArrayRef<Sharding>) const {
    auto module = op->getParentOfType<ModuleOp>();
    if (!module || module.getOps<shard::GridOp>().empty())
      return ShardingOption::makeEmpty();
    shard::GridOp grid = *module.getOps<shard::GridOp>().begin();
    return ShardingOption({}, FlatSymbolRefAttr::get(grid.getSymNameAttr()));
  }
  FailureOr<std::vector<Sharding>>
  getShardingAnnotations(Operation *op, const ShardingOption &) const {
    return std::vector<Sharding>(op->getNumOperands() + op->getNumResults());
  }
  LogicalResult addShardingAnnotations(Operation *op, OpBuilder &,
                                       const ShardingOption &) const {
    return refuse(op);
  }
  LogicalResult partition(Operation *op, ArrayRef<Value>, ArrayRef<Sharding>,
                          ArrayRef<Sharding>, IRMapping &,
                          SymbolTableCollection &, OpBuilder &) const {
    return refuse(op);
  }

private:
  static LogicalResult refuse(Operation *op) {
    return op->emitOpError()
           << "holds pages as values, which are not split over ranks; use "
              "handles of kvcache.get_cache (kvcache-import "
              "cache-operands=replaced), or export the graph of one rank";
  }
};

/// A scale of all heads is the same on every rank.
struct LoadScaleModel
    : public shard::ShardingInterface::ExternalModel<LoadScaleModel,
                                                     LoadScaleOp> {
  FailureOr<ShardingOption> getShardingOption(Operation *, ArrayRef<Sharding>,
                                              ArrayRef<Sharding>) const {
    return ShardingOption::makeEmpty();
  }
};

} // namespace

void mlir::kvcache::registerShardingInterfaceExternalModels(
    DialectRegistry &registry) {
  registry.addExtension(+[](MLIRContext *context, KVCacheDialect *,
                            shard::ShardDialect *) {
    // Of the ops around an attention whose tokens are split.
    context->loadDialect<arith::ArithDialect, linalg::LinalgDialect,
                         tensor::TensorDialect>();
    GetCacheOp::attachInterface<HandleModel>(*context);
    WithPagesOp::attachInterface<WithPagesModel>(*context);
    LoadScaleOp::attachInterface<LoadScaleModel>(*context);
    WriteOp::attachInterface<AccessModel<WriteOp>>(*context);
    WriteLatentOp::attachInterface<AccessModel<WriteLatentOp>>(*context);
    CopyPagesOp::attachInterface<AccessModel<CopyPagesOp>>(*context);
    PagedAttentionOp::attachInterface<AccessModel<PagedAttentionOp>>(*context);
    MLAAttentionOp::attachInterface<AccessModel<MLAAttentionOp>>(*context);
    QuantizeOp::attachInterface<ElementwiseModel<QuantizeOp>>(*context);
    DequantizeOp::attachInterface<ElementwiseModel<DequantizeOp>>(*context);
    MergeStatesOp::attachInterface<ElementwiseModel<MergeStatesOp>>(*context);
  });
}
