//===- RemovedOptions.cpp - Traces of run-time scales in files ------------===//

#include "kvcache/Checkpoint/RemovedOptions.h"
#include "kvcache/Support/Files.h"

#include <algorithm>
#include <cctype>

using namespace kvcache;

namespace {

bool isWordCharacter(char c) {
  return std::isalnum(static_cast<unsigned char>(c)) || c == '_';
}

std::string_view trim(std::string_view text) {
  while (!text.empty() && std::isspace(static_cast<unsigned char>(text[0])))
    text.remove_prefix(1);
  while (!text.empty() && std::isspace(static_cast<unsigned char>(text.back())))
    text.remove_suffix(1);
  return text;
}

/// Position of `word` in `line` where it stands alone; npos if nowhere.
size_t findWord(std::string_view line, std::string_view word) {
  for (size_t at = line.find(word); at != std::string_view::npos;
       at = line.find(word, at + 1)) {
    size_t end = at + word.size();
    if ((at == 0 || !isWordCharacter(line[at - 1])) &&
        (end == line.size() ||
         (!isWordCharacter(line[end]) && line[end] != '-')))
      return at;
  }
  return std::string_view::npos;
}

/// Whether what follows an option is a value that switches it off:
/// `: false`, `=False`, ` 0`, `": null`.
bool isSwitchedOff(std::string_view after) {
  size_t at = after.find_first_not_of("\"' \t:=,");
  if (at == std::string_view::npos)
    return false;
  std::string word;
  for (char c : after.substr(at)) {
    if (!isWordCharacter(c))
      break;
    word += char(std::tolower(static_cast<unsigned char>(c)));
  }
  return word == "false" || word == "0" || word == "no" || word == "off" ||
         word == "none" || word == "null";
}

bool endsWith(std::string_view text, std::string_view end) {
  return text.size() >= end.size() &&
         text.substr(text.size() - end.size()) == end;
}

} // namespace

std::vector<Diagnostic> kvcache::findRemovedOptions(std::string_view text,
                                                    const std::string &file) {
  std::vector<Diagnostic> found;
  size_t number = 0;
  while (!text.empty()) {
    size_t end = text.find('\n');
    std::string_view line = text.substr(0, end);
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
    ++number;
    std::string_view content = trim(line);
    if (content.substr(0, 1) == "#" || content.substr(0, 2) == "//")
      continue;
    auto report = [&](Severity severity, std::string_view option,
                      const std::string &what) {
      found.push_back({severity, "", std::string(option), file,
                       file + ":" + std::to_string(number) + ": " + what});
    };
    for (std::string_view option :
         {"calculate_kv_scales", "calculate-kv-scales"}) {
      size_t at = findWord(line, option);
      if (at == std::string_view::npos)
        continue;
      std::string_view before = trim(line.substr(0, at));
      bool off = isSwitchedOff(line.substr(at + option.size())) ||
                 endsWith(before, "--no-");
      std::string name(option);
      if (off)
        report(Severity::Warning, option,
               "the option " + name +
                   " was removed; it is switched off here, so drop it: scales "
                   "come from the checkpoint, else they are 1.0");
      else
        report(Severity::Error, option,
               "the option " + name +
                   " was removed: no scale is calculated at run time any "
                   "more. Drop it; scales come from the checkpoint, else they "
                   "are 1.0. Calibrated ones for a checkpoint without scales: "
                   "kvcache-scales calibrate, then --scale-overlay=FILE");
    }
    for (std::string_view option :
         {"Q_SCALE_CONSTANT", "K_SCALE_CONSTANT", "V_SCALE_CONSTANT"}) {
      if (findWord(line, option) == std::string_view::npos)
        continue;
      char role = char(std::tolower(static_cast<unsigned char>(option[0])));
      report(Severity::Warning, option,
             "the variable " + std::string(option) +
                 " was removed and is read by nothing: it divided the range "
                 "that run-time calculation measured. Drop it; a chosen " +
                 role + " scale is given by --scale=LAYER." + role +
                 "=VALUE, a measured one by kvcache-scales calibrate");
    }
  }
  return found;
}

Expected<std::vector<std::string>>
kvcache::listConfigurationFiles(const std::string &folder) {
  Expected<std::vector<std::string>> entries = listDirectory(folder);
  if (!entries)
    return entries.error();
  std::vector<std::string> files;
  for (const std::string &name : *entries) {
    bool plain = name == "Dockerfile" || name == "Makefile" || name == ".env";
    for (std::string_view end :
         {".json", ".yaml", ".yml", ".toml", ".ini", ".cfg", ".conf", ".env",
          ".sh", ".bash", ".py", ".service"})
      plain = plain || endsWith(name, end);
    // Large, and of another kind.
    if (!plain || endsWith(name, ".index.json") ||
        name.substr(0, 9) == "tokenizer" || name == "vocab.json")
      continue;
    std::string path = joinPath(folder, name);
    if (isRegularFile(path))
      files.push_back(std::move(path));
  }
  return files;
}
