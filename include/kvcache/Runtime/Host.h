/*===- Host.h - Running host code around segments -----------------*- C -*-===//
//
// libKVCacheHost.so compiles a bundle's host.mlir (a graph on tensors that
// calls segments on memrefs) in process with upstream's CPU pipeline and runs
// it. This is the one part of running a bundle that needs LLVM, hence a
// library of its own, opened when asked for.
//
// Errors: functions that can fail return null or non-zero and write a message
// of at most `error_size` bytes, NUL included, to `error`.
//
//===----------------------------------------------------------------------===*/

#ifndef KVCACHE_RUNTIME_HOST_H
#define KVCACHE_RUNTIME_HOST_H

#include <stddef.h>
#include <stdint.h>

#if defined(__GNUC__)
#define KVCACHE_HOST_EXPORT __attribute__((visibility("default")))
#else
#define KVCACHE_HOST_EXPORT
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* Changes whenever a declaration below does. */
#define KVCACHE_HOST_ABI_VERSION 2

typedef enum KVCacheHostType {
  KVCACHE_HOST_BF16 = 0,
  KVCACHE_HOST_F16 = 1,
  KVCACHE_HOST_F32 = 2,
  KVCACHE_HOST_I32 = 3,
  KVCACHE_HOST_I64 = 4,
  KVCACHE_HOST_F8E4M3FN = 5,
  KVCACHE_HOST_F8E5M2 = 6
} KVCacheHostType;

/* Elements in memory of somebody else; strides in elements. */
typedef struct KVCacheHostTensor {
  void *data; /* element [0, 0, ...] */
  const int64_t *shape;
  const int64_t *strides;
  int32_t rank;
  int32_t type; /* KVCacheHostType */
} KVCacheHostTensor;

/* Runs segment `index` (its place in the list given to kvcacheHostOpen) over
   `arguments`, which it may read and write. Non-zero stops the graph. */
typedef int (*KVCacheHostSegment)(void *context, int32_t index,
                                  const KVCacheHostTensor *arguments,
                                  int32_t count);

/* Receives result `index`; the elements are gone when it returns. */
typedef void (*KVCacheHostResult)(void *context, int32_t index,
                                  const KVCacheHostTensor *result);

typedef struct KVCacheHost KVCacheHost;

KVCACHE_HOST_EXPORT int32_t kvcacheHostAbiVersion(void);

/* Compiles MLIR text. `function` is called by kvcacheHostRun; `segments` are
   symbols of private functions on memrefs, which the text declares. `name`
   stands for the text in messages. */
KVCACHE_HOST_EXPORT KVCacheHost *
kvcacheHostOpen(const char *text, size_t size, const char *name,
                const char *function, const char *const *segments,
                int32_t segment_count, char *error, size_t error_size);

/* Calls the function. Arguments must have the element types and ranks of its
   signature, the fixed extents too, and be contiguous. Fails when a segment
   did, and when an assertion of the graph does not hold. One call at a time. */
KVCACHE_HOST_EXPORT int kvcacheHostRun(KVCacheHost *host,
                                       const KVCacheHostTensor *arguments,
                                       int32_t count,
                                       KVCacheHostSegment segment,
                                       KVCacheHostResult result, void *context,
                                       char *error, size_t error_size);

KVCACHE_HOST_EXPORT void kvcacheHostClose(KVCacheHost *host);

#ifdef __cplusplus
}
#endif

#endif /* KVCACHE_RUNTIME_HOST_H */
