/*===- DialectTest.c - The C interface from C -----------------------------===*/

#include "kvcache-c/Dialect.h"
#include "mlir-c/BuiltinTypes.h"
#include "mlir-c/Diagnostics.h"
#include "mlir-c/IR.h"
#include "mlir-c/Pass.h"
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
  mlirContextDestroy(context);
  printf("passed\n");
  return 0;
}
