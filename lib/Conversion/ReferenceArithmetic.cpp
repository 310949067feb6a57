//===- ReferenceArithmetic.cpp - Exact narrow float conversions -----------===//

#include "ReferenceArithmetic.h"
#include "mlir/Dialect/Arith/IR/Arith.h"
#include "mlir/Dialect/Func/IR/FuncOps.h"

using namespace mlir;
using namespace mlir::kvcache;

namespace {

constexpr int kDoubleBias = 1023;
constexpr unsigned kDoubleMantissa = 52;
constexpr uint64_t kDoubleInfinity = uint64_t(0x7FF) << kDoubleMantissa;
constexpr uint64_t kDoubleMagnitude = ~(uint64_t(1) << 63);

/// What codes of a narrow type mean. Magnitudes are codes without the sign.
struct Format {
  unsigned width;
  unsigned mantissa;  ///< explicit bits
  int minExponent;    ///< of the smallest normal number
  uint64_t largest;   ///< magnitude of the largest finite number
  uint64_t overflow;  ///< magnitude (or code) beyond it: infinity, else NaN
  uint64_t nan;       ///< the code that a NaN becomes
  bool hasInfinity;   ///< `largest + 1`
  bool hasSignedZero; ///< else that code is the only NaN (fnuz)

  static Format of(FloatType type) {
    if (isa<Float8E4M3FNType>(type))
      return {8, 3, -6, 0x7E, 0x7F, 0x7F, false, true};
    if (isa<Float8E5M2Type>(type))
      return {8, 2, -14, 0x7B, 0x7C, 0x7F, true, true};
    if (isa<Float8E4M3FNUZType>(type))
      return {8, 3, -7, 0x7F, 0x80, 0x80, false, false};
    if (type.isF16())
      return {16, 10, -14, 0x7BFF, 0x7C00, 0x7FFF, true, true};
    assert(type.isBF16() && "no other narrow type is in a cache");
    return {16, 7, -126, 0x7F7F, 0x7F80, 0x7FFF, true, true};
  }

  uint64_t signBit() const { return uint64_t(1) << (width - 1); }
  /// Moves exponent fields of this format to those of f64.
  uint64_t rebias() const {
    return uint64_t(kDoubleBias + minExponent - 1) << kDoubleMantissa;
  }
  unsigned shift() const { return kDoubleMantissa - mantissa; }
};

struct Emitter {
  ImplicitLocOpBuilder &b;

  Value integer(uint64_t value) {
    return arith::ConstantOp::create(
        b, b.getI64IntegerAttr(static_cast<int64_t>(value)));
  }
  Value real(double value) {
    return arith::ConstantOp::create(b, b.getF64FloatAttr(value));
  }
  Value bits(Value real) {
    return arith::BitcastOp::create(b, b.getI64Type(), real);
  }
  Value fromBits(Value bits) {
    return arith::BitcastOp::create(b, b.getF64Type(), bits);
  }
  Value compare(arith::CmpIPredicate predicate, Value a, uint64_t c) {
    return arith::CmpIOp::create(b, predicate, a, integer(c));
  }
  Value select(Value condition, Value yes, Value no) {
    return arith::SelectOp::create(b, condition, yes, no);
  }
};

} // namespace

static Value emitWiden(ImplicitLocOpBuilder &b, Value value) {
  Format format = Format::of(cast<FloatType>(value.getType()));
  Emitter e{b};
  Value raw =
      arith::BitcastOp::create(b, b.getIntegerType(format.width), value);
  Value code = arith::ExtUIOp::create(b, b.getI64Type(), raw);
  Value magnitude =
      arith::AndIOp::create(b, code, e.integer(format.signBit() - 1));

  Value moved = arith::ShLIOp::create(b, magnitude, e.integer(format.shift()));
  Value normal =
      e.fromBits(arith::AddIOp::create(b, moved, e.integer(format.rebias())));
  // A subnormal is its code times the smallest step; both are exact in f64.
  Value steps = arith::UIToFPOp::create(b, b.getF64Type(), magnitude);
  double step = std::ldexp(1.0, format.minExponent - int(format.mantissa));
  Value subnormal = arith::MulFOp::create(b, steps, e.real(step));
  Value isSubnormal = e.compare(arith::CmpIPredicate::ult, magnitude,
                                uint64_t(1) << format.mantissa);
  Value result = e.select(isSubnormal, subnormal, normal);

  if (format.hasInfinity) {
    Value isInfinity =
        e.compare(arith::CmpIPredicate::eq, magnitude, format.largest + 1);
    result = e.select(isInfinity,
                      e.real(std::numeric_limits<double>::infinity()), result);
  }
  Value isNaN =
      format.hasSignedZero
          ? e.compare(arith::CmpIPredicate::ugt, magnitude,
                      format.hasInfinity ? format.largest + 1 : format.largest)
          : e.compare(arith::CmpIPredicate::eq, code, format.nan);
  result =
      e.select(isNaN, e.real(std::numeric_limits<double>::quiet_NaN()), result);

  Value sign = arith::ShRUIOp::create(b, code, e.integer(format.width - 1));
  sign = arith::ShLIOp::create(b, sign, e.integer(63));
  return e.fromBits(arith::OrIOp::create(b, e.bits(result), sign));
}

static Value emitRound(ImplicitLocOpBuilder &b, Value value, FloatType type) {
  Format format = Format::of(type);
  Emitter e{b};
  Value bits = e.bits(value);
  Value magnitude = arith::AndIOp::create(b, bits, e.integer(kDoubleMagnitude));

  // Normal: half of the last place less one, plus one if the last kept bit is
  // odd, carries exactly when nearest even rounds up.
  Value rebased =
      arith::SubIOp::create(b, magnitude, e.integer(format.rebias()));
  Value lastKept =
      arith::ShRUIOp::create(b, rebased, e.integer(format.shift()));
  Value odd = arith::AndIOp::create(b, lastKept, e.integer(1));
  uint64_t half = uint64_t(1) << (format.shift() - 1);
  Value carried = arith::AddIOp::create(b, rebased, e.integer(half - 1));
  carried = arith::AddIOp::create(b, carried, odd);
  Value normal = arith::ShRUIOp::create(b, carried, e.integer(format.shift()));

  // Subnormal: beside this power of two the last place of an f64 is the
  // format's smallest step, so the f64 addition rounds to nearest even.
  double magic = std::ldexp(1.0, format.minExponent - int(format.mantissa) +
                                     int(kDoubleMantissa));
  Value sum = arith::AddFOp::create(b, e.fromBits(magnitude), e.real(magic));
  uint64_t magicBits = llvm::bit_cast<uint64_t>(magic);
  Value subnormal = arith::SubIOp::create(b, e.bits(sum), e.integer(magicBits));

  uint64_t smallestNormal = format.rebias() + (uint64_t(1) << kDoubleMantissa);
  Value isSubnormal =
      e.compare(arith::CmpIPredicate::ult, magnitude, smallestNormal);
  Value code = e.select(isSubnormal, subnormal, normal);
  Value overflows = e.compare(arith::CmpIPredicate::ugt, code, format.largest);
  code = e.select(overflows, e.integer(format.overflow), code);

  Value sign = arith::ShRUIOp::create(b, bits, e.integer(63));
  sign = arith::ShLIOp::create(b, sign, e.integer(format.width - 1));
  if (!format.hasSignedZero)
    sign = e.select(e.compare(arith::CmpIPredicate::eq, code, 0), e.integer(0),
                    sign);
  code = arith::OrIOp::create(b, code, sign);
  Value isNaN =
      e.compare(arith::CmpIPredicate::ugt, magnitude, kDoubleInfinity);
  code = e.select(isNaN, e.integer(format.nan), code);
  Value raw = arith::TruncIOp::create(b, b.getIntegerType(format.width), code);
  return arith::BitcastOp::create(b, type, raw);
}

StringAttr ReferenceArithmetic::getFunction(
    StringRef name, Type input, Type result,
    function_ref<Value(ImplicitLocOpBuilder &, Value)> body) {
  auto symbol = StringAttr::get(module.getContext(), name);
  if (SymbolTable::lookupSymbolIn(module, symbol))
    return symbol;
  auto builder = ImplicitLocOpBuilder::atBlockEnd(
      UnknownLoc::get(module.getContext()), module.getBody());
  auto function = func::FuncOp::create(
      builder, name, builder.getFunctionType({input}, {result}));
  function.setPrivate();
  Block *entry = function.addEntryBlock();
  builder.setInsertionPointToStart(entry);
  func::ReturnOp::create(builder, body(builder, entry->getArgument(0)));
  return symbol;
}

static std::string functionName(StringRef stem, Type type) {
  std::string name;
  llvm::raw_string_ostream(name) << "kvcache." << stem << '.' << type;
  return name;
}

Value ReferenceArithmetic::widen(ImplicitLocOpBuilder &builder, Value value) {
  Type type = value.getType();
  if (type.isF64())
    return value;
  // extf of 16 bits is exact, and upstream lowers it. Integer arithmetic would
  // not do: of a bf16, LLVM 22.1.8 makes the mask of the sign bit a fabs, and
  // its x86 selection then drops the sign from the unmasked uses too.
  if (type.isF16() || type.isBF16())
    value = arith::ExtFOp::create(builder, builder.getF32Type(), value);
  if (value.getType().isF32())
    return arith::ExtFOp::create(builder, builder.getF64Type(), value);
  StringAttr function = getFunction(functionName("widen", type), type,
                                    builder.getF64Type(), emitWiden);
  return func::CallOp::create(builder, function,
                              TypeRange(builder.getF64Type()), value)
      .getResult(0);
}

Value ReferenceArithmetic::round(ImplicitLocOpBuilder &builder, Value value,
                                 FloatType type) {
  if (type.isF64())
    return value;
  if (type.isF32())
    return arith::TruncFOp::create(builder, type, value);
  StringAttr function =
      getFunction(functionName("round", type), builder.getF64Type(), type,
                  [type](ImplicitLocOpBuilder &b, Value input) {
                    return emitRound(b, input, type);
                  });
  return func::CallOp::create(builder, function, TypeRange(type), value)
      .getResult(0);
}
