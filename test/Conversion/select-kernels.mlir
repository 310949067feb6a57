// RUN: kvcache-opt %s --split-input-file --kvcache-select-kernels=target=sm_90 2>/dev/null | FileCheck %s
// RUN: kvcache-opt %s --split-input-file --kvcache-select-kernels=target=sm_80 2>/dev/null | FileCheck %s --check-prefix=SM80
// RUN: kvcache-opt %s --split-input-file --kvcache-select-kernels=target=sm_90 --kvcache-select-kernels=target=sm_90 2>/dev/null | FileCheck %s
// RUN: kvcache-opt %s --split-input-file --kvcache-select-kernels=target=sm_90 --verify-diagnostics -o /dev/null

// Scales become launch constants: 0.125 * 0.0123 * log2(e) rounded once, and
// layers that differ only in values share a kernel. Grids come from capacities:
// 8 tokens of 2 sequences are blocks of 4 rows that share the loads of K and V.

kvcache.scale_buffer @layer0.k : f32 = 1.230000e-02 from checkpoint "l0.k_scale"
kvcache.scale_buffer @layer0.v : f32 = 3.450000e-02 from checkpoint "l0.v_scale"
kvcache.scale_buffer @layer1.k : f32 = 2.460000e-02 from checkpoint "l1.k_scale"
kvcache.scale_buffer @layer1.v : f32 = 6.900000e-02 from checkpoint "l1.v_scale"
kvcache.cache_group @full page_size 16 {max_pages_per_sequence = 64 : i64, max_sequences = 2 : i64, max_tokens = 8 : i64, num_pages = 70 : i64}
kvcache.cache @layer0 of "l0" in @full : 2 x 64 x f8E4M3FN scales(@layer0.k, @layer0.v)
kvcache.cache @layer1 of "l1" in @full : 2 x 64 x f8E4M3FN scales(@layer1.k, @layer1.v)

// CHECK-LABEL: kvcache.program @kvcache.main
// One pair of workspaces for both layers.
// CHECK-SAME:    %[[PARTIALS:[a-z0-9]+]]: memref<{{[0-9]+}}xf32> {kvcache.name = "workspace.[[ATTENTION:paged_attention_bf16_e4m3_h4x2_d64_p16_[0-9a-f]+]].partials", kvcache.role = #kvcache<role workspace>}
// CHECK-SAME:    %[[COUNTERS:[a-z0-9]+]]: memref<8xi32> {kvcache.name = "workspace.[[ATTENTION]].counters", kvcache.role = #kvcache<role workspace>})
// CHECK:         kvcache.segment @layer0 {
// CHECK-NEXT:      kvcache.launch @[[WRITE:write_bf16_e4m3_h2_d64_p16_[0-9a-f]+]] of "kvcache_write" grid [1, 1, 1] block [128, 1, 1] shared 0
// CHECK-SAME:        constants [1.230000e-02 : f32, 3.450000e-02 : f32, 8 : i32, 1120] origins ["k_scale", "v_scale", "max_tokens", "num_pages * page_size"]
// CHECK-SAME:        structure [90 : i32, 1 : i32, 0 : i32, 2 : i32, 64 : i32, 16 : i32, 2048, 128 : i32, 64 : i32, 2048, 128 : i32, 64 : i32, 0 : i32, 0 : i32, 0 : i32, 0 : i32, 0 : i32, 0 : i32] layer "layer0"
// CHECK-NEXT:      kvcache.launch @[[ATTENTION]] of "kvcache_paged_attention" grid [2, 4, {{[0-9]+}}] block [128, 1, 1] shared {{[0-9]+}}
// CHECK-SAME:        %[[PARTIALS]], %[[COUNTERS]] :
// CHECK-SAME:        constants [0.00221{{[0-9]+}} : f32, 3.450000e-02 : f32, 0.000000e+00 : f32, 8 : i32, 2 : i32, 64 : i32, 0 : i32]
// CHECK-SAME:        origins ["softmax_scale * k_scale * log2(e)", "v_scale", "no soft_cap", "max_tokens", "max_sequences", "max_pages_per_sequence", "no window"]
// CHECK-SAME:        structure [90 : i32, 1 : i32, 1 : i32, 0 : i32, 4 : i32, 2 : i32, 64 : i32, 16 : i32,
// CHECK:         kvcache.segment @layer1 {
// CHECK-NEXT:      kvcache.launch @[[WRITE]] of
// CHECK-SAME:        constants [2.460000e-02 : f32, 6.900000e-02 : f32,
// CHECK-NEXT:      kvcache.launch @[[ATTENTION]] of
// CHECK-SAME:        constants [0.00443{{[0-9]+}} : f32, 6.900000e-02 : f32,
// CHECK-NOT:     kvcache.view_cache

// SM80-LABEL:  kvcache.program @kvcache.main
// SM80:          structure [80 : i32, 1 : i32, 0 : i32, 2 : i32, 64 : i32,
kvcache.program @kvcache.main(
    %kc: memref<70x16x2x64xf8E4M3FN, strided<[2048, 128, 64, 1], offset: ?>> {kvcache.name = "k_cache", kvcache.role = #kvcache<role cache>},
    %vc: memref<70x16x2x64xf8E4M3FN, strided<[2048, 128, 64, 1], offset: ?>> {kvcache.name = "v_cache", kvcache.role = #kvcache<role cache>},
    %table: memref<2x64xi32> {kvcache.name = "page_table", kvcache.role = #kvcache<role page_table>},
    %lengths: memref<2xi32> {kvcache.name = "lengths", kvcache.role = #kvcache<role lengths>},
    %start: memref<3xi32> {kvcache.name = "query_start", kvcache.role = #kvcache<role query_start>},
    %slots: memref<8xi64> {kvcache.name = "slot_mapping", kvcache.role = #kvcache<role slots>},
    %k: memref<?x2x64xbf16> {kvcache.name = "key", kvcache.role = #kvcache<role activation>},
    %q: memref<?x4x64xbf16> {kvcache.name = "query", kvcache.role = #kvcache<role activation>},
    %o: memref<?x4x64xbf16> {kvcache.name = "output", kvcache.role = #kvcache<role activation>}) {
  kvcache.segment @layer0 {
    %c = kvcache.view_cache @layer0 pages(%kc, %vc) page_table(%table) lengths(%lengths) query_start(%start) slots(%slots) : memref<70x16x2x64xf8E4M3FN, strided<[2048, 128, 64, 1], offset: ?>>, memref<70x16x2x64xf8E4M3FN, strided<[2048, 128, 64, 1], offset: ?>>, memref<2x64xi32>, memref<2xi32>, memref<3xi32>, memref<8xi64> -> !kvcache.cache<2 x 64 x f8E4M3FN>
    kvcache.write %k, %k to %c : memref<?x2x64xbf16>, memref<?x2x64xbf16>, !kvcache.cache<2 x 64 x f8E4M3FN>
    // expected-remark @below {{layer 'l0': paged_attention_bf16_e4m3_h4x2_d64_p16_}}
    kvcache.paged_attention %q over %c outs(%o) {softmax_scale = 1.250000e-01 : f64} : memref<?x4x64xbf16>, !kvcache.cache<2 x 64 x f8E4M3FN> -> memref<?x4x64xbf16>
  }
  kvcache.segment @layer1 {
    %c = kvcache.view_cache @layer1 pages(%kc, %vc) page_table(%table) lengths(%lengths) query_start(%start) slots(%slots) : memref<70x16x2x64xf8E4M3FN, strided<[2048, 128, 64, 1], offset: ?>>, memref<70x16x2x64xf8E4M3FN, strided<[2048, 128, 64, 1], offset: ?>>, memref<2x64xi32>, memref<2xi32>, memref<3xi32>, memref<8xi64> -> !kvcache.cache<2 x 64 x f8E4M3FN>
    kvcache.write %k, %k to %c : memref<?x2x64xbf16>, memref<?x2x64xbf16>, !kvcache.cache<2 x 64 x f8E4M3FN>
    // expected-remark @below {{layer 'l1': paged_attention_bf16_e4m3_h4x2_d64_p16_}}
    kvcache.paged_attention %q over %c outs(%o) {softmax_scale = 1.250000e-01 : f64} : memref<?x4x64xbf16>, !kvcache.cache<2 x 64 x f8E4M3FN> -> memref<?x4x64xbf16>
  }
}

// -----

// Ops outside of programs are left alone.

// CHECK-LABEL: func.func @outside
// CHECK-NEXT:    return
func.func @outside() {
  return
}
