//===- my-server.cpp - Reads a bundle without LLVM ------------------------===//
//
//   my-server BUNDLE
//
// What a serving process asks before it runs a bundle: which layers have which
// scales, whether a stored prefix cache still fits, what to allocate.
//
//===----------------------------------------------------------------------===//

#include "kvcache/Bundle/Bundle.h"
#include <cstdio>

int main(int argc, char **argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: my-server BUNDLE\n");
    return 2;
  }
  auto bundle = kvcache::openBundle(argv[1]);
  if (!bundle) {
    std::fprintf(stderr, "%s\n", bundle.error().message().c_str());
    return 1;
  }
  for (const kvcache::Layer &layer : bundle->manifest.layers)
    std::printf("%s: k scale %g, cache compatible with %.8s...\n",
                layer.name.c_str(), layer.kScale.value.value(),
                layer.compatibility.c_str());
  unsigned long long bytes = 0;
  for (const kvcache::Buffer &buffer : bundle->manifest.buffers)
    if (buffer.role == kvcache::BufferRole::Cache)
      bytes += buffer.bytes;
  std::printf("caches need %llu bytes\n", bytes);
  return 0;
}
