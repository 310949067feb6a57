//===- kvcache-run.cpp - Runs a bundle ------------------------------------===//

#include "CommandLine.h"
#include "Report.h"
#include "Runner.h"

#include <chrono>
#include <csignal>
#include <iostream>

#include <unistd.h>

using namespace kvcache;
using namespace kvcache::run;

namespace {

/// Fails early when a later write to `path` could not succeed.
Error checkWritable(const std::string &path) {
  size_t slash = path.rfind('/');
  std::string folder = slash == std::string::npos ? "." : path.substr(0, slash);
  if (folder.empty())
    folder = "/";
  if (isDirectory(path))
    return makeError(path + ": expected a file to write, found a directory");
  if (!isDirectory(folder))
    return makeError(path + ": cannot be written: there is no directory " +
                     folder);
  if (::access(folder.c_str(), W_OK) != 0)
    return makeError(path +
                     ": cannot be written: no permission to create "
                     "files in " +
                     folder);
  return Error::success();
}

/// Says on stderr which step runs, when someone watches.
class Progress {
public:
  explicit Progress(bool wanted) : shown(wanted && ::isatty(2)) {}
  ~Progress() {
    if (shown && printed)
      std::cerr << "\r\033[K" << std::flush;
  }
  void step(size_t number, size_t count) {
    if (!shown || count < 2)
      return;
    std::cerr << "\rstep " << number + 1 << " of " << count << std::flush;
    printed = true;
  }

private:
  bool shown, printed = false;
};

void remarkUnknown(const Runner &runner, const TensorFiles &files, bool quiet) {
  std::vector<std::string> names = runner.unknown(files);
  if (quiet || names.empty())
    return;
  std::cerr << "kvcache-run: remark: " << files.latestPath()
            << ": no buffer or argument is named ";
  constexpr size_t shown = 4;
  for (size_t i = 0; i < names.size() && i < shown; ++i)
    std::cerr << (i ? ", " : "") << names[i];
  if (names.size() > shown)
    std::cerr << " and " << names.size() - shown << " more";
  std::cerr << "; ignored\n";
}

Error runBundle(const CommandLine &options, RunSummary &summary) {
  for (const std::string *path : {&options.outputs, &options.trace})
    if (!path->empty())
      if (Error error = checkWritable(*path))
        return error;
  Expected<Bundle> bundle = openBundle(options.bundle);
  if (!bundle)
    return bundle.error();
  for (const auto &[name, strides] : options.strides)
    if (Error error = setStrides(bundle->manifest, name, strides))
      return error.withContext("--strides");
  Expected<const Program *> program =
      bundle->manifest.chooseProgram(options.program);
  if (!program)
    return program.error().withContext(options.bundle);
  std::unique_ptr<Device> device;
  if (options.device == "cuda") {
    Expected<std::unique_ptr<Device>> card =
        createCudaDevice(options.ordinal, options.driver);
    if (!card)
      return card.error();
    device = std::move(*card);
  } else {
    device = createSimDevice(options.checks);
  }
  Expected<const Target *> target =
      selectTarget(*bundle, *device, options.target);
  if (!target)
    return target.error().withContext(options.bundle);
  SessionOptions sessionOptions;
  sessionOptions.cacheFill = options.cacheFill;
  Expected<std::unique_ptr<Session>> session =
      Session::create(*bundle, **target, **program, *device, sessionOptions);
  if (!session)
    return session.error();

  std::unique_ptr<HostProgram> host;
  double compileSeconds = 0;
  if (options.host) {
    auto start = std::chrono::steady_clock::now();
    Expected<std::unique_ptr<HostProgram>> opened =
        HostProgram::open(*bundle, **program, options.hostLibrary);
    if (!opened)
      return opened.error().withContext(options.bundle);
    host = std::move(*opened);
    compileSeconds =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - start)
            .count();
  }

  Runner runner(**session, host.get(), options.verify, options.replay);
  summary = {};
  TensorFiles files;
  for (const std::string &path : options.inputs) {
    if (Error error = files.add(path))
      return error;
    remarkUnknown(runner, files, options.quiet);
    if (Error error = runner.setInputs(files))
      return error;
  }
  Progress progress(!options.quiet && !options.json);
  if (!options.lengths.empty() && !options.synthetic.poison)
    if (Error error = fillCaches(**session))
      return error;
  size_t steps = std::max<size_t>(
      1, std::max(options.steps.size(), options.lengths.size()));
  for (size_t i = 0; i < steps; ++i) {
    progress.step(i, steps);
    std::string context = "step " + std::to_string(i);
    if (!options.steps.empty()) {
      if (Error error = files.add(options.steps[i]))
        return error;
      if (i == 0)
        remarkUnknown(runner, files, options.quiet);
      if (Error error = runner.setInputs(files))
        return error;
      context = options.steps[i];
    }
    // Of all sequences that there is room for, whatever the last step needed.
    (*session)->use(**program);
    if (!options.lengths.empty())
      if (Error error =
              setStep(**session, options.lengths[i], i, options.synthetic))
        return error.withContext(context);
    std::string prefix =
        steps > 1 ? "step" + std::to_string(i) + "." : std::string();
    if (Error error = runner.step(files, prefix))
      return error.withContext(context);
  }
  if (Error error = runner.finish())
    return error;
  summary = std::move(runner.summary());
  summary.program = (*program)->name;
  summary.target = (*target)->chip;
  summary.device = device->name();
  summary.compileSeconds = compileSeconds;
  if (!options.trace.empty())
    if (Error error = writeTrace(options.trace, summary))
      return error;
  if (!options.outputs.empty())
    return runner.outputs().write(options.outputs);
  return Error::success();
}

} // namespace

int main(int argc, char **argv) {
  // A limit on file sizes is an error of the write, not a death in it.
  std::signal(SIGXFSZ, SIG_IGN);
  CommandLine options;
  if (std::optional<int> code = parseCommandLine(argc, argv, options))
    return *code;
  RunSummary summary;
  if (Error error = runBundle(options, summary)) {
    std::cerr << "kvcache-run: error: " << error.message() << "\n";
    if (options.json)
      printJsonFailure(std::cout, error.message());
    return ExitFailure;
  }
  printProblems(std::cerr, summary);
  if (options.json)
    printJson(std::cout, options, summary);
  else
    printTable(std::cout, options, summary);
  return summary.good() ? ExitGood : ExitFailure;
}
