//===- SimDevice.cpp - The PTX machine as a device ------------------------===//

#include "kvcache/Runtime/Device.h"

#include <cstdlib>
#include <cstring>
#include <new>

namespace kvcache {

namespace {

/// Bytes of a kernel parameter for an argument of this kind.
uint32_t argumentBytes(Argument::Kind kind) {
  switch (kind) {
  case Argument::Kind::Buffer:
  case Argument::Kind::Null:
  case Argument::Kind::I64:
    return 8;
  case Argument::Kind::F32:
  case Argument::Kind::I32:
    return 4;
  }
  return 0;
}

class SimDevice final : public Device {
public:
  explicit SimDevice(const ptx::LaunchOptions &options) : options(options) {}

  std::string name() const override { return "sim"; }

  Error load(const Bundle &bundle, const Target &target) override {
    const std::string *text = bundle.find(target.ptx.file);
    if (!text)
      return makeError(target.ptx.file + ": the bundle does not hold it");
    Expected<ptx::Module> parsed = ptx::Module::parse(*text, target.ptx.file);
    if (!parsed)
      return parsed.error();
    for (size_t i = 0; i < target.launches.size(); ++i)
      if (Error error = checkLaunch(*parsed, target, target.launches[i]))
        return error.withContext("manifest.json: target " + target.chip +
                                 ", launches[" + std::to_string(i) + "]");
    module.emplace(std::move(*parsed));
    return Error::success();
  }

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

  /// A kernel that is there, can be executed, and takes what the launch gives.
  static Error checkLaunch(const ptx::Module &code, const Target &target,
                           const Launch &launch) {
    const ptx::KernelInfo *kernel = code.findKernel(launch.kernel);
    if (!kernel)
      return makeError("kernel \"" + launch.kernel + "\" is not in " +
                       target.ptx.file);
    if (!kernel->unsupported.empty()) {
      std::string list;
      for (const std::string &entry : kernel->unsupported)
        list += "\n  " + entry;
      return makeError("kernel \"" + launch.kernel + "\" of " +
                       target.ptx.file +
                       " has instructions that the PTX machine does not "
                       "know:" +
                       list);
    }
    if (kernel->parameters.size() != launch.arguments.size())
      return makeError(
          "kernel \"" + launch.kernel + "\" of " + target.ptx.file + " takes " +
          std::to_string(kernel->parameters.size()) + " arguments, found " +
          std::to_string(launch.arguments.size()));
    for (size_t i = 0; i < launch.arguments.size(); ++i) {
      uint32_t bytes = argumentBytes(launch.arguments[i].kind);
      if (kernel->parameters[i].size != bytes)
        return makeError("arguments[" + std::to_string(i) + "]: kernel \"" +
                         launch.kernel + "\" of " + target.ptx.file +
                         " takes a value of " +
                         std::to_string(kernel->parameters[i].size) +
                         " bytes, found one "
                         "of " +
                         std::to_string(bytes));
    }
    int64_t threads = launch.block[0] * launch.block[1] * launch.block[2];
    if (threads > int64_t(kernel->maxThreads))
      return makeError("block: kernel \"" + launch.kernel + "\" of " +
                       target.ptx.file + " allows " +
                       std::to_string(kernel->maxThreads) + " threads, found " +
                       std::to_string(threads));
    return Error::success();
  }

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
