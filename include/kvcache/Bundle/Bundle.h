//===- Bundle.h - A bundle: manifest and files ------------------*- C++ -*-===//
//
// A bundle is a directory: manifest.json, optional host code, and code objects
// per target. It can also be held and opened in memory.
//
//===----------------------------------------------------------------------===//

#ifndef KVCACHE_BUNDLE_BUNDLE_H
#define KVCACHE_BUNDLE_BUNDLE_H

#include "kvcache/Bundle/Manifest.h"

namespace kvcache {

/// A manifest and the contents of the files it names.
struct Bundle {
  Manifest manifest;
  std::map<std::string, std::string> files; // relative name -> contents

  /// Contents of a file that the manifest names; never null after openBundle.
  const std::string *find(const std::string &file) const;
};

/// Sets every FileDigest::sha256 of the manifest from `files`. Fails if a file
/// is named that is not there, or is there and not named.
Error updateDigests(Bundle &bundle);

/// Reads a bundle directory: manifest, then every file that it names, each
/// compared with its digest. Symbolic links that leave the directory are
/// refused.
Expected<Bundle> openBundle(const std::string &directory);

/// The same from memory; `files` holds "manifest.json" too.
Expected<Bundle> openBundle(std::map<std::string, std::string> files);

/// Computes digests, validates, and writes into a temporary directory that is
/// then renamed to `directory`. An existing bundle of that name is replaced;
/// anything else of that name is refused. Nothing is left after a failure.
Error writeBundle(const std::string &directory, Bundle bundle);

} // namespace kvcache

#endif // KVCACHE_BUNDLE_BUNDLE_H
