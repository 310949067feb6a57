//===- CachesToArguments.cpp - Buffers of caches as function arguments ----===//

#include "kvcache/Conversion/Passes.h"
#include "kvcache/IR/SymbolLookup.h"
#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "llvm/ADT/SetVector.h"

namespace mlir::kvcache {
#define GEN_PASS_DEF_CACHESTOARGUMENTS
#include "kvcache/Conversion/Passes.h.inc"
} // namespace mlir::kvcache

using namespace mlir;
using namespace mlir::kvcache;

namespace {

/// One argument to be added.
struct Buffer {
  std::string name;
  BufferRole role;
  MemRefType type;
};

/// Where the buffers of caches and groups are among a function's new arguments.
struct Signature {
  SmallVector<Buffer> buffers;
  /// k_pages, v_pages; of a latent cache its only pages.
  DenseMap<CacheOp, unsigned> firstOfCache;
  DenseMap<CacheGroupOp, unsigned>
      firstOfGroup; ///< table, lengths, starts, slots
};

int64_t sizeOr(std::optional<uint64_t> capacity) {
  return capacity ? static_cast<int64_t>(*capacity) : ShapedType::kDynamic;
}

class CachesToArgumentsPass
    : public kvcache::impl::CachesToArgumentsBase<CachesToArgumentsPass> {
public:
  void runOnOperation() override {
    if (failed(collectHandles()))
      return signalPassFailure();
    propagateToCallers();
    if (failed(checkUses()))
      return signalPassFailure();
    for (auto &[function, caches] : used)
      if (!caches.empty())
        addArguments(function, caches);
    for (func::CallOp call : calls)
      handOn(call);
  }

private:
  using CacheSet = llvm::SmallSetVector<CacheOp, 4>;

  LogicalResult collectHandles() {
    used.clear();
    calls.clear();
    for (auto function : getOperation().getOps<func::FuncOp>())
      used.insert({function, {}});
    auto result = getOperation().walk([&](Operation *op) {
      if (auto call = dyn_cast<func::CallOp>(op))
        calls.push_back(call);
      auto get = dyn_cast<GetCacheOp>(op);
      if (!get)
        return WalkResult::advance();
      auto function = get->getParentOfType<func::FuncOp>();
      auto *entry = function ? used.find(function) : used.end();
      if (entry == used.end()) {
        get.emitOpError()
            << "is not in a 'func.func' of this module, so its buffers cannot "
               "become arguments; use 'kvcache.view_cache' here";
        return WalkResult::interrupt();
      }
      if (failed(get.checkPartitioned()))
        return WalkResult::interrupt();
      entry->second.insert(getCacheDeclaration(get.getHandle()));
      return WalkResult::advance();
    });
    return failure(result.wasInterrupted());
  }

  func::FuncOp getCallee(func::CallOp call) {
    return SymbolTable::lookupNearestSymbolFrom<func::FuncOp>(
        call, call.getCalleeAttr());
  }

  CacheSet *cachesOf(func::FuncOp function) {
    auto *entry = function ? used.find(function) : used.end();
    return entry == used.end() ? nullptr : &entry->second;
  }

  void propagateToCallers() {
    for (bool changed = true; changed;) {
      changed = false;
      for (func::CallOp call : calls) {
        CacheSet *callee = cachesOf(getCallee(call));
        CacheSet *caller = cachesOf(call->getParentOfType<func::FuncOp>());
        if (!callee || !caller || callee == caller)
          continue;
        for (CacheOp cache : *callee)
          changed |= caller->insert(cache);
      }
    }
  }

  /// A signature may change only if everybody who uses the symbol follows.
  LogicalResult checkUses() {
    for (auto &[function, caches] : used) {
      if (caches.empty())
        continue;
      for (SymbolTable::SymbolUse use : getAllSymbolUses(getOperation())) {
        if (use.getSymbolRef().getRootReference() != function.getSymNameAttr())
          continue;
        auto call = dyn_cast<func::CallOp>(use.getUser());
        if (call && cachesOf(call->getParentOfType<func::FuncOp>()))
          continue;
        InFlightDiagnostic diag =
            use.getUser()->emitOpError()
            << "uses @" << function.getSymName()
            << ", which has to take the buffers of cache @"
            << CacheOp(caches.front()).getSymName()
            << " as arguments; only a 'func.call' in a 'func.func' can hand "
               "them on";
        diag.attachNote(function.getLoc()) << "the function is here";
        return diag;
      }
    }
    return success();
  }

  Signature layOut(const CacheSet &caches) {
    Signature signature;
    bool manyGroups =
        llvm::range_size(getOperation().getOps<CacheGroupOp>()) > 1;
    SmallVector<CacheGroupOp> groups;
    // In the order of declaration, which is the same for callers and callees.
    for (auto cache : getOperation().getOps<CacheOp>()) {
      if (!caches.contains(cache))
        continue;
      if (!llvm::is_contained(groups, cache.getGroupOp()))
        groups.push_back(cache.getGroupOp());
      signature.firstOfCache[cache] = signature.buffers.size();
      auto add = [&](StringRef suffix, bool ofV = false) {
        signature.buffers.push_back({(cache.getSymName() + suffix).str(),
                                     BufferRole::Cache,
                                     cache.getPagesType(ofV)});
      };
      if (cache.getCacheType().isLatent()) {
        add(".kv_cache");
      } else {
        add(".k_cache");
        add(".v_cache", /*ofV=*/true);
      }
      if (cache.hasSideScales())
        for (StringRef suffix : {".k_scales", ".v_scales"})
          signature.buffers.push_back({(cache.getSymName() + suffix).str(),
                                       BufferRole::Cache,
                                       cache.getTokenScalesType()});
    }
    Builder builder(&getContext());
    Type i32 = builder.getI32Type(), i64 = builder.getI64Type();
    for (CacheGroupOp group : groups) {
      std::string prefix = manyGroups ? (group.getSymName() + ".").str() : "";
      int64_t sequences = sizeOr(group.getMaxSequences());
      int64_t starts =
          ShapedType::isDynamic(sequences) ? sequences : sequences + 1;
      signature.firstOfGroup[group] = signature.buffers.size();
      signature.buffers.append(
          {{prefix + "page_table", BufferRole::PageTable,
            MemRefType::get({sequences, sizeOr(group.getMaxPagesPerSequence())},
                            i32)},
           {prefix + "lengths", BufferRole::Lengths,
            MemRefType::get({sequences}, i32)},
           {prefix + "query_start", BufferRole::QueryStart,
            MemRefType::get({starts}, i32)},
           {prefix + "slot_mapping", BufferRole::Slots,
            MemRefType::get({sizeOr(group.getMaxTokens())}, i64)}});
    }
    return signature;
  }

  void addArguments(func::FuncOp function, const CacheSet &caches) {
    Signature signature = layOut(caches);
    unsigned first = function.getNumArguments();
    firstNew[function] = first;
    Builder builder(&getContext());
    for (const Buffer &buffer : signature.buffers) {
      NamedAttribute attributes[] = {
          builder.getNamedAttr(kBufferName, builder.getStringAttr(buffer.name)),
          builder.getNamedAttr(
              kBufferRole, BufferRoleAttr::get(&getContext(), buffer.role))};
      (void)function.insertArgument(function.getNumArguments(), buffer.type,
                                    builder.getDictionaryAttr(attributes),
                                    function.getLoc());
    }
    ++numFunctions;
    SmallVector<GetCacheOp> handles;
    function.walk([&](GetCacheOp get) { handles.push_back(get); });
    for (GetCacheOp get : handles) {
      CacheOp cache = getCacheDeclaration(get.getHandle());
      auto pages = function.getArguments().drop_front(
          first + signature.firstOfCache[cache]);
      auto tables = function.getArguments().drop_front(
          first + signature.firstOfGroup[cache.getGroupOp()]);
      OpBuilder at(get);
      bool hasScales = cache.hasSideScales();
      Value view = ViewCacheOp::create(
          at, get.getLoc(), get.getHandle().getType(), get.getCacheAttr(),
          pages[0], pages[cache.getCacheType().isLatent() ? 0 : 1], tables[0],
          tables[1], tables[2], tables[3],
          hasScales ? Value(pages[2]) : Value(),
          hasScales ? Value(pages[3]) : Value());
      get.replaceAllUsesWith(view);
      get.erase();
    }
  }

  /// Passes the caller's buffers on, found by their names.
  void handOn(func::CallOp call) {
    func::FuncOp callee = getCallee(call);
    auto added = callee ? firstNew.find(callee) : firstNew.end();
    if (added == firstNew.end())
      return;
    auto caller = call->getParentOfType<func::FuncOp>();
    for (unsigned i = added->second; i < callee.getNumArguments(); ++i) {
      Attribute name = callee.getArgAttr(i, kBufferName);
      for (unsigned j = firstNew[caller]; j < caller.getNumArguments(); ++j)
        if (caller.getArgAttr(j, kBufferName) == name)
          call.getOperandsMutable().append(caller.getArgument(j));
    }
    ++numCalls;
  }

  llvm::MapVector<func::FuncOp, CacheSet> used;
  SmallVector<func::CallOp> calls;
  DenseMap<func::FuncOp, unsigned> firstNew;
};

} // namespace
