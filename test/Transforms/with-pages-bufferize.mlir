// RUN: kvcache-opt %s -one-shot-bufferize="bufferize-function-boundaries function-boundary-type-conversion=identity-layout-map" -split-input-file | FileCheck %s
// No page is ever allocated or copied: pages have rank 4.
// RUN: kvcache-opt %s -one-shot-bufferize="bufferize-function-boundaries function-boundary-type-conversion=identity-layout-map" -split-input-file > %t
// RUN: grep -c 'kvcache.view_cache' %t | FileCheck %s --check-prefix=VIEWS
// RUN: not grep -E 'memref\.(alloc|copy).*memref<[0-9?]+x16x2x64' %t
// VIEWS: 8

// Written and read in place, in one op and in two: the buffers of the arguments
// are those of the results, so the function returns what it was given.

// CHECK-LABEL: func.func @step(
// CHECK-SAME: %[[Q:[a-z0-9]+]]: memref<8x4x64xbf16>, %[[K:[a-z0-9]+]]: memref<8x2x64xbf16>, %[[OUT:[a-z0-9]+]]: memref<8x4x64xbf16>, %[[KP:[a-z0-9]+]]: memref<7x16x2x64xf8E4M3FN>, %[[VP:[a-z0-9]+]]: memref<7x16x2x64xf8E4M3FN>, %[[T:[a-z0-9]+]]: memref<2x2xi32>
// CHECK: %[[C:.*]] = kvcache.view_cache @layer0 pages(%[[KP]], %[[VP]]) page_table(%[[T]])
// CHECK-NEXT: kvcache.write %[[K]], %[[K]] to %[[C]]
// CHECK-NEXT: kvcache.paged_attention %[[Q]] over %[[C]] outs(%[[OUT]])
// CHECK: %[[D:.*]] = kvcache.view_cache @layer0 pages(%[[KP]], %[[VP]])
// CHECK-NEXT: kvcache.write %[[K]], %[[K]] to %[[D]]
// CHECK-NOT: with_pages
// CHECK: return %[[KP]], %[[VP]], %[[OUT]]
// CHECK-LABEL: func.func @loop(
// CHECK: scf.for {{.*}} {
// CHECK: func.call @step(
// CHECK-NOT: memref.copy %{{.*}} : memref<7x16
// CHECK: return
kvcache.scale_buffer @layer0.k : f32 = 1.250000e-02 from override
kvcache.scale_buffer @layer0.v : f32 = 1.000000e+00 from default
kvcache.cache_group @full page_size 16
kvcache.cache @layer0 of "model.layers.0.self_attn.attn" in @full : 2 x 64 x f8E4M3FN scales(@layer0.k, @layer0.v)
func.func @step(%q: tensor<8x4x64xbf16>, %k: tensor<8x2x64xbf16>, %out: tensor<8x4x64xbf16>, %kp: tensor<7x16x2x64xf8E4M3FN>, %vp: tensor<7x16x2x64xf8E4M3FN>, %t: tensor<2x2xi32>, %l: tensor<2xi32>, %s: tensor<3xi32>, %m: tensor<8xi64>)
    -> (tensor<7x16x2x64xf8E4M3FN>, tensor<7x16x2x64xf8E4M3FN>, tensor<8x4x64xbf16>) {
  %a:3 = kvcache.with_pages @layer0 pages(%kp, %vp : tensor<7x16x2x64xf8E4M3FN>, tensor<7x16x2x64xf8E4M3FN>)
    page_table(%t : tensor<2x2xi32>) lengths(%l : tensor<2xi32>) query_start(%s : tensor<3xi32>) slots(%m : tensor<8xi64>) -> tensor<7x16x2x64xf8E4M3FN>, tensor<7x16x2x64xf8E4M3FN>, tensor<8x4x64xbf16> {
  ^bb0(%c: !kvcache.cache<2 x 64 x f8E4M3FN>):
    kvcache.write %k, %k to %c : tensor<8x2x64xbf16>, tensor<8x2x64xbf16>, !kvcache.cache<2 x 64 x f8E4M3FN>
    %o = kvcache.paged_attention %q over %c outs(%out) {softmax_scale = 1.250000e-01 : f64} : tensor<8x4x64xbf16>, !kvcache.cache<2 x 64 x f8E4M3FN> -> tensor<8x4x64xbf16>
    kvcache.yield %o : tensor<8x4x64xbf16>
  }
  %b:2 = kvcache.with_pages @layer0 pages(%a#0, %a#1 : tensor<7x16x2x64xf8E4M3FN>, tensor<7x16x2x64xf8E4M3FN>)
    page_table(%t : tensor<2x2xi32>) lengths(%l : tensor<2xi32>) query_start(%s : tensor<3xi32>) slots(%m : tensor<8xi64>) -> tensor<7x16x2x64xf8E4M3FN>, tensor<7x16x2x64xf8E4M3FN> {
  ^bb0(%c: !kvcache.cache<2 x 64 x f8E4M3FN>):
    kvcache.write %k, %k to %c : tensor<8x2x64xbf16>, tensor<8x2x64xbf16>, !kvcache.cache<2 x 64 x f8E4M3FN>
    kvcache.yield
  }
  return %b#0, %b#1, %a#2 : tensor<7x16x2x64xf8E4M3FN>, tensor<7x16x2x64xf8E4M3FN>, tensor<8x4x64xbf16>
}

// Through a loop and calls.
func.func @loop(%n: index, %q: tensor<8x4x64xbf16>, %k: tensor<8x2x64xbf16>, %out: tensor<8x4x64xbf16>, %kp: tensor<7x16x2x64xf8E4M3FN>, %vp: tensor<7x16x2x64xf8E4M3FN>, %t: tensor<2x2xi32>, %l: tensor<2xi32>, %s: tensor<3xi32>, %m: tensor<8xi64>)
    -> (tensor<7x16x2x64xf8E4M3FN>, tensor<7x16x2x64xf8E4M3FN>, tensor<8x4x64xbf16>) {
  %zero = arith.constant 0 : index
  %one = arith.constant 1 : index
  %r:3 = scf.for %i = %zero to %n step %one iter_args(%a = %kp, %b = %vp, %o = %out) -> (tensor<7x16x2x64xf8E4M3FN>, tensor<7x16x2x64xf8E4M3FN>, tensor<8x4x64xbf16>) {
    %x:3 = func.call @step(%q, %k, %o, %a, %b, %t, %l, %s, %m) : (tensor<8x4x64xbf16>, tensor<8x2x64xbf16>, tensor<8x4x64xbf16>, tensor<7x16x2x64xf8E4M3FN>, tensor<7x16x2x64xf8E4M3FN>, tensor<2x2xi32>, tensor<2xi32>, tensor<3xi32>, tensor<8xi64>) -> (tensor<7x16x2x64xf8E4M3FN>, tensor<7x16x2x64xf8E4M3FN>, tensor<8x4x64xbf16>)
    scf.yield %x#0, %x#1, %x#2 : tensor<7x16x2x64xf8E4M3FN>, tensor<7x16x2x64xf8E4M3FN>, tensor<8x4x64xbf16>
  }
  return %r#0, %r#1, %r#2 : tensor<7x16x2x64xf8E4M3FN>, tensor<7x16x2x64xf8E4M3FN>, tensor<8x4x64xbf16>
}

// -----

// Two readers of one value.

// CHECK-LABEL: func.func @readers(
// CHECK: kvcache.view_cache
// CHECK-NEXT: kvcache.paged_attention
// CHECK: kvcache.view_cache
// CHECK-NEXT: kvcache.paged_attention
kvcache.scale_buffer @layer0.k : f32 = 1.250000e-02 from override
kvcache.scale_buffer @layer0.v : f32 = 1.000000e+00 from default
kvcache.cache_group @full page_size 16
kvcache.cache @layer0 of "model.layers.0.self_attn.attn" in @full : 2 x 64 x f8E4M3FN scales(@layer0.k, @layer0.v)
func.func @readers(%q: tensor<8x4x64xbf16>, %out: tensor<8x4x64xbf16>, %out2: tensor<8x4x64xbf16>, %kp: tensor<7x16x2x64xf8E4M3FN>, %vp: tensor<7x16x2x64xf8E4M3FN>, %t: tensor<2x2xi32>, %l: tensor<2xi32>, %s: tensor<3xi32>, %m: tensor<8xi64>)
    -> (tensor<8x4x64xbf16>, tensor<8x4x64xbf16>) {
  %a:3 = kvcache.with_pages @layer0 pages(%kp, %vp : tensor<7x16x2x64xf8E4M3FN>, tensor<7x16x2x64xf8E4M3FN>)
    page_table(%t : tensor<2x2xi32>) lengths(%l : tensor<2xi32>) query_start(%s : tensor<3xi32>) slots(%m : tensor<8xi64>) -> tensor<7x16x2x64xf8E4M3FN>, tensor<7x16x2x64xf8E4M3FN>, tensor<8x4x64xbf16> {
  ^bb0(%c: !kvcache.cache<2 x 64 x f8E4M3FN>):
    %o = kvcache.paged_attention %q over %c outs(%out) {softmax_scale = 1.250000e-01 : f64} : tensor<8x4x64xbf16>, !kvcache.cache<2 x 64 x f8E4M3FN> -> tensor<8x4x64xbf16>
    kvcache.yield %o : tensor<8x4x64xbf16>
  }
  %b:3 = kvcache.with_pages @layer0 pages(%kp, %vp : tensor<7x16x2x64xf8E4M3FN>, tensor<7x16x2x64xf8E4M3FN>)
    page_table(%t : tensor<2x2xi32>) lengths(%l : tensor<2xi32>) query_start(%s : tensor<3xi32>) slots(%m : tensor<8xi64>) -> tensor<7x16x2x64xf8E4M3FN>, tensor<7x16x2x64xf8E4M3FN>, tensor<8x4x64xbf16> {
  ^bb0(%c: !kvcache.cache<2 x 64 x f8E4M3FN>):
    %o = kvcache.paged_attention %q over %c outs(%out2) {softmax_scale = 1.250000e-01 : f64, window = 3 : i64} : tensor<8x4x64xbf16>, !kvcache.cache<2 x 64 x f8E4M3FN> -> tensor<8x4x64xbf16>
    kvcache.yield %o : tensor<8x4x64xbf16>
  }
  return %a#2, %b#2 : tensor<8x4x64xbf16>, tensor<8x4x64xbf16>
}

// -----

// The strides that the caller declares are the layout, here HND.

// CHECK-LABEL: kvcache.cache @layer0
// CHECK-SAME: layout hnd
// CHECK: func.func @hnd(
// CHECK-SAME: memref<7x16x2x64xf8E4M3FN, strided<[2048, 64, 1024, 1], offset: ?>>
// CHECK: kvcache.view_cache @layer0 {{.*}} memref<7x16x2x64xf8E4M3FN, strided<[2048, 64, 1024, 1], offset: ?>>
kvcache.scale_buffer @layer0.k : f32 = 1.250000e-02 from override
kvcache.scale_buffer @layer0.v : f32 = 1.000000e+00 from default
kvcache.cache_group @full page_size 16
kvcache.cache @layer0 of "model.layers.0.self_attn.attn" in @full : 2 x 64 x f8E4M3FN scales(@layer0.k, @layer0.v)
func.func @hnd(%k: tensor<8x2x64xbf16>, %kp: tensor<7x16x2x64xf8E4M3FN> {bufferization.buffer_layout = strided<[2048, 64, 1024, 1], offset: ?>}, %vp: tensor<7x16x2x64xf8E4M3FN> {bufferization.buffer_layout = strided<[2048, 64, 1024, 1], offset: ?>}, %t: tensor<2x2xi32>, %l: tensor<2xi32>, %s: tensor<3xi32>, %m: tensor<8xi64>) {
  %b:2 = kvcache.with_pages @layer0 pages(%kp, %vp : tensor<7x16x2x64xf8E4M3FN>, tensor<7x16x2x64xf8E4M3FN>)
    page_table(%t : tensor<2x2xi32>) lengths(%l : tensor<2xi32>) query_start(%s : tensor<3xi32>) slots(%m : tensor<8xi64>) -> tensor<7x16x2x64xf8E4M3FN>, tensor<7x16x2x64xf8E4M3FN> {
  ^bb0(%c: !kvcache.cache<2 x 64 x f8E4M3FN>):
    kvcache.write %k, %k to %c : tensor<8x2x64xbf16>, tensor<8x2x64xbf16>, !kvcache.cache<2 x 64 x f8E4M3FN>
  }
  return
}

// -----

// And packed: K and V halves of one buffer.

// CHECK-LABEL: kvcache.cache @layer0
// CHECK-SAME: layout packed
kvcache.scale_buffer @layer0.k : f32 = 1.250000e-02 from override
kvcache.scale_buffer @layer0.v : f32 = 1.000000e+00 from default
kvcache.cache_group @full page_size 16
kvcache.cache @layer0 of "model.layers.0.self_attn.attn" in @full : 2 x 64 x f8E4M3FN scales(@layer0.k, @layer0.v)
func.func @packed(%k: tensor<8x2x64xbf16>, %kp: tensor<7x16x2x64xf8E4M3FN> {bufferization.buffer_layout = strided<[4096, 128, 64, 1], offset: ?>}, %vp: tensor<7x16x2x64xf8E4M3FN> {bufferization.buffer_layout = strided<[4096, 128, 64, 1], offset: ?>}, %t: tensor<2x2xi32>, %l: tensor<2xi32>, %s: tensor<3xi32>, %m: tensor<8xi64>) {
  %b:2 = kvcache.with_pages @layer0 pages(%kp, %vp : tensor<7x16x2x64xf8E4M3FN>, tensor<7x16x2x64xf8E4M3FN>)
    page_table(%t : tensor<2x2xi32>) lengths(%l : tensor<2xi32>) query_start(%s : tensor<3xi32>) slots(%m : tensor<8xi64>) -> tensor<7x16x2x64xf8E4M3FN>, tensor<7x16x2x64xf8E4M3FN> {
  ^bb0(%c: !kvcache.cache<2 x 64 x f8E4M3FN>):
    kvcache.write %k, %k to %c : tensor<8x2x64xbf16>, tensor<8x2x64xbf16>, !kvcache.cache<2 x 64 x f8E4M3FN>
  }
  return
}

// -----

// Strides of no other layout, with gaps, are one of their own.

// CHECK-LABEL: kvcache.cache @layer0
// CHECK-SAME: layout strides [2592, 160, 80]{{$}}
// CHECK: func.func @padded(
// CHECK: kvcache.view_cache @layer0 {{.*}} memref<7x16x2x64xf8E4M3FN, strided<[2592, 160, 80, 1], offset: ?>>
kvcache.scale_buffer @layer0.k : f32 = 1.250000e-02 from override
kvcache.scale_buffer @layer0.v : f32 = 1.000000e+00 from default
kvcache.cache_group @full page_size 16
kvcache.cache @layer0 of "model.layers.0.self_attn.attn" in @full : 2 x 64 x f8E4M3FN scales(@layer0.k, @layer0.v)
func.func @padded(%k: tensor<8x2x64xbf16>, %kp: tensor<7x16x2x64xf8E4M3FN> {bufferization.buffer_layout = strided<[2592, 160, 80, 1], offset: ?>}, %vp: tensor<7x16x2x64xf8E4M3FN> {bufferization.buffer_layout = strided<[2592, 160, 80, 1], offset: ?>}, %t: tensor<2x2xi32>, %l: tensor<2xi32>, %s: tensor<3xi32>, %m: tensor<8xi64>) {
  %b:2 = kvcache.with_pages @layer0 pages(%kp, %vp : tensor<7x16x2x64xf8E4M3FN>, tensor<7x16x2x64xf8E4M3FN>)
    page_table(%t : tensor<2x2xi32>) lengths(%l : tensor<2xi32>) query_start(%s : tensor<3xi32>) slots(%m : tensor<8xi64>) -> tensor<7x16x2x64xf8E4M3FN>, tensor<7x16x2x64xf8E4M3FN> {
  ^bb0(%c: !kvcache.cache<2 x 64 x f8E4M3FN>):
    kvcache.write %k, %k to %c : tensor<8x2x64xbf16>, tensor<8x2x64xbf16>, !kvcache.cache<2 x 64 x f8E4M3FN>
  }
  return
}

// -----

// The declaration follows the caller, also where it said something else.

// CHECK-LABEL: kvcache.cache @layer0
// CHECK-SAME: scales(@layer0.k, @layer0.v){{$}}
kvcache.scale_buffer @layer0.k : f32 = 1.250000e-02 from override
kvcache.scale_buffer @layer0.v : f32 = 1.000000e+00 from default
kvcache.cache_group @full page_size 16
kvcache.cache @layer0 of "model.layers.0.self_attn.attn" in @full : 2 x 64 x f8E4M3FN scales(@layer0.k, @layer0.v) layout strides [2592, 160, 80]
func.func @plain(%k: tensor<8x2x64xbf16>, %kp: tensor<7x16x2x64xf8E4M3FN>, %vp: tensor<7x16x2x64xf8E4M3FN>, %t: tensor<2x2xi32>, %l: tensor<2xi32>, %s: tensor<3xi32>, %m: tensor<8xi64>) {
  %b:2 = kvcache.with_pages @layer0 pages(%kp, %vp : tensor<7x16x2x64xf8E4M3FN>, tensor<7x16x2x64xf8E4M3FN>)
    page_table(%t : tensor<2x2xi32>) lengths(%l : tensor<2xi32>) query_start(%s : tensor<3xi32>) slots(%m : tensor<8xi64>) -> tensor<7x16x2x64xf8E4M3FN>, tensor<7x16x2x64xf8E4M3FN> {
  ^bb0(%c: !kvcache.cache<2 x 64 x f8E4M3FN>):
    kvcache.write %k, %k to %c : tensor<8x2x64xbf16>, tensor<8x2x64xbf16>, !kvcache.cache<2 x 64 x f8E4M3FN>
  }
  return
}
