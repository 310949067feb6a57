//===- TestBundle.h - A small bundle for tests ------------------*- C++ -*-===//
//
// Two layers of 4 query heads over 2 KV heads of 64 dims, e4m3 caches of 7
// pages of 16 tokens, 8 tokens and 2 sequences at most, around the kernels of
// test/Unit/Runtime/Inputs/simple.cu. A segment per layer.
//
//===----------------------------------------------------------------------===//

#ifndef KVCACHE_TEST_UNIT_BUNDLE_TESTBUNDLE_H
#define KVCACHE_TEST_UNIT_BUNDLE_TESTBUNDLE_H

#include "kvcache/Bundle/Bundle.h"

namespace kvcache::test {

/// Scales of layer `i`: k 0.0123 * (1 + i), v 0.0345 * (1 + i).
float kScale(int layer);
float vScale(int layer);

/// `packed`: K and V of a page in one buffer with a view each. `ptx` is the
/// text of simple.ptx, or any text for tests that run nothing.
Bundle makeBundle(const std::string &ptx, bool packed = false);

/// Adds main.b1, a program for one sequence of up to 4 tokens beside main.
void addBucket(Manifest &manifest);

} // namespace kvcache::test

#endif // KVCACHE_TEST_UNIT_BUNDLE_TESTBUNDLE_H
