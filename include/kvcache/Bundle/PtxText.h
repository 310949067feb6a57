//===- PtxText.h - Cutting and joining PTX modules --------------*- C++ -*-===//

#ifndef KVCACHE_BUNDLE_PTXTEXT_H
#define KVCACHE_BUNDLE_PTXTEXT_H

#include <string>
#include <utility>
#include <vector>

namespace kvcache {

/// A PTX text by its top-level items; comments outside kernels are dropped.
struct PtxModule {
  std::string directives; // .version, .target, .address_size
  std::string globals;    // everything else outside kernels
  std::vector<std::pair<std::string, std::string>> kernels; // name, text

  static PtxModule parse(const std::string &text);
  std::string version() const; // "7.8"
  std::string print() const;
};

} // namespace kvcache

#endif // KVCACHE_BUNDLE_PTXTEXT_H
