// RUN: kvcache-opt %s -split-input-file -verify-diagnostics -o /dev/null -kvcache-resolve-cache-types=kv-cache-dtype=fp8

// A handle that leaves the dialect.

kvcache.cache_group @full page_size 16
kvcache.scale_buffer @k : f32 dynamic
kvcache.scale_buffer @v : f32 dynamic
kvcache.cache @layer0 of "model.layers.0.self_attn.attn" in @full : 2 x 64 x bf16 scales(@k, @v)
func.func private @use(!kvcache.cache<2 x 64 x bf16>)
func.func @main() {
  // expected-note @+1 {{the handle is made here}}
  %c = kvcache.get_cache @layer0 : !kvcache.cache<2 x 64 x bf16>
  // expected-error @+1 {{the handle of cache @layer0 becomes '!kvcache.cache<2 x 64 x f8E4M3FN>', but 'func.call' is no cache op, so its types cannot follow; use kvcache.get_cache where the cache is read or written}}
  call @use(%c) : (!kvcache.cache<2 x 64 x bf16>) -> ()
  return
}

// -----

// Buffers that are there already.

kvcache.cache_group @full page_size 16
kvcache.scale_buffer @k : f32 dynamic
kvcache.scale_buffer @v : f32 dynamic
kvcache.cache @layer0 of "model.layers.0.self_attn.attn" in @full : 2 x 64 x bf16 scales(@k, @v)
func.func @view(%kp: memref<7x16x2x64xbf16>, %vp: memref<7x16x2x64xbf16>, %table: memref<2x2xi32>,
                %lengths: memref<2xi32>, %start: memref<3xi32>, %slots: memref<8xi64>) {
  // expected-error @+1 {{the cache @layer0 becomes '!kvcache.cache<2 x 64 x f8E4M3FN>', but its buffers are made for '!kvcache.cache<2 x 64 x bf16>'; run kvcache-resolve-cache-types before buffers are made}}
  %c = kvcache.view_cache @layer0 pages(%kp, %vp) page_table(%table) lengths(%lengths) query_start(%start) slots(%slots)
    : memref<7x16x2x64xbf16>, memref<7x16x2x64xbf16>, memref<2x2xi32>, memref<2xi32>, memref<3xi32>, memref<8xi64>
    -> !kvcache.cache<2 x 64 x bf16>
  return
}
