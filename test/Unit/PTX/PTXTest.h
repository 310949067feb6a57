//===- PTXTest.h - Runs snippets of PTX -------------------------*- C++ -*-===//

#ifndef KVCACHE_TEST_UNIT_PTX_PTXTEST_H
#define KVCACHE_TEST_UNIT_PTX_PTXTEST_H

#include "kvcache/PTX/Machine.h"

#include <gtest/gtest.h>

#include <cstring>
#include <map>

namespace kvcache::ptx {

inline uint32_t bitsOf(float x) {
  uint32_t b;
  memcpy(&b, &x, 4);
  return b;
}
inline float floatOf(uint32_t b) {
  float x;
  memcpy(&x, &b, 4);
  return x;
}

/// A kernel `k` of three pointer parameters, in %d0, %d1 and %d2. %r0 is the
/// thread of the grid; %d3, %d4 are the addresses of word %r0 of the first and
/// the second buffer.
inline std::string kernel(const std::string &body,
                          const std::string &module = "") {
  return ".version 8.3\n.target sm_90\n.address_size 64\n" + module +
         "\n.visible .entry k(.param .u64 p0, .param .u64 p1, .param .u64 p2)\n"
         "{\n.reg .pred %p<20>;\n.reg .b16 %h<40>;\n.reg .b32 %r<120>;\n"
         ".reg .b64 %d<40>;\n"
         "ld.param.u64 %d0, [p0];\nld.param.u64 %d1, [p1];\n"
         "ld.param.u64 %d2, [p2];\n"
         "mov.u32 %r100, %ctaid.x;\nmov.u32 %r101, %ntid.x;\n"
         "mov.u32 %r102, %tid.x;\nmad.lo.u32 %r0, %r100, %r101, %r102;\n"
         "mul.wide.u32 %d5, %r0, 4;\nadd.s64 %d3, %d0, %d5;\n"
         "add.s64 %d4, %d1, %d5;\n" +
         body + "\nret;\n}\n";
}

class PTXTest : public testing::Test {
protected:
  Machine machine;
  LaunchOptions options;
  uint32_t dynamicShared = 0;

  template <class T>
  uint64_t add(std::vector<T> &data, const std::string &name = "data",
               InitState init = InitState::AllValid) {
    BufferOptions o;
    o.name = name;
    o.init = init;
    return machine.addBuffer(data.data(), data.size() * sizeof(T), o);
  }

  LaunchReport launch(const std::string &text, std::vector<uint64_t> arguments,
                      uint32_t threads = 32, uint32_t blocks = 1) {
    Expected<Module> module = Module::parse(text, "test");
    if (!module) {
      ADD_FAILURE() << module.message();
      return {};
    }
    arguments.resize(3);
    const void *pointers[] = {&arguments[0], &arguments[1], &arguments[2]};
    options.maxInstructions = 100000;
    Expected<LaunchReport> report =
        machine.launch(*module, "k", {blocks, 1, 1}, {threads, 1, 1},
                       dynamicShared, pointers, options);
    if (!report) {
      ADD_FAILURE() << report.message();
      return {};
    }
    return *report;
  }

  static std::string describe(const LaunchReport &report) {
    std::string all;
    for (const Finding &f : report.findings)
      all += f.str() + "\n";
    return all;
  }
  static std::map<FindingKind, Finding> byKind(const LaunchReport &report) {
    std::map<FindingKind, Finding> all;
    for (const Finding &f : report.findings)
      all.emplace(f.kind, f);
    return all;
  }
  void expectClean(const LaunchReport &report) {
    EXPECT_TRUE(report.clean()) << describe(report);
  }
  void expectOnly(FindingKind kind, const LaunchReport &report) {
    EXPECT_FALSE(report.clean()) << "expected " << findingKindName(kind);
    for (const Finding &f : report.findings)
      EXPECT_EQ(f.kind, kind) << f.str();
  }

  /// One thread per element: %r1, %r2, %r3 are a[n], b[n], c[n]; the result is
  /// %r4.
  std::vector<uint32_t> each(const std::string &snippet,
                             std::vector<uint32_t> a,
                             std::vector<uint32_t> b = {},
                             std::vector<uint32_t> c = {}) {
    size_t n = a.size();
    b.resize(n);
    c.resize(n);
    std::vector<uint32_t> in;
    for (auto *v : {&a, &b, &c})
      in.insert(in.end(), v->begin(), v->end());
    std::vector<uint32_t> out(n, 0xdddddddd);
    uint64_t pIn = add(in, "in"), pOut = add(out, "out", InitState::NoneValid);
    std::string bytes = std::to_string(4 * n), twice = std::to_string(8 * n);
    LaunchReport report = launch(
        kernel("setp.ge.u32 %p19, %r0, " + std::to_string(n) +
               ";\n@%p19 ret;\nld.global.u32 %r1, [%d3];\nld.global.u32 %r2, "
               "[%d3+" +
               bytes + "];\nld.global.u32 %r3, [%d3+" + twice + "];\n{\n" +
               snippet + "\n}\nst.global.u32 [%d4], %r4;"),
        {pIn, pOut}, 32, uint32_t((n + 31) / 32));
    expectClean(report);
    EXPECT_EQ(*machine.firstUninitialised(pOut, 4 * n), 4 * n);
    machine.clearBuffers();
    return out;
  }
  uint32_t one(const std::string &snippet, uint32_t a, uint32_t b = 0,
               uint32_t c = 0) {
    return each(snippet, {a}, {b}, {c})[0];
  }
  float oneFloat(const std::string &snippet, float a, float b = 0,
                 float c = 0) {
    return floatOf(one(snippet, bitsOf(a), bitsOf(b), bitsOf(c)));
  }
  /// The same with 64-bit operands %d11, %d12, %d13 and result %d14.
  uint64_t wide(const std::string &snippet, uint64_t a, uint64_t b = 0,
                uint64_t c = 0) {
    std::vector<uint64_t> in{a, b, c}, out(1);
    uint64_t pIn = add(in), pOut = add(out);
    expectClean(launch(
        kernel("ld.global.u64 %d11, [%d0];\nld.global.u64 %d12, [%d0+8];\n"
               "ld.global.u64 %d13, [%d0+16];\n{\n" +
               snippet + "\n}\nst.global.u64 [%d1], %d14;"),
        {pIn, pOut}, 1));
    machine.clearBuffers();
    return out[0];
  }
};

} // namespace kvcache::ptx

#endif // KVCACHE_TEST_UNIT_PTX_PTXTEST_H
