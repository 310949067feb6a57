//===- CheckTypes.cpp - Checks of rows, pages and numbers -----------------===//

#include "Importer.h"
#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "mlir/IR/Dominance.h"
#include "mlir/Interfaces/FunctionInterfaces.h"

using namespace mlir;
using namespace mlir::kvcache;

static ShapedType getShaped(Type type, int64_t rank) {
  auto shaped = dyn_cast<ShapedType>(type);
  if (!shaped || !isa<RankedTensorType, MemRefType>(shaped) ||
      shaped.getRank() != rank)
    return {};
  return shaped;
}

ShapedType mlir::kvcache::getRows(Type type, int64_t heads) {
  if (!heads)
    return getShaped(type, 3);
  auto flat = dyn_cast<RankedTensorType>(type);
  if (!flat || flat.getRank() < 2 || flat.isDynamicDim(flat.getRank() - 1) ||
      flat.getShape().back() % heads)
    return {};
  int64_t tokens = 1;
  for (int64_t size : flat.getShape().drop_back())
    tokens = ShapedType::isDynamic(size) || ShapedType::isDynamic(tokens)
                 ? ShapedType::kDynamic
                 : tokens * size;
  return RankedTensorType::get({tokens, heads, flat.getShape().back() / heads},
                               flat.getElementType());
}

/// Whether types agree in all but the last dimension, in which they may.
static bool differInLastDim(ShapedType a, ShapedType b) {
  SmallVector<int64_t> shape(b.getShape());
  shape.back() = a.getShape().back();
  return b.clone(shape) == a;
}

static bool isRowElement(Type type) {
  return isa<Float16Type, BFloat16Type, Float32Type>(type);
}

static InFlightDiagnostic emitShapeError(const ImportedCall &imported) {
  return imported.op()->emitError()
         << "'" << imported.spec->name << "' of layer '" << imported.layer
         << "': ";
}

/// The word for a type of pages; empty if there is none.
static StringRef getCacheWord(Type type) {
  return isa<Float8E4M3FNType>(type) ? "fp8_e4m3"
         : isa<Float8E5M2Type>(type) ? "fp8_e5m2"
         : isa<BFloat16Type>(type)   ? "bfloat16"
         : isa<Float16Type>(type)    ? "float16"
                                     : "";
}

/// Pages that stay values: all that goes with them is there, and they say what
/// the cache is.
LogicalResult Importer::checkPages(ImportedCall &imported, Layer &layer) {
  auto emitError = [&] { return emitShapeError(imported); };
  bool isLatent = imported.spec->isLatent;
  for (auto [what, operand] :
       {std::pair<StringRef, OperandRef>{"pages of keys", imported.pages[0]},
        {"pages of values", imported.pages[isLatent ? 0 : 1]},
        {"a page table", imported.pageTable},
        {"lengths", imported.lengths},
        {"query starts", imported.queryStart},
        {"slots", imported.slots}})
    if (!operand)
      return emitError() << "pages that stay values need all that goes with "
                            "them, but the op has no operand for "
                         << what;
  SmallVector<RankedTensorType, 2> shapes;
  for (OperandRef operand : imported.getPages()) {
    auto shape = dyn_cast<RankedTensorType>(operand.getType());
    if (!shape || shape.getRank() != 4 || shape.isDynamicDim(1) ||
        shape.isDynamicDim(2) || shape.isDynamicDim(3) ||
        getCacheWord(shape.getElementType()).empty())
      return emitError()
             << "pages must be tensors [pages, page size, KV heads, "
                "head dim] of f8E4M3FN, f8E5M2, bf16 or f16 with a "
                "static page, but are "
             << operand.getType();
    shapes.push_back(shape);
  }
  if (!isLatent && !differInLastDim(shapes[0], shapes[1]))
    return emitError() << "pages of keys and values must have the same type "
                          "but for the head dim, but are "
                       << shapes[0] << " and " << shapes[1];
  int64_t size = shapes[0].getDimSize(1);
  if (!llvm::isPowerOf2_64(size) ||
      (threadedPageSize && threadedPageSize != size))
    return emitError() << "a page has " << size << " tokens; expected "
                       << (threadedPageSize ? std::to_string(threadedPageSize) +
                                                  ", as in the other ops"
                                            : "a power of two");
  threadedPageSize = size;
  CacheType type = CacheType::get(
      module.getContext(), shapes[0].getDimSize(2), shapes[0].getDimSize(3),
      shapes.back().getDimSize(3), shapes[0].getElementType());
  if (isLatent) {
    FailureOr<CacheType> row = getLatentRowType(imported);
    if (failed(row))
      return failure();
    CacheType ofPages = type;
    type = row->withElementType(type.getElementType());
    if (type.getNumHeads() != ofPages.getNumHeads() ||
        type.getHeadDim() != ofPages.getHeadDim())
      return emitError() << "pages of a latent cache must be [pages, page "
                            "size, 1, "
                         << type.getHeadDim() << "] for rows of "
                         << type.getLatentDim() << " + " << type.getRopeDim()
                         << " elements, but are " << shapes[0];
  }
  if (layer.type && layer.type != type)
    return emitError() << "has pages for a cache of type " << type
                       << ", but the layer's is " << layer.type;
  layer.type = type;
  layer.hasPages = true;
  if (!layer.shapeFrom)
    layer.shapeFrom = &imported;
  return success();
}

FailureOr<CacheType> Importer::getRowType(ImportedCall &imported) {
  auto emitError = [&] { return emitShapeError(imported); };
  ShapedType shapes[2];
  for (auto [index, name, type] :
       {std::tuple<int, StringRef, Type>{0, "key", imported.key.getType()},
        {1, "value", imported.value.getType()}}) {
    shapes[index] = getRows(type, imported.kvHeads);
    if (!shapes[index] || shapes[index].isDynamicDim(1) ||
        shapes[index].isDynamicDim(2) ||
        !isRowElement(shapes[index].getElementType()))
      return emitError() << name
                         << " must be [tokens, KV heads, head dim] of f16, "
                            "bf16 or f32 with "
                         << "static heads and head dim, but is " << type;
  }
  if (!differInLastDim(shapes[0], shapes[1]))
    return emitError() << "key and value must have the same type but for the "
                          "head dim, but are "
                       << shapes[0] << " and " << shapes[1];
  for (ShapedType shape : shapes)
    if (shape.getDimSize(1) == 0 || shape.getDimSize(2) == 0)
      return emitError() << "KV heads and head dim must be positive, but "
                         << (shape == shapes[0] ? "key" : "value") << " is "
                         << shape;
  return CacheType::get(module.getContext(), shapes[0].getDimSize(1),
                        shapes[0].getDimSize(2), shapes[1].getDimSize(2),
                        shapes[0].getElementType());
}

/// [tokens, latent], and [tokens, rotary] or [tokens, 1, rotary].
FailureOr<CacheType> Importer::getLatentRowType(ImportedCall &imported) {
  auto latent = dyn_cast<RankedTensorType>(imported.key.getType()),
       rope = dyn_cast<RankedTensorType>(imported.value.getType());
  auto isRow = [](RankedTensorType type, int64_t rank) {
    return type && type.getRank() == rank && !type.isDynamicDim(rank - 1) &&
           type.getDimSize(rank - 1) > 0 && isRowElement(type.getElementType());
  };
  bool fits = isRow(latent, 2) &&
              (isRow(rope, 2) || (isRow(rope, 3) && rope.getDimSize(1) == 1)) &&
              latent.getElementType() == rope.getElementType() &&
              latent.getDimSize(0) == rope.getDimSize(0);
  if (!fits)
    return emitShapeError(imported)
           << "the latent part must be a tensor [tokens, elements] and the "
              "rotary part [tokens, elements] or [tokens, 1, elements], both "
              "of f16, bf16 or f32 and of the same tokens, but they are "
           << imported.key.getType() << " and " << imported.value.getType();
  return CacheType::getLatent(module.getContext(), latent.getDimSize(1),
                              rope.getShape().back(), latent.getElementType());
}

LogicalResult Importer::checkRows(ImportedCall &imported, Layer &layer) {
  FailureOr<CacheType> type = imported.spec->isLatent
                                  ? getLatentRowType(imported)
                                  : getRowType(imported);
  if (failed(type))
    return failure();
  // A cache that is there already may have been given another element type.
  bool agrees =
      !layer.type ||
      (layer.cache || layer.hasPages
           ? layer.type.withElementType(type->getElementType()) == *type
           : layer.type == *type);
  if (!agrees) {
    auto describe = [](CacheType type) {
      std::string text;
      llvm::raw_string_ostream(text) << type;
      // "!kvcache.cache<2 x 64 x bf16>"
      return StringRef(text).drop_front(text.find('<') + 1).drop_back().str();
    };
    InFlightDiagnostic diag = emitShapeError(imported)
                              << "needs a cache of " << describe(*type)
                              << ", but another op of the layer needs "
                              << describe(layer.type);
    diag.attachNote(layer.shapeFrom ? layer.shapeFrom->loc()
                                    : layer.cache.getLoc())
        << "the other one is here; one layer has one cache";
    return diag;
  }
  if (!layer.cache && !layer.hasPages)
    layer.type = *type;
  if (!layer.shapeFrom)
    layer.shapeFrom = &imported;
  return success();
}

LogicalResult Importer::checkAttention(ImportedCall &imported, Layer &layer) {
  if (imported.spec->isLatent)
    return checkLatentAttention(imported, layer);
  auto emitError = [&] { return emitShapeError(imported); };
  Type outputType = getBuiltinTensorType(imported.getOutput().getType());
  ShapedType query = getRows(imported.query.getType(), imported.queryHeads),
             output = getRows(outputType, imported.queryHeads);
  if (query && query.getElementType().isIntOrFloat() &&
      query.getElementTypeBitWidth() == 8 && !imported.quantization)
    return emitError() << "queries of " << query.getElementType()
                       << " are only supported where "
                          "'_C.static_scaled_fp8_quant' on tensors makes them "
                          "in f8E4M3FN; or export the model without quantizing "
                          "the query, so that it is f16 or bf16";
  if (!query || query.getDimSize(1) <= 0 || query.isDynamicDim(2) ||
      (!isRowElement(query.getElementType()) && !imported.quantization))
    return emitError() << "query must be [tokens, query heads, head dim] of "
                          "f16, bf16 or f32 with "
                          "static heads and head dim, but is "
                       << imported.query.getType();
  if (query.getDimSize(2) != layer.type.getHeadDim())
    return emitError() << "query has head dim " << query.getDimSize(2)
                       << ", but the cache has " << layer.type.getHeadDim();
  bool isCodes =
      output && isa<Float8E4M3FNType, Float8E5M2Type>(output.getElementType());
  if (!output || !(isCodes || isRowElement(output.getElementType())) ||
      output.getShape().drop_back() != query.getShape().drop_back() ||
      output.getDimSize(2) != layer.type.getVHeadDim()) {
    InFlightDiagnostic diag =
        emitError()
        << "output must be f16, bf16, f32, f8E4M3FN or f8E5M2 in the shape "
           "of the query, "
        << query << ", ";
    if (layer.type.hasOwnVHeadDim())
      diag << "with the head dim of values, " << layer.type.getVHeadDim()
           << ", ";
    return diag << "but is " << outputType;
  }
  if (isCodes != bool(imported.outputScale))
    return emitError() << (isCodes ? "an output of "
                                   : "an \"output_scale\" with an output of ")
                       << output.getElementType()
                       << (isCodes ? " needs an \"output_scale\""
                                   : " has no meaning; quantized are outputs "
                                     "of f8E4M3FN and f8E5M2");
  if (imported.outputScale) {
    auto scale = dyn_cast<ShapedType>(
        getBuiltinTensorType(imported.outputScale.getType()));
    if (!scale || !scale.hasStaticShape() || scale.getNumElements() != 1)
      return emitError() << "\"output_scale\" must be one scale, but is "
                         << imported.outputScale.getType();
  }
  if (isa<TensorType>(query) != isa<TensorType>(output))
    return emitError()
           << "query and output must both be tensors or both memrefs, but are "
           << query << " and " << output;
  if (query.getDimSize(1) % layer.type.getNumHeads())
    return emitError() << "the number of query heads, " << query.getDimSize(1)
                       << ", must be a multiple of the KV heads, "
                       << layer.type.getNumHeads();
  for (auto [name, values] :
       {std::pair<StringRef, OperandRef>{"sinks", imported.sinks},
        {"ALiBi slopes", imported.alibiSlopes}}) {
    ShapedType type = values ? getShaped(values.getType(), 1) : ShapedType();
    if (!values)
      continue;
    // Those of a memref are read where they are.
    bool isElement =
        type && (isa<TensorType>(type) ? isRowElement(type.getElementType())
                                       : type.getElementType().isF32());
    if (!isElement || isa<TensorType>(type) != isa<TensorType>(query) ||
        type.getDimSize(0) != query.getDimSize(1))
      return emitError() << name << " must be a "
                         << (isa<TensorType>(query)
                                 ? "tensor of f16, bf16 or f32"
                                 : "memref of f32")
                         << " with one value for each of the "
                         << query.getDimSize(1) << " query heads, but are "
                         << values.getType();
  }
  return checkNumbers(imported);
}

LogicalResult Importer::checkLatentAttention(ImportedCall &imported,
                                             Layer &layer) {
  auto emitError = [&] { return emitShapeError(imported); };
  auto query = dyn_cast<RankedTensorType>(imported.query.getType());
  Type outputType = getBuiltinTensorType(imported.getOutput().getType());
  auto output = dyn_cast<RankedTensorType>(outputType);
  int64_t rope = layer.type.getRopeDim();
  if (!query || query.getRank() != 3 || query.getDimSize(1) <= 0 ||
      query.isDynamicDim(2) || query.getDimSize(2) <= rope ||
      !isRowElement(query.getElementType()))
    return emitError() << "query must be a tensor [tokens, query heads, nope + "
                       << rope << "] of f16, bf16 or f32 with static heads and "
                       << "width, but is " << imported.query.getType();
  int64_t heads = query.getDimSize(1);
  if (!output || output.getRank() != 2 || output.isDynamicDim(1) ||
      output.getDimSize(1) == 0 || output.getDimSize(1) % heads ||
      output.getDimSize(0) != query.getDimSize(0) ||
      output.getElementType() != query.getElementType())
    return emitError() << "output must be [tokens, " << heads
                       << " heads * value dim] of the query " << query
                       << ", but is " << outputType;
  imported.widths = LatentAttention{heads,
                                    query.getDimSize(2) - rope,
                                    rope,
                                    layer.type.getLatentDim(),
                                    output.getDimSize(1) / heads,
                                    query.getElementType()};
  auto function = imported.op()->getParentOfType<FunctionOpInterface>();
  if (!isa_and_nonnull<func::FuncOp>(function.getOperation()))
    return emitError() << "its kv_b_proj weight becomes an argument, but the "
                          "op is in no 'func.func'";
  if (!SymbolTable::symbolKnownUseEmpty(function, module))
    return emitError() << "its kv_b_proj weight becomes an argument of @"
                       << function.getName()
                       << ", but the function is called in this module; "
                          "inline it, or import it in a module of its own";
  for (auto role :
       {ForeignAttributeRole::SoftCap, ForeignAttributeRole::SlidingWindow,
        ForeignAttributeRole::Window})
    if (Attribute attr = imported.getAttr(role))
      return emitError() << "has '" << imported.spec->getAttributeName(role)
                         << "' = " << attr
                         << ", which MLA is not supported with";
  return checkNumbers(imported);
}

/// What the graph says about scores.
LogicalResult Importer::checkNumbers(ImportedCall &imported) {
  auto emitError = [&] { return emitShapeError(imported); };
  for (auto role :
       {ForeignAttributeRole::SoftmaxScale, ForeignAttributeRole::SoftCap})
    if (Attribute attr = imported.getAttr(role)) {
      auto number = dyn_cast<FloatAttr>(attr);
      if (!number || !number.getValue().isFiniteNonZero() ||
          number.getValue().isNegative())
        return emitError() << "'" << imported.spec->getAttributeName(role)
                           << "' must be a positive, finite float, but is "
                           << attr;
    }
  for (auto role :
       {ForeignAttributeRole::SlidingWindow, ForeignAttributeRole::Window})
    if (Attribute attr = imported.getAttr(role))
      if (!isa<IntegerAttr>(attr))
        return emitError() << "'" << imported.spec->getAttributeName(role)
                           << "' must be an integer, but is " << attr;
  return success();
}

LogicalResult Importer::checkCalculation(ImportedCall &imported, Layer &layer) {
  for (auto [name, type, row] :
       {std::tuple<StringRef, Type, int64_t>{"query", imported.query.getType(),
                                             0},
        {"key", imported.key.getType(), layer.type.getKeyWidth()},
        {"value", imported.value.getType(), layer.type.getValueWidth()}}) {
    ShapedType shaped = getShaped(type, 2);
    if (!shaped)
      shaped = getShaped(type, 3);
    bool fits = shaped && isa<FloatType>(shaped.getElementType());
    int64_t elements = 1;
    if (fits)
      for (int64_t size : shaped.getShape().drop_front())
        elements = ShapedType::isDynamic(size) ? row : elements * size;
    if (!fits || (name != "query" && elements != row))
      return imported.op()->emitError()
             << "'" << imported.spec->name << "' of layer '" << imported.layer
             << "': " << name
             << " must be [tokens, elements] or [tokens, heads, head dim] of "
                "floats"
             << (name == "query"
                     ? ""
                     : " with " + std::to_string(row) + " elements a token")
             << ", but is " << type;
  }
  return success();
}

LogicalResult Importer::checkDtypeWord(ImportedCall &imported, Layer &layer) {
  StringRef name =
      imported.spec->getAttributeName(ForeignAttributeRole::CacheDtype);
  Attribute attr = imported.getAttr(ForeignAttributeRole::CacheDtype);
  if (!attr)
    return success();
  auto word = dyn_cast<StringAttr>(attr);
  if (!word || word.empty())
    return imported.op()->emitError()
           << "'" << name << "' of layer '" << imported.layer
           << "' must be a word, but is " << attr;
  if (!layer.dtypeWord.empty() && layer.dtypeWord != word.getValue())
    return imported.op()->emitError()
           << "'" << name << "' of layer '" << imported.layer << "' is " << attr
           << " here, but \"" << layer.dtypeWord
           << "\" at another op of the layer";
  layer.dtypeWord = word.str();
  return success();
}

LogicalResult Importer::checkAll() {
  for (CacheOp cache : module.getOps<CacheOp>()) {
    auto *it = layers.find(cache.getLayer());
    if (it != layers.end()) {
      it->second.cache = cache;
      it->second.type = cache.getCacheType();
    }
  }
  LogicalResult result = success();
  DominanceInfo dominance(module);
  for (auto &entry : layers) {
    Layer &layer = entry.second;
    // One error a layer: the later checks rely on the earlier ones.
    auto check = [&]() -> LogicalResult {
      if (settings.threaded)
        for (auto *group : {&layer.updates, &layer.attentions})
          for (ImportedCall *call : *group)
            if (call->hasPages() && failed(checkPages(*call, layer)))
              return failure();
      for (ImportedCall *update : layer.updates)
        if (failed(checkRows(*update, layer)))
          return failure();
      for (ImportedCall *attention : layer.attentions) {
        bool hasRows = attention->key && attention->value;
        if (hasRows && failed(checkRows(*attention, layer)))
          return failure();
        if (layer.type && failed(checkAttention(*attention, layer)))
          return failure();
      }
      if (failed(checkOrder(layer, dominance)))
        return failure();
      if (layer.type)
        for (ImportedCall *calculation : layer.calculations)
          if (failed(checkCalculation(*calculation, layer)))
            return failure();
      for (auto *group : {&layer.updates, &layer.attentions})
        for (ImportedCall *call : *group)
          if (failed(checkDtypeWord(*call, layer)))
            return failure();
      if (layer.hasPages && layer.dtypeWord.empty())
        layer.dtypeWord = getCacheWord(layer.type.getElementType()).str();
      return success();
    };
    if (failed(check()))
      result = failure();
  }
  return result;
}
