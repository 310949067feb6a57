// The one page of a latent cache stays a value, as pages of keys and values do.

// RUN: split-file %s %t
// RUN: kvcache-opt %t/graph.mlir -allow-unregistered-dialect -kvcache-import="op-table=%t/table.json cache-operands=threaded" -o %t/imported.mlir 2>/dev/null
// RUN: FileCheck %s < %t/imported.mlir
// RUN: kvcache-opt %t/imported.mlir -allow-unregistered-dialect -one-shot-bufferize="bufferize-function-boundaries function-boundary-type-conversion=identity-layout-map" | FileCheck %s --check-prefix=BUFFERS
// RUN: kvcache-opt %t/graph.mlir -allow-unregistered-dialect -kvcache-import=op-table=%t/table.json 2>/dev/null | FileCheck %s --check-prefix=REPLACED
// RUN: not kvcache-opt %t/heads.mlir -allow-unregistered-dialect -kvcache-import="op-table=%t/table.json cache-operands=threaded" 2>&1 | FileCheck %s --check-prefix=HEADS

// CHECK: kvcache.cache_group @full page_size 32
// CHECK: kvcache.cache @layer0 of "layers.0.attn" in @full : latent 256 + 64 x f8E4M3FN scales(@layer0.k, @layer0.k) {graph_dtype = "fp8_e4m3"}
// CHECK: func.func @main(%[[Q:[a-z0-9]+]]: tensor<8x2x96xbf16>, %[[L:[a-z0-9]+]]: tensor<8x256xbf16>, %[[R:[a-z0-9]+]]: tensor<8x64xbf16>, %[[OUT:[a-z0-9]+]]: tensor<8x32xbf16>, %[[P:[a-z0-9]+]]: tensor<7x32x1x320xf8E4M3FN>
// CHECK: %[[W:.*]] = kvcache.with_pages @layer0 pages(%[[P]] : {{.*}}) page_table(
// CHECK-NEXT: ^bb0(%[[H:.*]]: !kvcache.cache<latent 256 + 64 x f8E4M3FN>):
// CHECK-NEXT: kvcache.write_latent %[[L]], %[[R]] to %[[H]]
// CHECK: %[[A:.*]]:2 = kvcache.with_pages @layer0 pages(%[[W]] :
// CHECK: kvcache.mla_attention
// CHECK: kvcache.yield %{{.*}} : tensor<8x32xbf16>
// CHECK: return %[[W]], %[[A]]#1

// BUFFERS: func.func @main({{.*}}, %[[P:[a-z0-9]+]]: memref<7x32x1x320xf8E4M3FN>, %[[T:[a-z0-9]+]]: memref<2x2xi32>
// BUFFERS-NOT: memref.alloc() {{.*}} : memref<7x32x1x320xf8E4M3FN>
// BUFFERS-NOT: memref.copy {{.*}}f8E4M3FN
// BUFFERS: kvcache.view_cache @layer0 pages(%[[P]], %[[P]]) page_table(%[[T]])
// BUFFERS: kvcache.write_latent
// BUFFERS: kvcache.view_cache @layer0 pages(%[[P]], %[[P]]) page_table(%[[T]])
// BUFFERS: kvcache.mla_attention
// BUFFERS-NOT: memref.copy {{.*}}f8E4M3FN
// BUFFERS: return %[[P]],

// REPLACED: kvcache.get_cache @layer0
// REPLACED-NOT: with_pages

// HEADS: heads.mlir:2:{{.*}}error: 'my.write' of layer 'layers.0.attn': pages of a latent cache must be [pages, page size, 1, 320] for rows of 256 + 64 elements, but are 'tensor<7x32x2x160xf8E4M3FN>'

//--- graph.mlir
func.func @main(%q: tensor<8x2x96xbf16>, %latent: tensor<8x256xbf16>, %rope: tensor<8x64xbf16>, %out: tensor<8x32xbf16>, %p: tensor<7x32x1x320xf8E4M3FN>, %t: tensor<2x2xi32>, %l: tensor<2xi32>, %s: tensor<3xi32>, %m: tensor<8xi64>)
    -> (tensor<7x32x1x320xf8E4M3FN>, tensor<8x32xbf16>) {
  %n = "my.write"(%latent, %rope, %p, %t, %l, %s, %m) {layer_name = "layers.0.attn"} : (tensor<8x256xbf16>, tensor<8x64xbf16>, tensor<7x32x1x320xf8E4M3FN>, tensor<2x2xi32>, tensor<2xi32>, tensor<3xi32>, tensor<8xi64>) -> tensor<7x32x1x320xf8E4M3FN>
  %o = "my.mla"(%q, %latent, %rope, %out, %n, %t, %l, %s, %m) {layer_name = "layers.0.attn", softmax_scale = 1.250000e-01 : f64} : (tensor<8x2x96xbf16>, tensor<8x256xbf16>, tensor<8x64xbf16>, tensor<8x32xbf16>, tensor<7x32x1x320xf8E4M3FN>, tensor<2x2xi32>, tensor<2xi32>, tensor<3xi32>, tensor<8xi64>) -> tensor<8x32xbf16>
  return %n, %o : tensor<7x32x1x320xf8E4M3FN>, tensor<8x32xbf16>
}
//--- heads.mlir
func.func @main(%latent: tensor<8x256xbf16>, %rope: tensor<8x64xbf16>, %p: tensor<7x32x2x160xf8E4M3FN>, %t: tensor<2x2xi32>, %l: tensor<2xi32>, %s: tensor<3xi32>, %m: tensor<8xi64>) -> tensor<7x32x2x160xf8E4M3FN> {
  %n = "my.write"(%latent, %rope, %p, %t, %l, %s, %m) {layer_name = "layers.0.attn"} : (tensor<8x256xbf16>, tensor<8x64xbf16>, tensor<7x32x2x160xf8E4M3FN>, tensor<2x2xi32>, tensor<2xi32>, tensor<3xi32>, tensor<8xi64>) -> tensor<7x32x2x160xf8E4M3FN>
  return %n : tensor<7x32x2x160xf8E4M3FN>
}
//--- table.json
{"version": 1, "ops": [
  {"name": "my.write", "kind": "cache_update", "latent": true,
   "operands": [{"name": "c", "role": "key"}, {"name": "r", "role": "value"}, {"name": "pages", "role": "key_pages"}, {"name": "table", "role": "page_table"},
                {"name": "lengths", "role": "lengths"}, {"name": "starts", "role": "query_start"}, {"name": "slots", "role": "slots"}],
   "results": ["pages"]},
  {"name": "my.mla", "kind": "attention", "latent": true,
   "operands": [{"name": "q", "role": "query"}, {"name": "c", "role": "key"}, {"name": "r", "role": "value"}, {"name": "o", "role": "output"},
                {"name": "pages", "role": "key_pages"}, {"name": "table", "role": "page_table"},
                {"name": "lengths", "role": "lengths"}, {"name": "starts", "role": "query_start"}, {"name": "slots", "role": "slots"}],
   "results": ["o"]}]}
