//===- Tensor.h - Tensors on the host ---------------------------*- C++ -*-===//

#ifndef KVCACHE_RUNTIME_TENSOR_H
#define KVCACHE_RUNTIME_TENSOR_H

#include "kvcache/Bundle/Manifest.h"

namespace kvcache {

/// Elements that somebody else holds.
struct TensorView {
  ElementType elementType = ElementType::U8;
  std::vector<int64_t> shape;
  std::vector<int64_t> strides; // elements; empty = contiguous
  void *data = nullptr;         // element [0, 0, ...]
};

/// Elements in row-major order.
struct HostTensor {
  ElementType elementType = ElementType::U8;
  std::vector<int64_t> shape;
  std::vector<uint8_t> data;

  TensorView view();
};

/// Elements of `shape`; extents are not negative.
int64_t elementCount(const std::vector<int64_t> &shape);

/// Copies `shape` elements of `bytes` each between two strided places;
/// strides in elements.
void copyStrided(const std::vector<int64_t> &shape, unsigned bytes,
                 const uint8_t *source,
                 const std::vector<int64_t> &sourceStrides, uint8_t *target,
                 const std::vector<int64_t> &targetStrides);

/// "bf16[7, 2, 64]".
std::string typeText(ElementType type, const std::vector<int64_t> &shape);

} // namespace kvcache

#endif // KVCACHE_RUNTIME_TENSOR_H
