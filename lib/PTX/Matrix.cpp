//===- Matrix.cpp - ldmatrix, stmatrix, movmatrix, mma --------------------===//
//
// Lane 4g + t holds elements 2t and 2t + 1 of row g of an 8x8 matrix of 16-bit
// elements: registers in lane order are the matrix in row-major order.
//
//===----------------------------------------------------------------------===//

#include "FloatFormats.h"
#include "Lanes.h"
#include "Statement.h"

#include <algorithm>

#ifdef __AVX2__
#include <immintrin.h>
#endif

using namespace kvcache::ptx;

namespace {

//===----------------------------------------------------------------------===//
// Matrices in shared memory
//===----------------------------------------------------------------------===//

u32 transposed(const u16 (*m)[8], int l) {
  return m[2 * (l & 3)][l >> 2] | u32(m[2 * (l & 3) + 1][l >> 2]) << 16;
}

/// The 16-byte rows of `count` matrices: lane 8q + r addresses row r of q.
u32 rowAddresses(Warp &w, const Instr &i, int count, Access access, u64 *a) {
  readAddresses(w, i, 0, a);
  int lanes = 8 * count;
  u32 mask = lanes == 32 ? ~0u : (1u << lanes) - 1;
  w.checkUse(i, i.s[0], mask & w.lanes, "address");
  u64 window = i.space == Space::Generic ? sharedWindow : 0;
  for (int l = 0; l < 32; ++l)
    a[l] -= a[l] >> 48 == sharedWindow >> 48 ? window : 0;
  u32 ok = sharedAccess(w, i, a, mask & w.lanes, 16, access);
  if (w.launch->options.counters)
    countWavefronts(access == Access::Store ? w.counters->sharedStore
                                            : w.counters->ldmatrix,
                    a, ok, 16, lanes);
  return ok;
}

template <int N, bool Transpose> void ldmatrix(Warp &w, const Instr &i) {
  u64 a[32];
  u32 ok = rowAddresses(w, i, N, Access::Load, a);
  const u8 *shared = w.cta->shared.data(), *init = w.cta->init.data();
  const bool track = w.launch->options.initcheck;
  bool anyBad = false;
  alignas(32) u16 m[N][8][8], bad[N][8][8];
  for (int q = 0; q < N; ++q)
    for (int r = 0; r < 8; ++r) {
      int l = 8 * q + r;
      if (!(ok >> l & 1)) {
        memset(m[q][r], 0xEE, 16);
        continue;
      }
      u64 offset = a[l] - sharedStart;
      memcpy(m[q][r], shared + offset, 16);
      if (track && !allValid(init + offset, 16))
        anyBad = true;
    }
  alignas(64) u32 t[N][32];
  for (int q = 0; q < N; ++q) {
    if (!Transpose)
      memcpy(t[q], m[q], 128);
    else
      for (int l = 0; l < 32; ++l)
        t[q][l] = transposed(m[q], l);
  }
  for (int q = 0; q < N; ++q)
    each<u32>(w, i.d[q], [&](int l) { return t[q][l]; });
  if (!track)
    return;
  if (!anyBad) {
    if (w.taintLive)
      for (int q = 0; q < N; ++q)
        w.clearTaint(i.d[q], w.lanes);
    return;
  }
  for (int q = 0; q < N; ++q) {
    for (int r = 0; r < 8; ++r) {
      u8 *to = (u8 *)bad[q][r];
      memset(to, 0, 16);
      if (!(ok >> (8 * q + r) & 1))
        continue;
      const u8 *from = init + (a[8 * q + r] - sharedStart);
      for (int k = 0; k < 16; ++k)
        to[k] = from[k] ? 0 : 0xff;
    }
    if (!w.isRegister(i.d[q]))
      continue;
    u32 *s = w.shadowOf<u32>(i.d[q]);
    for (int l = 0; l < 32; ++l)
      if (w.lanes >> l & 1) {
        if (Transpose)
          s[l] = transposed(bad[q], l);
        else
          memcpy(&s[l], (u8 *)bad[q] + 4 * l, 4);
      }
    w.updateFlag(i.d[q]);
  }
}

template <int N, bool Transpose> void stmatrix(Warp &w, const Instr &i) {
  u64 a[32];
  u32 ok = rowAddresses(w, i, N, Access::Store, a);
  const bool track = w.launch->options.initcheck;
  for (int q = 0; q < N; ++q) {
    u16 m[8][8];
    auto gather = [&](const u32 *from) {
      if (!Transpose)
        memcpy(m, from, 128);
      else
        for (int l = 0; l < 32; ++l) {
          m[2 * (l & 3)][l >> 2] = u16(from[l]);
          m[2 * (l & 3) + 1][l >> 2] = u16(from[l] >> 16);
        }
    };
    gather(w.r<u32>(i.s[1 + q]));
    for (int r = 0; r < 8; ++r)
      if (ok >> (8 * q + r) & 1) {
        u64 offset = a[8 * q + r] - sharedStart;
        memcpy(&w.cta->shared[offset], m[r], 16);
        if (track)
          markValid(&w.cta->init[offset], 16);
      }
    if (!track || !w.laneTaint(i.s[1 + q]))
      continue;
    gather(w.shadowOf<u32>(i.s[1 + q]));
    for (int r = 0; r < 8; ++r)
      if (ok >> (8 * q + r) & 1)
        for (int k = 0; k < 16; ++k)
          w.cta->init[a[8 * q + r] - sharedStart + u64(k)] =
              ((const u8 *)m[r])[k] == 0;
  }
}

void movmatrix(Warp &w, const Instr &i) {
  u16 m[8][8];
  memcpy(m, w.r<u32>(i.s[0]), 128);
  each<u32>(w, i.d[0], [&](int l) { return transposed(m, l); });
}

//===----------------------------------------------------------------------===//
// mma.m16n8: D (16x8) = A (16xK) B (Kx8) + C
//===----------------------------------------------------------------------===//

void checkAllLanes(Warp &w, const Instr &i) {
  if (w.lanes != ~0u && w.launch->options.synccheck)
    w.report(FindingKind::Sync, i, __builtin_ctz(~w.lanes),
             "mma with lanes that do not take part");
}

#ifdef __AVX2__
template <bool Brain> inline __m256 eight(const u16 *h) {
  __m128i x = _mm_load_si128((const __m128i *)h);
  if (Brain)
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(x), 16));
  return _mm256_cvtph_ps(x);
}

inline void transpose8(__m256 *r) {
  __m256 a[8], b[8];
  for (int k = 0; k < 4; ++k) {
    a[2 * k] = _mm256_unpacklo_ps(r[2 * k], r[2 * k + 1]);
    a[2 * k + 1] = _mm256_unpackhi_ps(r[2 * k], r[2 * k + 1]);
  }
  for (int k = 0; k < 2; ++k) {
    b[4 * k] = _mm256_shuffle_ps(a[4 * k], a[4 * k + 2], 0x44);
    b[4 * k + 1] = _mm256_shuffle_ps(a[4 * k], a[4 * k + 2], 0xee);
    b[4 * k + 2] = _mm256_shuffle_ps(a[4 * k + 1], a[4 * k + 3], 0x44);
    b[4 * k + 3] = _mm256_shuffle_ps(a[4 * k + 1], a[4 * k + 3], 0xee);
  }
  for (int k = 0; k < 4; ++k) {
    r[k] = _mm256_permute2f128_ps(b[k], b[k + 4], 0x20);
    r[k + 4] = _mm256_permute2f128_ps(b[k], b[k + 4], 0x31);
  }
}

/// f32 accumulation with one fma per k, ascending. A registers are row-major
/// 8x8 blocks, B registers [n][k] blocks: unpacking is a plain conversion.
template <bool Brain, int K> void mmaFast(Warp &w, const Instr &i) {
  constexpr int blocks = K / 8; // A registers: 2 * blocks, B: blocks
  __m256 b[K];
  alignas(32) float a[2][blocks][8][8];
  for (int kb = 0; kb < blocks; ++kb) {
    const u16 *from = (const u16 *)w.r<u32>(i.s[2 * blocks + kb]);
    for (int n = 0; n < 8; ++n)
      b[8 * kb + n] = eight<Brain>(from + 8 * n);
    transpose8(b + 8 * kb);
    for (int h = 0; h < 2; ++h) {
      const u16 *rows = (const u16 *)w.r<u32>(i.s[2 * kb + h]);
      for (int g = 0; g < 8; ++g)
        _mm256_store_ps(a[h][kb][g], eight<Brain>(rows + 8 * g));
    }
  }
  for (int h = 0; h < 2; ++h) {
    const float *c0 = w.r<float>(i.s[3 * blocks + 2 * h]);
    const float *c1 = w.r<float>(i.s[3 * blocks + 2 * h + 1]);
    __m256 acc[8];
    for (int g = 0; g < 8; ++g) {
      __m128 even = _mm_load_ps(c0 + 4 * g), odd = _mm_load_ps(c1 + 4 * g);
      acc[g] = _mm256_set_m128(_mm_unpackhi_ps(even, odd),
                               _mm_unpacklo_ps(even, odd));
    }
    for (int kb = 0; kb < blocks; ++kb)
      for (int k = 0; k < 8; ++k)
        for (int g = 0; g < 8; ++g)
          acc[g] = _mm256_fmadd_ps(_mm256_broadcast_ss(&a[h][kb][g][k]),
                                   b[8 * kb + k], acc[g]);
    float *d0 = w.r<float>(i.d[2 * h]), *d1 = w.r<float>(i.d[2 * h + 1]);
    for (int g = 0; g < 8; ++g) {
      __m128 lo = _mm256_castps256_ps128(acc[g]);
      __m128 hi = _mm256_extractf128_ps(acc[g], 1);
      _mm_store_ps(d0 + 4 * g, _mm_shuffle_ps(lo, hi, 0x88));
      _mm_store_ps(d1 + 4 * g, _mm_shuffle_ps(lo, hi, 0xdd));
    }
  }
  checkAllLanes(w, i);
}
#endif

enum class Element : u8 { Half, Brain, Tf32, E4m3, E5m2, S8, U8 };

int elementBytes(Element e) {
  return e == Element::Tf32                          ? 4
         : e == Element::Half || e == Element::Brain ? 2
                                                     : 1;
}
float elementValue(Element e, u32 bits) {
  switch (e) {
  case Element::Half:
    return float(unbox<f16>(bits));
  case Element::Brain:
    return bfloatToFloat(u16(bits));
  case Element::Tf32:
    return __builtin_bit_cast(float, bits & 0xffffe000);
  case Element::E4m3:
    return float(expand(formatE4M3, bits));
  case Element::E5m2:
    return float(expand(formatE5M2, bits));
  default:
    return 0;
  }
}

/// Any element type. A register holds 4 / bytes neighbours along k; register
/// r of A: row g + 8 (r & 1), k block r / 2 of 16 bytes; of B: k block r.
/// flags: A element | B element << 4 | f16 accumulator << 8 | saturate << 9;
/// width: registers of A.
void mmaGeneral(Warp &w, const Instr &i) {
  Element ea = Element(i.flags & 15), eb = Element(i.flags >> 4 & 15);
  const bool halfAccumulator = i.flags >> 8 & 1, saturate = i.flags >> 9 & 1;
  const bool integer = ea == Element::S8 || ea == Element::U8;
  const int numA = i.width, numB = numA / 2;
  const int bytes = elementBytes(ea), perRegister = 4 / bytes;
  const int k = numB * 4 * perRegister; // 16 bytes of a row per register
  float a[16][32], b[32][8];
  s32 ia[16][32], ib[32][8];
  const u32 ones = bytes == 4 ? ~0u : (1u << (8 * bytes)) - 1;
  auto integerValue = [](Element e, u32 bits) {
    return e == Element::S8 ? s32(s8(bits)) : s32(u8(bits));
  };
  for (int r = 0; r < numA; ++r)
    for (int l = 0; l < 32; ++l)
      for (int e = 0; e < perRegister; ++e) {
        u32 bits = w.r<u32>(i.s[r])[l] >> (8 * bytes * e) & ones;
        int row = l / 4 + 8 * (r & 1);
        int column = (r / 2) * 4 * perRegister + (l & 3) * perRegister + e;
        if (integer)
          ia[row][column] = integerValue(ea, bits);
        else
          a[row][column] = elementValue(ea, bits);
      }
  for (int r = 0; r < numB; ++r)
    for (int l = 0; l < 32; ++l)
      for (int e = 0; e < perRegister; ++e) {
        u32 bits = w.r<u32>(i.s[numA + r])[l] >> (8 * bytes * e) & ones;
        int row = r * 4 * perRegister + (l & 3) * perRegister + e;
        if (integer)
          ib[row][l / 4] = integerValue(eb, bits);
        else
          b[row][l / 4] = elementValue(eb, bits);
      }
  const int base = numA + numB;
  u32 d[4][32] = {};
  for (int n = 0; n < 4; ++n)
    for (int l = 0; l < 32; ++l) {
      int row = l / 4 + 8 * (n >> 1), column = 2 * (l & 3) + (n & 1);
      if (integer) {
        u32 sum = w.r<u32>(i.s[base + n])[l];
        s64 exact = s32(sum);
        for (int q = 0; q < k; ++q) {
          sum += u32(ia[row][q] * ib[q][column]);
          exact += ia[row][q] * ib[q][column];
        }
        if (saturate)
          sum = u32(exact > INT32_MAX   ? INT32_MAX
                    : exact < INT32_MIN ? INT32_MIN
                                        : s32(exact));
        d[n][l] = sum;
        continue;
      }
      float sum;
      if (halfAccumulator)
        sum = float(unbox<f16>(
            w.r<u32>(i.s[base + n / 2])[l] >> (16 * (n & 1)) & 0xffff));
      else
        sum = w.r<float>(i.s[base + n])[l];
      for (int q = 0; q < k; ++q)
        sum = __builtin_fmaf(a[row][q], b[q][column], sum);
      if (halfAccumulator)
        d[n / 2][l] |= u32(box<f16>(f16(sum))) << (16 * (n & 1));
      else
        d[n][l] = __builtin_bit_cast(u32, sum);
    }
  for (int n = 0; n < i.nd; ++n)
    each<u32>(w, i.d[n], [&](int l) { return d[n][l]; });
  checkAllLanes(w, i);
}

//===----------------------------------------------------------------------===//
// Lowering
//===----------------------------------------------------------------------===//

bool elementOf(const std::string &name, Element &e) {
  static const std::pair<const char *, Element> names[] = {
      {"f16", Element::Half},  {"bf16", Element::Brain},
      {"tf32", Element::Tf32}, {"e4m3", Element::E4m3},
      {"e5m2", Element::E5m2}, {"s8", Element::S8},
      {"u8", Element::U8}};
  for (auto &[text, value] : names)
    if (name == text) {
      e = value;
      return true;
    }
  return false;
}

bool lowerMma(Builder &b, const Statement &s, Instr &i) {
  const std::vector<Operand> &o = s.operands;
  if (o.size() != 4 || s.parts.size() < 5 || !s.has("row") || !s.has("col") ||
      s.has("sp") || s.has("block_scale"))
    return false;
  std::vector<std::string> types;
  for (size_t n = 1; n < s.parts.size(); ++n)
    if (!s.parts[n].empty() && s.parts[n] != "sync" &&
        s.parts[n] != "aligned" && s.parts[n] != "row" && s.parts[n] != "col" &&
        s.parts[n][0] != 'm' && s.parts[n] != "kind::f8f6f4" &&
        s.parts[n] != "satfinite")
      types.push_back(s.parts[n]);
  Element ea, eb;
  if (types.size() != 4 || !elementOf(types[1], ea) ||
      !elementOf(types[2], eb) || types[0] != types[3])
    return false;
  bool integer = ea == Element::S8 || ea == Element::U8;
  bool half = types[0] == "f16";
  if (s.has("satfinite") && !integer)
    return false;
  if (integer ? types[0] != "s32" : types[0] != "f32" && !half)
    return false;
  if (elementBytes(ea) != elementBytes(eb) ||
      integer != (eb == Element::S8 || eb == Element::U8))
    return false;
  // 16 bytes of k per A register pair and B register.
  int bytes = elementBytes(ea), numA = 0;
  if (s.has("m16n8k4"))
    numA = bytes == 4 ? 2 : 0;
  else if (s.has("m16n8k8"))
    numA = bytes == 4 ? 4 : bytes == 2 ? 2 : 0;
  else if (s.has("m16n8k16"))
    numA = bytes == 2 ? 4 : bytes == 1 ? 2 : 0;
  else if (s.has("m16n8k32"))
    numA = bytes == 1 ? 4 : 0;
  if (!numA)
    return false;
  size_t numC = half ? 2 : 4;
  const size_t expected[] = {numC, size_t(numA), size_t(numA) / 2, numC};
  for (size_t q = 0; q < 4; ++q) {
    size_t count = o[q].kind == Operand::Vec ? o[q].elements.size() : 1;
    if (count != expected[q])
      return false;
  }
  size_t n = 0;
  for (size_t q = 1; q < 4; ++q) {
    if (o[q].kind != Operand::Vec) {
      i.s[n++] = b.source(o[q], 1);
      continue;
    }
    for (const Operand &e : o[q].elements)
      i.s[n++] = b.source(e, 1);
  }
  for (size_t q = 0; q < numC; ++q)
    i.d[q] = b.destination(o[0].elements[q], 1);
  i.ns = u8(n);
  i.nd = u8(numC);
  i.control = Control::Sync;
  i.width = u8(numA);
  i.flags = u16(int(ea) | int(eb) << 4 | int(half) << 8 |
                int(s.has("satfinite")) << 9);
  Handler fn = mmaGeneral;
#ifdef __AVX2__
  if (!half && ea == eb && ea == Element::Half)
    fn = numA == 4 ? mmaFast<false, 16> : mmaFast<false, 8>;
  if (!half && ea == eb && ea == Element::Brain)
    fn = numA == 4 ? mmaFast<true, 16> : mmaFast<true, 8>;
#endif
  return choose(i, fn, InstrClass::Mma, TaintRule::Mma);
}

} // namespace

bool kvcache::ptx::lowerMatrix(Builder &b, const Statement &s, Instr &i) {
  const std::string &op = s.op();
  const std::vector<Operand> &o = s.operands;
  if (op == "mma")
    return lowerMma(b, s, i);
  if (op == "movmatrix") {
    i.control = Control::Sync;
    return lowerOperands(b, s, i, 1, {1}) &&
           choose(i, movmatrix, InstrClass::Mma, TaintRule::Structural);
  }
  bool loads = op == "ldmatrix";
  if ((!loads && op != "stmatrix") || o.size() != 2 || !s.has("m8n8") ||
      !s.has("b16"))
    return false;
  const Operand &registers = loads ? o[0] : o[1];
  const Operand &address = loads ? o[1] : o[0];
  size_t n = s.has("x4") ? 4 : s.has("x2") ? 2 : 1;
  std::vector<Operand> list = registers.kind == Operand::Vec
                                  ? registers.elements
                                  : std::vector<Operand>{registers};
  if (list.size() != n)
    return false;
  i.space = spaceOf(s);
  lowerAddress(b, address, i, 0);
  i.ns = 1;
  for (size_t q = 0; q < n; ++q)
    if (loads) {
      i.d[q] = b.destination(list[q], 1);
      ++i.nd;
    } else {
      i.s[1 + q] = b.source(list[q], 1);
      ++i.ns;
    }
  i.control = Control::Sync;
  bool t = s.has("trans");
  Handler fn = nullptr;
  if (loads)
    fn = n == 4   ? (t ? ldmatrix<4, true> : ldmatrix<4, false>)
         : n == 2 ? (t ? ldmatrix<2, true> : ldmatrix<2, false>)
                  : (t ? ldmatrix<1, true> : ldmatrix<1, false>);
  else
    fn = n == 4   ? (t ? stmatrix<4, true> : stmatrix<4, false>)
         : n == 2 ? (t ? stmatrix<2, true> : stmatrix<2, false>)
                  : (t ? stmatrix<1, true> : stmatrix<1, false>);
  b.kernel.minSharedAccess = std::min<u8>(b.kernel.minSharedAccess, 16);
  return choose(i, fn, loads ? InstrClass::Ldmatrix : InstrClass::StoreShared,
                TaintRule::Own);
}
