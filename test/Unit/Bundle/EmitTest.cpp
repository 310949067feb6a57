//===- EmitTest.cpp - Code in other forms ---------------------------------===//

#include "kvcache/Bundle/Emit.h"
#include "TestBundle.h"
#include "kvcache/PTX/Machine.h"
#include "kvcache/Support/Files.h"

#include <gtest/gtest.h>

#include <cstdlib>

using namespace kvcache;
using namespace kvcache::test;

namespace {

std::string simplePtx() {
  Expected<std::string> text =
      readFile(std::string(KVCACHE_BUNDLE_INPUTS) + "/simple.ptx");
  return text ? *text : "";
}

TEST(Emit, TheHeaderNamesBuffersSegmentsAndDigests) {
  Bundle bundle = makeBundle(simplePtx());
  std::string header = emitHeader(bundle.manifest, "my-model");
  const Manifest &manifest = bundle.manifest;
  for (const std::string &line :
       {std::string("#define MY_MODEL_MAX_TOKENS 8"),
        std::string("#define MY_MODEL_SEGMENT_MAIN_LAYER1 1"),
        std::string("#define MY_MODEL_BYTES_LAYER0_QUERY 4096"),
        "#define MY_MODEL_BUFFER_LAYER1_K_CACHE " +
            std::to_string(manifest.findBuffer("layer1.k_cache") -
                           manifest.buffers.data()),
        "#define MY_MODEL_CACHE_LAYER0 \"" + manifest.layers[0].compatibility +
            "\""})
    EXPECT_NE(header.find(line + "\n"), std::string::npos) << line;
}

TEST(Emit, AKernelAloneIsAModule) {
  std::string text = simplePtx();
  for (unsigned extra = 0; extra < 3; ++extra) {
    Expected<std::string> alone =
        extractKernel(text, "simple_attention", extra);
    ASSERT_TRUE(bool(alone)) << alone.message();
    Expected<ptx::Module> module = ptx::Module::parse(*alone);
    ASSERT_TRUE(bool(module)) << module.message();
    EXPECT_EQ(module->kernelNames(),
              std::vector<std::string>{"simple_attention"});
    const ptx::KernelInfo &kernel = *module->findKernel("simple_attention");
    EXPECT_EQ(kernel.parameters.size(), 15u + extra);
    if (extra)
      EXPECT_EQ(kernel.parameters.back().size, 8u);
  }
  EXPECT_FALSE(bool(extractKernel(text, "other")));
}

TEST(Emit, TritonsReleasesDifferInScratchPointers) {
  EXPECT_EQ(*tritonScratchPointers("3.2"), 0u);
  EXPECT_EQ(*tritonScratchPointers("3.3"), 1u);
  EXPECT_EQ(*tritonScratchPointers("3.4"), 1u);
  EXPECT_EQ(*tritonScratchPointers("3.5"), 2u);
  EXPECT_EQ(*tritonScratchPointers("3.10"), 2u);
  EXPECT_EQ(*tritonScratchPointers("4.0"), 2u);
  for (const char *wrong : {"", "3", "3.", "new", "3.x", "3.5.1"})
    EXPECT_FALSE(bool(tritonScratchPointers(wrong))) << wrong;
}

TEST(Emit, ScalesSurviveAsHexadecimalBits) {
  Bundle bundle = makeBundle(simplePtx());
  const Target &target = bundle.manifest.targets[0];
  Expected<std::map<std::string, std::string>> files =
      emitTriton(bundle, target, "3.5", nullptr);
  ASSERT_TRUE(bool(files)) << files.message();
  // Two kernels with their metadata and PTX, and four launches in C.
  EXPECT_EQ(files->size(), 2u * 2 + 4u * 2);
  char bits[16];
  std::snprintf(bits, sizeof(bits), "%08X", ScalarF32::of(kScale(1)).bits);
  int found = 0;
  for (const auto &[name, text] : *files) {
    if (name.rfind("main_layer1_write.", 0) != 0)
      continue;
    bool header = name.back() == 'h';
    EXPECT_NE(text.find(header ? std::string(":") + bits + "x"
                               : "uint32_t c5 = 0x" + std::string(bits) + "u;"),
              std::string::npos)
        << text;
    ++found;
  }
  EXPECT_EQ(found, 2);
}

class TritonKernelTest : public ::testing::Test {
protected:
  void SetUp() override {
    folder = testing::TempDir() + "kvcache-triton-XXXXXX";
    ASSERT_NE(::mkdtemp(folder.data()), nullptr);
    Expected<std::string> alone =
        extractKernel(simplePtx(), "simple_attention", 2);
    ASSERT_TRUE(bool(alone));
    std::string text = *alone;
    for (size_t at; (at = text.find("simple_attention")) != std::string::npos;)
      text.replace(at, 16, "foreign_kernel");
    write("foreign_kernel.ptx", text);
    write("foreign_kernel.json", metadata);
    write("mapping.json", mapping);
  }
  void TearDown() override {
    for (const char *name :
         {"foreign_kernel.ptx", "foreign_kernel.json", "mapping.json"})
      ::remove((folder + "/" + name).c_str());
    ::rmdir(folder.c_str());
  }
  void write(const std::string &name, const std::string &text) {
    ASSERT_FALSE(bool(writeFileAtomically(folder + "/" + name, text)));
  }
  std::string message(LaunchOp op = LaunchOp::PagedAttention) {
    Bundle bundle = makeBundle(simplePtx());
    Error error = useTritonKernel(bundle, op, folder);
    return error ? error.message() : "accepted";
  }

  std::string folder;
  std::string metadata =
      R"({"name": "foreign_kernel", "num_warps": 4, "shared": 1024,
          "target": {"backend": "cuda", "arch": 90, "warp_size": 32},
          "global_scratch_size": 0, "profile_scratch_size": 0})";
  std::string mapping =
      R"({"arguments": ["query", "k_cache", "v_cache", "page_table", "lengths",
           "query_start", "output", "null", {"i64": 0}, "null", "score_scale",
           "output_scale", {"i32": 8}, {"i32": 2}, {"i32": 2}, "null", "null"],
          "grid": ["query_heads", "max_tokens", 1]})";
};

TEST_F(TritonKernelTest, BecomesALaunchOfEveryLayer) {
  Bundle bundle = makeBundle(simplePtx());
  Launch before = bundle.manifest.targets[0].launches[3];
  ASSERT_FALSE(bool(useTritonKernel(bundle, LaunchOp::PagedAttention, folder)));
  const Launch &launch = bundle.manifest.targets[0].launches[3];
  EXPECT_EQ(launch.kernel, "foreign_kernel");
  EXPECT_EQ(launch.layer, "layer1");
  EXPECT_EQ(launch.sharedBytes, 1024);
  EXPECT_EQ(launch.grid, before.grid);
  ASSERT_EQ(launch.arguments.size(), 17u);
  EXPECT_EQ(launch.arguments[1].buffer, "layer1.k_cache");
  EXPECT_EQ(launch.arguments[10].f32.bits, before.arguments[10].f32.bits);
  EXPECT_EQ(launch.arguments[11].f32.bits, ScalarF32::of(vScale(1)).bits);
  Expected<ptx::Module> module =
      ptx::Module::parse(bundle.files["code/sm_90.ptx"]);
  ASSERT_TRUE(bool(module)) << module.message();
  EXPECT_TRUE(module->findKernel("foreign_kernel"));
  EXPECT_TRUE(module->findKernel("simple_write"));
}

TEST_F(TritonKernelTest, WhatDoesNotFitIsRefused) {
  EXPECT_EQ(message(), "accepted");
  write("mapping.json", R"({"arguments": ["keys"], "grid": [1, 1, 1]})");
  EXPECT_NE(message().find("arguments[0]: layer layer0 has no \"keys\""),
            std::string::npos)
      << message();
  write("mapping.json", R"({"arguments": [], "grid": ["lengths", 1, 1]})");
  EXPECT_NE(message().find("grid[0]: expected a number or a capacity"),
            std::string::npos)
      << message();
  write("mapping.json", R"({"arguments": []})");
  EXPECT_NE(message().find("expected \"arguments\", a list, and \"grid\""),
            std::string::npos);
  write("mapping.json", mapping);
  std::string other = metadata;
  other.replace(other.find("\"arch\": 90"), 10, "\"arch\": 80");
  write("foreign_kernel.json", other);
  EXPECT_NE(message().find("the kernel is for sm_80"), std::string::npos);
  other = metadata;
  other.replace(other.find("\"global_scratch_size\": 0"), 24,
                "\"global_scratch_size\": 8");
  write("foreign_kernel.json", other);
  EXPECT_NE(message().find("global_scratch_size: expected 0, found 8"),
            std::string::npos);
  write("foreign_kernel.json", "{}");
  EXPECT_NE(message().find("expected the members name and target"),
            std::string::npos);
}

} // namespace
