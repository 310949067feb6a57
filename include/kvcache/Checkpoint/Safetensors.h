//===- Safetensors.h - The safetensors file format --------------*- C++ -*-===//
//
// Layout: u64 (little endian) length n of the header, n bytes of JSON, data.
// Files are mapped: only the header and the bytes somebody looks at are read.
// A file is accepted exactly when the safetensors package 0.8 accepts it,
// except that names occurring twice are refused.
//
//===----------------------------------------------------------------------===//

#ifndef KVCACHE_CHECKPOINT_SAFETENSORS_H
#define KVCACHE_CHECKPOINT_SAFETENSORS_H

#include "kvcache/Support/Expected.h"
#include "kvcache/Support/Files.h"

#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace kvcache {

enum class DType {
  Bool,
  F4,
  F6E2M3,
  F6E3M2,
  U8,
  I8,
  F8E5M2,
  F8E4M3,
  F8E8M0,
  F8E4M3FNUZ,
  F8E5M2FNUZ,
  I16,
  U16,
  F16,
  BF16,
  I32,
  U32,
  F32,
  C64,
  F64,
  I64,
  U64
};

/// The name in a header: "F32", "BF16", "F8_E4M3"...
const char *dtypeName(DType dtype);
/// Bits of one element: 4, 6, 8, ... 64.
unsigned dtypeBits(DType dtype);
/// The element type of that name (case counts); false if there is none.
bool parseDType(std::string_view name, DType &dtype);

/// One tensor. `data` points into the mapped file (or, for writing, at the
/// caller's bytes), little endian, row major, `bytes` long, of any alignment.
/// `name` lives as long as the file (or is the caller's).
struct Tensor {
  std::string_view name;
  DType dtype = DType::F32;
  std::vector<int64_t> shape; ///< empty: a scalar
  const uint8_t *data = nullptr;
  uint64_t bytes = 0;

  /// Product of the shape.
  int64_t numElements() const;
};

/// "[2, 1, 1]"; "[]" for a scalar.
std::string formatShape(const std::vector<int64_t> &shape);

/// Element `index` of a F32, F16, BF16 or F64 tensor, exactly; the error names
/// another element type.
Expected<double> readFloatElement(const Tensor &tensor, int64_t index);

/// 64 bits of a name. Sums of them over sets of names differ where the sets do,
/// but for one case in 2^64; somebody who tries can find names that do not.
uint64_t hashTensorName(std::string_view name);

class SafetensorsFile {
public:
  /// Maps the file and checks its header: all sizes and offsets in 64 bits, no
  /// holes, no overlaps, no bytes left over. Errors name the file and tensor.
  static Expected<SafetensorsFile> open(const std::string &path);

  const std::string &path() const { return filePath; }

  /// In the order of their data.
  const std::vector<Tensor> &tensors() const { return list; }
  /// Null if the file has no such tensor.
  const Tensor *find(std::string_view name) const;
  /// hashTensorName(), summed up over all tensors.
  uint64_t nameSum() const { return sumOfNames; }
  /// The `__metadata__` of the header.
  const std::map<std::string, std::string> &metadata() const {
    return headerMetadata;
  }
  /// Bytes of the JSON header.
  uint64_t headerBytes() const { return headerLength; }

private:
  std::string filePath;
  MappedFile map;
  std::vector<Tensor> list;
  std::map<std::string, std::string> headerMetadata;
  uint64_t headerLength = 0, sumOfNames = 0;
  /// Names that do not stand in the header as they are.
  std::deque<std::string> parsedNames;
  /// Open addressing over `list`: position + 1, 0 is free; a power of two.
  std::vector<uint32_t> index;

  /// Position in `index` of the name with that hash: its entry, or the free
  /// place for it.
  size_t findSlot(std::string_view name, uint64_t hash) const;
  /// An entry of the header.
  struct Entry {
    Tensor tensor;
    uint64_t begin = 0, end = 0;
  };
  bool scanHeader(std::string_view json, std::vector<Entry> &entries);
  Error parseHeader(std::string_view json, std::vector<Entry> &entries);
  Error readHeader();
};

/// Writes a file (atomically) as the safetensors package does: larger element
/// types first, then by name, header padded with spaces to 8 bytes. Sizes that
/// disagree with shape and element type, and names occurring twice, are errors.
Error writeSafetensors(const std::string &path,
                       const std::vector<Tensor> &tensors,
                       const std::map<std::string, std::string> &metadata = {});

} // namespace kvcache

#endif // KVCACHE_CHECKPOINT_SAFETENSORS_H
