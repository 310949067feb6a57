//===- ManifestReader.cpp - JSON text to a Manifest -----------------------===//
//
// A manifest is untrusted input. Each member is read by name with its type and
// range; a member that this version does not know, or that comes twice, is
// refused. What must hold across members is checked by validateManifest.
//
//===----------------------------------------------------------------------===//

#include "kvcache/Bundle/Manifest.h"
#include "kvcache/Support/Json.h"

#include <limits>

namespace kvcache {

namespace {

/// What stands there, short enough for a message.
std::string describe(const JsonValue &value) {
  if (value.isArray() || value.isObject() || value.isNull())
    return value.kindName();
  std::string text = value.print(0);
  while (!text.empty() && text.back() == '\n')
    text.pop_back();
  if (text.size() > 60)
    text = text.substr(0, 57) + "...";
  return text;
}

/// A JSON value and the path to it. The first error is kept in `failure`;
/// reading goes on with default values.
class Value {
public:
  Value(const JsonValue &json, std::string path, Error *failure)
      : json(&json), path(std::move(path)), failure(failure) {}

  void fail(const std::string &expected) const {
    report(expected + ", found " + describe(*json));
  }

  void report(const std::string &message) const {
    if (!*failure)
      *failure = makeError(path.empty() ? message : path + ": " + message);
  }

  std::string string() const {
    if (!json->isString()) {
      fail("expected a string");
      return "";
    }
    if (json->asString().find('\0') != std::string::npos) {
      report("expected a string without NUL characters");
      return "";
    }
    return json->asString();
  }

  int64_t integer(int64_t low, int64_t high) const {
    if (!json->isInteger() || json->asInteger() < low ||
        json->asInteger() > high) {
      fail("expected an integer from " + std::to_string(low) + " to " +
           std::to_string(high));
      return low;
    }
    return json->asInteger();
  }

  bool boolean() const {
    if (json->isBool())
      return json->asBool();
    fail("expected true or false");
    return false;
  }

  /// "0x" and eight hex digits.
  uint32_t bits() const {
    std::string text = string();
    uint32_t value = 0;
    bool good = text.size() == 10 && text[0] == '0' && text[1] == 'x';
    for (size_t i = 2; good && i < text.size(); ++i) {
      char c = text[i];
      unsigned digit = c >= '0' && c <= '9'   ? unsigned(c - '0')
                       : c >= 'A' && c <= 'F' ? unsigned(c - 'A' + 10)
                       : c >= 'a' && c <= 'f' ? unsigned(c - 'a' + 10)
                                              : 16;
      good = digit < 16;
      value = value << 4 | digit;
    }
    if (!good)
      fail("expected \"0x\" and eight hex digits");
    return value;
  }

  double number() const {
    if (json->isNumber())
      return json->asDouble();
    fail("expected a number");
    return 0;
  }

  template <typename Enum>
  Enum keyword(std::optional<Enum> (*parse)(std::string_view),
               const std::string &expected) const {
    std::string text = string();
    if (std::optional<Enum> value = parse(text))
      return *value;
    fail("expected " + expected);
    return Enum();
  }

  template <typename Function> void forEach(Function function) const {
    if (!json->isArray()) {
      fail("expected an array");
      return;
    }
    size_t index = 0;
    for (const JsonValue &item : json->asArray()) {
      if (*failure)
        return;
      function(
          Value(item, path + "[" + std::to_string(index++) + "]", failure));
    }
  }

  const std::string &where() const { return path; }
  const JsonValue &raw() const { return *json; }
  Error *errors() const { return failure; }

private:
  const JsonValue *json;
  std::string path;
  Error *failure;
};

/// The members of a JSON object. `finish` refuses those that nobody asked for.
class Object {
public:
  explicit Object(const Value &value) : value(value) {
    if (!value.raw().isObject()) {
      value.fail("expected an object");
      return;
    }
    for (const auto &[name, member] : value.raw().asObject())
      if (!members.emplace(name, &member).second)
        value.report("member \"" + name + "\" is given twice");
  }

  std::optional<Value> optional(const std::string &name) {
    used.push_back(name);
    auto it = members.find(name);
    if (it == members.end())
      return std::nullopt;
    return Value(*it->second,
                 value.where().empty() ? name : value.where() + "." + name,
                 value.errors());
  }

  /// Reads a member that must be there.
  template <typename Function>
  void required(const std::string &name, Function function) {
    std::optional<Value> member = optional(name);
    if (!member) {
      value.report("member \"" + name + "\" is missing");
      return;
    }
    if (!*value.errors())
      function(*member);
  }

  void read(const std::string &name, std::string &into) {
    required(name, [&](const Value &member) { into = member.string(); });
  }
  void readOptional(const std::string &name, std::string &into) {
    if (std::optional<Value> member = optional(name))
      into = member->string();
  }
  void read(const std::string &name, int64_t &into, int64_t low, int64_t high) {
    required(name,
             [&](const Value &member) { into = member.integer(low, high); });
  }
  template <typename Enum>
  void read(const std::string &name, Enum &into,
            std::optional<Enum> (*parse)(std::string_view),
            const std::string &expected) {
    required(name, [&](const Value &member) {
      into = member.keyword(parse, expected);
    });
  }
  template <typename T>
  void readArray(const std::string &name, std::vector<T> &into,
                 T (*read)(const Value &)) {
    required(name, [&](const Value &member) {
      member.forEach([&](const Value &item) { into.push_back(read(item)); });
    });
  }

  void finish() {
    if (*value.errors())
      return;
    for (const auto &[name, unusedValue] : members) {
      bool known = false;
      for (const std::string &other : used)
        known |= other == name;
      if (known)
        continue;
      std::string expected;
      for (const std::string &other : used)
        expected += (expected.empty() ? "" : ", ") + other;
      value.report("unknown member \"" + name + "\"; expected one of " +
                   expected);
      return;
    }
  }

private:
  const Value &value;
  std::map<std::string, const JsonValue *> members;
  std::vector<std::string> used;
};

constexpr int64_t maxI64 = std::numeric_limits<int64_t>::max();
constexpr int64_t maxI32 = std::numeric_limits<int32_t>::max();

const char elementTypeNames[] =
    "bf16, f16, f32, f8E4M3FN, f8E5M2, i32, i64 or u8";

OptionMap readOptions(const Value &value) {
  OptionMap options;
  if (!value.raw().isObject()) {
    value.fail("expected an object");
    return options;
  }
  for (const auto &[name, field] : value.raw().asObject()) {
    Value member(field, value.where() + "." + name, value.errors());
    OptionValue option;
    if (field.isString())
      option = member.string();
    else
      option = member.integer(std::numeric_limits<int64_t>::min(), maxI64);
    if (!options.emplace(name, option).second)
      value.report("member \"" + name + "\" is given twice");
  }
  return options;
}

int64_t readExtent(const Value &value) { return value.integer(0, maxI64); }
int64_t readDynamicExtent(const Value &value) {
  return value.integer(-1, maxI64);
}
std::string readString(const Value &value) { return value.string(); }

ScalarF32 readScalar(Object &object) {
  ScalarF32 scalar;
  double shown = 0;
  object.required("value",
                  [&](const Value &member) { shown = member.number(); });
  object.required("bits", [&](const Value &member) {
    scalar.bits = member.bits();
    if (!(static_cast<float>(shown) == scalar.value()))
      member.report("expected the bits of \"value\" (" + std::to_string(shown) +
                    "), found those of " + std::to_string(scalar.value()));
  });
  return scalar;
}

ManifestScale readScale(const Value &value) {
  ManifestScale scale;
  Object object(value);
  scale.value = readScalar(object);
  if (std::optional<Value> heads = object.optional("head_bits"))
    heads->forEach([&](const Value &head) {
      scale.perHead.emplace_back();
      scale.perHead.back().bits = head.bits();
    });
  object.read("provenance", scale.provenance, parseProvenance,
              "checkpoint, default, duplicate, maximum or override");
  object.readOptional("key", scale.key);
  object.finish();
  return scale;
}

Layer readLayer(const Value &value) {
  Layer layer;
  Object object(value);
  object.read("id", layer.id);
  object.read("name", layer.name);
  object.read("cache", layer.cache);
  object.read("element_type", layer.elementType, parseElementType,
              elementTypeNames);
  object.read("query_heads", layer.queryHeads, 1, 1 << 16);
  object.read("kv_heads", layer.kvHeads, 1, 1 << 16);
  object.read("head_dim", layer.headDim, 1, 1 << 16);
  if (std::optional<Value> member = object.optional("v_head_dim"))
    layer.vHeadDim = member->integer(1, 1 << 16);
  if (std::optional<Value> member = object.optional("rope_dim"))
    layer.ropeDim = member->integer(1, 1 << 16);
  object.read("page_size", layer.pageSize, 1, 1 << 20);
  object.read("layout", layer.layout);
  if (object.optional("token_scales"))
    object.read("token_scales", layer.tokenScales, parseTokenScales,
                "side or inline");
  object.required("softmax_scale", [&](const Value &member) {
    Object softmax(member);
    layer.softmaxScale = readScalar(softmax);
    softmax.read("from", layer.softmaxScaleFrom);
    softmax.finish();
  });
  if (std::optional<Value> member = object.optional("soft_cap")) {
    Object cap(*member);
    layer.softCap = readScalar(cap);
    cap.finish();
  }
  if (std::optional<Value> member = object.optional("window"))
    layer.window = member->integer(0, int64_t(1) << 31);
  if (std::optional<Value> member = object.optional("rope_interleaved"))
    layer.ropeInterleaved = member->boolean();
  object.required("scales", [&](const Value &member) {
    Object scales(member);
    scales.required("k", [&](const Value &k) { layer.kScale = readScale(k); });
    scales.required("v", [&](const Value &v) { layer.vScale = readScale(v); });
    for (auto [name, scale] :
         {std::pair{"q", &layer.qScale}, {"o", &layer.oScale}})
      if (std::optional<Value> given = scales.optional(name))
        *scale = readScale(*given);
    scales.finish();
  });
  object.read("compatibility", layer.compatibility);
  object.required("buffers", [&](const Value &member) {
    Object buffers(member);
    LayerBuffers &names = layer.buffers;
    buffers.read("query", names.query);
    buffers.readOptional("query_source", names.querySource);
    buffers.readOptional("key", names.key);
    buffers.readOptional("value", names.value);
    buffers.readOptional("rope_table", names.ropeTable);
    buffers.readOptional("positions", names.positions);
    buffers.read("output", names.output);
    buffers.readOptional("lse", names.lse);
    buffers.readOptional("sinks", names.sinks);
    buffers.readOptional("alibi_slopes", names.alibiSlopes);
    buffers.read("k_cache", names.kCache);
    buffers.read("v_cache", names.vCache);
    buffers.readOptional("k_scales", names.kScales);
    buffers.readOptional("v_scales", names.vScales);
    buffers.read("page_table", names.pageTable);
    buffers.read("lengths", names.lengths);
    buffers.read("query_start", names.queryStart);
    buffers.readOptional("slot_mapping", names.slotMapping);
    buffers.finish();
  });
  object.finish();
  return layer;
}

Buffer readBuffer(const Value &value) {
  Buffer buffer;
  Object object(value);
  object.read("name", buffer.name);
  object.read("role", buffer.role, parseBufferRole,
              "activation, cache, page_table, lengths, slots, query_start, "
              "workspace, parameter or page_copies");
  object.read("element_type", buffer.elementType, parseElementType,
              elementTypeNames);
  object.readArray("shape", buffer.shape, readExtent);
  object.readArray("strides", buffer.strides, readExtent);
  object.readArray("dynamic_dims", buffer.dynamicDims, readExtent);
  object.read("access", buffer.access, parseBufferAccess,
              "read, write or readwrite");
  object.read("owner", buffer.owner, parseBufferOwner, "caller or runtime");
  object.required("stable_address", [&](const Value &member) {
    buffer.stableAddress = member.boolean();
  });
  object.required("bytes", [&](const Value &member) {
    buffer.bytes = uint64_t(member.integer(0, maxI64));
  });
  if (std::optional<Value> member = object.optional("offset_in")) {
    BufferView view;
    Object inner(*member);
    inner.read("buffer", view.buffer);
    inner.required("bytes", [&](const Value &offset) {
      view.offset = uint64_t(offset.integer(0, maxI64));
    });
    inner.finish();
    buffer.offsetIn = view;
  }
  object.finish();
  return buffer;
}

void readFile(Object &object, FileDigest &digest) {
  object.read("file", digest.file);
  object.read("sha256", digest.sha256);
}

FileDigest readFile(const Value &value) {
  FileDigest digest;
  Object object(value);
  readFile(object, digest);
  object.finish();
  return digest;
}

HostValue readHostValue(const Value &value) {
  HostValue host;
  Object object(value);
  object.read("name", host.name);
  object.read("element_type", host.elementType, parseElementType,
              elementTypeNames);
  object.readArray("shape", host.shape, readDynamicExtent);
  object.finish();
  return host;
}

HostCode readHost(const Value &value) {
  HostCode host;
  Object object(value);
  readFile(object, host.file);
  object.read("function", host.function);
  object.readArray("arguments", host.arguments, readHostValue);
  object.readArray("results", host.results, readHostValue);
  object.finish();
  return host;
}

Segment readSegment(const Value &value) {
  Segment segment;
  Object object(value);
  object.read("name", segment.name);
  object.read("function", segment.function);
  object.readArray("arguments", segment.arguments, readString);
  object.finish();
  return segment;
}

Program readProgram(const Value &value) {
  Program program;
  Object object(value);
  object.read("name", program.name);
  if (std::optional<Value> member = object.optional("bucket")) {
    Bucket bucket;
    Object inner(*member);
    inner.read("of", bucket.of);
    inner.read("sequences", bucket.sequences, 1, maxI32);
    inner.read("tokens", bucket.tokens, 1, maxI32);
    inner.finish();
    program.bucket = bucket;
  }
  object.required("host", [&](const Value &member) {
    if (!member.raw().isNull())
      program.host = readHost(member);
  });
  object.readArray("segments", program.segments, readSegment);
  object.finish();
  return program;
}

Kernel readKernel(const Value &value) {
  Kernel kernel;
  Object object(value);
  object.read("name", kernel.name);
  object.required("structure", [&](const Value &member) {
    kernel.structure = readOptions(member);
  });
  if (std::optional<Value> member = object.optional("report")) {
    KernelReport report;
    Object inner(*member);
    inner.read("ptxas", report.ptxas);
    inner.read("registers", report.registers, 0, maxI32);
    inner.read("stack_bytes", report.stackBytes, 0, maxI32);
    inner.read("spill_store_bytes", report.spillStoreBytes, 0, maxI32);
    inner.read("spill_load_bytes", report.spillLoadBytes, 0, maxI32);
    inner.read("static_shared_bytes", report.staticSharedBytes, 0, maxI32);
    inner.finish();
    kernel.report = report;
  }
  object.finish();
  return kernel;
}

Argument readArgument(const Value &value) {
  Argument argument;
  Object object(value);
  std::string kind;
  object.read("kind", kind);
  if (kind == "buffer") {
    argument.kind = Argument::Kind::Buffer;
    object.read("name", argument.buffer);
  } else if (kind == "f32") {
    argument.kind = Argument::Kind::F32;
    object.required("bits", [&](const Value &member) {
      argument.f32.bits = member.bits();
    });
    object.readOptional("from", argument.from);
  } else if (kind == "i32") {
    argument.kind = Argument::Kind::I32;
    object.read("value", argument.integer, std::numeric_limits<int32_t>::min(),
                maxI32);
    object.readOptional("from", argument.from);
  } else if (kind == "i64") {
    argument.kind = Argument::Kind::I64;
    object.read("value", argument.integer, std::numeric_limits<int64_t>::min(),
                maxI64);
    object.readOptional("from", argument.from);
  } else if (kind != "null") {
    value.report("kind: expected buffer, f32, i32, i64 or null, found \"" +
                 kind + "\"");
  }
  object.finish();
  return argument;
}

void readDimensions(Object &object, const std::string &name,
                    std::array<int64_t, 3> &into) {
  object.required(name, [&](const Value &member) {
    size_t count = 0;
    member.forEach([&](const Value &item) {
      if (count < 3)
        into[count] = item.integer(1, maxI32);
      ++count;
    });
    if (count != 3)
      member.report("expected three integers, found " + std::to_string(count));
  });
}

Launch readLaunch(const Value &value) {
  Launch launch;
  Object object(value);
  object.read("program", launch.program);
  object.read("segment", launch.segment);
  object.read("kernel", launch.kernel);
  object.read("op", launch.op, parseLaunchOp,
              "write, paged_attention, write_latent, mla_attention, quantize, "
              "dequantize, merge_states or copy_pages");
  object.read("layer", launch.layer);
  readDimensions(object, "grid", launch.grid);
  readDimensions(object, "block", launch.block);
  object.read("shared_bytes", launch.sharedBytes, 0, maxI32);
  if (std::optional<Value> member = object.optional("math"))
    launch.math = member->keyword(parseMath, "f16 or fp8");
  object.readArray("arguments", launch.arguments, readArgument);
  object.finish();
  return launch;
}

Target readTarget(const Value &value) {
  Target target;
  Object object(value);
  object.read("chip", target.chip);
  object.required("ptx",
                  [&](const Value &member) { target.ptx = readFile(member); });
  if (std::optional<Value> member = object.optional("cubin"))
    target.cubin = readFile(*member);
  object.readArray("kernels", target.kernels, readKernel);
  object.readArray("launches", target.launches, readLaunch);
  object.finish();
  return target;
}

Manifest readManifest(const Value &value) {
  Manifest manifest;
  Object object(value);
  object.required("format", [&](const Value &member) {
    if (member.string() != manifestFormat)
      member.fail("expected \"" + std::string(manifestFormat) + "\"");
  });
  // The version comes before everything else: a later one may have members
  // that are unknown here, and that is not what should be reported.
  object.required("version", [&](const Value &member) {
    int64_t version = member.integer(1, maxI64);
    if (version > manifestVersion)
      member.report("expected version " + std::to_string(manifestVersion) +
                    ", found " + std::to_string(version) +
                    ": the bundle was written by a newer kvcache; read it "
                    "with that version or compile the graph again");
  });
  object.read("producer", manifest.producer);
  object.required("options", [&](const Value &member) {
    manifest.options = readOptions(member);
  });
  object.required("capacities", [&](const Value &member) {
    Object capacities(member);
    capacities.read("max_tokens", manifest.capacities.maxTokens, 1, maxI32);
    capacities.read("max_sequences", manifest.capacities.maxSequences, 1,
                    maxI32 - 1);
    capacities.read("max_pages_per_sequence",
                    manifest.capacities.maxPagesPerSequence, 1, maxI32);
    capacities.read("num_pages", manifest.capacities.numPages, 1, maxI32);
    capacities.finish();
  });
  object.readArray("layers", manifest.layers, readLayer);
  object.readArray("buffers", manifest.buffers, readBuffer);
  object.readArray("programs", manifest.programs, readProgram);
  object.readArray("targets", manifest.targets, readTarget);
  object.finish();
  return manifest;
}

} // namespace

Expected<Manifest> parseManifest(std::string_view json,
                                 const std::string &file) {
  Expected<JsonValue> root = parseJson(json, file);
  if (!root)
    return root.error();
  Error failure;
  Manifest manifest = readManifest(Value(*root, "", &failure));
  if (!failure)
    failure = validateManifest(manifest);
  if (failure)
    return failure.withContext(file);
  return manifest;
}

} // namespace kvcache
