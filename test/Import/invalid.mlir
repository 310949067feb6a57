// RUN: kvcache-opt %s -split-input-file -verify-diagnostics -allow-unregistered-dialect -kvcache-import -o /dev/null

// Without a layer name the cache is unknown.

func.func @main(%q: tensor<4x2x64xbf16>, %k: tensor<4x2x64xbf16>, %v: tensor<4x2x64xbf16>, %out: tensor<4x2x64xbf16>) {
  // expected-error @+1 {{'vllm.unified_kv_cache_update' has no 'layer_name'; caches are found by layer name, and this op's is lost: PyTorch from 2.11 on may pass an opaque LayerName object, which does not survive export; export the model again with VLLM_USE_LAYERNAME=0}}
  %t = "vllm.unified_kv_cache_update"(%k, %v) {operand_names = ["key", "value"]} : (tensor<4x2x64xbf16>, tensor<4x2x64xbf16>) -> tensor<0xbf16>
  return
}

// -----

// A layer name must be a string.

func.func @main(%q: tensor<4x2x64xbf16>, %k: tensor<4x2x64xbf16>, %v: tensor<4x2x64xbf16>, %out: tensor<4x2x64xbf16>) {
  // expected-error @+1 {{'layer_name' of 'vllm.unified_kv_cache_update' must be a string, but is 0 : i64; caches are found by layer name}}
  %t = "vllm.unified_kv_cache_update"(%k, %v) {layer_name = 0, operand_names = ["key", "value"]} : (tensor<4x2x64xbf16>, tensor<4x2x64xbf16>) -> tensor<0xbf16>
  return
}

// -----

// The repr of an object is no layer name.

func.func @main(%q: tensor<4x2x64xbf16>, %k: tensor<4x2x64xbf16>, %v: tensor<4x2x64xbf16>, %out: tensor<4x2x64xbf16>) {
  // expected-error @+1 {{is no layer of a model: "<vllm_ops.LayerName object at 0x7f3a>"; caches}}
  %t = "vllm.unified_kv_cache_update"(%k, %v) {layer_name = "<vllm_ops.LayerName object at 0x7f3a>", operand_names = ["key", "value"]} : (tensor<4x2x64xbf16>, tensor<4x2x64xbf16>) -> tensor<0xbf16>
  return
}

// -----

// Nor is a digest.

func.func @main(%q: tensor<4x2x64xbf16>, %k: tensor<4x2x64xbf16>, %v: tensor<4x2x64xbf16>, %out: tensor<4x2x64xbf16>) {
  // expected-error @+1 {{is no layer of a model: "9f86d081884c7d659a2feaa0c55ad015"; caches}}
  %t = "vllm.unified_kv_cache_update"(%k, %v) {layer_name = "9f86d081884c7d659a2feaa0c55ad015", operand_names = ["key", "value"]} : (tensor<4x2x64xbf16>, tensor<4x2x64xbf16>) -> tensor<0xbf16>
  return
}

// -----

// Operands without names.

func.func @main(%q: tensor<4x2x64xbf16>, %k: tensor<4x2x64xbf16>, %v: tensor<4x2x64xbf16>, %out: tensor<4x2x64xbf16>) {
  // expected-error @+1 {{has no 'operand_names', so what its 2 operands are is unknown; expected names from: key, value}}
  %t = "vllm.unified_kv_cache_update"(%k, %v) {layer_name = "layers.0.attn"} : (tensor<4x2x64xbf16>, tensor<4x2x64xbf16>) -> tensor<0xbf16>
  return
}

// -----

// One name too few.

func.func @main(%q: tensor<4x2x64xbf16>, %k: tensor<4x2x64xbf16>, %v: tensor<4x2x64xbf16>, %out: tensor<4x2x64xbf16>) {
  // expected-error @+1 {{has 2 operands but 1 'operand_names'}}
  %t = "vllm.unified_kv_cache_update"(%k, %v) {layer_name = "layers.0.attn", operand_names = ["key"]} : (tensor<4x2x64xbf16>, tensor<4x2x64xbf16>) -> tensor<0xbf16>
  return
}

// -----

// Names that are no strings.

func.func @main(%k: tensor<4x2x64xbf16>) {
  // expected-error @+1 {{has a name among its 'operand_names' that is no string: 2 : i64; expected names from: key, value}}
  %t = "vllm.unified_kv_cache_update"(%k, %k) {layer_name = "layers.0.attn", operand_names = ["key", 2]} : (tensor<4x2x64xbf16>, tensor<4x2x64xbf16>) -> tensor<0xbf16>
  return
}

// -----

// An unknown name.

func.func @main(%q: tensor<4x2x64xbf16>, %k: tensor<4x2x64xbf16>, %v: tensor<4x2x64xbf16>, %out: tensor<4x2x64xbf16>) {
  // expected-error @+1 {{has an unknown operand "val"; expected names from: key, value}}
  %t = "vllm.unified_kv_cache_update"(%k, %v) {layer_name = "layers.0.attn", operand_names = ["key", "val"]} : (tensor<4x2x64xbf16>, tensor<4x2x64xbf16>) -> tensor<0xbf16>
  return
}

// -----

// One name twice.

func.func @main(%q: tensor<4x2x64xbf16>, %k: tensor<4x2x64xbf16>, %v: tensor<4x2x64xbf16>, %out: tensor<4x2x64xbf16>) {
  // expected-error @+1 {{has two operands named "key"}}
  %t = "vllm.unified_kv_cache_update"(%k, %v) {layer_name = "layers.0.attn", operand_names = ["key", "key"]} : (tensor<4x2x64xbf16>, tensor<4x2x64xbf16>) -> tensor<0xbf16>
  return
}

// -----

// A missing operand.

func.func @main(%q: tensor<4x2x64xbf16>, %k: tensor<4x2x64xbf16>, %v: tensor<4x2x64xbf16>, %out: tensor<4x2x64xbf16>) {
  // expected-error @+1 {{lacks the operand "value"; it has ["key"], expected names from: key, value}}
  %t = "vllm.unified_kv_cache_update"(%k) {layer_name = "layers.0.attn", operand_names = ["key"]} : (tensor<4x2x64xbf16>) -> tensor<0xbf16>
  return
}

// -----

// Fused quantization of the output.

func.func @main(%q: tensor<4x2x64xbf16>, %k: tensor<4x2x64xbf16>, %v: tensor<4x2x64xbf16>, %out: tensor<4x2x64xbf16>, %s: tensor<1xf32>) {
  %t = "vllm.unified_kv_cache_update"(%k, %v) {layer_name = "layers.0.attn", operand_names = ["key", "value"]} : (tensor<4x2x64xbf16>, tensor<4x2x64xbf16>) -> tensor<0xbf16>
  // expected-error @+1 {{'vllm.unified_attention_with_output' of layer 'layers.0.attn' has an operand "output_block_scale": it quantizes blocks of the attention output, which is not supported; export the model without fusing}}
  %o = "vllm.unified_attention_with_output"(%q, %k, %v, %out, %s, %t) {layer_name = "layers.0.attn", operand_names = ["query", "key", "value", "output", "output_block_scale", "kv_cache_dummy_dep"]} : (tensor<4x2x64xbf16>, tensor<4x2x64xbf16>, tensor<4x2x64xbf16>, tensor<4x2x64xbf16>, tensor<1xf32>, tensor<0xbf16>) -> tensor<4x2x64xbf16>
  return
}

// -----

// And its block scales.

func.func @main(%q: tensor<4x2x64xbf16>, %k: tensor<4x2x64xbf16>, %v: tensor<4x2x64xbf16>, %out: tensor<4x2x64xbf16>, %s: tensor<1xf32>) {
  %t = "vllm.unified_kv_cache_update"(%k, %v) {layer_name = "layers.0.attn", operand_names = ["key", "value"]} : (tensor<4x2x64xbf16>, tensor<4x2x64xbf16>) -> tensor<0xbf16>
  // expected-error @+1 {{of layer 'layers.0.attn' has an operand "output_block_scale"}}
  %o = "vllm.unified_attention_with_output"(%q, %k, %v, %out, %s, %t) {layer_name = "layers.0.attn", operand_names = ["query", "key", "value", "output", "output_block_scale", "kv_cache_dummy_dep"]} : (tensor<4x2x64xbf16>, tensor<4x2x64xbf16>, tensor<4x2x64xbf16>, tensor<4x2x64xbf16>, tensor<1xf32>, tensor<0xbf16>) -> tensor<4x2x64xbf16>
  return
}

// -----

// FP8 queries.

func.func @main(%q: tensor<4x2x64xf8E4M3FN>, %k: tensor<4x2x64xbf16>, %v: tensor<4x2x64xbf16>, %out: tensor<4x2x64xbf16>) {
  %t = "vllm.unified_kv_cache_update"(%k, %v) {layer_name = "layers.0.attn", operand_names = ["key", "value"]} : (tensor<4x2x64xbf16>, tensor<4x2x64xbf16>) -> tensor<0xbf16>
  // expected-error @+1 {{queries of 'f8E4M3FN' are only supported where '_C.static_scaled_fp8_quant' on tensors makes them in f8E4M3FN; or export the model without quantizing the query, so that it is f16 or bf16}}
  %o = "vllm.unified_attention_with_output"(%q, %k, %v, %out, %t) {layer_name = "layers.0.attn", operand_names = ["query", "key", "value", "output", "kv_cache_dummy_dep"]} : (tensor<4x2x64xf8E4M3FN>, tensor<4x2x64xbf16>, tensor<4x2x64xbf16>, tensor<4x2x64xbf16>, tensor<0xbf16>) -> tensor<4x2x64xbf16>
  return
}

// -----

// Rows that are not heads by dim.

func.func @main(%k: tensor<4x128xbf16>, %v: tensor<4x128xbf16>) {
  // expected-error @+1 {{key must be [tokens, KV heads, head dim] of f16, bf16 or f32 with static heads and head dim, but is 'tensor<4x128xbf16>'}}
  %t = "vllm.unified_kv_cache_update"(%k, %v) {layer_name = "layers.0.attn", operand_names = ["key", "value"]} : (tensor<4x128xbf16>, tensor<4x128xbf16>) -> tensor<0xbf16>
  return
}

// -----

// Keys and values of different heads.

func.func @main(%k: tensor<4x2x64xbf16>, %v: tensor<4x4x64xbf16>) {
  // expected-error @+1 {{key and value must have the same type but for the head dim, but are 'tensor<4x2x64xbf16>' and 'tensor<4x4x64xbf16>'}}
  %t = "vllm.unified_kv_cache_update"(%k, %v) {layer_name = "layers.0.attn", operand_names = ["key", "value"]} : (tensor<4x2x64xbf16>, tensor<4x4x64xbf16>) -> tensor<0xbf16>
  return
}

// -----

// Outputs have the head dim of values.

func.func @main(%q: tensor<4x2x64xbf16>, %k: tensor<4x2x64xbf16>, %v: tensor<4x2x32xbf16>, %out: tensor<4x2x64xbf16>) {
  %t = "vllm.unified_kv_cache_update"(%k, %v) {layer_name = "layers.0.attn", operand_names = ["key", "value"]} : (tensor<4x2x64xbf16>, tensor<4x2x32xbf16>) -> tensor<0xbf16>
  // expected-error @+1 {{in the shape of the query, 'tensor<4x2x64xbf16>', with the head dim of values, 32, but is 'tensor<4x2x64xbf16>'}}
  %o = "vllm.unified_attention_with_output"(%q, %k, %v, %out, %t) {layer_name = "layers.0.attn", operand_names = ["query", "key", "value", "output", "kv_cache_dummy_dep"]} : (tensor<4x2x64xbf16>, tensor<4x2x64xbf16>, tensor<4x2x32xbf16>, tensor<4x2x64xbf16>, tensor<0xbf16>) -> tensor<4x2x64xbf16>
  return
}

// -----

// One layer, two shapes.

func.func @main(%k: tensor<4x2x64xbf16>, %v: tensor<4x2x64xbf16>, %a: tensor<4x4x32xbf16>) {
  // expected-note @+1 {{the other one is here; one layer has one cache}}
  %t = "vllm.unified_kv_cache_update"(%k, %v) {layer_name = "layers.0.attn", operand_names = ["key", "value"]} : (tensor<4x2x64xbf16>, tensor<4x2x64xbf16>) -> tensor<0xbf16>
  // expected-error @+1 {{needs a cache of 4 x 32 x bf16, but another op of the layer needs 2 x 64 x bf16}}
  %u = "vllm.unified_kv_cache_update"(%a, %a) {layer_name = "layers.0.attn", operand_names = ["key", "value"]} : (tensor<4x4x32xbf16>, tensor<4x4x32xbf16>) -> tensor<0xbf16>
  return
}

// -----

// A head dim that is not the cache's.

func.func @main(%q: tensor<4x2x32xbf16>, %k: tensor<4x2x64xbf16>, %v: tensor<4x2x64xbf16>, %out: tensor<4x2x32xbf16>) {
  %t = "vllm.unified_kv_cache_update"(%k, %v) {layer_name = "layers.0.attn", operand_names = ["key", "value"]} : (tensor<4x2x64xbf16>, tensor<4x2x64xbf16>) -> tensor<0xbf16>
  // expected-error @+1 {{query has head dim 32, but the cache has 64}}
  %o = "vllm.unified_attention_with_output"(%q, %k, %v, %out, %t) {layer_name = "layers.0.attn", operand_names = ["query", "key", "value", "output", "kv_cache_dummy_dep"]} : (tensor<4x2x32xbf16>, tensor<4x2x64xbf16>, tensor<4x2x64xbf16>, tensor<4x2x32xbf16>, tensor<0xbf16>) -> tensor<4x2x32xbf16>
  return
}

// -----

// Query heads that do not group.

func.func @main(%q: tensor<4x3x64xbf16>, %k: tensor<4x2x64xbf16>, %v: tensor<4x2x64xbf16>, %out: tensor<4x3x64xbf16>) {
  %t = "vllm.unified_kv_cache_update"(%k, %v) {layer_name = "layers.0.attn", operand_names = ["key", "value"]} : (tensor<4x2x64xbf16>, tensor<4x2x64xbf16>) -> tensor<0xbf16>
  // expected-error @+1 {{the number of query heads, 3, must be a multiple of the KV heads, 2}}
  %o = "vllm.unified_attention_with_output"(%q, %k, %v, %out, %t) {layer_name = "layers.0.attn", operand_names = ["query", "key", "value", "output", "kv_cache_dummy_dep"]} : (tensor<4x3x64xbf16>, tensor<4x2x64xbf16>, tensor<4x2x64xbf16>, tensor<4x3x64xbf16>, tensor<0xbf16>) -> tensor<4x3x64xbf16>
  return
}

// -----

// An output of another shape.

func.func @main(%q: tensor<4x2x64xbf16>, %k: tensor<4x2x64xbf16>, %v: tensor<4x2x64xbf16>, %out: tensor<4x128xbf16>) {
  %t = "vllm.unified_kv_cache_update"(%k, %v) {layer_name = "layers.0.attn", operand_names = ["key", "value"]} : (tensor<4x2x64xbf16>, tensor<4x2x64xbf16>) -> tensor<0xbf16>
  // expected-error @+1 {{output must be f16, bf16, f32, f8E4M3FN or f8E5M2 in the shape of the query, 'tensor<4x2x64xbf16>', but is 'tensor<4x128xbf16>'}}
  %o = "vllm.unified_attention_with_output"(%q, %k, %v, %out, %t) {layer_name = "layers.0.attn", operand_names = ["query", "key", "value", "output", "kv_cache_dummy_dep"]} : (tensor<4x2x64xbf16>, tensor<4x2x64xbf16>, tensor<4x2x64xbf16>, tensor<4x128xbf16>, tensor<0xbf16>) -> tensor<4x128xbf16>
  return
}

// -----

// A tensor that is written in place.

func.func @main(%q: tensor<4x2x64xbf16>, %k: tensor<4x2x64xbf16>, %v: tensor<4x2x64xbf16>, %out: tensor<4x2x64xbf16>) {
  %t = "vllm.unified_kv_cache_update"(%k, %v) {layer_name = "layers.0.attn", operand_names = ["key", "value"]} : (tensor<4x2x64xbf16>, tensor<4x2x64xbf16>) -> tensor<0xbf16>
  // expected-error @+1 {{has 0 results for an output of type 'tensor<4x2x64xbf16>'; expected one, the new value of the output: a tensor cannot be written in place, so export the functionalized graph}}
  "vllm.unified_attention_with_output"(%q, %k, %v, %out, %t) {layer_name = "layers.0.attn", operand_names = ["query", "key", "value", "output", "kv_cache_dummy_dep"]} : (tensor<4x2x64xbf16>, tensor<4x2x64xbf16>, tensor<4x2x64xbf16>, tensor<4x2x64xbf16>, tensor<0xbf16>) -> ()
  return
}

// -----

// The token orders attention only.

func.func @main(%q: tensor<4x2x64xbf16>, %k: tensor<4x2x64xbf16>, %v: tensor<4x2x64xbf16>, %out: tensor<4x2x64xbf16>) {
  // expected-error @+1 {{the result of 'vllm.unified_kv_cache_update' of layer 'layers.0.attn' carries no data and may only order attention ops of the same layer, but 'foreign.use' uses it}}
  %t = "vllm.unified_kv_cache_update"(%k, %v) {layer_name = "layers.0.attn", operand_names = ["key", "value"]} : (tensor<4x2x64xbf16>, tensor<4x2x64xbf16>) -> tensor<0xbf16>
  // expected-note @+1 {{it is used here}}
  "foreign.use"(%t) : (tensor<0xbf16>) -> ()
  return
}

// -----

// tensor<4x2x64xbf16>he token of another layer. Both layers are at fault.

func.func @main(%q: tensor<4x2x64xbf16>, %k: tensor<4x2x64xbf16>, %v: tensor<4x2x64xbf16>, %out: tensor<4x2x64xbf16>) {
  // expected-error @+2 {{of layer 'layers.1.attn' carries no data and may only order attention ops of the same layer}}
  // expected-note @+1 {{it comes from here}}
  %t = "vllm.unified_kv_cache_update"(%k, %v) {layer_name = "layers.1.attn", operand_names = ["key", "value"]} : (tensor<4x2x64xbf16>, tensor<4x2x64xbf16>) -> tensor<0xbf16>
  %u = "vllm.unified_kv_cache_update"(%k, %v) {layer_name = "layers.0.attn", operand_names = ["key", "value"]} : (tensor<4x2x64xbf16>, tensor<4x2x64xbf16>) -> tensor<0xbf16>
  // expected-note @+2 {{it is used here}}
  // expected-error @+1 {{must be ordered after the cache update of its own layer, but its "kv_cache_dummy_dep" is the result of a 'vllm.unified_kv_cache_update' of layer 'layers.1.attn'}}
  %o = "vllm.unified_attention_with_output"(%q, %k, %v, %out, %t) {layer_name = "layers.0.attn", operand_names = ["query", "key", "value", "output", "kv_cache_dummy_dep"]} : (tensor<4x2x64xbf16>, tensor<4x2x64xbf16>, tensor<4x2x64xbf16>, tensor<4x2x64xbf16>, tensor<0xbf16>) -> tensor<4x2x64xbf16>
  return
}

// -----

// A token out of nowhere.

func.func @main(%q: tensor<4x2x64xbf16>, %k: tensor<4x2x64xbf16>, %v: tensor<4x2x64xbf16>, %out: tensor<4x2x64xbf16>, %t: tensor<0xbf16>) {
  %u = "vllm.unified_kv_cache_update"(%k, %v) {layer_name = "layers.0.attn", operand_names = ["key", "value"]} : (tensor<4x2x64xbf16>, tensor<4x2x64xbf16>) -> tensor<0xbf16>
  // expected-error @+1 {{must be ordered after the cache update of its own layer, but its "kv_cache_dummy_dep" is an argument of a block}}
  %o = "vllm.unified_attention_with_output"(%q, %k, %v, %out, %t) {layer_name = "layers.0.attn", operand_names = ["query", "key", "value", "output", "kv_cache_dummy_dep"]} : (tensor<4x2x64xbf16>, tensor<4x2x64xbf16>, tensor<4x2x64xbf16>, tensor<4x2x64xbf16>, tensor<0xbf16>) -> tensor<4x2x64xbf16>
  return
}

// -----

// Attention before the update.

func.func @main(%q: tensor<4x2x64xbf16>, %k: tensor<4x2x64xbf16>, %v: tensor<4x2x64xbf16>, %out: tensor<4x2x64xbf16>) {
  // expected-error @+1 {{must come after the cache update of its layer on every path}}
  %o = "vllm.unified_attention_with_output"(%q, %k, %v, %out) {layer_name = "layers.0.attn", operand_names = ["query", "key", "value", "output"]} : (tensor<4x2x64xbf16>, tensor<4x2x64xbf16>, tensor<4x2x64xbf16>, tensor<4x2x64xbf16>) -> tensor<4x2x64xbf16>
  // expected-note @+1 {{the update is here}}
  %t = "vllm.unified_kv_cache_update"(%k, %v) {layer_name = "layers.0.attn", operand_names = ["key", "value"]} : (tensor<4x2x64xbf16>, tensor<4x2x64xbf16>) -> tensor<0xbf16>
  return
}

// -----

// Another update between.

func.func @main(%q: tensor<4x2x64xbf16>, %k: tensor<4x2x64xbf16>, %v: tensor<4x2x64xbf16>, %out: tensor<4x2x64xbf16>) {
  %t = "vllm.unified_kv_cache_update"(%k, %v) {layer_name = "layers.0.attn", operand_names = ["key", "value"]} : (tensor<4x2x64xbf16>, tensor<4x2x64xbf16>) -> tensor<0xbf16>
  // expected-note @+1 {{the other one is here}}
  %u = "vllm.unified_kv_cache_update"(%k, %v) {layer_name = "layers.0.attn", operand_names = ["key", "value"]} : (tensor<4x2x64xbf16>, tensor<4x2x64xbf16>) -> tensor<0xbf16>
  // expected-error @+1 {{is ordered after one cache update, but another one of the layer stands between}}
  %o = "vllm.unified_attention_with_output"(%q, %k, %v, %out, %t) {layer_name = "layers.0.attn", operand_names = ["query", "key", "value", "output", "kv_cache_dummy_dep"]} : (tensor<4x2x64xbf16>, tensor<4x2x64xbf16>, tensor<4x2x64xbf16>, tensor<4x2x64xbf16>, tensor<0xbf16>) -> tensor<4x2x64xbf16>
  return
}

// -----

// A cache that nothing writes.

func.func @main(%q: tensor<4x2x64xbf16>, %k: tensor<4x2x64xbf16>, %v: tensor<4x2x64xbf16>, %out: tensor<4x2x64xbf16>) {
  // expected-error @+1 {{reads a cache that nothing writes: no cache update has this layer name. A layer that shares the cache of another one must name that layer, or the model's config.json must say so (option checkpoint); a graph that writes caches by other ops must be exported with 'vllm.unified_kv_cache_update' or '_C_cache_ops.reshape_and_cache_flash'}}
  %o = "vllm.unified_attention_with_output"(%q, %k, %v, %out) {layer_name = "layers.0.attn", operand_names = ["query", "key", "value", "output"]} : (tensor<4x2x64xbf16>, tensor<4x2x64xbf16>, tensor<4x2x64xbf16>, tensor<4x2x64xbf16>) -> tensor<4x2x64xbf16>
  return
}

// -----

// Attention sees the cache, so its keys must be what was written.

func.func @main(%q: tensor<4x2x64xbf16>, %k: tensor<4x2x64xbf16>, %v: tensor<4x2x64xbf16>, %out: tensor<4x2x64xbf16>) {
  // expected-note @+1 {{the update is here}}
  %t = "vllm.unified_kv_cache_update"(%k, %v) {layer_name = "layers.0.attn", operand_names = ["key", "value"]} : (tensor<4x2x64xbf16>, tensor<4x2x64xbf16>) -> tensor<0xbf16>
  // expected-error @+1 {{reads its cache, but its key is not the one that was written}}
  %o = "vllm.unified_attention_with_output"(%q, %v, %v, %out, %t) {layer_name = "layers.0.attn", operand_names = ["query", "key", "value", "output", "kv_cache_dummy_dep"]} : (tensor<4x2x64xbf16>, tensor<4x2x64xbf16>, tensor<4x2x64xbf16>, tensor<4x2x64xbf16>, tensor<0xbf16>) -> tensor<4x2x64xbf16>
  return
}

// -----

// Two cache types for one layer.

func.func @main(%q: tensor<4x2x64xbf16>, %k: tensor<4x2x64xbf16>, %v: tensor<4x2x64xbf16>, %out: tensor<4x2x64xbf16>) {
  %t = "vllm.unified_kv_cache_update"(%k, %v) {layer_name = "layers.0.attn", operand_names = ["key", "value"], kv_cache_dtype = "fp8"} : (tensor<4x2x64xbf16>, tensor<4x2x64xbf16>) -> tensor<0xbf16>
  // expected-error @+1 {{'kv_cache_dtype' of layer 'layers.0.attn' is "fp8_e5m2" here, but "fp8" at another op of the layer}}
  %o = "vllm.unified_attention_with_output"(%q, %k, %v, %out, %t) {layer_name = "layers.0.attn", operand_names = ["query", "key", "value", "output", "kv_cache_dummy_dep"], kv_cache_dtype = "fp8_e5m2"} : (tensor<4x2x64xbf16>, tensor<4x2x64xbf16>, tensor<4x2x64xbf16>, tensor<4x2x64xbf16>, tensor<0xbf16>) -> tensor<4x2x64xbf16>
  return
}

// -----

// A softmax scale that is none.

func.func @main(%q: tensor<4x2x64xbf16>, %k: tensor<4x2x64xbf16>, %v: tensor<4x2x64xbf16>, %out: tensor<4x2x64xbf16>) {
  %t = "vllm.unified_kv_cache_update"(%k, %v) {layer_name = "layers.0.attn", operand_names = ["key", "value"]} : (tensor<4x2x64xbf16>, tensor<4x2x64xbf16>) -> tensor<0xbf16>
  // expected-error @+1 {{'softmax_scale' must be a positive, finite float, but is 0.000000e+00 : f32}}
  %o = "vllm.unified_attention_with_output"(%q, %k, %v, %out, %t) {layer_name = "layers.0.attn", operand_names = ["query", "key", "value", "output", "kv_cache_dummy_dep"], softmax_scale = 0.0 : f32} : (tensor<4x2x64xbf16>, tensor<4x2x64xbf16>, tensor<4x2x64xbf16>, tensor<4x2x64xbf16>, tensor<0xbf16>) -> tensor<4x2x64xbf16>
  return
}

// -----

// Operands of the scale calculation have the cache's size.

func.func @main(%q: tensor<4x2x64xbf16>, %k: tensor<4x2x64xbf16>, %v: tensor<4x2x64xbf16>, %a: tensor<4x64xbf16>) {
  %t = "vllm.unified_kv_cache_update"(%k, %v) {layer_name = "layers.0.attn", operand_names = ["key", "value"]} : (tensor<4x2x64xbf16>, tensor<4x2x64xbf16>) -> tensor<0xbf16>
  // expected-error @+1 {{key must be [tokens, elements] or [tokens, heads, head dim] of floats with 128 elements a token, but is 'tensor<4x64xbf16>'}}
  "vllm.maybe_calc_kv_scales"(%q, %a, %v) {layer_name = "layers.0.attn", operand_names = ["query", "key", "value"]} : (tensor<4x2x64xbf16>, tensor<4x64xbf16>, tensor<4x2x64xbf16>) -> ()
  return
}

// -----

// A result that stands for no operand.

func.func @main(%q: tensor<4x2x64xbf16>, %k: tensor<4x2x64xbf16>, %v: tensor<4x2x64xbf16>, %out: tensor<4x2x64xbf16>) {
  // expected-error @+1 {{has a result 0 of type 'tensor<4x2x64xbf16>' that is none of its operands}}
  %r = "vllm.maybe_calc_kv_scales"(%q, %k, %v) {layer_name = "layers.0.attn", mutated = ["output"], operand_names = ["query", "key", "value"]} : (tensor<4x2x64xbf16>, tensor<4x2x64xbf16>, tensor<4x2x64xbf16>) -> tensor<4x2x64xbf16>
  return
}

// -----

// An op of the family that the table does not have.

func.func @main(%q: tensor<4x2x64xbf16>, %k: tensor<4x2x64xbf16>, %v: tensor<4x2x64xbf16>, %out: tensor<4x2x64xbf16>) {
  // expected-error @+1 {{'vllm.unified_mla_attention' uses a KV cache, but is not understood; supported are}}
  "vllm.unified_mla_attention"(%q) : (tensor<4x2x64xbf16>) -> ()
  return
}

// -----

// A nested module.

module {
module {
func.func @main(%q: tensor<4x2x64xbf16>, %k: tensor<4x2x64xbf16>, %v: tensor<4x2x64xbf16>, %out: tensor<4x2x64xbf16>) {
  // expected-error @+1 {{'vllm.unified_kv_cache_update' is in a nested module, but caches are declared in the top one; run kvcache-import on the nested module}}
  %t = "vllm.unified_kv_cache_update"(%k, %v) {layer_name = "layers.0.attn", operand_names = ["key", "value"]} : (tensor<4x2x64xbf16>, tensor<4x2x64xbf16>) -> tensor<0xbf16>
  return
}
}
}
