//===- BundleBuilder.cpp - From programs to a bundle ----------------------===//

#include "KernelCache.h"
#include "kvcache/Bundle/PtxText.h"
#include "kvcache/Conversion/DeviceFunctions.h"
#include "kvcache/Conversion/Passes.h"
#include "kvcache/IR/SymbolLookup.h"
#include "kvcache/Import/ForeignOps.h"
#include "kvcache/Support/Files.h"
#include "kvcache/Support/Sha256.h"
#include "mlir/Dialect/Bufferization/IR/Bufferization.h"
#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "mlir/Dialect/GPU/IR/GPUDialect.h"
#include "mlir/Dialect/MemRef/IR/MemRef.h"
#include "mlir/Target/LLVM/NVVM/Target.h"
#include "llvm/ADT/StringSet.h"
#include "llvm/ADT/TypeSwitch.h"

using namespace mlir;
using namespace mlir::kvcache;
namespace bundle = ::kvcache;

namespace {

/// The bundle's name of a program: that of its function.
StringRef programName(ProgramOp program) {
  StringRef name = program.getSymName();
  name.consume_front("kvcache.");
  return name;
}

FailureOr<bundle::ElementType> elementType(Operation *op, Type type) {
  if (type.isInteger(8)) // the bytes of fp8_ds_mla rows
    return bundle::ElementType::U8;
  std::string text;
  llvm::raw_string_ostream(text) << type;
  if (std::optional<bundle::ElementType> known = bundle::parseElementType(text))
    return *known;
  return op->emitError() << "a bundle cannot hold buffers of " << type;
}

/// Buffers that host code passes to segments.
bool isOperand(BufferRole role) {
  return role == BufferRole::Activation || role == BufferRole::Parameter ||
         role == BufferRole::PageCopies;
}

/// A dimension of tokens, which may be fewer than the capacity.
bool isTokens(BufferRole role, MemRefType type, size_t dim) {
  return dim == 0 && (role == BufferRole::Activation ||
                      (role == BufferRole::Workspace && type.getRank() > 1));
}

/// What bounds a dynamic dimension, or 0: no page is copied to twice.
int64_t boundOf(const bundle::Capacities &sizes, BufferRole role,
                MemRefType type, size_t dim) {
  return isTokens(role, type, dim)                ? sizes.maxTokens
         : role == BufferRole::PageCopies && !dim ? sizes.numPages
                                                  : 0;
}

bundle::ManifestScale makeScale(ScaleBufferOp buffer) {
  ScaleAttr attr = buffer.getScale();
  bundle::ManifestScale scale;
  ArrayRef<float> values = attr.getValues().asArrayRef();
  scale.value = bundle::ScalarF32::of(*llvm::max_element(values));
  if (values.size() > 1)
    for (float value : values)
      scale.perHead.push_back(bundle::ScalarF32::of(value));
  scale.provenance =
      *bundle::parseProvenance(stringifyProvenance(attr.getProvenance()).str());
  scale.key = attr.getKey().str();
  return scale;
}

class BundleBuilder {
public:
  BundleBuilder(ModuleOp module, const CompileOptions &options,
                const BundleOptions &bundleOptions)
      : module(module), options(options), bundleOptions(bundleOptions),
        cache((bundleOptions.cache ? *bundleOptions.cache : ownCache)
                  .implementation()) {}

  FailureOr<bundle::Bundle> build();

private:
  ModuleOp module;
  const CompileOptions &options;
  const BundleOptions &bundleOptions;
  KernelCache ownCache;
  KernelCache::Implementation &cache;
  std::string library;       // path of the device library
  std::string libraryDigest; // SHA-256 of its contents
  bundle::Bundle result;
  llvm::StringSet<> bufferNames;

  bundle::Manifest &manifest() { return result.manifest; }

  void addOptions();
  LogicalResult addCapacities();
  LogicalResult addProgram(ProgramOp program);
  LogicalResult addBucket(ProgramOp program, bundle::Program entry);
  bundle::Layer *findLayer(StringRef cache, bool isWrite,
                           function_ref<bool(const std::string &)> works);
  LogicalResult addLayer(ProgramOp program, CacheOpInterface op);
  LogicalResult checkLayers();
  LogicalResult addBuffer(ProgramOp program, unsigned index);
  LogicalResult mergeBuffer(ProgramOp program, StringRef name, BufferRole role,
                            MemRefType type);
  LogicalResult addHost(ProgramOp program, bundle::Program &entry);
  LogicalResult findLibrary();
  LogicalResult addTarget(StringRef chip);
  const std::string *compileKernel(LaunchOp launch, StringRef chip);
  FailureOr<std::string> compileKernels(ModuleOp selected, StringRef chip);
  LogicalResult addLaunches(ModuleOp selected, bundle::Target &target);
};

} // namespace

void BundleBuilder::addOptions() {
  auto &map = manifest().options;
  map["kv-cache-dtype"] = std::string(options.kvCacheDtype);
  if (!options.tokenScales.empty())
    map["token-scales"] = std::string(options.tokenScales);
  map["scale-policy"] = std::string(options.scalePolicy);
  map["kv-layout"] = std::string(options.kvLayout);
  map["math"] = std::string(options.math);
  if (options.runtimeStrides)
    map["runtime-strides"] = int64_t(1);
  for (auto group : module.getOps<CacheGroupOp>())
    map["page-size"] = static_cast<int64_t>(group.getPageSize());
  auto list = [&](StringRef name, ArrayRef<std::string> values) {
    if (!values.empty())
      map[name.str()] = llvm::join(values, ",");
  };
  list("kv-cache-dtype-skip-layers", options.skipLayers);
  list("scale", options.scales);
  list("tune", options.tune);
  if (!options.batchSizes.empty())
    map["batch-sizes"] = llvm::join(
        llvm::map_range(options.batchSizes,
                        [](int64_t size) { return std::to_string(size); }),
        ",");
}

LogicalResult BundleBuilder::addCapacities() {
  for (auto group : module.getOps<CacheGroupOp>()) {
    for (auto [name, value] :
         {std::pair<StringRef, std::optional<uint64_t>>{"max-tokens",
                                                        group.getMaxTokens()},
          {"max-sequences", group.getMaxSequences()},
          {"max-pages-per-sequence", group.getMaxPagesPerSequence()},
          {"num-pages", group.getNumPages()}})
      if (!value)
        return group.emitError() << "a bundle needs the capacity '" << name
                                 << "'; give it as " << name << "=N";
    manifest().capacities = {
        static_cast<int64_t>(*group.getMaxTokens()),
        static_cast<int64_t>(*group.getMaxSequences()),
        static_cast<int64_t>(*group.getMaxPagesPerSequence()),
        static_cast<int64_t>(*group.getNumPages())};
  }
  return success();
}

/// The entry whose write or attention works on the buffers that `works`
/// accepts. A cache has as many entries as there are attentions over it.
bundle::Layer *
BundleBuilder::findLayer(StringRef cache, bool isWrite,
                         function_ref<bool(const std::string &)> works) {
  for (bundle::Layer &layer : manifest().layers) {
    const bundle::LayerBuffers &names = layer.buffers;
    if (layer.cache == cache && works(isWrite ? names.key : names.query) &&
        works(isWrite ? names.value : names.output))
      return &layer;
  }
  return nullptr;
}

LogicalResult BundleBuilder::addLayer(ProgramOp program, CacheOpInterface op) {
  CacheOp cache = getCacheDeclaration(op.getCacheHandle());
  auto view = op.getCacheHandle().getDefiningOp<ViewCacheOp>();
  CacheType type = cache.getCacheType();
  StringRef symbol = cache.getSymName();
  llvm::StringSet<> operands;
  for (Value operand : op->getOperands())
    if (auto argument = dyn_cast<BlockArgument>(operand))
      operands.insert(program.getBufferName(argument.getArgNumber()));
  bool isWrite = isa<WriteOp, WriteLatentOp>(op.getOperation());
  // A copy of pages concerns all entries of its cache.
  bool isCopy = isa<CopyPagesOp>(op.getOperation());
  bundle::Layer *found =
      findLayer(symbol, isWrite, [&](const std::string &name) {
        return isCopy || operands.contains(name);
      });
  // Else one that has a write and waits for its attention, or the reverse.
  if (!found)
    found = findLayer(symbol, isWrite,
                      [](const std::string &name) { return name.empty(); });
  if (!found) {
    bundle::Layer layer;
    layer.id = layer.cache = symbol.str();
    for (unsigned i = 1; manifest().findLayer(layer.id); ++i)
      layer.id = (symbol + "." + Twine(i)).str();
    layer.name = cache.getLayer().str();
    FailureOr<bundle::ElementType> element =
        elementType(cache, type.getElementType());
    if (failed(element))
      return failure();
    layer.elementType = *element;
    layer.kvHeads = type.getNumHeads();
    layer.headDim = type.getHeadDim();
    layer.ropeDim = type.getRopeDim();
    layer.vHeadDim = type.hasOwnVHeadDim() ? type.getVHeadDim() : 0;
    layer.pageSize = cache.getGroupOp().getPageSize();
    layer.layout = cache.getLayoutText();
    if (cache.getTokenScales())
      layer.tokenScales = *bundle::parseTokenScales(
          stringifyTokenScales(*cache.getTokenScales()));
    layer.kScale = makeScale(cache.getKScaleOp());
    layer.vScale = makeScale(cache.getVScaleOp());
    manifest().layers.push_back(std::move(layer));
    found = &manifest().layers.back();
  }
  bundle::Layer &layer = *found;
  auto name = [&](Value value) {
    return program.getBufferName(cast<BlockArgument>(value).getArgNumber())
        .str();
  };
  layer.buffers.kCache = name(view.getKPages());
  layer.buffers.vCache = name(view.getVPages());
  if (view.getKScales()) {
    layer.buffers.kScales = name(view.getKScales());
    layer.buffers.vScales = name(view.getVScales());
  }
  layer.buffers.pageTable = name(view.getPageTable());
  layer.buffers.lengths = name(view.getLengths());
  layer.buffers.queryStart = name(view.getQueryStart());
  layer.buffers.slotMapping = name(view.getSlots());
  if (KeyRotation rope = getKeyRotation(op)) {
    layer.buffers.ropeTable = name(rope.table);
    layer.buffers.positions = name(rope.positions);
    layer.ropeInterleaved = rope.isInterleaved;
  }
  if (auto write = dyn_cast<WriteOp>(op.getOperation())) {
    layer.buffers.key = name(write.getKey());
    layer.buffers.value = name(write.getValue());
  } else if (auto write = dyn_cast<WriteLatentOp>(op.getOperation())) {
    layer.buffers.key = name(write.getLatent());
    layer.buffers.value = name(write.getRope());
  } else if (auto attention =
                 dyn_cast<AttentionOpInterface>(op.getOperation())) {
    FloatAttr scale = attention.getSoftmaxScaleAttr();
    if (!scale)
      return attention->emitError()
             << "the softmax scale of layer '" << layer.name
             << "' is not known; give a checkpoint with a config.json, or "
                "softmax-scale=F";
    layer.queryHeads = attention.getNumQueryHeads();
    layer.softmaxScale =
        bundle::ScalarF32::of(static_cast<float>(scale.getValueAsDouble()));
    auto from = attention->getAttrOfType<StringAttr>(kSoftmaxScaleFrom);
    layer.softmaxScaleFrom =
        from ? from.getValue().str() : "graph attribute softmax_scale";
    if (ScaleBufferOp scale = attention.getQScaleOp())
      layer.qScale = makeScale(scale);
    if (ScaleBufferOp scale = attention.getOScaleOp())
      layer.oScale = makeScale(scale);
    if (auto paged = dyn_cast<PagedAttentionOp>(op.getOperation())) {
      if (paged.getSoftCap())
        layer.softCap = bundle::ScalarF32::of(
            static_cast<float>(paged.getSoftCap()->convertToDouble()));
      if (paged.getWindow())
        layer.window = static_cast<int64_t>(*paged.getWindow());
      if (paged.getSinks())
        layer.buffers.sinks = name(paged.getSinks());
      if (paged.getAlibiSlopes())
        layer.buffers.alibiSlopes = name(paged.getAlibiSlopes());
    }
    layer.buffers.query = name(attention.getQuery());
    for (Operation *user : attention.getQuery().getUsers())
      if (auto quantize = dyn_cast<QuantizeOp>(user))
        if (quantize.getOut() == attention.getQuery())
          layer.buffers.querySource = name(quantize.getInput());
    layer.buffers.output = name(attention.getOut());
    if (attention.getLse())
      layer.buffers.lse = name(attention.getLse());
  }
  layer.compatibility = bundle::cacheCompatibility(layer);
  return success();
}

/// A layer's entry says how its cache is read, also where that decides nothing.
LogicalResult BundleBuilder::checkLayers() {
  for (const bundle::Layer &layer : manifest().layers) {
    if (!layer.buffers.query.empty())
      continue;
    CacheOp cache = module.lookupSymbol<CacheOp>(layer.cache);
    return cache.emitError()
           << "layer '" << layer.name
           << "' is written, but no attention of the graph reads it (one "
              "whose result nobody uses counts as none); return the result of "
              "its attention, or remove its cache update";
  }
  return success();
}

LogicalResult BundleBuilder::addBuffer(ProgramOp program, unsigned index) {
  std::string name = program.getBufferName(index).str();
  auto type = cast<MemRefType>(program.getArgumentTypes()[index]);
  BufferRole role = program.getBufferRole(index);
  if (!bufferNames.insert(name).second)
    return mergeBuffer(program, name, role, type);
  bundle::Buffer buffer;
  buffer.name = name;
  buffer.role = *bundle::parseBufferRole(stringifyBufferRole(role).str());
  FailureOr<bundle::ElementType> element =
      elementType(program, type.getElementType());
  if (failed(element))
    return failure();
  buffer.elementType = *element;
  for (auto [dim, size] : llvm::enumerate(type.getShape())) {
    // A static graph may have fewer tokens than another one of the module.
    bool isShort =
        isTokens(role, type, dim) && size < manifest().capacities.maxTokens;
    if (!ShapedType::isDynamic(size) && !isShort) {
      buffer.shape.push_back(size);
      continue;
    }
    int64_t bound = boundOf(manifest().capacities, role, type, dim);
    if (!bound)
      return program.emitError() << "dimension " << dim << " of buffer '"
                                 << name << "' is not bounded by a capacity";
    buffer.shape.push_back(bound);
    buffer.dynamicDims.push_back(0);
  }
  // Tables and slots may be shorter in a step than at capacity.
  if (role == BufferRole::PageTable)
    buffer.dynamicDims = {0, 1};
  else if (role == BufferRole::Lengths || role == BufferRole::QueryStart ||
           role == BufferRole::Slots)
    buffer.dynamicDims = {0};
  buffer.strides = bundle::contiguousStrides(buffer.shape);
  auto [strides, offset] = type.getStridesAndOffset();
  (void)offset;
  if (llvm::none_of(strides, ShapedType::isDynamic))
    buffer.strides.assign(strides.begin(), strides.end());

  bool written = false;
  Value argument = program.getArgument(index);
  for (OpOperand &use : argument.getUses())
    if (auto destination =
            dyn_cast<DestinationStyleOpInterface>(use.getOwner()))
      written |= destination.isDpsInit(&use);
    else if (isa<QuantizeOp, DequantizeOp>(use.getOwner()))
      written |= use.getOperandNumber() == 2;
  buffer.access = role == BufferRole::Cache || role == BufferRole::Workspace
                      ? bundle::BufferAccess::ReadWrite
                  : written ? bundle::BufferAccess::Write
                            : bundle::BufferAccess::Read;
  buffer.owner = role == BufferRole::Workspace ? bundle::BufferOwner::Runtime
                                               : bundle::BufferOwner::Caller;
  buffer.stableAddress = true;

  // The V half of a packed page starts inside the K|V buffer.
  std::optional<uint64_t> span = bundle::spanBytes(buffer);
  if (!span)
    return program.emitError()
           << "buffer '" << name << "' is larger than 2^63 bytes";
  buffer.bytes = *span;
  if (role == BufferRole::Cache) {
    for (Operation *user : argument.getUsers()) {
      auto view = dyn_cast<ViewCacheOp>(user);
      CacheOp cache = view ? getCacheDeclaration(view.getHandle()) : CacheOp();
      bool isPages = view && (view.getKPages() == argument ||
                              view.getVPages() == argument);
      if (!cache || !isPages || cache.getLayout() != Layout::Packed)
        continue;
      unsigned bytes = bundle::elementTypeBytes(buffer.elementType);
      std::string whole = (cache.getSymName() + ".kv_cache").str();
      if (bufferNames.insert(whole).second) {
        bundle::Buffer memory = buffer;
        memory.name = whole;
        memory.elementType = buffer.elementType;
        memory.shape = {buffer.shape[0], 2, buffer.shape[1], buffer.shape[2],
                        buffer.shape[3]};
        if (cache.getCacheType().hasOwnVHeadDim())
          memory.shape = {buffer.shape[0], cache.getPageStrides().front()};
        memory.strides = bundle::contiguousStrides(memory.shape);
        memory.dynamicDims.clear();
        memory.bytes = *bundle::spanBytes(memory);
        manifest().buffers.push_back(memory);
      }
      bool isValue = view.getVPages() == argument;
      buffer.offsetIn = bundle::BufferView{
          whole,
          isValue ? static_cast<uint64_t>(cache.getValueOffset()) * bytes : 0};
      break;
    }
  }
  manifest().buffers.push_back(std::move(buffer));
  return success();
}

/// Programs share the buffer of a name. An activation may have another number
/// of tokens in each; all else agrees.
LogicalResult BundleBuilder::mergeBuffer(ProgramOp program, StringRef name,
                                         BufferRole role, MemRefType type) {
  auto &buffers = manifest().buffers;
  auto buffer = llvm::find_if(buffers, [&](const bundle::Buffer &buffer) {
    return buffer.name == name;
  });
  FailureOr<bundle::ElementType> element =
      elementType(program, type.getElementType());
  if (failed(element))
    return failure();
  bool agrees = buffer->elementType == *element &&
                buffer->shape.size() == type.getShape().size();
  for (size_t dim = 0; agrees && dim < buffer->shape.size(); ++dim) {
    int64_t size = type.isDynamicDim(dim)
                       ? boundOf(manifest().capacities, role, type, dim)
                       : type.getDimSize(dim);
    agrees = isTokens(role, type, dim) || buffer->shape[dim] == size;
  }
  if (!agrees)
    return program.emitError()
           << "buffer '" << name << "' is " << type << " in @"
           << program.getSymName()
           << ", but has another shape or type in another program; give the "
              "layers other names, or compile the functions to bundles of "
              "their own";
  if (isTokens(role, type, 0) && type.getDimSize(0) != buffer->shape[0])
    buffer->dynamicDims = {0};
  return success();
}

/// A function that only hands its arguments to the program needs no host code.
static bool hasForeignOps(func::FuncOp function) {
  return function
      .walk([&](Operation *op) {
        return isa<func::FuncOp, func::CallOp, func::ReturnOp>(op)
                   ? WalkResult::advance()
                   : WalkResult::interrupt();
      })
      .wasInterrupted();
}

LogicalResult BundleBuilder::addHost(ProgramOp program,
                                     bundle::Program &entry) {
  auto function = module.lookupSymbol<func::FuncOp>(programName(program));
  if (!function || !hasForeignOps(function))
    return success();
  for (const SymbolTable::SymbolUse &use : getAllSymbolUses(module))
    if (use.getSymbolRef().getRootReference() == function.getSymNameAttr())
      if (auto caller = use.getUser()->getParentOfType<func::FuncOp>())
        return function.emitError()
               << "@" << function.getSymName()
               << " holds cache ops and is called by @" << caller.getSymName()
               << ", but a program is one function; inline it first "
                  "('mlir-opt --inline')";
  OwningOpRef<ModuleOp> host = module.clone();
  // The function and what it calls: other functions have host code of their
  // own, with segments of other programs.
  llvm::SetVector<Operation *> reached;
  reached.insert(host->lookupSymbol(programName(program)));
  for (unsigned i = 0; i < reached.size(); ++i)
    for (const SymbolTable::SymbolUse &use : getAllSymbolUses(reached[i]))
      if (auto used = host->lookupSymbol<func::FuncOp>(
              use.getSymbolRef().getRootReference()))
        reached.insert(used);
  SmallVector<Operation *> rest;
  for (Operation &op : *host->getBody())
    if (isa<ProgramOp, CacheOp, CacheGroupOp, ScaleBufferOp>(op) ||
        (isa<func::FuncOp>(op) && !reached.contains(&op)))
      rest.push_back(&op);
  for (Operation *op : rest)
    op->erase();
  for (auto declaration : host->getOps<func::FuncOp>())
    declaration->removeAttr(kSegment);
  // Whoever runs host code knows nothing of this dialect.
  PassManager reference(module.getContext(), ModuleOp::getOperationName());
  reference.addPass(createConvertKVCacheToReference());
  if (failed(reference.run(*host)))
    return failure();
  auto main = host->lookupSymbol<func::FuncOp>(programName(program));
  main->setAttr("llvm.emit_c_interface", UnitAttr::get(module.getContext()));
  std::string text;
  llvm::raw_string_ostream stream(text);
  host->print(stream, OpPrintingFlags().useLocalScope());
  stream << "\n";

  bundle::HostCode code;
  code.file.file = manifest().programs.empty()
                       ? "host.mlir"
                       : "host." + programName(program).str() + ".mlir";
  code.function = programName(program).str();
  llvm::StringSet<> names;
  auto value = [&](StringRef name, Type type) -> FailureOr<bundle::HostValue> {
    auto shaped = dyn_cast<ShapedType>(getBuiltinTensorType(type));
    if (!shaped || !shaped.hasRank())
      return function.emitError()
             << "'" << name << "' of the function @" << function.getSymName()
             << " is " << type << "; expected a ranked tensor or memref";
    FailureOr<bundle::ElementType> element =
        elementType(function, shaped.getElementType());
    if (failed(element))
      return failure();
    if (!names.insert(name).second)
      return function.emitError()
             << "two arguments or results of @" << function.getSymName()
             << " have the name '" << name << "'";
    bundle::HostValue result;
    result.name = name.str();
    result.elementType = *element;
    for (int64_t size : shaped.getShape())
      result.shape.push_back(ShapedType::isDynamic(size) ? -1 : size);
    return result;
  };
  for (unsigned i = 0, e = function.getNumArguments(); i < e; ++i) {
    std::string name = "arg" + std::to_string(i);
    auto given = bundleOptions.argumentNames.find(i);
    if (auto attr = function.getArgAttrOfType<StringAttr>(i, kBufferName))
      name = attr.getValue().str();
    else if (auto attr = function.getArgAttrOfType<StringAttr>(i, kWeight))
      name = attr.getValue().str();
    else if (given != bundleOptions.argumentNames.end())
      name = given->second;
    FailureOr<bundle::HostValue> argument =
        value(name, function.getArgumentTypes()[i]);
    if (failed(argument))
      return failure();
    code.arguments.push_back(std::move(*argument));
  }
  for (auto [i, type] : llvm::enumerate(function.getResultTypes())) {
    FailureOr<bundle::HostValue> argument =
        value("result" + std::to_string(i), type);
    if (failed(argument))
      return failure();
    code.results.push_back(std::move(*argument));
  }
  result.files[code.file.file] = std::move(text);
  entry.host = std::move(code);
  return success();
}

LogicalResult BundleBuilder::addProgram(ProgramOp program) {
  bundle::Program entry;
  entry.name = programName(program).str();
  if (program.getBatchSize())
    return addBucket(program, std::move(entry));
  for (unsigned i = 0, e = program.getNumArguments(); i < e; ++i)
    if (failed(addBuffer(program, i)))
      return failure();
  for (auto segment : program.getBody().front().getOps<SegmentOp>()) {
    bundle::Segment part;
    part.name = segment.getSymName().str();
    part.function = (program.getSymName() + "." + segment.getSymName()).str();
    // Activations, in the order in which the ops of the segment use them: the
    // order of the call's operands.
    llvm::SmallSetVector<Value, 8> activations;
    for (Operation &op : segment.getBody().front()) {
      if (auto cacheOp = dyn_cast<CacheOpInterface>(op))
        if (failed(addLayer(program, cacheOp)))
          return failure();
      for (Value operand : op.getOperands())
        if (auto argument = dyn_cast<BlockArgument>(operand))
          if (isOperand(program.getBufferRole(argument.getArgNumber())))
            activations.insert(operand);
    }
    for (Value activation : activations)
      part.arguments.push_back(
          program.getBufferName(cast<BlockArgument>(activation).getArgNumber())
              .str());
    entry.segments.push_back(std::move(part));
  }
  if (failed(addHost(program, entry)))
    return failure();
  manifest().programs.push_back(std::move(entry));
  return success();
}

/// A bucket works on the buffers of the whole program, and host code calls its
/// segments by the same functions.
LogicalResult BundleBuilder::addBucket(ProgramOp program,
                                       bundle::Program entry) {
  auto whole = module.lookupSymbol<ProgramOp>(*program.getBucketOf());
  const bundle::Program *known =
      whole ? manifest().findProgram(programName(whole).str()) : nullptr;
  if (!known)
    return program.emitError()
           << "no program @" << *program.getBucketOf()
           << " comes before its bucket @" << program.getSymName();
  entry.host = known->host;
  entry.segments = known->segments;
  auto group = *module.getOps<CacheGroupOp>().begin();
  auto [sequences, tokens] = program.getRoom(group);
  entry.bucket = bundle::Bucket{known->name, sequences, tokens};
  manifest().programs.push_back(std::move(entry));
  return success();
}

LogicalResult BundleBuilder::addLaunches(ModuleOp selected,
                                         bundle::Target &target) {
  llvm::StringSet<> kernels;
  for (auto program : selected.getOps<ProgramOp>()) {
    for (unsigned i = 0, e = program.getNumArguments(); i < e; ++i)
      if (failed(addBuffer(program, i)))
        return failure();
    for (auto segment : program.getBody().front().getOps<SegmentOp>())
      for (auto op : segment.getBody().front().getOps<LaunchOp>()) {
        const DeviceFunction *function = findDeviceFunction(op.getFunction());
        bundle::Launch launch;
        launch.program = programName(program).str();
        launch.segment = segment.getSymName().str();
        launch.kernel = op.getKernel().str();
        launch.op = function->op;
        llvm::StringSet<> operands;
        for (Value buffer : op.getBuffers())
          operands.insert(program.getBufferName(
              cast<BlockArgument>(buffer).getArgNumber()));
        StringRef cache = op.getLayer().value_or("");
        auto works = [&](const std::string &name) {
          return operands.contains(name);
        };
        bundle::Layer *layer = nullptr;
        if (launch.op == bundle::LaunchOp::Quantize) {
          for (bundle::Layer &candidate : manifest().layers)
            if (candidate.cache == cache && works(candidate.buffers.query) &&
                works(candidate.buffers.querySource))
              layer = &candidate;
        } else {
          layer = findLayer(cache, bundle::isWrite(launch.op),
                            [&](const std::string &name) {
                              return launch.op == bundle::LaunchOp::CopyPages ||
                                     operands.contains(name);
                            });
        }
        launch.layer = layer ? layer->id : "";
        llvm::copy(op.getGrid(), launch.grid.begin());
        llvm::copy(op.getBlock(), launch.block.begin());
        launch.sharedBytes = op.getSharedBytes();
        if (bundle::isAttention(launch.op)) {
          launch.math = bundle::Math::F16;
          for (auto [name, constant] :
               llvm::zip(function->structure,
                         op.getStructure().getAsRange<IntegerAttr>()))
            if (name == "math" && constant.getInt() != 0)
              launch.math = bundle::Math::FP8;
        }
        for (Value buffer : op.getBuffers())
          launch.arguments.push_back(bundle::Argument::ofBuffer(
              program.getBufferName(cast<BlockArgument>(buffer).getArgNumber())
                  .str()));
        for (auto [constant, origin] :
             llvm::zip(op.getConstants(),
                       op.getOrigins().getAsValueRange<StringAttr>())) {
          if (auto number = dyn_cast<FloatAttr>(constant))
            launch.arguments.push_back(bundle::Argument::ofF32(
                number.getValue().convertToFloat(), origin.str()));
          else if (cast<IntegerAttr>(constant).getType().isInteger(32))
            launch.arguments.push_back(bundle::Argument::ofI32(
                cast<IntegerAttr>(constant).getInt(), origin.str()));
          else
            launch.arguments.push_back(bundle::Argument::ofI64(
                cast<IntegerAttr>(constant).getInt(), origin.str()));
        }
        if (kernels.insert(launch.kernel).second) {
          bundle::Kernel kernel;
          kernel.name = launch.kernel;
          for (auto [name, constant] :
               llvm::zip(function->structure,
                         op.getStructure().getAsRange<IntegerAttr>()))
            kernel.structure[name.str()] = constant.getInt();
          target.kernels.push_back(std::move(kernel));
        }
        target.launches.push_back(std::move(launch));
      }
  }
  return success();
}

LogicalResult BundleBuilder::findLibrary() {
  library = options.kernelLibrary.empty() ? findKernelLibrary()
                                          : options.kernelLibrary.getValue();
  if (library.empty())
    return module.emitError()
           << "the device library kvcache_kernels.bc was not found; name it "
              "with kernel-library=FILE";
  bundle::Expected<std::string> contents = bundle::readFile(library);
  if (!contents)
    return module.emitError() << "kernel-library: " << contents.message();
  libraryDigest = bundle::sha256Hex(contents->data(), contents->size());
  return success();
}

/// A module with nothing but a launch of the kernel.
static OwningOpRef<ModuleOp> makeUnit(LaunchOp launch) {
  Location loc = launch.getLoc();
  OwningOpRef<ModuleOp> unit = ModuleOp::create(loc);
  OpBuilder builder = OpBuilder::atBlockEnd(unit->getBody());
  SmallVector<DictionaryAttr> attributes;
  for (size_t i = 0; i < launch.getBuffers().size(); ++i)
    attributes.push_back(builder.getDictionaryAttr(
        {builder.getNamedAttr(kBufferName,
                              builder.getStringAttr("buffer" + Twine(i))),
         builder.getNamedAttr(kBufferRole,
                              BufferRoleAttr::get(builder.getContext(),
                                                  BufferRole::Workspace))}));
  auto program =
      ProgramOp::create(builder, loc, "unit", launch.getBuffers().getTypes(),
                        ArrayRef<DictionaryAttr>(attributes));
  builder.setInsertionPointToEnd(&program.getBody().front());
  auto segment = SegmentOp::create(builder, loc, "kernel");
  builder.setInsertionPointToEnd(&segment.getBody().emplaceBlock());
  auto copy = cast<LaunchOp>(builder.clone(*launch));
  copy.getBuffersMutable().assign(program.getBody().front().getArguments());
  return unit;
}

/// PTX of a module with this launch's kernel alone: what it is does not depend
/// on which other kernels the graph needs. Null after an error.
const std::string *BundleBuilder::compileKernel(LaunchOp launch,
                                                StringRef chip) {
  // What createKernel of convert-kvcache-to-nvvm reads of a launch.
  const DeviceFunction *function = findDeviceFunction(launch.getFunction());
  std::string key;
  llvm::raw_string_ostream stream(key);
  stream << chip << ' ' << libraryDigest << ' ' << launch.getFunction() << ' '
         << launch.getKernel() << ' ' << launch.getBuffers().size() << ' '
         << launch.getMinCtasPerSm().value_or(0);
  for (int64_t size : launch.getBlock())
    stream << ' ' << size;
  for (Attribute constant : launch.getConstants())
    stream << ' ' << cast<TypedAttr>(constant).getType();
  stream << ' ' << launch.getStructure();
  // With scales for each KV head a block's head follows from the grid.
  if (function && launch.getConstants().size() > function->constants)
    stream << ' ' << launch.getGrid()[function->headDimension];
  return cache.kernels.get(
      key, cache.compiled, cache.reused, [&]() -> std::optional<std::string> {
        CompileOptions unitOptions;
        unitOptions.copyOptionValuesFrom(options);
        unitOptions.target = chip.str();
        unitOptions.kernelLibrary = library;
        OwningOpRef<ModuleOp> unit = makeUnit(launch);
        PassManager code(module.getContext(), ModuleOp::getOperationName());
        buildCodePipeline(code, unitOptions);
        // Upstream looks for libdevice, which our kernels do not call, and
        // reports a CUDA toolkit that is not there as an error, without
        // failing.
        ScopedDiagnosticHandler toolkit(
            module.getContext(), [](Diagnostic &diag) {
              return success(StringRef(diag.str()).starts_with("CUDA path: "));
            });
        if (failed(code.run(*unit)))
          return std::nullopt;
        std::string ptx;
        unit->walk([&](gpu::BinaryOp binary) {
          for (Attribute object : binary.getObjects())
            ptx += cast<gpu::ObjectAttr>(object).getObject().getValue();
        });
        while (!ptx.empty() && ptx.back() == '\0')
          ptx.pop_back();
        if (ptx.empty()) {
          launch.emitError() << "no PTX was emitted for " << chip;
          return std::nullopt;
        }
        return ptx;
      });
}

/// One PTX text with each kernel once, in the order of their first launch.
FailureOr<std::string> BundleBuilder::compileKernels(ModuleOp selected,
                                                     StringRef chip) {
  bundle::PtxModule whole;
  llvm::StringSet<> known, globals;
  WalkResult walk = selected.walk([&](LaunchOp launch) {
    if (!known.insert(launch.getKernel()).second)
      return WalkResult::advance();
    const std::string *ptx = compileKernel(launch, chip);
    if (!ptx)
      return WalkResult::interrupt();
    bundle::PtxModule part = bundle::PtxModule::parse(*ptx);
    whole.directives = part.directives;
    // Kernels share declarations such as that of dynamic shared memory.
    SmallVector<StringRef> lines;
    StringRef(part.globals).split(lines, '\n', -1, /*KeepEmpty=*/false);
    for (StringRef line : lines)
      if (globals.insert(line).second)
        whole.globals += (line + "\n").str();
    for (auto &kernel : part.kernels)
      whole.kernels.push_back(std::move(kernel));
    return WalkResult::advance();
  });
  if (walk.wasInterrupted())
    return failure();
  return whole.print();
}

LogicalResult BundleBuilder::addTarget(StringRef chip) {
  CompileOptions targetOptions;
  targetOptions.copyOptionValuesFrom(options);
  targetOptions.target = chip.str();

  OwningOpRef<ModuleOp> clone = module.clone();
  PassManager selection(module.getContext(), ModuleOp::getOperationName());
  buildSelectionPipeline(selection, targetOptions);
  if (failed(selection.run(*clone)))
    return failure();
  bundle::Target target;
  target.chip = chip.str();
  if (failed(addLaunches(*clone, target)))
    return failure();

  FailureOr<std::string> ptx = compileKernels(*clone, chip);
  if (failed(ptx))
    return failure();
  target.ptx.file = ("code/" + chip + ".ptx").str();
  if (!bundleOptions.ptxas.empty()) {
    std::string key = bundleOptions.ptxas + "\n" + chip.str() + "\n" + *ptx;
    const Cubin *cubin = cache.cubins.get(
        key, cache.assembled, cache.reused, [&]() -> std::optional<Cubin> {
          llvm::Expected<Cubin> fresh =
              runPtxas(bundleOptions.ptxas, chip, *ptx);
          if (fresh)
            return std::move(*fresh);
          module.emitError() << "no cubin for " << chip << ": "
                             << llvm::toString(fresh.takeError());
          return std::nullopt;
        });
    if (!cubin)
      return failure();
    target.cubin = bundle::FileDigest{("code/" + chip + ".cubin").str(), ""};
    result.files[target.cubin->file] = cubin->object;
    for (bundle::Kernel &kernel : target.kernels) {
      auto report = cubin->reports.find(kernel.name);
      if (report != cubin->reports.end())
        kernel.report = report->second;
    }
  }
  result.files[target.ptx.file] = std::move(*ptx);
  manifest().targets.push_back(std::move(target));
  return success();
}

FailureOr<bundle::Bundle> BundleBuilder::build() {
  manifest().producer = "kvcache " KVCACHE_VERSION;
  addOptions();
  if (failed(addCapacities()))
    return failure();
  for (auto program : module.getOps<ProgramOp>())
    if (failed(addProgram(program)))
      return failure();
  if (failed(checkLayers()) || failed(findLibrary()))
    return failure();
  for (const std::string &chip : bundleOptions.targets)
    if (failed(addTarget(chip)))
      return failure();
  if (bundle::Error error = bundle::updateDigests(result))
    return module.emitError() << error.message();
  if (bundle::Error error = bundle::validateManifest(manifest()))
    return module.emitError()
           << "the manifest that was built is not valid: " << error.message();
  return std::move(result);
}

FailureOr<bundle::Bundle>
mlir::kvcache::buildBundle(ModuleOp module, const CompileOptions &options,
                           const BundleOptions &bundleOptions) {
  return BundleBuilder(module, options, bundleOptions).build();
}

FailureOr<bundle::Bundle>
mlir::kvcache::compile(ModuleOp module, const CompileOptions &options,
                       const BundleOptions &bundleOptions) {
  PassManager scales(module.getContext(), ModuleOp::getOperationName());
  buildScalePipeline(scales, options);
  PassManager programs(module.getContext(), ModuleOp::getOperationName());
  buildProgramPipeline(programs, options);
  if (failed(scales.run(module)) ||
      failed(completeCapacities(module, options)) ||
      failed(programs.run(module)))
    return failure();
  return buildBundle(module, options, bundleOptions);
}

KernelCache::KernelCache() : impl(std::make_unique<Implementation>()) {}
KernelCache::~KernelCache() = default;

KernelCache::Statistics KernelCache::statistics() const {
  return {impl->compiled, impl->assembled, impl->reused};
}
