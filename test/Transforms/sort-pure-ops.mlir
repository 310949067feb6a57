// RUN: kvcache-opt %s -allow-unregistered-dialect -kvcache-sort-pure-ops > %t.once
// RUN: FileCheck %s < %t.once
// RUN: kvcache-opt %t.once -allow-unregistered-dialect -kvcache-sort-pure-ops > %t.twice
// RUN: diff %t.once %t.twice

// Effects keep their order; what they need stands right before them, operands
// from left to right, also those that a region uses; constants come first.

// CHECK-LABEL: func.func @order(
// CHECK-NEXT: %[[C2:.*]] = arith.constant 2 : index
// CHECK-NEXT: %[[C1:.*]] = arith.constant 1 : index
// CHECK-NEXT: %[[B:.*]] = tensor.empty(%[[C2]]) : tensor<?xf64>
// CHECK-NEXT: %[[A:.*]] = tensor.empty(%[[C1]]) : tensor<?xf32>
// CHECK-NEXT: "use.both"(%[[B]], %[[A]])
// CHECK-NEXT: "use.nothing"()
// CHECK-NEXT: %[[I:.*]] = tensor.empty() : tensor<3xf32>
// CHECK-NEXT: scf.if
// CHECK-NEXT:   "use.inner"(%[[I]])
// CHECK-NEXT: }
// CHECK-NEXT: %[[R:.*]] = tensor.empty() : tensor<5xf32>
// CHECK-NEXT: tensor.empty() : tensor<9xf32>
// CHECK-NEXT: return %[[R]]
func.func @order(%flag: i1) -> tensor<5xf32> {
  %unused = tensor.empty() : tensor<9xf32>
  %inner = tensor.empty() : tensor<3xf32>
  %r = tensor.empty() : tensor<5xf32>
  %c1 = arith.constant 1 : index
  %a = tensor.empty(%c1) : tensor<?xf32>
  %c2 = arith.constant 2 : index
  %b = tensor.empty(%c2) : tensor<?xf64>
  "use.both"(%b, %a) : (tensor<?xf64>, tensor<?xf32>) -> ()
  "use.nothing"() : () -> ()
  scf.if %flag {
    "use.inner"(%inner) : (tensor<3xf32>) -> ()
  }
  return %r : tensor<5xf32>
}
