//===- Lexer.cpp - PTX tokens ---------------------------------------------===//

#include "Lexer.h"

#include <cctype>
#include <cerrno>
#include <cstdlib>

using namespace kvcache::ptx;

namespace {

class Lexer {
public:
  explicit Lexer(std::string_view text) : text(text) {}

  std::vector<Token> all() {
    std::vector<Token> tokens;
    do
      tokens.push_back(next());
    while (tokens.back().kind != Token::End);
    return tokens;
  }

private:
  std::string_view text;
  size_t pos = 0;
  u32 line = 1;

  char at(size_t p) const { return p < text.size() ? text[p] : '\0'; }
  static bool isDigit(char c) { return isdigit(u8(c)); }
  static bool isWordChar(char c) {
    return isalnum(u8(c)) || c == '_' || c == '$' || c == '%';
  }

  [[noreturn]] void fail(const std::string &what) {
    throw SyntaxError("line " + std::to_string(line) + ": " + what);
  }

  void skipBlanks() {
    while (pos < text.size()) {
      char c = text[pos];
      if (c == '\n') {
        ++line;
        ++pos;
      } else if (isspace(u8(c))) {
        ++pos;
      } else if (c == '/' && at(pos + 1) == '/') {
        while (pos < text.size() && text[pos] != '\n')
          ++pos;
      } else if (c == '/' && at(pos + 1) == '*') {
        size_t end = text.find("*/", pos + 2);
        if (end == std::string_view::npos)
          fail("comment without end");
        for (; pos < end; ++pos)
          line += text[pos] == '\n';
        pos += 2;
      } else {
        return;
      }
    }
  }

  Token next() {
    skipBlanks();
    Token token;
    token.line = line;
    if (pos >= text.size())
      return token;
    char c = text[pos];
    size_t begin = pos;
    if (c == '"') {
      size_t end = text.find('"', pos + 1);
      if (end == std::string_view::npos)
        fail("string without end");
      token.kind = Token::String;
      token.text = text.substr(pos + 1, end - pos - 1);
      pos = end + 1;
      return token;
    }
    if (isDigit(c))
      return number(token);
    bool starts = isWordChar(c) || (c == '.' && isWordChar(at(pos + 1)));
    if (starts && !(c == '%' && !isWordChar(at(pos + 1)))) {
      ++pos;
      for (;;) {
        if (isWordChar(at(pos)))
          ++pos;
        else if (c != '.' && at(pos) == '.' && isWordChar(at(pos + 1)))
          ++pos; // a directive ends there: .reg.b32 is two
        else if (at(pos) == ':' && at(pos + 1) == ':')
          pos += 2;
        else
          break;
      }
      token.kind = Token::Id;
      token.text = text.substr(begin, pos - begin);
      return token;
    }
    ++pos;
    token.kind = Token::Punct;
    token.text = std::string(1, c);
    return token;
  }

  u64 digits(int base) {
    size_t begin = pos;
    while (isxdigit(u8(at(pos))) && (base == 16 || isDigit(at(pos))))
      ++pos;
    const std::string all(text.substr(begin, pos - begin));
    char *end = nullptr;
    errno = 0;
    u64 value = strtoull(all.c_str(), &end, base);
    if (all.empty() || *end || errno)
      fail("'" + all + "' is no number of base " + std::to_string(base) +
           " with up to 64 bits");
    return value;
  }

  Token number(Token token) {
    token.kind = Token::Number;
    size_t begin = pos;
    char mark = at(pos) == '0' ? at(pos + 1) : '\0';
    if (mark == 'f' || mark == 'F' || mark == 'd' || mark == 'D') {
      pos += 2;
      token.value = digits(16);
      token.isFloat = true;
      token.isDouble = mark == 'd' || mark == 'D';
      const size_t wanted = token.isDouble ? 16 : 8;
      if (pos - begin != wanted + 2)
        fail("expected " + std::to_string(wanted) + " hexadecimal digits");
    } else if (mark == 'x' || mark == 'X') {
      pos += 2;
      token.value = digits(16);
    } else if (mark == 'b' || mark == 'B') {
      pos += 2;
      token.value = digits(2);
    } else {
      auto skipDigits = [&] {
        while (isDigit(at(pos)))
          ++pos;
      };
      skipDigits();
      if (at(pos) != '.' || !isDigit(at(pos + 1))) {
        pos = begin;
        token.value = digits(mark != '\0' && isDigit(mark) ? 8 : 10);
      } else { // 1.5, 8.3
        ++pos;
        skipDigits();
        if (at(pos) == 'e' || at(pos) == 'E') {
          ++pos;
          if (at(pos) == '-' || at(pos) == '+')
            ++pos;
          skipDigits();
        }
        double value = strtod(
            std::string(text.substr(begin, pos - begin)).c_str(), nullptr);
        memcpy(&token.value, &value, 8);
        token.isFloat = token.isDouble = true;
      }
    }
    if (at(pos) == 'U')
      ++pos;
    token.text = text.substr(begin, pos - begin);
    return token;
  }
};

} // namespace

std::vector<Token> kvcache::ptx::tokenize(std::string_view text) {
  return Lexer(text).all();
}
