//===- SessionTest.cpp - Padding, checks and replay -----------------------===//

#include "Fixture.h"

#include <algorithm>

using namespace kvcache;
using namespace kvcache::test;

namespace {

using SessionTest = RuntimeTest;

TEST_F(SessionTest, RunsCleanOverSeveralSteps) {
  for (bool packed : {false, true}) {
    bundle = makeBundle(ptx(), packed);
    start();
    // Sequence 0 crosses into its second page; sequence 1 comes later.
    const Batch steps[] = {{{7}, {7}},
                           {{8}, {1}},
                           {{14, 1}, {6, 1}},
                           {{20, 2}, {6, 1}},
                           {{21, 3}, {1, 1}}};
    for (const Batch &batch : steps) {
      setBatch(batch, 1);
      for (size_t i = 0; i < 2; ++i) {
        RunReport report = run(i);
        EXPECT_TRUE(report.clean()) << describe(report);
        EXPECT_EQ(report.launches.size(), 2u);
      }
    }
  }
}

TEST_F(SessionTest, TheSameStateGivesTheSameBits) {
  std::vector<uint8_t> first;
  for (int repeat = 0; repeat < 2; ++repeat) {
    start();
    setBatch({{5, 3}, {5, 3}}, 3);
    run(0);
    std::vector<uint8_t> output = bytes("layer0.output");
    // Writing the same rows again changes nothing either.
    run(0);
    EXPECT_EQ(bytes("layer0.output"), output);
    if (repeat == 0)
      first = output;
    else
      EXPECT_EQ(output, first);
  }
  EXPECT_EQ(first.size(), 8u * 4 * 64 * 2);
}

TEST_F(SessionTest, ReplayAtOtherLengthsEqualsAFreshRun) {
  auto outputAt = [&](const std::vector<Batch> &history) {
    start();
    for (const Batch &batch : history) {
      setBatch(batch, 4);
      run(0);
    }
    return bytes("layer0.output");
  };
  Batch small{{1}, {1}}, large{{8}, {8}}, empty{{0}, {0}};
  std::vector<uint8_t> fresh = outputAt({small});
  EXPECT_EQ(outputAt({large, small}), fresh);
  EXPECT_EQ(outputAt({small, empty, small}), fresh);
}

TEST_F(SessionTest, TablesArePaddedByRole) {
  start();
  setBatch({{5, 2}, {5, 2}}, 1);
  setBatch({{6}, {1}}, 1);
  auto whole = [&](const char *name) {
    return session->readAll(*bundle.manifest.findBuffer(name))->data;
  };
  auto expected = [](HostTensor tensor) { return tensor.data; };
  EXPECT_EQ(whole("slot_mapping"),
            expected(integers<int64_t>(
                {8}, {slotOf(0, 5), -1, -1, -1, -1, -1, -1, -1})));
  EXPECT_EQ(whole("lengths"), expected(integers<int32_t>({2}, {6, 0})));
  EXPECT_EQ(whole("query_start"), expected(integers<int32_t>({3}, {0, 1, 1})));
  EXPECT_EQ(whole("page_table"),
            expected(integers<int32_t>({2, 2}, {2, 2147480000, -1, -1})));
}

TEST_F(SessionTest, ActivationsBeyondTheirExtentCountAsNeverWritten) {
  start();
  setBatch({{5}, {5}}, 1);
  const Buffer &query = *bundle.manifest.findBuffer("layer0.query");
  uint64_t row = 4 * 64 * 2;
  EXPECT_EQ(*device->firstUnwritten(session->address(query), 8 * row), 5 * row);
  setBatch({{6}, {1}}, 1);
  EXPECT_EQ(*device->firstUnwritten(session->address(query), 8 * row), row);
}

TEST_F(SessionTest, ReadingSlotsThatNoWriteReachedIsAFinding) {
  start();
  setBatch({{5}, {3}}, 1); // tokens 0 and 1 were never written
  RunReport report = run(0);
  ASSERT_GT(report.findingCount(), 0u);
  const ptx::Finding &finding = report.launches[1].report.findings[0];
  EXPECT_EQ(finding.kind, ptx::FindingKind::Uninitialised);
  EXPECT_EQ(finding.kernel, "simple_attention");
  EXPECT_GT(finding.line, 0u);
}

TEST_F(SessionTest, ACacheFillGivesEverySlotAValue) {
  SessionOptions options;
  options.cacheFill = 0x38; // 1.0
  start(options);
  setBatch({{5}, {3}}, 1);
  RunReport report = run(0);
  EXPECT_TRUE(report.clean()) << describe(report);
  std::vector<uint8_t> cache = bytes("layer0.k_cache");
  EXPECT_EQ(cache[0], 0x38);
  EXPECT_EQ(std::count(cache.begin(), cache.end(), 0x38) > 6 * 16 * 128, true);
}

TEST_F(SessionTest, RowsThatNobodyWroteAreAFault) {
  bundle.manifest.targets[0].launches[1].grid = {4, 1, 1};
  start();
  setBatch({{3}, {3}}, 1);
  RunReport report = run(0);
  ASSERT_EQ(report.faults.size(), 1u) << describe(report);
  EXPECT_EQ(report.faults[0],
            "layer0.output: row 1 of 3 was not fully written: byte 0 of its "
            "512 is the first that nobody wrote");
}

TEST_F(SessionTest, AHeadThatNobodyWroteIsAFault) {
  bundle.manifest.targets[0].launches[1].grid = {3, 8, 1};
  start();
  setBatch({{3}, {3}}, 1);
  RunReport report = run(0);
  ASSERT_EQ(report.faults.size(), 1u) << describe(report);
  EXPECT_NE(report.faults[0].find("row 0 of 3 was not fully written: byte 384"),
            std::string::npos)
      << report.faults[0];
}

TEST_F(SessionTest, CountersThatAreNotZeroAgainAreAFault) {
  start();
  setBatch({{3}, {3}}, 1);
  const Buffer &counters = *bundle.manifest.findBuffer("workspace.counters");
  int32_t three = 3;
  ASSERT_FALSE(bool(device->copyIn(session->address(counters) + 8, &three, 4)));
  RunReport report = run(0);
  ASSERT_EQ(report.faults.size(), 1u) << describe(report);
  EXPECT_EQ(report.faults[0],
            "workspace.counters[2]: expected 0 after the run, found 3");
}

TEST_F(SessionTest, ASlotPastThePoolIsAFault) {
  start();
  setBatch({{2}, {2}}, 1);
  set("slot_mapping", integers<int64_t>({2}, {slotOf(0, 0), 7 * 16}));
  set("lengths", integers<int32_t>({1}, {1}));
  set("query_start", integers<int32_t>({2}, {0, 1}));
  RunReport report = run(0);
  ASSERT_EQ(report.faults.size(), 1u) << describe(report);
  EXPECT_NE(report.faults[0].find("slot_mapping[1]: expected a slot below 112"),
            std::string::npos)
      << report.faults[0];
}

TEST_F(SessionTest, AWriteToAnInputIsAFinding) {
  for (Buffer &buffer : bundle.manifest.buffers)
    if (buffer.name == "layer0.k_cache")
      buffer.access = BufferAccess::Read;
  start();
  setBatch({{2}, {2}}, 1);
  RunReport report = run(0);
  ASSERT_FALSE(report.launches[0].report.findings.empty());
  const ptx::Finding &finding = report.launches[0].report.findings[0];
  EXPECT_EQ(finding.kind, ptx::FindingKind::ReadOnlyWrite);
  EXPECT_EQ(finding.buffer, "layer0.k_cache");
}

TEST_F(SessionTest, OutputsFollowTheRowsOfTheirQueries) {
  start();
  setBatch({{3, 1}, {3, 1}}, 1);
  run(0);
  EXPECT_EQ(session->read("layer0.output")->shape,
            (std::vector<int64_t>{4, 4, 64}));
  setBatch({{4, 2}, {1, 1}}, 1);
  run(0);
  EXPECT_EQ(session->read("layer0.output")->shape,
            (std::vector<int64_t>{2, 4, 64}));
}

TEST_F(SessionTest, InputsOfAnotherTypeOrShapeAreRefused) {
  start();
  EXPECT_EQ(setMessage("nothing", randomBF16({1}, 1)),
            "nothing: the bundle has no buffer of that name");
  EXPECT_EQ(setMessage("workspace.partials", randomBF16({64}, 1)),
            "workspace.partials: is a workspace, which has no inputs");
  EXPECT_EQ(setMessage("layer0.query", randomBF16({9, 4, 64}, 1)),
            "layer0.query: expected bf16[8, 4, 64] at most, with dynamic dims "
            "0, found bf16[9, 4, 64]");
  EXPECT_NE(setMessage("layer0.query", randomBF16({3, 4, 32}, 1)), "accepted");
  EXPECT_NE(setMessage("layer0.query", randomBF16({3, 256}, 1)), "accepted");
  EXPECT_NE(setMessage("lengths", integers<int64_t>({1}, {1})), "accepted");
  EXPECT_NE(setMessage("layer0.k_cache", randomBF16({7, 16, 2, 64}, 1)),
            "accepted");
}

TEST_F(SessionTest, TablesThatDoNotFitEachOtherAreRefused) {
  start();
  Batch batch{{5, 2}, {5, 2}};
  setBatch(batch, 1);
  set("query_start", integers<int32_t>({3}, {0, 5, 4}));
  EXPECT_EQ(runMessage(0), "query_start[2]: expected at least 5, found 4");
  set("query_start", integers<int32_t>({3}, {1, 5, 6}));
  EXPECT_EQ(runMessage(0), "query_start[0]: expected 0, found 1");
  set("query_start", integers<int32_t>({3}, {0, 5, 8}));
  EXPECT_EQ(runMessage(0), "layer0.query: expected at least 8 rows, as "
                           "query_start says, found 7");
  setBatch(batch, 1);
  set("lengths", integers<int32_t>({2}, {5, 33}));
  EXPECT_EQ(runMessage(0),
            "lengths[1]: expected 0 to 32 (2 pages of 16), found 33");
  set("lengths", integers<int32_t>({2}, {-1, 2}));
  EXPECT_NE(runMessage(0), "ran");
  setBatch(batch, 1);
  set("page_table", integers<int32_t>({2, 2}, {2, -1, 7, -1}));
  EXPECT_EQ(runMessage(0), "page_table[1, 0]: expected a page below 7 for the "
                           "sequence's 2 tokens, found 7");
  setBatch(batch, 1);
  set("layer0.key", randomBF16({7, 2, 64}, 1));
  set("slot_mapping", integers<int64_t>({8}, {0, 1, 2, 3, 4, 5, 6, 7}));
  EXPECT_EQ(runMessage(0), "slot_mapping[7]: expected -1, as layer0.key has 7 "
                           "rows, found 7");
}

TEST_F(SessionTest, AStepNeedsAProgramWithRoom) {
  Program small = bundle.manifest.programs[0];
  small.name = "main.b1";
  small.bucket = Bucket{"main", 1, 4};
  bundle.manifest.programs.push_back(small);
  start();
  const std::vector<Program> &programs = bundle.manifest.programs;
  auto chosen = [&](const Program &of) {
    Expected<const Program *> program = session->programForInputs(of, nullptr);
    return program ? (*program)->name : program.message();
  };
  setBatch({{5}, {4}}, 1);
  EXPECT_EQ(chosen(programs[0]), "main.b1");
  setBatch({{5}, {5}}, 1);
  EXPECT_EQ(chosen(programs[0]), "main");
  setBatch({{5, 2}, {1, 1}}, 1);
  EXPECT_EQ(chosen(programs[0]), "main");
  EXPECT_EQ(chosen(programs[1]), "program main.b1 has room for 1 sequences and "
                                 "4 tokens, found 2 and 2");
}

TEST_F(SessionTest, MissingActivationsAreRefused) {
  start();
  set("query_start", integers<int32_t>({2}, {0, 1}));
  EXPECT_EQ(runMessage(0), "layer0.query: no value was given; expected 1 rows, "
                           "as query_start says");
  set("layer0.query", randomBF16({1, 4, 64}, 1));
  set("layer0.key", randomBF16({1, 2, 64}, 2));
  set("layer0.value", randomBF16({1, 2, 64}, 3));
  EXPECT_EQ(runMessage(0),
            "lengths: no value was given; expected the length of "
            "each sequence, the new tokens included");
}

TEST_F(SessionTest, CachesGoInAndOutThroughTheirStrides) {
  bundle = makeBundle(ptx(), /*packed=*/true);
  start();
  HostTensor cache;
  cache.elementType = ElementType::U8;
  cache.shape = {7, 16, 2, 64};
  Random random(9);
  for (int64_t i = 0; i < elementCount(cache.shape); ++i)
    cache.data.push_back(uint8_t(random.next() * 127));
  set("layer0.v_cache", cache);
  EXPECT_EQ(bytes("layer0.v_cache"), cache.data);
  Expected<std::vector<uint8_t>> memory =
      session->memory(*bundle.manifest.findBuffer("layer0.v_cache"));
  ASSERT_TRUE(bool(memory));
  EXPECT_EQ((*memory)[2048], cache.data[0]);           // V of page 0
  EXPECT_EQ((*memory)[4096 + 2048], cache.data[2048]); // V of page 1
  EXPECT_EQ((*memory)[0], 0xFF);                       // K was never written
}

TEST_F(SessionTest, TheNewestTargetThatCanBeExecutedIsChosen) {
  Target newer = bundle.manifest.targets[0];
  newer.chip = "sm_100";
  newer.ptx.file = "code/sm_100.ptx";
  bundle.manifest.targets.push_back(newer);
  std::string text = ptx();
  size_t body = text.find("ld.param");
  ASSERT_NE(body, std::string::npos);
  bundle.files["code/sm_100.ptx"] = text.substr(0, body) +
                                    "tcgen05.fence::before_thread_sync;\n\t" +
                                    text.substr(body);
  device = createSimDevice();
  Expected<const Target *> target = selectTarget(bundle, *device);
  ASSERT_TRUE(bool(target)) << target.message();
  EXPECT_EQ((*target)->chip, "sm_90");

  // Code that is broken is not passed over.
  bundle.files["code/sm_100.ptx"] = "garbage";
  EXPECT_FALSE(bool(selectTarget(bundle, *device)));
  bundle.files["code/sm_100.ptx"] = text.substr(0, body) +
                                    "tcgen05.fence::before_thread_sync;\n\t" +
                                    text.substr(body);

  target = selectTarget(bundle, *device, "sm_100");
  ASSERT_FALSE(bool(target));
  EXPECT_NE(target.message().find("tcgen05.fence"), std::string::npos)
      << target.message();
  target = selectTarget(bundle, *device, "sm_80");
  ASSERT_FALSE(bool(target));
  EXPECT_EQ(target.message(),
            "the bundle has no target sm_80; it has sm_90, sm_100");
}

TEST_F(SessionTest, LaunchesThatDoNotFitTheirKernelAreRefused) {
  auto message = [&] {
    device = createSimDevice();
    Expected<const Target *> target = selectTarget(bundle, *device);
    return target ? std::string("loaded") : target.message();
  };
  std::vector<Launch> &launches = bundle.manifest.targets[0].launches;
  launches[0].arguments.pop_back();
  EXPECT_EQ(message(),
            "manifest.json: target sm_90, launches[0]: kernel "
            "\"simple_write\" of code/sm_90.ptx takes 9 arguments, found 8");
  launches[0].arguments.push_back(Argument::ofI32(1));
  EXPECT_NE(message().find("arguments[8]: kernel \"simple_write\" of "
                           "code/sm_90.ptx takes a value of 8 bytes, found one "
                           "of 4"),
            std::string::npos)
      << message();
  launches[0].arguments.back() = Argument::ofI64(112);
  EXPECT_EQ(message(), "loaded");
  launches[0].block = {256, 1, 1};
  EXPECT_NE(message().find("allows 128 threads, found 256"), std::string::npos)
      << message();
  launches[0].block = {64, 1, 1};
  EXPECT_EQ(message(), "loaded");
  // .reqntid says the only block there is.
  std::string &text = bundle.files["code/sm_90.ptx"];
  size_t at = text.find(".maxntid 128");
  ASSERT_NE(at, std::string::npos);
  text.replace(at, 12, ".reqntid 128");
  launches[0].block = {64, 1, 1};
  EXPECT_NE(message().find("block: kernel \"simple_write\" of code/sm_90.ptx "
                           "requires [128, 1, 1], found [64, 1, 1]"),
            std::string::npos)
      << message();
  launches[0].block = {128, 1, 1};
  EXPECT_EQ(message(), "loaded");
  launches[0].kernel = "other";
  EXPECT_NE(message().find("kernel \"other\" is not in code/sm_90.ptx"),
            std::string::npos);
}

} // namespace
