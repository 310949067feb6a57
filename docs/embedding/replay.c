/* Loads a bundle, freezes its program as one graph, and replays it while
 * sequences grow, end and start again. Only device memory changes in between.
 *
 *   cc -Iinclude docs/embedding/replay.c -Lbuild/lib -lkvcache_runtime
 *   ./a.out llama.kvb
 *
 * It runs on the PTX machine. On a card, kvcacheDeviceCreateCuda takes the
 * CUcontext that you work in, and addresses are yours from cuMemAlloc. */

#include "kvcache-c/Runtime.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void check(KvcacheStatus status) {
  if (status == KVCACHE_OK)
    return;
  fprintf(stderr, "%s: %s\n", kvcacheStatusName(status), kvcacheLastError());
  exit(1);
}

/* Fills a buffer of the bundle with 4-byte or 8-byte integers. */
static void set(KvcacheDevice *device, const KvcacheBufferInfo *info,
                uint64_t address, const int64_t *values, size_t count) {
  size_t width = strcmp(info->elementType, "i64") == 0 ? 8 : 4;
  char *bytes = malloc(count * width);
  for (size_t i = 0; i < count; ++i) {
    int32_t narrow = (int32_t)values[i];
    memcpy(bytes + i * width, width == 8 ? (const void *)&values[i] : &narrow,
           width);
  }
  check(kvcacheDeviceCopyIn(device, address, bytes, count * width));
  free(bytes);
}

int main(int argc, char **argv) {
  if (argc != 2) {
    fprintf(stderr, "usage: %s BUNDLE\n", argv[0]);
    return 2;
  }
  if (kvcacheRuntimeAbiVersion() != KVCACHE_RUNTIME_ABI_VERSION) {
    fprintf(stderr, "the library has another version than the header\n");
    return 1;
  }
  KvcacheBundle *bundle;
  KvcacheDevice *device;
  KvcacheProgram *program;
  KvcacheInstance *instance;
  KvcacheGraph *graph;
  check(kvcacheBundleOpen(argv[1], &bundle));
  check(kvcacheDeviceCreateMachine(NULL, &device));
  check(kvcacheProgramCreate(bundle, device, NULL, NULL, &program));
  check(kvcacheInstanceCreate(program, &instance));

  /* Memory for every buffer of ours. A view (half of a packed cache) lies in
   * another buffer's memory, and the runtime's own come with the workspace. */
  size_t count = kvcacheBundleBufferCount(bundle);
  uint64_t *addresses = calloc(count, sizeof(*addresses));
  KvcacheBufferInfo *buffers = calloc(count, sizeof(*buffers));
  for (size_t i = 0; i < count; ++i) {
    buffers[i].size = sizeof(*buffers);
    check(kvcacheBundleBuffer(bundle, i, &buffers[i]));
    if (buffers[i].viewOf || strcmp(buffers[i].owner, "caller") != 0)
      continue;
    check(kvcacheDeviceAllocate(device, buffers[i].bytes, &addresses[i]));
    /* 0x38 is 1.0 in e4m3, and a small number as bf16. */
    check(
        kvcacheDeviceFill(device, addresses[i], 0x38, buffers[i].bytes, NULL));
    check(kvcacheInstanceBind(instance, i, addresses[i], buffers[i].bytes));
  }
  uint64_t bytes = kvcacheProgramWorkspaceBytes(program), workspace = 0;
  check(kvcacheDeviceAllocate(device, bytes, &workspace));
  check(kvcacheInstanceBindWorkspace(instance, workspace, bytes, NULL));

  /* Once. From here on nothing is planned, compiled or allocated. */
  check(
      kvcacheInstanceInstantiateGraph(instance, KVCACHE_ALL_SEGMENTS, &graph));

  KvcacheCapacities sizes = KVCACHE_INIT(KvcacheCapacities);
  KvcacheLayerInfo layer = KVCACHE_INIT(KvcacheLayerInfo);
  check(kvcacheBundleCapacities(bundle, &sizes));
  check(kvcacheBundleLayer(bundle, 0, &layer));
  int64_t longest = sizes.maxPagesPerSequence * layer.pageSize;
  int64_t lengths[] = {1, 17, longest, 0, 1};
  int64_t *values =
      calloc((size_t)(sizes.maxTokens + 1 +
                      sizes.maxSequences * (sizes.maxPagesPerSequence + 1)),
             sizeof(*values));
  for (size_t step = 0; step < sizeof(lengths) / sizeof(*lengths); ++step) {
    /* One sequence with one new token; the other places of the batch are
     * empty: length 0, no query, slot -1. */
    int64_t length = lengths[step] < longest ? lengths[step] : longest;
    for (size_t i = 0; i < count; ++i) {
      const char *role = buffers[i].role;
      int64_t entries = 1;
      for (uint32_t d = 0; d < buffers[i].rank; ++d)
        entries *= buffers[i].shape[d];
      if (strcmp(role, "slots") != 0 && strcmp(role, "lengths") != 0 &&
          strcmp(role, "query_start") != 0 && strcmp(role, "page_table") != 0)
        continue;
      for (int64_t j = 0; j < entries; ++j) {
        if (strcmp(role, "slots") == 0)
          values[j] = j == 0 ? length - 1 : -1;
        else if (strcmp(role, "lengths") == 0)
          values[j] = j == 0 ? length : 0;
        else if (strcmp(role, "query_start") == 0)
          values[j] = j == 0 || length == 0 ? 0 : 1;
        else
          values[j] = j < sizes.maxPagesPerSequence ? j : -1;
      }
      set(device, &buffers[i], addresses[i], values, (size_t)entries);
    }
    check(kvcacheGraphReplay(graph, NULL));
    check(kvcacheDeviceSynchronize(device, NULL));

    char name[64];
    unsigned char first[4] = {0};
    snprintf(name, sizeof(name), "%s.output", layer.id);
    int64_t output = kvcacheBundleFindBuffer(bundle, name);
    check(
        kvcacheDeviceCopyOut(device, first, addresses[output], sizeof(first)));
    printf("length %lld: %s starts with %02x%02x %02x%02x\n", (long long)length,
           name, first[1], first[0], first[3], first[2]);
  }

  kvcacheGraphDestroy(graph);
  kvcacheInstanceDestroy(instance);
  kvcacheProgramDestroy(program);
  kvcacheDeviceDestroy(device);
  kvcacheBundleClose(bundle);
  free(values);
  free(buffers);
  free(addresses);
  return 0;
}
