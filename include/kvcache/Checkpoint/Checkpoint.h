//===- Checkpoint.h - A model's folder of files -----------------*- C++ -*-===//

#ifndef KVCACHE_CHECKPOINT_CHECKPOINT_H
#define KVCACHE_CHECKPOINT_CHECKPOINT_H

#include "kvcache/Checkpoint/Diagnostic.h"
#include "kvcache/Checkpoint/Safetensors.h"
#include "kvcache/Support/Json.h"

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace kvcache {

/// A JSON file of a checkpoint, with its name for messages.
struct JsonFile {
  std::string path;
  JsonValue value;
};

/// An opened checkpoint: every shard's header has been read, no tensor data.
class Checkpoint {
public:
  /// Opens a folder or a single .safetensors file.
  ///
  /// Of a folder, the shards are those that model.safetensors.index.json
  /// names, else every *.safetensors file in it. config.json and
  /// hf_quant_config.json are read where they exist (beside a single file,
  /// too).
  ///
  /// A folder without a safetensors file is an error unless `tensorsOptional`
  /// and it has a config.json; then there is a warning.
  ///
  /// Errors: the path does not exist; no safetensors file; a shard that the
  /// index names is missing or not readable; the index names a tensor that no
  /// shard has; JSON that is not valid.
  static Expected<Checkpoint> open(const std::string &path,
                                   bool tensorsOptional = false);

  /// As given to open().
  const std::string &path() const { return root; }

  /// In the order of their names.
  const std::vector<SafetensorsFile> &shards() const { return files; }

  /// Of each shard, the tensors whose names speak of attention's inputs: those
  /// of projections to queries, keys and values, and scales that may be a
  /// cache's.
  const std::vector<std::vector<const Tensor *>> &attentionTensors() const {
    return attention;
  }

  /// The first shard's tensor of that name, or null. `shard`, if given,
  /// receives the file it came from.
  const Tensor *find(std::string_view name,
                     const SafetensorsFile **shard = nullptr) const;

  /// config.json; null if there is none.
  const JsonFile *config() const { return configFile ? &*configFile : nullptr; }
  /// hf_quant_config.json (ModelOpt's own file); null if there is none.
  const JsonFile *hfQuantConfig() const {
    return hfQuantFile ? &*hfQuantFile : nullptr;
  }

  /// Remarks and warnings about the files themselves, such as a safetensors
  /// file that the index does not name.
  const std::vector<Diagnostic> &diagnostics() const { return findings; }

private:
  std::string root;
  std::vector<SafetensorsFile> files;
  std::optional<JsonFile> configFile, hfQuantFile;
  std::vector<Diagnostic> findings;
  std::vector<std::vector<const Tensor *>> attention;

  /// `present`: the safetensors files that the folder has.
  Error openIndexed(const std::string &indexPath,
                    const std::vector<std::string> &present);
  void addShard(SafetensorsFile file, std::vector<const Tensor *> tensors);
};

/// config.json of a checkpoint's folder, or beside a single file; no other file
/// is opened. Empty if there is none. Errors: the path does not exist; JSON
/// that is not valid.
Expected<std::optional<JsonFile>> readConfig(const std::string &checkpoint);

} // namespace kvcache

#endif // KVCACHE_CHECKPOINT_CHECKPOINT_H
