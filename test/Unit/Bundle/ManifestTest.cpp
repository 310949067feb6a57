//===- ManifestTest.cpp - Writing, reading and refusing manifests ---------===//

#include "TestBundle.h"

#include <gtest/gtest.h>

#include <functional>

using namespace kvcache;

namespace {

Manifest sample(bool packed = false) {
  return test::makeBundle("// ptx\n", packed).manifest;
}

/// The message with which the text is refused, or "accepted".
std::string refusal(const std::string &text) {
  Expected<Manifest> manifest = parseManifest(text);
  return manifest ? "accepted" : manifest.message();
}

/// The sample's text with the first `from` after `anchor` replaced by `to`.
std::string edited(const std::string &anchor, const std::string &from,
                   const std::string &to) {
  std::string text = writeManifest(sample());
  size_t start = text.find(anchor);
  EXPECT_NE(start, std::string::npos) << anchor;
  size_t at = text.find(from, start == std::string::npos ? 0 : start);
  EXPECT_NE(at, std::string::npos) << from;
  if (at != std::string::npos)
    text.replace(at, from.size(), to);
  return text;
}

void expectRefused(const std::string &text, const std::string &message) {
  EXPECT_NE(refusal(text).find(message), std::string::npos)
      << "expected: " << message << "\nfound:    " << refusal(text);
}

TEST(ManifestTest, RoundTripGivesTheSameBytes) {
  for (bool packed : {false, true}) {
    std::string text = writeManifest(sample(packed));
    Expected<Manifest> manifest = parseManifest(text);
    ASSERT_TRUE(bool(manifest)) << manifest.message();
    EXPECT_EQ(writeManifest(*manifest), text);
    EXPECT_EQ(text.back(), '\n');
  }
}

TEST(ManifestTest, CodesHaveAScaleAndNothingElseHas) {
  Manifest manifest = sample();
  Layer &layer = manifest.layers[0];
  Buffer *query = nullptr;
  for (Buffer &buffer : manifest.buffers)
    if (buffer.name == layer.buffers.query)
      query = &buffer;
  ASSERT_NE(query, nullptr);
  layer.qScale = layer.kScale;
  expectRefused(writeManifest(manifest),
                "layers[0].buffers.query: \"" + query->name +
                    "\" is of bf16, but the layer has a scale \"q\"");
  query->elementType = ElementType::F8E5M2;
  Expected<Manifest> read = parseManifest(writeManifest(manifest));
  ASSERT_TRUE(bool(read)) << read.message();
  ASSERT_TRUE(read->layers[0].qScale.has_value());
  EXPECT_EQ(read->layers[0].qScale->key, layer.kScale.key);
  layer.qScale.reset();
  expectRefused(writeManifest(manifest), "but the layer has no scale \"q\"");
}

TEST(ManifestTest, ALaunchWithoutALayerIsAQuantization) {
  Manifest manifest = sample();
  Launch &launch = manifest.targets[0].launches[0];
  launch.layer.clear();
  expectRefused(writeManifest(manifest), "no layer has the id \"\"");
  // Another launch of the segment keeps the layer.
  Launch quantize = launch;
  quantize.op = LaunchOp::Quantize;
  launch = sample().targets[0].launches[0];
  auto &launches = manifest.targets[0].launches;
  launches.insert(launches.begin(), quantize);
  EXPECT_EQ(refusal(writeManifest(manifest)), "accepted");
  launches[0].arguments.resize(1);
  expectRefused(writeManifest(manifest),
                "launches[0].arguments: expected the buffers that are read and "
                "written first");
}

TEST(ManifestTest, MergesAndCopiesNameTheirBuffers) {
  Manifest manifest = sample();
  Launch merge = manifest.targets[0].launches[0];
  merge.op = LaunchOp::MergeStates;
  merge.layer.clear();
  merge.arguments.clear();
  Buffer lse = manifest.buffers[0];
  for (const char *name : {"query", "output"}) {
    const Buffer *partial = manifest.findBuffer(std::string("layer0.") + name);
    lse.name = std::string("lse of ") + name;
    lse.role = BufferRole::Activation;
    lse.elementType = ElementType::F32;
    lse.shape = {partial->shape[0], partial->shape[1]};
    lse.strides = contiguousStrides(lse.shape);
    lse.dynamicDims = {0};
    lse.bytes = *spanBytes(lse);
    merge.arguments.push_back(Argument::ofBuffer(partial->name));
    merge.arguments.push_back(Argument::ofBuffer(lse.name));
    manifest.buffers.push_back(lse);
  }
  auto &launches = manifest.targets[0].launches;
  launches.insert(launches.begin(), merge);
  expectRefused(writeManifest(manifest),
                "launches[0].arguments: expected the buffers that are read and "
                "written first");
  for (int i = 2; i < 4; ++i)
    launches[0].arguments.push_back(merge.arguments[size_t(i)]);
  EXPECT_EQ(refusal(writeManifest(manifest)), "accepted");
  manifest.buffers.back().elementType = ElementType::BF16;
  expectRefused(writeManifest(manifest),
                "launches[0].arguments[3]: expected f32 [");

  manifest = sample();
  Launch copy = manifest.targets[0].launches[0];
  copy.op = LaunchOp::CopyPages;
  copy.arguments = {Argument::ofBuffer("layer0.k_cache"),
                    Argument::ofBuffer("layer0.v_cache")};
  manifest.targets[0].launches.insert(manifest.targets[0].launches.begin(),
                                      copy);
  expectRefused(writeManifest(manifest),
                "expected a buffer of role page_copies, found none");
  Buffer pairs;
  pairs.name = "pairs";
  pairs.role = BufferRole::PageCopies;
  pairs.elementType = ElementType::I64;
  pairs.shape = {3, 2};
  pairs.strides = {2, 1};
  pairs.bytes = 48;
  manifest.buffers.push_back(pairs);
  manifest.targets[0].launches[0].arguments[1] = Argument::ofBuffer("pairs");
  expectRefused(writeManifest(manifest),
                "expected \"layer0.v_cache\" of layer");
  manifest.targets[0].launches[0].arguments.push_back(
      Argument::ofBuffer("layer0.v_cache"));
  EXPECT_EQ(refusal(writeManifest(manifest)), "accepted");
  manifest.buffers.back().shape = {2, 3};
  manifest.buffers.back().strides = {3, 1};
  expectRefused(writeManifest(manifest),
                "shape: expected [2, 2] by the capacities, found [2, 3]");
}

TEST(ManifestTest, KeepsBitsAndProvenance) {
  Expected<Manifest> manifest = parseManifest(writeManifest(sample()));
  ASSERT_TRUE(bool(manifest)) << manifest.message();
  const Layer *layer = manifest->findLayer("layer1");
  ASSERT_NE(layer, nullptr);
  EXPECT_EQ(layer->kScale.value.value(), test::kScale(1));
  EXPECT_EQ(layer->kScale.provenance, Provenance::Checkpoint);
  EXPECT_EQ(layer->kScale.key, "model.layers.1.self_attn.k_proj.k_scale");
  EXPECT_EQ(layer->vScale.provenance, Provenance::Override);
  const Target *target = manifest->findTarget("sm_90");
  ASSERT_NE(target, nullptr);
  EXPECT_EQ(target->launches[1].arguments[10].from,
            "softmax_scale * k_scale * log2(e)");
  EXPECT_EQ(target->launches[0].arguments[7].from, "max_tokens");
  EXPECT_EQ(target->kernels[1].report->registers, 40);
  EXPECT_EQ(std::get<int64_t>(manifest->options.at("page-size")), 16);
}

TEST(ManifestTest, EveryScaleSurvivesAsDecimal) {
  Manifest manifest = sample();
  // 1e-45 is the smallest subnormal; 0x3C498B5A a value whose shortest decimal
  // has nine digits.
  for (uint32_t bits : {0x00000001u, 0x3C498B5Au, 0x7F7FFFFFu, 0x3F800001u}) {
    Layer &layer = manifest.layers[0];
    layer.kScale.value.bits = bits;
    layer.compatibility = cacheCompatibility(layer);
    Expected<Manifest> back = parseManifest(writeManifest(manifest));
    ASSERT_TRUE(bool(back)) << back.message();
    EXPECT_EQ(back->layers[0].kScale.value.bits, bits);
  }
}

TEST(ManifestTest, ScalesPerHeadSurvive) {
  Manifest manifest = sample();
  Layer &layer = manifest.layers[0];
  ASSERT_EQ(layer.kvHeads, 2);
  std::string before = layer.compatibility;
  layer.kScale.perHead = {ScalarF32::of(0.1f), ScalarF32::of(0.2f)};
  layer.kScale.value = ScalarF32::of(0.2f);
  layer.compatibility = cacheCompatibility(layer);
  Expected<Manifest> back = parseManifest(writeManifest(manifest));
  ASSERT_TRUE(bool(back)) << back.message();
  const ManifestScale &k = back->layers[0].kScale;
  ASSERT_EQ(k.perHead.size(), 2u);
  EXPECT_EQ(k.ofHead(0), 0.1f);
  EXPECT_EQ(k.ofHead(1), 0.2f);
  EXPECT_EQ(back->layers[0].vScale.ofHead(1), test::vScale(0));

  // Each head's scale is part of what makes caches compatible.
  EXPECT_NE(layer.compatibility, before);
  std::string digest = layer.compatibility;
  layer.kScale.perHead[0] = ScalarF32::of(0.15f);
  EXPECT_NE(cacheCompatibility(layer), digest);

  auto refusalOf = [&](std::vector<ScalarF32> heads) {
    layer.kScale.perHead = std::move(heads);
    layer.compatibility = cacheCompatibility(layer);
    Error error = validateManifest(manifest);
    return error ? error.message() : std::string("accepted");
  };
  EXPECT_NE(refusalOf({ScalarF32::of(0.2f)})
                .find("layers[0].scales.k.head_bits: expected one for each of "
                      "the 2 KV heads, found 1"),
            std::string::npos);
  EXPECT_NE(refusalOf({ScalarF32::of(0.1f), ScalarF32::of(0.15f)})
                .find("layers[0].scales.k.value: expected the largest of all "
                      "heads"),
            std::string::npos);
  EXPECT_NE(refusalOf({ScalarF32::of(0.0f), ScalarF32::of(0.2f)})
                .find("head_bits: expected a positive finite value"),
            std::string::npos);
}

TEST(ManifestTest, RefusesWhatIsNoManifest) {
  EXPECT_NE(refusal(""), "accepted");
  EXPECT_NE(refusal("[]"), "accepted");
  EXPECT_NE(refusal("{\"format\": \"kvcache-bundle\""), "accepted");
  expectRefused("{}", "manifest.json: member \"format\" is missing");
  expectRefused("{\"format\": \"zip\"}",
                "format: expected \"kvcache-bundle\", found \"zip\"");
}

TEST(ManifestTest, RefusesAFutureVersionByName) {
  // Its members may be unknown here: the version is what is reported.
  expectRefused("{\"format\": \"kvcache-bundle\", \"version\": 7, \"new\": 1}",
                "manifest.json: version: expected version 1, found 7: the "
                "bundle was written by a newer kvcache");
  expectRefused("{\"format\": \"kvcache-bundle\", \"version\": 0}",
                "version: expected an integer from 1");
}

TEST(ManifestTest, EveryCutIsRefused) {
  std::string text = writeManifest(sample());
  for (size_t size = 0; size + 2 < text.size(); size += 13)
    EXPECT_NE(refusal(text.substr(0, size)), "accepted") << size;
}

TEST(ManifestTest, RandomEditsAreRefusedOrGiveAValidManifest) {
  const std::string text = writeManifest(sample(/*packed=*/true));
  const char bytes[] = "0123456789-.eE\"{}[],:ntf \\\0\xff";
  uint64_t state = 20261130;
  auto next = [&](uint64_t bound) {
    state = state * 6364136223846793005ull + 1442695040888963407ull;
    return (state >> 33) % bound;
  };
  for (int i = 0; i < 3000; ++i) {
    std::string edited = text;
    for (uint64_t edits = 1 + next(3); edits > 0; --edits) {
      size_t at = next(edited.size());
      switch (next(3)) {
      case 0:
        edited[at] = bytes[next(sizeof(bytes) - 1)];
        break;
      case 1:
        edited.erase(at, 1 + next(40));
        break;
      default:
        edited.insert(at, text.substr(next(text.size()), next(40)));
      }
    }
    Expected<Manifest> manifest = parseManifest(edited);
    if (manifest) {
      EXPECT_FALSE(bool(validateManifest(*manifest)));
      EXPECT_TRUE(bool(parseManifest(writeManifest(*manifest))));
    } else {
      EXPECT_EQ(manifest.message().compare(0, 13, "manifest.json"), 0)
          << manifest.message();
    }
  }
}

TEST(ManifestTest, EveryMissingMemberIsNamed) {
  std::string text = writeManifest(sample());
  for (const char *name :
       {"version",  "producer", "options",   "capacities",     "layers",
        "buffers",  "programs", "targets",   "softmax_scale",  "compatibility",
        "role",     "strides",  "access",    "stable_address", "chip",
        "sha256",   "grid",     "arguments", "host",           "function",
        "structure"}) {
    std::string cut = text;
    std::string key = "\"" + std::string(name) + "\":";
    size_t at = cut.find(key);
    ASSERT_NE(at, std::string::npos) << name;
    cut.replace(at + 1, std::string(name).size(), "renamed");
    expectRefused(cut, "member \"" + std::string(name) + "\" is missing");
  }
}

TEST(ManifestTest, RefusesUnknownAndRepeatedMembers) {
  expectRefused(edited("", "\"producer\"", "\"colour\": 1, \"producer\""),
                "unknown member \"colour\"; expected one of format, version");
  EXPECT_NE(refusal(edited("", "\"producer\"", "\"version\": 1, \"producer\"")),
            "accepted");
  expectRefused(edited("\"launches\"", "\"op\"", "\"hat\": [], \"op\""),
                "targets[0].launches[0]: unknown member \"hat\"");
}

TEST(ManifestTest, RefusesWrongTypesWithTheirPath) {
  expectRefused(
      edited("\"capacities\"", "\"max_tokens\": 8", "\"max_tokens\": \"8\""),
      "capacities.max_tokens: expected an integer from 1 to "
      "2147483647, found \"8\"");
  expectRefused(
      edited("\"capacities\"", "\"max_tokens\": 8", "\"max_tokens\": 8.5"),
      "capacities.max_tokens: expected an integer");
  expectRefused(edited("\"stable_address\"", "false", "0"),
                "buffers[0].stable_address: expected true or false, found 0");
  expectRefused(edited("\"grid\"", "[8, 1, 1]", "[8, 1]"),
                "targets[0].launches[0].grid: expected three integers");
  expectRefused(edited("\"grid\"", "[8, 1, 1]", "8"),
                "targets[0].launches[0].grid: expected an array, found 8");
  expectRefused(edited("\"layers\"", "\"query_heads\": 4",
                       "\"query_heads\": 18446744073709551615"),
                "layers[0].query_heads: expected an integer");
  expectRefused(edited("\"buffers\": [\n", "\"bf16\"", "\"f64\""),
                "expected bf16, f16, f32");
}

TEST(ManifestTest, RefusesBitsThatDisagreeWithTheValue) {
  expectRefused(edited("\"softmax_scale\"", "0x3E000000", "0x3E000001"),
                "layers[0].softmax_scale.bits: expected the bits of");
  expectRefused(edited("\"softmax_scale\"", "0x3E000000", "3E000000"),
                "expected \"0x\" and eight hex digits");
}

//===----------------------------------------------------------------------===//
// What must hold across members: each edit of a good manifest is refused.
//===----------------------------------------------------------------------===//

/// A kernel of the device library in the place of the tests' own.
void useLibraryKernels(Manifest &m) {
  m.targets[0].kernels[0].structure = {
      {"arch", int64_t(90)},     {"kv_heads", int64_t(2)},
      {"head_dim", int64_t(64)}, {"page_size", int64_t(16)},
      {"per_head", int64_t(0)},  {"k_scale_is_pow2", int64_t(0)}};
  m.targets[0].kernels[1].structure = {
      {"arch", int64_t(90)},      {"q_heads", int64_t(4)},
      {"kv_heads", int64_t(2)},   {"head_dim", int64_t(64)},
      {"page_size", int64_t(16)}, {"rows", int64_t(4)},
      {"num_splits", int64_t(3)}};
  for (Launch &launch : m.targets[0].launches)
    launch.grid = launch.op == LaunchOp::Write
                      ? std::array<int64_t, 3>{1, 1, 1}
                      : std::array<int64_t, 3>{2, 4, 3};
}

TEST(ManifestTest, GridsAreThoseOfTheCapacities) {
  Manifest manifest = sample();
  test::addBucket(manifest);
  useLibraryKernels(manifest);
  const OptionMap &attention = manifest.targets[0].kernels[1].structure;
  // Blocks of 4 rows: 8 tokens of 2 sequences, 4 of one, for each of 2 KV
  // heads.
  EXPECT_EQ(*capacityGrid(attention, manifest.capacities),
            (std::array<int64_t, 3>{2, 4, 3}));
  EXPECT_EQ(
      *capacityGrid(attention, manifest.capacitiesOf(manifest.programs[1])),
      (std::array<int64_t, 3>{2, 2, 3}));
  // The bucket still has the grid of the whole program.
  EXPECT_TRUE(bool(validateManifest(manifest)));
  for (Launch &launch : manifest.targets[0].launches)
    if (launch.program == "main.b1" && launch.op == LaunchOp::PagedAttention)
      launch.grid[1] = 2;
  Error error = validateManifest(manifest);
  EXPECT_FALSE(bool(error)) << error.message();
  // Somebody else's kernel has any grid.
  EXPECT_FALSE(capacityGrid({{"BLOCK", int64_t(128)}}, manifest.capacities));
}

TEST(ManifestTest, TheSmallestBucketWithRoomIsChosen) {
  Manifest manifest = sample();
  test::addBucket(manifest);
  Expected<Manifest> back = parseManifest(writeManifest(manifest));
  ASSERT_TRUE(bool(back)) << back.message();
  const Program &whole = **back->chooseProgram("");
  EXPECT_EQ(whole.name, "main");
  EXPECT_EQ(back->programFor(whole, 1, 1)->name, "main.b1");
  EXPECT_EQ(back->programFor(whole, 1, 5)->name, "main");
  EXPECT_EQ(back->programFor(whole, 2, 2)->name, "main");
  EXPECT_EQ(back->programFor(whole, 3, 3), nullptr);
  EXPECT_EQ(back->programFor(back->programs[1], 1, 1)->name, "main.b1");
  EXPECT_EQ(back->programFor(back->programs[1], 2, 1), nullptr);
  EXPECT_EQ(back->chooseProgram("decode").message(),
            "the bundle has no program \"decode\"; it has main, main.b1");
}

struct HostileCase {
  const char *what;
  std::function<void(Manifest &)> edit;
  const char *message;
};

Buffer &bufferNamed(Manifest &manifest, const std::string &name) {
  for (Buffer &buffer : manifest.buffers)
    if (buffer.name == name)
      return buffer;
  ADD_FAILURE() << name;
  return manifest.buffers.front();
}

const HostileCase hostileCases[] = {
    {"splits chosen for a live length",
     [](Manifest &m) {
       useLibraryKernels(m);
       m.targets[0].launches[1].grid[2] = 1;
     },
     "targets[0].launches[1].grid: expected [2, 4, 3], which kernel "
     "\"simple_attention\" has for these capacities, found [2, 4, 1]"},
    {"more rows than there are",
     [](Manifest &m) {
       useLibraryKernels(m);
       m.targets[0].launches[1].grid[1] = 65535;
     },
     "targets[0].launches[1].grid: expected [2, 4, 3]"},
    {"more blocks than a write has tokens",
     [](Manifest &m) {
       useLibraryKernels(m);
       m.targets[0].launches[0].grid[0] = 9;
     },
     "targets[0].launches[0].grid: expected [1, 1, 1]"},
    {"a constant for the tokens of one step",
     [](Manifest &m) {
       m.targets[0].launches[0].arguments[7] = Argument::ofI32(5, "max_tokens");
     },
     "targets[0].launches[0].arguments[7].value: expected 8 (max_tokens), "
     "found 5"},
    {"a constant for other slots",
     [](Manifest &m) {
       m.targets[0].launches[0].arguments[8] =
           Argument::ofI64(7 * 32, "num_pages * page_size");
     },
     "expected 112 (num_pages * page_size), found 224"},
    {"kernel of another layer",
     [](Manifest &m) {
       useLibraryKernels(m);
       m.targets[0].kernels[1].structure["head_dim"] = int64_t(128);
     },
     "the head_dim of kernel \"simple_attention\" is not the 64 of layer "
     "\"layer0\""},
    {"structure that is no number",
     [](Manifest &m) {
       useLibraryKernels(m);
       m.targets[0].kernels[1].structure["num_splits"] = std::string("3");
     },
     "structure.num_splits: expected an integer from 1 to 65536"},
    {"numerics of another kernel",
     [](Manifest &m) {
       useLibraryKernels(m);
       m.targets[0].kernels[1].structure["math"] = int64_t(1);
       m.targets[0].launches[1].math = Math::F16;
     },
     "launches[1].math: expected \"fp8\", the numerics of kernel "
     "\"simple_attention\", found \"f16\""},
    {"numerics of a kernel that the launch does not name",
     [](Manifest &m) {
       useLibraryKernels(m);
       m.targets[0].kernels[1].structure["math"] = int64_t(0);
     },
     "launches[1].math: expected \"f16\", the numerics of kernel "
     "\"simple_attention\", found none"},
    {"numerics of a write",
     [](Manifest &m) { m.targets[0].launches[0].math = Math::FP8; },
     "launches[0].math: expected none for write, found \"fp8\""},
    {"bucket of nothing",
     [](Manifest &m) {
       test::addBucket(m);
       m.programs[1].bucket->of = "decode";
     },
     "programs[1].bucket.of: expected a program that is no bucket, found "
     "\"decode\""},
    {"bucket of a bucket",
     [](Manifest &m) {
       test::addBucket(m);
       m.programs[1].bucket->of = "main.b1";
     },
     "programs[1].bucket.of: expected a program that is no bucket"},
    {"bucket larger than its program",
     [](Manifest &m) {
       test::addBucket(m);
       m.programs[1].bucket->sequences = 3;
     },
     "programs[1].bucket.sequences: expected an integer from 1 to 2, found 3"},
    {"bucket with more tokens",
     [](Manifest &m) {
       test::addBucket(m);
       m.programs[1].bucket->tokens = 9;
     },
     "programs[1].bucket.tokens: expected an integer from 1 to 8, found 9"},
    {"bucket with other segments",
     [](Manifest &m) {
       test::addBucket(m);
       m.programs[1].segments.pop_back();
     },
     "programs[1].bucket.of: expected the segments of \"main\", found others"},
    {"absolute path",
     [](Manifest &m) { m.targets[0].ptx.file = "/etc/passwd"; },
     "targets[0].ptx.file: expected a path inside the bundle"},
    {"parent path",
     [](Manifest &m) { m.targets[0].ptx.file = "code/../../x.ptx"; },
     "targets[0].ptx.file: expected a path inside the bundle"},
    {"the manifest as code",
     [](Manifest &m) { m.targets[0].ptx.file = "manifest.json"; },
     "targets[0].ptx.file: expected a path inside the bundle"},
    {"short digest", [](Manifest &m) { m.targets[0].ptx.sha256 = "abc"; },
     "targets[0].ptx.sha256: expected 64 lower-case hex digits"},
    {"no targets", [](Manifest &m) { m.targets.clear(); },
     "targets: expected at least one"},
    {"two targets of one chip",
     [](Manifest &m) { m.targets.push_back(m.targets[0]); },
     "targets[1].chip: \"sm_90\" is used twice"},
    {"odd chip", [](Manifest &m) { m.targets[0].chip = "gfx90"; },
     "targets[0].chip: expected a chip such as sm_90, found \"gfx90\""},
    {"negative capacity", [](Manifest &m) { m.capacities.numPages = -7; },
     "capacities.num_pages: expected an integer from 1"},
    {"buffer name twice",
     [](Manifest &m) { m.buffers[1].name = m.buffers[0].name; },
     "buffers[1].name: \"page_table\" is used twice"},
    {"overflowing shape",
     [](Manifest &m) {
       Buffer &buffer = bufferNamed(m, "layer0.query");
       buffer.shape = {8, INT64_MAX / 2, 64};
       buffer.strides = {INT64_MAX / 4, 64, 1};
     },
     "is more than 70368744177664 bytes"},
    {"overflowing capacity buffer",
     [](Manifest &m) { bufferNamed(m, "layer0.key").bytes = 1ull << 62; },
     "bytes: expected at most 70368744177664, found 4611686018427387904"},
    {"buffer smaller than its shape",
     [](Manifest &m) { bufferNamed(m, "layer0.query").bytes -= 2; },
     "expected at least 4096 for shape and strides, found 4094"},
    {"missing stride",
     [](Manifest &m) { bufferNamed(m, "layer0.query").strides.pop_back(); },
     "strides: expected 3 strides, one per dimension of shape, found 2"},
    {"zero stride",
     [](Manifest &m) { bufferNamed(m, "layer0.query").strides[1] = 0; },
     "strides[1]: expected a positive number, found 0"},
    {"dynamic dim out of range",
     [](Manifest &m) { bufferNamed(m, "layer0.query").dynamicDims = {3}; },
     "dynamic_dims[0]: expected ascending dimensions below 3, found 3"},
    {"page table of another size",
     [](Manifest &m) {
       Buffer &table = bufferNamed(m, "page_table");
       table.shape = {2, 1};
       table.strides = {1, 1};
     },
     "shape: expected [2, 2] by the capacities, found [2, 1]"},
    {"lengths of i64",
     [](Manifest &m) {
       Buffer &lengths = bufferNamed(m, "lengths");
       lengths.elementType = ElementType::I64;
       lengths.bytes = 16;
     },
     "element_type: expected i32 for role lengths, found i64"},
    {"workspace of the caller",
     [](Manifest &m) {
       bufferNamed(m, "workspace.counters").owner = BufferOwner::Caller;
     },
     "owner: expected runtime for a workspace, found caller"},
    {"layer with heads that do not divide",
     [](Manifest &m) { m.layers[0].kvHeads = 3; },
     "layers[0].query_heads: expected a multiple of kv_heads (3), found 4"},
    {"page size not a power of two",
     [](Manifest &m) { m.layers[0].pageSize = 12; },
     "layers[0].page_size: expected a power of two, found 12"},
    {"zero scale", [](Manifest &m) { m.layers[0].kScale.value.bits = 0; },
     "layers[0].scales.k: expected a positive finite value"},
    {"scale changed under its digest",
     [](Manifest &m) {
       m.layers[0].kScale.value = ScalarF32::of(test::kScale(0) * 1.05f);
     },
     "layers[0].compatibility: expected "},
    {"layer without a buffer",
     [](Manifest &m) { m.layers[0].buffers.query = "nothing"; },
     "layers[0].buffers.query: no buffer is named \"nothing\""},
    {"layer's buffer of another role",
     [](Manifest &m) { m.layers[0].buffers.query = "lengths"; },
     "layers[0].buffers.query: \"lengths\" has role lengths"},
    {"layer's buffer of another shape",
     [](Manifest &m) { m.layers[0].buffers.query = "layer0.key"; },
     "has shape [8, 2, 64], expected [8, 4, 64]"},
    {"key without value",
     [](Manifest &m) { m.layers[0].buffers.value.clear(); },
     "layers[0].buffers.value: expected key and value together"},
    {"grid beyond CUDA's limit",
     [](Manifest &m) { m.targets[0].launches[1].grid[1] = 65536; },
     "targets[0].launches[1].grid[1]: expected an integer from 1 to 65535, "
     "found 65536"},
    {"absurd number of blocks",
     [](Manifest &m) { m.targets[0].launches[1].grid = {1 << 30, 1, 1}; },
     "targets[0].launches[1].grid: expected at most 67108864 blocks"},
    {"too many threads",
     [](Manifest &m) { m.targets[0].launches[0].block = {1024, 2, 1}; },
     "targets[0].launches[0].block: expected at most 1024 threads, found 2048"},
    {"too much shared memory",
     [](Manifest &m) { m.targets[0].launches[0].sharedBytes = 232449; },
     "targets[0].launches[0].shared_bytes: expected an integer from 0 to "
     "232448, found 232449"},
    {"launch of another program",
     [](Manifest &m) { m.targets[0].launches[0].program = "prefill"; },
     "targets[0].launches[0].program: no program is named \"prefill\""},
    {"launch in another segment",
     [](Manifest &m) { m.targets[0].launches[0].segment = "layer9"; },
     "targets[0].launches[0].segment: program \"main\" has no segment "
     "\"layer9\""},
    {"launch of an unknown kernel",
     [](Manifest &m) { m.targets[0].launches[0].kernel = "k"; },
     "targets[0].launches[0].kernel: target sm_90 has no kernel \"k\""},
    {"launch of an unknown layer",
     [](Manifest &m) { m.targets[0].launches[0].layer = "layer7"; },
     "targets[0].launches[0].layer: no layer has the id \"layer7\""},
    {"launch of another layer",
     [](Manifest &m) { m.targets[0].launches[1].layer = "layer1"; },
     "targets[0].launches[1].arguments: expected \"layer1.query\" of layer "
     "\"layer1\" among them, found it nowhere"},
    {"launch with an unknown buffer",
     [](Manifest &m) { m.targets[0].launches[0].arguments[2].buffer = "x"; },
     "targets[0].launches[0].arguments[2].name: no buffer is named \"x\""},
    {"NaN constant",
     [](Manifest &m) {
       m.targets[0].launches[0].arguments[5].f32.bits = 0x7FC00000;
     },
     "targets[0].launches[0].arguments[5].bits: expected a number, found NaN"},
    {"segment that nothing launches",
     [](Manifest &m) { m.targets[0].launches.resize(2); },
     "targets[0].launches: expected a launch for segment \"layer1\" of program "
     "\"main\", found none"},
    {"segment over a workspace",
     [](Manifest &m) {
       m.programs[0].segments[0].arguments[0] = "workspace.partials";
     },
     "programs[0].segments[0].arguments[0]: \"workspace.partials\" is a "
     "workspace"},
    {"host code outside",
     [](Manifest &m) {
       HostCode host;
       host.file.file = "../host.mlir";
       m.programs[0].host = host;
     },
     "programs[0].host.file: expected a path inside the bundle"},
};

TEST(ManifestTest, EachHostileManifestIsRefusedByWriterAndReader) {
  for (const HostileCase &hostile : hostileCases) {
    Manifest manifest = sample();
    hostile.edit(manifest);
    Error error = validateManifest(manifest);
    ASSERT_TRUE(bool(error)) << hostile.what;
    EXPECT_NE(error.message().find(hostile.message), std::string::npos)
        << hostile.what << "\nexpected: " << hostile.message
        << "\nfound:    " << error.message();
    EXPECT_NE(refusal(writeManifest(manifest)), "accepted") << hostile.what;
  }
}

/// The first layer as one of MLA: rows of 48 + 16 elements in one cache.
Manifest latentSample() {
  Manifest m = sample();
  Layer &layer = m.layers[0];
  layer.kvHeads = 1;
  layer.ropeDim = 16;
  auto reshape = [&](const std::string &name, std::vector<int64_t> shape) {
    Buffer &buffer = bufferNamed(m, name);
    buffer.strides = contiguousStrides(shape);
    buffer.shape = std::move(shape);
    buffer.bytes = *spanBytes(buffer);
  };
  LayerBuffers &names = layer.buffers;
  int64_t tokens = m.capacities.maxTokens;
  reshape(names.key, {tokens, 48});
  reshape(names.value, {tokens, 16});
  reshape(names.output, {tokens, layer.queryHeads, 48});
  reshape(names.kCache, {m.capacities.numPages, layer.pageSize, 1, 64});
  std::string old = names.vCache;
  names.vCache = names.kCache;
  for (Target &target : m.targets)
    for (Launch &launch : target.launches)
      if (launch.layer == layer.id) {
        launch.op =
            isWrite(launch.op) ? LaunchOp::WriteLatent : LaunchOp::MLAAttention;
        for (Argument &argument : launch.arguments)
          if (argument.buffer == old)
            argument.buffer = names.kCache;
      }
  m.buffers.erase(std::find_if(m.buffers.begin(), m.buffers.end(),
                               [&](const Buffer &b) { return b.name == old; }));
  layer.compatibility = cacheCompatibility(layer);
  return m;
}

TEST(ManifestTest, LatentLayersSurvive) {
  Manifest manifest = latentSample();
  Error error = validateManifest(manifest);
  ASSERT_FALSE(bool(error)) << error.message();
  std::string text = writeManifest(manifest);
  Expected<Manifest> read = parseManifest(text);
  ASSERT_TRUE(bool(read)) << read.message();
  EXPECT_EQ(read->layers[0].ropeDim, 16);
  EXPECT_EQ(read->layers[0].valueDim(), 48);
  EXPECT_EQ(read->layers[1].ropeDim, 0);
  EXPECT_EQ(writeManifest(*read), text);
}

TEST(ManifestTest, ValuesMayHaveTheirOwnHeadDim) {
  Manifest m = sample();
  Layer &layer = m.layers[0];
  layer.vHeadDim = 32;
  for (const std::string *name :
       {&layer.buffers.value, &layer.buffers.output, &layer.buffers.vCache}) {
    Buffer &buffer = bufferNamed(m, *name);
    buffer.shape.back() = 32;
    buffer.strides = contiguousStrides(buffer.shape);
    buffer.bytes = *spanBytes(buffer);
  }
  layer.compatibility = cacheCompatibility(layer);
  Error error = validateManifest(m);
  ASSERT_FALSE(bool(error)) << error.message();
  std::string text = writeManifest(m);
  Expected<Manifest> read = parseManifest(text);
  ASSERT_TRUE(bool(read)) << read.message();
  EXPECT_EQ(read->layers[0].headDim, 64);
  EXPECT_EQ(read->layers[0].valueDim(), 32);
  EXPECT_EQ(read->layers[1].vHeadDim, 0);
  EXPECT_EQ(writeManifest(*read), text);
  // Keys' pages in place of values', and one that says nothing.
  Manifest other = m;
  other.layers[0].buffers.vCache = layer.buffers.kCache;
  EXPECT_NE(validateManifest(other).message().find("layers[0].buffers.v_cache"),
            std::string::npos);
  m.layers[0].vHeadDim = 64;
  EXPECT_NE(validateManifest(m).message().find(
                "layers[0].v_head_dim: expected one only where it differs"),
            std::string::npos);
}

const HostileCase hostileLatents[] = {
    {"two KV heads",
     [](Manifest &m) {
       m.layers[0].kvHeads = 2;
       m.layers[0].compatibility = cacheCompatibility(m.layers[0]);
     },
     "layers[0].rope_dim: expected one KV head and a rotary part shorter than "
     "head_dim, found 2 KV heads and 16 of 64"},
    {"nothing but a rotary part",
     [](Manifest &m) {
       m.layers[0].ropeDim = 64;
       m.layers[0].compatibility = cacheCompatibility(m.layers[0]);
     },
     "layers[0].rope_dim: expected one KV head and a rotary part shorter"},
    {"fp8_ds_mla rows with a part of a tile",
     [](Manifest &m) {
       m.layers[0].elementType = ElementType::U8;
       m.layers[0].compatibility = cacheCompatibility(m.layers[0]);
     },
     "layers[0].rope_dim: expected a latent part that is a multiple of 128 for "
     "fp8_ds_mla rows, found 48"},
    {"two caches",
     [](Manifest &m) { m.layers[0].buffers.vCache = "layer1.v_cache"; },
     "layers[0].buffers.v_cache: expected \"layer0.k_cache\", as k_cache of a "
     "latent layer, found \"layer1.v_cache\""},
    {"outputs as wide as queries",
     [](Manifest &m) {
       m.layers[0].buffers.output = m.layers[0].buffers.query;
     },
     "layers[0].buffers.output: \"layer0.query\" has shape [8, 4, 64], "
     "expected "
     "[8, 4, 48]"},
    {"a launch that takes K and V",
     [](Manifest &m) {
       for (Launch &launch : m.targets[0].launches)
         if (launch.op == LaunchOp::MLAAttention)
           launch.op = LaunchOp::PagedAttention;
     },
     "op: expected the latent form, as layer \"layer0\" is, found "
     "paged_attention"},
};

TEST(ManifestTest, EachHostileLatentLayerIsRefused) {
  for (const HostileCase &hostile : hostileLatents) {
    Manifest manifest = latentSample();
    hostile.edit(manifest);
    Error error = validateManifest(manifest);
    ASSERT_TRUE(bool(error)) << hostile.what;
    EXPECT_NE(error.message().find(hostile.message), std::string::npos)
        << hostile.what << "\nexpected: " << hostile.message
        << "\nfound:    " << error.message();
  }
  Manifest manifest = sample();
  manifest.layers[0].elementType = ElementType::U8;
  EXPECT_NE(validateManifest(manifest).message().find(
                "expected f8E4M3FN, f8E5M2, bf16 or f16 for a cache, or u8 for "
                "a latent one, found u8"),
            std::string::npos);
}

const HostileCase hostileViews[] = {
    {"view past its buffer",
     [](Manifest &m) {
       bufferNamed(m, "layer0.v_cache").offsetIn->offset = 4096;
     },
     "offset_in.bytes: expected the view's 26624 bytes to end within the 28672 "
     "bytes of \"layer0.kv_cache\", found offset 4096"},
    {"view with an offset that overflows",
     [](Manifest &m) {
       bufferNamed(m, "layer0.v_cache").offsetIn->offset = INT64_MAX;
     },
     "offset_in.bytes: expected the view's"},
    {"view of nothing",
     [](Manifest &m) {
       bufferNamed(m, "layer0.v_cache").offsetIn->buffer = "nothing";
     },
     "offset_in.buffer: no buffer is named \"nothing\""},
    {"view of a view",
     [](Manifest &m) {
       bufferNamed(m, "layer0.v_cache").offsetIn->buffer = "layer0.k_cache";
     },
     "offset_in.buffer: expected a buffer with memory of its own"},
    {"view of itself",
     [](Manifest &m) {
       bufferNamed(m, "layer0.v_cache").offsetIn->buffer = "layer0.v_cache";
     },
     "offset_in.buffer: expected a buffer with memory of its own"},
    {"view of an activation",
     [](Manifest &m) {
       bufferNamed(m, "layer0.v_cache").offsetIn->buffer = "layer0.query";
     },
     "offset_in.buffer: expected a buffer of role cache, found activation"},
    {"view of another size",
     [](Manifest &m) { bufferNamed(m, "layer0.v_cache").bytes = 64; },
     "bytes: expected 26624 by shape and strides, found 64"},
};

TEST(ManifestTest, EachHostileViewIsRefused) {
  for (const HostileCase &hostile : hostileViews) {
    Manifest manifest = sample(/*packed=*/true);
    hostile.edit(manifest);
    Error error = validateManifest(manifest);
    ASSERT_TRUE(bool(error)) << hostile.what;
    EXPECT_NE(error.message().find(hostile.message), std::string::npos)
        << hostile.what << "\nexpected: " << hostile.message
        << "\nfound:    " << error.message();
  }
}

TEST(ManifestTest, ARopeTableFitsItsLayer) {
  Manifest manifest = sample();
  Layer &layer = manifest.layers[0];
  auto add = [&](const char *name, BufferRole role, ElementType type,
                 std::vector<int64_t> shape) {
    Buffer buffer;
    buffer.name = name;
    buffer.role = role;
    buffer.elementType = type;
    buffer.shape = shape;
    buffer.strides = contiguousStrides(shape);
    buffer.bytes = *spanBytes(buffer);
    manifest.buffers.push_back(buffer);
  };
  add("table", BufferRole::Parameter, ElementType::F32, {40, layer.headDim});
  add("positions", BufferRole::Activation, ElementType::I64,
      {manifest.capacities.maxTokens});
  layer.buffers.ropeTable = "table";
  layer.buffers.positions = "positions";
  layer.ropeInterleaved = true;
  ASSERT_FALSE(bool(validateManifest(manifest)))
      << validateManifest(manifest).message();
  Expected<Manifest> again = parseManifest(writeManifest(manifest));
  ASSERT_TRUE(bool(again));
  EXPECT_TRUE(again->layers[0].ropeInterleaved);
  EXPECT_EQ(again->layers[0].buffers.positions, "positions");

  auto refused = [&](std::function<void(Manifest &)> edit) {
    Manifest other = manifest;
    edit(other);
    return bool(validateManifest(other));
  };
  EXPECT_TRUE(refused([](Manifest &m) { m.layers[0].buffers.positions = ""; }));
  EXPECT_TRUE(refused([](Manifest &m) { m.layers[0].buffers.ropeTable = ""; }));
  EXPECT_TRUE(refused([](Manifest &m) {
    bufferNamed(m, "table").shape[1] += 2;
    bufferNamed(m, "table").strides[0] += 2;
    bufferNamed(m, "table").bytes = *spanBytes(bufferNamed(m, "table"));
  }));
  EXPECT_TRUE(refused([](Manifest &m) {
    bufferNamed(m, "table").elementType = ElementType::I32;
  }));
  EXPECT_TRUE(refused([](Manifest &m) {
    bufferNamed(m, "table").role = BufferRole::Activation;
  }));
}

TEST(ManifestTest, ScalesOfTokensFitTheirPages) {
  Manifest manifest = sample();
  Layer &layer = manifest.layers[0];
  for (auto [name, member] : {std::pair("ks", &layer.buffers.kScales),
                              {"vs", &layer.buffers.vScales}}) {
    Buffer buffer;
    buffer.name = *member = name;
    buffer.role = BufferRole::Cache;
    buffer.elementType = ElementType::F32;
    buffer.shape = {manifest.capacities.numPages, layer.pageSize,
                    layer.kvHeads};
    buffer.strides = contiguousStrides(buffer.shape);
    buffer.bytes = *spanBytes(buffer);
    buffer.access = BufferAccess::ReadWrite;
    manifest.buffers.push_back(buffer);
  }
  std::string without = layer.compatibility;
  layer.tokenScales = TokenScales::Side;
  layer.compatibility = cacheCompatibility(layer);
  EXPECT_NE(layer.compatibility, without);
  ASSERT_FALSE(bool(validateManifest(manifest)))
      << validateManifest(manifest).message();
  Expected<Manifest> again = parseManifest(writeManifest(manifest));
  ASSERT_TRUE(bool(again)) << again.message();
  EXPECT_EQ(again->layers[0].buffers.vScales, "vs");
  auto refused = [&](std::function<void(Manifest &)> edit) {
    Manifest other = manifest;
    edit(other);
    return bool(validateManifest(other));
  };
  EXPECT_TRUE(refused([](Manifest &m) { m.layers[0].buffers.vScales = ""; }));
  EXPECT_TRUE(refused([](Manifest &m) {
    bufferNamed(m, "ks").elementType = ElementType::I32;
  }));
  EXPECT_TRUE(
      refused([](Manifest &m) { m.layers[0].buffers.kScales = "other"; }));
  for (TokenScales other : {TokenScales::None, TokenScales::Inline})
    EXPECT_TRUE(refused([other](Manifest &m) {
      m.layers[0].tokenScales = other;
      m.layers[0].compatibility = cacheCompatibility(m.layers[0]);
    }));
}

TEST(ManifestTest, RowsThatEndInTheirScaleAreBytes) {
  Manifest manifest = sample();
  Layer &layer = manifest.layers[0];
  layer.tokenScales = TokenScales::Inline;
  layer.compatibility = cacheCompatibility(layer);
  EXPECT_TRUE(bool(validateManifest(manifest)));
  for (const std::string &name : {layer.buffers.kCache, layer.buffers.vCache}) {
    Buffer &cache = bufferNamed(manifest, name);
    cache.elementType = ElementType::U8;
    cache.shape[3] = layer.headDim + 4;
    cache.offsetIn.reset();
    cache.strides = contiguousStrides(cache.shape);
    cache.bytes = *spanBytes(cache);
  }
  ASSERT_FALSE(bool(validateManifest(manifest)))
      << validateManifest(manifest).message();
  Expected<Manifest> again = parseManifest(writeManifest(manifest));
  ASSERT_TRUE(bool(again)) << again.message();
  EXPECT_TRUE(again->layers[0].hasInlineScales());
  layer.buffers.kScales = layer.buffers.kCache;
  EXPECT_TRUE(bool(validateManifest(manifest)));
}

TEST(ManifestTest, CompatibilityFollowsEveryFact) {
  Layer layer = sample().layers[0];
  std::string digest = cacheCompatibility(layer);
  EXPECT_EQ(digest.size(), 64u);
  auto differs = [&](std::function<void(Layer &)> edit) {
    Layer other = layer;
    edit(other);
    return cacheCompatibility(other) != digest;
  };
  EXPECT_TRUE(differs([](Layer &l) { l.kScale.value.bits ^= 1; }));
  EXPECT_TRUE(differs([](Layer &l) { l.vScale.value.bits ^= 1; }));
  EXPECT_TRUE(differs([](Layer &l) { l.elementType = ElementType::F8E5M2; }));
  EXPECT_TRUE(differs([](Layer &l) { l.layout = "hnd"; }));
  EXPECT_TRUE(differs([](Layer &l) { l.pageSize = 32; }));
  EXPECT_TRUE(differs([](Layer &l) { l.kvHeads = 1; }));
  EXPECT_TRUE(differs([](Layer &l) { l.headDim = 128; }));
  EXPECT_TRUE(differs([](Layer &l) { l.vHeadDim = 128; }));
  EXPECT_TRUE(differs([](Layer &l) { l.ropeDim = 16; }));
  // Where a scale came from does not matter to who reads the cache.
  EXPECT_FALSE(differs([](Layer &l) { l.kScale.key = "other"; }));
  EXPECT_FALSE(differs([](Layer &l) { l.name = "other"; }));
}

TEST(ManifestTest, SpanFollowsStrides) {
  Buffer buffer;
  buffer.elementType = ElementType::F32;
  buffer.shape = {3, 2};
  buffer.strides = {10, 1};
  EXPECT_EQ(spanBytes(buffer), std::optional<uint64_t>(22 * 4));
  buffer.shape = {0, 2};
  EXPECT_EQ(spanBytes(buffer), std::optional<uint64_t>(0));
  buffer.shape = {3, 2};
  buffer.strides = {INT64_MAX, 1};
  EXPECT_EQ(spanBytes(buffer), std::nullopt);
  buffer.strides = {1};
  EXPECT_EQ(spanBytes(buffer), std::nullopt);
}

} // namespace
