//===- Report.cpp - What kvcache-run prints -------------------------------===//

#include "Report.h"
#include "kvcache/Support/Files.h"
#include "kvcache/Support/Json.h"

#include <algorithm>
#include <cstdio>

namespace kvcache::run {

namespace {

std::string number(double value, const char *format) {
  char text[48];
  std::snprintf(text, sizeof(text), format, value);
  return text;
}

/// Rows of cells, columns as wide as their widest cell; the first `left`
/// columns are aligned to the left.
class Table {
public:
  explicit Table(size_t left) : left(left) {}
  void row(std::vector<std::string> cells) { rows.push_back(std::move(cells)); }

  void print(std::ostream &out) const {
    std::vector<size_t> widths;
    for (const auto &cells : rows)
      for (size_t i = 0; i < cells.size(); ++i) {
        widths.resize(std::max(widths.size(), i + 1));
        widths[i] = std::max(widths[i], cells[i].size());
      }
    for (const auto &cells : rows) {
      std::string line;
      for (size_t i = 0; i < cells.size(); ++i) {
        std::string padding(widths[i] - cells[i].size(), ' ');
        line += (i ? "  " : "") +
                (i < left ? cells[i] + padding : padding + cells[i]);
      }
      line.erase(line.find_last_not_of(' ') + 1);
      out << line << "\n";
    }
  }

private:
  size_t left;
  std::vector<std::vector<std::string>> rows;
};

std::string count(uint64_t value, const std::string &noun) {
  return std::to_string(value) + " " + noun + (value == 1 ? "" : "s");
}

JsonValue sharedJson(const ptx::Counters::Shared &shared) {
  JsonValue object = JsonValue::object();
  object.set("wavefronts", shared.wavefronts);
  object.set("ideal", shared.ideal);
  object.set("bytes", shared.bytes);
  return object;
}

JsonValue globalJson(const ptx::Counters::Global &global) {
  JsonValue object = JsonValue::object();
  object.set("requests", global.requests);
  object.set("sectors", global.sectors);
  object.set("bytes", global.bytes);
  return object;
}

JsonValue countersJson(const KernelCounts &counts) {
  JsonValue object = JsonValue::object();
  object.set("kernel", counts.kernel);
  object.set("layer", counts.layer);
  object.set("op", counts.op);
  object.set("launches", counts.launches);
  object.set("instructions", counts.counters.instructions);
  JsonValue classes = JsonValue::object();
  for (unsigned i = 0; i < ptx::numInstrClasses; ++i)
    if (counts.counters.byClass[i])
      classes.set(ptx::instrClassName(ptx::InstrClass(i)),
                  counts.counters.byClass[i]);
  object.set("by_class", std::move(classes));
  object.set("active_lanes", counts.counters.activeLanes);
  object.set("global_load", globalJson(counts.counters.globalLoad));
  object.set("global_store", globalJson(counts.counters.globalStore));
  object.set("async_copy", globalJson(counts.counters.asyncCopy));
  object.set("atomic_requests", counts.counters.atomicRequests);
  object.set("shared_load", sharedJson(counts.counters.sharedLoad));
  object.set("shared_store", sharedJson(counts.counters.sharedStore));
  object.set("ldmatrix", sharedJson(counts.counters.ldmatrix));
  object.set("async_write", sharedJson(counts.counters.asyncWrite));
  return object;
}

JsonValue layerJson(const LayerVerification &layer) {
  JsonValue object = JsonValue::object();
  object.set("layer", layer.layer);
  object.set("verified", layer.good());
  object.set("codes_compared", layer.codesCompared);
  object.set("codes_wrong", layer.codesWrong);
  object.set("bytes_disturbed", layer.bytesDisturbed);
  object.set("outputs_compared", layer.outputsCompared);
  object.set("outputs_wrong", layer.outputsWrong);
  object.set("max_error", layer.maxError);
  object.set("max_error_over_tolerance", layer.maxToleranceShare);
  object.set("max_lse_error", layer.maxLseError);
  return object;
}

JsonValue dim3Json(const ptx::Dim3 &dim) {
  JsonValue array = JsonValue::array();
  array.push(dim.x);
  array.push(dim.y);
  array.push(dim.z);
  return array;
}

JsonValue findingJson(const ptx::Finding &finding) {
  JsonValue object = JsonValue::object();
  object.set("kind", ptx::findingKindName(finding.kind));
  object.set("kernel", finding.kernel);
  object.set("line", finding.line);
  object.set("text", finding.text);
  object.set("block", dim3Json(finding.block));
  object.set("thread", dim3Json(finding.thread));
  object.set("address", number(double(finding.address), "%.0f"));
  object.set("buffer", finding.buffer);
  object.set("message", finding.message);
  object.set("count", finding.count);
  return object;
}

std::vector<std::string> errorTexts(const RunSummary &summary) {
  std::vector<std::string> errors = summary.faults;
  for (const LayerVerification &layer : summary.layers)
    errors.insert(errors.end(), layer.errors.begin(), layer.errors.end());
  return errors;
}

void printVerification(std::ostream &out, const RunSummary &summary) {
  Table table(1);
  table.row({"layer", "codes", "wrong", "disturbed", "outputs", "wrong",
             "max error", "of tolerance", "max LSE error"});
  for (const LayerVerification &layer : summary.layers)
    table.row(
        {layer.layer, std::to_string(layer.codesCompared),
         std::to_string(layer.codesWrong), std::to_string(layer.bytesDisturbed),
         std::to_string(layer.outputsCompared),
         std::to_string(layer.outputsWrong), number(layer.maxError, "%.3g"),
         number(layer.maxToleranceShare, "%.3f"),
         number(layer.maxLseError, "%.2g")});
  table.print(out);
  out << "\n";
}

void printCounters(std::ostream &out, const RunSummary &summary) {
  Table table(2);
  table.row({"kernel", "layer", "launches", "warp instr", "lanes", "loads",
             "sectors", "cp.async", "sectors", "bank conflicts"});
  for (const KernelCounts &entry : summary.kernels) {
    const ptx::Counters &counts = entry.counters;
    double lanes = counts.instructions ? double(counts.activeLanes) /
                                             double(counts.instructions)
                                       : 0;
    auto conflicts = [](const ptx::Counters::Shared &shared) {
      return shared.wavefronts - shared.ideal;
    };
    table.row({entry.kernel, entry.layer, std::to_string(entry.launches),
               std::to_string(counts.instructions), number(lanes, "%.1f"),
               std::to_string(counts.globalLoad.requests),
               std::to_string(counts.globalLoad.sectors),
               std::to_string(counts.asyncCopy.requests),
               std::to_string(counts.asyncCopy.sectors),
               std::to_string(conflicts(counts.sharedLoad) +
                              conflicts(counts.sharedStore) +
                              conflicts(counts.ldmatrix) +
                              conflicts(counts.asyncWrite))});
  }
  table.print(out);
  out << "\n";
}

std::string gridText(const std::array<int64_t, 3> &grid) {
  return std::to_string(grid[0]) + "x" + std::to_string(grid[1]) + "x" +
         std::to_string(grid[2]);
}

/// The program, and the buckets of it that ran in its place.
std::string stepsText(const RunSummary &summary) {
  std::string text = summary.program;
  std::vector<std::string> names;
  for (const std::string &name : summary.stepPrograms)
    if (std::find(names.begin(), names.end(), name) == names.end())
      names.push_back(name);
  if (names.empty() || (names.size() == 1 && names[0] == summary.program))
    return text;
  for (size_t i = 0; i < names.size(); ++i)
    text += (i ? ", " : " (ran ") + names[i];
  return text + ")";
}

/// With "run", or the number of the replay from 1.
std::string replayText(const LaunchTime &time) {
  return time.replay < 0 ? "run" : "replay " + std::to_string(time.replay + 1);
}

void printProfile(std::ostream &out, const RunSummary &summary) {
  Table table(6);
  table.row({"step", "", "segment", "kernel", "layer", "grid", "microseconds",
             "warp instr"});
  for (const LaunchTime &time : summary.launchTimes)
    table.row({std::to_string(time.step), replayText(time), time.segment,
               time.kernel, time.layer, gridText(time.grid),
               number(time.seconds * 1e6, "%.1f"),
               std::to_string(time.instructions)});
  table.print(out);
  out << "\n";
}

} // namespace

Error writeTrace(const std::string &path, const RunSummary &summary) {
  JsonValue events = JsonValue::array();
  std::vector<std::string> segments;
  for (const LaunchTime &time : summary.launchTimes) {
    auto known = std::find(segments.begin(), segments.end(), time.segment);
    int64_t thread = known - segments.begin() + 1;
    if (known == segments.end()) {
      segments.push_back(time.segment);
      JsonValue name = JsonValue::object(), arguments = JsonValue::object();
      arguments.set("name", "segment " + time.segment);
      name.set("name", "thread_name");
      name.set("ph", "M");
      name.set("pid", 1);
      name.set("tid", thread);
      name.set("args", std::move(arguments));
      events.push(std::move(name));
    }
    JsonValue event = JsonValue::object(), arguments = JsonValue::object();
    event.set("name", time.kernel);
    event.set("cat", "kernel");
    event.set("ph", "X");
    event.set("ts", time.startSeconds * 1e6); // microseconds
    event.set("dur", time.seconds * 1e6);
    event.set("pid", 1);
    event.set("tid", thread);
    arguments.set("program", time.program);
    arguments.set("layer", time.layer);
    arguments.set("step", time.step);
    arguments.set("pass", replayText(time));
    arguments.set("grid", gridText(time.grid));
    arguments.set("warp_instructions", time.instructions);
    event.set("args", std::move(arguments));
    events.push(std::move(event));
  }
  JsonValue root = JsonValue::object();
  root.set("traceEvents", std::move(events));
  root.set("displayTimeUnit", "ms");
  return writeFileAtomically(path, root.print(1) + "\n");
}

void printProblems(std::ostream &out, const RunSummary &summary) {
  for (const ptx::Finding &finding : summary.findings) {
    out << "kvcache-run: finding: " << finding.str();
    if (!finding.buffer.empty())
      out << " [buffer " << finding.buffer << "]";
    if (finding.address)
      out << " [address 0x" << std::hex << finding.address << std::dec << "]";
    if (finding.count > 1)
      out << " (" << finding.count << " times)";
    out << "\n";
  }
  if (summary.findingCount > summary.findings.size())
    out << "kvcache-run: " << summary.findingCount
        << " findings in all; the first are shown\n";
  for (const std::string &error : errorTexts(summary))
    out << "kvcache-run: wrong: " << error << "\n";
}

void printTable(std::ostream &out, const CommandLine &options,
                const RunSummary &summary) {
  out << options.bundle << ": program " << stepsText(summary) << ", target "
      << summary.target << " on "
      << (summary.device == "sim" ? "the PTX machine" : summary.device)
      << ", checks: " << options.checksText << "\n\n";
  if (options.verify)
    printVerification(out, summary);
  if (options.counters)
    printCounters(out, summary);
  if (options.profile)
    printProfile(out, summary);
  out << (summary.good() ? (options.verify ? "verified" : "ran") : "WRONG")
      << ": " << count(summary.steps, "step") << ", "
      << count(summary.segmentRuns, "segment run") << ", ";
  if (options.replay)
    out << count(summary.replays, "replay") << ", ";
  out << summary.launches << (summary.launches == 1 ? " launch" : " launches")
      << ", " << summary.instructions << " warp instructions, "
      << count(summary.findingCount, "finding") << ", "
      << number(summary.runSeconds, "%.2f") << " s";
  if (summary.compileSeconds > 0)
    out << " + " << number(summary.compileSeconds, "%.2f")
        << " s to compile host code";
  if (options.verify)
    out << " + " << number(summary.verifySeconds, "%.2f") << " s to verify";
  out << "\n";
}

void printJson(std::ostream &out, const CommandLine &options,
               const RunSummary &summary) {
  JsonValue root = JsonValue::object();
  // A run that was not compared is not verified, however clean it was.
  root.set("verified", options.verify && summary.good());
  root.set("good", summary.good());
  root.set("bundle", options.bundle);
  root.set("program", summary.program);
  JsonValue programs = JsonValue::array();
  for (const std::string &name : summary.stepPrograms)
    programs.push(name);
  root.set("step_programs", std::move(programs));
  root.set("target", summary.target);
  root.set("device", summary.device);
  root.set("checks", options.checksText);
  root.set("host", options.host);
  root.set("steps", summary.steps);
  root.set("segment_runs", summary.segmentRuns);
  if (options.replay)
    root.set("replays", summary.replays);
  root.set("launches", summary.launches);
  root.set("warp_instructions", summary.instructions);
  root.set("finding_count", summary.findingCount);
  JsonValue findings = JsonValue::array();
  for (const ptx::Finding &finding : summary.findings)
    findings.push(findingJson(finding));
  root.set("findings", std::move(findings));
  JsonValue errors = JsonValue::array();
  for (const std::string &error : errorTexts(summary))
    errors.push(error);
  root.set("errors", std::move(errors));
  if (options.verify) {
    JsonValue layers = JsonValue::array();
    for (const LayerVerification &layer : summary.layers)
      layers.push(layerJson(layer));
    root.set("layers", std::move(layers));
  }
  if (options.counters) {
    JsonValue counters = JsonValue::array();
    for (const KernelCounts &counts : summary.kernels)
      counters.push(countersJson(counts));
    root.set("counters", std::move(counters));
  }
  if (options.profile) {
    JsonValue profile = JsonValue::array();
    for (const LaunchTime &time : summary.launchTimes) {
      JsonValue entry = JsonValue::object();
      entry.set("step", time.step);
      entry.set("pass", replayText(time));
      entry.set("program", time.program);
      entry.set("segment", time.segment);
      entry.set("kernel", time.kernel);
      entry.set("layer", time.layer);
      entry.set("grid", gridText(time.grid));
      entry.set("seconds", time.seconds);
      entry.set("warp_instructions", time.instructions);
      profile.push(std::move(entry));
    }
    root.set("profile", std::move(profile));
  }
  JsonValue seconds = JsonValue::object();
  seconds.set("compile", summary.compileSeconds);
  seconds.set("run", summary.runSeconds);
  seconds.set("kernels", summary.kernelSeconds);
  seconds.set("verify", summary.verifySeconds);
  root.set("seconds", std::move(seconds));
  std::string text = root.print(0);
  out << text << (text.empty() || text.back() != '\n' ? "\n" : "");
}

void printJsonFailure(std::ostream &out, const std::string &message) {
  JsonValue root = JsonValue::object();
  root.set("verified", false);
  root.set("good", false);
  JsonValue errors = JsonValue::array();
  errors.push(message);
  root.set("errors", std::move(errors));
  std::string text = root.print(0);
  out << text << (text.empty() || text.back() != '\n' ? "\n" : "");
}

} // namespace kvcache::run
