//===- Passes.td - Import passes of kvcache -----*- tablegen -*-===//

#ifndef KVCACHE_IMPORT_PASSES_TD
#define KVCACHE_IMPORT_PASSES_TD

include "mlir/Pass/PassBase.td"

#endif // KVCACHE_IMPORT_PASSES_TD
