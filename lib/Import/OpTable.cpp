//===- OpTable.cpp - More ops for the import, from a JSON file ------------===//
//
// The format is that of docs/op-table.md.
//
//===----------------------------------------------------------------------===//

#include "kvcache/Import/ForeignOps.h"
#include "kvcache/Support/Json.h"
#include "llvm/ADT/StringExtras.h"
#include "llvm/ADT/StringSet.h"
#include "llvm/Support/FormatVariadic.h"
#include "llvm/Support/JSON.h"
#include "llvm/Support/MemoryBuffer.h"

using namespace mlir;
using namespace mlir::kvcache;
namespace json = llvm::json;

namespace {

template <typename EnumT> struct Word {
  StringLiteral text;
  EnumT value;
};

const Word<ForeignOpKind> kKinds[] = {
    {"cache_update", ForeignOpKind::CacheUpdate},
    {"attention", ForeignOpKind::Attention},
    {"update_and_attention", ForeignOpKind::UpdateAndAttention},
    {"calculate_scales", ForeignOpKind::CalculateScales},
    {"quantize_query", ForeignOpKind::QuantizeQuery}};

const Word<ForeignOperandRole> kOperandRoles[] = {
    {"query", ForeignOperandRole::Query},
    {"key", ForeignOperandRole::Key},
    {"value", ForeignOperandRole::Value},
    {"output", ForeignOperandRole::Output},
    {"order", ForeignOperandRole::Order},
    {"replaced", ForeignOperandRole::Replaced},
    {"output_scale", ForeignOperandRole::OutputScale},
    {"key_pages", ForeignOperandRole::KeyPages},
    {"value_pages", ForeignOperandRole::ValuePages},
    {"page_table", ForeignOperandRole::PageTable},
    {"lengths", ForeignOperandRole::Lengths},
    {"query_start", ForeignOperandRole::QueryStart},
    {"slots", ForeignOperandRole::Slots},
    {"sinks", ForeignOperandRole::Sinks},
    {"alibi_slopes", ForeignOperandRole::ALiBiSlopes},
    {"refused", ForeignOperandRole::Refused},
    {"attribute", ForeignOperandRole::Attribute}};

const Word<ForeignAttributeRole> kAttributeRoles[] = {
    {"layer_name", ForeignAttributeRole::LayerName},
    {"cache_dtype", ForeignAttributeRole::CacheDtype},
    {"softmax_scale", ForeignAttributeRole::SoftmaxScale},
    {"soft_cap", ForeignAttributeRole::SoftCap},
    {"sliding_window", ForeignAttributeRole::SlidingWindow},
    {"window", ForeignAttributeRole::Window},
    {"query_heads", ForeignAttributeRole::QueryHeads},
    {"kv_heads", ForeignAttributeRole::KVHeads},
    {"refused", ForeignAttributeRole::Refused},
    {"ignored", ForeignAttributeRole::Ignored}};

/// Reads one file. The first fault is kept, and what is read after it does not
/// matter.
class Reader {
public:
  explicit Reader(StringRef path) : path(path) {}
  llvm::Error read(ForeignOpTable &table);

private:
  StringRef path;
  std::string fault;

  void fail(const Twine &where, const Twine &what) {
    if (fault.empty())
      fault = (path + ": " + where + ": " + what).str();
  }

  /// The object at `where`, whose keys must all be among `keys`.
  const json::Object *getObject(const json::Value &value, const Twine &where,
                                ArrayRef<StringRef> keys) {
    const json::Object *object = value.getAsObject();
    if (!object) {
      fail(where, "expected an object");
      return nullptr;
    }
    for (auto &[key, member] : *object)
      if (!llvm::is_contained(keys, StringRef(key)))
        fail(where, "unknown key \"" + StringRef(key) + "\"; expected one of " +
                        llvm::join(keys, ", "));
    return object;
  }

  std::string getString(const json::Object &object, StringRef key,
                        const Twine &where, bool required) {
    const json::Value *value = object.get(key);
    std::optional<StringRef> text = value ? value->getAsString() : std::nullopt;
    if ((value && !text) || (required && (!text || text->empty())))
      fail(where + "." + key, value ? "expected a string that is not empty"
                                    : "the key is missing");
    return text ? text->str() : "";
  }

  bool getBool(const json::Object &object, StringRef key, const Twine &where,
               bool otherwise) {
    const json::Value *value = object.get(key);
    if (value && !value->getAsBoolean())
      fail(where + "." + key, "expected true or false");
    return value ? value->getAsBoolean().value_or(otherwise) : otherwise;
  }

  template <typename EnumT>
  EnumT getWord(const json::Object &object, StringRef key, const Twine &where,
                ArrayRef<Word<EnumT>> words) {
    std::string text = getString(object, key, where, /*required=*/true);
    for (const Word<EnumT> &word : words)
      if (word.text == text)
        return word.value;
    fail(where + "." + key,
         "expected one of " +
             llvm::join(llvm::map_range(words,
                                        [](const Word<EnumT> &word)
                                            -> StringRef { return word.text; }),
                        ", ") +
             ", but found \"" + text + "\"");
    return words.front().value;
  }

  /// The reason of a refusal, which must be there exactly for refusals.
  std::string getReason(const json::Object &object, const Twine &where,
                        bool refused) {
    std::string reason = getString(object, "reason", where, refused);
    if (!refused && object.get("reason"))
      fail(where + ".reason",
           "only what has the role \"refused\" has a reason");
    return reason;
  }

  template <typename F>
  void forEach(const json::Object &object, StringRef key, const Twine &where,
               bool required, F &&read) {
    const json::Value *value = object.get(key);
    const json::Array *array = value ? value->getAsArray() : nullptr;
    if (!array) {
      if (value || required)
        fail(where + key, value ? "expected an array" : "the key is missing");
      return;
    }
    for (auto [index, element] : llvm::enumerate(*array))
      read(element, (where + key + "[" + Twine(index) + "]").str());
  }

  /// A number, a word, or an array of them.
  void readValues(const json::Value &value, const std::string &where,
                  SmallVectorImpl<std::string> &values) {
    if (const json::Array *array = value.getAsArray()) {
      for (const json::Value &element : *array)
        if (element.getAsArray())
          fail(where, "expected numbers and strings");
        else
          readValues(element, where, values);
    } else if (std::optional<StringRef> word = value.getAsString()) {
      values.push_back(word->str());
    } else if (value.getAsNumber()) {
      values.push_back(llvm::formatv("{0}", value).str());
    } else {
      fail(where, "expected a number, a string or an array of them");
    }
  }

  ForeignOpSpec readOp(const json::Value &value, const std::string &where);
  void checkOp(const ForeignOpSpec &spec, const std::string &where);
  void checkLatentOp(const ForeignOpSpec &spec, const std::string &where,
                     SmallVectorImpl<ForeignOperandRole> &needed);
};

} // namespace

ForeignOpSpec Reader::readOp(const json::Value &value,
                             const std::string &where) {
  ForeignOpSpec spec;
  spec.positional = true;
  const json::Object *op = getObject(
      value, where,
      {"name", "kind", "latent", "layer", "operands", "attributes", "results"});
  if (!op)
    return spec;
  spec.name = getString(*op, "name", where, /*required=*/true);
  spec.kind = getWord<ForeignOpKind>(*op, "kind", where, kKinds);
  spec.isLatent = getBool(*op, "latent", where, false);
  if (spec.kind == ForeignOpKind::QuantizeQuery)
    spec.namesLayer = false;
  forEach(*op, "operands", where + ".", /*required=*/true,
          [&](const json::Value &element, const std::string &at) {
            const json::Object *entry =
                getObject(element, at, {"name", "role", "required", "reason"});
            if (!entry)
              return;
            ForeignOperand operand;
            operand.name = getString(*entry, "name", at, /*required=*/true);
            operand.role =
                getWord<ForeignOperandRole>(*entry, "role", at, kOperandRoles);
            bool refused = operand.role == ForeignOperandRole::Refused;
            operand.required = getBool(
                *entry, "required", at,
                !refused && operand.role != ForeignOperandRole::Attribute);
            operand.refusal = getReason(*entry, at, refused);
            if (spec.findOperand(operand.name))
              fail(at + ".name",
                   "\"" + operand.name + "\" is the name of another operand");
            spec.operands.push_back(std::move(operand));
          });
  forEach(*op, "attributes", where + ".", /*required=*/false,
          [&](const json::Value &element, const std::string &at) {
            const json::Object *entry =
                getObject(element, at, {"name", "role", "unset", "reason"});
            if (!entry)
              return;
            ForeignAttribute attribute;
            attribute.name = getString(*entry, "name", at, /*required=*/true);
            attribute.role = getWord<ForeignAttributeRole>(*entry, "role", at,
                                                           kAttributeRoles);
            if (const json::Value *unset = entry->get("unset"))
              readValues(*unset, at + ".unset", attribute.unset);
            attribute.refusal = getReason(
                *entry, at, attribute.role == ForeignAttributeRole::Refused);
            spec.attributes.push_back(std::move(attribute));
          });
  forEach(*op, "results", where + ".", /*required=*/false,
          [&](const json::Value &element, const std::string &at) {
            std::optional<StringRef> name = element.getAsString();
            if (!name || (*name != "output" && !spec.findOperand(*name)))
              return fail(at, "expected the name of an operand or \"output\"");
            spec.results.push_back(name->str());
          });
  if (const json::Value *layer = op->get("layer")) {
    std::string at = where + ".layer";
    if (layer->getAsString() == "of_attention") {
      spec.namesLayer = false;
      if (spec.kind != ForeignOpKind::CacheUpdate)
        fail(at, "only a cache_update has the layer of its attention");
    } else if (const json::Object *entry =
                   getObject(*layer, at, {"attribute", "name"})) {
      spec.attributes.push_back(
          {getString(*entry, "attribute", at, /*required=*/true),
           ForeignAttributeRole::LayerName});
      spec.layerPattern = getString(*entry, "name", at, /*required=*/false);
      if (!spec.layerPattern.empty() &&
          !StringRef(spec.layerPattern).contains("{index}"))
        fail(at + ".name", "expected a name with {index} in it");
    }
  }
  checkOp(spec, where);
  return spec;
}

/// An op of MLA: its attention has rows of the latent cache too, and its output
/// tells the heads' value dim.
void Reader::checkLatentOp(const ForeignOpSpec &spec, const std::string &where,
                           SmallVectorImpl<ForeignOperandRole> &needed) {
  using Role = ForeignOperandRole;
  if (spec.kind == ForeignOpKind::Attention)
    needed.append({Role::Key, Role::Value});
  if (spec.kind == ForeignOpKind::Attention ||
      spec.kind == ForeignOpKind::UpdateAndAttention)
    needed.push_back(Role::Output);
  if (spec.kind == ForeignOpKind::CalculateScales ||
      spec.kind == ForeignOpKind::QuantizeQuery)
    fail(where + ".latent", "an op of this kind is the same with MLA");
  for (const ForeignOperand &operand : spec.operands)
    if (operand.role == Role::ValuePages)
      fail(where + ".operands",
           "\"" + operand.name +
               "\": a latent cache has no pages of values beside its "
               "\"key_pages\"");
  for (ForeignAttributeRole role :
       {ForeignAttributeRole::QueryHeads, ForeignAttributeRole::KVHeads})
    if (!spec.getAttributeName(role).empty())
      fail(where + ".attributes", "\"" + spec.getAttributeName(role) +
                                      "\": rows of an op of MLA are not flat");
}

/// What the kind needs is there, once.
void Reader::checkOp(const ForeignOpSpec &spec, const std::string &where) {
  using Role = ForeignOperandRole;
  SmallVector<Role> needed;
  switch (spec.kind) {
  case ForeignOpKind::CacheUpdate:
    needed = {Role::Key, Role::Value};
    break;
  case ForeignOpKind::Attention:
    needed = {Role::Query};
    break;
  case ForeignOpKind::UpdateAndAttention:
  case ForeignOpKind::CalculateScales:
    needed = {Role::Query, Role::Key, Role::Value};
    break;
  case ForeignOpKind::QuantizeQuery:
    needed = {Role::Query, Role::Replaced, Role::Output};
    break;
  }
  if (spec.isLatent)
    checkLatentOp(spec, where, needed);
  for (const Word<Role> &word : ArrayRef(kOperandRoles)) {
    unsigned count =
        llvm::count_if(spec.operands, [&](const ForeignOperand &operand) {
          return operand.role == word.value;
        });
    if (!count && llvm::is_contained(needed, word.value))
      fail(where + ".operands",
           "an op of this kind needs an operand with the role \"" + word.text +
               "\"");
    bool repeatable = word.value == Role::Replaced ||
                      word.value == Role::Refused ||
                      word.value == Role::Attribute;
    if (count > 1 && !repeatable)
      fail(where + ".operands",
           "two operands have the role \"" + word.text + "\"");
  }
  bool attends = spec.kind == ForeignOpKind::Attention ||
                 spec.kind == ForeignOpKind::UpdateAndAttention;
  for (const ForeignOperand &operand : spec.operands)
    if ((operand.role == Role::Sinks || operand.role == Role::ALiBiSlopes) &&
        (!attends || spec.isLatent))
      fail(where + ".operands",
           "\"" + operand.name +
               "\": only an attention that is not of MLA has sinks and ALiBi "
               "slopes");
  for (const Word<ForeignAttributeRole> &word : ArrayRef(kAttributeRoles)) {
    unsigned count =
        llvm::count_if(spec.attributes, [&](const ForeignAttribute &attribute) {
          return attribute.role == word.value;
        });
    bool repeatable = word.value == ForeignAttributeRole::Refused ||
                      word.value == ForeignAttributeRole::Ignored;
    if (count > 1 && !repeatable)
      fail(where + ".attributes",
           "two attributes have the role \"" + word.text + "\"");
  }
  auto has = [&](ForeignAttributeRole role) {
    return !spec.getAttributeName(role).empty();
  };
  if (has(ForeignAttributeRole::QueryHeads) !=
          has(ForeignAttributeRole::KVHeads) &&
      spec.kind != ForeignOpKind::CacheUpdate)
    fail(where + ".attributes",
         "query_heads and kv_heads are given together or not at all");
}

llvm::Error Reader::read(ForeignOpTable &table) {
  auto file = llvm::MemoryBuffer::getFile(path);
  if (!file)
    return llvm::createStringError(path + ": " + file.getError().message());
  if (::kvcache::isJsonTooDeep((*file)->getBuffer()))
    return llvm::createStringError(path + ": nested deeper than " +
                                   Twine(::kvcache::maxJsonDepth) + " levels");
  llvm::Expected<json::Value> document = json::parse((*file)->getBuffer());
  if (!document)
    // "[line:column, byte=n]: what"
    return llvm::createStringError(path + ": " +
                                   llvm::toString(document.takeError()));
  std::vector<ForeignOpSpec> specs;
  if (const json::Object *root =
          getObject(*document, "the file", {"version", "ops"})) {
    if (root->getInteger("version") != 1) {
      const json::Value *version = root->get("version");
      fail("version", "expected 1, but found " +
                          (version ? llvm::formatv("{0}", *version).str()
                                   : std::string("none")));
    }
    llvm::StringSet<> names;
    forEach(*root, "ops", "", /*required=*/true,
            [&](const json::Value &element, const std::string &at) {
              specs.push_back(readOp(element, at));
              if (!names.insert(specs.back().name).second)
                fail(at + ".name",
                     "the file has another op \"" + specs.back().name + "\"");
            });
  }
  if (!fault.empty())
    return llvm::createStringError(fault);
  for (ForeignOpSpec &spec : specs)
    table.add(std::move(spec));
  return llvm::Error::success();
}

llvm::Error ForeignOpTable::addFile(StringRef path) {
  return Reader(path).read(*this);
}
