//===- Tensor.cpp - Tensors on the host -----------------------------------===//

#include "kvcache/Runtime/Tensor.h"

#include <cstring>

namespace kvcache {

TensorView HostTensor::view() {
  TensorView view;
  view.elementType = elementType;
  view.shape = shape;
  view.data = data.data();
  return view;
}

int64_t elementCount(const std::vector<int64_t> &shape) {
  int64_t count = 1;
  for (int64_t extent : shape)
    count *= extent;
  return count;
}

namespace {

void copyDimension(size_t dim, const std::vector<int64_t> &shape,
                   unsigned bytes, const uint8_t *source,
                   const std::vector<int64_t> &sourceStrides, uint8_t *target,
                   const std::vector<int64_t> &targetStrides) {
  if (dim == shape.size()) {
    std::memcpy(target, source, bytes);
    return;
  }
  if (dim + 1 == shape.size() && sourceStrides[dim] == 1 &&
      targetStrides[dim] == 1) {
    std::memcpy(target, source, size_t(shape[dim]) * bytes);
    return;
  }
  for (int64_t i = 0; i < shape[dim]; ++i)
    copyDimension(
        dim + 1, shape, bytes, source + i * sourceStrides[dim] * int64_t(bytes),
        sourceStrides, target + i * targetStrides[dim] * int64_t(bytes),
        targetStrides);
}

} // namespace

void copyStrided(const std::vector<int64_t> &shape, unsigned bytes,
                 const uint8_t *source,
                 const std::vector<int64_t> &sourceStrides, uint8_t *target,
                 const std::vector<int64_t> &targetStrides) {
  if (elementCount(shape) > 0)
    copyDimension(0, shape, bytes, source, sourceStrides, target,
                  targetStrides);
}

std::string typeText(ElementType type, const std::vector<int64_t> &shape) {
  std::string text(elementTypeName(type));
  text += "[";
  for (size_t i = 0; i < shape.size(); ++i)
    text += (i ? ", " : "") + std::to_string(shape[i]);
  return text + "]";
}

} // namespace kvcache
