// CUDA kernels of SoftmaxCrossEntropyLoss on rows of scores, and of its gradient.
//
// Forward reads the scores once and writes two numbers a row; backward turns scores into their gradient, in place where
// it may. Losses and weights of the rows are added by one block, in an order that the sizes give. A label that no class
// has is a trap, as it is in torch.
#include "cuda/softmax_rows.cuh"
#include "ops/loss/cross_entropy_launch.h"

namespace ortmodule::cuda {
namespace {

constexpr int kSumThreads = 1024, kTileThreads = 256;

template <typename T>
struct Labels {
  Global<const int64_t> labels;
  Global<const T> weights;
  int64_t classes, ignore_index;

  explicit Labels(const LabelledScores& of)
      : labels(global<const int64_t>(of.labels)),
        weights(global<const T>(of.weights)),
        classes(of.classes),
        ignore_index(of.ignore_index) {}

  // The class of a row; below 0: ignored.
  __device__ __forceinline__ int64_t label(int64_t row) const {
    const int64_t label = load(labels, row);
    if (label == ignore_index) return -1;
    if (label < 0 || label >= classes) __trap();
    return label;
  }
  __device__ __forceinline__ float weight(int64_t label) const {
    return label < 0 ? 0.0f : weights ? to_float(load(weights, label)) : 1.0f;
  }
};

template <typename T>
struct Forward {
  Labels<T> labels;
  Global<const T> scores;
  Global<T> losses;  // where nothing is reduced
  Global<float> largest, log_sum, workspace;
  int64_t rows;
  int classes;
};

template <typename T, int N, typename Plan>
__global__ void __launch_bounds__(Team<Plan::kThreads>::kBlockThreads) cross_entropy_rows(Forward<T> a) {
  using Threads = Team<Plan::kThreads>;
  const int64_t row = Threads::row();
  if (row >= a.rows) return;
  const int64_t first = row * a.classes;
  const Row<T, N, Plan::kThreads, Plan::kHeld> scores(a.scores, first, a.classes);
  const SoftmaxSums s = softmax_sums(scores, a.classes);
  if (Threads::thread() != 0) return;
  const float log_sum = logf(s.sum);
  store(a.largest, row, s.largest);
  store(a.log_sum, row, log_sum);
  const int64_t label = a.labels.label(row);
  const float weight = a.labels.weight(label);
  const float loss = label < 0 ? 0.0f : (s.largest - to_float(load(a.scores, first + label)) + log_sum) * weight;
  if (a.losses) {
    store(a.losses, row, from_float<T>(loss));
  } else {
    store(a.workspace, row, loss);
    store(a.workspace, a.rows + row, weight);
  }
}

template <typename T>
__global__ void __launch_bounds__(kSumThreads)
    cross_entropy_sum(Global<const float> workspace, Global<T> loss, int64_t rows, int mean) {
  float sums[2] = {};
  for (int64_t row = threadIdx.x; row < rows; row += kSumThreads) {
    sums[0] += load(workspace, row);
    sums[1] += load(workspace, rows + row);
  }
  Team<kSumThreads>::reduce<Sum>(sums);
  if (threadIdx.x == 0) store(loss, 0, from_float<T>(mean ? sums[0] / sums[1] : sums[0]));
}

template <typename T>
__global__ void __launch_bounds__(kSumThreads) label_weight_sum(Labels<T> labels, Global<float> total, int64_t rows) {
  float sum = 0;
  for (int64_t row = threadIdx.x; row < rows; row += kSumThreads) sum += labels.weight(labels.label(row));
  sum = Team<kSumThreads>::reduce<Sum>(sum);
  if (threadIdx.x == 0) store(total, 0, sum);
}

template <typename T>
struct Backward {
  Labels<T> labels;
  Global<const T> dy, scores;
  Global<const float> largest, log_sum, total;  // `total`: of the mean
  Global<T> d_scores;
  int each;  // dy is one number a row
};

// d = (softmax(scores) - [column is the label]) * factor.
template <typename T, int N>
__global__ void __launch_bounds__(kTileThreads) cross_entropy_gradient(Backward<T> a) {
  const int64_t row = blockIdx.x, classes = a.labels.classes;
  const int64_t column = (int64_t{blockIdx.y} * kTileThreads + threadIdx.x) * N;
  if (column >= classes) return;
  const int64_t label = a.labels.label(row);
  float values[N] = {};
  if (label >= 0) {
    float factor = to_float(load(a.dy, a.each ? row : 0)) * a.labels.weight(label);
    if (a.total) factor /= load(a.total, 0);
    const float shift = load(a.largest, row), log_sum = load(a.log_sum, row);
    load_floats<N>(a.scores, row * classes + column, values);
#pragma unroll
    for (int k = 0; k < N; ++k)
      values[k] = (expf(values[k] - shift - log_sum) - (column + k == label ? 1.0f : 0.0f)) * factor;
  }
  store_floats<N>(a.d_scores, row * classes + column, values);
}

int cross_entropy(const CrossEntropyLaunch& a, void* stream) {
  const LabelledScores& of = a.given;
  return by_element(of.type, [&](auto tag) {
    using T = typename decltype(tag)::Type;
    const bool none = of.reduction == Reduction::kNone;
    const Forward<T> given{Labels<T>(of),
                           global<const T>(of.scores),
                           global<T>(none ? a.loss : nullptr),
                           global<float>(a.largest),
                           global<float>(a.log_sum),
                           global<float>(a.workspace),
                           of.rows,
                           static_cast<int>(of.classes)};
    int error = by_flag(takes_vectors<T>(of.classes, of.scores), [&](auto vectors) {
      constexpr int N = vectors() ? kVectorWidth<T> : 1;
      return by_row_length<N>(of.classes, [&](auto plan) {
        using Threads = Team<decltype(plan)::kThreads>;
        return launch("cross_entropy", &cross_entropy_rows<T, N, decltype(plan)>,
                      blocks_for(of.rows, Threads::kPerBlock), Threads::kBlockThreads, stream, given);
      });
    });
    if (!error && !none)
      error =
          launch("cross_entropy_sum", &cross_entropy_sum<T>, 1, kSumThreads, stream, global<const float>(a.workspace),
                 global<T>(a.loss), of.rows, static_cast<int>(of.reduction == Reduction::kMean));
    return error;
  });
}

int gradient(const CrossEntropyGradLaunch& a, void* stream) {
  const LabelledScores& of = a.given;
  return by_element(of.type, [&](auto tag) {
    using T = typename decltype(tag)::Type;
    const bool mean = of.reduction == Reduction::kMean;
    const Labels<T> labels(of);
    const Backward<T> given{labels,
                            global<const T>(a.dy),
                            global<const T>(of.scores),
                            global<const float>(a.largest),
                            global<const float>(a.log_sum),
                            global<const float>(mean ? a.workspace : nullptr),
                            global<T>(a.d_scores),
                            of.reduction == Reduction::kNone};
    int error = 0;
    if (mean)
      error = launch("label_weight_sum", &label_weight_sum<T>, 1, kSumThreads, stream, labels,
                     global<float>(a.workspace), of.rows);
    if (error) return error;
    return by_flag(takes_vectors<T>(of.classes, of.scores, a.d_scores), [&](auto vectors) {
      constexpr int N = vectors() ? kVectorWidth<T> : 1;
      const dim3 blocks(static_cast<unsigned>(of.rows), blocks_for(of.classes, int64_t{kTileThreads} * N));
      return launch("cross_entropy_gradient", &cross_entropy_gradient<T, N>, blocks, kTileThreads, stream, given);
    });
  });
}

}  // namespace

ORTMODULE_CUDA_LAUNCH(cross_entropy, CrossEntropyLaunch, cross_entropy);
ORTMODULE_CUDA_LAUNCH(cross_entropy_gradient, CrossEntropyGradLaunch, gradient);

}  // namespace ortmodule::cuda
