//===- PlainJsonReader.cpp - JSON text without simdjson -------------------===//
//
// libkvcache_runtime.so depends on libc and libstdc++ only, and Debian ships
// simdjson as a shared library only. So that library reads its one small
// manifest with this reader; everything else uses JsonReader.cpp. Both accept
// the same texts (PlainJsonReaderTest).
//
//===----------------------------------------------------------------------===//

#include "PlainJsonReader.h"

#include <charconv>
#include <cmath>
#include <cstring>
#include <unordered_set>

using namespace kvcache;

namespace {

class Reader {
public:
  Reader(std::string_view text, const JsonParseOptions &options)
      : text(text), options(options) {}

  Error document(JsonValue &value) {
    skipSpace();
    if (Error error = element(value, 1))
      return error;
    skipSpace();
    return at == text.size() ? Error::success() : wrong("the end of the text");
  }

private:
  Error wrong(const std::string &expected) const {
    size_t line = 1;
    for (size_t i = 0; i < at && i < text.size(); ++i)
      line += text[i] == '\n';
    return makeError("not valid JSON: line " + std::to_string(line) +
                     ": expected " + expected + ", found " +
                     (at < text.size() ? quoteJson(text.substr(at, 1))
                                       : std::string("the end")));
  }

  char peek() const { return at < text.size() ? text[at] : '\0'; }
  bool take(char c) {
    if (at >= text.size() || text[at] != c)
      return false;
    ++at;
    return true;
  }
  void skipSpace() {
    while (at < text.size() && std::strchr(" \t\r\n", text[at]) && text[at])
      ++at;
  }
  bool word(std::string_view expected) {
    if (text.substr(at, expected.size()) != expected)
      return false;
    at += expected.size();
    return true;
  }

  Error element(JsonValue &value, unsigned depth) {
    if (depth > maxJsonDepth)
      return makeError("not valid JSON: nested deeper than " +
                       std::to_string(maxJsonDepth) + " levels");
    switch (peek()) {
    case '{':
      return object(value, depth);
    case '[':
      return array(value, depth);
    case '"': {
      std::string string;
      if (Error error = stringText(string))
        return error;
      value = std::move(string);
      return Error::success();
    }
    default:
      break;
    }
    if (word("true")) {
      value = true;
    } else if (word("false")) {
      value = false;
    } else if (word("null") ||
               (options.pythonNonFinite &&
                (word("NaN") || word("Infinity") || word("-Infinity")))) {
      value = nullptr;
    } else {
      return number(value);
    }
    return Error::success();
  }

  Error array(JsonValue &value, unsigned depth) {
    JsonValue::Array elements;
    ++at;
    skipSpace();
    if (!take(']')) {
      do {
        skipSpace();
        elements.emplace_back();
        if (Error error = element(elements.back(), depth + 1))
          return error;
        skipSpace();
      } while (take(','));
      if (!take(']'))
        return wrong("',' or ']'");
    }
    value = std::move(elements);
    return Error::success();
  }

  Error object(JsonValue &value, unsigned depth) {
    JsonValue::Object members;
    std::unordered_set<std::string> seen;
    ++at;
    skipSpace();
    if (!take('}')) {
      do {
        skipSpace();
        std::string key;
        if (peek() != '"')
          return wrong("a member's name");
        if (Error error = stringText(key))
          return error;
        if (options.rejectDuplicates && !seen.insert(key).second)
          return makeError("the member " + quoteJson(key) +
                           " occurs twice in one object");
        skipSpace();
        if (!take(':'))
          return wrong("':'");
        skipSpace();
        members.emplace_back(std::move(key), JsonValue());
        if (Error error = element(members.back().second, depth + 1))
          return error;
        skipSpace();
      } while (take(','));
      if (!take('}'))
        return wrong("',' or '}'");
    }
    value = std::move(members);
    return Error::success();
  }

  Error number(JsonValue &value) {
    size_t start = at;
    take('-');
    auto digits = [&] {
      size_t first = at;
      while (peek() >= '0' && peek() <= '9')
        ++at;
      return at - first;
    };
    bool leadingZero = peek() == '0';
    size_t whole = digits();
    if (whole == 0 || (leadingZero && whole > 1))
      return wrong("a value");
    bool integer = true;
    if (take('.')) {
      integer = false;
      if (digits() == 0)
        return wrong("a digit");
    }
    if (peek() == 'e' || peek() == 'E') {
      integer = false;
      ++at;
      if (!take('+'))
        take('-');
      if (digits() == 0)
        return wrong("a digit");
    }
    if (at < text.size() && !std::strchr(" \t\r\n,]}", text[at]))
      return wrong("the end of a number");
    const char *first = text.data() + start, *last = text.data() + at;
    int64_t exact = 0;
    if (integer && std::from_chars(first, last, exact).ec == std::errc()) {
      value = exact;
      return Error::success();
    }
    // Integers beyond 64 bits are refused, as simdjson does.
    uint64_t large = 0;
    if (integer && std::from_chars(first, last, large).ec != std::errc())
      return makeError("not valid JSON: the integer " +
                       std::string(first, last) + " is out of range");
    double real = 0;
    std::from_chars_result result = std::from_chars(first, last, real);
    // Tiny numbers become 0; from_chars reports them like huge ones.
    if (result.ec != std::errc())
      real = std::strtod(std::string(first, last).c_str(), nullptr);
    if (!std::isfinite(real))
      return makeError("not valid JSON: the number " +
                       std::string(first, last) + " is out of range");
    value = real;
    return Error::success();
  }

  /// Four hex digits after "\u", or -1.
  int unicodeUnit() {
    if (at + 4 > text.size())
      return -1;
    int unit = 0;
    auto [end, code] =
        std::from_chars(text.data() + at, text.data() + at + 4, unit, 16);
    if (code != std::errc() || end != text.data() + at + 4 || unit < 0 ||
        text[at] == '-')
      return -1;
    at += 4;
    return unit;
  }

  static void appendUtf8(std::string &out, uint32_t point) {
    if (point < 0x80) {
      out += char(point);
    } else if (point < 0x800) {
      out += char(0xC0 | (point >> 6));
      out += char(0x80 | (point & 63));
    } else if (point < 0x10000) {
      out += char(0xE0 | (point >> 12));
      out += char(0x80 | ((point >> 6) & 63));
      out += char(0x80 | (point & 63));
    } else {
      out += char(0xF0 | (point >> 18));
      out += char(0x80 | ((point >> 12) & 63));
      out += char(0x80 | ((point >> 6) & 63));
      out += char(0x80 | (point & 63));
    }
  }

  /// Bytes of the UTF-8 sequence at `at`, or 0 when it is none (overlong,
  /// surrogate, cut).
  size_t utf8Length() const {
    auto byte = [&](size_t i) {
      return at + i < text.size() ? uint8_t(text[at + i]) : uint8_t(0);
    };
    auto tail = [&](size_t i) { return (byte(i) & 0xC0) == 0x80; };
    uint8_t lead = byte(0);
    if (lead < 0x80)
      return 1;
    if (lead >= 0xC2 && lead < 0xE0)
      return tail(1) ? 2 : 0;
    if (lead >= 0xE0 && lead < 0xF0) {
      if (!tail(1) || !tail(2) || (lead == 0xE0 && byte(1) < 0xA0) ||
          (lead == 0xED && byte(1) >= 0xA0))
        return 0;
      return 3;
    }
    if (lead >= 0xF0 && lead < 0xF5) {
      if (!tail(1) || !tail(2) || !tail(3) ||
          (lead == 0xF0 && byte(1) < 0x90) || (lead == 0xF4 && byte(1) >= 0x90))
        return 0;
      return 4;
    }
    return 0;
  }

  Error stringText(std::string &out) {
    ++at;
    while (!take('"')) {
      if (at >= text.size() || uint8_t(text[at]) < 0x20)
        return wrong("the rest of a string");
      if (!take('\\')) {
        size_t length = utf8Length();
        if (length == 0)
          return makeError("not valid JSON: a string is not UTF-8");
        out.append(text, at, length);
        at += length;
        continue;
      }
      if (take('u')) {
        int unit = unicodeUnit();
        uint32_t point = uint32_t(unit);
        if (unit >= 0xD800 && unit < 0xDC00) {
          int low = word("\\u") ? unicodeUnit() : -1;
          if (low < 0xDC00 || low >= 0xE000)
            return wrong("the second half of a surrogate pair");
          point = 0x10000 + ((point - 0xD800) << 10) + uint32_t(low - 0xDC00);
        } else if (unit < 0 || (unit >= 0xDC00 && unit < 0xE000)) {
          return wrong("four hexadecimal digits of a character");
        }
        appendUtf8(out, point);
        continue;
      }
      static const char from[] = "\"\\/bfnrt", to[] = "\"\\/\b\f\n\r\t";
      const char *found = peek() ? std::strchr(from, peek()) : nullptr;
      if (!found)
        return wrong("an escape");
      out += to[found - from];
      ++at;
    }
    return Error::success();
  }

  std::string_view text;
  const JsonParseOptions &options;
  size_t at = 0;
};

} // namespace

Expected<JsonValue> kvcache::parsePlainJson(std::string_view text,
                                            const std::string &what,
                                            const JsonParseOptions &options) {
  JsonValue value;
  if (Error error = Reader(text, options).document(value))
    return error.withContext(what);
  return value;
}
