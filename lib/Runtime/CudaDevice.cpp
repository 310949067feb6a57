//===- CudaDevice.cpp - A card as a Device --------------------------------===//

#include "CudaDriver.h"

#include <algorithm>
#include <chrono>
#include <cstring>

namespace kvcache {

namespace {

using Clock = std::chrono::steady_clock;

/// Makes a context current for a scope.
struct CurrentContext {
  CurrentContext(const cuda::Driver &driver, cuda::Context context)
      : driver(driver), pushed(!driver.cuCtxPushCurrent_v2(context)) {}
  ~CurrentContext() {
    cuda::Context ignored = nullptr;
    if (pushed)
      driver.cuCtxPopCurrent_v2(&ignored);
  }
  const cuda::Driver &driver;
  bool pushed;
};

/// A backend with its target's code, one launch at a time. Launches are found
/// by the manifest's entry, so only a target's own launches run.
class CudaDevice final : public Device {
public:
  CudaDevice(const cuda::Driver &driver, cuda::DeviceId id,
             cuda::Context context, std::unique_ptr<Backend> backend)
      : driver(driver), id(id), context(context), backend(std::move(backend)) {}

  ~CudaDevice() override {
    code.reset();
    backend.reset();
    driver.cuDevicePrimaryCtxRelease_v2(id);
  }

  std::string name() const override { return backend->name(); }

  Error load(const Bundle &bundle, const Target &target) override {
    std::unique_ptr<BackendCode> fresh;
    Outcome outcome = backend->load(bundle, target, fresh);
    unsuited = outcome.code() == KVCACHE_NO_CODE;
    if (!outcome) {
      code = std::move(fresh);
      loaded = &target;
    }
    return outcome.asError();
  }

  bool isUnsuited() const override { return unsuited; }

  Expected<uint64_t> allocate(uint64_t bytes,
                              const MemoryOptions &options) override {
    uint64_t address = 0;
    if (Outcome outcome = backend->allocate(bytes, address))
      return outcome.asError().withContext(options.name);
    return address;
  }
  Error free(uint64_t address) override {
    return backend->release(address).asError();
  }
  Error copyIn(uint64_t address, const void *source, uint64_t bytes) override {
    return backend->copyIn(address, source, bytes).asError();
  }
  Error copyOut(void *target, uint64_t address, uint64_t bytes) const override {
    return backend->copyOut(target, address, bytes).asError();
  }
  Error fill(uint64_t address, uint8_t value, uint64_t bytes) override {
    return backend->fill(address, value, bytes, nullptr).asError();
  }
  Error forget(uint64_t address, uint64_t bytes) override {
    return fill(address, 0xFF, bytes);
  }
  Expected<uint64_t> firstUnwritten(uint64_t, uint64_t bytes) const override {
    return bytes;
  }

  Expected<LaunchReport> launch(const KernelLaunch &launch) override {
    Expected<LaunchPacket> packet = pack(launch);
    if (!packet)
      return packet.error();
    Clock::time_point start = Clock::now();
    if (Outcome outcome = code->enqueue(*packet, nullptr))
      return outcome.asError();
    return finish(start);
  }

  Expected<double> measureCopyBandwidth(uint64_t bytes) override {
    Expected<uint64_t> from = allocate(bytes, {"copy source"});
    if (!from)
      return from.error();
    Expected<uint64_t> to = allocate(bytes, {"copy target"});
    Error failure = to ? fill(*from, 1, bytes) : to.error();
    double best = 0;
    // The first copies warm up; the best of the others is the roofline.
    for (int i = 0; i < 12 && !failure; ++i) {
      Expected<double> seconds = timed([&]() -> Outcome {
        cuda::Result result =
            driver.cuMemcpyDtoDAsync_v2(*to, *from, bytes, nullptr);
        return result ? driver.failure(result, "cuMemcpyDtoDAsync") : Outcome();
      });
      if (!seconds)
        failure = seconds.error();
      else if (i >= 2 && *seconds > 0)
        best = std::max(best, 2 * double(bytes) / *seconds);
    }
    for (const Expected<uint64_t> *address : {&from, &to})
      if (*address)
        if (Error error = free(**address); error && !failure)
          failure = error;
    if (failure)
      return failure;
    return best;
  }

  Expected<std::unique_ptr<DeviceGraph>>
  freeze(const std::vector<KernelLaunch> &launches) override {
    std::vector<LaunchPacket> packets;
    for (const KernelLaunch &launch : launches) {
      Expected<LaunchPacket> packet = pack(launch);
      if (!packet)
        return packet.error();
      packets.push_back(std::move(*packet));
    }
    std::unique_ptr<BackendGraph> graph;
    if (Outcome outcome = code->instantiate(packets, graph))
      return outcome.asError();
    return std::unique_ptr<DeviceGraph>(
        std::make_unique<Frozen>(*this, std::move(graph)));
  }

private:
  class Frozen final : public DeviceGraph {
  public:
    Frozen(CudaDevice &device, std::unique_ptr<BackendGraph> graph)
        : device(device), graph(std::move(graph)) {}
    Expected<std::vector<LaunchReport>> replay() override {
      Clock::time_point start = Clock::now();
      if (Outcome outcome = graph->replay(nullptr))
        return outcome.asError();
      Expected<LaunchReport> whole = device.finish(start);
      if (!whole)
        return whole.error();
      return std::vector<LaunchReport>{std::move(*whole)};
    }

    Expected<double> timedReplay() override {
      return device.timed([&] { return graph->replay(nullptr); });
    }

  private:
    CudaDevice &device;
    std::unique_ptr<BackendGraph> graph;
  };

  /// Seconds between two events around what `body` enqueues.
  template <typename Body> Expected<double> timed(Body body) {
    CurrentContext scope(driver, context);
    cuda::Event start = nullptr, end = nullptr;
    float milliseconds = 0;
    cuda::Result result = driver.cuEventCreate(&start, 0);
    if (!result)
      result = driver.cuEventCreate(&end, 0);
    if (!result)
      result = driver.cuEventRecord(start, nullptr);
    Outcome outcome = result ? Outcome() : body();
    if (!result && !outcome)
      result = driver.cuEventRecord(end, nullptr);
    if (!result && !outcome)
      result = driver.cuEventSynchronize(end);
    if (!result && !outcome)
      result = driver.cuEventElapsedTime(&milliseconds, start, end);
    for (cuda::Event event : {start, end})
      if (event)
        driver.cuEventDestroy_v2(event);
    if (outcome)
      return outcome.asError();
    if (result)
      return driver.failure(result, "timing").asError();
    return double(milliseconds) * 1e-3;
  }

  Expected<LaunchReport> finish(Clock::time_point start) {
    if (Outcome outcome = backend->synchronize(nullptr))
      return outcome.asError();
    LaunchReport report;
    report.seconds =
        std::chrono::duration<double>(Clock::now() - start).count();
    return report;
  }

  Expected<LaunchPacket> pack(const KernelLaunch &launch) const {
    if (!loaded)
      return makeError("no target was loaded");
    for (size_t i = 0; i < loaded->launches.size(); ++i) {
      const Launch &entry = loaded->launches[i];
      if (entry.kernel != launch.kernel || entry.grid != launch.grid ||
          entry.block != launch.block ||
          entry.sharedBytes != launch.sharedBytes ||
          entry.arguments.size() != launch.arguments.size())
        continue;
      LaunchPacket packet(entry, i);
      for (size_t a = 0; a < launch.arguments.size(); ++a) {
        uint64_t value = 0;
        std::memcpy(&value, launch.arguments[a],
                    argumentBytes(entry.arguments[a].kind));
        packet.setCell(a, value);
      }
      return packet;
    }
    return makeError("kernel " + launch.kernel +
                     ": the target has no such launch");
  }

  const cuda::Driver &driver;
  cuda::DeviceId id;
  cuda::Context context;
  std::unique_ptr<Backend> backend;
  std::unique_ptr<BackendCode> code;
  const Target *loaded = nullptr;
  bool unsuited = false;
};

} // namespace

Expected<std::unique_ptr<Device>> createCudaDevice(int ordinal,
                                                   const std::string &library) {
  const cuda::Driver *driver = nullptr;
  if (Outcome outcome = cuda::Driver::open(library, driver))
    return outcome.asError();
  cuda::DeviceId id = 0;
  cuda::Context context = nullptr;
  if (cuda::Result result = driver->cuDeviceGet(&id, ordinal))
    return driver->failure(result, "cuDeviceGet").asError();
  if (cuda::Result result = driver->cuDevicePrimaryCtxRetain(&context, id))
    return driver->failure(result, "cuDevicePrimaryCtxRetain").asError();
  std::unique_ptr<Backend> backend;
  if (Outcome outcome = createCudaBackend(context, library, false, backend)) {
    driver->cuDevicePrimaryCtxRelease_v2(id);
    return outcome.asError();
  }
  return std::unique_ptr<Device>(
      std::make_unique<CudaDevice>(*driver, id, context, std::move(backend)));
}

} // namespace kvcache
