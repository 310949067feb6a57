//===- FilesTest.cpp - Outputs are complete or absent ---------------------===//

#include "kvcache/Support/Files.h"

#include <gtest/gtest.h>

#include <filesystem>

#include <sys/stat.h>

using namespace kvcache;

namespace {

class Files : public testing::Test {
protected:
  void SetUp() override {
    std::string name = testing::TempDir() + "kvcache-files-XXXXXX";
    ASSERT_NE(::mkdtemp(name.data()), nullptr);
    root = name;
  }
  void TearDown() override { std::filesystem::remove_all(root); }

  std::string path(const std::string &name) { return joinPath(root, name); }
  std::vector<std::string> entries() { return *listDirectory(root); }

  std::string root;
};

TEST_F(Files, WritesAndReadsBack) {
  std::string data("a\0b\n", 4);
  ASSERT_FALSE(writeFileAtomically(path("x"), data));
  EXPECT_EQ(*readFile(path("x")), data);
  ASSERT_FALSE(writeFileAtomically(path("x"), {"new", " ", "text"}));
  EXPECT_EQ(*readFile(path("x")), "new text");
  EXPECT_EQ(entries(), std::vector<std::string>{"x"});
}

TEST_F(Files, LeavesNothingBehindWhenItCannotWrite) {
  Error error = writeFileAtomically(path("no/such/folder/x"), "data");
  ASSERT_TRUE(error);
  EXPECT_NE(error.message().find("no/such/folder/x: cannot write"),
            std::string::npos);
  ASSERT_TRUE(writeFileAtomically(root, "data"));
  EXPECT_TRUE(entries().empty());
}

TEST_F(Files, WritesToDevicesDirectly) {
  EXPECT_FALSE(writeFileAtomically("/dev/null", "data"));
  EXPECT_TRUE(pathExists("/dev/null"));
  EXPECT_FALSE(isRegularFile("/dev/null"));
}

TEST_F(Files, ReportsWhatCannotBeRead) {
  EXPECT_EQ(readFile(path("absent")).message(),
            path("absent") + ": cannot open: No such file or directory");
  EXPECT_NE(readFile(root).message().find("is a directory"), std::string::npos);
  EXPECT_NE(MappedFile::open(root).message().find("not a regular file"),
            std::string::npos);
  // A pipe that nobody writes to is refused, not waited for.
  ASSERT_EQ(::mkfifo(path("pipe").c_str(), 0600), 0);
  EXPECT_NE(MappedFile::open(path("pipe")).message().find("not a regular file"),
            std::string::npos);
}

TEST_F(Files, MapsFiles) {
  ASSERT_FALSE(writeFileAtomically(path("x"), "mapped"));
  ASSERT_FALSE(writeFileAtomically(path("empty"), ""));
  MappedFile file = std::move(*MappedFile::open(path("x")));
  EXPECT_EQ(
      std::string(reinterpret_cast<const char *>(file.data()), file.size()),
      "mapped");
  EXPECT_EQ(MappedFile::open(path("empty"))->size(), 0u);
}

TEST_F(Files, CommitsAFolderAsAWhole) {
  {
    auto staged = StagedDirectory::create(path("bundle/"), "manifest.json");
    ASSERT_TRUE(staged);
    ASSERT_FALSE(writeFileAtomically(
        joinPath(staged->stagingPath(), "manifest.json"), "1"));
    EXPECT_FALSE(pathExists(path("bundle")));
    ASSERT_FALSE(staged->commit());
  }
  EXPECT_EQ(*readFile(path("bundle/manifest.json")), "1");
  EXPECT_EQ(entries(), std::vector<std::string>{"bundle"});
}

TEST_F(Files, ReplacesAFolderOfItsOwnKind) {
  for (const char *text : {"1", "2"}) {
    auto staged = StagedDirectory::create(path("bundle"), "manifest.json");
    ASSERT_TRUE(staged) << staged.message();
    ASSERT_FALSE(writeFileAtomically(
        joinPath(staged->stagingPath(), "manifest.json"), text));
    ASSERT_FALSE(writeFileAtomically(
        joinPath(staged->stagingPath(), std::string("only-") + text), ""));
    ASSERT_FALSE(staged->commit());
  }
  EXPECT_EQ(*readFile(path("bundle/manifest.json")), "2");
  EXPECT_FALSE(pathExists(path("bundle/only-1")));
  EXPECT_EQ(entries(), std::vector<std::string>{"bundle"});
}

TEST_F(Files, DropsAFolderThatIsNotCommitted) {
  {
    auto staged = StagedDirectory::create(path("bundle"), "manifest.json");
    ASSERT_TRUE(staged);
    ASSERT_FALSE(
        writeFileAtomically(joinPath(staged->stagingPath(), "x"), "1"));
  }
  EXPECT_TRUE(entries().empty());
}

TEST_F(Files, NeverReplacesForeignFolders) {
  ASSERT_FALSE(makeDirectory(path("precious")));
  ASSERT_FALSE(writeFileAtomically(path("precious/thesis.tex"), "text"));
  auto staged = StagedDirectory::create(path("precious"), "manifest.json");
  ASSERT_FALSE(staged);
  EXPECT_NE(staged.message().find("refusing to replace"), std::string::npos);
  ASSERT_FALSE(writeFileAtomically(path("file"), "text"));
  EXPECT_FALSE(StagedDirectory::create(path("file"), "manifest.json"));
  EXPECT_EQ(*readFile(path("precious/thesis.tex")), "text");
  EXPECT_FALSE(StagedDirectory::create(path("no/folder"), "manifest.json"));
  EXPECT_EQ(entries(), (std::vector<std::string>{"file", "precious"}));
}

TEST_F(Files, TakesPathsApart) {
  EXPECT_EQ(baseName("/a/b.json"), "b.json");
  EXPECT_EQ(baseName("b.json"), "b.json");
  EXPECT_EQ(joinPath("a", "b"), "a/b");
  EXPECT_EQ(joinPath("a/", "b"), "a/b");
}

} // namespace
