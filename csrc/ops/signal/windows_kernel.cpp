// Kernels of the windows and of MelWeightMatrix: numbers made on the host in double, rounded once.
#include <ATen/core/Tensor.h>
#include <ATen/ops/tensor.h>

#include <cmath>

#include "base/limits.h"
#include "base/status.h"
#include "kernels/aten_bridge.h"
#include "kernels/host_doubles.h"
#include "kernels/host_values.h"
#include "kernels/kernel_context.h"
#include "records/kernel_registry.h"

namespace ortmodule {
namespace {

constexpr double kPi = 3.14159265358979323846;

at::Tensor table(const std::vector<double>& values, const KernelContext& c, at::ScalarType type) {
  return at::tensor(values, at::TensorOptions(at::kDouble)).to(c.device(), type);
}

// sum of terms[k] * cos(2 pi k i / N)
template <size_t n>
Kernel window(const Node& node, const std::array<double, n>& terms) {
  const auto type = to_scalar_type(static_cast<DType>(node.get_int("output_datatype", 1)));
  return [terms, type, size = HostInts(node, 0), periodic = node.get_int("periodic", 1) != 0](KernelContext& c) {
    const int64_t count = size.value(c, 0);
    ORTMODULE_CHECK(count >= 0 && count < (int64_t{1} << 31), kRuntime, "[Window] a size of ", count);
    Allowance::Collected().add(sizeof(double) * static_cast<uint64_t>(count));
    const auto period = static_cast<double>(periodic ? count : count - 1);
    std::vector<double> values(static_cast<size_t>(count), 1.0);  // a symmetric window of one element is 1
    for (int64_t i = 0; i < count && period > 0; ++i) {
      double sum = 0;
      for (size_t k = 0; k < n; ++k)
        sum += terms[k] * std::cos(2 * kPi * static_cast<double>(k) * static_cast<double>(i) / period);
      values[static_cast<size_t>(i)] = sum;
    }
    c.out(0, table(values, c, type));
  };
}

double mel(double hertz) { return 2595 * std::log10(1 + hertz / 700); }
double hertz(double mel) { return 700 * (std::pow(10, mel / 2595) - 1); }

Kernel make_mel_weight_matrix(const Node& node) {
  const auto type = to_scalar_type(static_cast<DType>(node.get_int("output_datatype", 1)));
  return [type, bins_in = HostInts(node, 0), length_in = HostInts(node, 1), rate_in = HostInts(node, 2),
          low_in = HostDoubles(node, 3), high_in = HostDoubles(node, 4)](KernelContext& c) {
    const int64_t bins = bins_in.value(c, 0), length = length_in.value(c, 0), rate = rate_in.value(c, 0);
    ORTMODULE_CHECK(bins > 0 && length > 0 && rate > 0 && bins < (1 << 20) && length < (1 << 28), kRuntime,
                    "[MelWeightMatrix] ", bins, " bins of a transform of ", length, " at ", rate, " Hz");
    const int64_t rows = length / 2 + 1;
    Allowance::Collected().add(sizeof(double) * static_cast<uint64_t>(rows * bins));
    const double low = mel(low_in.value(c, 0)), high = mel(high_in.value(c, 0));
    std::vector<int64_t> edges;  // spectrogram rows at which the triangles begin, peak and end
    for (int64_t i = 0; i < bins + 2; ++i) {
      const double at = hertz(low + static_cast<double>(i) * (high - low) / static_cast<double>(bins + 2));
      const double row = std::floor(static_cast<double>(length + 1) * at / static_cast<double>(rate));
      ORTMODULE_CHECK(row >= 0 && row < static_cast<double>(rows), kRuntime, "[MelWeightMatrix] a frequency of ", at,
                      " Hz is outside the spectrum of a signal at ", rate, " Hz");
      edges.push_back(static_cast<int64_t>(row));
    }
    std::vector<double> values(static_cast<size_t>(rows * bins), 0.0);
    for (int64_t i = 0; i < bins; ++i) {
      const auto k = static_cast<size_t>(i);
      const int64_t from = edges[k], peak = edges[k + 1], to = edges[k + 2];
      const auto cell = [&](int64_t row) -> double& { return values[static_cast<size_t>(row * bins + i)]; };
      if (from == peak) cell(peak) = 1;
      for (int64_t j = from; j <= peak && from < peak; ++j)
        cell(j) = static_cast<double>(j - from) / static_cast<double>(peak - from);
      for (int64_t j = peak; j < to; ++j) cell(j) = static_cast<double>(to - j) / static_cast<double>(to - peak);
    }
    c.out(0, table(values, c, type).view({rows, bins}));
  };
}

}  // namespace

ORTMODULE_KERNEL("", HannWindow, "aten", [](const Node& node) -> Kernel { return window<2>(node, {0.5, -0.5}); });
ORTMODULE_KERNEL("", HammingWindow, "aten",
                 [](const Node& node) -> Kernel { return window<2>(node, {25.0 / 46, -21.0 / 46}); });
ORTMODULE_KERNEL("", BlackmanWindow, "aten",
                 [](const Node& node) -> Kernel { return window<3>(node, {0.42, -0.5, 0.08}); });
ORTMODULE_KERNEL("", MelWeightMatrix, "aten", make_mel_weight_matrix);

}  // namespace ortmodule
