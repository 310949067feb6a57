//===- CommandLine.h - Options of kvcache-run -------------------*- C++ -*-===//

#ifndef KVCACHE_TOOLS_RUN_COMMANDLINE_H
#define KVCACHE_TOOLS_RUN_COMMANDLINE_H

#include "Synthetic.h"
#include "kvcache/PTX/Machine.h"

#include <optional>
#include <string>
#include <vector>

namespace kvcache::run {

/// Exit codes of the tool.
enum ExitCode { ExitGood = 0, ExitFailure = 1, ExitUsage = 2 };

struct CommandLine {
  std::string bundle;
  std::string target;  // empty: the newest one that can be executed
  std::string program; // empty: the only one, or "main"
  std::vector<std::string> inputs;
  std::vector<std::string> steps;
  std::string outputs;
  std::string hostLibrary;
  std::string device = "sim"; // sim, cuda or cuda:N
  int ordinal = 0;            // of the card
  std::string driver;         // empty: libcuda.so.1
  std::string trace;          // Chrome trace to write
  // Of caches, in elements: page, token, head, 1.
  std::vector<std::pair<std::string, std::vector<int64_t>>> strides;
  std::vector<StepLengths> lengths;
  SyntheticOptions synthetic; // of --lengths
  unsigned replay = 0;
  bool profile = false;
  bool host = false;
  bool verify = false;
  bool counters = false;
  bool json = false;
  bool quiet = false;
  std::optional<uint8_t> cacheFill;
  ptx::LaunchOptions checks;
  std::string checksText; // for the report: "memcheck initcheck ..." or "none"
};

/// Parses argv. On --help, --version and errors it prints and returns the exit
/// code instead.
std::optional<int> parseCommandLine(int argc, char **argv, CommandLine &into);

} // namespace kvcache::run

#endif // KVCACHE_TOOLS_RUN_COMMANDLINE_H
