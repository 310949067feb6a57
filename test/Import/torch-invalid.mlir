// RUN: kvcache-opt %s -split-input-file -verify-diagnostics -allow-unregistered-dialect -kvcache-import -o /dev/null

// What the memory of an output is viewed as must not be used afterwards.

func.func @main(%k: !torch.vtensor<[8,2,64],bf16>, %flat: !torch.vtensor<[8,128],bf16>) -> !torch.vtensor<[8,128],bf16> {
  %name = "torch.constant.str"() <{value = "layers.0.attn"}> : () -> !torch.str
  %none = "torch.constant.none"() : () -> !torch.none
  %sizes = "torch.prim.ListConstruct"() : () -> !torch.list<int>
  %out = "torch.aten.view"(%flat, %sizes) : (!torch.vtensor<[8,128],bf16>, !torch.list<int>) -> !torch.vtensor<[8,2,64],bf16>
  %t = "torch.operator"(%k, %k, %name) <{name = "torch.vllm.unified_kv_cache_update"}> : (!torch.vtensor<[8,2,64],bf16>, !torch.vtensor<[8,2,64],bf16>, !torch.str) -> !torch.vtensor<[0],bf16>
  // expected-error @+1 {{'vllm.unified_attention_with_output' writes a tensor in place that another value views, so what its later uses see is unknown; export the functionalized graph}}
  "torch.operator"(%k, %k, %k, %out, %name, %none, %none, %t) <{name = "torch.vllm.unified_attention_with_output"}> : (!torch.vtensor<[8,2,64],bf16>, !torch.vtensor<[8,2,64],bf16>, !torch.vtensor<[8,2,64],bf16>, !torch.vtensor<[8,2,64],bf16>, !torch.str, !torch.none, !torch.none, !torch.vtensor<[0],bf16>) -> ()
  // expected-note @+1 {{the view is used here}}
  return %flat : !torch.vtensor<[8,128],bf16>
}

// -----

// A view that was made of the output before.

func.func @main(%k: !torch.vtensor<[8,2,64],bf16>, %out: !torch.vtensor<[8,2,64],bf16>) -> !torch.vtensor<[8,128],bf16> {
  %name = "torch.constant.str"() <{value = "layers.0.attn"}> : () -> !torch.str
  %sizes = "torch.prim.ListConstruct"() : () -> !torch.list<int>
  %flat = "torch.aten.view"(%out, %sizes) : (!torch.vtensor<[8,2,64],bf16>, !torch.list<int>) -> !torch.vtensor<[8,128],bf16>
  // expected-error @+1 {{writes a tensor in place that another value views}}
  "torch.operator"(%k, %k, %k, %out, %name) <{name = "torch.vllm.unified_attention_with_output"}> : (!torch.vtensor<[8,2,64],bf16>, !torch.vtensor<[8,2,64],bf16>, !torch.vtensor<[8,2,64],bf16>, !torch.vtensor<[8,2,64],bf16>, !torch.str) -> ()
  // expected-note @+1 {{the view is used here}}
  return %flat : !torch.vtensor<[8,128],bf16>
}

// -----

// An opaque layer name.

func.func @main(%k: !torch.vtensor<[8,2,64],bf16>, %name: !torch.nn.Module<"vllm_ops.LayerName">) {
  // expected-error @+1 {{'vllm.unified_kv_cache_update' has no 'layer_name'; caches are found by layer name, and this op's is lost: PyTorch from 2.11 on may pass an opaque LayerName object, which does not survive export; export the model again with VLLM_USE_LAYERNAME=0, so that layer_name is a string}}
  %t = "torch.operator"(%k, %k, %name) <{name = "torch.vllm.unified_kv_cache_update"}> : (!torch.vtensor<[8,2,64],bf16>, !torch.vtensor<[8,2,64],bf16>, !torch.nn.Module<"vllm_ops.LayerName">) -> !torch.vtensor<[0],bf16>
  return
}

// -----

// An operand that is not none.

func.func @main(%k: !torch.vtensor<[8,2,64],bf16>, %s: !torch.vtensor<[1],f32>) {
  %name = "torch.constant.str"() <{value = "layers.0.attn"}> : () -> !torch.str
  // expected-error @+1 {{'vllm.unified_attention_with_output' of layer 'layers.0.attn': an "output_scale" with an output of 'bf16' has no meaning}}
  "torch.operator"(%k, %k, %k, %k, %name, %s) <{name = "torch.vllm.unified_attention_with_output"}> : (!torch.vtensor<[8,2,64],bf16>, !torch.vtensor<[8,2,64],bf16>, !torch.vtensor<[8,2,64],bf16>, !torch.vtensor<[8,2,64],bf16>, !torch.str, !torch.vtensor<[1],f32>) -> ()
  return
}

// -----

func.func @main(%k: !torch.vtensor<[8,2,64],bf16>) {
  %name = "torch.constant.str"() <{value = "layers.0.attn"}> : () -> !torch.str
  // expected-error @+1 {{has 4 operands; expected at most 3, those of its schema, or 'operand_names'}}
  "torch.operator"(%k, %k, %name, %k) <{name = "torch.vllm.unified_kv_cache_update"}> : (!torch.vtensor<[8,2,64],bf16>, !torch.vtensor<[8,2,64],bf16>, !torch.str, !torch.vtensor<[8,2,64],bf16>) -> ()
  return
}

// -----

// A tensor without a known shape.

func.func @main(%k: !torch.vtensor<*,bf16>) {
  %name = "torch.constant.str"() <{value = "layers.0.attn"}> : () -> !torch.str
  // expected-error @+1 {{key must be [tokens, KV heads, head dim] of f16, bf16 or f32 with static heads and head dim, but is '!torch.vtensor<*,bf16>'}}
  %t = "torch.operator"(%k, %k, %name) <{name = "torch.vllm.unified_kv_cache_update"}> : (!torch.vtensor<*,bf16>, !torch.vtensor<*,bf16>, !torch.str) -> !torch.vtensor<[0],bf16>
  return
}
