// The result needs nothing of kvcache: a stock mlir-opt lowers it to LLVM.
// RUN: kvcache-opt %s -kvcache-caches-to-arguments -convert-kvcache-to-reference \
// RUN:   | mlir-opt --one-shot-bufferize="bufferize-function-boundaries=1 function-boundary-type-conversion=identity-layout-map" \
// RUN:     --convert-linalg-to-loops --expand-strided-metadata --lower-affine --arith-expand="include-bf16=true" --convert-scf-to-cf \
// RUN:     --convert-math-to-llvm --convert-math-to-libm --convert-arith-to-llvm --finalize-memref-to-llvm --convert-func-to-llvm \
// RUN:     --convert-cf-to-llvm --convert-index-to-llvm --reconcile-unrealized-casts \
// RUN:   | mlir-translate --mlir-to-llvmir | FileCheck %s

// So does a pipeline that frees buffers.
// RUN: kvcache-opt %s -kvcache-caches-to-arguments -convert-kvcache-to-reference \
// RUN:   | mlir-opt --one-shot-bufferize="bufferize-function-boundaries=1 function-boundary-type-conversion=identity-layout-map" \
// RUN:     --buffer-deallocation-pipeline --convert-bufferization-to-memref | FileCheck %s --check-prefix=FREE

// FREE-LABEL: func.func @main(
// The accumulator is on the stack, once for the function.
// FREE: memref.alloca() : memref<64xf64>
// FREE-NOT: memref.alloca
// FREE: return

// CHECK: @kvcache.scale.layer0.k = private constant [2 x float] [float {{.*}}, float 2.000000e+00]
// CHECK-LABEL: define {{.*}} @main(
// CHECK: fdiv float
// CHECK: call i8 @kvcache.round.f8E4M3FN(double
// CHECK: call double @kvcache.widen.f8E4M3FN(i8
// CHECK: call double @llvm.exp.f64
// CHECK: call bfloat @kvcache.round.bf16(double
kvcache.scale_buffer @layer0.k : f32 = [1.25e-2, 2.0] from override
kvcache.scale_buffer @layer0.v : f32 = 1.0 from default
kvcache.cache_group @full page_size 16
kvcache.cache @layer0 of "layers.0.attn" in @full : 2 x 64 x f8E4M3FN scales(@layer0.k, @layer0.v) layout packed
func.func @main(%k: tensor<?x2x64xbf16>, %v: tensor<?x2x64xbf16>, %q: tensor<?x4x64xbf16>, %out: tensor<?x4x64xbf16>, %l: tensor<?x4xf32>)
    -> (tensor<?x4x64xbf16>, tensor<?x4xf32>) {
  %c = kvcache.get_cache @layer0 : !kvcache.cache<2 x 64 x f8E4M3FN>
  kvcache.write %k, %v to %c : tensor<?x2x64xbf16>, tensor<?x2x64xbf16>, !kvcache.cache<2 x 64 x f8E4M3FN>
  %o, %lse = kvcache.paged_attention %q over %c outs(%out, %l) {softmax_scale = 0.125 : f64, soft_cap = 30.0 : f64, window = 3 : i64}
    : tensor<?x4x64xbf16>, !kvcache.cache<2 x 64 x f8E4M3FN> -> tensor<?x4x64xbf16>, tensor<?x4xf32>
  return %o, %lse : tensor<?x4x64xbf16>, tensor<?x4xf32>
}
