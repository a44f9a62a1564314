// The gradients of a linear layer on all threads at once: every layout, both ways to share them and to multiply, what
// is refused.
#include <ATen/Parallel.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/sum.h>
#include <gtest/gtest.h>

#include "products/packed_product.h"
#include "products/sgemm.h"

namespace ortmodule {
namespace {

class LinearGradients : public testing::TestWithParam<bool> {
 protected:
  void SetUp() override {
    threads_ = at::get_num_threads();
    at::set_num_threads(2);
    if (GetParam() && !has_packed_product()) GTEST_SKIP() << "this processor has no AVX2";
    LinearGrads out;
    if (!GetParam() && !blas_linear_grads(at::randn({2, 2}), at::randn({2, 2}), at::randn({2, 2}), true, false, out))
      GTEST_SKIP() << "this torch exports no BLAS";
  }
  void TearDown() override { at::set_num_threads(threads_); }

  static void expect_right(const at::Tensor& dy, const at::Tensor& x, const at::Tensor& w, bool wants_db) {
    LinearGrads out;
    ASSERT_TRUE(blas_linear_grads(dy, x, w, wants_db, GetParam(), out)) << dy.sizes() << " " << x.sizes();
    EXPECT_TRUE(at::allclose(out.dx, at::mm(dy, w), 1e-4, 1e-4)) << dy.sizes() << " " << x.sizes();
    EXPECT_TRUE(at::allclose(out.dw, at::mm(dy.t(), x), 1e-4, 1e-4)) << dy.sizes() << " " << x.sizes();
    EXPECT_EQ(out.db.defined(), wants_db);
    EXPECT_TRUE(!wants_db || at::allclose(out.db, at::sum(dy, 0), 1e-4, 1e-4)) << dy.sizes();
  }

 private:
  int threads_ = 1;
};

TEST_P(LinearGradients, AreRightAtEverySize) {
  for (const int64_t m : {1, 31, 64, 100})
    for (const int64_t n : {1, 32, 70, 129})
      for (const int64_t k : {1, 16, 65}) expect_right(at::randn({m, n}), at::randn({m, k}), at::randn({n, k}), true);
}

TEST_P(LinearGradients, ReadMatricesWhereTheyLie) {
  const at::Tensor wide = at::randn({64, 200});
  expect_right(wide.slice(1, 3, 99), wide.slice(1, 100, 148), at::randn({48, 96}).t(), true);
  expect_right(at::randn({96, 64}).t(), at::randn({48, 64}).t(), at::randn({96, 48}), false);
}

TEST_P(LinearGradients, OfFourThreadsAreThoseOfTwo) {
  const at::Tensor dy = at::randn({130, 150}), x = at::randn({130, 40}), w = at::randn({150, 40});
  at::set_num_threads(4);
  expect_right(dy, x, w, true);
}

TEST_P(LinearGradients, OfManyRowsAreSummedUpFromEachThreads) {
  const at::Tensor wide = at::randn({300, 200});
  for (const int threads : {2, 3, 4}) {
    at::set_num_threads(threads);
    for (const int64_t m : {32 * threads, 129, 300})
      for (const int64_t n : {1, 24, 70})
        for (const int64_t k : {1, 16, 65}) expect_right(at::randn({m, n}), at::randn({m, k}), at::randn({n, k}), true);
    expect_right(wide.slice(1, 3, 99), wide.slice(1, 100, 148), at::randn({48, 96}).t(), true);
    expect_right(at::randn({96, 300}).t(), at::randn({48, 300}).t(), at::randn({96, 48}), false);
  }
}

TEST_P(LinearGradients, AreLeftToOthersWhereTheyDoNotApply) {
  const at::Tensor dy = at::randn({64, 32}), x = at::randn({64, 48}), w = at::randn({32, 48});
  LinearGrads out;
  EXPECT_FALSE(blas_linear_grads(dy.to(at::kDouble), x.to(at::kDouble), w.to(at::kDouble), true, GetParam(), out));
  EXPECT_FALSE(blas_linear_grads(at::randn({32, 64}).t(), x, w, true, GetParam(), out)) << "columns that lie apart";
  EXPECT_FALSE(blas_linear_grads(dy.slice(1, 0, 32, 2), x, w.slice(0, 0, 16), true, GetParam(), out));
  at::set_num_threads(3);
  EXPECT_FALSE(blas_linear_grads(dy, x, w, true, GetParam(), out)) << "few rows";
  at::set_num_threads(1);
  EXPECT_FALSE(blas_linear_grads(dy, x, w, true, GetParam(), out));
}

INSTANTIATE_TEST_SUITE_P(Ways, LinearGradients, testing::Bool());

}  // namespace
}  // namespace ortmodule
