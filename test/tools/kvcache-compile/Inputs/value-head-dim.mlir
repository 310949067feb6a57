// K of 192 and V of 128, as unabsorbed MLA and MiMo-V2 have them; one layer packs its pages.
kvcache.scale_buffer @k : f32 = 0.0123 from override
kvcache.scale_buffer @v : f32 = 0.5 from override
kvcache.cache_group @full page_size 16
kvcache.cache @layer0 of "model.layers.0.self_attn.attn" in @full : 2 x 192 | 128 x f8E4M3FN scales(@k, @v)
kvcache.cache @layer1 of "model.layers.1.self_attn.attn" in @full : 2 x 64 | 128 x f8E5M2 scales(@v, @k) layout packed
func.func @main(%q: tensor<?x8x192xbf16>, %k: tensor<?x2x192xbf16>, %v: tensor<?x2x128xbf16>, %o: tensor<?x8x128xbf16>,
                %r: tensor<?x8x64xbf16>, %l: tensor<?x2x64xbf16>)
    -> (tensor<?x8x128xbf16>, tensor<?x8x128xbf16>) {
  %c = kvcache.get_cache @layer0 : !kvcache.cache<2 x 192 | 128 x f8E4M3FN>
  kvcache.write %k, %v to %c : tensor<?x2x192xbf16>, tensor<?x2x128xbf16>, !kvcache.cache<2 x 192 | 128 x f8E4M3FN>
  %a = kvcache.paged_attention %q over %c outs(%o) {softmax_scale = 0.0721 : f64} : tensor<?x8x192xbf16>, !kvcache.cache<2 x 192 | 128 x f8E4M3FN> -> tensor<?x8x128xbf16>
  %d = kvcache.get_cache @layer1 : !kvcache.cache<2 x 64 | 128 x f8E5M2>
  kvcache.write %l, %v to %d : tensor<?x2x64xbf16>, tensor<?x2x128xbf16>, !kvcache.cache<2 x 64 | 128 x f8E5M2>
  %b = kvcache.paged_attention %r over %d outs(%o) {softmax_scale = 0.125 : f64} : tensor<?x8x64xbf16>, !kvcache.cache<2 x 64 | 128 x f8E5M2> -> tensor<?x8x128xbf16>
  return %a, %b : tensor<?x8x128xbf16>, tensor<?x8x128xbf16>
}
