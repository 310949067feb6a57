//===- AllocationTest.cpp - After creation nothing is allocated -----------===//
//
// Every allocation of this program, those of the C++ library included, goes
// through the functions below and is counted. The driver is told to do nothing,
// so what is counted is the runtime's own.
//
//===----------------------------------------------------------------------===//

#include "Rig.h"

#include <atomic>
#include <dlfcn.h>

#if defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer) ||     \
    __has_feature(memory_sanitizer)
#define KVCACHE_NO_COUNTING // sanitizers have these functions themselves
#endif
#endif

static std::atomic<bool> counting{false};
static std::atomic<size_t> allocations{0};

#ifndef KVCACHE_NO_COUNTING
extern "C" {
void *__libc_malloc(size_t size);
void *__libc_calloc(size_t count, size_t size);
void *__libc_realloc(void *old, size_t size);
void *__libc_memalign(size_t alignment, size_t size);

void *malloc(size_t size) {
  allocations += counting;
  return __libc_malloc(size);
}
void *calloc(size_t count, size_t size) {
  allocations += counting;
  return __libc_calloc(count, size);
}
void *realloc(void *old, size_t size) {
  allocations += counting;
  return __libc_realloc(old, size);
}
void *aligned_alloc(size_t alignment, size_t size) {
  allocations += counting;
  return __libc_memalign(alignment, size);
}
}
#endif

using namespace kvcache;
using namespace kvcache::test;

namespace {

/// How often `body` allocates.
template <typename Body> size_t count(Body body) {
  allocations = 0;
  counting = true;
  body();
  counting = false;
  return allocations;
}

TEST(AllocationTest, EnqueueReplayAndUpdateAllocateNothing) {
#ifdef KVCACHE_NO_COUNTING
  GTEST_SKIP() << "allocations belong to the sanitizer";
#endif
  EXPECT_EQ(count([] { std::string("longer than any string kept in place"); }),
            1u);
  void *library = ::dlopen(KVCACHE_FAKE_CUDA, RTLD_NOW | RTLD_LOCAL);
  ASSERT_TRUE(library) << ::dlerror();
  auto reset = reinterpret_cast<int (*)()>(::dlsym(library, "fakeCudaReset"));
  auto quiet =
      reinterpret_cast<int (*)(int)>(::dlsym(library, "fakeCudaQuiet"));
  auto retain = reinterpret_cast<int (*)(void **, int)>(
      ::dlsym(library, "cuDevicePrimaryCtxRetain"));
  ASSERT_TRUE(reset && quiet && retain);
  reset();
  KvcacheCudaOptions options = KVCACHE_INIT(KvcacheCudaOptions);
  ASSERT_EQ(retain(&options.context, 0), 0);
  options.driver = KVCACHE_FAKE_CUDA;
  for (int32_t programmatic : {0, 1}) {
    options.programmaticLaunch = programmatic;
    KvcacheDevice *device = nullptr;
    ASSERT_STATUS(kvcacheDeviceCreateCuda(&options, &device), KVCACHE_OK);
    Rig rig;
    rig.open(makeBundle(simplePtx()), device);
    KvcacheGraph *graph = nullptr;
    ASSERT_STATUS(kvcacheInstanceInstantiateGraph(rig.instance,
                                                  KVCACHE_ALL_SEGMENTS, &graph),
                  KVCACHE_OK);
    size_t key = size_t(kvcacheBundleFindBuffer(rig.opened, "layer0.key"));
    uint64_t address = rig.addresses.at("layer0.key");
    uint64_t bytes = rig.buffer("layer0.key").bytes;
    KvcacheStatus status[5] = {};
    quiet(1);
    size_t made = count([&] {
      for (int step = 0; step < 3; ++step) {
        status[0] =
            kvcacheInstanceEnqueue(rig.instance, KVCACHE_ALL_SEGMENTS, nullptr);
        status[1] = kvcacheGraphReplay(graph, nullptr);
        status[2] = kvcacheInstanceBind(rig.instance, key, address, bytes);
        status[3] = kvcacheGraphUpdateBindings(graph);
        status[4] = kvcacheInstanceEnqueue(rig.instance, 1, nullptr);
      }
    });
    quiet(0);
    for (KvcacheStatus one : status)
      EXPECT_EQ(one, KVCACHE_OK);
    EXPECT_EQ(made, 0u);
    kvcacheGraphDestroy(graph);
  }
}

} // namespace
