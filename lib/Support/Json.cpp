//===- Json.cpp - JSON values and their text ------------------------------===//

#include "kvcache/Support/Json.h"

#include <charconv>
#include <cmath>

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

/// What follows a backslash for a character that cannot stand in a string;
/// 0: it can.
static char escapeOf(char c) {
  switch (c) {
  case '"':
  case '\\':
    return c;
  case '\n':
    return 'n';
  case '\r':
    return 'r';
  case '\t':
    return 't';
  default:
    return static_cast<unsigned char>(c) < 0x20 ? 'u' : 0;
  }
}

static void appendQuoted(std::string &out, std::string_view text) {
  static const char digits[] = "0123456789abcdef";
  out += '"';
  size_t begin = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    char escape = escapeOf(text[i]);
    if (escape == 0)
      continue;
    out.append(text, begin, i - begin);
    begin = i + 1;
    out += '\\';
    out += escape;
    if (escape == 'u') {
      out += "00";
      out += digits[text[i] >> 4];
      out += digits[text[i] & 15];
    }
  }
  out.append(text, begin, text.size() - begin);
  out += '"';
}

bool kvcache::isJsonTooDeep(std::string_view text) {
  unsigned depth = 0;
  bool inString = false;
  for (size_t i = 0; i < text.size(); ++i) {
    char c = text[i];
    if (inString) {
      if (c == '\\')
        ++i;
      inString = c != '"';
    } else if (c == '"') {
      inString = true;
    } else if (c == '[' || c == '{') {
      if (++depth > maxJsonDepth)
        return true;
    } else if ((c == ']' || c == '}') && depth != 0) {
      --depth;
    }
  }
  return false;
}

std::string kvcache::quoteJson(std::string_view text) {
  std::string quoted;
  appendQuoted(quoted, text);
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
    appendQuoted(out, object[i].first);
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
    appendQuoted(out, value.asString());
  else if (value.isArray())
    printArray(value.asArray(), indent, level, out);
  else
    printObject(value.asObject(), indent, level, out);
}

} // namespace

std::string JsonValue::print(unsigned indent) const {
  std::string out;
  printValue(*this, indent, 0, out);
  return out;
}
