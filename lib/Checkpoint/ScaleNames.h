//===- ScaleNames.h - What the name of a tensor says ------------*- C++ -*-===//

#ifndef KVCACHE_LIB_CHECKPOINT_SCALENAMES_H
#define KVCACHE_LIB_CHECKPOINT_SCALENAMES_H

#include "kvcache/Checkpoint/ScaleTable.h"

namespace kvcache {

/// Splits "a.b.c" into "a.b" and "c"; false for an empty path.
inline bool splitLast(std::string_view path, std::string_view &before,
                      std::string_view &last) {
  if (path.empty())
    return false;
  size_t dot = path.rfind('.');
  bool split = dot != std::string_view::npos;
  before = split ? path.substr(0, dot) : std::string_view();
  last = split ? path.substr(dot + 1) : path;
  return true;
}

/// self_attn and its synonyms: names that the same module has in different
/// code bases.
bool isSelfAttentionName(std::string_view part);

/// Any attention module, cross attention included.
bool isAttentionName(std::string_view part);

/// k_proj, qkv_proj, the twice-renamed qkqkv_proj, and fused modules by other
/// names.
bool isQKVProjection(std::string_view part);

/// True for a scale-like name under an attention module that
/// classifyScaleName() does not know and that is not a linear layer's or a
/// norm's.
bool isUnknownAttentionScale(std::string_view name);

/// Those of the file whose names are a projection's to queries, keys and
/// values, a scale's of classifyScaleName(), or an unknown one's.
std::vector<const Tensor *> findAttentionTensors(const SafetensorsFile &file);

} // namespace kvcache

#endif // KVCACHE_LIB_CHECKPOINT_SCALENAMES_H
