//===- Backend.h - Devices as the C interface drives them -------*- C++ -*-===//
//
// A backend has memory, loads a target's code once, and then only enqueues
// launches whose argument bytes are ready, by themselves or as a graph. Device
// (kvcache/Runtime/Device.h) is the other view of the same hardware: one launch
// at a time, run to its end, with the findings of the PTX machine.
//
//===----------------------------------------------------------------------===//

#ifndef KVCACHE_LIB_RUNTIME_BACKEND_H
#define KVCACHE_LIB_RUNTIME_BACKEND_H

#include "kvcache-c/Runtime.h"
#include "kvcache/Runtime/Device.h"

#include <functional>

namespace kvcache {

/// A status of the C interface with its text; success when the status is
/// KVCACHE_OK. Converts to true when it is a failure, as Error does.
class [[nodiscard]] Outcome {
public:
  Outcome() = default;
  Outcome(KvcacheStatus status, std::string text)
      : status(status), text(std::move(text)) {}
  explicit operator bool() const { return status != KVCACHE_OK; }
  KvcacheStatus code() const { return status; }
  const std::string &message() const { return text; }
  Outcome withContext(const std::string &context) const {
    return *this ? Outcome(status, context + ": " + text) : *this;
  }
  Error asError() const { return *this ? makeError(text) : Error::success(); }

private:
  KvcacheStatus status = KVCACHE_OK;
  std::string text;
};

/// A launch with its argument bytes: one cell of 8 bytes per argument, as the
/// address that cuLaunchKernel reads it from. Not copyable: `pointers` points
/// into `cells`.
class LaunchPacket {
public:
  /// `index` is the launch's position in Target::launches. Buffers are 0 until
  /// setBuffer.
  LaunchPacket(const Launch &launch, size_t index);
  LaunchPacket(LaunchPacket &&) = default;

  const Launch &launch() const { return *entry; }
  size_t index() const { return position; }
  void **arguments() const { return const_cast<void **>(pointers.data()); }

  uint64_t cell(size_t argument) const { return cells[argument]; }
  void setCell(size_t argument, uint64_t value) { cells[argument] = value; }
  /// Takes the cells of a packet of the same launch.
  void copyCells(const LaunchPacket &other);

  /// Parameters at their offsets in the kernel's .param space.
  std::vector<uint8_t> bytes() const;

private:
  const Launch *entry;
  size_t position;
  std::vector<uint64_t> cells;
  std::vector<void *> pointers;
};

/// Launches in order whose argument bytes are frozen.
class BackendGraph {
public:
  virtual ~BackendGraph();
  virtual Outcome replay(KvcacheStream stream) = 0;
  /// New argument bytes for the same launches.
  virtual Outcome update(const std::vector<LaunchPacket> &packets) = 0;
};

/// A target's code on a backend.
class BackendCode {
public:
  virtual ~BackendCode();
  /// "cubin" or "ptx".
  virtual const char *kind() const = 0;
  virtual Outcome enqueue(const LaunchPacket &packet, KvcacheStream stream) = 0;
  virtual Outcome instantiate(const std::vector<LaunchPacket> &packets,
                              std::unique_ptr<BackendGraph> &graph) = 0;
};

class Backend {
public:
  virtual ~Backend();
  virtual std::string name() const = 0;
  virtual Outcome allocate(uint64_t bytes, uint64_t &address) = 0;
  virtual Outcome release(uint64_t address) = 0;
  /// Both return when the copy is done.
  virtual Outcome copyIn(uint64_t address, const void *source,
                         uint64_t bytes) = 0;
  virtual Outcome copyOut(void *target, uint64_t address, uint64_t bytes) = 0;
  virtual Outcome fill(uint64_t address, uint8_t value, uint64_t bytes,
                       KvcacheStream stream) = 0;
  virtual Outcome synchronize(KvcacheStream stream) = 0;
  /// KVCACHE_NO_CODE: the code is for another device, or the device cannot
  /// execute an instruction of it. Broken code is KVCACHE_INVALID_BUNDLE.
  virtual Outcome load(const Bundle &bundle, const Target &target,
                       std::unique_ptr<BackendCode> &code) = 0;
};

Outcome createMachineBackend(const ptx::LaunchOptions &options,
                             std::unique_ptr<Backend> &backend);

/// `context`: a CUcontext. `driver`: library to open.
Outcome createCudaBackend(void *context, const std::string &driver,
                          bool programmaticLaunch,
                          std::unique_ptr<Backend> &backend);

/// Loads a target: the one named `chip`, else the first that `load` takes, the
/// newest chip first and of one chip its exact kind (sm_90a). Only code that
/// does not suit the device, KVCACHE_NO_CODE, is passed over.
Outcome loadBestTarget(const Manifest &manifest, const std::string &chip,
                       const std::function<Outcome(const Target &)> &load,
                       const Target *&target);

/// 90 of "sm_90" and of "sm_90a".
int chipNumber(const std::string &chip);

/// Bytes of a kernel parameter for an argument of this kind.
uint32_t argumentBytes(Argument::Kind kind);

/// A target's PTX, of which every launch of the target finds a kernel that
/// takes what it gives; else KVCACHE_INVALID_BUNDLE. `executable`: instructions
/// that the PTX machine does not know are KVCACHE_NO_CODE.
Outcome parseTarget(const Bundle &bundle, const Target &target, bool executable,
                    std::optional<ptx::Module> &code);

} // namespace kvcache

#endif // KVCACHE_LIB_RUNTIME_BACKEND_H
