//===- Import.cpp - Custom ops of serving stacks become kvcache ops -------===//

#include "Importer.h"
#include "kvcache/Import/Passes.h"
#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "mlir/Dialect/Linalg/IR/Linalg.h"
#include "mlir/Dialect/Tensor/IR/Tensor.h"

namespace mlir::kvcache {
#define GEN_PASS_DEF_IMPORT
#include "kvcache/Import/Passes.h.inc"
} // namespace mlir::kvcache

using namespace mlir;
using namespace mlir::kvcache;

namespace {

class ImportPass : public mlir::kvcache::impl::ImportBase<ImportPass> {
public:
  using ImportBase::ImportBase;
  void runOnOperation() override;

private:
  FailureOr<ImportSettings> readOptions();
};

} // namespace

FailureOr<ImportSettings> ImportPass::readOptions() {
  auto fail = [&] { return emitError(getOperation().getLoc()) << "option "; };
  ImportSettings settings;
  settings.table = ForeignOpTable::getDefault();
  for (const std::string &file : opTable)
    if (llvm::Error error = settings.table.addFile(file))
      return fail() << "op-table: " << llvm::toString(std::move(error));
  // nhd, hnd, packed, or strides:PAGE,TOKEN,HEAD
  auto [word, numbers] = StringRef(kvLayout).split(':');
  std::optional<Layout> layout = symbolizeLayout(word);
  SmallVector<StringRef> parts;
  numbers.split(parts, ',', -1, /*KeepEmpty=*/false);
  bool isLegal =
      layout && (*layout == Layout::Strides ? parts.size() == 3
                                            : word.size() == kvLayout.size());
  for (StringRef part : parts)
    isLegal &= !part.getAsInteger(10, settings.strides.emplace_back());
  if (!isLegal)
    return fail() << "kv-layout must be nhd, hnd, packed or "
                     "strides:PAGE,TOKEN,HEAD (in elements), but is '"
                  << kvLayout.getValue() << "'";
  settings.layout = *layout;
  if (cacheOperands != "replaced" && cacheOperands != "threaded")
    return fail() << "cache-operands must be replaced or threaded, but is '"
                  << cacheOperands.getValue() << "'";
  settings.threaded = cacheOperands == "threaded";
  if (pageSize <= 0 || !llvm::isPowerOf2_64(pageSize))
    return fail() << "page-size must be a positive power of two, but is "
                  << pageSize.getValue();
  settings.pageSize = pageSize;
  for (auto [name, option, setting] :
       {std::tuple<StringRef, int64_t, int64_t *>{"max-tokens", maxTokens,
                                                  &settings.maxTokens},
        {"max-sequences", maxSequences, &settings.maxSequences},
        {"max-pages-per-sequence", maxPagesPerSequence,
         &settings.maxPagesPerSequence},
        {"num-pages", numPages, &settings.numPages}}) {
    if (option < 0)
      return fail() << name << " must not be negative, but is " << option;
    *setting = option;
  }
  settings.checkpoint = checkpoint;
  return settings;
}

void ImportPass::runOnOperation() {
  FailureOr<ImportSettings> settings = readOptions();
  if (failed(settings))
    return signalPassFailure();
  Importer importer(getOperation(), std::move(*settings));
  if (failed(importer.collect()))
    return signalPassFailure();
  importer.leaveEncoders();
  if (failed(importer.shareCaches()) || failed(importer.checkAll()))
    return signalPassFailure();

  bool hasAttention =
      importer.hasAttention() ||
      getOperation()
          ->walk([](AttentionOpInterface) { return WalkResult::interrupt(); })
          .wasInterrupted();
  if (!hasAttention) {
    std::string message =
        "the graph has no attention over a KV cache; expected one of the ops " +
        importer.listSupported() +
        ", or calls of declarations with such a 'torch.op'";
    if (requireAttention) {
      emitError(getOperation().getLoc(), message);
      return signalPassFailure();
    }
    emitRemark(getOperation().getLoc(), message);
  }
  if (!importer.hasCalls())
    return markAllAnalysesPreserved();
  if (failed(importer.declareCaches()))
    return signalPassFailure();
  importer.rewrite();
  numCaches += importer.numCaches;
  numWrites += importer.numWrites;
  numAttentions += importer.numAttentions;
  numCalculations += importer.numCalculations;
}
