// RUN: kvcache-opt %s -split-input-file -allow-unregistered-dialect -kvcache-drop-dynamic-scales -kvcache-verify-static-scales > %t.once 2> %t.diagnostics
// RUN: FileCheck %s < %t.once
// RUN: FileCheck %s --check-prefix=WARN --implicit-check-not=warning: < %t.diagnostics
// RUN: kvcache-opt %t.once -split-input-file -allow-unregistered-dialect -kvcache-drop-dynamic-scales > %t.twice 2> %t.silence
// RUN: diff %t.once %t.twice
// RUN: count 0 < %t.silence

// The op of the dialect, with its handle. One warning a layer, not one an op.

// CHECK-LABEL: module @own
// CHECK: func.func @main
// CHECK-NEXT: %[[C:.*]] = kvcache.get_cache @layer0
// CHECK-NEXT: kvcache.write %{{.*}}, %{{.*}} to %[[C]]
// CHECK-NEXT: return
// WARN: warning: layer 'layers.0.attn': scales that the graph calculated at run time are replaced by k = 0.0125 (checkpoint "layers.0.k_scale") and v = 1 (default); results differ from those with run-time scales. For calibrated scales, run kvcache-scales calibrate on sampled activations and pass the result with scale-overlay
module @own {
  kvcache.cache_group @full page_size 16
  kvcache.scale_buffer @k : f32 = 1.250000e-02 from checkpoint "layers.0.k_scale"
  kvcache.scale_buffer @v : f32 = 1.000000e+00 from default
  kvcache.cache @layer0 of "layers.0.attn" in @full : 2 x 64 x f8E4M3FN scales(@k, @v)
  func.func @main(%q: tensor<4x4x64xbf16>, %k: tensor<4x2x64xbf16>) {
    %a = kvcache.get_cache @layer0 : !kvcache.cache<2 x 64 x f8E4M3FN>
    kvcache.calculate_scales %q, %k, %k for %a : tensor<4x4x64xbf16>, tensor<4x2x64xbf16>, tensor<4x2x64xbf16>, !kvcache.cache<2 x 64 x f8E4M3FN>
    %b = kvcache.get_cache @layer0 : !kvcache.cache<2 x 64 x f8E4M3FN>
    kvcache.calculate_scales %q, %k, %k for %b : tensor<4x4x64xbf16>, tensor<4x2x64xbf16>, tensor<4x2x64xbf16>, !kvcache.cache<2 x 64 x f8E4M3FN>
    %c = kvcache.get_cache @layer0 : !kvcache.cache<2 x 64 x f8E4M3FN>
    kvcache.write %k, %k to %c : tensor<4x2x64xbf16>, tensor<4x2x64xbf16>, !kvcache.cache<2 x 64 x f8E4M3FN>
    return
  }
}

// -----

// Foreign ops, plain and functionalized, of attention and of MLA: results become
// operands. A layer name that nothing else needs goes too.

// CHECK-LABEL: module @foreign
// CHECK: func.func @main(%[[Q:.*]]: tensor<4x8xbf16>, %[[K:.*]]: tensor<4x2xbf16>, %[[V:.*]]: tensor<4x2xbf16>)
// CHECK-NEXT: %[[S:.*]] = "torch.constant.str"() <{value = "layers.3.attn"}>
// CHECK-NEXT: "use"(%[[Q]], %[[V]], %[[K]], %[[S]])
// CHECK-NEXT: "use"(%[[Q]])
// CHECK-NEXT: "use"(%[[K]])
// CHECK-NEXT: return
// WARN: warning: layer 'layers.1.attn' calculated its scales at run time and has no kvcache.cache here
// WARN: warning: layer 'layers.2.attn' calculated
// WARN: warning: layer 'layers.3.attn' calculated
// WARN: warning: layer 'layers.4.attn' calculated
// WARN: warning: layer 'layers.5.attn' calculated
module @foreign {
  func.func @main(%q: tensor<4x8xbf16>, %k: tensor<4x2xbf16>, %v: tensor<4x2xbf16>) {
    "vllm.maybe_calc_kv_scales"(%q, %k, %v) {layer_name = "layers.1.attn"} : (tensor<4x8xbf16>, tensor<4x2xbf16>, tensor<4x2xbf16>) -> ()
    %r:3 = "vllm.maybe_calc_kv_scales"(%q, %k, %v) {layer_name = "layers.2.attn", operand_names = ["q", "kv_c_normed", "k_pe"], mutated = ["k_pe", "kv_c_normed", "q"]} : (tensor<4x8xbf16>, tensor<4x2xbf16>, tensor<4x2xbf16>) -> (tensor<4x2xbf16>, tensor<4x2xbf16>, tensor<4x8xbf16>)
    %n = "torch.constant.str"() <{value = "layers.3.attn"}> : () -> !torch.str
    %unused = "torch.constant.str"() <{value = "layers.3.attn"}> : () -> !torch.str
    %s:3 = "torch.operator"(%r#2, %r#1, %r#0, %unused) <{name = "torch.vllm.calc_kv_scales"}> : (tensor<4x8xbf16>, tensor<4x2xbf16>, tensor<4x2xbf16>, !torch.str) -> (tensor<4x8xbf16>, tensor<4x2xbf16>, tensor<4x2xbf16>)
    "use"(%s#0, %r#0, %s#1, %n) : (tensor<4x8xbf16>, tensor<4x2xbf16>, tensor<4x2xbf16>, !torch.str) -> ()
    %t:3 = "stablehlo.custom_call"(%q, %k, %v) <{call_target_name = "vllm.maybe_calc_kv_scales", backend_config = {layer_name = "layers.4.attn"}}> : (tensor<4x8xbf16>, tensor<4x2xbf16>, tensor<4x2xbf16>) -> (tensor<4x8xbf16>, tensor<4x2xbf16>, tensor<4x2xbf16>)
    "use"(%t#0) : (tensor<4x8xbf16>) -> ()
    %dtype = "torch.constant.str"() <{value = "fp8"}> : () -> !torch.str
    %layer = "torch.constant.str"() <{value = "layers.5.attn"}> : () -> !torch.str
    %w:3 = "torch.operator"(%q, %k, %v, %dtype, %layer) <{name = "torch.vllm.maybe_calc_kv_scales", operand_names = ["query", "key", "value", "kv_cache_dtype", "layer_name"]}> : (tensor<4x8xbf16>, tensor<4x2xbf16>, tensor<4x2xbf16>, !torch.str, !torch.str) -> (tensor<4x8xbf16>, tensor<4x2xbf16>, tensor<4x2xbf16>)
    "use"(%w#1) : (tensor<4x2xbf16>) -> ()
    return
  }
}

// -----

// Calls, and declarations that nothing calls.

// CHECK-LABEL: module @calls
// CHECK-NEXT: func.func @main(%[[Q:.*]]: tensor<4x8xbf16>) -> tensor<4x8xbf16> {
// CHECK-NEXT: return %[[Q]]
// CHECK-NEXT: }
// CHECK-NEXT: func.func private @other()
// CHECK-NEXT: }
// WARN: warning: layer 'layers.5.attn' calculated
module @calls {
  func.func @main(%q: tensor<4x8xbf16>) -> tensor<4x8xbf16> {
    %0 = call @vllm.maybe_calc_kv_scales.0(%q) : (tensor<4x8xbf16>) -> tensor<4x8xbf16>
    return %0 : tensor<4x8xbf16>
  }
  func.func private @vllm.maybe_calc_kv_scales.0(tensor<4x8xbf16>) -> tensor<4x8xbf16> attributes {torch.attrs = {layer_name = "layers.5.attn"}, torch.mutated = ["query"], torch.op = "vllm::maybe_calc_kv_scales", torch.operands = ["query"]}
  func.func private @maybe_calc_kv_scales_fake(%x: tensor<4xf32>) {
    return
  }
  func.func private @other()
}

// -----

// Attributes at any op, argument and result, and in nested dictionaries; lists
// whose positions mean something keep their length. The option tells that every
// quantized layer had run-time scales; the unquantized one did not care.

// CHECK-LABEL: module @attributes
// CHECK-SAME: attributes {vllm.config = {ops = ["a"]}, vllm.kept = 1 : i64} {
// CHECK: func.func @main(%{{.*}}: tensor<4xf32> {x.kept}) attributes {vllm.cudagraph_mode = "FULL"} {
// CHECK-NEXT: "use"() {operand_names = []} : () -> ()
// WARN: warning: layer 'layers.6.attn': {{.*}} k = 0.5 (override) and v = 0.25 (duplicate "layers.6.k_scale")
module @attributes attributes {vllm.calculate_kv_scales = true, vllm.config = {calculate_kv_scales = true, cudagraph_mode = "NONE", ops = ["a", "vllm.maybe_calc_kv_scales"]}, vllm.cudagraph_mode = "NONE", vllm.kept = 1 : i64} {
  kvcache.cache_group @full page_size 16
  kvcache.scale_buffer @k : f32 = 5.000000e-01 from override
  kvcache.scale_buffer @v : f32 = 2.500000e-01 from duplicate "layers.6.k_scale"
  kvcache.cache @layer6 of "layers.6.attn" in @full : 2 x 64 x f8E4M3FN scales(@k, @v)
  kvcache.cache @layer7 of "layers.7.attn" in @full : 2 x 64 x bf16 scales(@k, @v)
  func.func @main(%x: tensor<4xf32> {kvcache.q_range = 200.0 : f32, x.kept}) attributes {Q_SCALE_CONSTANT = 200 : i64, kvcache.cudagraph_downgrade, vllm.cudagraph_mode = "FULL"} {
    "use"() {_k_range = 1.0 : f32, operand_names = []} : () -> ()
    %dead = arith.constant {V_SCALE_CONSTANT} 100.0 : f32
    return
  }
}

// -----

// Range buffers and first-step flags: globals, what reads and writes them, and
// the branch that only calculated.

// CHECK-LABEL: module @globals
// CHECK-NEXT: memref.global "private" @kept
// CHECK-NEXT: func.func @main(%[[K:.*]]: tensor<4x2xbf16>) {
// CHECK-NEXT: "use"(%[[K]])
// CHECK-NEXT: return
// WARN: warning: layer 'layers.8.attn' calculated
module @globals {
  memref.global "private" @layers.8.attn.k_range : memref<1xf32>
  memref.global "private" @kept : memref<1xf32>
  ml_program.global private mutable @layers.8.calculate_kv_scales(true) : i1
  func.func @main(%k: tensor<4x2xbf16>) {
    %flag = ml_program.global_load @layers.8.calculate_kv_scales : i1
    scf.if %flag {
      %range = memref.get_global @layers.8.attn.k_range : memref<1xf32>
      %zero = arith.constant 0 : index
      %one = arith.constant 1.0 : f32
      memref.store %one, %range[%zero] : memref<1xf32>
      "vllm.maybe_calc_kv_scales"(%k) {layer_name = "layers.8.attn"} : (tensor<4x2xbf16>) -> ()
      %false = arith.constant false
      ml_program.global_store @layers.8.calculate_kv_scales = %false : i1
    }
    "use"(%k) : (tensor<4x2xbf16>) -> ()
    return
  }
}

// -----

// An argument that only carried a range.

// CHECK-LABEL: module @arguments
// CHECK: func.func @main(%[[X:.*]]: tensor<4xf32> {torch.name = "x"}) -> tensor<4xf32> {
// CHECK-NEXT: return %[[X]]
// WARN: remark: 1 unused arguments of 'main' belonged to the calculation of scales at run time and are gone from its signature
module @arguments {
  func.func @main(%r: tensor<1xf32> {torch.name = "layers.0.self_attn.attn._q_range"}, %x: tensor<4xf32> {torch.name = "x"}) -> tensor<4xf32> {
    return %x : tensor<4xf32>
  }
}

// -----

// A cache that is not quantized: nothing changes, so it is a remark.

// CHECK-LABEL: module @unquantized
// CHECK-NOT: kvcache.calculate_scales
// WARN: remark: layer 'layers.9.attn' calculated scales at run time, but its cache of 'bf16' uses none; nothing changes
module @unquantized {
  kvcache.cache_group @full page_size 16
  kvcache.scale_buffer @k : f32 = 1.000000e+00 from default
  kvcache.cache @layer9 of "layers.9.attn" in @full : 2 x 64 x bf16 scales(@k, @k)
  func.func @main(%k: tensor<4x2x64xbf16>) {
    %c = kvcache.get_cache @layer9 : !kvcache.cache<2 x 64 x bf16>
    kvcache.calculate_scales %k, %k, %k for %c : tensor<4x2x64xbf16>, tensor<4x2x64xbf16>, tensor<4x2x64xbf16>, !kvcache.cache<2 x 64 x bf16>
    return
  }
}
