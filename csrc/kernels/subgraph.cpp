#include "kernels/subgraph.h"

#include <ATen/ops/empty.h>

#include <algorithm>

#include "base/limits.h"
#include "base/status.h"
#include "graph/subgraph.h"
#include "kernels/aten_bridge.h"
#include "kernels/kernel_context.h"

namespace ortmodule {
namespace {

SubgraphFactory registered = nullptr;

}  // namespace

void set_subgraph_factory(SubgraphFactory factory) { registered = factory; }

std::shared_ptr<const Subgraph> make_subgraph(std::shared_ptr<const Graph> graph) {
  ORTMODULE_INTERNAL(registered, "the runtime registered no way to run subgraphs");
  return registered(std::move(graph));
}

BodyCall::BodyCall(const Node& node, const char* attribute, size_t formals, const std::vector<std::string>& named)
    : formals_(formals) {
  const std::shared_ptr<Graph> graph = find_subgraph(node, attribute);
  ORTMODULE_CHECK_GRAPH(graph, "[", node.op(), "] the attribute '", attribute, "' holds no graph (", node.describe(),
                        ")");
  const std::vector<std::string> names = node.get_strings(kCapturedAttribute);
  const size_t first = explicit_input_count(node);
  const auto& inputs = graph->inputs();
  ORTMODULE_CHECK_GRAPH(inputs.size() >= formals, "[", node.op(), "] the graph '", attribute, "' takes ", inputs.size(),
                        " inputs, the node gives ", formals, " (", node.describe(), ")");
  for (size_t i = formals; i < inputs.size(); ++i) {
    const auto given = std::find(named.begin(), named.end(), inputs[i]->name());
    if (given != named.end()) {
      others_.push_back({true, static_cast<size_t>(given - named.begin())});
      continue;
    }
    const auto at = std::find(names.begin(), names.end(), inputs[i]->name());
    ORTMODULE_CHECK_GRAPH(at != names.end(), "[", node.op(), "] the input '", inputs[i]->name(), "' of graph '",
                          attribute, "' has no value (", node.describe(), ")");
    others_.push_back({false, first + static_cast<size_t>(at - names.begin())});
  }
  for (const NodeArg* out : graph->outputs()) outputs_.push_back(out->type());
  subgraph_ = make_subgraph(graph);
}

std::vector<at::Tensor> BodyCall::with_others(const KernelContext& c, std::vector<at::Tensor> values,
                                              const std::vector<at::Tensor>& named) const {
  values.reserve(formals_ + others_.size());
  for (const Source& source : others_)
    values.push_back(source.named ? named[source.index] : c.in_or_undefined(source.index));
  return values;
}

std::vector<at::Tensor> BodyCall::run(const KernelContext& c, std::vector<at::Tensor> values,
                                      const std::vector<at::Tensor>& named) const {
  if (const auto& allowance = Allowance::current()) allowance->check_time();  // a body may have no node
  return subgraph_->run(with_others(c, std::move(values), named));
}

at::Tensor BodyCall::empty_stack(const KernelContext& c, std::vector<at::Tensor> values, size_t output) const {
  std::vector<int64_t> sizes = subgraph_->output_sizes(with_others(c, std::move(values), {}), output);
  sizes.insert(sizes.begin(), 0);
  return at::empty(sizes, at::TensorOptions().dtype(to_scalar_type(outputs_[output].dtype)).device(c.device()));
}

}  // namespace ortmodule
