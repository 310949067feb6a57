//===- ScaleNamesTest.cpp - The forms of scale names ----------------------===//

#include "kvcache/Checkpoint/ScaleTable.h"

#include <gtest/gtest.h>

using namespace kvcache;

namespace {

struct Form {
  const char *suffix;
  ScaleName::Kind kind;
  ScaleRole role;
};

const Form forms[] = {
    {"kv_scale", ScaleName::KV, ScaleRole::K},
    {"k_scale", ScaleName::Single, ScaleRole::K},
    {"v_scale", ScaleName::Single, ScaleRole::V},
    {"q_scale", ScaleName::Single, ScaleRole::Q},
    {"attn.k_scale", ScaleName::Single, ScaleRole::K},
    {"attn.v_scale", ScaleName::Single, ScaleRole::V},
    {"attn.prob_scale", ScaleName::Single, ScaleRole::Prob},
    {"mla_attn.mla_attn.k_scale", ScaleName::Single, ScaleRole::K},
    {"k_proj.k_scale", ScaleName::Single, ScaleRole::K},
    {"v_proj.v_scale", ScaleName::Single, ScaleRole::V},
    {"q_proj.q_scale", ScaleName::Single, ScaleRole::Q},
    {"k_proj.v_scale", ScaleName::Single, ScaleRole::V},
    {"qkv_proj.k_scale", ScaleName::Single, ScaleRole::K},
    {"qkv_proj.v_scale", ScaleName::Single, ScaleRole::V},
    {"qkv_proj.q_scale", ScaleName::Single, ScaleRole::Q},
    {"qkqkv_proj.k_scale", ScaleName::Single, ScaleRole::K},
    {"k_proj.output_scale", ScaleName::Single, ScaleRole::K},
    {"v_proj.output_scale", ScaleName::Single, ScaleRole::V},
    {"q_proj.output_scale", ScaleName::Single, ScaleRole::Q},
    {"prob_output_scale", ScaleName::Single, ScaleRole::Prob},
    {"q.scale", ScaleName::Single, ScaleRole::Q},
    {"k_cache.scale", ScaleName::Single, ScaleRole::K},
    {"v_cache.scale", ScaleName::Single, ScaleRole::V},
    {"kv_cache_scaling_factor", ScaleName::KV, ScaleRole::K},
    {"k_cache_scaling_factor", ScaleName::Single, ScaleRole::K},
    {"v_cache_scaling_factor", ScaleName::Single, ScaleRole::V},
    {"k_zero_point", ScaleName::ZeroPoint, ScaleRole::K},
    {"v_zero_point", ScaleName::ZeroPoint, ScaleRole::V},
    {"q_zero_point", ScaleName::ZeroPoint, ScaleRole::Q},
};

TEST(ScaleNames, MapsEveryFormUnderEveryPrefix) {
  for (const char *module :
       {"model.layers.3.self_attn", "model.language_model.layers.3.self_attn",
        "transformer.layers.3.attention", "backbone.layers.3.mixer",
        "layers.0.self_attn", "transformer.h.11.attn"}) {
    for (const Form &form : forms) {
      std::string key = std::string(module) + "." + form.suffix;
      ScaleName name = classifyScaleName(key);
      EXPECT_EQ(name.kind, form.kind) << key;
      EXPECT_EQ(name.role, form.role) << key;
      EXPECT_EQ(name.module, module) << key;
    }
  }
}

TEST(ScaleNames, IsIdempotent) {
  for (const Form &form : forms) {
    if (form.kind != ScaleName::Single)
      continue;
    std::string key = std::string("model.layers.3.self_attn.") + form.suffix;
    ScaleName once = classifyScaleName(key);
    std::string mapped = std::string(once.module) + ".attn." +
                         scaleRoleName(once.role) + "_scale";
    ScaleName twice = classifyScaleName(mapped);
    EXPECT_EQ(twice.kind, once.kind) << mapped;
    EXPECT_EQ(twice.role, once.role) << mapped;
    EXPECT_EQ(twice.module, once.module) << mapped;
  }
}

TEST(ScaleNames, IsAnchoredAtTheEnd) {
  for (const char *key :
       {"model.layers.0.self_attn.k_scale.weight",
        "model.layers.0.self_attn.k_scale_inv",
        "model.layers.0.self_attn.xk_scale",
        "model.layers.0.self_attn.k_proj.weight_scale",
        "model.layers.0.self_attn.k_proj.input_scale",
        "model.layers.0.self_attn.o_proj.output_scale",
        "model.layers.0.self_attn.k_norm.scale",
        "model.layers.0.mlp.down_proj.weight_scale", "k_scales", ""})
    EXPECT_EQ(classifyScaleName(key).kind, ScaleName::NotAScale) << key;
}

TEST(ScaleNames, FindsTheAttentionModuleOfALayer) {
  const std::pair<const char *, const char *> cases[] = {
      {"model.layers.0.self_attn.attn", "model.layers.0.self_attn"},
      {"model.layers.0.self_attn", "model.layers.0.self_attn"},
      {"model.layers.0.self_attn.mla_attn.mla_attn",
       "model.layers.0.self_attn"},
      {"model.layers.0.self_attn.mla_attn", "model.layers.0.self_attn"},
      {"transformer.h.0.attn", "transformer.h.0.attn"},
      {"transformer.h.0.attn.attn", "transformer.h.0.attn"},
      {"backbone.layers.7.mixer.attn", "backbone.layers.7.mixer"},
      {"attn", "attn"},
      {"", ""},
  };
  for (const auto &[layer, module] : cases) {
    EXPECT_EQ(attentionModule(layer), module);
    EXPECT_EQ(attentionModule(module), module);
  }
}

TEST(ScaleNames, FindsTheIndexOfALayer) {
  EXPECT_EQ(layerIndex("model.layers.12.self_attn.attn"), 12);
  EXPECT_EQ(layerIndex("transformer.h.3.attn"), 3);
  EXPECT_EQ(layerIndex("model.layers.2.self_attn.1"), 2);
  EXPECT_EQ(layerIndex("stages.1.units.5.attn"), 5);
  EXPECT_EQ(layerIndex("model.encoder.attn"), -1);
  EXPECT_EQ(layerIndex(""), -1);
}

} // namespace
