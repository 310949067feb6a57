//===- KVCache.h - The kvcache dialect -------------------------*- C++ -*-===//
//
// Everything of the dialect: enums, attributes, types, interfaces and ops.
//
//===----------------------------------------------------------------------===//

#ifndef KVCACHE_IR_KVCACHE_H
#define KVCACHE_IR_KVCACHE_H

#include "mlir/Bytecode/BytecodeOpInterface.h"
#include "mlir/IR/BuiltinAttributes.h"
#include "mlir/IR/BuiltinTypes.h"
#include "mlir/IR/Dialect.h"
#include "mlir/IR/OpDefinition.h"
#include "mlir/IR/OpImplementation.h"
#include "mlir/IR/RegionKindInterface.h"
#include "mlir/IR/SymbolTable.h"
#include "mlir/Interfaces/DestinationStyleOpInterface.h"
#include "mlir/Interfaces/FunctionInterfaces.h"
#include "mlir/Interfaces/SideEffectInterfaces.h"
#include <optional>

#include "kvcache/IR/KVCacheDialect.h.inc"
#include "kvcache/IR/KVCacheEnums.h.inc"

#define GET_ATTRDEF_CLASSES
#include "kvcache/IR/KVCacheAttributes.h.inc"

#define GET_TYPEDEF_CLASSES
#include "kvcache/IR/KVCacheTypes.h.inc"

namespace mlir::kvcache {

/// Names of discardable attributes.
inline constexpr llvm::StringLiteral kBufferName = "kvcache.name";
inline constexpr llvm::StringLiteral kBufferRole = "kvcache.role";
/// On an attention op: where its softmax scale comes from, when the graph did
/// not say it.
inline constexpr llvm::StringLiteral kSoftmaxScaleFrom =
    "kvcache.softmax_scale_from";
/// On an argument that import added: the name of the checkpoint's tensor.
inline constexpr llvm::StringLiteral kWeight = "kvcache.weight";
/// On a private function: the `@program::@segment` that it stands for.
inline constexpr llvm::StringLiteral kSegment = "kvcache.segment";
/// On get_cache: each rank along these axes of a grid has tokens of its own of
/// every sequence, `{grid = @ranks, axes = [1]}`. Partitioning takes it away.
inline constexpr llvm::StringLiteral kSequenceAxes = "kvcache.sequence_axes";

/// Why an op cannot be part of a captured graph.
struct CaptureHazard {
  enum class Kind {
    HostRead,        ///< a value of the device is read by the host
    Synchronization, ///< the host waits for the device
    Allocation,      ///< memory is allocated or freed
    LiveGeometry,    ///< grid or shared memory depends on device values
    Unbounded,       ///< a capacity is not known
    UnstableAddress, ///< a mutated buffer does not stay where it is
    ControlFlow,     ///< a branch on a device value
    OpaqueCall,      ///< a call of a function that nobody can look into
    HostScalar,      ///< a scalar of the host that changes between replays
    ForeignOp,       ///< an op that another compiler lowers
  };
  Kind kind;
  /// The cause, as a clause: "it allocates memory".
  std::string cause;
  /// What to do about it, as a sentence.
  std::string remedy;
};

class ScaleBufferOp;

/// Keyword of a kind in diagnostics and options, such as "host-read".
llvm::StringRef stringifyCaptureHazardKind(CaptureHazard::Kind kind);

/// The memory behind all cache handles.
struct CacheResource : public SideEffects::Resource::Base<CacheResource> {
  StringRef getName() final { return "kvcache.cache"; }
};
/// The memory of scale buffers that are computed at run time.
struct ScaleResource : public SideEffects::Resource::Base<ScaleResource> {
  StringRef getName() final { return "kvcache.scale"; }
};

} // namespace mlir::kvcache

#include "kvcache/IR/KVCacheInterfaces.h.inc"

#define GET_OP_CLASSES
#include "kvcache/IR/KVCacheOps.h.inc"

namespace mlir::kvcache {

/// The declaration behind a handle, or null when the handle is an argument.
CacheOp getCacheDeclaration(Value handle);

/// The op that makes a handle, get_cache, view_cache or the with_pages around
/// it, and the symbol that it names; nulls for other arguments.
std::pair<Operation *, FlatSymbolRefAttr> getHandleSource(Value handle);

/// How a write rotates keys, or the rotary part of latent rows (RoPE).
struct KeyRotation {
  Value table, positions; ///< null where nothing is rotated
  bool isInterleaved = false;

  explicit operator bool() const { return bool(table); }
  /// Elements that are rotated: two for each angle of the table.
  int64_t getRotaryDim() const {
    return cast<ShapedType>(table.getType()).getDimSize(1);
  }
};

/// The rotation of a write; none of other ops.
KeyRotation getKeyRotation(Operation *op);

/// Largest finite value of a quantized element type, in its own semantics.
llvm::APFloat getLargestFinite(FloatType type);

} // namespace mlir::kvcache

#endif // KVCACHE_IR_KVCACHE_H
