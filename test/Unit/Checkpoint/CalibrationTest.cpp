//===- CalibrationTest.cpp - Scales from sampled activations --------------===//

#include "kvcache/Checkpoint/Calibration.h"
#include "TestCheckpoint.h"

#include <cmath>

using namespace kvcache;

namespace {

struct NameCase {
  const char *name, *layer;
  ScaleRole role;
};

class CalibrationTest : public testing::Test {
protected:
  /// One tensor of four values named `name`.
  Expected<Activations> open(const std::string &name,
                             const std::vector<float> &values = {1, -4, 2, 3}) {
    TensorList list;
    list.addValues<float>(name, DType::F32, {1, int64_t(values.size())},
                          values);
    folder.tensors("a.safetensors", list);
    return Activations::open({folder.path("a.safetensors")}, nullptr);
  }
  TestFolder folder;
};

} // namespace

TEST(ActivationNames, SayLayerAndRole) {
  const NameCase cases[] = {
      {"layers.0.k", "layers.0", ScaleRole::K},
      {"layer3.key", "layer3", ScaleRole::K},
      {"model.layers.0.self_attn.v", "model.layers.0.self_attn", ScaleRole::V},
      {"model.layers.0.self_attn.v_proj.output", "model.layers.0.self_attn",
       ScaleRole::V},
      {"layers.0.query", "layers.0", ScaleRole::Q},
      {"layers.0.kv_c", "layers.0", ScaleRole::K},
      {"layers.0.k_pe", "layers.0", ScaleRole::K},
  };
  for (const NameCase &c : cases) {
    std::optional<ActivationName> name = parseActivationName(c.name);
    ASSERT_TRUE(name) << c.name;
    EXPECT_EQ(name->layer, c.layer);
    EXPECT_EQ(name->role, c.role);
  }
  for (const char *other : {"k", "hidden", "layers.0.attn_out", "output", ""})
    EXPECT_FALSE(parseActivationName(other)) << other;
  EXPECT_EQ(activationLayerIndex("layer12"), 12);
  EXPECT_EQ(activationLayerIndex("model.layers.7.self_attn"), 7);
  EXPECT_EQ(activationLayerIndex("decoder"), -1);
}

TEST_F(CalibrationTest, ModulesKeepTheirNames) {
  for (const auto &[name, module] :
       {std::pair("model.layers.1.self_attn.k", "model.layers.1.self_attn"),
        std::pair("transformer.h.1.attn.k", "transformer.h.1.attn"),
        std::pair("layers.1.k", "model.layers.1.self_attn"),
        std::pair("layer1.key", "model.layers.1.self_attn")}) {
    Expected<Activations> activations = open(name);
    ASSERT_TRUE(activations) << activations.message();
    EXPECT_EQ(activations->groups()[0].module, module);
    EXPECT_EQ(activations->groups()[0].maximum, 4);
  }
}

TEST_F(CalibrationTest, PercentilesAreNearestRanks) {
  Expected<Activations> activations = open("layers.0.k");
  ASSERT_TRUE(activations);
  const ActivationGroup &group = activations->groups()[0];
  EXPECT_EQ(magnitudePercentile(group, 100), 4);
  EXPECT_EQ(magnitudePercentile(group, 75), 3);
  EXPECT_EQ(magnitudePercentile(group, 74.9), 3);
  EXPECT_EQ(magnitudePercentile(group, 75.1), 4);
  EXPECT_EQ(magnitudePercentile(group, 25), 1);
  EXPECT_EQ(magnitudePercentile(group, 0.001), 1);
}

TEST_F(CalibrationTest, ScalesAreRoundedOnce) {
  EXPECT_EQ(calibratedScale(448, CacheType::F8E4M3FN), 1);
  EXPECT_EQ(calibratedScale(57344, CacheType::F8E5M2), 1);
  EXPECT_EQ(calibratedScale(3, CacheType::F8E4M3FN), float(3.0 / 448));
}

TEST_F(CalibrationTest, LossCountsSaturationAndNoise) {
  Expected<Activations> activations = open("layers.0.k", {448, 500, -449, 1});
  ASSERT_TRUE(activations);
  const ActivationGroup &group = activations->groups()[0];
  Expected<QuantizationLoss> loss = measureLoss(group, 1, CacheType::F8E4M3FN);
  ASSERT_TRUE(loss);
  EXPECT_EQ(loss->saturated, 0.5);
  double signal = 448. * 448 + 500. * 500 + 449. * 449 + 1;
  double noise = 52. * 52 + 1;
  EXPECT_DOUBLE_EQ(loss->snr, 10 * std::log10(signal / noise));
  // Powers of two lose nothing.
  activations = open("layers.0.k", {1, 2, 4, -8});
  ASSERT_TRUE(activations);
  loss = measureLoss(activations->groups()[0], 0.5, CacheType::F8E4M3FN);
  ASSERT_TRUE(loss);
  EXPECT_TRUE(std::isinf(loss->snr));
}

TEST_F(CalibrationTest, LossTakesAScalePerHead) {
  TensorList list;
  list.addValues<float>("layers.0.k", DType::F32, {1, 2, 2},
                        {448, 449, 896, 897});
  folder.tensors("a.safetensors", list);
  Expected<Activations> activations =
      Activations::open({folder.path("a.safetensors")}, nullptr);
  ASSERT_TRUE(activations);
  const ActivationGroup &group = activations->groups()[0];
  Expected<QuantizationLoss> loss =
      measureLoss(group, 2, CacheType::F8E4M3FN, {1, 2});
  ASSERT_TRUE(loss);
  EXPECT_EQ(loss->saturated, 0.5);
  EXPECT_FALSE(measureLoss(group, 2, CacheType::F8E4M3FN, {1, 2, 3}));
}

TEST_F(CalibrationTest, TheRunTimeFormulaKnowsOnlyTheFirstFile) {
  TensorList first, second;
  first.addValues<float>("layers.0.k", DType::F32, {1}, {-10});
  first.addValues<float>("layers.0.v", DType::F32, {1}, {10});
  second.addValues<float>("layers.0.k", DType::F32, {1}, {99});
  folder.tensors("a.safetensors", first).tensors("b.safetensors", second);
  Expected<Activations> activations = Activations::open(
      {folder.path("a.safetensors"), folder.path("b.safetensors")}, nullptr);
  ASSERT_TRUE(activations);
  EXPECT_EQ(activations->groups()[0].maximum, 99);
  EXPECT_EQ(runTimeScale(activations->groups()[0]), 10 / 200.0f);
  EXPECT_EQ(runTimeScale(activations->groups()[1]), 10 / 100.0f);
}
