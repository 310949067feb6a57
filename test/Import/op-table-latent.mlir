// MLA of a serving stack that one op of its own updates and attends: the table
// says so, and the rest is as with the ops that are built in.

// RUN: split-file %s %t
// RUN: kvcache-opt %t/graph.mlir -allow-unregistered-dialect -verify-diagnostics -kvcache-import=op-table=%t/table.json | FileCheck %s
// RUN: not kvcache-opt %t/graph.mlir -allow-unregistered-dialect -kvcache-import=op-table=%t/output.json 2>&1 | FileCheck %s --check-prefix=OUTPUT
// RUN: not kvcache-opt %t/graph.mlir -allow-unregistered-dialect -kvcache-import=op-table=%t/rows.json 2>&1 | FileCheck %s --check-prefix=ROWS
// RUN: not kvcache-opt %t/graph.mlir -allow-unregistered-dialect -kvcache-import=op-table=%t/pages.json 2>&1 | FileCheck %s --check-prefix=PAGES
// RUN: not kvcache-opt %t/graph.mlir -allow-unregistered-dialect -kvcache-import=op-table=%t/heads.json 2>&1 | FileCheck %s --check-prefix=HEADS
// RUN: not kvcache-opt %t/graph.mlir -allow-unregistered-dialect -kvcache-import=op-table=%t/kind.json 2>&1 | FileCheck %s --check-prefix=KIND
// RUN: not kvcache-opt %t/graph.mlir -allow-unregistered-dialect -kvcache-import=op-table=%t/bool.json 2>&1 | FileCheck %s --check-prefix=BOOL

// CHECK: kvcache.cache @layer3 of "model.layers.3.self_attn.attn" in @full : latent 256 + 64 x bf16 scales(@layer3.k, @layer3.k)
// CHECK: func.func @main(%[[Q:.*]]: tensor<?x2x96xbf16>, %[[L:.*]]: tensor<?x256xbf16>, %[[R:.*]]: tensor<?x64xbf16>,
// CHECK-SAME: %[[W:[a-z0-9]+]]: tensor<96x256xbf16> {kvcache.weight = "model.layers.3.self_attn.kv_b_proj.weight"}
// CHECK: kvcache.write_latent %[[L]], %[[R]] to %[[C:[a-z0-9]+]]
// CHECK: kvcache.mla_attention %{{.*}} over %[[C]] outs(%{{.*}}) {softmax_scale = 1.250000e-01 : f64} : tensor<?x2x320xbf16>
// CHECK-NOT: my.mla

// OUTPUT: output.json: ops[0].operands: an op of this kind needs an operand with the role "output"
// ROWS: rows.json: ops[0].operands: an op of this kind needs an operand with the role "key"
// PAGES: pages.json: ops[0].operands: "pages": a latent cache has no pages of values beside its "key_pages"
// HEADS: heads.json: ops[0].attributes: "heads": rows of an op of MLA are not flat
// KIND: kind.json: ops[0].latent: an op of this kind is the same with MLA
// BOOL: bool.json: ops[0].latent: expected true or false

//--- graph.mlir
func.func @main(%q: tensor<?x2x96xbf16>, %latent: tensor<?x256xbf16>, %rope: tensor<?x64xbf16>, %out: tensor<?x32xbf16>) -> tensor<?x32xbf16> {
  // expected-remark @+1 {{argument 4 of @main is new, the weight 'model.layers.3.self_attn.kv_b_proj.weight'}}
  %o = "my.mla"(%q, %latent, %rope, %out) {node = "layer_3", scale = 1.250000e-01 : f64} : (tensor<?x2x96xbf16>, tensor<?x256xbf16>, tensor<?x64xbf16>, tensor<?x32xbf16>) -> tensor<?x32xbf16>
  return %o : tensor<?x32xbf16>
}
//--- table.json
{"version": 1, "ops": [
  {"name": "my.mla", "kind": "update_and_attention", "latent": true,
   "layer": {"attribute": "node", "name": "model.layers.{index}.self_attn.attn"},
   "operands": [{"name": "q", "role": "query"}, {"name": "c", "role": "key"}, {"name": "r", "role": "value"}, {"name": "o", "role": "output"}],
   "attributes": [{"name": "scale", "role": "softmax_scale"}],
   "results": ["o"]}]}
//--- output.json
{"version": 1, "ops": [
  {"name": "my.mla", "kind": "update_and_attention", "latent": true,
   "operands": [{"name": "q", "role": "query"}, {"name": "c", "role": "key"}, {"name": "r", "role": "value"}]}]}
//--- rows.json
{"version": 1, "ops": [
  {"name": "my.mla", "kind": "attention", "latent": true, "operands": [{"name": "q", "role": "query"}, {"name": "o", "role": "output"}]}]}
//--- pages.json
{"version": 1, "ops": [
  {"name": "my.mla", "kind": "cache_update", "latent": true,
   "operands": [{"name": "c", "role": "key"}, {"name": "r", "role": "value"}, {"name": "pages", "role": "value_pages"}]}]}
//--- heads.json
{"version": 1, "ops": [
  {"name": "my.mla", "kind": "cache_update", "latent": true,
   "operands": [{"name": "c", "role": "key"}, {"name": "r", "role": "value"}], "attributes": [{"name": "heads", "role": "kv_heads"}]}]}
//--- kind.json
{"version": 1, "ops": [
  {"name": "my.calc", "kind": "calculate_scales", "latent": true,
   "operands": [{"name": "q", "role": "query"}, {"name": "c", "role": "key"}, {"name": "r", "role": "value"}]}]}
//--- bool.json
{"version": 1, "ops": [
  {"name": "my.mla", "kind": "cache_update", "latent": "yes",
   "operands": [{"name": "c", "role": "key"}, {"name": "r", "role": "value"}]}]}
