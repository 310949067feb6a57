//===- Execution.h - Warps, blocks, launches and memory ---------*- C++ -*-===//

#ifndef KVCACHE_LIB_PTX_EXECUTION_H
#define KVCACHE_LIB_PTX_EXECUTION_H

#include "Instruction.h"

#include <array>
#include <atomic>
#include <memory>
#include <mutex>
#include <unordered_map>

namespace kvcache::ptx {

class GlobalRaceChecker;
struct Launch;
struct Cta;

struct Buffer {
  u64 address = 0, size = 0;
  u8 *host = nullptr;
  std::vector<u8> init; // one byte per byte, 1: valid; empty: all valid
  std::string name;
  bool readOnly = false;
  UninitStore uninitStore = UninitStore::Report;
  std::vector<u8> owned; // storage of module variables

  u8 *initAt(u64 a) { return init.empty() ? nullptr : &init[a - address]; }
  bool contains(u64 lo, u64 hi) const {
    return lo >= address && hi <= address + size && lo <= hi;
  }
};

/// Addresses are not used again, so an access to one is told apart.
struct RemovedBuffer {
  u64 address, size;
  std::string name;
};

/// State of shared memory for the race checker. A cell is valid for one
/// interval between barriers of the whole block (generation); epochs are those
/// of the accessing warp.
struct alignas(16) RaceCell {
  u32 generation;
  u16 writer, writeEpoch; // thread + 1
  u16 reader, readEpoch;  // thread + 1, or one of the values below
  u16 plainEpoch;         // atomicCell: of the plain writer in readEpoch
  u16 split;              // cells of 16 bytes: its parts have their own
};
constexpr u16 pendingCopy = 0xffff; // writeEpoch: cp.async in flight
/// reader: several warps. With partial order their epochs are the read set
/// number readEpoch | plainEpoch << 16.
constexpr u16 readByAll = 0xffff;
constexpr u16 readByWarp = 0x8000;   // reader: | warp, several of its lanes
constexpr u16 atomicCell = 0xfffe;   // reader: the last write was atomic
constexpr u16 severalWarps = 0x7fff; // writer of an atomicCell
constexpr u16 bulkWriter = 0x1000;   // writer: + warp, a bulk copy it issued

/// What a barrier, an arrival or a fence hands on: accesses of these epochs
/// happened before it. Exclusive bounds.
struct Released {
  std::vector<u16> shared; // per thread, then per warp for its bulk copies
  std::vector<u32> global, fenced; // per warp
  u64 seen = 0, acquired = 0;

  void join(const Released &other);
  void clear();
};

/// One warp-wide cp.async.
struct CopyJob {
  u32 mask, group;
  u8 bytes;
  u32 destination[32];
  u8 *source[32];
  u8 *sourceInit[32];
  u8 count[32]; // bytes copied; the rest is zero
};
/// A bulk copy stays known until a wait for its mbarrier phase succeeds.
struct BulkJob {
  u32 destination, bytes, barrier, warp, phase;
  u8 *source, *sourceInit;
  bool landed;
};

/// Lanes that wait elsewhere while the warp is diverged.
struct LaneGroup {
  s32 pc;
  u32 mask;
  bool blocked;
};

struct alignas(64) Warp {
  u32 lanes = 0;  // lanes that execute the current instruction
  u32 active = 0; // lanes at pc
  s32 pc = 0, nextMerge = INT32_MAX;
  u32 taintLive = 0; // registers and predicates with taint
  u32 *predicates = nullptr;
  u8 *registers = nullptr; // register file, units of 128 bytes
  Cta *cta = nullptr;
  const Kernel *kernel = nullptr;
  Launch *launch = nullptr;
  Counters *counters = nullptr;
  u32 id = 0, alive = 0;
  u32 threads = 0; // lanes that exist
  /// Counts warp barriers and releases; accesses before syncEpoch are ordered
  /// for all lanes of this warp.
  u16 epoch = 1, syncEpoch = 1;
  u16 bulkEpoch = 1;   // counts bulk copies that were waited for
  u32 globalEpoch = 1; // the same for global memory; also counts fences
  Released order;      // what happened before, seen from this warp
  enum State : u8 { Ready, AtBarrier, Done } state = Ready;
  bool yield = false, forced = false, quiet = false;
  u64 steps = 0, stepsSinceYield = 0;
  /// Accesses that other threads may answer, executed while diverged.
  u32 polls = 0;
  static constexpr u32 pollsInARow = 1024;
  void notePoll() { polls += !others.empty() && polls < pollsInARow; }
  u64 turn = 0; // instructions until another warp runs; 0: to its barrier
  Counters *profile = nullptr; // one per instruction of the kernel, or null
  // CTA barrier: which, how many threads it is for (0: all), its instruction.
  u32 barrierId = 0, barrierCount = 0;
  const Instr *barrierInstr = nullptr;
  u32 barrierLanes = 0;
  std::vector<LaneGroup> others;
  u32 committed[32]; // cp.async groups per lane
  std::vector<CopyJob> jobs;
  size_t firstJob = 0;
  // Bytes of cp.async not waited for: groups committed, the open group, sum.
  std::vector<u32> groupBytes;
  u32 openBytes = 0, bytesInFlight = 0;
  std::vector<u8> local, localInit;
  // Shadow of the register file: a set bit was never written. A unit whose flag
  // is 0 has an all-zero shadow.
  u8 *shadow = nullptr;
  u8 *flags = nullptr;
  u32 *predicateTaint = nullptr;

  template <class T> T *r(u16 slot) const {
    return (T *)__builtin_assume_aligned(registers + size_t(slot) * 128, 64);
  }
  template <class T> T *shadowOf(u16 slot) const {
    return (T *)__builtin_assume_aligned(shadow + size_t(slot) * 128, 64);
  }

  void setup(Cta &owner, u32 warp, u32 threads);
  /// Until a barrier, a yield, the quantum or the end.
  void run();
  void report(FindingKind kind, const Instr &i, int lane,
              const std::string &message, u64 address = 0,
              const std::string &buffer = {});

  // Taint.cpp
  void taintBefore(const Instr &i);
  void taintGuarded(const Instr &i, u32 uncertain);
  u32 laneTaint(u16 slot) const;
  void updateFlag(u16 slot);
  void setPredicateTaint(u16 predicate, u32 taint);
  void clearTaint(u16 slot, u32 mask);
  void checkUse(const Instr &i, u16 slot, u32 mask, const char *what);
  bool isWideSlot(u16 slot) const;
  bool isRegister(u16 slot) const { return slot < kernel->registerUnits; }

private:
  std::vector<u8> registerMemory, shadowMemory, flagMemory;
  std::vector<u32> predicateMemory, predicateTaintMemory;
  void schedule();
  u32 sameMask(const Instr &i, u32 among) const;
  bool converged(const Instr &i);
  void branch(s32 target, u32 taken, u32 rest);
  void branchTable(const Instr &i, u32 mask);
  void checkGuard(const Instr &i, u32 mask);
};

struct Cta {
  Launch *launch = nullptr;
  const Kernel *kernel = nullptr;
  u32 x = 0, y = 0, z = 0;
  u64 index = 0; // linear, for the global race checker
  std::vector<u8> shared, init;
  std::vector<RaceCell> cells;     // one per 16 bytes
  std::vector<RaceCell> fineCells; // one per 1 << cellShift bytes
  u32 generation = 0;
  int cellShift = 0;
  bool partialOrder = false; // shared-memory accesses are ordered by clocks too
  std::vector<std::array<u16, 32>> readSets; // epoch per warp; 0: did not read
  std::map<std::array<u16, 32>, u32> readSetIds;
  u32 sharedBytes = 0;
  std::vector<Warp> warps;
  std::vector<BulkJob> bulkJobs;
  std::unordered_map<u32, s64> pendingBytes; // per mbarrier
  struct MbarrierOrder {
    Released arriving, completed;
  };
  std::unordered_map<u32, MbarrierOrder> mbarrierOrder;
  struct NamedBarrier {
    u32 arrived = 0; // threads of bar.arrive
    Released released;
  };
  std::map<u32, NamedBarrier> namedBarriers;
  Buffer *lastBuffer = nullptr;
  Counters counters;
  std::vector<Counters> profile; // per instruction, with options.regions
  u64 random = 0;

  void run();
  Buffer *findBuffer(u64 lo, u64 hi); // hi exclusive

  // Shared-memory race checker, SharedRace.cpp: the lanes of one access.
  void noteReads(Warp &w, const Instr &i, const u64 *a, u32 mask, u32 n);
  void noteWrites(Warp &w, const Instr &i, const u64 *a, u32 mask, u32 n,
                  bool async);
  void noteAtomics(Warp &w, const Instr &i, const u64 *a, u32 mask, u32 n);
  void noteLanded(Warp &w, const u32 *a, u32 mask, u32 n);
  void noteBulkIssued(Warp &w, const Instr &i, int lane, u32 addr, u32 n);
  void noteBulkLanded(const BulkJob &job);
  void nextGeneration();

  // Order.cpp: what happens before what inside the block.
  bool tracksOrder() const;
  void startOrder(Warp &w);
  void warpBarrier(Warp &w);
  /// `lanes` of w release what they did into `to`, and go on.
  void release(Warp &w, u32 lanes, Released &to);
  void acquire(Warp &w, const Released &from);
  /// A barrier for these warps; `arrived`: released by bar.arrive.
  void barrier(const std::vector<Warp *> &participants, const Released *arrived,
               bool all);
  bool ordered(const Warp &w, u16 thread, u16 epoch) const;
  bool orderedWarp(const Warp &w, u32 warp, u16 epoch) const;
  u32 readSet(const std::array<u16, 32> &epochs);

private:
  void orderWarps(std::vector<u32> &order);
  void joinReaders(const Warp &w, RaceCell &x);
  void checkWriter(Warp &w, const Instr &i, int lane, u32 addr,
                   const RaceCell &x, const char *verb, const char *after);
  void checkReader(Warp &w, const Instr &i, int lane, u32 addr,
                   const RaceCell &x);
  RaceCell *partsOf(u32 granule);
  template <class F> void updateCells(u32 offset, u32 n, F update);
  template <class F> void updateLanes(const u64 *a, u32 mask, u32 n, F update);
  bool releaseBarrier();
};

struct Launch {
  const ModuleImpl &module;
  const Kernel &kernel;
  LaunchOptions options;
  Dim3 grid, block;
  u32 sharedBytes = 0, dynamicSharedBytes = 0;
  std::vector<u8> params;
  std::vector<Buffer *> buffers; // sorted by address
  const std::vector<RemovedBuffer> *removed = nullptr;
  LaunchReport report;
  std::vector<Counters> profile; // per instruction
  std::mutex reportLock, atomicLock;
  std::atomic<u64> next{0}, steps{0}, findingCount{0};
  std::unique_ptr<GlobalRaceChecker> globalRace;

  Launch(const ModuleImpl &m, const Kernel &k);
  ~Launch();
  void run();
};

/// Host addresses of the active lanes of an access; lanes outside `ok` are
/// dropped. init is null where every byte is valid.
struct Where {
  u8 *host[32];
  u8 *init[32];
  u32 ok = 0;
  u32 global = 0;       // lanes of global memory
  bool anyInit = false; // some init[] is not null
};
enum class Access { Load, Store, Atomic, AsyncRead };

// Memory.cpp
void readAddresses(Warp &w, const Instr &i, int slot, u64 *a);
void locate(Warp &w, const Instr &i, u64 *a, u32 n, Access access, Where &x,
            u32 raceMask);
void globalAccess(Warp &w, const Instr &i, const u64 *a, u32 mask, u32 n,
                  Access access, Where &x);
/// An access of global memory that is not inside one buffer.
void reportOutside(Warp &w, const Instr &i, int lane, u64 address, u32 n,
                   Access access);
/// Of the buffer at a global address; empty: there is none.
std::string bufferName(Cta &c, u64 address);
u32 sharedAccess(Warp &w, const Instr &i, const u64 *a, u32 mask, u32 n,
                 Access access, bool async = false, u32 raceMask = ~0u);
void markValid(u8 *p, u32 n);
bool allValid(const u8 *p, u32 n);
std::string hex(u64 value);
/// Sets the shadow of loaded registers from init maps.
void taintFromMemory(Warp &w, const Instr &i, const Where &x, u32 n);

// Traffic.cpp: what the counters count.
u32 countSectors(const u64 *a, u32 mask, u32 n);
void countWavefronts(Counters::Shared &c, const u64 *a, u32 mask, u32 n,
                     int lanes = 32);

// Regions.cpp: counters per instruction to regions and lines.
void fillRegions(LaunchReport &report, const Kernel &kernel,
                 const std::vector<Counters> &profile);

// AsyncCopy.cpp
void waitCopies(Warp &w, u32 mask, u32 groupsLeft);

} // namespace kvcache::ptx

#endif // KVCACHE_LIB_PTX_EXECUTION_H
