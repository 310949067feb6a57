// RUN: kvcache-opt %s -allow-unregistered-dialect > %t.before
// RUN: kvcache-opt %s -allow-unregistered-dialect -kvcache-import 2> %t.remark > %t.after
// RUN: diff %t.before %t.after
// RUN: FileCheck %s < %t.remark
// RUN: not kvcache-opt %s -allow-unregistered-dialect -kvcache-import=require-attention 2>&1 | FileCheck %s --check-prefix=ERROR

// A graph without cache ops is left alone, custom ops of other kinds included.

// CHECK: remark: the graph has no attention over a KV cache; expected one of the ops 'vllm.unified_kv_cache_update', 'vllm.unified_attention_with_output'
// ERROR: error: the graph has no attention over a KV cache
module attributes {some.attribute = "kept"} {
  func.func @main(%x: tensor<4x8xbf16>) -> tensor<4x8xbf16> {
    %0 = "vllm.all_reduce"(%x) {group = "tp"} : (tensor<4x8xbf16>) -> tensor<4x8xbf16>
    %1 = "_C.rms_norm"(%0) : (tensor<4x8xbf16>) -> tensor<4x8xbf16>
    %2 = call @helper(%1) : (tensor<4x8xbf16>) -> tensor<4x8xbf16>
    return %2 : tensor<4x8xbf16>
  }
  func.func private @helper(tensor<4x8xbf16>) -> tensor<4x8xbf16>
}
