//===- DropDynamicScales.cpp - Erase the run-time calculation of scales ---===//

#include "DynamicScaleRemainders.h"
#include "kvcache/Transforms/Passes.h"
#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "mlir/IR/Builders.h"
#include "mlir/Interfaces/SideEffectInterfaces.h"
#include "llvm/ADT/MapVector.h"
#include "llvm/ADT/SetVector.h"
#include "llvm/ADT/StringMap.h"
#include <charconv>

namespace mlir::kvcache {
#define GEN_PASS_DEF_DROPDYNAMICSCALES
#include "kvcache/Transforms/Passes.h.inc"
} // namespace mlir::kvcache

using namespace mlir;
using namespace mlir::kvcache;

namespace {

class DropDynamicScalesPass
    : public mlir::kvcache::impl::DropDynamicScalesBase<DropDynamicScalesPass> {
public:
  using DropDynamicScalesBase::DropDynamicScalesBase;
  void runOnOperation() override;

private:
  /// Layers that had run-time scales, and where.
  llvm::MapVector<StringRef, Location> layers;
  llvm::StringMap<CacheOp> cacheOfLayer;
  /// Ops that held an erased op, and may now hold nothing.
  llvm::SetVector<Operation *> parents;

  void noteLayer(StringRef layer, Location loc) { layers.insert({layer, loc}); }
  void noteAllLayers();
  void erase(Operation *op);
  LogicalResult dropCalculations();
  LogicalResult dropArguments();
  Attribute stripNested(Attribute attr);
  void dropAttributes();
  bool collectAccesses(Operation *op, Value memory,
                       llvm::SetVector<Operation *> &accesses);
  bool dropSymbols();
  bool dropEmptyParents();
  void warn();
};

} // namespace

void DropDynamicScalesPass::noteAllLayers() {
  for (CacheOp cache : getOperation().getOps<CacheOp>())
    if (cache.getCacheType().isQuantized())
      noteLayer(cache.getLayer(), cache.getLoc());
}

void DropDynamicScalesPass::erase(Operation *op) {
  Operation *parent = op->getParentOp();
  if (parent && !isa<FunctionOpInterface, ModuleOp>(parent))
    parents.insert(parent);
  op->walk([&](Operation *nested) { parents.remove(nested); });
  op->erase();
  ++numOps;
}

//===----------------------------------------------------------------------===//
// Ops that calculate
//===----------------------------------------------------------------------===//

LogicalResult DropDynamicScalesPass::dropCalculations() {
  SymbolTableCollection symbols;
  SmallVector<CalculateScalesOp> own;
  SmallVector<ForeignCall> foreign;
  getOperation().walk([&](Operation *op) {
    if (auto calculate = dyn_cast<CalculateScalesOp>(op))
      own.push_back(calculate);
    else if (auto call = matchDynamicScaleCall(op, symbols))
      foreign.push_back(*call);
  });

  LogicalResult result = success();
  for (const ForeignCall &call : foreign) {
    Operation *op = call.getOperation();
    for (OpResult value : op->getResults())
      if (!value.use_empty() &&
          !call.getMutatedOperand(value.getResultNumber()))
        result = op->emitError() << "result " << value.getResultNumber()
                                 << " of '" << call.getName()
                                 << "' is used, but is none of its operands, "
                                    "so nothing can stand in for it; "
                                    "expected results to be the operands that "
                                    "'mutated' names, in this order";
  }
  if (failed(result))
    return failure();

  for (CalculateScalesOp op : own) {
    if (CacheOp cache = getCacheDeclaration(op.getCache()))
      noteLayer(cache.getLayer(), op.getLoc());
    Operation *handle = op.getCache().getDefiningOp();
    erase(op);
    if (handle && isa<GetCacheOp>(handle) && handle->use_empty())
      handle->erase();
  }
  ForeignOpTable table = ForeignOpTable::getDefault();
  const ForeignOpSpec &spec = *table.find("vllm.maybe_calc_kv_scales");
  for (const ForeignCall &call : foreign) {
    Operation *op = call.getOperation();
    noteLayer(
        StringAttr::get(&getContext(), call.getLayerName(spec).value_or(""))
            .getValue(),
        op->getLoc());
    for (OpResult value : op->getResults())
      if (!value.use_empty())
        value.replaceAllUsesWith(
            call.getMutatedOperand(value.getResultNumber()));
    SmallVector<Operation *> names;
    for (Value operand : op->getOperands())
      if (Operation *def = operand.getDefiningOp())
        if (def->getName().getStringRef() == "torch.constant.str")
          names.push_back(def);
    erase(op);
    for (Operation *name :
         llvm::SetVector<Operation *>(names.begin(), names.end()))
      if (name->use_empty())
        name->erase();
  }
  return success();
}

//===----------------------------------------------------------------------===//
// Arguments and attributes
//===----------------------------------------------------------------------===//

LogicalResult DropDynamicScalesPass::dropArguments() {
  LogicalResult result = success();
  getOperation().walk([&](func::FuncOp function) {
    llvm::BitVector dead(function.getNumArguments());
    for (unsigned i = 0; i < function.getNumArguments(); ++i) {
      DictionaryAttr attrs = function.getArgAttrDict(i);
      // A string names the argument; an attribute named so only says something
      // about it, and goes with the attributes.
      if (!attrs || llvm::none_of(attrs, [](NamedAttribute attr) {
            auto name = dyn_cast<StringAttr>(attr.getValue());
            return name && namesDynamicScales(name.getValue());
          }))
        continue;
      std::string reason;
      if (function.isExternal())
        reason = "the function has no body";
      else if (!function.getArgument(i).use_empty())
        reason = "the function uses it";
      else if (!SymbolTable::symbolKnownUseEmpty(function, getOperation()))
        reason = "the function is called in this module";
      if (reason.empty()) {
        dead.set(i);
        continue;
      }
      result = emitError(function.getLoc())
               << "argument " << i << " of '" << function.getSymName() << "', "
               << attrs
               << ", belongs to the calculation of scales at run time, but "
                  "cannot be erased: "
               << reason << "; export the graph without calculate_kv_scales";
    }
    if (dead.none())
      return;
    if (succeeded(function.eraseArguments(dead))) {
      numArguments += dead.count();
      emitRemark(function.getLoc())
          << dead.count() << " unused arguments of '" << function.getSymName()
          << "' belonged to the calculation of scales at run time and are gone "
             "from its signature";
    }
  });
  return result;
}

/// `attr` without what belongs to the old path, at any depth.
Attribute DropDynamicScalesPass::stripNested(Attribute attr) {
  if (auto dict = dyn_cast<DictionaryAttr>(attr)) {
    SmallVector<NamedAttribute> kept;
    bool isDowngraded = llvm::any_of(dict, [](NamedAttribute entry) {
      StringRef name = entry.getName();
      return isDynamicScaleOption(name) ||
             name.ends_with("cudagraph_downgrade");
    });
    for (NamedAttribute entry : dict) {
      StringRef name = entry.getName();
      auto text = dyn_cast<StringAttr>(entry.getValue());
      bool isDowngrade =
          isDowngraded && text && text.getValue() == "NONE" &&
          (name == "cudagraph_mode" || name.ends_with(".cudagraph_mode"));
      if (isDynamicScaleAttr(name) || isDowngrade) {
        ++numAttributes;
        continue;
      }
      if (isPositionalList(name) && !name.ends_with("_attrs"))
        kept.push_back(entry);
      else
        kept.emplace_back(entry.getName(), stripNested(entry.getValue()));
    }
    return DictionaryAttr::get(&getContext(), kept);
  }
  if (auto array = dyn_cast<ArrayAttr>(attr)) {
    SmallVector<Attribute> kept;
    for (Attribute element : array) {
      auto text = dyn_cast<StringAttr>(element);
      if (text && namesDynamicScales(text.getValue()))
        ++numAttributes;
      else
        kept.push_back(stripNested(element));
    }
    return ArrayAttr::get(&getContext(), kept);
  }
  return attr;
}

void DropDynamicScalesPass::dropAttributes() {
  SmallVector<Operation *> marked;
  getOperation().walk([&](Operation *op) {
    DictionaryAttr attrs = op->getAttrDictionary();
    if (!holdsDynamicScaleName(attrs) &&
        llvm::none_of(attrs, [](NamedAttribute attr) {
          return isDynamicScaleAttr(attr.getName());
        }))
      return;
    marked.push_back(op);
    for (NamedAttribute attr : attrs) {
      auto value = dyn_cast<BoolAttr>(attr.getValue());
      if (!isDynamicScaleOption(attr.getName()) || (value && !value.getValue()))
        continue;
      auto cacheOp = dyn_cast<CacheOpInterface>(op);
      CacheOp cache =
          cacheOp ? getCacheDeclaration(cacheOp.getCacheHandle()) : CacheOp();
      if (cache)
        noteLayer(cache.getLayer(), op->getLoc());
      else
        noteAllLayers();
    }
    auto stripped = cast<DictionaryAttr>(stripNested(attrs));
    if (stripped == attrs)
      return;
    for (NamedAttribute attr : attrs) {
      Attribute value = stripped.get(attr.getName());
      if (!value)
        op->removeAttr(attr.getName());
      else if (value != attr.getValue())
        op->setAttr(attr.getName(), value);
    }
  });
  // Constants of the old path that nothing reads any more.
  for (Operation *op : llvm::reverse(marked))
    if (!isa<SymbolOpInterface>(op) && isOpTriviallyDead(op))
      erase(op);
}

//===----------------------------------------------------------------------===//
// Functions and globals
//===----------------------------------------------------------------------===//

/// Collects `op`, which reads or writes a global or makes a reference to it,
/// with everything that uses the results; false if something else depends on
/// it. `memory` is the reference to the global that `op` uses, if any.
bool DropDynamicScalesPass::collectAccesses(
    Operation *op, Value memory, llvm::SetVector<Operation *> &accesses) {
  if (op->getNumRegions())
    return false;
  if (!op->getNumResults()) {
    bool storesGlobal =
        !memory && op->getName().getStringRef().ends_with("global_store");
    auto effects = dyn_cast<MemoryEffectOpInterface>(op);
    bool storesThere = memory && effects &&
                       hasEffect<MemoryEffects::Write>(op, memory) &&
                       !op->hasTrait<OpTrait::IsTerminator>();
    if (storesThere) {
      SmallVector<MemoryEffects::EffectInstance> all;
      effects.getEffects(all);
      storesThere =
          llvm::all_of(all, [&](const MemoryEffects::EffectInstance &effect) {
            return isa<MemoryEffects::Read>(effect.getEffect()) ||
                   effect.getValue() == memory;
          });
    }
    if (!storesGlobal && !storesThere)
      return false;
    accesses.insert(op);
    return true;
  }
  bool onlyReads =
      isMemoryEffectFree(op) || hasSingleEffect<MemoryEffects::Read>(op);
  if (!onlyReads)
    return false;
  accesses.insert(op);
  for (Value result : op->getResults()) {
    Value reference = isa<BaseMemRefType>(result.getType()) ? result : Value();
    for (Operation *user : result.getUsers())
      if (!collectAccesses(user, reference ? reference : result, accesses))
        return false;
  }
  return true;
}

bool DropDynamicScalesPass::dropSymbols() {
  bool changed = false;
  SmallVector<Operation *> named;
  for (Operation &op : *getOperation().getBody()) {
    auto symbol = dyn_cast<SymbolOpInterface>(op);
    auto name = op.getAttrOfType<StringAttr>(SymbolTable::getSymbolAttrName());
    if (symbol && name && namesDynamicScales(name.getValue()) &&
        !isa_and_nonnull<KVCacheDialect>(op.getDialect()))
      named.push_back(&op);
  }
  for (Operation *op : named) {
    bool isFunction = isa<FunctionOpInterface>(op);
    if (isFunction && SymbolTable::getSymbolVisibility(op) !=
                          SymbolTable::Visibility::Private)
      continue;
    auto uses = SymbolTable::getSymbolUses(op, getOperation());
    if (!uses)
      continue;
    bool allGone = true;
    for (const SymbolTable::SymbolUse &use : *uses) {
      llvm::SetVector<Operation *> accesses;
      if (isFunction || !collectAccesses(use.getUser(), Value(), accesses)) {
        allGone = false;
        continue;
      }
      for (Operation *access : llvm::reverse(accesses))
        access->dropAllUses();
      for (Operation *access : accesses)
        erase(access);
      changed = true;
    }
    if (!allGone)
      continue;
    op->erase();
    ++numSymbols;
    changed = true;
  }
  return changed;
}

bool DropDynamicScalesPass::dropEmptyParents() {
  bool changed = false;
  while (!parents.empty()) {
    Operation *op = parents.pop_back_val();
    if (!isOpTriviallyDead(op))
      continue;
    SmallVector<Value> operands(op->getOperands());
    erase(op);
    changed = true;
    // The condition, unless it reads a global: that is for dropSymbols.
    for (Value operand : operands)
      if (Operation *def = operand.getDefiningOp())
        if (isOpTriviallyDead(def))
          erase(def);
  }
  return changed;
}

//===----------------------------------------------------------------------===//
// What the user has to know
//===----------------------------------------------------------------------===//

static void describe(InFlightDiagnostic &diag, StringRef role,
                     ScaleBufferOp buffer) {
  ScaleAttr scale = buffer.getScale();
  diag << role << " = ";
  if (!scale.isStatic()) {
    diag << "the value of checkpoint tensor " << scale.getKey();
    return;
  }
  ArrayRef<float> values = scale.getValues().asArrayRef();
  std::string text;
  llvm::raw_string_ostream os(text);
  llvm::interleaveComma(values, os, [&](float value) {
    // The shortest text that reads back as the same float.
    char digits[32];
    auto end = std::to_chars(digits, digits + sizeof(digits), value).ptr;
    os << StringRef(digits, end - digits);
  });
  diag << (values.size() > 1 ? "[" + text + "]" : text) << " ("
       << stringifyProvenance(scale.getProvenance());
  if (!scale.getKey().empty())
    diag << " " << scale.getKey();
  diag << ")";
}

void DropDynamicScalesPass::warn() {
  for (auto [layer, loc] : layers) {
    CacheOp cache = cacheOfLayer.lookup(layer);
    if (!cache) {
      std::string name = layer.empty() ? "a layer without a name"
                                       : "layer '" + layer.str() + "'";
      emitWarning(loc) << name
                       << " calculated its scales at run time and has no "
                          "kvcache.cache here; the "
                          "scales of its cache must come from the checkpoint, "
                          "else they are 1.0";
      continue;
    }
    if (!cache.getCacheType().isQuantized()) {
      emitRemark(loc) << "layer '" << layer
                      << "' calculated scales at run time, but its cache of "
                      << cache.getCacheType().getElementType()
                      << " uses none; nothing changes";
      continue;
    }
    ScaleBufferOp k = cache.getKScaleOp(), v = cache.getVScaleOp();
    InFlightDiagnostic diag = emitWarning(loc);
    diag << "layer '" << layer
         << "': scales that the graph calculated at run time are replaced by ";
    describe(diag, "k", k);
    if (k != v) {
      diag << " and ";
      describe(diag, "v", v);
    }
    diag << "; results differ from those with run-time scales. For calibrated "
            "scales, run kvcache-scales calibrate on sampled activations and "
            "pass the result with scale-overlay";
  }
}

void DropDynamicScalesPass::runOnOperation() {
  layers.clear();
  cacheOfLayer.clear();
  parents.clear();
  ModuleOp module = getOperation();
  bool failedAny = false;
  for (ScaleBufferOp buffer : module.getOps<ScaleBufferOp>())
    if (buffer.getScale().isDynamic()) {
      buffer.emitError()
          << "@" << buffer.getSymName()
          << " is still dynamic, so nothing replaces its run-time value; run "
             "kvcache-fold-checkpoint-scales first";
      failedAny = true;
    }
  if (failedAny)
    return signalPassFailure();
  for (CacheOp cache : module.getOps<CacheOp>())
    cacheOfLayer[cache.getLayer()] = cache;

  if (failed(dropCalculations()) || failed(dropArguments()))
    return signalPassFailure();
  dropAttributes();
  // Each may make work for the other: a branch is empty once the store of its
  // flag is gone, and a flag is unused once the branch is.
  for (bool changed = true; changed;) {
    changed = dropSymbols();
    changed |= dropEmptyParents();
  }
  warn();

  SmallVector<DynamicScaleRemainder> remainders;
  findDynamicScaleRemainders(module, remainders);
  for (const DynamicScaleRemainder &remainder : remainders)
    emitError(remainder.op->getLoc())
        << "cannot be dropped: " << remainder.what
        << "; export the graph without calculate_kv_scales, or rename it if "
           "it is something else";
  if (!remainders.empty())
    signalPassFailure();
}
