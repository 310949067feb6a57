//===- CheckpointTest.cpp - Folders of files, good and bad ----------------===//

#include "kvcache/Checkpoint/Checkpoint.h"
#include "TestCheckpoint.h"

using namespace kvcache;

namespace {

class CheckpointFolder : public testing::Test {
protected:
  std::string problem(const std::string &path) {
    Expected<Checkpoint> checkpoint = Checkpoint::open(path);
    return checkpoint ? "" : checkpoint.message();
  }
  void expectProblem(const std::string &path, const std::string &part) {
    std::string message = problem(path);
    EXPECT_NE(message.find(part), std::string::npos)
        << "expected: " << part << "\nfound: " << message;
  }
  TensorList one(const std::string &name) {
    TensorList list;
    list.f32(name, 1);
    return list;
  }

  TestFolder folder;
};

TEST_F(CheckpointFolder, OpensEveryFixture) {
  std::string root = inputPath("checkpoints");
  Expected<std::vector<std::string>> names = listDirectory(root);
  ASSERT_TRUE(names);
  size_t opened = 0;
  for (const std::string &name : *names) {
    if (!isDirectory(joinPath(root, name)))
      continue;
    ++opened;
    Expected<Checkpoint> checkpoint = Checkpoint::open(joinPath(root, name));
    ASSERT_TRUE(checkpoint) << checkpoint.message();
    EXPECT_EQ(checkpoint->shards().size(),
              name == "sharded_modelopt" ? 3u : 1u);
    EXPECT_NE(checkpoint->config(), nullptr);
    EXPECT_TRUE(checkpoint->diagnostics().empty());
  }
  EXPECT_EQ(opened, 12u);
}

TEST_F(CheckpointFolder, OpensASingleFileWithTheConfigBesideIt) {
  std::string root = inputPath("checkpoints/modelopt_fp8");
  Expected<Checkpoint> checkpoint =
      Checkpoint::open(root + "/model.safetensors");
  ASSERT_TRUE(checkpoint) << checkpoint.message();
  ASSERT_NE(checkpoint->config(), nullptr);
  EXPECT_EQ(checkpoint->config()->path, root + "/config.json");
  ASSERT_NE(checkpoint->hfQuantConfig(), nullptr);
  const SafetensorsFile *shard = nullptr;
  EXPECT_NE(checkpoint->find("lm_head.weight", &shard), nullptr);
  EXPECT_EQ(shard, &checkpoint->shards()[0]);
}

TEST_F(CheckpointFolder, TakesAllShardsWithoutAnIndex) {
  folder.tensors("b.safetensors", one("b")).tensors("a.safetensors", one("a"));
  Expected<Checkpoint> checkpoint = Checkpoint::open(folder.root);
  ASSERT_TRUE(checkpoint);
  ASSERT_EQ(checkpoint->shards().size(), 2u);
  EXPECT_EQ(checkpoint->shards()[0].path(), folder.path("a.safetensors"));
  EXPECT_NE(checkpoint->find("b"), nullptr);
  EXPECT_EQ(checkpoint->find("c"), nullptr);
  EXPECT_EQ(checkpoint->config(), nullptr);
}

TEST_F(CheckpointFolder, ReportsAFileThatTheIndexDoesNotName) {
  folder.tensors("m1.safetensors", one("a"))
      .tensors("extra.safetensors", one("L.k_scale"))
      .text("model.safetensors.index.json",
            R"({"weight_map": {"a": "m1.safetensors"}})");
  Expected<Checkpoint> checkpoint = Checkpoint::open(folder.root);
  ASSERT_TRUE(checkpoint);
  EXPECT_EQ(checkpoint->shards().size(), 1u);
  EXPECT_NE(findOnly(checkpoint->diagnostics(), Severity::Warning,
                     "extra.safetensors: not read"),
            nullptr);
}

TEST_F(CheckpointFolder, ReadsAnyIndex) {
  folder.tensors("m1.safetensors", one("a"))
      .tensors("m2.safetensors", one("b"))
      .tensors("unnamed.safetensors", one("c"));
  for (const char *index : {
           R"({"weight_map":{"a":"m1.safetensors","b":"m2.safetensors"}})",
           R"({"metadata": {"total_size": 8, "format": "pt"},
               "weight_map": {"a": "m1.safetensors", "b": "m2.safetensors"}})",
           // More than what is scanned in place.
           R"({"metadata": {"total_size": 8.0, "parts": [{"n": -1}]},
               "weight_map": {"a": "m1.safetensors", "b": "m2.safetensors"}})",
           R"({"weight_map": {"\u0061": "m\u0031.safetensors",
                              "b": "m2.safetensors"}})",
       }) {
    folder.text("model.safetensors.index.json", index);
    Expected<Checkpoint> checkpoint = Checkpoint::open(folder.root);
    ASSERT_TRUE(checkpoint) << index << checkpoint.message();
    EXPECT_EQ(checkpoint->shards().size(), 2u) << index;
    EXPECT_NE(checkpoint->find("a"), nullptr) << index;
    EXPECT_EQ(checkpoint->find("c"), nullptr) << index;
  }
}

TEST_F(CheckpointFolder, ChecksTheIndexAgainstTheShards) {
  const char *index = "model.safetensors.index.json";
  folder.tensors("m1.safetensors", one("a"))
      .tensors("m2.safetensors", one("b"));
  folder.text(index, R"({"weight_map": {"a": "m1.safetensors",
                                        "b": "m3.safetensors"}})");
  expectProblem(folder.root, folder.path("m3.safetensors") +
                                 ": no such file, but " + folder.path(index));
  folder.text(index, R"({"weight_map": {"a": "m1.safetensors",
                                        "c": "m2.safetensors"}})");
  expectProblem(folder.root, "names the tensor 'c' in m2.safetensors");
  folder.text(index, R"({"weight_map": {"a": "../m1.safetensors"}})");
  expectProblem(folder.root, "must stay below the checkpoint's folder");
  folder.text(index, R"({"weight_map": {"a": "/m1.safetensors"}})");
  expectProblem(folder.root, "must stay below the checkpoint's folder");
  folder.text(index, R"({"weight_map": {"a": 3}})");
  expectProblem(folder.root, "must name a file by a string");
  folder.text(index, R"({"weights": {}})");
  expectProblem(folder.root, "weight_map");
  folder.text(index, R"({"weight_map": {}})");
  expectProblem(folder.root, "names no shard");
  folder.text(index, "{");
  expectProblem(folder.root, folder.path(index) + ": not valid JSON");
  // As many names as the shards have, and of the same parts.
  folder.tensors("m4.safetensors", one("l.1.k").f32("l.2.v", 1));
  folder.text(index, R"({"weight_map": {"l.1.v": "m4.safetensors",
                                        "l.2.k": "m4.safetensors"}})");
  expectProblem(folder.root, "names the tensor 'l.1.v' in m4.safetensors");
  folder.text(index, R"({"weight_map": {"a": "m2.safetensors",
                                        "b": "m1.safetensors"}})");
  Expected<Checkpoint> checkpoint = Checkpoint::open(folder.root);
  ASSERT_TRUE(checkpoint) << checkpoint.message();
  EXPECT_NE(findOnly(checkpoint->diagnostics(), Severity::Warning,
                     "2 tensors are in another shard"),
            nullptr);
}

TEST_F(CheckpointFolder, NamesWhatIsMissingOrBroken) {
  expectProblem(folder.path("absent"),
                folder.path("absent") + ": no such checkpoint");
  expectProblem(folder.root, folder.root + ": no .safetensors file");
  folder.text("config.json", "{}");
  expectProblem(folder.path("config.json"), "name the folder");
  folder.text("model.safetensors", "1234");
  expectProblem(folder.root, folder.path("model.safetensors") +
                                 ": not a safetensors file: 4 bytes");
  folder.tensors("model.safetensors", one("a")).text("config.json", "{,}");
  expectProblem(folder.root, folder.path("config.json") + ": not valid JSON");
  folder.text("config.json", "[]");
  expectProblem(folder.root, "expected a JSON object, found an array");
  folder.text("config.json", R"({"time_step_limit": [0.0, Infinity]})");
  EXPECT_EQ(problem(folder.root), "");
  folder.text("hf_quant_config.json", "no");
  expectProblem(folder.root,
                folder.path("hf_quant_config.json") + ": not valid JSON");
}

TEST_F(CheckpointFolder, RefusesADeclarationThatIsNoObject) {
  folder.tensors("model.safetensors", one("a"));
  for (const char *key : {"quantization_config", "compression_config"})
    for (const char *value : {R"("fp8")", "[]", "8", "true"}) {
      std::string member = std::string("{\"") + key + "\": " + value + "}";
      folder.text("config.json", member);
      expectProblem(folder.root, folder.path("config.json") + ": " + key +
                                     ": expected an object, found ");
      folder.text("config.json", "{\"text_config\": " + member + "}");
      expectProblem(folder.root, folder.path("config.json") + ": text_config." +
                                     key + ": expected an object, found ");
    }
  folder.text("config.json", R"({"quantization_config": null})");
  EXPECT_EQ(problem(folder.root), "");
  folder.text("hf_quant_config.json", R"({"quantization": "FP8"})");
  expectProblem(folder.root, folder.path("hf_quant_config.json") +
                                 ": quantization: expected an object, found a "
                                 "string");
}

} // namespace
