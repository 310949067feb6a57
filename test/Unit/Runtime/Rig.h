//===- Rig.h - The test bundle behind the C interface -----------*- C++ -*-===//

#ifndef KVCACHE_TEST_UNIT_RUNTIME_RIG_H
#define KVCACHE_TEST_UNIT_RUNTIME_RIG_H

#include "Fixture.h"
#include "kvcache-c/Runtime.h"

#include <algorithm>

namespace kvcache::test {

#define EXPECT_STATUS(call, status)                                            \
  EXPECT_EQ(kvcacheStatusName(call), std::string(#status)) << kvcacheLastError()
#define ASSERT_STATUS(call, status)                                            \
  ASSERT_EQ(kvcacheStatusName(call), std::string(#status)) << kvcacheLastError()

/// Opens a bundle through the C interface, from memory.
inline KvcacheStatus openMemory(const Bundle &bundle, KvcacheBundle **opened) {
  std::map<std::string, std::string> files = bundle.files;
  files["manifest.json"] = writeManifest(bundle.manifest);
  std::vector<KvcacheFile> list;
  for (const auto &[name, contents] : files)
    list.push_back({name.c_str(), contents.data(), contents.size()});
  return kvcacheBundleOpenMemory(list.data(), list.size(), opened);
}

/// Everything from bundle to instance, with memory bound to every buffer.
/// Sequence i of a batch owns two pages; RuntimeTest::slotOf says which.
class Rig {
public:
  ~Rig() { close(); }

  void open(const Bundle &source, KvcacheDevice *made,
            const char *chip = nullptr) {
    bundle = source;
    device = made;
    ASSERT_STATUS(openMemory(source, &opened), KVCACHE_OK);
    ASSERT_STATUS(kvcacheProgramCreate(opened, device, nullptr, chip, &program),
                  KVCACHE_OK);
    ASSERT_STATUS(kvcacheInstanceCreate(program, &instance), KVCACHE_OK);
    for (const Buffer &buffer : bundle.manifest.buffers)
      if (!buffer.offsetIn && buffer.owner == BufferOwner::Caller) {
        uint64_t address = 0;
        ASSERT_STATUS(kvcacheDeviceAllocate(device, buffer.bytes, &address),
                      KVCACHE_OK);
        addresses[buffer.name] = address;
        ASSERT_STATUS(kvcacheInstanceBindByName(instance, buffer.name.c_str(),
                                                address, buffer.bytes),
                      KVCACHE_OK);
      }
    uint64_t bytes = kvcacheProgramWorkspaceBytes(program);
    ASSERT_STATUS(kvcacheDeviceAllocate(device, bytes, &workspace), KVCACHE_OK);
    ASSERT_STATUS(
        kvcacheInstanceBindWorkspace(instance, workspace, bytes, nullptr),
        KVCACHE_OK);
  }

  void close() {
    kvcacheInstanceDestroy(instance);
    kvcacheProgramDestroy(program);
    kvcacheBundleClose(opened);
    kvcacheDeviceDestroy(device);
    instance = nullptr;
    program = nullptr;
    opened = nullptr;
    device = nullptr;
    addresses.clear();
  }

  const Buffer &buffer(const std::string &name) const {
    return *bundle.manifest.findBuffer(name);
  }

  void copyIn(const std::string &name, const void *data, size_t bytes) {
    ASSERT_STATUS(kvcacheDeviceCopyIn(device, addresses.at(name), data, bytes),
                  KVCACHE_OK);
  }

  std::vector<uint8_t> bytes(const std::string &name) const {
    std::vector<uint8_t> result(buffer(name).bytes);
    EXPECT_STATUS(kvcacheDeviceCopyOut(device, result.data(),
                                       addresses.at(name), result.size()),
                  KVCACHE_OK);
    return result;
  }

  /// Fills every page with codes of `seed`, so that all slots are written.
  void fillCaches(uint64_t seed) {
    for (const Buffer &entry : bundle.manifest.buffers) {
      if (entry.role != BufferRole::Cache || entry.offsetIn)
        continue;
      std::vector<uint8_t> codes(entry.bytes);
      Random random(seed++);
      for (uint8_t &code : codes)
        code = uint8_t(int((random.next() + 1) * 60));
      copyIn(entry.name, codes.data(), codes.size());
    }
  }

  /// The tables and activations of a batch, padded to capacity; outputs are
  /// filled with 0xFF.
  void setBatch(const Batch &batch, uint64_t seed) {
    std::vector<int64_t> slots(8, -1);
    std::vector<int32_t> starts(3, 0), lengths(2, 0), table(4, -1);
    size_t row = 0;
    for (size_t i = 0; i < batch.lengths.size(); ++i) {
      for (int32_t j = batch.lengths[i] - batch.newTokens[i];
           j < batch.lengths[i]; ++j) {
        int64_t page = j < 16 ? 2 * int64_t(i) + 2 : 2 * int64_t(i) + 1;
        slots[row++] = page * 16 + j % 16;
      }
      starts[i + 1] = int32_t(row);
      lengths[i] = batch.lengths[i];
      table[2 * i] = int32_t(2 * i + 2);
      table[2 * i + 1] =
          batch.lengths[i] > 16 ? int32_t(2 * i + 1) : 2147480000;
    }
    for (size_t i = batch.lengths.size() + 1; i < 3; ++i)
      starts[i] = int32_t(row);
    copyIn("slot_mapping", slots.data(), 64);
    copyIn("query_start", starts.data(), 12);
    copyIn("lengths", lengths.data(), 8);
    copyIn("page_table", table.data(), 16);
    for (int i = 0; i < 2; ++i) {
      std::string layer = "layer" + std::to_string(i);
      for (const char *part : {".query", ".key", ".value"}) {
        HostTensor tensor = randomBF16(buffer(layer + part).shape, seed++);
        copyIn(layer + part, tensor.data.data(), tensor.data.size());
      }
      std::vector<uint8_t> blank(buffer(layer + ".output").bytes, 0xFF);
      copyIn(layer + ".output", blank.data(), blank.size());
    }
  }

  /// Every byte that a run may change.
  std::vector<uint8_t> results() const {
    std::vector<uint8_t> all;
    for (const Buffer &entry : bundle.manifest.buffers)
      if (!entry.offsetIn && entry.owner == BufferOwner::Caller &&
          entry.access != BufferAccess::Read) {
        std::vector<uint8_t> part = bytes(entry.name);
        all.insert(all.end(), part.begin(), part.end());
      }
    return all;
  }

  Bundle bundle;
  KvcacheDevice *device = nullptr;
  KvcacheBundle *opened = nullptr;
  KvcacheProgram *program = nullptr;
  KvcacheInstance *instance = nullptr;
  std::map<std::string, uint64_t> addresses;
  uint64_t workspace = 0;
};

inline KvcacheDevice *makeMachine() {
  KvcacheDevice *device = nullptr;
  EXPECT_STATUS(kvcacheDeviceCreateMachine(nullptr, &device), KVCACHE_OK);
  return device;
}

inline std::string simplePtx() {
  Expected<std::string> file =
      readFile(std::string(KVCACHE_RUNTIME_INPUTS) + "/simple.ptx");
  return file ? *file : std::string();
}

/// Lengths that a graph frozen at one of them must serve: one token, one page
/// and a token, capacity, nothing, a mix, and back.
inline const std::vector<Batch> &proofBatches() {
  static const std::vector<Batch> batches = {
      {{5, 9}, {1, 1}},   {{1}, {1}},       {{17, 17}, {1, 1}},
      {{32, 32}, {4, 4}}, {{0, 0}, {0, 0}}, {{0, 32}, {0, 1}},
      {{30}, {8}},        {{5, 9}, {1, 1}}};
  return batches;
}

} // namespace kvcache::test

#endif // KVCACHE_TEST_UNIT_RUNTIME_RIG_H
