//===- Archive.h - The model in a .pt2 archive ------------------*- C++ -*-===//

#ifndef KVCACHE_LIB_TORCHEXPORT_ARCHIVE_H
#define KVCACHE_LIB_TORCHEXPORT_ARCHIVE_H

#include "llvm/ADT/StringRef.h"
#include "llvm/Support/Error.h"
#include <string>

namespace mlir::kvcache {

bool isArchive(llvm::StringRef data);

/// The text of the only NAME/models/*.json in a zip archive.
llvm::Expected<std::string> readModel(llvm::StringRef archive);

} // namespace mlir::kvcache

#endif // KVCACHE_LIB_TORCHEXPORT_ARCHIVE_H
