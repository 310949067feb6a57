//===- ConvertTest.cpp - cvt, known answers -------------------------------===//

#include "PTXTest.h"

#include <cmath>
#include <limits>

using namespace kvcache::ptx;

namespace {

class ConvertTest : public PTXTest {
protected:
  /// The value of an FP8 code, from the definition of the formats.
  static double fp8(uint32_t code, bool e5m2) {
    int mantissaBits = e5m2 ? 2 : 3, bias = e5m2 ? 15 : 7;
    uint32_t ones = (1u << mantissaBits) - 1;
    int exponent = int(code >> mantissaBits) & (e5m2 ? 31 : 15);
    uint32_t mantissa = code & ones;
    double sign = code & 0x80 ? -1 : 1;
    if (e5m2 && exponent == 31)
      return mantissa ? NAN : sign * INFINITY;
    if (!e5m2 && exponent == 15 && mantissa == 7)
      return NAN;
    if (exponent == 0)
      return sign * std::ldexp(mantissa, 1 - bias - mantissaBits);
    return sign *
           std::ldexp(mantissa + ones + 1.0, exponent - bias - mantissaBits);
  }
  static double half(uint32_t h) {
    int exponent = int(h >> 10) & 31;
    double sign = h & 0x8000 ? -1 : 1, mantissa = h & 1023;
    if (exponent == 31)
      return mantissa != 0 ? NAN : sign * INFINITY;
    return exponent ? sign * std::ldexp(mantissa + 1024, exponent - 25)
                    : sign * std::ldexp(mantissa, -24);
  }
  const char *toE4m3 = "cvt.rn.satfinite.e4m3x2.f32 %h1, %r2, %r1;"
                       "cvt.u32.u16 %r4, %h1;";
  const char *toE5m2 = "cvt.rn.satfinite.e5m2x2.f32 %h1, %r2, %r1;"
                       "cvt.u32.u16 %r4, %h1;";
};

TEST_F(ConvertTest, AllFp8CodesToHalf) {
  for (bool e5m2 : {false, true}) {
    std::vector<uint32_t> codes(256);
    for (uint32_t n = 0; n < 256; ++n)
      codes[n] = n | (255 - n) << 8;
    std::vector<uint32_t> halves =
        each(std::string("cvt.u16.u32 %h1, %r1; cvt.rn.f16x2.") +
                 (e5m2 ? "e5m2x2" : "e4m3x2") + " %r4, %h1;",
             codes);
    for (uint32_t n = 0; n < 256; ++n) {
      double want[] = {fp8(n, e5m2), fp8(255 - n, e5m2)};
      for (int h = 0; h < 2; ++h) {
        double got = half(halves[n] >> (16 * h) & 0xffff);
        if (std::isnan(want[h]))
          EXPECT_TRUE(std::isnan(got)) << n;
        else
          EXPECT_EQ(got, want[h]) << n << " e5m2 " << e5m2;
        EXPECT_TRUE(std::isnan(want[h]) ||
                    std::signbit(got) == std::signbit(want[h]))
            << n;
      }
    }
  }
}

TEST_F(ConvertTest, Fp8RoundsToNearestEven) {
  for (bool e5m2 : {false, true}) {
    const uint32_t largest = e5m2 ? 0x7b : 0x7e;
    // Each code's value, the midpoint to the next (a tie) and just around it.
    std::vector<uint32_t> in, want;
    for (uint32_t code = 0; code < largest; ++code) {
      double here = fp8(code, e5m2), next = fp8(code + 1, e5m2);
      float middle = float((here + next) / 2);
      uint32_t even = code & 1 ? code + 1 : code;
      for (uint32_t sign : {0u, 0x80u}) {
        float s = sign ? -1.f : 1.f;
        in.insert(in.end(), {bitsOf(s * float(here)), bitsOf(s * middle),
                             bitsOf(s * std::nextafterf(middle, 0)),
                             bitsOf(s * std::nextafterf(middle, 1e9f))});
        want.insert(want.end(),
                    {sign | code, sign | even, sign | code, sign | (code + 1)});
      }
    }
    std::vector<uint32_t> got = each(e5m2 ? toE5m2 : toE4m3, in);
    for (size_t n = 0; n < in.size(); ++n)
      EXPECT_EQ(got[n], want[n]) << floatOf(in[n]) << " e5m2 " << e5m2;
  }
}

TEST_F(ConvertTest, Fp8SaturatesAndKeepsNaN) {
  const float inf = INFINITY;
  auto e4m3 = [&](float x) { return one(toE4m3, bitsOf(x)); };
  auto e5m2 = [&](float x) { return one(toE5m2, bitsOf(x)); };
  EXPECT_EQ(e4m3(448), 0x7eu);
  EXPECT_EQ(e4m3(500), 0x7eu);
  EXPECT_EQ(e4m3(inf), 0x7eu);
  EXPECT_EQ(e4m3(-inf), 0xfeu);
  EXPECT_EQ(e4m3(NAN), 0x7fu);
  EXPECT_EQ(e4m3(-0.f), 0x80u);
  EXPECT_EQ(e4m3(std::ldexp(1.f, -10)), 0u); // a tie with the even zero
  EXPECT_EQ(e5m2(57344), 0x7bu);
  EXPECT_EQ(e5m2(1e9f), 0x7bu);
  EXPECT_EQ(e5m2(-inf), 0xfbu);
  EXPECT_EQ(e5m2(NAN), 0x7fu);
  // The first operand is the upper byte.
  EXPECT_EQ(one("cvt.rn.satfinite.e4m3x2.f32 %h1, %r1, %r2;"
                "cvt.u32.u16 %r4, %h1;",
                bitsOf(1), bitsOf(2)),
            0x3840u);
  EXPECT_EQ(one("cvt.rn.satfinite.e4m3x2.f16x2 %h1, %r1;"
                "cvt.u32.u16 %r4, %h1;",
                0x3c004000),
            0x3840u);
}

TEST_F(ConvertTest, FloatToHalfAndBfloat) {
  auto f16 = [&](const std::string &rounding, float x) {
    return one("cvt." + rounding + ".f16.f32 %h1, %r1; cvt.u32.u16 %r4, %h1;",
               bitsOf(x));
  };
  EXPECT_EQ(f16("rn", 1 + 0x1p-11f), 0x3c00u); // tie to even
  EXPECT_EQ(f16("rn", 1 + 3 * 0x1p-11f), 0x3c02u);
  EXPECT_EQ(f16("rz", 1 + 3 * 0x1p-11f), 0x3c01u);
  EXPECT_EQ(f16("rn", 65519), 0x7bffu);
  EXPECT_EQ(f16("rn", 65520), 0x7c00u);
  EXPECT_EQ(f16("rz", 1e6f), 0x7bffu);
  EXPECT_EQ(f16("rn", 0x1p-25f), 0u);
  EXPECT_EQ(f16("rn", 1.5f * 0x1p-25f), 1u);
  EXPECT_EQ(f16("rn", NAN), 0x7fffu);
  auto bf16 = [&](const std::string &rounding, float x) {
    return one("cvt." + rounding + ".bf16.f32 %h1, %r1; cvt.u32.u16 %r4, %h1;",
               bitsOf(x));
  };
  EXPECT_EQ(bf16("rn", 1 + 0x1p-8f), 0x3f80u);
  EXPECT_EQ(bf16("rn", 1 + 3 * 0x1p-8f), 0x3f82u);
  EXPECT_EQ(bf16("rz", 1 + 3 * 0x1p-8f), 0x3f81u);
  EXPECT_EQ(bf16("rn", std::numeric_limits<float>::max()), 0x7f80u);
  EXPECT_EQ(bf16("rn", NAN), 0x7fffu);
  // The first operand is the upper half.
  EXPECT_EQ(one("cvt.rn.f16x2.f32 %r4, %r1, %r2;", bitsOf(1), bitsOf(2)),
            0x3c004000u);
  EXPECT_EQ(one("cvt.rn.bf16x2.f32 %r4, %r1, %r2;", bitsOf(1), bitsOf(2)),
            0x3f804000u);
  EXPECT_EQ(one("cvt.rn.relu.bf16x2.f32 %r4, %r1, %r2;", bitsOf(-1), bitsOf(2)),
            0x4000u);
  EXPECT_EQ(one("mov.b32 {%h1, %h2}, %r1; cvt.f32.f16 %r4, %h2;", 0x3c000000),
            bitsOf(1));
  EXPECT_EQ(one("mov.b32 {%h1, %h2}, %r1; cvt.f32.bf16 %r4, %h2;", 0x3f800000),
            bitsOf(1));
}

TEST_F(ConvertTest, FloatToInteger) {
  auto cvt = [&](const std::string &form, float x) {
    return one("cvt." + form + " %r4, %r1;", bitsOf(x));
  };
  EXPECT_EQ(cvt("rni.s32.f32", 2.5f), 2u);
  EXPECT_EQ(cvt("rni.s32.f32", 3.5f), 4u);
  EXPECT_EQ(cvt("rzi.s32.f32", -2.9f), uint32_t(-2));
  EXPECT_EQ(cvt("rmi.s32.f32", -2.1f), uint32_t(-3));
  EXPECT_EQ(cvt("rpi.s32.f32", 2.1f), 3u);
  EXPECT_EQ(cvt("rzi.s32.f32", 3e9f), 0x7fffffffu);
  EXPECT_EQ(cvt("rzi.s32.f32", -3e9f), 0x80000000u);
  EXPECT_EQ(cvt("rzi.u32.f32", -1), 0u);
  EXPECT_EQ(cvt("rzi.u32.f32", 5e9f), ~0u);
  EXPECT_EQ(cvt("rzi.s32.f32", NAN), 0u);
  EXPECT_EQ(cvt("rni.f32.f32", 2.5f), bitsOf(2));
  EXPECT_EQ(cvt("rpi.ftz.f32.f32", 0.25f), bitsOf(1));
}

TEST_F(ConvertTest, IntegerToFloat) {
  EXPECT_EQ(one("cvt.rn.f32.u32 %r4, %r1;", 0x01000001), bitsOf(0x1p24f));
  EXPECT_EQ(one("cvt.rp.f32.u32 %r4, %r1;", 0x01000001), bitsOf(0x1p24f + 2));
  EXPECT_EQ(one("cvt.rn.f32.s32 %r4, %r1;", uint32_t(-7)), bitsOf(-7));
  // 2^62 + 2^38 + 1 is just above a tie of f32.
  EXPECT_EQ(wide("cvt.rn.f32.u64 %r9, %d11; cvt.u64.u32 %d14, %r9;",
                 (1ull << 62) + (1ull << 38) + 1),
            bitsOf(0x1p62f + 0x1p39f));
  EXPECT_EQ(wide("cvt.rz.f64.u64 %d14, %d11;", (1ull << 60) + 1),
            0x43b0000000000000ull);
  EXPECT_EQ(wide("cvt.rp.f64.u64 %d14, %d11;", (1ull << 60) + 1),
            0x43b0000000000001ull);
}

TEST_F(ConvertTest, Integers) {
  EXPECT_EQ(one("cvt.s32.s8 %r4, %r1;", 0x1f0), 0xfffffff0u);
  EXPECT_EQ(one("cvt.u32.u8 %r4, %r1;", 0x1f0), 0xf0u);
  EXPECT_EQ(wide("cvt.u32.u64 %r9, %d11; cvt.s64.s32 %d14, %r9;", 0x80000000),
            0xffffffff80000000ull);
  EXPECT_EQ(one("cvt.sat.u8.s32 %r4, %r1;", 300), 255u);
  EXPECT_EQ(one("cvt.sat.u8.s32 %r4, %r1;", uint32_t(-5)), 0u);
  EXPECT_EQ(one("cvt.sat.s8.s32 %r4, %r1;", uint32_t(-500)), 0xffffff80u);
  EXPECT_EQ(one("cvt.sat.f32.f32 %r4, %r1;", bitsOf(1.5f)), bitsOf(1));
}

TEST_F(ConvertTest, SaturationToFiniteAndRelu) {
  const uint32_t inf = 0x7f800000, minus = 0x80000000, nan = 0x7fc00001;
  const uint32_t big = bitsOf(1e9f), neg = bitsOf(-3);
  auto tf32 = [&](const std::string &how, uint32_t x) {
    return one("cvt." + how + ".tf32.f32 %r4, %r1;", x);
  };
  EXPECT_EQ(tf32("rna.satfinite", inf), 0x7f7fe000u);
  EXPECT_EQ(tf32("rna.satfinite", 0x7f7fffff | minus), 0xff7fe000u);
  EXPECT_EQ(tf32("rna", 0x7f7fffff), inf);
  EXPECT_EQ(tf32("rn.satfinite", nan), 0x7fffffffu);
  EXPECT_EQ(tf32("rn.relu", neg), 0u);
  EXPECT_EQ(tf32("rz", 0x3f803fff), 0x3f802000u);
  auto scalar = [&](const std::string &how, uint32_t x) {
    return one("cvt." + how + ".f32 %h1, %r1; cvt.u32.u16 %r4, %h1;", x);
  };
  EXPECT_EQ(scalar("rn.satfinite.f16", big), 0x7bffu);
  EXPECT_EQ(scalar("rn.satfinite.f16", inf | minus), 0xfbffu);
  EXPECT_EQ(scalar("rn.satfinite.bf16", inf), 0x7f7fu);
  EXPECT_EQ(scalar("rn.satfinite.bf16", nan), 0x7fffu);
  EXPECT_EQ(one("cvt.rn.satfinite.f16x2.f32 %r4, %r1, %r2;", big, inf | minus),
            0x7bfffbffu);
  EXPECT_EQ(one("cvt.rn.relu.satfinite.bf16x2.f32 %r4, %r1, %r2;", inf, neg),
            0x7f7f0000u);
  // -1, NaN and 1, -0.5.
  EXPECT_EQ(
      one("cvt.u16.u32 %h1, %r1; cvt.rn.relu.f16x2.e4m3x2 %r4, %h1;", 0xb8ff),
      0x00007fffu);
  EXPECT_EQ(
      one("cvt.u16.u32 %h1, %r1; cvt.rn.relu.f16x2.e5m2x2 %r4, %h1;", 0x3cb8),
      0x3c000000u);
}

TEST_F(ConvertTest, Tf32RoundsTiesAway) {
  EXPECT_EQ(one("cvt.rna.tf32.f32 %r4, %r1;", 0x3f801000), 0x3f802000u);
  EXPECT_EQ(one("cvt.rn.tf32.f32 %r4, %r1;", 0x3f801000), 0x3f800000u);
}

// Of cvt, ld and st, operands may be wider than their types (PTX ISA, "Operand
// Size Exceeding Instruction-Type Size"): sources give their low bits, results
// are extended to the register.
TEST_F(ConvertTest, RegistersMayBeWiderThanTypes) {
  const std::vector<uint32_t> inputs = {0, 1, 0x7f, 0x80, 0x8081, 0xfffe7fffu};
  // %d10: other bits above each type. The result is folded into %r4.
  const std::string before =
      "cvt.u64.u32 %d10, %r1; mov.b64 %d11, 0xa5a5a5a500000000;"
      "or.b64 %d10, %d10, %d11; cvt.u16.u64 %h1, %d10;";
  const std::string after =
      "shr.u64 %d13, %d12, 32; cvt.u32.u64 %r5, %d12; cvt.u32.u64 %r6, %d13;"
      "mad.lo.u32 %r4, %r6, 77, %r5;";
  auto fold = [](int64_t x) {
    return uint32_t(uint64_t(x) >> 32) * 77 + uint32_t(x);
  };
  struct Case {
    const char *code;
    int64_t (*want)(uint32_t);
  };
  const Case cases[] = {
      {"cvt.s64.s8 %d12, %d10;", [](uint32_t x) { return int64_t(int8_t(x)); }},
      {"cvt.u64.u8 %d12, %d10;",
       [](uint32_t x) { return int64_t(uint8_t(x)); }},
      {"cvt.s64.s16 %d12, %d10;",
       [](uint32_t x) { return int64_t(int16_t(x)); }},
      {"cvt.s64.s32 %d12, %d10;",
       [](uint32_t x) { return int64_t(int32_t(x)); }},
      {"cvt.u64.u32 %d12, %d10;", [](uint32_t x) { return int64_t(x); }},
      {"cvt.s32.s8 %d12, %h1;", [](uint32_t x) { return int64_t(int8_t(x)); }},
      {"cvt.u32.u64 %d12, %d10;", [](uint32_t x) { return int64_t(x); }},
      {"cvt.s32.s64 %d12, %d10;",
       [](uint32_t x) { return int64_t(int32_t(x)); }},
      {"cvt.s16.s32 %d12, %d10;",
       [](uint32_t x) { return int64_t(int16_t(x)); }},
      {"cvt.s8.s32 %d12, %r1;", [](uint32_t x) { return int64_t(int8_t(x)); }},
      {"st.global.u8 [%d4], %d10; ld.global.s8 %d12, [%d4];",
       [](uint32_t x) { return int64_t(int8_t(x)); }},
      {"st.global.b16 [%d4], %d10; ld.global.u16 %d12, [%d4];",
       [](uint32_t x) { return int64_t(uint16_t(x)); }},
      {"st.global.u32 [%d4], %d10; ld.global.s32 %d12, [%d4];",
       [](uint32_t x) { return int64_t(int32_t(x)); }},
  };
  for (const Case &c : cases) {
    std::vector<uint32_t> found = each(before + c.code + after, inputs);
    for (size_t n = 0; n < inputs.size(); ++n)
      EXPECT_EQ(found[n], fold(c.want(inputs[n]))) << c.code << inputs[n];
  }
}

} // namespace
