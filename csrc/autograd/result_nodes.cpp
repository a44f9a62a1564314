#include "autograd/result_nodes.h"

#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>

#include "autograd/batched_gradients.h"
#include "autograd/node_support.h"
#include "base/status.h"

namespace ortmodule {

using torch::autograd::Edge;
using torch::autograd::edge_list;
using torch::autograd::variable_list;

namespace {

bool any_defined(const variable_list& tensors) {
  return std::any_of(tensors.begin(), tensors.end(), [](const at::Tensor& t) { return t.defined(); });
}

// Puts a node before each result but the deepest.
void add_result_nodes(const std::shared_ptr<StepBackward>& step, const std::vector<at::Tensor>& outputs,
                      edge_list& ends) {
  const ResultOrder& order = *step->results;
  const std::vector<size_t>& ys = step->agent->program().y_outputs;
  edge_list entries(ends.size());  // where what comes through others goes
  const auto node_before = [&](size_t y, bool waits, edge_list edges) {
    const auto node = make_node<ResultBackward>(step, y, waits);
    node->set_next_edges(std::move(edges));
    node->add_input_metadata(outputs[ys[y]]);
    return Edge(node, 0);
  };
  for (size_t y : order.sequence) {
    const ResultOrder::Result& result = order.results[y];
    if (order.deepest != y) {
      edge_list edges;
      edges.reserve(result.next.size() + 1);
      for (size_t inner : result.next) edges.push_back(entries[inner]);
      edges.push_back(std::move(ends[y]));
      ends[y] = node_before(y, false, std::move(edges));
    }
    entries[y] = result.gathers ? node_before(y, true, {ends[y]}) : ends[y];
  }
  for (const Edge& end : ends) step->result_nodes.emplace_back(end.function.get(), end.input_nr);
}

}  // namespace

std::optional<StepBackward::Look> StepBackward::take_look() {
  const std::lock_guard<std::mutex> lock(mutex);
  const auto node = looks.extract(torch::autograd::get_current_graph_task_id());
  if (node.empty()) return std::nullopt;
  return std::move(node.mapped());
}

bool ResultBackward::is_hooked(size_t result) const {
  torch::autograd::Node& node = *step_->result_nodes[result].first;
  return !node.tensor_pre_hooks().empty() || !node.retains_grad_hooks().empty() || any_of_python(node.pre_hooks()) ||
         any_of_python(node.post_hooks());
}

bool ResultBackward::is_looked_at(size_t result) const {
  const auto& [node, number] = step_->result_nodes[result];
  const auto* wanted = torch::autograd::get_current_graph_task_exec_info();
  if (wanted && !wanted->empty()) {
    const auto it = wanted->find(node);
    if (it == wanted->end() || !it->second.should_execute()) return false;
    if (it->second.captures_)
      for (const auto& capture : *it->second.captures_)
        if (capture.input_idx_ == static_cast<int>(number)) return true;
  }
  return is_hooked(result);
}

void ResultBackward::note(const at::Tensor& grad) {
  const ResultOrder& order = *step_->results;
  std::vector<size_t> looked;
  for (size_t inner : order.results[result_].below)
    if (is_looked_at(inner)) looked.push_back(inner);
  if (looked.empty()) return;
  const int64_t task = torch::autograd::get_current_graph_task_id();
  const std::lock_guard<std::mutex> lock(step_->mutex);
  const auto [entry, is_new] = step_->looks.try_emplace(task);
  StepBackward::Look& look = entry->second;
  if (is_new) {
    look.dys.resize(order.results.size());
    look.looked.resize(order.results.size(), false);
    // An evaluation may end above the ModuleBackward that takes it.
    const auto forget = [task, weak = std::weak_ptr<StepBackward>(step_)] {
      const std::shared_ptr<StepBackward> step = weak.lock();
      if (!step) return;
      StepBackward::Look gone;  // after the lock
      const std::lock_guard<std::mutex> lock(step->mutex);
      if (const auto it = step->looks.find(task); it != step->looks.end()) {
        std::swap(gone, it->second);
        step->looks.erase(it);
      }
    };
    torch::autograd::Engine::get_default_engine().queue_callback(forget);
  }
  look.dys[result_] = grad;
  for (size_t inner : looked) look.looked[inner] = true;
}

at::Tensor ResultBackward::gradient_of(size_t result) {
  if (!is_looked_at(result)) return {};
  StepBackward::Look look;
  {
    const std::lock_guard<std::mutex> lock(step_->mutex);
    const auto it = step_->looks.find(torch::autograd::get_current_graph_task_id());
    if (it == step_->looks.end()) return {};
    look = it->second;
  }
  if (!any_defined(look.dys)) return {};
  if (!look.gradients) {
    look.gradients = step_->run_again(true);
    // Whether it is the same call: what the engine makes of these gradients is what PyTorch does.
    if (!any_batched(look.dys)) {
      StepBackward::Progress engine;
      {
        const at::NoGradGuard no_grad;
        const std::lock_guard<std::mutex> lock(step_->mutex);
        engine = step_->begin(look.dys, true);
      }
      const HigherOrder::Dxs dxs = [&] { return step_->engine_gradients(engine); };
      look.gradients({look.dys}, &dxs);
    }
    const std::lock_guard<std::mutex> lock(step_->mutex);
    step_->looks[torch::autograd::get_current_graph_task_id()].gradients = look.gradients;
  }
  ORTMODULE_CHECK(
      !at::GradMode::is_enabled() || !is_hooked(result), kUnsupported,
      "a result from which another one is computed has a hook, or its gradient is retained, where gradients "
      "are to be differentiated again (create_graph=True): it would not hear of the second backward. Later "
      "calls of this kind run in PyTorch, where it does; or call the wrapped module itself (model.module)");
  return look.gradients({look.dys, look.looked, result}, nullptr)[0];
}

variable_list ResultBackward::apply(variable_list&& grads) {
  variable_list out(num_outputs());
  if (waits_) {
    out[0] = gradient_of(result_);
    return out;
  }
  note(grads[0]);
  const std::vector<ResultOrder::Result>& results = step_->results->results;
  const std::vector<size_t>& next = results[result_].next;
  for (size_t edge = 0; edge < next.size(); ++edge)
    if (!results[next[edge]].gathers) out[edge] = gradient_of(next[edge]);
  out.back() = std::move(grads[0]);
  return out;
}

void tie_results(const std::shared_ptr<StepBackward>& step, const Edge& first, std::vector<at::Tensor>& outputs) {
  const std::vector<size_t>& ys = step->agent->program().y_outputs;
  if (!step->results) {
    for (size_t i : ys) torch::autograd::set_history(outputs[i], first.function);
    return;
  }
  for (size_t i : ys) first.function->add_input_metadata(outputs[i]);
  edge_list ends;  // where a result's gradient goes, by result
  for (size_t y = 0; y < ys.size(); ++y) ends.emplace_back(first.function, static_cast<uint32_t>(y));
  add_result_nodes(step, outputs, ends);
  for (size_t y = 0; y < ys.size(); ++y) torch::autograd::impl::set_gradient_edge(outputs[ys[y]], ends[y]);
}

}  // namespace ortmodule
