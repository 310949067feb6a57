// RUN: kvcache-opt %s -split-input-file -verify-diagnostics -allow-unregistered-dialect -kvcache-import -o /dev/null

func.func @main(%q: tensor<8x4x64xbf16>) -> tensor<8x4x64xbf16> {
  // expected-error @+1 {{'kvcache.flash_attention' uses a KV cache, but is not understood; supported are}}
  %o = "stablehlo.composite"(%q) <{name = "kvcache.flash_attention", decomposition = @body}> : (tensor<8x4x64xbf16>) -> tensor<8x4x64xbf16>
  return %o : tensor<8x4x64xbf16>
}
func.func private @body(tensor<8x4x64xbf16>) -> tensor<8x4x64xbf16>

// -----

func.func @main(%k: tensor<8x2x64xbf16>) {
  // expected-error @+1 {{'kvcache.write' of layer 'layers.0.attn' lacks the operand "value"; it has ["key"], expected names from: key, value}}
  "stablehlo.composite"(%k) <{name = "kvcache.write", composite_attributes = {layer_name = "layers.0.attn"}, decomposition = @body}> : (tensor<8x2x64xbf16>) -> ()
  return
}
func.func private @body(tensor<8x2x64xbf16>)
