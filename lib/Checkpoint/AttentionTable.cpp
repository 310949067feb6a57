//===- AttentionTable.cpp - Attention parameters of a graph's layers ------===//

#include "kvcache/Checkpoint/ModelConfig.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <map>

using namespace kvcache;

namespace {

class AttentionResolver {
public:
  AttentionResolver(const JsonFile *config,
                    const std::vector<AttentionRequest> &layers,
                    const AttentionOptions &options)
      : config(config), requests(layers), options(options) {}

  AttentionTable run() {
    readConfig();
    if (!checkOptions())
      return std::move(table);
    for (const AttentionRequest &request : requests)
      resolve(request);
    linkSharedCaches();
    reportRefusals();
    reportSources();
    return std::move(table);
  }

private:
  void report(Severity severity, const std::string &layer,
              const std::string &message, const std::string &key = "") {
    table.diagnostics.push_back(
        {severity, layer, key, config ? config->path : "",
         layer.empty() ? message : "layer " + layer + ": " + message});
  }

  void readConfig() {
    if (!config) {
      problem = "there is no config.json";
      return;
    }
    Expected<ModelAttention> read = readModelAttention(*config);
    if (read)
      model = std::move(*read);
    else
      problem = read.message();
  }

  bool checkOptions() {
    auto bad = [&](const char *name, const std::string &value,
                   const char *expected) {
      report(Severity::Error, "",
             std::string("option ") + name + "=" + value + ": expected " +
                 expected,
             name);
      return false;
    };
    if (options.softmaxScale &&
        !(std::isfinite(*options.softmaxScale) && *options.softmaxScale > 0))
      return bad("softmax-scale", std::to_string(*options.softmaxScale),
                 "a positive finite number");
    if (options.softCap &&
        !(std::isfinite(*options.softCap) && *options.softCap >= 0))
      return bad("soft-cap", std::to_string(*options.softCap),
                 "a positive finite number, or 0 for none");
    if (options.window && *options.window < 0)
      return bad("window", std::to_string(*options.window),
                 "a positive number of keys, or 0 for none");
    return true;
  }

  /// The config's entry for a layer of the graph; null after an error, or if
  /// there is no usable config.
  const LayerAttention *findEntry(const AttentionRequest &request) {
    if (!model)
      return nullptr;
    int64_t index = layerIndex(request.layer);
    // Two attentions a decoder layer: model.layers.L.self_attn.0 and .1.
    if (model->modelType == "longcat_flash")
      index = 2 * index + lastNumber(request.layer);
    if (index < 0) {
      report(Severity::Error, request.layer,
             "no component of the name is a layer's index, so config.json "
             "cannot be applied to it");
      return nullptr;
    }
    if (size_t(index) >= model->layers.size()) {
      report(Severity::Error, request.layer,
             "the config has only " + std::to_string(model->layers.size()) +
                 " layers");
      return nullptr;
    }
    const LayerAttention &entry = model->layers[size_t(index)];
    if (entry.kind == LayerKind::Recurrent || entry.kind == LayerKind::None) {
      report(Severity::Error, request.layer,
             std::string("is an attention layer of the graph, but the config "
                         "says that layer ") +
                 std::to_string(index) + " has none (" +
                 layerKindName(entry.kind) + ")");
      return nullptr;
    }
    return &entry;
  }

  static int64_t lastNumber(const std::string &name) {
    size_t end = name.size();
    while (end > 0 && !std::isdigit(static_cast<unsigned char>(name[end - 1])))
      --end;
    size_t begin = end;
    while (begin > 0 &&
           std::isdigit(static_cast<unsigned char>(name[begin - 1])))
      --begin;
    return end - begin == 1 && name[begin] == '1' ? 1 : 0;
  }

  void checkShape(const AttentionRequest &request, const char *what,
                  int64_t graph, const Sourced<int64_t> &expected) {
    if (graph == 0 || graph == expected.value)
      return;
    report(Severity::Error, request.layer,
           std::string("the graph has ") + what + " " + std::to_string(graph) +
               ", but " + expected.from + " says " +
               std::to_string(expected.value),
           expected.from);
  }

  void note(const std::string &what, const std::string &from) {
    ++sources[what + " from " + from];
  }

  void resolve(const AttentionRequest &request) {
    ResolvedAttention result;
    result.layer = request.layer;
    const LayerAttention *entry = findEntry(request);
    if (model && !entry)
      return;
    if (entry) {
      result.index = entry->index;
      result.sinks = entry->sinks;
      result.queryHeads = entry->queryHeads.value;
      checkShape(request, "query heads", request.queryHeads, entry->queryHeads);
      // An MLA model's graph works on expanded heads or on the latent row.
      if (entry->kind != LayerKind::MLA) {
        checkShape(request, "KV heads", request.kvHeads, entry->kvHeads);
        checkShape(request, "head dim", request.headDim, entry->headDim);
        // Stacks without such caches pad values to the head dim of keys.
        if (request.vHeadDim != request.headDim)
          checkShape(request, "head dim of values", request.vHeadDim,
                     entry->valueHeadDim);
        if (request.latentDim != 0)
          report(Severity::Error, request.layer,
                 std::string("the graph has a latent cache (MLA), but the "
                             "config says that its kind is '") +
                     layerKindName(entry->kind) + "'");
      } else if (request.latentDim != 0) {
        checkShape(request, "latent dim", request.latentDim,
                   {entry->latentDim, "config.json: kv_lora_rank"});
        checkShape(request, "rotary dim", request.headDim - request.latentDim,
                   {entry->ropeDim, "config.json: qk_rope_head_dim"});
      }
    }

    if (options.softmaxScale) {
      result.softmaxScale = {*options.softmaxScale, "option softmax-scale"};
    } else if (request.softmaxScale) {
      result.softmaxScale = {*request.softmaxScale,
                             "graph attribute softmax_scale"};
    } else if (entry) {
      result.softmaxScale = entry->softmaxScale;
      note("softmax scale", entry->softmaxScale.from);
    } else {
      report(Severity::Error, request.layer,
             "nothing says its softmax scale: " + problem);
      return;
    }
    if (!(result.softmaxScale.value > 0) ||
        !std::isfinite(result.softmaxScale.value))
      report(Severity::Error, request.layer,
             "the softmax scale of " + result.softmaxScale.from +
                 " must be positive and finite, found " +
                 formatDouble(result.softmaxScale.value));

    bool assumed = false;
    if (options.softCap) {
      if (*options.softCap > 0)
        result.softCap = {*options.softCap, "option soft-cap"};
    } else if (request.softCap) {
      if (*request.softCap > 0)
        result.softCap = {*request.softCap, "graph attribute soft_cap"};
    } else if (entry) {
      result.softCap = entry->softCap;
      if (entry->softCap)
        note("soft cap", entry->softCap->from);
    } else {
      assumed = true;
    }

    if (options.window) {
      if (*options.window > 0)
        result.windowLeft = {*options.window - 1, "option window"};
    } else if (request.windowLeft) {
      if (*request.windowLeft >= 0)
        result.windowLeft = {*request.windowLeft, "graph attribute"};
    } else if (entry) {
      result.windowLeft = entry->windowLeft;
      if (entry->windowLeft)
        note("window", entry->windowLeft->from);
    } else {
      assumed = true;
    }
    if (entry && entry->alibi && !request.hasSlopes) {
      result.alibi = entry->alibi;
      note("ALiBi slopes", entry->alibi->from);
    }
    if (assumed)
      assumedLayers.push_back(request.layer);
    table.layers.push_back(std::move(result));
  }

  void linkSharedCaches() {
    if (!model)
      return;
    for (ResolvedAttention &layer : table.layers) {
      int64_t owner = layer.index < 0
                          ? -1
                          : model->layers[size_t(layer.index)].sharesCacheWith;
      if (owner < 0)
        continue;
      for (const ResolvedAttention &other : table.layers)
        if (other.index == owner)
          layer.sharesCacheWith = other.layer;
      if (layer.sharesCacheWith.empty())
        report(Severity::Error, layer.layer,
               "reads the cache of layer " + std::to_string(owner) +
                   ", which the graph does not have");
    }
  }

  void reportRefusals() {
    if (!model)
      return;
    for (const Refusal &refusal : model->refusals) {
      std::string layer;
      for (const ResolvedAttention &resolved : table.layers)
        if (resolved.index == refusal.layer)
          layer = resolved.layer;
      if (refusal.layer >= 0 && layer.empty())
        continue;
      report(refusal.imagesOnly ? Severity::Remark : Severity::Error, layer,
             "model type '" + model->modelType + "': " +
                 (refusal.imagesOnly ? "text only: " : "not supported: ") +
                 refusal.reason);
    }
  }

  void reportSources() {
    if (!assumedLayers.empty())
      report(Severity::Warning, "",
             "no rule says whether the " +
                 std::to_string(assumedLayers.size()) +
                 " attention layers have a window or a soft cap (" + problem +
                 "); taken as none. Give both explicitly");
    if (sources.empty())
      return;
    std::string text;
    for (const auto &[source, count] : sources)
      text += (text.empty() ? "" : "; ") + source + " (" +
              std::to_string(count) + (count == 1 ? " layer)" : " layers)");
    report(Severity::Remark, "", "taken from the model's config: " + text);
  }

  const JsonFile *config;
  const std::vector<AttentionRequest> &requests;
  const AttentionOptions &options;
  std::optional<ModelAttention> model;
  std::string problem;
  std::map<std::string, size_t> sources;
  std::vector<std::string> assumedLayers;
  AttentionTable table;
};

} // namespace

AttentionTable
kvcache::resolveAttention(const JsonFile *config,
                          const std::vector<AttentionRequest> &layers,
                          const AttentionOptions &options) {
  return AttentionResolver(config, layers, options).run();
}
