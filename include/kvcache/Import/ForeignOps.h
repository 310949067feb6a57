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
#include "llvm/Support/Error.h"
#include <optional>
#include <string>

namespace mlir::kvcache {

/// What an understood op becomes.
enum class ForeignOpKind {
  CacheUpdate,        ///< kvcache.write or kvcache.write_latent
  Attention,          ///< kvcache.paged_attention or kvcache.mla_attention
  UpdateAndAttention, ///< both, in this order
  CalculateScales,    ///< kvcache.calculate_scales
  QuantizeQuery       ///< kvcache.quantize, where an attention has the codes
};

/// What an operand is to the op.
enum class ForeignOperandRole {
  Query,
  Key,
  Value,
  Output,
  Order,       ///< carries no data; orders the op after the cache update
  Replaced,    ///< pages, slots or a scale: what the cache's declaration stands
               ///< for
  OutputScale, ///< of codes that the op writes; a scale of the layer stands
               ///< for it
  KeyPages,    ///< pages and tables as values: replaced, or threaded through
  ValuePages,
  PageTable,
  Lengths,
  QueryStart,
  Slots,
  Sinks,       ///< one logit for each query head
  ALiBiSlopes, ///< one slope for each query head
  Refused,     ///< known, but an op that has it cannot be imported
  Attribute ///< a constant in torch form, elsewhere an attribute of this name
};

struct ForeignOperand {
  std::string name; ///< as in the op's `operand_names`
  ForeignOperandRole role;
  bool required = true;
  std::string refusal = ""; ///< for Refused: why, and what would work
};

/// What an attribute is to the op.
enum class ForeignAttributeRole {
  LayerName,
  CacheDtype, ///< a word such as "fp8"
  SoftmaxScale,
  SoftCap,
  SlidingWindow, ///< keys that a query sees, its own included
  Window,        ///< keys before the query
  QueryHeads,    ///< rows are [..., heads * head dim]; so many query heads
  KVHeads,       ///< and so many KV heads
  Refused,       ///< anything but `unset` cannot be imported
  Ignored        ///< is not kept on the imported op
};

struct ForeignAttribute {
  std::string name;
  ForeignAttributeRole role;
  /// Numbers and words that say nothing: as if the attribute were not there.
  SmallVector<std::string, 0> unset = {};
  std::string refusal = ""; ///< for Refused
};

struct ForeignOpSpec {
  std::string name; ///< "vllm.unified_kv_cache_update"
  ForeignOpKind kind;
  /// In the order of the op's schema: what `torch.operator` has no names for.
  SmallVector<ForeignOperand, 8> operands;
  /// Operands whose new values the results are, in order; an attention without
  /// an output operand returns "output".
  SmallVector<std::string, 3> results = {};
  /// False for an update that has the pages as operands: its layer is that of
  /// the attention op with the same keys and values.
  bool namesLayer = true;
  /// Attributes under names of the op's own. Roles that are not listed have
  /// `layer_name`, `kv_cache_dtype`, `softmax_scale`, `soft_cap` and
  /// `sliding_window`.
  SmallVector<ForeignAttribute, 4> attributes = {};
  /// The layer's name with "{index}" for the first number in what the graph
  /// calls it; empty: as the graph calls it.
  std::string layerPattern = "";
  /// Operands without `operand_names` are found by position.
  bool positional = false;
  /// MLA: key and value are the latent and the rotary part of one row.
  bool isLatent = false;

  const ForeignOperand *findOperand(StringRef operandName) const;
  /// What the op calls the attribute of this role; empty if it has none.
  StringRef getAttributeName(ForeignAttributeRole role) const;
  /// Names that operands may have, for messages.
  std::string listOperands() const;
};

/// The ops that import understands. Others can be added under their own names.
class ForeignOpTable {
public:
  /// The ops of vLLM: unified_kv_cache_update,
  /// unified_attention_with_output, their MLA forms, reshape_and_cache_flash,
  /// static_scaled_fp8_quant, maybe_calc_kv_scales; and the composites
  /// kvcache.write and kvcache.paged_attention.
  static ForeignOpTable getDefault();

  /// Replaces an op of the same name.
  void add(ForeignOpSpec spec);
  /// Adds the ops of a JSON file, whose format docs/op-table.md describes. The
  /// error names the file and the line or the key.
  llvm::Error addFile(StringRef path);
  const ForeignOpSpec *find(StringRef name) const;
  ArrayRef<ForeignOpSpec> getSpecs() const { return specs; }

  /// True for names of ops that touch a KV cache, whether understood or not:
  /// those of `vllm` about attention, caches or scales, all of
  /// `_C_cache_ops`, and all of `kvcache` (composites).
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
    CustomCall,    ///< `"stablehlo.custom_call"`
    Composite,     ///< `"stablehlo.composite"`
    OnnxCustom     ///< `"onnx.Custom"`
  };

  /// Nothing if `op` is not a custom op. Registered ops other than calls never
  /// are.
  static std::optional<ForeignCall> match(Operation *op,
                                          SymbolTableCollection &symbols);

  /// Finds out what the operands are: by the names in the graph, else, in torch
  /// form and where `spec` allows it, by their position. Operands that are
  /// `none` are absent; constants that are attributes of the schema become
  /// attributes.
  LogicalResult readOperands(const ForeignOpSpec &spec,
                             function_ref<InFlightDiagnostic()> emitError);

  Operation *getOperation() const { return op; }
  Form getForm() const { return form; }
  /// "vllm.unified_kv_cache_update", however the form spells it.
  StringRef getName() const { return name; }
  /// The declaration that a `func.call` names or the decomposition of a
  /// composite, else null.
  Operation *getDeclaration() const { return declaration; }

  /// An attribute of the custom op (not of the op that carries it).
  Attribute getAttr(StringRef attrName) const;
  /// All of them.
  ArrayRef<NamedAttribute> getAttrs() const { return attributes; }
  /// The operands that are there, with their names. Empty before
  /// readOperands().
  ArrayRef<std::pair<StringAttr, OpOperand *>> getOperands() const {
    return operands;
  }
  /// The operand of this name, or null.
  OpOperand *getOperand(StringRef operandName) const;
  /// The layer's name, where it is a string; in torch form that of the operand
  /// which `operand_names`, or else the schema, names so.
  std::optional<StringRef> getLayerName(const ForeignOpSpec &spec) const;

  /// The operand whose new value result `index` is, or null if that cannot be
  /// told: by `mutated`, by `output_operand_aliases`, else, after
  /// readOperands(), by the schema, else by position. Types agree.
  Value getMutatedOperand(unsigned index) const;

private:
  Operation *op = nullptr, *declaration = nullptr;
  Form form = Form::Op;
  std::string name;
  SmallVector<NamedAttribute, 0> attributes;
  ArrayAttr operandNames, mutated;
  SmallVector<std::pair<StringAttr, OpOperand *>, 0> operands;
  const ForeignOpSpec *schema = nullptr;
};

/// `tensor<?x64xbf16>` of `!torch.vtensor<[?,64],bf16>`; other types as they
/// are. Integers become signless.
Type getBuiltinTensorType(Type type);

} // namespace mlir::kvcache

#endif // KVCACHE_IMPORT_FOREIGNOPS_H
