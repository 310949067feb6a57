//===- KVCacheToReference.cpp - Executable definition of the cache ops ----===//

#include "ReferenceArithmetic.h"
#include "kvcache/Conversion/Passes.h"
#include "kvcache/IR/KVCache.h"
#include "mlir/Dialect/Arith/IR/Arith.h"
#include "mlir/Dialect/Bufferization/IR/Bufferization.h"
#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "mlir/Dialect/Linalg/IR/Linalg.h"
#include "mlir/Dialect/Math/IR/Math.h"
#include "mlir/Dialect/MemRef/IR/MemRef.h"
#include "mlir/Dialect/SCF/IR/SCF.h"
#include "mlir/Dialect/Tensor/IR/Tensor.h"
#include "mlir/Interfaces/FunctionInterfaces.h"

namespace mlir::kvcache {
#define GEN_PASS_DEF_CONVERTKVCACHETOREFERENCE
#include "kvcache/Conversion/Passes.h.inc"
} // namespace mlir::kvcache

using namespace mlir;
using namespace mlir::kvcache;

//===----------------------------------------------------------------------===//
// What is refused
//===----------------------------------------------------------------------===//

static LogicalResult checkScale(Operation *op, ScaleBufferOp scale) {
  if (scale.getScale().isStatic())
    return success();
  InFlightDiagnostic diag = op->emitOpError()
                            << "needs the value of scale @"
                            << scale.getSymName() << ", whose state is '"
                            << stringifyScaleState(scale.getScale().getState())
                            << "'; run 'kvcache-fold-checkpoint-scales' and "
                               "'kvcache-drop-dynamic-scales' first";
  diag.attachNote(scale.getLoc()) << "the scale is declared here";
  return diag;
}

/// A handle must come from buffers, and the scales of a quantized cache must
/// be known.
static LogicalResult checkHandle(CacheOpInterface op) {
  Value handle = op.getCacheHandle();
  if (!handle.getDefiningOp<ViewCacheOp>()) {
    InFlightDiagnostic diag =
        op->emitOpError()
        << "needs the buffers of its cache, but its handle comes from ";
    if (Operation *def = handle.getDefiningOp())
      diag << "'" << def->getName()
           << "'; run 'kvcache-caches-to-arguments' first, or use "
              "'kvcache.view_cache'";
    else
      diag << "a block argument; make the handle in this function, with "
              "'kvcache.view_cache'";
    return diag;
  }
  CacheOp cache = getCacheDeclaration(handle);
  if (!cache.usesDeclaredScales())
    return success();
  for (ScaleBufferOp scale : {cache.getKScaleOp(), cache.getVScaleOp()})
    if (failed(checkScale(op, scale)))
      return failure();
  return success();
}

static LogicalResult checkOp(Operation *op) {
  if (isa<CalculateScalesOp>(op))
    return op->emitOpError()
           << "estimates scales at run time, which nothing lowers; run "
              "'kvcache-drop-dynamic-scales' first";
  if (isa<ProgramOp, LaunchOp>(op))
    return op->emitOpError()
           << "has no reference form: programs become kernels; run "
              "'convert-kvcache-to-reference' on functions, before "
              "'kvcache-form-programs'";
  if (auto load = dyn_cast<LoadScaleOp>(op)) {
    auto scale = SymbolTable::lookupNearestSymbolFrom<ScaleBufferOp>(
        op, load.getScaleAttr());
    if (!scale.getScale().isStatic())
      return op->emitOpError()
             << "loads scale @" << scale.getSymName() << ", whose state is '"
             << stringifyScaleState(scale.getScale().getState())
             << "'; run 'kvcache-fold-checkpoint-scales' first";
    return success();
  }
  auto access = dyn_cast<CacheOpInterface>(op);
  if (access && failed(checkHandle(access)))
    return failure();
  auto attention = dyn_cast<AttentionOpInterface>(op);
  if (!attention)
    return success();
  for (ScaleBufferOp scale : {attention.getQScaleOp(), attention.getOScaleOp()})
    if (scale && failed(checkScale(op, scale)))
      return failure();
  if (!attention.getSoftmaxScaleAttr())
    return op->emitOpError()
           << "has no 'softmax_scale'; run 'kvcache-apply-model-config' with "
              "the model's config.json, or give the attribute";
  return success();
}

//===----------------------------------------------------------------------===//
// Lowering
//===----------------------------------------------------------------------===//

namespace {

/// The one scale of a cache, or one for each head.
struct ScaleValues {
  ArrayRef<float> values;
  Value perHead; ///< memref [KV heads] of f32, when there are several
};

/// What the current row of a write is rotated by: cosines and sines of a table.
struct RowRotation {
  KeyRotation rotation; ///< of buffers
  Value position;
};

class ReferenceLowering {
public:
  explicit ReferenceLowering(ModuleOp module)
      : module(module), arithmetic(module) {}

  void lower(WriteOp op);
  void lower(WriteLatentOp op);
  void lower(AttentionOpInterface op);
  void lower(QuantizeOp op);
  void lower(DequantizeOp op);
  void lower(LoadScaleOp op);
  void lower(MergeStatesOp op);
  void lower(CopyPagesOp op);

private:
  using Builder = ImplicitLocOpBuilder;

  Value index(Builder &b, int64_t value) {
    return arith::ConstantIndexOp::create(b, value);
  }
  Value real(Builder &b, double value) {
    return arith::ConstantOp::create(b, b.getF64FloatAttr(value));
  }
  Value real32(Builder &b, float value) {
    return arith::ConstantOp::create(b, b.getF32FloatAttr(value));
  }
  Value add(Builder &b, Value x, Value y) {
    return arith::AddIOp::create(b, x, y);
  }
  Value sub(Builder &b, Value x, Value y) {
    return arith::SubIOp::create(b, x, y);
  }
  Value mul(Builder &b, Value x, Value y) {
    return arith::MulFOp::create(b, x, y);
  }
  Value dim(Builder &b, Value memref, int64_t i) {
    return memref::DimOp::create(b, memref, i);
  }
  Value load(Builder &b, Value memref, ValueRange indices) {
    return memref::LoadOp::create(b, memref, indices);
  }
  Value loadIndex(Builder &b, Value memref, ValueRange indices) {
    return arith::IndexCastOp::create(b, b.getIndexType(),
                                      load(b, memref, indices));
  }
  void store(Builder &b, Value value, Value memref, ValueRange indices) {
    memref::StoreOp::create(b, value, memref, indices);
  }

  /// for (i = from; i < to; ++i) state = body(i, state)
  SmallVector<Value>
  loop(Builder &b, Value from, Value to, ValueRange init,
       function_ref<SmallVector<Value>(Builder &, Value, ValueRange)> body) {
    auto loop = scf::ForOp::create(
        b, from, to, index(b, 1), init,
        [&](OpBuilder &nested, Location loc, Value i, ValueRange state) {
          ImplicitLocOpBuilder inner(loc, nested);
          scf::YieldOp::create(inner, body(inner, i, state));
        });
    return llvm::to_vector_of<Value>(loop.getResults());
  }
  void loop(Builder &b, Value from, Value to,
            function_ref<void(Builder &, Value)> body) {
    loop(b, from, to, {}, [&](Builder &inner, Value i, ValueRange) {
      body(inner, i);
      return SmallVector<Value>();
    });
  }

  Value readBuffer(Builder &b, Value value);
  Value outputBuffer(Builder &b, Value init);
  void replaceByBuffers(Builder &b, DestinationStyleOpInterface op,
                        ArrayRef<Value> outputs);
  ScaleValues getScale(Builder &b, ScaleBufferOp scale);
  Value scaleOfHead(Builder &b, const ScaleValues &scale, Value head);
  Value roundSaturating(Builder &b, Value value, FloatType type);
  void writeElement(Builder &b, Value element, Value scale, Value pages,
                    ValueRange indices);
  void writeBytes(Builder &b, Value element, Value pages, ValueRange token,
                  Value offset);
  Value readBytes(Builder &b, FloatType type, Value pages, ValueRange token,
                  Value offset);
  void writeRows(Builder &b, CacheOpInterface op, Value rows,
                 function_ref<void(Builder &, Value, Value, Value)> writeRow);
  Value rotate(Builder &b, Value rows, ValueRange row, Value d);
  void forElements(Builder &b, Value rows, ValueRange row, int64_t width,
                   bool rotates,
                   function_ref<void(Builder &, Value, Value)> body);
  void writeTokenScaled(Builder &b, Value rows, ValueRange row, int64_t width,
                        bool rotates, Value amax, FloatType type, Value pages,
                        Value scales, ValueRange token);
  void writeTiles(Builder &b, WriteLatentOp op, Value latent, Value rope,
                  Value row, ValueRange token);
  Value readCache(Builder &b, CacheType type, Value pages, ValueRange token,
                  Value d, bool isRotary);
  Value readTokenScale(Builder &b, CacheOp cache, Value scales, Value pages,
                       ValueRange token);
  void attendRow(Builder &b, AttentionOpInterface op, Value sequence, Value row,
                 Value position);

  /// What `attendRow` needs of the op it is in.
  struct Attention {
    Value query, out, lse, sinks, slopes, accumulator;
    ScaleValues kScale, vScale;
    double softmaxScale = 0;
    std::optional<double> softCap;
    std::optional<double> outputDivisor; ///< scale of FP8 outputs
    std::optional<int64_t> window;
    int64_t valueDim = 0;
  };

  ModuleOp module;
  ReferenceArithmetic arithmetic;
  Attention attention;
  RowRotation rotation;
};

} // namespace

Value ReferenceLowering::readBuffer(Builder &b, Value value) {
  auto tensor = dyn_cast<RankedTensorType>(value.getType());
  if (!tensor)
    return value;
  return bufferization::ToBufferOp::create(
      b, MemRefType::get(tensor.getShape(), tensor.getElementType()), value,
      /*read_only=*/true);
}

/// memref [size] on the stack, in the function's entry block, so that it is one
/// also when the op is in a loop.
static Value stackBuffer(Operation *op, int64_t size, Type element) {
  auto function = op->getParentOfType<FunctionOpInterface>();
  OpBuilder entry =
      OpBuilder::atBlockBegin(&function.getFunctionBody().front());
  return memref::AllocaOp::create(entry, op->getLoc(),
                                  MemRefType::get({size}, element));
}

/// A memref output is written in place; a tensor becomes a fresh buffer with
/// its contents.
Value ReferenceLowering::outputBuffer(Builder &b, Value init) {
  if (isa<MemRefType>(init.getType()))
    return init;
  Value source = readBuffer(b, init);
  auto type = cast<MemRefType>(source.getType());
  SmallVector<Value> sizes;
  for (int64_t i = 0; i < type.getRank(); ++i)
    if (type.isDynamicDim(i))
      sizes.push_back(dim(b, source, i));
  Value buffer = memref::AllocOp::create(b, type, sizes);
  memref::CopyOp::create(b, source, buffer);
  return buffer;
}

/// Erases an op whose `outs` are now in these buffers.
void ReferenceLowering::replaceByBuffers(Builder &b,
                                         DestinationStyleOpInterface op,
                                         ArrayRef<Value> outputs) {
  SmallVector<Value> results;
  for (auto [init, buffer] : llvm::zip(op.getDpsInits(), outputs))
    if (isa<RankedTensorType>(init.getType()))
      results.push_back(bufferization::ToTensorOp::create(
          b, init.getType(), buffer,
          /*restrict=*/true, /*writable=*/true));
  op->replaceAllUsesWith(results);
  op->erase();
}

ScaleValues ReferenceLowering::getScale(Builder &b, ScaleBufferOp scale) {
  ScaleValues result{scale.getScale().getValues().asArrayRef(), {}};
  if (result.values.size() == 1)
    return result;
  auto type = MemRefType::get({static_cast<int64_t>(result.values.size())},
                              b.getF32Type());
  std::string name = ("kvcache.scale." + scale.getSymName()).str();
  if (!SymbolTable::lookupSymbolIn(module, name)) {
    auto values = DenseElementsAttr::get(
        RankedTensorType::get(type.getShape(), b.getF32Type()), result.values);
    OpBuilder top = OpBuilder::atBlockBegin(module.getBody());
    memref::GlobalOp::create(top, scale.getLoc(), name,
                             top.getStringAttr("private"), type, values,
                             /*constant=*/true, /*alignment=*/IntegerAttr());
  }
  result.perHead = memref::GetGlobalOp::create(b, type, name);
  return result;
}

/// The f32 scale of a KV head.
Value ReferenceLowering::scaleOfHead(Builder &b, const ScaleValues &scale,
                                     Value head) {
  return scale.perHead ? load(b, scale.perHead, head)
                       : real32(b, scale.values[0]);
}

/// Clamps and rounds an f64 to a code.
Value ReferenceLowering::roundSaturating(Builder &b, Value value,
                                         FloatType type) {
  double largest = getLargestFinite(type).convertToDouble();
  // maximumf and minimumf, unlike maxnumf and minnumf, keep NaN.
  Value clamped = arith::MaximumFOp::create(b, value, real(b, -largest));
  clamped = arith::MinimumFOp::create(b, clamped, real(b, largest));
  return arithmetic.round(b, clamped, type);
}

/// The value of an element as f32, which holds every 8 and 16 bit float.
static Value toF32(ImplicitLocOpBuilder &b, ReferenceArithmetic &arithmetic,
                   Value element) {
  if (element.getType().isF32())
    return element;
  if (element.getType().getIntOrFloatBitWidth() == 16)
    return arith::ExtFOp::create(b, b.getF32Type(), element);
  return arith::TruncFOp::create(b, b.getF32Type(),
                                 arithmetic.widen(b, element));
}

/// Stores `element`, divided by `scale` if there is one.
void ReferenceLowering::writeElement(Builder &b, Value element, Value scale,
                                     Value pages, ValueRange indices) {
  auto type =
      cast<FloatType>(cast<MemRefType>(pages.getType()).getElementType());
  Value code = element;
  if (scale)
    code = roundSaturating(
        b,
        arithmetic.widen(
            b, arith::DivFOp::create(b, toF32(b, arithmetic, element), scale)),
        type);
  else if (element.getType() != type)
    code = arithmetic.round(b, arithmetic.widen(b, element), type);
  store(b, code, pages, indices);
}

//===----------------------------------------------------------------------===//
// Writes
//===----------------------------------------------------------------------===//

/// Calls `writeRow(b, row, page, token)` for each row that has a slot and, if
/// keys are rotated, a position of the table; `rotation` is then that of the
/// row.
void ReferenceLowering::writeRows(
    Builder &b, CacheOpInterface op, Value rows,
    function_ref<void(Builder &, Value, Value, Value)> writeRow) {
  auto view = op.getCacheHandle().getDefiningOp<ViewCacheOp>();
  CacheOp cache = getCacheDeclaration(op.getCacheHandle());
  Value pageSize = index(b, cache.getGroupOp().getPageSize());
  Value zero = index(b, 0);
  Value numSlots =
      arith::MulIOp::create(b, dim(b, view.getKPages(), 0), pageSize);
  rotation = {};
  rotation.rotation = getKeyRotation(op);
  if (rotation.rotation)
    for (Value *value :
         {&rotation.rotation.table, &rotation.rotation.positions})
      *value = readBuffer(b, *value);
  // There may be more rows than slots (padding) and more slots than rows.
  Value numRows =
      arith::MinSIOp::create(b, dim(b, rows, 0), dim(b, view.getSlots(), 0));
  loop(b, zero, numRows, [&](Builder &b, Value row) {
    Value slot = loadIndex(b, view.getSlots(), row);
    Value isSlot =
        arith::CmpIOp::create(b, arith::CmpIPredicate::sge, slot, zero);
    Value inPool =
        arith::CmpIOp::create(b, arith::CmpIPredicate::slt, slot, numSlots);
    auto onlyIf = [&](Builder &b, Value condition) {
      auto branch = scf::IfOp::create(b, condition, /*withElseRegion=*/false);
      return ImplicitLocOpBuilder(b.getLoc(),
                                  branch.thenBlock()->getTerminator());
    };
    Builder in = onlyIf(b, arith::AndIOp::create(b, isSlot, inPool));
    if (rotation.rotation) {
      Value position = loadIndex(in, rotation.rotation.positions, row);
      // Negative positions are large ones without a sign.
      in = onlyIf(in,
                  arith::CmpIOp::create(in, arith::CmpIPredicate::ult, position,
                                        dim(in, rotation.rotation.table, 0)));
      rotation.position = position;
    }
    Value page = arith::DivUIOp::create(in, slot, pageSize);
    Value token = arith::RemUIOp::create(in, slot, pageSize);
    writeRow(in, row, page, token);
  });
}

/// Element `d` of the rotary part at the start of a row, rotated, as f32.
Value ReferenceLowering::rotate(Builder &b, Value rows, ValueRange row,
                                Value d) {
  const KeyRotation &rope = rotation.rotation;
  Value half = index(b, rope.getRotaryDim() / 2), one = index(b, 1);
  Value angle, isFirst, distance = half;
  if (rope.isInterleaved) {
    Value two = index(b, 2);
    angle = arith::DivUIOp::create(b, d, two);
    isFirst =
        arith::CmpIOp::create(b, arith::CmpIPredicate::eq,
                              arith::RemUIOp::create(b, d, two), index(b, 0));
    distance = one;
  } else {
    angle = arith::RemUIOp::create(b, d, half);
    isFirst = arith::CmpIOp::create(b, arith::CmpIPredicate::ult, d, half);
  }
  Value other = arith::SelectOp::create(b, isFirst, add(b, d, distance),
                                        sub(b, d, distance));
  auto element = [&](Value d) {
    SmallVector<Value> indices(row);
    indices.push_back(d);
    return toF32(b, arithmetic, load(b, rows, indices));
  };
  Value x = element(d), y = element(other);
  // x - y is x + (-y), exactly.
  y = arith::SelectOp::create(b, isFirst, arith::NegFOp::create(b, y), y);
  Value cosine = load(b, rope.table, {rotation.position, angle}),
        sine = load(b, rope.table, {rotation.position, add(b, angle, half)});
  return arith::AddFOp::create(b, mul(b, x, cosine), mul(b, y, sine));
}

/// Calls `body(b, d, element)` for each element of a row; with `rotates` those
/// of the rotary part are rotated, if the write rotates.
void ReferenceLowering::forElements(
    Builder &b, Value rows, ValueRange row, int64_t width, bool rotates,
    function_ref<void(Builder &, Value, Value)> body) {
  int64_t rotary =
      rotates && rotation.rotation ? rotation.rotation.getRotaryDim() : 0;
  if (rotary)
    loop(b, index(b, 0), index(b, rotary),
         [&](Builder &b, Value d) { body(b, d, rotate(b, rows, row, d)); });
  if (rotary == width)
    return;
  loop(b, index(b, rotary), index(b, width), [&](Builder &b, Value d) {
    SmallVector<Value> indices(row);
    indices.push_back(d);
    body(b, d, load(b, rows, indices));
  });
}

void ReferenceLowering::lower(WriteOp op) {
  ImplicitLocOpBuilder b(op.getLoc(), op);
  auto view = op.getCache().getDefiningOp<ViewCacheOp>();
  CacheOp cache = getCacheDeclaration(op.getCache());
  bool quantized = cache.usesDeclaredScales();
  struct Side {
    Value rows, pages, tokenScales;
    int64_t headDim;
    ScaleValues scale;
  };
  CacheType type = cache.getCacheType();
  Side sides[] = {{readBuffer(b, op.getKey()),
                   view.getKPages(),
                   view.getKScales(),
                   type.getHeadDim(),
                   {}},
                  {readBuffer(b, op.getValue()),
                   view.getVPages(),
                   view.getVScales(),
                   type.getVHeadDim(),
                   {}}};
  Value amax;
  if (cache.getTokenScales())
    amax = stackBuffer(op, 1, b.getF32Type());
  auto codes = dyn_cast<FloatType>(type.getElementType());
  if (quantized) {
    sides[0].scale = getScale(b, cache.getKScaleOp());
    sides[1].scale = getScale(b, cache.getVScaleOp());
  }
  writeRows(b, op, sides[0].rows,
            [&](Builder &b, Value row, Value page, Value token) {
              Value zero = index(b, 0);
              loop(b, zero, index(b, type.getNumHeads()),
                   [&](Builder &b, Value head) {
                     for (Side &side : sides) {
                       if (amax) {
                         writeTokenScaled(
                             b, side.rows, {row, head}, side.headDim,
                             /*rotates=*/&side == &sides[0], amax, codes,
                             side.pages, side.tokenScales, {page, token, head});
                         continue;
                       }
                       Value scale = quantized
                                         ? scaleOfHead(b, side.scale, head)
                                         : Value();
                       forElements(b, side.rows, {row, head}, side.headDim,
                                   /*rotates=*/&side == &sides[0],
                                   [&](Builder &b, Value d, Value element) {
                                     writeElement(b, element, scale, side.pages,
                                                  {page, token, head, d});
                                   });
                     }
                   });
            });
  op.erase();
}

/// A row of one head with a scale of its own, in `scales` or, without these,
/// behind its codes.
void ReferenceLowering::writeTokenScaled(Builder &b, Value rows, ValueRange row,
                                         int64_t width, bool rotates,
                                         Value amax, FloatType type,
                                         Value pages, Value scales,
                                         ValueRange token) {
  Value zero = index(b, 0);
  store(b, real32(b, 0.0f), amax, zero);
  forElements(
      b, rows, row, width, rotates, [&](Builder &b, Value, Value element) {
        Value magnitude =
            math::AbsFOp::create(b, toF32(b, arithmetic, element));
        // maxnumf leaves NaN out.
        store(b, arith::MaxNumFOp::create(b, load(b, amax, zero), magnitude),
              amax, zero);
      });
  float largest = getLargestFinite(type).convertToFloat();
  Value scale = arith::MaxNumFOp::create(
      b, arith::DivFOp::create(b, load(b, amax, zero), real32(b, largest)),
      real32(b, 1e-6f));
  if (scales)
    store(b, scale, scales, token);
  else
    writeBytes(b, scale, pages, token, index(b, width));
  Value reciprocal = arith::DivFOp::create(b, real32(b, 1.0f), scale);
  forElements(
      b, rows, row, width, rotates, [&](Builder &b, Value d, Value element) {
        Value product = mul(b, toF32(b, arithmetic, element), reciprocal);
        Value code = roundSaturating(b, arithmetic.widen(b, product), type);
        if (!scales)
          return writeBytes(b, code, pages, token, d);
        SmallVector<Value> indices(token);
        indices.push_back(d);
        store(b, code, pages, indices);
      });
}

void ReferenceLowering::lower(WriteLatentOp op) {
  ImplicitLocOpBuilder b(op.getLoc(), op);
  CacheOp cache = getCacheDeclaration(op.getCache());
  CacheType type = cache.getCacheType();
  Value pages = op.getCache().getDefiningOp<ViewCacheOp>().getKPages();
  Value latent = readBuffer(b, op.getLatent());
  Value rope = readBuffer(b, op.getRope());
  Value scale;
  if (type.isQuantized())
    scale = real32(b, getScale(b, cache.getKScaleOp()).values[0]);
  writeRows(b, op, latent, [&](Builder &b, Value row, Value page, Value token) {
    Value zero = index(b, 0);
    if (type.isTileScaled())
      return writeTiles(b, op, latent, rope, row, {page, token, zero});
    for (auto [part, first, width] :
         {std::tuple<Value, int64_t, int64_t>{latent, 0, type.getLatentDim()},
          {rope, type.getLatentDim(), type.getRopeDim()}}) {
      Value offset = index(b, first);
      forElements(b, part, row, width, /*rotates=*/first != 0,
                  [&](Builder &b, Value d, Value element) {
                    writeElement(b, element, scale, pages,
                                 {page, token, zero, add(b, offset, d)});
                  });
    }
  });
  op.erase();
}

/// One row of fp8_ds_mla.
void ReferenceLowering::writeTiles(Builder &b, WriteLatentOp op, Value latent,
                                   Value rope, Value row, ValueRange token) {
  CacheType type = op.getCache().getType();
  Value pages = op.getCache().getDefiningOp<ViewCacheOp>().getKPages();
  FloatType code = b.getType<Float8E4M3FNType>();
  Value zero = index(b, 0), four = index(b, 4), two = index(b, 2);
  Value tileSize = index(b, CacheType::kTileSize);
  Value scales = index(b, type.getTileScalesOffset());
  Value rotary = index(b, type.getRotaryOffset());
  Value tiles = index(b, type.getLatentDim() / CacheType::kTileSize);
  loop(b, zero, tiles, [&](Builder &b, Value tile) {
    Value first = arith::MulIOp::create(b, tile, tileSize);
    auto element = [&](Builder &b, Value d) {
      return toF32(b, arithmetic, load(b, latent, {row, add(b, first, d)}));
    };
    // maxnumf leaves NaN out.
    Value amax = loop(b, zero, tileSize, real32(b, 0.0f),
                      [&](Builder &b, Value d, ValueRange state) {
                        Value magnitude =
                            math::AbsFOp::create(b, element(b, d));
                        return SmallVector<Value>{
                            arith::MaxNumFOp::create(b, state[0], magnitude)};
                      })[0];
    float largest = getLargestFinite(code).convertToFloat();
    Value scale = arith::MaxNumFOp::create(
        b, arith::DivFOp::create(b, amax, real32(b, largest)),
        real32(b, std::numeric_limits<float>::min()));
    writeBytes(b, scale, pages, token,
               add(b, scales, arith::MulIOp::create(b, tile, four)));
    loop(b, zero, tileSize, [&](Builder &b, Value d) {
      Value quotient = arith::DivFOp::create(b, element(b, d), scale);
      writeBytes(b, roundSaturating(b, arithmetic.widen(b, quotient), code),
                 pages, token, add(b, first, d));
    });
  });
  forElements(b, rope, row, type.getRopeDim(), /*rotates=*/true,
              [&](Builder &b, Value d, Value element) {
                if (!element.getType().isBF16())
                  element = arithmetic.round(b, arithmetic.widen(b, element),
                                             b.getBF16Type());
                writeBytes(b, element, pages, token,
                           add(b, rotary, arith::MulIOp::create(b, d, two)));
              });
}

/// Stores a float in bytes, the lowest first.
void ReferenceLowering::writeBytes(Builder &b, Value element, Value pages,
                                   ValueRange token, Value offset) {
  unsigned width = element.getType().getIntOrFloatBitWidth();
  Type bits = b.getIntegerType(width);
  Value raw = arith::BitcastOp::create(b, bits, element);
  for (unsigned i = 0; i < width / 8; ++i) {
    Value byte = raw;
    if (i != 0)
      byte = arith::ShRUIOp::create(
          b, raw, arith::ConstantOp::create(b, b.getIntegerAttr(bits, 8 * i)));
    if (width != 8)
      byte = arith::TruncIOp::create(b, b.getI8Type(), byte);
    SmallVector<Value> indices(token);
    indices.push_back(add(b, offset, index(b, i)));
    store(b, byte, pages, indices);
  }
}

Value ReferenceLowering::readBytes(Builder &b, FloatType type, Value pages,
                                   ValueRange token, Value offset) {
  unsigned width = type.getWidth();
  Type bits = b.getIntegerType(width);
  Value raw;
  for (unsigned i = 0; i < width / 8; ++i) {
    SmallVector<Value> indices(token);
    indices.push_back(add(b, offset, index(b, i)));
    Value byte = load(b, pages, indices);
    if (width != 8)
      byte = arith::ExtUIOp::create(b, bits, byte);
    if (i != 0)
      byte = arith::ShLIOp::create(
          b, byte, arith::ConstantOp::create(b, b.getIntegerAttr(bits, 8 * i)));
    raw = raw ? arith::OrIOp::create(b, raw, byte).getResult() : byte;
  }
  return arith::BitcastOp::create(b, type, raw);
}

//===----------------------------------------------------------------------===//
// Attention
//===----------------------------------------------------------------------===//

/// Element `d` of a token, in f64: its code, in fp8_ds_mla rows its value. The
/// latter are read in two ways, so `d` is known to be rotary or latent.
Value ReferenceLowering::readCache(Builder &b, CacheType type, Value pages,
                                   ValueRange token, Value d, bool isRotary) {
  if (!type.isTileScaled() &&
      cast<MemRefType>(pages.getType()).getElementType().isInteger(8))
    return arithmetic.widen(
        b,
        readBytes(b, cast<FloatType>(type.getElementType()), pages, token, d));
  if (!type.isTileScaled()) {
    SmallVector<Value> indices(token);
    indices.push_back(d);
    return arithmetic.widen(b, load(b, pages, indices));
  }
  if (isRotary) {
    Value element = sub(b, d, index(b, type.getLatentDim()));
    Value offset = add(b, index(b, type.getRotaryOffset()),
                       arith::MulIOp::create(b, element, index(b, 2)));
    return arithmetic.widen(
        b, readBytes(b, b.getBF16Type(), pages, token, offset));
  }
  Value code = readBytes(b, b.getType<Float8E4M3FNType>(), pages, token, d);
  Value tile = arith::DivUIOp::create(b, d, index(b, CacheType::kTileSize));
  Value offset = add(b, index(b, type.getTileScalesOffset()),
                     arith::MulIOp::create(b, tile, index(b, 4)));
  Value scale = readBytes(b, b.getF32Type(), pages, token, offset);
  return mul(b, arithmetic.widen(b, code), arithmetic.widen(b, scale));
}

/// The scale of a token in f64, in `scales` or behind the codes of its row;
/// null if the cache has none.
Value ReferenceLowering::readTokenScale(Builder &b, CacheOp cache, Value scales,
                                        Value pages, ValueRange token) {
  if (!cache.getTokenScales())
    return nullptr;
  return arithmetic.widen(
      b,
      scales
          ? load(b, scales, token)
          : readBytes(
                b, b.getF32Type(), pages, token,
                index(b, cast<MemRefType>(pages.getType()).getShape().back() -
                             4)));
}

/// All query heads of one row, at `position` of its sequence.
void ReferenceLowering::attendRow(Builder &b, AttentionOpInterface op,
                                  Value sequence, Value row, Value position) {
  auto view = op.getCacheHandle().getDefiningOp<ViewCacheOp>();
  CacheOp cache = getCacheDeclaration(op.getCacheHandle());
  CacheType type = cache.getCacheType();
  const Attention &a = attention;
  Value zero = index(b, 0);
  Value headDim = index(b, type.getHeadDim());
  Value valueDim = index(b, a.valueDim);
  Value pageSize = index(b, cache.getGroupOp().getPageSize());
  Value group = index(b, op.getNumQueryHeads() / type.getNumHeads());
  bool quantized = cache.usesDeclaredScales();

  // Keys [first, end); nothing when the position is negative.
  Value end = arith::MaxSIOp::create(b, add(b, position, index(b, 1)), zero);
  Value first = zero;
  if (a.window)
    first =
        arith::MaxSIOp::create(b, zero, sub(b, position, index(b, *a.window)));
  Value seesNothing =
      arith::CmpIOp::create(b, arith::CmpIPredicate::sge, first, end);

  loop(b, zero, index(b, op.getNumQueryHeads()), [&](Builder &b, Value head) {
    Value kvHead = arith::DivUIOp::create(b, head, group);
    // softmax_scale * q_scale * k_scale, and v_scale, in f64.
    Value scoreScale, outputScale;
    if (quantized && a.kScale.perHead) {
      scoreScale = mul(b, real(b, a.softmaxScale),
                       arithmetic.widen(b, scaleOfHead(b, a.kScale, kvHead)));
    } else {
      scoreScale =
          real(b, quantized ? a.softmaxScale * double(a.kScale.values[0])
                            : a.softmaxScale);
    }
    if (quantized)
      outputScale = arithmetic.widen(b, scaleOfHead(b, a.vScale, kvHead));

    Value slope, sink;
    if (a.slopes)
      slope = arithmetic.widen(b, load(b, a.slopes, head));
    if (a.sinks)
      sink = arithmetic.widen(b, load(b, a.sinks, head));

    auto pageOf = [&](Builder &b, Value key) {
      Value entry = arith::DivUIOp::create(b, key, pageSize);
      return loadIndex(b, view.getPageTable(), {sequence, entry});
    };
    auto score = [&](Builder &b, Value key) -> Value {
      Value page = pageOf(b, key);
      Value token = arith::RemUIOp::create(b, key, pageSize);
      auto dot = [&](Value from, Value to, Value start, bool isRotary) {
        return loop(
            b, from, to, start, [&](Builder &b, Value d, ValueRange sum) {
              Value q = arithmetic.widen(b, load(b, a.query, {row, head, d}));
              Value k = readCache(b, type, view.getKPages(),
                                  {page, token, kvHead}, d, isRotary);
              return SmallVector<Value>{
                  arith::AddFOp::create(b, sum[0], mul(b, q, k))};
            })[0];
      };
      Value product;
      if (type.isTileScaled()) {
        product = dot(zero, valueDim, real(b, 0.0), /*isRotary=*/false);
        product = dot(valueDim, headDim, product, /*isRotary=*/true);
      } else {
        product = dot(zero, headDim, real(b, 0.0), /*isRotary=*/false);
      }
      Value scaled = mul(b, product, scoreScale);
      if (Value own = readTokenScale(b, cache, view.getKScales(),
                                     view.getKPages(), {page, token, kvHead}))
        scaled = mul(b, scaled, own);
      if (a.softCap) {
        Value cap = real(b, *a.softCap);
        scaled =
            mul(b, cap,
                math::TanhOp::create(b, arith::DivFOp::create(b, scaled, cap)));
      }
      if (!slope)
        return scaled;
      Value distance = arith::SIToFPOp::create(
          b, b.getF64Type(),
          arith::IndexCastOp::create(b, b.getI64Type(), sub(b, key, position)));
      return arith::AddFOp::create(b, scaled, mul(b, slope, distance));
    };

    Value minusInfinity = real(b, -std::numeric_limits<double>::infinity());
    Value maximum = loop(b, first, end, sink ? sink : minusInfinity,
                         [&](Builder &b, Value key, ValueRange state) {
                           return SmallVector<Value>{arith::MaximumFOp::create(
                               b, state[0], score(b, key))};
                         })[0];
    loop(b, zero, valueDim, [&](Builder &b, Value d) {
      store(b, real(b, 0.0), a.accumulator, d);
    });
    Value start = real(b, 0.0);
    if (sink)
      start = math::ExpOp::create(b, arith::SubFOp::create(b, sink, maximum));
    Value sum = loop(
        b, first, end, start, [&](Builder &b, Value key, ValueRange state) {
          Value p = math::ExpOp::create(
              b, arith::SubFOp::create(b, score(b, key), maximum));
          Value page = pageOf(b, key);
          Value token = arith::RemUIOp::create(b, key, pageSize);
          Value weight = p;
          if (Value own =
                  readTokenScale(b, cache, view.getVScales(), view.getVPages(),
                                 {page, token, kvHead}))
            weight = mul(b, p, own);
          loop(b, zero, valueDim, [&](Builder &b, Value d) {
            Value v =
                readCache(b, type, view.getVPages(), {page, token, kvHead}, d,
                          /*isRotary=*/false);
            Value old = load(b, a.accumulator, d);
            store(b, arith::AddFOp::create(b, old, mul(b, weight, v)),
                  a.accumulator, d);
          });
          return SmallVector<Value>{arith::AddFOp::create(b, state[0], p)};
        })[0];

    auto outType = cast<FloatType>(getElementTypeOrSelf(a.out.getType()));
    loop(b, zero, valueDim, [&](Builder &b, Value d) {
      Value o = arith::DivFOp::create(b, load(b, a.accumulator, d), sum);
      if (outputScale)
        o = mul(b, o, outputScale);
      o = arith::SelectOp::create(b, seesNothing, real(b, 0.0), o);
      if (a.outputDivisor)
        o = roundSaturating(
            b, arith::DivFOp::create(b, o, real(b, *a.outputDivisor)), outType);
      else
        o = arithmetic.round(b, o, outType);
      store(b, o, a.out, {row, head, d});
    });
    if (!a.lse)
      return;
    Value lse = arith::AddFOp::create(b, maximum, math::LogOp::create(b, sum));
    lse = arith::SelectOp::create(b, seesNothing, minusInfinity, lse);
    store(b, arithmetic.round(b, lse, b.getF32Type()), a.lse, {row, head});
  });
}

void ReferenceLowering::lower(AttentionOpInterface op) {
  ImplicitLocOpBuilder b(op.getLoc(), op);
  auto view = op.getCacheHandle().getDefiningOp<ViewCacheOp>();
  CacheOp cache = getCacheDeclaration(op.getCacheHandle());
  attention = {};
  attention.valueDim = cast<ShapedType>(op.getOut().getType()).getDimSize(2);
  attention.softmaxScale = op.getSoftmaxScaleAttr().getValueAsDouble();
  if (ScaleBufferOp q = op.getQScaleOp())
    attention.softmaxScale *= double(q.getScale().getValue());
  if (ScaleBufferOp o = op.getOScaleOp())
    attention.outputDivisor = o.getScale().getValue();
  if (auto paged = dyn_cast<PagedAttentionOp>(op.getOperation())) {
    if (FloatAttr cap = paged.getSoftCapAttr())
      attention.softCap = cap.getValueAsDouble();
    if (IntegerAttr window = paged.getWindowAttr())
      attention.window = window.getInt();
    if (paged.getSinks())
      attention.sinks = readBuffer(b, paged.getSinks());
    if (paged.getAlibiSlopes())
      attention.slopes = readBuffer(b, paged.getAlibiSlopes());
  }
  attention.query = readBuffer(b, op.getQuery());
  attention.out = outputBuffer(b, op.getOut());
  if (op.getLse())
    attention.lse = outputBuffer(b, op.getLse());
  if (cache.usesDeclaredScales()) {
    attention.kScale = getScale(b, cache.getKScaleOp());
    attention.vScale = getScale(b, cache.getVScaleOp());
  }
  attention.accumulator = stackBuffer(op, attention.valueDim, b.getF64Type());

  Value tokens = dim(b, attention.query, 0);
  loop(b, index(b, 0), dim(b, view.getLengths(), 0),
       [&](Builder &b, Value sequence) {
         Value begin = loadIndex(b, view.getQueryStart(), sequence);
         Value end =
             loadIndex(b, view.getQueryStart(), add(b, sequence, index(b, 1)));
         Value length = loadIndex(b, view.getLengths(), sequence);
         // Query i of n is at length - n + i, so row r is at (length - end) +
         // r.
         Value offset = sub(b, length, end);
         Value last = arith::MinSIOp::create(b, end, tokens);
         loop(b, begin, last, [&](Builder &b, Value row) {
           attendRow(b, op, sequence, row, add(b, offset, row));
         });
       });

  SmallVector<Value, 2> outputs = {attention.out};
  if (attention.lse)
    outputs.push_back(attention.lse);
  replaceByBuffers(b, op, outputs);
}

/// linalg.generic over one tensor of any shape, or from one memref to another.
template <typename OpT>
static void
replaceElementwise(ImplicitLocOpBuilder &b, OpT op,
                   function_ref<Value(ImplicitLocOpBuilder &, Value)> body) {
  Value input = op.getInput(), target = op.getOut();
  ShapedType type = op.getTargetType();
  if (!target) {
    SmallVector<Value> sizes;
    for (int64_t i = 0; i < type.getRank(); ++i)
      if (type.isDynamicDim(i))
        sizes.push_back(tensor::DimOp::create(b, input, i));
    target = tensor::EmptyOp::create(b, type, sizes);
  }
  AffineMap map = b.getMultiDimIdentityMap(type.getRank());
  SmallVector<utils::IteratorType> iterators(type.getRank(),
                                             utils::IteratorType::parallel);
  auto loops = linalg::GenericOp::create(
      b, op->getResultTypes(), input, target, ArrayRef<AffineMap>{map, map},
      iterators, [&](OpBuilder &nested, Location loc, ValueRange arguments) {
        ImplicitLocOpBuilder inner(loc, nested);
        linalg::YieldOp::create(inner, body(inner, arguments[0]));
      });
  op->replaceAllUsesWith(loops.getResults());
  op->erase();
}

void ReferenceLowering::lower(QuantizeOp op) {
  ImplicitLocOpBuilder b(op.getLoc(), op);
  auto type = cast<FloatType>(op.getTargetType().getElementType());
  Value reciprocal = arith::DivFOp::create(b, real32(b, 1.0f), op.getScale());
  replaceElementwise(b, op, [&](Builder &b, Value x) {
    Value product = mul(b, toF32(b, arithmetic, x), reciprocal);
    return roundSaturating(b, arithmetic.widen(b, product), type);
  });
}

void ReferenceLowering::lower(DequantizeOp op) {
  ImplicitLocOpBuilder b(op.getLoc(), op);
  auto type = cast<FloatType>(op.getTargetType().getElementType());
  Value scale = op.getScale();
  replaceElementwise(b, op, [&](Builder &b, Value code) -> Value {
    Value product = mul(b, toF32(b, arithmetic, code), scale);
    if (type.isF32())
      return product;
    return arithmetic.round(b, arithmetic.widen(b, product), type);
  });
}

/// In f64, each element rounded once.
void ReferenceLowering::lower(MergeStatesOp op) {
  ImplicitLocOpBuilder b(op.getLoc(), op);
  Value partials[] = {readBuffer(b, op.getA()), readBuffer(b, op.getB())},
        logarithms[] = {readBuffer(b, op.getLseA()),
                        readBuffer(b, op.getLseB())};
  Value out = outputBuffer(b, op.getOut()), lse = outputBuffer(b, op.getLse());
  auto type = cast<FloatType>(getElementTypeOrSelf(out.getType()));
  Value zero = index(b, 0);
  Value minusInfinity = real(b, -std::numeric_limits<double>::infinity());
  loop(b, zero, dim(b, out, 0), [&](Builder &b, Value row) {
    loop(b, zero, dim(b, out, 1), [&](Builder &b, Value head) {
      Value l[2], weight[2], counts[2];
      for (int i = 0; i < 2; ++i)
        l[i] = arithmetic.widen(b, load(b, logarithms[i], {row, head}));
      Value maximum = arith::MaximumFOp::create(b, l[0], l[1]);
      Value isEmpty = arith::CmpFOp::create(b, arith::CmpFPredicate::OEQ,
                                            maximum, minusInfinity);
      // Of two empty partials the differences would be NaN.
      Value top = arith::SelectOp::create(b, isEmpty, real(b, 0.0), maximum);
      for (int i = 0; i < 2; ++i) {
        weight[i] = math::ExpOp::create(b, arith::SubFOp::create(b, l[i], top));
        counts[i] = arith::CmpFOp::create(b, arith::CmpFPredicate::UNE,
                                          weight[i], real(b, 0.0));
      }
      Value sum = arith::AddFOp::create(b, weight[0], weight[1]);
      loop(b, zero, dim(b, out, 2), [&](Builder &b, Value d) {
        Value total = real(b, 0.0);
        for (int i = 0; i < 2; ++i) {
          Value x = arithmetic.widen(b, load(b, partials[i], {row, head, d}));
          x = mul(b, arith::DivFOp::create(b, weight[i], sum), x);
          total = arith::AddFOp::create(
              b, total, arith::SelectOp::create(b, counts[i], x, real(b, 0.0)));
        }
        store(b, arithmetic.round(b, total, type), out, {row, head, d});
      });
      Value merged =
          arith::AddFOp::create(b, maximum, math::LogOp::create(b, sum));
      store(b, arithmetic.round(b, merged, b.getF32Type()), lse, {row, head});
    });
  });
  replaceByBuffers(b, op, {out, lse});
}

void ReferenceLowering::lower(CopyPagesOp op) {
  ImplicitLocOpBuilder b(op.getLoc(), op);
  auto view = op.getCache().getDefiningOp<ViewCacheOp>();
  Value pairs = readBuffer(b, op.getPairs());
  Value zero = index(b, 0), numPages = dim(b, view.getKPages(), 0);
  SmallVector<Value, 2> pools = {view.getKPages()};
  if (view.getVPages() != view.getKPages())
    pools.push_back(view.getVPages());
  if (view.getKScales())
    pools.append({view.getKScales(), view.getVScales()});
  loop(b, zero, dim(b, pairs, 0), [&](Builder &b, Value pair) {
    Value pages[] = {loadIndex(b, pairs, {pair, zero}),
                     loadIndex(b, pairs, {pair, index(b, 1)})};
    Value copies;
    for (Value page : pages) {
      // Unsigned: negative pages are too large as well.
      Value isPage =
          arith::CmpIOp::create(b, arith::CmpIPredicate::ult, page, numPages);
      copies =
          copies ? Value(arith::AndIOp::create(b, copies, isPage)) : isPage;
    }
    auto branch = scf::IfOp::create(b, copies, /*withElseRegion=*/false);
    ImplicitLocOpBuilder in(b.getLoc(), branch.thenBlock()->getTerminator());
    for (Value pool : pools)
      loop(in, zero, dim(in, pool, 1), [&](Builder &b, Value token) {
        loop(b, zero, dim(b, pool, 2), [&](Builder &b, Value head) {
          auto copy = [&](Builder &b, ArrayRef<Value> element) {
            SmallVector<Value> from = {pages[0]}, to = {pages[1]};
            llvm::append_range(from, element);
            llvm::append_range(to, element);
            store(b, load(b, pool, from), pool, to);
          };
          if (cast<MemRefType>(pool.getType()).getRank() == 3)
            return copy(b, {token, head}); // scales of tokens
          loop(b, zero, dim(b, pool, 3),
               [&](Builder &b, Value d) { copy(b, {token, head, d}); });
        });
      });
  });
  op.erase();
}

void ReferenceLowering::lower(LoadScaleOp op) {
  ImplicitLocOpBuilder b(op.getLoc(), op);
  auto scale = SymbolTable::lookupNearestSymbolFrom<ScaleBufferOp>(
      op, op.getScaleAttr());
  op.replaceAllUsesWith(real32(b, scale.getScale().getValue()));
  op.erase();
}

//===----------------------------------------------------------------------===//
// Pass
//===----------------------------------------------------------------------===//

namespace {
class ConvertKVCacheToReferencePass
    : public kvcache::impl::ConvertKVCacheToReferenceBase<
          ConvertKVCacheToReferencePass> {
public:
  void runOnOperation() override {
    ModuleOp module = getOperation();
    bool refused = false;
    SmallVector<Operation *> ops;
    module.walk<WalkOrder::PreOrder>([&](Operation *op) {
      if (op->getDialect() && isa<KVCacheDialect>(op->getDialect())) {
        refused |= failed(checkOp(op));
        ops.push_back(op);
        if (isa<ProgramOp>(op))
          return WalkResult::skip();
      }
      return WalkResult::advance();
    });
    if (refused)
      return signalPassFailure();

    numOps += ops.size();
    ReferenceLowering lowering(module);
    SmallVector<Operation *> handles, declarations;
    for (Operation *op : ops) {
      if (auto write = dyn_cast<WriteOp>(op))
        lowering.lower(write);
      else if (auto write = dyn_cast<WriteLatentOp>(op))
        lowering.lower(write);
      else if (auto attention = dyn_cast<AttentionOpInterface>(op))
        lowering.lower(attention);
      else if (auto quantize = dyn_cast<QuantizeOp>(op))
        lowering.lower(quantize);
      else if (auto dequantize = dyn_cast<DequantizeOp>(op))
        lowering.lower(dequantize);
      else if (auto load = dyn_cast<LoadScaleOp>(op))
        lowering.lower(load);
      else if (auto merge = dyn_cast<MergeStatesOp>(op))
        lowering.lower(merge);
      else if (auto copy = dyn_cast<CopyPagesOp>(op))
        lowering.lower(copy);
      else
        (isa<GetCacheOp, ViewCacheOp>(op) ? handles : declarations)
            .push_back(op);
    }
    for (Operation *op : llvm::concat<Operation *>(handles, declarations)) {
      if (!op->use_empty()) {
        op->emitOpError() << "is used by '"
                          << op->use_begin()->getOwner()->getName()
                          << "', which has no reference form; handles cannot "
                             "leave the function "
                             "that makes them";
        return signalPassFailure();
      }
      op->erase();
    }
    // The role is an attribute of the dialect, which is gone from here on.
    module.walk([&](FunctionOpInterface function) {
      for (unsigned i = 0; i < function.getNumArguments(); ++i)
        function.removeArgAttr(i, StringAttr::get(&getContext(), kBufferRole));
    });
  }
};
} // namespace
