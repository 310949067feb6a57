/*===- Dialect.h - The compiler of kvcache for C --------------------*- C -*-===
 *
 * On top of MLIR's own C interface (mlir-c): registers the dialect and its
 * passes, and makes and reads scales. Pipelines run by their names through
 * mlirParsePassPipeline, for example
 *
 *   builtin.module(kvcache-scale-pipeline{checkpoint=DIR})
 *
 * with the options of kvcache/Pipelines/Pipelines.h.
 *
 *===----------------------------------------------------------------------===*/

#ifndef KVCACHE_C_DIALECT_H
#define KVCACHE_C_DIALECT_H

#include "mlir-c/IR.h"
#include "mlir-c/Support.h"
#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/** The handle of the dialect `kvcache`: mlirGetDialectHandle__kvcache__(). */
MLIR_DECLARE_CAPI_DIALECT_REGISTRATION(KVCache, kvcache);

/*===--------------------------------------------------------------------===
 * Registration
 *===--------------------------------------------------------------------===*/

/** Adds the dialect with the interfaces that its passes ask foreign ops for,
 *  the upstream dialects that serving graphs and the pipelines use, and the
 *  translations that turn kernels into PTX. */
MLIR_CAPI_EXPORTED void kvcacheRegisterCompiler(MlirDialectRegistry registry);

/** Registers all passes and pipelines of kvcache by name, once per process. */
MLIR_CAPI_EXPORTED void kvcacheRegisterPasses(void);

/*===--------------------------------------------------------------------===
 * Scales: #kvcache.scale<...>
 *===--------------------------------------------------------------------===*/

/** Where in its life cycle a scale is. */
typedef enum {
  KVCacheScaleDynamic = 0,
  KVCacheScaleCheckpoint = 1,
  KVCacheScaleStatic = 2
} KVCacheScaleState;

/** Where the value of a static scale comes from. */
typedef enum {
  KVCacheProvenanceCheckpoint = 0,
  KVCacheProvenanceDefault = 1,
  KVCacheProvenanceDuplicate = 2,
  KVCacheProvenanceMaximum = 3,
  KVCacheProvenanceOverride = 4
} KVCacheProvenance;

MLIR_CAPI_EXPORTED bool kvcacheAttributeIsAScale(MlirAttribute attribute);

/** A scale that is computed at run time. */
MLIR_CAPI_EXPORTED MlirAttribute kvcacheScaleGetDynamic(MlirContext context);

/** A scale that is bound to a checkpoint tensor. A null attribute when the key
 *  is empty; the diagnostic goes to the context. */
MLIR_CAPI_EXPORTED MlirAttribute kvcacheScaleGetCheckpoint(MlirContext context,
                                                           MlirStringRef key);

/** A scale with `count` values: 1 per tensor, or one for each KV head. A null
 *  attribute, with a diagnostic, when a value is not positive, finite and
 *  normal, or when key and provenance do not fit each other. */
MLIR_CAPI_EXPORTED MlirAttribute
kvcacheScaleGetStatic(MlirContext context, intptr_t count, const float *values,
                      KVCacheProvenance provenance, MlirStringRef key);

MLIR_CAPI_EXPORTED KVCacheScaleState kvcacheScaleGetState(MlirAttribute scale);
/** Number of values: 0 unless the scale is static. */
MLIR_CAPI_EXPORTED intptr_t kvcacheScaleGetNumValues(MlirAttribute scale);
MLIR_CAPI_EXPORTED float kvcacheScaleGetValue(MlirAttribute scale,
                                              intptr_t index);
MLIR_CAPI_EXPORTED KVCacheProvenance
kvcacheScaleGetProvenance(MlirAttribute scale);
/** The checkpoint key, empty where there is none; lives as long as the
 *  context. */
MLIR_CAPI_EXPORTED MlirStringRef kvcacheScaleGetKey(MlirAttribute scale);

/*===--------------------------------------------------------------------===
 * Cache handles: !kvcache.cache<H x D x T>
 *===--------------------------------------------------------------------===*/

MLIR_CAPI_EXPORTED bool kvcacheTypeIsACache(MlirType type);
/** A null type, with a diagnostic, when a size is not positive or the element
 *  type cannot be that of a cache. */
MLIR_CAPI_EXPORTED MlirType kvcacheCacheTypeGet(MlirContext context,
                                                int64_t numHeads,
                                                int64_t headDim,
                                                MlirType elementType);
/** `!kvcache.cache<H x D | E x T>`: values have the head dim `vHeadDim`. */
MLIR_CAPI_EXPORTED MlirType kvcacheCacheTypeGetWithVHeadDim(
    MlirContext context, int64_t numHeads, int64_t headDim, int64_t vHeadDim,
    MlirType elementType);
/** The cache of MLA, `!kvcache.cache<latent L + R x T>`; i8 stands for
 *  fp8_ds_mla rows. */
MLIR_CAPI_EXPORTED MlirType kvcacheLatentCacheTypeGet(MlirContext context,
                                                      int64_t latentDim,
                                                      int64_t ropeDim,
                                                      MlirType elementType);
/** 0 for a cache that is not latent. */
MLIR_CAPI_EXPORTED int64_t kvcacheCacheTypeGetRopeDim(MlirType type);
MLIR_CAPI_EXPORTED int64_t kvcacheCacheTypeGetNumHeads(MlirType type);
MLIR_CAPI_EXPORTED int64_t kvcacheCacheTypeGetHeadDim(MlirType type);
/** The head dim of values and outputs; of a latent cache its latent part. */
MLIR_CAPI_EXPORTED int64_t kvcacheCacheTypeGetVHeadDim(MlirType type);
MLIR_CAPI_EXPORTED MlirType kvcacheCacheTypeGetElementType(MlirType type);

#ifdef __cplusplus
}
#endif

#endif /* KVCACHE_C_DIALECT_H */
