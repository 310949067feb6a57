//===- DeviceFunctions.h - Functions of the device library -----*- C++ -*-===//
//
// Signatures of what `kernels/*.cu` exports, as far as the compiler needs them:
// pointers, then constants of the launch, then structural constants.
//
//===----------------------------------------------------------------------===//

#ifndef KVCACHE_CONVERSION_DEVICEFUNCTIONS_H
#define KVCACHE_CONVERSION_DEVICEFUNCTIONS_H

#include "kvcache/Bundle/Manifest.h"
#include "llvm/ADT/ArrayRef.h"
#include "llvm/ADT/StringRef.h"
#include <cstdint>
#include <optional>

namespace mlir::kvcache {

/// A pointer parameter that a launch may leave out, as null: it is there when
/// the structural constant is at least `least`.
struct OptionalPointer {
  unsigned index;
  llvm::StringRef structure;
  int64_t least;
};

struct DeviceFunction {
  llvm::StringRef name;
  /// What it does, as the manifest says.
  ::kvcache::LaunchOp op;
  /// Number of pointer parameters.
  unsigned pointers;
  /// Those that may be missing, by position.
  llvm::ArrayRef<OptionalPointer> optional;
  /// Number of constants of a launch. The first `scales` of them may be given
  /// as one for each KV head, all of the first scale before those of the next;
  /// the kernel then takes the one of its head, which is its block index in
  /// dimension `headDimension` over the blocks of a head. Without scales of
  /// that kind, `scales` is 0.
  unsigned constants, scales, headDimension;
  /// Names of the structural constants, in order. A launch leaves out a
  /// `v_head_dim`, which is the last, if V has the `head_dim` of K.
  llvm::ArrayRef<llvm::StringRef> structure;

  /// Whether a launch may have so many structural constants.
  bool accepts(size_t constants) const {
    return constants == structure.size() ||
           (constants + 1 == structure.size() &&
            structure.back() == "v_head_dim");
  }
  /// The value of a structural constant, which exists.
  int64_t valueOf(llvm::StringRef constant,
                  llvm::ArrayRef<int64_t> values) const;
};

/// The `arch` of a chip, as the device library counts: 90 for sm_90 and sm_90a.
/// Nothing when the name is not of that form.
std::optional<int> archOf(llvm::StringRef chip);

/// The function of that name, or null.
const DeviceFunction *findDeviceFunction(llvm::StringRef name);

} // namespace mlir::kvcache

#endif // KVCACHE_CONVERSION_DEVICEFUNCTIONS_H
