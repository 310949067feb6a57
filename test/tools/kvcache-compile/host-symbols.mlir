// What host code uses that is no function stays with it: constants, the grid of
// a collective.
// RUN: rm -rf %t && kvcache-compile %s --target=sm_90 --ptxas=none --quiet --max-tokens=8 --max-sequences=2 -o %t
// RUN: FileCheck %s <%t/host.mlir

// CHECK: shard.grid @ranks(shape = 2)
// CHECK: memref.global "private" constant @ones : memref<4xf32>
// CHECK: func.func private @kvcache.main.c(
// CHECK-LABEL: func.func @main(
// CHECK: memref.get_global @ones
// CHECK: call @kvcache.main.c(
// CHECK: shard.all_gather %{{.*}} on @ranks grid_axes = [0] gather_axis = 1
// CHECK-NOT: func.func
shard.grid @ranks(shape = 2)
memref.global "private" constant @ones : memref<4xf32> = dense<1.0>
kvcache.scale_buffer @k : f32 = 0.5 from override
kvcache.scale_buffer @v : f32 = 0.5 from override
kvcache.cache_group @full page_size 16
kvcache.cache @c of "layer" in @full : 2 x 64 x f8E4M3FN scales(@k, @v)
func.func @main(%q: tensor<?x4x64xbf16>, %o: tensor<?x4x64xbf16>) -> (tensor<?x8x64xbf16>, tensor<4xf32>) {
  %c = kvcache.get_cache @c : !kvcache.cache<2 x 64 x f8E4M3FN>
  %r = kvcache.paged_attention %q over %c outs(%o) {softmax_scale = 0.125 : f64}
    : tensor<?x4x64xbf16>, !kvcache.cache<2 x 64 x f8E4M3FN> -> tensor<?x4x64xbf16>
  %all = shard.all_gather %r on @ranks grid_axes = [0] gather_axis = 1 : tensor<?x4x64xbf16> -> tensor<?x8x64xbf16>
  %buffer = memref.get_global @ones : memref<4xf32>
  %ones = bufferization.to_tensor %buffer restrict : memref<4xf32> to tensor<4xf32>
  return %all, %ones : tensor<?x8x64xbf16>, tensor<4xf32>
}
func.func private @unused()
