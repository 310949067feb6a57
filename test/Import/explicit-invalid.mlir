// RUN: kvcache-opt %s -allow-unregistered-dialect -split-input-file -verify-diagnostics -kvcache-import

// An update without a layer name whose rows no attention has.

func.func @main(%q: tensor<4x2x64xbf16>, %k: tensor<4x2x64xbf16>, %v: tensor<4x2x64xbf16>, %out: tensor<4x2x64xbf16>, %c: tensor<2x16x2x64xf8E4M3FN>, %slots: tensor<4xi64>, %s: tensor<1xf32>) {
  // expected-error @+1 {{'_C_cache_ops.reshape_and_cache_flash' names no layer, and no attention op of the function has its key and value, so which layer's cache it writes is unknown}}
  %w:2 = "_C_cache_ops.reshape_and_cache_flash"(%k, %v, %c, %c, %slots, %s, %s) {mutated = ["key_cache", "value_cache"], operand_names = ["key", "value", "key_cache", "value_cache", "slot_mapping", "k_scale", "v_scale"]} : (tensor<4x2x64xbf16>, tensor<4x2x64xbf16>, tensor<2x16x2x64xf8E4M3FN>, tensor<2x16x2x64xf8E4M3FN>, tensor<4xi64>, tensor<1xf32>, tensor<1xf32>) -> (tensor<2x16x2x64xf8E4M3FN>, tensor<2x16x2x64xf8E4M3FN>)
  %o = "vllm.unified_attention_with_output"(%q, %v, %k, %out) {layer_name = "layers.0.attn", operand_names = ["query", "key", "value", "output"]} : (tensor<4x2x64xbf16>, tensor<4x2x64xbf16>, tensor<4x2x64xbf16>, tensor<4x2x64xbf16>) -> tensor<4x2x64xbf16>
  return
}

// -----

// One that two layers' attentions fit.

func.func @main(%q: tensor<4x2x64xbf16>, %k: tensor<4x2x64xbf16>, %v: tensor<4x2x64xbf16>, %out: tensor<4x2x64xbf16>, %c: tensor<2x16x2x64xf8E4M3FN>, %slots: tensor<4xi64>, %s: tensor<1xf32>) {
  // expected-error @+1 {{its key and value belong to 2 layers, so which one's cache it writes is unknown}}
  %w:2 = "_C_cache_ops.reshape_and_cache_flash"(%k, %v, %c, %c, %slots, %s, %s) {mutated = ["key_cache", "value_cache"], operand_names = ["key", "value", "key_cache", "value_cache", "slot_mapping", "k_scale", "v_scale"]} : (tensor<4x2x64xbf16>, tensor<4x2x64xbf16>, tensor<2x16x2x64xf8E4M3FN>, tensor<2x16x2x64xf8E4M3FN>, tensor<4xi64>, tensor<1xf32>, tensor<1xf32>) -> (tensor<2x16x2x64xf8E4M3FN>, tensor<2x16x2x64xf8E4M3FN>)
  // expected-note @+1 {{layer 'layers.0.attn' has them}}
  %o = "vllm.unified_attention_with_output"(%q, %k, %v, %out) {layer_name = "layers.0.attn", operand_names = ["query", "key", "value", "output"]} : (tensor<4x2x64xbf16>, tensor<4x2x64xbf16>, tensor<4x2x64xbf16>, tensor<4x2x64xbf16>) -> tensor<4x2x64xbf16>
  // expected-note @+1 {{layer 'layers.1.attn' has them}}
  %p = "vllm.unified_attention_with_output"(%q, %k, %v, %out) {layer_name = "layers.1.attn", operand_names = ["query", "key", "value", "output"]} : (tensor<4x2x64xbf16>, tensor<4x2x64xbf16>, tensor<4x2x64xbf16>, tensor<4x2x64xbf16>) -> tensor<4x2x64xbf16>
  return
}

// -----

// A scale that the graph gives twice, tensor and host float, must be one scale.

func.func @main(%q: tensor<4x2x64xbf16>, %k: tensor<4x2x64xbf16>, %v: tensor<4x2x64xbf16>, %out: tensor<4x2x64xbf16>, %c: tensor<2x16x2x64xf8E4M3FN>, %slots: tensor<4xi64>) {
  %s = arith.constant dense<0.5> : tensor<1xf32>
  // expected-error @+1 {{'_C_cache_ops.reshape_and_cache_flash' gives its k_scale twice: the tensor is 5.000000e-01, but '_k_scale_float' is 2.500000e-01; expected equal values}}
  %w:2 = "_C_cache_ops.reshape_and_cache_flash"(%k, %v, %c, %c, %slots, %s, %s) {_k_scale_float = 0.25 : f64, mutated = ["key_cache", "value_cache"], operand_names = ["key", "value", "key_cache", "value_cache", "slot_mapping", "k_scale", "v_scale"]} : (tensor<4x2x64xbf16>, tensor<4x2x64xbf16>, tensor<2x16x2x64xf8E4M3FN>, tensor<2x16x2x64xf8E4M3FN>, tensor<4xi64>, tensor<1xf32>, tensor<1xf32>) -> (tensor<2x16x2x64xf8E4M3FN>, tensor<2x16x2x64xf8E4M3FN>)
  %o = "vllm.unified_attention_with_output"(%q, %k, %v, %out) {layer_name = "layers.0.attn", operand_names = ["query", "key", "value", "output"]} : (tensor<4x2x64xbf16>, tensor<4x2x64xbf16>, tensor<4x2x64xbf16>, tensor<4x2x64xbf16>) -> tensor<4x2x64xbf16>
  return
}

// -----

// The same value twice is fine.

func.func @main(%q: tensor<4x2x64xbf16>, %k: tensor<4x2x64xbf16>, %v: tensor<4x2x64xbf16>, %out: tensor<4x2x64xbf16>, %c: tensor<2x16x2x64xf8E4M3FN>, %slots: tensor<4xi64>) {
  %s = arith.constant dense<0.1> : tensor<1xf32>
  // expected-remark @+1 {{the caches, the slot mapping and the scales that the graph passes as arguments stay unused}}
  %w:2 = "_C_cache_ops.reshape_and_cache_flash"(%k, %v, %c, %c, %slots, %s, %s) {_k_scale_float = 0.1 : f64, mutated = ["key_cache", "value_cache"], operand_names = ["key", "value", "key_cache", "value_cache", "slot_mapping", "k_scale", "v_scale"]} : (tensor<4x2x64xbf16>, tensor<4x2x64xbf16>, tensor<2x16x2x64xf8E4M3FN>, tensor<2x16x2x64xf8E4M3FN>, tensor<4xi64>, tensor<1xf32>, tensor<1xf32>) -> (tensor<2x16x2x64xf8E4M3FN>, tensor<2x16x2x64xf8E4M3FN>)
  %o = "vllm.unified_attention_with_output"(%q, %k, %v, %out) {layer_name = "layers.0.attn", operand_names = ["query", "key", "value", "output"]} : (tensor<4x2x64xbf16>, tensor<4x2x64xbf16>, tensor<4x2x64xbf16>, tensor<4x2x64xbf16>) -> tensor<4x2x64xbf16>
  return
}

// -----

// One quantization for the queries of two layers has one scale for both.

func.func @main(%x: tensor<4x2x64xbf16>, %q: tensor<4x2x64xf8E4M3FN>, %k: tensor<4x2x64xbf16>, %v: tensor<4x2x64xbf16>, %out: tensor<4x2x64xbf16>, %s: tensor<1xf32>) {
  // expected-error @+1 {{'_C.static_scaled_fp8_quant' of the query of layer 'layers.1.attn' also quantizes the query of layer 'layers.0.attn'; each layer has a q scale of its own}}
  %f = "_C.static_scaled_fp8_quant"(%q, %x, %s) {mutated = ["result"], operand_names = ["result", "input", "scale"]} : (tensor<4x2x64xf8E4M3FN>, tensor<4x2x64xbf16>, tensor<1xf32>) -> tensor<4x2x64xf8E4M3FN>
  %t = "vllm.unified_kv_cache_update"(%k, %v) {layer_name = "layers.0.attn", operand_names = ["key", "value"]} : (tensor<4x2x64xbf16>, tensor<4x2x64xbf16>) -> tensor<0xbf16>
  %o = "vllm.unified_attention_with_output"(%f, %k, %v, %out, %t) {layer_name = "layers.0.attn", operand_names = ["query", "key", "value", "output", "kv_cache_dummy_dep"]} : (tensor<4x2x64xf8E4M3FN>, tensor<4x2x64xbf16>, tensor<4x2x64xbf16>, tensor<4x2x64xbf16>, tensor<0xbf16>) -> tensor<4x2x64xbf16>
  %u = "vllm.unified_kv_cache_update"(%k, %v) {layer_name = "layers.1.attn", operand_names = ["key", "value"]} : (tensor<4x2x64xbf16>, tensor<4x2x64xbf16>) -> tensor<0xbf16>
  %p = "vllm.unified_attention_with_output"(%f, %k, %v, %out, %u) {layer_name = "layers.1.attn", operand_names = ["query", "key", "value", "output", "kv_cache_dummy_dep"]} : (tensor<4x2x64xf8E4M3FN>, tensor<4x2x64xbf16>, tensor<4x2x64xbf16>, tensor<4x2x64xbf16>, tensor<0xbf16>) -> tensor<4x2x64xbf16>
  return
}
