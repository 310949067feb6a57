//===- ForeignSemantics.cpp - What is known of ops of other dialects ------===//

#include "kvcache/IR/ForeignSemantics.h"
#include "llvm/ADT/STLExtras.h"

using namespace mlir;

/// The name of an op that is not registered, or, of a `torch.operator`, the
/// name of what it stands for; without ".default".
static StringRef getForeignName(Operation *op) {
  if (op->isRegistered())
    return "";
  StringRef name = op->getName().getStringRef();
  if (name == "torch.operator")
    if (auto target = op->getAttrOfType<StringAttr>("name"))
      name = target.getValue();
  name.consume_back(".default");
  return name;
}

bool mlir::kvcache::isFunctionalForeignOp(Operation *op) {
  StringRef name = getForeignName(op);
  if (name.starts_with("torch.constant.") ||
      name.starts_with("torch.prim.List"))
    return true;
  if (name.consume_front("torch.aten.")) {
    StringRef base = name.split('.').first;
    // Written in place, drawn at random, or there for their effect.
    return !base.ends_with("_") && !base.contains("rand") &&
           !base.contains("dropout") && !base.contains("bernoulli") &&
           !base.contains("multinomial") && !base.contains("assert");
  }
  if (name.consume_front("stablehlo."))
    return !llvm::is_contained(
        {"custom_call", "composite", "rng", "rng_bit_generator", "infeed",
         "outfeed", "send", "recv", "all_reduce", "all_gather", "all_to_all",
         "reduce_scatter", "collective_broadcast", "collective_permute",
         "optimization_barrier", "return"},
        name);
  return name == "shape.shape_of" || name == "shape.num_elements";
}

bool mlir::kvcache::isForeignView(Operation *op) {
  return llvm::is_contained(
      {"torch.aten.view", "torch.aten._unsafe_view", "torch.aten.reshape",
       "torch.aten.alias", "torch.aten.detach", "torch.aten.unsqueeze",
       "torch.aten.squeeze.dim", "torch.aten.flatten.using_ints",
       "stablehlo.reshape", "stablehlo.dynamic_reshape"},
      getForeignName(op));
}

bool mlir::kvcache::isForeignEmpty(Operation *op) {
  return llvm::is_contained({"torch.aten.empty.memory_format",
                             "torch.aten.empty_like", "torch.aten.new_empty",
                             "torch.aten.empty_strided"},
                            getForeignName(op));
}
