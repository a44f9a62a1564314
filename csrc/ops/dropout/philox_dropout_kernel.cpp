// Kernels of RandomState and PhiloxDropout, forward and backward, which are the same map.
//
// "cpu": one pass that reads x, makes the mask in registers and writes y. "aten", for devices without a kernel of
// their own: the mask of a throw-away generator seeded with state and stream, so that backward gets it again.
#include <ATen/Context.h>
#include <ATen/Dispatch.h>
#include <ATen/OpMathType.h>
#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/mul.h>

#include <algorithm>

#include "kernels/kernel_context.h"
#include "kernels/philox.h"
#include "kernels/philox_state.h"
#include "records/kernel_registry.h"

namespace ortmodule {
namespace {

struct Drawing : PhiloxStream {
  uint32_t threshold;
};

// y = x * scale where the element's word is at least the threshold, else x * 0.
template <typename T, typename Opmath>
ORTMODULE_INLINE void apply_words(const uint32_t* words, uint32_t threshold, Opmath scale, const T* x, T* y,
                                  int64_t n) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i)
    y[i] = static_cast<T>(static_cast<Opmath>(x[i]) * (words[i] >= threshold ? scale : Opmath(0)));
}

template <typename T, typename Opmath>
void apply_any(const Drawing& d, Opmath scale, const T* x, T* y, int64_t n, int64_t begin, int64_t end) {
  uint32_t words[kPhiloxBlock];
  for (int64_t b = begin; b < end; ++b) {
    philox_block(d.seed, d.offset, static_cast<uint64_t>(b), words);
    apply_words(words, d.threshold, scale, x + b * kPhiloxBlock, y + b * kPhiloxBlock,
                std::min(kPhiloxBlock, n - b * kPhiloxBlock));
  }
}

#if defined(__x86_64__)
template <typename T, typename Opmath>
ORTMODULE_AVX2 void apply_avx2(const Drawing& d, Opmath scale, const T* x, T* y, int64_t n, int64_t begin,
                               int64_t end) {
  uint32_t words[kPhiloxBlock];
  for (int64_t b = begin; b < end; ++b) {
    philox_block_avx2(d.seed, d.offset, static_cast<uint64_t>(b), words);
    apply_words(words, d.threshold, scale, x + b * kPhiloxBlock, y + b * kPhiloxBlock,
                std::min(kPhiloxBlock, n - b * kPhiloxBlock));
  }
}
#endif

#if defined(__x86_64__)
ORTMODULE_AVX2 void block_avx2(const Drawing& d, int64_t block, uint32_t* words) {
  philox_block_avx2(d.seed, d.offset, static_cast<uint64_t>(block), words);
}
#endif

template <typename T, typename Opmath>
void dropout_blocks(const Drawing& d, Opmath scale, const T* x, T* y, int64_t n, int64_t begin, int64_t end) {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx2")) return apply_avx2(d, scale, x, y, n, begin, end);
#endif
  apply_any(d, scale, x, y, n, begin, end);
}

at::Tensor cpu_apply(const at::Tensor& source, double ratio, const int64_t* state, int64_t stream, bool overwrite) {
  const at::Tensor x = source.contiguous();
  const at::Tensor y = overwrite && source.is_contiguous() ? x : at::empty_like(x);
  const Drawing drawing{philox_stream(state, stream), philox_threshold(ratio)};
  const int64_t n = x.numel(), blocks = (n + kPhiloxBlock - 1) / kPhiloxBlock;
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, x.scalar_type(), "philox_dropout", [&] {
    using opmath_t = at::opmath_type<scalar_t>;
    const auto scale = static_cast<opmath_t>(1.0 / (1.0 - ratio));
    const scalar_t* in = x.const_data_ptr<scalar_t>();
    scalar_t* out = y.mutable_data_ptr<scalar_t>();
    at::parallel_for(0, blocks, 512,
                     [&](int64_t begin, int64_t end) { dropout_blocks(drawing, scale, in, out, n, begin, end); });
  });
  return y;
}

// The elements of `rows` of a whole, of `n` each: element j of row r is number r * n + j.
template <typename T, typename Opmath>
void dropout_rows(const Drawing& d, Opmath scale, const int64_t* rows, int64_t n, const T* x, T* y, int64_t begin,
                  int64_t end) {
  uint32_t words[kPhiloxBlock];
  for (int64_t i = begin; i < end; ++i) {
    const int64_t first = rows[i] * n;
    for (int64_t j = 0; j < n;) {
      const int64_t at = (first + j) % kPhiloxBlock, count = std::min(kPhiloxBlock - at, n - j);
#if defined(__x86_64__)
      if (__builtin_cpu_supports("avx2"))
        block_avx2(d, (first + j) / kPhiloxBlock, words);
      else
#endif
        philox_block(d.seed, d.offset, static_cast<uint64_t>((first + j) / kPhiloxBlock), words);
      apply_words(words + at, d.threshold, scale, x + i * n + j, y + i * n + j, count);
      j += count;
    }
  }
}

at::Tensor cpu_apply_rows(const at::Tensor& source, double ratio, const int64_t* state, int64_t stream,
                          const at::Tensor& rows) {
  const at::Tensor x = source.contiguous(), numbers = rows.contiguous();
  ORTMODULE_CHECK(x.dim() > 0 && numbers.scalar_type() == at::kLong && numbers.numel() == x.size(0), kRuntime,
                  "there should be an int64 number for each of the rows of x ", x.sizes());
  const at::Tensor y = at::empty_like(x);
  const Drawing drawing{philox_stream(state, stream), philox_threshold(ratio)};
  const int64_t count = x.size(0), n = x.numel() / count, grain = std::max<int64_t>(1, 512 * kPhiloxBlock / n);
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, x.scalar_type(), "philox_dropout_rows", [&] {
    using opmath_t = at::opmath_type<scalar_t>;
    const auto scale = static_cast<opmath_t>(1.0 / (1.0 - ratio));
    const auto* numbers_data = numbers.const_data_ptr<int64_t>();
    const scalar_t* in = x.const_data_ptr<scalar_t>();
    scalar_t* out = y.mutable_data_ptr<scalar_t>();
    at::parallel_for(0, count, grain, [&](int64_t begin, int64_t end) {
      dropout_rows(drawing, scale, numbers_data, n, in, out, begin, end);
    });
  });
  return y;
}

at::Tensor generator_apply(const at::Tensor& x, double ratio, const int64_t* state, int64_t stream) {
  at::Generator generator = at::globalContext().defaultGenerator(x.device()).clone();
  generator.set_current_seed(philox_seed(state, stream));
  const at::Tensor mask = at::empty_like(x, at::kBool).bernoulli_(1 - ratio, generator);
  return at::mul(x, mask).mul_(1.0 / (1.0 - ratio));
}

template <bool on_cpu>
at::Tensor apply(KernelContext& c, int64_t stream) {
  const at::Tensor& x = c.in(0);
  const double ratio = c.double_value(1);
  if (ratio == 0 || x.numel() == 0) return x;
  if (ratio == 1) return at::mul(x, 0);
  const auto words = philox_state_words(c.in(2));
  const int64_t* const state = words.data();
  if (c.has(3)) {
    ORTMODULE_CHECK(on_cpu, kUnsupported, "rows of a whole are dropped from on the CPU alone");
    return cpu_apply_rows(x, ratio, state, stream, c.in(3));
  }
  if (on_cpu) return cpu_apply(x, ratio, state, stream, c.may_overwrite(0));
  return generator_apply(x, ratio, state, stream);
}

template <bool on_cpu>
Kernel make(const Node& node) {
  return [stream = node.get_int("stream", 0)](KernelContext& c) { c.out(0, apply<on_cpu>(c, stream)); };
}

}  // namespace

ORTMODULE_KERNEL("ai.ortmodule", RandomState, "aten",
                 [](const Node&) -> Kernel { return [](KernelContext& c) { c.out(0, draw_philox_state()); }; });
ORTMODULE_KERNEL("ai.ortmodule", PhiloxDropout, "aten", make<false>);
ORTMODULE_KERNEL("ai.ortmodule", PhiloxDropout, "cpu", make<true>).inplace();

}  // namespace ortmodule
