//===- ScaleSources.h - Scale tensors and the layers they name --*- C++ -*-===//

#ifndef KVCACHE_LIB_CHECKPOINT_SCALESOURCES_H
#define KVCACHE_LIB_CHECKPOINT_SCALESOURCES_H

#include "kvcache/Checkpoint/ScaleTable.h"

#include <deque>

namespace kvcache {

/// The same name again in another shard.
struct ScaleRepetition {
  std::string file;
  bool equal; ///< element type, shape and bytes
};

/// A tensor (or number of a JSON file) whose name gives it a role.
struct ScaleCandidate {
  ScaleName::Kind kind = ScaleName::Single;
  ScaleRole role = ScaleRole::K;
  std::string module;      ///< empty for numbers of a JSON file
  int64_t layerIndex = -1; ///< of a number of a JSON file
  std::string key, file;
  const Tensor *tensor = nullptr; ///< null for a number
  double number = 0;
  std::vector<ScaleRepetition> repetitions;
};

/// The checkpoint, or one overlay file.
struct ScaleSource {
  std::string name; ///< for messages
  bool isOverlay = false;
  std::deque<SafetensorsFile> owned; ///< the overlay's file
  std::vector<ScaleCandidate> candidates;
  std::vector<IgnoredScale> unknown; ///< scale-like, but of no known form
};

ScaleSource collectScales(const Checkpoint &checkpoint);

/// A scale-only safetensors file, or the JSON of old calibration tools.
Expected<ScaleSource> openScaleOverlay(const std::string &path);

/// For each layer, the candidates of `source` that belong to it. A layer is
/// matched by the exact name of its attention module; else, unless the
/// checkpoint has other tensors by that name, by a unique suffix (a remark);
/// an ambiguous suffix is an error. What belongs to no layer goes to
/// `unmatched`. `checkpoint` is null for an overlay.
std::vector<std::vector<const ScaleCandidate *>>
matchLayers(const ScaleSource &source, const Checkpoint *checkpoint,
            const std::vector<ScaleRequest> &layers,
            std::vector<const ScaleCandidate *> &unmatched,
            std::vector<Diagnostic> &diagnostics);

} // namespace kvcache

#endif // KVCACHE_LIB_CHECKPOINT_SCALESOURCES_H
