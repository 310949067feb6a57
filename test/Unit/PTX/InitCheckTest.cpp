//===- InitCheckTest.cpp - Bytes that nobody wrote ------------------------===//
//
// They may be loaded, copied, converted and selected away; they are a finding
// at an address, a branch, a guard, an atomic or an output.
//
//===----------------------------------------------------------------------===//

#include "PTXTest.h"

using namespace kvcache::ptx;

namespace {

/// The input has 8 words a lane; only the first half of them was written.
class InitCheckTest : public PTXTest {
protected:
  std::vector<uint8_t> outputMap;

  /// %r1: a word that nobody wrote, %r2: one that somebody wrote (5), %r3: the
  /// lower two bytes written. The snippet's result is %r4.
  LaunchReport run(const std::string &snippet,
                   UninitStore policy = UninitStore::Report,
                   const std::string &store = "st.global.u32 [%d4], %r4;") {
    std::vector<uint32_t> in(96, 5), out(32);
    std::vector<uint8_t> map(in.size() * 4, 0);
    for (size_t n = 128; n < 256; ++n)
      map[n] = 1;
    for (size_t n = 256; n < 384; n += 4)
      map[n] = map[n + 1] = 1;
    BufferOptions o;
    o.name = "in";
    o.init = InitState::FromMap;
    o.initMap = map.data();
    uint64_t pIn = machine.addBuffer(in.data(), in.size() * 4, o);
    o = BufferOptions();
    o.name = "out";
    o.init = InitState::NoneValid;
    o.uninitStore = policy;
    uint64_t pOut = machine.addBuffer(out.data(), out.size() * 4, o);
    LaunchReport report = launch(
        kernel("mov.u32 %r60, s; shl.b32 %r61, %r0, 2; add.u32 %r60, %r60, "
               "%r61;\nld.global.u32 %r1, [%d3]; ld.global.u32 %r2, "
               "[%d3+128];\nld.global.u32 %r3, [%d3+256];\n" +
                   snippet + "\n" + store,
               ".shared .align 16 .b8 s[1024];"),
        {pIn, pOut});
    outputMap = *machine.initialised(pOut, out.size() * 4);
    machine.clearBuffers();
    return report;
  }
  void expectFound(const std::string &snippet) {
    SCOPED_TRACE(snippet);
    expectOnly(FindingKind::Uninitialised, run(snippet));
  }
  void expectQuiet(const std::string &snippet) {
    SCOPED_TRACE(snippet);
    expectClean(run(snippet));
  }
};

TEST_F(InitCheckTest, Outputs) {
  expectQuiet("mov.u32 %r4, %r2;");
  expectFound("mov.u32 %r4, %r1;");
  expectFound("mov.u32 %r4, %r3;");
  expectFound("add.u32 %r4, %r1, %r2;");
  expectFound("add.f32 %r4, %r1, %r2;");
  expectFound("cvt.rn.f16x2.f32 %r4, %r2, %r1;");
  expectFound("shfl.sync.bfly.b32 %r4, %r1, 1, 31, -1;");
  // The finding names the buffer and the byte.
  LaunchReport report = run("mov.u32 %r4, %r1;");
  ASSERT_EQ(report.findings.size(), 1u);
  EXPECT_EQ(report.findings[0].buffer, "out");
  EXPECT_EQ(report.findingCount, 32u);
  EXPECT_EQ(outputMap, std::vector<uint8_t>(128, 0));
}

TEST_F(InitCheckTest, PropagatingBuffersRememberIt) {
  expectClean(run("mov.u32 %r4, %r3;", UninitStore::Propagate));
  for (size_t n = 0; n < 128; ++n)
    EXPECT_EQ(outputMap[n], n % 4 < 2) << n;
}

TEST_F(InitCheckTest, SelectedAway) {
  expectQuiet("and.b32 %r4, %r1, 0;");
  expectQuiet("and.b32 %r4, %r3, 0xffff;");
  expectFound("and.b32 %r4, %r3, 0x1ffff;");
  expectQuiet("or.b32 %r4, %r1, -1;");
  expectQuiet("setp.eq.u32 %p1, %r2, 5; selp.b32 %r4, 0xff800000, %r1, %p1;");
  expectFound("setp.ne.u32 %p1, %r2, 5; selp.b32 %r4, 0xff800000, %r1, %p1;");
  // Bit by bit: mask ? 7 : unwritten with mask = ~0, then with a hole.
  expectQuiet("mov.u32 %r5, 7; lop3.b32 %r4, %r5, %r1, -1, 0xe4;");
  expectFound("mov.u32 %r5, 7; lop3.b32 %r4, %r5, %r1, -5, 0xe4;");
  expectQuiet("prmt.b32 %r4, %r3, 0, 0x4410;");
  expectFound("prmt.b32 %r4, %r3, 0, 0x4420;");
  expectQuiet("shl.b32 %r4, %r3, 16;");
  expectFound("shr.u32 %r4, %r3, 16;");
  expectQuiet("bfe.u32 %r4, %r3, 4, 12;");
  expectFound("bfe.u32 %r4, %r3, 4, 13;");
  expectQuiet("mov.b32 {%h1, %h2}, %r3; cvt.u32.u16 %r4, %h1;");
  expectFound("mov.b32 {%h1, %h2}, %r3; cvt.u32.u16 %r4, %h2;");
  expectQuiet("cvt.u32.u8 %r4, %r3;");
  expectQuiet("cvt.u32.u64 %r5, %d0; mov.u32 %r4, 0; setp.eq.u32 %p1, %r2, 6;\n"
              "@%p1 mov.u32 %r4, %r1;");
}

TEST_F(InitCheckTest, ConversionsAreByteExact) {
  // Bytes 0 and 1 were written, so the f16x2 of the lower pair is valid.
  expectQuiet("cvt.u16.u32 %h1, %r3; cvt.rn.f16x2.e4m3x2 %r4, %h1;");
  expectFound("shr.u32 %r5, %r3, 8; cvt.u16.u32 %h1, %r5;\n"
              "cvt.rn.f16x2.e4m3x2 %r4, %h1;");
  expectQuiet("shr.u32 %r5, %r3, 8; cvt.u16.u32 %h1, %r5;\n"
              "cvt.rn.f16x2.e4m3x2 %r4, %h1; and.b32 %r4, %r4, 0xffff;");
  // f16x2 arithmetic treats its halves apart.
  expectQuiet("add.f16x2 %r4, %r3, %r2; and.b32 %r4, %r4, 0xffff;");
  expectFound("add.f16x2 %r4, %r3, %r2;");
  expectQuiet("cvt.rn.f16x2.f32 %r4, %r1, %r2; and.b32 %r4, %r4, 0xffff;");
}

TEST_F(InitCheckTest, Branches) {
  expectFound("mov.u32 %r4, 0; setp.gt.u32 %p1, %r1, 3; @%p1 bra L;\nL:");
  expectQuiet("mov.u32 %r4, 0; setp.gt.u32 %p1, %r2, 3; @%p1 bra L;\nL:");
  // A known false makes the conjunction known.
  expectQuiet("mov.u32 %r4, 0; setp.eq.u32 %p1, %r2, 6;\n"
              "setp.gt.and.u32 %p2, %r1, 3, %p1; @%p2 bra L;\nL:");
  expectFound("mov.u32 %r4, 0; setp.eq.u32 %p1, %r2, 5;\n"
              "setp.gt.and.u32 %p2, %r1, 3, %p1; @%p2 bra L;\nL:");
  expectQuiet("mov.u32 %r4, 0; setp.gt.u32 %p1, %r1, 3; setp.eq.u32 %p2, %r2, "
              "5; or.pred %p3, %p1, %p2; @%p3 bra L;\nL:");
  // A vote that one known lane decides; one that is open.
  expectQuiet("mov.u32 %r4, 0; setp.gt.u32 %p1, %r1, 3; setp.eq.u32 %p2, %r0, "
              "7; or.pred %p3, %p1, %p2; vote.sync.any.pred %p4, %p3, -1;\n"
              "@%p4 bra L;\nL:");
  expectFound("mov.u32 %r4, 0; setp.gt.u32 %p1, %r1, 3;\n"
              "vote.sync.any.pred %p4, %p1, -1; @%p4 bra L;\nL:");
  // Known bits that differ decide an equality.
  expectQuiet("mov.u32 %r4, 0; setp.eq.u32 %p1, %r3, 6; @%p1 bra L;\nL:");
}

TEST_F(InitCheckTest, AddressesGuardsAtomics) {
  expectFound("mov.u32 %r4, 0; and.b32 %r5, %r1, 4; cvt.u64.u32 %d6, %r5;\n"
              "add.s64 %d6, %d6, %d0; ld.global.u32 %r6, [%d6];");
  expectFound("mov.u32 %r4, 0; setp.gt.u32 %p1, %r1, 3;\n"
              "@%p1 ld.global.u32 %r6, [%d0];");
  expectFound("mov.u32 %r4, 0; atom.global.add.u32 %r5, [%d3+256], %r1;");
  expectFound("mov.u32 %r4, 0; atom.global.add.u32 %r5, [%d3], 1;");
  expectQuiet("atom.global.exch.b32 %r4, [%d3], 1; mov.u32 %r4, 0;");
  // An unknown guard makes the result unknown.
  expectFound("mov.u32 %r4, 0; setp.gt.u32 %p1, %r1, 3; @%p1 mov.u32 %r4, 1;");
}

TEST_F(InitCheckTest, ThroughSharedMemory) {
  expectFound("st.shared.u32 [%r60], %r1; bar.sync 0; ld.shared.u32 %r4, "
              "[%r60];");
  expectQuiet("st.shared.u32 [%r60], %r3; bar.sync 0; ld.shared.u16 %h1, "
              "[%r60]; cvt.u32.u16 %r4, %h1;");
  expectFound("ld.shared.u32 %r4, [%r60];");
  expectFound("cp.async.ca.shared.global [%r60], [%d3], 4;\n"
              "cp.async.wait_all; ld.shared.u32 %r4, [%r60];");
  expectQuiet("cp.async.ca.shared.global [%r60], [%d3], 4;\n"
              "cp.async.wait_all; ld.shared.u32 %r4, [%r60];\n"
              "and.b32 %r4, %r4, 0;");
  expectQuiet("cp.async.ca.shared.global [%r60], [%d3+128], 4;\n"
              "cp.async.wait_all; ld.shared.u32 %r4, [%r60];");
}

TEST_F(InitCheckTest, RegistersNobodyWrote) {
  expectFound("add.u32 %r4, %r77, 1;");
  expectFound("setp.eq.u32 %p1, %r2, 6; @%p1 mov.u32 %r4, 1;");
  expectQuiet("setp.eq.u32 %p1, %r2, 5; @%p1 mov.u32 %r4, 1;");
  expectFound("selp.b32 %r4, 1, 2, %p7;");
  expectFound(".local .align 4 .b8 l[8]; ld.local.u32 %r4, [l];");
}

TEST_F(InitCheckTest, MmaRowsAndColumns) {
  // Row 3 of A (lanes 12 to 15 of register 0) was never written: D rows other
  // than 3 are valid, row 3 is not.
  const std::string rows =
      "shr.u32 %r20, %r0, 2; setp.eq.u32 %p1, %r20, 3; mov.u32 %r21, 0;\n"
      "selp.b32 %r10, %r1, %r21, %p1; mov.u32 %r11, 0; mov.u32 %r12, 0;\n"
      "mov.u32 %r13, 0; mov.u32 %r14, 0; mov.u32 %r15, 0;\n"
      "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%r30,%r31,%r32,%r33},"
      " {%r10,%r11,%r12,%r13}, {%r14,%r15}, {%r21,%r21,%r21,%r21};\n";
  expectFound(rows + "mov.u32 %r4, %r30;");
  expectFound(rows + "mov.u32 %r4, %r31;");
  expectQuiet(rows + "selp.b32 %r4, 0, %r30, %p1;");
  expectQuiet(rows + "mov.u32 %r4, %r32;");
  // Column 3 of B: only odd registers of lanes with t = 1.
  const std::string columns =
      "shr.u32 %r20, %r0, 2; setp.eq.u32 %p1, %r20, 3; mov.u32 %r21, 0;\n"
      "selp.b32 %r14, %r1, %r21, %p1; mov.u32 %r15, 0;\n"
      "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%r30,%r31,%r32,%r33},"
      " {%r21,%r21,%r21,%r21}, {%r14,%r15}, {%r21,%r21,%r21,%r21};\n"
      "and.b32 %r22, %r0, 3; setp.eq.u32 %p2, %r22, 1;\n";
  expectQuiet(columns + "mov.u32 %r4, %r30;");
  expectFound(columns + "mov.u32 %r4, %r31;");
  expectQuiet(columns + "selp.b32 %r4, 0, %r33, %p2;");
  // An element of C only reaches its own D.
  const std::string c =
      "mov.u32 %r21, 0;\n"
      "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%r30,%r31,%r32,%r33},"
      " {%r21,%r21,%r21,%r21}, {%r21,%r21}, {%r1,%r21,%r21,%r21};\n";
  expectFound(c + "mov.u32 %r4, %r30;");
  expectQuiet(c + "mov.u32 %r4, %r31;");
}

TEST_F(InitCheckTest, MatricesMoveIt) {
  const std::string fill =
      "mov.u32 %r59, s; st.shared.u32 [%r60], %r3; bar.sync 0;\n"
      "and.b32 %r62, %r0, 7; mad.lo.u32 %r62, %r62, 16, %r59;\n";
  // Of each word of the 8x8 matrix the lower element was written.
  expectQuiet(fill + "ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%r4}, [%r62];\n"
                     "and.b32 %r4, %r4, 0xffff;");
  expectFound(fill + "ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%r4}, "
                     "[%r62];");
  // Transposed, even rows are whole and odd rows are not.
  const std::string transposed =
      fill + "ldmatrix.sync.aligned.m8n8.x1.trans.shared.b16 {%r4}, [%r62];\n"
             "and.b32 %r20, %r0, 4; setp.ne.u32 %p1, %r20, 0;\n";
  expectQuiet(transposed + "selp.b32 %r4, 0, %r4, %p1;");
  expectFound(transposed + "selp.b32 %r4, %r4, 0, %p1;");
  expectQuiet("movmatrix.sync.aligned.m8n8.trans.b16 %r4, %r3;\n"
              "and.b32 %r20, %r0, 4; setp.ne.u32 %p1, %r20, 0;\n"
              "selp.b32 %r4, 0, %r4, %p1;");
}

TEST_F(InitCheckTest, CanBeSwitchedOff) {
  options.initcheck = false;
  expectQuiet("mov.u32 %r4, %r1;");
}

} // namespace
