//===- ScheduleTest.cpp - Seeded orders and counts per region -------------===//

#include "PTXTest.h"

#include <algorithm>
#include <set>

using namespace kvcache::ptx;

namespace {

using ScheduleTest = PTXTest;

/// The place of each warp in the order in which warps take a number.
TEST_F(ScheduleTest, SeedsOrderBlocksAndWarps) {
  std::set<std::vector<uint32_t>> orders;
  const uint32_t blocks = 5, threads = 96, warps = 15;
  for (uint64_t seed = 0; seed < 8; ++seed)
    for (int again = 0; again < 2; ++again) {
      std::vector<uint32_t> place(warps), counter(1);
      uint64_t pPlace = add(place), pCounter = add(counter);
      options.seed = seed;
      expectClean(launch(
          kernel("and.b32 %r1, %r0, 31; setp.ne.u32 %p1, %r1, 0; @%p1 ret;\n"
                 "shr.u32 %r2, %r0, 5; mul.wide.u32 %d6, %r2, 4;\n"
                 "add.s64 %d6, %d6, %d0; atom.global.add.u32 %r3, [%d1], 1;\n"
                 "st.global.u32 [%d6], %r3;"),
          {pPlace, pCounter}, threads, blocks));
      machine.clearBuffers();
      // Every warp runs once, whatever the order; seed 0 is ascending.
      std::vector<uint32_t> sorted = place;
      std::sort(sorted.begin(), sorted.end());
      for (uint32_t n = 0; n < warps; ++n) {
        EXPECT_EQ(sorted[n], n);
        if (!seed)
          EXPECT_EQ(place[n], n);
      }
      if (again)
        EXPECT_TRUE(orders.count(place)) << "seed " << seed << " repeats";
      orders.insert(place);
    }
  EXPECT_EQ(orders.size(), 8u);
}

TEST_F(ScheduleTest, EachBlockRunsOnceInGridsOfAnySize) {
  for (uint32_t blocks : {1u, 2u, 3u, 64u, 257u, 1000u}) {
    std::vector<uint32_t> runs(blocks);
    uint64_t p = add(runs);
    options.seed = 99;
    launch(kernel("mul.wide.u32 %d6, %r100, 4; add.s64 %d6, %d6, %d0;\n"
                  "red.global.add.u32 [%d6], 1;"),
           {p}, 1, blocks);
    machine.clearBuffers();
    EXPECT_EQ(std::count(runs.begin(), runs.end(), 1u), blocks);
  }
}

/// Warps that add to shared memory without order: the sum holds, the order of
/// the values returned depends on the seed.
TEST_F(ScheduleTest, TurnsInsideABlock) {
  std::set<std::vector<uint32_t>> seen;
  for (uint64_t seed = 1; seed <= 8; ++seed) {
    std::vector<uint32_t> out(128);
    uint64_t p = add(out);
    options.seed = seed;
    launch(kernel("mov.u32 %r1, 0;\nLoop: add.u32 %r1, %r1, 1;\n"
                  "setp.lt.u32 %p1, %r1, 50; @%p1 bra Loop;\n"
                  "atom.shared.add.u32 %r2, [n], 1; st.global.u32 [%d3], %r2;",
                  ".shared .align 4 .b8 n[4];"),
           {p}, 128);
    machine.clearBuffers();
    seen.insert(out);
  }
  EXPECT_GT(seen.size(), 4u);
}

using RegionTest = PTXTest;

TEST_F(RegionTest, CountsByLabelAndLine) {
  std::vector<uint32_t> in(64, 1), out(64);
  uint64_t pIn = add(in, "in"), pOut = add(out, "out");
  options.regions = true;
  const std::string text = kernel("mov.u32 %r1, 0; mov.u32 %r2, 0;\n"
                                  "Loop:\n"
                                  "ld.global.u32 %r3, [%d3];\n"
                                  "add.u32 %r2, %r2, %r3;\n"
                                  "add.u32 %r1, %r1, 1;\n"
                                  "setp.lt.u32 %p1, %r1, 10;\n"
                                  "@%p1 bra Loop;\n"
                                  "bar.sync 0;\n"
                                  "setp.lt.u32 %p2, %r102, 8;\n"
                                  "@%p2 bra Few;\n"
                                  "add.u32 %r2, %r2, 1;\n"
                                  "Few:\n"
                                  "bar.warp.sync -1;\n"
                                  "st.global.u32 [%d4], %r2;");
  LaunchReport report = launch(text, {pIn, pOut}, 64);
  expectClean(report);
  std::map<std::string, Region> regions;
  uint64_t sum = 0;
  for (const Region &r : report.regions) {
    regions[r.name] = r;
    sum += r.counters.instructions;
  }
  EXPECT_EQ(sum, report.counters.instructions);
  ASSERT_TRUE(regions.count("Loop"));
  const Region &loop = regions["Loop"];
  // 2 warps, 10 rounds of 5 instructions, then 4 more up to Few: the last one
  // (add) only where a lane gets there.
  EXPECT_EQ(loop.executions, 20u);
  EXPECT_EQ(loop.instructions, 9u);
  EXPECT_EQ(loop.counters.byClass[size_t(InstrClass::LoadGlobal)], 20u);
  EXPECT_EQ(loop.counters.globalLoad.requests, 20u);
  EXPECT_EQ(loop.counters.globalLoad.sectors, 80u);
  EXPECT_EQ(loop.counters.globalLoad.bytes, 20u * 128);
  EXPECT_EQ(loop.counters.ctaBarriers, 2u);
  EXPECT_EQ(loop.counters.divergentBranches, 1u); // the first warp's
  EXPECT_EQ(regions["Few"].counters.warpBarriers, 2u);
  EXPECT_EQ(regions["Few"].counters.globalStore.sectors, 8u);
  EXPECT_EQ(regions["Few"].firstLine, loop.lastLine + 2);
  // The same by lines, and none without the option.
  Counters lines = report.between(loop.firstLine, loop.lastLine);
  EXPECT_EQ(lines.instructions, loop.counters.instructions);
  EXPECT_EQ(lines.activeLanes, loop.counters.activeLanes);
  EXPECT_EQ(report.between(1, 1000).instructions, sum);
  std::string table = report.table();
  EXPECT_NE(table.find("counts, not times"), std::string::npos);
  EXPECT_NE(table.find("\nLoop "), std::string::npos) << table;
  options.regions = false;
  LaunchReport plain = launch(text, {pIn, pOut}, 64);
  EXPECT_TRUE(plain.regions.empty());
  EXPECT_EQ(plain.counters.instructions, report.counters.instructions);
  EXPECT_EQ(plain.counters.activeLanes, report.counters.activeLanes);
  EXPECT_EQ(plain.counters.divergentBranches, 1u);
}

TEST_F(RegionTest, InlinedFunctionsHaveTheirOwn) {
  std::vector<uint32_t> out(32);
  uint64_t p = add(out);
  options.regions = true;
  LaunchReport report =
      launch(kernel("{ .param .b32 a; .param .b32 r; st.param.b32 [a], %r0;\n"
                    "call.uni (r), twice, (a); ld.param.b32 %r1, [r]; }\n"
                    "st.global.u32 [%d3], %r1;",
                    ".func (.param .b32 x) twice(.param .b32 y) {\n"
                    ".reg .b32 %q<3>; ld.param.b32 %q1, [y];\n"
                    "add.u32 %q1, %q1, %q1; st.param.b32 [x], %q1; ret; }"),
             {p});
  expectClean(report);
  EXPECT_EQ(out[9], 18u);
  std::set<std::string> names;
  for (const Region &r : report.regions)
    names.insert(r.name);
  EXPECT_EQ(names,
            (std::set<std::string>{"entry", "twice", "entry after twice"}));
}

TEST_F(RegionTest, BytesInFlight) {
  // Three groups of one 16-byte copy a lane; waits leave two, one and none.
  std::vector<uint32_t> in(1024, 1);
  uint64_t p = add(in);
  std::string copies;
  for (int n = 0; n < 3; ++n)
    copies += "cp.async.cg.shared.global [%r2+" + std::to_string(512 * n) +
              "], [%d6], 16; cp.async.commit_group;\n";
  for (bool late : {false, true})
    for (bool checks : {false, true}) {
      options.lateCopies = late;
      options.racecheck = checks;
      LaunchReport report = launch(
          kernel("mov.u32 %r1, s; mad.lo.u32 %r2, %r102, 16, %r1;\n"
                 "mul.wide.u32 %d6, %r102, 16; add.s64 %d6, %d6, %d0;\n" +
                     copies +
                     "cp.async.wait_group 2; cp.async.wait_group 1;\n"
                     "cp.async.wait_all;",
                 ".shared .align 16 .b8 s[2048];"),
          {p});
      expectClean(report);
      EXPECT_EQ(report.counters.inFlight.peak, 3u * 512);
      EXPECT_EQ(report.counters.inFlight.waits, 3u);
      EXPECT_EQ(report.counters.inFlight.atWait, (3u + 2 + 1) * 512);
    }
}

} // namespace
