// RUN: kvcache-opt %s --allow-unregistered-dialect --split-input-file --verify-diagnostics --kvcache-verify-capturable

// Writing a cache and reading lengths on the device are fine.

kvcache.scale_buffer @layer0.k : f32 = 1.0 from default
kvcache.scale_buffer @layer0.v : f32 = 1.0 from default
kvcache.cache_group @full page_size 16 {max_pages_per_sequence = 2 : i64, max_sequences = 2 : i64, max_tokens = 8 : i64, num_pages = 7 : i64}
kvcache.cache @layer0 of "model.layers.0.self_attn.attn" in @full : 2 x 64 x f8E4M3FN scales(@layer0.k, @layer0.v)
func.func @fine(%q: memref<8x4x64xbf16>, %k: memref<8x2x64xbf16>, %o: memref<8x4x64xbf16>) {
  %c = kvcache.get_cache @layer0 : !kvcache.cache<2 x 64 x f8E4M3FN>
  kvcache.write %k, %k to %c : memref<8x2x64xbf16>, memref<8x2x64xbf16>, !kvcache.cache<2 x 64 x f8E4M3FN>
  kvcache.paged_attention %q over %c outs(%o) {softmax_scale = 0.125 : f64} : memref<8x4x64xbf16>, !kvcache.cache<2 x 64 x f8E4M3FN> -> memref<8x4x64xbf16>
  return
}

// -----

// A host read in front of the first cache op or behind the last is not captured.

kvcache.scale_buffer @layer0.k : f32 = 1.0 from default
kvcache.scale_buffer @layer0.v : f32 = 1.0 from default
kvcache.cache_group @full page_size 16 {max_pages_per_sequence = 2 : i64, max_sequences = 2 : i64, max_tokens = 8 : i64, num_pages = 7 : i64}
kvcache.cache @layer0 of "model.layers.0.self_attn.attn" in @full : 2 x 64 x f8E4M3FN scales(@layer0.k, @layer0.v)
func.func @outside(%k: memref<8x2x64xbf16>, %x: memref<i32>) -> (i32, i32) {
  %before = memref.load %x[] : memref<i32>
  %c = kvcache.get_cache @layer0 : !kvcache.cache<2 x 64 x f8E4M3FN>
  kvcache.write %k, %k to %c : memref<8x2x64xbf16>, memref<8x2x64xbf16>, !kvcache.cache<2 x 64 x f8E4M3FN>
  %after = memref.load %x[] : memref<i32>
  return %before, %after : i32, i32
}

// -----

// Each hazard once, all reported in one run.

module attributes {gpu.container_module} {
kvcache.scale_buffer @layer0.k : f32 = 1.0 from default
kvcache.scale_buffer @layer0.v : f32 = 1.0 from default
kvcache.cache_group @full page_size 16 {max_pages_per_sequence = 2 : i64, max_sequences = 2 : i64, max_tokens = 8 : i64, num_pages = 7 : i64}
kvcache.cache @layer0 of "model.layers.0.self_attn.attn" in @full : 2 x 64 x f8E4M3FN scales(@layer0.k, @layer0.v)
func.func private @opaque()
gpu.module @kernels {
  gpu.func @kernel(%x: f32) kernel {
    gpu.return
  }
}
func.func @hazards(%q: memref<?x4x64xbf16>, %k: memref<?x2x64xbf16>, %o: memref<?x4x64xbf16>, %n: memref<i32>, %scalar: f32, %t: tensor<4xi32>) {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %constant = arith.constant 1.0 : f32
  %c = kvcache.get_cache @layer0 : !kvcache.cache<2 x 64 x f8E4M3FN>
  kvcache.write %k, %k to %c : memref<?x2x64xbf16>, memref<?x2x64xbf16>, !kvcache.cache<2 x 64 x f8E4M3FN>
  // expected-remark @above {{the graph ends here: 1 foreign op follows before the next cache op}}
  // expected-error @below {{'memref.load' cannot be captured (host-read)}}
  // expected-note @below {{cause: the host reads a value that the device computes}}
  // expected-note @below {{cause: its grid or shared memory depends on a value of the device}}
  // expected-note @below {{cause: its condition is a value of the device}}
  // expected-note @below {{what to do: keep the value on the device: let the kernel that needs it read it}}
  %live = memref.load %n[] : memref<i32>
  // expected-error @below {{'tensor.extract' cannot be captured (host-read)}}
  // expected-note @below {{cause: the host reads}}
  // expected-note @below {{what to do: keep the value}}
  %element = tensor.extract %t[%c0] : tensor<4xi32>
  // expected-error @below {{'gpu.wait' cannot be captured (synchronization)}}
  // expected-note @below {{cause: the host waits for the device}}
  // expected-note @below {{what to do: leave the order to the stream}}
  gpu.wait
  // expected-error @below {{'memref.alloc' cannot be captured (allocation)}}
  // expected-note @below {{cause: it allocates or frees memory}}
  // expected-note @below {{what to do: allocate before the capture}}
  %scratch = memref.alloc() : memref<8x4x64xbf16>
  // expected-error @below {{'func.call' cannot be captured (opaque-call)}}
  // expected-note @below {{cause: it calls @opaque, whose body is not known}}
  // expected-note @below {{what to do: give the function a body, or inline it}}
  func.call @opaque() : () -> ()
  %size = arith.index_cast %live : i32 to index
  // expected-error @below {{'gpu.launch_func' cannot be captured (live-geometry)}}
  // expected-note @below {{what to do: launch for the capacity, and let blocks without work return at once}}
  gpu.launch_func @kernels::@kernel blocks in (%size, %c1, %c1) threads in (%c1, %c1, %c1) args(%constant : f32)
  // expected-note @below {{cause: its grid or shared memory depends on a value of the device or on a dimension that is not known}}
  %rows = memref.dim %q, %c0 : memref<?x4x64xbf16>
  // expected-error @below {{'gpu.launch_func' cannot be captured (live-geometry)}}
  // expected-note @below {{what to do: launch for the capacity}}
  gpu.launch_func @kernels::@kernel blocks in (%rows, %c1, %c1) threads in (%c1, %c1, %c1) args(%constant : f32)
  // expected-error @below {{'gpu.launch_func' cannot be captured (host-scalar)}}
  // expected-note @below {{cause: it takes a scalar of the host, which the graph captures as it is at capture}}
  // expected-note @below {{what to do: make it a constant, or keep it in a buffer that the kernel reads}}
  gpu.launch_func @kernels::@kernel blocks in (%c1, %c1, %c1) threads in (%c1, %c1, %c1) args(%scalar : f32)
  %zero = arith.constant 0 : i32
  %condition = arith.cmpi ne, %live, %zero : i32
  // expected-error @below {{'scf.if' cannot be captured (control-flow)}}
  // expected-note @below {{what to do: make the decision in the kernel, which can skip its own work}}
  scf.if %condition {
    // expected-error @below {{'gpu.wait' cannot be captured (synchronization)}}
    // expected-note @below {{cause: the host waits}}
    // expected-note @below {{what to do: leave the order}}
    gpu.wait
  }
  // expected-error @below {{'scf.for' cannot be captured (control-flow)}}
  // expected-note @below {{what to do: make the decision in the kernel}}
  scf.for %i = %c0 to %size step %c1 {
  }
  // expected-note @below {{the first is this 'foreign.buffer'}}
  %moving = "foreign.buffer"() : () -> memref<?x4x64xbf16>
  // expected-error @below {{'kvcache.paged_attention' cannot be captured (unstable-address)}}
  // expected-note @below {{cause: it writes an output, which is not at a fixed address}}
  // expected-note @below {{what to do: make it an argument of the program}}
  kvcache.paged_attention %q over %c outs(%moving) {softmax_scale = 0.125 : f64} : memref<?x4x64xbf16>, !kvcache.cache<2 x 64 x f8E4M3FN> -> memref<?x4x64xbf16>
  return
}
}

// -----

// Run-time scales: read back on the host.

kvcache.scale_buffer @layer0.k : f32 dynamic
kvcache.scale_buffer @layer0.v : f32 dynamic
kvcache.cache_group @full page_size 16 {max_pages_per_sequence = 2 : i64, max_sequences = 2 : i64, max_tokens = 8 : i64, num_pages = 7 : i64}
kvcache.cache @layer0 of "model.layers.0.self_attn.attn" in @full : 2 x 64 x f8E4M3FN scales(@layer0.k, @layer0.v)
func.func @dynamic(%q: tensor<8x256xbf16>, %k: tensor<8x128xbf16>) {
  %c = kvcache.get_cache @layer0 : !kvcache.cache<2 x 64 x f8E4M3FN>
  // expected-error @below {{'kvcache.calculate_scales' cannot be captured (host-read)}}
  // expected-note @below {{cause: it computes scales on the device and reads them back on the host}}
  // expected-note @below {{what to do: run 'kvcache-drop-dynamic-scales'}}
  kvcache.calculate_scales %q, %k, %k for %c : tensor<8x256xbf16>, tensor<8x128xbf16>, tensor<8x128xbf16>, !kvcache.cache<2 x 64 x f8E4M3FN>
  return
}

// -----

// Capacities that are not known.

kvcache.scale_buffer @layer0.k : f32 = 1.0 from default
kvcache.scale_buffer @layer0.v : f32 = 1.0 from default
// expected-note @below {{cause: its grid would depend on live sizes, because the cache group @full does not bound max_sequences, num_pages}}
kvcache.cache_group @full page_size 16 {max_pages_per_sequence = 2 : i64, max_tokens = 8 : i64}
kvcache.cache @layer0 of "model.layers.0.self_attn.attn" in @full : 2 x 64 x f8E4M3FN scales(@layer0.k, @layer0.v)
func.func @unbounded(%k: memref<?x2x64xbf16>) {
  %c = kvcache.get_cache @layer0 : !kvcache.cache<2 x 64 x f8E4M3FN>
  // expected-error @below {{'kvcache.write' cannot be captured (unbounded)}}
  // expected-note @below {{what to do: give the capacities of the cache group}}
  kvcache.write %k, %k to %c : memref<?x2x64xbf16>, memref<?x2x64xbf16>, !kvcache.cache<2 x 64 x f8E4M3FN>
  return
}

// -----

// A branch on a value between blocks.

kvcache.scale_buffer @layer0.k : f32 = 1.0 from default
kvcache.scale_buffer @layer0.v : f32 = 1.0 from default
kvcache.cache_group @full page_size 16 {max_pages_per_sequence = 2 : i64, max_sequences = 2 : i64, max_tokens = 8 : i64, num_pages = 7 : i64}
kvcache.cache @layer0 of "model.layers.0.self_attn.attn" in @full : 2 x 64 x f8E4M3FN scales(@layer0.k, @layer0.v)
func.func @blocks(%k: memref<8x2x64xbf16>, %b: i1) {
  %c = kvcache.get_cache @layer0 : !kvcache.cache<2 x 64 x f8E4M3FN>
  // expected-error @below {{'cf.cond_br' cannot be captured (control-flow)}}
  // expected-note @below {{cause: it chooses at run time what happens next}}
  // expected-note @below {{what to do: make the decision in the kernel}}
  cf.cond_br %b, ^one, ^two
^one:
  kvcache.write %k, %k to %c : memref<8x2x64xbf16>, memref<8x2x64xbf16>, !kvcache.cache<2 x 64 x f8E4M3FN>
  return
^two:
  return
}

// -----

// In a program nothing foreign is left over.

kvcache.scale_buffer @layer0.k : f32 = 1.0 from default
kvcache.scale_buffer @layer0.v : f32 = 1.0 from default
kvcache.program @kvcache.main(%x: memref<8xf32> {kvcache.name = "x", kvcache.role = #kvcache<role activation>}) {
  kvcache.segment @first {
    // expected-error @below {{'foreign.op' cannot be captured (foreign-op)}}
    // expected-note @below {{cause: it is not a cache op}}
    // expected-note @below {{what to do: move it in front of the first cache op or behind the last}}
    "foreign.op"(%x) : (memref<8xf32>) -> ()
    // expected-error @below {{'memref.alloc' cannot be captured (allocation)}}
    // expected-note @below {{cause: it allocates}}
    // expected-note @below {{what to do: allocate before}}
    %made = memref.alloc() : memref<8xf32>
    // expected-error @below {{'kvcache.launch' cannot be captured (unstable-address)}}
    // expected-note @below {{cause: it writes or reads a buffer, which is not at a fixed address}}
    // expected-note @below {{what to do: make it an argument of the program}}
    kvcache.launch @k of "kvcache_write" grid [1, 1, 1] block [128, 1, 1] shared 0
      args(%made : memref<8xf32>) constants [] origins [] structure []
  }
}
