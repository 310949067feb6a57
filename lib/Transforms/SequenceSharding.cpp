//===- SequenceSharding.cpp - Tokens of a sequence over ranks -------------===//

#include "SequenceSharding.h"
#include "mlir/Dialect/Arith/IR/Arith.h"
#include "mlir/Dialect/Linalg/IR/Linalg.h"
#include "mlir/Dialect/Tensor/IR/Tensor.h"
#include "mlir/Interfaces/DestinationStyleOpInterface.h"

using namespace mlir;
using namespace mlir::kvcache;
using shard::GridAxis;

FailureOr<SequenceSplit>
mlir::kvcache::readSequenceSplit(GetCacheOp get,
                                 function_ref<InFlightDiagnostic()> emitError) {
  SequenceSplit split;
  Attribute attr = get ? get->getAttr(kSequenceAxes) : Attribute();
  if (!attr)
    return split;
  auto fail = [&](const Twine &what) {
    if (emitError)
      emitError() << "'" << kSequenceAxes << "' " << what << ", but is "
                  << attr;
    return failure();
  };
  auto dictionary = dyn_cast<DictionaryAttr>(attr);
  auto axes = dictionary ? dictionary.getAs<ArrayAttr>("axes") : ArrayAttr();
  split.grid =
      dictionary ? dictionary.getAs<FlatSymbolRefAttr>("grid") : nullptr;
  if (!axes || !split.grid || dictionary.size() != 2)
    return fail("must be {grid = @GRID, axes = [AXIS, ...]}");
  auto grid =
      SymbolTable::lookupNearestSymbolFrom<shard::GridOp>(get, split.grid);
  if (!grid)
    return fail("must name a 'shard.grid'");
  for (Attribute element : axes) {
    auto axis = dyn_cast<IntegerAttr>(element);
    if (!axis || axis.getInt() < 0 || axis.getInt() >= grid.getRank() ||
        llvm::is_contained(split.axes, axis.getInt()) ||
        ShapedType::isDynamic(grid.getShape()[axis.getInt()]))
      return fail("must name each axis once, and axes of " +
                  Twine(split.grid.getValue()) + " whose sizes are static");
    split.axes.push_back(static_cast<GridAxis>(axis.getInt()));
    split.ranks *= grid.getShape()[axis.getInt()];
  }
  return split;
}

std::string mlir::kvcache::getSequenceProblem(AttentionOpInterface op) {
  if (auto paged = dyn_cast<PagedAttentionOp>(op.getOperation())) {
    if (paged.getWindow())
      return "it has a window, which counts tokens of all ranks";
    if (paged.getAlibiSlopes())
      return "it has ALiBi slopes, which take the positions of tokens";
  }
  if (op.getOScaleAttr())
    return "its output is quantized before the parts are merged; let it give "
           "bf16, f16 or f32, and quantize that";
  return "";
}

namespace {

/// Builds the merge of what the ranks of a split attended over.
class RankMerger {
public:
  /// `like` has the shape of the output on this rank.
  RankMerger(OpBuilder &builder, Location loc, const SequenceSplit &split,
             Value like)
      : builder(builder), loc(loc), split(split),
        sizes(tensor::getMixedSizes(builder, loc, like)),
        lseSizes(ArrayRef(sizes).drop_back()),
        infinite(makeConstant(APFloat::getInf(APFloat::IEEEsingle()))) {}

  /// Where the attention of this rank puts its part. No attention has the LSE
  /// that rows of no sequence keep.
  std::pair<Value, Value> makeOutputs() {
    return {makeEmpty(sizes), makeFilled(infinite, lseSizes)};
  }
  void mergeRanks(Value part, Value lse);
  void mergeSinks(Value sinks);
  Value storeOutput(Value into) { return store(merged, into); }
  Value storeLse(Value into) { return store(mergedLse, into); }

private:
  using Sizes = ArrayRef<OpFoldResult>;

  OpBuilder &builder;
  Location loc;
  const SequenceSplit &split;
  SmallVector<OpFoldResult> sizes, lseSizes;
  Value infinite;
  Value merged, mergedLse, firstLse;

  Value makeConstant(const APFloat &value) {
    return arith::ConstantOp::create(
        builder, loc, builder.getFloatAttr(builder.getF32Type(), value));
  }
  Value makeEmpty(Sizes of) {
    return tensor::EmptyOp::create(builder, loc, of, builder.getF32Type());
  }
  Value makeFilled(Value value, Sizes of) {
    return linalg::FillOp::create(builder, loc, value, makeEmpty(of))
        .getResult(0);
  }
  Value gather(Value part, Sizes of);
  Value take(Value all, int64_t rank, Sizes of);
  void merge(Value part, Value lse);
  Value store(Value from, Value into);
};

} // namespace

/// [ranks, ...] of the parts of all ranks.
Value RankMerger::gather(Value part, Sizes of) {
  auto type = cast<RankedTensorType>(part.getType());
  SmallVector<int64_t> shape = {1};
  llvm::append_range(shape, type.getShape());
  SmallVector<ReassociationIndices> groups = {{0, 1}};
  for (int64_t dim = 2; dim <= type.getRank(); ++dim)
    groups.push_back({dim});
  SmallVector<OpFoldResult> expanded = {builder.getIndexAttr(1)};
  llvm::append_range(expanded, of);
  Value row = tensor::ExpandShapeOp::create(builder, loc, type.clone(shape),
                                            part, groups, expanded);
  shape[0] = split.ranks;
  return shard::AllGatherOp::create(builder, loc, type.clone(shape),
                                    split.grid.getValue(), split.axes, row,
                                    APInt(64, 0));
}

/// The part of one rank.
Value RankMerger::take(Value all, int64_t rank, Sizes of) {
  auto type = cast<RankedTensorType>(all.getType());
  SmallVector<OpFoldResult> offsets(type.getRank(), builder.getIndexAttr(0)),
      strides(type.getRank(), builder.getIndexAttr(1)),
      taken = {builder.getIndexAttr(1)};
  offsets[0] = builder.getIndexAttr(rank);
  llvm::append_range(taken, of);
  return tensor::ExtractSliceOp::create(
      builder, loc,
      RankedTensorType::get(type.getShape().drop_front(),
                            type.getElementType()),
      all, offsets, taken, strides);
}

void RankMerger::merge(Value part, Value lse) {
  auto op = MergeStatesOp::create(
      builder, loc, TypeRange{merged.getType(), mergedLse.getType()}, merged,
      mergedLse, part, lse, makeEmpty(sizes), makeEmpty(lseSizes));
  merged = op.getResult(0);
  mergedLse = op.getResult(1);
}

void RankMerger::mergeRanks(Value part, Value lse) {
  Value parts = gather(part, sizes), lses = gather(lse, lseSizes);
  merged = take(parts, 0, sizes);
  mergedLse = firstLse = take(lses, 0, lseSizes);
  for (int64_t rank = 1; rank < split.ranks; ++rank)
    merge(take(parts, rank, sizes), take(lses, rank, lseSizes));
}

void RankMerger::mergeSinks(Value sinks) {
  // A query without keys has no sink either.
  Value none =
      makeConstant(APFloat::getInf(APFloat::IEEEsingle(), /*Negative=*/true));
  AffineMap identity = builder.getMultiDimIdentityMap(2);
  auto sinkLse = linalg::GenericOp::create(
      builder, loc, mergedLse.getType(), ValueRange{mergedLse, sinks},
      makeEmpty(lseSizes),
      ArrayRef{identity, identity.getMinorSubMap(1), identity},
      SmallVector(2, utils::IteratorType::parallel),
      [&](OpBuilder &nested, Location at, ValueRange arguments) {
        Value isEmpty = arith::CmpFOp::create(
            nested, at, arith::CmpFPredicate::OEQ, arguments[0], none);
        Value lse =
            arith::SelectOp::create(nested, at, isEmpty, none, arguments[1]);
        linalg::YieldOp::create(nested, at, lse);
      });
  merge(makeFilled(makeConstant(APFloat(0.0f)), sizes), sinkLse.getResult(0));
}

/// `from` in place of `into`, but for rows that no attention wrote.
Value RankMerger::store(Value from, Value into) {
  auto type = cast<RankedTensorType>(into.getType());
  AffineMap identity =
      builder.getMultiDimIdentityMap(static_cast<unsigned>(type.getRank()));
  auto generic = linalg::GenericOp::create(
      builder, loc, type, ValueRange{firstLse, from}, into,
      ArrayRef{identity.getMajorSubMap(2), identity, identity},
      SmallVector(type.getRank(), utils::IteratorType::parallel),
      [&](OpBuilder &nested, Location at, ValueRange arguments) {
        Value isUnwritten = arith::CmpFOp::create(
            nested, at, arith::CmpFPredicate::OEQ, arguments[0], infinite);
        Value value = arguments[1];
        if (value.getType() != type.getElementType())
          value =
              arith::TruncFOp::create(nested, at, type.getElementType(), value);
        value = arith::SelectOp::create(nested, at, isUnwritten, arguments[2],
                                        value);
        linalg::YieldOp::create(nested, at, value);
      });
  return generic.getResult(0);
}

void mlir::kvcache::attendOverRanks(AttentionOpInterface op,
                                    ArrayRef<Value> partitioned,
                                    const SequenceSplit &split, IRMapping &map,
                                    OpBuilder &builder) {
  Location loc = op.getLoc();
  auto operand = [&](OpOperand &of) {
    return partitioned[of.getOperandNumber()];
  };
  MutableOperandRange outs = op.getDpsInitsMutable();
  RankMerger merger(builder, loc, split, operand(outs[0]));
  auto [out, lse] = merger.makeOutputs();
  SmallVector<Type> types = {out.getType(), lse.getType()};
  Value query = partitioned[0], handle = partitioned[1];
  auto paged = dyn_cast<PagedAttentionOp>(op.getOperation());
  Operation *part;
  if (paged)
    part = PagedAttentionOp::create(
        builder, loc, types, query, handle, out, lse, /*sinks=*/Value(),
        /*alibi_slopes=*/Value(), op.getSoftmaxScaleAttr(),
        paged.getSoftCapAttr(), /*window=*/IntegerAttr(), op.getQScaleAttr(),
        /*o_scale=*/FlatSymbolRefAttr());
  else
    part = MLAAttentionOp::create(builder, loc, types, query, handle, out, lse,
                                  op.getSoftmaxScaleAttr(), op.getQScaleAttr(),
                                  /*o_scale=*/FlatSymbolRefAttr());
  part->setDiscardableAttrs(op->getDiscardableAttrDictionary());
  merger.mergeRanks(part->getResult(0), part->getResult(1));
  if (paged && paged.getSinks())
    merger.mergeSinks(operand(paged.getSinksMutable()[0]));
  map.map(op->getResult(0), merger.storeOutput(operand(outs[0])));
  if (op.getLse())
    map.map(op->getResult(1), merger.storeLse(operand(outs[1])));
}
