//===- ScaleTable.h - What every KV scale is worth, and why -----*- C++ -*-===//
//
// Plain data: can be filled from a checkpoint by resolveScales(), or by hand.
//
//===----------------------------------------------------------------------===//

#ifndef KVCACHE_CHECKPOINT_SCALETABLE_H
#define KVCACHE_CHECKPOINT_SCALETABLE_H

#include "kvcache/Checkpoint/CacheType.h"
#include "kvcache/Checkpoint/Checkpoint.h"
#include "kvcache/Checkpoint/Diagnostic.h"

#include <array>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace kvcache {

enum class ScaleRole { Q, K, V, Prob, O };
inline constexpr unsigned numScaleRoles = 5;

/// "q", "k", "v", "prob", "o".
const char *scaleRoleName(ScaleRole role);
std::optional<ScaleRole> parseScaleRole(std::string_view name);

/// Where a value came from.
enum class ScaleProvenance {
  Checkpoint, ///< loaded for this role
  Default,    ///< 1.0, nothing was loaded
  Duplicate,  ///< the other of k and v, whose partner is absent
  Maximum,    ///< the positive one of k and v, whose partner is not positive
  Override    ///< given by the user
};

/// "checkpoint", "default", "duplicate", "maximum", "override".
const char *provenanceName(ScaleProvenance provenance);

/// One scale: a dequantization multiplier (value = code * scale).
struct Scale {
  /// The scale of all heads; of a per-head scale the largest.
  float value = 1.0f;
  /// One value per KV head of this rank; empty for a per-tensor scale.
  std::vector<float> perHead;
  ScaleProvenance provenance = ScaleProvenance::Default;
  /// Tensor and file of a loaded value (of the partner for Duplicate and
  /// Maximum); empty for the others.
  std::string key, file;
  std::optional<DType> dtype; ///< as stored
  std::vector<int64_t> shape; ///< as stored
  /// The rule that applied beyond the provenance: "rounded to bf16", "last
  /// rule: specific name wins over kv_scale"...
  std::string note;
  /// False if nothing in the arithmetic reads it: a q scale with queries that
  /// are not FP8, any scale of a cache without scales.
  bool used = false;
};

/// The scales of one attention layer.
struct LayerScales {
  std::string layer;  ///< as in the graph
  std::string module; ///< the attention module whose names matched
  CacheType cacheType = CacheType::BF16;
  std::array<Scale, numScaleRoles> scales;

  Scale &operator[](ScaleRole role) { return scales[unsigned(role)]; }
  const Scale &operator[](ScaleRole role) const {
    return scales[unsigned(role)];
  }
};

/// A scale-like tensor that gave no value, and why.
struct IgnoredScale {
  std::string key, file, reason;
};

struct ScaleTable {
  std::vector<LayerScales> layers;
  std::vector<IgnoredScale> ignored;
  std::vector<Diagnostic> diagnostics;

  /// Null if there is no such layer.
  const LayerScales *find(std::string_view layer) const;
  bool hasErrors() const { return kvcache::hasErrors(diagnostics); }
};

/// One attention layer of the graph.
struct ScaleRequest {
  std::string layer; ///< as in the graph
  CacheType cacheType = CacheType::F8E4M3FN;
  bool queryIsFP8 = false;
  /// One latent row is both K and V: only k is used.
  bool mla = false;
  /// The layer whose cache this one reads; empty: its own.
  std::string sharesCacheWith;
  /// KV heads of this rank, 0 if not known: how many values a per-head scale
  /// must have.
  int64_t kvHeads = 0;
};

enum class ScalePolicy {
  Strict,    ///< doubtful values are errors
  Compatible ///< what the reference serving stack makes of them
};

/// LAYER.ROLE=VALUE. LAYER is the graph's name of a layer, its attention
/// module, or its index.
struct ScaleOverride {
  std::string layer;
  ScaleRole role = ScaleRole::K;
  float value = 1.0f;
  std::string text; ///< as written, for messages
};

/// Reads "model.layers.0.self_attn.k=0.0123". The value must be positive and
/// finite; the role q, k, v, prob or o.
Expected<ScaleOverride> parseScaleOverride(std::string_view text);

struct ScaleOptions {
  ScalePolicy policy = ScalePolicy::Strict;
  std::vector<ScaleOverride> overrides;
  /// Scale-only files, later ones win: .safetensors, or the JSON of old
  /// calibration tools ({"kv_cache": {"scaling_factor": ...}}).
  std::vector<std::string> overlays;
  /// Round loaded scales to F16 or BF16 first, as the reference does.
  std::optional<DType> roundScalesTo;
  /// A defaulted k or v is an error.
  bool requireCalibrated = false;
  /// Tensor parallelism: ranks, and the one that is asked for. Per-head scales
  /// are sliced by KV heads; with fewer heads than ranks, `tpSize / heads`
  /// ranks share one. Per-tensor scales are the same on every rank.
  int64_t tpSize = 1, tpRank = 0;
};

/// The attention module of a layer or name: "model.layers.0.self_attn.attn" and
/// "model.layers.0.self_attn" give the latter. Idempotent.
std::string attentionModule(std::string_view layer);

/// Layers of encoders and of towers for images and sound, by their names: they
/// have no KV cache.
bool isEncoderLayer(std::string_view layer);

/// What a tensor name says, by its end.
struct ScaleName {
  enum Kind { NotAScale, KV, Single, ZeroPoint } kind = NotAScale;
  ScaleRole role = ScaleRole::K; ///< for Single
  std::string_view module;       ///< its attention module, a part of the name
};
ScaleName classifyScaleName(std::string_view tensorName);

/// Resolves the scales of all attention layers of a graph. Never fails as a
/// whole: errors are among the diagnostics, and the values of a layer with an
/// error must not be used. `checkpoint` may be null.
ScaleTable resolveScales(const Checkpoint *checkpoint,
                         const std::vector<ScaleRequest> &layers,
                         const ScaleOptions &options = {});

} // namespace kvcache

#endif // KVCACHE_CHECKPOINT_SCALETABLE_H
