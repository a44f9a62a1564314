// Trains the network of save_artifacts.py on handwritten digits, goes on from a checkpoint and writes a model that
// infers: `./train_digits artifacts digits.bin [steps] [folder for what is written]`.
#include <ATen/ATen.h>
#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ortmodule/inference_session.h>
#include <ortmodule/training_session.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <fstream>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

namespace {

constexpr int64_t kBatch = 64, kPixels = 64, kHeldOut = 297;

struct Digits {
  at::Tensor images, labels;  // float[n, 64] from 0 to 1, int64[n]
  Digits part(int64_t begin, int64_t end) const { return {images.slice(0, begin, end), labels.slice(0, begin, end)}; }
  int64_t size() const { return labels.size(0); }
};

Digits read_digits(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::vector<char> bytes{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  const auto count = static_cast<int64_t>(bytes.size()) / (kPixels + 1);
  if (count <= kHeldOut) throw std::runtime_error("'" + path + "' has no digits");
  const at::Tensor rows = at::from_blob(bytes.data(), {count, kPixels + 1}, at::kByte);
  return {rows.slice(1, 0, kPixels).to(at::kFloat).div(16), rows.select(1, kPixels).to(at::kLong)};
}

// The batch of a step: the digits in turn, as often as it takes.
Digits batch_of(const Digits& digits, int64_t step) {
  const int64_t begin = step * kBatch % (digits.size() - kBatch + 1);
  return digits.part(begin, begin + kBatch);
}

double accuracy(const at::Tensor& scores, const at::Tensor& labels) {
  return scores.argmax(1).eq(labels).to(at::kDouble).mean().item<double>();
}

// What the process has held at most, in MiB.
double peak_memory() {
  std::ifstream file("/proc/self/status");
  for (std::string line; std::getline(file, line);)
    if (line.rfind("VmHWM:", 0) == 0) return std::strtod(line.c_str() + 6, nullptr) / 1024;
  return 0;
}

void train(const std::string& artifacts, const std::string& path, int64_t steps, const std::string& folder) {
  at::manual_seed(0);  // of dropout
  const auto session = ortmodule::TrainingSession::load(artifacts);
  const Digits digits = read_digits(path), train = digits.part(0, digits.size() - kHeldOut),
               held_out = digits.part(digits.size() - kHeldOut, digits.size());
  session->set_linear_schedule(steps / 10, steps + 1);
  for (int64_t step = session->step_count(); step < steps; ++step) {
    const Digits batch = batch_of(train, step);
    const at::Tensor loss = session->train_step({batch.images, batch.labels});
    session->optimizer_step();
    session->zero_grad();
    if (step % 20 == 0 || step + 1 == steps)
      std::printf("step %4ld  loss %.9g\n", static_cast<long>(step), loss.item<double>());
  }
  const std::vector<at::Tensor> results = session->eval_step({held_out.images, held_out.labels});
  std::printf("held out: loss %.9g, accuracy %.4f\n", results[0].item<double>(), accuracy(results[1], held_out.labels));

  const std::string checkpoint = folder + "/checkpoint.safetensors", model = folder + "/model.onnx";
  session->save_checkpoint(checkpoint);
  session->export_model_for_inference(model);
  const ortmodule::InferenceSession inference(model);
  const at::Tensor scores = inference.run({{inference.inputs()[0].name, held_out.images}})[0];
  std::printf("%s: accuracy %.4f\n", model.c_str(), accuracy(scores, held_out.labels));
  std::printf("memory: %.1f MiB at most\n", peak_memory());
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3 || argc > 5) {
    std::fprintf(stderr, "usage: %s artifacts digits.bin [steps] [folder for what is written]\n", argv[0]);
    return 2;
  }
  try {
    if (const char* threads = std::getenv("OMP_NUM_THREADS")) at::set_num_threads(std::max(1, std::atoi(threads)));
    train(argv[1], argv[2], argc > 3 ? std::max(1, std::atoi(argv[3])) : 200, argc > 4 ? argv[4] : ".");
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
