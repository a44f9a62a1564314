// Runs any model on made-up inputs: `./infer model.onnx [runs]`. Prints its inputs, its outputs and the time of a run.
#include <ATen/ATen.h>
#include <ortmodule/inference_session.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <string>
#include <utility>
#include <vector>

namespace {

using Clock = std::chrono::steady_clock;

// Numbers from N(0, 1), and zeros for the types that index; an axis of any size has one element.
at::Tensor made_up(const ortmodule::ValueInfo& info) {
  std::vector<int64_t> sizes = info.shape;
  std::replace(sizes.begin(), sizes.end(), int64_t{-1}, int64_t{1});
  if (info.dtype == "float") return at::randn(sizes);
  if (info.dtype == "int64") return at::zeros(sizes, at::kLong);
  throw ortmodule::Error(ortmodule::ErrorCode::kUnsupported,
                         "the input '" + info.name + "' is of type " + info.dtype + ", which this example does not make");
}

void infer(const std::string& path, int runs) {
  const ortmodule::InferenceSession session(path);
  ortmodule::IOBinding binding(session);
  for (const ortmodule::ValueInfo& info : session.inputs()) {
    std::printf("input %s: %s\n", info.name.c_str(), info.dtype.c_str());
    binding.bind_input(info.name, made_up(info));
  }
  for (const ortmodule::ValueInfo& info : session.outputs()) binding.bind_output(info.name);
  std::vector<double> seconds;
  for (int run = 0; run < runs; ++run) {
    const Clock::time_point begin = Clock::now();
    session.run(binding);
    seconds.push_back(std::chrono::duration<double>(Clock::now() - begin).count());
  }
  for (size_t i = 0; i < session.outputs().size(); ++i)
    std::printf("output %s: %lld elements\n", session.outputs()[i].name.c_str(),
                static_cast<long long>(binding.outputs()[i].numel()));
  std::nth_element(seconds.begin(), seconds.begin() + static_cast<long>(seconds.size() / 2), seconds.end());
  std::printf("a run takes %.1f us\n", 1e6 * seconds[seconds.size() / 2]);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2 || argc > 3) {
    std::fprintf(stderr, "usage: %s model.onnx [runs]\n", argv[0]);
    return 2;
  }
  try {
    infer(argv[1], argc == 3 ? std::max(1, std::atoi(argv[2])) : 100);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
