// Small tensors that come again: only those that nobody else knows, with the memory that they had.
#include "kernels/small_tensor.h"

#include <ATen/ops/ones.h>
#include <c10/core/InferenceMode.h>
#include <gtest/gtest.h>

#include <thread>
#include <utility>

#include "device/small_block_scope.h"

namespace ortmodule {
namespace {

// Recycles `t`; whether the next tensor of `sizes` has its memory.
bool comes_again(at::Tensor t, at::IntArrayRef sizes) {
  const void* const memory = t.data_ptr();
  recycle(t);
  EXPECT_FALSE(t.defined());
  const at::Tensor next = make_float(sizes);
  EXPECT_EQ(next.sizes(), sizes);
  EXPECT_TRUE(next.is_contiguous());
  EXPECT_EQ(next.storage().nbytes(), next.nbytes());
  EXPECT_EQ(next.storage_offset(), 0);
  return next.data_ptr() == memory;
}

TEST(SmallTensor, ComesAgainInAnyShapeThatItsBlockHolds) {
  const SmallBlockScope scope(true);
  EXPECT_TRUE(comes_again(make_float({3, 5}), {3, 5}));
  EXPECT_TRUE(comes_again(make_float({3, 5}), {16}));
  EXPECT_TRUE(comes_again(make_float({4, 4}), {1}));
  EXPECT_FALSE(comes_again(make_float({4, 4}), {17}));
  at::Tensor turned = make_float({4, 3});
  turned.unsafeGetTensorImpl()->set_sizes_and_strides(at::IntArrayRef({3, 4}), at::IntArrayRef({1, 3}));
  EXPECT_TRUE(comes_again(std::move(turned), {4, 3}));
}

TEST(SmallTensor, StaysWithWhoeverElseKnowsIt) {
  const SmallBlockScope scope(true);
  const at::Tensor held = make_float({7, 7}), viewed = make_float({7, 7});
  EXPECT_FALSE(comes_again(held, {7, 7}));
  const at::Tensor view = viewed.view({49});
  EXPECT_FALSE(comes_again(view, {7, 7}));
  at::Tensor weakly = make_float({7, 7});
  const c10::weak_intrusive_ptr<c10::TensorImpl> weak(weakly.getIntrusivePtr());
  recycle(weakly);
  EXPECT_TRUE(weak.expired());
  at::Tensor leaf = make_float({7, 7});
  leaf.set_requires_grad(true);
  recycle(leaf);
  EXPECT_FALSE(make_float({7, 7}).requires_grad());
}

TEST(SmallTensor, InferenceModeHasItsOwn) {
  const SmallBlockScope scope(true);
  at::Tensor plain = make_float({11});
  recycle(plain);
  {
    const c10::InferenceMode inference;
    at::Tensor made = make_float({11});
    EXPECT_TRUE(made.is_inference());
    recycle(made);
  }
  EXPECT_FALSE(make_float({11}).is_inference());
  EXPECT_FALSE(make_float({11}).is_inference());
}

TEST(SmallTensor, OthersAreReset) {
  at::Tensor none, large = at::ones({100, 100}), integers = at::ones({3}, at::kLong);
  for (at::Tensor* t : {&none, &large, &integers}) {
    recycle(*t);
    EXPECT_FALSE(t->defined());
  }
  const SmallBlockScope scope(true);
  at::Tensor doubled = make_float({6}).to(at::kDouble);
  recycle(doubled);
  EXPECT_EQ(make_float({6}).scalar_type(), at::kFloat);
}

TEST(SmallTensor, AThreadTakesItsOwnWithIt) {
  at::Tensor made;
  std::thread([&] {
    const SmallBlockScope scope(true);
    at::Tensor t = make_float({9, 9});
    recycle(t);
    made = make_float({9, 9});
  }).join();
  made.fill_(2);
  recycle(made);
  EXPECT_FALSE(made.defined());
}

}  // namespace
}  // namespace ortmodule
