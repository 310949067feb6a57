//===- RewriteOps.cpp - Foreign ops become kvcache ops --------------------===//

#include "Importer.h"
#include "kvcache/Checkpoint/ScaleTable.h"
#include "kvcache/IR/SymbolLookup.h"
#include "mlir/Dialect/Arith/IR/Arith.h"
#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "mlir/Dialect/Linalg/IR/Linalg.h"
#include "mlir/Dialect/Tensor/IR/Tensor.h"
#include "llvm/ADT/StringExtras.h"

using namespace mlir;
using namespace mlir::kvcache;

/// What the importer has understood. Other attributes of the op stay on it.
static bool isConsumedAttr(const ForeignOpSpec &spec, StringRef name) {
  if (llvm::is_contained({"layer_name", "operand_names", "mutated",
                          "kv_cache_dtype", "softmax_scale", "soft_cap",
                          "sliding_window", "callee"},
                         name))
    return true;
  const ForeignOperand *operand = spec.findOperand(name);
  return (operand && operand->role == ForeignOperandRole::Attribute) ||
         llvm::any_of(spec.attributes, [&](const ForeignAttribute &attribute) {
           return attribute.name == name;
         });
}

static void keepOtherAttrs(const ImportedCall &imported, Operation *created) {
  SmallVector<NamedAttribute> attrs(imported.call.getAttrs());
  if (imported.call.getForm() == ForeignCall::Form::Call)
    llvm::append_range(attrs, imported.op()->getAttrs());
  for (NamedAttribute attr : attrs)
    if (!isConsumedAttr(*imported.spec, attr.getName()) &&
        !created->hasAttr(attr.getName()))
      created->setAttr(attr.getName(), attr.getValue());
}

static FlatSymbolRefAttr getScaleName(CacheOp cache, StringRef suffix) {
  return FlatSymbolRefAttr::get(cache.getContext(),
                                (cache.getSymName() + suffix).str());
}

/// [tokens, heads, head dim] of flat rows; other rows as they are.
static Value makeRows(OpBuilder &builder, Location loc, Value rows,
                      int64_t heads) {
  if (!heads)
    return rows;
  auto type = cast<RankedTensorType>(rows.getType());
  int64_t rank = type.getRank();
  if (rank > 2) {
    SmallVector<ReassociationIndices> merge(2);
    llvm::append_range(merge[0], llvm::seq<int64_t>(0, rank - 1));
    merge[1].push_back(rank - 1);
    rows = tensor::CollapseShapeOp::create(builder, loc, rows, merge);
  }
  ShapedType cut = getRows(type, heads);
  SmallVector<OpFoldResult> sizes = {
      tensor::getMixedSize(builder, loc, rows, 0)};
  for (int64_t size : cut.getShape().drop_front())
    sizes.push_back(builder.getIndexAttr(size));
  return tensor::ExpandShapeOp::create(
      builder, loc, cut, rows, ArrayRef<ReassociationIndices>{{0}, {1, 2}},
      sizes);
}

/// The inverse: rows in the shape of `type`, whose tokens are those of `like`.
static Value makeFlat(OpBuilder &builder, Location loc, Value rows, Value like,
                      Type type) {
  rows = tensor::CollapseShapeOp::create(
      builder, loc, rows, ArrayRef<ReassociationIndices>{{0}, {1, 2}});
  auto flat = cast<RankedTensorType>(type);
  int64_t rank = flat.getRank();
  if (rank == 2)
    return rows;
  SmallVector<ReassociationIndices> split(2);
  llvm::append_range(split[0], llvm::seq<int64_t>(0, rank - 1));
  split[1].push_back(rank - 1);
  SmallVector<OpFoldResult> sizes = tensor::getMixedSizes(builder, loc, like);
  sizes.back() = builder.getIndexAttr(flat.getShape().back());
  return tensor::ExpandShapeOp::create(builder, loc, flat, rows, split, sizes);
}

Value Importer::toBuiltin(Value value) {
  Type type = getBuiltinTensorType(value.getType());
  if (type == value.getType())
    return value;
  Value &cast = casts[value];
  if (!cast) {
    // Beside the definition, so that it separates no cache ops.
    OpBuilder builder(module.getContext());
    builder.setInsertionPointAfterValue(value);
    cast =
        UnrealizedConversionCastOp::create(builder, value.getLoc(), type, value)
            .getResult(0);
  }
  return cast;
}

/// `value` takes the place of what `op` computes or writes in place.
static void replaceOutput(OpBuilder &builder, Operation *op, Value output,
                          Value value) {
  Value old = op->getNumResults() ? Value(op->getResult(0)) : output;
  if (old.getType() != value.getType())
    value = UnrealizedConversionCastOp::create(builder, op->getLoc(),
                                               old.getType(), value)
                .getResult(0);
  if (op->getNumResults())
    return old.replaceAllUsesWith(value);
  old.replaceUsesWithIf(value, [&](OpOperand &use) {
    Operation *user = op->getBlock()->findAncestorOpInBlock(*use.getOwner());
    return user && op->isBeforeInBlock(user);
  });
}

/// The quantization of a query by the scale that the checkpoint gives.
void Importer::quantizeQuery(const ImportedCall &attention, CacheOp cache) {
  const ForeignCall &call = *attention.quantization;
  const ForeignOpSpec *spec = settings.table.find(call.getName());
  Operation *op = call.getOperation();
  Value input, result;
  for (auto [attr, operand] : call.getOperands()) {
    ForeignOperandRole role = spec->findOperand(attr.getValue())->role;
    if (role == ForeignOperandRole::Query)
      input = operand->get();
    if (role == ForeignOperandRole::Output)
      result = operand->get();
  }
  OpBuilder builder(op);
  Value scale = LoadScaleOp::create(builder, op->getLoc(), builder.getF32Type(),
                                    getScaleName(cache, ".q"));
  Value codes = QuantizeOp::create(builder, op->getLoc(),
                                   getBuiltinTensorType(result.getType()),
                                   toBuiltin(input), scale, /*out=*/Value())
                    .getResult();
  op->emitRemark() << "layer '" << attention.layer
                   << "': the q scale that the graph passes as an argument "
                      "stays unused; @"
                   << getScaleName(cache, ".q").getValue()
                   << " takes its place";
  replaceOutput(builder, op, result, codes);
}

static FloatAttr getNumber(OpBuilder &builder, const ImportedCall &imported,
                           ForeignAttributeRole role) {
  auto attr = dyn_cast_or_null<FloatAttr>(imported.getAttr(role));
  return attr ? builder.getF64FloatAttr(attr.getValueAsDouble()) : FloatAttr();
}

Value Importer::getWeight(const ImportedCall &imported, CacheOp cache) {
  auto function = imported.op()->getParentOfType<func::FuncOp>();
  Value &weight = weights[{function, cache}];
  if (weight)
    return weight;
  unsigned index = function.getNumArguments();
  RankedTensorType type = imported.widths->getWeightType();
  std::string name =
      ::kvcache::attentionModule(imported.layer) + ".kv_b_proj.weight";
  Builder builder(module.getContext());
  (void)function.insertArgument(index, type,
                                builder.getDictionaryAttr(builder.getNamedAttr(
                                    kWeight, builder.getStringAttr(name))),
                                imported.loc());
  imported.op()->emitRemark()
      << "layer '" << imported.layer << "': argument " << index << " of @"
      << function.getSymName() << " is new, the weight '" << name << "' ("
      << type
      << "), by which queries and outputs are multiplied around the attention";
  return weight = function.getArgument(index);
}

Operation *Importer::createLatentWrite(OpBuilder &builder,
                                       const ImportedCall &imported,
                                       Value handle) {
  Location loc = imported.loc();
  Value latent = toBuiltin(imported.key), rope = toBuiltin(imported.value);
  if (cast<RankedTensorType>(rope.getType()).getRank() == 3)
    rope = tensor::CollapseShapeOp::create(
        builder, loc, rope, ArrayRef<ReassociationIndices>{{0, 1}, {2}});
  return WriteLatentOp::create(builder, loc, latent, rope, handle);
}

std::pair<Operation *, Value>
Importer::createLatentAttention(OpBuilder &builder,
                                const ImportedCall &imported, CacheOp cache,
                                Value handle) {
  Location loc = imported.loc();
  const LatentAttention &widths = *imported.widths;
  Value weight = getWeight(imported, cache);
  Value query =
      widths.absorbQuery(builder, loc, toBuiltin(imported.query), weight);
  Value out = widths.makeOutput(builder, loc, query);
  auto attention = MLAAttentionOp::create(
      builder, loc, out.getType(), query, handle, out, /*lse=*/Value(),
      getNumber(builder, imported, ForeignAttributeRole::SoftmaxScale),
      /*q_scale=*/FlatSymbolRefAttr(), /*o_scale=*/FlatSymbolRefAttr());
  return {attention,
          widths.projectOutput(builder, loc, attention.getResult(0), weight)};
}

std::pair<Operation *, Value>
Importer::createAttention(OpBuilder &builder, const ImportedCall &imported,
                          CacheOp cache, Value handle) {
  Operation *op = imported.op();
  Location loc = op->getLoc();
  IntegerAttr window;
  for (auto [role, own] : {std::pair<ForeignAttributeRole, int64_t>{
                               ForeignAttributeRole::SlidingWindow, 1},
                           {ForeignAttributeRole::Window, 0}})
    if (auto attr = dyn_cast_or_null<IntegerAttr>(imported.getAttr(role)))
      if (attr.getValue().sge(own))
        window =
            builder.getI64IntegerAttr(attr.getValue().getSExtValue() - own);

  Value flatQuery = toBuiltin(imported.query);
  Value query = makeRows(builder, loc, flatQuery, imported.queryHeads);
  Type outputType = getBuiltinTensorType(imported.getOutput().getType());
  Value output;
  if (imported.output)
    output =
        makeRows(builder, loc, toBuiltin(imported.output), imported.queryHeads);
  else {
    SmallVector<OpFoldResult> sizes =
        tensor::getMixedSizes(builder, loc, query);
    sizes.back() = builder.getIndexAttr(
        getRows(outputType, imported.queryHeads).getDimSize(2));
    output = tensor::EmptyOp::create(builder, loc, sizes,
                                     getElementTypeOrSelf(outputType));
  }
  FlatSymbolRefAttr queryScale, outputScale;
  if (imported.quantization)
    queryScale = getScaleName(cache, ".q");
  if (imported.outputScale) {
    outputScale = getScaleName(cache, ".o");
    op->emitRemark() << "layer '" << imported.layer
                     << "': the output scale that the graph passes as an "
                        "argument stays unused; "
                     << outputScale << " takes its place";
  }
  // What has one f32 for each query head; null if the op has none.
  auto getPerHead = [&](OperandRef operand) -> Value {
    if (!operand)
      return {};
    Value values = toBuiltin(operand);
    auto type = cast<ShapedType>(values.getType());
    if (type.getElementType().isF32())
      return values;
    return arith::ExtFOp::create(builder, loc, type.clone(builder.getF32Type()),
                                 values);
  };
  SmallVector<Type, 1> resultTypes;
  if (isa<TensorType>(output.getType()))
    resultTypes.push_back(output.getType());
  auto attention = PagedAttentionOp::create(
      builder, loc, resultTypes, query, handle, output, /*lse=*/Value(),
      getPerHead(imported.sinks), getPerHead(imported.alibiSlopes),
      getNumber(builder, imported, ForeignAttributeRole::SoftmaxScale),
      getNumber(builder, imported, ForeignAttributeRole::SoftCap), window,
      queryScale, outputScale);
  if (resultTypes.empty())
    return {attention, Value()};
  Value result = attention.getResults()[0];
  if (imported.queryHeads)
    result = makeFlat(builder, loc, result, flatQuery, outputType);
  return {attention, result};
}

/// An op whose region gets the handle; what it yields is not there yet.
WithPagesOp Importer::createWithPages(OpBuilder &builder,
                                      const ImportedCall &imported,
                                      CacheOp cache) {
  Location loc = imported.loc();
  SmallVector<Value, 2> pages;
  SmallVector<Type> types;
  for (OperandRef operand : imported.getPages()) {
    pages.push_back(toBuiltin(operand));
    types.push_back(pages.back().getType());
  }
  if (imported.attends())
    types.push_back(getBuiltinTensorType(imported.getOutput().getType()));
  auto with = WithPagesOp::create(
      builder, loc, types, FlatSymbolRefAttr::get(cache.getSymNameAttr()),
      pages, toBuiltin(imported.pageTable), toBuiltin(imported.lengths),
      toBuiltin(imported.queryStart), toBuiltin(imported.slots));
  with.getBody().emplaceBlock().addArgument(cache.getCacheType(), loc);
  return with;
}

void Importer::rewrite() {
  OpBuilder builder(module.getContext());
  llvm::DenseMap<std::pair<Block *, Operation *>, Value> handles;
  auto makeHandle = [&](CacheOp cache, Location loc) -> Value {
    return GetCacheOp::create(builder, loc, cache.getCacheType(),
                              FlatSymbolRefAttr::get(cache.getSymNameAttr()));
  };
  auto getHandle = [&](CacheOp cache, Operation *user) {
    // Ops come in program order, so the first of a block stands above the rest.
    Value &handle = handles[{user->getBlock(), cache}];
    if (!handle)
      handle = makeHandle(cache, user->getLoc());
    return handle;
  };

  SmallVector<Operation *> dead;
  llvm::SetVector<Operation *> declarations;
  for (const ImportedCall &imported : calls) {
    Layer &layer = layers[imported.layer];
    Operation *op = imported.op();
    if (!layer.cache && imported.attends())
      continue; // of an encoder
    if (!layer.cache) {
      op->emitRemark() << "'" << imported.spec->name
                       << "' is left as it is: layer '" << imported.layer
                       << "' has neither a cache update nor an attention";
      continue;
    }
    builder.setInsertionPoint(op);
    Operation *created = nullptr;
    WithPagesOp with;
    if (settings.threaded && imported.hasPages()) {
      with = createWithPages(builder, imported, layer.cache);
      builder.setInsertionPointToStart(&with.getBody().front());
    }
    auto handleFor = [&]() -> Value {
      return with ? Value(with.getHandle()) : getHandle(layer.cache, op);
    };
    Value output;
    auto passes = [&](ForeignOperandRole role) {
      return llvm::any_of(imported.spec->operands,
                          [&](const ForeignOperand &operand) {
                            return operand.role == role &&
                                   imported.call.getOperand(operand.name);
                          });
    };
    if (imported.updates()) {
      ++numWrites;
      bool replaced = passes(ForeignOperandRole::Replaced);
      if (imported.spec->isLatent) {
        created = createLatentWrite(builder, imported, handleFor());
        if (replaced)
          op->emitRemark() << "layer '" << imported.layer
                           << "': the k scale that the graph passes as an "
                              "argument stays unused; @"
                           << layer.cache.getKScale() << " takes its place";
      } else {
        Value rows[2];
        for (auto [row, operand] :
             {std::pair<Value *, OperandRef>{&rows[0], imported.key},
              {&rows[1], imported.value}})
          *row = makeRows(builder, op->getLoc(), toBuiltin(operand),
                          imported.kvHeads);
        created = WriteOp::create(builder, op->getLoc(), rows[0], rows[1],
                                  handleFor());
        if (replaced || (passes(ForeignOperandRole::KeyPages) && !with))
          op->emitRemark()
              << "layer '" << imported.layer
              << "': the caches, the slot mapping and the scales that "
                 "the graph passes as arguments stay unused; @"
              << layer.cache.getSymName()
              << ", its group and the checkpoint's scales take their "
                 "place";
      }
    }
    if (imported.attends()) {
      std::tie(created, output) =
          imported.spec->isLatent
              ? createLatentAttention(builder, imported, layer.cache,
                                      handleFor())
              : createAttention(builder, imported, layer.cache, handleFor());
      ++numAttentions;
    }
    if (with) {
      YieldOp::create(builder, op->getLoc(),
                      output ? ValueRange(output) : ValueRange());
      builder.setInsertionPoint(op);
      if (output)
        output = with->getResults().back();
    }
    if (output)
      replaceOutput(builder, op, imported.output, output);
    if (imported.spec->kind == ForeignOpKind::CalculateScales) {
      // A handle of its own: nothing of it is left when the op is dropped.
      created = CalculateScalesOp::create(
          builder, op->getLoc(), toBuiltin(imported.query),
          toBuiltin(imported.key), toBuiltin(imported.value),
          makeHandle(layer.cache, op->getLoc()));
      ++numCalculations;
    }
    for (OpResult result : op->getResults())
      if (!result.use_empty())
        if (Value operand =
                imported.call.getMutatedOperand(result.getResultNumber())) {
          if (with)
            for (auto [page, value] :
                 llvm::zip(imported.getPages(), with.getResults()))
              if (operand == Value(page)) {
                operand = value;
                break;
              }
          if (operand.getType() != result.getType())
            operand = UnrealizedConversionCastOp::create(
                          builder, op->getLoc(), result.getType(), operand)
                          .getResult(0);
          result.replaceAllUsesWith(operand);
        }
    keepOtherAttrs(imported, created);
    dead.push_back(op);
    if (Operation *declaration = imported.call.getDeclaration())
      declarations.insert(declaration);
  }
  for (auto &[op, attention] : quantizations) {
    if (Operation *declaration = attention->quantization->getDeclaration())
      declarations.insert(declaration);
    quantizeQuery(*attention, layers[attention->layer].cache);
    dead.push_back(op);
  }
  casts.clear();
  weights.clear();
  // An attention uses the result of an update, which stands above it.
  for (Operation *op : llvm::reverse(dead))
    op->erase();
  if (declarations.empty())
    return;
  llvm::DenseSet<StringAttr> used;
  for (const SymbolTable::SymbolUse &use : getAllSymbolUses(module))
    used.insert(use.getSymbolRef().getRootReference());
  for (Operation *declaration : declarations)
    if (!used.contains(SymbolTable::getSymbolName(declaration)) &&
        SymbolTable::getSymbolVisibility(declaration) ==
            SymbolTable::Visibility::Private)
      declaration->erase();
}
