//===- CaptureHazards.cpp - Why ops of the dialect cannot be captured -----===//

#include "kvcache/IR/KVCache.h"
#include "mlir/Interfaces/ViewLikeInterface.h"

using namespace mlir;
using namespace mlir::kvcache;

StringRef mlir::kvcache::stringifyCaptureHazardKind(CaptureHazard::Kind kind) {
  switch (kind) {
  case CaptureHazard::Kind::HostRead:
    return "host-read";
  case CaptureHazard::Kind::Synchronization:
    return "synchronization";
  case CaptureHazard::Kind::Allocation:
    return "allocation";
  case CaptureHazard::Kind::LiveGeometry:
    return "live-geometry";
  case CaptureHazard::Kind::Unbounded:
    return "unbounded";
  case CaptureHazard::Kind::UnstableAddress:
    return "unstable-address";
  case CaptureHazard::Kind::ControlFlow:
    return "control-flow";
  case CaptureHazard::Kind::OpaqueCall:
    return "opaque-call";
  case CaptureHazard::Kind::HostScalar:
    return "host-scalar";
  case CaptureHazard::Kind::ForeignOp:
    return "foreign-op";
  }
  llvm_unreachable("all kinds are handled");
}

std::optional<CaptureHazard> CalculateScalesOp::getCaptureHazard() {
  return CaptureHazard{
      CaptureHazard::Kind::HostRead,
      "it computes scales on the device and reads them back on the host",
      "run 'kvcache-drop-dynamic-scales': scales come from the checkpoint, "
      "else they are 1.0"};
}

/// A memref that the region itself made, or that is loaded or selected, may be
/// elsewhere on the next replay; an argument, and a view of one, stays.
static bool hasStableAddress(Value memref) {
  while (Operation *def = memref.getDefiningOp()) {
    auto view = dyn_cast<ViewLikeOpInterface>(def);
    if (!view)
      return def->hasTrait<OpTrait::ConstantLike>() ||
             def->getName().getStringRef() == "memref.get_global";
    memref = view.getViewSource();
  }
  return true;
}

static CaptureHazard unstable(StringRef what) {
  return {
      CaptureHazard::Kind::UnstableAddress,
      ("it writes " + what + ", which is not at a fixed address").str(),
      "make it an argument of the program, so that the caller binds it once"};
}

/// Pages of a cache that is written must be where they were.
static std::optional<CaptureHazard> getPagesHazard(Value handle) {
  auto view = handle.getDefiningOp<ViewCacheOp>();
  if (!view || (hasStableAddress(view.getKPages()) &&
                hasStableAddress(view.getVPages())))
    return std::nullopt;
  return unstable("a cache");
}

std::optional<CaptureHazard> WriteOp::getCaptureHazard() {
  return getPagesHazard(getCache());
}

std::optional<CaptureHazard> WriteLatentOp::getCaptureHazard() {
  return getPagesHazard(getCache());
}

std::optional<CaptureHazard> CopyPagesOp::getCaptureHazard() {
  return getPagesHazard(getCache());
}

static std::optional<CaptureHazard> getOutputHazard(OperandRange outputs) {
  for (Value output : outputs)
    if (isa<MemRefType>(output.getType()) && !hasStableAddress(output))
      return unstable("an output");
  return std::nullopt;
}

std::optional<CaptureHazard> PagedAttentionOp::getCaptureHazard() {
  return getOutputHazard(getDpsInits());
}

std::optional<CaptureHazard> MLAAttentionOp::getCaptureHazard() {
  return getOutputHazard(getDpsInits());
}

std::optional<CaptureHazard> MergeStatesOp::getCaptureHazard() {
  return getOutputHazard(getDpsInits());
}

std::optional<CaptureHazard> LaunchOp::getCaptureHazard() {
  for (Value buffer : getBuffers())
    if (!hasStableAddress(buffer))
      return unstable("or reads a buffer");
  return std::nullopt;
}
