// What all rules share: tensors are checked, brought into one order, stepped, and counted.
#include "kernels/optimizer/update.h"

#include <ATen/MemoryOverlap.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/view_as_real.h>

#include <limits>
#include <map>
#include <utility>

#include "base/status.h"
#include "kernels/conversion.h"
#include "kernels/cuda_kernel.h"
#include "kernels/optimizer/device_step.h"
#include "kernels/optimizer/rules.h"

namespace ortmodule {

std::vector<Piece> pieces_of(const std::vector<Prepared>& parameters) {
  std::vector<Piece> pieces;
  for (size_t i = 0; i < parameters.size(); ++i)
    for (int64_t begin = 0; begin < parameters[i].size; begin += kPiece)
      pieces.push_back({i, begin, std::min(begin + kPiece, parameters[i].size)});
  return pieces;
}

namespace {

using Step = void (*)(const std::vector<Prepared>&);

struct Rule {
  const char* name;
  Step step;
  size_t states;    // that every parameter has
  bool counts;      // has a step
  bool by_element;  // states are of the parameter's shape, and any order of elements will do
};

// Settings: sgd lr, momentum, dampening, weight_decay, nesterov, first (the momentum buffer begins); adam lr, beta1,
// beta2, eps, weight_decay, decay, amsgrad, correct_bias; lamb lr, beta1, beta2, eps, weight_decay, correct_bias,
// ratio_min, ratio_max; adafactor as adafactor.cpp says. All: maximize, stochastic, seed.
constexpr Rule kRules[] = {{"sgd", sgd_step, 0, false, true},
                           {"adam", adam_step, 2, true, true},
                           {"lamb", lamb_step, 2, true, true},
                           {"adafactor", adafactor_step, 1, true, false}};

const Rule& rule_named(const std::string& name) {
  for (const Rule& rule : kRules)
    if (name == rule.name) return rule;
  fail(ErrorCode::kInvalidArgument, "there is no optimizer rule '", name, "'");
}

bool is_plain(const at::Tensor& t, c10::Device device) {
  return t.layout() == at::kStrided && t.device() == device && t.has_storage() &&
         !t.unsafeGetTensorImpl()->is_python_dispatch();
}

at::Tensor as_real(const at::Tensor& t) { return t.defined() && t.is_complex() ? at::view_as_real(t) : t; }

std::vector<int64_t> row_major(c10::IntArrayRef sizes) {
  std::vector<int64_t> strides(sizes.size(), 1);
  for (size_t i = sizes.size(); i-- > 1;) strides[i - 1] = strides[i] * std::max<int64_t>(sizes[i], 1);
  return strides;
}

bool same_elements(const at::Tensor& t, c10::IntArrayRef strides) {
  for (int64_t i = 0; i < t.dim(); ++i)
    if (t.size(i) != 1 && t.stride(i) != strides[i]) return false;
  return true;
}

// Brings one parameter's tensors into the parameter's order; what is not in it is copied, and copied back.
class Layout {
 public:
  Layout(const Rule& rule, const at::Tensor& parameter)
      : strides_(rule.by_element && parameter.is_non_overlapping_and_dense() ? parameter.strides().vec()
                                                                             : row_major(parameter.sizes())),
        sizes_(parameter.sizes().vec()) {}

  // `written`: where the copy goes back.
  at::Tensor ordered(const at::Tensor& t, bool of_shape,
                     std::vector<std::pair<at::Tensor, at::Tensor>>* written) const {
    if (!t.defined() || t.numel() == 0) return t;
    const bool fits = of_shape ? same_elements(t, strides_) : t.is_contiguous();
    if (fits && !t.is_neg()) return t;
    at::Tensor copy = of_shape ? at::empty_strided(sizes_, strides_, t.options()) : t.new_empty(t.sizes());
    copy.copy_(t);
    if (written) written->emplace_back(t, copy);
    return copy;
  }

 private:
  std::vector<int64_t> strides_, sizes_;
};

[[noreturn]] void refuse(const Rule& rule, const at::Tensor& parameter, const std::string& why) {
  fail(ErrorCode::kInvalidArgument, "[", rule.name, "] a parameter of shape ", parameter.sizes(),
       " cannot be updated: ", why);
}

void check_element_types(const Rule& rule, const Updated& u) {
  const at::Tensor& p = u.parameter;
  const auto type = c10::toRealValueType(p.scalar_type());
  const auto floats = [](at::ScalarType t) { return t == at::kFloat || t == at::kBFloat16 || t == at::kHalf; };
  if (type != at::kDouble && !floats(type)) refuse(rule, p, ortmodule::str("it is of ", p.scalar_type()));
  const auto together = [&](at::ScalarType other) {
    return type == at::kDouble ? other == at::kDouble : floats(other);
  };
  const auto real = [](const at::Tensor& t) { return c10::toRealValueType(t.scalar_type()); };
  if (!together(real(u.gradient)) || u.gradient.is_complex() != p.is_complex())
    refuse(rule, p, ortmodule::str("it is of ", p.scalar_type(), ", its gradient of ", u.gradient.scalar_type()));
  for (size_t i = 0; i < kMostStates; ++i) {
    const at::Tensor& state = u.states[i];
    if (!state.defined()) continue;
    const bool eight = state.scalar_type() == at::kByte && u.scales[i].defined() && type != at::kDouble;
    if (!eight && !together(real(state)))
      refuse(rule, p, ortmodule::str("it is of ", p.scalar_type(), ", a state of ", state.scalar_type()));
  }
  if (u.copy.defined() && (type == at::kDouble || !floats(u.copy.scalar_type())))
    refuse(rule, p, ortmodule::str("its copy is of ", u.copy.scalar_type()));
}

void check_shapes(const Rule& rule, const Updated& u) {
  const at::Tensor& p = u.parameter;
  if (u.gradient.sizes() != p.sizes()) refuse(rule, p, ortmodule::str("its gradient is of shape ", u.gradient.sizes()));
  if (u.copy.defined() && u.copy.sizes() != p.sizes())
    refuse(rule, p, ortmodule::str("its copy is of shape ", u.copy.sizes()));
  for (size_t i = 0; i < kMostStates; ++i) {
    const at::Tensor &state = u.states[i], &scales = u.scales[i];
    if (state.defined() && rule.by_element && state.sizes() != p.sizes())
      refuse(rule, p, ortmodule::str("a state is of shape ", state.sizes()));
    const int64_t numbers = p.numel() * (p.is_complex() ? 2 : 1);
    if (scales.defined() && (scales.scalar_type() != at::kFloat || !scales.is_contiguous() ||
                             scales.numel() != (numbers + kStateBlock - 1) / kStateBlock))
      refuse(rule, p, "the scales of a state are not one float for each of its blocks");
  }
}

// Variances by row and column, or of each element of a vector.
void check_factors(const Rule& rule, const Updated& u) {
  const at::Tensor &p = u.parameter, &first = u.states[0], &second = u.states[1];
  if (p.numel() == 0) return;
  const bool matrix = second.defined();
  if (matrix && p.dim() < 2) refuse(rule, p, "it has no rows and columns, but variances of both");
  const int64_t rows = matrix ? p.numel() / p.size(-1) : p.numel(), columns = matrix ? p.numel() / p.size(-2) : 0;
  if (first.numel() != rows || (matrix && second.numel() != columns))
    refuse(rule, p,
           ortmodule::str("its variances are of shapes ", first.sizes(), " and ", matrix ? second.sizes() : p.sizes()));
  if (u.states[2].defined() && u.states[2].sizes() != p.sizes())
    refuse(rule, p, ortmodule::str("its first moment is of shape ", u.states[2].sizes()));
}

// One number that is counted up: on the host, or beside the parameter.
bool is_counter(const at::Tensor& t, c10::Device device) {
  if (!t.defined() || t.numel() != 1) return false;
  if (is_plain(t, at::kCPU)) return t.scalar_type() == at::kFloat || t.scalar_type() == at::kDouble;
  return is_plain(t, device) && t.scalar_type() == at::kFloat;
}

void check(const Rule& rule, const UpdateGroup& group, const Updated& u, const GradientScale& scale) {
  ORTMODULE_CHECK_ARG(u.parameter.defined() && u.gradient.defined(), "[", rule.name, "] no parameter or no gradient");
  const at::Tensor& p = u.parameter;
  const c10::Device device = has_cuda_kernels(p.device()) ? p.device() : at::kCPU;
  const auto with = [&](const at::Tensor& t, const char* what) {
    if (t.defined() && !is_plain(t, device))
      refuse(rule, p,
             ortmodule::str(what, " is not a plain tensor of ", device.is_cpu() ? "the CPU" : device.str(), " (",
                            t.device(), ", ", t.layout(), ")"));
  };
  with(p, "it");
  with(u.gradient, "its gradient");
  with(u.copy, "its copy");
  for (size_t i = 0; i < kMostStates; ++i) {
    with(u.states[i], "a state");
    with(u.scales[i], "a state's scales");
  }
  for (size_t i = 0; i < rule.states; ++i)
    if (!u.states[i].defined()) refuse(rule, p, ortmodule::str("state ", i, " is missing"));
  if (p.is_neg() || p.is_conj()) refuse(rule, p, "it is a negated or conjugated view");
  if (at::has_internal_overlap(p) == at::MemOverlap::Yes)
    refuse(rule, p, "several of its elements are one place in memory; clone it first");
  if ((rule.counts || u.step.defined()) && !is_counter(u.step, device))
    refuse(rule, p, "its step is no single float or double on the CPU");
  check_element_types(rule, u);
  check_shapes(rule, u);
  if (!rule.by_element) check_factors(rule, u);
  if (device.is_cpu()) {
    if (scale.found_inf.defined() || scale.divisor_on_device.defined())
      refuse(rule, p, "the scale of its gradient is on a device, and it is not");
    return;
  }
  if (const std::string why = refused_on_device(rule.name, group, u); !why.empty()) refuse(rule, p, why);
  if (scale.found_inf.defined() && u.step.defined() && u.step.is_cpu())
    refuse(rule, p, "whether its gradient overflowed is known on its device alone, which does not count its steps");
}

Column column(const at::Tensor& t, const at::Tensor& scales, bool is_signed) {
  if (!t.defined() || t.numel() == 0) return {};
  Column c{t.data_ptr(), t.scalar_type()};
  if (scales.defined() && t.scalar_type() == at::kByte) {
    c.form = is_signed ? Form::kSigned : Form::kUnsigned;
    c.scales = scales.mutable_data_ptr<float>();
  }
  return c;
}

double number_in(const at::Tensor& t) {
  return t.scalar_type() == at::kFloat ? *t.const_data_ptr<float>() : *t.const_data_ptr<double>();
}

void count_up(const at::Tensor& t) {
  if (t.scalar_type() == at::kFloat)
    *t.mutable_data_ptr<float>() += 1;
  else
    *t.mutable_data_ptr<double>() += 1;
}

struct Span {
  const char *begin, *end;
  size_t owner;
  bool written;
};

void add_span(const at::Tensor& t, size_t owner, bool written, std::vector<Span>& spans) {
  if (!t.defined() || t.numel() == 0) return;
  int64_t last = 0;
  for (int64_t i = 0; i < t.dim(); ++i) last += (t.size(i) - 1) * t.stride(i);
  const auto* begin = static_cast<const char*>(t.const_data_ptr());
  spans.push_back({begin, begin + (last + 1) * static_cast<int64_t>(t.element_size()), owner, written});
}

// Whether the step of one parameter touches what that of another writes: then they come one after another.
bool share_memory(const std::vector<UpdateGroup>& groups) {
  std::vector<Span> spans;
  size_t owner = 0;
  for (const UpdateGroup& group : groups)
    for (const Updated& one : group.parameters) {
      add_span(one.parameter, owner, true, spans);
      add_span(one.gradient, owner, false, spans);
      add_span(one.copy, owner, true, spans);
      for (const at::Tensor& state : one.states) add_span(state, owner, true, spans);
      ++owner;
    }
  std::sort(spans.begin(), spans.end(), [](const Span& a, const Span& b) { return a.begin < b.begin; });
  for (size_t i = 0; i < spans.size(); ++i)
    for (size_t k = i + 1; k < spans.size() && spans[k].begin < spans[i].end; ++k)
      if (spans[i].owner != spans[k].owner && (spans[i].written || spans[k].written)) return true;
  return false;
}

// The steps to be done, from what was asked for. Nothing is written before `run`.
class Update {
 public:
  Update(const Rule& rule, const GradientScale& scale) : rule_(rule), scale_(scale) {}

  void add(const UpdateGroup& group, const Updated& given, size_t number) {
    Prepared p;
    p.group = &group;
    p.tensors = given;
    p.tensors.parameter = as_real(given.parameter);
    p.tensors.gradient = as_real(given.gradient.resolve_conj());
    for (at::Tensor& state : p.tensors.states) state = as_real(state);
    const Layout layout(rule_, p.tensors.parameter);
    p.tensors.parameter = layout.ordered(p.tensors.parameter, true, &written_);
    p.tensors.gradient = layout.ordered(p.tensors.gradient.resolve_neg(), true, scale_.written ? &written_ : nullptr);
    p.tensors.copy = layout.ordered(p.tensors.copy, true, &written_);
    for (at::Tensor& state : p.tensors.states) state = layout.ordered(state, rule_.by_element, &written_);
    p.size = p.tensors.parameter.numel();
    p.doubles = p.tensors.parameter.scalar_type() == at::kDouble;
    p.steps_on_device = rule_.counts && !given.step.is_cpu();
    p.step = !rule_.counts ? 0 : p.steps_on_device ? 1 : number_in(given.step) + 1;
    p.factor = (p.setting("maximize") != 0 ? -1 : 1) / scale_.divisor;
    p.rounding = {p.setting("stochastic") != 0, static_cast<uint64_t>(p.setting("seed")), number};
    prepared_.push_back(std::move(p));
    given_.push_back(&given);
  }

  void run() {
    std::map<c10::DeviceIndex, std::vector<const Prepared*>> others;
    std::vector<Prepared> own;
    for (Prepared& p : prepared_) {
      if (!p.tensors.parameter.is_cpu()) {
        others[p.tensors.parameter.device().index()].push_back(&p);
        continue;
      }
      place(p);
      own.push_back(p);
    }
    rule_.step(own);
    for (const auto& [index, parameters] : others) device_step(rule_.name, parameters, scale_);
    if (scale_.written && !scale_.divisor_on_device.defined())
      for (const Prepared& p : prepared_) p.tensors.gradient.div_(scale_.divisor);
    for (const auto& [target, copy] : written_) target.copy_(copy);
    for (const Updated* given : given_) count(*given);
  }

 private:
  static void place(Prepared& p) {
    p.parameter = column(p.tensors.parameter, {}, true);
    p.gradient = column(p.tensors.gradient, {}, true);
    p.copy = column(p.tensors.copy, {}, true);
    for (size_t i = 0; i < kMostStates; ++i) p.states[i] = column(p.tensors.states[i], p.tensors.scales[i], i == 0);
  }

  // What autograd asks whether a saved tensor is still the same.
  static void changed(const at::Tensor& t) {
    if (t.defined() && !t.is_inference()) t.unsafeGetTensorImpl()->bump_version();
  }

  void count(const Updated& given) const {
    if (given.step.defined() && given.step.is_cpu()) count_up(given.step);
    if (scale_.written && scale_.divisor_on_device.defined()) changed(given.gradient);
    changed(given.parameter);
    changed(given.copy);
    changed(given.step);
    for (const at::Tensor& state : given.states) changed(state);
  }

  const Rule& rule_;
  const GradientScale scale_;
  std::vector<Prepared> prepared_;
  std::vector<const Updated*> given_;
  std::vector<std::pair<at::Tensor, at::Tensor>> written_;
};

}  // namespace

void update_parameters(const std::string& rule, const std::vector<UpdateGroup>& groups, const GradientScale& scale) {
  const Rule& known = rule_named(rule);
  const at::NoGradGuard no_grad;
  for (const UpdateGroup& group : groups)
    for (const Updated& one : group.parameters) check(known, group, one, scale);
  const auto step = [&](size_t first, size_t last) {
    Update update(known, scale);
    size_t place = 0;
    for (const UpdateGroup& group : groups)
      for (const Updated& one : group.parameters)
        if (const size_t i = place++; i >= first && i < last) update.add(group, one, i);
    update.run();
  };
  size_t count = 0;
  for (const UpdateGroup& group : groups) count += group.parameters.size();
  if (!share_memory(groups)) return step(0, count);
  for (size_t i = 0; i < count; ++i) step(i, i + 1);
}

}  // namespace ortmodule
