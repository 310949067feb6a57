// RUN: kvcache-opt %s -split-input-file -verify-diagnostics -o /dev/null -kvcache-partition-caches

// Functions that split a cache differently.

kvcache.scale_buffer @k : f32 dynamic
kvcache.scale_buffer @v : f32 dynamic
kvcache.cache_group @full page_size 16
kvcache.cache @c of "layer" in @full : 4 x 64 x bf16 scales(@k, @v)
func.func @two() {
  // expected-note @+1 {{the other handle is here}}
  %c = kvcache.get_cache @c shards 2 : !kvcache.cache<2 x 64 x bf16>
  return
}
func.func @four() {
  // expected-error @+1 {{is one of 4 shards of @c, but another handle is one of 2; partition all functions that use the cache in the same way}}
  %c = kvcache.get_cache @c shards 4 : !kvcache.cache<1 x 64 x bf16>
  return
}

// -----

// A scale of all heads has no value that every rank could use.

// expected-note @+1 {{the scale is declared here}}
kvcache.scale_buffer @k : f32 = [1.0, 2.0] from override
kvcache.scale_buffer @v : f32 dynamic
kvcache.cache_group @full page_size 16
// expected-error @+1 {{is split into 2 shards, but the scale @k has the values of all KV heads; run kvcache-fold-checkpoint-scales behind this pass, for each rank with tp-size and tp-rank}}
kvcache.cache @c of "layer" in @full : 2 x 64 x f8E4M3FN scales(@k, @v)
func.func @main() {
  %c = kvcache.get_cache @c shards 2 : !kvcache.cache<1 x 64 x f8E4M3FN>
  return
}
