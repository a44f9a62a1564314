// Products of packed panels against plain sums: every tail, any strides, sums upon sums, values that are no numbers.
#include "products/packed_product.h"

#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <array>
#include <bit>
#include <cmath>
#include <limits>
#include <vector>

#include "kernels/processor.h"
#include "values.h"

namespace ortmodule {
namespace {

class PackedProduct : public testing::Test {
 protected:
  void SetUp() override {
    if (!has_packed_product()) GTEST_SKIP() << "this processor has no AVX2";
  }
};

enum class Start { kNone, kBias, kItself };

// a [m, k] and b [k, n] in rows, in columns, or every third element.
template <class T>
Strided<T> laid(const std::vector<T>& all, int64_t rows, int64_t columns, int layout) {
  if (layout == 0) return {all.data(), columns, 1};
  if (layout == 1) return {all.data(), 1, rows};
  return {all.data(), 3 * columns, 3};
}

void check(int64_t m, int64_t n, int64_t k, int a_layout, int b_layout, Start start) {
  const auto a_values = values(3 * m * k + 1, 0.7f), b_values = values(3 * k * n + 1, 1.3f), bias = values(n, 0.3f);
  const StridedMatrix a = laid(a_values, m, k, a_layout), b = laid(b_values, k, n, b_layout);
  const int64_t ld = n + 3;
  const std::vector<float> before = values(m * ld, 0.9f);
  std::vector<float> c = before;
  const float* from = start == Start::kNone ? nullptr : start == Start::kBias ? bias.data() : c.data();
  packed_product(m, n, k, a, b, from, start == Start::kItself ? ld : 0, c.data(), ld);
  for (int64_t i = 0; i < m; ++i) {
    for (int64_t j = 0; j < ld; ++j) {
      if (j >= n) {
        ASSERT_EQ(c[i * ld + j], before[i * ld + j]) << "beyond the columns";
        continue;
      }
      double sum = start == Start::kNone ? 0 : start == Start::kBias ? bias[j] : before[i * ld + j];
      for (int64_t p = 0; p < k; ++p) sum += double{*a.from(i, p).data} * *b.from(p, j).data;
      ASSERT_NEAR(c[i * ld + j], sum, 2e-6 * std::sqrt(k) * 8) << m << "x" << n << "x" << k << " at " << i << " " << j;
    }
  }
}

TEST_F(PackedProduct, MultipliesWhateverTheTailsAndTheStrides) {
  for (int64_t m : {1, 5, 6, 7, 12, 13, 29})
    for (int64_t n : {1, 15, 16, 17, 32, 40, 75})
      for (int64_t k : {1, 3, 8, 13})
        for (int a = 0; a < 3; ++a)
          for (int b = 0; b < 3; ++b) check(m, n, k, a, b, Start::kNone);
}

TEST_F(PackedProduct, StartsFromABiasOrFromWhatIsThere) {
  for (Start start : {Start::kBias, Start::kItself}) {
    check(13, 37, 9, 0, 1, start);
    check(12, 32, 800, 1, 0, start);
    check(0, 5, 3, 0, 0, start);
    check(5, 0, 3, 0, 0, start);
    check(5, 7, 0, 0, 0, start);
  }
  check(5, 7, 0, 0, 0, Start::kNone);
}

TEST_F(PackedProduct, PassesFromBlockToBlock) {
  check(2 * 288 + 7, 33, 401, 0, 1, Start::kBias);
  check(19, 2 * 768 + 5, 385, 1, 0, Start::kItself);
  check(20, 50, 1203, 0, 0, Start::kNone);
  check(30, 50, 1024, 0, 1, Start::kBias);  // rows that meet in one set of a cache
}

TEST_F(PackedProduct, AnElementHasTheSameBitsOnAnyNumberOfThreadsAndAmongAnyRows) {
  const int64_t m = 300, n = 333, k = 500;
  const auto a = values(m * k, 0.7f), b = values(k * n, 1.3f);
  const int threads = at::get_num_threads();
  std::vector<float> expected(m * n), c(m * n);
  at::set_num_threads(1);
  packed_product(m, n, k, {a.data(), k, 1}, {b.data(), n, 1}, nullptr, 0, expected.data(), n);
  for (int count : {2, 3, 4}) {
    at::set_num_threads(count);
    packed_product(m, n, k, {a.data(), k, 1}, {b.data(), n, 1}, nullptr, 0, c.data(), n);
    EXPECT_EQ(c, expected) << count << " threads";
  }
  at::set_num_threads(threads);
  packed_product(1, n, k, {a.data() + 7 * k, k, 1}, {b.data(), n, 1}, nullptr, 0, c.data(), n);
  EXPECT_TRUE(std::equal(c.begin(), c.begin() + n, expected.begin() + 7 * n));
}

TEST_F(PackedProduct, PanelsThatAreKeptGiveTheSameBits) {
  const int threads = at::get_num_threads();
  for (const auto& [m, n, k] : {std::array<int64_t, 3>{1, 1, 1}, {5, 33, 9}, {29, 75, 401}, {300, 900, 1203}}) {
    const auto a_values = values(m * k, 0.7f), b_values = values(k * n, 1.3f), bias = values(n, 0.3f);
    for (int layout = 0; layout < 2; ++layout) {
      const StridedMatrix a = laid(a_values, m, k, layout), b = laid(b_values, k, n, layout);
      const PackedFactor panels(n, k, b);
      for (const float* start : {static_cast<const float*>(nullptr), bias.data()}) {
        for (int count : {1, 3}) {
          at::set_num_threads(count);
          std::vector<float> expected(m * n), c(m * n);
          packed_product(m, n, k, a, b, start, 0, expected.data(), n);
          packed_product(m, a, panels, start, 0, c.data(), n);
          EXPECT_EQ(c, expected) << m << "x" << n << "x" << k << " on " << count;
        }
      }
    }
  }
  at::set_num_threads(threads);
}

TEST_F(PackedProduct, LeavesNaNAndInfinityInTheirRowAndColumn) {
  const int64_t m = 8, n = 18, k = 20;
  auto a = values(m * k, 0.7f), b = values(k * n, 1.3f);
  a[3 * k + 5] = std::numeric_limits<float>::quiet_NaN();
  b[4 * n + 17] = std::numeric_limits<float>::infinity();
  std::vector<float> c(m * n);
  packed_product(m, n, k, {a.data(), k, 1}, {b.data(), n, 1}, nullptr, 0, c.data(), n);
  for (int64_t i = 0; i < m; ++i) {
    for (int64_t j = 0; j < n; ++j) {
      EXPECT_EQ(std::isnan(c[i * n + j]), i == 3) << i << " " << j;
      EXPECT_EQ(std::isinf(c[i * n + j]), i != 3 && j == 17) << i << " " << j;
    }
  }
}

// bfloat16 is the upper half of a float.
std::vector<uint16_t> halves(const std::vector<float>& of) {
  std::vector<uint16_t> out;
  for (const float x : of) out.push_back(static_cast<uint16_t>(std::bit_cast<uint32_t>(x) >> 16));
  return out;
}
float widened(uint16_t x) { return std::bit_cast<float>(static_cast<uint32_t>(x) << 16); }

void check_bfloat16(int64_t m, int64_t n, int64_t k, int a_layout, int b_layout, bool with_bias, bool pairs) {
  const auto a_values = halves(values(3 * m * k + 1, 0.7f)), b_values = halves(values(3 * k * n + 1, 1.3f));
  const auto bias = values(n, 0.3f);
  const StridedBfloat16 a = laid(a_values, m, k, a_layout), b = laid(b_values, k, n, b_layout);
  const int64_t ld = n + 3;
  std::vector<uint16_t> c(m * ld, 7);
  packed_product(m, n, k, a, b, with_bias ? bias.data() : nullptr, c.data(), ld, pairs);
  for (int64_t i = 0; i < m; ++i) {
    for (int64_t j = 0; j < ld; ++j) {
      if (j >= n) {
        ASSERT_EQ(c[i * ld + j], 7) << "beyond the columns";
        continue;
      }
      double sum = with_bias ? bias[j] : 0;
      for (int64_t p = 0; p < k; ++p) sum += double{widened(*a.from(i, p).data)} * widened(*b.from(p, j).data);
      // Half of bfloat16's last place, and what sums of fp32 lose.
      ASSERT_NEAR(widened(c[i * ld + j]), sum, std::abs(sum) / 256 + 2e-6 * std::sqrt(k) * 8)
          << m << "x" << n << "x" << k << " at " << i << " " << j;
    }
  }
}

// Pairs where the processor has them, and widened.
class PackedBfloat16 : public PackedProduct, public testing::WithParamInterface<bool> {
 protected:
  void SetUp() override {
    PackedProduct::SetUp();
    if (GetParam() && !has_pairs()) GTEST_SKIP() << "this processor does not multiply pairs of bfloat16";
  }
};

TEST_P(PackedBfloat16, MultipliesWhateverTheTailsAndTheStrides) {
  for (int64_t m : {1, 5, 12, 13, 29})
    for (int64_t n : {1, 15, 16, 17, 32, 40, 75})
      for (int64_t k : {1, 2, 3, 8, 13, 32, 37})
        for (int a = 0; a < 3; ++a)
          for (int b = 0; b < 3; ++b) check_bfloat16(m, n, k, a, b, (m + n + k) % 2 == 0, GetParam());
}

TEST_P(PackedBfloat16, RoundsOnceAfterAllBlocks) {
  check_bfloat16(290, 33, 801, 0, 1, true, GetParam());
  check_bfloat16(19, 2 * 384 + 5, 1603, 1, 0, false, GetParam());
  check_bfloat16(2 * 2048 + 7, 20, 900, 0, 0, true, GetParam());
}

TEST_P(PackedBfloat16, RoundsToTheNearestAndKeepsWhatIsNoNumber) {
  // 1 + 2^-8 lies between 1 and 1 + 2^-7 and goes to the even one; 1 + 3 * 2^-8 goes up.
  const float nan = std::numeric_limits<float>::quiet_NaN(), infinity = std::numeric_limits<float>::infinity();
  const std::vector<float> starts{0x1p-8f, 0x3p-8f, -0x1p-8f - 2, nan, infinity, -infinity, 0x1p127f, 0x1.1p-8f};
  const std::vector<float> expected{1, 1 + 0x1p-6f, -1, nan, infinity, -infinity, 0x1p127f, 1 + 0x1p-7f};
  const std::vector<uint16_t> ones(starts.size(), 0x3F80);
  std::vector<uint16_t> c(starts.size());
  packed_product(1, c.size(), 1, {ones.data(), 1, 1}, {ones.data(), 8, 1}, starts.data(), c.data(), 8, GetParam());
  for (size_t i = 0; i < c.size(); ++i) {
    if (std::isnan(expected[i]))
      EXPECT_TRUE(std::isnan(widened(c[i]))) << i;
    else
      EXPECT_EQ(widened(c[i]), expected[i]) << i;
  }
}

INSTANTIATE_TEST_SUITE_P(Forms, PackedBfloat16, testing::Bool(),
                         [](const auto& form) { return form.param ? "pairs" : "widened"; });

TEST(PairRate, IsTheSameEachTimeAndNeedsTheInstructions) {
  EXPECT_EQ(pairs_pay(), pairs_pay());
  EXPECT_LE(pairs_pay(), has_pairs());
}

}  // namespace
}  // namespace ortmodule
