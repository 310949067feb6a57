//===- CAPI.cpp - C interface of the PTX machine --------------------------===//

#include "kvcache-c/PTX.h"
#include "kvcache/PTX/Machine.h"

#include <algorithm>
#include <cstring>

using namespace kvcache;
using namespace kvcache::ptx;

struct KvcachePtxMachine {
  Machine machine;
  std::vector<Module> modules;
  LaunchReport report;
  std::string error;
};

namespace {

size_t copyOut(const std::string &from, char *text, size_t size) {
  if (size) {
    size_t n = std::min(from.size(), size - 1);
    memcpy(text, from.data(), n);
    text[n] = '\0';
  }
  return from.size();
}

std::string quoted(const std::string &s) {
  static const char digits[] = "0123456789abcdef";
  std::string r = "\"";
  for (char c : s) {
    unsigned char u = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      r += '\\';
      r += c;
    } else if (u < 0x20) {
      r += "\\u00";
      r += digits[u >> 4];
      r += digits[u & 15];
    } else {
      r += c;
    }
  }
  return r + "\"";
}

std::string number(const char *key, uint64_t value) {
  return quoted(key) + ": " + std::to_string(value);
}

std::string triple(const Dim3 &d) {
  return "[" + std::to_string(d.x) + ", " + std::to_string(d.y) + ", " +
         std::to_string(d.z) + "]";
}

std::string describe(const KernelInfo &info) {
  std::string r = "{\"name\": " + quoted(info.name) + ", \"parameters\": [";
  for (const ParameterInfo &p : info.parameters)
    r += std::string(&p == info.parameters.data() ? "" : ", ") +
         "{\"name\": " + quoted(p.name) + ", " + number("offset", p.offset) +
         ", " + number("size", p.size) + "}";
  r += "], " + number("static_shared", info.staticSharedBytes) + ", " +
       number("dynamic_shared_alignment", info.dynamicSharedAlignment) + ", " +
       number("local", info.localBytes) + ", " +
       number("max_threads", info.maxThreads) + ", " +
       number("instructions", info.instructions) + ", " +
       number("registers", info.virtualRegisters) + ", \"unsupported\": [";
  for (const std::string &u : info.unsupported)
    r += std::string(&u == info.unsupported.data() ? "" : ", ") + quoted(u);
  return r + "]}";
}

std::string describe(const Finding &f) {
  return "{\"kind\": " + quoted(findingKindName(f.kind)) +
         ", \"kernel\": " + quoted(f.kernel) + ", " + number("line", f.line) +
         ", \"text\": " + quoted(f.text) + ", \"block\": " + triple(f.block) +
         ", \"thread\": " + triple(f.thread) + ", " +
         number("address", f.address) + ", \"buffer\": " + quoted(f.buffer) +
         ", \"message\": " + quoted(f.message) + ", " +
         number("count", f.count) + "}";
}

std::string describe(const Counters &c, bool zeros = true) {
  std::string r;
  auto put = [&](const std::string &name, uint64_t value) {
    if (value || zeros)
      r += (r.empty() ? "" : ", ") + number(name.c_str(), value);
  };
  put("instructions", c.instructions);
  put("active_lanes", c.activeLanes);
  for (unsigned n = 0; n < numInstrClasses; ++n)
    put(std::string("instr.") + instrClassName(InstrClass(n)), c.byClass[n]);
  auto global = [&](const std::string &name, const Counters::Global &g) {
    put(name + ".requests", g.requests);
    put(name + ".sectors", g.sectors);
    put(name + ".bytes", g.bytes);
  };
  auto shared = [&](const std::string &name, const Counters::Shared &s) {
    put(name + ".wavefronts", s.wavefronts);
    put(name + ".ideal", s.ideal);
    put(name + ".bytes", s.bytes);
  };
  global("ld.global", c.globalLoad);
  global("st.global", c.globalStore);
  global("cp.async.global", c.asyncCopy);
  put("atomic.requests", c.atomicRequests);
  shared("ld.shared", c.sharedLoad);
  shared("st.shared", c.sharedStore);
  shared("ldmatrix", c.ldmatrix);
  shared("cp.async.shared", c.asyncWrite);
  put("barriers.cta", c.ctaBarriers);
  put("barriers.warp", c.warpBarriers);
  put("branches.divergent", c.divergentBranches);
  put("in_flight.peak", c.inFlight.peak);
  put("in_flight.at_wait", c.inFlight.atWait);
  put("in_flight.waits", c.inFlight.waits);
  return "{" + r + "}";
}

std::string describe(const Region &r) {
  return "{\"name\": " + quoted(r.name) + ", " +
         number("first_line", r.firstLine) + ", " +
         number("last_line", r.lastLine) + ", " +
         number("text_instructions", r.instructions) + ", " +
         number("executions", r.executions) +
         ", \"counters\": " + describe(r.counters) + "}";
}

const Module *moduleAt(const KvcachePtxMachine *m, int module) {
  if (module < 0 || size_t(module) >= m->modules.size())
    return nullptr;
  return &m->modules[size_t(module)];
}

} // namespace

KvcachePtxMachine *kvcachePtxMachineCreate(void) {
  return new KvcachePtxMachine;
}

void kvcachePtxMachineDestroy(KvcachePtxMachine *machine) { delete machine; }

size_t kvcachePtxLastError(const KvcachePtxMachine *machine, char *text,
                           size_t size) {
  return copyOut(machine->error, text, size);
}

uint64_t kvcachePtxAddBuffer(KvcachePtxMachine *machine, void *host,
                             uint64_t bytes, const uint8_t *init,
                             const char *name, int readOnly, int propagate) {
  BufferOptions options;
  options.name = name;
  options.readOnly = readOnly != 0;
  options.init = init ? InitState::FromMap : InitState::AllValid;
  options.initMap = init;
  options.uninitStore =
      propagate ? UninitStore::Propagate : UninitStore::Report;
  return machine->machine.addBuffer(host, bytes, options);
}

void kvcachePtxClearBuffers(KvcachePtxMachine *machine) {
  machine->machine.clearBuffers();
}

int kvcachePtxInitialised(const KvcachePtxMachine *machine, uint64_t address,
                          uint64_t bytes, uint8_t *map) {
  Expected<std::vector<uint8_t>> state =
      machine->machine.initialised(address, bytes);
  if (!state)
    return 1;
  std::copy(state->begin(), state->end(), map);
  return 0;
}

uint64_t kvcachePtxSymbol(KvcachePtxMachine *machine, int module,
                          const char *name) {
  const Module *m = moduleAt(machine, module);
  if (!m) {
    machine->error = "no module " + std::to_string(module);
    return 0;
  }
  Expected<uint64_t> address = machine->machine.symbolAddress(*m, name);
  if (!address) {
    machine->error = address.message();
    return 0;
  }
  return *address;
}

int kvcachePtxLoadModule(KvcachePtxMachine *machine, const char *text,
                         const char *name) {
  Expected<Module> module = Module::parse(text, name);
  if (!module) {
    machine->error = module.message();
    return -1;
  }
  machine->modules.push_back(*module);
  return int(machine->modules.size()) - 1;
}

size_t kvcachePtxDescribe(const KvcachePtxMachine *machine, int module,
                          char *text, size_t size) {
  const Module *m = moduleAt(machine, module);
  if (!m)
    return copyOut("[]", text, size);
  std::string r = "[";
  for (const std::string &name : m->kernelNames())
    r += (r.size() > 1 ? ", " : "") + describe(*m->findKernel(name));
  return copyOut(r + "]", text, size);
}

int64_t kvcachePtxLaunch(KvcachePtxMachine *machine, int module,
                         const char *kernel, const uint32_t grid[3],
                         const uint32_t block[3], uint32_t dynamicSharedBytes,
                         const void *const *arguments,
                         const KvcachePtxOptions *options) {
  machine->error.clear();
  const Module *m = moduleAt(machine, module);
  if (!m) {
    machine->error = "no module " + std::to_string(module);
    return -1;
  }
  LaunchOptions o;
  if (options) {
    o.memcheck = options->memcheck;
    o.initcheck = options->initcheck;
    o.racecheck = options->racecheck;
    o.synccheck = options->synccheck;
    o.counters = options->counters;
    o.lateCopies = options->lateCopies;
    o.threads = options->threads;
    o.quantum = options->quantum;
    o.maxInstructions = options->maxInstructions;
    o.seed = options->seed;
    o.regions = options->regions;
  }
  Expected<LaunchReport> report = machine->machine.launch(
      *m, kernel, {grid[0], grid[1], grid[2]}, {block[0], block[1], block[2]},
      dynamicSharedBytes, arguments, o);
  if (!report) {
    machine->error = report.message();
    return -1;
  }
  machine->report = std::move(*report);
  return int64_t(machine->report.findingCount);
}

size_t kvcachePtxReport(const KvcachePtxMachine *machine, char *text,
                        size_t size) {
  const LaunchReport &report = machine->report;
  std::string r = "{\"findings\": [";
  for (const Finding &f : report.findings)
    r += std::string(&f == report.findings.data() ? "" : ", ") + describe(f);
  r += "], " + number("finding_count", report.findingCount) + ", " +
       number("blocks", report.blocks) +
       ", \"seconds\": " + std::to_string(report.seconds) +
       ", \"counters\": " + describe(report.counters);
  if (!report.regions.empty()) {
    r += ", \"regions\": [";
    for (const Region &region : report.regions)
      r += std::string(&region == report.regions.data() ? "" : ", ") +
           describe(region);
    r += "], \"lines\": [";
    for (const LineCounters &l : report.lines)
      r += std::string(&l == report.lines.data() ? "" : ", ") + "{" +
           number("line", l.line) +
           ", \"counters\": " + describe(l.counters, false) + "}";
    r += "]";
  }
  return copyOut(r + "}", text, size);
}

size_t kvcachePtxTable(const KvcachePtxMachine *machine, char *text,
                       size_t size) {
  return copyOut(machine->report.table(), text, size);
}
