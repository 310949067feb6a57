//===- GlobalRaceTest.cpp - Conflicts between blocks ----------------------===//

#include "PTXTest.h"

#include <algorithm>

using namespace kvcache::ptx;

namespace {

class GlobalRaceTest : public PTXTest {
protected:
  LaunchReport run(const std::string &body, uint32_t blocks = 4) {
    std::vector<uint32_t> data(1024), counter(4);
    uint64_t pData = add(data, "data"), pCounter = add(counter, "counter");
    LaunchReport report = launch(kernel(body), {pData, pCounter}, 32, blocks);
    last = data;
    machine.clearBuffers();
    return report;
  }
  std::vector<uint32_t> last;
};

TEST_F(GlobalRaceTest, OwnElements) {
  expectClean(run("ld.global.u32 %r1, [%d3]; add.u32 %r1, %r1, 1;\n"
                  "st.global.u32 [%d3], %r1;"));
  // Neighbouring bytes of one word by different blocks.
  expectClean(run("cvt.u64.u32 %d6, %r100; add.s64 %d6, %d6, %d0;\n"
                  "st.global.u8 [%d6], 1; ld.global.u8 %h1, [%d6];\n"
                  "st.global.u8 [%d6], %h1;"));
}

TEST_F(GlobalRaceTest, TwoBlocksWriteOneByte) {
  LaunchReport report = run("st.global.u32 [%d0], %r100;");
  expectOnly(FindingKind::Race, report);
  ASSERT_FALSE(report.findings.empty());
  EXPECT_EQ(report.findings[0].buffer, "data");
  EXPECT_NE(report.findings[0].message.find("by block (0,0,0)"),
            std::string::npos)
      << report.findings[0].message;
  expectClean(run("st.global.u32 [%d0], %r100;", 1));
  // Atomics do not conflict with each other.
  expectClean(run("red.global.add.u32 [%d0], 1;"));
  expectOnly(FindingKind::Race,
             run("setp.eq.u32 %p1, %r100, 0; @%p1 st.global.u32 [%d0], 0;\n"
                 "red.global.add.u32 [%d0], 1;"));
}

TEST_F(GlobalRaceTest, ReadOfWhatAnotherBlockWrote) {
  expectOnly(FindingKind::Race,
             run("st.global.u32 [%d3], %r0; ld.global.u32 %r1, [%d0];"));
  // Block 0 reads what block 1 writes later.
  expectOnly(FindingKind::Race,
             run("ld.global.u32 %r1, [%d0+128]; st.global.u32 [%d3], %r0;", 2));
}

/// The last block to arrive adds up what all have written.
class LastBlockTest : public GlobalRaceTest {
protected:
  /// Two warps a block. `write`, a barrier, then thread 0 executes `arrive` and
  /// `seen`; after another barrier all threads of the last block read.
  LaunchReport merge(const std::string &write, const std::string &arrive,
                     const std::string &seen, const std::string &read = "") {
    std::vector<uint32_t> data(1024), counter(4), sums(1024);
    uint64_t pData = add(data, "data"), pCounter = add(counter, "counter"),
             pSums = add(sums, "sums");
    LaunchReport report = launch(
        kernel("add.u32 %r1, %r0, 1;\n" + write +
                   "bar.sync 0;\n"
                   "setp.ne.u32 %p1, %r102, 0; @%p1 bra Joined;\n" +
                   arrive + seen +
                   "setp.eq.u32 %p3, %r2, 3; selp.u32 %r3, 1, 0, %p3;\n"
                   "st.shared.u32 [flag], %r3;\n"
                   "Joined: bar.sync 0; ld.shared.u32 %r3, [flag];\n"
                   "setp.eq.u32 %p1, %r3, 0; @%p1 bra End;\n" +
                   read +
                   "mov.u32 %r3, 0; mov.u32 %r4, 0; mov.u64 %d6, %d0;\n"
                   "Loop: ld.global.u32 %r5, [%d6]; add.u32 %r4, %r4, %r5;\n"
                   "add.s64 %d6, %d6, 4; add.u32 %r3, %r3, 1;\n"
                   "setp.lt.u32 %p2, %r3, 256; @%p2 bra Loop;\n"
                   "add.s64 %d7, %d2, %d5; st.global.u32 [%d7], %r4;\nEnd:",
               ".shared .align 4 .b8 flag[4];"),
        {pData, pCounter, pSums}, 64, 4);
    machine.clearBuffers();
    if (report.clean())
      EXPECT_EQ(*std::max_element(sums.begin(), sums.end()), 256u * 257 / 2);
    return report;
  }
  const std::string store = "st.global.u32 [%d3], %r1;\n";
  const std::string gpu = "fence.acq_rel.gpu;\n";
  const std::string inc = "atom.global.inc.u32 %r2, [%d1], 3;\n";
};

TEST_F(LastBlockTest, Correct) {
  for (uint64_t seed : {0, 1, 2, 3}) {
    options.seed = seed;
    expectClean(merge(store + gpu, inc, gpu)); // all threads fence
    expectClean(merge(store, gpu + inc, gpu)); // thread 0, after a barrier
    expectClean(merge(store, "membar.gl;\n" + inc, "membar.sys;\n"));
    expectClean(merge(store, gpu + inc, "", gpu)); // the readers fence
    expectClean(
        merge(store, "atom.acq_rel.gpu.global.inc.u32 %r2, [%d1], 3;\n", ""));
    expectClean(
        merge(store, "atom.release.gpu.global.inc.u32 %r2, [%d1], 3;\n", gpu));
  }
}

TEST_F(LastBlockTest, MissingFenceIsFound) {
  for (uint64_t seed : {0, 1, 2, 3}) {
    options.seed = seed;
    auto race = [&](const LaunchReport &r) {
      expectOnly(FindingKind::Race, r);
    };
    race(merge(store, inc, gpu));                   // no release
    race(merge(store, gpu + inc, ""));              // no acquire
    race(merge(gpu + store, inc, gpu));             // before the store
    race(merge(store + "membar.cta;\n", inc, gpu)); // for the block only
    race(merge(store, "fence.acq_rel.cta;\n" + inc, gpu));
    race(merge(store, inc + gpu, gpu)); // after the atomic
    race(merge(store, "atom.acq_rel.cta.global.inc.u32 %r2, [%d1], 3;\n", ""));
    race(merge(store, "atom.acquire.gpu.global.inc.u32 %r2, [%d1], 3;\n", ""));
    // Only the first warp fences, ahead of the barrier: the second warp's
    // stores are not ordered.
    race(merge(store + "setp.lt.u32 %p4, %r102, 32;\n"
                       "@%p4 fence.acq_rel.gpu;\n",
               inc, gpu));
  }
}

TEST_F(GlobalRaceTest, FlagBetweenBlocks) {
  // Block 0 hands a value to block 1 through a flag; %p1: block 0.
  auto hand = [&](const std::string &set, const std::string &get) {
    return run("setp.ne.u32 %p2, %r102, 0; @%p2 bra End;\n"
               "setp.ne.u32 %p1, %r100, 0; @%p1 bra Get;\n"
               "st.global.u32 [%d0], 7;\n" +
                   set + "bra End;\nGet:" + get +
                   "ld.global.u32 %r1, [%d0]; st.global.u32 [%d0+64], %r1;\n"
                   "End:",
               2);
  };
  expectClean(hand("st.release.gpu.global.u32 [%d1], 1;\n",
                   "ld.acquire.gpu.global.u32 %r2, [%d1];\n"));
  expectOnly(FindingKind::Race,
             hand("st.relaxed.gpu.global.u32 [%d1], 1;\n",
                  "ld.acquire.gpu.global.u32 %r2, [%d1];\n"));
  expectOnly(FindingKind::Race,
             hand("st.release.gpu.global.u32 [%d1], 1;\n",
                  "ld.relaxed.gpu.global.u32 %r2, [%d1];\n"));
}

TEST_F(GlobalRaceTest, WarpsOfOneBlock) {
  // Two warps; each thread reads what its neighbour in the other warp wrote.
  auto exchange = [&](const std::string &between, uint32_t blocks) {
    std::vector<uint32_t> data(1024), other(1024);
    uint64_t pData = add(data, "data"), pOther = add(other, "other");
    LaunchReport report =
        launch(kernel("st.global.u32 [%d3], %r0;\n" + between +
                      "xor.b32 %r1, %r0, 32; mul.wide.u32 %d6, %r1, 4;\n"
                      "add.s64 %d6, %d6, %d0; ld.global.u32 %r2, [%d6];\n"
                      "st.global.u32 [%d4], %r2;"),
               {pData, pOther}, 64, blocks);
    machine.clearBuffers();
    return report;
  };
  for (uint32_t blocks : {1, 2})
    expectClean(exchange("bar.sync 0;\n", blocks));
  expectOnly(FindingKind::Race, exchange("", 1));
  LaunchReport report = exchange("", 2);
  expectOnly(FindingKind::Race, report);
  ASSERT_FALSE(report.findings.empty());
  EXPECT_NE(report.findings[0].message.find("warp 0 of this block"),
            std::string::npos)
      << report.findings[0].message;
}

} // namespace
