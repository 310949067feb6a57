//===- kvcache-scales.cpp - What a checkpoint's KV scales are worth -------===//

#include "../Completion.h"
#include "Tool.h"
#include "kvcache/Support/Migration.h"

#include <CLI/CLI.hpp>

#include <cstdlib>
#include <iostream>

using namespace kvcache;
using namespace kvcache::scales;

namespace {

constexpr char description[] =
    "Explains, checks, compares and makes the FP8 KV-cache scales of model\n"
    "checkpoints.\n"
    "\n"
    "A checkpoint is a folder with config.json and safetensors files, or one\n"
    "such file. Scales of ModelOpt, llm-compressor (compressed-tensors), "
    "Quark,\n"
    "AutoFP8, TensorRT-LLM and old calibration files are known by their names.";

constexpr char footer[] =
    "Exit codes: 0 clean, 1 error, 2 warnings only (show: 0 with warnings;\n"
    "diff: 2 means that there are differences).\n"
    "\n"
    "Example: what does this checkpoint hold, and may it be published?\n"
    "  kvcache-scales show DIR\n"
    "  kvcache-scales show DIR --format=html -o scales.html\n"
    "  kvcache-scales check DIR serve.sh";

/// A file or folder that a command cannot do without.
template <typename Paths>
void addPath(CLI::App &app, const char *name, Paths &into, const char *text) {
  app.add_option(name, into, text)->required()->type_name("");
}

/// An option that takes values joined by commas, and may come again.
CLI::Option *addList(CLI::App &app, const char *name,
                     std::vector<std::string> &into, const char *text,
                     const char *type) {
  return app.add_option(name, into, text)
      ->delimiter(',')
      ->allow_extra_args(false)
      ->type_name(type);
}

/// Options of resolution, named as kvcache-compile names them.
void addResolveOptions(CLI::App &app, ResolveOptions &into) {
  const char *group = "Resolution (as in kvcache-compile)";
  app.add_option("--kv-cache-dtype", into.cacheWord,
                 "auto, fp8, fp8_e4m3, fp8_e5m2, fp8_e4m3fnuz,\n"
                 "bfloat16, float16, ...; default: auto")
      ->type_name("TYPE")
      ->group(group);
  addList(app, "--kv-cache-dtype-skip-layers", into.skipLayers,
          "Layers that stay unquantized: indices, sliding_window", "LAYER,...")
      ->group(group);
  app.add_option("--scale-policy", into.policy,
                 "strict: doubtful values are errors; compatible:\n"
                 "what the serving stacks make of them")
      ->type_name("POLICY")
      ->group(group);
  addList(app, "--scale-overlay", into.overlays,
          "Scale-only files (safetensors, or the JSON of old\n"
          "calibration tools); later ones win",
          "FILE,...")
      ->group(group);
  app.add_option("--scale", into.overrides,
                 "A value by hand: model.layers.0.self_attn.k=0.0123")
      ->allow_extra_args(false)
      ->type_name("LAYER.ROLE=F")
      ->group(group);
  app.add_option("--round-scales-to", into.roundTo,
                 "bf16 or f16: round loaded scales first, as the\n"
                 "serving stacks do")
      ->type_name("TYPE")
      ->group(group);
  app.add_flag("--require-calibrated", into.requireCalibrated,
               "A scale that is 1.0 for want of another is an error")
      ->group(group);
  app.add_flag("--fp8-query", into.fp8Query,
               "Queries are FP8 too, so q scales count")
      ->group(group);
  app.add_option("--tp-size", into.tpSize, "Tensor parallel ranks")
      ->type_name("N")
      ->group(group);
  app.add_option("--tp-rank", into.tpRank, "The rank to resolve for")
      ->type_name("N")
      ->group(group);
}

int usageError(const std::string &message) {
  return fail(message + "\nkvcache-scales --help lists the commands, "
                        "kvcache-scales COMMAND --help their options");
}

} // namespace

int main(int argc, char **argv) {
  if (asksForRunTimeScales(argc, argv)) {
    std::cerr << calculateScalesMigration;
    return ExitError;
  }
  CLI::App app(description, "kvcache-scales");
  app.footer(footer);
  app.set_version_flag("--version", "kvcache-scales " KVCACHE_VERSION);
  app.require_subcommand(0, 1);
  app.get_formatter()->column_width(28);

  ShowOptions showOptions;
  CLI::App *showCommand = app.add_subcommand(
      "show", "Print every layer's scales: value, key, file, dtype,\n"
              "the rule that applied, what was ignored and why, and\n"
              "what config.json decides (softmax scale, window, ...)");
  addPath(*showCommand, "checkpoint", showOptions.path, "Folder or file");
  showCommand
      ->add_option("--format", showOptions.format,
                   "text, json, or html: one file with a plot of k, v\n"
                   "and q over the layers")
      ->type_name("FORMAT")
      ->check(CLI::IsMember({"text", "json", "html"}));
  showCommand
      ->add_option("-o,--output", showOptions.output,
                   "File to write; default: the standard output")
      ->type_name("FILE");
  addResolveOptions(*showCommand, showOptions.resolve);

  CheckOptions checkOptions;
  CLI::App *checkCommand = app.add_subcommand(
      "check", "Check a checkpoint before it is published: exit code by\n"
               "severity. Configuration files and launch scripts in the\n"
               "folder, or given after it, are searched for the removed\n"
               "options of run-time scale calculation");
  addPath(*checkCommand, "checkpoint", checkOptions.path, "Folder or file");
  checkCommand
      ->add_option("files", checkOptions.files,
                   "Configuration files and launch scripts elsewhere")
      ->type_name("");
  addList(*checkCommand, "--activations", checkOptions.activations,
          "Safetensors files with sampled K, V and Q (see\n"
          "calibrate): prints per layer the share of saturated\n"
          "codes and the signal-to-noise ratio under the\n"
          "checkpoint's scales, under 1.0, and under the removed\n"
          "run-time formula of the first file (max|K|/200,\n"
          "max|V|/100, max|Q|/200)",
          "FILE,...");
  checkCommand->add_flag("--json", checkOptions.json, "Print one JSON object");
  checkCommand->add_flag("--quiet", checkOptions.quiet, "No remarks");
  addResolveOptions(*checkCommand, checkOptions.resolve);

  DiffOptions diffOptions;
  CLI::App *diffCommand = app.add_subcommand(
      "diff", "Compare two checkpoints, layer by layer: cache types,\n"
              "scales (bit for bit), softmax scale, window, soft cap");
  addPath(*diffCommand, "before", diffOptions.before, "Folder or file");
  addPath(*diffCommand, "after", diffOptions.after, "Folder or file");
  diffCommand->add_flag("--json", diffOptions.json, "Print one JSON object");
  addResolveOptions(*diffCommand, diffOptions.resolve);

  CalibrateOptions calibrateOptions;
  CLI::App *calibrateCommand = app.add_subcommand(
      "calibrate",
      "Make scales from sampled activations: safetensors files with\n"
      "tensors LAYER.k, LAYER.v, LAYER.q (also key, value, query,\n"
      "k_proj.output; for MLA kv_c and k_pe). Writes a scale-only\n"
      "safetensors file under ModelOpt's names");
  addPath(*calibrateCommand, "files", calibrateOptions.files, "Activations");
  calibrateCommand
      ->add_option("-o,--output", calibrateOptions.output, "File to write")
      ->required()
      ->type_name("FILE");
  calibrateCommand
      ->add_option("--checkpoint", calibrateOptions.model,
                   "Checkpoint whose layers the scales are for; default:\n"
                   "names of the tensors, or model.layers.N.self_attn")
      ->type_name("DIR");
  calibrateCommand
      ->add_option("--percentile", calibrateOptions.percentile,
                   "Cut off outliers: the scale covers this percentage of\n"
                   "the magnitudes; default: 100, the maximum")
      ->type_name("P");
  calibrateCommand
      ->add_option("--kv-cache-dtype", calibrateOptions.cacheWord,
                   "fp8_e4m3 (magnitude / 448, the default) or fp8_e5m2\n"
                   "(magnitude / 57344)")
      ->type_name("TYPE");
  calibrateCommand->add_flag("--quiet", calibrateOptions.quiet,
                             "Print nothing but errors");

  RebindOptions rebindOptions;
  CLI::App *rebindCommand = app.add_subcommand(
      "rebind", "Give a compiled bundle the scales of another checkpoint:\n"
                "rewrites launch constants and digests, compiles nothing,\n"
                "and refuses where the code itself would change");
  addPath(*rebindCommand, "bundle", rebindOptions.bundle, "Bundle folder");
  rebindCommand
      ->add_option("--checkpoint", rebindOptions.checkpoint,
                   "Folder or file with the new scales")
      ->required()
      ->type_name("DIR");
  rebindCommand
      ->add_option("-o,--output", rebindOptions.output,
                   "Bundle to write; default: the same")
      ->type_name("DIR");
  rebindCommand->add_flag("--quiet", rebindOptions.quiet,
                          "No remarks, no summary");
  addResolveOptions(*rebindCommand, rebindOptions.resolve);

  addCompletionOption(app);

  try {
    app.parse(argc, argv);
  } catch (const CLI::Success &success) {
    return app.exit(success);
  } catch (const CLI::ParseError &error) {
    return usageError(error.what());
  }
  if (showCommand->parsed()) {
    // The system takes the memory back faster than destructors would.
    int code = show(showOptions);
    std::cout.flush();
    std::cerr.flush();
    std::_Exit(code);
  }
  if (checkCommand->parsed())
    return check(checkOptions);
  if (diffCommand->parsed())
    return diff(diffOptions);
  if (calibrateCommand->parsed())
    return calibrate(calibrateOptions);
  if (rebindCommand->parsed())
    return rebind(rebindOptions);
  return usageError("expected a command: show, check, diff, calibrate or "
                    "rebind");
}
