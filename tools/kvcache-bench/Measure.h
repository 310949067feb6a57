//===- Measure.h - Attention over context length ----------------*- C++ -*-===//

#ifndef KVCACHE_TOOLS_BENCH_MEASURE_H
#define KVCACHE_TOOLS_BENCH_MEASURE_H

#include "Synthetic.h"

namespace kvcache::bench {

/// One length of one bundle. On a card times are measured; without one there
/// are counts of the PTX machine, and what they allow at most.
struct Point {
  std::string bundle, layer, kernel, shape;
  int64_t length = 0, sequences = 0;
  int64_t rows = 1;     // query rows of each sequence
  uint64_t kvBytes = 0; // of K and V that one launch has to read
  double flops = 0;     // of Q K^T and P V, for the keys that each row sees

  // Measured.
  double median = 0, low = 0, high = 0; // seconds
  double bandwidth = 0;                 // kvBytes / median
  double flopRate = 0;                  // flops / median

  // Counted.
  uint64_t instructions = 0; // of warps
  double slotsPerByte = 0;   // instructions / kvBytes
  double sectorRatio = 0;    // sectors loaded / sectors of kvBytes
  uint64_t bankConflicts = 0;
  /// Bytes a second at which the issue ports of all SMs are full: 4 warp
  /// instructions a clock and SM.
  double issueCeiling = 0;
  double flopCeiling = 0; // flops a second at that rate
};

struct Card {
  std::string name; // "cuda sm_90"; for counts the chip
  bool measured = false;
  double copyBandwidth = 0; // bytes a second, read and written together
  /// For counts: what the ceiling assumes.
  int multiprocessors = 0;
  double clock = 0;
};

struct Options {
  std::string device = "sim";
  int ordinal = 0;
  std::string driver, target;
  std::vector<std::string> bundles;
  std::vector<int64_t> lengths; // empty: powers of two up to the capacity
  unsigned repeats = 20;
  uint64_t rotateBytes = uint64_t(256) << 20; // more than any L2
  unsigned threads = 2;
};

Error measure(const Options &options, Card &card, std::vector<Point> &points);

} // namespace kvcache::bench

#endif // KVCACHE_TOOLS_BENCH_MEASURE_H
