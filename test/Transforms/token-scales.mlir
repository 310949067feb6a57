// RUN: kvcache-opt %s -pass-pipeline="builtin.module(kvcache-resolve-cache-types{kv-cache-dtype=fp8_per_token_head},kvcache-fold-checkpoint-scales{checkpoint=%inputs/checkpoints/modelopt_fp8})" 2>&1 | FileCheck %s --check-prefix=FOLD
// RUN: kvcache-opt %s -pass-pipeline="builtin.module(kvcache-resolve-cache-types{kv-cache-dtype=fp8_per_token_head},kvcache-fold-checkpoint-scales,kvcache-form-programs,kvcache-verify-capturable,kvcache-select-kernels{target=sm_90})" 2>/dev/null | FileCheck %s --check-prefix=LAUNCH
// RUN: kvcache-opt %s -pass-pipeline="builtin.module(kvcache-resolve-cache-types{kv-cache-dtype=fp8_per_token_head},kvcache-caches-to-arguments)" 2>/dev/null | FileCheck %s --check-prefix=ARGUMENTS

// Scales that the write computes: what the checkpoint says is not used, side tensors come beside the pages, and kernels get them.

// FOLD: remark: {{.*}}the write computes the scales of a fp8_per_token_head cache
// FOLD: kvcache.scale_buffer @k : f32 = 1.000000e+00 from default
// FOLD: kvcache.cache @layer0 {{.*}} {token_scales}

// LAUNCH: kvcache.program @kvcache.main(
// LAUNCH-SAME:  %[[KS:[a-z0-9]+]]: memref<70x16x2xf32> {kvcache.name = "layer0.k_scales", kvcache.role = #kvcache<role cache>}
// LAUNCH-SAME:  %[[VS:[a-z0-9]+]]: memref<70x16x2xf32> {kvcache.name = "layer0.v_scales", kvcache.role = #kvcache<role cache>}
// 40 tokens of 2 heads of K and V, 16 rows of 8 lanes in a CTA.
// LAUNCH:       kvcache.launch @write_token_scaled_bf16_e4m3_h2_d128_p16_{{[0-9a-f]+}} of "kvcache_write_token_scaled" grid [10, 1, 1]
// LAUNCH-SAME:    %[[KS]], %[[VS]] : {{.*}}memref<70x16x2xf32>, memref<70x16x2xf32>) constants [40 : i32, 1120] origins ["max_tokens", "num_pages * page_size"]
// The decode kernel, where a cache without such scales has enough rows for the one of prefill.
// LAUNCH:       kvcache.launch @paged_attention_bf16_e4m3_h4x2_d128_p16_tokenscales_{{[0-9a-f]+}} of "kvcache_paged_attention"
// LAUNCH-SAME:    %[[KS]], %[[VS]] : {{.*}} constants [0.127{{[0-9]+}} : f32, 1.000000e+00 : f32,

// ARGUMENTS: func.func @main(
// ARGUMENTS-SAME: %[[KS:[a-z0-9]+]]: memref<70x16x2xf32> {kvcache.name = "layer0.k_scales", kvcache.role = #kvcache<role cache>}, %[[VS:[a-z0-9]+]]: memref<70x16x2xf32> {kvcache.name = "layer0.v_scales"
// ARGUMENTS: kvcache.view_cache @layer0 {{.*}} token_scales(%[[KS]], %[[VS]] :

kvcache.cache_group @full page_size 16 {max_pages_per_sequence = 8 : i64, max_sequences = 2 : i64, max_tokens = 40 : i64, num_pages = 70 : i64}
kvcache.scale_buffer @k : f32 dynamic
kvcache.scale_buffer @v : f32 dynamic
kvcache.cache @layer0 of "model.layers.0.self_attn.attn" in @full : 2 x 128 x bf16 scales(@k, @v)
func.func @main(%k: memref<?x2x128xbf16>, %q: memref<?x4x128xbf16>, %o: memref<?x4x128xbf16>) {
  %c = kvcache.get_cache @layer0 : !kvcache.cache<2 x 128 x bf16>
  kvcache.write %k, %k to %c : memref<?x2x128xbf16>, memref<?x2x128xbf16>, !kvcache.cache<2 x 128 x bf16>
  kvcache.paged_attention %q over %c outs(%o) {softmax_scale = 0.08838834764831845 : f64} : memref<?x4x128xbf16>, !kvcache.cache<2 x 128 x bf16> -> memref<?x4x128xbf16>
  return
}
