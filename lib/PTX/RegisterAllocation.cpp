//===- RegisterAllocation.cpp - Few slots for many registers --------------===//
//
// Liveness per thread and a linear scan that packs virtual registers, so that
// a warp's registers stay in the L1/L2 cache. Writes are masked by lane, so
// per-thread liveness is enough even when lanes diverge.
//
//===----------------------------------------------------------------------===//

#include "Statement.h"

#include <algorithm>

using namespace kvcache::ptx;

namespace {

void nothing(Warp &, const Instr &) {}

/// A register with one, unguarded definition "mov immediate" is replaced by
/// the constant at its uses (asm operands are full of these), one that copies
/// another by that one. The moves themselves stay: counters show the PTX as
/// written.
void propagate(Kernel &k, const std::vector<VirtualRegister> &regs) {
  const u32 count = u32(regs.size());
  std::vector<int> defs(count, 0);
  std::vector<u16> value(count, none), copyOf(count, none);
  for (const Instr &i : k.code)
    for (u16 d : i.d)
      if (d < count) {
        ++defs[d];
        bool constant = i.isMove && i.guard == none && i.s[0] >= constantId &&
                        i.s[0] != none;
        value[d] = constant ? i.s[0] : none;
      }
  for (Instr &i : k.code) {
    for (u16 &s : i.s)
      if (s < count && defs[s] == 1 && value[s] != none &&
          k.constants[value[s] - constantId].units == regs[s].units)
        s = value[s];
    specialise(i, k);
  }
  for (const Instr &i : k.code)
    if (i.isMove && i.guard == none && i.d[0] < count && defs[i.d[0]] == 1 &&
        i.s[0] < count && defs[i.s[0]] == 1 &&
        regs[i.s[0]].units == regs[i.d[0]].units)
      copyOf[i.d[0]] = i.s[0];
  for (Instr &i : k.code)
    for (u16 &s : i.s)
      for (int hop = 0; s < count && copyOf[s] != none && hop < 64; ++hop)
        s = copyOf[s];
  std::vector<u8> used(count, 0);
  for (const Instr &i : k.code)
    for (u16 s : i.s)
      if (s < count)
        used[s] = 1;
  for (Instr &i : k.code) { // moves whose results nobody reads
    if (i.cls != InstrClass::Move || i.control != Control::Plain)
      continue;
    bool any = false;
    for (int n = 0; n < i.nd; ++n)
      any |= i.d[n] < count && used[i.d[n]];
    if (!any) {
      i.fn = nothing;
      i.taint = TaintRule::Own;
      i.ns = i.nd = 0;
      std::fill(i.s, i.s + 10, none);
      std::fill(i.d, i.d + 8, none);
    } else if (i.nd > 1) {
      for (u16 &d : i.d)
        if (d < count && !used[d])
          d = none;
    }
  }
}

using Set = std::vector<u64>;
bool has(const Set &s, int n) { return s[size_t(n) >> 6] >> (n & 63) & 1; }
void put(Set &s, int n) { s[size_t(n) >> 6] |= 1ull << (n & 63); }

struct Block {
  int first, last;
  Set use, def, in, out;
};

/// Data registers are numbered as they are, predicates after them.
struct Liveness {
  Kernel &k;
  int numRegisters, numValues;
  std::vector<Block> blocks;
  std::vector<int> blockOf;

  template <class F> void uses(const Instr &i, F f) const {
    for (u16 s : i.s)
      if (s < numRegisters)
        f(int(s));
    if (i.ps != none)
      f(numRegisters + i.ps);
    if (i.guard != none)
      f(numRegisters + i.guard);
    if (i.taint == TaintRule::Logic)
      for (int n = 0; n < 2; ++n)
        if (u16 id = u16(i.imm >> (16 * n)); id != none)
          f(numRegisters + id);
  }
  template <class F> void defs(const Instr &i, F f) const {
    for (u16 d : i.d)
      if (d < numRegisters)
        f(int(d));
    for (u16 p : i.pd)
      if (p != none)
        f(numRegisters + p);
  }

  Liveness(Kernel &kernel, int registers)
      : k(kernel), numRegisters(registers),
        numValues(registers + int(kernel.numPredicates)) {
    const int n = int(k.code.size());
    const size_t words = size_t(numValues + 63) / 64;
    blockOf.resize(size_t(n));
    for (int pc = 0; pc < n; ++pc) {
      if (k.leader[size_t(pc)])
        blocks.push_back(
            {pc, pc, Set(words), Set(words), Set(words), Set(words)});
      blocks.back().last = pc;
      blockOf[size_t(pc)] = int(blocks.size()) - 1;
      Block &b = blocks.back();
      const Instr &i = k.code[size_t(pc)];
      uses(i, [&](int r) {
        if (!has(b.def, r))
          put(b.use, r);
      });
      // A guarded write keeps the old value in some lanes.
      if (i.guard == none)
        defs(i, [&](int r) { put(b.def, r); });
    }
    for (bool again = true; again;) {
      again = false;
      for (size_t b = blocks.size(); b-- > 0;)
        again |= update(blocks[b], words);
    }
  }

  bool update(Block &b, size_t words) {
    const Instr &i = k.code[size_t(b.last)];
    Set out(words);
    auto add = [&](int pc) {
      if (pc >= int(k.code.size()))
        return;
      const Set &in = blocks[size_t(blockOf[size_t(pc)])].in;
      for (size_t w = 0; w < words; ++w)
        out[w] |= in[w];
    };
    bool leaves = i.control == Control::Branch ||
                  i.control == Control::BranchTable ||
                  i.control == Control::Exit || i.control == Control::Trap;
    if (i.control == Control::Branch)
      add(int(i.imm));
    if (i.control == Control::BranchTable)
      for (s32 pc : k.branchTables[size_t(i.imm)])
        add(pc);
    if (!leaves || i.guard != none)
      add(b.last + 1);
    b.out = out;
    bool changed = false;
    for (size_t w = 0; w < words; ++w) {
      u64 x = b.use[w] | (out[w] & ~b.def[w]);
      changed |= x != b.in[w];
      b.in[w] = x;
    }
    return changed;
  }
};

} // namespace

void kvcache::ptx::allocateRegisters(Kernel &k,
                                     const std::vector<VirtualRegister> &regs) {
  propagate(k, regs);
  const int n = int(k.code.size()), count = int(regs.size());
  Liveness live(k, count);
  std::vector<int> lo(size_t(count), n), hi(size_t(count), -1);
  auto touch = [&](int r, int pc) {
    if (r >= count)
      return;
    lo[size_t(r)] = std::min(lo[size_t(r)], pc);
    hi[size_t(r)] = std::max(hi[size_t(r)], pc);
  };
  for (int pc = 0; pc < n; ++pc) {
    const Instr &i = k.code[size_t(pc)];
    live.uses(i, [&](int r) { touch(r, pc); });
    live.defs(i, [&](int r) { touch(r, pc); });
  }
  for (const Block &b : live.blocks)
    for (int r = 0; r < count; ++r) {
      if (has(b.in, r))
        touch(r, b.first);
      if (has(b.out, r))
        touch(r, b.last);
    }
  std::vector<int> order;
  for (int r = 0; r < count; ++r)
    if (hi[size_t(r)] >= 0)
      order.push_back(r);
  std::sort(order.begin(), order.end(),
            [&](int a, int b) { return lo[size_t(a)] < lo[size_t(b)]; });
  std::vector<u16> slot(size_t(count), 0);
  std::vector<u16> freeSlots[3];
  std::vector<int> active;
  u32 used[3] = {0, 0, 0};
  for (int r : order) {
    int units = regs[size_t(r)].units;
    for (size_t a = 0; a < active.size();) {
      size_t q = size_t(active[a]);
      if (hi[q] < lo[size_t(r)]) {
        freeSlots[regs[q].units].push_back(slot[q]);
        active[a] = active.back();
        active.pop_back();
      } else {
        ++a;
      }
    }
    if (!freeSlots[units].empty()) {
      slot[size_t(r)] = freeSlots[units].back();
      freeSlots[units].pop_back();
    } else {
      slot[size_t(r)] = u16(used[units]);
      used[units] += u32(units);
    }
    active.push_back(r);
  }
  k.wideBase = used[1];
  k.registerUnits = used[1] + used[2];
  k.specialBase = k.registerUnits;
  k.constantBase = k.specialBase + numSpecialRegisters;
  u32 next = k.constantBase;
  for (const Constant &c : k.constants) {
    k.constantUnit.push_back(next);
    next += c.units;
  }
  if (next >= specialId)
    throw SyntaxError("kernel " + k.info.name + " needs " +
                      std::to_string(next) +
                      " register slots; expected fewer than 50,000");
  k.totalUnits = next;
  auto place = [&](u16 x) -> u16 {
    if (x == none)
      return none;
    if (x >= constantId)
      return u16(k.constantUnit[size_t(x - constantId)]);
    if (x >= specialId)
      return u16(k.specialBase + x - specialId);
    return u16(regs[x].units == 2 ? used[1] + slot[x] : slot[x]);
  };
  const Set &entry = live.blocks[0].in;
  for (int r = 0; r < count; ++r)
    if (has(entry, r) && hi[size_t(r)] >= 0)
      k.liveInSlots.push_back(place(u16(r)));
  for (u32 p = 0; p < k.numPredicates; ++p)
    if (has(entry, count + int(p)))
      k.liveInPredicates.push_back(u16(p));
  for (Instr &i : k.code) {
    for (u16 &d : i.d)
      d = place(d);
    for (u16 &s : i.s)
      s = place(s);
  }
}
