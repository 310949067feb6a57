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
#include "llvm/Support/MathExtras.h"
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

  static const Argument *findArgument(const Arguments &arguments,
                                      const Twine &name) {
    std::string text = name.str();
    for (const Argument &argument : arguments)
      if (argument.name == text)
        return &argument;
    return nullptr;
  }

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

  /// How a mutated operand of auto_functionalized_v2 lies in its base.
  struct Mutated {
    StringRef name;
    unsigned base = 0;
    enum { Whole, Reshaped, Strided, Sliced } kind = Whole;
    SmallVector<Value> geometry; ///< sizes, strides, offset; dim, start, end
    std::string viewSizes = {};  ///< Reshaped: as in a type
    SmallVector<int64_t> baseSizes = {}; ///< Reshaped; -1: not known
  };

  Type getTensorType(StringRef tensor, const Twine &where);
  Type getClassType(const json::Object &object, const Twine &where);
  Value lookup(const json::Object &reference, StringRef key,
               const Twine &where);
  Value getSymInt(const json::Object &value, const Twine &where);
  Value getScalar(const json::Value &value, StringRef type, const Twine &where);
  Value getList(const json::Array &array, StringRef element,
                const std::string &where);
  Value getArgument(const json::Object &argument, const std::string &where);
  Value failKind(StringRef kind, const Twine &where);

  void readInput(const json::Value &input, const json::Object *spec,
                 const std::string &where, Block &body,
                 SmallVectorImpl<DictionaryAttr> &attrs);
  void readNode(const json::Object &node, const std::string &where);
  void readNodes(const json::Object &graph, SmallVectorImpl<Value> &results);
  void define(Value value, const std::string &symbol) {
    values[symbol] = value;
  }
  void emitCall(StringRef target, const Arguments &arguments,
                const json::Array &outputs, const std::string &where);
  void emitFunctionalized(StringRef target, const Arguments &arguments,
                          const json::Array &outputs, const std::string &where);
  void readBases(const Argument &all, const json::Array &bases,
                 SmallVectorImpl<std::string> &names,
                 SmallVectorImpl<Value> &values);
  std::optional<Mutated> readMutated(StringRef name, const Argument &index,
                                     const Arguments &arguments,
                                     ArrayRef<std::string> bases);
  bool coversBase(const Arguments &arguments, StringRef base, Mutated &mutated);
  Value createView(const Mutated &mutated, Value base);
  Value createUpdate(const Mutated &mutated, Value base, Value value);
  std::string getTensorName(const json::Value &output, const std::string &at);
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

/// The type of an object of this class. The name stands in the text of the
/// type, so it may hold nothing but an identifier of Python.
Type GraphReader::getClassType(const json::Object &object, const Twine &where) {
  std::string name = getString(object, "class_fqn", where);
  bool isName = llvm::all_of(
      name, [](char c) { return llvm::isAlnum(c) || c == '_' || c == '.'; });
  if (!isName || name.empty()) {
    fail(where + ".class_fqn",
         "expected the full name of a class, but found '" + name + "'");
    name = "unknown";
  }
  return torchType("nn.Module<\"" + name + "\">");
}

Value GraphReader::failKind(StringRef kind, const Twine &where) {
  fail(where, "'" + kind + "' is not supported");
  return constant("none", {}, "none");
}

/// `type`: int, bool, string or float.
Value GraphReader::getScalar(const json::Value &value, StringRef type,
                             const Twine &where) {
  if (type == "int") {
    if (std::optional<int64_t> number = value.getAsInteger())
      return constantInt(*number);
  } else if (type == "bool") {
    if (std::optional<bool> flag = value.getAsBoolean())
      return constant("bool", builder.getBoolAttr(*flag), "bool");
  } else if (type == "string") {
    if (std::optional<StringRef> text = value.getAsString())
      return constant("str", builder.getStringAttr(*text), "str");
  } else if (type == "float") {
    double number;
    std::optional<StringRef> text = value.getAsString();
    // JSON has no infinities: they come as words.
    if (std::optional<double> plain = value.getAsNumber())
      return constant("float", builder.getF64FloatAttr(*plain), "float");
    if (text && !text->empty() && !text->getAsDouble(number))
      return constant("float", builder.getF64FloatAttr(number), "float");
  }
  fail(where, "expected a value of the type '" + type + "'");
  return constant("none", {}, "none");
}

static bool isScalar(StringRef type) {
  return llvm::is_contained({"int", "float", "bool", "string"}, type);
}

/// `element`: what the list holds, as in the kind "as_tensors".
Value GraphReader::getList(const json::Array &array, StringRef element,
                           const std::string &where) {
  SmallVector<Value> elements;
  for (const json::Value &entry : array) {
    if (isScalar(element))
      elements.push_back(getScalar(entry, element, where));
    else if (element == "tensor")
      elements.push_back(lookup(asObject(entry, where), "name", where));
    else if (element == "optional_tensor")
      elements.push_back(getArgument(asObject(entry, where), where));
    else if (element == "sym_int")
      elements.push_back(getSymInt(asObject(entry, where), where));
  }
  StringRef type = element == "tensor"            ? "vtensor"
                   : element == "optional_tensor" ? "optional<vtensor>"
                   : element == "sym_int"         ? "int"
                   : element == "string"          ? "str"
                   : isScalar(element)            ? element
                                                  : "";
  return type.empty() ? failKind("as_" + element.str() + "s", where)
                      : list(elements, type);
}

Value GraphReader::getArgument(const json::Object &argument,
                               const std::string &where) {
  StringRef kind;
  const json::Value *value;
  std::tie(kind, value) = getCase(argument, where);
  if (kind == "as_none")
    return constant("none", {}, "none");
  if (kind == "as_tensor")
    return lookup(asObject(*value, where), "name", where);
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
    return failKind(kind, where);
  }
  if (kind == "as_memory_format") {
    std::optional<int64_t> number = value->getAsInteger();
    if (number && *number >= 1 && *number <= 4)
      return constantInt(kMemoryFormats[*number - 1]);
    return failKind(kind, where);
  }
  if (kind == "as_layout") // strided is 7 here and 0 in c10
    return value->getAsInteger() == 7 ? constantInt(0) : failKind(kind, where);
  if (kind == "as_device") {
    const json::Object &device = asObject(*value, where);
    std::string text = getString(device, "type", where);
    if (std::optional<int64_t> index = device.getInteger("index"))
      text += ":" + std::to_string(*index);
    return constant("device", builder.getStringAttr(text), "Device");
  }
  if (kind == "as_custom_obj")
    // What it is did not survive the export; who needs it refuses it.
    return createOperator("export.custom_obj", {}, {},
                          getClassType(asObject(*value, where), where))
        ->getResult(0);
  StringRef element = kind;
  element.consume_front("as_");
  if (isScalar(element))
    return getScalar(*value, element, where);
  const json::Array *array = value->getAsArray();
  if (array && element.consume_back("s"))
    return getList(*array, element, where);
  return failKind(kind, where);
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

/// "vtensor<[?,64],bf16>" of a value of this type in torch's dialect.
static StringRef getTypeText(Value value) {
  return cast<OpaqueType>(value.getType()).getTypeData();
}

/// A list of integers, some of which may be symbols; null if it is none.
static const json::Array *getIntegers(const json::Object &object) {
  const json::Array *array = object.getArray("as_sym_ints");
  return array ? array : object.getArray("as_ints");
}

static std::optional<int64_t> getInteger(const json::Value &value) {
  const json::Object *object = value.getAsObject();
  return object ? object->getInteger("as_int") : value.getAsInteger();
}

namespace {

/// Sizes, and the number of elements as a product of a number and of
/// expressions.
struct Shape {
  SmallVector<int64_t> sizes;         ///< -1: not known
  std::optional<int64_t> product = 1; ///< none: too large
  SmallVector<std::string> unknown;

  Shape(const json::Array &array, const json::Object &symInts) {
    for (const json::Value &entry : array) {
      std::optional<int64_t> number = getInteger(entry);
      sizes.push_back(number.value_or(-1));
      if (!number) {
        unknown.push_back(getExpression(entry, symInts));
        continue;
      }
      int64_t next;
      if (!product || llvm::MulOverflow(*product, *number, next))
        product.reset();
      else
        product = next;
    }
  }

private:
  static std::string getExpression(const json::Value &entry,
                                   const json::Object &symInts) {
    const json::Object *symbol = entry.getAsObject();
    if (symbol)
      if (std::optional<StringRef> name = symbol->getString("as_name"))
        symbol = symInts.getObject(*name);
    const json::Object *expression =
        symbol ? symbol->getObject("as_expr") : nullptr;
    return expression ? expression->getString("expr_str").value_or("").str()
                      : "";
  }
};

} // namespace

/// True if the view is all of its base, in the same order; its sizes and those
/// of the base are put into `mutated`.
bool GraphReader::coversBase(const Arguments &arguments, StringRef base,
                             Mutated &mutated) {
  auto get = [&](StringRef suffix) -> const json::Object * {
    const Argument *found =
        findArgument(arguments, "_" + mutated.name + suffix);
    return found ? found->value : nullptr;
  };
  const json::Object *size = get("_size"), *stride = get("_stride"),
                     *offset = get("_storage_offset");
  const json::Object *meta = tensors->getObject(base);
  if (!size || !stride || !offset || !meta || offset->getInteger("as_int") != 0)
    return false;
  const json::Array *viewSizes = getIntegers(*size),
                    *viewStrides = getIntegers(*stride),
                    *ownSizes = meta->getArray("sizes");
  if (!viewSizes || !viewStrides || !ownSizes ||
      viewSizes->size() != viewStrides->size())
    return false;
  Shape view(*viewSizes, *symInts), own(*ownSizes, *symInts);
  int64_t expected = 1;
  for (int64_t i = view.sizes.size() - 1; i >= 0; --i)
    if (getInteger((*viewStrides)[i]) != expected ||
        (i && (view.sizes[i] < 0 ||
               llvm::MulOverflow(expected, view.sizes[i], expected))))
      return false;
  if (!view.product || view.product != own.product ||
      view.unknown != own.unknown || view.unknown.size() > 1 ||
      llvm::is_contained(view.unknown, ""))
    return false;
  mutated.baseSizes = own.sizes;
  mutated.viewSizes = llvm::join(
      llvm::map_range(view.sizes,
                      [](int64_t number) {
                        return number < 0 ? "?" : std::to_string(number);
                      }),
      ",");
  return true;
}

/// The tensors that an op mutates, or that what it mutates is a part of.
void GraphReader::readBases(const Argument &all, const json::Array &bases,
                            SmallVectorImpl<std::string> &names,
                            SmallVectorImpl<Value> &values) {
  for (const json::Value &base : bases) {
    const json::Object &object = asObject(base, all.where);
    names.push_back(getString(object, "name", all.where));
    values.push_back(lookup(object, "name", all.where));
    if (!getTypeText(values.back()).starts_with("vtensor<["))
      return fail(all.where,
                  "expected tensors, but '" + names.back() + "' is none");
  }
}

/// `index`: the operand that says in which of `bases` the operand `name` lies.
std::optional<GraphReader::Mutated>
GraphReader::readMutated(StringRef name, const Argument &index,
                         const Arguments &arguments,
                         ArrayRef<std::string> bases) {
  std::optional<int64_t> base = index.value->getInteger("as_int");
  if (!base || *base < 0 || *base >= int64_t(bases.size())) {
    fail(index.where, "expected the index of a base");
    return std::nullopt;
  }
  Mutated entry;
  entry.name = name;
  entry.base = *base;
  auto has = [&](StringRef suffix) {
    return findArgument(arguments, "_" + name + suffix);
  };
  auto readGeometry = [&](ArrayRef<StringRef> suffixes) {
    for (StringRef suffix : suffixes)
      if (const Argument *part = has(suffix))
        entry.geometry.push_back(getArgument(*part->value, part->where));
    return entry.geometry.size() == suffixes.size();
  };
  if (has("_size")) {
    if (coversBase(arguments, bases[*base], entry)) {
      entry.kind = Mutated::Reshaped;
      readGeometry({"_size"});
    } else {
      entry.kind = Mutated::Strided;
      if (!readGeometry({"_size", "_stride", "_storage_offset"}))
        fail(index.where, "expected a size, a stride and an offset");
    }
  } else if (has("_slice_dim")) {
    entry.kind = Mutated::Sliced;
    if (!readGeometry({"_slice_dim", "_slice_start", "_slice_end"}))
      fail(index.where, "expected a dim, a start and an end");
  }
  return entry;
}

/// What the op gets of a base. The type of a part is that of no value in the
/// file: the op's schema knows no shape, and a view of the whole base has the
/// base's element type.
Value GraphReader::createView(const Mutated &mutated, Value base) {
  if (mutated.kind == Mutated::Whole)
    return base;
  StringRef text = getTypeText(base);
  StringRef elements = text.substr(text.find(']') + 1);
  if (mutated.kind == Mutated::Reshaped)
    return createOperator(
               "aten.view", {base, mutated.geometry[0]}, {"self", "size"},
               torchType("vtensor<[" + mutated.viewSizes + "]" + elements))
        ->getResult(0);
  SmallVector<Value> operands = {base};
  llvm::append_range(operands, mutated.geometry);
  bool sliced = mutated.kind == Mutated::Sliced;
  return createOperator(
             sliced ? "aten.slice.Tensor" : "aten.as_strided", operands,
             sliced ? ArrayRef<StringRef>{"self", "dim", "start", "end"}
                    : ArrayRef<StringRef>{"self", "size", "stride",
                                          "storage_offset"},
             torchType("vtensor<*" + elements))
      ->getResult(0);
}

/// The base with the new value of a part of it.
Value GraphReader::createUpdate(const Mutated &mutated, Value base,
                                Value value) {
  if (mutated.kind == Mutated::Whole)
    return value;
  if (mutated.kind == Mutated::Reshaped) {
    SmallVector<Value> sizes;
    for (int64_t size : mutated.baseSizes)
      sizes.push_back(constantInt(size));
    return createOperator("aten.view", {value, list(sizes, "int")},
                          {"self", "size"}, base.getType())
        ->getResult(0);
  }
  SmallVector<Value> operands = {base, value};
  llvm::append_range(operands, mutated.geometry);
  bool sliced = mutated.kind == Mutated::Sliced;
  return createOperator(
             sliced ? "aten.slice_scatter" : "aten.as_strided_scatter",
             operands,
             sliced ? ArrayRef<StringRef>{"self", "src", "dim", "start", "end"}
                    : ArrayRef<StringRef>{"self", "src", "size", "stride",
                                          "storage_offset"},
             base.getType())
      ->getResult(0);
}

/// The name of an output that is a tensor; empty if it is none.
std::string GraphReader::getTensorName(const json::Value &output,
                                       const std::string &at) {
  auto [kind, value] = getCase(asObject(output, at), at);
  if (kind == "as_tensor")
    return getString(asObject(*value, at), "name", at);
  if (kind != "as_none")
    fail(at, "'" + kind + "' is not supported");
  return "";
}

/// auto_functionalized_v2: mutated operands are views of bases, and the new
/// values of the bases come back behind what the op returns.
void GraphReader::emitFunctionalized(StringRef target,
                                     const Arguments &arguments,
                                     const json::Array &outputs,
                                     const std::string &where) {
  const Argument *all = findArgument(arguments, "_all_bases");
  const json::Array *bases = all ? all->value->getArray("as_tensors") : nullptr;
  if (!bases || bases->size() > outputs.size())
    return fail(where, "expected _all_bases, a list of tensors, and as many "
                       "outputs");
  SmallVector<std::string> baseNames;
  SmallVector<Value> newBases;
  readBases(*all, *bases, baseNames, newBases);
  if (!fault.empty())
    return;

  SmallVector<Value> operands;
  SmallVector<StringRef> names;
  SmallVector<Mutated, 0> mutated;
  for (const Argument &argument : arguments) {
    StringRef text = argument.name;
    if (!text.consume_front("_")) {
      operands.push_back(getArgument(*argument.value, argument.where));
      names.push_back(text);
    } else if (text.consume_back("_base_index") &&
               !argument.value->get("as_none")) {
      std::optional<Mutated> entry =
          readMutated(text, argument, arguments, baseNames);
      if (!fault.empty())
        return;
      mutated.push_back(std::move(*entry));
    }
  }

  // What the op returns, then the new values of what it mutates.
  SmallVector<Type> types;
  SmallVector<std::string> returned;
  size_t numReturned = outputs.size() - bases->size();
  auto describe = [&](size_t output) {
    return (where + ".outputs[" + Twine(output) + "]").str();
  };
  for (size_t i = 0; i < numReturned; ++i) {
    std::string at = describe(i), symbol = getTensorName(outputs[i], at);
    if (symbol.empty())
      continue;
    types.push_back(getTensorType(symbol, at));
    returned.push_back(symbol);
  }
  SmallVector<StringRef> mutatedNames;
  for (const Mutated &entry : mutated) {
    operands.push_back(createView(entry, newBases[entry.base]));
    names.push_back(entry.name);
    types.push_back(operands.back().getType());
    mutatedNames.push_back(entry.name);
  }
  if (!returned.empty())
    mutatedNames.clear();
  Operation *op = createOperator(target, operands, names, types, mutatedNames);
  for (auto [index, symbol] : llvm::enumerate(returned))
    define(op->getResult(index), symbol);

  for (auto [index, entry] : llvm::enumerate(mutated)) {
    Value &base = newBases[entry.base];
    base = createUpdate(entry, base, op->getResult(returned.size() + index));
  }
  for (auto [index, base] : llvm::enumerate(newBases)) {
    size_t output = numReturned + index;
    std::string symbol = getTensorName(outputs[output], describe(output));
    if (!symbol.empty())
      define(base, symbol);
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

/// Adds the argument of an input. `spec` says what it is in the model; may be
/// null.
void GraphReader::readInput(const json::Value &input, const json::Object *spec,
                            const std::string &where, Block &body,
                            SmallVectorImpl<DictionaryAttr> &attrs) {
  auto [kind, value] = getCase(asObject(input, where), where);
  if (!fault.empty())
    return;
  // A constant of the export: nobody refers to it.
  if (llvm::is_contained(
          {"as_none", "as_int", "as_bool", "as_float", "as_string"}, kind))
    return;
  if (kind != "as_tensor" && kind != "as_custom_obj")
    return fail(where, "'" + kind + "' is not supported");
  const json::Object &object = asObject(*value, where);
  std::string symbol = getString(object, "name", where);
  Type type = kind == "as_tensor" ? getTensorType(symbol, where)
                                  : getClassType(object, where);
  define(body.addArgument(type, builder.getUnknownLoc()), symbol);
  std::string modelName = spec ? getModelName(*spec) : "";
  attrs.push_back(builder.getDictionaryAttr(builder.getNamedAttr(
      kBufferName,
      builder.getStringAttr(modelName.empty() ? symbol : modelName))));
}

void GraphReader::readNodes(const json::Object &graph,
                            SmallVectorImpl<Value> &results) {
  for (auto [index, node] :
       llvm::enumerate(getArray(graph, "nodes", "graph"))) {
    if (!fault.empty())
      return;
    std::string at = ("graph.nodes[" + Twine(index) + "]").str();
    readNode(asObject(node, at), at);
  }
  if (!fault.empty())
    return;
  for (auto [index, output] :
       llvm::enumerate(getArray(graph, "outputs", "graph"))) {
    std::string at = ("graph.outputs[" + Twine(index) + "]").str();
    const json::Object &entry = asObject(output, at);
    if (!entry.get("as_none"))
      results.push_back(getArgument(entry, at));
  }
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
    const json::Object *spec = specs && index < specs->size()
                                   ? &asObject((*specs)[index], at)
                                   : nullptr;
    readInput(input, spec, at, body, argumentAttrs);
  }
  SmallVector<Value> results;
  readNodes(graph, results);
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
