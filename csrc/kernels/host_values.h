// Integer lists that kernels read on the host: axes, sizes, pads.
//
// Most of them are constants of the graph. A factory asks once and keeps the numbers; only a list that is computed at
// run time is read from its tensor per call, into the caller's stack storage.
#pragma once

#include <c10/util/DimVector.h>

#include <optional>
#include <string>
#include <vector>

#include "base/status.h"
#include "graph/graph.h"
#include "kernels/kernel_context.h"

namespace ortmodule {

class HostInts {
 public:
  HostInts(const Node& node, size_t input) : input_(input), present_(node.input(input) != nullptr) {
    const NodeArg* value = node.input(input);
    if (value && value->constant()) constant_ = value->constant()->to_ints();
  }

  bool present() const { return present_; }
  // The numbers when they are known before the run, or null.
  const std::vector<int64_t>* constant() const { return constant_ ? &*constant_ : nullptr; }

  // The list of this run, empty when the input is absent. `storage` holds it where it is not a constant.
  c10::IntArrayRef read(const KernelContext& c, c10::DimVector& storage) const {
    if (constant_) return *constant_;
    if (!present_) return {};
    const at::Tensor& t = c.in(input_);
    if (t.device().is_cpu() && t.scalar_type() == at::kLong && t.is_contiguous()) {
      const int64_t* data = t.const_data_ptr<int64_t>();
      storage.assign(data, data + t.numel());
    } else {
      const std::vector<int64_t> values = c.ints(input_);
      storage.assign(values.begin(), values.end());
    }
    return storage;
  }

  // A one-element list as a number; `fallback` when the input is absent.
  int64_t value(const KernelContext& c, int64_t fallback) const {
    c10::DimVector storage;
    const c10::IntArrayRef all = read(c, storage);
    return all.empty() ? fallback : all[0];
  }

 private:
  size_t input_;
  bool present_;
  std::optional<std::vector<int64_t>> constant_;
};

// `axis` of a tensor of rank `rank`, made non-negative; throws kRuntime outside [-rank, rank).
inline int64_t positive_axis(int64_t axis, int64_t rank, const char* op) {
  ORTMODULE_CHECK(axis >= -rank && axis < rank, kRuntime, "[", op, "] axis ", axis, " is outside [", -rank, ", ", rank,
                  ")");
  return axis < 0 ? axis + rank : axis;
}

}  // namespace ortmodule
