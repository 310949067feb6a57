// RUN: kvcache-opt %s --split-input-file --kvcache-form-programs=batch-sizes=1,2,4 --verify-diagnostics | FileCheck %s

// A program for each size over the same buffers; the function calls the largest.

kvcache.scale_buffer @layer0.k : f32 = 1.0 from default
kvcache.scale_buffer @layer0.v : f32 = 1.0 from default
kvcache.cache_group @full page_size 16 {max_pages_per_sequence = 2 : i64, max_sequences = 4 : i64, max_tokens = 8 : i64, num_pages = 7 : i64}
kvcache.cache @layer0 of "l0" in @full : 2 x 64 x f8E4M3FN scales(@layer0.k, @layer0.v)

// CHECK-LABEL: kvcache.program @kvcache.main(
// CHECK-SAME:    %{{[a-z0-9]+}}: memref<4xi32> {kvcache.name = "lengths"
// CHECK-NOT:     batch_size
// CHECK:         kvcache.segment @layer0
// CHECK-LABEL: kvcache.program @kvcache.main.b1(
// CHECK-SAME:    %{{[a-z0-9]+}}: memref<4xi32> {kvcache.name = "lengths"
// CHECK-SAME:    attributes {batch_size = 1 : i64, bucket_of = @kvcache.main}
// CHECK-NEXT:    kvcache.segment @layer0
// CHECK-LABEL: kvcache.program @kvcache.main.b2(
// CHECK-SAME:    attributes {batch_size = 2 : i64, bucket_of = @kvcache.main}
// CHECK-NOT:   kvcache.program
// CHECK:       func.func @main
// CHECK:         call @kvcache.main.layer0
func.func @main(%k: tensor<?x2x64xbf16>) {
  %c = kvcache.get_cache @layer0 : !kvcache.cache<2 x 64 x f8E4M3FN>
  kvcache.write %k, %k to %c : tensor<?x2x64xbf16>, tensor<?x2x64xbf16>, !kvcache.cache<2 x 64 x f8E4M3FN>
  return
}

// -----

kvcache.scale_buffer @layer0.k : f32 = 1.0 from default
kvcache.scale_buffer @layer0.v : f32 = 1.0 from default
kvcache.cache_group @full page_size 16 {max_pages_per_sequence = 2 : i64, max_sequences = 4 : i64, max_tokens = 8 : i64, num_pages = 7 : i64}
kvcache.cache @layer0 of "l0" in @full : 2 x 64 x f8E4M3FN scales(@layer0.k, @layer0.v)
// expected-error @below {{batch-sizes: the graph has 8 tokens in every step (buffer 'layer0.key'); export it with a dynamic number of tokens, or leave batch-sizes out}}
func.func @static(%k: tensor<8x2x64xbf16>) {
  %c = kvcache.get_cache @layer0 : !kvcache.cache<2 x 64 x f8E4M3FN>
  kvcache.write %k, %k to %c : tensor<8x2x64xbf16>, tensor<8x2x64xbf16>, !kvcache.cache<2 x 64 x f8E4M3FN>
  return
}

// -----

// expected-error @below {{batch-sizes: the largest, 4, is not max-sequences=8}}
kvcache.cache_group @full page_size 16 {max_pages_per_sequence = 2 : i64, max_sequences = 8 : i64, max_tokens = 8 : i64, num_pages = 7 : i64}

// -----

// expected-error @below {{batch-sizes: max-tokens=6 is not a multiple of max-sequences=4}}
kvcache.cache_group @full page_size 16 {max_pages_per_sequence = 2 : i64, max_sequences = 4 : i64, max_tokens = 6 : i64, num_pages = 7 : i64}

// -----

// expected-error @below {{batch-sizes needs the capacities 'max-sequences' and 'max-tokens'}}
kvcache.cache_group @full page_size 16

// -----

kvcache.scale_buffer @layer0.k : f32 = 1.0 from default
kvcache.scale_buffer @layer0.v : f32 = 1.0 from default
kvcache.cache_group @full page_size 16 {max_pages_per_sequence = 2 : i64, max_sequences = 4 : i64, max_tokens = 8 : i64, num_pages = 7 : i64}
kvcache.cache @layer0 of "l0" in @full : 2 x 64 x f8E4M3FN scales(@layer0.k, @layer0.v)
func.func private @kvcache.taken.b2()
// expected-error @below {{cannot form a program: the symbol @kvcache.taken.b2 is taken; rename it}}
func.func @taken(%k: tensor<?x2x64xbf16>) {
  %c = kvcache.get_cache @layer0 : !kvcache.cache<2 x 64 x f8E4M3FN>
  kvcache.write %k, %k to %c : tensor<?x2x64xbf16>, tensor<?x2x64xbf16>, !kvcache.cache<2 x 64 x f8E4M3FN>
  return
}
