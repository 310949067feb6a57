//===- Bundle.cpp - Bundles on disk and in memory -------------------------===//

#include "kvcache/Bundle/Bundle.h"
#include "kvcache/Support/Files.h"
#include "kvcache/Support/Sha256.h"

#include <algorithm>
#include <filesystem>
#include <functional>

namespace fs = std::filesystem;

namespace kvcache {

namespace {

constexpr char manifestName[] = "manifest.json";
/// Nothing in a bundle is near this size; a larger file is not read.
constexpr uint64_t maxFileBytes = uint64_t(1) << 30;

/// Calls `visit` for every file that the manifest names, with the path of the
/// entry that names it.
template <typename ManifestT, typename Visit>
void forEachFile(ManifestT &manifest, Visit visit) {
  for (size_t i = 0; i < manifest.programs.size(); ++i)
    if (auto &host = manifest.programs[i].host)
      visit(host->file, "programs[" + std::to_string(i) + "].host");
  for (size_t i = 0; i < manifest.targets.size(); ++i) {
    std::string path = "targets[" + std::to_string(i) + "]";
    visit(manifest.targets[i].ptx, path + ".ptx");
    if (auto &cubin = manifest.targets[i].cubin)
      visit(*cubin, path + ".cubin");
  }
}

/// The contents of `file` below `root`, without following a link out of it.
Expected<std::string> readInside(const fs::path &root,
                                 const std::string &file) {
  fs::path path = root / file;
  std::string shown = path.string();
  std::error_code code;
  fs::path real = fs::canonical(path, code);
  if (code)
    return makeError(shown + ": cannot be read: " + code.message());
  auto [rootEnd, ignored] =
      std::mismatch(root.begin(), root.end(), real.begin(), real.end());
  if (rootEnd != root.end())
    return makeError(shown + ": is a link that leaves the bundle, to " +
                     real.string());
  if (!fs::is_regular_file(real, code))
    return makeError(shown + ": expected a regular file");
  uintmax_t size = fs::file_size(real, code);
  if (code || size > maxFileBytes)
    return makeError(shown + ": expected at most " +
                     std::to_string(maxFileBytes) + " bytes, found " +
                     std::to_string(size));
  return readFile(real.string());
}

Error checkDigest(const FileDigest &digest, const std::string &contents,
                  const std::string &shown, const std::string &path) {
  std::string found = sha256Hex(contents.data(), contents.size());
  if (found == digest.sha256)
    return Error::success();
  return makeError(shown + ": corrupted: " + manifestName + ": " + path +
                   ".sha256: expected " + digest.sha256 + ", found " + found);
}

/// Reads what a manifest names through `read(file)`.
Expected<Bundle> loadFiles(
    Manifest manifest, const std::string &prefix,
    const std::function<Expected<std::string>(const std::string &)> &read) {
  Bundle bundle;
  Error failure;
  forEachFile(manifest, [&](const FileDigest &digest, const std::string &path) {
    if (failure)
      return;
    Expected<std::string> contents = read(digest.file);
    if (!contents)
      failure = contents.error();
    else
      failure = checkDigest(digest, *contents, prefix + digest.file, path);
    if (!failure)
      bundle.files[digest.file] = std::move(*contents);
  });
  if (failure)
    return failure;
  bundle.manifest = std::move(manifest);
  return bundle;
}

} // namespace

const std::string *Bundle::find(const std::string &file) const {
  auto it = files.find(file);
  return it == files.end() ? nullptr : &it->second;
}

Error updateDigests(Bundle &bundle) {
  Error failure;
  std::map<std::string, bool> named;
  forEachFile(
      bundle.manifest, [&](FileDigest &digest, const std::string &path) {
        const std::string *contents = bundle.find(digest.file);
        named[digest.file] = true;
        if (contents)
          digest.sha256 = sha256Hex(contents->data(), contents->size());
        else if (!failure)
          failure = makeError(path + ".file: the bundle holds no file \"" +
                              digest.file + "\"");
      });
  for (const auto &[file, contents] : bundle.files)
    if (!failure && !named.count(file))
      failure = makeError(file + ": no entry of the manifest names this file");
  return failure;
}

Expected<Bundle> openBundle(const std::string &directory) {
  std::error_code code;
  fs::path root = fs::canonical(directory, code);
  if (code)
    return makeError(directory + ": cannot be opened: " + code.message());
  if (!fs::is_directory(root, code))
    return makeError(directory + ": expected a bundle directory with a " +
                     std::string(manifestName));
  if (!fs::exists(root / manifestName, code))
    return makeError(directory + ": not a bundle: it holds no " +
                     std::string(manifestName));
  Expected<std::string> text = readInside(root, manifestName);
  if (!text)
    return text.error();
  std::string prefix = (fs::path(directory) / "").string();
  Expected<Manifest> manifest = parseManifest(*text, prefix + manifestName);
  if (!manifest)
    return manifest.error();
  return loadFiles(std::move(*manifest), prefix, [&](const std::string &file) {
    return readInside(root, file);
  });
}

Expected<Bundle> openBundle(std::map<std::string, std::string> files) {
  auto text = files.find(manifestName);
  if (text == files.end())
    return makeError("not a bundle: it holds no " + std::string(manifestName));
  Expected<Manifest> manifest = parseManifest(text->second);
  if (!manifest)
    return manifest.error();
  return loadFiles(std::move(*manifest), "",
                   [&](const std::string &file) -> Expected<std::string> {
                     auto it = files.find(file);
                     if (it == files.end())
                       return makeError(file + ": the bundle does not hold "
                                               "this file");
                     return it->second;
                   });
}

Error writeBundle(const std::string &directory, Bundle bundle) {
  if (Error error = updateDigests(bundle))
    return error;
  if (Error error = validateManifest(bundle.manifest))
    return error.withContext(manifestName);
  Expected<StagedDirectory> staged =
      StagedDirectory::create(directory, manifestName);
  if (!staged)
    return staged.error();
  for (const auto &[file, contents] : bundle.files) {
    fs::path path = fs::path(staged->stagingPath()) / file;
    std::error_code code;
    fs::create_directories(path.parent_path(), code);
    if (code)
      return makeError(path.parent_path().string() +
                       ": cannot be created: " + code.message());
    if (Error error = writeFileAtomically(path.string(), contents))
      return error;
  }
  if (Error error =
          writeFileAtomically(joinPath(staged->stagingPath(), manifestName),
                              writeManifest(bundle.manifest)))
    return error;
  return staged->commit();
}

} // namespace kvcache
