//===- ScaleTable.cpp - Scales in memory, for C ---------------------------===//

#include "kvcache-c/ScaleTable.h"
#include "kvcache/Checkpoint/ScaleTable.h"
#include "kvcache/Transforms/Passes.h"
#include "mlir/CAPI/Pass.h"
#include "mlir/CAPI/Support.h"
#include "mlir/CAPI/Wrap.h"
#include <algorithm>
#include <cmath>

using ::kvcache::LayerScales;
using ::kvcache::Scale;
using ::kvcache::ScaleTable;

DEFINE_C_API_PTR_METHODS(KVCacheScaleTable, ScaleTable)

/// The layer of that name; null if there is none.
static LayerScales *findLayer(KVCacheScaleTable table, MlirStringRef layer) {
  std::string_view name(layer.data, layer.length);
  for (LayerScales &scales : unwrap(table)->layers)
    if (scales.layer == name)
      return &scales;
  return nullptr;
}

static Scale *findScale(KVCacheScaleTable table, MlirStringRef layer,
                        KVCacheScaleRole role) {
  LayerScales *scales = findLayer(table, layer);
  return scales ? &(*scales)[static_cast<::kvcache::ScaleRole>(role)] : nullptr;
}

KVCacheScaleTable kvcacheScaleTableCreate() { return wrap(new ScaleTable()); }

void kvcacheScaleTableDestroy(KVCacheScaleTable table) { delete unwrap(table); }

bool kvcacheScaleTableAddLayer(KVCacheScaleTable table, MlirStringRef layer) {
  if (layer.length == 0 || findLayer(table, layer))
    return false;
  LayerScales &scales = unwrap(table)->layers.emplace_back();
  scales.layer = unwrap(layer).str();
  scales.module = ::kvcache::attentionModule(scales.layer);
  return true;
}

bool kvcacheScaleTableSetScale(KVCacheScaleTable table, MlirStringRef layer,
                               KVCacheScaleRole role, intptr_t count,
                               const float *values, MlirStringRef key) {
  Scale *scale = findScale(table, layer, role);
  if (!scale || count <= 0 ||
      !std::all_of(values, values + count, [](float value) {
        return std::isnormal(value) && value > 0;
      }))
    return false;
  *scale = Scale();
  scale->value = *std::max_element(values, values + count);
  if (count > 1)
    scale->perHead.assign(values, values + count);
  scale->key = unwrap(key).str();
  scale->file = "a table in memory";
  scale->provenance = scale->key.empty()
                          ? ::kvcache::ScaleProvenance::Override
                          : ::kvcache::ScaleProvenance::Checkpoint;
  scale->used = true;
  return true;
}

intptr_t kvcacheScaleTableGetNumLayers(KVCacheScaleTable table) {
  return static_cast<intptr_t>(unwrap(table)->layers.size());
}

intptr_t kvcacheScaleTableGetNumValues(KVCacheScaleTable table,
                                       MlirStringRef layer,
                                       KVCacheScaleRole role) {
  const Scale *scale = findScale(table, layer, role);
  if (!scale)
    return 0;
  return scale->perHead.empty() ? 1
                                : static_cast<intptr_t>(scale->perHead.size());
}

float kvcacheScaleTableGetValue(KVCacheScaleTable table, MlirStringRef layer,
                                KVCacheScaleRole role, intptr_t index) {
  const Scale *scale = findScale(table, layer, role);
  return scale->perHead.empty() ? scale->value
                                : scale->perHead[static_cast<size_t>(index)];
}

MlirPass kvcacheCreateFoldCheckpointScales(KVCacheScaleTable table) {
  return wrap(
      mlir::kvcache::createFoldCheckpointScalesPass(*unwrap(table)).release());
}
