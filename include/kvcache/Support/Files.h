//===- Files.h - Reading files, writing them all or nothing -----*- C++ -*-===//
//
// Whoever reads an output of ours finds it complete or not at all: files are
// written under a temporary name beside the final one and renamed, folders
// are staged and exchanged.
//
//===----------------------------------------------------------------------===//

#ifndef KVCACHE_SUPPORT_FILES_H
#define KVCACHE_SUPPORT_FILES_H

#include "kvcache/Support/Expected.h"

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace kvcache {

/// The whole file. The error names the path and the system's reason.
Expected<std::string> readFile(const std::string &path);

/// Writes `data` to `path`: a temporary name in the same folder, then a rename;
/// nothing is left behind on failure. A path that exists and is not a regular
/// file (a device, a pipe) is written directly.
Error writeFileAtomically(const std::string &path, std::string_view data);
/// The same for data in several pieces, which are written one after the other.
Error writeFileAtomically(const std::string &path,
                          const std::vector<std::string_view> &pieces);

bool pathExists(const std::string &path);
bool isDirectory(const std::string &path);
bool isRegularFile(const std::string &path);

/// `folder`/`name`.
std::string joinPath(const std::string &folder, const std::string &name);
/// The part after the last '/'.
std::string baseName(const std::string &path);

/// Names (not paths) of the entries of a folder, sorted bytewise, without "."
/// and "..".
Expected<std::vector<std::string>> listDirectory(const std::string &path);

/// A file mapped read-only. Pages are read when they are touched.
class MappedFile {
public:
  static Expected<MappedFile> open(const std::string &path);

  MappedFile() = default;
  MappedFile(MappedFile &&other) noexcept { swap(other); }
  MappedFile &operator=(MappedFile &&other) noexcept {
    swap(other);
    return *this;
  }
  MappedFile(const MappedFile &) = delete;
  MappedFile &operator=(const MappedFile &) = delete;
  ~MappedFile();

  const uint8_t *data() const { return bytes; }
  uint64_t size() const { return length; }

private:
  void swap(MappedFile &other) noexcept {
    std::swap(bytes, other.bytes);
    std::swap(length, other.length);
  }

  const uint8_t *bytes = nullptr;
  uint64_t length = 0;
};

/// A folder that appears at its final path complete or not at all. Write files
/// below stagingPath(), then commit(). Without commit() the staging folder is
/// removed when the object dies.
class StagedDirectory {
public:
  /// Makes the staging folder beside `finalPath`. An existing folder there is
  /// accepted only when it is empty or holds a file named `marker` (such as
  /// "manifest.json"): nothing else is ever replaced.
  static Expected<StagedDirectory> create(const std::string &finalPath,
                                          const std::string &marker);

  StagedDirectory(StagedDirectory &&other) noexcept
      : staging(std::move(other.staging)), target(std::move(other.target)),
        marker(std::move(other.marker)) {
    other.staging.clear();
  }
  StagedDirectory(const StagedDirectory &) = delete;
  StagedDirectory &operator=(const StagedDirectory &) = delete;
  StagedDirectory &operator=(StagedDirectory &&) = delete;
  ~StagedDirectory();

  const std::string &stagingPath() const { return staging; }

  /// Renames the staging folder to the final path; a previous folder is
  /// exchanged in one step where the system can do that, and then removed.
  Error commit();

private:
  StagedDirectory() = default;

  std::string staging, target, marker;
};

/// Makes one folder; success if it is there already.
Error makeDirectory(const std::string &path);

} // namespace kvcache

#endif // KVCACHE_SUPPORT_FILES_H
