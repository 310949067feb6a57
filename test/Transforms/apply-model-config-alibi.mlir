// RUN: rm -rf %t && mkdir -p %t/bloom %t/falcon
// RUN: cp %inputs/checkpoints/no_scales/model.safetensors %t/bloom && cp %inputs/checkpoints/no_scales/model.safetensors %t/falcon
// RUN: echo '{"model_type": "bloom", "n_layer": 2, "n_embed": 384, "n_head": 6}' > %t/bloom/config.json
// RUN: echo '{"model_type": "falcon", "num_hidden_layers": 2, "hidden_size": 384, "num_attention_heads": 6, "alibi": true, "multi_query": false}' > %t/falcon/config.json
// RUN: kvcache-opt %s -kvcache-apply-model-config=checkpoint=%t/bloom 2>%t/remarks | FileCheck %s --check-prefixes=CHECK,BLOOM
// RUN: FileCheck %s --check-prefix=REMARK < %t/remarks
// RUN: kvcache-opt %s -kvcache-apply-model-config=checkpoint=%t/falcon 2>/dev/null | FileCheck %s --check-prefixes=CHECK,FALCON
// RUN: kvcache-opt %s -kvcache-apply-model-config=checkpoint=%t/bloom 2>/dev/null | kvcache-opt -kvcache-apply-model-config=checkpoint=%t/bloom 2>/dev/null | FileCheck %s --check-prefixes=CHECK,BLOOM
// RUN: sed 's/x6x64x/x3x64x/g; s/6 x 64/3 x 64/g; s/tensor<6xf32>/tensor<3xf32>/g' %s > %t/rank.mlir
// RUN: kvcache-opt %t/rank.mlir -pass-pipeline="builtin.module(kvcache-apply-model-config{checkpoint=%t/bloom tp-size=2 tp-rank=1})" 2>/dev/null | FileCheck %s --check-prefix=RANK
// RUN: sed 's/scales(@k, @v)$/& {shards = 2 : i64}/' %t/rank.mlir > %t/shards.mlir
// RUN: not kvcache-opt %t/shards.mlir -kvcache-apply-model-config=checkpoint=%t/bloom 2>&1 | FileCheck %s --check-prefix=SHARDS

// ALiBi by the model's config: of six heads four have the slopes of four, and two those in between of eight. Falcon's bias
// is scaled as the products are, here by 1/8. Slopes that the graph has stay.

// CHECK-DAG: %[[OWN:.*]] = arith.constant dense<2.500000e-01> : tensor<6xf32>
// BLOOM-DAG: %[[SLOPES:.*]] = arith.constant dense<[2.500000e-01, 6.250000e-02, 1.562500e-02, 3.906250e-03, 5.000000e-01, 1.250000e-01]> : tensor<6xf32>
// FALCON-DAG: %[[SLOPES:.*]] = arith.constant dense<[3.125000e-02, 7.812500e-03, 0.001953125, 4.8828125E-4, 6.250000e-02, 1.562500e-02]> : tensor<6xf32>
// CHECK: kvcache.paged_attention %{{.*}} over %{{.*}} outs(%{{.*}}) alibi_slopes(%[[SLOPES]] : tensor<6xf32>)
// CHECK: kvcache.paged_attention %{{.*}} over %{{.*}} outs(%{{.*}}) alibi_slopes(%[[OWN]] : tensor<6xf32>)
// REMARK: remark: {{.*}}ALiBi slopes from model type bloom (1 layer)
// RANK: arith.constant dense<[3.906250e-03, 5.000000e-01, 1.250000e-01]> : tensor<3xf32>
// SHARDS: error: layer 'h.0.self_attention' has 3 of the 6 query heads, and model type bloom asks for ALiBi, whose slopes depend on the rank; run kvcache-apply-model-config before the graph is split
kvcache.cache_group @full page_size 16
kvcache.scale_buffer @k : f32 dynamic
kvcache.scale_buffer @v : f32 dynamic
kvcache.cache @layer0 of "h.0.self_attention" in @full : 6 x 64 x bf16 scales(@k, @v)
kvcache.cache @layer1 of "h.1.self_attention" in @full : 6 x 64 x bf16 scales(@k, @v)
func.func @main(%q: tensor<4x6x64xbf16>, %out: tensor<4x6x64xbf16>) -> (tensor<4x6x64xbf16>, tensor<4x6x64xbf16>) {
  %own = arith.constant dense<0.25> : tensor<6xf32>
  %c = kvcache.get_cache @layer0 : !kvcache.cache<6 x 64 x bf16>
  %d = kvcache.get_cache @layer1 : !kvcache.cache<6 x 64 x bf16>
  %x = kvcache.paged_attention %q over %c outs(%out) : tensor<4x6x64xbf16>, !kvcache.cache<6 x 64 x bf16> -> tensor<4x6x64xbf16>
  %y = kvcache.paged_attention %q over %d outs(%out) alibi_slopes(%own : tensor<6xf32>) : tensor<4x6x64xbf16>, !kvcache.cache<6 x 64 x bf16> -> tensor<4x6x64xbf16>
  return %x, %y : tensor<4x6x64xbf16>, tensor<4x6x64xbf16>
}
