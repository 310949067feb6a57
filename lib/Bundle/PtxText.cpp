//===- PtxText.cpp - Cutting and joining PTX modules ----------------------===//

#include "kvcache/Bundle/PtxText.h"

namespace kvcache {

namespace {

/// The line without its comment.
std::string code(const std::string &line) {
  return line.substr(0, line.find("//"));
}

} // namespace

PtxModule PtxModule::parse(const std::string &text) {
  PtxModule module;
  std::string item; // the kernel in progress
  std::string name;
  int depth = 0;
  bool opened = false;
  for (size_t at = 0; at < text.size();) {
    size_t end = std::min(text.find('\n', at), text.size());
    std::string line = text.substr(at, end - at);
    at = end + 1;
    std::string bare = code(line);
    if (name.empty()) {
      size_t entry = bare.find(".entry");
      if (entry == std::string::npos) {
        if (bare.find_first_not_of(" \t\r") == std::string::npos)
          continue;
        bool directive = bare.rfind(".version", 0) == 0 ||
                         bare.rfind(".target", 0) == 0 ||
                         bare.rfind(".address_size", 0) == 0;
        (directive ? module.directives : module.globals) += bare + "\n";
        continue;
      }
      size_t first = bare.find_first_not_of(" \t", entry + 6);
      size_t last = bare.find_first_of(" \t(", first);
      name = first == std::string::npos ? "" : bare.substr(first, last - first);
      item.clear();
      depth = 0;
      opened = false;
    }
    item += line + "\n";
    for (char c : bare) {
      opened |= c == '{';
      depth += (c == '{') - (c == '}');
    }
    if (opened && depth == 0) {
      module.kernels.emplace_back(name, item);
      name.clear();
    }
  }
  return module;
}

std::string PtxModule::version() const {
  size_t at = directives.find(".version ");
  return at == std::string::npos
             ? ""
             : directives.substr(at + 9, directives.find('\n', at) - at - 9);
}

std::string PtxModule::print() const {
  std::string text = directives + "\n" + globals;
  for (const auto &[name, body] : kernels)
    text += "\n" + body;
  return text;
}

} // namespace kvcache
