//===- Report.h - What kvcache-run prints -----------------------*- C++ -*-===//

#ifndef KVCACHE_TOOLS_RUN_REPORT_H
#define KVCACHE_TOOLS_RUN_REPORT_H

#include "CommandLine.h"
#include "Runner.h"

#include <ostream>

namespace kvcache::run {

/// A table for people.
void printTable(std::ostream &out, const CommandLine &options,
                const RunSummary &summary);
/// One JSON object on one line.
void printJson(std::ostream &out, const CommandLine &options,
               const RunSummary &summary);
/// The JSON object of a run that did not come to its end.
void printJsonFailure(std::ostream &out, const std::string &message);
/// The launches in Chrome's trace event format; one line of time a segment.
Error writeTrace(const std::string &path, const RunSummary &summary);
/// Findings and faults, one a line.
void printProblems(std::ostream &out, const RunSummary &summary);

} // namespace kvcache::run

#endif // KVCACHE_TOOLS_RUN_REPORT_H
