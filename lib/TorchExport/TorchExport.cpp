//===- TorchExport.cpp - Programs of torch.export -------------------------===//
//
// The schema is torch/_export/serde/schema.py, version 8.
//
//===----------------------------------------------------------------------===//

#include "kvcache/TorchExport/TorchExport.h"
#include "Archive.h"
#include "kvcache/IR/KVCache.h"
#include "kvcache/Support/Json.h"
#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "mlir/IR/Builders.h"
#include "mlir/Tools/mlir-translate/Translation.h"
#include "llvm/ADT/STLExtras.h"
#include "llvm/ADT/StringExtras.h"
#include "llvm/ADT/StringMap.h"
#include "llvm/Support/JSON.h"
#include "llvm/Support/SourceMgr.h"

using namespace mlir;
using namespace mlir::kvcache;
namespace json = llvm::json;

namespace {

/// One scalar type in its three spellings.
struct ScalarType {
  int64_t schema; ///< torch.export's ScalarType
  int64_t torch;  ///< c10::ScalarType, as a dtype operand
  StringLiteral type;
};
constexpr ScalarType kScalarTypes[] = {
    {1, 0, "ui8"},           {2, 1, "si8"},
    {3, 2, "si16"},          {4, 3, "si32"},
    {5, 4, "si64"},          {6, 5, "f16"},
    {7, 6, "f32"},           {8, 7, "f64"},
    {10, 9, "complex<f32>"}, {11, 10, "complex<f64>"},
    {12, 11, "i1"},          {13, 15, "bf16"},
    {28, 27, "ui16"},        {29, 24, "f8E4M3FN"},
    {30, 23, "f8E5M2"},      {31, 26, "f8E4M3FNUZ"},
    {32, 25, "f8E5M2FNUZ"}};

/// Position in the list is the schema's number less one, value is c10's.
constexpr int64_t kMemoryFormats[] = {0, 2, 3, 1};

class GraphReader {
public:
  GraphReader(StringRef name, MLIRContext *context)
      : name(name), context(context), builder(context) {}
  OwningOpRef<ModuleOp> read(const json::Value &document);

private:
  StringRef name;
  MLIRContext *context;
  OpBuilder builder;
  std::string fault;

  const json::Object *tensors = nullptr, *symInts = nullptr;
  llvm::StringMap<Value> values;

  /// An argument of a node: what it is called and what it is.
  struct Argument {
    std::string name;
    const json::Object *value;
    std::string where;
  };
  using Arguments = SmallVector<Argument, 0>;

  Type torchType(const Twine &text) {
    return OpaqueType::get(builder.getStringAttr("torch"), text.str());
  }

  /// Keeps the first fault.
  void fail(const Twine &where, const Twine &what) {
    if (fault.empty())
      fault = (where + ": " + what).str();
  }

  const json::Object &getObject(const json::Object &object, StringRef key,
                                const Twine &where) {
    static const json::Object empty;
    if (const json::Object *found = object.getObject(key))
      return *found;
    fail(where + "." + key, "expected an object");
    return empty;
  }
  const json::Array &getArray(const json::Object &object, StringRef key,
                              const Twine &where) {
    static const json::Array empty;
    if (const json::Array *found = object.getArray(key))
      return *found;
    fail(where + "." + key, "expected an array");
    return empty;
  }
  std::string getString(const json::Object &object, StringRef key,
                        const Twine &where) {
    if (std::optional<StringRef> found = object.getString(key))
      return found->str();
    fail(where + "." + key, "expected a string");
    return "";
  }
  const json::Object &asObject(const json::Value &value, const Twine &where) {
    static const json::Object empty;
    if (const json::Object *found = value.getAsObject())
      return *found;
    fail(where, "expected an object");
    return empty;
  }

  /// The only key of a union of the schema, and its value.
  std::pair<StringRef, const json::Value *> getCase(const json::Object &object,
                                                    const Twine &where) {
    static const json::Value null(nullptr);
    if (object.size() == 1)
      return {StringRef(object.begin()->first), &object.begin()->second};
    fail(where, "expected an object with one member");
    return {"", &null};
  }

  Operation *create(StringRef op, ValueRange operands, TypeRange results,
                    ArrayRef<NamedAttribute> attributes = {}) {
    OperationState state(builder.getUnknownLoc(), op, operands, results,
                         attributes);
    return builder.create(state);
  }
  /// A `torch.operator` that stands for `target`.
  Operation *createOperator(StringRef target, ValueRange operands,
                            ArrayRef<StringRef> names, TypeRange results,
                            ArrayRef<StringRef> mutated = {}) {
    NamedAttrList attributes;
    attributes.append("name", builder.getStringAttr("torch." + target));
    attributes.append("operand_names", builder.getStrArrayAttr(names));
    if (!mutated.empty())
      attributes.append("mutated", builder.getStrArrayAttr(mutated));
    return create("torch.operator", operands, results, attributes);
  }
  Value constant(StringRef kind, Attribute value, const Twine &type) {
    SmallVector<NamedAttribute, 1> attributes;
    if (value)
      attributes.push_back(builder.getNamedAttr("value", value));
    return create(("torch.constant." + kind).str(), {}, torchType(type),
                  attributes)
        ->getResult(0);
  }
  Value constantInt(int64_t value) {
    return constant("int", builder.getI64IntegerAttr(value), "int");
  }
  Value list(ArrayRef<Value> elements, const Twine &type) {
    return create("torch.prim.ListConstruct", elements,
                  torchType("list<" + type + ">"))
        ->getResult(0);
  }

  Type getTensorType(StringRef tensor, const Twine &where);
  Value lookup(const json::Object &reference, StringRef key,
               const Twine &where);
  Value getSymInt(const json::Object &value, const Twine &where);
  Value getArgument(const json::Object &argument, const std::string &where);

  void readNode(const json::Object &node, const std::string &where);
  void define(Value value, const std::string &symbol) {
    values[symbol] = value;
  }
  void emitCall(StringRef target, const Arguments &arguments,
                const json::Array &outputs, const std::string &where);
  void emitFunctionalized(StringRef target, const Arguments &arguments,
                          const json::Array &outputs, const std::string &where);
  bool coversBase(const Arguments &arguments, StringRef mutated, StringRef base,
                  SmallVectorImpl<int64_t> &baseSizes,
                  const std::string &where);
};

} // namespace

//===----------------------------------------------------------------------===//
// Types and values
//===----------------------------------------------------------------------===//

Type GraphReader::getTensorType(StringRef tensor, const Twine &where) {
  const json::Object *meta = tensors->getObject(tensor);
  Type none = torchType("none");
  if (!meta) {
    fail(where, "tensor_values has no '" + tensor + "'");
    return none;
  }
  std::string at = ("tensor_values." + tensor).str();
  std::optional<int64_t> dtype = meta->getInteger("dtype");
  const ScalarType *scalar =
      llvm::find_if(kScalarTypes, [&](const ScalarType &candidate) {
        return candidate.schema == dtype;
      });
  if (!dtype || scalar == std::end(kScalarTypes)) {
    fail(at + ".dtype", "expected a scalar type of the schema");
    return none;
  }
  SmallVector<std::string> sizes;
  for (const json::Value &size : getArray(*meta, "sizes", at)) {
    std::optional<int64_t> number =
        asObject(size, at + ".sizes").getInteger("as_int");
    sizes.push_back(number ? std::to_string(*number) : "?");
  }
  return torchType("vtensor<[" + llvm::join(sizes, ",") + "]," + scalar->type +
                   ">");
}

Value GraphReader::lookup(const json::Object &reference, StringRef key,
                          const Twine &where) {
  std::string symbol = getString(reference, key, where);
  auto it = values.find(symbol);
  if (it != values.end())
    return it->second;
  fail(where, "'" + symbol + "' is used before it is defined");
  return constant("none", {}, "none");
}

Value GraphReader::getSymInt(const json::Object &value, const Twine &where) {
  if (std::optional<int64_t> number = value.getInteger("as_int"))
    return constantInt(*number);
  return lookup(value, "as_name", where);
}

Value GraphReader::getArgument(const json::Object &argument,
                               const std::string &where) {
  StringRef kind;
  const json::Value *value;
  std::tie(kind, value) = getCase(argument, where);
  auto unknown = [&]() -> Value {
    fail(where, "'" + kind + "' is not supported");
    return constant("none", {}, "none");
  };
  auto scalar = [&](const json::Value &element, StringRef type) -> Value {
    if (type == "int") {
      if (std::optional<int64_t> number = element.getAsInteger())
        return constantInt(*number);
    } else if (type == "bool") {
      if (std::optional<bool> flag = element.getAsBoolean())
        return constant("bool", builder.getBoolAttr(*flag), "bool");
    } else if (type == "string") {
      if (std::optional<StringRef> text = element.getAsString())
        return constant("str", builder.getStringAttr(*text), "str");
    } else if (type == "float") {
      double number;
      std::optional<StringRef> text = element.getAsString();
      // JSON has no infinities: they come as words.
      if (std::optional<double> plain = element.getAsNumber())
        return constant("float", builder.getF64FloatAttr(*plain), "float");
      if (text && !text->empty() && !text->getAsDouble(number))
        return constant("float", builder.getF64FloatAttr(number), "float");
    }
    fail(where, "expected a value of the kind '" + kind + "'");
    return constant("none", {}, "none");
  };
  auto tensor = [&](const json::Value &element) {
    return lookup(asObject(element, where), "name", where);
  };

  if (kind == "as_none")
    return constant("none", {}, "none");
  if (kind == "as_tensor")
    return tensor(*value);
  if (kind == "as_sym_int" || kind == "as_sym_float" || kind == "as_sym_bool") {
    const json::Object &symbol = asObject(*value, where);
    auto [inner, literal] = getCase(symbol, where);
    if (inner == "as_name")
      return lookup(symbol, "as_name", where);
    return getArgument(symbol, where);
  }
  if (kind == "as_scalar_type") {
    for (const ScalarType &candidate : kScalarTypes)
      if (candidate.schema == value->getAsInteger())
        return constantInt(candidate.torch);
    return unknown();
  }
  if (kind == "as_memory_format") {
    std::optional<int64_t> number = value->getAsInteger();
    if (number && *number >= 1 && *number <= 4)
      return constantInt(kMemoryFormats[*number - 1]);
    return unknown();
  }
  if (kind == "as_layout") // strided is 7 here and 0 in c10
    return value->getAsInteger() == 7 ? constantInt(0) : unknown();
  if (kind == "as_device") {
    const json::Object &device = asObject(*value, where);
    std::string text = getString(device, "type", where);
    if (std::optional<int64_t> index = device.getInteger("index"))
      text += ":" + std::to_string(*index);
    return constant("device", builder.getStringAttr(text), "Device");
  }
  if (kind == "as_custom_obj") {
    // What it is did not survive the export; who needs it refuses it.
    const json::Object &object = asObject(*value, where);
    std::string type = getString(object, "class_fqn", where);
    return createOperator("export.custom_obj", {}, {},
                          torchType("nn.Module<\"" + type + "\">"))
        ->getResult(0);
  }
  StringRef element = kind;
  if (element.consume_front("as_") && element.consume_back("s")) {
    // The lists.
    const json::Array *array = value->getAsArray();
    if (!array)
      return unknown();
    SmallVector<Value> elements;
    if (element == "tensor" || element == "optional_tensor") {
      for (const json::Value &entry : *array) {
        if (element == "tensor") {
          elements.push_back(tensor(entry));
          continue;
        }
        elements.push_back(getArgument(asObject(entry, where), where));
      }
      return list(elements,
                  element == "tensor" ? "vtensor" : "optional<vtensor>");
    }
    if (element == "sym_int") {
      for (const json::Value &entry : *array)
        elements.push_back(getSymInt(asObject(entry, where), where));
      return list(elements, "int");
    }
    if (llvm::is_contained({"int", "float", "bool", "string"}, element)) {
      for (const json::Value &entry : *array)
        elements.push_back(scalar(entry, element));
      return list(elements, element == "string" ? "str" : element);
    }
    return unknown();
  }
  element = kind;
  element.consume_front("as_");
  if (llvm::is_contained({"int", "float", "bool", "string"}, element))
    return scalar(*value, element);
  return unknown();
}

//===----------------------------------------------------------------------===//
// Nodes
//===----------------------------------------------------------------------===//

/// "vllm.op" of "torch.ops.vllm.op.default".
static StringRef getTarget(StringRef target) {
  target.consume_front("torch.ops.");
  target.consume_back(".default");
  return target;
}

void GraphReader::emitCall(StringRef target, const Arguments &arguments,
                           const json::Array &outputs,
                           const std::string &where) {
  SmallVector<Value> operands;
  SmallVector<StringRef> names;
  for (const Argument &argument : arguments) {
    operands.push_back(getArgument(*argument.value, argument.where));
    names.push_back(argument.name);
  }
  /// What each result is called; a list of tensors is one result with several
  /// names.
  SmallVector<SmallVector<std::string>> symbols;
  SmallVector<Type> types;
  SmallVector<bool> isList;
  for (auto [index, entry] : llvm::enumerate(outputs)) {
    std::string at = (where + ".outputs[" + Twine(index) + "]").str();
    auto [kind, value] = getCase(asObject(entry, at), at);
    if (kind == "as_none")
      continue;
    symbols.emplace_back();
    isList.push_back(kind == "as_tensors");
    if (kind == "as_tensor") {
      symbols.back().push_back(getString(asObject(*value, at), "name", at));
      types.push_back(getTensorType(symbols.back().back(), at));
    } else if (kind == "as_tensors" && value->getAsArray()) {
      for (const json::Value &element : *value->getAsArray())
        symbols.back().push_back(getString(asObject(element, at), "name", at));
      types.push_back(torchType("list<vtensor>"));
    } else if (kind == "as_sym_int" || kind == "as_sym_float" ||
               kind == "as_sym_bool") {
      symbols.back().push_back(getString(asObject(*value, at), "as_name", at));
      types.push_back(torchType(kind.substr(7)));
    } else {
      fail(at, "'" + kind + "' is not supported");
      return;
    }
  }
  Operation *op = createOperator(target, operands, names, types);
  for (auto [index, result] : llvm::enumerate(op->getResults())) {
    if (!isList[index]) {
      define(result, symbols[index].front());
      continue;
    }
    SmallVector<Type> elementTypes;
    for (const std::string &symbol : symbols[index])
      elementTypes.push_back(getTensorType(symbol, where));
    Operation *unpack =
        create("torch.prim.ListUnpack", Value(result), elementTypes);
    for (auto [symbol, element] :
         llvm::zip_equal(symbols[index], unpack->getResults()))
      define(element, symbol);
  }
}

/// True if the view of `mutated` is all of its base, in the same order; the
/// sizes of the base, -1 for one that is not known, are put into `baseSizes`.
bool GraphReader::coversBase(const Arguments &arguments, StringRef mutated,
                             StringRef base,
                             SmallVectorImpl<int64_t> &baseSizes,
                             const std::string &where) {
  auto get = [&](StringRef suffix) -> const json::Object * {
    for (const Argument &argument : arguments)
      if (argument.name == ("_" + mutated + suffix).str())
        return argument.value;
    return nullptr;
  };
  const json::Object *size = get("_size"), *stride = get("_stride"),
                     *offset = get("_storage_offset");
  const json::Object *meta = tensors->getObject(base);
  if (!size || !stride || !offset || !meta || offset->getInteger("as_int") != 0)
    return false;
  // Elements as a product of numbers and of expressions.
  auto describe = [&](const json::Array &sizes, int64_t &product,
                      SmallVectorImpl<std::string> &unknown,
                      SmallVectorImpl<int64_t> &numbers) {
    for (const json::Value &entry : sizes) {
      const json::Object *object = entry.getAsObject();
      std::optional<int64_t> number =
          object ? object->getInteger("as_int") : entry.getAsInteger();
      numbers.push_back(number.value_or(-1));
      if (number) {
        product *= *number;
        continue;
      }
      const json::Object *symbol = object;
      if (object)
        if (std::optional<StringRef> value = object->getString("as_name"))
          symbol = symInts->getObject(*value);
      const json::Object *expression =
          symbol ? symbol->getObject("as_expr") : nullptr;
      std::optional<StringRef> text =
          expression ? expression->getString("expr_str") : std::nullopt;
      unknown.push_back(text ? text->str() : "");
    }
  };
  auto getSizes = [](const json::Object &object) -> const json::Array * {
    const json::Array *array = object.getArray("as_sym_ints");
    return array ? array : object.getArray("as_ints");
  };
  const json::Array *viewSizes = getSizes(*size),
                    *viewStrides = getSizes(*stride),
                    *ownSizes = meta->getArray("sizes");
  if (!viewSizes || !viewStrides || !ownSizes ||
      viewSizes->size() != viewStrides->size())
    return false;
  int64_t viewCount = 1, baseCount = 1, ignored = 1;
  SmallVector<std::string> viewUnknown, baseUnknown, strideUnknown;
  SmallVector<int64_t> numbers, strides;
  describe(*viewSizes, viewCount, viewUnknown, numbers);
  describe(*ownSizes, baseCount, baseUnknown, baseSizes);
  describe(*viewStrides, ignored, strideUnknown, strides);
  int64_t expected = 1;
  for (int64_t i = numbers.size() - 1; i >= 0; --i) {
    if (strides[i] != expected || (i && numbers[i] < 0))
      return false;
    expected *= numbers[i];
  }
  return viewCount == baseCount && viewUnknown == baseUnknown &&
         viewUnknown.size() < 2 && !llvm::is_contained(viewUnknown, "");
}

/// "vtensor<[?,64],bf16>" of a value of this type in torch's dialect.
static StringRef getTypeText(Value value) {
  return cast<OpaqueType>(value.getType()).getTypeData();
}

/// auto_functionalized_v2: mutated operands are views of bases, and the new
/// values of the bases come back behind what the op returns.
void GraphReader::emitFunctionalized(StringRef target,
                                     const Arguments &arguments,
                                     const json::Array &outputs,
                                     const std::string &where) {
  auto find = [&](const Twine &wanted) -> const Argument * {
    std::string text = wanted.str();
    for (const Argument &argument : arguments)
      if (argument.name == text)
        return &argument;
    return nullptr;
  };
  const Argument *all = find("_all_bases");
  const json::Array *bases = all ? all->value->getArray("as_tensors") : nullptr;
  if (!bases || bases->size() > outputs.size())
    return fail(where, "expected _all_bases, a list of tensors, and as many "
                       "outputs");
  SmallVector<std::string> baseNames;
  SmallVector<Value> newBases;
  for (const json::Value &base : *bases) {
    const json::Object &object = asObject(base, all->where);
    baseNames.push_back(getString(object, "name", all->where));
    newBases.push_back(lookup(object, "name", all->where));
    if (!getTypeText(newBases.back()).starts_with("vtensor<["))
      return fail(all->where,
                  "expected tensors, but '" + baseNames.back() + "' is none");
  }

  /// How a mutated operand lies in its base.
  struct Mutated {
    std::string name;
    unsigned base;
    enum { Whole, Reshaped, Strided, Sliced } kind = Whole;
    SmallVector<int64_t> baseSizes;
    SmallVector<Value> geometry; // sizes, strides, offset; or dim, start, end
  };
  SmallVector<Value> operands;
  SmallVector<StringRef> names;
  SmallVector<Mutated, 0> mutated;
  for (const Argument &argument : arguments) {
    StringRef text = argument.name;
    if (!text.starts_with("_")) {
      operands.push_back(getArgument(*argument.value, argument.where));
      names.push_back(text);
      continue;
    }
    if (!text.consume_front("_") || !text.consume_back("_base_index") ||
        argument.value->get("as_none"))
      continue;
    std::optional<int64_t> base = argument.value->getInteger("as_int");
    if (!base || *base < 0 || *base >= int64_t(baseNames.size()))
      return fail(argument.where, "expected the index of a base");
    Mutated entry;
    entry.name = text.str();
    entry.base = *base;
    auto geometry = [&](ArrayRef<StringRef> suffixes) {
      for (StringRef suffix : suffixes)
        if (const Argument *part = find("_" + text + suffix))
          entry.geometry.push_back(getArgument(*part->value, part->where));
      return entry.geometry.size() == suffixes.size();
    };
    if (find("_" + text + "_size")) {
      if (coversBase(arguments, text, baseNames[*base], entry.baseSizes,
                     argument.where)) {
        entry.kind = Mutated::Reshaped;
        geometry({"_size"});
      } else {
        entry.kind = Mutated::Strided;
        if (!geometry({"_size", "_stride", "_storage_offset"}))
          return fail(argument.where,
                      "expected a size, a stride and an offset");
      }
    } else if (find("_" + text + "_slice_dim")) {
      entry.kind = Mutated::Sliced;
      if (!geometry({"_slice_dim", "_slice_start", "_slice_end"}))
        return fail(argument.where, "expected a dim, a start and an end");
    }
    mutated.push_back(std::move(entry));
  }

  // The views that the op gets.
  SmallVector<Value> views;
  auto typeOfView = [&](Value base, StringRef shape) {
    StringRef text = getTypeText(base);
    return torchType("vtensor<" + shape + text.substr(text.find(']') + 1));
  };
  for (Mutated &entry : mutated) {
    Value base = newBases[entry.base];
    // The view's type is that of no value in the file: the op's schema knows
    // no shape, and a view of the whole base has the base's element type.
    switch (entry.kind) {
    case Mutated::Whole:
      views.push_back(base);
      break;
    case Mutated::Reshaped: {
      std::string sizes;
      const Argument *size = find("_" + entry.name + "_size");
      const json::Array *array = size->value->getArray("as_sym_ints");
      if (!array)
        array = size->value->getArray("as_ints");
      for (const json::Value &element : *array) {
        const json::Object *object = element.getAsObject();
        std::optional<int64_t> number =
            object ? object->getInteger("as_int") : element.getAsInteger();
        sizes += (sizes.empty() ? "" : ",") +
                 (number ? std::to_string(*number) : std::string("?"));
      }
      views.push_back(createOperator("aten.view", {base, entry.geometry[0]},
                                     {"self", "size"},
                                     typeOfView(base, "[" + sizes + "]"))
                          ->getResult(0));
      break;
    }
    case Mutated::Strided:
    case Mutated::Sliced: {
      SmallVector<Value> viewOperands = {base};
      llvm::append_range(viewOperands, entry.geometry);
      bool sliced = entry.kind == Mutated::Sliced;
      views.push_back(
          createOperator(
              sliced ? "aten.slice.Tensor" : "aten.as_strided", viewOperands,
              sliced ? ArrayRef<StringRef>{"self", "dim", "start", "end"}
                     : ArrayRef<StringRef>{"self", "size", "stride",
                                           "storage_offset"},
              typeOfView(base, "*"))
              ->getResult(0));
      break;
    }
    }
    operands.push_back(views.back());
    names.push_back(entry.name);
  }

  // What the op returns, then the new values of what it mutates.
  SmallVector<Type> types;
  SmallVector<std::string> returned;
  size_t numReturned = outputs.size() - bases->size();
  for (size_t i = 0; i < numReturned; ++i) {
    std::string at = (where + ".outputs[" + Twine(i) + "]").str();
    auto [kind, value] = getCase(asObject(outputs[i], at), at);
    if (kind == "as_none")
      continue;
    if (kind != "as_tensor")
      return fail(at, "'" + kind + "' is not supported");
    returned.push_back(getString(asObject(*value, at), "name", at));
    types.push_back(getTensorType(returned.back(), at));
  }
  SmallVector<StringRef> mutatedNames;
  for (auto [entry, view] : llvm::zip_equal(mutated, views)) {
    types.push_back(view.getType());
    mutatedNames.push_back(entry.name);
  }
  if (!returned.empty())
    mutatedNames.clear();
  Operation *op = createOperator(target, operands, names, types, mutatedNames);
  for (auto [index, symbol] : llvm::enumerate(returned))
    define(op->getResult(index), symbol);

  // And back into the bases.
  for (auto [index, entry] : llvm::enumerate(mutated)) {
    Value value = op->getResult(returned.size() + index);
    Value &base = newBases[entry.base];
    switch (entry.kind) {
    case Mutated::Whole:
      base = value;
      break;
    case Mutated::Reshaped: {
      SmallVector<Value> sizes;
      for (int64_t size : entry.baseSizes)
        sizes.push_back(constantInt(size));
      base = createOperator("aten.view", {value, list(sizes, "int")},
                            {"self", "size"}, base.getType())
                 ->getResult(0);
      break;
    }
    case Mutated::Strided:
    case Mutated::Sliced: {
      SmallVector<Value> scatterOperands = {base, value};
      llvm::append_range(scatterOperands, entry.geometry);
      bool sliced = entry.kind == Mutated::Sliced;
      base =
          createOperator(
              sliced ? "aten.slice_scatter" : "aten.as_strided_scatter",
              scatterOperands,
              sliced ? ArrayRef<StringRef>{"self", "src", "dim", "start", "end"}
                     : ArrayRef<StringRef>{"self", "src", "size", "stride",
                                           "storage_offset"},
              base.getType())
              ->getResult(0);
      break;
    }
    }
  }
  for (auto [index, base] : llvm::enumerate(newBases)) {
    size_t output = numReturned + index;
    std::string at = (where + ".outputs[" + Twine(output) + "]").str();
    auto [kind, value] = getCase(asObject(outputs[output], at), at);
    if (kind == "as_none")
      continue;
    if (kind != "as_tensor")
      return fail(at, "'" + kind + "' is not supported");
    define(base, getString(asObject(*value, at), "name", at));
  }
}

void GraphReader::readNode(const json::Object &node, const std::string &where) {
  std::string target = getString(node, "target", where);
  const json::Array &outputs = getArray(node, "outputs", where);
  Arguments arguments;
  for (auto [index, input] : llvm::enumerate(getArray(node, "inputs", where))) {
    std::string at = (where + ".inputs[" + Twine(index) + "]").str();
    const json::Object &entry = asObject(input, at);
    arguments.push_back(
        {getString(entry, "name", at), &getObject(entry, "arg", at), at});
  }
  if (!fault.empty())
    return;
  StringRef wrapper = target;
  if (wrapper.consume_front("torch.ops.higher_order.")) {
    bool isV2 = wrapper == "auto_functionalized_v2";
    std::optional<StringRef> wrapped =
        arguments.empty() ? std::nullopt
                          : arguments.front().value->getString("as_operator");
    if ((!isV2 && wrapper != "auto_functionalized") || !wrapped)
      return fail(where, "'" + target +
                             "' is not supported; expected plain "
                             "ops, or auto_functionalized ones");
    arguments.erase(arguments.begin());
    if (isV2)
      return emitFunctionalized(getTarget(*wrapped), arguments, outputs, where);
    return emitCall(getTarget(*wrapped), arguments, outputs, where);
  }
  emitCall(getTarget(target), arguments, outputs, where);
}

//===----------------------------------------------------------------------===//
// The graph
//===----------------------------------------------------------------------===//

/// The name of a parameter or buffer in the model; empty for a plain input.
static std::string getModelName(const json::Object &spec) {
  for (StringRef kind : {"parameter", "buffer", "tensor_constant"})
    if (const json::Object *entry = spec.getObject(kind))
      return entry->getString((kind + "_name").str()).value_or("").str();
  return "";
}

OwningOpRef<ModuleOp> GraphReader::read(const json::Value &document) {
  const json::Object &root = asObject(document, "the file");
  const json::Object &version = getObject(root, "schema_version", "the file");
  if (fault.empty() && version.getInteger("major") != 8)
    fail("schema_version.major",
         "expected 8; export the model with a torch that writes it (2.6 or "
         "later)");
  const json::Object &graphModule = getObject(root, "graph_module", "the file");
  const json::Object &graph = getObject(graphModule, "graph", "graph_module");
  tensors = &getObject(graph, "tensor_values", "graph");
  symInts = &getObject(graph, "sym_int_values", "graph");
  const json::Object *signature = graphModule.getObject("signature");
  const json::Array *specs =
      signature ? signature->getArray("input_specs") : nullptr;

  OwningOpRef<ModuleOp> module = ModuleOp::create(builder.getUnknownLoc());
  Block body;
  builder.setInsertionPointToStart(&body);
  SmallVector<DictionaryAttr> argumentAttrs;
  for (auto [index, input] :
       llvm::enumerate(getArray(graph, "inputs", "graph"))) {
    std::string at = ("graph.inputs[" + Twine(index) + "]").str();
    auto [kind, value] = getCase(asObject(input, at), at);
    if (!fault.empty())
      break;
    Type type;
    std::string symbol;
    if (kind == "as_tensor") {
      symbol = getString(asObject(*value, at), "name", at);
      type = getTensorType(symbol, at);
    } else if (kind == "as_custom_obj") {
      const json::Object &object = asObject(*value, at);
      symbol = getString(object, "name", at);
      type = torchType("nn.Module<\"" + getString(object, "class_fqn", at) +
                       "\">");
    } else if (kind == "as_none" || kind == "as_int" || kind == "as_bool" ||
               kind == "as_float" || kind == "as_string") {
      // A constant of the export: nobody refers to it.
      continue;
    } else {
      fail(at, "'" + kind + "' is not supported");
      break;
    }
    define(body.addArgument(type, builder.getUnknownLoc()), symbol);
    std::string modelName;
    if (specs && index < specs->size())
      modelName = getModelName(asObject((*specs)[index], at));
    argumentAttrs.push_back(builder.getDictionaryAttr(builder.getNamedAttr(
        kBufferName,
        builder.getStringAttr(modelName.empty() ? symbol : modelName))));
  }
  for (auto [index, node] :
       llvm::enumerate(getArray(graph, "nodes", "graph"))) {
    if (!fault.empty())
      break;
    std::string at = ("graph.nodes[" + Twine(index) + "]").str();
    readNode(asObject(node, at), at);
  }
  SmallVector<Value> results;
  if (fault.empty())
    for (auto [index, output] :
         llvm::enumerate(getArray(graph, "outputs", "graph"))) {
      std::string at = ("graph.outputs[" + Twine(index) + "]").str();
      const json::Object &entry = asObject(output, at);
      if (entry.get("as_none"))
        continue;
      results.push_back(getArgument(entry, at));
    }
  if (!fault.empty()) {
    emitError(FileLineColLoc::get(context, name, 0, 0)) << fault;
    body.dropAllReferences();
    return {};
  }
  func::ReturnOp::create(builder, builder.getUnknownLoc(), results);
  builder.setInsertionPointToStart(module->getBody());
  auto function = func::FuncOp::create(
      builder, builder.getUnknownLoc(), "main",
      builder.getFunctionType(body.getArgumentTypes(),
                              ValueRange(results).getTypes()));
  function.setAllArgAttrs(argumentAttrs);
  Block *entry = function.addEntryBlock();
  for (auto [from, to] :
       llvm::zip_equal(body.getArguments(), entry->getArguments()))
    from.replaceAllUsesWith(to);
  entry->getOperations().splice(entry->end(), body.getOperations());
  return module;
}

OwningOpRef<ModuleOp> mlir::kvcache::readTorchExport(llvm::MemoryBufferRef file,
                                                     MLIRContext *context) {
  StringRef name = file.getBufferIdentifier();
  auto fail = [&](llvm::Error error) {
    emitError(FileLineColLoc::get(context, name, 0, 0))
        << llvm::toString(std::move(error));
    return OwningOpRef<ModuleOp>();
  };
  std::string text;
  if (isArchive(file.getBuffer())) {
    llvm::Expected<std::string> model = readModel(file.getBuffer());
    if (!model)
      return fail(model.takeError());
    text = std::move(*model);
  } else {
    text = file.getBuffer().str();
  }
  if (::kvcache::isJsonTooDeep(text))
    return fail(llvm::createStringError("nested deeper than " +
                                        Twine(::kvcache::maxJsonDepth) +
                                        " levels; expected a program of "
                                        "torch.export"));
  llvm::Expected<json::Value> document = json::parse(text);
  if (!document)
    return fail(document.takeError());
  context->allowUnregisteredDialects();
  context->loadDialect<func::FuncDialect, KVCacheDialect>();
  return GraphReader(name, context).read(*document);
}

void mlir::kvcache::registerTorchExportTranslation() {
  static TranslateToMLIRRegistration registration(
      "pt2-to-mlir",
      "the graph of a torch.export archive (.pt2) or of the JSON in it",
      [](llvm::SourceMgr &sources,
         MLIRContext *context) -> OwningOpRef<Operation *> {
        return readTorchExport(
            sources.getMemoryBuffer(sources.getMainFileID())->getMemBufferRef(),
            context);
      },
      [](DialectRegistry &registry) {
        registry.insert<func::FuncDialect, KVCacheDialect>();
      });
}
