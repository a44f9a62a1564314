// Sums over rows: at::sum's bits at every size, on rows that lie apart, and what goes to at::sum.
#include "products/column_sum.h"

#include <ATen/ops/equal.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/sum.h>
#include <gtest/gtest.h>

namespace ortmodule {
namespace {

void expect_bits(const at::Tensor& rows) {
  const at::Tensor got = column_sum(rows), expected = at::sum(rows, 0);
  EXPECT_EQ(got.sizes(), expected.sizes());
  EXPECT_TRUE(at::equal(got, expected)) << rows.sizes() << " with strides " << rows.strides();
}

TEST(ColumnSum, HasTheBitsOfAtenAtEverySize) {
  for (const int64_t m : {1, 2, 3, 4, 5, 7, 8, 15, 16, 17, 31, 33, 64, 100, 255, 257, 1000})
    for (const int64_t n : {1, 2, 3, 4, 5, 7, 8, 9, 12, 15, 16, 17, 24, 31, 32, 33, 48, 63, 64, 65, 96, 127, 130, 200})
      if (m * n < 40000) expect_bits(at::randn({m, n}));
  expect_bits(at::randn({8191, 2}));
  expect_bits(at::randn({4, 8000}));
  expect_bits(at::randn({4, 9000}));
}

TEST(ColumnSum, ReadsRowsThatLieApart) {
  const at::Tensor wide = at::randn({20, 100});
  for (const int64_t n : {2, 5, 16, 40, 70}) expect_bits(wide.slice(1, 3, 3 + n));
  expect_bits(at::randn({10, 20}).t());
  expect_bits(at::randn({1, 20}).expand({6, 20}));
  expect_bits(at::ones({6, 1}).expand({6, 20}));
}

TEST(ColumnSum, LeavesOtherTypesToAten) {
  expect_bits(at::randn({6, 20}, at::kDouble));
  expect_bits(at::ones({6, 20}, at::kLong));
  expect_bits(at::randn({0, 20}));
  expect_bits(at::randn({6, 0}));
}

}  // namespace
}  // namespace ortmodule
