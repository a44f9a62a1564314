// How counter-based dropout draws: a state of two words per run (Note [Random state]), a stream of it per node, and the
// threshold that a ratio means.
#pragma once

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <mutex>

#include "base/status.h"
#include "kernels/drawn_state.h"

namespace ortmodule {

// int64[2], seed and offset, from torch's default CPU generator, so that torch.manual_seed governs every device without
// a transfer.
inline at::Tensor draw_philox_state() {
  const at::Tensor state = at::empty({2}, at::kLong);
  auto* words = state.mutable_data_ptr<int64_t>();
  DrawnState::Words* const known = DrawnState::current();
  if (known && *known) {
    std::copy((*known)->begin(), (*known)->end(), words);
    return state;
  }
  at::Generator generator = at::detail::getDefaultCPUGenerator();
  std::lock_guard<std::mutex> lock(generator.mutex());
  auto* impl = at::check_generator<at::CPUGeneratorImpl>(generator);
  for (int i = 0; i < 2; ++i) words[i] = static_cast<int64_t>(impl->random64());
  if (known) *known = {words[0], words[1]};
  return state;
}

// The two words of a state that an operator was given, which a graph may make of anything.
inline std::array<int64_t, 2> philox_state_words(const at::Tensor& state) {
  ORTMODULE_CHECK(
      state.defined() && state.is_cpu() && state.scalar_type() == at::kLong && state.dim() == 1 && state.size(0) == 2,
      kRuntime, "the random state should be int64[2]");
  const auto* const words = state.const_data_ptr<int64_t>();
  return {words[0], words[state.stride(0)]};
}

struct PhiloxStream {
  uint64_t seed, offset;
};

// Streams of one state are disjoint: the offset is the upper half of the counter.
inline PhiloxStream philox_stream(const int64_t* state, int64_t stream) {
  return {static_cast<uint64_t>(state[0]), static_cast<uint64_t>(state[1]) + static_cast<uint64_t>(stream)};
}

// A seed for a generator that stands in for a stream, where a device has no kernel of ours.
inline uint64_t philox_seed(const int64_t* state, int64_t stream) {
  return static_cast<uint64_t>(state[0]) ^ (static_cast<uint64_t>(stream) * 0x9E3779B97F4A7C15u);
}

// P(word < threshold) is the ratio to within 2^-32; a ratio of 1 is the caller's.
inline uint32_t philox_threshold(double ratio) {
  return static_cast<uint32_t>(std::min(std::llround(ratio * 4294967296.0), 4294967295LL));
}

}  // namespace ortmodule
