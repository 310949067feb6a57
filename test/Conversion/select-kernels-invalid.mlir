// RUN: kvcache-opt %s --split-input-file --verify-diagnostics --kvcache-select-kernels=target=sm_90

// A cache of an 8-bit type that no NVIDIA instruction knows.

kvcache.scale_buffer @layer0.k : f32 = 1.25e-02 from override
kvcache.scale_buffer @layer0.v : f32 = 1.0 from default
kvcache.cache_group @full page_size 16 {max_pages_per_sequence = 2 : i64, max_sequences = 2 : i64, max_tokens = 8 : i64, num_pages = 7 : i64}
kvcache.cache @layer0 of "model.layers.0.self_attn.attn" in @full : 2 x 64 x f8E4M3FNUZ scales(@layer0.k, @layer0.v)
kvcache.program @kvcache.main(
    %kc: memref<7x16x2x64xf8E4M3FNUZ, strided<[2048, 128, 64, 1], offset: ?>> {kvcache.name = "k_cache", kvcache.role = #kvcache<role cache>},
    %table: memref<2x2xi32> {kvcache.name = "page_table", kvcache.role = #kvcache<role page_table>},
    %lengths: memref<2xi32> {kvcache.name = "lengths", kvcache.role = #kvcache<role lengths>},
    %start: memref<3xi32> {kvcache.name = "query_start", kvcache.role = #kvcache<role query_start>},
    %slots: memref<8xi64> {kvcache.name = "slot_mapping", kvcache.role = #kvcache<role slots>},
    %x: memref<8x4x64xbf16> {kvcache.name = "x", kvcache.role = #kvcache<role activation>},
    %o: memref<8x4x64xbf16> {kvcache.name = "o", kvcache.role = #kvcache<role activation>}) {
  kvcache.segment @layer0 {
    %c = kvcache.view_cache @layer0 pages(%kc, %kc) page_table(%table) lengths(%lengths) query_start(%start) slots(%slots) : memref<7x16x2x64xf8E4M3FNUZ, strided<[2048, 128, 64, 1], offset: ?>>, memref<7x16x2x64xf8E4M3FNUZ, strided<[2048, 128, 64, 1], offset: ?>>, memref<2x2xi32>, memref<2xi32>, memref<3xi32>, memref<8xi64> -> !kvcache.cache<2 x 64 x f8E4M3FNUZ>
    // expected-error @below {{no kernel for a cache of 'f8E4M3FNUZ' (layer 'model.layers.0.self_attn.attn'); f8E4M3FN, f8E5M2, f16 and bf16 are supported: choose one with kv-cache-dtype}}
    kvcache.paged_attention %x over %c outs(%o) {softmax_scale = 0.125 : f64} : memref<8x4x64xbf16>, !kvcache.cache<2 x 64 x f8E4M3FNUZ> -> memref<8x4x64xbf16>
  }
}

// -----

// A cache that is not quantized, and queries of another type.

kvcache.scale_buffer @layer0.k : f32 = 1.25e-02 from override
kvcache.scale_buffer @layer0.v : f32 = 1.0 from default
kvcache.cache_group @full page_size 16 {max_pages_per_sequence = 2 : i64, max_sequences = 2 : i64, max_tokens = 8 : i64, num_pages = 7 : i64}
kvcache.cache @layer0 of "model.layers.0.self_attn.attn" in @full : 2 x 64 x f16 scales(@layer0.k, @layer0.v)
kvcache.program @kvcache.main(
    %kc: memref<7x16x2x64xf16, strided<[2048, 128, 64, 1], offset: ?>> {kvcache.name = "k_cache", kvcache.role = #kvcache<role cache>},
    %table: memref<2x2xi32> {kvcache.name = "page_table", kvcache.role = #kvcache<role page_table>},
    %lengths: memref<2xi32> {kvcache.name = "lengths", kvcache.role = #kvcache<role lengths>},
    %start: memref<3xi32> {kvcache.name = "query_start", kvcache.role = #kvcache<role query_start>},
    %slots: memref<8xi64> {kvcache.name = "slot_mapping", kvcache.role = #kvcache<role slots>},
    %x: memref<8x2x64xbf16> {kvcache.name = "x", kvcache.role = #kvcache<role activation>},
    %o: memref<8x2x64xbf16> {kvcache.name = "o", kvcache.role = #kvcache<role activation>}) {
  kvcache.segment @layer0 {
    %c = kvcache.view_cache @layer0 pages(%kc, %kc) page_table(%table) lengths(%lengths) query_start(%start) slots(%slots) : memref<7x16x2x64xf16, strided<[2048, 128, 64, 1], offset: ?>>, memref<7x16x2x64xf16, strided<[2048, 128, 64, 1], offset: ?>>, memref<2x2xi32>, memref<2xi32>, memref<3xi32>, memref<8xi64> -> !kvcache.cache<2 x 64 x f16>
    // expected-error @below {{no attention kernel for queries of 'bf16', 2/2 heads of 64 and a cache of 'f16' in pages of 16 (layer 'model.layers.0.self_attn.attn'): a cache that is not quantized takes queries of its own type}}
    kvcache.paged_attention %x over %c outs(%o) {softmax_scale = 0.125 : f64} : memref<8x2x64xbf16>, !kvcache.cache<2 x 64 x f16> -> memref<8x2x64xbf16>
  }
}

// -----

// A scale that is still dynamic.

kvcache.scale_buffer @layer0.k : f32 dynamic
kvcache.scale_buffer @layer0.v : f32 = 1.0 from default
kvcache.cache_group @full page_size 16 {max_pages_per_sequence = 2 : i64, max_sequences = 2 : i64, max_tokens = 8 : i64, num_pages = 7 : i64}
kvcache.cache @layer0 of "model.layers.0.self_attn.attn" in @full : 2 x 64 x f8E4M3FN scales(@layer0.k, @layer0.v)
kvcache.program @kvcache.main(
    %kc: memref<7x16x2x64xf8E4M3FN, strided<[2048, 128, 64, 1], offset: ?>> {kvcache.name = "k_cache", kvcache.role = #kvcache<role cache>},
    %table: memref<2x2xi32> {kvcache.name = "page_table", kvcache.role = #kvcache<role page_table>},
    %lengths: memref<2xi32> {kvcache.name = "lengths", kvcache.role = #kvcache<role lengths>},
    %start: memref<3xi32> {kvcache.name = "query_start", kvcache.role = #kvcache<role query_start>},
    %slots: memref<8xi64> {kvcache.name = "slot_mapping", kvcache.role = #kvcache<role slots>},
    %x: memref<8x4x64xbf16> {kvcache.name = "x", kvcache.role = #kvcache<role activation>},
    %o: memref<8x4x64xbf16> {kvcache.name = "o", kvcache.role = #kvcache<role activation>}) {
  kvcache.segment @layer0 {
    %c = kvcache.view_cache @layer0 pages(%kc, %kc) page_table(%table) lengths(%lengths) query_start(%start) slots(%slots) : memref<7x16x2x64xf8E4M3FN, strided<[2048, 128, 64, 1], offset: ?>>, memref<7x16x2x64xf8E4M3FN, strided<[2048, 128, 64, 1], offset: ?>>, memref<2x2xi32>, memref<2xi32>, memref<3xi32>, memref<8xi64> -> !kvcache.cache<2 x 64 x f8E4M3FN>
    // expected-error @below {{the k scale @layer0.k has no value; run 'kvcache-fold-checkpoint-scales' first}}
    kvcache.paged_attention %x over %c outs(%o) {softmax_scale = 0.125 : f64} : memref<8x4x64xbf16>, !kvcache.cache<2 x 64 x f8E4M3FN> -> memref<8x4x64xbf16>
  }
}

// -----

// A capacity that is not known.

kvcache.scale_buffer @layer0.k : f32 = 1.25e-02 from override
kvcache.scale_buffer @layer0.v : f32 = 1.0 from default
// expected-note @below {{give it to 'kvcache-import', as max-sequences=N, or write it here}}
kvcache.cache_group @full page_size 16 {max_pages_per_sequence = 2 : i64, max_tokens = 8 : i64, num_pages = 7 : i64}
kvcache.cache @layer0 of "model.layers.0.self_attn.attn" in @full : 2 x 64 x f8E4M3FN scales(@layer0.k, @layer0.v)
kvcache.program @kvcache.main(
    %kc: memref<7x16x2x64xf8E4M3FN, strided<[2048, 128, 64, 1], offset: ?>> {kvcache.name = "k_cache", kvcache.role = #kvcache<role cache>},
    %table: memref<2x2xi32> {kvcache.name = "page_table", kvcache.role = #kvcache<role page_table>},
    %lengths: memref<2xi32> {kvcache.name = "lengths", kvcache.role = #kvcache<role lengths>},
    %start: memref<3xi32> {kvcache.name = "query_start", kvcache.role = #kvcache<role query_start>},
    %slots: memref<8xi64> {kvcache.name = "slot_mapping", kvcache.role = #kvcache<role slots>},
    %x: memref<8x4x64xbf16> {kvcache.name = "x", kvcache.role = #kvcache<role activation>},
    %o: memref<8x4x64xbf16> {kvcache.name = "o", kvcache.role = #kvcache<role activation>}) {
  kvcache.segment @layer0 {
    %c = kvcache.view_cache @layer0 pages(%kc, %kc) page_table(%table) lengths(%lengths) query_start(%start) slots(%slots) : memref<7x16x2x64xf8E4M3FN, strided<[2048, 128, 64, 1], offset: ?>>, memref<7x16x2x64xf8E4M3FN, strided<[2048, 128, 64, 1], offset: ?>>, memref<2x2xi32>, memref<2xi32>, memref<3xi32>, memref<8xi64> -> !kvcache.cache<2 x 64 x f8E4M3FN>
    // expected-error @below {{no kernel selected: the grid needs the capacity 'max-sequences' of @full}}
    kvcache.paged_attention %x over %c outs(%o) {softmax_scale = 0.125 : f64} : memref<8x4x64xbf16>, !kvcache.cache<2 x 64 x f8E4M3FN> -> memref<8x4x64xbf16>
  }
}

// -----

// A static graph that is larger than the capacity.

kvcache.scale_buffer @layer0.k : f32 = 1.25e-02 from override
kvcache.scale_buffer @layer0.v : f32 = 1.0 from default
kvcache.cache_group @full page_size 16 {max_pages_per_sequence = 2 : i64, max_sequences = 2 : i64, max_tokens = 8 : i64, num_pages = 7 : i64}
kvcache.cache @layer0 of "model.layers.0.self_attn.attn" in @full : 2 x 64 x f8E4M3FN scales(@layer0.k, @layer0.v)
kvcache.program @kvcache.main(
    %kc: memref<7x16x2x64xf8E4M3FN, strided<[2048, 128, 64, 1], offset: ?>> {kvcache.name = "k_cache", kvcache.role = #kvcache<role cache>},
    %table: memref<2x2xi32> {kvcache.name = "page_table", kvcache.role = #kvcache<role page_table>},
    %lengths: memref<2xi32> {kvcache.name = "lengths", kvcache.role = #kvcache<role lengths>},
    %start: memref<3xi32> {kvcache.name = "query_start", kvcache.role = #kvcache<role query_start>},
    %slots: memref<8xi64> {kvcache.name = "slot_mapping", kvcache.role = #kvcache<role slots>},
    %x: memref<9x4x64xbf16> {kvcache.name = "x", kvcache.role = #kvcache<role activation>},
    %o: memref<9x4x64xbf16> {kvcache.name = "o", kvcache.role = #kvcache<role activation>}) {
  kvcache.segment @layer0 {
    %c = kvcache.view_cache @layer0 pages(%kc, %kc) page_table(%table) lengths(%lengths) query_start(%start) slots(%slots) : memref<7x16x2x64xf8E4M3FN, strided<[2048, 128, 64, 1], offset: ?>>, memref<7x16x2x64xf8E4M3FN, strided<[2048, 128, 64, 1], offset: ?>>, memref<2x2xi32>, memref<2xi32>, memref<3xi32>, memref<8xi64> -> !kvcache.cache<2 x 64 x f8E4M3FN>
    // expected-error @below {{the graph has 9 tokens, more than max-tokens=8; raise max-tokens}}
    kvcache.paged_attention %x over %c outs(%o) {softmax_scale = 0.125 : f64} : memref<9x4x64xbf16>, !kvcache.cache<2 x 64 x f8E4M3FN> -> memref<9x4x64xbf16>
  }
}

// -----

// No softmax scale.

kvcache.scale_buffer @layer0.k : f32 = 1.25e-02 from override
kvcache.scale_buffer @layer0.v : f32 = 1.0 from default
kvcache.cache_group @full page_size 16 {max_pages_per_sequence = 2 : i64, max_sequences = 2 : i64, max_tokens = 8 : i64, num_pages = 7 : i64}
kvcache.cache @layer0 of "model.layers.0.self_attn.attn" in @full : 2 x 64 x f8E4M3FN scales(@layer0.k, @layer0.v)
kvcache.program @kvcache.main(
    %kc: memref<7x16x2x64xf8E4M3FN, strided<[2048, 128, 64, 1], offset: ?>> {kvcache.name = "k_cache", kvcache.role = #kvcache<role cache>},
    %table: memref<2x2xi32> {kvcache.name = "page_table", kvcache.role = #kvcache<role page_table>},
    %lengths: memref<2xi32> {kvcache.name = "lengths", kvcache.role = #kvcache<role lengths>},
    %start: memref<3xi32> {kvcache.name = "query_start", kvcache.role = #kvcache<role query_start>},
    %slots: memref<8xi64> {kvcache.name = "slot_mapping", kvcache.role = #kvcache<role slots>},
    %x: memref<8x4x64xbf16> {kvcache.name = "x", kvcache.role = #kvcache<role activation>},
    %o: memref<8x4x64xbf16> {kvcache.name = "o", kvcache.role = #kvcache<role activation>}) {
  kvcache.segment @layer0 {
    %c = kvcache.view_cache @layer0 pages(%kc, %kc) page_table(%table) lengths(%lengths) query_start(%start) slots(%slots) : memref<7x16x2x64xf8E4M3FN, strided<[2048, 128, 64, 1], offset: ?>>, memref<7x16x2x64xf8E4M3FN, strided<[2048, 128, 64, 1], offset: ?>>, memref<2x2xi32>, memref<2xi32>, memref<3xi32>, memref<8xi64> -> !kvcache.cache<2 x 64 x f8E4M3FN>
    // expected-error @below {{the softmax scale of layer 'model.layers.0.self_attn.attn' is not known; run 'kvcache-apply-model-config'}}
    kvcache.paged_attention %x over %c outs(%o)  : memref<8x4x64xbf16>, !kvcache.cache<2 x 64 x f8E4M3FN> -> memref<8x4x64xbf16>
  }
}

// -----

// A scale of the output that is not known.

kvcache.scale_buffer @layer0.k : f32 = 1.25e-02 from override
kvcache.scale_buffer @layer0.v : f32 = 1.0 from default
kvcache.scale_buffer @layer0.o : f32 dynamic
kvcache.cache_group @full page_size 16 {max_pages_per_sequence = 2 : i64, max_sequences = 2 : i64, max_tokens = 8 : i64, num_pages = 7 : i64}
kvcache.cache @layer0 of "model.layers.0.self_attn.attn" in @full : 2 x 64 x f8E4M3FN scales(@layer0.k, @layer0.v)
kvcache.program @kvcache.main(
    %kc: memref<7x16x2x64xf8E4M3FN, strided<[2048, 128, 64, 1], offset: ?>> {kvcache.name = "k_cache", kvcache.role = #kvcache<role cache>},
    %table: memref<2x2xi32> {kvcache.name = "page_table", kvcache.role = #kvcache<role page_table>},
    %lengths: memref<2xi32> {kvcache.name = "lengths", kvcache.role = #kvcache<role lengths>},
    %start: memref<3xi32> {kvcache.name = "query_start", kvcache.role = #kvcache<role query_start>},
    %slots: memref<8xi64> {kvcache.name = "slot_mapping", kvcache.role = #kvcache<role slots>},
    %x: memref<8x4x64xbf16> {kvcache.name = "x", kvcache.role = #kvcache<role activation>},
    %o: memref<8x4x64xf8E4M3FN> {kvcache.name = "o", kvcache.role = #kvcache<role activation>}) {
  kvcache.segment @layer0 {
    %c = kvcache.view_cache @layer0 pages(%kc, %kc) page_table(%table) lengths(%lengths) query_start(%start) slots(%slots) : memref<7x16x2x64xf8E4M3FN, strided<[2048, 128, 64, 1], offset: ?>>, memref<7x16x2x64xf8E4M3FN, strided<[2048, 128, 64, 1], offset: ?>>, memref<2x2xi32>, memref<2xi32>, memref<3xi32>, memref<8xi64> -> !kvcache.cache<2 x 64 x f8E4M3FN>
    // expected-error @below {{no kernel selected: the o scale @layer0.o has no value; run 'kvcache-fold-checkpoint-scales' first}}
    kvcache.paged_attention %x over %c outs(%o) {o_scale = @layer0.o, softmax_scale = 0.125 : f64} : memref<8x4x64xbf16>, !kvcache.cache<2 x 64 x f8E4M3FN> -> memref<8x4x64xf8E4M3FN>
  }
}

// -----

// A head dim without a kernel.

kvcache.scale_buffer @layer0.k : f32 = 1.25e-02 from override
kvcache.scale_buffer @layer0.v : f32 = 1.0 from default
kvcache.cache_group @full page_size 16 {max_pages_per_sequence = 2 : i64, max_sequences = 2 : i64, max_tokens = 8 : i64, num_pages = 7 : i64}
kvcache.cache @layer0 of "model.layers.0.self_attn.attn" in @full : 2 x 72 x f8E4M3FN scales(@layer0.k, @layer0.v)
kvcache.program @kvcache.main(
    %kc: memref<7x16x2x72xf8E4M3FN, strided<[2304, 144, 72, 1], offset: ?>> {kvcache.name = "k_cache", kvcache.role = #kvcache<role cache>},
    %table: memref<2x2xi32> {kvcache.name = "page_table", kvcache.role = #kvcache<role page_table>},
    %lengths: memref<2xi32> {kvcache.name = "lengths", kvcache.role = #kvcache<role lengths>},
    %start: memref<3xi32> {kvcache.name = "query_start", kvcache.role = #kvcache<role query_start>},
    %slots: memref<8xi64> {kvcache.name = "slot_mapping", kvcache.role = #kvcache<role slots>},
    %x: memref<8x4x72xbf16> {kvcache.name = "x", kvcache.role = #kvcache<role activation>},
    %o: memref<8x4x72xbf16> {kvcache.name = "o", kvcache.role = #kvcache<role activation>}) {
  kvcache.segment @layer0 {
    %c = kvcache.view_cache @layer0 pages(%kc, %kc) page_table(%table) lengths(%lengths) query_start(%start) slots(%slots) : memref<7x16x2x72xf8E4M3FN, strided<[2304, 144, 72, 1], offset: ?>>, memref<7x16x2x72xf8E4M3FN, strided<[2304, 144, 72, 1], offset: ?>>, memref<2x2xi32>, memref<2xi32>, memref<3xi32>, memref<8xi64> -> !kvcache.cache<2 x 72 x f8E4M3FN>
    // expected-error @below {{no attention kernel for head dim 72 (layer 'model.layers.0.self_attn.attn'); 64, 80, 96, 112, 128, 192 and 256 are supported}}
    kvcache.paged_attention %x over %c outs(%o) {softmax_scale = 0.125 : f64} : memref<8x4x72xbf16>, !kvcache.cache<2 x 72 x f8E4M3FN> -> memref<8x4x72xbf16>
  }
}

// -----

// One of values alone.

kvcache.scale_buffer @layer0.k : f32 = 1.25e-02 from override
kvcache.scale_buffer @layer0.v : f32 = 1.0 from default
kvcache.cache_group @full page_size 16 {max_pages_per_sequence = 2 : i64, max_sequences = 2 : i64, max_tokens = 8 : i64, num_pages = 7 : i64}
kvcache.cache @layer0 of "model.layers.0.self_attn.attn" in @full : 2 x 64 | 72 x f8E4M3FN scales(@layer0.k, @layer0.v)
kvcache.program @kvcache.main(
    %kc: memref<7x16x2x64xf8E4M3FN, strided<[2048, 128, 64, 1], offset: ?>> {kvcache.name = "k_cache", kvcache.role = #kvcache<role cache>},
    %vc: memref<7x16x2x72xf8E4M3FN, strided<[2304, 144, 72, 1], offset: ?>> {kvcache.name = "v_cache", kvcache.role = #kvcache<role cache>},
    %table: memref<2x2xi32> {kvcache.name = "page_table", kvcache.role = #kvcache<role page_table>},
    %lengths: memref<2xi32> {kvcache.name = "lengths", kvcache.role = #kvcache<role lengths>},
    %start: memref<3xi32> {kvcache.name = "query_start", kvcache.role = #kvcache<role query_start>},
    %slots: memref<8xi64> {kvcache.name = "slot_mapping", kvcache.role = #kvcache<role slots>},
    %x: memref<8x4x64xbf16> {kvcache.name = "x", kvcache.role = #kvcache<role activation>},
    %o: memref<8x4x72xbf16> {kvcache.name = "o", kvcache.role = #kvcache<role activation>}) {
  kvcache.segment @layer0 {
    %c = kvcache.view_cache @layer0 pages(%kc, %vc) page_table(%table) lengths(%lengths) query_start(%start) slots(%slots) : memref<7x16x2x64xf8E4M3FN, strided<[2048, 128, 64, 1], offset: ?>>, memref<7x16x2x72xf8E4M3FN, strided<[2304, 144, 72, 1], offset: ?>>, memref<2x2xi32>, memref<2xi32>, memref<3xi32>, memref<8xi64> -> !kvcache.cache<2 x 64 | 72 x f8E4M3FN>
    // expected-error @below {{no attention kernel for head dim 72 of values (layer 'model.layers.0.self_attn.attn'); 64, 80, 96, 112, 128, 192 and 256 are supported}}
    kvcache.paged_attention %x over %c outs(%o) {softmax_scale = 0.125 : f64} : memref<8x4x64xbf16>, !kvcache.cache<2 x 64 | 72 x f8E4M3FN> -> memref<8x4x72xbf16>
  }
}

// -----

// Too many query heads on a KV head.

kvcache.scale_buffer @layer0.k : f32 = 1.25e-02 from override
kvcache.scale_buffer @layer0.v : f32 = 1.0 from default
kvcache.cache_group @full page_size 16 {max_pages_per_sequence = 2 : i64, max_sequences = 2 : i64, max_tokens = 8 : i64, num_pages = 7 : i64}
kvcache.cache @layer0 of "model.layers.0.self_attn.attn" in @full : 2 x 64 x f8E4M3FN scales(@layer0.k, @layer0.v)
kvcache.program @kvcache.main(
    %kc: memref<7x16x2x64xf8E4M3FN, strided<[2048, 128, 64, 1], offset: ?>> {kvcache.name = "k_cache", kvcache.role = #kvcache<role cache>},
    %table: memref<2x2xi32> {kvcache.name = "page_table", kvcache.role = #kvcache<role page_table>},
    %lengths: memref<2xi32> {kvcache.name = "lengths", kvcache.role = #kvcache<role lengths>},
    %start: memref<3xi32> {kvcache.name = "query_start", kvcache.role = #kvcache<role query_start>},
    %slots: memref<8xi64> {kvcache.name = "slot_mapping", kvcache.role = #kvcache<role slots>},
    %x: memref<8x258x64xbf16> {kvcache.name = "x", kvcache.role = #kvcache<role activation>},
    %o: memref<8x258x64xbf16> {kvcache.name = "o", kvcache.role = #kvcache<role activation>}) {
  kvcache.segment @layer0 {
    %c = kvcache.view_cache @layer0 pages(%kc, %kc) page_table(%table) lengths(%lengths) query_start(%start) slots(%slots) : memref<7x16x2x64xf8E4M3FN, strided<[2048, 128, 64, 1], offset: ?>>, memref<7x16x2x64xf8E4M3FN, strided<[2048, 128, 64, 1], offset: ?>>, memref<2x2xi32>, memref<2xi32>, memref<3xi32>, memref<8xi64> -> !kvcache.cache<2 x 64 x f8E4M3FN>
    // expected-error @below {{no attention kernel for 129 query heads on one KV head; up to 128 are supported}}
    kvcache.paged_attention %x over %c outs(%o) {softmax_scale = 0.125 : f64} : memref<8x258x64xbf16>, !kvcache.cache<2 x 64 x f8E4M3FN> -> memref<8x258x64xbf16>
  }
}

// -----

// A head dim that 16-byte stores cannot take.

kvcache.scale_buffer @layer0.k : f32 = 1.25e-02 from override
kvcache.scale_buffer @layer0.v : f32 = 1.0 from default
kvcache.cache_group @full page_size 16 {max_pages_per_sequence = 2 : i64, max_sequences = 2 : i64, max_tokens = 8 : i64, num_pages = 7 : i64}
kvcache.cache @layer0 of "model.layers.0.self_attn.attn" in @full : 2 x 24 x f8E4M3FN scales(@layer0.k, @layer0.v)
kvcache.program @kvcache.main(
    %kc: memref<7x16x2x24xf8E4M3FN, strided<[768, 48, 24, 1], offset: ?>> {kvcache.name = "k_cache", kvcache.role = #kvcache<role cache>},
    %table: memref<2x2xi32> {kvcache.name = "page_table", kvcache.role = #kvcache<role page_table>},
    %lengths: memref<2xi32> {kvcache.name = "lengths", kvcache.role = #kvcache<role lengths>},
    %start: memref<3xi32> {kvcache.name = "query_start", kvcache.role = #kvcache<role query_start>},
    %slots: memref<8xi64> {kvcache.name = "slot_mapping", kvcache.role = #kvcache<role slots>},
    %x: memref<8x2x24xbf16> {kvcache.name = "x", kvcache.role = #kvcache<role activation>},
    %o: memref<8x2x24xbf16> {kvcache.name = "o", kvcache.role = #kvcache<role activation>}) {
  kvcache.segment @layer0 {
    %c = kvcache.view_cache @layer0 pages(%kc, %kc) page_table(%table) lengths(%lengths) query_start(%start) slots(%slots) : memref<7x16x2x24xf8E4M3FN, strided<[768, 48, 24, 1], offset: ?>>, memref<7x16x2x24xf8E4M3FN, strided<[768, 48, 24, 1], offset: ?>>, memref<2x2xi32>, memref<2xi32>, memref<3xi32>, memref<8xi64> -> !kvcache.cache<2 x 24 x f8E4M3FN>
    // expected-error @below {{no write kernel for 2 KV heads of 24 in pages of 16 with layout nhd; the head dim must be a multiple of 16, and strides multiples of 16 bytes}}
    kvcache.write %x, %x to %c : memref<8x2x24xbf16>, memref<8x2x24xbf16>, !kvcache.cache<2 x 24 x f8E4M3FN>
  }
}

// -----

// A factor that overflows.

kvcache.scale_buffer @layer0.k : f32 = 1.0e+38 from override
kvcache.scale_buffer @layer0.v : f32 = 1.0 from default
kvcache.cache_group @full page_size 16 {max_pages_per_sequence = 2 : i64, max_sequences = 2 : i64, max_tokens = 8 : i64, num_pages = 7 : i64}
kvcache.cache @layer0 of "model.layers.0.self_attn.attn" in @full : 2 x 64 x f8E4M3FN scales(@layer0.k, @layer0.v)
kvcache.program @kvcache.main(
    %kc: memref<7x16x2x64xf8E4M3FN, strided<[2048, 128, 64, 1], offset: ?>> {kvcache.name = "k_cache", kvcache.role = #kvcache<role cache>},
    %table: memref<2x2xi32> {kvcache.name = "page_table", kvcache.role = #kvcache<role page_table>},
    %lengths: memref<2xi32> {kvcache.name = "lengths", kvcache.role = #kvcache<role lengths>},
    %start: memref<3xi32> {kvcache.name = "query_start", kvcache.role = #kvcache<role query_start>},
    %slots: memref<8xi64> {kvcache.name = "slot_mapping", kvcache.role = #kvcache<role slots>},
    %x: memref<8x4x64xbf16> {kvcache.name = "x", kvcache.role = #kvcache<role activation>},
    %o: memref<8x4x64xbf16> {kvcache.name = "o", kvcache.role = #kvcache<role activation>}) {
  kvcache.segment @layer0 {
    %c = kvcache.view_cache @layer0 pages(%kc, %kc) page_table(%table) lengths(%lengths) query_start(%start) slots(%slots) : memref<7x16x2x64xf8E4M3FN, strided<[2048, 128, 64, 1], offset: ?>>, memref<7x16x2x64xf8E4M3FN, strided<[2048, 128, 64, 1], offset: ?>>, memref<2x2xi32>, memref<2xi32>, memref<3xi32>, memref<8xi64> -> !kvcache.cache<2 x 64 x f8E4M3FN>
    // expected-error @below {{softmax_scale * k_scale * log2(e) = 1.442695e+79 is not a normal f32; the scales cannot be right}}
    kvcache.paged_attention %x over %c outs(%o) {softmax_scale = 1.0e+41 : f64} : memref<8x4x64xbf16>, !kvcache.cache<2 x 64 x f8E4M3FN> -> memref<8x4x64xbf16>
  }
}

// -----

// Quantizations without a kernel.

kvcache.program @kvcache.main(
    %x: memref<8x64xbf16> {kvcache.name = "x", kvcache.role = #kvcache<role activation>},
    %y: memref<8x64xf8E4M3FNUZ> {kvcache.name = "y", kvcache.role = #kvcache<role activation>},
    %z: memref<8x64xf8E4M3FN, strided<[128, 1]>> {kvcache.name = "z", kvcache.role = #kvcache<role activation>},
    %s: memref<1xf32> {kvcache.name = "s", kvcache.role = #kvcache<role activation>},
    %a: memref<?x64xf8E4M3FN> {kvcache.name = "a", kvcache.role = #kvcache<role activation>},
    %b: memref<?x64xf32> {kvcache.name = "b", kvcache.role = #kvcache<role activation>}) {
  kvcache.segment @layer0 {
    %one = arith.constant 1.0 : f32
    %zero = arith.constant 0 : index
    %live = memref.load %s[%zero] : memref<1xf32>
    // expected-error @below {{no kernel for this 'kvcache.quantize': codes are f8E4M3FN or f8E5M2}}
    kvcache.quantize %x by %one outs(%y) : memref<8x64xbf16> to memref<8x64xf8E4M3FNUZ>
    // expected-error @below {{no kernel for this 'kvcache.quantize': it takes contiguous buffers}}
    kvcache.quantize %x by %one outs(%z) : memref<8x64xbf16> to memref<8x64xf8E4M3FN, strided<[128, 1]>>
    // expected-error @below {{no kernel for this 'kvcache.dequantize': its scale is not a constant; a graph captures the value of a scale}}
    kvcache.dequantize %a by %live outs(%b) : memref<?x64xf8E4M3FN> to memref<?x64xf32>
    // expected-error @below {{no kernel for this 'kvcache.dequantize': dimension 0 of 'memref<?x64xf8E4M3FN>' is not bounded; bounded by max-tokens is the first}}
    kvcache.dequantize %a by %one outs(%b) : memref<?x64xf8E4M3FN> to memref<?x64xf32>
  }
}

// -----

// A table of any length.

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
    %t: memref<?x64xf32> {kvcache.name = "rope_table", kvcache.role = #kvcache<role parameter>},
    %p: memref<2xi64> {kvcache.name = "positions", kvcache.role = #kvcache<role activation>},
    %k: memref<2x2x128xbf16> {kvcache.name = "key", kvcache.role = #kvcache<role activation>}) {
  kvcache.segment @layer0 {
    %c = kvcache.view_cache @layer0 pages(%kc, %kc) page_table(%table) lengths(%lengths) query_start(%start) slots(%slots) : memref<70x16x2x128xf8E4M3FN, strided<[4096, 256, 128, 1], offset: ?>>, memref<70x16x2x128xf8E4M3FN, strided<[4096, 256, 128, 1], offset: ?>>, memref<2x512xi32>, memref<2xi32>, memref<3xi32>, memref<2xi64> -> !kvcache.cache<2 x 128 x f8E4M3FN>
    // expected-error @below {{no write kernel for a rope table of 'memref<?x64xf32>': kernels skip positions past its end; give it a static number of positions}}
    kvcache.write %k, %k to %c rope(%t at %p : memref<?x64xf32>, memref<2xi64>) : memref<2x2x128xbf16>, memref<2x2x128xbf16>, !kvcache.cache<2 x 128 x f8E4M3FN>
  }
}

// -----

// Copies and merges of rows that are no multiples of 16.

kvcache.scale_buffer @layer0.k : f32 = 1.25e-02 from override
kvcache.scale_buffer @layer0.v : f32 = 1.0 from default
kvcache.cache_group @full page_size 16 {max_pages_per_sequence = 2 : i64, max_sequences = 2 : i64, max_tokens = 8 : i64, num_pages = 7 : i64}
kvcache.cache @layer0 of "l0" in @full : 2 x 22 x f8E4M3FN scales(@layer0.k, @layer0.v)
kvcache.program @kvcache.main(
    %kc: memref<7x16x2x22xf8E4M3FN, strided<[704, 44, 22, 1], offset: ?>> {kvcache.name = "k_cache", kvcache.role = #kvcache<role cache>},
    %table: memref<2x2xi32> {kvcache.name = "page_table", kvcache.role = #kvcache<role page_table>},
    %lengths: memref<2xi32> {kvcache.name = "lengths", kvcache.role = #kvcache<role lengths>},
    %start: memref<3xi32> {kvcache.name = "query_start", kvcache.role = #kvcache<role query_start>},
    %slots: memref<8xi64> {kvcache.name = "slot_mapping", kvcache.role = #kvcache<role slots>},
    %p: memref<?x2xi64> {kvcache.name = "pairs", kvcache.role = #kvcache<role page_copies>},
    %a: memref<8x4x24xbf16> {kvcache.name = "a", kvcache.role = #kvcache<role activation>},
    %la: memref<8x4xf32> {kvcache.name = "la", kvcache.role = #kvcache<role activation>},
    %o: memref<8x4x24xbf16> {kvcache.name = "o", kvcache.role = #kvcache<role activation>},
    %l: memref<8x4xf32> {kvcache.name = "l", kvcache.role = #kvcache<role activation>},
    %x: memref<8x?x64xbf16> {kvcache.name = "x", kvcache.role = #kvcache<role activation>},
    %lx: memref<8x?xf32> {kvcache.name = "lx", kvcache.role = #kvcache<role activation>},
    %y: memref<8x?x64xbf16> {kvcache.name = "y", kvcache.role = #kvcache<role activation>},
    %ly: memref<8x?xf32> {kvcache.name = "ly", kvcache.role = #kvcache<role activation>}) {
  kvcache.segment @layer0 {
    %c = kvcache.view_cache @layer0 pages(%kc, %kc) page_table(%table) lengths(%lengths) query_start(%start) slots(%slots) : memref<7x16x2x22xf8E4M3FN, strided<[704, 44, 22, 1], offset: ?>>, memref<7x16x2x22xf8E4M3FN, strided<[704, 44, 22, 1], offset: ?>>, memref<2x2xi32>, memref<2xi32>, memref<3xi32>, memref<8xi64> -> !kvcache.cache<2 x 22 x f8E4M3FN>
    // expected-error @below {{no kernel for 'kvcache.copy_pages' in '!kvcache.cache<2 x 22 x f8E4M3FN>' (layer 'l0'): rows of a head and strides must be multiples of 16 bytes, or both of 4}}
    kvcache.copy_pages %p in %c : memref<?x2xi64>, !kvcache.cache<2 x 22 x f8E4M3FN>
    // expected-error @below {{no kernel for this 'kvcache.merge_states' of 'memref<8x4x24xbf16>': the head dim must be a multiple of 16}}
    kvcache.merge_states %a, %la with %a, %la outs(%o, %l) : memref<8x4x24xbf16>, memref<8x4xf32>
    // expected-error @below {{no kernel for this 'kvcache.merge_states' of 'memref<8x?x64xbf16>': dimensions need a bound; max-tokens bounds the first}}
    kvcache.merge_states %x, %lx with %x, %lx outs(%y, %ly) : memref<8x?x64xbf16>, memref<8x?xf32>
  }
}

// -----

// Strides that are no multiples of 16 bytes, ...

kvcache.scale_buffer @layer0.k : f32 = 1.25e-02 from override
kvcache.scale_buffer @layer0.v : f32 = 1.0 from default
kvcache.cache_group @full page_size 16 {max_pages_per_sequence = 2 : i64, max_sequences = 2 : i64, max_tokens = 8 : i64, num_pages = 7 : i64}
kvcache.cache @layer0 of "l0" in @full : 2 x 64 x f8E4M3FN scales(@layer0.k, @layer0.v) layout strides [2624, 164, 82]
kvcache.program @kvcache.main(
    %kc: memref<7x16x2x64xf8E4M3FN, strided<[2624, 164, 82, 1], offset: ?>> {kvcache.name = "k_cache", kvcache.role = #kvcache<role cache>},
    %table: memref<2x2xi32> {kvcache.name = "page_table", kvcache.role = #kvcache<role page_table>},
    %lengths: memref<2xi32> {kvcache.name = "lengths", kvcache.role = #kvcache<role lengths>},
    %start: memref<3xi32> {kvcache.name = "query_start", kvcache.role = #kvcache<role query_start>},
    %slots: memref<8xi64> {kvcache.name = "slot_mapping", kvcache.role = #kvcache<role slots>},
    %k: memref<8x2x64xbf16> {kvcache.name = "k", kvcache.role = #kvcache<role activation>},
    %p: memref<3x2xi64> {kvcache.name = "pairs", kvcache.role = #kvcache<role page_copies>},
    %x: memref<8x4x64xbf16> {kvcache.name = "x", kvcache.role = #kvcache<role activation>},
    %o: memref<8x4x64xbf16> {kvcache.name = "o", kvcache.role = #kvcache<role activation>}) {
  kvcache.segment @layer0 {
    %c = kvcache.view_cache @layer0 pages(%kc, %kc) page_table(%table) lengths(%lengths) query_start(%start) slots(%slots) : memref<7x16x2x64xf8E4M3FN, strided<[2624, 164, 82, 1], offset: ?>>, memref<7x16x2x64xf8E4M3FN, strided<[2624, 164, 82, 1], offset: ?>>, memref<2x2xi32>, memref<2xi32>, memref<3xi32>, memref<8xi64> -> !kvcache.cache<2 x 64 x f8E4M3FN>
    // expected-error @below {{rows of a head and strides must be multiples of 16 bytes}}
    kvcache.copy_pages %p in %c : memref<3x2xi64>, !kvcache.cache<2 x 64 x f8E4M3FN>
    // expected-error @below {{no write kernel for 2 KV heads of 64 in pages of 16 with layout strides:2624,164,82; the head dim must be a multiple of 16, and strides multiples of 16 bytes}}
    kvcache.write %k, %k to %c : memref<8x2x64xbf16>, memref<8x2x64xbf16>, !kvcache.cache<2 x 64 x f8E4M3FN>
    // expected-error @below {{pages need strides of multiples of 16 bytes}}
    kvcache.paged_attention %x over %c outs(%o) {softmax_scale = 0.125 : f64} : memref<8x4x64xbf16>, !kvcache.cache<2 x 64 x f8E4M3FN> -> memref<8x4x64xbf16>
  }
}

// -----

// ... or more than 32 bits hold.

kvcache.scale_buffer @layer0.k : f32 = 1.25e-02 from override
kvcache.scale_buffer @layer0.v : f32 = 1.0 from default
kvcache.cache_group @full page_size 16 {max_pages_per_sequence = 2 : i64, max_sequences = 2 : i64, max_tokens = 8 : i64, num_pages = 7 : i64}
kvcache.cache @layer0 of "l0" in @full : 2 x 64 x f8E4M3FN scales(@layer0.k, @layer0.v) layout strides [8589934592, 64, 4294967296]
kvcache.program @kvcache.main(
    %kc: memref<7x16x2x64xf8E4M3FN, strided<[8589934592, 64, 4294967296, 1], offset: ?>> {kvcache.name = "k_cache", kvcache.role = #kvcache<role cache>},
    %table: memref<2x2xi32> {kvcache.name = "page_table", kvcache.role = #kvcache<role page_table>},
    %lengths: memref<2xi32> {kvcache.name = "lengths", kvcache.role = #kvcache<role lengths>},
    %start: memref<3xi32> {kvcache.name = "query_start", kvcache.role = #kvcache<role query_start>},
    %slots: memref<8xi64> {kvcache.name = "slot_mapping", kvcache.role = #kvcache<role slots>},
    %k: memref<8x2x64xbf16> {kvcache.name = "k", kvcache.role = #kvcache<role activation>},
    %p: memref<3x2xi64> {kvcache.name = "pairs", kvcache.role = #kvcache<role page_copies>},
    %x: memref<8x4x64xbf16> {kvcache.name = "x", kvcache.role = #kvcache<role activation>},
    %o: memref<8x4x64xbf16> {kvcache.name = "o", kvcache.role = #kvcache<role activation>}) {
  kvcache.segment @layer0 {
    %c = kvcache.view_cache @layer0 pages(%kc, %kc) page_table(%table) lengths(%lengths) query_start(%start) slots(%slots) : memref<7x16x2x64xf8E4M3FN, strided<[8589934592, 64, 4294967296, 1], offset: ?>>, memref<7x16x2x64xf8E4M3FN, strided<[8589934592, 64, 4294967296, 1], offset: ?>>, memref<2x2xi32>, memref<2xi32>, memref<3xi32>, memref<8xi64> -> !kvcache.cache<2 x 64 x f8E4M3FN>
    // expected-error @below {{no kernel selected: layout strides:8589934592,64,4294967296 of layer 'l0' has strides of tokens or heads of 2 GiB or more}}
    kvcache.copy_pages %p in %c : memref<3x2xi64>, !kvcache.cache<2 x 64 x f8E4M3FN>
    // expected-error @below {{no kernel selected: layout strides:8589934592,64,4294967296 of layer 'l0' has strides of tokens or heads of 2 GiB or more}}
    kvcache.write %k, %k to %c : memref<8x2x64xbf16>, memref<8x2x64xbf16>, !kvcache.cache<2 x 64 x f8E4M3FN>
    // expected-error @below {{no kernel selected: layout strides:8589934592,64,4294967296 of layer 'l0' has strides of tokens or heads of 2 GiB or more}}
    kvcache.paged_attention %x over %c outs(%o) {softmax_scale = 0.125 : f64} : memref<8x4x64xbf16>, !kvcache.cache<2 x 64 x f8E4M3FN> -> memref<8x4x64xbf16>
  }
}
