//===- Calibration.h - Scales from sampled activations ----------*- C++ -*-===//

#ifndef KVCACHE_CHECKPOINT_CALIBRATION_H
#define KVCACHE_CHECKPOINT_CALIBRATION_H

#include "kvcache/Checkpoint/ModelScales.h"

#include <deque>
#include <functional>

namespace kvcache {

/// Reads the name of a sampled tensor: LAYER.k, LAYER.key, LAYER.k_proj,
/// LAYER.k_proj.output, and the same with v and q; of MLA LAYER.kv_c,
/// LAYER.kv_c_normed and LAYER.k_pe, which share the scale k.
struct ActivationName {
  std::string layer; ///< what stands before the role
  ScaleRole role = ScaleRole::K;
};
std::optional<ActivationName> parseActivationName(std::string_view name);

/// The decoder layer's index in "model.layers.3.self_attn", "layers.3" and
/// "layer3"; -1 if there is none.
int64_t activationLayerIndex(std::string_view layer);

/// All samples of one role of one layer.
struct ActivationGroup {
  /// Attention module; tensors of its scale are named after it.
  std::string module;
  int64_t index = -1;
  ScaleRole role = ScaleRole::K;
  uint64_t count = 0;     ///< elements
  float maximum = 0;      ///< of |x|
  float firstMaximum = 0; ///< the same in the first file that has the layer
  std::vector<const Tensor *> tensors;
};

/// Called with the bytes done and the bytes there are.
using ActivationProgress = std::function<void(uint64_t, uint64_t)>;

/// Sampled activations of all layers, from any number of files.
class Activations {
public:
  /// Maps the files and measures the maxima. `layers` (of describeModel) gives
  /// the names of the attention modules by index; null: from the tensors' own
  /// names, else model.layers.N.self_attn. Errors: a file that cannot be read;
  /// an element type other than F32, F16, BF16, F64; a NaN or an infinity; no
  /// tensor by a known name.
  static Expected<Activations>
  open(const std::vector<std::string> &paths,
       const std::vector<ModelLayer> *layers,
       const ActivationProgress &progress = nullptr);

  /// By layer and role (q, k, v).
  const std::vector<ActivationGroup> &groups() const { return list; }
  /// Tensors whose names say no layer and role.
  const std::vector<std::string> &unknown() const { return others; }

private:
  std::deque<SafetensorsFile> files;
  std::vector<ActivationGroup> list;
  std::vector<std::string> others;
};

/// The smallest |x| of the samples that at least `percent` of them do not
/// exceed (nearest rank, exact); 100 gives the maximum.
float magnitudePercentile(const ActivationGroup &group, double percent);

/// A calibrated scale: magnitude / the type's largest finite number, in double,
/// rounded once. 448 for e4m3, 57344 for e5m2.
float calibratedScale(float magnitude, CacheType type);

/// What quantizing the samples by one scale loses.
struct QuantizationLoss {
  float scale = 1;
  double saturated = 0; ///< share of elements beyond the largest code
  /// Signal to noise, 10 log10(sum x^2 / sum (x - code * scale)^2), in dB;
  /// infinite when nothing is lost.
  double snr = 0;
};

/// Quantizes all samples as the write of a cache does. `perHead`, if not
/// empty, has a scale for each extent of the samples' second last dimension
/// (shape [tokens, heads, dim]); the error says which tensor does not fit.
Expected<QuantizationLoss> measureLoss(const ActivationGroup &group,
                                       float scale, CacheType type,
                                       const std::vector<float> &perHead = {});

/// What run-time calculation would have taken: the first file's maximum / 200,
/// for v / 100, in f32.
float runTimeScale(const ActivationGroup &group);

} // namespace kvcache

#endif // KVCACHE_CHECKPOINT_CALIBRATION_H
