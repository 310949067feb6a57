//===- ArithF8ToNVVM.cpp - 8-bit float conversions on the device ----------===//
//
// arith.extf and arith.truncf of 8-bit floats, which upstream's
// convert-gpu-to-nvvm leaves behind. From sm_89 on they are `cvt`s of pairs,
// before that integer code; both give the same code for every input.
//
//===----------------------------------------------------------------------===//

#include "kvcache/Conversion/DeviceFunctions.h"
#include "kvcache/Conversion/Passes.h"
#include "mlir/Dialect/Arith/IR/Arith.h"
#include "mlir/Dialect/GPU/IR/GPUDialect.h"
#include "mlir/Dialect/LLVMIR/LLVMDialect.h"
#include "mlir/Dialect/LLVMIR/NVVMDialect.h"
#include "mlir/Dialect/Math/IR/Math.h"
#include "mlir/Dialect/Vector/IR/VectorOps.h"
#include "mlir/IR/Builders.h"

namespace mlir::kvcache {
#define GEN_PASS_DEF_CONVERTARITHF8TONVVM
#include "kvcache/Conversion/Passes.h.inc"
} // namespace mlir::kvcache

using namespace mlir;
using namespace mlir::kvcache;

namespace {

/// Where the fields of an 8-bit float lie in the bits of an f32.
struct Format {
  unsigned shift;          ///< f32 mantissa bits that are rounded away
  uint32_t bias;           ///< difference of the exponent biases, in codes
  uint32_t largest;        ///< f32 bits of the largest finite value
  uint32_t smallestNormal; ///< f32 bits
  /// f32 whose last bit is worth one subnormal step: adding it rounds a
  /// subnormal to nearest even.
  uint32_t magic;
};

Format formatOf(Type type) {
  if (isa<Float8E4M3FNType>(type)) // 448, 2^-6, step 2^-9
    return {20, 120 << 3, 0x43E00000, 0x3C800000, 0x46800000};
  // f8E5M2: 57344, 2^-14, step 2^-16
  return {21, 112 << 2, 0x47600000, 0x38800000, 0x43000000};
}

bool isSmallFloat(Type type) {
  auto element = dyn_cast<FloatType>(getElementTypeOrSelf(type));
  return element && element.getWidth() <= 8;
}

bool isKnownF8(Type type) {
  return isa<Float8E4M3FNType, Float8E5M2Type>(getElementTypeOrSelf(type));
}

Type withElement(Type like, Type element) {
  auto vector = dyn_cast<VectorType>(like);
  return vector ? Type(vector.clone(element)) : element;
}

/// Elementwise arithmetic on scalars and vectors alike.
class Emitter {
public:
  Emitter(OpBuilder &b, Location loc, Type like) : b(b), loc(loc), like(like) {}

  Type type(Type element) { return withElement(like, element); }
  Value constant(TypedAttr value) {
    Type full = type(value.getType());
    if (auto vector = dyn_cast<VectorType>(full))
      return arith::ConstantOp::create(
          b, loc, DenseElementsAttr::get(vector, Attribute(value)));
    return arith::ConstantOp::create(b, loc, value);
  }
  Value i32(uint32_t value) {
    return constant(b.getI32IntegerAttr(static_cast<int32_t>(value)));
  }
  Value f32(float value) { return constant(b.getF32FloatAttr(value)); }
  Value bitcast(Value value, Type element) {
    return arith::BitcastOp::create(b, loc, type(element), value);
  }
  template <typename Op> Value cast(Value value, Type element) {
    return Op::create(b, loc, type(element), value);
  }
  template <typename Op> Value op(Value left, Value right) {
    return Op::create(b, loc, left, right);
  }
  Value compare(arith::CmpIPredicate predicate, Value left, Value right) {
    return arith::CmpIOp::create(b, loc, predicate, left, right);
  }
  Value select(Value condition, Value yes, Value no) {
    return arith::SelectOp::create(b, loc, condition, yes, no);
  }

  /// To f32 so that a second rounding to 8 bits is the first: exact for 16
  /// bits, and from f64 rounded to odd.
  Value narrowToF32(Value value) {
    Type element = getElementTypeOrSelf(value.getType());
    Type f32Type = b.getF32Type(), i32Type = b.getI32Type();
    if (element.isF32())
      return value;
    if (!element.isF64())
      return cast<arith::ExtFOp>(value, f32Type);
    Value near = cast<arith::TruncFOp>(value, f32Type);
    Value back = cast<arith::ExtFOp>(near, element);
    Type i64Type = b.getI64Type();
    Value mask = constant(b.getI64IntegerAttr(INT64_MAX));
    Value given = op<arith::AndIOp>(bitcast(value, i64Type), mask);
    Value rounded = op<arith::AndIOp>(bitcast(back, i64Type), mask);
    Value bits = bitcast(near, i32Type);
    // Towards zero, and then odd.
    Value above = compare(arith::CmpIPredicate::ugt, rounded, given);
    Value down = op<arith::SubIOp>(bits, select(above, i32(1), i32(0)));
    Value odd = op<arith::OrIOp>(down, i32(1));
    Value exact =
        arith::CmpFOp::create(b, loc, arith::CmpFPredicate::UEQ, back, value);
    return bitcast(select(exact, bits, odd), f32Type);
  }

  /// f32 to codes (i8), in integer arithmetic.
  Value roundToCode(Value value, Type f8) {
    Format format = formatOf(f8);
    Value bits = bitcast(value, b.getI32Type());
    Value magnitude = op<arith::AndIOp>(bits, i32(0x7FFFFFFF));
    Value sign =
        op<arith::AndIOp>(op<arith::ShRUIOp>(bits, i32(24)), i32(0x80));
    Value clamped = op<arith::MinUIOp>(magnitude, i32(format.largest));

    Value even = op<arith::AndIOp>(
        op<arith::ShRUIOp>(clamped, i32(format.shift)), i32(1));
    Value half = i32((1u << (format.shift - 1)) - 1);
    Value rounded = op<arith::AddIOp>(op<arith::AddIOp>(clamped, half), even);
    Value normal = op<arith::SubIOp>(
        op<arith::ShRUIOp>(rounded, i32(format.shift)), i32(format.bias));

    Value magic = bitcast(i32(format.magic), b.getF32Type());
    Value sum = op<arith::AddFOp>(bitcast(clamped, b.getF32Type()), magic);
    Value subnormal =
        op<arith::SubIOp>(bitcast(sum, b.getI32Type()), i32(format.magic));

    Value small =
        compare(arith::CmpIPredicate::ult, clamped, i32(format.smallestNormal));
    Value code = op<arith::OrIOp>(select(small, subnormal, normal), sign);
    Value nan = compare(arith::CmpIPredicate::ugt, magnitude, i32(0x7F800000));
    return cast<arith::TruncIOp>(select(nan, i32(0x7F), code), b.getI8Type());
  }

  /// Codes (i8) to f16 for f8E5M2, to f32 for f8E4M3FN: exact in integer
  /// arithmetic, without subnormal f32.
  Value widenCode(Value code, Type f8) {
    Value bits = cast<arith::ExtUIOp>(code, b.getI32Type());
    auto asHalf = [&](Value half) {
      return bitcast(cast<arith::TruncIOp>(half, b.getI16Type()),
                     b.getF16Type());
    };
    if (isa<Float8E5M2Type>(f8))
      return asHalf(op<arith::ShLIOp>(bits, i32(8)));
    Value magnitude = op<arith::AndIOp>(bits, i32(0x7F));
    Value sign = op<arith::AndIOp>(bits, i32(0x80));
    Value half = op<arith::OrIOp>(op<arith::ShLIOp>(sign, i32(8)),
                                  op<arith::ShLIOp>(magnitude, i32(7)));
    // f16's exponent bias is 15, f8E4M3FN's 7.
    Value value = op<arith::MulFOp>(
        cast<arith::ExtFOp>(asHalf(half), b.getF32Type()), f32(256.0f));
    Value nan = bitcast(i32(0x7FC00000), b.getF32Type());
    return select(compare(arith::CmpIPredicate::eq, magnitude, i32(0x7F)), nan,
                  value);
  }

  /// Between floats of 16 bits and more; exact for values of 8-bit floats.
  Value convert(Value value, Type element) {
    Type from = getElementTypeOrSelf(value.getType());
    if (from == element)
      return value;
    if (from.getIntOrFloatBitWidth() > element.getIntOrFloatBitWidth())
      return cast<arith::TruncFOp>(value, element);
    if (from.getIntOrFloatBitWidth() == element.getIntOrFloatBitWidth())
      return convert(cast<arith::ExtFOp>(value, b.getF32Type()), element);
    return cast<arith::ExtFOp>(value, element);
  }

  //===--------------------------------------------------------------------===//
  // cvt, two elements at a time
  //===--------------------------------------------------------------------===//

  SmallVector<Value> split(Value value) {
    auto vector = dyn_cast<VectorType>(value.getType());
    if (!vector)
      return {value};
    Value flat = value;
    int64_t count = vector.getNumElements();
    if (vector.getRank() != 1)
      flat = vector::ShapeCastOp::create(
          b, loc, VectorType::get({count}, vector.getElementType()), value);
    SmallVector<Value> elements;
    for (int64_t i = 0; i < count; ++i)
      elements.push_back(
          LLVM::ExtractElementOp::create(b, loc, flat, index(i)));
    return elements;
  }

  Value join(ArrayRef<Value> elements) {
    auto vector = dyn_cast<VectorType>(like);
    if (!vector)
      return elements[0];
    Type element = elements[0].getType();
    int64_t count = elements.size();
    Value flat = join(elements, VectorType::get({count}, element));
    if (vector.getRank() == 1)
      return flat;
    return vector::ShapeCastOp::create(b, loc, vector.clone(element), flat);
  }

  Value roundToCodeByCvt(Value value, Type f8) {
    SmallVector<Value> elements = split(value), codes;
    Value zero = arith::ConstantOp::create(b, loc, b.getF32FloatAttr(0));
    auto pair = VectorType::get({2}, b.getI8Type());
    for (size_t i = 0; i < elements.size(); i += 2) {
      bool two = i + 1 < elements.size();
      // The first operand becomes the upper byte.
      Value both = NVVM::ConvertF32x2ToF8x2Op::create(
          b, loc, pair, two ? elements[i + 1] : zero, elements[i],
          NVVM::FPRoundingMode::RN, NVVM::SaturationMode::SATFINITE,
          /*relu=*/false, f8);
      for (size_t j = 0; j < (two ? 2 : 1); ++j)
        codes.push_back(LLVM::ExtractElementOp::create(b, loc, both, index(j)));
    }
    return join(codes);
  }

  /// To f16.
  Value widenCodeByCvt(Value code, Type f8) {
    SmallVector<Value> codes = split(code), values;
    Value zero = arith::ConstantOp::create(b, loc, b.getI8IntegerAttr(0));
    auto bytes = VectorType::get({2}, b.getI8Type());
    auto halves = VectorType::get({2}, b.getF16Type());
    for (size_t i = 0; i < codes.size(); i += 2) {
      bool two = i + 1 < codes.size();
      Value both = join({codes[i], two ? codes[i + 1] : zero}, bytes);
      Value wide = NVVM::ConvertF8x2ToF16x2Op::create(
          b, loc, halves, both, b.getBoolAttr(false), TypeAttr::get(f8));
      for (size_t j = 0; j < (two ? 2 : 1); ++j)
        values.push_back(
            LLVM::ExtractElementOp::create(b, loc, wide, index(j)));
    }
    return join(values);
  }

private:
  Value index(int64_t value) {
    return arith::ConstantOp::create(b, loc, b.getI32IntegerAttr(value));
  }
  Value join(ArrayRef<Value> elements, VectorType type) {
    Value result = LLVM::UndefOp::create(b, loc, type);
    for (auto [i, element] : llvm::enumerate(elements))
      result = LLVM::InsertElementOp::create(b, loc, result, element, index(i));
    return result;
  }

  OpBuilder &b;
  Location loc;
  Type like;
};

struct ConvertArithF8ToNVVM
    : public mlir::kvcache::impl::ConvertArithF8ToNVVMBase<
          ConvertArithF8ToNVVM> {
  using ConvertArithF8ToNVVMBase::ConvertArithF8ToNVVMBase;

  void runOnOperation() override {
    FailureOr<bool> cvt = hasCvt();
    if (failed(cvt))
      return signalPassFailure();
    SmallVector<Operation *> conversions;
    bool failed = false;
    getOperation().walk(
        [&](Operation *op) {
          if (isa<arith::ExtFOp, arith::TruncFOp>(op) && usesSmallFloats(op)) {
            if (succeeded(check(op)))
              conversions.push_back(op);
            else
              failed = true;
          } else if (isArithmetic(op) && usesSmallFloats(op)) {
            op->emitError()
                << "'" << op->getName()
                << "' computes in 8 bits or fewer, which no device does; widen "
                   "with arith.extf, compute, and narrow with arith.truncf";
            failed = true;
          }
        });
    if (failed)
      return signalPassFailure();
    for (Operation *op : conversions) {
      OpBuilder builder(op);
      Value input = op->getOperand(0);
      Type target = getElementTypeOrSelf(op->getResult(0).getType());
      Emitter emit(builder, op->getLoc(), input.getType());
      Value result;
      if (isa<arith::TruncFOp>(op)) {
        Value value = emit.narrowToF32(input);
        Value code = *cvt ? emit.roundToCodeByCvt(value, target)
                          : emit.roundToCode(value, target);
        result = emit.bitcast(code, target);
      } else {
        Type f8 = getElementTypeOrSelf(input.getType());
        Value code = emit.bitcast(input, builder.getI8Type());
        Value wide =
            *cvt ? emit.widenCodeByCvt(code, f8) : emit.widenCode(code, f8);
        result = emit.convert(wide, target);
      }
      op->getResult(0).replaceAllUsesWith(result);
      op->erase();
      ++numConversions;
    }
    if (!*cvt && !conversions.empty())
      getOperation().emitRemark()
          << conversions.size()
          << " conversions of 8-bit floats become integer code, because "
          << (lacksCvt.empty() ? StringRef("the target is not known")
                               : lacksCvt)
          << "; 'cvt' converts them on sm_90 and later, and on sm_89 with "
             "features = \"+ptx81\"";
  }

  /// Whether every chip that the module is for has `cvt` for 8-bit floats.
  FailureOr<bool> hasCvt() {
    SmallVector<std::pair<StringRef, StringRef>> chips;
    if (!target.empty())
      chips.push_back({target, ""});
    else if (ArrayAttr targets = getOperation().getTargetsAttr())
      for (auto nvvm : targets.getAsRange<Attribute>())
        if (auto attr = dyn_cast<NVVM::NVVMTargetAttr>(nvvm))
          chips.push_back({attr.getChip(), attr.getFeatures()});
    bool all = !chips.empty();
    lacksCvt.clear();
    for (auto [chip, features] : chips) {
      std::optional<int> arch = archOf(chip);
      if (!arch)
        return getOperation().emitError()
               << "expected a chip such as sm_80 or sm_90, but found '" << chip
               << "'";
      // On sm_89 `cvt` came with PTX 8.1, later than the chip.
      int ptx = 0;
      size_t at = features.find("+ptx");
      if (at != StringRef::npos)
        features.substr(at + 4).consumeInteger(10, ptx);
      if (*arch >= 90 || (*arch == 89 && ptx >= 81))
        continue;
      all = false;
      lacksCvt = (chip + " has no 'cvt' for them").str();
    }
    return all;
  }
  std::string lacksCvt; ///< the reason, when a chip is known

  static bool usesSmallFloats(Operation *op) {
    return llvm::any_of(op->getOperandTypes(), isSmallFloat) ||
           llvm::any_of(op->getResultTypes(), isSmallFloat);
  }

  /// Not what only moves bits about.
  static bool isArithmetic(Operation *op) {
    if (isa<arith::ArithDialect, math::MathDialect>(op->getDialect()))
      return !isa<arith::ConstantOp, arith::BitcastOp, arith::SelectOp>(op);
    return isa<vector::ReductionOp, vector::MultiDimReductionOp, vector::FMAOp,
               vector::ContractionOp, vector::OuterProductOp, vector::ScanOp,
               gpu::AllReduceOp, gpu::SubgroupReduceOp>(op);
  }

  LogicalResult check(Operation *op) {
    Type from = op->getOperand(0).getType(), to = op->getResult(0).getType();
    Type f8 = isa<arith::TruncFOp>(op) ? to : from;
    Type wide = getElementTypeOrSelf(isa<arith::TruncFOp>(op) ? from : to);
    if (!isKnownF8(f8) ||
        !isa<Float16Type, BFloat16Type, Float32Type, Float64Type>(wide))
      return op->emitError()
             << "converts " << from << " to " << to
             << "; conversions between f8E4M3FN or f8E5M2 and f16, bf16, f32 "
                "or f64 are known";
    auto vector = dyn_cast<VectorType>(from);
    if (isa<ShapedType>(from) && !vector)
      return op->emitError() << "works on " << from
                             << "; expected a scalar or a vector: bufferize "
                                "and lower to loops first";
    if (vector && vector.isScalable())
      return op->emitError()
             << "works on " << from << "; expected a vector of fixed length";
    if (auto trunc = dyn_cast<arith::TruncFOp>(op))
      if (auto mode = trunc.getRoundingmode();
          mode && *mode != arith::RoundingMode::to_nearest_even)
        return op->emitError()
               << "rounds " << arith::stringifyRoundingMode(*mode)
               << "; expected to_nearest_even";
    return success();
  }
};
} // namespace
