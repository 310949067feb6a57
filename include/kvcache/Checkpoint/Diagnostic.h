//===- Diagnostic.h - What the checkpoint library has to say ----*- C++ -*-===//

#ifndef KVCACHE_CHECKPOINT_DIAGNOSTIC_H
#define KVCACHE_CHECKPOINT_DIAGNOSTIC_H

#include <string>
#include <vector>

namespace kvcache {

enum class Severity { Error, Warning, Remark };

/// "error", "warning" or "remark".
const char *severityName(Severity severity);

/// One finding. Fields that do not apply are empty. `message` is complete by
/// itself: it repeats whatever of layer, key and file a reader needs.
struct Diagnostic {
  Severity severity = Severity::Remark;
  std::string layer; ///< layer name as in the graph
  std::string key;   ///< tensor name or configuration key
  std::string file;
  std::string message;
};

/// True if one of them is an error.
bool hasErrors(const std::vector<Diagnostic> &diagnostics);

} // namespace kvcache

#endif // KVCACHE_CHECKPOINT_DIAGNOSTIC_H
