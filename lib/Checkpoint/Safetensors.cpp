//===- Safetensors.cpp - The safetensors file format ----------------------===//

#include "kvcache/Checkpoint/Safetensors.h"
#include "PlainScanner.h"
#include "kvcache/Support/FP8.h"
#include "kvcache/Support/Json.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <tuple>
#include <unordered_set>

using namespace kvcache;

namespace {

struct DTypeInfo {
  const char *name;
  unsigned bits;
};

// In the order of the enumeration.
constexpr DTypeInfo dtypes[] = {
    {"BOOL", 8},    {"F4", 4},          {"F6_E2M3", 6},     {"F6_E3M2", 6},
    {"U8", 8},      {"I8", 8},          {"F8_E5M2", 8},     {"F8_E4M3", 8},
    {"F8_E8M0", 8}, {"F8_E4M3FNUZ", 8}, {"F8_E5M2FNUZ", 8}, {"I16", 16},
    {"U16", 16},    {"F16", 16},        {"BF16", 16},       {"I32", 32},
    {"U32", 32},    {"F32", 32},        {"C64", 64},        {"F64", 64},
    {"I64", 64},    {"U64", 64},
};

// The safetensors package's own limit.
constexpr uint64_t maxHeaderBytes = 100000000;

/// Bytes of a tensor; false on overflow or when it ends inside a byte.
/// Multiplies from left to right, so an overflow before a 0 is one.
bool tensorBytes(const std::vector<int64_t> &shape, DType dtype,
                 uint64_t &bytes, const char *&reason) {
  uint64_t count = 1;
  reason = "the size overflows 64 bits";
  for (int64_t extent : shape)
    if (extent < 0 || __builtin_mul_overflow(count, uint64_t(extent), &count))
      return false;
  uint64_t bits;
  if (__builtin_mul_overflow(count, uint64_t(dtypeBits(dtype)), &bits))
    return false;
  reason = "its elements do not fill whole bytes";
  if (bits % 8 != 0)
    return false;
  bytes = bits / 8;
  return true;
}

Error expectedKind(const char *what, const char *expected,
                   const JsonValue &found) {
  const char *kind = found.isInteger() && found.asInteger() < 0
                         ? "a negative integer"
                         : found.kindName();
  return makeError(std::string(what) + " must be " + expected + ", found " +
                   kind);
}

bool isSize(const JsonValue &value) {
  return value.isInteger() && value.asInteger() >= 0;
}

Error readShape(const JsonValue &value, std::vector<int64_t> &shape) {
  if (!value.isArray())
    return expectedKind("shape", "an array of sizes", value);
  for (const JsonValue &extent : value.asArray()) {
    if (!isSize(extent))
      return expectedKind("an extent of shape", "a size", extent);
    shape.push_back(extent.asInteger());
  }
  return Error::success();
}

Error readOffsets(const JsonValue &value, uint64_t &begin, uint64_t &end) {
  if (!value.isArray())
    return expectedKind("data_offsets", "an array of two offsets", value);
  const JsonValue::Array &offsets = value.asArray();
  if (offsets.size() != 2)
    return makeError("data_offsets must be two offsets, found " +
                     std::to_string(offsets.size()));
  for (const JsonValue &offset : offsets)
    if (!isSize(offset))
      return expectedKind("an offset of data_offsets", "an offset", offset);
  begin = uint64_t(offsets[0].asInteger());
  end = uint64_t(offsets[1].asInteger());
  return Error::success();
}

Error readEntry(const JsonValue &value, Tensor &tensor, uint64_t &begin,
                uint64_t &end) {
  if (!value.isObject())
    return expectedKind("the entry", "an object", value);
  bool hasDType = false, hasShape = false, hasOffsets = false;
  for (const auto &[field, member] : value.asObject()) {
    bool *seen = field == "dtype"          ? &hasDType
                 : field == "shape"        ? &hasShape
                 : field == "data_offsets" ? &hasOffsets
                                           : nullptr;
    if (!seen)
      continue;
    if (*seen)
      return makeError("the field '" + field + "' occurs twice");
    *seen = true;
    if (seen == &hasDType) {
      if (!member.isString())
        return expectedKind("dtype", "a string", member);
      if (!parseDType(member.asString(), tensor.dtype))
        return makeError("unknown dtype '" + member.asString() +
                         "'; known are BOOL, F4, F6_*, F8_*, F16, BF16, F32, "
                         "F64, C64, I8 to I64 and U8 to U64");
    } else if (seen == &hasShape) {
      if (Error error = readShape(member, tensor.shape))
        return error;
    } else if (Error error = readOffsets(member, begin, end)) {
      return error;
    }
  }
  if (hasDType && hasShape && hasOffsets)
    return Error::success();
  return makeError(std::string("the field '") +
                   (!hasDType   ? "dtype"
                    : !hasShape ? "shape"
                                : "data_offsets") +
                   "' is missing");
}

Error readMetadata(const JsonValue &value,
                   std::map<std::string, std::string> &metadata) {
  if (value.isNull())
    return Error::success();
  if (!value.isObject())
    return expectedKind("__metadata__", "an object of strings", value);
  for (const auto &[key, text] : value.asObject()) {
    if (!text.isString())
      return expectedKind("a value of __metadata__", "a string", text);
    if (!metadata.emplace(key, text.asString()).second)
      return makeError("the __metadata__ key '" + key + "' occurs twice");
  }
  return Error::success();
}

/// True if the JSON holds the number -0 outside of strings. It is read as the
/// integer 0; the safetensors package refuses it as an offset or size.
bool hasNegativeZero(std::string_view json) {
  if (json.find("-0") == std::string_view::npos)
    return false;
  bool inString = false;
  for (size_t i = 0; i < json.size(); ++i) {
    if (inString && json[i] == '\\')
      ++i;
    else if (json[i] == '"')
      inString = !inString;
    else if (!inString && json.substr(i, 2) == "-0")
      return true;
  }
  return false;
}

} // namespace

const char *kvcache::dtypeName(DType dtype) {
  return dtypes[unsigned(dtype)].name;
}

unsigned kvcache::dtypeBits(DType dtype) {
  return dtypes[unsigned(dtype)].bits;
}

bool kvcache::parseDType(std::string_view name, DType &dtype) {
  for (unsigned i = 0; i < std::size(dtypes); ++i)
    if (name == dtypes[i].name) {
      dtype = DType(i);
      return true;
    }
  return false;
}

int64_t Tensor::numElements() const {
  return std::accumulate(shape.begin(), shape.end(), int64_t(1),
                         std::multiplies<int64_t>());
}

std::string kvcache::formatShape(const std::vector<int64_t> &shape) {
  std::string text = "[";
  for (size_t i = 0; i < shape.size(); ++i)
    text += (i ? ", " : "") + std::to_string(shape[i]);
  return text + "]";
}

uint64_t kvcache::hashTensorName(std::string_view name) {
  // 8 bytes at a time.
  constexpr uint64_t factor = 0x9E3779B97F4A7C15;
  uint64_t hash = name.size() * factor;
  auto mix = [&](uint64_t word) {
    hash = (hash ^ word) * factor;
    hash ^= hash >> 32;
  };
  while (name.size() >= 8) {
    uint64_t word;
    std::memcpy(&word, name.data(), 8);
    mix(word);
    name.remove_prefix(8);
  }
  uint64_t rest = 0;
  std::memcpy(&rest, name.data(), name.size());
  mix(rest);
  // Once more, as the last word alone is far from random bits in a sum.
  mix(0);
  return hash;
}

template <typename T>
static T loadElement(const Tensor &tensor, int64_t index) {
  T value;
  std::memcpy(&value, tensor.data + uint64_t(index) * sizeof(T), sizeof(T));
  return value;
}

Expected<double> kvcache::readFloatElement(const Tensor &tensor,
                                           int64_t index) {
  if (index < 0 || index >= tensor.numElements())
    return makeError("tensor '" + std::string(tensor.name) + "' of shape " +
                     formatShape(tensor.shape) + " has no element " +
                     std::to_string(index));
  switch (tensor.dtype) {
  case DType::F32:
    return double(loadElement<float>(tensor, index));
  case DType::F64:
    return loadElement<double>(tensor, index);
  case DType::F16:
    return double(fromF16(loadElement<uint16_t>(tensor, index)));
  case DType::BF16:
    return double(fromBF16(loadElement<uint16_t>(tensor, index)));
  default:
    return makeError("tensor '" + std::string(tensor.name) + "' is " +
                     dtypeName(tensor.dtype) +
                     ", expected F32, F16, BF16 or F64");
  }
}

Expected<SafetensorsFile> SafetensorsFile::open(const std::string &path) {
  Expected<MappedFile> map = MappedFile::open(path);
  if (!map)
    return map.error();
  SafetensorsFile file;
  file.filePath = path;
  file.map = std::move(*map);
  if (Error error = file.readHeader())
    return error.withContext(path);
  return file;
}

size_t SafetensorsFile::findSlot(std::string_view name, uint64_t hash) const {
  size_t mask = index.size() - 1;
  size_t slot = size_t(hash) & mask;
  while (index[slot] != 0 && list[index[slot] - 1].name != name)
    slot = (slot + 1) & mask;
  return slot;
}

const Tensor *SafetensorsFile::find(std::string_view name) const {
  if (list.empty())
    return nullptr;
  uint32_t entry = index[findSlot(name, hashTensorName(name))];
  return entry ? &list[entry - 1] : nullptr;
}

/// The header as it is mostly written; false if there is more to it.
bool SafetensorsFile::scanHeader(std::string_view json,
                                 std::vector<Entry> &entries) {
  PlainScanner scanner(json);
  bool hasMetadata = false;
  // Neighbours mostly have the same one.
  std::string_view dtypeText;
  DType dtype = DType::F32;
  std::vector<int64_t> shape;

  auto scanMetadata = [&](std::string_view key) {
    std::string_view value;
    return scanner.string(value) && headerMetadata.emplace(key, value).second;
  };
  auto scanField = [&](std::string_view field, Entry &entry, unsigned &seen) {
    unsigned bit = field == "dtype" ? 1 : field == "shape" ? 2 : 4;
    if (seen & bit)
      return false;
    seen |= bit;
    if (bit == 1) {
      std::string_view text;
      if (!scanner.string(text) ||
          (text != dtypeText && !parseDType(text, dtype)))
        return false;
      dtypeText = text;
      entry.tensor.dtype = dtype;
      return true;
    }
    uint64_t number = 0;
    if (bit == 2) {
      shape.clear();
      bool good = scanner.array([&] {
        if (!scanner.number(number))
          return false;
        shape.push_back(int64_t(number));
        return true;
      });
      entry.tensor.shape = shape;
      return good;
    }
    unsigned count = 0;
    return field == "data_offsets" && scanner.array([&] {
      return count < 2 &&
             scanner.number(count++ == 0 ? entry.begin : entry.end);
    }) && count == 2;
  };
  auto scanMember = [&](std::string_view name) {
    if (name == "__metadata__") {
      if (hasMetadata)
        return false;
      hasMetadata = true;
      return scanner.object(scanMetadata);
    }
    Entry &entry = entries.emplace_back();
    entry.tensor.name = name;
    unsigned seen = 0;
    return scanner.object([&](std::string_view field) {
      return scanField(field, entry, seen);
    }) && seen == 7;
  };
  return scanner.object(scanMember) && scanner.atEnd();
}

/// Any header.
Error SafetensorsFile::parseHeader(std::string_view json,
                                   std::vector<Entry> &entries) {
  Expected<JsonValue> root = parseJson(json, "the header");
  if (!root)
    return root.error();
  if (hasNegativeZero(json))
    return makeError("the header has the number -0, expected a size or offset");
  if (!root->isObject())
    return expectedKind("the header", "an object", *root);
  bool hasMetadata = false;
  for (const auto &[name, value] : root->asObject()) {
    if (name == "__metadata__") {
      if (hasMetadata)
        return makeError("__metadata__ occurs twice in the header");
      hasMetadata = true;
      if (Error error = readMetadata(value, headerMetadata))
        return error;
      continue;
    }
    Entry &entry = entries.emplace_back();
    entry.tensor.name = parsedNames.emplace_back(name);
    if (Error error = readEntry(value, entry.tensor, entry.begin, entry.end))
      return error.withContext("tensor '" + name + "'");
  }
  return Error::success();
}

Error SafetensorsFile::readHeader() {
  uint64_t size = map.size();
  if (size < 8)
    return makeError("not a safetensors file: " + std::to_string(size) +
                     " bytes, expected at least 8");
  std::memcpy(&headerLength, map.data(), 8);
  if (headerLength > maxHeaderBytes)
    return makeError("not a safetensors file: it says that its header has " +
                     std::to_string(headerLength) + " bytes, at most " +
                     std::to_string(maxHeaderBytes) + " are allowed");
  if (headerLength > size - 8)
    return makeError("truncated safetensors file: the header has " +
                     std::to_string(headerLength) + " bytes, but only " +
                     std::to_string(size - 8) + " follow its length");

  const uint8_t *header = map.data() + 8;
  std::string_view json(reinterpret_cast<const char *>(header),
                        size_t(headerLength));
  // Its memory serves all shards of a checkpoint.
  static thread_local std::vector<Entry> entries;
  entries.clear();
  if (!scanHeader(json, entries)) {
    entries.clear();
    headerMetadata.clear();
    if (Error error = parseHeader(json, entries))
      return error;
  }

  auto byOffsets = [](const Entry &a, const Entry &b) {
    return std::tie(a.begin, a.end, a.tensor.name) <
           std::tie(b.begin, b.end, b.tensor.name);
  };
  if (!std::is_sorted(entries.begin(), entries.end(), byOffsets))
    std::sort(entries.begin(), entries.end(), byOffsets);

  uint64_t dataSize = size - 8 - headerLength;
  const uint8_t *data = header + headerLength;
  uint64_t position = 0;
  size_t slots = 8;
  while (slots < entries.size() * 2)
    slots *= 2;
  index.assign(slots, 0);
  list.reserve(entries.size());
  for (Entry &entry : entries) {
    Tensor &tensor = entry.tensor;
    auto fail = [&](const std::string &what) {
      return makeError("tensor '" + std::string(tensor.name) + "': " + what);
    };
    if (entry.begin != position || entry.end < entry.begin)
      return fail("data_offsets [" + std::to_string(entry.begin) + ", " +
                  std::to_string(entry.end) +
                  "] leave a hole or overlap, expected to start at " +
                  std::to_string(position));
    position = entry.end;
    uint64_t expected;
    const char *reason;
    if (!tensorBytes(tensor.shape, tensor.dtype, expected, reason))
      return fail(std::string(reason) + " (" + dtypeName(tensor.dtype) + " " +
                  formatShape(tensor.shape) + ")");
    tensor.bytes = entry.end - entry.begin;
    if (tensor.bytes != expected)
      return fail(std::string(dtypeName(tensor.dtype)) + " " +
                  formatShape(tensor.shape) + " has " +
                  std::to_string(expected) + " bytes, but data_offsets span " +
                  std::to_string(tensor.bytes));
    if (entry.end > dataSize)
      return makeError(
          "truncated safetensors file: tensor '" + std::string(tensor.name) +
          "' ends at byte " + std::to_string(entry.end) +
          " of the data, but there are only " + std::to_string(dataSize));
    tensor.data = data + entry.begin;
    uint64_t hash = hashTensorName(tensor.name);
    sumOfNames += hash;
    size_t slot = findSlot(tensor.name, hash);
    if (index[slot] != 0)
      return fail("the name occurs twice in the header");
    list.push_back(std::move(tensor));
    index[slot] = uint32_t(list.size());
  }
  if (position != dataSize)
    return makeError("the tensors end at byte " + std::to_string(position) +
                     " of the data, but there are " + std::to_string(dataSize));
  return Error::success();
}

Error kvcache::writeSafetensors(
    const std::string &path, const std::vector<Tensor> &tensors,
    const std::map<std::string, std::string> &metadata) {
  std::vector<const Tensor *> order;
  std::unordered_set<std::string_view> names;
  for (const Tensor &tensor : tensors) {
    uint64_t expected;
    const char *reason;
    auto fail = [&](const std::string &what) {
      return makeError(path + ": tensor '" + std::string(tensor.name) +
                       "': " + what);
    };
    if (!tensorBytes(tensor.shape, tensor.dtype, expected, reason))
      return fail(reason);
    if (expected != tensor.bytes)
      return fail(std::string(dtypeName(tensor.dtype)) + " " +
                  formatShape(tensor.shape) + " has " +
                  std::to_string(expected) + " bytes, found " +
                  std::to_string(tensor.bytes));
    if (tensor.name == "__metadata__")
      return fail("the name is reserved");
    if (!names.insert(tensor.name).second)
      return fail("the name occurs twice");
    order.push_back(&tensor);
  }
  // The package sorts by its list of element types; their sizes give the same
  // alignment.
  std::sort(order.begin(), order.end(), [](const Tensor *a, const Tensor *b) {
    if (a->dtype != b->dtype)
      return a->dtype > b->dtype;
    return a->name < b->name;
  });

  std::string header = "{";
  if (!metadata.empty()) {
    header += "\"__metadata__\":{";
    bool first = true;
    for (const auto &[key, value] : metadata) {
      header += (first ? "" : ",") + quoteJson(key) + ":" + quoteJson(value);
      first = false;
    }
    header += "}";
  }
  uint64_t offset = 0;
  for (const Tensor *tensor : order) {
    std::string shape;
    for (int64_t extent : tensor->shape)
      shape += (shape.empty() ? "" : ",") + std::to_string(extent);
    header += (header.size() > 1 ? "," : "") + quoteJson(tensor->name) +
              ":{\"dtype\":\"" + dtypeName(tensor->dtype) + "\",\"shape\":[" +
              shape + "],\"data_offsets\":[" + std::to_string(offset) + "," +
              std::to_string(offset + tensor->bytes) + "]}";
    offset += tensor->bytes;
  }
  header += "}";
  header.append((8 - header.size() % 8) % 8, ' ');
  uint64_t length = header.size();

  std::vector<std::string_view> pieces;
  pieces.emplace_back(reinterpret_cast<const char *>(&length), 8);
  pieces.emplace_back(header);
  for (const Tensor *tensor : order)
    pieces.emplace_back(reinterpret_cast<const char *>(tensor->data),
                        size_t(tensor->bytes));
  return writeFileAtomically(path, pieces);
}
