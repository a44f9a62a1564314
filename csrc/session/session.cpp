#include "session/session.h"

#include <ATen/Parallel.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <optional>

#include "base/status.h"
#include "graph/value_bytes.h"
#include "kernels/copy_list.h"
#include "products/matmul_provider.h"
#include "records/registry.h"
#include "runtime/thread_limit.h"
#include "session/late_choice.h"

namespace ortmodule {
namespace {

// Threads for as many nodes at once as were asked for, or as the graph has and torch's threads allow; what is left of
// torch's threads is for each of them.
InterOp inter_op_for(const ParallelExecutor* executor, const SessionSettings& settings) {
  InterOp out;
  ORTMODULE_CHECK_ARG(settings.threads >= 0 && settings.inter_op_threads >= 0, "numbers of threads are from 0 on, got ",
                      std::min(settings.threads, settings.inter_op_threads));
  if (!executor || executor->width() < 2) return out;
  const int all = std::max(1, at::get_num_threads());
  int at_once = settings.inter_op_threads;
  if (!settings.own_pool) {
    out.pool = InterOpPool::global(static_cast<size_t>(all));
    at_once = static_cast<int>(out.pool->size());
  } else if (at_once == 0) {
    const auto width = static_cast<int>(std::min<size_t>(executor->width(), static_cast<size_t>(all)));
    at_once = std::min(width, std::max(1, all / std::max(1, settings.threads)));
  }
  if (settings.own_pool && at_once > 1)
    out.pool = std::make_shared<InterOpPool>(static_cast<size_t>(at_once), settings.spin);
  out.threads = settings.threads > 0 ? settings.threads : std::max(1, all / at_once);
  return out;
}

}  // namespace

Session::Session(std::string_view model, SessionSettings options)
    : device_(options.device),
      threads_(options.threads),
      deterministic_(options.deterministic),
      mutations_(std::move(options.mutations)) {
  compiled_ = compile(model, options);
  for (const auto& [name, data] : options.import.initializers) given_weights_.push_back({name, data.bytes});
  inter_op_ = inter_op_for(compiled_.agent->program().parallel.get(), options);
  compiled_.agent->set_observers(observers_);
  for (const NodeArg* in : compiled_.graph->inputs()) input_types_.push_back(in->type().dtype);
  std::vector<size_t> overwritten;
  for (const auto& [output, input] : mutations_) {
    ORTMODULE_CHECK_ARG(output < compiled_.output_names.size() && input < compiled_.input_names.size(), "mutation (",
                        output, ", ", input, ") is out of range");
    first_mutation_ = std::min(first_mutation_, output);
    overwritten.push_back(input);
    const Node* producer = compiled_.graph->outputs()[output]->producer();
    if (producer && producer->record()->has(kStatistics)) uncounted_.insert(output);
  }
  if (overwritten.empty()) return;
  compiled_.agent->set_overwritten(overwritten);
  compiled_.agent->set_results(first_mutation_);
}

std::vector<at::Tensor> Session::overwritten_of(const std::vector<at::Tensor>& inputs) const {
  std::vector<at::Tensor> overwritten;
  for (const auto& [output, input] : mutations_) overwritten.push_back(inputs[input]);
  return overwritten;
}

void Session::write_back(std::vector<at::Tensor>& outputs, const std::vector<at::Tensor>& overwritten) const {
  if (mutations_.empty()) return;
  settle_before_write(overwritten);
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> values;
  std::vector<char> counts;
  for (size_t i = 0; i < mutations_.size(); ++i) {
    const size_t output = mutations_[i].first;
    const at::Tensor &value = outputs[output], &target = overwritten[i];
    // An observer gives its buffers as many elements as it finds channels.
    if (value.numel() > target.numel()) {
      std::optional<at::AutoDispatchBelowADInplaceOrView> unseen;
      if (uncounted_.count(output)) unseen.emplace();
      target.resize_(value.sizes());
    }
    values.push_back(value);
    counts.push_back(uncounted_.count(output) == 0);
  }
  copy_list(values, overwritten, counts);
  outputs.resize(first_mutation_);
}

std::vector<at::Tensor> Session::run(std::vector<at::Tensor>&& inputs, const std::vector<size_t>* unchecked) const {
  const std::vector<at::Tensor> overwritten = overwritten_of(inputs);
  std::vector<at::Tensor> outputs =
      run_with_history(compiled_.agent, edges_, higher_, hook_order_, results_, late_, std::move(inputs), unchecked);
  write_back(outputs, overwritten);
  return outputs;
}

std::vector<at::Tensor> Session::forward(std::vector<at::Tensor>&& inputs,
                                         std::shared_ptr<TrainingAgent::RunState>* state,
                                         const CachedRun* cached) const {
  const at::NoGradGuard no_grad;
  const std::vector<at::Tensor> overwritten = overwritten_of(inputs);
  std::vector<at::Tensor> outputs = compiled_.agent->forward(std::move(inputs), state, nullptr, nullptr, cached);
  write_back(outputs, overwritten);
  return outputs;
}

// More kinds of calls than this are served by the plan for all outputs.
constexpr size_t kFetchVariants = 64;

std::shared_ptr<TrainingAgent> Session::agent_for(const OutputSet& fetched) const {
  if (fetched.empty() || std::all_of(fetched.begin(), fetched.end(), [](bool wanted) { return wanted; }))
    return compiled_.agent;
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto known = fetches_.find(fetched);
  if (known != fetches_.end()) return known->second;
  if (fetches_.size() >= kFetchVariants) return compiled_.agent;
  const std::shared_ptr<TrainingAgent> agent = compiled_.compile_fetches(fetched);
  agent->set_observers(observers_);
  return fetches_.emplace(fetched, agent).first->second;
}

void Session::trace(std::shared_ptr<RunTrace> trace) {
  const std::lock_guard<std::mutex> lock(mutex_);
  trace_ = std::move(trace);
}

std::vector<std::shared_ptr<TrainingAgent>> Session::agents() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  std::vector<std::shared_ptr<TrainingAgent>> all{compiled_.agent};
  for (const auto& [mask, agent] : fetches_) all.push_back(agent);
  return all;
}

namespace {

template <typename T>
void keep_fetched(std::vector<T>& all, const OutputSet& fetched) {
  size_t kept = 0;
  for (size_t i = 0; i < all.size(); ++i)
    if (fetched[i]) std::swap(all[kept++], all[i]);
  all.resize(kept);
}

}  // namespace

std::vector<at::Tensor> Session::infer(std::vector<at::Tensor>&& inputs, const OutputSet& fetched, const RunStop* stop,
                                       ResultBuffers* results) const {
  ORTMODULE_INTERNAL(compiled_.compile_fetches && mutations_.empty(), "this session is for training");
  const std::shared_ptr<TrainingAgent> agent = agent_for(fetched);
  const std::shared_ptr<RunTrace> trace = [this] {
    const std::lock_guard<std::mutex> lock(mutex_);
    return trace_;
  }();
  const at::NoGradGuard no_grad;
  const RunTrace::Scope traced(trace.get());
  const RunStop::Scope stopped(stop);
  const ThreadLimit threads(threads_);
  const DeterministicScope deterministic(deterministic_);
  if (results && agent != compiled_.agent) keep_fetched(results->buffers, fetched);
  std::vector<at::Tensor> outputs = agent->forward(std::move(inputs), nullptr, nullptr, &inter_op_, nullptr, results);
  if (agent == compiled_.agent && !fetched.empty()) {
    keep_fetched(outputs, fetched);
    if (results) keep_fetched(results->buffers, fetched);
    if (results) keep_fetched(results->copied, fetched);
  }
  for (size_t i = 0; i < outputs.size(); ++i) {
    at::Tensor& output = outputs[i];
    if (results && results->buffers[i].defined()) continue;
    // A transposed view, pictures whose channels lie side by side.
    if (output.defined() && output.has_storage() && !output.is_contiguous()) output = output.contiguous();
  }
  return outputs;
}

std::vector<at::Tensor> Session::infer_places(const std::vector<at::Tensor>& inputs, const std::vector<size_t>& wanted,
                                              const RunStop* stop, bool whole, ResultBuffers* results) const {
  std::vector<at::Tensor> values = inputs;  // kernels overwrite what nobody else has
  OutputSet fetched(compiled_.output_names.size(), whole);
  for (size_t place : wanted) fetched.at(place) = true;
  ResultBuffers placed{std::vector<at::Tensor>(fetched.size())};
  bool any = false;
  for (size_t i = 0; results && i < wanted.size(); ++i) {
    placed.buffers[wanted[i]] = results->buffers[i];
    any = any || results->buffers[i].defined();
  }
  if (any) check_buffers(*results);
  const std::vector<at::Tensor> made = infer(std::move(values), fetched, stop, any ? &placed : nullptr);
  std::vector<at::Tensor> ordered;
  if (results) results->copied.clear();
  for (size_t place : wanted) {
    const auto before = std::count(fetched.begin(), fetched.begin() + static_cast<long>(place), true);
    ordered.push_back(made[static_cast<size_t>(before)]);
    if (results) results->copied.push_back(any ? placed.copied[static_cast<size_t>(before)] : char{0});
  }
  return ordered;
}

void Session::check_buffers(const ResultBuffers& results) const {
  for (const auto& [name, bytes] : given_weights_)
    for (const at::Tensor& buffer : results.buffers) {
      if (!buffer.defined() || !buffer.is_cpu() || !buffer.has_storage()) continue;
      const auto* begin = static_cast<const char*>(buffer.storage().data());
      const auto* weight = reinterpret_cast<const char*>(bytes->data());
      ORTMODULE_CHECK_ARG(begin + buffer.storage().nbytes() <= weight || weight + bytes->size() <= begin,
                          "a buffer of an output lies in the memory of the initializer '", name,
                          "', which the session reads: bind another");
    }
}

void Session::differentiate_again(std::vector<size_t> given, HigherOrder::Repeat repeat, bool expected) {
  const auto higher = std::make_shared<HigherOrder>();
  for (size_t i : given) {
    ORTMODULE_CHECK_ARG(i < compiled_.input_names.size(), "the graph has no input ", i);
    higher->written.push_back(
        std::any_of(mutations_.begin(), mutations_.end(), [i](const auto& mutation) { return mutation.second == i; }));
  }
  higher->given = std::move(given);
  higher->repeat = std::move(repeat);
  higher->expected = expected;
  compiled_.graph->for_each([&](Node& node) {
    higher->draws = higher->draws || (node.record() && node.record()->has(kRandom) && !node.find_attribute("seed"));
  });
  higher_ = higher;
}

std::vector<std::string> Session::differentiable_outputs() const {
  std::vector<std::string> names;
  for (size_t i : compiled_.agent->program().y_outputs) names.push_back(compiled_.output_names[i]);
  return names;
}

std::vector<std::string> Session::written_with_history() const {
  const std::vector<size_t>& reached = compiled_.agent->program().y_outputs;
  std::vector<std::string> names;
  for (const auto& [output, input] : mutations_)
    if (!uncounted_.count(output) && std::find(reached.begin(), reached.end(), output) != reached.end())
      names.push_back(compiled_.input_names[input]);
  return names;
}

std::string Session::compute_late(const Session& quick) {
  std::string why;
  if (!mutations_.empty() || !device_.is_cpu()) return "it writes buffers or inputs, or is not on the CPU";
  late_ = late_plan(compiled_, quick.compiled_, why);
  return why;
}

std::vector<int64_t> Session::output_bytes(const SymbolTable& sizes) const {
  std::vector<int64_t> bytes;
  for (const TypeInfo& type : compiled_.agent->program().output_types)
    bytes.push_back(known_bytes(type, sizes).value_or(-1));
  return bytes;
}

void Session::order_hooks(std::vector<size_t> order) {
  std::vector<size_t> sorted = order;
  std::sort(sorted.begin(), sorted.end());
  for (size_t i = 0; i < sorted.size(); ++i)
    ORTMODULE_CHECK_ARG(sorted[i] == i && sorted.size() == compiled_.agent->program().x_inputs.size(),
                        "the order of hooks should name each of the ", compiled_.agent->program().x_inputs.size(),
                        " trainable inputs once");
  hook_order_ = std::make_shared<const std::vector<size_t>>(std::move(order));
}

void Session::order_results(const std::vector<std::pair<size_t, size_t>>& pairs, const std::vector<size_t>& sequence) {
  const std::vector<size_t>& ys = compiled_.agent->program().y_outputs;
  const auto place_of = [&](size_t output) { return std::find(ys.begin(), ys.end(), output) - ys.begin(); };
  const auto named = [&](size_t k) { return std::find(sequence.begin(), sequence.end(), ys[k]) - sequence.begin(); };
  std::vector<size_t> seen;  // what is written back is no result
  for (size_t k = 0; k < ys.size(); ++k)
    if (ys[k] < first_mutation_) seen.push_back(k);
  if (seen.size() < 2) return;
  const auto unnamed = std::stable_partition(
      seen.begin(), seen.end(), [&](size_t k) { return static_cast<size_t>(named(k)) == sequence.size(); });
  std::stable_sort(unnamed, seen.end(), [&](size_t a, size_t b) { return named(a) < named(b); });
  std::vector<std::pair<size_t, size_t>> found;
  for (const auto& [result, inner] : pairs) {
    const size_t a = place_of(result), b = place_of(inner);
    if (a < ys.size() && b < ys.size()) found.emplace_back(a, b);
  }
  results_ = std::make_shared<const ResultOrder>(ResultOrder::of(found, std::move(seen), ys.size()));
}

}  // namespace ortmodule
