#include "copies.h"

#include <ATen/ExpandUtils.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/copy.h>
#include <ATen/ops/from_blob.h>
#include <c10/util/Exception.h>

#include <array>
#include <atomic>
#include <cstring>
#include <limits>

#include "counts.h"
#include "host_view.h"
#include "memory.h"

namespace guarded {
namespace {

std::array<std::atomic<uint64_t>, 3> counts{};

void count(Way way) {
  if (!OwnWork::going_on()) ++counts[static_cast<size_t>(way)];
}

void poison(const at::Tensor& host) {
  if (host.is_non_overlapping_and_dense()) {
    if (host.numel()) std::memset(host.data_ptr(), kPoison, host.nbytes());
    return;
  }
  const size_t bytes = host.itemsize();
  const at::ScalarType integers = bytes == 1 ? at::kChar : bytes == 2 ? at::kShort : bytes == 4 ? at::kInt : at::kLong;
  if (bytes > sizeof(int64_t))
    loose_view(host).fill_(std::numeric_limits<double>::quiet_NaN());
  else
    at::from_blob(host.data_ptr(), host.sizes(), host.strides(), at::TensorOptions(integers)).fill_(-1);
}

}  // namespace

uint64_t copies(Way way) { return counts[static_cast<size_t>(way)]; }

void reset_copies() {
  for (auto& count : counts) count = 0;
}

at::Tensor copy_from(const at::Tensor& from, const at::Tensor& to, bool non_blocking) {
  TORCH_CHECK(at::is_expandable_to(from.sizes(), to.sizes()), "The size of tensor a ", to.sizes(),
              " must match the size of tensor b ", from.sizes());
  const bool onto_device = !to.is_cpu(), off_device = !from.is_cpu();
  const c10::DeviceIndex device = (onto_device ? to : from).device().index();
  if (!off_device) count(Way::kToDevice);
  if (!onto_device) count(Way::kToHost);
  if (onto_device && off_device && from.device() != to.device()) count(Way::kBetweenDevices);
  count_copy(from, to);
  WorkQueue& queue = current_queue(device);
  if (onto_device != off_device && !non_blocking) {
    synchronize(queue);
    host_view(to).copy_(host_view(from));
    return to;
  }
  throw_kept(device);
  if (!onto_device) poison(to);
  queue.push([from = loose_view(from), to = loose_view(to)] { to.copy_(from); });
  return to;
}

at::Tensor copy_from_and_resize(const at::Tensor& from, const at::Tensor& to) {
  if (to.sizes() != from.sizes()) to.resize_(from.sizes());
  return copy_from(from, to, false);
}

at::Scalar item(const at::Tensor& x) {
  synchronize(current_queue(x.device().index()));
  count_copy(x, x);
  return host_view(x).clone().item();
}

}  // namespace guarded
