//===- Session.cpp - A program of a bundle and its state ------------------===//

#include "kvcache/Runtime/Session.h"

#include <algorithm>
#include <cstring>
#include <set>

namespace kvcache {

namespace {

/// The buffers that a launch without a layer writes.
std::vector<std::string> outputsOf(const Launch &launch) {
  if (!needsNoLayer(launch.op))
    return {};
  if (launch.op == LaunchOp::MergeStates)
    return {launch.arguments[4].buffer, launch.arguments[5].buffer};
  return {launch.arguments[1].buffer};
}

/// Whether the kernels expect zeros in this workspace before the first run and
/// leave zeros behind: arrival counters are integers, partial results are not.
bool isCounters(const Buffer &buffer) {
  return buffer.role == BufferRole::Workspace &&
         buffer.elementType == ElementType::I32;
}

/// What a table holds where no sequence and no row is. -1, as bytes of 0xFF,
/// for slots, pages and copies of pages; 0 for lengths and query starts.
uint8_t paddingByte(BufferRole role) {
  return role == BufferRole::Slots || role == BufferRole::PageTable ||
                 role == BufferRole::PageCopies
             ? 0xFF
             : 0;
}

bool isTable(BufferRole role) {
  switch (role) {
  case BufferRole::PageTable:
  case BufferRole::Lengths:
  case BufferRole::Slots:
  case BufferRole::QueryStart:
  case BufferRole::PageCopies:
    return true;
  default:
    return false;
  }
}

} // namespace

uint64_t RunReport::findingCount() const {
  uint64_t count = 0;
  for (const LaunchRecord &record : launches)
    count += record.report.findingCount;
  return count;
}

Session::Session(const Bundle &bundle, const Target &target,
                 const Program &program, Device &device,
                 const SessionOptions &options)
    : bundle(bundle), chosen(target), running(&program), runsOn(device),
      options(options) {}

Session::~Session() {
  for (const auto &[name, address] : addresses)
    if (Error error = runsOn.free(address))
      (void)error; // The device goes away too; nobody can act on it.
}

Expected<std::unique_ptr<Session>>
Session::create(const Bundle &bundle, const Target &target,
                const Program &program, Device &device,
                const SessionOptions &options) {
  std::unique_ptr<Session> session(
      new Session(bundle, target, program, device, options));
  if (Error error = session->allocate())
    return error;
  return session;
}

Error Session::allocate() {
  // Rows behind the batch are what they are in the input.
  std::set<std::string> elementwise;
  for (const Launch &launch : chosen.launches)
    for (const std::string &name : outputsOf(launch))
      elementwise.insert(name);
  for (const Buffer &buffer : manifest().buffers) {
    if (buffer.offsetIn)
      continue;
    MemoryOptions memory;
    memory.name = buffer.name;
    memory.readOnly = buffer.access == BufferAccess::Read;
    memory.mayHoldUnwritten = buffer.role == BufferRole::Cache ||
                              buffer.role == BufferRole::Workspace ||
                              elementwise.count(buffer.name) != 0;
    Expected<uint64_t> address = runsOn.allocate(buffer.bytes, memory);
    if (!address)
      return address.error();
    addresses[buffer.name] = *address;
    if (Error error = initialise(buffer))
      return error.withContext(buffer.name);
  }
  return Error::success();
}

Error Session::initialise(const Buffer &buffer) {
  uint64_t base = addresses[buffer.name];
  if (isTable(buffer.role))
    return runsOn.fill(base, paddingByte(buffer.role), buffer.bytes);
  if (isCounters(buffer))
    return runsOn.fill(base, 0, buffer.bytes);
  if (buffer.role == BufferRole::Cache && options.cacheFill)
    return runsOn.fill(base, *options.cacheFill, buffer.bytes);
  return runsOn.forget(base, buffer.bytes);
}

const Buffer &Session::owner(const Buffer &buffer) const {
  return buffer.offsetIn ? *manifest().findBuffer(buffer.offsetIn->buffer)
                         : buffer;
}

uint64_t Session::address(const Buffer &buffer) const {
  uint64_t base = addresses.find(owner(buffer).name)->second;
  return buffer.offsetIn ? base + buffer.offsetIn->offset : base;
}

std::vector<const Launch *> Session::launches(const Segment &segment) const {
  std::vector<const Launch *> result;
  for (const Launch &launch : chosen.launches)
    if (launch.program == running->name && launch.segment == segment.name)
      result.push_back(&launch);
  return result;
}

std::vector<const Layer *> Session::layers(const Segment &segment,
                                           std::optional<bool> writes) const {
  std::vector<const Layer *> result;
  for (const Launch *launch : launches(segment)) {
    if (writes && !(*writes ? isWrite(launch->op) : isAttention(launch->op)))
      continue;
    const Layer *layer = manifest().findLayer(launch->layer);
    if (layer && std::find(result.begin(), result.end(), layer) == result.end())
      result.push_back(layer);
  }
  return result;
}

std::vector<const Buffer *>
Session::workspacesOf(const Segment &segment) const {
  std::vector<const Buffer *> result;
  for (const Launch *launch : launches(segment))
    for (const Argument &argument : launch->arguments) {
      if (argument.kind != Argument::Kind::Buffer)
        continue;
      const Buffer *buffer = manifest().findBuffer(argument.buffer);
      if (buffer->role == BufferRole::Workspace &&
          std::find(result.begin(), result.end(), buffer) == result.end())
        result.push_back(buffer);
    }
  return result;
}

const Layer *Session::layerOfOutput(const std::string &name) const {
  for (const Layer &layer : manifest().layers)
    if (layer.buffers.output == name || layer.buffers.lse == name)
      return &layer;
  return nullptr;
}

Error Session::setInput(const std::string &name, const TensorView &tensor) {
  const Buffer *buffer = manifest().findBuffer(name);
  if (!buffer)
    return makeError(name + ": the bundle has no buffer of that name");
  if (buffer->role == BufferRole::Workspace)
    return makeError(name + ": is a workspace, which has no inputs");
  bool sameType =
      tensor.elementType == buffer->elementType ||
      (isFP8(buffer->elementType) && tensor.elementType == ElementType::U8);
  bool fits = tensor.shape.size() == buffer->shape.size();
  for (size_t i = 0; fits && i < tensor.shape.size(); ++i) {
    bool dynamic = std::count(buffer->dynamicDims.begin(),
                              buffer->dynamicDims.end(), int64_t(i)) != 0;
    fits =
        tensor.shape[i] >= 0 && (dynamic ? tensor.shape[i] <= buffer->shape[i]
                                         : tensor.shape[i] == buffer->shape[i]);
  }
  if (!sameType || !fits) {
    std::string atMost = buffer->dynamicDims.empty() ? ""
                                                     : " at most, with "
                                                       "dynamic dims ";
    for (int64_t dim : buffer->dynamicDims)
      atMost += (dim == buffer->dynamicDims.front() ? "" : ", ") +
                std::to_string(dim);
    return makeError(name + ": expected " +
                     typeText(buffer->elementType, buffer->shape) + atMost +
                     ", found " + typeText(tensor.elementType, tensor.shape));
  }

  // Gather into a copy of the memory, so that gaps between strides and other
  // views of the same memory stay as they are.
  uint64_t base = address(*buffer);
  unsigned bytes = elementTypeBytes(buffer->elementType);
  bool table = isTable(buffer->role);
  std::vector<int64_t> from =
      tensor.strides.empty() ? contiguousStrides(tensor.shape) : tensor.strides;
  const uint8_t *source = static_cast<const uint8_t *>(tensor.data);
  if (!buffer->offsetIn) {
    Error error =
        table ? runsOn.fill(base, paddingByte(buffer->role), buffer->bytes)
        : buffer->role == BufferRole::Cache
            ? Error::success()
            : runsOn.forget(base, buffer->bytes);
    if (error)
      return error.withContext(name);
  }
  // The innermost contiguous run goes in one copy.
  std::vector<int64_t> outer = tensor.shape, outerFrom = from,
                       outerTo = buffer->strides;
  uint64_t run = bytes;
  while (!outer.empty() && outerFrom.back() * int64_t(bytes) == int64_t(run) &&
         outerTo.back() * int64_t(bytes) == int64_t(run)) {
    run *= uint64_t(outer.back());
    outer.pop_back();
    outerFrom.pop_back();
    outerTo.pop_back();
  }
  std::vector<int64_t> position(outer.size(), 0);
  bool empty = elementCount(tensor.shape) == 0;
  while (!empty) {
    int64_t sourceOffset = 0, targetOffset = 0;
    for (size_t i = 0; i < outer.size(); ++i) {
      sourceOffset += position[i] * outerFrom[i];
      targetOffset += position[i] * outerTo[i];
    }
    if (Error error =
            runsOn.copyIn(base + uint64_t(targetOffset) * bytes,
                          source + sourceOffset * int64_t(bytes), run))
      return error.withContext(name);
    size_t dim = outer.size();
    while (dim > 0 && ++position[dim - 1] == outer[dim - 1])
      position[--dim] = 0;
    if (dim == 0)
      break;
  }

  if (buffer->role == BufferRole::QueryStart && tensor.shape[0] > 0) {
    // Sequences that are not there end where the last one does.
    int32_t last;
    std::memcpy(&last, source + (tensor.shape[0] - 1) * from[0] * 4,
                sizeof(last));
    std::vector<int32_t> padding(size_t(buffer->shape[0] - tensor.shape[0]),
                                 last);
    if (Error error = runsOn.copyIn(base + uint64_t(tensor.shape[0]) * 4,
                                    padding.data(), padding.size() * 4))
      return error.withContext(name);
  }
  extents[name] = tensor.shape;
  return Error::success();
}

Expected<std::vector<uint8_t>> Session::memory(const Buffer &buffer) const {
  const Buffer &holder = owner(buffer);
  std::vector<uint8_t> bytes(holder.bytes);
  if (Error error = runsOn.copyOut(bytes.data(), address(holder), bytes.size()))
    return error.withContext(holder.name);
  return bytes;
}

Expected<HostTensor> Session::readAll(const Buffer &buffer) const {
  HostTensor tensor;
  tensor.elementType = buffer.elementType;
  tensor.shape = buffer.shape;
  tensor.data.resize(size_t(elementCount(buffer.shape)) *
                     elementTypeBytes(buffer.elementType));
  std::optional<uint64_t> span = spanBytes(buffer);
  std::vector<uint8_t> bytes(*span);
  if (Error error = runsOn.copyOut(bytes.data(), address(buffer), *span))
    return error.withContext(buffer.name);
  copyStrided(buffer.shape, elementTypeBytes(buffer.elementType), bytes.data(),
              buffer.strides, tensor.data.data(),
              contiguousStrides(buffer.shape));
  return tensor;
}

std::vector<int64_t> Session::liveShape(const Buffer &buffer) const {
  std::vector<int64_t> shape = buffer.shape;
  auto given = extents.find(buffer.name);
  if (given != extents.end())
    return given->second;
  // As many rows as the query, which may be the output of another layer, or of
  // a merge. The bound is for manifests in which that goes round.
  size_t most = manifest().layers.size() + chosen.launches.size();
  std::string source = sourceOf(buffer.name);
  for (size_t i = 0; !source.empty() && i < most; ++i) {
    auto rows = extents.find(source);
    if (rows != extents.end()) {
      shape[0] = rows->second[0];
      break;
    }
    source = sourceOf(source);
  }
  return shape;
}

std::string Session::sourceOf(const std::string &name) const {
  if (const Layer *layer = layerOfOutput(name))
    return layer->buffers.queryInput();
  for (const Launch &launch : chosen.launches)
    for (const std::string &output : outputsOf(launch))
      if (output == name)
        return launch.arguments[0].buffer;
  return "";
}

Expected<std::vector<int64_t>>
Session::integers(const std::string &name) const {
  const Buffer &buffer = *manifest().findBuffer(name);
  Expected<HostTensor> tensor = readAll(buffer);
  if (!tensor)
    return tensor.error();
  size_t count = size_t(elementCount(tensor->shape));
  std::vector<int64_t> values(count);
  for (size_t i = 0; i < count; ++i) {
    if (buffer.elementType == ElementType::I64) {
      std::memcpy(&values[i], tensor->data.data() + i * 8, 8);
    } else {
      int32_t value;
      std::memcpy(&value, tensor->data.data() + i * 4, 4);
      values[i] = value;
    }
  }
  return values;
}

Expected<const Program *>
Session::programForInputs(const Program &program,
                          const Segment *segment) const {
  std::vector<const Layer *> used;
  if (segment)
    used = layers(*segment);
  else
    for (const Layer &layer : manifest().layers)
      used.push_back(&layer);
  int64_t sequences = 0, tokens = 0;
  auto raise = [&](const std::string &name, int64_t &most) {
    auto given = extents.find(name);
    if (given != extents.end())
      most = std::max(most, given->second[0]);
  };
  for (const Layer *layer : used) {
    raise(layer->buffers.lengths, sequences);
    raise(layer->buffers.queryInput(), tokens);
    raise(layer->buffers.key, tokens);
  }
  for (const Launch &launch : chosen.launches)
    if (needsNoLayer(launch.op) && launch.program == program.name &&
        (!segment || launch.segment == segment->name))
      raise(launch.arguments[0].buffer, tokens);
  if (const Program *found = manifest().programFor(program, sequences, tokens))
    return found;
  Capacities sizes = manifest().capacitiesOf(program);
  return makeError("program " + program.name + " has room for " +
                   std::to_string(sizes.maxSequences) + " sequences and " +
                   std::to_string(sizes.maxTokens) + " tokens, found " +
                   std::to_string(sequences) + " and " +
                   std::to_string(tokens));
}

Expected<int64_t> Session::queryRows(const Layer &layer) const {
  Expected<std::vector<int64_t>> starts = integers(layer.buffers.queryStart);
  if (!starts)
    return starts.error();
  return starts->back();
}

Error Session::checkInputs(const Layer &layer, bool writes,
                           bool attends) const {
  const LayerBuffers &names = layer.buffers;
  const Capacities &sizes = manifest().capacities;
  Expected<std::vector<int64_t>> starts = integers(names.queryStart);
  Expected<std::vector<int64_t>> lengths = integers(names.lengths);
  Expected<std::vector<int64_t>> table = integers(names.pageTable);
  if (!starts || !lengths || !table)
    return !starts ? starts.error()
                   : (!lengths ? lengths.error() : table.error());
  for (size_t i = 0; i < starts->size(); ++i) {
    int64_t low = i ? (*starts)[i - 1] : 0;
    if ((*starts)[i] < low || (i == 0 && (*starts)[i] != 0))
      return makeError(names.queryStart + "[" + std::to_string(i) +
                       "]: expected " + (i ? "at least " : "") +
                       std::to_string(low) + ", found " +
                       std::to_string((*starts)[i]));
  }
  int64_t rows = starts->back();
  const std::string &query = names.queryInput();
  for (const std::string *name : {&query, &names.key, &names.value}) {
    if (name->empty() || !(name == &query ? attends : writes))
      continue;
    auto given = extents.find(*name);
    if (given == extents.end() && rows > 0 && !layerOfOutput(*name))
      return makeError(*name + ": no value was given; expected " +
                       std::to_string(rows) + " rows, as " + names.queryStart +
                       " says");
    if (given != extents.end() && given->second[0] < rows)
      return makeError(*name + ": expected at least " + std::to_string(rows) +
                       " rows, as " + names.queryStart + " says, found " +
                       std::to_string(given->second[0]));
  }
  for (const std::string *name : {&names.sinks, &names.alibiSlopes})
    if (attends && !name->empty() && !extents.count(*name))
      return makeError(*name +
                       ": no value was given; expected one for each of "
                       "the layer's " +
                       std::to_string(layer.queryHeads) + " query heads");
  if (rows > 0 && attends && !extents.count(names.lengths))
    return makeError(names.lengths + ": no value was given; expected the " +
                     "length of each sequence, the new tokens included");
  if (writes) {
    Expected<std::vector<int64_t>> slots = integers(names.slotMapping);
    if (!slots)
      return slots.error();
    auto keys = extents.find(names.key);
    int64_t keyRows = keys == extents.end() ? 0 : keys->second[0];
    for (size_t row = size_t(keyRows); row < slots->size(); ++row)
      if ((*slots)[row] >= 0)
        return makeError(names.slotMapping + "[" + std::to_string(row) +
                         "]: expected -1, as " + names.key + " has " +
                         std::to_string(keyRows) + " rows, found " +
                         std::to_string((*slots)[row]));
    for (const std::string *name : {&names.ropeTable, &names.positions})
      if (!name->empty() && rows > 0 && !extents.count(*name))
        return makeError(*name + ": no value was given; expected that of " +
                         (name == &names.positions
                              ? std::to_string(rows) + " rows"
                              : "the model's cosines and sines"));
    auto positions = extents.find(names.positions);
    if (positions != extents.end() && positions->second[0] < keyRows)
      return makeError(names.positions + ": expected one for each of the " +
                       std::to_string(keyRows) + " rows of " + names.key +
                       ", found " + std::to_string(positions->second[0]));
  }
  int64_t longest = sizes.maxPagesPerSequence * layer.pageSize;
  for (size_t i = 0; i < lengths->size(); ++i) {
    int64_t length = (*lengths)[i];
    if (length < 0 || length > longest)
      return makeError(names.lengths + "[" + std::to_string(i) +
                       "]: expected 0 to " + std::to_string(longest) + " (" +
                       std::to_string(sizes.maxPagesPerSequence) +
                       " pages of " + std::to_string(layer.pageSize) +
                       "), found " + std::to_string(length));
    for (int64_t page = 0; page * layer.pageSize < length; ++page) {
      int64_t id =
          (*table)[i * size_t(sizes.maxPagesPerSequence) + size_t(page)];
      if (id < 0 || id >= sizes.numPages)
        return makeError(names.pageTable + "[" + std::to_string(i) + ", " +
                         std::to_string(page) + "]: expected a page below " +
                         std::to_string(sizes.numPages) +
                         " for the sequence's " + std::to_string(length) +
                         " tokens, found " + std::to_string(id));
    }
  }
  return Error::success();
}

Error Session::checkCopies(const Launch &launch) const {
  const std::string &name = manifest().findPageCopies(launch)->name;
  Expected<std::vector<int64_t>> pages = integers(name);
  if (!pages)
    return pages.error();
  int64_t numPages = manifest().capacities.numPages;
  std::map<int64_t, size_t> targets;
  auto isSkipped = [&](size_t pair) {
    return std::min((*pages)[2 * pair], (*pages)[2 * pair + 1]) < 0 ||
           std::max((*pages)[2 * pair], (*pages)[2 * pair + 1]) >= numPages;
  };
  auto clash = [&](size_t pair, size_t entry, size_t other) {
    return makeError(name + "[" + std::to_string(pair) + ", " +
                     std::to_string(entry) + "]: page " +
                     std::to_string((*pages)[2 * pair + entry]) +
                     " is copied to by pair " + std::to_string(other) +
                     " too; expected pages that are copied to once, and not "
                     "from as well");
  };
  for (size_t pair = 0; 2 * pair < pages->size(); ++pair)
    if (!isSkipped(pair))
      if (auto [known, isNew] =
              targets.try_emplace((*pages)[2 * pair + 1], pair);
          !isNew)
        return clash(pair, 1, known->second);
  for (size_t pair = 0; 2 * pair < pages->size(); ++pair)
    if (auto known = targets.find((*pages)[2 * pair]);
        !isSkipped(pair) && known != targets.end())
      return clash(pair, 0, known->second);
  return Error::success();
}

Error Session::checkSlots(const Layer &layer, RunReport &report) const {
  if (layer.buffers.slotMapping.empty())
    return Error::success();
  Expected<std::vector<int64_t>> slots = integers(layer.buffers.slotMapping);
  if (!slots)
    return slots.error();
  int64_t pages = manifest().capacities.numPages;
  int64_t pool = pages * layer.pageSize;
  for (size_t row = 0; row < slots->size(); ++row) {
    if ((*slots)[row] < pool)
      continue;
    report.faults.push_back(
        layer.buffers.slotMapping + "[" + std::to_string(row) +
        "]: expected a slot below " + std::to_string(pool) + " (" +
        std::to_string(pages) + " pages of " + std::to_string(layer.pageSize) +
        "), found " + std::to_string((*slots)[row]) + "; the row is dropped");
    break;
  }
  const LayerBuffers &names = layer.buffers;
  if (names.positions.empty())
    return Error::success();
  Expected<std::vector<int64_t>> positions = integers(names.positions);
  if (!positions)
    return positions.error();
  int64_t most = manifest().findBuffer(names.ropeTable)->shape[0];
  for (size_t row = 0; row < slots->size(); ++row) {
    if ((*slots)[row] < 0 ||
        ((*positions)[row] >= 0 && (*positions)[row] < most))
      continue;
    report.faults.push_back(names.positions + "[" + std::to_string(row) +
                            "]: expected a position of the " +
                            std::to_string(most) + " of " + names.ropeTable +
                            ", found " + std::to_string((*positions)[row]) +
                            "; the row is dropped");
    break;
  }
  return Error::success();
}

std::vector<KernelLaunch>
Session::prepare(const std::vector<const Launch *> &launches,
                 std::vector<std::vector<uint64_t>> &cells) const {
  std::vector<KernelLaunch> result;
  for (const Launch *entry : launches) {
    KernelLaunch launch;
    launch.kernel = entry->kernel;
    launch.grid = entry->grid;
    launch.block = entry->block;
    launch.sharedBytes = entry->sharedBytes;
    std::vector<uint64_t> values(entry->arguments.size(), 0);
    for (size_t i = 0; i < values.size(); ++i) {
      const Argument &argument = entry->arguments[i];
      switch (argument.kind) {
      case Argument::Kind::Buffer:
        values[i] = address(*manifest().findBuffer(argument.buffer));
        break;
      case Argument::Kind::F32:
        std::memcpy(&values[i], &argument.f32.bits, 4);
        break;
      case Argument::Kind::I32: {
        int32_t narrow = int32_t(argument.integer);
        std::memcpy(&values[i], &narrow, 4);
        break;
      }
      case Argument::Kind::I64:
        std::memcpy(&values[i], &argument.integer, 8);
        break;
      case Argument::Kind::Null:
        break;
      }
      launch.arguments.push_back(&values[i]);
    }
    // The values' place in memory does not change when their vector moves.
    cells.push_back(std::move(values));
    result.push_back(std::move(launch));
  }
  return result;
}

Error Session::launchAll(const std::vector<const Launch *> &launches,
                         RunReport &report) {
  std::vector<std::vector<uint64_t>> cells;
  std::vector<KernelLaunch> prepared = prepare(launches, cells);
  for (size_t i = 0; i < prepared.size(); ++i) {
    Expected<LaunchReport> result = runsOn.launch(prepared[i]);
    if (!result)
      return result.error();
    report.launches.push_back({launches[i], std::move(*result)});
  }
  return Error::success();
}

Error Session::forgetResults(const Segment &segment) {
  for (const Buffer *buffer : workspacesOf(segment))
    if (!isCounters(*buffer))
      if (Error error = runsOn.forget(address(*buffer), buffer->bytes))
        return error.withContext(buffer->name);
  for (const Launch *launch : launches(segment))
    for (const std::string &name : outputsOf(*launch)) {
      const Buffer &buffer = *manifest().findBuffer(name);
      if (Error error = runsOn.forget(address(buffer), buffer.bytes))
        return error.withContext(buffer.name);
    }
  for (const Layer *layer : layers(segment, /*writes=*/false))
    for (const std::string *name :
         {&layer->buffers.output, &layer->buffers.lse})
      if (!name->empty()) {
        const Buffer &buffer = *manifest().findBuffer(*name);
        if (Error error = runsOn.forget(address(buffer), buffer.bytes))
          return error.withContext(buffer.name);
      }
  return Error::success();
}

Expected<RunReport> Session::runSegment(const Segment &segment) {
  std::vector<const Layer *> written = layers(segment, /*writes=*/true);
  std::vector<const Layer *> read = layers(segment, /*writes=*/false);
  auto contains = [](const std::vector<const Layer *> &list,
                     const Layer *layer) {
    return std::find(list.begin(), list.end(), layer) != list.end();
  };
  for (const Layer *layer : layers(segment))
    if (Error error = checkInputs(*layer, contains(written, layer),
                                  contains(read, layer)))
      return error;
  for (const Launch *launch : launches(segment))
    if (launch->op == LaunchOp::CopyPages)
      if (Error error = checkCopies(*launch))
        return error;
  // Outputs and partial results of an earlier run must not pass for this one's.
  if (Error error = forgetResults(segment))
    return error;
  std::vector<const Buffer *> workspaces = workspacesOf(segment);
  RunReport report;
  for (const Layer *layer : written)
    if (Error error = checkSlots(*layer, report))
      return error;
  if (Error error = launchAll(launches(segment), report))
    return error;
  if (Error error = checkOutputs(segment, report))
    return error;
  if (Error error = checkCounters(workspaces, report))
    return error;
  return report;
}

Expected<std::unique_ptr<DeviceGraph>>
Session::freeze(const std::vector<const Launch *> &launches) const {
  std::vector<std::vector<uint64_t>> cells;
  return runsOn.freeze(prepare(launches, cells));
}

Expected<RunReport>
Session::replaySegment(const Segment &segment, unsigned count,
                       std::unique_ptr<DeviceGraph> &graph) {
  std::vector<const Launch *> entries = launches(segment);
  std::vector<const Layer *> used = layers(segment);
  std::map<std::string, std::vector<uint8_t>> expected;
  for (const Layer *layer : used)
    for (const std::string *name :
         {&layer->buffers.output, &layer->buffers.lse, &layer->buffers.kCache,
          &layer->buffers.vCache})
      if (!name->empty())
        expected[*name];
  for (const Launch *launch : entries)
    for (const std::string &name : outputsOf(*launch))
      expected[name];
  for (auto &[name, contents] : expected) {
    Expected<std::vector<uint8_t>> bytes = memory(*manifest().findBuffer(name));
    if (!bytes)
      return bytes.error();
    contents = std::move(*bytes);
  }
  if (!graph) {
    Expected<std::unique_ptr<DeviceGraph>> fresh = freeze(entries);
    if (!fresh)
      return fresh.error();
    graph = std::move(*fresh);
  }
  RunReport report;
  for (unsigned i = 0; i < count; ++i) {
    std::string which =
        "replay " + std::to_string(i + 1) + " of " + std::to_string(count);
    if (Error error = forgetResults(segment))
      return error;
    Expected<std::vector<LaunchReport>> reports = graph->replay();
    if (!reports)
      return reports.error().withContext(which);
    for (size_t j = 0; j < reports->size(); ++j)
      report.launches.push_back({entries[j], std::move((*reports)[j])});
    for (const auto &[name, bytes] : expected) {
      Expected<std::vector<uint8_t>> found =
          memory(*manifest().findBuffer(name));
      if (!found)
        return found.error();
      if (*found == bytes)
        continue;
      size_t at = size_t(
          std::mismatch(bytes.begin(), bytes.end(), found->begin()).first -
          bytes.begin());
      report.faults.push_back(which + ": " + name +
                              ": expected the bytes of the run, found another "
                              "at byte " +
                              std::to_string(at));
    }
    RunReport counters;
    if (Error error = checkCounters(workspacesOf(segment), counters))
      return error;
    for (const std::string &fault : counters.faults)
      report.faults.push_back(which + ": " + fault);
  }
  return report;
}

Expected<int64_t> Session::writtenRows(const std::string &name) const {
  int64_t rows = liveShape(*manifest().findBuffer(name))[0];
  size_t most = chosen.launches.size() + 1;
  std::string from = name;
  for (size_t i = 0; !from.empty() && i < most; ++i) {
    if (const Layer *layer = layerOfOutput(from)) {
      Expected<int64_t> live = queryRows(*layer);
      if (!live)
        return live.error();
      return std::min(rows, *live);
    }
    from = sourceOf(from);
  }
  return rows;
}

Error Session::checkOutputs(const Segment &segment, RunReport &report) const {
  for (const Layer *layer : layers(segment, /*writes=*/false))
    for (const std::string *name :
         {&layer->buffers.output, &layer->buffers.lse})
      if (!name->empty())
        if (Error error = checkRows(*name, report))
          return error;
  for (const Launch *launch : launches(segment))
    for (const std::string &name : outputsOf(*launch))
      if (Error error = checkRows(name, report))
        return error;
  return Error::success();
}

Error Session::checkRows(const std::string &name, RunReport &report) const {
  const Buffer &buffer = *manifest().findBuffer(name);
  Expected<int64_t> rows = writtenRows(name);
  if (!rows)
    return rows.error();
  uint64_t rowBytes =
      uint64_t(buffer.strides[0]) * elementTypeBytes(buffer.elementType);
  Buffer row = buffer;
  row.shape[0] = 1;
  uint64_t rowSpan = *spanBytes(row);
  for (int64_t i = 0; i < *rows; ++i) {
    Expected<uint64_t> first = runsOn.firstUnwritten(
        address(buffer) + uint64_t(i) * rowBytes, rowSpan);
    if (!first)
      return first.error();
    if (*first == rowSpan)
      continue;
    report.faults.push_back(
        buffer.name + ": row " + std::to_string(i) + " of " +
        std::to_string(*rows) + " was not fully written: byte " +
        std::to_string(*first) + " of its " + std::to_string(rowSpan) +
        " is the first that nobody wrote");
    break;
  }
  return Error::success();
}

Error Session::checkCounters(const std::vector<const Buffer *> &workspaces,
                             RunReport &report) const {
  for (const Buffer *workspace : workspaces) {
    const Buffer &buffer = *workspace;
    if (!isCounters(buffer))
      continue;
    std::vector<int32_t> counters(buffer.bytes / 4);
    if (Error error = runsOn.copyOut(counters.data(), address(buffer),
                                     counters.size() * 4))
      return error.withContext(buffer.name);
    for (size_t i = 0; i < counters.size(); ++i)
      if (counters[i] != 0) {
        report.faults.push_back(buffer.name + "[" + std::to_string(i) +
                                "]: expected 0 after the run, found " +
                                std::to_string(counters[i]));
        break;
      }
  }
  return Error::success();
}

Expected<HostTensor> Session::read(const std::string &name) const {
  const Buffer *buffer = manifest().findBuffer(name);
  if (!buffer)
    return makeError(name + ": the bundle has no buffer of that name");
  HostTensor tensor;
  tensor.elementType = buffer->elementType;
  tensor.shape = liveShape(*buffer);
  unsigned bytes = elementTypeBytes(buffer->elementType);
  tensor.data.resize(size_t(elementCount(tensor.shape)) * bytes);
  std::vector<uint8_t> memory(*spanBytes(*buffer));
  if (Error error =
          runsOn.copyOut(memory.data(), address(*buffer), memory.size()))
    return error.withContext(name);
  copyStrided(tensor.shape, bytes, memory.data(), buffer->strides,
              tensor.data.data(), contiguousStrides(tensor.shape));
  return tensor;
}

Error Session::readInto(const std::string &name,
                        const TensorView &tensor) const {
  Expected<HostTensor> live = read(name);
  if (!live)
    return live.error();
  std::vector<int64_t> shape = live->shape;
  Expected<int64_t> rows = writtenRows(name);
  if (!rows)
    return rows.error();
  shape[0] = std::min(shape[0], *rows);
  bool fits = tensor.shape.size() == shape.size() &&
              tensor.elementType == live->elementType;
  for (size_t i = 0; fits && i < shape.size(); ++i)
    fits = i == 0 ? tensor.shape[i] >= shape[i] : tensor.shape[i] == shape[i];
  if (!fits)
    return makeError(name + ": expected room for " +
                     typeText(live->elementType, shape) + ", found " +
                     typeText(tensor.elementType, tensor.shape));
  copyStrided(shape, elementTypeBytes(live->elementType), live->data.data(),
              contiguousStrides(live->shape),
              static_cast<uint8_t *>(tensor.data),
              tensor.strides.empty() ? contiguousStrides(tensor.shape)
                                     : tensor.strides);
  return Error::success();
}

} // namespace kvcache
