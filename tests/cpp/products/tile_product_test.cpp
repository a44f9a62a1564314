// Products of tiles against plain loops: every tail of rows and columns, both readings of either operand.
#include "products/tile_product.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <vector>

#include "kernels/processor.h"
#include "values.h"

namespace ortmodule {
namespace {

struct Product {
  int64_t m, n, k;
  std::vector<float> a = values(m * k, 0.7f), b = values(k * n, 1.3f);

  float expected(int64_t i, int64_t j) const {
    double sum = 0;
    for (int64_t p = 0; p < k; ++p) sum += static_cast<double>(a[i * k + p]) * b[p * n + j];
    return static_cast<float>(sum);
  }
  void check(const LeftOperand& left, const Panels& right) const {
    const int64_t ld = round_up(n, panel_width()) + 3;  // rows at any address
    std::vector<float> c(m * ld, 5.0f);
    for (float times : {1.0f, 2.0f}) {
      tile_product(m, n, k, left, right, c.data(), ld, times == 2);
      for (int64_t i = 0; i < m; ++i)
        for (int64_t j = 0; j < n; ++j) ASSERT_NEAR(c[i * ld + j], times * expected(i, j), 1e-4) << i << " " << j;
    }
  }
};

TEST(TileProduct, MultipliesWithPackedColumnsWhateverTheTails) {
  for (int64_t m : {1, 5, 6, 7, 12, 13, 25}) {
    for (int64_t n : {1, 8, 15, 16, 17, 31, 32, 40, 65}) {
      for (int64_t k : {1, 7, 8, 33}) {
        const Product product{m, n, k};
        std::vector<float> columns(n * k), panels(round_up(n, panel_width()) * k, NAN);
        for (int64_t p = 0; p < k; ++p)
          for (int64_t j = 0; j < n; ++j) columns[j * k + p] = product.b[p * n + j];
        pack_columns(panels.data(), 0, columns.data(), k, n, k);
        product.check({product.a.data(), k, 1}, packed(panels.data(), k));
      }
    }
  }
}

TEST(TileProduct, ReadsATransposedLeftOperandAndRowsInPlace) {
  for (int64_t n : {3, 16, 50}) {
    const Product product{14, n, 9};
    const int64_t ld = round_up(n, panel_width());
    std::vector<float> transposed(14 * 9), rows(9 * ld, 0.0f);
    for (int64_t i = 0; i < 14; ++i)
      for (int64_t p = 0; p < 9; ++p) transposed[p * 14 + i] = product.a[i * 9 + p];
    for (int64_t p = 0; p < 9; ++p)
      for (int64_t j = 0; j < n; ++j) rows[p * ld + j] = product.b[p * n + j];
    product.check({transposed.data(), 1, 14}, Panels::in_rows(rows.data(), ld));
  }
}

TEST(TileProduct, StartsAtAnyRowAndAtEveryPanel) {
  const int64_t width = panel_width(), k = 10;
  const Product product{4, 2 * width, k};
  const Panels whole = Panels::in_rows(product.b.data(), 2 * width);
  std::vector<float> c(4 * width);
  tile_product(4, width, k - 3, {product.a.data() + 3, k, 1}, whole.from_row(3).from_column(width), c.data(), width,
               false);
  for (int64_t i = 0; i < 4; ++i) {
    for (int64_t j = 0; j < width; ++j) {
      float sum = 0;
      for (int64_t p = 3; p < k; ++p) sum += product.a[i * k + p] * product.b[p * 2 * width + width + j];
      EXPECT_NEAR(c[i * width + j], sum, 1e-4);
    }
  }
}

uint32_t to_bfloat16(float x) { return std::bit_cast<uint32_t>(x) >> 16; }
float of_bfloat16(float x) { return std::bit_cast<float>(to_bfloat16(x) << 16); }

TEST(PairProduct, SumsOverBothHalvesOfEveryPair) {
  if (!has_pairs()) GTEST_SKIP() << "this processor does not multiply pairs of bfloat16";
  for (int64_t m : {1, 12, 13, 25}) {
    for (int64_t n : {1, 31, 32, 65}) {
      for (int64_t k : {1, 7, 33}) {  // pairs
        Product product{m, n, 2 * k};
        for (float& x : product.a) x = of_bfloat16(x);
        for (float& x : product.b) x = of_bfloat16(x);
        const int64_t ld = round_up(n, panel_width());
        std::vector<float> left(m * k), right(k * ld), c(m * ld, 5.0f);
        const auto pair = [](float low, float high) {
          return std::bit_cast<float>(to_bfloat16(low) | to_bfloat16(high) << 16);
        };
        for (int64_t i = 0; i < m; ++i)
          for (int64_t p = 0; p < k; ++p)
            left[p * m + i] = pair(product.a[i * 2 * k + 2 * p], product.a[i * 2 * k + 2 * p + 1]);
        for (int64_t p = 0; p < k; ++p)
          for (int64_t j = 0; j < n; ++j)
            right[p * ld + j] = pair(product.b[2 * p * n + j], product.b[(2 * p + 1) * n + j]);
        for (float times : {1.0f, 2.0f}) {
          pair_product(m, n, k, {left.data(), 1, m}, Panels::in_rows(right.data(), ld), c.data(), ld, times == 2);
          for (int64_t i = 0; i < m; ++i)
            for (int64_t j = 0; j < n; ++j)
              ASSERT_NEAR(c[i * ld + j], times * product.expected(i, j), 1e-4) << i << " " << j;
        }
      }
    }
  }
}

}  // namespace
}  // namespace ortmodule
