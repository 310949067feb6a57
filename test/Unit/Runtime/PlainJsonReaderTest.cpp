//===- PlainJsonReaderTest.cpp - Two readers, one language ----------------===//

#include "../../../lib/Runtime/PlainJsonReader.h"
#include "../Bundle/TestBundle.h"

#include <gtest/gtest.h>

using namespace kvcache;

namespace {

/// The printed tree, or "refused".
template <typename Parse>
std::string outcome(Parse parse, const std::string &text, bool strict) {
  JsonParseOptions options;
  options.rejectDuplicates = strict;
  Expected<JsonValue> value = parse(text, "test", options);
  return value ? value->print(0) : "refused";
}

void expectSame(const std::string &text) {
  for (bool strict : {false, true})
    EXPECT_EQ(outcome(parsePlainJson, text, strict),
              outcome(parseJson, text, strict))
        << text;
}

TEST(PlainJsonReader, AgreesWithSimdjson) {
  for (const char *text : {"",
                           " ",
                           "1",
                           "-0",
                           "01",
                           "-",
                           "1.",
                           ".5",
                           "1.5e3",
                           "1e",
                           "1e+",
                           "1E-2",
                           "0.1",
                           "5e-324",
                           "1e-400",
                           "1e400",
                           "9223372036854775807",
                           "9223372036854775808",
                           "18446744073709551616",
                           "-9223372036854775809",
                           "-9223372036854775808",
                           "true",
                           "tru",
                           "truex",
                           "nul",
                           "null ",
                           "\"a\"",
                           "\"a",
                           "\"\\n\\u00e9\\\"\"",
                           "\"\\ud83d\\ude00\"",
                           "\"\\ud83d\"",
                           "\"\\udc00\"",
                           "\"\\x\"",
                           "\"\\u12g4\"",
                           "\"\t\"",
                           "\"\xC3\xA9\"",
                           "\"\xC3\"",
                           "\"\xED\xA0\x80\"",
                           "\"\xF5\x80\x80\x80\"",
                           "\"\xC0\xAF\"",
                           "[]",
                           "[1]",
                           "[1,]",
                           "[,1]",
                           "[1 2]",
                           "[[[]]]",
                           "[",
                           "]",
                           "{}",
                           "{\"a\":1}",
                           "{\"a\":1,}",
                           "{\"a\"}",
                           "{a:1}",
                           "{\"a\":}",
                           "{\"a\":1,\"a\":2}",
                           "{\"a\":1,\"\\u0061\":2}",
                           "[1]x",
                           "[1] []",
                           "\xEF\xBB\xBF[1]",
                           "[NaN]",
                           "{\"a\":[{\"b\":null},true,2.5,\"x\"]}"})
    expectSame(text);
}

TEST(PlainJsonReader, BoundsItsRecursion) {
  expectSame(std::string(2000, '[') + std::string(2000, ']'));
  expectSame(std::string(1000, '[') + std::string(1000, ']'));
}

TEST(PlainJsonReader, AgreesOnDamagedManifests) {
  std::string text = writeManifest(test::makeBundle("ptx").manifest);
  expectSame(text);
  uint64_t state = 7;
  for (int i = 0; i < 400; ++i) {
    state = state * 6364136223846793005ull + 1442695040888963407ull;
    std::string damaged = text;
    size_t at = (state >> 20) % text.size();
    if (state >> 63)
      damaged.erase(at, 1 + (state >> 40) % 5);
    else
      damaged[at] = "{}[]\",:0\\ex\x80"[(state >> 50) % 12];
    EXPECT_EQ(outcome(parsePlainJson, damaged, true),
              outcome(parseJson, damaged, true))
        << at;
  }
}

} // namespace
