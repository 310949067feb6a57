//===- CheckDataFlow.cpp - Checks of order, and of who sees which value ---===//

#include "Importer.h"
#include "mlir/IR/OperationSupport.h"
#include "mlir/Interfaces/FunctionInterfaces.h"
#include "mlir/Interfaces/SideEffectInterfaces.h"

using namespace mlir;
using namespace mlir::kvcache;

LogicalResult Importer::checkResults(ImportedCall &imported) {
  Operation *op = imported.op();
  auto emitError = [&] {
    return op->emitError() << "'" << imported.spec->name << "' of layer '"
                           << imported.layer << "' ";
  };
  switch (imported.spec->kind) {
  case ForeignOpKind::CacheUpdate:
    if (!imported.spec->namesLayer || imported.hasPages()) {
      for (unsigned i = 0; i < op->getNumResults(); ++i)
        if (!imported.call.getMutatedOperand(i))
          return emitError()
                 << "has a result " << i << " of type "
                 << op->getResult(i).getType()
                 << " that is none of its operands; expected the caches that "
                    "'mutated' names, in this order";
      return success();
    }
    if (op->getNumResults() > 1)
      return emitError()
             << "has " << op->getNumResults()
             << " results; expected at most one, which orders the attention";
    return success();
  case ForeignOpKind::Attention:
  case ForeignOpKind::UpdateAndAttention: {
    if (!imported.output && !op->getNumResults())
      return emitError() << "has neither an output operand nor a result";
    bool onTensors =
        isa<TensorType>(getBuiltinTensorType(imported.getOutput().getType()));
    // In torch form a tensor may be written in place.
    if (imported.call.getForm() == ForeignCall::Form::TorchOperator &&
        onTensors && !op->getNumResults())
      return checkInPlace(imported.call, imported.output);
    unsigned expected = onTensors ? 1 : 0;
    if (op->getNumResults() < expected ||
        (op->getNumResults() > expected && imported.spec->results.size() < 2)) {
      InFlightDiagnostic diag =
          emitError() << "has " << op->getNumResults()
                      << " results for an output of type "
                      << imported.getOutput().getType() << "; expected "
                      << (onTensors ? "one, the new value of the output"
                                    : "none");
      if (onTensors && !op->getNumResults())
        diag << ": a tensor cannot be written in place, so export the "
                "functionalized graph";
      return diag;
    }
    if (onTensors &&
        op->getResult(0).getType() != imported.getOutput().getType())
      return emitError() << "returns " << op->getResult(0).getType()
                         << "; expected the type of its "
                         << "output, " << imported.getOutput().getType();
    for (OpResult result : op->getResults().drop_front(expected))
      if (!result.use_empty() &&
          !imported.call.getMutatedOperand(result.getResultNumber()))
        return emitError() << "has a result " << result.getResultNumber()
                           << " of type " << result.getType()
                           << " that is none of its operands and is used; "
                              "expected the new value of an operand, of the "
                              "same type";
    return success();
  }
  case ForeignOpKind::CalculateScales:
    for (unsigned i = 0; i < op->getNumResults(); ++i)
      if (!imported.call.getMutatedOperand(i))
        return emitError() << "has a result " << i << " of type "
                           << op->getResult(i).getType()
                           << " that is none of its operands; expected the "
                              "operands that 'mutated' "
                              "names, in this order";
    return success();
  case ForeignOpKind::QuantizeQuery:
    return success();
  }
  llvm_unreachable("all kinds are handled");
}

/// An op that writes a tensor in place is imported as one that returns the new
/// value, which later uses get. That is right only if nothing else sees the
/// memory.
LogicalResult Importer::checkInPlace(const ForeignCall &call, Value output) {
  Operation *op = call.getOperation();
  auto isAfter = [&](Operation *other) {
    Operation *ancestor = op->getBlock()->findAncestorOpInBlock(*other);
    return !ancestor || op->isBeforeInBlock(ancestor);
  };
  auto refuse = [&](Operation *user) {
    InFlightDiagnostic diag =
        op->emitError()
        << "'" << call.getName()
        << "' writes a tensor in place that another value views, so what its "
           "later uses see is unknown; export the functionalized graph";
    diag.attachNote(user->getLoc()) << "the view is used here";
    return diag;
  };
  // Whatever was made of the memory before must not be used after the op.
  Value root = output;
  while (Operation *def = root.getDefiningOp()) {
    if (!isForeignView(def))
      break;
    root = def->getOperand(0);
  }
  SmallVector<Value> views = {root};
  while (!views.empty()) {
    Value view = views.pop_back_val();
    for (Operation *user : view.getUsers()) {
      if (user == op)
        continue;
      if (isAfter(user)) {
        if (view != output)
          return refuse(user);
      } else if (isForeignView(user)) {
        views.push_back(user->getResult(0));
      }
    }
  }
  return success();
}

bool mlir::kvcache::isSameValue(Value a, Value b, unsigned depth) {
  if (a == b)
    return true;
  Operation *defA = a.getDefiningOp(), *defB = b.getDefiningOp();
  if (depth == 8 || !defA || !defB || defA->getNumRegions() ||
      !(isPure(defA) || isFunctionalForeignOp(defA)) ||
      cast<OpResult>(a).getResultNumber() !=
          cast<OpResult>(b).getResultNumber())
    return false;
  return OperationEquivalence::isEquivalentTo(
      defA, defB,
      [&](Value lhs, Value rhs) {
        return success(isSameValue(lhs, rhs, depth + 1));
      },
      nullptr, OperationEquivalence::IgnoreLocations);
}

/// What the op calls the operand that orders it.
static StringRef getOrderName(const ImportedCall &attention) {
  for (const ForeignOperand &operand : attention.spec->operands)
    if (operand.role == ForeignOperandRole::Order)
      return operand.name;
  return "";
}

LogicalResult Importer::checkOrder(Layer &layer, DominanceInfo &dominance) {
  for (ImportedCall *update : layer.updates) {
    if (!update->op()->getNumResults() || !update->spec->namesLayer ||
        update->attends() || update->hasPages())
      continue;
    for (OpOperand &use : update->op()->getResult(0).getUses()) {
      auto *attention =
          llvm::find_if(layer.attentions, [&](ImportedCall *candidate) {
            return candidate->op() == use.getOwner() &&
                   candidate->order.operand == &use;
          });
      if (attention != layer.attentions.end())
        continue;
      InFlightDiagnostic diag =
          update->op()->emitError()
          << "the result of '" << update->spec->name << "' of layer '"
          << update->layer
          << "' carries no data and may only order attention ops of the same "
             "layer, but '"
          << use.getOwner()->getName() << "' uses it";
      diag.attachNote(use.getOwner()->getLoc()) << "it is used here";
      return diag;
    }
  }

  for (ImportedCall *attention : layer.attentions) {
    auto emitError = [&] {
      return attention->op()->emitError()
             << "'" << attention->spec->name << "' of layer '"
             << attention->layer << "' ";
    };
    Operation *function =
        attention->op()->getParentOfType<FunctionOpInterface>();
    ImportedCall *writer = nullptr, *later = nullptr;
    for (ImportedCall *update : layer.updates) {
      if (update->op()->getParentOfType<FunctionOpInterface>() != function)
        continue;
      if (update == attention ||
          dominance.properlyDominates(update->op(), attention->op()))
        writer = update;
      else
        later = update;
    }
    if (attention->order) {
      Operation *source = Value(attention->order).getDefiningOp();
      auto isSource = [&](ImportedCall *update) {
        return update->op() == source;
      };
      if (llvm::none_of(layer.updates, isSource)) {
        InFlightDiagnostic diag =
            emitError()
            << "must be ordered after the cache update of its own layer, but "
               "its \""
            << getOrderName(*attention) << "\" is ";
        if (!source)
          return diag << "an argument of a block";
        diag << "the result of a '" << source->getName() << "'";
        auto other = llvm::find_if(calls, [&](const ImportedCall &call) {
          return call.op() == source;
        });
        if (other != calls.end())
          diag << " of layer '" << other->layer << "'";
        diag.attachNote(source->getLoc()) << "it comes from here";
        return diag;
      }
      if (writer && writer->op() != source) {
        InFlightDiagnostic diag =
            emitError() << "is ordered after one cache update, but another one "
                           "of the layer stands between";
        diag.attachNote(writer->loc()) << "the other one is here";
        return diag;
      }
    }
    if (!writer && later) {
      InFlightDiagnostic diag =
          emitError()
          << "must come after the cache update of its layer on every path";
      diag.attachNote(later->loc()) << "the update is here";
      return diag;
    }
    if (!writer) {
      if (!layer.updates.empty() || layer.cache)
        continue;
      return emitError()
             << "reads a cache that nothing writes: no cache update has this "
                "layer name. A layer "
                "that shares the cache of another one must name that layer, or "
                "the model's config.json must say so (option checkpoint); a "
                "graph that writes "
                "caches by other ops must be exported with "
                "'vllm.unified_kv_cache_update' or "
                "'_C_cache_ops.reshape_and_cache_flash'";
    }
    for (unsigned i = 0; i < 2; ++i) {
      if (writer == attention || !writer->pages[i] || !attention->pages[i])
        continue;
      Operation *source = Value(attention->pages[i]).getDefiningOp();
      if (source == writer->op() &&
          writer->call.getMutatedOperand(
              cast<OpResult>(Value(attention->pages[i])).getResultNumber()) ==
              Value(writer->pages[i]))
        continue;
      InFlightDiagnostic diag =
          emitError() << "reads other pages than its layer's cache update "
                         "returns; give it the results of the update";
      diag.attachNote(writer->loc()) << "the update is here";
      return diag;
    }
    // The keys and values of a layer that reads another's cache count nothing.
    if (!attention->reader.empty())
      continue;
    for (auto [name, read, written] :
         {std::tuple<StringRef, Value, Value>{"key", attention->key,
                                              writer->key},
          {"value", attention->value, writer->value}}) {
      if (!read || isSameValue(read, written))
        continue;
      InFlightDiagnostic diag =
          emitError()
          << "reads its cache, but its " << name
          << " is not the one that was written; give both ops the same value "
             "(canonicalize and cse may do)";
      diag.attachNote(writer->loc()) << "the update is here";
      return diag;
    }
  }
  return success();
}
