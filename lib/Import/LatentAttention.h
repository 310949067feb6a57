//===- LatentAttention.h - What surrounds absorbed MLA ----------*- C++ -*-===//
//
// The serving op of MLA takes the queries of the model and returns its heads'
// outputs; `kvcache.mla_attention` works in between, on the latent row. The
// layer's `kv_b_proj` weight [heads * (nope + value), latent] links both: of
// each head, its first `nope` rows take a query to the latent space, and its
// last `value` rows take the output back.
//
//===----------------------------------------------------------------------===//

#ifndef KVCACHE_LIB_IMPORT_LATENTATTENTION_H
#define KVCACHE_LIB_IMPORT_LATENTATTENTION_H

#include "mlir/IR/Builders.h"
#include "mlir/IR/BuiltinTypes.h"

namespace mlir::kvcache {

/// Widths of one layer's attention, and the element type of its activations.
struct LatentAttention {
  int64_t heads, nope, rope, latent, value;
  Type elementType;

  RankedTensorType getWeightType() const {
    return RankedTensorType::get({heads * (nope + value), latent}, elementType);
  }
  /// [tokens, heads, nope + rope] to [tokens, heads, latent + rope]: the first
  /// part is multiplied by the weight in f32 and rounded once.
  Value absorbQuery(OpBuilder &builder, Location loc, Value query,
                    Value weight) const;
  /// An output [tokens, heads, latent] for the attention, without contents.
  Value makeOutput(OpBuilder &builder, Location loc, Value query) const;
  /// [tokens, heads, latent] to [tokens, heads * value], in f32, rounded once.
  Value projectOutput(OpBuilder &builder, Location loc, Value output,
                      Value weight) const;

private:
  /// Rows `first` to `first + count` of each head: [heads, count, latent].
  Value sliceWeight(OpBuilder &builder, Location loc, Value weight,
                    int64_t first, int64_t count) const;
};

} // namespace mlir::kvcache

#endif // KVCACHE_LIB_IMPORT_LATENTATTENTION_H
