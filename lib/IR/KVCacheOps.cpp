//===- KVCacheOps.cpp - Verifiers, parsers and effects of the ops ---------===//

#include "../../kernels/Geometry.h"
#include "kvcache/IR/KVCache.h"
#include "mlir/IR/Builders.h"
#include "mlir/Interfaces/FunctionImplementation.h"
#include "llvm/ADT/StringExtras.h"
#include "llvm/ADT/StringSet.h"

using namespace mlir;
using namespace mlir::kvcache;

//===----------------------------------------------------------------------===//
// Custom pieces of the assembly
//===----------------------------------------------------------------------===//

static ParseResult parseScaleBody(OpAsmParser &parser, ScaleAttr &scale) {
  if (parser.parseColon() || parser.parseKeyword("f32"))
    return failure();
  (void)parser.parseOptionalEqual();
  FailureOr<ScaleAttr> body = ScaleAttr::parseBody(parser);
  if (failed(body))
    return failure();
  scale = *body;
  return success();
}

static void printScaleBody(OpAsmPrinter &printer, Operation *,
                           ScaleAttr scale) {
  printer << ": f32 ";
  if (scale.isStatic())
    printer << "= ";
  scale.printBody(printer);
}

static ParseResult parsePlainInteger(OpAsmParser &parser, IntegerAttr &attr) {
  int64_t value;
  if (parser.parseInteger(value))
    return failure();
  attr = parser.getBuilder().getI64IntegerAttr(value);
  return success();
}

static void printPlainInteger(OpAsmPrinter &printer, Operation *,
                              IntegerAttr attr) {
  printer << attr.getInt();
}

static constexpr StringLiteral kCapacities[] = {
    "max_tokens", "max_sequences", "max_pages_per_sequence", "num_pages"};

static ParseResult parseGroupBody(OpAsmParser &parser, IntegerAttr &pageSize,
                                  NamedAttrList &attrs) {
  return failure(parsePlainInteger(parser, pageSize) ||
                 parser.parseOptionalAttrDict(attrs));
}

static void printGroupBody(OpAsmPrinter &printer, Operation *op,
                           IntegerAttr pageSize, DictionaryAttr) {
  printer << pageSize.getInt();
  printer.printOptionalAttrDict(
      op->getAttrs(), {mlir::SymbolTable::getSymbolAttrName(), "page_size"});
}

static ParseResult parseCacheShape(OpAsmParser &parser, TypeAttr &attr) {
  FailureOr<CacheType> type = CacheType::parseShape(parser);
  if (failed(type))
    return failure();
  attr = TypeAttr::get(*type);
  return success();
}

static void printCacheShape(OpAsmPrinter &printer, Operation *, TypeAttr attr) {
  cast<CacheType>(attr.getValue()).printShape(printer);
}

static ParseResult parseLayoutBody(OpAsmParser &parser, LayoutAttr &attr,
                                   DenseI64ArrayAttr &strides) {
  StringRef keyword;
  SMLoc loc = parser.getCurrentLocation();
  if (parser.parseKeyword(&keyword))
    return failure();
  std::optional<Layout> layout = symbolizeLayout(keyword);
  if (!layout)
    return parser.emitError(loc)
           << "expected layout 'nhd', 'hnd', 'packed' or 'strides', but found '"
           << keyword << "'";
  attr = LayoutAttr::get(parser.getContext(), *layout);
  if (*layout != Layout::Strides)
    return success();
  SmallVector<int64_t, 3> values;
  if (parser.parseCommaSeparatedList(AsmParser::Delimiter::Square, [&] {
        return parser.parseInteger(values.emplace_back());
      }))
    return failure();
  strides = DenseI64ArrayAttr::get(parser.getContext(), values);
  return success();
}

static void printLayoutBody(OpAsmPrinter &printer, Operation *, LayoutAttr attr,
                            DenseI64ArrayAttr strides) {
  printer << stringifyLayout(attr.getValue());
  if (!strides)
    return;
  printer << " [";
  llvm::interleaveComma(strides.asArrayRef(), printer);
  printer << ']';
}

static ParseResult parseTarget(OpAsmParser &parser, Type &out, Type &result) {
  Type type;
  if (parser.parseType(type))
    return failure();
  (isa<MemRefType>(type) ? out : result) = type;
  return success();
}

static void printTarget(OpAsmPrinter &printer, Operation *, Type out,
                        Type result) {
  printer << (out ? out : result);
}

#define GET_OP_CLASSES
#include "kvcache/IR/KVCacheOps.cpp.inc"

//===----------------------------------------------------------------------===//
// Declarations
//===----------------------------------------------------------------------===//

LogicalResult CacheGroupOp::verify() {
  int64_t pageSize = getPageSize();
  if (pageSize <= 0 || !llvm::isPowerOf2_64(pageSize)) // (C1)
    return emitOpError() << "page size must be a positive power of two, but is "
                         << pageSize;
  for (StringRef name : kCapacities) // (C2)
    if (auto capacity = (*this)->getAttrOfType<IntegerAttr>(name))
      if (capacity.getInt() <= 0)
        return emitOpError() << "'" << name << "' must be positive, but is "
                             << capacity.getInt();
  return success();
}

LogicalResult CacheOp::verify() {
  // (C4) is the verifier of the type.
  if (getShards() && static_cast<int64_t>(*getShards()) < 2) // (C7)
    return emitOpError() << "expected at least 2 shards, but found "
                         << static_cast<int64_t>(*getShards());
  if (getTokenScales() &&
      (getCacheType().isLatent() ||
       !isa<Float8E4M3FNType>(getCacheType().getElementType()))) // (C10)
    return emitOpError() << "'token_scales' need keys and values of f8E4M3FN, "
                            "but the cache is "
                         << getCacheType();
  if ((getLayout() == Layout::Strides) != getStrides().has_value() ||
      (getStrides() && getStrides()->size() != 3)) // (C8)
    return emitOpError() << "needs three 'strides', of page, token and head, "
                            "just when its layout is 'strides'";
  if (!getCacheType().isLatent())
    return success();
  if (getKScaleAttr() != getVScaleAttr()) // (C5)
    return emitOpError() << "a latent row has one scale, but the scales are "
                         << getKScaleAttr() << " and " << getVScaleAttr();
  if (getLayout() != Layout::NHD) // (C6)
    return emitOpError() << "a latent cache has layout 'nhd', not '"
                         << stringifyLayout(getLayout()) << "'";
  return success();
}

/// Looks up `name` as an op of type `OpT` next to `user`; says what is there
/// instead.
template <typename OpT>
static OpT lookup(SymbolTableCollection &symbols, Operation *user,
                  FlatSymbolRefAttr name) {
  Operation *found = symbols.lookupNearestSymbolFrom(user, name);
  auto op = dyn_cast_or_null<OpT>(found);
  if (!op) {
    InFlightDiagnostic diag = user->emitOpError()
                              << "expected " << name << " to be a '"
                              << OpT::getOperationName() << "', but ";
    if (found)
      diag << "it is a '" << found->getName() << "'";
    else
      diag << "there is no such symbol";
  }
  return op;
}

LogicalResult CacheOp::verifySymbolUses(SymbolTableCollection &symbols) {
  if (!lookup<CacheGroupOp>(symbols, *this, getGroupAttr())) // (C1)
    return failure();
  if (getStrides() && !acceptsStrides(*getStrides())) // (C9)
    return emitOpError() << "has strides [" << *getStrides()
                         << "] of page, token and head, with which rows of "
                         << getCacheType()
                         << (hasInlineScales() ? " and their scales" : "")
                         << " in pages of " << getGroupOp().getPageSize()
                         << " tokens overlap";
  for (FlatSymbolRefAttr name : {getKScaleAttr(), getVScaleAttr()}) {
    auto scale = lookup<ScaleBufferOp>(symbols, *this, name); // (C2)
    if (!scale)
      return failure();
    size_t count = scale.getScale().getValues().size();
    if (count > 1 &&
        static_cast<int64_t>(count) != getCacheType().getNumHeads()) // (C3)
      return emitOpError() << "per-head scale " << name << " has " << count
                           << " values; expected one for each of the "
                           << getCacheType().getNumHeads() << " KV heads";
  }
  return success();
}

CacheGroupOp CacheOp::getGroupOp() {
  return SymbolTable::lookupNearestSymbolFrom<CacheGroupOp>(*this,
                                                            getGroupAttr());
}
ScaleBufferOp CacheOp::getKScaleOp() {
  return SymbolTable::lookupNearestSymbolFrom<ScaleBufferOp>(*this,
                                                             getKScaleAttr());
}
ScaleBufferOp CacheOp::getVScaleOp() {
  return SymbolTable::lookupNearestSymbolFrom<ScaleBufferOp>(*this,
                                                             getVScaleAttr());
}

SmallVector<int64_t, 4> CacheOp::getPageStrides(bool ofV) {
  int64_t heads = getCacheType().getNumHeads(), dim = getRowWidth(ofV);
  int64_t pageSize = getGroupOp().getPageSize();
  int64_t half = pageSize * heads * dim;
  switch (getLayout()) {
  case Layout::NHD:
    return {half, heads * dim, dim, 1};
  case Layout::HND:
    return {half, dim, pageSize * dim, 1};
  case Layout::Packed:
    return {half + pageSize * heads * getRowWidth(!ofV), heads * dim, dim, 1};
  case Layout::Strides:
    return {(*getStrides())[0], (*getStrides())[1], (*getStrides())[2], 1};
  }
  llvm_unreachable("all layouts are handled");
}

MemRefType CacheOp::getPagesType(bool ofV) {
  CacheGroupOp group = getGroupOp();
  CacheType type = getCacheType();
  std::optional<uint64_t> pages = group.getNumPages();
  return MemRefType::get(
      {pages ? static_cast<int64_t>(*pages) : ShapedType::kDynamic,
       static_cast<int64_t>(group.getPageSize()), type.getNumHeads(),
       getRowWidth(ofV)},
      getPageElementType(),
      StridedLayoutAttr::get(getContext(), ShapedType::kDynamic,
                             getPageStrides(ofV)));
}

bool CacheOp::acceptsStrides(ArrayRef<int64_t> strides) {
  CacheType type = getCacheType();
  return ::kvcache::kernels::rowsAreApart(
      strides[0], strides[1], strides[2], getGroupOp().getPageSize(),
      type.getNumHeads(), std::max(getRowWidth(), getRowWidth(/*ofV=*/true)));
}

Type CacheOp::getPageElementType() {
  return hasInlineScales() ? IntegerType::get(getContext(), 8)
                           : getCacheType().getElementType();
}

std::string CacheOp::getLayoutText() {
  std::string text = stringifyLayout(getLayout()).str();
  if (getStrides())
    text += ":" + llvm::join(llvm::map_range(*getStrides(),
                                             [](int64_t stride) {
                                               return std::to_string(stride);
                                             }),
                             ",");
  return text;
}

MemRefType CacheOp::getTokenScalesType() {
  CacheGroupOp group = getGroupOp();
  std::optional<uint64_t> pages = group.getNumPages();
  return MemRefType::get(
      {pages ? static_cast<int64_t>(*pages) : ShapedType::kDynamic,
       static_cast<int64_t>(group.getPageSize()), getCacheType().getNumHeads()},
      Float32Type::get(getContext()));
}

int64_t CacheOp::getValueOffset() {
  if (getLayout() != Layout::Packed)
    return 0;
  return getGroupOp().getPageSize() * getCacheType().getNumHeads() *
         getRowWidth();
}

//===----------------------------------------------------------------------===//
// Handles
//===----------------------------------------------------------------------===//

/// The op of type `OpT` with this name in a symbol table around `from`. A
/// program is a symbol table of its own; caches and scales are declared outside
/// it.
template <typename OpT>
static OpT lookupOutwards(Operation *from, FlatSymbolRefAttr name) {
  for (Operation *table = SymbolTable::getNearestSymbolTable(from); table;
       table = table->getParentOp()
                   ? SymbolTable::getNearestSymbolTable(table->getParentOp())
                   : nullptr)
    if (auto found =
            dyn_cast_or_null<OpT>(SymbolTable::lookupSymbolIn(table, name)))
      return found;
  return nullptr;
}

std::pair<Operation *, FlatSymbolRefAttr>
mlir::kvcache::getHandleSource(Value handle) {
  Operation *def = handle.getDefiningOp();
  if (auto argument = dyn_cast<BlockArgument>(handle))
    def = argument.getOwner()->getParentOp();
  if (auto get = dyn_cast_or_null<GetCacheOp>(def))
    return {def, get.getCacheAttr()};
  if (auto view = dyn_cast_or_null<ViewCacheOp>(def))
    return {def, view.getCacheAttr()};
  if (auto with = dyn_cast_or_null<WithPagesOp>(def))
    return {def, with.getCacheAttr()};
  return {nullptr, FlatSymbolRefAttr()};
}

CacheOp mlir::kvcache::getCacheDeclaration(Value handle) {
  auto [def, name] = getHandleSource(handle);
  if (!def)
    return nullptr;
  return lookupOutwards<CacheOp>(def, name);
}

/// get_cache and (C1) of view_cache.
static FailureOr<CacheOp> verifyHandle(Operation *op, FlatSymbolRefAttr name,
                                       Value handle,
                                       std::optional<int64_t> shards = {}) {
  CacheOp cache = getCacheDeclaration(handle);
  if (!cache)
    return op->emitOpError()
           << "expected " << name << " to be a 'kvcache.cache'";
  CacheType expected = cache.getCacheType();
  if (shards) {
    if (*shards < 2 || expected.getNumHeads() % *shards != 0) // (C3)
      return op->emitOpError()
             << "expected a number of shards from 2 on that divides the "
             << expected.getNumHeads() << " KV heads of " << name
             << ", but found " << *shards;
    expected = expected.withNumHeads(expected.getNumHeads() / *shards);
  }
  if (handle.getType() != expected) {
    InFlightDiagnostic diag = op->emitOpError()
                              << (isa<BlockArgument>(handle) ? "handle type "
                                                             : "result type ")
                              << handle.getType()
                              << " differs from the cache's " << expected;
    diag.attachNote(cache.getLoc()) << "the cache is declared here";
    return diag;
  }
  return cache;
}

LogicalResult GetCacheOp::checkPartitioned() {
  if ((*this)->hasAttr(kSequenceAxes))
    return emitOpError() << "has '" << kSequenceAxes
                         << "', so its sequences are split over ranks; run "
                            "sharding-propagation and shard-partition first";
  if (!getShards())
    return success();
  return emitOpError() << "is one of " << *getShards()
                       << " shards of a cache that is declared whole; run "
                          "kvcache-partition-caches first";
}

LogicalResult GetCacheOp::verifySymbolUses(SymbolTableCollection &) {
  return verifyHandle(*this, getCacheAttr(), getHandle(), getShards());
}

/// (C2) of view_cache and with_pages.
static LogicalResult verifyPages(Operation *op, CacheOp cache,
                                 TypeRange pages) {
  CacheType type = cache.getCacheType();
  Type element = cache.getPageElementType();
  for (auto [index, page] : llvm::enumerate(pages)) {
    int64_t expected[] = {
        static_cast<int64_t>(cache.getGroupOp().getPageSize()),
        type.getNumHeads(), cache.getRowWidth(/*ofV=*/index == 1)};
    auto shaped = cast<ShapedType>(page);
    bool matches = shaped.getElementType() == element;
    for (int i = 0; i < 3; ++i)
      matches &= shaped.getDimSize(i + 1) == expected[i];
    if (!matches)
      return op->emitOpError()
             << "pages of @" << cache.getSymName() << " must be "
             << (isa<MemRefType>(page) ? "memref" : "tensor") << "<pages x "
             << expected[0] << " x " << expected[1] << " x " << expected[2]
             << " x " << element << ">, but are " << page;
  }
  return success();
}

/// (C4) of view_cache and (C3) of with_pages.
static LogicalResult verifySequences(Operation *op, Value lengths,
                                     Value queryStart, Value pageTable) {
  int64_t sequences = cast<ShapedType>(lengths.getType()).getDimSize(0);
  int64_t starts = cast<ShapedType>(queryStart.getType()).getDimSize(0);
  int64_t rows = cast<ShapedType>(pageTable.getType()).getDimSize(0);
  if (ShapedType::isDynamic(sequences))
    return success();
  if (!ShapedType::isDynamic(starts) && starts != sequences + 1)
    return op->emitOpError()
           << "query_start has " << starts << " entries; expected "
           << sequences + 1 << " for " << sequences << " lengths";
  if (!ShapedType::isDynamic(rows) && rows != sequences)
    return op->emitOpError()
           << "the page table has " << rows << " rows; expected " << sequences
           << ", one for each length";
  return success();
}

LogicalResult ViewCacheOp::verifySymbolUses(SymbolTableCollection &) {
  FailureOr<CacheOp> cache = verifyHandle(*this, getCacheAttr(), getHandle());
  if (failed(cache))
    return failure();
  if (!cache->getGroupOp())
    return success(); // the cache's own verifier reports it
  if (cache->getCacheType().isLatent() && getKPages() != getVPages()) // (C5)
    return emitOpError() << "a row of the latent cache " << getCacheAttr()
                         << " is both key and value; give its pages twice";
  Type pages[] = {getKPages().getType(), getVPages().getType()};
  if (failed(verifyPages(*this, *cache, pages))) // (C2)
    return failure();
  for (auto [index, type] : llvm::enumerate(pages)) {
    SmallVector<int64_t, 4> layout = cache->getPageStrides(index == 1);
    auto memref = cast<MemRefType>(type);
    SmallVector<int64_t> strides;
    int64_t offset;
    if (failed(memref.getStridesAndOffset(strides, offset)))
      return emitOpError() << "pages need a strided layout, but are " << memref;
    for (int i = 0; i < 4; ++i) // (C3)
      if (!ShapedType::isDynamic(strides[i]) && strides[i] != layout[i])
        return emitOpError()
               << "stride " << i << " of pages is " << strides[i]
               << "; layout '" << cache->getLayoutText() << "' of "
               << getCacheAttr() << " has " << layout[i];
  }
  bool hasBoth = getKScales() && getVScales();
  bool matches = hasBoth == cache->hasSideScales() &&
                 hasBoth == (getKScales() || getVScales());
  for (Value scales : {getKScales(), getVScales()})
    if (matches && scales) {
      auto type = cast<MemRefType>(scales.getType());
      matches = type.getLayout().isIdentity() &&
                type.getShape().drop_front() ==
                    cache->getTokenScalesType().getShape().drop_front();
    }
  if (!matches) { // (C6)
    if (!cache->hasSideScales())
      return emitOpError() << getCacheAttr() << " has no token scales"
                           << (cache->hasInlineScales() ? " but in its rows"
                                                        : "");
    return emitOpError() << "needs the token scales of " << getCacheAttr()
                         << ", two " << cache->getTokenScalesType();
  }
  return verifySequences(*this, getLengths(), getQueryStart(), // (C4)
                         getPageTable());
}

void YieldOp::build(OpBuilder &, OperationState &) {}

LogicalResult WithPagesOp::verifySymbolUses(SymbolTableCollection &) {
  if (getBody().getNumArguments() != 1) // (C1)
    return emitOpError() << "the region has " << getBody().getNumArguments()
                         << " arguments; expected one, the handle";
  FailureOr<CacheOp> cache = verifyHandle(*this, getCacheAttr(), getHandle());
  if (failed(cache))
    return failure();
  if (!cache->getGroupOp())
    return success();         // the cache's own verifier reports it
  if (cache->hasSideScales()) // (C5)
    return emitOpError() << "has no room for the token scales of "
                         << getCacheAttr()
                         << "; use 'kvcache.get_cache', whose memory is no "
                            "value, 'token_scales inline', or a cache of fp8";
  size_t count = cache->getCacheType().isLatent() ? 1 : 2;
  if (getPages().size() != count) // (C2)
    return emitOpError() << "has " << getPages().size() << " pages; expected "
                         << count << " for " << cache->getCacheType();
  if (failed(verifyPages(*this, *cache, getPages().getTypes())) ||
      failed(verifySequences(*this, getLengths(), getQueryStart(), // (C3)
                             getPageTable())))
    return failure();
  SmallVector<Type> expected(getPages().getTypes()); // (C4)
  llvm::append_range(expected,
                     getBody().front().getTerminator()->getOperandTypes());
  if (TypeRange(expected) != TypeRange(getResultTypes()))
    return emitOpError() << "has results of types " << getResultTypes()
                         << "; expected those of the pages and of what is "
                            "yielded, "
                         << TypeRange(expected);
  return success();
}

LogicalResult LoadScaleOp::verifySymbolUses(SymbolTableCollection &symbols) {
  auto scale = lookup<ScaleBufferOp>(symbols, *this, getScaleAttr()); // (C1)
  if (!scale)
    return failure();
  if (scale.getScale().getValues().size() > 1)
    return emitOpError()
           << getScaleAttr()
           << " is per head; only a per-tensor scale is one value";
  return success();
}

TypedValue<CacheType> CalculateScalesOp::getCacheHandle() { return getCache(); }
CacheAccess CalculateScalesOp::getCacheAccess() { return CacheAccess::Read; }

LogicalResult CalculateScalesOp::verify() {
  CacheType type = getCache().getType();
  for (auto [name, value, row] :
       {std::tuple<StringRef, Value, int64_t>{"key", getKey(),
                                              type.getKeyWidth()},
        {"value", getValue(), type.getValueWidth()}}) {
    auto shaped = cast<ShapedType>(value.getType());
    int64_t elements = 1;
    for (int64_t size : shaped.getShape().drop_front())
      elements = ShapedType::isDynamic(size) ? row : elements * size;
    if (elements != row) // (C1)
      return emitOpError() << name << " has " << elements
                           << " elements a token; the cache's row has " << row;
  }
  return success();
}

//===----------------------------------------------------------------------===//
// Arithmetic
//===----------------------------------------------------------------------===//

// (C1) and (C2) of both; the scale is an operand too, so no trait of MLIR says
// it.
template <typename OpT> static LogicalResult verifyElementwise(OpT op) {
  auto in = cast<ShapedType>(op.getInput().getType());
  bool onTensors = isa<TensorType>(in);
  if (bool(op.getResult()) != onTensors || bool(op.getOut()) == onTensors)
    return op.emitOpError()
           << "on " << in << " must have "
           << (onTensors ? "a result and no 'outs'" : "'outs' and no result");
  if (in.getShape() != op.getTargetType().getShape())
    return op.emitOpError() << "input " << in << " and result "
                            << op.getTargetType() << " differ in shape";
  return success();
}

using Effects =
    SmallVectorImpl<SideEffects::EffectInstance<MemoryEffects::Effect>>;

/// Memrefs are read, those of `outs` written.
static void getMemrefEffects(DestinationStyleOpInterface op, Effects &effects) {
  for (OpOperand &operand : op->getOpOperands()) {
    if (!isa<MemRefType>(operand.get().getType()))
      continue;
    if (op.isDpsInit(&operand))
      effects.emplace_back(MemoryEffects::Write::get(), &operand);
    else
      effects.emplace_back(MemoryEffects::Read::get(), &operand);
  }
}

template <typename OpT>
static void getElementwiseEffects(OpT op, Effects &effects) {
  if (!op.getOut())
    return;
  effects.emplace_back(MemoryEffects::Read::get(), &op.getInputMutable());
  effects.emplace_back(MemoryEffects::Write::get(), &op.getOutMutable()[0]);
}

LogicalResult QuantizeOp::verify() { return verifyElementwise(*this); }
LogicalResult DequantizeOp::verify() { return verifyElementwise(*this); }
void QuantizeOp::getEffects(Effects &effects) {
  getElementwiseEffects(*this, effects);
}
void DequantizeOp::getEffects(Effects &effects) {
  getElementwiseEffects(*this, effects);
}

MutableOperandRange MergeStatesOp::getDpsInitsMutable() {
  return MutableOperandRange(*this, 4, 2);
}

void MergeStatesOp::getEffects(Effects &effects) {
  getMemrefEffects(*this, effects);
}

// (C1) are traits.
LogicalResult MergeStatesOp::verify() {
  auto partial = cast<ShapedType>(getA().getType()),
       lse = cast<ShapedType>(getLse().getType());
  if (lse.getShape() != partial.getShape().take_front(2)) // (C2)
    return emitOpError() << "lse " << lse
                         << " must be [tokens, query heads] of the partial "
                         << partial;
  for (auto [name, out, inputs] :
       {std::tuple<StringRef, Value, std::pair<Value, Value>>{
            "output", getOut(), {getA(), getB()}},
        {"lse", getLse(), {getLseA(), getLseB()}}}) // (C3)
    if (isa<MemRefType>(out.getType()) &&
        (out == inputs.first || out == inputs.second))
      return emitOpError() << "the " << name
                           << " is also that of a partial; expected a buffer "
                              "of its own";
  return success();
}

//===----------------------------------------------------------------------===//
// Cache accesses
//===----------------------------------------------------------------------===//

TypedValue<CacheType> WriteOp::getCacheHandle() { return getCache(); }
CacheAccess WriteOp::getCacheAccess() { return CacheAccess::Write; }

/// Whether an op multiplies or divides codes by scales of its declaration.
static bool usesDeclaredScales(Value handle) {
  CacheOp cache = getCacheDeclaration(handle);
  return cache ? cache.usesDeclaredScales()
               : cast<CacheType>(handle.getType()).isQuantized();
}

SmallVector<std::pair<ScaleRole, ScaleUse>> WriteOp::getScaleUses() {
  if (!usesDeclaredScales(getCache()))
    return {};
  return {{ScaleRole::K, ScaleUse::Divisor}, {ScaleRole::V, ScaleUse::Divisor}};
}

KeyRotation mlir::kvcache::getKeyRotation(Operation *op) {
  if (auto write = dyn_cast<WriteOp>(op))
    return {write.getRopeTable(), write.getPositions(),
            write.getRopeInterleaved()};
  if (auto write = dyn_cast<WriteLatentOp>(op))
    return {write.getRopeTable(), write.getPositions(),
            write.getRopeInterleaved()};
  return {};
}

/// (C4) to (C6) of the writes. `rows` are rotated, up to `most` elements.
static LogicalResult verifyRope(Operation *op, Value rows, int64_t most,
                                bool isPart) {
  KeyRotation rope = getKeyRotation(op);
  if (!rope) {
    if (rope.isInterleaved) // (C6)
      return op->emitOpError() << "has 'rope_interleaved', but no 'rope' table";
    return success();
  }
  auto table = cast<ShapedType>(rope.table.getType());
  int64_t dim = rope.getRotaryDim(); // dynamic is negative
  if (dim < 2 || dim % 2 || (isPart ? dim > most : dim != most) ||
      table.getDimSize(0) == 0) // (C4)
    return op->emitOpError()
           << "rope table must be [positions, " << (isPart ? "up to " : "")
           << most << "] with an even rotary dim, but is " << table;
  auto positions = cast<ShapedType>(rope.positions.getType());
  int64_t tokens = cast<ShapedType>(rows.getType()).getDimSize(0);
  if (!ShapedType::isDynamic(tokens) && !positions.isDynamicDim(0) &&
      positions.getDimSize(0) != tokens) // (C5)
    return op->emitOpError() << "has " << positions.getDimSize(0)
                             << " positions for " << tokens << " rows";
  return success();
}

LogicalResult WriteOp::verify() {
  auto rows = cast<ShapedType>(getKey().getType()),
       values = cast<ShapedType>(getValue().getType());
  SmallVector<int64_t, 3> shape(values.getShape());
  shape[2] = rows.getDimSize(2);
  if (values.clone(shape) != rows) // (C1)
    return emitOpError() << "key " << rows << " and value " << values
                         << " differ in more than their last dimension";
  CacheType type = getCache().getType();
  if (type.isLatent()) // (C3)
    return emitOpError() << "writes keys and values, but " << type
                         << " is latent; use 'kvcache.write_latent'";
  if (rows.getDimSize(1) != type.getNumHeads() ||
      rows.getDimSize(2) != type.getHeadDim()) // (C2)
    return emitOpError() << "rows must be [tokens, " << type.getNumHeads()
                         << ", " << type.getHeadDim() << "] for " << type
                         << ", but are " << rows;
  if (values.getDimSize(2) != type.getVHeadDim()) // (C2)
    return emitOpError() << "rows of values must be [tokens, "
                         << type.getNumHeads() << ", " << type.getVHeadDim()
                         << "] for " << type << ", but are " << values;
  return verifyRope(*this, getKey(), type.getHeadDim(), /*isPart=*/true);
}

TypedValue<CacheType> CopyPagesOp::getCacheHandle() { return getCache(); }
CacheAccess CopyPagesOp::getCacheAccess() { return CacheAccess::Write; }

LogicalResult CopyPagesOp::verify() {
  auto pairs = cast<ShapedType>(getPairs().getType());
  if (pairs.getDimSize(1) != 2) // (C1)
    return emitOpError() << "pairs must be [pairs, 2], but are " << pairs;
  return success();
}

TypedValue<CacheType> WriteLatentOp::getCacheHandle() { return getCache(); }
CacheAccess WriteLatentOp::getCacheAccess() { return CacheAccess::Write; }

SmallVector<std::pair<ScaleRole, ScaleUse>> WriteLatentOp::getScaleUses() {
  if (!getCache().getType().isQuantized())
    return {};
  return {{ScaleRole::K, ScaleUse::Divisor}};
}

LogicalResult WriteLatentOp::verify() {
  CacheType type = getCache().getType();
  if (!type.isLatent()) // (C1)
    return emitOpError() << "writes latent rows, but " << type
                         << " holds keys and values; use 'kvcache.write'";
  auto latent = cast<ShapedType>(getLatent().getType()),
       rope = cast<ShapedType>(getRope().getType());
  if (latent.getDimSize(1) != type.getLatentDim() ||
      rope.getDimSize(1) != type.getRopeDim()) // (C2)
    return emitOpError() << "rows must be [tokens, " << type.getLatentDim()
                         << "] and [tokens, " << type.getRopeDim() << "] for "
                         << type << ", but are " << latent << " and " << rope;
  if (latent.getElementType() != rope.getElementType() ||
      latent.getDimSize(0) != rope.getDimSize(0)) // (C3)
    return emitOpError() << "latent part " << latent << " and rotary part "
                         << rope << " differ in element type or tokens";
  return verifyRope(*this, getRope(), type.getRopeDim(), /*isPart=*/false);
}

//===----------------------------------------------------------------------===//
// Attention
//===----------------------------------------------------------------------===//

/// The memory effects of any attention.
static void getAttentionEffects(AttentionOpInterface op, Effects &effects) {
  effects.emplace_back(MemoryEffects::Read::get(), &op->getOpOperand(1),
                       CacheResource::get());
  getMemrefEffects(op, effects);
}

/// What all attentions demand of their LSE and of positive attributes.
static LogicalResult
verifyAttention(AttentionOpInterface op,
                ArrayRef<std::pair<StringRef, FloatAttr>> positive) {
  auto query = cast<ShapedType>(op.getQuery().getType());
  if (op.getLse()) { // (C4)
    auto lse = cast<ShapedType>(op.getLse().getType());
    if (lse.getShape() != query.getShape().take_front(2))
      return op->emitOpError()
             << "lse " << lse << " must be [tokens, query heads] of the query "
             << query;
  }
  for (auto [name, attr] : positive) // (C5)
    if (attr &&
        !(attr.getValue().isFiniteNonZero() && !attr.getValue().isNegative()))
      return op->emitOpError()
             << "'" << name << "' must be positive and finite, but is "
             << attr.getValueAsDouble();
  return success();
}

/// FP8 queries and outputs have a scale, others none.
static LogicalResult verifyOwnScales(AttentionOpInterface op) {
  for (auto [what, value, name, scale] :
       {std::tuple<StringRef, Value, StringRef, Attribute>{
            "queries", op.getQuery(), "q_scale", op.getQScaleAttr()},
        {"an output", op.getOut(), "o_scale", op.getOScaleAttr()}}) {
    auto type = cast<ShapedType>(value.getType());
    bool isFP8 = type.getElementTypeBitWidth() == 8;
    if (isFP8 != bool(scale))
      return op->emitOpError()
             << what << " of " << type.getElementType()
             << (isFP8 ? " needs a '" : " has no '") << name << "'";
  }
  return success();
}

static ScaleBufferOp findScale(Operation *op, FlatSymbolRefAttr name) {
  return name ? lookupOutwards<ScaleBufferOp>(op, name) : ScaleBufferOp();
}
ScaleBufferOp AttentionOpInterface::getQScaleOp() {
  return findScale(getOperation(), getQScaleAttr());
}
ScaleBufferOp AttentionOpInterface::getOScaleOp() {
  return findScale(getOperation(), getOScaleAttr());
}

/// The names stand for scales, of which queries and outputs have one.
static LogicalResult verifyScaleNames(AttentionOpInterface op) {
  for (auto [name, scale] : {std::pair{op.getQScaleAttr(), op.getQScaleOp()},
                             {op.getOScaleAttr(), op.getOScaleOp()}}) {
    if (!name)
      continue;
    if (!scale)
      return op->emitOpError()
             << "expected " << name << " to be a 'kvcache.scale_buffer'";
    if (scale.getScale().getValues().size() > 1)
      return op->emitOpError() << name
                               << " is per head; queries and outputs have one "
                                  "scale";
  }
  return success();
}

/// The scales of the cache, whose values have the scale `value`, between those
/// of the queries and the output.
static SmallVector<std::pair<ScaleRole, ScaleUse>>
getAttentionScales(AttentionOpInterface op, bool ofCache, ScaleRole value) {
  SmallVector<std::pair<ScaleRole, ScaleUse>> uses;
  if (op.getQScaleAttr())
    uses.push_back({ScaleRole::Q, ScaleUse::ScoreFactor});
  if (ofCache) {
    uses.push_back({ScaleRole::K, ScaleUse::ScoreFactor});
    uses.push_back({value, ScaleUse::OutputFactor});
  }
  if (op.getOScaleAttr())
    uses.push_back({ScaleRole::O, ScaleUse::Divisor});
  return uses;
}

static constexpr StringLiteral kSegmentSizes = "operandSegmentSizes";

/// `more`: further operands, printed as `name(%value : type)` where they are.
static void printAttention(OpAsmPrinter &printer, AttentionOpInterface op,
                           ArrayRef<std::pair<StringRef, Value>> more = {}) {
  Value cache = op.getCacheHandle();
  printer << ' ' << op.getQuery() << " over " << cache << " outs("
          << op.getOut();
  if (op.getLse())
    printer << ", " << op.getLse();
  printer << ')';
  for (auto [name, value] : more)
    if (value)
      printer << ' ' << name << '(' << value << " : " << value.getType() << ')';
  printer.printOptionalAttrDict(op->getAttrs(), {kSegmentSizes});
  printer << " : " << op.getQuery().getType() << ", " << cache.getType()
          << " -> " << op.getOut().getType();
  if (op.getLse())
    printer << ", " << op.getLse().getType();
}

static ParseResult parseAttention(OpAsmParser &parser, OperationState &state,
                                  ArrayRef<StringRef> more = {}) {
  OpAsmParser::UnresolvedOperand query, cache;
  SmallVector<OpAsmParser::UnresolvedOperand, 2> outs;
  Type queryType, cacheType;
  SmallVector<Type, 2> outTypes;
  if (parser.parseOperand(query) || parser.parseKeyword("over") ||
      parser.parseOperand(cache) || parser.parseKeyword("outs") ||
      parser.parseOperandList(outs, OpAsmParser::Delimiter::Paren))
    return failure();
  SmallVector<OpAsmParser::UnresolvedOperand> others(more.size());
  SmallVector<Type> otherTypes(more.size());
  for (auto [name, operand, type] : llvm::zip(more, others, otherTypes))
    if (succeeded(parser.parseOptionalKeyword(name)) &&
        (parser.parseLParen() || parser.parseOperand(operand) ||
         parser.parseColonType(type) || parser.parseRParen()))
      return failure();
  if (parser.parseOptionalAttrDict(state.attributes) ||
      parser.parseColonType(queryType) || parser.parseComma() ||
      parser.parseType(cacheType) || parser.parseArrow() ||
      parser.parseTypeList(outTypes))
    return failure();
  if (outs.empty() || outs.size() > 2)
    return parser.emitError(parser.getNameLoc())
           << "expected one output, or an output and an LSE, in 'outs', but "
              "found "
           << outs.size();
  if (parser.resolveOperand(query, queryType, state.operands) ||
      parser.resolveOperand(cache, cacheType, state.operands) ||
      parser.resolveOperands(outs, outTypes, parser.getNameLoc(),
                             state.operands))
    return failure();
  SmallVector<int32_t> segments = {1, 1, 1,
                                   static_cast<int32_t>(outs.size()) - 1};
  for (auto [operand, type] : llvm::zip(others, otherTypes)) {
    segments.push_back(type ? 1 : 0);
    if (type && parser.resolveOperand(operand, type, state.operands))
      return failure();
  }
  if (!more.empty())
    state.addAttribute(kSegmentSizes,
                       parser.getBuilder().getDenseI32ArrayAttr(segments));
  for (Type type : outTypes)
    if (isa<RankedTensorType>(type))
      state.addTypes(type);
  return success();
}

TypedValue<CacheType> PagedAttentionOp::getCacheHandle() { return getCache(); }
CacheAccess PagedAttentionOp::getCacheAccess() { return CacheAccess::Read; }

SmallVector<std::pair<ScaleRole, ScaleUse>> PagedAttentionOp::getScaleUses() {
  return getAttentionScales(*this, usesDeclaredScales(getCache()),
                            ScaleRole::V);
}

LogicalResult
PagedAttentionOp::verifySymbolUses(SymbolTableCollection &) { // (C8)
  return verifyScaleNames(*this);
}

MutableOperandRange PagedAttentionOp::getDpsInitsMutable() {
  return MutableOperandRange(*this, 2, getLse() ? 2 : 1);
}

void PagedAttentionOp::getEffects(
    SmallVectorImpl<SideEffects::EffectInstance<MemoryEffects::Effect>>
        &effects) {
  getAttentionEffects(*this, effects);
}

LogicalResult PagedAttentionOp::verify() {
  auto query = cast<ShapedType>(getQuery().getType());
  auto out = cast<ShapedType>(getOut().getType());
  CacheType type = getCache().getType();
  if (type.isLatent()) // (C6)
    return emitOpError() << "reads keys and values, but " << type
                         << " is latent; use 'kvcache.mla_attention'";
  if (query.getDimSize(1) <= 0 ||               // dynamic is negative
      query.getDimSize(2) != type.getHeadDim()) // (C1)
    return emitOpError() << "queries must be [tokens, query heads, "
                         << type.getHeadDim() << "] for " << type
                         << ", but are " << query;
  if (query.getDimSize(1) % type.getNumHeads()) // (C2)
    return emitOpError() << "the number of query heads, " << query.getDimSize(1)
                         << ", is not a multiple of the cache's "
                         << type.getNumHeads() << " KV heads";
  if (out.getShape().drop_back() != query.getShape().drop_back() ||
      out.getDimSize(2) != type.getVHeadDim()) { // (C3)
    InFlightDiagnostic diag = emitOpError()
                              << "output " << out
                              << " must have the shape of the query " << query;
    if (type.hasOwnVHeadDim())
      diag << " with the head dim of values, " << type.getVHeadDim();
    return diag;
  }
  if (failed(verifyAttention(*this, {{"softmax_scale", getSoftmaxScaleAttr()},
                                     {"soft_cap", getSoftCapAttr()}})))
    return failure();
  if (getWindow() && static_cast<int64_t>(*getWindow()) < 0)
    return emitOpError() << "'window' must not be negative, but is "
                         << static_cast<int64_t>(*getWindow());
  if (failed(verifyOwnScales(*this))) // (C7)
    return failure();
  for (auto [name, values] : {std::pair<StringRef, Value>{"sinks", getSinks()},
                              {"alibi_slopes", getAlibiSlopes()}}) // (C9)
    if (values &&
        cast<ShapedType>(values.getType()).getDimSize(0) != getNumQueryHeads())
      return emitOpError() << "'" << name << "' must have one value for each "
                           << "of the " << getNumQueryHeads()
                           << " query heads, but is " << values.getType();
  return success();
}

void PagedAttentionOp::print(OpAsmPrinter &printer) {
  printAttention(printer, *this,
                 {{"sinks", getSinks()}, {"alibi_slopes", getAlibiSlopes()}});
}

ParseResult PagedAttentionOp::parse(OpAsmParser &parser,
                                    OperationState &state) {
  return parseAttention(parser, state, {"sinks", "alibi_slopes"});
}

TypedValue<CacheType> MLAAttentionOp::getCacheHandle() { return getCache(); }
CacheAccess MLAAttentionOp::getCacheAccess() { return CacheAccess::Read; }

SmallVector<std::pair<ScaleRole, ScaleUse>> MLAAttentionOp::getScaleUses() {
  return getAttentionScales(*this, getCache().getType().isQuantized(),
                            ScaleRole::K);
}

LogicalResult
MLAAttentionOp::verifySymbolUses(SymbolTableCollection &) { // (C7)
  return verifyScaleNames(*this);
}

MutableOperandRange MLAAttentionOp::getDpsInitsMutable() {
  return MutableOperandRange(*this, 2, getLse() ? 2 : 1);
}

void MLAAttentionOp::getEffects(
    SmallVectorImpl<SideEffects::EffectInstance<MemoryEffects::Effect>>
        &effects) {
  getAttentionEffects(*this, effects);
}

LogicalResult MLAAttentionOp::verify() {
  auto query = cast<ShapedType>(getQuery().getType());
  auto out = cast<ShapedType>(getOut().getType());
  CacheType type = getCache().getType();
  if (!type.isLatent()) // (C1)
    return emitOpError() << "reads latent rows, but " << type
                         << " holds keys and values; use "
                            "'kvcache.paged_attention'";
  if (query.getDimSize(1) <= 0 ||               // dynamic is negative
      query.getDimSize(2) != type.getHeadDim()) // (C2)
    return emitOpError() << "queries must be [tokens, query heads, "
                         << type.getHeadDim() << "] for " << type
                         << ", but are " << query;
  if (out.getShape().drop_back() != query.getShape().drop_back() ||
      out.getDimSize(2) != type.getLatentDim()) // (C3)
    return emitOpError() << "output must be [tokens, query heads, "
                         << type.getLatentDim() << "] of the query " << query
                         << ", but is " << out;
  if (failed(
          verifyAttention(*this, {{"softmax_scale", getSoftmaxScaleAttr()}})))
    return failure();
  return verifyOwnScales(*this); // (C6)
}

void MLAAttentionOp::print(OpAsmPrinter &printer) {
  printAttention(printer, *this);
}

ParseResult MLAAttentionOp::parse(OpAsmParser &parser, OperationState &state) {
  return parseAttention(parser, state);
}

//===----------------------------------------------------------------------===//
// Programs
//===----------------------------------------------------------------------===//

void ProgramOp::build(OpBuilder &builder, OperationState &state, StringRef name,
                      TypeRange argumentTypes,
                      ArrayRef<DictionaryAttr> argumentAttributes) {
  state.addAttribute(::mlir::SymbolTable::getSymbolAttrName(),
                     builder.getStringAttr(name));
  state.addAttribute(getFunctionTypeAttrName(state.name),
                     TypeAttr::get(builder.getFunctionType(argumentTypes, {})));
  Block *body = new Block();
  body->addArguments(argumentTypes, SmallVector<Location>(argumentTypes.size(),
                                                          state.location));
  state.addRegion()->push_back(body);
  call_interface_impl::addArgAndResultAttrs(builder, state, argumentAttributes,
                                            {}, getArgAttrsAttrName(state.name),
                                            getResAttrsAttrName(state.name));
}

ParseResult ProgramOp::parse(OpAsmParser &parser, OperationState &state) {
  auto buildType = [](Builder &builder, ArrayRef<Type> arguments,
                      ArrayRef<Type> results,
                      function_interface_impl::VariadicFlag, std::string &) {
    return builder.getFunctionType(arguments, results);
  };
  if (function_interface_impl::parseFunctionOp(
          parser, state, false, getFunctionTypeAttrName(state.name), buildType,
          getArgAttrsAttrName(state.name), getResAttrsAttrName(state.name)))
    return failure();
  // An empty body prints as `{}`; it still is one block.
  if (state.regions.front()->empty())
    state.regions.front()->emplaceBlock();
  return success();
}

void ProgramOp::print(OpAsmPrinter &printer) {
  function_interface_impl::printFunctionOp(
      printer, *this, false, getFunctionTypeAttrName(), getArgAttrsAttrName(),
      getResAttrsAttrName());
}

StringRef ProgramOp::getBufferName(unsigned index) {
  return getArgAttrOfType<StringAttr>(index, kBufferName).getValue();
}

BufferRole ProgramOp::getBufferRole(unsigned index) {
  return getArgAttrOfType<BufferRoleAttr>(index, kBufferRole).getValue();
}

std::pair<int64_t, int64_t> ProgramOp::getRoom(CacheGroupOp group) {
  int64_t sequences = group.getMaxSequences().value_or(0),
          tokens = group.getMaxTokens().value_or(0);
  if (!getBatchSize() || !sequences)
    return {sequences, tokens};
  int64_t batch = *getBatchSize();
  return {batch, batch * (tokens / sequences)};
}

LogicalResult ProgramOp::verify() {
  llvm::StringSet<> names;
  for (auto [index, type] : llvm::enumerate(getArgumentTypes())) { // (C1)
    if (!isa<MemRefType>(type))
      return emitOpError() << "argument " << index
                           << " must be a memref, but is " << type;
    auto name = getArgAttrOfType<StringAttr>(index, kBufferName);
    if (!name || !getArgAttrOfType<BufferRoleAttr>(index, kBufferRole))
      return emitOpError() << "argument " << index << " needs a '"
                           << kBufferName << "' and a '" << kBufferRole << "'";
    if (!names.insert(name.getValue()).second)
      return emitOpError() << "two arguments have the name " << name;
  }
  for (Operation &op : getBody().front()) // (C2)
    if (!isa<SegmentOp>(op)) {
      InFlightDiagnostic diag = emitOpError()
                                << "holds only segments, but has a '"
                                << op.getName() << "'";
      diag.attachNote(op.getLoc()) << "it is here";
      return diag;
    }
  if (!getResultTypes().empty()) // (C3)
    return emitOpError() << "has no results, but its type has "
                         << getResultTypes().size();
  if (getBatchSize().has_value() != getBucketOf().has_value() ||
      static_cast<int64_t>(getBatchSize().value_or(1)) < 1) // (C4)
    return emitOpError() << "needs a positive 'batch_size' and a 'bucket_of' "
                            "together";
  return success();
}

LogicalResult LaunchOp::verify() {
  for (auto [name, sizes] :
       {std::pair<StringRef, ArrayRef<int64_t>>{"grid", getGrid()},
        {"block", getBlock()}}) // (C1)
    if (sizes.size() != 3 ||
        llvm::any_of(sizes, [](int64_t size) { return size <= 0; }))
      return emitOpError() << "'" << name << "' needs three positive entries";
  int64_t threads = getBlock()[0] * getBlock()[1] * getBlock()[2];
  if (threads > 1024)
    return emitOpError()
           << "a block has at most 1024 threads, but this one has " << threads;
  if (static_cast<int64_t>(getSharedBytes()) < 0) // (C2)
    return emitOpError() << "'shared' must not be negative, but is "
                         << static_cast<int64_t>(getSharedBytes());
  if (getConstants().size() != getOrigins().size()) // (C3)
    return emitOpError() << "has " << getConstants().size() << " constants but "
                         << getOrigins().size() << " origins";
  for (Attribute constant : getConstants()) { // (C4)
    auto typed = dyn_cast<TypedAttr>(constant);
    if (!typed || !(typed.getType().isF32() || typed.getType().isInteger(32) ||
                    typed.getType().isInteger(64)))
      return emitOpError() << "constants must be f32, i32 or i64, but one is "
                           << constant;
  }
  return success();
}
