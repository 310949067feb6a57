/*===- ScaleTable.h - Scales in memory, for C -----------------------*- C -*-===
 *
 * The scales of a model without files: a caller who has them, because it
 * calibrated or refitted them, fills a table and makes the pass that folds it.
 * kvcache-fold-checkpoint-scales reads a checkpoint instead.
 *
 *===----------------------------------------------------------------------===*/

#ifndef KVCACHE_C_SCALETABLE_H
#define KVCACHE_C_SCALETABLE_H

#include "mlir-c/Pass.h"
#include "mlir-c/Support.h"
#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/** What a scale belongs to: queries, keys, values, probabilities, the attention
 *  output. */
typedef enum {
  KVCacheScaleRoleQ = 0,
  KVCacheScaleRoleK = 1,
  KVCacheScaleRoleV = 2,
  KVCacheScaleRoleProb = 3,
  KVCacheScaleRoleO = 4
} KVCacheScaleRole;

typedef struct KVCacheScaleTable {
  void *ptr;
} KVCacheScaleTable;

/** An empty table, the caller's to destroy. */
MLIR_CAPI_EXPORTED KVCacheScaleTable kvcacheScaleTableCreate(void);
MLIR_CAPI_EXPORTED void kvcacheScaleTableDestroy(KVCacheScaleTable table);

/** Adds a layer under the graph's name ("model.layers.0.self_attn.attn"), with
 *  all scales 1.0 from default. False, and nothing happens, when the table has
 *  it or the name is empty. */
MLIR_CAPI_EXPORTED bool kvcacheScaleTableAddLayer(KVCacheScaleTable table,
                                                  MlirStringRef layer);

/** Sets a scale of a layer, a dequantization multiplier (value = code * scale):
 *  `count` is 1, or the number of KV heads of this rank for a scale of each.
 *  `key` says where the values come from, as a checkpoint key would; when it is
 *  empty, they are an override. False, and nothing happens, when the table has
 *  no such layer, `count` is not positive, or a value is not positive, finite
 *  and normal. A latent cache (MLA) has the scale K only. */
MLIR_CAPI_EXPORTED bool
kvcacheScaleTableSetScale(KVCacheScaleTable table, MlirStringRef layer,
                          KVCacheScaleRole role, intptr_t count,
                          const float *values, MlirStringRef key);

MLIR_CAPI_EXPORTED intptr_t
kvcacheScaleTableGetNumLayers(KVCacheScaleTable table);
/** Values of a scale: 1, or one for each KV head; 0 when the table has no such
 *  layer. */
MLIR_CAPI_EXPORTED intptr_t kvcacheScaleTableGetNumValues(
    KVCacheScaleTable table, MlirStringRef layer, KVCacheScaleRole role);
/** `index` is below kvcacheScaleTableGetNumValues(). */
MLIR_CAPI_EXPORTED float kvcacheScaleTableGetValue(KVCacheScaleTable table,
                                                   MlirStringRef layer,
                                                   KVCacheScaleRole role,
                                                   intptr_t index);

/** `kvcache-fold-checkpoint-scales` with a copy of the table. It has every
 *  layer whose cache has no static scales yet, else the pass fails. Owned by
 *  the pass manager that it is added to. */
MLIR_CAPI_EXPORTED MlirPass
kvcacheCreateFoldCheckpointScales(KVCacheScaleTable table);

#ifdef __cplusplus
}
#endif

#endif /* KVCACHE_C_SCALETABLE_H */
