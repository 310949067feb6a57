// RUN: kvcache-opt %s -convert-kvcache-to-reference -split-input-file | FileCheck %s

// What is computed is tested by running it (Integration/reference-semantics);
// here is what must hold of the IR.

// Nothing of the dialect is left, not even an attribute; foreign ops stay.
// CHECK-NOT: #kvcache
// CHECK-NOT: kvcache.{{write|view_cache|scale_buffer|cache|cache_group|role}}
// CHECK-LABEL: func.func @write(
// CHECK-SAME: %[[ROWS:[a-z0-9_]+]]: tensor<?x2x64xbf16>, %[[K:[a-z0-9_]+]]: memref<7x16x2x64xf8E4M3FN>{{.*}}%[[SLOTS:[a-z0-9_]+]]: memref<8xi64> {kvcache.name = "slot_mapping"})
kvcache.scale_buffer @k : f32 = 1.25e-2 from override
kvcache.scale_buffer @v : f32 = 1.0 from default
kvcache.cache_group @full page_size 16
kvcache.cache @layer0 of "layers.0.attn" in @full : 2 x 64 x f8E4M3FN scales(@k, @v)
func.func @write(%x: tensor<?x2x64xbf16>, %kp: memref<7x16x2x64xf8E4M3FN>, %vp: memref<7x16x2x64xf8E4M3FN>, %table: memref<2x2xi32>,
                 %lengths: memref<2xi32>, %start: memref<3xi32>,
                 %slots: memref<8xi64> {kvcache.name = "slot_mapping", kvcache.role = #kvcache<role slots>}) -> tensor<?x2x64xbf16> {
  // CHECK: %[[FOREIGN:[a-z0-9_]+]] = linalg.exp ins(%[[ROWS]]
  %y = linalg.exp ins(%x : tensor<?x2x64xbf16>) outs(%x : tensor<?x2x64xbf16>) -> tensor<?x2x64xbf16>
  %c = kvcache.view_cache @layer0 pages(%kp, %vp) page_table(%table) lengths(%lengths) query_start(%start) slots(%slots)
    : memref<7x16x2x64xf8E4M3FN>, memref<7x16x2x64xf8E4M3FN>, memref<2x2xi32>, memref<2xi32>, memref<3xi32>, memref<8xi64>
    -> !kvcache.cache<2 x 64 x f8E4M3FN>
  // CHECK: bufferization.to_buffer %[[FOREIGN]] read_only
  // CHECK: memref.load %[[SLOTS]]
  // A division, not a product with the reciprocal; the clamp keeps NaN.
  // CHECK: %[[Q:[a-z0-9_]+]] = arith.divf
  // CHECK: %[[EXACT:[a-z0-9_]+]] = arith.extf %[[Q]] : f32 to f64
  // CHECK: %[[LOW:[a-z0-9_]+]] = arith.maximumf %[[EXACT]], %{{.*}} : f64
  // CHECK: %[[CLAMPED:[a-z0-9_]+]] = arith.minimumf %[[LOW]], %{{.*}} : f64
  // CHECK: %[[CODE:[a-z0-9_]+]] = func.call @kvcache.round.f8E4M3FN(%[[CLAMPED]]) : (f64) -> f8E4M3FN
  // CHECK: memref.store %[[CODE]], %[[K]]
  kvcache.write %y, %x to %c : tensor<?x2x64xbf16>, tensor<?x2x64xbf16>, !kvcache.cache<2 x 64 x f8E4M3FN>
  // CHECK: return %[[FOREIGN]]
  return %y : tensor<?x2x64xbf16>
}
// CHECK: func.func private @kvcache.round.f8E4M3FN(%{{.*}}: f64) -> f8E4M3FN
// Two writes of one type share the function.
// CHECK-NOT: func.func private @kvcache.round.f8E4M3FN(

// -----

// Rows of the cache's own type are copied: no conversion, whatever a NaN holds.
// CHECK-LABEL: func.func @copy(
// CHECK-NOT: arith.divf
// CHECK-NOT: arith.extf
// CHECK: %[[X:[a-z0-9_]+]] = memref.load %{{.*}} : memref<8x2x64xbf16>
// CHECK-NEXT: memref.store %[[X]], %{{.*}} : memref<7x16x2x64xbf16>
kvcache.scale_buffer @s : f32 dynamic
kvcache.cache_group @full page_size 16
kvcache.cache @layer0 of "layers.0.attn" in @full : 2 x 64 x bf16 scales(@s, @s)
func.func @copy(%x: memref<8x2x64xbf16>, %kp: memref<7x16x2x64xbf16>, %table: memref<2x2xi32>,
                 %lengths: memref<2xi32>, %start: memref<3xi32>, %slots: memref<8xi64>) {
  %c = kvcache.view_cache @layer0 pages(%kp, %kp) page_table(%table) lengths(%lengths) query_start(%start) slots(%slots)
    : memref<7x16x2x64xbf16>, memref<7x16x2x64xbf16>, memref<2x2xi32>, memref<2xi32>, memref<3xi32>, memref<8xi64>
    -> !kvcache.cache<2 x 64 x bf16>
  kvcache.write %x, %x to %c : memref<8x2x64xbf16>, memref<8x2x64xbf16>, !kvcache.cache<2 x 64 x bf16>
  return
}

// -----

// Tensor outputs are fresh buffers that start as copies; memrefs are written
// in place. The scale of the scores is one product, made at compile time.
// CHECK-LABEL: func.func @attention(
// CHECK-SAME: %[[Q:[a-z0-9_]+]]: tensor<?x4x64xbf16>, %[[OUT:[a-z0-9_]+]]: tensor<?x4x64xbf16>, %[[LSE:[a-z0-9_]+]]: memref<?x4xf32>
kvcache.scale_buffer @k : f32 = 0.5 from override
kvcache.scale_buffer @v : f32 = 1.0 from default
kvcache.cache_group @full page_size 16
kvcache.cache @layer0 of "layers.0.attn" in @full : 2 x 64 x f8E4M3FN scales(@k, @v)
func.func @attention(%q: tensor<?x4x64xbf16>, %out: tensor<?x4x64xbf16>, %lse: memref<?x4xf32>, %kp: memref<7x16x2x64xf8E4M3FN>,
                     %table: memref<2x2xi32>, %lengths: memref<2xi32>, %start: memref<3xi32>, %slots: memref<8xi64>) -> tensor<?x4x64xbf16> {
  %c = kvcache.view_cache @layer0 pages(%kp, %kp) page_table(%table) lengths(%lengths) query_start(%start) slots(%slots)
    : memref<7x16x2x64xf8E4M3FN>, memref<7x16x2x64xf8E4M3FN>, memref<2x2xi32>, memref<2xi32>, memref<3xi32>, memref<8xi64>
    -> !kvcache.cache<2 x 64 x f8E4M3FN>
  // CHECK: %[[OLD:[a-z0-9_]+]] = bufferization.to_buffer %[[OUT]] read_only
  // CHECK: %[[NEW:[a-z0-9_]+]] = memref.alloc(%{{.*}}) : memref<?x4x64xbf16>
  // CHECK: memref.copy %[[OLD]], %[[NEW]]
  // CHECK: arith.constant 6.250000e-02 : f64
  // CHECK: math.exp %{{.*}} : f64
  // CHECK: memref.store %{{.*}}, %[[NEW]]
  // CHECK: memref.store %{{.*}}, %[[LSE]]
  // CHECK: %[[RESULT:[a-z0-9_]+]] = bufferization.to_tensor %[[NEW]] restrict writable
  // CHECK: return %[[RESULT]]
  %o = "kvcache.paged_attention"(%q, %c, %out, %lse) {operandSegmentSizes = array<i32: 1, 1, 1, 1, 0, 0>, softmax_scale = 0.125 : f64}
    : (tensor<?x4x64xbf16>, !kvcache.cache<2 x 64 x f8E4M3FN>, tensor<?x4x64xbf16>, memref<?x4xf32>) -> tensor<?x4x64xbf16>
  return %o : tensor<?x4x64xbf16>
}

// -----

// Scales per head are read from a constant; a loaded scale is one.
// CHECK: memref.global "private" constant @kvcache.scale.k : memref<2xf32> = dense<[5.000000e-01, 2.000000e+00]>
// CHECK-NOT: memref.global
// CHECK-LABEL: func.func @per_head(
kvcache.scale_buffer @k : f32 = [0.5, 2.0] from override
kvcache.scale_buffer @v : f32 = 0.25 from override
kvcache.scale_buffer @loaded : f32 = 0.75 from override
kvcache.cache_group @full page_size 16
kvcache.cache @layer0 of "layers.0.attn" in @full : 2 x 64 x f8E4M3FN scales(@k, @v)
func.func @per_head(%x: memref<8x2x64xbf16>, %kp: memref<7x16x2x64xf8E4M3FN>, %table: memref<2x2xi32>,
                    %lengths: memref<2xi32>, %start: memref<3xi32>, %slots: memref<8xi64>) -> f32 {
  %c = kvcache.view_cache @layer0 pages(%kp, %kp) page_table(%table) lengths(%lengths) query_start(%start) slots(%slots)
    : memref<7x16x2x64xf8E4M3FN>, memref<7x16x2x64xf8E4M3FN>, memref<2x2xi32>, memref<2xi32>, memref<3xi32>, memref<8xi64>
    -> !kvcache.cache<2 x 64 x f8E4M3FN>
  // CHECK: memref.get_global @kvcache.scale.k
  kvcache.write %x, %x to %c : memref<8x2x64xbf16>, memref<8x2x64xbf16>, !kvcache.cache<2 x 64 x f8E4M3FN>
  // CHECK: %[[S:[a-z0-9_]+]] = arith.constant 7.500000e-01 : f32
  // CHECK-NEXT: return %[[S]]
  %s = kvcache.load_scale @loaded : f32
  return %s : f32
}

// -----

// CHECK-LABEL: func.func @elementwise(
// CHECK-SAME: %[[X:[a-z0-9_]+]]: tensor<?x64xbf16>, %[[SCALE:[a-z0-9_]+]]: f32)
func.func @elementwise(%x: tensor<?x64xbf16>, %s: f32) -> tensor<?x64xf16> {
  // The reciprocal is rounded once, outside of the loop.
  // CHECK: %[[R:[a-z0-9_]+]] = arith.divf %{{.*}}, %[[SCALE]] : f32
  // CHECK: %[[CODES:[a-z0-9_]+]] = linalg.generic
  // CHECK: arith.mulf %{{.*}}, %[[R]] : f32
  %y = kvcache.quantize %x by %s : tensor<?x64xbf16> to tensor<?x64xf8E5M2>
  // CHECK: linalg.generic
  // CHECK-SAME: ins(%[[CODES]]
  // CHECK: arith.mulf %{{.*}}, %[[SCALE]] : f32
  %z = kvcache.dequantize %y by %s : tensor<?x64xf8E5M2> to tensor<?x64xf16>
  return %z : tensor<?x64xf16>
}

// -----

// A module without cache ops stays as it is.
// CHECK-LABEL: func.func @untouched(
// CHECK-NEXT: arith.addf
// CHECK-NEXT: return
func.func @untouched(%x: f32) -> f32 {
  %y = arith.addf %x, %x : f32
  return %y : f32
}
