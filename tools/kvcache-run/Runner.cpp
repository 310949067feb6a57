//===- Runner.cpp - Steps over a session ----------------------------------===//

#include "Runner.h"

#include <algorithm>
#include <chrono>

namespace kvcache::run {

namespace {

using Clock = std::chrono::steady_clock;

double secondsSince(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

} // namespace

bool RunSummary::good() const {
  if (findingCount != 0 || !faults.empty())
    return false;
  return std::all_of(
      layers.begin(), layers.end(),
      [](const LayerVerification &layer) { return layer.good(); });
}

std::vector<std::string> Runner::unknown(const TensorFiles &files) const {
  std::vector<std::string> names;
  for (const std::string &name : files.latest()) {
    bool known = session.manifest().findBuffer(name) != nullptr;
    if (session.program().host)
      for (const HostValue &value : session.program().host->arguments)
        known |= value.name == name;
    if (!known)
      names.push_back(name);
  }
  return names;
}

Error Runner::setInputs(TensorFiles &files) {
  for (const std::string &name : files.latest()) {
    const Buffer *buffer = session.manifest().findBuffer(name);
    if (!buffer)
      continue;
    Expected<TensorView> view = files.view(name);
    if (!view)
      return view.error().withContext(files.latestPath());
    if (Error error = session.setInput(name, *view))
      return error.withContext(files.latestPath());
  }
  return Error::success();
}

void Runner::account(const Segment &segment, const RunReport &report,
                     unsigned replays) {
  constexpr size_t keptFindings = 50;
  if (replays)
    result.replays += replays;
  else
    ++result.segmentRuns;
  size_t perReplay =
      replays ? std::max<size_t>(1, report.launches.size() / replays) : 1;
  for (size_t i = 0; i < report.launches.size(); ++i) {
    const LaunchRecord &record = report.launches[i];
    ++result.launches;
    result.launchTimes.push_back(
        {record.launch->program, segment.name, record.launch->kernel,
         record.launch->layer, record.launch->grid, result.steps,
         replays ? int64_t(i / perReplay) : -1, result.kernelSeconds,
         record.report.seconds, record.report.counters.instructions});
    result.instructions += record.report.counters.instructions;
    result.kernelSeconds += record.report.seconds;
    result.findingCount += record.report.findingCount;
    for (const ptx::Finding &finding : record.report.findings)
      if (result.findings.size() < keptFindings)
        result.findings.push_back(finding);
    const Launch &launch = *record.launch;
    auto entry = std::find_if(result.kernels.begin(), result.kernels.end(),
                              [&](const KernelCounts &counts) {
                                return counts.kernel == launch.kernel &&
                                       counts.layer == launch.layer;
                              });
    if (entry == result.kernels.end())
      entry = result.kernels.insert(result.kernels.end(),
                                    {launch.kernel,
                                     launch.layer,
                                     std::string(launchOpName(launch.op)),
                                     0,
                                     {}});
    ++entry->launches;
    entry->counters.add(record.report.counters);
  }
  for (const std::string &fault : report.faults)
    result.faults.push_back("step " + std::to_string(result.steps) + ": " +
                            fault);
}

Error Runner::runSegment(const Segment &segment) {
  Verifier verifier(session);
  Clock::time_point start = Clock::now();
  if (verify)
    if (Error error = verifier.begin(segment))
      return error;
  result.verifySeconds += secondsSince(start);
  Expected<RunReport> report = session.runSegment(segment);
  if (!report)
    return report.error();
  account(segment, *report, 0);
  if (verify)
    if (Error error = verifySegment(segment, verifier))
      return error;
  if (replay == 0)
    return Error::success();
  Expected<RunReport> again =
      session.replaySegment(segment, replay, graphs[&segment]);
  if (!again)
    return again.error();
  account(segment, *again, replay);
  return Error::success();
}

Error Runner::useBucket(const Segment *segment) {
  Expected<const Program *> program = session.programForInputs(whole, segment);
  if (!program)
    return program.error();
  session.use(**program);
  return Error::success();
}

Error Runner::verifySegment(const Segment &segment, Verifier &verifier) {
  Clock::time_point start = Clock::now();
  Expected<std::vector<LayerVerification>> layers = verifier.finish(segment);
  if (!layers)
    return layers.error();
  for (LayerVerification &layer : *layers) {
    for (std::string &text : layer.errors)
      text = "step " + std::to_string(result.steps) + ": " + text;
    auto known = std::find_if(result.layers.begin(), result.layers.end(),
                              [&](const LayerVerification &other) {
                                return other.layer == layer.layer;
                              });
    if (known == result.layers.end())
      result.layers.push_back(std::move(layer));
    else
      known->add(layer);
  }
  result.verifySeconds += secondsSince(start);
  return Error::success();
}

Error Runner::onHostSegment(const Segment &segment,
                            const std::vector<TensorView> &memrefs) {
  if (memrefs.size() != segment.arguments.size())
    return makeError("expected " + std::to_string(segment.arguments.size()) +
                     " memrefs, found " + std::to_string(memrefs.size()));
  auto bufferOf = [&](size_t i) -> const Buffer & {
    return *session.manifest().findBuffer(segment.arguments[i]);
  };
  for (size_t i = 0; i < memrefs.size(); ++i)
    if (bufferOf(i).access != BufferAccess::Write)
      if (Error error = session.setInput(segment.arguments[i], memrefs[i]))
        return error;
  if (Error error = useBucket(&segment))
    return error;
  for (const Segment &entry : session.program().segments)
    if (entry.name == segment.name)
      if (Error error = runSegment(entry))
        return error;
  for (size_t i = 0; i < memrefs.size(); ++i)
    if (bufferOf(i).access != BufferAccess::Read)
      if (Error error = session.readInto(segment.arguments[i], memrefs[i]))
        return error;
  return Error::success();
}

Error Runner::runHost(TensorFiles &files, const std::string &prefix) {
  const HostCode &code = *session.program().host;
  std::map<std::string, TensorView> arguments;
  for (const HostValue &value : code.arguments) {
    if (!files.find(value.name))
      continue;
    Expected<TensorView> view = files.view(value.name);
    if (!view)
      return view.error();
    arguments[value.name] = *view;
  }
  Expected<std::vector<HostTensor>> results =
      host->run(arguments, [&](const Segment &segment,
                               const std::vector<TensorView> &memrefs) {
        return onHostSegment(segment, memrefs);
      });
  if (!results)
    return results.error();
  for (size_t i = 0; i < results->size(); ++i)
    written.add(prefix + code.results[i].name, std::move((*results)[i]));
  return Error::success();
}

Error Runner::step(TensorFiles &files, const std::string &prefix) {
  Clock::time_point start = Clock::now();
  double verifiedBefore = result.verifySeconds;
  if (host) {
    if (Error error = runHost(files, prefix))
      return error;
  } else {
    if (Error error = useBucket(nullptr))
      return error;
    for (const Segment &segment : session.program().segments)
      if (Error error = runSegment(segment))
        return error.withContext("segment " + segment.name);
  }
  ++result.steps;
  result.stepPrograms.push_back(session.program().name);
  result.runSeconds +=
      secondsSince(start) - (result.verifySeconds - verifiedBefore);
  for (const Buffer &buffer : session.manifest().buffers) {
    if (buffer.role != BufferRole::Activation)
      continue;
    Expected<HostTensor> tensor = session.read(buffer.name);
    if (!tensor)
      return tensor.error();
    written.add(prefix + buffer.name, std::move(*tensor));
  }
  return Error::success();
}

Error Runner::finish() {
  const std::vector<Buffer> &buffers = session.manifest().buffers;
  for (const Buffer &buffer : buffers) {
    // Memory that only holds views is shown through them.
    bool holdsViews =
        std::any_of(buffers.begin(), buffers.end(), [&](const Buffer &other) {
          return other.offsetIn && other.offsetIn->buffer == buffer.name;
        });
    if (buffer.role != BufferRole::Cache || holdsViews)
      continue;
    Expected<HostTensor> tensor = session.readAll(buffer);
    if (!tensor)
      return tensor.error();
    written.add(buffer.name, std::move(*tensor));
  }
  return Error::success();
}

} // namespace kvcache::run
