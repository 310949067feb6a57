// Attention of encoders has no cache: it stays, and the decoder is imported.
// RUN: kvcache-opt %s -allow-unregistered-dialect -kvcache-import 2>%t.remarks | FileCheck %s
// RUN: FileCheck %s --check-prefix=REMARK < %t.remarks

// CHECK: kvcache.cache @layer0 of "model.decoder.layers.0.self_attn.attn"
// CHECK-NOT: kvcache.cache @
// CHECK: "vllm.unified_attention_with_output"{{.*}}layer_name = "model.encoder.layers.0.self_attn.attn"
// CHECK: "vllm.unified_attention_with_output"{{.*}}layer_name = "vision_tower.layers.1.attn"
// CHECK: kvcache.write
// CHECK: kvcache.paged_attention
// CHECK-NOT: vllm
// REMARK: remark: 'vllm.unified_attention_with_output' is left as it is: layer 'model.encoder.layers.0.self_attn.attn' is one of an encoder, which has no KV cache
// REMARK: remark: 'vllm.unified_attention_with_output' is left as it is: layer 'vision_tower.layers.1.attn'
func.func @main(%q: tensor<8x4x64xbf16>, %k: tensor<8x2x64xbf16>, %out: tensor<8x4x64xbf16>) -> tensor<8x4x64xbf16> {
  %e = "vllm.unified_attention_with_output"(%q, %k, %k, %out) {layer_name = "model.encoder.layers.0.self_attn.attn", operand_names = ["query", "key", "value", "output"], mutated = ["output"]} : (tensor<8x4x64xbf16>, tensor<8x2x64xbf16>, tensor<8x2x64xbf16>, tensor<8x4x64xbf16>) -> tensor<8x4x64xbf16>
  %f = "vllm.unified_attention_with_output"(%e, %k, %k, %out) {layer_name = "vision_tower.layers.1.attn", operand_names = ["query", "key", "value", "output"], mutated = ["output"]} : (tensor<8x4x64xbf16>, tensor<8x2x64xbf16>, tensor<8x2x64xbf16>, tensor<8x4x64xbf16>) -> tensor<8x4x64xbf16>
  %t = "vllm.unified_kv_cache_update"(%k, %k) {layer_name = "model.decoder.layers.0.self_attn.attn", operand_names = ["key", "value"], mutated = []} : (tensor<8x2x64xbf16>, tensor<8x2x64xbf16>) -> tensor<0xbf16>
  %o = "vllm.unified_attention_with_output"(%f, %k, %k, %out, %t) {layer_name = "model.decoder.layers.0.self_attn.attn", operand_names = ["query", "key", "value", "output", "kv_cache_dummy_dep"], mutated = ["output"]} : (tensor<8x4x64xbf16>, tensor<8x2x64xbf16>, tensor<8x2x64xbf16>, tensor<8x4x64xbf16>, tensor<0xbf16>) -> tensor<8x4x64xbf16>
  return %o : tensor<8x4x64xbf16>
}
