#include "session/training/training_state.h"

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "base/status.h"

namespace ortmodule {
namespace {

using Json = nlohmann::json;

constexpr const char* kNumbers = "ortmodule.training";
constexpr size_t kNamed = 20;  // how many of the names there are an error lists

// torch's optimizers keep their counts on the host, whatever the parameter's device.
bool stays_on_host(const std::string& name) { return name.rfind("optimizer/step/", 0) == 0; }

std::vector<std::string> names_of(const Artifacts& artifacts) {
  std::vector<std::string> names;
  for (const ArtifactTensor& tensor : artifacts.tensors) names.push_back(tensor.name);
  for (const ArtifactRule& rule : artifacts.rules)
    for (const std::string& parameter : rule.parameters)
      for (const std::string& state : rule.states) names.push_back(TrainingState::state_name(state, parameter));
  return names;
}

void check_rate(double rate) {
  ORTMODULE_CHECK_ARG(std::isfinite(rate) && rate >= 0, "a learning rate is a number from 0 on, got ", rate);
}

}  // namespace

double LinearSchedule::factor(int64_t step) const {
  const auto done = static_cast<double>(step - begin);
  if (step - begin < warmup) return done / static_cast<double>(std::max<int64_t>(1, warmup));
  return std::max(0.0, (static_cast<double>(total) - done) / static_cast<double>(std::max<int64_t>(1, total - warmup)));
}

TrainingState::TrainingState(const Artifacts& artifacts, const std::string& checkpoint, c10::Device device)
    : rates_(artifacts.learning_rates) {
  const TensorFile file = read_safetensors(checkpoint);
  for (const std::string& name : names_of(artifacts)) {
    const auto found = file.tensors.find(name);
    ORTMODULE_CHECK_ARG(found != file.tensors.end(), "the checkpoint '", checkpoint,
                        "' is of another model: it has no '", name, "'");
    tensors_[name] = stays_on_host(name) ? found->second : found->second.to(device);
  }
  check_tensors(file, checkpoint);
  const Numbers numbers = numbers_in(file, checkpoint);
  steps_ = numbers.steps;
  rates_ = numbers.rates;
  schedule_ = numbers.schedule;
}

const at::Tensor& TrainingState::tensor(const std::string& name) const {
  const auto found = tensors_.find(name);
  if (found != tensors_.end()) return found->second;
  std::string known;
  size_t count = 0;
  for (const auto& [other, tensor] : tensors_)
    if (other.rfind("optimizer/", 0) != 0 && ++count <= kNamed) known += (known.empty() ? "'" : ", '") + other + "'";
  if (count > kNamed) known += str(" and ", count - kNamed, " more");
  fail(ErrorCode::kInvalidArgument, "the model has no tensor '", name, "'; it has ", known);
}

void TrainingState::check_tensors(const TensorFile& file, const std::string& path) const {
  for (const auto& [name, own] : tensors_) {
    const auto found = file.tensors.find(name);
    ORTMODULE_CHECK_ARG(found != file.tensors.end(), "the checkpoint '", path, "' is of another model: it has no '",
                        name, "'");
    const at::Tensor& given = found->second;
    ORTMODULE_CHECK_ARG(given.sizes() == own.sizes() && given.scalar_type() == own.scalar_type(), "the checkpoint '",
                        path, "' is of another model: its '", name, "' is of ", c10::toString(given.scalar_type()),
                        " and shape ", given.sizes(), ", the model's of ", c10::toString(own.scalar_type()), " and ",
                        own.sizes());
  }
  for (const auto& [name, given] : file.tensors)
    ORTMODULE_CHECK_ARG(tensors_.count(name), "the checkpoint '", path, "' is of another model: it has '", name, "'");
}

TrainingState::Numbers TrainingState::numbers_in(const TensorFile& file, const std::string& path) const {
  const auto text = file.metadata.find(kNumbers);
  ORTMODULE_CHECK_ARG(text != file.metadata.end(), "'", path, "' is no checkpoint of training: its metadata have no '",
                      kNumbers, "'");
  try {
    const Json json = Json::parse(text->second);
    Numbers numbers{json.at("steps").get<int64_t>(), json.at("learning_rates").get<std::vector<double>>(), {}};
    if (json.contains("schedule")) {
      const Json& schedule = json["schedule"];
      numbers.schedule = {schedule.at("begin").get<int64_t>(), schedule.at("warmup").get<int64_t>(),
                          schedule.at("total").get<int64_t>()};
    }
    if (numbers.rates.size() != rates_.size()) throw std::invalid_argument("it has other groups of parameters");
    return numbers;
  } catch (const std::exception& error) {
    fail(ErrorCode::kParse, "the metadata of the checkpoint '", path, "' are broken: ", error.what());
  }
}

void TrainingState::load(const std::string& path) {
  const TensorFile file = read_safetensors(path);
  check_tensors(file, path);
  const Numbers numbers = numbers_in(file, path);
  const at::NoGradGuard no_grad;
  for (const auto& [name, own] : tensors_) own.copy_(file.tensors.at(name));
  steps_ = numbers.steps;
  rates_ = numbers.rates;
  schedule_ = numbers.schedule;
}

void TrainingState::save(const std::string& path) const {
  Json numbers = {{"steps", steps_}, {"learning_rates", rates_}};
  if (schedule_)
    numbers["schedule"] = {{"begin", schedule_->begin}, {"warmup", schedule_->warmup}, {"total", schedule_->total}};
  write_safetensors(path, {tensors_, {{"format", "pt"}, {kNumbers, numbers.dump()}}});
}

double TrainingState::rate(size_t group) const {
  ORTMODULE_CHECK_ARG(group < rates_.size(), "the optimizer has ", rates_.size(), " groups, and no group ", group);
  return schedule_ ? rates_[group] * schedule_->factor(steps_) : rates_[group];
}

void TrainingState::set_rate(double rate, std::optional<size_t> group) {
  check_rate(rate);
  ORTMODULE_CHECK_ARG(!group || *group < rates_.size(), "the optimizer has ", rates_.size(), " groups, and no group ",
                      group.value_or(0));
  for (size_t i = 0; i < rates_.size(); ++i)
    if (!group || *group == i)
      rates_[i] = rate;
    else if (schedule_)
      rates_[i] = this->rate(i);
  schedule_.reset();
}

void TrainingState::set_schedule(int64_t warmup, int64_t total) {
  ORTMODULE_CHECK_ARG(warmup >= 0 && total > warmup, "a schedule warms up for no fewer than 0 steps and goes on for ",
                      "more than that, got ", warmup, " of ", total);
  schedule_ = {steps_, warmup, total};
}

}  // namespace ortmodule
