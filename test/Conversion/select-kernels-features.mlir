// RUN: kvcache-opt %s --split-input-file --kvcache-select-kernels=target=sm_90 2>%t.remarks | FileCheck %s
// RUN: FileCheck %s --check-prefix=REMARK < %t.remarks
// RUN: kvcache-opt %s --split-input-file "--kvcache-select-kernels=target=sm_90 runtime-strides" 2>/dev/null | FileCheck %s --check-prefix=STRIDED

// What is not a plain e4m3 cache with one scale: each becomes a variant of the same kernels.

// A window and a soft cap, in a cache of e5m2. The score factor is 2 * 0.125 * 0.0125 * log2(e) / 50;
// the window bounds what a row sees, so three splits are enough for 8,192 tokens of capacity.

// CHECK:      kvcache.launch @write_bf16_e5m2_h2_d128_p16_{{[0-9a-f]+}} of
// CHECK-SAME:   structure [90 : i32, 1 : i32, 1 : i32,
// CHECK:      kvcache.launch @paged_attention_bf16_e5m2_h16x2_d128_p16_window_cap_{{[0-9a-f]+}} of "kvcache_paged_attention" grid [2, 2, 3]
// CHECK-SAME:   constants [9.01{{[0-9]+}}E-5 : f32, 1.000000e+00 : f32, 72.13{{[0-9]+}} : f32, 2 : i32, 2 : i32, 512 : i32, 511 : i32]
// CHECK-SAME:   origins ["2 * softmax_scale * k_scale * log2(e) / soft_cap", "v_scale", "soft_cap * log2(e)", "max_tokens", "max_sequences", "max_pages_per_sequence", "window"]
// CHECK-SAME:   1 : i32, 1 : i32, 0 : i32, 0 : i32, 0 : i32, 256 : i32, 3 : i32, 0 : i32, 0 : i32]

kvcache.scale_buffer @layer0.k : f32 = 1.25e-02 from override
kvcache.scale_buffer @layer0.v : f32 = 1.0 from default
kvcache.cache_group @full page_size 16 {max_pages_per_sequence = 512 : i64, max_sequences = 2 : i64, max_tokens = 2 : i64, num_pages = 70 : i64}
kvcache.cache @layer0 of "l0" in @full : 2 x 128 x f8E5M2 scales(@layer0.k, @layer0.v)
kvcache.program @kvcache.main(
    %kc: memref<70x16x2x128xf8E5M2, strided<[4096, 256, 128, 1], offset: ?>> {kvcache.name = "k_cache", kvcache.role = #kvcache<role cache>},
    %table: memref<2x512xi32> {kvcache.name = "page_table", kvcache.role = #kvcache<role page_table>},
    %lengths: memref<2xi32> {kvcache.name = "lengths", kvcache.role = #kvcache<role lengths>},
    %start: memref<3xi32> {kvcache.name = "query_start", kvcache.role = #kvcache<role query_start>},
    %slots: memref<2xi64> {kvcache.name = "slot_mapping", kvcache.role = #kvcache<role slots>},
    %k: memref<2x2x128xbf16> {kvcache.name = "key", kvcache.role = #kvcache<role activation>},
    %q: memref<2x16x128xbf16> {kvcache.name = "query", kvcache.role = #kvcache<role activation>},
    %o: memref<2x16x128xbf16> {kvcache.name = "output", kvcache.role = #kvcache<role activation>}) {
  kvcache.segment @layer0 {
    %c = kvcache.view_cache @layer0 pages(%kc, %kc) page_table(%table) lengths(%lengths) query_start(%start) slots(%slots) : memref<70x16x2x128xf8E5M2, strided<[4096, 256, 128, 1], offset: ?>>, memref<70x16x2x128xf8E5M2, strided<[4096, 256, 128, 1], offset: ?>>, memref<2x512xi32>, memref<2xi32>, memref<3xi32>, memref<2xi64> -> !kvcache.cache<2 x 128 x f8E5M2>
    kvcache.write %k, %k to %c : memref<2x2x128xbf16>, memref<2x2x128xbf16>, !kvcache.cache<2 x 128 x f8E5M2>
    kvcache.paged_attention %q over %c outs(%o) {softmax_scale = 1.250000e-01 : f64, soft_cap = 5.000000e+01 : f64, window = 511 : i64} : memref<2x16x128xbf16>, !kvcache.cache<2 x 128 x f8E5M2> -> memref<2x16x128xbf16>
  }
}

// -----

// A cache that is not quantized: no scale is applied, whatever its buffers hold, and strides count bytes.

// CHECK:      kvcache.launch @write_bf16_bf16_h2_d64_p16_{{[0-9a-f]+}} of "kvcache_write"
// CHECK-SAME:   constants [1.000000e+00 : f32, 1.000000e+00 : f32,
// CHECK-SAME:   structure [90 : i32, 1 : i32, 3 : i32, 2 : i32, 64 : i32, 16 : i32, 4096, 256 : i32, 128 : i32, 4096,
// CHECK:      kvcache.launch @paged_attention_bf16_bf16_h4x2_d64_p16_{{[0-9a-f]+}} of
// CHECK-SAME:   constants [0.180{{[0-9]+}} : f32, 1.000000e+00 : f32, 0.000000e+00 : f32,

kvcache.scale_buffer @layer0.k : f32 = 1.25e-02 from override
kvcache.scale_buffer @layer0.v : f32 dynamic
kvcache.cache_group @full page_size 16 {max_pages_per_sequence = 512 : i64, max_sequences = 2 : i64, max_tokens = 2 : i64, num_pages = 70 : i64}
kvcache.cache @layer0 of "l0" in @full : 2 x 64 x bf16 scales(@layer0.k, @layer0.v)
kvcache.program @kvcache.main(
    %kc: memref<70x16x2x64xbf16, strided<[2048, 128, 64, 1], offset: ?>> {kvcache.name = "k_cache", kvcache.role = #kvcache<role cache>},
    %table: memref<2x512xi32> {kvcache.name = "page_table", kvcache.role = #kvcache<role page_table>},
    %lengths: memref<2xi32> {kvcache.name = "lengths", kvcache.role = #kvcache<role lengths>},
    %start: memref<3xi32> {kvcache.name = "query_start", kvcache.role = #kvcache<role query_start>},
    %slots: memref<2xi64> {kvcache.name = "slot_mapping", kvcache.role = #kvcache<role slots>},
    %k: memref<2x2x64xbf16> {kvcache.name = "key", kvcache.role = #kvcache<role activation>},
    %q: memref<2x4x64xbf16> {kvcache.name = "query", kvcache.role = #kvcache<role activation>},
    %o: memref<2x4x64xbf16> {kvcache.name = "output", kvcache.role = #kvcache<role activation>}) {
  kvcache.segment @layer0 {
    %c = kvcache.view_cache @layer0 pages(%kc, %kc) page_table(%table) lengths(%lengths) query_start(%start) slots(%slots) : memref<70x16x2x64xbf16, strided<[2048, 128, 64, 1], offset: ?>>, memref<70x16x2x64xbf16, strided<[2048, 128, 64, 1], offset: ?>>, memref<2x512xi32>, memref<2xi32>, memref<3xi32>, memref<2xi64> -> !kvcache.cache<2 x 64 x bf16>
    kvcache.write %k, %k to %c : memref<2x2x64xbf16>, memref<2x2x64xbf16>, !kvcache.cache<2 x 64 x bf16>
    kvcache.paged_attention %q over %c outs(%o) {softmax_scale = 1.250000e-01 : f64} : memref<2x4x64xbf16>, !kvcache.cache<2 x 64 x bf16> -> memref<2x4x64xbf16>
  }
}

// -----

// Scales for each KV head are constants for each head; the one scale of V is given to all.

// CHECK:      kvcache.launch @write_f16_e4m3_h2_d80_p8_perhead_{{[0-9a-f]+}} of "kvcache_write" grid [1, 2, 1]
// CHECK-SAME:   constants [1.250000e-02 : f32, 5.000000e-01 : f32, 2.000000e+00 : f32, 2.000000e+00 : f32, 2 : i32,
// CHECK-SAME:   origins ["k_scale[head]", "k_scale[head]", "v_scale[head]", "v_scale[head]", "max_tokens",
// CHECK-SAME:   0 : i32, 1 : i32, 1 : i32, 0 : i32, 0 : i32, 0 : i32] layer
// CHECK:      kvcache.launch @paged_attention_f16_e4m3_h4x2_d80_p8_perhead_{{[0-9a-f]+}} of
// CHECK-SAME:   constants [0.00225{{[0-9]+}} : f32, 0.0901{{[0-9]+}} : f32, 2.000000e+00 : f32, 2.000000e+00 : f32, 0.000000e+00 : f32,
// CHECK-SAME:   origins ["softmax_scale * k_scale[head] * log2(e)", "softmax_scale * k_scale[head] * log2(e)", "v_scale[head]", "v_scale[head]",

kvcache.scale_buffer @layer0.k : f32 = [1.25e-02, 5.0e-01] from override
kvcache.scale_buffer @layer0.v : f32 = 2.0 from override
kvcache.cache_group @full page_size 8 {max_pages_per_sequence = 512 : i64, max_sequences = 2 : i64, max_tokens = 2 : i64, num_pages = 70 : i64}
kvcache.cache @layer0 of "l0" in @full : 2 x 80 x f8E4M3FN scales(@layer0.k, @layer0.v)
kvcache.program @kvcache.main(
    %kc: memref<70x8x2x80xf8E4M3FN, strided<[1280, 160, 80, 1], offset: ?>> {kvcache.name = "k_cache", kvcache.role = #kvcache<role cache>},
    %table: memref<2x512xi32> {kvcache.name = "page_table", kvcache.role = #kvcache<role page_table>},
    %lengths: memref<2xi32> {kvcache.name = "lengths", kvcache.role = #kvcache<role lengths>},
    %start: memref<3xi32> {kvcache.name = "query_start", kvcache.role = #kvcache<role query_start>},
    %slots: memref<2xi64> {kvcache.name = "slot_mapping", kvcache.role = #kvcache<role slots>},
    %k: memref<2x2x80xf16> {kvcache.name = "key", kvcache.role = #kvcache<role activation>},
    %q: memref<2x4x80xf16> {kvcache.name = "query", kvcache.role = #kvcache<role activation>},
    %o: memref<2x4x80xf16> {kvcache.name = "output", kvcache.role = #kvcache<role activation>}) {
  kvcache.segment @layer0 {
    %c = kvcache.view_cache @layer0 pages(%kc, %kc) page_table(%table) lengths(%lengths) query_start(%start) slots(%slots) : memref<70x8x2x80xf8E4M3FN, strided<[1280, 160, 80, 1], offset: ?>>, memref<70x8x2x80xf8E4M3FN, strided<[1280, 160, 80, 1], offset: ?>>, memref<2x512xi32>, memref<2xi32>, memref<3xi32>, memref<2xi64> -> !kvcache.cache<2 x 80 x f8E4M3FN>
    kvcache.write %k, %k to %c : memref<2x2x80xf16>, memref<2x2x80xf16>, !kvcache.cache<2 x 80 x f8E4M3FN>
    kvcache.paged_attention %q over %c outs(%o) {softmax_scale = 1.250000e-01 : f64} : memref<2x4x80xf16>, !kvcache.cache<2 x 80 x f8E4M3FN> -> memref<2x4x80xf16>
  }
}

// -----

// Room for 32 rows of each sequence: tiles of K and V that serve all rows of a CTA. Few blocks
// behind a long context split it.

// REMARK:     prefill_bf16_e4m3_h16x2_d128_p16_window_{{[0-9a-f]+}}, f16-math, because max-tokens is at least 16 times max-sequences: tiles of 64 tokens for 32 rows of a sequence in a CTA of 8 warps, 3 splits of at least 128 tokens (24 CTAs in 1 wave of 132, each of up to 3 iterations and a fixed cost of 2.8), grid 2 x 4 x 3
// CHECK:      kvcache.launch @prefill_bf16_e4m3_h16x2_d128_p16_window_{{[0-9a-f]+}} of "kvcache_prefill" grid [2, 4, 3] block [256, 1, 1] shared 203808
// CHECK-SAME:   constants [0.00225{{[0-9]+}} : f32, 1.000000e+00 : f32, 0.000000e+00 : f32, 64 : i32, 2 : i32, 512 : i32, 511 : i32]
// CHECK-SAME:   1 : i32, 0 : i32, 0 : i32, 0 : i32, 128 : i32, 3 : i32, 0 : i32, 8 : i32] layer "layer0" {min_ctas_per_sm = 1 : i64}

kvcache.scale_buffer @layer0.k : f32 = 1.25e-02 from override
kvcache.scale_buffer @layer0.v : f32 = 1.0 from default
kvcache.cache_group @full page_size 16 {max_pages_per_sequence = 512 : i64, max_sequences = 2 : i64, max_tokens = 64 : i64, num_pages = 70 : i64}
kvcache.cache @layer0 of "l0" in @full : 2 x 128 x f8E4M3FN scales(@layer0.k, @layer0.v)
kvcache.program @kvcache.main(
    %kc: memref<70x16x2x128xf8E4M3FN, strided<[4096, 256, 128, 1], offset: ?>> {kvcache.name = "k_cache", kvcache.role = #kvcache<role cache>},
    %table: memref<2x512xi32> {kvcache.name = "page_table", kvcache.role = #kvcache<role page_table>},
    %lengths: memref<2xi32> {kvcache.name = "lengths", kvcache.role = #kvcache<role lengths>},
    %start: memref<3xi32> {kvcache.name = "query_start", kvcache.role = #kvcache<role query_start>},
    %slots: memref<64xi64> {kvcache.name = "slot_mapping", kvcache.role = #kvcache<role slots>},
    %k: memref<64x2x128xbf16> {kvcache.name = "key", kvcache.role = #kvcache<role activation>},
    %q: memref<64x16x128xbf16> {kvcache.name = "query", kvcache.role = #kvcache<role activation>},
    %o: memref<64x16x128xbf16> {kvcache.name = "output", kvcache.role = #kvcache<role activation>}) {
  kvcache.segment @layer0 {
    %c = kvcache.view_cache @layer0 pages(%kc, %kc) page_table(%table) lengths(%lengths) query_start(%start) slots(%slots) : memref<70x16x2x128xf8E4M3FN, strided<[4096, 256, 128, 1], offset: ?>>, memref<70x16x2x128xf8E4M3FN, strided<[4096, 256, 128, 1], offset: ?>>, memref<2x512xi32>, memref<2xi32>, memref<3xi32>, memref<64xi64> -> !kvcache.cache<2 x 128 x f8E4M3FN>
    kvcache.write %k, %k to %c : memref<64x2x128xbf16>, memref<64x2x128xbf16>, !kvcache.cache<2 x 128 x f8E4M3FN>
    kvcache.paged_attention %q over %c outs(%o) {softmax_scale = 1.250000e-01 : f64, window = 511 : i64} : memref<64x16x128xbf16>, !kvcache.cache<2 x 128 x f8E4M3FN> -> memref<64x16x128xbf16>
  }
}

// -----

// A group of 71 heads is three blocks of 24; f32 queries, pages of one token.

// CHECK:      kvcache.launch @write_f32_e4m3_h1_d128_p1_{{[0-9a-f]+}} of
// CHECK:      kvcache.launch @paged_attention_f32_e4m3_h71x1_d128_p1_{{[0-9a-f]+}} of "kvcache_paged_attention" grid [3, 2,
// CHECK-NOT:  kvcache.view_cache

kvcache.scale_buffer @layer0.k : f32 = 1.25e-02 from override
kvcache.scale_buffer @layer0.v : f32 = 1.0 from default
kvcache.cache_group @full page_size 1 {max_pages_per_sequence = 512 : i64, max_sequences = 2 : i64, max_tokens = 2 : i64, num_pages = 70 : i64}
kvcache.cache @layer0 of "l0" in @full : 1 x 128 x f8E4M3FN scales(@layer0.k, @layer0.v)
kvcache.program @kvcache.main(
    %kc: memref<70x1x1x128xf8E4M3FN, strided<[128, 128, 128, 1], offset: ?>> {kvcache.name = "k_cache", kvcache.role = #kvcache<role cache>},
    %table: memref<2x512xi32> {kvcache.name = "page_table", kvcache.role = #kvcache<role page_table>},
    %lengths: memref<2xi32> {kvcache.name = "lengths", kvcache.role = #kvcache<role lengths>},
    %start: memref<3xi32> {kvcache.name = "query_start", kvcache.role = #kvcache<role query_start>},
    %slots: memref<2xi64> {kvcache.name = "slot_mapping", kvcache.role = #kvcache<role slots>},
    %k: memref<2x1x128xf32> {kvcache.name = "key", kvcache.role = #kvcache<role activation>},
    %q: memref<2x71x128xf32> {kvcache.name = "query", kvcache.role = #kvcache<role activation>},
    %o: memref<2x71x128xf32> {kvcache.name = "output", kvcache.role = #kvcache<role activation>}) {
  kvcache.segment @layer0 {
    %c = kvcache.view_cache @layer0 pages(%kc, %kc) page_table(%table) lengths(%lengths) query_start(%start) slots(%slots) : memref<70x1x1x128xf8E4M3FN, strided<[128, 128, 128, 1], offset: ?>>, memref<70x1x1x128xf8E4M3FN, strided<[128, 128, 128, 1], offset: ?>>, memref<2x512xi32>, memref<2xi32>, memref<3xi32>, memref<2xi64> -> !kvcache.cache<1 x 128 x f8E4M3FN>
    kvcache.write %k, %k to %c : memref<2x1x128xf32>, memref<2x1x128xf32>, !kvcache.cache<1 x 128 x f8E4M3FN>
    kvcache.paged_attention %q over %c outs(%o) {softmax_scale = 1.250000e-01 : f64} : memref<2x71x128xf32>, !kvcache.cache<1 x 128 x f8E4M3FN> -> memref<2x71x128xf32>
  }
}

// -----

// FP8 queries that the segment quantizes, an FP8 output, sinks and ALiBi slopes. The score factor is
// 0.125 * 0.5 * 0.0125 * log2(e), the output factor 1 / 0.25.

// CHECK:      kvcache.launch @quantize_bf16_to_e4m3_{{[0-9a-f]+}} of "kvcache_quantize" grid [2, 1, 1] block [128, 1, 1] shared 0 args(%{{[a-z0-9]+}}, %[[Q:[a-z0-9]+]] :
// CHECK-SAME:   constants [5.000000e-01 : f32, 4096] origins ["q_scale", "elements"] structure [90 : i32, 1 : i32, 0 : i32] layer "layer0"
// CHECK:      kvcache.launch @paged_attention_e4m3_e4m3_to_e5m2_h16x2_d128_p16_sinks_alibi_{{[0-9a-f]+}} of "kvcache_paged_attention" grid
// CHECK-SAME:   args(%[[Q]], {{.*}}, %[[HEADS:[a-z0-9]+]], %[[HEADS]] :
// CHECK-SAME:   constants [0.00112{{[0-9]+}} : f32, 4.000000e+00 : f32,
// CHECK-SAME:   origins ["softmax_scale * q_scale * k_scale * log2(e)", "v_scale / o_scale",
// CHECK-SAME:   structure [90 : i32, 3 : i32, 4 : i32, 0 : i32, 16 : i32,
// CHECK-SAME:   0 : i32, 0 : i32, 1 : i32, 1 : i32, 0 : i32, 256 : i32,
// CHECK:      kvcache.launch @dequantize_e5m2_to_f32_{{[0-9a-f]+}} of "kvcache_dequantize" grid [2, 1, 1] block [128, 1, 1] shared 0
// CHECK-SAME:   constants [2.500000e-01 : f32, 4096] origins ["scale", "elements"] structure [90 : i32, 1 : i32, 2 : i32]
// CHECK-NOT:  arith.constant

kvcache.scale_buffer @layer0.k : f32 = 1.25e-02 from override
kvcache.scale_buffer @layer0.v : f32 = 1.0 from default
kvcache.scale_buffer @layer0.q : f32 = 0.5 from override
kvcache.scale_buffer @layer0.o : f32 = 0.25 from override
kvcache.cache_group @full page_size 16 {max_pages_per_sequence = 512 : i64, max_sequences = 2 : i64, max_tokens = 2 : i64, num_pages = 70 : i64}
kvcache.cache @layer0 of "l0" in @full : 2 x 128 x f8E4M3FN scales(@layer0.k, @layer0.v)
kvcache.program @kvcache.main(
    %kc: memref<70x16x2x128xf8E4M3FN, strided<[4096, 256, 128, 1], offset: ?>> {kvcache.name = "k_cache", kvcache.role = #kvcache<role cache>},
    %table: memref<2x512xi32> {kvcache.name = "page_table", kvcache.role = #kvcache<role page_table>},
    %lengths: memref<2xi32> {kvcache.name = "lengths", kvcache.role = #kvcache<role lengths>},
    %start: memref<3xi32> {kvcache.name = "query_start", kvcache.role = #kvcache<role query_start>},
    %slots: memref<2xi64> {kvcache.name = "slot_mapping", kvcache.role = #kvcache<role slots>},
    %x: memref<?x16x128xbf16> {kvcache.name = "x", kvcache.role = #kvcache<role activation>},
    %q: memref<?x16x128xf8E4M3FN> {kvcache.name = "query", kvcache.role = #kvcache<role workspace>},
    %o: memref<?x16x128xf8E5M2> {kvcache.name = "output", kvcache.role = #kvcache<role activation>},
    %y: memref<?x16x128xf32> {kvcache.name = "y", kvcache.role = #kvcache<role activation>},
    %heads: memref<16xf32> {kvcache.name = "heads", kvcache.role = #kvcache<role parameter>}) {
  kvcache.segment @layer0 {
    %c = kvcache.view_cache @layer0 pages(%kc, %kc) page_table(%table) lengths(%lengths) query_start(%start) slots(%slots) : memref<70x16x2x128xf8E4M3FN, strided<[4096, 256, 128, 1], offset: ?>>, memref<70x16x2x128xf8E4M3FN, strided<[4096, 256, 128, 1], offset: ?>>, memref<2x512xi32>, memref<2xi32>, memref<3xi32>, memref<2xi64> -> !kvcache.cache<2 x 128 x f8E4M3FN>
    %s = arith.constant 0.5 : f32
    %t = arith.constant 0.25 : f32
    kvcache.quantize %x by %s outs(%q) : memref<?x16x128xbf16> to memref<?x16x128xf8E4M3FN>
    kvcache.paged_attention %q over %c outs(%o) sinks(%heads : memref<16xf32>) alibi_slopes(%heads : memref<16xf32>) {softmax_scale = 1.250000e-01 : f64, q_scale = @layer0.q, o_scale = @layer0.o} : memref<?x16x128xf8E4M3FN>, !kvcache.cache<2 x 128 x f8E4M3FN> -> memref<?x16x128xf8E5M2>
    kvcache.dequantize %o by %t outs(%y) : memref<?x16x128xf8E5M2> to memref<?x16x128xf32>
  }
}

// -----

// Keys are rotated by the kernel that writes them: rotary dim, pairs of neighbours, positions of the table.

// CHECK:      kvcache.launch @write_bf16_e4m3_h2_d128_p16_rope64_interleaved_{{[0-9a-f]+}} of "kvcache_write"
// CHECK-SAME:   args(%{{[a-z0-9]+}}, %{{[a-z0-9]+}}, %{{[a-z0-9]+}}, %{{[a-z0-9]+}}, %[[SLOTS:[a-z0-9]+]], %[[T:[a-z0-9]+]], %[[P:[a-z0-9]+]] : {{.*}}, memref<2xi64>, memref<4096x64xf32>, memref<2xi64>)
// CHECK-SAME:   0 : i32, 64 : i32, 1 : i32, 4096 : i32] layer "layer0"

kvcache.scale_buffer @layer0.k : f32 = 1.25e-02 from override
kvcache.scale_buffer @layer0.v : f32 = 1.0 from default
kvcache.cache_group @full page_size 16 {max_pages_per_sequence = 512 : i64, max_sequences = 2 : i64, max_tokens = 2 : i64, num_pages = 70 : i64}
kvcache.cache @layer0 of "l0" in @full : 2 x 128 x f8E4M3FN scales(@layer0.k, @layer0.v)
kvcache.program @kvcache.main(
    %kc: memref<70x16x2x128xf8E4M3FN, strided<[4096, 256, 128, 1], offset: ?>> {kvcache.name = "k_cache", kvcache.role = #kvcache<role cache>},
    %table: memref<2x512xi32> {kvcache.name = "page_table", kvcache.role = #kvcache<role page_table>},
    %lengths: memref<2xi32> {kvcache.name = "lengths", kvcache.role = #kvcache<role lengths>},
    %start: memref<3xi32> {kvcache.name = "query_start", kvcache.role = #kvcache<role query_start>},
    %slots: memref<2xi64> {kvcache.name = "slot_mapping", kvcache.role = #kvcache<role slots>},
    %t: memref<4096x64xf32> {kvcache.name = "rope_table", kvcache.role = #kvcache<role parameter>},
    %p: memref<2xi64> {kvcache.name = "positions", kvcache.role = #kvcache<role activation>},
    %k: memref<2x2x128xbf16> {kvcache.name = "key", kvcache.role = #kvcache<role activation>}) {
  kvcache.segment @layer0 {
    %c = kvcache.view_cache @layer0 pages(%kc, %kc) page_table(%table) lengths(%lengths) query_start(%start) slots(%slots) : memref<70x16x2x128xf8E4M3FN, strided<[4096, 256, 128, 1], offset: ?>>, memref<70x16x2x128xf8E4M3FN, strided<[4096, 256, 128, 1], offset: ?>>, memref<2x512xi32>, memref<2xi32>, memref<3xi32>, memref<2xi64> -> !kvcache.cache<2 x 128 x f8E4M3FN>
    kvcache.write %k, %k to %c rope(%t at %p : memref<4096x64xf32>, memref<2xi64>) {rope_interleaved} : memref<2x2x128xbf16>, memref<2x2x128xbf16>, !kvcache.cache<2 x 128 x f8E4M3FN>
  }
}

// -----

// Copies of pages, as many as the pool has pages, and a merge of partials.

// CHECK:      kvcache.launch @copy_pages_h2_b128_p16_{{[0-9a-f]+}} of "kvcache_copy_pages" grid [7, 4, 1] block [128, 1, 1] shared 0 args(
// CHECK-SAME:   constants [7, 4096, 256 : i32, 128 : i32, 4096, 256 : i32, 128 : i32]
// CHECK-SAME:   origins ["num_pages", "k_page_stride", "k_token_stride", "k_head_stride", "v_page_stride", "v_token_stride", "v_head_stride"]
// CHECK-SAME:   structure [90 : i32, 2 : i32, 16 : i32, 128 : i32, 128 : i32] layer "layer0"
// CHECK:      kvcache.launch @merge_states_bf16_d64_{{[0-9a-f]+}} of "kvcache_merge_states" grid [1, 1, 1] block [128, 1, 1] shared 0 args(
// CHECK-SAME:   constants [32 : i32] origins ["tokens * query heads"] structure [90 : i32, 1 : i32, 64 : i32]

kvcache.scale_buffer @layer0.k : f32 = 1.25e-02 from override
kvcache.scale_buffer @layer0.v : f32 = 1.0 from default
kvcache.cache_group @full page_size 16 {max_pages_per_sequence = 2 : i64, max_sequences = 2 : i64, max_tokens = 8 : i64, num_pages = 7 : i64}
kvcache.cache @layer0 of "l0" in @full : 2 x 64 x bf16 scales(@layer0.k, @layer0.v)
kvcache.program @kvcache.main(
    %kc: memref<7x16x2x64xbf16, strided<[2048, 128, 64, 1], offset: ?>> {kvcache.name = "k_cache", kvcache.role = #kvcache<role cache>},
    %table: memref<2x2xi32> {kvcache.name = "page_table", kvcache.role = #kvcache<role page_table>},
    %lengths: memref<2xi32> {kvcache.name = "lengths", kvcache.role = #kvcache<role lengths>},
    %start: memref<3xi32> {kvcache.name = "query_start", kvcache.role = #kvcache<role query_start>},
    %slots: memref<8xi64> {kvcache.name = "slot_mapping", kvcache.role = #kvcache<role slots>},
    %p: memref<?x2xi64> {kvcache.name = "pairs", kvcache.role = #kvcache<role page_copies>},
    %a: memref<?x4x64xbf16> {kvcache.name = "a", kvcache.role = #kvcache<role activation>},
    %la: memref<?x4xf32> {kvcache.name = "la", kvcache.role = #kvcache<role activation>},
    %o: memref<?x4x64xbf16> {kvcache.name = "o", kvcache.role = #kvcache<role activation>},
    %l: memref<?x4xf32> {kvcache.name = "l", kvcache.role = #kvcache<role activation>}) {
  kvcache.segment @layer0 {
    %c = kvcache.view_cache @layer0 pages(%kc, %kc) page_table(%table) lengths(%lengths) query_start(%start) slots(%slots) : memref<7x16x2x64xbf16, strided<[2048, 128, 64, 1], offset: ?>>, memref<7x16x2x64xbf16, strided<[2048, 128, 64, 1], offset: ?>>, memref<2x2xi32>, memref<2xi32>, memref<3xi32>, memref<8xi64> -> !kvcache.cache<2 x 64 x bf16>
    kvcache.copy_pages %p in %c : memref<?x2xi64>, !kvcache.cache<2 x 64 x bf16>
    kvcache.merge_states %a, %la with %a, %la outs(%o, %l) : memref<?x4x64xbf16>, memref<?x4xf32>
  }
}

// -----

// Padded pages: strides are structure, as those of any layout.

// CHECK:      kvcache.launch @copy_pages_h2_b64_p16_
// CHECK-SAME:   constants [7, 2592, 160 : i32, 80 : i32, 2592, 160 : i32, 80 : i32]
// CHECK:      kvcache.launch @write_bf16_e4m3_h2_d64_p16_
// CHECK-SAME:   16 : i32, 2592, 160 : i32, 80 : i32, 2592, 160 : i32, 80 : i32,
// CHECK:      kvcache.launch @paged_attention_bf16_e4m3_h4x2_d64_p16_
// CHECK-SAME:   16 : i32, 2592, 160 : i32, 80 : i32, 2592, 160 : i32, 80 : i32,

kvcache.scale_buffer @layer0.k : f32 = 1.25e-02 from override
kvcache.scale_buffer @layer0.v : f32 = 1.0 from default
kvcache.cache_group @full page_size 16 {max_pages_per_sequence = 2 : i64, max_sequences = 2 : i64, max_tokens = 8 : i64, num_pages = 7 : i64}
kvcache.cache @layer0 of "l0" in @full : 2 x 64 x f8E4M3FN scales(@layer0.k, @layer0.v) layout strides [2592, 160, 80]
kvcache.program @kvcache.main(
    %kc: memref<7x16x2x64xf8E4M3FN, strided<[2592, 160, 80, 1], offset: ?>> {kvcache.name = "k_cache", kvcache.role = #kvcache<role cache>},
    %table: memref<2x2xi32> {kvcache.name = "page_table", kvcache.role = #kvcache<role page_table>},
    %lengths: memref<2xi32> {kvcache.name = "lengths", kvcache.role = #kvcache<role lengths>},
    %start: memref<3xi32> {kvcache.name = "query_start", kvcache.role = #kvcache<role query_start>},
    %slots: memref<8xi64> {kvcache.name = "slot_mapping", kvcache.role = #kvcache<role slots>},
    %k: memref<8x2x64xbf16> {kvcache.name = "k", kvcache.role = #kvcache<role activation>},
    %p: memref<3x2xi64> {kvcache.name = "pairs", kvcache.role = #kvcache<role page_copies>},
    %x: memref<8x4x64xbf16> {kvcache.name = "x", kvcache.role = #kvcache<role activation>},
    %o: memref<8x4x64xbf16> {kvcache.name = "o", kvcache.role = #kvcache<role activation>}) {
  kvcache.segment @layer0 {
    %c = kvcache.view_cache @layer0 pages(%kc, %kc) page_table(%table) lengths(%lengths) query_start(%start) slots(%slots) : memref<7x16x2x64xf8E4M3FN, strided<[2592, 160, 80, 1], offset: ?>>, memref<7x16x2x64xf8E4M3FN, strided<[2592, 160, 80, 1], offset: ?>>, memref<2x2xi32>, memref<2xi32>, memref<3xi32>, memref<8xi64> -> !kvcache.cache<2 x 64 x f8E4M3FN>
    kvcache.copy_pages %p in %c : memref<3x2xi64>, !kvcache.cache<2 x 64 x f8E4M3FN>
    kvcache.write %k, %k to %c : memref<8x2x64xbf16>, memref<8x2x64xbf16>, !kvcache.cache<2 x 64 x f8E4M3FN>
    kvcache.paged_attention %x over %c outs(%o) {softmax_scale = 0.125 : f64} : memref<8x4x64xbf16>, !kvcache.cache<2 x 64 x f8E4M3FN> -> memref<8x4x64xbf16>
  }
}

// The same with strides that the runtime may replace.

// STRIDED-LABEL: kvcache.cache @layer0 {{.*}} layout strides
// STRIDED:      kvcache.launch @write_bf16_e4m3_h2_d64_p16_strided_{{[0-9a-f]+}} of "kvcache_write_strided"
// STRIDED-SAME:   constants [1.250000e-02 : f32, 1.000000e+00 : f32, 8 : i32, 112, 2592, 160 : i32, 80 : i32, 2592, 160 : i32, 80 : i32]
// STRIDED:      kvcache.launch @paged_attention_bf16_e4m3_h4x2_d64_p16_strided_{{[0-9a-f]+}} of "kvcache_paged_attention_strided"
// STRIDED-SAME:   0 : i32, 2592, 160 : i32, 80 : i32, 2592, 160 : i32, 80 : i32]
// STRIDED-SAME:   "no window", "k_page_stride", "k_token_stride", "k_head_stride", "v_page_stride", "v_token_stride", "v_head_stride"]
