//===- DynamicScaleRemainders.h - Traces of run-time scales -----*- C++ -*-===//
//
// What belonged to the calculation of scales at run time: the one list of
// names, shared by the pass that removes it and by the gate that proves it
// gone.
//
//===----------------------------------------------------------------------===//

#ifndef KVCACHE_LIB_TRANSFORMS_DYNAMICSCALEREMAINDERS_H
#define KVCACHE_LIB_TRANSFORMS_DYNAMICSCALEREMAINDERS_H

#include "kvcache/IR/KVCache.h"
#include "kvcache/Import/ForeignOps.h"
#include "mlir/IR/BuiltinOps.h"

namespace mlir::kvcache {

/// True if a word of `text` is a name of the old path, such as
/// "vllm.calculate_kv_scales", "layers.0.attn._q_range" or
/// "maybe_calc_kv_scales.3". Words end at whatever is no letter, digit or
/// underscore ("top_k_range" is another word); hyphens count as underscores.
bool namesDynamicScales(StringRef text);

/// True for `calculate_kv_scales` and `calc_kv_scales`: the option that
/// switched it on.
bool isDynamicScaleOption(StringRef name);

/// True for names of attributes that go: those above, and
/// `cudagraph_downgrade`.
bool isDynamicScaleAttr(StringRef name);

/// A foreign op, or a call of a function, that calculates scales.
std::optional<ForeignCall>
matchDynamicScaleCall(Operation *op, SymbolTableCollection &symbols);

/// True if a string in `attr`, at any depth, is such a name.
bool holdsDynamicScaleName(Attribute attr);

/// Lists in which position has a meaning.
bool isPositionalList(StringRef attrName);

/// One trace, with the reason why it is one.
struct DynamicScaleRemainder {
  Operation *op;
  std::string what;
};

/// Ops, symbols, attributes and strings of the old path.
void findDynamicScaleRemainders(
    ModuleOp module, SmallVectorImpl<DynamicScaleRemainder> &remainders);

} // namespace mlir::kvcache

#endif // KVCACHE_LIB_TRANSFORMS_DYNAMICSCALEREMAINDERS_H
