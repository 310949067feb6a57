//===- VerifyCapturable.cpp - Can a program be one static graph? ----------===//

#include "kvcache/Bundle/Manifest.h"
#include "kvcache/Conversion/DeviceFunctions.h"
#include "kvcache/IR/ForeignSemantics.h"
#include "kvcache/IR/SymbolLookup.h"
#include "kvcache/Transforms/CaptureHazards.h"
#include "kvcache/Transforms/Passes.h"
#include "mlir/Dialect/ControlFlow/IR/ControlFlowOps.h"
#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "mlir/Dialect/SCF/IR/SCF.h"
#include "mlir/Interfaces/SideEffectInterfaces.h"
#include "llvm/Support/FormatVariadic.h"
#include "llvm/Support/InterleavedRange.h"

namespace mlir::kvcache {
#define GEN_PASS_DEF_VERIFYCAPTURABLE
#include "kvcache/Transforms/Passes.h.inc"
} // namespace mlir::kvcache

using namespace mlir;
using namespace mlir::kvcache;

namespace {

struct VerifyCapturable
    : public mlir::kvcache::impl::VerifyCapturableBase<VerifyCapturable> {
  using VerifyCapturableBase::VerifyCapturableBase;

  unsigned hazards = 0;
  /// Set while the pass runs.
  SymbolTableCollection *symbols = nullptr;

  void runOnOperation() override {
    hazards = 0;
    SymbolTableCollection tables;
    symbols = &tables;
    for (Operation &op : *getOperation().getBody()) {
      if (auto program = dyn_cast<ProgramOp>(op))
        checkProgram(program);
      else if (auto function = dyn_cast<func::FuncOp>(op))
        checkFunction(function);
    }
    numHazards += hazards;
    if (hazards)
      signalPassFailure();
  }

  void report(Operation *op, const CaptureHazard &hazard,
              Operation *source = nullptr) {
    ++hazards;
    InFlightDiagnostic diag =
        op->emitError() << "'" << op->getName() << "' cannot be captured ("
                        << stringifyCaptureHazardKind(hazard.kind) << ")";
    diag.attachNote(source ? source->getLoc() : op->getLoc())
        << "cause: " << hazard.cause;
    diag.attachNote(op->getLoc()) << "what to do: " << hazard.remedy;
  }

  /// The op's own hazard. True when there is one.
  bool check(Operation *op) {
    auto interface = dyn_cast<CaptureHazardOpInterface>(op);
    std::optional<CaptureHazard> hazard =
        interface ? interface.getCaptureHazard()
                  : std::optional<CaptureHazard>();
    if (hazard) {
      Operation *source = nullptr;
      for (Value operand : op->getOperands())
        if (operand.getType().isIntOrIndex() && !source)
          source = findLiveSource(operand);
      report(op, *hazard, source);
      return true;
    }
    if (auto cacheOp = dyn_cast<CacheOpInterface>(op))
      return checkCapacities(cacheOp);
    if (auto launch = dyn_cast<LaunchOp>(op))
      return checkPlan(launch);
    return false;
  }

  /// A launch whose grid or constants are not those of the capacities was
  /// planned for the lengths of one step.
  bool checkPlan(LaunchOp op) {
    const DeviceFunction *function = findDeviceFunction(op.getFunction());
    auto program = op->getParentOfType<ProgramOp>();
    CacheOp cache;
    if (op.getLayer())
      cache = symbols->lookupNearestSymbolFrom<CacheOp>(
          program->getParentOp(),
          StringAttr::get(&getContext(), *op.getLayer()));
    CacheGroupOp group =
        cache ? getBeside<CacheGroupOp>(cache, cache.getGroupAttr(), *symbols)
              : CacheGroupOp();
    if (!function || !group || !function->accepts(op.getStructure().size()))
      return false;
    ::kvcache::Capacities sizes;
    std::tie(sizes.maxSequences, sizes.maxTokens) = program.getRoom(group);
    sizes.maxPagesPerSequence = group.getMaxPagesPerSequence().value_or(0);
    sizes.numPages = group.getNumPages().value_or(0);
    if (!sizes.maxTokens || !sizes.maxSequences)
      return false;
    ::kvcache::OptionMap structure;
    for (auto [name, value] : llvm::zip(
             function->structure, op.getStructure().getAsRange<IntegerAttr>()))
      structure[name.str()] = value.getInt();
    std::string cause;
    std::optional<std::array<int64_t, 3>> grid =
        ::kvcache::capacityGrid(structure, sizes);
    if (grid && ArrayRef<int64_t>(*grid) != op.getGrid())
      cause = llvm::formatv("its grid is [{0}], but the capacities give [{1}]",
                            llvm::interleaved(op.getGrid()),
                            llvm::interleaved(*grid));
    for (auto [constant, origin] :
         llvm::zip(op.getConstants(),
                   op.getOrigins().getAsValueRange<StringAttr>())) {
      auto number = dyn_cast<IntegerAttr>(constant);
      if (!number || !cause.empty())
        continue;
      std::optional<int64_t> expected = ::kvcache::capacityConstant(
          std::string_view(origin), sizes,
          static_cast<int64_t>(group.getPageSize()));
      if (expected && *expected != number.getInt())
        cause = llvm::formatv("its {0} is {1}, but the capacity is {2}", origin,
                              number.getInt(), *expected);
    }
    if (cause.empty())
      return false;
    report(op,
           {CaptureHazard::Kind::LiveGeometry,
            cause + ": it was planned for the lengths of one step",
            "launch for the capacities, as 'kvcache-select-kernels' does; "
            "blocks without work return at once"},
           group);
    return true;
  }

  bool checkCapacities(CacheOpInterface op) {
    CacheOp cache = getCacheDeclaration(op.getCacheHandle(), *symbols);
    CacheGroupOp group =
        cache ? getBeside<CacheGroupOp>(cache, cache.getGroupAttr(), *symbols)
              : CacheGroupOp();
    if (!group)
      return false;
    SmallVector<StringRef> missing;
    for (auto [name, value] :
         {std::pair<StringRef, std::optional<uint64_t>>{"max_tokens",
                                                        group.getMaxTokens()},
          {"max_sequences", group.getMaxSequences()},
          {"max_pages_per_sequence", group.getMaxPagesPerSequence()},
          {"num_pages", group.getNumPages()}})
      if (!value)
        missing.push_back(name);
    if (missing.empty())
      return false;
    report(
        op,
        {CaptureHazard::Kind::Unbounded,
         ("its grid would depend on live sizes, because the cache group @" +
          group.getSymName() + " does not bound " + llvm::join(missing, ", "))
             .str(),
         "give the capacities of the cache group"},
        group);
    return true;
  }

  void checkProgram(ProgramOp program) {
    for (auto segment : program.getBody().front().getOps<SegmentOp>())
      segment.walk<WalkOrder::PreOrder>([&](Operation *op) {
        if (op == segment.getOperation() || check(op))
          return;
        if (isa<CacheOpInterface, ViewCacheOp, LaunchOp, QuantizeOp,
                DequantizeOp>(op) ||
            isPure(op) || isa<CaptureHazardOpInterface>(op))
          return;
        report(op, foreign());
      });
  }

  static CaptureHazard foreign() {
    return {CaptureHazard::Kind::ForeignOp,
            "it is not a cache op, so another compiler lowers it, and the "
            "graph ends in front of it",
            "move it in front of the first cache op or behind the last, or "
            "allow several graphs "
            "(without one-graph)"};
  }

  /// The captured part of a function: from its first cache op to its last.
  void checkFunction(func::FuncOp function) {
    SmallVector<Operation *> cacheOps;
    function.walk([&](CacheOpInterface op) { cacheOps.push_back(op); });
    if (cacheOps.empty())
      return;
    if (!function.getBody().hasOneBlock()) {
      for (Block &block : function.getBody()) {
        Operation *terminator = block.getTerminator();
        if (terminator->getNumSuccessors() > 1)
          report(
              terminator,
              {CaptureHazard::Kind::ControlFlow,
               "it chooses at run time what happens next",
               "make the decision in the kernel, which can skip its own work"});
      }
      for (Operation *op : cacheOps)
        check(op);
      return;
    }
    Block &block = function.getBody().front();
    Operation *last = block.findAncestorOpInBlock(*cacheOps.back());
    DenseSet<Value> computed; // values that depend on a cache op
    SmallVector<Operation *> between;
    bool started = false;
    Operation *previous = nullptr;
    for (Operation &op : block) {
      bool holdsCacheOp = isa<CacheOpInterface>(op) ||
                          (op.getNumRegions() &&
                           llvm::any_of(cacheOps, [&](Operation *cacheOp) {
                             return op.isProperAncestor(cacheOp);
                           }));
      if (!started && !holdsCacheOp)
        continue;
      if (holdsCacheOp && !between.empty()) {
        reportSplit(previous, between);
        between.clear();
      }
      started = true;
      if (auto attention = dyn_cast<AttentionOpInterface>(op))
        checkOutputs(attention, computed, previous);
      bool depends =
          holdsCacheOp || llvm::any_of(op.getOperands(), [&](Value operand) {
            return computed.contains(operand);
          });
      if (depends)
        computed.insert(op.result_begin(), op.result_end());
      bool hazard = checkTree(&op);
      if (isa<CacheOpInterface>(op))
        previous = &op;
      else if (!hazard &&
               !isa<GetCacheOp, ViewCacheOp, QuantizeOp, DequantizeOp,
                    MergeStatesOp>(op) &&
               (depends || !(isPure(&op) || isFunctionalForeignOp(&op))) &&
               !holdsCacheOp)
        between.push_back(&op);
      if (&op == last)
        break;
    }
  }

  /// An op and, through control flow only, what is in it: the body of another
  /// foreign op runs on the device.
  bool checkTree(Operation *op) {
    bool hazard = check(op);
    if (isa_and_nonnull<scf::SCFDialect>(op->getDialect()))
      for (Region &region : op->getRegions())
        for (Operation &nested : region.getOps())
          hazard |= checkTree(&nested);
    return hazard;
  }

  /// What an output held before must be copied to where it may be written.
  void checkOutputs(AttentionOpInterface op, const DenseSet<Value> &computed,
                    Operation *previous) {
    if (llvm::none_of(op.getDpsInits(),
                      [&](Value init) { return computed.contains(init); }))
      return;
    ++numSplits;
    if (oneGraph)
      report(op,
             {CaptureHazard::Kind::ForeignOp,
              "its output starts as the result of another cache op, which must "
              "be copied first, and the graph ends in front of it",
              "give each attention an output of its own, or allow several "
              "graphs (without one-graph)"});
    else if (previous)
      previous->emitRemark() << "the graph ends here: the output of the next "
                                "cache op starts as a result of this graph";
  }

  void reportSplit(Operation *previous, ArrayRef<Operation *> ops) {
    numSplits += ops.size();
    if (oneGraph) {
      for (Operation *op : ops)
        report(op, foreign());
      return;
    }
    if (!previous)
      return;
    InFlightDiagnostic diag =
        previous->emitRemark()
        << "the graph ends here: " << ops.size()
        << (ops.size() == 1 ? " foreign op follows" : " foreign ops follow")
        << " before the next cache op";
    diag.attachNote(ops.front()->getLoc())
        << "the first is this '" << ops.front()->getName() << "'";
  }
};
} // namespace
