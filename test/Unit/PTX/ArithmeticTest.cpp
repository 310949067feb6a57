//===- ArithmeticTest.cpp - Integer and float ops, known answers ----------===//

#include "PTXTest.h"

#include <cmath>
#include <limits>

using namespace kvcache::ptx;

namespace {

using ArithmeticTest = PTXTest;
constexpr float inf = std::numeric_limits<float>::infinity();
const float nan = std::numeric_limits<float>::quiet_NaN();

TEST_F(ArithmeticTest, ShiftsClampAtTheWidth) {
  using V = std::vector<uint32_t>;
  V x(4, 0x80000001), n{1, 31, 32, 200};
  EXPECT_EQ(each("shl.b32 %r4, %r1, %r2;", x, n), (V{2, 0x80000000, 0, 0}));
  EXPECT_EQ(each("shr.u32 %r4, %r1, %r2;", x, n), (V{0x40000000, 1, 0, 0}));
  EXPECT_EQ(each("shr.s32 %r4, %r1, %r2;", x, n),
            (V{0xc0000000, 0xffffffff, 0xffffffff, 0xffffffff}));
  EXPECT_EQ(wide("cvt.u32.u64 %r9, %d12; shl.b64 %d14, %d11, %r9;", 1, 64), 0u);
  EXPECT_EQ(
      wide("cvt.u32.u64 %r9, %d12; shr.s64 %d14, %d11, %r9;", 1ull << 63, 99),
      ~0ull);
}

TEST_F(ArithmeticTest, FunnelShifts) {
  const std::string l = "shf.l.wrap.b32 %r4, %r1, %r2, %r3;";
  EXPECT_EQ(one(l, 0x80000000, 0x1, 4), 0x18u);
  EXPECT_EQ(one(l, 0x80000000, 0x1, 36), 0x18u);
  EXPECT_EQ(one("shf.l.clamp.b32 %r4, %r1, %r2, %r3;", 7, 9, 36), 7u);
  EXPECT_EQ(one("shf.r.clamp.b32 %r4, %r1, %r2, %r3;", 7, 9, 36), 9u);
  EXPECT_EQ(one("shf.r.wrap.b32 %r4, %r1, %r1, 1;", 3), 0x80000001u);
}

TEST_F(ArithmeticTest, BitFields) {
  EXPECT_EQ(one("bfe.u32 %r4, %r1, 4, 8;", 0x12345678), 0x67u);
  EXPECT_EQ(one("bfe.s32 %r4, %r1, 28, 4;", 0x90000000), 0xfffffff9u);
  EXPECT_EQ(one("bfe.s32 %r4, %r1, 40, 4;", 0x90000000), 0xffffffffu);
  EXPECT_EQ(one("bfe.u32 %r4, %r1, 30, 10;", 0xc0000000), 3u);
  EXPECT_EQ(one("bfe.u32 %r4, %r1, 3, 0;", ~0u), 0u);
  EXPECT_EQ(one("bfi.b32 %r4, %r1, %r2, 8, 4;", 0xabcd, 0), 0xd00u);
  EXPECT_EQ(one("bfi.b32 %r4, %r1, %r2, 8, 0;", 0xabcd, 5), 5u);
  EXPECT_EQ(one("popc.b32 %r4, %r1;", 0xf0f0), 8u);
  EXPECT_EQ(one("clz.b32 %r4, %r1;", 0), 32u);
  EXPECT_EQ(one("brev.b32 %r4, %r1;", 1), 0x80000000u);
  EXPECT_EQ(one("bfind.u32 %r4, %r1;", 0x00800000), 23u);
  EXPECT_EQ(one("bfind.u32 %r4, %r1;", 0), 0xffffffffu);
  EXPECT_EQ(one("bfind.s32 %r4, %r1;", 0xffffff00), 7u);
  EXPECT_EQ(one("bfind.shiftamt.u32 %r4, %r1;", 1), 31u);
}

TEST_F(ArithmeticTest, Permutations) {
  const uint32_t a = 0x33221180, b = 0x77665544;
  EXPECT_EQ(one("prmt.b32 %r4, %r1, %r2, 0x7531;", a, b), 0x77553311u);
  EXPECT_EQ(one("prmt.b32 %r4, %r1, %r2, %r3;", a, b, 0x7531), 0x77553311u);
  // Bit 3 of a selector replicates the sign.
  EXPECT_EQ(one("prmt.b32 %r4, %r1, %r2, %r3;", a, b, 0x9810), 0x00ff1180u);
  EXPECT_EQ(one("prmt.b32.f4e %r4, %r1, %r2, %r3;", a, b, 1), 0x44332211u);
  EXPECT_EQ(one("prmt.b32.b4e %r4, %r1, %r2, %r3;", a, b, 1), 0x66778011u);
  EXPECT_EQ(one("prmt.b32.rc8 %r4, %r1, %r2, %r3;", a, b, 1), 0x11111111u);
  EXPECT_EQ(one("prmt.b32.rc16 %r4, %r1, %r2, %r3;", a, b, 1), 0x33223322u);
}

TEST_F(ArithmeticTest, Lop3FollowsItsTable) {
  const uint32_t a = 0xf0f0f0f0, b = 0xcccccccc, c = 0xaaaaaaaa;
  // With these inputs each byte of the result is the table.
  for (int table : {0x00, 0x01, 0x80, 0x96, 0xe4, 0xca, 0xff})
    EXPECT_EQ(one("lop3.b32 %r4, %r1, %r2, %r3, " + std::to_string(table) + ";",
                  a, b, c),
              uint32_t(table) * 0x01010101u)
        << table;
}

TEST_F(ArithmeticTest, Multiplication) {
  EXPECT_EQ(one("mul.hi.u32 %r4, %r1, %r2;", ~0u, ~0u), 0xfffffffeu);
  EXPECT_EQ(one("mul.hi.s32 %r4, %r1, %r2;", ~0u, ~0u), 0u);
  EXPECT_EQ(one("mul.lo.u32 %r4, %r1, %r2;", 0x10001, 0x10001), 0x20001u);
  EXPECT_EQ(one("mad.lo.s32 %r4, %r1, %r2, %r3;", 7, uint32_t(-3), 1),
            uint32_t(-20));
  EXPECT_EQ(one("mad.hi.u32 %r4, %r1, %r2, %r3;", ~0u, ~0u, 5), 3u);
  EXPECT_EQ(wide("cvt.u32.u64 %r8, %d11; cvt.u32.u64 %r9, %d12;"
                 "mad.wide.s32 %d14, %r8, %r9, %d13;",
                 0xffffffff, 5, 2),
            uint64_t(-3));
  EXPECT_EQ(wide("mul.hi.u64 %d14, %d11, %d12;", ~0ull, 16), 15u);
  EXPECT_EQ(one("sad.u32 %r4, %r1, %r2, %r3;", 3, 10, 100), 107u);
  EXPECT_EQ(one("dp4a.s32.s32 %r4, %r1, %r2, %r3;", 0xff020304, 0x01010101, 10),
            18u);
  EXPECT_EQ(one("dp4a.u32.u32 %r4, %r1, %r2, %r3;", 0xff020304, 0x01010101, 0),
            264u);
}

TEST_F(ArithmeticTest, DivisionCorners) {
  EXPECT_EQ(one("div.u32 %r4, %r1, %r2;", 17, 5), 3u);
  EXPECT_EQ(one("div.s32 %r4, %r1, %r2;", uint32_t(-17), 5), uint32_t(-3));
  EXPECT_EQ(one("rem.s32 %r4, %r1, %r2;", uint32_t(-17), 5), uint32_t(-2));
  EXPECT_EQ(one("div.s32 %r4, %r1, %r2;", 0x80000000, ~0u), 0x80000000u);
  EXPECT_EQ(one("rem.s32 %r4, %r1, %r2;", 0x80000000, ~0u), 0u);
  EXPECT_EQ(one("abs.s32 %r4, %r1;", uint32_t(-9)), 9u);
}

TEST_F(ArithmeticTest, SixteenBitRegisters) {
  EXPECT_EQ(one("mov.b32 {%h1, %h2}, %r1; add.s16 %h3, %h1, %h2;"
                "cvt.u32.u16 %r4, %h3;",
                0xffff0002),
            1u);
  EXPECT_EQ(
      one("mov.b32 {%h1, %h2}, %r1; mul.wide.s16 %r4, %h1, %h2;", 0xffff0002),
      uint32_t(-2));
  EXPECT_EQ(
      one("mov.b32 {%h1, %h2}, %r1; mov.b32 %r4, {%h2, %h1};", 0x12345678),
      0x56781234u);
}

TEST_F(ArithmeticTest, SelectAndCompare) {
  EXPECT_EQ(one("slct.b32.s32 %r4, %r1, %r2, %r3;", 1, 2, 0), 1u);
  EXPECT_EQ(one("slct.b32.s32 %r4, %r1, %r2, %r3;", 1, 2, 0x80000000), 2u);
  auto setp = [&](const std::string &cmp, float a, float b) {
    return one("setp." + cmp + ".f32 %p1, %r1, %r2; selp.b32 %r4, 1, 0, %p1;",
               bitsOf(a), bitsOf(b));
  };
  EXPECT_EQ(setp("lt", 1, 2), 1u);
  EXPECT_EQ(setp("lt", nan, 2), 0u);
  EXPECT_EQ(setp("ltu", nan, 2), 1u);
  EXPECT_EQ(setp("ne", nan, nan), 0u);
  EXPECT_EQ(setp("neu", nan, nan), 1u);
  EXPECT_EQ(setp("num", 1, nan), 0u);
  EXPECT_EQ(setp("nan", 1, nan), 1u);
  EXPECT_EQ(setp("eq", 0.f, -0.f), 1u);
  // Combination with a predicate, and the complement in the second result.
  EXPECT_EQ(one("setp.eq.u32 %p1, %r3, 1; setp.lt.and.u32 %p2|%p3, %r1, %r2, "
                "%p1; selp.b32 %r4, 1, 0, %p2; @%p3 or.b32 %r4, %r4, 2;",
                1, 2, 1),
            1u);
  EXPECT_EQ(one("setp.eq.u32 %p1, %r3, 1; setp.lt.and.u32 %p2|%p3, %r1, %r2, "
                "!%p1; selp.b32 %r4, 1, 0, %p2; @%p3 or.b32 %r4, %r4, 2;",
                1, 2, 1),
            0u);
  EXPECT_EQ(one("set.lt.u32.u32 %r4, %r1, %r2;", 1, 2), ~0u);
}

TEST_F(ArithmeticTest, ComparisonsOfHalvesAreNotThoseOfTheirBits) {
  // (-1, 2) and (1, NaN), lower half first; as bits -1 is above 1.
  const uint32_t a = 0x4000bc00, b = 0x7e003c00, bx = 0x4000bf80,
                 by = 0x7fc03f80;
  EXPECT_EQ(one("set.lt.f16x2.f16x2 %r4, %r1, %r2;", a, b), 0x3c00u);
  EXPECT_EQ(one("set.ltu.f16x2.f16x2 %r4, %r1, %r2;", a, b), 0x3c003c00u);
  EXPECT_EQ(one("set.gt.u32.f16x2 %r4, %r2, %r1;", a, b), 0xffffu);
  EXPECT_EQ(one("set.lt.bf16x2.bf16x2 %r4, %r1, %r2;", bx, by), 0x3f80u);
  EXPECT_EQ(one("set.nan.u32.bf16x2 %r4, %r2, %r2;", bx, by), 0xffff0000u);
  EXPECT_EQ(one("set.eq.f16x2.f16x2 %r4, %r1, %r2;", 0x80000000, 0),
            0x3c003c00u);
  EXPECT_EQ(one("mov.b32 {%h1, %h2}, %r1; set.nan.f16.f16 %h3, %h2, %h2;\n"
                "cvt.u32.u16 %r4, %h3;",
                b),
            0x3c00u);
  EXPECT_EQ(one("setp.lt.f16x2 %p1|%p2, %r1, %r2; selp.u32 %r4, 1, 0, %p1;\n"
                "@%p2 or.b32 %r4, %r4, 2;",
                a, b),
            1u);
  EXPECT_EQ(one("setp.eq.u32 %p1, %r1, %r1; set.lt.xor.u32.f32 %r4, %r1, %r2, "
                "%p1;",
                bitsOf(-1), bitsOf(1)),
            0u);
  EXPECT_EQ(one("set.lt.s32.s32 %r4, %r1, %r2;", ~0u, 1), ~0u);
  EXPECT_EQ(one("set.lt.f32.u32 %r4, %r1, %r2;", ~0u, 1), 0u);
  EXPECT_EQ(one("set.eq.ftz.f32.f32 %r4, %r1, %r2;", 1, 0x80000002), bitsOf(1));
  EXPECT_EQ(one("slct.ftz.f32.f32 %r4, %r1, %r2, %r3;", 1, 2, 0x80000001), 1u);
  EXPECT_EQ(one("slct.f32.f32 %r4, %r1, %r2, %r3;", 1, 2, 0x80000001), 2u);
}

TEST_F(ArithmeticTest, PackedIntegersAndRelu) {
  // (-2, 300) and (5, -7), lower half first.
  const uint32_t a = 0x012cfffe, b = 0xfff90005;
  EXPECT_EQ(one("add.u16x2 %r4, %r1, %r2;", a, b), 0x01250003u);
  EXPECT_EQ(one("max.s16x2 %r4, %r1, %r2;", a, b), 0x012c0005u);
  EXPECT_EQ(one("max.u16x2 %r4, %r1, %r2;", a, b), 0xfff9fffeu);
  EXPECT_EQ(one("min.s16x2.relu %r4, %r1, %r2;", a, b), 0u);
  EXPECT_EQ(one("max.s16x2.relu %r4, %r1, %r2;", a, 0), 0x012c0000u);
  EXPECT_EQ(one("min.s32.relu %r4, %r1, %r2;", uint32_t(-4), 9), 0u);
  EXPECT_EQ(one("max.s32.relu %r4, %r1, %r2;", uint32_t(-4), 9), 9u);
}

TEST_F(ArithmeticTest, LiteralsOfF32) {
  EXPECT_EQ(one("mov.f32 %r4, 1.5;", 0), bitsOf(1.5f));
  EXPECT_EQ(one("mov.f32 %r4, -0.1;", 0), bitsOf(-0.1f));
  EXPECT_EQ(one("add.f32 %r4, %r1, 2.5e+3;", bitsOf(1)), bitsOf(2501));
  EXPECT_EQ(one("mov.f32 %r4, 0d3FF8000000000000;", 0), bitsOf(1.5f));
  EXPECT_EQ(one("mov.f32 %r4, 0f3FC00000;", 0), bitsOf(1.5f));
  EXPECT_EQ(wide("mov.f64 %d14, -0.25;", 0), 0xbfd0000000000000ull);
}

TEST_F(ArithmeticTest, FloatRoundingModes) {
  const float tiny = std::ldexp(1.f, -30);
  EXPECT_EQ(oneFloat("add.rn.f32 %r4, %r1, %r2;", 1, tiny), 1.f);
  EXPECT_EQ(oneFloat("add.rp.f32 %r4, %r1, %r2;", 1, tiny),
            std::nextafterf(1.f, 2));
  EXPECT_EQ(oneFloat("add.rm.f32 %r4, %r1, %r2;", -1, -tiny),
            std::nextafterf(-1.f, -2));
  EXPECT_EQ(oneFloat("add.rz.f32 %r4, %r1, %r2;", 1, -tiny),
            std::nextafterf(1.f, 0));
  // (1 + 2^-23)^2 = 1 + 2^-22 + 2^-46.
  const float next = 1 + 0x1p-23f;
  EXPECT_EQ(oneFloat("mul.rz.f32 %r4, %r1, %r2;", next, next), 1 + 0x1p-22f);
  EXPECT_EQ(oneFloat("mul.rp.f32 %r4, %r1, %r2;", next, next),
            1 + 0x1p-22f + 0x1p-23f);
  EXPECT_EQ(oneFloat("add.sat.f32 %r4, %r1, %r2;", 3, 4), 1.f);
  EXPECT_EQ(oneFloat("add.sat.f32 %r4, %r1, %r2;", nan, 4), 0.f);
  EXPECT_EQ(oneFloat("fma.rn.f32 %r4, %r1, %r2, %r3;", 1 + 0x1p-12f,
                     1 + 0x1p-12f, -1),
            0x1p-11f + 0x1p-24f);
  EXPECT_EQ(oneFloat("div.rn.f32 %r4, %r1, %r2;", 1, 3), 1.f / 3.f);
  EXPECT_EQ(oneFloat("sqrt.rn.f32 %r4, %r1;", 2), std::sqrt(2.f));
}

TEST_F(ArithmeticTest, FlushToZero) {
  const float sub = std::ldexp(1.f, -140);
  EXPECT_EQ(one("add.f32 %r4, %r1, %r2;", bitsOf(sub), 0), bitsOf(sub));
  EXPECT_EQ(one("add.ftz.f32 %r4, %r1, %r2;", bitsOf(-sub), bitsOf(-0.f)),
            0x80000000u);
  EXPECT_EQ(oneFloat("mul.ftz.f32 %r4, %r1, %r2;", 0x1p-70f, 0x1p-70f), 0.f);
  EXPECT_EQ(oneFloat("rcp.approx.ftz.f32 %r4, %r1;", sub), inf);
  EXPECT_EQ(oneFloat("ex2.approx.ftz.f32 %r4, %r1;", -130), 0.f);
  EXPECT_EQ(oneFloat("ex2.approx.f32 %r4, %r1;", -130), std::ldexp(1.f, -130));
}

TEST_F(ArithmeticTest, TranscendentalsAreCloseAndKeepSpecials) {
  for (float x : {-12.3f, -0.5f, 0.f, 0.7f, 5.f, 100.f}) {
    float want = float(std::exp2(double(x)));
    EXPECT_NEAR(oneFloat("ex2.approx.f32 %r4, %r1;", x) / want, 1, 3e-7) << x;
  }
  EXPECT_EQ(oneFloat("ex2.approx.f32 %r4, %r1;", -inf), 0.f);
  EXPECT_EQ(oneFloat("ex2.approx.f32 %r4, %r1;", inf), inf);
  EXPECT_TRUE(std::isnan(oneFloat("ex2.approx.f32 %r4, %r1;", nan)));
  EXPECT_EQ(oneFloat("lg2.approx.f32 %r4, %r1;", 8), 3.f);
  EXPECT_EQ(oneFloat("lg2.approx.f32 %r4, %r1;", 0), -inf);
  EXPECT_NEAR(oneFloat("tanh.approx.f32 %r4, %r1;", 0.5), std::tanh(0.5), 1e-6);
}

/// Within 2 ulp of double precision, as lib/PTX/README.md says.
TEST_F(ArithmeticTest, ApproximationsStayWithinTheirBound) {
  std::vector<uint32_t> in;
  for (int n = 0; n < 4096; ++n)
    in.push_back(bitsOf(float(n * 0.029 - 59.7)));
  struct Case {
    const char *op;
    double (*want)(double);
    bool positive;
  };
  const Case cases[] = {
      {"ex2.approx.f32", [](double x) { return std::exp2(x); }, false},
      {"lg2.approx.f32", [](double x) { return std::log2(x); }, true},
      {"rcp.approx.f32", [](double x) { return 1 / x; }, false},
      {"sqrt.approx.f32", [](double x) { return std::sqrt(x); }, true},
      {"rsqrt.approx.f32", [](double x) { return 1 / std::sqrt(x); }, true},
      {"sin.approx.f32", [](double x) { return std::sin(x); }, false},
      {"cos.approx.f32", [](double x) { return std::cos(x); }, false},
      {"tanh.approx.f32", [](double x) { return std::tanh(x); }, false}};
  for (const Case &c : cases) {
    std::vector<uint32_t> got = each(std::string(c.op) + " %r4, %r1;", in);
    for (size_t n = 0; n < in.size(); ++n) {
      double x = double(floatOf(in[n]));
      if (c.positive && x <= 0)
        continue;
      float want = float(c.want(x));
      float ulp = std::nextafterf(std::fabs(want), inf) - std::fabs(want);
      ASSERT_LE(std::fabs(double(floatOf(got[n])) - c.want(x)), 2.0 * ulp)
          << c.op << " " << x;
    }
  }
}

TEST_F(ArithmeticTest, MinMaxAndSigns) {
  EXPECT_EQ(oneFloat("max.f32 %r4, %r1, %r2;", nan, 3), 3.f);
  EXPECT_TRUE(std::isnan(oneFloat("max.NaN.f32 %r4, %r1, %r2;", nan, 3)));
  EXPECT_EQ(one("max.f32 %r4, %r1, %r2;", bitsOf(-0.f), bitsOf(0.f)), 0u);
  EXPECT_EQ(one("min.f32 %r4, %r1, %r2;", bitsOf(0.f), bitsOf(-0.f)),
            0x80000000u);
  EXPECT_EQ(one("min.relu.s32 %r4, %r1, %r2;", 7, 3), 3u);
  EXPECT_EQ(one("min.relu.s32 %r4, %r1, %r2;", 7, uint32_t(-3)), 0u);
  EXPECT_EQ(one("max.relu.s32 %r4, %r1, %r2;", uint32_t(-7), uint32_t(-3)), 0u);
  EXPECT_EQ(one("max.relu.s32 %r4, %r1, %r2;", uint32_t(-7), 3), 3u);
  EXPECT_EQ(one("neg.f32 %r4, %r1;", 0x7fc12345), 0xffc12345u);
  EXPECT_EQ(oneFloat("copysign.f32 %r4, %r1, %r2;", -1, 5), -5.f);
  EXPECT_EQ(one("testp.subnormal.f32 %p1, %r1; selp.u32 %r4, 1, 0, %p1;", 1),
            1u);
  EXPECT_EQ(
      one("testp.infinite.f32 %p1, %r1; selp.u32 %r4, 1, 0, %p1;", bitsOf(inf)),
      1u);
}

TEST_F(ArithmeticTest, HalvesAndBfloats) {
  // (1, 2) + (0.5, -3), lower half first.
  EXPECT_EQ(one("add.rn.f16x2 %r4, %r1, %r2;", 0x40003c00, 0xc2003800),
            0xbc003e00u);
  EXPECT_EQ(one("mul.rn.bf16x2 %r4, %r1, %r2;", 0x40003f80, 0x3f004040),
            0x3f804040u);
  // fma rounds once: (1 + 3 * 2^-10)^2 - 1 = 6 * 2^-10 + 9 * 2^-20.
  EXPECT_EQ(one("fma.rn.f16x2 %r4, %r1, %r2, %r3;", 0x3c033c03, 0x3c033c03,
                0xbc00bc00),
            0x1e021e02u);
  EXPECT_EQ(one("max.f16x2 %r4, %r1, %r2;", 0x7e003c00, 0x40004000),
            0x40004000u);
  EXPECT_EQ(one("max.NaN.f16x2 %r4, %r1, %r2;", 0x7e003c00, 0x40004000),
            0x7fff4000u);
  EXPECT_EQ(one("neg.f16x2 %r4, %r1;", 0x3c00bc00), 0xbc003c00u);
  EXPECT_EQ(one("mov.b32 {%h1, %h2}, %r1; add.f16 %h3, %h1, %h2;"
                "cvt.u32.u16 %r4, %h3;",
                0x7bff7bff),
            0x7c00u); // overflow
}

TEST_F(ArithmeticTest, Doubles) {
  auto bits = [](double x) {
    uint64_t b;
    memcpy(&b, &x, 8);
    return b;
  };
  EXPECT_EQ(
      wide("fma.rn.f64 %d14, %d11, %d12, %d13;", bits(2), bits(3), bits(0.25)),
      bits(6.25));
  EXPECT_EQ(wide("div.rn.f64 %d14, %d11, %d12;", bits(1), bits(3)),
            bits(1.0 / 3));
  EXPECT_EQ(wide("max.f64 %d14, %d11, %d12;", bits(1), bits(3)), bits(3));
}

} // namespace
