// CUDA kernels of optimizers' steps: SGD, Adam and LAMB over lists of parameters, a launch (LAMB: two) for a list.
//
// The formulas and their roundings are those of sgd.cpp, adam.cpp and lamb.cpp, where the numbers come from, so that
// float32 parameters get the CPU's bits (LAMB's norms are summed in another order). A scale of the gradients and
// whether one overflowed are read on the device. Not here: which parameters make a list (device_step.cpp).
#include "cuda/reduce.cuh"
#include "cuda/tensor_list.cuh"
#include "kernels/optimizer/step_launch.h"

namespace ortmodule::cuda {
namespace {

constexpr int kMost = 64;

template <typename P, typename G, int kStates>
struct Addresses {
  Global<P> parameters[kMost];
  Global<G> gradients[kMost];
  Global<uint16_t> copies[kMost];
  Global<P> states[kStates][kMost];
};

// What is asked before anything is written.
struct Before {
  Global<const float> divisor, found_inf;
  bool written, half_copies;

  explicit Before(const StepLists& lists)
      : divisor(global<const float>(lists.divisor)),
        found_inf(global<const float>(lists.found_inf)),
        written(lists.written),
        half_copies(lists.copy_type == Element::kHalf) {}
  __device__ __forceinline__ bool skips() const { return found_inf && load(found_inf, 0) != 0.0f; }
};

#ifdef __CUDACC__
template <typename Rule>
constexpr bool kFits =
    sizeof(ListBlocks<kMost>) + sizeof(Addresses<float, float, Rule::kStates>) + sizeof(Rule) + sizeof(Before) <= 4096;
#else
template <typename Rule>
constexpr bool kFits = true;
#endif

template <typename P>
__device__ __forceinline__ float as_kept(float x) {
  return to_float(from_float<P>(x));
}

// Not in cuda/elements.cuh, which NVRTC compiles with words of its own for these types (cuda/nvrtc_words.h).
#ifdef __CUDACC__
__device__ __forceinline__ uint16_t bits_of(Half x) { return __half_as_ushort(x); }
__device__ __forceinline__ uint16_t bits_of(BFloat16 x) { return __bfloat16_as_ushort(x); }
#else
inline uint16_t bits_of(Half x) { return x.bits; }
inline uint16_t bits_of(BFloat16 x) { return x.bits; }
#endif

template <int N>
__device__ __forceinline__ void store_copy(Global<uint16_t> to, int64_t i, const float (&from)[N], bool half) {
  Vector<uint16_t, N> words;
#pragma unroll
  for (int k = 0; k < N; ++k) words.at[k] = half ? bits_of(to_half(from[k])) : bits_of(to_bfloat16(from[k]));
  store_vector<N>(to, i, words);
}

// The gradients, over the divisor.
template <int N, typename G>
__device__ __forceinline__ void load_gradient(Global<G> from, int64_t i, const Before& before, float (&to)[N]) {
  load_floats<N>(from, i, to);
  if (!before.divisor) return;
  const float divisor = load(before.divisor, 0);
#pragma unroll
  for (int k = 0; k < N; ++k) to[k] = to[k] / divisor;
  if (before.written) store_floats<N>(from, i, to);
}

template <typename P, int N>
__device__ __forceinline__ void store_parameter(Global<P> to, Global<uint16_t> copy, int64_t i, const float (&from)[N],
                                                const Before& before) {
  store_floats<N>(to, i, from);
  if constexpr (std::is_same_v<P, float>) {
    if (copy) store_copy<N>(copy, i, from, before.half_copies);
  }
}

// --- rules whose elements change by themselves
// ------------------------------------------------------------------------

struct Sgd {
  static constexpr int kStates = 1;
  SgdNumbers n;

  __device__ __forceinline__ Sgd of_tensor(int) const { return *this; }
  __device__ __forceinline__ float moved(float p, float g, float (&states)[kStates]) const {
    g = __fmul_rn(g, n.factor);
    if (n.decay != 0.0f) g = fmaf(n.decay, p, g);
    if (n.momentum != 0.0f) {
      const float kept = n.first ? g : fmaf(n.rest, g, __fmul_rn(states[0], n.momentum));
      states[0] = kept;
      g = n.nesterov ? fmaf(n.momentum, kept, g) : kept;
    }
    return fmaf(n.rate, g, p);
  }
};

__device__ __forceinline__ void move_moments(const MomentNumbers& n, float p, float g, float& first, float& second) {
  g = __fmul_rn(g, n.factor);
  if (n.l2 != 0.0f) g = fmaf(n.l2, p, g);
  const float way = __fadd_rn(g, -first);
  first = n.weight1 < 0.5f ? fmaf(n.weight1, way, first) : fmaf(-way, n.rest1, g);
  second = fmaf(__fmul_rn(n.weight2, g), g, __fmul_rn(second, n.beta2));
}

struct Adam {
  static constexpr int kStates = 3;
  AdamNumbers n;
  Global<const float> corrections;
  bool amsgrad;

  __device__ __forceinline__ Adam of_tensor(int tensor) const {
    Adam own = *this;
    if (corrections) {
      own.n.divisor = load(corrections, 2 * tensor);
      own.n.length = load(corrections, 2 * tensor + 1);
    }
    return own;
  }
  __device__ __forceinline__ float moved(float p, float g, float (&states)[kStates]) const {
    move_moments(n.moments, p, g, states[0], states[1]);
    float seen = states[1];
    if (amsgrad) {  // as at::maximum: NaN where either is
      if (!(seen > states[2]) && seen == seen) seen = states[2];
      states[2] = seen;
    }
    const float below = __fadd_rn(sqrtf(seen) / n.divisor, n.epsilon);
    const float next = __fadd_rn(__fmul_rn(p, n.before), __fmul_rn(n.length, states[0]) / below);
    return n.after != 0.0f ? fmaf(n.after, next, next) : next;
  }
};

template <typename P, typename G, typename Rule>
struct Moved {
  Global<P> parameter;
  Global<G> gradient;
  Global<uint16_t> copy;
  Global<P> states[Rule::kStates];
  const Rule& rule;
  const Before& before;

  template <int N>
  __device__ __forceinline__ void at(int64_t i) const {
    float p[N], g[N], kept[Rule::kStates][N] = {};
    load_floats<N>(parameter, i, p);
#pragma unroll
    for (int s = 0; s < Rule::kStates; ++s)
      if (states[s]) load_floats<N>(states[s], i, kept[s]);
    load_gradient<N>(gradient, i, before, g);
#pragma unroll
    for (int k = 0; k < N; ++k) {
      float own[Rule::kStates];
#pragma unroll
      for (int s = 0; s < Rule::kStates; ++s) own[s] = kept[s][k];
      p[k] = rule.moved(p[k], g[k], own);
#pragma unroll
      for (int s = 0; s < Rule::kStates; ++s) kept[s][k] = own[s];
    }
#pragma unroll
    for (int s = 0; s < Rule::kStates; ++s)
      if (states[s]) store_floats<N>(states[s], i, kept[s]);
    store_parameter<P, N>(parameter, copy, i, p, before);
  }
};

template <typename P, typename G, typename Rule, int N>
__global__ void __launch_bounds__(kListThreads)
    step(ListBlocks<kMost> blocks, Addresses<P, G, Rule::kStates> a, Rule rule, Before before) {
  static_assert(kFits<Rule>, "a kernel's parameters have 4 KB");
  if (before.skips()) return;
  const int tensor = blocks.tensor();
  const Rule own = rule.of_tensor(tensor);
  Moved<P, G, Rule> work{a.parameters[tensor], a.gradients[tensor], a.copies[tensor], {}, own, before};
#pragma unroll
  for (int s = 0; s < Rule::kStates; ++s) work.states[s] = a.states[s][tensor];
  for_each_of_chunk<N>(blocks, tensor, work);
}

// --- LAMB: its norms are of whole tensors
// -----------------------------------------------------------------------------

struct Lamb {
  static constexpr int kStates = 2;
  LambNumbers n;
  Global<const float> corrections;
  Global<float> parts;  // of a block, the squares of its parameters and of their directions
  int64_t chunk;

  __device__ __forceinline__ Lamb of_tensor(int tensor) const {
    Lamb own = *this;
    if (corrections) {
      own.n.scale1 = load(corrections, 2 * tensor);
      own.n.scale2 = load(corrections, 2 * tensor + 1);
    }
    return own;
  }
  __device__ __forceinline__ float direction(float p, float first, float second) const {
    const float below = __fadd_rn(sqrtf(__fmul_rn(second, n.scale2)), n.epsilon);
    return fmaf(n.decay, p, __fmul_rn(first, n.scale1) / below);
  }
};

template <typename P, typename G>
struct Moments {
  Global<P> parameter;
  Global<G> gradient;
  Global<P> first, second;
  const Lamb& rule;
  const Before& before;
  float (&sums)[2];

  template <int N>
  __device__ __forceinline__ void at(int64_t i) const {
    float p[N], g[N], m[N], v[N];
    load_floats<N>(parameter, i, p);
    load_floats<N>(first, i, m);
    load_floats<N>(second, i, v);
    load_gradient<N>(gradient, i, before, g);
#pragma unroll
    for (int k = 0; k < N; ++k) move_moments(rule.n.moments, p[k], g[k], m[k], v[k]);
    store_floats<N>(first, i, m);
    store_floats<N>(second, i, v);
#pragma unroll
    for (int k = 0; k < N; ++k) {  // of the states as they are kept
      const float way = rule.direction(p[k], as_kept<P>(m[k]), as_kept<P>(v[k]));
      sums[0] = fmaf(p[k], p[k], sums[0]);
      sums[1] = fmaf(way, way, sums[1]);
    }
  }
};

template <typename P, typename G, int N>
__global__ void __launch_bounds__(kListThreads)
    lamb_moments(ListBlocks<kMost> blocks, Addresses<P, G, 2> a, Lamb rule, Before before) {
  static_assert(kFits<Lamb>, "a kernel's parameters have 4 KB");
  if (before.skips()) return;
  const int tensor = blocks.tensor();
  const Lamb own = rule.of_tensor(tensor);
  float sums[2] = {};
  const Moments<P, G> work{
      a.parameters[tensor], a.gradients[tensor], a.states[0][tensor], a.states[1][tensor], own, before, sums};
  for_each_of_chunk<N>(blocks, tensor, work, rule.chunk);
  Team<kListThreads>::reduce<Sum>(sums);
  if (threadIdx.x != 0) return;
  store(rule.parts, 2 * int64_t{blockIdx.x}, sums[0]);
  store(rule.parts, 2 * int64_t{blockIdx.x} + 1, sums[1]);
}

template <typename P>
struct Step {
  Global<P> parameter, first, second;
  Global<uint16_t> copy;
  const Lamb& rule;
  const Before& before;
  float rate;

  template <int N>
  __device__ __forceinline__ void at(int64_t i) const {
    float p[N], m[N], v[N];
    load_floats<N>(parameter, i, p);
    load_floats<N>(first, i, m);
    load_floats<N>(second, i, v);
#pragma unroll
    for (int k = 0; k < N; ++k) p[k] = fmaf(rate, rule.direction(p[k], m[k], v[k]), p[k]);
    store_parameter<P, N>(parameter, copy, i, p, before);
  }
};

// |w| / |d| of the tensor that has these blocks, within its bounds.
__device__ __forceinline__ double trust_ratio(const Lamb& rule, int first, int blocks) {
  double sums[2] = {};
  for (int b = static_cast<int>(threadIdx.x); b < blocks; b += kListThreads) {
    sums[0] += load(rule.parts, 2 * (int64_t{first} + b));
    sums[1] += load(rule.parts, 2 * (int64_t{first} + b) + 1);
  }
  Team<kListThreads>::reduce<Sum>(sums);
  if (!(sums[0] > 0.0 && sums[1] > 0.0)) return 1.0;
  const double ratio = sqrt(sums[0]) / sqrt(sums[1]);
  return ratio < rule.n.ratio_min ? rule.n.ratio_min : ratio > rule.n.ratio_max ? rule.n.ratio_max : ratio;
}

// Four blocks at once: left to itself, ptxas takes 32 registers for eight and spills.
template <typename P, typename G, int N>
__global__ void __launch_bounds__(kListThreads, 4)
    lamb_step(ListBlocks<kMost> blocks, Addresses<P, G, 2> a, Lamb rule, Before before) {
  if (before.skips()) return;
  const int tensor = blocks.tensor();
  const Lamb own = rule.of_tensor(tensor);
  const int64_t count = (blocks.counts[tensor] + rule.chunk - 1) / rule.chunk;
  const double ratio = trust_ratio(own, blocks.first_blocks[tensor], static_cast<int>(count));
  const Step<P> work{a.parameters[tensor],
                     a.states[0][tensor],
                     a.states[1][tensor],
                     a.copies[tensor],
                     own,
                     before,
                     static_cast<float>(rule.n.rate * ratio)};
  for_each_of_chunk<N>(blocks, tensor, work, rule.chunk);
}

// --- steps that the device counts
// -------------------------------------------------------------------------------------

constexpr int kMostSteps = 256;

struct Steps {
  Global<float> at[kMostSteps];
};

__global__ void __launch_bounds__(kMostSteps)
    advance_steps(Steps steps, int count, Global<const float> found_inf, Global<float> corrections, double rate,
                  double beta1, double beta2, int decay, bool correct_bias) {
  const int i = static_cast<int>(threadIdx.x);
  if (i >= count) return;
  float now = load(steps.at[i], 0);
  if (!(found_inf && load(found_inf, 0) != 0.0f)) store(steps.at[i], 0, now += 1.0f);
  const double first = correct_bias ? 1.0 - pow(beta1, static_cast<double>(now)) : 1.0;
  const double second = correct_bias ? 1.0 - pow(beta2, static_cast<double>(now)) : 1.0;
  double made[2] = {1.0 / first, 1.0 / second};
  if (decay != kLambCorrections) {
    made[0] = decay == 2 ? 1.0 : sqrt(second);
    made[1] = -(decay == 2 ? rate * sqrt(second) / first : rate / first);
  }
  store(corrections, 2 * i, static_cast<float>(made[0]));
  store(corrections, 2 * i + 1, static_cast<float>(made[1]));
}

// --- lists
// ------------------------------------------------------------------------------------------------------------

// Calls f(tag of the parameters' type, tag of the gradients').
template <typename F>
int by_types(const StepLists& lists, F f) {
  if (lists.parameter_type == Element::kHalf) return f(TypeTag<Half>(), TypeTag<Half>());
  if (lists.parameter_type == Element::kBFloat16) return f(TypeTag<BFloat16>(), TypeTag<BFloat16>());
  return by_element(lists.gradient_type, [&](auto gradient) { return f(TypeTag<float>(), gradient); });
}

bool all_aligned(const StepLists& lists) {
  bool aligned = true;
  for (int64_t i = 0; i < lists.tensors; ++i) {
    aligned = aligned && takes_vectors<float>(0, lists.parameters[i], lists.gradients[i], lists.copies[i]);
    for (void* const* states : lists.states) aligned = aligned && takes_vectors<float>(0, states ? states[i] : nullptr);
  }
  return aligned;
}

// Calls run(width, blocks, block count, addresses, number of the list's first tensor) for each list. `chunk`: 0 for the
// usual one.
template <typename P, typename G, int kStates, typename Run>
int run_lists(const StepLists& lists, int64_t chunk, Run run) {
  return by_flag(all_aligned(lists), [&](auto vectors) {
    constexpr int N = vectors() ? kVectorWidth<P> : 1;
    Addresses<P, G, kStates> addresses{};
    int64_t first = 0;
    const auto add = [&](int place, int64_t tensor) {
      if (place == 0) first = tensor;
      addresses.parameters[place] = global<P>(lists.parameters[tensor]);
      addresses.gradients[place] = global<G>(lists.gradients[tensor]);
      addresses.copies[place] = global<uint16_t>(lists.copies[tensor]);
      for (int s = 0; s < kStates; ++s)
        addresses.states[s][place] = global<P>(lists.states[s] ? lists.states[s][tensor] : nullptr);
    };
    return launch_lists<N, kMost>(
        lists.tensors, lists.elements, add,
        [&](const ListBlocks<kMost>& blocks, unsigned count) {
          return run(std::integral_constant<int, N>(), blocks, count, addresses, first);
        },
        chunk ? chunk : kListChunk<N>);
  });
}

template <typename Rule>
int run_rule(const char* name, const StepLists& lists, const float* corrections, Rule rule, void* stream) {
  return by_types(lists, [&](auto p, auto g) {
    using P = typename decltype(p)::Type;
    using G = typename decltype(g)::Type;
    return run_lists<P, G, Rule::kStates>(
        lists, 0,
        [&](auto width, const ListBlocks<kMost>& blocks, unsigned count, const auto& addresses, int64_t first) {
          if constexpr (!std::is_same_v<Rule, Sgd>)
            rule.corrections = global<const float>(corrections ? corrections + 2 * first : nullptr);
          return launch(name, &step<P, G, Rule, width()>, count, kListThreads, stream, blocks, addresses, rule,
                        Before(lists));
        });
  });
}

int run_sgd(const SgdLaunch& a, void* stream) { return run_rule("sgd_step", a.lists, nullptr, Sgd{a.numbers}, stream); }

int run_adam(const AdamLaunch& a, void* stream) {
  return run_rule("adam_step", a.lists, a.corrections, Adam{a.numbers, {}, a.lists.states[2] != nullptr}, stream);
}

int run_lamb(const LambLaunch& a, void* stream) {
  int64_t largest = 0;
  for (int64_t i = 0; i < a.lists.tensors; ++i) largest = std::max(largest, a.lists.elements[i]);
  Lamb rule{a.numbers, {}, global<float>(a.parts), lamb_chunk(largest)};
  return by_types(a.lists, [&](auto p, auto g) {
    using P = typename decltype(p)::Type;
    using G = typename decltype(g)::Type;
    return run_lists<P, G, 2>(
        a.lists, rule.chunk,
        [&](auto width, const ListBlocks<kMost>& blocks, unsigned count, const auto& addresses, int64_t first) {
          rule.corrections = global<const float>(a.corrections ? a.corrections + 2 * first : nullptr);
          if (const int error = launch("lamb_moments", &lamb_moments<P, G, width()>, count, kListThreads, stream,
                                       blocks, addresses, rule, Before(a.lists)))
            return error;
          return launch("lamb_step", &lamb_step<P, G, width()>, count, kListThreads, stream, blocks, addresses, rule,
                        Before(a.lists));
        });
  });
}

int run_steps(const StepsLaunch& a, void* stream) {
  for (int64_t first = 0; first < a.tensors; first += kMostSteps) {
    const int count = static_cast<int>(std::min<int64_t>(a.tensors - first, kMostSteps));
    Steps steps{};
    for (int i = 0; i < count; ++i) steps.at[i] = global<float>(a.steps[first + i]);
    if (const int error = launch("advance_steps", &advance_steps, 1, kMostSteps, stream, steps, count,
                                 global<const float>(a.found_inf), global<float>(a.corrections + 2 * first), a.rate,
                                 a.beta1, a.beta2, a.decay, a.correct_bias))
      return error;
  }
  return 0;
}

}  // namespace

ORTMODULE_CUDA_LAUNCH(sgd_step, SgdLaunch, run_sgd);
ORTMODULE_CUDA_LAUNCH(adam_step, AdamLaunch, run_adam);
ORTMODULE_CUDA_LAUNCH(lamb_step, LambLaunch, run_lamb);
ORTMODULE_CUDA_LAUNCH(advance_steps, StepsLaunch, run_steps);

}  // namespace ortmodule::cuda
