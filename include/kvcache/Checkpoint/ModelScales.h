//===- ModelScales.h - A checkpoint's KV cache, without a graph -*- C++ -*-===//
//
// What compiling a model with this checkpoint would make of it: the layers
// come from config.json and from the names of the tensors.
//
//===----------------------------------------------------------------------===//

#ifndef KVCACHE_CHECKPOINT_MODELSCALES_H
#define KVCACHE_CHECKPOINT_MODELSCALES_H

#include "kvcache/Checkpoint/ModelConfig.h"
#include "kvcache/Checkpoint/ScaleTable.h"

namespace kvcache {

struct ModelScaleOptions {
  std::string cacheWord = "auto"; ///< kv-cache-dtype
  /// kv_cache_dtype_skip_layers: "sliding_window" or indices in decimal.
  std::vector<std::string> skipLayers;
  bool queryIsFP8 = false;
  ScaleOptions scales;
};

/// One decoder layer.
struct ModelLayer {
  /// Its attention module ("model.layers.3.self_attn"), or for a layer without
  /// attention the part before it.
  std::string name;
  int64_t index = -1;
  /// False where config.json says that there is no attention.
  bool hasAttention = true;
  /// The module has tensors in the checkpoint.
  bool isNamed = false;
  /// What config.json says; empty if it says nothing usable.
  std::optional<LayerAttention> attention;
  /// Only where there is a cache.
  std::optional<ResolvedCacheType> cache;
  /// The layer whose cache it reads; empty: its own.
  std::string sharesCacheWith;
  bool mla = false;
};

struct ModelScales {
  QuantConfig quant;
  std::string modelType;          ///< empty: not known
  std::vector<ModelLayer> layers; ///< by index
  ScaleTable scales;              ///< of the layers that have a cache
  /// All of them, errors first.
  std::vector<Diagnostic> diagnostics;

  /// The scales of a layer; null if it has no cache.
  const LayerScales *scalesOf(const ModelLayer &layer) const {
    return scales.find(layer.name);
  }
};

/// Never fails as a whole: errors are among the diagnostics.
ModelScales describeModel(const Checkpoint &checkpoint,
                          const ModelScaleOptions &options = {});

} // namespace kvcache

#endif // KVCACHE_CHECKPOINT_MODELSCALES_H
