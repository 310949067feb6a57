//===- CudaDriver.h - The driver API through dlopen -------------*- C++ -*-===//
//
// The part of the CUDA driver API that the runtime calls, declared here so that
// building needs no CUDA toolkit. Where one is installed, CudaDriverCheck.cpp
// compares every signature, struct and constant with its cuda.h.
//
// Function names are the exported symbols, which cuda.h maps shorter names to:
// cuMemAlloc is cuMemAlloc_v2.
//
//===----------------------------------------------------------------------===//

#ifndef KVCACHE_LIB_RUNTIME_CUDADRIVER_H
#define KVCACHE_LIB_RUNTIME_CUDADRIVER_H

#include "Backend.h"

namespace kvcache::cuda {

using Result = int;
using DeviceId = int;
using Pointer = unsigned long long; // CUdeviceptr
using Context = void *;
using Module = void *;
using Function = void *;
using Stream = void *;
using Graph = void *;
using GraphExec = void *;
using GraphNode = void *;
using Event = void *;

/// CUDA_KERNEL_NODE_PARAMS_v2
struct KernelNodeParams {
  Function func;
  unsigned gridDimX, gridDimY, gridDimZ;
  unsigned blockDimX, blockDimY, blockDimZ;
  unsigned sharedMemBytes;
  void **kernelParams;
  void **extra;
  void *kern;
  Context ctx;
};

/// CUlaunchAttribute; the value is a union of 64 bytes.
struct LaunchAttribute {
  int id;
  char pad[4];
  union {
    char bytes[64];
    int integer;
    void *pointer;
  } value;
};

/// CUlaunchConfig
struct LaunchConfig {
  unsigned gridDimX, gridDimY, gridDimZ;
  unsigned blockDimX, blockDimY, blockDimZ;
  unsigned sharedMemBytes;
  Stream hStream;
  LaunchAttribute *attrs;
  unsigned numAttrs;
};

/// CUgraphEdgeData
struct GraphEdgeData {
  unsigned char from_port, to_port, type, reserved[5];
};

// Results, by their names without CUDA_.
enum : Result {
  Success = 0,
  ErrorInvalidValue = 1,
  ErrorOutOfMemory = 2,
  ErrorNotInitialized = 3,
  ErrorDeinitialized = 4,
  ErrorNoDevice = 100,
  ErrorInvalidDevice = 101,
  ErrorInvalidImage = 200,
  ErrorInvalidContext = 201,
  ErrorNoBinaryForGpu = 209,
  ErrorEccUncorrectable = 214,
  ErrorInvalidPtx = 218,
  ErrorUnsupportedPtxVersion = 222,
  ErrorNotFound = 500,
  ErrorIllegalAddress = 700,
  ErrorLaunchOutOfResources = 701,
  ErrorLaunchTimeout = 702,
  ErrorContextIsDestroyed = 709,
  ErrorAssert = 710,
  ErrorHardwareStackError = 714,
  ErrorIllegalInstruction = 715,
  ErrorMisalignedAddress = 716,
  ErrorInvalidAddressSpace = 717,
  ErrorInvalidPc = 718,
  ErrorLaunchFailed = 719,
  ErrorSystemNotReady = 802,
  ErrorSystemDriverMismatch = 803,
  ErrorStreamCaptureUnsupported = 900,
  ErrorStreamCaptureWrongThread = 908
};

enum : int {
  AttributeComputeCapabilityMajor = 75, // CU_DEVICE_ATTRIBUTE_...
  AttributeComputeCapabilityMinor = 76,
  FunctionMaxThreadsPerBlock = 0,        // CU_FUNC_ATTRIBUTE_...
  FunctionMaxDynamicSharedSizeBytes = 8, // CU_FUNC_ATTRIBUTE_...
  JitErrorLogBuffer = 5,                 // CU_JIT_...
  JitErrorLogBufferSizeBytes = 6,        // CU_JIT_...
  LaunchProgrammaticSerialization = 6,   // CU_LAUNCH_ATTRIBUTE_...
  GraphPortProgrammatic = 1,             // CU_GRAPH_KERNEL_NODE_PORT_...
  GraphDependencyProgrammatic = 1,       // CU_GRAPH_DEPENDENCY_TYPE_...
};

/// X(symbol, result, parameters): what is called, all since CUDA 12.0.
#define KVCACHE_CUDA_FUNCTIONS(X)                                              \
  X(cuInit, (unsigned))                                                        \
  X(cuDriverGetVersion, (int *))                                               \
  X(cuGetErrorName, (Result, const char **))                                   \
  X(cuGetErrorString, (Result, const char **))                                 \
  X(cuCtxGetCurrent, (Context *))                                              \
  X(cuCtxPushCurrent_v2, (Context))                                            \
  X(cuCtxPopCurrent_v2, (Context *))                                           \
  X(cuCtxGetDevice, (DeviceId *))                                              \
  X(cuDeviceGet, (DeviceId *, int))                                            \
  X(cuDeviceGetAttribute, (int *, int, DeviceId))                              \
  X(cuDevicePrimaryCtxRetain, (Context *, DeviceId))                           \
  X(cuDevicePrimaryCtxRelease_v2, (DeviceId))                                  \
  X(cuModuleLoadDataEx, (Module *, const void *, unsigned, int *, void **))    \
  X(cuModuleUnload, (Module))                                                  \
  X(cuModuleGetFunction, (Function *, Module, const char *))                   \
  X(cuFuncGetAttribute, (int *, int, Function))                                \
  X(cuFuncSetAttribute, (Function, int, int))                                  \
  X(cuMemAlloc_v2, (Pointer *, size_t))                                        \
  X(cuMemFree_v2, (Pointer))                                                   \
  X(cuMemcpyHtoD_v2, (Pointer, const void *, size_t))                          \
  X(cuMemcpyDtoH_v2, (void *, Pointer, size_t))                                \
  X(cuMemcpyDtoDAsync_v2, (Pointer, Pointer, size_t, Stream))                  \
  X(cuMemsetD8Async, (Pointer, unsigned char, size_t, Stream))                 \
  X(cuStreamSynchronize, (Stream))                                             \
  X(cuLaunchKernel, (Function, unsigned, unsigned, unsigned, unsigned,         \
                     unsigned, unsigned, unsigned, Stream, void **, void **))  \
  X(cuLaunchKernelEx, (const LaunchConfig *, Function, void **, void **))      \
  X(cuGraphCreate, (Graph *, unsigned))                                        \
  X(cuGraphAddKernelNode_v2,                                                   \
    (GraphNode *, Graph, const GraphNode *, size_t, const KernelNodeParams *)) \
  X(cuGraphInstantiateWithFlags, (GraphExec *, Graph, unsigned long long))     \
  X(cuGraphExecKernelNodeSetParams_v2,                                         \
    (GraphExec, GraphNode, const KernelNodeParams *))                          \
  X(cuGraphLaunch, (GraphExec, Stream))                                        \
  X(cuGraphExecDestroy, (GraphExec))                                           \
  X(cuGraphDestroy, (Graph))                                                   \
  X(cuStreamCreate, (Stream *, unsigned))                                      \
  X(cuStreamDestroy_v2, (Stream))                                              \
  X(cuEventCreate, (Event *, unsigned))                                        \
  X(cuEventRecord, (Event, Stream))                                            \
  X(cuEventSynchronize, (Event))                                               \
  X(cuEventElapsedTime, (float *, Event, Event))                               \
  X(cuEventDestroy_v2, (Event))

/// The same, for functions of later drivers; null where they are absent.
#define KVCACHE_CUDA_OPTIONAL_FUNCTIONS(X)                                     \
  /* CUDA 12.3 */                                                              \
  X(cuGraphAddDependencies_v2, (Graph, const GraphNode *, const GraphNode *,   \
                                const GraphEdgeData *, size_t))                \
  /* CUDA 12.4 */                                                              \
  X(cuFuncGetParamInfo, (Function, size_t, size_t *, size_t *))

/// The oldest driver that has all of KVCACHE_CUDA_FUNCTIONS: 12.0.
inline constexpr int oldestDriver = 12000;

/// The opened driver. One per library name, for the life of the process:
/// libcuda does not survive being unloaded.
struct Driver {
#define KVCACHE_CUDA_MEMBER(name, parameters)                                  \
  Result(*name) parameters = nullptr;
  KVCACHE_CUDA_FUNCTIONS(KVCACHE_CUDA_MEMBER)
  KVCACHE_CUDA_OPTIONAL_FUNCTIONS(KVCACHE_CUDA_MEMBER)
#undef KVCACHE_CUDA_MEMBER
  int version = 0; // 12040 is 12.4

  /// Opens, resolves and initialises; `library` empty: libcuda.so.1.
  static Outcome open(const std::string &library, const Driver *&driver);

  /// "CUDA_ERROR_OUT_OF_MEMORY (2): out of memory".
  std::string describe(Result result) const;
  /// The status of a failure, "`what` failed: ..." as its text.
  Outcome failure(Result result, const std::string &what) const;
};

/// Whether a context is unusable after this result. "This leaves the process
/// in an inconsistent state and any further CUDA work will return the same
/// error" (CUDA driver API, 6.1 Data types, enum CUresult).
bool isSticky(Result result);

} // namespace kvcache::cuda

#endif // KVCACHE_LIB_RUNTIME_CUDADRIVER_H
