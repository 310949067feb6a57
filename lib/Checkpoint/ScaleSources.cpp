//===- ScaleSources.cpp - Scale tensors and the layers they name ----------===//

#include "ScaleSources.h"
#include "ScaleNames.h"

#include <algorithm>
#include <cctype>
#include <cstring>
#include <map>
#include <unordered_map>
#include <unordered_set>

using namespace kvcache;

static bool isNumber(std::string_view part) {
  return !part.empty() &&
         std::all_of(part.begin(), part.end(),
                     [](unsigned char c) { return std::isdigit(c); });
}

static void collectFile(const std::string &path,
                        const std::vector<const Tensor *> &tensors,
                        ScaleSource &source,
                        std::unordered_map<std::string_view, size_t> &known) {
  for (const Tensor *entry : tensors) {
    const Tensor &tensor = *entry;
    ScaleName name = classifyScaleName(tensor.name);
    if (name.kind == ScaleName::NotAScale) {
      if (isUnknownAttentionScale(tensor.name))
        source.unknown.push_back({std::string(tensor.name), path,
                                  "a scale-like name of no known form"});
      continue;
    }
    auto [it, isNew] = known.emplace(tensor.name, source.candidates.size());
    if (!isNew) {
      ScaleCandidate &first = source.candidates[it->second];
      bool equal = first.tensor->dtype == tensor.dtype &&
                   first.tensor->shape == tensor.shape &&
                   std::memcmp(first.tensor->data, tensor.data,
                               size_t(tensor.bytes)) == 0;
      first.repetitions.push_back({path, equal});
      continue;
    }
    ScaleCandidate candidate;
    candidate.kind = name.kind;
    candidate.role = name.role;
    candidate.module = name.module;
    candidate.key = tensor.name;
    candidate.file = path;
    candidate.tensor = &tensor;
    source.candidates.push_back(std::move(candidate));
  }
}

ScaleSource kvcache::collectScales(const Checkpoint &checkpoint) {
  ScaleSource source;
  source.name = checkpoint.path();
  std::unordered_map<std::string_view, size_t> known;
  for (size_t i = 0; i < checkpoint.shards().size(); ++i)
    collectFile(checkpoint.shards()[i].path(), checkpoint.attentionTensors()[i],
                source, known);
  return source;
}

/// {"kv_cache": {"dtype": ..., "scaling_factor": {"<rank>": {"<layer>": f}}}}
static Error readCalibrationJson(const std::string &path, ScaleSource &source) {
  Expected<std::string> text = readFile(path);
  if (!text)
    return text.error();
  JsonParseOptions options;
  options.rejectDuplicates = true;
  Expected<JsonValue> root = parseJson(*text, path, options);
  if (!root)
    return root.error();
  const JsonValue *cache = root->find("kv_cache");
  const JsonValue *ranks = cache ? cache->find("scaling_factor") : nullptr;
  if (!ranks || !ranks->isObject())
    return makeError(path + ": expected an object 'kv_cache.scaling_factor' "
                            "(rank to layer to scale)");
  if (ranks->asObject().size() != 1)
    return makeError(path +
                     ": kv_cache.scaling_factor: expected one tensor "
                     "parallel rank, found " +
                     std::to_string(ranks->asObject().size()));
  const auto &[rank, values] = ranks->asObject().front();
  std::string where = "kv_cache.scaling_factor." + rank;
  if (!values.isObject())
    return makeError(path + ": " + where + ": expected an object, found " +
                     values.kindName());
  for (const auto &[layer, value] : values.asObject()) {
    if (!isNumber(layer) || layer.size() > 9 || !value.isNumber())
      return makeError(path + ": " + where + "." + layer +
                       ": expected the index of a layer and a number, found " +
                       value.kindName());
    ScaleCandidate candidate;
    candidate.kind = ScaleName::KV;
    candidate.layerIndex = std::stoll(layer);
    candidate.key = where + "." + layer;
    candidate.file = path;
    candidate.number = value.asDouble();
    source.candidates.push_back(std::move(candidate));
  }
  return Error::success();
}

Expected<ScaleSource> kvcache::openScaleOverlay(const std::string &path) {
  ScaleSource source;
  source.name = path;
  source.isOverlay = true;
  if (path.size() > 5 && path.substr(path.size() - 5) == ".json") {
    if (Error error = readCalibrationJson(path, source))
      return error;
    return source;
  }
  Expected<SafetensorsFile> file = SafetensorsFile::open(path);
  if (!file)
    return file.error();
  source.owned.push_back(std::move(*file));
  std::unordered_map<std::string_view, size_t> known;
  collectFile(path, findAttentionTensors(source.owned.front()), source, known);
  return source;
}

//===----------------------------------------------------------------------===//
// Matching
//===----------------------------------------------------------------------===//

namespace {

/// The module without its own name where that is one of the synonyms of self
/// attention: "transformer.layers.3.attention" and "model.layers.3.self_attn"
/// name the same place in different code bases.
std::string_view placeOf(std::string_view module) {
  std::string_view before, last;
  if (splitLast(module, before, last) && isSelfAttentionName(last))
    return before;
  return module;
}

/// The components from the layer's index and its container on: "layers.3",
/// "layers.3.cross_attn". Only places with equal tails can be the same.
std::string_view tailOf(std::string_view place) {
  std::string_view path = place, before, last;
  while (splitLast(path, before, last)) {
    if (isNumber(last)) {
      std::string_view above, container;
      if (!splitLast(before, above, container))
        return place;
      return place.substr(size_t(container.data() - place.data()));
    }
    path = before;
  }
  return place;
}

/// How many components two paths share, counted from the end.
size_t commonComponents(std::string_view a, std::string_view b) {
  size_t count = 0;
  std::string_view beforeA, lastA, beforeB, lastB;
  while (splitLast(a, beforeA, lastA) && splitLast(b, beforeB, lastB) &&
         lastA == lastB) {
    ++count;
    a = beforeA;
    b = beforeB;
  }
  return count;
}

/// Those of `wanted` that some tensor of the checkpoint lies below.
std::unordered_set<std::string_view>
findModules(const Checkpoint &checkpoint,
            const std::unordered_set<std::string_view> &wanted) {
  std::unordered_set<std::string_view> found;
  for (const SafetensorsFile &file : checkpoint.shards())
    for (const Tensor &tensor : file.tensors()) {
      std::string_view name = tensor.name;
      for (size_t dot = name.find('.'); dot != std::string_view::npos;
           dot = name.find('.', dot + 1)) {
        auto it = wanted.find(name.substr(0, dot));
        if (it != wanted.end())
          found.insert(*it);
      }
    }
  return found;
}

class LayerMatcher {
public:
  LayerMatcher(const ScaleSource &source, const Checkpoint *checkpoint,
               const std::vector<ScaleRequest> &layers,
               std::vector<Diagnostic> &diagnostics)
      : source(source), checkpoint(checkpoint), layers(layers),
        diagnostics(diagnostics), result(layers.size()) {}

  std::vector<std::vector<const ScaleCandidate *>>
  run(std::vector<const ScaleCandidate *> &unmatched) {
    for (const ScaleCandidate &candidate : source.candidates)
      if (candidate.tensor)
        modules[candidate.module].push_back(&candidate);
    matchExactly();
    matchBySuffix();
    matchByIndex(unmatched);
    for (auto &[module, candidates] : modules)
      if (!taken.count(module))
        unmatched.insert(unmatched.end(), candidates.begin(), candidates.end());
    return std::move(result);
  }

private:
  using Candidates = std::vector<const ScaleCandidate *>;

  void take(size_t layer, std::string_view module) {
    const Candidates &candidates = modules.find(module)->second;
    result[layer].insert(result[layer].end(), candidates.begin(),
                         candidates.end());
    taken.insert(module);
  }

  void error(size_t layer, const std::string &message) {
    diagnostics.push_back({Severity::Error, layers[layer].layer, "",
                           source.name,
                           "layer " + layers[layer].layer + ": " + message});
  }

  void matchExactly() {
    for (size_t i = 0; i < layers.size(); ++i) {
      own.push_back(attentionModule(layers[i].layer));
      auto it = modules.find(own[i]);
      if (it != modules.end())
        take(i, it->first);
      else
        open.push_back(i);
    }
  }

  void matchBySuffix() {
    if (open.empty() || taken.size() == modules.size())
      return;
    std::unordered_set<std::string_view> wanted, present;
    for (size_t i : open)
      wanted.insert(own[i]);
    if (checkpoint)
      present = findModules(*checkpoint, wanted);
    std::unordered_map<std::string_view, std::vector<std::string_view>> byTail;
    for (const auto &entry : modules)
      if (!taken.count(entry.first) && !entry.first.empty())
        byTail[tailOf(placeOf(entry.first))].push_back(entry.first);

    std::map<std::string_view, std::vector<size_t>> chosen;
    for (size_t i : open) {
      // The module is there under its exact name and has no scales.
      if (present.count(own[i]))
        continue;
      std::string_view place = placeOf(own[i]);
      auto it = byTail.find(tailOf(place));
      if (it == byTail.end())
        continue;
      size_t best = 0;
      std::vector<std::string_view> equal;
      for (std::string_view module : it->second) {
        size_t common = commonComponents(place, placeOf(module));
        if (common > best)
          equal.clear();
        best = std::max(best, common);
        if (common == best)
          equal.push_back(module);
      }
      if (equal.size() > 1)
        error(i, "no tensor is named after it, and the modules '" +
                     std::string(equal[0]) + "' and '" + std::string(equal[1]) +
                     "' match its end equally well");
      else
        chosen[equal[0]].push_back(i);
    }
    for (const auto &[module, matching] : chosen) {
      if (matching.size() > 1) {
        for (size_t i : matching)
          error(i, "no tensor is named after it, and the end of '" +
                       std::string(module) + "' matches " +
                       std::to_string(matching.size()) +
                       " layers of the graph");
        continue;
      }
      take(matching[0], module);
      const std::string &layer = layers[matching[0]].layer;
      diagnostics.push_back(
          {Severity::Remark, layer, std::string(module), source.name,
           "layer " + layer + ": takes the scales of '" + std::string(module) +
               "', the only module whose name ends alike"});
    }
  }

  void matchByIndex(std::vector<const ScaleCandidate *> &unmatched) {
    std::unordered_map<int64_t, std::vector<size_t>> byIndex;
    for (size_t i = 0; i < layers.size(); ++i)
      byIndex[layerIndex(layers[i].layer)].push_back(i);
    for (const ScaleCandidate &candidate : source.candidates) {
      if (candidate.tensor)
        continue;
      auto it = byIndex.find(candidate.layerIndex);
      if (it == byIndex.end())
        unmatched.push_back(&candidate);
      else if (it->second.size() > 1)
        error(it->second[0], "'" + candidate.key + "' of " + candidate.file +
                                 " names " + std::to_string(it->second.size()) +
                                 " layers of the graph by one index");
      else
        result[it->second[0]].push_back(&candidate);
    }
  }

  const ScaleSource &source;
  const Checkpoint *checkpoint;
  const std::vector<ScaleRequest> &layers;
  std::vector<Diagnostic> &diagnostics;
  std::vector<Candidates> result;
  std::vector<std::string> own; ///< attention modules of the layers
  std::vector<size_t> open;     ///< layers without an exact match
  std::map<std::string_view, Candidates> modules;
  std::unordered_set<std::string_view> taken;
};

} // namespace

std::vector<std::vector<const ScaleCandidate *>>
kvcache::matchLayers(const ScaleSource &source, const Checkpoint *checkpoint,
                     const std::vector<ScaleRequest> &layers,
                     std::vector<const ScaleCandidate *> &unmatched,
                     std::vector<Diagnostic> &diagnostics) {
  return LayerMatcher(source, checkpoint, layers, diagnostics).run(unmatched);
}
