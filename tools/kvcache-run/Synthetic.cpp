//===- Synthetic.cpp - Inputs without files -------------------------------===//

#include "Synthetic.h"
#include "kvcache/Support/FP8.h"

#include <cstring>

namespace kvcache::run {

namespace {

/// Repeatable numbers in [-1, 1) (Knuth's MMIX generator).
class Numbers {
public:
  explicit Numbers(uint64_t seed) : state(seed * 0x9E3779B97F4A7C15ull + 1) {}
  float next() {
    state = state * 6364136223846793005ull + 1442695040888963407ull;
    return float(double(state >> 40) / double(1 << 23) - 1);
  }

private:
  uint64_t state;
};

Error encode(ElementType type, float value, std::vector<uint8_t> &out) {
  uint16_t half;
  switch (type) {
  case ElementType::BF16:
  case ElementType::F16:
    half = type == ElementType::BF16 ? toBF16(value) : toF16(value);
    out.push_back(uint8_t(half));
    out.push_back(uint8_t(half >> 8));
    return Error::success();
  case ElementType::F8E4M3FN:
  case ElementType::F8E5M2:
    // Codes of moderate size; neither NaN nor infinity.
    out.push_back(uint8_t((value < 0 ? 0x80 : 0) |
                          int((value < 0 ? -value : value) * 0x48)));
    return Error::success();
  case ElementType::F32: {
    const uint8_t *bytes = reinterpret_cast<const uint8_t *>(&value);
    out.insert(out.end(), bytes, bytes + 4);
    return Error::success();
  }
  default:
    return makeError("--lengths makes floating-point inputs, found " +
                     std::string(elementTypeName(type)));
  }
}

Error setRandom(Session &session, const std::string &name, int64_t rows,
                uint64_t seed) {
  const Buffer &buffer = *session.manifest().findBuffer(name);
  HostTensor tensor;
  tensor.elementType = buffer.elementType;
  tensor.shape = buffer.shape;
  if (rows >= 0)
    tensor.shape[0] = rows;
  Numbers numbers(seed);
  for (int64_t i = 0, n = elementCount(tensor.shape); i < n; ++i)
    if (Error error = encode(buffer.elementType, numbers.next(), tensor.data))
      return error.withContext(name);
  return session.setInput(name, tensor.view());
}

/// What one token has in a cache: moderate codes; where rows hold scales
/// moderate ones, and of an fp8_ds_mla row a rotary part, too.
Error addRow(const Layer &layer, const Buffer &cache, Numbers &numbers,
             std::vector<uint8_t> &out) {
  auto add = [&](ElementType type, int64_t count, float low = 0) {
    for (int64_t i = 0; i < count; ++i)
      if (Error error = encode(type, low + numbers.next(), out))
        return error.withContext(cache.name);
    return Error::success();
  };
  if (cache.elementType == ElementType::F32) // scales of a token
    return add(ElementType::F32, cache.shape[2], 1.25f);
  if (cache.elementType != ElementType::U8)
    return add(cache.elementType, cache.shape[2] * cache.shape[3]);
  Error error;
  for (int64_t head = 0; !error && head < cache.shape[2]; ++head) {
    error = add(ElementType::F8E4M3FN,
                layer.isTileScaled() ? layer.valueDim() : cache.shape[3] - 4);
    if (!error)
      error = add(ElementType::F32,
                  layer.isTileScaled() ? layer.valueDim() / 128 : 1, 1.25f);
    if (!error)
      error = add(ElementType::BF16, layer.ropeDim);
  }
  return error;
}

/// Codes in the slots that `table` and `lengths` reach, NaN in all others:
/// every floating-point type has a NaN of ones.
Error setPoisoned(Session &session, const Layer &layer, const std::string &name,
                  const StepLengths &lengths, const std::vector<int32_t> &table,
                  uint64_t seed) {
  int64_t pageSize = layer.pageSize;
  const Buffer &buffer = *session.manifest().findBuffer(name);
  HostTensor tensor;
  tensor.elementType = buffer.elementType;
  tensor.shape = buffer.shape;
  size_t rowBytes =
      size_t(elementCount(buffer.shape) / (buffer.shape[0] * pageSize)) *
      elementTypeBytes(buffer.elementType);
  tensor.data.assign(size_t(buffer.shape[0] * pageSize) * rowBytes, 0xFF);
  size_t pages = table.size() / lengths.size();
  Numbers numbers(seed);
  std::vector<uint8_t> row;
  for (size_t i = 0; i < lengths.size(); ++i)
    for (int64_t t = 0; t < lengths[i]; ++t) {
      row.clear();
      if (Error error = addRow(layer, buffer, numbers, row))
        return error;
      int64_t slot =
          table[i * pages + size_t(t / pageSize)] * pageSize + t % pageSize;
      std::memcpy(tensor.data.data() + size_t(slot) * rowBytes, row.data(),
                  rowBytes);
    }
  return session.setInput(name, tensor.view());
}

template <typename Integer>
Error setIntegers(Session &session, const std::string &name,
                  std::vector<int64_t> shape, std::vector<Integer> values) {
  TensorView view;
  view.elementType = sizeof(Integer) == 8 ? ElementType::I64 : ElementType::I32;
  view.shape = std::move(shape);
  view.data = values.data();
  return session.setInput(name, view);
}

} // namespace

Expected<std::vector<StepLengths>>
parseLengths(const std::vector<std::string> &steps) {
  std::vector<StepLengths> result;
  for (const std::string &step : steps) {
    StepLengths lengths;
    for (size_t at = 0; at <= step.size();) {
      size_t end = std::min(step.find('+', at), step.size());
      std::string text = step.substr(at, end - at);
      if (text.empty() || text.size() > 9 ||
          text.find_first_not_of("0123456789") != std::string::npos)
        return makeError("--lengths: expected numbers, steps by commas and "
                         "sequences by '+', found \"" +
                         step + "\"");
      lengths.push_back(std::stoll(text));
      at = end + 1;
    }
    result.push_back(std::move(lengths));
  }
  return result;
}

Error fillCaches(Session &session) {
  uint64_t seed = 1000;
  for (const Layer &layer : session.manifest().layers)
    for (const std::string *name :
         {&layer.buffers.kCache, &layer.buffers.vCache, &layer.buffers.kScales,
          &layer.buffers.vScales}) {
      const Buffer *found =
          name->empty() ? nullptr : session.manifest().findBuffer(*name);
      if (!found || (found->elementType != ElementType::U8 &&
                     found->elementType != ElementType::F32))
        continue;
      const Buffer &cache = *found;
      HostTensor tensor{cache.elementType, cache.shape, {}};
      Numbers numbers(++seed);
      const size_t bytes = size_t(elementCount(cache.shape)) *
                           elementTypeBytes(cache.elementType);
      while (tensor.data.size() < bytes)
        if (Error error = addRow(layer, cache, numbers, tensor.data))
          return error;
      if (Error error = session.setInput(cache.name, tensor.view()))
        return error;
    }
  for (const Buffer &buffer : session.manifest().buffers) {
    bool view = buffer.offsetIn.has_value();
    if (buffer.role == BufferRole::Cache && !view &&
        buffer.elementType != ElementType::U8 &&
        buffer.elementType != ElementType::F32)
      if (Error error = setRandom(session, buffer.name, -1, ++seed))
        return error;
  }
  return Error::success();
}

Error setStep(Session &session, const StepLengths &given, uint64_t step,
              const SyntheticOptions &options) {
  Capacities sizes = session.manifest().capacitiesOf(session.program());
  size_t sequences =
      size_t(std::min(sizes.maxSequences, sizes.maxTokens / options.newTokens));
  StepLengths lengths = given;
  if (lengths.size() == 1)
    lengths.assign(sequences, given.front());
  if (lengths.size() > sequences)
    return makeError("--lengths: the bundle takes " +
                     std::to_string(sequences) + " sequences with " +
                     (options.newTokens == 1
                          ? "a new token"
                          : std::to_string(options.newTokens) + " new tokens") +
                     " each, found " + std::to_string(lengths.size()));
  uint64_t seed = 2000 + 100000 * step;
  for (const Layer &layer : session.manifest().layers) {
    const LayerBuffers &names = layer.buffers;
    std::vector<int32_t> lives(lengths.begin(), lengths.end()), starts = {0};
    std::vector<int32_t> table(lengths.size() *
                                   size_t(sizes.maxPagesPerSequence),
                               options.poison ? 2147480000 : -1);
    std::vector<int64_t> slots, positions;
    int64_t nextPage = 0;
    for (size_t i = 0; i < lengths.size(); ++i) {
      int64_t pages = (lengths[i] + layer.pageSize - 1) / layer.pageSize;
      if (pages > sizes.maxPagesPerSequence ||
          nextPage + pages > sizes.numPages)
        return makeError(
            "--lengths: a length of " + std::to_string(lengths[i]) + " needs " +
            std::to_string(pages) + " pages; the bundle has " +
            std::to_string(sizes.maxPagesPerSequence) + " a sequence and " +
            std::to_string(sizes.numPages - nextPage) + " left in its pool");
      // From the end of the pool, so that pages do not lie in order.
      for (int64_t page = 0; page < pages; ++page)
        table[i * size_t(sizes.maxPagesPerSequence) + size_t(page)] =
            int32_t(sizes.numPages - 1 - nextPage++);
      int64_t rows = std::min(lengths[i], options.newTokens);
      starts.push_back(starts.back() + int32_t(rows));
      for (int64_t at = lengths[i] - rows; at < lengths[i]; ++at) {
        int64_t page = table[i * size_t(sizes.maxPagesPerSequence) +
                             size_t(at / layer.pageSize)];
        slots.push_back(page * layer.pageSize + at % layer.pageSize);
        positions.push_back(at);
      }
    }
    if (options.poison)
      for (const std::string *name :
           {&names.kCache, &names.vCache, &names.kScales, &names.vScales})
        if (Error error = name->empty() ? Error::success()
                                        : setPoisoned(session, layer, *name,
                                                      lengths, table, ++seed))
          return error;
    int64_t rows = int64_t(slots.size()), count = int64_t(lengths.size());
    if (Error error = setIntegers<int32_t>(session, names.lengths, {count},
                                           std::move(lives)))
      return error;
    if (Error error = setIntegers<int32_t>(session, names.queryStart,
                                           {count + 1}, std::move(starts)))
      return error;
    if (Error error = setIntegers<int32_t>(session, names.pageTable,
                                           {count, sizes.maxPagesPerSequence},
                                           std::move(table)))
      return error;
    if (!names.slotMapping.empty())
      if (Error error = setIntegers<int64_t>(session, names.slotMapping, {rows},
                                             std::move(slots)))
        return error;
    if (!names.positions.empty()) {
      // A table may be shorter than the sequences.
      int64_t most = session.manifest().findBuffer(names.ropeTable)->shape[0];
      for (int64_t &position : positions)
        position %= most;
      if (Error error = setIntegers<int64_t>(session, names.positions, {rows},
                                             std::move(positions)))
        return error;
    }
    for (const std::string *name :
         {&names.sinks, &names.alibiSlopes, &names.ropeTable})
      if (!name->empty())
        if (Error error = setRandom(session, *name, -1, ++seed))
          return error;
    for (const std::string *name :
         {&names.queryInput(), &names.key, &names.value})
      if (!name->empty())
        if (Error error = setRandom(session, *name, rows, ++seed))
          return error;
  }
  return Error::success();
}

} // namespace kvcache::run
