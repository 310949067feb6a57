//===- ParserTest.cpp - Errors with lines, refused instructions -----------===//

#include "PTXTest.h"

#include <iterator>
#include <random>

using namespace kvcache::ptx;

namespace {

class ParserTest : public PTXTest {
protected:
  static std::string parseError(const std::string &text) {
    kvcache::Expected<Module> module = Module::parse(text, "bad.ptx");
    return module ? "" : module.message();
  }
  static std::string entry(const std::string &body) {
    return ".version 9.4\n.target sm_90a\n.address_size 64\n.entry k()\n{\n" +
           body + "\n}\n";
  }
  std::string launchError(const std::string &text, Dim3 block = {}) {
    kvcache::Expected<Module> module = Module::parse(text, "test.ptx");
    EXPECT_TRUE(bool(module)) << module.message();
    kvcache::Expected<LaunchReport> report =
        machine.launch(*module, "k", {}, block, 0, nullptr);
    return report ? "" : report.message();
  }
};

#define EXPECT_HAS(text, part)                                                 \
  EXPECT_NE((text).find(part), std::string::npos) << (text)

TEST_F(ParserTest, ErrorsNameFileLineAndWhatWasExpected) {
  EXPECT_EQ(parseError(entry("ret;")), "");
  std::string e = parseError(entry("bra Nowhere;"));
  EXPECT_HAS(e, "bad.ptx: line 6");
  EXPECT_HAS(e, "Nowhere");
  e = parseError(entry(".reg .b32 %r<2>;\nmov.u32 %r1, %r7;"));
  EXPECT_HAS(e, "line 7");
  EXPECT_HAS(e, "%r7");
  e = parseError(entry(".reg .b33 %r<2>;"));
  EXPECT_HAS(e, "line 6");
  EXPECT_HAS(e, ".b33");
  e = parseError(entry("@%p1 ret;"));
  EXPECT_HAS(e, "line 6");
  EXPECT_HAS(e, "predicate");
  e = parseError(entry("mov.u32 5, 6"));
  EXPECT_HAS(e, "line 7");
  EXPECT_HAS(e, "';'");
  EXPECT_HAS(parseError(".version 8.0\n.entry k()\n{ ret;"), "expected '}'");
  EXPECT_HAS(parseError(".version 8.0\n/* no end"), "line 2");
  EXPECT_HAS(parseError(".version 8.0\n.nonsense"), ".nonsense");
  EXPECT_HAS(parseError(".version 8.0\n.address_size 32\n"), "line 2");
  EXPECT_HAS(parseError(entry(".reg .b32 %r<2>;\nld.global.u32 %r1, %r1;")),
             "line 7");
}

TEST_F(ParserTest, NumbersAndSizesAreBounded) {
  const std::string registers = ".reg .b32 %r<4>; .reg .b64 %d<4>;\n"
                                ".reg .pred %p<4>;\n";
  std::string deep(100000, '('), blocks(1000, '{'), calls;
  for (int n = 0; n < 300; ++n)
    calls += ".func f" + std::to_string(n) + "() { call f" +
             std::to_string(n + 1) + "; ret; }\n";
  std::string doubled = ".func g0() { ret; }\n";
  for (int n = 1; n < 40; ++n) {
    std::string call = " call g" + std::to_string(n - 1) + ";";
    doubled += ".func g" + std::to_string(n) + "() {" + call + call + " }\n";
  }
  const std::pair<std::string, std::string> bad[] = {
      {entry(registers + "mov.u32 %r1, 99999999999999999999;"), "64 bits"},
      {entry(registers + "mov.u32 %r1, 09;"), "base 8"},
      {entry(registers + "mov.u32 %r1, 0x;"), "base 16"},
      {entry(registers + "mov.f32 %r1, 0f3f;"), "8 hexadecimal digits"},
      {entry(registers + "mov.u32 %r1, " + deep + "1;"), "inside each other"},
      {entry(blocks + std::string(1000, '}')), "blocks inside each other"},
      {entry(".reg .b32 %r<-1>;"), "at least one register"},
      {entry(".reg .b32 %r<99999999999>;"), "50,000 registers"},
      {entry(".reg .pred %p<70000>;"), "50,000 predicates"},
      {entry(".local .b8 l[1000000];"), "expected at most 524288"},
      {entry(".shared .b8 s[4294967296];"), "out of range"},
      {entry(".shared .b64 s[131073];"), "expected at most 1048576"},
      {entry(".shared .align 3 .b8 s[4];"), "power of two"},
      {".global .b8 g[65536][65536][65536][65536];", "255 MiB"},
      {".entry k(.param .b8 p[99999]) { ret; }", "expected at most 32768"},
      {".global .pred g = 0f3f800000;", "type of 8 bits or more"},
      {".func f", "expected a name"},
      {".func f()", "expected a name"},
      {".entry k", "expected '{'"},
      {calls + ".func f300() { ret; }\n" + entry("call f0;"),
       "calls inside each other"},
      {doubled + entry("call g39;"), "instructions, those of called"},
      {entry(registers + "setp.eq.u32 %p1|%r1, %r2, %r3;"),
       "a predicate behind '|'"},
      {entry(registers + "add.u64 %d1, %d2, %r1;"), "register of 64 bits"},
      {entry(registers + "add.u32 %r1, %r2, %d1;"), "up to 32 bits"},
      {entry(registers + "st.global.b64 [%d1], %r1;"), "register of 64 bits"},
  };
  for (auto &[text, part] : bad) {
    std::string e = parseError(text);
    EXPECT_HAS(e, part) << text.substr(0, 200);
    EXPECT_HAS(e, "bad.ptx: line ");
  }
}

/// Damaged text is read or refused, with the line; what can be run, runs.
TEST_F(ParserTest, DamagedModules) {
  const std::string whole = kernel(
      "mul.wide.u32 %d6, %r102, 16; add.s64 %d6, %d0, %d6; mov.u32 %r3, s;\n"
      "shl.b32 %r4, %r102, 4; add.u32 %r3, %r3, %r4;\n"
      "cp.async.cg.shared.global [%r3], [%d6], 16;\ncp.async.wait_all;\n"
      "bar.sync 0;\n"
      "ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%r5,%r6,%r7,%r8}, [%r3];\n"
      "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%r9,%r10,%r11,%r12}"
      ", {%r5,%r6,%r7,%r8}, {%r5,%r6}, {%r5,%r6,%r7,%r8};\n"
      "setp.lt.f32 %p1|%p2, %r9, 1.5;\n@%p1 bra Skip;\n"
      "shfl.sync.bfly.b32 %r14|%p4, %r10, 1, 31, -1;\nSkip:\n"
      "vote.sync.ballot.b32 %r15, %p2, -1;\n"
      "atom.shared.cas.b32 %r16, [%r3], 1, %r15;\n"
      "cvt.rn.satfinite.e4m3x2.f32 %h1, %r9, %r10;\n"
      "set.lt.f16x2.f16x2 %r17, %r5, %r6;\nprmt.b32 %r18, %r5, %r6, 0x5410;\n"
      "mov.b64 %d7, {%r17, %r18};\nmbarrier.init.shared.b64 [%r3], 32;\n"
      "T: .branchtargets A, B;\nand.b32 %r19, %r0, 1;\nbrx.idx %r19, T;\n"
      "A: bar.red.popc.u32 %r20, 0, %p1;\nB:\n"
      "st.global.v4.u32 [%d6], {%r17, %r18, %r19, %r20};",
      ".shared .align 16 .b8 s[1024];\n.const .f32 c[2] = {1.5, -2.0};\n");
  const char *pieces[] = {"99999999999999999999",
                          "-1",
                          "0x",
                          "{",
                          "}",
                          "(",
                          "[",
                          ";",
                          ",",
                          "|",
                          "!",
                          "%r1",
                          "%p1",
                          "_",
                          "/*",
                          "\"",
                          ".b64",
                          ".x4",
                          ".pred",
                          "[%r1+4]",
                          ".wide",
                          "{%r1,%r2,%r3,%r4,%r5,%r6,%r7,%r8,%r9,%r10}"};
  std::mt19937_64 random(7);
  std::vector<uint8_t> data(1 << 14);
  const uint64_t p = add(data);
  const void *pointers[] = {&p, &p, &p};
  options.maxInstructions = 500;
  size_t refused = 0, run = 0;
  for (int n = 0; n < 2000; ++n) {
    std::string text = whole;
    for (uint64_t times = 1 + random() % 3; times; --times) {
      size_t at = random() % text.size();
      if (random() % 3 == 0)
        text.erase(at, 1 + random() % 8);
      else if (random() % 2)
        text.insert(at, pieces[random() % std::size(pieces)]);
      else
        text[at] = char(random());
    }
    kvcache::Expected<Module> module = Module::parse(text, "bad.ptx");
    if (!module) {
      ++refused;
      EXPECT_HAS(module.message(), "bad.ptx: line ");
    } else if (const KernelInfo *k = module->findKernel("k")) {
      if (k->parameters.size() <= 3 && k->parameterBytes <= 24)
        run += bool(
            machine.launch(*module, "k", {}, {32, 1, 1}, 0, pointers, options));
    }
  }
  EXPECT_GT(refused, 100u);
  EXPECT_GT(run, 20u);
}

/// A function whose address is taken: what calls it is refused, the rest runs.
TEST_F(ParserTest, IndirectCallsAreRefusedByName) {
  const std::string functions =
      ".func f() { ret; }\n.global .align 8 .u64 table[1] = {f};\n";
  std::string text =
      functions + entry(".reg .b64 %d<2>;\nmov.u64 %d1, f; call %d1, p;");
  EXPECT_HAS(launchError(text), "indirect call");
  EXPECT_EQ(launchError(functions + entry("ret;")), "");
}

TEST_F(ParserTest, UnknownInstructionsAreRefusedAtLaunch) {
  std::string text = entry(".reg .b32 %r<4>; .reg .b64 %d<2>;\n"
                           "wgmma.fence.sync.aligned;\n"
                           "add.u32 %r1, %r1, 1;\n"
                           "add.sat.u32 %r1, %r1, 1;\n"
                           "frobnicate.b32 %r1, %r2;");
  kvcache::Expected<Module> module = Module::parse(text);
  ASSERT_TRUE(bool(module)) << module.message();
  ASSERT_EQ(module->findKernel("k")->unsupported.size(), 3u);
  std::string e = launchError(text);
  EXPECT_HAS(e, "line 7: wgmma.fence.sync.aligned");
  EXPECT_HAS(e, "line 9: add.sat.u32");
  EXPECT_HAS(e, "line 10: frobnicate.b32");
}

TEST_F(ParserTest, ModifiersThatAreNotKnownAreRefused) {
  for (const char *bad :
       {"add.cc.u16 %r1, %r2, %r3;", "mad.lo.sat.s32 %r1, %r2, %r3, %r1;",
        "mad.cc.u32 %r1, %r2, %r3, %r1;",
        "st.shared.v8.b32 [%r1], {%r1,%r1,%r1,%r1,%r1,%r1,%r1,%r1};",
        "wmma.mma.sync.aligned.row.col.m16n16k16.f32.f32 {%r1}, {%r1}, {%r1}, "
        "{%r1};",
        "shfl.bfly.b32 %r1, %r2, 1, 31;",
        "cvt.rs.f16x2.f32 %r1, %r2, %r3, %r1;", "vote.all.pred %p1, %p1;",
        "mma.sync.aligned.m8n8k4.row.col.f32.f16.f16.f32 {%r1,%r2}, {%r1}, "
        "{%r1}, {%r1,%r2};",
        "atom.global.add.f64.noftz.v2 %d1, [%d1], %d1;",
        "barrier.cluster.arrive;",
        "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::"
        "complete_tx::bytes [%r1], [%d1, {%r1, %r2}], [%r3];",
        "ld.global.b128 %d1, [%d1];",
        "tex.2d.v4.f32.f32 {%r1,%r2,%r3,%r1}, "
        "[%d1, {%r1, %r2}];"})
    EXPECT_HAS(launchError(entry(".reg .b32 %r<4>; .reg .b64 %d<2>; .reg "
                                 ".pred %p<2>;\n" +
                                 std::string(bad))),
               "line 7")
        << bad;
}

TEST_F(ParserTest, CallsThatCannotBeInlined) {
  std::string text =
      ".extern .func (.param .b32 r) vprintf (.param .b64 f);\n" +
      entry(".param .b64 f; .param .b32 r;\n"
            "call.uni (r), vprintf, (f);");
  std::string e = launchError(text);
  EXPECT_HAS(e, "vprintf");
  EXPECT_HAS(e, "only declares");
  e = launchError(".func loop()\n{ call loop; ret; }\n" + entry("call loop;"));
  EXPECT_HAS(e, "recursion");
}

TEST_F(ParserTest, LaunchChecksItsArguments) {
  std::string text = ".version 8.0\n.target sm_80\n.address_size 64\n"
                     ".visible .entry k()\n.maxntid 64, 1, 1\n{ ret; }";
  EXPECT_EQ(launchError(text, {64, 1, 1}), "");
  EXPECT_HAS(launchError(text, {65, 1, 1}), "allows 64");
  EXPECT_HAS(launchError(text, {0, 1, 1}), "must not be empty");
  kvcache::Expected<Module> module = Module::parse(text);
  auto report = machine.launch(*module, "other", {}, {}, 0, nullptr);
  ASSERT_FALSE(bool(report));
  EXPECT_HAS(report.message(), "it has: k");
  EXPECT_EQ(module->targetArch(), 80);
}

TEST_F(ParserTest, DescribesKernels) {
  std::string text =
      ".version 8.0\n.target sm_80\n.address_size 64\n"
      ".extern .shared .align 16 .b8 dynamic[];\n"
      ".entry k(.param .u32 a, .param .u64 .ptr .global .align 16 b,\n"
      "  .param .align 8 .b8 c[24], .param .f32 d)\n"
      "{ .shared .align 4 .b8 s[20]; .local .align 8 .b8 l[40]; ret; }";
  kvcache::Expected<Module> module = Module::parse(text);
  ASSERT_TRUE(bool(module)) << module.message();
  const KernelInfo &k = *module->findKernel("k");
  ASSERT_EQ(k.parameters.size(), 4u);
  const uint32_t offsets[] = {0, 8, 16, 40}, sizes[] = {4, 8, 24, 4};
  for (size_t n = 0; n < 4; ++n) {
    EXPECT_EQ(k.parameters[n].offset, offsets[n]);
    EXPECT_EQ(k.parameters[n].size, sizes[n]);
  }
  EXPECT_EQ(k.parameterBytes, 44u);
  EXPECT_EQ(k.staticSharedBytes, 20u);
  EXPECT_EQ(k.dynamicSharedAlignment, 16u);
  EXPECT_EQ(k.localBytes, 40u);
}

TEST_F(ParserTest, ScopesHideNames) {
  EXPECT_EQ(one("mov.u32 %r4, 1; { .reg .b32 %r4; mov.u32 %r4, 2; bra L;\n"
                "mov.u32 %r4, 3; L: add.u32 %r1, %r1, %r4; }\n"
                "{ bra L; mov.u32 %r1, 0; L: add.u32 %r1, %r1, 5; }\n"
                "add.u32 %r4, %r4, %r1;",
                10),
            18u);
}

TEST_F(ParserTest, BuffersReportMisuse) {
  std::vector<uint32_t> data(4);
  uint64_t p = add(data), q = add(data, "map", InitState::NoneValid);
  EXPECT_TRUE(bool(machine.removeBuffer(p + 4)));
  EXPECT_TRUE(bool(machine.setInitialised(p, 4, false)));
  EXPECT_FALSE(bool(machine.setInitialised(q, 8, true)));
  EXPECT_EQ(*machine.firstUninitialised(q, 16), 8u);
  EXPECT_FALSE(bool(machine.firstUninitialised(q, 20)));
  EXPECT_EQ(machine.hostPointer(q + 4, 4), &data[1]);
  EXPECT_EQ(machine.hostPointer(q + 16, 1), nullptr);
  EXPECT_FALSE(bool(machine.removeBuffer(p)));
}

} // namespace
