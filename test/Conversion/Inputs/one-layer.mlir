func.func @main(%q: tensor<?x4x64xbf16>, %k: tensor<?x2x64xbf16>, %v: tensor<?x2x64xbf16>, %out: tensor<?x4x64xbf16>) -> tensor<?x4x64xbf16> {
  %t = "vllm.unified_kv_cache_update"(%k, %v) {layer_name = "model.layers.0.self_attn.attn", mutated = [], operand_names = ["key", "value"]}
    : (tensor<?x2x64xbf16>, tensor<?x2x64xbf16>) -> tensor<0xbf16>
  %o = "vllm.unified_attention_with_output"(%q, %k, %v, %out, %t) {layer_name = "model.layers.0.self_attn.attn", mutated = ["output"],
      operand_names = ["query", "key", "value", "output", "kv_cache_dummy_dep"]}
    : (tensor<?x4x64xbf16>, tensor<?x2x64xbf16>, tensor<?x2x64xbf16>, tensor<?x4x64xbf16>, tensor<0xbf16>) -> tensor<?x4x64xbf16>
  return %o : tensor<?x4x64xbf16>
}
