//===- TestCheckpoint.h - Small checkpoints for tests -----------*- C++ -*-===//

#ifndef KVCACHE_TEST_UNIT_CHECKPOINT_TESTCHECKPOINT_H
#define KVCACHE_TEST_UNIT_CHECKPOINT_TESTCHECKPOINT_H

#include "kvcache/Checkpoint/Checkpoint.h"
#include "kvcache/Support/FP8.h"

#include <gtest/gtest.h>

#include <cstring>
#include <deque>
#include <filesystem>

namespace kvcache {

inline std::string inputPath(const std::string &name) {
  return std::string(KVCACHE_TEST_INPUTS) + "/" + name;
}

/// Tensors with their bytes.
class TensorList {
public:
  TensorList &add(const std::string &name, DType dtype,
                  std::vector<int64_t> shape, std::string data) {
    bytes.push_back(std::move(data));
    Tensor tensor;
    tensor.name = names.emplace_back(name);
    tensor.dtype = dtype;
    tensor.shape = std::move(shape);
    tensor.data = reinterpret_cast<const uint8_t *>(bytes.back().data());
    tensor.bytes = bytes.back().size();
    tensors.push_back(std::move(tensor));
    return *this;
  }
  template <typename T>
  TensorList &addValues(const std::string &name, DType dtype,
                        std::vector<int64_t> shape,
                        const std::vector<T> &values) {
    std::string data(reinterpret_cast<const char *>(values.data()),
                     values.size() * sizeof(T));
    return add(name, dtype, std::move(shape), data);
  }
  TensorList &f32(const std::string &name, float value) {
    return addValues<float>(name, DType::F32, {}, {value});
  }
  TensorList &bf16(const std::string &name, float value) {
    return addValues<uint16_t>(name, DType::BF16, {1}, {toBF16(value)});
  }
  TensorList &f16(const std::string &name, float value) {
    return addValues<uint16_t>(name, DType::F16, {1}, {toF16(value)});
  }
  TensorList &f64(const std::string &name, double value) {
    return addValues<double>(name, DType::F64, {}, {value});
  }

  std::vector<Tensor> tensors;

private:
  std::deque<std::string> bytes, names;
};

/// A folder that is removed at the end.
class TestFolder {
public:
  TestFolder() {
    std::string name = testing::TempDir() + "kvcache-checkpoint-XXXXXX";
    if (::mkdtemp(name.data()))
      root = name;
  }
  ~TestFolder() { std::filesystem::remove_all(root); }
  TestFolder(const TestFolder &) = delete;
  TestFolder &operator=(const TestFolder &) = delete;

  std::string path(const std::string &name) const {
    return joinPath(root, name);
  }
  TestFolder &text(const std::string &name, const std::string &content) {
    Error error = writeFileAtomically(path(name), content);
    EXPECT_FALSE(error) << error.message();
    return *this;
  }
  TestFolder &tensors(const std::string &name, const TensorList &list) {
    Error error = writeSafetensors(path(name), list.tensors);
    EXPECT_FALSE(error) << error.message();
    return *this;
  }

  std::string root;
};

/// The only diagnostic of a severity whose message contains `part`; null if
/// there is none or more than one.
inline const Diagnostic *findOnly(const std::vector<Diagnostic> &diagnostics,
                                  Severity severity, const std::string &part) {
  const Diagnostic *found = nullptr;
  for (const Diagnostic &diagnostic : diagnostics) {
    if (diagnostic.severity != severity ||
        diagnostic.message.find(part) == std::string::npos)
      continue;
    if (found)
      return nullptr;
    found = &diagnostic;
  }
  return found;
}

inline size_t countSeverity(const std::vector<Diagnostic> &diagnostics,
                            Severity severity) {
  size_t count = 0;
  for (const Diagnostic &diagnostic : diagnostics)
    count += diagnostic.severity == severity;
  return count;
}

/// All messages, for failure output.
inline std::string allMessages(const std::vector<Diagnostic> &diagnostics) {
  std::string text;
  for (const Diagnostic &diagnostic : diagnostics)
    text += std::string(severityName(diagnostic.severity)) + ": " +
            diagnostic.message + "\n";
  return text;
}

} // namespace kvcache

#endif // KVCACHE_TEST_UNIT_CHECKPOINT_TESTCHECKPOINT_H
