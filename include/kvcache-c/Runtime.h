/*===- kvcache-c/Runtime.h - C interface of the runtime -------------*- C
-*-===*\
|*                                                                            *|
|* libkvcache_runtime.so replays the programs of a bundle on a device: a GPU  *|
|* behind the CUDA driver API (libcuda.so.1, opened when a CUDA device is     *|
|* created), or the PTX machine, which executes on the CPU the PTX that       *|
|* ships. The caller says which; the library never picks one.                 *|
|*                                                                            *|
|*   bundle    manifest and code; immutable                                   *|
|*   device    a CUDA context of the caller, or a PTX machine                 *|
|*   program   a bundle's program, its code loaded on a device                *|
|*   instance  addresses bound to the program's buffers, and a workspace      *|
|*   graph     an instance's launches, frozen: what a replay starts           *|
|*                                                                            *|
|* Order of destruction: graphs, instances, programs, device, bundle.         *|
|*                                                                            *|
|* Live sizes (query starts, lengths, page table, slots) are data on the      *|
|* device. A graph is instantiated once and replayed at any sizes up to the   *|
|* bundle's capacities; between replays only device memory changes.           *|
|*                                                                            *|
|* Threads: every function may be called from any thread. A bundle, a device  *|
|* and a program may be used by several threads at once; an instance and its  *|
|* graphs by one thread at a time. Replays of several instances may be in     *|
|* flight together when each has a workspace of its own. The error text       *|
|* belongs to the thread whose call failed.                                   *|
|*                                                                            *|
|* Memory: after an instance is created, binding, enqueueing and replaying    *|
|* on a CUDA device allocate nothing, neither here nor there.                 *|
|*                                                                            *|
|* Structs start with their size, which the caller sets (KVCACHE_INIT): a     *|
|* newer library reads and fills no more than that. Strings belong to the     *|
|* object that they were asked from.                                          *|
|*                                                                            *|
\*===----------------------------------------------------------------------===*/

#ifndef KVCACHE_C_RUNTIME_H
#define KVCACHE_C_RUNTIME_H

#include <stddef.h>
#include <stdint.h>

#if defined(__GNUC__)
#define KVCACHE_API __attribute__((visibility("default")))
#else
#define KVCACHE_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

/** Rises when a caller compiled against this header would break. */
#define KVCACHE_RUNTIME_ABI_VERSION 1
/** The version that the loaded library has; compare it first. */
KVCACHE_API uint32_t kvcacheRuntimeAbiVersion(void);

typedef enum KvcacheStatus {
  KVCACHE_OK = 0,
  /** A null pointer, an index or name that is not there, a struct of a size
   * that this library does not know. */
  KVCACHE_INVALID_ARGUMENT = 1,
  /** The bundle is damaged, hostile, or of another version. */
  KVCACHE_INVALID_BUNDLE = 2,
  /** libcuda.so.1 cannot be opened, or it finds no device. */
  KVCACHE_NO_DRIVER = 3,
  /** The driver lacks what this library needs (CUDA 12.0). */
  KVCACHE_DRIVER_TOO_OLD = 4,
  /** No code of the bundle runs on this device. */
  KVCACHE_NO_CODE = 5,
  KVCACHE_OUT_OF_MEMORY = 6,
  /** A buffer or the workspace has no address yet, or an address is null, too
   * small or misaligned. */
  KVCACHE_NOT_BOUND = 7,
  /** A launch failed, or the PTX machine found a fault in it; the device can
   * still be used. */
  KVCACHE_LAUNCH_FAILED = 8,
  /** The CUDA context is lost (illegal address, hardware fault): every later
   * call on this device fails so too. */
  KVCACHE_DEVICE_LOST = 9,
  /** A cache was written under another digest: kvcacheBundleCheckCache. */
  KVCACHE_INCOMPATIBLE_CACHE = 10,
  /** A call that a stream capture does not allow. */
  KVCACHE_CAPTURE = 11,
  /** Any other failure of the driver. */
  KVCACHE_DRIVER_ERROR = 12
} KvcacheStatus;

/** "KVCACHE_OK", ...; never null. */
KVCACHE_API const char *kvcacheStatusName(KvcacheStatus status);
/** What the last failed call of this thread says: what was expected, what was
 * found, where. Valid until the next failure in this thread; never null. */
KVCACHE_API const char *kvcacheLastError(void);

/** Prepares a struct of this interface: all zero but its size.
 * KvcacheBufferInfo info = KVCACHE_INIT(KvcacheBufferInfo); */
#ifdef __cplusplus
#define KVCACHE_INIT(type)                                                     \
  ([] {                                                                        \
    type prepared = {};                                                        \
    prepared.size = sizeof(type);                                              \
    return prepared;                                                           \
  }())
#else
#define KVCACHE_INIT(type) {.size = sizeof(type)}
#endif

/*===--- Bundles ----------------------------------------------------------===*/

typedef struct KvcacheBundle KvcacheBundle;

/** A file of a bundle in memory: "manifest.json", "code/sm_90.ptx", ... */
typedef struct KvcacheFile {
  const char *name;
  const void *data;
  size_t size;
} KvcacheFile;

/** Opens and checks a bundle directory: nothing of it is trusted. */
KVCACHE_API KvcacheStatus kvcacheBundleOpen(const char *directory,
                                            KvcacheBundle **bundle);
/** The same from memory; the bytes are copied. */
KVCACHE_API KvcacheStatus kvcacheBundleOpenMemory(const KvcacheFile *files,
                                                  size_t count,
                                                  KvcacheBundle **bundle);
KVCACHE_API void kvcacheBundleClose(KvcacheBundle *bundle);

typedef struct KvcacheCapacities {
  size_t size;
  int64_t maxTokens;           /**< rows of one step over all sequences */
  int64_t maxSequences;        /**< sequences of one step */
  int64_t maxPagesPerSequence; /**< columns of the page table */
  int64_t numPages;            /**< pages in the pool */
} KvcacheCapacities;
KVCACHE_API KvcacheStatus kvcacheBundleCapacities(const KvcacheBundle *bundle,
                                                  KvcacheCapacities *out);

KVCACHE_API size_t kvcacheBundleProgramCount(const KvcacheBundle *bundle);
/** Null when there is no such program. */
KVCACHE_API const char *kvcacheBundleProgramName(const KvcacheBundle *bundle,
                                                 size_t program);
KVCACHE_API size_t kvcacheBundleSegmentCount(const KvcacheBundle *bundle,
                                             size_t program);
KVCACHE_API const char *kvcacheBundleSegmentName(const KvcacheBundle *bundle,
                                                 size_t program,
                                                 size_t segment);

/** What a program has room for. Sequences and tokens are those of the bundle,
 * or fewer for a bucket: a program that does what another does, over the same
 * buffers, for smaller batches (kvcache-compile --batch-sizes). */
KVCACHE_API KvcacheStatus kvcacheBundleProgramCapacities(
    const KvcacheBundle *bundle, size_t program, KvcacheCapacities *out);
/** Index of the program to run for a step of so many sequences and tokens: of
 * `name` (null: the only one, or "main") and its buckets the smallest that has
 * room; -1 when none has. What it has room for beyond the step is padded:
 * slots and page copies -1, lengths 0, query starts with their last value. */
KVCACHE_API int64_t kvcacheBundleProgramForBatch(const KvcacheBundle *bundle,
                                                 const char *name,
                                                 int64_t sequences,
                                                 int64_t tokens);

#define KVCACHE_MAX_RANK 8

typedef struct KvcacheBufferInfo {
  size_t size;
  const char *name;        /**< "layer0.query", "page_table", ... */
  const char *role;        /**< activation, cache, page_table, lengths, slots,
                                query_start, workspace, parameter,
                                page_copies */
  const char *elementType; /**< bf16, f16, f32, f8E4M3FN, f8E5M2, i32, ... */
  const char *access;      /**< of the kernels: read, write, readwrite */
  const char *owner;       /**< caller: bind it; runtime: in the workspace */
  uint32_t rank;
  int64_t shape[KVCACHE_MAX_RANK];   /**< at capacity */
  int64_t strides[KVCACHE_MAX_RANK]; /**< elements */
  uint64_t dynamicDims; /**< bit d: the live extent of dim d may be smaller */
  uint64_t bytes;       /**< that a binding must have */
  /** The buffer that holds this one's memory (a half of a packed cache): only
   * the holder is bound. Null: memory of its own. */
  const char *viewOf;
  uint64_t viewOffset; /**< bytes */
} KvcacheBufferInfo;

KVCACHE_API size_t kvcacheBundleBufferCount(const KvcacheBundle *bundle);
KVCACHE_API KvcacheStatus kvcacheBundleBuffer(const KvcacheBundle *bundle,
                                              size_t index,
                                              KvcacheBufferInfo *out);
/** Gives a cache other strides, in elements: of page, token, head, and 1. They
 * are those of the memory that will be bound, of which `bytes` then says how
 * much. Needs a bundle that was compiled with runtime-strides, and comes before
 * the first program of the bundle. An error changes nothing. */
KVCACHE_API KvcacheStatus kvcacheBundleSetStrides(KvcacheBundle *bundle,
                                                  const char *buffer,
                                                  const int64_t *strides,
                                                  uint32_t rank);
/** Index of a buffer by name, or -1. */
KVCACHE_API int64_t kvcacheBundleFindBuffer(const KvcacheBundle *bundle,
                                            const char *name);

typedef struct KvcacheLayerInfo {
  size_t size;
  const char *id;          /**< "layer0": prefix of its buffers' names */
  const char *name;        /**< in the graph */
  const char *cache;       /**< layers that share a cache name the same */
  const char *elementType; /**< of keys and values */
  const char *layout;      /**< nhd, hnd, packed, strides:... */
  int64_t queryHeads, kvHeads, headDim, pageSize;
  /** Exact. Of a cache with a scale for each KV head, the largest. */
  float softmaxScale, kScale, vScale;
  const char *kProvenance; /**< checkpoint, default, duplicate, maximum,
                                override */
  const char *kKey;        /**< checkpoint key; empty without */
  const char *vProvenance;
  const char *vKey;
  /** SHA-256 (hex) over scales, element type, layout, page size and dims. */
  const char *compatibility;
  /** Scales that there are: 1, or kvHeads of them, which
   * kvcacheBundleLayerScales gives. */
  uint32_t kScaleCount, vScaleCount;
  /** Of a latent cache (MLA), the rotary elements at the end of a row of
   * headDim; the others are the value. 0 of other caches. */
  int64_t ropeDim;
  /** Elements of a head's value and output: headDim, or where V has a head dim
   * of its own that, or the latent part of a latent row. */
  int64_t vHeadDim;
} KvcacheLayerInfo;

KVCACHE_API size_t kvcacheBundleLayerCount(const KvcacheBundle *bundle);
KVCACHE_API KvcacheStatus kvcacheBundleLayer(const KvcacheBundle *bundle,
                                             size_t index,
                                             KvcacheLayerInfo *out);
/** Where the scales are that the write computes for each token and KV head:
 * "side" (in buffers of their own) or "inline" (behind the codes of each row,
 * whose buffers are of u8); an empty string of other caches, null of no layer.
 */
KVCACHE_API const char *
kvcacheBundleLayerTokenScales(const KvcacheBundle *bundle, size_t index);
/** The scales of a layer's keys (role 'k') or values ('v'): one, or one for
 * each KV head; the one of FP8 queries ('q') or outputs ('o'). Copies at most
 * `count`; returns how many there are, 0 for a layer or role that is not there.
 */
KVCACHE_API size_t kvcacheBundleLayerScales(const KvcacheBundle *bundle,
                                            size_t index, char role,
                                            float *scales, size_t count);
/** Whether pages that were written under `digest` may be read by this layer:
 * KVCACHE_INCOMPATIBLE_CACHE when not. */
KVCACHE_API KvcacheStatus kvcacheBundleCheckCache(const KvcacheBundle *bundle,
                                                  const char *layer,
                                                  const char *digest);

/*===--- Devices ----------------------------------------------------------===*/

typedef struct KvcacheDevice KvcacheDevice;

/** A CUstream of the device's context, or null for its default stream. The PTX
 * machine runs everything at once and takes null. */
typedef void *KvcacheStream;

typedef struct KvcacheCudaOptions {
  size_t size;
  /** The CUcontext to work in. It must outlive the device; the library makes
   * it current during each call and restores what was current before. */
  void *context;
  /** Library to open; null: libcuda.so.1. */
  const char *driver;
  /** 1: launches of kernels that wait for their predecessor themselves
   * (griddepcontrol.wait) may start early, from sm_90 on. Other kernels are
   * not affected. Default 0. */
  int32_t programmaticLaunch;
} KvcacheCudaOptions;

KVCACHE_API KvcacheStatus kvcacheDeviceCreateCuda(
    const KvcacheCudaOptions *options, KvcacheDevice **device);

typedef struct KvcacheMachineOptions {
  size_t size;
  int32_t checks;  /**< 1: memory, initialisation, race and barrier checks */
  int32_t threads; /**< host threads; 0: one */
} KvcacheMachineOptions;

/** A PTX machine; `options` may be null: all checks, one thread. */
KVCACHE_API KvcacheStatus kvcacheDeviceCreateMachine(
    const KvcacheMachineOptions *options, KvcacheDevice **device);
KVCACHE_API void kvcacheDeviceDestroy(KvcacheDevice *device);

/** "cuda sm_90", "PTX machine". */
KVCACHE_API const char *kvcacheDeviceName(const KvcacheDevice *device);

/** Memory of the device, for callers who have no allocator of their own. The
 * bytes count as never written. */
KVCACHE_API KvcacheStatus kvcacheDeviceAllocate(KvcacheDevice *device,
                                                uint64_t bytes,
                                                uint64_t *address);
KVCACHE_API KvcacheStatus kvcacheDeviceFree(KvcacheDevice *device,
                                            uint64_t address);
/** Copies, and returns when the copy is done. Not allowed while a stream of
 * the context captures. */
KVCACHE_API KvcacheStatus kvcacheDeviceCopyIn(KvcacheDevice *device,
                                              uint64_t address,
                                              const void *source,
                                              uint64_t bytes);
KVCACHE_API KvcacheStatus kvcacheDeviceCopyOut(KvcacheDevice *device,
                                               void *target, uint64_t address,
                                               uint64_t bytes);
KVCACHE_API KvcacheStatus kvcacheDeviceFill(KvcacheDevice *device,
                                            uint64_t address, uint8_t value,
                                            uint64_t bytes,
                                            KvcacheStream stream);
KVCACHE_API KvcacheStatus kvcacheDeviceSynchronize(KvcacheDevice *device,
                                                   KvcacheStream stream);

/*===--- Programs ---------------------------------------------------------===*/

typedef struct KvcacheProgram KvcacheProgram;

/** Loads a program's code. `name` null: the only one, or "main". `chip` null:
 * the best that the device runs (its own cubin, else PTX). The bundle and the
 * device must outlive the program. */
KVCACHE_API KvcacheStatus kvcacheProgramCreate(const KvcacheBundle *bundle,
                                               KvcacheDevice *device,
                                               const char *name,
                                               const char *chip,
                                               KvcacheProgram **program);
KVCACHE_API void kvcacheProgramDestroy(KvcacheProgram *program);
/** "sm_90": the target in use. */
KVCACHE_API const char *kvcacheProgramChip(const KvcacheProgram *program);
/** "cubin" or "ptx". */
KVCACHE_API const char *kvcacheProgramCode(const KvcacheProgram *program);
KVCACHE_API size_t kvcacheProgramSegmentCount(const KvcacheProgram *program);
KVCACHE_API size_t kvcacheProgramLaunchCount(const KvcacheProgram *program,
                                             size_t segment);
/** Bytes and alignment (256) of one instance's workspace; may be 0. */
KVCACHE_API uint64_t
kvcacheProgramWorkspaceBytes(const KvcacheProgram *program);

/*===--- Instances --------------------------------------------------------===*/

typedef struct KvcacheInstance KvcacheInstance;

KVCACHE_API KvcacheStatus kvcacheInstanceCreate(KvcacheProgram *program,
                                                KvcacheInstance **instance);
KVCACHE_API void kvcacheInstanceDestroy(KvcacheInstance *instance);

/** Gives a buffer of the caller its address: at least `bytes` of its
 * KvcacheBufferInfo, a multiple of 16. A graph keeps the addresses it was
 * instantiated with until kvcacheGraphUpdateBindings. */
KVCACHE_API KvcacheStatus kvcacheInstanceBind(KvcacheInstance *instance,
                                              size_t buffer, uint64_t address,
                                              uint64_t bytes);
KVCACHE_API KvcacheStatus kvcacheInstanceBindByName(KvcacheInstance *instance,
                                                    const char *buffer,
                                                    uint64_t address,
                                                    uint64_t bytes);
/** Gives the instance its workspace, of kvcacheProgramWorkspaceBytes at a
 * multiple of 256, and enqueues on `stream` the zeroing of its counters. Once
 * is enough: kernels leave zeros behind. No other instance may use it. */
KVCACHE_API KvcacheStatus
kvcacheInstanceBindWorkspace(KvcacheInstance *instance, uint64_t address,
                             uint64_t bytes, KvcacheStream stream);

#define KVCACHE_ALL_SEGMENTS ((size_t)-1)

/** Enqueues a segment's launches, in order, and nothing else: no
 * synchronisation, no allocation, no attribute call. May be called while the
 * caller captures the stream. */
KVCACHE_API KvcacheStatus kvcacheInstanceEnqueue(KvcacheInstance *instance,
                                                 size_t segment,
                                                 KvcacheStream stream);

/*===--- Graphs -----------------------------------------------------------===*/

typedef struct KvcacheGraph KvcacheGraph;

/** Builds a graph of one segment, or of all in order, from explicit nodes. */
KVCACHE_API KvcacheStatus kvcacheInstanceInstantiateGraph(
    KvcacheInstance *instance, size_t segment, KvcacheGraph **graph);
KVCACHE_API void kvcacheGraphDestroy(KvcacheGraph *graph);
/** Starts the graph; waits for nothing. */
KVCACHE_API KvcacheStatus kvcacheGraphReplay(KvcacheGraph *graph,
                                             KvcacheStream stream);
/** Takes over the addresses that its instance is bound to now. */
KVCACHE_API KvcacheStatus kvcacheGraphUpdateBindings(KvcacheGraph *graph);

/** The frozen argument bytes of a graph's launch `index`: parameters at their
 * offsets, as the kernel receives them. Returns their number; copies at most
 * `size`. For tests and for callers who build nodes of their own. */
KVCACHE_API size_t kvcacheGraphLaunchBytes(const KvcacheGraph *graph,
                                           size_t index, void *bytes,
                                           size_t size);

#ifdef __cplusplus
}
#endif

#endif /* KVCACHE_C_RUNTIME_H */
