//===- Expected.h - Errors without exceptions and without LLVM --*- C++ -*-===//
//
// The LLVM-free libraries return errors by value: a message for people that
// names the file, the key and what would have been right.
//
//===----------------------------------------------------------------------===//

#ifndef KVCACHE_SUPPORT_EXPECTED_H
#define KVCACHE_SUPPORT_EXPECTED_H

#include <cassert>
#include <optional>
#include <string>
#include <utility>
#include <variant>

namespace kvcache {

/// A failure, or success when empty. Converts to true when it is a failure, as
/// llvm::Error does.
class [[nodiscard]] Error {
public:
  Error() = default;
  static Error success() { return Error(); }
  static Error failure(std::string message) {
    Error error;
    error.text = std::move(message);
    return error;
  }

  explicit operator bool() const { return text.has_value(); }

  /// The message; only for failures.
  const std::string &message() const {
    assert(text && "success has no message");
    return *text;
  }

  /// The same failure with `context` and ": " in front; success stays success.
  Error withContext(const std::string &context) const {
    return text ? failure(context + ": " + *text) : Error();
  }

private:
  std::optional<std::string> text;
};

inline Error makeError(std::string message) {
  return Error::failure(std::move(message));
}

/// A value or the Error that prevented it. Converts to true when it holds a
/// value.
template <typename T> class [[nodiscard]] Expected {
public:
  Expected(T value) : storage(std::in_place_index<0>, std::move(value)) {}
  Expected(Error error) : storage(std::in_place_index<1>, std::move(error)) {
    assert(std::get<1>(storage) && "an Expected cannot hold success");
  }

  explicit operator bool() const { return storage.index() == 0; }
  T &operator*() { return std::get<0>(storage); }
  const T &operator*() const { return std::get<0>(storage); }
  T *operator->() { return &std::get<0>(storage); }
  const T *operator->() const { return &std::get<0>(storage); }

  /// The error; only when there is no value.
  const Error &error() const { return std::get<1>(storage); }
  const std::string &message() const { return error().message(); }

private:
  std::variant<T, Error> storage;
};

} // namespace kvcache

#endif // KVCACHE_SUPPORT_EXPECTED_H
