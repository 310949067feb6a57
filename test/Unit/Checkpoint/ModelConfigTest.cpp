//===- ModelConfigTest.cpp - What config.json decides ---------------------===//

#include "kvcache/Checkpoint/ModelConfig.h"
#include "TestCheckpoint.h"

#include <cmath>

using namespace kvcache;

namespace {

Expected<ModelAttention> readText(const std::string &text) {
  Expected<JsonValue> value = parseJson(text, "config.json");
  if (!value)
    return value.error();
  return readModelAttention({"dir/config.json", *value});
}

Expected<ModelAttention> readFixture(const std::string &name) {
  std::string path = inputPath("configs/" + name + "/config.json");
  Expected<std::string> text = readFile(path);
  if (!text)
    return text.error();
  Expected<JsonValue> value = parseJson(*text, path);
  if (!value)
    return value.error();
  return readModelAttention({path, *value});
}

const JsonValue &expectations() {
  static const JsonValue value = [] {
    Expected<std::string> text = readFile(inputPath("configs/expected.json"));
    EXPECT_TRUE(text);
    return *parseJson(*text, "expected.json");
  }();
  return value;
}

std::string kindOf(const LayerAttention &layer) {
  if (layer.sharesCacheWith >= 0)
    return "kv-shared:" + std::to_string(layer.sharesCacheWith);
  return layerKindName(layer.kind);
}

class ConfigFixtures : public testing::TestWithParam<std::string> {};

TEST_P(ConfigFixtures, GiveWhatTheModelItselfDoes) {
  const JsonValue &expected = *expectations().find(GetParam());
  Expected<ModelAttention> model = readFixture(GetParam());
  ASSERT_TRUE(model) << model.message();
  EXPECT_EQ(model->modelType, expected.find("model_type")->asString());
  const JsonValue *dtype = expected.findNonNull("dtype");
  ASSERT_EQ(model->dtype.has_value(), dtype != nullptr);
  if (dtype) {
    EXPECT_EQ(model->dtype->value, dtype->asString() == "float32"
                                       ? CacheType::F32
                                       : **parseCacheWord(dtype->asString()));
  }
  const JsonValue::Array &layers = expected.find("layers")->asArray();
  ASSERT_EQ(model->layers.size(), layers.size());
  for (size_t i = 0; i < layers.size(); ++i) {
    const LayerAttention &layer = model->layers[i];
    const JsonValue &want = layers[i];
    EXPECT_EQ(layer.index, want.find("index")->asInteger());
    EXPECT_EQ(kindOf(layer), want.find("kind")->asString()) << i;
    EXPECT_EQ(layer.ownsCache, want.find("kv_cache")->asBool()) << i;
    if (!want.findNonNull("head_dim"))
      continue;
    EXPECT_EQ(layer.softmaxScale.value, want.find("softmax_scale")->asDouble())
        << i;
    EXPECT_FALSE(layer.softmaxScale.from.empty());
    EXPECT_EQ(layer.queryHeads.value, want.find("q_heads")->asInteger()) << i;
    EXPECT_EQ(layer.kvHeads.value, want.find("kv_heads")->asInteger()) << i;
    EXPECT_EQ(layer.headDim.value, want.find("head_dim")->asInteger()) << i;
    EXPECT_EQ(layer.valueHeadDim.value, want.find("v_head_dim")->asInteger())
        << i;
    EXPECT_EQ(layer.sinks, want.find("sinks")->asBool()) << i;
    EXPECT_EQ(layer.alibi.has_value(), want.find("alibi")->asBool()) << i;
    const JsonValue *window = want.findNonNull("window_left");
    ASSERT_EQ(layer.windowLeft.has_value(), window != nullptr) << i;
    if (window) {
      EXPECT_EQ(layer.windowLeft->value, window->asInteger()) << i;
    }
    const JsonValue *cap = want.findNonNull("softcap");
    ASSERT_EQ(layer.softCap.has_value(), cap != nullptr) << i;
    if (cap) {
      EXPECT_EQ(layer.softCap->value, cap->asDouble()) << i;
    }
    const JsonValue *chunk = want.findNonNull("chunk");
    EXPECT_EQ(layer.chunk, chunk ? chunk->asInteger() : 0) << i;
    const JsonValue *also = want.findNonNull("also_recurrent");
    EXPECT_EQ(layer.alsoRecurrent, also && also->asBool()) << i;
    if (const JsonValue *mla = want.findNonNull("mla")) {
      EXPECT_EQ(layer.latentDim, mla->find("kv_lora_rank")->asInteger());
      EXPECT_EQ(layer.nopeDim, mla->find("qk_nope_head_dim")->asInteger());
      EXPECT_EQ(layer.ropeDim, mla->find("qk_rope_head_dim")->asInteger());
    }
  }
  const JsonValue::Array &refusals = expected.find("refuse")->asArray();
  EXPECT_EQ(model->refusals.size(), refusals.size());
  for (size_t i = 0; i < refusals.size() && i < model->refusals.size(); ++i)
    EXPECT_EQ(model->refusals[i].imagesOnly,
              refusals[i].asString().find("images only") == 0)
        << model->refusals[i].reason;
}

std::vector<std::string> fixtureNames() {
  std::vector<std::string> names;
  for (const auto &[name, value] : expectations().asObject())
    names.push_back(name);
  return names;
}

INSTANTIATE_TEST_SUITE_P(Configs, ConfigFixtures,
                         testing::ValuesIn(fixtureNames()),
                         [](const testing::TestParamInfo<std::string> &info) {
                           std::string name = info.param;
                           for (char &c : name)
                             if (c == '-')
                               c = '_';
                           return name;
                         });

TEST(ModelConfig, ThereAreFortyFixtures) {
  EXPECT_EQ(fixtureNames().size(), 40u);
}

/// The recursion of `get_slopes` in the code of the ALiBi paper.
std::vector<double> publishedSlopes(int64_t heads) {
  if ((heads & (heads - 1)) == 0) {
    double start = std::pow(2, -std::pow(2, -(std::log2(heads) - 3)));
    std::vector<double> slopes = {start};
    while (int64_t(slopes.size()) < heads)
      slopes.push_back(slopes.back() * start);
    return slopes;
  }
  int64_t closest = 1;
  while (closest * 2 < heads)
    closest *= 2;
  std::vector<double> slopes = publishedSlopes(closest),
                      more = publishedSlopes(2 * closest);
  for (size_t i = 0; int64_t(slopes.size()) < heads; i += 2)
    slopes.push_back(more[i]);
  return slopes;
}

TEST(ModelConfig, AlibiSlopesAreThePublishedOnes) {
  for (int64_t heads : {1, 2, 6, 8, 12, 16, 32, 40, 71, 112, 128}) {
    std::vector<double> want = publishedSlopes(heads),
                        got = alibiSlopes(Alibi(), heads, 0, heads);
    ASSERT_EQ(got.size(), want.size());
    for (size_t i = 0; i < want.size(); ++i)
      EXPECT_NEAR(got[i] / want[i], 1, 1e-13) << heads << " heads, " << i;
    // A rank has those of its heads.
    std::vector<double> part =
        alibiSlopes(Alibi(), heads, heads / 2, heads - heads / 2);
    EXPECT_EQ(part, std::vector<double>(got.begin() + heads / 2, got.end()));
  }
  EXPECT_EQ(alibiSlopes({16}, 2, 0, 2), (std::vector<double>{0x1p-8, 0x1p-16}));
}

TEST(ModelConfig, SaysAlibiByTheKeysOfItsFamily) {
  const std::string falcon =
      R"({"model_type": "falcon", "num_hidden_layers": 1, "hidden_size": 256,
          "num_attention_heads": 4, )";
  const std::string mpt =
      R"({"model_type": "mpt", "n_layers": 1, "d_model": 256, "n_heads": 4, )";
  const std::string llama =
      R"({"model_type": "llama", "num_hidden_layers": 1, "head_dim": 64,
          "num_attention_heads": 4, )";
  struct {
    std::string text, from;
    double biasMax;
    bool isScaled;
  } cases[] = {
      {falcon + R"("alibi": true})", "config.json: alibi", 8, true},
      {falcon + R"("alibi": false})", "", 0, false},
      {mpt + R"("attn_config": {}})",
       "class default of mpt for attn_config.alibi", 8, false},
      {mpt + R"("attn_config": {"alibi": true, "alibi_bias_max": 16}})",
       "config.json: attn_config.alibi", 16, false},
      {mpt + R"("attn_config": {"alibi": false, "rope": true}})", "", 0, false},
      {llama + R"("position_embedding_type": "alibi"})",
       "config.json: position_embedding_type", 8, false},
      {llama + R"("alibi": true})", "config.json: alibi", 8, false},
      {llama + R"("position_embedding_type": "rope"})", "", 0, false},
  };
  for (const auto &entry : cases) {
    Expected<ModelAttention> model = readText(entry.text);
    ASSERT_TRUE(model) << entry.text << ": " << model.message();
    const auto &alibi = model->layers[0].alibi;
    ASSERT_EQ(alibi.has_value(), !entry.from.empty()) << entry.text;
    if (!alibi)
      continue;
    EXPECT_EQ(alibi->from, entry.from);
    EXPECT_EQ(alibi->value.biasMax, entry.biasMax) << entry.text;
    EXPECT_EQ(alibi->value.isScaled, entry.isScaled) << entry.text;
  }
  struct {
    std::string text, error;
  } contradictions[] = {
      {falcon + R"("alibi": false, "position_embedding_type": "alibi"})",
       "config.json: alibi: is false, but config.json: "
       "position_embedding_type says that positions enter by ALiBi"},
      {falcon + R"("alibi": true, "position_embedding_type": "rope"})",
       "config.json: position_embedding_type: is \"rope\", but config.json: "
       "alibi says"},
      {R"({"model_type": "bloom", "n_layer": 1, "n_embed": 256, "n_head": 4,
           "alibi": false})",
       "config.json: alibi: is false, but model type bloom says"},
      {mpt + R"("attn_config": {"alibi": true, "rope": true}})",
       "config.json: attn_config.rope: is true, but config.json: "
       "attn_config.alibi says"},
      {mpt + R"("attn_config": {"alibi_bias_max": 0}})",
       "attn_config.alibi_bias_max: expected a positive number"},
      {mpt + R"("attn_config": {"alibi": 1}})",
       "attn_config.alibi: expected true or false"},
      {llama + R"("position_embedding_type": 3})",
       "position_embedding_type: expected a string"},
  };
  for (const auto &entry : contradictions) {
    Expected<ModelAttention> model = readText(entry.text);
    ASSERT_FALSE(model) << entry.text;
    EXPECT_NE(model.message().find(entry.error), std::string::npos)
        << model.message();
  }
}

TEST(ModelConfig, NamesItsSources) {
  Expected<ModelAttention> model = readText(
      R"({"model_type": "llama", "num_hidden_layers": 1, "head_dim": 64,
          "num_attention_heads": 4, "hidden_size": 256})");
  ASSERT_TRUE(model) << model.message();
  EXPECT_EQ(model->layers[0].softmaxScale.from, "config.json: head_dim");
  EXPECT_EQ(model->layers[0].softmaxScale.value, 0.125);
  EXPECT_EQ(model->layers[0].kvHeads.from, "config.json: num_attention_heads");
  model = readText(
      R"({"model_type": "llama", "num_hidden_layers": 1, "head_dim": null,
          "num_attention_heads": 4, "hidden_size": 256})");
  ASSERT_TRUE(model);
  EXPECT_EQ(model->layers[0].headDim.value, 64);
  EXPECT_EQ(model->layers[0].headDim.from,
            "config.json: hidden_size / number of heads");
}

TEST(ModelConfig, GraniteScalesByItsMultiplier) {
  const std::string rest =
      R"("model_type": "granite", "num_hidden_layers": 1, "head_dim": 64,
         "num_attention_heads": 4})";
  EXPECT_EQ(readText(R"({"attention_multiplier": 0.5, )" + rest)
                ->layers[0]
                .softmaxScale.value,
            0.5);
  EXPECT_EQ(readText("{" + rest)->layers[0].softmaxScale.value, 1.0);
}

TEST(ModelConfig, SlidingLayersWithTheSwitchOffAreAnError) {
  Expected<ModelAttention> model = readText(
      R"({"model_type": "qwen2", "num_hidden_layers": 1, "head_dim": 64,
          "num_attention_heads": 4, "use_sliding_window": false,
          "sliding_window": 8, "layer_types": ["sliding_attention"]})");
  ASSERT_FALSE(model);
  EXPECT_NE(model.message().find("config.json: layer_types"),
            std::string::npos);
}

TEST(ModelConfig, RefusesUnknownModelTypes) {
  Expected<ModelAttention> model = readText(R"({"model_type": "unheard_of"})");
  ASSERT_FALSE(model);
  EXPECT_NE(model.message().find("model_type 'unheard_of' are not known; give "
                                 "the softmax scale"),
            std::string::npos);
  EXPECT_FALSE(readText("{}"));
  EXPECT_FALSE(readText(R"({"model_type": 3})"));
}

TEST(ModelConfig, ErrorsNameTheKey) {
  const std::pair<const char *, const char *> cases[] = {
      {R"("num_attention_heads": 0)",
       "num_attention_heads: expected 1 to 1099511627776, found 0"},
      {R"("num_attention_heads": "4")", "num_attention_heads: expected an int"},
      {R"("num_attention_heads": 3)", "hidden_size: expected a multiple"},
      {R"("num_hidden_layers": 1000000000)", "num_hidden_layers: expected at"},
      {R"("num_hidden_layers": 2.5)", "num_hidden_layers: expected an integer"},
      {R"("torch_dtype": "int7")", "torch_dtype: expected bfloat16"},
      {R"("sliding_window": 9223372036854775807, "model_type": "mistral")",
       "sliding_window: expected 1 to 1099511627776, found "
       "9223372036854775807"},
      {R"("head_dim": -1)", "head_dim: expected 1 to 1099511627776, found -1"},
  };
  for (const auto &[member, part] : cases) {
    Expected<ModelAttention> model =
        readText(std::string(R"({"model_type": "llama", "num_hidden_layers": 1,
            "num_attention_heads": 4, "hidden_size": 256, )") +
                 member + "}");
    ASSERT_FALSE(model) << member;
    EXPECT_NE(model.message().find(std::string("config.json: ") + part),
              std::string::npos)
        << model.message();
  }
  Expected<ModelAttention> model =
      readText(R"({"model_type": "glm4", "num_hidden_layers": 1})");
  ASSERT_FALSE(model);
  EXPECT_NE(model.message().find("num_attention_heads: this key is missing"),
            std::string::npos);
}

TEST(ModelConfig, NoMutationOfAConfigCrashes) {
  // Every value of every fixture replaced by values of other kinds.
  for (const std::string &name : fixtureNames()) {
    std::string path = inputPath("configs/" + name + "/config.json");
    JsonValue config = *parseJson(*readFile(path), path);
    for (size_t i = 0; i < config.asObject().size(); ++i)
      for (const char *other : {"null", "-1", "0", "1.5", "\"x\"", "[]",
                                "[\"x\"]", "[7]", "{}", "true"}) {
        JsonValue list = *parseJson(std::string("[") + other + "]", "mutation");
        JsonValue mutated = config;
        mutated.asObject()[i].second = list.asArray()[0];
        Expected<ModelAttention> model = readModelAttention({path, mutated});
        if (!model)
          continue;
        for (const LayerAttention &layer : model->layers)
          EXPECT_FALSE(layer.ownsCache && layer.headDim.value < 1);
      }
  }
}

} // namespace
