//===- Diff.cpp - kvcache-scales diff -------------------------------------===//

#include "Tool.h"
#include "kvcache/Support/FP8.h"

#include <iostream>

namespace kvcache::scales {

namespace {

/// One thing that differs between two checkpoints.
struct Difference {
  std::string layer, what, before, after;
};

std::string describe(const Scale &scale) {
  std::string text =
      formatScale(scale) + " (" + provenanceName(scale.provenance);
  if (!scale.key.empty())
    text += " '" + scale.key + "'";
  return text + ")";
}

bool sameValue(const Scale &a, const Scale &b) {
  if (bitsOfFloat(a.value) != bitsOfFloat(b.value) ||
      a.perHead.size() != b.perHead.size())
    return false;
  for (size_t i = 0; i < a.perHead.size(); ++i)
    if (bitsOfFloat(a.perHead[i]) != bitsOfFloat(b.perHead[i]))
      return false;
  return true;
}

/// Layers are paired by name, else by index: prefixes differ between exports.
const ModelLayer *findPartner(const ModelLayer &layer,
                              const ModelScales &other) {
  const ModelLayer *byIndex = nullptr;
  for (const ModelLayer &candidate : other.layers) {
    if (candidate.name == layer.name)
      return &candidate;
    if (candidate.index == layer.index && layer.index >= 0 && !byIndex)
      byIndex = &candidate;
  }
  return byIndex;
}

void compareLayer(const ModelLayer &before, const ModelLayer &after,
                  const ModelScales &a, const ModelScales &b,
                  std::vector<Difference> &differences) {
  auto differ = [&](const std::string &what, const std::string &left,
                    const std::string &right) {
    if (left != right)
      differences.push_back({before.name, what, left, right});
  };
  const LayerScales *left = a.scalesOf(before), *right = b.scalesOf(after);
  auto cacheOf = [](const LayerScales *layer) {
    return std::string(layer ? cacheTypeName(layer->cacheType) : "no KV cache");
  };
  differ("cache", cacheOf(left), cacheOf(right));
  if (before.attention && after.attention) {
    auto window = [](const LayerAttention &entry) {
      return entry.windowLeft ? std::to_string(entry.windowLeft->value + 1)
                              : std::string("none");
    };
    auto cap = [](const LayerAttention &entry) {
      return entry.softCap ? formatDouble(entry.softCap->value)
                           : std::string("none");
    };
    differ("softmax scale", formatDouble(before.attention->softmaxScale.value),
           formatDouble(after.attention->softmaxScale.value));
    differ("window", window(*before.attention), window(*after.attention));
    differ("soft cap", cap(*before.attention), cap(*after.attention));
  }
  if (!left || !right)
    return;
  for (unsigned role = 0; role < numScaleRoles; ++role) {
    const Scale &x = left->scales[role], &y = right->scales[role];
    // 1.0 that was loaded is not the same as 1.0 for want of a scale.
    bool isOne = x.provenance != y.provenance &&
                 (x.provenance == ScaleProvenance::Default ||
                  y.provenance == ScaleProvenance::Default);
    if (!sameValue(x, y) || isOne)
      differences.push_back(
          {before.name, scaleRoleName(ScaleRole(role)) + std::string(" scale"),
           describe(x), describe(y)});
  }
}

} // namespace

int diff(const DiffOptions &options) {
  Expected<OpenedModel> before = openModel(options.before, options.resolve);
  if (!before)
    return fail(before.message());
  Expected<OpenedModel> after = openModel(options.after, options.resolve);
  if (!after)
    return fail(after.message());
  const ModelScales &a = before->model, &b = after->model;
  bool failed = false;
  for (const auto &[model, path] :
       {std::pair(&a, &options.before), std::pair(&b, &options.after)})
    for (const Diagnostic &diagnostic : model->diagnostics)
      if (diagnostic.severity == Severity::Error) {
        std::cerr << "kvcache-scales: error: " << *path << ": "
                  << diagnostic.message << "\n";
        failed = true;
      }

  std::vector<Difference> differences;
  for (const ModelLayer &layer : a.layers) {
    if (const ModelLayer *partner = findPartner(layer, b))
      compareLayer(layer, *partner, a, b, differences);
    else
      differences.push_back({layer.name, "layer", "present", "absent"});
  }
  for (const ModelLayer &layer : b.layers)
    if (!findPartner(layer, a))
      differences.push_back({layer.name, "layer", "absent", "present"});

  if (options.json) {
    JsonValue list = JsonValue::array();
    for (const Difference &difference : differences) {
      JsonValue entry = JsonValue::object();
      entry.set("layer", difference.layer);
      entry.set("what", difference.what);
      entry.set("before", difference.before);
      entry.set("after", difference.after);
      list.push(std::move(entry));
    }
    JsonValue json = JsonValue::object();
    json.set("differences", std::move(list));
    std::cout << json.print() << "\n";
  } else {
    std::string last;
    for (const Difference &difference : differences) {
      if (difference.layer != last)
        std::cout << difference.layer << "\n";
      last = difference.layer;
      std::cout << "  " << difference.what << "\n    - " << difference.before
                << "\n    + " << difference.after << "\n";
    }
    std::cout << differences.size() << " difference"
              << (differences.size() == 1 ? "" : "s") << " between "
              << options.before << " and " << options.after << "\n";
  }
  if (failed)
    return ExitError;
  return differences.empty() ? ExitClean : ExitWarnings;
}

} // namespace kvcache::scales
