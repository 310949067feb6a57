//===- ShardingInterfaceImpl.h - Sharding of cache ops ----------*- C++ -*-===//

#ifndef KVCACHE_TRANSFORMS_SHARDINGINTERFACEIMPL_H
#define KVCACHE_TRANSFORMS_SHARDINGINTERFACEIMPL_H

#include "mlir/IR/DialectRegistry.h"

namespace mlir::kvcache {

/// Gives ops on tensors the ShardingInterface of the upstream dialect `shard`,
/// for its `sharding-propagation` and `shard-partition`. Writes and attentions
/// are split over heads: KV heads, and, where each rank has one KV head, the
/// query heads that read it. A split goes from one op of a cache to the others,
/// because all of them must agree on the heads that a rank holds. Latent rows
/// (MLA) are whole on every rank; the query heads over them are split.
/// `kvcache-partition-caches` follows.
void registerShardingInterfaceExternalModels(DialectRegistry &registry);

} // namespace mlir::kvcache

#endif // KVCACHE_TRANSFORMS_SHARDINGINTERFACEIMPL_H
