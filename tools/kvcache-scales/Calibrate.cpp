//===- Calibrate.cpp - kvcache-scales calibrate ---------------------------===//

#include "Tool.h"
#include "kvcache/Checkpoint/Calibration.h"
#include "kvcache/Support/FP8.h"

#include <cmath>
#include <deque>
#include <iostream>

#include <unistd.h>

namespace kvcache::scales {

namespace {

/// The name that ModelOpt gives a scale, which every reader knows.
std::string scaleKey(const ActivationGroup &group) {
  std::string role = scaleRoleName(group.role);
  return group.module + "." + role + "_proj." + role + "_scale";
}

/// Says on stderr how far it is, when someone watches.
class Progress {
public:
  explicit Progress(bool wanted) : shown(wanted && ::isatty(2)) {}
  ~Progress() {
    if (shown && last >= 0)
      std::cerr << "\r\033[K" << std::flush;
  }
  void update(uint64_t done, uint64_t total) {
    int percent = total ? int(double(done) / double(total) * 100) : 100;
    if (!shown || percent == last)
      return;
    last = percent;
    std::cerr << "\rcalibrating: " << percent << " % of " << (total >> 20)
              << " MiB" << std::flush;
  }

private:
  bool shown;
  int last = -1;
};

} // namespace

int calibrate(const CalibrateOptions &options) {
  Expected<std::optional<CacheType>> word = parseCacheWord(options.cacheWord);
  if (!word)
    return fail(word.message());
  if (!*word || (**word != CacheType::F8E4M3FN && **word != CacheType::F8E5M2))
    return fail("--kv-cache-dtype: expected fp8_e4m3 or fp8_e5m2, found '" +
                options.cacheWord + "'; other caches use no scale of a file");
  if (!(options.percentile > 0 && options.percentile <= 100))
    return fail("--percentile: expected a number above 0 and up to 100, "
                "found " +
                formatDouble(options.percentile));
  std::vector<ModelLayer> layers;
  if (!options.model.empty()) {
    Expected<OpenedModel> opened = openModel(options.model, {});
    if (!opened)
      return fail(opened.message());
    layers = std::move(opened->model.layers);
  }
  Expected<Activations> activations = [&] {
    Progress progress(!options.quiet);
    return Activations::open(
        options.files, options.model.empty() ? nullptr : &layers,
        [&](uint64_t done, uint64_t total) { progress.update(done, total); });
  }();
  if (!activations)
    return fail(activations.message());

  std::vector<Tensor> tensors;
  std::deque<float> values;
  std::deque<std::string> keys;
  uint64_t samples = 0;
  for (const ActivationGroup &group : activations->groups()) {
    float magnitude = magnitudePercentile(group, options.percentile);
    float scale = calibratedScale(magnitude, **word);
    if (!std::isnormal(scale))
      return fail("layer " + group.module + ": the " +
                  scaleRoleName(group.role) + " samples have magnitude " +
                  formatFloat(magnitude) + ", from which no scale follows (" +
                  formatFloat(scale) +
                  "); expected one above 0 that f32 can "
                  "hold");
    values.push_back(scale);
    Tensor tensor;
    tensor.name = keys.emplace_back(scaleKey(group));
    tensor.dtype = DType::F32;
    tensor.data = reinterpret_cast<const uint8_t *>(&values.back());
    tensor.bytes = sizeof(float);
    tensors.push_back(std::move(tensor));
    samples += group.count;
    if (!options.quiet)
      std::cout << keys.back() << " = " << formatFloat(scale) << "  ("
                << (options.percentile < 100
                        ? "percentile " + formatFloat(magnitude) + ", "
                        : "")
                << "maximum " << formatFloat(group.maximum) << " of "
                << group.count << " values)\n";
  }
  if (!options.quiet && !activations->unknown().empty())
    std::cerr << "kvcache-scales: remark: " << activations->unknown().size()
              << " tensors are no keys, values or queries of a layer, such as '"
              << activations->unknown().front() << "'; not read\n";
  std::map<std::string, std::string> metadata = {
      {"format", "pt"},
      {"kvcache.calibration",
       options.percentile < 100
           ? "percentile " + formatDouble(options.percentile)
           : "amax"},
      {"kvcache.cache_dtype", options.cacheWord},
      {"kvcache.samples", std::to_string(samples)}};
  if (Error error = writeSafetensors(options.output, tensors, metadata))
    return fail(error.message());
  if (!options.quiet)
    std::cout << options.output << ": " << tensors.size()
              << " scales; kvcache-compile --scale-overlay=" << options.output
              << " uses them\n";
  return ExitClean;
}

} // namespace kvcache::scales
