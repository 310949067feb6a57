//===- kvcache-compile.cpp - A graph and a checkpoint become a bundle -----===//

#include "Emit.h"
#include "kvcache/Bundle/Emit.h"
#include "kvcache/InitAll.h"
#include "kvcache/Pipelines/Compile.h"
#include "kvcache/Support/Files.h"
#include "kvcache/Support/Migration.h"
#include "mlir/Dialect/Bufferization/IR/Bufferization.h"
#include "mlir/IR/Diagnostics.h"
#include "mlir/InitAllDialects.h"
#include "mlir/Parser/Parser.h"
#include "llvm/Support/CommandLine.h"
#include "llvm/Support/FileSystem.h"
#include "llvm/Support/Format.h"
#include "llvm/Support/InitLLVM.h"
#include "llvm/Support/MemoryBuffer.h"
#include "llvm/Support/Path.h"
#include "llvm/Support/Process.h"
#include "llvm/Support/Program.h"
#include "llvm/Support/SourceMgr.h"
#include "llvm/Support/WithColor.h"
#include <cmath>
#include <csignal>

using namespace mlir;
namespace cl = llvm::cl;

//===----------------------------------------------------------------------===//
// Options
//===----------------------------------------------------------------------===//

static cl::OptionCategory mainCategory("Input and output");
static cl::OptionCategory scaleCategory("Scales and cache types");
static cl::OptionCategory
    modelCategory("What the model's config decides, unless given here");
static cl::OptionCategory capacityCategory("Capacities and layout");
static cl::OptionCategory diagnosticCategory("Diagnostics");

static cl::opt<std::string> graphFile(cl::Positional, cl::desc("GRAPH.mlir"),
                                      cl::Required, cl::cat(mainCategory));
static cl::opt<std::string>
    checkpoint("checkpoint", cl::value_desc("DIR"),
               cl::desc("Folder with safetensors files and config.json, or one "
                        "safetensors file"),
               cl::cat(mainCategory));
static cl::list<std::string>
    opTable("op-table", cl::value_desc("FILE.json"),
            cl::desc("More ops that the import understands, with the roles of "
                     "their operands; may be repeated"),
            cl::cat(mainCategory));
static cl::list<std::string>
    targets("target", cl::CommaSeparated, cl::value_desc("sm_80,sm_90"),
            cl::desc("Chips to emit code for (default: sm_90)"),
            cl::cat(mainCategory));
static cl::opt<std::string>
    math("math", cl::init("f16"), cl::value_desc("f16|fp8"),
         cl::desc("Numerics of decode attention: f16 (default), or fp8, which "
                  "rounds Q and P to e4m3 (sm_89, sm_120)"),
         cl::cat(mainCategory));
static cl::list<std::string>
    tune("tune", cl::CommaSeparated, cl::value_desc("KEY=N,..."),
         cl::desc("Choices of decode kernels, instead of the cost model's: "
                  "tile, stages, unroll, rows, splits"),
         cl::cat(mainCategory));
static cl::opt<std::string> output("o", cl::value_desc("BUNDLE"),
                                   cl::desc("Folder to write the bundle to "
                                            "(a file for most --emit)"),
                                   cl::Required, cl::cat(mainCategory));
static cl::opt<std::string> emitKind(
    "emit", cl::init("bundle"),
    cl::value_desc("bundle|mlir|ptx|cubin|header|triton"),
    cl::desc("What to write to -o: the bundle (default), its programs as MLIR, "
             "its code alone, a C header with its buffers and sizes, or files "
             "for Triton's launcher and linker"),
    cl::cat(mainCategory));
static cl::opt<std::string> tritonAbi(
    "triton-abi", cl::init("3.5"), cl::value_desc("3.2|3.3|3.5"),
    cl::desc("Release of Triton that --emit=triton writes for: it decides the "
             "trailing scratch parameters (default: 3.5, which later ones "
             "share)"),
    cl::cat(mainCategory));
static cl::list<std::string> foreignKernels(
    "kernel", cl::value_desc("OP=DIR"),
    cl::desc("Launch a kernel that Triton compiled for write or "
             "paged_attention; DIR holds {name}.json, {name}.ptx and "
             "mapping.json"),
    cl::cat(mainCategory));
static cl::opt<std::string> ptxasPath(
    "ptxas", cl::value_desc("PATH"),
    cl::desc(
        "ptxas that makes cubins (default: the one on PATH or in CUDA_HOME; "
        "'none': PTX only, which the driver finishes)"),
    cl::cat(mainCategory));
static cl::opt<std::string> kernelLibrary(
    "kernel-library", cl::value_desc("FILE"),
    cl::desc(
        "Bitcode of the device library (default: the one beside the tool)"),
    cl::cat(mainCategory));

static cl::opt<std::string>
    kvCacheDtype("kv-cache-dtype", cl::init("auto"), cl::value_desc("WORD"),
                 cl::desc("Element type of caches: auto, fp8, fp8_e4m3, "
                          "fp8_e5m2, fp8_per_token_head, float16, bfloat16"),
                 cl::cat(scaleCategory));
static cl::opt<std::string>
    tokenScales("token-scales", cl::value_desc("WORD"),
                cl::desc("Where caches of fp8_per_token_head keep the scales "
                         "of tokens: side (default), in tensors of their own, "
                         "or inline, behind the codes of each row"),
                cl::cat(scaleCategory));
static cl::list<std::string>
    skipLayers("kv-cache-dtype-skip-layers", cl::CommaSeparated,
               cl::value_desc("N,..."),
               cl::desc("Layers whose cache stays in the model's type: "
                        "indices, or sliding_window"),
               cl::cat(scaleCategory));
static cl::opt<std::string> scalePolicy(
    "scale-policy", cl::init("strict"), cl::value_desc("strict|compatible"),
    cl::desc(
        "Doubtful scales: an error, or what the serving stacks make of them"),
    cl::cat(scaleCategory));
static cl::list<std::string>
    scales("scale", cl::value_desc("LAYER.ROLE=F"),
           cl::desc("Override a scale; may be repeated"),
           cl::cat(scaleCategory));
static cl::list<std::string>
    scaleOverlay("scale-overlay", cl::value_desc("FILE"),
                 cl::desc("safetensors file with scales; the last wins"),
                 cl::cat(scaleCategory));
static cl::opt<std::string> roundScalesTo(
    "round-scales-to", cl::value_desc("bf16|f16"),
    cl::desc("Round loaded scales first, as the serving stacks do"),
    cl::cat(scaleCategory));
static cl::opt<bool>
    requireCalibrated("require-calibrated",
                      cl::desc("A scale that is not given is an error"),
                      cl::cat(scaleCategory));
static cl::opt<int64_t> tpSize("tp-size", cl::init(1), cl::value_desc("N"),
                               cl::desc("Tensor parallel ranks; scales per "
                                        "head are those of all ranks"),
                               cl::cat(scaleCategory));
static cl::opt<int64_t> tpRank("tp-rank", cl::init(0), cl::value_desc("N"),
                               cl::desc("The rank that the graph is for"),
                               cl::cat(scaleCategory));

static cl::opt<double> softmaxScale("softmax-scale", cl::init(0.0),
                                    cl::value_desc("F"),
                                    cl::desc("Softmax scale of every layer"),
                                    cl::cat(modelCategory));
static cl::opt<double> softCap("soft-cap", cl::init(-1.0), cl::value_desc("F"),
                               cl::desc("Soft cap of the scores (0: none)"),
                               cl::cat(modelCategory));
static cl::opt<int64_t>
    window("window", cl::init(-1), cl::value_desc("N"),
           cl::desc("Keys that a query sees, itself included (0: all)"),
           cl::cat(modelCategory));

static cl::opt<int64_t>
    pageSize("page-size", cl::init(16), cl::value_desc("N"),
             cl::desc("Tokens of a page, a power of two (default: 16)"),
             cl::cat(capacityCategory));
static cl::opt<std::string>
    kvLayout("kv-layout", cl::init("nhd"),
             cl::value_desc("nhd|hnd|packed|strides:P,T,H"),
             cl::desc("Order of a page in memory (default: nhd)"),
             cl::cat(capacityCategory));
static cl::opt<bool> runtimeStrides(
    "runtime-strides",
    cl::desc("Take the strides of pages from the buffers that are bound; "
             "kv-layout is their default"),
    cl::cat(capacityCategory));
static cl::opt<int64_t>
    maxTokens("max-tokens", cl::init(0), cl::value_desc("N"),
              cl::desc("Rows of one step, over all sequences (default: those "
                       "of a static graph, else 256)"),
              cl::cat(capacityCategory));
static cl::opt<int64_t>
    maxSequences("max-sequences", cl::init(0), cl::value_desc("N"),
                 cl::desc("Sequences of one step (default: 64)"),
                 cl::cat(capacityCategory));
static cl::opt<int64_t>
    maxPagesPerSequence("max-pages-per-sequence", cl::init(0),
                        cl::value_desc("N"),
                        cl::desc("Pages of one sequence (default: 128)"),
                        cl::cat(capacityCategory));
static cl::opt<int64_t> numPages(
    "num-pages", cl::init(0), cl::value_desc("N"),
    cl::desc(
        "Pages in the pool (default: max-sequences * max-pages-per-sequence)"),
    cl::cat(capacityCategory));
static cl::list<int64_t> batchSizes(
    "batch-sizes", cl::CommaSeparated, cl::value_desc("N,..."),
    cl::desc("Compile a program for batches of each size, ascending; the "
             "largest is max-sequences, and max-tokens unless given"),
    cl::cat(capacityCategory));
static cl::opt<bool>
    oneGraph("one-graph",
             cl::desc("A foreign op that splits the graph is an error"),
             cl::cat(capacityCategory));

static cl::opt<bool>
    remarks("remarks", cl::desc("Print remarks: what was chosen, and why"),
            cl::cat(diagnosticCategory));
static cl::opt<bool> quietRemarks("quiet-remarks",
                                  cl::desc("Print no remarks (the default)"),
                                  cl::cat(diagnosticCategory));
static cl::opt<bool> warningsAreErrors("Werror",
                                       cl::desc("Treat warnings as errors"),
                                       cl::cat(diagnosticCategory));
static cl::opt<bool> quiet("quiet", cl::desc("Print no table"),
                           cl::cat(diagnosticCategory));
static cl::opt<bool>
    passStatistics("mlir-pass-statistics",
                   cl::desc("Print what each pass has counted"),
                   cl::cat(diagnosticCategory));

//===----------------------------------------------------------------------===//
// The tool
//===----------------------------------------------------------------------===//

static int fail(const llvm::Twine &message) {
  llvm::WithColor::error(llvm::errs(), "kvcache-compile") << message << "\n";
  return 1;
}

/// `// args: 0=name, 1=name, ...` in the comments on top of a graph: what
/// exporters write to keep the names of weights.
static llvm::DenseMap<unsigned, std::string> readArgumentNames(StringRef text) {
  llvm::DenseMap<unsigned, std::string> names;
  while (text.consume_front("//")) {
    auto [line, rest] = text.split('\n');
    text = rest;
    line = line.trim();
    if (!line.consume_front("args:"))
      continue;
    SmallVector<StringRef> entries;
    line.split(entries, ',');
    for (StringRef entry : entries) {
      auto [index, name] = entry.trim().split('=');
      unsigned position;
      if (!index.getAsInteger(10, position) && !name.empty())
        names[position] = name.str();
    }
  }
  return names;
}

static std::string findPtxas() {
  if (!ptxasPath.empty())
    return ptxasPath == "none" ? "" : std::string(ptxasPath);
  if (llvm::ErrorOr<std::string> found = llvm::sys::findProgramByName("ptxas"))
    return *found;
  for (const char *variable : {"CUDA_HOME", "CUDA_PATH"})
    if (std::optional<std::string> home = llvm::sys::Process::GetEnv(variable))
      if (llvm::ErrorOr<std::string> found =
              llvm::sys::findProgramByName("ptxas", {*home + "/bin"}))
        return *found;
  return "";
}

static std::string describeScale(const ::kvcache::ManifestScale &scale) {
  std::string text;
  llvm::raw_string_ostream stream(text);
  if (scale.perHead.empty()) {
    stream << llvm::format("%.6g", scale.value.value());
  } else {
    float least = scale.value.value();
    for (size_t head = 0; head < scale.count(); ++head)
      least = std::min(least, scale.ofHead(static_cast<int64_t>(head)));
    stream << llvm::format("%.6g to %.6g, %zu heads", least,
                           scale.value.value(), scale.count());
  }
  stream << " (" << std::string(::kvcache::provenanceName(scale.provenance));
  if (!scale.key.empty())
    stream << " " << scale.key;
  stream << ")";
  return text;
}

static void printRows(const std::vector<std::vector<std::string>> &rows) {
  std::vector<size_t> widths;
  for (const auto &row : rows)
    for (size_t i = 0; i < row.size(); ++i) {
      widths.resize(std::max(widths.size(), row.size()));
      widths[i] = std::max(widths[i], row[i].size());
    }
  for (const auto &row : rows) {
    std::string line;
    for (size_t i = 0; i < row.size(); ++i) {
      line += row[i];
      if (i + 1 < row.size())
        line.append(widths[i] - row[i].size() + 2, ' ');
    }
    llvm::outs() << line << "\n";
  }
}

static void printTable(const ::kvcache::Bundle &bundle) {
  const ::kvcache::Manifest &manifest = bundle.manifest;
  std::vector<std::vector<std::string>> rows = {
      {"layer", "cache", "k scale", "v scale", "softmax scale", "kernel"}};
  for (const ::kvcache::Layer &layer : manifest.layers) {
    std::string kernel;
    for (const ::kvcache::Launch &launch : manifest.targets.front().launches)
      if (launch.layer == layer.id && ::kvcache::isAttention(launch.op))
        kernel = launch.kernel;
    std::string softmax;
    llvm::raw_string_ostream(softmax)
        << llvm::format("%.6g", layer.softmaxScale.value()) << " ("
        << layer.softmaxScaleFrom << ")";
    rows.push_back({layer.name,
                    std::string(::kvcache::elementTypeName(layer.elementType)) +
                        " " + layer.layout + " page " +
                        std::to_string(layer.pageSize),
                    describeScale(layer.kScale), describeScale(layer.vScale),
                    softmax, kernel});
  }
  printRows(rows);
  llvm::outs() << "\n";
  rows = {{"target", "kernel", "registers", "spill bytes", "code"}};
  for (const ::kvcache::Target &target : manifest.targets)
    for (const ::kvcache::Kernel &kernel : target.kernels)
      rows.push_back(
          {target.chip, kernel.name,
           kernel.report ? std::to_string(kernel.report->registers) : "-",
           kernel.report ? std::to_string(kernel.report->spillStoreBytes +
                                          kernel.report->spillLoadBytes)
                         : "-",
           target.cubin ? "PTX and cubin" : "PTX"});
  printRows(rows);
}

int main(int argc, char **argv) {
  if (::kvcache::asksForRunTimeScales(argc, argv)) {
    llvm::errs() << "kvcache-compile: " << ::kvcache::calculateScalesMigration;
    return 1;
  }
  llvm::InitLLVM init(argc, argv);
  // A limit on file sizes is an error of the write, not a death in it.
  std::signal(SIGXFSZ, SIG_IGN);
  cl::HideUnrelatedOptions({&mainCategory, &scaleCategory, &modelCategory,
                            &capacityCategory, &diagnosticCategory});
  cl::SetVersionPrinter([](llvm::raw_ostream &stream) {
    stream << "kvcache-compile " KVCACHE_VERSION " (LLVM " LLVM_VERSION_STRING
              ")\n";
  });
  cl::ParseCommandLineOptions(
      argc, argv,
      "Compiles the KV-cache ops of a graph, with the scales of a checkpoint, "
      "to a\n"
      "bundle of FP8 kernels that kvcache-run and the runtime library "
      "replay.\n\n"
      "  kvcache-compile graph.mlir --checkpoint=model/ --target=sm_80,sm_90 "
      "-o model.kvb\n\n"
      "Exit codes: 0 the bundle was written; 1 it was not, and nothing was "
      "left behind.\n");

  mlir::kvcache::CompileOptions options;
  options.checkpoint = checkpoint.getValue();
  for (const std::string &file : opTable)
    options.opTable.push_back(file);
  options.kvCacheDtype = kvCacheDtype.getValue();
  options.tokenScales = tokenScales.getValue();
  for (const std::string &layer : skipLayers)
    options.skipLayers.push_back(layer);
  options.scalePolicy = scalePolicy.getValue();
  for (const std::string &scale : scales)
    options.scales.push_back(scale);
  for (const std::string &file : scaleOverlay)
    options.scaleOverlay.push_back(file);
  options.roundScalesTo = roundScalesTo.getValue();
  options.requireCalibrated = requireCalibrated.getValue();
  options.tpSize = tpSize.getValue();
  options.tpRank = tpRank.getValue();
  options.softmaxScale = softmaxScale.getValue();
  options.softCap = softCap.getValue();
  options.window = window.getValue();
  options.pageSize = pageSize.getValue();
  options.kvLayout = kvLayout.getValue();
  options.runtimeStrides = runtimeStrides.getValue();
  options.maxTokens = maxTokens.getValue();
  options.maxSequences = maxSequences.getValue();
  options.maxPagesPerSequence = maxPagesPerSequence.getValue();
  options.numPages = numPages.getValue();
  for (int64_t size : batchSizes)
    options.batchSizes.push_back(size);
  options.oneGraph = oneGraph.getValue();
  options.math = math.getValue();
  for (const std::string &choice : tune)
    options.tune.push_back(choice);
  options.requireAttention = true;
  options.kernelLibrary = kernelLibrary.empty()
                              ? mlir::kvcache::findKernelLibrary()
                              : kernelLibrary.getValue();
  for (auto [name, option] :
       {std::pair<StringRef, const cl::opt<int64_t> *>{"page-size", &pageSize},
        {"max-tokens", &maxTokens},
        {"max-sequences", &maxSequences},
        {"max-pages-per-sequence", &maxPagesPerSequence},
        {"num-pages", &numPages}})
    if (option->getNumOccurrences() &&
        (option->getValue() <= 0 || option->getValue() > INT32_MAX))
      return fail("--" + name + ": expected a positive number" +
                  (option->getValue() > 0 ? " below 2^31" : "") +
                  ", but found " + llvm::Twine(option->getValue()));
  // Given as nothing is not the same as not given.
  if (softmaxScale.getNumOccurrences() &&
      !(softmaxScale > 0 && std::isfinite(softmaxScale.getValue())))
    return fail(
        "--softmax-scale: expected a positive finite number, but found " +
        llvm::Twine(std::to_string(softmaxScale.getValue())));
  if (softCap.getNumOccurrences() &&
      !(softCap >= 0 && std::isfinite(softCap.getValue())))
    return fail("--soft-cap: expected a finite number, 0 for none, but found " +
                llvm::Twine(std::to_string(softCap.getValue())));
  if (window.getNumOccurrences() && window < 0)
    return fail("--window: expected a number of keys, 0 for all, but found " +
                llvm::Twine(window.getValue()));

  mlir::kvcache::BundleOptions bundleOptions;
  for (const std::string &target : targets)
    if (llvm::is_contained(bundleOptions.targets, target))
      return fail("--target: " + target + " is given twice");
    else
      bundleOptions.targets.push_back(target);
  if (bundleOptions.targets.empty())
    bundleOptions.targets.push_back("sm_90");
  bundleOptions.ptxas = findPtxas();
  ::kvcache::compile::EmitOptions emitOptions;
  emitOptions.kind = emitKind;
  emitOptions.output = output;
  emitOptions.ptxas = bundleOptions.ptxas;
  emitOptions.tritonAbi = tritonAbi;
  if (::kvcache::Error error = ::kvcache::compile::checkEmit(
          emitOptions, bundleOptions.targets.size()))
    return fail(error.message());
  if (options.kernelLibrary.empty() ||
      !llvm::sys::fs::exists(options.kernelLibrary))
    return fail(
        options.kernelLibrary.empty()
            ? llvm::Twine("the device library kvcache_kernels.bc was not found "
                          "beside the "
                          "tool; name it with --kernel-library=FILE")
            : "--kernel-library: " + llvm::Twine(options.kernelLibrary) +
                  ": no such file");

  auto file = llvm::MemoryBuffer::getFileOrSTDIN(graphFile);
  if (!file)
    return fail(graphFile + ": " + file.getError().message());
  bundleOptions.argumentNames = readArgumentNames((*file)->getBuffer());

  DialectRegistry registry;
  registerAllDialects(registry);
  mlir::kvcache::registerKVCacheDialect(registry);
  mlir::kvcache::registerKVCacheTranslations(registry);
  MLIRContext context(registry, MLIRContext::Threading::DISABLED);
  // Graphs hold foreign ops that nobody here registers.
  context.allowUnregisteredDialects();
  context.printOpOnDiagnostic(false);

  auto sourceManager = std::make_shared<llvm::SourceMgr>();
  sourceManager->AddNewSourceBuffer(std::move(*file), llvm::SMLoc());
  unsigned warnings = 0, errors = 0;
  SourceMgrDiagnosticHandler handler(*sourceManager, &context);
  context.getDiagEngine().registerHandler(
      [&](Diagnostic &diagnostic) -> LogicalResult {
        switch (diagnostic.getSeverity()) {
        case DiagnosticSeverity::Remark:
          return success(!remarks || quietRemarks);
        case DiagnosticSeverity::Warning:
          ++warnings;
          return failure();
        case DiagnosticSeverity::Error:
          ++errors;
          return failure();
        case DiagnosticSeverity::Note:
          return failure();
        }
        return failure();
      });

  OwningOpRef<ModuleOp> module =
      parseSourceFile<ModuleOp>(sourceManager, &context);
  if (!module)
    return 1;
  FailureOr<::kvcache::Bundle> bundle =
      mlir::kvcache::compile(*module, options, bundleOptions);
  if (passStatistics)
    mlir::kvcache::printPassStatistics(llvm::errs());
  if (failed(bundle))
    return errors ? 1 : fail("the graph could not be compiled");
  if (warningsAreErrors && warnings)
    return fail(llvm::Twine(warnings) +
                (warnings == 1 ? " warning" : " warnings") +
                " treated as errors (--Werror); nothing was written");
  for (const std::string &kernel : foreignKernels) {
    auto [op, folder] = StringRef(kernel).split('=');
    std::optional<::kvcache::LaunchOp> launchOp =
        ::kvcache::parseLaunchOp(op.str());
    if (!launchOp)
      return fail("--kernel: expected OP=DIR with write, paged_attention, "
                  "write_latent or mla_attention, but "
                  "found \"" +
                  kernel + "\"");
    if (::kvcache::Error error =
            ::kvcache::useTritonKernel(*bundle, *launchOp, folder.str()))
      return fail("--kernel: " + error.message());
  }
  if (::kvcache::Error error =
          ::kvcache::compile::emit(emitOptions, *bundle, *module))
    return fail(error.message());
  if (!quiet) {
    printTable(*bundle);
    llvm::outs() << "\nwrote " << output << (warnings ? " with " : "");
    if (warnings)
      llvm::outs() << warnings << (warnings == 1 ? " warning" : " warnings");
    llvm::outs() << "\n";
  }
  return 0;
}
