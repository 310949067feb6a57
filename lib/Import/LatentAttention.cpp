//===- LatentAttention.cpp - What surrounds absorbed MLA ------------------===//

#include "LatentAttention.h"
#include "mlir/Dialect/Arith/IR/Arith.h"
#include "mlir/Dialect/Linalg/IR/Linalg.h"
#include "mlir/Dialect/Tensor/IR/Tensor.h"

using namespace mlir;
using namespace mlir::kvcache;

namespace {

/// Tensors [tokens, heads, width] with as many tokens as `like`.
struct Rows {
  OpBuilder &builder;
  Location loc;
  OpFoldResult tokens;
  int64_t staticTokens, heads;

  Rows(OpBuilder &builder, Location loc, Value like)
      : builder(builder), loc(loc),
        tokens(tensor::getMixedSize(builder, loc, like, 0)),
        staticTokens(cast<RankedTensorType>(like.getType()).getDimSize(0)),
        heads(cast<RankedTensorType>(like.getType()).getDimSize(1)) {}

  OpFoldResult index(int64_t value) { return builder.getIndexAttr(value); }
  SmallVector<OpFoldResult> sizes(int64_t width) {
    return {tokens, index(heads), index(width)};
  }
  Value empty(int64_t width, Type elementType) {
    return tensor::EmptyOp::create(builder, loc, sizes(width), elementType);
  }
  SmallVector<OpFoldResult> offsets(int64_t first) {
    return {index(0), index(0), index(first)};
  }
  SmallVector<OpFoldResult> strides() { return {index(1), index(1), index(1)}; }
  Value slice(Value rows, int64_t first, int64_t width) {
    return tensor::ExtractSliceOp::create(builder, loc, rows, offsets(first),
                                          sizes(width), strides());
  }
  Value insert(Value part, Value rows, int64_t first, int64_t width) {
    return tensor::InsertSliceOp::create(
        builder, loc, part, rows, offsets(first), sizes(width), strides());
  }

  /// out[t, h, i] = sum over j of rows[t, h, j] * weight[h, i, j], or of
  /// weight[h, j, i] if `transposed`; in f32, rounded to `elementType`.
  Value multiply(Value rows, Value weight, bool transposed, int64_t width,
                 Type elementType) {
    Type f32 = builder.getF32Type();
    Value zero =
        arith::ConstantOp::create(builder, loc, builder.getF32FloatAttr(0));
    Value start = linalg::FillOp::create(builder, loc, zero, empty(width, f32))
                      .getResult(0);
    AffineExpr t, h, i, j;
    bindDims(builder.getContext(), t, h, i, j);
    auto map = [&](ArrayRef<AffineExpr> results) {
      return AffineMap::get(4, 0, results, builder.getContext());
    };
    SmallVector<utils::IteratorType> iterators(3,
                                               utils::IteratorType::parallel);
    iterators.push_back(utils::IteratorType::reduction);
    auto widen = [&](OpBuilder &b, Value value) -> Value {
      return value.getType() == f32 ? value
                                    : arith::ExtFOp::create(b, loc, f32, value);
    };
    Value product =
        linalg::GenericOp::create(
            builder, loc, start.getType(), ValueRange{rows, weight}, start,
            ArrayRef<AffineMap>{map({t, h, j}),
                                transposed ? map({h, j, i}) : map({h, i, j}),
                                map({t, h, i})},
            iterators,
            [&](OpBuilder &b, Location, ValueRange in) {
              Value term = arith::MulFOp::create(b, loc, widen(b, in[0]),
                                                 widen(b, in[1]));
              linalg::YieldOp::create(
                  b, loc,
                  arith::AddFOp::create(b, loc, in[2], term).getResult());
            })
            .getResult(0);
    if (elementType == f32)
      return product;
    AffineMap identity = builder.getMultiDimIdentityMap(3);
    iterators.assign(3, utils::IteratorType::parallel);
    Value result = empty(width, elementType);
    return linalg::GenericOp::create(
               builder, loc, result.getType(), product, result,
               ArrayRef<AffineMap>{identity, identity}, iterators,
               [&](OpBuilder &b, Location, ValueRange in) {
                 linalg::YieldOp::create(
                     b, loc,
                     arith::TruncFOp::create(b, loc, elementType, in[0])
                         .getResult());
               })
        .getResult(0);
  }
};

} // namespace

Value LatentAttention::sliceWeight(OpBuilder &builder, Location loc,
                                   Value weight, int64_t first,
                                   int64_t count) const {
  auto type = RankedTensorType::get({heads, nope + value, latent}, elementType);
  Value perHead = tensor::ExpandShapeOp::create(
      builder, loc, type, weight,
      SmallVector<ReassociationIndices>{{0, 1}, {2}});
  auto index = [&](int64_t value) { return builder.getIndexAttr(value); };
  return tensor::ExtractSliceOp::create(
      builder, loc, perHead,
      SmallVector<OpFoldResult>{index(0), index(first), index(0)},
      SmallVector<OpFoldResult>{index(heads), index(count), index(latent)},
      SmallVector<OpFoldResult>{index(1), index(1), index(1)});
}

Value LatentAttention::absorbQuery(OpBuilder &builder, Location loc,
                                   Value query, Value weight) const {
  Rows rows(builder, loc, query);
  Value absorbed = rows.multiply(rows.slice(query, 0, nope),
                                 sliceWeight(builder, loc, weight, 0, nope),
                                 /*transposed=*/true, latent, elementType);
  Value result = rows.empty(latent + rope, elementType);
  result = rows.insert(absorbed, result, 0, latent);
  return rows.insert(rows.slice(query, nope, rope), result, latent, rope);
}

Value LatentAttention::makeOutput(OpBuilder &builder, Location loc,
                                  Value query) const {
  return Rows(builder, loc, query).empty(latent, elementType);
}

Value LatentAttention::projectOutput(OpBuilder &builder, Location loc,
                                     Value output, Value weight) const {
  Rows rows(builder, loc, output);
  Value projected =
      rows.multiply(output, sliceWeight(builder, loc, weight, nope, value),
                    /*transposed=*/false, value, elementType);
  return tensor::CollapseShapeOp::create(
      builder, loc,
      RankedTensorType::get({rows.staticTokens, heads * value}, elementType),
      projected, SmallVector<ReassociationIndices>{{0}, {1, 2}});
}
