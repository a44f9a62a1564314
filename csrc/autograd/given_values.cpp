#include "autograd/given_values.h"

#include <ATen/MapAllocator.h>
#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <string_view>

#include "base/status.h"

namespace ortmodule {
namespace {

constexpr size_t kCopiedBytes = size_t{1} << 20;
constexpr size_t kChunk = size_t{1} << 18;         // bytes that one thread sums up at a time
constexpr uint64_t kFactor = 0x9E3779B97F4A7C15u;  // odd, so that a product tells its factor

// Each step can be undone, so that one word that differs makes another lane, whatever follows.
[[gnu::always_inline]] inline uint64_t step(uint64_t sum, uint64_t word) { return std::rotl(sum ^ word, 27) * kFactor; }

// Eight sums beside each other: a product takes three cycles, and one can begin in each.
uint64_t sum_chunk(const char* data, size_t bytes) {
  constexpr size_t kLanes = 8;
  std::array<uint64_t, kLanes> lanes{1, 2, 3, 4, 5, 6, 7, 8};
  size_t at = 0;
  for (; at + 8 * kLanes <= bytes; at += 8 * kLanes) {
    std::array<uint64_t, kLanes> words;
    std::memcpy(words.data(), data + at, 8 * kLanes);
    for (size_t l = 0; l < kLanes; ++l) lanes[l] = step(lanes[l], words[l]);
  }
  for (size_t l = 0; at < bytes; at += 8, l = (l + 1) % kLanes) {
    uint64_t word = 0;
    std::memcpy(&word, data + at, std::min<size_t>(8, bytes - at));
    lanes[l] = step(lanes[l], word);
  }
  uint64_t sum = bytes;
  for (const uint64_t lane : lanes) sum = step(sum, lane);
  return sum;
}

uint64_t tensor_sum(const at::Tensor& t) {
  if (t.numel() == 0) return 0;
  if (t.is_non_overlapping_and_dense()) return content_sum(t.const_data_ptr(), t.nbytes());
  const at::Tensor rows = t.contiguous();
  return content_sum(rows.const_data_ptr(), rows.nbytes());
}

// Whether other processes may write it (share_memory_), of which nobody hears. A file that is mapped has its path.
bool is_shared(const at::Tensor& t) {
  const at::MapAllocator* const mapped = at::MapAllocator::fromDataPtr(t.storage().data_ptr());
  const std::string_view name = mapped ? mapped->filename() : "";
  return mapped && (name.empty() || name.starts_with("/torch_"));
}

bool is_plain(const at::Tensor& t) {
  return t.defined() && t.layout() == at::kStrided && t.is_cpu() && t.has_storage() && !t.is_conj() && !t.is_neg() &&
         !t._is_zerotensor() && !is_shared(t);
}

}  // namespace

uint64_t content_sum(const void* data, size_t bytes) {
  const auto* const begin = static_cast<const char*>(data);
  const auto count = static_cast<int64_t>((bytes + kChunk - 1) / kChunk);
  if (count <= 1) return sum_chunk(begin, bytes);
  std::vector<uint64_t> sums(static_cast<size_t>(count));
  at::parallel_for(0, count, 4, [&](int64_t first, int64_t last) {
    for (int64_t i = first; i < last; ++i) {
      const size_t at = static_cast<size_t>(i) * kChunk;
      sums[static_cast<size_t>(i)] = sum_chunk(begin + at, std::min(kChunk, bytes - at));
    }
  });
  return sum_chunk(reinterpret_cast<const char*>(sums.data()), 8 * sums.size());
}

std::optional<GivenValues> GivenValues::take(const TrainingProgram& program, const std::vector<at::Tensor>& inputs) {
  const at::NoGradGuard no_grad;
  GivenValues given;
  given.program_ = &program;
  given.values_ = inputs;
  std::vector<char> wanted(inputs.size(), false);
  for (size_t i : program.x_inputs) wanted[i] = true;
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (program.input_slots[i] < 0) continue;
    if (!is_plain(inputs[i])) return std::nullopt;
    const at::Tensor value = inputs[i].detach();
    given.values_[i] = value;
    if (!wanted[i] && value.nbytes() <= kCopiedBytes)
      given.values_[i] = value.clone();
    else
      given.watched_.push_back({i, value.numel() ? value.const_data_ptr() : nullptr, tensor_sum(value)});
  }
  return given;
}

std::optional<std::string> GivenValues::change() const {
  const at::NoGradGuard no_grad;
  for (const Value& v : watched_) {
    const at::Tensor& then = values_[v.input];
    if (then.numel() != 0 && (then.const_data_ptr() != v.data || tensor_sum(then) != v.sum))
      return str("'", program_->binding->name(v.input), "' was changed");
  }
  return std::nullopt;
}

std::vector<at::Tensor> GivenValues::read() const {
  std::vector<at::Tensor> read;
  for (const Value& v : watched_) read.push_back(values_[v.input]);
  return read;
}

std::vector<at::Tensor> GivenValues::again() const { return values_; }

}  // namespace ortmodule
