// RUN: kvcache-opt %s -allow-unregistered-dialect > %t.before
// RUN: kvcache-opt %s -allow-unregistered-dialect -kvcache-resolve-cache-types=kv-cache-dtype=fp8 -kvcache-apply-model-config -kvcache-fold-checkpoint-scales -kvcache-drop-dynamic-scales -kvcache-verify-static-scales > %t.after 2> %t.diagnostics
// RUN: diff %t.before %t.after
// RUN: count 0 < %t.diagnostics

// Nothing fires where there is no cache. Names that only look like those of the
// old path stay.

module attributes {x.top_k_range = 4 : i64, vllm.cudagraph_mode = "NONE", x.note = "recalc_kv_scales"} {
  memref.global "private" @top_k_range : memref<1xf32>
  func.func @main(%x: tensor<4x8xbf16> {torch.name = "layers.0.freq_range"}) -> tensor<4x8xbf16> {
    %r = memref.get_global @top_k_range : memref<1xf32>
    %0 = "vllm.all_reduce"(%x) {group = "tp"} : (tensor<4x8xbf16>) -> tensor<4x8xbf16>
    return %0 : tensor<4x8xbf16>
  }
  func.func private @unused()
}
