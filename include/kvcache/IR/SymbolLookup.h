//===- SymbolLookup.h - Lookups that remember symbol tables -----*- C++ -*-===//
//
// `getCacheDeclaration(Value)` and the accessors of kvcache.cache search their
// symbol table from its start. Passes that look up the declaration of every op
// use these, so that their time stays linear in the number of layers.
//
//===----------------------------------------------------------------------===//

#ifndef KVCACHE_IR_SYMBOLLOOKUP_H
#define KVCACHE_IR_SYMBOLLOOKUP_H

#include "kvcache/IR/KVCache.h"

namespace mlir::kvcache {

/// The declaration behind a handle, or null when the handle is an argument.
inline CacheOp getCacheDeclaration(Value handle,
                                   SymbolTableCollection &symbols) {
  auto [def, name] = getHandleSource(handle);
  if (!def)
    return nullptr;
  // A program is a symbol table of its own; caches are declared outside it.
  for (Operation *op = def->getParentOp(); op; op = op->getParentOp())
    if (op->hasTrait<OpTrait::SymbolTable>())
      if (auto cache = dyn_cast_or_null<CacheOp>(
              symbols.lookupSymbolIn(op, name.getAttr())))
        return cache;
  return nullptr;
}

/// The op of type `OpT` that `name` stands for beside `cache`, or null.
template <typename OpT>
OpT getBeside(CacheOp cache, FlatSymbolRefAttr name,
              SymbolTableCollection &symbols) {
  return symbols.lookupNearestSymbolFrom<OpT>(cache, name.getAttr());
}

/// Uses of symbols inside `root`, a module or a function. MLIR gives up at ops
/// with regions of dialects that are not linked, as they might be symbol
/// tables; here every reference counts then.
inline SmallVector<SymbolTable::SymbolUse> getAllSymbolUses(Operation *root) {
  // Of the region: uses in a module are not uses by the module.
  if (auto uses = SymbolTable::getSymbolUses(&root->getRegion(0)))
    return llvm::to_vector(*uses);
  SmallVector<SymbolTable::SymbolUse> found;
  root->walk([&](Operation *op) {
    auto collect = [&](Attribute attr) {
      if (attr)
        attr.walk<WalkOrder::PreOrder>([&](Attribute nested) {
          auto symbol = dyn_cast<SymbolRefAttr>(nested);
          if (!symbol)
            return WalkResult::advance();
          found.push_back(SymbolTable::SymbolUse(op, symbol));
          return WalkResult::skip();
        });
    };
    collect(op->getAttrDictionary());
    if (!op->isRegistered())
      collect(op->getPropertiesAsAttribute());
  });
  return found;
}

} // namespace mlir::kvcache

#endif // KVCACHE_IR_SYMBOLLOOKUP_H
