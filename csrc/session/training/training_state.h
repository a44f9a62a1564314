// What training changes: the module's tensors, the optimizer's states, how many steps there were and at which rates.
//
// In a checkpoint the module's tensors have their own names, a state is `optimizer/<state>/<parameter>`, and the
// numbers are JSON in the metadata.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "session/training/artifacts.h"
#include "session/training/safetensors.h"

namespace ortmodule {

// Up from zero over the first steps, then down to zero.
struct LinearSchedule {
  int64_t begin, warmup, total;  // in steps; the last two from `begin` on
  double factor(int64_t step) const;
};

class TrainingState {
 public:
  // Of a checkpoint. Throws what load() throws.
  TrainingState(const Artifacts& artifacts, const std::string& checkpoint, c10::Device device);

  // By its name in a checkpoint; kInvalidArgument, naming those there are, where there is none.
  const at::Tensor& tensor(const std::string& name) const;
  const std::map<std::string, at::Tensor>& tensors() const { return tensors_; }
  static std::string state_name(const std::string& state, const std::string& parameter) {
    return "optimizer/" + state + "/" + parameter;
  }

  // All of a file or, where it throws (kParse, kInvalidArgument: another model's), nothing.
  void load(const std::string& path);
  void save(const std::string& path) const;

  double rate(size_t group) const;
  size_t groups() const { return rates_.size(); }
  void set_rate(double rate, std::optional<size_t> group);
  void set_schedule(int64_t warmup, int64_t total);
  int64_t steps() const { return steps_; }
  void count_step() { ++steps_; }

 private:
  struct Numbers {
    int64_t steps = 0;
    std::vector<double> rates;
    std::optional<LinearSchedule> schedule;
  };
  Numbers numbers_in(const TensorFile& file, const std::string& path) const;
  void check_tensors(const TensorFile& file, const std::string& path) const;

  std::map<std::string, at::Tensor> tensors_;
  int64_t steps_ = 0;
  std::vector<double> rates_;  // those that a schedule begins from
  std::optional<LinearSchedule> schedule_;
};

}  // namespace ortmodule
