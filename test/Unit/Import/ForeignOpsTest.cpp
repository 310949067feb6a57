//===- ForeignOpsTest.cpp - The table of op names and operand roles -------===//

#include "kvcache/Import/ForeignOps.h"
#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "mlir/IR/BuiltinOps.h"
#include "mlir/Parser/Parser.h"
#include "gtest/gtest.h"

using namespace mlir;
using namespace mlir::kvcache;

namespace {

TEST(ForeignOpTable, KnowsTheOpsOfVLLM) {
  ForeignOpTable table = ForeignOpTable::getDefault();
  const ForeignOpSpec *attention =
      table.find("vllm.unified_attention_with_output");
  ASSERT_NE(attention, nullptr);
  EXPECT_EQ(attention->kind, ForeignOpKind::Attention);
  ASSERT_NE(attention->findOperand("output_block_scale"), nullptr);
  EXPECT_EQ(attention->findOperand("output_block_scale")->role,
            ForeignOperandRole::Refused);
  EXPECT_EQ(attention->findOperand("nothing"), nullptr);
  EXPECT_EQ(table.find("vllm.unified_mla_attention"), nullptr);
  const ForeignOpSpec *latent =
      table.find("vllm.unified_mla_attention_with_output");
  ASSERT_NE(latent, nullptr);
  EXPECT_TRUE(latent->isLatent);
  EXPECT_FALSE(attention->isLatent);
  EXPECT_EQ(latent->findOperand("q_dcp_replicated")->role,
            ForeignOperandRole::Refused);
}

TEST(ForeignOpTable, TakesMoreOps) {
  ForeignOpTable table = ForeignOpTable::getDefault();
  table.add({"my.attention",
             ForeignOpKind::Attention,
             {{"q", ForeignOperandRole::Query, true, ""},
              {"o", ForeignOperandRole::Output, true, ""}}});
  ASSERT_NE(table.find("my.attention"), nullptr);
  EXPECT_EQ(table.find("my.attention")->findOperand("q")->role,
            ForeignOperandRole::Query);
  // The last op of a name counts.
  size_t count = table.getSpecs().size();
  table.add({"my.attention",
             ForeignOpKind::Attention,
             {{"query", ForeignOperandRole::Query}}});
  EXPECT_EQ(table.getSpecs().size(), count);
  EXPECT_EQ(table.find("my.attention")->findOperand("q"), nullptr);
}

TEST(ForeignOpTable, TellsFamilies) {
  EXPECT_TRUE(
      ForeignOpTable::isOfKnownFamily("vllm.unified_mla_kv_cache_update"));
  EXPECT_TRUE(
      ForeignOpTable::isOfKnownFamily("_C_cache_ops.reshape_and_cache"));
  EXPECT_TRUE(ForeignOpTable::isOfKnownFamily("kvcache.anything"));
  EXPECT_FALSE(ForeignOpTable::isOfKnownFamily("vllm.all_reduce"));
  EXPECT_FALSE(ForeignOpTable::isOfKnownFamily("_C.rms_norm"));
  EXPECT_FALSE(ForeignOpTable::isOfKnownFamily("other.attention"));
}

class Matching : public testing::Test {
protected:
  Matching() : context(MLIRContext::Threading::DISABLED) {
    context.allowUnregisteredDialects();
    context.loadDialect<func::FuncDialect>();
  }

  /// The calls in `text`, in order.
  std::vector<ForeignCall> match(const char *text) {
    module = parseSourceString<ModuleOp>(text, &context);
    EXPECT_TRUE(module);
    std::vector<ForeignCall> calls;
    SymbolTableCollection symbols;
    module->walk([&](Operation *op) {
      if (auto call = ForeignCall::match(op, symbols))
        calls.push_back(*call);
    });
    return calls;
  }

  MLIRContext context;
  OwningOpRef<ModuleOp> module;
};

TEST_F(Matching, ReadsEveryForm) {
  auto calls = match(R"mlir(
    func.func @main(%x: tensor<4xf32>) {
      %0 = "vllm.op"(%x) {layer_name = "a", operand_names = ["x"], mutated = ["x"]} : (tensor<4xf32>) -> tensor<4xf32>
      %1 = func.call @decl(%x) : (tensor<4xf32>) -> tensor<4xf32>
      %2 = "torch.constant.str"() <{value = "c"}> : () -> !torch.str
      %3 = "torch.operator"(%x, %2) <{name = "torch.vllm.op"}> : (tensor<4xf32>, !torch.str) -> tensor<4xf32>
      %4 = "stablehlo.custom_call"(%x) <{call_target_name = "vllm.op", backend_config = {layer_name = "d", operand_names = ["x"]}}> : (tensor<4xf32>) -> tensor<4xf32>
      %5 = "torch.operator"(%x, %x, %2) <{name = "torch.vllm.op"}> : (tensor<4xf32>, tensor<4xf32>, !torch.str) -> tensor<4xf32>
      func.call @plain() : () -> ()
      return
    }
    func.func private @decl(tensor<4xf32>) -> tensor<4xf32> attributes {torch.op = "vllm::op", torch.attrs = {layer_name = "b"}, torch.operands = ["x"], torch.mutated = ["x"]}
    func.func private @plain()
  )mlir");
  ForeignOpSpec spec{"vllm.op",
                     ForeignOpKind::CacheUpdate,
                     {{"x", ForeignOperandRole::Key},
                      {"layer_name", ForeignOperandRole::Attribute}}};
  std::vector<std::string> layers;
  for (const ForeignCall &call : calls)
    if (call.getName() == "vllm.op") {
      layers.push_back(call.getLayerName(spec).value_or("none").str());
      EXPECT_EQ(call.getMutatedOperand(0), call.getOperation()->getOperand(0));
    }
  EXPECT_EQ(layers, (std::vector<std::string>{"a", "b", "c", "d", "none"}));
}

TEST_F(Matching, FindsMutatedOperandsByName) {
  auto calls = match(R"mlir(
    func.func @main(%x: tensor<4xf32>, %y: tensor<4xf32>, %z: tensor<2xf32>) {
      %0:2 = "vllm.op"(%x, %y, %z) {operand_names = ["x", "y", "z"], mutated = ["y", "x"]} : (tensor<4xf32>, tensor<4xf32>, tensor<2xf32>) -> (tensor<4xf32>, tensor<4xf32>)
      %1 = "vllm.op"(%z) {operand_names = ["z"], mutated = ["z"]} : (tensor<2xf32>) -> tensor<4xf32>
      return
    }
  )mlir");
  ASSERT_EQ(calls.size(), 2u);
  EXPECT_EQ(calls[0].getMutatedOperand(0),
            calls[0].getOperation()->getOperand(1));
  EXPECT_EQ(calls[0].getMutatedOperand(1),
            calls[0].getOperation()->getOperand(0));
  // Another type cannot be the operand.
  EXPECT_EQ(calls[1].getMutatedOperand(0), Value());
}

} // namespace
