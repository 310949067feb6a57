// Paged FP8-KV decode attention: a kernel with every feature that the PTX
// machine has to check (cp.async rings, ldmatrix, mma, bulk copies,
// warp-private and CTA barriers). The tests compile it as it is and with bugs
// planted in it.
//
// One CTA = (sequence, kv head, split); 4 warps; every warp owns every 4th tile
// of TILE tokens, has its own cp.async ring in shared memory and its own O
// accumulator.  The only CTA barriers are in the final merge.
//
//   S^T(16 tokens x 8 heads) = K(16x128) . Q^T(128x8)     mma.m16n8k16, A = K
//   O^T(128 dims x 8 heads) += V^T(128x16) . P^T(16x8)    mma.m16n8k16, A = V^T
//
// Everything structural is a field of Shape: a compile-time constant after
// inlining.
typedef unsigned int u32;
typedef unsigned long long u64;
typedef unsigned short u16;
typedef unsigned char u8;
#define DEV static inline __attribute__((device)) __attribute__((always_inline))
#define GLOBAL extern "C" __attribute__((global))
#define BOUNDS(t, b) __attribute__((launch_bounds(t, b)))
extern __attribute__((device)) __attribute__((shared))
__attribute__((aligned(1024))) u8 smem_raw[];
#define UNROLL _Pragma("unroll")

enum { E4M3 = 0, E5M2 = 1 };
enum { CPASYNC = 0, BULK = 1 };
struct Shape {
  int page;        // tokens per page
  int tile;        // tokens per warp and iteration: 16 or 32
  int stages;      // ring depth per warp
  int unroll;      // 1, or = stages (stage offsets become immediates)
  int tok_stride;  // bytes between tokens of one kv head     (NHD: 8*128, HND:
                   // 128)
  int head_stride; // bytes between kv heads                  (NHD: 128,   HND:
                   // page*128)
  int page_stride; // bytes between pages; multiplied with the page id in 64
                   // bits
  int swz; // 1: rows of 128 B with 16-byte chunks xored by row&7;  0: rows of
           // 144 B
  int fmt; // E4M3 or E5M2
  int hw_cvt; // 1: cvt.rn.f16x2.e4m3x2 exists (sm_89+)
  int qfold;  // 1: score scale folded into Q, -m enters as accumulator initial
              // value
  int copy;   // CPASYNC or BULK (HND only, 128 B rows, plain LDS.128)
};
struct Args {
  const u16 *q; // [seq][64][128] bf16
  const u8 *k;
  const u8 *v;
  const int *table;  // [seq][table_stride]
  const int *lens;   // [seq]
  float *part_o;     // [seq][split][64][128]
  float *part_ml;    // [seq][split][64][2]  (max in log2 units, sum)
  float score_scale; // softmax scale * log2(e) * k_scale
  float v_scale;
  int table_stride, split_tokens; // split_tokens: multiple of max(page, 4*tile)
};
static const int WARPS = 4, KVH = 8, GROUP = 8, HD = 128;

// ---- PTX wrappers
DEV u32 tid_x() {
  u32 r;
  asm("mov.u32 %0, %%tid.x;" : "=r"(r));
  return r;
}
DEV u32 cta_x() {
  u32 r;
  asm("mov.u32 %0, %%ctaid.x;" : "=r"(r));
  return r;
}
DEV u32 cta_y() {
  u32 r;
  asm("mov.u32 %0, %%ctaid.y;" : "=r"(r));
  return r;
}
DEV u32 cta_z() {
  u32 r;
  asm("mov.u32 %0, %%ctaid.z;" : "=r"(r));
  return r;
}
DEV u32 nsplit() {
  u32 r;
  asm("mov.u32 %0, %%nctaid.z;" : "=r"(r));
  return r;
}
DEV u32 smem_base() {
  u32 r;
  asm("{ .reg .u64 t; cvta.to.shared.u64 t, %1; cvt.u32.u64 %0, t; }"
      : "=r"(r)
      : "l"((void *)smem_raw));
  return r;
}
DEV u32 prmt(u32 a, u32 b, u32 s) {
  u32 r;
  asm("prmt.b32 %0, %1, %2, %3;" : "=r"(r) : "r"(a), "r"(b), "r"(s));
  return r;
}
DEV u32 and_(u32 a, u32 b) {
  u32 r;
  asm("and.b32 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b));
  return r;
}
DEV u32 rotr1(u32 a) {
  u32 r;
  asm("shf.r.wrap.b32 %0, %1, %1, 1;" : "=r"(r) : "r"(a));
  return r;
}
// m ? a : b, bit by bit
DEV u32 select(u32 a, u32 b, u32 m) {
  u32 r;
  asm("lop3.b32 %0, %1, %2, %3, 0xe4;" : "=r"(r) : "r"(a), "r"(b), "r"(m));
  return r;
}
DEV u32 cvt_e4m3(u32 pair16) {
  u32 r;
  asm("{ .reg .b16 l, h; mov.b32 {l, h}, %1; cvt.rn.f16x2.e4m3x2 %0, l; }"
      : "=r"(r)
      : "r"(pair16));
  return r;
}
DEV u32 cvt_e4m3_hi(u32 pair16) {
  u32 r;
  asm("{ .reg .b16 l, h; mov.b32 {l, h}, %1; cvt.rn.f16x2.e4m3x2 %0, h; }"
      : "=r"(r)
      : "r"(pair16));
  return r;
}
DEV u32 pack_f16(float lo, float hi) {
  u32 r;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(hi), "f"(lo));
  return r;
}
DEV float ex2(float x) {
  float r;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x));
  return r;
}
DEV float rcp(float x) {
  float r;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x));
  return r;
}
DEV float fmx(float a, float b) {
  float r;
  asm("max.f32 %0, %1, %2;" : "=f"(r) : "f"(a), "f"(b));
  return r;
}
DEV float as_float(u32 x) {
  float r;
  asm("mov.b32 %0, %1;" : "=f"(r) : "r"(x));
  return r;
}
DEV float shfl_xor(float x, int m) {
  float r;
  asm volatile("shfl.sync.bfly.b32 %0, %1, %2, 31, -1;"
               : "=f"(r)
               : "f"(x), "r"(m));
  return r;
}
DEV u32 shfl_idx(u32 x, u32 l) {
  u32 r;
  asm volatile("shfl.sync.idx.b32 %0, %1, %2, 31, -1;"
               : "=r"(r)
               : "r"(x), "r"(l));
  return r;
}
DEV bool warp_any(u32 bits, u32 mask) { // does any lane have one of the bits?
  u32 r;
  asm volatile("{ .reg .pred p; .reg .b32 t; and.b32 t, %1, %2; setp.ne.u32 p, "
               "t, 0; vote.sync.any.pred p, p, -1; selp.u32 %0, 1, 0, p; }"
               : "=r"(r)
               : "r"(bits), "r"(mask));
  return r != 0;
}
DEV u32 movm(u32 x) {
  u32 r;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;"
               : "=r"(r)
               : "r"(x));
  return r;
}
DEV void ldsm(u32 *r, u32 a) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(a));
}
DEV void ldsm_t(u32 *r, u32 a) {
  asm volatile(
      "ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
      : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
      : "r"(a));
}
DEV void lds128(u32 *r, u32 a) {
  asm volatile("ld.shared.v4.u32 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(a));
}
DEV void mma(float *d, u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, "
      "{%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}
DEV void cp16(u32 s, const u8 *g) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(s), "l"(g)
               : "memory");
}
template <class T> DEV void opaque(T &p) {
  asm volatile("" : "+l"(p));
} // stops 64-bit re-association before ptxas
DEV void cp_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
DEV void cp_wait(int n) {
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
  case 4:
    asm volatile("cp.async.wait_group 4;" ::: "memory");
    break;
  case 5:
    asm volatile("cp.async.wait_group 5;" ::: "memory");
    break;
  default:
    asm volatile("cp.async.wait_group 6;" ::: "memory");
    break;
  }
}
DEV void warp_sync() { asm volatile("bar.warp.sync -1;" ::: "memory"); }
DEV void cta_sync() { asm volatile("bar.sync 0;" ::: "memory"); }
DEV int ldg_i32(const int *p, int i) {
  p += i;
  int r;
  asm volatile("ld.global.nc.s32 %0, [%1];" : "=r"(r) : "l"(p));
  return r;
}
DEV void sts_u32(u32 a, u32 x) {
  asm volatile("st.shared.u32 [%0], %1;" ::"r"(a), "r"(x) : "memory");
}
DEV void sts_f32(u32 a, float x) {
  asm volatile("st.shared.f32 [%0], %1;" ::"r"(a), "f"(x) : "memory");
}
DEV float lds_f32(u32 a) {
  float x;
  asm volatile("ld.shared.f32 %0, [%1];" : "=f"(x) : "r"(a) : "memory");
  return x;
}
DEV bool elect_lane() {
  u32 r;
  asm volatile("{ .reg .pred p; elect.sync _|p, -1; selp.u32 %0, 1, 0, p; }"
               : "=r"(r));
  return r != 0;
}
DEV void mbar_init(u32 b) {
  asm volatile("mbarrier.init.shared.b64 [%0], 1;" ::"r"(b) : "memory");
}
DEV void mbar_expect(u32 b, u32 n) {
  asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(b),
               "r"(n)
               : "memory");
}
DEV void mbar_wait(u32 b, u32 parity) {
  asm volatile("{ .reg .pred p;\nW%=: mbarrier.try_wait.parity.shared.b64 p, "
               "[%0], %1;\n@!p bra W%=; }" ::"r"(b),
               "r"(parity)
               : "memory");
}
DEV void bulk(u32 s, const u8 *g, u32 n, u32 b) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::"
               "bytes [%0], [%1], %2, [%3];" ::"r"(s),
               "l"(g), "r"(n), "r"(b)
               : "memory");
}

// ---- FP8 -> f16x2
// Four codes x = b3 b2 b1 b0.  `pair`=0: lo = {b0,b1}, hi = {b2,b3}.  `pair`=1:
// lo = {b0,b2}, hi = {b1,b3}. hw_cvt: exact values.  Otherwise e4m3 values come
// out times 2^-8 (exact, denormals included) and NaN codes come out as the
// finite +-1.875; `nan` gets a bit of 0x80808080 for each NaN code; slow=1
// turns them into f16 NaN.
DEV u32 fix_nan(u32 h) {
  u32 n = ((h & 0x7fff7fffu) + 0x00800080u) & 0x40004000u;
  return h | ((n >> 14) * 0x7e00u);
}
DEV void decode4(const Shape &S, u32 x, int pair, u32 &lo, u32 &hi, u32 &nan,
                 bool slow) {
  if (S.fmt == E5M2) { // an e5m2 code is the high byte of the f16
    lo = prmt(x, 0, pair ? 0x2404u : 0x1404u);
    hi = pair ? (x & 0xff00ff00u) : prmt(x, 0, 0x3424u);
  } else if (S.hw_cvt) {
    if (pair)
      x = prmt(x, 0, 0x3120u);
    lo = cvt_e4m3(x);
    hi = cvt_e4m3_hi(x);
  } else {                         // f16 = s 0 eeee mmm 0000000
    u32 sg = and_(x, 0x80808080u); // asm: the compiler must not split these
                                   // shared values again
    if (!slow)
      nan |= x - sg + 0x01010101u;
    if (pair) { // 6 instructions + 1.5 for NaN
      hi = select(x >> 1, sg,
                  0x3f803f80u); // codes in the high byte of each half
      lo = select(x << 7, sg << 8, 0x3f803f80u); // codes in the low byte
    } else {            // 6 as well, but both 16-bit pairs stay together:
      u32 y = rotr1(x); // bit 0 of byte i+1 lands in bit 7 of byte i
      u32 H = select(y, sg, 0x3f3f3f3fu), L = and_(y, 0x80808080u);
      lo = prmt(H, L, 0x1407u);
      hi = prmt(H, L, 0x3625u);
    }
    if (slow) {
      lo = fix_nan(lo);
      hi = fix_nan(hi);
    }
  }
}

// ---- one tile
struct State {
  float o[8][4]; // m-tile c: dims 16c..16c+15; [0],[1] = dim 16c+2g, heads
                 // 2t,2t+1; [2],[3] = dim 16c+2g+1
  float
      l[4]; // row sums by a ones-MMA: [0],[1] = heads 2t,2t+1 (all rows equal)
  u32 one[4];  // f16x2 {1,1}: A operand that sums P
  float nm[2]; // -(running reference max) of heads 2t,2t+1, log2 units
  u32 nan;
};
static const float HEADROOM = 3.0f; // a new reference is the max + 3, so P
                                    // starts at 2^-3 and may grow to 2

// kaddr/vaddr: this lane's ldmatrix row address of the stage.  Chunk pair j
// sits at ^(32 j) or +32 j.
DEV u32 at(const Shape &S, u32 base, int j) {
  return S.swz ? base ^ (32u * j) : base + 32u * j;
}

// S^T of a tile: s[mt][0],[1] = token 16mt+g, heads 2t,2t+1; [2],[3] = token
// 16mt+g+8.  Minus reference, log2 units.
DEV void tile_scores(const Shape &S, u32 kaddr, const u32 *q, float (*s)[4],
                     State &st, float c, bool slow) {
  const int MT = S.tile / 16, RP = S.swz || S.copy == BULK ? 128 : 144;
  UNROLL for (int mt = 0; mt < MT; mt++) {
    u32 lo0, hi0, lo1, hi1;
    if (S.qfold) {
      s[mt][0] = s[mt][2] = st.nm[0];
      s[mt][1] = s[mt][3] = st.nm[1];
    } else
      s[mt][0] = s[mt][1] = s[mt][2] = s[mt][3] = 0.f;
    if (S.copy == BULK) {
      UNROLL for (int h = 0; h < 2;
                  h++) { // tokens g and g+8, dims 64h + 16t .. +15
        u32 a[4], b[4];
        lds128(a, kaddr + mt * 16 * 128 + h * 64);
        lds128(b, kaddr + mt * 16 * 128 + h * 64 + 8 * 128);
        UNROLL for (int e = 0; e < 4; e++) {
          decode4(S, a[e], 0, lo0, hi0, st.nan, slow);
          decode4(S, b[e], 0, lo1, hi1, st.nan, slow);
          mma(s[mt], lo0, lo1, hi0, hi1, q[8 * h + 2 * e],
              q[8 * h + 2 * e + 1]);
        }
      }
    } else {
      UNROLL for (int j = 0; j < 4; j++) { // r[0],r[1]: chunk 2j, tokens g /
                                           // g+8;  r[2],r[3]: chunk 2j+1
        u32 r[4];
        ldsm(r, at(S, kaddr + mt * 16 * RP, j));
        UNROLL for (int h = 0; h < 2; h++) {
          decode4(S, r[2 * h], 0, lo0, hi0, st.nan, slow);
          decode4(S, r[2 * h + 1], 0, lo1, hi1, st.nan, slow);
          mma(s[mt], lo0, lo1, hi0, hi1, q[4 * j + 2 * h],
              q[4 * j + 2 * h + 1]);
        }
      }
    }
    if (!S.qfold) {
      UNROLL for (int i = 0; i < 4; i++) s[mt][i] = s[mt][i] * c + st.nm[i & 1];
    }
  }
}

DEV void tile_mask(const Shape &S, float (*s)[4], int valid, u32 g) {
  UNROLL for (int mt = 0; mt < S.tile / 16; mt++) {
    UNROLL for (int i = 0; i < 4;
                i++) if ((int)(mt * 16 + g + (i >> 1) * 8) >= valid) s[mt][i] =
        as_float(0xff800000u);
  }
}

// Max of a tile over tokens for head 2t+h, in all lanes.
DEV float tile_max(const Shape &S, float (*s)[4], int h) {
  float m = fmx(s[0][h], s[0][h + 2]);
  if (S.tile == 32)
    m = fmx(m, fmx(s[1][h], s[1][h + 2]));
  m = fmx(m, shfl_xor(m, 4));
  m = fmx(m, shfl_xor(m, 8));
  return fmx(m, shfl_xor(m, 16));
}

DEV void tile_step(const Shape &S, u32 kaddr, u32 vaddr, const u32 *q,
                   State &st, float c, bool masked, int valid, u32 lane,
                   bool slow) {
  const int MT = S.tile / 16, RP = S.swz || S.copy == BULK ? 128 : 144;
  u32 t2 = (lane & 3) * 2, g = lane >> 2;
  u32 ph[4];
  float s[2][4];
  tile_scores(S, kaddr, q, s, st, c, slow);
  if (masked)
    tile_mask(S, s, valid, g);
  UNROLL for (int mt = 0; mt < MT; mt++) {
    ph[2 * mt] = pack_f16(ex2(s[mt][0]), ex2(s[mt][1]));
    ph[2 * mt + 1] = pack_f16(ex2(s[mt][2]), ex2(s[mt][3]));
  }
  // Any P >= 2 (bit 14 of an f16; inf and NaN too)?  One LOP3 per two registers
  // and one vote.
  u32 big = ph[0] | ph[1];
  if (MT == 2)
    big |= ph[2] | ph[3];
  if (__builtin_expect(warp_any(big, 0x40004000u), 0)) {
    float f[2];
    UNROLL for (int h = 0; h < 2; h++) {
      float m = tile_max(S, s, h);
      float d =
          m > 0.f
              ? m + HEADROOM
              : 0.f; // raise the reference by d (heads that did not grow: 0)
      st.nm[h] -= d;
      f[h] = ex2(-d);
      UNROLL for (int mt = 0; mt < MT; mt++) {
        s[mt][h] -= d;
        s[mt][h + 2] -= d;
      }
    }
    UNROLL for (int mt = 0; mt < MT; mt++) {
      ph[2 * mt] = pack_f16(ex2(s[mt][0]), ex2(s[mt][1]));
      ph[2 * mt + 1] = pack_f16(ex2(s[mt][2]), ex2(s[mt][3]));
    }
    UNROLL for (int i = 0; i < 4; i++) {
      st.l[i] *= f[i & 1];
      UNROLL for (int m = 0; m < 8; m++) st.o[m][i] *= f[i & 1];
    }
  }
  UNROLL for (int mt = 0; mt < MT; mt++) {
    u32 b0 = movm(ph[2 * mt]),
        b1 = movm(ph[2 * mt + 1]); // head g, tokens 2t,2t+1 / 2t+8,2t+9
    mma(st.l, st.one[0], st.one[1], st.one[2], st.one[3], b0, b1);
    u32 k0 = ~0u, k1 = ~0u; // byte masks of the two tokens in one register
    if (masked) {
      int v = valid - mt * 16 - (int)t2;
      const u32 one_tok = S.copy == BULK ? 0x00ff00ffu : 0xffffu;
      k0 = v >= 2 ? ~0u : v == 1 ? one_tok : 0u;
      v -= 8;
      k1 = v >= 2 ? ~0u : v == 1 ? one_tok : 0u;
    }
    if (S.copy == BULK) {
      u32 w[4][4]; // tokens 2t, 2t+1, 2t+8, 2t+9; dims 16g..16g+15
      UNROLL for (int e = 0; e < 4; e++) lds128(
          w[e], vaddr + mt * 16 * 128 + (e & 1) * 128 + (e >> 1) * 8 * 128);
      UNROLL for (int e = 0; e < 4; e++) {
        UNROLL for (int h = 0; h < 2; h++) { // dims 16g + 4e + 2h, +1
          u32 x0 = prmt(w[0][e], w[1][e], h ? 0x7362u : 0x5140u),
              x1 = prmt(w[2][e], w[3][e], h ? 0x7362u : 0x5140u);
          u32 a0, a1, a2, a3; // x0: tokens 2t,2t+1 of dim 0, then of dim 1
          if (masked) {
            x0 &= k0;
            x1 &= k1;
          }
          decode4(S, x0, 0, a0, a1, st.nan, slow);
          decode4(S, x1, 0, a2, a3, st.nan, slow);
          mma(st.o[2 * e + h], a0, a1, a2, a3, b0, b1);
        }
      }
    } else {
      UNROLL for (int j = 0; j < 4; j++) {
        u32 r[4], a0, a1, a2, a3;
        ldsm_t(r, at(S, vaddr + mt * 16 * RP, j));
        UNROLL for (int h = 0; h < 2; h++) {
          u32 x0 = r[2 * h], x1 = r[2 * h + 1];
          if (masked) {
            x0 &= k0;
            x1 &= k1;
          }
          decode4(S, x0, 1, a0, a1, st.nan, slow);
          decode4(S, x1, 1, a2, a3, st.nan, slow);
          mma(st.o[2 * j + h], a0, a1, a2, a3, b0, b1);
        }
      }
    }
  }
}

// ---- ring fill
// Lanes 8r..8r+7 copy rows R*r .. R*r+R-1 of the tile, R = tile/4, 16 bytes per
// lane and row: every copy instruction moves four whole 128-byte rows.  LDGSTS
// takes offsets of -2048..2047 only, so lane pointers are biased by 2 KiB and
// there is a second pair 4 KiB further on where R rows do not fit (NHD, tile
// 32).  A tile of two pages needs nothing special: every lane fetches the id of
// its own page.
struct Copy {
  const u8 *k;
  const u8 *v;
  const u8 *k2;
  const u8 *v2;
  u32 w;
}; // without the page; w: offset in a stage

DEV void fill(const Shape &S, const Copy &cp, u32 stage, int pid, u32 bar) {
  const int R = S.tile / 4, RP = S.swz || S.copy == BULK ? 128 : 144,
            VO = S.tile * RP;
  u64 off = (u64)(u32)pid * (u32)S.page_stride;
  const u8 *kp = cp.k + off;
  const u8 *vp = cp.v + off;
  opaque(kp);
  opaque(vp);
  if (S.copy == BULK) {
    if (elect_lane()) {
      mbar_expect(bar, S.tile * 256);
      bulk(stage, kp, S.tile * 128, bar);
      bulk(stage + VO, vp, S.tile * 128, bar);
    }
    return;
  }
  const int two = R * S.tok_stride > 4096;
  const u8 *kp2 = two ? cp.k2 + off : kp;
  const u8 *vp2 = two ? cp.v2 + off : vp;
  if (two) {
    opaque(kp2);
    opaque(vp2);
  }
  UNROLL for (int i = 0; i < R; i++) {
    u32 d = stage + (S.swz ? cp.w ^ (i * 16) : cp.w) + i * RP;
    int go = i * S.tok_stride - 2048;
    cp16(d, go < 2048 ? kp + go : kp2 + (go - 4096));
    cp16(d + VO, go < 2048 ? vp + go : vp2 + (go - 4096));
  }
}

// A tail tile of two pages may lack the second one: such lanes copy the last
// page again (their rows are masked).
DEV int page_id(const Shape &S, const int *tp, int i, int last) {
  return ldg_i32(tp, S.tile > S.page && i > last ? last : i);
}

DEV void run_warp(const Args &a, const Shape &S, u32 ring, u32 bars, State &st,
                  const u32 *q, float c, const int *tp, const Copy &cp,
                  int last, int n_tot, int n_full, int tail_valid, u32 lane,
                  bool slow) {
  const int RP = S.swz || S.copy == BULK ? 128 : 144, VO = S.tile * RP,
            STG = 2 * VO, ST = S.stages;
  const int PPI = WARPS * S.tile / S.page; // table entries per iteration
  u32 row = (lane & 7) + ((lane >> 3) & 1) * 8, hi = lane >> 4;
  u32 kl, vl; // lane offset inside a stage
  if (S.copy == BULK) {
    kl = (lane >> 2) * 128 + (lane & 3) * 16;
    vl = (lane & 3) * 256 + (lane >> 2) * 16;
  } else {
    kl = row * RP + (S.swz ? ((hi ^ (row & 7)) * 16) : hi * 16);
    vl = kl;
  }
  u32 base = ring + kl, vdelta = vl - kl + VO;
  UNROLL for (int i = 0; i < 8; i++) {
    UNROLL for (int e = 0; e < 4; e++) st.o[i][e] = 0.f;
  }
  UNROLL for (int e = 0; e < 4; e++) st.l[e] = 0.f;
  st.nm[0] = st.nm[1] =
      n_tot > 0 ? 0.f : as_float(0x7f800000u); // no tokens: reference -inf,
                                               // weight 0 in the merge
  st.nan = 0;
  if (lane < 4)
    sts_u32(ring + 4 * lane,
            0x3c003c00u); // through memory: as constants ptxas would
  warp_sync();            // rebuild the four registers in every iteration
  lds128(st.one, ring);
  if (S.copy == BULK)
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  warp_sync();
  int pid = 0;
  UNROLL for (int s = 0; s < ST - 1; s++) {
    if (s < n_tot) {
      pid = page_id(S, tp, s * PPI, last);
      fill(S, cp, ring + s * STG, pid, bars + 8 * s);
    }
    if (S.copy != BULK)
      cp_commit();
  }
  int next = (ST - 1) * PPI;
  int left = n_tot - (ST - 1); // tiles not requested yet
  if (left > 0)
    pid = page_id(S, tp, next, last);
  if (n_tot > 0) { // reference of the first tile (scores only)
    float s0[2][4];
    if (S.copy == BULK)
      mbar_wait(bars, 0);
    else
      cp_wait(ST - 2);
    warp_sync();
    tile_scores(S, base, q, s0, st, c, slow);
    st.nan = 0; // do not look at slots that are not in use
    tile_mask(S, s0, n_full > 0 ? S.tile : tail_valid, lane >> 2);
    UNROLL for (int h = 0; h < 2; h++) {
      float m = tile_max(S, s0, h);
      st.nm[h] = m > as_float(0xff800000u) ? -(m + HEADROOM) : 0.f;
    }
  }
  u32 rd = 0, wr = (ST - 1) * STG, par = 0;
  int it = 0;
  while (it < n_full) {
    UNROLL for (int u = 0; u < S.unroll; u++) {
      if (S.unroll > 1) {
        rd = u * STG;
        wr = ((u + ST - 1) % ST) * STG;
      }
      u32 rbar = S.unroll > 1 ? bars + 8 * u : bars + 8 * (rd / STG);
      if (S.copy == BULK)
        mbar_wait(rbar, par & 1);
      else
        cp_wait(ST - 2);
      warp_sync(); // data of all lanes visible; everybody is done with stage
                   // `wr`
      if (left > 0) {
        u32 wbar = S.unroll > 1 ? bars + 8 * ((u + ST - 1) % ST)
                                : bars + 8 * (wr / STG);
        fill(S, cp, ring + wr, pid, wbar);
        next += PPI;
        if (left > 1)
          pid = page_id(S, tp, next, last);
      }
      if (S.copy != BULK)
        cp_commit();
      left--;
      tile_step(S, base + rd, base + rd + vdelta, q, st, c, false, 0, lane,
                slow);
      if (S.unroll == 1) {
        wr = rd;
        rd += STG;
        if (rd == (u32)(ST * STG)) {
          rd = 0;
          par ^= 1;
        }
      }
      it++;
      if (S.unroll > 1 && u + 1 < S.unroll && it >= n_full) {
        rd = (u + 1) * STG;
        goto done;
      }
    }
    if (S.unroll > 1) {
      rd = 0;
      par ^= 1;
    }
  }
done:
  if (n_tot > n_full) {
    if (S.copy == BULK)
      mbar_wait(bars + 8 * (rd / STG), par & 1);
    else
      cp_wait(0);
    warp_sync();
    tile_step(S, base + rd, base + rd + vdelta, q, st, c, true, tail_valid,
              lane, slow || !S.hw_cvt);
  }
  if (S.copy != BULK)
    cp_wait(0);
}

DEV u32 bf16pair_f16(u32 x, float f) {
  return pack_f16(as_float(x << 16) * f, as_float(x & 0xffff0000u) * f);
}

DEV void decode_body(const Args &a, Shape S) {
  const int RP = S.swz || S.copy == BULK ? 128 : 144, STG = 2 * S.tile * RP;
  u32 lane = tid_x() & 31, warp = shfl_idx(tid_x() >> 5, 0), g = lane >> 2,
      t = lane & 3;
  u32 seq = cta_y(), kvh = cta_x(), split = cta_z();
  int len = a.lens[seq], lo = split * a.split_tokens, hi = lo + a.split_tokens;
  if (hi > len)
    hi = len;
  int ntok = hi - lo;
  if (ntok <= 0)
    return;
  u32 sm = smem_base(), ring = sm + warp * S.stages * STG,
      bars = sm + WARPS * S.stages * STG + warp * S.stages * 8;
  if (S.copy == BULK) {
    if (lane == 0) {
      UNROLL for (int s = 0; s < S.stages; s++) mbar_init(bars + 8 * s);
    }
    warp_sync();
  }
  // tiles warp, warp+4, ...
  int full = ntok / S.tile, rem = ntok % S.tile;
  int n_full = full > (int)warp ? (full - 1 - (int)warp) / WARPS + 1 : 0;
  int has_tail = rem && (full % WARPS) == (int)warp;
  // first page of this warp and the row inside it (needs page | 4*tile); lane
  // part of the copy addresses
  const int R = S.tile / 4;
  u32 lrow = S.copy == BULK ? 0 : (lane >> 3) * R, lchk = lane & 7;
  int tok0 = warp * S.tile + lrow, last = (hi - 1) / S.page - lo / S.page -
                                          tok0 / S.page; // last: may be < 0
  u64 goff = (u64)kvh * (u32)S.head_stride;
  if (S.copy != BULK)
    goff += (u64)(tok0 % S.page * S.tok_stride + lchk * 16 + 2048);
  else
    goff += (u64)(tok0 % S.page * S.tok_stride);
  const int *tp =
      a.table + (long)seq * a.table_stride + lo / S.page + tok0 / S.page;
  Copy cp = {a.k + goff, a.v + goff, a.k + goff + 4096, a.v + goff + 4096,
             lrow * RP + (S.swz ? (lchk ^ (lrow & 7)) * 16 : lchk * 16)};
  opaque(cp.k); // keep two base registers: one IMAD.WIDE each per tile
  opaque(cp.v);
  opaque(cp.k2);
  opaque(cp.v2);
  opaque(tp);
  // Q: k order of chunk n: k=2t,2t+1 -> dims 16n+4t+0,1 and k=2t+8,2t+9 ->
  // 16n+4t+2,3 (BULK: 64h+16t+4e+...)
  const float kf =
      S.fmt == E4M3 && !S.hw_cvt ? 256.f : 1.f; // codes arrive times 2^-8
  u32 q[16];
  const u16 *qp = a.q + ((u64)seq * (KVH * GROUP) + kvh * GROUP + g) * HD;
  float c = a.score_scale * kf, qf = 1.f;
  if (S.qfold) {
    qf = c;
    c = 1.f;
  }
  UNROLL for (int n = 0; n < 8; n++) {
    int d =
        S.copy == BULK ? (n >> 2) * 64 + t * 16 + (n & 3) * 4 : n * 16 + t * 4;
    u32 w0 = *(const u32 *)(qp + d), w1 = *(const u32 *)(qp + d + 2);
    q[2 * n] = bf16pair_f16(w0, qf);
    q[2 * n + 1] = bf16pair_f16(w1, qf);
  }
  State st;
  run_warp(a, S, ring, bars, st, q, c, tp, cp, last, n_full + has_tail, n_full,
           rem, lane, false);
  if (S.fmt == E4M3 && !S.hw_cvt && warp_any(st.nan, 0x80808080u)) {
    warp_sync(); // a NaN code was seen: once more, exact decode
    run_warp(a, S, ring, bars, st, q, c, tp, cp, last, n_full + has_tail,
             n_full, rem, lane, true);
  }
  // ---- merge of the four warps: [warp][head][dim] f32 in shared memory (row
  // 136 floats), then max and sum
  cta_sync();
  const int HP = 136 * 4, WP = GROUP * HP;
  UNROLL for (int n = 0; n < 8; n++) {
    UNROLL for (int i = 0; i < 4; i++) {
      u32 head = 2 * t + (i & 1);
      u32 dim = S.copy == BULK ? 16 * g + 4 * (n >> 1) + 2 * (n & 1) + (i >> 1)
                               : 16 * n + 2 * g + (i >> 1);
      sts_f32(sm + warp * WP + head * HP + dim * 4, st.o[n][i]);
    }
  }
  u32 ml = sm + WARPS * WP;
  if (g == 0) {
    UNROLL for (int h = 0; h < 2; h++) {
      sts_f32(ml + (warp * GROUP + 2 * t + h) * 8, -st.nm[h]);
      sts_f32(ml + (warp * GROUP + 2 * t + h) * 8 + 4, st.l[h]);
    }
  }
  cta_sync();
  u32 d = tid_x();
  u64 orow = ((u64)seq * nsplit() + split) * (KVH * GROUP) + kvh * GROUP;
  UNROLL for (int h = 0; h < GROUP; h++) {
    float mm = lds_f32(ml + h * 8), o = 0.f, l = 0.f;
    UNROLL for (int w = 1; w < WARPS; w++) mm =
        fmx(mm, lds_f32(ml + (w * GROUP + h) * 8));
    UNROLL for (int w = 0; w < WARPS; w++) {
      float f = ex2(lds_f32(ml + (w * GROUP + h) * 8) - mm);
      l += f * lds_f32(ml + (w * GROUP + h) * 8 + 4);
      o += f * lds_f32(sm + w * WP + h * HP + d * 4);
    }
    a.part_o[(orow + h) * HD + d] = o * (a.v_scale * kf) * rcp(l);
    if (d == 0) {
      a.part_ml[(orow + h) * 2] = mm;
      a.part_ml[(orow + h) * 2 + 1] = l;
    }
  }
}

// ---- instances: page, tile, stages, unroll, strides, swz, fmt, hw_cvt, qfold,
// copy
#ifndef HWCVT
#define HWCVT 1
#endif
#ifndef FMT
#define FMT E4M3
#endif
#define NHD(P) 1024, 128, P * 1024
#define HND(P) 128, P * 128, P * 1024
#define INST(name, minb, ...)                                                  \
  GLOBAL void BOUNDS(128, minb) name(Args a) {                                 \
    Shape s = {__VA_ARGS__};                                                   \
    decode_body(a, s);                                                         \
  }
INST(nhd64_t16_s4_pad, 3, 64, 16, 4, 1, NHD(64), 0, FMT, HWCVT, 0, CPASYNC)
INST(nhd64_t16_s4_swz_u4, 3, 64, 16, 4, 4, NHD(64), 1, FMT, HWCVT, 0, CPASYNC)
INST(nhd64_t32_s3_pad, 2, 64, 32, 3, 1, NHD(64), 0, FMT, HWCVT, 0, CPASYNC)
INST(hnd64_t32_s3_pad, 2, 64, 32, 3, 1, HND(64), 0, FMT, HWCVT, 0, CPASYNC)
INST(nhd16_t32_s3_pad, 2, 16, 32, 3, 1, NHD(16), 0, FMT, HWCVT, 0, CPASYNC)
INST(hnd64_t32_s3_bulk_u3, 2, 64, 32, 3, 3, HND(64), 0, FMT, HWCVT, 0, BULK)
