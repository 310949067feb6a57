//===- SortPureOps.cpp - One order for ops that have none -----------------===//

#include "kvcache/Transforms/Passes.h"
#include "mlir/Interfaces/FunctionInterfaces.h"
#include "mlir/Interfaces/SideEffectInterfaces.h"
#include "llvm/ADT/DenseSet.h"

namespace mlir::kvcache {
#define GEN_PASS_DEF_SORTPUREOPS
#include "kvcache/Transforms/Passes.h.inc"
} // namespace mlir::kvcache

using namespace mlir;
using namespace mlir::kvcache;

namespace {

/// Schedules a block: ops with effects keep their order, and in front of each
/// stand the ops that it needs, operands from left to right.
class BlockSorter {
public:
  explicit BlockSorter(Block &block) : block(block) {}
  unsigned sort();

private:
  Block &block;
  SmallVector<Operation *> order;
  llvm::DenseSet<Operation *> placed;

  /// The ops of this block that `op` or something nested in it uses.
  SmallVector<Operation *> getNeeds(Operation *op);
  void place(Operation *root);
};

class SortPureOpsPass
    : public mlir::kvcache::impl::SortPureOpsBase<SortPureOpsPass> {
public:
  using SortPureOpsBase::SortPureOpsBase;

  void runOnOperation() override {
    getOperation().walk([&](FunctionOpInterface function) {
      for (Block &block : function.getFunctionBody())
        numMoved += BlockSorter(block).sort();
    });
  }
};

} // namespace

static bool isPinned(Operation *op) {
  return op->hasTrait<OpTrait::IsTerminator>() || !isMemoryEffectFree(op);
}

SmallVector<Operation *> BlockSorter::getNeeds(Operation *op) {
  SmallVector<Operation *> needs;
  op->walk<WalkOrder::PreOrder>([&](Operation *nested) {
    for (Value operand : nested->getOperands())
      if (Operation *def = operand.getDefiningOp())
        if (def->getBlock() == &block)
          needs.push_back(def);
  });
  return needs;
}

void BlockSorter::place(Operation *root) {
  // An explicit stack: a model is one chain of thousands of ops.
  struct Frame {
    Operation *op;
    SmallVector<Operation *> needs;
    size_t next = 0;
  };
  SmallVector<Frame> stack;
  stack.push_back({root, getNeeds(root)});
  while (!stack.empty()) {
    Frame &frame = stack.back();
    if (frame.next < frame.needs.size()) {
      Operation *need = frame.needs[frame.next++];
      if (!placed.contains(need))
        stack.push_back({need, getNeeds(need)});
      continue;
    }
    Operation *op = frame.op;
    stack.pop_back();
    if (placed.insert(op).second)
      order.push_back(op);
  }
}

unsigned BlockSorter::sort() {
  for (Operation &op : block)
    if (isPinned(&op) && !op.hasTrait<OpTrait::IsTerminator>())
      place(&op);
  Operation *terminator =
      !block.empty() && block.back().hasTrait<OpTrait::IsTerminator>()
          ? &block.back()
          : nullptr;
  if (terminator) {
    // What nothing uses stays in front of the terminator, in its own order.
    for (Operation *need : getNeeds(terminator))
      if (!placed.contains(need))
        place(need);
  }
  for (Operation &op : block)
    if (&op != terminator && !placed.contains(&op))
      place(&op);
  if (terminator)
    place(terminator);

  unsigned moved = 0;
  auto position = block.begin();
  for (bool constants : {true, false})
    for (Operation *op : order) {
      if (op->hasTrait<OpTrait::ConstantLike>() != constants)
        continue;
      if (position != block.end() && &*position == op) {
        ++position;
        continue;
      }
      op->moveBefore(&block, position);
      ++moved;
    }
  return moved;
}
