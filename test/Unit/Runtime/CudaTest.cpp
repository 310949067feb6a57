//===- CudaTest.cpp - The CUDA device against a recording driver ----------===//
//
// test/Runtime/FakeCuda.cpp is the driver: it executes, logs, enforces the
// documented rules of captures, and fails where it is told to.
//
//===----------------------------------------------------------------------===//

#include "Rig.h"

#include <dlfcn.h>

using namespace kvcache;
using namespace kvcache::test;

namespace {

constexpr int outOfMemory = 2, noDevice = 100, invalidImage = 200,
              illegalAddress = 700, outOfResources = 701,
              captureInvalidated = 901;

/// The fake's functions, by name.
struct Fake {
  void *library = ::dlopen(KVCACHE_FAKE_CUDA, RTLD_NOW | RTLD_LOCAL);

  template <typename... Arguments>
  int call(const char *name, Arguments... arguments) const {
    auto function =
        reinterpret_cast<int (*)(Arguments...)>(::dlsym(library, name));
    EXPECT_TRUE(function) << name;
    return function ? function(arguments...) : -1;
  }
  /// Lines logged since the last time.
  std::vector<std::string> log() const {
    auto take = reinterpret_cast<const char *(*)()>(
        ::dlsym(library, "fakeCudaTakeLog"));
    std::vector<std::string> lines;
    std::string text = take(), line;
    for (char c : text) {
      if (c != '\n') {
        line += c;
        continue;
      }
      lines.push_back(std::move(line));
      line.clear();
    }
    return lines;
  }
};

/// The first words of log lines, each run of equal ones once.
std::vector<std::string> calls(const std::vector<std::string> &log) {
  std::vector<std::string> names;
  for (const std::string &line : log) {
    std::string name = line.substr(0, line.find(' '));
    if (names.empty() || names.back() != name)
      names.push_back(name);
  }
  return names;
}

using Strings = std::vector<std::string>;

class CudaTest : public ::testing::Test {
protected:
  void SetUp() override {
    ASSERT_TRUE(fake.library) << ::dlerror();
    fake.call("fakeCudaReset");
    ASSERT_EQ(fake.call("cuDevicePrimaryCtxRetain", &context, 0), 0);
  }
  void TearDown() override {
    fake.call("fakeCudaReset");
    rig.close();
    EXPECT_EQ(fake.call("cuCtxGetCurrent", &current), 0);
    EXPECT_EQ(current, nullptr) << "a context was left current";
    if (current)
      fake.call("cuCtxPopCurrent_v2", &current);
  }

  KvcacheStatus tryDevice(KvcacheDevice **device, bool programmatic = false) {
    KvcacheCudaOptions options = KVCACHE_INIT(KvcacheCudaOptions);
    options.context = context;
    options.driver = KVCACHE_FAKE_CUDA;
    options.programmaticLaunch = programmatic;
    return kvcacheDeviceCreateCuda(&options, device);
  }
  KvcacheDevice *makeCuda(bool programmatic = false) {
    KvcacheDevice *device = nullptr;
    EXPECT_STATUS(tryDevice(&device, programmatic), KVCACHE_OK);
    return device;
  }
  KvcacheGraph *freeze() {
    KvcacheGraph *graph = nullptr;
    EXPECT_STATUS(kvcacheInstanceInstantiateGraph(rig.instance,
                                                  KVCACHE_ALL_SEGMENTS, &graph),
                  KVCACHE_OK);
    return graph;
  }
  void setStep(uint64_t seed) {
    rig.fillCaches(seed);
    rig.setBatch({{5, 9}, {2, 1}}, seed);
  }
  void *stream() {
    void *handle = nullptr, *previous = nullptr;
    fake.call("cuCtxPushCurrent_v2", context);
    EXPECT_EQ(fake.call("cuStreamCreate", &handle, 0u), 0);
    fake.call("cuCtxPopCurrent_v2", &previous);
    return handle;
  }
  /// What the PTX machine makes of the same step.
  std::vector<uint8_t> onTheMachine(uint64_t seed) {
    Rig other;
    other.open(bundle, makeMachine());
    other.fillCaches(seed);
    other.setBatch({{5, 9}, {2, 1}}, seed);
    EXPECT_STATUS(
        kvcacheInstanceEnqueue(other.instance, KVCACHE_ALL_SEGMENTS, nullptr),
        KVCACHE_OK);
    return other.results();
  }

  Fake fake;
  void *context = nullptr, *current = nullptr;
  Bundle bundle = makeBundle(simplePtx());
  Rig rig;
};

TEST_F(CudaTest, PreparesOnceAndThenOnlyLaunches) {
  rig.open(bundle, makeCuda());
  EXPECT_STREQ(kvcacheDeviceName(rig.device), "cuda sm_90");
  EXPECT_STREQ(kvcacheProgramCode(rig.program), "ptx");
  setStep(1);
  fake.log();
  ASSERT_STATUS(
      kvcacheInstanceEnqueue(rig.instance, KVCACHE_ALL_SEGMENTS, nullptr),
      KVCACHE_OK);
  // No synchronisation, allocation or attribute call among the launches.
  EXPECT_EQ(calls(fake.log()), Strings{"cuLaunchKernel"});
  EXPECT_EQ(rig.results(), onTheMachine(1));

  KvcacheGraph *graph = freeze();
  EXPECT_EQ(calls(fake.log()),
            (Strings{"cuMemcpyDtoH", "cuGraphCreate", "cuGraphAddKernelNode",
                     "cuGraphInstantiate"}));
  setStep(2);
  fake.log();
  ASSERT_STATUS(kvcacheGraphReplay(graph, nullptr), KVCACHE_OK);
  EXPECT_EQ(fake.log(), Strings{"cuGraphLaunch"});
  EXPECT_EQ(rig.results(), onTheMachine(2));
  kvcacheGraphDestroy(graph);
}

TEST_F(CudaTest, LoadsInThisOrder) {
  rig.open(bundle, makeCuda());
  Strings log = fake.log();
  Strings head(log.begin(), log.begin() + 7);
  EXPECT_EQ(head, (Strings{"cuDeviceGetAttribute 75", "cuDeviceGetAttribute 76",
                           "cuModuleLoadDataEx ptx",
                           "cuModuleGetFunction simple_write",
                           "cuFuncGetAttribute simple_write 0",
                           "cuModuleGetFunction simple_attention",
                           "cuFuncGetAttribute simple_attention 0"}));
  // The last thing before the first step: counters become zero.
  EXPECT_EQ(log.back(), "cuMemsetD8Async 0 256");
}

TEST_F(CudaTest, PassesTheSameArgumentBytesAsTheMachine) {
  Rig other;
  other.open(bundle, makeMachine());
  rig.open(bundle, makeCuda());
  KvcacheGraph *theirs = nullptr;
  ASSERT_STATUS(kvcacheInstanceInstantiateGraph(other.instance,
                                                KVCACHE_ALL_SEGMENTS, &theirs),
                KVCACHE_OK);
  fake.log();
  KvcacheGraph *ours = freeze();
  Strings nodes;
  for (const std::string &line : fake.log())
    if (line.rfind("cuGraphAddKernelNode", 0) == 0)
      nodes.push_back(line);
  ASSERT_EQ(nodes.size(), 4u);
  static const char digits[] = "0123456789abcdef";
  for (size_t i = 0; i < nodes.size(); ++i) {
    uint8_t a[256], b[256];
    size_t size = kvcacheGraphLaunchBytes(ours, i, a, sizeof(a));
    ASSERT_EQ(kvcacheGraphLaunchBytes(theirs, i, b, sizeof(b)), size);
    const Launch &launch = bundle.manifest.targets[0].launches[i];
    // Addresses differ between devices, everything else does not.
    std::string expected;
    size_t offset = 0;
    for (const Argument &argument : launch.arguments) {
      size_t bytes = argument.kind == Argument::Kind::F32 ||
                             argument.kind == Argument::Kind::I32
                         ? 4
                         : 8;
      offset = (offset + bytes - 1) / bytes * bytes;
      if (argument.kind != Argument::Kind::Buffer)
        EXPECT_EQ(std::string(a + offset, a + offset + bytes),
                  std::string(b + offset, b + offset + bytes));
      expected += ' ';
      for (size_t k = 0; k < bytes; ++k, ++offset) {
        expected += digits[a[offset] >> 4];
        expected += digits[a[offset] & 15];
      }
    }
    EXPECT_EQ(offset, size);
    // What the driver was given is what the graph says it froze.
    EXPECT_NE(
        nodes[i].find("arguments" + expected + " after " + (i ? "1" : "0")),
        std::string::npos)
        << nodes[i] << "\n"
        << expected;
  }
  EXPECT_NE(nodes[0].find("simple_write grid 8,1,1 block 128,1,1 shared 0"),
            std::string::npos);
  kvcacheGraphDestroy(ours);
  kvcacheGraphDestroy(theirs);
}

TEST_F(CudaTest, WorksUnderTheCallersCapture) {
  rig.open(bundle, makeCuda());
  void *handle = stream(), *graph = nullptr, *exec = nullptr;
  setStep(3);
  std::vector<uint8_t> before = rig.results();
  fake.call("cuCtxPushCurrent_v2", context);
  ASSERT_EQ(fake.call("cuStreamBeginCapture_v2", handle, 0), 0);
  fake.log();
  EXPECT_STATUS(kvcacheInstanceEnqueue(rig.instance, 0, handle), KVCACHE_OK);
  EXPECT_STATUS(kvcacheInstanceEnqueue(rig.instance, 1, handle), KVCACHE_OK);
  EXPECT_EQ(calls(fake.log()), Strings{"cuLaunchKernel"});
  ASSERT_EQ(fake.call("cuStreamEndCapture", handle, &graph), 0);
  EXPECT_EQ(rig.results(), before) << "a capture executes nothing";
  ASSERT_EQ(fake.call("cuGraphInstantiateWithFlags", &exec, graph, 0ull), 0);
  ASSERT_EQ(fake.call("cuGraphLaunch", exec, handle), 0);
  fake.call("cuCtxPopCurrent_v2", &current);
  EXPECT_EQ(rig.results(), onTheMachine(3));
  fake.call("cuGraphExecDestroy", exec);
  fake.call("cuGraphDestroy", graph);
  fake.call("cuStreamDestroy_v2", handle);
}

TEST_F(CudaTest, WhatACaptureProhibitsIsSaid) {
  rig.open(bundle, makeCuda());
  void *handle = stream(), *graph = nullptr;
  setStep(1);
  auto begin = [&] {
    fake.call("cuCtxPushCurrent_v2", context);
    ASSERT_EQ(fake.call("cuStreamBeginCapture_v2", handle, 0), 0);
  };
  auto end = [&] {
    int result = fake.call("cuStreamEndCapture", handle, &graph);
    fake.call("cuCtxPopCurrent_v2", &current);
    return result;
  };
  uint64_t address = 0;
  begin();
  EXPECT_STATUS(kvcacheDeviceAllocate(rig.device, 64, &address),
                KVCACHE_CAPTURE);
  EXPECT_EQ(end(), captureInvalidated);
  begin();
  EXPECT_STATUS(kvcacheDeviceSynchronize(rig.device, handle), KVCACHE_CAPTURE);
  EXPECT_EQ(end(), captureInvalidated);
  begin(); // the legacy stream beside a capture
  EXPECT_STATUS(kvcacheInstanceEnqueue(rig.instance, 0, nullptr),
                KVCACHE_CAPTURE);
  EXPECT_EQ(end(), captureInvalidated);
  EXPECT_NE(std::string(kvcacheLastError())
                .find("segment layer0: kernel simple_write: cuLaunchKernel "
                      "failed: "),
            std::string::npos)
      << kvcacheLastError();
  fake.call("cuStreamDestroy_v2", handle);
}

TEST_F(CudaTest, RebindingUpdatesEveryNode) {
  rig.open(bundle, makeCuda());
  KvcacheGraph *graph = freeze();
  uint64_t other = 0, bytes = rig.buffer("layer1.output").bytes;
  ASSERT_STATUS(kvcacheDeviceAllocate(rig.device, bytes, &other), KVCACHE_OK);
  ASSERT_STATUS(
      kvcacheInstanceBindByName(rig.instance, "layer1.output", other, bytes),
      KVCACHE_OK);
  rig.addresses["layer1.output"] = other;
  setStep(4);
  fake.log();
  ASSERT_STATUS(kvcacheGraphUpdateBindings(graph), KVCACHE_OK);
  EXPECT_EQ(fake.log().size(), 4u);
  ASSERT_STATUS(kvcacheGraphReplay(graph, nullptr), KVCACHE_OK);
  EXPECT_EQ(rig.bytes("layer1.output"), [&] {
    Rig machine;
    machine.open(bundle, makeMachine());
    machine.fillCaches(4);
    machine.setBatch({{5, 9}, {2, 1}}, 4);
    EXPECT_STATUS(
        kvcacheInstanceEnqueue(machine.instance, KVCACHE_ALL_SEGMENTS, nullptr),
        KVCACHE_OK);
    return machine.bytes("layer1.output");
  }());
  kvcacheGraphDestroy(graph);
}

TEST_F(CudaTest, AsksForLargeSharedMemoryOnceAndAhead) {
  for (Launch &launch : bundle.manifest.targets[0].launches)
    if (launch.op == LaunchOp::PagedAttention)
      launch.sharedBytes = 100 * 1024;
  rig.open(bundle, makeCuda());
  Strings log = fake.log();
  EXPECT_EQ(std::count(log.begin(), log.end(),
                       "cuFuncSetAttribute simple_attention 8 102400"),
            1);
  setStep(1);
  fake.log();
  ASSERT_STATUS(kvcacheInstanceEnqueue(rig.instance, 1, nullptr), KVCACHE_OK);
  EXPECT_EQ(calls(fake.log()), Strings{"cuLaunchKernel"});
}

TEST_F(CudaTest, TakesTheCubinOfTheCardElseThePtx) {
  Target &target = bundle.manifest.targets[0];
  target.cubin = FileDigest{"code/sm_90.cubin", ""};
  bundle.files["code/sm_90.cubin"] =
      "\177ELF fake cubin of sm_90\n" + simplePtx();
  ASSERT_FALSE(updateDigests(bundle));
  rig.open(bundle, makeCuda());
  EXPECT_STREQ(kvcacheProgramCode(rig.program), "cubin");
  setStep(1);
  ASSERT_STATUS(
      kvcacheInstanceEnqueue(rig.instance, KVCACHE_ALL_SEGMENTS, nullptr),
      KVCACHE_OK);
  EXPECT_EQ(rig.results(), onTheMachine(1));
  rig.close();
  // A later generation: the driver finishes the PTX.
  fake.call("fakeCudaSet", 12080, 100);
  rig.open(bundle, makeCuda());
  EXPECT_STREQ(kvcacheDeviceName(rig.device), "cuda sm_100");
  EXPECT_STREQ(kvcacheProgramCode(rig.program), "ptx");
  rig.close();
  // A cubin that the driver does not take is no failure while there is PTX.
  fake.call("fakeCudaSet", 12080, 90);
  fake.call("fakeCudaInject", "cuModuleLoadDataEx", 0, invalidImage);
  rig.open(bundle, makeCuda());
  EXPECT_STREQ(kvcacheProgramCode(rig.program), "ptx");
}

TEST_F(CudaTest, SaysWhyNoCodeRuns) {
  fake.call("fakeCudaSet", 12080, 80);
  KvcacheDevice *device = makeCuda();
  KvcacheBundle *opened = nullptr;
  KvcacheProgram *program = nullptr;
  ASSERT_STATUS(openMemory(bundle, &opened), KVCACHE_OK);
  EXPECT_STATUS(
      kvcacheProgramCreate(opened, device, nullptr, nullptr, &program),
      KVCACHE_NO_CODE);
  EXPECT_STREQ(kvcacheLastError(),
               "kvcacheProgramCreate: target sm_90 does not run on this card, "
               "which is sm_80");
  kvcacheBundleClose(opened);
  kvcacheDeviceDestroy(device);
}

// kvcache-run on a card takes the newest target that the card runs.
TEST_F(CudaTest, ATargetOfALaterChipIsPassedOver) {
  Target newer = bundle.manifest.targets[0];
  newer.chip = "sm_100";
  newer.ptx.file = "code/sm_100.ptx";
  bundle.manifest.targets.push_back(newer);
  bundle.files["code/sm_100.ptx"] = simplePtx();
  ASSERT_FALSE(updateDigests(bundle));
  Expected<std::unique_ptr<Device>> device =
      createCudaDevice(0, KVCACHE_FAKE_CUDA);
  ASSERT_TRUE(bool(device)) << device.message();
  Expected<const Target *> target = selectTarget(bundle, **device);
  ASSERT_TRUE(bool(target)) << target.message();
  EXPECT_EQ((*target)->chip, "sm_90");
  target = selectTarget(bundle, **device, "sm_100");
  EXPECT_EQ(target.message(),
            "target sm_100 does not run on this card, which is sm_90");
}

/// A kernel that waits for its predecessor itself.
std::string waitingPtx() {
  std::string text = simplePtx();
  size_t entry = text.find(".entry simple_attention");
  size_t brace = text.find("\n{", entry);
  size_t first = text.find("\tmov.u32", brace);
  if (first == std::string::npos)
    first = text.find("\tld.param", brace);
  return text.insert(first, "\tgriddepcontrol.wait;\n");
}

TEST_F(CudaTest, OnlyKernelsThatWaitStartEarlyAndOnlyWhenAsked) {
  bundle = makeBundle(waitingPtx());
  ASSERT_NE(bundle.files["code/sm_90.ptx"].find("griddepcontrol.wait"),
            std::string::npos);
  for (bool programmatic : {false, true}) {
    rig.close();
    rig.open(bundle, makeCuda(programmatic));
    fake.log();
    KvcacheGraph *graph = freeze();
    Strings log = fake.log();
    size_t edges = size_t(std::count(log.begin(), log.end(),
                                     "cuGraphAddDependencies 1 port 1 type 1"));
    EXPECT_EQ(edges, programmatic ? 2u : 0u);
    kvcacheGraphDestroy(graph);
    void *handle = stream(), *captured = nullptr;
    fake.call("cuCtxPushCurrent_v2", context);
    ASSERT_EQ(fake.call("cuStreamBeginCapture_v2", handle, 0), 0);
    ASSERT_STATUS(kvcacheInstanceEnqueue(rig.instance, 0, handle), KVCACHE_OK);
    ASSERT_EQ(fake.call("cuStreamEndCapture", handle, &captured), 0);
    fake.call("cuCtxPopCurrent_v2", &current);
    log = fake.log();
    ASSERT_EQ(log.size(), 2u);
    EXPECT_EQ(log[0].rfind("cuLaunchKernel simple_write", 0), 0u);
    EXPECT_EQ(log[1].find("cuLaunchKernelEx simple_attention") == 0 &&
                  log[1].find(" attribute 6=1") != std::string::npos,
              programmatic)
        << log[1];
    fake.call("cuGraphDestroy", captured);
    fake.call("cuStreamDestroy_v2", handle);
  }
  // A card without it is asked for nothing.
  rig.close();
  bundle.manifest.targets[0].chip = "sm_80";
  fake.call("fakeCudaSet", 12080, 89);
  rig.open(bundle, makeCuda(true));
  fake.log();
  KvcacheGraph *graph = freeze();
  for (const std::string &line : fake.log())
    EXPECT_EQ(line.find("cuGraphAddDependencies"), std::string::npos);
  kvcacheGraphDestroy(graph);
}

TEST_F(CudaTest, EveryPreparingCallMayFail) {
  struct Case {
    const char *function;
    int after, result;
    KvcacheStatus status;
  };
  const Case cases[] = {
      {"cuCtxGetDevice", 0, 201, KVCACHE_INVALID_ARGUMENT},
      {"cuDeviceGetAttribute", 1, 1, KVCACHE_DRIVER_ERROR},
      {"cuCtxPushCurrent", 0, 201, KVCACHE_INVALID_ARGUMENT},
      {"cuModuleLoadDataEx", 0, outOfMemory, KVCACHE_OUT_OF_MEMORY},
      {"cuModuleLoadDataEx", 0, 218, KVCACHE_NO_CODE},
      {"cuModuleGetFunction", 1, 500, KVCACHE_DRIVER_ERROR},
      {"cuFuncGetAttribute", 0, 1, KVCACHE_DRIVER_ERROR},
      {"cuMemAlloc", 3, outOfMemory, KVCACHE_OUT_OF_MEMORY},
      {"cuMemcpyHtoD", 0, illegalAddress, KVCACHE_DEVICE_LOST},
      {"cuMemsetD8Async", 0, 1, KVCACHE_DRIVER_ERROR},
      {"cuGraphCreate", 0, outOfMemory, KVCACHE_OUT_OF_MEMORY},
      {"cuGraphAddKernelNode", 1, 1, KVCACHE_DRIVER_ERROR},
      {"cuGraphInstantiate", 0, outOfMemory, KVCACHE_OUT_OF_MEMORY},
      {"cuLaunchKernel", 1, outOfResources, KVCACHE_LAUNCH_FAILED},
      {"cuGraphLaunch", 0, outOfResources, KVCACHE_LAUNCH_FAILED},
      {"cuGraphExecKernelNodeSetParams", 1, 1, KVCACHE_DRIVER_ERROR},
      {"cuStreamSynchronize", 0, 719, KVCACHE_DEVICE_LOST}};
  for (const Case &test : cases) {
    fake.call("fakeCudaReset");
    int alive = fake.call("fakeCudaAlive");
    fake.call("fakeCudaInject", test.function, test.after, test.result);
    KvcacheStatus status = KVCACHE_OK;
    auto step = [&](KvcacheStatus result) {
      if (!status)
        status = result;
      return !status;
    };
    KvcacheDevice *device = nullptr;
    KvcacheBundle *opened = nullptr;
    KvcacheProgram *program = nullptr;
    KvcacheInstance *instance = nullptr;
    KvcacheGraph *graph = nullptr;
    std::vector<uint64_t> memory;
    step(openMemory(bundle, &opened));
    step(tryDevice(&device));
    if (!status)
      step(kvcacheProgramCreate(opened, device, nullptr, nullptr, &program));
    if (!status)
      step(kvcacheInstanceCreate(program, &instance));
    for (const Buffer &buffer : bundle.manifest.buffers) {
      uint64_t address = 0;
      if (status || buffer.owner == BufferOwner::Runtime)
        continue;
      std::vector<uint8_t> zeros(buffer.bytes);
      if (!step(kvcacheDeviceAllocate(device, buffer.bytes, &address)))
        continue;
      memory.push_back(address);
      step(kvcacheDeviceCopyIn(device, address, zeros.data(), zeros.size()));
      step(kvcacheInstanceBindByName(instance, buffer.name.c_str(), address,
                                     buffer.bytes));
    }
    uint64_t workspace = 0;
    if (!status && step(kvcacheDeviceAllocate(device, 4096, &workspace))) {
      memory.push_back(workspace);
      step(kvcacheInstanceBindWorkspace(instance, workspace, 4096, nullptr));
    }
    if (!status)
      step(kvcacheInstanceInstantiateGraph(instance, 0, &graph));
    if (!status)
      step(kvcacheInstanceEnqueue(instance, 0, nullptr));
    if (!status)
      step(kvcacheGraphReplay(graph, nullptr));
    if (!status)
      step(kvcacheGraphUpdateBindings(graph));
    if (!status)
      step(kvcacheDeviceSynchronize(device, nullptr));
    EXPECT_STREQ(kvcacheStatusName(status), kvcacheStatusName(test.status))
        << test.function << ": " << kvcacheLastError();
    EXPECT_NE(std::string(kvcacheLastError())
                  .find("(" + std::to_string(test.result) + ")"),
              std::string::npos)
        << test.function << ": " << kvcacheLastError();
    fake.call("fakeCudaReset"); // so that what was made can be taken back
    kvcacheGraphDestroy(graph);
    kvcacheInstanceDestroy(instance);
    kvcacheProgramDestroy(program);
    KvcacheDevice *clean = nullptr;
    ASSERT_STATUS(tryDevice(&clean), KVCACHE_OK);
    for (uint64_t address : memory)
      EXPECT_STATUS(kvcacheDeviceFree(clean, address), KVCACHE_OK);
    kvcacheDeviceDestroy(clean);
    kvcacheDeviceDestroy(device);
    kvcacheBundleClose(opened);
    EXPECT_EQ(fake.call("fakeCudaAlive"), alive)
        << test.function << " left something behind";
  }
}

TEST_F(CudaTest, ALostContextStaysLost) {
  rig.open(bundle, makeCuda());
  setStep(1);
  int32_t table[4] = {1 << 24, 0, 0, 0}; // far outside the pool
  rig.copyIn("page_table", table, sizeof(table));
  // The launch itself succeeds; the error surfaces later, as on a card.
  EXPECT_STATUS(kvcacheInstanceEnqueue(rig.instance, 0, nullptr), KVCACHE_OK);
  EXPECT_STATUS(kvcacheDeviceSynchronize(rig.device, nullptr),
                KVCACHE_DEVICE_LOST);
  EXPECT_NE(std::string(kvcacheLastError())
                .find("cuStreamSynchronize failed: CUDA_ERROR_ILLEGAL_ADDRESS "
                      "(700)"),
            std::string::npos)
      << kvcacheLastError();
  fake.log();
  EXPECT_STATUS(kvcacheInstanceEnqueue(rig.instance, 1, nullptr),
                KVCACHE_DEVICE_LOST);
  EXPECT_NE(std::string(kvcacheLastError())
                .find("the CUDA context is lost since an earlier call: "
                      "CUDA_ERROR_ILLEGAL_ADDRESS"),
            std::string::npos);
  EXPECT_EQ(fake.log(), Strings{}) << "the driver is left alone";
}

TEST_F(CudaTest, WithoutADriverTheReasonIsSaid) {
  KvcacheDevice *device = nullptr;
  KvcacheCudaOptions options = KVCACHE_INIT(KvcacheCudaOptions);
  options.context = context;
  options.driver = "/nowhere/libcuda.so.1";
  EXPECT_STATUS(kvcacheDeviceCreateCuda(&options, &device), KVCACHE_NO_DRIVER);
  EXPECT_NE(std::string(kvcacheLastError()).find("/nowhere/libcuda.so.1"),
            std::string::npos);
  options.driver = "libm.so.6"; // a library, but no driver
  EXPECT_STATUS(kvcacheDeviceCreateCuda(&options, &device),
                KVCACHE_DRIVER_TOO_OLD);
  EXPECT_NE(std::string(kvcacheLastError()).find("has no function cuInit"),
            std::string::npos);
  options.driver = KVCACHE_FAKE_CUDA;
  options.context = nullptr;
  EXPECT_STATUS(kvcacheDeviceCreateCuda(&options, &device),
                KVCACHE_INVALID_ARGUMENT);
  EXPECT_EQ(device, nullptr);
}

// A driver is opened once per name; another name is another driver here.
TEST_F(CudaTest, AnOldDriverAndOneWithoutCardsAreRefused) {
  std::string copy = std::string(KVCACHE_FAKE_CUDA) + ".other";
  Expected<std::string> library = readFile(KVCACHE_FAKE_CUDA);
  ASSERT_TRUE(bool(library));
  ASSERT_FALSE(writeFileAtomically(copy, *library));
  KvcacheDevice *device = nullptr;
  KvcacheCudaOptions options = KVCACHE_INIT(KvcacheCudaOptions);
  options.context = context;
  options.driver = copy.c_str();
  ::setenv("FAKE_CUDA_VERSION", "11080", 1);
  EXPECT_STATUS(kvcacheDeviceCreateCuda(&options, &device),
                KVCACHE_DRIVER_TOO_OLD);
  ::unsetenv("FAKE_CUDA_VERSION");
  EXPECT_NE(std::string(kvcacheLastError())
                .find("expected a driver for CUDA 12.0 or newer, found CUDA "
                      "11.8"),
            std::string::npos)
      << kvcacheLastError();
  void *handle = ::dlopen(copy.c_str(), RTLD_NOW | RTLD_LOCAL);
  ASSERT_TRUE(handle);
  auto inject = reinterpret_cast<int (*)(const char *, int, int)>(
      ::dlsym(handle, "fakeCudaInject"));
  inject("cuInit", 0, noDevice);
  EXPECT_STATUS(kvcacheDeviceCreateCuda(&options, &device), KVCACHE_NO_DRIVER);
  EXPECT_NE(std::string(kvcacheLastError())
                .find("cuInit failed: CUDA_ERROR_NO_DEVICE (100)"),
            std::string::npos)
      << kvcacheLastError();
  ::dlclose(handle);
  ::remove(copy.c_str());
}

} // namespace
