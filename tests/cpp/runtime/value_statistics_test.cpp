// Figures against ATen's, for every kind of element and size; fingerprints that tell bits and nothing else.
#include "runtime/value_statistics.h"

#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/complex.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/std.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <set>

#include "kernels/sequence_value.h"

namespace ortmodule {
namespace {

void expect_figures(const at::Tensor& t) {
  const ValueStatistics found = statistics_of(t);
  const at::Tensor wide = t.to(at::kDouble);
  EXPECT_EQ(found.finite, t.numel());
  EXPECT_EQ(found.nans + found.infinities, 0);
  EXPECT_EQ(found.min, wide.min().item<double>());
  EXPECT_EQ(found.max, wide.max().item<double>());
  const double mean = wide.mean().item<double>(), deviation = at::std(wide, false).item<double>();
  EXPECT_NEAR(found.mean, mean, 1e-12 * (1 + std::abs(mean)));
  EXPECT_NEAR(found.deviation, deviation, 1e-9 * (1 + deviation));
}

TEST(ValueStatistics, AreThoseOfATenForEveryTypeAndSize) {
  for (const at::ScalarType type : {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16, at::kInt, at::kLong, at::kByte,
                                    at::kChar, at::kShort, at::kUInt16, at::kUInt32, at::kFloat8_e4m3fn})
    for (const int64_t size : {1, 7, 2047, 2048, 2049, 8191, 8192, 8193, 100'003}) {
      SCOPED_TRACE(std::string(c10::toString(type)) + " " + std::to_string(size));
      expect_figures(at::randn({size}).mul_(30).abs_().clamp_max_(100).to(type));
    }
  expect_figures(at::arange(4096).remainder(3).eq(0));
  expect_figures(at::randn({1000}) + 1e6);  // whose squares would swallow the deviation
}

TEST(ValueStatistics, CountWhatIsNotFiniteApart) {
  for (const at::ScalarType type : {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16}) {
    at::Tensor t = at::ones({5000}, type);
    t[3] = std::numeric_limits<double>::quiet_NaN();
    t[4000] = std::numeric_limits<double>::infinity();
    t[4999] = -std::numeric_limits<double>::infinity();
    t[0] = 3;
    const ValueStatistics found = statistics_of(t);
    EXPECT_EQ(found.nans, 1);
    EXPECT_EQ(found.infinities, 2);
    EXPECT_EQ(found.finite, 4997);
    EXPECT_EQ(found.min, 1);
    EXPECT_EQ(found.max, 3);
  }
  const ValueStatistics none = statistics_of(at::full({4}, std::nan("")));
  EXPECT_EQ(none.nans, 4);
  EXPECT_TRUE(std::isnan(none.mean));
}

TEST(ValueStatistics, KnowAnEmptyTensorAScalarAComplexOneASequenceAndNoValue) {
  EXPECT_EQ(statistics_of({}).dtype, DType::kUndefined);
  EXPECT_EQ(statistics_of({}).fingerprint, 0u);
  EXPECT_EQ(statistics_of(at::empty({0, 3})).shape, (std::vector<int64_t>{0, 3}));
  EXPECT_EQ(statistics_of(at::full({}, 2.5)).mean, 2.5);
  const at::Tensor c = at::complex(at::full({2}, 1.0), at::full({2}, 3.0));
  EXPECT_EQ(statistics_of(c).mean, 2);
  EXPECT_EQ(statistics_of(c).max, 3);
  EXPECT_EQ(statistics_of(c.conj()).min, -3);
  const ValueStatistics list = statistics_of(make_sequence({at::ones({2}), at::full({3}, 2.0f)}, at::kFloat));
  EXPECT_EQ(list.shape, (std::vector<int64_t>{2}));
  EXPECT_EQ(list.finite, 5);
  EXPECT_EQ(list.max, 2);
}

TEST(ValueStatistics, OneBitAnywhereGivesAnotherFingerprint) {
  for (const int64_t size : {1, 31, 32, 33, 8192, 20'000}) {
    const at::Tensor t = at::randn({size});
    std::set<uint64_t> seen{statistics_of(t).fingerprint};
    size_t changed = 1;
    for (const int64_t place : {int64_t{0}, size / 2, size - 1})
      for (int bit = 0; bit < 32; bit += 5, ++changed) {
        auto* words = reinterpret_cast<uint32_t*>(t.mutable_data_ptr<float>());
        words[place] ^= 1u << bit;
        seen.insert(statistics_of(t).fingerprint);
        words[place] ^= 1u << bit;
      }
    EXPECT_EQ(seen.size(), size == 1 ? 8 : changed) << size;
  }
  at::Tensor order = at::arange(4096, at::kFloat), turned = order.flip(0);
  EXPECT_NE(statistics_of(order).fingerprint, statistics_of(turned).fingerprint);
  EXPECT_NE(statistics_of(at::full({8}, 0.0f)).fingerprint, statistics_of(at::full({8}, -0.0f)).fingerprint);
  EXPECT_NE(statistics_of(at::full({8}, 0.0f)).fingerprint, statistics_of(at::full({9}, 0.0f)).fingerprint);
}

TEST(ValueStatistics, TheFingerprintIsOfElementsNotOfMemoryOrThreads) {
  const at::Tensor t = at::randn({300, 500});
  const uint64_t wanted = statistics_of(t).fingerprint;
  EXPECT_EQ(statistics_of(t.t().contiguous().t()).fingerprint, wanted);
  EXPECT_EQ(statistics_of(t, false).fingerprint, wanted);
  const int before = at::get_num_threads();
  at::set_num_threads(1);
  EXPECT_EQ(statistics_of(t).fingerprint, wanted);
  at::set_num_threads(before);
}

}  // namespace
}  // namespace ortmodule
