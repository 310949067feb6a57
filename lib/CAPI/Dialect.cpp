//===- Dialect.cpp - The compiler of kvcache for C ------------------------===//

#include "kvcache-c/Dialect.h"
#include "kvcache/InitAll.h"
#include "mlir/CAPI/IR.h"
#include "mlir/CAPI/Registration.h"
#include "mlir/CAPI/Support.h"
#include "mlir/InitAllDialects.h"
#include <mutex>

using namespace mlir;
using namespace mlir::kvcache;

MLIR_DEFINE_CAPI_DIALECT_REGISTRATION(KVCache, kvcache, KVCacheDialect)

void kvcacheRegisterCompiler(MlirDialectRegistry registry) {
  registerAllDialects(*unwrap(registry));
  registerKVCacheDialect(*unwrap(registry));
  registerKVCacheTranslations(*unwrap(registry));
}

void kvcacheRegisterPasses() {
  static std::once_flag once;
  std::call_once(once, registerKVCachePasses);
}

//===----------------------------------------------------------------------===//
// Scales
//===----------------------------------------------------------------------===//

static ScaleAttr unwrapScale(MlirAttribute scale) {
  return llvm::cast<ScaleAttr>(unwrap(scale));
}

bool kvcacheAttributeIsAScale(MlirAttribute attribute) {
  return llvm::isa<ScaleAttr>(unwrap(attribute));
}

static MlirAttribute getChecked(MLIRContext *context, ScaleState state,
                                ArrayRef<float> values, Provenance provenance,
                                StringRef key) {
  Location loc = UnknownLoc::get(context);
  return wrap(Attribute(
      ScaleAttr::getChecked([&] { return emitError(loc); }, context, state,
                            DenseF32ArrayAttr::get(context, values), provenance,
                            StringAttr::get(context, key))));
}

MlirAttribute kvcacheScaleGetDynamic(MlirContext context) {
  return wrap(Attribute(ScaleAttr::get(unwrap(context))));
}

MlirAttribute kvcacheScaleGetCheckpoint(MlirContext context,
                                        MlirStringRef key) {
  return getChecked(unwrap(context), ScaleState::Checkpoint, {},
                    Provenance::Checkpoint, unwrap(key));
}

MlirAttribute kvcacheScaleGetStatic(MlirContext context, intptr_t count,
                                    const float *values,
                                    KVCacheProvenance provenance,
                                    MlirStringRef key) {
  return getChecked(unwrap(context), ScaleState::Static,
                    ArrayRef<float>(values, count),
                    static_cast<Provenance>(provenance), unwrap(key));
}

KVCacheScaleState kvcacheScaleGetState(MlirAttribute scale) {
  return static_cast<KVCacheScaleState>(unwrapScale(scale).getState());
}

intptr_t kvcacheScaleGetNumValues(MlirAttribute scale) {
  return unwrapScale(scale).getValues().size();
}

float kvcacheScaleGetValue(MlirAttribute scale, intptr_t index) {
  return unwrapScale(scale).getValues()[index];
}

KVCacheProvenance kvcacheScaleGetProvenance(MlirAttribute scale) {
  return static_cast<KVCacheProvenance>(unwrapScale(scale).getProvenance());
}

MlirStringRef kvcacheScaleGetKey(MlirAttribute scale) {
  return wrap(unwrapScale(scale).getKey().getValue());
}

//===----------------------------------------------------------------------===//
// Cache handles
//===----------------------------------------------------------------------===//

static CacheType unwrapCache(MlirType type) {
  return llvm::cast<CacheType>(unwrap(type));
}

bool kvcacheTypeIsACache(MlirType type) {
  return llvm::isa<CacheType>(unwrap(type));
}

MlirType kvcacheCacheTypeGet(MlirContext context, int64_t numHeads,
                             int64_t headDim, MlirType elementType) {
  return kvcacheCacheTypeGetWithVHeadDim(context, numHeads, headDim, headDim,
                                         elementType);
}

MlirType kvcacheCacheTypeGetWithVHeadDim(MlirContext context, int64_t numHeads,
                                         int64_t headDim, int64_t vHeadDim,
                                         MlirType elementType) {
  Location loc = UnknownLoc::get(unwrap(context));
  return wrap(Type(CacheType::getChecked([&] { return emitError(loc); },
                                         unwrap(context), numHeads, headDim,
                                         vHeadDim, unwrap(elementType))));
}

MlirType kvcacheLatentCacheTypeGet(MlirContext context, int64_t latentDim,
                                   int64_t ropeDim, MlirType elementType) {
  Location loc = UnknownLoc::get(unwrap(context));
  // Without a rotary part it would be a cache of another kind.
  if (ropeDim == 0) {
    emitError(loc) << "a latent cache needs a rotary part";
    return wrap(Type());
  }
  return wrap(Type(CacheType::getChecked(
      [&] { return emitError(loc); }, unwrap(context), int64_t(1),
      latentDim + ropeDim, unwrap(elementType), ropeDim, latentDim)));
}

int64_t kvcacheCacheTypeGetRopeDim(MlirType type) {
  return unwrapCache(type).getRopeDim();
}

int64_t kvcacheCacheTypeGetNumHeads(MlirType type) {
  return unwrapCache(type).getNumHeads();
}

int64_t kvcacheCacheTypeGetHeadDim(MlirType type) {
  return unwrapCache(type).getHeadDim();
}

int64_t kvcacheCacheTypeGetVHeadDim(MlirType type) {
  return unwrapCache(type).getVHeadDim();
}

MlirType kvcacheCacheTypeGetElementType(MlirType type) {
  return wrap(unwrapCache(type).getElementType());
}
