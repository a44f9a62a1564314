// Which kernel multiplies, on machines of every kind: the table needs none of them.
#include "products/choice.h"

#include <gtest/gtest.h>

#include <string>

namespace ortmodule {
namespace {

using Kernel = ProductKernel;
using Type = ProductFacts::Type;

ProductMachine amd_avx2() { return {.avx2 = true, .onednn = true}; }
ProductMachine zen4() { return {.avx2 = true, .avx512 = true, .split_avx512 = true, .pairs = true, .onednn = true}; }
ProductMachine zen5() { return {.avx2 = true, .avx512 = true, .pairs = true, .onednn = true}; }
ProductMachine intel() { return {.avx2 = true, .intel = true, .avx512 = true, .pairs = true, .onednn = true}; }
ProductMachine intel_with_tiles() {
  ProductMachine machine = intel();
  machine.tiles = true;
  return machine;
}

ProductFacts product(int64_t m, int64_t n, int64_t k, Type type = Type::kFloat, int threads = 2) {
  ProductFacts out;
  out.m = m;
  out.n = n;
  out.k = k;
  out.type = type;
  out.threads = threads;
  return out;
}

Kernel chosen(const ProductFacts& p, const ProductMachine& machine) { return choose_product(p, machine).kernel; }

TEST(ProductChoice, LargeProductsOfFloats) {
  const ProductFacts large = product(1024, 1024, 1024);
  EXPECT_EQ(chosen(large, amd_avx2()), Kernel::kAten);
  EXPECT_EQ(chosen(large, zen4()), Kernel::kPacked);
  EXPECT_EQ(chosen(large, zen5()), Kernel::kPacked);
  EXPECT_EQ(chosen(product(1024, 1024, 1024, Type::kFloat, 16), zen5()), Kernel::kOneDnn) << "many threads";
  EXPECT_EQ(chosen(large, intel()), Kernel::kAten);
  EXPECT_EQ(chosen(large, {}), Kernel::kAten) << "no AVX2, no oneDNN";
}

TEST(ProductChoice, FewRowsOfALayerAreOneDnnsWhereMklIsNarrow) {
  ProductFacts token = product(1, 3072, 768);
  EXPECT_EQ(chosen(token, zen5()), Kernel::kAten) << "shapes that may vary";
  token.linear = true;
  EXPECT_EQ(chosen(token, zen5()), Kernel::kOneDnn);
  EXPECT_NE(chosen(token, zen4()), Kernel::kOneDnn);
  EXPECT_EQ(chosen(product(8, 3072, 768), zen5()), Kernel::kPacked);
}

TEST(ProductChoice, SmallOnesGoPastTheDispatcher) {
  for (const ProductMachine& machine : {amd_avx2(), intel()})
    EXPECT_EQ(chosen(product(32, 64, 64), machine), Kernel::kBlas);
  for (const ProductMachine& machine : {zen4(), zen5()}) {
    EXPECT_EQ(chosen(product(32, 64, 63), machine), Kernel::kBlas);
    EXPECT_EQ(chosen(product(32, 64, 128), machine), Kernel::kPacked) << "2^18 multiplications";
  }
}

TEST(ProductChoice, ConstantsGoByPanelsThatAreKept) {
  ProductFacts constant = product(1024, 1024, 1024);
  constant.constant = true;
  for (const ProductMachine& machine : {amd_avx2(), zen4(), zen5(), intel(), intel_with_tiles()})
    EXPECT_EQ(chosen(constant, machine), Kernel::kPackedOnce);
  EXPECT_EQ(chosen(constant, {}), Kernel::kAten) << "no AVX2";
  EXPECT_EQ(chosen(constant, {.avx2 = true, .intel = true}), Kernel::kAten) << "MKL at its rate";
  ProductFacts bits = constant;
  bits.deterministic = true;
  EXPECT_EQ(chosen(bits, intel()), Kernel::kAten);
  ProductFacts small = product(4, 64, 64);
  small.constant = true;
  EXPECT_EQ(chosen(small, intel()), Kernel::kBlas);
}

TEST(ProductChoice, ShortOnesOnIntel) {
  EXPECT_EQ(chosen(product(4096, 4096, 256), intel()), Kernel::kPacked) << "short sums";
  ProductFacts by_columns = product(4096, 4096, 256);
  by_columns.transposed = true;
  EXPECT_EQ(chosen(by_columns, intel()), Kernel::kAten);
  ProductFacts small = product(64, 64, 64);
  EXPECT_EQ(chosen(small, intel()), Kernel::kBlas);
  small.bias = true;
  EXPECT_EQ(chosen(small, intel()), Kernel::kPacked);
}

TEST(ProductChoice, FewRowsAndShortSumsOnAvx2) {
  EXPECT_EQ(chosen(product(64, 30000, 768), amd_avx2()), Kernel::kPacked);
  EXPECT_EQ(chosen(product(2048, 2048, 64), amd_avx2()), Kernel::kPacked);
  EXPECT_EQ(chosen(product(64, 30000, 768, Type::kFloat, 16), amd_avx2()), Kernel::kAten) << "many threads";
  ProductFacts scores = product(200, 30000, 768);
  scores.linear = true;
  EXPECT_EQ(chosen(scores, amd_avx2()), Kernel::kBlas) << "in strips";
}

TEST(ProductChoice, Bfloat16) {
  const ProductFacts large = product(512, 512, 512, Type::kBFloat16);
  EXPECT_EQ(chosen(large, zen4()), Kernel::kPacked);
  EXPECT_EQ(chosen(large, zen5()), Kernel::kPacked);
  EXPECT_EQ(chosen(large, intel()), Kernel::kPacked) << "pairs are slow there";
  EXPECT_EQ(chosen(large, intel_with_tiles()), Kernel::kAten);
  EXPECT_EQ(chosen(large, amd_avx2()), Kernel::kPacked);
  ProductFacts biased = large;
  biased.linear = biased.bias = biased.plain_bias = true;
  EXPECT_EQ(chosen(biased, intel_with_tiles()), Kernel::kOneDnn);
}

TEST(ProductChoice, AUsersWordComesFirst) {
  ProductFacts large = product(1024, 1024, 1024);
  large.deterministic = true;
  for (const ProductMachine& machine : {amd_avx2(), zen4(), zen5(), intel()})
    EXPECT_EQ(chosen(large, machine), Kernel::kAten) << "eager's bits";
  large.deterministic = false;
  large.provider = MatmulProvider::kOneDnn;
  EXPECT_EQ(chosen(large, zen4()), Kernel::kOneDnn);
  EXPECT_EQ(chosen(product(8, 8, 8), zen4()), Kernel::kBlas);
  large.provider = MatmulProvider::kAten;
  EXPECT_EQ(chosen(large, zen5()), Kernel::kAten);
  large.on_cpu = false;
  large.provider = MatmulProvider::kOneDnn;
  EXPECT_EQ(chosen(large, zen5()), Kernel::kAten);
}

TEST(ProductChoice, GradientsShareThreadsWhereTheyAreShort) {
  EXPECT_TRUE(shares_threads(product(64, 64, 64)));
  EXPECT_FALSE(shares_threads(product(8, 64, 64))) << "few rows for each thread";
  EXPECT_FALSE(shares_threads(product(4096, 4096, 4096)));
  ProductFacts asked = product(64, 64, 64);
  asked.deterministic = true;
  EXPECT_FALSE(shares_threads(asked));
}

TEST(ProductChoice, EveryRowHasAReason) {
  for (const ProductRow& row : product_table()) EXPECT_FALSE(std::string(row.reason).empty());
  EXPECT_TRUE(product_table().back().when({}, {}));
}

}  // namespace
}  // namespace ortmodule
