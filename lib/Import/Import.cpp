//===- Import.cpp - Custom ops of serving stacks become kvcache ops -------===//
//
// Everything is checked before anything is changed: a graph that is refused is
// left as it was.
//
//===----------------------------------------------------------------------===//

#include "LatentAttention.h"
#include "kvcache/Checkpoint/ModelConfig.h"
#include "kvcache/Checkpoint/ScaleTable.h"
#include "kvcache/IR/ForeignSemantics.h"
#include "kvcache/IR/SymbolLookup.h"
#include "kvcache/Import/ForeignOps.h"
#include "kvcache/Import/Passes.h"
#include "mlir/Dialect/Arith/IR/Arith.h"
#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "mlir/Dialect/Linalg/IR/Linalg.h"
#include "mlir/Dialect/Tensor/IR/Tensor.h"
#include "mlir/IR/Builders.h"
#include "mlir/IR/Dominance.h"
#include "mlir/IR/Matchers.h"
#include "mlir/IR/OperationSupport.h"
#include "mlir/Interfaces/FunctionInterfaces.h"
#include "mlir/Interfaces/SideEffectInterfaces.h"
#include "llvm/ADT/MapVector.h"
#include "llvm/ADT/StringExtras.h"
#include "llvm/ADT/StringSet.h"
#include <deque>

namespace mlir::kvcache {
#define GEN_PASS_DEF_IMPORT
#include "kvcache/Import/Passes.h.inc"
} // namespace mlir::kvcache

using namespace mlir;
using namespace mlir::kvcache;

namespace {

/// An operand by its place: importing the op that makes its value replaces the
/// value.
struct OperandRef {
  OpOperand *operand = nullptr;

  operator Value() const { return operand ? operand->get() : Value(); }
  explicit operator bool() const { return operand; }
  /// A tensor of torch counts as the builtin one.
  Type getType() const {
    return getBuiltinTensorType(operand->get().getType());
  }
};

/// True if the attribute is missing or has a value that says nothing.
bool isUnset(const ForeignAttribute &attribute, Attribute attr) {
  if (!attr)
    return true;
  return llvm::any_of(attribute.unset, [&](StringRef value) {
    if (auto word = dyn_cast<StringAttr>(attr))
      return word.getValue() == value;
    double number;
    if (value.getAsDouble(number))
      return false;
    if (auto integer = dyn_cast<IntegerAttr>(attr))
      return integer.getValue().getSExtValue() == number;
    auto real = dyn_cast<FloatAttr>(attr);
    return real && real.getValueAsDouble() == number;
  });
}

/// A foreign op whose operands have been found.
struct ImportedCall {
  ForeignCall call;
  const ForeignOpSpec *spec;
  std::string layer;
  OperandRef query, key, value, output, order, outputScale;
  OperandRef pages[2], pageTable, lengths, queryStart, slots;
  /// Heads of rows that come flat, as [..., heads * head dim]; 0: rows are
  /// [tokens, heads, head dim].
  int64_t queryHeads = 0, kvHeads = 0;
  /// Of an attention with FP8 queries: the op that quantizes them.
  std::optional<ForeignCall> quantization;
  /// Of an attention that reads another layer's cache: its own layer.
  std::string reader;
  /// Of an MLA attention: its widths.
  std::optional<LatentAttention> widths;

  Operation *op() const { return call.getOperation(); }
  Location loc() const { return op()->getLoc(); }
  Attribute getAttr(ForeignAttributeRole role) const;
  /// What the attention writes, as the graph has it: an operand or a result.
  Value getOutput() const {
    return output ? Value(output) : Value(op()->getResult(0));
  }
  bool hasPages() const { return bool(pages[0]); }
  bool updates() const {
    return spec->kind == ForeignOpKind::CacheUpdate ||
           spec->kind == ForeignOpKind::UpdateAndAttention;
  }
  bool attends() const {
    return spec->kind == ForeignOpKind::Attention ||
           spec->kind == ForeignOpKind::UpdateAndAttention;
  }
};

/// One layer of the graph and all its foreign ops, in program order.
struct Layer {
  SmallVector<ImportedCall *> updates, attentions, calculations;
  CacheType type;
  ImportedCall *shapeFrom = nullptr;
  std::string dtypeWord;
  CacheOp cache;
  /// Pages that are values say the element type, not the rows.
  bool hasPages = false;
};

class ImportPass : public mlir::kvcache::impl::ImportBase<ImportPass> {
public:
  using ImportBase::ImportBase;
  void runOnOperation() override;

private:
  ForeignOpTable table;
  // Layers refer to calls by address.
  std::deque<ImportedCall> calls;
  llvm::MapVector<StringRef, Layer> layers;
  std::optional<Layout> layout;
  /// Pages stay values.
  bool threaded = false;
  /// Tokens of a page that is a value; 0 if there is none.
  int64_t threadedPageSize = 0;

  /// Ops that quantize queries, and the layer of the queries.
  llvm::MapVector<Operation *, ImportedCall *> quantizations;
  /// The weight of a layer, in a function: one argument, however many
  /// attentions of MLA the layer has.
  llvm::DenseMap<std::pair<Operation *, Operation *>, Value> weights;
  /// Builtin tensors of values whose type is not builtin.
  llvm::DenseMap<Value, Value> casts;

  LogicalResult checkOptions();
  LogicalResult collect();
  void leaveEncoders();
  LogicalResult shareCaches();
  LogicalResult findLayerName(ImportedCall &imported);
  LogicalResult findOperands(ImportedCall &imported);
  LogicalResult findLayerByRows(ImportedCall &imported);
  LogicalResult findQuantization(ImportedCall &imported);
  LogicalResult checkResults(ImportedCall &imported);
  LogicalResult checkInPlace(const ForeignCall &call, Value output);
  FailureOr<CacheType> getRowType(ImportedCall &imported);
  FailureOr<CacheType> getLatentRowType(ImportedCall &imported);
  LogicalResult checkPages(ImportedCall &imported, Layer &layer);
  LogicalResult checkRows(ImportedCall &imported, Layer &layer);
  LogicalResult checkAttention(ImportedCall &imported, Layer &layer);
  LogicalResult checkLatentAttention(ImportedCall &imported, Layer &layer);
  LogicalResult checkNumbers(ImportedCall &imported);
  LogicalResult checkCalculation(ImportedCall &imported, Layer &layer);
  LogicalResult checkDtypeWord(ImportedCall &imported, Layer &layer);
  LogicalResult checkOrder(Layer &layer, DominanceInfo &dominance);
  LogicalResult checkAll();
  LogicalResult declareCaches();
  Value toBuiltin(Value value);
  void quantizeQuery(const ImportedCall &attention, CacheOp cache);
  Value getWeight(const ImportedCall &imported, CacheOp cache);
  Operation *createLatentWrite(OpBuilder &builder, const ImportedCall &imported,
                               Value handle);
  /// The attention, and its result in the shape that the graph has.
  std::pair<Operation *, Value>
  createLatentAttention(OpBuilder &builder, const ImportedCall &imported,
                        CacheOp cache, Value handle);
  std::pair<Operation *, Value> createAttention(OpBuilder &builder,
                                                const ImportedCall &imported,
                                                CacheOp cache, Value handle);
  WithPagesOp createWithPages(OpBuilder &builder, const ImportedCall &imported,
                              CacheOp cache);
  void rewrite();
  std::string listSupported() const;
};

} // namespace

/// An attribute by its role; null where it has the value that says nothing.
Attribute ImportedCall::getAttr(ForeignAttributeRole role) const {
  Attribute attr = call.getAttr(spec->getAttributeName(role));
  for (const ForeignAttribute &attribute : spec->attributes)
    if (attribute.role == role && isUnset(attribute, attr))
      return {};
  return attr;
}

//===----------------------------------------------------------------------===//
// Finding the ops and their operands
//===----------------------------------------------------------------------===//

std::string ImportPass::listSupported() const {
  return llvm::join(llvm::map_range(table.getSpecs(),
                                    [](const ForeignOpSpec &spec) {
                                      return "'" + spec.name + "'";
                                    }),
                    ", ");
}

LogicalResult ImportPass::checkOptions() {
  table = ForeignOpTable::getDefault();
  for (const std::string &file : opTable)
    if (llvm::Error error = table.addFile(file))
      return emitError(getOperation().getLoc())
             << "option op-table: " << llvm::toString(std::move(error));
  layout = symbolizeLayout(kvLayout);
  if (!layout)
    return emitError(getOperation().getLoc())
           << "option kv-layout must be nhd, hnd or packed, but is '"
           << kvLayout.getValue() << "'";
  if (cacheOperands != "replaced" && cacheOperands != "threaded")
    return emitError(getOperation().getLoc())
           << "option cache-operands must be replaced or threaded, but is '"
           << cacheOperands.getValue() << "'";
  threaded = cacheOperands == "threaded";
  threadedPageSize = 0;
  if (pageSize <= 0 || !llvm::isPowerOf2_64(pageSize))
    return emitError(getOperation().getLoc())
           << "option page-size must be a positive power of two, but is "
           << pageSize.getValue();
  for (auto [name, capacity] :
       {std::pair<StringRef, int64_t>{"max-tokens", maxTokens},
        {"max-sequences", maxSequences},
        {"max-pages-per-sequence", maxPagesPerSequence},
        {"num-pages", numPages}})
    if (capacity < 0)
      return emitError(getOperation().getLoc())
             << "option " << name << " must not be negative, but is "
             << capacity;
  return success();
}

static const char *const kOpaqueName =
    "caches are found by layer name, and this op's is lost: PyTorch from 2.11 "
    "on may pass an opaque LayerName object, which does not survive export; "
    "export the model again with VLLM_USE_LAYERNAME=0, so that layer_name is a "
    "string";

LogicalResult ImportPass::findLayerName(ImportedCall &imported) {
  StringRef attrName =
      imported.spec->getAttributeName(ForeignAttributeRole::LayerName);
  Attribute attr = imported.call.getAttr(attrName);
  if (!attr)
    return imported.op()->emitError()
           << "'" << imported.spec->name << "' has no '" << attrName << "'; "
           << kOpaqueName;
  auto name = dyn_cast<StringAttr>(attr);
  if (!name)
    return imported.op()->emitError()
           << "'" << attrName << "' of '" << imported.spec->name
           << "' must be a string, but is " << attr << "; " << kOpaqueName;
  // What an exporter makes of an object without a text form: its Python repr,
  // its class, or a digest.
  StringRef text = name.getValue();
  bool isDigest = text.size() >= 16 && llvm::all_of(text, llvm::isHexDigit);
  if (text.empty() || text.contains("LayerName") ||
      text.contains("custom_obj") || isDigest || text.starts_with("<"))
    return imported.op()->emitError()
           << "'" << attrName << "' of '" << imported.spec->name
           << "' is no layer of a model: \"" << text << "\"; " << kOpaqueName;
  imported.layer = text.str();
  StringRef pattern = imported.spec->layerPattern;
  if (pattern.empty())
    return success();
  StringRef index = text.drop_until(llvm::isDigit).take_while(llvm::isDigit);
  if (index.empty())
    return imported.op()->emitError()
           << "'" << attrName << "' of '" << imported.spec->name
           << "' has no number in it: \"" << text
           << "\"; the op table makes the layer's name from that number, as "
              "\""
           << pattern << "\"";
  auto [before, after] = pattern.split("{index}");
  imported.layer = (before + index + after).str();
  return success();
}

/// Serving stacks keep a scale as a tensor and as a host float. Where a graph
/// holds the values of both, they must agree.
static LogicalResult checkScaleGivenOnce(const ForeignCall &call,
                                         StringRef operand, Value value) {
  DenseFPElementsAttr elements;
  if (!operand.ends_with("scale") ||
      !matchPattern(value, m_Constant(&elements)) || !elements.isSplat())
    return success();
  double tensor = elements.getSplatValue<APFloat>().convertToDouble();
  for (std::string name : {operand.str() + "_float",
                           "_" + operand.str() + "_float", operand.str()}) {
    auto number = dyn_cast_or_null<FloatAttr>(call.getAttr(name));
    // The host float was widened from f32, or is a decimal of it.
    if (!number || static_cast<float>(number.getValueAsDouble()) ==
                       static_cast<float>(tensor))
      continue;
    return call.getOperation()->emitError()
           << "'" << call.getName() << "' gives its " << operand
           << " twice: the tensor is " << tensor << ", but '" << name << "' is "
           << number.getValueAsDouble() << "; expected equal values";
  }
  return success();
}

LogicalResult ImportPass::findOperands(ImportedCall &imported) {
  const ForeignOpSpec &spec = *imported.spec;
  auto emitError = [&] {
    return imported.op()->emitError()
           << "'" << spec.name << "' of layer '" << imported.layer << "' ";
  };
  for (auto [attr, operand] : imported.call.getOperands()) {
    const ForeignOperand *known = spec.findOperand(attr.getValue());
    switch (known->role) {
    case ForeignOperandRole::Query:
      imported.query.operand = operand;
      break;
    case ForeignOperandRole::Key:
      imported.key.operand = operand;
      break;
    case ForeignOperandRole::Value:
      imported.value.operand = operand;
      break;
    case ForeignOperandRole::Output:
      imported.output.operand = operand;
      break;
    case ForeignOperandRole::Order:
      imported.order.operand = operand;
      break;
    case ForeignOperandRole::OutputScale:
      imported.outputScale.operand = operand;
      [[fallthrough]];
    case ForeignOperandRole::Replaced:
      if (failed(checkScaleGivenOnce(imported.call, attr.getValue(),
                                     operand->get())))
        return failure();
      break;
    case ForeignOperandRole::KeyPages:
      imported.pages[0].operand = operand;
      break;
    case ForeignOperandRole::ValuePages:
      imported.pages[1].operand = operand;
      break;
    case ForeignOperandRole::PageTable:
      imported.pageTable.operand = operand;
      break;
    case ForeignOperandRole::Lengths:
      imported.lengths.operand = operand;
      break;
    case ForeignOperandRole::QueryStart:
      imported.queryStart.operand = operand;
      break;
    case ForeignOperandRole::Slots:
      imported.slots.operand = operand;
      break;
    case ForeignOperandRole::Refused:
      return emitError() << "has an operand " << attr << ": " << known->refusal;
    case ForeignOperandRole::Attribute:
      break;
    }
  }
  for (const ForeignOperand &operand : spec.operands) {
    if (!operand.required || imported.call.getOperand(operand.name))
      continue;
    InFlightDiagnostic diag = emitError() << "lacks the operand \""
                                          << operand.name << "\"; it has [";
    llvm::interleaveComma(imported.call.getOperands(), diag,
                          [&](auto &entry) { diag << Attribute(entry.first); });
    return diag << "], expected names from: " << spec.listOperands();
  }
  for (const ForeignAttribute &attribute : spec.attributes) {
    Attribute attr = imported.call.getAttr(attribute.name);
    if (attribute.role == ForeignAttributeRole::Refused &&
        !isUnset(attribute, attr))
      return emitError() << "has '" << attribute.name << "' = " << attr << ": "
                         << attribute.refusal;
  }
  for (auto [role, heads] :
       {std::pair<ForeignAttributeRole, int64_t *>{
            ForeignAttributeRole::QueryHeads, &imported.queryHeads},
        {ForeignAttributeRole::KVHeads, &imported.kvHeads}}) {
    StringRef name = spec.getAttributeName(role);
    if (name.empty())
      continue;
    auto attr = dyn_cast_or_null<IntegerAttr>(imported.call.getAttr(name));
    if (!attr || !attr.getValue().isStrictlyPositive()) {
      InFlightDiagnostic diag = emitError() << "must have a positive integer '"
                                            << name << "', but has ";
      return attr ? diag << attr : diag << "none";
    }
    *heads = attr.getValue().getSExtValue();
  }
  return success();
}

LogicalResult ImportPass::checkResults(ImportedCall &imported) {
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
LogicalResult ImportPass::checkInPlace(const ForeignCall &call, Value output) {
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

LogicalResult ImportPass::collect() {
  SymbolTableCollection symbols;
  ModuleOp module = getOperation();
  LogicalResult result = success();
  SmallVector<ImportedCall *> unnamed;
  module.walk([&](Operation *op) {
    std::optional<ForeignCall> call = ForeignCall::match(op, symbols);
    if (!call)
      return;
    const ForeignOpSpec *spec = table.find(call->getName());
    if (!spec) {
      if (ForeignOpTable::isOfKnownFamily(call->getName()))
        result = op->emitError()
                 << "'" << call->getName()
                 << "' uses a KV cache, but is not understood; supported are "
                 << listSupported();
      return;
    }
    if (spec->kind == ForeignOpKind::QuantizeQuery)
      return;
    if (SymbolTable::getNearestSymbolTable(op) != module) {
      result =
          op->emitError()
          << "'" << call->getName()
          << "' is in a nested module, but caches are declared in the top one; "
             "run kvcache-import on the nested module";
      return;
    }
    ImportedCall &imported = calls.emplace_back();
    imported.call = *call;
    imported.spec = spec;
    auto emitError = [&] {
      InFlightDiagnostic diag = op->emitError() << "'" << spec->name << "' ";
      if (std::optional<StringRef> layer = call->getLayerName())
        diag << "of layer '" << *layer << "' ";
      return diag;
    };
    if (failed(imported.call.readOperands(*spec, emitError)) ||
        (spec->namesLayer && failed(findLayerName(imported))) ||
        failed(findOperands(imported)) || failed(checkResults(imported))) {
      result = failure();
      return;
    }
    if (!spec->namesLayer) {
      unnamed.push_back(&imported);
      return;
    }
    Layer &layer = layers[imported.layer];
    if (imported.updates())
      layer.updates.push_back(&imported);
    if (imported.attends())
      layer.attentions.push_back(&imported);
    if (spec->kind == ForeignOpKind::CalculateScales)
      layer.calculations.push_back(&imported);
  });
  if (failed(result))
    return failure();
  for (ImportedCall *update : unnamed)
    if (failed(findLayerByRows(*update)))
      result = failure();
  for (ImportedCall &imported : calls)
    if (imported.attends() && failed(findQuantization(imported)))
      result = failure();
  return result;
}

/// True if both values are the same, or made by the same pure ops: graphs that
/// nobody has cleaned up reshape the keys once for each use.
static bool isSameValue(Value a, Value b, unsigned depth = 0) {
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

/// An update that names pages instead of a layer writes the rows that the
/// attention of its layer has too.
LogicalResult ImportPass::findLayerByRows(ImportedCall &imported) {
  Operation *function = imported.op()->getParentOfType<FunctionOpInterface>();
  SmallVector<ImportedCall *> found;
  for (auto &[name, layer] : layers)
    for (ImportedCall *attention : layer.attentions) {
      if (!attention->key || !attention->value ||
          attention->op()->getParentOfType<FunctionOpInterface>() != function ||
          !isSameValue(attention->key, imported.key) ||
          !isSameValue(attention->value, imported.value))
        continue;
      if (found.empty() || found.back()->layer != attention->layer)
        found.push_back(attention);
    }
  if (found.size() == 1) {
    imported.layer = found.front()->layer;
    layers[imported.layer].updates.push_back(&imported);
    return success();
  }
  InFlightDiagnostic diag = imported.op()->emitError()
                            << "'" << imported.spec->name
                            << "' names no layer, and ";
  if (found.empty())
    return diag << "no attention op of the function has its key and value, so "
                   "which layer's cache it writes is unknown";
  diag << "its key and value belong to " << found.size()
       << " layers, so which one's cache it writes is unknown";
  for (ImportedCall *attention : found)
    diag.attachNote(attention->loc())
        << "layer '" << attention->layer << "' has them";
  return diag;
}

/// The op that quantizes `codes`: it returns them, or wrote them in place
/// before `reader`.
static std::optional<ForeignCall> findQuantizer(Value codes, Operation *reader,
                                                const ForeignOpTable &table) {
  SymbolTableCollection symbols;
  auto match = [&](Operation *op) -> std::optional<ForeignCall> {
    std::optional<ForeignCall> call = ForeignCall::match(op, symbols);
    const ForeignOpSpec *spec = call ? table.find(call->getName()) : nullptr;
    if (!spec || spec->kind != ForeignOpKind::QuantizeQuery)
      return std::nullopt;
    return call;
  };
  if (Operation *def = codes.getDefiningOp())
    if (auto call = match(def))
      return call;
  std::optional<ForeignCall> last;
  for (Operation *user : codes.getUsers())
    if (!user->getNumResults() && user->getBlock() == reader->getBlock() &&
        user->isBeforeInBlock(reader))
      if (auto call = match(user))
        if (!last || last->getOperation()->isBeforeInBlock(user))
          last = call;
  return last;
}

/// FP8 queries are made by a static quantization, perhaps reshaped after it.
LogicalResult ImportPass::findQuantization(ImportedCall &imported) {
  auto query = dyn_cast<RankedTensorType>(imported.query.getType());
  if (!query || !isa<Float8E4M3FNType>(query.getElementType()))
    return success();
  Value codes = imported.query;
  Operation *reader = imported.op();
  std::optional<ForeignCall> call = findQuantizer(codes, reader, table);
  while (!call) {
    Operation *def = codes.getDefiningOp();
    if (!def || !(isa<tensor::ExpandShapeOp, tensor::CollapseShapeOp>(def) ||
                  isForeignView(def)))
      return success();
    reader = def;
    codes = def->getOperand(0);
    call = findQuantizer(codes, reader, table);
  }
  Operation *op = call->getOperation();
  auto emitError = [&] {
    return op->emitError() << "'" << call->getName() << "' of the query of "
                           << "layer '" << imported.layer << "' ";
  };
  const ForeignOpSpec *spec = table.find(call->getName());
  if (failed(call->readOperands(*spec, emitError)))
    return failure();
  OperandRef input, scale, result;
  for (auto [attr, operand] : call->getOperands()) {
    const ForeignOperand *known = spec->findOperand(attr.getValue());
    if (known->role == ForeignOperandRole::Refused)
      return emitError() << "has an operand " << attr << ": " << known->refusal;
    (known->role == ForeignOperandRole::Query      ? input
     : known->role == ForeignOperandRole::Replaced ? scale
                                                   : result)
        .operand = operand;
  }
  bool inPlace = call->getForm() == ForeignCall::Form::TorchOperator &&
                 !op->getNumResults();
  if (!input || !scale || !result ||
      (!inPlace && (op->getNumResults() != 1 || !call->getMutatedOperand(0))))
    return emitError() << "must have operands named result, input and scale, "
                          "and return the result";
  if (inPlace && failed(checkInPlace(*call, result)))
    return failure();
  auto from = dyn_cast<RankedTensorType>(input.getType());
  auto to = dyn_cast<RankedTensorType>(result.getType());
  if (!from || !to || from.getShape() != to.getShape() ||
      !isa<Float16Type, BFloat16Type, Float32Type>(from.getElementType()))
    return emitError() << "must quantize a tensor of f16, bf16 or f32 in its "
                          "own shape, but quantizes "
                       << input.getType();
  auto scaleType = dyn_cast<RankedTensorType>(scale.getType());
  if (!scaleType || !scaleType.hasStaticShape() ||
      scaleType.getNumElements() != 1)
    return emitError() << "must have one scale, but has one of type "
                       << scale.getType();
  if (failed(checkScaleGivenOnce(*call, "scale", scale)))
    return failure();
  auto [it, isNew] = quantizations.insert({op, &imported});
  if (!isNew && it->second->layer != imported.layer)
    return emitError() << "also quantizes the query of layer '"
                       << it->second->layer
                       << "'; each layer has a q scale of its own";
  imported.quantization = *call;
  return success();
}

/// Attention of an encoder has no cache: its op stays.
void ImportPass::leaveEncoders() {
  for (auto &[name, layer] : layers) {
    if (!layer.updates.empty() ||
        !::kvcache::isEncoderLayer(std::string_view(name.data(), name.size())))
      continue;
    for (ImportedCall *attention : layer.attentions)
      attention->op()->emitRemark()
          << "'" << attention->spec->name << "' is left as it is: layer '"
          << name << "' is one of an encoder, which has no KV cache";
    layer.attentions.clear();
  }
}

/// Layers that nothing writes read the cache that the model's config names.
LogicalResult ImportPass::shareCaches() {
  llvm::StringSet<> written;
  for (CacheOp cache : getOperation().getOps<CacheOp>())
    written.insert(cache.getLayer());
  SmallVector<StringRef> readers;
  for (auto &[name, layer] : layers)
    if (!layer.attentions.empty() && layer.updates.empty() &&
        !written.contains(name))
      readers.push_back(name);
  if (readers.empty() || checkpoint.empty())
    return success();
  Location loc = getOperation().getLoc();
  ::kvcache::Expected<::kvcache::Checkpoint> opened =
      ::kvcache::Checkpoint::open(checkpoint);
  if (!opened)
    return emitError(loc) << opened.message();
  if (!opened->config())
    return success();
  ::kvcache::Expected<::kvcache::ModelAttention> model =
      ::kvcache::readModelAttention(*opened->config());
  if (!model)
    return success(); // kvcache-apply-model-config says why

  auto indexOf = [](StringRef name) {
    return ::kvcache::layerIndex(std::string_view(name.data(), name.size()));
  };
  for (StringRef reader : readers) {
    int64_t index = indexOf(reader);
    if (index < 0 || index >= static_cast<int64_t>(model->layers.size()))
      continue;
    int64_t ownerIndex = model->layers[index].sharesCacheWith;
    if (ownerIndex < 0)
      continue;
    auto *owner = llvm::find_if(layers, [&](auto &entry) {
      return indexOf(entry.first) == ownerIndex &&
             !entry.second.updates.empty();
    });
    SmallVector<ImportedCall *> attentions = layers[reader].attentions;
    if (owner == layers.end())
      return attentions.front()->op()->emitError()
             << "layer '" << reader << "' reads the cache of layer "
             << ownerIndex << " by " << opened->config()->path
             << ", but the graph has no cache update of that layer; export "
                "both layers in one graph";
    std::string ownerName = owner->first.str(), readerName = reader.str();
    // The names of layers are those of their calls.
    layers.erase(reader);
    for (ImportedCall *attention : attentions) {
      attention->reader = readerName;
      attention->layer = ownerName;
      layers[ownerName].attentions.push_back(attention);
      attention->op()->emitRemark()
          << "layer '" << readerName << "' reads the cache of layer '"
          << ownerName << "', as " << opened->config()->path
          << " says: it writes nothing, and that layer's scales hold";
    }
  }
  return success();
}

//===----------------------------------------------------------------------===//
// Checks
//===----------------------------------------------------------------------===//

static ShapedType getShaped(Type type, int64_t rank) {
  auto shaped = dyn_cast<ShapedType>(type);
  if (!shaped || !isa<RankedTensorType, MemRefType>(shaped) ||
      shaped.getRank() != rank)
    return {};
  return shaped;
}

/// [tokens, heads, head dim] of an operand. Flat rows, [..., heads * head dim],
/// are cut into `heads`. Null if the type does not fit.
static ShapedType getRows(Type type, int64_t heads) {
  if (!heads)
    return getShaped(type, 3);
  auto flat = dyn_cast<RankedTensorType>(type);
  if (!flat || flat.getRank() < 2 || flat.isDynamicDim(flat.getRank() - 1) ||
      flat.getShape().back() % heads)
    return {};
  int64_t tokens = 1;
  for (int64_t size : flat.getShape().drop_back())
    tokens = ShapedType::isDynamic(size) || ShapedType::isDynamic(tokens)
                 ? ShapedType::kDynamic
                 : tokens * size;
  return RankedTensorType::get({tokens, heads, flat.getShape().back() / heads},
                               flat.getElementType());
}

static bool isRowElement(Type type) {
  return isa<Float16Type, BFloat16Type, Float32Type>(type);
}

static InFlightDiagnostic emitShapeError(const ImportedCall &imported) {
  return imported.op()->emitError()
         << "'" << imported.spec->name << "' of layer '" << imported.layer
         << "': ";
}

/// The word for a type of pages; empty if there is none.
static StringRef getCacheWord(Type type) {
  return isa<Float8E4M3FNType>(type) ? "fp8_e4m3"
         : isa<Float8E5M2Type>(type) ? "fp8_e5m2"
         : isa<BFloat16Type>(type)   ? "bfloat16"
         : isa<Float16Type>(type)    ? "float16"
                                     : "";
}

/// Pages that stay values: all that goes with them is there, and they say what
/// the cache is.
LogicalResult ImportPass::checkPages(ImportedCall &imported, Layer &layer) {
  auto emitError = [&] { return emitShapeError(imported); };
  for (auto [what, operand] :
       {std::pair<StringRef, OperandRef>{"pages of keys", imported.pages[0]},
        {"pages of values", imported.pages[1]},
        {"a page table", imported.pageTable},
        {"lengths", imported.lengths},
        {"query starts", imported.queryStart},
        {"slots", imported.slots}})
    if (!operand)
      return emitError() << "pages that stay values need all that goes with "
                            "them, but the op has no operand for "
                         << what;
  ShapedType shapes[2];
  for (auto [shape, operand] : llvm::zip_equal(shapes, imported.pages)) {
    shape = dyn_cast<RankedTensorType>(operand.getType());
    if (!shape || shape.getRank() != 4 || shape.isDynamicDim(1) ||
        shape.isDynamicDim(2) || shape.isDynamicDim(3) ||
        getCacheWord(shape.getElementType()).empty())
      return emitError()
             << "pages must be tensors [pages, page size, KV heads, "
                "head dim] of f8E4M3FN, f8E5M2, bf16 or f16 with a "
                "static page, but are "
             << operand.getType();
  }
  if (shapes[0] != shapes[1])
    return emitError() << "pages of keys and values must have the same type, "
                          "but are "
                       << shapes[0] << " and " << shapes[1];
  int64_t size = shapes[0].getDimSize(1);
  if (!llvm::isPowerOf2_64(size) ||
      (threadedPageSize && threadedPageSize != size))
    return emitError() << "a page has " << size << " tokens; expected "
                       << (threadedPageSize ? std::to_string(threadedPageSize) +
                                                  ", as in the other ops"
                                            : "a power of two");
  threadedPageSize = size;
  CacheType type =
      CacheType::get(&getContext(), shapes[0].getDimSize(2),
                     shapes[0].getDimSize(3), shapes[0].getElementType());
  if (layer.type && layer.type != type)
    return emitError() << "has pages for a cache of type " << type
                       << ", but the layer's is " << layer.type;
  layer.type = type;
  layer.hasPages = true;
  if (!layer.shapeFrom)
    layer.shapeFrom = &imported;
  return success();
}

FailureOr<CacheType> ImportPass::getRowType(ImportedCall &imported) {
  auto emitError = [&] { return emitShapeError(imported); };
  ShapedType shapes[2];
  for (auto [index, name, type] :
       {std::tuple<int, StringRef, Type>{0, "key", imported.key.getType()},
        {1, "value", imported.value.getType()}}) {
    shapes[index] = getRows(type, imported.kvHeads);
    if (!shapes[index] || shapes[index].isDynamicDim(1) ||
        shapes[index].isDynamicDim(2) ||
        !isRowElement(shapes[index].getElementType()))
      return emitError() << name
                         << " must be [tokens, KV heads, head dim] of f16, "
                            "bf16 or f32 with "
                         << "static heads and head dim, but is " << type;
  }
  if (shapes[0] != shapes[1])
    return emitError() << "key and value must have the same type, but are "
                       << shapes[0] << " and " << shapes[1];
  if (shapes[0].getDimSize(1) == 0 || shapes[0].getDimSize(2) == 0)
    return emitError() << "KV heads and head dim must be positive, but key is "
                       << shapes[0];
  return CacheType::get(&getContext(), shapes[0].getDimSize(1),
                        shapes[0].getDimSize(2), shapes[0].getElementType());
}

/// [tokens, latent], and [tokens, rotary] or [tokens, 1, rotary].
FailureOr<CacheType> ImportPass::getLatentRowType(ImportedCall &imported) {
  auto latent = dyn_cast<RankedTensorType>(imported.key.getType()),
       rope = dyn_cast<RankedTensorType>(imported.value.getType());
  auto isRow = [](RankedTensorType type, int64_t rank) {
    return type && type.getRank() == rank && !type.isDynamicDim(rank - 1) &&
           type.getDimSize(rank - 1) > 0 && isRowElement(type.getElementType());
  };
  bool fits = isRow(latent, 2) &&
              (isRow(rope, 2) || (isRow(rope, 3) && rope.getDimSize(1) == 1)) &&
              latent.getElementType() == rope.getElementType() &&
              latent.getDimSize(0) == rope.getDimSize(0);
  if (!fits)
    return emitShapeError(imported)
           << "the latent part must be a tensor [tokens, elements] and the "
              "rotary part [tokens, elements] or [tokens, 1, elements], both "
              "of f16, bf16 or f32 and of the same tokens, but they are "
           << imported.key.getType() << " and " << imported.value.getType();
  return CacheType::getLatent(&getContext(), latent.getDimSize(1),
                              rope.getShape().back(), latent.getElementType());
}

LogicalResult ImportPass::checkRows(ImportedCall &imported, Layer &layer) {
  FailureOr<CacheType> type = imported.spec->isLatent
                                  ? getLatentRowType(imported)
                                  : getRowType(imported);
  if (failed(type))
    return failure();
  // A cache that is there already may have been given another element type.
  bool agrees =
      !layer.type ||
      (layer.cache || layer.hasPages
           ? layer.type.withElementType(type->getElementType()) == *type
           : layer.type == *type);
  if (!agrees) {
    auto describe = [](CacheType type) {
      std::string text;
      llvm::raw_string_ostream(text) << type;
      // "!kvcache.cache<2 x 64 x bf16>"
      return StringRef(text).drop_front(text.find('<') + 1).drop_back().str();
    };
    InFlightDiagnostic diag = emitShapeError(imported)
                              << "needs a cache of " << describe(*type)
                              << ", but another op of the layer needs "
                              << describe(layer.type);
    diag.attachNote(layer.shapeFrom ? layer.shapeFrom->loc()
                                    : layer.cache.getLoc())
        << "the other one is here; one layer has one cache";
    return diag;
  }
  if (!layer.cache && !layer.hasPages)
    layer.type = *type;
  if (!layer.shapeFrom)
    layer.shapeFrom = &imported;
  return success();
}

LogicalResult ImportPass::checkAttention(ImportedCall &imported, Layer &layer) {
  if (imported.spec->isLatent)
    return checkLatentAttention(imported, layer);
  auto emitError = [&] { return emitShapeError(imported); };
  Type outputType = getBuiltinTensorType(imported.getOutput().getType());
  ShapedType query = getRows(imported.query.getType(), imported.queryHeads),
             output = getRows(outputType, imported.queryHeads);
  if (query && query.getElementType().isIntOrFloat() &&
      query.getElementTypeBitWidth() == 8 && !imported.quantization)
    return emitError() << "queries of " << query.getElementType()
                       << " are only supported where "
                          "'_C.static_scaled_fp8_quant' on tensors makes them "
                          "in f8E4M3FN; or export the model without quantizing "
                          "the query, so that it is f16 or bf16";
  if (!query || query.getDimSize(1) <= 0 || query.isDynamicDim(2) ||
      (!isRowElement(query.getElementType()) && !imported.quantization))
    return emitError() << "query must be [tokens, query heads, head dim] of "
                          "f16, bf16 or f32 with "
                          "static heads and head dim, but is "
                       << imported.query.getType();
  bool isCodes =
      output && isa<Float8E4M3FNType, Float8E5M2Type>(output.getElementType());
  if (!output || !(isCodes || isRowElement(output.getElementType())) ||
      output.getShape() != query.getShape())
    return emitError()
           << "output must be f16, bf16, f32, f8E4M3FN or f8E5M2 in the shape "
              "of the query, "
           << query << ", but is " << outputType;
  if (isCodes != bool(imported.outputScale))
    return emitError() << (isCodes ? "an output of "
                                   : "an \"output_scale\" with an output of ")
                       << output.getElementType()
                       << (isCodes ? " needs an \"output_scale\""
                                   : " has no meaning; quantized are outputs "
                                     "of f8E4M3FN and f8E5M2");
  if (imported.outputScale) {
    auto scale = dyn_cast<ShapedType>(
        getBuiltinTensorType(imported.outputScale.getType()));
    if (!scale || !scale.hasStaticShape() || scale.getNumElements() != 1)
      return emitError() << "\"output_scale\" must be one scale, but is "
                         << imported.outputScale.getType();
  }
  if (isa<TensorType>(query) != isa<TensorType>(output))
    return emitError()
           << "query and output must both be tensors or both memrefs, but are "
           << query << " and " << output;
  if (query.getDimSize(2) != layer.type.getHeadDim())
    return emitError() << "query has head dim " << query.getDimSize(2)
                       << ", but the cache has " << layer.type.getHeadDim();
  if (query.getDimSize(1) % layer.type.getNumHeads())
    return emitError() << "the number of query heads, " << query.getDimSize(1)
                       << ", must be a multiple of the KV heads, "
                       << layer.type.getNumHeads();
  return checkNumbers(imported);
}

LogicalResult ImportPass::checkLatentAttention(ImportedCall &imported,
                                               Layer &layer) {
  auto emitError = [&] { return emitShapeError(imported); };
  auto query = dyn_cast<RankedTensorType>(imported.query.getType());
  Type outputType = getBuiltinTensorType(imported.getOutput().getType());
  auto output = dyn_cast<RankedTensorType>(outputType);
  int64_t rope = layer.type.getRopeDim();
  if (!query || query.getRank() != 3 || query.getDimSize(1) <= 0 ||
      query.isDynamicDim(2) || query.getDimSize(2) <= rope ||
      !isRowElement(query.getElementType()))
    return emitError() << "query must be a tensor [tokens, query heads, nope + "
                       << rope << "] of f16, bf16 or f32 with static heads and "
                       << "width, but is " << imported.query.getType();
  int64_t heads = query.getDimSize(1);
  if (!output || output.getRank() != 2 || output.isDynamicDim(1) ||
      output.getDimSize(1) == 0 || output.getDimSize(1) % heads ||
      output.getDimSize(0) != query.getDimSize(0) ||
      output.getElementType() != query.getElementType())
    return emitError() << "output must be [tokens, " << heads
                       << " heads * value dim] of the query " << query
                       << ", but is " << outputType;
  imported.widths = LatentAttention{heads,
                                    query.getDimSize(2) - rope,
                                    rope,
                                    layer.type.getLatentDim(),
                                    output.getDimSize(1) / heads,
                                    query.getElementType()};
  auto function = imported.op()->getParentOfType<FunctionOpInterface>();
  if (!isa_and_nonnull<func::FuncOp>(function.getOperation()))
    return emitError() << "its kv_b_proj weight becomes an argument, but the "
                          "op is in no 'func.func'";
  if (!SymbolTable::symbolKnownUseEmpty(function, getOperation()))
    return emitError() << "its kv_b_proj weight becomes an argument of @"
                       << function.getName()
                       << ", but the function is called in this module; "
                          "inline it, or import it in a module of its own";
  for (auto role :
       {ForeignAttributeRole::SoftCap, ForeignAttributeRole::SlidingWindow,
        ForeignAttributeRole::Window})
    if (Attribute attr = imported.getAttr(role))
      return emitError() << "has '" << imported.spec->getAttributeName(role)
                         << "' = " << attr
                         << ", which MLA is not supported with";
  return checkNumbers(imported);
}

/// What the graph says about scores.
LogicalResult ImportPass::checkNumbers(ImportedCall &imported) {
  auto emitError = [&] { return emitShapeError(imported); };
  for (auto role :
       {ForeignAttributeRole::SoftmaxScale, ForeignAttributeRole::SoftCap})
    if (Attribute attr = imported.getAttr(role)) {
      auto number = dyn_cast<FloatAttr>(attr);
      if (!number || !number.getValue().isFiniteNonZero() ||
          number.getValue().isNegative())
        return emitError() << "'" << imported.spec->getAttributeName(role)
                           << "' must be a positive, finite float, but is "
                           << attr;
    }
  for (auto role :
       {ForeignAttributeRole::SlidingWindow, ForeignAttributeRole::Window})
    if (Attribute attr = imported.getAttr(role))
      if (!isa<IntegerAttr>(attr))
        return emitError() << "'" << imported.spec->getAttributeName(role)
                           << "' must be an integer, but is " << attr;
  return success();
}

LogicalResult ImportPass::checkCalculation(ImportedCall &imported,
                                           Layer &layer) {
  for (auto [name, type, row] :
       {std::tuple<StringRef, Type, int64_t>{"query", imported.query.getType(),
                                             0},
        {"key", imported.key.getType(), layer.type.getKeyWidth()},
        {"value", imported.value.getType(), layer.type.getValueWidth()}}) {
    ShapedType shaped = getShaped(type, 2);
    if (!shaped)
      shaped = getShaped(type, 3);
    bool fits = shaped && isa<FloatType>(shaped.getElementType());
    int64_t elements = 1;
    if (fits)
      for (int64_t size : shaped.getShape().drop_front())
        elements = ShapedType::isDynamic(size) ? row : elements * size;
    if (!fits || (name != "query" && elements != row))
      return imported.op()->emitError()
             << "'" << imported.spec->name << "' of layer '" << imported.layer
             << "': " << name
             << " must be [tokens, elements] or [tokens, heads, head dim] of "
                "floats"
             << (name == "query"
                     ? ""
                     : " with " + std::to_string(row) + " elements a token")
             << ", but is " << type;
  }
  return success();
}

LogicalResult ImportPass::checkDtypeWord(ImportedCall &imported, Layer &layer) {
  StringRef name =
      imported.spec->getAttributeName(ForeignAttributeRole::CacheDtype);
  Attribute attr = imported.getAttr(ForeignAttributeRole::CacheDtype);
  if (!attr)
    return success();
  auto word = dyn_cast<StringAttr>(attr);
  if (!word || word.empty())
    return imported.op()->emitError()
           << "'" << name << "' of layer '" << imported.layer
           << "' must be a word, but is " << attr;
  if (!layer.dtypeWord.empty() && layer.dtypeWord != word.getValue())
    return imported.op()->emitError()
           << "'" << name << "' of layer '" << imported.layer << "' is " << attr
           << " here, but \"" << layer.dtypeWord
           << "\" at another op of the layer";
  layer.dtypeWord = word.str();
  return success();
}

/// What the op calls the operand that orders it.
static StringRef getOrderName(const ImportedCall &attention) {
  for (const ForeignOperand &operand : attention.spec->operands)
    if (operand.role == ForeignOperandRole::Order)
      return operand.name;
  return "";
}

LogicalResult ImportPass::checkOrder(Layer &layer, DominanceInfo &dominance) {
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

LogicalResult ImportPass::checkAll() {
  for (CacheOp cache : getOperation().getOps<CacheOp>()) {
    auto *it = layers.find(cache.getLayer());
    if (it != layers.end()) {
      it->second.cache = cache;
      it->second.type = cache.getCacheType();
    }
  }
  LogicalResult result = success();
  DominanceInfo dominance(getOperation());
  for (auto &entry : layers) {
    Layer &layer = entry.second;
    // One error a layer: the later checks rely on the earlier ones.
    auto check = [&]() -> LogicalResult {
      if (threaded)
        for (auto *group : {&layer.updates, &layer.attentions})
          for (ImportedCall *call : *group)
            if (call->hasPages() && failed(checkPages(*call, layer)))
              return failure();
      for (ImportedCall *update : layer.updates)
        if (failed(checkRows(*update, layer)))
          return failure();
      for (ImportedCall *attention : layer.attentions) {
        bool hasRows = attention->key && attention->value;
        if (hasRows && failed(checkRows(*attention, layer)))
          return failure();
        if (layer.type && failed(checkAttention(*attention, layer)))
          return failure();
      }
      if (failed(checkOrder(layer, dominance)))
        return failure();
      if (layer.type)
        for (ImportedCall *calculation : layer.calculations)
          if (failed(checkCalculation(*calculation, layer)))
            return failure();
      for (auto *group : {&layer.updates, &layer.attentions})
        for (ImportedCall *call : *group)
          if (failed(checkDtypeWord(*call, layer)))
            return failure();
      if (layer.hasPages && layer.dtypeWord.empty())
        layer.dtypeWord = getCacheWord(layer.type.getElementType()).str();
      return success();
    };
    if (failed(check()))
      result = failure();
  }
  return result;
}

//===----------------------------------------------------------------------===//
// Rewriting
//===----------------------------------------------------------------------===//

/// `name` without what would need quotes in assembly, and unique in `taken`.
static std::string makeSymbolName(StringRef name, llvm::StringSet<> &taken) {
  std::string base;
  for (char c : name)
    base += llvm::isAlnum(c) || c == '_' || c == '.' || c == '$' ? c : '_';
  if (!llvm::isAlpha(base.front()) && base.front() != '_')
    base.insert(0, "_");
  std::string unique = base;
  for (unsigned i = 0;
       taken.contains(unique) || taken.contains(unique + ".k") ||
       taken.contains(unique + ".v") || taken.contains(unique + ".q") ||
       taken.contains(unique + ".o");
       ++i)
    unique = base + "_" + std::to_string(i);
  taken.insert(unique);
  return unique;
}

LogicalResult ImportPass::declareCaches() {
  ModuleOp module = getOperation();
  llvm::StringSet<> taken;
  CacheGroupOp group;
  Operation *lastDeclaration = nullptr;
  for (Operation &op : *module.getBody()) {
    if (auto name =
            op.getAttrOfType<StringAttr>(SymbolTable::getSymbolAttrName()))
      taken.insert(name.getValue());
    if (isa<CacheGroupOp, ScaleBufferOp, CacheOp>(op))
      lastDeclaration = &op;
    if (auto found = dyn_cast<CacheGroupOp>(op))
      group = group ? group : found;
  }
  OpBuilder builder(&getContext());
  if (lastDeclaration)
    builder.setInsertionPointAfter(lastDeclaration);
  else
    builder.setInsertionPointToStart(module.getBody());

  llvm::DenseMap<int64_t, unsigned> indexCount;
  for (auto &[name, layer] : layers)
    if (!layer.updates.empty() || !layer.attentions.empty())
      ++indexCount[::kvcache::layerIndex(
          std::string_view(name.data(), name.size()))];

  // The scales of FP8 queries and outputs.
  auto declareOthers = [&](Layer &layer) {
    auto declare = [&](StringRef suffix,
                       function_ref<bool(const ImportedCall &)> isUsed) {
      std::string name = (layer.cache.getSymName() + suffix).str();
      if (llvm::none_of(layer.attentions,
                        [&](ImportedCall *call) { return isUsed(*call); }) ||
          taken.contains(name))
        return;
      OpBuilder::InsertionGuard guard(builder);
      builder.setInsertionPoint(layer.cache);
      ScaleBufferOp::create(builder, layer.cache.getLoc(),
                            builder.getStringAttr(name),
                            ScaleAttr::get(&getContext()));
      taken.insert(name);
    };
    declare(".q", [](const ImportedCall &call) {
      return call.quantization.has_value();
    });
    declare(".o",
            [](const ImportedCall &call) { return bool(call.outputScale); });
  };

  for (auto &[name, layer] : layers) {
    if (layer.cache)
      declareOthers(layer);
    if (layer.cache || (layer.updates.empty() && layer.attentions.empty()))
      continue;
    if (!group) {
      auto capacity = [&](int64_t value) {
        return value ? builder.getI64IntegerAttr(value) : IntegerAttr();
      };
      group = CacheGroupOp::create(
          builder, module.getLoc(),
          builder.getStringAttr(makeSymbolName("full", taken)),
          builder.getI64IntegerAttr(threadedPageSize ? threadedPageSize
                                                     : pageSize),
          capacity(maxTokens), capacity(maxSequences),
          capacity(maxPagesPerSequence), capacity(numPages));
    }
    int64_t index =
        ::kvcache::layerIndex(std::string_view(name.data(), name.size()));
    bool hasOwnIndex = index >= 0 && indexCount[index] == 1;
    std::string symbol = makeSymbolName(
        hasOwnIndex ? "layer" + std::to_string(index) : name.str(), taken);
    Location loc = (layer.updates.empty() ? layer.attentions : layer.updates)
                       .front()
                       ->loc();
    auto declareScale = [&](StringRef role) {
      std::string scale = symbol + role.str();
      taken.insert(scale);
      ScaleBufferOp::create(builder, loc, builder.getStringAttr(scale),
                            ScaleAttr::get(&getContext()));
      return FlatSymbolRefAttr::get(builder.getStringAttr(scale));
    };
    // A latent row has one scale, and one layout.
    bool isLatent = layer.type.isLatent();
    FlatSymbolRefAttr k = declareScale(".k");
    FlatSymbolRefAttr v = isLatent ? k : declareScale(".v");
    layer.cache = CacheOp::create(
        builder, loc, builder.getStringAttr(symbol),
        builder.getStringAttr(name),
        FlatSymbolRefAttr::get(group.getSymNameAttr()),
        TypeAttr::get(layer.type), k, v,
        LayoutAttr::get(&getContext(), isLatent ? Layout::NHD : *layout),
        layer.dtypeWord.empty() ? StringAttr()
                                : builder.getStringAttr(layer.dtypeWord));
    declareOthers(layer);
    ++numCaches;
  }
  return success();
}

/// What the importer has understood. Other attributes of the op stay on it.
static bool isConsumedAttr(const ForeignOpSpec &spec, StringRef name) {
  if (llvm::is_contained({"layer_name", "operand_names", "mutated",
                          "kv_cache_dtype", "softmax_scale", "soft_cap",
                          "sliding_window", "callee"},
                         name))
    return true;
  const ForeignOperand *operand = spec.findOperand(name);
  return (operand && operand->role == ForeignOperandRole::Attribute) ||
         llvm::any_of(spec.attributes, [&](const ForeignAttribute &attribute) {
           return attribute.name == name;
         });
}

static void keepOtherAttrs(const ImportedCall &imported, Operation *created) {
  SmallVector<NamedAttribute> attrs(imported.call.getAttrs());
  if (imported.call.getForm() == ForeignCall::Form::Call)
    llvm::append_range(attrs, imported.op()->getAttrs());
  for (NamedAttribute attr : attrs)
    if (!isConsumedAttr(*imported.spec, attr.getName()) &&
        !created->hasAttr(attr.getName()))
      created->setAttr(attr.getName(), attr.getValue());
}

static FlatSymbolRefAttr getScaleName(CacheOp cache, StringRef suffix) {
  return FlatSymbolRefAttr::get(cache.getContext(),
                                (cache.getSymName() + suffix).str());
}

/// [tokens, heads, head dim] of flat rows; other rows as they are.
static Value makeRows(OpBuilder &builder, Location loc, Value rows,
                      int64_t heads) {
  if (!heads)
    return rows;
  auto type = cast<RankedTensorType>(rows.getType());
  int64_t rank = type.getRank();
  if (rank > 2) {
    SmallVector<ReassociationIndices> merge(2);
    llvm::append_range(merge[0], llvm::seq<int64_t>(0, rank - 1));
    merge[1].push_back(rank - 1);
    rows = tensor::CollapseShapeOp::create(builder, loc, rows, merge);
  }
  ShapedType cut = getRows(type, heads);
  SmallVector<OpFoldResult> sizes = {
      tensor::getMixedSize(builder, loc, rows, 0)};
  for (int64_t size : cut.getShape().drop_front())
    sizes.push_back(builder.getIndexAttr(size));
  return tensor::ExpandShapeOp::create(
      builder, loc, cut, rows, ArrayRef<ReassociationIndices>{{0}, {1, 2}},
      sizes);
}

/// The inverse: rows in the shape that `like` has.
static Value makeFlat(OpBuilder &builder, Location loc, Value rows, Value like,
                      Type type) {
  rows = tensor::CollapseShapeOp::create(
      builder, loc, rows, ArrayRef<ReassociationIndices>{{0}, {1, 2}});
  auto flat = cast<RankedTensorType>(type);
  int64_t rank = flat.getRank();
  if (rank == 2)
    return rows;
  SmallVector<ReassociationIndices> split(2);
  llvm::append_range(split[0], llvm::seq<int64_t>(0, rank - 1));
  split[1].push_back(rank - 1);
  return tensor::ExpandShapeOp::create(
      builder, loc, flat, rows, split,
      tensor::getMixedSizes(builder, loc, like));
}

Value ImportPass::toBuiltin(Value value) {
  Type type = getBuiltinTensorType(value.getType());
  if (type == value.getType())
    return value;
  Value &cast = casts[value];
  if (!cast) {
    // Beside the definition, so that it separates no cache ops.
    OpBuilder builder(&getContext());
    builder.setInsertionPointAfterValue(value);
    cast =
        UnrealizedConversionCastOp::create(builder, value.getLoc(), type, value)
            .getResult(0);
  }
  return cast;
}

/// `value` takes the place of what `op` computes or writes in place.
static void replaceOutput(OpBuilder &builder, Operation *op, Value output,
                          Value value) {
  Value old = op->getNumResults() ? Value(op->getResult(0)) : output;
  if (old.getType() != value.getType())
    value = UnrealizedConversionCastOp::create(builder, op->getLoc(),
                                               old.getType(), value)
                .getResult(0);
  if (op->getNumResults())
    return old.replaceAllUsesWith(value);
  old.replaceUsesWithIf(value, [&](OpOperand &use) {
    Operation *user = op->getBlock()->findAncestorOpInBlock(*use.getOwner());
    return user && op->isBeforeInBlock(user);
  });
}

/// The quantization of a query by the scale that the checkpoint gives.
void ImportPass::quantizeQuery(const ImportedCall &attention, CacheOp cache) {
  const ForeignCall &call = *attention.quantization;
  const ForeignOpSpec *spec = table.find(call.getName());
  Operation *op = call.getOperation();
  Value input, result;
  for (auto [attr, operand] : call.getOperands()) {
    ForeignOperandRole role = spec->findOperand(attr.getValue())->role;
    if (role == ForeignOperandRole::Query)
      input = operand->get();
    if (role == ForeignOperandRole::Output)
      result = operand->get();
  }
  OpBuilder builder(op);
  Value scale = LoadScaleOp::create(builder, op->getLoc(), builder.getF32Type(),
                                    getScaleName(cache, ".q"));
  Value codes = QuantizeOp::create(builder, op->getLoc(),
                                   getBuiltinTensorType(result.getType()),
                                   toBuiltin(input), scale, /*out=*/Value())
                    .getResult();
  op->emitRemark() << "layer '" << attention.layer
                   << "': the q scale that the graph passes as an argument "
                      "stays unused; @"
                   << getScaleName(cache, ".q").getValue()
                   << " takes its place";
  replaceOutput(builder, op, result, codes);
}

static FloatAttr getNumber(OpBuilder &builder, const ImportedCall &imported,
                           ForeignAttributeRole role) {
  auto attr = dyn_cast_or_null<FloatAttr>(imported.getAttr(role));
  return attr ? builder.getF64FloatAttr(attr.getValueAsDouble()) : FloatAttr();
}

Value ImportPass::getWeight(const ImportedCall &imported, CacheOp cache) {
  auto function = imported.op()->getParentOfType<func::FuncOp>();
  Value &weight = weights[{function, cache}];
  if (weight)
    return weight;
  unsigned index = function.getNumArguments();
  RankedTensorType type = imported.widths->getWeightType();
  std::string name =
      ::kvcache::attentionModule(imported.layer) + ".kv_b_proj.weight";
  Builder builder(&getContext());
  (void)function.insertArgument(index, type,
                                builder.getDictionaryAttr(builder.getNamedAttr(
                                    kWeight, builder.getStringAttr(name))),
                                imported.loc());
  imported.op()->emitRemark()
      << "layer '" << imported.layer << "': argument " << index << " of @"
      << function.getSymName() << " is new, the weight '" << name << "' ("
      << type
      << "), by which queries and outputs are multiplied around the attention";
  return weight = function.getArgument(index);
}

Operation *ImportPass::createLatentWrite(OpBuilder &builder,
                                         const ImportedCall &imported,
                                         Value handle) {
  Location loc = imported.loc();
  Value latent = toBuiltin(imported.key), rope = toBuiltin(imported.value);
  if (cast<RankedTensorType>(rope.getType()).getRank() == 3)
    rope = tensor::CollapseShapeOp::create(
        builder, loc, rope, ArrayRef<ReassociationIndices>{{0, 1}, {2}});
  return WriteLatentOp::create(builder, loc, latent, rope, handle);
}

std::pair<Operation *, Value>
ImportPass::createLatentAttention(OpBuilder &builder,
                                  const ImportedCall &imported, CacheOp cache,
                                  Value handle) {
  Location loc = imported.loc();
  const LatentAttention &widths = *imported.widths;
  Value weight = getWeight(imported, cache);
  Value query =
      widths.absorbQuery(builder, loc, toBuiltin(imported.query), weight);
  Value out = widths.makeOutput(builder, loc, query);
  auto attention = MLAAttentionOp::create(
      builder, loc, out.getType(), query, handle, out, Value(),
      getNumber(builder, imported, ForeignAttributeRole::SoftmaxScale));
  return {attention,
          widths.projectOutput(builder, loc, attention.getResult(0), weight)};
}

std::pair<Operation *, Value>
ImportPass::createAttention(OpBuilder &builder, const ImportedCall &imported,
                            CacheOp cache, Value handle) {
  Operation *op = imported.op();
  Location loc = op->getLoc();
  IntegerAttr window;
  for (auto [role, own] : {std::pair<ForeignAttributeRole, int64_t>{
                               ForeignAttributeRole::SlidingWindow, 1},
                           {ForeignAttributeRole::Window, 0}})
    if (auto attr = dyn_cast_or_null<IntegerAttr>(imported.getAttr(role)))
      if (attr.getValue().sge(own))
        window =
            builder.getI64IntegerAttr(attr.getValue().getSExtValue() - own);

  Value flatQuery = toBuiltin(imported.query);
  Value query = makeRows(builder, loc, flatQuery, imported.queryHeads);
  Type outputType = getBuiltinTensorType(imported.getOutput().getType());
  Value output;
  if (imported.output)
    output =
        makeRows(builder, loc, toBuiltin(imported.output), imported.queryHeads);
  else
    output = tensor::EmptyOp::create(builder, loc,
                                     tensor::getMixedSizes(builder, loc, query),
                                     getElementTypeOrSelf(outputType));
  FlatSymbolRefAttr queryScale, outputScale;
  if (imported.quantization)
    queryScale = getScaleName(cache, ".q");
  if (imported.outputScale) {
    outputScale = getScaleName(cache, ".o");
    op->emitRemark() << "layer '" << imported.layer
                     << "': the output scale that the graph passes as an "
                        "argument stays unused; "
                     << outputScale << " takes its place";
  }
  SmallVector<Type, 1> resultTypes;
  if (isa<TensorType>(output.getType()))
    resultTypes.push_back(output.getType());
  auto attention = PagedAttentionOp::create(
      builder, loc, resultTypes, query, handle, output, /*lse=*/Value(),
      /*sinks=*/Value(), /*alibi_slopes=*/Value(),
      getNumber(builder, imported, ForeignAttributeRole::SoftmaxScale),
      getNumber(builder, imported, ForeignAttributeRole::SoftCap), window,
      queryScale, outputScale);
  if (resultTypes.empty())
    return {attention, Value()};
  Value result = attention.getResults()[0];
  if (imported.queryHeads)
    result = makeFlat(builder, loc, result, flatQuery, outputType);
  return {attention, result};
}

/// An op whose region gets the handle; what it yields is not there yet.
WithPagesOp ImportPass::createWithPages(OpBuilder &builder,
                                        const ImportedCall &imported,
                                        CacheOp cache) {
  Location loc = imported.loc();
  Value pages[] = {toBuiltin(imported.pages[0]), toBuiltin(imported.pages[1])};
  SmallVector<Type> types = {pages[0].getType(), pages[1].getType()};
  if (imported.attends())
    types.push_back(getBuiltinTensorType(imported.getOutput().getType()));
  auto with = WithPagesOp::create(
      builder, loc, types, FlatSymbolRefAttr::get(cache.getSymNameAttr()),
      pages, toBuiltin(imported.pageTable), toBuiltin(imported.lengths),
      toBuiltin(imported.queryStart), toBuiltin(imported.slots));
  with.getBody().emplaceBlock().addArgument(cache.getCacheType(), loc);
  return with;
}

void ImportPass::rewrite() {
  OpBuilder builder(&getContext());
  llvm::DenseMap<std::pair<Block *, Operation *>, Value> handles;
  auto makeHandle = [&](CacheOp cache, Location loc) -> Value {
    return GetCacheOp::create(builder, loc, cache.getCacheType(),
                              FlatSymbolRefAttr::get(cache.getSymNameAttr()));
  };
  auto getHandle = [&](CacheOp cache, Operation *user) {
    // Ops come in program order, so the first of a block stands above the rest.
    Value &handle = handles[{user->getBlock(), cache}];
    if (!handle)
      handle = makeHandle(cache, user->getLoc());
    return handle;
  };

  SmallVector<Operation *> dead;
  llvm::SetVector<Operation *> declarations;
  for (const ImportedCall &imported : calls) {
    Layer &layer = layers[imported.layer];
    Operation *op = imported.op();
    if (!layer.cache && imported.attends())
      continue; // of an encoder
    if (!layer.cache) {
      op->emitRemark() << "'" << imported.spec->name
                       << "' is left as it is: layer '" << imported.layer
                       << "' has neither a cache update nor an attention";
      continue;
    }
    builder.setInsertionPoint(op);
    Operation *created = nullptr;
    WithPagesOp with;
    if (threaded && imported.hasPages()) {
      with = createWithPages(builder, imported, layer.cache);
      builder.setInsertionPointToStart(&with.getBody().front());
    }
    auto handleFor = [&]() -> Value {
      return with ? Value(with.getHandle()) : getHandle(layer.cache, op);
    };
    Value output;
    if (imported.updates()) {
      ++numWrites;
      if (imported.spec->isLatent) {
        created =
            createLatentWrite(builder, imported, getHandle(layer.cache, op));
        op->emitRemark() << "layer '" << imported.layer
                         << "': the k scale that the graph passes as an "
                            "argument stays unused; @"
                         << layer.cache.getKScale() << " takes its place";
      }
    }
    if (imported.updates() && !imported.spec->isLatent) {
      Value rows[2];
      for (auto [row, operand] :
           {std::pair<Value *, OperandRef>{&rows[0], imported.key},
            {&rows[1], imported.value}})
        *row = makeRows(builder, op->getLoc(), toBuiltin(operand),
                        imported.kvHeads);
      created =
          WriteOp::create(builder, op->getLoc(), rows[0], rows[1], handleFor());
      bool replaced = llvm::any_of(
          imported.spec->operands, [&](const ForeignOperand &operand) {
            return (operand.role == ForeignOperandRole::Replaced ||
                    (operand.role == ForeignOperandRole::KeyPages && !with)) &&
                   imported.call.getOperand(operand.name);
          });
      if (replaced)
        op->emitRemark()
            << "layer '" << imported.layer
            << "': the caches, the slot mapping and the scales that "
               "the graph passes as arguments stay unused; @"
            << layer.cache.getSymName()
            << ", its group and the checkpoint's scales take their "
               "place";
    }
    if (imported.attends()) {
      std::tie(created, output) =
          imported.spec->isLatent
              ? createLatentAttention(builder, imported, layer.cache,
                                      handleFor())
              : createAttention(builder, imported, layer.cache, handleFor());
      ++numAttentions;
    }
    if (with) {
      YieldOp::create(builder, op->getLoc(),
                      output ? ValueRange(output) : ValueRange());
      builder.setInsertionPoint(op);
      if (output)
        output = with->getResult(2);
    }
    if (output)
      replaceOutput(builder, op, imported.output, output);
    if (imported.spec->kind == ForeignOpKind::CalculateScales) {
      // A handle of its own: nothing of it is left when the op is dropped.
      created = CalculateScalesOp::create(
          builder, op->getLoc(), toBuiltin(imported.query),
          toBuiltin(imported.key), toBuiltin(imported.value),
          makeHandle(layer.cache, op->getLoc()));
      ++numCalculations;
    }
    for (OpResult result : op->getResults())
      if (!result.use_empty())
        if (Value operand =
                imported.call.getMutatedOperand(result.getResultNumber())) {
          if (with && operand == Value(imported.pages[0]))
            operand = with->getResult(0);
          else if (with && operand == Value(imported.pages[1]))
            operand = with->getResult(1);
          if (operand.getType() != result.getType())
            operand = UnrealizedConversionCastOp::create(
                          builder, op->getLoc(), result.getType(), operand)
                          .getResult(0);
          result.replaceAllUsesWith(operand);
        }
    keepOtherAttrs(imported, created);
    dead.push_back(op);
    if (Operation *declaration = imported.call.getDeclaration())
      declarations.insert(declaration);
  }
  for (auto &[op, attention] : quantizations) {
    if (Operation *declaration = attention->quantization->getDeclaration())
      declarations.insert(declaration);
    quantizeQuery(*attention, layers[attention->layer].cache);
    dead.push_back(op);
  }
  casts.clear();
  weights.clear();
  // An attention uses the result of an update, which stands above it.
  for (Operation *op : llvm::reverse(dead))
    op->erase();
  if (declarations.empty())
    return;
  llvm::DenseSet<StringAttr> used;
  for (const SymbolTable::SymbolUse &use : getAllSymbolUses(getOperation()))
    used.insert(use.getSymbolRef().getRootReference());
  for (Operation *declaration : declarations)
    if (!used.contains(SymbolTable::getSymbolName(declaration)) &&
        SymbolTable::getSymbolVisibility(declaration) ==
            SymbolTable::Visibility::Private)
      declaration->erase();
}

void ImportPass::runOnOperation() {
  calls.clear();
  layers.clear();
  quantizations.clear();
  if (failed(checkOptions()) || failed(collect()))
    return signalPassFailure();
  leaveEncoders();
  if (failed(shareCaches()) || failed(checkAll()))
    return signalPassFailure();

  bool hasAttention = llvm::any_of(
      layers, [](auto &entry) { return !entry.second.attentions.empty(); });
  if (!hasAttention)
    hasAttention =
        getOperation()
            ->walk([](AttentionOpInterface) { return WalkResult::interrupt(); })
            .wasInterrupted();
  if (!hasAttention) {
    std::string message =
        "the graph has no attention over a KV cache; expected one of the ops " +
        listSupported() + ", or calls of declarations with such a 'torch.op'";
    if (requireAttention) {
      emitError(getOperation().getLoc(), message);
      return signalPassFailure();
    }
    emitRemark(getOperation().getLoc(), message);
  }
  if (calls.empty())
    return markAllAnalysesPreserved();
  if (failed(declareCaches()))
    return signalPassFailure();
  rewrite();
}
