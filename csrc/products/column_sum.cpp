#include "products/column_sum.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/sum.h>

#include <algorithm>
#include <bit>
#include <type_traits>

#include "kernels/cpu_simd.h"
#include "kernels/small_tensor.h"

namespace ortmodule {
namespace {

// What at::sum adds on one thread.
constexpr int64_t kLargest = 32768;
constexpr int kLevels = 4;
constexpr int64_t kBlock = 64;

// at::sum's vectors: ATen takes those of AVX2 for it where there are wider ones. Whether it does is asked (is_atens).
constexpr int64_t kVector = 8, kBlockOfAten = 4 * kVector;

// Note [Cascade]
// at::sum adds rows in groups of 2^power, those sums in groups, and so on, on four levels; at the end the levels are
// added up. Columns are summed like that in blocks of four vectors (of four columns where there is not one vector);
// of what columns remain every fourth row is summed like that, and the four sums are added up.
int level_power(int64_t rows) {
  const int log = rows > 1 ? static_cast<int>(std::bit_width(static_cast<uint64_t>(rows - 1))) : 0;
  return std::max(4, log / kLevels);
}

// sums[c] = the cascade of data[i * stride + c] over i < rows; at most kBlock columns.
template <typename Count>
ORTMODULE_INLINE void cascade(const float* data, int64_t rows, int64_t stride, Count columns, float* sums) {
  float level[kLevels][kBlock];
  const int power = level_power(rows);
  const int64_t group = int64_t{1} << power;
  const int levels = rows < group ? 1 : kLevels;  // few rows never leave the first
  for (int j = 0; j < levels; ++j) std::fill_n(level[j], static_cast<int64_t>(columns), 0.0F);
  int64_t i = 0;
  while (i + group <= rows) {
    for (int64_t k = 0; k < group; ++k, ++i)
      for (int64_t c = 0; c < columns; ++c) level[0][c] += data[i * stride + c];
    for (int j = 1; j < kLevels; ++j) {
      for (int64_t c = 0; c < columns; ++c) {
        level[j][c] += level[j - 1][c];
        level[j - 1][c] = 0;
      }
      if (i & ((group - 1) << (j * power))) break;
    }
  }
  for (; i < rows; ++i)
    for (int64_t c = 0; c < columns; ++c) level[0][c] += data[i * stride + c];
  for (int j = 1; j < levels; ++j)
    for (int64_t c = 0; c < columns; ++c) level[0][c] += level[j][c];
  std::copy_n(level[0], static_cast<int64_t>(columns), sums);
}

// What columns remain beside whole blocks.
ORTMODULE_INLINE void cascade_by_parts(const float* data, int64_t rows, int64_t stride, int64_t columns, float* sums) {
  constexpr int64_t kParts = 4;
  float parts[kParts][kBlock];
  const int64_t quarter = rows / kParts;
  for (int64_t k = 0; k < kParts; ++k) cascade(data + k * stride, quarter, kParts * stride, columns, parts[k]);
  for (int64_t i = quarter * kParts; i < rows; ++i)
    for (int64_t c = 0; c < columns; ++c) parts[0][c] += data[i * stride + c];
  for (int64_t k = 1; k < kParts; ++k)
    for (int64_t c = 0; c < columns; ++c) parts[0][c] += parts[k][c];
  std::copy_n(parts[0], columns, sums);
}

bool is_small_matrix(const at::Tensor& t) {
  return t.scalar_type() == at::kFloat && t.is_cpu() && t.layout() == at::kStrided && !t.is_neg() && t.dim() == 2 &&
         t.numel() > 0 && t.numel() < kLargest && t.size(1) > 1 && t.stride(1) == 1 && t.stride(0) >= t.size(1);
}

at::Tensor sum_of(const at::Tensor& rows) {
  at::Tensor out = make_float({rows.size(1)});
  column_sums(rows.const_data_ptr<float>(), rows.size(0), rows.stride(0), rows.size(1), out.mutable_data_ptr<float>());
  return out;
}

// Whether this torch adds in that order on this machine. Nothing else hangs on it: where it does not, it adds itself.
bool is_atens() {
  static const bool same = [] {
    const at::Tensor numbers = at::arange(600 * 45, at::kFloat).mul_(0.37F).sin_().view({600, 45});
    for (const int64_t rows : {6, 70, 600})
      for (const int64_t columns : {3, 7, 13, 45}) {
        const at::Tensor part = numbers.slice(0, 0, rows).slice(1, 0, columns);
        if (!at::equal(sum_of(part), at::sum(part, 0))) return false;
      }
    return true;
  }();
  return same;
}

}  // namespace

ORTMODULE_SIMD void column_sums(const float* data, int64_t rows, int64_t stride, int64_t columns, float* sums) {
  const int64_t block = columns >= kVector ? kBlockOfAten : 4, whole = columns - columns % block;
  int64_t c = 0;
  for (; c + kBlock <= whole; c += kBlock)
    cascade(data + c, rows, stride, std::integral_constant<int64_t, kBlock>(), sums + c);
  if (c < whole) cascade(data + c, rows, stride, whole - c, sums + c);
  if (whole < columns) cascade_by_parts(data + whole, rows, stride, columns - whole, sums + whole);
}

at::Tensor column_sum(const at::Tensor& rows) {
  return is_small_matrix(rows) && is_atens() ? sum_of(rows) : at::sum(rows, 0);
}

}  // namespace ortmodule
