//===- Archive.cpp - The model in a .pt2 archive --------------------------===//

#include "Archive.h"
#include "llvm/ADT/ScopeExit.h"
#include "llvm/ADT/SmallVector.h"
#include <zip.h>

using namespace llvm;

// A graph is a few MB; a size beyond this is a fault or an attack.
static constexpr uint64_t kMaxModelBytes = uint64_t(1) << 30;

bool mlir::kvcache::isArchive(StringRef data) {
  return data.starts_with("PK\x03\x04") || data.starts_with("PK\x05\x06");
}

Expected<std::string> mlir::kvcache::readModel(StringRef archive) {
  zip_error_t error;
  zip_error_init(&error);
  auto describe = [&](const Twine &what) {
    Error result = createStringError(what + ": " + zip_error_strerror(&error));
    zip_error_fini(&error);
    return result;
  };
  zip_source_t *source =
      zip_source_buffer_create(archive.data(), archive.size(), 0, &error);
  if (!source)
    return describe("cannot read the archive");
  zip_t *zip = zip_open_from_source(source, ZIP_RDONLY, &error);
  if (!zip) {
    zip_source_free(source);
    return describe("not a zip archive");
  }
  scope_exit close([&] { zip_discard(zip); });

  std::string model;
  for (zip_int64_t i = 0, e = zip_get_num_entries(zip, 0); i < e; ++i) {
    const char *raw = zip_get_name(zip, i, ZIP_FL_ENC_RAW);
    StringRef name = raw ? raw : "";
    if (!name.ends_with(".json") || !name.contains("models/"))
      continue;
    if (!model.empty())
      return createStringError("the archive holds several models, '" + model +
                               "' and '" + name + "'; expected one");
    model = name.str();
  }
  if (model.empty())
    return createStringError(
        "the archive holds no NAME/models/*.json; expected one that "
        "torch.export.save wrote");
  zip_stat_t status;
  zip_stat_init(&status);
  if (zip_stat(zip, model.c_str(), 0, &status) != 0 ||
      !(status.valid & ZIP_STAT_SIZE))
    return createStringError("'" + model + "': " + zip_strerror(zip));
  if (status.size > kMaxModelBytes)
    return createStringError("'" + model + "' has " + Twine(status.size) +
                             " bytes; expected a graph without weights");
  zip_file_t *file = zip_fopen(zip, model.c_str(), 0);
  if (!file)
    return createStringError("'" + model + "': " + zip_strerror(zip));
  std::string text(status.size, '\0');
  zip_int64_t count = zip_fread(file, text.data(), text.size());
  // Closing checks the checksum.
  bool isWhole = count == zip_int64_t(text.size());
  if (isWhole) {
    char more;
    isWhole = zip_fread(file, &more, 1) == 0;
  }
  if (zip_fclose(file) != 0 || !isWhole)
    return createStringError("'" + model + "' is damaged");
  return text;
}
