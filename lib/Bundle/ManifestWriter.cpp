//===- ManifestWriter.cpp - Manifest to JSON text -------------------------===//
//
// Members come in one fixed order and numbers in one spelling, so that equal
// manifests are equal bytes.
//
//===----------------------------------------------------------------------===//

#include "kvcache/Bundle/Manifest.h"

#include <charconv>
#include <cmath>
#include <cstdio>
#include <cstdlib>

namespace kvcache {

namespace {

/// Prints nested JSON. Objects and arrays of scalars that are opened `inl`ine
/// stay on one line.
class JsonPrinter {
public:
  void beginObject(bool inl = false) { open('{', inl); }
  void endObject() { close('}'); }
  void beginArray(bool inl = false) { open('[', inl); }
  void endArray() { close(']'); }

  void key(std::string_view name) {
    separate();
    quoted(name);
    text += ": ";
    afterKey = true;
  }

  void string(std::string_view value) {
    separate();
    quoted(value);
  }
  void integer(int64_t value) {
    separate();
    text += std::to_string(value);
  }
  void unsignedInteger(uint64_t value) {
    separate();
    text += std::to_string(value);
  }
  void boolean(bool value) {
    separate();
    text += value ? "true" : "false";
  }
  void null() {
    separate();
    text += "null";
  }
  void number(std::string_view spelling) {
    separate();
    text += spelling;
  }

  void member(std::string_view name, std::string_view value) {
    key(name);
    string(value);
  }
  void member(std::string_view name, int64_t value) {
    key(name);
    integer(value);
  }

  std::string take() { return std::move(text) + "\n"; }

private:
  struct Scope {
    bool inl;
    bool empty = true;
  };

  void open(char bracket, bool inl) {
    separate();
    text += bracket;
    scopes.push_back({inl || (!scopes.empty() && scopes.back().inl)});
  }

  void close(char bracket) {
    Scope scope = scopes.back();
    scopes.pop_back();
    if (!scope.empty && !scope.inl)
      newLine();
    text += bracket;
  }

  void newLine() {
    text += '\n';
    text.append(2 * scopes.size(), ' ');
  }

  void separate() {
    if (afterKey) {
      afterKey = false;
      return;
    }
    if (scopes.empty())
      return;
    Scope &scope = scopes.back();
    if (!scope.empty)
      text += scope.inl ? ", " : ",";
    if (!scope.inl)
      newLine();
    scope.empty = false;
  }

  void quoted(std::string_view value) {
    text += '"';
    for (char c : value) {
      switch (c) {
      case '"':
        text += "\\\"";
        break;
      case '\\':
        text += "\\\\";
        break;
      case '\n':
        text += "\\n";
        break;
      case '\t':
        text += "\\t";
        break;
      default:
        if (static_cast<unsigned char>(c) < 0x20) {
          char escape[8];
          std::snprintf(escape, sizeof(escape), "\\u%04X",
                        static_cast<unsigned>(c));
          text += escape;
        } else {
          text += c;
        }
      }
    }
    text += '"';
  }

  std::string text;
  std::vector<Scope> scopes;
  bool afterKey = false;
};

std::string hexBits(uint32_t bits) {
  char text[16];
  std::snprintf(text, sizeof(text), "0x%08X", bits);
  return text;
}

/// The shortest decimal that reads back as `value`, also by way of a double.
std::string decimal(float value) {
  char text[64];
  std::to_chars_result result =
      std::to_chars(text, text + sizeof(text) - 1, value);
  *result.ptr = '\0';
  if (static_cast<float>(std::strtod(text, nullptr)) != value)
    std::snprintf(text, sizeof(text), "%.9g", static_cast<double>(value));
  return text;
}

class ManifestPrinter {
public:
  explicit ManifestPrinter(const Manifest &manifest) : manifest(manifest) {}

  std::string print() {
    json.beginObject();
    json.member("format", manifestFormat);
    json.member("version", manifestVersion);
    json.member("producer", manifest.producer);
    json.key("options");
    options(manifest.options, /*inl=*/false);
    capacities();
    each("layers", manifest.layers, &ManifestPrinter::layer);
    each("buffers", manifest.buffers, &ManifestPrinter::buffer);
    each("programs", manifest.programs, &ManifestPrinter::program);
    each("targets", manifest.targets, &ManifestPrinter::target);
    json.endObject();
    return json.take();
  }

private:
  template <typename T>
  void each(std::string_view name, const std::vector<T> &items,
            void (ManifestPrinter::*print)(const T &)) {
    json.key(name);
    json.beginArray();
    for (const T &item : items)
      (this->*print)(item);
    json.endArray();
  }

  template <typename Range>
  void integers(std::string_view name, const Range &values) {
    json.key(name);
    json.beginArray(/*inl=*/true);
    for (int64_t value : values)
      json.integer(value);
    json.endArray();
  }

  void options(const OptionMap &map, bool inl) {
    json.beginObject(inl);
    for (const auto &[name, value] : map) {
      json.key(name);
      if (const int64_t *integer = std::get_if<int64_t>(&value))
        json.integer(*integer);
      else
        json.string(std::get<std::string>(value));
    }
    json.endObject();
  }

  void capacities() {
    json.key("capacities");
    json.beginObject();
    json.member("max_tokens", manifest.capacities.maxTokens);
    json.member("max_sequences", manifest.capacities.maxSequences);
    json.member("max_pages_per_sequence",
                manifest.capacities.maxPagesPerSequence);
    json.member("num_pages", manifest.capacities.numPages);
    json.endObject();
  }

  void scalar(ScalarF32 value) {
    json.key("value");
    if (std::isfinite(value.value()))
      json.number(decimal(value.value()));
    else
      json.null();
    json.member("bits", hexBits(value.bits));
  }

  void scale(std::string_view name, const Scale &scale) {
    json.key(name);
    json.beginObject(/*inl=*/true);
    scalar(scale.value);
    json.member("provenance", provenanceName(scale.provenance));
    if (!scale.key.empty())
      json.member("key", scale.key);
    json.endObject();
  }

  void layer(const Layer &layer) {
    json.beginObject();
    json.member("id", layer.id);
    json.member("name", layer.name);
    json.member("cache", layer.cache);
    json.member("element_type", elementTypeName(layer.elementType));
    json.member("query_heads", layer.queryHeads);
    json.member("kv_heads", layer.kvHeads);
    json.member("head_dim", layer.headDim);
    json.member("page_size", layer.pageSize);
    json.member("layout", layer.layout);
    json.key("softmax_scale");
    json.beginObject(/*inl=*/true);
    scalar(layer.softmaxScale);
    json.member("from", layer.softmaxScaleFrom);
    json.endObject();
    json.key("scales");
    json.beginObject();
    scale("k", layer.kScale);
    scale("v", layer.vScale);
    json.endObject();
    json.member("compatibility", layer.compatibility);
    json.key("buffers");
    json.beginObject();
    const LayerBuffers &buffers = layer.buffers;
    json.member("query", buffers.query);
    optional("key", buffers.key);
    optional("value", buffers.value);
    json.member("output", buffers.output);
    optional("lse", buffers.lse);
    json.member("k_cache", buffers.kCache);
    json.member("v_cache", buffers.vCache);
    json.member("page_table", buffers.pageTable);
    json.member("lengths", buffers.lengths);
    json.member("query_start", buffers.queryStart);
    optional("slot_mapping", buffers.slotMapping);
    json.endObject();
    json.endObject();
  }

  void optional(std::string_view name, const std::string &value) {
    if (!value.empty())
      json.member(name, value);
  }

  void buffer(const Buffer &buffer) {
    json.beginObject();
    json.member("name", buffer.name);
    json.member("role", bufferRoleName(buffer.role));
    json.member("element_type", elementTypeName(buffer.elementType));
    integers("shape", buffer.shape);
    integers("strides", buffer.strides);
    integers("dynamic_dims", buffer.dynamicDims);
    json.member("access", bufferAccessName(buffer.access));
    json.member("owner", bufferOwnerName(buffer.owner));
    json.key("stable_address");
    json.boolean(buffer.stableAddress);
    json.key("bytes");
    json.unsignedInteger(buffer.bytes);
    if (buffer.offsetIn) {
      json.key("offset_in");
      json.beginObject(/*inl=*/true);
      json.member("buffer", buffer.offsetIn->buffer);
      json.key("bytes");
      json.unsignedInteger(buffer.offsetIn->offset);
      json.endObject();
    }
    json.endObject();
  }

  void fileMembers(const FileDigest &digest) {
    json.member("file", digest.file);
    json.member("sha256", digest.sha256);
  }

  void file(std::string_view name, const FileDigest &digest) {
    json.key(name);
    json.beginObject();
    fileMembers(digest);
    json.endObject();
  }

  void hostValue(const HostValue &value) {
    json.beginObject(/*inl=*/true);
    json.member("name", value.name);
    json.member("element_type", elementTypeName(value.elementType));
    integers("shape", value.shape);
    json.endObject();
  }

  void segment(const Segment &segment) {
    json.beginObject();
    json.member("name", segment.name);
    json.member("function", segment.function);
    json.key("arguments");
    json.beginArray(/*inl=*/true);
    for (const std::string &argument : segment.arguments)
      json.string(argument);
    json.endArray();
    json.endObject();
  }

  void program(const Program &program) {
    json.beginObject();
    json.member("name", program.name);
    json.key("host");
    if (program.host) {
      json.beginObject();
      fileMembers(program.host->file);
      json.member("function", program.host->function);
      each("arguments", program.host->arguments, &ManifestPrinter::hostValue);
      each("results", program.host->results, &ManifestPrinter::hostValue);
      json.endObject();
    } else {
      json.null();
    }
    each("segments", program.segments, &ManifestPrinter::segment);
    json.endObject();
  }

  void kernel(const Kernel &kernel) {
    json.beginObject();
    json.member("name", kernel.name);
    json.key("structure");
    options(kernel.structure, /*inl=*/true);
    if (kernel.report) {
      const KernelReport &report = *kernel.report;
      json.key("report");
      json.beginObject(/*inl=*/true);
      json.member("ptxas", report.ptxas);
      json.member("registers", report.registers);
      json.member("stack_bytes", report.stackBytes);
      json.member("spill_store_bytes", report.spillStoreBytes);
      json.member("spill_load_bytes", report.spillLoadBytes);
      json.member("static_shared_bytes", report.staticSharedBytes);
      json.endObject();
    }
    json.endObject();
  }

  void argument(const Argument &argument) {
    json.beginObject(/*inl=*/true);
    switch (argument.kind) {
    case Argument::Kind::Buffer:
      json.member("kind", "buffer");
      json.member("name", argument.buffer);
      break;
    case Argument::Kind::F32:
      json.member("kind", "f32");
      json.member("bits", hexBits(argument.f32.bits));
      if (!argument.from.empty())
        json.member("from", argument.from);
      break;
    case Argument::Kind::I32:
      json.member("kind", "i32");
      json.member("value", argument.integer);
      break;
    case Argument::Kind::I64:
      json.member("kind", "i64");
      json.member("value", argument.integer);
      break;
    case Argument::Kind::Null:
      json.member("kind", "null");
      break;
    }
    json.endObject();
  }

  void launch(const Launch &launch) {
    json.beginObject();
    json.member("program", launch.program);
    json.member("segment", launch.segment);
    json.member("kernel", launch.kernel);
    json.member("op", launchOpName(launch.op));
    json.member("layer", launch.layer);
    integers("grid", launch.grid);
    integers("block", launch.block);
    json.member("shared_bytes", launch.sharedBytes);
    each("arguments", launch.arguments, &ManifestPrinter::argument);
    json.endObject();
  }

  void target(const Target &target) {
    json.beginObject();
    json.member("chip", target.chip);
    file("ptx", target.ptx);
    if (target.cubin)
      file("cubin", *target.cubin);
    each("kernels", target.kernels, &ManifestPrinter::kernel);
    each("launches", target.launches, &ManifestPrinter::launch);
    json.endObject();
  }

  const Manifest &manifest;
  JsonPrinter json;
};

} // namespace

std::string writeManifest(const Manifest &manifest) {
  return ManifestPrinter(manifest).print();
}

} // namespace kvcache
