//===- CAPI.cpp - C interface of the runtime ------------------------------===//

#include "Backend.h"

#include <algorithm>
#include <cstring>
#include <new>

using namespace kvcache;

//===----------------------------------------------------------------------===//
// Objects
//===----------------------------------------------------------------------===//

struct KvcacheBundle {
  Bundle bundle;
  /// Shared with the programs, which read the manifest.
  std::shared_ptr<int> users = std::make_shared<int>();
};

struct KvcacheDevice {
  std::unique_ptr<Backend> backend;
  std::string name;
};

namespace {

/// Everything in the workspace starts at a multiple of this.
constexpr uint64_t workspaceAlignment = 256;
/// What kernels assume of buffers: their widest access is 16 bytes.
constexpr uint64_t bufferAlignment = 16;

struct WorkspacePart {
  size_t buffer; // in the manifest
  uint64_t offset, bytes;
  bool counters; // zero before the first launch
};

/// A segment's launches, by position in Target::launches.
struct SegmentLaunches {
  std::vector<size_t> launches;
  std::vector<size_t> buffers; // with memory, ascending
};

} // namespace

struct KvcacheProgram {
  const Bundle *bundle = nullptr;
  std::shared_ptr<int> user; // of the bundle
  Backend *backend = nullptr;
  const Program *program = nullptr;
  const Target *target = nullptr;
  std::unique_ptr<BackendCode> code;
  std::vector<SegmentLaunches> segments;
  std::vector<WorkspacePart> workspace;
  uint64_t workspaceBytes = 0;

  const Manifest &manifest() const { return bundle->manifest; }
  size_t bufferIndex(const Buffer &buffer) const {
    return size_t(&buffer - manifest().buffers.data());
  }
  /// The buffer that holds the memory behind `buffer`.
  size_t holderIndex(const Buffer &buffer) const {
    return bufferIndex(buffer.offsetIn
                           ? *manifest().findBuffer(buffer.offsetIn->buffer)
                           : buffer);
  }
};

struct KvcacheInstance {
  /// Where a buffer's address goes when it is bound.
  struct Patch {
    size_t segment, packet, argument;
    uint64_t offset; // of a view
  };

  KvcacheProgram *program = nullptr;
  std::vector<std::vector<LaunchPacket>> packets; // by segment
  std::vector<std::vector<Patch>> patches;        // by buffer
  std::vector<uint64_t> addresses;                // by buffer; 0: not bound
  std::vector<size_t> unbound;                    // by segment: buffers missing

  void bind(size_t buffer, uint64_t address) {
    bool fresh = addresses[buffer] == 0;
    addresses[buffer] = address;
    for (const Patch &patch : patches[buffer])
      packets[patch.segment][patch.packet].setCell(patch.argument,
                                                   address + patch.offset);
    if (!fresh)
      return;
    for (size_t i = 0; i < unbound.size(); ++i) {
      const std::vector<size_t> &used = program->segments[i].buffers;
      unbound[i] -= std::binary_search(used.begin(), used.end(), buffer);
    }
  }
};

struct KvcacheGraph {
  KvcacheInstance *instance = nullptr;
  size_t segment = 0;
  std::vector<LaunchPacket> packets; // what is frozen now
  std::unique_ptr<BackendGraph> graph;
};

//===----------------------------------------------------------------------===//
// Failures
//===----------------------------------------------------------------------===//

namespace {

thread_local std::string lastError;

KvcacheStatus report(const Outcome &outcome, const char *function) noexcept {
  if (!outcome)
    return KVCACHE_OK;
  try {
    lastError = std::string(function) + ": " + outcome.message();
  } catch (...) {
    lastError.clear();
  }
  return outcome.code();
}

/// Runs `body`, which returns an Outcome; nothing is thrown into C.
template <typename Body>
KvcacheStatus guard(const char *function, Body body) noexcept {
  try {
    return report(body(), function);
  } catch (const std::bad_alloc &) {
    return report({KVCACHE_OUT_OF_MEMORY, "out of host memory"}, function);
  } catch (const std::exception &exception) {
    return report({KVCACHE_INVALID_ARGUMENT, exception.what()}, function);
  }
}

Outcome invalid(std::string text) {
  return {KVCACHE_INVALID_ARGUMENT, std::move(text)};
}

Outcome isNull(const char *name) {
  return invalid(std::string(name) + ": expected an object, found null");
}

/// Whether a struct of the caller's has room for what this library fills.
template <typename Struct> Outcome checkSize(const Struct *out) {
  if (!out)
    return isNull("out");
  if (out->size < sizeof(Struct))
    return invalid("size: expected at least " + std::to_string(sizeof(Struct)) +
                   " (set it with KVCACHE_INIT), found " +
                   std::to_string(out->size));
  return {};
}

Outcome badIndex(const char *what, size_t index, size_t count) {
  return invalid(std::string(what) + ": expected an index below " +
                 std::to_string(count) + ", found " + std::to_string(index));
}

} // namespace

uint32_t kvcacheRuntimeAbiVersion(void) { return KVCACHE_RUNTIME_ABI_VERSION; }

const char *kvcacheLastError(void) { return lastError.c_str(); }

const char *kvcacheStatusName(KvcacheStatus status) {
  static const char *const names[] = {"KVCACHE_OK",
                                      "KVCACHE_INVALID_ARGUMENT",
                                      "KVCACHE_INVALID_BUNDLE",
                                      "KVCACHE_NO_DRIVER",
                                      "KVCACHE_DRIVER_TOO_OLD",
                                      "KVCACHE_NO_CODE",
                                      "KVCACHE_OUT_OF_MEMORY",
                                      "KVCACHE_NOT_BOUND",
                                      "KVCACHE_LAUNCH_FAILED",
                                      "KVCACHE_DEVICE_LOST",
                                      "KVCACHE_INCOMPATIBLE_CACHE",
                                      "KVCACHE_CAPTURE",
                                      "KVCACHE_DRIVER_ERROR"};
  size_t index = size_t(status);
  return index < sizeof(names) / sizeof(*names) ? names[index]
                                                : "unknown status";
}

//===----------------------------------------------------------------------===//
// Bundles
//===----------------------------------------------------------------------===//

static Outcome takeBundle(Expected<Bundle> opened, KvcacheBundle **bundle) {
  if (!opened)
    return {KVCACHE_INVALID_BUNDLE, opened.message()};
  *bundle = new KvcacheBundle();
  (*bundle)->bundle = std::move(*opened);
  return {};
}

KvcacheStatus kvcacheBundleOpen(const char *directory, KvcacheBundle **bundle) {
  return guard(__func__, [&]() -> Outcome {
    if (!directory || !bundle)
      return isNull(directory ? "bundle" : "directory");
    *bundle = nullptr;
    return takeBundle(openBundle(std::string(directory)), bundle);
  });
}

KvcacheStatus kvcacheBundleOpenMemory(const KvcacheFile *files, size_t count,
                                      KvcacheBundle **bundle) {
  return guard(__func__, [&]() -> Outcome {
    if ((!files && count) || !bundle)
      return isNull(bundle ? "files" : "bundle");
    *bundle = nullptr;
    std::map<std::string, std::string> contents;
    for (size_t i = 0; i < count; ++i) {
      if (!files[i].name || (!files[i].data && files[i].size))
        return isNull(files[i].name ? "files[].data" : "files[].name");
      contents[files[i].name] =
          std::string(static_cast<const char *>(files[i].data), files[i].size);
    }
    return takeBundle(openBundle(std::move(contents)), bundle);
  });
}

void kvcacheBundleClose(KvcacheBundle *bundle) { delete bundle; }

static void fill(const Capacities &sizes, KvcacheCapacities &out) {
  out.maxTokens = sizes.maxTokens;
  out.maxSequences = sizes.maxSequences;
  out.maxPagesPerSequence = sizes.maxPagesPerSequence;
  out.numPages = sizes.numPages;
}

KvcacheStatus kvcacheBundleCapacities(const KvcacheBundle *bundle,
                                      KvcacheCapacities *out) {
  return guard(__func__, [&]() -> Outcome {
    if (!bundle)
      return isNull("bundle");
    if (Outcome outcome = checkSize(out))
      return outcome;
    fill(bundle->bundle.manifest.capacities, *out);
    return {};
  });
}

size_t kvcacheBundleProgramCount(const KvcacheBundle *bundle) {
  return bundle ? bundle->bundle.manifest.programs.size() : 0;
}

static const Program *programAt(const KvcacheBundle *bundle, size_t program) {
  return program < kvcacheBundleProgramCount(bundle)
             ? &bundle->bundle.manifest.programs[program]
             : nullptr;
}

const char *kvcacheBundleProgramName(const KvcacheBundle *bundle,
                                     size_t program) {
  const Program *entry = programAt(bundle, program);
  return entry ? entry->name.c_str() : nullptr;
}

size_t kvcacheBundleSegmentCount(const KvcacheBundle *bundle, size_t program) {
  const Program *entry = programAt(bundle, program);
  return entry ? entry->segments.size() : 0;
}

const char *kvcacheBundleSegmentName(const KvcacheBundle *bundle,
                                     size_t program, size_t segment) {
  const Program *entry = programAt(bundle, program);
  return entry && segment < entry->segments.size()
             ? entry->segments[segment].name.c_str()
             : nullptr;
}

KvcacheStatus kvcacheBundleProgramCapacities(const KvcacheBundle *bundle,
                                             size_t program,
                                             KvcacheCapacities *out) {
  return guard(__func__, [&]() -> Outcome {
    if (!bundle)
      return isNull("bundle");
    if (Outcome outcome = checkSize(out))
      return outcome;
    const Program *entry = programAt(bundle, program);
    if (!entry)
      return badIndex("program", program, kvcacheBundleProgramCount(bundle));
    fill(bundle->bundle.manifest.capacitiesOf(*entry), *out);
    return {};
  });
}

int64_t kvcacheBundleProgramForBatch(const KvcacheBundle *bundle,
                                     const char *name, int64_t sequences,
                                     int64_t tokens) {
  if (!bundle)
    return -1;
  const Manifest &manifest = bundle->bundle.manifest;
  Expected<const Program *> program = manifest.chooseProgram(name ? name : "");
  const Program *found =
      program ? manifest.programFor(**program, sequences, tokens) : nullptr;
  return found ? found - manifest.programs.data() : -1;
}

/// Entry `index` of a list of the manifest, when `out` can take it.
template <typename Entry, typename Info>
static Outcome findEntry(const KvcacheBundle *bundle,
                         std::vector<Entry> Manifest::*list, size_t index,
                         const Info *out, const Entry *&entry) {
  if (!bundle)
    return isNull("bundle");
  if (Outcome outcome = checkSize(out))
    return outcome;
  const std::vector<Entry> &entries = bundle->bundle.manifest.*list;
  if (index >= entries.size())
    return badIndex("index", index, entries.size());
  entry = &entries[index];
  return {};
}

size_t kvcacheBundleBufferCount(const KvcacheBundle *bundle) {
  return bundle ? bundle->bundle.manifest.buffers.size() : 0;
}

KvcacheStatus kvcacheBundleBuffer(const KvcacheBundle *bundle, size_t index,
                                  KvcacheBufferInfo *out) {
  return guard(__func__, [&]() -> Outcome {
    const Buffer *found = nullptr;
    if (Outcome outcome =
            findEntry(bundle, &Manifest::buffers, index, out, found))
      return outcome;
    const Buffer &buffer = *found;
    if (buffer.shape.size() > KVCACHE_MAX_RANK)
      return {KVCACHE_INVALID_BUNDLE, buffer.name + ": expected at most " +
                                          std::to_string(KVCACHE_MAX_RANK) +
                                          " dimensions, found " +
                                          std::to_string(buffer.shape.size())};
    out->name = buffer.name.c_str();
    out->role = bufferRoleName(buffer.role).data();
    out->elementType = elementTypeName(buffer.elementType).data();
    out->access = bufferAccessName(buffer.access).data();
    out->owner = bufferOwnerName(buffer.owner).data();
    out->rank = uint32_t(buffer.shape.size());
    std::copy(buffer.shape.begin(), buffer.shape.end(), out->shape);
    std::copy(buffer.strides.begin(), buffer.strides.end(), out->strides);
    out->dynamicDims = 0;
    for (int64_t dim : buffer.dynamicDims)
      out->dynamicDims |= uint64_t(1) << dim;
    out->bytes = buffer.bytes;
    out->viewOf = buffer.offsetIn ? buffer.offsetIn->buffer.c_str() : nullptr;
    out->viewOffset = buffer.offsetIn ? buffer.offsetIn->offset : 0;
    return {};
  });
}

KvcacheStatus kvcacheBundleSetStrides(KvcacheBundle *bundle, const char *buffer,
                                      const int64_t *strides, uint32_t rank) {
  return guard(__func__, [&]() -> Outcome {
    if (!bundle || !buffer || !strides)
      return isNull(!bundle ? "bundle" : buffer ? "strides" : "buffer");
    if (bundle->users.use_count() > 1)
      return invalid("bundle: a program of it is open; set strides before "
                     "kvcacheProgramCreate");
    if (rank > KVCACHE_MAX_RANK)
      return invalid("rank: expected at most " +
                     std::to_string(KVCACHE_MAX_RANK) + ", found " +
                     std::to_string(rank));
    if (Error error = setStrides(bundle->bundle.manifest, buffer,
                                 std::vector<int64_t>(strides, strides + rank)))
      return invalid(error.message());
    return {};
  });
}

int64_t kvcacheBundleFindBuffer(const KvcacheBundle *bundle, const char *name) {
  if (!bundle || !name)
    return -1;
  const Buffer *buffer = bundle->bundle.manifest.findBuffer(name);
  return buffer ? buffer - bundle->bundle.manifest.buffers.data() : -1;
}

size_t kvcacheBundleLayerCount(const KvcacheBundle *bundle) {
  return bundle ? bundle->bundle.manifest.layers.size() : 0;
}

KvcacheStatus kvcacheBundleLayer(const KvcacheBundle *bundle, size_t index,
                                 KvcacheLayerInfo *out) {
  return guard(__func__, [&]() -> Outcome {
    const Layer *found = nullptr;
    if (Outcome outcome =
            findEntry(bundle, &Manifest::layers, index, out, found))
      return outcome;
    const Layer &layer = *found;
    out->id = layer.id.c_str();
    out->name = layer.name.c_str();
    out->cache = layer.cache.c_str();
    out->elementType = elementTypeName(layer.elementType).data();
    out->layout = layer.layout.c_str();
    out->queryHeads = layer.queryHeads;
    out->kvHeads = layer.kvHeads;
    out->headDim = layer.headDim;
    out->pageSize = layer.pageSize;
    out->softmaxScale = layer.softmaxScale.value();
    out->kScale = layer.kScale.value.value();
    out->vScale = layer.vScale.value.value();
    out->kProvenance = provenanceName(layer.kScale.provenance).data();
    out->kKey = layer.kScale.key.c_str();
    out->vProvenance = provenanceName(layer.vScale.provenance).data();
    out->vKey = layer.vScale.key.c_str();
    out->compatibility = layer.compatibility.c_str();
    out->kScaleCount = uint32_t(layer.kScale.count());
    out->vScaleCount = uint32_t(layer.vScale.count());
    out->ropeDim = layer.ropeDim;
    out->vHeadDim = layer.valueDim();
    return {};
  });
}

const char *kvcacheBundleLayerTokenScales(const KvcacheBundle *bundle,
                                          size_t index) {
  if (index >= kvcacheBundleLayerCount(bundle))
    return nullptr;
  return tokenScalesName(bundle->bundle.manifest.layers[index].tokenScales)
      .data();
}

size_t kvcacheBundleLayerScales(const KvcacheBundle *bundle, size_t index,
                                char role, float *scales, size_t count) {
  if (index >= kvcacheBundleLayerCount(bundle))
    return 0;
  const Layer &layer = bundle->bundle.manifest.layers[index];
  const ManifestScale *scale = nullptr;
  if (role == 'k')
    scale = &layer.kScale;
  else if (role == 'v')
    scale = &layer.vScale;
  else if (role == 'q' && layer.qScale)
    scale = &*layer.qScale;
  else if (role == 'o' && layer.oScale)
    scale = &*layer.oScale;
  if (!scale)
    return 0;
  size_t total = scale->count();
  for (size_t i = 0; scales && i < std::min(count, total); ++i)
    scales[i] = scale->ofHead(int64_t(i));
  return total;
}

KvcacheStatus kvcacheBundleCheckCache(const KvcacheBundle *bundle,
                                      const char *layer, const char *digest) {
  return guard(__func__, [&]() -> Outcome {
    if (!bundle || !layer || !digest)
      return isNull(!bundle ? "bundle" : layer ? "digest" : "layer");
    const Layer *entry = bundle->bundle.manifest.findLayer(layer);
    if (!entry)
      return invalid(std::string("layer: the bundle has no layer \"") + layer +
                     "\"");
    if (entry->compatibility == digest)
      return {};
    return {KVCACHE_INCOMPATIBLE_CACHE,
            entry->id + ": expected a cache written under the digest " +
                entry->compatibility + " (k scale " + scaleText(entry->kScale) +
                ", v scale " + scaleText(entry->vScale) + ", " +
                std::string(elementTypeName(entry->elementType)) + ", " +
                entry->layout + ", pages of " +
                std::to_string(entry->pageSize) + "), found " + digest};
  });
}

//===----------------------------------------------------------------------===//
// Devices
//===----------------------------------------------------------------------===//

static Outcome takeBackend(std::unique_ptr<Backend> backend,
                           KvcacheDevice **device) {
  std::string name = backend->name();
  *device = new KvcacheDevice{std::move(backend), std::move(name)};
  return {};
}

KvcacheStatus kvcacheDeviceCreateCuda(const KvcacheCudaOptions *options,
                                      KvcacheDevice **device) {
  return guard(__func__, [&]() -> Outcome {
    if (!device)
      return isNull("device");
    *device = nullptr;
    if (Outcome outcome = checkSize(options))
      return outcome;
    std::unique_ptr<Backend> backend;
    if (Outcome outcome = createCudaBackend(
            options->context, options->driver ? options->driver : "",
            options->programmaticLaunch != 0, backend))
      return outcome;
    return takeBackend(std::move(backend), device);
  });
}

KvcacheStatus kvcacheDeviceCreateMachine(const KvcacheMachineOptions *options,
                                         KvcacheDevice **device) {
  return guard(__func__, [&]() -> Outcome {
    if (!device)
      return isNull("device");
    *device = nullptr;
    ptx::LaunchOptions launch;
    launch.counters = false;
    if (options) {
      if (Outcome outcome = checkSize(options))
        return outcome;
      if (options->threads < 0 || options->threads > 256)
        return invalid("threads: expected 0 to 256, found " +
                       std::to_string(options->threads));
      bool checks = options->checks != 0;
      launch.memcheck = launch.initcheck = checks;
      launch.racecheck = launch.synccheck = checks;
      launch.threads = uint32_t(std::max(1, options->threads));
    }
    std::unique_ptr<Backend> backend;
    if (Outcome outcome = createMachineBackend(launch, backend))
      return outcome;
    return takeBackend(std::move(backend), device);
  });
}

void kvcacheDeviceDestroy(KvcacheDevice *device) { delete device; }

const char *kvcacheDeviceName(const KvcacheDevice *device) {
  return device ? device->name.c_str() : "";
}

KvcacheStatus kvcacheDeviceAllocate(KvcacheDevice *device, uint64_t bytes,
                                    uint64_t *address) {
  return guard(__func__, [&]() -> Outcome {
    if (!device || !address)
      return isNull(device ? "address" : "device");
    return device->backend->allocate(bytes, *address);
  });
}

KvcacheStatus kvcacheDeviceFree(KvcacheDevice *device, uint64_t address) {
  return guard(__func__, [&]() -> Outcome {
    return device ? device->backend->release(address) : isNull("device");
  });
}

KvcacheStatus kvcacheDeviceCopyIn(KvcacheDevice *device, uint64_t address,
                                  const void *source, uint64_t bytes) {
  return guard(__func__, [&]() -> Outcome {
    if (!device || (!source && bytes))
      return isNull(device ? "source" : "device");
    return device->backend->copyIn(address, source, bytes);
  });
}

KvcacheStatus kvcacheDeviceCopyOut(KvcacheDevice *device, void *target,
                                   uint64_t address, uint64_t bytes) {
  return guard(__func__, [&]() -> Outcome {
    if (!device || (!target && bytes))
      return isNull(device ? "target" : "device");
    return device->backend->copyOut(target, address, bytes);
  });
}

KvcacheStatus kvcacheDeviceFill(KvcacheDevice *device, uint64_t address,
                                uint8_t value, uint64_t bytes,
                                KvcacheStream stream) {
  return guard(__func__, [&]() -> Outcome {
    return device ? device->backend->fill(address, value, bytes, stream)
                  : isNull("device");
  });
}

KvcacheStatus kvcacheDeviceSynchronize(KvcacheDevice *device,
                                       KvcacheStream stream) {
  return guard(__func__, [&]() -> Outcome {
    return device ? device->backend->synchronize(stream) : isNull("device");
  });
}

//===----------------------------------------------------------------------===//
// Programs
//===----------------------------------------------------------------------===//

/// Gathers the segments' launches, and lays out the runtime's buffers.
static void planProgram(KvcacheProgram &plan) {
  const Manifest &manifest = plan.manifest();
  std::vector<bool> inWorkspace(manifest.buffers.size(), false);
  for (const Segment &segment : plan.program->segments) {
    SegmentLaunches entry;
    for (size_t i = 0; i < plan.target->launches.size(); ++i) {
      const Launch &launch = plan.target->launches[i];
      if (launch.program != plan.program->name ||
          launch.segment != segment.name)
        continue;
      entry.launches.push_back(i);
      for (const Argument &argument : launch.arguments)
        if (argument.kind == Argument::Kind::Buffer)
          entry.buffers.push_back(
              plan.holderIndex(*manifest.findBuffer(argument.buffer)));
    }
    std::sort(entry.buffers.begin(), entry.buffers.end());
    entry.buffers.erase(std::unique(entry.buffers.begin(), entry.buffers.end()),
                        entry.buffers.end());
    for (size_t index : entry.buffers) {
      const Buffer &buffer = manifest.buffers[index];
      if (buffer.owner != BufferOwner::Runtime || inWorkspace[index])
        continue;
      inWorkspace[index] = true;
      plan.workspace.push_back({index, plan.workspaceBytes, buffer.bytes,
                                buffer.role == BufferRole::Workspace &&
                                    buffer.elementType == ElementType::I32});
      plan.workspaceBytes += (buffer.bytes + workspaceAlignment - 1) /
                             workspaceAlignment * workspaceAlignment;
    }
    plan.segments.push_back(std::move(entry));
  }
}

KvcacheStatus kvcacheProgramCreate(const KvcacheBundle *bundle,
                                   KvcacheDevice *device, const char *name,
                                   const char *chip, KvcacheProgram **program) {
  return guard(__func__, [&]() -> Outcome {
    if (!bundle || !device || !program)
      return isNull(!bundle ? "bundle" : device ? "program" : "device");
    *program = nullptr;
    auto plan = std::make_unique<KvcacheProgram>();
    plan->bundle = &bundle->bundle;
    plan->user = bundle->users;
    plan->backend = device->backend.get();
    Expected<const Program *> chosen =
        plan->manifest().chooseProgram(name ? name : "");
    if (!chosen)
      return invalid("name: " + chosen.message());
    plan->program = *chosen;
    if (Outcome outcome = loadBestTarget(
            plan->manifest(), chip ? chip : "",
            [&](const Target &target) {
              return plan->backend->load(*plan->bundle, target, plan->code);
            },
            plan->target))
      return outcome;
    planProgram(*plan);
    *program = plan.release();
    return {};
  });
}

void kvcacheProgramDestroy(KvcacheProgram *program) { delete program; }

const char *kvcacheProgramChip(const KvcacheProgram *program) {
  return program ? program->target->chip.c_str() : "";
}

const char *kvcacheProgramCode(const KvcacheProgram *program) {
  return program ? program->code->kind() : "";
}

size_t kvcacheProgramSegmentCount(const KvcacheProgram *program) {
  return program ? program->segments.size() : 0;
}

size_t kvcacheProgramLaunchCount(const KvcacheProgram *program,
                                 size_t segment) {
  if (!program)
    return 0;
  size_t count = 0;
  for (size_t i = 0; i < program->segments.size(); ++i)
    if (segment == i || segment == KVCACHE_ALL_SEGMENTS)
      count += program->segments[i].launches.size();
  return count;
}

uint64_t kvcacheProgramWorkspaceBytes(const KvcacheProgram *program) {
  return program ? program->workspaceBytes : 0;
}

//===----------------------------------------------------------------------===//
// Instances
//===----------------------------------------------------------------------===//

KvcacheStatus kvcacheInstanceCreate(KvcacheProgram *program,
                                    KvcacheInstance **instance) {
  return guard(__func__, [&]() -> Outcome {
    if (!program || !instance)
      return isNull(program ? "instance" : "program");
    *instance = nullptr;
    auto fresh = std::make_unique<KvcacheInstance>();
    const Manifest &manifest = program->manifest();
    fresh->program = program;
    fresh->addresses.assign(manifest.buffers.size(), 0);
    fresh->patches.resize(manifest.buffers.size());
    for (size_t s = 0; s < program->segments.size(); ++s) {
      std::vector<LaunchPacket> packets;
      for (size_t index : program->segments[s].launches) {
        const Launch &launch = program->target->launches[index];
        for (size_t a = 0; a < launch.arguments.size(); ++a) {
          if (launch.arguments[a].kind != Argument::Kind::Buffer)
            continue;
          const Buffer &buffer =
              *manifest.findBuffer(launch.arguments[a].buffer);
          fresh->patches[program->holderIndex(buffer)].push_back(
              {s, packets.size(), a,
               buffer.offsetIn ? buffer.offsetIn->offset : 0});
        }
        packets.emplace_back(launch, index);
      }
      fresh->packets.push_back(std::move(packets));
      fresh->unbound.push_back(program->segments[s].buffers.size());
    }
    *instance = fresh.release();
    return {};
  });
}

void kvcacheInstanceDestroy(KvcacheInstance *instance) { delete instance; }

KvcacheStatus kvcacheInstanceBind(KvcacheInstance *instance, size_t buffer,
                                  uint64_t address, uint64_t bytes) {
  return guard(__func__, [&]() -> Outcome {
    if (!instance)
      return isNull("instance");
    const std::vector<Buffer> &buffers = instance->program->manifest().buffers;
    if (buffer >= buffers.size())
      return badIndex("buffer", buffer, buffers.size());
    const Buffer &entry = buffers[buffer];
    if (entry.offsetIn)
      return invalid(entry.name +
                     ": is a view; bind the buffer that holds its "
                     "memory, " +
                     entry.offsetIn->buffer);
    if (entry.owner == BufferOwner::Runtime)
      return invalid(entry.name + ": belongs to the runtime; it comes with "
                                  "kvcacheInstanceBindWorkspace");
    if (address == 0 || address % bufferAlignment != 0)
      return {KVCACHE_NOT_BOUND,
              entry.name + ": expected an address that is a multiple of " +
                  std::to_string(bufferAlignment) + ", found " +
                  std::to_string(address)};
    if (bytes < entry.bytes)
      return {KVCACHE_NOT_BOUND, entry.name + ": expected at least " +
                                     std::to_string(entry.bytes) +
                                     " bytes, found " + std::to_string(bytes)};
    instance->bind(buffer, address);
    return {};
  });
}

KvcacheStatus kvcacheInstanceBindByName(KvcacheInstance *instance,
                                        const char *buffer, uint64_t address,
                                        uint64_t bytes) {
  size_t index = 0;
  KvcacheStatus status = guard(__func__, [&]() -> Outcome {
    if (!instance || !buffer)
      return isNull(instance ? "buffer" : "instance");
    const Manifest &manifest = instance->program->manifest();
    const Buffer *entry = manifest.findBuffer(buffer);
    if (!entry)
      return invalid(std::string("buffer: the bundle has no buffer \"") +
                     buffer + "\"");
    index = instance->program->bufferIndex(*entry);
    return {};
  });
  return status ? status : kvcacheInstanceBind(instance, index, address, bytes);
}

KvcacheStatus kvcacheInstanceBindWorkspace(KvcacheInstance *instance,
                                           uint64_t address, uint64_t bytes,
                                           KvcacheStream stream) {
  return guard(__func__, [&]() -> Outcome {
    if (!instance)
      return isNull("instance");
    const KvcacheProgram &program = *instance->program;
    if (program.workspaceBytes == 0)
      return {};
    if (address == 0 || address % workspaceAlignment != 0)
      return {KVCACHE_NOT_BOUND,
              "workspace: expected an address that is a multiple of " +
                  std::to_string(workspaceAlignment) + ", found " +
                  std::to_string(address)};
    if (bytes < program.workspaceBytes)
      return {KVCACHE_NOT_BOUND, "workspace: expected at least " +
                                     std::to_string(program.workspaceBytes) +
                                     " bytes, found " + std::to_string(bytes)};
    for (const WorkspacePart &part : program.workspace)
      if (part.counters)
        if (Outcome outcome = program.backend->fill(address + part.offset, 0,
                                                    part.bytes, stream))
          return outcome.withContext("workspace");
    for (const WorkspacePart &part : program.workspace)
      instance->bind(part.buffer, address + part.offset);
    return {};
  });
}

/// Whether every buffer of a segment has an address; names the first that has
/// none.
static Outcome checkBound(const KvcacheInstance &instance, size_t segment) {
  if (instance.unbound[segment] == 0)
    return {};
  const KvcacheProgram &program = *instance.program;
  for (size_t index : program.segments[segment].buffers) {
    if (instance.addresses[index] != 0)
      continue;
    const Buffer &buffer = program.manifest().buffers[index];
    bool ours = buffer.owner == BufferOwner::Runtime;
    return {KVCACHE_NOT_BOUND,
            "segment " + program.program->segments[segment].name + ": " +
                (ours ? "the workspace has no address yet "
                        "(kvcacheInstanceBindWorkspace)"
                      : "buffer " + buffer.name +
                            " has no address yet (kvcacheInstanceBind)")};
  }
  return {};
}

/// The segments that `segment` names: one, or all.
static Outcome segmentRange(const KvcacheInstance &instance, size_t segment,
                            size_t &first, size_t &end) {
  size_t count = instance.packets.size();
  first = segment == KVCACHE_ALL_SEGMENTS ? 0 : segment;
  end = segment == KVCACHE_ALL_SEGMENTS ? count : segment + 1;
  if (end > count || first > end)
    return badIndex("segment", segment, count);
  for (size_t i = first; i < end; ++i)
    if (Outcome outcome = checkBound(instance, i))
      return outcome;
  return {};
}

KvcacheStatus kvcacheInstanceEnqueue(KvcacheInstance *instance, size_t segment,
                                     KvcacheStream stream) {
  return guard(__func__, [&]() -> Outcome {
    if (!instance)
      return isNull("instance");
    size_t first, end;
    if (Outcome outcome = segmentRange(*instance, segment, first, end))
      return outcome;
    BackendCode &code = *instance->program->code;
    for (size_t i = first; i < end; ++i)
      for (const LaunchPacket &packet : instance->packets[i])
        if (Outcome outcome = code.enqueue(packet, stream))
          return outcome.withContext(
              "segment " + instance->program->program->segments[i].name);
    return {};
  });
}

//===----------------------------------------------------------------------===//
// Graphs
//===----------------------------------------------------------------------===//

KvcacheStatus kvcacheInstanceInstantiateGraph(KvcacheInstance *instance,
                                              size_t segment,
                                              KvcacheGraph **graph) {
  return guard(__func__, [&]() -> Outcome {
    if (!instance || !graph)
      return isNull(instance ? "graph" : "instance");
    *graph = nullptr;
    size_t first, end;
    if (Outcome outcome = segmentRange(*instance, segment, first, end))
      return outcome;
    auto fresh = std::make_unique<KvcacheGraph>();
    fresh->instance = instance;
    fresh->segment = segment;
    for (size_t i = first; i < end; ++i)
      for (const LaunchPacket &packet : instance->packets[i]) {
        fresh->packets.emplace_back(packet.launch(), packet.index());
        fresh->packets.back().copyCells(packet);
      }
    if (Outcome outcome =
            instance->program->code->instantiate(fresh->packets, fresh->graph))
      return outcome;
    *graph = fresh.release();
    return {};
  });
}

void kvcacheGraphDestroy(KvcacheGraph *graph) { delete graph; }

KvcacheStatus kvcacheGraphReplay(KvcacheGraph *graph, KvcacheStream stream) {
  return guard(__func__, [&]() -> Outcome {
    return graph ? graph->graph->replay(stream) : isNull("graph");
  });
}

KvcacheStatus kvcacheGraphUpdateBindings(KvcacheGraph *graph) {
  return guard(__func__, [&]() -> Outcome {
    if (!graph)
      return isNull("graph");
    KvcacheInstance &instance = *graph->instance;
    size_t first, end, next = 0;
    if (Outcome outcome = segmentRange(instance, graph->segment, first, end))
      return outcome;
    for (size_t i = first; i < end; ++i)
      for (const LaunchPacket &packet : instance.packets[i])
        graph->packets[next++].copyCells(packet);
    return graph->graph->update(graph->packets);
  });
}

size_t kvcacheGraphLaunchBytes(const KvcacheGraph *graph, size_t index,
                               void *bytes, size_t size) {
  if (!graph || index >= graph->packets.size())
    return 0;
  size_t total = 0;
  guard(__func__, [&]() -> Outcome {
    std::vector<uint8_t> all = graph->packets[index].bytes();
    total = all.size();
    if (bytes)
      std::memcpy(bytes, all.data(), std::min(size, total));
    return {};
  });
  return total;
}
