// RUN: kvcache-opt %s --split-input-file --verify-diagnostics --kvcache-form-programs --kvcache-select-kernels=target=sm_90

// A latent row that no kernel has.

kvcache.scale_buffer @layer0.k : f32 = 1.25e-02 from override
kvcache.cache_group @full page_size 16 {max_pages_per_sequence = 2 : i64, max_sequences = 2 : i64, max_tokens = 2 : i64, num_pages = 7 : i64}
kvcache.cache @layer0 of "l0" in @full : latent 128 + 64 x f8E4M3FN scales(@layer0.k, @layer0.k)
func.func @main(%latent: memref<2x128xbf16>, %rope: memref<2x64xbf16>, %q: memref<2x4x192xbf16>, %out: memref<2x4x128xbf16>) {
  %c = kvcache.get_cache @layer0 : !kvcache.cache<latent 128 + 64 x f8E4M3FN>
  // expected-error @below {{no kernel for the latent cache '!kvcache.cache<latent 128 + 64 x f8E4M3FN>' of layer 'l0': a latent row has 512 + 64 or 256 + 64 elements}}
  kvcache.write_latent %latent, %rope to %c : memref<2x128xbf16>, memref<2x64xbf16>, !kvcache.cache<latent 128 + 64 x f8E4M3FN>
  // expected-error @below {{no kernel for the latent cache '!kvcache.cache<latent 128 + 64 x f8E4M3FN>' of layer 'l0': a latent row has 512 + 64 or 256 + 64 elements}}
  kvcache.mla_attention %q over %c outs(%out) {softmax_scale = 1.250000e-01 : f64} : memref<2x4x192xbf16>, !kvcache.cache<latent 128 + 64 x f8E4M3FN> -> memref<2x4x128xbf16>
  return
}

// -----

// Queries that no kernel takes, and a softmax scale that nobody gave.

kvcache.scale_buffer @layer0.k : f32 = 1.25e-02 from override
kvcache.cache_group @full page_size 16 {max_pages_per_sequence = 2 : i64, max_sequences = 2 : i64, max_tokens = 2 : i64, num_pages = 7 : i64}
kvcache.cache @layer1 of "l1" in @full : latent 512 + 64 x fp8_ds_mla scales(@layer0.k, @layer0.k)
kvcache.cache @layer2 of "l2" in @full : latent 256 + 64 x bf16 scales(@layer0.k, @layer0.k)
func.func @main(%q: memref<2x4x320xf32>, %out: memref<2x4x256xf32>, %h: memref<2x4x576xf16>, %hout: memref<2x4x512xf16>, %many: memref<2x130x576xbf16>, %manyout: memref<2x130x512xbf16>) {
  %c = kvcache.get_cache @layer2 : !kvcache.cache<latent 256 + 64 x bf16>
  // expected-error @below {{no attention kernel for queries of 'f32', 4 heads over '!kvcache.cache<latent 256 + 64 x bf16>' in pages of 16 (layer 'l2'): a latent cache with 16-bit elements or tile scales takes queries of its own type, bf16 for fp8_ds_mla, or FP8}}
  kvcache.mla_attention %q over %c outs(%out) {softmax_scale = 1.250000e-01 : f64} : memref<2x4x320xf32>, !kvcache.cache<latent 256 + 64 x bf16> -> memref<2x4x256xf32>
  %d = kvcache.get_cache @layer1 : !kvcache.cache<latent 512 + 64 x fp8_ds_mla>
  // expected-error @below {{(layer 'l1'): a latent cache with 16-bit elements or tile scales takes queries of its own type}}
  kvcache.mla_attention %h over %d outs(%hout) {softmax_scale = 1.250000e-01 : f64} : memref<2x4x576xf16>, !kvcache.cache<latent 512 + 64 x fp8_ds_mla> -> memref<2x4x512xf16>
  // expected-error @below {{no kernel selected: the softmax scale of layer 'l1' is not known}}
  kvcache.mla_attention %h over %d outs(%hout) : memref<2x4x576xf16>, !kvcache.cache<latent 512 + 64 x fp8_ds_mla> -> memref<2x4x512xf16>
  // expected-error @below {{(layer 'l1'): there are 1 to 128 query heads}}
  kvcache.mla_attention %many over %d outs(%manyout) {softmax_scale = 1.250000e-01 : f64} : memref<2x130x576xbf16>, !kvcache.cache<latent 512 + 64 x fp8_ds_mla> -> memref<2x130x512xbf16>
  return
}
