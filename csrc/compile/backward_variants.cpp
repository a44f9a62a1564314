#include "compile/backward_variants.h"

#include <algorithm>
#include <utility>

#include "records/resolve.h"
#include "transforms/recompute.h"

namespace ortmodule {
namespace {

// Whether value `name` means the same in both graphs: an input, or the same operator on inputs of the same names.
bool same_value(const Graph& a, const Graph& b, const std::string& name) {
  const NodeArg *x = a.find(name), *y = b.find(name);
  if (!x || !y || !x->producer() != !y->producer()) return false;
  if (!x->producer()) return true;
  const Node &p = *x->producer(), &q = *y->producer();
  if (p.op() != q.op() || x->output_index() != y->output_index() || p.inputs().size() != q.inputs().size())
    return false;
  for (size_t i = 0; i < p.inputs().size(); ++i) {
    if (!p.input(i) != !q.input(i)) return false;
    if (p.input(i) && !p.input(i)->constant() && p.input(i)->name() != q.input(i)->name()) return false;
  }
  return true;
}

// Which of the first `count` slots a plan reads or hands out.
std::vector<char> slots_read(const ExecutionPlan& plan, size_t count) {
  std::vector<char> read(count, 0);
  const auto note = [&](int slot) {
    if (slot >= 0 && static_cast<size_t>(slot) < count) read[slot] = 1;
  };
  for (const Step& step : plan.steps)
    for (int slot : step.inputs) note(slot);
  for (int slot : plan.output_slots) note(slot);
  return read;
}

}  // namespace

BackwardVariants::BackwardVariants(std::shared_ptr<const Graph> undifferentiated, std::shared_ptr<const Graph> unfused,
                                   Halves halves, KeptValues kept, PlanTarget target, Steps steps)
    : undifferentiated_(std::move(undifferentiated)),
      unfused_(std::move(unfused)),
      halves_(std::move(halves)),
      kept_(std::move(kept)),
      target_(std::move(target)),
      steps_(std::move(steps)) {
  halves_.gradient = {};  // values of a graph that this does not hold
}

std::shared_ptr<BackwardProgram> BackwardVariants::compile(const OutputSet& mask) const {
  // What only other outputs need may be freed before this backward: it is read in the last resort.
  std::unordered_set<std::string> needed;
  for (const std::string& name : kept_.names) {
    const auto it = halves_.separate.needs.find(name);
    bool wanted = it == halves_.separate.needs.end();
    for (size_t k = 0; k < mask.size() && !wanted; ++k) wanted = mask[k] && it->second[k];
    if (wanted) needed.insert(name);
  }
  std::shared_ptr<BackwardProgram> variant = compile_from(mask, needed);
  return variant || needed.size() == kept_.names.size() ? variant : compile_from(mask, kept_.names);
}

bool BackwardVariants::reads_only(const Graph& graph, const GradientResult& gradient,
                                  const std::unordered_set<std::string>& kept) const {
  const auto dxs = gradient_outputs(graph, halves_.forward_outputs, gradient.dxs);
  const std::vector<NodeArg*> read = saved_for_backward(graph, dxs);
  return std::all_of(read.begin(), read.end(), [&](const NodeArg* value) {
    const bool is_dy = std::find(gradient.dys.begin(), gradient.dys.end(), value) != gradient.dys.end();
    return is_dy || (kept.count(value->name()) && same_value(*unfused_, graph, value->name()));
  });
}

std::shared_ptr<BackwardProgram> BackwardVariants::compile_from(const OutputSet& mask,
                                                                const std::unordered_set<std::string>& kept) const {
  std::shared_ptr<Graph> graph = undifferentiated_->clone();
  const GradientResult gradient = differentiate(*graph, halves_.roots, mask);
  steps_.transform(*graph);
  if (!recompute_from(*graph, kept)) return nullptr;
  resolve(*graph, {.infer = false});
  if (!reads_only(*graph, gradient, kept)) return nullptr;
  steps_.finish(*graph);
  std::vector<NodeArg*> dys(mask.size(), nullptr);  // this one's, spread to all ys
  for (size_t k = 0, next = 0; k < mask.size(); ++k)
    if (mask[k]) dys[k] = gradient.dys[next++];
  const auto dxs = gradient_outputs(*graph, halves_.forward_outputs, gradient.dxs);
  std::shared_ptr<BackwardProgram> variant = plan_backward(graph, dys, dxs, kept_, target_);
  variant->reads = slots_read(variant->executor->plan(), kept_.slots.size());
  return variant;
}

}  // namespace ortmodule
