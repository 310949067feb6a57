// RUN: kvcache-opt %s -split-input-file -allow-unregistered-dialect -kvcache-import 2>/dev/null | FileCheck %s

// Results of a custom call are the operands that its aliases name; nothing of
// the call but the attributes of the custom op is kept.

// CHECK-LABEL: module @aliases
// CHECK: func.func @main(%[[K:.*]]: tensor<8x2x64xbf16>, %[[KC:.*]]: tensor<4x16x2x64xf8E4M3FN>, %[[VC:.*]]: tensor<4x16x2x64xf8E4M3FN>
// CHECK: kvcache.write %[[K]], %[[K]]
// CHECK: kvcache.paged_attention %[[K]] over %{{.*}} outs(%[[K]]) {trace_id = 7 : i64} :
// CHECK: return %[[VC]], %[[KC]]
module @aliases {
  func.func @main(%k: tensor<8x2x64xbf16>, %kc: tensor<4x16x2x64xf8E4M3FN>, %vc: tensor<4x16x2x64xf8E4M3FN>, %slots: tensor<8xi64>, %s: tensor<1xf32>) -> (tensor<4x16x2x64xf8E4M3FN>, tensor<4x16x2x64xf8E4M3FN>) {
    %c:2 = "stablehlo.custom_call"(%k, %k, %kc, %vc, %slots, %s, %s) <{api_version = 4 : i32, backend_config = {kv_cache_dtype = "fp8", operand_names = ["key", "value", "key_cache", "value_cache", "slot_mapping", "k_scale", "v_scale"]}, call_target_name = "_C_cache_ops.reshape_and_cache_flash", has_side_effect = true, output_operand_aliases = [#stablehlo.output_operand_alias<output_tuple_indices = [0], operand_index = 3, operand_tuple_indices = []>, #stablehlo.output_operand_alias<output_tuple_indices = [1], operand_index = 2, operand_tuple_indices = []>]}> : (tensor<8x2x64xbf16>, tensor<8x2x64xbf16>, tensor<4x16x2x64xf8E4M3FN>, tensor<4x16x2x64xf8E4M3FN>, tensor<8xi64>, tensor<1xf32>, tensor<1xf32>) -> (tensor<4x16x2x64xf8E4M3FN>, tensor<4x16x2x64xf8E4M3FN>)
    %o = "stablehlo.custom_call"(%k, %k, %k, %k) <{api_version = 4 : i32, backend_config = {layer_name = "layers.0.attn", trace_id = 7 : i64, operand_names = ["query", "key", "value", "output"]}, call_target_name = "vllm.unified_attention_with_output", has_side_effect = true, output_operand_aliases = [#stablehlo.output_operand_alias<output_tuple_indices = [], operand_index = 3, operand_tuple_indices = []>]}> : (tensor<8x2x64xbf16>, tensor<8x2x64xbf16>, tensor<8x2x64xbf16>, tensor<8x2x64xbf16>) -> tensor<8x2x64xbf16>
    return %c#0, %c#1 : tensor<4x16x2x64xf8E4M3FN>, tensor<4x16x2x64xf8E4M3FN>
  }
}

// -----

// Composites say what they mean by themselves. An attention without an output
// operand gets a new one. The decompositions that nothing else uses go.

// CHECK-LABEL: module @composites
// CHECK: kvcache.cache @layer5 of "layers.5.attn" in @full : 2 x 64 x bf16
// CHECK: func.func @main(%[[Q:.*]]: tensor<?x4x64xbf16>, %[[K:.*]]: tensor<?x2x64xbf16>, %[[V:.*]]: tensor<?x2x64xbf16>)
// CHECK: kvcache.write %[[K]], %[[V]]
// CHECK: %[[N:.*]] = tensor.dim %[[Q]]
// CHECK: %[[OUT:.*]] = tensor.empty(%[[N]]) : tensor<?x4x64xbf16>
// CHECK: %[[O:.*]] = kvcache.paged_attention %[[Q]] over %{{.*}} outs(%[[OUT]]) {softmax_scale = 1.250000e-01 : f64, window = 128 : i64}
// CHECK: return %[[O]]
// CHECK-NOT: @write_body
// CHECK: func.func private @attention_body(
module @composites {
  func.func @main(%q: tensor<?x4x64xbf16>, %k: tensor<?x2x64xbf16>, %v: tensor<?x2x64xbf16>) -> tensor<?x4x64xbf16> {
    %t = "stablehlo.composite"(%k, %v) <{name = "kvcache.write", composite_attributes = {layer_name = "layers.5.attn"}, decomposition = @write_body, version = 1 : i32}> : (tensor<?x2x64xbf16>, tensor<?x2x64xbf16>) -> tensor<0xbf16>
    %o = "stablehlo.composite"(%q, %t) <{name = "kvcache.paged_attention", composite_attributes = {layer_name = "layers.5.attn", softmax_scale = 1.250000e-01 : f32, window = 128 : i64}, decomposition = @attention_body, version = 1 : i32}> : (tensor<?x4x64xbf16>, tensor<0xbf16>) -> tensor<?x4x64xbf16>
    return %o : tensor<?x4x64xbf16>
  }
  func.func private @write_body(%k: tensor<?x2x64xbf16>, %v: tensor<?x2x64xbf16>) -> tensor<0xbf16> {
    %t = tensor.empty() : tensor<0xbf16>
    return %t : tensor<0xbf16>
  }
  func.func private @attention_body(%q: tensor<?x4x64xbf16>, %t: tensor<0xbf16>) -> tensor<?x4x64xbf16> {
    return %q : tensor<?x4x64xbf16>
  }
  func.func @other(%q: tensor<?x4x64xbf16>, %t: tensor<0xbf16>) -> tensor<?x4x64xbf16> {
    %o = call @attention_body(%q, %t) : (tensor<?x4x64xbf16>, tensor<0xbf16>) -> tensor<?x4x64xbf16>
    return %o : tensor<?x4x64xbf16>
  }
}
