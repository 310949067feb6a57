//===- DeviceFunctions.cpp - Functions of the device library
//----------------===//

#include "kvcache/Conversion/DeviceFunctions.h"
#include "llvm/ADT/STLExtras.h"
#include "llvm/ADT/StringExtras.h"

using namespace mlir::kvcache;

static constexpr llvm::StringRef kWriteStructure[] = {"arch",
                                                      "in_type",
                                                      "cache_type",
                                                      "kv_heads",
                                                      "head_dim",
                                                      "page_size",
                                                      "k_page_stride",
                                                      "k_token_stride",
                                                      "k_head_stride",
                                                      "v_page_stride",
                                                      "v_token_stride",
                                                      "v_head_stride",
                                                      "k_scale_is_pow2",
                                                      "v_scale_is_pow2"};

static constexpr llvm::StringRef kAttentionStructure[] = {
    "arch",           "q_type",        "cache_type",    "q_heads",
    "kv_heads",       "head_dim",      "page_size",     "k_page_stride",
    "k_token_stride", "k_head_stride", "v_page_stride", "v_token_stride",
    "v_head_stride",  "tile",          "stages",        "unroll",
    "split_tokens",   "num_splits",    "has_lse"};

static constexpr DeviceFunction kFunctions[] = {
    {"kvcache_write", 5, -1, -1, kWriteStructure},
    {"kvcache_paged_attention", 10, 7, 8, kAttentionStructure},
};

std::optional<int> mlir::kvcache::archOf(llvm::StringRef chip) {
  int arch = 0;
  if (!chip.consume_front("sm_") ||
      chip.take_while(llvm::isDigit).getAsInteger(10, arch))
    return std::nullopt;
  return arch;
}

const DeviceFunction *mlir::kvcache::findDeviceFunction(llvm::StringRef name) {
  const DeviceFunction *found =
      llvm::find_if(kFunctions, [&](const DeviceFunction &function) {
        return function.name == name;
      });
  return found == std::end(kFunctions) ? nullptr : found;
}
