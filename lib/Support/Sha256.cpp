//===- Sha256.cpp - SHA-256 digests by libmd ------------------------------===//

#include "kvcache/Support/Sha256.h"

#include <cstdint>

// libmd's header declares functions over uint8_t, without including it.
#include <sha2.h>

std::string kvcache::sha256Hex(const void *data, size_t size) {
  char text[SHA256_DIGEST_STRING_LENGTH];
  SHA256Data(static_cast<const uint8_t *>(data), size, text);
  return text;
}
