// What passes count is printed wherever LLVM comes from, once.

// RUN: %python -c "import numpy as n, safetensors.numpy as s; l = 'model.layers.%%d.self_attn.k_proj.k_scale'; s.save_file({l %% 0: n.float32([0.03]), l %% 9: n.float32([1])}, '%t.safetensors'); s.save_file({l %% 0: n.float32([0]), l %% 1: n.float32(['nan'])}, '%t-bad.safetensors')"

// DEFINE: %{overlay}= %t.safetensors
// DEFINE: %{fold}= kvcache-opt %s -mlir-pass-statistics -o /dev/null -pass-pipeline="builtin.module(kvcache-fold-checkpoint-scales{checkpoint=%inputs/checkpoints/no_scales scale-overlay=%{overlay} scale=2.k=0.5,2.v=0.25})"
// RUN: %{fold} 2>&1 | FileCheck %s
// RUN: %{fold} -mlir-pass-statistics-display=list 2>&1 | FileCheck %s

// CHECK:       ... Pass statistics report ...
// CHECK:         FoldCheckpointScales
// CHECK-NEXT:      (S) 1 bound      - Scales that the checkpoint gives
// CHECK-NEXT:      (S) 2 defaulted  - Scales of quantized caches that are 1.0 by default
// CHECK-NEXT:      (S) 1 duplicated - Scales taken from the layer's other scale
// CHECK-NEXT:      (S) 1 ignored    - Scale-like tensors of the checkpoint that nothing uses
// CHECK-NEXT:      (S) 2 overridden - Scales given by the user
// CHECK-NEXT:      (S) 0 refused    - Errors found while resolving scales
// CHECK-NOT:     (S)

// What a pass counted before it failed counts, too.
// REDEFINE: %{overlay}= %t-bad.safetensors
// RUN: not %{fold} 2>&1 | FileCheck %s --check-prefix=REFUSED
// REFUSED: (S) 2 refused

// Several passes, in the order of their names; those that counted nothing are
// left out.
// RUN: kvcache-opt %inputs/graphs/llama_legacy/ops.linalg.dyn.mlir -allow-unregistered-dialect -kvcache-import -kvcache-resolve-cache-types=kv-cache-dtype=fp8 -kvcache-fold-checkpoint-scales=checkpoint=%inputs/checkpoints/modelopt_fp8 -kvcache-drop-dynamic-scales -kvcache-verify-static-scales -mlir-pass-statistics -o /dev/null 2>&1 | FileCheck %s --check-prefix=SEVERAL
// RUN: kvcache-compile %inputs/graphs/llama_legacy/ops.linalg.dyn.mlir --checkpoint=%inputs/checkpoints/modelopt_fp8 --mlir-pass-statistics -o %t.kvb 2>&1 | FileCheck %s --check-prefixes=HEADING,SEVERAL,COMPILE
// HEADING:      {{^}}===--{{-*}}===
// HEADING-NEXT: {{^ +}}... Pass statistics report ...
// HEADING-NEXT: {{^}}===--{{-*}}===
// SEVERAL:      {{^}}  DropDynamicScales
// SEVERAL-NEXT:   (S) 0 arguments  - Arguments erased
// SEVERAL-NEXT:   (S) 0 attributes - Attributes removed
// SEVERAL-NEXT:   (S) 2 ops        - Ops erased
// SEVERAL-NEXT:   (S) 0 symbols    - Functions and globals erased
// SEVERAL-NEXT: {{^}}  FoldCheckpointScales
// SEVERAL-NEXT:   (S) 4 bound
// SEVERAL:      {{^}}  Import
// SEVERAL-NEXT:   (S) 2 attentions   - Attention ops imported
// SEVERAL-NEXT:   (S) 2 caches       - Caches declared
// SEVERAL-NEXT:   (S) 2 calculations - Run-time scale calculations imported
// SEVERAL-NEXT:   (S) 2 writes       - Cache updates imported
// SEVERAL-NEXT: {{^}}  ResolveCacheTypes
// SEVERAL-NOT:  VerifyStaticScales
// COMPILE:      {{^}}  SelectKernels
// COMPILE-NEXT:   (S) 4 launches - launches selected

kvcache.cache_group @full page_size 16
kvcache.scale_buffer @k0 : f32 dynamic
kvcache.scale_buffer @v0 : f32 dynamic
kvcache.cache @layer0 of "model.layers.0.self_attn.attn" in @full : 2 x 64 x f8E4M3FN scales(@k0, @v0)
kvcache.scale_buffer @k1 : f32 dynamic
kvcache.scale_buffer @v1 : f32 dynamic
kvcache.cache @layer1 of "model.layers.1.self_attn.attn" in @full : 2 x 64 x f8E4M3FN scales(@k1, @v1)
kvcache.scale_buffer @k2 : f32 dynamic
kvcache.scale_buffer @v2 : f32 dynamic
kvcache.cache @layer2 of "model.layers.2.self_attn.attn" in @full : 2 x 64 x f8E4M3FN scales(@k2, @v2)
