//===- JsonTest.cpp - JSON in, the same bytes out -------------------------===//

#include "kvcache/Support/Json.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

using namespace kvcache;

namespace {

TEST(Json, PrintsTheSameBytesThatItRead) {
  const char *text = R"({
  "z": 1,
  "a": [1, 2.5, "x", null, true],
  "nested": [
    {
      "empty": {},
      "list": []
    }
  ]
})";
  Expected<JsonValue> value = parseJson(text, "test");
  ASSERT_TRUE(value) << value.message();
  EXPECT_EQ(value->print(), text);
  EXPECT_EQ(
      value->print(0),
      R"({"z":1,"a":[1,2.5,"x",null,true],"nested":[{"empty":{},"list":[]}]})");
}

TEST(Json, EscapesStrings) {
  std::string text("a\"b\\c\n\t\r\x01 \xC3\xA9", 12);
  EXPECT_EQ(quoteJson(text), "\"a\\\"b\\\\c\\n\\t\\r\\u0001 \xC3\xA9\"");
  JsonValue array = JsonValue::array();
  array.push(text);
  EXPECT_EQ(parseJson(array.print(), "test")->asArray()[0].asString(), text);
}

TEST(Json, DoublesSurvive) {
  for (double x :
       {0.1, 1.0, 0.0123, 1e300, 5e-324, -0.0, 123456789012345680.0, 1.0 / 3}) {
    JsonValue array = JsonValue::array();
    array.push(x);
    double back = parseJson(array.print(), "test")->asArray()[0].asDouble();
    EXPECT_EQ(back, x);
    EXPECT_EQ(std::signbit(back), std::signbit(x));
  }
  EXPECT_EQ(formatDouble(1), "1.0");
  EXPECT_EQ(formatFloat(0.0123f), "0.0123");
  EXPECT_EQ(JsonValue(std::numeric_limits<double>::infinity()).print(), "null");
}

TEST(Json, KnowsWhatIsTooDeepToParse) {
  std::string deepest =
      std::string(maxJsonDepth, '[') + "1" + std::string(maxJsonDepth, ']');
  EXPECT_FALSE(isJsonTooDeep(deepest));
  EXPECT_TRUE(isJsonTooDeep("[" + deepest + "]"));
  EXPECT_TRUE(isJsonTooDeep("{\"a\": " + deepest + "}"));
  EXPECT_FALSE(isJsonTooDeep("[\"\\\"[" + deepest + "\"]"));
  EXPECT_FALSE(isJsonTooDeep("[[], " + deepest.substr(1)));
}

TEST(Json, KeepsIntegersApartFromDoubles) {
  Expected<JsonValue> value =
      parseJson("[9223372036854775807, -1, 1.0, 18446744073709551615]", "t");
  ASSERT_TRUE(value);
  EXPECT_EQ(value->asArray()[0].asInteger(),
            std::numeric_limits<int64_t>::max());
  EXPECT_TRUE(value->asArray()[1].isInteger());
  EXPECT_FALSE(value->asArray()[2].isInteger());
  EXPECT_EQ(value->asArray()[3].asDouble(), 18446744073709551615.0);
}

TEST(Json, FindsMembers) {
  Expected<JsonValue> value =
      parseJson(R"({"a": 1, "b": null, "a": 2})", "test");
  ASSERT_TRUE(value);
  EXPECT_EQ(value->find("a")->asInteger(), 2);
  EXPECT_NE(value->find("b"), nullptr);
  EXPECT_EQ(value->findNonNull("b"), nullptr);
  EXPECT_EQ(value->find("c"), nullptr);
  EXPECT_EQ(value->find("a")->find("x"), nullptr);
}

TEST(Json, RefusesDuplicatesWhereAsked) {
  JsonParseOptions options;
  options.rejectDuplicates = true;
  Expected<JsonValue> value =
      parseJson(R"({"x": {"a": 1, "a": 1}})", "m.json", options);
  ASSERT_FALSE(value);
  EXPECT_EQ(value.message(),
            "m.json: the member \"a\" occurs twice in one object");
}

TEST(Json, ReadsPythonsNonFiniteNumbersAsNull) {
  const char *text = R"({"a": [NaN, Infinity, -Infinity], "NaN": "\"NaN"})";
  EXPECT_FALSE(parseJson(text, "test"));
  JsonParseOptions options;
  options.pythonNonFinite = true;
  Expected<JsonValue> value = parseJson(text, "test", options);
  ASSERT_TRUE(value) << value.message();
  EXPECT_EQ(value->print(0), R"({"a":[null,null,null],"NaN":"\"NaN"})");
}

TEST(Json, NamesTheFileOfInvalidText) {
  for (const char *text : {"", "{", "{\"a\":1,}", "[1] 2", "'a'"}) {
    Expected<JsonValue> value = parseJson(text, "dir/config.json");
    ASSERT_FALSE(value) << text;
    EXPECT_EQ(value.message().find("dir/config.json: not valid JSON: "), 0u);
  }
}

} // namespace
