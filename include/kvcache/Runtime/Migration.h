//===- Migration.h - What became of run-time scales -------------*- C++ -*-===//

#ifndef KVCACHE_RUNTIME_MIGRATION_H
#define KVCACHE_RUNTIME_MIGRATION_H

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
    "--calculate-kv-scales: run-time scale calculation was removed.\n"
    "It estimated K and V scales from the first forward pass, read device "
    "values on\n"
    "the host, could not be captured in a graph, and changed accuracy "
    "silently.\n"
    "\n"
    "Scales now come from the checkpoint, else they are 1.0:\n"
    "  * a checkpoint with scales (k_scale, v_scale, k_proj.k_scale, ...): "
    "pass "
    "it as\n"
    "    kvcache-compile --checkpoint=DIR; nothing else is needed;\n"
    "  * one without: every scale is 1.0, values beyond +-448 saturate; "
    "kvcache-compile\n"
    "    says so for each layer, and --require-calibrated makes it an error;\n"
    "  * to calibrate: run an FP8 KV cache quantisation of the model (NVIDIA "
    "ModelOpt,\n"
    "    or llm-compressor with a kv_cache_scheme) on sample text and save "
    "the\n"
    "    checkpoint; it then holds one k_scale and v_scale per layer;\n"
    "  * to set a value by hand: kvcache-compile --scale=LAYER.k=F "
    "--scale=LAYER.v=F.\n";

} // namespace kvcache

#endif // KVCACHE_RUNTIME_MIGRATION_H
