//===- FoldCheckpointScales.cpp - Scales become constants -----------------===//

#include "CheckpointSupport.h"
#include "kvcache/Checkpoint/ScaleTable.h"
#include "kvcache/Transforms/Passes.h"
#include "mlir/IR/Builders.h"
#include "llvm/ADT/MapVector.h"
#include "llvm/ADT/StringMap.h"
#include "llvm/ADT/StringSet.h"

namespace mlir::kvcache {
#define GEN_PASS_DEF_FOLDCHECKPOINTSCALES
#include "kvcache/Transforms/Passes.h.inc"
} // namespace mlir::kvcache

using namespace mlir;
using namespace mlir::kvcache;

namespace {

/// What one buffer becomes, and the cache that says so.
struct Decision {
  ScaleAttr scale;
  CacheOp cache;
};

class FoldCheckpointScalesPass
    : public mlir::kvcache::impl::FoldCheckpointScalesBase<
          FoldCheckpointScalesPass> {
public:
  using FoldCheckpointScalesBase::FoldCheckpointScalesBase;
  explicit FoldCheckpointScalesPass(::kvcache::ScaleTable table)
      : given(std::make_shared<::kvcache::ScaleTable>(std::move(table))) {}
  void runOnOperation() override;

private:
  /// Shared by clones of the pass; null: scales come from files.
  std::shared_ptr<const ::kvcache::ScaleTable> given;
  llvm::MapVector<Operation *, Decision> decisions;

  FailureOr<::kvcache::ScaleOptions> getOptions();
  LogicalResult checkShards(CacheOp cache);
  std::vector<::kvcache::ScaleRequest> getRequests(ArrayRef<CacheOp> caches);
  FailureOr<ScaleAttr> makeScale(CacheOp cache, ::kvcache::ScaleRole role,
                                 const ::kvcache::Scale &scale);
  LogicalResult decide(CacheOp cache, ScaleBufferOp buffer,
                       ::kvcache::ScaleRole role,
                       const ::kvcache::Scale &scale);
  LogicalResult decideOthers(const ::kvcache::ScaleTable &table);
  LogicalResult checkOrphans();
  void apply();
};

} // namespace

FailureOr<::kvcache::ScaleOptions> FoldCheckpointScalesPass::getOptions() {
  ::kvcache::ScaleOptions options;
  ModuleOp module = getOperation();
  if (scalePolicy == "compatible")
    options.policy = ::kvcache::ScalePolicy::Compatible;
  else if (scalePolicy != "strict")
    return emitError(module.getLoc())
           << "option scale-policy must be strict or compatible, but is '"
           << scalePolicy.getValue() << "'";
  for (const std::string &text : scale) {
    ::kvcache::Expected<::kvcache::ScaleOverride> parsed =
        ::kvcache::parseScaleOverride(text);
    if (!parsed)
      return emitError(module.getLoc()) << "option scale: " << parsed.message();
    options.overrides.push_back(std::move(*parsed));
  }
  options.overlays.assign(scaleOverlay.begin(), scaleOverlay.end());
  if (roundScalesTo == "bf16")
    options.roundScalesTo = ::kvcache::DType::BF16;
  else if (roundScalesTo == "f16")
    options.roundScalesTo = ::kvcache::DType::F16;
  else if (!roundScalesTo.empty())
    return emitError(module.getLoc())
           << "option round-scales-to must be bf16 or f16, but is '"
           << roundScalesTo.getValue() << "'";
  options.requireCalibrated = requireCalibrated;
  options.tpSize = tpSize;
  options.tpRank = tpRank;
  return options;
}

/// A cache that was partitioned has one rank's heads; with one KV head, several
/// ranks may hold the same.
LogicalResult FoldCheckpointScalesPass::checkShards(CacheOp cache) {
  int64_t shards = cache.getShards().value_or(1);
  bool shared = cache.getCacheType().getNumHeads() == 1;
  if (shards == 1 || tpSize == 1 || tpSize == shards ||
      (shared && tpSize % shards == 0))
    return success();
  return cache.emitError() << "layer '" << cache.getLayer() << "' is one of "
                           << shards << " shards, but tp-size is "
                           << tpSize.getValue() << "; expected "
                           << (shared ? "a multiple of " : "") << shards
                           << ", as the graph was partitioned";
}

std::vector<::kvcache::ScaleRequest>
FoldCheckpointScalesPass::getRequests(ArrayRef<CacheOp> caches) {
  llvm::StringSet<> quantizedQueries;
  getOperation().walk([&](AttentionOpInterface op) {
    CacheOp cache = getCacheDeclaration(op.getCacheHandle());
    if (cache && op.getQScaleAttr())
      quantizedQueries.insert(cache.getSymName());
  });
  std::vector<::kvcache::ScaleRequest> requests;
  for (CacheOp cache : caches) {
    ::kvcache::ScaleRequest request;
    request.layer = cache.getLayer().str();
    request.cacheType =
        cache.getTokenScales()
            ? ::kvcache::CacheType::FP8PerTokenHead
            : toCheckpointType(cache.getCacheType().getElementType());
    request.queryIsFP8 = quantizedQueries.contains(cache.getSymName());
    request.mla = cache.getCacheType().isLatent();
    request.kvHeads = cache.getCacheType().getNumHeads();
    requests.push_back(std::move(request));
  }
  return requests;
}

static Provenance getProvenance(::kvcache::ScaleProvenance provenance) {
  switch (provenance) {
  case ::kvcache::ScaleProvenance::Checkpoint:
    return Provenance::Checkpoint;
  case ::kvcache::ScaleProvenance::Default:
    return Provenance::Default;
  case ::kvcache::ScaleProvenance::Duplicate:
    return Provenance::Duplicate;
  case ::kvcache::ScaleProvenance::Maximum:
    return Provenance::Maximum;
  case ::kvcache::ScaleProvenance::Override:
    return Provenance::Override;
  }
  llvm_unreachable("all provenances are handled");
}

FailureOr<ScaleAttr>
FoldCheckpointScalesPass::makeScale(CacheOp cache, ::kvcache::ScaleRole role,
                                    const ::kvcache::Scale &scale) {
  SmallVector<float> values(scale.perHead.begin(), scale.perHead.end());
  if (values.empty())
    values.push_back(scale.value);
  else if (static_cast<int64_t>(values.size()) !=
           cache.getCacheType().getNumHeads())
    return cache.emitError()
           << "layer '" << cache.getLayer() << "': the "
           << ::kvcache::scaleRoleName(role) << " scale '" << scale.key
           << "' in " << scale.file << " has " << values.size()
           << " values; expected one, or one for each of the "
           << cache.getCacheType().getNumHeads() << " KV heads";
  for (float value : values) {
    APFloat exact(value);
    if (exact.isNormal() && !exact.isNegative())
      continue;
    InFlightDiagnostic diag =
        cache.emitError()
        << "layer '" << cache.getLayer() << "': the "
        << ::kvcache::scaleRoleName(role)
        << " scale must be positive, finite and normal in f32, but is "
        << value;
    if (!scale.key.empty())
      diag << " ('" << scale.key << "' in " << scale.file << ")";
    diag << "; give another one with scale=" << cache.getLayer() << "."
         << ::kvcache::scaleRoleName(role) << "=VALUE";
    return diag;
  }
  Provenance provenance = getProvenance(scale.provenance);
  if (namesOnly && !scale.key.empty())
    return ScaleAttr::getCheckpoint(&getContext(), scale.key);
  bool namesKey =
      provenance != Provenance::Default && provenance != Provenance::Override;
  return ScaleAttr::getStatic(&getContext(), values, provenance,
                              namesKey ? StringRef(scale.key) : StringRef());
}

LogicalResult FoldCheckpointScalesPass::decide(CacheOp cache,
                                               ScaleBufferOp buffer,
                                               ::kvcache::ScaleRole role,
                                               const ::kvcache::Scale &scale) {
  if (buffer.getScale().isStatic())
    return success();
  FailureOr<ScaleAttr> made = makeScale(cache, role, scale);
  if (failed(made))
    return failure();
  ScaleAttr bound = buffer.getScale();
  if (!bound.isDynamic() && bound.getKey() != scale.key &&
      scale.provenance != ::kvcache::ScaleProvenance::Override) {
    InFlightDiagnostic diag = buffer.emitError()
                              << "@" << buffer.getSymName() << " is bound to "
                              << bound.getKey() << ", but this checkpoint ";
    if (scale.key.empty())
      diag << "has no such scale";
    else
      diag << "gives it \"" << scale.key << "\"";
    return diag << "; fold with the checkpoint that the names come from";
  }
  auto [it, isNew] = decisions.insert({buffer.getOperation(), {*made, cache}});
  if (isNew || it->second.scale == *made)
    return success();
  InFlightDiagnostic diag = cache.emitError()
                            << "layer '" << cache.getLayer() << "' and layer '"
                            << it->second.cache.getLayer()
                            << "' share the scale @" << buffer.getSymName()
                            << ", but resolve it to " << *made << " and "
                            << it->second.scale << "; declare a scale for each";
  diag.attachNote(buffer.getLoc()) << "the scale is declared here";
  return diag;
}

LogicalResult
FoldCheckpointScalesPass::decideOthers(const ::kvcache::ScaleTable &table) {
  LogicalResult result = success();
  getOperation().walk([&](AttentionOpInterface op) {
    CacheOp cache = getCacheDeclaration(op.getCacheHandle());
    if (!cache)
      return;
    const ::kvcache::LayerScales *scales = table.find(
        std::string_view(cache.getLayer().data(), cache.getLayer().size()));
    for (auto [buffer, role, what] :
         {std::tuple{op.getQScaleOp(), ::kvcache::ScaleRole::Q, "queries"},
          {op.getOScaleOp(), ::kvcache::ScaleRole::O, "outputs"}}) {
      if (!buffer || buffer.getScale().isStatic())
        continue;
      // These scales count where the cache has none, too.
      ::kvcache::Scale scale;
      if (scales)
        scale = (*scales)[role];
      const char *name = ::kvcache::scaleRoleName(role);
      if (!scale.perHead.empty()) {
        result = op->emitError()
                 << "layer '" << cache.getLayer() << "': a " << name
                 << " scale per head ('" << scale.key << "' in " << scale.file
                 << ") is not supported with FP8 " << what
                 << "; supported is one value, or a graph with " << what
                 << " that are not quantized";
        continue;
      }
      // The table speaks of queries; what an output is divided by is the next
      // layer's business, and nobody asked for it but this op.
      bool isMissing =
          role == ::kvcache::ScaleRole::O &&
          scale.provenance == ::kvcache::ScaleProvenance::Default &&
          !decisions.contains(buffer);
      if (isMissing) {
        InFlightDiagnostic diag =
            requireCalibrated ? op->emitError() : op->emitWarning();
        diag << "layer '" << cache.getLayer()
             << "': no o scale for FP8 outputs (o_proj.input_scale); 1.0 is "
                "used";
        if (requireCalibrated)
          result = failure();
      }
      if (failed(decide(cache, buffer, role, scale)))
        result = failure();
    }
  });
  return result;
}

/// A buffer without a cache has no layer, and so no name in a checkpoint.
LogicalResult FoldCheckpointScalesPass::checkOrphans() {
  LogicalResult result = success();
  for (ScaleBufferOp buffer : getOperation().getOps<ScaleBufferOp>())
    if (!buffer.getScale().isStatic() && !decisions.contains(buffer))
      result =
          buffer.emitError()
          << "@" << buffer.getSymName()
          << " is not static, and no cache has it as a scale, so nothing "
             "says which layer it belongs to; erase it, or give it a value";
  return result;
}

void FoldCheckpointScalesPass::apply() {
  for (auto &[op, decision] : decisions) {
    auto buffer = cast<ScaleBufferOp>(op);
    ScaleAttr scale = decision.scale;
    buffer.setScaleAttr(scale);
    switch (scale.getProvenance()) {
    case Provenance::Checkpoint:
      ++numBound;
      break;
    case Provenance::Default:
      if (decision.cache.getCacheType().isQuantized())
        ++numDefaulted;
      break;
    case Provenance::Duplicate:
    case Provenance::Maximum:
      ++numDuplicated;
      break;
    case Provenance::Override:
      ++numOverridden;
      break;
    }
  }
  SymbolTable symbols(getOperation());
  getOperation().walk([&](LoadScaleOp load) {
    auto buffer = symbols.lookup<ScaleBufferOp>(load.getScale());
    if (!buffer || !buffer.getScale().isStatic() ||
        buffer.getScale().getValues().size() != 1)
      return;
    OpBuilder builder(load);
    Value constant = arith::ConstantOp::create(
        builder, load.getLoc(),
        builder.getF32FloatAttr(buffer.getScale().getValue()));
    load.replaceAllUsesWith(constant);
    load.erase();
  });
}

void FoldCheckpointScalesPass::runOnOperation() {
  decisions.clear();
  ModuleOp module = getOperation();
  FailureOr<::kvcache::ScaleOptions> options = getOptions();
  if (failed(options))
    return signalPassFailure();

  // Layers that are done stay as they are, and are not asked about again.
  SmallVector<CacheOp> caches;
  llvm::StringMap<Operation *> layerOps;
  for (CacheOp cache : module.getOps<CacheOp>()) {
    ScaleBufferOp k = cache.getKScaleOp(), v = cache.getVScaleOp();
    if (k.getScale().isStatic() && v.getScale().isStatic())
      continue;
    caches.push_back(cache);
    layerOps[cache.getLayer()] = cache;
    if (failed(checkShards(cache)))
      return signalPassFailure();
  }
  if (!caches.empty()) {
    auto findOp = [&](StringRef layer) { return layerOps.lookup(layer); };
    ::kvcache::ScaleTable resolved;
    if (!given) {
      auto opened = openCheckpoint(module, checkpoint);
      if (failed(opened))
        return signalPassFailure();
      if (*opened &&
          failed(emitDiagnostics(module, (*opened)->diagnostics(), findOp)))
        return signalPassFailure();
      resolved = ::kvcache::resolveScales(*opened ? &**opened : nullptr,
                                          getRequests(caches), *options);
    }
    const ::kvcache::ScaleTable &table = given ? *given : resolved;
    numIgnored += table.ignored.size();
    numRefused += llvm::count_if(
        table.diagnostics, [](const ::kvcache::Diagnostic &diagnostic) {
          return diagnostic.severity == ::kvcache::Severity::Error;
        });
    if (failed(emitDiagnostics(module, table.diagnostics, findOp))) {
      for (CacheOp cache : caches)
        if (cache.getShards() && tpSize == 1)
          cache.emitRemark()
              << "layer '" << cache.getLayer() << "' is one of "
              << *cache.getShards()
              << " shards; scales per head need tp-size=" << *cache.getShards()
              << " and tp-rank";
      return signalPassFailure();
    }
    bool failedAny = false;
    for (CacheOp cache : caches) {
      const ::kvcache::LayerScales *scales = table.find(
          std::string_view(cache.getLayer().data(), cache.getLayer().size()));
      if (!scales) {
        cache.emitError() << "layer '" << cache.getLayer()
                          << "' is not in the scale table";
        return signalPassFailure();
      }
      failedAny |=
          failed(decide(cache, cache.getKScaleOp(), ::kvcache::ScaleRole::K,
                        (*scales)[::kvcache::ScaleRole::K]));
      // A latent row has one scale, k.
      if (!cache.getCacheType().isLatent())
        failedAny |=
            failed(decide(cache, cache.getVScaleOp(), ::kvcache::ScaleRole::V,
                          (*scales)[::kvcache::ScaleRole::V]));
    }
    failedAny |= failed(decideOthers(table));
    if (failedAny)
      return signalPassFailure();
  }
  if (failed(checkOrphans()))
    return signalPassFailure();
  apply();
}

std::unique_ptr<Pass>
mlir::kvcache::createFoldCheckpointScalesPass(::kvcache::ScaleTable table) {
  return std::make_unique<FoldCheckpointScalesPass>(std::move(table));
}
