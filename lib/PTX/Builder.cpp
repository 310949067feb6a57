//===- Builder.cpp - Operands and types for the lowering functions --------===//

#include "Statement.h"

#include <cstdlib>

using namespace kvcache::ptx;

Type kvcache::ptx::parseType(const std::string &text) {
  static const std::map<std::string, Type> named = {
      {"pred", {'p', 1}},    {"f16", {'h', 16}},    {"f16x2", {'H', 32}},
      {"bf16", {'B', 16}},   {"bf16x2", {'X', 32}}, {"e4m3x2", {'e', 16}},
      {"e5m2x2", {'E', 16}}, {"tf32", {'t', 32}},   {"f32", {'f', 32}},
      {"f64", {'f', 64}},    {"u16x2", {'w', 32}},  {"s16x2", {'W', 32}}};
  auto it = named.find(text);
  if (it != named.end())
    return it->second;
  if (text.size() >= 2 && strchr("bus", text[0]) && text[1] >= '1' &&
      text[1] <= '9') {
    std::string digits = text.substr(1);
    for (int bits : {8, 16, 32, 64})
      if (digits == std::to_string(bits))
        return {text[0], u8(bits)};
  }
  return {};
}

u16 Builder::constant(u64 bits, int units) {
  if (units == 1)
    bits &= 0xffffffffu;
  auto key = std::make_pair(bits, units);
  auto it = constantIds.find(key);
  if (it != constantIds.end())
    return it->second;
  size_t id = constantId + kernel.constants.size();
  if (id >= none)
    throw SyntaxError("expected fewer than 14,000 different constants");
  kernel.constants.push_back({bits, u8(units)});
  return constantIds[key] = u16(id);
}

/// Of cvt, ld and st only, registers may be wider than the type.
u16 Builder::dataRegister(const Operand &o, int units) const {
  int found = registers[size_t(o.id)].units;
  if (found < units || (found > units && !widerRegisters))
    throw SyntaxError("expected a register of " +
                      std::string(units == 2 ? "64" : "up to 32") +
                      " bits, found one of " + (found == 2 ? "64" : "32"));
  return u16(o.id);
}

u16 Builder::source(const Operand &o, int units) {
  switch (o.kind) {
  case Operand::Reg:
    return dataRegister(o, units);
  case Operand::Imm:
    // Floating-point literals are f64; f32 instructions round them.
    if (o.isDouble && units == 1)
      return constant(
          __builtin_bit_cast(u32, float(__builtin_bit_cast(double, o.imm))), 1);
    return constant(o.imm, units);
  case Operand::Special:
    if (units != 1)
      return constant(0, units); // 64-bit clocks
    return u16(specialId + o.id);
  case Operand::Sym:
    return constant(symbol(o.name).address, units);
  case Operand::Sink:
    return constant(0, units);
  default:
    throw SyntaxError("a register, a number or a name is expected here");
  }
}

u16 Builder::destination(const Operand &o, int units) {
  if (o.kind == Operand::Reg)
    return dataRegister(o, units);
  if (o.kind == Operand::Sink)
    return scratch(units);
  throw SyntaxError("the destination must be a register");
}

u16 Builder::scratch(int units) {
  if (registers.size() + 1 >= specialId)
    throw SyntaxError("expected fewer than 50,000 registers");
  registers.push_back({u8(units)});
  return u16(registers.size() - 1);
}

u16 Builder::predicateSource(const Operand &o, bool &negated) {
  if (o.kind != Operand::Pred)
    throw SyntaxError("a predicate is expected here");
  negated = o.negated;
  return u16(o.id);
}

u16 Builder::predicateDestination(const Operand &o) {
  if (o.kind == Operand::Sink)
    return u16(kernel.numPredicates++);
  if (o.kind != Operand::Pred)
    throw SyntaxError("the destination must be a predicate");
  return u16(o.id);
}

bool kvcache::ptx::onlyParts(const Statement &s, std::string_view allowed) {
  for (size_t n = 1; n < s.parts.size(); ++n) {
    const std::string &part = s.parts[n];
    if (parseType(part).kind)
      continue;
    bool found = false;
    for (size_t b = 0; b < allowed.size() && !found;) {
      size_t e = allowed.find(' ', b);
      if (e == std::string_view::npos)
        e = allowed.size();
      found = allowed.substr(b, e - b) == part;
      b = e + 1;
    }
    if (!found)
      return false;
  }
  return true;
}

bool kvcache::ptx::lowerOperands(Builder &b, const Statement &s, Instr &i,
                                 int dstUnits,
                                 std::initializer_list<int> srcUnits) {
  if (s.operands.size() < srcUnits.size() + 1)
    return false;
  i.d[0] = b.destination(s.operands[0], dstUnits);
  i.nd = 1;
  size_t n = 0;
  for (int units : srcUnits) {
    i.s[n] = b.source(s.operands[n + 1], units);
    ++n;
  }
  i.ns = u8(n);
  return true;
}
