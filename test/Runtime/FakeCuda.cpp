//===- FakeCuda.cpp - A libcuda.so.1 that records and executes ------------===//
//
// The driver calls that the runtime makes, over the PTX machine: kernels run
// and give results. Every call is written to a log with its values, any call
// can be told to fail, and rules that a driver enforces are enforced, each with
// its source:
//
//   [capture]   CUDA C++ Programming Guide, CUDA Graphs, "Prohibited and
//               Unhandled Operations": it is invalid to synchronize or query a
//               stream that is being captured; the legacy stream must not be
//               used while a blocking stream captures; and in the mode
//               "global" (cuStreamBeginCapture,
//               cuThreadExchangeStreamCaptureMode) potentially unsafe calls
//               such as cuMemAlloc are prohibited for every thread. Any of
//               these invalidates the capture.
//   [context]   Driver API, Context Management: calls act on the context that
//               is current to the calling thread.
//   [params]    Driver API, cuLaunchKernel and cuGraphAddKernelNode: parameter
//               values are copied during the call.
//   [shared]    Programming Guide, "Shared Memory" of each compute capability:
//               more than 48 KiB of dynamic shared memory a block need the
//               attribute CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES.
//   [sticky]    Driver API, CUresult: errors like CUDA_ERROR_ILLEGAL_ADDRESS
//               leave the process in an inconsistent state; all further work
//               returns the same error. They surface after the launch.
//
//===----------------------------------------------------------------------===//

#include "../../lib/Runtime/CudaDriver.h"

#include <cstdlib>
#include <cstring>
#include <mutex>
#include <set>

namespace {

using namespace kvcache;
using namespace kvcache::cuda;

struct FakeContext {};

struct FakeModule {
  ptx::Module code;
};

struct FakeFunction {
  FakeModule *module;
  std::string name;
  int dynamicShared = 48 * 1024;
  const ptx::KernelInfo &info() const { return *module->code.findKernel(name); }
};

struct FakeNode {
  FakeFunction *function;
  unsigned grid[3], block[3], shared;
  std::vector<std::vector<uint8_t>> parameters; // copied: [params]
};

struct FakeGraph {
  std::vector<std::unique_ptr<FakeNode>> nodes;
};

struct FakeStream {
  FakeGraph *capture = nullptr;
  bool invalidated = false;
  int mode = 0;
};

struct FakeExec {
  std::vector<FakeNode> nodes;
  std::vector<GraphNode> handles; // of the graph that it was made from
};

struct State {
  std::mutex mutex;
  int version = 12080, capability = 90;
  std::string log;
  std::string injectName;
  int injectAfter = 0, injectResult = 0;
  Result sticky = Success;
  bool quiet = false;
  ptx::Machine machine;
  std::map<Pointer, std::unique_ptr<uint8_t, void (*)(void *)>> memory;
  std::set<FakeStream *> streams;
  std::set<FakeModule *> modules;
  std::map<std::pair<FakeModule *, std::string>, std::unique_ptr<FakeFunction>>
      functions;
  FakeContext primary;
};

State &state() {
  static State *instance = new State;
  return *instance;
}

thread_local std::vector<Context> contexts;

void note(const std::string &line) { state().log += line + "\n"; }

/// A call begins: it may fail as told, in a lost context, or without a context.
Result begin(const std::string &name, bool needsContext = true,
             bool works = true) {
  State &s = state();
  if (s.injectName == name && s.injectAfter-- == 0) {
    s.injectName.clear();
    if (isSticky(s.injectResult))
      s.sticky = s.injectResult;
    note(name + " -> " + std::to_string(s.injectResult));
    return s.injectResult;
  }
  if (s.sticky && works) // [sticky]
    return s.sticky;
  if (needsContext && contexts.empty()) // [context]
    return ErrorInvalidContext;
  return Success;
}

FakeStream *captured() {
  for (FakeStream *stream : state().streams)
    if (stream->capture)
      return stream;
  return nullptr;
}

/// A call that a capture in the mode "global" prohibits. [capture]
Result unsafe(const std::string &name) {
  FakeStream *stream = captured();
  if (!stream || stream->mode != 0)
    return Success;
  stream->invalidated = true;
  note(name + " during a capture");
  return ErrorStreamCaptureUnsupported;
}

std::string triple(const unsigned v[3]) {
  return std::to_string(v[0]) + "," + std::to_string(v[1]) + "," +
         std::to_string(v[2]);
}

std::string describe(const FakeNode &node) {
  static const char digits[] = "0123456789abcdef";
  std::string text = node.function->name + " grid " + triple(node.grid) +
                     " block " + triple(node.block) + " shared " +
                     std::to_string(node.shared) + " arguments";
  for (const auto &value : node.parameters) {
    text += ' ';
    for (uint8_t byte : value) {
      text += digits[byte >> 4];
      text += digits[byte & 15];
    }
  }
  return text;
}

Result makeNode(Function function, const unsigned grid[3],
                const unsigned block[3], unsigned shared, void **params,
                FakeNode &node) {
  if (!function || !params)
    return ErrorInvalidValue;
  node.function = static_cast<FakeFunction *>(function);
  const ptx::KernelInfo &info = node.function->info();
  std::copy(grid, grid + 3, node.grid);
  std::copy(block, block + 3, node.block);
  node.shared = shared;
  if (int(shared) > node.function->dynamicShared) // [shared]
    return ErrorInvalidValue;
  if (uint64_t(block[0]) * block[1] * block[2] > info.maxThreads)
    return ErrorInvalidValue;
  if (!grid[0] || !grid[1] || !grid[2] || grid[1] > 65535 || grid[2] > 65535)
    return ErrorInvalidValue;
  node.parameters.clear();
  for (size_t i = 0; i < info.parameters.size(); ++i) {
    const uint8_t *bytes = static_cast<const uint8_t *>(params[i]);
    node.parameters.emplace_back(bytes, bytes + info.parameters[i].size);
  }
  return Success;
}

void execute(const FakeNode &node) {
  State &s = state();
  std::vector<const void *> arguments;
  for (const auto &value : node.parameters)
    arguments.push_back(value.data());
  ptx::LaunchOptions options;
  options.initcheck = options.racecheck = options.counters = false;
  Expected<ptx::LaunchReport> report =
      s.machine.launch(node.function->module->code, node.function->name,
                       {node.grid[0], node.grid[1], node.grid[2]},
                       {node.block[0], node.block[1], node.block[2]},
                       node.shared, arguments.data(), options);
  if (!report || !report->clean()) // surfaces with a later call: [sticky]
    s.sticky = report ? ErrorIllegalAddress : ErrorLaunchFailed;
}

Result launch(const std::string &call, FakeNode node, Stream handle,
              const std::string &suffix = "") {
  auto *stream = static_cast<FakeStream *>(handle);
  note(call + " " + describe(node) + suffix);
  if (!stream) {
    // [capture] The legacy stream waits for all blocking streams.
    if (FakeStream *other = captured()) {
      other->invalidated = true;
      return 906; // CUDA_ERROR_STREAM_CAPTURE_IMPLICIT
    }
  } else if (stream->capture) {
    stream->capture->nodes.push_back(
        std::make_unique<FakeNode>(std::move(node)));
    return Success;
  }
  execute(node);
  return Success;
}

} // namespace

#define FAKE extern "C" __attribute__((visibility("default"))) Result
#define CALL(name, ...)                                                        \
  if (state().quiet)                                                           \
    return Success;                                                            \
  std::lock_guard<std::mutex> lock(state().mutex);                             \
  if (Result result = begin(#name, ##__VA_ARGS__))                             \
  return result

//===----------------------------------------------------------------------===//
// What tests say to the fake
//===----------------------------------------------------------------------===//

/// As after loading: version 12.8, sm_90, nothing logged or injected. Memory,
/// modules and contexts stay.
FAKE fakeCudaReset(void) {
  State &s = state();
  std::lock_guard<std::mutex> lock(s.mutex);
  s.version = 12080;
  s.capability = 90;
  s.log.clear();
  s.injectName.clear();
  s.sticky = Success;
  return Success;
}
FAKE fakeCudaSet(int version, int capability) {
  std::lock_guard<std::mutex> lock(state().mutex);
  state().version = version;
  state().capability = capability;
  return Success;
}
/// With 1 every call succeeds at once and does nothing: what is left is what
/// the runtime does by itself.
FAKE fakeCudaQuiet(int quiet) {
  state().quiet = quiet != 0;
  return Success;
}
/// The call of `function` after `after` further ones returns `result`.
FAKE fakeCudaInject(const char *function, int after, Result result) {
  std::lock_guard<std::mutex> lock(state().mutex);
  state().injectName = function;
  state().injectAfter = after;
  state().injectResult = result;
  return Success;
}
/// The log since the last call of this function.
extern "C" __attribute__((visibility("default"))) const char *
fakeCudaTakeLog(void) {
  static std::string taken;
  std::lock_guard<std::mutex> lock(state().mutex);
  taken.swap(state().log);
  state().log.clear();
  return taken.c_str();
}
/// Allocations, modules and streams that are alive.
FAKE fakeCudaAlive(void) {
  std::lock_guard<std::mutex> lock(state().mutex);
  return int(state().memory.size() + state().modules.size() +
             state().streams.size());
}

//===----------------------------------------------------------------------===//
// The driver
//===----------------------------------------------------------------------===//

FAKE cuInit(unsigned) {
  CALL(cuInit, false);
  return Success;
}
FAKE cuDriverGetVersion(int *version) {
  const char *wanted = std::getenv("FAKE_CUDA_VERSION");
  *version = wanted ? std::atoi(wanted) : state().version;
  return Success;
}
FAKE cuGetErrorName(Result result, const char **text) {
  *text = result == ErrorOutOfMemory      ? "CUDA_ERROR_OUT_OF_MEMORY"
          : result == ErrorNoDevice       ? "CUDA_ERROR_NO_DEVICE"
          : result == ErrorIllegalAddress ? "CUDA_ERROR_ILLEGAL_ADDRESS"
                                          : nullptr;
  return *text ? Success : ErrorInvalidValue;
}
FAKE cuGetErrorString(Result result, const char **text) {
  *text = result == ErrorOutOfMemory ? "out of memory" : nullptr;
  return *text ? Success : ErrorInvalidValue;
}
FAKE cuDeviceGet(DeviceId *device, int ordinal) {
  CALL(cuDeviceGet, false);
  if (ordinal != 0)
    return ErrorInvalidDevice;
  *device = 0;
  return Success;
}
FAKE cuDeviceGetAttribute(int *value, int attribute, DeviceId) {
  CALL(cuDeviceGetAttribute, false);
  note("cuDeviceGetAttribute " + std::to_string(attribute));
  if (attribute == AttributeComputeCapabilityMajor)
    *value = state().capability / 10;
  else if (attribute == AttributeComputeCapabilityMinor)
    *value = state().capability % 10;
  else
    return ErrorInvalidValue;
  return Success;
}
FAKE cuDevicePrimaryCtxRetain(Context *context, DeviceId) {
  CALL(cuDevicePrimaryCtxRetain, false);
  *context = &state().primary;
  return Success;
}
FAKE cuDevicePrimaryCtxRelease_v2(DeviceId) {
  CALL(cuDevicePrimaryCtxRelease, false);
  return Success;
}
FAKE cuCtxGetCurrent(Context *context) {
  *context = contexts.empty() ? nullptr : contexts.back();
  return Success;
}
FAKE cuCtxPushCurrent_v2(Context context) {
  CALL(cuCtxPushCurrent, false, /*works=*/false);
  if (context != &state().primary)
    return ErrorInvalidContext;
  contexts.push_back(context);
  return Success;
}
FAKE cuCtxPopCurrent_v2(Context *context) {
  if (contexts.empty())
    return ErrorInvalidContext;
  *context = contexts.back();
  contexts.pop_back();
  return Success;
}
FAKE cuCtxGetDevice(DeviceId *device) {
  CALL(cuCtxGetDevice);
  *device = 0;
  return Success;
}

/// Images are PTX text, or for a cubin the same text behind this header.
static constexpr char cubinMark[] = "\177ELF fake cubin of sm_";

FAKE cuModuleLoadDataEx(Module *module, const void *image, unsigned count,
                        int *options, void **values) {
  CALL(cuModuleLoadDataEx);
  if (Result result = unsafe("cuModuleLoadDataEx"))
    return result;
  const char *text = static_cast<const char *>(image);
  bool cubin = std::strncmp(text, cubinMark, sizeof(cubinMark) - 1) == 0;
  note(std::string("cuModuleLoadDataEx ") + (cubin ? "cubin" : "ptx"));
  if (cubin) {
    text += sizeof(cubinMark) - 1;
    if (std::atoi(text) / 10 != state().capability / 10 ||
        std::atoi(text) > state().capability)
      return ErrorNoBinaryForGpu;
    text = std::strchr(text, '\n') + 1;
  } else if (std::memcmp(text, "\177ELF", 4) == 0) {
    return ErrorInvalidImage;
  }
  Expected<ptx::Module> parsed = ptx::Module::parse(text, "image");
  if (!parsed) {
    for (unsigned i = 0; i < count; ++i)
      if (options[i] == JitErrorLogBuffer)
        std::strcpy(static_cast<char *>(values[i]), "ptxas: cannot parse");
    return ErrorInvalidPtx;
  }
  auto *fresh = new FakeModule{std::move(*parsed)};
  state().modules.insert(fresh);
  *module = fresh;
  return Success;
}
FAKE cuModuleUnload(Module module) {
  CALL(cuModuleUnload);
  note("cuModuleUnload");
  state().modules.erase(static_cast<FakeModule *>(module));
  return Success;
}
FAKE cuModuleGetFunction(Function *function, Module handle, const char *name) {
  CALL(cuModuleGetFunction);
  auto *module = static_cast<FakeModule *>(handle);
  note(std::string("cuModuleGetFunction ") + name);
  if (!module->code.findKernel(name))
    return ErrorNotFound;
  auto &entry = state().functions[{module, name}];
  if (!entry)
    entry.reset(new FakeFunction{module, name});
  *function = entry.get();
  return Success;
}
FAKE cuFuncGetAttribute(int *value, int attribute, Function handle) {
  CALL(cuFuncGetAttribute);
  auto *function = static_cast<FakeFunction *>(handle);
  note("cuFuncGetAttribute " + function->name + " " +
       std::to_string(attribute));
  if (attribute != FunctionMaxThreadsPerBlock)
    return ErrorInvalidValue;
  *value = int(function->info().maxThreads);
  return Success;
}
FAKE cuFuncSetAttribute(Function handle, int attribute, int value) {
  CALL(cuFuncSetAttribute);
  auto *function = static_cast<FakeFunction *>(handle);
  note("cuFuncSetAttribute " + function->name + " " +
       std::to_string(attribute) + " " + std::to_string(value));
  if (attribute != FunctionMaxDynamicSharedSizeBytes || value > 227 * 1024)
    return ErrorInvalidValue;
  function->dynamicShared = value;
  return Success;
}
FAKE cuFuncGetParamInfo(Function handle, size_t index, size_t *offset,
                        size_t *bytes) {
  CALL(cuFuncGetParamInfo);
  const auto &parameters =
      static_cast<FakeFunction *>(handle)->info().parameters;
  if (index >= parameters.size())
    return ErrorInvalidValue;
  *offset = parameters[index].offset;
  *bytes = parameters[index].size;
  return Success;
}

FAKE cuMemAlloc_v2(Pointer *pointer, size_t bytes) {
  CALL(cuMemAlloc);
  if (Result result = unsafe("cuMemAlloc"))
    return result;
  note("cuMemAlloc " + std::to_string(bytes));
  if (bytes == 0)
    return ErrorInvalidValue;
  std::unique_ptr<uint8_t, void (*)(void *)> host(
      static_cast<uint8_t *>(std::malloc(bytes)), std::free);
  if (!host)
    return ErrorOutOfMemory;
  // What nobody wrote is not zero.
  std::memset(host.get(), 0xAB, bytes);
  ptx::BufferOptions options;
  options.name = "allocation";
  *pointer = state().machine.addBuffer(host.get(), bytes, options);
  state().memory.emplace(*pointer, std::move(host));
  return Success;
}
FAKE cuMemFree_v2(Pointer pointer) {
  CALL(cuMemFree);
  if (Result result = unsafe("cuMemFree"))
    return result;
  if (state().machine.removeBuffer(pointer))
    return ErrorInvalidValue;
  state().memory.erase(pointer);
  return Success;
}
FAKE cuMemcpyHtoD_v2(Pointer to, const void *from, size_t bytes) {
  CALL(cuMemcpyHtoD);
  if (Result result = unsafe("cuMemcpyHtoD"))
    return result;
  note("cuMemcpyHtoD " + std::to_string(bytes));
  void *host = state().machine.hostPointer(to, bytes);
  if (!host)
    return ErrorInvalidValue;
  std::memcpy(host, from, bytes);
  return Success;
}
FAKE cuMemcpyDtoH_v2(void *to, Pointer from, size_t bytes) {
  CALL(cuMemcpyDtoH);
  if (Result result = unsafe("cuMemcpyDtoH"))
    return result;
  note("cuMemcpyDtoH " + std::to_string(bytes));
  const void *host = state().machine.hostPointer(from, bytes);
  if (!host)
    return ErrorInvalidValue;
  std::memcpy(to, host, bytes);
  return Success;
}
FAKE cuMemcpyDtoDAsync_v2(Pointer to, Pointer from, size_t bytes, Stream) {
  CALL(cuMemcpyDtoDAsync);
  note("cuMemcpyDtoDAsync " + std::to_string(bytes));
  void *target = state().machine.hostPointer(to, bytes);
  const void *source = state().machine.hostPointer(from, bytes);
  if (!target || !source)
    return ErrorInvalidValue;
  std::memcpy(target, source, bytes);
  return Success;
}
FAKE cuMemsetD8Async(Pointer to, unsigned char value, size_t bytes, Stream) {
  CALL(cuMemsetD8Async);
  note("cuMemsetD8Async " + std::to_string(value) + " " +
       std::to_string(bytes));
  void *host = state().machine.hostPointer(to, bytes);
  if (!host)
    return ErrorInvalidValue;
  std::memset(host, value, bytes);
  return Success;
}

FAKE cuLaunchKernel(Function function, unsigned gx, unsigned gy, unsigned gz,
                    unsigned bx, unsigned by, unsigned bz, unsigned shared,
                    Stream stream, void **params, void **) {
  CALL(cuLaunchKernel);
  unsigned grid[3] = {gx, gy, gz}, block[3] = {bx, by, bz};
  FakeNode node = {};
  if (Result result = makeNode(function, grid, block, shared, params, node))
    return result;
  return launch("cuLaunchKernel", std::move(node), stream);
}
FAKE cuLaunchKernelEx(const LaunchConfig *config, Function function,
                      void **params, void **) {
  CALL(cuLaunchKernelEx);
  unsigned grid[3] = {config->gridDimX, config->gridDimY, config->gridDimZ};
  unsigned block[3] = {config->blockDimX, config->blockDimY, config->blockDimZ};
  FakeNode node = {};
  if (Result result =
          makeNode(function, grid, block, config->sharedMemBytes, params, node))
    return result;
  std::string attributes;
  for (unsigned i = 0; i < config->numAttrs; ++i)
    attributes += " attribute " + std::to_string(config->attrs[i].id) + "=" +
                  std::to_string(config->attrs[i].value.integer);
  return launch("cuLaunchKernelEx", std::move(node), config->hStream,
                attributes);
}

FAKE cuGraphCreate(Graph *graph, unsigned) {
  CALL(cuGraphCreate, false);
  note("cuGraphCreate");
  *graph = new FakeGraph;
  return Success;
}
FAKE cuGraphAddKernelNode_v2(GraphNode *handle, Graph graph, const GraphNode *,
                             size_t dependencies,
                             const KernelNodeParams *params) {
  CALL(cuGraphAddKernelNode);
  unsigned grid[3] = {params->gridDimX, params->gridDimY, params->gridDimZ};
  unsigned block[3] = {params->blockDimX, params->blockDimY, params->blockDimZ};
  auto node = std::make_unique<FakeNode>();
  if (Result result =
          makeNode(params->func, grid, block, params->sharedMemBytes,
                   params->kernelParams, *node))
    return result;
  note("cuGraphAddKernelNode " + describe(*node) + " after " +
       std::to_string(dependencies));
  *handle = node.get();
  static_cast<FakeGraph *>(graph)->nodes.push_back(std::move(node));
  return Success;
}
FAKE cuGraphAddDependencies_v2(Graph, const GraphNode *, const GraphNode *,
                               const GraphEdgeData *data, size_t count) {
  CALL(cuGraphAddDependencies);
  note("cuGraphAddDependencies " + std::to_string(count) + " port " +
       std::to_string(data->from_port) + " type " + std::to_string(data->type));
  return Success;
}
FAKE cuGraphInstantiateWithFlags(GraphExec *handle, Graph graph,
                                 unsigned long long flags) {
  CALL(cuGraphInstantiate);
  note("cuGraphInstantiate " + std::to_string(flags));
  auto *exec = new FakeExec;
  for (const auto &node : static_cast<FakeGraph *>(graph)->nodes) {
    exec->nodes.push_back(*node);
    exec->handles.push_back(node.get());
  }
  *handle = exec;
  return Success;
}
FAKE cuGraphExecKernelNodeSetParams_v2(GraphExec handle, GraphNode node,
                                       const KernelNodeParams *params) {
  CALL(cuGraphExecKernelNodeSetParams);
  auto *exec = static_cast<FakeExec *>(handle);
  for (size_t i = 0; i < exec->nodes.size(); ++i) {
    if (exec->handles[i] != node)
      continue;
    unsigned grid[3] = {params->gridDimX, params->gridDimY, params->gridDimZ};
    unsigned block[3] = {params->blockDimX, params->blockDimY,
                         params->blockDimZ};
    if (Result result =
            makeNode(params->func, grid, block, params->sharedMemBytes,
                     params->kernelParams, exec->nodes[i]))
      return result;
    note("cuGraphExecKernelNodeSetParams " + describe(exec->nodes[i]));
    return Success;
  }
  return ErrorInvalidValue;
}
FAKE cuGraphLaunch(GraphExec handle, Stream) {
  CALL(cuGraphLaunch);
  note("cuGraphLaunch");
  for (const FakeNode &node : static_cast<FakeExec *>(handle)->nodes)
    execute(node);
  return Success;
}
FAKE cuGraphExecDestroy(GraphExec handle) {
  delete static_cast<FakeExec *>(handle);
  return Success;
}
FAKE cuGraphDestroy(Graph graph) {
  delete static_cast<FakeGraph *>(graph);
  return Success;
}

FAKE cuStreamCreate(Stream *stream, unsigned) {
  CALL(cuStreamCreate);
  auto *fresh = new FakeStream;
  state().streams.insert(fresh);
  *stream = fresh;
  return Success;
}
FAKE cuStreamDestroy_v2(Stream stream) {
  std::lock_guard<std::mutex> lock(state().mutex);
  state().streams.erase(static_cast<FakeStream *>(stream));
  delete static_cast<FakeStream *>(stream);
  return Success;
}
FAKE cuStreamSynchronize(Stream handle) {
  CALL(cuStreamSynchronize);
  note("cuStreamSynchronize");
  auto *stream = static_cast<FakeStream *>(handle);
  if (stream && stream->capture) { // [capture]
    stream->invalidated = true;
    return ErrorStreamCaptureUnsupported;
  }
  return Success;
}
FAKE cuStreamBeginCapture_v2(Stream handle, int mode) {
  CALL(cuStreamBeginCapture);
  auto *stream = static_cast<FakeStream *>(handle);
  if (!stream) // the legacy stream cannot be captured: [capture]
    return ErrorStreamCaptureUnsupported;
  stream->capture = new FakeGraph;
  stream->invalidated = false;
  stream->mode = mode;
  return Success;
}
FAKE cuStreamEndCapture(Stream handle, Graph *graph) {
  CALL(cuStreamEndCapture);
  auto *stream = static_cast<FakeStream *>(handle);
  *graph = stream->capture;
  stream->capture = nullptr;
  if (!stream->invalidated)
    return Success;
  delete static_cast<FakeGraph *>(*graph);
  *graph = nullptr;
  return 901; // CUDA_ERROR_STREAM_CAPTURE_INVALIDATED
}
FAKE cuEventCreate(Event *event, unsigned) {
  CALL(cuEventCreate);
  *event = new double(0);
  return Success;
}
/// Events count launches instead of time: one microsecond a log line.
FAKE cuEventRecord(Event event, Stream) {
  CALL(cuEventRecord);
  *static_cast<double *>(event) = double(state().log.size());
  return Success;
}
FAKE cuEventSynchronize(Event) {
  CALL(cuEventSynchronize);
  return Success;
}
FAKE cuEventElapsedTime(float *milliseconds, Event start, Event end) {
  CALL(cuEventElapsedTime);
  *milliseconds = float(
      1e-3 * (1 + *static_cast<double *>(end) - *static_cast<double *>(start)));
  return Success;
}
FAKE cuEventDestroy_v2(Event event) {
  delete static_cast<double *>(event);
  return Success;
}
