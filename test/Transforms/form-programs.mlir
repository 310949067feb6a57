// RUN: kvcache-opt %s --allow-unregistered-dialect --split-input-file --kvcache-form-programs | FileCheck %s
// RUN: kvcache-opt %s --allow-unregistered-dialect --split-input-file --kvcache-form-programs --kvcache-form-programs | FileCheck %s

// Adjacent cache ops become one segment; the host calls it on memrefs, and the
// function keeps its signature.

kvcache.scale_buffer @layer0.k : f32 = 1.250000e-02 from override
kvcache.scale_buffer @layer0.v : f32 = 1.000000e+00 from default
kvcache.cache_group @full page_size 16 {max_pages_per_sequence = 2 : i64, max_sequences = 2 : i64, max_tokens = 8 : i64, num_pages = 7 : i64}
kvcache.cache @layer0 of "model.layers.0.self_attn.attn" in @full : 2 x 64 x f8E4M3FN scales(@layer0.k, @layer0.v)

// CHECK-LABEL: kvcache.program @kvcache.main(
// CHECK-SAME:    %[[KC:[a-z0-9]+]]: memref<7x16x2x64xf8E4M3FN, strided<[2048, 128, 64, 1], offset: ?>> {kvcache.name = "layer0.k_cache", kvcache.role = #kvcache<role cache>}
// CHECK-SAME:    %[[VC:[a-z0-9]+]]: memref<7x16x2x64xf8E4M3FN, strided<[2048, 128, 64, 1], offset: ?>> {kvcache.name = "layer0.v_cache", kvcache.role = #kvcache<role cache>}
// CHECK-SAME:    %[[TABLE:[a-z0-9]+]]: memref<2x2xi32> {kvcache.name = "page_table", kvcache.role = #kvcache<role page_table>}
// CHECK-SAME:    %[[LENGTHS:[a-z0-9]+]]: memref<2xi32> {kvcache.name = "lengths", kvcache.role = #kvcache<role lengths>}
// CHECK-SAME:    %[[START:[a-z0-9]+]]: memref<3xi32> {kvcache.name = "query_start", kvcache.role = #kvcache<role query_start>}
// CHECK-SAME:    %[[SLOTS:[a-z0-9]+]]: memref<8xi64> {kvcache.name = "slot_mapping", kvcache.role = #kvcache<role slots>}
// CHECK-SAME:    %[[K:[a-z0-9]+]]: memref<?x2x64xbf16> {kvcache.name = "layer0.key", kvcache.role = #kvcache<role activation>}
// CHECK-SAME:    %[[V:[a-z0-9]+]]: memref<?x2x64xbf16> {kvcache.name = "layer0.value", kvcache.role = #kvcache<role activation>}
// CHECK-SAME:    %[[Q:[a-z0-9]+]]: memref<?x4x64xbf16> {kvcache.name = "layer0.query", kvcache.role = #kvcache<role activation>}
// CHECK-SAME:    %[[O:[a-z0-9]+]]: memref<?x4x64xbf16> {kvcache.name = "layer0.output", kvcache.role = #kvcache<role activation>}
// CHECK-NEXT:    kvcache.segment @layer0 {
// CHECK-NEXT:      %[[C:.*]] = kvcache.view_cache @layer0 pages(%[[KC]], %[[VC]]) page_table(%[[TABLE]]) lengths(%[[LENGTHS]]) query_start(%[[START]]) slots(%[[SLOTS]])
// CHECK-NEXT:      kvcache.write %[[K]], %[[V]] to %[[C]]
// CHECK-NEXT:      kvcache.paged_attention %[[Q]] over %[[C]] outs(%[[O]]) {softmax_scale = 1.250000e-01 : f64}
// CHECK-NEXT:    }
// CHECK-NEXT:  }

// CHECK:       func.func private @kvcache.main.layer0(memref<?x2x64xbf16>, memref<?x2x64xbf16>, memref<?x4x64xbf16>, memref<?x4x64xbf16>) attributes {kvcache.segment = @kvcache.main::@layer0

// CHECK-LABEL: func.func @main(
// CHECK-SAME:    %[[HQ:[a-z0-9]+]]: tensor<?x4x64xbf16>, %[[HK:[a-z0-9]+]]: tensor<?x2x64xbf16>, %[[HV:[a-z0-9]+]]: tensor<?x2x64xbf16>, %[[HO:[a-z0-9]+]]: tensor<?x4x64xbf16>) -> tensor<?x4x64xbf16>
// CHECK-NOT:     kvcache.get_cache
// CHECK-DAG:     %[[KB:.*]] = bufferization.to_buffer %[[HK]] read_only
// CHECK-DAG:     %[[VB:.*]] = bufferization.to_buffer %[[HV]] read_only
// CHECK-DAG:     %[[QB:.*]] = bufferization.to_buffer %[[HQ]] read_only
// CHECK:         %[[OB:.*]] = memref.alloc(%{{.*}}) : memref<?x4x64xbf16>
// The caller's output is copied: rows past the batch stay as they are.
// CHECK:         %[[OLD:.*]] = bufferization.to_buffer %[[HO]] read_only
// CHECK:         memref.copy %[[OLD]], %[[OB]]
// CHECK:         call @kvcache.main.layer0(%[[KB]], %[[VB]], %[[QB]], %[[OB]])
// CHECK:         %[[R:.*]] = bufferization.to_tensor %[[OB]] restrict writable
// CHECK:         return %[[R]]
func.func @main(%q: tensor<?x4x64xbf16>, %k: tensor<?x2x64xbf16>, %v: tensor<?x2x64xbf16>, %out: tensor<?x4x64xbf16>) -> tensor<?x4x64xbf16> {
  %c = kvcache.get_cache @layer0 : !kvcache.cache<2 x 64 x f8E4M3FN>
  kvcache.write %k, %v to %c : tensor<?x2x64xbf16>, tensor<?x2x64xbf16>, !kvcache.cache<2 x 64 x f8E4M3FN>
  %o = kvcache.paged_attention %q over %c outs(%out) {softmax_scale = 1.250000e-01 : f64} : tensor<?x4x64xbf16>, !kvcache.cache<2 x 64 x f8E4M3FN> -> tensor<?x4x64xbf16>
  return %o : tensor<?x4x64xbf16>
}

// -----

// A pure op between two cache ops that needs neither moves in front of both; an
// output that nobody filled is not copied.

kvcache.scale_buffer @layer0.k : f32 = 1.250000e-02 from override
kvcache.scale_buffer @layer0.v : f32 = 1.000000e+00 from default
kvcache.cache_group @full page_size 16
kvcache.cache @layer0 of "model.layers.0.self_attn.attn" in @full : 2 x 64 x f8E4M3FN scales(@layer0.k, @layer0.v) layout packed

// CHECK-LABEL: kvcache.program @kvcache.hoist(
// CHECK-SAME:    memref<?x16x2x64xf8E4M3FN, strided<[4096, 128, 64, 1], offset: ?>>
// CHECK:         kvcache.segment @layer0
// CHECK-NOT:     kvcache.segment @
// CHECK-LABEL: func.func @hoist
// CHECK:         tensor.expand_shape
// CHECK-NOT:     memref.copy
// CHECK:         call @kvcache.hoist.layer0
func.func @hoist(%flat: tensor<8x256xbf16>, %k: tensor<8x2x64xbf16>) -> tensor<8x4x64xbf16> {
  %c = kvcache.get_cache @layer0 : !kvcache.cache<2 x 64 x f8E4M3FN>
  kvcache.write %k, %k to %c : tensor<8x2x64xbf16>, tensor<8x2x64xbf16>, !kvcache.cache<2 x 64 x f8E4M3FN>
  %q = tensor.expand_shape %flat [[0], [1, 2]] output_shape [8, 4, 64] : tensor<8x256xbf16> into tensor<8x4x64xbf16>
  %e = tensor.empty() : tensor<8x4x64xbf16>
  %o = kvcache.paged_attention %q over %c outs(%e) {softmax_scale = 1.250000e-01 : f64} : tensor<8x4x64xbf16>, !kvcache.cache<2 x 64 x f8E4M3FN> -> tensor<8x4x64xbf16>
  return %o : tensor<8x4x64xbf16>
}

// -----

// A foreign op that needs the first result splits the program.

kvcache.scale_buffer @layer0.k : f32 = 1.250000e-02 from override
kvcache.scale_buffer @layer0.v : f32 = 1.000000e+00 from default
kvcache.cache_group @full page_size 16
kvcache.cache @layer0 of "model.layers.0.self_attn.attn" in @full : 2 x 64 x f8E4M3FN scales(@layer0.k, @layer0.v)

// CHECK-LABEL: kvcache.program @kvcache.split(
// CHECK-SAME:    "layer0.query"
// CHECK-SAME:    "layer0.output"
// CHECK-SAME:    "layer0.query.1"
// CHECK-SAME:    "layer0.output.1"
// CHECK:         kvcache.segment @layer0 {
// CHECK:         kvcache.segment @layer0.1 {
// CHECK-LABEL: func.func @split
// CHECK:         call @kvcache.split.layer0(
// CHECK:         "foreign.op"
// CHECK:         call @kvcache.split.layer0.1(
func.func @split(%q: tensor<?x4x64xbf16>, %e: tensor<?x4x64xbf16>) -> tensor<?x4x64xbf16> {
  %c = kvcache.get_cache @layer0 : !kvcache.cache<2 x 64 x f8E4M3FN>
  %o = kvcache.paged_attention %q over %c outs(%e) {softmax_scale = 1.250000e-01 : f64} : tensor<?x4x64xbf16>, !kvcache.cache<2 x 64 x f8E4M3FN> -> tensor<?x4x64xbf16>
  %f = "foreign.op"(%o) : (tensor<?x4x64xbf16>) -> tensor<?x4x64xbf16>
  %p = kvcache.paged_attention %f over %c outs(%e) {softmax_scale = 1.250000e-01 : f64} : tensor<?x4x64xbf16>, !kvcache.cache<2 x 64 x f8E4M3FN> -> tensor<?x4x64xbf16>
  return %p : tensor<?x4x64xbf16>
}

// -----

// A function of memrefs with nothing but cache ops is one graph; the chained
// attention reads the first one's output.

kvcache.scale_buffer @layer0.k : f32 = 1.250000e-02 from override
kvcache.scale_buffer @layer0.v : f32 = 1.000000e+00 from default
kvcache.cache_group @full page_size 16
kvcache.cache @layer0 of "model.layers.0.self_attn.attn" in @full : 2 x 64 x f8E4M3FN scales(@layer0.k, @layer0.v)

// CHECK-LABEL: kvcache.program @kvcache.buffers(
// CHECK:         kvcache.segment @layer0 {
// CHECK:           kvcache.write
// CHECK:           kvcache.paged_attention %{{.*}} over %{{.*}} outs(%[[O:.*]]) {
// CHECK:           kvcache.paged_attention %[[O]] over %{{.*}} outs(%{{.*}}) {
// CHECK:         }
// CHECK-LABEL: func.func @buffers(
// CHECK-NEXT:    call @kvcache.buffers.layer0(
// CHECK-NEXT:    return
func.func @buffers(%q: memref<8x4x64xbf16>, %k: memref<8x2x64xbf16>, %v: memref<8x2x64xbf16>, %o: memref<8x4x64xbf16>, %p: memref<8x4x64xbf16>) {
  %c = kvcache.get_cache @layer0 : !kvcache.cache<2 x 64 x f8E4M3FN>
  kvcache.write %k, %v to %c : memref<8x2x64xbf16>, memref<8x2x64xbf16>, !kvcache.cache<2 x 64 x f8E4M3FN>
  kvcache.paged_attention %q over %c outs(%o) {softmax_scale = 1.250000e-01 : f64} : memref<8x4x64xbf16>, !kvcache.cache<2 x 64 x f8E4M3FN> -> memref<8x4x64xbf16>
  kvcache.paged_attention %o over %c outs(%p) {softmax_scale = 1.250000e-01 : f64} : memref<8x4x64xbf16>, !kvcache.cache<2 x 64 x f8E4M3FN> -> memref<8x4x64xbf16>
  return
}

// -----

// An output that starts as the query is a buffer of its own.

kvcache.scale_buffer @layer0.k : f32 = 1.250000e-02 from override
kvcache.scale_buffer @layer0.v : f32 = 1.000000e+00 from default
kvcache.cache_group @full page_size 16
kvcache.cache @layer0 of "model.layers.0.self_attn.attn" in @full : 2 x 64 x f8E4M3FN scales(@layer0.k, @layer0.v)

// CHECK-LABEL: kvcache.program @kvcache.in_place(
// CHECK-SAME:    %[[Q:[^ ]+]]: memref<?x4x64xbf16> {kvcache.name = "layer0.query"
// CHECK-SAME:    %[[O:[^ ]+]]: memref<?x4x64xbf16> {kvcache.name = "layer0.output"
// CHECK:           kvcache.paged_attention %[[Q]] over %{{.*}} outs(%[[O]])
// CHECK-LABEL: func.func @in_place(
// CHECK:         %[[NEW:.*]] = memref.alloc
// CHECK:         memref.copy %{{.*}}, %[[NEW]]
// CHECK:         call @kvcache.in_place.layer0(%{{.*}}, %[[NEW]]) : (memref<?x4x64xbf16>, memref<?x4x64xbf16>) -> ()
func.func @in_place(%q: tensor<?x4x64xbf16>) -> tensor<?x4x64xbf16> {
  %c = kvcache.get_cache @layer0 : !kvcache.cache<2 x 64 x f8E4M3FN>
  %o = kvcache.paged_attention %q over %c outs(%q) {softmax_scale = 1.250000e-01 : f64} : tensor<?x4x64xbf16>, !kvcache.cache<2 x 64 x f8E4M3FN> -> tensor<?x4x64xbf16>
  return %o : tensor<?x4x64xbf16>
}

// -----

// One output goes on as the next one: it is copied between two segments.

kvcache.scale_buffer @layer0.k : f32 = 1.250000e-02 from override
kvcache.scale_buffer @layer0.v : f32 = 1.000000e+00 from default
kvcache.cache_group @full page_size 16
kvcache.cache @layer0 of "model.layers.0.self_attn.attn" in @full : 2 x 64 x f8E4M3FN scales(@layer0.k, @layer0.v)

// CHECK-LABEL: func.func @handed_on(
// CHECK:         call @kvcache.handed_on.layer0(
// CHECK:         memref.copy
// CHECK:         call @kvcache.handed_on.layer0.1(
func.func @handed_on(%q: tensor<?x4x64xbf16>, %e: tensor<?x4x64xbf16>) -> (tensor<?x4x64xbf16>, tensor<?x4x64xbf16>) {
  %c = kvcache.get_cache @layer0 : !kvcache.cache<2 x 64 x f8E4M3FN>
  %o = kvcache.paged_attention %q over %c outs(%e) {softmax_scale = 1.250000e-01 : f64} : tensor<?x4x64xbf16>, !kvcache.cache<2 x 64 x f8E4M3FN> -> tensor<?x4x64xbf16>
  %p = kvcache.paged_attention %o over %c outs(%o) {softmax_scale = 1.250000e-01 : f64} : tensor<?x4x64xbf16>, !kvcache.cache<2 x 64 x f8E4M3FN> -> tensor<?x4x64xbf16>
  return %o, %p : tensor<?x4x64xbf16>, tensor<?x4x64xbf16>
}

// -----

// A function without cache ops is left alone.

// CHECK-LABEL: func.func @nothing
// CHECK-NEXT:    %[[C:.*]] = arith.constant
// CHECK-NEXT:    return %[[C]]
func.func @nothing() -> f32 {
  %c = arith.constant 1.0 : f32
  return %c : f32
}

// -----

// Queries that are quantized before they are reshaped: the quantization moves
// behind the reshape and into the segment, its codes are a workspace. A quantized
// output is the caller's. A quantization of something else, and one whose scale
// is not known, stay outside.

kvcache.scale_buffer @layer0.k : f32 = 1.250000e-02 from override
kvcache.scale_buffer @layer0.v : f32 = 1.000000e+00 from default
kvcache.scale_buffer @layer0.q : f32 = 2.500000e-01 from override
kvcache.cache_group @full page_size 16
kvcache.cache @layer0 of "model.layers.0.self_attn.attn" in @full : 2 x 64 x f8E4M3FN scales(@layer0.k, @layer0.v)

// CHECK-LABEL: kvcache.program @kvcache.main(
// CHECK-SAME:    %[[X:[a-z0-9]+]]: memref<?x4x64xbf16> {kvcache.name = "layer0.query_source", kvcache.role = #kvcache<role activation>}
// CHECK-SAME:    %[[Q:[a-z0-9]+]]: memref<?x4x64xf8E4M3FN> {kvcache.name = "layer0.query", kvcache.role = #kvcache<role workspace>}
// CHECK-SAME:    %[[S:[a-z0-9]+]]: memref<4xf32> {kvcache.name = "layer0.sinks", kvcache.role = #kvcache<role parameter>}
// CHECK-SAME:    %[[Y:[a-z0-9]+]]: memref<?x4x64xf8E5M2> {kvcache.name = "layer0.quantization_output", kvcache.role = #kvcache<role activation>}
// CHECK:         %[[SCALE:.*]] = arith.constant 2.500000e-01 : f32
// CHECK-NEXT:    kvcache.quantize %[[X]] by %[[SCALE]] outs(%[[Q]]) : memref<?x4x64xbf16> to memref<?x4x64xf8E4M3FN>
// CHECK:         kvcache.paged_attention %[[Q]] over %{{.*}} outs(%[[O:[a-z0-9]+]]) sinks(%[[S]] : memref<4xf32>) {q_scale = @layer0.q
// CHECK:         kvcache.quantize %[[O]] by %{{.*}} outs(%[[Y]]) : memref<?x4x64xbf16> to memref<?x4x64xf8E5M2>
// CHECK:       func.func private @kvcache.main.layer0(memref<?x4x64xbf16>, memref<?x4x64xbf16>, memref<4xf32>, memref<?x4x64xf8E5M2>)
// CHECK-LABEL: func.func @main(
// CHECK:         %[[OTHER:.*]] = kvcache.quantize %{{.*}} by %{{.*}} : tensor<?x4x64xbf16> to tensor<?x4x64xf8E5M2>
// CHECK:         %[[LIVE:.*]] = kvcache.quantize %{{.*}} by %{{.*}} : tensor<?x256xbf16> to tensor<?x256xf8E4M3FN>
// CHECK:         call @kvcache.main.layer0(
// CHECK:         %[[CODES:.*]] = bufferization.to_tensor %{{.*}} : memref<?x4x64xf8E5M2>
// CHECK:         return %[[CODES]], %[[OTHER]], %[[LIVE]]
func.func @main(%x: tensor<?x256xbf16>, %z: tensor<?x4x64xbf16>, %out: tensor<?x4x64xbf16>, %sinks: tensor<4xf32>, %live: f32, %tokens: index)
    -> (tensor<?x4x64xf8E5M2>, tensor<?x4x64xf8E5M2>, tensor<?x256xf8E4M3FN>) {
  %s = arith.constant 0.25 : f32
  %other = kvcache.quantize %z by %s : tensor<?x4x64xbf16> to tensor<?x4x64xf8E5M2>
  %codes = kvcache.quantize %x by %s : tensor<?x256xbf16> to tensor<?x256xf8E4M3FN>
  %l = kvcache.quantize %x by %live : tensor<?x256xbf16> to tensor<?x256xf8E4M3FN>
  %q = tensor.expand_shape %codes [[0], [1, 2]] output_shape [%tokens, 4, 64] : tensor<?x256xf8E4M3FN> into tensor<?x4x64xf8E4M3FN>
  %c = kvcache.get_cache @layer0 : !kvcache.cache<2 x 64 x f8E4M3FN>
  %o = kvcache.paged_attention %q over %c outs(%out) sinks(%sinks : tensor<4xf32>) {softmax_scale = 1.250000e-01 : f64, q_scale = @layer0.q} : tensor<?x4x64xf8E4M3FN>, !kvcache.cache<2 x 64 x f8E4M3FN> -> tensor<?x4x64xbf16>
  %y = kvcache.quantize %o by %s : tensor<?x4x64xbf16> to tensor<?x4x64xf8E5M2>
  return %y, %other, %l : tensor<?x4x64xf8E5M2>, tensor<?x4x64xf8E5M2>, tensor<?x256xf8E4M3FN>
}

// -----

// Layers that rotate their keys by one table share its buffer, also between segments; another table has its own.

kvcache.scale_buffer @s : f32 = 1.0 from default
kvcache.cache_group @full page_size 16 {max_tokens = 8 : i64}
kvcache.cache @layer0 of "l0" in @full : 2 x 64 x f8E4M3FN scales(@s, @s)
kvcache.cache @layer1 of "l1" in @full : 2 x 64 x f8E4M3FN scales(@s, @s)

// CHECK-LABEL: kvcache.program @kvcache.main(
// CHECK-SAME:    %[[T:[a-z0-9]+]]: memref<40x64xf32> {kvcache.name = "rope_table", kvcache.role = #kvcache<role parameter>}
// CHECK-SAME:    %[[P:[a-z0-9]+]]: memref<?xi64> {kvcache.name = "positions", kvcache.role = #kvcache<role activation>}
// CHECK-SAME:    %[[U:[a-z0-9]+]]: memref<40x32xf32> {kvcache.name = "rope_table.1", kvcache.role = #kvcache<role parameter>}
// CHECK:         kvcache.write %{{.*}} rope(%[[T]] at %[[P]] : memref<40x64xf32>, memref<?xi64>) :
// CHECK:         kvcache.write %{{.*}} rope(%[[T]] at %[[P]] : memref<40x64xf32>, memref<?xi64>) {rope_interleaved} :
// CHECK:         kvcache.write %{{.*}} rope(%[[U]] at %[[P]] : memref<40x32xf32>, memref<?xi64>) :
func.func @main(%k: tensor<?x2x64xbf16>, %t: tensor<40x64xf32>, %u: tensor<40x32xf32>, %p: tensor<?xi64>) {
  %c = kvcache.get_cache @layer0 : !kvcache.cache<2 x 64 x f8E4M3FN>
  %d = kvcache.get_cache @layer1 : !kvcache.cache<2 x 64 x f8E4M3FN>
  kvcache.write %k, %k to %c rope(%t at %p : tensor<40x64xf32>, tensor<?xi64>) : tensor<?x2x64xbf16>, tensor<?x2x64xbf16>, !kvcache.cache<2 x 64 x f8E4M3FN>
  "foreign.fence"() : () -> ()
  kvcache.write %k, %k to %d rope(%t at %p : tensor<40x64xf32>, tensor<?xi64>) {rope_interleaved} : tensor<?x2x64xbf16>, tensor<?x2x64xbf16>, !kvcache.cache<2 x 64 x f8E4M3FN>
  kvcache.write %k, %k to %d rope(%u at %p : tensor<40x32xf32>, tensor<?xi64>) : tensor<?x2x64xbf16>, tensor<?x2x64xbf16>, !kvcache.cache<2 x 64 x f8E4M3FN>
  return
}

// -----

// Page copies and merges of partial attentions. Both caches have the same pages
// copied; a foreign op in front of the second merge leaves it a segment of its
// own, and a function without cache ops keeps its merge.

kvcache.scale_buffer @s : f32 = 1.000000e+00 from default
kvcache.cache_group @full page_size 16
kvcache.cache @a of "a" in @full : 2 x 64 x f8E4M3FN scales(@s, @s)
kvcache.cache @b of "b" in @full : 2 x 64 x f8E4M3FN scales(@s, @s)

// CHECK-LABEL: kvcache.program @kvcache.main(
// CHECK-SAME:    %[[PAIRS:[a-z0-9]+]]: memref<?x2xi64> {kvcache.name = "a.page_copies", kvcache.role = #kvcache<role page_copies>}
// CHECK-SAME:    {kvcache.name = "b.merged_output", kvcache.role = #kvcache<role activation>}
// CHECK-SAME:    {kvcache.name = "b.merged_lse", kvcache.role = #kvcache<role activation>}
// CHECK-SAME:    {kvcache.name = "merge_states.partial_a", kvcache.role = #kvcache<role activation>}
// CHECK:         kvcache.segment @a {
// CHECK:           kvcache.copy_pages %[[PAIRS]] in
// CHECK:           kvcache.copy_pages %[[PAIRS]] in
// CHECK:           kvcache.paged_attention %{{.*}} outs(%[[A:.*]], %[[LA:.*]]) {
// CHECK:           kvcache.paged_attention %{{.*}} outs(%[[B:.*]], %[[LB:.*]]) {
// CHECK-NEXT:      kvcache.merge_states %[[A]], %[[LA]] with %[[B]], %[[LB]] outs(
// CHECK:         kvcache.segment @merge_states {
// CHECK-NEXT:      kvcache.merge_states
// CHECK-LABEL: func.func @main(
// CHECK:         call @kvcache.main.a(
// CHECK:         linalg.exp
// CHECK:         call @kvcache.main.merge_states(
// CHECK-LABEL: func.func @alone(
// CHECK-NEXT:    kvcache.merge_states
func.func @main(%p: tensor<?x2xi64>, %q: tensor<?x4x64xbf16>, %o: tensor<?x4x64xbf16>, %l: tensor<?x4xf32>) -> (tensor<?x4x64xbf16>, tensor<?x4xf32>) {
  %a = kvcache.get_cache @a : !kvcache.cache<2 x 64 x f8E4M3FN>
  %b = kvcache.get_cache @b : !kvcache.cache<2 x 64 x f8E4M3FN>
  kvcache.copy_pages %p in %a : tensor<?x2xi64>, !kvcache.cache<2 x 64 x f8E4M3FN>
  kvcache.copy_pages %p in %b : tensor<?x2xi64>, !kvcache.cache<2 x 64 x f8E4M3FN>
  %x, %lx = kvcache.paged_attention %q over %a outs(%o, %l) {softmax_scale = 1.250000e-01 : f64} : tensor<?x4x64xbf16>, !kvcache.cache<2 x 64 x f8E4M3FN> -> tensor<?x4x64xbf16>, tensor<?x4xf32>
  %y, %ly = kvcache.paged_attention %q over %b outs(%o, %l) {softmax_scale = 1.250000e-01 : f64} : tensor<?x4x64xbf16>, !kvcache.cache<2 x 64 x f8E4M3FN> -> tensor<?x4x64xbf16>, tensor<?x4xf32>
  %m, %lm = kvcache.merge_states %x, %lx with %y, %ly outs(%o, %l) : tensor<?x4x64xbf16>, tensor<?x4xf32> -> tensor<?x4x64xbf16>, tensor<?x4xf32>
  %e = linalg.exp ins(%lm : tensor<?x4xf32>) outs(%l : tensor<?x4xf32>) -> tensor<?x4xf32>
  %n, %ln = kvcache.merge_states %m, %e with %x, %lx outs(%o, %l) : tensor<?x4x64xbf16>, tensor<?x4xf32> -> tensor<?x4x64xbf16>, tensor<?x4xf32>
  return %n, %ln : tensor<?x4x64xbf16>, tensor<?x4xf32>
}
func.func @alone(%o: tensor<?x4x64xbf16>, %l: tensor<?x4xf32>) -> tensor<?x4x64xbf16> {
  %m, %lm = kvcache.merge_states %o, %l with %o, %l outs(%o, %l) : tensor<?x4x64xbf16>, tensor<?x4xf32> -> tensor<?x4x64xbf16>, tensor<?x4xf32>
  return %m : tensor<?x4x64xbf16>
}
