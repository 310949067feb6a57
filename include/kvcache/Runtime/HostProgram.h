//===- HostProgram.h - A bundle's graph around its segments -----*- C++ -*-===//
//
// Opens libKVCacheHost.so, which compiles host.mlir in process, and runs it.
//
//===----------------------------------------------------------------------===//

#ifndef KVCACHE_RUNTIME_HOSTPROGRAM_H
#define KVCACHE_RUNTIME_HOSTPROGRAM_H

#include "kvcache/Bundle/Bundle.h"
#include "kvcache/Runtime/Tensor.h"

#include <functional>
#include <memory>

namespace kvcache {

class HostProgram {
public:
  /// Runs one segment over the memrefs that the graph passes, in the order of
  /// Segment::arguments. An error stops the graph.
  using RunSegment =
      std::function<Error(const Segment &, const std::vector<TensorView> &)>;

  /// Compiles the program's host code with the library at `library`; an empty
  /// name looks beside the running executable and in ../lib.
  static Expected<std::unique_ptr<HostProgram>>
  open(const Bundle &bundle, const Program &program,
       const std::string &library = "");
  ~HostProgram();
  HostProgram(const HostProgram &) = delete;
  HostProgram &operator=(const HostProgram &) = delete;

  /// Calls the graph's function; `arguments` by name, each as the manifest
  /// declares it. Returns the results in the manifest's order.
  Expected<std::vector<HostTensor>>
  run(const std::map<std::string, TensorView> &arguments,
      const RunSegment &runSegment);

private:
  struct Impl;
  explicit HostProgram(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl;
};

} // namespace kvcache

#endif // KVCACHE_RUNTIME_HOSTPROGRAM_H
