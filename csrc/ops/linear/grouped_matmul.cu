// CUDA kernels of GroupedMatMul and its gradients, for products that are done before the host would have read where the
// groups end: tiles of 32 x 32 results, factors in shared memory, sums in floats. No tensor cores.
//
// A block has a tile of one group's results; groups are as long as the device says, so there are blocks for the longest
// that there may be, and those without a tile end at once.
#include "cuda/elements.cuh"
#include "ops/linear/grouped_matmul_launch.h"

namespace ortmodule::cuda {
namespace {

constexpr int kTile = 32, kThreads = 256, kEach = kTile * kTile / kThreads, kPitch = kTile + 1;

// A factor of a group: element (step, index) of its product's terms.
template <typename T>
struct Factor {
  Global<const T> at;
  int64_t first, per_step, per_index;
};

// How long one group's product is: results [rows, columns], sums of `steps` terms.
struct Extent {
  int64_t rows, columns, steps;
};

// Loads a tile [step, index]; neighbours in memory are neighbouring threads.
template <typename T, typename Tile>
__device__ __forceinline__ void load_tile(const Factor<T>& from, int64_t step, int64_t index, int64_t steps,
                                          int64_t indices, Tile& tile) {
#pragma unroll
  for (int e = 0; e < kEach; ++e) {
    const int place = static_cast<int>(threadIdx.x) + e * kThreads, fast = place % kTile, slow = place / kTile;
    const bool by_step = from.per_step == 1;
    const int64_t s = step + (by_step ? fast : slow), i = index + (by_step ? slow : fast);
    const bool inside = s < steps && i < indices;
    tile[(by_step ? fast : slow) * kPitch + (by_step ? slow : fast)] =
        inside ? to_float(load(from.at, from.first + s * from.per_step + i * from.per_index)) : 0.0f;
  }
}

template <typename T>
__device__ __forceinline__ void product(const Factor<T>& a, const Factor<T>& b, const Extent& n, Global<T> to,
                                        int64_t first) {
  ORTMODULE_SHARED(float, left, kTile* kPitch);
  ORTMODULE_SHARED(float, right, kTile* kPitch);
  const int64_t row = int64_t{blockIdx.x} * kTile, column = int64_t{blockIdx.y} * kTile;
  if (row >= n.rows || column >= n.columns) return;
  const int lane = static_cast<int>(threadIdx.x) % kTile, line = static_cast<int>(threadIdx.x) / kTile;
  float sums[kEach] = {};
  for (int64_t step = 0; step < n.steps; step += kTile) {
    load_tile(a, step, row, n.steps, n.rows, left);
    load_tile(b, step, column, n.steps, n.columns, right);
    __syncthreads();
#pragma unroll 4
    for (int k = 0; k < kTile; ++k) {
      const float factor = right[k * kPitch + lane];
#pragma unroll
      for (int e = 0; e < kEach; ++e) sums[e] += left[k * kPitch + line + e * (kThreads / kTile)] * factor;
    }
    __syncthreads();
  }
#pragma unroll
  for (int e = 0; e < kEach; ++e) {
    const int64_t r = row + line + e * (kThreads / kTile), c = column + lane;
    if (r < n.rows && c < n.columns) store(to, first + r * n.columns + c, from_float<T>(sums[e]));
  }
}

template <typename T>
struct Operands {
  Global<const int64_t> ends;
  Global<const T> a, b;
  Global<T> to;
  int64_t rows, inner, outer, groups, per_group, per_inner, per_outer;  // the last three: strides of b[group, ..]

  // Where the group begins; the one behind the last has the rows that are nobody's.
  __device__ __forceinline__ int64_t end(int64_t group) const {
    const int64_t last = group == groups ? rows : load(ends, group);
    if (last < 0 || last > rows) __trap();
    return last;
  }
  __device__ __forceinline__ int64_t begin(int64_t group) const { return group == 0 ? 0 : end(group - 1); }
};

template <typename T, GroupedForm form>
__global__ void __launch_bounds__(kThreads) grouped(Operands<T> o) {
  const int64_t group = blockIdx.z, begin = o.begin(group), rows = o.end(group) - begin;
  if (rows < 0) __trap();
  const bool nobody = group == o.groups;
  if constexpr (form == GroupedForm::kWeight) {
    product<T>({o.a, begin * o.inner, o.inner, 1}, {o.b, begin * o.outer, o.outer, 1}, {o.inner, o.outer, rows}, o.to,
               group * o.inner * o.outer);
  } else if constexpr (form == GroupedForm::kForward) {
    product<T>({o.a, begin * o.inner, 1, o.inner}, {o.b, group * o.per_group, o.per_inner, o.per_outer},
               {rows, o.outer, nobody ? 0 : o.inner}, o.to, begin * o.outer);
  } else {
    product<T>({o.a, begin * o.outer, 1, o.outer}, {o.b, group * o.per_group, o.per_outer, o.per_inner},
               {rows, o.inner, nobody ? 0 : o.outer}, o.to, begin * o.inner);
  }
}

template <typename T, GroupedForm form>
int launch_form(const GroupedMatMulLaunch& a, void* stream) {
  const bool weight = form == GroupedForm::kWeight;
  const int64_t rows = weight ? a.inner : a.rows, columns = form == GroupedForm::kInput ? a.inner : a.outer;
  const dim3 blocks(blocks_for(rows, kTile), blocks_for(columns, kTile),
                    static_cast<unsigned>(a.groups + (weight ? 0 : 1)));
  const Operands<T> o{global<const int64_t>(a.ends),
                      global<const T>(a.a),
                      global<const T>(a.b),
                      global<T>(a.to),
                      a.rows,
                      a.inner,
                      a.outer,
                      a.groups,
                      a.strides[0],
                      a.strides[1],
                      a.strides[2]};
  return launch("grouped_matmul", &grouped<T, form>, blocks, kThreads, stream, o);
}

int run(const GroupedMatMulLaunch& a, void* stream) {
  return by_element(a.type, [&](auto tag) {
    using T = typename decltype(tag)::Type;
    switch (a.form) {
      case GroupedForm::kForward:
        return launch_form<T, GroupedForm::kForward>(a, stream);
      case GroupedForm::kInput:
        return launch_form<T, GroupedForm::kInput>(a, stream);
      default:
        return launch_form<T, GroupedForm::kWeight>(a, stream);
    }
  });
}

}  // namespace

ORTMODULE_CUDA_LAUNCH(grouped_matmul, GroupedMatMulLaunch, run);

}  // namespace ortmodule::cuda
