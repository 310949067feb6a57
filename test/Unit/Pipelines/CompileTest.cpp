//===- CompileTest.cpp - A graph to a bundle in one call ------------------===//

#include "kvcache/Pipelines/Compile.h"
#include "kvcache/InitAll.h"
#include "mlir/Dialect/Bufferization/IR/Bufferization.h"
#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "mlir/Parser/Parser.h"

#include <gtest/gtest.h>

#include <thread>

using namespace mlir;
using namespace mlir::kvcache;
namespace bundle = ::kvcache;

namespace {

/// A graph of so many layers, each a write and an attention whose queries are
/// the result of the layer before; scales start at `scale`.
std::string graph(int layers, int headDim, double scale) {
  std::string text, body, query = "%q", dim = std::to_string(headDim);
  std::string rows = "tensor<?x2x" + dim + "xbf16>",
              queries = "tensor<?x4x" + dim + "xbf16>",
              cache = "!kvcache.cache<2 x " + dim + " x f8E4M3FN>";
  for (int i = 0; i < layers; ++i) {
    std::string n = std::to_string(i), layer = "layer" + n;
    for (const char *role : {"k", "v"})
      text += "kvcache.scale_buffer @" + layer + "." + role +
              " : f32 = " + std::to_string(scale * (i + 1)) + " from default\n";
    text += "kvcache.cache @" + layer + " of \"" + layer +
            "\" in @full : 2 x " + dim + " x f8E4M3FN scales(@" + layer +
            ".k, @" + layer + ".v)\n";
    body += "  %c" + n + " = kvcache.get_cache @" + layer + " : " + cache +
            "\n  kvcache.write %k, %v to %c" + n + " : " + rows + ", " + rows +
            ", " + cache + "\n  %o" + n + " = kvcache.paged_attention " +
            query + " over %c" + n +
            " outs(%o) {softmax_scale = 0.125 : f64} : " + queries + ", " +
            cache + " -> " + queries + "\n";
    query = "%o" + n;
  }
  return "kvcache.cache_group @full page_size 16\n" + text +
         "func.func @main(%q: " + queries + ", %k: " + rows + ", %v: " + rows +
         ", %o: " + queries + ") -> " + queries + " {\n" + body + "  return " +
         query + " : " + queries + "\n}\n";
}

/// What `compile` makes of a graph, in a context of its own.
FailureOr<bundle::Bundle> build(const std::string &text, KernelCache *cache,
                                std::vector<std::string> targets = {"sm_90"}) {
  DialectRegistry registry;
  registerKVCacheDialect(registry);
  registerKVCacheTranslations(registry);
  registry.insert<bufferization::BufferizationDialect, func::FuncDialect>();
  MLIRContext context(registry, MLIRContext::Threading::DISABLED);
  OwningOpRef<ModuleOp> module = parseSourceString<ModuleOp>(text, &context);
  if (!module)
    return failure();
  CompileOptions options;
  options.kernelLibrary = KVCACHE_KERNELS;
  options.maxTokens = 2;
  options.maxSequences = 2;
  options.maxPagesPerSequence = 2;
  options.window = 0;
  options.softCap = 0;
  BundleOptions bundleOptions;
  for (const std::string &target : targets)
    bundleOptions.targets.push_back(target);
  bundleOptions.cache = cache;
  return compile(*module, options, bundleOptions);
}

std::map<std::string, std::string> files(const bundle::Bundle &built) {
  std::map<std::string, std::string> result = built.files;
  result["manifest.json"] = bundle::writeManifest(built.manifest);
  return result;
}

TEST(CompileTest, ASecondGraphOfTheSameStructureCompilesNoKernel) {
  KernelCache cache;
  ASSERT_TRUE(succeeded(build(graph(1, 64, 0.01), &cache)));
  EXPECT_EQ(cache.statistics().compiled, 2u); // write and attention
  EXPECT_EQ(cache.statistics().reused, 0u);

  // Other scales, more layers.
  auto more = build(graph(3, 64, 0.02), &cache);
  ASSERT_TRUE(succeeded(more));
  EXPECT_EQ(cache.statistics().compiled, 2u);
  EXPECT_EQ(cache.statistics().reused, 2u);
  EXPECT_EQ(more->manifest.layers.size(), 3u);
  // The cache leaves no trace in the bundle.
  auto alone = build(graph(3, 64, 0.02), nullptr);
  ASSERT_TRUE(succeeded(alone));
  EXPECT_EQ(files(*more), files(*alone));

  // Another head dim and another chip are other structures.
  ASSERT_TRUE(succeeded(build(graph(1, 128, 0.01), &cache)));
  EXPECT_EQ(cache.statistics().compiled, 4u);
  ASSERT_TRUE(succeeded(build(graph(1, 64, 0.01), &cache, {"sm_80", "sm_90"})));
  EXPECT_EQ(cache.statistics().compiled, 6u);
  EXPECT_EQ(cache.statistics().assembled, 0u); // without ptxas
}

TEST(CompileTest, CompilationsAtOnceShareTheirKernels) {
  KernelCache cache;
  std::vector<std::map<std::string, std::string>> built(4);
  std::vector<std::thread> threads;
  for (size_t i = 0; i < built.size(); ++i)
    threads.emplace_back([&, i] {
      auto result = build(graph(1 + int(i) % 2, 64, 0.01), &cache);
      if (succeeded(result))
        built[i] = files(*result);
    });
  for (std::thread &thread : threads)
    thread.join();
  EXPECT_EQ(cache.statistics().compiled, 2u);
  EXPECT_EQ(cache.statistics().reused, 6u);
  for (size_t i = 0; i < built.size(); ++i) {
    auto alone = build(graph(1 + int(i) % 2, 64, 0.01), nullptr);
    ASSERT_TRUE(succeeded(alone));
    EXPECT_EQ(built[i], files(*alone)) << i;
  }
}

TEST(CompileTest, AFailureIsNotKept) {
  KernelCache cache;
  std::string text = graph(1, 64, 0.01);
  // A head dim that has no kernel.
  EXPECT_TRUE(failed(build(graph(1, 72, 0.01), &cache)));
  EXPECT_EQ(cache.statistics().compiled, 0u);
  EXPECT_TRUE(succeeded(build(text, &cache)));
}

} // namespace
