// RUN: kvcache-opt %s --split-input-file --verify-diagnostics --pass-pipeline="builtin.module(kvcache-verify-capturable{one-graph})"

// An output that starts as another result must be copied first: no kernel does.

kvcache.scale_buffer @layer0.k : f32 = 1.0 from default
kvcache.scale_buffer @layer0.v : f32 = 1.0 from default
kvcache.cache_group @full page_size 16 {max_pages_per_sequence = 2, max_sequences = 2, max_tokens = 8, num_pages = 7}
kvcache.cache @layer0 of "model.layers.0.self_attn.attn" in @full : 2 x 64 x f8E4M3FN scales(@layer0.k, @layer0.v)
func.func @handed_on(%q: tensor<8x4x64xbf16>, %e: tensor<8x4x64xbf16>) -> tensor<8x4x64xbf16> {
  %c = kvcache.get_cache @layer0 : !kvcache.cache<2 x 64 x f8E4M3FN>
  %o = kvcache.paged_attention %q over %c outs(%e) {softmax_scale = 1.250000e-01 : f64} : tensor<8x4x64xbf16>, !kvcache.cache<2 x 64 x f8E4M3FN> -> tensor<8x4x64xbf16>
  // expected-error @below {{'kvcache.paged_attention' cannot be captured (foreign-op)}}
  // expected-note @below {{cause: its output starts as the result of another cache op}}
  // expected-note @below {{what to do: give each attention an output of its own}}
  %p = kvcache.paged_attention %q over %c outs(%o) {softmax_scale = 1.250000e-01 : f64} : tensor<8x4x64xbf16>, !kvcache.cache<2 x 64 x f8E4M3FN> -> tensor<8x4x64xbf16>
  return %p : tensor<8x4x64xbf16>
}

// -----

// A query may be one.

kvcache.scale_buffer @layer0.k : f32 = 1.0 from default
kvcache.scale_buffer @layer0.v : f32 = 1.0 from default
kvcache.cache_group @full page_size 16 {max_pages_per_sequence = 2, max_sequences = 2, max_tokens = 8, num_pages = 7}
kvcache.cache @layer0 of "model.layers.0.self_attn.attn" in @full : 2 x 64 x f8E4M3FN scales(@layer0.k, @layer0.v)
func.func @query(%q: tensor<8x4x64xbf16>, %e: tensor<8x4x64xbf16>) -> tensor<8x4x64xbf16> {
  %c = kvcache.get_cache @layer0 : !kvcache.cache<2 x 64 x f8E4M3FN>
  %o = kvcache.paged_attention %q over %c outs(%e) {softmax_scale = 1.250000e-01 : f64} : tensor<8x4x64xbf16>, !kvcache.cache<2 x 64 x f8E4M3FN> -> tensor<8x4x64xbf16>
  %p = kvcache.paged_attention %o over %c outs(%e) {softmax_scale = 1.250000e-01 : f64} : tensor<8x4x64xbf16>, !kvcache.cache<2 x 64 x f8E4M3FN> -> tensor<8x4x64xbf16>
  return %p : tensor<8x4x64xbf16>
}
