//===- Calibration.cpp - Scales from sampled activations ------------------===//

#include "kvcache/Checkpoint/Calibration.h"
#include "ScaleNames.h"
#include "kvcache/Support/FP8.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <cmath>
#include <cstring>
#include <map>
#include <tuple>

using namespace kvcache;

std::optional<ActivationName>
kvcache::parseActivationName(std::string_view name) {
  std::string_view before, last;
  if (!splitLast(name, before, last))
    return std::nullopt;
  if (last == "output" && !splitLast(before, before, last))
    return std::nullopt;
  std::optional<ScaleRole> role;
  if (last == "k" || last == "key" || last == "k_proj" || last == "kv_c" ||
      last == "kv_c_normed" || last == "k_pe")
    role = ScaleRole::K;
  else if (last == "v" || last == "value" || last == "v_proj")
    role = ScaleRole::V;
  else if (last == "q" || last == "query" || last == "q_proj")
    role = ScaleRole::Q;
  if (!role || before.empty())
    return std::nullopt;
  return ActivationName{std::string(before), *role};
}

int64_t kvcache::activationLayerIndex(std::string_view layer) {
  int64_t index = layerIndex(layer);
  if (index >= 0)
    return index;
  // "layer3", as buffers of a bundle are called.
  size_t digits = layer.size();
  while (digits > 0 &&
         std::isdigit(static_cast<unsigned char>(layer[digits - 1])))
    --digits;
  std::string_view number = layer.substr(digits);
  if (number.empty() || number.size() > 9 || digits == 0)
    return -1;
  return std::stoll(std::string(number));
}

namespace {

/// Calls `visit(float)` with every element.
template <typename Visit>
void forEach(const Tensor &tensor, const Visit &visit) {
  auto walk = [&](auto element, auto widen) {
    using T = decltype(element);
    for (uint64_t at = 0; at + sizeof(T) <= tensor.bytes; at += sizeof(T)) {
      T value;
      std::memcpy(&value, tensor.data + at, sizeof(T));
      visit(float(widen(value)));
    }
  };
  switch (tensor.dtype) {
  case DType::F32:
    return walk(float(), [](float x) { return x; });
  case DType::F64:
    return walk(double(), [](double x) { return x; });
  case DType::F16:
    return walk(uint16_t(), fromF16);
  case DType::BF16:
    return walk(uint16_t(), fromBF16);
  default:
    return;
  }
}

bool isFloatTensor(DType dtype) {
  return dtype == DType::F32 || dtype == DType::F64 || dtype == DType::F16 ||
         dtype == DType::BF16;
}

uint32_t magnitudeBits(float value) { return bitsOfFloat(value) & 0x7FFFFFFFu; }

std::string moduleFor(const std::string &layer, int64_t index,
                      const std::vector<ModelLayer> *layers) {
  std::string module = attentionModule(layer);
  if (layers) {
    for (const ModelLayer &known : *layers)
      if (known.name == module)
        return module;
    for (const ModelLayer &known : *layers)
      if (known.hasAttention && known.index == index)
        return known.name;
    return "";
  }
  std::string_view before, last;
  if (splitLast(module, before, last) && isAttentionName(last) &&
      !before.empty())
    return module;
  return "model.layers." + std::to_string(index) + ".self_attn";
}

} // namespace

Expected<Activations> Activations::open(const std::vector<std::string> &paths,
                                        const std::vector<ModelLayer> *layers,
                                        const ActivationProgress &progress) {
  Activations result;
  uint64_t total = 0, done = 0;
  for (const std::string &path : paths) {
    Expected<SafetensorsFile> file = SafetensorsFile::open(path);
    if (!file)
      return file.error();
    for (const Tensor &tensor : file->tensors())
      if (parseActivationName(tensor.name))
        total += tensor.bytes;
    result.files.push_back(std::move(*file));
  }
  std::map<std::tuple<int64_t, std::string, ScaleRole>, ActivationGroup> groups;
  for (const SafetensorsFile &file : result.files) {
    std::map<const ActivationGroup *, bool> first;
    for (const Tensor &tensor : file.tensors()) {
      std::optional<ActivationName> name = parseActivationName(tensor.name);
      int64_t index = name ? activationLayerIndex(name->layer) : -1;
      std::string module =
          index < 0 ? "" : moduleFor(name->layer, index, layers);
      if (module.empty()) {
        result.others.emplace_back(tensor.name);
        continue;
      }
      auto fail = [&](const std::string &what) {
        return makeError(file.path() + ": tensor '" + std::string(tensor.name) +
                         "' " + what);
      };
      if (!isFloatTensor(tensor.dtype))
        return fail(std::string("is ") + dtypeName(tensor.dtype) +
                    ", expected activations in F32, F16, BF16 or F64");
      ActivationGroup &group = groups[{index, module, name->role}];
      if (group.tensors.empty()) {
        group.module = module;
        group.index = index;
        group.role = name->role;
        first[&group] = true;
      }
      uint32_t largest = 0;
      forEach(tensor, [&](float value) {
        largest = std::max(largest, magnitudeBits(value));
      });
      if (largest >= 0x7F800000u)
        return fail("has a NaN or an infinity; scales need finite samples");
      float maximum = floatFromBits(largest);
      group.maximum = std::max(group.maximum, maximum);
      if (first.count(&group))
        group.firstMaximum = std::max(group.firstMaximum, maximum);
      group.count += uint64_t(tensor.numElements());
      group.tensors.push_back(&tensor);
      done += tensor.bytes;
      if (progress)
        progress(done, total);
    }
  }
  for (auto &[key, group] : groups)
    result.list.push_back(std::move(group));
  if (result.list.empty())
    return makeError(
        (paths.empty() ? std::string("no file") : paths.front()) +
        ": no activations; expected tensors named LAYER.k, LAYER.v and "
        "LAYER.q (or key, value, query), LAYER with its index, such as "
        "model.layers.0.self_attn.k" +
        (result.others.empty() ? ""
                               : "; found '" + result.others.front() + "'"));
  return result;
}

float kvcache::magnitudePercentile(const ActivationGroup &group,
                                   double percent) {
  if (group.count == 0 || percent >= 100)
    return group.maximum;
  uint64_t rank =
      uint64_t(std::ceil(percent / 100 * double(group.count) * (1 - 1e-15)));
  rank = std::min(std::max<uint64_t>(rank, 1), group.count);
  // Two passes over the magnitudes' bits, which order as the numbers do.
  std::vector<uint64_t> upper(1 << 16), lower(1 << 16);
  for (const Tensor *tensor : group.tensors)
    forEach(*tensor, [&](float value) { ++upper[magnitudeBits(value) >> 16]; });
  uint32_t bucket = 0;
  uint64_t below = 0;
  while (below + upper[bucket] < rank)
    below += upper[bucket++];
  for (const Tensor *tensor : group.tensors)
    forEach(*tensor, [&](float value) {
      uint32_t bits = magnitudeBits(value);
      if (bits >> 16 == bucket)
        ++lower[bits & 0xFFFF];
    });
  uint32_t low = 0;
  while (below + lower[low] < rank)
    below += lower[low++];
  return floatFromBits(bucket << 16 | low);
}

static double largestCode(CacheType type) {
  return type == CacheType::F8E5M2 ? 57344 : 448;
}

float kvcache::calibratedScale(float magnitude, CacheType type) {
  return float(double(magnitude) / largestCode(type));
}

float kvcache::runTimeScale(const ActivationGroup &group) {
  return group.firstMaximum / (group.role == ScaleRole::V ? 100.0f : 200.0f);
}

Expected<QuantizationLoss>
kvcache::measureLoss(const ActivationGroup &group, float scale, CacheType type,
                     const std::vector<float> &perHead) {
  bool isE5M2 = type == CacheType::F8E5M2;
  std::array<float, 256> values;
  for (unsigned code = 0; code < 256; ++code)
    values[code] = isE5M2 ? fromE5M2(uint8_t(code)) : fromE4M3FN(uint8_t(code));
  float limit = float(largestCode(type));
  uint64_t saturated = 0;
  double signal = 0, noise = 0;
  for (const Tensor *tensor : group.tensors) {
    size_t rank = tensor->shape.size();
    size_t inner = 1;
    if (!perHead.empty()) {
      if (rank < 2 || size_t(tensor->shape[rank - 2]) != perHead.size())
        return makeError(
            "tensor '" + std::string(tensor->name) + "' has shape " +
            formatShape(tensor->shape) + ", expected [tokens, " +
            std::to_string(perHead.size()) + ", head dim] for scales per head");
      inner = size_t(tensor->shape[rank - 1]);
    }
    size_t position = 0;
    forEach(*tensor, [&](float value) {
      float s = perHead.empty() ? scale
                                : perHead[position++ / inner % perHead.size()];
      float quotient = value / s;
      uint8_t code = isE5M2 ? toE5M2(quotient) : toE4M3FN(quotient);
      saturated += std::fabs(quotient) > limit;
      double lost = double(value) - double(values[code]) * double(s);
      signal += double(value) * double(value);
      noise += lost * lost;
    });
  }
  QuantizationLoss loss;
  loss.scale = scale;
  loss.saturated = group.count ? double(saturated) / double(group.count) : 0;
  loss.snr = noise == 0 ? INFINITY : 10 * std::log10(signal / noise);
  return loss;
}
