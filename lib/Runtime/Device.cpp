//===- Device.cpp - Choosing a target for a device ------------------------===//

#include "Backend.h"

namespace kvcache {

Device::~Device() = default;
DeviceGraph::~DeviceGraph() = default;

namespace {

/// Launches one after the other, from copies of their argument values.
class LaunchLoop final : public DeviceGraph {
public:
  LaunchLoop(Device &device, const std::vector<KernelLaunch> &source)
      : device(device), launches(source) {
    // 8 bytes hold every argument kind; the launch reads what it needs.
    for (KernelLaunch &launch : launches) {
      std::vector<uint64_t> &cells = values.emplace_back();
      for (const void *argument : launch.arguments)
        cells.push_back(*static_cast<const uint64_t *>(argument));
      for (size_t i = 0; i < cells.size(); ++i)
        launch.arguments[i] = &cells[i];
    }
  }

  Expected<std::vector<LaunchReport>> replay() override {
    std::vector<LaunchReport> reports;
    for (const KernelLaunch &launch : launches) {
      Expected<LaunchReport> report = device.launch(launch);
      if (!report)
        return report.error();
      reports.push_back(std::move(*report));
    }
    return reports;
  }

private:
  Device &device;
  std::vector<KernelLaunch> launches;
  std::vector<std::vector<uint64_t>> values;
};

} // namespace

Expected<double> DeviceGraph::timedReplay() {
  Expected<std::vector<LaunchReport>> reports = replay();
  if (!reports)
    return reports.error();
  double seconds = 0;
  for (const LaunchReport &report : *reports)
    seconds += report.seconds;
  return seconds;
}

Expected<double> Device::measureCopyBandwidth(uint64_t) {
  return makeError("a copy bandwidth is measured on a card; this device is "
                   "the " +
                   name());
}

Expected<std::unique_ptr<DeviceGraph>>
Device::freeze(const std::vector<KernelLaunch> &launches) {
  return std::unique_ptr<DeviceGraph>(
      std::make_unique<LaunchLoop>(*this, launches));
}

Expected<const Target *> selectTarget(const Bundle &bundle, Device &device,
                                      const std::string &chip) {
  const Target *target = nullptr;
  auto load = [&](const Target &candidate) -> Outcome {
    if (Error error = device.load(bundle, candidate))
      return {device.isUnsuited() ? KVCACHE_NO_CODE : KVCACHE_INVALID_BUNDLE,
              error.message()};
    return {};
  };
  if (Outcome outcome = loadBestTarget(bundle.manifest, chip, load, target))
    return outcome.asError();
  return target;
}

} // namespace kvcache
