// Segments become functions; who calls them hands the program's buffers on.
// RUN: kvcache-opt %s --split-input-file --verify-diagnostics --convert-kvcache-to-nvvm | FileCheck %s

kvcache.scale_buffer @s : f32 = 1.0 from default
kvcache.cache_group @full page_size 16
kvcache.cache @c of "layer" in @full : 2 x 64 x f8E4M3FN scales(@s, @s)

kvcache.program @kvcache.main(
    %k: memref<8x2x64xbf16> {kvcache.name = "c.key", kvcache.role = #kvcache<role activation>},
    %p: memref<7x16x2x64xf8E4M3FN> {kvcache.name = "c.k_cache", kvcache.role = #kvcache<role cache>},
    %unused: memref<3xi32> {kvcache.name = "lengths", kvcache.role = #kvcache<role lengths>},
    %s: memref<8xi64> {kvcache.name = "slot_mapping", kvcache.role = #kvcache<role slots>}) {
  kvcache.segment @first {
    kvcache.launch @write_a of "kvcache_write" grid [1, 1, 1] block [128, 1, 1] shared 0
      args(%k, %k, %p, %p, %s : memref<8x2x64xbf16>, memref<8x2x64xbf16>, memref<7x16x2x64xf8E4M3FN>, memref<7x16x2x64xf8E4M3FN>, memref<8xi64>)
      constants [1.0 : f32, 2.0 : f32, 8 : i32, 112 : i64] origins ["k_scale", "v_scale", "max_tokens", "num_pages * page_size"]
      structure [90 : i32, 1 : i32, 0 : i32, 2 : i32, 64 : i32, 16 : i32, 2048 : i64, 128 : i32, 64 : i32, 2048 : i64, 128 : i32, 64 : i32, 1 : i32, 1 : i32, 0 : i32, 0 : i32, 0 : i32, 0 : i32]
  }
}

// The private function that stood for the segment has a body now; a buffer that
// no launch uses is not taken. Declarations are gone.
// CHECK-NOT:   kvcache.
// CHECK:       func.func private @kvcache.main.first(%[[K:.*]]: memref<8x2x64xbf16>, %[[P:.*]]: memref<7x16x2x64xf8E4M3FN>, %[[S:.*]]: memref<8xi64>) attributes {kvcache_buffers = ["c.k_cache", "slot_mapping"]} {
// CHECK:         gpu.launch_func @kvcache_kernels::@write_a
// CHECK:         return
func.func private @kvcache.main.first(memref<8x2x64xbf16>) attributes {kvcache.segment = @kvcache.main::@first}

// CHECK:       func.func @main(%[[K:.*]]: memref<8x2x64xbf16>, %[[P:.*]]: memref<7x16x2x64xf8E4M3FN>, %[[S:.*]]: memref<8xi64>) attributes {kvcache_buffers
// CHECK-NEXT:    call @kvcache.main.first(%[[K]], %[[P]], %[[S]]) : (memref<8x2x64xbf16>, memref<7x16x2x64xf8E4M3FN>, memref<8xi64>) -> ()
func.func @main(%k: memref<8x2x64xbf16>) {
  call @kvcache.main.first(%k) : (memref<8x2x64xbf16>) -> ()
  return
}

// CHECK:       func.func @outer(%[[K:.*]]: memref<8x2x64xbf16>, %[[N:.*]]: index, %[[P:.*]]: memref<7x16x2x64xf8E4M3FN>, %[[S:.*]]: memref<8xi64>)
// CHECK-NEXT:    call @main(%[[K]], %[[P]], %[[S]])
func.func @outer(%k: memref<8x2x64xbf16>, %n: index) {
  call @main(%k) : (memref<8x2x64xbf16>) -> ()
  return
}

// CHECK:       func.func @bystander(%{{.*}}: memref<8x2x64xbf16>) {
func.func @bystander(%k: memref<8x2x64xbf16>) {
  return
}

// -----

// A segment that no function stands for becomes one.
kvcache.program @p(%s: memref<8xi64> {kvcache.name = "s", kvcache.role = #kvcache<role slots>}) {
  kvcache.segment @first {
    kvcache.launch @write_a of "kvcache_write" grid [1, 1, 1] block [128, 1, 1] shared 0
      args(%s, %s, %s, %s, %s : memref<8xi64>, memref<8xi64>, memref<8xi64>, memref<8xi64>, memref<8xi64>)
      constants [1.0 : f32, 2.0 : f32, 8 : i32, 112 : i64] origins ["k_scale", "v_scale", "max_tokens", "num_pages * page_size"]
      structure [90 : i32, 1 : i32, 0 : i32, 2 : i32, 64 : i32, 16 : i32, 2048 : i64, 128 : i32, 64 : i32, 2048 : i64, 128 : i32, 64 : i32, 1 : i32, 1 : i32, 0 : i32, 0 : i32, 0 : i32, 0 : i32]
  }
}
// CHECK: func.func @p.first(%{{.*}}: memref<8xi64>) attributes {kvcache_buffers = ["s"]} {

// -----

// A signature that somebody else relies on is not changed.
kvcache.program @kvcache.main(%s: memref<8xi64> {kvcache.name = "s", kvcache.role = #kvcache<role slots>}) {
  kvcache.segment @first {
    kvcache.launch @write_a of "kvcache_write" grid [1, 1, 1] block [128, 1, 1] shared 0
      args(%s, %s, %s, %s, %s : memref<8xi64>, memref<8xi64>, memref<8xi64>, memref<8xi64>, memref<8xi64>)
      constants [1.0 : f32, 2.0 : f32, 8 : i32, 112 : i64] origins ["k_scale", "v_scale", "max_tokens", "num_pages * page_size"]
      structure [90 : i32, 1 : i32, 0 : i32, 2 : i32, 64 : i32, 16 : i32, 2048 : i64, 128 : i32, 64 : i32, 2048 : i64, 128 : i32, 64 : i32, 1 : i32, 1 : i32, 0 : i32, 0 : i32, 0 : i32, 0 : i32]
  }
}
func.func private @kvcache.main.first() attributes {kvcache.segment = @kvcache.main::@first}
func.func @main() -> (() -> ()) {
  // expected-error @+1 {{uses @kvcache.main.first, which has to take the program's buffers as arguments; only a 'func.call' in a 'func.func' can hand them on}}
  %f = constant @kvcache.main.first : () -> ()
  return %f : () -> ()
}

// -----

// The stand-in must take the segment's activations.
kvcache.program @kvcache.main(%s: memref<8xi64> {kvcache.name = "s", kvcache.role = #kvcache<role slots>}) {
  kvcache.segment @first {
    kvcache.launch @write_a of "kvcache_write" grid [1, 1, 1] block [128, 1, 1] shared 0
      args(%s, %s, %s, %s, %s : memref<8xi64>, memref<8xi64>, memref<8xi64>, memref<8xi64>, memref<8xi64>)
      constants [1.0 : f32, 2.0 : f32, 8 : i32, 112 : i64] origins ["k_scale", "v_scale", "max_tokens", "num_pages * page_size"]
      structure [90 : i32, 1 : i32, 0 : i32, 2 : i32, 64 : i32, 16 : i32, 2048 : i64, 128 : i32, 64 : i32, 2048 : i64, 128 : i32, 64 : i32, 1 : i32, 1 : i32, 0 : i32, 0 : i32, 0 : i32, 0 : i32]
  }
}
// expected-error @+1 {{stands for the segment @kvcache.main::@first, so a declaration of type '() -> ()' was expected, but found one of type '(memref<4xf32>) -> ()'}}
func.func private @kvcache.main.first(memref<4xf32>) attributes {kvcache.segment = @kvcache.main::@first}
