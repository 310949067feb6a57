//===- Reduction.cpp - How a kvcache program gets smaller -----------------===//

#include "Reduction.h"
#include "kvcache/IR/KVCache.h"
#include "mlir/IR/AttrTypeSubElements.h"
#include "mlir/IR/BuiltinOps.h"
#include "mlir/IR/Verifier.h"
#include "mlir/Pass/Pass.h"
#include "mlir/Pass/PassRegistry.h"
#include "mlir/Reducer/Tester.h"

using namespace mlir;
using namespace mlir::kvcache;

//===----------------------------------------------------------------------===//
// Changes of one op
//===----------------------------------------------------------------------===//

/// Drops a cache access; whoever uses an attention gets what `outs` held.
static bool dropAccess(Operation *op) {
  if (!isa<CacheOpInterface>(op))
    return false;
  if (auto attention = dyn_cast<AttentionOpInterface>(op)) {
    SmallVector<Value> old;
    for (Value init : attention.getDpsInits())
      if (isa<TensorType>(init.getType()))
        old.push_back(init);
    op->replaceAllUsesWith(old);
  }
  op->erase();
  return true;
}

/// Drops what nobody uses: a declaration, or an op whose results are unused.
static bool dropUnused(Operation *op) {
  if (isa<SymbolOpInterface>(op)) {
    Operation *table = SymbolTable::getNearestSymbolTable(op->getParentOp());
    if (!table || !SymbolTable::symbolKnownUseEmpty(op, table))
      return false;
  } else if (op->hasTrait<OpTrait::IsTerminator>() || !op->use_empty()) {
    return false;
  }
  op->erase();
  return true;
}

static bool defaultScale(Operation *op) {
  auto buffer = dyn_cast<ScaleBufferOp>(op);
  if (!buffer)
    return false;
  auto plain =
      ScaleAttr::getStatic(op->getContext(), {1.0f}, Provenance::Default);
  if (buffer.getScale() == plain)
    return false;
  buffer.setScaleAttr(plain);
  return true;
}

//===----------------------------------------------------------------------===//
// Changes of the module's types
//===----------------------------------------------------------------------===//

/// Every dynamic dimension becomes 1.
static bool makeStatic(ModuleOp module) {
  bool changed = false;
  AttrTypeReplacer replacer;
  replacer.addReplacement([&](RankedTensorType type) -> std::optional<Type> {
    if (type.hasStaticShape())
      return std::nullopt;
    changed = true;
    SmallVector<int64_t> shape(type.getShape());
    llvm::replace(shape, ShapedType::kDynamic, int64_t(1));
    return type.clone(shape);
  });
  replacer.recursivelyReplaceElementsIn(module, /*replaceAttrs=*/true,
                                        /*replaceLocs=*/false,
                                        /*replaceTypes=*/true);
  return changed;
}

/// Caches get one KV head, and rows of [tokens, heads, dim] as many heads less.
static bool shrinkHeads(ModuleOp module) {
  int64_t heads = 1;
  module.walk([&](CacheOp cache) {
    heads = std::max(heads, cache.getCacheType().getNumHeads());
  });
  if (heads == 1)
    return false;
  AttrTypeReplacer replacer;
  replacer.addReplacement([&](CacheType type) -> std::optional<Type> {
    if (type.isLatent())
      return std::nullopt;
    return type.withNumHeads(type.getNumHeads() / heads);
  });
  replacer.addReplacement([&](RankedTensorType type) -> std::optional<Type> {
    if (type.getRank() != 3 || type.getDimSize(1) % heads)
      return std::nullopt;
    SmallVector<int64_t> shape(type.getShape());
    shape[1] /= heads;
    return type.clone(shape);
  });
  replacer.recursivelyReplaceElementsIn(module, /*replaceAttrs=*/true,
                                        /*replaceLocs=*/false,
                                        /*replaceTypes=*/true);
  return true;
}

//===----------------------------------------------------------------------===//
// Search
//===----------------------------------------------------------------------===//

namespace {

struct ReductionPass
    : public PassWrapper<ReductionPass, OperationPass<ModuleOp>> {
  MLIR_DEFINE_EXPLICIT_INTERNAL_INLINE_TYPE_ID(ReductionPass)
  ReductionPass() = default;
  ReductionPass(const ReductionPass &other) : PassWrapper(other) {}

  Option<std::string> test{
      *this, "test",
      llvm::cl::desc("Script that gets a file and exits with 1 when the file "
                     "is interesting")};

  StringRef getArgument() const final { return "kvcache-reduction"; }
  StringRef getDescription() const final {
    return "make a module smaller as long as a script finds it interesting";
  }

  void runOnOperation() override {
    ModuleOp module = getOperation();
    if (!isInteresting(module)) {
      module.emitError() << "is not interesting to begin with: '"
                         << test.getValue() << "' must exit with 1 for it";
      return signalPassFailure();
    }
    for (bool changed = true; changed;) {
      changed = false;
      for (auto change : {dropAccess, dropUnused, defaultScale})
        changed |= tryOnEachOp(module, change);
      for (auto change : {makeStatic, shrinkHeads})
        changed |= tryOn(module, change);
    }
  }

  bool isInteresting(ModuleOp module) {
    Tester tester(test.getValue(), {});
    return tester.isInteresting(module).first == Tester::Interestingness::True;
  }

  /// Changes a clone, and takes it over if it is valid and interesting.
  bool tryOn(ModuleOp module, llvm::function_ref<bool(ModuleOp)> change) {
    OwningOpRef<ModuleOp> clone = module.clone();
    // What does not verify is no candidate, and no news either.
    ScopedDiagnosticHandler silence(module.getContext(),
                                    [](Diagnostic &) { return success(); });
    if (!change(*clone) || failed(verify(*clone)) || !isInteresting(*clone))
      return false;
    module.getBodyRegion().takeBody(clone->getBodyRegion());
    return true;
  }

  bool tryOnEachOp(ModuleOp module,
                   llvm::function_ref<bool(Operation *)> change) {
    bool changed = false;
    auto count = [&] {
      size_t ops = 0;
      module.getBodyRegion().walk([&](Operation *) { ++ops; });
      return ops;
    };
    // From the end, so that users go before what they use.
    for (size_t index = count(); index-- > 0;)
      changed |= tryOn(module, [&](ModuleOp clone) {
        Operation *op = nullptr;
        size_t position = 0;
        clone.getBodyRegion().walk([&](Operation *candidate) {
          if (position++ == index)
            op = candidate;
        });
        return op && change(op);
      });
    return changed;
  }
};

} // namespace

void mlir::kvcache::registerReductionPass() {
  PassRegistration<ReductionPass>();
}
