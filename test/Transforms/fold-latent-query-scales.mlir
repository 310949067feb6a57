// RUN: kvcache-opt %s --kvcache-fold-checkpoint-scales="scale=model.layers.0.self_attn.attn.k=0.0125,model.layers.0.self_attn.attn.q=0.5,model.layers.0.self_attn.attn.o=0.25" --kvcache-form-programs 2>/dev/null | FileCheck %s

// The scales of FP8 queries and outputs over a latent cache are resolved like
// those over keys and values, and a quantization of its queries moves into the
// attention's segment.

// CHECK-DAG: kvcache.scale_buffer @layer0.q : f32 = 5.000000e-01 from override
// CHECK-DAG: kvcache.scale_buffer @layer0.o : f32 = 2.500000e-01 from override
kvcache.scale_buffer @layer0.k : f32 dynamic
kvcache.scale_buffer @layer0.q : f32 dynamic
kvcache.scale_buffer @layer0.o : f32 dynamic
kvcache.cache_group @full page_size 16 {max_pages_per_sequence = 2, max_sequences = 2, max_tokens = 8, num_pages = 7}
kvcache.cache @layer0 of "model.layers.0.self_attn.attn" in @full : latent 512 + 64 x f8E4M3FN scales(@layer0.k, @layer0.k)

// CHECK:      kvcache.segment
// CHECK:        kvcache.quantize %{{.*}} by %{{.*}} outs(%[[Q:.*]]) : memref<?x2x576xbf16> to memref<?x2x576xf8E4M3FN>
// CHECK:        kvcache.mla_attention %[[Q]] over %{{.*}} outs(%{{.*}}) {o_scale = @layer0.o, q_scale = @layer0.q, softmax_scale = 1.250000e-01 : f64}
// CHECK-SAME:     memref<?x2x576xf8E4M3FN>, {{.*}} -> memref<?x2x512xf8E5M2>
func.func @main(%q: tensor<?x2x576xbf16>, %o: tensor<?x2x512xf8E5M2>) -> tensor<?x2x512xf8E5M2> {
  %scale = arith.constant 5.0e-01 : f32
  %c = kvcache.get_cache @layer0 : !kvcache.cache<latent 512 + 64 x f8E4M3FN>
  %codes = kvcache.quantize %q by %scale : tensor<?x2x576xbf16> to tensor<?x2x576xf8E4M3FN>
  %a = kvcache.mla_attention %codes over %c outs(%o) {q_scale = @layer0.q, o_scale = @layer0.o, softmax_scale = 0.125}
    : tensor<?x2x576xf8E4M3FN>, !kvcache.cache<latent 512 + 64 x f8E4M3FN> -> tensor<?x2x512xf8E5M2>
  return %a : tensor<?x2x512xf8E5M2>
}
