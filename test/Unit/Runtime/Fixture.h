//===- Fixture.h - A session over the test bundle ---------------*- C++ -*-===//

#ifndef KVCACHE_TEST_UNIT_RUNTIME_FIXTURE_H
#define KVCACHE_TEST_UNIT_RUNTIME_FIXTURE_H

#include "../Bundle/TestBundle.h"

#include "kvcache/Runtime/Session.h"
#include "kvcache/Runtime/Verify.h"
#include "kvcache/Support/FP8.h"
#include "kvcache/Support/Files.h"

#include <gtest/gtest.h>

#include <cstring>

namespace kvcache::test {

/// Repeatable numbers in [-1, 1).
class Random {
public:
  explicit Random(uint64_t seed) : state(seed) {}
  float next() {
    state = state * 6364136223846793005ull + 1442695040888963407ull;
    return float(double(state >> 40) / double(1 << 23) - 1);
  }

private:
  uint64_t state;
};

inline HostTensor randomBF16(std::vector<int64_t> shape, uint64_t seed,
                             float range = 3) {
  Random random(seed);
  HostTensor tensor;
  tensor.elementType = ElementType::BF16;
  tensor.shape = std::move(shape);
  int64_t count = elementCount(tensor.shape);
  for (int64_t i = 0; i < count; ++i) {
    uint16_t code = toBF16(random.next() * range);
    tensor.data.push_back(uint8_t(code));
    tensor.data.push_back(uint8_t(code >> 8));
  }
  return tensor;
}

template <typename Integer>
HostTensor integers(std::vector<int64_t> shape, std::vector<Integer> values) {
  HostTensor tensor;
  tensor.elementType =
      sizeof(Integer) == 8 ? ElementType::I64 : ElementType::I32;
  tensor.shape = std::move(shape);
  tensor.data.resize(values.size() * sizeof(Integer));
  if (!values.empty())
    std::memcpy(tensor.data.data(), values.data(), tensor.data.size());
  return tensor;
}

/// The batch of one step: sequence lengths after it and new tokens of each.
struct Batch {
  std::vector<int32_t> lengths, newTokens;
};

class RuntimeTest : public ::testing::Test {
protected:
  static const std::string &ptx() {
    static const std::string text = [] {
      Expected<std::string> file =
          readFile(std::string(KVCACHE_RUNTIME_INPUTS) + "/simple.ptx");
      return file ? *file : std::string();
    }();
    return text;
  }

  /// Opens a session over `bundle`; fails the test if that is not possible.
  void start(const SessionOptions &options = {},
             const ptx::LaunchOptions &checks = {}) {
    session.reset();
    device = createSimDevice(checks);
    Expected<const Target *> target = selectTarget(bundle, *device);
    ASSERT_TRUE(bool(target)) << target.message();
    Expected<std::unique_ptr<Session>> created = Session::create(
        bundle, **target, bundle.manifest.programs[0], *device, options);
    ASSERT_TRUE(bool(created)) << created.message();
    session = std::move(*created);
  }

  void set(const std::string &name, HostTensor tensor) {
    Error error = session->setInput(name, tensor.view());
    ASSERT_FALSE(bool(error)) << error.message();
  }

  std::string setMessage(const std::string &name, HostTensor tensor) {
    Error error = session->setInput(name, tensor.view());
    return error ? error.message() : "accepted";
  }

  /// Sequence i owns pages 2i + 1 and 2i + 2, in descending order.
  static int64_t slotOf(int sequence, int64_t position) {
    int64_t page = position < 16 ? 2 * sequence + 2 : 2 * sequence + 1;
    return page * 16 + position % 16;
  }

  /// Sets the tables, and queries, keys and values from `seed`.
  void setBatch(const Batch &batch, uint64_t seed) {
    std::vector<int64_t> slots;
    std::vector<int32_t> starts = {0}, table;
    for (size_t i = 0; i < batch.lengths.size(); ++i) {
      for (int32_t j = batch.lengths[i] - batch.newTokens[i];
           j < batch.lengths[i]; ++j)
        slots.push_back(slotOf(int(i), j));
      starts.push_back(starts.back() + batch.newTokens[i]);
      table.push_back(int32_t(2 * i + 2));
      table.push_back(batch.lengths[i] > 16 ? int32_t(2 * i + 1) : 2147480000);
    }
    int64_t rows = int64_t(slots.size());
    int64_t sequences = int64_t(batch.lengths.size());
    set("slot_mapping", integers<int64_t>({rows}, slots));
    set("lengths", integers<int32_t>({sequences}, batch.lengths));
    set("query_start", integers<int32_t>({sequences + 1}, starts));
    set("page_table", integers<int32_t>({sequences, 2}, table));
    for (int i = 0; i < 2; ++i) {
      std::string layer = "layer" + std::to_string(i);
      set(layer + ".query", randomBF16({rows, 4, 64}, seed + 10 * i));
      set(layer + ".key", randomBF16({rows, 2, 64}, seed + 10 * i + 1));
      set(layer + ".value", randomBF16({rows, 2, 64}, seed + 10 * i + 2));
    }
  }

  const Segment &segment(size_t i) const {
    return bundle.manifest.programs[0].segments[i];
  }

  RunReport run(size_t i) {
    Expected<RunReport> report = session->runSegment(segment(i));
    EXPECT_TRUE(bool(report)) << (report ? "" : report.message());
    return report ? std::move(*report) : RunReport();
  }

  std::string runMessage(size_t i) {
    Expected<RunReport> report = session->runSegment(segment(i));
    return report ? "ran" : report.message();
  }

  std::vector<uint8_t> bytes(const std::string &name) const {
    Expected<HostTensor> tensor = session->read(name);
    EXPECT_TRUE(bool(tensor)) << (tensor ? "" : tensor.message());
    return tensor ? tensor->data : std::vector<uint8_t>();
  }

  Bundle bundle = makeBundle(ptx());
  std::unique_ptr<Device> device;
  std::unique_ptr<Session> session;
};

inline std::string describe(const RunReport &report) {
  std::string text;
  for (const LaunchRecord &record : report.launches)
    for (const ptx::Finding &finding : record.report.findings)
      text += finding.str() + "\n";
  for (const std::string &fault : report.faults)
    text += fault + "\n";
  return text;
}

} // namespace kvcache::test

#endif // KVCACHE_TEST_UNIT_RUNTIME_FIXTURE_H
