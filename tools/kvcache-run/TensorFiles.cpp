//===- TensorFiles.cpp - Tensors in and out of kvcache-run ----------------===//

#include "TensorFiles.h"

#include <cstring>

namespace kvcache::run {

namespace {

struct TypePair {
  DType dtype;
  ElementType type;
};
constexpr TypePair types[] = {{DType::BF16, ElementType::BF16},
                              {DType::F16, ElementType::F16},
                              {DType::F32, ElementType::F32},
                              {DType::F8E4M3, ElementType::F8E4M3FN},
                              {DType::F8E5M2, ElementType::F8E5M2},
                              {DType::I32, ElementType::I32},
                              {DType::I64, ElementType::I64},
                              {DType::U8, ElementType::U8}};

} // namespace

Error TensorFiles::add(const std::string &path) {
  Expected<SafetensorsFile> file = SafetensorsFile::open(path);
  if (!file)
    return file.error();
  files.push_back(std::move(*file));
  latestNames.clear();
  for (const Tensor &tensor : files.back().tensors()) {
    tensors[std::string(tensor.name)] = &tensor;
    latestNames.emplace_back(tensor.name);
  }
  return Error::success();
}

const Tensor *TensorFiles::find(const std::string &name) const {
  auto it = tensors.find(name);
  return it == tensors.end() ? nullptr : it->second;
}

Expected<TensorView> TensorFiles::view(const std::string &name) {
  const Tensor *tensor = find(name);
  if (!tensor)
    return makeError(name + ": no input file has a tensor of that name");
  TensorView view;
  view.shape = tensor->shape;
  bool known = false;
  for (const TypePair &pair : types)
    if (pair.dtype == tensor->dtype) {
      view.elementType = pair.type;
      known = true;
    }
  if (!known)
    return makeError(name +
                     ": expected BF16, F16, F32, F8_E4M3, F8_E5M2, I32, "
                     "I64 or U8, found " +
                     dtypeName(tensor->dtype));
  // Nothing here writes through the view: inputs are only read.
  view.data = const_cast<uint8_t *>(tensor->data);
  if (reinterpret_cast<uintptr_t>(tensor->data) %
          elementTypeBytes(view.elementType) !=
      0) {
    std::vector<uint64_t> &copy = aligned[tensor];
    copy.resize((tensor->bytes + 7) / 8);
    std::memcpy(copy.data(), tensor->data, tensor->bytes);
    view.data = copy.data();
  }
  return view;
}

void TensorWriter::add(const std::string &name, HostTensor tensor) {
  tensors[name] = std::move(tensor);
}

Error TensorWriter::write(const std::string &path) const {
  std::vector<Tensor> list;
  for (const auto &[name, tensor] : tensors) {
    Tensor entry;
    entry.name = name;
    for (const TypePair &pair : types)
      if (pair.type == tensor.elementType)
        entry.dtype = pair.dtype;
    entry.shape = tensor.shape;
    entry.data = tensor.data.data();
    entry.bytes = tensor.data.size();
    list.push_back(entry);
  }
  return writeSafetensors(path, list);
}

} // namespace kvcache::run
