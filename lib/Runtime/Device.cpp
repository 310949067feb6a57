//===- Device.cpp - Choosing a target for a device ------------------------===//

#include "Backend.h"

#include <algorithm>

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
  const std::vector<Target> &targets = bundle.manifest.targets;
  std::vector<const Target *> candidates;
  std::string names;
  for (const Target &target : targets) {
    names += (names.empty() ? "" : ", ") + target.chip;
    if (chip.empty() || target.chip == chip)
      candidates.push_back(&target);
  }
  if (candidates.empty())
    return makeError("the bundle has no target " + chip + "; it has " + names);
  std::sort(candidates.begin(), candidates.end(),
            [](const Target *a, const Target *b) {
              return std::make_pair(chipNumber(a->chip), b->chip) >
                     std::make_pair(chipNumber(b->chip), a->chip);
            });
  std::string reasons;
  for (const Target *target : candidates) {
    Error error = device.load(bundle, *target);
    if (!error)
      return target;
    // Code that is broken is an error, whatever other chips have.
    if (!device.lacksInstructions())
      return error;
    reasons += (reasons.empty() ? "" : "\n") + error.message();
  }
  return makeError(reasons);
}

} // namespace kvcache
