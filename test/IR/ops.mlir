// The pretty form is printed as it is written here; the generic form and
// bytecode hold the same.
// RUN: kvcache-opt %s | FileCheck %s
// RUN: kvcache-opt %s | kvcache-opt | FileCheck %s
// RUN: kvcache-opt %s --mlir-print-op-generic | kvcache-opt | FileCheck %s
// RUN: kvcache-opt %s --emit-bytecode | kvcache-opt | FileCheck %s

// Scales: every state and provenance.
// CHECK: kvcache.scale_buffer @dynamic : f32 dynamic{{$}}
kvcache.scale_buffer @dynamic : f32 dynamic
// CHECK: kvcache.scale_buffer @bound : f32 checkpoint "layers.0.k_scale"
kvcache.scale_buffer @bound : f32 checkpoint "layers.0.k_scale"
// CHECK: kvcache.scale_buffer @loaded : f32 = 1.230000e-02 from checkpoint "layers.0.k_scale"
kvcache.scale_buffer @loaded : f32 = 0.0123 from checkpoint "layers.0.k_scale"
// CHECK: kvcache.scale_buffer @defaulted : f32 = 1.000000e+00 from default{{$}}
kvcache.scale_buffer @defaulted : f32 = 1.0 from default
// CHECK: kvcache.scale_buffer @duplicated : f32 = 5.000000e-01 from duplicate "layers.0.k_scale"
kvcache.scale_buffer @duplicated : f32 = 0.5 from duplicate "layers.0.k_scale"
// CHECK: kvcache.scale_buffer @largest : f32 = 2.500000e-01 from maximum "layers.0.k_scale"
kvcache.scale_buffer @largest : f32 = 0.25 from maximum "layers.0.k_scale"
// CHECK: kvcache.scale_buffer @given : f32 = 7.500000e-01 from override{{$}}
kvcache.scale_buffer @given : f32 = 0.75 from override
// CHECK: kvcache.scale_buffer @per_head : f32 = [1.250000e-02, 2.000000e+00] from checkpoint "layers.0.v_scale"
kvcache.scale_buffer @per_head : f32 = [0.0125, 2.0] from checkpoint "layers.0.v_scale"
// The smallest normal f32 keeps its bits.
// CHECK: kvcache.scale_buffer @smallest : f32 = 1.17549435E-38 from override
kvcache.scale_buffer @smallest : f32 = 1.17549435E-38 from override

// As an attribute of something else.
// CHECK: module @attributes attributes {test.a = #kvcache.scale<dynamic>, test.b = #kvcache.scale<1.250000e+00 from checkpoint "key">, test.c = #kvcache.scale<[1.000000e+00, 2.000000e+00] from override>, test.d = #kvcache.scale<checkpoint "key">}
module @attributes attributes {test.a = #kvcache.scale<dynamic>, test.b = #kvcache.scale<1.25 from checkpoint "key">,
    test.c = #kvcache.scale<[1.0, 2.0] from override>, test.d = #kvcache.scale<checkpoint "key">} {
}

// CHECK: kvcache.cache_group @full page_size 16
kvcache.cache_group @full page_size 16
// CHECK: kvcache.cache_group @bounded page_size 32 {max_pages_per_sequence = 2 : i64, max_sequences = 2 : i64, max_tokens = 8 : i64, num_pages = 7 : i64}
kvcache.cache_group @bounded page_size 32 {max_pages_per_sequence = 2, max_sequences = 2, max_tokens = 8, num_pages = 7}
// CHECK: kvcache.cache_group @one_token page_size 1
kvcache.cache_group @one_token page_size 1

// CHECK: kvcache.cache @plain of "model.layers.0.self_attn.attn" in @full : 2 x 64 x bf16 scales(@dynamic, @dynamic){{$}}
kvcache.cache @plain of "model.layers.0.self_attn.attn" in @full : 2 x 64 x bf16 scales(@dynamic, @dynamic)
// CHECK: kvcache.cache @heads_first of "model.layers.1.self_attn.attn" in @full : 2 x 64 x f8E4M3FN scales(@loaded, @per_head) layout hnd{{$}}
kvcache.cache @heads_first of "model.layers.1.self_attn.attn" in @full : 2 x 64 x f8E4M3FN scales(@loaded, @per_head) layout hnd
// CHECK: kvcache.cache @packed of "model.layers.2.self_attn.attn" in @bounded : 8 x 128 x f8E5M2 scales(@given, @given) layout packed {graph_dtype = "fp8_e5m2"}
kvcache.cache @packed of "model.layers.2.self_attn.attn" in @bounded : 8 x 128 x f8E5M2 scales(@given, @given) layout packed {graph_dtype = "fp8_e5m2"}
// The layout that caches have by default is not printed.
// CHECK: kvcache.cache @fnuz of "model.layers.3.self_attn.attn" in @one_token : 1 x 80 x f8E4M3FNUZ scales(@given, @given){{$}}
kvcache.cache @fnuz of "model.layers.3.self_attn.attn" in @one_token : 1 x 80 x f8E4M3FNUZ scales(@given, @given) layout nhd

// Strides that no row has apart from another would be an error; the last page
// row ends where the next page begins.
// CHECK: kvcache.cache @padded of "model.layers.6.self_attn.attn" in @full : 2 x 64 x bf16 scales(@given, @given) layout strides [2544, 160, 80]{{$}}
kvcache.cache @padded of "model.layers.6.self_attn.attn" in @full : 2 x 64 x bf16 scales(@given, @given) layout strides [2544, 160, 80]

// Values with a head dim of their own; one that is that of keys is not printed.
// CHECK: kvcache.cache @values of "model.layers.7.self_attn.attn" in @full : 2 x 192 | 128 x bf16 scales(@given, @given) layout packed{{$}}
kvcache.cache @values of "model.layers.7.self_attn.attn" in @full : 2 x 192 | 128 x bf16 scales(@given, @given) layout packed
// CHECK: kvcache.cache @same of "model.layers.8.self_attn.attn" in @full : 2 x 64 x bf16 scales(@given, @given){{$}}
kvcache.cache @same of "model.layers.8.self_attn.attn" in @full : 2 x 64 | 64 x bf16 scales(@given, @given)

// One latent row is key and value; its scale is both scales.
// CHECK: kvcache.cache @latent of "model.layers.4.self_attn.attn" in @full : latent 512 + 64 x f8E4M3FN scales(@given, @given){{$}}
kvcache.cache @latent of "model.layers.4.self_attn.attn" in @full : latent 512 + 64 x f8E4M3FN scales(@given, @given)
// CHECK: kvcache.cache @tile_scaled of "model.layers.5.self_attn.attn" in @full : latent 256 + 64 x fp8_ds_mla scales(@given, @given){{$}}
kvcache.cache @tile_scaled of "model.layers.5.self_attn.attn" in @full : latent 256 + 64 x fp8_ds_mla scales(@given, @given)

// CHECK-LABEL: func.func @latent_rows
func.func @latent_rows(%l: tensor<?x512xbf16>, %r: tensor<?x64xbf16>, %q: tensor<?x16x576xbf16>, %o: tensor<?x16x512xbf16>, %lse: tensor<?x16xf32>)
    -> (tensor<?x16x512xbf16>, tensor<?x16xf32>) {
  // CHECK: %[[C:.*]] = kvcache.get_cache @latent : <latent 512 + 64 x f8E4M3FN>
  %c = kvcache.get_cache @latent : !kvcache.cache<latent 512 + 64 x f8E4M3FN>
  // CHECK: kvcache.write_latent %{{.*}}, %{{.*}} to %[[C]] : tensor<?x512xbf16>, tensor<?x64xbf16>, <latent 512 + 64 x f8E4M3FN>
  kvcache.write_latent %l, %r to %c : tensor<?x512xbf16>, tensor<?x64xbf16>, !kvcache.cache<latent 512 + 64 x f8E4M3FN>
  // CHECK: kvcache.mla_attention %{{.*}} over %[[C]] outs(%{{.*}}, %{{.*}}) {softmax_scale = 6.250000e-02 : f64}
  // CHECK-SAME: : tensor<?x16x576xbf16>, !kvcache.cache<latent 512 + 64 x f8E4M3FN> -> tensor<?x16x512xbf16>, tensor<?x16xf32>
  %a:2 = kvcache.mla_attention %q over %c outs(%o, %lse) {softmax_scale = 0.0625}
    : tensor<?x16x576xbf16>, !kvcache.cache<latent 512 + 64 x f8E4M3FN> -> tensor<?x16x512xbf16>, tensor<?x16xf32>
  return %a#0, %a#1 : tensor<?x16x512xbf16>, tensor<?x16xf32>
}

// CHECK-LABEL: func.func @latent_buffers
func.func @latent_buffers(%pages: memref<7x16x1x392xi8>, %table: memref<2x2xi32>, %lengths: memref<2xi32>, %start: memref<3xi32>, %slots: memref<8xi64>,
                          %l: memref<8x256xf32>, %r: memref<8x64xf32>, %q: memref<8x16x320xf16>, %o: memref<8x16x256xf32>,
                          %codes: memref<8x16x320xf8E5M2>, %codesout: memref<8x16x256xf8E4M3FN>) {
  // CHECK: %[[V:.*]] = kvcache.view_cache @tile_scaled pages(%[[P:.*]], %[[P]])
  // CHECK-SAME: -> <latent 256 + 64 x fp8_ds_mla>
  %v = kvcache.view_cache @tile_scaled pages(%pages, %pages) page_table(%table) lengths(%lengths) query_start(%start) slots(%slots)
    : memref<7x16x1x392xi8>, memref<7x16x1x392xi8>, memref<2x2xi32>, memref<2xi32>, memref<3xi32>, memref<8xi64>
    -> !kvcache.cache<latent 256 + 64 x fp8_ds_mla>
  // CHECK: kvcache.write_latent %{{.*}}, %{{.*}} to %[[V]] : memref<8x256xf32>, memref<8x64xf32>, <latent 256 + 64 x fp8_ds_mla>
  kvcache.write_latent %l, %r to %v : memref<8x256xf32>, memref<8x64xf32>, !kvcache.cache<latent 256 + 64 x fp8_ds_mla>
  // CHECK: kvcache.mla_attention %{{.*}} over %[[V]] outs(%{{.*}}) : memref<8x16x320xf16>, !kvcache.cache<latent 256 + 64 x fp8_ds_mla> -> memref<8x16x256xf32>
  kvcache.mla_attention %q over %v outs(%o) : memref<8x16x320xf16>, !kvcache.cache<latent 256 + 64 x fp8_ds_mla> -> memref<8x16x256xf32>
  // CHECK: kvcache.mla_attention %{{.*}} over %[[V]] outs(%{{.*}}) {o_scale = @given, q_scale = @given} : memref<8x16x320xf8E5M2>, !kvcache.cache<latent 256 + 64 x fp8_ds_mla> -> memref<8x16x256xf8E4M3FN>
  kvcache.mla_attention %codes over %v outs(%codesout) {q_scale = @given, o_scale = @given} : memref<8x16x320xf8E5M2>, !kvcache.cache<latent 256 + 64 x fp8_ds_mla> -> memref<8x16x256xf8E4M3FN>
  return
}

// CHECK-LABEL: func.func @handles
func.func @handles(%kp: memref<?x16x2x64xf8E4M3FN, strided<[2048, 64, 1024, 1], offset: ?>>, %table: memref<?x?xi32>, %lengths: memref<?xi32>,
                   %start: memref<?xi32>, %slots: memref<?xi64>) {
  // CHECK: kvcache.get_cache @plain : <2 x 64 x bf16>
  %c = kvcache.get_cache @plain : !kvcache.cache<2 x 64 x bf16>
  // CHECK: kvcache.get_cache @plain shards 2 : <1 x 64 x bf16>
  %half = kvcache.get_cache @plain shards 2 : !kvcache.cache<1 x 64 x bf16>
  // CHECK: kvcache.view_cache @heads_first pages(%[[P:.*]], %[[P]]) page_table(%{{.*}}) lengths(%{{.*}}) query_start(%{{.*}}) slots(%{{.*}}) :
  // CHECK-SAME: memref<?x16x2x64xf8E4M3FN, strided<[2048, 64, 1024, 1], offset: ?>>
  // CHECK-SAME: -> <2 x 64 x f8E4M3FN>
  %v = kvcache.view_cache @heads_first pages(%kp, %kp) page_table(%table) lengths(%lengths) query_start(%start) slots(%slots)
    : memref<?x16x2x64xf8E4M3FN, strided<[2048, 64, 1024, 1], offset: ?>>, memref<?x16x2x64xf8E4M3FN, strided<[2048, 64, 1024, 1], offset: ?>>,
      memref<?x?xi32>, memref<?xi32>, memref<?xi32>, memref<?xi64> -> !kvcache.cache<2 x 64 x f8E4M3FN>
  return
}

// CHECK-LABEL: func.func @scales
func.func @scales(%q: tensor<?x256xbf16>, %k: tensor<?x128xbf16>, %v: tensor<?x2x64xbf16>) -> f32 {
  %c = kvcache.get_cache @plain : !kvcache.cache<2 x 64 x bf16>
  // CHECK: kvcache.calculate_scales %{{.*}}, %{{.*}}, %{{.*}} for %{{.*}} : tensor<?x256xbf16>, tensor<?x128xbf16>, tensor<?x2x64xbf16>, <2 x 64 x bf16>
  kvcache.calculate_scales %q, %k, %v for %c : tensor<?x256xbf16>, tensor<?x128xbf16>, tensor<?x2x64xbf16>, !kvcache.cache<2 x 64 x bf16>
  // CHECK: kvcache.load_scale @dynamic : f32
  %s = kvcache.load_scale @dynamic : f32
  return %s : f32
}

// CHECK-LABEL: func.func @arithmetic
func.func @arithmetic(%x: tensor<?x64xbf16>, %s: f32) -> tensor<?x64xf16> {
  // CHECK: kvcache.quantize %{{.*}} by %{{.*}} : tensor<?x64xbf16> to tensor<?x64xf8E5M2>
  %y = kvcache.quantize %x by %s : tensor<?x64xbf16> to tensor<?x64xf8E5M2>
  // CHECK: kvcache.dequantize %{{.*}} by %{{.*}} : tensor<?x64xf8E5M2> to tensor<?x64xf16>
  %z = kvcache.dequantize %y by %s : tensor<?x64xf8E5M2> to tensor<?x64xf16>
  return %z : tensor<?x64xf16>
}

// CHECK-LABEL: func.func @arithmetic_on_buffers
func.func @arithmetic_on_buffers(%x: memref<?x64xbf16>, %y: memref<?x64xf8E5M2>, %s: f32) {
  // CHECK: kvcache.quantize %{{.*}} by %{{.*}} outs(%{{.*}}) : memref<?x64xbf16> to memref<?x64xf8E5M2>
  kvcache.quantize %x by %s outs(%y) : memref<?x64xbf16> to memref<?x64xf8E5M2>
  // CHECK: kvcache.dequantize %{{.*}} by %{{.*}} outs(%{{.*}}) : memref<?x64xf8E5M2> to memref<?x64xbf16>
  kvcache.dequantize %y by %s outs(%x) : memref<?x64xf8E5M2> to memref<?x64xbf16>
  return
}

// CHECK-LABEL: func.func @codes_sinks_and_slopes
func.func @codes_sinks_and_slopes(%q: memref<8x4x64xf8E4M3FN>, %o: memref<8x4x64xf8E5M2>, %l: memref<8x4xf32>, %s: memref<4xf32>) {
  %c = kvcache.get_cache @plain : !kvcache.cache<2 x 64 x bf16>
  // CHECK: kvcache.paged_attention %{{.*}} over %{{.*}} outs(%{{.*}}, %{{.*}}) sinks(%[[S:.*]] : memref<4xf32>) alibi_slopes(%[[S]] : memref<4xf32>) {o_scale = @loaded, q_scale = @given}
  kvcache.paged_attention %q over %c outs(%o, %l) sinks(%s : memref<4xf32>) alibi_slopes(%s : memref<4xf32>) {o_scale = @loaded, q_scale = @given}
    : memref<8x4x64xf8E4M3FN>, !kvcache.cache<2 x 64 x bf16> -> memref<8x4x64xf8E5M2>, memref<8x4xf32>
  // CHECK: kvcache.paged_attention %{{.*}} over %{{.*}} outs(%{{.*}}) alibi_slopes(%{{.*}} : memref<4xf32>) {
  kvcache.paged_attention %q over %c outs(%o) alibi_slopes(%s : memref<4xf32>) {o_scale = @loaded, q_scale = @given}
    : memref<8x4x64xf8E4M3FN>, !kvcache.cache<2 x 64 x bf16> -> memref<8x4x64xf8E5M2>
  return
}

// CHECK-LABEL: func.func @tensors
func.func @tensors(%q: tensor<?x4x64xbf16>, %k: tensor<?x2x64xbf16>, %out: tensor<?x4x64xbf16>, %l: tensor<?x4xf32>)
    -> (tensor<?x4x64xbf16>, tensor<?x4xf32>) {
  %c = kvcache.get_cache @plain : !kvcache.cache<2 x 64 x bf16>
  // CHECK: kvcache.write %{{.*}}, %{{.*}} to %{{.*}} : tensor<?x2x64xbf16>, tensor<?x2x64xbf16>, <2 x 64 x bf16>
  kvcache.write %k, %k to %c : tensor<?x2x64xbf16>, tensor<?x2x64xbf16>, !kvcache.cache<2 x 64 x bf16>
  // CHECK: kvcache.paged_attention %{{.*}} over %{{.*}} outs(%{{.*}}) : tensor<?x4x64xbf16>, !kvcache.cache<2 x 64 x bf16> -> tensor<?x4x64xbf16>
  %a = kvcache.paged_attention %q over %c outs(%out) : tensor<?x4x64xbf16>, !kvcache.cache<2 x 64 x bf16> -> tensor<?x4x64xbf16>
  // CHECK: kvcache.paged_attention %{{.*}} over %{{.*}} outs(%{{.*}}, %{{.*}}) {soft_cap = 3.000000e+01 : f64, softmax_scale = 1.250000e-01 : f64, window = 127 : i64} : tensor<?x4x64xbf16>, !kvcache.cache<2 x 64 x bf16> -> tensor<?x4x64xbf16>, tensor<?x4xf32>
  %b, %lse = kvcache.paged_attention %q over %c outs(%a, %l) {softmax_scale = 0.125 : f64, soft_cap = 30.0 : f64, window = 127 : i64}
    : tensor<?x4x64xbf16>, !kvcache.cache<2 x 64 x bf16> -> tensor<?x4x64xbf16>, tensor<?x4xf32>
  return %b, %lse : tensor<?x4x64xbf16>, tensor<?x4xf32>
}

// On buffers the op has no results.
// CHECK-LABEL: func.func @buffers
func.func @buffers(%q: memref<8x4x64xf16>, %k: memref<8x2x64xf32>, %out: memref<8x4x64xf16>, %l: memref<8x4xf32>) {
  %c = kvcache.get_cache @plain : !kvcache.cache<2 x 64 x bf16>
  // CHECK: kvcache.write %{{.*}}, %{{.*}} to %{{.*}} : memref<8x2x64xf32>, memref<8x2x64xf32>, <2 x 64 x bf16>
  kvcache.write %k, %k to %c : memref<8x2x64xf32>, memref<8x2x64xf32>, !kvcache.cache<2 x 64 x bf16>
  // CHECK: {{^ *}}kvcache.paged_attention %{{.*}} over %{{.*}} outs(%{{.*}}, %{{.*}}) : memref<8x4x64xf16>, !kvcache.cache<2 x 64 x bf16> -> memref<8x4x64xf16>, memref<8x4xf32>
  kvcache.paged_attention %q over %c outs(%out, %l) : memref<8x4x64xf16>, !kvcache.cache<2 x 64 x bf16> -> memref<8x4x64xf16>, memref<8x4xf32>
  return
}

// CHECK-LABEL: func.func @merges
func.func @merges(%a: tensor<?x4x64xbf16>, %la: tensor<?x4xf32>, %b: memref<8x4x64xf32>, %lb: memref<8x4xf32>, %o: memref<8x4x64xf32>, %l: memref<8x4xf32>)
    -> (tensor<?x4x64xbf16>, tensor<?x4xf32>) {
  // CHECK: %{{.*}}:2 = kvcache.merge_states %[[A:.*]], %[[LA:.*]] with %[[A]], %[[LA]] outs(%[[A]], %[[LA]]) : tensor<?x4x64xbf16>, tensor<?x4xf32> -> tensor<?x4x64xbf16>, tensor<?x4xf32>
  %m, %lse = kvcache.merge_states %a, %la with %a, %la outs(%a, %la) : tensor<?x4x64xbf16>, tensor<?x4xf32> -> tensor<?x4x64xbf16>, tensor<?x4xf32>
  // CHECK: {{^ *}}kvcache.merge_states %{{.*}}, %{{.*}} with %{{.*}}, %{{.*}} outs(%{{.*}}, %{{.*}}) : memref<8x4x64xf32>, memref<8x4xf32>{{$}}
  kvcache.merge_states %b, %lb with %b, %lb outs(%o, %l) : memref<8x4x64xf32>, memref<8x4xf32>
  return %m, %lse : tensor<?x4x64xbf16>, tensor<?x4xf32>
}

// CHECK-LABEL: func.func @copies
func.func @copies(%p: tensor<?x2xi64>, %m: memref<3x2xi64>) {
  %c = kvcache.get_cache @plain : !kvcache.cache<2 x 64 x bf16>
  // CHECK: kvcache.copy_pages %{{.*}} in %{{.*}} : tensor<?x2xi64>, <2 x 64 x bf16>
  kvcache.copy_pages %p in %c : tensor<?x2xi64>, !kvcache.cache<2 x 64 x bf16>
  // CHECK: kvcache.copy_pages %{{.*}} in %{{.*}} : memref<3x2xi64>, <latent 512 + 64 x f8E4M3FN>
  %l = kvcache.get_cache @latent : !kvcache.cache<latent 512 + 64 x f8E4M3FN>
  kvcache.copy_pages %m in %l : memref<3x2xi64>, !kvcache.cache<latent 512 + 64 x f8E4M3FN>
  return
}

// CHECK: kvcache.program @main(%{{.*}}: memref<8xi64> {kvcache.name = "slot_mapping", kvcache.role = #kvcache<role slots>})
kvcache.program @main(%slots: memref<8xi64> {kvcache.name = "slot_mapping", kvcache.role = #kvcache<role slots>}) {
  // CHECK: kvcache.segment @first {
  kvcache.segment @first {
    // CHECK: kvcache.launch @write of "kvcache_write" grid [1, 1, 1] block [128, 1, 1] shared 1024 args(%{{.*}} : memref<8xi64>) constants [8 : i32, 1.250000e-02 : f32] origins ["max_tokens", "k_scale"] structure [80 : i32] layer "layer0"
    kvcache.launch @write of "kvcache_write" grid [1, 1, 1] block [128, 1, 1] shared 1024 args(%slots : memref<8xi64>)
      constants [8 : i32, 1.250000e-02 : f32] origins ["max_tokens", "k_scale"] structure [80 : i32] layer "layer0"
    // CHECK: kvcache.launch @nothing of "kvcache_nothing" grid [2, 3, 4] block [1, 1, 1] shared 0 args() constants [] origins [] structure []
    kvcache.launch @nothing of "kvcache_nothing" grid [2, 3, 4] block [1, 1, 1] shared 0 args() constants [] origins [] structure []
  }
  // CHECK: kvcache.segment @second {
  kvcache.segment @second {
  }
}

// CHECK-LABEL: func.func @rope
func.func @rope(%k: tensor<?x2x64xbf16>, %t: tensor<4096x32xf32>, %p: tensor<?xi64>, %l: memref<8x512xbf16>, %r: memref<8x64xbf16>,
                %u: memref<?x64xf32>, %q: memref<8xi64>) {
  %c = kvcache.get_cache @heads_first : !kvcache.cache<2 x 64 x f8E4M3FN>
  // CHECK: kvcache.write %{{.*}}, %{{.*}} to %{{.*}} rope(%{{.*}} at %{{.*}} : tensor<4096x32xf32>, tensor<?xi64>) {rope_interleaved} : tensor<?x2x64xbf16>, tensor<?x2x64xbf16>, <2 x 64 x f8E4M3FN>
  kvcache.write %k, %k to %c rope(%t at %p : tensor<4096x32xf32>, tensor<?xi64>) {rope_interleaved}
    : tensor<?x2x64xbf16>, tensor<?x2x64xbf16>, !kvcache.cache<2 x 64 x f8E4M3FN>
  %d = kvcache.get_cache @latent : !kvcache.cache<latent 512 + 64 x f8E4M3FN>
  // CHECK: kvcache.write_latent %{{.*}}, %{{.*}} to %{{.*}} rope(%{{.*}} at %{{.*}} : memref<?x64xf32>, memref<8xi64>) : memref<8x512xbf16>, memref<8x64xbf16>, <latent 512 + 64 x f8E4M3FN>
  kvcache.write_latent %l, %r to %d rope(%u at %q : memref<?x64xf32>, memref<8xi64>)
    : memref<8x512xbf16>, memref<8x64xbf16>, !kvcache.cache<latent 512 + 64 x f8E4M3FN>
  return
}

// CHECK: kvcache.cache @token_scaled of "model.layers.6.self_attn.attn" in @full : 2 x 64 x f8E4M3FN scales(@given, @given) token_scales side
kvcache.cache @token_scaled of "model.layers.6.self_attn.attn" in @full : 2 x 64 x f8E4M3FN scales(@given, @given) token_scales side

// CHECK: kvcache.cache @inline_scaled of "model.layers.6.self_attn.attn" in @full : 2 x 64 x f8E4M3FN scales(@given, @given) layout hnd token_scales inline
kvcache.cache @inline_scaled of "model.layers.6.self_attn.attn" in @full : 2 x 64 x f8E4M3FN scales(@given, @given) layout hnd token_scales inline

// CHECK-LABEL: func.func @token_scales
func.func @token_scales(%p: memref<7x16x2x64xf8E4M3FN>, %s: memref<7x16x2xf32>, %t: memref<2x2xi32>, %n: memref<2xi32>, %q: memref<3xi32>,
                        %m: memref<8xi64>) {
  // CHECK: kvcache.view_cache @token_scaled pages({{.*}}) slots(%{{.*}}) token_scales(%{{.*}}, %{{.*}} : memref<7x16x2xf32>, memref<7x16x2xf32>) :
  %c = kvcache.view_cache @token_scaled pages(%p, %p) page_table(%t) lengths(%n) query_start(%q) slots(%m)
    token_scales(%s, %s : memref<7x16x2xf32>, memref<7x16x2xf32>)
    : memref<7x16x2x64xf8E4M3FN>, memref<7x16x2x64xf8E4M3FN>, memref<2x2xi32>, memref<2xi32>, memref<3xi32>, memref<8xi64> -> !kvcache.cache<2 x 64 x f8E4M3FN>
  return
}
