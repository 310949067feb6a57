//===- FoldScaleTableTest.cpp - Folding scales that are in memory ---------===//

#include "kvcache/Checkpoint/ScaleTable.h"
#include "kvcache/Transforms/Passes.h"
#include "mlir/Parser/Parser.h"
#include "mlir/Pass/PassManager.h"
#include "gtest/gtest.h"

using namespace mlir;
using namespace mlir::kvcache;

namespace {

const char *const graph = R"mlir(
kvcache.scale_buffer @layer0.k : f32 dynamic
kvcache.scale_buffer @layer0.v : f32 dynamic
kvcache.cache_group @full page_size 16
kvcache.cache @layer0 of "a.layers.0.attn" in @full : 2 x 64 x f8E4M3FN scales(@layer0.k, @layer0.v)
)mlir";

::kvcache::ScaleTable makeTable(const std::string &layer) {
  ::kvcache::ScaleTable table;
  ::kvcache::LayerScales scales;
  scales.layer = layer;
  scales.cacheType = ::kvcache::CacheType::F8E4M3FN;
  scales[::kvcache::ScaleRole::K].value = 0.0625f;
  scales[::kvcache::ScaleRole::K].provenance =
      ::kvcache::ScaleProvenance::Override;
  scales[::kvcache::ScaleRole::V].value = 3;
  scales[::kvcache::ScaleRole::V].perHead = {2, 3};
  scales[::kvcache::ScaleRole::V].provenance =
      ::kvcache::ScaleProvenance::Checkpoint;
  scales[::kvcache::ScaleRole::V].key = "in memory";
  table.layers.push_back(scales);
  return table;
}

class FoldScaleTable : public testing::Test {
protected:
  FoldScaleTable() : context(MLIRContext::Threading::DISABLED) {
    context.loadDialect<KVCacheDialect, arith::ArithDialect>();
    context.getDiagEngine().registerHandler([this](Diagnostic &diagnostic) {
      messages += diagnostic.str() + "\n";
      return success();
    });
  }

  LogicalResult fold(::kvcache::ScaleTable table) {
    module = parseSourceString<ModuleOp>(graph, &context);
    EXPECT_TRUE(module);
    PassManager passes(&context);
    passes.addPass(createFoldCheckpointScalesPass(std::move(table)));
    return passes.run(*module);
  }

  ScaleAttr scaleOf(StringRef name) {
    return SymbolTable(*module).lookup<ScaleBufferOp>(name).getScale();
  }

  MLIRContext context;
  OwningOpRef<ModuleOp> module;
  std::string messages;
};

} // namespace

TEST_F(FoldScaleTable, TakesItsValues) {
  ASSERT_TRUE(succeeded(fold(makeTable("a.layers.0.attn")))) << messages;
  ScaleAttr k = scaleOf("layer0.k"), v = scaleOf("layer0.v");
  ASSERT_TRUE(k.isStatic() && v.isStatic());
  EXPECT_EQ(k.getValue(), 0.0625f);
  EXPECT_EQ(k.getProvenance(), Provenance::Override);
  ArrayRef<float> heads = v.getValues().asArrayRef();
  EXPECT_EQ(std::vector<float>(heads.begin(), heads.end()),
            (std::vector<float>{2, 3}));
  EXPECT_EQ(v.getKey(), "in memory");
}

TEST_F(FoldScaleTable, NeedsEveryLayer) {
  EXPECT_TRUE(failed(fold(makeTable("another"))));
  EXPECT_NE(messages.find("layer 'a.layers.0.attn' is not in the scale table"),
            std::string::npos)
      << messages;
}

TEST_F(FoldScaleTable, EmitsItsDiagnostics) {
  ::kvcache::ScaleTable table = makeTable("a.layers.0.attn");
  table.diagnostics.push_back({::kvcache::Severity::Error, "a.layers.0.attn",
                               "key", "file", "this cannot be used"});
  EXPECT_TRUE(failed(fold(std::move(table))));
  EXPECT_NE(messages.find("this cannot be used"), std::string::npos);
}

TEST_F(FoldScaleTable, ChecksItsValues) {
  ::kvcache::ScaleTable table = makeTable("a.layers.0.attn");
  table.layers[0][::kvcache::ScaleRole::V].perHead = {1, 2, 3};
  EXPECT_TRUE(failed(fold(std::move(table))));
  EXPECT_NE(messages.find("has 3 values; expected one, or one for each of the "
                          "2 KV heads"),
            std::string::npos)
      << messages;
  messages.clear();
  table = makeTable("a.layers.0.attn");
  table.layers[0][::kvcache::ScaleRole::K].value = 0;
  EXPECT_TRUE(failed(fold(std::move(table))));
  EXPECT_NE(messages.find("must be positive, finite and normal in f32"),
            std::string::npos)
      << messages;
}
