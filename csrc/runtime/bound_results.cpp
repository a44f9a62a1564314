#include "runtime/bound_results.h"

#include <ATen/core/grad_mode.h>
#include <c10/core/ScalarType.h>

#include <algorithm>
#include <utility>

#include "base/container_type.h"
#include "base/status.h"
#include "kernels/aten_bridge.h"
#include "kernels/materialized.h"
#include "kernels/sequence_value.h"
#include "runtime/result_memory.h"

namespace ortmodule {
namespace {

// The bytes that a tensor's elements lie in; empty where it has none on the host.
struct Extent {
  const char *begin = nullptr, *end = nullptr;

  explicit Extent(const at::Tensor& t) {
    if (!t.defined() || !t.is_cpu() || t.layout() != at::kStrided || !t.has_storage() || t.numel() == 0) return;
    int64_t last = 0;
    for (int64_t i = 0; i < t.dim(); ++i) last += (t.size(i) - 1) * t.stride(i);
    begin = static_cast<const char*>(t.const_data_ptr());
    end = begin + (last + 1) * static_cast<int64_t>(t.itemsize());
  }
  bool meets(const Extent& other) const { return begin < other.end && other.begin < end; }
};

void add_extents(const at::Tensor& value, std::vector<Extent>& to) {
  if (value.defined() && holds_sequence(value))
    for (const at::Tensor& element : sequence_elements(value)) to.emplace_back(element);
  else
    to.emplace_back(value);
}

bool fits(const at::Tensor& buffer, const at::Tensor& result) {
  return result.defined() && result.has_storage() && buffer.sizes() == result.sizes() &&
         buffer.scalar_type() == result.scalar_type();
}

// Whether a result of this type may lie in the buffer, as far as that is known before the run.
bool may_hold(const at::Tensor& buffer, const TypeInfo& type, const SymbolTable& symbols) {
  if (is_container(type.dtype) || type.dtype == DType::kUndefined || type.dtype == DType::kString) return false;
  if (!buffer.is_cpu() || buffer.layout() != at::kStrided || !buffer.is_contiguous() || buffer.is_conj() ||
      buffer.is_neg() || buffer.nbytes() < CpuAllocationScope::kMinimumBytes ||
      buffer.scalar_type() != to_scalar_type(type.dtype))
    return false;
  if (!type.shape) return true;
  if (type.shape->size() != static_cast<size_t>(buffer.dim())) return false;
  for (size_t i = 0; i < type.shape->size(); ++i) {
    const Dim& dim = (*type.shape)[i];
    std::vector<std::string> needed;
    dim.collect_symbols(needed);
    if (std::any_of(needed.begin(), needed.end(), [&](const auto& name) { return !symbols.count(name); })) continue;
    if (dim.evaluate(symbols) != buffer.size(static_cast<int64_t>(i))) return false;
  }
  return true;
}

}  // namespace

std::optional<ResultPlaces::Place> ResultPlaces::find(size_t output) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return places_[output];
}

void ResultPlaces::note(size_t output, std::optional<Place> place) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (!kept_[output]) places_[output] = std::move(place);
}

void ResultPlaces::refuse(size_t output) {
  const std::lock_guard<std::mutex> lock(mutex_);
  kept_[output] = 1;
  places_[output].reset();
}

std::shared_ptr<BoundResults> BoundResults::make(const ResultBuffers& results, const std::vector<TypeInfo>& types,
                                                 const SymbolTable& symbols, const std::vector<at::Tensor>& inputs,
                                                 ResultPlaces& places) {
  std::vector<Extent> read, written;
  for (const at::Tensor& value : inputs) add_extents(value, read);
  for (const at::Tensor& buffer : results.buffers) written.emplace_back(buffer);
  const auto is_alone = [&](size_t i) {
    const auto meets = [&](const Extent& other) { return written[i].meets(other); };
    return std::none_of(read.begin(), read.end(), meets) &&
           std::count_if(written.begin(), written.end(), meets) == 1;  // itself
  };
  auto made = std::make_shared<BoundResults>();
  made->places_ = &places;
  for (size_t i = 0; i < results.buffers.size(); ++i) {
    const at::Tensor& buffer = results.buffers[i];
    if (!buffer.defined() || !may_hold(buffer, types[i], symbols) || !is_alone(i)) continue;
    std::optional<ResultPlaces::Place> place = places.find(i);
    if (place && c10::IntArrayRef(place->sizes) != buffer.sizes()) place.reset();
    made->bound_.push_back({i, buffer, std::move(place)});
  }
  return made->bound_.empty() ? nullptr : made;
}

void BoundResults::add_to(std::vector<int64_t>& key) const {
  for (const Bound& one : bound_)
    if (one.place) key.push_back(static_cast<int64_t>(one.output));
}

CpuAllocationServer::Answer BoundResults::allocate(size_t bytes) {
  const uint32_t allocation = allocation_++;
  Block block{nullptr, bytes, step_, allocation};
  bool noted = false;  // whether it may be a result
  for (Bound& one : bound_) {
    if (one.buffer.nbytes() != bytes || !may_place_) continue;
    noted = true;
    if (!one.place || one.served || one.place->step != step_ || one.place->allocation != allocation) continue;
    one.served = true;
    block.data = one.buffer.data_ptr();
    block.bound = &one;
    const std::lock_guard<std::mutex> lock(mutex_);
    blocks_.push_back(block);
    return {block.data, true, static_cast<uint32_t>(blocks_.size() - 1)};
  }
  const Answer answer = next_ ? next_->allocate(bytes) : Answer();
  if (!answer.data && !answer.watch && !noted) return answer;
  block.data = answer.data;
  block.known = answer.data || answer.watch;
  block.tag = answer.tag;
  const std::lock_guard<std::mutex> lock(mutex_);
  blocks_.push_back(block);
  return {answer.data, true, static_cast<uint32_t>(blocks_.size() - 1)};
}

void BoundResults::placed(void* data, uint32_t tag) noexcept {
  const std::lock_guard<std::mutex> lock(mutex_);
  blocks_[tag].data = data;
}

void BoundResults::freed(void* data, bool own, uint32_t tag) noexcept {
  Block block;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    block = blocks_[tag];
    blocks_[tag].data = nullptr;
    if (block.bound) block.bound->gone = true;
  }
  if (block.known) next_->freed(data, own, block.tag);
}

void BoundResults::take(std::vector<at::Tensor>& outputs, const std::vector<at::Tensor>& buffers) {
  for (Bound& one : bound_) {
    at::Tensor& result = outputs[one.output];
    if (!one.served || !fits(one.buffer, result) || !result.is_contiguous() ||
        result.const_data_ptr() != one.buffer.const_data_ptr())
      continue;
    for (size_t i = 0; i < outputs.size(); ++i)
      if (!buffers[i].defined() && memory_of(outputs[i]) == memory_of(result)) outputs[i] = outputs[i].detach().clone();
    result = one.buffer;
    result.unsafeGetTensorImpl()->bump_version();
    one.taken = true;
  }
}

void BoundResults::learn(const std::vector<at::Tensor>& outputs) {
  const std::lock_guard<std::mutex> lock(mutex_);
  for (const Bound& one : bound_) {
    if (one.taken) continue;
    const at::Tensor& result = outputs[one.output];
    std::optional<ResultPlaces::Place> place;
    if (fits(one.buffer, result) && result.is_contiguous() && !one.served)
      for (const Block& block : blocks_)
        if (block.data && block.data == result.const_data_ptr() && block.bytes == result.nbytes() && !block.bound)
          place = {block.step, block.allocation, one.buffer.sizes().vec()};
    places_->note(one.output, std::move(place));
  }
}

void BoundResults::close() {
  const std::lock_guard<std::mutex> lock(mutex_);
  for (const Bound& one : bound_)
    if (one.served && !one.gone) places_->refuse(one.output);
}

namespace {

// Whether `buffer` is written while `other`, which is to be copied elsewhere, is still to be read from there.
bool harms(const at::Tensor& buffer, const at::Tensor& other) {
  const Extent written(buffer), read(other);
  return written.meets(read);
}

void set_others_apart(std::vector<at::Tensor>& outputs, const std::vector<at::Tensor>& buffers) {
  std::vector<at::Tensor> others;
  for (size_t i = 0; i < outputs.size(); ++i)
    if (!buffers[i].defined()) others.push_back(std::move(outputs[i]));
  set_results_apart(others, others.size(), {});
  size_t next = 0;
  for (size_t i = 0; i < outputs.size(); ++i)
    if (!buffers[i].defined()) outputs[i] = std::move(others[next++]);
}

}  // namespace

void place_results(std::vector<at::Tensor>& outputs, ResultBuffers& results, BoundResults* bound,
                   const std::vector<std::string>& names) {
  const at::NoGradGuard no_grad;
  const std::vector<at::Tensor>& buffers = results.buffers;
  results.copied.assign(outputs.size(), 0);
  for (size_t i = 0; i < outputs.size(); ++i) {
    const at::Tensor &buffer = buffers[i], &result = outputs[i];
    if (!buffer.defined() || fits(buffer, result)) continue;
    const bool tensor = result.defined() && result.has_storage();
    fail(ErrorCode::kInvalidArgument, "the buffer of the output '", names[i], "' is of ",
         c10::getDtypeNames(buffer.scalar_type()).first, " and shape ", buffer.sizes(), ", the result ",
         tensor ? ::ortmodule::str("of ", c10::getDtypeNames(result.scalar_type()).first, " and ", result.sizes())
                : std::string("no tensor"));
  }
  if (bound) bound->take(outputs, buffers);
  if (bound) bound->learn(outputs);
  set_others_apart(outputs, buffers);
  for (size_t i = 0; i < outputs.size(); ++i)
    results.copied[i] = buffers[i].defined() && !outputs[i].is_same(buffers[i]);
  for (size_t i = 0; i < outputs.size(); ++i)
    for (size_t j = 0; j < outputs.size() && results.copied[i]; ++j)
      if (results.copied[j] && harms(buffers[i], outputs[j])) outputs[j] = outputs[j].detach().clone();
  for (size_t i = 0; i < outputs.size(); ++i) {
    if (!results.copied[i]) continue;
    at::Tensor buffer = buffers[i];
    outputs[i] = buffer.copy_(outputs[i]);
  }
  if (bound) bound->close();
}

}  // namespace ortmodule
