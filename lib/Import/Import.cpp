//===- Import.cpp - Custom ops of serving stacks become kvcache ops -------===//
//
// Everything is checked before anything is changed: a graph that is refused is
// left as it was.
//
//===----------------------------------------------------------------------===//

#include "kvcache/Checkpoint/CacheType.h"
#include "kvcache/IR/QueryScale.h"
#include "kvcache/Import/ForeignOps.h"
#include "kvcache/Import/Passes.h"
#include "mlir/Dialect/Arith/IR/Arith.h"
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
  Type getType() const { return operand->get().getType(); }
};

/// A foreign op whose operands have been found.
struct ImportedCall {
  ForeignCall call;
  const ForeignOpSpec *spec;
  std::string layer;
  OperandRef query, key, value, output, order;
  /// Of an attention with FP8 queries: the op that quantizes them.
  std::optional<ForeignCall> quantization;

  Operation *op() const { return call.getOperation(); }
  Location loc() const { return op()->getLoc(); }
};

/// One layer of the graph and all its foreign ops, in program order.
struct Layer {
  SmallVector<ImportedCall *> updates, attentions, calculations;
  CacheType type;
  ImportedCall *shapeFrom = nullptr;
  std::string dtypeWord;
  CacheOp cache;
};

class ImportPass : public mlir::kvcache::impl::ImportBase<ImportPass> {
public:
  using ImportBase::ImportBase;
  void runOnOperation() override;

private:
  ForeignOpTable table = ForeignOpTable::getDefault();
  // Layers refer to calls by address.
  std::deque<ImportedCall> calls;
  llvm::MapVector<StringRef, Layer> layers;
  std::optional<Layout> layout;

  /// Ops that quantize queries, and the layer of the queries.
  llvm::MapVector<Operation *, ImportedCall *> quantizations;

  LogicalResult checkOptions();
  LogicalResult collect();
  LogicalResult findLayerName(ImportedCall &imported);
  LogicalResult findOperands(ImportedCall &imported);
  LogicalResult findLayerByRows(ImportedCall &imported);
  LogicalResult findQuantization(ImportedCall &imported);
  LogicalResult checkResults(ImportedCall &imported);
  LogicalResult checkRows(ImportedCall &imported, Layer &layer);
  LogicalResult checkAttention(ImportedCall &imported, Layer &layer);
  LogicalResult checkCalculation(ImportedCall &imported, Layer &layer);
  LogicalResult checkDtypeWord(ImportedCall &imported, Layer &layer);
  LogicalResult checkOrder(Layer &layer, DominanceInfo &dominance);
  LogicalResult checkAll();
  LogicalResult declareCaches();
  void rewrite();
  std::string listSupported() const;
};

} // namespace

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
  layout = symbolizeLayout(kvLayout);
  if (!layout)
    return emitError(getOperation().getLoc())
           << "option kv-layout must be nhd, hnd or packed, but is '"
           << kvLayout.getValue() << "'";
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
    "on may pass an "
    "opaque "
    "LayerName object, which does not survive export; export the model again "
    "with "
    "VLLM_USE_LAYERNAME=0, so that layer_name is a string";

LogicalResult ImportPass::findLayerName(ImportedCall &imported) {
  Attribute attr = imported.call.getAttr("layer_name");
  if (!attr)
    return imported.op()->emitError()
           << "'" << imported.spec->name << "' has no 'layer_name'; "
           << kOpaqueName;
  auto name = dyn_cast<StringAttr>(attr);
  if (!name)
    return imported.op()->emitError()
           << "'layer_name' of '" << imported.spec->name
           << "' must be a string, but is " << attr << "; " << kOpaqueName;
  // What an exporter makes of an object without a text form: its Python repr,
  // its class, or a digest.
  StringRef text = name.getValue();
  bool isDigest = text.size() >= 16 && llvm::all_of(text, llvm::isHexDigit);
  if (text.empty() || text.contains("LayerName") ||
      text.contains("custom_obj") || isDigest || text.starts_with("<"))
    return imported.op()->emitError()
           << "'layer_name' of '" << imported.spec->name
           << "' is no layer of a model: \"" << text << "\"; " << kOpaqueName;
  imported.layer = text.str();
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
  Operation *op = imported.op();
  auto emitError = [&] {
    return op->emitError() << "'" << spec.name << "' of layer '"
                           << imported.layer << "' ";
  };
  std::string expected = llvm::join(
      llvm::map_range(
          llvm::make_filter_range(spec.operands,
                                  [](const ForeignOperand &operand) {
                                    return operand.role !=
                                           ForeignOperandRole::Refused;
                                  }),
          [](const ForeignOperand &operand) { return operand.name; }),
      ", ");
  ArrayAttr names = imported.call.getOperandNames();
  if (!names)
    return emitError() << "has no 'operand_names', so what its "
                       << op->getNumOperands()
                       << " operands are is unknown; expected names from: "
                       << expected;
  if (names.size() != op->getNumOperands())
    return emitError() << "has " << op->getNumOperands() << " operands but "
                       << names.size() << " 'operand_names'";
  llvm::StringSet<> seen;
  for (auto [attr, value] : llvm::zip_equal(names, op->getOpOperands())) {
    auto name = dyn_cast<StringAttr>(attr);
    const ForeignOperand *operand =
        name ? spec.findOperand(name.getValue()) : nullptr;
    if (!operand)
      return emitError() << "has an unknown operand " << attr
                         << "; expected names from: " << expected;
    if (!seen.insert(name.getValue()).second)
      return emitError() << "has two operands named " << attr;
    switch (operand->role) {
    case ForeignOperandRole::Query:
      imported.query.operand = &value;
      break;
    case ForeignOperandRole::Key:
      imported.key.operand = &value;
      break;
    case ForeignOperandRole::Value:
      imported.value.operand = &value;
      break;
    case ForeignOperandRole::Output:
      imported.output.operand = &value;
      break;
    case ForeignOperandRole::Order:
      imported.order.operand = &value;
      break;
    case ForeignOperandRole::Replaced:
      if (failed(
              checkScaleGivenOnce(imported.call, name.getValue(), value.get())))
        return failure();
      break;
    case ForeignOperandRole::Refused:
      return emitError() << "has an operand " << attr << ": "
                         << operand->refusal;
    }
  }
  for (const ForeignOperand &operand : spec.operands)
    if (operand.required && !seen.contains(operand.name))
      return emitError() << "lacks the operand \"" << operand.name
                         << "\"; it has " << names
                         << ", expected names from: " << expected;
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
    if (!imported.spec->namesLayer) {
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
  case ForeignOpKind::Attention: {
    bool onTensors = isa<TensorType>(imported.output.getType());
    if (op->getNumResults() != (onTensors ? 1 : 0)) {
      InFlightDiagnostic diag =
          emitError() << "has " << op->getNumResults()
                      << " results for an output of type "
                      << imported.output.getType() << "; expected "
                      << (onTensors ? "one, the new value of the output"
                                    : "none");
      if (onTensors && !op->getNumResults())
        diag << ": a tensor cannot be written in place, so export the "
                "functionalized graph";
      return diag;
    }
    if (onTensors && op->getResult(0).getType() != imported.output.getType())
      return emitError() << "returns " << op->getResult(0).getType()
                         << "; expected the type of its "
                         << "output, " << imported.output.getType();
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
  }
  llvm_unreachable("all kinds are handled");
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
    if (call->getForm() == ForeignCall::Form::TorchOperator ||
        call->getForm() == ForeignCall::Form::CustomCall) {
      result =
          op->emitError()
          << "'" << call->getName() << "' in a '" << op->getName()
          << "' cannot be imported; export the graph to linalg, where it is "
             "an op of its own or a call of a declaration with 'torch.op'";
      return;
    }
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
    if ((spec->namesLayer && failed(findLayerName(imported))) ||
        failed(findOperands(imported)) || failed(checkResults(imported))) {
      result = failure();
      return;
    }
    if (!spec->namesLayer) {
      unnamed.push_back(&imported);
      return;
    }
    Layer &layer = layers[imported.layer];
    (spec->kind == ForeignOpKind::CacheUpdate ? layer.updates
     : spec->kind == ForeignOpKind::Attention ? layer.attentions
                                              : layer.calculations)
        .push_back(&imported);
  });
  if (failed(result))
    return failure();
  for (ImportedCall *update : unnamed)
    if (failed(findLayerByRows(*update)))
      result = failure();
  for (ImportedCall &imported : calls)
    if (imported.spec->kind == ForeignOpKind::Attention &&
        failed(findQuantization(imported)))
      result = failure();
  return result;
}

/// True if both values are the same, or made by the same pure ops: graphs that
/// nobody has cleaned up reshape the keys once for each use.
static bool isSameValue(Value a, Value b, unsigned depth = 0) {
  if (a == b)
    return true;
  Operation *defA = a.getDefiningOp(), *defB = b.getDefiningOp();
  if (depth == 8 || !defA || !defB || defA->getNumRegions() || !isPure(defA) ||
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

/// FP8 queries are made by a static quantization, perhaps reshaped after it.
LogicalResult ImportPass::findQuantization(ImportedCall &imported) {
  auto query = dyn_cast<RankedTensorType>(imported.query.getType());
  if (!query || !isa<Float8E4M3FNType>(query.getElementType()))
    return success();
  Value source = imported.query;
  SymbolTableCollection symbols;
  while (Operation *op = source.getDefiningOp()) {
    StringRef name = op->getName().getStringRef();
    if (name == "tensor.expand_shape" || name == "tensor.collapse_shape") {
      source = op->getOperand(0);
      continue;
    }
    std::optional<ForeignCall> call = ForeignCall::match(op, symbols);
    if (!call || call->getName() != "_C.static_scaled_fp8_quant")
      return success();
    auto emitError = [&] {
      return op->emitError() << "'" << call->getName() << "' of the query of "
                             << "layer '" << imported.layer << "' ";
    };
    ArrayAttr names = call->getOperandNames();
    Value input, scale;
    if (names && names.size() == op->getNumOperands())
      for (auto [attr, value] : llvm::zip_equal(names, op->getOperands())) {
        if (attr == StringAttr::get(&getContext(), "input"))
          input = value;
        if (attr == StringAttr::get(&getContext(), "scale"))
          scale = value;
      }
    if (!input || !scale || op->getNumResults() != 1 ||
        !call->getMutatedOperand(0))
      return emitError() << "must have operands named result, input and scale, "
                            "and return the result";
    auto from = dyn_cast<RankedTensorType>(input.getType());
    if (!from ||
        from.getShape() != cast<ShapedType>(source.getType()).getShape() ||
        !isa<Float16Type, BFloat16Type, Float32Type>(from.getElementType()))
      return emitError() << "must quantize a tensor of f16, bf16 or f32 in its "
                            "own shape, but quantizes "
                         << input.getType();
    auto scaleType = dyn_cast<RankedTensorType>(scale.getType());
    if (!scaleType || scaleType.getNumElements() != 1)
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
  return success();
}

//===----------------------------------------------------------------------===//
// Checks
//===----------------------------------------------------------------------===//

static ShapedType getShaped(Value value, int64_t rank) {
  auto shaped = dyn_cast<ShapedType>(value.getType());
  if (!shaped || !isa<RankedTensorType, MemRefType>(shaped) ||
      shaped.getRank() != rank)
    return {};
  return shaped;
}

static bool isRowElement(Type type) {
  return isa<Float16Type, BFloat16Type, Float32Type>(type);
}

LogicalResult ImportPass::checkRows(ImportedCall &imported, Layer &layer) {
  auto emitError = [&] {
    return imported.op()->emitError()
           << "'" << imported.spec->name << "' of layer '" << imported.layer
           << "': ";
  };
  ShapedType shapes[2];
  for (auto [index, name, value] :
       {std::tuple<int, StringRef, Value>{0, "key", imported.key},
        {1, "value", imported.value}}) {
    shapes[index] = getShaped(value, 3);
    if (!shapes[index] || shapes[index].isDynamicDim(1) ||
        shapes[index].isDynamicDim(2) ||
        !isRowElement(shapes[index].getElementType()))
      return emitError() << name
                         << " must be [tokens, KV heads, head dim] of f16, "
                            "bf16 or f32 with "
                         << "static heads and head dim, but is "
                         << value.getType();
  }
  if (shapes[0] != shapes[1])
    return emitError() << "key and value must have the same type, but are "
                       << shapes[0] << " and " << shapes[1];
  if (shapes[0].getDimSize(1) == 0 || shapes[0].getDimSize(2) == 0)
    return emitError() << "KV heads and head dim must be positive, but key is "
                       << shapes[0];
  CacheType type =
      CacheType::get(&getContext(), shapes[0].getDimSize(1),
                     shapes[0].getDimSize(2), shapes[0].getElementType());
  // A cache that is there already may have been given another element type.
  bool agrees =
      !layer.type ||
      (layer.type.getNumHeads() == type.getNumHeads() &&
       layer.type.getHeadDim() == type.getHeadDim() &&
       (layer.cache || layer.type.getElementType() == type.getElementType()));
  if (!agrees) {
    InFlightDiagnostic diag =
        emitError() << "needs a cache of " << type.getNumHeads() << " x "
                    << type.getHeadDim() << " x " << type.getElementType()
                    << ", but another op of the layer needs "
                    << layer.type.getNumHeads() << " x "
                    << layer.type.getHeadDim() << " x "
                    << layer.type.getElementType();
    diag.attachNote(layer.shapeFrom ? layer.shapeFrom->loc()
                                    : layer.cache.getLoc())
        << "the other one is here; one layer has one cache";
    return diag;
  }
  if (!layer.cache)
    layer.type = type;
  if (!layer.shapeFrom)
    layer.shapeFrom = &imported;
  return success();
}

LogicalResult ImportPass::checkAttention(ImportedCall &imported, Layer &layer) {
  auto emitError = [&] {
    return imported.op()->emitError()
           << "'" << imported.spec->name << "' of layer '" << imported.layer
           << "': ";
  };
  ShapedType query = getShaped(imported.query, 3),
             output = getShaped(imported.output, 3);
  if (query && query.getElementType().isIntOrFloat() &&
      query.getElementTypeBitWidth() == 8 && !imported.quantization)
    return emitError() << "queries of " << query.getElementType()
                       << " are only supported where "
                          "'_C.static_scaled_fp8_quant' on tensors makes them "
                          "in f8E4M3FN; or export the model without quantizing "
                          "the query, so that it is f16 or bf16";
  if (!query || query.isDynamicDim(1) || query.isDynamicDim(2) ||
      (!isRowElement(query.getElementType()) && !imported.quantization))
    return emitError() << "query must be [tokens, query heads, head dim] of "
                          "f16, bf16 or f32 with "
                          "static heads and head dim, but is "
                       << imported.query.getType();
  if (!output || !isRowElement(output.getElementType()) ||
      output.getShape() != query.getShape())
    return emitError()
           << "output must be f16, bf16 or f32 in the shape of the query, "
           << query << ", but is " << imported.output.getType();
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
  for (StringRef name : {"softmax_scale", "soft_cap"})
    if (Attribute attr = imported.call.getAttr(name)) {
      auto number = dyn_cast<FloatAttr>(attr);
      if (!number || !number.getValue().isFiniteNonZero() ||
          number.getValue().isNegative())
        return emitError() << "'" << name
                           << "' must be a positive, finite float, but is "
                           << attr;
    }
  if (Attribute attr = imported.call.getAttr("sliding_window"))
    if (!isa<IntegerAttr>(attr))
      return emitError() << "'sliding_window' must be an integer, but is "
                         << attr;
  return success();
}

LogicalResult ImportPass::checkCalculation(ImportedCall &imported,
                                           Layer &layer) {
  int64_t row = layer.type.getNumHeads() * layer.type.getHeadDim();
  for (auto [name, value] :
       {std::pair<StringRef, Value>{"query", imported.query},
        {"key", imported.key},
        {"value", imported.value}}) {
    ShapedType shaped = getShaped(value, 2);
    if (!shaped)
      shaped = getShaped(value, 3);
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
             << ", but is " << value.getType();
  }
  return success();
}

LogicalResult ImportPass::checkDtypeWord(ImportedCall &imported, Layer &layer) {
  Attribute attr = imported.call.getAttr("kv_cache_dtype");
  if (!attr)
    return success();
  auto word = dyn_cast<StringAttr>(attr);
  if (!word || word.empty())
    return imported.op()->emitError()
           << "'kv_cache_dtype' of layer '" << imported.layer
           << "' must be a word, but is " << attr;
  if (!layer.dtypeWord.empty() && layer.dtypeWord != word.getValue())
    return imported.op()->emitError()
           << "'kv_cache_dtype' of layer '" << imported.layer << "' is " << attr
           << " here, but \"" << layer.dtypeWord
           << "\" at another op of the layer";
  layer.dtypeWord = word.str();
  return success();
}

LogicalResult ImportPass::checkOrder(Layer &layer, DominanceInfo &dominance) {
  for (ImportedCall *update : layer.updates) {
    if (!update->op()->getNumResults() || !update->spec->namesLayer)
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
      if (dominance.properlyDominates(update->op(), attention->op()))
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
               "its \"kv_cache_dummy_dep\" is ";
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
                "that shares the cache of another one must name that layer; a "
                "graph that writes "
                "caches by other ops must be exported with "
                "'vllm.unified_kv_cache_update' or "
                "'_C_cache_ops.reshape_and_cache_flash'";
    }
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
       taken.contains(unique + ".v") || taken.contains(unique + ".q");
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
    ++indexCount[::kvcache::layerIndex(
        std::string_view(name.data(), name.size()))];

  auto declareQuery = [&](Layer &layer) {
    bool isQuantized =
        llvm::any_of(layer.attentions, [](const ImportedCall *attention) {
          return attention->quantization.has_value();
        });
    std::string name = layer.cache.getSymName().str() + ".q";
    if (!isQuantized || taken.contains(name))
      return;
    OpBuilder::InsertionGuard guard(builder);
    builder.setInsertionPoint(layer.cache);
    ScaleBufferOp::create(builder, layer.cache.getLoc(),
                          builder.getStringAttr(name),
                          ScaleAttr::get(&getContext()));
    taken.insert(name);
  };

  for (auto &[name, layer] : layers) {
    if (layer.cache)
      declareQuery(layer);
    if (layer.cache || (layer.updates.empty() && layer.attentions.empty()))
      continue;
    if (!group) {
      auto capacity = [&](int64_t value) {
        return value ? builder.getI64IntegerAttr(value) : IntegerAttr();
      };
      group = CacheGroupOp::create(
          builder, module.getLoc(),
          builder.getStringAttr(makeSymbolName("full", taken)),
          builder.getI64IntegerAttr(pageSize), capacity(maxTokens),
          capacity(maxSequences), capacity(maxPagesPerSequence),
          capacity(numPages));
    }
    int64_t index =
        ::kvcache::layerIndex(std::string_view(name.data(), name.size()));
    bool hasOwnIndex = index >= 0 && indexCount[index] == 1;
    std::string symbol = makeSymbolName(
        hasOwnIndex ? "layer" + std::to_string(index) : name.str(), taken);
    Location loc = (layer.updates.empty() ? layer.attentions : layer.updates)
                       .front()
                       ->loc();
    for (StringRef role : {".k", ".v"}) {
      taken.insert(symbol + role.str());
      ScaleBufferOp::create(builder, loc, builder.getStringAttr(symbol + role),
                            ScaleAttr::get(&getContext()));
    }
    layer.cache = CacheOp::create(
        builder, loc, builder.getStringAttr(symbol),
        builder.getStringAttr(name),
        FlatSymbolRefAttr::get(group.getSymNameAttr()),
        TypeAttr::get(layer.type),
        FlatSymbolRefAttr::get(builder.getStringAttr(symbol + ".k")),
        FlatSymbolRefAttr::get(builder.getStringAttr(symbol + ".v")),
        LayoutAttr::get(&getContext(), *layout),
        layer.dtypeWord.empty() ? StringAttr()
                                : builder.getStringAttr(layer.dtypeWord));
    declareQuery(layer);
    ++numCaches;
  }
  return success();
}

/// What the importer has understood. Other attributes of the op stay on it.
static bool isConsumedAttr(StringRef name) {
  return llvm::is_contained({"layer_name", "operand_names", "mutated",
                             "kv_cache_dtype", "softmax_scale", "soft_cap",
                             "sliding_window", "callee"},
                            name);
}

static void keepOtherAttrs(const ForeignCall &call, Operation *imported) {
  for (ArrayRef<NamedAttribute> attrs :
       {call.getAttrs(),
        ArrayRef<NamedAttribute>(call.getOperation()->getAttrs())})
    for (NamedAttribute attr : attrs)
      if (!isConsumedAttr(attr.getName()) && !imported->hasAttr(attr.getName()))
        imported->setAttr(attr.getName(), attr.getValue());
}

static StringAttr getQueryScaleName(CacheOp cache) {
  return StringAttr::get(cache.getContext(), cache.getSymName() + ".q");
}

/// The quantization of a query by the scale that the checkpoint gives.
static void quantizeQuery(Operation *op, const ImportedCall &attention,
                          CacheOp cache, OpBuilder &builder) {
  const ForeignCall &call = *attention.quantization;
  Value input;
  for (auto [attr, value] :
       llvm::zip_equal(call.getOperandNames(), op->getOperands()))
    if (attr == builder.getStringAttr("input"))
      input = value;
  builder.setInsertionPoint(op);
  Value scale =
      LoadScaleOp::create(builder, op->getLoc(), builder.getF32Type(),
                          FlatSymbolRefAttr::get(getQueryScaleName(cache)));
  Value codes = QuantizeOp::create(builder, op->getLoc(),
                                   op->getResult(0).getType(), input, scale);
  op->emitRemark() << "layer '" << attention.layer
                   << "': the q scale that the graph passes as an argument "
                      "stays unused; @"
                   << getQueryScaleName(cache).getValue() << " takes its place";
  op->getResult(0).replaceAllUsesWith(codes);
  op->erase();
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
    if (!layer.cache) {
      op->emitRemark() << "'" << imported.spec->name
                       << "' is left as it is: layer '" << imported.layer
                       << "' has neither a cache update nor an attention";
      continue;
    }
    builder.setInsertionPoint(op);
    Operation *created = nullptr;
    switch (imported.spec->kind) {
    case ForeignOpKind::CacheUpdate:
      created = WriteOp::create(builder, op->getLoc(), imported.key,
                                imported.value, getHandle(layer.cache, op));
      ++numWrites;
      if (imported.spec->namesLayer)
        break;
      for (OpResult result : op->getResults())
        result.replaceAllUsesWith(
            imported.call.getMutatedOperand(result.getResultNumber()));
      op->emitRemark() << "layer '" << imported.layer
                       << "': the caches, the slot mapping and the scales that "
                          "the graph passes as arguments stay unused; @"
                       << layer.cache.getSymName()
                       << ", its group and the checkpoint's scales take their "
                          "place";
      break;
    case ForeignOpKind::Attention: {
      FloatAttr numbers[2];
      for (auto [slot, name] :
           {std::pair<int, StringRef>{0, "softmax_scale"}, {1, "soft_cap"}})
        if (auto attr =
                dyn_cast_or_null<FloatAttr>(imported.call.getAttr(name)))
          numbers[slot] = builder.getF64FloatAttr(attr.getValueAsDouble());
      IntegerAttr window;
      if (auto attr = dyn_cast_or_null<IntegerAttr>(
              imported.call.getAttr("sliding_window")))
        if (attr.getValue().isStrictlyPositive())
          window =
              builder.getI64IntegerAttr(attr.getValue().getSExtValue() - 1);
      SmallVector<Type> resultTypes(op->getResultTypes());
      Value query = imported.query;
      if (imported.quantization) {
        // A code is a bf16 number; its scale enters the score factor.
        auto type = cast<RankedTensorType>(query.getType());
        Value one = arith::ConstantOp::create(builder, op->getLoc(),
                                              builder.getF32FloatAttr(1));
        Type element = getElementTypeOrSelf(imported.output.getType());
        query = DequantizeOp::create(builder, op->getLoc(), type.clone(element),
                                     query, one);
      }
      auto attention = PagedAttentionOp::create(
          builder, op->getLoc(), resultTypes, query, getHandle(layer.cache, op),
          imported.output, Value(), numbers[0], numbers[1], window);
      op->replaceAllUsesWith(attention.getResults());
      if (imported.quantization)
        attention->setAttr(kQueryScale, FlatSymbolRefAttr::get(
                                            getQueryScaleName(layer.cache)));
      created = attention;
      ++numAttentions;
      break;
    }
    case ForeignOpKind::CalculateScales:
      // A handle of its own: nothing of it is left when the op is dropped.
      created = CalculateScalesOp::create(
          builder, op->getLoc(), imported.query, imported.key, imported.value,
          makeHandle(layer.cache, op->getLoc()));
      for (OpResult result : op->getResults())
        result.replaceAllUsesWith(
            imported.call.getMutatedOperand(result.getResultNumber()));
      ++numCalculations;
      break;
    }
    keepOtherAttrs(imported.call, created);
    dead.push_back(op);
    if (Operation *declaration = imported.call.getDeclaration())
      declarations.insert(declaration);
  }
  for (auto &[op, attention] : quantizations) {
    if (Operation *declaration = attention->quantization->getDeclaration())
      declarations.insert(declaration);
    quantizeQuery(op, *attention, layers[attention->layer].cache, builder);
  }
  // An attention uses the result of an update, which stands above it.
  for (Operation *op : llvm::reverse(dead))
    op->erase();
  if (declarations.empty())
    return;
  llvm::DenseSet<StringAttr> used;
  if (auto uses = SymbolTable::getSymbolUses(getOperation()))
    for (const SymbolTable::SymbolUse &use : *uses)
      used.insert(use.getSymbolRef().getRootReference());
  for (Operation *declaration : declarations)
    if (!used.contains(SymbolTable::getSymbolName(declaration)))
      declaration->erase();
}

void ImportPass::runOnOperation() {
  calls.clear();
  layers.clear();
  quantizations.clear();
  if (failed(checkOptions()) || failed(collect()) || failed(checkAll()))
    return signalPassFailure();

  bool hasAttention = llvm::any_of(
      layers, [](auto &entry) { return !entry.second.attentions.empty(); });
  if (!hasAttention)
    hasAttention =
        getOperation()
            ->walk([](PagedAttentionOp) { return WalkResult::interrupt(); })
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
