//===- ForeignOps.cpp - Custom ops of serving stacks in a graph -----------===//

#include "kvcache/Import/ForeignOps.h"
#include "mlir/AsmParser/AsmParser.h"
#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "llvm/ADT/STLExtras.h"
#include "llvm/ADT/StringExtras.h"
#include "llvm/ADT/StringSet.h"

using namespace mlir;
using namespace mlir::kvcache;

//===----------------------------------------------------------------------===//
// The table
//===----------------------------------------------------------------------===//

const ForeignOperand *ForeignOpSpec::findOperand(StringRef operandName) const {
  auto *it = llvm::find_if(operands, [&](const ForeignOperand &operand) {
    return operand.name == operandName;
  });
  return it == operands.end() ? nullptr : it;
}

StringRef ForeignOpSpec::getAttributeName(ForeignAttributeRole role) const {
  for (const ForeignAttribute &attribute : attributes)
    if (attribute.role == role)
      return attribute.name;
  switch (role) {
  case ForeignAttributeRole::LayerName:
    return "layer_name";
  case ForeignAttributeRole::CacheDtype:
    return "kv_cache_dtype";
  case ForeignAttributeRole::SoftmaxScale:
    return "softmax_scale";
  case ForeignAttributeRole::SoftCap:
    return "soft_cap";
  case ForeignAttributeRole::SlidingWindow:
    return "sliding_window";
  case ForeignAttributeRole::Window:
  case ForeignAttributeRole::QueryHeads:
  case ForeignAttributeRole::KVHeads:
  case ForeignAttributeRole::Refused:
  case ForeignAttributeRole::Ignored:
    return "";
  }
  llvm_unreachable("all roles are handled");
}

void ForeignOpTable::add(ForeignOpSpec spec) {
  llvm::erase_if(specs, [&](const ForeignOpSpec &other) {
    return other.name == spec.name;
  });
  specs.push_back(std::move(spec));
}

const ForeignOpSpec *ForeignOpTable::find(StringRef name) const {
  auto *it = llvm::find_if(
      specs, [&](const ForeignOpSpec &spec) { return spec.name == name; });
  return it == specs.end() ? nullptr : it;
}

bool ForeignOpTable::isOfKnownFamily(StringRef name) {
  if (name.starts_with("_C_cache_ops.") || name.starts_with("kvcache."))
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
  const char *blockScales =
      "it quantizes blocks of the attention output, which is not supported; "
      "export the model without fusing the quantization of the attention "
      "output, or with one scale for it";
  ForeignOpTable table;
  // Schemas: vLLM 0.33.0.
  table.add({"vllm.unified_kv_cache_update",
             ForeignOpKind::CacheUpdate,
             {{"key", Role::Key},
              {"value", Role::Value},
              {"layer_name", Role::Attribute, false}}});
  // Key and value are missing where the layer reads another layer's cache.
  table.add({"vllm.unified_attention_with_output",
             ForeignOpKind::Attention,
             {{"query", Role::Query},
              {"key", Role::Key, false},
              {"value", Role::Value, false},
              {"output", Role::Output},
              {"layer_name", Role::Attribute, false},
              {"output_scale", Role::OutputScale, false},
              {"output_block_scale", Role::Refused, false, blockScales},
              {"kv_cache_dummy_dep", Role::Order, false}},
             {"output"}});
  ForeignOpSpec latentUpdate = {"vllm.unified_mla_kv_cache_update",
                                ForeignOpKind::CacheUpdate,
                                {{"kv_c_normed", Role::Key},
                                 {"k_pe", Role::Value},
                                 {"layer_name", Role::Attribute, false},
                                 {"kv_cache_dtype", Role::Attribute, false},
                                 {"k_scale", Role::Replaced}}};
  latentUpdate.isLatent = true;
  table.add(std::move(latentUpdate));
  const char *contextParallel =
      "it spreads one sequence over ranks (decode context parallelism), which "
      "is not supported; export the model without it";
  ForeignOpSpec latentAttention = {
      "vllm.unified_mla_attention_with_output",
      ForeignOpKind::Attention,
      {{"q", Role::Query},
       {"kv_c_normed", Role::Key},
       {"k_pe", Role::Value},
       {"output", Role::Output},
       {"layer_name", Role::Attribute, false},
       {"output_scale", Role::Refused, false, quantizedOutput},
       {"output_block_scale", Role::Refused, false, quantizedOutput},
       {"kv_cache_dummy_dep", Role::Order, false},
       {"quant_group_size", Role::Refused, false, quantizedOutput},
       {"quant_scale_ue8m0", Role::Refused, false, quantizedOutput},
       {"quant_col_major", Role::Refused, false, quantizedOutput},
       {"quant_tma_aligned", Role::Refused, false, quantizedOutput},
       {"q_dcp_replicated", Role::Refused, false, contextParallel}},
      {"output"}};
  latentAttention.isLatent = true;
  table.add(std::move(latentAttention));
  table.add({"_C_cache_ops.reshape_and_cache_flash",
             ForeignOpKind::CacheUpdate,
             {{"key", Role::Key},
              {"value", Role::Value},
              {"key_cache", Role::Replaced},
              {"value_cache", Role::Replaced},
              {"slot_mapping", Role::Replaced},
              {"kv_cache_dtype", Role::Attribute, false},
              {"k_scale", Role::Replaced},
              {"v_scale", Role::Replaced}},
             {"key_cache", "value_cache"},
             /*namesLayer=*/false});
  table.add({"_C.static_scaled_fp8_quant",
             ForeignOpKind::QuantizeQuery,
             {{"result", Role::Output},
              {"input", Role::Query},
              {"scale", Role::Replaced},
              {"group_shape", Role::Refused, false,
               "it quantizes by groups, which is not supported for a query; "
               "export the model with one q scale a layer"}},
             {"result"},
             /*namesLayer=*/false});
  // Removed from vLLM in July 2026; graphs that were exported before have it.
  table.add({"vllm.maybe_calc_kv_scales",
             ForeignOpKind::CalculateScales,
             {{"query", Role::Query},
              {"key", Role::Key},
              {"value", Role::Value},
              {"layer_name", Role::Attribute, false}},
             {"query", "key", "value"}});
  // For front ends that have no custom ops: StableHLO composites.
  table.add({"kvcache.write",
             ForeignOpKind::CacheUpdate,
             {{"key", Role::Key},
              {"value", Role::Value},
              {"key_pages", Role::KeyPages, false},
              {"value_pages", Role::ValuePages, false},
              {"page_table", Role::PageTable, false},
              {"lengths", Role::Lengths, false},
              {"query_start", Role::QueryStart, false},
              {"slots", Role::Slots, false}},
             {"key_pages", "value_pages"},
             /*namesLayer=*/true,
             {},
             "",
             /*positional=*/true});
  table.add({"kvcache.paged_attention",
             ForeignOpKind::Attention,
             {{"query", Role::Query},
              {"order", Role::Order, false},
              {"output", Role::Output, false},
              {"key_pages", Role::KeyPages, false},
              {"value_pages", Role::ValuePages, false},
              {"page_table", Role::PageTable, false},
              {"lengths", Role::Lengths, false},
              {"query_start", Role::QueryStart, false},
              {"slots", Role::Slots, false},
              {"sinks", Role::Sinks, false},
              {"alibi_slopes", Role::ALiBiSlopes, false}},
             {"output"},
             /*namesLayer=*/true,
             {{"window", ForeignAttributeRole::Window}},
             "",
             /*positional=*/true});
  return table;
}

//===----------------------------------------------------------------------===//
// Types
//===----------------------------------------------------------------------===//

Type mlir::kvcache::getBuiltinTensorType(Type type) {
  if (type.getDialect().getNamespace() != "torch" && !isa<OpaqueType>(type))
    return type;
  // The text is the same whether the dialect of the type is linked or not.
  std::string text;
  llvm::raw_string_ostream(text) << type;
  StringRef rest = text;
  SmallVector<int64_t> shape;
  if (!rest.consume_front("!torch.vtensor<[") || !rest.consume_back(">"))
    return type;
  auto [sizes, element] = rest.split(']');
  while (!sizes.trim().empty()) {
    auto [size, others] = sizes.split(',');
    int64_t value = ShapedType::kDynamic;
    if (size.trim() != "?" && size.trim().getAsInteger(10, value))
      return type;
    shape.push_back(value);
    sizes = others;
  }
  if (!element.consume_front(","))
    return type;
  MLIRContext *context = type.getContext();
  // A type that is no element type is an error of whoever asks for the tensor.
  ScopedDiagnosticHandler silence(context, [](Diagnostic &) {});
  Type elementType = parseType(element, context);
  if (auto integer = dyn_cast_or_null<IntegerType>(elementType))
    elementType = IntegerType::get(context, integer.getWidth());
  if (!elementType || !RankedTensorType::isValidElementType(elementType))
    return type;
  return RankedTensorType::get(shape, elementType);
}

//===----------------------------------------------------------------------===//
// Calls
//===----------------------------------------------------------------------===//

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

/// All attributes. Those between `<{` and `}>` of an op that is not registered
/// are in its properties only.
static SmallVector<NamedAttribute> getAllAttrs(Operation *op) {
  SmallVector<NamedAttribute> attrs(op->getAttrDictionary().getValue());
  if (!op->isRegistered())
    if (auto properties =
            dyn_cast_or_null<DictionaryAttr>(op->getPropertiesAsAttribute()))
      for (NamedAttribute attr : properties)
        if (!llvm::is_contained(attrs, attr))
          attrs.push_back(attr);
  return attrs;
}

std::optional<ForeignCall> ForeignCall::match(Operation *op,
                                              SymbolTableCollection &symbols) {
  ForeignCall call;
  call.op = op;
  auto getString = [&](StringRef attrName) {
    auto attr = op->getAttrOfType<StringAttr>(attrName);
    return attr ? attr.getValue() : StringRef();
  };
  auto readNames = [&] {
    call.operandNames =
        dyn_cast_or_null<ArrayAttr>(call.getAttr("operand_names"));
    call.mutated = dyn_cast_or_null<ArrayAttr>(call.getAttr("mutated"));
  };
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
      llvm::append_range(call.attributes, dict);
    call.operandNames = callee->getAttrOfType<ArrayAttr>("torch.operands");
    call.mutated = callee->getAttrOfType<ArrayAttr>("torch.mutated");
    return call;
  }
  StringRef opName = op->getName().getStringRef();
  auto readDictionary = [&](Form form, StringRef target, StringRef attrName) {
    call.form = form;
    call.name = normalizeName(target);
    if (auto dict = op->getAttrOfType<DictionaryAttr>(attrName))
      llvm::append_range(call.attributes, dict);
    readNames();
  };
  if (opName == "torch.operator") {
    if (getString("name").empty())
      return std::nullopt;
    call.form = Form::TorchOperator;
    call.name = normalizeName(getString("name"));
    for (NamedAttribute attr : getAllAttrs(op))
      if (attr.getName() != "name")
        call.attributes.push_back(attr);
    readNames();
    return call;
  }
  if (opName == "stablehlo.custom_call") {
    if (getString("call_target_name").empty())
      return std::nullopt;
    readDictionary(Form::CustomCall, getString("call_target_name"),
                   "backend_config");
    return call;
  }
  if (opName == "stablehlo.composite") {
    if (getString("name").empty())
      return std::nullopt;
    readDictionary(Form::Composite, getString("name"), "composite_attributes");
    if (auto body = op->getAttrOfType<FlatSymbolRefAttr>("decomposition"))
      call.declaration = symbols.lookupNearestSymbolFrom(op, body);
    return call;
  }
  if (op->isRegistered())
    return std::nullopt;
  if (opName == "onnx.Custom") {
    if (getString("function_name").empty())
      return std::nullopt;
    call.form = Form::OnnxCustom;
    StringRef domain = getString("domain_name");
    call.name =
        (domain + (domain.empty() ? "" : ".") + getString("function_name"))
            .str();
  } else {
    call.name = normalizeName(opName);
  }
  call.attributes = getAllAttrs(op);
  readNames();
  return call;
}

/// The value of a `torch.constant.*`, or null.
static Attribute getTorchConstant(Value value) {
  Operation *def = value.getDefiningOp();
  if (!def || !def->getName().getStringRef().starts_with("torch.constant."))
    return {};
  return def->getAttr("value");
}

/// True for the absent operand of torch and ONNX.
static bool isNone(Value value) {
  if (isa<NoneType>(value.getType()))
    return true;
  Operation *def = value.getDefiningOp();
  return def && def->getName().getStringRef() == "torch.constant.none";
}

std::string ForeignOpSpec::listOperands() const {
  SmallVector<StringRef> names;
  for (const ForeignOperand &operand : operands)
    if (operand.role != ForeignOperandRole::Refused &&
        operand.role != ForeignOperandRole::Attribute)
      names.push_back(operand.name);
  return llvm::join(names, ", ");
}

LogicalResult
ForeignCall::readOperands(const ForeignOpSpec &spec,
                          function_ref<InFlightDiagnostic()> emitError) {
  schema = &spec;
  SmallVector<StringAttr> names;
  operands.clear();
  if (operandNames) {
    if (operandNames.size() != op->getNumOperands())
      return emitError() << "has " << op->getNumOperands() << " operands but "
                         << operandNames.size() << " 'operand_names'";
    for (Attribute attr : operandNames) {
      auto name = dyn_cast<StringAttr>(attr);
      if (!name)
        return emitError() << "has a name among its 'operand_names' that is no "
                              "string: "
                           << attr
                           << "; expected names from: " << spec.listOperands();
      names.push_back(name);
    }
  } else if (form == Form::TorchOperator || spec.positional) {
    if (op->getNumOperands() > spec.operands.size())
      return emitError() << "has " << op->getNumOperands()
                         << " operands; expected at most "
                         << spec.operands.size()
                         << ", those of its schema, or 'operand_names'";
    for (const ForeignOperand &operand : spec.operands)
      names.push_back(StringAttr::get(op->getContext(), operand.name));
  } else {
    return emitError() << "has no 'operand_names', so what its "
                       << op->getNumOperands()
                       << " operands are is unknown; expected names from: "
                       << spec.listOperands();
  }
  llvm::StringSet<> seen;
  for (auto [name, operand] : llvm::zip(names, op->getOpOperands())) {
    const ForeignOperand *known = spec.findOperand(name.getValue());
    if (!known)
      return emitError() << "has an unknown operand " << Attribute(name)
                         << "; expected names from: " << spec.listOperands();
    if (!seen.insert(name.getValue()).second)
      return emitError() << "has two operands named " << Attribute(name);
    if (isNone(operand.get()))
      continue;
    if (known->role != ForeignOperandRole::Attribute)
      operands.push_back({name, &operand});
    else if (Attribute value = getTorchConstant(operand.get()))
      attributes.push_back(NamedAttribute(name, value));
  }
  return success();
}

Attribute ForeignCall::getAttr(StringRef attrName) const {
  for (NamedAttribute attr : attributes)
    if (attr.getName() == attrName)
      return attr.getValue();
  return {};
}

OpOperand *ForeignCall::getOperand(StringRef operandName) const {
  for (auto &[name, operand] : operands)
    if (name == operandName)
      return operand;
  return nullptr;
}

std::optional<StringRef>
ForeignCall::getLayerName(const ForeignOpSpec &spec) const {
  StringRef attrName = spec.getAttributeName(ForeignAttributeRole::LayerName);
  Attribute layer = getAttr(attrName);
  // A constant of torch is an operand until readOperands() has seen it.
  if (!layer && form == Form::TorchOperator)
    for (auto [index, operand] : llvm::enumerate(op->getOperands())) {
      StringRef name;
      if (!operandNames && index < spec.operands.size())
        name = spec.operands[index].name;
      else if (operandNames && index < operandNames.size())
        if (auto attr = dyn_cast<StringAttr>(operandNames[index]))
          name = attr.getValue();
      if (name == attrName)
        layer = getTorchConstant(operand);
    }
  if (auto name = dyn_cast_or_null<StringAttr>(layer))
    return name.getValue();
  return std::nullopt;
}

/// The operand that `output_operand_aliases` gives for a result: its entries
/// are `#stablehlo.output_operand_alias<output_tuple_indices = [I],
/// operand_index = N, operand_tuple_indices = []>`, with `[]` for the only
/// result.
static std::optional<unsigned> findAlias(Operation *op, unsigned index) {
  auto aliases = op->getAttrOfType<ArrayAttr>("output_operand_aliases");
  if (!aliases)
    return std::nullopt;
  for (Attribute attr : aliases) {
    std::string text;
    llvm::raw_string_ostream(text) << attr;
    StringRef tuple = StringRef(text).split("output_tuple_indices").second;
    tuple = tuple.split('[').second.split(']').first.trim();
    StringRef number = StringRef(text).split("operand_index").second;
    number = number.split('=').second.split(',').first.trim();
    unsigned result = 0, operand;
    if (!tuple.empty() && tuple.getAsInteger(10, result))
      continue;
    if (result == index && !number.getAsInteger(10, operand) &&
        operand < op->getNumOperands())
      return operand;
  }
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
  } else if (std::optional<unsigned> alias = findAlias(op, index)) {
    operand = op->getOperand(*alias);
  } else if (schema && !schema->results.empty()) {
    // Absent operands do not come back.
    SmallVector<OpOperand *> present;
    for (const std::string &name : schema->results)
      if (OpOperand *found = getOperand(name))
        present.push_back(found);
      else if (name == "output")
        present.push_back(nullptr);
    if (index < present.size() && present[index])
      operand = present[index]->get();
  } else if (!schema && index < op->getNumOperands()) {
    operand = op->getOperand(index);
  }
  if (!operand || operand.getType() != op->getResult(index).getType())
    return {};
  return operand;
}
