// Layers 2 and 3 have no cache update. Layer 2 has keys and values of its own.
func.func @main(%q: tensor<8x4x64xbf16>, %k: tensor<8x2x64xbf16>, %v: tensor<8x2x64xbf16>, %w: tensor<8x2x64xbf16>, %out: tensor<8x4x64xbf16>) -> tensor<8x4x64xbf16> {
  %t0 = "vllm.unified_kv_cache_update"(%k, %v) {layer_name = "model.layers.0.self_attn.attn", operand_names = ["key", "value"], mutated = []} : (tensor<8x2x64xbf16>, tensor<8x2x64xbf16>) -> tensor<0xbf16> // dep of layer 0
  %o0 = "vllm.unified_attention_with_output"(%q, %k, %v, %out, %t0) {layer_name = "model.layers.0.self_attn.attn", operand_names = ["query", "key", "value", "output", "kv_cache_dummy_dep"], mutated = ["output"]} : (tensor<8x4x64xbf16>, tensor<8x2x64xbf16>, tensor<8x2x64xbf16>, tensor<8x4x64xbf16>, tensor<0xbf16>) -> tensor<8x4x64xbf16> // dep of layer 0
  %t1 = "vllm.unified_kv_cache_update"(%k, %v) {layer_name = "model.layers.1.self_attn.attn", operand_names = ["key", "value"], mutated = []} : (tensor<8x2x64xbf16>, tensor<8x2x64xbf16>) -> tensor<0xbf16> // dep of layer 1
  %o1 = "vllm.unified_attention_with_output"(%q, %k, %v, %out, %t1) {layer_name = "model.layers.1.self_attn.attn", operand_names = ["query", "key", "value", "output", "kv_cache_dummy_dep"], mutated = ["output"]} : (tensor<8x4x64xbf16>, tensor<8x2x64xbf16>, tensor<8x2x64xbf16>, tensor<8x4x64xbf16>, tensor<0xbf16>) -> tensor<8x4x64xbf16> // dep of layer 1
  %o2 = "vllm.unified_attention_with_output"(%q, %w, %w, %out) {layer_name = "model.layers.2.self_attn.attn", operand_names = ["query", "key", "value", "output"], mutated = ["output"]} : (tensor<8x4x64xbf16>, tensor<8x2x64xbf16>, tensor<8x2x64xbf16>, tensor<8x4x64xbf16>) -> tensor<8x4x64xbf16>
  %o3 = "vllm.unified_attention_with_output"(%o2, %out) {layer_name = "model.layers.3.self_attn.attn", operand_names = ["query", "output"], mutated = ["output"]} : (tensor<8x4x64xbf16>, tensor<8x4x64xbf16>) -> tensor<8x4x64xbf16>
  return %o3 : tensor<8x4x64xbf16>
}
