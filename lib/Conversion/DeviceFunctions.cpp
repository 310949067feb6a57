//===- DeviceFunctions.cpp - Functions of the device library --------------===//

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
                                                      "v_scale_is_pow2",
                                                      "per_head",
                                                      "rotary_dim",
                                                      "rope_interleaved",
                                                      "rope_positions",
                                                      "v_head_dim"};

static constexpr llvm::StringRef kStridedWriteStructure[] = {
    "arch",      "in_type",    "cache_type",       "kv_heads",
    "head_dim",  "page_size",  "k_scale_is_pow2",  "v_scale_is_pow2",
    "per_head",  "rotary_dim", "rope_interleaved", "rope_positions",
    "v_head_dim"};

static constexpr OptionalPointer kWriteOptional[] = {{5, "rotary_dim", 1},
                                                     {6, "rotary_dim", 1}};

static constexpr llvm::StringRef kAttentionStructure[] = {
    "arch",           "q_type",         "out_type",      "cache_type",
    "q_heads",        "kv_heads",       "head_dim",      "page_size",
    "k_page_stride",  "k_token_stride", "k_head_stride", "v_page_stride",
    "v_token_stride", "v_head_stride",  "tile",          "stages",
    "unroll",         "rows",           "has_window",    "has_soft_cap",
    "has_sinks",      "has_alibi",      "token_scales",  "split_tokens",
    "num_splits",     "has_lse",        "math",          "v_head_dim"};

static constexpr llvm::StringRef kStridedStructure[] = {
    "arch",      "q_type",       "out_type",     "cache_type",   "q_heads",
    "kv_heads",  "head_dim",     "page_size",    "tile",         "stages",
    "unroll",    "rows",         "has_window",   "has_soft_cap", "has_sinks",
    "has_alibi", "token_scales", "split_tokens", "num_splits",   "has_lse",
    "math",      "v_head_dim"};

static constexpr llvm::StringRef kPrefillStructure[] = {
    "arch",           "q_type",         "out_type",      "cache_type",
    "q_heads",        "kv_heads",       "head_dim",      "page_size",
    "k_page_stride",  "k_token_stride", "k_head_stride", "v_page_stride",
    "v_token_stride", "v_head_stride",  "has_window",    "has_soft_cap",
    "has_sinks",      "has_alibi",      "split_tokens",  "num_splits",
    "has_lse",        "warps",          "v_head_dim"};

static constexpr llvm::StringRef kQuantizeStructure[] = {"arch", "in_type",
                                                         "cache_type"};
static constexpr llvm::StringRef kDequantizeStructure[] = {"arch", "cache_type",
                                                           "out_type"};

static constexpr llvm::StringRef kMergeStructure[] = {"arch", "type",
                                                      "head_dim"};
static constexpr llvm::StringRef kCopyStructure[] = {
    "arch", "kv_heads", "page_size", "k_row_bytes", "v_row_bytes"};
static constexpr OptionalPointer kCopyOptional[] = {{1, "v_row_bytes", 1}};

static constexpr llvm::StringRef kTokenScaledStructure[] = {
    "arch",          "in_type",          "kv_heads",       "head_dim",
    "page_size",     "k_page_stride",    "k_token_stride", "k_head_stride",
    "v_page_stride", "v_token_stride",   "v_head_stride",  "token_scales",
    "rotary_dim",    "rope_interleaved", "rope_positions", "v_head_dim"};

static constexpr OptionalPointer kTokenScaledOptional[] = {
    {5, "token_scales", 2},
    {6, "token_scales", 2},
    {7, "rotary_dim", 1},
    {8, "rotary_dim", 1}};

static constexpr OptionalPointer kAttentionOptional[] = {
    {7, "has_lse", 1},       {8, "num_splits", 2}, {9, "num_splits", 2},
    {10, "has_sinks", 1},    {11, "has_alibi", 1}, {12, "token_scales", 2},
    {13, "token_scales", 2},
};

static constexpr llvm::StringRef kWriteLatentStructure[] = {
    "arch",          "in_type",    "cache_type",       "latent_dim",
    "rope_dim",      "page_size",  "page_stride",      "token_stride",
    "scale_is_pow2", "rotary_dim", "rope_interleaved", "rope_positions"};

static constexpr OptionalPointer kWriteLatentOptional[] = {
    {4, "rotary_dim", 1}, {5, "rotary_dim", 1}};

static constexpr llvm::StringRef kMLAStructure[] = {
    "arch",        "q_type",       "out_type",   "cache_type",
    "heads",       "latent_dim",   "rope_dim",   "page_size",
    "page_stride", "token_stride", "tile",       "stages",
    "rows",        "split_tokens", "num_splits", "has_lse"};

static constexpr OptionalPointer kMLAOptional[] = {
    {6, "has_lse", 1}, {7, "num_splits", 2}, {8, "num_splits", 2}};

using ::kvcache::LaunchOp;

static constexpr DeviceFunction kFunctions[] = {
    {"kvcache_write", LaunchOp::Write, 7, kWriteOptional, 4, 2, 1,
     kWriteStructure},
    {"kvcache_write_token_scaled", LaunchOp::Write, 9, kTokenScaledOptional, 2,
     0, 0, kTokenScaledStructure},
    {"kvcache_write_strided", LaunchOp::Write, 7, kWriteOptional, 10, 2, 1,
     kStridedWriteStructure},
    {"kvcache_paged_attention", LaunchOp::PagedAttention, 14,
     kAttentionOptional, 7, 2, 0, kAttentionStructure},
    {"kvcache_paged_attention_strided", LaunchOp::PagedAttention, 14,
     kAttentionOptional, 13, 2, 0, kStridedStructure},
    {"kvcache_prefill",
     LaunchOp::PagedAttention,
     12,
     {kAttentionOptional, 5},
     7,
     2,
     0,
     kPrefillStructure},
    {"kvcache_write_latent", LaunchOp::WriteLatent, 6, kWriteLatentOptional, 3,
     0, 0, kWriteLatentStructure},
    {"kvcache_mla_attention", LaunchOp::MLAAttention, 9, kMLAOptional, 5, 0, 0,
     kMLAStructure},
    {"kvcache_quantize",
     LaunchOp::Quantize,
     2,
     {},
     2,
     0,
     0,
     kQuantizeStructure},
    {"kvcache_dequantize",
     LaunchOp::Dequantize,
     2,
     {},
     2,
     0,
     0,
     kDequantizeStructure},
    {"kvcache_merge_states",
     LaunchOp::MergeStates,
     6,
     {},
     1,
     0,
     0,
     kMergeStructure},
    {"kvcache_copy_pages", LaunchOp::CopyPages, 3, kCopyOptional, 7, 0, 0,
     kCopyStructure},
};

int64_t DeviceFunction::valueOf(llvm::StringRef constant,
                                llvm::ArrayRef<int64_t> values) const {
  return values[llvm::find(structure, constant) - structure.begin()];
}

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
