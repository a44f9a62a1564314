#include "kernels/optimizer/device_step.h"

#include <ATen/ops/empty.h>
#include <c10/core/DeviceGuard.h>

#include <map>
#include <tuple>

#include "base/status.h"
#include "cuda/tables.h"
#include "kernels/cuda_kernel.h"

namespace ortmodule {
namespace {

at::ScalarType type_of(const at::Tensor& t, at::ScalarType other) { return t.defined() ? t.scalar_type() : other; }

bool is_aligned(const at::Tensor& t) {
  return !t.defined() || reinterpret_cast<uintptr_t>(t.const_data_ptr()) % 16 == 0;
}

// Parameters that one launch takes together: of one group, step and types; aligned ones by themselves, which are read
// 16 bytes at a time.
using Together = std::tuple<const UpdateGroup*, double, at::ScalarType, at::ScalarType, at::ScalarType, bool>;

Together together(const Prepared& p) {
  const Updated& t = p.tensors;
  bool aligned = is_aligned(t.parameter) && is_aligned(t.gradient) && is_aligned(t.copy);
  for (const at::Tensor& state : t.states) aligned = aligned && is_aligned(state);
  return {p.group,
          p.steps_on_device ? -1.0 : p.step,
          t.parameter.scalar_type(),
          t.gradient.scalar_type(),
          type_of(t.copy, at::kBFloat16),
          aligned};
}

// The arrays of a launch.
class Lists {
 public:
  Lists(const std::vector<const Prepared*>& parameters, const at::Tensor& divisor, const at::Tensor& found_inf,
        bool written) {
    for (const Prepared* p : parameters) {
      elements_.push_back(p->size);
      parameters_.push_back(mutable_address(p->tensors.parameter));
      gradients_.push_back(mutable_address(p->tensors.gradient));
      copies_.push_back(mutable_address(p->tensors.copy));
      for (size_t s = 0; s < kMostStates; ++s) states_[s].push_back(mutable_address(p->tensors.states[s]));
    }
    const Updated& first = parameters.front()->tensors;
    launch_ = {*cuda_element(first.parameter),
               *cuda_element(first.gradient),
               *cuda_element(type_of(first.copy, at::kBFloat16)),
               static_cast<int64_t>(parameters.size()),
               elements_.data(),
               parameters_.data(),
               gradients_.data(),
               copies_.data(),
               {},
               static_cast<const float*>(address(divisor)),
               static_cast<const float*>(address(found_inf)),
               written};
    for (size_t s = 0; s < kMostStates; ++s)
      launch_.states[s] = first.states[s].defined() ? states_[s].data() : nullptr;
  }
  Lists(const Lists&) = delete;
  Lists& operator=(const Lists&) = delete;

  const cuda::StepLists& launch() const { return launch_; }

  int64_t lamb_blocks() const {
    const int64_t chunk = cuda::lamb_chunk(*std::max_element(elements_.begin(), elements_.end()));
    int64_t blocks = 0;
    for (int64_t n : elements_) blocks += (n + chunk - 1) / chunk;
    return blocks;
  }

 private:
  std::vector<int64_t> elements_;
  std::vector<void*> parameters_, gradients_, copies_;
  std::array<std::vector<void*>, kMostStates> states_;
  cuda::StepLists launch_{};
};

static_assert(kMostStates == cuda::kListedStates);

at::Tensor floats_on(c10::Device device, int64_t count) {
  return at::empty({count}, at::TensorOptions(at::kFloat).device(device));
}

at::Tensor there(const at::Tensor& number, c10::Device device) {
  return number.defined() ? number.to(device, at::kFloat, /*non_blocking=*/true) : number;
}

class DeviceStep {
 public:
  DeviceStep(const std::string& rule, c10::Device device, const GradientScale& scale)
      : rule_(rule),
        device_(device),
        on_(device),
        divisor_(there(scale.divisor_on_device, device)),
        found_inf_(there(scale.found_inf, device)),
        written_(scale.written && divisor_.defined()),
        queue_(cuda_queue(device)) {}

  void run(const std::vector<const Prepared*>& parameters) const {
    const Prepared& first = *parameters.front();
    const at::Tensor corrections = first.steps_on_device ? advance(parameters) : at::Tensor();
    const auto* corrected = static_cast<const float*>(address(corrections));
    std::vector<const Prepared*> filled;
    for (const Prepared* p : parameters)
      if (p->size) filled.push_back(p);
    if (filled.empty()) return;
    const Lists lists(filled, divisor_, found_inf_, written_);
    if (rule_ == "sgd") {
      queue_.run("sgd_step", cuda::SgdLaunch{lists.launch(), sgd_numbers(first)});
    } else if (rule_ == "adam") {
      queue_.run("adam_step", cuda::AdamLaunch{lists.launch(), adam_numbers(first), corrected});
    } else {
      const at::Tensor parts = floats_on(device_, 2 * lists.lamb_blocks());
      queue_.run("lamb_step", cuda::LambLaunch{lists.launch(), lamb_numbers(first), corrected,
                                               static_cast<float*>(mutable_address(parts))});
    }
  }

 private:
  // Counts the steps up; the corrections of the parameters that have elements.
  at::Tensor advance(const std::vector<const Prepared*>& parameters) const {
    std::vector<float*> steps;
    for (const bool empty : {false, true})  // those first that corrections are for
      for (const Prepared* p : parameters)
        if ((p->size == 0) == empty) steps.push_back(static_cast<float*>(mutable_address(p->tensors.step)));
    const Prepared& first = *parameters.front();
    at::Tensor corrections = floats_on(device_, 2 * static_cast<int64_t>(steps.size()));
    const bool lamb = rule_ == "lamb";
    queue_.run("advance_steps",
               cuda::StepsLaunch{
                   static_cast<int64_t>(steps.size()), steps.data(), static_cast<const float*>(address(found_inf_)),
                   static_cast<float*>(mutable_address(corrections)), first.setting("lr"), first.setting("beta1"),
                   first.setting("beta2"), lamb ? cuda::kLambCorrections : static_cast<int32_t>(first.setting("decay")),
                   first.setting("correct_bias") != 0});
    return corrections;
  }

  const std::string& rule_;
  const c10::Device device_;
  const c10::DeviceGuard on_;
  const at::Tensor divisor_, found_inf_;
  const bool written_;
  const CudaQueue queue_;
};

}  // namespace

bool updates_on(const std::string& device_type) {
  if (device_type == "cpu") return true;
  if (device_type == "cuda") cuda::load_library();
  return cuda::table_of(device_type) != nullptr;
}

std::string refused_on_device(const std::string& rule, const UpdateGroup& group, const Updated& u) {
  if (rule == "adafactor") return "the rule has no kernel for its device";
  if (group.setting("stochastic") != 0) return "stochastic rounding has no kernel for its device";
  const at::ScalarType type = u.parameter.scalar_type();
  if (!cuda_element(type)) return ortmodule::str("its device has no kernel for ", type);
  const bool single = type == at::kFloat;
  if (!cuda_element(u.gradient) || (!single && u.gradient.scalar_type() != type))
    return ortmodule::str("its gradient is of ", u.gradient.scalar_type(), ", which its device has no kernel for");
  for (size_t i = 0; i < kMostStates; ++i) {
    if (u.states[i].defined() && u.states[i].scalar_type() != type)
      return ortmodule::str("a state is of ", u.states[i].scalar_type(), ", which its device has no kernel for");
  }
  if (u.copy.defined() && !single) return "only copies of floats have a kernel for its device";
  return {};
}

void device_step(const std::string& rule, const std::vector<const Prepared*>& parameters, const GradientScale& scale) {
  if (parameters.empty()) return;
  std::map<Together, std::vector<const Prepared*>> lists;
  std::vector<Together> order;
  for (const Prepared* p : parameters) {
    auto& list = lists[together(*p)];
    if (list.empty()) order.push_back(together(*p));
    list.push_back(p);
  }
  const DeviceStep step(rule, parameters.front()->tensors.parameter.device(), scale);
  for (const Together& key : order) step.run(lists[key]);
}

}  // namespace ortmodule
