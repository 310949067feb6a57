//===- WarpTest.cpp - Lanes, divergence, atomics, barriers ----------------===//

#include "PTXTest.h"

using namespace kvcache::ptx;

namespace {

class WarpTest : public PTXTest {
protected:
  std::vector<uint32_t> lanes() {
    std::vector<uint32_t> v(32);
    for (uint32_t l = 0; l < 32; ++l)
      v[l] = l;
    return v;
  }
  std::vector<uint32_t> launchTable(const std::string &module,
                                    const std::string &body) {
    std::vector<uint32_t> out(32);
    uint64_t p = add(out);
    expectClean(launch(kernel(body, module), {p}));
    machine.clearBuffers();
    return out;
  }
  template <class F> std::vector<uint32_t> perLane(F f) {
    std::vector<uint32_t> v(32);
    for (int l = 0; l < 32; ++l)
      v[size_t(l)] = uint32_t(f(l));
    return v;
  }
};

TEST_F(WarpTest, StoresTheLowPartOfWideRegisters) {
  EXPECT_EQ(each("cvt.u64.u32 %d20, %r1; add.u64 %d20, %d20, 0x3efb00001;\n"
                 "st.global.b16 [%d4], %d20; st.global.b8 [%d4+2], %d20;\n"
                 "st.global.b8 [%d4+3], 7; ld.global.u32 %r4, [%d4];",
                 lanes()),
            perLane([](int l) { return 0x07010001 + l * 0x10001; }));
}

TEST_F(WarpTest, Shuffles) {
  auto shfl = [&](const std::string &mode, const std::string &rest) {
    return each("shfl.sync." + mode + ".b32 %r4|%p1, %r1, " + rest +
                    ", -1; @!%p1 add.u32 %r4, %r4, 100;",
                lanes());
  };
  EXPECT_EQ(shfl("idx", "5, 31"), perLane([](int) { return 5; }));
  EXPECT_EQ(shfl("bfly", "3, 31"), perLane([](int l) { return l ^ 3; }));
  EXPECT_EQ(shfl("up", "2, 0"),
            perLane([](int l) { return l >= 2 ? l - 2 : l + 100; }));
  EXPECT_EQ(shfl("down", "2, 31"),
            perLane([](int l) { return l < 30 ? l + 2 : l + 100; }));
  // Segments of 8 lanes: c = (32 - 8) << 8 | 7.
  EXPECT_EQ(shfl("down", "1, 6175"),
            perLane([](int l) { return l % 8 < 7 ? l + 1 : l + 100; }));
  EXPECT_EQ(shfl("idx", "1, 6175"),
            perLane([](int l) { return l / 8 * 8 + 1; }));
}

TEST_F(WarpTest, VotesMatchesReductions) {
  EXPECT_EQ(each("setp.lt.u32 %p1, %r1, 4; vote.sync.ballot.b32 %r4, %p1, -1;",
                 lanes()),
            perLane([](int) { return 15; }));
  EXPECT_EQ(each("setp.lt.u32 %p1, %r1, 4; vote.sync.any.pred %p2, %p1, -1;"
                 "vote.sync.all.pred %p3, %p1, -1; vote.sync.uni.pred %p4, "
                 "!%p3, -1; selp.u32 %r4, 1, 0, %p2; @%p3 or.b32 %r4, %r4, 2;"
                 "@%p4 or.b32 %r4, %r4, 4;",
                 lanes()),
            perLane([](int) { return 5; }));
  EXPECT_EQ(
      each("and.b32 %r5, %r1, 1; match.any.sync.b32 %r4, %r5, -1;", lanes()),
      perLane([](int l) { return l & 1 ? 0xaaaaaaaa : 0x55555555; }));
  EXPECT_EQ(each("redux.sync.add.u32 %r4, %r1, -1;", lanes()),
            perLane([](int) { return 496; }));
  EXPECT_EQ(
      each("sub.s32 %r5, %r1, 7; redux.sync.min.s32 %r4, %r5, -1;", lanes()),
      perLane([](int) { return -7; }));
  EXPECT_EQ(each("elect.sync _|%p1, -1; selp.u32 %r4, 1, 0, %p1;", lanes()),
            perLane([](int l) { return l == 0; }));
  EXPECT_EQ(each("mov.u32 %r4, %lanemask_lt;", lanes()),
            perLane([](int l) { return (1u << l) - 1; }));
}

/// Tiles of a warp, as cooperative groups make them: one instruction, and each
/// tile with a member mask of its own.
TEST_F(WarpTest, TilesHaveTheirOwnMemberMasks) {
  const std::string tile = "and.b32 %r5, %r1, 24; shl.b32 %r6, 255, %r5;\n"
                           "setp.ge.u32 %p1, %r1, 11;\n";
  EXPECT_EQ(each(tile + "shfl.sync.idx.b32 %r4, %r1, 3, 6175, %r6;", lanes()),
            perLane([](int l) { return l / 8 * 8 + 3; }));
  EXPECT_EQ(each(tile + "vote.sync.ballot.b32 %r4, %p1, %r6;", lanes()),
            perLane([](int l) {
              return l < 8 ? 0 : l < 16 ? 0xf800 : 0xffu << (l & 24);
            }));
  EXPECT_EQ(each(tile + "vote.sync.all.pred %p2, %p1, %r6;\n"
                        "selp.u32 %r4, 1, 0, %p2;",
                 lanes()),
            perLane([](int l) { return l >= 16; }));
  EXPECT_EQ(each(tile + "redux.sync.add.u32 %r4, %r1, %r6;", lanes()),
            perLane([](int l) { return 28 + l / 8 * 64; }));
  // The destination may be the register of the masks.
  EXPECT_EQ(
      each(tile + "match.any.sync.b32 %r6, 7, %r6; mov.u32 %r4, %r6;", lanes()),
      perLane([](int l) { return 0xffu << (l & 24); }));
  EXPECT_EQ(each(tile + "bar.warp.sync %r6; mov.u32 %r4, 1;", lanes()),
            perLane([](int) { return 1; }));
  // A lane outside of its own mask, and a lane of the mask that stays away.
  std::vector<uint32_t> out(32);
  uint64_t p = add(out);
  const std::string foreign = "and.b32 %r5, %r0, 24; shl.b32 %r6, 255, %r5;\n";
  expectOnly(FindingKind::Sync,
             launch(kernel(foreign + "setp.eq.u32 %p1, %r0, 9;\n"
                                     "@%p1 mov.u32 %r6, 255;\n"
                                     "shfl.sync.idx.b32 %r4, %r0, 3, 6175, "
                                     "%r6; st.global.u32 [%d3], %r4;"),
                    {p}));
}

/// A lane that spins on a lock lets the lane that holds it go on.
TEST_F(WarpTest, LanesOfOneWarpTakeALockInTurn) {
  std::vector<uint32_t> cells(2), out(1);
  uint64_t p = add(cells), q = add(out);
  LaunchReport report = launch(
      kernel("Spin: atom.global.cas.b32 %r5, [%d0], 0, 1;\n"
             "setp.ne.u32 %p2, %r5, 0; @%p2 bra Spin;\n"
             "ld.volatile.global.u32 %r6, [%d0+4]; add.u32 %r6, %r6, 1;\n"
             "st.volatile.global.u32 [%d0+4], %r6;\n"
             "atom.global.exch.b32 %r7, [%d0], 0;"),
      {p, q});
  expectClean(report);
  EXPECT_EQ(cells[1], 32u);
}

TEST_F(WarpTest, LanesPointIntoDifferentSpaces) {
  // Lane 0 of 4: shared memory, 1 and 2: global memory, 3: local memory.
  EXPECT_EQ(
      each(".shared .align 4 .b32 s[32]; .local .align 4 .b8 stack[8];\n"
           ".reg .b64 %l<6>; shl.b32 %r5, %r1, 2; mov.u32 %r6, s;\n"
           "add.u32 %r6, %r6, %r5; cvt.u64.u32 %l1, %r6;\n"
           "cvta.shared.u64 %l1, %l1; mov.u64 %l2, stack;\n"
           "cvta.local.u64 %l2, %l2; and.b32 %r7, %r1, 3;\n"
           "setp.eq.u32 %p1, %r7, 0; setp.eq.u32 %p2, %r7, 3;\n"
           "selp.b64 %l3, %l1, %d4, %p1; selp.b64 %l3, %l2, %l3, %p2;\n"
           "add.u32 %r8, %r1, 100; st.u32 [%l3], %r8; ld.u32 %r9, [%l3];\n"
           "atom.add.u32 %r10, [%l3], 5; @!%p2 ld.u32 %r9, [%l3];\n"
           "mov.u32 %r4, %r9;",
           lanes()),
      perLane([](int l) { return (l & 3) == 3 ? 100 + l : 105 + l; }));
}

TEST_F(WarpTest, DivergedLanesReconverge) {
  // Each lane loops lane & 3 times, then all meet at a vote.
  EXPECT_EQ(each("and.b32 %r5, %r1, 3; mov.u32 %r4, 0; setp.eq.u32 %p5, 0, 0;\n"
                 "Loop: setp.eq.u32 %p1, %r5, 0; @%p1 bra Done;\n"
                 "add.u32 %r4, %r4, 10; sub.u32 %r5, %r5, 1; bra Loop;\n"
                 "Done: vote.sync.ballot.b32 %r6, %p5, -1;\n"
                 "setp.ne.u32 %p2, %r6, -1; @%p2 add.u32 %r4, %r4, 1000;\n",
                 lanes()),
            perLane([](int l) { return (l & 3) * 10; }));
  // Both sides of a branch, one lane after the other.
  EXPECT_EQ(each("setp.lt.u32 %p1, %r1, 16; @%p1 bra Low;\n"
                 "mul.lo.u32 %r4, %r1, 2; bra.uni End;\n"
                 "Low: mul.lo.u32 %r4, %r1, 3;\nEnd:",
                 lanes()),
            perLane([](int l) { return l < 16 ? 3 * l : 2 * l; }));
}

TEST_F(WarpTest, BranchTables) {
  EXPECT_EQ(each("Targets: .branchtargets A, B, C;\n"
                 "rem.u32 %r5, %r1, 3; brx.idx %r5, Targets;\n"
                 "A: mov.u32 %r4, 10; bra End;\nB: mov.u32 %r4, 20; bra End;\n"
                 "C: mov.u32 %r4, 30;\nEnd:",
                 lanes()),
            perLane([](int l) { return 10 + l % 3 * 10; }));
}

TEST_F(WarpTest, CallsAreInlined) {
  const char *functions =
      ".func (.param .b32 result) twice(.param .b32 x)\n{\n"
      ".reg .b32 %r<4>; .reg .pred %p<2>;\nld.param.u32 %r1, [x];\n"
      "setp.gt.u32 %p1, %r1, 20; @%p1 bra Big;\n"
      "add.u32 %r2, %r1, %r1; st.param.b32 [result], %r2; ret;\n"
      "Big: st.param.b32 [result], %r1; ret;\n}\n";
  std::vector<uint32_t> out(32);
  uint64_t p = add(out);
  expectClean(
      launch(kernel("{ .param .b32 a; .param .b32 r;\nst.param.b32 [a], %r0;\n"
                    "call.uni (r), twice, (a);\nld.param.b32 %r5, [r]; }\n"
                    "{ .param .b32 a; .param .b32 r;\nst.param.b32 [a], %r5;\n"
                    "call.uni (r), twice, (a);\nld.param.b32 %r5, [r]; }\n"
                    "st.global.u32 [%d3], %r5;",
                    functions),
             {p}));
  EXPECT_EQ(out, perLane([](int l) {
              int x = l > 20 ? l : 2 * l;
              return x > 20 ? x : 2 * x;
            }));
}

TEST_F(WarpTest, FunctionsMayBeDefinedBehindTheirCallers) {
  const std::string text =
      kernel("{ .param .b32 a; .param .b32 r; st.param.b32 [a], %r0;\n"
             "call.uni (r), three, (a); ld.param.b32 %r5, [r]; }\n"
             "st.global.u32 [%d3], %r5;",
             ".func (.param .b32 r) three(.param .b32 x);\n") +
      ".func (.param .b32 r) three(.param .b32 x)\n{ .reg.b32 a;\n"
      "ld.param.u32 a, [x]; mul.lo.u32 a, a, 3; st.param.b32 [r], a; ret; }\n";
  std::vector<uint32_t> out(32);
  uint64_t p = add(out);
  expectClean(launch(text, {p}));
  EXPECT_EQ(out, perLane([](int l) { return 3 * l; }));
}

TEST_F(WarpTest, LocalMemoryIsPerThread) {
  EXPECT_EQ(each(".local .align 4 .b8 stack[64];\n.reg .b64 %l<3>;\n"
                 "mov.u64 %l1, stack; and.b32 %r5, %r1, 15;\n"
                 "mul.wide.u32 %l2, %r5, 4; add.u64 %l1, %l1, %l2;\n"
                 "st.local.u32 [%l1], %r1; bar.warp.sync -1;\n"
                 "ld.local.u32 %r4, [%l1];",
                 lanes()),
            lanes());
  // Through a generic address.
  EXPECT_EQ(each(".local .align 4 .b8 stack[64];\n.reg .b64 %l<3>;\n"
                 "mov.u64 %l1, stack; cvta.local.u64 %l2, %l1;\n"
                 "st.u32 [%l2+8], %r1; ld.local.u32 %r4, [%l1+8];",
                 lanes()),
            lanes());
}

TEST_F(WarpTest, ModuleData) {
  EXPECT_EQ(
      launchTable(".const .align 4 .u32 table[4] = {7, 0x11, -1, 3};\n"
                  ".global .align 4 .f32 scale = 0f40000000;\n",
                  "and.b32 %r5, %r0, 3; mul.wide.u32 %d6, %r5, 4;\n"
                  "mov.u64 %d7, table; add.s64 %d7, %d7, %d6;\n"
                  "ld.const.u32 %r6, [%d7];\nld.global.u32 %r7, [scale];\n"
                  "setp.eq.u32 %p1, %r7, 0f40000000;\n"
                  "@!%p1 mov.u32 %r6, 99;\nst.global.u32 [%d3], %r6;"),
      perLane([](int l) {
        const uint32_t table[] = {7, 17, ~0u, 3};
        return table[l & 3];
      }));
}

TEST_F(WarpTest, ModuleDataKeepsItsValueBetweenLaunches) {
  kvcache::Expected<Module> module = Module::parse(
      kernel("atom.global.add.u32 %r4, [counter], 1; st.global.u32 [%d3], %r4;",
             ".global .align 4 .u32 counter;"),
      "test");
  ASSERT_TRUE(bool(module)) << module.message();
  std::vector<uint32_t> out(1);
  uint64_t arguments[3] = {add(out), 0, 0};
  const void *pointers[] = {&arguments[0], &arguments[1], &arguments[2]};
  for (uint32_t n = 0; n < 3; ++n) {
    auto report = machine.launch(*module, "k", {}, {}, 0, pointers);
    ASSERT_TRUE(bool(report)) << report.message();
    EXPECT_EQ(out[0], n);
  }
  kvcache::Expected<uint64_t> address =
      machine.symbolAddress(*module, "counter");
  ASSERT_TRUE(bool(address));
  EXPECT_EQ(*static_cast<uint32_t *>(machine.hostPointer(*address, 4)), 3u);
  EXPECT_FALSE(bool(machine.symbolAddress(*module, "missing")));
}

TEST_F(WarpTest, AtomicsReturnTheOldValue) {
  struct {
    const char *op;
    uint32_t start, operand, end, first, last;
  } cases[] = {
      {"add.u32", 5, 2, 69, 5, 67},
      {"inc.u32", 0, 6, 32 % 7, 0, 31 % 7}, // wraps to 0 after 6
      {"dec.u32", 0, 6, 3, 0, 4},
      {"exch.b32", 5, 9, 9, 5, 9},
      {"max.s32", uint32_t(-9), uint32_t(-3), uint32_t(-3), uint32_t(-9),
       uint32_t(-3)},
      {"min.u32", 9, 3, 3, 9, 3},
      {"or.b32", 1, 6, 7, 1, 7},
      {"add.f32", bitsOf(1), bitsOf(0.5), bitsOf(17), bitsOf(1), bitsOf(16.5)}};
  for (auto &c : cases)
    for (const char *space : {"global", "shared"}) {
      std::vector<uint32_t> cell{c.start}, out(32);
      uint64_t pCell = add(cell), pOut = add(out);
      bool shared = space[0] == 's';
      std::string operand = std::to_string(c.operand);
      std::string op = std::string("atom.") + space + "." + c.op;
      std::string address = shared ? "[s]" : "[%d0]";
      expectClean(launch(
          kernel((shared ? "setp.eq.u32 %p1, %r0, 0; ld.global.u32 %r5, "
                           "[%d0]; @%p1 st.shared.u32 [s], %r5; bar.sync 0;\n"
                         : std::string()) +
                     op + " %r4, " + address + ", " + operand +
                     "; st.global.u32 [%d4], %r4;\n" +
                     (shared ? "bar.sync 0; ld.shared.u32 %r5, [s]; @%p1 "
                               "st.global.u32 [%d0], %r5;"
                             : ""),
                 ".shared .align 4 .b32 s;"),
          {pCell, pOut}));
      EXPECT_EQ(cell[0], c.end) << op;
      EXPECT_EQ(out[0], c.first) << op;
      EXPECT_EQ(out[31], c.last) << op;
      machine.clearBuffers();
    }
}

/// PTX ISA, atom: add of f32 flushes subnormal numbers in global memory only.
TEST_F(WarpTest, AtomicAddsOfSubnormalNumbers) {
  std::vector<uint32_t> cells{1, bitsOf(-0x1p-126f)}, out(2);
  uint64_t p = add(cells), q = add(out);
  expectClean(launch(
      kernel("st.shared.u32 [s], 1; red.global.add.f32 [%d0], 0f00000001;\n"
             "red.shared.add.f32 [s], 0f00000001; ld.shared.u32 %r1, [s];\n"
             "atom.global.add.f32 %r2, [%d0+4], 0f007fffff;\n"
             "st.global.v2.u32 [%d1], {%r1, %r2};",
             ".shared .align 4 .b32 s;"),
      {p, q}, 1));
  EXPECT_EQ(cells[0], 0u);
  EXPECT_EQ(cells[1], bitsOf(-0x1p-126f));
  EXPECT_EQ(out[0], 2u);
}

TEST_F(WarpTest, CompareAndSwap) {
  std::vector<uint32_t> cell{3}, out(32);
  uint64_t pCell = add(cell), pOut = add(out);
  expectClean(launch(kernel("add.u32 %r6, %r0, 1;\n"
                            "atom.global.acq_rel.gpu.cas.b32 %r4, [%d0], %r0, "
                            "%r6; st.global.u32 [%d4], %r4;"),
                     {pCell, pOut}));
  EXPECT_EQ(cell[0], 32u); // lanes 3, 4, ... each find their own number
  EXPECT_EQ(out[2], 3u);
  EXPECT_EQ(out[31], 31u);
}

TEST_F(WarpTest, CtaBarriersOrderWarps) {
  // Four warps reverse an array through shared memory; in every interleaving.
  for (uint32_t quantum : {0u, 1u, 5u}) {
    options.quantum = quantum;
    std::vector<uint32_t> out(128);
    uint64_t p = add(out);
    expectClean(launch(
        kernel("mov.u32 %r5, s; shl.b32 %r6, %r0, 2; add.u32 %r7, %r5, %r6;\n"
               "st.shared.u32 [%r7], %r0; bar.sync 0;\n"
               "sub.u32 %r8, %r5, %r6; ld.shared.u32 %r4, [%r8+508];\n"
               "st.global.u32 [%d3], %r4;",
               ".shared .align 4 .b32 s[128];"),
        {p}, 128));
    for (uint32_t n = 0; n < 128; ++n)
      ASSERT_EQ(out[n], 127 - n);
    machine.clearBuffers();
  }
}

TEST_F(WarpTest, BarrierReductions) {
  std::vector<uint32_t> out(64);
  uint64_t p = add(out);
  expectClean(launch(
      kernel("setp.lt.u32 %p1, %r0, 37; barrier.sync 0;\n"
             "bar.red.popc.u32 %r4, 0, %p1; bar.red.or.pred %p2, 0, %p1;\n"
             "bar.red.and.pred %p3, 0, %p1; @%p2 add.u32 %r4, %r4, 100;\n"
             "@%p3 add.u32 %r4, %r4, 1000; st.global.u32 [%d3], %r4;"),
      {p}, 64));
  for (uint32_t v : out)
    EXPECT_EQ(v, 137u);
}

TEST_F(WarpTest, NamedBarrierPairsProducerAndConsumer) {
  std::vector<uint32_t> out(64);
  uint64_t p = add(out);
  // Warp 0 consumes what warp 1 produced.
  expectClean(launch(
      kernel("setp.lt.u32 %p1, %r0, 32; mov.u32 %r5, s; and.b32 %r6, %r0, 31;\n"
             "shl.b32 %r6, %r6, 2; add.u32 %r5, %r5, %r6; @%p1 bra Consumer;\n"
             "st.shared.u32 [%r5], %r0; bar.arrive 1, 64; bra End;\n"
             "Consumer: bar.sync 1, 64; ld.shared.u32 %r4, [%r5];\n"
             "st.global.u32 [%d3], %r4;\nEnd:",
             ".shared .align 4 .b32 s[32];"),
      {p}, 64));
  EXPECT_EQ(out[0], 32u);
  EXPECT_EQ(out[31], 63u);
}

TEST_F(WarpTest, CacheHintsAreAccepted) {
  EXPECT_EQ(
      each("createpolicy.fractional.L2::evict_first.b64 %d9, 1.0;\n"
           "ld.global.L1::no_allocate.L2::cache_hint.u32 %r4, [%d3], %d9;",
           lanes()),
      lanes());
  EXPECT_EQ(each("prefetch.global.L2 [%d3]; ld.relaxed.gpu.global.u32 %r5, "
                 "[%d3]; ld.acquire.sys.global.u32 %r4, [%d3];\n"
                 "ld.volatile.global.u32 %r6, [%d3]; fence.acq_rel.gpu;\n"
                 "fence.sc.cta; membar.gl;",
                 lanes()),
            lanes());
}

TEST_F(WarpTest, SpecialRegisters) {
  std::vector<uint32_t> out(8);
  uint64_t p = add(out);
  dynamicShared = 64;
  expectClean(launch(kernel("mov.u32 %r1, %nctaid.x; mov.u32 %r2, %ntid.x;\n"
                            "mov.u32 %r3, %dynamic_smem_size;\n"
                            "st.global.v4.u32 [%d0], {%r1, %r2, %r3, %r0};"),
                     {p}, 1, 1));
  EXPECT_EQ(out[0], 1u);
  EXPECT_EQ(out[1], 1u);
  EXPECT_EQ(out[2], 64u);
}

} // namespace
