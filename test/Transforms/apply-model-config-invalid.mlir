// RUN: kvcache-opt %s -split-input-file -verify-diagnostics -o /dev/null -kvcache-apply-model-config=checkpoint=%inputs/checkpoints/modelopt_fp8

// The config has 4 query heads. The remark is about the scale that it gives.

// expected-remark @+1 {{taken from the model's config: softmax scale from config.json: head_dim}}
module {
kvcache.cache_group @full page_size 16
kvcache.scale_buffer @k : f32 dynamic
kvcache.scale_buffer @v : f32 dynamic
kvcache.cache @layer0 of "model.layers.0.self_attn.attn" in @full : 2 x 64 x bf16 scales(@k, @v)
func.func @main(%q: tensor<4x8x64xbf16>, %out: tensor<4x8x64xbf16>) -> tensor<4x8x64xbf16> {
  %c = kvcache.get_cache @layer0 : !kvcache.cache<2 x 64 x bf16>
  // expected-error @+1 {{layer model.layers.0.self_attn.attn: the graph has query heads 8, but config.json: num_attention_heads says 4}}
  %o = kvcache.paged_attention %q over %c outs(%out) : tensor<4x8x64xbf16>, !kvcache.cache<2 x 64 x bf16> -> tensor<4x8x64xbf16>
  return %o : tensor<4x8x64xbf16>
}
}

// -----

// And two layers.
kvcache.cache_group @full page_size 16
kvcache.scale_buffer @k : f32 dynamic
kvcache.scale_buffer @v : f32 dynamic
kvcache.cache @layer9 of "model.layers.9.self_attn.attn" in @full : 2 x 64 x bf16 scales(@k, @v)
func.func @main(%q: tensor<4x4x64xbf16>, %out: tensor<4x4x64xbf16>) -> tensor<4x4x64xbf16> {
  %c = kvcache.get_cache @layer9 : !kvcache.cache<2 x 64 x bf16>
  // expected-error @+1 {{layer model.layers.9.self_attn.attn: the config has only 2 layers}}
  %o = kvcache.paged_attention %q over %c outs(%out) : tensor<4x4x64xbf16>, !kvcache.cache<2 x 64 x bf16> -> tensor<4x4x64xbf16>
  return %o : tensor<4x4x64xbf16>
}

// -----

// A handle from outside has no layer.

func.func @main(%q: tensor<4x4x64xbf16>, %out: tensor<4x4x64xbf16>, %c: !kvcache.cache<2 x 64 x bf16>) -> tensor<4x4x64xbf16> {
  // expected-error @+1 {{the cache of this attention is not known here, because its handle comes from outside; use kvcache.get_cache beside it}}
  %o = kvcache.paged_attention %q over %c outs(%out) : tensor<4x4x64xbf16>, !kvcache.cache<2 x 64 x bf16> -> tensor<4x4x64xbf16>
  return %o : tensor<4x4x64xbf16>
}
