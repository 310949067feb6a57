//===- KernelCache.h - What a KernelCache keeps ----------------*- C++ -*-===//

#ifndef KVCACHE_LIB_PIPELINES_KERNELCACHE_H
#define KVCACHE_LIB_PIPELINES_KERNELCACHE_H

#include "Ptxas.h"
#include "kvcache/Pipelines/Compile.h"
#include <atomic>
#include <mutex>

namespace mlir::kvcache {

/// Values by key, each made once. Thread-safe: who asks for a value that is in
/// the making waits for it. A value stays where it is.
template <typename Value> class Memo {
public:
  /// `make` returns a std::optional; nothing is kept of a failure, for which
  /// the result is null.
  template <typename Make>
  const Value *get(StringRef key, std::atomic<uint64_t> &made,
                   std::atomic<uint64_t> &reused, Make make) {
    std::shared_ptr<Entry> entry;
    {
      std::lock_guard<std::mutex> lock(mutex);
      std::shared_ptr<Entry> &known = entries[key];
      if (!known)
        known = std::make_shared<Entry>();
      entry = known;
    }
    std::lock_guard<std::mutex> lock(entry->mutex);
    if (entry->value) {
      ++reused;
      return &*entry->value;
    }
    entry->value = make();
    if (!entry->value)
      return nullptr;
    ++made;
    return &*entry->value;
  }

private:
  struct Entry {
    std::mutex mutex;
    std::optional<Value> value;
  };
  std::mutex mutex;
  llvm::StringMap<std::shared_ptr<Entry>> entries;
};

struct KernelCache::Implementation {
  std::atomic<uint64_t> compiled{0}, assembled{0}, reused{0};
  Memo<std::string> kernels; // PTX of a module that holds one kernel
  Memo<Cubin> cubins;        // of a target's whole PTX
};

} // namespace mlir::kvcache

#endif // KVCACHE_LIB_PIPELINES_KERNELCACHE_H
