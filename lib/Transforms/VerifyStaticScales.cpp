//===- VerifyStaticScales.cpp - Stage gate: every scale is a constant -----===//

#include "DynamicScaleRemainders.h"
#include "kvcache/Transforms/Passes.h"

namespace mlir::kvcache {
#define GEN_PASS_DEF_VERIFYSTATICSCALES
#include "kvcache/Transforms/Passes.h.inc"
} // namespace mlir::kvcache

using namespace mlir;
using namespace mlir::kvcache;

namespace {

class VerifyStaticScalesPass
    : public mlir::kvcache::impl::VerifyStaticScalesBase<
          VerifyStaticScalesPass> {
public:
  using VerifyStaticScalesBase::VerifyStaticScalesBase;

  void runOnOperation() override {
    SmallVector<DynamicScaleRemainder> remainders;
    findDynamicScaleRemainders(getOperation(), remainders);
    for (const DynamicScaleRemainder &remainder : remainders)
      emitError(remainder.op->getLoc())
          << "illegal where scales are static: " << remainder.what
          << "; run kvcache-drop-dynamic-scales";
    size_t count = remainders.size();
    getOperation().walk([&](Operation *op) {
      if (auto buffer = dyn_cast<ScaleBufferOp>(op)) {
        if (buffer.getScale().isStatic())
          return;
        InFlightDiagnostic diag = op->emitError()
                                  << "illegal where scales are static: @"
                                  << buffer.getSymName();
        if (buffer.getScale().isDynamic())
          diag << " is dynamic";
        else
          diag << " is bound to " << buffer.getScale().getKey()
               << ", whose value was not read";
        diag << "; run kvcache-fold-checkpoint-scales";
        ++count;
      } else if (isa<LoadScaleOp>(op)) {
        op->emitError() << "illegal where scales are static: "
                           "'kvcache.load_scale' reads a scale at "
                           "run time; run kvcache-fold-checkpoint-scales";
        ++count;
      }
    });
    numRemainders += count;
    if (count)
      signalPassFailure();
    else
      markAllAnalysesPreserved();
  }
};

} // namespace
