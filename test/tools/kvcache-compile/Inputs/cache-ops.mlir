kvcache.scale_buffer @layer0.k : f32 = 1.250000e-02 from override
kvcache.scale_buffer @layer0.v : f32 = 1.000000e+00 from default
kvcache.cache_group @full page_size 16 {max_sequences = 3 : i64}
kvcache.cache @layer0 of "model.layers.0.self_attn.attn" in @full : 2 x 64 x f8E4M3FN scales(@layer0.k, @layer0.v)
func.func @main(%q: memref<8x4x64xbf16>, %k: memref<8x2x64xbf16>, %out: memref<8x4x64xbf16>) {
  %c = kvcache.get_cache @layer0 : !kvcache.cache<2 x 64 x f8E4M3FN>
  kvcache.write %k, %k to %c : memref<8x2x64xbf16>, memref<8x2x64xbf16>, !kvcache.cache<2 x 64 x f8E4M3FN>
  kvcache.paged_attention %q over %c outs(%out) : memref<8x4x64xbf16>, !kvcache.cache<2 x 64 x f8E4M3FN> -> memref<8x4x64xbf16>
  return
}
