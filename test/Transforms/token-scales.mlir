// RUN: kvcache-opt %s -pass-pipeline="builtin.module(kvcache-resolve-cache-types{kv-cache-dtype=fp8_per_token_head},kvcache-fold-checkpoint-scales{checkpoint=%inputs/checkpoints/modelopt_fp8})" 2>&1 | FileCheck %s --check-prefix=FOLD
// RUN: kvcache-opt %s -pass-pipeline="builtin.module(kvcache-resolve-cache-types{kv-cache-dtype=fp8_per_token_head},kvcache-fold-checkpoint-scales,kvcache-form-programs,kvcache-verify-capturable,kvcache-select-kernels{target=sm_90})" 2>/dev/null | FileCheck %s --check-prefix=LAUNCH
// RUN: kvcache-opt %s -pass-pipeline="builtin.module(kvcache-resolve-cache-types{kv-cache-dtype=fp8_per_token_head},kvcache-caches-to-arguments)" 2>/dev/null | FileCheck %s --check-prefix=ARGUMENTS
// RUN: kvcache-opt %s -pass-pipeline="builtin.module(kvcache-resolve-cache-types{kv-cache-dtype=fp8_per_token_head token-scales=inline},kvcache-fold-checkpoint-scales,kvcache-form-programs,kvcache-verify-capturable,kvcache-select-kernels{target=sm_90})" 2>%t.remarks | FileCheck %s --check-prefix=INLINE
// RUN: FileCheck %s --check-prefix=NARROW <%t.remarks
// RUN: sed 's/^kvcache.cache @layer0.*/& layout strides [4608, 288, 144]/' %s | kvcache-opt -pass-pipeline="builtin.module(kvcache-resolve-cache-types{kv-cache-dtype=fp8_per_token_head token-scales=inline},kvcache-fold-checkpoint-scales,kvcache-form-programs,kvcache-select-kernels{target=sm_90})" 2>%t.remarks | FileCheck %s --check-prefix=PADDED
// RUN: FileCheck %s --check-prefix=WIDE <%t.remarks
// RUN: sed 's/^kvcache.cache @layer0.*/& layout strides [4240, 265, 132]/' %s | not kvcache-opt -pass-pipeline="builtin.module(kvcache-resolve-cache-types{kv-cache-dtype=fp8_per_token_head token-scales=inline},kvcache-fold-checkpoint-scales,kvcache-form-programs,kvcache-select-kernels{target=sm_90})" 2>&1 | FileCheck %s --check-prefix=ODD

// Scales that the write computes: what the checkpoint says is not used, side tensors come beside the pages, and kernels get them.

// FOLD: remark: {{.*}}the write computes the scales of a fp8_per_token_head cache
// FOLD: kvcache.scale_buffer @k : f32 = 1.000000e+00 from default
// FOLD: kvcache.cache @layer0 {{.*}} token_scales side

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

// Rows of 128 codes and their scale, no side tensors; copies of 4 bytes, which a remark says, or of 16 where rows are padded.
// INLINE:     kvcache.cache @layer0 {{.*}} token_scales inline
// INLINE:     %[[K:[a-z0-9]+]]: memref<70x16x2x132xi8, strided<[4224, 264, 132, 1], offset: ?>> {kvcache.name = "layer0.k_cache"
// INLINE-NOT: _scales"
// INLINE:     kvcache.launch @write_token_scaled_bf16_e4m3_h2_d128_p16_inline_{{[0-9a-f]+}} of "kvcache_write_token_scaled" grid [10, 1, 1]
// INLINE:     kvcache.launch @paged_attention_bf16_e4m3_h4x2_d128_p16_inlinescales_{{[0-9a-f]+}} of "kvcache_paged_attention"
// NARROW: remark: layer 'model.layers.0.self_attn.attn': write_token_scaled_{{.*}}, copies of 4 bytes, because rows that end in their scale are 132 bytes apart: four times as many; strides of multiples of 16 bytes (kv-layout=strides:PAGE,TOKEN,HEAD) or token-scales=side avoid them
// NARROW: remark: layer 'model.layers.0.self_attn.attn': paged_attention_{{.*}}, copies of 4 bytes, because rows that end in their scale are 132 bytes apart
// PADDED: memref<70x16x2x132xi8, strided<[4608, 288, 144, 1], offset: ?>>
// WIDE:     remark: layer 'model.layers.0.self_attn.attn': paged_attention_
// WIDE-NOT: copies of 4 bytes
// ODD: error: no write kernel for 2 KV heads of 128 in pages of 16 with layout strides:4240,265,132; the head dim must be a multiple of 16, and strides multiples of 4 bytes

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
