// MLA: the serving op takes the model's queries and returns its heads' outputs.
// Import adds the weight that links them to the latent row.

// RUN: kvcache-opt %s -split-input-file -allow-unregistered-dialect -kvcache-import=kv-layout=packed 2>%t.remarks | FileCheck %s
// RUN: FileCheck %s --check-prefix=REMARK < %t.remarks

// A graph that calculated its scales becomes that of a model that did not.
// RUN: kvcache-opt %s -split-input-file -allow-unregistered-dialect -o %t.legacy -pass-pipeline="builtin.module(kvcache-import,kvcache-resolve-cache-types{checkpoint=%inputs/checkpoints/mla_deepseek_k_only},kvcache-fold-checkpoint-scales{checkpoint=%inputs/checkpoints/mla_deepseek_k_only},kvcache-drop-dynamic-scales,kvcache-verify-static-scales,canonicalize,cse,kvcache-sort-pure-ops)" 2>%t.warnings
// RUN: sed '/maybe_calc/d; s/%%calc#0/%%q/g; s/%%calc#1/%%latent/g; s/%%calc#2/%%rope/g' %s > %t.plain.mlir
// RUN: kvcache-opt %t.plain.mlir -split-input-file -allow-unregistered-dialect -o %t.plain -pass-pipeline="builtin.module(kvcache-import,kvcache-resolve-cache-types{checkpoint=%inputs/checkpoints/mla_deepseek_k_only},kvcache-fold-checkpoint-scales{checkpoint=%inputs/checkpoints/mla_deepseek_k_only},kvcache-drop-dynamic-scales,kvcache-verify-static-scales,canonicalize,cse,kvcache-sort-pure-ops)"
// RUN: diff %t.plain %t.legacy
// RUN: FileCheck %s --check-prefix=WARN --implicit-check-not=warning: < %t.warnings

// One warning, with the one scale.
// WARN: warning: layer 'model.layers.0.self_attn.attn': scales that the graph calculated at run time are replaced by k = 0.0123 (checkpoint "model.layers.0.self_attn.k_proj.k_scale"); results differ

// Of each head, the first 64 rows of the weight absorb the query, the other 32
// take the output back. Sums are f32, each rounded once.

// CHECK: #[[$QUERY:.*]] = affine_map<(d0, d1, d2, d3) -> (d0, d1, d3)>
// CHECK: #[[$KEYHALF:.*]] = affine_map<(d0, d1, d2, d3) -> (d1, d3, d2)>
// CHECK: #[[$SUM:.*]] = affine_map<(d0, d1, d2, d3) -> (d0, d1, d2)>
// CHECK: #[[$VALUEHALF:.*]] = affine_map<(d0, d1, d2, d3) -> (d1, d2, d3)>
// CHECK: kvcache.cache_group @full page_size 16
// CHECK-NEXT: kvcache.scale_buffer @layer0.k : f32 dynamic
// CHECK-NEXT: kvcache.cache @layer0 of "model.layers.0.self_attn.attn" in @full : latent 512 + 64 x bf16 scales(@layer0.k, @layer0.k) {graph_dtype = "fp8"}
// CHECK-LABEL: func.func @main(
// CHECK-SAME: %[[Q:[a-z0-9]+]]: tensor<?x2x128xbf16>, %[[L:[a-z0-9]+]]: tensor<?x512xbf16>, %[[R:[a-z0-9]+]]: tensor<?x1x64xbf16>
// CHECK-SAME: %[[W:[a-z0-9]+]]: tensor<192x512xbf16> {kvcache.weight = "model.layers.0.self_attn.kv_b_proj.weight"})
// CHECK: kvcache.calculate_scales %[[Q]], %[[L]], %[[R]] for
// CHECK: %[[C:.*]] = kvcache.get_cache @layer0
// CHECK: %[[RR:.*]] = tensor.collapse_shape %[[R]] {{\[\[}}0, 1], [2]] : tensor<?x1x64xbf16> into tensor<?x64xbf16>
// CHECK: kvcache.write_latent %[[L]], %[[RR]] to %[[C]]
// CHECK: %[[NOPE:.*]] = tensor.extract_slice %[[Q]][0, 0, 0] [%{{.*}}, 2, 64] [1, 1, 1]
// CHECK: %[[HEADS:.*]] = tensor.expand_shape %[[W]] {{\[\[}}0, 1], [2]] output_shape [2, 96, 512]
// CHECK: %[[UK:.*]] = tensor.extract_slice %[[HEADS]][0, 0, 0] [2, 64, 512] [1, 1, 1]
// CHECK: linalg.generic {indexing_maps = [#[[$QUERY]], #[[$KEYHALF]], #[[$SUM]]], iterator_types = ["parallel", "parallel", "parallel", "reduction"]} ins(%[[NOPE]], %[[UK]]
// CHECK: %[[ABSORBED:.*]] = linalg.generic
// CHECK: arith.truncf %{{.*}} : f32 to bf16
// CHECK: %[[PART:.*]] = tensor.insert_slice %[[ABSORBED]] into %{{.*}}[0, 0, 0] [%{{.*}}, 2, 512]
// CHECK: %[[ROPE:.*]] = tensor.extract_slice %[[Q]][0, 0, 64] [%{{.*}}, 2, 64]
// CHECK: %[[QUERIES:.*]] = tensor.insert_slice %[[ROPE]] into %[[PART]][0, 0, 512] [%{{.*}}, 2, 64]
// CHECK: %[[O:.*]] = kvcache.mla_attention %[[QUERIES]] over %[[C]] outs(%{{.*}}) {softmax_scale = 5.000000e-02 : f64, test.kept} : tensor<?x2x576xbf16>
// CHECK: %[[UV:.*]] = tensor.extract_slice %{{.*}}[0, 64, 0] [2, 32, 512] [1, 1, 1]
// CHECK: linalg.generic {indexing_maps = [#[[$QUERY]], #[[$VALUEHALF]], #[[$SUM]]], {{.*}}} ins(%[[O]], %[[UV]]
// CHECK: %[[RESULT:.*]] = tensor.collapse_shape %{{.*}} {{\[\[}}0], [1, 2]] : tensor<?x2x32xbf16> into tensor<?x64xbf16>
// CHECK: return %[[RESULT]]
// REMARK: remark: layer 'model.layers.0.self_attn.attn': argument 4 of @main is new, the weight 'model.layers.0.self_attn.kv_b_proj.weight' ('tensor<192x512xbf16>'), by which queries and outputs are multiplied around the attention
func.func @main(%q: tensor<?x2x128xbf16>, %latent: tensor<?x512xbf16>, %rope: tensor<?x1x64xbf16>, %out: tensor<?x64xbf16>) -> tensor<?x64xbf16> {
  %calc:3 = "vllm.maybe_calc_kv_scales"(%q, %latent, %rope) {layer_name = "model.layers.0.self_attn.attn", operand_names = ["query", "key", "value"], mutated = ["query", "key", "value"]} : (tensor<?x2x128xbf16>, tensor<?x512xbf16>, tensor<?x1x64xbf16>) -> (tensor<?x2x128xbf16>, tensor<?x512xbf16>, tensor<?x1x64xbf16>)
  %one = arith.constant dense<1.0> : tensor<f32>
  %t = "vllm.unified_mla_kv_cache_update"(%calc#1, %calc#2, %one) {kv_cache_dtype = "fp8", layer_name = "model.layers.0.self_attn.attn", mutated = [], operand_names = ["kv_c_normed", "k_pe", "k_scale"]} : (tensor<?x512xbf16>, tensor<?x1x64xbf16>, tensor<f32>) -> tensor<0xbf16>
  %o = "vllm.unified_mla_attention_with_output"(%calc#0, %calc#1, %calc#2, %out, %t) {layer_name = "model.layers.0.self_attn.attn", softmax_scale = 0.05 : f64, test.kept, mutated = ["output"], operand_names = ["q", "kv_c_normed", "k_pe", "output", "kv_cache_dummy_dep"]} : (tensor<?x2x128xbf16>, tensor<?x512xbf16>, tensor<?x1x64xbf16>, tensor<?x64xbf16>, tensor<0xbf16>) -> tensor<?x64xbf16>
  return %o : tensor<?x64xbf16>
}

// -----

// Rotary parts without a dimension of one head; f32 needs no rounding; two
// attentions of a layer share the weight.

// CHECK: kvcache.cache @layer0 of "model.layers.0.self_attn.mla_attn.mla_attn" in @full : latent 256 + 32 x f32
// CHECK-LABEL: func.func @two(
// CHECK-SAME: %[[R:[a-z0-9]+]]: tensor<8x32xf32>
// CHECK-SAME: , %[[W:[a-z0-9]+]]: tensor<64x256xf32> {kvcache.weight = "model.layers.0.self_attn.kv_b_proj.weight"})
// CHECK-NOT: arith.truncf
// CHECK: kvcache.write_latent %{{.*}}, %[[R]] to
// CHECK: tensor.expand_shape %[[W]]
// CHECK: kvcache.mla_attention {{.*}} -> tensor<8x4x256xf32>
// CHECK: tensor.expand_shape %[[W]]
// CHECK: kvcache.mla_attention {{.*}} -> tensor<8x4x256xf32>
// CHECK-NOT: {{arith.truncf|vllm}}
func.func @two(%q: tensor<8x4x40xf32>, %latent: tensor<8x256xf32>, %rope: tensor<8x32xf32>, %out: tensor<8x32xf32>, %s: tensor<f32>) -> (tensor<8x32xf32>, tensor<8x32xf32>) {
  %t = "vllm.unified_mla_kv_cache_update"(%latent, %rope, %s) {layer_name = "model.layers.0.self_attn.mla_attn.mla_attn", mutated = [], operand_names = ["kv_c_normed", "k_pe", "k_scale"]} : (tensor<8x256xf32>, tensor<8x32xf32>, tensor<f32>) -> tensor<0xf32>
  %a = "vllm.unified_mla_attention_with_output"(%q, %latent, %rope, %out, %t) {layer_name = "model.layers.0.self_attn.mla_attn.mla_attn", mutated = ["output"], operand_names = ["q", "kv_c_normed", "k_pe", "output", "kv_cache_dummy_dep"]} : (tensor<8x4x40xf32>, tensor<8x256xf32>, tensor<8x32xf32>, tensor<8x32xf32>, tensor<0xf32>) -> tensor<8x32xf32>
  %b = "vllm.unified_mla_attention_with_output"(%q, %latent, %rope, %out, %t) {layer_name = "model.layers.0.self_attn.mla_attn.mla_attn", mutated = ["output"], operand_names = ["q", "kv_c_normed", "k_pe", "output", "kv_cache_dummy_dep"]} : (tensor<8x4x40xf32>, tensor<8x256xf32>, tensor<8x32xf32>, tensor<8x32xf32>, tensor<0xf32>) -> tensor<8x32xf32>
  return %a, %b : tensor<8x32xf32>, tensor<8x32xf32>
}
