//===- MatrixTest.cpp - Fragment layouts against plain loops --------------===//
//
// The layouts are written down here as the PTX manual gives them.
//
//===----------------------------------------------------------------------===//

#include "PTXTest.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <random>

using namespace kvcache::ptx;

namespace {

class MatrixTest : public PTXTest {
protected:
  std::mt19937 random{7};

  /// in: `inputs` registers a lane; out: `outputs` registers a lane, both as
  /// [register][lane].
  std::vector<uint32_t> registers(const std::string &instruction, int inputs,
                                  int outputs, std::vector<uint32_t> in) {
    std::vector<uint32_t> out(size_t(outputs) * 32);
    uint64_t pIn = add(in), pOut = add(out);
    std::string body;
    for (int n = 0; n < inputs; ++n)
      body += "ld.global.u32 %r" + std::to_string(10 + n) + ", [%d3+" +
              std::to_string(128 * n) + "];\n";
    body += instruction + "\n";
    for (int n = 0; n < outputs; ++n)
      body += "st.global.u32 [%d4+" + std::to_string(128 * n) + "], %r" +
              std::to_string(40 + n) + ";\n";
    expectClean(launch(kernel(body), {pIn, pOut}));
    machine.clearBuffers();
    return out;
  }

  struct Format {
    const char *name;
    int bits;
    std::function<uint32_t(int)> encode; // of a small integer
  };
  static uint32_t smallFloat(int v, int exponentBits, int mantissaBits) {
    // Exact for |v| <= 2^(mantissaBits + 1).
    if (!v)
      return 0;
    uint32_t sign = v < 0, m = uint32_t(v < 0 ? -v : v);
    int exponent = 31 - __builtin_clz(m);
    uint32_t fraction =
        (m << mantissaBits >> exponent) & ((1u << mantissaBits) - 1);
    uint32_t bias = (1u << (exponentBits - 1)) - 1;
    return sign << (exponentBits + mantissaBits) |
           (bias + uint32_t(exponent)) << mantissaBits | fraction;
  }

  void checkMma(const std::string &shape, int k, const Format &f,
                const std::string &accumulator) {
    checkMma(shape, k, f, f, accumulator);
  }
  void checkMma(const std::string &shape, int k, const Format &f,
                const Format &fb, const std::string &accumulator) {
    const int perRegister = 32 / f.bits;
    const int numB = k / (4 * perRegister), numA = 2 * numB;
    const bool half = accumulator == "f16";
    const int numC = half ? 2 : 4;
    std::uniform_int_distribution<int> draw(-4, 4);
    std::vector<std::vector<int>> a(16, std::vector<int>(size_t(k))),
        b(size_t(k), std::vector<int>(8)), c(16, std::vector<int>(8));
    for (auto *m : {&a, &b, &c})
      for (auto &row : *m)
        for (int &x : row)
          x = draw(random);
    std::vector<uint32_t> in(size_t(numA + numB + numC) * 32);
    auto put = [&](int reg, int lane, int element, int bits, uint32_t code) {
      in[size_t(reg * 32 + lane)] |=
          (bits == 32 ? code : code & ((1u << bits) - 1)) << (bits * element);
    };
    auto encodeC = [&](int v) {
      return half                   ? smallFloat(v, 5, 10)
             : accumulator == "s32" ? uint32_t(v)
                                    : bitsOf(float(v));
    };
    for (int lane = 0; lane < 32; ++lane) {
      int g = lane >> 2, t = lane & 3;
      for (int r = 0; r < numA; ++r)
        for (int e = 0; e < perRegister; ++e)
          put(r, lane, e, f.bits,
              f.encode(a[size_t(g + 8 * (r % 2))][size_t(
                  r / 2 * 4 * perRegister + t * perRegister + e)]));
      for (int r = 0; r < numB; ++r)
        for (int e = 0; e < perRegister; ++e)
          put(numA + r, lane, e, f.bits,
              fb.encode(b[size_t(r * 4 * perRegister + t * perRegister + e)]
                         [size_t(g)]));
      for (int n = 0; n < 4; ++n) {
        int value = c[size_t(g + 8 * (n / 2))][size_t(2 * t + n % 2)];
        put(numA + numB + (half ? n / 2 : n), lane, half ? n % 2 : 0,
            half ? 16 : 32, encodeC(value));
      }
    }
    auto list = [](int first, int count) {
      std::string s = "{";
      for (int n = 0; n < count; ++n)
        s += (n ? ", %r" : "%r") + std::to_string(first + n);
      return s + "}";
    };
    std::string name = "mma.sync.aligned." + shape + ".row.col." + accumulator +
                       "." + f.name + "." + fb.name + "." + accumulator;
    std::vector<uint32_t> out = registers(
        name + " " + list(40, numC) + ", " + list(10, numA) + ", " +
            list(10 + numA, numB) + ", " + list(10 + numA + numB, numC) + ";",
        numA + numB + numC, numC, in);
    for (int lane = 0; lane < 32; ++lane)
      for (int n = 0; n < 4; ++n) {
        size_t row = size_t((lane >> 2) + 8 * (n / 2));
        size_t column = size_t(2 * (lane & 3) + n % 2);
        int want = c[row][column];
        for (size_t q = 0; q < size_t(k); ++q)
          want += a[row][q] * b[q][column];
        uint32_t got = out[size_t((half ? n / 2 : n) * 32 + lane)];
        if (half)
          got = got >> (16 * (n % 2)) & 0xffff;
        ASSERT_EQ(got, encodeC(want)) << name << " lane " << lane << " " << n;
      }
  }
};

TEST_F(MatrixTest, MmaLayouts) {
  Format f16{"f16", 16, [](int v) { return smallFloat(v, 5, 10); }};
  Format bf16{"bf16", 16, [](int v) { return smallFloat(v, 8, 7); }};
  Format tf32{"tf32", 32, [](int v) { return bitsOf(float(v)); }};
  Format e4m3{"e4m3", 8, [](int v) { return smallFloat(v, 4, 3); }};
  Format s8{"s8", 8, [](int v) { return uint32_t(v) & 255; }};
  checkMma("m16n8k16", 16, f16, "f32");
  checkMma("m16n8k8", 8, f16, "f32");
  checkMma("m16n8k16", 16, bf16, "f32");
  checkMma("m16n8k8", 8, bf16, "f32");
  checkMma("m16n8k16", 16, f16, "f16");
  checkMma("m16n8k8", 8, tf32, "f32");
  checkMma("m16n8k4", 4, tf32, "f32");
  checkMma("m16n8k32", 32, e4m3, "f32");
  checkMma("m16n8k32", 32, s8, "s32");
  checkMma("m16n8k8", 8, f16, "f16");
  checkMma("m16n8k16", 16, s8, "s32");
  Format e5m2{"e5m2", 8, [](int v) { return smallFloat(v, 5, 2); }};
  checkMma("m16n8k32", 32, e5m2, "f32");
  checkMma("m16n8k32", 32, e4m3, e5m2, "f32");
  checkMma("m16n8k32", 32, e5m2, e4m3, "f32");
  checkMma("m16n8k16", 16, e4m3, "f32");
  checkMma("m16n8k32", 32, e4m3, "f16");
}

/// Finite values of all magnitudes: the machine accumulates in f32, one fma for
/// each k, ascending.
TEST_F(MatrixTest, MmaRoundsAsStated) {
  struct Kind {
    const char *shape, *type;
    int k, bits;
    std::function<float(uint32_t)> decode;
  };
  auto small = [](uint32_t code, int exponentBits, int mantissaBits) {
    int e = int(code >> mantissaBits & ((1u << exponentBits) - 1));
    float m =
        float(code & ((1u << mantissaBits) - 1)) / float(1u << mantissaBits);
    int bias = (1 << (exponentBits - 1)) - 1;
    float v = e ? std::ldexp(1 + m, e - bias) : std::ldexp(m, 1 - bias);
    return code >> (exponentBits + mantissaBits) & 1 ? -v : v;
  };
  const Kind kinds[] = {
      {"m16n8k16", "f16", 16, 16, [&](uint32_t c) { return small(c, 5, 10); }},
      {"m16n8k16", "bf16", 16, 16, [](uint32_t c) { return floatOf(c << 16); }},
      {"m16n8k8", "tf32", 8, 32,
       [](uint32_t c) { return floatOf(c & 0xffffe000); }},
      {"m16n8k32", "e4m3", 32, 8, [&](uint32_t c) { return small(c, 4, 3); }},
      {"m16n8k32", "e5m2", 32, 8, [&](uint32_t c) { return small(c, 5, 2); }}};
  for (const Kind &t : kinds) {
    const int per = 32 / t.bits, numB = t.k / (4 * per), numA = 2 * numB;
    std::vector<uint32_t> in(size_t(numA + numB + 4) * 32);
    for (size_t n = 0; n < in.size(); ++n) {
      uint32_t code = uint32_t(random());
      if (n >= size_t(numA + numB) * 32 || t.bits == 32)
        code = (code & 0x807fffff) | (100 + code % 50) << 23;
      else // not infinite, not NaN
        code &= t.bits == 16 ? 0xbfffbfff : 0xbfbfbfbf;
      in[n] = code;
    }
    auto element = [&](int reg, int lane, int e) {
      uint32_t word = in[size_t(reg * 32 + lane)];
      return t.decode(
          t.bits == 32 ? word : word >> (t.bits * e) & ((1u << t.bits) - 1));
    };
    auto list = [](int first, int count) {
      std::string s = "{";
      for (int n = 0; n < count; ++n)
        s += (n ? ", %r" : "%r") + std::to_string(first + n);
      return s + "}";
    };
    std::vector<uint32_t> out =
        registers(std::string("mma.sync.aligned.") + t.shape + ".row.col.f32." +
                      t.type + "." + t.type + ".f32 " + list(40, 4) + ", " +
                      list(10, numA) + ", " + list(10 + numA, numB) + ", " +
                      list(10 + numA + numB, 4) + ";",
                  numA + numB + 4, 4, in);
    for (int lane = 0; lane < 32; ++lane)
      for (int n = 0; n < 4; ++n) {
        int row = (lane >> 2) + 8 * (n / 2), column = 2 * (lane & 3) + n % 2;
        float sum = floatOf(in[size_t((numA + numB + n) * 32 + lane)]);
        for (int q = 0; q < t.k; ++q) {
          int block = q / (4 * per), inside = q % (4 * per);
          float a = element(2 * block + row / 8, (row % 8) * 4 + inside / per,
                            inside % per);
          float b =
              element(numA + block, column * 4 + inside / per, inside % per);
          sum = std::fmaf(a, b, sum);
        }
        ASSERT_EQ(out[size_t(n * 32 + lane)], bitsOf(sum))
            << t.type << " lane " << lane << " " << n;
      }
  }
}

TEST_F(MatrixTest, IntegerAccumulators) {
  auto mma = [&](const std::string &types, std::vector<uint32_t> in) {
    return registers("mma.sync.aligned.m16n8k32.row.col" + types +
                         " {%r40, %r41, %r42, %r43}, {%r10, %r11, %r12, %r13}, "
                         "{%r14, %r15}, {%r16, %r17, %r18, %r19};",
                     10, 4, in);
  };
  // All factors 127 or -128; the accumulators at the ends of the range.
  for (bool saturate : {false, true})
    for (bool negative : {false, true}) {
      std::vector<uint32_t> in(size_t(4 + 2 + 4) * 32);
      for (size_t n = 0; n < in.size(); ++n)
        in[n] = n < 4 * 32   ? 0x7f7f7f7f
                : n < 6 * 32 ? (negative ? 0x80808080 : 0x7f7f7f7f)
                             : (negative ? 0x80000000 : 0x7fffffff);
      uint32_t end = negative ? 0x80000000 : 0x7fffffff;
      uint32_t sum = negative ? 0u - 32u * 127 * 128 : 32u * 127 * 127;
      for (uint32_t value :
           mma(saturate ? ".satfinite.s32.s8.s8.s32" : ".s32.s8.s8.s32", in))
        ASSERT_EQ(value, saturate ? end : end + sum);
    }
  std::vector<uint32_t> in(size_t(4 + 2 + 4) * 32);
  std::fill(in.begin(), in.begin() + 6 * 32, 0xffffffff);
  for (uint32_t value : mma(".s32.u8.s8.s32", in))
    ASSERT_EQ(value, uint32_t(-32 * 255));
}

TEST_F(MatrixTest, MovmatrixTransposes) {
  std::vector<uint32_t> in(32), want(32);
  auto element = [](int row, int column) {
    return uint32_t(row * 256 + column);
  };
  for (int l = 0; l < 32; ++l) {
    int row = l / 4, column = 2 * (l % 4);
    in[size_t(l)] = element(row, column) | element(row, column + 1) << 16;
    want[size_t(l)] = element(column, row) | element(column + 1, row) << 16;
  }
  EXPECT_EQ(
      registers("movmatrix.sync.aligned.m8n8.trans.b16 %r40, %r10;", 1, 1, in),
      want);
}

/// Shared memory holds 32 rows of 16 bytes, 48 bytes apart; element n of row r
/// is 256 r + n.
class LdmatrixTest : public MatrixTest {
protected:
  std::string fill =
      "mov.u32 %r1, s; mad.lo.u32 %r2, %r0, 48, %r1; shl.b32 %r3, %r0, 8;\n"
      "mov.u32 %r4, 0;\n"
      "Fill: add.u32 %r5, %r3, %r4; shl.b32 %r6, %r4, 1; add.u32 %r6, %r6, "
      "%r2;\ncvt.u16.u32 %h1, %r5; st.shared.b16 [%r6], %h1;\n"
      "add.u32 %r4, %r4, 1; setp.lt.u32 %p1, %r4, 8; @%p1 bra Fill;\n"
      "bar.sync 0;\n";
  const char *module = ".shared .align 16 .b8 s[1536];";
};

TEST_F(LdmatrixTest, LayoutAndTransposition) {
  for (bool transpose : {false, true}) {
    std::vector<uint32_t> out(128);
    uint64_t p = add(out);
    expectClean(launch(
        kernel(fill + "ldmatrix.sync.aligned.m8n8.x4" +
                   (transpose ? ".trans" : "") +
                   ".shared.b16 {%r40, %r41, %r42, %r43}, [%r2];\n"
                   "st.global.u32 [%d3], %r40; st.global.u32 [%d3+128], %r41;\n"
                   "st.global.u32 [%d3+256], %r42;\n"
                   "st.global.u32 [%d3+384], %r43;",
               module),
        {p}));
    for (uint32_t q = 0; q < 4; ++q)
      for (uint32_t l = 0; l < 32; ++l)
        for (uint32_t h = 0; h < 2; ++h) {
          uint32_t row = l / 4, column = 2 * (l % 4) + h;
          if (transpose)
            std::swap(row, column);
          EXPECT_EQ(out[q * 32 + l] >> (16 * h) & 0xffff,
                    256 * (8 * q + row) + column);
        }
    machine.clearBuffers();
  }
}

TEST_F(LdmatrixTest, StmatrixIsItsInverse) {
  for (const char *transpose : {"", ".trans"}) {
    std::vector<uint32_t> out(32 * 4);
    uint64_t p = add(out);
    std::string t = transpose;
    LaunchReport report = launch(
        kernel(fill + "ldmatrix.sync.aligned.m8n8.x4" + t +
                   ".shared.b16 {%r40, %r41, %r42, %r43}, [%r2];\n"
                   "mov.u32 %r1, other; mad.lo.u32 %r2, %r0, 16, %r1;\n"
                   "stmatrix.sync.aligned.m8n8.x4" +
                   t +
                   ".shared.b16 [%r2], {%r40, %r41, %r42, %r43};\n"
                   "bar.sync 0; ld.shared.v4.u32 {%r40, %r41, %r42, %r43}, "
                   "[%r2];\nmul.wide.u32 %d6, %r0, 16; add.s64 %d6, %d0, %d6;\n"
                   "st.global.v4.u32 [%d6], {%r40, %r41, %r42, %r43};",
               std::string(module) + ".shared .align 16 .b8 other[512];"),
        {p});
    expectClean(report);
    for (uint32_t r = 0; r < 32; ++r)
      for (uint32_t n = 0; n < 8; ++n)
        ASSERT_EQ(out[r * 4 + n / 2] >> (16 * (n % 2)) & 0xffff, 256 * r + n);
    // Rows 48 bytes apart: 8 rows touch all 32 banks once.
    EXPECT_EQ(report.counters.ldmatrix.wavefronts,
              report.counters.ldmatrix.ideal);
    EXPECT_EQ(report.counters.ldmatrix.ideal, 4u);
    machine.clearBuffers();
  }
}

TEST_F(LdmatrixTest, BankConflictsAreCounted) {
  // Rows 128 bytes apart: the 8 rows of a matrix share 4 banks.
  std::vector<uint32_t> out(32);
  uint64_t p = add(out);
  LaunchReport report = launch(
      kernel("mov.u32 %r1, s; mad.lo.u32 %r2, %r0, 128, %r1; mov.u32 %r3, 1;\n"
             "st.shared.v4.u32 [%r2], {%r3, %r3, %r3, %r3}; bar.sync 0;\n"
             "ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%r40, %r41, %r42, "
             "%r43}, [%r2]; st.global.u32 [%d3], %r40;",
             ".shared .align 16 .b8 s[4096];"),
      {p});
  expectClean(report);
  EXPECT_EQ(report.counters.ldmatrix.ideal, 4u);
  EXPECT_EQ(report.counters.ldmatrix.wavefronts, 32u);
  EXPECT_EQ(report.counters.globalStore.requests, 1u);
  EXPECT_EQ(report.counters.globalStore.sectors, 4u);
  EXPECT_EQ(report.counters.globalStore.bytes, 128u);
  EXPECT_EQ(report.counters.byClass[size_t(InstrClass::Ldmatrix)], 1u);
}

} // namespace
