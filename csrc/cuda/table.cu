// The table of this library's launch functions, which they add themselves to.
#include <algorithm>
#include <cstring>
#include <vector>

#include "cuda/kernel.cuh"

namespace ortmodule::cuda {
namespace {

std::vector<Launch>& launches() {
  static std::vector<Launch> all;
  return all;
}

const char* text_of(int error) {
#ifdef __CUDACC__
  return cudaGetErrorString(static_cast<cudaError_t>(error));
#else
  return simt::error_text(error);
#endif
}

int use_device([[maybe_unused]] int device) {
#ifdef __CUDACC__
  return static_cast<int>(cudaSetDevice(device));
#else
  return 0;
#endif
}

}  // namespace

void add_launch(const Launch& launch) { launches().push_back(launch); }

}  // namespace ortmodule::cuda

extern "C" __attribute__((visibility("default"))) const ortmodule::cuda::LaunchTable* ortmodule_cuda_launches() {
  using namespace ortmodule::cuda;
  static const LaunchTable table = [] {
    std::sort(launches().begin(), launches().end(),
              [](const Launch& a, const Launch& b) { return std::strcmp(a.name, b.name) < 0; });
#ifdef __CUDACC__
    const char* made_by = "nvcc";
#else
    const char* made_by = "the simulated GPU";
#endif
    return LaunchTable{kAbi, made_by, launches().size(), launches().data(), &text_of, &use_device};
  }();
  return &table;
}
