// Trains the classifier of save_graph.py on made-up images: `./train model.onnx [steps]`.
#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <ortmodule/graph_function.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <string>
#include <vector>

namespace {

constexpr int64_t kBatch = 64;
constexpr double kRate = 0.1;
// What the module's forward takes; everything else that the graph reads is a weight.
const std::vector<std::string> kGiven = {"images", "labels"};

bool is_given(const std::string& name) { return name == kGiven[0] || name == kGiven[1]; }

// Weights as torch.nn.Linear draws them: uniform within 1 / sqrt(inputs). A bias [n] has its layer's n outputs for that.
at::Tensor new_weight(const ortmodule::ValueInfo& info) {
  const double bound = 1 / std::sqrt(static_cast<double>(info.shape.back()));
  return at::empty(info.shape, at::kFloat).uniform_(-bound, bound).requires_grad_(true);
}

std::vector<std::string> weight_names(const std::string& path) {
  std::vector<std::string> names;
  for (const ortmodule::ValueInfo& input : ortmodule::GraphFunction::load(path).inputs())
    if (!is_given(input.name)) names.push_back(input.name);
  return names;
}

void train(const std::string& path, int steps) {
  const auto loss_of = ortmodule::GraphFunction::load(path, {.trainable = weight_names(path)});
  const std::vector<ortmodule::ValueInfo> infos = loss_of.inputs();
  std::vector<at::Tensor> inputs;
  for (const ortmodule::ValueInfo& info : infos) inputs.push_back(is_given(info.name) ? at::Tensor() : new_weight(info));

  const at::Tensor centres = at::randn({10, 64});
  for (int step = 0; step < steps; ++step) {
    const at::Tensor labels = at::randint(10, {kBatch}, at::kLong);
    const at::Tensor images = centres.index_select(0, labels) + at::randn({kBatch, 64});
    for (size_t i = 0; i < infos.size(); ++i)
      if (is_given(infos[i].name)) inputs[i] = infos[i].name == "images" ? images : labels;

    const at::Tensor loss = loss_of(inputs)[0];
    loss.backward();
    const at::NoGradGuard no_grad;
    for (at::Tensor& weight : inputs)
      if (weight.requires_grad()) {
        weight.sub_(weight.grad(), kRate);
        weight.mutable_grad().reset();
      }
    if (step % 50 == 0 || step + 1 == steps) std::printf("step %4d  loss %.4f\n", step, loss.item<double>());
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2 || argc > 3) {
    std::fprintf(stderr, "usage: %s model.onnx [steps]\n", argv[0]);
    return 2;
  }
  try {
    train(argv[1], argc == 3 ? std::atoi(argv[2]) : 200);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
