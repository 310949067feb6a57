// RUN: kvcache-opt %s --one-shot-bufferize="bufferize-function-boundaries function-boundary-type-conversion=identity-layout-map" --split-input-file | FileCheck %s
// No cache is ever allocated or copied: pages have rank 4.
// RUN: kvcache-opt %s --one-shot-bufferize="bufferize-function-boundaries function-boundary-type-conversion=identity-layout-map" --split-input-file | FileCheck %s --check-prefix=COPIES
// COPIES-NOT: memref.{{(alloc|copy).*}}memref<7x16x2x64

kvcache.scale_buffer @layer0.k : f32 = 1.250000e-02 from override
kvcache.scale_buffer @layer0.v : f32 = 1.000000e+00 from default
kvcache.cache_group @full page_size 16
kvcache.cache @layer0 of "model.layers.0.self_attn.attn" in @full : 2 x 64 x f8E4M3FN scales(@layer0.k, @layer0.v)

// Everything in place: the output's buffer is the result's.
// CHECK-LABEL: func.func @in_place(
// CHECK-SAME:    %[[Q:[a-z0-9]+]]: memref<?x4x64xbf16>, %[[K:[a-z0-9]+]]: memref<?x2x64xbf16>, %[[V:[a-z0-9]+]]: memref<?x2x64xbf16>, %[[O:[a-z0-9]+]]: memref<?x4x64xbf16>, %[[L:[a-z0-9]+]]: memref<?x4xf32>
// CHECK-NEXT:    %[[C:.*]] = kvcache.get_cache @layer0
// CHECK-NEXT:    kvcache.write %[[K]], %[[V]] to %[[C]] : memref<?x2x64xbf16>, memref<?x2x64xbf16>
// CHECK-NEXT:    kvcache.paged_attention %[[Q]] over %[[C]] outs(%[[O]], %[[L]]) {softmax_scale = 1.250000e-01 : f64}
// CHECK-NEXT:    return %[[O]], %[[L]]
func.func @in_place(%q: tensor<?x4x64xbf16>, %k: tensor<?x2x64xbf16>, %v: tensor<?x2x64xbf16>,
    %out: tensor<?x4x64xbf16>, %l: tensor<?x4xf32>) -> (tensor<?x4x64xbf16>, tensor<?x4xf32>) {
  %c = kvcache.get_cache @layer0 : !kvcache.cache<2 x 64 x f8E4M3FN>
  kvcache.write %k, %v to %c : tensor<?x2x64xbf16>, tensor<?x2x64xbf16>, !kvcache.cache<2 x 64 x f8E4M3FN>
  %o, %lse = kvcache.paged_attention %q over %c outs(%out, %l) {softmax_scale = 1.250000e-01 : f64}
    : tensor<?x4x64xbf16>, !kvcache.cache<2 x 64 x f8E4M3FN> -> tensor<?x4x64xbf16>, tensor<?x4xf32>
  return %o, %lse : tensor<?x4x64xbf16>, tensor<?x4xf32>
}

// Through a call, and with pages that the caller holds.
// CHECK-LABEL: func.func @caller(
// CHECK:         %[[VIEW:.*]] = kvcache.view_cache @layer0
// CHECK-NEXT:    kvcache.write %{{.*}} to %[[VIEW]] : memref<8x2x64xbf16>, memref<8x2x64xbf16>
// CHECK-NEXT:    call @in_place(
// CHECK-NOT:     memref.copy
// CHECK:         return
func.func @caller(%q: tensor<?x4x64xbf16>, %k: tensor<?x2x64xbf16>, %out: tensor<?x4x64xbf16>, %l: tensor<?x4xf32>, %row: tensor<8x2x64xbf16>,
    %pages: memref<7x16x2x64xf8E4M3FN, strided<[2048, 128, 64, 1], offset: ?>>, %table: memref<?x?xi32>, %lengths: memref<?xi32>, %start: memref<?xi32>, %slots: memref<?xi64>) -> tensor<?x4x64xbf16> {
  %c = kvcache.view_cache @layer0 pages(%pages, %pages) page_table(%table) lengths(%lengths) query_start(%start) slots(%slots)
    : memref<7x16x2x64xf8E4M3FN, strided<[2048, 128, 64, 1], offset: ?>>, memref<7x16x2x64xf8E4M3FN, strided<[2048, 128, 64, 1], offset: ?>>,
      memref<?x?xi32>, memref<?xi32>, memref<?xi32>, memref<?xi64> -> !kvcache.cache<2 x 64 x f8E4M3FN>
  kvcache.write %row, %row to %c : tensor<8x2x64xbf16>, tensor<8x2x64xbf16>, !kvcache.cache<2 x 64 x f8E4M3FN>
  %o:2 = call @in_place(%q, %k, %k, %out, %l) : (tensor<?x4x64xbf16>, tensor<?x2x64xbf16>, tensor<?x2x64xbf16>, tensor<?x4x64xbf16>, tensor<?x4xf32>) -> (tensor<?x4x64xbf16>, tensor<?x4xf32>)
  return %o#0 : tensor<?x4x64xbf16>
}

// The old value of `outs` is read afterwards: then, and only then, it is copied.
// CHECK-LABEL: func.func @old_value(
// CHECK-SAME:    %{{[a-z0-9]+}}: memref<8x4x64xbf16>, %[[O:[a-z0-9]+]]: memref<8x4x64xbf16>
// CHECK:         %[[NEW:.*]] = memref.alloc() {{.*}} : memref<8x4x64xbf16>
// CHECK-NEXT:    memref.copy %[[O]], %[[NEW]]
// CHECK:         kvcache.paged_attention %{{.*}} outs(%[[NEW]])
// CHECK-NOT:     memref.copy
// CHECK:         return %[[NEW]], %[[O]]
func.func @old_value(%q: tensor<8x4x64xbf16>, %out: tensor<8x4x64xbf16>) -> (tensor<8x4x64xbf16>, tensor<8x4x64xbf16>) {
  %c = kvcache.get_cache @layer0 : !kvcache.cache<2 x 64 x f8E4M3FN>
  %o = kvcache.paged_attention %q over %c outs(%out) {softmax_scale = 1.250000e-01 : f64}
    : tensor<8x4x64xbf16>, !kvcache.cache<2 x 64 x f8E4M3FN> -> tensor<8x4x64xbf16>
  return %o, %out : tensor<8x4x64xbf16>, tensor<8x4x64xbf16>
}

// A quantization gives a new buffer.
// CHECK-LABEL: func.func @quantize
// CHECK-SAME:    %[[X:[a-z0-9]+]]: memref<?x64xbf16
// CHECK:         %[[Y:.*]] = memref.alloc(%{{.*}}) {{.*}}: memref<?x64xf8E4M3FN>
// CHECK:         kvcache.quantize %[[X]] by %{{.*}} outs(%[[Y]])
// CHECK:         %[[Z:.*]] = memref.alloc(%{{.*}}) {{.*}}: memref<?x64xbf16>
// CHECK:         kvcache.dequantize %[[Y]] by %{{.*}} outs(%[[Z]])
func.func @quantize(%x: tensor<?x64xbf16>, %s: f32) -> tensor<?x64xbf16> {
  %y = kvcache.quantize %x by %s : tensor<?x64xbf16> to tensor<?x64xf8E4M3FN>
  %z = kvcache.dequantize %y by %s : tensor<?x64xf8E4M3FN> to tensor<?x64xbf16>
  return %z : tensor<?x64xbf16>
}

// What `outs` of a merge held is not read, so it is written in place; a partial
// that is also the output is not.
// CHECK-LABEL: func.func @merge(
// CHECK-SAME:    %[[A:[a-z0-9]+]]: memref<8x4x64xbf16>, %[[B:[a-z0-9]+]]: memref<8x4x64xbf16>, %[[L:[a-z0-9]+]]: memref<8x4xf32>, %[[O:[a-z0-9]+]]: memref<8x4x64xbf16>, %[[M:[a-z0-9]+]]: memref<8x4xf32>, %[[P:[a-z0-9]+]]: memref<8x2xi64>
// CHECK-NOT:     memref.copy
// CHECK:         kvcache.copy_pages %[[P]] in %{{.*}} : memref<8x2xi64>
// CHECK-NEXT:    kvcache.merge_states %[[A]], %[[L]] with %[[B]], %[[L]] outs(%[[O]], %[[M]])
// CHECK:         %[[NEW:.*]] = memref.alloc() {{.*}} : memref<8x4x64xbf16>
// CHECK:         %[[LSE:.*]] = memref.alloc() {{.*}} : memref<8x4xf32>
// CHECK-NOT:     memref.copy
// CHECK:         kvcache.merge_states %[[O]], %[[M]] with %[[B]], %[[L]] outs(%[[NEW]], %[[LSE]])
// CHECK:         return %[[NEW]], %[[LSE]]
func.func @merge(%a: tensor<8x4x64xbf16>, %b: tensor<8x4x64xbf16>, %l: tensor<8x4xf32>, %out: tensor<8x4x64xbf16>, %m: tensor<8x4xf32>, %p: tensor<8x2xi64>)
    -> (tensor<8x4x64xbf16>, tensor<8x4xf32>) {
  %c = kvcache.get_cache @layer0 : !kvcache.cache<2 x 64 x f8E4M3FN>
  kvcache.copy_pages %p in %c : tensor<8x2xi64>, !kvcache.cache<2 x 64 x f8E4M3FN>
  %x, %y = kvcache.merge_states %a, %l with %b, %l outs(%out, %m) : tensor<8x4x64xbf16>, tensor<8x4xf32> -> tensor<8x4x64xbf16>, tensor<8x4xf32>
  %z, %w = kvcache.merge_states %x, %y with %b, %l outs(%x, %y) : tensor<8x4x64xbf16>, tensor<8x4xf32> -> tensor<8x4x64xbf16>, tensor<8x4xf32>
  return %z, %w : tensor<8x4x64xbf16>, tensor<8x4xf32>
}
