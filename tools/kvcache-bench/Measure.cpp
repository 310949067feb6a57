//===- Measure.cpp - Attention over context length ------------------------===//

#include "Measure.h"

#include <algorithm>

namespace kvcache::bench {

namespace {

/// What the ceiling of counts assumes of a chip: multiprocessors and boost
/// clock of A100, L40S, H200 and B200 (data sheets).
void assume(const std::string &chip, Card &card) {
  struct Known {
    const char *prefix;
    int multiprocessors;
    double clock;
  };
  const Known table[] = {{"sm_80", 108, 1.41e9},
                         {"sm_89", 142, 2.52e9},
                         {"sm_90", 132, 1.98e9},
                         {"sm_100", 148, 1.97e9},
                         {"sm_120", 170, 2.41e9}};
  for (const Known &known : table)
    if (chip.rfind(known.prefix, 0) == 0) {
      card.multiprocessors = known.multiprocessors;
      card.clock = known.clock;
    }
}

std::string describeShape(const Layer &layer, int64_t sequences, int64_t rows) {
  return "B" + std::to_string(sequences) +
         (rows > 1 ? "x" + std::to_string(rows) : "") + " " +
         std::to_string(layer.queryHeads) + "/" +
         (layer.isLatent() ? "MLA" : std::to_string(layer.kvHeads)) + " D" +
         std::to_string(layer.headDim) +
         (layer.vHeadDim ? "/" + std::to_string(layer.vHeadDim) : "") +
         " page " + std::to_string(layer.pageSize) + " " +
         std::string(elementTypeName(layer.elementType));
}

Expected<std::unique_ptr<Device>> openDevice(const Options &options) {
  if (options.device == "cuda")
    return createCudaDevice(options.ordinal, options.driver);
  ptx::LaunchOptions launch;
  launch.memcheck = launch.initcheck = false;
  launch.racecheck = launch.synccheck = false;
  launch.counters = true;
  launch.threads = options.threads;
  return createSimDevice(launch);
}

/// The first attention launch of a target: layers of a model are alike.
const Launch *firstAttention(const Target &target) {
  for (const Launch &launch : target.launches)
    if (isAttention(launch.op))
      return &launch;
  return nullptr;
}

std::vector<int64_t> defaultLengths(int64_t longest) {
  std::vector<int64_t> lengths;
  for (int64_t length = std::min<int64_t>(1024, longest); length < longest;
       length *= 4)
    lengths.push_back(length);
  lengths.push_back(longest);
  return lengths;
}

struct Runs {
  std::vector<std::unique_ptr<Session>> sessions;
  std::vector<std::unique_ptr<DeviceGraph>> graphs;
};

Error count(Runs &runs, const Card &card, Point &point) {
  Expected<std::vector<LaunchReport>> reports = runs.graphs.front()->replay();
  if (!reports)
    return reports.error();
  const ptx::Counters &counts = reports->front().counters;
  point.instructions = counts.instructions;
  uint64_t bytes = std::max<uint64_t>(1, point.kvBytes);
  point.slotsPerByte = double(counts.instructions) / double(bytes);
  point.sectorRatio =
      32.0 * double(counts.globalLoad.sectors + counts.asyncCopy.sectors) /
      double(bytes);
  for (const ptx::Counters::Shared *shared :
       {&counts.sharedLoad, &counts.sharedStore, &counts.ldmatrix,
        &counts.asyncWrite})
    point.bankConflicts += shared->wavefronts - shared->ideal;
  if (point.slotsPerByte > 0)
    point.issueCeiling =
        4 * double(card.multiprocessors) * card.clock / point.slotsPerByte;
  point.flopCeiling = point.flops / double(bytes) * point.issueCeiling;
  return Error::success();
}

Error time(const Options &options, Runs &runs, Point &point) {
  std::vector<double> times;
  for (unsigned i = 0; i < options.repeats + 3; ++i)
    for (auto &graph : runs.graphs) {
      Expected<double> seconds = graph->timedReplay();
      if (!seconds)
        return seconds.error();
      if (i >= 3) // the first ones warm up
        times.push_back(*seconds);
    }
  std::sort(times.begin(), times.end());
  point.median = times[times.size() / 2];
  point.low = times[times.size() / 20];
  point.high = times[times.size() - 1 - times.size() / 20];
  point.bandwidth = point.median > 0 ? double(point.kvBytes) / point.median : 0;
  point.flopRate = point.median > 0 ? point.flops / point.median : 0;
  return Error::success();
}

Error measureBundle(const Options &options, const std::string &path, Card &card,
                    std::vector<Point> &points) {
  Expected<Bundle> bundle = openBundle(path);
  if (!bundle)
    return bundle.error();
  Expected<std::unique_ptr<Device>> device = openDevice(options);
  if (!device)
    return device.error();
  Expected<const Target *> target =
      selectTarget(*bundle, **device, options.target);
  if (!target)
    return target.error();
  const Launch *launch = firstAttention(**target);
  if (!launch)
    return makeError("the bundle has no attention");
  const Layer &layer = *bundle->manifest.findLayer(launch->layer);
  const Program &program = *bundle->manifest.findProgram(launch->program);
  if (card.name.empty()) {
    card.measured = options.device == "cuda";
    card.name = card.measured ? (*device)->name() : (*target)->chip;
    assume((*target)->chip, card);
  }
  if (card.measured && card.copyBandwidth == 0) {
    Expected<double> copy = (*device)->measureCopyBandwidth(
        std::max<uint64_t>(options.rotateBytes, uint64_t(1) << 20));
    if (!copy)
      return copy.error();
    card.copyBandwidth = *copy;
  }

  const Capacities &sizes = bundle->manifest.capacities;
  int64_t sequences = std::min(sizes.maxSequences, sizes.maxTokens);
  int64_t longest =
      std::min(sizes.maxPagesPerSequence, sizes.numPages / sequences) *
      layer.pageSize;
  std::vector<int64_t> lengths =
      options.lengths.empty() ? defaultLengths(longest) : options.lengths;
  // A latent row is key and value at once.
  int64_t width = layer.rowWidth() + (layer.isLatent() ? 0 : layer.vRowWidth());
  uint64_t rowBytes = uint64_t(layer.kvHeads * width) *
                      elementTypeBytes(layer.pageElementType());
  // Enough sessions that none finds its cache in L2.
  uint64_t cacheBytes = uint64_t(sizes.numPages * layer.pageSize) * rowBytes;
  uint64_t copies =
      card.measured
          ? std::min<uint64_t>(
                8, options.rotateBytes / std::max<uint64_t>(1, cacheBytes) + 1)
          : 1;
  Runs runs;
  for (uint64_t i = 0; i < copies; ++i) {
    Expected<std::unique_ptr<Session>> session =
        Session::create(*bundle, **target, program, **device, {});
    if (!session)
      return session.error();
    runs.sessions.push_back(std::move(*session));
  }
  for (int64_t length : lengths) {
    if (length > longest)
      continue;
    Point point;
    point.bundle = path;
    point.layer = layer.id;
    point.kernel = launch->kernel;
    // As many new tokens as the capacities have room for: one in a bundle for
    // decode, the prompt in one for prefill.
    point.rows =
        std::min(length, std::max<int64_t>(1, sizes.maxTokens / sequences));
    point.shape = describeShape(layer, sequences, point.rows);
    point.length = length;
    point.sequences = sequences;
    point.kvBytes = uint64_t(length * sequences) * rowBytes;
    // Row i of n sees length - n + i + 1 keys.
    double keys = double(point.rows) * double(length) -
                  double(point.rows) * double(point.rows - 1) / 2;
    // A score takes the whole row, the output its value.
    point.flops = 2.0 * double(layer.headDim + layer.valueDim()) *
                  double(layer.queryHeads) * double(sequences) * keys;
    runs.graphs.clear();
    for (auto &session : runs.sessions) {
      if (Error error =
              run::setStep(*session, {length}, 1, {point.rows, false}))
        return error;
      Expected<std::unique_ptr<DeviceGraph>> graph = session->freeze({launch});
      if (!graph)
        return graph.error();
      runs.graphs.push_back(std::move(*graph));
    }
    if (Error error = card.measured ? time(options, runs, point)
                                    : count(runs, card, point))
      return error.withContext("length " + std::to_string(length));
    points.push_back(std::move(point));
  }
  return Error::success();
}

} // namespace

Error measure(const Options &options, Card &card, std::vector<Point> &points) {
  for (const std::string &path : options.bundles)
    if (Error error = measureBundle(options, path, card, points))
      return error.withContext(path);
  return points.empty() ? makeError("no bundle has room for the lengths asked "
                                    "for")
                        : Error::success();
}

} // namespace kvcache::bench
