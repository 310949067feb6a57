//===- CommandLine.cpp - Options of kvcache-run ---------------------------===//

#include "CommandLine.h"
#include "../Completion.h"
#include "kvcache/Support/Migration.h"

#include <CLI/CLI.hpp>

#include <algorithm>
#include <iostream>
#include <thread>

namespace kvcache::run {

namespace {

constexpr char description[] =
    "Runs a bundle that kvcache-compile wrote.\n"
    "\n"
    "Kernels run on the PTX machine (the PTX that ships in the bundle is "
    "executed on\n"
    "the CPU, with memory, initialisation, race and synchronisation checks) or "
    "on a\n"
    "card. Tensors are named as the manifest names buffers; a file of --steps "
    "is one run, "
    "and caches\n"
    "keep their contents from run to run.";

constexpr char footer[] =
    "Inputs smaller than the bundle's capacities are padded: slots and page "
    "ids with -1,\n"
    "lengths with 0, query starts with their last value. Activations beyond "
    "their extent\n"
    "and cache slots without --cache-fill count as never written.\n"
    "\n"
    "Exit codes: 0 good, 1 wrong result, finding or bad input, 2 wrong usage.\n"
    "A wrong result is written to --outputs too; bad input leaves no file.\n"
    "\n"
    "Example: a graph over nine steps, compared with double precision\n"
    "  kvcache-run llama.bundle --host --inputs=weights.safetensors \\\n"
    "    --steps=step0.safetensors,step1.safetensors --verify "
    "--outputs=out.safetensors";

struct Check {
  const char *name;
  bool ptx::LaunchOptions::*flag;
};
constexpr Check checks[] = {{"memcheck", &ptx::LaunchOptions::memcheck},
                            {"initcheck", &ptx::LaunchOptions::initcheck},
                            {"racecheck", &ptx::LaunchOptions::racecheck},
                            {"synccheck", &ptx::LaunchOptions::synccheck}};

/// Sets the four check flags; returns what is wrong, or an empty string.
std::string parseChecks(const std::vector<std::string> &names,
                        CommandLine &into) {
  bool all = std::count(names.begin(), names.end(), "all") != 0;
  bool none = std::count(names.begin(), names.end(), "none") != 0;
  if ((all || none) && names.size() > 1)
    return "--checks: expected all or none alone";
  for (const Check &check : checks)
    into.checks.*check.flag = all;
  for (const std::string &name : names) {
    bool known = name == "all" || name == "none";
    for (const Check &check : checks)
      if (name == check.name)
        known = into.checks.*check.flag = true;
    if (!known)
      return "--checks: expected all, none, memcheck, initcheck, racecheck or "
             "synccheck, found \"" +
             name + "\"";
  }
  into.checksText.clear();
  for (const Check &check : checks)
    if (into.checks.*check.flag)
      into.checksText +=
          (into.checksText.empty() ? "" : " ") + std::string(check.name);
  if (into.checksText.empty())
    into.checksText = "none";
  return "";
}

/// A byte in decimal or, after 0x, in hexadecimal.
std::optional<uint8_t> parseByte(const std::string &text) {
  size_t used = 0;
  unsigned long value = 0;
  bool plain = !text.empty() && text[0] >= '0' && text[0] <= '9';
  try {
    if (plain)
      value = std::stoul(text, &used, 0);
  } catch (const std::exception &) {
    used = 0; // out of range
  }
  if (!plain || used != text.size() || value > 255)
    return std::nullopt;
  return uint8_t(value);
}

/// Takes --device apart; returns what is wrong, or an empty string.
std::string parseDevice(CommandLine &into) {
  std::string found = into.device;
  if (into.device.rfind("cuda:", 0) == 0) {
    std::string number = into.device.substr(5);
    if (!number.empty() && number.size() < 4 &&
        number.find_first_not_of("0123456789") == std::string::npos) {
      into.ordinal = std::stoi(number);
      into.device = "cuda";
    }
  }
  if (into.device != "sim" && into.device != "cuda")
    return "--device: expected sim, cuda or cuda:N, found \"" + found + "\"";
  if (into.device == "cuda")
    into.checksText = "none";
  return "";
}

/// Takes NAME=PAGE,TOKEN,HEAD apart; returns what is wrong, or an empty string.
std::string parseStrides(const std::string &text, CommandLine &into) {
  size_t equals = text.find('=');
  std::vector<int64_t> strides;
  for (size_t at = equals; at < text.size();) {
    size_t end = std::min(text.find(',', at + 1), text.size());
    std::string number = text.substr(at + 1, end - at - 1);
    if (number.empty() || number.size() > 15 ||
        number.find_first_not_of("0123456789") != std::string::npos)
      break;
    strides.push_back(std::stoll(number));
    at = end;
    if (end == text.size() && strides.size() == 3) {
      strides.push_back(1);
      into.strides.push_back({text.substr(0, equals), std::move(strides)});
      return "";
    }
  }
  return "--strides: expected NAME=PAGE,TOKEN,HEAD, found \"" + text + "\"";
}

int usageError(const std::string &message) {
  std::cerr << "kvcache-run: error: " << message
            << "\nkvcache-run --help lists the options\n";
  return ExitUsage;
}

} // namespace

std::optional<int> parseCommandLine(int argc, char **argv, CommandLine &into) {
  CLI::App app(description, "kvcache-run");
  app.footer(footer);
  app.set_version_flag("--version", "kvcache-run " KVCACHE_VERSION);
  app.get_formatter()->column_width(26);

  // A list is one argument with commas; what follows it is the bundle.
  auto addList = [&](const char *name, std::vector<std::string> &list,
                     const char *text, const char *type) {
    app.add_option(name, list, text)
        ->delimiter(',')
        ->allow_extra_args(false)
        ->type_name(type);
  };
  std::vector<std::string> checkNames = {"all"};
  std::string fill, countersAs;
  std::vector<std::string> lengths, strides;
  unsigned threads =
      std::max(1u, std::min(8u, std::thread::hardware_concurrency()));
  bool calculateScales = false;

  app.add_option("bundle", into.bundle, "Bundle directory")->type_name("");
  app.add_option("--target", into.target,
                 "Chip whose PTX is executed, such as sm_90; default:\n"
                 "the newest one that the PTX machine executes")
      ->type_name("CHIP");
  app.add_option("--program", into.program,
                 "Program to run; default: the only one, or main. Of its\n"
                 "buckets each step runs the smallest with room for it")
      ->type_name("NAME");
  addList("--inputs", into.inputs,
          "Safetensors files with what stays: weights, initial\n"
          "caches, tables",
          "FILE,FILE");
  addList("--steps", into.steps,
          "Safetensors files, each with the inputs of one run; a\n"
          "tensor that a file lacks keeps its value",
          "FILE,FILE");
  addList("--lengths", lengths,
          "Make inputs instead of reading them: one decode step a\n"
          "number, with sequences of that length; 8+3 gives each\n"
          "sequence its own, 0 leaves its place empty",
          "L,L");
  app.add_option("--new-tokens", into.synthetic.newTokens,
                 "With --lengths: new tokens of each sequence, as far as\n"
                 "its length goes; default: 1")
      ->type_name("N");
  app.add_flag("--poison", into.synthetic.poison,
               "With --lengths: NaN in every cache slot outside the\n"
               "lengths, and page ids far outside the pool past the end\n"
               "of each sequence");
  app.add_option("--strides", strides,
                 "Strides of a cache's page, token and head in elements,\n"
                 "of a bundle with runtime-strides; may be repeated")
      ->allow_extra_args(false)
      ->type_name("NAME=P,T,H");
  app.add_option("--replay", into.replay,
                 "Freeze each segment's launches after its first run, and\n"
                 "replay them N times after every run: any bit that\n"
                 "differs is an error")
      ->type_name("N");
  app.add_option("--device", into.device,
                 "sim (the PTX machine, default), cuda, or cuda:N for\n"
                 "card N")
      ->type_name("NAME");
  app.add_option("--driver", into.driver,
                 "Driver library of a card; default: libcuda.so.1")
      ->type_name("FILE");
  app.add_flag("--host", into.host,
               "Run the graph around the segments too (host.mlir,\n"
               "compiled in process)");
  app.add_option("--host-library", into.hostLibrary,
                 "libKVCacheHost.so to use; default: beside this\n"
                 "program or in ../lib")
      ->type_name("FILE");
  app.add_option("--outputs", into.outputs,
                 "Write activations, results and final caches; with\n"
                 "several steps those of step N are named stepN.NAME")
      ->type_name("FILE");
  app.add_flag("--verify", into.verify,
               "Compare cache codes bit for bit, and attention with\n"
               "double precision on the dequantised cache");
  app.add_flag("--counters{table}", countersAs,
               "Count instructions, sectors and bank conflicts per\n"
               "kernel; --counters=json prints them as with --json");
  app.add_flag("--profile", into.profile,
               "Print each launch with its grid, time and instructions");
  app.add_option("--trace", into.trace,
                 "Write the launches as a Chrome trace (chrome://tracing,\n"
                 "Perfetto)")
      ->type_name("FILE");
  addList("--checks", checkNames,
          "all, none, or some of memcheck, initcheck, racecheck,\n"
          "synccheck; default: all",
          "NAME,NAME");
  app.add_option("--cache-fill", fill,
                 "Value of every cache byte before the first run, such\n"
                 "as 0x7E; default: the bytes count as never written")
      ->type_name("BYTE");
  app.add_option("--threads", threads,
                 "Host threads of the PTX machine, 1 to 256")
      ->type_name("N");
  app.add_flag("--json", into.json, "Print one JSON object instead of a table");
  app.add_flag("--quiet", into.quiet, "No remarks, no progress");
  addCompletionOption(app);
  // Group "" hides it: it is only answered.
  app.add_flag("--calculate-kv-scales,--calculate_kv_scales", calculateScales)
      ->group("");

  try {
    app.parse(argc, argv);
  } catch (const CLI::Success &success) {
    return app.exit(success);
  } catch (const CLI::ParseError &error) {
    return usageError(error.what());
  }
  if (calculateScales) {
    std::cerr << calculateScalesMigration;
    return ExitUsage;
  }
  if (into.bundle.empty())
    return usageError("expected a bundle directory");
  if (std::string problem = parseChecks(checkNames, into); !problem.empty())
    return usageError(problem);
  if (!countersAs.empty() && countersAs != "table" && countersAs != "json")
    return usageError("--counters: expected table or json, found \"" +
                      countersAs + "\"");
  into.counters = !countersAs.empty();
  into.json |= countersAs == "json";
  if (std::string problem = parseDevice(into); !problem.empty())
    return usageError(problem);
  for (const std::string &text : strides)
    if (std::string problem = parseStrides(text, into); !problem.empty())
      return usageError(problem);
  if (Expected<std::vector<StepLengths>> steps = parseLengths(lengths))
    into.lengths = std::move(*steps);
  else
    return usageError(steps.message());
  if (!into.lengths.empty() && (into.host || !into.steps.empty()))
    return usageError("--lengths makes the inputs of the segments; it does not "
                      "go with --host or --steps");
  if (into.synthetic.newTokens < 1)
    return usageError("--new-tokens: expected a positive number, found " +
                      std::to_string(into.synthetic.newTokens));
  if (into.lengths.empty() &&
      (into.synthetic.poison || into.synthetic.newTokens != 1))
    return usageError("--poison and --new-tokens are about the inputs that "
                      "--lengths makes; give it too");
  if (!fill.empty()) {
    into.cacheFill = parseByte(fill);
    if (!into.cacheFill)
      return usageError("--cache-fill: expected a byte, 0 to 255 or 0x00 to "
                        "0xFF, found \"" +
                        fill + "\"");
  }
  if (threads < 1 || threads > 256)
    return usageError("--threads: expected 1 to 256, found " +
                      std::to_string(threads));
  into.checks.counters = into.counters;
  into.checks.threads = threads;
  return std::nullopt;
}

} // namespace kvcache::run
