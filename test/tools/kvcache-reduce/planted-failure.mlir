// Of three layers one fails: it stays, with its cache, default scales, one KV
// head and static dimensions, and everything else goes.
// RUN: kvcache-reduce %s --kvcache-reduction=test=%S/Inputs/no-softmax-scale.sh | FileCheck %s --implicit-check-not=layer0 --implicit-check-not=layer2 --implicit-check-not=kvcache.write

// CHECK:      kvcache.scale_buffer @layer1.k : f32 = 1.000000e+00 from default
// CHECK-NEXT: kvcache.scale_buffer @layer1.v : f32 = 1.000000e+00 from default
// CHECK-NEXT: kvcache.cache_group @full page_size 16
// CHECK-NEXT: kvcache.cache @layer1 of "b" in @full : 1 x 64 x f8E4M3FN scales(@layer1.k, @layer1.v)
// CHECK-NEXT: func.func @main(%{{.*}}: tensor<1x2x64xbf16>, %{{.*}}: tensor<1x1x64xbf16>, %{{.*}}: tensor<1x2x64xbf16>)
// CHECK-NEXT:   %[[C:.*]] = kvcache.get_cache @layer1
// CHECK-NEXT:   %[[O:.*]] = kvcache.paged_attention %{{.*}} over %[[C]]
// CHECK-NEXT:   return

// A module that does not fail is refused.
// RUN: not kvcache-reduce %S/Inputs/no-failure.mlir --kvcache-reduction=test=%S/Inputs/no-softmax-scale.sh 2>&1 | FileCheck %s --check-prefix=NONE
// NONE: error: is not interesting to begin with: '{{.*}}no-softmax-scale.sh' must exit with 1 for it

kvcache.scale_buffer @layer0.k : f32 = 1.250000e-02 from checkpoint "a.k_scale"
kvcache.scale_buffer @layer0.v : f32 = 1.250000e-02 from checkpoint "a.v_scale"
kvcache.scale_buffer @layer1.k : f32 = 1.250000e-02 from checkpoint "b.k_scale"
kvcache.scale_buffer @layer1.v : f32 = 1.250000e-02 from checkpoint "b.v_scale"
kvcache.scale_buffer @layer2.k : f32 = 1.250000e-02 from checkpoint "c.k_scale"
kvcache.scale_buffer @layer2.v : f32 = 1.250000e-02 from checkpoint "c.v_scale"
kvcache.cache_group @full page_size 16
kvcache.cache @layer0 of "a" in @full : 2 x 64 x f8E4M3FN scales(@layer0.k, @layer0.v)
kvcache.cache @layer1 of "b" in @full : 2 x 64 x f8E4M3FN scales(@layer1.k, @layer1.v)
kvcache.cache @layer2 of "c" in @full : 2 x 64 x f8E4M3FN scales(@layer2.k, @layer2.v)

func.func @main(%q: tensor<?x4x64xbf16>, %k: tensor<?x2x64xbf16>, %out: tensor<?x4x64xbf16>) -> tensor<?x4x64xbf16> {
  %c0 = kvcache.get_cache @layer0 : !kvcache.cache<2 x 64 x f8E4M3FN>
  kvcache.write %k, %k to %c0 : tensor<?x2x64xbf16>, tensor<?x2x64xbf16>, !kvcache.cache<2 x 64 x f8E4M3FN>
  %o0 = kvcache.paged_attention %q over %c0 outs(%out) {softmax_scale = 1.250000e-01 : f64}
    : tensor<?x4x64xbf16>, !kvcache.cache<2 x 64 x f8E4M3FN> -> tensor<?x4x64xbf16>
  %c1 = kvcache.get_cache @layer1 : !kvcache.cache<2 x 64 x f8E4M3FN>
  kvcache.write %k, %k to %c1 : tensor<?x2x64xbf16>, tensor<?x2x64xbf16>, !kvcache.cache<2 x 64 x f8E4M3FN>
  %o1 = kvcache.paged_attention %o0 over %c1 outs(%out)
    : tensor<?x4x64xbf16>, !kvcache.cache<2 x 64 x f8E4M3FN> -> tensor<?x4x64xbf16>
  %c2 = kvcache.get_cache @layer2 : !kvcache.cache<2 x 64 x f8E4M3FN>
  kvcache.write %k, %k to %c2 : tensor<?x2x64xbf16>, tensor<?x2x64xbf16>, !kvcache.cache<2 x 64 x f8E4M3FN>
  %o2 = kvcache.paged_attention %o1 over %c2 outs(%out) {softmax_scale = 1.250000e-01 : f64}
    : tensor<?x4x64xbf16>, !kvcache.cache<2 x 64 x f8E4M3FN> -> tensor<?x4x64xbf16>
  return %o2 : tensor<?x4x64xbf16>
}
