//===- SimDevice.cpp - The PTX machine as a device ------------------------===//

#include "Backend.h"

#include <cstdlib>
#include <cstring>
#include <new>

namespace kvcache {

namespace {

class SimDevice final : public Device {
public:
  explicit SimDevice(const ptx::LaunchOptions &options) : options(options) {}

  std::string name() const override { return "sim"; }

  Error load(const Bundle &bundle, const Target &target) override {
    std::optional<ptx::Module> fresh;
    Outcome outcome = parseTarget(bundle, target, /*executable=*/true, fresh);
    unsuited = outcome.code() == KVCACHE_NO_CODE;
    if (!outcome)
      module = std::move(fresh);
    return outcome.asError();
  }

  bool isUnsuited() const override { return unsuited; }

  Expected<uint64_t> allocate(uint64_t bytes,
                              const MemoryOptions &memory) override {
    if (bytes == 0)
      bytes = 1;
    // Calloc, so that pages nobody touches cost nothing.
    std::unique_ptr<uint8_t, void (*)(void *)> host(
        static_cast<uint8_t *>(std::calloc(bytes, 1)), std::free);
    if (!host)
      return makeError(memory.name + ": cannot allocate " +
                       std::to_string(bytes) + " bytes");
    ptx::BufferOptions buffer;
    buffer.name = memory.name;
    buffer.readOnly = memory.readOnly;
    buffer.init = options.initcheck ? ptx::InitState::NoneValid
                                    : ptx::InitState::AllValid;
    buffer.uninitStore = memory.mayHoldUnwritten ? ptx::UninitStore::Propagate
                                                 : ptx::UninitStore::Report;
    uint64_t address = machine.addBuffer(host.get(), bytes, buffer);
    allocations.emplace(address, std::move(host));
    return address;
  }

  Error free(uint64_t address) override {
    Error error = machine.removeBuffer(address);
    allocations.erase(address);
    return error;
  }

  Error copyIn(uint64_t address, const void *source, uint64_t bytes) override {
    if (bytes == 0)
      return Error::success();
    void *host = machine.hostPointer(address, bytes);
    if (!host)
      return outside(address, bytes);
    std::memcpy(host, source, bytes);
    return machine.setInitialised(address, bytes, true);
  }

  Error copyOut(void *target, uint64_t address, uint64_t bytes) const override {
    if (bytes == 0)
      return Error::success();
    const void *host = machine.hostPointer(address, bytes);
    if (!host)
      return outside(address, bytes);
    std::memcpy(target, host, bytes);
    return Error::success();
  }

  Error fill(uint64_t address, uint8_t value, uint64_t bytes) override {
    return set(address, value, bytes, true);
  }

  Error forget(uint64_t address, uint64_t bytes) override {
    return set(address, 0xFF, bytes, !options.initcheck);
  }

  Expected<uint64_t> firstUnwritten(uint64_t address,
                                    uint64_t bytes) const override {
    if (bytes == 0)
      return bytes;
    return machine.firstUninitialised(address, bytes);
  }

  Expected<LaunchReport> launch(const KernelLaunch &launch) override {
    if (!module)
      return makeError("no target was loaded");
    return machine.launch(*module, launch.kernel,
                          {uint32_t(launch.grid[0]), uint32_t(launch.grid[1]),
                           uint32_t(launch.grid[2])},
                          {uint32_t(launch.block[0]), uint32_t(launch.block[1]),
                           uint32_t(launch.block[2])},
                          uint32_t(launch.sharedBytes), launch.arguments.data(),
                          options);
  }

private:
  static Error outside(uint64_t address, uint64_t bytes) {
    return makeError("the range of " + std::to_string(bytes) +
                     " bytes at address " + std::to_string(address) +
                     " is not inside one allocation");
  }

  Error set(uint64_t address, uint8_t value, uint64_t bytes, bool valid) {
    if (bytes == 0)
      return Error::success();
    void *host = machine.hostPointer(address, bytes);
    if (!host)
      return outside(address, bytes);
    std::memset(host, value, bytes);
    return machine.setInitialised(address, bytes, valid);
  }

  bool unsuited = false;
  ptx::LaunchOptions options;
  ptx::Machine machine;
  std::optional<ptx::Module> module;
  std::map<uint64_t, std::unique_ptr<uint8_t, void (*)(void *)>> allocations;
};

} // namespace

std::unique_ptr<Device> createSimDevice(const ptx::LaunchOptions &options) {
  return std::make_unique<SimDevice>(options);
}

} // namespace kvcache
