//===- FindOps.cpp - The foreign ops of a graph, and what each operand is -===//

#include "Importer.h"
#include "mlir/Dialect/Tensor/IR/Tensor.h"
#include "mlir/IR/Matchers.h"
#include "mlir/Interfaces/FunctionInterfaces.h"
#include "llvm/ADT/StringExtras.h"
#include "llvm/ADT/StringSet.h"

using namespace mlir;
using namespace mlir::kvcache;

bool mlir::kvcache::isUnset(const ForeignAttribute &attribute, Attribute attr) {
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

/// An attribute by its role; null where it has the value that says nothing.
Attribute ImportedCall::getAttr(ForeignAttributeRole role) const {
  Attribute attr = call.getAttr(spec->getAttributeName(role));
  for (const ForeignAttribute &attribute : spec->attributes)
    if (attribute.role == role && isUnset(attribute, attr))
      return {};
  return attr;
}

std::string Importer::listSupported() const {
  return llvm::join(llvm::map_range(settings.table.getSpecs(),
                                    [](const ForeignOpSpec &spec) {
                                      return "'" + spec.name + "'";
                                    }),
                    ", ");
}

static const char *const kOpaqueName =
    "caches are found by layer name, and this op's is lost: PyTorch from 2.11 "
    "on may pass an opaque LayerName object, which does not survive export; "
    "export the model again with VLLM_USE_LAYERNAME=0, so that layer_name is a "
    "string";

LogicalResult Importer::findLayerName(ImportedCall &imported) {
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

LogicalResult Importer::findOperands(ImportedCall &imported) {
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
    case ForeignOperandRole::Sinks:
      imported.sinks.operand = operand;
      break;
    case ForeignOperandRole::ALiBiSlopes:
      imported.alibiSlopes.operand = operand;
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

LogicalResult Importer::collect() {
  SymbolTableCollection symbols;
  LogicalResult result = success();
  SmallVector<ImportedCall *> unnamed;
  module.walk([&](Operation *op) {
    std::optional<ForeignCall> call = ForeignCall::match(op, symbols);
    if (!call)
      return;
    const ForeignOpSpec *spec = settings.table.find(call->getName());
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
      if (std::optional<StringRef> layer = call->getLayerName(*spec))
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

/// An update that names pages instead of a layer writes the rows that the
/// attention of its layer has too.
LogicalResult Importer::findLayerByRows(ImportedCall &imported) {
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
LogicalResult Importer::findQuantization(ImportedCall &imported) {
  auto query = dyn_cast<RankedTensorType>(imported.query.getType());
  if (!query || !isa<Float8E4M3FNType>(query.getElementType()))
    return success();
  Value codes = imported.query;
  Operation *reader = imported.op();
  std::optional<ForeignCall> call =
      findQuantizer(codes, reader, settings.table);
  while (!call) {
    Operation *def = codes.getDefiningOp();
    if (!def || !(isa<tensor::ExpandShapeOp, tensor::CollapseShapeOp>(def) ||
                  isForeignView(def)))
      return success();
    reader = def;
    codes = def->getOperand(0);
    call = findQuantizer(codes, reader, settings.table);
  }
  Operation *op = call->getOperation();
  auto emitError = [&] {
    return op->emitError() << "'" << call->getName() << "' of the query of "
                           << "layer '" << imported.layer << "' ";
  };
  const ForeignOpSpec *spec = settings.table.find(call->getName());
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
