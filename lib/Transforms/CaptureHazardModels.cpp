//===- CaptureHazardModels.cpp - Hazards of upstream ops ------------------===//

#include "kvcache/IR/KVCache.h"
#include "kvcache/Transforms/CaptureHazards.h"
#include "mlir/Dialect/Bufferization/IR/Bufferization.h"
#include "mlir/Dialect/ControlFlow/IR/ControlFlowOps.h"
#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "mlir/Dialect/GPU/IR/GPUDialect.h"
#include "mlir/Dialect/MemRef/IR/MemRef.h"
#include "mlir/Dialect/SCF/IR/SCF.h"
#include "mlir/Dialect/Tensor/IR/Tensor.h"
#include "mlir/Interfaces/SideEffectInterfaces.h"

using namespace mlir;
using namespace mlir::kvcache;
using Kind = CaptureHazard::Kind;

Operation *mlir::kvcache::findLiveSource(Value value) {
  SmallVector<Value> worklist = {value};
  DenseSet<Value> seen;
  while (!worklist.empty()) {
    Value current = worklist.pop_back_val();
    Operation *def = current.getDefiningOp();
    if (!def || !seen.insert(current).second)
      continue;
    if (isa<memref::LoadOp, tensor::ExtractOp>(def))
      return def;
    if (isa<memref::DimOp, tensor::DimOp>(def)) {
      auto shaped = cast<ShapedType>(def->getOperand(0).getType());
      std::optional<int64_t> index = getConstantIntValue(def->getOperand(1));
      if (!index || shaped.isDynamicDim(*index))
        return def;
      continue;
    }
    llvm::append_range(worklist, def->getOperands());
  }
  return nullptr;
}

bool mlir::kvcache::dependsOnHostScalar(Value value) {
  SmallVector<Value> worklist = {value};
  DenseSet<Value> seen;
  while (!worklist.empty()) {
    Value current = worklist.pop_back_val();
    if (!seen.insert(current).second ||
        !current.getType().isIntOrIndexOrFloat())
      continue;
    Operation *def = current.getDefiningOp();
    if (!def)
      return true;
    llvm::append_range(worklist, def->getOperands());
  }
  return false;
}

namespace {

template <typename OpT>
struct Allocates
    : CaptureHazardOpInterface::ExternalModel<Allocates<OpT>, OpT> {
  std::optional<CaptureHazard> getCaptureHazard(Operation *op) const {
    return CaptureHazard{
        Kind::Allocation, "it allocates or frees memory",
        "allocate before the capture, and make the buffer an argument"};
  }
};

template <typename OpT>
struct ReadsOnHost
    : CaptureHazardOpInterface::ExternalModel<ReadsOnHost<OpT>, OpT> {
  std::optional<CaptureHazard> getCaptureHazard(Operation *op) const {
    return CaptureHazard{
        Kind::HostRead, "the host reads a value that the device computes",
        "keep the value on the device: let the kernel that needs it read it"};
  }
};

struct Waits : CaptureHazardOpInterface::ExternalModel<Waits, gpu::WaitOp> {
  std::optional<CaptureHazard> getCaptureHazard(Operation *op) const {
    if (cast<gpu::WaitOp>(op).getAsyncToken())
      return std::nullopt;
    return CaptureHazard{
        Kind::Synchronization, "the host waits for the device",
        "leave the order to the stream, and wait after the graph was launched"};
  }
};

template <typename OpT>
struct Branches : CaptureHazardOpInterface::ExternalModel<Branches<OpT>, OpT> {
  std::optional<CaptureHazard> getCaptureHazard(Operation *op) const {
    for (Value operand : op->getOperands())
      if (operand.getType().isIntOrIndex() && findLiveSource(operand))
        return CaptureHazard{
            Kind::ControlFlow, "its condition is a value of the device",
            "make the decision in the kernel, which can skip its own work"};
    return std::nullopt;
  }
};

/// scf.while decides in its region.
struct Loops : CaptureHazardOpInterface::ExternalModel<Loops, scf::WhileOp> {
  std::optional<CaptureHazard> getCaptureHazard(Operation *op) const {
    return CaptureHazard{
        Kind::ControlFlow, "it decides at run time how often it repeats",
        "use a loop with constant bounds, or let the kernel loop"};
  }
};

struct Calls : CaptureHazardOpInterface::ExternalModel<Calls, func::CallOp> {
  std::optional<CaptureHazard> getCaptureHazard(Operation *op) const {
    auto call = cast<func::CallOp>(op);
    auto callee = SymbolTable::lookupNearestSymbolFrom<func::FuncOp>(
        op, call.getCalleeAttr());
    if (callee && (!callee.isDeclaration() || callee->hasAttr(kSegment)))
      return std::nullopt;
    return CaptureHazard{
        Kind::OpaqueCall,
        ("it calls @" + call.getCallee() + ", whose body is not known").str(),
        "give the function a body, or inline it"};
  }
};

struct Launches
    : CaptureHazardOpInterface::ExternalModel<Launches, gpu::LaunchFuncOp> {
  std::optional<CaptureHazard> getCaptureHazard(Operation *op) const {
    auto launch = cast<gpu::LaunchFuncOp>(op);
    SmallVector<Value> geometry = {
        launch.getGridSizeX(),  launch.getGridSizeY(),  launch.getGridSizeZ(),
        launch.getBlockSizeX(), launch.getBlockSizeY(), launch.getBlockSizeZ()};
    if (Value shared = launch.getDynamicSharedMemorySize())
      geometry.push_back(shared);
    for (Value size : geometry)
      if (findLiveSource(size))
        return CaptureHazard{Kind::LiveGeometry,
                             "its grid or shared memory depends on a value of "
                             "the device or on a "
                             "dimension that is not known",
                             "launch for the capacity, and let blocks without "
                             "work return at once"};
    for (Value size : geometry)
      if (dependsOnHostScalar(size))
        return hostScalar();
    for (Value operand : launch.getKernelOperands())
      if (dependsOnHostScalar(operand))
        return hostScalar();
    return std::nullopt;
  }
  static CaptureHazard hostScalar() {
    return {Kind::HostScalar,
            "it takes a scalar of the host, which the graph captures as it is "
            "at capture",
            "make it a constant, or keep it in a buffer that the kernel reads"};
  }
};

template <typename OpT>
struct Scales : CaptureHazardOpInterface::ExternalModel<Scales<OpT>, OpT> {
  std::optional<CaptureHazard> getCaptureHazard(Operation *op) const {
    if (dependsOnHostScalar(cast<OpT>(op).getScale()))
      return Launches::hostScalar();
    return std::nullopt;
  }
};

} // namespace

void mlir::kvcache::registerCaptureHazardExternalModels(
    DialectRegistry &registry) {
  registry.addExtension(
      +[](MLIRContext *context, bufferization::BufferizationDialect *) {
        bufferization::AllocTensorOp::attachInterface<
            Allocates<bufferization::AllocTensorOp>>(*context);
      });
  registry.addExtension(+[](MLIRContext *context, func::FuncDialect *) {
    func::CallOp::attachInterface<Calls>(*context);
  });
  registry.addExtension(+[](MLIRContext *context, gpu::GPUDialect *) {
    gpu::AllocOp::attachInterface<Allocates<gpu::AllocOp>>(*context);
    gpu::DeallocOp::attachInterface<Allocates<gpu::DeallocOp>>(*context);
    gpu::LaunchFuncOp::attachInterface<Launches>(*context);
    gpu::WaitOp::attachInterface<Waits>(*context);
  });
  registry.addExtension(+[](MLIRContext *context, memref::MemRefDialect *) {
    memref::AllocOp::attachInterface<Allocates<memref::AllocOp>>(*context);
    memref::DeallocOp::attachInterface<Allocates<memref::DeallocOp>>(*context);
    memref::ReallocOp::attachInterface<Allocates<memref::ReallocOp>>(*context);
    memref::LoadOp::attachInterface<ReadsOnHost<memref::LoadOp>>(*context);
  });
  registry.addExtension(+[](MLIRContext *context, scf::SCFDialect *) {
    scf::ForOp::attachInterface<Branches<scf::ForOp>>(*context);
    scf::IfOp::attachInterface<Branches<scf::IfOp>>(*context);
    scf::IndexSwitchOp::attachInterface<Branches<scf::IndexSwitchOp>>(*context);
    scf::WhileOp::attachInterface<Loops>(*context);
  });
  registry.addExtension(+[](MLIRContext *context, tensor::TensorDialect *) {
    tensor::ExtractOp::attachInterface<ReadsOnHost<tensor::ExtractOp>>(
        *context);
  });
  registry.addExtension(+[](MLIRContext *context, KVCacheDialect *) {
    QuantizeOp::attachInterface<Scales<QuantizeOp>>(*context);
    DequantizeOp::attachInterface<Scales<DequantizeOp>>(*context);
  });
}
