//===- DeviceFunctions.h - Functions of the device library -----*- C++ -*-===//
//
// Signatures of what `kernels/*.cu` exports, as far as the compiler needs them:
// pointers, then constants of the launch, then structural constants.
//
//===----------------------------------------------------------------------===//

#ifndef KVCACHE_CONVERSION_DEVICEFUNCTIONS_H
#define KVCACHE_CONVERSION_DEVICEFUNCTIONS_H

#include "llvm/ADT/ArrayRef.h"
#include "llvm/ADT/StringRef.h"
#include <optional>

namespace mlir::kvcache {

struct DeviceFunction {
  llvm::StringRef name;
  /// Number of pointer parameters.
  unsigned pointers;
  /// Positions of pointers that a launch may leave out, as null: the LSE, and
  /// the first of the two workspaces. -1: there is none.
  int lse, workspace;
  /// Names of the structural constants, in order.
  llvm::ArrayRef<llvm::StringRef> structure;
};

/// The `arch` of a chip, as the device library counts: 90 for sm_90 and sm_90a.
/// Nothing when the name is not of that form.
std::optional<int> archOf(llvm::StringRef chip);

/// The function of that name, or null.
const DeviceFunction *findDeviceFunction(llvm::StringRef name);

} // namespace mlir::kvcache

#endif // KVCACHE_CONVERSION_DEVICEFUNCTIONS_H
