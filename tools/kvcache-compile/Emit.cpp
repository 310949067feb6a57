//===- Emit.cpp - What kvcache-compile writes -----------------------------===//

#include "Emit.h"
#include "kvcache/Bundle/Emit.h"
#include "kvcache/Pipelines/Compile.h"
#include "kvcache/Support/Files.h"
#include "llvm/Support/Error.h"

namespace kvcache::compile {

namespace {

/// Files that a folder of ours may be replaced by; the first is the marker.
Error writeFolder(const std::string &path,
                  const std::map<std::string, std::string> &files) {
  Expected<StagedDirectory> staged =
      StagedDirectory::create(path, files.begin()->first);
  if (!staged)
    return staged.error();
  for (const auto &[name, contents] : files)
    if (Error error = writeFileAtomically(joinPath(staged->stagingPath(), name),
                                          contents))
      return error;
  return staged->commit();
}

Error emitCode(const EmitOptions &options, const Bundle &bundle) {
  bool cubin = options.kind == "cubin";
  std::map<std::string, std::string> files;
  for (const Target &target : bundle.manifest.targets) {
    const std::string *contents =
        bundle.find(cubin ? target.cubin->file : target.ptx.file);
    files[target.chip + "." + options.kind] = *contents;
  }
  if (files.size() == 1)
    return writeFileAtomically(options.output, files.begin()->second);
  return writeFolder(options.output, files);
}

Error emitTritonFiles(const EmitOptions &options, const Bundle &bundle) {
  Assemble assemble;
  if (!options.ptxas.empty())
    assemble = [&](const std::string &chip,
                   const std::string &ptx) -> Expected<std::string> {
      llvm::Expected<std::string> object =
          mlir::kvcache::assemblePtx(options.ptxas, chip, ptx);
      if (!object)
        return makeError(llvm::toString(object.takeError()));
      return std::move(*object);
    };
  Expected<std::map<std::string, std::string>> files = emitTriton(
      bundle, bundle.manifest.targets.front(), options.tritonAbi, assemble);
  if (!files)
    return files.error();
  return writeFolder(options.output, *files);
}

} // namespace

Error checkEmit(const EmitOptions &options, size_t targets) {
  bool known = false;
  for (const char *kind :
       {"bundle", "mlir", "ptx", "cubin", "header", "triton"})
    known |= options.kind == kind;
  if (!known)
    return makeError("--emit: expected bundle, mlir, ptx, cubin, header or "
                     "triton, but found \"" +
                     options.kind + "\"");
  if (options.kind == "cubin" && options.ptxas.empty())
    return makeError("--emit=cubin needs ptxas; name it with --ptxas=PATH");
  if (options.kind != "triton")
    return Error::success();
  if (targets != 1)
    return makeError("--emit=triton writes one target; found " +
                     std::to_string(targets) + " in --target");
  Expected<unsigned> scratch = tritonScratchPointers(options.tritonAbi);
  return scratch ? Error::success()
                 : scratch.error().withContext("--triton-abi");
}

Error emit(const EmitOptions &options, const Bundle &bundle,
           mlir::ModuleOp module) {
  if (options.kind == "bundle")
    return writeBundle(options.output, bundle);
  if (options.kind == "triton")
    return emitTritonFiles(options, bundle);
  if (options.kind == "ptx" || options.kind == "cubin")
    return emitCode(options, bundle);
  if (options.kind == "header") {
    std::string name = baseName(options.output);
    return writeFileAtomically(
        options.output,
        emitHeader(bundle.manifest, name.substr(0, name.find('.'))));
  }
  std::string text;
  llvm::raw_string_ostream(text) << module << "\n";
  return writeFileAtomically(options.output, text);
}

} // namespace kvcache::compile
