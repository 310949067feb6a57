//===- ForeignOps.h - Custom ops of serving stacks in a graph ---*- C++ -*-===//
//
// Which ops are understood, and what each of their operands is. The importer
// has no other knowledge of op names.
//
//===----------------------------------------------------------------------===//

#ifndef KVCACHE_IMPORT_FOREIGNOPS_H
#define KVCACHE_IMPORT_FOREIGNOPS_H

#include "mlir/IR/BuiltinAttributes.h"
#include "mlir/IR/Operation.h"
#include "mlir/IR/SymbolTable.h"
#include "llvm/ADT/SmallVector.h"
#include <optional>
#include <string>

namespace mlir::kvcache {

/// What an understood op becomes.
enum class ForeignOpKind {
  CacheUpdate,    ///< kvcache.write
  Attention,      ///< kvcache.paged_attention
  CalculateScales ///< kvcache.calculate_scales
};

/// What an operand is to the op.
enum class ForeignOperandRole {
  Query,
  Key,
  Value,
  Output,
  Order,    ///< carries no data; orders the op after the cache update
  Replaced, ///< pages, slots or a scale: what the cache's declaration stands
            ///< for
  Refused   ///< known, but an op that has it cannot be imported
};

struct ForeignOperand {
  std::string name; ///< as in the op's `operand_names`
  ForeignOperandRole role;
  bool required = true;
  std::string refusal; ///< for Refused: why, and what would work
};

struct ForeignOpSpec {
  std::string name; ///< "vllm.unified_kv_cache_update"
  ForeignOpKind kind;
  SmallVector<ForeignOperand, 8> operands;
  /// False for an update that has the pages as operands: its layer is that of
  /// the attention op with the same keys and values.
  bool namesLayer = true;

  const ForeignOperand *findOperand(StringRef operandName) const;
};

/// The ops that import understands. Others can be added under their own names.
class ForeignOpTable {
public:
  /// The ops of vLLM: unified_kv_cache_update,
  /// unified_attention_with_output, reshape_and_cache_flash,
  /// maybe_calc_kv_scales.
  static ForeignOpTable getDefault();

  void add(ForeignOpSpec spec) { specs.push_back(std::move(spec)); }
  const ForeignOpSpec *find(StringRef name) const;
  ArrayRef<ForeignOpSpec> getSpecs() const { return specs; }

  /// True for names of ops that touch a KV cache, whether understood or not:
  /// those of `vllm` about attention, caches or scales, and all of
  /// `_C_cache_ops`.
  static bool isOfKnownFamily(StringRef name);

private:
  SmallVector<ForeignOpSpec, 4> specs;
};

/// A custom op of a serving stack, in whichever form the graph holds it.
class ForeignCall {
public:
  enum class Form {
    Op,            ///< `"vllm.name"(...)`
    Call,          ///< `func.call` of a private declaration with `torch.op`
    TorchOperator, ///< `"torch.operator"`, whose types are opaque here
    CustomCall     ///< `"stablehlo.custom_call"`
  };

  /// Nothing if `op` is not a custom op. Registered ops other than calls never
  /// are.
  static std::optional<ForeignCall> match(Operation *op,
                                          SymbolTableCollection &symbols);

  Operation *getOperation() const { return op; }
  Form getForm() const { return form; }
  /// "vllm.unified_kv_cache_update", however the form spells it.
  StringRef getName() const { return name; }
  /// The declaration that a `func.call` names, else null.
  Operation *getDeclaration() const { return declaration; }

  /// An attribute of the custom op (not of the op that carries it).
  Attribute getAttr(StringRef attrName) const;
  /// All of them.
  ArrayRef<NamedAttribute> getAttrs() const { return attributes; }
  /// Names of the operands; null if the graph has none.
  ArrayAttr getOperandNames() const { return operandNames; }
  /// Names of the operands that come back as results; null if not given.
  ArrayAttr getMutated() const { return mutated; }
  /// The layer's name, where it is a string; in torch form the value of the
  /// `torch.constant.str` operand.
  std::optional<StringRef> getLayerName() const;

  /// For ops whose results are their mutated operands: the operand that comes
  /// back as result `index`, or null if that cannot be told. By `mutated`, else
  /// by position. Types agree.
  Value getMutatedOperand(unsigned index) const;

private:
  Operation *op = nullptr, *declaration = nullptr;
  Form form = Form::Op;
  std::string name;
  ArrayRef<NamedAttribute> attributes;
  ArrayAttr operandNames, mutated;
};

} // namespace mlir::kvcache

#endif // KVCACHE_IMPORT_FOREIGNOPS_H
