//===- Instruction.h - Internal form of a PTX module ------------*- C++ -*-===//
//
// One Instr per PTX instruction; operands are register slots.
//
//===----------------------------------------------------------------------===//

#ifndef KVCACHE_LIB_PTX_INSTRUCTION_H
#define KVCACHE_LIB_PTX_INSTRUCTION_H

#include "kvcache/PTX/Machine.h"

#include <cstdint>
#include <cstring>
#include <map>
#include <string>
#include <vector>

namespace kvcache::ptx {

using u8 = uint8_t;
using u16 = uint16_t;
using u32 = uint32_t;
using u64 = uint64_t;
using s8 = int8_t;
using s16 = int16_t;
using s32 = int32_t;
using s64 = int64_t;

struct Warp;
struct Instr;
using Handler = void (*)(Warp &, const Instr &);

enum class Space : u8 { Generic, Global, Shared, Local, Param, Const };

/// How the warp loop treats an instruction.
enum class Control : u8 {
  Plain,       ///< run the handler on the active lanes
  Sync,        ///< the same, after all lanes of the member mask are here
  Branch,      ///< imm: target
  BranchTable, ///< imm: index into Kernel::branchTables, s[0]: entry
  Exit,
  Trap,
  CtaBarrier,
  WarpBarrier,
  Wait, ///< mbarrier wait: may hand over to another warp
  Unsupported
};

/// How "never written" passes from sources to destinations; Taint.cpp.
enum class TaintRule : u8 {
  Whole,      ///< any bit of any source: the whole destination
  CarryUp,    ///< integer add, sub, mul: that bit and all above it
  Bitwise,    ///< and, or, xor, not, lop3 on known values: exact
  Structural, ///< the handler itself, run on the shadow registers
  Select,     ///< selp, slct
  Halves,     ///< f16x2 arithmetic: each half on its own
  PackHalves, ///< s[0] -> upper half, s[1] -> lower half
  PackBytes,  ///< s[0] -> upper byte of 16 bits, s[1] -> lower byte
  Widen8,     ///< byte i of 16 bits -> half i
  Narrow16,   ///< half i -> byte i of 16 bits
  Compare,    ///< setp
  Logic,      ///< predicate logic
  Vote,
  Reduce, ///< any participating lane: all lanes
  Mma,
  Own ///< the handler does it (loads, stores, atomics, copies)
};

constexpr u16 none = 0xffff;

/// Register slots are counted in units of 128 bytes (32 lanes of 32 bits); a
/// 64-bit register takes two units. Immediates and special registers live in
/// slots too, so handlers only ever see arrays of lanes.
struct alignas(64) Instr {
  Handler fn = nullptr;
  s64 imm = 0; // address offset / lop3 table / branch target / group count
  u16 d[8] = {none, none, none, none, none, none, none, none};
  u16 s[10] = {none, none, none, none, none, none, none, none, none, none};
  u16 pd[2] = {none, none}; // predicate destinations
  u16 ps = none;            // predicate source
  u16 guard = none;
  bool guardNeg = false, psNeg = false, isMove = false;
  u8 nd = 0, ns = 0; // used entries of d and s
  Control control = Control::Plain;
  InstrClass cls = InstrClass::Other;
  Space space = Space::Generic;
  TaintRule taint = TaintRule::Whole;
  u8 width = 0, vec = 1; // memory: bytes an element, elements
  bool addr64 = true, signExtend = false;
  /// Destination registers are 64 bits (bit i: d[i]; ops: any set).
  u8 wide = 0;
  /// Structural: sources that keep their values (shift counts, selectors).
  u8 controlMask = 0;
  bool strong = false; // volatile, relaxed, acquire, release
  bool hasMemberMask = false;
  u8 ordering = 0; // of gpu scope or wider; 1: release, 2: acquire
  u16 flags = 0;
  u32 line = 0;
};

struct Constant {
  u64 bits;
  u8 units;
};

enum SpecialRegister : u16 {
  TidX,
  TidY,
  TidZ,
  NTidX,
  NTidY,
  NTidZ,
  CtaIdX,
  CtaIdY,
  CtaIdZ,
  NCtaIdX,
  NCtaIdY,
  NCtaIdZ,
  LaneId,
  WarpId,
  NWarpId,
  LaneMaskLt,
  LaneMaskLe,
  LaneMaskEq,
  LaneMaskGe,
  LaneMaskGt,
  DynamicSharedSize,
  TotalSharedSize,
  Zero, // counters such as %clock and ids of parts that do not exist here
  numSpecialRegisters
};

struct Kernel {
  KernelInfo info;
  std::vector<Instr> code;
  std::vector<u8> leader; // 1: first instruction of a basic block
  std::vector<std::vector<s32>> branchTables;
  /// (pc, name) where a region of the counters starts, ascending.
  std::vector<std::pair<u32, std::string>> regionStarts;
  bool hasDynamicShared = false;
  u32 numPredicates = 0;
  // Result of register allocation, in units.
  // 32-bit registers, then 64-bit ones from wideBase, special registers,
  // constants.
  u32 wideBase = 0, registerUnits = 0;
  u32 specialBase = 0, constantBase = 0, totalUnits = 0;
  std::vector<Constant> constants;
  std::vector<u32> constantUnit;
  /// Slots and predicates that some path reads before any write.
  std::vector<u16> liveInSlots, liveInPredicates;
  /// Smallest shared-memory access: granularity of the race checker.
  u8 minSharedAccess = 16;
  /// Has barriers for a part of the block, or mbarriers.
  bool partialOrder = false;
};

/// A module-scope variable. Its device address is fixed when the module is
/// parsed, from a range of addresses that no buffer uses.
struct GlobalVariable {
  u64 address = 0;
  bool constant = false;
  bool initialised = false; // has an initialiser
  std::vector<u8> data;
};

struct ModuleImpl {
  std::string name;
  std::map<std::string, Kernel, std::less<>> kernels;
  std::map<std::string, GlobalVariable, std::less<>> variables;
  std::vector<std::string> lines;
  int arch = 0;
  u64 serial = 0;
};

Expected<ModuleImpl> parseModule(std::string_view text,
                                 const std::string &name);

constexpr u32 sharedStart = 1024; // first valid shared address
// Windows of generic addresses.
constexpr u64 sharedWindow = 0x00f1000000000000ull;
constexpr u64 localWindow = 0x00f2000000000000ull;
// Device addresses of buffers and of module-scope variables.
constexpr u64 bufferStart = 0x7f0000000000ull;
constexpr u64 variableStart = 0x7e0000000000ull;

} // namespace kvcache::ptx

#endif // KVCACHE_LIB_PTX_INSTRUCTION_H
