//===- RemovedOptionsTest.cpp - Traces of run-time scales in files --------===//

#include "kvcache/Checkpoint/RemovedOptions.h"
#include "TestCheckpoint.h"

using namespace kvcache;

static std::vector<Diagnostic> find(const std::string &text) {
  return findRemovedOptions(text, "serve.sh");
}

TEST(RemovedOptions, AreErrorsWhereTheyAreSwitchedOn) {
  for (const char *text :
       {"serve --calculate-kv-scales", "serve --calculate_kv_scales=true",
        "{\"calculate_kv_scales\": true}", "calculate_kv_scales: yes",
        "LLM(model, calculate_kv_scales=True)",
        "\n\nargs: [--calculate-kv-scales, x]"}) {
    std::vector<Diagnostic> found = find(text);
    ASSERT_EQ(found.size(), 1u) << text;
    EXPECT_EQ(found[0].severity, Severity::Error) << text;
    EXPECT_NE(found[0].message.find("kvcache-scales calibrate"),
              std::string::npos);
  }
  EXPECT_EQ(find("\n\n --calculate-kv-scales")[0].message.substr(0, 12),
            "serve.sh:3: ");
}

TEST(RemovedOptions, AreWarningsWhereTheyAreSwitchedOff) {
  for (const char *text :
       {"{\"calculate_kv_scales\": false}", "calculate_kv_scales: False",
        "--calculate-kv-scales=0", "--no-calculate-kv-scales",
        "calculate_kv_scales = None"}) {
    std::vector<Diagnostic> found = find(text);
    ASSERT_EQ(found.size(), 1u) << text;
    EXPECT_EQ(found[0].severity, Severity::Warning) << text;
  }
}

TEST(RemovedOptions, VariablesAreWarnings) {
  std::vector<Diagnostic> found =
      find("export Q_SCALE_CONSTANT=100 K_SCALE_CONSTANT=200\n"
           "env V_SCALE_CONSTANT=1 serve");
  ASSERT_EQ(found.size(), 3u);
  for (const Diagnostic &diagnostic : found)
    EXPECT_EQ(diagnostic.severity, Severity::Warning);
  EXPECT_NE(found[2].message.find("--scale=LAYER.v=VALUE"), std::string::npos);
}

TEST(RemovedOptions, LeaveOtherNamesAndCommentsAlone) {
  EXPECT_TRUE(find("# --calculate-kv-scales\n"
                   "  // calculate_kv_scales\n"
                   "recalculate_kv_scales_later\n"
                   "MY_K_SCALE_CONSTANT=1\n"
                   "--calculate-kv-scales-twice\n"
                   "")
                  .empty());
}

TEST(RemovedOptions, FilesAreFoundByTheirNames) {
  TestFolder folder;
  for (const char *name :
       {"config.json", "serve.sh", "engine.yaml", "Dockerfile", "README.md",
        "tokenizer.json", "model.safetensors.index.json", "vocab.json"})
    folder.text(name, "{}");
  Expected<std::vector<std::string>> files =
      listConfigurationFiles(folder.root);
  ASSERT_TRUE(files);
  std::vector<std::string> names;
  for (const std::string &path : *files)
    names.push_back(baseName(path));
  EXPECT_EQ(names, (std::vector<std::string>{"Dockerfile", "config.json",
                                             "engine.yaml", "serve.sh"}));
  EXPECT_FALSE(listConfigurationFiles(folder.path("missing")));
}
