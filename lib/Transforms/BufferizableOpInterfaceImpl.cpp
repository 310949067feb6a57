//===- BufferizableOpInterfaceImpl.cpp - Bufferization --------------------===//

#include "kvcache/Transforms/BufferizableOpInterfaceImpl.h"
#include "kvcache/IR/KVCache.h"
#include "mlir/Dialect/Bufferization/IR/BufferizableOpInterface.h"
#include "mlir/Dialect/Bufferization/IR/Bufferization.h"
#include "mlir/Dialect/Bufferization/IR/DstBufferizableOpInterfaceImpl.h"
#include "mlir/Dialect/Bufferization/Transforms/OneShotAnalysis.h"
#include "mlir/Dialect/MemRef/IR/MemRef.h"

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

/// Tensors are read, and no result is in their buffers unless a model says so.
template <typename Model, typename OpTy>
struct ReadingModel
    : public BufferizableOpInterface::ExternalModel<Model, OpTy> {
  bool bufferizesToMemoryRead(Operation *, OpOperand &,
                              const AnalysisState &) const {
    return true;
  }
  bool bufferizesToMemoryWrite(Operation *, OpOperand &,
                               const AnalysisState &) const {
    return false;
  }
  AliasingValueList getAliasingValues(Operation *, OpOperand &,
                                      const AnalysisState &) const {
    return {};
  }
};

/// Writes, page copies and `calculate_scales`: tensors are read, memory behind
/// the handle is written.
template <typename OpTy>
struct ReaderModel : public ReadingModel<ReaderModel<OpTy>, OpTy> {
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
struct DestinationModel
    : public DstBufferizableOpInterfaceExternalModel<DestinationModel<OpTy>,
                                                     OpTy> {
  // Rows past the batch keep what `outs` holds, so `outs` of attentions is read
  // too. That of a merge is overwritten.
  bool bufferizesToMemoryRead(Operation *op, OpOperand &operand,
                              const AnalysisState &state) const {
    return isa<AttentionOpInterface>(op) ||
           !cast<DestinationStyleOpInterface>(op).isDpsInit(&operand);
  }
  LogicalResult bufferize(Operation *op, RewriterBase &rewriter,
                          const BufferizationOptions &options,
                          BufferizationState &state) const {
    auto destination = cast<OpTy>(op);
    FailureOr<SmallVector<Value>> operands =
        bufferOperands(op, rewriter, options, state);
    if (failed(operands))
      return failure();
    SmallVector<Value> results;
    for (OpOperand &init : destination.getDpsInitsMutable())
      if (isa<TensorType>(init.get().getType()))
        results.push_back((*operands)[init.getOperandNumber()]);
    createOnBuffers(op, rewriter, *operands);
    replaceOpWithBufferizedValues(rewriter, op, results);
    return success();
  }
};

/// What is yielded is a result of the op around, in the same buffer.
struct YieldModel : public ReadingModel<YieldModel, YieldOp> {
  AliasingValueList getAliasingValues(Operation *op, OpOperand &operand,
                                      const AnalysisState &state) const {
    auto with = cast<WithPagesOp>(op->getParentOp());
    return {
        {with->getResult(with.getPages().size() + operand.getOperandNumber()),
         BufferRelation::Equivalent}};
  }
  bool mustBufferizeInPlace(Operation *op, OpOperand &operand,
                            const AnalysisState &state) const {
    return true;
  }
  LogicalResult bufferize(Operation *op, RewriterBase &rewriter,
                          const BufferizationOptions &options,
                          BufferizationState &state) const {
    FailureOr<SmallVector<Value>> operands =
        bufferOperands(op, rewriter, options, state);
    if (failed(operands))
      return failure();
    rewriter.replaceOpWithNewOp<YieldOp>(op, *operands);
    return success();
  }
};

/// Pages are written in place, or it is an error.
struct WithPagesModel
    : public BufferizableOpInterface::ExternalModel<WithPagesModel,
                                                    WithPagesOp> {
  static bool isPages(Operation *op, OpOperand &operand) {
    return operand.getOperandNumber() < cast<WithPagesOp>(op).getPages().size();
  }

  bool bufferizesToMemoryRead(Operation *op, OpOperand &operand,
                              const AnalysisState &state) const {
    return true;
  }
  bool bufferizesToMemoryWrite(Operation *op, OpOperand &operand,
                               const AnalysisState &state) const {
    return isPages(op, operand) &&
           op->walk([](CacheOpInterface nested) {
               return nested.getCacheAccess() == CacheAccess::Write
                          ? WalkResult::interrupt()
                          : WalkResult::advance();
             }).wasInterrupted();
  }
  AliasingValueList getAliasingValues(Operation *op, OpOperand &operand,
                                      const AnalysisState &state) const {
    if (!isPages(op, operand))
      return {};
    return {{op->getResult(operand.getOperandNumber()),
             BufferRelation::Equivalent}};
  }
  AliasingOpOperandList getAliasingOpOperands(Operation *op, Value value,
                                              const AnalysisState &) const {
    auto with = cast<WithPagesOp>(op);
    unsigned index = cast<OpResult>(value).getResultNumber(),
             numPages = with.getPages().size();
    if (index < numPages)
      return {{&op->getOpOperand(index), BufferRelation::Equivalent}};
    Operation *yield = with.getBody().front().getTerminator();
    return {
        {&yield->getOpOperand(index - numPages), BufferRelation::Equivalent}};
  }

  LogicalResult verifyAnalysis(Operation *op,
                               const AnalysisState &state) const {
    auto with = cast<WithPagesOp>(op);
    const auto *oneShot = dyn_cast<OneShotAnalysisState>(&state);
    for (unsigned i = 0, e = with.getPages().size(); i < e; ++i) {
      OpOperand &operand = op->getOpOperand(i);
      if (!state.isInPlace(operand))
        return refuseCopy(op, operand, state, oneShot);
      // Nor may another op copy the cache on its way.
      OpOperand *copied = nullptr;
      if (oneShot)
        oneShot->applyOnAliases(operand.get(), [&](Value alias) {
          for (OpOperand &use : alias.getUses())
            if (!copied && !isa<WithPagesOp>(use.getOwner()) &&
                state.getOptions().dynCastBufferizableOp(use.getOwner()) &&
                !state.isInPlace(use))
              copied = &use;
        });
      if (copied) {
        InFlightDiagnostic diag =
            copied->getOwner()->emitError()
            << "'" << copied->getOwner()->getName()
            << "' would copy the pages of cache " << with.getCacheAttr()
            << ", which may be large; let each value of the pages be used "
               "once, by the next op in line";
        diag.attachNote(op->getLoc()) << "the cache is used here";
        return diag;
      }
    }
    return success();
  }

  /// Says why the pages cannot be written where they are.
  static LogicalResult refuseCopy(Operation *op, OpOperand &operand,
                                  const AnalysisState &state,
                                  const OneShotAnalysisState *oneShot) {
    InFlightDiagnostic diag = op->emitError()
                              << "'" << op->getName() << "' of cache "
                              << cast<WithPagesOp>(op).getCacheAttr()
                              << " would need a copy of the pages, operand "
                              << operand.getOperandNumber() << ", because ";
    SmallVector<Value> aliases = {operand.get()};
    if (oneShot)
      oneShot->applyOnAliases(operand.get(),
                              [&](Value alias) { aliases.push_back(alias); });
    for (Value alias : aliases)
      for (OpOperand &use : alias.getUses()) {
        Operation *user = use.getOwner();
        if (&use == &operand)
          continue;
        if (user == op)
          return diag << "another operand is the same value";
        Operation *ancestor = op->getBlock()->findAncestorOpInBlock(*user);
        if (op->isAncestor(user) || alias.getDefiningOp() == op ||
            (ancestor && ancestor->isBeforeInBlock(op)))
          continue;
        diag << "their old value is used later; use the result instead";
        diag.attachNote(user->getLoc()) << "it is used here";
        return diag;
      }
    for (Value alias : aliases) {
      if (!oneShot || oneShot->isWritable(alias))
        continue;
      auto argument = dyn_cast<BlockArgument>(alias);
      diag << "nobody may write them where they are";
      if (argument &&
          isa<FunctionOpInterface>(argument.getOwner()->getParentOp()))
        diag << ": argument " << argument.getArgNumber()
             << " of the function is not writable; bufferize function "
                "boundaries too (bufferize-function-boundaries), or mark it "
                "with bufferization.writable";
      else
        diag.attachNote(alias.getLoc()) << "they come from here";
      return diag;
    }
    diag << "the analysis found no other way";
    return diag;
  }

  /// The layout of `cache` that has the strides of `pages`, of K or of V.
  static LogicalResult adoptLayout(WithPagesOp op, CacheOp cache,
                                   MemRefType pages, bool ofV) {
    SmallVector<int64_t> strides;
    int64_t offset;
    if (failed(pages.getStridesAndOffset(strides, offset)))
      return op.emitError() << "pages need a strided layout, but are " << pages;
    if (llvm::any_of(strides, ShapedType::isDynamic))
      return success(); // the cache's own
    if (llvm::equal(strides, cache.getPageStrides(ofV)))
      return success();
    Layout before = cache.getLayout();
    for (Layout layout : {Layout::NHD, Layout::HND, Layout::Packed}) {
      cache.setLayout(layout);
      if (!llvm::equal(strides, cache.getPageStrides(ofV)))
        continue;
      cache.removeStridesAttr();
      return success();
    }
    auto rows = ArrayRef(strides).drop_back();
    if (strides.back() == 1 && !cache.getCacheType().isLatent() &&
        cache.acceptsStrides(rows)) {
      cache.setLayout(Layout::Strides);
      cache.setStrides(rows);
      return success();
    }
    cache.setLayout(before);
    InFlightDiagnostic diag = op.emitError()
                              << "pages of cache @" << cache.getSymName()
                              << " have the strides [";
    llvm::interleaveComma(strides, diag);
    return diag
           << "], which are those of no layout; expected nhd, hnd, packed, "
              "or strides with contiguous rows that do not overlap";
  }

  LogicalResult bufferize(Operation *op, RewriterBase &rewriter,
                          const BufferizationOptions &options,
                          BufferizationState &state) const {
    auto with = cast<WithPagesOp>(op);
    FailureOr<SmallVector<Value>> operands =
        bufferOperands(op, rewriter, options, state);
    if (failed(operands))
      return failure();
    size_t numPages = with.getPages().size();
    CacheOp cache = getCacheDeclaration(with.getHandle());
    for (auto [index, pages] :
         llvm::enumerate(ArrayRef(*operands).take_front(numPages)))
      if (failed(adoptLayout(with, cache, cast<MemRefType>(pages.getType()),
                             index == 1)))
        return failure();
    ArrayRef<Value> rest = ArrayRef(*operands).drop_front(numPages);
    Value handle = ViewCacheOp::create(
        rewriter, op->getLoc(), with.getHandle().getType(), with.getCache(),
        operands->front(), (*operands)[numPages - 1], rest[0], rest[1], rest[2],
        rest[3], /*k_scales=*/Value(), /*v_scales=*/Value());
    SmallVector<Value> results(ArrayRef(*operands).take_front(numPages));
    Operation *yield = with.getBody().front().getTerminator();
    FailureOr<SmallVector<Value>> yielded =
        bufferOperands(yield, rewriter, options, state);
    if (failed(yielded))
      return failure();
    llvm::append_range(results, *yielded);
    rewriter.eraseOp(yield);
    rewriter.inlineBlockBefore(&with.getBody().front(), op, handle);
    replaceOpWithBufferizedValues(rewriter, op, results);
    return success();
  }
};

/// `quantize` and `dequantize` give a new buffer.
template <typename OpTy>
struct ElementwiseModel : public ReadingModel<ElementwiseModel<OpTy>, OpTy> {
  bool bufferizesToAllocation(Operation *, Value) const { return true; }
  LogicalResult bufferize(Operation *op, RewriterBase &rewriter,
                          const BufferizationOptions &options,
                          BufferizationState &state) const {
    auto elementwise = cast<OpTy>(op);
    FailureOr<Value> input =
        getBuffer(rewriter, elementwise.getInput(), options, state);
    if (failed(input))
      return failure();
    ShapedType target = elementwise.getTargetType();
    SmallVector<Value> sizes;
    for (int64_t i = 0; i < target.getRank(); ++i)
      if (target.isDynamicDim(i))
        sizes.push_back(
            memref::DimOp::create(rewriter, op->getLoc(), *input, i));
    FailureOr<Value> output = options.createAlloc(
        rewriter, op->getLoc(),
        MemRefType::get(target.getShape(), target.getElementType()), sizes);
    if (failed(output))
      return failure();
    createOnBuffers(op, rewriter, {*input, elementwise.getScale(), *output});
    replaceOpWithBufferizedValues(rewriter, op, *output);
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
    CopyPagesOp::attachInterface<ReaderModel<CopyPagesOp>>(*context);
    PagedAttentionOp::attachInterface<DestinationModel<PagedAttentionOp>>(
        *context);
    MLAAttentionOp::attachInterface<DestinationModel<MLAAttentionOp>>(*context);
    MergeStatesOp::attachInterface<DestinationModel<MergeStatesOp>>(*context);
    WithPagesOp::attachInterface<WithPagesModel>(*context);
    YieldOp::attachInterface<YieldModel>(*context);
    QuantizeOp::attachInterface<ElementwiseModel<QuantizeOp>>(*context);
    DequantizeOp::attachInterface<ElementwiseModel<DequantizeOp>>(*context);
    context->loadDialect<BufferizationDialect>();
  });
}
