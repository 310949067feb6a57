//===- QueryScale.h - How an attention op names its q scale -----*- C++ -*-===//

#ifndef KVCACHE_IR_QUERYSCALE_H
#define KVCACHE_IR_QUERYSCALE_H

#include "llvm/ADT/StringRef.h"

namespace mlir::kvcache {

/// On an attention op whose query holds the codes of FP8 queries: the
/// `kvcache.scale_buffer` of its q scale, which is still to be multiplied into
/// the softmax scale.
inline constexpr llvm::StringLiteral kQueryScale = "kvcache.query_scale";

} // namespace mlir::kvcache

#endif // KVCACHE_IR_QUERYSCALE_H
