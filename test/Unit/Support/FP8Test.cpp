//===- FP8Test.cpp - Conversions of all codes, ties and edges -------------===//

#include "kvcache/Support/FP8.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>
#include <vector>

using namespace kvcache;

namespace {

const double infinity = std::numeric_limits<double>::infinity();
const double nan = std::numeric_limits<double>::quiet_NaN();

/// The value of a code by the textbook, with nothing of the code under test.
double valueOf(uint32_t code, int exponentBits, int mantissaBits, int bias) {
  uint32_t mantissa = code & ((1u << mantissaBits) - 1);
  uint32_t field = (code >> mantissaBits) & ((1u << exponentBits) - 1);
  double sign = (code >> (mantissaBits + exponentBits)) & 1 ? -1 : 1;
  if (field == 0)
    return sign * std::ldexp(double(mantissa), 1 - bias - mantissaBits);
  return sign * std::ldexp(double(mantissa + (1u << mantissaBits)),
                           int(field) - bias - mantissaBits);
}

bool isNaNE4M3(unsigned code) { return (code & 0x7F) == 0x7F; }

struct Format {
  const char *name;
  uint32_t maxFinite; ///< code
  uint32_t signBit;
  uint32_t overflow; ///< code of what lies beyond
  double (*decode)(uint32_t);
  uint32_t (*encode)(double);
};

const Format formats[] = {
    {"e4m3fn", 0x7E, 0x80, 0x7E, [](uint32_t c) { return valueOf(c, 4, 3, 7); },
     [](double x) { return uint32_t(toE4M3FN(x)); }},
    {"e5m2", 0x7B, 0x80, 0x7B, [](uint32_t c) { return valueOf(c, 5, 2, 15); },
     [](double x) { return uint32_t(toE5M2(x)); }},
    {"f16", 0x7BFF, 0x8000, 0x7C00,
     [](uint32_t c) { return valueOf(c, 5, 10, 15); },
     [](double x) { return uint32_t(toF16(x)); }},
    {"bf16", 0x7F7F, 0x8000, 0x7F80,
     [](uint32_t c) { return valueOf(c, 8, 7, 127); },
     [](double x) { return uint32_t(toBF16(x)); }},
};

TEST(FP8, DecodesAllE4M3Codes) {
  for (unsigned code = 0; code < 256; ++code) {
    float value = fromE4M3FN(uint8_t(code));
    if (isNaNE4M3(code)) {
      EXPECT_TRUE(std::isnan(value)) << code;
      EXPECT_EQ(std::signbit(value), code >= 0x80) << code;
      continue;
    }
    EXPECT_EQ(double(value), valueOf(code, 4, 3, 7)) << code;
    EXPECT_EQ(std::signbit(value), code >= 0x80) << code;
  }
  EXPECT_EQ(fromE4M3FN(0x7E), 448.0f);
  EXPECT_EQ(fromE4M3FN(0x08), std::ldexp(1.0f, -6));
  EXPECT_EQ(fromE4M3FN(0x01), std::ldexp(1.0f, -9));
}

TEST(FP8, DecodesAllE5M2Codes) {
  for (unsigned code = 0; code < 256; ++code) {
    float value = fromE5M2(uint8_t(code));
    unsigned magnitude = code & 0x7F;
    EXPECT_EQ(std::signbit(value), code >= 0x80) << code;
    if (magnitude > 0x7C) {
      EXPECT_TRUE(std::isnan(value)) << code;
    } else if (magnitude == 0x7C) {
      EXPECT_TRUE(std::isinf(value)) << code;
    } else {
      EXPECT_EQ(double(value), valueOf(code, 5, 2, 15)) << code;
    }
  }
  EXPECT_EQ(fromE5M2(0x7B), 57344.0f);
}

TEST(FP8, EncodesAllFiniteCodesToThemselves) {
  for (unsigned code = 0; code < 256; ++code) {
    if (!isNaNE4M3(code)) {
      EXPECT_EQ(toE4M3FN(fromE4M3FN(uint8_t(code))), code);
    }
    if ((code & 0x7F) < 0x7C) {
      EXPECT_EQ(toE5M2(fromE5M2(uint8_t(code))), code);
    }
  }
}

TEST(FP8, RoundTripsAll16BitCodes) {
  for (unsigned code = 0; code < 0x10000; ++code) {
    unsigned magnitude = code & 0x7FFF;
    float half = fromF16(uint16_t(code)), brain = fromBF16(uint16_t(code));
    if (magnitude > 0x7C00) {
      EXPECT_TRUE(std::isnan(half)) << code;
    } else {
      EXPECT_EQ(toF16(half), code);
    }
    if (magnitude < 0x7C00) {
      EXPECT_EQ(double(half), valueOf(code, 5, 10, 15)) << code;
    }
    if (magnitude > 0x7F80) {
      EXPECT_TRUE(std::isnan(brain)) << code;
    } else {
      EXPECT_EQ(toBF16(brain), code);
    }
    if (magnitude < 0x7F80) {
      EXPECT_EQ(double(brain), valueOf(code, 8, 7, 127)) << code;
    }
  }
}

TEST(FP8, RoundsTiesToEvenAndNeighboursToTheNearest) {
  for (const Format &format : formats) {
    for (uint32_t code = 0; code < format.maxFinite; ++code) {
      double low = format.decode(code), high = format.decode(code + 1);
      double middle = (low + high) / 2;
      uint32_t even = code % 2 == 0 ? code : code + 1;
      ASSERT_EQ(format.encode(middle), even) << format.name << " " << code;
      ASSERT_EQ(format.encode(std::nextafter(middle, -infinity)), code)
          << format.name;
      ASSERT_EQ(format.encode(std::nextafter(middle, infinity)), code + 1)
          << format.name;
      ASSERT_EQ(format.encode(-middle), even | format.signBit) << format.name;
    }
  }
}

TEST(FP8, RoundsFloatsToTheNearestCode) {
  std::mt19937 random(1);
  std::vector<double> values;
  for (unsigned code = 0; code < 0x7F; ++code)
    values.push_back(valueOf(code, 4, 3, 7));
  for (int i = 0; i < 200000; ++i) {
    float x = floatFromBits(uint32_t(random()));
    if (!(std::fabs(x) <= 448))
      continue;
    unsigned best = 0;
    for (unsigned code = 1; code < values.size(); ++code) {
      double closer = std::fabs(values[code] - std::fabs(double(x)));
      double close = std::fabs(values[best] - std::fabs(double(x)));
      if (closer < close || (closer == close && code % 2 == 0))
        best = code;
    }
    ASSERT_EQ(toE4M3FN(x), best | (std::signbit(x) ? 0x80u : 0u)) << x;
  }
}

TEST(FP8, SaturatesBeyondTheLargestFiniteNumber) {
  for (double x : {448.1, 463.9, 464.0, 480.0, 500.0, 1e30, infinity}) {
    EXPECT_EQ(toE4M3FN(x), 0x7E) << x;
    EXPECT_EQ(toE4M3FN(-x), 0xFE) << x;
  }
  for (double x : {57345.0, 61439.0, 61440.0, 65536.0, 1e300, infinity}) {
    EXPECT_EQ(toE5M2(x), 0x7B) << x;
    EXPECT_EQ(toE5M2(-x), 0xFB) << x;
  }
}

TEST(FP8, OverflowsTo16BitInfinity) {
  EXPECT_EQ(toF16(65519.99), 0x7BFF);
  EXPECT_EQ(toF16(65520.0), 0x7C00);
  EXPECT_EQ(toF16(-infinity), 0xFC00);
  EXPECT_EQ(toBF16(double(std::numeric_limits<float>::max())), 0x7F80);
  EXPECT_EQ(toBF16(infinity), 0x7F80);
}

TEST(FP8, KeepsNaN) {
  for (double x : {nan, -nan}) {
    EXPECT_EQ(toE4M3FN(x), 0x7F);
    EXPECT_EQ(toE5M2(x), 0x7F);
    EXPECT_EQ(toF16(x), 0x7FFF);
    EXPECT_EQ(toBF16(x), 0x7FFF);
  }
}

TEST(FP8, KeepsTheSignOfZeroAndUnderflows) {
  EXPECT_EQ(toE4M3FN(-0.0), 0x80);
  EXPECT_EQ(toE5M2(-0.0), 0x80);
  EXPECT_EQ(toE4M3FN(std::numeric_limits<double>::denorm_min()), 0x00);
  EXPECT_EQ(toE4M3FN(-std::numeric_limits<float>::denorm_min()), 0x80);
  EXPECT_EQ(toE4M3FN(std::ldexp(1.0, -10)), 0x00);
  EXPECT_EQ(toE4M3FN(std::nextafter(std::ldexp(1.0, -10), 1.0)), 0x01);
  EXPECT_EQ(toE5M2(std::ldexp(1.0, -17)), 0x00);
}

TEST(FP8, QuantizesByTrueDivision) {
  EXPECT_EQ(quantizeE4M3FN(3.5f, 0.05f), 0x69);
  EXPECT_EQ(quantizeE4M3FN(-3.5f, 0.05f), 0xE9);
  EXPECT_EQ(quantizeE4M3FN(1, 1), 0x38);
  EXPECT_EQ(quantizeE4M3FN(500, 1), 0x7E);
  EXPECT_EQ(quantizeE4M3FN(17, 1), 0x58);
  EXPECT_EQ(quantizeE4M3FN(19, 1), 0x5A);
  EXPECT_EQ(quantizeE4M3FN(std::ldexp(1.0f, -10), 1), 0x00);
  EXPECT_EQ(quantizeE4M3FN(0.001f, 1), 0x01);
  EXPECT_EQ(quantizeE4M3FN(22.4f, 0.05f), 0x7E);
  // e4m3 bytes read as e5m2.
  EXPECT_EQ(fromE5M2(toE4M3FN(1)), 0.5f);
  EXPECT_EQ(fromE5M2(toE4M3FN(3.5)), 6.0f);
}

TEST(FP8, DivisionIsNotMultiplicationByTheReciprocal) {
  // Some x between codes rounds otherwise by the reciprocal of 0.0123.
  float scale = 0.0123f, reciprocal = 1 / scale;
  int different = 0;
  for (unsigned code = 1; code < 0x7E; ++code) {
    float middle =
        (fromE4M3FN(uint8_t(code)) + fromE4M3FN(uint8_t(code + 1))) / 2;
    float x = middle * scale;
    for (int step = -2; step <= 2; ++step) {
      float y = floatFromBits(bitsOfFloat(x) + uint32_t(step));
      different += quantizeE4M3FN(y, scale) != toE4M3FN(y * reciprocal);
      EXPECT_EQ(quantizeE4M3FN(y, scale), toE4M3FN(double(y / scale)));
    }
  }
  EXPECT_GT(different, 0);
}

} // namespace
