//===- Checkpoint.cpp - A model's folder of files -------------------------===//

#include "kvcache/Checkpoint/Checkpoint.h"
#include "PlainScanner.h"
#include "ScaleNames.h"

#include <algorithm>
#include <atomic>
#include <map>
#include <thread>

using namespace kvcache;

static const char *const indexName = "model.safetensors.index.json";

const char *kvcache::severityName(Severity severity) {
  switch (severity) {
  case Severity::Error:
    return "error";
  case Severity::Warning:
    return "warning";
  case Severity::Remark:
    break;
  }
  return "remark";
}

bool kvcache::hasErrors(const std::vector<Diagnostic> &diagnostics) {
  return std::any_of(
      diagnostics.begin(), diagnostics.end(),
      [](const Diagnostic &d) { return d.severity == Severity::Error; });
}

static bool endsWith(std::string_view text, std::string_view end) {
  return text.size() >= end.size() &&
         text.substr(text.size() - end.size()) == end;
}

/// A shard's name comes from a file: it must stay below the folder.
static bool isSafeRelativePath(std::string_view name) {
  if (name.empty() || name.front() == '/')
    return false;
  while (!name.empty()) {
    size_t slash = name.find('/');
    if (name.substr(0, slash) == "..")
      return false;
    name.remove_prefix(slash == std::string_view::npos ? name.size()
                                                       : slash + 1);
  }
  return name.find('\0') == std::string_view::npos;
}

static Error readJsonIfPresent(const std::string &path,
                               std::optional<JsonFile> &file) {
  if (!pathExists(path))
    return Error::success();
  Expected<std::string> text = readFile(path);
  if (!text)
    return text.error();
  JsonParseOptions options;
  options.pythonNonFinite = true;
  Expected<JsonValue> value = parseJson(*text, path, options);
  if (!value)
    return value.error();
  if (!value->isObject())
    return makeError(path + ": expected a JSON object, found " +
                     value->kindName());
  file = JsonFile{path, std::move(*value)};
  return Error::success();
}

namespace {

/// A shard, and those of its tensors that attentionTensors() promises.
struct Shard {
  SafetensorsFile file;
  std::vector<const Tensor *> attention;
};

Expected<Shard> openShard(const std::string &path) {
  Expected<SafetensorsFile> file = SafetensorsFile::open(path);
  if (!file)
    return file.error();
  // Here, where the names have just been read.
  std::vector<const Tensor *> attention = findAttentionTensors(*file);
  return Shard{std::move(*file), std::move(attention)};
}

/// Opens files on several threads while the caller does something else.
class ShardOpener {
public:
  explicit ShardOpener(std::vector<std::string> paths)
      : paths(std::move(paths)), results(this->paths.size()) {
    // A file takes about as long as starting a thread.
    constexpr size_t filesPerThread = 4, maxThreads = 8;
    // One core is the caller's.
    size_t cores = std::max(2u, std::thread::hardware_concurrency());
    size_t count =
        std::min({this->paths.size() / filesPerThread, maxThreads, cores - 1});
    for (size_t i = 0; i < count; ++i)
      threads.emplace_back([this] { work(); });
  }
  ~ShardOpener() { finish(); }
  ShardOpener(const ShardOpener &) = delete;
  ShardOpener &operator=(const ShardOpener &) = delete;

  /// Helps, and waits until all files are open.
  void finish() {
    work();
    for (std::thread &thread : threads)
      thread.join();
    threads.clear();
  }

  /// After finish(); a path that was not asked for is opened now.
  Expected<Shard> take(const std::string &path) {
    for (size_t i = 0; i < paths.size(); ++i)
      if (paths[i] == path && results[i])
        return std::move(*results[i]);
    return openShard(path);
  }

private:
  void work() {
    for (size_t i; (i = next++) < paths.size();)
      results[i] = openShard(paths[i]);
  }

  std::vector<std::string> paths;
  std::vector<std::optional<Expected<Shard>>> results;
  std::atomic<size_t> next{0};
  std::vector<std::thread> threads;
};

} // namespace

/// Calls `visit(tensor, shard)` for the pairs of an index as it is mostly
/// written; false if there is more to it.
template <typename Visit>
static bool scanIndex(std::string_view text, const Visit &visit) {
  PlainScanner scanner(text);
  bool hasWeights = false;
  auto skipFlat = [&](std::string_view) {
    uint64_t number;
    std::string_view string;
    return scanner.number(number) || scanner.string(string);
  };
  auto scanWeight = [&](std::string_view name) {
    std::string_view shard;
    if (!scanner.string(shard))
      return false;
    visit(name, shard);
    return true;
  };
  return scanner.object([&](std::string_view name) {
    if (name != "weight_map")
      return scanner.object(skipFlat);
    if (hasWeights)
      return false;
    hasWeights = true;
    return scanner.object(scanWeight);
  }) && hasWeights &&
         scanner.atEnd();
}

/// As scanIndex(), for any index. The strings are those of `document`.
template <typename Visit>
static Error visitIndex(const JsonValue &document, const std::string &path,
                        const Visit &visit) {
  const JsonValue *map = document.find("weight_map");
  if (!map || !map->isObject())
    return makeError(path + ": expected an object with an object "
                            "'weight_map' (tensor name to shard)");
  for (const auto &[name, shard] : map->asObject()) {
    if (!shard.isString())
      return makeError(path + ": weight_map: '" + name +
                       "' must name a file by a string");
    visit(name, shard.asString());
  }
  return Error::success();
}

Error Checkpoint::openIndexed(const std::string &indexPath,
                              const std::vector<std::string> &present) {
  // Most likely the index names what is in the folder.
  std::vector<std::string> likely;
  for (const std::string &name : present)
    likely.push_back(joinPath(root, name));
  ShardOpener opener(std::move(likely));

  Expected<MappedFile> text = MappedFile::open(indexPath);
  if (!text)
    return text.error();
  std::string_view whole(reinterpret_cast<const char *>(text->data()),
                         size_t(text->size()));
  /// What the index says that a shard holds.
  struct Listed {
    size_t count = 0;
    uint64_t nameSum = 0;
    size_t file = 0; ///< its position in `files`
  };
  std::map<std::string_view, Listed> listed;
  std::string_view previous;
  Listed *current = nullptr;
  auto add = [&](std::string_view tensor, std::string_view shard) {
    // Neighbours mostly have the same one.
    if (!current || shard != previous) {
      previous = shard;
      current = &listed[shard];
    }
    ++current->count;
    current->nameSum += hashTensorName(tensor);
  };
  JsonValue document;
  bool isPlain = scanIndex(whole, add);
  if (!isPlain) {
    Expected<JsonValue> parsed = parseJson(whole, indexPath);
    if (!parsed)
      return parsed.error();
    document = std::move(*parsed);
    listed.clear();
    current = nullptr;
    if (Error error = visitIndex(document, indexPath, add))
      return error;
  }
  if (listed.empty())
    return makeError(indexPath + ": weight_map names no shard");

  files.reserve(listed.size());
  opener.finish();
  bool isExact = true;
  for (auto &[name, tensors] : listed) {
    if (!isSafeRelativePath(name))
      return makeError(indexPath + ": weight_map: the shard name '" +
                       std::string(name) +
                       "' must stay below the checkpoint's folder");
    std::string path = joinPath(root, std::string(name));
    Expected<Shard> shard = opener.take(path);
    if (!shard && !pathExists(path))
      return makeError(path + ": no such file, but " + indexPath +
                       " names it as a shard");
    if (!shard)
      return shard.error();
    isExact = isExact && shard->file.tensors().size() == tensors.count &&
              shard->file.nameSum() == tensors.nameSum;
    tensors.file = files.size();
    addShard(std::move(shard->file), std::move(shard->attention));
  }
  if (isExact)
    return Error::success();

  std::string absent, example;
  size_t misplaced = 0;
  auto check = [&](std::string_view tensor, std::string_view shard) {
    if (!absent.empty() || files[listed[shard].file].find(tensor))
      return;
    if (!find(tensor))
      absent = "names the tensor '" + std::string(tensor) + "' in " +
               std::string(shard) + ", but no shard has it";
    else if (misplaced++ == 0)
      example = tensor;
  };
  if (isPlain)
    scanIndex(whole, check);
  else if (Error error = visitIndex(document, indexPath, check))
    return error;
  if (!absent.empty())
    return makeError(indexPath + ": " + absent);
  if (misplaced != 0)
    findings.push_back({Severity::Warning, "", example, indexPath,
                        indexPath + ": " + std::to_string(misplaced) +
                            " tensors are in another shard than it says, such "
                            "as '" +
                            example + "'"});
  return Error::success();
}

/// A declaration that is no object would be taken for none.
static Error checkDeclarations(const std::optional<JsonFile> &file,
                               std::initializer_list<std::string_view> parents,
                               std::initializer_list<std::string_view> keys) {
  if (!file)
    return Error::success();
  for (std::string_view parent : parents) {
    const JsonValue *object =
        parent.empty() ? &file->value : file->value.find(parent);
    if (!object || !object->isObject())
      continue;
    for (std::string_view key : keys) {
      const JsonValue *value = object->findNonNull(key);
      if (value && !value->isObject())
        return makeError(file->path + ": " + std::string(parent) +
                         (parent.empty() ? "" : ".") + std::string(key) +
                         ": expected an object, found " + value->kindName());
    }
  }
  return Error::success();
}

/// The folder of a checkpoint, which may be given by its only file.
static Expected<std::string> findFolder(const std::string &path) {
  if (!pathExists(path))
    return makeError(path + ": no such checkpoint (expected a folder or a "
                            ".safetensors file)");
  if (isDirectory(path))
    return path;
  size_t slash = path.rfind('/');
  return slash == std::string::npos ? "." : path.substr(0, slash + 1);
}

Expected<std::optional<JsonFile>>
kvcache::readConfig(const std::string &checkpoint) {
  Expected<std::string> folder = findFolder(checkpoint);
  if (!folder)
    return folder.error();
  std::optional<JsonFile> config;
  if (Error error = readJsonIfPresent(joinPath(*folder, "config.json"), config))
    return error;
  return config;
}

Expected<Checkpoint> Checkpoint::open(const std::string &path,
                                      bool tensorsOptional) {
  Checkpoint checkpoint;
  checkpoint.root = path;
  Expected<std::string> found = findFolder(path);
  if (!found)
    return found.error();
  const std::string &folder = *found;
  if (!isDirectory(path)) {
    if (endsWith(path, ".json"))
      return makeError(path + ": expected a folder or a .safetensors file; "
                              "name the folder that holds this file");
    Expected<Shard> shard = openShard(path);
    if (!shard)
      return shard.error();
    checkpoint.addShard(std::move(shard->file), std::move(shard->attention));
  } else {
    Expected<std::vector<std::string>> entries = listDirectory(path);
    if (!entries)
      return entries.error();
    std::vector<std::string> shards;
    bool hasIndex = false;
    for (const std::string &name : *entries) {
      hasIndex = hasIndex || name == indexName;
      if (endsWith(name, ".safetensors"))
        shards.push_back(name);
    }
    if (hasIndex) {
      std::string indexPath = joinPath(path, indexName);
      if (Error error = checkpoint.openIndexed(indexPath, shards))
        return error;
      for (const std::string &name : shards) {
        std::string unread = joinPath(path, name);
        bool known = std::any_of(
            checkpoint.files.begin(), checkpoint.files.end(),
            [&](const SafetensorsFile &f) { return f.path() == unread; });
        if (!known)
          checkpoint.findings.push_back(
              {Severity::Warning, "", "", unread,
               unread + ": not read, because " + indexPath +
                   " does not name it; scales in it need an overlay"});
      }
    } else {
      bool hasConfig = std::find(entries->begin(), entries->end(),
                                 "config.json") != entries->end();
      if (shards.empty() && !(tensorsOptional && hasConfig))
        return makeError(path + ": no .safetensors file in this folder");
      if (shards.empty())
        checkpoint.findings.push_back(
            {Severity::Warning, "", "", path,
             path + ": no .safetensors file in this folder; only what "
                    "config.json says is known"});
      std::vector<std::string> paths;
      for (const std::string &name : shards)
        paths.push_back(joinPath(path, name));
      ShardOpener opener(paths);
      opener.finish();
      for (const std::string &shard : paths) {
        Expected<Shard> opened = opener.take(shard);
        if (!opened)
          return opened.error();
        checkpoint.addShard(std::move(opened->file),
                            std::move(opened->attention));
      }
    }
  }
  if (Error error = readJsonIfPresent(joinPath(folder, "config.json"),
                                      checkpoint.configFile))
    return error;
  if (Error error = readJsonIfPresent(joinPath(folder, "hf_quant_config.json"),
                                      checkpoint.hfQuantFile))
    return error;
  if (Error error =
          checkDeclarations(checkpoint.configFile, {"", "text_config"},
                            {"quantization_config", "compression_config"}))
    return error;
  if (Error error =
          checkDeclarations(checkpoint.hfQuantFile, {""}, {"quantization"}))
    return error;
  return checkpoint;
}

void Checkpoint::addShard(SafetensorsFile file,
                          std::vector<const Tensor *> tensors) {
  files.push_back(std::move(file));
  attention.push_back(std::move(tensors));
}

const Tensor *Checkpoint::find(std::string_view name,
                               const SafetensorsFile **shard) const {
  for (const SafetensorsFile &file : files)
    if (const Tensor *tensor = file.find(name)) {
      if (shard)
        *shard = &file;
      return tensor;
    }
  return nullptr;
}
