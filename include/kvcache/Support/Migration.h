//===- Migration.h - What became of run-time scales -------------*- C++ -*-===//

#ifndef KVCACHE_SUPPORT_MIGRATION_H
#define KVCACHE_SUPPORT_MIGRATION_H

#include <string_view>

namespace kvcache {

/// Whether an argument is the removed option, in any of its spellings.
inline bool asksForRunTimeScales(int argc, char **argv) {
  for (int i = 1; i < argc; ++i) {
    std::string_view argument = argv[i];
    argument = argument.substr(0, argument.find('='));
    for (std::string_view name :
         {"--calculate-kv-scales", "-calculate-kv-scales",
          "--calculate_kv_scales", "-calculate_kv_scales"})
      if (argument == name)
        return true;
  }
  return false;
}

/// What every tool answers to --calculate-kv-scales.
inline constexpr char calculateScalesMigration[] =
    R"(--calculate-kv-scales: run-time scale calculation was removed.
It estimated K and V scales from the first forward pass, read device values on
the host, could not be captured in a graph, and changed accuracy silently.

Scales now come from the checkpoint, else they are 1.0:
  * a checkpoint with scales (k_scale, v_scale, k_proj.k_scale, ...): pass it as
    kvcache-compile --checkpoint=DIR; nothing else is needed.
    kvcache-scales show DIR prints what it holds;
  * one without: every scale is 1.0, values beyond +-448 saturate; kvcache-compile
    says so for each layer, and --require-calibrated makes it an error;
  * to calibrate: kvcache-scales calibrate ACTIVATIONS... -o scales.safetensors
    writes scales from sampled K and V, for kvcache-compile
    --scale-overlay=scales.safetensors. kvcache-scales check --activations
    says what each choice costs in accuracy;
  * to set a value by hand: kvcache-compile --scale=LAYER.k=F --scale=LAYER.v=F.
)";

} // namespace kvcache

#endif // KVCACHE_SUPPORT_MIGRATION_H
