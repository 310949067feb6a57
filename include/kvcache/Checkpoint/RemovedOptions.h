//===- RemovedOptions.h - Traces of run-time scales in files ----*- C++ -*-===//

#ifndef KVCACHE_CHECKPOINT_REMOVEDOPTIONS_H
#define KVCACHE_CHECKPOINT_REMOVEDOPTIONS_H

#include "kvcache/Checkpoint/Diagnostic.h"
#include "kvcache/Support/Expected.h"

#include <string>
#include <string_view>
#include <vector>

namespace kvcache {

/// Finds the removed options of run-time scale calculation in the text of a
/// configuration file or launch script: calculate_kv_scales and
/// --calculate-kv-scales (an error where they are switched on, a warning where
/// off), Q_SCALE_CONSTANT, K_SCALE_CONSTANT, V_SCALE_CONSTANT (a warning: they
/// are read by nothing). Each finding names file and line and says what
/// replaces the option. Lines that start with '#' or "//" are comments.
std::vector<Diagnostic> findRemovedOptions(std::string_view text,
                                           const std::string &file);

/// Configuration files and launch scripts of a folder, by their names
/// (*.json, *.yaml, *.yml, *.toml, *.ini, *.cfg, *.conf, *.env, *.sh, *.bash,
/// *.py, *.service, Dockerfile, Makefile, .env), sorted; not below it. The
/// index of a sharded checkpoint and tokenizers are left out.
Expected<std::vector<std::string>>
listConfigurationFiles(const std::string &folder);

} // namespace kvcache

#endif // KVCACHE_CHECKPOINT_REMOVEDOPTIONS_H
