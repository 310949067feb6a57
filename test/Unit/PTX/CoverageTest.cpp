//===- CoverageTest.cpp - Carries, saturation, calls, wide vectors --------===//
//
// Results against plain C++ on wider types.
//
//===----------------------------------------------------------------------===//

#include "PTXTest.h"

#include <algorithm>
#include <random>

using namespace kvcache::ptx;

namespace {

class CoverageTest : public PTXTest {
protected:
  std::mt19937_64 random{11};
  using Wide = unsigned __int128;

  /// 64-bit values with runs of ones and zeros, which carry far.
  uint64_t draw() {
    uint64_t x = random(), y = random();
    switch (random() % 4) {
    case 0:
      return x;
    case 1:
      return ~0ull << (y % 64);
    case 2:
      return ~0ull >> (y % 64);
    default:
      return x & y;
    }
  }
};

TEST_F(CoverageTest, CarryChains) {
  // 64 bits out of two 32-bit words, and back.
  const std::string split =
      "{ .reg .b32 %x<9>; mov.b64 {%x1, %x2}, %d11; mov.b64 {%x3, %x4}, %d12;\n"
      "mov.b64 {%x5, %x6}, %d13;\n";
  const std::string join = "mov.b64 %d14, {%x7, %x8}; }";
  for (int n = 0; n < 60; ++n) {
    uint64_t a = draw(), b = draw(), c = draw();
    ASSERT_EQ(
        wide(split + "add.cc.u32 %x7, %x1, %x3; addc.u32 %x8, %x2, %x4;" + join,
             a, b),
        a + b);
    ASSERT_EQ(
        wide(split + "sub.cc.s32 %x7, %x1, %x3; subc.s32 %x8, %x2, %x4;" + join,
             a, b),
        a - b);
    // The carry out of 64 bits: the high half of a 128-bit sum or difference.
    uint64_t carry = uint64_t((Wide(a) + b) >> 64);
    ASSERT_EQ(wide("add.cc.u64 %d14, %d11, %d12; addc.u64 %d14, 0, 0;", a, b),
              carry);
    ASSERT_EQ(wide("sub.cc.u64 %d14, %d11, %d12; subc.u64 %d14, 0, 0;", a, b),
              uint64_t((Wide(a) - b) >> 64));
    ASSERT_EQ(wide("add.cc.u64 %d14, %d11, %d12; addc.cc.u64 %d14, %d13, "
                   "%d11; addc.u64 %d14, %d12, 0;",
                   a, b, c),
              b + uint64_t((Wide(c) + a + carry) >> 64));
    // The low 64 bits of a 64x64-bit product plus 64 bits, by 32-bit words.
    ASSERT_EQ(wide(split +
                       "mad.lo.cc.u32 %x7, %x1, %x3, %x5;\n"
                       "madc.hi.u32 %x8, %x1, %x3, %x6;\n"
                       "mad.lo.u32 %x8, %x1, %x4, %x8;\n"
                       "mad.lo.u32 %x8, %x2, %x3, %x8;" +
                       join,
                   a, b, c),
              a * b + c);
    // The upper 64 bits of the same, with 64-bit registers.
    ASSERT_EQ(wide("mad.lo.cc.u64 %d14, %d11, %d12, %d13;\n"
                   "madc.hi.u64 %d14, %d11, %d12, 0;",
                   a, b, c),
              uint64_t((Wide(a) * b + c) >> 64));
  }
  // Lanes that do not execute an instruction keep their carry.
  EXPECT_EQ(one("setp.eq.u32 %p1, %r1, 0; add.cc.u32 %r5, -1, 1;\n"
                "@%p1 add.cc.u32 %r5, 0, 0; addc.u32 %r4, 5, 0;",
                1),
            6u);
}

TEST_F(CoverageTest, SaturatingAdds) {
  const uint32_t values[] = {0,          1,          0x7fffffff, 0x7ffffffe,
                             0x80000000, 0x80000001, 0xffffffff, 12345};
  auto clamp = [](int64_t x) {
    return uint32_t(std::clamp<int64_t>(x, INT32_MIN, INT32_MAX));
  };
  std::vector<uint32_t> a, b;
  for (uint32_t x : values)
    for (uint32_t y : values) {
      a.push_back(x);
      b.push_back(y);
    }
  auto sums = each("add.sat.s32 %r4, %r1, %r2;", a, b);
  auto differences = each("sub.sat.s32 %r4, %r1, %r2;", a, b);
  auto products = each("mad.hi.sat.s32 %r4, %r1, %r2, %r1;", a, b);
  for (size_t n = 0; n < a.size(); ++n) {
    int64_t x = int32_t(a[n]), y = int32_t(b[n]);
    EXPECT_EQ(sums[n], clamp(x + y));
    EXPECT_EQ(differences[n], clamp(x - y));
    EXPECT_EQ(products[n], clamp((x * y >> 32) + x));
  }
}

TEST_F(CoverageTest, SmallProducts) {
  std::vector<uint32_t> a(64), b(64), c(64);
  for (auto *v : {&a, &b, &c})
    for (uint32_t &x : *v)
      x = uint32_t(draw());
  auto check = [&](const std::string &text, auto want) {
    auto got = each(text, a, b, c);
    for (size_t n = 0; n < a.size(); ++n)
      ASSERT_EQ(got[n], uint32_t(want(a[n], b[n], c[n]))) << text << " " << n;
  };
  auto s24 = [](uint32_t x) { return int64_t(int32_t(x << 8) >> 8); };
  auto u24 = [](uint32_t x) { return uint64_t(x & 0xffffff); };
  using W = uint32_t;
  check("mul24.lo.s32 %r4, %r1, %r2;",
        [&](W x, W y, W) { return s24(x) * s24(y); });
  check("mul24.hi.s32 %r4, %r1, %r2;",
        [&](W x, W y, W) { return s24(x) * s24(y) >> 16; });
  check("mul24.hi.u32 %r4, %r1, %r2;",
        [&](W x, W y, W) { return u24(x) * u24(y) >> 16; });
  check("mad24.lo.u32 %r4, %r1, %r2, %r3;",
        [&](W x, W y, W z) { return u24(x) * u24(y) + z; });
  check("dp2a.lo.s32.s32 %r4, %r1, %r2, %r3;", [&](W x, W y, W z) {
    return W(int16_t(x) * int8_t(y) + int16_t(x >> 16) * int8_t(y >> 8)) + z;
  });
  check("dp2a.hi.u32.s32 %r4, %r1, %r2, %r3;", [&](W x, W y, W z) {
    return W(uint16_t(x) * int8_t(y >> 16)) +
           W(uint16_t(x >> 16) * int8_t(y >> 24)) + z;
  });
  check("cnot.b32 %r4, %r1;", [&](W x, W, W) { return x == 0; });
  EXPECT_EQ(one("cnot.b32 %r4, %r1;", 0), 1u);
}

TEST_F(CoverageTest, VectorsOf256Bits) {
  std::vector<uint32_t> in(256), out(256);
  for (uint32_t n = 0; n < 256; ++n)
    in[n] = n * 77;
  for (bool words : {true, false}) {
    std::fill(out.begin(), out.end(), 0);
    uint64_t pIn = add(in, "in"), pOut = add(out, "out", InitState::NoneValid);
    const std::string list =
        words ? "{%r1,%r2,%r3,%r4,%r5,%r6,%r7,%r8}" : "{%d10,%d11,%d12,%d13}";
    const std::string type = words ? ".v8.b32 " : ".v4.b64 ";
    LaunchReport report =
        launch(kernel("mul.wide.u32 %d6, %r102, 32; add.s64 %d7, %d1, %d6;\n"
                      "add.s64 %d6, %d6, %d0; ld.global" +
                      type + list + ", [%d6];\nst.global" + type + "[%d7], " +
                      list + ";"),
               {pIn, pOut}, 32);
    expectClean(report);
    EXPECT_EQ(out, in);
    EXPECT_EQ(*machine.firstUninitialised(pOut, 1024), 1024u);
    EXPECT_EQ(report.counters.globalLoad.bytes, 1024u);
    EXPECT_EQ(report.counters.globalLoad.sectors, 32u);
    machine.clearBuffers();
    // Aligned to 32 bytes.
    pIn = add(in, "in");
    expectOnly(
        FindingKind::Misaligned,
        launch(kernel("ld.global" + type + list + ", [%d0+16];"), {pIn}));
    machine.clearBuffers();
  }
}

/// A function with an array on its stack that hands its address on.
TEST_F(CoverageTest, CallsWithStack) {
  const std::string functions =
      ".func fill(.param .b64 p, .param .b32 n) {\n"
      ".reg .b64 %a<3>; .reg .b32 %b<3>; .reg .pred %q<2>;\n"
      "ld.param.b64 %a1, [p]; ld.param.b32 %b1, [n]; mov.u32 %b2, 0;\n"
      "Next: st.u32 [%a1], %b1; add.u64 %a1, %a1, 4; add.u32 %b1, %b1, 1;\n"
      "add.u32 %b2, %b2, 1; setp.lt.u32 %q1, %b2, 8; @%q1 bra Next; ret; }\n"
      ".func (.param .b32 r) sum(.param .b32 n) {\n"
      ".local .align 16 .b8 depot[32]; .reg .b64 %a<3>; .reg .b32 %b<4>;\n"
      ".reg .pred %q<3>; ld.param.b32 %b1, [n]; mov.u64 %a1, depot;\n"
      "cvta.local.u64 %a2, %a1;\n"
      "{ .param .b64 x; .param .b32 y; st.param.b64 [x], %a2;\n"
      "st.param.b32 [y], %b1; call.uni fill, (x, y); }\n"
      "mov.u32 %b2, 0; mov.u32 %b3, 0;\n"
      "Add: ld.local.u32 %b1, [%a1]; add.u32 %b2, %b2, %b1;\n"
      "add.u64 %a1, %a1, 4; add.u32 %b3, %b3, 1; setp.lt.u32 %q1, %b3, 8;\n"
      "@%q1 bra Add; setp.gt.u32 %q2, %b2, 300; @%q2 bra Big;\n"
      "st.param.b32 [r], %b2; ret;\nBig: st.param.b32 [r], -1; ret; }\n";
  std::vector<uint32_t> out(64);
  uint64_t p = add(out);
  // Two calls, the second one under a predicate.
  const std::string call = "{ .param .b32 a; .param .b32 r;\n"
                           "st.param.b32 [a], %r0; ";
  const std::string body =
      "mov.u32 %r1, 7; setp.lt.u32 %p1, %r0, 50;\n" + call +
      "call.uni (r), sum, (a); ld.param.b32 %r2, [r]; }\n" + call +
      "@%p1 call (r), sum, (a); @%p1 ld.param.b32 %r1, [r]; }\n"
      "shl.b32 %r1, %r1, 16; xor.b32 %r1, %r1, %r2;\n"
      "st.global.u32 [%d3], %r1;";
  expectClean(launch(kernel(body, functions), {p}, 64));
  for (uint32_t t = 0; t < 64; ++t) {
    uint32_t sum = 8 * t + 28, r = sum > 300 ? ~0u : sum;
    EXPECT_EQ(out[t], (t < 50 ? r : 7) << 16 ^ r) << t;
  }
}

TEST_F(CoverageTest, IndexedBranches) {
  std::vector<uint32_t> out(64);
  uint64_t p = add(out);
  LaunchReport report = launch(
      kernel("T: .branchtargets A, B, C, B;\n"
             "and.b32 %r1, %r0, 3; setp.lt.u32 %p1, %r0, 40;\n"
             "mov.u32 %r2, 99; @%p1 brx.idx %r1, T; bra End;\n"
             "A: mov.u32 %r2, 10; bra End;\nB: mov.u32 %r2, 20; bra End;\n"
             "C: mov.u32 %r2, 30;\nEnd: st.global.u32 [%d3], %r2;"),
      {p}, 64);
  expectClean(report);
  const uint32_t want[] = {10, 20, 30, 20};
  for (uint32_t t = 0; t < 64; ++t)
    EXPECT_EQ(out[t], t < 40 ? want[t & 3] : 99u) << t;
  // Both warps diverge at the table.
  EXPECT_EQ(report.counters.divergentBranches, 2u);
}

} // namespace
