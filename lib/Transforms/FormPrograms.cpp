//===- FormPrograms.cpp - Cache ops move into kvcache.program -------------===//
//
// A function keeps its signature and its foreign ops; each run of cache ops
// becomes a segment of a program, and a call takes its place.
//
//===----------------------------------------------------------------------===//

#include "kvcache/IR/ForeignSemantics.h"
#include "kvcache/IR/KVCache.h"
#include "kvcache/Transforms/Passes.h"
#include "mlir/Dialect/Bufferization/IR/Bufferization.h"
#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "mlir/Dialect/MemRef/IR/MemRef.h"
#include "mlir/Dialect/Tensor/IR/Tensor.h"
#include "mlir/IR/Matchers.h"
#include "mlir/Interfaces/SideEffectInterfaces.h"
#include "llvm/ADT/MapVector.h"
#include "llvm/ADT/StringSet.h"

namespace mlir::kvcache {
#define GEN_PASS_DEF_FORMPROGRAMS
#include "kvcache/Transforms/Passes.h.inc"
} // namespace mlir::kvcache

using namespace mlir;
using namespace mlir::kvcache;

namespace {

/// Cache ops of one function that nothing foreign separates, the quantizations
/// of what they read and write, and merges of partial attentions.
struct Run {
  std::string name;
  SmallVector<Operation *> ops;
};

/// Builds the program of one function.
class ProgramBuilder {
public:
  ProgramBuilder(func::FuncOp function, ModuleOp module)
      : function(function), module(module), builder(module.getContext()) {}

  void sinkQuantizations();
  LogicalResult collectRuns();
  LogicalResult form();
  /// Programs for smaller batches beside the one that was formed.
  LogicalResult addBuckets(ArrayRef<int64_t> batchSizes);
  size_t getNumSegments() const { return runs.size(); }

private:
  func::FuncOp function;
  ModuleOp module;
  OpBuilder builder;
  SmallVector<Run> runs;
  ProgramOp program;

  SmallVector<Type> argumentTypes;
  SmallVector<DictionaryAttr> argumentAttributes;
  llvm::StringMap<unsigned> argumentIndex;
  llvm::StringSet<> segmentNames;
  /// Names of the arguments of rope operands, which layers share.
  DenseMap<Value, std::string> ropeNames;

  unsigned addArgument(StringRef name, BufferRole role, MemRefType type);
  std::string uniqueName(StringRef prefix, StringRef what);
  std::string ropeName(Value operand, bool isTable);
  FailureOr<std::string> prefixOf(const Run &run, size_t index);
  /// Arguments of a cache and of its group, in the order of view_cache.
  SmallVector<unsigned, 8> cacheArguments(CacheOp cache);
  LogicalResult formSegment(const Run &run, ProgramOp program);
};

} // namespace

/// True for ops that may run before the cache ops in front of them: without
/// effects, and without a use of what the cache ops compute.
static bool canHoist(Operation *op, const DenseSet<Operation *> &segment) {
  if (!(isPure(op) || isFunctionalForeignOp(op)) ||
      op->hasTrait<OpTrait::IsTerminator>())
    return false;
  return !op->walk([&](Operation *nested) {
              bool uses =
                  llvm::any_of(nested->getOperands(), [&](Value operand) {
                    return operand.getDefiningOp() &&
                           segment.contains(operand.getDefiningOp());
                  });
              return uses ? WalkResult::interrupt() : WalkResult::advance();
            }).wasInterrupted();
}

/// What a quantization writes.
static Value targetOf(Operation *op) {
  return op->getNumResults() ? Value(op->getResult(0)) : op->getOperand(2);
}

/// True for the queries of an attention.
static bool isQuery(Value value) {
  return llvm::any_of(value.getUsers(), [&](Operation *user) {
    auto attention = dyn_cast<AttentionOpInterface>(user);
    return attention && attention.getQuery() == value;
  });
}

/// True for a quantization that kernels can do: of a known scale, and not on
/// the code of another vendor.
static bool isCapturable(Operation *op) {
  if (!isa<QuantizeOp, DequantizeOp>(op) ||
      !matchPattern(op->getOperand(1), m_Constant()))
    return false;
  auto isLegal = [](Type type) {
    auto shaped = cast<ShapedType>(type);
    auto memref = dyn_cast<MemRefType>(type);
    return shaped.hasRank() && shaped.getRank() > 0 &&
           !isa<Float8E4M3FNUZType>(shaped.getElementType()) &&
           (!memref || memref.getLayout().isIdentity());
  };
  return isLegal(op->getOperand(0).getType()) &&
         isLegal(targetOf(op).getType());
}

/// `rows` as [tokens, heads, head dim], which it is or is flat.
static Value expandRows(OpBuilder &builder, Location loc, Value rows,
                        RankedTensorType type) {
  if (cast<RankedTensorType>(rows.getType()).getRank() == 3)
    return rows;
  SmallVector<OpFoldResult> sizes = tensor::getMixedSizes(builder, loc, rows);
  sizes.back() = builder.getIndexAttr(type.getDimSize(1));
  sizes.push_back(builder.getIndexAttr(type.getDimSize(2)));
  return tensor::ExpandShapeOp::create(builder, loc, type, rows, {{0}, {1, 2}},
                                       sizes);
}

/// A quantization of queries moves to its attention, behind the reshapes in
/// between, and so into the attention's segment.
void ProgramBuilder::sinkQuantizations() {
  SmallVector<AttentionOpInterface> attentions;
  function.walk([&](AttentionOpInterface op) { attentions.push_back(op); });
  for (AttentionOpInterface attention : attentions) {
    auto type = dyn_cast<RankedTensorType>(attention.getQuery().getType());
    SmallVector<Operation *> between;
    Operation *def = attention.getQuery().getDefiningOp();
    while (def && (isa<tensor::ExpandShapeOp, tensor::CollapseShapeOp,
                       tensor::CastOp, UnrealizedConversionCastOp>(def) ||
                   isForeignView(def))) {
      between.push_back(def);
      def = def->getOperand(0).getDefiningOp();
    }
    auto quantize = dyn_cast_or_null<QuantizeOp>(def);
    if (!type || !quantize || !quantize.getResult() || !isCapturable(quantize))
      continue;
    auto source = dyn_cast<RankedTensorType>(quantize.getInput().getType());
    bool isFlat =
        source && source.getRank() == 2 &&
        source.getDimSize(0) == type.getDimSize(0) &&
        source.getDimSize(1) == type.getDimSize(1) * type.getDimSize(2);
    if (!source || !(isFlat || source.getShape() == type.getShape()))
      continue;
    builder.setInsertionPoint(attention);
    Value rows = expandRows(builder, quantize.getLoc(), quantize.getInput(),
                            type.clone(source.getElementType()));
    attention->setOperand(0, QuantizeOp::create(builder, quantize.getLoc(),
                                                type, rows, quantize.getScale(),
                                                /*out=*/Value())
                                 .getResult());
    between.push_back(quantize);
    for (Operation *op : between)
      if (op->use_empty())
        op->erase();
  }
}

/// A merge, a quantization that feeds the queries of an attention, or one that
/// takes what cache ops wrote or will read.
static bool joins(Operation *op, const Run &run,
                  const DenseSet<Operation *> &members) {
  if (isa<MergeStatesOp>(op))
    return true;
  if (!isCapturable(op))
    return false;
  if (isQuery(targetOf(op)))
    return true;
  Value input = op->getOperand(0);
  return members.contains(input.getDefiningOp()) ||
         llvm::any_of(run.ops, [&](Operation *member) {
           return llvm::is_contained(member->getOperands(), input) &&
                  isa<MemRefType>(input.getType());
         });
}

LogicalResult ProgramBuilder::collectRuns() {
  bool failedAny = false;
  function.walk([&](CacheOpInterface op) {
    if (op->getParentOp() == function)
      return;
    op->emitError() << "'" << op->getName() << "' is nested in a '"
                    << op->getParentOp()->getName()
                    << "'; a program holds straight-line code only: "
                    << (isa<WithPagesOp>(op->getParentOp())
                            ? "import the graph without cache-operands="
                              "threaded, or bufferize it first"
                            : "move the op out of it, or unroll it");
    failedAny = true;
  });
  function.walk(
      [&](GetCacheOp get) { failedAny |= failed(get.checkPartitioned()); });
  if (failedAny)
    return failure();
  if (!function.getBody().hasOneBlock()) {
    bool hasCacheOps =
        function.walk([](CacheOpInterface) { return WalkResult::interrupt(); })
            .wasInterrupted();
    if (hasCacheOps)
      return function.emitError()
             << "cannot form a program: '" << function.getSymName()
             << "' has several blocks; a program holds straight-line code only";
    return success();
  }

  DenseSet<Operation *> members;
  Run current;
  auto finish = [&] {
    if (!current.ops.empty())
      runs.push_back(std::move(current));
    current = Run();
    members.clear();
  };
  for (Operation &op : llvm::make_early_inc_range(function.getBody().front())) {
    if (isa<CacheOpInterface>(op) || joins(&op, current, members)) {
      // What an output held before must be copied to where it may be written.
      if (auto destination = dyn_cast<DestinationStyleOpInterface>(op))
        if (llvm::any_of(destination.getDpsInits(), [&](Value init) {
              return members.contains(init.getDefiningOp());
            }))
          finish();
      current.ops.push_back(&op);
      members.insert(&op);
      continue;
    }
    if (current.ops.empty() || isa<GetCacheOp, ViewCacheOp>(op))
      continue;
    if (canHoist(&op, members))
      op.moveBefore(current.ops.front());
    else
      finish();
  }
  finish();

  // Quantizations alone stay where they are, and so does all of a function
  // without cache ops.
  auto hasCacheOps = [](const Run &run) {
    return llvm::any_of(run.ops, llvm::IsaPred<CacheOpInterface>);
  };
  bool isProgram = llvm::any_of(runs, hasCacheOps);
  llvm::erase_if(runs, [&](const Run &run) {
    return !isProgram ||
           llvm::none_of(run.ops,
                         llvm::IsaPred<CacheOpInterface, MergeStatesOp>);
  });
  for (Run &run : runs) {
    FailureOr<std::string> prefix = prefixOf(run, 0);
    if (failed(prefix))
      return failure();
    std::string base = *prefix;
    run.name = base;
    for (unsigned i = 1; !segmentNames.insert(run.name).second; ++i)
      run.name = base + "." + std::to_string(i);
  }
  return success();
}

/// The cache that the names of an op's buffers begin with: its own, else that
/// of the next cache op of the run, else of the one before.
FailureOr<std::string> ProgramBuilder::prefixOf(const Run &run, size_t index) {
  auto rest = ArrayRef(run.ops).drop_front(index);
  auto *found = llvm::find_if(rest, llvm::IsaPred<CacheOpInterface>);
  if (found == rest.end()) {
    auto before =
        llvm::find_if(llvm::reverse(run.ops), llvm::IsaPred<CacheOpInterface>);
    if (before == run.ops.rend())
      return std::string("merge_states");
    found = &*before;
  }
  CacheOp cache =
      getCacheDeclaration(cast<CacheOpInterface>(*found).getCacheHandle());
  if (!cache)
    return (*found)->emitError()
           << "cannot form a program: the cache handle is not the result of "
              "'kvcache.get_cache' or 'kvcache.view_cache'";
  return cache.getSymName().str();
}

unsigned ProgramBuilder::addArgument(StringRef name, BufferRole role,
                                     MemRefType type) {
  auto [it, isNew] = argumentIndex.try_emplace(name, argumentTypes.size());
  if (!isNew)
    return it->second;
  argumentTypes.push_back(type);
  argumentAttributes.push_back(builder.getDictionaryAttr(
      {builder.getNamedAttr(kBufferName, builder.getStringAttr(name)),
       builder.getNamedAttr(kBufferRole,
                            BufferRoleAttr::get(builder.getContext(), role))}));
  return it->second;
}

std::string ProgramBuilder::uniqueName(StringRef prefix, StringRef what) {
  std::string base = (prefix + "." + what).str(), name = base;
  for (unsigned i = 1; argumentIndex.contains(name); ++i)
    name = base + "." + std::to_string(i);
  return name;
}

/// A table of cosines may be large and belongs to no layer: all rows that are
/// rotated by one value get it from one buffer.
std::string ProgramBuilder::ropeName(Value operand, bool isTable) {
  std::string &name = ropeNames[operand];
  StringRef base = isTable ? "rope_table" : "positions";
  for (unsigned i = 0; name.empty(); ++i) {
    std::string candidate = i ? (base + "." + Twine(i)).str() : base.str();
    if (!argumentIndex.contains(candidate))
      name = candidate;
  }
  return name;
}

static int64_t capacity(std::optional<uint64_t> value) {
  return value ? static_cast<int64_t>(*value) : ShapedType::kDynamic;
}

SmallVector<unsigned, 8> ProgramBuilder::cacheArguments(CacheOp cache) {
  CacheGroupOp group = cache.getGroupOp();
  CacheType type = cache.getCacheType();
  int64_t sequences = capacity(group.getMaxSequences());
  // One group needs no prefix: its buffers have the field's own names.
  bool single = llvm::hasSingleElement(module.getOps<CacheGroupOp>());
  std::string prefix = single ? "" : (group.getSymName() + ".").str();
  Type i32 = builder.getI32Type(), i64 = builder.getI64Type();
  StringRef name = cache.getSymName();
  auto pagesOf = [&](StringRef suffix, bool ofV) {
    if (type.isLatent())
      suffix = ".kv_cache";
    return addArgument((name + suffix).str(), BufferRole::Cache,
                       cache.getPagesType(ofV));
  };
  SmallVector<unsigned, 8> arguments = {
      pagesOf(".k_cache", /*ofV=*/false),
      pagesOf(".v_cache", /*ofV=*/true),
      addArgument(
          prefix + "page_table", BufferRole::PageTable,
          MemRefType::get({sequences, capacity(group.getMaxPagesPerSequence())},
                          i32)),
      addArgument(prefix + "lengths", BufferRole::Lengths,
                  MemRefType::get({sequences}, i32)),
      addArgument(
          prefix + "query_start", BufferRole::QueryStart,
          MemRefType::get(
              {ShapedType::isDynamic(sequences) ? sequences : sequences + 1},
              i32)),
      addArgument(prefix + "slot_mapping", BufferRole::Slots,
                  MemRefType::get({capacity(group.getMaxTokens())}, i64)),
  };
  if (cache.hasSideScales())
    for (StringRef suffix : {".k_scales", ".v_scales"})
      arguments.push_back(addArgument((name + suffix).str(), BufferRole::Cache,
                                      cache.getTokenScalesType()));
  return arguments;
}

/// `tensor.empty` or torch's, possibly reshaped: nothing in it that must be
/// kept.
static bool isUndefined(Value tensor) {
  while (Operation *def = tensor.getDefiningOp()) {
    if (isa<tensor::EmptyOp>(def) || isForeignEmpty(def))
      return true;
    if (!isa<tensor::ExpandShapeOp, tensor::CollapseShapeOp, tensor::CastOp,
             UnrealizedConversionCastOp>(def) &&
        !isForeignView(def))
      return false;
    tensor = def->getOperand(0);
  }
  return false;
}

/// What a buffer is to its op, as its name says it. The result of a
/// quantization counts as its operand 2.
static StringRef operandName(Operation *op, unsigned number) {
  if (isa<WriteOp>(op))
    return number == 0 ? "key" : "value";
  if (isa<WriteLatentOp>(op))
    return number == 0 ? "latent" : "rope";
  if (isa<QuantizeOp, DequantizeOp>(op)) {
    if (isQuery(targetOf(op)))
      return number == 0 ? "query_source" : "query";
    return number == 0 ? "quantization_input" : "quantization_output";
  }
  if (isa<CopyPagesOp>(op))
    return "page_copies";
  if (isa<MergeStatesOp>(op)) {
    constexpr StringRef names[] = {"partial_a",     "partial_a_lse",
                                   "partial_b",     "partial_b_lse",
                                   "merged_output", "merged_lse"};
    return names[number];
  }
  auto attention = dyn_cast<PagedAttentionOp>(op);
  if (!attention)
    return number == 0 ? "query" : number == 2 ? "output" : "lse";
  constexpr StringRef names[] = {"query", "cache", "output",
                                 "lse",   "sinks", "alibi_slopes"};
  for (unsigned i = 0; i < std::size(names); ++i) {
    auto [first, size] = attention.getODSOperandIndexAndLength(i);
    if (number >= first && number < first + size)
      return names[i];
  }
  llvm_unreachable("all operands have a name");
}

/// Weights of the model, and tables, which all steps share, have a role of
/// their own.
static BufferRole operandRole(Operation *op, OpOperand &operand) {
  if (isa<CopyPagesOp>(op))
    return BufferRole::PageCopies;
  auto attention = dyn_cast<PagedAttentionOp>(op);
  bool isParameter =
      (attention && (operand.get() == attention.getSinks() ||
                     operand.get() == attention.getAlibiSlopes())) ||
      operand.get() == getKeyRotation(op).table;
  return isParameter ? BufferRole::Parameter : BufferRole::Activation;
}

/// A buffer of the host in the shape of a tensor or memref.
static Value allocateLike(OpBuilder &host, Location loc, Value like,
                          MemRefType type) {
  SmallVector<Value> sizes;
  for (auto [dim, size] : llvm::enumerate(type.getShape())) {
    if (!ShapedType::isDynamic(size))
      continue;
    if (isa<MemRefType>(like.getType()))
      sizes.push_back(memref::DimOp::create(host, loc, like, dim));
    else
      sizes.push_back(tensor::DimOp::create(host, loc, like, dim));
  }
  return memref::AllocOp::create(host, loc, type, sizes);
}

LogicalResult ProgramBuilder::formSegment(const Run &run, ProgramOp program) {
  Location loc = run.ops.front()->getLoc();
  Operation *position = run.ops.front();
  builder.setInsertionPointToEnd(&program.getBody().front());
  auto segment = SegmentOp::create(builder, loc, run.name);
  Block *body = &segment.getBody().emplaceBlock();
  Block *arguments = &program.getBody().front();

  OpBuilder host(position);
  OpBuilder inner(body, body->end());
  llvm::MapVector<Value, std::pair<Value, Value>>
      buffers; // value -> host memref, program argument
  // Of results: something of the host that has their shape.
  DenseMap<Value, Value> shapes;
  llvm::StringMap<Value> views;
  SmallVector<std::pair<Value, Value>>
      results; // old tensor result, host memref
  SmallVector<Value> callOperands;

  auto argumentOf = [&](StringRef name, BufferRole role,
                        MemRefType type) -> Value {
    unsigned index = addArgument(name, role, type);
    while (arguments->getNumArguments() <= index)
      arguments->addArgument(argumentTypes[arguments->getNumArguments()], loc);
    return arguments->getArgument(index);
  };

  for (auto [position, op] : llvm::enumerate(run.ops)) {
    FailureOr<std::string> prefix = prefixOf(run, position);
    if (failed(prefix))
      return failure();
    auto cacheOp = dyn_cast<CacheOpInterface>(op);
    if (isa<CalculateScalesOp>(op))
      return op->emitError() << "'" << op->getName()
                             << "' cannot be part of a program; run "
                                "'kvcache-drop-dynamic-scales' first";
    Value &view = views[*prefix];
    if (!view && cacheOp) {
      CacheOp cache = getCacheDeclaration(cacheOp.getCacheHandle());
      SmallVector<unsigned, 8> indices = cacheArguments(cache);
      while (arguments->getNumArguments() < argumentTypes.size())
        arguments->addArgument(argumentTypes[arguments->getNumArguments()],
                               loc);
      SmallVector<Value, 8> values;
      for (unsigned index : indices)
        values.push_back(arguments->getArgument(index));
      values.resize(8);
      view = ViewCacheOp::create(inner, op->getLoc(), cache.getCacheType(),
                                 cache.getSymName(), values[0], values[1],
                                 values[2], values[3], values[4], values[5],
                                 values[6], values[7]);
    }

    // By operand, not by value: an output may start as the query.
    SmallVector<Value> operands;
    auto destination = dyn_cast<DestinationStyleOpInterface>(op);
    for (OpOperand &operand : op->getOpOperands()) {
      Value value = operand.get();
      if (cacheOp && value == cacheOp.getCacheHandle()) {
        operands.push_back(view);
        continue;
      }
      if (value.getType().isF32()) { // a constant
        operands.push_back(inner.clone(*value.getDefiningOp())->getResult(0));
        continue;
      }
      bool isOutput = destination && destination.isDpsInit(&operand);
      auto found = buffers.find(value);
      if (found != buffers.end() &&
          !(isOutput && isa<TensorType>(value.getType()))) {
        operands.push_back(found->second.second);
        continue;
      }
      auto shaped = cast<ShapedType>(value.getType());
      auto type = MemRefType::get(shaped.getShape(), shaped.getElementType());
      Value hostBuffer = value;
      if (isa<TensorType>(shaped)) {
        if (isOutput) {
          hostBuffer = allocateLike(host, op->getLoc(), value, type);
          if (!isUndefined(value)) {
            Value old = bufferization::ToBufferOp::create(host, op->getLoc(),
                                                          type, value,
                                                          /*read_only=*/true);
            memref::CopyOp::create(host, op->getLoc(), old, hostBuffer);
          }
        } else {
          hostBuffer =
              bufferization::ToBufferOp::create(host, op->getLoc(), type, value,
                                                /*read_only=*/true);
        }
      } else if (!cast<MemRefType>(shaped).getLayout().isIdentity()) {
        return op->emitError()
               << "operand " << operand.getOperandNumber() << " of '"
               << op->getName() << "' has the layout of " << shaped
               << "; a program takes contiguous activations: copy it first";
      }
      KeyRotation rope = getKeyRotation(op);
      std::string name =
          value == rope.table || value == rope.positions
              ? ropeName(value, value == rope.table)
              : uniqueName(*prefix,
                           operandName(op, operand.getOperandNumber()));
      Value argument = argumentOf(name, operandRole(op, operand), type);
      callOperands.push_back(hostBuffer);
      operands.push_back(argument);
      if (isOutput && isa<TensorType>(shaped)) {
        // Later ops of the segment read the result, not the old contents.
        Value result = destination.getTiedOpResult(&operand);
        buffers[result] = {hostBuffer, argument};
        shapes[result] = hostBuffer;
        results.push_back({result, hostBuffer});
      } else {
        buffers[value] = {hostBuffer, argument};
      }
    }
    // The result of a quantization is a workspace, if nobody else reads it.
    if (isa<QuantizeOp, DequantizeOp>(op) && op->getNumResults()) {
      Value result = op->getResult(0);
      auto shaped = cast<RankedTensorType>(result.getType());
      auto type = MemRefType::get(shaped.getShape(), shaped.getElementType());
      bool isInner = llvm::all_of(result.getUsers(), [&](Operation *user) {
        return llvm::is_contained(run.ops, user);
      });
      Value input = op->getOperand(0), hostBuffer;
      Value like = shapes.lookup(input);
      shapes[result] = like ? like : input;
      if (!isInner) {
        hostBuffer = allocateLike(host, op->getLoc(), shapes[result], type);
        results.push_back({result, hostBuffer});
      }
      Value argument = argumentOf(
          uniqueName(*prefix, operandName(op, 2)),
          isInner ? BufferRole::Workspace : BufferRole::Activation, type);
      if (hostBuffer)
        callOperands.push_back(hostBuffer);
      operands.push_back(argument);
      buffers[result] = {hostBuffer, argument};
    }
    OperationState state(op->getLoc(), op->getName());
    state.addOperands(operands);
    state.attributes = op->getAttrDictionary();
    inner.create(state);
  }

  // The call, and a private function that stands for the segment.
  std::string callee =
      "kvcache." + function.getSymName().str() + "." + run.name;
  if (module.lookupSymbol(callee))
    return function.emitError() << "cannot form a program: the symbol @"
                                << callee << " is taken; rename it";
  SmallVector<Type> types =
      llvm::to_vector(ValueRange(callOperands).getTypes());
  builder.setInsertionPoint(function);
  auto declaration = func::FuncOp::create(builder, loc, callee,
                                          builder.getFunctionType(types, {}));
  declaration.setPrivate();
  declaration->setAttr(
      kSegment, SymbolRefAttr::get(
                    builder.getContext(), program.getSymName(),
                    {FlatSymbolRefAttr::get(builder.getContext(), run.name)}));
  declaration->setAttr("llvm.emit_c_interface", builder.getUnitAttr());
  func::CallOp::create(host, loc, declaration, callOperands);
  for (auto [result, buffer] : results) {
    Value tensor =
        bufferization::ToTensorOp::create(host, loc, result.getType(), buffer,
                                          /*restrict=*/true, /*writable=*/true);
    result.replaceAllUsesWith(tensor);
  }
  for (Operation *op : llvm::reverse(run.ops))
    op->erase();
  return success();
}

LogicalResult ProgramBuilder::form() {
  if (runs.empty())
    return success();
  builder.setInsertionPoint(function);
  std::string name = "kvcache." + function.getSymName().str();
  if (module.lookupSymbol(name))
    return function.emitError() << "cannot form a program: the symbol @" << name
                                << " is taken; rename it";
  program = ProgramOp::create(builder, function.getLoc(), name, TypeRange(),
                              ArrayRef<DictionaryAttr>());
  for (const Run &run : runs)
    if (failed(formSegment(run, program)))
      return failure();
  // Arguments appeared one by one; the type says all of them.
  program.setFunctionTypeAttr(
      TypeAttr::get(builder.getFunctionType(argumentTypes, {})));
  SmallVector<Attribute> attributes(argumentAttributes.begin(),
                                    argumentAttributes.end());
  program.setArgAttrsAttr(builder.getArrayAttr(attributes));
  // Handles that nobody uses any more.
  for (Operation &op :
       llvm::make_early_inc_range(llvm::reverse(function.getBody().front())))
    if (isa<GetCacheOp, ViewCacheOp>(op) && op.use_empty())
      op.erase();
  return success();
}

LogicalResult ProgramBuilder::addBuckets(ArrayRef<int64_t> batchSizes) {
  if (runs.empty() || batchSizes.empty())
    return success();
  for (unsigned i = 0, e = program.getNumArguments(); i < e; ++i) {
    auto type = cast<MemRefType>(program.getArgumentTypes()[i]);
    if (program.getBufferRole(i) == BufferRole::Activation &&
        !type.isDynamicDim(0))
      return function.emitError()
             << "batch-sizes: the graph has " << type.getDimSize(0)
             << " tokens in every step (buffer '" << program.getBufferName(i)
             << "'); export it with a dynamic number of tokens, or leave "
                "batch-sizes out";
  }
  builder.setInsertionPointAfter(program);
  for (int64_t size : batchSizes.drop_back()) {
    std::string name = (program.getSymName() + ".b" + Twine(size)).str();
    if (module.lookupSymbol(name))
      return function.emitError() << "cannot form a program: the symbol @"
                                  << name << " is taken; rename it";
    auto bucket = cast<ProgramOp>(builder.clone(*program));
    bucket.setSymName(name);
    bucket.setBatchSize(size);
    bucket.setBucketOf(program.getSymName());
  }
  return success();
}

/// Sizes ascend, and the largest is what every group has room for.
static LogicalResult checkBatchSizes(ModuleOp module,
                                     ArrayRef<int64_t> batchSizes) {
  if (batchSizes.empty())
    return success();
  for (auto [i, size] : llvm::enumerate(batchSizes))
    if (size < (i ? batchSizes[i - 1] + 1 : 1))
      return module.emitError()
             << "batch-sizes: expected ascending positive sizes, but found "
             << batchSizes;
  for (auto group : module.getOps<CacheGroupOp>()) {
    std::optional<uint64_t> sequences = group.getMaxSequences(),
                            tokens = group.getMaxTokens();
    if (!sequences || !tokens)
      return group.emitError() << "batch-sizes needs the capacities "
                                  "'max-sequences' and 'max-tokens'";
    if (static_cast<int64_t>(*sequences) != batchSizes.back())
      return group.emitError()
             << "batch-sizes: the largest, " << batchSizes.back()
             << ", is not max-sequences=" << *sequences;
    if (*tokens % *sequences)
      return group.emitError()
             << "batch-sizes: max-tokens=" << *tokens
             << " is not a multiple of max-sequences=" << *sequences;
  }
  return success();
}

namespace {
struct FormPrograms
    : public mlir::kvcache::impl::FormProgramsBase<FormPrograms> {
  using FormProgramsBase::FormProgramsBase;

  void runOnOperation() override {
    ModuleOp module = getOperation();
    if (failed(checkBatchSizes(module, batchSizes)))
      return signalPassFailure();
    for (auto function :
         llvm::make_early_inc_range(module.getOps<func::FuncOp>())) {
      if (function.isDeclaration())
        continue;
      ProgramBuilder builder(function, module);
      builder.sinkQuantizations();
      if (failed(builder.collectRuns()) || failed(builder.form()) ||
          failed(builder.addBuckets(batchSizes)))
        return signalPassFailure();
      if (builder.getNumSegments()) {
        ++numPrograms;
        numSegments += builder.getNumSegments();
      }
    }
  }
};
} // namespace
