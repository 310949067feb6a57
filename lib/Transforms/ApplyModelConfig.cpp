//===- ApplyModelConfig.cpp - What config.json says about attention -------===//

#include "CheckpointSupport.h"
#include "kvcache/Checkpoint/ModelConfig.h"
#include "kvcache/Transforms/Passes.h"
#include "llvm/ADT/StringMap.h"
#include <cmath>

namespace mlir::kvcache {
#define GEN_PASS_DEF_APPLYMODELCONFIG
#include "kvcache/Transforms/Passes.h.inc"
} // namespace mlir::kvcache

using namespace mlir;
using namespace mlir::kvcache;

namespace {

class ApplyModelConfigPass
    : public mlir::kvcache::impl::ApplyModelConfigBase<ApplyModelConfigPass> {
public:
  using ApplyModelConfigBase::ApplyModelConfigBase;
  void runOnOperation() override;

private:
  LogicalResult checkResolved(AttentionOpInterface op, CacheOp cache,
                              const ::kvcache::ResolvedAttention &resolved);
  void apply(AttentionOpInterface op,
             const ::kvcache::ResolvedAttention &resolved);
  LogicalResult addSinks(AttentionOpInterface op,
                         const ::kvcache::ResolvedAttention &resolved,
                         const ::kvcache::Checkpoint *checkpoint);
  LogicalResult addSlopes(AttentionOpInterface op, CacheOp cache,
                          const ::kvcache::ResolvedAttention &resolved);
};

} // namespace

static bool isSameRequest(const ::kvcache::AttentionRequest &a,
                          const ::kvcache::AttentionRequest &b) {
  return std::tie(a.layer, a.queryHeads, a.kvHeads, a.headDim, a.vHeadDim,
                  a.latentDim, a.softmaxScale, a.softCap, a.windowLeft,
                  a.hasSlopes) == std::tie(b.layer, b.queryHeads, b.kvHeads,
                                           b.headDim, b.vHeadDim, b.latentDim,
                                           b.softmaxScale, b.softCap,
                                           b.windowLeft, b.hasSlopes);
}

static bool hasWindow(const ::kvcache::ResolvedAttention &resolved) {
  return resolved.windowLeft && resolved.windowLeft->value >= 0;
}

LogicalResult ApplyModelConfigPass::checkResolved(
    AttentionOpInterface op, CacheOp cache,
    const ::kvcache::ResolvedAttention &resolved) {
  if (!resolved.sharesCacheWith.empty() &&
      resolved.sharesCacheWith != cache.getLayer())
    return op.emitError()
           << "by the model's config, layer '" << resolved.layer
           << "' reads the cache of layer '" << resolved.sharesCacheWith
           << "', but in the graph it has its own; the attention must name the "
              "cache of that layer, and nothing may write for this one";
  // The op's constraint (C5), for values that come from outside.
  auto isPositive = [](double value) {
    return std::isfinite(value) && value > 0;
  };
  if (!isPositive(resolved.softmaxScale.value))
    return op.emitError()
           << "layer '" << resolved.layer
           << "': the softmax scale must be positive and finite, but "
           << resolved.softmaxScale.from << " gives "
           << resolved.softmaxScale.value;
  if (resolved.softCap && !isPositive(resolved.softCap->value))
    return op.emitError() << "layer '" << resolved.layer
                          << "': the soft cap must be positive and finite, but "
                          << resolved.softCap->from << " gives "
                          << resolved.softCap->value;
  if (isa<MLAAttentionOp>(op.getOperation()) &&
      (resolved.softCap || hasWindow(resolved) || resolved.alibi))
    return op.emitError()
           << "layer '" << resolved.layer << "': MLA is not supported with "
           << (resolved.softCap ? "a soft cap, but " + resolved.softCap->from
               : resolved.alibi ? "ALiBi, but " + resolved.alibi->from
                                : "a window, but " + resolved.windowLeft->from)
           << " gives one";
  return success();
}

void ApplyModelConfigPass::apply(AttentionOpInterface op,
                                 const ::kvcache::ResolvedAttention &resolved) {
  Builder builder(&getContext());
  DictionaryAttr before = op->getAttrDictionary();
  // A value that the graph has keeps the origin that an earlier run noted.
  FloatAttr old = op.getSoftmaxScaleAttr();
  if (!old || old.getValueAsDouble() != resolved.softmaxScale.value)
    op->setAttr(kSoftmaxScaleFrom,
                builder.getStringAttr(resolved.softmaxScale.from));
  op.setSoftmaxScaleAttr(builder.getF64FloatAttr(resolved.softmaxScale.value));
  if (auto paged = dyn_cast<PagedAttentionOp>(op.getOperation())) {
    if (resolved.softCap)
      paged.setSoftCapAttr(builder.getF64FloatAttr(resolved.softCap->value));
    else
      paged.removeSoftCapAttr();
    if (hasWindow(resolved))
      paged.setWindowAttr(
          builder.getI64IntegerAttr(resolved.windowLeft->value));
    else
      paged.removeWindowAttr();
  }
  if (op->getAttrDictionary() != before)
    ++numApplied;
}

/// f32 [query heads], in front of an attention.
static Value perHeadConstant(Operation *op, ArrayRef<float> values) {
  OpBuilder builder(op);
  auto type = RankedTensorType::get({static_cast<int64_t>(values.size())},
                                    builder.getF32Type());
  return arith::ConstantOp::create(builder, op->getLoc(),
                                   DenseElementsAttr::get(type, values));
}

/// Sinks are weights of the layer: `<module>.sinks` or
/// `<module>.attention_sink_bias` of the checkpoint, one for each query head.
LogicalResult
ApplyModelConfigPass::addSinks(AttentionOpInterface op,
                               const ::kvcache::ResolvedAttention &resolved,
                               const ::kvcache::Checkpoint *checkpoint) {
  if (!resolved.sinks)
    return success();
  auto paged = dyn_cast<PagedAttentionOp>(op.getOperation());
  if (!paged)
    return op.emitError() << "layer '" << resolved.layer
                          << "' has attention sinks by the model's config, "
                             "which MLA is not supported with";
  if (paged.getSinks())
    return success();
  StringRef module = resolved.layer;
  module.consume_back(".attn");
  const ::kvcache::Tensor *tensor = nullptr;
  std::string name;
  for (StringRef suffix : {".sinks", ".attention_sink_bias"}) {
    if (tensor || !checkpoint)
      break;
    name = (module + suffix).str();
    tensor = checkpoint->find(name);
  }
  int64_t heads = op.getNumQueryHeads();
  if (!tensor)
    return op.emitError() << "layer '" << resolved.layer
                          << "' has attention sinks by the model's config, but "
                             "the checkpoint has neither '"
                          << module << ".sinks' nor '" << module
                          << ".attention_sink_bias'; give the op its sinks as "
                             "an operand";
  if (tensor->numElements() != heads)
    return op.emitError() << "layer '" << resolved.layer << "': '" << name
                          << "' has " << tensor->numElements()
                          << " values; expected one for each of the " << heads
                          << " query heads";
  SmallVector<float> values;
  for (int64_t i = 0; i < heads; ++i) {
    ::kvcache::Expected<double> value = readFloatElement(*tensor, i);
    if (!value)
      return op.emitError() << "layer '" << resolved.layer << "': '" << name
                            << "': " << value.message();
    values.push_back(static_cast<float>(*value));
  }
  paged.getSinksMutable().assign(perHeadConstant(op, values));
  op.emitRemark() << "layer '" << resolved.layer << "': sinks from '" << name
                  << "'";
  return success();
}

/// Slopes of ALiBi, which the config says and a formula gives.
LogicalResult
ApplyModelConfigPass::addSlopes(AttentionOpInterface op, CacheOp cache,
                                const ::kvcache::ResolvedAttention &resolved) {
  auto paged = dyn_cast<PagedAttentionOp>(op.getOperation());
  if (!resolved.alibi || !paged)
    return success();
  int64_t heads = op.getNumQueryHeads(), all = resolved.queryHeads;
  int64_t first = tpRank * heads;
  if (heads != all && (tpSize == 1 || first + heads > all))
    return op.emitError()
           << "layer '" << resolved.layer << "' has " << heads << " of the "
           << all << " query heads, and " << resolved.alibi->from
           << " asks for ALiBi, whose slopes depend on the rank; "
           << (cache.getShards() ? "run kvcache-apply-model-config before the "
                                   "graph is split"
                                 : "give tp-size and tp-rank");
  const ::kvcache::Alibi &alibi = resolved.alibi->value;
  SmallVector<float> values;
  for (double slope : ::kvcache::alibiSlopes(alibi, all, first, heads))
    values.push_back(static_cast<float>(
        alibi.isScaled ? slope * resolved.softmaxScale.value : slope));
  paged.getAlibiSlopesMutable().assign(perHeadConstant(op, values));
  return success();
}

void ApplyModelConfigPass::runOnOperation() {
  ModuleOp module = getOperation();
  std::vector<::kvcache::AttentionRequest> requests;
  SmallVector<std::tuple<AttentionOpInterface, CacheOp, size_t>> attentions;
  llvm::StringMap<SmallVector<size_t, 1>> requestsOfLayer;
  llvm::StringMap<Operation *> layerOps;
  WalkResult walked = module.walk([&](AttentionOpInterface op) {
    CacheOp cache = getCacheDeclaration(op.getCacheHandle());
    if (!cache) {
      op.emitError() << "the cache of this attention is not known here, "
                        "because its handle comes "
                        "from outside; use kvcache.get_cache beside it";
      return WalkResult::interrupt();
    }
    ::kvcache::AttentionRequest request;
    request.layer = cache.getLayer().str();
    // The config counts the heads of all ranks. Zero is not compared: ranks may
    // share a KV head, and query heads may be split further than KV heads.
    CacheType type = cache.getCacheType();
    int64_t kvHeads = type.getNumHeads();
    int64_t shards = cache.getShards().value_or(1);
    if (tpSize > 1 || shards == 1)
      request.queryHeads = op.getNumQueryHeads() * tpSize;
    if (shards > 1)
      request.kvHeads = kvHeads * shards;
    else if (tpSize == 1 || kvHeads > 1)
      request.kvHeads = kvHeads * tpSize;
    request.headDim = type.getHeadDim();
    request.vHeadDim = type.getVHeadDim();
    request.latentDim = type.isLatent() ? type.getLatentDim() : 0;
    if (auto attr = op.getSoftmaxScaleAttr())
      request.softmaxScale = attr.getValueAsDouble();
    if (auto paged = dyn_cast<PagedAttentionOp>(op.getOperation())) {
      if (auto attr = paged.getSoftCapAttr())
        request.softCap = attr.getValueAsDouble();
      if (auto attr = paged.getWindowAttr())
        request.windowLeft = attr.getInt();
      request.hasSlopes = bool(paged.getAlibiSlopes());
    }
    // Several programs of one model have the same layers; each is asked once.
    SmallVector<size_t, 1> &known = requestsOfLayer[request.layer];
    auto *same = llvm::find_if(known, [&](size_t index) {
      return isSameRequest(requests[index], request);
    });
    size_t index = same != known.end() ? *same : requests.size();
    if (same == known.end()) {
      known.push_back(index);
      layerOps.try_emplace(request.layer, op);
      requests.push_back(std::move(request));
    }
    attentions.push_back({op, cache, index});
    return WalkResult::advance();
  });
  if (walked.wasInterrupted())
    return signalPassFailure();
  if (attentions.empty())
    return markAllAnalysesPreserved();

  auto opened = openCheckpoint(module, checkpoint);
  if (failed(opened))
    return signalPassFailure();
  ::kvcache::AttentionOptions options;
  if (softmaxScale != 0.0)
    options.softmaxScale = softmaxScale;
  if (softCap >= 0.0)
    options.softCap = softCap;
  if (window >= 0)
    options.window = window;
  ::kvcache::AttentionTable table = ::kvcache::resolveAttention(
      *opened ? (*opened)->config() : nullptr, requests, options);
  if (failed(emitDiagnostics(module, table.diagnostics, [&](StringRef layer) {
        return layerOps.lookup(layer);
      })))
    return signalPassFailure();

  bool failedAny = false;
  for (auto [op, cache, index] : attentions)
    failedAny |= failed(checkResolved(op, cache, table.layers[index])) ||
                 failed(addSinks(op, table.layers[index],
                                 *opened ? &**opened : nullptr)) ||
                 failed(addSlopes(op, cache, table.layers[index]));
  if (failedAny)
    return signalPassFailure();
  for (auto [op, cache, index] : attentions)
    apply(op, table.layers[index]);
}
