// The public classes of C++ programs that infer, on a Session.
#include "ortmodule/inference_session.h"

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <mutex>
#include <set>
#include <tuple>

#include "base/container_type.h"
#include "base/status.h"
#include "kernels/aten_bridge.h"
#include "onnx/model_file.h"
#include "session/report.h"
#include "session/session.h"
#include "session/value_infos.h"

namespace ortmodule {
namespace {

PassLevel level_of(GraphOptimizationLevel level) {
  switch (level) {
    case GraphOptimizationLevel::kDisableAll:
      return PassLevel::kRequired;
    case GraphOptimizationLevel::kBasic:
      return PassLevel::kBasic;
    case GraphOptimizationLevel::kExtended:
      break;
  }
  return PassLevel::kExtended;
}

SessionSettings settings_of(const SessionOptions& options) {
  SessionSettings out;
  out.training = false;
  out.device = parse_device(options.device);
  for (const auto& [name, own] : options.providers) out.providers.push_back({name, own});
  out.order = parse_order(options.execution_order);
  out.level = level_of(options.graph_optimization_level);
  out.fusion = out.level == PassLevel::kExtended;
  out.passes.disabled = options.disabled_passes;
  out.memory_pattern = options.enable_mem_pattern;
  out.memory_reuse = options.enable_mem_reuse;
  out.threads = options.intra_op_num_threads;
  out.parallel = options.execution_mode == ExecutionMode::kParallel;
  out.inter_op_threads = options.inter_op_num_threads;
  out.spin = options.inter_op_allow_spinning;
  out.own_pool = options.use_per_session_threads;
  out.deterministic = options.use_deterministic_compute;
  out.import.limits = {options.max_tensor_bytes, options.max_nodes, options.max_nesting, options.max_run_bytes,
                       options.max_seconds};
  out.import.aten_operators = options.allow_aten_operators;
  out.import.external_data_root = options.external_data_root;
  out.import.weights_folder = options.weights_folder;
  out.import.sizes = options.free_dimensions;
  out.import.sizes_by_denotation = options.free_dimensions_by_denotation;
  for (const auto& [name, tensor] : options.initializers)
    out.import.initializers.emplace(name, shared_data_from(tensor));
  return out;
}

// The place of a name; throws kInvalidArgument where there is none.
size_t place_of(const std::vector<ValueInfo>& values, const std::string& name, const char* kind) {
  for (size_t i = 0; i < values.size(); ++i)
    if (values[i].name == name) return i;
  std::string known;
  for (const ValueInfo& value : values) known += (known.empty() ? "'" : ", '") + value.name + "'";
  fail(ErrorCode::kInvalidArgument, "the model has no ", kind, " '", name, "'; it has ", known);
}

}  // namespace

struct InferenceSession::State {
  // Another kind of runs: initializers that they are given, and whether nodes that leave it open train.
  struct Kind {
    std::set<std::string> fed;
    bool training = false;
    bool operator<(const Kind& other) const { return std::tie(training, fed) < std::tie(other.training, other.fed); }
  };
  // Makes the same for another kind.
  using Again = std::function<std::shared_ptr<const State>(const Kind& kind)>;

  State(std::string_view model, const SessionSettings& settings)
      : session(model, settings), inputs(input_infos(session)), outputs(output_infos(session)) {}

  static std::shared_ptr<State> make(std::string_view model, const SessionSettings& settings,
                                     const SessionOptions& options) {
    auto state = std::make_shared<State>(model, settings);
    if (options.optimized_model_path.empty()) return state;
    std::ofstream file(options.optimized_model_path, std::ios::binary);
    file << stage_model(state->session, "planned", false);
    ORTMODULE_CHECK_ARG(file.flush(), "the graph cannot be written to '", options.optimized_model_path, "'");
    return state;
  }

  static std::shared_ptr<State> read(const std::string& path, SessionSettings settings, const SessionOptions& options) {
    const ModelFile file = open_model(path);
    settings.import.external_data_dir = file.folder;
    return make(*file.bytes, settings, options);
  }

  // What serves a run; null: this does.
  std::shared_ptr<const State> other_for(const Feeds& feeds, const RunOptions* options) const {
    if (!has_kinds()) return nullptr;
    Kind kind;
    kind.training = options && options->training_mode && session.compiled().info.follows_training_mode;
    for (const DeclaredValue& value : session.compiled().info.overridable)
      for (const auto& [name, tensor] : feeds)
        if (name == value.name) kind.fed.insert(name);
    if (!again || (kind.fed.empty() && !kind.training)) return nullptr;
    const std::lock_guard<std::mutex> lock(mutex);
    std::shared_ptr<const State>& other = others[kind];
    if (!other) other = again(kind);
    return other;
  }

  bool has_kinds() const {
    const ModelInfo& info = session.compiled().info;
    return !info.overridable.empty() || info.follows_training_mode;
  }

  Session session;
  std::vector<ValueInfo> inputs, outputs;
  Again again;  // of one that has kinds, and is none of them
  mutable std::mutex mutex;
  mutable std::map<Kind, std::shared_ptr<const State>> others;
};

namespace {

template <typename Kind>
SessionSettings settings_with(const SessionOptions& options, const Kind& kind) {
  SessionSettings settings = settings_of(options);
  for (const std::string& name : kind.fed) settings.import.initializers.erase(name);
  settings.import.fed = kind.fed;
  settings.import.training_mode = kind.training;
  return settings;
}

// The file is written for the session itself.
SessionOptions without_file(SessionOptions options) {
  options.optimized_model_path.clear();
  return options;
}

}  // namespace

void set_global_inter_op_threads(int threads, bool allow_spinning) {
  ORTMODULE_CHECK_ARG(threads > 0, "the process should have threads from 1 on, got ", threads);
  InterOpPool::set_global(static_cast<size_t>(threads), allow_spinning);
}

RunOptions::RunOptions() : stop_(std::make_shared<RunStop>()) {}
void RunOptions::terminate() const { stop_->ask(); }
void RunOptions::go_on() const { stop_->take_back(); }

InferenceSession::InferenceSession(const std::string& path, const SessionOptions& options) {
  const std::shared_ptr<State> state = State::read(path, settings_of(options), options);
  if (state->has_kinds())
    state->again = [path = std::filesystem::absolute(path).string(), options = without_file(options)](
                       const auto& kind) { return State::read(path, settings_with(options, kind), options); };
  state_ = state;
}

InferenceSession InferenceSession::parse(std::string_view model, const SessionOptions& options) {
  const std::shared_ptr<State> state = State::make(model, settings_of(options), options);
  if (state->has_kinds())
    state->again = [model = std::string(model), options = without_file(options)](const auto& kind) {
      return State::make(model, settings_with(options, kind), options);
    };
  return InferenceSession(std::shared_ptr<const State>(state));
}

const std::vector<ValueInfo>& InferenceSession::inputs() const { return state_->inputs; }
const std::vector<ValueInfo>& InferenceSession::outputs() const { return state_->outputs; }
std::string InferenceSession::plan() const { return plan_text(state_->session); }

std::vector<at::Tensor> InferenceSession::run_values(std::vector<at::Tensor> values, const std::vector<size_t>& wanted,
                                                     const RunOptions* options, IOBinding* binding) const {
  const RunStop* const stop = options ? options->stop_.get() : nullptr;
  const bool whole = options && !options->only_execute_path_to_fetches;
  if (binding) {
    ResultBuffers results{binding->buffers_};
    std::vector<at::Tensor> outputs = state_->session.infer_places(values, wanted, stop, whole, &results);
    binding->copied_ = std::move(results.copied);
    return outputs;
  }
  if (!wanted.empty()) return state_->session.infer_places(values, wanted, stop, whole);
  const std::vector<at::Tensor> held = values;  // kernels overwrite what nobody else has
  return state_->session.infer(std::move(values), {}, stop);
}

std::vector<at::Tensor> InferenceSession::run(const Feeds& feeds, const std::vector<std::string>& output_names,
                                              const RunOptions* options) const {
  if (const std::shared_ptr<const State> other = state_->other_for(feeds, options))
    return InferenceSession(other).run(feeds, output_names, options);
  std::vector<at::Tensor> values(state_->inputs.size());
  std::vector<char> given(values.size(), false);
  for (const auto& [name, tensor] : feeds) {
    const size_t place = place_of(state_->inputs, name, "input");
    values[place] = tensor;
    given[place] = true;
  }
  for (size_t i = 0; i < given.size(); ++i)
    ORTMODULE_CHECK_ARG(given[i], "the model's input '", state_->inputs[i].name, "' is not given");
  std::vector<size_t> wanted;
  for (const std::string& name : output_names) wanted.push_back(place_of(state_->outputs, name, "output"));
  return run_values(std::move(values), wanted, options);
}

void InferenceSession::run(IOBinding& binding, const RunOptions* options) const {
  ORTMODULE_CHECK_ARG(binding.state_ == state_, "the binding is another session's");
  ORTMODULE_CHECK_ARG(!binding.wanted_.empty(), "no output is bound");
  for (size_t i = 0; i < binding.inputs_.size(); ++i)
    ORTMODULE_CHECK_ARG(binding.inputs_[i].defined() || is_optional(state_->session.input_types()[i]), "the input '",
                        state_->inputs[i].name, "' is not bound");
  const std::shared_ptr<const State> other = state_->other_for({}, options);
  const InferenceSession& serving = other ? InferenceSession(other) : *this;
  binding.results_ = serving.run_values(binding.inputs_, binding.wanted_, options, &binding);
}

IOBinding::IOBinding(const InferenceSession& session)
    : state_(session.state_), inputs_(session.state_->inputs.size()) {}

void IOBinding::bind_input(const std::string& name, at::Tensor value) {
  inputs_[place_of(state_->inputs, name, "input")] = std::move(value);
}

void IOBinding::bind_output(const std::string& name, at::Tensor buffer) {
  const size_t place = place_of(state_->outputs, name, "output");
  const auto bound = std::find(wanted_.begin(), wanted_.end(), place);
  if (bound != wanted_.end()) {
    buffers_[static_cast<size_t>(bound - wanted_.begin())] = std::move(buffer);
    return;
  }
  wanted_.push_back(place);
  buffers_.push_back(std::move(buffer));
}

void IOBinding::bind_output(const std::string& name) { bind_output(name, at::Tensor()); }

void IOBinding::clear_inputs() { std::fill(inputs_.begin(), inputs_.end(), at::Tensor()); }

std::vector<std::string> IOBinding::copied() const {
  std::vector<std::string> names;
  for (size_t i = 0; i < copied_.size(); ++i)
    if (copied_[i]) names.push_back(state_->outputs[wanted_[i]].name);
  return names;
}

void IOBinding::clear_outputs() {
  copied_.clear();
  wanted_.clear();
  buffers_.clear();
  results_.clear();
}

}  // namespace ortmodule
