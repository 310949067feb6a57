//===- MachineBackend.cpp - The PTX machine behind the C interface --------===//

#include "Backend.h"

#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>

namespace kvcache {

namespace {

/// The machine with its memory. One mutex: Machine is not thread-safe.
class MachineBackend final : public Backend {
public:
  explicit MachineBackend(const ptx::LaunchOptions &options)
      : options(options) {}

  std::string name() const override { return "PTX machine"; }

  Outcome allocate(uint64_t bytes, uint64_t &address) override {
    uint64_t size = bytes ? bytes : 1;
    // Calloc, so that pages nobody touches cost nothing.
    Host host(static_cast<uint8_t *>(std::calloc(size, 1)), std::free);
    if (!host)
      return {KVCACHE_OUT_OF_MEMORY,
              "cannot allocate " + std::to_string(bytes) + " bytes"};
    ptx::BufferOptions buffer;
    buffer.name = "allocation " + std::to_string(allocated + 1);
    buffer.init = options.initcheck ? ptx::InitState::NoneValid
                                    : ptx::InitState::AllValid;
    buffer.uninitStore = ptx::UninitStore::Propagate;
    std::lock_guard<std::mutex> lock(mutex);
    ++allocated;
    address = machine.addBuffer(host.get(), size, buffer);
    memory.emplace(address, std::move(host));
    return {};
  }

  Outcome release(uint64_t address) override {
    std::lock_guard<std::mutex> lock(mutex);
    if (Error error = machine.removeBuffer(address))
      return {KVCACHE_INVALID_ARGUMENT, error.message()};
    memory.erase(address);
    return {};
  }

  Outcome copyIn(uint64_t address, const void *source,
                 uint64_t bytes) override {
    if (bytes == 0)
      return {};
    std::lock_guard<std::mutex> lock(mutex);
    void *host = machine.hostPointer(address, bytes);
    if (!host)
      return outside(address, bytes);
    std::memcpy(host, source, bytes);
    return mark(address, bytes);
  }

  Outcome copyOut(void *target, uint64_t address, uint64_t bytes) override {
    if (bytes == 0)
      return {};
    std::lock_guard<std::mutex> lock(mutex);
    const void *host = machine.hostPointer(address, bytes);
    if (!host)
      return outside(address, bytes);
    std::memcpy(target, host, bytes);
    return {};
  }

  Outcome fill(uint64_t address, uint8_t value, uint64_t bytes,
               KvcacheStream) override {
    if (bytes == 0)
      return {};
    std::lock_guard<std::mutex> lock(mutex);
    void *host = machine.hostPointer(address, bytes);
    if (!host)
      return outside(address, bytes);
    std::memset(host, value, bytes);
    return mark(address, bytes);
  }

  Outcome synchronize(KvcacheStream) override { return {}; }

  Outcome load(const Bundle &bundle, const Target &target,
               std::unique_ptr<BackendCode> &code) override;

  Outcome launch(const ptx::Module &module, const LaunchPacket &packet) {
    const Launch &entry = packet.launch();
    std::lock_guard<std::mutex> lock(mutex);
    Expected<ptx::LaunchReport> report = machine.launch(
        module, entry.kernel,
        {uint32_t(entry.grid[0]), uint32_t(entry.grid[1]),
         uint32_t(entry.grid[2])},
        {uint32_t(entry.block[0]), uint32_t(entry.block[1]),
         uint32_t(entry.block[2])},
        uint32_t(entry.sharedBytes), packet.arguments(), options);
    if (!report)
      return {KVCACHE_LAUNCH_FAILED, report.message()};
    if (!report->clean())
      return {KVCACHE_LAUNCH_FAILED,
              std::to_string(report->findingCount) +
                  (report->findingCount == 1 ? " finding; "
                                             : " findings; the first: ") +
                  report->findings.front().str()};
    return {};
  }

private:
  using Host = std::unique_ptr<uint8_t, void (*)(void *)>;

  static Outcome outside(uint64_t address, uint64_t bytes) {
    return {KVCACHE_INVALID_ARGUMENT,
            "the range of " + std::to_string(bytes) + " bytes at address " +
                std::to_string(address) + " is not inside one allocation"};
  }

  Outcome mark(uint64_t address, uint64_t bytes) {
    if (Error error = machine.setInitialised(address, bytes, true))
      return {KVCACHE_INVALID_ARGUMENT, error.message()};
    return {};
  }

  ptx::LaunchOptions options;
  std::mutex mutex;
  ptx::Machine machine;
  uint64_t allocated = 0;
  std::map<uint64_t, Host> memory;
};

class MachineGraph final : public BackendGraph {
public:
  MachineGraph(MachineBackend &backend, ptx::Module module,
               const std::vector<LaunchPacket> &packets)
      : backend(backend), module(std::move(module)) {
    for (const LaunchPacket &packet : packets) {
      frozen.emplace_back(packet.launch(), packet.index());
      frozen.back().copyCells(packet);
    }
  }

  Outcome replay(KvcacheStream) override {
    for (const LaunchPacket &packet : frozen)
      if (Outcome outcome = backend.launch(module, packet))
        return outcome;
    return {};
  }

  Outcome update(const std::vector<LaunchPacket> &packets) override {
    for (size_t i = 0; i < frozen.size(); ++i)
      frozen[i].copyCells(packets[i]);
    return {};
  }

private:
  MachineBackend &backend;
  ptx::Module module;
  std::vector<LaunchPacket> frozen;
};

class MachineCode final : public BackendCode {
public:
  MachineCode(MachineBackend &backend, ptx::Module module)
      : backend(backend), module(std::move(module)) {}

  const char *kind() const override { return "ptx"; }

  Outcome enqueue(const LaunchPacket &packet, KvcacheStream) override {
    return backend.launch(module, packet);
  }

  Outcome instantiate(const std::vector<LaunchPacket> &packets,
                      std::unique_ptr<BackendGraph> &graph) override {
    graph = std::make_unique<MachineGraph>(backend, module, packets);
    return {};
  }

private:
  MachineBackend &backend;
  ptx::Module module;
};

Outcome MachineBackend::load(const Bundle &bundle, const Target &target,
                             std::unique_ptr<BackendCode> &code) {
  std::optional<ptx::Module> parsed;
  if (Outcome outcome =
          parseTarget(bundle, target, /*executable=*/true, parsed))
    return outcome;
  code = std::make_unique<MachineCode>(*this, std::move(*parsed));
  return {};
}

} // namespace

Outcome createMachineBackend(const ptx::LaunchOptions &options,
                             std::unique_ptr<Backend> &backend) {
  backend = std::make_unique<MachineBackend>(options);
  return {};
}

} // namespace kvcache
