//===- Verify.cpp - A run against double precision ------------------------===//

#include "kvcache/Runtime/Verify.h"
#include "kvcache/Support/FP8.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

namespace kvcache {

namespace {

/// Exact for every float type; integers are not asked for.
double decode(ElementType type, const uint8_t *data) {
  switch (type) {
  case ElementType::F8E4M3FN:
    return fromE4M3FN(*data);
  case ElementType::F8E5M2:
    return fromE5M2(*data);
  case ElementType::BF16:
  case ElementType::F16: {
    uint16_t code;
    std::memcpy(&code, data, sizeof(code));
    return type == ElementType::BF16 ? fromBF16(code) : fromF16(code);
  }
  case ElementType::F32: {
    float value;
    std::memcpy(&value, data, sizeof(value));
    return value;
  }
  default:
    return std::numeric_limits<double>::quiet_NaN();
  }
}

/// The code of `x` in a cache of `type`; 16-bit caches keep `x` itself.
std::vector<uint8_t> encode(ElementType type, float x, float scale) {
  switch (type) {
  case ElementType::F8E4M3FN:
    return {quantizeE4M3FN(x, scale)};
  case ElementType::F8E5M2:
    return {quantizeE5M2(x, scale)};
  default: {
    uint16_t code =
        type == ElementType::BF16 ? toBF16(x / scale) : toF16(x / scale);
    return {uint8_t(code), uint8_t(code >> 8)};
  }
  }
}

/// Of 8-bit caches only: others are not quantized, and fp8_ds_mla rows have
/// scales of their own.
float scaleOf(const Layer &layer, const ManifestScale &scale, int64_t head) {
  bool scaled = layer.elementType == ElementType::F8E4M3FN ||
                layer.elementType == ElementType::F8E5M2;
  return scaled && !layer.hasTokenScales() ? scale.ofHead(head) : 1;
}

/// The scale that the write computes for a row of a head.
float tokenScale(const std::vector<float> &row) {
  float largest = 0;
  for (float x : row)
    largest = std::fmax(largest, std::fabs(x));
  return std::fmax(largest / 448, 1e-6f);
}

/// Codes that share a scale in an fp8_ds_mla row.
constexpr size_t tileCodes = 128;

/// The bytes of a row of one head in its cache. Of an fp8_ds_mla row: codes,
/// scales, the rotary part in bf16. The scale of 128 codes is the largest
/// magnitude that is no NaN / 448, at least 2^-126; all of it is f32
/// arithmetic.
std::vector<uint8_t> encodeRow(const Layer &layer, float scale,
                               const std::vector<float> &row) {
  std::vector<uint8_t> bytes;
  auto append = [&](ElementType type, float x, float scale) {
    for (uint8_t byte : encode(type, x, scale))
      bytes.push_back(byte);
  };
  if (!layer.isTileScaled()) {
    for (float x : row)
      append(layer.elementType, x, scale);
    return bytes;
  }
  std::vector<float> scales;
  for (size_t at = 0; at < size_t(layer.valueDim()); at += tileCodes) {
    float largest = 0;
    for (size_t i = at; i < at + tileCodes; ++i)
      largest = std::fmax(largest, std::fabs(row[i]));
    scales.push_back(std::fmax(largest / 448, 0x1p-126f));
    for (size_t i = at; i < at + tileCodes; ++i)
      append(ElementType::F8E4M3FN, row[i], scales.back());
  }
  const uint8_t *scaleBytes = reinterpret_cast<const uint8_t *>(scales.data());
  bytes.insert(bytes.end(), scaleBytes, scaleBytes + 4 * scales.size());
  for (size_t i = size_t(layer.valueDim()); i < row.size(); ++i)
    append(ElementType::BF16, row[i], 1);
  return bytes;
}

/// Distance between two neighbours of `type` at |x|.
double ulp(ElementType type, double x) {
  int mantissaBits = 23, minExponent = -126;
  switch (type) {
  case ElementType::BF16:
    mantissaBits = 7;
    break;
  case ElementType::F16:
    mantissaBits = 10, minExponent = -14;
    break;
  case ElementType::F8E4M3FN:
    mantissaBits = 3, minExponent = -6;
    break;
  case ElementType::F8E5M2:
    mantissaBits = 2, minExponent = -14;
    break;
  default:
    break;
  }
  int exponent = minExponent;
  if (x != 0 && std::isfinite(x))
    exponent = std::max(minExponent, std::ilogb(x));
  return std::ldexp(1.0, exponent - mantissaBits);
}

/// Element offset of an index by a buffer's strides.
template <typename Index = std::initializer_list<int64_t>>
int64_t offsetOf(const Buffer &buffer, const Index &index) {
  int64_t offset = 0;
  size_t dim = 0;
  for (int64_t i : index)
    offset += i * buffer.strides[dim++];
  return offset;
}

std::string number(double value) {
  char text[40];
  std::snprintf(text, sizeof(text), "%.9g", value);
  return text;
}

void addError(LayerVerification &result, const std::string &message) {
  constexpr size_t kept = 8;
  if (result.errors.size() < kept)
    result.errors.push_back(message);
}

/// A whole buffer, read through its strides.
struct Elements {
  const Buffer *buffer = nullptr;
  std::vector<uint8_t> memory; // of the owner
  uint64_t base = 0;           // of the view, in memory

  template <typename Index = std::initializer_list<int64_t>>
  double at(const Index &index) const {
    return decode(buffer->elementType, byteAt(index));
  }
  template <typename Index = std::initializer_list<int64_t>>
  const uint8_t *byteAt(const Index &index) const {
    return memory.data() + base +
           uint64_t(offsetOf(*buffer, index)) *
               elementTypeBytes(buffer->elementType);
  }
  template <typename Integer>
  int64_t integerAt(std::initializer_list<int64_t> index) const {
    Integer value;
    std::memcpy(&value, byteAt(index), sizeof(value));
    return value;
  }
};

Expected<Elements> load(const Session &session, const std::string &name) {
  Elements elements;
  elements.buffer = session.manifest().findBuffer(name);
  Expected<std::vector<uint8_t>> memory = session.memory(*elements.buffer);
  if (!memory)
    return memory.error();
  elements.memory = std::move(*memory);
  elements.base =
      elements.buffer->offsetIn ? elements.buffer->offsetIn->offset : 0;
  return elements;
}

/// Rotates elements first .. first + dim - 1 of a row as a write does: products
/// and sums are rounded to f32, which from f64 is the same as in f32.
void rotate(std::vector<float> &row, size_t first, const Elements &table,
            int64_t position, bool interleaved) {
  int64_t dim = table.buffer->shape[1], half = dim / 2;
  for (int64_t angle = 0; angle < half; ++angle) {
    double cosine = table.at({position, angle}),
           sine = table.at({position, half + angle});
    float &x = row[first + size_t(interleaved ? 2 * angle : angle)];
    float &y = row[first + size_t(interleaved ? 2 * angle + 1 : angle + half)];
    float xCosine = float(x * cosine), ySine = float(y * sine),
          xSine = float(x * sine), yCosine = float(y * cosine);
    x = float(double(xCosine) - double(ySine));
    y = float(double(yCosine) + double(xSine));
  }
}

/// One query row of one head: what the reference says.
struct RowReference {
  std::vector<double> output; // [valueDim]
  std::vector<double> error;  // that rounding P may leave, [valueDim]
  /// The same with P rounded to e4m3 as the kernels of fp8-math do; empty
  /// otherwise.
  std::vector<double> rounded, roundedError;
  double lse = -std::numeric_limits<double>::infinity();
};

class AttentionReference {
public:
  AttentionReference(const Layer &layer, Elements query, Elements keys,
                     Elements values, Elements table, Elements sinks,
                     Elements slopes, Elements keyScales, Elements valueScales,
                     Math math, bool hasLse)
      : layer(layer), math(math), hasLse(hasLse), query(std::move(query)),
        keys(std::move(keys)), values(std::move(values)),
        table(std::move(table)), sinks(std::move(sinks)),
        slopes(std::move(slopes)), keyScales(std::move(keyScales)),
        valueScales(std::move(valueScales)),
        softmaxScale(layer.softmaxScale.value()) {
    if (layer.qScale)
      softmaxScale *= double(layer.qScale->value.value());
  }

  /// Row `row`, head `head`, which sees the first `visible` tokens of
  /// `sequence`.
  RowReference compute(int64_t row, int64_t head, int64_t sequence,
                       int64_t visible) const {
    RowReference result;
    size_t dim = size_t(layer.headDim), valueDim = size_t(layer.valueDim());
    result.output.assign(valueDim, 0);
    result.error.assign(valueDim, 0);
    if (math == Math::FP8) {
      result.rounded.assign(valueDim, 0);
      result.roundedError.assign(valueDim, 0);
    }
    if (visible <= 0)
      return result;
    int64_t kvHead = head / (layer.queryHeads / layer.kvHeads);
    double kScale = scaleOf(layer, layer.kScale, kvHead);
    double vScale = scaleOf(layer, layer.vScale, kvHead);
    // Keys in front of the window stay at -inf, weight 0, and are not read.
    int64_t first =
        layer.window ? std::max<int64_t>(0, visible - 1 - *layer.window) : 0;
    std::vector<double> q(dim),
        scores(static_cast<size_t>(visible),
               -std::numeric_limits<double>::infinity());
    for (size_t d = 0; d < dim; ++d)
      q[d] = query.at({row, head, int64_t(d)});
    if (math == Math::FP8)
      roundQuery(q);
    double largest = -std::numeric_limits<double>::infinity();
    bool nan = false;
    for (int64_t t = first; t < visible; ++t) {
      int64_t page = table.integerAt<int32_t>({sequence, t / layer.pageSize});
      double sum = 0;
      for (size_t d = 0; d < dim; ++d)
        sum += q[d] * element(keys, page, t % layer.pageSize, kvHead, d);
      double score = sum * kScale * softmaxScale;
      if (layer.hasTokenScales())
        score *= scaleOfToken(keyScales, keys, layer.headDim, page,
                              t % layer.pageSize, kvHead);
      if (layer.softCap) {
        double cap = layer.softCap->value();
        score = cap * std::tanh(score / cap);
      }
      if (slopes.buffer)
        score += slopes.at({head}) * double(t - (visible - 1));
      scores[size_t(t)] = score;
      nan |= std::isnan(score);
      largest = std::max(largest, score);
    }
    double total = 0;
    if (sinks.buffer) {
      double sink = sinks.at({head});
      largest = std::max(largest, sink);
      total = std::exp(sink - largest);
    }
    // What divides rounded P: their own sum, or the exact one of an LSE.
    double divisor = total, divisorError = 0, divisorLeft = 0;
    std::vector<Rounding> roundings(math == Math::FP8 ? scores.size() : 0);
    double most =
        std::exp(*std::max_element(scores.begin(), scores.end()) - largest);
    for (size_t t = 0; t < scores.size(); ++t) {
      double score = scores[t];
      scores[t] = std::exp(score - largest);
      total += scores[t];
      if (math != Math::FP8 || scores[t] == 0)
        continue;
      roundings[t] = roundProbability(score, scores[t], most);
      divisor += hasLse ? scores[t] : roundings[t].value;
      divisorError += hasLse ? 0 : roundings[t].error;
      divisorLeft += hasLse ? 0 : roundings[t].left;
    }
    if (nan)
      total = divisor = std::numeric_limits<double>::quiet_NaN();
    result.lse = largest + std::log(total);
    // Probabilities are f16 in a kernel, and bf16 over a bf16 cache and over
    // fp8_ds_mla rows.
    const bool isBrain =
        layer.elementType == ElementType::BF16 || layer.isTileScaled();
    const double unit = isBrain ? 0x1p-8 : 0x1p-9;
    for (int64_t t = first; t < visible; ++t) {
      int64_t page = table.integerAt<int32_t>({sequence, t / layer.pageSize});
      double p = scores[size_t(t)] / total;
      if (layer.hasTokenScales())
        p *= scaleOfToken(valueScales, values, layer.valueDim(), page,
                          t % layer.pageSize, kvHead);
      for (size_t d = 0; d < valueDim; ++d) {
        double v =
            vScale * element(values, page, t % layer.pageSize, kvHead, d);
        result.output[d] += p * v;
        if (math == Math::F16) {
          result.error[d] += unit * std::fabs(p * v);
          continue;
        }
        const Rounding &rounding = roundings[size_t(t)];
        result.error[d] += rounding.error / divisor * std::fabs(v);
        result.rounded[d] += rounding.value / divisor * v;
        result.roundedError[d] += rounding.left / divisor * std::fabs(v);
      }
    }
    if (math == Math::FP8)
      for (size_t d = 0; d < valueDim; ++d) {
        double share = std::fabs(result.rounded[d]) / divisor;
        result.error[d] += share * divisorError;
        result.roundedError[d] += share * divisorLeft;
      }
    return result;
  }

private:
  /// Queries become e4m3, with the power of two that brings the largest
  /// magnitude to [2^7, 2^8); codes stay what they are.
  void roundQuery(std::vector<double> &q) const {
    if (elementTypeBytes(query.buffer->elementType) == 1)
      return;
    double largest = 0;
    for (double x : q)
      largest = std::max(largest, std::fabs(x));
    if (largest == 0 || !std::isfinite(largest))
      return;
    int exponent = std::ilogb(largest) - 7;
    for (double &x : q)
      x = std::ldexp(
          fromE4M3FN(quantizeE4M3FN(float(std::ldexp(x, -exponent)), 1.0f)),
          exponent);
  }

  /// A probability in e4m3, the error of that, and what may be left of it when
  /// the rounding is known.
  struct Rounding {
    double value = 0, error = 0, left = 0;
  };

  /// `p` and the largest one, `most`, have a common factor. A kernel's P is
  /// 2^(score - n) with an integer n, so it is rounded to four bits whatever n
  /// is, unless it is below 2^-12 of the largest: then to a multiple of 2^-15
  /// of that at most. Scores of f32 may lie on the other side of a tie.
  static Rounding roundProbability(double score, double p, double most) {
    double log2 = score / std::log(2.0);
    double mantissa = 8 * std::exp2(log2 - std::floor(log2));
    double step = p / mantissa;
    double tie = std::fabs(mantissa - std::floor(mantissa) - 0.5);
    bool isNear = tie < 16 * (0x1p-12 + 0x1p-20 * std::fabs(log2));
    bool isSmall = p < 0x1p-12 * most;
    Rounding rounding;
    rounding.value = std::nearbyint(mantissa) * step;
    rounding.error = std::max(0x1p-4 * p, isSmall ? 0x1p-16 * most : 0.0);
    rounding.left = 0x1p-9 * p + (isNear ? step : 0) +
                    (isSmall ? 0x1p-16 * most + 0x1p-4 * p : 0);
    return rounding;
  }

  /// The scale of a token, beside the pages or behind the `width` codes of its
  /// row.
  double scaleOfToken(const Elements &scales, const Elements &cache,
                      int64_t width, int64_t page, int64_t offset,
                      int64_t head) const {
    return layer.hasInlineScales()
               ? decode(ElementType::F32,
                        cache.byteAt({page, offset, head, width}))
               : scales.at({page, offset, head});
  }

  /// An element of a row, without the layer's scale.
  double element(const Elements &cache, int64_t page, int64_t offset,
                 int64_t head, size_t d) const {
    if (!layer.isTileScaled())
      return decode(layer.elementType,
                    cache.byteAt({page, offset, head, int64_t(d)}));
    const uint8_t *row = cache.byteAt({page, offset, head, 0});
    const uint8_t *scales = row + layer.valueDim();
    const uint8_t *rope = scales + layer.valueDim() / 32;
    if (d >= size_t(layer.valueDim()))
      return decode(ElementType::BF16,
                    rope + 2 * (d - size_t(layer.valueDim())));
    return decode(ElementType::F8E4M3FN, row + d) *
           decode(ElementType::F32, scales + 4 * (d / tileCodes));
  }

  const Layer &layer;
  const Math math;
  const bool hasLse;
  Elements query, keys, values, table, sinks, slopes, keyScales, valueScales;
  double softmaxScale;
};

/// The share of its tolerance that an error takes; above 1 it is wrong. NaN
/// belongs where the reference has NaN, and nowhere else.
double toleranceShare(double found, double reference, double tolerance) {
  if (std::isnan(reference) || std::isnan(found))
    return std::isnan(reference) && std::isnan(found)
               ? 0
               : std::numeric_limits<double>::infinity();
  if (found == reference)
    return 0;
  return std::fabs(found - reference) / tolerance;
}

/// Compares one output.
void compareElement(const Elements &output,
                    std::initializer_list<int64_t> index, double right,
                    double tolerance, LayerVerification &result) {
  double found = output.at(index);
  double share = toleranceShare(found, right, tolerance);
  ++result.outputsCompared;
  if (std::isfinite(found - right))
    result.maxError = std::max(result.maxError, std::fabs(found - right));
  result.maxToleranceShare = std::max(result.maxToleranceShare, share);
  if (share <= 1 || result.outputsWrong++ != 0)
    return;
  std::string position;
  for (int64_t i : index)
    position += (position.empty() ? "" : ", ") + std::to_string(i);
  addError(result, output.buffer->name + "[" + position + "]: expected " +
                       number(right) + " within " + number(tolerance) +
                       ", found " + number(found));
}

void compareLse(const Elements &lse, int64_t row, int64_t head, double right,
                LayerVerification &result) {
  double found = lse.at({row, head});
  double share =
      toleranceShare(found, right, 1e-5 * std::max(1.0, std::fabs(right)));
  if (std::isfinite(found - right))
    result.maxLseError = std::max(result.maxLseError, std::fabs(found - right));
  if (share > 1 || std::isnan(share))
    addError(result, lse.buffer->name + "[" + std::to_string(row) + ", " +
                         std::to_string(head) + "]: expected " + number(right) +
                         ", found " + number(found));
}

/// The index of element `flat` of a buffer, counted in the order of its shape.
std::vector<int64_t> indexOf(const Buffer &buffer, int64_t flat) {
  std::vector<int64_t> index(buffer.shape.size());
  for (size_t dim = index.size(); dim-- > 0; flat /= buffer.shape[dim])
    index[dim] = flat % buffer.shape[dim];
  return index;
}

/// Compares `elements` of `out` with what quantization makes of `in`, code =
/// RNE(clamp(x * (1 / s))), or dequantization, code * s rounded to f32 and to
/// the type. All of it is exact.
void compareElementwise(const Elements &in, const Elements &out, float scale,
                        int64_t elements, LayerVerification &result) {
  const ElementType type = out.buffer->elementType;
  const bool quantizes = isFP8(type);
  const float factor = quantizes ? 1.0f / scale : scale;
  for (int64_t i = 0; i < elements; ++i) {
    const uint8_t *found = out.byteAt(indexOf(*out.buffer, i));
    float product = float(in.at(indexOf(*in.buffer, i))) * factor;
    std::vector<uint8_t> right;
    if (type == ElementType::F32) {
      right.resize(sizeof(product));
      std::memcpy(right.data(), &product, sizeof(product));
    } else {
      right = encode(type, product, 1.0f);
    }
    ++result.codesCompared;
    bool same =
        std::memcmp(found, right.data(), right.size()) == 0 ||
        (!quantizes && std::isnan(product) && std::isnan(decode(type, found)));
    if (same || result.codesWrong++ != 0)
      continue;
    std::string position;
    for (int64_t at : indexOf(*out.buffer, i))
      position += (position.empty() ? "" : ", ") + std::to_string(at);
    auto hex = [](const uint8_t *bytes, size_t count) {
      std::string text = "0x";
      for (size_t byte = count; byte-- > 0;) {
        char digits[3];
        std::snprintf(digits, sizeof(digits), "%02X", bytes[byte]);
        text += digits;
      }
      return text;
    };
    addError(result, out.buffer->name + "[" + position + "]: expected " +
                         hex(right.data(), right.size()) + " by the " +
                         (quantizes ? "quantization" : "dequantization") +
                         ", found " + hex(found, right.size()));
  }
}

} // namespace

void LayerVerification::add(const LayerVerification &other) {
  codesCompared += other.codesCompared;
  codesWrong += other.codesWrong;
  bytesDisturbed += other.bytesDisturbed;
  outputsCompared += other.outputsCompared;
  outputsWrong += other.outputsWrong;
  maxError = std::max(maxError, other.maxError);
  maxToleranceShare = std::max(maxToleranceShare, other.maxToleranceShare);
  maxLseError = std::max(maxLseError, other.maxLseError);
  for (const std::string &error : other.errors)
    addError(*this, error);
}

Error Verifier::begin(const Segment &segment) {
  before.clear();
  const Manifest &manifest = session.manifest();
  for (const Layer *layer : session.layers(segment))
    for (const std::string *name :
         {&layer->buffers.kCache, &layer->buffers.vCache,
          &layer->buffers.kScales, &layer->buffers.vScales}) {
      if (name->empty())
        continue;
      Expected<std::vector<uint8_t>> bytes =
          session.memory(*manifest.findBuffer(*name));
      if (!bytes)
        return bytes.error();
      before[*name] = std::move(*bytes);
    }
  return Error::success();
}

Expected<std::vector<LayerVerification>>
Verifier::finish(const Segment &segment) {
  std::vector<LayerVerification> results;
  std::vector<const Layer *> read = session.layers(segment, /*writes=*/false);
  for (const Layer *layer : session.layers(segment)) {
    LayerVerification result;
    result.layer = layer->id;
    if (Error error = compareCache(segment, *layer, result))
      return error;
    if (std::find(read.begin(), read.end(), layer) != read.end())
      if (Error error = compareAttention(*layer, result))
        return error;
    results.push_back(std::move(result));
  }
  for (const Launch *launch : session.launches(segment)) {
    bool isMerge = launch->op == LaunchOp::MergeStates;
    if (!needsNoLayer(launch->op) || !launch->layer.empty())
      continue;
    LayerVerification result;
    result.layer = launch->arguments[isMerge ? 4 : 1].buffer;
    if (Error error = isMerge ? compareMerge(*launch, result)
                              : compareElementwise(*launch, result))
      return error;
    results.push_back(std::move(result));
  }
  return results;
}

/// A quantization or dequantization that is not of a layer's queries: no layer
/// has its scale, so it is the launch's.
Error Verifier::compareElementwise(const Launch &launch,
                                   LayerVerification &result) {
  Expected<Elements> in = load(session, launch.arguments[0].buffer),
                     out = load(session, launch.arguments[1].buffer);
  if (!in || !out)
    return !in ? in.error() : out.error();
  for (const Argument &argument : launch.arguments) {
    if (argument.kind != Argument::Kind::F32)
      continue;
    int64_t elements = 1;
    for (int64_t size : session.liveShape(*in->buffer))
      elements *= size;
    kvcache::compareElementwise(*in, *out, argument.f32.value(), elements,
                                result);
    return Error::success();
  }
  return makeError("launch of " + launch.kernel +
                   ": expected a scale among its arguments, found none");
}

Error Verifier::compareMerge(const Launch &launch, LayerVerification &result) {
  std::vector<Elements> parts;
  for (size_t i = 0; i < 6; ++i) {
    Expected<Elements> part = load(session, launch.arguments[i].buffer);
    if (!part)
      return part.error();
    parts.push_back(std::move(*part));
  }
  const Buffer &out = *parts[4].buffer;
  int64_t rows = session.liveShape(out)[0];
  auto infinity = std::numeric_limits<double>::infinity();
  for (int64_t row = 0; row < rows; ++row)
    for (int64_t head = 0; head < out.shape[1]; ++head) {
      double a = parts[1].at({row, head}), b = parts[3].at({row, head});
      bool empty = a == -infinity && b == -infinity;
      double top = std::max(a, b);
      double lse =
          empty ? top : top + std::log(std::exp(a - top) + std::exp(b - top));
      // What has no weight in f32 does not count.
      float weightA = empty ? 0 : float(std::exp(a - lse)),
            weightB = empty ? 0 : float(std::exp(b - lse));
      for (int64_t d = 0; d < out.shape[2]; ++d) {
        double x = weightA == 0 ? 0 : parts[0].at({row, head, d}),
               y = weightB == 0 ? 0 : parts[2].at({row, head, d});
        double right = double(weightA) * x + double(weightB) * y;
        compareElement(parts[4], {row, head, d}, right,
                       ulp(out.elementType, right) +
                           4e-6 * (std::fabs(x) + std::fabs(y)),
                       result);
      }
      compareLse(parts[5], row, head, lse, result);
    }
  return Error::success();
}

Error Verifier::compareCache(const Segment &segment, const Layer &layer,
                             LayerVerification &result) {
  const LayerBuffers &names = layer.buffers;
  const Manifest &manifest = session.manifest();
  // K and V of a packed cache lie in one memory: expect both before comparing.
  struct Memory {
    std::vector<uint8_t> image;
    std::vector<bool> written;
  };
  std::map<std::string, Memory> expected;
  std::vector<const std::string *> caches = {&names.kCache};
  if (names.vCache != names.kCache)
    caches.push_back(&names.vCache);
  auto memoryOf = [&](const Buffer &cache) -> Memory & {
    Memory &memory =
        expected[cache.offsetIn ? cache.offsetIn->buffer : cache.name];
    if (memory.image.empty()) {
      memory.image = before[cache.name];
      memory.written.assign(memory.image.size(), false);
    }
    return memory;
  };
  // Where the row of a token and head starts; its bytes are contiguous.
  auto rowAt = [&](const Buffer &cache, int64_t page, int64_t token,
                   int64_t head) {
    return (cache.offsetIn ? cache.offsetIn->offset : 0) +
           elementTypeBytes(cache.elementType) *
               uint64_t(offsetOf(cache, {page, token, head, 0}));
  };
  auto put = [&](Memory &memory, uint64_t at,
                 const std::vector<uint8_t> &bytes) {
    for (uint8_t byte : bytes) {
      memory.image[at] = byte;
      memory.written[at++] = true;
    }
  };
  for (const std::string *name : caches)
    memoryOf(*manifest.findBuffer(*name));
  for (const std::string *name : {&names.kScales, &names.vScales})
    if (!name->empty())
      memoryOf(*manifest.findBuffer(*name));
  // The layer may write in another segment, and layers that share its cache
  // write one after the other.
  for (const Launch *launch : session.launches(segment)) {
    const Layer *writer = manifest.findLayer(launch->layer);
    if (!writer || writer->cache != layer.cache)
      continue;
    if (launch->op == LaunchOp::CopyPages) {
      Expected<Elements> pairs =
          load(session, manifest.findPageCopies(*launch)->name);
      if (!pairs)
        return pairs.error();
      for (int64_t pair = 0; pair < pairs->buffer->shape[0]; ++pair) {
        int64_t from = pairs->integerAt<int64_t>({pair, 0}),
                to = pairs->integerAt<int64_t>({pair, 1});
        if (std::min(from, to) < 0 ||
            std::max(from, to) >= manifest.capacities.numPages)
          continue;
        for (const std::string *name : caches) {
          const Buffer &cache = *manifest.findBuffer(*name);
          Memory &memory = memoryOf(cache);
          int64_t bytes =
              cache.shape.back() * elementTypeBytes(cache.elementType);
          for (int64_t token = 0; token < layer.pageSize; ++token)
            for (int64_t head = 0; head < layer.kvHeads; ++head) {
              auto *source =
                  memory.image.data() + rowAt(cache, from, token, head);
              put(memory, rowAt(cache, to, token, head),
                  std::vector<uint8_t>(source, source + bytes));
            }
        }
        for (const std::string *name : {&names.kScales, &names.vScales}) {
          if (name->empty())
            continue;
          const Buffer &scales = *manifest.findBuffer(*name);
          Memory &memory = memoryOf(scales);
          auto *source = memory.image.data() +
                         4 * uint64_t(offsetOf(scales, {from, 0, 0}));
          put(memory, 4 * uint64_t(offsetOf(scales, {to, 0, 0})),
              std::vector<uint8_t>(source, source + 4 * scales.strides[0]));
        }
      }
    }
    if (!isWrite(launch->op))
      continue;
    Expected<Elements> slots = load(session, names.slotMapping);
    Expected<Elements> keys = load(session, writer->buffers.key);
    Expected<Elements> values = load(session, writer->buffers.value);
    if (!slots || !keys || !values)
      return !slots ? slots.error() : !keys ? keys.error() : values.error();
    Elements table, positions;
    if (!writer->buffers.ropeTable.empty())
      for (auto [name, elements] :
           {std::pair(&writer->buffers.ropeTable, &table),
            std::pair(&writer->buffers.positions, &positions)}) {
        Expected<Elements> loaded = load(session, *name);
        if (!loaded)
          return loaded.error();
        *elements = std::move(*loaded);
      }
    int64_t pool = manifest.capacities.numPages * layer.pageSize;
    for (const std::string *name : caches) {
      const Buffer &cache = *manifest.findBuffer(*name);
      Memory &memory = memoryOf(cache);
      bool isKey = name == &names.kCache;
      bool rotates = isKey && table.buffer;
      const Elements &rows = isKey ? *keys : *values;
      for (int64_t row = 0; row < manifest.capacities.maxTokens; ++row) {
        int64_t slot = slots->integerAt<int64_t>({row});
        int64_t position = rotates ? positions.integerAt<int64_t>({row}) : 0;
        if (slot < 0 || slot >= pool ||
            (rotates && (position < 0 || position >= table.buffer->shape[0])))
          continue;
        for (int64_t head = 0; head < layer.kvHeads; ++head) {
          std::vector<float> elements;
          int64_t width = isKey ? layer.headDim : layer.valueDim();
          for (int64_t d = 0; d < width; ++d)
            elements.push_back(
                float(!layer.isLatent() ? rows.at({row, head, d})
                      : d < layer.valueDim()
                          ? rows.at({row, d})
                          : values->at({row, d - layer.valueDim()})));
          if (rotates)
            rotate(elements, layer.isLatent() ? size_t(layer.valueDim()) : 0,
                   table, position, writer->ropeInterleaved);
          const int64_t page = slot / layer.pageSize,
                        token = slot % layer.pageSize;
          const uint64_t at = rowAt(cache, page, token, head);
          if (layer.hasTokenScales()) {
            // The scale of the token, and codes of x * (1 / scale).
            float own = tokenScale(elements);
            std::vector<uint8_t> bytes(sizeof(own));
            std::memcpy(bytes.data(), &own, sizeof(own));
            if (layer.hasInlineScales()) {
              put(memory, at + uint64_t(width), bytes);
            } else {
              const Buffer &scales =
                  *manifest.findBuffer(isKey ? names.kScales : names.vScales);
              put(memoryOf(scales),
                  sizeof(own) * uint64_t(offsetOf(scales, {page, token, head})),
                  bytes);
            }
            for (float &x : elements)
              x *= 1.0f / own;
          }
          put(memory, at,
              encodeRow(
                  layer,
                  scaleOf(layer, isKey ? layer.kScale : layer.vScale, head),
                  elements));
        }
      }
    }
  }
  for (const auto &[memory, wanted] : expected) {
    const std::vector<uint8_t> &image = wanted.image;
    Expected<std::vector<uint8_t>> found =
        session.memory(*manifest.findBuffer(memory));
    if (!found)
      return found.error();
    uint64_t wrong = 0, disturbed = 0;
    for (uint64_t i = 0; i < image.size(); ++i) {
      bool isCode = wanted.written[i];
      result.codesCompared += isCode;
      if ((*found)[i] == image[i])
        continue;
      uint64_t &count = isCode ? wrong : disturbed;
      if (count++ != 0)
        continue;
      char text[160];
      std::snprintf(
          text, sizeof(text), ": byte %llu: expected 0x%02X%s, found 0x%02X",
          static_cast<unsigned long long>(i), image[i],
          isCode ? " by the write" : " as before the run", (*found)[i]);
      addError(result, memory + text);
    }
    result.codesWrong += wrong;
    result.bytesDisturbed += disturbed;
  }
  return Error::success();
}

/// The numerics of the layer's attention; f16 for what others compiled.
Math Verifier::mathOf(const Layer &layer) const {
  for (const Launch &launch : session.target().launches)
    if (launch.layer == layer.id && launch.math)
      return *launch.math;
  return Math::F16;
}

Error Verifier::compareAttention(const Layer &layer,
                                 LayerVerification &result) {
  const LayerBuffers &names = layer.buffers;
  const Capacities &sizes = session.manifest().capacities;
  Elements parts[13];
  const std::string *sources[] = {
      &names.query,  &names.kCache,      &names.vCache,      &names.pageTable,
      &names.sinks,  &names.alibiSlopes, &names.lengths,     &names.queryStart,
      &names.output, &names.lse,         &names.querySource, &names.kScales,
      &names.vScales};
  for (size_t i = 0; i < std::size(parts); ++i) {
    if (sources[i]->empty())
      continue;
    Expected<Elements> part = load(session, *sources[i]);
    if (!part)
      return part.error();
    parts[i] = std::move(*part);
  }
  const Elements lengths = std::move(parts[6]), starts = std::move(parts[7]),
                 output = std::move(parts[8]), lse = std::move(parts[9]),
                 source = std::move(parts[10]);
  if (source.buffer)
    kvcache::compareElementwise(
        source, parts[0], layer.qScale->value.value(),
        starts.integerAt<int32_t>({sizes.maxSequences}) * layer.queryHeads *
            layer.headDim,
        result);
  AttentionReference reference(layer, std::move(parts[0]), std::move(parts[1]),
                               std::move(parts[2]), std::move(parts[3]),
                               std::move(parts[4]), std::move(parts[5]),
                               std::move(parts[11]), std::move(parts[12]),
                               mathOf(layer), !names.lse.empty());
  ElementType type = output.buffer->elementType;
  // Outputs that are codes are compared as codes, which saturate.
  double unit = layer.oScale ? double(layer.oScale->value.value()) : 1;
  double largest = type == ElementType::F8E4M3FN ? 448
                   : type == ElementType::F8E5M2
                       ? 57344
                       : std::numeric_limits<double>::infinity();
  for (int64_t sequence = 0; sequence < sizes.maxSequences; ++sequence) {
    int64_t first = starts.integerAt<int32_t>({sequence});
    int64_t last = starts.integerAt<int32_t>({sequence + 1});
    int64_t length = lengths.integerAt<int32_t>({sequence});
    for (int64_t row = first; row < last; ++row)
      for (int64_t head = 0; head < layer.queryHeads; ++head) {
        RowReference expected = reference.compute(
            row, head, sequence, length - (last - first) + (row - first) + 1);
        for (int64_t d = 0; d < layer.valueDim(); ++d) {
          auto compare = [&](double right, double error) {
            right /= unit;
            if (std::fabs(right) > largest)
              right = std::copysign(largest, right);
            compareElement(output, {row, head, d}, right,
                           ulp(type, right) + error / unit, result);
          };
          compare(expected.output[size_t(d)], expected.error[size_t(d)]);
          if (!expected.rounded.empty())
            compare(expected.rounded[size_t(d)],
                    expected.roundedError[size_t(d)]);
        }
        if (!names.lse.empty())
          compareLse(lse, row, head, expected.lse, result);
      }
  }
  // Before a run outputs hold 0xFF in every byte (Device::forget).
  for (int64_t row = starts.integerAt<int32_t>({sizes.maxSequences});
       row < sizes.maxTokens; ++row)
    for (int64_t head = 0; head < layer.queryHeads; ++head)
      for (int64_t d = 0; d < layer.valueDim(); ++d) {
        const uint8_t *bytes = output.byteAt({row, head, d});
        bool untouched = true;
        for (unsigned i = 0; i < elementTypeBytes(type); ++i)
          untouched &= bytes[i] == 0xFF;
        if (untouched)
          continue;
        if (result.outputsWrong++ == 0)
          addError(result, names.output + "[" + std::to_string(row) + ", " +
                               std::to_string(head) + ", " + std::to_string(d) +
                               "]: expected an untouched element past the "
                               "last query, found " +
                               number(output.at({row, head, d})));
      }
  return Error::success();
}

} // namespace kvcache
