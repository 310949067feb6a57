// RUN: kvcache-opt %s -kvcache-caches-to-arguments -split-input-file | FileCheck %s
// RUN: kvcache-opt %s -kvcache-caches-to-arguments -kvcache-caches-to-arguments -split-input-file | FileCheck %s

// Two layers of one group: pages of each, tables once. Buffers come behind the
// function's own arguments, in the order of declaration and not of use.
kvcache.scale_buffer @s : f32 = 1.0 from default
kvcache.cache_group @full page_size 16
kvcache.cache @layer0 of "layers.0.attn" in @full : 2 x 64 x f8E4M3FN scales(@s, @s)
kvcache.cache @layer1 of "layers.1.attn" in @full : 2 x 64 x bf16 scales(@s, @s)
// CHECK-LABEL: func.func @two_layers(
// CHECK-SAME: %[[X:[a-z0-9_]+]]: tensor<?x2x64xbf16>,
// CHECK-SAME: %[[K0:[a-z0-9_]+]]: memref<?x16x2x64xf8E4M3FN, strided<[2048, 128, 64, 1], offset: ?>> {kvcache.name = "layer0.k_cache", kvcache.role = #kvcache<role cache>},
// CHECK-SAME: %[[V0:[a-z0-9_]+]]: memref<?x16x2x64xf8E4M3FN, strided<[2048, 128, 64, 1], offset: ?>> {kvcache.name = "layer0.v_cache", kvcache.role = #kvcache<role cache>},
// CHECK-SAME: %[[K1:[a-z0-9_]+]]: memref<?x16x2x64xbf16, strided<[2048, 128, 64, 1], offset: ?>> {kvcache.name = "layer1.k_cache", kvcache.role = #kvcache<role cache>},
// CHECK-SAME: %[[V1:[a-z0-9_]+]]: memref<?x16x2x64xbf16, strided<[2048, 128, 64, 1], offset: ?>> {kvcache.name = "layer1.v_cache", kvcache.role = #kvcache<role cache>},
// CHECK-SAME: %[[TABLE:[a-z0-9_]+]]: memref<?x?xi32> {kvcache.name = "page_table", kvcache.role = #kvcache<role page_table>},
// CHECK-SAME: %[[LENGTHS:[a-z0-9_]+]]: memref<?xi32> {kvcache.name = "lengths", kvcache.role = #kvcache<role lengths>},
// CHECK-SAME: %[[START:[a-z0-9_]+]]: memref<?xi32> {kvcache.name = "query_start", kvcache.role = #kvcache<role query_start>},
// CHECK-SAME: %[[SLOTS:[a-z0-9_]+]]: memref<?xi64> {kvcache.name = "slot_mapping", kvcache.role = #kvcache<role slots>})
func.func @two_layers(%x: tensor<?x2x64xbf16>) {
  // CHECK: %[[C1:[a-z0-9_]+]] = kvcache.view_cache @layer1 pages(%[[K1]], %[[V1]]) page_table(%[[TABLE]]) lengths(%[[LENGTHS]]) query_start(%[[START]]) slots(%[[SLOTS]])
  // CHECK: %[[C0:[a-z0-9_]+]] = kvcache.view_cache @layer0 pages(%[[K0]], %[[V0]]) page_table(%[[TABLE]]) lengths(%[[LENGTHS]]) query_start(%[[START]]) slots(%[[SLOTS]])
  %c1 = kvcache.get_cache @layer1 : !kvcache.cache<2 x 64 x bf16>
  %c0 = kvcache.get_cache @layer0 : !kvcache.cache<2 x 64 x f8E4M3FN>
  // CHECK: kvcache.write %[[X]], %[[X]] to %[[C0]]
  kvcache.write %x, %x to %c0 : tensor<?x2x64xbf16>, tensor<?x2x64xbf16>, !kvcache.cache<2 x 64 x f8E4M3FN>
  // CHECK: kvcache.write %[[X]], %[[X]] to %[[C1]]
  kvcache.write %x, %x to %c1 : tensor<?x2x64xbf16>, tensor<?x2x64xbf16>, !kvcache.cache<2 x 64 x bf16>
  return
}

// -----

// Two groups: tables have the group's name in front. Capacities are sizes;
// layouts are strides.
kvcache.scale_buffer @s : f32 = 1.0 from default
kvcache.cache_group @full page_size 16 {max_pages_per_sequence = 4, max_sequences = 2, max_tokens = 8, num_pages = 7}
kvcache.cache_group @window page_size 32
kvcache.cache @a of "layers.0.attn" in @window : 2 x 64 x f8E4M3FN scales(@s, @s) layout packed
kvcache.cache @b of "layers.1.attn" in @full : 2 x 64 x f8E4M3FN scales(@s, @s) layout hnd
kvcache.cache @unused of "layers.2.attn" in @full : 2 x 64 x f8E4M3FN scales(@s, @s)
// CHECK-LABEL: func.func @two_groups(
// CHECK-SAME: memref<?x32x2x64xf8E4M3FN, strided<[8192, 128, 64, 1], offset: ?>> {kvcache.name = "a.k_cache"
// CHECK-SAME: memref<?x32x2x64xf8E4M3FN, strided<[8192, 128, 64, 1], offset: ?>> {kvcache.name = "a.v_cache"
// CHECK-SAME: memref<7x16x2x64xf8E4M3FN, strided<[2048, 64, 1024, 1], offset: ?>> {kvcache.name = "b.k_cache"
// CHECK-SAME: memref<7x16x2x64xf8E4M3FN, strided<[2048, 64, 1024, 1], offset: ?>> {kvcache.name = "b.v_cache"
// CHECK-SAME: memref<?x?xi32> {kvcache.name = "window.page_table"
// CHECK-SAME: memref<?xi32> {kvcache.name = "window.lengths"
// CHECK-SAME: memref<?xi32> {kvcache.name = "window.query_start"
// CHECK-SAME: memref<?xi64> {kvcache.name = "window.slot_mapping"
// CHECK-SAME: memref<2x4xi32> {kvcache.name = "full.page_table"
// CHECK-SAME: memref<2xi32> {kvcache.name = "full.lengths"
// CHECK-SAME: memref<3xi32> {kvcache.name = "full.query_start"
// CHECK-SAME: memref<8xi64> {kvcache.name = "full.slot_mapping", kvcache.role = #kvcache<role slots>})
func.func @two_groups() -> (!kvcache.cache<2 x 64 x f8E4M3FN>, !kvcache.cache<2 x 64 x f8E4M3FN>) {
  %a = kvcache.get_cache @a : !kvcache.cache<2 x 64 x f8E4M3FN>
  %b = kvcache.get_cache @b : !kvcache.cache<2 x 64 x f8E4M3FN>
  return %a, %b : !kvcache.cache<2 x 64 x f8E4M3FN>, !kvcache.cache<2 x 64 x f8E4M3FN>
}

// -----

// Callers, also indirect ones, take what their callees need and hand it on; a
// function without caches stays as it is.
kvcache.scale_buffer @s : f32 = 1.0 from default
kvcache.cache_group @full page_size 16
kvcache.cache @layer0 of "layers.0.attn" in @full : 2 x 64 x bf16 scales(@s, @s)
kvcache.cache @layer1 of "layers.1.attn" in @full : 2 x 64 x bf16 scales(@s, @s)
// CHECK-LABEL: func.func private @inner(
// CHECK-SAME: "layer1.k_cache"
func.func private @inner(%x: tensor<?x2x64xbf16>) {
  %c = kvcache.get_cache @layer1 : !kvcache.cache<2 x 64 x bf16>
  kvcache.write %x, %x to %c : tensor<?x2x64xbf16>, tensor<?x2x64xbf16>, !kvcache.cache<2 x 64 x bf16>
  return
}
// CHECK-LABEL: func.func private @middle(
// CHECK-SAME: %[[X:[a-z0-9_]+]]: tensor<?x2x64xbf16>, %[[K:[a-z0-9_]+]]: memref<{{.*}}> {kvcache.name = "layer1.k_cache", kvcache.role = #kvcache<role cache>}, %[[V:[a-z0-9_]+]]: memref<{{.*}}> {kvcache.name = "layer1.v_cache", kvcache.role = #kvcache<role cache>}, %[[T:[a-z0-9_]+]]: memref<{{.*}}> {kvcache.name = "page_table", kvcache.role = #kvcache<role page_table>}, %[[L:[a-z0-9_]+]]: memref<{{.*}}> {kvcache.name = "lengths", kvcache.role = #kvcache<role lengths>}, %[[Q:[a-z0-9_]+]]: memref<{{.*}}> {kvcache.name = "query_start", kvcache.role = #kvcache<role query_start>}, %[[S:[a-z0-9_]+]]: memref<?xi64>
func.func private @middle(%x: tensor<?x2x64xbf16>) {
  // CHECK: call @inner(%[[X]], %[[K]], %[[V]], %[[T]], %[[L]], %[[Q]], %[[S]])
  func.call @inner(%x) : (tensor<?x2x64xbf16>) -> ()
  return
}
// CHECK-LABEL: func.func @main(
// CHECK-SAME: %[[X:[a-z0-9_]+]]: tensor<?x2x64xbf16>, %[[K0:[a-z0-9_]+]]: memref<{{.*}}> {kvcache.name = "layer0.k_cache", {{.*}}, %[[V0:[a-z0-9_]+]]: memref<{{.*}}> {kvcache.name = "layer0.v_cache", {{.*}}, %[[K1:[a-z0-9_]+]]: memref<{{.*}}> {kvcache.name = "layer1.k_cache", {{.*}}, %[[V1:[a-z0-9_]+]]: memref<{{.*}}> {kvcache.name = "layer1.v_cache", {{.*}}, %[[T:[a-z0-9_]+]]: memref<{{.*}}> {kvcache.name = "page_table"
func.func @main(%x: tensor<?x2x64xbf16>) {
  %c = kvcache.get_cache @layer0 : !kvcache.cache<2 x 64 x bf16>
  kvcache.write %x, %x to %c : tensor<?x2x64xbf16>, tensor<?x2x64xbf16>, !kvcache.cache<2 x 64 x bf16>
  // CHECK: call @middle(%[[X]], %[[K1]], %[[V1]], %[[T]],
  func.call @middle(%x) : (tensor<?x2x64xbf16>) -> ()
  return
}
// CHECK-LABEL: func.func @elsewhere(
// CHECK-SAME: %{{.*}}: f32) -> f32 {
func.func @elsewhere(%x: f32) -> f32 {
  return %x : f32
}
