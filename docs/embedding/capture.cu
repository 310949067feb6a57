// Captures a segment of a bundle inside a larger CUDA graph, between kernels of
// one's own: the way in which an engine embeds it.
//
//   nvcc -Iinclude docs/embedding/capture.cu -Lbuild/lib -lkvcache_runtime
//   -lcuda
//   ./a.out llama.kvb

#include "kvcache-c/Runtime.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include <cuda.h>
#include <cuda_runtime.h>

#define CUDA(call)                                                             \
  do {                                                                         \
    cudaError_t error = (call);                                                \
    if (error != cudaSuccess) {                                                \
      std::fprintf(stderr, "%s: %s\n", #call, cudaGetErrorString(error));      \
      std::exit(1);                                                            \
    }                                                                          \
  } while (0)

static void check(KvcacheStatus status) {
  if (status == KVCACHE_OK)
    return;
  std::fprintf(stderr, "%s: %s\n", kvcacheStatusName(status),
               kvcacheLastError());
  std::exit(1);
}

// Stands for the model before attention: what it leaves in query, key, value.
__global__ void fill(unsigned short *values, int count, unsigned short value) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < count)
    values[i] = value;
}

int main(int argc, char **argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: %s BUNDLE\n", argv[0]);
    return 2;
  }
  // The context is named, never guessed: here it is the runtime API's own.
  CUDA(cudaFree(nullptr));
  CUcontext context = nullptr;
  cuCtxGetCurrent(&context);
  KvcacheCudaOptions options = KVCACHE_INIT(KvcacheCudaOptions);
  options.context = context;

  KvcacheBundle *bundle;
  KvcacheDevice *device;
  KvcacheProgram *program;
  KvcacheInstance *instance;
  check(kvcacheBundleOpen(argv[1], &bundle));
  check(kvcacheDeviceCreateCuda(&options, &device));
  check(kvcacheProgramCreate(bundle, device, nullptr, nullptr, &program));
  check(kvcacheInstanceCreate(program, &instance));
  std::printf("%s runs the %s of %s\n", kvcacheDeviceName(device),
              kvcacheProgramCode(program), kvcacheProgramChip(program));

  size_t count = kvcacheBundleBufferCount(bundle);
  std::vector<void *> memory(count, nullptr);
  std::vector<KvcacheBufferInfo> buffers(count,
                                         KVCACHE_INIT(KvcacheBufferInfo));
  for (size_t i = 0; i < count; ++i) {
    check(kvcacheBundleBuffer(bundle, i, &buffers[i]));
    if (buffers[i].viewOf || std::strcmp(buffers[i].owner, "caller") != 0)
      continue;
    CUDA(cudaMalloc(&memory[i], buffers[i].bytes));
    // Empty tables: slots and pages -1, lengths and query starts 0.
    bool none = std::strcmp(buffers[i].role, "slots") == 0 ||
                std::strcmp(buffers[i].role, "page_table") == 0;
    CUDA(cudaMemset(memory[i], none ? 0xFF : 0, buffers[i].bytes));
    check(kvcacheInstanceBind(instance, i, uint64_t(uintptr_t(memory[i])),
                              buffers[i].bytes));
  }
  cudaStream_t stream;
  CUDA(cudaStreamCreate(&stream));
  void *workspace = nullptr;
  uint64_t bytes = kvcacheProgramWorkspaceBytes(program);
  if (bytes)
    CUDA(cudaMalloc(&workspace, bytes));
  check(kvcacheInstanceBindWorkspace(instance, uint64_t(uintptr_t(workspace)),
                                     bytes, stream));

  // One graph: our kernels before each segment, and the segment's own.
  cudaGraph_t graph;
  cudaGraphExec_t executable;
  CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
  for (size_t s = 0; s < kvcacheProgramSegmentCount(program); ++s) {
    for (size_t i = 0; i < count; ++i) {
      if (std::strcmp(buffers[i].role, "activation") != 0 ||
          std::strcmp(buffers[i].access, "read") != 0)
        continue;
      int elements = int(buffers[i].bytes / 2);
      fill<<<(elements + 127) / 128, 128, 0, stream>>>(
          static_cast<unsigned short *>(memory[i]), elements, 0x3F80);
    }
    check(kvcacheInstanceEnqueue(instance, s, stream));
  }
  CUDA(cudaStreamEndCapture(stream, &graph));
  CUDA(cudaGraphInstantiate(&executable, graph, 0));
  for (int step = 0; step < 3; ++step)
    CUDA(cudaGraphLaunch(executable, stream));
  CUDA(cudaStreamSynchronize(stream));
  std::printf("replayed 3 times\n");

  CUDA(cudaGraphExecDestroy(executable));
  CUDA(cudaGraphDestroy(graph));
  kvcacheInstanceDestroy(instance);
  kvcacheProgramDestroy(program);
  kvcacheDeviceDestroy(device);
  kvcacheBundleClose(bundle);
  return 0;
}
