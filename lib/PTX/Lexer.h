//===- Lexer.h - PTX tokens -------------------------------------*- C++ -*-===//

#ifndef KVCACHE_LIB_PTX_LEXER_H
#define KVCACHE_LIB_PTX_LEXER_H

#include "Statement.h"

namespace kvcache::ptx {

struct Token {
  enum Kind { Id, Number, Punct, String, End } kind = End;
  std::string text;
  u64 value = 0;
  bool isFloat = false;  // value holds the bits of an f32 (0f...)
  bool isDouble = false; // or of an f64 (0d... or decimal)
  u32 line = 0;
};

/// Throws SyntaxError with the line.
std::vector<Token> tokenize(std::string_view text);

} // namespace kvcache::ptx

#endif // KVCACHE_LIB_PTX_LEXER_H
