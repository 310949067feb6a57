//===- Passes.td - Conversion passes of kvcache -----*- tablegen -*-===//

#ifndef KVCACHE_CONVERSION_PASSES_TD
#define KVCACHE_CONVERSION_PASSES_TD

include "mlir/Pass/PassBase.td"

#endif // KVCACHE_CONVERSION_PASSES_TD
