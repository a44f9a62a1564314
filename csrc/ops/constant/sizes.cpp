// Sizes: symbolic expressions over the run's dims as an int64 vector or scalar in host memory.
//
// One node stands for what ONNX writes as a chain of Shape, Gather and Concat. Symbols are bound from the shapes of
// the graph's inputs; `symbols[i]` names a symbol that is bound by the 0-d integer input i instead, because it exists
// at run time only (a count, an item of a tensor).
#include "base/status.h"
#include "records/infer_context.h"
#include "records/registry.h"

namespace ortmodule {
namespace {

ORTMODULE_OP("ai.ortmodule", Sizes, 1)
    .host_input("bindings", Presence::kVariadic)
    .output("sizes")
    .required_attr("exprs", AttrKind::kStrings)
    .attr("scalar", AttrKind::kInt)
    .attr("symbols", AttrKind::kStrings)
    .traits(kHostOutput | kCheap)
    .infer([](InferContext& c) {
      for (size_t i = 0; i < c.input_count(); ++i)
        if (!c.node().input(i)) c.error(str("input ", i, " is missing"));
      std::vector<Dim> values;
      for (const std::string& text : c.node().get_strings("exprs")) values.push_back(Dim::parse(text));
      const size_t symbols = c.node().get_strings("symbols").size();
      if (symbols != c.input_count()) c.error(str(symbols, " symbols for ", c.input_count(), " inputs"));
      const bool scalar = c.attr_int("scalar", 0) != 0;
      if (scalar && values.size() != 1) c.error(str("a scalar needs one expression, got ", values.size()));
      c.out(0, DType::kInt64, scalar ? Shape{} : Shape{Dim(static_cast<int64_t>(values.size()))});
      c.known(0, std::move(values));
    });

}  // namespace
}  // namespace ortmodule
