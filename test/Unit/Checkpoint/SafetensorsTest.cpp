//===- SafetensorsTest.cpp - The file format and its refusals -------------===//

#include "kvcache/Checkpoint/Safetensors.h"
#include "TestCheckpoint.h"

using namespace kvcache;

namespace {

std::string fileOf(const std::string &header, const std::string &data = "",
                   uint64_t length = ~0ull) {
  if (length == ~0ull)
    length = header.size();
  return std::string(reinterpret_cast<const char *>(&length), 8) + header +
         data;
}

class Safetensors : public testing::Test {
protected:
  /// The error for a file of these bytes; empty if it is accepted.
  std::string refusal(const std::string &bytes) {
    folder.text("x.safetensors", bytes);
    Expected<SafetensorsFile> file =
        SafetensorsFile::open(folder.path("x.safetensors"));
    if (file)
      return "";
    EXPECT_EQ(file.message().find(folder.path("x.safetensors") + ": "), 0u)
        << file.message();
    return file.message();
  }
  void expectRefusal(const std::string &bytes, const std::string &part) {
    std::string message = refusal(bytes);
    EXPECT_NE(message.find(part), std::string::npos)
        << "expected: " << part << "\nfound: " << message;
  }

  TestFolder folder;
};

TEST_F(Safetensors, AnswersTheRuleFilesAsExpected) {
  std::string folder = inputPath("safetensors_rules");
  Expected<std::string> text = readFile(folder + "/expected.json");
  ASSERT_TRUE(text);
  Expected<JsonValue> expected = parseJson(*text, "expected.json");
  ASSERT_TRUE(expected);
  size_t accepted = 0, refused = 0;
  for (const auto &[name, answer] : expected->find("results")->asObject()) {
    Expected<SafetensorsFile> file =
        SafetensorsFile::open(folder + "/" + name + ".safetensors");
    bool accept = answer.find("ours")->asString() == "accept";
    EXPECT_EQ(bool(file), accept)
        << name << ": " << (file ? "accepted" : file.message());
    accept ? ++accepted : ++refused;
    if (!file || !accept)
      continue;
    std::vector<std::string> names, keys;
    for (const Tensor &tensor : file->tensors())
      names.emplace_back(tensor.name);
    for (const JsonValue &key : answer.find("keys")->asArray())
      keys.push_back(key.asString());
    std::sort(names.begin(), names.end());
    std::sort(keys.begin(), keys.end());
    EXPECT_EQ(names, keys) << name;
    const JsonValue *tensors = answer.find("tensors");
    if (!tensors)
      continue;
    for (const auto &[key, description] : tensors->asObject()) {
      const Tensor *tensor = file->find(key);
      ASSERT_NE(tensor, nullptr) << name << " " << key;
      EXPECT_EQ(JsonValue(formatShape(tensor->shape)).asString(),
                description.asArray()[1].print(2))
          << name;
    }
  }
  EXPECT_EQ(accepted, 21u);
  EXPECT_EQ(refused, 25u);
}

TEST_F(Safetensors, WritesWhatItReads) {
  TensorList list;
  list.f32("b.k_scale", 0.0123f)
      .bf16("a.v_scale", 0.5f)
      .f64("c", 1.25)
      .addValues<uint8_t>("codes", DType::F8E4M3, {2, 3}, {1, 2, 3, 4, 5, 6})
      .add("empty", DType::I64, {0, 4}, "")
      .f32("quote\"\\\n\xC3\xA9", 2);
  ASSERT_FALSE(writeSafetensors(folder.path("a.safetensors"), list.tensors,
                                {{"format", "pt"}}));
  Expected<SafetensorsFile> file =
      SafetensorsFile::open(folder.path("a.safetensors"));
  ASSERT_TRUE(file) << file.message();
  EXPECT_EQ(file->metadata(),
            (std::map<std::string, std::string>{{"format", "pt"}}));
  EXPECT_EQ(file->tensors().size(), list.tensors.size());
  EXPECT_EQ(file->headerBytes() % 8, 0u);
  for (const Tensor &tensor : list.tensors) {
    const Tensor *read = file->find(tensor.name);
    ASSERT_NE(read, nullptr) << tensor.name;
    EXPECT_EQ(read->dtype, tensor.dtype);
    EXPECT_EQ(read->shape, tensor.shape);
    ASSERT_EQ(read->bytes, tensor.bytes);
    if (tensor.bytes) {
      EXPECT_EQ(std::memcmp(read->data, tensor.data, tensor.bytes), 0);
    }
  }
  EXPECT_EQ(file->find("absent"), nullptr);
  EXPECT_EQ(*readFloatElement(*file->find("b.k_scale"), 0), double(0.0123f));
  EXPECT_EQ(*readFloatElement(*file->find("a.v_scale"), 0), 0.5);
  EXPECT_EQ(*readFloatElement(*file->find("c"), 0), 1.25);
  EXPECT_FALSE(readFloatElement(*file->find("codes"), 0));
  EXPECT_FALSE(readFloatElement(*file->find("c"), 1));
}

TEST_F(Safetensors, WritesTheSameBytesWhateverTheOrder) {
  TensorList one, two;
  one.f32("a", 1).bf16("b", 2).f64("c", 3);
  two.f64("c", 3).bf16("b", 2).f32("a", 1);
  folder.tensors("1", one).tensors("2", two);
  EXPECT_EQ(*readFile(folder.path("1")), *readFile(folder.path("2")));
}

TEST_F(Safetensors, RefusesToWriteWhatItCouldNotRead) {
  TensorList twice, wrong, reserved;
  twice.f32("a", 1).f32("a", 1);
  wrong.add("a", DType::F32, {2}, "1234");
  reserved.f32("__metadata__", 1);
  for (const TensorList *list : {&twice, &wrong, &reserved}) {
    Error error = writeSafetensors(folder.path("x"), list->tensors);
    ASSERT_TRUE(error);
    EXPECT_FALSE(pathExists(folder.path("x"))) << error.message();
  }
}

TEST_F(Safetensors, NamesTensorAndReason) {
  expectRefusal(
      fileOf(R"({"k":{"dtype":"F32","shape":[2],"data_offsets":[0,4]}})",
             "1234"),
      "tensor 'k': F32 [2] has 8 bytes, but data_offsets span 4");
  expectRefusal(
      fileOf(R"({"k":{"dtype":"F99","shape":[],"data_offsets":[0,4]}})",
             "1234"),
      "tensor 'k': unknown dtype 'F99'");
  expectRefusal(
      fileOf(R"({"k":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})",
             "1234"),
      "truncated safetensors file: tensor 'k' ends at byte 8");
  expectRefusal(
      fileOf(R"({"k":{"dtype":"F32","shape":[-1],"data_offsets":[0,4]}})",
             "1234"),
      "tensor 'k': an extent of shape must be a size, found a negative");
  expectRefusal(
      fileOf(R"({"k":{"dtype":"F32","shape":[],"data_offsets":[0,-0]}})", ""),
      "-0");
  expectRefusal(fileOf("{}", "", 1000), "truncated");
  expectRefusal("", "0 bytes, expected at least 8");
  expectRefusal(fileOf("[]"), "must be an object, found an array");
  expectRefusal(fileOf("{}", "trailing"), "there are 8");
}

TEST_F(Safetensors, RefusesDuplicates) {
  std::string entry = R"({"dtype":"F32","shape":[0],"data_offsets":[0,0]})";
  expectRefusal(fileOf("{\"k\":" + entry + ",\"k\":" + entry + "}"),
                "the name occurs twice");
  // The same name behind an escape.
  expectRefusal(fileOf("{\"k\":" + entry + ",\"\\u006b\":" + entry + "}"),
                "the name occurs twice");
  expectRefusal(fileOf(R"({"__metadata__":{},"__metadata__":{}})"),
                "__metadata__ occurs twice");
  expectRefusal(fileOf(R"({"__metadata__":{"a":1}})"), "must be a string");
}

TEST_F(Safetensors, ChecksSizesIn64Bits) {
  for (const char *shape : {"[4294967296,4294967296]", "[9223372036854775807]",
                            "[9223372036854775807,9223372036854775807,0]",
                            "[18446744073709551615]", "[18446744073709551616]"})
    EXPECT_NE(refusal(fileOf(std::string(R"({"k":{"dtype":"F32","shape":)") +
                             shape + R"(,"data_offsets":[0,0]}})")),
              "")
        << shape;
  EXPECT_EQ(
      refusal(fileOf(
          R"({"k":{"dtype":"F32","shape":[0,9223372036854775807,4],"data_offsets":[0,0]}})")),
      "");
  for (const char *offsets :
       {"[0,18446744073709551615]", "[18446744073709551615,3]", "[4,0]"})
    EXPECT_NE(
        refusal(fileOf(
            std::string(R"({"k":{"dtype":"F32","shape":[],"data_offsets":)") +
                offsets + "}}",
            "1234")),
        "")
        << offsets;
}

TEST_F(Safetensors, SurvivesEveryTruncationAndEveryFlippedByte) {
  TensorList list;
  list.f32("model.layers.0.self_attn.k_scale", 0.5f).bf16("v", 2);
  folder.tensors("good", list);
  std::string good = *readFile(folder.path("good"));
  for (size_t size = 0; size < good.size(); ++size)
    EXPECT_NE(refusal(good.substr(0, size)), "") << size;
  for (size_t i = 0; i < good.size(); ++i)
    for (int flip : {1, 0x80}) {
      std::string bad = good;
      bad[i] = char(bad[i] ^ flip);
      folder.text("x", bad);
      Expected<SafetensorsFile> file = SafetensorsFile::open(folder.path("x"));
      if (!file)
        continue;
      for (const Tensor &tensor : file->tensors())
        for (int64_t e = 0; e < tensor.numElements(); ++e)
          (void)readFloatElement(tensor, e);
    }
}

/// All that a header says, or that it is refused.
std::string outcome(const std::string &path) {
  Expected<SafetensorsFile> file = SafetensorsFile::open(path);
  if (!file)
    return "refused";
  std::string text;
  for (const Tensor &tensor : file->tensors())
    text += std::string(tensor.name) + " " + dtypeName(tensor.dtype) +
            formatShape(tensor.shape) + std::to_string(tensor.bytes) + "\n";
  return text;
}

// Headers as they are mostly written are scanned in place, all others parsed:
// an escape in the metadata takes a header there.
TEST_F(Safetensors, ScansHeadersAsItParsesThem) {
  const std::string data = "123456";
  const std::string members =
      R"("layers.0.k_scale":{"dtype":"F32","shape":[],"data_offsets":[0,4]}, )"
      R"("w": {"data_offsets": [4, 6], "shape": [1,2 ], "dtype": "F8_E4M3"}})";
  const std::string alphabet = R"({}[]:,"\-0123456789.eE x/~)"
                               "\n\t\x7F\x01\xC3\xA9";
  const std::string plain = R"({"__metadata__":{"format":"pt"},)",
                    escaped = R"({"__metadata__":{"format":"\u0070t"},)";
  unsigned state = 1, accepted = 0;
  auto random = [&](size_t bound) {
    state = state * 1664525u + 1013904223u;
    return size_t(state >> 8) % bound;
  };
  for (int i = 0; i < 3000; ++i) {
    std::string text = members;
    for (size_t changes = i % 3; changes != 0; --changes) {
      size_t at = random(text.size());
      switch (random(3)) {
      case 0:
        text[at] = alphabet[random(alphabet.size())];
        break;
      case 1:
        text.insert(at, 1, alphabet[random(alphabet.size())]);
        break;
      default:
        text.erase(at, 1);
      }
    }
    folder.text("plain", fileOf(plain + text, data));
    folder.text("escaped", fileOf(escaped + text, data));
    std::string scanned = outcome(folder.path("plain"));
    EXPECT_EQ(scanned, outcome(folder.path("escaped"))) << text;
    accepted += scanned != "refused";
  }
  EXPECT_GT(accepted, 1000u);
  EXPECT_LT(accepted, 2500u);
}

TEST_F(Safetensors, FindsEachOfManyNames) {
  TensorList list;
  for (int i = 0; i < 3000; ++i)
    list.f32("model.layers." + std::to_string(i) + ".k_scale", float(i));
  folder.tensors("many", list);
  Expected<SafetensorsFile> file = SafetensorsFile::open(folder.path("many"));
  ASSERT_TRUE(file);
  for (int i = 0; i < 3000; ++i) {
    const Tensor *tensor =
        file->find("model.layers." + std::to_string(i) + ".k_scale");
    ASSERT_NE(tensor, nullptr);
    EXPECT_EQ(*readFloatElement(*tensor, 0), double(i));
  }
}

TEST(DType, NamesRoundTrip) {
  for (unsigned i = 0; i <= unsigned(DType::U64); ++i) {
    DType dtype;
    ASSERT_TRUE(parseDType(dtypeName(DType(i)), dtype));
    EXPECT_EQ(dtype, DType(i));
  }
  DType dtype;
  EXPECT_FALSE(parseDType("f32", dtype));
  EXPECT_EQ(dtypeBits(DType::F6E3M2), 6u);
  EXPECT_EQ(dtypeBits(DType::C64), 64u);
}

} // namespace
