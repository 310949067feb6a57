//===- Parser.cpp - PTX text to kernels -----------------------------------===//
//
// Directives, nested scopes of registers and labels, .param layout, calls
// (inlined). Instructions go to the lower*() functions.
//
//===----------------------------------------------------------------------===//

#include "Lexer.h"

#include <algorithm>
#include <atomic>
#include <unordered_map>

using namespace kvcache::ptx;

namespace {

using SymbolTable = std::map<std::string, Symbol>;

struct FunctionParam {
  std::string name;
  u32 size, alignment;
};

/// A .func, kept as a range of tokens and inlined at each call.
struct Function {
  std::vector<FunctionParam> results, params;
  size_t body = 0; // token index of '{'; 0: only declared
};

struct ModuleParser;

/// A register name or the range %r<100>. Data registers have ids >= 0,
/// predicate n is coded as -2 - n.
struct Scope {
  int id = 0;
  std::unordered_map<std::string, int> registers;
  struct Range {
    std::string prefix;
    int first, count;
  };
  std::vector<Range> ranges;
  SymbolTable symbols;
  std::map<std::string, std::vector<std::string>> branchTargets;
};

u32 alignTo(u32 value, u32 alignment) {
  return (value + alignment - 1) / alignment * alignment;
}

/// Deeper braces, operands and calls are refused: they are parsed recursively.
constexpr size_t maxDepth = 200;
/// Of a kernel with all its calls inlined.
constexpr size_t maxInstructions = 1u << 18;

/// Token cursor with the error messages.
struct Cursor {
  const std::vector<Token> &tokens;
  size_t pos = 0;

  const Token &peek() const { return tokens[pos]; }
  [[noreturn]] void fail(const std::string &what) const {
    const Token &t = peek();
    throw SyntaxError("line " + std::to_string(t.line) + ": " + what +
                      (t.kind == Token::End ? " at the end of the text"
                                            : ", found '" + t.text + "'"));
  }
  bool is(const char *text) const {
    return peek().kind != Token::String && peek().text == text;
  }
  bool eat(const char *text) {
    if (peek().kind == Token::End || !is(text))
      return false;
    ++pos;
    return true;
  }
  void expect(const char *text) {
    if (!eat(text))
      fail(std::string("expected '") + text + "'");
  }
  std::string name() {
    if (peek().kind != Token::Id)
      fail("expected a name");
    return tokens[pos++].text;
  }
  s64 integer() {
    bool negative = eat("-");
    if (peek().kind != Token::Number)
      fail("expected a number");
    s64 v = s64(tokens[pos++].value);
    return negative ? -v : v;
  }
  void skipTo(const char *text) {
    while (!eat(text)) {
      if (peek().kind == Token::End)
        fail(std::string("expected '") + text + "'");
      ++pos;
    }
  }
  void skipBlock() { // from '{' to its '}'
    expect("{");
    for (int depth = 1; depth;) {
      if (peek().kind == Token::End)
        fail("expected '}'");
      depth += is("{");
      depth -= is("}");
      ++pos;
    }
  }
};

/// `.align 8 .b8 name[16]` after the state space.
struct Declaration {
  std::string name;
  u32 elementSize = 1, alignment = 1;
  Type type;
  u64 count = 1;
  bool open = false; // name[]
};

// What is declared at most in one state space, and of one variable.
constexpr u32 maxSharedBytes = 1u << 20, maxLocalBytes = 1u << 19,
              maxParameterBytes = 1u << 15;
constexpr u64 maxVariableBytes = (1u << 28) - (1u << 20);

Declaration parseDeclaration(Cursor &c) {
  Declaration d;
  u32 alignment = 0, vector = 1;
  for (;;) {
    std::string word = c.name();
    if (word == ".align") {
      alignment = u32(c.integer());
    } else if (word == ".v2" || word == ".v4") {
      vector = word == ".v2" ? 2 : 4;
    } else if (word == ".ptr" || word == ".global" || word == ".shared" ||
               word == ".const" || word == ".local" || word == ".attribute" ||
               word == ".generic") {
      if (word == ".attribute")
        c.skipTo(")");
    } else if (word[0] == '.') {
      d.type = parseType(word.substr(1));
      if (!d.type.kind) {
        --c.pos;
        c.fail("unknown type");
      }
    } else {
      d.name = word;
      break;
    }
  }
  if (d.type.bits < 8)
    c.fail("expected a type of 8 bits or more in front of this");
  d.elementSize = u32(d.type.bits) / 8 * vector;
  d.alignment = alignment ? alignment : d.elementSize;
  while (c.eat("["))
    if (c.eat("]")) {
      d.open = true;
    } else {
      s64 count = c.integer();
      if (count < 0 || u64(count) > maxVariableBytes)
        c.fail("number of elements out of range in front of this");
      d.count *= u64(count);
      d.count = std::min(d.count, maxVariableBytes + 1);
      c.expect("]");
    }
  if (d.alignment & (d.alignment - 1) || !d.alignment || d.alignment > 4096)
    c.fail("alignment out of range in front of this; expected a power of two "
           "up to 4096");
  if (d.elementSize * d.count > maxVariableBytes)
    c.fail("variable larger than 255 MiB in front of this");
  return d;
}

/// The offset of a variable behind `used` bytes of its state space.
u32 place(const Cursor &c, const Declaration &d, u32 &used, u32 limit) {
  u64 offset = alignTo(used, d.alignment);
  u64 end = offset + d.elementSize * d.count;
  if (end > limit)
    c.fail(std::to_string(end) +
           " bytes declared in one state space in front of this; expected at "
           "most " +
           std::to_string(limit));
  used = u32(end);
  return u32(offset);
}

class KernelParser : public Builder {
public:
  KernelParser(ModuleParser &module, Cursor &cursor, Kernel &kernel)
      : Builder(kernel), module(module), c(cursor) {}

  void params();
  void attributes();
  void body();
  Symbol symbol(const std::string &name) override;

private:
  ModuleParser &module;
  Cursor &c;
  std::vector<Scope> scopes;
  int scopeCount = 0;
  std::map<std::pair<int, std::string>, int> labels; // scope, name -> pc
  struct Fixup {
    size_t instr;
    int table, entry; // -1: a branch
    std::vector<int> chain;
    std::string name;
    u32 line;
  };
  std::vector<Fixup> fixups;
  std::vector<std::string> callStack;
  std::vector<std::string> dynamicNames;
  SymbolTable paramSymbols;
  u32 currentLine = 0;
  int operandDepth = 0;

  void startRegion(const std::string &name);
  int lookup(const std::string &name) const;
  int newRegisters(const std::string &type, int n);
  void declareRegisters();
  void declareMemory(Space space);
  void collectShared();
  Operand operand();
  Operand simpleOperand();
  void statement();
  void instruction(const std::string &op, int guard, bool negated, u32 line);
  bool lower(const Statement &s, Instr &i);
  void branchTo(const Operand &target, u32 line, int table = -1,
                int entry = -1);
  void call(const std::string &op, u32 line);
  void inlineFunction(const std::string &name, const Function &f,
                      const std::vector<std::string> &results,
                      const std::vector<std::string> &arguments, u32 line);
  void finish();
  void refuse(const std::string &what, u32 line);
  void block(size_t outerDepth);
  std::vector<int> scopeChain() const;
};

struct ModuleParser {
  ModuleImpl &module;
  Cursor c;
  SymbolTable globals;
  std::map<std::string, Function> functions;
  u32 sharedStatic = 0, dynamicAlignment = 1;
  std::vector<std::string> dynamicNames;
  bool hasDynamic = false;
  u64 nextAddress;
  /// A kernel, and the shared memory of the module that is declared before it.
  struct Entry {
    size_t pos;
    u32 sharedStatic, dynamicAlignment;
    size_t dynamicNames;
    bool hasDynamic;
  };
  std::vector<Entry> entries;
  std::vector<std::string> allDynamicNames;

  ModuleParser(ModuleImpl &m, const std::vector<Token> &tokens)
      : module(m), c{tokens} {
    // Addresses differ between modules, so that several can be live at once.
    static std::atomic<u64> serial{0};
    m.serial = serial++;
    nextAddress = variableStart + (m.serial % 4096 << 28);
  }

  void parse();
  /// Of a function whose address is taken. Calls through it are refused, so
  /// it is in no state space. Null: no function of this name.
  const Symbol *functionSymbol(const std::string &name) const {
    static const Symbol nowhere{Space::Generic, 0};
    return functions.count(name) ? &nowhere : nullptr;
  }
  void declareShared();
  void declareVariable(bool constant);
  void initialiser(const Declaration &d, GlobalVariable &v);
  std::vector<FunctionParam> functionParams();
  void parseFunction();
  void laterEntry();
  void parseEntry(const Entry &entry);
};

//===----------------------------------------------------------------------===//
// Module scope
//===----------------------------------------------------------------------===//

void ModuleParser::declareShared() {
  Declaration d = parseDeclaration(c);
  c.expect(";");
  if (d.open || d.count == 0) {
    dynamicAlignment = std::max(dynamicAlignment, d.alignment);
    dynamicNames.push_back(d.name);
    hasDynamic = true;
    return;
  }
  globals[d.name] = {Space::Shared,
                     sharedStart + place(c, d, sharedStatic, maxSharedBytes)};
}

void ModuleParser::initialiser(const Declaration &d, GlobalVariable &v) {
  v.initialised = true;
  size_t offset = 0, element = d.type.bits / 8;
  int depth = 0;
  do {
    while (c.eat("{"))
      ++depth;
    if (!c.is("}")) {
      u64 bits = 0;
      bool negative = c.eat("-");
      if (c.peek().kind == Token::Number) {
        bits = c.peek().value;
        if (c.peek().isDouble && element == 4)
          bits =
              __builtin_bit_cast(u32, float(__builtin_bit_cast(double, bits)));
        if (negative && c.peek().isFloat) {
          bits ^= 1ull << (8 * element - 1);
          negative = false;
        }
        ++c.pos;
      } else {
        std::string name = c.name();
        if (name == "generic") {
          c.expect("(");
          name = c.name();
          c.expect(")");
        }
        auto it = globals.find(name);
        const Symbol *symbol =
            it == globals.end() ? functionSymbol(name) : &it->second;
        if (!symbol)
          c.fail("unknown name '" + name + "' in an initialiser");
        bits = symbol->address;
        if (c.eat("+"))
          bits += u64(c.integer());
      }
      if (negative)
        bits = 0 - bits;
      if (offset + element > v.data.size())
        c.fail("more initial values than the variable has elements");
      memcpy(&v.data[offset], &bits, element);
      offset += element;
    }
    while (c.eat("}"))
      --depth;
  } while (c.eat(","));
  if (depth)
    c.fail("expected '}'");
}

void ModuleParser::declareVariable(bool constant) {
  Declaration d = parseDeclaration(c);
  GlobalVariable v;
  v.constant = constant;
  u64 bytes = d.elementSize * d.count;
  v.data.assign(bytes, 0);
  nextAddress = (nextAddress + d.alignment - 1) / d.alignment * d.alignment;
  v.address = nextAddress;
  if (c.eat("="))
    initialiser(d, v);
  c.expect(";");
  // Room between variables, so that an access past one's end is noticed.
  nextAddress += bytes + 256;
  globals[d.name] = {constant ? Space::Const : Space::Global, v.address};
  module.variables[d.name] = std::move(v);
}

std::vector<FunctionParam> ModuleParser::functionParams() {
  std::vector<FunctionParam> params;
  if (!c.eat("("))
    return params;
  while (!c.eat(")")) {
    if (!c.eat(".param"))
      c.expect(".reg");
    Declaration d = parseDeclaration(c);
    params.push_back({d.name, u32(d.elementSize * d.count), d.alignment});
    c.eat(",");
  }
  return params;
}

void ModuleParser::parseFunction() {
  Function f;
  f.results = functionParams();
  std::string name = c.name();
  f.params = functionParams();
  while (!c.is("{") && !c.is(";")) // .noreturn and the like
    c.name();
  if (c.eat(";")) {
    functions.emplace(name, f);
    return;
  }
  f.body = c.pos;
  c.skipBlock();
  functions[name] = f;
}

/// Kernels are read when all functions are known: some are defined behind
/// their callers.
void ModuleParser::laterEntry() {
  entries.push_back(
      {c.pos, sharedStatic, dynamicAlignment, dynamicNames.size(), hasDynamic});
  while (!c.is("{")) {
    if (c.peek().kind == Token::End)
      c.fail("expected '{'");
    ++c.pos;
  }
  c.skipBlock();
}

void ModuleParser::parseEntry(const Entry &e) {
  c.pos = e.pos;
  sharedStatic = e.sharedStatic;
  dynamicAlignment = e.dynamicAlignment;
  dynamicNames.assign(allDynamicNames.begin(),
                      allDynamicNames.begin() + long(e.dynamicNames));
  hasDynamic = e.hasDynamic;
  std::string name = c.name();
  if (module.kernels.count(name))
    c.fail("kernel " + name + " is defined twice; expected a new name");
  Kernel &k = module.kernels[name];
  k.info.name = name;
  k.info.staticSharedBytes = sharedStatic;
  k.info.dynamicSharedAlignment = dynamicAlignment;
  k.hasDynamicShared = hasDynamic;
  KernelParser parser(*this, c, k);
  parser.params();
  parser.attributes();
  parser.body();
}

void ModuleParser::parse() {
  while (c.peek().kind != Token::End) {
    if (c.eat(".version")) {
      if (c.peek().kind != Token::Number)
        c.fail("expected a version number");
      ++c.pos;
    } else if (c.eat(".target")) {
      std::string target = c.name();
      if (target.rfind("sm_", 0) == 0)
        module.arch = atoi(target.c_str() + 3);
      while (c.eat(","))
        c.name();
    } else if (c.eat(".address_size")) {
      if (c.integer() != 64) {
        --c.pos;
        c.fail("expected .address_size 64");
      }
    } else if (c.eat(".file")) {
      while (c.peek().kind == Token::Number || c.peek().kind == Token::String ||
             c.is(","))
        ++c.pos;
    } else if (c.eat(".section")) {
      while (!c.is("{")) {
        if (c.peek().kind == Token::End)
          c.fail("expected '{'");
        ++c.pos;
      }
      c.skipBlock();
    } else if (c.is(".visible") || c.is(".extern") || c.is(".weak") ||
               c.is(".common")) {
      ++c.pos;
    } else if (c.eat(".pragma") || c.eat(".alias")) {
      c.skipTo(";");
    } else if (c.eat(".shared")) {
      declareShared();
    } else if (c.eat(".global")) {
      declareVariable(false);
    } else if (c.eat(".const")) {
      declareVariable(true);
    } else if (c.eat(".func")) {
      parseFunction();
    } else if (c.eat(".entry")) {
      laterEntry();
    } else if (!c.eat(";")) {
      c.fail("expected .entry, .func or another module-scope directive");
    }
  }
  allDynamicNames = dynamicNames;
  for (const Entry &e : entries)
    parseEntry(e);
}

//===----------------------------------------------------------------------===//
// Kernel scope
//===----------------------------------------------------------------------===//

Symbol KernelParser::symbol(const std::string &name) {
  for (size_t n = scopes.size(); n-- > 0;) {
    auto it = scopes[n].symbols.find(name);
    if (it != scopes[n].symbols.end())
      return it->second;
  }
  for (const SymbolTable *table : {&paramSymbols, &module.globals}) {
    auto it = table->find(name);
    if (it != table->end())
      return it->second;
  }
  if (const Symbol *function = module.functionSymbol(name))
    return *function;
  throw SyntaxError("unknown name '" + name + "'");
}

/// Of several labels at one place, the last one names the region.
void KernelParser::startRegion(const std::string &name) {
  auto &all = kernel.regionStarts;
  if (!all.empty() && all.back().first == kernel.code.size())
    all.back().second = name;
  else
    all.push_back({u32(kernel.code.size()), name});
}

int KernelParser::lookup(const std::string &name) const {
  for (size_t n = scopes.size(); n-- > 0;) {
    const Scope &scope = scopes[n];
    auto it = scope.registers.find(name);
    if (it != scope.registers.end())
      return it->second;
    for (const Scope::Range &r : scope.ranges) {
      size_t length = r.prefix.size();
      if (name.size() <= length || name.compare(0, length, r.prefix) != 0 ||
          name.find_first_not_of("0123456789", length) != std::string::npos)
        continue;
      int x = atoi(name.c_str() + length);
      if (x < r.count)
        return r.first >= 0 ? r.first + x : r.first - x;
    }
  }
  return -1;
}

int KernelParser::newRegisters(const std::string &type, int n) {
  if (n < 1)
    c.fail("expected at least one register in front of this");
  if (type == ".pred") {
    int base = int(kernel.numPredicates);
    if (base + s64(n) >= specialId)
      c.fail("expected fewer than 50,000 predicates");
    kernel.numPredicates += u32(n);
    return -2 - base;
  }
  Type t = parseType(type.substr(1));
  if (!t.kind)
    c.fail("unknown register type " + type + " in front of this");
  int base = int(registers.size());
  if (base + s64(n) >= specialId)
    c.fail("expected fewer than 50,000 registers");
  registers.insert(registers.end(), size_t(n), {u8(t.units())});
  return base;
}

void KernelParser::declareRegisters() {
  std::string type = c.name();
  if (type == ".v2" || type == ".v4")
    c.fail("vector registers are not known; expected scalar ones");
  do {
    std::string name = c.name();
    if (c.eat("<")) {
      int count = int(std::min<s64>(c.integer(), specialId));
      c.expect(">");
      int first = newRegisters(type, count);
      scopes.back().ranges.push_back({name, first, count});
    } else {
      int first = newRegisters(type, 1);
      scopes.back().registers[name] = first;
    }
  } while (c.eat(","));
  c.expect(";");
}

void KernelParser::declareMemory(Space space) {
  do {
    Declaration d = parseDeclaration(c);
    if (space == Space::Shared) {
      if (d.open || d.count == 0) {
        kernel.info.dynamicSharedAlignment =
            std::max(kernel.info.dynamicSharedAlignment, d.alignment);
        dynamicNames.push_back(d.name);
        kernel.hasDynamicShared = true;
        continue;
      }
      paramSymbols[d.name] = {Space::Shared,
                              sharedStart + place(c, d,
                                                  kernel.info.staticSharedBytes,
                                                  maxSharedBytes)};
      continue;
    }
    // .local, and .param variables of calls, which live in local memory.
    scopes.back().symbols[d.name] = {
        Space::Local, place(c, d, kernel.info.localBytes, maxLocalBytes)};
  } while (c.eat(","));
  c.expect(";");
}

/// Dynamic shared memory starts after the static part, so all .shared
/// variables of the body are looked at first.
void KernelParser::collectShared() {
  size_t start = c.pos;
  for (int depth = 1; depth;) {
    if (c.peek().kind == Token::End)
      c.fail("expected '}'");
    if (c.eat(".shared")) {
      declareMemory(Space::Shared);
      continue;
    }
    depth += c.is("{");
    depth -= c.is("}");
    ++c.pos;
  }
  c.pos = start;
  u32 dynamic = alignTo(sharedStart + kernel.info.staticSharedBytes,
                        kernel.info.dynamicSharedAlignment);
  dynamicNames.insert(dynamicNames.end(), module.dynamicNames.begin(),
                      module.dynamicNames.end());
  for (const std::string &name : dynamicNames)
    paramSymbols[name] = {Space::Shared, dynamic};
}

void KernelParser::params() {
  KernelInfo &info = kernel.info;
  if (!c.eat("("))
    return;
  while (!c.eat(")")) {
    c.expect(".param");
    Declaration d = parseDeclaration(c);
    u32 size = u32(d.elementSize * d.count), declared = d.alignment;
    // .ptr .align describes what is pointed at.
    if ((d.count == 1 && d.type.kind != 'b') || size == 8)
      d.alignment = size;
    u32 offset = place(c, d, info.parameterBytes, maxParameterBytes);
    info.parameters.push_back({d.name, offset, size, declared});
    paramSymbols[d.name] = {Space::Param, offset};
    c.eat(",");
  }
}

void KernelParser::attributes() {
  while (!c.is("{")) {
    std::string directive = c.name();
    if (directive == ".maxntid" || directive == ".reqntid") {
      std::array<u32, 3> block = {1, 1, 1};
      size_t dim = 0;
      do
        block[std::min<size_t>(dim++, 2)] = u32(c.integer());
      while (c.eat(","));
      kernel.info.maxThreads = block[0] * block[1] * block[2];
      if (directive == ".reqntid")
        kernel.info.requiredBlock = block;
    } else if (directive == ".reqnctapercluster" ||
               directive == ".explicitcluster") {
      u64 blocks = 1;
      while (c.peek().kind == Token::Number) {
        blocks *= u64(c.integer());
        c.eat(",");
      }
      if (blocks != 1)
        refuse(directive.substr(1) + " (clusters of blocks)", c.peek().line);
    } else {
      while (c.peek().kind == Token::Number || c.is(","))
        ++c.pos;
    }
  }
}

void KernelParser::refuse(const std::string &what, u32 line) {
  kernel.info.unsupported.push_back("line " + std::to_string(line) + ": " +
                                    what);
}

Operand KernelParser::simpleOperand() {
  Operand o;
  if (c.eat("{")) {
    o.kind = Operand::Vec;
    do
      o.elements.push_back(operand());
    while (c.eat(","));
    c.expect("}");
    return o;
  }
  if (c.eat("[")) {
    o.kind = Operand::Addr;
    if (c.peek().kind == Token::Number || c.is("-"))
      o.offset = c.integer();
    else
      o.elements.push_back(operand());
    if (c.eat("+"))
      o.offset += c.integer();
    else if (c.eat("-"))
      o.offset -= c.integer();
    if (c.eat(",")) // a tensor map with coordinates: tell it apart
      while (!c.is("]")) {
        o.elements.push_back(operand());
        c.eat(",");
      }
    c.expect("]");
    return o;
  }
  if (c.eat("!")) {
    o = operand();
    o.negated = !o.negated;
    return o;
  }
  if (c.eat("-")) {
    o = operand();
    o.imm = o.isDouble  ? o.imm ^ 1ull << 63
            : o.isFloat ? o.imm ^ 1ull << 31
                        : 0 - o.imm;
    return o;
  }
  if (c.eat("~")) {
    o = operand();
    o.imm = ~o.imm;
    return o;
  }
  if (c.eat("(")) { // constant expressions of one operand
    o = operand();
    c.expect(")");
    return o;
  }
  if (c.peek().kind == Token::Number) {
    o.imm = c.peek().value;
    o.isFloat = c.peek().isFloat;
    o.isDouble = c.peek().isDouble;
    ++c.pos;
    return o;
  }
  static const std::map<std::string, int> special = {
      {"%tid.x", TidX},
      {"%tid.y", TidY},
      {"%tid.z", TidZ},
      {"%ntid.x", NTidX},
      {"%ntid.y", NTidY},
      {"%ntid.z", NTidZ},
      {"%ctaid.x", CtaIdX},
      {"%ctaid.y", CtaIdY},
      {"%ctaid.z", CtaIdZ},
      {"%nctaid.x", NCtaIdX},
      {"%nctaid.y", NCtaIdY},
      {"%nctaid.z", NCtaIdZ},
      {"%laneid", LaneId},
      {"%warpid", WarpId},
      {"%nwarpid", NWarpId},
      {"%lanemask_lt", LaneMaskLt},
      {"%lanemask_le", LaneMaskLe},
      {"%lanemask_eq", LaneMaskEq},
      {"%lanemask_ge", LaneMaskGe},
      {"%lanemask_gt", LaneMaskGt},
      {"%dynamic_smem_size", DynamicSharedSize},
      {"%total_smem_size", TotalSharedSize},
      {"%clock", Zero},
      {"%clock_hi", Zero},
      {"%clock64", Zero},
      {"%globaltimer", Zero},
      {"%globaltimer_lo", Zero},
      {"%smid", Zero},
      {"%gridid", Zero},
      {"%cluster_ctarank", Zero},
      {"%cluster_ctaid.x", Zero},
      {"%cluster_ctaid.y", Zero},
      {"%cluster_ctaid.z", Zero}};
  std::string name = c.name();
  if (name == "_") {
    o.kind = Operand::Sink;
    return o;
  }
  if (name == "WARP_SZ") {
    o.imm = 32;
    return o;
  }
  auto it = special.find(name);
  if (it != special.end()) {
    o.kind = Operand::Special;
    o.id = it->second;
    return o;
  }
  int id = lookup(name);
  if (id >= 0) {
    o.kind = Operand::Reg;
    o.id = id;
  } else if (id <= -2) {
    o.kind = Operand::Pred;
    o.id = -2 - id;
  } else {
    o.kind = Operand::Sym;
    o.name = name;
  }
  return o;
}

Operand KernelParser::operand() {
  if (++operandDepth > int(maxDepth))
    c.fail("expected at most " + std::to_string(maxDepth) +
           " operands inside each other");
  Operand o = simpleOperand();
  if (c.eat("|")) {
    Operand second = operand();
    if (second.kind != Operand::Pred && second.kind != Operand::Sink)
      c.fail("expected a predicate behind '|' in front of this");
    o.id2 = second.kind == Operand::Sink ? -1 : second.id;
  }
  --operandDepth;
  return o;
}

std::vector<int> KernelParser::scopeChain() const {
  std::vector<int> chain;
  for (size_t n = scopes.size(); n-- > 0;)
    chain.push_back(scopes[n].id);
  return chain;
}

void KernelParser::branchTo(const Operand &target, u32 line, int table,
                            int entry) {
  fixups.push_back(
      {kernel.code.size(), table, entry, scopeChain(), target.name, line});
}

bool KernelParser::lower(const Statement &s, Instr &i) {
  using Lower = bool (*)(Builder &, const Statement &, Instr &);
  static const Lower all[] = {lowerInteger,   lowerFloat,     lowerConversion,
                              lowerPredicate, lowerMemory,    lowerMatrix,
                              lowerWarpWide,  lowerAsyncCopy, lowerAtomic};
  const Instr fresh = i;
  widerRegisters =
      s.op() == "cvt" || s.op() == "ld" || s.op() == "st" || s.op() == "ldu";
  for (Lower one : all) {
    i = fresh;
    if (one(*this, s, i))
      return true;
  }
  i = fresh;
  return false;
}

void KernelParser::instruction(const std::string &op, int guard, bool negated,
                               u32 line) {
  currentLine = line;
  if (op == "call" || op.rfind("call.", 0) == 0) {
    if (guard < 0) {
      call(op, line);
      return;
    }
    // The lanes that do not call branch around the body.
    Operand skip;
    skip.name = "$skip" + std::to_string(kernel.code.size());
    Instr around;
    around.line = line;
    around.guard = u16(guard);
    around.guardNeg = !negated;
    around.control = Control::Branch;
    around.cls = InstrClass::Branch;
    branchTo(skip, line);
    kernel.code.push_back(around);
    call(op, line);
    labels[{scopes.back().id, skip.name}] = int(kernel.code.size());
    return;
  }
  Statement s;
  s.text = op;
  s.line = line;
  for (size_t b = 0; b <= op.size();) {
    size_t e = op.find('.', b);
    if (e == std::string::npos)
      e = op.size();
    s.parts.push_back(op.substr(b, e - b));
    b = e + 1;
  }
  if (!c.is(";"))
    do
      s.operands.push_back(operand());
    while (c.eat(","));
  c.expect(";");
  Instr i;
  i.line = line;
  if (guard >= 0) {
    i.guard = u16(guard);
    i.guardNeg = negated;
  }
  bool returns = s.op() == "ret" && !callStack.empty();
  if (s.op() == "bra" || returns) {
    i.control = Control::Branch;
    i.cls = InstrClass::Branch;
    Operand end;
    end.name = "$return";
    branchTo(returns || s.operands.empty() ? end : s.operands[0], line);
  } else if (s.op() == "brx") {
    const std::vector<std::string> *targets = nullptr;
    for (size_t n = scopes.size(); n-- > 0 && !targets;) {
      auto it = scopes[n].branchTargets.find(
          s.operands.size() == 2 ? s.operands[1].name : "");
      if (it != scopes[n].branchTargets.end())
        targets = &it->second;
    }
    if (!targets)
      throw SyntaxError("brx.idx needs a list declared by .branchtargets");
    i.control = Control::BranchTable;
    i.cls = InstrClass::Branch;
    i.s[0] = source(s.operands[0], 1);
    i.ns = 1;
    i.imm = s64(kernel.branchTables.size());
    for (size_t n = 0; n < targets->size(); ++n) {
      Operand target;
      target.name = (*targets)[n];
      branchTo(target, line, int(i.imm), int(n));
    }
    kernel.branchTables.emplace_back(targets->size());
  } else if (!lower(s, i)) {
    i.control = Control::Unsupported;
    i.cls = InstrClass::Other;
    refuse(op, line);
  }
  for (int n = 0; n < i.nd; ++n)
    if (i.d[n] < registers.size() && registers[i.d[n]].units == 2)
      i.wide |= u8(1 << n);
  if (kernel.code.size() >= maxInstructions)
    throw SyntaxError("expected at most " + std::to_string(maxInstructions) +
                      " instructions, those of called functions included");
  kernel.code.push_back(i);
}

//===----------------------------------------------------------------------===//
// Calls
//===----------------------------------------------------------------------===//

void KernelParser::call(const std::string &op, u32 line) {
  std::vector<std::string> results, arguments;
  auto list = [&](std::vector<std::string> &names) {
    c.expect("(");
    while (!c.eat(")")) {
      names.push_back(c.name());
      c.eat(",");
    }
  };
  if (c.is("(")) {
    list(results);
    c.expect(",");
  }
  std::string name = c.name();
  if (c.eat(",") && c.is("("))
    list(arguments);
  c.skipTo(";"); // a prototype or target list of an indirect call
  if (name[0] == '%') {
    refuse(op + " through a register (indirect call)", line);
    return;
  }
  auto it = module.functions.find(name);
  if (it == module.functions.end() || !it->second.body) {
    refuse(op + " of " + name + ", which this module only declares", line);
    return;
  }
  if (std::find(callStack.begin(), callStack.end(), name) != callStack.end()) {
    refuse(op + " of " + name + " (recursion)", line);
    return;
  }
  if (callStack.size() == maxDepth)
    c.fail("expected at most " + std::to_string(maxDepth) +
           " calls inside each other");
  inlineFunction(name, it->second, results, arguments, line);
}

void KernelParser::inlineFunction(const std::string &name, const Function &f,
                                  const std::vector<std::string> &results,
                                  const std::vector<std::string> &arguments,
                                  u32 line) {
  if (results.size() != f.results.size() || arguments.size() != f.params.size())
    throw SyntaxError(
        "call of " + name + " has " + std::to_string(arguments.size()) +
        " arguments and " + std::to_string(results.size()) +
        " results, but the function has " + std::to_string(f.params.size()) +
        " and " + std::to_string(f.results.size()));
  // Formal parameters are other names of the caller's .param variables.
  Scope scope;
  scope.id = scopeCount++;
  for (size_t n = 0; n < results.size(); ++n)
    scope.symbols[f.results[n].name] = symbol(results[n]);
  for (size_t n = 0; n < arguments.size(); ++n)
    scope.symbols[f.params[n].name] = symbol(arguments[n]);
  // The function sees its own names and the module's, not the caller's.
  std::vector<Scope> callerScopes;
  callerScopes.swap(scopes);
  scopes.push_back(scope);
  callStack.push_back(name);
  const std::string caller = kernel.regionStarts.back().second;
  startRegion(name);
  size_t resume = c.pos;
  c.pos = f.body;
  c.expect("{");
  scopes.push_back({});
  scopes.back().id = scopeCount++;
  block(1);
  labels[{scope.id, "$return"}] = int(kernel.code.size());
  c.pos = resume;
  callStack.pop_back();
  scopes.swap(callerScopes);
  Instr nothing; // gives the return label an instruction
  nothing.line = line;
  nothing.cls = InstrClass::Other;
  nothing.taint = TaintRule::Own;
  nothing.fn = [](Warp &, const Instr &) {};
  startRegion(caller + " after " + name);
  kernel.code.push_back(nothing);
}

//===----------------------------------------------------------------------===//
// Bodies
//===----------------------------------------------------------------------===//

/// Statements until the scope depth is back to `outerDepth`.
void KernelParser::block(size_t outerDepth) {
  while (scopes.size() > outerDepth) {
    if (c.peek().kind == Token::End)
      c.fail("expected '}'");
    if (c.eat("{")) {
      if (scopes.size() == maxDepth)
        c.fail("expected at most " + std::to_string(maxDepth) +
               " blocks inside each other");
      scopes.push_back({});
      scopes.back().id = scopeCount++;
    } else if (c.eat("}")) {
      scopes.pop_back();
    } else if (!c.eat(";")) {
      statement();
    }
  }
}

void KernelParser::statement() {
  u32 line = c.peek().line;
  if (c.eat("@")) {
    bool negated = c.eat("!");
    std::string name = c.name();
    int id = lookup(name);
    if (id > -2)
      c.fail("'" + name + "' is not a predicate; expected one behind @");
    std::string op = c.name();
    instruction(op, -2 - id, negated, line);
    return;
  }
  std::string word = c.name();
  if (word == ".reg") {
    declareRegisters();
  } else if (word == ".shared") { // collectShared has read it
    c.skipTo(";");
  } else if (word == ".local" || word == ".param") {
    declareMemory(Space::Local);
  } else if (word == ".loc") {
    while (c.peek().line == line && c.peek().kind != Token::End)
      ++c.pos;
  } else if (word == ".pragma") {
    c.skipTo(";");
  } else if (word == ".branchtargets" || word == ".callprototype" ||
             word == ".calltargets") {
    c.skipTo(";");
  } else if (word[0] == '.') {
    --c.pos;
    c.fail("expected a statement");
  } else if (c.eat(":")) {
    if (c.eat(".branchtargets")) {
      std::vector<std::string> &targets = scopes.back().branchTargets[word];
      do
        targets.push_back(c.name());
      while (c.eat(","));
      c.expect(";");
    } else if (c.is(".callprototype") || c.is(".calltargets")) {
      c.skipTo(";");
    } else {
      labels[{scopes.back().id, word}] = int(kernel.code.size());
      startRegion(callStack.empty() ? word : callStack.back() + ":" + word);
    }
  } else {
    instruction(word, -1, false, line);
  }
}

void KernelParser::body() {
  c.expect("{");
  scopes.push_back({});
  scopes.back().id = scopeCount++;
  collectShared();
  startRegion("entry");
  try {
    block(0);
    finish();
  } catch (const SyntaxError &e) {
    // What the lowering functions throw has no line yet.
    std::string text = e.what();
    if (text.rfind("line ", 0) != 0)
      text = "line " + std::to_string(currentLine) + ": " + text;
    throw SyntaxError(text);
  }
}

void KernelParser::finish() {
  Instr end; // falling off the end
  end.control = Control::Exit;
  end.cls = InstrClass::Branch;
  kernel.code.push_back(end);
  kernel.leader.assign(kernel.code.size() + 1, 0);
  kernel.leader[0] = 1;
  for (const Fixup &f : fixups) {
    int pc = -1;
    for (int scope : f.chain) {
      auto it = labels.find({scope, f.name});
      if (it != labels.end()) {
        pc = it->second;
        break;
      }
    }
    if (pc < 0)
      throw SyntaxError("line " + std::to_string(f.line) + ": unknown label '" +
                        f.name + "'");
    if (f.table >= 0)
      kernel.branchTables[size_t(f.table)][size_t(f.entry)] = pc;
    else
      kernel.code[f.instr].imm = pc;
    kernel.leader[size_t(pc)] = 1;
    kernel.leader[f.instr + 1] = 1;
  }
  kernel.info.instructions = u32(kernel.code.size()) - 1;
  if (kernel.numPredicates >= specialId)
    throw SyntaxError("expected fewer than 50,000 predicates");
  kernel.info.virtualRegisters = u32(registers.size());
  if (kernel.info.unsupported.empty())
    allocateRegisters(kernel, registers);
}

} // namespace

kvcache::Expected<ModuleImpl>
kvcache::ptx::parseModule(std::string_view text, const std::string &name) {
  ModuleImpl module;
  module.name = name;
  for (size_t b = 0; b < text.size();) {
    size_t e = text.find('\n', b);
    if (e == std::string_view::npos)
      e = text.size();
    module.lines.emplace_back(text.substr(b, e - b));
    b = e + 1;
  }
  try {
    std::vector<Token> tokens = tokenize(text);
    ModuleParser parser(module, tokens);
    parser.parse();
  } catch (const SyntaxError &e) {
    return kvcache::makeError(name + ": " + e.what());
  }
  return module;
}
