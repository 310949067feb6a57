//===- Device.cpp - Choosing a target for a device ------------------------===//

#include "kvcache/Runtime/Device.h"

#include <algorithm>

namespace kvcache {

Device::~Device() = default;

namespace {

/// 90 of "sm_90" and of "sm_90a".
int chipNumber(const std::string &chip) {
  int number = 0;
  for (char c : chip)
    if (c >= '0' && c <= '9')
      number = 10 * number + (c - '0');
  return number;
}

} // namespace

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
    reasons += (reasons.empty() ? "" : "\n") + error.message();
  }
  return makeError(reasons);
}

} // namespace kvcache
