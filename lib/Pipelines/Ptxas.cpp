//===- Ptxas.cpp - Running ptxas ------------------------------------------===//

#include "Ptxas.h"
#include "kvcache/Pipelines/Compile.h"
#include "llvm/ADT/SmallString.h"
#include "llvm/Support/FileSystem.h"
#include "llvm/Support/FileUtilities.h"
#include "llvm/Support/MemoryBuffer.h"
#include "llvm/Support/Program.h"
#include "llvm/Support/Regex.h"
#include "llvm/Support/raw_ostream.h"

using namespace llvm;
using namespace mlir::kvcache;

static Error fail(const Twine &message) {
  return createStringError(inconvertibleErrorCode(), message);
}

static int64_t toInteger(StringRef digits) {
  int64_t value = 0;
  (void)digits.getAsInteger(10, value);
  return value;
}

/// The report is text:
///   ptxas info    : Compiling entry function 'NAME' for 'sm_90'
///       0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
///   ptxas info    : Used 116 registers, used 1 barriers, 16 bytes smem
static void parseReport(StringRef text, StringRef version,
                        StringMap<::kvcache::KernelReport> &reports) {
  Regex entry("Compiling entry function '([^']+)'");
  Regex stack("([0-9]+) bytes stack frame, ([0-9]+) bytes spill stores, "
              "([0-9]+) bytes spill loads");
  Regex used("Used ([0-9]+) registers");
  Regex shared("([0-9]+) bytes smem");
  ::kvcache::KernelReport *current = nullptr;
  SmallVector<StringRef, 0> lines;
  text.split(lines, '\n');
  for (StringRef line : lines) {
    SmallVector<StringRef, 4> match;
    if (entry.match(line, &match)) {
      current = &reports[match[1]];
      current->ptxas = version.str();
    }
    if (!current)
      continue;
    if (stack.match(line, &match)) {
      current->stackBytes = toInteger(match[1]);
      current->spillStoreBytes = toInteger(match[2]);
      current->spillLoadBytes = toInteger(match[3]);
    }
    if (used.match(line, &match))
      current->registers = toInteger(match[1]);
    if (shared.match(line, &match))
      current->staticSharedBytes = toInteger(match[1]);
  }
}

/// Runs `path` with `arguments`; returns what it printed.
static llvm::Expected<std::string> run(StringRef path,
                                       ArrayRef<StringRef> arguments) {
  SmallString<128> log;
  if (std::error_code error =
          sys::fs::createTemporaryFile("kvcache-ptxas", "log", log))
    return fail("cannot make a temporary file: " + error.message());
  FileRemover remover(log);
  std::optional<StringRef> redirects[] = {std::nullopt, StringRef(log),
                                          StringRef(log)};
  std::string message;
  int status = sys::ExecuteAndWait(path, arguments, std::nullopt, redirects, 0,
                                   0, &message);
  auto buffer = MemoryBuffer::getFile(log);
  std::string text = buffer ? (*buffer)->getBuffer().str() : "";
  if (status)
    return fail(Twine(path) + " failed" +
                (message.empty() ? "" : ": " + message) + "\n" + text);
  return text;
}

llvm::Expected<Cubin> mlir::kvcache::runPtxas(StringRef path, StringRef chip,
                                              StringRef ptx) {
  SmallString<128> input, output;
  int descriptor;
  if (std::error_code error =
          sys::fs::createTemporaryFile("kvcache", "ptx", descriptor, input))
    return fail("cannot make a temporary file: " + error.message());
  FileRemover removeInput(input);
  {
    raw_fd_ostream stream(descriptor, /*shouldClose=*/true);
    stream << ptx;
    stream.close();
    if (std::error_code error = stream.error()) {
      stream.clear_error();
      return fail("cannot write " + input + ": " + error.message());
    }
  }
  if (std::error_code error =
          sys::fs::createTemporaryFile("kvcache", "cubin", output))
    return fail("cannot make a temporary file: " + error.message());
  FileRemover removeOutput(output);

  std::string arch = ("-arch=" + chip).str();
  llvm::Expected<std::string> log =
      run(path, {path, "-O3", "-v", arch, input, "-o", output});
  if (!log)
    return log.takeError();
  auto object = MemoryBuffer::getFile(output);
  if (!object || !(*object)->getBuffer().starts_with("\177ELF"))
    return fail(Twine(path) + " wrote no cubin for " + chip);
  Cubin cubin;
  cubin.object = (*object)->getBuffer().str();
  // A cubin names the tools that made it.
  SmallVector<StringRef, 2> match;
  std::string version = "unknown";
  if (Regex("Cuda compilation tools, release [0-9.]+, V([0-9.]+)")
          .match(cubin.object, &match))
    version = match[1].str();
  parseReport(*log, version, cubin.reports);
  return cubin;
}

llvm::Expected<std::string> mlir::kvcache::assemblePtx(llvm::StringRef path,
                                                       llvm::StringRef chip,
                                                       llvm::StringRef ptx) {
  llvm::Expected<Cubin> cubin = runPtxas(path, chip, ptx);
  if (!cubin)
    return cubin.takeError();
  return std::move(cubin->object);
}
