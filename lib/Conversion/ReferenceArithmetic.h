//===- ReferenceArithmetic.h - Exact narrow float conversions --*- C++ -*-===//

#ifndef KVCACHE_LIB_CONVERSION_REFERENCEARITHMETIC_H
#define KVCACHE_LIB_CONVERSION_REFERENCEARITHMETIC_H

#include "mlir/IR/BuiltinOps.h"
#include "mlir/IR/ImplicitLocOpBuilder.h"

namespace mlir::kvcache {

/// Emits conversions between f64 and the float types of caches and
/// activations. From 8 bits, and to 8 and 16 bits, they are calls of private
/// functions of integer arithmetic, which the first use adds to the module.
class ReferenceArithmetic {
public:
  explicit ReferenceArithmetic(ModuleOp module) : module(module) {}

  /// The exact value of a float of any type of at most 64 bits, as f64.
  Value widen(ImplicitLocOpBuilder &builder, Value value);

  /// An f64 rounded once, to nearest even. Beyond the largest finite value the
  /// result is infinity, and NaN where the type has none.
  Value round(ImplicitLocOpBuilder &builder, Value value, FloatType type);

private:
  /// The name of the function, which is made if the module has none.
  StringAttr
  getFunction(StringRef name, Type input, Type result,
              function_ref<Value(ImplicitLocOpBuilder &, Value)> body);

  ModuleOp module;
};

} // namespace mlir::kvcache

#endif // KVCACHE_LIB_CONVERSION_REFERENCEARITHMETIC_H
