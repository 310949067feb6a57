//===- Machine.cpp - The public interface ---------------------------------===//

#include "GlobalRace.h"

#include <algorithm>

using namespace kvcache;
using namespace kvcache::ptx;

//===----------------------------------------------------------------------===//
// Names
//===----------------------------------------------------------------------===//

const char *kvcache::ptx::findingKindName(FindingKind kind) {
  static const char *const names[] = {
      "out-of-bounds", "misaligned",    "uninitialised", "race",
      "async-race",    "sync",          "deadlock",      "read-only-write",
      "limit",         "use-after-free"};
  return names[size_t(kind)];
}

const char *kvcache::ptx::instrClassName(InstrClass cls) {
  static const char *const names[] = {
      "int",       "logic",     "float",    "special",   "cvt",
      "mov",       "pred",      "mma",      "ld.global", "st.global",
      "ld.shared", "st.shared", "ldmatrix", "cp.async",  "local",
      "ld.param",  "shuffle",   "vote",     "barrier",   "branch",
      "atomic",    "other"};
  return names[size_t(cls)];
}

static std::string str(const Dim3 &d) {
  return "(" + std::to_string(d.x) + "," + std::to_string(d.y) + "," +
         std::to_string(d.z) + ")";
}

std::string Finding::str() const {
  std::string times =
      count > 1 ? " (" + std::to_string(count) + " times)" : std::string();
  return std::string(findingKindName(kind)) + ": " + kernel + " line " +
         std::to_string(line) + " `" + text + "` block " + ::str(block) +
         " thread " + ::str(thread) + ": " + message + times;
}

void Counters::add(const Counters &o) {
  instructions += o.instructions;
  for (size_t n = 0; n < numInstrClasses; ++n)
    byClass[n] += o.byClass[n];
  activeLanes += o.activeLanes;
  auto addGlobal = [](Global &a, const Global &b) {
    a.requests += b.requests;
    a.sectors += b.sectors;
    a.bytes += b.bytes;
  };
  addGlobal(globalLoad, o.globalLoad);
  addGlobal(globalStore, o.globalStore);
  addGlobal(asyncCopy, o.asyncCopy);
  atomicRequests += o.atomicRequests;
  ctaBarriers += o.ctaBarriers;
  warpBarriers += o.warpBarriers;
  divergentBranches += o.divergentBranches;
  inFlight.peak = std::max(inFlight.peak, o.inFlight.peak);
  inFlight.atWait += o.inFlight.atWait;
  inFlight.waits += o.inFlight.waits;
  auto addShared = [](Shared &a, const Shared &b) {
    a.wavefronts += b.wavefronts;
    a.ideal += b.ideal;
    a.bytes += b.bytes;
  };
  addShared(sharedLoad, o.sharedLoad);
  addShared(sharedStore, o.sharedStore);
  addShared(ldmatrix, o.ldmatrix);
  addShared(asyncWrite, o.asyncWrite);
}

//===----------------------------------------------------------------------===//
// Module
//===----------------------------------------------------------------------===//

Expected<Module> Module::parse(std::string_view text, const std::string &name) {
  Expected<ModuleImpl> impl = parseModule(text, name);
  if (!impl)
    return impl.error();
  return Module(std::make_shared<const ModuleImpl>(std::move(*impl)));
}

std::vector<std::string> Module::kernelNames() const {
  std::vector<std::string> names;
  for (const auto &[name, kernel] : storage->kernels)
    names.push_back(name);
  return names;
}

const KernelInfo *Module::findKernel(std::string_view name) const {
  auto it = storage->kernels.find(name);
  return it == storage->kernels.end() ? nullptr : &it->second.info;
}

int Module::targetArch() const { return storage->arch; }

//===----------------------------------------------------------------------===//
// Machine
//===----------------------------------------------------------------------===//

struct Machine::Impl {
  std::map<u64, std::unique_ptr<Buffer>> buffers; // by address
  std::map<u64, std::unique_ptr<Buffer>> variables;
  u64 nextAddress = bufferStart;
  std::vector<RemovedBuffer> removed; // the latest ones

  void remember(const Buffer &b) {
    if (removed.size() == 256)
      removed.erase(removed.begin());
    removed.push_back({b.address, b.size, b.name});
  }

  Buffer *find(u64 lo, u64 size) const {
    for (const auto *all : {&buffers, &variables}) {
      auto it = all->upper_bound(lo);
      if (it == all->begin())
        continue;
      Buffer *b = std::prev(it)->second.get();
      if (size <= b->size && b->contains(lo, lo + size))
        return b;
    }
    return nullptr;
  }

  /// Module-scope data comes to life when its module is first used.
  void instantiate(const ModuleImpl &module) {
    for (const auto &[name, v] : module.variables) {
      std::unique_ptr<Buffer> &slot = variables[v.address];
      if (slot || v.data.empty())
        continue;
      slot = std::make_unique<Buffer>();
      slot->address = v.address;
      slot->size = v.data.size();
      slot->owned = v.data; // without an initialiser: zero, as in CUDA
      slot->host = slot->owned.data();
      slot->name = name;
      slot->readOnly = v.constant;
      slot->uninitStore = UninitStore::Propagate;
      slot->init.assign(v.data.size(), 1);
    }
  }
};

Machine::Machine() : impl(std::make_unique<Impl>()) {}
Machine::~Machine() = default;
Machine::Machine(Machine &&) noexcept = default;
Machine &Machine::operator=(Machine &&) noexcept = default;

uint64_t Machine::addBuffer(void *host, uint64_t size,
                            const BufferOptions &options) {
  auto b = std::make_unique<Buffer>();
  b->address = impl->nextAddress;
  b->size = size;
  b->host = static_cast<u8 *>(host);
  b->name = options.name;
  b->readOnly = options.readOnly;
  b->uninitStore = options.uninitStore;
  if (options.init != InitState::AllValid)
    b->init.assign(size, 0);
  if (options.init == InitState::FromMap && options.initMap)
    for (u64 n = 0; n < size; ++n)
      b->init[n] = options.initMap[n] != 0;
  // At least 1 MiB of unmapped addresses behind it.
  impl->nextAddress = (b->address + size + (1 << 20) + 0xffff) & ~u64(0xffff);
  u64 address = b->address;
  impl->buffers[address] = std::move(b);
  return address;
}

Error Machine::removeBuffer(uint64_t address) {
  auto it = impl->buffers.find(address);
  if (it == impl->buffers.end())
    return makeError("no buffer starts at device address " + hex(address));
  impl->remember(*it->second);
  impl->buffers.erase(it);
  return Error::success();
}

void Machine::clearBuffers() {
  for (auto &[address, buffer] : impl->buffers)
    impl->remember(*buffer);
  impl->buffers.clear();
}

static Error notInside(uint64_t address, uint64_t size) {
  return makeError("the " + std::to_string(size) + " bytes at device address " +
                   hex(address) + " are not inside one buffer");
}

Expected<std::vector<uint8_t>> Machine::initialised(uint64_t address,
                                                    uint64_t size) const {
  Buffer *b = impl->find(address, size);
  if (!b)
    return notInside(address, size);
  if (b->init.empty())
    return std::vector<uint8_t>(size, 1);
  auto first = b->init.begin() + long(address - b->address);
  return std::vector<uint8_t>(first, first + long(size));
}

Error Machine::setInitialised(uint64_t address, uint64_t size, bool valid) {
  Buffer *b = impl->find(address, size);
  if (!b)
    return notInside(address, size);
  if (b->init.empty()) {
    if (valid || !size)
      return Error::success();
    return makeError("buffer " + b->name +
                     " keeps no init map; add it with InitState::NoneValid or "
                     "FromMap to mark bytes as never written");
  }
  std::fill_n(b->init.begin() + long(address - b->address), size, u8(valid));
  return Error::success();
}

Expected<uint64_t> Machine::firstUninitialised(uint64_t address,
                                               uint64_t size) const {
  Buffer *b = impl->find(address, size);
  if (!b)
    return notInside(address, size);
  if (b->init.empty())
    return size;
  const u8 *first = b->init.data() + (address - b->address);
  return uint64_t(std::find(first, first + size, u8(0)) - first);
}

void *Machine::hostPointer(uint64_t address, uint64_t size) const {
  Buffer *b = impl->find(address, size);
  return b ? b->host + (address - b->address) : nullptr;
}

Expected<uint64_t> Machine::symbolAddress(const Module &module,
                                          std::string_view name) {
  const ModuleImpl &m = module.impl();
  auto it = m.variables.find(name);
  if (it == m.variables.end())
    return makeError(m.name + ": no module-scope variable '" +
                     std::string(name) + "'");
  impl->instantiate(m);
  return it->second.address;
}

static bool isEmpty(const Dim3 &d) { return !d.x || !d.y || !d.z; }

Expected<LaunchReport> Machine::launch(const Module &module,
                                       std::string_view kernelName, Dim3 grid,
                                       Dim3 block, uint32_t dynamicSharedBytes,
                                       const void *const *arguments,
                                       const LaunchOptions &options) {
  const ModuleImpl &m = module.impl();
  auto it = m.kernels.find(kernelName);
  if (it == m.kernels.end()) {
    std::string known;
    for (const std::string &name : module.kernelNames())
      known += (known.empty() ? "" : ", ") + name;
    return makeError(m.name + ": no kernel '" + std::string(kernelName) +
                     "'; it has: " + (known.empty() ? "none" : known));
  }
  const Kernel &k = it->second;
  const KernelInfo &info = k.info;
  if (!info.unsupported.empty()) {
    std::string list;
    for (const std::string &u : info.unsupported)
      list += "\n  " + u;
    return makeError(
        m.name + ": kernel " + info.name +
        " has instructions that the PTX machine does not know:" + list);
  }
  if (isEmpty(grid) || isEmpty(block))
    return makeError("launch of " + info.name + ": grid " + ::str(grid) +
                     " and block " + ::str(block) + " must not be empty");
  u64 threads = u64(block.x) * block.y * block.z;
  if (threads > std::min(info.maxThreads, 1024u))
    return makeError("launch of " + info.name + ": block " + ::str(block) +
                     " has " + std::to_string(threads) +
                     " threads; the kernel allows " +
                     std::to_string(std::min(info.maxThreads, 1024u)));
  Dim3 required{info.requiredBlock[0], info.requiredBlock[1],
                info.requiredBlock[2]};
  if (required.x &&
      (block.x != required.x || block.y != required.y || block.z != required.z))
    return makeError("launch of " + info.name + ": the kernel requires block " +
                     ::str(required) + ", found " + ::str(block));
  if (!info.parameters.empty() && !arguments)
    return makeError("launch of " + info.name + ": expected " +
                     std::to_string(info.parameters.size()) +
                     " arguments, found none");
  if (u64(dynamicSharedBytes) + info.staticSharedBytes > (1u << 20))
    return makeError("launch of " + info.name + ": " +
                     std::to_string(dynamicSharedBytes) +
                     " bytes of dynamic shared memory; expected at most 1 MiB");
  impl->instantiate(m);
  Launch l(m, k);
  l.options = options;
  l.grid = grid;
  l.block = block;
  l.dynamicSharedBytes = dynamicSharedBytes;
  u32 alignment = info.dynamicSharedAlignment;
  u32 start = (sharedStart + info.staticSharedBytes + alignment - 1) /
                  alignment * alignment -
              sharedStart;
  l.sharedBytes =
      dynamicSharedBytes ? start + dynamicSharedBytes : info.staticSharedBytes;
  l.params.assign(info.parameterBytes, 0);
  for (size_t n = 0; n < info.parameters.size(); ++n)
    memcpy(&l.params[info.parameters[n].offset], arguments[n],
           info.parameters[n].size);
  for (auto *all : {&impl->variables, &impl->buffers})
    for (auto &[address, buffer] : *all)
      if (buffer)
        l.buffers.push_back(buffer.get());
  l.removed = &impl->removed;
  l.run();
  return std::move(l.report);
}
