// RUN: kvcache-opt %s -split-input-file -verify-diagnostics -allow-unregistered-dialect -o /dev/null -kvcache-verify-static-scales


kvcache.cache_group @full page_size 16
// expected-error @+1 {{illegal where scales are static: @k is dynamic; run kvcache-fold-checkpoint-scales}}
kvcache.scale_buffer @k : f32 dynamic
// expected-error @+1 {{illegal where scales are static: @v is bound to "layers.0.v_scale", whose value was not read; run kvcache-fold-checkpoint-scales}}
kvcache.scale_buffer @v : f32 checkpoint "layers.0.v_scale"
kvcache.cache @layer0 of "layers.0.attn" in @full : 2 x 64 x f8E4M3FN scales(@k, @v)
func.func @main(%q: tensor<4x256xbf16>, %k: tensor<4x128xbf16>) -> f32 {
  %c = kvcache.get_cache @layer0 : !kvcache.cache<2 x 64 x f8E4M3FN>
  // expected-error @+1 {{illegal where scales are static: 'kvcache.calculate_scales' calculates scales at run time; run kvcache-drop-dynamic-scales}}
  kvcache.calculate_scales %q, %k, %k for %c : tensor<4x256xbf16>, tensor<4x128xbf16>, tensor<4x128xbf16>, !kvcache.cache<2 x 64 x f8E4M3FN>
  // expected-error @+1 {{illegal where scales are static: 'kvcache.load_scale' reads a scale at run time; run kvcache-fold-checkpoint-scales}}
  %s = kvcache.load_scale @k : f32
  return %s : f32
}

// -----

// Names of ops, symbols and attributes, and strings of foreign ops.

// expected-error @+1 {{attribute 'vllm.calculate_kv_scales' belongs to the calculation of scales}}
module attributes {vllm.calculate_kv_scales = false} {
  // expected-error @+1 {{symbol @layers.0.attn._q_range belongs to the calculation of scales}}
  memref.global "private" @layers.0.attn._q_range : memref<1xf32>
  // expected-error @+1 {{symbol @K_SCALE_CONSTANT belongs to the calculation of scales}}
  memref.global "private" @K_SCALE_CONSTANT : memref<1xf32>
  // expected-error @+1 {{symbol @maybe_calc_kv_scales_fake belongs to the calculation of scales}}
  func.func private @maybe_calc_kv_scales_fake(tensor<4xf32>)
  // expected-error @+1 {{attribute 'kvcache.cudagraph_downgrade' belongs to the calculation of scales}}
  func.func @main(%x: tensor<4xf32>) attributes {kvcache.cudagraph_downgrade} {
    // expected-error @+1 {{'vllm.maybe_calc_kv_scales' calculates scales at run time}}
    "vllm.maybe_calc_kv_scales"(%x) : (tensor<4xf32>) -> ()
    // expected-error @+1 {{'other.calc_kv_scales' calculates scales at run time}}
    "other.calc_kv_scales"(%x) : (tensor<4xf32>) -> ()
    // expected-error @+1 {{'vllm.calc_kv_scales' calculates scales at run time}}
    "torch.operator"(%x) <{name = "torch.vllm.calc_kv_scales"}> : (tensor<4xf32>) -> ()
    // expected-error @+1 {{attribute 'callee' names the calculation of scales: @maybe_calc_kv_scales_fake}}
    call @maybe_calc_kv_scales_fake(%x) : (tensor<4xf32>) -> ()
    // expected-error @+1 {{attribute 'config' names the calculation of scales: {ops = ["a", "vllm.maybe_calc_kv_scales"]}}}
    "foreign.op"() {config = {ops = ["a", "vllm.maybe_calc_kv_scales"]}} : () -> ()
    // expected-error @+1 {{attribute 'flags' names the calculation of scales: "--calculate-kv-scales --other"}}
    "foreign.op"() {flags = "--calculate-kv-scales --other"} : () -> ()
    // expected-error @+1 {{attribute 'buffer' names the calculation of scales: "layers_0_self_attn_attn__v_range"}}
    "foreign.op"() {buffer = "layers_0_self_attn_attn__v_range"} : () -> ()
    return
  }
}

// -----

// Nothing of it is left; what only looks like it is no finding.

module attributes {x.top_k_range = 4 : i64, vllm.cudagraph_mode = "NONE"} {
  kvcache.cache_group @full page_size 16
  kvcache.scale_buffer @k : f32 = 1.250000e-02 from checkpoint "layers.0.calc_kv_scales.k_scale"
  kvcache.scale_buffer @v : f32 = 1.000000e+00 from default
  kvcache.cache @layer0 of "layers.0.attn" in @full : 2 x 64 x f8E4M3FN scales(@k, @v)
  func.func @main(%x: tensor<4xf32>) {
    "vllm.precalc_kv_scales_table"(%x) {mode = "seq_range"} : (tensor<4xf32>) -> ()
    return
  }
}
