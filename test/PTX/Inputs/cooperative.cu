// Kernels over the headers of the toolkit: cooperative groups, half precision,
// cuda::pipeline, a lock for each thread.

#include <cooperative_groups.h>
#include <cooperative_groups/reduce.h>
#include <cuda/pipeline>
#include <cuda_fp16.h>

namespace cg = cooperative_groups;

/// Sums over tiles of 8 lanes, over the lanes of equal `thread % 3`, and the
/// size of the group of lanes whose branch is taken.
extern "C" __global__ void tiles(const int *in, int *out) {
  auto warp = cg::tiled_partition<32>(cg::this_thread_block());
  auto tile = cg::tiled_partition<8>(warp);
  int t = threadIdx.x, n = blockDim.x, x = in[t];
  out[t] = cg::reduce(tile, x, cg::plus<int>());
  auto label = cg::labeled_partition(warp, t % 3);
  out[n + t] = cg::reduce(label, x, cg::plus<int>());
  if (t % 5 < 2)
    out[2 * n + t] = cg::coalesced_threads().size();
}

/// -1 where a half of a is below that of b, else 1.
extern "C" __global__ void signs(const __half2 *a, const __half2 *b,
                                 __half2 *out) {
  int t = threadIdx.x;
  __half2 below = __hlt2(a[t], b[t]);
  out[t] = __hfma2(below, __float2half2_rn(-2.f), __float2half2_rn(1.f));
}

/// Two stages of a pipeline of the whole block; each thread adds elements that
/// others have copied.
extern "C" __global__ void staged(const int *in, int *out, int steps) {
  constexpr int size = 512;
  __shared__ alignas(16) int buffer[2][size];
  __shared__ cuda::pipeline_shared_state<cuda::thread_scope_block, 2> state;
  auto block = cg::this_thread_block();
  auto pipeline = cuda::make_pipeline(block, &state);
  auto copy = [&](int k) {
    pipeline.producer_acquire();
    cuda::memcpy_async(block, buffer[k & 1], in + k * size,
                       cuda::aligned_size_t<16>(4 * size), pipeline);
    pipeline.producer_commit();
  };
  int sum = 0;
  copy(0);
  for (int k = 0; k < steps; ++k) {
    if (k + 1 < steps)
      copy(k + 1);
    pipeline.consumer_wait();
    sum += buffer[k & 1][threadIdx.x * 7 & (size - 1)];
    pipeline.consumer_release();
  }
  out[threadIdx.x] = sum;
}

/// Threads of one warp that wait for each other.
extern "C" __global__ void locked(int *lock, int *count) {
  while (atomicCAS(lock, 0, 1))
    ;
  __threadfence();
  *(volatile int *)count += 1;
  __threadfence();
  atomicExch(lock, 0);
}
