//===- ShareCaches.cpp - Layers without a cache of their own --------------===//

#include "Importer.h"
#include "kvcache/Checkpoint/ModelConfig.h"
#include "kvcache/Checkpoint/ScaleTable.h"
#include "llvm/ADT/StringSet.h"

using namespace mlir;
using namespace mlir::kvcache;

void Importer::leaveEncoders() {
  for (auto &[name, layer] : layers) {
    if (!layer.updates.empty() ||
        !::kvcache::isEncoderLayer(std::string_view(name.data(), name.size())))
      continue;
    for (ImportedCall *attention : layer.attentions)
      attention->op()->emitRemark()
          << "'" << attention->spec->name << "' is left as it is: layer '"
          << name << "' is one of an encoder, which has no KV cache";
    layer.attentions.clear();
  }
}

LogicalResult Importer::shareCaches() {
  llvm::StringSet<> written;
  for (CacheOp cache : module.getOps<CacheOp>())
    written.insert(cache.getLayer());
  SmallVector<StringRef> readers;
  for (auto &[name, layer] : layers)
    if (!layer.attentions.empty() && layer.updates.empty() &&
        !written.contains(name))
      readers.push_back(name);
  if (readers.empty() || settings.checkpoint.empty())
    return success();
  ::kvcache::Expected<std::optional<::kvcache::JsonFile>> config =
      ::kvcache::readConfig(settings.checkpoint);
  if (!config)
    return emitError(module.getLoc()) << config.message();
  if (!*config)
    return success();
  const std::string &path = (*config)->path;
  ::kvcache::Expected<::kvcache::ModelAttention> model =
      ::kvcache::readModelAttention(**config);
  if (!model)
    return success(); // kvcache-apply-model-config says why

  auto indexOf = [](StringRef name) {
    return ::kvcache::layerIndex(std::string_view(name.data(), name.size()));
  };
  for (StringRef reader : readers) {
    int64_t index = indexOf(reader);
    if (index < 0 || index >= static_cast<int64_t>(model->layers.size()))
      continue;
    int64_t ownerIndex = model->layers[index].sharesCacheWith;
    if (ownerIndex < 0)
      continue;
    auto *owner = llvm::find_if(layers, [&](auto &entry) {
      return indexOf(entry.first) == ownerIndex &&
             !entry.second.updates.empty();
    });
    SmallVector<ImportedCall *> attentions = layers[reader].attentions;
    if (owner == layers.end())
      return attentions.front()->op()->emitError()
             << "layer '" << reader << "' reads the cache of layer "
             << ownerIndex << " by " << path
             << ", but the graph has no cache update of that layer; export "
                "both layers in one graph";
    std::string ownerName = owner->first.str(), readerName = reader.str();
    // The names of layers are those of their calls.
    layers.erase(reader);
    for (ImportedCall *attention : attentions) {
      attention->reader = readerName;
      attention->layer = ownerName;
      layers[ownerName].attentions.push_back(attention);
      attention->op()->emitRemark()
          << "layer '" << readerName << "' reads the cache of layer '"
          << ownerName << "', as " << path
          << " says: it writes nothing, and that layer's scales hold";
    }
  }
  return success();
}
