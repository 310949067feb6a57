//===- Tool.cpp - What the commands of kvcache-scales share ---------------===//

#include "Tool.h"
#include "kvcache/Support/FP8.h"

#include <cstdio>
#include <iostream>

namespace kvcache::scales {

Expected<ModelScaleOptions> readOptions(const ResolveOptions &options) {
  ModelScaleOptions result;
  result.cacheWord = options.cacheWord;
  result.skipLayers = options.skipLayers;
  result.queryIsFP8 = options.fp8Query;
  if (Expected<std::optional<CacheType>> word =
          parseCacheWord(options.cacheWord);
      !word)
    return word.error();
  if (options.policy == "compatible")
    result.scales.policy = ScalePolicy::Compatible;
  else if (options.policy != "strict")
    return makeError("--scale-policy: expected strict or compatible, found '" +
                     options.policy + "'");
  if (options.roundTo == "bf16")
    result.scales.roundScalesTo = DType::BF16;
  else if (options.roundTo == "f16")
    result.scales.roundScalesTo = DType::F16;
  else if (!options.roundTo.empty())
    return makeError("--round-scales-to: expected bf16 or f16, found '" +
                     options.roundTo + "'");
  for (const std::string &text : options.overrides) {
    Expected<ScaleOverride> parsed = parseScaleOverride(text);
    if (!parsed)
      return parsed.error().withContext("--scale");
    result.scales.overrides.push_back(std::move(*parsed));
  }
  result.scales.overlays = options.overlays;
  result.scales.requireCalibrated = options.requireCalibrated;
  result.scales.tpSize = options.tpSize;
  result.scales.tpRank = options.tpRank;
  return result;
}

Expected<OpenedModel> openModel(const std::string &path,
                                const ResolveOptions &options,
                                bool tensorsOptional) {
  Expected<ModelScaleOptions> read = readOptions(options);
  if (!read)
    return read.error();
  Expected<Checkpoint> checkpoint = Checkpoint::open(path, tensorsOptional);
  if (!checkpoint)
    return checkpoint.error();
  ModelScales model = describeModel(*checkpoint, *read);
  return OpenedModel{std::move(*checkpoint), std::move(model)};
}

std::string formatBits(float value) {
  char text[16];
  std::snprintf(text, sizeof text, "0x%08X", bitsOfFloat(value));
  return text;
}

std::string formatScale(const Scale &scale) {
  if (scale.perHead.empty())
    return formatFloat(scale.value);
  std::string text = "[";
  for (size_t i = 0; i < scale.perHead.size(); ++i)
    text += (i ? ", " : "") + formatFloat(scale.perHead[i]);
  return text + "]";
}

std::string describeOrigin(const Scale &scale) {
  if (scale.key.empty())
    return "";
  std::string text = "'" + scale.key + "'";
  if (scale.dtype)
    text += std::string(" ") + dtypeName(*scale.dtype) + " " +
            formatShape(scale.shape);
  return text + " in " + scale.file;
}

void printDiagnostics(std::ostream &os,
                      const std::vector<Diagnostic> &diagnostics,
                      bool withRemarks) {
  for (const Diagnostic &diagnostic : diagnostics)
    if (withRemarks || diagnostic.severity != Severity::Remark)
      os << severityName(diagnostic.severity) << ": " << diagnostic.message
         << "\n";
}

JsonValue diagnosticToJson(const Diagnostic &diagnostic) {
  JsonValue json = JsonValue::object();
  json.set("severity", severityName(diagnostic.severity));
  if (!diagnostic.layer.empty())
    json.set("layer", diagnostic.layer);
  if (!diagnostic.key.empty())
    json.set("key", diagnostic.key);
  if (!diagnostic.file.empty())
    json.set("file", diagnostic.file);
  json.set("message", diagnostic.message);
  return json;
}

ExitCode exitCodeOf(const std::vector<Diagnostic> &diagnostics) {
  bool warned = false;
  for (const Diagnostic &diagnostic : diagnostics) {
    if (diagnostic.severity == Severity::Error)
      return ExitError;
    warned = warned || diagnostic.severity == Severity::Warning;
  }
  return warned ? ExitWarnings : ExitClean;
}

int fail(const std::string &message) {
  std::cerr << "kvcache-scales: error: " << message << "\n";
  return ExitError;
}

} // namespace kvcache::scales
