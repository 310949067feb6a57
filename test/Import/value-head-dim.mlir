// RUN: kvcache-opt %s --allow-unregistered-dialect --kvcache-import | FileCheck %s

// Values with a head dim of their own: the cache takes it from the operands.

// CHECK: kvcache.cache @layer0 of "layers.0.attn" in @{{.*}} : 2 x 192 | 128 x bf16 scales(
// CHECK: func.func @main(%[[Q:.*]]: tensor<?x4x192xbf16>, %[[K:.*]]: tensor<?x2x192xbf16>, %[[V:.*]]: tensor<?x2x128xbf16>, %[[OUT:.*]]: tensor<?x4x128xbf16>)
// CHECK: kvcache.write %[[K]], %[[V]] to %{{.*}} : tensor<?x2x192xbf16>, tensor<?x2x128xbf16>, <2 x 192 | 128 x bf16>
// CHECK: kvcache.paged_attention %[[Q]] over %{{.*}} outs(%[[OUT]]) : tensor<?x4x192xbf16>, !kvcache.cache<2 x 192 | 128 x bf16> -> tensor<?x4x128xbf16>
func.func @main(%q: tensor<?x4x192xbf16>, %k: tensor<?x2x192xbf16>, %v: tensor<?x2x128xbf16>, %out: tensor<?x4x128xbf16>) -> tensor<?x4x128xbf16> {
  %t = "vllm.unified_kv_cache_update"(%k, %v) {layer_name = "layers.0.attn", operand_names = ["key", "value"]} : (tensor<?x2x192xbf16>, tensor<?x2x128xbf16>) -> tensor<0xbf16>
  %o = "vllm.unified_attention_with_output"(%q, %k, %v, %out, %t) {layer_name = "layers.0.attn", operand_names = ["query", "key", "value", "output", "kv_cache_dummy_dep"]} : (tensor<?x4x192xbf16>, tensor<?x2x192xbf16>, tensor<?x2x128xbf16>, tensor<?x4x128xbf16>, tensor<0xbf16>) -> tensor<?x4x128xbf16>
  return %o : tensor<?x4x128xbf16>
}
