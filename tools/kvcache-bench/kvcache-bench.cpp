//===- kvcache-bench.cpp - How fast a bundle's attention is ---------------===//

#include "../Completion.h"
#include "Measure.h"
#include "Plot.h"
#include "kvcache/Support/Files.h"
#include "kvcache/Support/Json.h"

#include <CLI/CLI.hpp>

#include <cstdio>
#include <iostream>

using namespace kvcache;
using namespace kvcache::bench;

namespace {

std::string number(double value, const char *format) {
  char text[48];
  std::snprintf(text, sizeof(text), format, value);
  return text;
}

void printRows(const std::vector<std::vector<std::string>> &rows) {
  std::vector<size_t> widths;
  for (const auto &row : rows)
    for (size_t i = 0; i < row.size(); ++i) {
      widths.resize(std::max(widths.size(), i + 1));
      widths[i] = std::max(widths[i], row[i].size());
    }
  for (const auto &row : rows) {
    std::string line;
    for (size_t i = 0; i < row.size(); ++i) {
      std::string padding(widths[i] - row[i].size(), ' ');
      line += (i ? "  " : "") + (i == 0 ? row[i] + padding : padding + row[i]);
    }
    std::cout << line << "\n";
  }
}

void printTable(const Card &card, const std::vector<Point> &points) {
  if (card.measured)
    std::cout << "measured on " << card.name << ": time by events around a "
              << "replayed graph; copy "
              << number(card.copyBandwidth * 1e-9, "%.0f") << " GB/s\n\n";
  else
    std::cout << "no card: counts of the PTX machine for " << card.name
              << ", not times; the ceiling is where " << card.multiprocessors
              << " SMs at " << number(card.clock * 1e-9, "%.2f")
              << " GHz issue 4 warp instructions a clock\n\n";
  std::vector<std::vector<std::string>> rows;
  if (card.measured)
    rows.push_back({"shape", "length", "KV MB", "median us", "5 %", "95 %",
                    "GB/s", "of copy", "TFLOP/s"});
  else
    rows.push_back({"shape", "length", "KV MB", "warp instr", "slots/KV byte",
                    "sectors/ideal", "bank conflicts", "ceiling GB/s",
                    "ceiling TFLOP/s"});
  for (const Point &point : points) {
    std::vector<std::string> row = {
        point.shape, std::to_string(point.length),
        number(double(point.kvBytes) * 1e-6, "%.1f")};
    if (card.measured)
      for (std::string cell :
           {number(point.median * 1e6, "%.1f"), number(point.low * 1e6, "%.1f"),
            number(point.high * 1e6, "%.1f"),
            number(point.bandwidth * 1e-9, "%.0f"),
            number(100 * point.bandwidth / card.copyBandwidth, "%.1f") + " %",
            number(point.flopRate * 1e-12, "%.2f")})
        row.push_back(std::move(cell));
    else
      for (std::string cell : {std::to_string(point.instructions),
                               number(point.slotsPerByte, "%.4f"),
                               number(point.sectorRatio, "%.3f"),
                               std::to_string(point.bankConflicts),
                               number(point.issueCeiling * 1e-9, "%.0f"),
                               number(point.flopCeiling * 1e-12, "%.1f")})
        row.push_back(std::move(cell));
    rows.push_back(std::move(row));
  }
  printRows(rows);
}

std::string toJson(const Card &card, const std::vector<Point> &points) {
  JsonValue root = JsonValue::object(), list = JsonValue::array();
  root.set("kind", card.measured ? "measured" : "counted");
  root.set("device", card.name);
  if (card.measured) {
    root.set("copy_bandwidth", card.copyBandwidth);
  } else {
    root.set("assumed_multiprocessors", card.multiprocessors);
    root.set("assumed_clock", card.clock);
  }
  for (const Point &point : points) {
    JsonValue entry = JsonValue::object();
    entry.set("bundle", point.bundle);
    entry.set("layer", point.layer);
    entry.set("kernel", point.kernel);
    entry.set("shape", point.shape);
    entry.set("length", point.length);
    entry.set("sequences", point.sequences);
    entry.set("rows", point.rows);
    entry.set("kv_bytes", point.kvBytes);
    entry.set("flops", point.flops);
    if (card.measured) {
      entry.set("seconds_median", point.median);
      entry.set("seconds_5_percent", point.low);
      entry.set("seconds_95_percent", point.high);
      entry.set("bandwidth", point.bandwidth);
      entry.set("share_of_copy", point.bandwidth / card.copyBandwidth);
      entry.set("flop_rate", point.flopRate);
    } else {
      entry.set("warp_instructions", point.instructions);
      entry.set("slots_per_kv_byte", point.slotsPerByte);
      entry.set("sectors_over_ideal", point.sectorRatio);
      entry.set("bank_conflicts", point.bankConflicts);
      entry.set("issue_ceiling", point.issueCeiling);
      entry.set("flop_ceiling", point.flopCeiling);
    }
    list.push(std::move(entry));
  }
  root.set("points", std::move(list));
  return root.print(1) + "\n";
}

int fail(const std::string &message, int code) {
  std::cerr << "kvcache-bench: error: " << message << "\n";
  return code;
}

} // namespace

int main(int argc, char **argv) {
  CLI::App app("Measures the attention of bundles over context lengths.\n"
               "\n"
               "On a card (--device=cuda): times between events around a "
               "replayed graph,\n"
               "over rotating buffers larger than L2, as bandwidth and as a "
               "share of the copy\n"
               "bandwidth of the same card. Without one: what the PTX machine "
               "counts, and the\n"
               "bandwidth that the counted instructions allow at most; never "
               "a time.",
               "kvcache-bench");
  app.footer("Exit codes: 0 done, 1 failure, 2 wrong usage.\n"
             "utils/bench_shapes.py compiles the shapes that matter and calls "
             "this.");
  app.set_version_flag("--version", "kvcache-bench " KVCACHE_VERSION);
  Options options;
  std::string device = "sim", json, svg;
  app.add_option("bundles", options.bundles, "Bundle directories")->required();
  app.add_option("--lengths", options.lengths,
                 "Context lengths; default: powers of 4 from 1024. Each\n"
                 "sequence has as many new tokens as max-tokens gives it")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->check(CLI::PositiveNumber);
  app.add_option("--device", device, "sim (default), cuda or cuda:N")
      ->check([](const std::string &text) -> std::string {
        bool card =
            text.rfind("cuda:", 0) == 0 && text.size() < 9 && text.size() > 5 &&
            text.find_first_not_of("0123456789", 5) == std::string::npos;
        return text == "sim" || text == "cuda" || card
                   ? ""
                   : "expected sim, cuda or cuda:N, found \"" + text + "\"";
      });
  app.add_option("--driver", options.driver,
                 "Driver library; default: libcuda.so.1")
      ->type_name("FILE");
  app.add_option("--target", options.target, "Chip whose code runs");
  app.add_option("--repeats", options.repeats, "Replays of each buffer set")
      ->check(CLI::Range(1, 100000));
  app.add_option("--threads", options.threads, "Of the PTX machine")
      ->check(CLI::Range(1, 256));
  app.add_option("--json", json, "Write the numbers")->type_name("FILE");
  app.add_option("--svg", svg, "Write a plot of bandwidth over length")
      ->type_name("FILE");
  addCompletionOption(app);
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success &success) {
    return app.exit(success);
  } catch (const CLI::ParseError &error) {
    return fail(error.what(), 2);
  }
  options.device = device.substr(0, device.find(':'));
  if (device.size() > 5)
    options.ordinal = std::stoi(device.substr(5));
  Card card;
  std::vector<Point> points;
  if (Error error = measure(options, card, points))
    return fail(error.message(), 1);
  printTable(card, points);
  for (const auto &[path, text] :
       {std::pair<std::string, std::string>{json, toJson(card, points)},
        {svg, plot(card, points)}})
    if (!path.empty())
      if (Error error = writeFileAtomically(path, text))
        return fail(error.message(), 1);
  return 0;
}
