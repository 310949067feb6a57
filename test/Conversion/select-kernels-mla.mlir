// RUN: kvcache-opt %s --split-input-file --kvcache-form-programs --kvcache-select-kernels=target=sm_90 2>%t | FileCheck %s
// RUN: FileCheck %s --check-prefix=REMARK <%t

// An FP8 latent cache: one scale for scores, output and writes. 64 columns take
// tiles of 64 rows in two stages; 128 heads are two blocks.

// REMARK:      remark: layer 'model.layers.0.self_attn.attn': mla_attention_bf16_e4m3_h128_d512x64_p16_{{[0-9a-f]+}}, f16-math, tiles of 64 latent rows, which are K and V at once, in 2 stages, 2 blocks of query heads, 10 splits of at least 128 tokens (40 CTAs in 1 wave of 132, each of up to 13 iterations and a fixed cost of 2.8), grid 2 x 2 x 10, 224288 bytes of shared memory
// CHECK:       kvcache.launch @write_latent_bf16_e4m3_d512x64_p16_{{[0-9a-f]+}} of "kvcache_write_latent" grid [1, 1, 1] block [128, 1, 1] shared 0
// CHECK-SAME:    constants [1.250000e-02 : f32, 2 : i32, 1120] origins ["k_scale", "max_tokens", "num_pages * page_size"]
// CHECK-SAME:    structure [90 : i32, 1 : i32, 0 : i32, 512 : i32, 64 : i32, 16 : i32, 9216, 576 : i32, 0 : i32, 0 : i32, 0 : i32, 0 : i32] layer "layer0"
// CHECK:       kvcache.launch @mla_attention_bf16_e4m3_h128_d512x64_p16_{{[0-9a-f]+}} of "kvcache_mla_attention" grid [2, 2, 10] block [256, 1, 1] shared 224288
// CHECK-SAME:    memref<2x128x512xbf16>, memref<2x128xf32>, memref<{{[0-9]+}}xf32>, memref<4xi32>)
// CHECK-SAME:    constants [0.00225421111 : f32, 1.250000e-02 : f32, 2 : i32, 2 : i32, 512 : i32] origins ["softmax_scale * k_scale * log2(e)", "k_scale", "max_tokens", "max_sequences", "max_pages_per_sequence"]
// CHECK-SAME:    structure [90 : i32, 1 : i32, 1 : i32, 0 : i32, 128 : i32, 512 : i32, 64 : i32, 16 : i32, 9216, 576 : i32, 64 : i32, 2 : i32, 1 : i32, 128 : i32, 10 : i32, 1 : i32]

kvcache.scale_buffer @layer0.k : f32 = 1.25e-02 from override
kvcache.cache_group @full page_size 16 {max_pages_per_sequence = 512 : i64, max_sequences = 2 : i64, max_tokens = 2 : i64, num_pages = 70 : i64}
kvcache.cache @layer0 of "model.layers.0.self_attn.attn" in @full : latent 512 + 64 x f8E4M3FN scales(@layer0.k, @layer0.k)
func.func @main(%latent: memref<2x512xbf16>, %rope: memref<2x64xbf16>, %q: memref<2x128x576xbf16>, %out: memref<2x128x512xbf16>, %lse: memref<2x128xf32>) {
  %c = kvcache.get_cache @layer0 : !kvcache.cache<latent 512 + 64 x f8E4M3FN>
  kvcache.write_latent %latent, %rope to %c : memref<2x512xbf16>, memref<2x64xbf16>, !kvcache.cache<latent 512 + 64 x f8E4M3FN>
  kvcache.mla_attention %q over %c outs(%out, %lse) {softmax_scale = 1.250000e-01 : f64} : memref<2x128x576xbf16>, !kvcache.cache<latent 512 + 64 x f8E4M3FN> -> memref<2x128x512xbf16>, memref<2x128xf32>
  return
}

// -----

// fp8_ds_mla rows of 656 bytes: no scale of the layer. Four rows of a sequence share a CTA.

// REMARK:      mla_attention_bf16_ds_mla_h16_d512x64_p64_{{[0-9a-f]+}}, {{.*}} 4 rows of a sequence in a CTA, 2 splits of at least 64 tokens ({{.*}}), grid 1 x 2 x 2
// CHECK:       kvcache.launch @write_latent_f32_ds_mla_d512x64_p64_{{[0-9a-f]+}} of "kvcache_write_latent" grid [2, 1, 1]
// CHECK-SAME:    memref<7x64x1x656xi8, strided<[41984, 656, 656, 1], offset: ?>>
// CHECK-SAME:    constants [1.000000e+00 : f32, 4 : i32, 448] origins ["no scale",
// CHECK-SAME:    structure [90 : i32, 2 : i32, 4 : i32, 512 : i32, 64 : i32, 64 : i32, 41984, 656 : i32, 1 : i32, 0 : i32, 0 : i32, 0 : i32]
// CHECK:       kvcache.launch @mla_attention_bf16_ds_mla_h16_d512x64_p64_{{[0-9a-f]+}} of
// CHECK-SAME:    constants [0.180336878 : f32, 1.000000e+00 : f32, 4 : i32, 1 : i32, 4 : i32] origins ["softmax_scale * log2(e)", "no scale",
// CHECK-SAME:    structure [90 : i32, 1 : i32, 1 : i32, 4 : i32, 16 : i32, 512 : i32, 64 : i32, 64 : i32, 41984, 656 : i32, 32 : i32, 5 : i32, 4 : i32, 64 : i32, 2 : i32, 0 : i32]

kvcache.scale_buffer @layer0.k : f32 = 1.25e-02 from override
kvcache.cache_group @full page_size 64 {max_pages_per_sequence = 4 : i64, max_sequences = 1 : i64, max_tokens = 4 : i64, num_pages = 7 : i64}
kvcache.cache @layer0 of "model.layers.0.self_attn.attn" in @full : latent 512 + 64 x fp8_ds_mla scales(@layer0.k, @layer0.k)
func.func @main(%latent: memref<4x512xf32>, %rope: memref<4x64xf32>, %q: memref<4x16x576xbf16>, %out: memref<4x16x512xbf16>) {
  %c = kvcache.get_cache @layer0 : !kvcache.cache<latent 512 + 64 x fp8_ds_mla>
  kvcache.write_latent %latent, %rope to %c : memref<4x512xf32>, memref<4x64xf32>, !kvcache.cache<latent 512 + 64 x fp8_ds_mla>
  kvcache.mla_attention %q over %c outs(%out) {softmax_scale = 1.250000e-01 : f64} : memref<4x16x576xbf16>, !kvcache.cache<latent 512 + 64 x fp8_ds_mla> -> memref<4x16x512xbf16>
  return
}

// -----

// Queries of f32, whose CTA has 32 columns; FP8 queries and outputs, whose scales are factors of the constants.

// REMARK:      layer 'l0': mla_attention_f32_e4m3_h40_d512x64_p64_{{[0-9a-f]+}}, {{.*}} 2 blocks of query heads, {{.*}} grid 2 x 4 x
// REMARK:      layer 'l0': mla_attention_e4m3_e4m3_to_e5m2_h40_d512x64_p64_{{[0-9a-f]+}}, {{.*}}, grid 1 x 4 x
// REMARK:      layer 'l1': mla_attention_e5m2_ds_mla_to_e4m3_h16_d512x64_p64_
// CHECK:       kvcache.launch @mla_attention_f32_e4m3_h40_d512x64_p64_{{[0-9a-f]+}} of
// CHECK-SAME:    constants [0.00225421111 : f32, 1.250000e-02 : f32,
// CHECK-SAME:    structure [90 : i32, 2 : i32, 2 : i32, 0 : i32, 40 : i32
// CHECK:       kvcache.launch @mla_attention_e4m3_e4m3_to_e5m2_h40_d512x64_p64_{{[0-9a-f]+}} of
// CHECK-SAME:    constants [0.00112710556 : f32, 5.000000e-02 : f32, {{.*}} origins ["softmax_scale * q_scale * k_scale * log2(e)", "k_scale / o_scale",
// CHECK-SAME:    structure [90 : i32, 3 : i32, 4 : i32, 0 : i32, 40 : i32
// CHECK:       kvcache.launch @mla_attention_e5m2_ds_mla_to_e4m3_h16_d512x64_p64_{{[0-9a-f]+}} of
// CHECK-SAME:    constants [0.0901684388 : f32, 4.000000e+00 : f32, {{.*}} origins ["softmax_scale * q_scale * log2(e)", "1 / o_scale",
// CHECK-SAME:    structure [90 : i32, 4 : i32, 3 : i32, 4 : i32, 16 : i32

kvcache.scale_buffer @k : f32 = 1.25e-02 from override
kvcache.scale_buffer @q : f32 = 5.0e-01 from override
kvcache.scale_buffer @o : f32 = 2.5e-01 from override
kvcache.cache_group @full page_size 64 {max_pages_per_sequence = 4 : i64, max_sequences = 4 : i64, max_tokens = 4 : i64, num_pages = 7 : i64}
kvcache.cache @layer0 of "l0" in @full : latent 512 + 64 x f8E4M3FN scales(@k, @k)
kvcache.cache @layer1 of "l1" in @full : latent 512 + 64 x fp8_ds_mla scales(@k, @k)
func.func @main(%f: memref<4x40x576xf32>, %fout: memref<4x40x512xf32>, %q: memref<4x40x576xf8E4M3FN>, %out: memref<4x40x512xf8E5M2>, %h: memref<4x16x576xf8E5M2>, %hout: memref<4x16x512xf8E4M3FN>) {
  %c = kvcache.get_cache @layer0 : !kvcache.cache<latent 512 + 64 x f8E4M3FN>
  kvcache.mla_attention %f over %c outs(%fout) {softmax_scale = 1.250000e-01 : f64} : memref<4x40x576xf32>, !kvcache.cache<latent 512 + 64 x f8E4M3FN> -> memref<4x40x512xf32>
  kvcache.mla_attention %q over %c outs(%out) {softmax_scale = 1.250000e-01 : f64, q_scale = @q, o_scale = @o} : memref<4x40x576xf8E4M3FN>, !kvcache.cache<latent 512 + 64 x f8E4M3FN> -> memref<4x40x512xf8E5M2>
  %d = kvcache.get_cache @layer1 : !kvcache.cache<latent 512 + 64 x fp8_ds_mla>
  kvcache.mla_attention %h over %d outs(%hout) {softmax_scale = 1.250000e-01 : f64, q_scale = @q, o_scale = @o} : memref<4x16x576xf8E5M2>, !kvcache.cache<latent 512 + 64 x fp8_ds_mla> -> memref<4x16x512xf8E4M3FN>
  return
}
