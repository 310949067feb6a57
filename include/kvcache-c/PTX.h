/*===- kvcache-c/PTX.h - C interface of the PTX machine ------------*- C
-*-===*\
|*                                                                            *|
|* What include/kvcache/PTX/Machine.h offers, for callers that are not C++    *|
|* (libkvcache_ptx.so; test/PTX/ptx_machine.py binds it with ctypes). Text    *|
|* results are written to a caller's buffer: at most `size` bytes with the    *|
|* final zero; the return value is the length that the whole text needs       *|
|* without it, so a value >= `size` means that it was cut.                    *|
|*                                                                            *|
\*===----------------------------------------------------------------------===*/

#ifndef KVCACHE_C_PTX_H
#define KVCACHE_C_PTX_H

#include <stddef.h>
#include <stdint.h>

#if defined(__GNUC__)
#define KVCACHE_PTX_API __attribute__((visibility("default")))
#else
#define KVCACHE_PTX_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

/** A device: memory, modules, the report of the last launch. */
typedef struct KvcachePtxMachine KvcachePtxMachine;

typedef struct KvcachePtxOptions {
  uint32_t memcheck, initcheck, racecheck, synccheck; /**< 0: off */
  uint32_t counters;
  uint32_t lateCopies; /**< 1: copies land when a wait demands them */
  uint32_t threads;    /**< host threads */
  uint32_t quantum;    /**< switch warps after so many instructions; 0: never */
  uint64_t maxInstructions; /**< a warp; 0: no limit */
  uint64_t seed;            /**< order of blocks and warps; 0: ascending */
  uint32_t regions;         /**< 1: counts per region and line */
  uint32_t reserved;        /**< 0 */
} KvcachePtxOptions;

KVCACHE_PTX_API KvcachePtxMachine *kvcachePtxMachineCreate(void);
KVCACHE_PTX_API void kvcachePtxMachineDestroy(KvcachePtxMachine *machine);

/** The message of the last call that failed; empty when none did. */
KVCACHE_PTX_API size_t kvcachePtxLastError(const KvcachePtxMachine *machine,
                                           char *text, size_t size);

/** Registers host memory, which must stay alive; returns its device address.
 * `init`: one byte per byte, non-zero = written (copied); null: all valid and
 * no map is kept. `propagate`: stores of bytes that nobody wrote are quiet. */
KVCACHE_PTX_API uint64_t kvcachePtxAddBuffer(KvcachePtxMachine *machine,
                                             void *host, uint64_t bytes,
                                             const uint8_t *init,
                                             const char *name, int readOnly,
                                             int propagate);
KVCACHE_PTX_API void kvcachePtxClearBuffers(KvcachePtxMachine *machine);
/** Writes the init map of a device range, one byte per byte. 0: success. */
KVCACHE_PTX_API int kvcachePtxInitialised(const KvcachePtxMachine *machine,
                                          uint64_t address, uint64_t bytes,
                                          uint8_t *map);
/** Device address of a module-scope variable, or 0. */
KVCACHE_PTX_API uint64_t kvcachePtxSymbol(KvcachePtxMachine *machine,
                                          int module, const char *name);

/** Parses PTX; returns a module number, or -1. */
KVCACHE_PTX_API int kvcachePtxLoadModule(KvcachePtxMachine *machine,
                                         const char *text, const char *name);
/** JSON: one object per kernel with parameters, shared bytes and the
 * instructions that the machine does not know. */
KVCACHE_PTX_API size_t kvcachePtxDescribe(const KvcachePtxMachine *machine,
                                          int module, char *text, size_t size);

/** `arguments`: as for cuLaunchKernel. Returns the number of findings, or -1
 * when the launch was refused (see kvcachePtxLastError). */
KVCACHE_PTX_API int64_t kvcachePtxLaunch(KvcachePtxMachine *machine, int module,
                                         const char *kernel,
                                         const uint32_t grid[3],
                                         const uint32_t block[3],
                                         uint32_t dynamicSharedBytes,
                                         const void *const *arguments,
                                         const KvcachePtxOptions *options);
/** JSON of the last launch: findings, counters, seconds; with `regions` the
 * counts of each region, and of each line those that are not zero. */
KVCACHE_PTX_API size_t kvcachePtxReport(const KvcachePtxMachine *machine,
                                        char *text, size_t size);

/** Counts of the last launch and its regions as a table for people. */
KVCACHE_PTX_API size_t kvcachePtxTable(const KvcachePtxMachine *machine,
                                       char *text, size_t size);

#ifdef __cplusplus
}
#endif

#endif /* KVCACHE_C_PTX_H */
