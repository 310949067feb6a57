//===- OrderTest.cpp - Partial barriers and mbarriers order threads -------===//
//
// Producers and consumers of a block. Each correct hand-over has twins with one
// step left out.
//
//===----------------------------------------------------------------------===//

#include "PTXTest.h"

using namespace kvcache::ptx;

namespace {

class OrderTest : public PTXTest {
protected:
  LaunchReport run(const std::string &body, uint32_t threads) {
    std::vector<uint32_t> in(1024, 1), out(1024);
    uint64_t pIn = add(in, "input"), pOut = add(out, "output");
    LaunchReport report =
        launch(kernel("mov.u32 %r50, s; shl.b32 %r51, %r102, 2;\n"
                      "add.u32 %r52, %r50, %r51; mov.u32 %r60, bars;\n"
                      "shr.u32 %r61, %r102, 5; and.b32 %r62, %r102, 31;\n" +
                          body,
                      ".shared .align 16 .b8 s[4096];\n"
                      ".shared .align 8 .b8 bars[64];"),
               {pIn, pOut}, threads);
    last = out;
    machine.clearBuffers();
    return report;
  }
  /// Whatever the order of the warps.
  void clean(const std::string &body, uint32_t threads = 64) {
    SCOPED_TRACE(body);
    for (uint64_t seed = 0; seed < 6; ++seed) {
      options.seed = seed;
      expectClean(run(body, threads));
    }
  }
  /// The same; what comes too late may also find bytes not written yet.
  void finds(FindingKind kind, const std::string &body, uint32_t threads = 64) {
    SCOPED_TRACE(body);
    for (uint64_t seed = 0; seed < 6; ++seed) {
      options.seed = seed;
      LaunchReport report = run(body, threads);
      EXPECT_TRUE(byKind(report).count(kind)) << "seed " << seed;
      for (const Finding &f : report.findings)
        EXPECT_TRUE(f.kind == kind || f.kind == FindingKind::Uninitialised)
            << f.str();
    }
  }
  std::vector<uint32_t> last;

  const std::string isConsumer =
      "setp.ge.u32 %p1, %r102, 32; @%p1 bra Consumer;\n";
  const std::string write = "st.shared.u32 [%r52], %r0;\n";
  const std::string readOther =
      "xor.b32 %r1, %r51, 128; add.u32 %r1, %r1, %r50;\n"
      "ld.shared.u32 %r2, [%r1]; st.global.u32 [%d4], %r2;\n";
};

TEST_F(OrderTest, NamedBarrierOfAPart) {
  // Warps 0 and 1 of four exchange through barrier 1.
  const std::string pair = "setp.ge.u32 %p1, %r102, 64; @%p1 bra Rest;\n";
  clean(pair + write + "bar.sync 1, 64;\n" + readOther + "Rest:", 128);
  finds(FindingKind::Race, pair + write + readOther + "Rest:", 128);
  // Warps 2 and 3 use a barrier of their own: it orders nothing between pairs.
  const std::string number = "shr.u32 %r3, %r102, 6; add.u32 %r3, %r3, 1;\n";
  const std::string readPair =
      "xor.b32 %r1, %r51, 256; add.u32 %r1, %r1, %r50;\n"
      "ld.shared.u32 %r2, [%r1]; st.global.u32 [%d4], %r2;\n";
  clean(number + write + "barrier.sync %r3, 64;\n" + readOther, 128);
  finds(FindingKind::Race,
        number + write + "barrier.sync %r3, 64;\n" + readPair, 128);
  clean(number + write + "barrier.sync %r3, 64;\nbar.sync 0;\n" + readPair,
        128);
}

TEST_F(OrderTest, OrderIsHandedOn) {
  // Warp 0 writes; barrier 1 with warp 1; barrier 2 of warps 1 and 2; warp 2
  // reads.
  auto chain = [&](const std::string &second) {
    return "setp.eq.u32 %p1, %r61, 0; @%p1 bra A; setp.eq.u32 %p1, %r61, 1;\n"
           "@%p1 bra B; bra C;\nA:" +
           write + "bar.sync 1, 64; bra End;\nB: bar.sync 1, 64;\n" + second +
           "bar.sync 2, 64; bra End;\nC: bar.sync 2, 64;\n"
           "sub.u32 %r1, %r52, 256; ld.shared.u32 %r2, [%r1];\n"
           "st.global.u32 [%d4], %r2;\nEnd:";
  };
  clean(chain(""), 96);
  EXPECT_EQ(last[64 + 5], 5u);
  // Warp 1 reaches barrier 2 first: no order from warp 0 to warp 2.
  finds(FindingKind::Race,
        "setp.eq.u32 %p1, %r61, 0; @%p1 bra A; setp.eq.u32 %p1, %r61, 1;\n"
        "@%p1 bra B; bra C;\nA:" +
            write +
            "bar.sync 1, 64; bra End;\nB: bar.sync 2, 64;\n"
            "bar.sync 1, 64; bra End;\nC: bar.sync 2, 64;\n"
            "sub.u32 %r1, %r52, 256; ld.shared.u32 %r2, [%r1];\n"
            "st.global.u32 [%d4], %r2;\nEnd:",
        96);
}

TEST_F(OrderTest, ArriveAndSync) {
  // The producer arrives and goes on, the consumer waits.
  const std::string consumer =
      "bra End;\nConsumer: bar.sync 1, 64;\n" + readOther + "End:";
  clean(isConsumer + write + "bar.arrive 1, 64;\n" + consumer);
  // A write after the arrival is not handed over.
  finds(FindingKind::Race,
        isConsumer + write + "bar.arrive 1, 64;\n" + write + consumer);
  // Writing again needs the consumer's arrival at a second barrier.
  auto twice = [&](const std::string &producer, const std::string &done) {
    return isConsumer + write + "bar.arrive 1, 64;\n" + producer + write +
           "bra End;\nConsumer: bar.sync 1, 64;\n" + readOther + done + "End:";
  };
  clean(twice("bar.sync 2, 64;\n", "bar.arrive 2, 64;\n"));
  finds(FindingKind::Race, twice("", ""));
}

TEST_F(OrderTest, SeveralReaders) {
  // Warp 0 writes one word, warps 1 and 2 read it and arrive, warp 0 writes
  // again.
  auto rewrite = [&](const std::string &release) {
    return isConsumer +
           "setp.ne.u32 %p2, %r62, 0; @!%p2 st.shared.u32 [%r50], 1;\n"
           "bar.sync 1, 96; bar.sync 2, 96;\n"
           "@!%p2 st.shared.u32 [%r50], 2; bra End;\n"
           "Consumer: bar.sync 1, 96; ld.shared.u32 %r2, [%r50];\n"
           "st.global.u32 [%d4], %r2;\n" +
           release + "End:";
  };
  clean(rewrite("bar.arrive 2, 96;\n"), 96);
  // Warp 2 reads once more after it has arrived.
  finds(FindingKind::Race,
        rewrite("bar.arrive 2, 96; setp.lt.u32 %p3, %r102, 64;\n"
                "@%p3 bra End; ld.shared.u32 %r2, [%r50];\n"
                "st.global.u32 [%d4], %r2;\n"),
        96);
}

class MbarrierTest : public OrderTest {
protected:
  std::string init(int count, const std::string &after = "bar.sync 0;\n") {
    return "setp.ne.u32 %p9, %r102, 0;\n"
           "@!%p9 mbarrier.init.shared.b64 [%r60], " +
           std::to_string(count) +
           ";\n@!%p9 mbarrier.init.shared.b64 [%r60+8], " +
           std::to_string(count) + ";\n" + after;
  }
  std::string wait(const std::string &name, int offset, int parity) {
    return name + ": mbarrier.try_wait.parity.shared.b64 %p5, [%r60+" +
           std::to_string(offset) + "], " + std::to_string(parity) +
           "; @!%p5 bra " + name + ";\n";
  }
  const std::string arrive = "mbarrier.arrive.shared.b64 _, [%r60];\n";
};

TEST_F(MbarrierTest, HandOver) {
  const std::string consumer =
      "bra End;\nConsumer:\n" + wait("W", 0, 0) + readOther + "End:";
  clean(init(32) + isConsumer + write + arrive + consumer);
  EXPECT_EQ(last[32 + 3], 3u);
  // Without the wait; without release by the writer, which arrives first.
  finds(FindingKind::Race, init(32) + isConsumer + write + arrive +
                               "bra End;\nConsumer:\n" + readOther + "End:");
  finds(FindingKind::Race, init(32) + isConsumer + arrive + write + consumer);
  // One lane arrives for its warp: only after a warp barrier does that cover
  // the other lanes.
  const std::string one = "setp.eq.u32 %p2, %r62, 0; @%p2 " + arrive;
  clean(init(1) + isConsumer + write + "bar.warp.sync -1;\n" + one + consumer);
  finds(FindingKind::Race, init(1) + isConsumer + write + one + consumer);
  // A count of arrivals, and .noComplete ones.
  clean(init(2) + isConsumer + write +
        "bar.warp.sync -1; setp.eq.u32 %p2, %r62, 0;\n"
        "@%p2 mbarrier.arrive.shared.b64 %d9, [%r60], 2;\n" +
        consumer);
  clean(init(2) + isConsumer + write +
        "bar.warp.sync -1; setp.eq.u32 %p2, %r62, 0;\n"
        "@%p2 mbarrier.arrive.noComplete.shared.b64 %d9, [%r60], 1;\n"
        "@%p2 mbarrier.arrive.shared.b64 _, [%r60];\n" +
        consumer);
}

TEST_F(MbarrierTest, RingOfOneStage) {
  // Full at [0], empty at [8]; three rounds.
  auto ring = [&](const std::string &empty, const std::string &released) {
    std::string body = init(32) + isConsumer;
    for (int round = 0; round < 3; ++round) {
      if (round && !empty.empty())
        body += wait(empty + std::to_string(round), 8, (round - 1) & 1);
      body += write + arrive;
    }
    body += "bra End;\nConsumer:\n";
    for (int round = 0; round < 3; ++round)
      body += wait("F" + std::to_string(round), 0, round & 1) + readOther +
              released;
    return body + "End:";
  };
  const std::string release = "mbarrier.arrive.shared.b64 _, [%r60+8];\n";
  clean(ring("E", release));
  // The producer does not wait for the consumer: a race unless it has done all
  // its rounds before the consumer starts.
  int found = 0;
  for (uint64_t seed = 1; seed < 10; ++seed) {
    options.seed = seed;
    found += int(byKind(run(ring("", release), 64)).count(FindingKind::Race));
  }
  EXPECT_GT(found, 0);
}

TEST_F(MbarrierTest, InitialisationNeedsABarrier) {
  const std::string consumer =
      "bra End;\nConsumer:\n" + wait("W", 0, 0) + "End:";
  clean(init(32) + isConsumer + arrive + consumer);
  options.seed = 0;
  EXPECT_TRUE(byKind(run(init(32, "") + isConsumer + arrive + consumer, 64))
                  .count(FindingKind::Race));
}

TEST_F(MbarrierTest, StateTokens) {
  // A token is that of the phase in which the thread arrived.
  const std::string test =
      "mbarrier.arrive.shared.b64 %d9, [%r60];\n"
      "Loop: mbarrier.test_wait.shared.b64 %p5, [%r60], %d9;\n"
      "@!%p5 bra Loop;\n";
  clean(init(64) + write + test + readOther);
  finds(FindingKind::Race, init(64) + write +
                               "mbarrier.arrive.shared.b64 %d9, [%r60];\n" +
                               readOther);
  options.seed = 0;
  expectClean(run(init(64) + "mbarrier.arrive.shared.b64 %d9, [%r60];\n"
                             "mbarrier.pending_count.b64 %r7, %d9;\n"
                             "st.global.u32 [%d4], %r7;",
                  64));
  for (uint32_t t = 0; t < 64; ++t) // before its own arrival
    EXPECT_EQ(last[t], 64 - t);
  // arrive_drop: the next phase expects one warp less.
  clean(init(64) + isConsumer + write +
        "mbarrier.arrive_drop.shared.b64 _, [%r60]; bra End;\nConsumer:\n" +
        "mbarrier.arrive.shared.b64 _, [%r60];\n" + wait("W0", 0, 0) +
        readOther + "mbarrier.arrive.shared.b64 _, [%r60];\n" +
        wait("W1", 0, 1) + "End:");
}

TEST_F(MbarrierTest, TooManyArrivals) {
  options.seed = 0;
  expectOnly(FindingKind::Sync,
             run(init(1) + "mbarrier.arrive.shared.b64 _, [%r60], 2;", 1));
  expectOnly(
      FindingKind::Sync,
      run(init(1) + "mbarrier.arrive.noComplete.shared.b64 %d9, [%r60], 1;",
          1));
}

TEST_F(MbarrierTest, CopiesArrive) {
  const std::string copy = "shl.b32 %r1, %r102, 4; add.u32 %r3, %r1, %r50;\n"
                           "cvt.u64.u32 %d6, %r1; add.s64 %d6, %d6, %d0;\n"
                           "cp.async.cg.shared.global [%r3], [%d6], 16;\n";
  const std::string read = "bra End;\nConsumer:\n" + wait("W", 0, 0) +
                           "shl.b32 %r1, %r62, 4; add.u32 %r1, %r1, %r50;\n"
                           "ld.shared.u32 %r2, [%r1];\n"
                           "st.global.u32 [%d4], %r2;\nEnd:";
  for (bool late : {false, true}) {
    options.lateCopies = late;
    clean(init(32) + isConsumer + copy +
          "cp.async.mbarrier.arrive.noinc.shared.b64 [%r60];\n" + read);
    finds(FindingKind::AsyncRace, init(32) + isConsumer + copy + arrive + read);
  }
}

TEST_F(MbarrierTest, BulkCopies) {
  // Thread 0 copies 256 bytes; all of warp 1 read.
  const std::string copy =
      "mov.u32 %r8, 256;\n"
      "@!%p9 mbarrier.arrive.expect_tx.shared.b64 _, [%r60], 256;\n"
      "@!%p9 cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes "
      "[%r50], [%d0], %r8, [%r60];\n";
  const std::string read = "ld.shared.u32 %r2, [%r52];\n"
                           "st.global.u32 [%d4], %r2;\n";
  const std::string own = "ld.shared.u32 %r2, [%r52];\n";
  for (bool late : {false, true}) {
    options.lateCopies = late;
    clean(init(1) + copy + wait("W", 0, 0) + read);
    options.seed = 0; // a reader that comes first would be another race
    expectOnly(FindingKind::AsyncRace, run(init(1) + copy + own, 64));
    // A barrier does not wait for copies.
    finds(FindingKind::AsyncRace, init(1) + copy + "bar.sync 0;\n" + read);
    // One warp waits, the other reads as well: noticed whatever the order.
    const std::string first = "setp.ge.u32 %p1, %r102, 32; @%p1 bra Go;\n";
    for (uint64_t seed = 0; seed < 6; ++seed) {
      options.seed = seed;
      LaunchReport report =
          run(init(1) + copy + first + wait("W", 0, 0) + "Go:" + read, 64);
      EXPECT_TRUE(byKind(report).count(FindingKind::Race) ||
                  byKind(report).count(FindingKind::AsyncRace))
          << describe(report);
    }
    clean(init(1) + copy + first + wait("W", 0, 0) + "Go: bar.sync 0;\n" +
          read);
  }
}

} // namespace
