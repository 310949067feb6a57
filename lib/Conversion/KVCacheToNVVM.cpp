//===- KVCacheToNVVM.cpp - Launches become gpu.launch_func and kernels ----===//
//
// Each distinct kernel becomes a small llvm.func that calls one always-inline
// function of the device library with its arguments and structural constants.
// `#nvvm.target<link = [library]>` brings the library in, and LLVM specialises.
//
//===----------------------------------------------------------------------===//

#include "../../kernels/Geometry.h"
#include "SegmentsToFunctions.h"
#include "kvcache/Conversion/DeviceFunctions.h"
#include "kvcache/Conversion/Passes.h"
#include "kvcache/IR/KVCache.h"
#include "mlir/Dialect/Arith/IR/Arith.h"
#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "mlir/Dialect/GPU/IR/GPUDialect.h"
#include "mlir/Dialect/LLVMIR/LLVMDialect.h"
#include "mlir/Dialect/LLVMIR/NVVMDialect.h"
#include "mlir/Dialect/MemRef/IR/MemRef.h"
#include "mlir/IR/Builders.h"

namespace mlir::kvcache {
#define GEN_PASS_DEF_CONVERTKVCACHETONVVM
#include "kvcache/Conversion/Passes.h.inc"
} // namespace mlir::kvcache

using namespace mlir;
using namespace mlir::kvcache;

namespace {

struct ConvertKVCacheToNVVM
    : public mlir::kvcache::impl::ConvertKVCacheToNVVMBase<
          ConvertKVCacheToNVVM> {
  using ConvertKVCacheToNVVMBase::ConvertKVCacheToNVVMBase;

  gpu::GPUModuleOp kernels;

  void runOnOperation() override {
    ModuleOp module = getOperation();
    SmallVector<LaunchOp> launches;
    module.walk([&](LaunchOp launch) { launches.push_back(launch); });
    if (launches.empty())
      return;
    if (module.lookupSymbol("kvcache_kernels")) {
      module.emitError() << "the symbol @kvcache_kernels is taken; rename it";
      return signalPassFailure();
    }
    createKernelModule(module);
    for (LaunchOp launch : launches) {
      if (!kernels.lookupSymbol(launch.getKernel()) &&
          failed(createKernel(launch)))
        return signalPassFailure();
      lower(launch);
    }
    if (failed(segmentsToFunctions(module)))
      signalPassFailure();
  }

  void createKernelModule(ModuleOp module) {
    OpBuilder builder = OpBuilder::atBlockBegin(module.getBody());
    kernels =
        gpu::GPUModuleOp::create(builder, module.getLoc(), "kvcache_kernels");
    module->setAttr(gpu::GPUDialect::getContainerModuleAttrName(),
                    builder.getUnitAttr());
    std::optional<int> arch = archOf(target);
    std::string features =
        arch ? "+ptx" + std::to_string(::kvcache::kernels::ptxVersion(*arch))
             : "";
    SmallVector<Attribute> link;
    if (!kernelLibrary.empty())
      link.push_back(builder.getStringAttr(kernelLibrary));
    // The kernels name the loops to unroll; with O3 the main loops are the
    // same, to the instruction, and compiling takes longer.
    kernels.setTargetsAttr(builder.getArrayAttr({NVVM::NVVMTargetAttr::get(
        module.getContext(), /*optLevel=*/1, "nvptx64-nvidia-cuda", target,
        features,
        /*flags=*/nullptr,
        link.empty() ? ArrayAttr() : builder.getArrayAttr(link))}));
  }

  LogicalResult createKernel(LaunchOp launch) {
    const DeviceFunction *function = findDeviceFunction(launch.getFunction());
    if (!function)
      return launch.emitError()
             << "the device library has no function '" << launch.getFunction()
             << "'; expected one of those of 'kvcache-select-kernels', such as "
                "'kvcache_write'";
    if (!function->accepts(launch.getStructure().size()))
      return launch.emitError() << "'" << launch.getFunction() << "' has "
                                << function->structure.size()
                                << " structural constants, but the launch has "
                                << launch.getStructure().size();
    SmallVector<IntegerAttr> constants(
        launch.getStructure().getAsRange<IntegerAttr>());
    SmallVector<int64_t> structure;
    for (IntegerAttr constant : constants)
      structure.push_back(constant.getInt());
    if (structure.size() != function->structure.size()) {
      structure.push_back(function->valueOf("head_dim", structure));
      constants.push_back(Builder(launch).getI32IntegerAttr(structure.back()));
    }
    auto isAbsent = [&](unsigned pointer) {
      return llvm::any_of(function->optional, [&](const OptionalPointer &o) {
        return o.index == pointer &&
               function->valueOf(o.structure, structure) < o.least;
      });
    };
    unsigned given = launch.getBuffers().size(), expected = 0;
    for (unsigned pointer = 0; pointer < function->pointers; ++pointer)
      expected += !isAbsent(pointer);
    if (given != expected)
      return launch.emitError()
             << "'" << launch.getFunction() << "' takes " << expected
             << " buffers here, but the launch has " << given;
    int64_t kvHeads =
        function->scales ? function->valueOf("kv_heads", structure) : 1;
    unsigned numConstants = launch.getConstants().size(),
             perHead = function->constants + function->scales * (kvHeads - 1);
    if (numConstants != function->constants && numConstants != perHead)
      return launch.emitError()
             << "'" << launch.getFunction() << "' takes " << function->constants
             << " constants, or " << perHead
             << " with scales for each KV head, but the launch has "
             << numConstants;

    MLIRContext *context = launch.getContext();
    Location loc = launch.getLoc();
    OpBuilder builder = OpBuilder::atBlockEnd(kernels.getBody());
    Type global = LLVM::LLVMPointerType::get(
        context, static_cast<unsigned>(NVVM::NVVMMemorySpace::Global));
    Type generic = LLVM::LLVMPointerType::get(context);
    Type voidType = LLVM::LLVMVoidType::get(context);

    SmallVector<Type> parameters(given, global),
        calleeTypes(function->pointers, generic);
    for (Attribute constant : launch.getConstants())
      parameters.push_back(cast<TypedAttr>(constant).getType());
    // Of scales for each KV head the callee gets one.
    int64_t scalesPerConstant =
        numConstants == function->constants ? 1 : kvHeads;
    for (unsigned i = 0; i < function->constants; ++i) {
      unsigned at = i < function->scales
                        ? i * scalesPerConstant
                        : i + function->scales * (scalesPerConstant - 1);
      calleeTypes.push_back(
          cast<TypedAttr>(launch.getConstants()[at]).getType());
    }
    for (IntegerAttr constant : constants)
      calleeTypes.push_back(constant.getType());

    auto callee = kernels.lookupSymbol<LLVM::LLVMFuncOp>(launch.getFunction());
    if (!callee)
      callee = LLVM::LLVMFuncOp::create(
          builder, loc, launch.getFunction(),
          LLVM::LLVMFunctionType::get(voidType, calleeTypes));
    auto kernel = LLVM::LLVMFuncOp::create(
        builder, loc, launch.getKernel(),
        LLVM::LLVMFunctionType::get(voidType, parameters));
    kernel->setAttr(gpu::GPUDialect::getKernelFuncAttrName(),
                    builder.getUnitAttr());
    kernel->setAttr(NVVM::NVVMDialect::getKernelFuncAttrName(),
                    builder.getUnitAttr());
    SmallVector<int32_t> block;
    for (int64_t size : launch.getBlock())
      block.push_back(size);
    kernel->setAttr(NVVM::NVVMDialect::getReqntidAttrName(),
                    builder.getDenseI32ArrayAttr(block));
    if (std::optional<uint64_t> minCtas = launch.getMinCtasPerSm())
      kernel->setAttr(NVVM::NVVMDialect::getMinctasmAttrName(),
                      builder.getI32IntegerAttr(*minCtas));

    Block *entry = kernel.addEntryBlock(builder);
    builder.setInsertionPointToStart(entry);
    SmallVector<Value> operands;
    auto argument = entry->args_begin();
    for (unsigned pointer = 0; pointer < function->pointers; ++pointer) {
      if (isAbsent(pointer))
        operands.push_back(LLVM::ZeroOp::create(builder, loc, generic));
      else
        operands.push_back(
            LLVM::AddrSpaceCastOp::create(builder, loc, generic, *argument++));
    }
    Value head;
    if (scalesPerConstant > 1)
      head = createHead(builder, loc, launch.getGrid(), function->headDimension,
                        kvHeads);
    for (unsigned scale = 0; scale < function->scales; ++scale) {
      Value mine = *argument++;
      for (int64_t i = 1; i < scalesPerConstant; ++i) {
        Value number = LLVM::ConstantOp::create(builder, loc,
                                                builder.getI32IntegerAttr(i));
        Value isMine = LLVM::ICmpOp::create(
            builder, loc, LLVM::ICmpPredicate::eq, head, number);
        mine = LLVM::SelectOp::create(builder, loc, isMine, *argument++, mine);
      }
      operands.push_back(mine);
    }
    for (; argument != entry->args_end(); ++argument)
      operands.push_back(*argument);
    for (IntegerAttr constant : constants)
      operands.push_back(
          LLVM::ConstantOp::create(builder, loc, constant.getType(), constant));
    LLVM::CallOp::create(builder, loc, callee, operands);
    LLVM::ReturnOp::create(builder, loc, ValueRange());
    ++numKernels;
    return success();
  }

  /// The KV head of a CTA: its block index over the blocks of a head.
  static Value createHead(OpBuilder &builder, Location loc,
                          ArrayRef<int64_t> grid, unsigned dimension,
                          int64_t kvHeads) {
    Type i32 = builder.getI32Type();
    Value block = dimension == 0
                      ? NVVM::BlockIdXOp::create(builder, loc, i32).getResult()
                      : NVVM::BlockIdYOp::create(builder, loc, i32).getResult();
    int64_t blocks = grid[dimension] / kvHeads;
    if (blocks == 1)
      return block;
    return LLVM::UDivOp::create(
        builder, loc, block,
        LLVM::ConstantOp::create(builder, loc,
                                 builder.getI32IntegerAttr(blocks)));
  }

  void lower(LaunchOp launch) {
    OpBuilder builder(launch);
    Location loc = launch.getLoc();
    auto index = [&](int64_t value) -> Value {
      return arith::ConstantIndexOp::create(builder, loc, value);
    };
    Type pointer = LLVM::LLVMPointerType::get(
        launch.getContext(),
        static_cast<unsigned>(NVVM::NVVMMemorySpace::Global));
    SmallVector<Value> operands;
    for (Value buffer : launch.getBuffers()) {
      Value address =
          memref::ExtractAlignedPointerAsIndexOp::create(builder, loc, buffer);
      auto type = cast<MemRefType>(buffer.getType());
      auto [strides, offset] = type.getStridesAndOffset();
      if (offset != 0) {
        // The kernel gets the address of the first element, wherever it starts.
        auto metadata =
            memref::ExtractStridedMetadataOp::create(builder, loc, buffer);
        Value bytes = index(llvm::divideCeil(type.getElementTypeBitWidth(), 8));
        address = arith::AddIOp::create(
            builder, loc, address,
            arith::MulIOp::create(builder, loc, metadata.getOffset(), bytes));
      }
      Value integer = arith::IndexCastOp::create(builder, loc,
                                                 builder.getI64Type(), address);
      operands.push_back(
          LLVM::IntToPtrOp::create(builder, loc, pointer, integer));
    }
    for (Attribute constant : launch.getConstants())
      operands.push_back(
          arith::ConstantOp::create(builder, loc, cast<TypedAttr>(constant)));
    auto sizes = [&](ArrayRef<int64_t> values) {
      return gpu::KernelDim3{index(values[0]), index(values[1]),
                             index(values[2])};
    };
    Value shared;
    if (launch.getSharedBytes())
      shared = arith::ConstantOp::create(
          builder, loc, builder.getI32IntegerAttr(launch.getSharedBytes()));
    auto kernel = SymbolRefAttr::get(
        kernels.getSymNameAttr(),
        {FlatSymbolRefAttr::get(launch.getKernelAttr().getAttr())});
    gpu::KernelDim3 grid = sizes(launch.getGrid()),
                    block = sizes(launch.getBlock());
    gpu::LaunchFuncOp::create(builder, loc, kernel, grid, block, shared,
                              operands);
    launch.erase();
  }
};
} // namespace
