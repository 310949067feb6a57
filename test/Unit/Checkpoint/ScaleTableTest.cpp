//===- ScaleTableTest.cpp - What every scale is worth ---------------------===//

#include "kvcache/Checkpoint/ScaleTable.h"
#include "TestCheckpoint.h"

#include <cmath>
#include <limits>

using namespace kvcache;

namespace {

const char *const layer0 = "model.layers.0.self_attn.attn";
const std::string L0 = "model.layers.0.self_attn";
const float infinity = std::numeric_limits<float>::infinity();
const float nan = std::numeric_limits<float>::quiet_NaN();

const char *const fp8Config =
    R"({"model_type": "llama", "torch_dtype": "bfloat16",
        "quantization_config": {"quant_method": "fp8",
                                "kv_cache_scheme": "static"}})";

std::string compressedConfig(const std::string &scheme) {
  return R"({"torch_dtype": "bfloat16", "quantization_config":
             {"quant_method": "compressed-tensors", "kv_cache_scheme": )" +
         scheme + "}}";
}

const char *const tensorScheme =
    R"({"type": "float", "num_bits": 8, "dynamic": false, "symmetric": true,
        "strategy": "tensor"})";

std::vector<ScaleRequest> graphOf(std::vector<std::string> layers) {
  std::vector<ScaleRequest> requests;
  for (std::string &layer : layers) {
    requests.emplace_back();
    requests.back().layer = std::move(layer);
  }
  return requests;
}

uint32_t bits(float value) { return bitsOfFloat(value); }

class Scales : public testing::Test {
protected:
  ScaleTable resolve(const TensorList &list) {
    folder.tensors("model.safetensors", list);
    return resolveFolder();
  }
  ScaleTable resolveFolder() {
    if (!config.empty())
      folder.text("config.json", config);
    Expected<Checkpoint> checkpoint = Checkpoint::open(folder.root);
    if (!checkpoint) {
      ADD_FAILURE() << checkpoint.message();
      return {};
    }
    return resolveScales(&*checkpoint, graph, options);
  }

  void compatible() { options.policy = ScalePolicy::Compatible; }

  void expectScale(const ScaleTable &table, ScaleRole role, float value,
                   ScaleProvenance provenance,
                   const std::string &layer = layer0) {
    const LayerScales *scales = table.find(layer);
    ASSERT_NE(scales, nullptr);
    EXPECT_EQ(bits((*scales)[role].value), bits(value))
        << scaleRoleName(role) << " is " << (*scales)[role].value << "\n"
        << allMessages(table.diagnostics);
    EXPECT_EQ((*scales)[role].provenance, provenance)
        << provenanceName((*scales)[role].provenance);
  }
  void expectKV(const ScaleTable &table, float k, ScaleProvenance fromK,
                float v, ScaleProvenance fromV) {
    EXPECT_FALSE(table.hasErrors()) << allMessages(table.diagnostics);
    expectScale(table, ScaleRole::K, k, fromK);
    expectScale(table, ScaleRole::V, v, fromV);
  }
  void expectError(const ScaleTable &table, const std::string &part) {
    const Diagnostic *error =
        findOnly(table.diagnostics, Severity::Error, part);
    EXPECT_NE(error, nullptr) << "expected: " << part << "\nfound:\n"
                              << allMessages(table.diagnostics);
  }
  void expectOnly(const ScaleTable &table, Severity severity,
                  const std::string &part) {
    EXPECT_EQ(countSeverity(table.diagnostics, severity), 1u)
        << allMessages(table.diagnostics);
    EXPECT_NE(findOnly(table.diagnostics, severity, part), nullptr)
        << "expected: " << part << "\nfound:\n"
        << allMessages(table.diagnostics);
  }
  void expectNo(const ScaleTable &table, Severity severity) {
    EXPECT_EQ(countSeverity(table.diagnostics, severity), 0u)
        << allMessages(table.diagnostics);
  }

  static TensorList kv(float k, float v) {
    TensorList list;
    list.f32(L0 + ".k_scale", k).f32(L0 + ".v_scale", v);
    return list;
  }
  static TensorList only(const std::string &name, float value) {
    TensorList list;
    list.f32(L0 + "." + name, value);
    return list;
  }

  TestFolder folder;
  std::string config = fp8Config;
  std::vector<ScaleRequest> graph = graphOf({layer0});
  ScaleOptions options;
};

using P = ScaleProvenance;

//===----------------------------------------------------------------------===//
// The table of k and v, base family
//===----------------------------------------------------------------------===//

TEST_F(Scales, BothPositiveAreTakenAsTheyAre) {
  for (ScalePolicy policy : {ScalePolicy::Strict, ScalePolicy::Compatible}) {
    options.policy = policy;
    ScaleTable table = resolve(kv(.03f, .05f));
    expectKV(table, .03f, P::Checkpoint, .05f, P::Checkpoint);
    EXPECT_TRUE(table.diagnostics.empty()) << allMessages(table.diagnostics);
    const Scale &k = (*table.find(layer0))[ScaleRole::K];
    EXPECT_EQ(k.key, L0 + ".k_scale");
    EXPECT_EQ(k.file, folder.path("model.safetensors"));
    EXPECT_EQ(k.dtype, DType::F32);
    EXPECT_TRUE(k.used);
  }
}

TEST_F(Scales, BothAbsentAreOneWithOneWarningForTheModel) {
  graph = graphOf({layer0, "model.layers.1.self_attn.attn"});
  config = R"({"torch_dtype": "bfloat16"})";
  TensorList list;
  list.f32("lm_head.weight", 1);
  for (ScalePolicy policy : {ScalePolicy::Strict, ScalePolicy::Compatible}) {
    options.policy = policy;
    ScaleTable table = resolve(list);
    expectKV(table, 1, P::Default, 1, P::Default);
    EXPECT_EQ(table.diagnostics.size(), 1u);
    expectOnly(table, Severity::Warning,
               "no KV cache scale for 2 of 2 quantized layers");
  }
}

TEST_F(Scales, ALoneKIsUsedForV) {
  ScaleTable table = resolve(only("k_scale", .03f));
  expectKV(table, .03f, P::Checkpoint, .03f, P::Duplicate);
  expectOnly(table, Severity::Remark, "there is no v scale");
  expectNo(table, Severity::Warning);
  EXPECT_EQ((*table.find(layer0))[ScaleRole::V].key, L0 + ".k_scale");
  compatible();
  expectKV(resolve(only("k_scale", .03f)), .03f, P::Checkpoint, .03f,
           P::Duplicate);
}

TEST_F(Scales, ALoneVIsUsedForKWithAWarning) {
  for (ScalePolicy policy : {ScalePolicy::Strict, ScalePolicy::Compatible}) {
    options.policy = policy;
    ScaleTable table = resolve(only("v_proj.v_scale", .08f));
    expectKV(table, .08f, P::Duplicate, .08f, P::Checkpoint);
    expectOnly(table, Severity::Warning, "there is no k scale");
  }
}

TEST_F(Scales, NegativesStandForNoScaleUnderCompatible) {
  const TensorList cases[] = {kv(-1, -1), only("k_scale", -1),
                              only("v_scale", -1)};
  for (const TensorList &list : cases) {
    options.policy = ScalePolicy::Strict;
    EXPECT_TRUE(resolve(list).hasErrors());
    compatible();
    ScaleTable table = resolve(list);
    expectKV(table, 1, P::Default, 1, P::Default);
    expectOnly(table, Severity::Warning, "is negative");
  }
}

TEST_F(Scales, ThePositiveOneHoldsForBothUnderCompatible) {
  const std::pair<float, float> cases[] = {
      {.03f, -1}, {.03f, 0}, {-1, .05f}, {0, .05f}};
  for (auto [k, v] : cases) {
    options.policy = ScalePolicy::Strict;
    expectError(resolve(kv(k, v)), "is not positive");
    compatible();
    ScaleTable table = resolve(kv(k, v));
    float positive = k > 0 ? k : v;
    expectKV(table, positive, k > 0 ? P::Checkpoint : P::Maximum, positive,
             k > 0 ? P::Maximum : P::Checkpoint);
    expectOnly(table, Severity::Warning, "is used for both k and v");
  }
}

TEST_F(Scales, OtherZerosAreErrors) {
  const TensorList cases[] = {kv(0, 0),           kv(0, -1),
                              kv(-1, 0),          only("k_scale", 0),
                              only("v_scale", 0), kv(-0.0f, -0.0f)};
  for (const TensorList &list : cases)
    for (ScalePolicy policy : {ScalePolicy::Strict, ScalePolicy::Compatible}) {
      options.policy = policy;
      ScaleTable table = resolve(list);
      EXPECT_TRUE(table.hasErrors());
    }
  EXPECT_NE(resolve(kv(0, 0)).diagnostics[0].message.find("'" + L0 +
                                                          ".k_scale' (0.0)"),
            std::string::npos);
}

TEST_F(Scales, NaNAndInfinityAreErrors) {
  for (float bad : {nan, infinity, -infinity})
    for (ScalePolicy policy : {ScalePolicy::Strict, ScalePolicy::Compatible}) {
      options.policy = policy;
      expectError(resolve(kv(bad, .05f)), "is not finite");
      expectError(resolve(kv(.05f, bad)), "is not finite");
      EXPECT_TRUE(resolve(only("kv_scale", bad)).hasErrors());
    }
}

TEST_F(Scales, KVScaleGivesBoth) {
  ScaleTable table = resolve(only("kv_scale", .05f));
  expectKV(table, .05f, P::Checkpoint, .05f, P::Checkpoint);
  EXPECT_TRUE(table.diagnostics.empty());
}

TEST_F(Scales, ASpecificNameWinsOverAnUnequalKVScaleUnderCompatible) {
  TensorList list = only("kv_scale", .05f);
  list.f32(L0 + ".k_scale", .03f);
  expectError(resolve(list), "expected equal values");
  compatible();
  ScaleTable table = resolve(list);
  expectKV(table, .03f, P::Checkpoint, .05f, P::Checkpoint);
  expectOnly(table, Severity::Warning, "the specific name wins");
}

TEST_F(Scales, AnEqualKVScaleBesideSpecificNamesIsFine) {
  TensorList list = only("kv_scale", .05f);
  list.f32(L0 + ".k_scale", .05f).f32(L0 + ".v_scale", .05f);
  ScaleTable table = resolve(list);
  expectKV(table, .05f, P::Checkpoint, .05f, P::Checkpoint);
  expectNo(table, Severity::Warning);
}

TEST_F(Scales, OneNameInTwoShards) {
  folder.tensors("a.safetensors", kv(.03f, .05f))
      .tensors("b.safetensors", only("k_scale", .03f));
  expectError(resolveFolder(), "is also in");
  compatible();
  ScaleTable table = resolveFolder();
  expectKV(table, .03f, P::Checkpoint, .05f, P::Checkpoint);
  expectOnly(table, Severity::Remark, "in two shards with equal content");
  folder.tensors("b.safetensors", only("k_scale", .04f));
  expectError(resolveFolder(), "with other content");
}

TEST_F(Scales, TwoNamesOfOneRoleMustAgree) {
  TensorList list = kv(.03f, .05f);
  list.f32(L0 + ".k_proj.k_scale", .03f);
  ScaleTable table = resolve(list);
  expectKV(table, .03f, P::Checkpoint, .05f, P::Checkpoint);
  expectOnly(table, Severity::Remark, "gives the same scale");
  list.f32(L0 + ".qkv_proj.v_scale", .06f);
  expectError(resolve(list), "two names give one scale different values");
}

//===----------------------------------------------------------------------===//
// Shapes, element types, rounding
//===----------------------------------------------------------------------===//

TEST_F(Scales, AcceptsOneElementOfAnyRank) {
  for (std::vector<int64_t> shape :
       {std::vector<int64_t>{}, {1}, {1, 1}, {1, 1, 1, 1}}) {
    TensorList list;
    list.addValues<float>(L0 + ".k_scale", DType::F32, shape, {.03f})
        .f32(L0 + ".v_scale", .05f);
    expectKV(resolve(list), .03f, P::Checkpoint, .05f, P::Checkpoint);
  }
}

TEST_F(Scales, RefusesMoreThanOneElement) {
  for (std::vector<int64_t> shape : {std::vector<int64_t>{2}, {2, 1, 1}}) {
    TensorList list;
    list.addValues<float>(L0 + ".k_scale", DType::F32, shape, {.1f, .2f})
        .f32(L0 + ".v_scale", .05f);
    ScaleTable table = resolve(list);
    expectError(table, "only per-tensor scaling factors are supported for an "
                       "FP8 KV cache here");
    const Diagnostic &error = table.diagnostics[0];
    EXPECT_EQ(error.layer, layer0);
    EXPECT_EQ(error.key, L0 + ".k_scale");
    EXPECT_NE(error.message.find(formatShape(shape)), std::string::npos);
  }
  TensorList empty;
  empty.add(L0 + ".k_scale", DType::F32, {0}, "");
  expectError(resolve(empty), "only per-tensor");
}

TEST_F(Scales, WidensExactly) {
  TensorList list;
  list.bf16(L0 + ".k_scale", .0123f).f16(L0 + ".v_scale", .0345f);
  expectKV(resolve(list), fromBF16(toBF16(.0123)), P::Checkpoint,
           fromF16(toF16(.0345)), P::Checkpoint);
}

TEST_F(Scales, RoundsF64OnceAndSaysSo) {
  TensorList list;
  list.f64(L0 + ".k_scale", .0123).f64(L0 + ".v_scale", .5);
  ScaleTable table = resolve(list);
  expectKV(table, float(.0123), P::Checkpoint, .5f, P::Checkpoint);
  expectOnly(table, Severity::Remark, "is rounded to f32");
  TensorList huge;
  huge.f64(L0 + ".k_scale", 1e300).f64(L0 + ".v_scale", .5);
  expectError(resolve(huge), "is not finite in f32");
}

TEST_F(Scales, RefusesOtherElementTypes) {
  TensorList list;
  list.addValues<int32_t>(L0 + ".k_scale", DType::I32, {}, {1})
      .f32(L0 + ".v_scale", 1);
  expectError(resolve(list), "is I32, expected F32, F16, BF16 or F64");
}

TEST_F(Scales, RoundsToTheModelsTypeOnRequest) {
  options.roundScalesTo = DType::BF16;
  expectKV(resolve(kv(.0123f, .0345f)), fromBF16(toBF16(.0123f)), P::Checkpoint,
           fromBF16(toBF16(.0345f)), P::Checkpoint);
  options.roundScalesTo = DType::F16;
  expectKV(resolve(kv(.0123f, .0345f)), fromF16(toF16(.0123f)), P::Checkpoint,
           fromF16(toF16(.0345f)), P::Checkpoint);
  expectError(resolve(kv(1e30f, .0345f)), "is not finite");
}

TEST_F(Scales, DoublesLoadedScalesForFnuz) {
  graph[0].cacheType = CacheType::F8E4M3FNUZ;
  expectKV(resolve(kv(.03f, .05f)), .06f, P::Checkpoint, .1f, P::Checkpoint);
  TensorList none;
  none.f32("x", 1);
  expectKV(resolve(none), 1, P::Default, 1, P::Default);
}

//===----------------------------------------------------------------------===//
// q, prob, zero points
//===----------------------------------------------------------------------===//

TEST_F(Scales, QIsLoadedButNotUsedWithOtherQueries) {
  TensorList list;
  list.f32(L0 + ".q_proj.q_scale", .02f)
      .f32(L0 + ".k_proj.k_scale", .03f)
      .f32(L0 + ".v_proj.v_scale", .05f);
  ScaleTable table = resolve(list);
  expectKV(table, .03f, P::Checkpoint, .05f, P::Checkpoint);
  expectScale(table, ScaleRole::Q, .02f, P::Checkpoint);
  EXPECT_FALSE((*table.find(layer0))[ScaleRole::Q].used);
  expectOnly(table, Severity::Remark, "the queries are not FP8");

  graph[0].queryIsFP8 = true;
  table = resolve(list);
  expectScale(table, ScaleRole::Q, .02f, P::Checkpoint);
  EXPECT_TRUE((*table.find(layer0))[ScaleRole::Q].used);
  EXPECT_TRUE(table.diagnostics.empty());
}

TEST_F(Scales, AbsentOrUselessQIsOne) {
  graph[0].queryIsFP8 = true;
  ScaleTable table = resolve(kv(.03f, .05f));
  expectScale(table, ScaleRole::Q, 1, P::Default);
  expectOnly(table, Severity::Warning, "no q scale for 1 layer");
  for (float bad : {0.0f, -1.0f}) {
    TensorList list = kv(.03f, .05f);
    list.f32(L0 + ".q_scale", bad);
    table = resolve(list);
    EXPECT_FALSE(table.hasErrors());
    expectScale(table, ScaleRole::Q, 1, P::Default);
    expectOnly(table, Severity::Warning, "is not positive");
  }
  TensorList list = kv(.03f, .05f);
  list.f32(L0 + ".q_scale", nan);
  expectError(resolve(list), "is not finite");
  graph[0].queryIsFP8 = false;
  EXPECT_FALSE(resolve(list).hasErrors());
}

TEST_F(Scales, ProbIsCarriedAndNotUsed) {
  TensorList list = kv(.03f, .05f);
  list.f32(L0 + ".prob_output_scale", .0022f);
  ScaleTable table = resolve(list);
  expectScale(table, ScaleRole::Prob, .0022f, P::Checkpoint);
  EXPECT_FALSE((*table.find(layer0))[ScaleRole::Prob].used);
  expectScale(resolve(kv(.03f, .05f)), ScaleRole::Prob, 1, P::Default);
}

TEST_F(Scales, ZeroPointsMustBeZero) {
  TensorList list = kv(.03f, .05f);
  list.addValues<int8_t>(L0 + ".k_zero_point", DType::I8, {1}, {0});
  expectKV(resolve(list), .03f, P::Checkpoint, .05f, P::Checkpoint);
  list.addValues<float>(L0 + ".q_zero_point", DType::F32, {1}, {-0.0f});
  expectNo(resolve(list), Severity::Error);
  TensorList wrong = list;
  wrong.addValues<int8_t>(L0 + ".v_zero_point", DType::I8, {2}, {0, -3});
  expectError(resolve(wrong), "is -3, expected 0");
  wrong = list;
  wrong.addValues<uint8_t>(L0 + ".v_zero_point", DType::U8, {1}, {255});
  expectError(resolve(wrong), "is 255, expected 0");
  wrong = list;
  wrong.addValues<float>(L0 + ".v_zero_point", DType::F32, {1}, {.5f});
  expectError(resolve(wrong), "is 0.5, expected 0");
}

//===----------------------------------------------------------------------===//
// Names and matching
//===----------------------------------------------------------------------===//

TEST_F(Scales, EqualValuesByAnyNameResolveAlike) {
  TensorList fused, split;
  fused.f32(L0 + ".qkv_proj.k_scale", .05f).f32(L0 + ".qkv_proj.v_scale", .05f);
  split.f32(L0 + ".k_proj.k_scale", .05f).f32(L0 + ".v_proj.v_scale", .05f);
  for (const TensorList &list : {fused, split, only("kv_scale", .05f)})
    expectKV(resolve(list), .05f, P::Checkpoint, .05f, P::Checkpoint);
}

TEST_F(Scales, RecurrentLayersAreNotMissing) {
  std::string layer3 = "model.layers.3.self_attn.attn";
  graph = graphOf({layer3});
  TensorList list;
  list.f32("model.layers.3.self_attn.k_scale", .03f)
      .f32("model.layers.3.self_attn.v_scale", .05f)
      .f32("model.layers.0.mixer.in_proj.weight", 1);
  ScaleTable table = resolve(list);
  expectScale(table, ScaleRole::K, .03f, P::Checkpoint, layer3);
  expectScale(table, ScaleRole::V, .05f, P::Checkpoint, layer3);
  EXPECT_TRUE(table.diagnostics.empty()) << allMessages(table.diagnostics);
}

TEST_F(Scales, TakesATwiceRenamedKey) {
  std::string layer3 = "model.layers.3.self_attn.attn";
  graph = graphOf({layer3});
  TensorList list;
  list.f32("model.layers.3.self_attn.qkqkv_proj.k_scale", .02f)
      .f32("model.layers.3.self_attn.qkv_proj.v_scale", .04f);
  ScaleTable table = resolve(list);
  expectScale(table, ScaleRole::K, .02f, P::Checkpoint, layer3);
  expectScale(table, ScaleRole::V, .04f, P::Checkpoint, layer3);
}

TEST_F(Scales, MatchesAUniqueSuffixWithARemark) {
  for (const char *prefix :
       {"language_model.model.layers.0.self_attn", "layers.0.self_attn",
        "model.language_model.layers.0.self_attn",
        "transformer.layers.0.attention"}) {
    TensorList list;
    list.f32(std::string(prefix) + ".k_scale", .03f)
        .f32(std::string(prefix) + ".v_scale", .05f);
    ScaleTable table = resolve(list);
    expectKV(table, .03f, P::Checkpoint, .05f, P::Checkpoint);
    expectOnly(table, Severity::Remark, prefix);
    EXPECT_EQ(table.find(layer0)->module, prefix);
  }
}

TEST_F(Scales, RefusesAnAmbiguousSuffix) {
  TensorList list;
  list.f32("text.layers.0.self_attn.kv_scale", .03f)
      .f32("vision.layers.0.self_attn.kv_scale", .05f);
  expectError(resolve(list), "match its end equally well");

  graph = graphOf(
      {"model.encoder.layers.0.self_attn", "model.decoder.layers.0.self_attn"});
  TensorList shared;
  shared.f32("layers.0.self_attn.kv_scale", .03f);
  ScaleTable table = resolve(shared);
  EXPECT_EQ(countSeverity(table.diagnostics, Severity::Error), 2u);
}

TEST_F(Scales, TheLongestSuffixWins) {
  TensorList list;
  list.f32("a.model.layers.0.self_attn.kv_scale", .03f)
      .f32("vision.layers.0.self_attn.kv_scale", .05f);
  ScaleTable table = resolve(list);
  expectKV(table, .03f, P::Checkpoint, .03f, P::Checkpoint);
}

TEST_F(Scales, AModuleWithoutScalesDoesNotTakeThoseOfAnother) {
  TensorList list;
  list.f32(L0 + ".q_proj.weight", 1)
      .f32("vision.layers.0.self_attn.kv_scale", .05f);
  ScaleTable table = resolve(list);
  expectKV(table, 1, P::Default, 1, P::Default);
  EXPECT_NE(findOnly(table.diagnostics, Severity::Warning,
                     "belongs to no attention layer of the graph"),
            nullptr);
  ASSERT_EQ(table.ignored.size(), 1u);
  EXPECT_EQ(table.ignored[0].key, "vision.layers.0.self_attn.kv_scale");
}

TEST_F(Scales, ReportsScaleLikeNamesOfNoKnownForm) {
  TensorList list = kv(.03f, .05f);
  list.f32(L0 + ".k_scale_2", 1)
      .f32(L0 + ".k_proj.weight_scale", 1)
      .f32(L0 + ".k_proj.input_scale", 1)
      .f32(L0 + ".q_norm.scale", 1)
      .f32(L0 + ".o_proj.output_scale", 1)
      .f32("model.layers.0.mlp.gate.scale", 1);
  ScaleTable table = resolve(list);
  expectOnly(table, Severity::Warning, "'" + L0 + ".k_scale_2'");
  ASSERT_EQ(table.ignored.size(), 1u);
}

TEST_F(Scales, ReportsScalesThatNothingDeclares) {
  config = R"({"torch_dtype": "bfloat16"})";
  ScaleTable table = resolve(kv(.03f, .05f));
  expectKV(table, .03f, P::Checkpoint, .05f, P::Checkpoint);
  expectOnly(table, Severity::Remark, "no configuration file declares");
}

TEST_F(Scales, ReportsADeclarationWithoutScales) {
  config = R"({"quantization_config": {"quant_method": "modelopt",
               "kv_cache_quant_algo": "FP8"}})";
  TensorList list;
  list.f32("x", 1);
  ScaleTable table = resolve(list);
  expectOnly(table, Severity::Warning,
             "although config.json: quantization_config.kv_cache_quant_algo "
             "declares FP8");
  EXPECT_EQ(table.diagnostics.size(), 1u);
}

//===----------------------------------------------------------------------===//
// Caches without scales, MLA, sharing
//===----------------------------------------------------------------------===//

TEST_F(Scales, AnUnquantizedCacheHasNone) {
  graph[0].cacheType = CacheType::BF16;
  for (const TensorList &list :
       {only("k_scale", .03f), kv(.06f, .09f), kv(nan, 0)}) {
    ScaleTable table = resolve(list);
    expectKV(table, 1, P::Default, 1, P::Default);
    EXPECT_FALSE((*table.find(layer0))[ScaleRole::K].used);
    EXPECT_EQ(table.diagnostics.size(), 1u);
    expectOnly(table, Severity::Remark, "scale unused");
    EXPECT_FALSE(table.ignored.empty());
  }
}

TEST_F(Scales, ComputedScalesReplaceLoadedOnes) {
  for (CacheType type : {CacheType::FP8PerTokenHead,
                         CacheType::INT8PerTokenHead, CacheType::FP8DSMLA}) {
    graph[0].cacheType = type;
    ScaleTable table = resolve(kv(.03f, .05f));
    expectKV(table, 1, P::Default, 1, P::Default);
    expectOnly(table, Severity::Remark, "the write computes the scales");
  }
}

TEST_F(Scales, MLAUsesOnlyK) {
  graph[0].mla = true;
  ScaleTable table = resolve(only("k_scale", .06f));
  expectKV(table, .06f, P::Checkpoint, .06f, P::Duplicate);
  EXPECT_FALSE((*table.find(layer0))[ScaleRole::V].used);
  expectNo(table, Severity::Remark);
  expectError(resolve(kv(.06f, .09f)), "MLA has one scale");
  EXPECT_FALSE(resolve(kv(.06f, .06f)).hasErrors());
  compatible();
  table = resolve(kv(.06f, .09f));
  expectKV(table, .06f, P::Checkpoint, .06f, P::Duplicate);
  expectOnly(table, Severity::Warning, "only k is used");
}

TEST_F(Scales, ALayerThatSharesACacheTakesItsOwnersScales) {
  std::string layer1 = "model.layers.1.self_attn.attn";
  graph = graphOf({layer1, layer0});
  graph[0].sharesCacheWith = layer0;
  TensorList list = kv(.03f, .05f);
  list.f32("model.layers.1.self_attn.kv_scale", .9f);
  ScaleTable table = resolve(list);
  expectScale(table, ScaleRole::K, .03f, P::Checkpoint, layer1);
  expectScale(table, ScaleRole::V, .05f, P::Checkpoint, layer1);
  expectOnly(table, Severity::Remark, "reads the cache of");
  graph[0].sharesCacheWith = "nobody";
  expectError(resolve(list), "which is not a layer of the graph");
}

TEST_F(Scales, UniformOnesAreRemarkedButAreNotDefaults) {
  ScaleTable table = resolve(kv(1, 1));
  expectKV(table, 1, P::Checkpoint, 1, P::Checkpoint);
  expectOnly(table, Severity::Remark, "probably clamped at export");
  EXPECT_EQ(table.diagnostics.size(), 1u);
  graph = graphOf({layer0, "model.layers.1.self_attn.attn"});
  TensorList list = kv(1, 1);
  list.f32("model.layers.1.self_attn.kv_scale", .5f);
  EXPECT_TRUE(resolve(list).diagnostics.empty());
}

//===----------------------------------------------------------------------===//
// Options
//===----------------------------------------------------------------------===//

TEST_F(Scales, OverridesWin) {
  for (const char *text : {"model.layers.0.self_attn.attn.k=0.25",
                           "model.layers.0.self_attn.k=0.25", "0.k=0.25"}) {
    Expected<ScaleOverride> given = parseScaleOverride(text);
    ASSERT_TRUE(given) << given.message();
    options.overrides = {*given};
    ScaleTable table = resolve(kv(.03f, .05f));
    expectKV(table, .25f, P::Override, .05f, P::Checkpoint);
    // A bad value that nobody asks for does not matter.
    expectKV(resolve(kv(nan, .05f)), .25f, P::Override, .05f, P::Checkpoint);
  }
  TensorList none;
  none.f32("x", 1);
  ScaleTable table = resolve(none);
  expectKV(table, .25f, P::Override, 1, P::Default);
  expectOnly(table, Severity::Warning, "(v)");
}

TEST_F(Scales, OverridesMustNameALayer) {
  options.overrides = {*parseScaleOverride("model.layers.7.self_attn.k=1")};
  expectError(resolve(kv(.03f, .05f)), "is no attention layer of the graph");
  for (const char *text :
       {"k=1", "x.y=1", "a.k", "a.k=", "a.k=0", "a.k=-1", "a.k=nan", "a.k=inf",
        "a.k=1x", "a.k=1e99", ".k=1"}) {
    Expected<ScaleOverride> given = parseScaleOverride(text);
    ASSERT_FALSE(given) << text;
    EXPECT_NE(given.message().find(text), std::string::npos);
  }
  EXPECT_EQ(bits(parseScaleOverride("a.b.v=0.0123")->value), bits(.0123f));
}

TEST_F(Scales, LaterOverlaysWin) {
  folder.tensors("one.overlay", kv(.3f, .5f))
      .tensors("two.overlay", only("k_proj.k_scale", .7f));
  options.overlays = {folder.path("one.overlay"), folder.path("two.overlay")};
  ScaleTable table = resolve(kv(.03f, .05f));
  expectKV(table, .7f, P::Checkpoint, .5f, P::Checkpoint);
  const Scale &k = (*table.find(layer0))[ScaleRole::K];
  EXPECT_EQ(k.file, folder.path("two.overlay"));
  EXPECT_NE(findOnly(table.diagnostics, Severity::Remark,
                     "two.overlay gives 1 scale"),
            nullptr);
  options.overlays = {folder.path("absent")};
  expectError(resolve(kv(.03f, .05f)), folder.path("absent"));
}

TEST_F(Scales, ReadsTheJsonOfOldCalibrationTools) {
  folder.text("scales.json", R"({"model_type": "llama", "kv_cache":
      {"dtype": "float8_e4m3fn", "scaling_factor": {"0": {"0": 0.0123}}}})");
  options.overlays = {folder.path("scales.json")};
  TensorList none;
  none.f32("x", 1);
  ScaleTable table = resolve(none);
  expectKV(table, .0123f, P::Checkpoint, .0123f, P::Checkpoint);
  EXPECT_EQ((*table.find(layer0))[ScaleRole::K].key,
            "kv_cache.scaling_factor.0.0");
  folder.text("scales.json", R"({"kv_cache": {"scaling_factor": {}}})");
  expectError(resolve(none), "expected one tensor parallel rank, found 0");
}

TEST_F(Scales, CanRequireCalibratedScales) {
  options.requireCalibrated = true;
  EXPECT_FALSE(resolve(kv(1, 1)).hasErrors());
  TensorList none;
  none.f32("x", 1);
  expectError(resolve(none), "calibrated scales are required");
  compatible();
  expectError(resolve(kv(-1, -1)), "calibrated scales are required");
}

TEST_F(Scales, WorksWithoutACheckpoint) {
  ScaleTable table = resolveScales(nullptr, graph);
  expectKV(table, 1, P::Default, 1, P::Default);
  expectOnly(table, Severity::Warning, "no checkpoint");
}

//===----------------------------------------------------------------------===//
// compressed-tensors
//===----------------------------------------------------------------------===//

TEST_F(Scales, CompressedTensorsDoesNotDuplicate) {
  config = compressedConfig(tensorScheme);
  ScaleTable table = resolve(only("k_scale", .03f));
  expectKV(table, .03f, P::Checkpoint, 1, P::Default);
  expectOnly(table, Severity::Warning, "(v)");
  expectKV(resolve(only("v_scale", .03f)), 1, P::Default, .03f, P::Checkpoint);
  expectKV(resolve(kv(.03f, .05f)), .03f, P::Checkpoint, .05f, P::Checkpoint);
}

TEST_F(Scales, CompressedTensorsNeedsPositiveScales) {
  config = compressedConfig(tensorScheme);
  for (ScalePolicy policy : {ScalePolicy::Strict, ScalePolicy::Compatible}) {
    options.policy = policy;
    for (float bad : {0.0f, -1.0f})
      expectError(resolve(kv(bad, .05f)), "is not positive");
    expectError(resolve(kv(nan, .05f)), "is not finite");
  }
  TensorList zero;
  zero.bf16(L0 + ".k_scale", 0).bf16(L0 + ".v_scale", 0);
  expectError(resolve(zero), "'" + L0 + ".k_scale' (0.0)");
  config = fp8Config;
  expectError(resolve(zero), "'" + L0 + ".k_scale' (0.0)");
}

TEST_F(Scales, CompressedTensorsDoesNotDoubleForFnuz) {
  config = compressedConfig(tensorScheme);
  graph[0].cacheType = CacheType::F8E4M3FNUZ;
  expectKV(resolve(kv(.03f, .05f)), .03f, P::Checkpoint, .05f, P::Checkpoint);
}

const char *const headScheme =
    R"({"type": "float", "num_bits": 8, "dynamic": false, "symmetric": true,
        "strategy": "attn_head"})";

TEST_F(Scales, PerHeadScalesNeedTheirStrategy) {
  TensorList list;
  list.addValues<float>(L0 + ".k_scale", DType::F32, {2, 1, 1}, {.1f, .2f});
  list.f32(L0 + ".v_scale", .3f);
  config = compressedConfig(tensorScheme);
  expectError(resolve(list), "[2, 1, 1]");
  config = compressedConfig(headScheme);
  graph[0].kvHeads = 2;
  ScaleTable table = resolve(list);
  expectKV(table, .2f, P::Checkpoint, .3f, P::Checkpoint);
  EXPECT_EQ(table.layers[0][ScaleRole::K].perHead,
            (std::vector<float>{.1f, .2f}));
  EXPECT_TRUE(table.layers[0][ScaleRole::V].perHead.empty());
}

TEST_F(Scales, PerHeadScalesMustFitTheKVHeads) {
  TensorList list;
  list.addValues<float>(L0 + ".k_scale", DType::F32, {3, 1, 1}, {1, 2, 3});
  config = compressedConfig(headScheme);
  graph[0].kvHeads = 2;
  expectError(resolve(list), "expected a scale for each of the 2 KV heads of "
                             "this rank, found shape [3, 1, 1]");
}

TEST_F(Scales, EveryHeadsScaleMustBePositiveAndFinite) {
  config = compressedConfig(headScheme);
  for (float bad : {0.0f, -1.0f}) {
    TensorList list;
    list.addValues<float>(L0 + ".k_scale", DType::F32, {2, 1, 1}, {.1f, bad});
    expectError(resolve(list), "is not positive");
  }
  TensorList list;
  list.addValues<float>(L0 + ".k_scale", DType::F32, {2, 1, 1}, {nan, .1f});
  expectError(resolve(list), "is not finite");
}

TEST_F(Scales, PerHeadQIsTheMaximumOfEachGroup) {
  TensorList list;
  list.addValues<float>(L0 + ".k_scale", DType::F32, {2, 1, 1}, {.1f, .2f});
  list.addValues<float>(L0 + ".v_scale", DType::F32, {2, 1, 1}, {.3f, .4f});
  list.addValues<float>(L0 + ".q_scale", DType::F32, {4, 1, 1}, {1, 2, 4, 3});
  config = compressedConfig(headScheme);
  graph[0].queryIsFP8 = true;
  ScaleTable table = resolve(list);
  expectNo(table, Severity::Error);
  EXPECT_EQ(table.layers[0][ScaleRole::Q].perHead, (std::vector<float>{2, 4}));
  // As many values as fit no KV head: only an error where q is read.
  TensorList odd;
  odd.addValues<float>(L0 + ".k_scale", DType::F32, {2, 1, 1}, {.1f, .2f});
  odd.addValues<float>(L0 + ".q_scale", DType::F32, {3, 1, 1}, {1, 2, 4});
  expectError(resolve(odd), "a multiple of the 2 KV heads");
  graph[0].queryIsFP8 = false;
  expectNo(resolve(odd), Severity::Error);
}

TEST_F(Scales, ARankTakesItsHeads) {
  TensorList list;
  list.addValues<float>(L0 + ".k_scale", DType::F32, {4, 1, 1}, {1, 2, 3, 4});
  list.addValues<float>(L0 + ".q_scale", DType::F32, {8, 1, 1},
                        {1, 2, 3, 4, 5, 6, 7, 8});
  list.f32(L0 + ".v_scale", .5f);
  config = compressedConfig(headScheme);
  graph[0].queryIsFP8 = true;
  struct Case {
    int64_t size, rank;
    std::vector<float> k, q;
  };
  const Case cases[] = {
      {1, 0, {1, 2, 3, 4}, {2, 4, 6, 8}},
      {2, 1, {3, 4}, {6, 8}},
      {4, 2, {3}, {6}},
      // Two ranks share a head.
      {8, 4, {3}, {6}},
      {8, 7, {4}, {8}},
  };
  for (const Case &c : cases) {
    options.tpSize = c.size;
    options.tpRank = c.rank;
    graph[0].kvHeads = int64_t(c.k.size());
    ScaleTable table = resolve(list);
    expectNo(table, Severity::Error);
    EXPECT_EQ(table.layers[0][ScaleRole::K].perHead, c.k);
    EXPECT_EQ(table.layers[0][ScaleRole::Q].perHead, c.q);
    EXPECT_EQ(table.layers[0][ScaleRole::V].value, .5f);
  }
  // A single KV head that all ranks share.
  TensorList one;
  one.addValues<float>(L0 + ".k_scale", DType::F32, {1, 1, 1}, {3});
  one.addValues<float>(L0 + ".q_scale", DType::F32, {4, 1, 1}, {1, 4, 2, 3});
  options.tpSize = 2;
  options.tpRank = 0;
  graph[0].kvHeads = 1;
  ScaleTable shared = resolve(one);
  expectNo(shared, Severity::Error);
  EXPECT_EQ(shared.layers[0][ScaleRole::Q].value, 4);
  options.tpSize = 3;
  options.tpRank = 0;
  graph[0].kvHeads = 4;
  expectError(resolve(list), "found shape [4, 1, 1] of '" + L0 + ".k_scale'");
  options.tpRank = 3;
  expectError(resolve(list), "tp-rank 3 of tp-size 3");
}

TEST_F(Scales, TheOutputScaleIsTheNextLinearLayersInputScale) {
  TensorList list = kv(.03f, .05f);
  list.f32(L0 + ".o_proj.input_scale", .7f);
  ScaleTable table = resolve(list);
  expectKV(table, .03f, P::Checkpoint, .05f, P::Checkpoint);
  const Scale &o = table.layers[0][ScaleRole::O];
  EXPECT_EQ(o.value, .7f);
  EXPECT_EQ(o.key, L0 + ".o_proj.input_scale");
  EXPECT_FALSE(o.used);
  // It is no scale of the cache: neither missing scales nor ignored ones.
  table = resolve(only("o_proj.input_scale", .7f));
  expectOnly(table, Severity::Warning, "no KV cache scale for 1 of 1");
  EXPECT_TRUE(table.ignored.empty());
}

TEST_F(Scales, CompressedTensorsSchemesAreErrorsThatNameTheField) {
  const std::pair<const char *, const char *> cases[] = {
      {R"({"type": "int", "num_bits": 8})", ".type: expected"},
      {R"({"num_bits": 8})", ".type: expected"},
      {R"({"type": "float", "num_bits": 4})", ".num_bits: expected 8"},
      {R"({"type": "float", "dynamic": true})", ".dynamic: expected false"},
      {R"({"type": "float", "symmetric": false})", ".symmetric: expected true"},
      {R"({"type": "float", "strategy": "channel"})",
       ".strategy: expected \"tensor\" or \"attn_head\", found \"channel\""},
      {"[]", "expected an object"},
  };
  for (const auto &[scheme, part] : cases) {
    config = compressedConfig(scheme);
    expectError(resolve(kv(.03f, .05f)), part);
  }
}

//===----------------------------------------------------------------------===//
// Fixtures
//===----------------------------------------------------------------------===//

struct Fixture {
  const char *name;
  bool hasKV, isShared, hasQ, hasProb, isBF16;
};

class ScaleFixtures : public testing::TestWithParam<Fixture> {};

TEST_P(ScaleFixtures, ResolveToTheirDocumentedValues) {
  const Fixture &fixture = GetParam();
  Expected<Checkpoint> checkpoint =
      Checkpoint::open(inputPath(std::string("checkpoints/") + fixture.name));
  ASSERT_TRUE(checkpoint) << checkpoint.message();
  std::vector<ScaleRequest> graph =
      graphOf({layer0, "model.layers.1.self_attn.attn"});
  ScaleTable table = resolveScales(&*checkpoint, graph);
  EXPECT_FALSE(table.hasErrors()) << allMessages(table.diagnostics);
  auto stored = [&](double value) {
    return fixture.isBF16 ? fromBF16(toBF16(value)) : float(value);
  };
  for (size_t i = 0; i < 2; ++i) {
    const LayerScales &layer = table.layers[i];
    double factor = double(i + 1);
    float k = fixture.isShared ? stored(.05 * factor) : stored(.0123 * factor);
    float v = fixture.isShared ? k : stored(.0345 * factor);
    P from = fixture.hasKV ? P::Checkpoint : P::Default;
    EXPECT_EQ(bits(layer[ScaleRole::K].value), bits(fixture.hasKV ? k : 1));
    EXPECT_EQ(bits(layer[ScaleRole::V].value), bits(fixture.hasKV ? v : 1));
    EXPECT_EQ(layer[ScaleRole::K].provenance, from);
    EXPECT_EQ(layer[ScaleRole::V].provenance, from);
    EXPECT_EQ(bits(layer[ScaleRole::Q].value),
              bits(fixture.hasQ ? stored(.021 * factor) : 1));
    EXPECT_EQ(bits(layer[ScaleRole::Prob].value),
              bits(fixture.hasProb ? stored(.0022 * factor) : 1));
  }
  EXPECT_EQ(countSeverity(table.diagnostics, Severity::Warning),
            fixture.hasKV ? 0u : 1u)
      << allMessages(table.diagnostics);
}

INSTANTIATE_TEST_SUITE_P(
    Checkpoints, ScaleFixtures,
    testing::Values(
        Fixture{"modelopt_fp8", true, false, false, false, false},
        Fixture{"modelopt_fp8_hfquant_only", true, false, false, false, false},
        Fixture{"sharded_modelopt", true, false, false, false, false},
        Fixture{"fused_qkv", true, false, false, false, false},
        Fixture{"legacy_kv_scale", true, true, false, false, false},
        Fixture{"fp8_output_scale", true, false, false, false, false},
        Fixture{"quark_fp8", true, false, true, true, false},
        Fixture{"compressed_tensors", true, false, false, false, true},
        Fixture{"no_scales", false, false, false, false, false}),
    [](const testing::TestParamInfo<Fixture> &info) {
      return std::string(info.param.name);
    });

TEST(ScaleFixtures, PerHeadScalesAreResolved) {
  Expected<Checkpoint> checkpoint =
      Checkpoint::open(inputPath("checkpoints/compressed_tensors_attn_head"));
  ASSERT_TRUE(checkpoint);
  std::vector<ScaleRequest> graph = graphOf({layer0});
  graph[0].kvHeads = 2;
  ScaleTable table = resolveScales(&*checkpoint, graph);
  EXPECT_FALSE(table.hasErrors()) << allMessages(table.diagnostics);
  EXPECT_EQ(table.layers[0][ScaleRole::K].perHead.size(), 2u);
  EXPECT_EQ(table.layers[0][ScaleRole::V].perHead.size(), 2u);
}

TEST(ScaleFixtures, UnequalMLAScalesAreAnErrorUnderStrict) {
  std::vector<ScaleRequest> graph =
      graphOf({"model.layers.0.self_attn.mla_attn.mla_attn"});
  graph[0].mla = true;
  ScaleOptions compatible;
  compatible.policy = ScalePolicy::Compatible;

  Expected<Checkpoint> both =
      Checkpoint::open(inputPath("checkpoints/mla_deepseek"));
  ASSERT_TRUE(both);
  EXPECT_TRUE(resolveScales(&*both, graph).hasErrors());
  ScaleTable table = resolveScales(&*both, graph, compatible);
  EXPECT_FALSE(table.hasErrors()) << allMessages(table.diagnostics);
  EXPECT_EQ(bits(table.layers[0][ScaleRole::K].value), bits(.0123f));

  Expected<Checkpoint> single =
      Checkpoint::open(inputPath("checkpoints/mla_deepseek_k_only"));
  ASSERT_TRUE(single);
  table = resolveScales(&*single, graph);
  EXPECT_FALSE(table.hasErrors()) << allMessages(table.diagnostics);
  EXPECT_EQ(bits(table.layers[0][ScaleRole::K].value), bits(.0123f));
}

TEST(ScaleFixtures, AHybridGraphIsNotMissingItsRecurrentLayer) {
  Expected<Checkpoint> checkpoint =
      Checkpoint::open(inputPath("checkpoints/modelopt_fp8"));
  ASSERT_TRUE(checkpoint);
  ScaleTable table =
      resolveScales(&*checkpoint, graphOf({"model.layers.1.self_attn.attn"}));
  EXPECT_FALSE(table.hasErrors());
  EXPECT_EQ(bits(table.layers[0][ScaleRole::K].value), bits(float(.0246)));
  EXPECT_NE(findOnly(table.diagnostics, Severity::Warning,
                     "2 scale tensors belong to no attention layer"),
            nullptr);
}

} // namespace
