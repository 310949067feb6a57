//===- PlainJsonReader.h - JSON text without simdjson -----------*- C++ -*-===//

#ifndef KVCACHE_LIB_RUNTIME_PLAINJSONREADER_H
#define KVCACHE_LIB_RUNTIME_PLAINJSONREADER_H

#include "kvcache/Support/Json.h"

namespace kvcache {

/// As parseJson.
Expected<JsonValue> parsePlainJson(std::string_view text,
                                   const std::string &what,
                                   const JsonParseOptions &options = {});

} // namespace kvcache

#endif // KVCACHE_LIB_RUNTIME_PLAINJSONREADER_H
