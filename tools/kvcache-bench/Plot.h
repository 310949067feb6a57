//===- Plot.h - Bandwidth over context length as SVG ------------*- C++ -*-===//

#ifndef KVCACHE_TOOLS_BENCH_PLOT_H
#define KVCACHE_TOOLS_BENCH_PLOT_H

#include "Measure.h"

namespace kvcache::bench {

/// One line a shape: measured bandwidth with the copy roofline, or the ceiling
/// that the counts allow; prefill only when there is nothing else.
/// Deterministic text.
std::string plot(const Card &card, const std::vector<Point> &points);

} // namespace kvcache::bench

#endif // KVCACHE_TOOLS_BENCH_PLOT_H
