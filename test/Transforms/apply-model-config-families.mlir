// RUN: rm -rf %t && mkdir -p %t/gemma2 %t/gptoss
// RUN: cp %inputs/checkpoints/no_scales/model.safetensors %inputs/configs/gemma2-2b/config.json %t/gemma2
// RUN: kvcache-opt %s -kvcache-apply-model-config=checkpoint=%t/gemma2 2>/dev/null | FileCheck %s
// RUN: kvcache-opt %s -pass-pipeline="builtin.module(kvcache-apply-model-config{checkpoint=%t/gemma2},kvcache-resolve-cache-types{checkpoint=%t/gemma2 kv-cache-dtype=fp8 skip-layers=sliding_window})" 2>/dev/null | FileCheck %s --check-prefix=SKIP

// Gemma 2: a scale by query_pre_attn_scalar, a soft cap, and a
// window on every other layer, counted in keys before the query.

// CHECK: func.func @main
// CHECK: kvcache.paged_attention {{.*}} {{{.*}}soft_cap = 5.000000e+01 : f64, softmax_scale = 6.250000e-02 : f64, window = 4095 : i64}
// CHECK: kvcache.paged_attention {{.*}} {{{.*}}soft_cap = 5.000000e+01 : f64, softmax_scale = 6.250000e-02 : f64} :

// The window that the config gives decides which layers are not quantized.
// SKIP: kvcache.cache @layer0 {{.*}} 4 x 256 x bf16
// SKIP: kvcache.cache @layer1 {{.*}} 4 x 256 x f8E4M3FN
kvcache.cache_group @full page_size 16
kvcache.scale_buffer @k : f32 dynamic
kvcache.scale_buffer @v : f32 dynamic
kvcache.cache @layer0 of "model.layers.0.self_attn.attn" in @full : 4 x 256 x bf16 scales(@k, @v)
kvcache.cache @layer1 of "model.layers.1.self_attn.attn" in @full : 4 x 256 x bf16 scales(@k, @v)
func.func @main(%q: tensor<4x8x256xbf16>, %out: tensor<4x8x256xbf16>) -> tensor<4x8x256xbf16> {
  %c0 = kvcache.get_cache @layer0 : !kvcache.cache<4 x 256 x bf16>
  %o0 = kvcache.paged_attention %q over %c0 outs(%out) : tensor<4x8x256xbf16>, !kvcache.cache<4 x 256 x bf16> -> tensor<4x8x256xbf16>
  %c1 = kvcache.get_cache @layer1 : !kvcache.cache<4 x 256 x bf16>
  %o1 = kvcache.paged_attention %o0 over %c1 outs(%out) : tensor<4x8x256xbf16>, !kvcache.cache<4 x 256 x bf16> -> tensor<4x8x256xbf16>
  return %o1 : tensor<4x8x256xbf16>
}
