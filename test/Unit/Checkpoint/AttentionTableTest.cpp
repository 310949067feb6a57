//===- AttentionTableTest.cpp - Graph, config and options together --------===//

#include "TestCheckpoint.h"

#include "kvcache/Checkpoint/ModelConfig.h"
#include <cmath>

using namespace kvcache;

namespace {

JsonFile configOf(const std::string &text) {
  return {"dir/config.json", *parseJson(text, "config.json")};
}

const JsonFile llama = configOf(
    R"({"model_type": "llama", "num_hidden_layers": 2, "head_dim": 64,
        "num_attention_heads": 4, "num_key_value_heads": 2})");

std::vector<AttentionRequest> graphOf(std::vector<std::string> names) {
  std::vector<AttentionRequest> requests;
  for (std::string &name : names) {
    AttentionRequest request;
    request.layer = std::move(name);
    request.queryHeads = 4;
    request.kvHeads = 2;
    request.headDim = 64;
    requests.push_back(std::move(request));
  }
  return requests;
}

class Attention : public testing::Test {
protected:
  void expectError(const AttentionTable &table, const std::string &part) {
    EXPECT_NE(findOnly(table.diagnostics, Severity::Error, part), nullptr)
        << "expected: " << part << "\nfound:\n"
        << allMessages(table.diagnostics);
  }
  void expectGood(const AttentionTable &table) {
    EXPECT_FALSE(hasErrors(table.diagnostics))
        << allMessages(table.diagnostics);
    ASSERT_EQ(table.layers.size(), graph.size());
  }

  std::vector<AttentionRequest> graph = graphOf(
      {"model.layers.0.self_attn.attn", "model.layers.1.self_attn.attn"});
  AttentionOptions options;
};

TEST_F(Attention, TakesTheConfigsValuesAndSaysSo) {
  AttentionTable table = resolveAttention(&llama, graph);
  expectGood(table);
  EXPECT_EQ(table.layers[1].softmaxScale.value, 0.125);
  EXPECT_EQ(table.layers[1].softmaxScale.from, "config.json: head_dim");
  EXPECT_EQ(table.layers[1].index, 1);
  EXPECT_FALSE(table.layers[1].windowLeft);
  EXPECT_NE(findOnly(table.diagnostics, Severity::Remark,
                     "softmax scale from config.json: head_dim (2 layers)"),
            nullptr);
}

TEST_F(Attention, OptionsWinOverTheGraphAndTheGraphOverTheConfig) {
  graph[0].softmaxScale = 0.5;
  graph[0].softCap = 30;
  graph[0].windowLeft = 7;
  AttentionTable table = resolveAttention(&llama, graph);
  expectGood(table);
  EXPECT_EQ(table.layers[0].softmaxScale.value, 0.5);
  EXPECT_EQ(table.layers[0].softmaxScale.from, "graph attribute softmax_scale");
  EXPECT_EQ(table.layers[0].softCap->value, 30);
  EXPECT_EQ(table.layers[0].windowLeft->value, 7);
  EXPECT_EQ(table.layers[1].softmaxScale.value, 0.125);
  options.softmaxScale = 0.25;
  options.softCap = 0;
  options.window = 4;
  table = resolveAttention(&llama, graph, options);
  expectGood(table);
  EXPECT_EQ(table.layers[0].softmaxScale.value, 0.25);
  EXPECT_EQ(table.layers[0].softmaxScale.from, "option softmax-scale");
  EXPECT_FALSE(table.layers[0].softCap);
  EXPECT_EQ(table.layers[0].windowLeft->value, 3);
}

TEST_F(Attention, AConfigThatContradictsTheGraphIsAnError) {
  auto with = [&](int64_t AttentionRequest::*member, int64_t value) {
    std::vector<AttentionRequest> changed = graph;
    changed[1].*member = value;
    return resolveAttention(&llama, changed);
  };
  expectError(with(&AttentionRequest::queryHeads, 8),
              "layer model.layers.1.self_attn.attn: the graph has query heads "
              "8, but config.json: num_attention_heads says 4");
  expectError(with(&AttentionRequest::kvHeads, 4),
              "the graph has KV heads 4, but config.json: "
              "num_key_value_heads says 2");
  expectError(with(&AttentionRequest::headDim, 128),
              "the graph has head dim 128, but config.json: head_dim says 64");
  expectError(with(&AttentionRequest::vHeadDim, 32),
              "the graph has head dim of values 32, but config.json: head_dim "
              "says 64");
}

TEST_F(Attention, ALatentCacheMustBeThatOfTheConfig) {
  JsonFile deepseek = configOf(
      R"({"model_type": "deepseek_v3", "num_hidden_layers": 1,
          "num_attention_heads": 4, "kv_lora_rank": 512,
          "qk_nope_head_dim": 128, "qk_rope_head_dim": 64,
          "v_head_dim": 128})");
  auto with = [&](const JsonFile &config, int64_t latent, int64_t rope) {
    AttentionRequest request;
    request.layer = "model.layers.0.self_attn.attn";
    request.queryHeads = 4;
    request.kvHeads = 1;
    request.headDim = latent + rope;
    request.latentDim = latent;
    graph = {request};
    return resolveAttention(&config, graph);
  };
  AttentionTable table = with(deepseek, 512, 64);
  expectGood(table);
  EXPECT_EQ(table.layers[0].softmaxScale.value, std::pow(192.0, -0.5));
  expectError(with(deepseek, 256, 64),
              "latent dim 256, but config.json: kv_lora_rank says 512");
  expectError(with(deepseek, 512, 32),
              "rotary dim 32, but config.json: qk_rope_head_dim says 64");
  graph = graphOf({"model.layers.0.self_attn.attn"});
  EXPECT_FALSE(hasErrors(resolveAttention(&deepseek, graph).diagnostics))
      << "a graph of expanded heads";
  EXPECT_NE(
      findOnly(with(llama, 512, 64).diagnostics, Severity::Error,
               "a latent cache (MLA), but the config says that its kind is "
               "'attention'"),
      nullptr);
}

TEST_F(Attention, ALayerThatTheConfigDoesNotHaveIsAnError) {
  graph = graphOf({"model.layers.2.self_attn.attn"});
  expectError(resolveAttention(&llama, graph), "has only 2 layers");
  graph = graphOf({"attn"});
  expectError(resolveAttention(&llama, graph), "no component of the name");
  JsonFile hybrid = configOf(
      R"({"model_type": "bamba", "num_hidden_layers": 2, "head_dim": 64,
          "num_attention_heads": 4, "num_key_value_heads": 2,
          "attn_layer_indices": [1]})");
  graph = graphOf({"model.layers.0.self_attn.attn"});
  expectError(resolveAttention(&hybrid, graph),
              "the config says that layer 0 has none (recurrent)");
  graph = graphOf({"model.layers.1.self_attn.attn"});
  expectGood(resolveAttention(&hybrid, graph));
}

TEST_F(Attention, NeedsTheScaleFromSomewhere) {
  AttentionTable table = resolveAttention(nullptr, graph);
  EXPECT_EQ(countSeverity(table.diagnostics, Severity::Error), 2u);
  JsonFile unknown = configOf(R"({"model_type": "unheard_of"})");
  expectError(resolveAttention(&unknown, {graph[0]}), "unheard_of");
  options.softmaxScale = 0.125;
  table = resolveAttention(&unknown, graph, options);
  expectGood(table);
  EXPECT_NE(findOnly(table.diagnostics, Severity::Warning,
                     "no rule says whether the 2 attention layers have a "
                     "window or a soft cap"),
            nullptr);
  options.window = 0;
  options.softCap = 0;
  EXPECT_TRUE(resolveAttention(&unknown, graph, options).diagnostics.empty());
}

TEST_F(Attention, ChecksTheOptions) {
  for (double bad : {0.0, -1.0, HUGE_VAL}) {
    options = {};
    options.softmaxScale = bad;
    expectError(resolveAttention(&llama, graph, options), "softmax-scale");
  }
  options = {};
  options.softCap = -1;
  expectError(resolveAttention(&llama, graph, options), "soft-cap");
  options = {};
  options.window = -1;
  expectError(resolveAttention(&llama, graph, options), "window");
}

TEST_F(Attention, RefusesWhatNoKernelExpresses) {
  JsonFile mpt = configOf(
      R"({"model_type": "mpt", "n_layers": 2, "d_model": 256, "n_heads": 4,
          "attn_config": {"prefix_lm": true}})");
  for (AttentionRequest &request : graph)
    request.kvHeads = 4;
  expectError(resolveAttention(&mpt, graph),
              "model type 'mpt': not supported: bidirectional prefix");
}

TEST_F(Attention, TakesAlibiUnlessTheGraphHasSlopes) {
  JsonFile bloom = configOf(
      R"({"model_type": "bloom", "n_layer": 2, "n_embed": 256, "n_head": 4})");
  for (AttentionRequest &request : graph)
    request.kvHeads = 4;
  graph[1].hasSlopes = true;
  AttentionTable table = resolveAttention(&bloom, graph);
  expectGood(table);
  ASSERT_TRUE(table.layers[0].alibi);
  EXPECT_EQ(table.layers[0].alibi->from, "model type bloom");
  EXPECT_EQ(table.layers[0].queryHeads, 4);
  EXPECT_FALSE(table.layers[1].alibi);
  EXPECT_NE(findOnly(table.diagnostics, Severity::Remark,
                     "ALiBi slopes from model type bloom (1 layer)"),
            nullptr);
}

TEST_F(Attention, ImagesOnlyRefusalsAreRemarks) {
  JsonFile gemma = configOf(
      R"({"model_type": "gemma3", "text_config": {"model_type": "gemma3_text",
          "num_hidden_layers": 2, "head_dim": 64, "num_attention_heads": 4,
          "num_key_value_heads": 2, "sliding_window": 8}})");
  AttentionTable table = resolveAttention(&gemma, graph);
  expectGood(table);
  EXPECT_EQ(table.layers[0].softmaxScale.value, 0.0625);
  EXPECT_EQ(table.layers[0].windowLeft->value, 7);
  EXPECT_NE(findOnly(table.diagnostics, Severity::Remark, "text only"),
            nullptr);
}

TEST_F(Attention, LinksSharedCaches) {
  JsonFile gemma = configOf(
      R"({"model_type": "gemma3n_text", "num_hidden_layers": 2,
          "head_dim": 64, "num_attention_heads": 4, "num_key_value_heads": 2,
          "layer_types": ["full_attention", "full_attention"],
          "num_kv_shared_layers": 1})");
  AttentionTable table = resolveAttention(&gemma, graph);
  expectGood(table);
  EXPECT_EQ(table.layers[1].sharesCacheWith, graph[0].layer);
  EXPECT_EQ(table.layers[0].sharesCacheWith, "");
  EXPECT_EQ(table.layers[1].softmaxScale.value, 1.0);
  expectError(resolveAttention(&gemma, {graph[1]}),
              "reads the cache of layer 0, which the graph does not have");
}

} // namespace
