//===- Emit.cpp - A bundle's code in other forms --------------------------===//

#include "kvcache/Bundle/Emit.h"
#include "kvcache/Bundle/PtxText.h"
#include "kvcache/Support/Json.h"
#include "kvcache/Support/Sha256.h"

#include <algorithm>
#include <cstdio>

namespace kvcache {

namespace {

/// Upper-case letters, digits and '_' only.
std::string macroName(const std::string &text) {
  std::string name;
  for (char c : text) {
    bool letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
    bool digit = c >= '0' && c <= '9';
    name += letter ? char(c & ~0x20) : digit ? c : '_';
  }
  return name;
}

std::string identifier(const std::string &text) {
  std::string name;
  for (char c : text) {
    bool word = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
                (c >= '0' && c <= '9');
    name += word ? c : '_';
  }
  return name;
}

std::string hex32(uint32_t bits) {
  char text[16];
  std::snprintf(text, sizeof(text), "%08X", bits);
  return text;
}

std::string byteList(const std::string &data) {
  static const char digits[] = "0123456789abcdef";
  std::string text;
  text.reserve(data.size() * 6);
  for (size_t i = 0; i < data.size(); ++i) {
    uint8_t byte = uint8_t(data[i]);
    text += i % 16 == 0 ? "\n  " : " ";
    text += "0x";
    text += digits[byte >> 4];
    text += digits[byte & 15];
    text += ',';
  }
  return text;
}

int chipArch(const std::string &chip) {
  int number = 0;
  for (char c : chip)
    if (c >= '0' && c <= '9')
      number = 10 * number + (c - '0');
  return number;
}

} // namespace

std::string emitHeader(const Manifest &manifest, const std::string &prefix) {
  std::string start = macroName(prefix) + "_";
  std::string text = "/* " + manifest.producer +
                     ": what a bundle holds, for callers of "
                     "kvcache-c/Runtime.h. */\n\n#ifndef " +
                     start + "H\n#define " + start + "H\n";
  auto define = [&](const std::string &name, const std::string &value) {
    text += "#define " + start + macroName(name) + " " + value + "\n";
  };
  auto integer = [&](const std::string &name, int64_t value) {
    define(name, std::to_string(value));
  };
  text += "\n";
  integer("max_tokens", manifest.capacities.maxTokens);
  integer("max_sequences", manifest.capacities.maxSequences);
  integer("max_pages_per_sequence", manifest.capacities.maxPagesPerSequence);
  integer("num_pages", manifest.capacities.numPages);
  for (const Program &program : manifest.programs) {
    text += "\n/* Program " + program.name + ": its segments by index. */\n";
    for (size_t i = 0; i < program.segments.size(); ++i)
      integer("segment_" + program.name + "_" + program.segments[i].name,
              int64_t(i));
  }
  text += "\n/* Buffers by index, and their bytes. */\n";
  for (size_t i = 0; i < manifest.buffers.size(); ++i) {
    integer("buffer_" + manifest.buffers[i].name, int64_t(i));
    integer("bytes_" + manifest.buffers[i].name,
            int64_t(manifest.buffers[i].bytes));
  }
  text += "\n/* Digests under which each layer's cache is written. */\n";
  for (const Layer &layer : manifest.layers)
    define("cache_" + layer.id, "\"" + layer.compatibility + "\"");
  return text + "\n#endif\n";
}

Expected<std::string> extractKernel(const std::string &ptx,
                                    const std::string &kernel,
                                    unsigned extraPointers) {
  PtxModule module = PtxModule::parse(ptx);
  auto found =
      std::find_if(module.kernels.begin(), module.kernels.end(),
                   [&](const auto &entry) { return entry.first == kernel; });
  if (found == module.kernels.end())
    return makeError("the PTX has no kernel " + kernel);
  std::string text = found->second;
  if (extraPointers) {
    size_t open = text.find('('), close = text.find(')', open);
    if (open == std::string::npos || close == std::string::npos)
      return makeError("kernel " + kernel + " has no parameter list");
    std::string list = text.substr(open + 1, close - open - 1);
    while (!list.empty() && (list.back() == '\n' || list.back() == ' '))
      list.pop_back();
    for (unsigned i = 0; i < extraPointers; ++i)
      list += std::string(list.empty() ? "" : ",") + "\n\t.param .u64 " +
              kernel + "_scratch_" + std::to_string(i);
    text = text.substr(0, open + 1) + list + "\n" + text.substr(close);
  }
  module.kernels = {{kernel, text}};
  return module.print();
}

Expected<unsigned> tritonScratchPointers(const std::string &release) {
  size_t dot = release.find('.');
  std::string major = release.substr(0, dot);
  std::string minor = dot == std::string::npos ? "" : release.substr(dot + 1);
  auto digits = [](const std::string &text) {
    return !text.empty() && text.size() < 4 &&
           text.find_first_not_of("0123456789") == std::string::npos;
  };
  if (!digits(major) || !digits(minor))
    return makeError("expected a release of Triton, such as 3.5, found \"" +
                     release + "\"");
  int number = std::stoi(major) * 1000 + std::stoi(minor);
  return number >= 3005 ? 2u : number >= 3003 ? 1u : 0u;
}

namespace {

/// The JSON that Triton keeps beside a kernel: the fields that its
/// CompiledKernel, launcher and metadata packing read.
std::string tritonMetadata(const Launch &launch, const Target &target,
                           const std::string &code) {
  JsonValue root = JsonValue::object(), chip = JsonValue::object();
  chip.set("backend", "cuda");
  chip.set("arch", chipArch(target.chip));
  chip.set("warp_size", 32);
  root.set("hash", sha256Hex(code.data(), code.size()));
  root.set("target", std::move(chip));
  root.set("name", launch.kernel);
  root.set("num_warps",
           (launch.block[0] * launch.block[1] * launch.block[2]) / 32);
  root.set("num_ctas", 1);
  root.set("num_stages", 1);
  root.set("shared", launch.sharedBytes);
  root.set("tmem_size", 0);
  root.set("global_scratch_size", 0);
  root.set("global_scratch_align", 1);
  root.set("profile_scratch_size", 0);
  root.set("profile_scratch_align", 1);
  root.set("launch_cooperative_grid", false);
  root.set("launch_cluster", false);
  root.set("launch_pdl", false);
  root.set("tensordesc_meta", JsonValue::array());
  return root.print(2) + "\n";
}

/// C of one launch: the code, load and unload, and a function that takes the
/// buffers and launches with this launch's grid and constants.
struct AotLaunch {
  std::string name;                   // {segment}_{op}_{hash}_{suffix}
  std::string file;                   // without extension
  std::string signature;              // "CUdeviceptr query, ..."
  std::string algorithm;              // "x3C495182..._warps4xstages1"
  std::vector<std::string> constants; // C definitions, from exact bits
  std::string arguments;              // "&query, &c5, ..."
  unsigned argumentCount = 0;
};

AotLaunch describeLaunch(const Launch &launch, unsigned scratch) {
  AotLaunch result;
  std::string suffix, types, constants;
  unsigned buffers = 0;
  auto add = [&](const std::string &name) {
    result.arguments += (result.argumentCount++ ? ", &" : "&") + name;
  };
  for (size_t i = 0; i < launch.arguments.size(); ++i) {
    const Argument &argument = launch.arguments[i];
    std::string name = "c" + std::to_string(i);
    switch (argument.kind) {
    case Argument::Kind::Buffer: {
      // "layer0.k_cache" is k_cache here: the launch is of one layer.
      std::string full = argument.buffer;
      name = identifier(full.substr(full.rfind('.') + 1)) + "_" +
             std::to_string(i);
      result.signature +=
          (buffers ? ", " : "") + std::string("CUdeviceptr ") + name;
      // Buffers start at multiples of 16 (kvcacheInstanceBind).
      suffix += std::to_string(buffers++) + "d";
      types += "*:16 ";
      add(name);
      continue;
    }
    case Argument::Kind::F32:
      result.constants.push_back("uint32_t " + name + " = 0x" +
                                 hex32(argument.f32.bits) + "u; /* " +
                                 formatFloat(argument.f32.value()) + " */");
      constants += (constants.empty() ? "" : "x") + hex32(argument.f32.bits);
      break;
    case Argument::Kind::I32:
    case Argument::Kind::I64: {
      bool wide = argument.kind == Argument::Kind::I64;
      result.constants.push_back((wide ? "int64_t " : "int32_t ") + name +
                                 " = " + std::to_string(argument.integer) +
                                 ";");
      constants += (constants.empty() ? "" : "x") +
                   std::to_string(uint64_t(argument.integer));
      break;
    }
    case Argument::Kind::Null:
      result.constants.push_back("CUdeviceptr " + name + " = 0;");
      break;
    }
    add(name);
  }
  for (unsigned i = 0; i < scratch; ++i) {
    std::string name = i ? "profile_scratch" : "global_scratch";
    result.constants.push_back("CUdeviceptr " + name + " = 0;");
    add(name);
  }
  std::string meta =
      "warps" +
      std::to_string(launch.block[0] * launch.block[1] * launch.block[2] / 32) +
      "xstages1";
  result.algorithm = (constants.empty() ? "" : constants + "_") + meta;
  std::string identity = types + launch.kernel + result.algorithm;
  std::string hash = sha256Hex(identity.data(), identity.size()).substr(0, 8);
  std::string base = identifier(launch.program) + "_" +
                     identifier(launch.segment) + "_" +
                     std::string(launchOpName(launch.op));
  result.name = base + "_" + hash + "_" + suffix;
  result.file = base + "." + hash + "_" + suffix;
  return result;
}

std::string aotHeader(const AotLaunch &aot) {
  return "#ifndef TT_KERNEL_INCLUDES\n#define TT_KERNEL_INCLUDES\n\n"
         "#include <cuda.h>\n#include <inttypes.h>\n#include <stdint.h>\n"
         "#include <stdio.h>\n\n#endif\n\n// tt-linker-backend: cuda\n\n"
         "void unload_" +
         aot.name + "(void);\nvoid load_" + aot.name +
         "(void);\n// tt-linker: " + aot.name + ":" + aot.signature + ":" +
         aot.algorithm + "\nCUresult " + aot.name + "(CUstream stream, " +
         aot.signature + ");\n";
}

std::string aotSource(const AotLaunch &aot, const Launch &launch,
                      const std::string &code) {
  auto number = [](int64_t value) { return std::to_string(value); };
  std::string text =
      "#include <cuda.h>\n#include <stdint.h>\n\n"
      "static CUmodule module_of_launch;\n"
      "static CUfunction function_of_launch;\n"
      "static const unsigned char code_of_launch[] = {" +
      byteList(code) + "\n};\n\nvoid unload_" + aot.name +
      "(void) {\n  if (module_of_launch)\n    cuModuleUnload("
      "module_of_launch);\n  module_of_launch = 0;\n  function_of_launch = 0;\n"
      "}\n\nstatic CUresult prepare(void) {\n  CUresult result =\n      "
      "cuModuleLoadData(&module_of_launch, code_of_launch);\n"
      "  if (result == CUDA_SUCCESS)\n    result = cuModuleGetFunction("
      "&function_of_launch, module_of_launch,\n                               "
      "  \"" +
      launch.kernel + "\");\n";
  if (launch.sharedBytes > 48 * 1024)
    text += "  if (result == CUDA_SUCCESS)\n    result = cuFuncSetAttribute(\n"
            "        function_of_launch,\n"
            "        CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, " +
            number(launch.sharedBytes) + ");\n";
  text += "  return result;\n}\n\nvoid load_" + aot.name +
          "(void) { (void)prepare(); }\n\n/* grid, constants and their bits as "
          "the bundle's manifest has them */\nCUresult " +
          aot.name + "(CUstream stream, " + aot.signature + ") {\n";
  for (const std::string &constant : aot.constants)
    text += "  " + constant + "\n";
  text += "  void *args[" + number(aot.argumentCount) + "] = {" +
          aot.arguments +
          "};\n  if (!function_of_launch) {\n    CUresult result = prepare();\n"
          "    if (result != CUDA_SUCCESS)\n      return result;\n  }\n"
          "  return cuLaunchKernel(function_of_launch, " +
          number(launch.grid[0]) + ", " + number(launch.grid[1]) + ", " +
          number(launch.grid[2]) + ", " + number(launch.block[0]) + ", " +
          number(launch.block[1]) + ", " + number(launch.block[2]) + ", " +
          number(launch.sharedBytes) +
          ",\n                        stream, "
          "args, 0);\n}\n";
  return text;
}

} // namespace

Expected<std::map<std::string, std::string>>
emitTriton(const Bundle &bundle, const Target &target,
           const std::string &release, const Assemble &assemble) {
  Expected<unsigned> scratch = tritonScratchPointers(release);
  if (!scratch)
    return scratch.error();
  const std::string *ptx = bundle.find(target.ptx.file);
  if (!ptx)
    return makeError(target.ptx.file + ": the bundle does not hold it");
  std::map<std::string, std::string> files, codes;
  for (const Launch &launch : target.launches) {
    std::string &code = codes[launch.kernel];
    if (code.empty()) {
      Expected<std::string> text = extractKernel(*ptx, launch.kernel, *scratch);
      if (!text)
        return text.error().withContext(target.ptx.file);
      files[launch.kernel + ".ptx"] = *text;
      code = *text + '\0'; // the driver takes PTX up to its final zero
      if (assemble) {
        Expected<std::string> cubin = assemble(target.chip, *text);
        if (!cubin)
          return cubin.error().withContext("kernel " + launch.kernel);
        code = std::move(*cubin);
        files[launch.kernel + ".cubin"] = code;
      }
      files[launch.kernel + ".json"] = tritonMetadata(launch, target, code);
    }
    AotLaunch aot = describeLaunch(launch, *scratch);
    files[aot.file + ".h"] = aotHeader(aot);
    files[aot.file + ".c"] = aotSource(aot, launch, code);
  }
  return files;
}

} // namespace kvcache
