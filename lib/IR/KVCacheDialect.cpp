//===- KVCacheDialect.cpp - The kvcache dialect ---------------------------===//

#include "kvcache/IR/KVCache.h"
#include "mlir/IR/Builders.h"
#include "mlir/IR/DialectImplementation.h"
#include "llvm/ADT/TypeSwitch.h"

using namespace mlir;
using namespace mlir::kvcache;

#include "kvcache/IR/KVCacheDialect.cpp.inc"
#include "kvcache/IR/KVCacheEnums.cpp.inc"
#include "kvcache/IR/KVCacheInterfaces.cpp.inc"

#define GET_ATTRDEF_CLASSES
#include "kvcache/IR/KVCacheAttributes.cpp.inc"

#define GET_TYPEDEF_CLASSES
#include "kvcache/IR/KVCacheTypes.cpp.inc"

void KVCacheDialect::initialize() {
  addAttributes<
#define GET_ATTRDEF_LIST
#include "kvcache/IR/KVCacheAttributes.cpp.inc"
      >();
  addTypes<
#define GET_TYPEDEF_LIST
#include "kvcache/IR/KVCacheTypes.cpp.inc"
      >();
  addOperations<
#define GET_OP_LIST
#include "kvcache/IR/KVCacheOps.cpp.inc"
      >();
}
