// Weights that are the same at each run: whose panels are made, shared, and when they are not taken.
#include "products/constant_factor.h"

#include <ATen/ops/allclose.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/randn.h>
#include <gtest/gtest.h>

#include "products/matmul_provider.h"

namespace ortmodule {
namespace {

class ConstantFactors : public testing::Test {
 protected:
  void SetUp() override {
    if (!has_packed_product()) GTEST_SKIP() << "this processor has no AVX2";
  }
  ConstantFactor one_, other_;
};

TEST_F(ConstantFactors, NodesThatReadTheSameMatrixShareItsPanels) {
  const at::Tensor w = at::randn({64, 48});
  const PackedFactor* panels = one_.panels(w);
  ASSERT_NE(panels, nullptr);
  EXPECT_EQ(one_.panels(w), panels);
  EXPECT_EQ(other_.panels(w), panels);
  EXPECT_NE(ConstantFactor().panels(w.t()), panels);
}

TEST_F(ConstantFactors, AnotherMatrixIsNotTakenForTheConstant) {
  const at::Tensor w = at::randn({64, 48}), given = at::randn({64, 48}), x = at::randn({80, 64});
  ASSERT_NE(one_.panels(w), nullptr);
  EXPECT_EQ(one_.panels(given), nullptr);
  EXPECT_TRUE(at::allclose(matrix_product(x, given, &one_), at::matmul(x, given), 1e-4, 1e-4));
  EXPECT_TRUE(at::allclose(matrix_product(x, w, &one_), at::matmul(x, w), 1e-4, 1e-4));
}

TEST_F(ConstantFactors, WhatHasNoPanelsHasNone) {
  EXPECT_EQ(one_.panels(at::randn({4, 4}, at::kDouble)), nullptr);
  EXPECT_EQ(one_.panels(at::randn({0, 4})), nullptr);
  EXPECT_EQ(one_.panels(at::randn({2, 4, 4})), nullptr);
}

}  // namespace
}  // namespace ortmodule
