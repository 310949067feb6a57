//===- KVCacheInterfaces.td - Interfaces of cache ops --------*- tablegen -*-===//

#ifndef KVCACHE_IR_KVCACHEINTERFACES_TD
#define KVCACHE_IR_KVCACHEINTERFACES_TD

include "mlir/IR/OpBase.td"
include "mlir/Interfaces/DestinationStyleOpInterface.td"

def CacheOpInterface : OpInterface<"CacheOpInterface"> {
  let cppNamespace = "::mlir::kvcache";
  let description = [{
    An op that reads or writes a cache through a handle. Passes ask this
    interface and never list ops by name.
  }];
  let methods = [
    InterfaceMethod<"The handle of type `!kvcache.cache`.",
      "::mlir::TypedValue<::mlir::kvcache::CacheType>", "getCacheHandle">,
    InterfaceMethod<"Whether the op reads or writes the cache.",
      "::mlir::kvcache::CacheAccess", "getCacheAccess">
  ];
}

def AttentionOpInterface : OpInterface<"AttentionOpInterface", [CacheOpInterface, DestinationStyleOpInterface]> {
  let cppNamespace = "::mlir::kvcache";
  let description = [{
    Attention of ragged queries over a cache. The operands are the query, the
    cache, the output and, if there is one, the LSE, in this order; others
    may follow.
  }];
  let methods = [
    InterfaceMethod<"The queries, `[tokens, query heads, ...]`.", "::mlir::Value", "getQuery">,
    InterfaceMethod<"What the output held before; on memrefs, where it goes.", "::mlir::Value", "getOut">,
    InterfaceMethod<"The same of the LSE; null without one.", "::mlir::Value", "getLse">,
    InterfaceMethod<"Null until the model's config is known.", "::mlir::FloatAttr", "getSoftmaxScaleAttr">,
    InterfaceMethod<"Sets it.", "void", "setSoftmaxScaleAttr", (ins "::mlir::FloatAttr":$scale)>,
    InterfaceMethod<"The name of the scale of FP8 queries; null without one.", "::mlir::FlatSymbolRefAttr", "getQScaleAttr">,
    InterfaceMethod<"The same of an FP8 output.", "::mlir::FlatSymbolRefAttr", "getOScaleAttr">
  ];
  let extraClassDeclaration = [{
    /// The scales that are named; null where there is none.
    ::mlir::kvcache::ScaleBufferOp getQScaleOp();
    ::mlir::kvcache::ScaleBufferOp getOScaleOp();
  }];
  let extraSharedClassDeclaration = [{
    int64_t getNumQueryHeads() {
      return ::llvm::cast<::mlir::ShapedType>($_op.getQuery().getType()).getDimSize(1);
    }
  }];
}

def CaptureHazardOpInterface : OpInterface<"CaptureHazardOpInterface"> {
  let cppNamespace = "::mlir::kvcache";
  let description = [{
    An op that may be impossible in a captured graph. Foreign ops get this
    interface by external models (`registerCaptureHazardExternalModels`).
  }];
  let methods = [
    InterfaceMethod<"Why the op cannot be captured; nothing when it can.",
      "::std::optional<::mlir::kvcache::CaptureHazard>", "getCaptureHazard">
  ];
}

def ScaleUserInterface : OpInterface<"ScaleUserInterface"> {
  let cppNamespace = "::mlir::kvcache";
  let description = [{
    An op whose arithmetic uses scales of its cache, each exactly once.
  }];
  let methods = [
    InterfaceMethod<"The roles of the scales that the op uses, and how each enters the arithmetic.",
      "::llvm::SmallVector<::std::pair<::mlir::kvcache::ScaleRole, ::mlir::kvcache::ScaleUse>>",
      "getScaleUses">
  ];
}

#endif // KVCACHE_IR_KVCACHEINTERFACES_TD
