// RUN: kvcache-opt %s --convert-kvcache-to-nvvm="target=sm_90 kernel-library=lib.bc" | FileCheck %s
// RUN: kvcache-opt %s --convert-kvcache-to-nvvm="target=sm_90 kernel-library=lib.bc" --convert-kvcache-to-nvvm | FileCheck %s
// RUN: kvcache-opt %s --convert-kvcache-to-nvvm=target=sm_100a | FileCheck %s --check-prefix=SM100

// CHECK: module attributes {gpu.container_module}
// CHECK: gpu.module @kvcache_kernels [#nvvm.target<O = 1, chip = "sm_90", features = "+ptx78", link = ["lib.bc"]>] {
// CHECK-NEXT: llvm.func @kvcache_write(!llvm.ptr, !llvm.ptr, !llvm.ptr, !llvm.ptr, !llvm.ptr, !llvm.ptr, !llvm.ptr, f32, f32, i32, i64, i32, i32, i32, i32, i32, i32, i64, i32, i32, i64, i32, i32, i32, i32, i32, i32, i32, i32, i32)
// CHECK-NEXT: llvm.func @write_a(%[[K:.*]]: !llvm.ptr<1>, %{{.*}}: !llvm.ptr<1>, %{{.*}}: !llvm.ptr<1>, %{{.*}}: !llvm.ptr<1>, %{{.*}}: !llvm.ptr<1>, %[[KS:.*]]: f32, %{{.*}}: f32, %{{.*}}: i32, %{{.*}}: i64) attributes {gpu.kernel, nvvm.kernel, nvvm.reqntid = array<i32: 128, 1, 1>} {
// CHECK-NEXT:   %[[KG:.*]] = llvm.addrspacecast %[[K]] : !llvm.ptr<1> to !llvm.ptr
// CHECK:        %[[ARCH:.*]] = llvm.mlir.constant(90 : i32) : i32
// A launch that does not say the head dim of V has that of K.
// CHECK-COUNT-3: llvm.mlir.constant(64 : i32) : i32
// CHECK:        %[[DIM:.*]] = llvm.mlir.constant(64 : i32) : i32
// CHECK-NEXT:   llvm.call @kvcache_write(%[[KG]],
// CHECK-SAME:     %[[KS]],
// CHECK-SAME:     %[[ARCH]],
// CHECK-SAME:     %[[DIM]])
// CHECK:        llvm.return
// The attention has no LSE, workspaces, sinks, ALiBi slopes and scales of tokens, which its wrapper passes as null.
// CHECK:      llvm.func @kvcache_paged_attention(
// CHECK:      llvm.func @attention_a(%{{.*}}: !llvm.ptr<1>, %{{.*}}: !llvm.ptr<1>, %{{.*}}: !llvm.ptr<1>, %{{.*}}: !llvm.ptr<1>, %{{.*}}: !llvm.ptr<1>, %{{.*}}: !llvm.ptr<1>, %{{.*}}: !llvm.ptr<1>, %{{.*}}: f32, %{{.*}}: f32, %{{.*}}: f32, %{{.*}}: i32, %{{.*}}: i32, %{{.*}}: i32, %{{.*}}: i32) attributes {gpu.kernel, nvvm.kernel, nvvm.minctasm = 2 : i32, nvvm.reqntid = array<i32: 128, 1, 1>} {
// CHECK-COUNT-7: llvm.mlir.zero : !llvm.ptr
// CHECK:        llvm.call @kvcache_paged_attention

// CHECK:      llvm.func @write_values(
// CHECK:        %[[VDIM:.*]] = llvm.mlir.constant(32 : i32) : i32
// CHECK-NEXT:   llvm.call @kvcache_write({{.*}}, %[[VDIM]])

// Scales for each KV head: the kernel picks those of its block index, over the blocks of a head.
// CHECK:      llvm.func @write_heads({{.*}}, %[[K0:[a-z0-9]+]]: f32, %[[K1:[a-z0-9]+]]: f32, %[[V0:[a-z0-9]+]]: f32, %[[V1:[a-z0-9]+]]: f32, %{{[a-z0-9]+}}: i32, %{{[a-z0-9]+}}: i64)
// CHECK:        %[[Y:.*]] = nvvm.read.ptx.sreg.ctaid.y : i32
// CHECK:        %[[IS1:.*]] = llvm.icmp "eq" %[[Y]], %{{.*}} : i32
// CHECK-NEXT:   %[[KMINE:.*]] = llvm.select %[[IS1]], %[[K1]], %[[K0]] : i1, f32
// CHECK:        %[[VMINE:.*]] = llvm.select %{{.*}}, %[[V1]], %[[V0]] : i1, f32
// CHECK:        llvm.call @kvcache_write({{.*}}, %[[KMINE]], %[[VMINE]],
// CHECK:      llvm.func @attention_heads(
// CHECK:        %[[X:.*]] = nvvm.read.ptx.sreg.ctaid.x : i32
// CHECK:        %[[BLOCKS:.*]] = llvm.mlir.constant(3 : i32) : i32
// CHECK-NEXT:   %[[HEAD:.*]] = llvm.udiv %[[X]], %[[BLOCKS]] : i32
// CHECK:        llvm.icmp "eq" %[[HEAD]],

// CHECK:      func.func @kvcache.main.layer0(
// CHECK-SAME:   %[[BK:[a-z0-9]+]]: memref<8x2x64xbf16>
// CHECK-SAME:   %[[BV:[a-z0-9]+]]: memref<7x16x2x64xf8E4M3FN, strided<[2048, 128, 64, 1], offset: ?>>, %{{.*}}: memref<3xi32>, %{{.*}}: memref<8xi64>) attributes {kvcache_buffers = ["p", "i", "s"]} {
// CHECK:        memref.extract_aligned_pointer_as_index %[[BK]]
// The kernel gets the address of the first element, wherever the view starts.
// CHECK:        %[[AV:.*]] = memref.extract_aligned_pointer_as_index %[[BV]]
// CHECK:        %{{.*}}, %[[OFFSET:.*]], %{{.*}}:4, %{{.*}}:4 = memref.extract_strided_metadata %[[BV]]
// CHECK:        %[[BYTES:.*]] = arith.muli %[[OFFSET]]
// CHECK:        arith.addi %[[AV]], %[[BYTES]]
// CHECK:        gpu.launch_func @kvcache_kernels::@write_a blocks in (%{{.*}}, %{{.*}}, %{{.*}}) threads in
// Two launches of one kernel.
// CHECK:        gpu.launch_func @kvcache_kernels::@write_a
// CHECK:        gpu.launch_func @kvcache_kernels::@attention_a blocks in {{.*}} dynamic_shared_memory_size
// CHECK:        return
// CHECK-NOT:    kvcache.launch
// CHECK-NOT:    kvcache.program

// SM100: #nvvm.target<O = 1, chip = "sm_100a", features = "+ptx86">
kvcache.program @kvcache.main(
    %k: memref<8x2x64xbf16> {kvcache.name = "k", kvcache.role = #kvcache<role activation>},
    %p: memref<7x16x2x64xf8E4M3FN, strided<[2048, 128, 64, 1], offset: ?>> {kvcache.name = "p", kvcache.role = #kvcache<role cache>},
    %i: memref<3xi32> {kvcache.name = "i", kvcache.role = #kvcache<role lengths>},
    %s: memref<8xi64> {kvcache.name = "s", kvcache.role = #kvcache<role slots>}) {
  kvcache.segment @layer0 {
    kvcache.launch @write_a of "kvcache_write" grid [1, 1, 1] block [128, 1, 1] shared 0
      args(%k, %k, %p, %p, %s : memref<8x2x64xbf16>, memref<8x2x64xbf16>, memref<7x16x2x64xf8E4M3FN, strided<[2048, 128, 64, 1], offset: ?>>, memref<7x16x2x64xf8E4M3FN, strided<[2048, 128, 64, 1], offset: ?>>, memref<8xi64>)
      constants [1.0 : f32, 2.0 : f32, 8 : i32, 112 : i64] origins ["k_scale", "v_scale", "max_tokens", "num_pages * page_size"]
      structure [90 : i32, 1 : i32, 0 : i32, 2 : i32, 64 : i32, 16 : i32, 2048 : i64, 128 : i32, 64 : i32, 2048 : i64, 128 : i32, 64 : i32, 1 : i32, 1 : i32, 0 : i32, 0 : i32, 0 : i32, 0 : i32]
    kvcache.launch @write_a of "kvcache_write" grid [1, 1, 1] block [128, 1, 1] shared 0
      args(%k, %k, %p, %p, %s : memref<8x2x64xbf16>, memref<8x2x64xbf16>, memref<7x16x2x64xf8E4M3FN, strided<[2048, 128, 64, 1], offset: ?>>, memref<7x16x2x64xf8E4M3FN, strided<[2048, 128, 64, 1], offset: ?>>, memref<8xi64>)
      constants [4.0 : f32, 2.0 : f32, 8 : i32, 112 : i64] origins ["k_scale", "v_scale", "max_tokens", "num_pages * page_size"]
      structure [90 : i32, 1 : i32, 0 : i32, 2 : i32, 64 : i32, 16 : i32, 2048 : i64, 128 : i32, 64 : i32, 2048 : i64, 128 : i32, 64 : i32, 1 : i32, 1 : i32, 0 : i32, 0 : i32, 0 : i32, 0 : i32]
    kvcache.launch @attention_a of "kvcache_paged_attention" grid [2, 8, 1] block [128, 1, 1] shared 61440
      args(%k, %p, %p, %i, %i, %i, %k : memref<8x2x64xbf16>, memref<7x16x2x64xf8E4M3FN, strided<[2048, 128, 64, 1], offset: ?>>, memref<7x16x2x64xf8E4M3FN, strided<[2048, 128, 64, 1], offset: ?>>, memref<3xi32>, memref<3xi32>, memref<3xi32>, memref<8x2x64xbf16>)
      constants [1.0 : f32, 2.0 : f32, 0.0 : f32, 8 : i32, 2 : i32, 2 : i32, 0 : i32] origins ["score", "v_scale", "no soft_cap", "max_tokens", "max_sequences", "max_pages_per_sequence", "no window"]
      structure [90 : i32, 1 : i32, 1 : i32, 0 : i32, 2 : i32, 2 : i32, 64 : i32, 16 : i32, 2048 : i64, 128 : i32, 64 : i32, 2048 : i64, 128 : i32, 64 : i32, 32 : i32, 3 : i32, 1 : i32, 1 : i32, 0 : i32, 0 : i32, 0 : i32, 0 : i32, 0 : i32, 256 : i32, 1 : i32, 0 : i32, 0 : i32] {min_ctas_per_sm = 2 : i64}
    kvcache.launch @write_values of "kvcache_write" grid [1, 1, 1] block [128, 1, 1] shared 0
      args(%k, %k, %p, %p, %s : memref<8x2x64xbf16>, memref<8x2x64xbf16>, memref<7x16x2x64xf8E4M3FN, strided<[2048, 128, 64, 1], offset: ?>>, memref<7x16x2x64xf8E4M3FN, strided<[2048, 128, 64, 1], offset: ?>>, memref<8xi64>)
      constants [4.0 : f32, 2.0 : f32, 8 : i32, 112 : i64] origins ["k_scale", "v_scale", "max_tokens", "num_pages * page_size"]
      structure [90 : i32, 1 : i32, 0 : i32, 2 : i32, 64 : i32, 16 : i32, 2048 : i64, 128 : i32, 64 : i32, 2048 : i64, 128 : i32, 64 : i32, 1 : i32, 1 : i32, 0 : i32, 0 : i32, 0 : i32, 0 : i32, 32 : i32]
    kvcache.launch @write_heads of "kvcache_write" grid [1, 2, 1] block [128, 1, 1] shared 0
      args(%k, %k, %p, %p, %s : memref<8x2x64xbf16>, memref<8x2x64xbf16>, memref<7x16x2x64xf8E4M3FN, strided<[2048, 128, 64, 1], offset: ?>>, memref<7x16x2x64xf8E4M3FN, strided<[2048, 128, 64, 1], offset: ?>>, memref<8xi64>)
      constants [1.0 : f32, 2.0 : f32, 3.0 : f32, 4.0 : f32, 8 : i32, 112 : i64]
      origins ["k_scale[head]", "k_scale[head]", "v_scale[head]", "v_scale[head]", "max_tokens", "num_pages * page_size"]
      structure [90 : i32, 1 : i32, 0 : i32, 2 : i32, 64 : i32, 16 : i32, 2048 : i64, 128 : i32, 64 : i32, 2048 : i64, 128 : i32, 64 : i32, 0 : i32, 0 : i32, 1 : i32, 0 : i32, 0 : i32, 0 : i32]
    kvcache.launch @attention_heads of "kvcache_paged_attention" grid [6, 8, 1] block [128, 1, 1] shared 61440
      args(%k, %p, %p, %i, %i, %i, %k : memref<8x2x64xbf16>, memref<7x16x2x64xf8E4M3FN, strided<[2048, 128, 64, 1], offset: ?>>, memref<7x16x2x64xf8E4M3FN, strided<[2048, 128, 64, 1], offset: ?>>, memref<3xi32>, memref<3xi32>, memref<3xi32>, memref<8x2x64xbf16>)
      constants [1.0 : f32, 2.0 : f32, 3.0 : f32, 4.0 : f32, 0.0 : f32, 8 : i32, 2 : i32, 2 : i32, 0 : i32]
      origins ["score[head]", "score[head]", "v_scale[head]", "v_scale[head]", "no soft_cap", "max_tokens", "max_sequences", "max_pages_per_sequence", "no window"]
      structure [90 : i32, 1 : i32, 1 : i32, 0 : i32, 192 : i32, 2 : i32, 64 : i32, 16 : i32, 2048 : i64, 128 : i32, 64 : i32, 2048 : i64, 128 : i32, 64 : i32, 16 : i32, 3 : i32, 1 : i32, 1 : i32, 0 : i32, 0 : i32, 0 : i32, 0 : i32, 0 : i32, 256 : i32, 1 : i32, 0 : i32, 0 : i32]
  }
}
