// RUN: kvcache-opt %s -kvcache-resolve-cache-types | FileCheck %s --check-prefix=GRAPH
// RUN: kvcache-opt %s -kvcache-resolve-cache-types=kv-cache-dtype=fp8 | FileCheck %s --check-prefix=USER

// The graph's own word, and the user's above it.

// GRAPH: kvcache.cache @layer0 {{.*}} 2 x 64 x f8E5M2 {{.*}} {graph_dtype = "fp8_e5m2"}
// USER: kvcache.cache @layer0 {{.*}} 2 x 64 x f8E4M3FN
kvcache.cache_group @full page_size 16
kvcache.scale_buffer @k : f32 dynamic
kvcache.scale_buffer @v : f32 dynamic
kvcache.cache @layer0 of "model.layers.0.self_attn.attn" in @full : 2 x 64 x bf16 scales(@k, @v) {graph_dtype = "fp8_e5m2"}
