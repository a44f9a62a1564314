// The simulated GPU as a library: gives a device of the tests the table of the simulated CUDA kernels.
//
// For ctypes. Not here: the simulator (csrc/cuda/simt), the device (tests/device/guarded_device).
#include <cstring>
#include <sstream>
#include <string>

#include "cuda/launch_table.h"
#include "cuda/simt/launch.h"
#include "cuda/tables.h"

#define SIMULATED_EXPORT extern "C" __attribute__((visibility("default")))

extern "C" const ortmodule::cuda::LaunchTable* ortmodule_cuda_launches();

namespace {

using namespace ortmodule::cuda;

using DeviceReach = void (*)(const void*, void**, const void**, const void**);
DeviceReach device_reach = nullptr;

simt::Reached reached(const void* address) {
  void* at = nullptr;
  const void *begin = nullptr, *end = nullptr;
  device_reach(address, &at, &begin, &end);
  return {static_cast<char*>(at), static_cast<const char*>(begin), static_cast<const char*>(end)};
}

}  // namespace

// `reach` and `enqueue`: of the device. Kernels that sessions find from now on run here.
SIMULATED_EXPORT void simulated_serve(const char* device_type, DeviceReach reach, simt::Enqueue enqueue) {
  device_reach = reach;
  simt::set_reach(&reached);
  simt::set_enqueue(enqueue);
  use_table(device_type, ortmodule_cuda_launches());
}

// 0: forward, 1: backward, 2: shuffled by the seed.
SIMULATED_EXPORT void simulated_set(int order, uint64_t seed, int count_sectors) {
  simt::set_settings({static_cast<simt::Order>(order), seed, count_sectors != 0});
}

SIMULATED_EXPORT void simulated_reset_counts() { simt::reset_counts(); }

// JSON into `text`, of at most `size` bytes: by kernel what it launched and moved. The bytes that it takes.
SIMULATED_EXPORT size_t simulated_counts(char* text, size_t size) {
  std::ostringstream out;
  out << '{';
  const char* between = "";
  for (const auto& [name, count] : simt::counts()) {
    out << between << '"' << name << "\": {\"launches\": " << count.launches << ", \"threads\": " << count.threads
        << ", \"loaded\": " << count.traffic.loaded << ", \"stored\": " << count.traffic.stored
        << ", \"touched\": " << count.traffic.touched << ", \"needed\": " << count.traffic.needed << '}';
    between = ", ";
  }
  out << '}';
  const std::string all = out.str();
  if (size > all.size()) std::memcpy(text, all.c_str(), all.size() + 1);
  return all.size() + 1;
}
