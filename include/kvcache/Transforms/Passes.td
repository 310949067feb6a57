//===- Passes.td - Transforms passes of kvcache -----*- tablegen -*-===//

#ifndef KVCACHE_TRANSFORMS_PASSES_TD
#define KVCACHE_TRANSFORMS_PASSES_TD

include "mlir/Pass/PassBase.td"

#endif // KVCACHE_TRANSFORMS_PASSES_TD
