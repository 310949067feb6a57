//===- SelectAttention.cpp - Launches of attention ------------------------===//

#include "KernelSelector.h"
#include "llvm/Support/FormatVariadic.h"
#include <cmath>

using namespace mlir;
using namespace mlir::kvcache;

/// Rows of each sequence from which the prefill kernel is chosen.
static constexpr int64_t kPrefillRows = 16;

void KernelSelector::explainSplits(InFlightDiagnostic &remark,
                                   const geometry::SplitChoice &split,
                                   int64_t ctas, int fit, int64_t keys,
                                   int64_t perIteration) const {
  int processors = geometry::machineOf(arch).multiprocessors;
  int64_t all = ctas * split.numSplits,
          resident = std::max<int64_t>(1, int64_t(fit) * processors);
  int64_t waves = llvm::divideCeil(all, resident);
  int64_t share = llvm::divideCeil(keys, split.numSplits);
  remark << ", " << split.numSplits
         << (split.numSplits == 1 ? " split" : " splits") << tunedMark("splits")
         << " of at least " << split.splitTokens << " tokens (" << all
         << (all == 1 ? " CTA" : " CTAs") << " in " << waves
         << (waves == 1 ? " wave" : " waves") << " of " << resident
         << ", each of up to " << llvm::divideCeil(share, perIteration)
         << " iterations and a fixed cost of "
         << llvm::formatv("{0:F1}", geometry::fixedIterations).str() << ")";
}

/// One f32 launch constant from a product in double precision.
static FailureOr<float> fold(Operation *op, double product, StringRef formula) {
  float folded = static_cast<float>(product);
  if (!std::isnormal(folded))
    return op->emitError()
           << formula << " = " << product
           << " is not a normal f32; the scales cannot be right";
  return folded;
}

static LogicalResult checkSoftmaxScale(AttentionOpInterface op,
                                       KernelSelector::Cache &cache) {
  if (op.getSoftmaxScaleAttr())
    return success();
  return op->emitError()
         << "no kernel selected: the softmax scale of layer '"
         << cache.op.getLayer()
         << "' is not known; run 'kvcache-apply-model-config' with a "
            "checkpoint or with softmax-scale=F";
}

Value KernelSelector::workspace(ProgramOp program, const Twine &suffix,
                                int64_t bytes, Type element) {
  Builder builder(program);
  std::string name = ("workspace." + suffix).str();
  Value &known = workspaces[{program, name}];
  if (known)
    return known;
  auto type =
      MemRefType::get(bytes * 8 / element.getIntOrFloatBitWidth(), element);
  unsigned index = program.getNumArguments();
  auto attributes = builder.getDictionaryAttr(
      {builder.getNamedAttr(kBufferName, builder.getStringAttr(name)),
       builder.getNamedAttr(
           kBufferRole,
           BufferRoleAttr::get(module.getContext(), BufferRole::Workspace))});
  (void)program.insertArgument(index, type, attributes, program.getLoc());
  return known = program.getArgument(index);
}

void KernelSelector::addWorkspaces(ProgramOp program, LaunchBuilder &launch,
                                   StringRef name, int gridX, int gridY,
                                   int columns, int dim, int splits) {
  if (splits == 1)
    return;
  launch.buffers.push_back(
      workspace(program, name + ".partials",
                geometry::partialsBytes(gridX, gridY, columns, dim, splits),
                launch.builder.getF32Type()));
  launch.buffers.push_back(
      workspace(program, name + ".counters",
                geometry::countersBytes(gridX, gridY, splits),
                launch.builder.getI32Type()));
}

FailureOr<int> KernelSelector::chooseMath(PagedAttentionOp op, Cache &cache,
                                          bool prefills) {
  if (numerics != geometry::MathFP8)
    return numerics;
  // fp8-math for a whole graph leaves layers that are not quantized as they
  // are; a chip that has no such products is no place for it.
  const char *why = geometry::fp8MathProblem(arch, cache.type);
  if (why && geometry::cacheBytes(cache.type) == 1)
    return op.emitError()
           << "no fp8-math on " << target << " (layer '" << cache.op.getLayer()
           << "'): " << why
           << "; use math=f16, which takes FP8 caches and FP8 queries, too";
  if (!why && prefills)
    why = "the prefill kernel, chosen because max-tokens is at least 16 "
          "times max-sequences, has no fp8-math";
  if (!why && cache.tokenScales)
    why = "probabilities that carry scales of tokens do not fit codes";
  if (!why)
    return numerics;
  op.emitWarning() << "layer '" << cache.op.getLayer()
                   << "' takes f16-math: " << why;
  return static_cast<int>(geometry::MathF16);
}

FailureOr<KernelSelector::Factors>
KernelSelector::foldFactors(AttentionOpInterface op, Cache &cache) {
  double scale = op.getSoftmaxScaleAttr().getValueAsDouble();
  double log2e = std::log2(std::exp(1.0));
  auto paged = dyn_cast<PagedAttentionOp>(op.getOperation());
  FloatAttr capAttr = paged ? paged.getSoftCapAttr() : FloatAttr();
  double cap = capAttr ? capAttr.getValueAsDouble() : 0;
  FailureOr<double> q = otherScale(op, cache.op, op.getQScaleAttr(), "q");
  FailureOr<double> o = otherScale(op, cache.op, op.getOScaleAttr(), "o");
  if (failed(q) || failed(o))
    return failure();
  // A latent row is K and V at once, and may have no scale of the layer.
  const bool isScaled = paged || cache.type < geometry::CacheF16;
  StringRef value = paged ? "v_scale" : latentScale(cache);
  Factors factors;
  factors.scoreFormula = (Twine(capAttr ? "2 * " : "") + "softmax_scale" +
                          (op.getQScaleAttr() ? " * q_scale" : "") +
                          (isScaled ? " * k_scale" : "") + " * log2(e)" +
                          (capAttr ? " / soft_cap" : ""))
                             .str();
  factors.outputFormula = value.str();
  if (op.getOScaleAttr())
    factors.outputFormula =
        (Twine(isScaled ? value : StringRef("1")) + " / o_scale").str();
  for (float k : cache.k) {
    FailureOr<float> factor = fold(op,
                                   (capAttr ? 2 * scale / cap : scale) * *q *
                                       static_cast<double>(k) * log2e,
                                   factors.scoreFormula);
    if (failed(factor))
      return failure();
    factors.scores.push_back(*factor);
  }
  for (float v : cache.v) {
    FailureOr<float> factor =
        fold(op, static_cast<double>(v) / *o, factors.outputFormula);
    if (failed(factor))
      return failure();
    factors.outputs.push_back(*factor);
  }
  factors.softCap = 0;
  if (capAttr) {
    FailureOr<float> folded = fold(op, cap * log2e, "soft_cap * log2(e)");
    if (failed(folded))
      return failure();
    factors.softCap = *folded;
  }
  return factors;
}

LogicalResult KernelSelector::select(ProgramOp program, PagedAttentionOp op) {
  FailureOr<Cache> cache = describe(op);
  if (failed(cache) || failed(checkTokens(op, op.getQuery(), *cache)))
    return failure();
  if (failed(checkSoftmaxScale(op, *cache)))
    return failure();
  auto queryType = cast<MemRefType>(op.getQuery().getType());
  std::optional<int> query = activationType(queryType.getElementType());
  Type outType = cast<MemRefType>(op.getOut().getType()).getElementType();
  std::optional<int> out = activationType(outType);
  if (!query || !out)
    return op.emitError()
           << "no attention kernel for queries of "
           << queryType.getElementType() << " and an output of " << outType
           << "; f16, bf16, f32, f8E4M3FN and f8E5M2 are supported for both";
  CacheType type = cache->op.getCacheType();
  int heads = queryType.getDimSize(1), kvHeads = type.getNumHeads(),
      dim = type.getHeadDim(), vDim = type.getVHeadDim();
  int group = heads / kvHeads, page = cache->group.getPageSize();
  int elementBytes = geometry::cacheBytes(cache->type);
  if (group > geometry::maxGroup)
    return op.emitError() << "no attention kernel for " << group
                          << " query heads on one KV head; up to "
                          << geometry::maxGroup << " are supported";
  if (!geometry::headDimIsLegal(dim) || !geometry::headDimIsLegal(vDim))
    return op.emitError() << "no attention kernel for head dim "
                          << (geometry::headDimIsLegal(dim) ? vDim : dim)
                          << (dim == vDim                     ? ""
                              : geometry::headDimIsLegal(dim) ? " of values"
                                                              : " of keys")
                          << " (layer '" << cache->op.getLayer()
                          << "'); 64, 80, 96, 112, 128, 192 and 256 are "
                             "supported";

  // With room for many rows of each sequence, tiles of K and V serve all rows
  // of a CTA. They are converted without scales of tokens, and with strides
  // that are known.
  const bool tokenScales = cache->tokenScales != geometry::NoTokenScales;
  int warps = !tokenScales && !runtimeStrides &&
                      cache->maxTokens >= kPrefillRows * cache->maxSequences
                  ? geometry::prefillWarps(arch, *query, cache->type, heads,
                                           kvHeads, dim, vDim, page)
                  : 0;
  // Rows of a sequence that share the loads of K and V, and the tuning.
  int rows = warps ? geometry::prefillRows(group, vDim, warps)
                   : tunedOr("rows",
                             geometry::chooseRows(group, vDim, cache->maxTokens,
                                                  cache->maxSequences));
  if (rows > geometry::maxRowsPerCta && !warps)
    return op.emitError() << "tune: rows=" << rows << ": a CTA takes 1 to "
                          << geometry::maxRowsPerCta << " query rows";
  FailureOr<int> math = chooseMath(op, *cache, warps != 0);
  if (failed(math))
    return failure();
  int gridY = geometry::rowBlocks(cache->maxTokens, cache->maxSequences, rows);
  if (gridY > geometry::maxRows)
    return op.emitError() << "max-tokens=" << cache->maxTokens
                          << " exceeds the " << geometry::maxRows
                          << " rows that one grid can have";
  int tuningRows = warps ? 1 : rows;
  int columns = geometry::columnsPerCta(group, tuningRows, vDim);
  int gridX = geometry::attentionGridX(heads, kvHeads, tuningRows, vDim);
  geometry::AttentionTuning tuning = geometry::attentionDefaults(
      arch, dim, vDim, elementBytes, columns, *query, page, *math, tokenScales);
  if (!warps) {
    tuning.tile = tunedOr("tile", tuning.tile);
    tuning.stages = tunedOr("stages", tuning.stages);
    tuning.unroll = tunedOr("unroll", tuning.unroll);
  }
  int shared = geometry::dynamicSharedBytes(dim, vDim, elementBytes, columns,
                                            *query, tuning.tile, tuning.stages,
                                            *math, tokenScales);
  tuning.minCtasPerSM =
      std::clamp(geometry::ctasPerSM(arch, shared), 1, tuning.minCtasPerSM);
  // What a row can see at most, in whole tiles.
  constexpr int64_t endless = 1 << 30;
  int64_t keys = cache->maxPages * page;
  int64_t window = 0;
  if (op.getWindow()) {
    window = std::min<int64_t>(*op.getWindow(), endless);
    keys = std::min<int64_t>(keys, window + rows + tuning.tile);
  }
  int prefillColumns = warps * geometry::prefillColumns(group, vDim);
  int prefillBytes = geometry::prefillSharedBytes(
      dim, vDim, geometry::prefillColumns(group, vDim), *query, warps);
  geometry::SplitChoice split =
      warps ? geometry::choosePrefillSplits(arch, prefillBytes, prefillColumns,
                                            warps, gridX, gridY, keys)
            : geometry::chooseSplits(arch, shared, page, tuning.tile, gridX,
                                     gridY, keys);
  if (!warps)
    split.numSplits = tunedOr("splits", split.numSplits);
  // Prefill looks up the page of each token, and may split where it likes.
  const char *problem = geometry::attentionProblem(
      arch, *query, cache->type, heads, kvHeads, dim, vDim, page, tuningRows,
      tuning.tile, tuning.stages, tuning.unroll,
      warps ? geometry::splitGranule(tuning.tile, page) : split.splitTokens,
      split.numSplits, op.getWindow().has_value(), *math, tokenScales);
  for (ArrayRef<int64_t> strides : {cache->strides, cache->vStrides})
    if (!problem &&
        !geometry::attentionStridesAreLegal(strides[0], strides[1], strides[2],
                                            cache->minCopyWidth()))
      problem = cache->minCopyWidth() == 4
                    ? "rows that end in their scale need strides of multiples "
                      "of 4 bytes"
                    : "pages need strides of multiples of 16 bytes";
  if (problem)
    return op.emitError() << "no attention kernel for queries of "
                          << queryType.getElementType() << ", " << heads << "/"
                          << kvHeads << " heads of " << headDimText(type)
                          << " and a cache of " << type.getElementType()
                          << " in pages of " << page << " (layer '"
                          << cache->op.getLayer() << "'): " << problem;

  FailureOr<Factors> factors = foldFactors(op, *cache);
  if (failed(factors))
    return failure();
  bool perHead = factors->scores.size() > 1;

  OpBuilder builder(op);
  LaunchBuilder launch(builder);
  launch.buffers = {op.getQuery(),
                    cache->view.getKPages(),
                    cache->view.getVPages(),
                    cache->view.getPageTable(),
                    cache->view.getLengths(),
                    cache->view.getQueryStart(),
                    op.getOut()};
  if (op.getLse())
    launch.buffers.push_back(op.getLse());
  auto addFactors = [&](ArrayRef<float> values, StringRef folded,
                        StringRef scale) {
    std::string perHead = folded.str();
    perHead.insert(perHead.find(scale) + scale.size(), "[head]");
    addScales(launch, values, folded, perHead);
  };
  addFactors(factors->scores, factors->scoreFormula, "k_scale");
  addFactors(factors->outputs, factors->outputFormula, "v_scale");
  launch.f32(factors->softCap,
             op.getSoftCap() ? "soft_cap * log2(e)" : "no soft_cap");
  launch.i32(cache->maxTokens, "max_tokens");
  launch.i32(cache->maxSequences, "max_sequences");
  launch.i32(cache->maxPages, "max_pages_per_sequence");
  launch.i32(window, op.getWindow() ? "window" : "no window");
  launch.structural(arch);
  launch.structural(*query);
  launch.structural(*out);
  launch.structural(cache->type);
  launch.structural(heads);
  launch.structural(kvHeads);
  launch.structural(dim);
  launch.structural(page);
  launch.strides(cache->strides, cache->vStrides, runtimeStrides);
  std::string readable =
      (Twine(activationName(*query)) + "_" + cacheName(cache->type) +
       (*out != *query ? Twine("_to_") + activationName(*out) : Twine()) +
       "_h" + Twine(heads) + "x" + Twine(kvHeads) + "_d" + headDimText(type) +
       "_p" + Twine(page) + (op.getWindow() ? "_window" : "") +
       (op.getSoftCap() ? "_cap" : "") + (op.getSinks() ? "_sinks" : "") +
       (op.getAlibiSlopes() ? "_alibi" : "") +
       (cache->tokenScales == geometry::InlineTokenScales ? "_inlinescales"
        : tokenScales                                     ? "_tokenscales"
                                                          : "") +
       (perHead ? "_perhead" : "") + (runtimeStrides ? "_strided" : "") +
       (*math == geometry::MathFP8 ? "_fp8math" : ""))
          .str();
  auto addFeatures = [&] {
    for (bool feature :
         {op.getWindow().has_value(), op.getSoftCap().has_value(),
          bool(op.getSinks()), bool(op.getAlibiSlopes())})
      launch.structural(feature);
  };
  auto addPerHead = [&] {
    for (Value values : {op.getSinks(), op.getAlibiSlopes()})
      if (values)
        launch.buffers.push_back(values);
  };
  if (warps) {
    addFeatures();
    launch.structural(split.splitTokens);
    launch.structural(split.numSplits);
    launch.structural(op.getLse() ? 1 : 0);
    launch.structural(warps);
    addVHeadDim(launch, type);
    std::string name = launch.name("prefill_" + readable);
    addWorkspaces(program, launch, name, gridX, gridY, prefillColumns, vDim,
                  split.numSplits);
    addPerHead();
    // The registers hold 8 warps on a multiprocessor.
    int fit = std::min(geometry::ctasPerSM(arch, prefillBytes), 8 / warps);
    InFlightDiagnostic remark =
        op.emitRemark() << "layer '" << cache->op.getLayer() << "': " << name
                        << ", f16-math, because max-tokens is at least "
                        << kPrefillRows << " times max-sequences: tiles of "
                        << geometry::prefillTile << " tokens for " << rows
                        << " rows of a sequence in a CTA of " << warps
                        << " warps";
    explainSplits(remark, split, int64_t(gridX) * gridY, fit, keys,
                  geometry::prefillTile);
    remark << ", grid " << gridX << " x " << gridY << " x " << split.numSplits
           << ", " << prefillBytes << " bytes of shared memory";
    replace(op, launch, name, "kvcache_prefill",
            geometry::prefillLaunchGrid(cache->maxTokens, cache->maxSequences,
                                        heads, kvHeads, vDim, warps,
                                        split.numSplits),
            prefillBytes, fit, cache->op.getSymNameAttr(), 32 * warps);
    return success();
  }
  launch.structural(tuning.tile);
  launch.structural(tuning.stages);
  launch.structural(tuning.unroll);
  launch.structural(rows);
  addFeatures();
  launch.structural(cache->tokenScales);
  launch.structural(split.splitTokens);
  launch.structural(split.numSplits);
  launch.structural(op.getLse() ? 1 : 0);
  launch.structural(*math);
  addVHeadDim(launch, type);
  std::string name = launch.name("paged_attention_" + readable);
  addWorkspaces(program, launch, name, gridX, gridY, columns, vDim,
                split.numSplits);
  addPerHead();
  if (cache->tokenScales == geometry::SideTokenScales)
    launch.buffers.append({cache->view.getKScales(), cache->view.getVScales()});
  InFlightDiagnostic remark =
      op.emitRemark() << "layer '" << cache->op.getLayer() << "': " << name
                      << ", " << (*math == geometry::MathFP8 ? "fp8" : "f16")
                      << "-math, tiles of " << tuning.tile << " tokens"
                      << tunedMark("tile");
  if (!tuned.count("tile"))
    remark << " (" << tuning.why << ")";
  remark << " in " << tuning.stages << " stages" << tunedMark("stages") << " ("
         << geometry::bytesInFlight(arch, dim, vDim, elementBytes, columns,
                                    *query, tuning.tile, tuning.stages, *math,
                                    tokenScales) /
                1024
         << " KiB in flight on a multiprocessor)";
  if (tuning.unroll > 1)
    remark << ", unrolled by " << tuning.unroll << tunedMark("unroll");
  if (cache->copyWidth() != 16)
    remark << ", " << cache->narrowCopiesText();
  if (rows > 1)
    remark << ", " << rows << " rows of a sequence in a CTA"
           << tunedMark("rows");
  if (geometry::queriesInShared(dim, columns, *query, *math))
    remark << ", queries in shared memory";
  if (gridX > kvHeads)
    remark << ", " << gridX / kvHeads << " blocks of query heads";
  explainSplits(remark, split, int64_t(gridX) * gridY,
                geometry::ctasPerSM(arch, shared), keys,
                geometry::warpsPerCta * tuning.tile);
  remark << ", grid " << gridX << " x " << gridY << " x " << split.numSplits
         << ", " << shared << " bytes of shared memory";
  replace(op, launch, name,
          runtimeStrides ? "kvcache_paged_attention_strided"
                         : "kvcache_paged_attention",
          geometry::attentionLaunchGrid(cache->maxTokens, cache->maxSequences,
                                        heads, kvHeads, vDim, rows,
                                        split.numSplits),
          shared, tuning.minCtasPerSM, cache->op.getSymNameAttr());
  return success();
}

LogicalResult KernelSelector::select(ProgramOp program, MLAAttentionOp op) {
  FailureOr<Cache> cache = describe(op);
  if (failed(cache) || failed(checkTokens(op, op.getQuery(), *cache)) ||
      failed(checkLatent(op, *cache)) || failed(checkSoftmaxScale(op, *cache)))
    return failure();
  auto queryType = cast<MemRefType>(op.getQuery().getType());
  Type element = queryType.getElementType();
  CacheType type = cache->op.getCacheType();
  int latent = type.getLatentDim(), rope = type.getRopeDim();
  int heads = queryType.getDimSize(1), page = cache->group.getPageSize();
  Type outElement = cast<MemRefType>(op.getOut().getType()).getElementType();
  int query = *activationType(element); // the op takes no other
  int out = *activationType(outElement);
  // Rows of a sequence that share the loads of a tile, and the tuning.
  int rows =
      tunedOr("rows", geometry::chooseMlaRows(heads, cache->maxTokens,
                                              cache->maxSequences, query));
  if (rows > geometry::maxRowsPerCta || tuned.count("unroll"))
    return op.emitError() << "tune: the kernels of MLA take 1 to "
                          << geometry::maxRowsPerCta
                          << " rows in a CTA and have no unroll";
  if (numerics == geometry::MathFP8)
    op.emitWarning() << "layer '" << cache->op.getLayer()
                     << "' takes f16-math: the kernels of MLA have no "
                        "fp8-math";
  int gridY = geometry::rowBlocks(cache->maxTokens, cache->maxSequences, rows);
  if (gridY > geometry::maxRows)
    return op.emitError() << "max-tokens=" << cache->maxTokens
                          << " exceeds the " << geometry::maxRows
                          << " rows that one grid can have";
  int columns = geometry::mlaColumns(heads, rows, query);
  int gridX =
      geometry::ceilDiv(heads, geometry::mlaHeadsPerCta(heads, rows, query));
  geometry::MlaTuning tuning =
      geometry::mlaDefaults(arch, cache->type, latent, rope, columns);
  tuning.tile = tunedOr("tile", tuning.tile);
  tuning.stages = tunedOr("stages", tuning.stages);
  int shared = geometry::mlaSharedBytes(arch, cache->type, latent, rope,
                                        columns, tuning.tile, tuning.stages);
  geometry::SplitChoice split = geometry::chooseMlaSplits(
      arch, shared, columns, tuning.tile, gridX, gridY, cache->maxPages * page);
  split.numSplits = tunedOr("splits", split.numSplits);
  const char *problem = geometry::mlaProblem(
      arch, query, cache->type, heads, latent, rope, rows, tuning.tile,
      tuning.stages, split.splitTokens, split.numSplits);
  if (problem)
    return op.emitError() << "no attention kernel for queries of " << element
                          << ", " << heads << " heads over " << type
                          << " in pages of " << page << " (layer '"
                          << cache->op.getLayer() << "'): " << problem;
  FailureOr<Factors> factors = foldFactors(op, *cache);
  if (failed(factors))
    return failure();

  OpBuilder builder(op);
  LaunchBuilder launch(builder);
  launch.buffers = {op.getQuery(),
                    cache->view.getKPages(),
                    cache->view.getPageTable(),
                    cache->view.getLengths(),
                    cache->view.getQueryStart(),
                    op.getOut()};
  if (op.getLse())
    launch.buffers.push_back(op.getLse());
  launch.f32(factors->scores.front(), factors->scoreFormula);
  launch.f32(factors->outputs.front(), factors->outputFormula);
  launch.i32(cache->maxTokens, "max_tokens");
  launch.i32(cache->maxSequences, "max_sequences");
  launch.i32(cache->maxPages, "max_pages_per_sequence");
  launch.structural(arch);
  launch.structural(query);
  launch.structural(out);
  launch.structural(cache->type);
  launch.structural(heads);
  addLatent(launch, *cache);
  launch.structural(tuning.tile);
  launch.structural(tuning.stages);
  launch.structural(rows);
  launch.structural(split.splitTokens);
  launch.structural(split.numSplits);
  launch.structural(op.getLse() ? 1 : 0);
  std::string name =
      launch.name(Twine("mla_attention_") + activationName(query) + "_" +
                  cacheName(cache->type) +
                  (out != query ? Twine("_to_") + activationName(out) : "") +
                  "_h" + Twine(heads) + "_d" + Twine(latent) + "x" +
                  Twine(rope) + "_p" + Twine(page));
  addWorkspaces(program, launch, name, gridX, gridY, columns, latent,
                split.numSplits);
  InFlightDiagnostic remark =
      op.emitRemark() << "layer '" << cache->op.getLayer() << "': " << name
                      << ", f16-math, tiles of " << tuning.tile
                      << tunedMark("tile")
                      << " latent rows, which are K and V at once, in "
                      << tuning.stages << " stages" << tunedMark("stages");
  if (rows > 1)
    remark << ", " << rows << " rows of a sequence in a CTA"
           << tunedMark("rows");
  if (gridX > 1)
    remark << ", " << gridX << " blocks of query heads";
  explainSplits(remark, split, int64_t(gridX) * gridY,
                geometry::ctasPerSM(arch, shared), cache->maxPages * page,
                tuning.tile);
  remark << ", grid " << gridX << " x " << gridY << " x " << split.numSplits
         << ", " << shared << " bytes of shared memory";
  replace(op, launch, name, "kvcache_mla_attention",
          {gridX, gridY, split.numSplits}, shared, 1,
          cache->op.getSymNameAttr(), geometry::mlaThreads);
  return success();
}
