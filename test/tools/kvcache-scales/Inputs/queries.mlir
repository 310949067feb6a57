// FP8 queries that the segment quantizes, and an FP8 output.
kvcache.scale_buffer @layer0.k : f32 dynamic
kvcache.scale_buffer @layer0.v : f32 dynamic
kvcache.scale_buffer @layer0.q : f32 dynamic
kvcache.cache_group @full page_size 16
kvcache.cache @layer0 of "model.layers.0.self_attn.attn" in @full : 2 x 64 x f8E4M3FN scales(@layer0.k, @layer0.v)
func.func @main(%x: tensor<?x4x64xbf16>, %out: tensor<?x4x64xbf16>) -> tensor<?x4x64xbf16> {
  %s = kvcache.load_scale @layer0.q : f32
  %q = kvcache.quantize %x by %s : tensor<?x4x64xbf16> to tensor<?x4x64xf8E4M3FN>
  %c = kvcache.get_cache @layer0 : !kvcache.cache<2 x 64 x f8E4M3FN>
  %o = kvcache.paged_attention %q over %c outs(%out) {softmax_scale = 1.250000e-01 : f64, q_scale = @layer0.q} : tensor<?x4x64xf8E4M3FN>, !kvcache.cache<2 x 64 x f8E4M3FN> -> tensor<?x4x64xbf16>
  return %o : tensor<?x4x64xbf16>
}
