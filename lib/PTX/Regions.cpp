//===- Regions.cpp - Counts per region, and as a table --------------------===//

#include "Execution.h"

#include <algorithm>

using namespace kvcache::ptx;

static u64 executed(const Counters &c) {
  u64 all = 0;
  for (u64 n : c.byClass)
    all += n;
  return all;
}

void kvcache::ptx::fillRegions(LaunchReport &report, const Kernel &kernel,
                               const std::vector<Counters> &profile) {
  std::map<u32, Counters> lines;
  size_t start = 0;
  for (size_t pc = 0; pc < profile.size(); ++pc) {
    Counters c = profile[pc];
    c.instructions = executed(c);
    report.counters.add(c);
    if (c.instructions && kernel.code[pc].line)
      lines[kernel.code[pc].line].add(c);
    while (start + 1 < kernel.regionStarts.size() &&
           kernel.regionStarts[start + 1].first <= pc)
      ++start;
    bool first = kernel.regionStarts[start].first == pc;
    if (first) {
      report.regions.emplace_back();
      report.regions.back().name = kernel.regionStarts[start].second;
      report.regions.back().executions = c.instructions;
    }
    Region &r = report.regions.back();
    r.counters.add(c);
    if (u32 line = kernel.code[pc].line) {
      r.firstLine = r.firstLine ? std::min(r.firstLine, line) : line;
      r.lastLine = std::max(r.lastLine, line);
      ++r.instructions;
    }
  }
  auto unused = [](const Region &r) { return !r.counters.instructions; };
  report.regions.erase(
      std::remove_if(report.regions.begin(), report.regions.end(), unused),
      report.regions.end());
  for (auto &[line, counters] : lines)
    report.lines.push_back({line, counters});
}

Counters LaunchReport::between(uint32_t first, uint32_t last) const {
  Counters sum;
  for (const LineCounters &l : lines)
    if (l.line >= first && l.line <= last)
      sum.add(l.counters);
  return sum;
}

namespace {

struct Row {
  std::vector<std::string> cells;
};

std::string percent(u64 part, u64 whole) {
  char text[16];
  snprintf(text, sizeof text, "%.1f",
           whole ? 100.0 * double(part) / double(whole) : 0);
  return text;
}

std::string pair(u64 a, u64 b) {
  return a || b ? std::to_string(a) + "/" + std::to_string(b) : "-";
}

Row row(const std::string &name, const std::string &lines, u64 runs,
        const Counters &c) {
  auto of = [&](std::initializer_list<InstrClass> classes) {
    u64 n = 0;
    for (InstrClass cls : classes)
      n += c.byClass[size_t(cls)];
    return n;
  };
  u64 wavefronts = 0, ideal = 0;
  for (const Counters::Shared *s :
       {&c.sharedLoad, &c.sharedStore, &c.ldmatrix, &c.asyncWrite}) {
    wavefronts += s->wavefronts;
    ideal += s->ideal;
  }
  const u64 arithmetic =
      of({InstrClass::Int, InstrClass::Logic, InstrClass::Float,
          InstrClass::Special, InstrClass::Convert, InstrClass::Move,
          InstrClass::Predicate});
  return {{name, lines, std::to_string(runs), std::to_string(c.instructions),
           percent(c.activeLanes, 32 * c.instructions),
           std::to_string(of({InstrClass::Mma})), std::to_string(arithmetic),
           pair(c.globalLoad.sectors, c.globalLoad.requests),
           pair(c.globalStore.sectors, c.globalStore.requests),
           pair(c.asyncCopy.sectors, c.asyncCopy.requests),
           pair(wavefronts, ideal), std::to_string(of({InstrClass::Barrier})),
           std::to_string(c.divergentBranches)}};
}

} // namespace

std::string LaunchReport::table() const {
  std::vector<Row> rows = {
      {{"region", "lines", "runs", "instr", "lanes%", "mma", "arith",
        "ld sect/req", "st sect/req", "cp.async sect/req",
        "shared wavefronts/ideal", "barrier", "diverged"}}};
  rows.push_back(row("all", "-", blocks, counters));
  for (const Region &r : regions)
    rows.push_back(row(
        r.name, std::to_string(r.firstLine) + "-" + std::to_string(r.lastLine),
        r.executions, r.counters));
  std::vector<size_t> width(rows[0].cells.size(), 0);
  for (const Row &r : rows)
    for (size_t n = 0; n < r.cells.size(); ++n)
      width[n] = std::max(width[n], r.cells[n].size());
  std::string text = "Warp instructions, 32-byte sectors and wavefronts of 32 "
                     "banks: counts, not times.\n";
  for (const Row &r : rows) {
    std::string line;
    for (size_t n = 0; n < r.cells.size(); ++n) {
      std::string fill(width[n] - r.cells[n].size(), ' ');
      line += (n ? "  " : "") + (n < 2 ? r.cells[n] + fill : fill + r.cells[n]);
    }
    text += line.substr(0, line.find_last_not_of(' ') + 1) + "\n";
  }
  const Counters::InFlight &f = counters.inFlight;
  if (f.waits)
    text += "Asynchronous copies in flight, a warp (estimate): at most " +
            std::to_string(f.peak) + " bytes, " +
            std::to_string(f.atWait / f.waits) + " when it waits, " +
            std::to_string(f.waits) + " waits.\n";
  return text;
}
