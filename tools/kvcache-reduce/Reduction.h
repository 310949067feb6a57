//===- Reduction.h - How a kvcache program gets smaller ---------*- C++ -*-===//

#ifndef KVCACHE_TOOLS_KVCACHE_REDUCE_REDUCTION_H
#define KVCACHE_TOOLS_KVCACHE_REDUCE_REDUCTION_H

namespace mlir::kvcache {

/// Registers the pass `kvcache-reduction`: makes a module smaller, one change
/// at a time, as long as a script finds it interesting.
void registerReductionPass();

} // namespace mlir::kvcache

#endif // KVCACHE_TOOLS_KVCACHE_REDUCE_REDUCTION_H
