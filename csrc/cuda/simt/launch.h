// Launches of the simulated GPU: what they are given is checked, where they run is chosen, what they did is counted.
#pragma once

#include <functional>
#include <map>
#include <string>

#include "cuda/simt/access.h"
#include "cuda/simt/block.h"

namespace ortmodule::cuda::simt {

struct Settings {
  Order order = Order::kForward;
  uint64_t seed = 0;
  bool count_sectors = false;
};
void set_settings(const Settings& settings);

// Runs a job when those before it on the stream have; without one it runs at once.
using Enqueue = void (*)(void* stream, void (*job)(void*), void* data);
void set_enqueue(Enqueue enqueue);

struct KernelCount {
  uint64_t launches = 0, threads = 0;
  Traffic traffic;
};
// By kernel, since the last reset.
std::map<std::string, KernelCount> counts();
void reset_counts();

// 0, or an error that error_text() tells: of the launch itself. What a kernel does wrong is thrown where it runs.
int queue(const Grid& grid, size_t shared_bytes, void* stream, std::function<void()> kernel);
const char* error_text(int error);

}  // namespace ortmodule::cuda::simt
