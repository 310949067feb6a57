// What import of MLA refuses, and why.
// RUN: kvcache-opt %s -split-input-file -verify-diagnostics -allow-unregistered-dialect -kvcache-import -o /dev/null

// A latent part with heads.

func.func @main(%q: tensor<4x2x128xbf16>, %l: tensor<4x1x512xbf16>, %r: tensor<4x1x64xbf16>, %out: tensor<4x64xbf16>, %s: tensor<f32>) -> tensor<4x64xbf16> {
  // expected-error @+1 {{the latent part must be a tensor [tokens, elements] and the rotary part [tokens, elements] or [tokens, 1, elements], both of f16, bf16 or f32 and of the same tokens, but they are 'tensor<4x1x512xbf16>' and 'tensor<4x1x64xbf16>'}}
  %t = "vllm.unified_mla_kv_cache_update"(%l, %r, %s) {layer_name = "layers.0.attn", mutated = [], operand_names = ["kv_c_normed", "k_pe", "k_scale"]} : (tensor<4x1x512xbf16>, tensor<4x1x64xbf16>, tensor<f32>) -> tensor<0xbf16>
  %o = "vllm.unified_mla_attention_with_output"(%q, %l, %r, %out, %t) {layer_name = "layers.0.attn", mutated = ["output"], operand_names = ["q", "kv_c_normed", "k_pe", "output", "kv_cache_dummy_dep"]} : (tensor<4x2x128xbf16>, tensor<4x1x512xbf16>, tensor<4x1x64xbf16>, tensor<4x64xbf16>, tensor<0xbf16>) -> tensor<4x64xbf16>
  return %o : tensor<4x64xbf16>
}

// -----

// Two rotary heads.

func.func @main(%q: tensor<4x2x128xbf16>, %l: tensor<4x512xbf16>, %r: tensor<4x2x64xbf16>, %out: tensor<4x64xbf16>, %s: tensor<f32>) -> tensor<4x64xbf16> {
  // expected-error @+1 {{the latent part must be a tensor [tokens, elements] and the rotary part [tokens, elements] or [tokens, 1, elements], both of f16, bf16 or f32 and of the same tokens, but they are 'tensor<4x512xbf16>' and 'tensor<4x2x64xbf16>'}}
  %t = "vllm.unified_mla_kv_cache_update"(%l, %r, %s) {layer_name = "layers.0.attn", mutated = [], operand_names = ["kv_c_normed", "k_pe", "k_scale"]} : (tensor<4x512xbf16>, tensor<4x2x64xbf16>, tensor<f32>) -> tensor<0xbf16>
  %o = "vllm.unified_mla_attention_with_output"(%q, %l, %r, %out, %t) {layer_name = "layers.0.attn", mutated = ["output"], operand_names = ["q", "kv_c_normed", "k_pe", "output", "kv_cache_dummy_dep"]} : (tensor<4x2x128xbf16>, tensor<4x512xbf16>, tensor<4x2x64xbf16>, tensor<4x64xbf16>, tensor<0xbf16>) -> tensor<4x64xbf16>
  return %o : tensor<4x64xbf16>
}

// -----

// Unequal element types.

func.func @main(%q: tensor<4x2x128xbf16>, %l: tensor<4x512xbf16>, %r: tensor<4x1x64xf32>, %out: tensor<4x64xbf16>, %s: tensor<f32>) -> tensor<4x64xbf16> {
  // expected-error @+1 {{the latent part must be a tensor [tokens, elements] and the rotary part [tokens, elements] or [tokens, 1, elements], both of f16, bf16 or f32 and of the same tokens, but they are 'tensor<4x512xbf16>' and 'tensor<4x1x64xf32>'}}
  %t = "vllm.unified_mla_kv_cache_update"(%l, %r, %s) {layer_name = "layers.0.attn", mutated = [], operand_names = ["kv_c_normed", "k_pe", "k_scale"]} : (tensor<4x512xbf16>, tensor<4x1x64xf32>, tensor<f32>) -> tensor<0xbf16>
  %o = "vllm.unified_mla_attention_with_output"(%q, %l, %r, %out, %t) {layer_name = "layers.0.attn", mutated = ["output"], operand_names = ["q", "kv_c_normed", "k_pe", "output", "kv_cache_dummy_dep"]} : (tensor<4x2x128xbf16>, tensor<4x512xbf16>, tensor<4x1x64xf32>, tensor<4x64xbf16>, tensor<0xbf16>) -> tensor<4x64xbf16>
  return %o : tensor<4x64xbf16>
}

// -----

// Unequal tokens.

func.func @main(%q: tensor<4x2x128xbf16>, %l: tensor<4x512xbf16>, %r: tensor<5x1x64xbf16>, %out: tensor<4x64xbf16>, %s: tensor<f32>) -> tensor<4x64xbf16> {
  // expected-error @+1 {{the latent part must be a tensor [tokens, elements] and the rotary part [tokens, elements] or [tokens, 1, elements], both of f16, bf16 or f32 and of the same tokens, but they are 'tensor<4x512xbf16>' and 'tensor<5x1x64xbf16>'}}
  %t = "vllm.unified_mla_kv_cache_update"(%l, %r, %s) {layer_name = "layers.0.attn", mutated = [], operand_names = ["kv_c_normed", "k_pe", "k_scale"]} : (tensor<4x512xbf16>, tensor<5x1x64xbf16>, tensor<f32>) -> tensor<0xbf16>
  %o = "vllm.unified_mla_attention_with_output"(%q, %l, %r, %out, %t) {layer_name = "layers.0.attn", mutated = ["output"], operand_names = ["q", "kv_c_normed", "k_pe", "output", "kv_cache_dummy_dep"]} : (tensor<4x2x128xbf16>, tensor<4x512xbf16>, tensor<5x1x64xbf16>, tensor<4x64xbf16>, tensor<0xbf16>) -> tensor<4x64xbf16>
  return %o : tensor<4x64xbf16>
}

// -----

// Buffers.

func.func @main(%q: tensor<4x2x128xbf16>, %l: memref<4x512xbf16>, %r: tensor<4x1x64xbf16>, %out: tensor<4x64xbf16>, %s: tensor<f32>) -> tensor<4x64xbf16> {
  // expected-error @+1 {{the latent part must be a tensor [tokens, elements] and the rotary part [tokens, elements] or [tokens, 1, elements], both of f16, bf16 or f32 and of the same tokens, but they are 'memref<4x512xbf16>' and 'tensor<4x1x64xbf16>'}}
  %t = "vllm.unified_mla_kv_cache_update"(%l, %r, %s) {layer_name = "layers.0.attn", mutated = [], operand_names = ["kv_c_normed", "k_pe", "k_scale"]} : (memref<4x512xbf16>, tensor<4x1x64xbf16>, tensor<f32>) -> tensor<0xbf16>
  %o = "vllm.unified_mla_attention_with_output"(%q, %l, %r, %out, %t) {layer_name = "layers.0.attn", mutated = ["output"], operand_names = ["q", "kv_c_normed", "k_pe", "output", "kv_cache_dummy_dep"]} : (tensor<4x2x128xbf16>, memref<4x512xbf16>, tensor<4x1x64xbf16>, tensor<4x64xbf16>, tensor<0xbf16>) -> tensor<4x64xbf16>
  return %o : tensor<4x64xbf16>
}

// -----

// A query that is no wider than the rotary part.

func.func @main(%q: tensor<4x2x64xbf16>, %l: tensor<4x512xbf16>, %r: tensor<4x1x64xbf16>, %out: tensor<4x64xbf16>, %s: tensor<f32>) -> tensor<4x64xbf16> {
  %t = "vllm.unified_mla_kv_cache_update"(%l, %r, %s) {layer_name = "layers.0.attn", mutated = [], operand_names = ["kv_c_normed", "k_pe", "k_scale"]} : (tensor<4x512xbf16>, tensor<4x1x64xbf16>, tensor<f32>) -> tensor<0xbf16>
  // expected-error @+1 {{query must be a tensor [tokens, query heads, nope + 64] of f16, bf16 or f32 with static heads and width, but is 'tensor<4x2x64xbf16>'}}
  %o = "vllm.unified_mla_attention_with_output"(%q, %l, %r, %out, %t) {layer_name = "layers.0.attn", mutated = ["output"], operand_names = ["q", "kv_c_normed", "k_pe", "output", "kv_cache_dummy_dep"]} : (tensor<4x2x64xbf16>, tensor<4x512xbf16>, tensor<4x1x64xbf16>, tensor<4x64xbf16>, tensor<0xbf16>) -> tensor<4x64xbf16>
  return %o : tensor<4x64xbf16>
}

// -----

// An FP8 query.

func.func @main(%q: tensor<4x2x128xf8E4M3FN>, %l: tensor<4x512xbf16>, %r: tensor<4x1x64xbf16>, %out: tensor<4x64xbf16>, %s: tensor<f32>) -> tensor<4x64xbf16> {
  %t = "vllm.unified_mla_kv_cache_update"(%l, %r, %s) {layer_name = "layers.0.attn", mutated = [], operand_names = ["kv_c_normed", "k_pe", "k_scale"]} : (tensor<4x512xbf16>, tensor<4x1x64xbf16>, tensor<f32>) -> tensor<0xbf16>
  // expected-error @+1 {{query must be a tensor [tokens, query heads, nope + 64] of f16, bf16 or f32 with static heads and width, but is 'tensor<4x2x128xf8E4M3FN>'}}
  %o = "vllm.unified_mla_attention_with_output"(%q, %l, %r, %out, %t) {layer_name = "layers.0.attn", mutated = ["output"], operand_names = ["q", "kv_c_normed", "k_pe", "output", "kv_cache_dummy_dep"]} : (tensor<4x2x128xf8E4M3FN>, tensor<4x512xbf16>, tensor<4x1x64xbf16>, tensor<4x64xbf16>, tensor<0xbf16>) -> tensor<4x64xbf16>
  return %o : tensor<4x64xbf16>
}

// -----

// No heads.

func.func @main(%q: tensor<4x0x128xbf16>, %l: tensor<4x512xbf16>, %r: tensor<4x1x64xbf16>, %out: tensor<4x64xbf16>, %s: tensor<f32>) -> tensor<4x64xbf16> {
  %t = "vllm.unified_mla_kv_cache_update"(%l, %r, %s) {layer_name = "layers.0.attn", mutated = [], operand_names = ["kv_c_normed", "k_pe", "k_scale"]} : (tensor<4x512xbf16>, tensor<4x1x64xbf16>, tensor<f32>) -> tensor<0xbf16>
  // expected-error @+1 {{query must be a tensor [tokens, query heads, nope + 64] of f16, bf16 or f32 with static heads and width, but is 'tensor<4x0x128xbf16>'}}
  %o = "vllm.unified_mla_attention_with_output"(%q, %l, %r, %out, %t) {layer_name = "layers.0.attn", mutated = ["output"], operand_names = ["q", "kv_c_normed", "k_pe", "output", "kv_cache_dummy_dep"]} : (tensor<4x0x128xbf16>, tensor<4x512xbf16>, tensor<4x1x64xbf16>, tensor<4x64xbf16>, tensor<0xbf16>) -> tensor<4x64xbf16>
  return %o : tensor<4x64xbf16>
}

// -----

// An output that the heads do not divide.

func.func @main(%q: tensor<4x3x128xbf16>, %l: tensor<4x512xbf16>, %r: tensor<4x1x64xbf16>, %out: tensor<4x64xbf16>, %s: tensor<f32>) -> tensor<4x64xbf16> {
  %t = "vllm.unified_mla_kv_cache_update"(%l, %r, %s) {layer_name = "layers.0.attn", mutated = [], operand_names = ["kv_c_normed", "k_pe", "k_scale"]} : (tensor<4x512xbf16>, tensor<4x1x64xbf16>, tensor<f32>) -> tensor<0xbf16>
  // expected-error @+1 {{output must be [tokens, 3 heads * value dim] of the query 'tensor<4x3x128xbf16>', but is 'tensor<4x64xbf16>'}}
  %o = "vllm.unified_mla_attention_with_output"(%q, %l, %r, %out, %t) {layer_name = "layers.0.attn", mutated = ["output"], operand_names = ["q", "kv_c_normed", "k_pe", "output", "kv_cache_dummy_dep"]} : (tensor<4x3x128xbf16>, tensor<4x512xbf16>, tensor<4x1x64xbf16>, tensor<4x64xbf16>, tensor<0xbf16>) -> tensor<4x64xbf16>
  return %o : tensor<4x64xbf16>
}

// -----

// An output of another element type.

func.func @main(%q: tensor<4x2x128xbf16>, %l: tensor<4x512xbf16>, %r: tensor<4x1x64xbf16>, %out: tensor<4x64xf32>, %s: tensor<f32>) -> tensor<4x64xf32> {
  %t = "vllm.unified_mla_kv_cache_update"(%l, %r, %s) {layer_name = "layers.0.attn", mutated = [], operand_names = ["kv_c_normed", "k_pe", "k_scale"]} : (tensor<4x512xbf16>, tensor<4x1x64xbf16>, tensor<f32>) -> tensor<0xbf16>
  // expected-error @+1 {{output must be [tokens, 2 heads * value dim] of the query 'tensor<4x2x128xbf16>', but is 'tensor<4x64xf32>'}}
  %o = "vllm.unified_mla_attention_with_output"(%q, %l, %r, %out, %t) {layer_name = "layers.0.attn", mutated = ["output"], operand_names = ["q", "kv_c_normed", "k_pe", "output", "kv_cache_dummy_dep"]} : (tensor<4x2x128xbf16>, tensor<4x512xbf16>, tensor<4x1x64xbf16>, tensor<4x64xf32>, tensor<0xbf16>) -> tensor<4x64xf32>
  return %o : tensor<4x64xf32>
}

// -----

// A soft cap.

func.func @main(%q: tensor<4x2x128xbf16>, %l: tensor<4x512xbf16>, %r: tensor<4x1x64xbf16>, %out: tensor<4x64xbf16>, %s: tensor<f32>) -> tensor<4x64xbf16> {
  %t = "vllm.unified_mla_kv_cache_update"(%l, %r, %s) {layer_name = "layers.0.attn", mutated = [], operand_names = ["kv_c_normed", "k_pe", "k_scale"]} : (tensor<4x512xbf16>, tensor<4x1x64xbf16>, tensor<f32>) -> tensor<0xbf16>
  // expected-error @+1 {{has 'soft_cap' = 3.000000e+01 : f64, which MLA is not supported with}}
  %o = "vllm.unified_mla_attention_with_output"(%q, %l, %r, %out, %t) {layer_name = "layers.0.attn", soft_cap = 30.0 : f64, mutated = ["output"], operand_names = ["q", "kv_c_normed", "k_pe", "output", "kv_cache_dummy_dep"]} : (tensor<4x2x128xbf16>, tensor<4x512xbf16>, tensor<4x1x64xbf16>, tensor<4x64xbf16>, tensor<0xbf16>) -> tensor<4x64xbf16>
  return %o : tensor<4x64xbf16>
}

// -----

// A window.

func.func @main(%q: tensor<4x2x128xbf16>, %l: tensor<4x512xbf16>, %r: tensor<4x1x64xbf16>, %out: tensor<4x64xbf16>, %s: tensor<f32>) -> tensor<4x64xbf16> {
  %t = "vllm.unified_mla_kv_cache_update"(%l, %r, %s) {layer_name = "layers.0.attn", mutated = [], operand_names = ["kv_c_normed", "k_pe", "k_scale"]} : (tensor<4x512xbf16>, tensor<4x1x64xbf16>, tensor<f32>) -> tensor<0xbf16>
  // expected-error @+1 {{has 'sliding_window' = 128 : i64, which MLA is not supported with}}
  %o = "vllm.unified_mla_attention_with_output"(%q, %l, %r, %out, %t) {layer_name = "layers.0.attn", sliding_window = 128 : i64, mutated = ["output"], operand_names = ["q", "kv_c_normed", "k_pe", "output", "kv_cache_dummy_dep"]} : (tensor<4x2x128xbf16>, tensor<4x512xbf16>, tensor<4x1x64xbf16>, tensor<4x64xbf16>, tensor<0xbf16>) -> tensor<4x64xbf16>
  return %o : tensor<4x64xbf16>
}

// -----

// A softmax scale that is none.

func.func @main(%q: tensor<4x2x128xbf16>, %l: tensor<4x512xbf16>, %r: tensor<4x1x64xbf16>, %out: tensor<4x64xbf16>, %s: tensor<f32>) -> tensor<4x64xbf16> {
  %t = "vllm.unified_mla_kv_cache_update"(%l, %r, %s) {layer_name = "layers.0.attn", mutated = [], operand_names = ["kv_c_normed", "k_pe", "k_scale"]} : (tensor<4x512xbf16>, tensor<4x1x64xbf16>, tensor<f32>) -> tensor<0xbf16>
  // expected-error @+1 {{'softmax_scale' must be a positive, finite float, but is -1.000000e+00 : f64}}
  %o = "vllm.unified_mla_attention_with_output"(%q, %l, %r, %out, %t) {layer_name = "layers.0.attn", softmax_scale = -1.0 : f64, mutated = ["output"], operand_names = ["q", "kv_c_normed", "k_pe", "output", "kv_cache_dummy_dep"]} : (tensor<4x2x128xbf16>, tensor<4x512xbf16>, tensor<4x1x64xbf16>, tensor<4x64xbf16>, tensor<0xbf16>) -> tensor<4x64xbf16>
  return %o : tensor<4x64xbf16>
}

// -----

// A function that is called: its caller would have to give the weight.

func.func @main(%q: tensor<4x2x128xbf16>, %l: tensor<4x512xbf16>, %r: tensor<4x1x64xbf16>, %out: tensor<4x64xbf16>, %s: tensor<f32>) -> tensor<4x64xbf16> {
  %t = "vllm.unified_mla_kv_cache_update"(%l, %r, %s) {layer_name = "layers.0.attn", mutated = [], operand_names = ["kv_c_normed", "k_pe", "k_scale"]} : (tensor<4x512xbf16>, tensor<4x1x64xbf16>, tensor<f32>) -> tensor<0xbf16>
  // expected-error @+1 {{its kv_b_proj weight becomes an argument of @main, but the function is called in this module; inline it, or import it in a module of its own}}
  %o = "vllm.unified_mla_attention_with_output"(%q, %l, %r, %out, %t) {layer_name = "layers.0.attn", mutated = ["output"], operand_names = ["q", "kv_c_normed", "k_pe", "output", "kv_cache_dummy_dep"]} : (tensor<4x2x128xbf16>, tensor<4x512xbf16>, tensor<4x1x64xbf16>, tensor<4x64xbf16>, tensor<0xbf16>) -> tensor<4x64xbf16>
  return %o : tensor<4x64xbf16>
}
func.func @caller(%q: tensor<4x2x128xbf16>, %l: tensor<4x512xbf16>, %r: tensor<4x1x64xbf16>, %out: tensor<4x64xbf16>, %s: tensor<f32>) -> tensor<4x64xbf16> {
  %o = call @main(%q, %l, %r, %out, %s) : (tensor<4x2x128xbf16>, tensor<4x512xbf16>, tensor<4x1x64xbf16>, tensor<4x64xbf16>, tensor<f32>) -> tensor<4x64xbf16>
  return %o : tensor<4x64xbf16>
}

// -----

// One layer, plain and latent.

func.func @main(%k: tensor<4x2x64xbf16>, %l: tensor<4x512xbf16>, %r: tensor<4x1x64xbf16>, %s: tensor<f32>) {
  // expected-note @+1 {{the other one is here; one layer has one cache}}
  %t = "vllm.unified_kv_cache_update"(%k, %k) {layer_name = "layers.0.attn", mutated = [], operand_names = ["key", "value"]} : (tensor<4x2x64xbf16>, tensor<4x2x64xbf16>) -> tensor<0xbf16>
  // expected-error @+1 {{needs a cache of latent 512 + 64 x bf16, but another op of the layer needs 2 x 64 x bf16}}
  %u = "vllm.unified_mla_kv_cache_update"(%l, %r, %s) {layer_name = "layers.0.attn", mutated = [], operand_names = ["kv_c_normed", "k_pe", "k_scale"]} : (tensor<4x512xbf16>, tensor<4x1x64xbf16>, tensor<f32>) -> tensor<0xbf16>
  return
}

// -----

// Context parallelism.

func.func @main(%q: tensor<4x2x128xbf16>, %l: tensor<4x512xbf16>, %r: tensor<4x1x64xbf16>, %out: tensor<4x64xbf16>) -> tensor<4x64xbf16> {
  // expected-error @+1 {{has an operand "q_dcp_replicated": it spreads one sequence over ranks (decode context parallelism), which is not supported; export the model without it}}
  %o = "vllm.unified_mla_attention_with_output"(%q, %l, %r, %out, %q) {layer_name = "layers.0.attn", mutated = ["output"], operand_names = ["q", "kv_c_normed", "k_pe", "output", "q_dcp_replicated"]} : (tensor<4x2x128xbf16>, tensor<4x512xbf16>, tensor<4x1x64xbf16>, tensor<4x64xbf16>, tensor<4x2x128xbf16>) -> tensor<4x64xbf16>
  return %o : tensor<4x64xbf16>
}
