#include "records/prices.h"

#include "cuda/tables.h"

namespace ortmodule {
namespace {

constexpr double kHostWork = 64.0 * (1 << 10);  // bytes that the host is done with before a device has begun

// Measured on hosts with AVX2 and AVX-512; in float32.
constexpr Prices kHost{};

// An H200 by its datasheet: 989 Tflop/s of dense bfloat16 over 4.8 TB/s; a kernel takes 2 us at the least, and
// some 50 us pass until kernels are queued again ahead of a device that the host has waited for. Its caches
// are small beside a step's values, and functions such as exp cost less than the memory they read.
constexpr Prices kCuda{
    .host_bytes = kHostWork,
    .flops_per_byte = 206,
    .launch_bytes = 8e6,
    .wait_bytes = 2.4e8,
    .not_cheap_passes = 1,
    .conversion_passes = 1,
    .recomputed_share = 0.005,
    .cluster_nodes = 48,
    .cluster_instructions = 128,
    .cluster_inputs = 16,
    .whole_rows = true,
};

constexpr Prices kOther{.host_bytes = kHostWork};

}  // namespace

const Prices& prices_of(const std::string& device_type) {
  if (device_type.empty() || device_type == "cpu") return kHost;
  return device_type == "cuda" || cuda::table_of(device_type) ? kCuda : kOther;
}

}  // namespace ortmodule
