//===- ForeignSemantics.h - What is known of foreign ops --------*- C++ -*-===//
//
// Graphs hold ops of torch, StableHLO and shape, whose dialects are not linked,
// so that MLIR must assume the worst of them. A few facts about them are known
// by name.
//
//===----------------------------------------------------------------------===//

#ifndef KVCACHE_IR_FOREIGNSEMANTICS_H
#define KVCACHE_IR_FOREIGNSEMANTICS_H

#include "mlir/IR/Operation.h"

namespace mlir::kvcache {

/// True for ops of dialects that are not linked which compute their results
/// from their operands and do nothing else. They may read tensors that other
/// ops of their dialect write in place, so they may move past cache ops only.
bool isFunctionalForeignOp(Operation *op);

/// True for those whose result has the elements of the first operand, in their
/// order: reshapes and views.
bool isForeignView(Operation *op);

/// True for those whose result has no defined contents.
bool isForeignEmpty(Operation *op);

} // namespace mlir::kvcache

#endif // KVCACHE_IR_FOREIGNSEMANTICS_H
