//===- Json.cpp - JSON values, read by simdjson ---------------------------===//

#include "kvcache/Support/Json.h"

#include <charconv>
#include <cmath>
#include <unordered_set>

#define SIMDJSON_EXCEPTIONS 0
#include <simdjson.h>

using namespace kvcache;

const char *JsonValue::kindName() const {
  switch (storage.index()) {
  case 0:
    return "null";
  case 1:
    return "a boolean";
  case 2:
    return "an integer";
  case 3:
    return "a number";
  case 4:
    return "a string";
  case 5:
    return "an array";
  default:
    return "an object";
  }
}

const JsonValue *JsonValue::find(std::string_view key) const {
  if (!isObject())
    return nullptr;
  const Object &members = asObject();
  for (auto it = members.rbegin(); it != members.rend(); ++it)
    if (it->first == key)
      return &it->second;
  return nullptr;
}

const JsonValue *JsonValue::findNonNull(std::string_view key) const {
  const JsonValue *value = find(key);
  return value && !value->isNull() ? value : nullptr;
}

std::string kvcache::quoteJson(std::string_view text) {
  static const char digits[] = "0123456789abcdef";
  std::string quoted = "\"";
  for (char c : text) {
    switch (c) {
    case '"':
      quoted += "\\\"";
      break;
    case '\\':
      quoted += "\\\\";
      break;
    case '\n':
      quoted += "\\n";
      break;
    case '\r':
      quoted += "\\r";
      break;
    case '\t':
      quoted += "\\t";
      break;
    default:
      if (static_cast<unsigned char>(c) < 0x20) {
        quoted += "\\u00";
        quoted += digits[c >> 4];
        quoted += digits[c & 15];
      } else {
        quoted += c;
      }
    }
  }
  quoted += '"';
  return quoted;
}

template <typename T> static std::string formatShortest(T value) {
  if (std::isnan(value))
    return "nan";
  if (std::isinf(value))
    return value < 0 ? "-inf" : "inf";
  char buffer[64];
  std::to_chars_result result =
      std::to_chars(buffer, buffer + sizeof buffer, value);
  std::string text(buffer, result.ptr);
  if (text.find_first_of(".e") == std::string::npos)
    text += ".0";
  return text;
}

std::string kvcache::formatDouble(double value) {
  return formatShortest(value);
}
std::string kvcache::formatFloat(float value) { return formatShortest(value); }

namespace {

void printValue(const JsonValue &value, unsigned indent, unsigned level,
                std::string &out);

void newLine(unsigned indent, unsigned level, std::string &out) {
  if (indent == 0)
    return;
  out += '\n';
  out.append(size_t(indent) * level, ' ');
}

void printArray(const JsonValue::Array &array, unsigned indent, unsigned level,
                std::string &out) {
  bool flat = true;
  for (const JsonValue &element : array)
    flat = flat && !element.isArray() && !element.isObject();
  out += '[';
  for (size_t i = 0; i < array.size(); ++i) {
    if (i != 0)
      out += flat && indent != 0 ? ", " : ",";
    if (!flat)
      newLine(indent, level + 1, out);
    printValue(array[i], indent, level + 1, out);
  }
  if (!flat)
    newLine(indent, level, out);
  out += ']';
}

void printObject(const JsonValue::Object &object, unsigned indent,
                 unsigned level, std::string &out) {
  out += '{';
  for (size_t i = 0; i < object.size(); ++i) {
    if (i != 0)
      out += ',';
    newLine(indent, level + 1, out);
    out += quoteJson(object[i].first);
    out += indent != 0 ? ": " : ":";
    printValue(object[i].second, indent, level + 1, out);
  }
  if (!object.empty())
    newLine(indent, level, out);
  out += '}';
}

void printValue(const JsonValue &value, unsigned indent, unsigned level,
                std::string &out) {
  if (value.isNull())
    out += "null";
  else if (value.isBool())
    out += value.asBool() ? "true" : "false";
  else if (value.isInteger())
    out += std::to_string(value.asInteger());
  else if (value.isNumber())
    out += std::isfinite(value.asDouble()) ? formatDouble(value.asDouble())
                                           : std::string("null");
  else if (value.isString())
    out += quoteJson(value.asString());
  else if (value.isArray())
    printArray(value.asArray(), indent, level, out);
  else
    printObject(value.asObject(), indent, level, out);
}

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

std::string JsonValue::print(unsigned indent) const {
  std::string out;
  printValue(*this, indent, 0, out);
  return out;
}

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
