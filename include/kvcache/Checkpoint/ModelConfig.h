//===- ModelConfig.h - What config.json decides per layer -------*- C++ -*-===//
//
// Softmax scale, soft cap, window, heads and dims of each layer, by the rules
// of each model family. Rules: transformers 5.24.0.
//
//===----------------------------------------------------------------------===//

#ifndef KVCACHE_CHECKPOINT_MODELCONFIG_H
#define KVCACHE_CHECKPOINT_MODELCONFIG_H

#include "kvcache/Checkpoint/CacheType.h"
#include "kvcache/Checkpoint/Checkpoint.h"
#include "kvcache/Checkpoint/Diagnostic.h"

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace kvcache {

/// A value and where it came from: "config.json: head_dim", "option
/// softmax-scale", "graph attribute softmax_scale".
template <typename T> struct Sourced {
  T value{};
  std::string from;
};

enum class LayerKind {
  Attention, ///< causal over everything
  Sliding,   ///< causal within a window
  Chunked,   ///< causal within aligned chunks
  MLA,       ///< multi-head latent attention
  Cross,     ///< over encoder states
  Recurrent, ///< no attention
  None       ///< neither (a bare MLP)
};

/// "attention", "sliding", "chunked", "mla", "cross", "recurrent", "none".
const char *layerKindName(LayerKind kind);

/// Attention with linear biases: slope * (key - query position) joins a score.
struct Alibi {
  /// The slopes of 2^n heads fall to 2^-biasMax.
  double biasMax = 8;
  /// The bias is multiplied by the softmax scale, as the products are.
  bool isScaled = false;
};

/// Slopes of the heads `first` .. `first + count - 1` of `heads`, by Press,
/// Smith and Lewis, "Train Short, Test Long", ICLR 2022 (arXiv 2108.12409;
/// `get_slopes` of its code): with the largest power of two m <= heads
/// 2^(-biasMax * i / m) for i = 1 .. m; the other heads take the odd i of 2m.
std::vector<double> alibiSlopes(const Alibi &alibi, int64_t heads,
                                int64_t first, int64_t count);

/// What the config says about one layer. For Recurrent and None only `index`
/// and `kind` count.
struct LayerAttention {
  int64_t index = 0;
  LayerKind kind = LayerKind::Attention;
  /// The layer writes a growing cache of its own.
  bool ownsCache = true;
  /// The layer whose cache it reads instead; -1: none.
  int64_t sharesCacheWith = -1;
  bool alsoRecurrent = false;

  Sourced<double> softmaxScale;
  std::optional<Sourced<double>> softCap;
  /// Keys visible to the left of a query, itself not counted (window - 1).
  std::optional<Sourced<int64_t>> windowLeft;
  int64_t chunk = 0; ///< length of a chunk; 0: none

  Sourced<int64_t> queryHeads, kvHeads, headDim, valueHeadDim;
  bool sinks = false;
  std::optional<Sourced<Alibi>> alibi;

  /// MLA only, else 0: the cached row is latentDim + ropeDim wide.
  int64_t latentDim = 0, nopeDim = 0, ropeDim = 0;
};

/// A reason why a model, or a use of it, cannot be served from an FP8 cache
/// here.
struct Refusal {
  /// The layer it concerns; -1: all.
  int64_t layer = -1;
  /// Only inputs with images are concerned.
  bool imagesOnly = false;
  std::string reason;
};

struct ModelAttention {
  std::string modelType;
  std::optional<Sourced<CacheType>> dtype;
  std::vector<LayerAttention> layers;
  std::vector<Refusal> refusals;
};

/// Applies the rules of the model's family. Errors: a model type that the
/// table lacks (says which options replace it), a key that is missing, of the
/// wrong kind or out of range.
Expected<ModelAttention> readModelAttention(const JsonFile &config);

/// The model's element type (`dtype`, once `torch_dtype`; in text_config or at
/// the top). nullopt when no key says. An unknown word is an error.
Expected<std::optional<Sourced<CacheType>>>
readModelDType(const JsonFile &config);

/// An attention layer of the graph, with what the graph itself says.
struct AttentionRequest {
  std::string layer;
  /// 0: not known. `vHeadDim` is that of values.
  int64_t queryHeads = 0, kvHeads = 0, headDim = 0, vHeadDim = 0;
  /// The part of a cached row of MLA that is the value; 0: keys and values.
  int64_t latentDim = 0;
  std::optional<double> softmaxScale, softCap; ///< attributes
  std::optional<int64_t> windowLeft;           ///< -1: none
  bool hasSlopes = false;                      ///< of ALiBi, as an operand
};

/// Explicit values for every layer.
struct AttentionOptions {
  std::optional<double> softmaxScale;
  std::optional<double> softCap; ///< 0: none
  std::optional<int64_t>
      window; ///< keys a query sees, itself included; 0: none
};

struct ResolvedAttention {
  std::string layer;
  int64_t index = -1; ///< in the config
  Sourced<double> softmaxScale;
  std::optional<Sourced<double>> softCap;
  std::optional<Sourced<int64_t>> windowLeft;
  bool sinks = false;
  std::optional<Sourced<Alibi>> alibi; ///< none where the graph has slopes
  int64_t queryHeads = 0;              ///< of all ranks, by the config
  /// Set from the config; the graph's layer name of the owner.
  std::string sharesCacheWith;
};

struct AttentionTable {
  /// In the order of the requests; a layer with an error may be left out.
  std::vector<ResolvedAttention> layers;
  std::vector<Diagnostic> diagnostics;
};

/// Combines options, graph attributes and the config (in this order of
/// precedence). Errors: nothing gives the softmax scale; the config contradicts
/// the graph's heads or head dim, or says that a layer of the graph has no
/// attention; a refusal that concerns a layer of the graph. One remark names
/// every value taken from the config. `config` may be null.
AttentionTable resolveAttention(const JsonFile *config,
                                const std::vector<AttentionRequest> &layers,
                                const AttentionOptions &options = {});

} // namespace kvcache

#endif // KVCACHE_CHECKPOINT_MODELCONFIG_H
