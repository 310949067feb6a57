//===- BundleTest.cpp - Bundles on disk and in memory ---------------------===//

#include "TestBundle.h"

#include "kvcache/Support/Files.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

namespace fs = std::filesystem;
using namespace kvcache;

namespace {

class BundleTest : public ::testing::Test {
protected:
  void SetUp() override {
    std::string pattern =
        (fs::temp_directory_path() / "kvcache-bundle-XXXXXX").string();
    ASSERT_NE(::mkdtemp(pattern.data()), nullptr);
    folder = pattern;
    path = folder / "a.bundle";
  }
  void TearDown() override { fs::remove_all(folder); }

  void writeSample() {
    Error error = writeBundle(path.string(), test::makeBundle("// ptx\n"));
    ASSERT_FALSE(bool(error)) << error.message();
  }

  std::string openMessage() {
    Expected<Bundle> bundle = openBundle(path.string());
    return bundle ? "opened" : bundle.message();
  }

  void overwrite(const std::string &file, const std::string &text) {
    std::ofstream(path / file, std::ios::binary) << text;
  }

  fs::path folder, path;
};

TEST_F(BundleTest, WhatIsWrittenIsRead) {
  writeSample();
  Expected<Bundle> bundle = openBundle(path.string());
  ASSERT_TRUE(bool(bundle)) << bundle.message();
  ASSERT_NE(bundle->find("code/sm_90.ptx"), nullptr);
  EXPECT_EQ(*bundle->find("code/sm_90.ptx"), "// ptx\n");
  EXPECT_EQ(writeManifest(bundle->manifest),
            writeManifest(test::makeBundle("// ptx\n").manifest));
  EXPECT_EQ(std::distance(fs::directory_iterator(folder), {}), 1);
}

TEST_F(BundleTest, WritingTwiceGivesTheSameBytes) {
  writeSample();
  std::string first = *readFile((path / "manifest.json").string());
  writeSample();
  EXPECT_EQ(*readFile((path / "manifest.json").string()), first);
  EXPECT_EQ(std::distance(fs::directory_iterator(folder), {}), 1);
}

TEST_F(BundleTest, ACorruptedCodeObjectIsNamed) {
  writeSample();
  overwrite("code/sm_90.ptx", "// ptX\n");
  std::string message = openMessage();
  EXPECT_NE(message.find("a.bundle/code/sm_90.ptx: corrupted"),
            std::string::npos)
      << message;
  EXPECT_NE(message.find("targets[0].ptx.sha256: expected "), std::string::npos)
      << message;
}

TEST_F(BundleTest, AMissingCodeObjectIsNamed) {
  writeSample();
  fs::remove(path / "code/sm_90.ptx");
  EXPECT_NE(openMessage().find("code/sm_90.ptx: cannot be read"),
            std::string::npos)
      << openMessage();
}

TEST_F(BundleTest, ALinkOutOfTheBundleIsRefused) {
  writeSample();
  std::ofstream(folder / "outside.ptx") << "// ptx\n";
  fs::remove(path / "code/sm_90.ptx");
  fs::create_symlink(folder / "outside.ptx", path / "code/sm_90.ptx");
  EXPECT_NE(openMessage().find("is a link that leaves the bundle"),
            std::string::npos)
      << openMessage();
}

TEST_F(BundleTest, WhatIsNoBundleIsRefused) {
  EXPECT_NE(openMessage().find("cannot be opened"), std::string::npos);
  fs::create_directories(path);
  EXPECT_NE(openMessage().find("not a bundle: it holds no manifest.json"),
            std::string::npos);
  overwrite("manifest.json", "hello");
  EXPECT_NE(openMessage().find("manifest.json"), std::string::npos);
  fs::remove_all(path);
  std::ofstream(path) << "a file";
  EXPECT_NE(openMessage().find("expected a bundle directory"),
            std::string::npos);
}

TEST_F(BundleTest, AStaleManifestIsRefused) {
  // The manifest of one compilation with the code of another.
  writeSample();
  Error error = writeBundle((folder / "b.bundle").string(),
                            test::makeBundle("// other\n"));
  ASSERT_FALSE(bool(error)) << error.message();
  fs::copy_file(folder / "b.bundle/manifest.json", path / "manifest.json",
                fs::copy_options::overwrite_existing);
  EXPECT_NE(openMessage().find("code/sm_90.ptx: corrupted"), std::string::npos);
}

TEST_F(BundleTest, NothingElseIsReplaced) {
  fs::create_directories(path);
  overwrite("precious.txt", "data");
  EXPECT_TRUE(bool(writeBundle(path.string(), test::makeBundle("// ptx\n"))));
  EXPECT_EQ(*readFile((path / "precious.txt").string()), "data");
  EXPECT_EQ(std::distance(fs::directory_iterator(folder), {}), 1);
}

TEST_F(BundleTest, AnInvalidManifestIsNotWritten) {
  Bundle bundle = test::makeBundle("// ptx\n");
  bundle.manifest.capacities.maxTokens = 0;
  Error error = writeBundle(path.string(), bundle);
  ASSERT_TRUE(bool(error));
  EXPECT_NE(error.message().find("capacities.max_tokens"), std::string::npos);
  EXPECT_TRUE(fs::is_empty(folder));
}

TEST_F(BundleTest, FilesAndManifestNameEachOther) {
  Bundle bundle = test::makeBundle("// ptx\n");
  bundle.files["code/extra.ptx"] = "x";
  EXPECT_NE(updateDigests(bundle).message().find("code/extra.ptx"),
            std::string::npos);
  bundle.files.clear();
  EXPECT_NE(updateDigests(bundle).message().find("code/sm_90.ptx"),
            std::string::npos);
}

TEST_F(BundleTest, OpensFromMemory) {
  Bundle bundle = test::makeBundle("// ptx\n");
  std::map<std::string, std::string> files = bundle.files;
  files["manifest.json"] = writeManifest(bundle.manifest);
  Expected<Bundle> opened = openBundle(files);
  ASSERT_TRUE(bool(opened)) << opened.message();
  files["code/sm_90.ptx"] += " ";
  opened = openBundle(files);
  ASSERT_FALSE(bool(opened));
  EXPECT_NE(opened.message().find("code/sm_90.ptx: corrupted"),
            std::string::npos);
  files.erase("code/sm_90.ptx");
  EXPECT_FALSE(bool(openBundle(files)));
}

} // namespace
