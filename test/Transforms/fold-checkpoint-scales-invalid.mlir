// RUN: kvcache-opt %s -split-input-file -verify-diagnostics -o /dev/null -kvcache-fold-checkpoint-scales="scale=0.k=0.5,0.v=0.5,1.k=0.25,1.v=0.5"

// A scale without a layer.

kvcache.cache_group @full page_size 16
kvcache.scale_buffer @k : f32 dynamic
kvcache.scale_buffer @v : f32 dynamic
// expected-error @+1 {{@lost is not static, and no cache has it as a scale, so nothing says which layer it belongs to; erase it, or give it a value}}
kvcache.scale_buffer @lost : f32 dynamic
kvcache.cache @layer0 of "layers.0.attn" in @full : 2 x 64 x f8E4M3FN scales(@k, @v)
kvcache.scale_buffer @k1 : f32 dynamic
kvcache.scale_buffer @v1 : f32 dynamic
kvcache.cache @layer1 of "layers.1.attn" in @full : 2 x 64 x f8E4M3FN scales(@k1, @v1)

// -----

// Two layers with one scale, and two values for it.

kvcache.cache_group @full page_size 16
// expected-note @+1 {{the scale is declared here}}
kvcache.scale_buffer @k : f32 dynamic
kvcache.scale_buffer @v : f32 dynamic
kvcache.cache @layer0 of "layers.0.attn" in @full : 2 x 64 x f8E4M3FN scales(@k, @v)
// expected-error @+1 {{layer 'layers.1.attn' and layer 'layers.0.attn' share the scale @k, but resolve it to #kvcache.scale<2.500000e-01 from override> and #kvcache.scale<5.000000e-01 from override>; declare a scale for each}}
kvcache.cache @layer1 of "layers.1.attn" in @full : 2 x 64 x f8E4M3FN scales(@k, @v)
