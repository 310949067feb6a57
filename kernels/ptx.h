//===- ptx.h - The PTX instructions that the kernels use ------------------===//
//
// Part of the kvcache project.
//
//===----------------------------------------------------------------------===//
//
// All inline assembly of the device library. Each wrapper names its PTX
// instruction; matrix instructions have a picture of their fragment.
//
// In the pictures a warp's lane is 4 g + t with g = 0..7 and t = 0..3.
//
// An `offset` must be a constant once the kernel is inlined and its loops are
// unrolled: it is part of the address, and no addition of its own.
//
// Built by clang without a CUDA toolkit (-nocudainc -nocudalib).
//
//===----------------------------------------------------------------------===//

#ifndef KVCACHE_KERNELS_PTX_H
#define KVCACHE_KERNELS_PTX_H

#define KVCACHE_DEVICE                                                         \
  static inline __attribute__((device)) __attribute__((always_inline))
#define KVCACHE_EXPORT                                                         \
  extern "C" __attribute__((device)) __attribute__((always_inline)) void

using u8 = unsigned char;
using u16 = unsigned short;
using u32 = unsigned int;
using u64 = unsigned long long;
using i64 = long long;

// The dynamic shared memory of the CTA. The alignment is part of the
// declaration because the driver places the array by it.
extern __attribute__((device)) __attribute__((shared))
__attribute__((aligned(128))) u8 kvcache_dynamic_shared[];

namespace ptx {

//===----------------------------------------------------------------------===//
// Special registers and addresses
//===----------------------------------------------------------------------===//

// mov.u32 %tid.x
KVCACHE_DEVICE u32 threadX() {
  u32 r;
  asm("mov.u32 %0, %%tid.x;" : "=r"(r));
  return r;
}
// mov.u32 %ctaid.x, .y, .z
KVCACHE_DEVICE u32 ctaX() {
  u32 r;
  asm("mov.u32 %0, %%ctaid.x;" : "=r"(r));
  return r;
}
KVCACHE_DEVICE u32 ctaY() {
  u32 r;
  asm("mov.u32 %0, %%ctaid.y;" : "=r"(r));
  return r;
}
KVCACHE_DEVICE u32 ctaZ() {
  u32 r;
  asm("mov.u32 %0, %%ctaid.z;" : "=r"(r));
  return r;
}
// cvta.to.shared.u64: the 32-bit shared address of the dynamic array
KVCACHE_DEVICE u32 dynamicShared() {
  u32 r;
  asm("{ .reg .u64 t; cvta.to.shared.u64 t, %1; cvt.u32.u64 %0, t; }"
      : "=r"(r)
      : "l"(static_cast<void *>(kvcache_dynamic_shared)));
  return r;
}
// An empty statement through which a pointer passes: stops re-association of
// 64-bit address arithmetic, so that row offsets stay immediates.
template <class T> KVCACHE_DEVICE void opaque(T *&p) {
  asm volatile("" : "+l"(p));
}

//===----------------------------------------------------------------------===//
// Bits and bytes
//===----------------------------------------------------------------------===//

// prmt.b32: byte i of the result is byte s[i] of {b, a}
KVCACHE_DEVICE u32 prmt(u32 a, u32 b, u32 s) {
  u32 r;
  asm("prmt.b32 %0, %1, %2, %3;" : "=r"(r) : "r"(a), "r"(b), "r"(s));
  return r;
}
// and.b32, as assembly so that the optimizer does not split shared masks
KVCACHE_DEVICE u32 andBits(u32 a, u32 b) {
  u32 r;
  asm("and.b32 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b));
  return r;
}
// shf.r.wrap.b32: rotation to the right by one bit
KVCACHE_DEVICE u32 rotateRight1(u32 a) {
  u32 r;
  asm("shf.r.wrap.b32 %0, %1, %1, 1;" : "=r"(r) : "r"(a));
  return r;
}
// lop3.b32 0xe4: mask ? a : b, bit by bit
KVCACHE_DEVICE u32 selectBits(u32 a, u32 b, u32 mask) {
  u32 r;
  asm("lop3.b32 %0, %1, %2, %3, 0xe4;" : "=r"(r) : "r"(a), "r"(b), "r"(mask));
  return r;
}
// popc.b32
KVCACHE_DEVICE u32 popcount(u32 a) {
  u32 r;
  asm("popc.b32 %0, %1;" : "=r"(r) : "r"(a));
  return r;
}
// mov.b32 between register classes
KVCACHE_DEVICE float asFloat(u32 x) { return __builtin_bit_cast(float, x); }
KVCACHE_DEVICE u32 asBits(float x) { return __builtin_bit_cast(u32, x); }

//===----------------------------------------------------------------------===//
// Conversions
//===----------------------------------------------------------------------===//

// cvt.rn.f16x2.e4m3x2 of the lower 16 bits (sm_89)
KVCACHE_DEVICE u32 e4m3ToF16Low(u32 pair) {
  u32 r;
  asm("{ .reg .b16 l, h; mov.b32 {l, h}, %1; cvt.rn.f16x2.e4m3x2 %0, l; }"
      : "=r"(r)
      : "r"(pair));
  return r;
}
// cvt.rn.f16x2.e4m3x2 of the upper 16 bits (sm_89)
KVCACHE_DEVICE u32 e4m3ToF16High(u32 pair) {
  u32 r;
  asm("{ .reg .b16 l, h; mov.b32 {l, h}, %1; cvt.rn.f16x2.e4m3x2 %0, h; }"
      : "=r"(r)
      : "r"(pair));
  return r;
}
// cvt.rn.satfinite.e4m3x2.f32, twice (sm_89): x[0] becomes the lowest byte
KVCACHE_DEVICE u32 f32ToE4M3x4(const float *x) {
  u32 r;
  asm("{ .reg .b16 l, h; cvt.rn.satfinite.e4m3x2.f32 l, %2, %1; "
      "cvt.rn.satfinite.e4m3x2.f32 h, %4, %3; mov.b32 %0, {l, h}; }"
      : "=r"(r)
      : "f"(x[0]), "f"(x[1]), "f"(x[2]), "f"(x[3]));
  return r;
}
// cvt.rn.satfinite.e5m2x2.f32, twice (sm_89): x[0] becomes the lowest byte
KVCACHE_DEVICE u32 f32ToE5M2x4(const float *x) {
  u32 r;
  asm("{ .reg .b16 l, h; cvt.rn.satfinite.e5m2x2.f32 l, %2, %1; "
      "cvt.rn.satfinite.e5m2x2.f32 h, %4, %3; mov.b32 %0, {l, h}; }"
      : "=r"(r)
      : "f"(x[0]), "f"(x[1]), "f"(x[2]), "f"(x[3]));
  return r;
}
// cvt.rn.f16x2.f32: the first operand becomes the upper half
KVCACHE_DEVICE u32 packF16(float low, float high) {
  u32 r;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
  return r;
}
// cvt.rn.bf16x2.f32
KVCACHE_DEVICE u32 packBF16(float low, float high) {
  u32 r;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
  return r;
}
// cvt.f32.f16 of the lower and the upper half
KVCACHE_DEVICE float f16ToF32Low(u32 pair) {
  float r;
  asm("{ .reg .b16 l, h; mov.b32 {l, h}, %1; cvt.f32.f16 %0, l; }"
      : "=f"(r)
      : "r"(pair));
  return r;
}
KVCACHE_DEVICE float f16ToF32High(u32 pair) {
  float r;
  asm("{ .reg .b16 l, h; mov.b32 {l, h}, %1; cvt.f32.f16 %0, h; }"
      : "=f"(r)
      : "r"(pair));
  return r;
}

//===----------------------------------------------------------------------===//
// Float arithmetic
//===----------------------------------------------------------------------===//

// ex2.approx.ftz.f32
KVCACHE_DEVICE float exp2(float x) {
  float r;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x));
  return r;
}
// lg2.approx.f32
KVCACHE_DEVICE float log2(float x) {
  float r;
  asm("lg2.approx.f32 %0, %1;" : "=f"(r) : "f"(x));
  return r;
}
// rcp.approx.ftz.f32
KVCACHE_DEVICE float reciprocal(float x) {
  float r;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x));
  return r;
}
// max.f32: the other operand if one is NaN
KVCACHE_DEVICE float maxF32(float a, float b) {
  float r;
  asm("max.f32 %0, %1, %2;" : "=f"(r) : "f"(a), "f"(b));
  return r;
}
// div.rn.f32
KVCACHE_DEVICE float divide(float a, float b) {
  float r;
  asm("div.rn.f32 %0, %1, %2;" : "=f"(r) : "f"(a), "f"(b));
  return r;
}

//===----------------------------------------------------------------------===//
// Warps and barriers
//===----------------------------------------------------------------------===//

// shfl.sync.bfly.b32
KVCACHE_DEVICE float shuffleXor(float x, int mask) {
  float r;
  asm volatile("shfl.sync.bfly.b32 %0, %1, %2, 31, -1;"
               : "=f"(r)
               : "f"(x), "r"(mask));
  return r;
}
KVCACHE_DEVICE u32 shuffleXor(u32 x, int mask) {
  u32 r;
  asm volatile("shfl.sync.bfly.b32 %0, %1, %2, 31, -1;"
               : "=r"(r)
               : "r"(x), "r"(mask));
  return r;
}
// shfl.sync.idx.b32
KVCACHE_DEVICE u32 shuffle(u32 x, u32 lane) {
  u32 r;
  asm volatile("shfl.sync.idx.b32 %0, %1, %2, 31, -1;"
               : "=r"(r)
               : "r"(x), "r"(lane));
  return r;
}
template <class T> KVCACHE_DEVICE T *shuffle(T *p, u32 lane) {
  u64 x = reinterpret_cast<u64>(p);
  u64 high = shuffle(static_cast<u32>(x >> 32), lane);
  return reinterpret_cast<T *>(high << 32 | shuffle(static_cast<u32>(x), lane));
}
KVCACHE_DEVICE float shuffle(float x, u32 lane) {
  float r;
  asm volatile("shfl.sync.idx.b32 %0, %1, %2, 31, -1;"
               : "=f"(r)
               : "f"(x), "r"(lane));
  return r;
}
// vote.sync.any.pred
KVCACHE_DEVICE bool any(bool b) { return __nvvm_vote_any_sync(-1, b); }
// bar.red.or.pred: a barrier of the CTA, and whether `b` holds for any thread
KVCACHE_DEVICE bool anyInCta(bool b) {
  u32 r;
  asm volatile("{ .reg .pred p; setp.ne.u32 p, %1, 0; bar.red.or.pred p, 0, p; "
               "selp.u32 %0, 1, 0, p; }"
               : "=r"(r)
               : "r"(static_cast<u32>(b))
               : "memory");
  return r != 0;
}
// vote.sync.ballot.b32
KVCACHE_DEVICE u32 ballot(bool b) {
  u32 r;
  asm volatile("{ .reg .pred p; setp.ne.u32 p, %1, 0; vote.sync.ballot.b32 %0, "
               "p, -1; }"
               : "=r"(r)
               : "r"(static_cast<u32>(b)));
  return r;
}
// bar.warp.sync
KVCACHE_DEVICE void warpSync() {
  asm volatile("bar.warp.sync -1;" ::: "memory");
}
// bar.sync
KVCACHE_DEVICE void ctaSync() { asm volatile("bar.sync 0;" ::: "memory"); }
// fence.acq_rel.gpu
KVCACHE_DEVICE void fenceGpu() {
  asm volatile("fence.acq_rel.gpu;" ::: "memory");
}
// atom.relaxed.gpu.global.inc.u32: old >= limit ? 0 : old + 1; returns old
KVCACHE_DEVICE u32 atomicIncWrap(u32 *p, u32 limit) {
  u32 r;
  asm volatile("atom.relaxed.gpu.global.inc.u32 %0, [%1], %2;"
               : "=r"(r)
               : "l"(p), "r"(limit)
               : "memory");
  return r;
}

//===----------------------------------------------------------------------===//
// Matrix fragments
//===----------------------------------------------------------------------===//

// ldmatrix.sync.aligned.m8n8.x4.shared.b16. Lanes 8i..8i+7 give the addresses
// of the eight 16-byte rows of matrix i; register i holds
//
//            bytes 4t..4t+3 of row g
//
// which is one pair of b16, or four 8-bit codes.
KVCACHE_DEVICE void ldmatrix(u32 *r, u32 address, int offset = 0) {
  asm volatile(
      "ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4+%5];"
      : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
      : "r"(address), "i"(offset));
}
// ldmatrix.sync.aligned.m8n8.x2.shared.b16: matrices 0 and 1 of the above,
// with the addresses of lanes 0..15
KVCACHE_DEVICE void ldmatrixHalf(u32 *r, u32 address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0,%1}, [%2];"
               : "=r"(r[0]), "=r"(r[1])
               : "r"(address));
}
KVCACHE_DEVICE void ldmatrixTransHalf(u32 *r, u32 address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0,%1}, [%2];"
               : "=r"(r[0]), "=r"(r[1])
               : "r"(address));
}
// ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16. Register i holds
//
//            low half:  bytes 2g, 2g+1 of row 2t
//            high half: bytes 2g, 2g+1 of row 2t+1
KVCACHE_DEVICE void ldmatrixTrans(u32 *r, u32 address, int offset = 0) {
  asm volatile(
      "ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4+%5];"
      : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
      : "r"(address), "i"(offset));
}
// movmatrix.sync.aligned.m8n8.trans.b16
//
//            in:  row g, columns 2t, 2t+1      out: row 2t, 2t+1 of column g
KVCACHE_DEVICE u32 movmatrix(u32 x) {
  u32 r;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;"
               : "=r"(r)
               : "r"(x));
  return r;
}
// mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32, D += A B
//
//        A (16 x 16)  k 2t,2t+1   k 2t+8,2t+9        B (16 x 8)   column g
//        row g          a0          a2               k 2t,2t+1      b0
//        row g+8        a1          a3               k 2t+8,2t+9    b1
//
//        D (16 x 8)   column 2t   column 2t+1
//        row g          d[0]        d[1]
//        row g+8        d[2]        d[3]
KVCACHE_DEVICE void mma(float *d, u32 a0, u32 a1, u32 a2, u32 a3, u32 b0,
                        u32 b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, "
      "{%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}
// mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32, the same fragments
KVCACHE_DEVICE void mmaBF16(float *d, u32 a0, u32 a1, u32 a2, u32 a3, u32 b0,
                            u32 b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, "
      "{%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}
// mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 with B = 1: D += sums of
// rows
//
//        A (16 x 8)   k 2t,2t+1          D (16 x 8)   any column
//        row g          a0               row g          d[0], d[1]
//        row g+8        a1               row g+8        d[2], d[3]
KVCACHE_DEVICE void mmaSums(float *d, u32 a0, u32 a1) {
  asm("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, "
      "{%4,%5}, {%6}, {%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a0), "r"(a1), "r"(0x3c003c00));
}
// the same of bf16
KVCACHE_DEVICE void mmaSumsBF16(float *d, u32 a0, u32 a1) {
  asm("mma.sync.aligned.m16n8k8.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, "
      "{%4,%5}, {%6}, {%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a0), "r"(a1), "r"(0x3f803f80));
}
// mma.sync.aligned.m16n8k32.row.col.f32.{e4m3,e5m2}.{e4m3,e5m2}.f32 (sm_89),
// D += A B, with D as above
//
//        A (16 x 32)  k 4t..4t+3  k 4t+16..4t+19    B (32 x 8)    column g
//        row g          a0          a2              k 4t..4t+3      b0
//        row g+8        a1          a3              k 4t+16..4t+19  b1
#define KVCACHE_MMA_FP8(TYPES)                                                 \
  asm("mma.sync.aligned.m16n8k32.row.col.f32." TYPES ".f32 {%0,%1,%2,%3}, "    \
      "{%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"                                 \
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])                         \
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1))
KVCACHE_DEVICE void mmaFP8(bool aIsE5M2, bool bIsE5M2, float *d, u32 a0, u32 a1,
                           u32 a2, u32 a3, u32 b0, u32 b1) {
  if (aIsE5M2 && bIsE5M2)
    KVCACHE_MMA_FP8("e5m2.e5m2");
  else if (aIsE5M2)
    KVCACHE_MMA_FP8("e5m2.e4m3");
  else if (bIsE5M2)
    KVCACHE_MMA_FP8("e4m3.e5m2");
  else
    KVCACHE_MMA_FP8("e4m3.e4m3");
}
#undef KVCACHE_MMA_FP8

//===----------------------------------------------------------------------===//
// Asynchronous copies
//===----------------------------------------------------------------------===//

// cp.async.cg.shared.global, 16 bytes
KVCACHE_DEVICE void copyAsync16(u32 shared, const u8 *global) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared),
               "l"(global)
               : "memory");
}
// cp.async.ca.shared.global, 4 bytes
KVCACHE_DEVICE void copyAsync4(u32 shared, const u8 *global) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(shared),
               "l"(global)
               : "memory");
}
// cp.async.commit_group
KVCACHE_DEVICE void copyCommit() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}
// cp.async.wait_group n
KVCACHE_DEVICE void copyWait(int n) {
  switch (n) {
  case 0:
    asm volatile("cp.async.wait_group 0;" ::: "memory");
    break;
  case 1:
    asm volatile("cp.async.wait_group 1;" ::: "memory");
    break;
  case 2:
    asm volatile("cp.async.wait_group 2;" ::: "memory");
    break;
  case 3:
    asm volatile("cp.async.wait_group 3;" ::: "memory");
    break;
  default:
    asm volatile("cp.async.wait_group 4;" ::: "memory");
    break;
  }
}

//===----------------------------------------------------------------------===//
// Loads and stores
//===----------------------------------------------------------------------===//

// ld.global.nc.s32, element i
KVCACHE_DEVICE int loadI32(const int *p, i64 i) {
  int r;
  asm volatile("ld.global.nc.s32 %0, [%1];" : "=r"(r) : "l"(p + i));
  return r;
}
// ld.global.nc.s64
KVCACHE_DEVICE i64 loadI64(const i64 *p, i64 i) {
  i64 r;
  asm volatile("ld.global.nc.s64 %0, [%1];" : "=l"(r) : "l"(p + i));
  return r;
}
// ld.global.nc.u32
KVCACHE_DEVICE u32 loadU32(const void *p) {
  u32 r;
  asm volatile("ld.global.nc.u32 %0, [%1];" : "=r"(r) : "l"(p));
  return r;
}
// ld.global.nc.u16, .u8
KVCACHE_DEVICE u32 loadU16(const void *p) {
  u32 r;
  asm volatile("{ .reg .u16 t; ld.global.nc.u16 t, [%1]; cvt.u32.u16 %0, t; }"
               : "=r"(r)
               : "l"(p));
  return r;
}
KVCACHE_DEVICE u32 loadU8(const void *p) {
  u32 r;
  asm volatile("ld.global.nc.u8 %0, [%1];" : "=r"(r) : "l"(p));
  return r;
}
KVCACHE_DEVICE float loadF32(const float *p) { return asFloat(loadU32(p)); }
// ld.global.v4.u32: memory that the same launch may write elsewhere
KVCACHE_DEVICE void loadV4Coherent(u32 *r, const void *p) {
  asm volatile("ld.global.v4.u32 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "l"(p)
               : "memory");
}
// ld.global.u32: the same of 4 bytes
KVCACHE_DEVICE u32 loadU32Coherent(const void *p) {
  u32 r;
  asm volatile("ld.global.u32 %0, [%1];" : "=r"(r) : "l"(p) : "memory");
  return r;
}
// ld.global.nc.v2.u32
KVCACHE_DEVICE void loadV2(u32 *r, const void *p) {
  asm volatile("ld.global.nc.v2.u32 {%0,%1}, [%2];"
               : "=r"(r[0]), "=r"(r[1])
               : "l"(p));
}
// ld.global.nc.v4.u32
KVCACHE_DEVICE void loadV4(u32 *r, const void *p) {
  asm volatile("ld.global.nc.v4.u32 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "l"(p));
}
// ld.relaxed.gpu.global.v4.f32 and .v2: what other CTAs wrote in this launch
KVCACHE_DEVICE void loadCoherentV4(float *r, const float *p) {
  asm volatile("ld.relaxed.gpu.global.v4.f32 {%0,%1,%2,%3}, [%4];"
               : "=f"(r[0]), "=f"(r[1]), "=f"(r[2]), "=f"(r[3])
               : "l"(p)
               : "memory");
}
KVCACHE_DEVICE void loadCoherentV2(float *r, const float *p) {
  asm volatile("ld.relaxed.gpu.global.v2.f32 {%0,%1}, [%2];"
               : "=f"(r[0]), "=f"(r[1])
               : "l"(p)
               : "memory");
}
// st.global
KVCACHE_DEVICE void storeV4(void *p, const u32 *x) {
  asm volatile("st.global.v4.u32 [%0], {%1,%2,%3,%4};" ::"l"(p), "r"(x[0]),
               "r"(x[1]), "r"(x[2]), "r"(x[3])
               : "memory");
}
KVCACHE_DEVICE void storeV4(float *p, const float *x) {
  asm volatile("st.global.v4.f32 [%0], {%1,%2,%3,%4};" ::"l"(p), "f"(x[0]),
               "f"(x[1]), "f"(x[2]), "f"(x[3])
               : "memory");
}
KVCACHE_DEVICE void storeV2(void *p, u32 x, u32 y) {
  asm volatile("st.global.v2.u32 [%0], {%1,%2};" ::"l"(p), "r"(x), "r"(y)
               : "memory");
}
KVCACHE_DEVICE void storeV2(float *p, float x, float y) {
  asm volatile("st.global.v2.f32 [%0], {%1,%2};" ::"l"(p), "f"(x), "f"(y)
               : "memory");
}
KVCACHE_DEVICE void storeU32(void *p, u32 x) {
  asm volatile("st.global.u32 [%0], %1;" ::"l"(p), "r"(x) : "memory");
}
KVCACHE_DEVICE void storeU16(void *p, u32 x) {
  asm volatile(
      "{ .reg .u16 t; cvt.u16.u32 t, %1; st.global.u16 [%0], t; }" ::"l"(p),
      "r"(x)
      : "memory");
}
KVCACHE_DEVICE void storeU8(void *p, u32 x) {
  asm volatile("st.global.u8 [%0], %1;" ::"l"(p), "r"(x) : "memory");
}
KVCACHE_DEVICE void storeF32(float *p, float x) {
  asm volatile("st.global.f32 [%0], %1;" ::"l"(p), "f"(x) : "memory");
}
// ld.shared, st.shared
KVCACHE_DEVICE void loadSharedV4(float *r, u32 a) {
  asm volatile("ld.shared.v4.f32 {%0,%1,%2,%3}, [%4];"
               : "=f"(r[0]), "=f"(r[1]), "=f"(r[2]), "=f"(r[3])
               : "r"(a)
               : "memory");
}
KVCACHE_DEVICE void loadSharedV2(float *r, u32 a) {
  asm volatile("ld.shared.v2.f32 {%0,%1}, [%2];"
               : "=f"(r[0]), "=f"(r[1])
               : "r"(a)
               : "memory");
}
KVCACHE_DEVICE void loadSharedV4(u32 *r, u32 a) {
  asm volatile("ld.shared.v4.u32 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(a)
               : "memory");
}
KVCACHE_DEVICE float loadSharedF32(u32 a) {
  float r;
  asm volatile("ld.shared.f32 %0, [%1];" : "=f"(r) : "r"(a) : "memory");
  return r;
}
KVCACHE_DEVICE u32 loadSharedU32(u32 a) {
  u32 r;
  asm volatile("ld.shared.u32 %0, [%1];" : "=r"(r) : "r"(a) : "memory");
  return r;
}
KVCACHE_DEVICE void storeSharedV2(u32 a, float x, float y) {
  asm volatile("st.shared.v2.f32 [%0], {%1,%2};" ::"r"(a), "f"(x), "f"(y)
               : "memory");
}
KVCACHE_DEVICE void storeSharedV4(u32 a, const float *x) {
  asm volatile("st.shared.v4.f32 [%0], {%1,%2,%3,%4};" ::"r"(a), "f"(x[0]),
               "f"(x[1]), "f"(x[2]), "f"(x[3])
               : "memory");
}
KVCACHE_DEVICE void storeSharedV4(u32 a, const u32 *x) {
  asm volatile("st.shared.v4.u32 [%0], {%1,%2,%3,%4};" ::"r"(a), "r"(x[0]),
               "r"(x[1]), "r"(x[2]), "r"(x[3])
               : "memory");
}
KVCACHE_DEVICE void storeSharedF32(u32 a, float x, int offset = 0) {
  asm volatile("st.shared.f32 [%0+%2], %1;" ::"r"(a), "f"(x), "i"(offset)
               : "memory");
}
KVCACHE_DEVICE void storeSharedU32(u32 a, u32 x) {
  asm volatile("st.shared.u32 [%0], %1;" ::"r"(a), "r"(x) : "memory");
}

} // namespace ptx

#endif // KVCACHE_KERNELS_PTX_H
