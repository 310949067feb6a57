//===- EquivalenceTest.cpp - Import leaves foreign IR as it was -----------===//
//
// Every op outside the serving stack's families must still be there after
// import, in its order, with the same attributes, types and regions, and with
// operands that correspond. Checked with MLIR's OperationEquivalence on the
// exported graphs.
//
//===----------------------------------------------------------------------===//

#include "kvcache/IR/KVCache.h"
#include "kvcache/Import/ForeignOps.h"
#include "kvcache/Import/Passes.h"
#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "mlir/IR/OperationSupport.h"
#include "mlir/IR/Verifier.h"
#include "mlir/InitAllDialects.h"
#include "mlir/Parser/Parser.h"
#include "mlir/Pass/PassManager.h"
#include "gtest/gtest-spi.h"
#include "gtest/gtest.h"

using namespace mlir;
using namespace mlir::kvcache;

namespace {

std::unique_ptr<MLIRContext> makeContext() {
  DialectRegistry registry;
  registerAllDialects(registry);
  registry.insert<KVCacheDialect>();
  auto context =
      std::make_unique<MLIRContext>(registry, MLIRContext::Threading::DISABLED);
  context->allowUnregisteredDialects();
  context->loadAllAvailableDialects();
  return context;
}

OwningOpRef<ModuleOp> parse(MLIRContext &context, const std::string &name) {
  return parseSourceFile<ModuleOp>(
      std::string(KVCACHE_TEST_INPUTS) + "/graphs/" + name, &context);
}

LogicalResult import(ModuleOp module) {
  PassManager passes(module.getContext());
  passes.addPass(createImport());
  return passes.run(module);
}

/// The ops of a function's body that are not part of the exchange.
SmallVector<Operation *> getForeignOps(func::FuncOp function) {
  SymbolTableCollection symbols;
  ForeignOpTable table = ForeignOpTable::getDefault();
  SmallVector<Operation *> ops;
  for (Operation &op : function.getBody().front()) {
    auto call = ForeignCall::match(&op, symbols);
    bool isImported = call && table.find(call->getName());
    if (!isImported && !isa<UnrealizedConversionCastOp>(op) &&
        !isa_and_nonnull<KVCacheDialect>(op.getDialect()))
      ops.push_back(&op);
  }
  return ops;
}

/// Maps each value of the old function to the new one that must stand for it,
/// and counts the differences.
class Comparison {
public:
  unsigned countDifferences(func::FuncOp before, func::FuncOp after) {
    EXPECT_EQ(before.getFunctionType(), after.getFunctionType());
    for (auto [oldArg, newArg] :
         llvm::zip_equal(before.getArguments(), after.getArguments()))
      map[oldArg] = newArg;
    mapAttentions(before, after);
    mapCalculations(before);
    SmallVector<Operation *> oldOps = getForeignOps(before),
                             newOps = getForeignOps(after);
    EXPECT_EQ(oldOps.size(), newOps.size());
    EXPECT_GT(oldOps.size(), 100u);
    unsigned differences = 0;
    for (auto [oldOp, newOp] : llvm::zip(oldOps, newOps)) {
      bool same = OperationEquivalence::isEquivalentTo(
          oldOp, newOp,
          [&](Value oldValue, Value newValue) {
            return success(lookup(oldValue) == stripCast(newValue));
          },
          [&](Value oldValue, Value newValue) { map[oldValue] = newValue; },
          OperationEquivalence::None);
      if (!same && ++differences == 1)
        ADD_FAILURE() << "first difference: " << debugString(oldOp)
                      << " became " << debugString(newOp);
      for (auto [oldResult, newResult] :
           llvm::zip(oldOp->getResults(), newOp->getResults()))
        map[oldResult] = newResult;
    }
    return differences;
  }

  /// The value that was cast to the type that the graph has, or `value`.
  static Value stripCast(Value value) {
    auto cast = value.getDefiningOp<UnrealizedConversionCastOp>();
    return cast ? cast.getInputs()[0] : value;
  }

  Value lookup(Value value) {
    auto it = map.find(value);
    if (it == map.end())
      return value;
    return it->second;
  }

private:
  llvm::DenseMap<Value, Value> map;

  static std::string debugString(Operation *op) {
    std::string text;
    llvm::raw_string_ostream os(text);
    op->print(os, OpPrintingFlags().skipRegions().useLocalScope());
    return text;
  }

  static SmallVector<ForeignCall> getCalls(func::FuncOp function,
                                           StringRef name) {
    SymbolTableCollection symbols;
    SmallVector<ForeignCall> calls;
    function.walk([&](Operation *op) {
      auto call = ForeignCall::match(op, symbols);
      if (call && call->getName() == name)
        calls.push_back(*call);
    });
    return calls;
  }

  /// The n-th attention stands for the n-th serving op.
  void mapAttentions(func::FuncOp before, func::FuncOp after) {
    SmallVector<PagedAttentionOp> attentions;
    after.walk([&](PagedAttentionOp op) { attentions.push_back(op); });
    auto calls = getCalls(before, "vllm.unified_attention_with_output");
    ASSERT_EQ(calls.size(), attentions.size());
    for (auto [call, attention] : llvm::zip_equal(calls, attentions))
      map[call.getOperation()->getResult(0)] = attention.getResults()[0];
  }

  /// Results of the scale calculation are its operands: the old graph is
  /// compared as if they were used in their place.
  void mapCalculations(func::FuncOp before) {
    for (const ForeignCall &call :
         getCalls(before, "vllm.maybe_calc_kv_scales"))
      for (OpResult result : call.getOperation()->getResults())
        result.replaceAllUsesWith(
            call.getOperation()->getOperand(result.getResultNumber()));
  }
};

class Equivalence : public testing::TestWithParam<const char *> {};

TEST_P(Equivalence, ForeignOpsStay) {
  std::unique_ptr<MLIRContext> context = makeContext();
  OwningOpRef<ModuleOp> before = parse(*context, GetParam()),
                        after = parse(*context, GetParam());
  ASSERT_TRUE(before && after);
  ASSERT_TRUE(succeeded(import(*after)));
  ASSERT_TRUE(succeeded(verify(*after)));
  auto oldMain = before->lookupSymbol<func::FuncOp>("main");
  auto newMain = after->lookupSymbol<func::FuncOp>("main");
  ASSERT_TRUE(oldMain && newMain);
  EXPECT_EQ(Comparison().countDifferences(oldMain, newMain), 0u);

  // Each serving op became exactly one op.
  unsigned writes = 0, attentions = 0, calculations = 0;
  after->walk([&](Operation *op) {
    writes += isa<WriteOp>(op);
    attentions += isa<PagedAttentionOp>(op);
    calculations += isa<CalculateScalesOp>(op);
    EXPECT_FALSE(op->getName().getStringRef().starts_with("vllm."));
  });
  StringRef name = GetParam();
  EXPECT_EQ(writes, name.starts_with("hybrid") ? 1u : 2u);
  EXPECT_EQ(attentions, writes);
  EXPECT_EQ(calculations, name.starts_with("llama_legacy") ? 2u : 0u);
}

INSTANTIATE_TEST_SUITE_P(
    Graphs, Equivalence,
    testing::Values("llama/ops.linalg.dyn.mlir", "llama/ops.linalg.st.mlir",
                    "llama/call.linalg.dyn.mlir",
                    "llama/fun.torch.generic.dyn.mlir",
                    "llama/customcall.stablehlo.generic.dyn.mlir",
                    "llama_legacy/fun.torch.generic.dyn.mlir",
                    "llama_legacy/ops.linalg.dyn.mlir",
                    "llama_legacy/ops.linalg.st.mlir",
                    "llama_legacy/call.linalg.dyn.mlir",
                    "hybrid/ops.linalg.dyn.mlir", "hybrid/ops.linalg.st.mlir"));

// The comparison itself notices a changed attribute, operand and op.
TEST(EquivalenceOfFunctions, NoticesChanges) {
  std::unique_ptr<MLIRContext> context = makeContext();
  auto countWith = [&](llvm::function_ref<void(func::FuncOp)> change) {
    OwningOpRef<ModuleOp> before = parse(*context, "hybrid/ops.linalg.st.mlir");
    OwningOpRef<ModuleOp> after = parse(*context, "hybrid/ops.linalg.st.mlir");
    EXPECT_TRUE(succeeded(import(*after)));
    change(after->lookupSymbol<func::FuncOp>("main"));
    unsigned differences = 0;
    testing::TestPartResultArray failures;
    {
      testing::ScopedFakeTestPartResultReporter reporter(
          testing::ScopedFakeTestPartResultReporter::INTERCEPT_ALL_THREADS,
          &failures);
      differences = Comparison().countDifferences(
          before->lookupSymbol<func::FuncOp>("main"),
          after->lookupSymbol<func::FuncOp>("main"));
    }
    return differences + unsigned(failures.size());
  };
  EXPECT_EQ(countWith([](func::FuncOp) {}), 0u);
  EXPECT_GT(countWith([](func::FuncOp function) {
              getForeignOps(function)[50]->setAttr(
                  "x", UnitAttr::get(function.getContext()));
            }),
            0u);
  EXPECT_GT(countWith([](func::FuncOp function) {
              for (Operation *op : getForeignOps(function))
                if (op->getName().getStringRef() == "linalg.transpose") {
                  op->setOperand(0, function.getArgument(0));
                  return;
                }
            }),
            0u);
  EXPECT_GT(countWith([](func::FuncOp function) {
              for (Operation *op : getForeignOps(function))
                if (op->use_empty() && op->getNumResults() == 0) {
                  op->erase();
                  return;
                }
            }),
            0u);
}

} // namespace
