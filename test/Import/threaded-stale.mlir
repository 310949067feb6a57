// RUN: kvcache-opt %s -verify-diagnostics -allow-unregistered-dialect -kvcache-import -o /dev/null
// RUN: kvcache-opt %s -verify-diagnostics -allow-unregistered-dialect -kvcache-import=cache-operands=threaded -o /dev/null

// An attention that reads the pages from before the update would see other
// keys than the declared cache has.

func.func @main(%q: tensor<8x4x64xbf16>, %k: tensor<8x2x64xbf16>, %kp: tensor<7x16x2x64xbf16>, %vp: tensor<7x16x2x64xbf16>, %t: tensor<2x2xi32>, %l: tensor<2xi32>, %s: tensor<3xi32>, %m: tensor<8xi64>) -> tensor<8x4x64xbf16> {
  // expected-note @+1 {{the update is here}}
  %p:2 = "stablehlo.composite"(%k, %k, %kp, %vp, %t, %l, %s, %m) <{name = "kvcache.write", composite_attributes = {layer_name = "layers.0.attn"}, decomposition = @body}>
    : (tensor<8x2x64xbf16>, tensor<8x2x64xbf16>, tensor<7x16x2x64xbf16>, tensor<7x16x2x64xbf16>, tensor<2x2xi32>, tensor<2xi32>, tensor<3xi32>, tensor<8xi64>) -> (tensor<7x16x2x64xbf16>, tensor<7x16x2x64xbf16>)
  // expected-error @+1 {{'kvcache.paged_attention' of layer 'layers.0.attn' reads other pages than its layer's cache update returns; give it the results of the update}}
  %o = "stablehlo.composite"(%q, %p#0, %vp, %t, %l, %s, %m) <{name = "kvcache.paged_attention", composite_attributes = {layer_name = "layers.0.attn", operand_names = ["query", "key_pages", "value_pages", "page_table", "lengths", "query_start", "slots"]}, decomposition = @body}>
    : (tensor<8x4x64xbf16>, tensor<7x16x2x64xbf16>, tensor<7x16x2x64xbf16>, tensor<2x2xi32>, tensor<2xi32>, tensor<3xi32>, tensor<8xi64>) -> tensor<8x4x64xbf16>
  return %o : tensor<8x4x64xbf16>
}
