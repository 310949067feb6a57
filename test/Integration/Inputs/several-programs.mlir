// Prefill and decode of one layer, with different numbers of tokens; a layer whose
// cache a second attention reads, whose output starts as its query; and two layers
// of which one hands its output on, so that one writes and reads in two segments.

func.func @prefill(%q: tensor<?x4x64xbf16>, %k: tensor<?x2x64xbf16>, %v: tensor<?x2x64xbf16>, %out: tensor<?x4x64xbf16>) -> tensor<?x4x64xbf16> {
  %t = "vllm.unified_kv_cache_update"(%k, %v) {layer_name = "model.layers.0.self_attn.attn", mutated = [], operand_names = ["key", "value"]} : (tensor<?x2x64xbf16>, tensor<?x2x64xbf16>) -> tensor<0xbf16>
  %o = "vllm.unified_attention_with_output"(%q, %k, %v, %out, %t) {layer_name = "model.layers.0.self_attn.attn", mutated = ["output"], operand_names = ["query", "key", "value", "output", "kv_cache_dummy_dep"]} : (tensor<?x4x64xbf16>, tensor<?x2x64xbf16>, tensor<?x2x64xbf16>, tensor<?x4x64xbf16>, tensor<0xbf16>) -> tensor<?x4x64xbf16>
  return %o : tensor<?x4x64xbf16>
}

func.func @decode(%q: tensor<3x4x64xbf16>, %k: tensor<3x2x64xbf16>, %v: tensor<3x2x64xbf16>, %out: tensor<3x4x64xbf16>) -> tensor<3x4x64xbf16> {
  %t = "vllm.unified_kv_cache_update"(%k, %v) {layer_name = "model.layers.0.self_attn.attn", mutated = [], operand_names = ["key", "value"]} : (tensor<3x2x64xbf16>, tensor<3x2x64xbf16>) -> tensor<0xbf16>
  %o = "vllm.unified_attention_with_output"(%q, %k, %v, %out, %t) {layer_name = "model.layers.0.self_attn.attn", mutated = ["output"], operand_names = ["query", "key", "value", "output", "kv_cache_dummy_dep"]} : (tensor<3x4x64xbf16>, tensor<3x2x64xbf16>, tensor<3x2x64xbf16>, tensor<3x4x64xbf16>, tensor<0xbf16>) -> tensor<3x4x64xbf16>
  return %o : tensor<3x4x64xbf16>
}

func.func @shared(%q: tensor<?x4x64xbf16>, %k: tensor<?x2x64xbf16>, %v: tensor<?x2x64xbf16>, %out: tensor<?x4x64xbf16>, %r: tensor<?x4x64xbf16>) -> (tensor<?x4x64xbf16>, tensor<?x4x64xbf16>) {
  %t = "vllm.unified_kv_cache_update"(%k, %v) {layer_name = "model.layers.1.self_attn.attn", mutated = [], operand_names = ["key", "value"]} : (tensor<?x2x64xbf16>, tensor<?x2x64xbf16>) -> tensor<0xbf16>
  %o = "vllm.unified_attention_with_output"(%q, %k, %v, %out, %t) {layer_name = "model.layers.1.self_attn.attn", mutated = ["output"], operand_names = ["query", "key", "value", "output", "kv_cache_dummy_dep"]} : (tensor<?x4x64xbf16>, tensor<?x2x64xbf16>, tensor<?x2x64xbf16>, tensor<?x4x64xbf16>, tensor<0xbf16>) -> tensor<?x4x64xbf16>
  %p = "vllm.unified_attention_with_output"(%r, %k, %v, %r, %t) {layer_name = "model.layers.1.self_attn.attn", mutated = ["output"], operand_names = ["query", "key", "value", "output", "kv_cache_dummy_dep"]} : (tensor<?x4x64xbf16>, tensor<?x2x64xbf16>, tensor<?x2x64xbf16>, tensor<?x4x64xbf16>, tensor<0xbf16>) -> tensor<?x4x64xbf16>
  return %o, %p : tensor<?x4x64xbf16>, tensor<?x4x64xbf16>
}

func.func @handed_on(%q: tensor<?x4x64xbf16>, %k: tensor<?x2x64xbf16>, %v: tensor<?x2x64xbf16>, %out: tensor<?x4x64xbf16>) -> (tensor<?x4x64xbf16>, tensor<?x4x64xbf16>) {
  %t = "vllm.unified_kv_cache_update"(%k, %v) {layer_name = "model.layers.0.self_attn.attn", mutated = [], operand_names = ["key", "value"]} : (tensor<?x2x64xbf16>, tensor<?x2x64xbf16>) -> tensor<0xbf16>
  %u = "vllm.unified_kv_cache_update"(%k, %v) {layer_name = "model.layers.1.self_attn.attn", mutated = [], operand_names = ["key", "value"]} : (tensor<?x2x64xbf16>, tensor<?x2x64xbf16>) -> tensor<0xbf16>
  %o = "vllm.unified_attention_with_output"(%q, %k, %v, %out, %t) {layer_name = "model.layers.0.self_attn.attn", mutated = ["output"], operand_names = ["query", "key", "value", "output", "kv_cache_dummy_dep"]} : (tensor<?x4x64xbf16>, tensor<?x2x64xbf16>, tensor<?x2x64xbf16>, tensor<?x4x64xbf16>, tensor<0xbf16>) -> tensor<?x4x64xbf16>
  %p = "vllm.unified_attention_with_output"(%q, %k, %v, %o, %u) {layer_name = "model.layers.1.self_attn.attn", mutated = ["output"], operand_names = ["query", "key", "value", "output", "kv_cache_dummy_dep"]} : (tensor<?x4x64xbf16>, tensor<?x2x64xbf16>, tensor<?x2x64xbf16>, tensor<?x4x64xbf16>, tensor<0xbf16>) -> tensor<?x4x64xbf16>
  return %o, %p : tensor<?x4x64xbf16>, tensor<?x4x64xbf16>
}
