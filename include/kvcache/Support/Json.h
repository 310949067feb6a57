//===- Json.h - JSON values, deterministic output ---------------*- C++ -*-===//
//
// A plain tree of JSON values. Objects keep the order of their members, and
// printing the same tree gives the same bytes everywhere: manifests are
// compared by digest.
//
//===----------------------------------------------------------------------===//

#ifndef KVCACHE_SUPPORT_JSON_H
#define KVCACHE_SUPPORT_JSON_H

#include "kvcache/Support/Expected.h"

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace kvcache {

class JsonValue {
public:
  using Array = std::vector<JsonValue>;
  using Member = std::pair<std::string, JsonValue>;
  using Object = std::vector<Member>;

  JsonValue() = default; // null
  JsonValue(std::nullptr_t) {}
  JsonValue(bool value) : storage(value) {}
  JsonValue(int value) : storage(int64_t(value)) {}
  JsonValue(unsigned value) : storage(int64_t(value)) {}
  JsonValue(long value) : storage(int64_t(value)) {}
  JsonValue(long long value) : storage(int64_t(value)) {}
  /// Sizes; must be below 2^63.
  JsonValue(unsigned long value) : storage(int64_t(value)) {}
  JsonValue(double value) : storage(value) {}
  JsonValue(const char *value) : storage(std::string(value)) {}
  JsonValue(std::string_view value) : storage(std::string(value)) {}
  JsonValue(std::string value) : storage(std::move(value)) {}
  JsonValue(Array value) : storage(std::move(value)) {}
  JsonValue(Object value) : storage(std::move(value)) {}
  static JsonValue object() { return JsonValue(Object()); }
  static JsonValue array() { return JsonValue(Array()); }

  bool isNull() const {
    return std::holds_alternative<std::monostate>(storage);
  }
  bool isBool() const { return std::holds_alternative<bool>(storage); }
  bool isInteger() const { return std::holds_alternative<int64_t>(storage); }
  /// An integer or a floating-point number.
  bool isNumber() const {
    return isInteger() || std::holds_alternative<double>(storage);
  }
  bool isString() const { return std::holds_alternative<std::string>(storage); }
  bool isArray() const { return std::holds_alternative<Array>(storage); }
  bool isObject() const { return std::holds_alternative<Object>(storage); }
  /// "null", "a boolean", "an integer", "a number", "a string", "an array",
  /// "an object".
  const char *kindName() const;

  bool asBool() const { return std::get<bool>(storage); }
  int64_t asInteger() const { return std::get<int64_t>(storage); }
  double asDouble() const {
    return isInteger() ? double(asInteger()) : std::get<double>(storage);
  }
  const std::string &asString() const { return std::get<std::string>(storage); }
  const Array &asArray() const { return std::get<Array>(storage); }
  Array &asArray() { return std::get<Array>(storage); }
  const Object &asObject() const { return std::get<Object>(storage); }
  Object &asObject() { return std::get<Object>(storage); }

  /// The member `key` of an object (of two with one name the last, as in
  /// Python); null when it is absent or this is no object.
  const JsonValue *find(std::string_view key) const;
  /// As find(), but a member that is `null` counts as absent.
  const JsonValue *findNonNull(std::string_view key) const;

  /// Appends a member to an object, or an element to an array.
  void set(std::string key, JsonValue value) {
    asObject().emplace_back(std::move(key), std::move(value));
  }
  void push(JsonValue value) { asArray().push_back(std::move(value)); }

  /// Text with `indent` spaces a level (0: one line). Doubles are printed with
  /// the fewest digits that give the same double again and always with a point
  /// or an exponent; not finite ones as null. Arrays of numbers and strings
  /// stay on one line.
  std::string print(unsigned indent = 2) const;

private:
  std::variant<std::monostate, bool, int64_t, double, std::string, Array,
               Object>
      storage;
};

struct JsonParseOptions {
  /// Refuse an object that names a member twice.
  bool rejectDuplicates = false;
  /// Read Python's NaN, Infinity and -Infinity as null instead of failing.
  bool pythonNonFinite = false;
};

/// Parses one JSON document. `what` (a file name) starts the error message.
/// Integers beyond int64 become doubles.
Expected<JsonValue> parseJson(std::string_view text, const std::string &what,
                              const JsonParseOptions &options = {});

/// Levels of arrays and objects that parseJson() takes: simdjson's limit.
inline constexpr unsigned maxJsonDepth = 1024;

/// True if `text` has more levels. A parser that recurses without a limit, as
/// LLVM's does, overflows the stack on such text.
bool isJsonTooDeep(std::string_view text);

/// `text` as a JSON string with its quotes.
std::string quoteJson(std::string_view text);

/// Fewest digits that read back as the same value, always with '.', 'e', "inf"
/// or "nan" in it: 1.0, 0.0123, 1e-30.
std::string formatDouble(double value);
std::string formatFloat(float value);

} // namespace kvcache

#endif // KVCACHE_SUPPORT_JSON_H
