// Kernel of Sizes. Expressions are parsed once per node.
#include <ATen/ops/empty.h>

#include "kernels/host_values.h"
#include "kernels/kernel_context.h"
#include "records/kernel_registry.h"

namespace ortmodule {
namespace {

ORTMODULE_KERNEL("ai.ortmodule", Sizes, "aten", [](const Node& node) -> Kernel {
  std::vector<Dim> dims;
  for (const std::string& text : node.get_strings("exprs")) dims.push_back(Dim::parse(text));
  const bool scalar = node.get_int("scalar", 0) != 0;
  return [dims = std::move(dims), symbols = node.get_strings("symbols"), scalar](KernelContext& c) {
    at::Tensor sizes = scalar ? at::empty({}, at::TensorOptions(at::kLong))
                              : at::empty({static_cast<int64_t>(dims.size())}, at::TensorOptions(at::kLong));
    int64_t* out = sizes.mutable_data_ptr<int64_t>();
    if (symbols.empty()) {
      for (const Dim& d : dims) *out++ = d.evaluate(c.symbols());
    } else {
      SymbolTable table = c.symbols();
      for (size_t i = 0; i < symbols.size(); ++i) table[symbols[i]] = c.int_value(i);
      for (const Dim& d : dims) *out++ = d.evaluate(table);
    }
    c.out(0, std::move(sizes));
  };
});

}  // namespace
}  // namespace ortmodule
