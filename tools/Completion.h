//===- Completion.h - Shell completion of the LLVM-free tools ---*- C++ -*-===//

#ifndef KVCACHE_TOOLS_COMPLETION_H
#define KVCACHE_TOOLS_COMPLETION_H

namespace CLI {
class App;
} // namespace CLI

namespace kvcache {

/// Adds `--completion=bash`, which prints a completion script for the options
/// and commands that `app` has when it parses. Parsing then ends with
/// CLI::Success, as it does after --help.
void addCompletionOption(CLI::App &app);

} // namespace kvcache

#endif // KVCACHE_TOOLS_COMPLETION_H
