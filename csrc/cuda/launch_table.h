// The seam between the engine and its CUDA kernels: one table of launch functions, found by name.
//
// A .cu file beside an operator's record defines launch functions and registers them (kernel.cuh). What a launch takes
// is a plain struct of addresses, sizes and numbers in a header beside both, and a stream's address: neither side sees
// the other's headers. libortmodule_cuda.so, compiled by nvcc, exports one such table; the tests' simulated GPU, the
// same sources compiled by the host's compiler (simt/), has another. Not here: who loads which (tables.h).
#pragma once

#include <cstddef>
#include <cstdint>

namespace ortmodule::cuda {

// Changes with these structs, and with those of any launch.
constexpr uint32_t kAbi = 5;

struct Launch {
  const char* name;
  size_t argument_bytes;  // of the struct that `run` takes
  // Queues the work and returns 0, or the error of the launch.
  int (*run)(const void* arguments, void* stream);
};

struct LaunchTable {
  uint32_t abi;
  const char* made_by;  // for messages
  size_t count;
  const Launch* launches;  // by name, ascending
  const char* (*error_text)(int error);
  // Makes the device's context current in the calling thread; returns 0 or the error.
  int (*use_device)(int device);
};

// Exported by libortmodule_cuda.so as this symbol.
using LaunchTableFunction = const LaunchTable* (*)();
constexpr const char* kLaunchTableSymbol = "ortmodule_cuda_launches";

// What tensors of a launch have for elements.
enum class Element : int32_t { kFloat, kHalf, kBFloat16 };

}  // namespace ortmodule::cuda
