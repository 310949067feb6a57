//===- CacheTypeTest.cpp - Which element type a cache has -----------------===//

#include "kvcache/Checkpoint/CacheType.h"
#include "TestCheckpoint.h"

using namespace kvcache;

namespace {

std::string layerName(int i) {
  return "model.layers." + std::to_string(i) + ".self_attn.attn";
}

class CacheTypes : public testing::Test {
protected:
  CacheTypes() {
    for (int i = 0; i < 3; ++i) {
      layers.emplace_back();
      layers.back().layer = layerName(i);
    }
  }

  CacheTypeTable resolve(const std::string &config,
                         const std::string &hfQuant = "") {
    TensorList list;
    list.addValues<uint16_t>("a.weight", DType::F16, {1}, {0});
    folder.tensors("model.safetensors", list);
    folder.text("config.json", config);
    if (!hfQuant.empty())
      folder.text("hf_quant_config.json", hfQuant);
    Expected<Checkpoint> checkpoint = Checkpoint::open(folder.root);
    if (!checkpoint) {
      ADD_FAILURE() << checkpoint.message();
      return {};
    }
    return resolveCacheTypes(&*checkpoint, layers, options);
  }
  CacheTypeTable resolveQuant(const std::string &quant) {
    return resolve(R"({"torch_dtype": "bfloat16", "quantization_config": )" +
                   quant + "}");
  }
  void expectAll(const CacheTypeTable &table, CacheType type,
                 const std::string &from = "") {
    ASSERT_EQ(table.layers.size(), layers.size());
    EXPECT_FALSE(hasErrors(table.diagnostics))
        << allMessages(table.diagnostics);
    for (const ResolvedCacheType &layer : table.layers) {
      EXPECT_EQ(layer.type, type) << cacheTypeName(layer.type);
      if (!from.empty()) {
        EXPECT_EQ(layer.from, from);
      }
    }
  }
  void expectError(const CacheTypeTable &table, const std::string &part) {
    EXPECT_NE(findOnly(table.diagnostics, Severity::Error, part), nullptr)
        << "expected: " << part << "\nfound:\n"
        << allMessages(table.diagnostics);
  }

  TestFolder folder;
  std::vector<CacheTypeRequest> layers;
  CacheTypeOptions options;
};

const char *const scheme =
    R"({"dynamic": false, "num_bits": 8, "type": "float"})";

TEST(CacheWords, AcceptsTheListedWords) {
  const std::pair<const char *, CacheType> words[] = {
      {"float16", CacheType::F16},
      {"bfloat16", CacheType::BF16},
      {"fp8", CacheType::F8E4M3FN},
      {"fp8_e4m3", CacheType::F8E4M3FN},
      {"fp8_e5m2", CacheType::F8E5M2},
      {"fp8_per_token_head", CacheType::FP8PerTokenHead},
      {"int8_per_token_head", CacheType::INT8PerTokenHead},
      {"fp8_ds_mla", CacheType::FP8DSMLA},
      {"fp8_e4m3fnuz", CacheType::F8E4M3FNUZ}};
  for (const auto &[word, type] : words)
    EXPECT_EQ(**parseCacheWord(word), type) << word;
  EXPECT_FALSE(parseCacheWord("auto")->has_value());
}

TEST(CacheWords, RefusesOthersWithTheList) {
  for (const char *word : {"nvfp4", "turboquant_3bit", "int4_per_token_head"}) {
    Expected<std::optional<CacheType>> parsed = parseCacheWord(word);
    ASSERT_FALSE(parsed);
    EXPECT_NE(parsed.message().find("not supported yet; accepted are auto, "
                                    "float16, bfloat16, fp8, fp8_e4m3"),
              std::string::npos);
  }
  for (const char *word : {"FP8", "fp4", "", "e4m3"})
    EXPECT_NE(parseCacheWord(word).message().find("is not a cache type"),
              std::string::npos);
}

TEST_F(CacheTypes, AutoIsTheModelsType) {
  expectAll(resolve(R"({"torch_dtype": "bfloat16"})"), CacheType::BF16,
            "config.json: torch_dtype");
  expectAll(resolve(R"({"dtype": "float16"})"), CacheType::F16,
            "config.json: dtype");
  expectAll(resolve(R"({"text_config": {"dtype": "float16"},
                        "torch_dtype": "bfloat16"})"),
            CacheType::F16, "config.json: text_config.dtype");
  expectAll(resolve(R"({"text_config": {}, "torch_dtype": "float32"})"),
            CacheType::F32, "config.json: torch_dtype");
  expectAll(resolve("{}"), CacheType::F16, "most weights of the checkpoint");
}

TEST_F(CacheTypes, AutoFollowsTheGraphWhereItIsKnown) {
  for (CacheTypeRequest &layer : layers)
    layer.modelType = CacheType::F16;
  CacheTypeTable table = resolve(R"({"torch_dtype": "bfloat16"})");
  expectAll(table, CacheType::F16, "model type of the graph");
  EXPECT_NE(findOnly(table.diagnostics, Severity::Remark,
                     "the graph computes in f16"),
            nullptr);
  expectAll(resolveCacheTypes(nullptr, layers, options), CacheType::F16);
}

TEST_F(CacheTypes, NothingToGoByIsAnError) {
  CacheTypeTable table = resolveCacheTypes(nullptr, {layers[0]}, options);
  expectError(table, "nothing says the model's type");
  options.word = "bfloat16";
  expectAll(resolveCacheTypes(nullptr, layers, options), CacheType::BF16);
}

TEST_F(CacheTypes, TheUsersWordWinsOverEverything) {
  options.word = "bfloat16";
  layers[0].graphWord = "fp8";
  CacheTypeTable table = resolveQuant(
      std::string(R"({"quant_method": "modelopt", "kv_cache_scheme": )") +
      scheme + "}");
  expectAll(table, CacheType::BF16, "option kv-cache-dtype");
  EXPECT_NE(findOnly(table.diagnostics, Severity::Remark,
                     "overrules another kv_cache_dtype attribute of 1 layer"),
            nullptr);
  EXPECT_NE(findOnly(table.diagnostics, Severity::Remark,
                     "3 layers do not have the e4m3 cache"),
            nullptr);
  options.word = "fp9";
  expectError(resolve("{}"), "kv-cache-dtype 'fp9' is not a cache type");
}

TEST_F(CacheTypes, ThenTheGraphsAttributeOtherThanAuto) {
  layers[0].graphWord = "fp8_e4m3";
  layers[1].graphWord = "auto";
  CacheTypeTable table = resolve(R"({"torch_dtype": "bfloat16"})");
  ASSERT_EQ(table.layers.size(), 3u);
  EXPECT_EQ(table.layers[0].type, CacheType::F8E4M3FN);
  EXPECT_EQ(table.layers[0].from, "graph attribute kv_cache_dtype");
  EXPECT_EQ(table.layers[1].type, CacheType::BF16);
  EXPECT_EQ(table.layers[2].type, CacheType::BF16);
  layers[2].graphWord = "nvfp4";
  expectError(resolve(R"({"torch_dtype": "bfloat16"})"),
              "layer " + layerName(2) + ": graph attribute kv_cache_dtype");
}

TEST_F(CacheTypes, ModelOptSwitchesAutoByEitherFileAndKey) {
  const std::string base = R"({"torch_dtype": "bfloat16"})";
  expectAll(resolveQuant(std::string(R"({"quant_method": "modelopt",
                "kv_cache_scheme": )") +
                         scheme + "}"),
            CacheType::F8E4M3FN,
            "config.json: quantization_config.kv_cache_scheme");
  expectAll(resolveQuant(R"({"quant_method": "modelopt",
                             "kv_cache_quant_algo": "FP8"})"),
            CacheType::F8E4M3FN,
            "config.json: quantization_config.kv_cache_quant_algo");
  expectAll(resolveQuant(R"({"producer": {"name": "modelopt"},
              "quantization": {"kv_cache_quant_algo": "FP8"}})"),
            CacheType::F8E4M3FN,
            "config.json: quantization_config.quantization."
            "kv_cache_quant_algo");
  expectAll(
      resolve(base, R"({"quantization": {"kv_cache_quant_algo": "FP8"}})"),
      CacheType::F8E4M3FN,
      "hf_quant_config.json: quantization.kv_cache_quant_algo");
  expectAll(resolve(base, R"({"quantization": {"kv_cache_scheme": "",
                              "kv_cache_quant_algo": "FP8"}})"),
            CacheType::F8E4M3FN);
  expectAll(resolve(base, R"({"quantization": {"kv_cache_quant_algo": null}})"),
            CacheType::BF16);
}

TEST_F(CacheTypes, ModelOptDeclarationsMustBeStaticFP8) {
  const std::pair<const char *, const char *> cases[] = {
      {R"("NVFP4")", "'NVFP4' is not supported yet"},
      {R"({"dynamic": true, "num_bits": 8, "type": "float"})",
       ".dynamic: expected false"},
      {R"({"num_bits": 8, "type": "float"})", ".dynamic: expected false"},
      {R"({"dynamic": false, "num_bits": 4, "type": "float"})",
       ".num_bits: expected 8, found 4"},
      {R"({"dynamic": false, "num_bits": 8, "type": "int"})",
       ".type: expected \"float\", found \"int\""},
      {"3", "expected a string or an object"},
  };
  for (const auto &[value, part] : cases) {
    std::string quant =
        std::string(R"({"quant_method": "modelopt", "kv_cache_scheme": )") +
        value + "}";
    options.word = "auto";
    expectError(resolveQuant(quant), part);
    options.word = "fp8";
    expectAll(resolveQuant(quant), CacheType::F8E4M3FN);
  }
}

TEST_F(CacheTypes, ConflictingDeclarationsAreAnError) {
  CacheTypeTable table = resolve(
      R"({"torch_dtype": "bfloat16", "quantization_config":
          {"quant_method": "modelopt", "kv_cache_quant_algo": "FP8"}})",
      R"({"quantization": {"kv_cache_quant_algo": "NVFP4"}})");
  expectError(table, "conflicting KV cache algorithms");
}

TEST_F(CacheTypes, ModelOptsFileBesideAnotherMethodIsReported) {
  CacheTypeTable table = resolve(
      R"({"torch_dtype": "bfloat16",
          "quantization_config": {"quant_method": "fp8"}})",
      R"({"quantization": {"kv_cache_quant_algo": "FP8"}})");
  expectAll(table, CacheType::BF16);
  EXPECT_NE(findOnly(table.diagnostics, Severity::Remark,
                     "hf_quant_config.json is ModelOpt's"),
            nullptr);
}

TEST_F(CacheTypes, CompressedTensorsSwitchesAutoByItsScheme) {
  expectAll(resolveQuant(R"({"quant_method": "compressed-tensors",
              "kv_cache_scheme": {"type": "float", "num_bits": 8}})"),
            CacheType::F8E4M3FN,
            "config.json: quantization_config.kv_cache_scheme");
  expectAll(resolveQuant(R"({"quant_method": "compressed-tensors",
                             "kv_cache_scheme": null})"),
            CacheType::BF16);
  expectError(resolveQuant(R"({"quant_method": "compressed-tensors",
              "kv_cache_scheme": {"type": "int", "num_bits": 8}})"),
              ".type: expected \"float\"");
}

TEST_F(CacheTypes, PlainFP8AndQuarkDoNotSwitchAuto) {
  expectAll(resolveQuant(R"({"quant_method": "fp8",
                             "kv_cache_scheme": "static"})"),
            CacheType::BF16);
  expectAll(resolveQuant(R"({"quant_method": "quark", "export":
                             {"kv_cache_group": ["*k_proj"]}})"),
            CacheType::BF16);
  options.word = "fp8";
  expectAll(resolveQuant(R"({"quant_method": "fp8"})"), CacheType::F8E4M3FN);
}

TEST_F(CacheTypes, SkipsLayersByIndexAndWindow) {
  options.word = "fp8";
  options.skipLayers = {"1", "sliding_window"};
  layers[2].windowed = true;
  CacheTypeTable table = resolve(R"({"torch_dtype": "bfloat16"})");
  ASSERT_EQ(table.layers.size(), 3u);
  EXPECT_EQ(table.layers[0].type, CacheType::F8E4M3FN);
  EXPECT_EQ(table.layers[1].type, CacheType::BF16);
  EXPECT_EQ(table.layers[2].type, CacheType::BF16);
  EXPECT_EQ(table.layers[2].from,
            "kv_cache_dtype_skip_layers 'sliding_window', config.json: "
            "torch_dtype");
  EXPECT_TRUE(table.diagnostics.empty()) << allMessages(table.diagnostics);
}

TEST_F(CacheTypes, WarnsOfSkipEntriesThatMatchNothing) {
  options.word = "fp8";
  layers.emplace_back();
  layers.back().layer = "no_index.attn";
  for (const char *entry : {"00", "-1", "99", "sliding_window", "x", ""}) {
    options.skipLayers = {entry};
    CacheTypeTable table = resolve(R"({"torch_dtype": "bfloat16"})");
    expectAll(table, CacheType::F8E4M3FN);
    EXPECT_NE(findOnly(table.diagnostics, Severity::Warning,
                       std::string("'") + entry + "' matches no layer"),
              nullptr);
  }
}

TEST_F(CacheTypes, E5M2ConflictsWithCheckpointsThatDeclareAMethod) {
  const std::string none = R"({"quant_method": "compressed-tensors"})";
  options.word = "fp8_e5m2";
  for (const char *quant :
       {R"({"quant_method": "fp8"})",
        R"({"quant_method": "modelopt", "kv_cache_quant_algo": "FP8"})",
        R"({"quant_method": "quark"})",
        R"({"quant_method": "compressed-tensors",
            "kv_cache_scheme": {"type": "float"}})"})
    expectError(resolveQuant(quant), "fp8_e5m2 is not possible");
  expectAll(resolveQuant(none), CacheType::F8E5M2);
  expectAll(resolve(R"({"torch_dtype": "bfloat16"})"), CacheType::F8E5M2);
  options.word = "auto";
  layers[1].graphWord = "fp8_e5m2";
  expectError(resolveQuant(R"({"quant_method": "fp8"})"),
              "layer " + layerName(1) + ": fp8_e5m2 is not possible");
}

TEST_F(CacheTypes, QuarkOutputsMustBeE4M3PerTensorAndEqual) {
  auto quantOf = [&](const std::string &k, const std::string &v) {
    TensorList list;
    list.f32("a", 1);
    folder.tensors("model.safetensors", list)
        .text("config.json",
              R"({"quantization_config": {"quant_method": "quark",
                  "export": {"kv_cache_group": ["*k_proj", "*v_proj"]},
                  "layer_quant_config": {"*k_proj": {"output_tensors": )" +
                  k + R"(}, "*v_proj": {"output_tensors": )" + v + "}}}}");
    return readQuantConfig(&*Checkpoint::open(folder.root));
  };
  const std::string good = R"({"dtype": "fp8_e4m3", "qscheme": "per_tensor"})";
  QuantConfig quant = quantOf(good, good);
  EXPECT_EQ(quant.family, QuantFamily::Quark);
  EXPECT_EQ(quant.kvAlgorithm, "FP8");
  EXPECT_EQ(quant.problem, "");
  EXPECT_NE(quantOf(R"({"dtype": "int8", "qscheme": "per_tensor"})", good)
                .problem.find(".dtype: expected"),
            std::string::npos);
  EXPECT_NE(quantOf(good, R"({"dtype": "fp8_e4m3", "qscheme": "per_channel"})")
                .problem.find(".qscheme: expected"),
            std::string::npos);
  EXPECT_NE(quantOf(good, R"({"dtype": "fp8_e4m3", "qscheme": "per_tensor",
                              "is_dynamic": false})")
                .problem.find("expected equal ones"),
            std::string::npos);
}

TEST(CacheTypeFixtures, FollowTheirDeclarations) {
  const std::pair<const char *, CacheType> cases[] = {
      {"modelopt_fp8", CacheType::F8E4M3FN},
      {"modelopt_fp8_hfquant_only", CacheType::F8E4M3FN},
      {"sharded_modelopt", CacheType::F8E4M3FN},
      {"fused_qkv", CacheType::F8E4M3FN},
      {"mla_deepseek_k_only", CacheType::F8E4M3FN},
      {"compressed_tensors", CacheType::F8E4M3FN},
      {"compressed_tensors_attn_head", CacheType::F8E4M3FN},
      {"quark_fp8", CacheType::BF16},
      {"no_scales", CacheType::BF16},
      {"legacy_kv_scale", CacheType::BF16},
      {"fp8_output_scale", CacheType::BF16},
      {"mla_deepseek", CacheType::BF16}};
  CacheTypeRequest layer;
  layer.layer = layerName(0);
  for (const auto &[name, type] : cases) {
    Expected<Checkpoint> checkpoint =
        Checkpoint::open(inputPath(std::string("checkpoints/") + name));
    ASSERT_TRUE(checkpoint);
    CacheTypeTable table = resolveCacheTypes(&*checkpoint, {layer}, {});
    ASSERT_EQ(table.layers.size(), 1u) << name;
    EXPECT_EQ(table.layers[0].type, type) << name;
    EXPECT_FALSE(hasErrors(table.diagnostics)) << name;
    CacheTypeOptions fp8;
    fp8.word = "fp8";
    table = resolveCacheTypes(&*checkpoint, {layer}, fp8);
    EXPECT_EQ(table.layers[0].type, CacheType::F8E4M3FN) << name;
  }
}

} // namespace
