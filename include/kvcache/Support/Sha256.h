//===- Sha256.h - SHA-256 digests -------------------------------*- C++ -*-===//

#ifndef KVCACHE_SUPPORT_SHA256_H
#define KVCACHE_SUPPORT_SHA256_H

#include <cstddef>
#include <string>
#include <string_view>

namespace kvcache {

/// SHA-256 of `size` bytes as 64 lower-case hexadecimal digits.
std::string sha256Hex(const void *data, size_t size);

inline std::string sha256Hex(std::string_view text) {
  return sha256Hex(text.data(), text.size());
}

} // namespace kvcache

#endif // KVCACHE_SUPPORT_SHA256_H
