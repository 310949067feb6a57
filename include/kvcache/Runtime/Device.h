//===- Device.h - Where a bundle's kernels run ------------------*- C++ -*-===//
//
// A device has memory, loads a target's code and launches its kernels. The PTX
// machine (below) executes on the CPU the PTX that ships and checks every
// access; a GPU behind the driver API fits the same interface.
//
//===----------------------------------------------------------------------===//

#ifndef KVCACHE_RUNTIME_DEVICE_H
#define KVCACHE_RUNTIME_DEVICE_H

#include "kvcache/Bundle/Bundle.h"
#include "kvcache/PTX/Machine.h"

namespace kvcache {

/// What a device should think of an allocation.
struct MemoryOptions {
  std::string name;      // for findings
  bool readOnly = false; // kernels must not write it
  /// Bytes that nobody wrote may be stored here (a cache row copied, a partial
  /// result nobody merges); else that is a finding.
  bool mayHoldUnwritten = false;
};

/// One kernel launch; arguments point at values as cuLaunchKernel takes them,
/// each in a cell of 8 bytes.
struct KernelLaunch {
  std::string kernel;
  std::array<int64_t, 3> grid;
  std::array<int64_t, 3> block;
  int64_t sharedBytes = 0;
  std::vector<const void *> arguments;
};

/// Findings of the device's checks and counts; both empty on a device that
/// does not check.
using LaunchReport = ptx::LaunchReport;

/// Launches in order, with the argument bytes that they had when frozen.
class DeviceGraph {
public:
  virtual ~DeviceGraph();
  /// Runs them to their end. One report a launch, or one for all of them.
  virtual Expected<std::vector<LaunchReport>> replay() = 0;
  /// Seconds of one replay: on a card between two events around it.
  virtual Expected<double> timedReplay();
};

class Device {
public:
  virtual ~Device();

  /// "sim" for the PTX machine, "cuda sm_90" for a card.
  virtual std::string name() const = 0;

  /// Takes a target's code. Fails if a kernel that the target launches is not
  /// in it, takes other arguments than its launches pass, or holds
  /// instructions that the device cannot execute. Memory stays.
  virtual Error load(const Bundle &bundle, const Target &target) = 0;

  /// Whether the last load() failed only because the code is for another
  /// device, or has an instruction that this one cannot execute: code for
  /// another chip may do.
  virtual bool isUnsuited() const = 0;

  /// `bytes` of device memory that nobody has written; the address is a
  /// multiple of 256 at least.
  virtual Expected<uint64_t> allocate(uint64_t bytes,
                                      const MemoryOptions &options) = 0;
  virtual Error free(uint64_t address) = 0;

  /// Copies to the device; the bytes count as written.
  virtual Error copyIn(uint64_t address, const void *source,
                       uint64_t bytes) = 0;
  virtual Error copyOut(void *target, uint64_t address,
                        uint64_t bytes) const = 0;
  virtual Error fill(uint64_t address, uint8_t value, uint64_t bytes) = 0;

  /// The bytes count as never written from here on, and hold 0xFF (a NaN in
  /// every float type, -1 in every table).
  virtual Error forget(uint64_t address, uint64_t bytes) = 0;
  /// Offset of the first byte that nobody wrote; `bytes` if there is none or
  /// the device does not know.
  virtual Expected<uint64_t> firstUnwritten(uint64_t address,
                                            uint64_t bytes) const = 0;

  /// Runs a kernel to its end. Findings are part of the report, no error.
  virtual Expected<LaunchReport> launch(const KernelLaunch &launch) = 0;

  /// Freezes launches: their argument values are copied. On a card this is a
  /// CUDA graph.
  virtual Expected<std::unique_ptr<DeviceGraph>>
  freeze(const std::vector<KernelLaunch> &launches);

  /// Bytes a second that a copy of `bytes` within the device's memory reads and
  /// writes together; an error where there is no card.
  virtual Expected<double> measureCopyBandwidth(uint64_t bytes);
};

/// The PTX machine as a device.
std::unique_ptr<Device> createSimDevice(const ptx::LaunchOptions &options = {});

/// Card number `ordinal`, in its primary context. `library` empty:
/// libcuda.so.1.
Expected<std::unique_ptr<Device>>
createCudaDevice(int ordinal, const std::string &library = "");

/// The target named `chip`; with an empty `chip` the newest one that the
/// device loads. The device has loaded it on return. Fails with each target's
/// reason if there is none.
Expected<const Target *> selectTarget(const Bundle &bundle, Device &device,
                                      const std::string &chip = "");

} // namespace kvcache

#endif // KVCACHE_RUNTIME_DEVICE_H
