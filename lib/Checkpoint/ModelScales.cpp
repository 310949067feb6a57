//===- ModelScales.cpp - A checkpoint's KV cache, without a graph ---------===//

#include "kvcache/Checkpoint/ModelScales.h"
#include "ScaleNames.h"

#include <algorithm>
#include <cctype>
#include <deque>
#include <map>
#include <tuple>
#include <unordered_map>

using namespace kvcache;

namespace {

/// An attention module by the names of its tensors.
struct Module {
  std::string name;
  int64_t index = -1;
  bool cross = false, latent = false, hasScale = false;
};

bool isDigits(std::string_view part) {
  return !part.empty() &&
         std::all_of(part.begin(), part.end(),
                     [](unsigned char c) { return std::isdigit(c); });
}

/// "self_attn", or "self_attn.1" where a layer has several.
bool isAttentionModule(std::string_view module) {
  std::string_view before, last, above, outer;
  if (!splitLast(module, before, last))
    return false;
  if (isDigits(last) && splitLast(before, above, outer))
    return isAttentionName(outer);
  return isAttentionName(last);
}

class ModelDescriber {
public:
  ModelDescriber(const Checkpoint &checkpoint, const ModelScaleOptions &options)
      : checkpoint(checkpoint), options(options) {}

  ModelScales run() {
    model.quant = readQuantConfig(&checkpoint);
    collect(checkpoint.diagnostics());
    findModules();
    readConfig();
    if (config)
      layersFromConfig();
    else
      layersFromNames();
    resolveTypes();
    resolveAll();
    sortDiagnostics();
    return std::move(model);
  }

private:
  void report(Severity severity, const std::string &message,
              const std::string &layer = "") {
    const JsonFile *json = checkpoint.config();
    model.diagnostics.push_back(
        {severity, layer, "", json ? json->path : checkpoint.path(), message});
  }

  void collect(const std::vector<Diagnostic> &diagnostics) {
    model.diagnostics.insert(model.diagnostics.end(), diagnostics.begin(),
                             diagnostics.end());
  }

  /// Errors first, else in the order in which they came up.
  void sortDiagnostics() {
    std::vector<Diagnostic> sorted;
    for (Severity severity :
         {Severity::Error, Severity::Warning, Severity::Remark})
      for (Diagnostic &diagnostic : model.diagnostics)
        if (diagnostic.severity == severity)
          sorted.push_back(std::move(diagnostic));
    model.diagnostics = std::move(sorted);
  }

  Module &addModule(std::string_view name) {
    auto it = position.find(name);
    if (it != position.end())
      return modules[it->second];
    Module module;
    module.name = name;
    module.index = layerIndex(name);
    std::string_view before, last;
    splitLast(name, before, last);
    module.cross = isAttentionName(last) && !isSelfAttentionName(last);
    modules.push_back(std::move(module));
    names.push_back(std::string(name));
    position.emplace(names.back(), modules.size() - 1);
    return modules.back();
  }

  void findModules() {
    for (const std::vector<const Tensor *> &tensors :
         checkpoint.attentionTensors())
      for (const Tensor *tensor : tensors) {
        std::string_view path, leaf, above, part;
        if (splitLast(tensor->name, path, leaf) &&
            splitLast(path, above, part) && isQKVProjection(part) &&
            isAttentionModule(above) && !isEncoderLayer(above)) {
          Module &module = addModule(attentionModule(above));
          module.latent = module.latent || part.substr(0, 4) == "kv_a";
        }
        ScaleName scale = classifyScaleName(tensor->name);
        bool isCache =
            scale.kind == ScaleName::KV ||
            (scale.kind == ScaleName::Single &&
             (scale.role == ScaleRole::K || scale.role == ScaleRole::V));
        if (isCache && !scale.module.empty() && !isEncoderLayer(scale.module))
          addModule(scale.module).hasScale = true;
      }
    std::sort(modules.begin(), modules.end(),
              [](const Module &a, const Module &b) {
                return std::tie(a.index, a.name) < std::tie(b.index, b.name);
              });
  }

  void readConfig() {
    const JsonFile *json = checkpoint.config();
    if (!json) {
      report(Severity::Warning,
             checkpoint.path() +
                 ": there is no config.json, so softmax scale, window and "
                 "heads are not known; the layers come from tensor names");
      return;
    }
    Expected<ModelAttention> read = readModelAttention(*json);
    if (!read) {
      report(Severity::Warning,
             read.message() + "; the layers come from tensor names");
      return;
    }
    config = std::move(*read);
    model.modelType = config->modelType;
    for (const Refusal &refusal : config->refusals)
      report(refusal.imagesOnly ? Severity::Remark : Severity::Error,
             "model type '" + config->modelType + "'" +
                 (refusal.layer >= 0
                      ? ", layer " + std::to_string(refusal.layer)
                      : "") +
                 (refusal.imagesOnly ? ": text only: " : ": not supported: ") +
                 refusal.reason);
  }

  /// A name for a layer that no tensor names, after the pattern of the others.
  std::string nameOf(int64_t index) const {
    for (const Module &module : modules) {
      if (module.cross || module.index < 0)
        continue;
      std::string number = std::to_string(module.index);
      size_t at = module.name.find("." + number + ".");
      if (at == std::string::npos)
        continue;
      return module.name.substr(0, at + 1) + std::to_string(index) +
             module.name.substr(at + 1 + number.size());
    }
    return "model.layers." + std::to_string(index) + ".self_attn";
  }

  /// longcat_flash has two attentions a decoder layer, self_attn.0 and .1.
  int64_t configIndex(const Module &module) const {
    if (config->modelType != "longcat_flash")
      return module.index;
    std::string_view before, last;
    splitLast(module.name, before, last);
    return 2 * module.index + (last == "1" ? 1 : 0);
  }

  void layersFromConfig() {
    std::map<int64_t, std::vector<const Module *>> byIndex;
    for (const Module &module : modules)
      byIndex[configIndex(module)].push_back(&module);
    for (const LayerAttention &entry : config->layers) {
      ModelLayer layer;
      layer.index = entry.index;
      layer.attention = entry;
      layer.hasAttention =
          entry.kind != LayerKind::Recurrent && entry.kind != LayerKind::None;
      layer.mla = entry.kind == LayerKind::MLA;
      std::vector<const Module *> found;
      if (auto it = byIndex.find(entry.index); it != byIndex.end())
        found = std::move(it->second);
      byIndex.erase(entry.index);
      if (!layer.hasAttention) {
        // Scales there belong to no cache; resolution reports them.
        layer.name = attentionParent(found.empty() ? nameOf(entry.index)
                                                   : found[0]->name);
        model.layers.push_back(std::move(layer));
        continue;
      }
      if (found.empty()) {
        layer.name = nameOf(entry.index);
        unnamed.push_back(layer.name);
        model.layers.push_back(std::move(layer));
        continue;
      }
      layer.isNamed = true;
      for (const Module *module : found) {
        layer.name = module->name;
        model.layers.push_back(layer);
      }
    }
    std::vector<std::string> beyond;
    for (const auto &[index, list] : byIndex)
      for (const Module *module : list)
        beyond.push_back(module->name);
    if (!beyond.empty())
      report(Severity::Remark,
             std::to_string(beyond.size()) +
                 " attention modules are beyond the " +
                 std::to_string(config->layers.size()) +
                 " layers of config.json (draft layers, for example) and are "
                 "left out, such as '" +
                 beyond[0] + "'");
    if (!unnamed.empty() && !modules.empty())
      report(Severity::Warning,
             "config.json has " + std::to_string(unnamed.size()) +
                 " attention layers of which the checkpoint has no attention "
                 "tensor, such as '" +
                 unnamed[0] + "'");
  }

  static std::string attentionParent(std::string_view module) {
    std::string_view before, last;
    return splitLast(module, before, last) && !before.empty()
               ? std::string(before)
               : std::string(module);
  }

  void layersFromNames() {
    for (const Module &module : modules) {
      ModelLayer layer;
      layer.name = module.name;
      layer.index = module.index;
      layer.isNamed = true;
      layer.mla = module.latent;
      model.layers.push_back(std::move(layer));
    }
    if (modules.empty())
      report(Severity::Error,
             checkpoint.path() +
                 ": no attention layer was found: no usable config.json, and "
                 "no tensor is named like ...layers.0.self_attn.k_proj.weight "
                 "or ...layers.0.self_attn.k_scale");
  }

  void resolveTypes() {
    CacheTypeOptions typeOptions;
    typeOptions.word = options.cacheWord;
    typeOptions.skipLayers = options.skipLayers;
    std::vector<CacheTypeRequest> requests;
    std::vector<ModelLayer *> asked;
    for (ModelLayer &layer : model.layers) {
      if (!layer.hasAttention)
        continue;
      if (layer.attention && !layer.attention->ownsCache &&
          layer.attention->sharesCacheWith < 0)
        continue;
      CacheTypeRequest request;
      request.layer = layer.name;
      request.windowed =
          layer.attention && layer.attention->windowLeft.has_value();
      requests.push_back(std::move(request));
      asked.push_back(&layer);
    }
    CacheTypeTable table =
        resolveCacheTypes(&checkpoint, requests, typeOptions);
    collect(table.diagnostics);
    // One word that is wrong decides no layer.
    for (size_t i = 0; i < table.layers.size(); ++i)
      asked[i]->cache = table.layers[i];
  }

  void resolveAll() {
    std::unordered_map<int64_t, std::string> byIndex;
    for (const ModelLayer &layer : model.layers)
      byIndex.emplace(layer.index, layer.name);
    std::vector<ScaleRequest> requests;
    for (ModelLayer &layer : model.layers) {
      if (!layer.cache)
        continue;
      ScaleRequest request;
      request.layer = layer.name;
      request.cacheType = layer.cache->type;
      request.queryIsFP8 = options.queryIsFP8;
      request.mla = layer.mla;
      if (const auto &entry = layer.attention) {
        if (entry->sharesCacheWith >= 0) {
          auto owner = byIndex.find(entry->sharesCacheWith);
          if (owner != byIndex.end())
            layer.sharesCacheWith = owner->second;
        }
        request.kvHeads = ranksHeads(*entry);
      }
      request.sharesCacheWith = layer.sharesCacheWith;
      requests.push_back(std::move(request));
    }
    model.scales = resolveScales(&checkpoint, requests, options.scales);
    collect(model.scales.diagnostics);
  }

  int64_t ranksHeads(const LayerAttention &entry) const {
    int64_t heads = entry.kind == LayerKind::MLA ? 1 : entry.kvHeads.value;
    int64_t ranks = options.scales.tpSize;
    if (ranks <= 1 || heads == 0)
      return heads;
    return heads % ranks == 0 ? heads / ranks : 1;
  }

  const Checkpoint &checkpoint;
  const ModelScaleOptions &options;
  std::vector<Module> modules;
  std::deque<std::string> names; ///< what `position` points at
  std::unordered_map<std::string_view, size_t> position;
  std::vector<std::string> unnamed;
  std::optional<ModelAttention> config;
  ModelScales model;
};

} // namespace

ModelScales kvcache::describeModel(const Checkpoint &checkpoint,
                                   const ModelScaleOptions &options) {
  return ModelDescriber(checkpoint, options).run();
}
