// RUN: kvcache-opt %s -split-input-file -allow-unregistered-dialect -kvcache-import 2>/dev/null | FileCheck %s

// In place: later uses see the result, earlier ones do not, and the foreign ops
// around stay. Operands are found by the schema; the token and the names are
// read from constants.

// CHECK-LABEL: module @in_place
// CHECK: kvcache.cache @layer0 of "layers.0.attn" in @full : 2 x 64 x bf16
// CHECK: func.func @main(%[[Q:.*]]: !torch.vtensor<[?,4,64],bf16>, %[[K:.*]]: !torch.vtensor<[?,2,64],bf16>, %[[OUT:.*]]: !torch.vtensor<[?,4,64],bf16>)
// CHECK-DAG: %[[BQ:.*]] = builtin.unrealized_conversion_cast %[[Q]] : !torch.vtensor<[?,4,64],bf16> to tensor<?x4x64xbf16>
// CHECK-DAG: %[[BK:.*]] = builtin.unrealized_conversion_cast %[[K]] : !torch.vtensor<[?,2,64],bf16> to tensor<?x2x64xbf16>
// CHECK-DAG: %[[BO:.*]] = builtin.unrealized_conversion_cast %[[OUT]]
// CHECK: %[[OLD:.*]] = "torch.aten.neg"(%[[OUT]])
// CHECK: kvcache.write %[[BK]], %[[BK]] to %[[C:[a-z0-9]+]]
// CHECK: %[[O:.*]] = kvcache.paged_attention %[[BQ]] over %[[C]] outs(%[[BO]]) : tensor<?x4x64xbf16>
// CHECK: %[[NEW:.*]] = builtin.unrealized_conversion_cast %[[O]] : tensor<?x4x64xbf16> to !torch.vtensor<[?,4,64],bf16>
// CHECK: return %[[OLD]], %[[NEW]]
module @in_place {
  func.func @main(%q: !torch.vtensor<[?,4,64],bf16>, %k: !torch.vtensor<[?,2,64],bf16>, %out: !torch.vtensor<[?,4,64],bf16>) -> (!torch.vtensor<[?,4,64],bf16>, !torch.vtensor<[?,4,64],bf16>) {
    %old = "torch.aten.neg"(%out) : (!torch.vtensor<[?,4,64],bf16>) -> !torch.vtensor<[?,4,64],bf16>
    %name = "torch.constant.str"() <{value = "layers.0.attn"}> : () -> !torch.str
    %none = "torch.constant.none"() : () -> !torch.none
    %t = "torch.operator"(%k, %k, %name) <{name = "torch.vllm.unified_kv_cache_update"}> : (!torch.vtensor<[?,2,64],bf16>, !torch.vtensor<[?,2,64],bf16>, !torch.str) -> !torch.vtensor<[0],bf16>
    "torch.operator"(%q, %k, %k, %out, %name, %none, %none, %t) <{name = "torch.vllm.unified_attention_with_output"}> : (!torch.vtensor<[?,4,64],bf16>, !torch.vtensor<[?,2,64],bf16>, !torch.vtensor<[?,2,64],bf16>, !torch.vtensor<[?,4,64],bf16>, !torch.str, !torch.none, !torch.none, !torch.vtensor<[0],bf16>) -> ()
    return %old, %out : !torch.vtensor<[?,4,64],bf16>, !torch.vtensor<[?,4,64],bf16>
  }
}

// -----

// The calculation of scales writes query, key and value in place, and leaves
// them as they are.

// CHECK-LABEL: module @legacy
// CHECK: kvcache.calculate_scales
// CHECK: kvcache.write
// CHECK-NOT: torch.operator
module @legacy {
  func.func @main(%q: !torch.vtensor<[8,256],bf16>, %k: !torch.vtensor<[8,128],bf16>, %rows: !torch.vtensor<[8,2,64],bf16>) -> !torch.vtensor<[8,256],bf16> {
    %name = "torch.constant.str"() <{value = "layers.0.attn"}> : () -> !torch.str
    "torch.operator"(%q, %k, %k, %name) <{name = "torch.vllm.maybe_calc_kv_scales"}> : (!torch.vtensor<[8,256],bf16>, !torch.vtensor<[8,128],bf16>, !torch.vtensor<[8,128],bf16>, !torch.str) -> ()
    %t = "torch.operator"(%rows, %rows, %name) <{name = "torch.vllm.unified_kv_cache_update"}> : (!torch.vtensor<[8,2,64],bf16>, !torch.vtensor<[8,2,64],bf16>, !torch.str) -> !torch.vtensor<[0],bf16>
    return %q : !torch.vtensor<[8,256],bf16>
  }
}

// -----

// Names in the graph go before the schema's order.

// CHECK-LABEL: module @names
// CHECK: func.func @main(%[[V:.*]]: !torch.vtensor<[8,2,64],bf16>, %[[K:.*]]: !torch.vtensor<[8,2,64],bf16>)
// CHECK-DAG: %[[BV:.*]] = builtin.unrealized_conversion_cast %[[V]]
// CHECK-DAG: %[[BK:.*]] = builtin.unrealized_conversion_cast %[[K]]
// CHECK: kvcache.write %[[BK]], %[[BV]]
module @names {
  func.func @main(%v: !torch.vtensor<[8,2,64],bf16>, %k: !torch.vtensor<[8,2,64],bf16>) {
    %name = "torch.constant.str"() <{value = "layers.0.attn"}> : () -> !torch.str
    %t = "torch.operator"(%name, %v, %k) <{name = "torch.vllm.unified_kv_cache_update"}> {operand_names = ["layer_name", "value", "key"]} : (!torch.str, !torch.vtensor<[8,2,64],bf16>, !torch.vtensor<[8,2,64],bf16>) -> !torch.vtensor<[0],bf16>
    return
  }
}
