//===- KVCacheAttributes.cpp - Scale attribute and cache type -------------===//

#include "kvcache/IR/KVCache.h"

using namespace mlir;
using namespace mlir::kvcache;

//===----------------------------------------------------------------------===//
// ScaleAttr
//===----------------------------------------------------------------------===//

static bool namesKey(ScaleState state, Provenance provenance) {
  if (state == ScaleState::Checkpoint)
    return true;
  return state == ScaleState::Static && provenance != Provenance::Default &&
         provenance != Provenance::Override;
}

ScaleAttr ScaleAttr::getCheckpoint(MLIRContext *context, StringRef key) {
  return get(context, ScaleState::Checkpoint,
             DenseF32ArrayAttr::get(context, {}), Provenance::Checkpoint,
             StringAttr::get(context, key));
}

ScaleAttr ScaleAttr::getStatic(MLIRContext *context, ArrayRef<float> values,
                               Provenance provenance, StringRef key) {
  return get(context, ScaleState::Static,
             DenseF32ArrayAttr::get(context, values), provenance,
             StringAttr::get(context, key));
}

LogicalResult ScaleAttr::verify(function_ref<InFlightDiagnostic()> emitError,
                                ScaleState state, DenseF32ArrayAttr values,
                                Provenance provenance, StringAttr key) {
  bool hasValues = values && !values.empty();
  if ((state == ScaleState::Static) != hasValues) // (C1)
    return emitError() << "a scale in state '" << stringifyScaleState(state)
                       << "' has " << (hasValues ? values.size() : 0)
                       << " values; expected "
                       << (state == ScaleState::Static ? "at least one"
                                                       : "none");
  if (hasValues)
    for (float value : values.asArrayRef()) { // (C2)
      APFloat exact(value);
      if (exact.isNegative() || !exact.isNormal())
        return emitError()
               << "a scale must be positive, finite and normal in f32, but is "
               << value;
    }
  bool hasKey = key && !key.empty();
  if (namesKey(state, provenance) != hasKey) // (C3)
    return emitError() << "a scale in state '" << stringifyScaleState(state)
                       << "' with provenance '"
                       << stringifyProvenance(provenance)
                       << (hasKey
                               ? "' names no key, but has \"" + key.str() + "\""
                               : std::string("' needs the key it comes from"));
  return success();
}

void ScaleAttr::printBody(AsmPrinter &printer) const {
  if (getState() == ScaleState::Dynamic) {
    printer << "dynamic";
    return;
  }
  if (getState() == ScaleState::Checkpoint) {
    printer << "checkpoint " << getKey();
    return;
  }
  ArrayRef<float> values = getValues().asArrayRef();
  if (values.size() > 1)
    printer << '[';
  llvm::interleaveComma(values, printer.getStream(), [&](float value) {
    printer.printFloat(APFloat(value));
  });
  if (values.size() > 1)
    printer << ']';
  printer << " from " << stringifyProvenance(getProvenance());
  if (!getKey().empty())
    printer << ' ' << getKey();
}

static ParseResult parseValue(AsmParser &parser,
                              SmallVectorImpl<float> &values) {
  APFloat value(0.0f);
  if (parser.parseFloat(APFloat::IEEEsingle(), value))
    return failure();
  values.push_back(value.convertToFloat());
  return success();
}

FailureOr<ScaleAttr> ScaleAttr::parseBody(AsmParser &parser) {
  MLIRContext *context = parser.getContext();
  SMLoc loc = parser.getCurrentLocation();
  auto emitError = [&] { return parser.emitError(loc); };
  ScaleState state = ScaleState::Static;
  Provenance provenance = Provenance::Default;
  SmallVector<float> values;
  std::string key;
  if (succeeded(parser.parseOptionalKeyword("dynamic"))) {
    state = ScaleState::Dynamic;
  } else if (succeeded(parser.parseOptionalKeyword("checkpoint"))) {
    state = ScaleState::Checkpoint;
    provenance = Provenance::Checkpoint;
    if (parser.parseString(&key))
      return failure();
  } else {
    if (succeeded(parser.parseOptionalLSquare())) {
      // An empty list is for the verifier to refuse.
      if (failed(parser.parseOptionalRSquare()) &&
          (parser.parseCommaSeparatedList(
               [&] { return parseValue(parser, values); }) ||
           parser.parseRSquare()))
        return failure();
    } else if (parseValue(parser, values)) {
      return failure();
    }
    StringRef keyword;
    SMLoc keywordLoc;
    if (parser.parseKeyword("from") || parser.getCurrentLocation(&keywordLoc) ||
        parser.parseKeyword(&keyword))
      return failure();
    std::optional<Provenance> parsed = symbolizeProvenance(keyword);
    if (!parsed)
      return parser.emitError(keywordLoc)
             << "expected 'checkpoint', 'default', 'duplicate', 'maximum' or "
                "'override', but found '"
             << keyword << "'";
    provenance = *parsed;
    (void)parser.parseOptionalString(&key);
  }
  ScaleAttr attr = getChecked(emitError, context, state,
                              DenseF32ArrayAttr::get(context, values),
                              provenance, StringAttr::get(context, key));
  if (!attr)
    return failure();
  return attr;
}

void ScaleAttr::print(AsmPrinter &printer) const {
  printer << '<';
  printBody(printer);
  printer << '>';
}

Attribute ScaleAttr::parse(AsmParser &parser, Type) {
  if (parser.parseLess())
    return {};
  FailureOr<ScaleAttr> attr = parseBody(parser);
  if (failed(attr) || parser.parseGreater())
    return {};
  return *attr;
}

//===----------------------------------------------------------------------===//
// CacheType
//===----------------------------------------------------------------------===//

bool CacheType::isQuantized() const {
  return isa<Float8E4M3FNType, Float8E5M2Type, Float8E4M3FNUZType>(
      getElementType());
}

static constexpr StringLiteral kTileScaled = "fp8_ds_mla";

LogicalResult CacheType::verify(function_ref<InFlightDiagnostic()> emitError,
                                int64_t numHeads, int64_t headDim,
                                Type elementType, int64_t ropeDim,
                                int64_t vHeadDim) {
  if (numHeads <= 0 || headDim <= 0) // (C1)
    return emitError() << "KV heads and head dim must be positive, but are "
                       << numHeads << " and " << headDim;
  if (ropeDim == 0 && vHeadDim <= 0) // (C1)
    return emitError() << "the head dim of values must be positive, but is "
                       << vHeadDim;
  bool isTileScaled = elementType.isInteger(8) && ropeDim != 0;
  if (!isTileScaled && !isa<Float8E4M3FNType, Float8E5M2Type,
                            Float8E4M3FNUZType, Float16Type, BFloat16Type,
                            Float32Type>(elementType)) // (C2)
    return emitError() << "a cache holds f8E4M3FN, f8E5M2, f8E4M3FNUZ, f16, "
                          "bf16 or f32 (a latent one also fp8_ds_mla), not "
                       << elementType;
  if (ropeDim == 0)
    return success();
  if (numHeads != 1 || ropeDim < 0 || ropeDim >= headDim ||
      vHeadDim != headDim - ropeDim) // (C3)
    return emitError() << "a latent cache has one KV head and positive latent "
                          "and rotary parts, but has "
                       << numHeads << " of " << headDim - ropeDim << " + "
                       << ropeDim;
  if (isTileScaled && (headDim - ropeDim) % kTileSize) // (C4)
    return emitError() << "the latent part of fp8_ds_mla rows must be a "
                          "multiple of "
                       << kTileSize << ", but is " << headDim - ropeDim;
  return success();
}

void CacheType::printShape(AsmPrinter &printer) const {
  if (isLatent())
    printer << "latent " << getLatentDim() << " + " << getRopeDim();
  else
    printer << getNumHeads() << " x " << getHeadDim();
  if (hasOwnVHeadDim())
    printer << " | " << getVHeadDim();
  printer << " x ";
  if (isTileScaled())
    printer << kTileScaled;
  else
    printer << getElementType();
}

FailureOr<CacheType> CacheType::parseShape(AsmParser &parser) {
  int64_t numHeads = 1, headDim = 0, ropeDim = 0, vHeadDim = 0;
  Type elementType;
  SMLoc loc = parser.getCurrentLocation();
  if (succeeded(parser.parseOptionalKeyword("latent"))) {
    if (parser.parseInteger(headDim) || parser.parsePlus() ||
        parser.parseInteger(ropeDim))
      return failure();
    if (ropeDim == 0)
      return parser.emitError(loc) << "a latent cache needs a rotary part";
    vHeadDim = headDim;
    headDim += ropeDim;
  } else {
    if (parser.parseInteger(numHeads) || parser.parseKeyword("x") ||
        parser.parseInteger(headDim))
      return failure();
    vHeadDim = headDim;
    if (succeeded(parser.parseOptionalVerticalBar()) &&
        parser.parseInteger(vHeadDim))
      return failure();
  }
  if (parser.parseKeyword("x"))
    return failure();
  if (succeeded(parser.parseOptionalKeyword(kTileScaled)))
    elementType = parser.getBuilder().getI8Type();
  else if (parser.parseType(elementType))
    return failure();
  CacheType type =
      getChecked([&] { return parser.emitError(loc); }, parser.getContext(),
                 numHeads, headDim, elementType, ropeDim, vHeadDim);
  if (!type)
    return failure();
  return type;
}

void CacheType::print(AsmPrinter &printer) const {
  printer << '<';
  printShape(printer);
  printer << '>';
}

Type CacheType::parse(AsmParser &parser) {
  if (parser.parseLess())
    return {};
  FailureOr<CacheType> type = parseShape(parser);
  if (failed(type) || parser.parseGreater())
    return {};
  return *type;
}

llvm::APFloat mlir::kvcache::getLargestFinite(FloatType type) {
  return llvm::APFloat::getLargest(type.getFloatSemantics());
}
