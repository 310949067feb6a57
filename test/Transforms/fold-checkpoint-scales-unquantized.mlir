// RUN: kvcache-opt %s -kvcache-fold-checkpoint-scales=checkpoint=%inputs/checkpoints/modelopt_fp8 2> %t.remarks | FileCheck %s
// RUN: FileCheck %s --check-prefix=REMARK --implicit-check-not=warning < %t.remarks

// A cache of bf16 uses no scale, whatever the checkpoint holds. The other layer
// of the same graph is quantized.

// CHECK: kvcache.scale_buffer @layer0.k : f32 = 1.000000e+00 from default
// CHECK: kvcache.scale_buffer @layer0.v : f32 = 1.000000e+00 from default
// CHECK: kvcache.scale_buffer @layer1.k : f32 = 2.460000e-02 from checkpoint
// REMARK: remark: {{.*}}not quantized
kvcache.cache_group @full page_size 16
kvcache.scale_buffer @layer0.k : f32 dynamic
kvcache.scale_buffer @layer0.v : f32 dynamic
kvcache.cache @layer0 of "model.layers.0.self_attn.attn" in @full : 2 x 64 x bf16 scales(@layer0.k, @layer0.v)
kvcache.scale_buffer @layer1.k : f32 dynamic
kvcache.scale_buffer @layer1.v : f32 dynamic
kvcache.cache @layer1 of "model.layers.1.self_attn.attn" in @full : 2 x 64 x f8E4M3FN scales(@layer1.k, @layer1.v)
