//===- PlainJson.cpp - parseJson of libkvcache_runtime.so -----------------===//
//
// Linked into that library in front of KVCacheSupport, whose parseJson needs
// simdjson and then stays out of it.
//
//===----------------------------------------------------------------------===//

#include "PlainJsonReader.h"

kvcache::Expected<kvcache::JsonValue>
kvcache::parseJson(std::string_view text, const std::string &what,
                   const JsonParseOptions &options) {
  return parsePlainJson(text, what, options);
}
