// CUDA kernels of Gelu, Silu, QuickGelu, Tanh, Sigmoid and their gradients.
#include "cuda/elementwise.cuh"
#include "ops/elementwise/activation_launch.h"

namespace ortmodule::cuda {
namespace {

constexpr float kRootHalf = 0.70710678118654752f, kRootOf2OverPi = 0.79788456080286536f, kTanhCubic = 0.044715f;
constexpr float kNormalDensity = 0.39894228040143268f;

__device__ __forceinline__ float sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }

template <Activation kind>
struct Value {
  float alpha;
  __device__ __forceinline__ float operator()(float x) const {
    if constexpr (kind == Activation::kGelu) return x * 0.5f * (1.0f + erff(x * kRootHalf));
    if constexpr (kind == Activation::kGeluTanh)
      return 0.5f * x * (1.0f + tanhf(kRootOf2OverPi * (x + kTanhCubic * x * x * x)));
    if constexpr (kind == Activation::kSilu) return x * sigmoid(x);
    if constexpr (kind == Activation::kQuickGelu) return x * sigmoid(alpha * x);
    if constexpr (kind == Activation::kTanh) return tanhf(x);
    if constexpr (kind == Activation::kSigmoid) return sigmoid(x);
  }
};

// dy times the derivative at x; of Tanh and Sigmoid `x` is the output.
template <Activation kind>
struct Gradient {
  float alpha;
  __device__ __forceinline__ float operator()(float dy, float x) const {
    if constexpr (kind == Activation::kGelu)
      return dy * (0.5f * (1.0f + erff(x * kRootHalf)) + x * kNormalDensity * expf(-0.5f * x * x));
    if constexpr (kind == Activation::kGeluTanh) {
      const float t = tanhf(kRootOf2OverPi * (x + kTanhCubic * x * x * x));
      const float slope = kRootOf2OverPi * (1.0f + 3.0f * kTanhCubic * x * x);
      return dy * 0.5f * (1.0f + t + x * (1.0f - t * t) * slope);
    }
    if constexpr (kind == Activation::kSilu || kind == Activation::kQuickGelu) {
      const float scale = kind == Activation::kSilu ? 1.0f : alpha, s = sigmoid(scale * x);
      return dy * s * (1.0f + scale * x * (1.0f - s));
    }
    if constexpr (kind == Activation::kTanh) return dy * (1.0f - x * x);
    if constexpr (kind == Activation::kSigmoid) return dy * x * (1.0f - x);
  }
};

// Calls f(std::integral_constant<Activation, kind>()).
template <typename F>
int by_kind(Activation kind, F f) {
  switch (kind) {
    case Activation::kGelu:
      return f(std::integral_constant<Activation, Activation::kGelu>());
    case Activation::kGeluTanh:
      return f(std::integral_constant<Activation, Activation::kGeluTanh>());
    case Activation::kSilu:
      return f(std::integral_constant<Activation, Activation::kSilu>());
    case Activation::kQuickGelu:
      return f(std::integral_constant<Activation, Activation::kQuickGelu>());
    case Activation::kTanh:
      return f(std::integral_constant<Activation, Activation::kTanh>());
    default:
      return f(std::integral_constant<Activation, Activation::kSigmoid>());
  }
}

int activation(const ActivationLaunch& a, void* stream) {
  return by_kind(a.kind, [&](auto kind) {
    return launch_elementwise<1>("activation", a.type, a.x, nullptr, a.y, a.count, Value<kind()>{a.alpha}, stream);
  });
}

template <typename T, int N, Activation kind>
__global__ void __launch_bounds__(kElementThreads)
    biased_activation(Global<const T> x, Global<const T> bias, Global<T> y, int64_t count, int64_t columns) {
  const int64_t first = (int64_t{blockIdx.x} * kElementThreads + threadIdx.x) * N;
  if (first >= count) return;
  const Value<kind> value{};
  float values[N], added[N];
  load_floats<N>(x, first, values);
  load_floats<N>(bias, first % columns, added);
#pragma unroll
  for (int k = 0; k < N; ++k) values[k] = value(values[k] + added[k]);
  store_floats<N>(y, first, values);
}

template <Activation kind>
int launch_biased(const BiasedActivationLaunch& a, void* stream) {
  return by_element(a.type, [&](auto tag) {
    using T = typename decltype(tag)::Type;
    return by_flag(takes_vectors<T>(a.columns, a.x, a.bias, a.y), [&](auto vectors) {
      constexpr int N = vectors() ? kVectorWidth<T> : 1;
      return launch("biased_activation", &biased_activation<T, N, kind>,
                    blocks_for(a.count, int64_t{kElementThreads} * N), kElementThreads, stream, global<const T>(a.x),
                    global<const T>(a.bias), global<T>(a.y), a.count, a.columns);
    });
  });
}

int biased(const BiasedActivationLaunch& a, void* stream) {
  return a.kind == Activation::kGelu ? launch_biased<Activation::kGelu>(a, stream)
                                     : launch_biased<Activation::kGeluTanh>(a, stream);
}

int gradient(const ActivationGradLaunch& a, void* stream) {
  return by_kind(a.kind, [&](auto kind) {
    return launch_elementwise<2>("activation_gradient", a.type, a.dy, a.saved, a.dx, a.count, Gradient<kind()>{a.alpha},
                                 stream);
  });
}

}  // namespace

ORTMODULE_CUDA_LAUNCH(activation, ActivationLaunch, activation);
ORTMODULE_CUDA_LAUNCH(biased_activation, BiasedActivationLaunch, biased);
ORTMODULE_CUDA_LAUNCH(activation_gradient, ActivationGradLaunch, gradient);

}  // namespace ortmodule::cuda
