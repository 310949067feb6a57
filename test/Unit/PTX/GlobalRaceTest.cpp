//===- GlobalRaceTest.cpp - Conflicts between blocks ----------------------===//

#include "PTXTest.h"

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
TEST_F(GlobalRaceTest, LastBlockMerges) {
  auto merge = [](const std::string &fence, const std::string &arrive) {
    return "add.u32 %r1, %r0, 1; st.global.u32 [%d3], %r1; bar.sync 0;\n"
           "setp.ne.u32 %p1, %r102, 0; @%p1 bra End;\n" +
           fence + arrive +
           "setp.ne.u32 %p1, %r2, 3; @%p1 bra End;\n"
           "mov.u32 %r3, 0; mov.u32 %r4, 0; mov.u64 %d6, %d0;\n"
           "Loop: ld.global.u32 %r5, [%d6]; add.u32 %r4, %r4, %r5;\n"
           "add.s64 %d6, %d6, 4; add.u32 %r3, %r3, 1;\n"
           "setp.lt.u32 %p2, %r3, 128; @%p2 bra Loop;\n"
           "st.global.u32 [%d0+512], %r4;\nEnd:";
  };
  const std::string inc = "atom.global.inc.u32 %r2, [%d1], 3;\n";
  expectClean(run(merge("membar.gl;\n", inc)));
  EXPECT_EQ(last[128], 128u * 129 / 2);
  expectClean(run(merge("fence.acq_rel.gpu;\n", inc)));
  expectClean(
      run(merge("", "atom.acq_rel.gpu.global.inc.u32 %r2, [%d1], 3;\n")));
  // Without a fence, or with one for the block only.
  expectOnly(FindingKind::Race, run(merge("", inc)));
  expectOnly(FindingKind::Race, run(merge("membar.cta;\n", inc)));
}

} // namespace
