//===- PlainScanner.h - JSON as it is mostly written ------------*- C++ -*-===//
//
// Headers of safetensors files and shard indices are long and look alike:
// objects of plain strings and small numbers. This scanner reads those where
// they stand, without copies. Whatever else JSON allows (escapes, text beyond
// ASCII, signs, fractions, deep nesting) and whatever is wrong makes it give
// up; the caller then takes a JSON parser, which reads it or says what is wrong
// with it. So what is accepted here must mean the same there.
//
//===----------------------------------------------------------------------===//

#ifndef KVCACHE_LIB_CHECKPOINT_PLAINSCANNER_H
#define KVCACHE_LIB_CHECKPOINT_PLAINSCANNER_H

#include <cstdint>
#include <string_view>

#ifdef __SSE2__
#include <emmintrin.h>
#endif

namespace kvcache {

class PlainScanner {
public:
  explicit PlainScanner(std::string_view text)
      : at(text.data()), end(text.data() + text.size()) {}

  /// Only space is left.
  bool atEnd() {
    skipSpace();
    return at == end;
  }

  /// Takes `c` if it comes next.
  bool take(char c) {
    skipSpace();
    if (at == end || *at != c)
      return false;
    ++at;
    return true;
  }

  /// A string of ASCII without escapes.
  bool string(std::string_view &value) {
    if (!take('"'))
      return false;
    const char *first = at;
    skipPlain();
    if (at == end || *at != '"')
      return false;
    value = {first, size_t(at - first)};
    ++at;
    return true;
  }

  /// An integer of at most 18 digits.
  bool number(uint64_t &value) {
    skipSpace();
    const char *first = at;
    value = 0;
    while (at != end && *at >= '0' && *at <= '9')
      value = value * 10 + uint64_t(*at++ - '0');
    size_t digits = size_t(at - first);
    return digits != 0 && digits <= 18 && (*first != '0' || digits == 1) &&
           (at == end || (*at != '.' && *at != 'e' && *at != 'E'));
  }

  /// `{"name": ..., ...}`: calls `member(name)` behind each colon.
  template <typename Member> bool object(const Member &member) {
    if (!take('{'))
      return false;
    if (take('}'))
      return true;
    do {
      std::string_view name;
      if (!string(name) || !take(':') || !member(name))
        return false;
    } while (take(','));
    return take('}');
  }

  /// `[..., ...]`: calls `element()` in front of each.
  template <typename Element> bool array(const Element &element) {
    if (!take('['))
      return false;
    if (take(']'))
      return true;
    do {
      if (!element())
        return false;
    } while (take(','));
    return take(']');
  }

private:
  /// To the next quote, backslash, control character or byte beyond ASCII.
  void skipPlain() {
#ifdef __SSE2__
    for (; end - at >= 16; at += 16) {
      __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i *>(at));
      // As signed numbers, bytes beyond ASCII are below the space, too.
      __m128i special = _mm_or_si128(
          _mm_cmplt_epi8(bytes, _mm_set1_epi8(' ')),
          _mm_or_si128(_mm_cmpeq_epi8(bytes, _mm_set1_epi8('"')),
                       _mm_cmpeq_epi8(bytes, _mm_set1_epi8('\\'))));
      if (int mask = _mm_movemask_epi8(special)) {
        at += __builtin_ctz(unsigned(mask));
        return;
      }
    }
#endif
    while (at != end && static_cast<signed char>(*at) >= ' ' && *at != '"' &&
           *at != '\\')
      ++at;
  }
  void skipSpace() {
    while (at != end &&
           (*at == ' ' || *at == '\n' || *at == '\r' || *at == '\t'))
      ++at;
  }

  const char *at, *end;
};

} // namespace kvcache

#endif // KVCACHE_LIB_CHECKPOINT_PLAINSCANNER_H
