//===- Runner.h - Steps over a session --------------------------*- C++ -*-===//

#ifndef KVCACHE_TOOLS_RUN_RUNNER_H
#define KVCACHE_TOOLS_RUN_RUNNER_H

#include "TensorFiles.h"
#include "kvcache/Runtime/HostProgram.h"
#include "kvcache/Runtime/Session.h"
#include "kvcache/Runtime/Verify.h"

#include <functional>

namespace kvcache::run {

/// Counts of one kernel in one layer, over all runs.
struct KernelCounts {
  std::string kernel, layer, op;
  uint64_t launches = 0;
  ptx::Counters counters;
};

/// One launch of the invocation.
struct LaunchTime {
  std::string program, segment, kernel, layer;
  std::array<int64_t, 3> grid = {1, 1, 1};
  uint64_t step = 0;
  int64_t replay = -1;     // which replay of the step; -1: its run
  double startSeconds = 0; // since the invocation's first launch
  double seconds = 0;
  uint64_t instructions = 0;
};

/// What a whole invocation did.
struct RunSummary {
  std::string program, target, device;
  std::vector<std::string> stepPrograms; // the bucket that each step ran
  uint64_t steps = 0, segmentRuns = 0, launches = 0;
  uint64_t instructions = 0;
  uint64_t findingCount = 0;
  std::vector<ptx::Finding> findings; // the first ones
  std::vector<std::string> faults;
  std::vector<KernelCounts> kernels;
  std::vector<LaunchTime> launchTimes;
  uint64_t replays = 0;                  // of segments
  std::vector<LayerVerification> layers; // with --verify
  double compileSeconds = 0;             // of host code
  double runSeconds = 0;
  double kernelSeconds = 0; // of that, inside launches
  double verifySeconds = 0;

  /// No finding, no fault, and what was verified is right.
  bool good() const;
};

/// Runs steps of one session's program and gathers the outputs.
class Runner {
public:
  /// `verify`: compare each segment run with double precision.
  /// `replay`: freeze each segment after its first run, and replay it so many
  /// times after every run.
  Runner(Session &session, HostProgram *host, bool verify, unsigned replay = 0)
      : session(session), whole(session.program()), host(host), verify(verify),
        replay(replay) {}

  /// Sets buffers from the tensors of the file that was added last to `files`.
  Error setInputs(TensorFiles &files);
  /// One run, of the smallest bucket with room for the inputs; `prefix` starts
  /// the names of its outputs.
  Error step(TensorFiles &files, const std::string &prefix);
  /// Adds the caches to the outputs.
  Error finish();

  RunSummary &summary() { return result; }
  const TensorWriter &outputs() const { return written; }

  /// Tensors of the file added last that nothing takes.
  std::vector<std::string> unknown(const TensorFiles &files) const;

private:
  Error runSegment(const Segment &segment);
  /// Goes on with the smallest bucket that has room for a segment's inputs, or
  /// for all with null.
  Error useBucket(const Segment *segment);
  Error verifySegment(const Segment &segment, Verifier &verifier);
  Error runHost(TensorFiles &files, const std::string &prefix);
  Error onHostSegment(const Segment &segment,
                      const std::vector<TensorView> &memrefs);
  void account(const Segment &segment, const RunReport &report,
               unsigned replays);

  Session &session;
  const Program &whole; // which the steps' programs are buckets of
  HostProgram *host;
  bool verify;
  unsigned replay;
  RunSummary result;
  TensorWriter written;
  std::map<const Segment *, std::unique_ptr<DeviceGraph>> graphs;
};

} // namespace kvcache::run

#endif // KVCACHE_TOOLS_RUN_RUNNER_H
