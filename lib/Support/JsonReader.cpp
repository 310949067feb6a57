//===- JsonReader.cpp - JSON text, read by simdjson -----------------------===//

#include "kvcache/Support/Json.h"

#include <unordered_set>

#define SIMDJSON_EXCEPTIONS 0
#include <simdjson.h>

using namespace kvcache;

namespace {

/// Builds a tree from simdjson's; its depth limit (1024) bounds the recursion.
Error convert(simdjson::dom::element element, const JsonParseOptions &options,
              JsonValue &result) {
  using simdjson::dom::element_type;
  switch (element.type()) {
  case element_type::NULL_VALUE:
    result = JsonValue();
    break;
  case element_type::BOOL:
    result = bool(element.get_bool().value_unsafe());
    break;
  case element_type::INT64:
    result = int64_t(element.get_int64().value_unsafe());
    break;
  case element_type::UINT64:
    result = double(element.get_uint64().value_unsafe());
    break;
  case element_type::DOUBLE:
    result = double(element.get_double().value_unsafe());
    break;
  case element_type::STRING:
    result = std::string_view(element.get_string().value_unsafe());
    break;
  case element_type::ARRAY: {
    simdjson::dom::array source = element.get_array().value_unsafe();
    JsonValue::Array array;
    array.reserve(source.size());
    for (simdjson::dom::element child : source) {
      array.emplace_back();
      if (Error error = convert(child, options, array.back()))
        return error;
    }
    result = std::move(array);
    break;
  }
  case element_type::OBJECT: {
    simdjson::dom::object source = element.get_object().value_unsafe();
    JsonValue::Object object;
    object.reserve(source.size());
    std::unordered_set<std::string_view> seen;
    for (simdjson::dom::key_value_pair member : source) {
      if (options.rejectDuplicates && !seen.insert(member.key).second)
        return makeError("the member " + quoteJson(member.key) +
                         " occurs twice in one object");
      object.emplace_back(std::string(member.key), JsonValue());
      if (Error error = convert(member.value, options, object.back().second))
        return error;
    }
    result = std::move(object);
    break;
  }
  }
  return Error::success();
}

/// The text with Python's non-finite numbers replaced by null.
std::string withoutNonFinite(std::string_view text) {
  std::string out;
  out.reserve(text.size() + 16);
  bool inString = false;
  for (size_t i = 0; i < text.size();) {
    char c = text[i];
    if (inString) {
      if (c == '\\' && i + 1 < text.size()) {
        out += c;
        c = text[++i];
      } else if (c == '"') {
        inString = false;
      }
    } else {
      size_t length = 0;
      for (std::string_view word : {"NaN", "Infinity", "-Infinity"})
        if (text.substr(i, word.size()) == word)
          length = word.size();
      if (length != 0) {
        out += "null";
        i += length;
        continue;
      }
      inString = c == '"';
    }
    out += c;
    ++i;
  }
  return out;
}

} // namespace

Expected<JsonValue> kvcache::parseJson(std::string_view text,
                                       const std::string &what,
                                       const JsonParseOptions &options) {
  simdjson::padded_string padded(text);
  simdjson::dom::parser parser;
  simdjson::dom::element root;
  simdjson::error_code code = parser.parse(padded).get(root);
  if (code != simdjson::SUCCESS && options.pythonNonFinite) {
    std::string replaced = withoutNonFinite(text);
    if (replaced != text)
      return parseJson(replaced, what, {options.rejectDuplicates, false});
  }
  if (code != simdjson::SUCCESS)
    return makeError(what +
                     ": not valid JSON: " + simdjson::error_message(code));
  JsonValue value;
  if (Error error = convert(root, options, value))
    return error.withContext(what);
  return value;
}
