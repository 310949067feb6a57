//===- HostProgram.cpp - A bundle's graph around its segments -------------===//

#include "kvcache/Runtime/HostProgram.h"
#include "kvcache/Runtime/Host.h"

#include <algorithm>

#include <dlfcn.h>
#include <unistd.h>

namespace kvcache {

namespace {

constexpr char libraryName[] = "libKVCacheHost.so";

std::optional<KVCacheHostType> hostType(ElementType type) {
  switch (type) {
  case ElementType::BF16:
    return KVCACHE_HOST_BF16;
  case ElementType::F16:
    return KVCACHE_HOST_F16;
  case ElementType::F32:
    return KVCACHE_HOST_F32;
  case ElementType::I32:
    return KVCACHE_HOST_I32;
  case ElementType::I64:
    return KVCACHE_HOST_I64;
  case ElementType::F8E4M3FN:
    return KVCACHE_HOST_F8E4M3FN;
  case ElementType::F8E5M2:
    return KVCACHE_HOST_F8E5M2;
  default:
    return std::nullopt;
  }
}

ElementType elementTypeOf(int32_t type) {
  switch (type) {
  case KVCACHE_HOST_BF16:
    return ElementType::BF16;
  case KVCACHE_HOST_F16:
    return ElementType::F16;
  case KVCACHE_HOST_F32:
    return ElementType::F32;
  case KVCACHE_HOST_I32:
    return ElementType::I32;
  case KVCACHE_HOST_F8E4M3FN:
    return ElementType::F8E4M3FN;
  case KVCACHE_HOST_F8E5M2:
    return ElementType::F8E5M2;
  default:
    return ElementType::I64;
  }
}

TensorView viewOf(const KVCacheHostTensor &tensor) {
  TensorView view;
  view.elementType = elementTypeOf(tensor.type);
  view.shape.assign(tensor.shape, tensor.shape + tensor.rank);
  view.strides.assign(tensor.strides, tensor.strides + tensor.rank);
  view.data = tensor.data;
  return view;
}

/// The folder of the running executable.
std::string executableFolder() {
  char path[4096];
  ssize_t size = ::readlink("/proc/self/exe", path, sizeof(path));
  if (size <= 0 || size_t(size) == sizeof(path))
    return ".";
  std::string text(path, size_t(size));
  return text.substr(0, text.rfind('/'));
}

/// The entry points of an opened library.
struct Library {
  void *handle = nullptr;
  decltype(&kvcacheHostAbiVersion) abiVersion = nullptr;
  decltype(&kvcacheHostOpen) open = nullptr;
  decltype(&kvcacheHostRun) run = nullptr;
  decltype(&kvcacheHostClose) close = nullptr;

  template <typename Function> Error load(const char *name, Function &into) {
    into = reinterpret_cast<Function>(::dlsym(handle, name));
    return into ? Error::success()
                : makeError(std::string("has no function ") + name);
  }

  Error loadAll() {
    if (Error error = load("kvcacheHostAbiVersion", abiVersion))
      return error;
    if (int32_t found = abiVersion(); found != KVCACHE_HOST_ABI_VERSION)
      return makeError("expected interface version " +
                       std::to_string(KVCACHE_HOST_ABI_VERSION) + ", found " +
                       std::to_string(found));
    if (Error error = load("kvcacheHostOpen", open))
      return error;
    if (Error error = load("kvcacheHostRun", run))
      return error;
    return load("kvcacheHostClose", close);
  }
};

Expected<Library> openLibrary(const std::string &given) {
  std::vector<std::string> paths = {given};
  if (given.empty())
    paths = {executableFolder() + "/" + libraryName,
             executableFolder() + "/../lib/" + libraryName};
  std::string reasons;
  for (const std::string &path : paths) {
    Library library;
    library.handle = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (!library.handle) {
      reasons += std::string("\n  ") + ::dlerror();
      continue;
    }
    if (Error error = library.loadAll()) {
      ::dlclose(library.handle);
      return error.withContext(path);
    }
    return library;
  }
  return makeError(
      std::string("running host code needs ") + libraryName +
      ", which is built with MLIR and could not be opened:" + reasons);
}

} // namespace

struct HostProgram::Impl {
  Library library;
  KVCacheHost *host = nullptr;
  const Program *program = nullptr;

  // Of the call in progress.
  const RunSegment *runSegment = nullptr;
  Error failure;
  std::vector<HostTensor> results;

  static int onSegment(void *context, int32_t index,
                       const KVCacheHostTensor *arguments, int32_t count) {
    Impl &impl = *static_cast<Impl *>(context);
    std::vector<TensorView> views;
    for (int32_t i = 0; i < count; ++i)
      views.push_back(viewOf(arguments[i]));
    const Segment &segment = impl.program->segments[size_t(index)];
    if (Error error = (*impl.runSegment)(segment, views)) {
      impl.failure = error.withContext("segment " + segment.name);
      return 1;
    }
    return 0;
  }

  static void onResult(void *context, int32_t index,
                       const KVCacheHostTensor *result) {
    Impl &impl = *static_cast<Impl *>(context);
    TensorView view = viewOf(*result);
    HostTensor &tensor = impl.results[size_t(index)];
    tensor.elementType = view.elementType;
    tensor.shape = view.shape;
    unsigned bytes = elementTypeBytes(view.elementType);
    tensor.data.resize(size_t(elementCount(view.shape)) * bytes);
    copyStrided(view.shape, bytes, static_cast<const uint8_t *>(view.data),
                view.strides, tensor.data.data(),
                contiguousStrides(view.shape));
  }
};

HostProgram::HostProgram(std::unique_ptr<Impl> impl) : impl(std::move(impl)) {}

HostProgram::~HostProgram() {
  if (impl->host)
    impl->library.close(impl->host);
  // The library stays: LLVM does not survive being unloaded and loaded again.
}

Expected<std::unique_ptr<HostProgram>>
HostProgram::open(const Bundle &bundle, const Program &program,
                  const std::string &libraryPath) {
  if (!program.host)
    return makeError("program " + program.name +
                     " has no host code: it is one graph of segments; run it "
                     "without --host");
  const std::string *text = bundle.find(program.host->file.file);
  if (!text)
    return makeError(program.host->file.file + ": the bundle does not hold it");
  Expected<Library> library = openLibrary(libraryPath);
  if (!library)
    return library.error();
  auto impl = std::make_unique<Impl>();
  impl->library = *library;
  impl->program = &program;
  std::vector<const char *> segments;
  for (const Segment &segment : program.segments)
    segments.push_back(segment.function.c_str());
  char error[4096] = "";
  impl->host =
      library->open(text->data(), text->size(), program.host->file.file.c_str(),
                    program.host->function.c_str(), segments.data(),
                    int32_t(segments.size()), error, sizeof(error));
  if (!impl->host)
    return makeError(error);
  return std::unique_ptr<HostProgram>(new HostProgram(std::move(impl)));
}

Expected<std::vector<HostTensor>>
HostProgram::run(const std::map<std::string, TensorView> &arguments,
                 const RunSegment &runSegment) {
  const HostCode &code = *impl->program->host;
  size_t count = code.arguments.size();
  std::vector<KVCacheHostTensor> tensors(count);
  std::vector<std::vector<int64_t>> strides(count);
  for (size_t i = 0; i < count; ++i) {
    const HostValue &declared = code.arguments[i];
    auto given = arguments.find(declared.name);
    if (given == arguments.end())
      return makeError(declared.name + ": expected " +
                       typeText(declared.elementType, declared.shape) +
                       " as argument " + std::to_string(i) + " of @" +
                       code.function + ", found no tensor of that name");
    const TensorView &view = given->second;
    bool fits = view.elementType == declared.elementType &&
                view.shape.size() == declared.shape.size();
    for (size_t d = 0; fits && d < view.shape.size(); ++d)
      fits = declared.shape[d] < 0 || declared.shape[d] == view.shape[d];
    std::optional<KVCacheHostType> type = hostType(view.elementType);
    if (!fits || !type)
      return makeError(declared.name + ": expected " +
                       typeText(declared.elementType, declared.shape) +
                       " as argument " + std::to_string(i) + " of @" +
                       code.function + ", found " +
                       typeText(view.elementType, view.shape));
    strides[i] = contiguousStrides(view.shape);
    tensors[i] = {view.data, view.shape.data(), strides[i].data(),
                  int32_t(view.shape.size()), int32_t(*type)};
  }
  impl->runSegment = &runSegment;
  impl->failure = Error::success();
  impl->results.assign(code.results.size(), HostTensor());
  char error[4096] = "";
  int status = impl->library.run(impl->host, tensors.data(), int32_t(count),
                                 Impl::onSegment, Impl::onResult, impl.get(),
                                 error, sizeof(error));
  if (impl->failure)
    return impl->failure;
  if (status != 0)
    return makeError(code.file.file + ": " + error);
  for (size_t i = 0; i < code.results.size(); ++i)
    if (impl->results[i].elementType != code.results[i].elementType ||
        impl->results[i].shape.size() != code.results[i].shape.size())
      return makeError(
          code.file.file + ": result " + std::to_string(i) + ": expected " +
          typeText(code.results[i].elementType, code.results[i].shape) +
          ", found " +
          typeText(impl->results[i].elementType, impl->results[i].shape));
  return std::move(impl->results);
}

} // namespace kvcache
