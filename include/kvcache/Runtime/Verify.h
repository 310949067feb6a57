//===- Verify.h - A run against double precision ----------------*- C++ -*-===//
//
// Compares what a segment did with what its layers' scales, dimensions and
// inputs ask for. The launches' own arguments are not consulted: a launch with
// a wrong constant or the buffers of another layer is noticed.
//
//   cache codes   bit for bit: code = RNE(clamp(x / s, +-max)), f32 division;
//                 all other bytes of the cache as they were; the scale of
//                 128 codes of an fp8_ds_mla row is max(amax / 448, 2^-126)
//   FP8 queries   that a segment quantizes, bit for bit: x * (1 / s) in f32
//   quantize,     of no layer's queries, bit for bit, by the scale that the
//   dequantize    launch names: no layer has it
//   attention     double precision over the dequantised cache after the run,
//                 causal, ragged; each element within one unit in the last
//                 place of the output type plus 2^-9 * sum |p v|, where p are
//                 the row's probabilities (a kernel rounds them to f16); 2^-8
//                 over bf16 caches and fp8_ds_mla rows, where they are bf16;
//                 FP8 outputs in units of their scale
//   fp8-math      (a launch's `math`) queries rounded to e4m3 as the kernel
//                 does; within one unit plus 2^-4 * sum |p v|, and also, with P
//                 rounded to e4m3 the same way, within one unit plus 2^-9 * sum
//                 |p v|. P so near a tie that a score of f32 may pass it counts
//                 with a whole step, P below 2^-12 of the largest with 2^-16 of
//                 that
//   merges        of the partials that the launch names, whatever they hold:
//                 exp(l - LSE) of each, within one unit in the last place plus
//                 4e-6 * (|a| + |b|)
//   page copies   bit for bit, in the order of writes and copies
//   LSE           natural logarithm, within 1e-5 * max(1, |LSE|)
//   rows past the last query start: untouched
//
//===----------------------------------------------------------------------===//

#ifndef KVCACHE_RUNTIME_VERIFY_H
#define KVCACHE_RUNTIME_VERIFY_H

#include "kvcache/Runtime/Session.h"

namespace kvcache {

struct LayerVerification {
  std::string layer; // Layer::id; of what has no layer its output
  uint64_t codesCompared = 0;
  uint64_t codesWrong = 0;
  uint64_t bytesDisturbed = 0; // cache bytes that should not have changed
  uint64_t outputsCompared = 0;
  uint64_t outputsWrong = 0;
  double maxError = 0;          // largest |output - reference|
  double maxToleranceShare = 0; // largest error / its tolerance
  double maxLseError = 0;
  std::vector<std::string> errors; // the first of each kind

  bool good() const { return errors.empty(); }
  /// Sums counts and takes maxima of another run of the same layer.
  void add(const LayerVerification &other);
};

/// Use: `begin` before Session::runSegment, `finish` after it.
class Verifier {
public:
  explicit Verifier(const Session &session) : session(session) {}

  /// Keeps the caches and outputs as they are before the run.
  Error begin(const Segment &segment);
  /// One result per layer of the segment.
  Expected<std::vector<LayerVerification>> finish(const Segment &segment);

private:
  Error compareCache(const Segment &segment, const Layer &layer,
                     LayerVerification &result);
  Math mathOf(const Layer &layer) const;
  Error compareAttention(const Layer &layer, LayerVerification &result);
  Error compareMerge(const Launch &launch, LayerVerification &result);
  Error compareElementwise(const Launch &launch, LayerVerification &result);

  const Session &session;
  std::map<std::string, std::vector<uint8_t>> before; // memory by buffer name
};

} // namespace kvcache

#endif // KVCACHE_RUNTIME_VERIFY_H
