//===- CudaDriverCheck.cpp - CudaDriver.h against the toolkit's cuda.h ----===//
//
// Compiled where a CUDA toolkit is installed, and only to fail: handles are
// pointers here and there, enums are ints, and structs have the same size and
// offsets. A signature that differs in any other way does not compile.
//
//===----------------------------------------------------------------------===//

#include "CudaDriver.h"

#include <cstddef>
#include <type_traits>

#include <cuda.h>

// Older toolkits lack some of the names below.
#if CUDA_VERSION >= 12030

// cuda.h calls the symbol of CUDA 12.8 by this name; drivers keep the older
// one.
#ifdef cuEventElapsedTime
#undef cuEventElapsedTime
extern "C" decltype(cuEventElapsedTime_v2) cuEventElapsedTime;
#endif

namespace {

using namespace kvcache;

template <typename Ours, typename Theirs, typename = void>
struct SameValue : std::is_same<Ours, Theirs> {};
/// An enum is passed as its underlying type, which for C enums is int or
/// unsigned.
template <typename Theirs>
struct SameValue<int, Theirs, std::enable_if_t<std::is_enum_v<Theirs>>>
    : std::bool_constant<sizeof(Theirs) == sizeof(int)> {};
/// A handle, which is a pointer to a struct that nobody defines.
template <typename Theirs>
struct SameValue<void *, Theirs *, std::enable_if_t<std::is_class_v<Theirs>>>
    : std::true_type {};
/// Out-parameters and arrays.
template <typename Ours, typename Theirs>
struct SameValue<
    Ours *, Theirs *,
    std::enable_if_t<!std::is_void_v<Ours> && !std::is_same_v<Ours, Theirs>>>
    : std::bool_constant<std::is_const_v<Ours> == std::is_const_v<Theirs> &&
                         SameValue<std::remove_const_t<Ours>,
                                   std::remove_const_t<Theirs>>::value> {};
template <>
struct SameValue<cuda::KernelNodeParams, CUDA_KERNEL_NODE_PARAMS_v2>
    : std::true_type {};
template <>
struct SameValue<cuda::LaunchConfig, CUlaunchConfig> : std::true_type {};
template <>
struct SameValue<cuda::GraphEdgeData, CUgraphEdgeData> : std::true_type {};

template <typename Ours, typename Theirs>
struct SameFunction : std::false_type {};
template <typename Result, typename... Ours, typename... Theirs>
struct SameFunction<int (*)(Ours...), Result (*)(Theirs...)> {
  static constexpr bool check() {
    if constexpr (sizeof...(Ours) != sizeof...(Theirs))
      return false;
    else
      return std::is_same_v<Result, CUresult> &&
             (SameValue<Ours, Theirs>::value && ...);
  }
  static constexpr bool value = check();
};

#define KVCACHE_CUDA_CHECK(symbol, parameters)                                 \
  static_assert(SameFunction<decltype(cuda::Driver::symbol),                   \
                             decltype(&::symbol)>::value,                      \
                #symbol " differs from cuda.h");
KVCACHE_CUDA_FUNCTIONS(KVCACHE_CUDA_CHECK)
#if CUDA_VERSION >= 13000
KVCACHE_CUDA_OPTIONAL_FUNCTIONS(KVCACHE_CUDA_CHECK)
#endif

#define KVCACHE_CUDA_OFFSET(ours, theirs, member)                              \
  static_assert(offsetof(cuda::ours, member) == offsetof(theirs, member),      \
                #theirs "::" #member " differs from cuda.h")
static_assert(sizeof(cuda::KernelNodeParams) ==
              sizeof(CUDA_KERNEL_NODE_PARAMS_v2));
KVCACHE_CUDA_OFFSET(KernelNodeParams, CUDA_KERNEL_NODE_PARAMS_v2, func);
KVCACHE_CUDA_OFFSET(KernelNodeParams, CUDA_KERNEL_NODE_PARAMS_v2, gridDimX);
KVCACHE_CUDA_OFFSET(KernelNodeParams, CUDA_KERNEL_NODE_PARAMS_v2, blockDimX);
KVCACHE_CUDA_OFFSET(KernelNodeParams, CUDA_KERNEL_NODE_PARAMS_v2,
                    sharedMemBytes);
KVCACHE_CUDA_OFFSET(KernelNodeParams, CUDA_KERNEL_NODE_PARAMS_v2, kernelParams);
KVCACHE_CUDA_OFFSET(KernelNodeParams, CUDA_KERNEL_NODE_PARAMS_v2, extra);
KVCACHE_CUDA_OFFSET(KernelNodeParams, CUDA_KERNEL_NODE_PARAMS_v2, kern);
KVCACHE_CUDA_OFFSET(KernelNodeParams, CUDA_KERNEL_NODE_PARAMS_v2, ctx);
static_assert(sizeof(cuda::LaunchConfig) == sizeof(CUlaunchConfig));
KVCACHE_CUDA_OFFSET(LaunchConfig, CUlaunchConfig, sharedMemBytes);
KVCACHE_CUDA_OFFSET(LaunchConfig, CUlaunchConfig, hStream);
KVCACHE_CUDA_OFFSET(LaunchConfig, CUlaunchConfig, attrs);
KVCACHE_CUDA_OFFSET(LaunchConfig, CUlaunchConfig, numAttrs);
static_assert(sizeof(cuda::LaunchAttribute) == sizeof(CUlaunchAttribute));
KVCACHE_CUDA_OFFSET(LaunchAttribute, CUlaunchAttribute, value);
static_assert(sizeof(cuda::GraphEdgeData) == sizeof(CUgraphEdgeData));
KVCACHE_CUDA_OFFSET(GraphEdgeData, CUgraphEdgeData, from_port);
KVCACHE_CUDA_OFFSET(GraphEdgeData, CUgraphEdgeData, to_port);
KVCACHE_CUDA_OFFSET(GraphEdgeData, CUgraphEdgeData, type);
static_assert(offsetof(CUlaunchAttributeValue,
                       programmaticStreamSerializationAllowed) == 0);

#define KVCACHE_CUDA_CONSTANT(ours, theirs)                                    \
  static_assert(int(cuda::ours) == int(theirs), #theirs " differs from "       \
                                                        "cuda.h")
KVCACHE_CUDA_CONSTANT(Success, CUDA_SUCCESS);
KVCACHE_CUDA_CONSTANT(ErrorInvalidValue, CUDA_ERROR_INVALID_VALUE);
KVCACHE_CUDA_CONSTANT(ErrorOutOfMemory, CUDA_ERROR_OUT_OF_MEMORY);
KVCACHE_CUDA_CONSTANT(ErrorNotInitialized, CUDA_ERROR_NOT_INITIALIZED);
KVCACHE_CUDA_CONSTANT(ErrorDeinitialized, CUDA_ERROR_DEINITIALIZED);
KVCACHE_CUDA_CONSTANT(ErrorNoDevice, CUDA_ERROR_NO_DEVICE);
KVCACHE_CUDA_CONSTANT(ErrorInvalidDevice, CUDA_ERROR_INVALID_DEVICE);
KVCACHE_CUDA_CONSTANT(ErrorInvalidImage, CUDA_ERROR_INVALID_IMAGE);
KVCACHE_CUDA_CONSTANT(ErrorInvalidContext, CUDA_ERROR_INVALID_CONTEXT);
KVCACHE_CUDA_CONSTANT(ErrorNoBinaryForGpu, CUDA_ERROR_NO_BINARY_FOR_GPU);
KVCACHE_CUDA_CONSTANT(ErrorEccUncorrectable, CUDA_ERROR_ECC_UNCORRECTABLE);
KVCACHE_CUDA_CONSTANT(ErrorInvalidPtx, CUDA_ERROR_INVALID_PTX);
KVCACHE_CUDA_CONSTANT(ErrorUnsupportedPtxVersion,
                      CUDA_ERROR_UNSUPPORTED_PTX_VERSION);
KVCACHE_CUDA_CONSTANT(ErrorNotFound, CUDA_ERROR_NOT_FOUND);
KVCACHE_CUDA_CONSTANT(ErrorIllegalAddress, CUDA_ERROR_ILLEGAL_ADDRESS);
KVCACHE_CUDA_CONSTANT(ErrorLaunchOutOfResources,
                      CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES);
KVCACHE_CUDA_CONSTANT(ErrorLaunchTimeout, CUDA_ERROR_LAUNCH_TIMEOUT);
KVCACHE_CUDA_CONSTANT(ErrorContextIsDestroyed, CUDA_ERROR_CONTEXT_IS_DESTROYED);
KVCACHE_CUDA_CONSTANT(ErrorAssert, CUDA_ERROR_ASSERT);
KVCACHE_CUDA_CONSTANT(ErrorHardwareStackError, CUDA_ERROR_HARDWARE_STACK_ERROR);
KVCACHE_CUDA_CONSTANT(ErrorIllegalInstruction, CUDA_ERROR_ILLEGAL_INSTRUCTION);
KVCACHE_CUDA_CONSTANT(ErrorMisalignedAddress, CUDA_ERROR_MISALIGNED_ADDRESS);
KVCACHE_CUDA_CONSTANT(ErrorInvalidAddressSpace,
                      CUDA_ERROR_INVALID_ADDRESS_SPACE);
KVCACHE_CUDA_CONSTANT(ErrorInvalidPc, CUDA_ERROR_INVALID_PC);
KVCACHE_CUDA_CONSTANT(ErrorLaunchFailed, CUDA_ERROR_LAUNCH_FAILED);
KVCACHE_CUDA_CONSTANT(ErrorSystemNotReady, CUDA_ERROR_SYSTEM_NOT_READY);
KVCACHE_CUDA_CONSTANT(ErrorSystemDriverMismatch,
                      CUDA_ERROR_SYSTEM_DRIVER_MISMATCH);
KVCACHE_CUDA_CONSTANT(ErrorStreamCaptureUnsupported,
                      CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
KVCACHE_CUDA_CONSTANT(ErrorStreamCaptureWrongThread,
                      CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD);
KVCACHE_CUDA_CONSTANT(AttributeComputeCapabilityMajor,
                      CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR);
KVCACHE_CUDA_CONSTANT(AttributeComputeCapabilityMinor,
                      CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR);
KVCACHE_CUDA_CONSTANT(FunctionMaxThreadsPerBlock,
                      CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK);
KVCACHE_CUDA_CONSTANT(FunctionMaxDynamicSharedSizeBytes,
                      CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES);
KVCACHE_CUDA_CONSTANT(JitErrorLogBuffer, CU_JIT_ERROR_LOG_BUFFER);
KVCACHE_CUDA_CONSTANT(JitErrorLogBufferSizeBytes,
                      CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES);
KVCACHE_CUDA_CONSTANT(LaunchProgrammaticSerialization,
                      CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION);
KVCACHE_CUDA_CONSTANT(GraphPortProgrammatic,
                      CU_GRAPH_KERNEL_NODE_PORT_PROGRAMMATIC);
KVCACHE_CUDA_CONSTANT(GraphDependencyProgrammatic,
                      CU_GRAPH_DEPENDENCY_TYPE_PROGRAMMATIC);

} // namespace

#endif // CUDA_VERSION
