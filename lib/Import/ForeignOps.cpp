//===- ForeignOps.cpp - Custom ops of serving stacks in a graph
//-------------===//

#include "kvcache/Import/ForeignOps.h"
#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "llvm/ADT/STLExtras.h"
#include "llvm/ADT/StringExtras.h"

using namespace mlir;
using namespace mlir::kvcache;

const ForeignOperand *ForeignOpSpec::findOperand(StringRef operandName) const {
  auto *it = llvm::find_if(operands, [&](const ForeignOperand &operand) {
    return operand.name == operandName;
  });
  return it == operands.end() ? nullptr : it;
}

const ForeignOpSpec *ForeignOpTable::find(StringRef name) const {
  auto *it = llvm::find_if(
      specs, [&](const ForeignOpSpec &spec) { return spec.name == name; });
  return it == specs.end() ? nullptr : it;
}

bool ForeignOpTable::isOfKnownFamily(StringRef name) {
  if (name.starts_with("_C_cache_ops."))
    return true;
  if (!name.consume_front("vllm."))
    return false;
  return name.contains("attention") || name.contains("kv_cache") ||
         name.contains("kv_scales");
}

ForeignOpTable ForeignOpTable::getDefault() {
  using Role = ForeignOperandRole;
  const char *quantizedOutput =
      "it quantizes the attention output, which is not supported; export the "
      "model without fusing "
      "the quantization of the attention output, so that the output is f16 or "
      "bf16";
  ForeignOpTable table;
  // Schemas: vLLM 0.33.0.
  table.add({"vllm.unified_kv_cache_update",
             ForeignOpKind::CacheUpdate,
             {{"key", Role::Key, true, ""}, {"value", Role::Value, true, ""}}});
  // Key and value are missing where the layer reads another layer's cache.
  table.add({"vllm.unified_attention_with_output",
             ForeignOpKind::Attention,
             {{"query", Role::Query, true, ""},
              {"key", Role::Key, false, ""},
              {"value", Role::Value, false, ""},
              {"output", Role::Output, true, ""},
              {"output_scale", Role::Refused, false, quantizedOutput},
              {"output_block_scale", Role::Refused, false, quantizedOutput},
              {"kv_cache_dummy_dep", Role::Order, false, ""}}});
  table.add({"_C_cache_ops.reshape_and_cache_flash",
             ForeignOpKind::CacheUpdate,
             {{"key", Role::Key, true, ""},
              {"value", Role::Value, true, ""},
              {"key_cache", Role::Replaced, true, ""},
              {"value_cache", Role::Replaced, true, ""},
              {"slot_mapping", Role::Replaced, true, ""},
              {"k_scale", Role::Replaced, true, ""},
              {"v_scale", Role::Replaced, true, ""}},
             /*namesLayer=*/false});
  // Removed from vLLM in July 2026; graphs that were exported before have it.
  table.add({"vllm.maybe_calc_kv_scales",
             ForeignOpKind::CalculateScales,
             {{"query", Role::Query, true, ""},
              {"key", Role::Key, true, ""},
              {"value", Role::Value, true, ""}}});
  return table;
}

/// "vllm::name", "torch.vllm.name" and "vllm.name.default" are "vllm.name".
static std::string normalizeName(StringRef name) {
  name.consume_front("torch.ops.");
  name.consume_front("torch.");
  name.consume_back(".default");
  std::string result;
  for (size_t pos; (pos = name.find("::")) != StringRef::npos;
       name = name.drop_front(pos + 2))
    result += name.take_front(pos).str() + ".";
  return result + name.str();
}

std::optional<ForeignCall> ForeignCall::match(Operation *op,
                                              SymbolTableCollection &symbols) {
  ForeignCall call;
  call.op = op;
  if (auto funcCall = dyn_cast<func::CallOp>(op)) {
    auto callee = symbols.lookupNearestSymbolFrom<func::FuncOp>(
        op, funcCall.getCalleeAttr());
    auto target =
        callee ? callee->getAttrOfType<StringAttr>("torch.op") : StringAttr();
    if (!target || !callee.isDeclaration())
      return std::nullopt;
    call.form = Form::Call;
    call.name = normalizeName(target.getValue());
    call.declaration = callee;
    if (auto dict = callee->getAttrOfType<DictionaryAttr>("torch.attrs"))
      call.attributes = dict.getValue();
    call.operandNames = callee->getAttrOfType<ArrayAttr>("torch.operands");
    call.mutated = callee->getAttrOfType<ArrayAttr>("torch.mutated");
    return call;
  }
  if (op->isRegistered())
    return std::nullopt;
  StringRef opName = op->getName().getStringRef();
  if (opName == "torch.operator") {
    auto target = op->getAttrOfType<StringAttr>("name");
    if (!target)
      return std::nullopt;
    call.form = Form::TorchOperator;
    call.name = normalizeName(target.getValue());
    return call;
  }
  if (opName == "stablehlo.custom_call") {
    auto target = op->getAttrOfType<StringAttr>("call_target_name");
    if (!target)
      return std::nullopt;
    call.form = Form::CustomCall;
    call.name = normalizeName(target.getValue());
    if (auto dict = op->getAttrOfType<DictionaryAttr>("backend_config"))
      call.attributes = dict.getValue();
    call.operandNames =
        dyn_cast_or_null<ArrayAttr>(call.getAttr("operand_names"));
    return call;
  }
  call.name = normalizeName(opName);
  call.attributes = op->getAttrs();
  call.operandNames = op->getAttrOfType<ArrayAttr>("operand_names");
  call.mutated = op->getAttrOfType<ArrayAttr>("mutated");
  return call;
}

Attribute ForeignCall::getAttr(StringRef attrName) const {
  for (NamedAttribute attr : attributes)
    if (attr.getName() == attrName)
      return attr.getValue();
  return {};
}

std::optional<StringRef> ForeignCall::getLayerName() const {
  if (auto attr = dyn_cast_or_null<StringAttr>(getAttr("layer_name")))
    return attr.getValue();
  if (form != Form::TorchOperator)
    return std::nullopt;
  for (Value operand : op->getOperands())
    if (Operation *def = operand.getDefiningOp())
      if (def->getName().getStringRef() == "torch.constant.str")
        if (auto value = def->getAttrOfType<StringAttr>("value"))
          return value.getValue();
  return std::nullopt;
}

Value ForeignCall::getMutatedOperand(unsigned index) const {
  Value operand;
  if (mutated && operandNames) {
    if (index >= mutated.size())
      return {};
    for (auto [name, value] : llvm::zip(operandNames, op->getOperands()))
      if (name == mutated[index])
        operand = value;
  } else if (index < op->getNumOperands()) {
    operand = op->getOperand(index);
  }
  if (!operand || operand.getType() != op->getResult(index).getType())
    return {};
  return operand;
}
