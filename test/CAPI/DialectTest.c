/*===- DialectTest.c - The C interface from C -----------------------------===*/

#include "kvcache-c/Dialect.h"
#include "kvcache-c/ScaleTable.h"
#include "mlir-c/BuiltinTypes.h"
#include "mlir-c/Diagnostics.h"
#include "mlir-c/IR.h"
#include "mlir-c/Pass.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHECK(condition)                                                       \
  do {                                                                         \
    if (!(condition)) {                                                        \
      fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition);          \
      exit(1);                                                                 \
    }                                                                          \
  } while (0)

static int errors = 0;

static MlirLogicalResult countErrors(MlirDiagnostic diagnostic, void *data) {
  (void)data;
  if (mlirDiagnosticGetSeverity(diagnostic) == MlirDiagnosticError)
    ++errors;
  return mlirLogicalResultSuccess();
}

static void append(MlirStringRef part, void *text) {
  strncat((char *)text, part.data, part.length);
}

static MlirStringRef str(const char *text) {
  return mlirStringRefCreateFromCString(text);
}

static void testScales(MlirContext context) {
  MlirAttribute dynamic = kvcacheScaleGetDynamic(context);
  CHECK(kvcacheAttributeIsAScale(dynamic));
  CHECK(kvcacheScaleGetState(dynamic) == KVCacheScaleDynamic);
  CHECK(kvcacheScaleGetNumValues(dynamic) == 0);

  MlirAttribute bound =
      kvcacheScaleGetCheckpoint(context, str("layers.0.k_scale"));
  CHECK(kvcacheScaleGetState(bound) == KVCacheScaleCheckpoint);
  MlirStringRef key = kvcacheScaleGetKey(bound);
  CHECK(key.length == 16 && !memcmp(key.data, "layers.0.k_scale", 16));
  CHECK(mlirAttributeIsNull(kvcacheScaleGetCheckpoint(context, str(""))));
  CHECK(errors == 1);

  const float values[] = {0.0123f, 2.0f};
  MlirAttribute perHead = kvcacheScaleGetStatic(
      context, 2, values, KVCacheProvenanceOverride, str(""));
  CHECK(kvcacheScaleGetState(perHead) == KVCacheScaleStatic);
  CHECK(kvcacheScaleGetProvenance(perHead) == KVCacheProvenanceOverride);
  CHECK(kvcacheScaleGetNumValues(perHead) == 2);
  CHECK(kvcacheScaleGetValue(perHead, 0) == 0.0123f);
  CHECK(kvcacheScaleGetValue(perHead, 1) == 2.0f);
  char text[256] = "";
  mlirAttributePrint(perHead, append, text);
  CHECK(!strncmp(text, "#kvcache.scale<[", 16));
  CHECK(mlirAttributeEqual(perHead, mlirAttributeParseGet(context, str(text))));

  const float zero = 0.0f;
  CHECK(mlirAttributeIsNull(kvcacheScaleGetStatic(
      context, 1, &zero, KVCacheProvenanceDefault, str(""))));
  CHECK(errors == 2);
}

static void testTypes(MlirContext context) {
  MlirType element = mlirFloat8E4M3FNTypeGet(context);
  MlirType cache = kvcacheCacheTypeGet(context, 2, 64, element);
  CHECK(kvcacheTypeIsACache(cache));
  CHECK(!kvcacheTypeIsACache(element));
  CHECK(kvcacheCacheTypeGetNumHeads(cache) == 2);
  CHECK(kvcacheCacheTypeGetHeadDim(cache) == 64);
  CHECK(mlirTypeEqual(kvcacheCacheTypeGetElementType(cache), element));
  CHECK(mlirTypeIsNull(kvcacheCacheTypeGet(context, 0, 64, element)));
  CHECK(kvcacheCacheTypeGetRopeDim(cache) == 0);
  MlirType latent = kvcacheLatentCacheTypeGet(context, 512, 64, element);
  CHECK(kvcacheTypeIsACache(latent));
  CHECK(kvcacheCacheTypeGetNumHeads(latent) == 1);
  CHECK(kvcacheCacheTypeGetHeadDim(latent) == 576);
  CHECK(kvcacheCacheTypeGetRopeDim(latent) == 64);
  CHECK(mlirTypeIsNull(kvcacheLatentCacheTypeGet(context, 512, 0, element)));
  CHECK(errors == 4);
}

/* A layer that computes its scales at run time, and then does not. */
static void testPipeline(MlirContext context) {
  const char *source =
      "kvcache.scale_buffer @k : f32 dynamic\n"
      "kvcache.scale_buffer @v : f32 dynamic\n"
      "kvcache.cache_group @full page_size 16\n"
      "kvcache.cache @c of \"model.layers.0.self_attn.attn\" in @full"
      " : 2 x 64 x f8E4M3FN scales(@k, @v)\n";
  MlirModule module = mlirModuleCreateParse(context, str(source));
  CHECK(!mlirModuleIsNull(module));
  MlirPassManager manager = mlirPassManagerCreate(context);
  char message[512] = "";
  CHECK(mlirLogicalResultIsSuccess(
      mlirParsePassPipeline(mlirPassManagerGetAsOpPassManager(manager),
                            str("builtin.module(kvcache-scale-pipeline{"
                                "scale=model.layers.0.self_attn.attn.k=0.25,"
                                "model.layers.0.self_attn.attn.v=0.5})"),
                            append, message)));
  CHECK(mlirLogicalResultIsSuccess(
      mlirPassManagerRunOnOp(manager, mlirModuleGetOperation(module))));
  MlirBlock body = mlirModuleGetBody(module);
  float expected[] = {0.25f, 0.5f};
  int seen = 0;
  MlirOperation op = mlirBlockGetFirstOperation(body);
  for (; !mlirOperationIsNull(op); op = mlirOperationGetNextInBlock(op)) {
    MlirAttribute scale = mlirOperationGetAttributeByName(op, str("scale"));
    if (mlirAttributeIsNull(scale))
      continue;
    CHECK(kvcacheScaleGetState(scale) == KVCacheScaleStatic);
    CHECK(seen < 2 && kvcacheScaleGetValue(scale, 0) == expected[seen]);
    ++seen;
  }
  CHECK(seen == 2);
  mlirPassManagerDestroy(manager);
  mlirModuleDestroy(module);
}

/* Folds `table` into a module of one layer; the values of its scales, K's and
 * then V's, or 0 after an error. */
static int fold(MlirContext context, KVCacheScaleTable table, float *values) {
  const char *source =
      "kvcache.scale_buffer @k : f32 dynamic\n"
      "kvcache.scale_buffer @v : f32 dynamic\n"
      "kvcache.cache_group @full page_size 16\n"
      "kvcache.cache @c of \"model.layers.0.self_attn.attn\" in @full"
      " : 2 x 64 x f8E4M3FN scales(@k, @v)\n";
  MlirModule module = mlirModuleCreateParse(context, str(source));
  MlirPassManager manager = mlirPassManagerCreate(context);
  mlirPassManagerAddOwnedPass(manager,
                              kvcacheCreateFoldCheckpointScales(table));
  int count = 0;
  if (mlirLogicalResultIsSuccess(
          mlirPassManagerRunOnOp(manager, mlirModuleGetOperation(module)))) {
    MlirOperation op = mlirBlockGetFirstOperation(mlirModuleGetBody(module));
    for (; !mlirOperationIsNull(op); op = mlirOperationGetNextInBlock(op)) {
      MlirAttribute scale = mlirOperationGetAttributeByName(op, str("scale"));
      if (mlirAttributeIsNull(scale))
        continue;
      CHECK(kvcacheScaleGetState(scale) == KVCacheScaleStatic);
      CHECK(kvcacheScaleGetProvenance(scale) ==
            (count == 0 ? KVCacheProvenanceCheckpoint
                        : KVCacheProvenanceOverride));
      if (count == 0)
        CHECK(mlirStringRefEqual(kvcacheScaleGetKey(scale), str("fit.7.k")));
      for (intptr_t i = 0; i < kvcacheScaleGetNumValues(scale); ++i)
        values[count++] = kvcacheScaleGetValue(scale, i);
    }
  }
  mlirPassManagerDestroy(manager);
  mlirModuleDestroy(module);
  return count;
}

/* Scales without files, and then other ones. */
static void testScaleTable(MlirContext context) {
  MlirStringRef layer = str("model.layers.0.self_attn.attn");
  KVCacheScaleTable table = kvcacheScaleTableCreate();
  float k = 0.25f, v[] = {0.5f, 0.125f}, folded[4];
  CHECK(fold(context, table, folded) == 0); /* the layer is missing */
  CHECK(kvcacheScaleTableAddLayer(table, layer));
  CHECK(!kvcacheScaleTableAddLayer(table, layer));
  CHECK(!kvcacheScaleTableAddLayer(table, str("")));
  CHECK(kvcacheScaleTableGetNumLayers(table) == 1);
  CHECK(kvcacheScaleTableGetNumValues(table, layer, KVCacheScaleRoleV) == 1);
  CHECK(kvcacheScaleTableGetValue(table, layer, KVCacheScaleRoleV, 0) == 1.0f);
  CHECK(kvcacheScaleTableGetNumValues(table, str("x"), KVCacheScaleRoleV) == 0);

  float wrong[] = {0.0f, -1.0f, 1e-40f, INFINITY, NAN};
  for (size_t i = 0; i < sizeof wrong / sizeof *wrong; ++i)
    CHECK(!kvcacheScaleTableSetScale(table, layer, KVCacheScaleRoleK, 1,
                                     &wrong[i], str("")));
  CHECK(!kvcacheScaleTableSetScale(table, layer, KVCacheScaleRoleK, 0, &k,
                                   str("")));
  CHECK(!kvcacheScaleTableSetScale(table, str("x"), KVCacheScaleRoleK, 1, &k,
                                   str("")));
  CHECK(kvcacheScaleTableSetScale(table, layer, KVCacheScaleRoleK, 1, &k,
                                  str("fit.7.k")));
  CHECK(kvcacheScaleTableSetScale(table, layer, KVCacheScaleRoleV, 2, v,
                                  str("")));
  CHECK(kvcacheScaleTableGetNumValues(table, layer, KVCacheScaleRoleV) == 2);
  CHECK(kvcacheScaleTableGetValue(table, layer, KVCacheScaleRoleV, 1) == v[1]);
  CHECK(fold(context, table, folded) == 3);
  CHECK(folded[0] == k && folded[1] == v[0] && folded[2] == v[1]);

  k = 0.75f; /* the weights were refitted */
  CHECK(kvcacheScaleTableSetScale(table, layer, KVCacheScaleRoleK, 1, &k,
                                  str("fit.7.k")));
  CHECK(fold(context, table, folded) == 3 && folded[0] == k);

  float three[] = {1.0f, 2.0f, 3.0f}; /* of two heads */
  CHECK(kvcacheScaleTableSetScale(table, layer, KVCacheScaleRoleV, 3, three,
                                  str("")));
  CHECK(fold(context, table, folded) == 0);
  kvcacheScaleTableDestroy(table);
}

int main(void) {
  MlirDialectRegistry registry = mlirDialectRegistryCreate();
  kvcacheRegisterCompiler(registry);
  kvcacheRegisterPasses();
  kvcacheRegisterPasses(); /* a second time is harmless */
  MlirContext context = mlirContextCreateWithRegistry(registry, false);
  mlirDialectRegistryDestroy(registry);
  MlirDialectHandle handle = mlirGetDialectHandle__kvcache__();
  CHECK(!mlirDialectIsNull(mlirDialectHandleLoadDialect(handle, context)));
  mlirContextAttachDiagnosticHandler(context, countErrors, NULL, NULL);
  testScales(context);
  testTypes(context);
  testPipeline(context);
  CHECK(errors == 4);
  testScaleTable(context);
  CHECK(errors == 6);
  mlirContextDestroy(context);
  printf("passed\n");
  return 0;
}
