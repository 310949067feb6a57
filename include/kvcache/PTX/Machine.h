//===- Machine.h - Runs PTX on the CPU, checks and counts -------*- C++ -*-===//
//
// The PTX machine parses the PTX text that ships and executes it warp by warp,
// 32 lanes at a time. As it executes it checks what compute-sanitizer checks on
// a GPU (all on by default):
//
//   memcheck   accesses outside a registered buffer, to one that was removed,
//              or misaligned, stores to read-only buffers
//   initcheck  use of bytes that nobody wrote (see below)
//   racecheck  accesses of shared memory that no barrier or mbarrier orders,
//              copies (cp.async, bulk) read before they were waited for,
//              accesses of global memory by warps of one block without a
//              barrier, or of two blocks without fences and atomics
//   synccheck  lanes missing from a .sync instruction, barriers that not all
//              threads reach
//
// Initcheck follows the bits: a byte that nobody wrote may be loaded, copied,
// converted and selected away (AND with zero, selp, lop3, prmt). It is a
// finding when it reaches an address, a branch or the predicate that guards a
// memory access or barrier, an atomic, or a store to a global buffer whose
// UninitStore is Report (the default). Stores of such bytes to a buffer whose
// UninitStore is Propagate are quiet. Either way the buffer's map, if it has
// one, says afterwards that the byte is not valid; so does the map of shared
// and local memory. An output element of mma is not valid if an element of its
// row of A, its column of B or its own element of C is not.
//
// The machine is not a performance model of a GPU: it counts instructions,
// 32-byte sectors and shared-memory wavefronts; it does not count cycles.
//
//===----------------------------------------------------------------------===//

#ifndef KVCACHE_PTX_MACHINE_H
#define KVCACHE_PTX_MACHINE_H

#include "kvcache/Support/Expected.h"

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace kvcache::ptx {

//===----------------------------------------------------------------------===//
// Modules and kernels
//===----------------------------------------------------------------------===//

/// One kernel parameter, in the layout of the kernel's .param space.
struct ParameterInfo {
  std::string name;
  uint32_t offset = 0;    ///< bytes from the start of the parameter block
  uint32_t size = 0;      ///< bytes
  uint32_t alignment = 1; ///< bytes
};

/// What a launch needs to know of a kernel.
struct KernelInfo {
  std::string name;
  std::vector<ParameterInfo> parameters;
  uint32_t parameterBytes = 0;
  uint32_t staticSharedBytes = 0;
  uint32_t dynamicSharedAlignment = 1; ///< of the extern shared array
  uint32_t localBytes = 0;             ///< per thread
  uint32_t maxThreads = 1024;          ///< .maxntid / .reqntid, threads a block
  /// .reqntid: the only block that the kernel may be launched with; zeros
  /// without.
  std::array<uint32_t, 3> requiredBlock = {0, 0, 0};
  uint32_t instructions = 0;
  uint32_t virtualRegisters = 0;
  /// "line N: opcode" for each instruction the machine does not know; launch
  /// refuses a kernel that has any.
  std::vector<std::string> unsupported;
};

struct ModuleImpl;

/// A parsed PTX module. Copies are cheap and share the parsed form, which is
/// immutable; module-scope .global data lives in the Machine that launches it.
class Module {
public:
  /// Parses PTX text. The error names `name`, the line and what was expected.
  /// Instructions that the machine cannot execute are no parse error: they are
  /// listed in KernelInfo::unsupported and refused by Machine::launch.
  static Expected<Module> parse(std::string_view text,
                                const std::string &name = "ptx");

  std::vector<std::string> kernelNames() const;
  /// Null when the module has no such kernel.
  const KernelInfo *findKernel(std::string_view name) const;
  /// N of `.target sm_N`.
  int targetArch() const;

  const ModuleImpl &impl() const { return *storage; }

private:
  explicit Module(std::shared_ptr<const ModuleImpl> impl)
      : storage(std::move(impl)) {}
  std::shared_ptr<const ModuleImpl> storage;
};

//===----------------------------------------------------------------------===//
// Memory
//===----------------------------------------------------------------------===//

/// Which bytes of a new buffer count as written.
enum class InitState {
  AllValid,  ///< no map is kept; every byte is valid, now and later
  NoneValid, ///< a map is kept; no byte is valid until a kernel or
             ///< Machine::setInitialised makes it so
  FromMap    ///< a map is kept; starts as BufferOptions::initMap says
};

/// What a store of bytes that nobody wrote means for a buffer.
enum class UninitStore {
  Report,   ///< an output: the store is a finding
  Propagate ///< a cache or workspace: quiet, the bytes stay "not written"
};

struct BufferOptions {
  std::string name;
  bool readOnly = false; ///< a store is a finding and is dropped
  InitState init = InitState::AllValid;
  /// For InitState::FromMap: one byte per byte, non-zero = valid. Copied.
  const uint8_t *initMap = nullptr;
  UninitStore uninitStore = UninitStore::Report;
};

//===----------------------------------------------------------------------===//
// Launches
//===----------------------------------------------------------------------===//

struct Dim3 {
  uint32_t x = 1, y = 1, z = 1;
};

struct LaunchOptions {
  bool memcheck = true;
  bool initcheck = true;
  bool racecheck = true;
  bool synccheck = true;
  bool counters = true;
  /// cp.async and bulk copies land when a wait demands them (true) or when they
  /// are issued (false). A correct kernel gives the same result with both.
  bool lateCopies = false;
  /// Host threads; each runs whole blocks.
  uint32_t threads = 1;
  /// Switch to the next warp after so many instructions; 0: run each warp to
  /// its next barrier. Another interleaving for the same kernel.
  uint32_t quantum = 0;
  /// Order of blocks and warps. 0: ascending blocks, warps in turn. Otherwise
  /// the blocks run in an order drawn from the seed, and in each block the next
  /// warp and the length of its turn (unless `quantum` gives it) are drawn. One
  /// seed always gives one order, on one host thread.
  uint64_t seed = 0;
  /// Counts per region and per line too (LaunchReport::regions, lines).
  bool regions = false;
  /// Instructions a warp may execute; 0: no limit.
  uint64_t maxInstructions = 0;
};

enum class FindingKind {
  OutOfBounds,
  Misaligned,
  Uninitialised,
  Race,      ///< shared or global memory
  AsyncRace, ///< cp.async or bulk copy in flight
  Sync,
  Deadlock,
  ReadOnlyWrite,
  Limit,       ///< maxInstructions reached
  UseAfterFree ///< of a buffer that was removed
};
/// "out-of-bounds", "misaligned", "uninitialised", "race", "async-race",
/// "sync", "deadlock", "read-only-write", "limit", "use-after-free".
const char *findingKindName(FindingKind kind);

/// One fault; faults of one kind at one PTX line of one launch are counted
/// together and described by the first.
struct Finding {
  FindingKind kind = FindingKind::OutOfBounds;
  std::string kernel;
  uint32_t line = 0; ///< in the PTX text, from 1
  std::string text;  ///< that line, trimmed
  Dim3 block{0, 0, 0};
  Dim3 thread{0, 0, 0};
  uint64_t address = 0; ///< 0 when the fault has none
  std::string buffer;   ///< global buffer's name, "shared", "local" or empty
  std::string message;
  uint64_t count = 1;

  /// "kind: kernel line N `text` block (x,y,z) thread (x,y,z): message".
  std::string str() const;
};

enum class InstrClass : uint8_t {
  Int,
  Logic,
  Float,
  Special,
  Convert,
  Move,
  Predicate,
  Mma,
  LoadGlobal,
  StoreGlobal,
  LoadShared,
  StoreShared,
  Ldmatrix,
  CpAsync,
  Local,
  Param,
  Shuffle,
  Vote,
  Barrier,
  Branch,
  Atomic,
  Other
};
constexpr unsigned numInstrClasses = unsigned(InstrClass::Other) + 1;
/// "int", "logic", "float", "special", "cvt", "mov", "pred", "mma",
/// "ld.global", "st.global", "ld.shared", "st.shared", "ldmatrix", "cp.async",
/// "local", "ld.param", "shuffle", "vote", "barrier", "branch", "atomic",
/// "other".
const char *instrClassName(InstrClass cls);

/// Counts of one launch (or of several, added). Zero where
/// LaunchOptions::counters is off, except `instructions`.
struct Counters {
  /// Warp instructions executed, all classes.
  uint64_t instructions = 0;
  std::array<uint64_t, numInstrClasses> byClass{};
  /// Active lanes, summed over the instructions.
  uint64_t activeLanes = 0;

  /// Warp-wide requests to global memory, the distinct 32-byte sectors they
  /// touched and the bytes their lanes asked for.
  struct Global {
    uint64_t requests = 0, sectors = 0, bytes = 0;
  };
  Global globalLoad, globalStore, asyncCopy;
  uint64_t atomicRequests = 0;

  /// Arrivals of warps at CTA barriers, and bar.warp.sync executed.
  uint64_t ctaBarriers = 0, warpBarriers = 0;
  /// Branches after which lanes of one warp were at different places.
  uint64_t divergentBranches = 0;

  /// Estimate of the bytes that a warp keeps in flight by cp.async and bulk
  /// copies, as if each landed only when it is waited for: the most that one
  /// warp ever had, and the sum over the waits of what was in flight when the
  /// wait began (mean: atWait / waits). Times the resident warps of an SM: the
  /// bytes it keeps in flight.
  struct InFlight {
    uint64_t peak = 0, atWait = 0, waits = 0;
  };
  InFlight inFlight;

  /// Shared-memory wavefronts of 128 bytes (32 banks of 4 bytes) and the fewest
  /// that the same words would need without bank conflicts.
  struct Shared {
    uint64_t wavefronts = 0, ideal = 0, bytes = 0;
  };
  Shared sharedLoad, sharedStore, ldmatrix, asyncWrite;

  void add(const Counters &other);
};

/// Counts of a part of a kernel: from one label to the next. The first one is
/// called "entry"; parts of a function that was inlined are called after the
/// function, "f:label".
struct Region {
  std::string name;
  uint32_t firstLine = 0, lastLine = 0; ///< in the PTX text, from 1
  uint32_t instructions = 0;            ///< in the text
  uint64_t executions = 0;              ///< of the first one, by warps
  Counters counters;
};

struct LineCounters {
  uint32_t line = 0;
  Counters counters;
};

struct LaunchReport {
  /// At most 200 different ones are kept; `findingCount` counts all.
  std::vector<Finding> findings;
  uint64_t findingCount = 0;
  Counters counters;
  uint64_t blocks = 0;
  double seconds = 0;
  /// Regions and lines that were executed, in the order of the text. Empty
  /// without LaunchOptions::regions.
  std::vector<Region> regions;
  std::vector<LineCounters> lines;

  bool clean() const { return findingCount == 0; }
  /// The counts of lines first to last, both included.
  Counters between(uint32_t first, uint32_t last) const;
  /// The launch and its regions as a table for people. Counts, not times.
  std::string table() const;
};

/// A device: its memory, and launches on it. Not thread-safe; one launch may
/// use several host threads.
class Machine {
public:
  Machine();
  ~Machine();
  Machine(Machine &&) noexcept;
  Machine &operator=(Machine &&) noexcept;

  /// Registers `size` bytes of host memory, which must stay alive until
  /// removeBuffer; kernels read and write it in place. Returns the virtual
  /// device address, a multiple of 64 KiB with at least 1 MiB of unmapped
  /// addresses behind the buffer.
  uint64_t addBuffer(void *host, uint64_t size,
                     const BufferOptions &options = {});
  /// Error when `address` is not the start of a buffer.
  Error removeBuffer(uint64_t address);
  void clearBuffers();

  /// Reads the init state of [address, address + size): one byte per byte,
  /// 1 = valid. Error when the range is not inside one buffer.
  Expected<std::vector<uint8_t>> initialised(uint64_t address,
                                             uint64_t size) const;
  /// Marks bytes as written or as never written. Error when the range is not
  /// inside one buffer or the buffer keeps no map and `valid` is false.
  Error setInitialised(uint64_t address, uint64_t size, bool valid);
  /// Offset from `address` of the first byte nobody wrote, or `size` when all
  /// are valid.
  Expected<uint64_t> firstUninitialised(uint64_t address, uint64_t size) const;

  /// Host address of a device range, or null when it is not inside one buffer.
  void *hostPointer(uint64_t address, uint64_t size) const;

  /// Device address of a module-scope .global or .const variable.
  Expected<uint64_t> symbolAddress(const Module &module, std::string_view name);

  /// Runs a kernel to its end. `arguments` are as cuLaunchKernel takes them:
  /// one pointer per kernel parameter to a value of the parameter's size;
  /// device pointers are the addresses that addBuffer returned. Errors: no such
  /// kernel, block larger than the kernel allows, instructions that the machine
  /// does not know (all of them listed). Findings are no error.
  Expected<LaunchReport> launch(const Module &module, std::string_view kernel,
                                Dim3 grid, Dim3 block,
                                uint32_t dynamicSharedBytes,
                                const void *const *arguments,
                                const LaunchOptions &options = {});

private:
  struct Impl;
  std::unique_ptr<Impl> impl;
};

} // namespace kvcache::ptx

#endif // KVCACHE_PTX_MACHINE_H
