//===- DeclareCaches.cpp - Symbols of the caches that a graph uses --------===//

#include "Importer.h"
#include "kvcache/Checkpoint/ScaleTable.h"
#include "llvm/ADT/StringExtras.h"
#include "llvm/ADT/StringSet.h"

using namespace mlir;
using namespace mlir::kvcache;

/// `name` without what would need quotes in assembly, and unique in `taken`.
static std::string makeSymbolName(StringRef name, llvm::StringSet<> &taken) {
  std::string base;
  for (char c : name)
    base += llvm::isAlnum(c) || c == '_' || c == '.' || c == '$' ? c : '_';
  if (!llvm::isAlpha(base.front()) && base.front() != '_')
    base.insert(0, "_");
  std::string unique = base;
  for (unsigned i = 0;
       taken.contains(unique) || taken.contains(unique + ".k") ||
       taken.contains(unique + ".v") || taken.contains(unique + ".q") ||
       taken.contains(unique + ".o");
       ++i)
    unique = base + "_" + std::to_string(i);
  taken.insert(unique);
  return unique;
}

LogicalResult Importer::declareCaches() {
  llvm::StringSet<> taken;
  CacheGroupOp group;
  Operation *lastDeclaration = nullptr;
  for (Operation &op : *module.getBody()) {
    if (auto name =
            op.getAttrOfType<StringAttr>(SymbolTable::getSymbolAttrName()))
      taken.insert(name.getValue());
    if (isa<CacheGroupOp, ScaleBufferOp, CacheOp>(op))
      lastDeclaration = &op;
    if (auto found = dyn_cast<CacheGroupOp>(op))
      group = group ? group : found;
  }
  OpBuilder builder(module.getContext());
  if (lastDeclaration)
    builder.setInsertionPointAfter(lastDeclaration);
  else
    builder.setInsertionPointToStart(module.getBody());

  llvm::DenseMap<int64_t, unsigned> indexCount;
  for (auto &[name, layer] : layers)
    if (!layer.updates.empty() || !layer.attentions.empty())
      ++indexCount[::kvcache::layerIndex(
          std::string_view(name.data(), name.size()))];

  // The scales of FP8 queries and outputs.
  auto declareOthers = [&](Layer &layer) {
    auto declare = [&](StringRef suffix,
                       function_ref<bool(const ImportedCall &)> isUsed) {
      std::string name = (layer.cache.getSymName() + suffix).str();
      if (llvm::none_of(layer.attentions,
                        [&](ImportedCall *call) { return isUsed(*call); }) ||
          taken.contains(name))
        return;
      OpBuilder::InsertionGuard guard(builder);
      builder.setInsertionPoint(layer.cache);
      ScaleBufferOp::create(builder, layer.cache.getLoc(),
                            builder.getStringAttr(name),
                            ScaleAttr::get(module.getContext()));
      taken.insert(name);
    };
    declare(".q", [](const ImportedCall &call) {
      return call.quantization.has_value();
    });
    declare(".o",
            [](const ImportedCall &call) { return bool(call.outputScale); });
  };

  for (auto &[name, layer] : layers) {
    if (layer.cache)
      declareOthers(layer);
    if (layer.cache || (layer.updates.empty() && layer.attentions.empty()))
      continue;
    if (!group) {
      auto capacity = [&](int64_t value) {
        return value ? builder.getI64IntegerAttr(value) : IntegerAttr();
      };
      group = CacheGroupOp::create(
          builder, module.getLoc(),
          builder.getStringAttr(makeSymbolName("full", taken)),
          builder.getI64IntegerAttr(threadedPageSize ? threadedPageSize
                                                     : settings.pageSize),
          capacity(settings.maxTokens), capacity(settings.maxSequences),
          capacity(settings.maxPagesPerSequence), capacity(settings.numPages));
    }
    int64_t index =
        ::kvcache::layerIndex(std::string_view(name.data(), name.size()));
    bool hasOwnIndex = index >= 0 && indexCount[index] == 1;
    std::string symbol = makeSymbolName(
        hasOwnIndex ? "layer" + std::to_string(index) : name.str(), taken);
    Location loc = (layer.updates.empty() ? layer.attentions : layer.updates)
                       .front()
                       ->loc();
    auto declareScale = [&](StringRef role) {
      std::string scale = symbol + role.str();
      taken.insert(scale);
      ScaleBufferOp::create(builder, loc, builder.getStringAttr(scale),
                            ScaleAttr::get(module.getContext()));
      return FlatSymbolRefAttr::get(builder.getStringAttr(scale));
    };
    // A latent row has one scale, and one layout.
    bool isLatent = layer.type.isLatent();
    FlatSymbolRefAttr k = declareScale(".k");
    FlatSymbolRefAttr v = isLatent ? k : declareScale(".v");
    layer.cache = CacheOp::create(
        builder, loc, builder.getStringAttr(symbol),
        builder.getStringAttr(name),
        FlatSymbolRefAttr::get(group.getSymNameAttr()),
        TypeAttr::get(layer.type), k, v,
        LayoutAttr::get(module.getContext(),
                        isLatent ? Layout::NHD : settings.layout),
        layer.dtypeWord.empty() ? StringAttr()
                                : builder.getStringAttr(layer.dtypeWord),
        isLatent || settings.strides.empty()
            ? DenseI64ArrayAttr()
            : builder.getDenseI64ArrayAttr(settings.strides));
    declareOthers(layer);
    ++numCaches;
  }
  return success();
}
