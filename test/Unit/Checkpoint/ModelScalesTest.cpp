//===- ModelScalesTest.cpp - A checkpoint's layers without a graph --------===//

#include "kvcache/Checkpoint/ModelScales.h"
#include "TestCheckpoint.h"

using namespace kvcache;

namespace {

class ModelScaleTest : public testing::Test {
protected:
  ModelScales describe(const TensorList &list, const std::string &config = "") {
    folder.tensors("model.safetensors", list);
    if (!config.empty())
      folder.text("config.json", config);
    Expected<Checkpoint> checkpoint = Checkpoint::open(folder.root);
    if (!checkpoint) {
      ADD_FAILURE() << checkpoint.message();
      return {};
    }
    return describeModel(*checkpoint, options);
  }

  static std::vector<std::string> names(const ModelScales &model) {
    std::vector<std::string> result;
    for (const ModelLayer &layer : model.layers)
      result.push_back(layer.name);
    return result;
  }

  static TensorList &weight(TensorList &list, const std::string &name) {
    return list.bf16(name + ".weight", 1);
  }

  TestFolder folder;
  ModelScaleOptions options;
};

using Names = std::vector<std::string>;

const char *const llama =
    R"({"model_type": "llama", "torch_dtype": "bfloat16", "hidden_size": 256,
        "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2})";

} // namespace

TEST_F(ModelScaleTest, LayersComeFromNamesWithoutAConfig) {
  TensorList list;
  weight(list, "model.layers.10.self_attn.k_proj");
  weight(list, "model.layers.2.self_attn.qkv_proj");
  // A name with a scale is enough, whatever its form.
  list.f32("model.layers.3.self_attn.attn.k_scale", .5f);
  list.f32("model.layers.4.self_attn.k_proj.k_scale", .5f);
  // No attention: a recurrent mixer, an MLP, a norm.
  weight(list, "model.layers.5.mixer.in_proj");
  weight(list, "model.layers.5.mlp.gate_proj");
  ModelScales model = describe(list);
  EXPECT_EQ(names(model),
            (Names{"model.layers.2.self_attn", "model.layers.3.self_attn",
                   "model.layers.4.self_attn", "model.layers.10.self_attn"}));
  EXPECT_NE(findOnly(model.diagnostics, Severity::Warning, "no config.json"),
            nullptr);
}

TEST_F(ModelScaleTest, TowersHaveNoCache) {
  TensorList list;
  weight(list, "model.language_model.layers.0.self_attn.k_proj");
  weight(list, "model.vision_tower.layers.0.self_attn.k_proj");
  weight(list, "visual.blocks.0.attn.qkv");
  weight(list, "audio_tower.layers.0.self_attn.k_proj");
  weight(list, "encoder.layers.0.self_attn.k_proj");
  EXPECT_EQ(names(describe(list)),
            (Names{"model.language_model.layers.0.self_attn"}));
}

TEST_F(ModelScaleTest, TheConfigSaysWhatTheLayersAre) {
  TensorList list;
  for (const char *layer : {"0", "1"})
    weight(list, std::string("model.layers.") + layer + ".self_attn.k_proj");
  // Draft layers behind the last one.
  weight(list, "model.layers.2.self_attn.k_proj");
  list.f32("model.layers.0.self_attn.k_scale", .25f);
  options.cacheWord = "fp8";
  ModelScales model = describe(list, llama);
  EXPECT_EQ(names(model),
            (Names{"model.layers.0.self_attn", "model.layers.1.self_attn"}));
  EXPECT_EQ(model.modelType, "llama");
  ASSERT_TRUE(model.layers[0].attention);
  EXPECT_EQ(model.layers[0].attention->softmaxScale.value, .125);
  EXPECT_EQ((*model.scalesOf(model.layers[0]))[ScaleRole::V].value, .25f);
  EXPECT_NE(
      findOnly(model.diagnostics, Severity::Remark, "beyond the 2 layers"),
      nullptr)
      << allMessages(model.diagnostics);
  EXPECT_NE(findOnly(model.diagnostics, Severity::Warning,
                     "no KV cache scale for 1 of 2"),
            nullptr);
}

TEST_F(ModelScaleTest, ErrorsComeFirst) {
  TensorList list;
  weight(list, "model.layers.0.self_attn.k_proj");
  weight(list, "model.layers.1.self_attn.k_proj");
  list.f32("model.layers.0.self_attn.k_scale", 0);
  options.cacheWord = "fp8";
  ModelScales model = describe(list, llama);
  ASSERT_FALSE(model.diagnostics.empty());
  EXPECT_EQ(model.diagnostics.front().severity, Severity::Error);
  for (size_t i = 1; i < model.diagnostics.size(); ++i)
    EXPECT_LE(model.diagnostics[i - 1].severity, model.diagnostics[i].severity);
}

TEST_F(ModelScaleTest, UnknownModelsFallBackToNames) {
  TensorList list;
  weight(list, "transformer.h.1.attn.c_attn");
  ModelScales model = describe(list, R"({"model_type": "unheard_of"})");
  EXPECT_EQ(names(model), (Names{"transformer.h.1.attn"}));
  EXPECT_NE(findOnly(model.diagnostics, Severity::Warning, "unheard_of"),
            nullptr)
      << allMessages(model.diagnostics);
}

TEST_F(ModelScaleTest, NothingThatLooksLikeALayerIsAnError) {
  TensorList list;
  weight(list, "embed_tokens");
  EXPECT_NE(findOnly(describe(list).diagnostics, Severity::Error,
                     "no attention layer was found"),
            nullptr);
}

TEST_F(ModelScaleTest, SharedCachesTakeTheOwnersScales) {
  // Gemma 3n's last layers read the caches of earlier ones.
  std::string config =
      R"({"model_type": "gemma3n_text", "torch_dtype": "bfloat16",
          "hidden_size": 256, "num_hidden_layers": 6, "head_dim": 64,
          "num_attention_heads": 4, "num_key_value_heads": 2,
          "sliding_window": 8, "num_kv_shared_layers": 2,
          "layer_types": ["sliding_attention", "full_attention",
                          "sliding_attention", "full_attention",
                          "sliding_attention", "full_attention"]})";
  TensorList list;
  for (int i = 0; i < 6; ++i) {
    std::string module = "model.layers." + std::to_string(i) + ".self_attn";
    weight(list, module + ".q_proj");
    list.f32(module + ".k_scale", .1f * float(i + 1));
    list.f32(module + ".v_scale", .2f * float(i + 1));
  }
  options.cacheWord = "fp8";
  ModelScales model = describe(list, config);
  ASSERT_EQ(model.layers.size(), 6u) << allMessages(model.diagnostics);
  const ModelLayer &reader = model.layers[5];
  EXPECT_EQ(reader.sharesCacheWith, "model.layers.3.self_attn");
  EXPECT_EQ((*model.scalesOf(reader))[ScaleRole::K].value,
            (*model.scalesOf(model.layers[3]))[ScaleRole::K].value);
  EXPECT_NE(findOnly(model.diagnostics, Severity::Remark,
                     "layer model.layers.5.self_attn: reads the cache of "
                     "model.layers.3.self_attn"),
            nullptr)
      << allMessages(model.diagnostics);
}

TEST_F(ModelScaleTest, RanksResolveTheirHeads) {
  TensorList list;
  for (int i = 0; i < 2; ++i) {
    std::string module = "model.layers." + std::to_string(i) + ".self_attn";
    list.addValues<float>(module + ".k_scale", DType::F32, {2, 1, 1},
                          {.1f, .2f});
    list.addValues<float>(module + ".v_scale", DType::F32, {2, 1, 1},
                          {.3f, .4f});
  }
  std::string config = llama;
  config.insert(1, R"("quantization_config": {
      "quant_method": "compressed-tensors", "kv_cache_scheme":
      {"type": "float", "num_bits": 8, "strategy": "attn_head"}}, )");
  options.scales.tpSize = 2;
  options.scales.tpRank = 1;
  ModelScales model = describe(list, config);
  EXPECT_EQ(model.scales.layers[0][ScaleRole::K].perHead,
            (std::vector<float>{.2f}));
  EXPECT_FALSE(hasErrors(model.diagnostics)) << allMessages(model.diagnostics);
}
