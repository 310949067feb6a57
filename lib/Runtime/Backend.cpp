//===- Backend.cpp - What all backends share ------------------------------===//

#include "Backend.h"

#include <algorithm>
#include <cstring>

namespace kvcache {

Backend::~Backend() = default;
BackendCode::~BackendCode() = default;
BackendGraph::~BackendGraph() = default;

int chipNumber(const std::string &chip) {
  int number = 0;
  for (char c : chip)
    if (c >= '0' && c <= '9')
      number = 10 * number + (c - '0');
  return number;
}

uint32_t argumentBytes(Argument::Kind kind) {
  switch (kind) {
  case Argument::Kind::Buffer:
  case Argument::Kind::Null:
  case Argument::Kind::I64:
    return 8;
  case Argument::Kind::F32:
  case Argument::Kind::I32:
    return 4;
  }
  return 0;
}

LaunchPacket::LaunchPacket(const Launch &launch, size_t index)
    : entry(&launch), position(index), cells(launch.arguments.size(), 0) {
  for (size_t i = 0; i < cells.size(); ++i) {
    const Argument &argument = launch.arguments[i];
    switch (argument.kind) {
    case Argument::Kind::F32:
      std::memcpy(&cells[i], &argument.f32.bits, 4);
      break;
    case Argument::Kind::I32: {
      int32_t narrow = int32_t(argument.integer);
      std::memcpy(&cells[i], &narrow, 4);
      break;
    }
    case Argument::Kind::I64:
      std::memcpy(&cells[i], &argument.integer, 8);
      break;
    case Argument::Kind::Buffer:
    case Argument::Kind::Null:
      break;
    }
    pointers.push_back(&cells[i]);
  }
}

void LaunchPacket::copyCells(const LaunchPacket &other) {
  std::copy(other.cells.begin(), other.cells.end(), cells.begin());
}

std::vector<uint8_t> LaunchPacket::bytes() const {
  std::vector<uint8_t> result;
  for (size_t i = 0; i < cells.size(); ++i) {
    uint32_t size = argumentBytes(entry->arguments[i].kind);
    result.resize((result.size() + size - 1) / size * size);
    const uint8_t *value = reinterpret_cast<const uint8_t *>(&cells[i]);
    result.insert(result.end(), value, value + size);
  }
  return result;
}

template <typename Dimensions> static std::string text(const Dimensions &d) {
  return "[" + std::to_string(d[0]) + ", " + std::to_string(d[1]) + ", " +
         std::to_string(d[2]) + "]";
}

static Error checkLaunch(const ptx::Module &code, const Target &target,
                         const Launch &launch) {
  const ptx::KernelInfo *kernel = code.findKernel(launch.kernel);
  if (!kernel)
    return makeError("kernel \"" + launch.kernel + "\" is not in " +
                     target.ptx.file);
  if (kernel->parameters.size() != launch.arguments.size())
    return makeError("kernel \"" + launch.kernel + "\" of " + target.ptx.file +
                     " takes " + std::to_string(kernel->parameters.size()) +
                     " arguments, found " +
                     std::to_string(launch.arguments.size()));
  for (size_t i = 0; i < launch.arguments.size(); ++i) {
    uint32_t bytes = argumentBytes(launch.arguments[i].kind);
    if (kernel->parameters[i].size != bytes)
      return makeError("arguments[" + std::to_string(i) + "]: kernel \"" +
                       launch.kernel + "\" of " + target.ptx.file +
                       " takes a value of " +
                       std::to_string(kernel->parameters[i].size) +
                       " bytes, found one of " + std::to_string(bytes));
  }
  const auto &required = kernel->requiredBlock;
  if (required[0] &&
      !std::equal(required.begin(), required.end(), launch.block.begin()))
    return makeError("block: kernel \"" + launch.kernel + "\" of " +
                     target.ptx.file + " requires " + text(required) +
                     ", found " + text(launch.block));
  int64_t threads = launch.block[0] * launch.block[1] * launch.block[2];
  if (threads > int64_t(kernel->maxThreads))
    return makeError("block: kernel \"" + launch.kernel + "\" of " +
                     target.ptx.file + " allows " +
                     std::to_string(kernel->maxThreads) + " threads, found " +
                     std::to_string(threads));
  return Error::success();
}

Outcome parseTarget(const Bundle &bundle, const Target &target, bool executable,
                    std::optional<ptx::Module> &code) {
  const std::string *text = bundle.find(target.ptx.file);
  if (!text)
    return {KVCACHE_INVALID_BUNDLE,
            target.ptx.file + ": the bundle does not hold it"};
  Expected<ptx::Module> parsed = ptx::Module::parse(*text, target.ptx.file);
  if (!parsed)
    return {KVCACHE_INVALID_BUNDLE, parsed.message()};
  for (size_t i = 0; i < target.launches.size(); ++i)
    if (Error error = checkLaunch(*parsed, target, target.launches[i]))
      return {KVCACHE_INVALID_BUNDLE, "manifest.json: target " + target.chip +
                                          ", launches[" + std::to_string(i) +
                                          "]: " + error.message()};
  for (const Launch &launch : target.launches) {
    const ptx::KernelInfo &kernel = *parsed->findKernel(launch.kernel);
    if (!executable || kernel.unsupported.empty())
      continue;
    std::string list;
    for (const std::string &entry : kernel.unsupported)
      list += "\n  " + entry;
    return {KVCACHE_NO_CODE,
            "kernel \"" + launch.kernel + "\" of " + target.ptx.file +
                " has instructions that the PTX machine does not know:" + list};
  }
  code.emplace(std::move(*parsed));
  return {};
}

Outcome loadBestTarget(const Manifest &manifest, const std::string &chip,
                       const std::function<Outcome(const Target &)> &load,
                       const Target *&target) {
  std::vector<const Target *> candidates;
  std::string names, reasons;
  for (const Target &entry : manifest.targets) {
    names += (names.empty() ? "" : ", ") + entry.chip;
    if (chip.empty() || entry.chip == chip)
      candidates.push_back(&entry);
  }
  if (candidates.empty())
    return {KVCACHE_NO_CODE,
            "the bundle has no target " + chip + "; it has " + names};
  std::sort(candidates.begin(), candidates.end(),
            [](const Target *a, const Target *b) {
              int first = chipNumber(a->chip), second = chipNumber(b->chip);
              return first != second ? first > second : a->chip > b->chip;
            });
  for (const Target *candidate : candidates) {
    Outcome outcome = load(*candidate);
    if (!outcome) {
      target = candidate;
      return {};
    }
    if (outcome.code() != KVCACHE_NO_CODE)
      return outcome;
    reasons += (reasons.empty() ? "" : "\n") + outcome.message();
  }
  return {KVCACHE_NO_CODE, reasons};
}

} // namespace kvcache
