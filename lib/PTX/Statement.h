//===- Statement.h - Parsed statement and lowering services -----*- C++ -*-===//

#ifndef KVCACHE_LIB_PTX_STATEMENT_H
#define KVCACHE_LIB_PTX_STATEMENT_H

#include "Instruction.h"

#include <stdexcept>

namespace kvcache::ptx {

/// Thrown inside the parser only; Module::parse turns it into an Error.
struct SyntaxError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

struct Operand {
  enum Kind { Reg, Pred, Imm, Vec, Addr, Sym, Special, Sink } kind = Imm;
  int id = -1;  // register / predicate / special register
  int id2 = -1; // second half of "a|b"; -1: none
  bool negated = false;
  bool isFloat = false, isDouble = false; // imm: bits of an f32, of an f64
  u64 imm = 0;
  s64 offset = 0;                // Addr
  std::string name;              // Sym
  std::vector<Operand> elements; // Vec; Addr: [0] is the base (none: absolute)
};

/// kind: b u s f, h (f16), H (f16x2), B (bf16), X (bf16x2), p (pred),
/// e (e4m3x2), E (e5m2x2), t (tf32), w (u16x2), W (s16x2), 0 (not a type).
struct Type {
  char kind = 0;
  u8 bits = 0;
  int units() const { return bits > 32 ? 2 : 1; }
  bool isSigned() const { return kind == 's'; }
  bool isFloat() const { return kind == 'f' || kind == 'h' || kind == 'B'; }
};
Type parseType(const std::string &text);

struct Statement {
  std::string text;               // whole opcode
  std::vector<std::string> parts; // opcode split at '.'
  std::vector<Operand> operands;
  u32 line = 0;

  bool has(std::string_view part) const {
    for (const std::string &p : parts)
      if (p == part)
        return true;
    return false;
  }
  const std::string &op() const { return parts[0]; }
  /// The last part that is a type.
  Type type() const {
    for (size_t i = parts.size(); i-- > 1;) {
      Type t = parseType(parts[i]);
      if (t.kind)
        return t;
    }
    return {};
  }
};

struct VirtualRegister {
  u8 units; // 1 (up to 32 bits) or 2 (64 bits)
};

/// Register ids before allocation: virtual registers, then these ranges.
constexpr u16 specialId = 50000, constantId = 51000;

struct Symbol {
  Space space;
  u64 address;
};

/// What the lowering functions need from the parser.
struct Builder {
  Kernel &kernel;
  std::vector<VirtualRegister> registers;
  std::map<std::pair<u64, int>, u16> constantIds;
  u16 carryFlag = none;
  bool widerRegisters = false;

  explicit Builder(Kernel &k) : kernel(k) {}
  virtual ~Builder() = default;
  virtual Symbol symbol(const std::string &name) = 0;

  /// The condition-code register's carry, a predicate.
  u16 carry() {
    if (carryFlag == none)
      carryFlag = u16(kernel.numPredicates++);
    return carryFlag;
  }

  u16 constant(u64 bits, int units);
  u16 dataRegister(const Operand &o, int units) const;
  u16 source(const Operand &o, int units);
  u16 destination(const Operand &o, int units);
  u16 scratch(int units);
  u16 predicateSource(const Operand &o, bool &negated);
  u16 predicateDestination(const Operand &o);
  bool isWide(const Operand &o) const {
    return o.kind == Operand::Reg && registers[size_t(o.id)].units == 2;
  }
};

/// Each returns false when it does not know the instruction.
bool lowerInteger(Builder &b, const Statement &s, Instr &i);
bool lowerFloat(Builder &b, const Statement &s, Instr &i);
bool lowerConversion(Builder &b, const Statement &s, Instr &i);
bool lowerPredicate(Builder &b, const Statement &s, Instr &i);
bool lowerWarpWide(Builder &b, const Statement &s, Instr &i);
bool lowerMemory(Builder &b, const Statement &s, Instr &i);
bool lowerAtomic(Builder &b, const Statement &s, Instr &i);
bool lowerAsyncCopy(Builder &b, const Statement &s, Instr &i);
bool lowerMatrix(Builder &b, const Statement &s, Instr &i);

/// Cheaper handlers, once constants are known.
void specialise(Instr &i, const Kernel &k);

void allocateRegisters(Kernel &k, const std::vector<VirtualRegister> &regs);

/// Sets s[n], addr64, imm and, for parameters of inlined functions, the space.
void lowerAddress(Builder &b, const Operand &o, Instr &i, int n);
Space spaceOf(const Statement &s);

/// True when every part after the opcode is in `allowed` (space-separated) or a
/// type: instructions with a modifier that we do not know are refused, not
/// misread.
bool onlyParts(const Statement &s, std::string_view allowed);

/// Fills d[0] and s[0..] from operands 0, 1, ... with the given units.
bool lowerOperands(Builder &b, const Statement &s, Instr &i, int dstUnits,
                   std::initializer_list<int> srcUnits);

} // namespace kvcache::ptx

#endif // KVCACHE_LIB_PTX_STATEMENT_H
