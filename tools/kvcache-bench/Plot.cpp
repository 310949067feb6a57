//===- Plot.cpp - Bandwidth over context length as SVG --------------------===//

#include "Plot.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <iterator>

namespace kvcache::bench {

namespace {

constexpr double width = 760, height = 420, left = 70, right = 230, top = 40,
                 bottom = 50;
constexpr const char *colours[] = {"#1f77b4", "#d62728", "#2ca02c",
                                   "#9467bd", "#ff7f0e", "#17becf"};

std::string number(double value, const char *format = "%.1f") {
  char text[48];
  std::snprintf(text, sizeof(text), format, value);
  return text;
}

std::string text(double x, double y, const std::string &content,
                 const std::string &attributes = "") {
  return "<text x=\"" + number(x) + "\" y=\"" + number(y) + "\" " + attributes +
         ">" + content + "</text>\n";
}

double valueOf(const Card &card, const Point &point) {
  return (card.measured ? point.bandwidth : point.issueCeiling) * 1e-9;
}

} // namespace

std::string plot(const Card &card, const std::vector<Point> &all) {
  // Prefill reads each byte for many rows: its bandwidth says little.
  std::vector<Point> points;
  bool decodes = std::any_of(all.begin(), all.end(), [](const Point &point) {
    return point.rows == 1;
  });
  std::copy_if(all.begin(), all.end(), std::back_inserter(points),
               [&](const Point &point) { return point.rows == 1 || !decodes; });
  double least = 1e30, most = 0, highest = card.copyBandwidth * 1e-9;
  std::vector<std::string> shapes;
  for (const Point &point : points) {
    least = std::min(least, std::log2(double(point.length)));
    most = std::max(most, std::log2(double(point.length)));
    highest = std::max(highest, valueOf(card, point));
    if (std::find(shapes.begin(), shapes.end(), point.shape) == shapes.end())
      shapes.push_back(point.shape);
  }
  if (most <= least)
    most = least + 1;
  highest *= 1.08;
  auto x = [&](double length) {
    return left + (std::log2(length) - least) / (most - least) *
                      (width - left - right);
  };
  auto y = [&](double value) {
    return height - bottom - value / highest * (height - top - bottom);
  };
  std::string svg = "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"" +
                    number(width, "%.0f") + "\" height=\"" +
                    number(height, "%.0f") +
                    "\" font-family=\"sans-serif\" font-size=\"12\">\n"
                    "<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n";
  svg += text(left, 22,
              card.measured
                  ? "KV bandwidth on " + card.name + ", GB/s"
                  : "No card: ceiling that counted instructions allow on " +
                        card.name + ", GB/s",
              "font-weight=\"bold\"");
  for (int i = 0; i <= 4; ++i) {
    double value = highest * i / 4;
    svg += "<line x1=\"" + number(left) + "\" x2=\"" + number(width - right) +
           "\" y1=\"" + number(y(value)) + "\" y2=\"" + number(y(value)) +
           "\" stroke=\"#dddddd\"/>\n";
    svg += text(left - 6, y(value) + 4, number(value, "%.0f"),
                "text-anchor=\"end\"");
  }
  for (double power = std::ceil(least); power <= most; ++power)
    svg += text(x(std::exp2(power)), height - bottom + 18,
                number(std::exp2(power), "%.0f"), "text-anchor=\"middle\"");
  svg += text((left + width - right) / 2, height - 12,
              "tokens in each sequence", "text-anchor=\"middle\"");
  if (card.copyBandwidth > 0) {
    double roof = y(card.copyBandwidth * 1e-9);
    svg += "<line x1=\"" + number(left) + "\" x2=\"" + number(width - right) +
           "\" y1=\"" + number(roof) + "\" y2=\"" + number(roof) +
           "\" stroke=\"black\" stroke-dasharray=\"6 4\"/>\n";
    svg += text(width - right + 8, roof + 4,
                "copy: " + number(card.copyBandwidth * 1e-9, "%.0f"));
  }
  for (size_t s = 0; s < shapes.size(); ++s) {
    std::string line, colour = colours[s % 6];
    double lastY = 0;
    for (const Point &point : points) {
      if (point.shape != shapes[s])
        continue;
      lastY = y(valueOf(card, point));
      std::string at = number(x(double(point.length))) + "," + number(lastY);
      line += (line.empty() ? "" : " ") + at;
      svg += "<circle cx=\"" + at.substr(0, at.find(',')) + "\" cy=\"" +
             at.substr(at.find(',') + 1) + "\" r=\"3\" fill=\"" + colour +
             "\"/>\n";
    }
    svg += "<polyline fill=\"none\" stroke=\"" + colour + "\" points=\"" +
           line + "\"/>\n";
    svg += text(width - right + 8, top + 16 * double(s + 1), shapes[s],
                "fill=\"" + colour + "\"");
  }
  return svg + "</svg>\n";
}

} // namespace kvcache::bench
