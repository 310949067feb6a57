//===- Host.cpp - Host code, compiled and run in process ------------------===//
//
// The graph goes through upstream's CPU pipeline to LLVM and the JIT. Calls of
// segment functions end in a generated trampoline each, which hands the memref
// descriptors and the segment's place in the list to `dispatchSegment`.
//
// Three functions of libc are replaced for the compiled code: malloc and free,
// since the pipeline frees nothing (all memory of a call is released after its
// results were handed over), and abort, which a graph's assertions call: it
// leaves the graph and becomes an error.
//
//===----------------------------------------------------------------------===//

#include "kvcache/Runtime/Host.h"

#include "mlir/Dialect/Bufferization/IR/Bufferization.h"
#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "mlir/Dialect/LLVMIR/LLVMDialect.h"
#include "mlir/ExecutionEngine/ExecutionEngine.h"
#include "mlir/ExecutionEngine/OptUtils.h"
#include "mlir/IR/BuiltinOps.h"
#include "mlir/InitAllDialects.h"
#include "mlir/InitAllPasses.h"
#include "mlir/Parser/Parser.h"
#include "mlir/Pass/PassManager.h"
#include "mlir/Pass/PassRegistry.h"
#include "mlir/Target/LLVMIR/Dialect/Builtin/BuiltinToLLVMIRTranslation.h"
#include "mlir/Target/LLVMIR/Dialect/LLVMIR/LLVMToLLVMIRTranslation.h"
#include "llvm/ADT/DenseSet.h"
#include "llvm/ExecutionEngine/Orc/JITTargetMachineBuilder.h"
#include "llvm/Support/TargetSelect.h"

#include <csetjmp>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>
#include <string>

using namespace mlir;

namespace {

// The same passes in the same order as a stock mlir-opt would be given.
constexpr char pipeline[] =
    "one-shot-bufferize{bufferize-function-boundaries=1 "
    "function-boundary-type-conversion=identity-layout-map},"
    "convert-linalg-to-loops,expand-strided-metadata,lower-affine,"
    "math-expand-ops{ops=fpowi,rsqrt},"
    "arith-emulate-unsupported-floats{source-types=bf16 target-type=f32},"
    "canonicalize,arith-expand{include-bf16=true},"
    "convert-scf-to-cf,convert-math-to-llvm,convert-math-to-libm,"
    "convert-arith-to-llvm,finalize-memref-to-llvm,convert-func-to-llvm,"
    "convert-cf-to-llvm,convert-index-to-llvm,reconcile-unrealized-casts";

constexpr char interfacePrefix[] = "_mlir_ciface_";
constexpr char dispatchName[] = "kvcache_host_dispatch";

/// Element type and shape of an argument, a result or a segment's memref;
/// dynamic extents are ShapedType::kDynamic.
struct ValueType {
  KVCacheHostType type;
  llvm::SmallVector<int64_t> shape;

  /// Bytes of a memref descriptor: two pointers, offset, sizes, strides.
  size_t descriptorWords() const { return 3 + 2 * shape.size(); }
};

std::optional<KVCacheHostType> hostType(Type type) {
  if (type.isBF16())
    return KVCACHE_HOST_BF16;
  if (type.isF16())
    return KVCACHE_HOST_F16;
  if (type.isF32())
    return KVCACHE_HOST_F32;
  if (type.isInteger(32))
    return KVCACHE_HOST_I32;
  if (type.isInteger(64))
    return KVCACHE_HOST_I64;
  if (isa<Float8E4M3FNType>(type))
    return KVCACHE_HOST_F8E4M3FN;
  if (isa<Float8E5M2Type>(type))
    return KVCACHE_HOST_F8E5M2;
  return std::nullopt;
}

size_t elementBytes(KVCacheHostType type) {
  switch (type) {
  case KVCACHE_HOST_BF16:
  case KVCACHE_HOST_F16:
    return 2;
  case KVCACHE_HOST_F32:
  case KVCACHE_HOST_I32:
    return 4;
  case KVCACHE_HOST_I64:
    return 8;
  case KVCACHE_HOST_F8E4M3FN:
  case KVCACHE_HOST_F8E5M2:
    return 1;
  }
  return 0;
}

std::optional<ValueType> valueType(Type type) {
  auto shaped = dyn_cast<ShapedType>(type);
  if (!shaped || !shaped.hasRank())
    return std::nullopt;
  std::optional<KVCacheHostType> element = hostType(shaped.getElementType());
  if (!element)
    return std::nullopt;
  ValueType result{*element, {}};
  result.shape.assign(shaped.getShape().begin(), shaped.getShape().end());
  return result;
}

std::string typeName(Type type) {
  std::string text;
  llvm::raw_string_ostream(text) << type;
  return text;
}

void writeError(char *error, size_t size, const std::string &message) {
  if (size > 0)
    std::snprintf(error, size, "%s", message.c_str());
}

} // namespace

struct KVCacheHost {
  MLIRContext context{MLIRContext::Threading::DISABLED};
  std::unique_ptr<ExecutionEngine> engine;
  std::string name, function;
  std::vector<ValueType> arguments, results;
  std::vector<std::vector<ValueType>> segments; // their memrefs

  // Of the call in progress.
  KVCacheHostSegment onSegment = nullptr;
  void *userContext = nullptr;
  bool failed = false;
  llvm::DenseSet<void *> allocations;
  std::string lastPrinted;
  std::jmp_buf escape;

  std::string open(llvm::StringRef text, llvm::ArrayRef<const char *> names);
  std::string readSignatures(ModuleOp module,
                             llvm::ArrayRef<const char *> names);
  std::string compile(ModuleOp module, llvm::ArrayRef<const char *> names);
  void addTrampolines(ModuleOp module, llvm::ArrayRef<const char *> names);
  std::string check(llvm::ArrayRef<KVCacheHostTensor> given) const;
  bool callGuarded(void (*packed)(void **), void **arguments);
  void releaseMemory();
  void dispatch(int32_t index, const int64_t *const *descriptors);
};

namespace {

/// The host whose code runs in this thread: libc's functions have no context.
thread_local KVCacheHost *running = nullptr;

KVCacheHostTensor tensorOf(const int64_t *descriptor, const ValueType &type) {
  size_t rank = type.shape.size();
  char *aligned = reinterpret_cast<char *>(descriptor[1]);
  KVCacheHostTensor tensor;
  tensor.data = aligned + descriptor[2] * int64_t(elementBytes(type.type));
  tensor.shape = descriptor + 3;
  tensor.strides = descriptor + 3 + rank;
  tensor.rank = int32_t(rank);
  tensor.type = type.type;
  return tensor;
}

extern "C" {

void hostDispatch(void *host, int32_t index,
                  const int64_t *const *descriptors) {
  static_cast<KVCacheHost *>(host)->dispatch(index, descriptors);
}

void *hostMalloc(size_t size) {
  void *memory = std::malloc(size ? size : 1);
  if (memory)
    running->allocations.insert(memory);
  return memory;
}

void hostFree(void *memory) {
  if (memory && running->allocations.erase(memory))
    std::free(memory);
}

/// Of MLIR's C runner utilities, which the lowering of memref.copy calls for
/// memrefs with strides: copies between unranked memrefs (rank, descriptor).
struct UnrankedMemref {
  int64_t rank;
  const int64_t *descriptor;
};

void hostMemrefCopy(int64_t elementBytes, const UnrankedMemref *source,
                    const UnrankedMemref *target) {
  int64_t rank = source->rank;
  const int64_t *shape = source->descriptor + 3;
  const int64_t *sourceStrides = shape + rank;
  const int64_t *targetStrides = target->descriptor + 3 + rank;
  auto first = [&](const UnrankedMemref *memref) {
    return reinterpret_cast<char *>(memref->descriptor[1]) +
           memref->descriptor[2] * elementBytes;
  };
  const char *from = first(source);
  char *to = first(target);
  llvm::SmallVector<int64_t> index(size_t(rank), 0);
  for (int64_t d = 0; d < rank; ++d)
    if (shape[d] == 0)
      return;
  while (true) {
    int64_t sourceOffset = 0, targetOffset = 0;
    for (int64_t d = 0; d < rank; ++d) {
      sourceOffset += index[size_t(d)] * sourceStrides[d];
      targetOffset += index[size_t(d)] * targetStrides[d];
    }
    std::memcpy(to + targetOffset * elementBytes,
                from + sourceOffset * elementBytes, size_t(elementBytes));
    int64_t d = rank;
    while (d > 0 && ++index[size_t(d - 1)] == shape[d - 1])
      index[size_t(--d)] = 0;
    if (d == 0)
      return;
  }
}

int hostPuts(const char *text) {
  running->lastPrinted = text;
  return 0;
}

[[noreturn]] void hostAbort() { std::longjmp(running->escape, 1); }

} // extern "C"

template <typename Function>
llvm::orc::ExecutorSymbolDef symbol(Function *function) {
  return {llvm::orc::ExecutorAddr::fromPtr(function),
          llvm::JITSymbolFlags::Exported | llvm::JITSymbolFlags::Callable};
}

} // namespace

void KVCacheHost::dispatch(int32_t index, const int64_t *const *descriptors) {
  if (failed)
    return;
  const std::vector<ValueType> &types = segments[size_t(index)];
  std::vector<KVCacheHostTensor> tensors;
  for (size_t i = 0; i < types.size(); ++i)
    tensors.push_back(tensorOf(descriptors[i], types[i]));
  failed = onSegment(userContext, index, tensors.data(),
                     int32_t(tensors.size())) != 0;
}

/// Records the types of the entry function and of the segment functions, and
/// marks both for calls from C. Returns what is wrong, or an empty string.
std::string KVCacheHost::readSignatures(ModuleOp module,
                                        llvm::ArrayRef<const char *> names) {
  auto entry = module.lookupSymbol<func::FuncOp>(function);
  if (!entry || entry.isExternal())
    return "expected a function @" + function + " with a body, found none";
  Builder builder(&context);
  auto read = [&](func::FuncOp op, TypeRange types, const char *what,
                  std::vector<ValueType> &into) -> std::string {
    for (auto [i, type] : llvm::enumerate(types)) {
      std::optional<ValueType> value = valueType(type);
      if (!value)
        return "@" + op.getName().str() + ": " + what + " " +
               std::to_string(i) +
               ": expected ranked bf16, f16, f32, f8E4M3FN, "
               "f8E5M2, i32 or i64, found " +
               typeName(type);
      into.push_back(std::move(*value));
    }
    return "";
  };
  std::string problem =
      read(entry, entry.getArgumentTypes(), "argument", arguments);
  if (problem.empty())
    problem = read(entry, entry.getResultTypes(), "result", results);
  if (!problem.empty())
    return problem;
  entry->setAttr(LLVM::LLVMDialect::getEmitCWrapperAttrName(),
                 builder.getUnitAttr());
  // Arguments belong to the caller (weights may be mapped read-only).
  for (unsigned i = 0; i < entry.getNumArguments(); ++i)
    if (isa<TensorType>(entry.getArgument(i).getType()))
      entry.setArgAttr(i,
                       bufferization::BufferizationDialect::kWritableAttrName,
                       builder.getBoolAttr(false));
  for (const char *segment : names) {
    auto op = module.lookupSymbol<func::FuncOp>(segment);
    if (!op || !op.isExternal())
      return std::string("expected a declaration of @") + segment +
             " without a body, found none";
    if (op.getNumResults() != 0)
      return std::string("@") + segment + ": expected no results, found " +
             std::to_string(op.getNumResults());
    for (auto [i, type] : llvm::enumerate(op.getArgumentTypes()))
      if (!isa<MemRefType>(type))
        return std::string("@") + segment + ": argument " + std::to_string(i) +
               ": expected a memref, found " + typeName(type);
    segments.emplace_back();
    problem = read(op, op.getArgumentTypes(), "argument", segments.back());
    if (!problem.empty())
      return problem;
    op->setAttr(LLVM::LLVMDialect::getEmitCWrapperAttrName(),
                builder.getUnitAttr());
  }
  return "";
}

/// Names the first function that is called but has a body neither in the module
/// nor in a segment, or returns an empty string.
static std::string findMissingBody(ModuleOp module,
                                   llvm::ArrayRef<const char *> segments) {
  for (auto function : module.getOps<FunctionOpInterface>()) {
    llvm::StringRef name = SymbolTable::getSymbolName(function).getValue();
    if (!function.isExternal() || llvm::is_contained(segments, name) ||
        SymbolTable::symbolKnownUseEmpty(function, module))
      continue;
    return ("calls @" + name +
            ", which has no body; give it one, or run the segments by "
            "themselves, without the graph around them")
        .str();
  }
  return "";
}

/// Gives each segment's C interface, so far a declaration that takes pointers
/// to memref descriptors, a body that calls `hostDispatch`.
void KVCacheHost::addTrampolines(ModuleOp module,
                                 llvm::ArrayRef<const char *> names) {
  OpBuilder builder(&context);
  Location loc = module.getLoc();
  auto pointer = LLVM::LLVMPointerType::get(&context);
  auto i32 = builder.getI32Type(), i64 = builder.getI64Type();
  builder.setInsertionPointToEnd(module.getBody());
  auto dispatch = LLVM::LLVMFuncOp::create(
      builder, loc, dispatchName,
      LLVM::LLVMFunctionType::get(LLVM::LLVMVoidType::get(&context),
                                  {pointer, i32, pointer}));
  for (auto [index, segment] : llvm::enumerate(names)) {
    auto function = module.lookupSymbol<LLVM::LLVMFuncOp>(
        std::string(interfacePrefix) + segment);
    if (!function) // nobody calls this segment
      continue;
    Block *entry = function.addEntryBlock(builder);
    builder.setInsertionPointToStart(entry);
    Value count =
        LLVM::ConstantOp::create(builder, loc, i64,
                                 builder.getI64IntegerAttr(std::max<int64_t>(
                                     1, entry->getNumArguments())));
    Value array = LLVM::AllocaOp::create(builder, loc, pointer, pointer, count);
    for (auto [i, argument] : llvm::enumerate(entry->getArguments())) {
      Value place = LLVM::GEPOp::create(
          builder, loc, pointer, pointer, array,
          llvm::ArrayRef<LLVM::GEPArg>{static_cast<int32_t>(i)});
      LLVM::StoreOp::create(builder, loc, argument, place);
    }
    Value address = LLVM::ConstantOp::create(
        builder, loc, i64,
        builder.getI64IntegerAttr(reinterpret_cast<int64_t>(this)));
    Value self = LLVM::IntToPtrOp::create(builder, loc, pointer, address);
    Value place = LLVM::ConstantOp::create(
        builder, loc, i32, builder.getI32IntegerAttr(int32_t(index)));
    LLVM::CallOp::create(builder, loc, dispatch,
                         ValueRange{self, place, array});
    LLVM::ReturnOp::create(builder, loc, ValueRange{});
  }
}

std::string KVCacheHost::compile(ModuleOp module,
                                 llvm::ArrayRef<const char *> names) {
  llvm::Expected<llvm::orc::JITTargetMachineBuilder> host =
      llvm::orc::JITTargetMachineBuilder::detectHost();
  if (!host)
    return llvm::toString(host.takeError());
  auto machine = host->createTargetMachine();
  if (!machine)
    return llvm::toString(machine.takeError());
  addTrampolines(module, names);
  // On the exported two-layer llama -O2 takes 1.2 s to compile and -O0 0.3 s,
  // for steps of 1.5 and 2.1 ms: the tools run few steps.
  auto optimize = makeOptimizingTransformer(/*optLevel=*/0, /*sizeLevel=*/0,
                                            machine->get());
  ExecutionEngineOptions options;
  options.transformer = optimize;
  options.jitCodeGenOptLevel = llvm::CodeGenOptLevel::None;
  options.enableGDBNotificationListener = false;
  options.enablePerfNotificationListener = false;
  auto created = ExecutionEngine::create(module, options);
  if (!created)
    return llvm::toString(created.takeError());
  engine = std::move(*created);
  engine->registerSymbols([](llvm::orc::MangleAndInterner interner) {
    llvm::orc::SymbolMap symbols;
    symbols[interner(dispatchName)] = symbol(hostDispatch);
    symbols[interner("malloc")] = symbol(hostMalloc);
    symbols[interner("free")] = symbol(hostFree);
    symbols[interner("memrefCopy")] = symbol(hostMemrefCopy);
    symbols[interner("puts")] = symbol(hostPuts);
    symbols[interner("abort")] = symbol(hostAbort);
    return symbols;
  });
  auto packed = engine->lookupPacked(interfacePrefix + function);
  if (!packed)
    return llvm::toString(packed.takeError());
  return "";
}

std::string KVCacheHost::open(llvm::StringRef text,
                              llvm::ArrayRef<const char *> names) {
  DialectRegistry registry;
  registerAllDialects(registry);
  registerBuiltinDialectTranslation(registry);
  registerLLVMDialectTranslation(registry);
  context.appendDialectRegistry(registry);

  std::string diagnostics;
  ScopedDiagnosticHandler handler(&context, [&](Diagnostic &diagnostic) {
    if (diagnostic.getSeverity() == DiagnosticSeverity::Error) {
      llvm::raw_string_ostream stream(diagnostics);
      stream << (diagnostics.empty() ? "" : "\n") << diagnostic.getLocation()
             << ": " << diagnostic;
    }
    return success();
  });
  OwningOpRef<ModuleOp> module =
      parseSourceString<ModuleOp>(text, ParserConfig(&context), name);
  if (!module)
    return "not a module of MLIR: " + diagnostics;
  std::string problem = readSignatures(*module, names);
  if (problem.empty())
    problem = findMissingBody(*module, names);
  if (!problem.empty())
    return name + ": " + problem;
  PassManager manager(&context);
  if (mlir::failed(parsePassPipeline(pipeline, manager)))
    return "cannot build the CPU pipeline: " + diagnostics;
  if (mlir::failed(manager.run(*module)))
    return name + ": cannot be lowered for the CPU: " + diagnostics;
  problem = compile(*module, names);
  if (problem.empty())
    return "";
  return name + ": cannot be compiled for the CPU: " + problem +
         (diagnostics.empty() ? "" : ": " + diagnostics);
}

/// What is wrong with the arguments of a call, or an empty string.
std::string KVCacheHost::check(llvm::ArrayRef<KVCacheHostTensor> given) const {
  if (given.size() != arguments.size())
    return "@" + function + ": expected " + std::to_string(arguments.size()) +
           " arguments, found " + std::to_string(given.size());
  for (auto [i, tensor] : llvm::enumerate(given)) {
    const ValueType &type = arguments[i];
    std::string where =
        "@" + function + ": argument " + std::to_string(i) + ": ";
    if (tensor.type != type.type || size_t(tensor.rank) != type.shape.size())
      return where + "expected another element type or rank";
    int64_t stride = 1;
    for (size_t d = type.shape.size(); d-- > 0;) {
      if (type.shape[d] != ShapedType::kDynamic &&
          type.shape[d] != tensor.shape[d])
        return where + "dimension " + std::to_string(d) + ": expected " +
               std::to_string(type.shape[d]) + ", found " +
               std::to_string(tensor.shape[d]);
      if (tensor.shape[d] > 1 && tensor.strides[d] != stride)
        return where + "expected contiguous elements";
      stride *= tensor.shape[d];
    }
  }
  return "";
}

/// Calls compiled code; false when it aborted. A frame of its own without
/// objects that longjmp would skip.
bool KVCacheHost::callGuarded(void (*packed)(void **), void **packedArguments) {
  if (setjmp(escape) != 0)
    return false;
  packed(packedArguments);
  return true;
}

void KVCacheHost::releaseMemory() {
  for (void *memory : allocations)
    std::free(memory);
  allocations.clear();
}

int32_t kvcacheHostAbiVersion(void) { return KVCACHE_HOST_ABI_VERSION; }

KVCacheHost *kvcacheHostOpen(const char *text, size_t size, const char *name,
                             const char *function, const char *const *segments,
                             int32_t segment_count, char *error,
                             size_t error_size) {
  static std::once_flag once;
  std::call_once(once, [] {
    registerAllPasses();
    llvm::InitializeNativeTarget();
    llvm::InitializeNativeTargetAsmPrinter();
  });
  auto host = std::make_unique<KVCacheHost>();
  host->name = name;
  host->function = function;
  std::string problem =
      host->open(llvm::StringRef(text, size),
                 llvm::ArrayRef<const char *>(segments, size_t(segment_count)));
  if (problem.empty())
    return host.release();
  writeError(error, error_size, problem);
  return nullptr;
}

int kvcacheHostRun(KVCacheHost *host, const KVCacheHostTensor *arguments,
                   int32_t count, KVCacheHostSegment segment,
                   KVCacheHostResult result, void *context, char *error,
                   size_t error_size) {
  std::string problem =
      host->check(llvm::ArrayRef<KVCacheHostTensor>(arguments, size_t(count)));
  if (!problem.empty()) {
    writeError(error, error_size, problem);
    return 1;
  }
  // Descriptors of arguments, and room for the struct of results.
  std::vector<std::vector<int64_t>> descriptors;
  size_t resultWords = 0;
  for (int32_t i = 0; i < count; ++i) {
    const KVCacheHostTensor &tensor = arguments[i];
    std::vector<int64_t> words = {reinterpret_cast<int64_t>(tensor.data),
                                  reinterpret_cast<int64_t>(tensor.data), 0};
    words.insert(words.end(), tensor.shape, tensor.shape + tensor.rank);
    std::vector<int64_t> strides(size_t(tensor.rank), 1);
    for (size_t d = strides.size(); d-- > 1;)
      strides[d - 1] = strides[d] * tensor.shape[d];
    words.insert(words.end(), strides.begin(), strides.end());
    descriptors.push_back(std::move(words));
  }
  for (const ValueType &type : host->results)
    resultWords += type.descriptorWords();
  std::vector<int64_t> returned(resultWords, 0);
  // The packed interface takes the address of each argument, and arguments
  // are pointers themselves.
  std::vector<void *> pointers;
  if (resultWords)
    pointers.push_back(returned.data());
  for (std::vector<int64_t> &words : descriptors)
    pointers.push_back(words.data());
  std::vector<void *> packedArguments;
  for (void *&pointer : pointers)
    packedArguments.push_back(&pointer);

  auto packed = host->engine->lookupPacked(interfacePrefix + host->function);
  if (!packed) {
    writeError(error, error_size, llvm::toString(packed.takeError()));
    return 1;
  }
  host->onSegment = segment;
  host->userContext = context;
  host->failed = false;
  host->lastPrinted.clear();
  KVCacheHost *outer = running;
  running = host;
  bool ended = host->callGuarded(*packed, packedArguments.data());
  running = outer;
  if (!ended)
    problem =
        "an assertion of the graph does not hold: " +
        (host->lastPrinted.empty() ? "(without a message)" : host->lastPrinted);
  else if (host->failed)
    problem = "a segment failed";
  const int64_t *words = returned.data();
  for (size_t i = 0; problem.empty() && i < host->results.size(); ++i) {
    KVCacheHostTensor tensor = tensorOf(words, host->results[i]);
    result(context, int32_t(i), &tensor);
    words += host->results[i].descriptorWords();
  }
  host->releaseMemory();
  if (problem.empty())
    return 0;
  writeError(error, error_size, problem);
  return 1;
}

void kvcacheHostClose(KVCacheHost *host) { delete host; }
