//===- ShowHtml.cpp - kvcache-scales show --format=html -------------------===//
//
// One file without references to anything outside of it.
//
//===----------------------------------------------------------------------===//

#include "Tool.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <sstream>

namespace kvcache::scales {

namespace {

constexpr char style[] = R"(
:root { color-scheme: light dark; --k: #1f77b4; --v: #d9660a; --q: #2a8a3e; }
body { font: 14px/1.45 system-ui, sans-serif; margin: 2em auto; padding: 0 1em;
  max-width: 75em; }
h1 { font-size: 1.4em; overflow-wrap: anywhere; } h2 { font-size: 1.1em; }
table { border-collapse: collapse; width: 100%; }
th, td { text-align: left; padding: .2em .8em .2em 0; vertical-align: top;
  border-bottom: 1px solid #8884; }
td.number { font-variant-numeric: tabular-nums; white-space: nowrap; }
code { font-size: .92em; overflow-wrap: anywhere; }
.error, .warning { padding: .4em .8em; margin: .3em 0;
  border-left: .3em solid #c00; background: #c001; }
.warning { border-color: #c80; background: #c801; }
.dim { opacity: .65; }
svg { width: 100%; height: auto; } svg text { fill: currentColor; font-size: 11px; }
.grid { stroke: currentColor; opacity: .15; }
.k { color: var(--k); } .v { color: var(--v); } .q { color: var(--q); }
polyline { fill: none; stroke: currentColor; stroke-width: 1.2; }
circle { stroke: currentColor; fill: currentColor; }
circle.open { fill: none; }
)";

std::string escape(std::string_view text) {
  std::string result;
  for (char c : text) {
    switch (c) {
    case '&':
      result += "&amp;";
      break;
    case '<':
      result += "&lt;";
      break;
    case '>':
      result += "&gt;";
      break;
    case '"':
      result += "&quot;";
      break;
    default:
      // Control characters are not allowed in a page.
      result += static_cast<unsigned char>(c) < 0x20 && c != '\n' ? ' ' : c;
    }
  }
  return result;
}

/// Coordinates with one digit: the same text everywhere.
std::string coordinate(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.1f", value);
  return text;
}

struct Point {
  double layer;
  const Scale *scale;
  float low, high; ///< of all heads
};

struct Series {
  ScaleRole role;
  std::vector<Point> points;
};

std::vector<Series> collectSeries(const ModelScales &model) {
  std::vector<Series> all;
  for (ScaleRole role : {ScaleRole::K, ScaleRole::V, ScaleRole::Q}) {
    Series series{role, {}};
    for (size_t i = 0; i < model.layers.size(); ++i) {
      const LayerScales *layer = model.scalesOf(model.layers[i]);
      if (!layer || !usesCheckpointScales(layer->cacheType))
        continue;
      const Scale &scale = (*layer)[role];
      bool shown = role == ScaleRole::Q ? !scale.key.empty() : true;
      if (!shown || !std::isfinite(scale.value) || !(scale.value > 0))
        continue;
      Point point{double(model.layers[i].index), &scale, scale.value,
                  scale.value};
      for (float value : scale.perHead)
        point.low = std::min(point.low, value);
      if (!(point.low > 0))
        point.low = point.high;
      series.points.push_back(point);
    }
    if (!series.points.empty())
      all.push_back(std::move(series));
  }
  return all;
}

/// Layers to the right, scales upwards on a logarithmic axis.
void plot(std::ostream &os, const std::vector<Series> &all) {
  constexpr double width = 900, height = 300, left = 70, right = 20, top = 15,
                   bottom = 40;
  double low = 1e300, high = 0, firstLayer = 1e300, lastLayer = -1e300;
  for (const Series &series : all)
    for (const Point &point : series.points) {
      low = std::min(low, double(point.low));
      high = std::max(high, double(point.high));
      firstLayer = std::min(firstLayer, point.layer);
      lastLayer = std::max(lastLayer, point.layer);
    }
  // Half a decade of room around a single value.
  double bottomLog = std::floor(2 * std::log10(low)) / 2,
         topLog = std::ceil(2 * std::log10(high)) / 2;
  if (bottomLog == topLog) {
    bottomLog -= 0.5;
    topLog += 0.5;
  }
  auto x = [&](double layer) {
    double span = std::max(1.0, lastLayer - firstLayer);
    return left + (layer - firstLayer) / span * (width - left - right);
  };
  auto y = [&](double value) {
    return top + (topLog - std::log10(value)) / (topLog - bottomLog) *
                     (height - top - bottom);
  };
  os << "<svg viewBox=\"0 0 " << width << " " << height
     << "\" role=\"img\" aria-label=\"Scales over the layers\">\n";
  double step = topLog - bottomLog > 6 ? 1 : 0.5;
  for (double tick = bottomLog; tick <= topLog + 1e-9; tick += step) {
    char label[32];
    std::snprintf(label, sizeof label, "%.2g", std::pow(10.0, tick));
    std::string at = coordinate(y(std::pow(10.0, tick)));
    os << "<line class=\"grid\" x1=\"" << left << "\" x2=\"" << width - right
       << "\" y1=\"" << at << "\" y2=\"" << at << "\"/><text x=\"" << left - 8
       << "\" y=\"" << at << "\" text-anchor=\"end\" dy=\".3em\">" << label
       << "</text>\n";
  }
  int64_t every =
      std::max<int64_t>(1, int64_t(std::ceil((lastLayer - firstLayer) / 16)));
  for (double layer = firstLayer; layer <= lastLayer; layer += double(every))
    os << "<text x=\"" << coordinate(x(layer)) << "\" y=\""
       << height - bottom + 18 << "\" text-anchor=\"middle\">" << layer
       << "</text>\n";
  os << "<text x=\"" << width / 2 << "\" y=\"" << height - 4
     << "\" text-anchor=\"middle\">layer</text>\n";
  for (const Series &series : all) {
    const char *name = scaleRoleName(series.role);
    os << "<g class=\"" << name << "\"><polyline points=\"";
    for (size_t i = 0; i < series.points.size(); ++i)
      os << (i ? " " : "") << coordinate(x(series.points[i].layer)) << ","
         << coordinate(y(series.points[i].high));
    os << "\"/>\n";
    for (const Point &point : series.points) {
      bool loaded = point.scale->provenance == ScaleProvenance::Checkpoint ||
                    point.scale->provenance == ScaleProvenance::Override;
      if (point.low != point.high)
        os << "<line stroke=\"currentColor\" x1=\""
           << coordinate(x(point.layer)) << "\" x2=\""
           << coordinate(x(point.layer)) << "\" y1=\""
           << coordinate(y(point.low)) << "\" y2=\""
           << coordinate(y(point.high)) << "\"/>";
      os << "<circle" << (loaded ? "" : " class=\"open\"") << " cx=\""
         << coordinate(x(point.layer)) << "\" cy=\""
         << coordinate(y(point.high)) << "\" r=\"2.5\"><title>layer "
         << point.layer << " " << name << " = "
         << escape(formatScale(*point.scale)) << " ("
         << provenanceName(point.scale->provenance) << ")</title></circle>\n";
    }
    os << "</g>\n";
  }
  os << "</svg>\n<p>";
  for (const Series &series : all)
    os << "<span class=\"" << scaleRoleName(series.role) << "\">&#9679; "
       << scaleRoleName(series.role) << "</span>"
       << (series.points.front().scale->used ? "" : " (nothing reads it)")
       << "&ensp; ";
  os << "<span class=\"dim\">open circles: not loaded for this role; bars: "
        "all heads</span></p>\n";
}

void row(std::ostream &os, const ModelLayer &layer, const LayerScales *scales) {
  auto cell = [&](const std::string &text, const char *kind = "") {
    os << "<td" << kind << ">" << text << "</td>";
  };
  os << "<tr>";
  cell(std::to_string(layer.index), " class=\"number\"");
  std::string name = "<code>" + escape(layer.name) + "</code>";
  if (layer.attention) {
    const LayerAttention &entry = *layer.attention;
    name += std::string("<br><span class=\"dim\">") + layerKindName(entry.kind);
    if (layer.hasAttention) {
      name += ", softmax scale " + formatDouble(entry.softmaxScale.value);
      if (entry.windowLeft)
        name += ", window " + std::to_string(entry.windowLeft->value + 1);
      if (entry.softCap)
        name += ", soft cap " + formatDouble(entry.softCap->value);
    }
    name += "</span>";
  }
  cell(name);
  if (!layer.cache || !scales) {
    cell("no KV cache", " colspan=\"4\" class=\"dim\"");
    os << "</tr>\n";
    return;
  }
  std::string cache = cacheTypeName(scales->cacheType);
  cache += "<br><span class=\"dim\">" + escape(layer.cache->from) + "</span>";
  if (!layer.sharesCacheWith.empty())
    cache += "<br>of <code>" + escape(layer.sharesCacheWith) + "</code>";
  cell(cache);
  for (ScaleRole role : {ScaleRole::K, ScaleRole::V, ScaleRole::Q}) {
    const Scale &scale = (*scales)[role];
    if (!usesCheckpointScales(scales->cacheType) ||
        (role == ScaleRole::Q && scale.key.empty() && !scale.used)) {
      cell("&ndash;", " class=\"dim\"");
      continue;
    }
    std::string text = escape(formatScale(scale)) + "<br><span class=\"dim\">" +
                       provenanceName(scale.provenance);
    if (!scale.key.empty())
      text += " <code>" + escape(describeOrigin(scale)) + "</code>";
    if (!scale.note.empty())
      text += "; " + escape(scale.note);
    if (!scale.used)
      text += "; nothing reads it";
    cell(text + "</span>");
  }
  os << "</tr>\n";
}

} // namespace

std::string renderHtml(const std::string &path, const OpenedModel &opened) {
  const ModelScales &model = opened.model;
  std::ostringstream os;
  std::string title = "KV cache scales of " + escape(path);
  os << "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">"
     << "<meta name=\"viewport\" content=\"width=device-width\"><title>"
     << title << "</title><style>" << style << "</style></head><body>\n<h1>"
     << title << "</h1>\n";
  for (const Diagnostic &diagnostic : model.diagnostics)
    if (diagnostic.severity != Severity::Remark)
      os << "<p class=\"" << severityName(diagnostic.severity) << "\"><b>"
         << severityName(diagnostic.severity)
         << "</b>: " << escape(diagnostic.message) << "</p>\n";
  os << "<p>Model type "
     << (model.modelType.empty() ? "not known" : escape(model.modelType))
     << "; quantization " << quantFamilyName(model.quant.family);
  if (!model.quant.kvAlgorithm.empty())
    os << "; <code>" << escape(model.quant.kvFile) << "</code> declares "
       << escape(model.quant.kvAlgorithm) << " by <code>"
       << escape(model.quant.kvKey) << "</code>";
  os << ".</p>\n";
  std::vector<Series> series = collectSeries(model);
  if (series.empty())
    os << "<p>No cache here has scales of the checkpoint.</p>\n";
  else
    plot(os, series);
  os << "<h2>Layers</h2>\n<table><thead><tr><th>#</th><th>layer</th>"
        "<th>cache</th><th>k</th><th>v</th><th>q</th></tr></thead><tbody>\n";
  for (const ModelLayer &layer : model.layers)
    row(os, layer, model.scalesOf(layer));
  os << "</tbody></table>\n";
  if (!model.scales.ignored.empty()) {
    os << "<h2>Not used</h2>\n<table><tbody>\n";
    for (const IgnoredScale &ignored : model.scales.ignored)
      os << "<tr><td><code>" << escape(ignored.key) << "</code></td><td><code>"
         << escape(ignored.file) << "</code></td><td>" << escape(ignored.reason)
         << "</td></tr>\n";
    os << "</tbody></table>\n";
  }
  bool heading = false;
  for (const Diagnostic &diagnostic : model.diagnostics)
    if (diagnostic.severity == Severity::Remark) {
      if (!heading)
        os << "<h2>Remarks</h2>\n<ul>\n";
      heading = true;
      os << "<li>" << escape(diagnostic.message) << "</li>\n";
    }
  if (heading)
    os << "</ul>\n";
  os << "</body></html>\n";
  return os.str();
}

} // namespace kvcache::scales
