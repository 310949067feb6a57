//===- CacheType.h - Which element type a layer's cache has -----*- C++ -*-===//

#ifndef KVCACHE_CHECKPOINT_CACHETYPE_H
#define KVCACHE_CHECKPOINT_CACHETYPE_H

#include "kvcache/Checkpoint/Checkpoint.h"
#include "kvcache/Checkpoint/Diagnostic.h"

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace kvcache {

/// What a cache stores.
enum class CacheType {
  F32,
  F16,
  BF16,
  F8E4M3FN,
  F8E5M2,
  F8E4M3FNUZ,
  FP8PerTokenHead,  ///< e4m3fn, scales computed by the write
  INT8PerTokenHead, ///< i8, scales computed by the write
  FP8DSMLA          ///< 656 byte rows, scales computed by the write
};

/// "f32", "f16", "bf16", "f8E4M3FN", "f8E5M2", "f8E4M3FNUZ",
/// "fp8_per_token_head", "int8_per_token_head", "fp8_ds_mla".
const char *cacheTypeName(CacheType type);

/// True where per-tensor scales of the checkpoint apply: the three plain FP8
/// types.
bool usesCheckpointScales(CacheType type);

/// Reads a word for `kv-cache-dtype`. nullopt stands for `auto`. The error
/// lists the accepted words, and says "not supported yet" for words the
/// serving stacks know beyond them.
Expected<std::optional<CacheType>> parseCacheWord(std::string_view word);

/// How a checkpoint says that it is quantized.
enum class QuantFamily { None, FP8, ModelOpt, Quark, CompressedTensors, Other };

/// "none", "fp8", "modelopt", "quark", "compressed-tensors", or "other".
const char *quantFamilyName(QuantFamily family);

/// What config.json and hf_quant_config.json say about quantization.
struct QuantConfig {
  QuantFamily family = QuantFamily::None;
  std::string method; ///< quant_method as written

  /// The KV cache algorithm that is declared: by ModelOpt's kv_cache_scheme or
  /// kv_cache_quant_algo, compressed-tensors' kv_cache_scheme, Quark's
  /// kv_cache_group. Empty if none.
  std::string kvAlgorithm;
  std::string kvKey;  ///< the key that declares it
  std::string kvFile; ///< and its file

  /// Set when the declaration cannot be honoured; names the field, what it
  /// says and what would work.
  std::string problem;

  /// compressed-tensors: "tensor" (also when the key is absent) or "attn_head".
  std::string strategy = "tensor";

  /// A configuration file that was not considered, and why; empty if none.
  std::string unreadFile;
};

/// Reads both files of a checkpoint (null: no checkpoint, family None).
QuantConfig readQuantConfig(const Checkpoint *checkpoint);

/// One attention layer of the graph.
struct CacheTypeRequest {
  std::string layer;     ///< as in the graph
  std::string graphWord; ///< its kv_cache_dtype attribute; empty: none
  bool windowed = false; ///< has a sliding window
  /// Element type of the layer's keys in the graph; what `auto` means when it
  /// is known.
  std::optional<CacheType> modelType;
};

struct CacheTypeOptions {
  std::string word = "auto"; ///< the user's kv-cache-dtype
  /// kv_cache_dtype_skip_layers: "sliding_window" or layer indices in decimal.
  std::vector<std::string> skipLayers;
};

struct ResolvedCacheType {
  std::string layer;
  CacheType type = CacheType::BF16;
  /// "option kv-cache-dtype", "graph attribute kv_cache_dtype",
  /// "config.json: dtype"...
  std::string from;
};

struct CacheTypeTable {
  std::vector<ResolvedCacheType> layers; ///< in the order of the requests
  std::vector<Diagnostic> diagnostics;
};

/// Decides per layer: the user's word, else the graph's attribute (other than
/// `auto`), else ModelOpt's declaration, else compressed-tensors' scheme, else
/// the model's own type. Plain fp8 and Quark configurations do not switch
/// `auto`. `checkpoint` may be null.
CacheTypeTable resolveCacheTypes(const Checkpoint *checkpoint,
                                 const std::vector<CacheTypeRequest> &layers,
                                 const CacheTypeOptions &options);

/// The decoder layer's index in a layer name ("model.layers.3.self_attn.attn"
/// is 3); -1 if no component is a number.
int64_t layerIndex(std::string_view layerName);

} // namespace kvcache

#endif // KVCACHE_CHECKPOINT_CACHETYPE_H
