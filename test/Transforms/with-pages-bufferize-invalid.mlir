// RUN: kvcache-opt %s -one-shot-bufferize="bufferize-function-boundaries function-boundary-type-conversion=identity-layout-map" -split-input-file -verify-diagnostics -o /dev/null

// The old value is read after it was overwritten.

kvcache.scale_buffer @layer0.k : f32 = 1.250000e-02 from override
kvcache.scale_buffer @layer0.v : f32 = 1.000000e+00 from default
kvcache.cache_group @full page_size 16
kvcache.cache @layer0 of "model.layers.0.self_attn.attn" in @full : 2 x 64 x f8E4M3FN scales(@layer0.k, @layer0.v)
func.func @old_value(%k: tensor<8x2x64xbf16>, %kp: tensor<7x16x2x64xf8E4M3FN>, %vp: tensor<7x16x2x64xf8E4M3FN>, %t: tensor<2x2xi32>, %l: tensor<2xi32>, %s: tensor<3xi32>, %m: tensor<8xi64>)
    -> (tensor<7x16x2x64xf8E4M3FN>, tensor<7x16x2x64xf8E4M3FN>) {
  // expected-error @+1 {{'kvcache.with_pages' of cache @layer0 would need a copy of the pages, operand 1, because their old value is used later; use the result instead}}
  %b:2 = kvcache.with_pages @layer0 pages(%kp, %vp : tensor<7x16x2x64xf8E4M3FN>, tensor<7x16x2x64xf8E4M3FN>)
    page_table(%t : tensor<2x2xi32>) lengths(%l : tensor<2xi32>) query_start(%s : tensor<3xi32>) slots(%m : tensor<8xi64>) -> tensor<7x16x2x64xf8E4M3FN>, tensor<7x16x2x64xf8E4M3FN> {
  ^bb0(%c: !kvcache.cache<2 x 64 x f8E4M3FN>):
    kvcache.write %k, %k to %c : tensor<8x2x64xbf16>, tensor<8x2x64xbf16>, !kvcache.cache<2 x 64 x f8E4M3FN>
  }
  // expected-note @+1 {{it is used here}}
  return %b#0, %vp : tensor<7x16x2x64xf8E4M3FN>, tensor<7x16x2x64xf8E4M3FN>
}

// -----

// One value for keys and values.

kvcache.scale_buffer @layer0.k : f32 = 1.250000e-02 from override
kvcache.scale_buffer @layer0.v : f32 = 1.000000e+00 from default
kvcache.cache_group @full page_size 16
kvcache.cache @layer0 of "model.layers.0.self_attn.attn" in @full : 2 x 64 x f8E4M3FN scales(@layer0.k, @layer0.v)
func.func @twice(%k: tensor<8x2x64xbf16>, %p: tensor<7x16x2x64xf8E4M3FN>, %t: tensor<2x2xi32>, %l: tensor<2xi32>, %s: tensor<3xi32>, %m: tensor<8xi64>)
    -> tensor<7x16x2x64xf8E4M3FN> {
  // expected-error @+1 {{because another operand is the same value}}
  %b:2 = kvcache.with_pages @layer0 pages(%p, %p : tensor<7x16x2x64xf8E4M3FN>, tensor<7x16x2x64xf8E4M3FN>)
    page_table(%t : tensor<2x2xi32>) lengths(%l : tensor<2xi32>) query_start(%s : tensor<3xi32>) slots(%m : tensor<8xi64>) -> tensor<7x16x2x64xf8E4M3FN>, tensor<7x16x2x64xf8E4M3FN> {
  ^bb0(%c: !kvcache.cache<2 x 64 x f8E4M3FN>):
    kvcache.write %k, %k to %c : tensor<8x2x64xbf16>, tensor<8x2x64xbf16>, !kvcache.cache<2 x 64 x f8E4M3FN>
  }
  return %b#0 : tensor<7x16x2x64xf8E4M3FN>
}

// -----

// Memory that nobody may write.

kvcache.scale_buffer @layer0.k : f32 = 1.250000e-02 from override
kvcache.scale_buffer @layer0.v : f32 = 1.000000e+00 from default
kvcache.cache_group @full page_size 16
kvcache.cache @layer0 of "model.layers.0.self_attn.attn" in @full : 2 x 64 x f8E4M3FN scales(@layer0.k, @layer0.v)
func.func @read_only(%k: tensor<8x2x64xbf16>, %kp: tensor<7x16x2x64xf8E4M3FN>, %vp: tensor<7x16x2x64xf8E4M3FN> {bufferization.writable = false}, %t: tensor<2x2xi32>, %l: tensor<2xi32>, %s: tensor<3xi32>, %m: tensor<8xi64>)
    -> tensor<7x16x2x64xf8E4M3FN> {
  // expected-error @+1 {{would need a copy of the pages, operand 1, because nobody may write them where they are: argument 2 of the function is not writable; bufferize function boundaries too (bufferize-function-boundaries), or mark it with bufferization.writable}}
  %b:2 = kvcache.with_pages @layer0 pages(%kp, %vp : tensor<7x16x2x64xf8E4M3FN>, tensor<7x16x2x64xf8E4M3FN>)
    page_table(%t : tensor<2x2xi32>) lengths(%l : tensor<2xi32>) query_start(%s : tensor<3xi32>) slots(%m : tensor<8xi64>) -> tensor<7x16x2x64xf8E4M3FN>, tensor<7x16x2x64xf8E4M3FN> {
  ^bb0(%c: !kvcache.cache<2 x 64 x f8E4M3FN>):
    kvcache.write %k, %k to %c : tensor<8x2x64xbf16>, tensor<8x2x64xbf16>, !kvcache.cache<2 x 64 x f8E4M3FN>
  }
  return %b#0 : tensor<7x16x2x64xf8E4M3FN>
}

// -----

// Another op copies the cache: it writes into an older value.

kvcache.scale_buffer @layer0.k : f32 = 1.250000e-02 from override
kvcache.scale_buffer @layer0.v : f32 = 1.000000e+00 from default
kvcache.cache_group @full page_size 16
kvcache.cache @layer0 of "model.layers.0.self_attn.attn" in @full : 2 x 64 x f8E4M3FN scales(@layer0.k, @layer0.v)
func.func @foreign(%k: tensor<8x2x64xbf16>, %x: f8E4M3FN, %i: index, %kp: tensor<7x16x2x64xf8E4M3FN>, %vp: tensor<7x16x2x64xf8E4M3FN>, %t: tensor<2x2xi32>, %l: tensor<2xi32>, %s: tensor<3xi32>, %m: tensor<8xi64>)
    -> (tensor<7x16x2x64xf8E4M3FN>, tensor<7x16x2x64xf8E4M3FN>, tensor<7x16x2x64xf8E4M3FN>) {
  // expected-error @+1 {{'tensor.insert' would copy the pages of cache @layer0, which may be large; let each value of the pages be used once, by the next op in line}}
  %other = tensor.insert %x into %kp[%i, %i, %i, %i] : tensor<7x16x2x64xf8E4M3FN>
  // expected-note @+1 {{the cache is used here}}
  %b:2 = kvcache.with_pages @layer0 pages(%kp, %vp : tensor<7x16x2x64xf8E4M3FN>, tensor<7x16x2x64xf8E4M3FN>)
    page_table(%t : tensor<2x2xi32>) lengths(%l : tensor<2xi32>) query_start(%s : tensor<3xi32>) slots(%m : tensor<8xi64>) -> tensor<7x16x2x64xf8E4M3FN>, tensor<7x16x2x64xf8E4M3FN> {
  ^bb0(%c: !kvcache.cache<2 x 64 x f8E4M3FN>):
    kvcache.write %k, %k to %c : tensor<8x2x64xbf16>, tensor<8x2x64xbf16>, !kvcache.cache<2 x 64 x f8E4M3FN>
  }
  return %b#0, %b#1, %other : tensor<7x16x2x64xf8E4M3FN>, tensor<7x16x2x64xf8E4M3FN>, tensor<7x16x2x64xf8E4M3FN>
}

// -----

// Strides of no layout.

kvcache.scale_buffer @layer0.k : f32 = 1.250000e-02 from override
kvcache.scale_buffer @layer0.v : f32 = 1.000000e+00 from default
kvcache.cache_group @full page_size 16
kvcache.cache @layer0 of "model.layers.0.self_attn.attn" in @full : 2 x 64 x f8E4M3FN scales(@layer0.k, @layer0.v)
func.func @strides(%k: tensor<8x2x64xbf16>, %kp: tensor<7x16x2x64xf8E4M3FN> {bufferization.buffer_layout = strided<[2048, 1, 1024, 16], offset: ?>}, %vp: tensor<7x16x2x64xf8E4M3FN>, %t: tensor<2x2xi32>, %l: tensor<2xi32>, %s: tensor<3xi32>, %m: tensor<8xi64>) {
  // expected-error @+2 {{pages of cache @layer0 have the strides [2048, 1, 1024, 16], which are those of no layout; expected nhd, hnd, packed, or strides with contiguous rows that do not overlap}}
  // expected-error @+1 {{failed to bufferize op}}
  %b:2 = kvcache.with_pages @layer0 pages(%kp, %vp : tensor<7x16x2x64xf8E4M3FN>, tensor<7x16x2x64xf8E4M3FN>)
    page_table(%t : tensor<2x2xi32>) lengths(%l : tensor<2xi32>) query_start(%s : tensor<3xi32>) slots(%m : tensor<8xi64>) -> tensor<7x16x2x64xf8E4M3FN>, tensor<7x16x2x64xf8E4M3FN> {
  ^bb0(%c: !kvcache.cache<2 x 64 x f8E4M3FN>):
    kvcache.write %k, %k to %c : tensor<8x2x64xbf16>, tensor<8x2x64xbf16>, !kvcache.cache<2 x 64 x f8E4M3FN>
  }
  return
}
