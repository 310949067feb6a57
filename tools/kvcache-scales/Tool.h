//===- Tool.h - What the commands of kvcache-scales share -------*- C++ -*-===//

#ifndef KVCACHE_TOOLS_KVCACHE_SCALES_TOOL_H
#define KVCACHE_TOOLS_KVCACHE_SCALES_TOOL_H

#include "kvcache/Checkpoint/ModelScales.h"

#include <string>
#include <vector>

namespace kvcache::scales {

enum ExitCode {
  ExitClean = 0,
  ExitError = 1, ///< an error in what was checked, bad input, wrong usage
  ExitWarnings = 2
};

/// How scales are resolved: the options of kvcache-compile by the same names.
struct ResolveOptions {
  std::string cacheWord = "auto", policy = "strict", roundTo;
  std::vector<std::string> skipLayers, overlays, overrides;
  bool fp8Query = false, requireCalibrated = false;
  int64_t tpSize = 1, tpRank = 0;
};

/// A checkpoint and what it says.
struct OpenedModel {
  Checkpoint checkpoint;
  ModelScales model;
};

/// Errors: options that make no sense, files that cannot be read.
Expected<ModelScaleOptions> readOptions(const ResolveOptions &options);
/// `tensorsOptional`: a config.json alone will do.
Expected<OpenedModel> openModel(const std::string &path,
                                const ResolveOptions &options,
                                bool tensorsOptional = false);

/// "0x3C498C7E".
std::string formatBits(float value);
/// One number, or those of all heads: "0.1", "[0.1, 0.2]".
std::string formatScale(const Scale &scale);
/// Where a value came from, in words: "'KEY' F32 [] in FILE".
std::string describeOrigin(const Scale &scale);

/// "warning: text" lines. Files are shown as they were found.
void printDiagnostics(std::ostream &os,
                      const std::vector<Diagnostic> &diagnostics,
                      bool withRemarks = true);

JsonValue diagnosticToJson(const Diagnostic &diagnostic);

/// By the worst severity.
ExitCode exitCodeOf(const std::vector<Diagnostic> &diagnostics);

int fail(const std::string &message);

struct ShowOptions {
  std::string path, format = "text", output;
  ResolveOptions resolve;
};
int show(const ShowOptions &options);
std::string renderText(const std::string &path, const OpenedModel &opened);
std::string renderJson(const std::string &path, const OpenedModel &opened);
std::string renderHtml(const std::string &path, const OpenedModel &opened);

struct CheckOptions {
  std::string path;
  std::vector<std::string> files; ///< configuration files, launch scripts
  std::vector<std::string> activations;
  bool json = false, quiet = false;
  ResolveOptions resolve;
};
int check(const CheckOptions &options);

struct DiffOptions {
  std::string before, after;
  bool json = false;
  ResolveOptions resolve;
};
int diff(const DiffOptions &options);

struct CalibrateOptions {
  std::vector<std::string> files;
  std::string output, model, cacheWord = "fp8_e4m3";
  double percentile = 100;
  bool quiet = false;
};
int calibrate(const CalibrateOptions &options);

struct RebindOptions {
  std::string bundle, checkpoint, output;
  bool quiet = false;
  ResolveOptions resolve;
};
int rebind(const RebindOptions &options);

} // namespace kvcache::scales

#endif // KVCACHE_TOOLS_KVCACHE_SCALES_TOOL_H
