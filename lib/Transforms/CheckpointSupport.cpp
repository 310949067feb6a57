//===- CheckpointSupport.cpp - Between IR and checkpoint library ----------===//

#include "CheckpointSupport.h"

using namespace mlir;
using namespace mlir::kvcache;

FailureOr<std::optional<::kvcache::Checkpoint>>
mlir::kvcache::openCheckpoint(ModuleOp module, StringRef path) {
  if (path.empty())
    return std::optional<::kvcache::Checkpoint>();
  ::kvcache::Expected<::kvcache::Checkpoint> opened =
      ::kvcache::Checkpoint::open(path.str());
  if (!opened)
    return emitError(module.getLoc()) << opened.message();
  return std::optional<::kvcache::Checkpoint>(std::move(*opened));
}

LogicalResult mlir::kvcache::emitDiagnostics(
    ModuleOp module, const std::vector<::kvcache::Diagnostic> &diagnostics,
    llvm::function_ref<Operation *(StringRef layer)> findOp) {
  LogicalResult result = success();
  for (const ::kvcache::Diagnostic &diagnostic : diagnostics) {
    Operation *op =
        diagnostic.layer.empty() ? nullptr : findOp(diagnostic.layer);
    Location loc = op ? op->getLoc() : module.getLoc();
    switch (diagnostic.severity) {
    case ::kvcache::Severity::Error:
      result = emitError(loc, diagnostic.message);
      break;
    case ::kvcache::Severity::Warning:
      emitWarning(loc, diagnostic.message);
      break;
    case ::kvcache::Severity::Remark:
      emitRemark(loc, diagnostic.message);
      break;
    }
  }
  return result;
}

::kvcache::CacheType mlir::kvcache::toCheckpointType(Type elementType) {
  if (isa<Float8E4M3FNType>(elementType))
    return ::kvcache::CacheType::F8E4M3FN;
  if (isa<Float8E5M2Type>(elementType))
    return ::kvcache::CacheType::F8E5M2;
  if (isa<Float8E4M3FNUZType>(elementType))
    return ::kvcache::CacheType::F8E4M3FNUZ;
  if (elementType.isInteger(8))
    return ::kvcache::CacheType::FP8DSMLA;
  if (isa<Float16Type>(elementType))
    return ::kvcache::CacheType::F16;
  if (isa<BFloat16Type>(elementType))
    return ::kvcache::CacheType::BF16;
  assert(isa<Float32Type>(elementType) &&
         "the type's verifier allows no other");
  return ::kvcache::CacheType::F32;
}

Type mlir::kvcache::fromCheckpointType(MLIRContext *context,
                                       ::kvcache::CacheType type) {
  switch (type) {
  case ::kvcache::CacheType::F32:
    return Float32Type::get(context);
  case ::kvcache::CacheType::F16:
    return Float16Type::get(context);
  case ::kvcache::CacheType::BF16:
    return BFloat16Type::get(context);
  case ::kvcache::CacheType::F8E4M3FN:
    return Float8E4M3FNType::get(context);
  case ::kvcache::CacheType::F8E5M2:
    return Float8E5M2Type::get(context);
  case ::kvcache::CacheType::F8E4M3FNUZ:
    return Float8E4M3FNUZType::get(context);
  case ::kvcache::CacheType::FP8PerTokenHead:
  case ::kvcache::CacheType::INT8PerTokenHead:
  case ::kvcache::CacheType::FP8DSMLA:
    return {};
  }
  llvm_unreachable("all types are handled");
}
