//===- CAPITest.cpp - The C interface on the PTX machine ------------------===//

#include "Rig.h"

#include <thread>

using namespace kvcache;
using namespace kvcache::test;

extern "C" size_t kvcacheRuntimeSizes(void);

namespace {

class CAPITest : public ::testing::Test {
protected:
  void open(const Bundle &source) { rig.open(source, makeMachine()); }

  KvcacheGraph *freeze() {
    KvcacheGraph *graph = nullptr;
    EXPECT_STATUS(kvcacheInstanceInstantiateGraph(rig.instance,
                                                  KVCACHE_ALL_SEGMENTS, &graph),
                  KVCACHE_OK);
    return graph;
  }

  /// What a fresh process computes for a batch on the caches of `seed`.
  static std::vector<uint8_t> fresh(const Bundle &source, const Batch &batch,
                                    uint64_t seed) {
    Rig other;
    other.open(source, makeMachine());
    other.fillCaches(seed);
    other.setBatch(batch, seed);
    EXPECT_STATUS(
        kvcacheInstanceEnqueue(other.instance, KVCACHE_ALL_SEGMENTS, nullptr),
        KVCACHE_OK);
    return other.results();
  }

  Bundle bundle = makeBundle(simplePtx());
  Rig rig;
};

TEST_F(CAPITest, TheHeaderIsCAndSaysItsVersion) {
  EXPECT_EQ(kvcacheRuntimeAbiVersion(), uint32_t(KVCACHE_RUNTIME_ABI_VERSION));
  EXPECT_EQ(kvcacheRuntimeSizes(),
            sizeof(KvcacheBufferInfo) + sizeof(KvcacheLayerInfo) +
                sizeof(KvcacheCapacities) + sizeof(KvcacheCudaOptions) +
                sizeof(KvcacheMachineOptions));
  EXPECT_STREQ(kvcacheStatusName(KVCACHE_DRIVER_ERROR), "KVCACHE_DRIVER_ERROR");
  EXPECT_STREQ(kvcacheStatusName(KvcacheStatus(99)), "unknown status");
}

TEST_F(CAPITest, ListsWhatTheManifestSays) {
  bundle = makeBundle(simplePtx(), /*packed=*/true);
  open(bundle);
  EXPECT_EQ(kvcacheBundleProgramCount(rig.opened), 1u);
  EXPECT_STREQ(kvcacheBundleProgramName(rig.opened, 0), "main");
  EXPECT_EQ(kvcacheBundleProgramName(rig.opened, 1), nullptr);
  EXPECT_EQ(kvcacheBundleSegmentCount(rig.opened, 0), 2u);
  EXPECT_STREQ(kvcacheBundleSegmentName(rig.opened, 0, 1), "layer1");
  EXPECT_EQ(kvcacheBundleSegmentName(rig.opened, 0, 2), nullptr);
  EXPECT_STREQ(kvcacheProgramChip(rig.program), "sm_90");
  EXPECT_STREQ(kvcacheProgramCode(rig.program), "ptx");
  EXPECT_EQ(kvcacheProgramLaunchCount(rig.program, 1), 2u);
  EXPECT_EQ(kvcacheProgramLaunchCount(rig.program, KVCACHE_ALL_SEGMENTS), 4u);
  EXPECT_STREQ(kvcacheDeviceName(rig.device), "PTX machine");

  KvcacheCapacities sizes = KVCACHE_INIT(KvcacheCapacities);
  EXPECT_STATUS(kvcacheBundleCapacities(rig.opened, &sizes), KVCACHE_OK);
  EXPECT_EQ(sizes.maxTokens, 8);
  EXPECT_EQ(sizes.numPages, 7);

  KvcacheBufferInfo info = KVCACHE_INIT(KvcacheBufferInfo);
  int64_t index = kvcacheBundleFindBuffer(rig.opened, "layer1.v_cache");
  ASSERT_GE(index, 0);
  EXPECT_STATUS(kvcacheBundleBuffer(rig.opened, size_t(index), &info),
                KVCACHE_OK);
  EXPECT_STREQ(info.name, "layer1.v_cache");
  EXPECT_STREQ(info.role, "cache");
  EXPECT_STREQ(info.elementType, "f8E4M3FN");
  EXPECT_STREQ(info.viewOf, "layer1.kv_cache");
  EXPECT_EQ(info.viewOffset, 16u * 2 * 64);
  EXPECT_EQ(info.rank, 4u);
  EXPECT_EQ(info.strides[0], 2 * 16 * 2 * 64);
  EXPECT_EQ(kvcacheBundleFindBuffer(rig.opened, "layer7.v_cache"), -1);

  KvcacheLayerInfo layer = KVCACHE_INIT(KvcacheLayerInfo);
  EXPECT_EQ(kvcacheBundleLayerCount(rig.opened), 2u);
  EXPECT_STATUS(kvcacheBundleLayer(rig.opened, 1, &layer), KVCACHE_OK);
  EXPECT_STREQ(layer.id, "layer1");
  EXPECT_EQ(layer.kScale, kScale(1));
  EXPECT_EQ(layer.vScale, vScale(1));
  EXPECT_STREQ(layer.kProvenance, "checkpoint");
  EXPECT_STREQ(layer.kKey, "model.layers.1.self_attn.k_proj.k_scale");
  EXPECT_STREQ(layer.vProvenance, "override");
  EXPECT_STREQ(kvcacheBundleLayerTokenScales(rig.opened, 1), "");
  EXPECT_EQ(kvcacheBundleLayerTokenScales(rig.opened, 2), nullptr);
  float scales[3] = {0, 0, 0};
  EXPECT_EQ(kvcacheBundleLayerScales(rig.opened, 1, 'v', scales, 3), 1u);
  EXPECT_EQ(scales[0], vScale(1));
  EXPECT_EQ(kvcacheBundleLayerScales(rig.opened, 1, 'k', nullptr, 0), 1u);
  EXPECT_EQ(kvcacheBundleLayerScales(rig.opened, 1, 'q', scales, 3), 0u);
  EXPECT_EQ(kvcacheBundleLayerScales(rig.opened, 2, 'k', scales, 3), 0u);
}

TEST_F(CAPITest, ShowsTheScaleOfEachHead) {
  Layer &layer = bundle.manifest.layers[0];
  layer.kScale.perHead = {ScalarF32::of(0.1f), ScalarF32::of(0.2f)};
  layer.kScale.value = ScalarF32::of(0.2f);
  layer.compatibility = cacheCompatibility(layer);
  open(bundle);
  KvcacheLayerInfo info = KVCACHE_INIT(KvcacheLayerInfo);
  ASSERT_STATUS(kvcacheBundleLayer(rig.opened, 0, &info), KVCACHE_OK);
  EXPECT_EQ(info.kScaleCount, 2u);
  EXPECT_EQ(info.vScaleCount, 1u);
  EXPECT_EQ(info.kScale, 0.2f); // the largest
  float scales[3] = {0, 0, 0};
  EXPECT_EQ(kvcacheBundleLayerScales(rig.opened, 0, 'k', scales, 3), 2u);
  EXPECT_EQ(scales[0], 0.1f);
  EXPECT_EQ(scales[1], 0.2f);
  scales[1] = 0;
  EXPECT_EQ(kvcacheBundleLayerScales(rig.opened, 0, 'k', scales, 1), 2u);
  EXPECT_EQ(scales[1], 0.0f);
  EXPECT_STATUS(kvcacheBundleCheckCache(rig.opened, "layer0", "other"),
                KVCACHE_INCOMPATIBLE_CACHE);
  EXPECT_NE(std::string(kvcacheLastError()).find("(k scale 0.1, 0.2, v scale "),
            std::string::npos)
      << kvcacheLastError();
}

TEST_F(CAPITest, ABatchRunsInTheNextBucket) {
  addBucket(bundle.manifest);
  open(bundle);
  EXPECT_EQ(kvcacheBundleProgramForBatch(rig.opened, nullptr, 1, 4), 1);
  EXPECT_EQ(kvcacheBundleProgramForBatch(rig.opened, "main", 1, 5), 0);
  EXPECT_EQ(kvcacheBundleProgramForBatch(rig.opened, "main", 3, 3), -1);
  EXPECT_EQ(kvcacheBundleProgramForBatch(rig.opened, "decode", 1, 1), -1);
  EXPECT_EQ(kvcacheBundleProgramForBatch(nullptr, nullptr, 1, 1), -1);
  KvcacheCapacities room = KVCACHE_INIT(KvcacheCapacities);
  EXPECT_STATUS(kvcacheBundleProgramCapacities(rig.opened, 1, &room),
                KVCACHE_OK);
  EXPECT_EQ(room.maxSequences, 1);
  EXPECT_EQ(room.maxTokens, 4);
  EXPECT_EQ(room.numPages, 7);
  EXPECT_STATUS(kvcacheBundleProgramCapacities(rig.opened, 2, &room),
                KVCACHE_INVALID_ARGUMENT);
  // The name that nobody gave is that of the program that is no bucket.
  EXPECT_EQ(kvcacheProgramLaunchCount(rig.program, KVCACHE_ALL_SEGMENTS), 4u);

  // One sequence of 3 new tokens: the whole program, then its bucket, over the
  // same buffers.
  Batch batch{{9}, {3}};
  rig.fillCaches(1);
  rig.setBatch(batch, 1);
  ASSERT_STATUS(
      kvcacheInstanceEnqueue(rig.instance, KVCACHE_ALL_SEGMENTS, nullptr),
      KVCACHE_OK);
  std::vector<uint8_t> expected = rig.results();
  rig.fillCaches(1);
  rig.setBatch(batch, 1);
  EXPECT_NE(rig.results(), expected);
  KvcacheProgram *program = nullptr;
  KvcacheInstance *instance = nullptr;
  ASSERT_STATUS(kvcacheProgramCreate(rig.opened, rig.device, "main.b1", nullptr,
                                     &program),
                KVCACHE_OK);
  ASSERT_STATUS(kvcacheInstanceCreate(program, &instance), KVCACHE_OK);
  for (const auto &[name, address] : rig.addresses)
    ASSERT_STATUS(kvcacheInstanceBindByName(instance, name.c_str(), address,
                                            rig.buffer(name).bytes),
                  KVCACHE_OK);
  uint64_t bytes = kvcacheProgramWorkspaceBytes(program);
  ASSERT_STATUS(
      kvcacheInstanceBindWorkspace(instance, rig.workspace, bytes, nullptr),
      KVCACHE_OK);
  ASSERT_STATUS(kvcacheInstanceEnqueue(instance, KVCACHE_ALL_SEGMENTS, nullptr),
                KVCACHE_OK);
  EXPECT_EQ(rig.results(), expected);
  kvcacheInstanceDestroy(instance);
  kvcacheProgramDestroy(program);
}

// As kvcache-run does: SessionTest, TheNewestTargetThatCanBeExecutedIsChosen.
TEST_F(CAPITest, BrokenCodeIsNotPassedOver) {
  Target newer = bundle.manifest.targets[0];
  newer.chip = "sm_100";
  newer.ptx.file = "code/sm_100.ptx";
  bundle.manifest.targets.push_back(newer);
  std::string text = simplePtx();
  size_t body = text.find("ld.param");
  auto create = [&](const std::string &code) {
    bundle.files["code/sm_100.ptx"] = code;
    EXPECT_FALSE(updateDigests(bundle));
    KvcacheDevice *device = makeMachine();
    KvcacheBundle *opened = nullptr;
    KvcacheProgram *program = nullptr;
    EXPECT_STATUS(openMemory(bundle, &opened), KVCACHE_OK);
    KvcacheStatus status =
        kvcacheProgramCreate(opened, device, nullptr, nullptr, &program);
    std::string result = status ? std::string(kvcacheStatusName(status)) +
                                      ": " + kvcacheLastError()
                                : kvcacheProgramChip(program);
    kvcacheProgramDestroy(program);
    kvcacheBundleClose(opened);
    kvcacheDeviceDestroy(device);
    return result;
  };
  EXPECT_EQ(create(text), "sm_100");
  // An instruction that the machine lacks is a reason to take another target,
  EXPECT_EQ(create(text.substr(0, body) +
                   "tcgen05.fence::before_thread_sync;\n\t" +
                   text.substr(body)),
            "sm_90");
  // code that is none is not, and neither is a kernel that is missing.
  EXPECT_EQ(create("garbage").find("KVCACHE_INVALID_BUNDLE: "), 0u)
      << create("garbage");
  std::string renamed = text;
  for (size_t at; (at = renamed.find("simple_write")) != std::string::npos;)
    renamed.replace(at, 12, "another_name");
  EXPECT_NE(create(renamed).find(
                "KVCACHE_INVALID_BUNDLE: kvcacheProgramCreate: manifest.json: "
                "target sm_100, launches[0]: kernel \"simple_write\" is not in "
                "code/sm_100.ptx"),
            std::string::npos)
      << create(renamed);
}

TEST_F(CAPITest, RefusesACacheWrittenUnderOtherScales) {
  open(bundle);
  KvcacheLayerInfo layers[2] = {KVCACHE_INIT(KvcacheLayerInfo),
                                KVCACHE_INIT(KvcacheLayerInfo)};
  for (size_t i = 0; i < 2; ++i)
    ASSERT_STATUS(kvcacheBundleLayer(rig.opened, i, &layers[i]), KVCACHE_OK);
  EXPECT_STATUS(
      kvcacheBundleCheckCache(rig.opened, "layer0", layers[0].compatibility),
      KVCACHE_OK);
  // Layer 1 has other scales.
  EXPECT_STATUS(
      kvcacheBundleCheckCache(rig.opened, "layer0", layers[1].compatibility),
      KVCACHE_INCOMPATIBLE_CACHE);
  std::string text = kvcacheLastError();
  EXPECT_NE(text.find("kvcacheBundleCheckCache: layer0: expected a cache "
                      "written under the digest " +
                      std::string(layers[0].compatibility)),
            std::string::npos)
      << text;
  EXPECT_NE(text.find(layers[1].compatibility), std::string::npos);
  EXPECT_STATUS(kvcacheBundleCheckCache(rig.opened, "layer9", ""),
                KVCACHE_INVALID_ARGUMENT);
}

TEST_F(CAPITest, StridesAreSetBeforePrograms) {
  open(bundle);
  const int64_t strides[] = {4096, 160, 80, 1};
  EXPECT_STATUS(
      kvcacheBundleSetStrides(rig.opened, "layer0.k_cache", strides, 4),
      KVCACHE_INVALID_ARGUMENT);
  EXPECT_NE(std::string(kvcacheLastError()).find("a program of it is open"),
            std::string::npos);

  KvcacheBundle *opened = nullptr;
  ASSERT_STATUS(openMemory(bundle, &opened), KVCACHE_OK);
  EXPECT_STATUS(kvcacheBundleSetStrides(opened, "layer0.k_cache", strides, 4),
                KVCACHE_INVALID_ARGUMENT);
  EXPECT_NE(
      std::string(kvcacheLastError()).find("compile with runtime-strides"),
      std::string::npos);
  EXPECT_STATUS(kvcacheBundleSetStrides(opened, nullptr, strides, 4),
                KVCACHE_INVALID_ARGUMENT);
  EXPECT_STATUS(kvcacheBundleSetStrides(opened, "layer0.k_cache", strides, 99),
                KVCACHE_INVALID_ARGUMENT);
  kvcacheBundleClose(opened);

  // Launches that take them as constants.
  Bundle flexible = bundle;
  for (Target &target : flexible.manifest.targets)
    for (Launch &launch : target.launches)
      launch.arguments.push_back(Argument::ofI64(
          *strideConstant("k_token_stride", flexible.manifest,
                          *flexible.manifest.findLayer(launch.layer)),
          "k_token_stride"));
  ASSERT_STATUS(openMemory(flexible, &opened), KVCACHE_OK);
  size_t key = size_t(kvcacheBundleFindBuffer(opened, "layer0.k_cache"));
  KvcacheBufferInfo before = KVCACHE_INIT(KvcacheBufferInfo), after = before;
  ASSERT_STATUS(kvcacheBundleBuffer(opened, key, &before), KVCACHE_OK);
  KvcacheLayerInfo old = KVCACHE_INIT(KvcacheLayerInfo), layer = old;
  ASSERT_STATUS(kvcacheBundleLayer(opened, 0, &old), KVCACHE_OK);
  std::string digest = old.compatibility;
  ASSERT_STATUS(kvcacheBundleSetStrides(opened, "layer0.k_cache", strides, 4),
                KVCACHE_OK);
  ASSERT_STATUS(kvcacheBundleBuffer(opened, key, &after), KVCACHE_OK);
  EXPECT_EQ(after.strides[0], 4096);
  EXPECT_EQ(after.strides[1], 160);
  EXPECT_GT(after.bytes, before.bytes);
  ASSERT_STATUS(kvcacheBundleLayer(opened, 0, &layer), KVCACHE_OK);
  EXPECT_EQ(std::string(layer.layout), "strides:4096,160,80;2048,128,64");
  EXPECT_NE(layer.compatibility, digest);
  kvcacheBundleClose(opened);
}

TEST_F(CAPITest, NullsAndWrongIndicesAreErrorsNotCrashes) {
  open(bundle);
  KvcacheBundle *none = nullptr;
  EXPECT_STATUS(kvcacheBundleOpen(nullptr, &none), KVCACHE_INVALID_ARGUMENT);
  EXPECT_STATUS(kvcacheBundleOpen("/nowhere", nullptr),
                KVCACHE_INVALID_ARGUMENT);
  EXPECT_STATUS(kvcacheBundleOpen("/nowhere", &none), KVCACHE_INVALID_BUNDLE);
  EXPECT_NE(std::string(kvcacheLastError()).find("/nowhere"),
            std::string::npos);
  EXPECT_EQ(kvcacheBundleProgramCount(nullptr), 0u);
  EXPECT_EQ(kvcacheProgramWorkspaceBytes(nullptr), 0u);
  KvcacheBufferInfo info = KVCACHE_INIT(KvcacheBufferInfo);
  EXPECT_STATUS(kvcacheBundleBuffer(rig.opened, 999, &info),
                KVCACHE_INVALID_ARGUMENT);
  info.size = 8; // an older header would have been refused at version 1 too
  EXPECT_STATUS(kvcacheBundleBuffer(rig.opened, 0, &info),
                KVCACHE_INVALID_ARGUMENT);
  EXPECT_NE(std::string(kvcacheLastError()).find("KVCACHE_INIT"),
            std::string::npos);
  EXPECT_STATUS(kvcacheInstanceEnqueue(nullptr, 0, nullptr),
                KVCACHE_INVALID_ARGUMENT);
  EXPECT_STATUS(kvcacheInstanceEnqueue(rig.instance, 2, nullptr),
                KVCACHE_INVALID_ARGUMENT);
  EXPECT_NE(std::string(kvcacheLastError()).find("below 2, found 2"),
            std::string::npos);
  EXPECT_STATUS(kvcacheGraphReplay(nullptr, nullptr), KVCACHE_INVALID_ARGUMENT);
  KvcacheProgram *program = nullptr;
  EXPECT_STATUS(
      kvcacheProgramCreate(rig.opened, rig.device, "other", nullptr, &program),
      KVCACHE_INVALID_ARGUMENT);
  EXPECT_NE(std::string(kvcacheLastError()).find("it has main"),
            std::string::npos);
  EXPECT_STATUS(
      kvcacheProgramCreate(rig.opened, rig.device, nullptr, "sm_75", &program),
      KVCACHE_NO_CODE);
  EXPECT_NE(std::string(kvcacheLastError())
                .find("the bundle has no target sm_75; it has sm_90"),
            std::string::npos);
  EXPECT_EQ(program, nullptr);
}

TEST_F(CAPITest, RefusesAHostileBundle) {
  KvcacheBundle *opened = nullptr;
  Bundle hostile = bundle;
  hostile.files["code/sm_90.ptx"] += " ";
  EXPECT_STATUS(openMemory(hostile, &opened), KVCACHE_INVALID_BUNDLE);
  EXPECT_NE(std::string(kvcacheLastError()).find("corrupted"),
            std::string::npos);
  hostile = bundle;
  hostile.manifest.targets[0].ptx.file = "../sm_90.ptx";
  EXPECT_STATUS(openMemory(hostile, &opened), KVCACHE_INVALID_BUNDLE);
  hostile = bundle;
  hostile.manifest.targets[0].launches[0].grid[0] = int64_t(1) << 40;
  EXPECT_STATUS(openMemory(hostile, &opened), KVCACHE_INVALID_BUNDLE);
  EXPECT_EQ(opened, nullptr);
}

TEST_F(CAPITest, SaysWhatIsNotBound) {
  rig.open(bundle, makeMachine());
  KvcacheInstance *instance = nullptr;
  ASSERT_STATUS(kvcacheInstanceCreate(rig.program, &instance), KVCACHE_OK);
  EXPECT_STATUS(kvcacheInstanceEnqueue(instance, 1, nullptr),
                KVCACHE_NOT_BOUND);
  for (const auto &[name, address] : rig.addresses) {
    if (name == "layer1.key")
      continue;
    EXPECT_STATUS(kvcacheInstanceBindByName(instance, name.c_str(), address,
                                            rig.buffer(name).bytes),
                  KVCACHE_OK);
  }
  EXPECT_STATUS(kvcacheInstanceBindWorkspace(
                    instance, rig.workspace,
                    kvcacheProgramWorkspaceBytes(rig.program), nullptr),
                KVCACHE_OK);
  EXPECT_STATUS(kvcacheInstanceEnqueue(instance, 1, nullptr),
                KVCACHE_NOT_BOUND);
  EXPECT_NE(std::string(kvcacheLastError())
                .find("segment layer1: buffer layer1.key has no address yet"),
            std::string::npos)
      << kvcacheLastError();
  KvcacheGraph *graph = nullptr;
  EXPECT_STATUS(
      kvcacheInstanceInstantiateGraph(instance, KVCACHE_ALL_SEGMENTS, &graph),
      KVCACHE_NOT_BOUND);
  uint64_t key = rig.addresses.at("layer1.key");
  uint64_t bytes = rig.buffer("layer1.key").bytes;
  EXPECT_STATUS(
      kvcacheInstanceBindByName(instance, "layer1.key", key, bytes - 1),
      KVCACHE_NOT_BOUND);
  EXPECT_STATUS(
      kvcacheInstanceBindByName(instance, "layer1.key", key + 2, bytes),
      KVCACHE_NOT_BOUND);
  EXPECT_STATUS(kvcacheInstanceBindByName(instance, "layer1.key", 0, bytes),
                KVCACHE_NOT_BOUND);
  EXPECT_STATUS(
      kvcacheInstanceBindByName(instance, "workspace.partials", key, bytes),
      KVCACHE_INVALID_ARGUMENT);
  EXPECT_STATUS(
      kvcacheInstanceBindWorkspace(instance, rig.workspace + 16, 4096, nullptr),
      KVCACHE_NOT_BOUND);
  EXPECT_STATUS(
      kvcacheInstanceBindWorkspace(instance, rig.workspace, 16, nullptr),
      KVCACHE_NOT_BOUND);
  kvcacheInstanceDestroy(instance);
}

TEST_F(CAPITest, AViewIsBoundThroughItsHolder) {
  bundle = makeBundle(simplePtx(), /*packed=*/true);
  open(bundle);
  EXPECT_STATUS(
      kvcacheInstanceBindByName(rig.instance, "layer0.v_cache", 4096, 1 << 20),
      KVCACHE_INVALID_ARGUMENT);
  EXPECT_NE(std::string(kvcacheLastError())
                .find("bind the buffer that holds its memory, layer0.kv_cache"),
            std::string::npos);
  KvcacheGraph *graph = freeze();
  uint8_t bytes[72];
  ASSERT_EQ(kvcacheGraphLaunchBytes(graph, 0, bytes, sizeof(bytes)), 64u);
  uint64_t pointers[5];
  std::memcpy(pointers, bytes, sizeof(pointers));
  EXPECT_EQ(pointers[0], rig.addresses.at("layer0.key"));
  EXPECT_EQ(pointers[2], rig.addresses.at("layer0.kv_cache"));
  EXPECT_EQ(pointers[3], rig.addresses.at("layer0.kv_cache") + 16 * 2 * 64);
  float scale;
  std::memcpy(&scale, bytes + 40, 4);
  EXPECT_EQ(scale, kScale(0));
  int64_t slots;
  std::memcpy(&slots, bytes + 56, 8);
  EXPECT_EQ(slots, 7 * 16);
  kvcacheGraphDestroy(graph);
}

// The launch bytes are frozen once; from there on only device memory changes.
TEST_F(CAPITest, AFrozenGraphServesAllLengths) {
  bundle = makeBundle(simplePtx(), /*packed=*/true);
  open(bundle);
  rig.fillCaches(1);
  rig.setBatch(proofBatches()[0], 1);
  KvcacheGraph *graph = freeze();
  uint64_t seed = 1;
  for (const Batch &batch : proofBatches()) {
    rig.fillCaches(seed);
    rig.setBatch(batch, seed);
    ASSERT_STATUS(kvcacheGraphReplay(graph, nullptr), KVCACHE_OK);
    EXPECT_EQ(rig.results(), fresh(bundle, batch, seed)) << seed;
    std::vector<uint8_t> counters(256);
    EXPECT_STATUS(kvcacheDeviceCopyOut(rig.device, counters.data(),
                                       rig.workspace + 256, 256),
                  KVCACHE_OK);
    EXPECT_EQ(std::count(counters.begin(), counters.end(), 0), 256);
    ++seed;
  }
  kvcacheGraphDestroy(graph);
}

/// A compiler that plans on the host: the grid covers the rows that are live
/// when it plans.
Bundle planOnTheHost(const Bundle &source, const Batch &batch) {
  Bundle planned = source;
  int64_t rows = 0;
  for (int32_t count : batch.newTokens)
    rows += count;
  for (Launch &launch : planned.manifest.targets[0].launches)
    if (launch.op == LaunchOp::PagedAttention)
      launch.grid[1] = std::max<int64_t>(rows, 1);
  return planned;
}

TEST_F(CAPITest, TheProofFindsAPlanMadeOnTheHost) {
  const std::vector<Batch> &batches = proofBatches();
  Bundle planned = planOnTheHost(bundle, batches[0]);
  open(planned);
  rig.fillCaches(1);
  rig.setBatch(batches[0], 1);
  KvcacheGraph *graph = freeze();
  ASSERT_STATUS(kvcacheGraphReplay(graph, nullptr), KVCACHE_OK);
  // At the lengths it was planned for nothing is wrong.
  EXPECT_EQ(rig.results(), fresh(planned, batches[0], 1));
  int different = 0;
  for (size_t i = 1; i < batches.size(); ++i) {
    rig.fillCaches(i);
    rig.setBatch(batches[i], i);
    ASSERT_STATUS(kvcacheGraphReplay(graph, nullptr), KVCACHE_OK);
    different += rig.results() !=
                 fresh(planOnTheHost(bundle, batches[i]), batches[i], i);
  }
  EXPECT_EQ(different, 2); // those with more rows than the plan
  kvcacheGraphDestroy(graph);
}

TEST_F(CAPITest, AGraphKeepsItsAddressesUntilTold) {
  open(bundle);
  rig.fillCaches(1);
  rig.setBatch(proofBatches()[0], 1);
  KvcacheGraph *graph = freeze();
  ASSERT_STATUS(kvcacheGraphReplay(graph, nullptr), KVCACHE_OK);
  std::vector<uint8_t> expected = rig.bytes("layer0.output");
  uint64_t other = 0;
  ASSERT_STATUS(kvcacheDeviceAllocate(rig.device, expected.size(), &other),
                KVCACHE_OK);
  std::vector<uint8_t> blank(expected.size(), 0xFF), found = blank;
  ASSERT_STATUS(
      kvcacheDeviceCopyIn(rig.device, other, blank.data(), blank.size()),
      KVCACHE_OK);
  ASSERT_STATUS(kvcacheInstanceBindByName(rig.instance, "layer0.output", other,
                                          expected.size()),
                KVCACHE_OK);
  rig.setBatch(proofBatches()[0], 1);
  ASSERT_STATUS(kvcacheGraphReplay(graph, nullptr), KVCACHE_OK);
  EXPECT_EQ(rig.bytes("layer0.output"), expected);
  ASSERT_STATUS(
      kvcacheDeviceCopyOut(rig.device, found.data(), other, found.size()),
      KVCACHE_OK);
  EXPECT_EQ(found, blank);
  ASSERT_STATUS(kvcacheGraphUpdateBindings(graph), KVCACHE_OK);
  ASSERT_STATUS(kvcacheGraphReplay(graph, nullptr), KVCACHE_OK);
  ASSERT_STATUS(
      kvcacheDeviceCopyOut(rig.device, found.data(), other, found.size()),
      KVCACHE_OK);
  EXPECT_EQ(found, expected);
  kvcacheGraphDestroy(graph);
}

TEST_F(CAPITest, AFindingOfTheMachineFailsTheReplay) {
  open(bundle);
  rig.setBatch({{9}, {1}}, 1); // slots 0 to 7 were never written
  EXPECT_STATUS(kvcacheInstanceEnqueue(rig.instance, 0, nullptr), KVCACHE_OK)
      << "a NaN that is only copied is no finding";
  // A page far outside the pool is.
  int32_t table[4] = {1 << 24, 0, 0, 0};
  rig.copyIn("page_table", table, sizeof(table));
  EXPECT_STATUS(kvcacheInstanceEnqueue(rig.instance, 0, nullptr),
                KVCACHE_LAUNCH_FAILED);
  std::string text = kvcacheLastError();
  EXPECT_NE(text.find("segment layer0: "), std::string::npos) << text;
  EXPECT_NE(text.find("out-of-bounds: simple_attention"), std::string::npos)
      << text;
}

// Each thread has an instance and a workspace of its own on one program; the
// error text is its own too.
TEST_F(CAPITest, InstancesReplayFromSeveralThreads) {
  open(bundle);
  std::vector<uint8_t> expected = fresh(bundle, proofBatches()[0], 5);
  std::vector<std::string> problems(4);
  std::vector<std::thread> threads;
  for (size_t t = 0; t < problems.size(); ++t)
    threads.emplace_back([&, t] {
      std::map<std::string, uint64_t> addresses;
      KvcacheInstance *instance = nullptr;
      KvcacheStatus status = kvcacheInstanceCreate(rig.program, &instance);
      for (const auto &[name, shared] : rig.addresses) {
        uint64_t bytes = rig.buffer(name).bytes, own = 0;
        if (!status)
          status = kvcacheDeviceAllocate(rig.device, bytes, &own);
        if (!status)
          status =
              kvcacheInstanceBindByName(instance, name.c_str(), own, bytes);
        addresses[name] = own;
      }
      uint64_t bytes = kvcacheProgramWorkspaceBytes(rig.program), own = 0;
      if (!status)
        status = kvcacheDeviceAllocate(rig.device, bytes, &own);
      if (!status)
        status = kvcacheInstanceBindWorkspace(instance, own, bytes, nullptr);
      KvcacheGraph *graph = nullptr;
      if (!status)
        status = kvcacheInstanceInstantiateGraph(instance, KVCACHE_ALL_SEGMENTS,
                                                 &graph);
      if (status) {
        problems[t] = kvcacheLastError();
        return;
      }
      Rig view; // writes through the shared device to this thread's memory
      view.bundle = bundle;
      view.device = rig.device;
      view.addresses = addresses;
      for (int repeat = 0; repeat < 8 && problems[t].empty(); ++repeat) {
        view.fillCaches(5);
        view.setBatch(proofBatches()[0], 5);
        if (kvcacheGraphReplay(graph, nullptr))
          problems[t] = kvcacheLastError();
        else if (view.results() != expected)
          problems[t] = "other results in repeat " + std::to_string(repeat);
        std::string wrong = "nobody" + std::to_string(t);
        kvcacheInstanceBindByName(instance, wrong.c_str(), 16, 16);
        if (std::string(kvcacheLastError()).find(wrong) == std::string::npos)
          problems[t] =
              "the error of another thread: " + std::string(kvcacheLastError());
      }
      view.device = nullptr;
      kvcacheGraphDestroy(graph);
      kvcacheInstanceDestroy(instance);
    });
  for (std::thread &thread : threads)
    thread.join();
  for (const std::string &problem : problems)
    EXPECT_EQ(problem, "");
}

} // namespace
