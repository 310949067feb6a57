//===- HostProgramTest.cpp - Host code around segments --------------------===//

#include "Fixture.h"

#include "kvcache/Runtime/HostProgram.h"

using namespace kvcache;
using namespace kvcache::test;

namespace {

// Doubles the queries, runs the segment, and adds 1 to its output. The copy of
// the table row is asserted to be in range.
constexpr char graph[] = R"(
#id3 = affine_map<(d0, d1, d2) -> (d0, d1, d2)>
module {
  func.func private @kvcache.main.layer0(memref<?x4x64xbf16>, memref<?x2x64xbf16>, memref<?x2x64xbf16>, memref<?x4x64xbf16>)
  func.func private @kvcache.main.layer1(memref<?x4x64xbf16>, memref<?x2x64xbf16>, memref<?x2x64xbf16>, memref<?x4x64xbf16>)
  func.func @main(%q: tensor<?x4x64xbf16>, %k: tensor<?x2x64xbf16>, %v: tensor<?x2x64xbf16>, %bias: tensor<64xf32>) -> (tensor<?x4x64xbf16>, tensor<?xi64>) {
    %c0 = arith.constant 0 : index
    %c9 = arith.constant 9 : index
    %two = arith.constant 2.0 : bf16
    %n = tensor.dim %q, %c0 : tensor<?x4x64xbf16>
    %inside = arith.cmpi slt, %n, %c9 : index
    cf.assert %inside, "at most eight rows"
    %empty = tensor.empty(%n) : tensor<?x4x64xbf16>
    %doubled = linalg.generic {indexing_maps = [#id3, #id3], iterator_types = ["parallel", "parallel", "parallel"]} ins(%q : tensor<?x4x64xbf16>) outs(%empty : tensor<?x4x64xbf16>) {
    ^bb0(%in: bf16, %out: bf16):
      %0 = arith.mulf %in, %two : bf16
      linalg.yield %0 : bf16
    } -> tensor<?x4x64xbf16>
    %qb = bufferization.to_buffer %doubled read_only : tensor<?x4x64xbf16> to memref<?x4x64xbf16>
    %kb = bufferization.to_buffer %k read_only : tensor<?x2x64xbf16> to memref<?x2x64xbf16>
    %vb = bufferization.to_buffer %v read_only : tensor<?x2x64xbf16> to memref<?x2x64xbf16>
    %ob = memref.alloc(%n) : memref<?x4x64xbf16>
    func.call @kvcache.main.layer0(%qb, %kb, %vb, %ob) : (memref<?x4x64xbf16>, memref<?x2x64xbf16>, memref<?x2x64xbf16>, memref<?x4x64xbf16>) -> ()
    %o = bufferization.to_tensor %ob restrict : memref<?x4x64xbf16> to tensor<?x4x64xbf16>
    %sum = linalg.generic {indexing_maps = [#id3, affine_map<(d0, d1, d2) -> (d2)>, #id3], iterator_types = ["parallel", "parallel", "parallel"]} ins(%o, %bias : tensor<?x4x64xbf16>, tensor<64xf32>) outs(%empty : tensor<?x4x64xbf16>) {
    ^bb0(%in: bf16, %b: f32, %out: bf16):
      %0 = arith.extf %in : bf16 to f32
      %1 = arith.addf %0, %b : f32
      %2 = arith.truncf %1 : f32 to bf16
      linalg.yield %2 : bf16
    } -> tensor<?x4x64xbf16>
    %ids = tensor.empty(%n) : tensor<?xi64>
    %rows = linalg.generic {indexing_maps = [affine_map<(d0) -> (d0)>], iterator_types = ["parallel"]} outs(%ids : tensor<?xi64>) {
    ^bb0(%out: i64):
      %0 = linalg.index 0 : index
      %1 = arith.index_cast %0 : index to i64
      linalg.yield %1 : i64
    } -> tensor<?xi64>
    return %sum, %rows : tensor<?x4x64xbf16>, tensor<?xi64>
  }
}
)";

class HostProgramTest : public RuntimeTest {
protected:
  void SetUp() override {
    HostCode host;
    host.file.file = "host.mlir";
    host.function = "main";
    host.arguments = {{"q", ElementType::BF16, {-1, 4, 64}},
                      {"k", ElementType::BF16, {-1, 2, 64}},
                      {"v", ElementType::BF16, {-1, 2, 64}},
                      {"bias", ElementType::F32, {64}}};
    host.results = {{"sum", ElementType::BF16, {-1, 4, 64}},
                    {"rows", ElementType::I64, {-1}}};
    bundle.manifest.programs[0].host = host;
    setGraph(graph);
    bias.elementType = ElementType::F32;
    bias.shape = {64};
    bias.data.resize(256);
    std::vector<float> values(64, 1.0f);
    std::memcpy(bias.data.data(), values.data(), 256);
  }

  void setGraph(const std::string &text) {
    bundle.files["host.mlir"] = text;
    ASSERT_FALSE(bool(updateDigests(bundle)));
  }

  Expected<std::unique_ptr<HostProgram>> open() {
    return HostProgram::open(bundle, bundle.manifest.programs[0],
                             KVCACHE_HOST_LIBRARY);
  }

  std::string openMessage() {
    Expected<std::unique_ptr<HostProgram>> host = open();
    return host ? "opened" : host.message();
  }

  std::map<std::string, TensorView> arguments() {
    return {{"q", q.view()},
            {"k", k.view()},
            {"v", v.view()},
            {"bias", bias.view()}};
  }

  HostTensor q = randomBF16({3, 4, 64}, 1), k = randomBF16({3, 2, 64}, 2),
             v = randomBF16({3, 2, 64}, 3), bias;
};

TEST_F(HostProgramTest, SegmentsSeeAndChangeTheGraphsBuffers) {
  Expected<std::unique_ptr<HostProgram>> host = open();
  ASSERT_TRUE(bool(host)) << host.message();
  for (int repeat = 0; repeat < 2; ++repeat) {
    int calls = 0;
    auto segment = [&](const Segment &which,
                       const std::vector<TensorView> &memrefs) -> Error {
      ++calls;
      EXPECT_EQ(which.name, "layer0");
      EXPECT_EQ(memrefs.size(), 4u);
      EXPECT_EQ(memrefs[0].shape, (std::vector<int64_t>{3, 4, 64}));
      uint16_t given, doubled;
      std::memcpy(&given, q.data.data() + 2, 2);
      std::memcpy(&doubled, static_cast<char *>(memrefs[0].data) + 2, 2);
      EXPECT_EQ(fromBF16(doubled), 2 * fromBF16(given));
      std::vector<uint16_t> out(3 * 4 * 64, toBF16(4.0));
      std::memcpy(memrefs[3].data, out.data(), out.size() * 2);
      return Error::success();
    };
    Expected<std::vector<HostTensor>> results =
        (*host)->run(arguments(), segment);
    ASSERT_TRUE(bool(results)) << results.message();
    EXPECT_EQ(calls, 1);
    ASSERT_EQ(results->size(), 2u);
    EXPECT_EQ((*results)[0].shape, (std::vector<int64_t>{3, 4, 64}));
    for (size_t i = 0; i < (*results)[0].data.size(); i += 2) {
      uint16_t code;
      std::memcpy(&code, (*results)[0].data.data() + i, 2);
      ASSERT_EQ(fromBF16(code), 5.0f) << i;
    }
    EXPECT_EQ((*results)[1].data, integers<int64_t>({3}, {0, 1, 2}).data);
  }
}

TEST_F(HostProgramTest, RunsASessionsSegments) {
  start();
  setBatch({{3}, {3}}, 1);
  Expected<std::unique_ptr<HostProgram>> host = open();
  ASSERT_TRUE(bool(host)) << host.message();
  auto segment = [&](const Segment &which,
                     const std::vector<TensorView> &memrefs) -> Error {
    for (size_t i = 0; i < 3; ++i)
      if (Error error = session->setInput(which.arguments[i], memrefs[i]))
        return error;
    EXPECT_TRUE(run(0).clean());
    return session->readInto(which.arguments[3], memrefs[3]);
  };
  Expected<std::vector<HostTensor>> results =
      (*host)->run(arguments(), segment);
  ASSERT_TRUE(bool(results)) << results.message();
  std::vector<uint8_t> output = bytes("layer0.output");
  ASSERT_EQ(output.size(), (*results)[0].data.size());
  for (size_t i = 0; i < output.size(); i += 2) {
    uint16_t before, after;
    std::memcpy(&before, output.data() + i, 2);
    std::memcpy(&after, (*results)[0].data.data() + i, 2);
    ASSERT_EQ(after, toBF16(fromBF16(before) + 1.0f)) << i;
  }
}

TEST_F(HostProgramTest, ErrorsOfSegmentsAndAssertionsStopTheGraph) {
  Expected<std::unique_ptr<HostProgram>> host = open();
  ASSERT_TRUE(bool(host)) << host.message();
  auto fails = [](const Segment &, const std::vector<TensorView> &) {
    return makeError("no such page");
  };
  auto ignores = [](const Segment &, const std::vector<TensorView> &) {
    return Error::success();
  };
  Expected<std::vector<HostTensor>> results = (*host)->run(arguments(), fails);
  ASSERT_FALSE(bool(results));
  EXPECT_EQ(results.message(), "segment layer0: no such page");
  q = randomBF16({9, 4, 64}, 1);
  results = (*host)->run(arguments(), ignores);
  ASSERT_FALSE(bool(results));
  EXPECT_EQ(results.message(), "host.mlir: an assertion of the graph does not "
                               "hold: at most eight rows");
  q = randomBF16({2, 4, 64}, 1);
  results = (*host)->run(arguments(), ignores);
  EXPECT_TRUE(bool(results));
}

TEST_F(HostProgramTest, ArgumentsAreChecked) {
  Expected<std::unique_ptr<HostProgram>> host = open();
  ASSERT_TRUE(bool(host)) << host.message();
  auto ignores = [](const Segment &, const std::vector<TensorView> &) {
    return Error::success();
  };
  std::map<std::string, TensorView> given = arguments();
  given.erase("bias");
  Expected<std::vector<HostTensor>> results = (*host)->run(given, ignores);
  ASSERT_FALSE(bool(results));
  EXPECT_EQ(results.message(), "bias: expected f32[64] as argument 3 of @main, "
                               "found no tensor of that name");
  bias.shape = {32};
  results = (*host)->run(arguments(), ignores);
  ASSERT_FALSE(bool(results));
  EXPECT_EQ(results.message(), "bias: expected f32[64] as argument 3 of @main, "
                               "found f32[32]");
}

TEST_F(HostProgramTest, TextThatIsNoGraphIsRefused) {
  setGraph("module {");
  EXPECT_NE(openMessage().find("not a module of MLIR"), std::string::npos)
      << openMessage();
  setGraph("module {}");
  EXPECT_NE(openMessage().find("expected a function @main with a body"),
            std::string::npos)
      << openMessage();
  setGraph("func.func @main(%a: tensor<4xf64>) { return }");
  EXPECT_NE(openMessage().find("@main: argument 0: expected ranked bf16, f16, "
                               "f32, f8E4M3FN, f8E5M2, i32 or i64, found "
                               "tensor<4xf64>"),
            std::string::npos)
      << openMessage();
  setGraph("func.func @main() { return }");
  EXPECT_NE(
      openMessage().find("expected a declaration of @kvcache.main.layer0"),
      std::string::npos)
      << openMessage();
}

TEST_F(HostProgramTest, AProgramWithoutHostCodeSaysSo) {
  bundle.manifest.programs[0].host.reset();
  EXPECT_EQ(openMessage(), "program main has no host code: it is one graph of "
                           "segments; run it without --host");
}

TEST_F(HostProgramTest, AMissingLibraryIsNamed) {
  Expected<std::unique_ptr<HostProgram>> host = HostProgram::open(
      bundle, bundle.manifest.programs[0], "/nowhere/libKVCacheHost.so");
  ASSERT_FALSE(bool(host));
  EXPECT_NE(host.message().find("/nowhere/libKVCacheHost.so"),
            std::string::npos);
}

} // namespace
