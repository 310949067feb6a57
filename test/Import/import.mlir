// RUN: kvcache-opt %s -split-input-file -allow-unregistered-dialect -kvcache-import 2>/dev/null | FileCheck %s
// RUN: kvcache-opt %s -split-input-file -allow-unregistered-dialect -kvcache-import 2>/dev/null > %t.once
// RUN: kvcache-opt %t.once -split-input-file -allow-unregistered-dialect -kvcache-import 2>/dev/null > %t.twice
// RUN: diff %t.once %t.twice

// Two layers that share the output buffer: each attention has it as `outs`, and
// neither sees the other's result.

// CHECK-LABEL: module @shared_output
// CHECK-NEXT: kvcache.cache_group @full page_size 16
// CHECK-NEXT: kvcache.scale_buffer @layer0.k : f32 dynamic
// CHECK-NEXT: kvcache.scale_buffer @layer0.v : f32 dynamic
// CHECK-NEXT: kvcache.cache @layer0 of "model.layers.0.self_attn.attn" in @full : 2 x 64 x bf16 scales(@layer0.k, @layer0.v)
// CHECK-NEXT: kvcache.scale_buffer @layer1.k : f32 dynamic
// CHECK-NEXT: kvcache.scale_buffer @layer1.v : f32 dynamic
// CHECK-NEXT: kvcache.cache @layer1 of "model.layers.1.self_attn.attn" in @full : 2 x 64 x bf16 scales(@layer1.k, @layer1.v)
// CHECK-NEXT: func.func @main(
// CHECK-SAME:   %[[Q:.*]]: tensor<?x4x64xbf16>, %[[K:.*]]: tensor<?x2x64xbf16>, %[[V:.*]]: tensor<?x2x64xbf16>, %[[OUT:.*]]: tensor<?x4x64xbf16>)
// CHECK-NEXT: %[[C0:.*]] = kvcache.get_cache @layer0
// CHECK-NEXT: kvcache.write %[[K]], %[[V]] to %[[C0]]
// CHECK-NEXT: %[[O0:.*]] = kvcache.paged_attention %[[Q]] over %[[C0]] outs(%[[OUT]]) :
// CHECK-NEXT: %[[C1:.*]] = kvcache.get_cache @layer1
// CHECK-NEXT: kvcache.write %[[K]], %[[V]] to %[[C1]]
// CHECK-NEXT: %[[O1:.*]] = kvcache.paged_attention %[[O0]] over %[[C1]] outs(%[[OUT]]) :
// CHECK-NEXT: return %[[O1]] : tensor<?x4x64xbf16>
module @shared_output {
  func.func @main(%q: tensor<?x4x64xbf16>, %k: tensor<?x2x64xbf16>, %v: tensor<?x2x64xbf16>, %out: tensor<?x4x64xbf16>) -> tensor<?x4x64xbf16> {
    %t0 = "vllm.unified_kv_cache_update"(%k, %v) {layer_name = "model.layers.0.self_attn.attn", mutated = [], operand_names = ["key", "value"]} : (tensor<?x2x64xbf16>, tensor<?x2x64xbf16>) -> tensor<0xbf16>
    %o0 = "vllm.unified_attention_with_output"(%q, %k, %v, %out, %t0) {layer_name = "model.layers.0.self_attn.attn", mutated = ["output"], operand_names = ["query", "key", "value", "output", "kv_cache_dummy_dep"]} : (tensor<?x4x64xbf16>, tensor<?x2x64xbf16>, tensor<?x2x64xbf16>, tensor<?x4x64xbf16>, tensor<0xbf16>) -> tensor<?x4x64xbf16>
    %t1 = "vllm.unified_kv_cache_update"(%k, %v) {layer_name = "model.layers.1.self_attn.attn", mutated = [], operand_names = ["key", "value"]} : (tensor<?x2x64xbf16>, tensor<?x2x64xbf16>) -> tensor<0xbf16>
    %o1 = "vllm.unified_attention_with_output"(%o0, %k, %v, %out, %t1) {layer_name = "model.layers.1.self_attn.attn", mutated = ["output"], operand_names = ["query", "key", "value", "output", "kv_cache_dummy_dep"]} : (tensor<?x4x64xbf16>, tensor<?x2x64xbf16>, tensor<?x2x64xbf16>, tensor<?x4x64xbf16>, tensor<0xbf16>) -> tensor<?x4x64xbf16>
    return %o1 : tensor<?x4x64xbf16>
  }
}

// -----

// Operands are found by name: here every list has another order. The graph's
// own parameters and its cache word are kept.

// CHECK-LABEL: module @by_name
// CHECK: kvcache.cache @layer3 of "layers.3.attn" in @full : 1 x 128 x f16 scales(@layer3.k, @layer3.v) {graph_dtype = "fp8"}
// CHECK: func.func @main(%[[V:.*]]: tensor<4x1x128xf16>, %[[K:.*]]: tensor<4x1x128xf16>, %[[OUT:.*]]: tensor<4x8x128xf16>, %[[Q:.*]]: tensor<4x8x128xf16>)
// CHECK: kvcache.write %[[K]], %[[V]] to
// CHECK: kvcache.paged_attention %[[Q]] over %{{.*}} outs(%[[OUT]]) {soft_cap = 5.000000e+01 : f64, softmax_scale = 6.250000e-02 : f64, trace_id = 7 : i64, window = 1023 : i64}
module @by_name {
  func.func @main(%v: tensor<4x1x128xf16>, %k: tensor<4x1x128xf16>, %out: tensor<4x8x128xf16>, %q: tensor<4x8x128xf16>) -> tensor<4x8x128xf16> {
    %t = "vllm.unified_kv_cache_update"(%v, %k) {kv_cache_dtype = "fp8", layer_name = "layers.3.attn", operand_names = ["value", "key"]} : (tensor<4x1x128xf16>, tensor<4x1x128xf16>) -> tensor<0xf16>
    %o = "vllm.unified_attention_with_output"(%t, %out, %v, %q, %k) {layer_name = "layers.3.attn", operand_names = ["kv_cache_dummy_dep", "output", "value", "query", "key"], sliding_window = 1024 : i64, soft_cap = 50.0 : f32, softmax_scale = 0.0625 : f32, trace_id = 7 : i64} : (tensor<0xf16>, tensor<4x8x128xf16>, tensor<4x1x128xf16>, tensor<4x8x128xf16>, tensor<4x1x128xf16>) -> tensor<4x8x128xf16>
    return %o : tensor<4x8x128xf16>
  }
}

// -----

// Results of the scale calculation are its operands, in the order of `mutated`.

// CHECK-LABEL: module @calculation
// CHECK: func.func @main(%[[Q:.*]]: tensor<?x2x64xbf16>, %[[K:.*]]: tensor<?x2x64xbf16>, %[[V:.*]]: tensor<?x2x64xbf16>)
// CHECK-NEXT: %[[C:.*]] = kvcache.get_cache @layer0
// CHECK-NEXT: kvcache.calculate_scales %[[Q]], %[[K]], %[[V]] for %[[C]]
// CHECK-NEXT: %[[D:.*]] = kvcache.get_cache @layer0
// CHECK-NEXT: kvcache.write %[[K]], %[[V]] to %[[D]]
// CHECK-NEXT: return %[[Q]]
module @calculation {
  func.func @main(%q: tensor<?x2x64xbf16>, %k: tensor<?x2x64xbf16>, %v: tensor<?x2x64xbf16>) -> tensor<?x2x64xbf16> {
    %r:3 = "vllm.maybe_calc_kv_scales"(%q, %k, %v) {layer_name = "model.layers.0.attn", mutated = ["value", "query", "key"], operand_names = ["query", "key", "value"]} : (tensor<?x2x64xbf16>, tensor<?x2x64xbf16>, tensor<?x2x64xbf16>) -> (tensor<?x2x64xbf16>, tensor<?x2x64xbf16>, tensor<?x2x64xbf16>)
    // The token of this update orders nothing; the write stays.
    %t = "vllm.unified_kv_cache_update"(%r#2, %r#0) {layer_name = "model.layers.0.attn", operand_names = ["key", "value"]} : (tensor<?x2x64xbf16>, tensor<?x2x64xbf16>) -> tensor<0xbf16>
    return %r#1 : tensor<?x2x64xbf16>
  }
}

// -----

// Buffers: written in place, no results. Layers without an index, and symbols
// that are taken, get names of their own.

// CHECK-LABEL: module @names
// CHECK: kvcache.cache @decoder_self_attn of "decoder/self attn"
// CHECK: kvcache.cache @layer2_0 of "layers.2.attn"
// CHECK: func.func private @layer2()
// CHECK: kvcache.paged_attention %{{.*}} over %{{.*}} outs(%{{.*}}) : memref<4x2x64xbf16>, !kvcache.cache<2 x 64 x bf16> -> memref<4x2x64xbf16>
module @names {
  func.func private @layer2()
  func.func @main(%q: memref<4x2x64xbf16>, %k: memref<4x2x64xbf16>, %v: memref<4x2x64xbf16>, %out: memref<4x2x64xbf16>) {
    "vllm.unified_kv_cache_update"(%k, %v) {layer_name = "decoder/self attn", operand_names = ["key", "value"]} : (memref<4x2x64xbf16>, memref<4x2x64xbf16>) -> ()
    "vllm.unified_kv_cache_update"(%k, %v) {layer_name = "layers.2.attn", operand_names = ["key", "value"]} : (memref<4x2x64xbf16>, memref<4x2x64xbf16>) -> ()
    "vllm.unified_attention_with_output"(%q, %k, %v, %out) {layer_name = "layers.2.attn", operand_names = ["query", "key", "value", "output"]} : (memref<4x2x64xbf16>, memref<4x2x64xbf16>, memref<4x2x64xbf16>, memref<4x2x64xbf16>) -> ()
    return
  }
}

// -----

// Two layers with one index (self and cross attention) are told apart by name.

// CHECK-LABEL: module @same_index
// CHECK: kvcache.cache @layers.0.self_attn of "layers.0.self_attn"
// CHECK: kvcache.cache @layers.0.cross_attn of "layers.0.cross_attn"
module @same_index {
  func.func @main(%k: tensor<4x2x64xbf16>, %v: tensor<4x2x64xbf16>) {
    %0 = "vllm.unified_kv_cache_update"(%k, %v) {layer_name = "layers.0.self_attn", operand_names = ["key", "value"]} : (tensor<4x2x64xbf16>, tensor<4x2x64xbf16>) -> tensor<0xbf16>
    %1 = "vllm.unified_kv_cache_update"(%k, %v) {layer_name = "layers.0.cross_attn", operand_names = ["key", "value"]} : (tensor<4x2x64xbf16>, tensor<4x2x64xbf16>) -> tensor<0xbf16>
    return
  }
}

// -----

// Two functions use one cache; the second only reads it. The keys that the
// attention gets may be reshaped apart from those that are written.

// CHECK-LABEL: module @two_functions
// CHECK-COUNT-1: kvcache.cache @layer0
// CHECK-NOT: kvcache.cache @
// CHECK: func.func @prefill
// CHECK: kvcache.write
// CHECK: kvcache.paged_attention
// CHECK: func.func @reread
// CHECK-NOT: kvcache.write
// CHECK: kvcache.paged_attention
module @two_functions {
  func.func @prefill(%q: tensor<4x2x64xbf16>, %rows: tensor<4x128xbf16>, %out: tensor<4x2x64xbf16>) -> tensor<4x2x64xbf16> {
    %k = tensor.expand_shape %rows [[0], [1, 2]] output_shape [4, 2, 64] : tensor<4x128xbf16> into tensor<4x2x64xbf16>
    %again = tensor.expand_shape %rows [[0], [1, 2]] output_shape [4, 2, 64] : tensor<4x128xbf16> into tensor<4x2x64xbf16>
    %t = "vllm.unified_kv_cache_update"(%k, %k) {layer_name = "layers.0.attn", operand_names = ["key", "value"]} : (tensor<4x2x64xbf16>, tensor<4x2x64xbf16>) -> tensor<0xbf16>
    %o = "vllm.unified_attention_with_output"(%q, %again, %again, %out, %t) {layer_name = "layers.0.attn", operand_names = ["query", "key", "value", "output", "kv_cache_dummy_dep"]} : (tensor<4x2x64xbf16>, tensor<4x2x64xbf16>, tensor<4x2x64xbf16>, tensor<4x2x64xbf16>, tensor<0xbf16>) -> tensor<4x2x64xbf16>
    return %o : tensor<4x2x64xbf16>
  }
  func.func @reread(%q: tensor<4x2x64xbf16>, %out: tensor<4x2x64xbf16>) -> tensor<4x2x64xbf16> {
    %o = "vllm.unified_attention_with_output"(%q, %out) {layer_name = "layers.0.attn", operand_names = ["query", "output"]} : (tensor<4x2x64xbf16>, tensor<4x2x64xbf16>) -> tensor<4x2x64xbf16>
    return %o : tensor<4x2x64xbf16>
  }
}

// -----

// Calls of declarations: those that nothing uses any more go, others stay.

// CHECK-LABEL: module @calls
// CHECK: func.func @main
// CHECK: kvcache.write
// CHECK: call @vllm.rotary_embedding.1
// CHECK-NOT: @vllm.unified_kv_cache_update.0
// CHECK: func.func private @vllm.rotary_embedding.1
module @calls {
  func.func @main(%k: tensor<4x2x64xbf16>, %v: tensor<4x2x64xbf16>) -> tensor<4x2x64xbf16> {
    %t = call @vllm.unified_kv_cache_update.0(%k, %v) : (tensor<4x2x64xbf16>, tensor<4x2x64xbf16>) -> tensor<0xbf16>
    %r = call @vllm.rotary_embedding.1(%k) : (tensor<4x2x64xbf16>) -> tensor<4x2x64xbf16>
    return %r : tensor<4x2x64xbf16>
  }
  func.func private @vllm.unified_kv_cache_update.0(tensor<4x2x64xbf16>, tensor<4x2x64xbf16>) -> tensor<0xbf16> attributes {torch.attrs = {layer_name = "layers.0.attn"}, torch.mutated = [], torch.op = "vllm::unified_kv_cache_update", torch.operands = ["key", "value"]}
  func.func private @vllm.rotary_embedding.1(tensor<4x2x64xbf16>) -> tensor<4x2x64xbf16> attributes {torch.op = "vllm::rotary_embedding"}
}
