// RUN: kvcache-opt %s --split-input-file --verify-diagnostics --kvcache-form-programs

kvcache.scale_buffer @layer0.k : f32 = 1.0 from default
kvcache.scale_buffer @layer0.v : f32 = 1.0 from default
kvcache.cache_group @full page_size 16
kvcache.cache @layer0 of "model.layers.0.self_attn.attn" in @full : 2 x 64 x f8E4M3FN scales(@layer0.k, @layer0.v)
func.func @nested(%k: tensor<8x2x64xbf16>, %n: index) {
  %c = kvcache.get_cache @layer0 : !kvcache.cache<2 x 64 x f8E4M3FN>
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  scf.for %i = %c0 to %n step %c1 {
    // expected-error @below {{'kvcache.write' is nested in a 'scf.for'; a program holds straight-line code only}}
    kvcache.write %k, %k to %c : tensor<8x2x64xbf16>, tensor<8x2x64xbf16>, !kvcache.cache<2 x 64 x f8E4M3FN>
  }
  return
}

// -----

kvcache.scale_buffer @layer0.k : f32 = 1.0 from default
kvcache.scale_buffer @layer0.v : f32 = 1.0 from default
kvcache.cache_group @full page_size 16
kvcache.cache @layer0 of "model.layers.0.self_attn.attn" in @full : 2 x 64 x f8E4M3FN scales(@layer0.k, @layer0.v)
// expected-error @below {{cannot form a program: 'blocks' has several blocks}}
func.func @blocks(%k: tensor<8x2x64xbf16>, %b: i1) {
  %c = kvcache.get_cache @layer0 : !kvcache.cache<2 x 64 x f8E4M3FN>
  cf.cond_br %b, ^one, ^two
^one:
  kvcache.write %k, %k to %c : tensor<8x2x64xbf16>, tensor<8x2x64xbf16>, !kvcache.cache<2 x 64 x f8E4M3FN>
  return
^two:
  return
}

// -----

func.func @handle(%k: tensor<8x2x64xbf16>, %c: !kvcache.cache<2 x 64 x f8E4M3FN>) {
  // expected-error @below {{the cache handle is not the result of 'kvcache.get_cache' or 'kvcache.view_cache'}}
  kvcache.write %k, %k to %c : tensor<8x2x64xbf16>, tensor<8x2x64xbf16>, !kvcache.cache<2 x 64 x f8E4M3FN>
  return
}

// -----

kvcache.scale_buffer @layer0.k : f32 dynamic
kvcache.scale_buffer @layer0.v : f32 dynamic
kvcache.cache_group @full page_size 16
kvcache.cache @layer0 of "model.layers.0.self_attn.attn" in @full : 2 x 64 x f8E4M3FN scales(@layer0.k, @layer0.v)
func.func @dynamic(%q: tensor<8x256xbf16>, %k: tensor<8x128xbf16>) {
  %c = kvcache.get_cache @layer0 : !kvcache.cache<2 x 64 x f8E4M3FN>
  // expected-error @below {{'kvcache.calculate_scales' cannot be part of a program; run 'kvcache-drop-dynamic-scales' first}}
  kvcache.calculate_scales %q, %k, %k for %c : tensor<8x256xbf16>, tensor<8x128xbf16>, tensor<8x128xbf16>, !kvcache.cache<2 x 64 x f8E4M3FN>
  return
}

// -----

kvcache.scale_buffer @layer0.k : f32 = 1.0 from default
kvcache.scale_buffer @layer0.v : f32 = 1.0 from default
kvcache.cache_group @full page_size 16
kvcache.cache @layer0 of "model.layers.0.self_attn.attn" in @full : 2 x 64 x f8E4M3FN scales(@layer0.k, @layer0.v)
func.func @strided(%k: memref<8x2x64xbf16, strided<[256, 64, 1]>>) {
  %c = kvcache.get_cache @layer0 : !kvcache.cache<2 x 64 x f8E4M3FN>
  // expected-error @below {{operand 0 of 'kvcache.write' has the layout of 'memref<8x2x64xbf16, strided<[256, 64, 1]>>'; a program takes contiguous activations: copy it first}}
  kvcache.write %k, %k to %c : memref<8x2x64xbf16, strided<[256, 64, 1]>>, memref<8x2x64xbf16, strided<[256, 64, 1]>>, !kvcache.cache<2 x 64 x f8E4M3FN>
  return
}

// -----

kvcache.scale_buffer @layer0.k : f32 = 1.0 from default
kvcache.scale_buffer @layer0.v : f32 = 1.0 from default
kvcache.cache_group @full page_size 16
kvcache.cache @layer0 of "model.layers.0.self_attn.attn" in @full : 2 x 64 x f8E4M3FN scales(@layer0.k, @layer0.v)
func.func private @kvcache.taken()
// expected-error @below {{cannot form a program: the symbol @kvcache.taken is taken; rename it}}
func.func @taken(%k: tensor<8x2x64xbf16>) {
  %c = kvcache.get_cache @layer0 : !kvcache.cache<2 x 64 x f8E4M3FN>
  kvcache.write %k, %k to %c : tensor<8x2x64xbf16>, tensor<8x2x64xbf16>, !kvcache.cache<2 x 64 x f8E4M3FN>
  return
}

// -----

kvcache.scale_buffer @layer0.k : f32 = 1.0 from default
kvcache.scale_buffer @layer0.v : f32 = 1.0 from default
kvcache.cache_group @full page_size 16
kvcache.cache @layer0 of "model.layers.0.self_attn.attn" in @full : 2 x 64 x f8E4M3FN scales(@layer0.k, @layer0.v)
func.func private @kvcache.taken.layer0()
// expected-error @below {{cannot form a program: the symbol @kvcache.taken.layer0 is taken; rename it}}
func.func @taken(%k: tensor<8x2x64xbf16>) {
  %c = kvcache.get_cache @layer0 : !kvcache.cache<2 x 64 x f8E4M3FN>
  kvcache.write %k, %k to %c : tensor<8x2x64xbf16>, tensor<8x2x64xbf16>, !kvcache.cache<2 x 64 x f8E4M3FN>
  return
}
