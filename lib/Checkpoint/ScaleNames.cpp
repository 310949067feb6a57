//===- ScaleNames.cpp - What the name of a tensor says --------------------===//
//
// Suffix rules, anchored at the end: what stands before an attention module is
// kept as it is.
//
//===----------------------------------------------------------------------===//

#include "ScaleNames.h"

using namespace kvcache;

static bool startsWith(std::string_view text, std::string_view start) {
  return text.substr(0, start.size()) == start;
}

static bool endsWith(std::string_view text, std::string_view end) {
  return text.size() >= end.size() &&
         text.substr(text.size() - end.size()) == end;
}

bool kvcache::isSelfAttentionName(std::string_view part) {
  return part == "self_attn" || part == "self_attention" ||
         part == "attention" || part == "attn" || part == "mixer" ||
         part == "mla_attn";
}

bool kvcache::isAttentionName(std::string_view part) {
  return isSelfAttentionName(part) || part == "cross_attn" ||
         part == "encoder_attn" || part == "cross_attention";
}

static std::string_view stripInnerModule(std::string_view path) {
  std::string_view before, last, above, outer;
  // L.attn and L.mla_attn.mla_attn are the attention ops inside a module L,
  // unless the component in front says that "attn" is the module itself.
  while (splitLast(path, before, last) &&
         (last == "attn" || last == "mla_attn") &&
         splitLast(before, above, outer) && isAttentionName(outer))
    path = before;
  return path;
}

std::string kvcache::attentionModule(std::string_view layer) {
  return std::string(stripInnerModule(layer));
}

bool kvcache::isQKVProjection(std::string_view part) {
  // Most projections of a large model are others.
  if (part.empty() ||
      std::string_view("qkvWcf").find(part[0]) == std::string_view::npos)
    return false;
  if (part == "query_key_value" || part == "Wqkv" || part == "qkv" ||
      part == "c_attn" || part == "W_pack" || part == "kv_a_proj_with_mqa" ||
      part == "fused_qkv_a_proj_with_mqa")
    return true;
  return endsWith(part, "_proj") &&
         (part[0] == 'q' || part[0] == 'k' || part[0] == 'v');
}

static std::string_view moduleOf(std::string_view path) {
  std::string_view before, last;
  if (splitLast(path, before, last) && isQKVProjection(last))
    path = before;
  return stripInnerModule(path);
}

/// The role of k_proj, v_proj, q_proj.
static std::optional<ScaleRole> projectionRole(std::string_view part) {
  if (part == "k_proj")
    return ScaleRole::K;
  if (part == "v_proj")
    return ScaleRole::V;
  if (part == "q_proj")
    return ScaleRole::Q;
  return std::nullopt;
}

bool kvcache::isEncoderLayer(std::string_view layer) {
  while (!layer.empty()) {
    size_t dot = layer.find('.');
    std::string_view part = layer.substr(0, dot);
    layer.remove_prefix(dot == std::string_view::npos ? layer.size() : dot + 1);
    if (startsWith(part, "vision") || part == "visual" ||
        startsWith(part, "audio") || part == "encoder")
      return true;
  }
  return false;
}

ScaleName kvcache::classifyScaleName(std::string_view name) {
  std::string_view path, last;
  // Most scales of a large model are those of weights.
  if (!splitLast(name, path, last) || startsWith(last, "weight"))
    return {};
  auto single = [](ScaleRole role, std::string_view module) {
    return ScaleName{ScaleName::Single, role, module};
  };
  if (last == "kv_scale")
    return {ScaleName::KV, ScaleRole::K, moduleOf(path)};
  if (last == "k_scale")
    return single(ScaleRole::K, moduleOf(path));
  if (last == "v_scale")
    return single(ScaleRole::V, moduleOf(path));
  if (last == "q_scale")
    return single(ScaleRole::Q, moduleOf(path));
  if (last == "prob_output_scale" || last == "prob_scale")
    return single(ScaleRole::Prob, stripInnerModule(path));
  if (last == "kv_cache_scaling_factor")
    return {ScaleName::KV, ScaleRole::K, stripInnerModule(path)};
  if (last == "k_cache_scaling_factor")
    return single(ScaleRole::K, stripInnerModule(path));
  if (last == "v_cache_scaling_factor")
    return single(ScaleRole::V, stripInnerModule(path));
  if (last == "q_zero_point" || last == "k_zero_point" ||
      last == "v_zero_point")
    return {ScaleName::ZeroPoint, *parseScaleRole(last.substr(0, 1)),
            moduleOf(path)};

  std::string_view above, part;
  if (!splitLast(path, above, part))
    return {};
  if (last == "output_scale" || last == "output_zero_point") {
    std::optional<ScaleRole> role = projectionRole(part);
    if (!role)
      return {};
    return {last == "output_scale" ? ScaleName::Single : ScaleName::ZeroPoint,
            *role, stripInnerModule(above)};
  }
  // What the next linear layer quantizes its input with.
  if (last == "input_scale" && (part == "o_proj" || part == "out_proj"))
    return single(ScaleRole::O, stripInnerModule(above));
  if (last == "scale") {
    if (part == "q")
      return single(ScaleRole::Q, stripInnerModule(above));
    if (part == "k_cache")
      return single(ScaleRole::K, stripInnerModule(above));
    if (part == "v_cache")
      return single(ScaleRole::V, stripInnerModule(above));
  }
  return {};
}

bool kvcache::isUnknownAttentionScale(std::string_view name) {
  std::string_view path, last, above, part;
  if (!splitLast(name, path, last))
    return false;
  // The scales of linear layers and the weights of norms.
  if (startsWith(last, "weight") || startsWith(last, "input") ||
      startsWith(last, "act") || startsWith(last, "pre_quant") ||
      startsWith(last, "prequant") || last == "scales" || last == "qscales" ||
      name.find("scal") == std::string_view::npos)
    return false;
  if (splitLast(path, above, part) &&
      (part.find("norm") != std::string_view::npos || part == "o_proj" ||
       part == "out_proj" || part == "dense" || part == "c_proj"))
    return false;
  while (!name.empty()) {
    size_t dot = name.find('.');
    std::string_view component = name.substr(0, dot);
    name.remove_prefix(dot == std::string_view::npos ? name.size() : dot + 1);
    if (isAttentionName(component))
      return name.find("scal") != std::string_view::npos;
  }
  return false;
}

std::vector<const Tensor *>
kvcache::findAttentionTensors(const SafetensorsFile &file) {
  std::vector<const Tensor *> found;
  for (const Tensor &tensor : file.tensors()) {
    std::string_view path, leaf, above, part;
    bool isProjection = splitLast(tensor.name, path, leaf) &&
                        splitLast(path, above, part) && isQKVProjection(part);
    if (isProjection ||
        classifyScaleName(tensor.name).kind != ScaleName::NotAScale ||
        isUnknownAttentionScale(tensor.name))
      found.push_back(&tensor);
  }
  return found;
}
