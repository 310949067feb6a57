//===- CudaBackend.cpp - A CUDA context behind the C interface ------------===//
//
// Everything that may synchronise, allocate or ask for attributes happens in
// load() and instantiate(); enqueue() and replay() only launch.
//
//===----------------------------------------------------------------------===//

#include "CudaDriver.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <mutex>
#include <set>

namespace kvcache {

namespace {

using cuda::Driver;

/// Makes a context current for a scope, unless it is.
class ContextScope {
public:
  ContextScope(const Driver &driver, cuda::Context context) : driver(driver) {
    cuda::Context current = nullptr;
    if (driver.cuCtxGetCurrent(&current) == cuda::Success && current == context)
      return;
    result = driver.cuCtxPushCurrent_v2(context);
    pushed = result == cuda::Success;
  }
  ~ContextScope() {
    cuda::Context ignored = nullptr;
    if (pushed)
      driver.cuCtxPopCurrent_v2(&ignored);
  }
  ContextScope(const ContextScope &) = delete;
  ContextScope &operator=(const ContextScope &) = delete;
  cuda::Result error() const { return result; }

private:
  const Driver &driver;
  cuda::Result result = cuda::Success;
  bool pushed = false;
};

/// The context, and the sticky error that ended it.
class CudaContext {
public:
  CudaContext(const Driver &driver, cuda::Context context)
      : driver(driver), handle(context) {}

  const Driver &driver;
  const cuda::Context handle;

  /// Calls `body` with the context current; what it returns becomes an Outcome
  /// whose text says "`what` failed". Nothing is called in a lost context.
  template <typename Body> Outcome call(const char *what, Body body) {
    if (cuda::Result before = lost)
      return {KVCACHE_DEVICE_LOST,
              std::string(what) +
                  ": the CUDA context is lost since an earlier call: " +
                  driver.describe(before)};
    ContextScope scope(driver, handle);
    if (scope.error())
      return fail(scope.error(), "cuCtxPushCurrent");
    if (cuda::Result result = body())
      return fail(result, what);
    return {};
  }

  Outcome fail(cuda::Result result, const std::string &what) {
    if (cuda::isSticky(result))
      lost = result;
    return driver.failure(result, what);
  }

private:
  std::atomic<cuda::Result> lost{cuda::Success};
};

/// A launch as both launch calls and graph nodes take it.
struct CudaKernel {
  cuda::Function function = nullptr;
  bool waits = false; // for its predecessor, by griddepcontrol.wait
};

cuda::KernelNodeParams nodeParams(const LaunchPacket &packet,
                                  cuda::Function function) {
  const Launch &launch = packet.launch();
  cuda::KernelNodeParams params = {};
  params.func = function;
  params.gridDimX = unsigned(launch.grid[0]);
  params.gridDimY = unsigned(launch.grid[1]);
  params.gridDimZ = unsigned(launch.grid[2]);
  params.blockDimX = unsigned(launch.block[0]);
  params.blockDimY = unsigned(launch.block[1]);
  params.blockDimZ = unsigned(launch.block[2]);
  params.sharedMemBytes = unsigned(launch.sharedBytes);
  params.kernelParams = packet.arguments();
  return params;
}

class CudaGraph final : public BackendGraph {
public:
  CudaGraph(std::shared_ptr<CudaContext> context,
            const std::vector<CudaKernel> &kernels)
      : context(std::move(context)), kernels(kernels) {}

  ~CudaGraph() override {
    const Driver &driver = context->driver;
    ContextScope scope(driver, context->handle);
    if (exec)
      driver.cuGraphExecDestroy(exec);
    if (graph)
      driver.cuGraphDestroy(graph);
  }

  /// A chain of kernel nodes: each depends on the one before.
  Outcome build(const std::vector<LaunchPacket> &packets) {
    const Driver &driver = context->driver;
    if (Outcome outcome = context->call(
            "cuGraphCreate", [&] { return driver.cuGraphCreate(&graph, 0); }))
      return outcome;
    for (const LaunchPacket &packet : packets) {
      const CudaKernel &kernel = kernels[packet.index()];
      cuda::KernelNodeParams params = nodeParams(packet, kernel.function);
      cuda::GraphNode node = nullptr;
      bool early =
          kernel.waits && !nodes.empty() && driver.cuGraphAddDependencies_v2;
      bool ordinary = !early && !nodes.empty();
      Outcome outcome = context->call("cuGraphAddKernelNode", [&] {
        cuda::Result result = driver.cuGraphAddKernelNode_v2(
            &node, graph, ordinary ? &nodes.back() : nullptr, ordinary ? 1 : 0,
            &params);
        if (result || !early)
          return result;
        cuda::GraphEdgeData edge = {};
        edge.from_port = cuda::GraphPortProgrammatic;
        edge.type = cuda::GraphDependencyProgrammatic;
        return driver.cuGraphAddDependencies_v2(graph, &nodes.back(), &node,
                                                &edge, 1);
      });
      if (outcome)
        return outcome.withContext("kernel " + packet.launch().kernel);
      nodes.push_back(node);
    }
    return context->call("cuGraphInstantiate", [&] {
      return driver.cuGraphInstantiateWithFlags(&exec, graph, 0);
    });
  }

  Outcome replay(KvcacheStream stream) override {
    return context->call("cuGraphLaunch", [&] {
      return context->driver.cuGraphLaunch(exec, stream);
    });
  }

  Outcome update(const std::vector<LaunchPacket> &packets) override {
    for (size_t i = 0; i < nodes.size(); ++i) {
      cuda::KernelNodeParams params =
          nodeParams(packets[i], kernels[packets[i].index()].function);
      if (Outcome outcome =
              context->call("cuGraphExecKernelNodeSetParams", [&] {
                return context->driver.cuGraphExecKernelNodeSetParams_v2(
                    exec, nodes[i], &params);
              }))
        return outcome.withContext("kernel " + packets[i].launch().kernel);
    }
    return {};
  }

private:
  std::shared_ptr<CudaContext> context;
  const std::vector<CudaKernel> &kernels; // by index of the launch
  cuda::Graph graph = nullptr;
  cuda::GraphExec exec = nullptr;
  std::vector<cuda::GraphNode> nodes;
};

class CudaCode final : public BackendCode {
public:
  explicit CudaCode(std::shared_ptr<CudaContext> context)
      : context(std::move(context)) {}

  ~CudaCode() override {
    if (!module)
      return;
    ContextScope scope(context->driver, context->handle);
    context->driver.cuModuleUnload(module);
  }

  const char *kind() const override { return fromCubin ? "cubin" : "ptx"; }

  Outcome load(const Bundle &bundle, const Target &target, bool cubinFits,
               bool programmatic);

  Outcome enqueue(const LaunchPacket &packet, KvcacheStream stream) override {
    const Launch &launch = packet.launch();
    const CudaKernel &kernel = kernels[packet.index()];
    const Driver &driver = context->driver;
    Outcome outcome = context->call("cuLaunchKernel", [&] {
      cuda::KernelNodeParams params = nodeParams(packet, kernel.function);
      if (!kernel.waits)
        return driver.cuLaunchKernel(
            kernel.function, params.gridDimX, params.gridDimY, params.gridDimZ,
            params.blockDimX, params.blockDimY, params.blockDimZ,
            params.sharedMemBytes, stream, params.kernelParams, nullptr);
      cuda::LaunchAttribute attribute = {};
      attribute.id = cuda::LaunchProgrammaticSerialization;
      attribute.value.integer = 1;
      cuda::LaunchConfig config = {params.gridDimX,
                                   params.gridDimY,
                                   params.gridDimZ,
                                   params.blockDimX,
                                   params.blockDimY,
                                   params.blockDimZ,
                                   params.sharedMemBytes,
                                   stream,
                                   &attribute,
                                   1};
      return driver.cuLaunchKernelEx(&config, kernel.function,
                                     params.kernelParams, nullptr);
    });
    return outcome ? outcome.withContext("kernel " + launch.kernel) : outcome;
  }

  Outcome instantiate(const std::vector<LaunchPacket> &packets,
                      std::unique_ptr<BackendGraph> &graph) override {
    auto fresh = std::make_unique<CudaGraph>(context, kernels);
    if (Outcome outcome = fresh->build(packets))
      return outcome;
    graph = std::move(fresh);
    return {};
  }

private:
  Outcome loadImage(const std::string &image, const std::string &file);
  Outcome findKernel(const Target &target, const std::string &name,
                     cuda::Function &function);

  std::shared_ptr<CudaContext> context;
  cuda::Module module = nullptr;
  bool fromCubin = false;
  std::vector<CudaKernel> kernels; // by index of the launch
};

/// Kernels of a PTX text that hold griddepcontrol.wait. Only those may start
/// before their predecessor has ended: the wait is what makes its memory
/// visible (PTX ISA, griddepcontrol).
std::set<std::string> waitingKernels(const std::string &ptx) {
  std::set<std::string> names;
  std::string current;
  size_t position = 0;
  while (position < ptx.size()) {
    size_t end = std::min(ptx.find('\n', position), ptx.size());
    std::string line = ptx.substr(position, end - position);
    position = end + 1;
    if (size_t comment = line.find("//"); comment != std::string::npos)
      line.resize(comment);
    if (size_t entry = line.find(".entry "); entry != std::string::npos) {
      size_t start = line.find_first_not_of(' ', entry + 7);
      size_t stop = line.find_first_of("( \t", start);
      current =
          start == std::string::npos ? "" : line.substr(start, stop - start);
    }
    if (line.find("griddepcontrol.wait") != std::string::npos)
      names.insert(current);
  }
  return names;
}

Outcome CudaCode::loadImage(const std::string &image, const std::string &file) {
  char log[4096] = "";
  int options[] = {cuda::JitErrorLogBuffer, cuda::JitErrorLogBufferSizeBytes};
  void *values[] = {log, reinterpret_cast<void *>(uintptr_t(sizeof(log) - 1))};
  // PTX is text with a final zero; std::string has one.
  Outcome outcome = context->call("cuModuleLoadDataEx", [&] {
    return context->driver.cuModuleLoadDataEx(&module, image.c_str(), 2,
                                              options, values);
  });
  if (!outcome)
    return {};
  return Outcome(outcome.code(),
                 outcome.message() + (log[0] ? std::string("\n") + log : ""))
      .withContext(file);
}

Outcome CudaCode::findKernel(const Target &target, const std::string &name,
                             cuda::Function &function) {
  const Driver &driver = context->driver;
  ContextScope scope(driver, context->handle);
  if (Outcome outcome = context->call("cuModuleGetFunction", [&] {
        return driver.cuModuleGetFunction(&function, module, name.c_str());
      }))
    return outcome.withContext("kernel " + name);
  int64_t shared = 0, threads = 0;
  for (const Launch &launch : target.launches) {
    if (launch.kernel != name)
      continue;
    shared = std::max(shared, launch.sharedBytes);
    threads =
        std::max(threads, launch.block[0] * launch.block[1] * launch.block[2]);
    if (!driver.cuFuncGetParamInfo)
      continue;
    // The manifest is not trusted to know how many arguments a cubin reads.
    for (size_t i = 0; i <= launch.arguments.size(); ++i) {
      size_t offset = 0, bytes = 0;
      cuda::Result result =
          driver.cuFuncGetParamInfo(function, i, &offset, &bytes);
      bool there = i < launch.arguments.size();
      bool fits = there ? result == cuda::Success &&
                              bytes == argumentBytes(launch.arguments[i].kind)
                        : result != cuda::Success;
      if (!fits)
        return {KVCACHE_INVALID_BUNDLE,
                "kernel " + name + ": its code does not take the " +
                    std::to_string(launch.arguments.size()) +
                    " arguments that the manifest gives (argument " +
                    std::to_string(i) + ")"};
    }
  }
  // Blocks above 48 KiB of dynamic shared memory have to be asked for.
  if (shared > 0)
    if (Outcome outcome = context->call("cuFuncSetAttribute", [&] {
          return driver.cuFuncSetAttribute(
              function, cuda::FunctionMaxDynamicSharedSizeBytes, int(shared));
        }))
      return outcome.withContext("kernel " + name + ", " +
                                 std::to_string(shared) +
                                 " bytes of shared memory");
  int most = 0;
  if (Outcome outcome = context->call("cuFuncGetAttribute", [&] {
        return driver.cuFuncGetAttribute(
            &most, cuda::FunctionMaxThreadsPerBlock, function);
      }))
    return outcome.withContext("kernel " + name);
  if (threads > most)
    return {KVCACHE_NO_CODE, "kernel " + name + ": this card runs blocks of " +
                                 std::to_string(most) +
                                 " threads of it, the manifest asks for " +
                                 std::to_string(threads)};
  return {};
}

Outcome CudaCode::load(const Bundle &bundle, const Target &target,
                       bool cubinFits, bool programmatic) {
  std::optional<ptx::Module> parsed;
  if (Outcome outcome =
          parseTarget(bundle, target, /*executable=*/false, parsed))
    return outcome;
  const std::string *ptx = bundle.find(target.ptx.file);
  Outcome cubinFailure;
  if (target.cubin && cubinFits) {
    const std::string *image = bundle.find(target.cubin->file);
    if (!image)
      return {KVCACHE_INVALID_BUNDLE,
              target.cubin->file + ": the bundle does not hold it"};
    cubinFailure = loadImage(*image, target.cubin->file);
    fromCubin = !cubinFailure;
    // A cubin of another revision: the driver can still finish the PTX.
    if (cubinFailure && cubinFailure.code() != KVCACHE_NO_CODE)
      return cubinFailure;
  }
  if (!fromCubin)
    if (Outcome outcome = loadImage(*ptx, target.ptx.file))
      return cubinFailure
                 ? Outcome(outcome.code(),
                           cubinFailure.message() + "\n" + outcome.message())
                 : outcome;
  std::set<std::string> waiting;
  if (programmatic)
    waiting = waitingKernels(*ptx);
  std::map<std::string, cuda::Function> functions;
  for (const Launch &launch : target.launches) {
    cuda::Function &function = functions[launch.kernel];
    if (!function)
      if (Outcome outcome = findKernel(target, launch.kernel, function))
        return outcome.withContext("target " + target.chip);
    kernels.push_back({function, waiting.count(launch.kernel) != 0});
  }
  return {};
}

class CudaBackend final : public Backend {
public:
  CudaBackend(const Driver &driver, cuda::Context handle, int capability,
              bool programmatic)
      : context(std::make_shared<CudaContext>(driver, handle)), driver(driver),
        capability(capability), programmatic(programmatic) {}

  std::string name() const override {
    return "cuda sm_" + std::to_string(capability);
  }

  Outcome allocate(uint64_t bytes, uint64_t &address) override {
    cuda::Pointer pointer = 0;
    Outcome outcome = context->call("cuMemAlloc", [&] {
      return driver.cuMemAlloc_v2(&pointer, bytes ? bytes : 1);
    });
    if (outcome)
      return outcome.withContext(std::to_string(bytes) + " bytes");
    address = pointer;
    return {};
  }

  Outcome release(uint64_t address) override {
    return context->call("cuMemFree",
                         [&] { return driver.cuMemFree_v2(address); });
  }

  Outcome copyIn(uint64_t address, const void *source,
                 uint64_t bytes) override {
    if (bytes == 0)
      return {};
    return context->call("cuMemcpyHtoD", [&] {
      return driver.cuMemcpyHtoD_v2(address, source, bytes);
    });
  }

  Outcome copyOut(void *target, uint64_t address, uint64_t bytes) override {
    if (bytes == 0)
      return {};
    return context->call("cuMemcpyDtoH", [&] {
      return driver.cuMemcpyDtoH_v2(target, address, bytes);
    });
  }

  Outcome fill(uint64_t address, uint8_t value, uint64_t bytes,
               KvcacheStream stream) override {
    if (bytes == 0)
      return {};
    return context->call("cuMemsetD8Async", [&] {
      return driver.cuMemsetD8Async(address, value, bytes, stream);
    });
  }

  Outcome synchronize(KvcacheStream stream) override {
    return context->call("cuStreamSynchronize",
                         [&] { return driver.cuStreamSynchronize(stream); });
  }

  /// A cubin runs on its chip and later ones of its generation; PTX on its
  /// chip and everything later; with a suffix (sm_90a) on exactly its chip.
  Outcome load(const Bundle &bundle, const Target &target,
               std::unique_ptr<BackendCode> &code) override {
    int chip = chipNumber(target.chip);
    bool exact = target.chip.back() >= 'a' && target.chip.back() <= 'z';
    if (exact ? chip != capability : chip > capability)
      return {KVCACHE_NO_CODE,
              "target " + target.chip +
                  " does not run on this card, which is " + "sm_" +
                  std::to_string(capability) +
                  (exact ? "; its code is for exactly one chip" : "")};
    auto fresh = std::make_unique<CudaCode>(context);
    bool cubinFits = chip / 10 == capability / 10;
    if (Outcome outcome = fresh->load(bundle, target, cubinFits,
                                      programmatic && capability >= 90))
      return outcome;
    code = std::move(fresh);
    return {};
  }

private:
  std::shared_ptr<CudaContext> context;
  const Driver &driver;
  int capability; // 90 for 9.0
  bool programmatic;
};

} // namespace

Outcome createCudaBackend(void *context, const std::string &library,
                          bool programmaticLaunch,
                          std::unique_ptr<Backend> &backend) {
  const Driver *driver = nullptr;
  if (Outcome outcome = Driver::open(library, driver))
    return outcome;
  if (!context)
    return {KVCACHE_INVALID_ARGUMENT,
            "expected a CUcontext to work in, found null"};
  ContextScope scope(*driver, context);
  if (scope.error())
    return driver->failure(scope.error(), "cuCtxPushCurrent");
  cuda::DeviceId device = 0;
  int major = 0, minor = 0;
  if (cuda::Result result = driver->cuCtxGetDevice(&device))
    return driver->failure(result, "cuCtxGetDevice");
  for (auto [attribute, value] :
       {std::pair<int, int *>{cuda::AttributeComputeCapabilityMajor, &major},
        {cuda::AttributeComputeCapabilityMinor, &minor}})
    if (cuda::Result result =
            driver->cuDeviceGetAttribute(value, attribute, device))
      return driver->failure(result, "cuDeviceGetAttribute");
  backend = std::make_unique<CudaBackend>(*driver, context, 10 * major + minor,
                                          programmaticLaunch);
  return {};
}

} // namespace kvcache
