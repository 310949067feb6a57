//===- TritonKernel.cpp - A kernel of Triton's as a launch ----------------===//

#include "kvcache/Bundle/Emit.h"
#include "kvcache/Bundle/PtxText.h"
#include "kvcache/Support/Files.h"
#include "kvcache/Support/Json.h"

#include <algorithm>

namespace kvcache {

namespace {

/// What the directory says.
struct TritonKernel {
  std::string folder, name, ptx;
  int64_t arch = 0, warps = 0, shared = 0;
  JsonValue::Array arguments, grid;
};

Expected<JsonValue> readJson(const std::string &path) {
  Expected<std::string> text = readFile(path);
  if (!text)
    return text.error();
  return parseJson(*text, path);
}

Expected<int64_t> integer(const JsonValue &object, const char *key,
                          const std::string &path) {
  const JsonValue *value = object.findNonNull(key);
  if (!value || !value->isInteger())
    return makeError(path + ": " + key + ": expected an integer" +
                     (value ? std::string(", found ") + value->kindName()
                            : std::string(", found nothing")));
  return value->asInteger();
}

Expected<TritonKernel> readKernel(const std::string &folder) {
  Expected<std::vector<std::string>> names = listDirectory(folder);
  if (!names)
    return names.error();
  TritonKernel kernel;
  kernel.folder = folder;
  std::string file;
  for (const std::string &name : *names) {
    bool json = name.size() > 5 && name.substr(name.size() - 5) == ".json";
    // Triton's cache keeps an index beside the kernel.
    if (!json || name == "mapping.json" || name.rfind("__grp__", 0) == 0)
      continue;
    if (!file.empty())
      return makeError(folder +
                       ": expected the metadata of one kernel, found " + file +
                       " and " + name);
    file = name;
  }
  if (file.empty())
    return makeError(folder + ": expected {name}.json, {name}.ptx and "
                              "mapping.json, found no metadata");
  std::string path = joinPath(folder, file);
  Expected<JsonValue> metadata = readJson(path);
  if (!metadata)
    return metadata.error();
  const JsonValue *name = metadata->findNonNull("name");
  const JsonValue *target = metadata->findNonNull("target");
  if (!name || !name->isString() || !target || !target->isObject())
    return makeError(path + ": expected the members name and target of "
                            "Triton's metadata");
  kernel.name = name->asString();
  struct Field {
    const JsonValue *object;
    const char *key;
    int64_t *into;
  };
  for (const Field &field : {Field{target, "arch", &kernel.arch},
                             Field{&*metadata, "num_warps", &kernel.warps},
                             Field{&*metadata, "shared", &kernel.shared}}) {
    Expected<int64_t> value = integer(*field.object, field.key, path);
    if (!value)
      return value.error();
    *field.into = *value;
  }
  for (const char *key : {"global_scratch_size", "profile_scratch_size"}) {
    const JsonValue *size = metadata->findNonNull(key);
    if (size && size->isInteger() && size->asInteger() != 0)
      return makeError(path + ": " + key + ": expected 0, found " +
                       std::to_string(size->asInteger()) +
                       "; a captured launch has no scratch memory of Triton's");
  }
  if (kernel.warps < 1 || kernel.warps > 32)
    return makeError(path + ": num_warps: expected 1 to 32, found " +
                     std::to_string(kernel.warps));
  Expected<std::string> ptx =
      readFile(joinPath(folder, file.substr(0, file.size() - 5) + ".ptx"));
  if (!ptx)
    return ptx.error();
  kernel.ptx = std::move(*ptx);

  path = joinPath(folder, "mapping.json");
  Expected<JsonValue> mapping = readJson(path);
  if (!mapping)
    return mapping.error();
  const JsonValue *arguments = mapping->findNonNull("arguments");
  const JsonValue *grid = mapping->findNonNull("grid");
  if (!arguments || !arguments->isArray() || !grid || !grid->isArray() ||
      grid->asArray().size() != 3)
    return makeError(path + ": expected \"arguments\", a list, and \"grid\", a "
                            "list of three");
  kernel.arguments = arguments->asArray();
  kernel.grid = grid->asArray();
  return kernel;
}

const std::string *bufferOf(const LayerBuffers &names, const std::string &key) {
  const std::pair<const char *, const std::string *> table[] = {
      {"query", &names.query},
      {"key", &names.key},
      {"value", &names.value},
      {"output", &names.output},
      {"lse", &names.lse},
      {"k_cache", &names.kCache},
      {"v_cache", &names.vCache},
      {"page_table", &names.pageTable},
      {"lengths", &names.lengths},
      {"query_start", &names.queryStart},
      {"slot_mapping", &names.slotMapping}};
  for (const auto &[name, buffer] : table)
    if (key == name)
      return buffer;
  return nullptr;
}

/// The n-th f32 constant of a launch.
const Argument *scalar(const Launch &launch, unsigned n) {
  for (const Argument &argument : launch.arguments)
    if (argument.kind == Argument::Kind::F32 && n-- == 0)
      return &argument;
  return nullptr;
}

Expected<Argument> makeArgument(const JsonValue &value, const Layer &layer,
                                const Launch &replaced) {
  if (value.isObject() && value.asObject().size() == 1) {
    const auto &[kind, number] = value.asObject().front();
    if (kind == "i32" && number.isInteger())
      return Argument::ofI32(int32_t(number.asInteger()));
    if (kind == "i64" && number.isInteger())
      return Argument::ofI64(number.asInteger());
    if (kind == "f32" && number.isNumber())
      return Argument::ofF32(float(number.asDouble()), "mapping.json");
  }
  if (!value.isString())
    return makeError("expected a name, {\"i32\": N}, {\"i64\": N} or {\"f32\": "
                     "F}, found " +
                     std::string(value.kindName()));
  const std::string &name = value.asString();
  if (name == "null")
    return Argument::null();
  bool perHead = !layer.kScale.perHead.empty() || !layer.vScale.perHead.empty();
  if (perHead && (name == "k_scale" || name == "v_scale"))
    return makeError("layer " + layer.id +
                     " has a scale for each KV head, so there is no one \"" +
                     name + "\"; use a checkpoint with per-tensor scales");
  if (name == "k_scale")
    return Argument::ofF32(layer.kScale.value.value(), "k_scale");
  if (name == "v_scale")
    return Argument::ofF32(layer.vScale.value.value(), "v_scale");
  if (name == "score_scale" || name == "output_scale")
    if (const Argument *found = scalar(replaced, name == "output_scale"))
      return *found;
  const std::string *buffer = bufferOf(layer.buffers, name);
  if (!buffer || buffer->empty())
    return makeError("layer " + layer.id + " has no \"" + name + "\"");
  return Argument::ofBuffer(*buffer);
}

Expected<int64_t> gridExtent(const JsonValue &value, const Layer &layer,
                             const Capacities &sizes) {
  if (value.isInteger())
    return value.asInteger();
  const std::pair<const char *, int64_t> table[] = {
      {"query_heads", layer.queryHeads},
      {"kv_heads", layer.kvHeads},
      {"max_tokens", sizes.maxTokens},
      {"max_sequences", sizes.maxSequences},
      {"max_pages_per_sequence", sizes.maxPagesPerSequence}};
  std::string names;
  for (const auto &[name, extent] : table) {
    if (value.isString() && value.asString() == name)
      return extent;
    names += (names.empty() ? "" : ", ") + std::string(name);
  }
  return makeError("expected a number or a capacity (" + names + ")");
}

Error replace(Launch &launch, const Layer &layer, const Capacities &sizes,
              const TritonKernel &kernel) {
  std::string path = joinPath(kernel.folder, "mapping.json");
  Launch fresh = launch;
  fresh.kernel = kernel.name;
  fresh.block = {32 * kernel.warps, 1, 1};
  fresh.sharedBytes = kernel.shared;
  fresh.arguments.clear();
  for (size_t i = 0; i < kernel.arguments.size(); ++i) {
    Expected<Argument> argument =
        makeArgument(kernel.arguments[i], layer, launch);
    if (!argument)
      return argument.error().withContext(path + ": arguments[" +
                                          std::to_string(i) + "]");
    fresh.arguments.push_back(std::move(*argument));
  }
  for (size_t i = 0; i < 3; ++i) {
    Expected<int64_t> extent = gridExtent(kernel.grid[i], layer, sizes);
    if (!extent)
      return extent.error().withContext(path + ": grid[" + std::to_string(i) +
                                        "]");
    fresh.grid[i] = *extent;
  }
  launch = std::move(fresh);
  return Error::success();
}

/// The PTX of a target with a foreign module's kernels in it, in the newer of
/// both PTX versions.
std::string join(const std::string &ours, const std::string &theirs) {
  PtxModule into = PtxModule::parse(ours), from = PtxModule::parse(theirs);
  auto number = [](const std::string &version) {
    return std::atof(version.c_str());
  };
  if (number(from.version()) > number(into.version()))
    into.directives = from.directives;
  into.globals += from.globals;
  into.kernels.insert(into.kernels.end(), from.kernels.begin(),
                      from.kernels.end());
  return into.print();
}

} // namespace

Error useTritonKernel(Bundle &bundle, LaunchOp op, const std::string &folder) {
  Expected<TritonKernel> kernel = readKernel(folder);
  if (!kernel)
    return kernel.error();
  bool used = false;
  std::string chips;
  for (Target &target : bundle.manifest.targets) {
    chips += (chips.empty() ? "" : ", ") + target.chip;
    std::string chip = "sm_" + std::to_string(kernel->arch);
    if (target.chip != chip && target.chip != chip + "a")
      continue;
    bool here = false;
    for (Launch &launch : target.launches) {
      if (launch.op != op)
        continue;
      if (Error error =
              replace(launch, *bundle.manifest.findLayer(launch.layer),
                      bundle.manifest.capacities, *kernel))
        return error;
      launch.math.reset(); // unknown
      here = true;
    }
    if (!here)
      continue;
    used = true;
    std::string &ptx = bundle.files[target.ptx.file];
    ptx = join(ptx, kernel->ptx);
    if (target.cubin)
      bundle.files.erase(target.cubin->file);
    target.cubin.reset();
    Kernel entry;
    entry.name = kernel->name;
    entry.structure["num_warps"] = kernel->warps;
    target.kernels.push_back(std::move(entry));
    // Kernels that nothing launches any more are not the bundle's business.
    target.kernels.erase(
        std::remove_if(target.kernels.begin(), target.kernels.end(),
                       [&](const Kernel &candidate) {
                         return std::none_of(
                             target.launches.begin(), target.launches.end(),
                             [&](const Launch &launch) {
                               return launch.kernel == candidate.name;
                             });
                       }),
        target.kernels.end());
  }
  if (!used)
    return makeError(folder + ": the kernel is for sm_" +
                     std::to_string(kernel->arch) + " and " +
                     std::string(launchOpName(op)) +
                     "; the bundle has no such launch on its targets " + chips);
  if (Error error = updateDigests(bundle))
    return error;
  return validateManifest(bundle.manifest);
}

} // namespace kvcache
