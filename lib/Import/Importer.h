//===- Importer.h - What the parts of the importer share --------*- C++ -*-===//
//
// Everything is checked before anything is changed: a graph that is refused is
// left as it was.
//
//===----------------------------------------------------------------------===//

#ifndef KVCACHE_LIB_IMPORT_IMPORTER_H
#define KVCACHE_LIB_IMPORT_IMPORTER_H

#include "LatentAttention.h"
#include "kvcache/IR/ForeignSemantics.h"
#include "kvcache/IR/KVCache.h"
#include "kvcache/Import/ForeignOps.h"
#include "mlir/IR/BuiltinOps.h"
#include "mlir/IR/Dominance.h"
#include "llvm/ADT/MapVector.h"
#include <deque>

namespace mlir::kvcache {

/// The options of kvcache-import, parsed.
struct ImportSettings {
  ForeignOpTable table;
  Layout layout = Layout::NHD;
  llvm::SmallVector<int64_t, 3> strides; ///< of page, token and head
  /// Pages stay values.
  bool threaded = false;
  int64_t pageSize = 0, maxTokens = 0, maxSequences = 0,
          maxPagesPerSequence = 0, numPages = 0;
  std::string checkpoint;
};

/// An operand by its place: importing the op that makes its value replaces the
/// value.
struct OperandRef {
  OpOperand *operand = nullptr;

  operator Value() const { return operand ? operand->get() : Value(); }
  explicit operator bool() const { return operand; }
  /// A tensor of torch counts as the builtin one.
  Type getType() const {
    return getBuiltinTensorType(operand->get().getType());
  }
};

/// A foreign op whose operands have been found.
struct ImportedCall {
  ForeignCall call;
  const ForeignOpSpec *spec;
  std::string layer;
  OperandRef query, key, value, output, order, outputScale;
  OperandRef pages[2], pageTable, lengths, queryStart, slots;
  OperandRef sinks, alibiSlopes;
  /// Heads of rows that come flat, as [..., heads * head dim]; 0: rows are
  /// [tokens, heads, head dim].
  int64_t queryHeads = 0, kvHeads = 0;
  /// Of an attention with FP8 queries: the op that quantizes them.
  std::optional<ForeignCall> quantization;
  /// Of an attention that reads another layer's cache: its own layer.
  std::string reader;
  /// Of an MLA attention: its widths.
  std::optional<LatentAttention> widths;

  Operation *op() const { return call.getOperation(); }
  Location loc() const { return op()->getLoc(); }
  Attribute getAttr(ForeignAttributeRole role) const;
  /// What the attention writes, as the graph has it: an operand or a result.
  Value getOutput() const {
    return output ? Value(output) : Value(op()->getResult(0));
  }
  bool hasPages() const { return bool(pages[0]); }
  /// Those of keys and values, or the one of a latent cache.
  ArrayRef<OperandRef> getPages() const {
    return ArrayRef(pages).take_front(spec->isLatent ? 1 : 2);
  }
  bool updates() const {
    return spec->kind == ForeignOpKind::CacheUpdate ||
           spec->kind == ForeignOpKind::UpdateAndAttention;
  }
  bool attends() const {
    return spec->kind == ForeignOpKind::Attention ||
           spec->kind == ForeignOpKind::UpdateAndAttention;
  }
};

/// One layer of the graph and all its foreign ops, in program order.
struct Layer {
  SmallVector<ImportedCall *> updates, attentions, calculations;
  CacheType type;
  ImportedCall *shapeFrom = nullptr;
  std::string dtypeWord;
  CacheOp cache;
  /// Pages that are values say the element type, not the rows.
  bool hasPages = false;
};

/// Reads the foreign ops of a module and puts kvcache ops in their place. The
/// members are called in the order of their declaration.
class Importer {
public:
  Importer(ModuleOp module, ImportSettings settings)
      : module(module), settings(std::move(settings)) {}

  // FindOps.cpp
  LogicalResult collect();
  // ShareCaches.cpp
  /// Attention of an encoder has no cache: its op stays.
  void leaveEncoders();
  /// Layers that nothing writes read the cache that the model's config names.
  LogicalResult shareCaches();
  // CheckTypes.cpp
  LogicalResult checkAll();
  // DeclareCaches.cpp
  LogicalResult declareCaches();
  // RewriteOps.cpp
  void rewrite();

  bool hasCalls() const { return !calls.empty(); }
  bool hasAttention() const {
    return llvm::any_of(
        layers, [](auto &entry) { return !entry.second.attentions.empty(); });
  }
  /// Names of the ops that are understood, for messages.
  std::string listSupported() const;

  unsigned numCaches = 0, numWrites = 0, numAttentions = 0, numCalculations = 0;

private:
  ModuleOp module;
  ImportSettings settings;
  // Layers refer to calls by address.
  std::deque<ImportedCall> calls;
  llvm::MapVector<StringRef, Layer> layers;
  /// Tokens of a page that is a value; 0 if there is none.
  int64_t threadedPageSize = 0;
  /// Ops that quantize queries, and the layer of the queries.
  llvm::MapVector<Operation *, ImportedCall *> quantizations;
  /// The weight of a layer, in a function: one argument, however many
  /// attentions of MLA the layer has.
  llvm::DenseMap<std::pair<Operation *, Operation *>, Value> weights;
  /// Builtin tensors of values whose type is not builtin.
  llvm::DenseMap<Value, Value> casts;

  // FindOps.cpp
  LogicalResult findLayerName(ImportedCall &imported);
  LogicalResult findOperands(ImportedCall &imported);
  LogicalResult findLayerByRows(ImportedCall &imported);
  LogicalResult findQuantization(ImportedCall &imported);

  // CheckDataFlow.cpp
  LogicalResult checkResults(ImportedCall &imported);
  LogicalResult checkInPlace(const ForeignCall &call, Value output);
  LogicalResult checkOrder(Layer &layer, DominanceInfo &dominance);

  // CheckTypes.cpp
  LogicalResult checkPages(ImportedCall &imported, Layer &layer);
  FailureOr<CacheType> getRowType(ImportedCall &imported);
  FailureOr<CacheType> getLatentRowType(ImportedCall &imported);
  LogicalResult checkRows(ImportedCall &imported, Layer &layer);
  LogicalResult checkAttention(ImportedCall &imported, Layer &layer);
  LogicalResult checkLatentAttention(ImportedCall &imported, Layer &layer);
  LogicalResult checkNumbers(ImportedCall &imported);
  LogicalResult checkCalculation(ImportedCall &imported, Layer &layer);
  LogicalResult checkDtypeWord(ImportedCall &imported, Layer &layer);

  // RewriteOps.cpp
  Value toBuiltin(Value value);
  void quantizeQuery(const ImportedCall &attention, CacheOp cache);
  Value getWeight(const ImportedCall &imported, CacheOp cache);
  Operation *createLatentWrite(OpBuilder &builder, const ImportedCall &imported,
                               Value handle);
  /// The attention, and its result in the shape that the graph has.
  std::pair<Operation *, Value>
  createLatentAttention(OpBuilder &builder, const ImportedCall &imported,
                        CacheOp cache, Value handle);
  std::pair<Operation *, Value> createAttention(OpBuilder &builder,
                                                const ImportedCall &imported,
                                                CacheOp cache, Value handle);
  WithPagesOp createWithPages(OpBuilder &builder, const ImportedCall &imported,
                              CacheOp cache);
};

/// True if the attribute is missing or has a value that says nothing.
bool isUnset(const ForeignAttribute &attribute, Attribute attr);
/// True if both values are the same, or made by the same pure ops: graphs that
/// nobody has cleaned up reshape the keys once for each use.
bool isSameValue(Value a, Value b, unsigned depth = 0);
/// [tokens, heads, head dim] of an operand. Flat rows, [..., heads * head dim],
/// are cut into `heads`. Null if the type does not fit.
ShapedType getRows(Type type, int64_t heads);

} // namespace mlir::kvcache

#endif // KVCACHE_LIB_IMPORT_IMPORTER_H
