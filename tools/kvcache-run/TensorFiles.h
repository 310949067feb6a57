//===- TensorFiles.h - Tensors in and out of kvcache-run --------*- C++ -*-===//

#ifndef KVCACHE_TOOLS_RUN_TENSORFILES_H
#define KVCACHE_TOOLS_RUN_TENSORFILES_H

#include "kvcache/Checkpoint/Safetensors.h"
#include "kvcache/Runtime/Tensor.h"

#include <deque>

namespace kvcache::run {

/// Named tensors from files; a later file's tensor replaces an earlier one's.
class TensorFiles {
public:
  /// Adds a file's tensors. Element types that no buffer and no graph takes
  /// are refused only when the tensor is used.
  Error add(const std::string &path);

  /// Null when no file has such a tensor.
  const Tensor *find(const std::string &name) const;
  /// The tensor's elements, at an address that fits their type.
  Expected<TensorView> view(const std::string &name);

  /// Names of the file added last.
  const std::vector<std::string> &latest() const { return latestNames; }
  const std::string &latestPath() const { return files.back().path(); }

private:
  std::deque<SafetensorsFile> files;
  std::map<std::string, const Tensor *> tensors;
  std::map<const Tensor *, std::vector<uint64_t>> aligned; // copies
  std::vector<std::string> latestNames;
};

/// Collects tensors and writes them as one safetensors file.
class TensorWriter {
public:
  void add(const std::string &name, HostTensor tensor);
  Error write(const std::string &path) const;

private:
  std::map<std::string, HostTensor> tensors;
};

} // namespace kvcache::run

#endif // KVCACHE_TOOLS_RUN_TENSORFILES_H
