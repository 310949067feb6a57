// RUN: kvcache-opt %s -convert-kvcache-to-reference -split-input-file -verify-diagnostics -o /dev/null

// A handle without buffers.
kvcache.scale_buffer @s : f32 = 1.0 from default
kvcache.cache_group @full page_size 16
kvcache.cache @layer0 of "layers.0.attn" in @full : 2 x 64 x bf16 scales(@s, @s)
func.func @f(%x: memref<8x2x64xbf16>) {
  %c = kvcache.get_cache @layer0 : !kvcache.cache<2 x 64 x bf16>
  // expected-error@+1 {{needs the buffers of its cache, but its handle comes from 'kvcache.get_cache'; run 'kvcache-caches-to-arguments' first, or use 'kvcache.view_cache'}}
  kvcache.write %x, %x to %c : memref<8x2x64xbf16>, memref<8x2x64xbf16>, !kvcache.cache<2 x 64 x bf16>
  return
}

// -----

func.func @f(%x: memref<8x4x64xbf16>, %c: !kvcache.cache<2 x 64 x bf16>) {
  // expected-error@+1 {{its handle comes from a block argument; make the handle in this function, with 'kvcache.view_cache'}}
  kvcache.paged_attention %x over %c outs(%x) {softmax_scale = 0.125 : f64} : memref<8x4x64xbf16>, !kvcache.cache<2 x 64 x bf16> -> memref<8x4x64xbf16>
  return
}

// -----

// Scales that are not known yet; both ops say so.
// expected-note@+1 {{the scale is declared here}}
kvcache.scale_buffer @k : f32 dynamic
kvcache.scale_buffer @v : f32 = 1.0 from default
kvcache.cache_group @full page_size 16
kvcache.cache @layer0 of "layers.0.attn" in @full : 2 x 64 x f8E4M3FN scales(@k, @v)
func.func @f(%x: memref<8x2x64xbf16>, %q: memref<8x4x64xbf16>, %kp: memref<7x16x2x64xf8E4M3FN>, %table: memref<2x2xi32>,
             %lengths: memref<2xi32>, %start: memref<3xi32>, %slots: memref<8xi64>) {
  %c = kvcache.view_cache @layer0 pages(%kp, %kp) page_table(%table) lengths(%lengths) query_start(%start) slots(%slots)
    : memref<7x16x2x64xf8E4M3FN>, memref<7x16x2x64xf8E4M3FN>, memref<2x2xi32>, memref<2xi32>, memref<3xi32>, memref<8xi64>
    -> !kvcache.cache<2 x 64 x f8E4M3FN>
  // expected-error@+1 {{needs the value of scale @k, whose state is 'dynamic'; run 'kvcache-fold-checkpoint-scales' and 'kvcache-drop-dynamic-scales' first}}
  kvcache.write %x, %x to %c : memref<8x2x64xbf16>, memref<8x2x64xbf16>, !kvcache.cache<2 x 64 x f8E4M3FN>
  // expected-error@+1 {{needs the value of scale @k, whose state is 'dynamic'}}
  kvcache.paged_attention %q over %c outs(%q) {softmax_scale = 0.125 : f64} : memref<8x4x64xbf16>, !kvcache.cache<2 x 64 x f8E4M3FN> -> memref<8x4x64xbf16>
  return
}

// -----

kvcache.scale_buffer @k : f32 = 1.0 from default
// expected-note@+1 {{the scale is declared here}}
kvcache.scale_buffer @v : f32 checkpoint "layers.0.v_scale"
kvcache.cache_group @full page_size 16
kvcache.cache @layer0 of "layers.0.attn" in @full : 2 x 64 x f8E4M3FN scales(@k, @v)
func.func @f(%x: memref<8x2x64xbf16>, %kp: memref<7x16x2x64xf8E4M3FN>, %table: memref<2x2xi32>,
             %lengths: memref<2xi32>, %start: memref<3xi32>, %slots: memref<8xi64>) {
  %c = kvcache.view_cache @layer0 pages(%kp, %kp) page_table(%table) lengths(%lengths) query_start(%start) slots(%slots)
    : memref<7x16x2x64xf8E4M3FN>, memref<7x16x2x64xf8E4M3FN>, memref<2x2xi32>, memref<2xi32>, memref<3xi32>, memref<8xi64>
    -> !kvcache.cache<2 x 64 x f8E4M3FN>
  // expected-error@+1 {{needs the value of scale @v, whose state is 'checkpoint'}}
  kvcache.write %x, %x to %c : memref<8x2x64xbf16>, memref<8x2x64xbf16>, !kvcache.cache<2 x 64 x f8E4M3FN>
  return
}

// -----

kvcache.scale_buffer @k : f32 dynamic
func.func @f() -> f32 {
  // expected-error@+1 {{loads scale @k, whose state is 'dynamic'; run 'kvcache-fold-checkpoint-scales' first}}
  %s = kvcache.load_scale @k : f32
  return %s : f32
}

// -----

// What the model's config knows is missing.
kvcache.scale_buffer @s : f32 = 1.0 from default
kvcache.cache_group @full page_size 16
kvcache.cache @layer0 of "layers.0.attn" in @full : 2 x 64 x bf16 scales(@s, @s)
func.func @f(%q: memref<8x4x64xbf16>, %kp: memref<7x16x2x64xbf16>, %table: memref<2x2xi32>,
             %lengths: memref<2xi32>, %start: memref<3xi32>, %slots: memref<8xi64>) {
  %c = kvcache.view_cache @layer0 pages(%kp, %kp) page_table(%table) lengths(%lengths) query_start(%start) slots(%slots)
    : memref<7x16x2x64xbf16>, memref<7x16x2x64xbf16>, memref<2x2xi32>, memref<2xi32>, memref<3xi32>, memref<8xi64>
    -> !kvcache.cache<2 x 64 x bf16>
  // expected-error@+1 {{has no 'softmax_scale'; run 'kvcache-apply-model-config' with the model's config.json, or give the attribute}}
  kvcache.paged_attention %q over %c outs(%q) : memref<8x4x64xbf16>, !kvcache.cache<2 x 64 x bf16> -> memref<8x4x64xbf16>
  return
}

// -----

kvcache.scale_buffer @s : f32 = 1.0 from default
// expected-note@+1 {{the scale is declared here}}
kvcache.scale_buffer @q : f32 dynamic
kvcache.cache_group @full page_size 16
kvcache.cache @layer0 of "layers.0.attn" in @full : 2 x 64 x bf16 scales(@s, @s)
func.func @f(%q: memref<8x4x64xf8E4M3FN>, %o: memref<8x4x64xbf16>, %kp: memref<7x16x2x64xbf16>, %table: memref<2x2xi32>,
             %lengths: memref<2xi32>, %start: memref<3xi32>, %slots: memref<8xi64>) {
  %c = kvcache.view_cache @layer0 pages(%kp, %kp) page_table(%table) lengths(%lengths) query_start(%start) slots(%slots)
    : memref<7x16x2x64xbf16>, memref<7x16x2x64xbf16>, memref<2x2xi32>, memref<2xi32>, memref<3xi32>, memref<8xi64>
    -> !kvcache.cache<2 x 64 x bf16>
  // expected-error@+1 {{needs the value of scale @q, whose state is 'dynamic'}}
  kvcache.paged_attention %q over %c outs(%o) {q_scale = @q, softmax_scale = 0.125 : f64} : memref<8x4x64xf8E4M3FN>, !kvcache.cache<2 x 64 x bf16> -> memref<8x4x64xbf16>
  return
}

// -----

kvcache.scale_buffer @s : f32 dynamic
kvcache.cache_group @full page_size 16
kvcache.cache @layer0 of "layers.0.attn" in @full : 2 x 64 x bf16 scales(@s, @s)
func.func @f(%x: tensor<?x128xbf16>) {
  %c = kvcache.get_cache @layer0 : !kvcache.cache<2 x 64 x bf16>
  // expected-error@+1 {{estimates scales at run time, which nothing lowers; run 'kvcache-drop-dynamic-scales' first}}
  kvcache.calculate_scales %x, %x, %x for %c : tensor<?x128xbf16>, tensor<?x128xbf16>, tensor<?x128xbf16>, !kvcache.cache<2 x 64 x bf16>
  return
}

// -----

// expected-error@+1 {{has no reference form: programs become kernels; run 'convert-kvcache-to-reference' on functions, before 'kvcache-form-programs'}}
kvcache.program @main(%x: memref<8xf32> {kvcache.name = "x", kvcache.role = #kvcache<role activation>}) {
}

// -----

kvcache.scale_buffer @s : f32 = 1.0 from default
kvcache.cache_group @full page_size 16
kvcache.cache @layer0 of "layers.0.attn" in @full : 2 x 64 x bf16 scales(@s, @s)
func.func @f() -> !kvcache.cache<2 x 64 x bf16> {
  // expected-error@+1 {{is used by 'func.return', which has no reference form; handles cannot leave the function that makes them}}
  %c = kvcache.get_cache @layer0 : !kvcache.cache<2 x 64 x bf16>
  return %c : !kvcache.cache<2 x 64 x bf16>
}
