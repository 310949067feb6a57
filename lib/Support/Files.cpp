//===- Files.cpp - Reading files, writing them all or nothing -------------===//

#include "kvcache/Support/Files.h"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <filesystem>

#include <dirent.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

using namespace kvcache;

namespace {

Error systemError(const std::string &what, const std::string &path) {
  int code = errno;
  return makeError(path + ": " + what + ": " + std::strerror(code));
}

/// A file descriptor that closes itself.
class Descriptor {
public:
  explicit Descriptor(int fd) : fd(fd) {}
  ~Descriptor() {
    if (fd >= 0)
      ::close(fd);
  }
  Descriptor(const Descriptor &) = delete;
  Descriptor &operator=(const Descriptor &) = delete;
  int get() const { return fd; }
  /// Closes now, to see errors that only close() reports.
  bool close() {
    int result = ::close(fd);
    fd = -1;
    return result == 0;
  }

private:
  int fd;
};

bool writeAll(int fd, std::string_view data) {
  while (!data.empty()) {
    ssize_t written = ::write(fd, data.data(), data.size());
    if (written < 0) {
      if (errno == EINTR)
        continue;
      return false;
    }
    data.remove_prefix(size_t(written));
  }
  return true;
}

/// A name beside `path` that nobody else uses.
std::string temporaryName(const std::string &path) {
  static std::atomic<unsigned> counter{0};
  return path + ".tmp-" + std::to_string(::getpid()) + "-" +
         std::to_string(counter++);
}

std::string withoutTrailingSlashes(std::string path) {
  while (path.size() > 1 && path.back() == '/')
    path.pop_back();
  return path;
}

void removeTree(const std::string &path) {
  std::error_code ignored;
  std::filesystem::remove_all(path, ignored);
}

} // namespace

Expected<std::string> kvcache::readFile(const std::string &path) {
  Descriptor fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (fd.get() < 0)
    return systemError("cannot open", path);
  struct stat info;
  if (::fstat(fd.get(), &info) != 0)
    return systemError("cannot read", path);
  if (S_ISDIR(info.st_mode))
    return makeError(path + ": cannot read: is a directory");
  std::string text;
  if (S_ISREG(info.st_mode))
    text.reserve(size_t(info.st_size) + 1);
  // Grows by what arrives: the size of a pipe is not known beforehand.
  for (;;) {
    size_t had = text.size();
    size_t room = std::max<size_t>(text.capacity() - had, 4096);
    text.resize(had + room);
    ssize_t got = ::read(fd.get(), text.data() + had, room);
    if (got < 0 && errno == EINTR)
      got = 0;
    else if (got < 0)
      return systemError("cannot read", path);
    else if (got == 0) {
      text.resize(had);
      return text;
    }
    text.resize(had + size_t(got));
  }
}

Error kvcache::writeFileAtomically(
    const std::string &path, const std::vector<std::string_view> &pieces) {
  struct stat info;
  bool exists = ::stat(path.c_str(), &info) == 0;
  if (exists && S_ISDIR(info.st_mode))
    return makeError(path + ": cannot write: is a directory");
  bool direct = exists && !S_ISREG(info.st_mode);
  std::string name = direct ? path : temporaryName(path);
  int flags = O_WRONLY | O_CLOEXEC | (direct ? 0 : O_CREAT | O_EXCL);
  Descriptor fd(::open(name.c_str(), flags, 0666));
  if (fd.get() < 0)
    return systemError("cannot write", path);
  bool good = true;
  for (std::string_view piece : pieces)
    good = good && writeAll(fd.get(), piece);
  good = good && fd.close();
  if (good && !direct)
    good = ::rename(name.c_str(), path.c_str()) == 0;
  if (good)
    return Error::success();
  Error error = systemError("cannot write", path);
  if (!direct)
    ::unlink(name.c_str());
  return error;
}

Error kvcache::writeFileAtomically(const std::string &path,
                                   std::string_view data) {
  return writeFileAtomically(path, std::vector<std::string_view>{data});
}

bool kvcache::pathExists(const std::string &path) {
  struct stat info;
  return ::stat(path.c_str(), &info) == 0;
}

bool kvcache::isDirectory(const std::string &path) {
  struct stat info;
  return ::stat(path.c_str(), &info) == 0 && S_ISDIR(info.st_mode);
}

bool kvcache::isRegularFile(const std::string &path) {
  struct stat info;
  return ::stat(path.c_str(), &info) == 0 && S_ISREG(info.st_mode);
}

std::string kvcache::joinPath(const std::string &folder,
                              const std::string &name) {
  if (folder.empty())
    return name;
  return folder.back() == '/' ? folder + name : folder + "/" + name;
}

std::string kvcache::baseName(const std::string &path) {
  size_t slash = path.rfind('/');
  return slash == std::string::npos ? path : path.substr(slash + 1);
}

Expected<std::vector<std::string>>
kvcache::listDirectory(const std::string &path) {
  DIR *folder = ::opendir(path.c_str());
  if (!folder)
    return systemError("cannot list", path);
  std::vector<std::string> names;
  while (struct dirent *entry = ::readdir(folder)) {
    std::string_view name = entry->d_name;
    if (name != "." && name != "..")
      names.emplace_back(name);
  }
  ::closedir(folder);
  std::sort(names.begin(), names.end());
  return names;
}

Expected<MappedFile> MappedFile::open(const std::string &path) {
  // A named pipe without a writer is refused below, not waited for.
  Descriptor fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (fd.get() < 0)
    return systemError("cannot open", path);
  struct stat info;
  if (::fstat(fd.get(), &info) != 0)
    return systemError("cannot read", path);
  if (!S_ISREG(info.st_mode))
    return makeError(path + ": cannot read: not a regular file");
  MappedFile file;
  if (info.st_size == 0)
    return file;
  void *address = ::mmap(nullptr, size_t(info.st_size), PROT_READ, MAP_PRIVATE,
                         fd.get(), 0);
  if (address == MAP_FAILED)
    return systemError("cannot map", path);
  file.bytes = static_cast<const uint8_t *>(address);
  file.length = uint64_t(info.st_size);
  return file;
}

MappedFile::~MappedFile() {
  if (bytes)
    ::munmap(const_cast<uint8_t *>(bytes), size_t(length));
}

Error kvcache::makeDirectory(const std::string &path) {
  if (::mkdir(path.c_str(), 0777) == 0 ||
      (errno == EEXIST && isDirectory(path)))
    return Error::success();
  return systemError("cannot make the folder", path);
}

/// Whether the folder may be replaced: empty, or one of ours.
static Error checkReplaceable(const std::string &path,
                              const std::string &marker) {
  struct stat info;
  if (::lstat(path.c_str(), &info) != 0)
    return Error::success();
  if (!S_ISDIR(info.st_mode))
    return makeError(path + ": cannot write a folder here: something that is "
                            "not a folder exists");
  Expected<std::vector<std::string>> names = listDirectory(path);
  if (!names)
    return names.error();
  if (names->empty() || isRegularFile(joinPath(path, marker)))
    return Error::success();
  return makeError(path +
                   ": refusing to replace this folder: it is not empty "
                   "and has no " +
                   marker);
}

Expected<StagedDirectory> StagedDirectory::create(const std::string &finalPath,
                                                  const std::string &marker) {
  std::string target = withoutTrailingSlashes(finalPath);
  if (target.empty())
    return makeError("the path of an output folder is empty");
  if (Error error = checkReplaceable(target, marker))
    return error;
  StagedDirectory directory;
  directory.target = target;
  directory.marker = marker;
  std::string staging = temporaryName(target);
  if (::mkdir(staging.c_str(), 0777) != 0)
    return systemError("cannot write", target);
  directory.staging = staging;
  return directory;
}

StagedDirectory::~StagedDirectory() {
  if (!staging.empty())
    removeTree(staging);
}

Error StagedDirectory::commit() {
  if (Error error = checkReplaceable(target, marker))
    return error;
  // Works when there is nothing at the target, or an empty folder.
  if (::rename(staging.c_str(), target.c_str()) == 0) {
    staging.clear();
    return Error::success();
  }
  if (errno != ENOTEMPTY && errno != EEXIST)
    return systemError("cannot write", target);
  if (::renameat2(AT_FDCWD, staging.c_str(), AT_FDCWD, target.c_str(),
                  RENAME_EXCHANGE) == 0)
    return Error::success(); // the destructor removes the previous folder
  // File systems without an exchange: there is a moment without the folder.
  std::string previous = temporaryName(target);
  if (::rename(target.c_str(), previous.c_str()) != 0)
    return systemError("cannot write", target);
  if (::rename(staging.c_str(), target.c_str()) != 0) {
    Error error = systemError("cannot write", target);
    ::rename(previous.c_str(), target.c_str());
    return error;
  }
  staging = previous;
  return Error::success();
}
