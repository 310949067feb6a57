//===- Session.h - A program of a bundle and its state ----------*- C++ -*-===//
//
// A session holds the buffers of a bundle on a device and runs one program's
// segments over them. Caches keep their contents from run to run.
//
// Buffers are allocated at capacity. Of a smaller input, what lies beyond its
// extent is padded by role: slots -1, lengths 0, page table -1, query starts
// with their last value; activations count as never written there, and so do
// cache slots without a fill value.
//
//===----------------------------------------------------------------------===//

#ifndef KVCACHE_RUNTIME_SESSION_H
#define KVCACHE_RUNTIME_SESSION_H

#include "kvcache/Runtime/Device.h"
#include "kvcache/Runtime/Tensor.h"

namespace kvcache {

struct SessionOptions {
  /// Every cache byte before the first run; without a value, slots that no
  /// write reached count as never written.
  std::optional<uint8_t> cacheFill;
};

/// One launch of a run.
struct LaunchRecord {
  const Launch *launch = nullptr; // in the bundle's manifest
  LaunchReport report;
};

struct RunReport {
  std::vector<LaunchRecord> launches; // in order
  /// What is wrong although every launch ended: slots past the pool, live
  /// output rows that nobody wrote, counters that are not zero again.
  std::vector<std::string> faults;

  uint64_t findingCount() const;
  /// No finding and no fault.
  bool clean() const { return findingCount() == 0 && faults.empty(); }
};

class Session {
public:
  /// Allocates and initialises the bundle's buffers on `device`, which has
  /// loaded `target`. `bundle` and `device` must outlive the session.
  static Expected<std::unique_ptr<Session>>
  create(const Bundle &bundle, const Target &target, const Program &program,
         Device &device, const SessionOptions &options = {});
  ~Session();
  Session(const Session &) = delete;
  Session &operator=(const Session &) = delete;

  const Manifest &manifest() const { return bundle.manifest; }
  const Target &target() const { return chosen; }
  const Program &program() const { return *running; }
  /// Goes on with another program of the bundle, over the same buffers.
  void use(const Program &program) { running = &program; }
  /// Of `program` and its buckets the smallest with room for the inputs of
  /// `segment` as they were set last, or with null of all; an error when none
  /// has.
  Expected<const Program *> programForInputs(const Program &program,
                                             const Segment *segment) const;

  /// The segment's launches on this target, in order.
  std::vector<const Launch *> launches(const Segment &segment) const;
  /// The layers that a segment's launches name, in order of first use; with
  /// `writes`, those that it launches a write of, or an attention. The two of a
  /// layer may be in two segments.
  std::vector<const Layer *> layers(const Segment &segment,
                                    std::optional<bool> writes = {}) const;

  /// Gives a buffer its value. Fixed dimensions have the manifest's extent,
  /// dynamic ones at most that; fp8 buffers also take u8. Errors start with
  /// the buffer's name.
  Error setInput(const std::string &name, const TensorView &tensor);

  /// Runs a segment's launches in order. Fails before anything ran when inputs
  /// do not fit each other: rows without slots, lengths beyond the page table,
  /// page ids outside the pool, query starts that do not ascend.
  Expected<RunReport> runSegment(const Segment &segment);

  /// Replays launches of a segment that has just run `count` times, over the
  /// same inputs; outputs and partial results are forgotten in between. Caches
  /// and outputs that differ in a bit from those of the run are faults. `graph`
  /// is frozen here when it is null; else it may have been frozen at any other
  /// inputs.
  Expected<RunReport> replaySegment(const Segment &segment, unsigned count,
                                    std::unique_ptr<DeviceGraph> &graph);

  /// Freezes some of the launches over this session's buffers.
  Expected<std::unique_ptr<DeviceGraph>>
  freeze(const std::vector<const Launch *> &launches) const;

  /// A buffer's live part. Output rows follow their layer's query rows.
  Expected<HostTensor> read(const std::string &name) const;
  /// The same into memory of the caller, which has at least the live extents;
  /// rows beyond the last query start are left alone.
  Error readInto(const std::string &name, const TensorView &tensor) const;

  /// Extents in use: of the last setInput, of the layer's query rows for its
  /// outputs, and the capacity otherwise.
  std::vector<int64_t> liveShape(const Buffer &buffer) const;
  /// Query rows of this layer's batch: the last query start.
  Expected<int64_t> queryRows(const Layer &layer) const;

  /// Device address of a buffer or view.
  uint64_t address(const Buffer &buffer) const;
  /// All bytes of the memory behind `buffer`: of its own, or of the buffer
  /// that it is a view of.
  Expected<std::vector<uint8_t>> memory(const Buffer &buffer) const;
  /// The elements of a whole buffer in row-major order, whatever its strides.
  Expected<HostTensor> readAll(const Buffer &buffer) const;
  Device &device() const { return runsOn; }

private:
  Session(const Bundle &bundle, const Target &target, const Program &program,
          Device &device, const SessionOptions &options);

  Error allocate();
  Error initialise(const Buffer &buffer);
  Error checkInputs(const Layer &layer, bool writes, bool attends) const;
  Error checkCopies(const Launch &launch) const;
  Error checkSlots(const Layer &layer, RunReport &report) const;
  /// Launches with their argument values, which `cells` holds.
  std::vector<KernelLaunch>
  prepare(const std::vector<const Launch *> &launches,
          std::vector<std::vector<uint64_t>> &cells) const;
  Error forgetResults(const Segment &segment);
  Error launchAll(const std::vector<const Launch *> &launches,
                  RunReport &report);
  Error checkOutputs(const Segment &segment, RunReport &report) const;
  Error checkCounters(const std::vector<const Buffer *> &workspaces,
                      RunReport &report) const;
  std::vector<const Buffer *> workspacesOf(const Segment &segment) const;
  Expected<std::vector<int64_t>> integers(const std::string &name) const;
  const Buffer &owner(const Buffer &buffer) const;
  const Layer *layerOfOutput(const std::string &name) const;
  /// The buffer whose rows an output has: of an attention its queries, of a
  /// launch without a layer its first; empty for other buffers.
  std::string sourceOf(const std::string &name) const;
  /// Rows of an output that a run writes: as many as its batch has, or as many
  /// as it was given.
  Expected<int64_t> writtenRows(const std::string &name) const;
  Error checkRows(const std::string &name, RunReport &report) const;

  const Bundle &bundle;
  const Target &chosen;
  const Program *running;
  Device &runsOn;
  SessionOptions options;
  std::map<std::string, uint64_t> addresses;           // of buffers with memory
  std::map<std::string, std::vector<int64_t>> extents; // of inputs so far
};

} // namespace kvcache

#endif // KVCACHE_RUNTIME_SESSION_H
