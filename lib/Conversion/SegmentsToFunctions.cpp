//===- SegmentsToFunctions.cpp - Programs as functions --------------------===//
//
// What a program leaves behind once its launches are lowered is stock IR: one
// function for each segment, and callers that hand the buffers on.
//
//===----------------------------------------------------------------------===//

#include "SegmentsToFunctions.h"
#include "kvcache/IR/SymbolLookup.h"
#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "llvm/ADT/MapVector.h"
#include <set>

using namespace mlir;
using namespace mlir::kvcache;

namespace {

class SegmentLowering {
public:
  explicit SegmentLowering(ModuleOp module) : module(module) {}

  LogicalResult run() {
    module.walk([&](func::FuncOp function) {
      if (auto segment = function->getAttrOfType<SymbolRefAttr>(kSegment))
        standIns[segment] = function;
    });
    SmallVector<ProgramOp> programs(module.getOps<ProgramOp>());
    for (ProgramOp program : programs)
      for (auto segment : program.getBody().front().getOps<SegmentOp>())
        if (failed(define(program, segment)))
          return failure();
    propagateToCallers();
    if (failed(checkUses()))
      return failure();
    for (auto &[function, names] : taken)
      takeBuffers(function);
    for (func::CallOp call : calls)
      handOn(call);
    for (ProgramOp program : programs)
      program.erase();
    eraseDeclarations();
    return success();
  }

private:
  /// Names of buffers, as indices in `buffers`, kept sorted.
  using Names = std::set<unsigned>;

  FailureOr<unsigned> indexOf(ProgramOp program, unsigned argument) {
    StringRef name = program.getBufferName(argument);
    Type type = program.getArgumentTypes()[argument];
    auto [it, inserted] = buffers.insert({name, type});
    if (!inserted && it->second != type)
      return program.emitError()
             << "buffer '" << name << "' is " << type << " here, but "
             << it->second << " in another program";
    return std::distance(buffers.begin(), it);
  }

  LogicalResult define(ProgramOp program, SegmentOp segment) {
    for (Operation &op : llvm::make_early_inc_range(segment.getBody().front()))
      if (isa<ViewCacheOp>(op) && op.use_empty())
        op.erase();
    WalkResult leftover = segment.getBody().walk([&](Operation *op) {
      if (!isa<KVCacheDialect>(op->getDialect()))
        return WalkResult::advance();
      op->emitError() << "'" << op->getName()
                      << "' is left beside launches in a segment; run "
                         "'kvcache-select-kernels' first";
      return WalkResult::interrupt();
    });
    if (leftover.wasInterrupted())
      return failure();

    std::set<unsigned> used;
    Block *programBlock = &program.getBody().front();
    segment.getBody().walk([&](Operation *op) {
      for (Value operand : op->getOperands())
        if (auto argument = dyn_cast<BlockArgument>(operand);
            argument && argument.getOwner() == programBlock)
          used.insert(argument.getArgNumber());
    });
    SmallVector<unsigned> arguments;
    for (unsigned index : used)
      if (isOperand(program.getBufferRole(index)))
        arguments.push_back(index);
    SmallVector<Type> types;
    for (unsigned index : arguments)
      types.push_back(program.getArgumentTypes()[index]);

    auto symbol =
        SymbolRefAttr::get(program.getSymNameAttr(),
                           {FlatSymbolRefAttr::get(segment.getSymNameAttr())});
    func::FuncOp function = standIns.lookup(symbol);
    OpBuilder builder(program);
    auto type = builder.getFunctionType(types, {});
    if (!function) {
      std::string name =
          (program.getSymName() + "." + segment.getSymName()).str();
      if (module.lookupSymbol(name))
        return segment.emitError()
               << "the symbol @" << name << " is taken; rename it";
      function = func::FuncOp::create(builder, segment.getLoc(), name, type);
    } else if (!function.isDeclaration() ||
               function.getFunctionType() != type) {
      return function.emitError()
             << "stands for the segment " << symbol << ", so a declaration of "
             << "type " << type << " was expected, but found "
             << (function.isDeclaration() ? "one" : "a definition")
             << " of type " << function.getFunctionType();
    }
    function->removeAttr(kSegment);

    Block *entry = function.addEntryBlock();
    Names &names = taken[function];
    for (unsigned index : used) {
      if (isOperand(program.getBufferRole(index)))
        continue;
      FailureOr<unsigned> buffer = indexOf(program, index);
      if (failed(buffer))
        return failure();
      names.insert(*buffer);
      bodies[function].push_back({*buffer, programBlock->getArgument(index)});
    }
    builder.setInsertionPointToEnd(entry);
    entry->getOperations().splice(entry->end(),
                                  segment.getBody().front().getOperations());
    func::ReturnOp::create(builder, segment.getLoc());
    for (auto [index, argument] : llvm::zip(arguments, entry->getArguments()))
      replaceInside(function, programBlock->getArgument(index), argument);
    return success();
  }

  /// Buffers that callers hand to a segment one by one; the others are taken
  /// by the whole function.
  static bool isOperand(BufferRole role) {
    return role == BufferRole::Activation || role == BufferRole::Parameter ||
           role == BufferRole::PageCopies;
  }

  static void replaceInside(func::FuncOp function, Value from, Value to) {
    from.replaceUsesWithIf(to, [&](OpOperand &use) {
      return function->isProperAncestor(use.getOwner());
    });
  }

  func::FuncOp getCallee(func::CallOp call) {
    return symbols.lookupNearestSymbolFrom<func::FuncOp>(
        call, call.getCalleeAttr().getAttr());
  }

  void propagateToCallers() {
    module.walk([&](func::CallOp call) { calls.push_back(call); });
    for (bool changed = true; changed;) {
      changed = false;
      for (func::CallOp call : calls) {
        func::FuncOp callee = getCallee(call);
        auto caller = call->getParentOfType<func::FuncOp>();
        auto *found = callee ? taken.find(callee) : taken.end();
        if (found == taken.end() || !caller || caller == callee)
          continue;
        Names names = found->second;
        Names &own = taken[caller];
        size_t before = own.size();
        own.insert(names.begin(), names.end());
        changed |= own.size() != before;
      }
    }
  }

  /// A signature may change only if everybody who uses the symbol follows.
  LogicalResult checkUses() {
    DenseMap<StringAttr, func::FuncOp> changed;
    for (auto &[function, names] : taken)
      if (!names.empty())
        changed[function.getSymNameAttr()] = function;
    if (changed.empty())
      return success();
    for (SymbolTable::SymbolUse use : getAllSymbolUses(module)) {
      StringAttr name = use.getSymbolRef().getRootReference();
      auto call = dyn_cast<func::CallOp>(use.getUser());
      if (!changed.contains(name) ||
          (call && call->getParentOfType<func::FuncOp>()))
        continue;
      return use.getUser()->emitError()
             << "uses @" << name.getValue()
             << ", which has to take the program's buffers as arguments; "
                "only a 'func.call' in a 'func.func' can hand them on";
    }
    return success();
  }

  void takeBuffers(func::FuncOp function) {
    const Names &names = taken[function];
    if (names.empty())
      return;
    Builder builder(module.getContext());
    SmallVector<Attribute> texts;
    unsigned first = firstTaken[function] = function.getNumArguments();
    SmallVector<Type> types;
    for (unsigned index : names) {
      auto &[name, type] = *std::next(buffers.begin(), index);
      texts.push_back(builder.getStringAttr(name));
      types.push_back(type);
    }
    (void)function.insertArguments(
        SmallVector<unsigned>(types.size(), first), types,
        SmallVector<DictionaryAttr>(types.size(),
                                    builder.getDictionaryAttr({})),
        SmallVector<Location>(types.size(), function.getLoc()));
    for (auto [index, value] : bodies[function])
      replaceInside(function, value, argumentFor(function, index));
    function->setAttr(kTakenBuffers, builder.getArrayAttr(texts));
  }

  Value argumentFor(func::FuncOp function, unsigned buffer) {
    const Names &names = taken[function];
    return function.getArgument(
        firstTaken[function] +
        std::distance(names.begin(), names.find(buffer)));
  }

  void handOn(func::CallOp call) {
    func::FuncOp callee = getCallee(call);
    if (!callee || !firstTaken.contains(callee))
      return;
    auto caller = call->getParentOfType<func::FuncOp>();
    for (unsigned index : taken[callee])
      call.getOperandsMutable().append(argumentFor(caller, index));
  }

  /// Nobody asks for caches, groups and scales once no cache op is left.
  void eraseDeclarations() {
    SmallVector<Operation *> declarations;
    WalkResult others = module.walk([&](Operation *op) {
      if (isa<CacheOp, CacheGroupOp, ScaleBufferOp>(op))
        declarations.push_back(op);
      else if (isa_and_nonnull<KVCacheDialect>(op->getDialect()))
        return WalkResult::interrupt();
      return WalkResult::advance();
    });
    if (!others.wasInterrupted())
      for (Operation *op : declarations)
        op->erase();
  }

  ModuleOp module;
  SymbolTableCollection symbols;
  DenseMap<Attribute, func::FuncOp> standIns;
  llvm::MapVector<StringRef, Type> buffers;
  llvm::MapVector<func::FuncOp, Names> taken;
  DenseMap<func::FuncOp, SmallVector<std::pair<unsigned, Value>>> bodies;
  DenseMap<func::FuncOp, unsigned> firstTaken;
  SmallVector<func::CallOp> calls;
};

} // namespace

LogicalResult mlir::kvcache::segmentsToFunctions(ModuleOp module) {
  return SegmentLowering(module).run();
}
