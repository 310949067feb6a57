//===- CheckerTest.cpp - Planted faults are found, fixed ones are quiet ---===//

#include "PTXTest.h"

using namespace kvcache::ptx;

namespace {

class CheckerTest : public PTXTest {
protected:
  LaunchReport
  run(const std::string &body, uint32_t threads = 64,
      const std::string &module = ".shared .align 16 .b8 s[4096];") {
    std::vector<uint32_t> in(1024, 1), out(1024);
    BufferOptions readOnly;
    readOnly.name = "input";
    readOnly.readOnly = true;
    uint64_t pIn = machine.addBuffer(in.data(), 4096, readOnly);
    uint64_t pOut = add(out, "output");
    LaunchReport report =
        launch(kernel("mov.u32 %r50, s; shl.b32 %r51, %r102, 2;\n"
                      "add.u32 %r52, %r50, %r51;\n" +
                          body,
                      module),
               {pIn, pOut}, threads);
    machine.clearBuffers();
    return report;
  }
};

TEST_F(CheckerTest, OutOfBounds) {
  expectClean(run("ld.global.u32 %r1, [%d0+4092]; st.global.u32 [%d4], %r1;"));
  LaunchReport report =
      run("ld.global.u32 %r1, [%d0+4096]; st.global.u32 [%d4], %r1;");
  expectOnly(FindingKind::OutOfBounds, report);
  ASSERT_FALSE(report.findings.empty());
  const Finding &f = report.findings[0];
  EXPECT_EQ(f.kernel, "k");
  EXPECT_EQ(f.text, "ld.global.u32 %r1, [%d0+4096]; st.global.u32 [%d4], %r1;");
  EXPECT_EQ(f.buffer, "input");
  EXPECT_NE(f.message.find("offset 4096"), std::string::npos) << f.message;
  EXPECT_EQ(f.thread.x, 0u);
  expectOnly(FindingKind::OutOfBounds, run("st.shared.u32 [%r50+4096], %r0;"));
  expectOnly(FindingKind::OutOfBounds,
             run(".local .b8 l[8]; st.local.u32 [l+8], %r0;"));
}

TEST_F(CheckerTest, UseAfterFree) {
  std::vector<uint32_t> cache(16, 3), out(16);
  uint64_t pCache = add(cache, "cache"), pOut = add(out, "output");
  const std::string text =
      kernel("ld.global.u32 %r1, [%d0+8]; st.global.u32 [%d1], %r1;");
  expectClean(launch(text, {pCache, pOut}, 1));
  EXPECT_EQ(out[0], 3u);
  EXPECT_FALSE(bool(machine.removeBuffer(pCache)));
  LaunchReport report = launch(text, {pCache, pOut}, 1);
  expectOnly(FindingKind::UseAfterFree, report);
  ASSERT_EQ(report.findings.size(), 1u);
  EXPECT_EQ(report.findings[0].buffer, "cache");
  EXPECT_NE(report.findings[0].message.find("offset 8"), std::string::npos);
  // Addresses are not given out again.
  EXPECT_NE(add(cache, "new"), pCache);
  expectOnly(FindingKind::UseAfterFree, launch(text, {pCache, pOut}, 1));
}

TEST_F(CheckerTest, ThreadAndBlockAreNamed) {
  LaunchReport report = run("setp.ne.u32 %p1, %r0, 45; @%p1 bra End;\n"
                            "ld.global.u32 %r1, [%d0+8192];\nEnd:");
  ASSERT_EQ(report.findings.size(), 1u);
  EXPECT_EQ(report.findings[0].thread.x, 45u);
  EXPECT_EQ(report.findingCount, 1u);
}

TEST_F(CheckerTest, Misaligned) {
  expectOnly(FindingKind::Misaligned, run("ld.global.u32 %r1, [%d0+2];"));
  expectOnly(FindingKind::Misaligned,
             run("ld.shared.v4.u32 {%r1, %r2, %r3, %r4}, [%r50+8];"));
}

TEST_F(CheckerTest, ReadOnly) {
  expectOnly(FindingKind::ReadOnlyWrite, run("st.global.u32 [%d3], %r0;"));
}

TEST_F(CheckerTest, ChecksCanBeSwitchedOff) {
  options.memcheck = false;
  expectClean(run("ld.global.u32 %r1, [%d0+4096];"));
  options.racecheck = false;
  expectClean(run("st.shared.u32 [%r50], %r0;"));
}

TEST_F(CheckerTest, RaceBetweenWarps) {
  const std::string write = "st.shared.u32 [%r52], %r0;\n";
  const std::string read = "xor.b32 %r1, %r51, 128; add.u32 %r1, %r1, %r50;\n"
                           "ld.shared.u32 %r2, [%r1];\n"
                           "st.global.u32 [%d4], %r2;\n";
  expectClean(run(write + "bar.sync 0;\n" + read));
  LaunchReport report = run(write + read);
  EXPECT_TRUE(byKind(report).count(FindingKind::Race)) << describe(report);
  // Write after read.
  const std::string overwrite = "st.shared.u32 [%r52], %r0;\n";
  expectClean(
      run(write + "bar.sync 0;\n" + read + "bar.sync 0;\n" + overwrite));
  expectOnly(FindingKind::Race,
             run(write + "bar.sync 0;\n" + read + overwrite));
  // Two warps write one word.
  expectOnly(FindingKind::Race, run("st.shared.u32 [%r50], %r0;"));
}

TEST_F(CheckerTest, RaceInsideAWarp) {
  const std::string write = "st.shared.u32 [%r52], %r0;\n";
  const std::string read = "xor.b32 %r1, %r51, 4; add.u32 %r1, %r1, %r50;\n"
                           "ld.shared.u32 %r2, [%r1];\n"
                           "st.global.u32 [%d4], %r2;\n";
  expectOnly(FindingKind::Race, run(write + read, 32));
  expectClean(run(write + "bar.warp.sync -1;\n" + read, 32));
  // A shuffle does not order memory.
  expectOnly(
      FindingKind::Race,
      run(write + "shfl.sync.idx.b32 %r9, %r0, 0, 31, -1;\n" + read, 32));
  // Equal values to one address by one instruction are no race.
  expectClean(run("mov.u32 %r1, 5; st.shared.u32 [%r50], %r1;", 32));
  // Bytes next to each other are not shared.
  expectClean(run("add.u32 %r1, %r50, %r102; cvt.u16.u32 %h1, %r0;\n"
                  "st.shared.u8 [%r1], %h1;"));
}

TEST_F(CheckerTest, WideAndNarrowAccessesOverlap) {
  // Each warp writes 16 bytes a lane; a barrier; one byte is read and written.
  const std::string wide = "shl.b32 %r1, %r0, 4; add.u32 %r1, %r1, %r50;\n"
                           "st.shared.v4.u32 [%r1], {%r0, %r0, %r0, %r0};\n";
  const std::string narrow = "ld.shared.u8 %h1, [%r50+5];\n"
                             "cvt.u32.u16 %r3, %h1;\n"
                             "st.global.u32 [%d4], %r3;\n";
  expectClean(run(wide + "bar.sync 0;\n" + narrow));
  expectOnly(FindingKind::Race, run(wide + narrow));
  // After the narrow read by all, a wide write of the same bytes is a race; of
  // other bytes it is not.
  expectOnly(FindingKind::Race, run(wide + "bar.sync 0;\n" + narrow + wide));
  expectClean(run(wide + "bar.sync 0;\n" + narrow +
                  "st.shared.v4.u32 [%r1+1024], {%r0, %r0, %r0, %r0};\n"));
}

TEST_F(CheckerTest, SharedAtomics) {
  const std::string zero = "setp.eq.u32 %p1, %r0, 0;\n"
                           "@%p1 st.shared.u32 [%r50], 0;\n";
  const std::string count = "atom.shared.add.u32 %r1, [%r50], 1;\n";
  const std::string read = "ld.shared.u32 %r2, [%r50];\n"
                           "st.global.u32 [%d4], %r2;\n";
  expectClean(run(zero + "bar.sync 0;\n" + count + "bar.sync 0;\n" + read));
  expectOnly(FindingKind::Race, run(zero + "bar.sync 0;\n" + count + read));
  LaunchReport report = run(zero + count + "bar.sync 0;\n" + read);
  EXPECT_TRUE(byKind(report).count(FindingKind::Race)) << describe(report);
}

TEST_F(CheckerTest, AsyncCopies) {
  const std::string address = "shl.b32 %r1, %r0, 4; add.u32 %r1, %r1, %r50;\n"
                              "mul.wide.u32 %d6, %r0, 16;\n"
                              "add.s64 %d6, %d6, %d0;\n";
  const std::string copy = "cp.async.cg.shared.global [%r1], [%d6], 16;\n"
                           "cp.async.commit_group;\n";
  const std::string own = "ld.shared.u32 %r2, [%r1];\n"
                          "st.global.u32 [%d4], %r2;\n";
  const std::string other = "xor.b32 %r3, %r1, 16; ld.shared.u32 %r2, [%r3];\n"
                            "st.global.u32 [%d4], %r2;\n";
  for (bool late : {false, true}) {
    options.lateCopies = late;
    const std::string wait = "cp.async.wait_group 0;\n";
    expectClean(run(address + copy + wait + own));
    expectClean(run(address + copy + wait + "bar.sync 0;\n" + other));
    EXPECT_TRUE(
        byKind(run(address + copy + own)).count(FindingKind::AsyncRace));
    // A barrier does not wait for copies.
    EXPECT_TRUE(byKind(run(address + copy + "bar.sync 0;\n" + other))
                    .count(FindingKind::AsyncRace));
    EXPECT_TRUE(
        byKind(run(address + copy + wait + other)).count(FindingKind::Race));
    // One group may stay in flight: the second is not waited for.
    EXPECT_TRUE(byKind(run(address + "cp.async.commit_group;\n" + copy +
                           "cp.async.wait_group 1;\n" + own))
                    .count(FindingKind::AsyncRace));
    expectClean(run(address + copy +
                    "cp.async.commit_group;\n"
                    "cp.async.wait_group 1;\n" +
                    own));
    // A source size of 0 fills with zero and reads nothing.
    expectClean(run(address +
                    "mov.u32 %r9, 0; add.s64 %d6, %d6, 65536;\n"
                    "cp.async.cg.shared.global [%r1], [%d6], 16, "
                    "%r9;\ncp.async.wait_all;\n" +
                    own));
  }
}

TEST_F(CheckerTest, BulkCopies) {
  const std::string init =
      "setp.eq.u32 %p1, %r0, 0; add.u32 %r9, %r50, 4080;\n"
      "@%p1 mbarrier.init.shared.b64 [%r9], 1;\nbar.sync 0;\n";
  const std::string copy =
      "@%p1 mbarrier.arrive.expect_tx.shared.b64 _, [%r9], 1024;\n"
      "mov.u32 %r8, 1024;\n"
      "@%p1 cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes "
      "[%r50], [%d0], %r8, [%r9];\n";
  const std::string wait =
      "W: mbarrier.try_wait.parity.shared.b64 %p2, [%r9], 0; @!%p2 bra W;\n";
  const std::string read = "ld.shared.u32 %r2, [%r52]; st.global.u32 [%d4], "
                           "%r2;\n";
  for (bool late : {false, true}) {
    options.lateCopies = late;
    expectClean(run(init + copy + wait + read));
    if (late)
      EXPECT_TRUE(
          byKind(run(init + copy + read)).count(FindingKind::AsyncRace));
  }
}

TEST_F(CheckerTest, SyncNeedsItsLanes) {
  // Half of the warp does not come to the shuffle.
  LaunchReport report =
      run("setp.lt.u32 %p1, %r0, 16; @%p1 bra Skip;\n"
          "shfl.sync.bfly.b32 %r1, %r0, 1, 31, -1;\nbra End;\n"
          "Skip: bar.warp.sync -1;\nEnd:",
          32);
  expectOnly(FindingKind::Sync, report);
  // With the right member masks there is nothing to find.
  expectClean(run("setp.lt.u32 %p1, %r0, 16; @%p1 bra Skip;\n"
                  "shfl.sync.bfly.b32 %r1, %r0, 1, 31, 0xffff0000;\nbra End;\n"
                  "Skip: bar.warp.sync 0xffff;\nEnd: bar.warp.sync -1;",
                  32));
  // The member mask names a lane that has exited.
  expectOnly(FindingKind::Sync, run("setp.eq.u32 %p1, %r0, 3; @%p1 ret;\n"
                                    "bar.warp.sync -1;",
                                    32));
  // shfl from a lane that is not in the mask.
  expectOnly(FindingKind::Sync,
             run("setp.lt.u32 %p1, %r0, 16; @!%p1 bra End;\n"
                 "shfl.sync.idx.b32 %r1, %r0, 20, 31, 0xffff;\nEnd:",
                 32));
}

/// Half of a warp at an aligned barrier; barrier.sync without .aligned takes
/// threads one by one.
TEST_F(CheckerTest, BarrierUnderAPredicateOfSomeLanes) {
  const std::string some = "setp.lt.u32 %p1, %r0, 16;\n";
  for (const char *barrier :
       {"bar.sync 0;", "barrier.sync.aligned 0;", "bar.arrive 1, 64;",
        "bar.red.or.pred %p2, 0, "
        "%p1;"})
    expectOnly(FindingKind::Sync, run(some + "@%p1 " + barrier, 32));
  expectClean(run(some + "@%p1 barrier.sync 0;", 32));
  expectClean(run("setp.lt.u32 %p1, %r0, 16; @%p1 ret; bar.sync 0;", 32));
  expectOnly(FindingKind::Sync, run("bar.sync 16;"));
  expectOnly(FindingKind::Sync, run("bar.sync 1, 48;"));
}

TEST_F(CheckerTest, MbarrierMisuse) {
  const std::string init =
      "setp.eq.u32 %p1, %r0, 0; add.u32 %r9, %r50, 4080;\n"
      "@%p1 mbarrier.init.shared.b64 [%r9], 64;\nbar.sync 0;\n";
  const std::string arrive = "mbarrier.arrive.shared.b64 %d6, [%r9];\n";
  auto wait = [](const std::string &parity) {
    return "W: mbarrier.try_wait.parity.shared.b64 %p2, [%r9], " + parity +
           "; @!%p2 bra W;\n";
  };
  const std::string write = "st.shared.u32 [%r52], %r0;\n";
  const std::string read = "xor.b32 %r1, %r51, 128; add.u32 %r1, %r1, %r50;\n"
                           "ld.shared.u32 %r2, [%r1];\n"
                           "st.global.u32 [%d4], %r2;\n";
  expectClean(run(init + write + arrive + wait("0") + read));
  // The parity of the phase before lets everybody through.
  EXPECT_TRUE(byKind(run(init + write + arrive + wait("1") + read))
                  .count(FindingKind::Race));
  // After inval, and without init, it is no mbarrier.
  const std::string end = "bar.sync 0;\n@%p1 mbarrier.inval.shared.b64 [%r9];\n"
                          "bar.sync 0;\n";
  expectClean(run(init + arrive + wait("0") + end + init + arrive));
  LaunchReport report = run(init + arrive + wait("0") + end + arrive);
  expectOnly(FindingKind::Uninitialised, report);
  EXPECT_EQ(report.findings[0].buffer, "shared");
  expectOnly(FindingKind::Uninitialised,
             run("add.u32 %r9, %r50, 4080;\n" + arrive));
  expectOnly(FindingKind::Sync,
             run("setp.eq.u32 %p1, %r0, 0;\n"
                 "@%p1 mbarrier.init.shared.b64 [%r50], 0;"));
  // It orders the lanes of one warp as well: reads of what another lane wrote,
  // and writes over what another lane has read.
  const std::string near = "xor.b32 %r1, %r51, 4; add.u32 %r1, %r1, %r50;\n"
                           "ld.shared.u32 %r2, [%r1];\n"
                           "st.global.u32 [%d4], %r2;\n";
  const std::string again = "mbarrier.arrive.shared.b64 %d7, [%r9];\n"
                            "V: mbarrier.try_wait.parity.shared.b64 %p2, "
                            "[%r9], 1; @!%p2 bra V;\n";
  expectClean(run(init + write + arrive + wait("0") + near + again + write));
  expectOnly(FindingKind::Race, run(init + write + arrive + near + wait("0")));
  expectOnly(FindingKind::Race,
             run(init + write + arrive + wait("0") + near + write + again));
  // Copies of this thread, with and without an arrival of its own.
  const std::string copy =
      "shl.b32 %r1, %r0, 4; add.u32 %r1, %r1, %r50; mul.wide.u32 %d6, %r0, "
      "16;\n"
      "add.s64 %d6, %d6, %d0; cp.async.cg.shared.global [%r1], [%d6], 16;\n";
  const std::string other = "xor.b32 %r3, %r1, 512; ld.shared.u32 %r2, [%r3];\n"
                            "st.global.u32 [%d4], %r2;\n";
  for (bool late : {false, true}) {
    options.lateCopies = late;
    expectClean(run(init + copy +
                    "cp.async.mbarrier.arrive.noinc.shared.b64 [%r9];\n" +
                    wait("0") + other));
    expectClean(run(init + copy +
                    "cp.async.mbarrier.arrive.shared.b64 [%r9];\n" + arrive +
                    wait("0") + other));
  }
}

TEST_F(CheckerTest, FindingsNameTheBuffer) {
  auto first = [&](const std::string &body) {
    LaunchReport report = run(body, 1);
    return report.findings.empty() ? Finding() : report.findings[0];
  };
  Finding f = first("ld.global.v4.u32 {%r1, %r2, %r3, %r4}, [%d0+8];");
  EXPECT_EQ(f.kind, FindingKind::Misaligned);
  EXPECT_EQ(f.buffer, "input");
  f = first("atom.global.add.u32 %r1, [%d1+2], 1;");
  EXPECT_EQ(f.kind, FindingKind::Misaligned);
  EXPECT_EQ(f.buffer, "output");
  f = first("atom.shared.add.u32 %r1, [%r50], 1;");
  EXPECT_EQ(f.kind, FindingKind::Uninitialised);
  EXPECT_EQ(f.buffer, "shared");
  const std::string bulk =
      "mbarrier.init.shared.b64 [%r50], 1; add.u32 %r8, %r50, 16;\n"
      "mov.u32 %r7, 64; add.u64 %d6, %d0, 4064;\n"
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes "
      "[%r8], [%d6], %r7, [%r50];\n";
  f = first(bulk);
  EXPECT_EQ(f.kind, FindingKind::OutOfBounds);
  EXPECT_EQ(f.buffer, "input");
  EXPECT_NE(f.message.find("offset 4064"), std::string::npos) << f.message;
}

TEST_F(CheckerTest, DivergentBarrier) {
  LaunchReport report = run("setp.lt.u32 %p1, %r0, 16; @%p1 bra Skip;\n"
                            "bar.sync 0;\nbra End;\nSkip: bar.sync 0;\nEnd:",
                            32);
  EXPECT_TRUE(byKind(report).count(FindingKind::Sync)) << describe(report);
}

TEST_F(CheckerTest, DeadlocksAndLimits) {
  expectOnly(FindingKind::Deadlock,
             run("setp.lt.u32 %p1, %r0, 32; @%p1 bra Skip;\n"
                 "bar.sync 1;\nbra End;\nSkip: bar.sync 2;\nEnd:"));
  expectOnly(FindingKind::Limit, run("Loop: bra Loop;", 32));
  expectClean(run("setp.lt.u32 %p1, %r0, 32; @%p1 ret;\nbar.sync 0;"));
}

TEST_F(CheckerTest, FindingsOfOneLineAreCountedTogether) {
  LaunchReport report = run("mov.u32 %r1, 0;\nLoop:\n"
                            "ld.global.u32 %r2, [%d0+1048570];\n"
                            "add.u32 %r1, %r1, 1; setp.lt.u32 %p1, %r1, 10; "
                            "@%p1 bra Loop;",
                            32);
  auto found = byKind(report);
  EXPECT_EQ(found[FindingKind::OutOfBounds].count, 320u);
  EXPECT_EQ(found[FindingKind::Misaligned].count, 10u);
  EXPECT_EQ(report.findings.size(), 2u);
}

} // namespace
