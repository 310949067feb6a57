// RUN: kvcache-opt %s -kvcache-caches-to-arguments -split-input-file -verify-diagnostics -o /dev/null

kvcache.scale_buffer @s : f32 = 1.0 from default
kvcache.cache_group @full page_size 16
kvcache.cache @layer0 of "layers.0.attn" in @full : 2 x 64 x bf16 scales(@s, @s)
// expected-note@+1 {{the function is here}}
func.func @layer() {
  %c = kvcache.get_cache @layer0 : !kvcache.cache<2 x 64 x bf16>
  return
}
func.func @main() {
  // The function may be called from anywhere once its address is taken.
  // expected-error@+1 {{uses @layer, which has to take the buffers of cache @layer0 as arguments; only a 'func.call' in a 'func.func' can hand them on}}
  %f = func.constant @layer : () -> ()
  func.call_indirect %f() : () -> ()
  return
}

// -----

kvcache.scale_buffer @s : f32 = 1.0 from default
kvcache.cache_group @full page_size 16
kvcache.cache @layer0 of "layers.0.attn" in @full : 2 x 64 x bf16 scales(@s, @s)
kvcache.program @main() {
  kvcache.segment @first {
    // expected-error@+1 {{is not in a 'func.func' of this module, so its buffers cannot become arguments; use 'kvcache.view_cache' here}}
    %c = kvcache.get_cache @layer0 : !kvcache.cache<2 x 64 x bf16>
  }
}
