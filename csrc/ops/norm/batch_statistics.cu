// CUDA kernels of a batch's statistics and of their gradient's sums: one pass over memory each. What is left of batch
// norm is a program of three operands (batch_statistics.cpp).
//
// x is a matrix of rows and channels, as pictures with channels last are. Blocks have a tile of channels and a chunk of
// rows; as few threads stand beside one another as a row of few channels has vectors, so that all of them work. A
// second kernel joins the chunks. Means are not sums of squares' differences: each thread counts from its own first
// element, and parts are joined by their means and squared deviations (Chan, Golub and LeVeque, Updating Formulae and a
// Pairwise Algorithm for Computing Sample Variances, 1979), the chunks' counted from the first one's mean. No atomics:
// sizes give the order of every addition.
#include "ops/norm/batch_statistics_launch.h"

#include "cuda/elements.cuh"
#include "cuda/reduce.cuh"

namespace ortmodule::cuda {
namespace {

constexpr int kThreads = 256, kJoinLines = 32, kJoinThreads = kWarpSize * kJoinLines;

// A block's rows and this thread's part of them: from `first` on, every kLines-th.
template <int N, int kLanes>
struct Part {
  static constexpr int kLines = kThreads / kLanes, kChannels = kLanes * N;
  int lane = static_cast<int>(threadIdx.x) % kLanes, line = static_cast<int>(threadIdx.x) / kLanes;
  int64_t channel = int64_t{blockIdx.x} * kChannels + lane * N;
  int64_t begin, end;

  __device__ Part(int64_t rows, int64_t chunk)
      : begin(int64_t{blockIdx.y} * chunk), end(min(int64_t{blockIdx.y} * chunk + chunk, rows)) {}
  // How many rows a line has.
  __device__ __forceinline__ int count(int of) const {
    return begin + of < end ? static_cast<int>((end - begin - of + kLines - 1) / kLines) : 0;
  }
};

struct Sizes {
  int64_t rows, channels, chunk;  // rows of a chunk
};

template <typename T, int N, int kLanes>
__global__ void __launch_bounds__(kThreads, 4)
    batch_statistics_parts(Global<const T> x, Global<float> parts, Sizes sizes) {
  using Mine = Part<N, kLanes>;
  ORTMODULE_SHARED(float, tile, 2 * kThreads * N);
  const Mine mine(sizes.rows, sizes.chunk);
  float origin[N] = {}, sums[N] = {}, squares[N] = {};
  const bool some = mine.channel < sizes.channels && mine.begin + mine.line < mine.end;
  if (some) {
    load_floats<N>(x, (mine.begin + mine.line) * sizes.channels + mine.channel, origin);
#pragma unroll 4
    for (int64_t row = mine.begin + mine.line + Mine::kLines; row < mine.end; row += Mine::kLines) {
      float values[N];
      load_floats<N>(x, row * sizes.channels + mine.channel, values);
#pragma unroll
      for (int k = 0; k < N; ++k) {
        const float apart = values[k] - origin[k];
        sums[k] += apart;
        squares[k] += apart * apart;
      }
    }
  }
  const float share = some ? 1.0f / static_cast<float>(mine.count(mine.line)) : 0.0f;
  const int place = mine.line * Mine::kChannels + mine.lane * N;
#pragma unroll
  for (int k = 0; k < N; ++k) {
    tile[place + k] = origin[k] + sums[k] * share;
    tile[kThreads * N + place + k] = squares[k] - sums[k] * sums[k] * share;
  }
  __syncthreads();
  const int thread = static_cast<int>(threadIdx.x);
  const int64_t channel = int64_t{blockIdx.x} * Mine::kChannels + thread;
  if (thread >= Mine::kChannels || channel >= sizes.channels) return;
  float mean = 0, deviations = 0;
  for (int line = 0; line < Mine::kLines; ++line)
    mean += tile[line * Mine::kChannels + thread] * static_cast<float>(mine.count(line));
  mean /= static_cast<float>(mine.end - mine.begin);
  for (int line = 0; line < Mine::kLines; ++line) {
    const float apart = tile[line * Mine::kChannels + thread] - mean;
    deviations +=
        tile[kThreads * N + line * Mine::kChannels + thread] + apart * apart * static_cast<float>(mine.count(line));
  }
  store(parts, (int64_t{blockIdx.y} * 2) * sizes.channels + channel, mean);
  store(parts, (int64_t{blockIdx.y} * 2 + 1) * sizes.channels + channel, deviations);
}

// The sums of two terms of all chunks for each of a block's 32 channels, for the threads of its first line; 32 lines
// add every 32nd chunk's, and a warp has the lines of a channel then.
template <typename Term>
__device__ __forceinline__ void join(int64_t chunks, float (&totals)[2], Term term) {
  constexpr int kPitch = kJoinLines + 1;  // a line and a lane read from 32 banks
  ORTMODULE_SHARED(float, sums, 2 * kWarpSize * kPitch);
  ORTMODULE_SHARED(float, joined, 2 * kWarpSize);
  const int thread = static_cast<int>(threadIdx.x), lane = thread % kWarpSize, line = thread / kWarpSize;
  float mine[2] = {};
#pragma unroll 2
  for (int64_t chunk = line; chunk < chunks; chunk += kJoinLines) term(chunk, mine);
#pragma unroll
  for (int k = 0; k < 2; ++k) sums[(k * kWarpSize + lane) * kPitch + line] = mine[k];
  __syncthreads();
#pragma unroll
  for (int k = 0; k < 2; ++k) {
    const float part = sums[(k * kWarpSize + line) * kPitch + lane], total = reduce_warp<Sum>(part);
    if (lane == 0) joined[k * kWarpSize + line] = total;
  }
  __syncthreads();
#pragma unroll
  for (int k = 0; k < 2; ++k) totals[k] = joined[k * kWarpSize + lane];
}

template <typename P>
struct Statistics {
  Global<const P> scale, bias, running_mean, running_var;
  Global<float> mean, invstd, factor, shift;
  Global<P> new_mean, new_var;
  float epsilon, momentum;
};

template <typename P>
__global__ void __launch_bounds__(kJoinThreads)
    batch_statistics_total(Global<const float> parts, Statistics<P> to, Sizes sizes) {
  const int64_t channel = int64_t{blockIdx.x} * kWarpSize + threadIdx.x % kWarpSize;
  const bool there = channel < sizes.channels;
  const int64_t chunks = (sizes.rows + sizes.chunk - 1) / sizes.chunk;
  const auto rows = [&](int64_t chunk) {
    return static_cast<float>(min(sizes.chunk, sizes.rows - chunk * sizes.chunk));
  };
  const auto part = [&](int64_t chunk, int which) {
    return there ? load(parts, (chunk * 2 + which) * sizes.channels + channel) : 0.0f;
  };
  const float count = static_cast<float>(sizes.rows);
  // Deviations from the first chunk's mean, which is near the mean of all.
  const float origin = part(0, 0);
  float sums[2];
  join(chunks, sums, [&](int64_t chunk, float (&to)[2]) {
    const float apart = part(chunk, 0) - origin, weighted = apart * rows(chunk);
    to[0] += weighted;
    to[1] += part(chunk, 1) + apart * weighted;
  });
  if (!there || threadIdx.x >= kWarpSize) return;
  const float mean = origin + sums[0] / count, difference = sums[1] - sums[0] * (sums[0] / count);
  const float deviations = difference < 0 ? 0.0f : difference;  // NaN stays
  const float variance = deviations / count, invstd = rsqrtf(variance + to.epsilon);
  const float factor = to_float(load(to.scale, channel)) * invstd;
  store(to.mean, channel, mean);
  store(to.invstd, channel, invstd);
  store(to.factor, channel, factor);
  store(to.shift, channel, to_float(load(to.bias, channel)) - mean * factor);
  const auto moved = [&](Global<const P> old, float now) {
    return from_float<P>(to_float(load(old, channel)) * (1 - to.momentum) + now * to.momentum);
  };
  if (to.new_mean) store(to.new_mean, channel, moved(to.running_mean, mean));
  if (to.new_var) store(to.new_var, channel, moved(to.running_var, deviations / (count - 1)));
}

template <typename T>
struct Operands {
  Global<const T> dy, x;
  Global<const float> mean, factor, y_shift;
};

// Sums of dy and of dy * (x - mean).
template <typename T, int N, int kLanes, bool kMasked>
__global__ void __launch_bounds__(kThreads, 3) batch_sums_parts(Operands<T> a, Global<float> parts, Sizes sizes) {
  using Mine = Part<N, kLanes>;
  ORTMODULE_SHARED(float, tile, 2 * kThreads * N);
  const Mine mine(sizes.rows, sizes.chunk);
  float plain[N] = {}, along[N] = {};
  if (mine.channel < sizes.channels) {
    float mean[N], factor[N] = {}, y_shift[N] = {};
    load_floats<N>(a.mean, mine.channel, mean);
    if constexpr (kMasked) {
      load_floats<N>(a.factor, mine.channel, factor);
      load_floats<N>(a.y_shift, mine.channel, y_shift);
    }
#pragma unroll 2
    for (int64_t row = mine.begin + mine.line; row < mine.end; row += Mine::kLines) {
      float x[N], dy[N];
      load_floats<N>(a.x, row * sizes.channels + mine.channel, x);
      load_floats<N>(a.dy, row * sizes.channels + mine.channel, dy);
#pragma unroll
      for (int k = 0; k < N; ++k) {
        const float given = !kMasked || x[k] * factor[k] + y_shift[k] > 0 ? dy[k] : 0.0f;
        plain[k] += given;
        along[k] += given * (x[k] - mean[k]);
      }
    }
  }
  const int place = mine.line * Mine::kChannels + mine.lane * N;
#pragma unroll
  for (int k = 0; k < N; ++k) {
    tile[place + k] = plain[k];
    tile[kThreads * N + place + k] = along[k];
  }
  __syncthreads();
  const int thread = static_cast<int>(threadIdx.x);
  const int64_t channel = int64_t{blockIdx.x} * Mine::kChannels + thread;
  if (thread >= Mine::kChannels || channel >= sizes.channels) return;
  float sums[2] = {};
  for (int line = 0; line < Mine::kLines; ++line) {
    sums[0] += tile[line * Mine::kChannels + thread];
    sums[1] += tile[kThreads * N + line * Mine::kChannels + thread];
  }
  store(parts, (int64_t{blockIdx.y} * 2) * sizes.channels + channel, sums[0]);
  store(parts, (int64_t{blockIdx.y} * 2 + 1) * sizes.channels + channel, sums[1]);
}

template <typename P>
struct Gradients {
  Global<const P> scale;
  Global<const float> mean, invstd;
  Global<P> dscale, dbias;
  Global<float> dy_factor, x_factor, shift;
};

template <typename P>
__global__ void __launch_bounds__(kJoinThreads)
    batch_sums_total(Global<const float> parts, Gradients<P> to, Sizes sizes) {
  const int64_t channel = int64_t{blockIdx.x} * kWarpSize + threadIdx.x % kWarpSize;
  const bool there = channel < sizes.channels;
  const int64_t chunks = (sizes.rows + sizes.chunk - 1) / sizes.chunk;
  float sums[2];
  join(chunks, sums, [&](int64_t chunk, float (&to)[2]) {
#pragma unroll
    for (int which = 0; which < 2; ++which)
      to[which] += there ? load(parts, (chunk * 2 + which) * sizes.channels + channel) : 0.0f;
  });
  const float plain = sums[0], along = sums[1];
  if (!there || threadIdx.x >= kWarpSize) return;
  const float invstd = load(to.invstd, channel), mean = load(to.mean, channel), count = static_cast<float>(sizes.rows);
  const float dy_factor = to_float(load(to.scale, channel)) * invstd;
  const float x_factor = -dy_factor * invstd * invstd * (along / count);
  store(to.dy_factor, channel, dy_factor);
  store(to.x_factor, channel, x_factor);
  store(to.shift, channel, -dy_factor * (plain / count) - x_factor * mean);
  if (to.dscale) store(to.dscale, channel, from_float<P>(along * invstd));
  if (to.dbias) store(to.dbias, channel, from_float<P>(plain));
}

// Calls f(std::integral_constant<int, lanes>()): so many threads have a row's vectors of N.
template <int N, typename F>
int by_lanes(int64_t channels, F f) {
  const int64_t vectors = (channels + N - 1) / N;
  if constexpr (N > 1) {
    if (vectors <= 8) return f(std::integral_constant<int, 8>());
    if (vectors <= 16) return f(std::integral_constant<int, 16>());
  }
  return f(std::integral_constant<int, 32>());
}

Sizes sizes_of(int64_t rows, int64_t channels) {
  const int64_t chunks = batch_chunks(rows, channels);
  return {rows, channels, (rows + chunks - 1) / chunks};
}

dim3 part_blocks(const Sizes& sizes, int64_t tile) {
  return dim3(blocks_for(sizes.channels, tile), blocks_for(sizes.rows, sizes.chunk));
}

template <typename P>
int statistics_total(const BatchStatisticsLaunch& a, const Sizes& sizes, void* stream) {
  const Statistics<P> to{global<const P>(a.scale),
                         global<const P>(a.bias),
                         global<const P>(a.running_mean),
                         global<const P>(a.running_var),
                         global<float>(a.mean),
                         global<float>(a.invstd),
                         global<float>(a.factor),
                         global<float>(a.shift),
                         global<P>(a.new_mean),
                         global<P>(a.new_var),
                         a.epsilon,
                         a.momentum};
  return launch("batch_statistics_total", &batch_statistics_total<P>, blocks_for(sizes.channels, kWarpSize),
                kJoinThreads, stream, global<const float>(a.workspace), to, sizes);
}

int batch_statistics(const BatchStatisticsLaunch& a, void* stream) {
  const Sizes sizes = sizes_of(a.rows, a.channels);
  const int error = by_element(a.type, [&](auto tag) {
    using T = typename decltype(tag)::Type;
    return by_flag(takes_vectors<T>(a.channels, a.x), [&](auto vectors) {
      constexpr int N = vectors() ? kVectorWidth<T> : 1;
      return by_lanes<N>(a.channels, [&](auto lanes) {
        return launch("batch_statistics", &batch_statistics_parts<T, N, lanes()>, part_blocks(sizes, lanes() * N),
                      kThreads, stream, global<const T>(a.x), global<float>(a.workspace), sizes);
      });
    });
  });
  if (error) return error;
  return by_element(a.numbers,
                    [&](auto tag) { return statistics_total<typename decltype(tag)::Type>(a, sizes, stream); });
}

template <typename P>
int sums_total(const BatchSumsLaunch& a, const Sizes& sizes, void* stream) {
  const Gradients<P> to{global<const P>(a.scale),  global<const float>(a.mean), global<const float>(a.invstd),
                        global<P>(a.dscale),       global<P>(a.dbias),          global<float>(a.dy_factor),
                        global<float>(a.x_factor), global<float>(a.shift)};
  return launch("batch_sums_total", &batch_sums_total<P>, blocks_for(sizes.channels, kWarpSize), kJoinThreads, stream,
                global<const float>(a.workspace), to, sizes);
}

int batch_sums(const BatchSumsLaunch& a, void* stream) {
  const Sizes sizes = sizes_of(a.rows, a.channels);
  const int error = by_element(a.type, [&](auto tag) {
    using T = typename decltype(tag)::Type;
    const Operands<T> given{global<const T>(a.dy), global<const T>(a.x), global<const float>(a.mean),
                            global<const float>(a.factor), global<const float>(a.y_shift)};
    return by_flag(takes_vectors<T>(a.channels, a.dy, a.x, a.mean, a.factor, a.y_shift), [&](auto vectors) {
      constexpr int N = vectors() ? kVectorWidth<T> : 1;
      return by_lanes<N>(a.channels, [&](auto lanes) {
        return by_flag(a.factor != nullptr, [&](auto masked) {
          return launch("batch_sums", &batch_sums_parts<T, N, lanes(), masked()>, part_blocks(sizes, lanes() * N),
                        kThreads, stream, given, global<float>(a.workspace), sizes);
        });
      });
    });
  });
  if (error) return error;
  return by_element(a.numbers, [&](auto tag) { return sums_total<typename decltype(tag)::Type>(a, sizes, stream); });
}

}  // namespace

ORTMODULE_CUDA_LAUNCH(batch_statistics, BatchStatisticsLaunch, batch_statistics);
ORTMODULE_CUDA_LAUNCH(batch_sums, BatchSumsLaunch, batch_sums);

}  // namespace ortmodule::cuda
