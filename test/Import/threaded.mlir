// RUN: kvcache-opt %s -split-input-file -allow-unregistered-dialect -verify-diagnostics -kvcache-import=cache-operands=threaded | FileCheck %s

// Pages that a graph hands on stay values: the results of the update are those
// of the op around the write, and the attention reads them. The cache has the
// type and the page size of its pages.

// CHECK-LABEL: module @threaded
// CHECK: kvcache.cache_group @full page_size 32
// CHECK: kvcache.cache @layer0 of "layers.0.attn" in @full : 2 x 64 x f8E4M3FN scales(@layer0.k, @layer0.v) {graph_dtype = "fp8_e4m3"}
// CHECK: func.func @main(%[[Q:.*]]: tensor<8x4x64xbf16>, %[[K:.*]]: tensor<8x2x64xbf16>, %[[KP:.*]]: tensor<7x32x2x64xf8E4M3FN>, %[[VP:.*]]: tensor<7x32x2x64xf8E4M3FN>, %[[T:.*]]: tensor<2x2xi32>, %[[L:.*]]: tensor<2xi32>, %[[S:.*]]: tensor<3xi32>, %[[M:.*]]: tensor<8xi64>)
// CHECK: %[[W:.*]]:2 = kvcache.with_pages @layer0 pages(%[[KP]], %[[VP]] : {{.*}}) page_table(%[[T]] : {{.*}}) lengths(%[[L]] : {{.*}}) query_start(%[[S]] : {{.*}}) slots(%[[M]] : {{.*}})
// CHECK-NEXT: ^bb0(%[[H:.*]]: !kvcache.cache<2 x 64 x f8E4M3FN>):
// CHECK-NEXT: kvcache.write %[[K]], %[[K]] to %[[H]]
// CHECK: %[[A:.*]]:3 = kvcache.with_pages @layer0 pages(%[[W]]#0, %[[W]]#1 :
// CHECK: %[[O:.*]] = kvcache.paged_attention %[[Q]]
// CHECK-NEXT: kvcache.yield %[[O]]
// CHECK: return %[[W]]#0, %[[W]]#1, %[[A]]#2
module @threaded {
  func.func @main(%q: tensor<8x4x64xbf16>, %k: tensor<8x2x64xbf16>, %kp: tensor<7x32x2x64xf8E4M3FN>, %vp: tensor<7x32x2x64xf8E4M3FN>, %t: tensor<2x2xi32>, %l: tensor<2xi32>, %s: tensor<3xi32>, %m: tensor<8xi64>)
      -> (tensor<7x32x2x64xf8E4M3FN>, tensor<7x32x2x64xf8E4M3FN>, tensor<8x4x64xbf16>) {
    %p:2 = "stablehlo.composite"(%k, %k, %kp, %vp, %t, %l, %s, %m) <{name = "kvcache.write", composite_attributes = {layer_name = "layers.0.attn"}, decomposition = @body}>
      : (tensor<8x2x64xbf16>, tensor<8x2x64xbf16>, tensor<7x32x2x64xf8E4M3FN>, tensor<7x32x2x64xf8E4M3FN>, tensor<2x2xi32>, tensor<2xi32>, tensor<3xi32>, tensor<8xi64>) -> (tensor<7x32x2x64xf8E4M3FN>, tensor<7x32x2x64xf8E4M3FN>)
    %o = "stablehlo.composite"(%q, %p#0, %p#1, %t, %l, %s, %m) <{name = "kvcache.paged_attention", composite_attributes = {layer_name = "layers.0.attn", softmax_scale = 1.250000e-01 : f32, operand_names = ["query", "key_pages", "value_pages", "page_table", "lengths", "query_start", "slots"]}, decomposition = @body}>
      : (tensor<8x4x64xbf16>, tensor<7x32x2x64xf8E4M3FN>, tensor<7x32x2x64xf8E4M3FN>, tensor<2x2xi32>, tensor<2xi32>, tensor<3xi32>, tensor<8xi64>) -> tensor<8x4x64xbf16>
    return %p#0, %p#1, %o : tensor<7x32x2x64xf8E4M3FN>, tensor<7x32x2x64xf8E4M3FN>, tensor<8x4x64xbf16>
  }
  func.func private @body()
}

// -----

// What an attention has for each head goes along.

// CHECK-LABEL: module @per_head
// CHECK: kvcache.with_pages
// CHECK: kvcache.with_pages
// CHECK-NEXT: ^bb0
// CHECK: kvcache.paged_attention %{{.*}} sinks(%{{[a-z0-9]+}} : tensor<4xf32>) alibi_slopes(%{{[a-z0-9]+}} : tensor<4xf32>)
module @per_head {
  func.func @main(%q: tensor<8x4x64xbf16>, %k: tensor<8x2x64xbf16>, %kp: tensor<7x32x2x64xf8E4M3FN>, %t: tensor<2x2xi32>, %l: tensor<2xi32>, %s: tensor<3xi32>, %m: tensor<8xi64>, %sinks: tensor<4xbf16>, %slopes: tensor<4xf32>)
      -> tensor<8x4x64xbf16> {
    %p:2 = "stablehlo.composite"(%k, %k, %kp, %kp, %t, %l, %s, %m) <{name = "kvcache.write", composite_attributes = {layer_name = "layers.0.attn"}, decomposition = @body}>
      : (tensor<8x2x64xbf16>, tensor<8x2x64xbf16>, tensor<7x32x2x64xf8E4M3FN>, tensor<7x32x2x64xf8E4M3FN>, tensor<2x2xi32>, tensor<2xi32>, tensor<3xi32>, tensor<8xi64>) -> (tensor<7x32x2x64xf8E4M3FN>, tensor<7x32x2x64xf8E4M3FN>)
    %o = "stablehlo.composite"(%q, %p#0, %p#1, %t, %l, %s, %m, %sinks, %slopes) <{name = "kvcache.paged_attention", composite_attributes = {layer_name = "layers.0.attn", softmax_scale = 1.250000e-01 : f32, operand_names = ["query", "key_pages", "value_pages", "page_table", "lengths", "query_start", "slots", "sinks", "alibi_slopes"]}, decomposition = @body}>
      : (tensor<8x4x64xbf16>, tensor<7x32x2x64xf8E4M3FN>, tensor<7x32x2x64xf8E4M3FN>, tensor<2x2xi32>, tensor<2xi32>, tensor<3xi32>, tensor<8xi64>, tensor<4xbf16>, tensor<4xf32>) -> tensor<8x4x64xbf16>
    return %o : tensor<8x4x64xbf16>
  }
  func.func private @body()
}

// -----

// Ops without pages are what they always were.

// CHECK-LABEL: module @without
// CHECK: kvcache.get_cache
// CHECK-NOT: with_pages
// expected-remark @+1 {{the graph has no attention over a KV cache}}
module @without {
  func.func @main(%k: tensor<8x2x64xbf16>) {
    %t = "vllm.unified_kv_cache_update"(%k, %k) {layer_name = "layers.0.attn", operand_names = ["key", "value"]} : (tensor<8x2x64xbf16>, tensor<8x2x64xbf16>) -> tensor<0xbf16>
    return
  }
}

// -----

func.func @main(%k: tensor<8x2x64xbf16>, %p: tensor<7x16x2x64xbf16>) -> tensor<7x16x2x64xbf16> {
  // expected-error @+1 {{'kvcache.write' of layer 'layers.0.attn': pages that stay values need all that goes with them, but the op has no operand for a page table}}
  %n:2 = "stablehlo.composite"(%k, %k, %p, %p) <{name = "kvcache.write", composite_attributes = {layer_name = "layers.0.attn"}, decomposition = @body}>
    : (tensor<8x2x64xbf16>, tensor<8x2x64xbf16>, tensor<7x16x2x64xbf16>, tensor<7x16x2x64xbf16>) -> (tensor<7x16x2x64xbf16>, tensor<7x16x2x64xbf16>)
  return %n#0 : tensor<7x16x2x64xbf16>
}

// -----

func.func @main(%k: tensor<8x2x64xbf16>, %p: tensor<7x16x4x64xbf16>, %t: tensor<2x2xi32>, %l: tensor<2xi32>, %s: tensor<3xi32>, %m: tensor<8xi64>) {
  // expected-note @+2 {{the other one is here}}
  // expected-error @+1 {{needs a cache of 2 x 64 x bf16, but another op of the layer needs 4 x 64 x bf16}}
  %n:2 = "stablehlo.composite"(%k, %k, %p, %p, %t, %l, %s, %m) <{name = "kvcache.write", composite_attributes = {layer_name = "layers.0.attn"}, decomposition = @body}>
    : (tensor<8x2x64xbf16>, tensor<8x2x64xbf16>, tensor<7x16x4x64xbf16>, tensor<7x16x4x64xbf16>, tensor<2x2xi32>, tensor<2xi32>, tensor<3xi32>, tensor<8xi64>) -> (tensor<7x16x4x64xbf16>, tensor<7x16x4x64xbf16>)
  return
}

// -----

func.func @main(%k: tensor<8x2x64xbf16>, %p: tensor<7x12x2x64xbf16>, %t: tensor<2x2xi32>, %l: tensor<2xi32>, %s: tensor<3xi32>, %m: tensor<8xi64>) {
  // expected-error @+1 {{a page has 12 tokens; expected a power of two}}
  %n:2 = "stablehlo.composite"(%k, %k, %p, %p, %t, %l, %s, %m) <{name = "kvcache.write", composite_attributes = {layer_name = "layers.0.attn"}, decomposition = @body}>
    : (tensor<8x2x64xbf16>, tensor<8x2x64xbf16>, tensor<7x12x2x64xbf16>, tensor<7x12x2x64xbf16>, tensor<2x2xi32>, tensor<2xi32>, tensor<3xi32>, tensor<8xi64>) -> (tensor<7x12x2x64xbf16>, tensor<7x12x2x64xbf16>)
  return
}
