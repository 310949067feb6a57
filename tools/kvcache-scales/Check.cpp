//===- Check.cpp - kvcache-scales check -----------------------------------===//

#include "Tool.h"
#include "kvcache/Checkpoint/Calibration.h"
#include "kvcache/Checkpoint/RemovedOptions.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <iostream>

namespace kvcache::scales {

namespace {

/// A share of saturated values beyond which a scale is too small.
constexpr double saturationLimit = 0.001;
/// Decibels by which a checkpoint's scale may be behind 1.0.
constexpr double snrMargin = 1;

std::string formatShare(double share) {
  char text[32];
  std::snprintf(text, sizeof text, "%.3f%%", share * 100);
  return text;
}

std::string formatDecibels(double value) {
  if (std::isinf(value))
    return "inf";
  char text[32];
  std::snprintf(text, sizeof text, "%.1f", value);
  return text;
}

struct Row {
  const ActivationGroup *group;
  std::optional<QuantizationLoss> checkpoint;
  QuantizationLoss one, runTime;
};

bool hasQuantizedCache(const ModelScales &model) {
  return std::any_of(model.scales.layers.begin(), model.scales.layers.end(),
                     [](const LayerScales &layer) {
                       return usesCheckpointScales(layer.cacheType);
                     });
}

bool hasUnusedScales(const ModelScales &model) {
  return !hasQuantizedCache(model) && !model.scales.ignored.empty() &&
         !model.scales.layers.empty();
}

class Checker {
public:
  explicit Checker(const CheckOptions &options) : options(options) {}

  Error run() {
    ResolveOptions resolve = options.resolve;
    Expected<OpenedModel> first = openModel(options.path, resolve);
    if (!first)
      return first.error();
    // Scales that `auto` leaves unused are checked as those who ask for an FP8
    // cache will meet them.
    bool asFP8 =
        resolve.cacheWord == "auto" &&
        (hasUnusedScales(first->model) ||
         (!options.activations.empty() && !hasQuantizedCache(first->model)));
    bool unused = hasUnusedScales(first->model);
    if (asFP8) {
      resolve.cacheWord = "fp8_e4m3";
      first = openModel(options.path, resolve);
      if (!first)
        return first.error();
    }
    diagnostics = first->model.diagnostics;
    if (asFP8 && unused)
      diagnostics.push_back(
          {Severity::Warning, "", "kv_cache_scheme", options.path,
           options.path +
               ": has KV cache scales, but declares no FP8 cache that "
               "kv-cache-dtype=auto follows, so they are not used unless "
               "somebody asks for kv-cache-dtype=fp8; checked here as "
               "fp8_e4m3"});
    if (Error error = sweep())
      return error;
    if (!options.activations.empty())
      if (Error error = measure(first->model))
        return error;
    return Error::success();
  }

  void print() const {
    std::vector<Diagnostic> ordered = sorted();
    if (options.json) {
      std::cout << toJson(ordered).print() << "\n";
      return;
    }
    printDiagnostics(std::cout, ordered, !options.quiet);
    if (!rows.empty())
      printRows();
    size_t errors = count(Severity::Error), warnings = count(Severity::Warning);
    std::cout << options.path << ": " << errors << " error"
              << (errors == 1 ? "" : "s") << ", " << warnings << " warning"
              << (warnings == 1 ? "" : "s") << "\n";
  }

  int exitCode() const { return exitCodeOf(diagnostics); }

private:
  size_t count(Severity severity) const {
    return size_t(std::count_if(
        diagnostics.begin(), diagnostics.end(),
        [&](const Diagnostic &d) { return d.severity == severity; }));
  }

  std::vector<Diagnostic> sorted() const {
    std::vector<Diagnostic> result;
    for (Severity severity :
         {Severity::Error, Severity::Warning, Severity::Remark})
      for (const Diagnostic &diagnostic : diagnostics)
        if (diagnostic.severity == severity)
          result.push_back(diagnostic);
    return result;
  }

  /// The removed options, in the folder's files and in those given.
  Error sweep() {
    std::vector<std::string> files = options.files;
    if (isDirectory(options.path)) {
      Expected<std::vector<std::string>> found =
          listConfigurationFiles(options.path);
      if (!found)
        return found.error();
      files.insert(files.begin(), found->begin(), found->end());
    }
    for (const std::string &file : files) {
      Expected<std::string> text = readFile(file);
      if (!text)
        return text.error();
      for (Diagnostic &diagnostic : findRemovedOptions(*text, file))
        diagnostics.push_back(std::move(diagnostic));
    }
    return Error::success();
  }

  Error measure(const ModelScales &model) {
    Expected<Activations> opened =
        Activations::open(options.activations, &model.layers);
    if (!opened)
      return opened.error();
    activations = std::move(*opened);
    for (const ActivationGroup &group : activations->groups()) {
      const LayerScales *layer = model.scales.find(group.module);
      if (!layer || !usesCheckpointScales(layer->cacheType))
        continue;
      // Twice the scale in a format of half the range is the same loss.
      CacheType type = layer->cacheType == CacheType::F8E4M3FNUZ
                           ? CacheType::F8E4M3FN
                           : layer->cacheType;
      Row row;
      row.group = &group;
      const Scale &scale = (*layer)[group.role];
      auto measured = [&](float value, const std::vector<float> &heads,
                          QuantizationLoss &into) {
        Expected<QuantizationLoss> loss =
            measureLoss(group, value, type, heads);
        if (!loss)
          return loss.error();
        into = *loss;
        return Error::success();
      };
      bool usable = std::isfinite(scale.value) && scale.value > 0;
      if (usable) {
        QuantizationLoss loss;
        if (Error error = measured(scale.value, scale.perHead, loss))
          return error;
        row.checkpoint = loss;
      }
      if (Error error = measured(1, {}, row.one))
        return error;
      float runTime = runTimeScale(group);
      if (!(runTime > 0))
        runTime = 1;
      if (Error error = measured(runTime, {}, row.runTime))
        return error;
      judge(row, scale);
      rows.push_back(row);
    }
    if (rows.empty())
      return makeError("no layer of " + options.path +
                       " with an FP8 cache has activations in the given files");
    return Error::success();
  }

  void judge(const Row &row, const Scale &scale) {
    if (!row.checkpoint)
      return;
    const QuantizationLoss &loss = *row.checkpoint;
    std::string what = "layer " + row.group->module + ": the " +
                       scaleRoleName(row.group->role) + " scale " +
                       formatScale(scale) + " (" +
                       provenanceName(scale.provenance) + ")";
    if (loss.saturated > saturationLimit)
      warn(row, what + " saturates " + formatShare(loss.saturated) +
                    " of the given activations, expected at most " +
                    formatShare(saturationLimit) +
                    "; kvcache-scales calibrate gives a larger one");
    else if (scale.provenance != ScaleProvenance::Default &&
             loss.snr < row.one.snr - snrMargin)
      warn(row, what + " keeps " + formatDecibels(loss.snr) +
                    " dB of the given activations, 1.0 would keep " +
                    formatDecibels(row.one.snr) + " dB");
  }

  void warn(const Row &row, const std::string &message) {
    diagnostics.push_back({Severity::Warning, row.group->module, "",
                           options.activations.front(), message});
  }

  void printRows() const {
    std::printf("%-40s %-4s %-28s %-28s %s\n", "", "", "checkpoint", "1.0",
                "run-time formula");
    std::printf("%-40s %-4s", "layer", "role");
    for (int i = 0; i < 3; ++i)
      std::printf(" %-11s %9s %6s", "scale", "saturated", "dB");
    std::printf("\n");
    for (const Row &row : rows) {
      std::printf("%-40s %-4s", row.group->module.c_str(),
                  scaleRoleName(row.group->role));
      auto cell = [](const QuantizationLoss &loss) {
        std::printf(" %-11s %9s %6s", formatFloat(loss.scale).c_str(),
                    formatShare(loss.saturated).c_str(),
                    formatDecibels(loss.snr).c_str());
      };
      if (row.checkpoint)
        cell(*row.checkpoint);
      else
        std::printf(" %-11s %9s %6s", "error", "-", "-");
      cell(row.one);
      cell(row.runTime);
      std::printf("\n");
    }
    std::fflush(stdout);
  }

  static JsonValue toJson(const QuantizationLoss &loss) {
    JsonValue json = JsonValue::object();
    json.set("scale", double(loss.scale));
    json.set("saturated", loss.saturated);
    json.set("snr_db",
             std::isfinite(loss.snr) ? JsonValue(loss.snr) : JsonValue());
    return json;
  }

  JsonValue toJson(const std::vector<Diagnostic> &ordered) const {
    JsonValue json = JsonValue::object(), list = JsonValue::array();
    for (const Diagnostic &diagnostic : ordered)
      list.push(diagnosticToJson(diagnostic));
    json.set("diagnostics", std::move(list));
    if (!rows.empty()) {
      JsonValue table = JsonValue::array();
      for (const Row &row : rows) {
        JsonValue entry = JsonValue::object();
        entry.set("layer", row.group->module);
        entry.set("role", scaleRoleName(row.group->role));
        entry.set("values", row.group->count);
        entry.set("checkpoint",
                  row.checkpoint ? toJson(*row.checkpoint) : JsonValue());
        entry.set("one", toJson(row.one));
        entry.set("run_time", toJson(row.runTime));
        table.push(std::move(entry));
      }
      json.set("activations", std::move(table));
    }
    return json;
  }

  const CheckOptions &options;
  std::vector<Diagnostic> diagnostics;
  std::optional<Activations> activations;
  std::vector<Row> rows;
};

} // namespace

int check(const CheckOptions &options) {
  Checker checker(options);
  if (Error error = checker.run())
    return fail(error.message());
  checker.print();
  return checker.exitCode();
}

} // namespace kvcache::scales
