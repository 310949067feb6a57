// RUN: kvcache-opt %s -split-input-file -verify-diagnostics -allow-unregistered-dialect -o /dev/null -kvcache-drop-dynamic-scales

// Nothing replaces the run-time value yet.

// expected-error @+1 {{@k is still dynamic, so nothing replaces its run-time value; run kvcache-fold-checkpoint-scales first}}
kvcache.scale_buffer @k : f32 dynamic

// -----

// A result that stands for no operand.

func.func @main(%k: tensor<4xbf16>) -> tensor<f32> {
  // expected-error @+1 {{result 0 of 'vllm.calc_kv_scales' is used, but is none of its operands, so nothing can stand in for it; expected results to be the operands that 'mutated' names, in this order}}
  %r = "vllm.calc_kv_scales"(%k) : (tensor<4xbf16>) -> tensor<f32>
  return %r : tensor<f32>
}

// -----

// An argument that something uses.

// expected-error @+1 {{argument 0 of 'main', {torch.name = "q_range"}, belongs to the calculation of scales at run time, but cannot be erased: the function uses it; export the graph without calculate_kv_scales}}
func.func @main(%r: tensor<1xf32> {torch.name = "q_range"}) -> tensor<1xf32> {
  return %r : tensor<1xf32>
}

// -----

// A global that something else reads.

module {
  // expected-error @+1 {{cannot be dropped: symbol @q_range belongs to the calculation of scales; export the graph without calculate_kv_scales, or rename it if it is something else}}
  memref.global "private" @q_range : memref<1xf32>
  func.func @main() {
    // expected-error @+1 {{cannot be dropped: attribute 'name' names the calculation of scales: @q_range}}
    %0 = memref.get_global @q_range : memref<1xf32>
    "use"(%0) : (memref<1xf32>) -> ()
    return
  }
}

// -----

// A function that others may call.

// expected-error @+1 {{cannot be dropped: symbol @maybe_calc_kv_scales_fake belongs to the calculation of scales}}
func.func @maybe_calc_kv_scales_fake() {
  return
}
