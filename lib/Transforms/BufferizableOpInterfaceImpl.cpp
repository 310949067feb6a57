//===- BufferizableOpInterfaceImpl.cpp - Bufferization --------------------===//

#include "kvcache/Transforms/BufferizableOpInterfaceImpl.h"
#include "kvcache/IR/KVCache.h"
#include "mlir/Dialect/Bufferization/IR/BufferizableOpInterface.h"
#include "mlir/Dialect/Bufferization/IR/Bufferization.h"
#include "mlir/Dialect/Bufferization/IR/DstBufferizableOpInterfaceImpl.h"

using namespace mlir;
using namespace mlir::bufferization;
using namespace mlir::kvcache;

namespace {

/// The operands of `op`, tensors replaced by their buffers.
FailureOr<SmallVector<Value>>
bufferOperands(Operation *op, RewriterBase &rewriter,
               const BufferizationOptions &options,
               const BufferizationState &state) {
  SmallVector<Value> operands;
  for (Value operand : op->getOperands()) {
    if (!isa<TensorType>(operand.getType())) {
      operands.push_back(operand);
      continue;
    }
    FailureOr<Value> buffer = getBuffer(rewriter, operand, options, state);
    if (failed(buffer))
      return failure();
    operands.push_back(*buffer);
  }
  return operands;
}

/// The same op on buffers, without results.
void createOnBuffers(Operation *op, RewriterBase &rewriter,
                     ArrayRef<Value> operands) {
  OperationState state(op->getLoc(), op->getName(), operands, TypeRange(),
                       op->getAttrs());
  rewriter.create(state);
}

/// Writes and `calculate_scales`: tensors are read, memory behind the handle
/// is written.
template <typename OpTy>
struct ReaderModel
    : public BufferizableOpInterface::ExternalModel<ReaderModel<OpTy>, OpTy> {
  bool bufferizesToMemoryRead(Operation *op, OpOperand &operand,
                              const AnalysisState &state) const {
    return true;
  }
  bool bufferizesToMemoryWrite(Operation *op, OpOperand &operand,
                               const AnalysisState &state) const {
    return false;
  }
  AliasingValueList getAliasingValues(Operation *op, OpOperand &operand,
                                      const AnalysisState &state) const {
    return {};
  }
  LogicalResult bufferize(Operation *op, RewriterBase &rewriter,
                          const BufferizationOptions &options,
                          BufferizationState &state) const {
    FailureOr<SmallVector<Value>> operands =
        bufferOperands(op, rewriter, options, state);
    if (failed(operands))
      return failure();
    createOnBuffers(op, rewriter, *operands);
    rewriter.eraseOp(op);
    return success();
  }
};

template <typename OpTy>
struct AttentionModel
    : public DstBufferizableOpInterfaceExternalModel<AttentionModel<OpTy>,
                                                     OpTy> {
  // Rows past the batch keep what `outs` holds, so `outs` is read too: the
  // base class says so.
  LogicalResult bufferize(Operation *op, RewriterBase &rewriter,
                          const BufferizationOptions &options,
                          BufferizationState &state) const {
    auto attention = cast<OpTy>(op);
    FailureOr<SmallVector<Value>> operands =
        bufferOperands(op, rewriter, options, state);
    if (failed(operands))
      return failure();
    SmallVector<Value> results;
    for (OpOperand &init : attention.getDpsInitsMutable())
      if (isa<TensorType>(init.get().getType()))
        results.push_back((*operands)[init.getOperandNumber()]);
    createOnBuffers(op, rewriter, *operands);
    replaceOpWithBufferizedValues(rewriter, op, results);
    return success();
  }
};

} // namespace

void mlir::kvcache::registerBufferizableOpInterfaceExternalModels(
    DialectRegistry &registry) {
  registry.addExtension(+[](MLIRContext *context, KVCacheDialect *dialect) {
    WriteOp::attachInterface<ReaderModel<WriteOp>>(*context);
    WriteLatentOp::attachInterface<ReaderModel<WriteLatentOp>>(*context);
    CalculateScalesOp::attachInterface<ReaderModel<CalculateScalesOp>>(
        *context);
    PagedAttentionOp::attachInterface<AttentionModel<PagedAttentionOp>>(
        *context);
    MLAAttentionOp::attachInterface<AttentionModel<MLAAttentionOp>>(*context);
    context->loadDialect<BufferizationDialect>();
  });
}
