// Kernels, looked up by (domain, operator, opset, provider, type constraints).
//
// A kernel is made once per node by a factory that reads the node's attributes; what it returns is called at each
// run. The provider "aten" runs on every device torch has and is the default; "cpu" and "cuda" kernels go first on
// their device. This header knows no torch, so that the planner and tests can ask what a kernel declares.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "graph/graph.h"
#include "ortmodule/export.h"

namespace ortmodule {

class KernelContext;
using Kernel = std::function<void(KernelContext&)>;
// The node is a description only: a kernel must not keep the reference.
using KernelFactory = Kernel (*)(const Node& node);

// What a kernel is given of types that torch stores but computes little with: uint16, uint32, uint64 and float8.
enum class RareTypes {
  kConverted,  // wider numbers; uint64 as int64 of the same bits, so that sums and products come out right
  kOrdered,    // the same, but uint64 as int64 of the same order
  kAsIs,       // the elements themselves: the kernel knows what to do
};

struct KernelDef {
  std::string domain, op, provider;
  KernelFactory make = nullptr;
  int first_opset = 1, last_opset = 1 << 30;
  std::vector<DType> dtypes;  // of input 0; empty: any
  bool may_inplace = false;   // may write output 0 over input 0 when nobody else sees it
  bool foreign = false;       // runs code that is not the engine's, which may keep what it allocates
  RareTypes rare = RareTypes::kConverted;
  const char* file = "";

  KernelDef& opset(int first, int last) {
    first_opset = first;
    last_opset = last;
    return *this;
  }
  KernelDef& types(std::vector<DType> list) {
    dtypes = std::move(list);
    return *this;
  }
  KernelDef& inplace() {
    may_inplace = true;
    return *this;
  }
  KernelDef& runs_foreign_code() {
    foreign = true;
    return *this;
  }
  KernelDef& rare_types(RareTypes how) {
    rare = how;
    return *this;
  }
};

// The node's kernel, around it the conversions that RareTypes tells where the node has such types.
Kernel make_kernel(const KernelDef& def, const Node& node);

class KernelRegistry {
 public:
  ORTMODULE_API static KernelRegistry& instance();
  ORTMODULE_API KernelDef& add(const std::string& domain, const std::string& op, const std::string& provider,
                               KernelFactory make, const char* file);
  // The kernel for a node of the first of these providers that has one ("my_provider", "cuda"), else "aten"'s; null
  // when there is none.
  ORTMODULE_API const KernelDef* find(const Node& node, const std::vector<std::string>& providers) const;
  // Whether a kernel of an operator ("ai.ortmodule::FusedKernel") is one of these providers' own.
  bool has(const std::string& qualified, const std::vector<std::string>& providers) const;
  size_t size() const { return defs_.size(); }

 private:
  std::vector<std::unique_ptr<KernelDef>> defs_;
  std::unordered_map<std::string, std::vector<KernelDef*>> by_name_;
};

}  // namespace ortmodule

// ORTMODULE_KERNEL("", Relu, "aten", [](const Node&) -> Kernel { return [](KernelContext& c) {...}; }).inplace();
#define ORTMODULE_KERNEL_CONCAT_(a, b) a##b
#define ORTMODULE_KERNEL_CONCAT(a, b) ORTMODULE_KERNEL_CONCAT_(a, b)
#define ORTMODULE_KERNEL(domain, op, provider, ...)                                               \
  [[maybe_unused]] static ::ortmodule::KernelDef& ORTMODULE_KERNEL_CONCAT(kernel_, __COUNTER__) = \
      ::ortmodule::KernelRegistry::instance().add(domain, #op, provider, __VA_ARGS__, __FILE__)
