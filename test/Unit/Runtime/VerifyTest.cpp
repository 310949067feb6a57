//===- VerifyTest.cpp - Planted errors are noticed ------------------------===//

#include "Fixture.h"

#include <functional>

using namespace kvcache;
using namespace kvcache::test;

namespace {

class VerifyTest : public RuntimeTest {
protected:
  /// Runs both segments over two steps; `between` may spoil the device's
  /// memory after a run and before it is compared.
  std::vector<LayerVerification>
  verify(const std::function<void()> &between = nullptr) {
    std::vector<LayerVerification> results(2);
    start();
    const Batch steps[] = {
        {{7, 1}, {7, 1}}, {{15, 1}, {7, 0}}, {{17, 2}, {2, 1}}};
    for (const Batch &batch : steps) {
      setBatch(batch, 5);
      for (size_t i = 0; i < 2; ++i) {
        Verifier verifier(*session);
        EXPECT_FALSE(bool(verifier.begin(segment(i))));
        run(i);
        if (between)
          between();
        Expected<std::vector<LayerVerification>> found =
            verifier.finish(segment(i));
        EXPECT_TRUE(bool(found));
        if (found)
          results[i].add((*found)[0]);
      }
    }
    return results;
  }

  std::vector<Launch> &launches() {
    return bundle.manifest.targets[0].launches;
  }

  uint64_t addressOf(const std::string &name) {
    return session->address(*bundle.manifest.findBuffer(name));
  }
};

TEST_F(VerifyTest, GoodRunsAreVerified) {
  for (bool packed : {false, true}) {
    bundle = makeBundle(ptx(), packed);
    for (const LayerVerification &layer : verify()) {
      EXPECT_TRUE(layer.good()) << layer.errors[0];
      // 18 rows of 2 heads of 64 dims, K and V; 18 rows of 4 heads.
      EXPECT_EQ(layer.codesCompared, 18u * 2 * 64 * 2);
      EXPECT_EQ(layer.outputsCompared, 18u * 4 * 64);
      EXPECT_GT(layer.maxError, 0);
      EXPECT_LT(layer.maxToleranceShare, 1);
    }
  }
}

TEST_F(VerifyTest, OneChangedWriteScaleIsNoticed) {
  launches()[2].arguments[6] = Argument::ofF32(vScale(1) * 1.05f, "");
  std::vector<LayerVerification> layers = verify();
  EXPECT_TRUE(layers[0].good());
  EXPECT_FALSE(layers[1].good());
  EXPECT_GT(layers[1].codesWrong, 0u);
  EXPECT_EQ(layers[1].outputsWrong, 0u); // judged on the cache as it is
  EXPECT_NE(layers[1].errors[0].find("layer1.v_cache: byte "),
            std::string::npos);
}

TEST_F(VerifyTest, OneChangedScoreConstantIsNoticed) {
  Argument &score = launches()[1].arguments[10];
  score = Argument::ofF32(score.f32.value() * 1.05f, "");
  std::vector<LayerVerification> layers = verify();
  EXPECT_GT(layers[0].outputsWrong, 0u);
  EXPECT_EQ(layers[0].codesWrong, 0u);
  EXPECT_TRUE(layers[1].good());
}

TEST_F(VerifyTest, OneChangedOutputConstantIsNoticed) {
  launches()[3].arguments[11] = Argument::ofF32(vScale(1) * 1.01f, "");
  std::vector<LayerVerification> layers = verify();
  EXPECT_TRUE(layers[0].good());
  EXPECT_GT(layers[1].outputsWrong, 0u);
  EXPECT_NE(layers[1].errors[0].find("layer1.output["), std::string::npos);
}

TEST_F(VerifyTest, SwappedLayersAreNoticed) {
  for (size_t i = 0; i < 2; ++i)
    for (Argument &argument : launches()[i].arguments)
      if (argument.buffer == "layer0.k_cache" ||
          argument.buffer == "layer0.v_cache")
        argument.buffer.replace(0, 6, "layer1");
  std::vector<LayerVerification> layers = verify();
  EXPECT_FALSE(layers[0].good());
  EXPECT_GT(layers[0].codesWrong, 0u);
}

TEST_F(VerifyTest, SwappedKeyAndValueAreNoticed) {
  std::swap(launches()[0].arguments[0], launches()[0].arguments[1]);
  EXPECT_GT(verify()[0].codesWrong, 0u);
}

TEST_F(VerifyTest, OneChangedCodeIsNoticed) {
  bool done = false;
  std::vector<LayerVerification> layers = verify([&] {
    if (done)
      return;
    done = true;
    uint64_t at = addressOf("layer0.k_cache") + uint64_t(slotOf(0, 3)) * 128;
    uint8_t code;
    ASSERT_FALSE(bool(device->copyOut(&code, at, 1)));
    code ^= 1;
    ASSERT_FALSE(bool(device->copyIn(at, &code, 1)));
  });
  EXPECT_EQ(layers[0].codesWrong, 1u);
  EXPECT_FALSE(layers[0].good());
}

TEST_F(VerifyTest, AByteThatShouldNotChangeIsNoticed) {
  bool done = false;
  std::vector<LayerVerification> layers = verify([&] {
    if (done)
      return;
    done = true;
    uint8_t code = 0x11;
    ASSERT_FALSE(bool(device->copyIn(addressOf("layer0.v_cache"), &code, 1)));
  });
  EXPECT_EQ(layers[0].bytesDisturbed, 1u);
  ASSERT_FALSE(layers[0].errors.empty());
  EXPECT_EQ(layers[0].errors[0], "layer0.v_cache: byte 0: expected 0xFF as "
                                 "before the run, found 0x11");
}

TEST_F(VerifyTest, ARowPastTheLastQueryIsNoticed) {
  std::vector<LayerVerification> layers = verify([&] {
    uint16_t one = 0x3F80;
    // Row 7 is live in the first and the second step only.
    ASSERT_FALSE(
        bool(device->copyIn(addressOf("layer0.output") + 7 * 512, &one, 2)));
  });
  EXPECT_FALSE(layers[0].good());
  std::string all;
  for (const std::string &error : layers[0].errors)
    all += error + "\n";
  EXPECT_NE(all.find("expected an untouched element past the last query"),
            std::string::npos)
      << all;
}

TEST_F(VerifyTest, NaNInValidDataReachesItsSequenceOnly) {
  start();
  setBatch({{3, 2}, {3, 2}}, 6);
  HostTensor key = randomBF16({5, 2, 64}, 7);
  key.data[0] = 0xC0;
  key.data[1] = 0x7F; // token 0 of sequence 0, head 0
  set("layer0.key", key);
  Verifier verifier(*session);
  ASSERT_FALSE(bool(verifier.begin(segment(0))));
  run(0);
  Expected<std::vector<LayerVerification>> found = verifier.finish(segment(0));
  ASSERT_TRUE(bool(found));
  EXPECT_TRUE((*found)[0].good()) << (*found)[0].errors[0];
  std::vector<uint8_t> output = bytes("layer0.output");
  auto isNaN = [&](int64_t row, int64_t head) {
    uint16_t code;
    std::memcpy(&code, output.data() + (row * 4 + head) * 128, 2);
    return (code & 0x7FFF) > 0x7F80;
  };
  for (int64_t row = 0; row < 5; ++row)
    for (int64_t head = 0; head < 4; ++head)
      EXPECT_EQ(isNaN(row, head), row < 3 && head < 2) << row << " " << head;
}

} // namespace
