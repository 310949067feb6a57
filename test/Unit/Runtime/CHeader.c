/* The C header is C. */
#include "kvcache-c/Runtime.h"

size_t kvcacheRuntimeSizes(void) {
  KvcacheBufferInfo buffer = KVCACHE_INIT(KvcacheBufferInfo);
  KvcacheLayerInfo layer = KVCACHE_INIT(KvcacheLayerInfo);
  KvcacheCapacities sizes = KVCACHE_INIT(KvcacheCapacities);
  KvcacheCudaOptions cuda = KVCACHE_INIT(KvcacheCudaOptions);
  KvcacheMachineOptions machine = KVCACHE_INIT(KvcacheMachineOptions);
  return buffer.size + layer.size + sizes.size + cuda.size + machine.size;
}
