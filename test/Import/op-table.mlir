// RUN: kvcache-opt %s -split-input-file -allow-unregistered-dialect -verify-diagnostics -kvcache-import=op-table=%source/docs/op-tables/onnxruntime.json | FileCheck %s

// ONNX Runtime's attention, without a line of C++: it updates the cache and
// reads it, its rows are flat, and the layer's name is made of the node's.

// CHECK-LABEL: module @decode
// CHECK: kvcache.cache @layer7 of "model.layers.7.self_attn.attn" in @full : 2 x 64 x f16
// CHECK: func.func @main(%[[Q:.*]]: tensor<3x1x256xf16>, %[[K:.*]]: tensor<3x1x128xf16>, %[[V:.*]]: tensor<3x1x128xf16>, %[[PK:.*]]: tensor<3x2x512x64xf8E4M3FN>, %[[PV:.*]]: tensor<3x2x512x64xf8E4M3FN>
// CHECK: %[[K2:.*]] = tensor.collapse_shape %[[K]] {{\[}}[0, 1], [2]] : tensor<3x1x128xf16> into tensor<3x128xf16>
// CHECK: %[[K3:.*]] = tensor.expand_shape %[[K2]] {{\[}}[0], [1, 2]] output_shape [3, 2, 64] : tensor<3x128xf16> into tensor<3x2x64xf16>
// CHECK: %[[V3:.*]] = tensor.expand_shape
// CHECK: kvcache.write %[[K3]], %[[V3]] to %[[C:[a-z0-9]+]]
// CHECK: %[[Q3:.*]] = tensor.expand_shape %{{.*}} output_shape [3, 4, 64] : tensor<3x256xf16> into tensor<3x4x64xf16>
// CHECK: %[[E:.*]] = tensor.empty() : tensor<3x4x64xf16>
// CHECK: %[[O:.*]] = kvcache.paged_attention %[[Q3]] over %[[C]] outs(%[[E]]) {softmax_scale = 1.250000e-01 : f64, window = 128 : i64}
// CHECK: %[[O2:.*]] = tensor.collapse_shape %[[O]] {{\[}}[0], [1, 2]]
// CHECK: %[[FLAT:.*]] = tensor.expand_shape %[[O2]] {{\[}}[0, 1], [2]] output_shape [3, 1, 256]
// CHECK: return %[[FLAT]], %[[PK]], %[[PV]]
module @decode {
  func.func @main(%q: tensor<3x1x256xf16>, %k: tensor<3x1x128xf16>, %v: tensor<3x1x128xf16>, %pk: tensor<3x2x512x64xf8E4M3FN>, %pv: tensor<3x2x512x64xf8E4M3FN>, %seqlens: tensor<3xi32>, %total: tensor<i32>, %ks: tensor<1xf32>, %vs: tensor<1xf32>)
      -> (tensor<3x1x256xf16>, tensor<3x2x512x64xf8E4M3FN>, tensor<3x2x512x64xf8E4M3FN>) {
    %none = "onnx.NoValue"() : () -> none
    // expected-remark @+1 {{layer 'model.layers.7.self_attn.attn': the caches, the slot mapping and the scales that the graph passes as arguments stay unused; @layer7}}
    %o:3 = "com.microsoft.GroupQueryAttention"(%q, %k, %v, %pk, %pv, %seqlens, %total, %none, %none, %none, %none, %none, %ks, %vs)
      {onnx_node_name = "/model/layers.7/attn/GroupQueryAttention", num_heads = 4 : si64, kv_num_heads = 2 : si64, scale = 1.250000e-01 : f32, softcap = 0.0 : f32, local_window_size = 128 : si64, do_rotary = 0 : si64, k_quant_type = "PER_TENSOR"}
      : (tensor<3x1x256xf16>, tensor<3x1x128xf16>, tensor<3x1x128xf16>, tensor<3x2x512x64xf8E4M3FN>, tensor<3x2x512x64xf8E4M3FN>, tensor<3xi32>, tensor<i32>, none, none, none, none, none, tensor<1xf32>, tensor<1xf32>)
      -> (tensor<3x1x256xf16>, tensor<3x2x512x64xf8E4M3FN>, tensor<3x2x512x64xf8E4M3FN>)
    return %o#0, %o#1, %o#2 : tensor<3x1x256xf16>, tensor<3x2x512x64xf8E4M3FN>, tensor<3x2x512x64xf8E4M3FN>
  }
}

// -----

// As onnx-mlir has it, with sizes that are not known, an attribute at its
// default, and a result of another size that nobody uses.

// CHECK-LABEL: module @dynamic
// CHECK: kvcache.write %{{.*}}, %{{.*}} to %{{.*}} : tensor<?x2x64xf16>
// CHECK: kvcache.paged_attention %{{.*}} over %{{.*}} outs(%{{.*}}) : tensor<?x4x64xf16>
// CHECK: tensor.expand_shape %{{.*}} {{\[}}[0, 1], [2]] output_shape [%{{.*}}, %{{.*}}, 256] : tensor<?x256xf16> into tensor<?x?x256xf16>
module @dynamic {
  func.func @main(%q: tensor<?x?x256xf16>, %k: tensor<?x?x128xf16>, %pk: tensor<?x2x?x64xf16>, %seqlens: tensor<?xi32>, %total: tensor<i32>) -> tensor<?x?x256xf16> {
    // expected-remark @+1 {{stay unused}}
    %o:3 = "onnx.Custom"(%q, %k, %k, %pk, %pk, %seqlens, %total)
      {domain_name = "com.microsoft", function_name = "GroupQueryAttention", onnx_node_name = "layers.0.attn", num_heads = 4 : si64, kv_num_heads = 2 : si64, local_window_size = -1 : si64}
      : (tensor<?x?x256xf16>, tensor<?x?x128xf16>, tensor<?x?x128xf16>, tensor<?x2x?x64xf16>, tensor<?x2x?x64xf16>, tensor<?xi32>, tensor<i32>) -> (tensor<?x?x256xf16>, tensor<?x2x9x64xf16>, tensor<?x2x9x64xf16>)
    return %o#0 : tensor<?x?x256xf16>
  }
}

// -----

// The op for paged caches; its table comes with the declared cache.

// CHECK-LABEL: module @paged
// CHECK: kvcache.write %{{.*}}, %{{.*}} to %{{.*}} : tensor<?x2x64xf16>
// CHECK: kvcache.paged_attention %{{.*}} over %{{.*}} outs(%{{.*}}) {soft_cap = 3.000000e+01 : f64}
// CHECK: return %{{.*}}, %[[KC:arg3]] : tensor<?x256xf16>, tensor<9x16x2x64xf8E4M3FN>
module @paged {
  func.func @main(%q: tensor<?x256xf16>, %k: tensor<?x128xf16>, %v: tensor<?x128xf16>, %kc: tensor<9x16x2x64xf8E4M3FN>, %vc: tensor<9x16x2x64xf8E4M3FN>, %start: tensor<4xi32>, %past: tensor<3xi32>, %table: tensor<3x3xi32>) -> (tensor<?x256xf16>, tensor<9x16x2x64xf8E4M3FN>) {
    // expected-remark @+1 {{stay unused}}
    %o:3 = "com.microsoft.PagedAttention"(%q, %k, %v, %kc, %vc, %start, %past, %table) {onnx_node_name = "layers.1", num_heads = 4 : si64, kv_num_heads = 2 : si64, softcap = 3.000000e+01 : f32, k_quant_type = "PER_TENSOR", is_causal = 1 : si64}
      : (tensor<?x256xf16>, tensor<?x128xf16>, tensor<?x128xf16>, tensor<9x16x2x64xf8E4M3FN>, tensor<9x16x2x64xf8E4M3FN>, tensor<4xi32>, tensor<3xi32>, tensor<3x3xi32>) -> (tensor<?x256xf16>, tensor<9x16x2x64xf8E4M3FN>, tensor<9x16x2x64xf8E4M3FN>)
    return %o#0, %o#1 : tensor<?x256xf16>, tensor<9x16x2x64xf8E4M3FN>
  }
}

// -----

func.func @main(%q: tensor<3x1x256xf16>, %k: tensor<3x1x128xf16>, %seqlens: tensor<3xi32>, %total: tensor<i32>) {
  %none = "onnx.NoValue"() : () -> none
  // expected-error @+1 {{'com.microsoft.GroupQueryAttention' of layer 'model.layers.0.self_attn.attn' has 'do_rotary' = 1 : si64: the op rotates query and key itself; export the model with rotary embeddings as ops of their own}}
  %o = "com.microsoft.GroupQueryAttention"(%q, %k, %k, %none, %none, %seqlens, %total) {onnx_node_name = "layers.0", num_heads = 4 : si64, kv_num_heads = 2 : si64, do_rotary = 1 : si64}
    : (tensor<3x1x256xf16>, tensor<3x1x128xf16>, tensor<3x1x128xf16>, none, none, tensor<3xi32>, tensor<i32>) -> tensor<3x1x256xf16>
  return
}

// -----

func.func @main(%q: tensor<3x1x256xf16>, %k: tensor<3x1x128xf16>, %seqlens: tensor<3xi32>, %total: tensor<i32>) {
  %none = "onnx.NoValue"() : () -> none
  // expected-error @+1 {{'onnx_node_name' of 'com.microsoft.GroupQueryAttention' has no number in it: "attention"; the op table makes the layer's name from that number, as "model.layers.{index}.self_attn.attn"}}
  %o = "com.microsoft.GroupQueryAttention"(%q, %k, %k, %none, %none, %seqlens, %total) {onnx_node_name = "attention", num_heads = 4 : si64, kv_num_heads = 2 : si64}
    : (tensor<3x1x256xf16>, tensor<3x1x128xf16>, tensor<3x1x128xf16>, none, none, tensor<3xi32>, tensor<i32>) -> tensor<3x1x256xf16>
  return
}

// -----

func.func @main(%q: tensor<3x1x256xf16>, %k: tensor<3x1x128xf16>, %seqlens: tensor<3xi32>, %total: tensor<i32>) {
  %none = "onnx.NoValue"() : () -> none
  // expected-error @+1 {{of layer 'model.layers.0.self_attn.attn' must have a positive integer 'kv_num_heads', but has none}}
  %o = "com.microsoft.GroupQueryAttention"(%q, %k, %k, %none, %none, %seqlens, %total) {onnx_node_name = "layers.0", num_heads = 4 : si64}
    : (tensor<3x1x256xf16>, tensor<3x1x128xf16>, tensor<3x1x128xf16>, none, none, tensor<3xi32>, tensor<i32>) -> tensor<3x1x256xf16>
  return
}

// -----

// One f16 logit a head joins the softmax as f32.

// CHECK-LABEL: module @sinks
// CHECK: func.func @main(%{{.*}}, %[[SINKS:[a-z0-9]+]]: tensor<4xf16>)
// CHECK: %[[F32:.*]] = arith.extf %[[SINKS]] : tensor<4xf16> to tensor<4xf32>
// CHECK: kvcache.paged_attention %{{.*}} sinks(%[[F32]] : tensor<4xf32>)
module @sinks {
  func.func @main(%q: tensor<3x1x256xf16>, %k: tensor<3x1x128xf16>, %seqlens: tensor<3xi32>, %total: tensor<i32>, %sinks: tensor<4xf16>) -> tensor<3x1x256xf16> {
    %none = "onnx.NoValue"() : () -> none
    // expected-remark @+1 {{stay unused}}
    %o = "com.microsoft.GroupQueryAttention"(%q, %k, %k, %none, %none, %seqlens, %total, %none, %none, %none, %none, %sinks) {onnx_node_name = "layers.0", num_heads = 4 : si64, kv_num_heads = 2 : si64}
      : (tensor<3x1x256xf16>, tensor<3x1x128xf16>, tensor<3x1x128xf16>, none, none, tensor<3xi32>, tensor<i32>, none, none, none, none, tensor<4xf16>) -> tensor<3x1x256xf16>
    return %o : tensor<3x1x256xf16>
  }
}

// -----

func.func @main(%q: tensor<3x1x256xf16>, %k: tensor<3x1x128xf16>, %seqlens: tensor<3xi32>, %total: tensor<i32>, %sinks: tensor<2xf16>) -> tensor<3x1x256xf16> {
  %none = "onnx.NoValue"() : () -> none
  // expected-error @+1 {{sinks must be a tensor of f16, bf16 or f32 with one value for each of the 4 query heads, but are 'tensor<2xf16>'}}
  %o = "com.microsoft.GroupQueryAttention"(%q, %k, %k, %none, %none, %seqlens, %total, %none, %none, %none, %none, %sinks) {onnx_node_name = "layers.0", num_heads = 4 : si64, kv_num_heads = 2 : si64}
    : (tensor<3x1x256xf16>, tensor<3x1x128xf16>, tensor<3x1x128xf16>, none, none, tensor<3xi32>, tensor<i32>, none, none, none, none, tensor<2xf16>) -> tensor<3x1x256xf16>
  return %o : tensor<3x1x256xf16>
}
