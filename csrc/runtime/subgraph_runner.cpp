#include "runtime/subgraph_runner.h"

#include "base/status.h"
#include "kernels/subgraph.h"
#include "plan/execution_plan.h"
#include "runtime/executor.h"
#include "runtime/input_binding.h"

namespace ortmodule {
namespace {

thread_local c10::Device current_device = c10::kCPU;

class SubgraphRunner final : public Subgraph {
 public:
  explicit SubgraphRunner(std::shared_ptr<const Graph> graph) : graph_(std::move(graph)), binding_(graph_->inputs()) {
    PlanRequest request;
    request.name = graph_->name();
    request.outputs = graph_->outputs();
    request.device_type = c10::DeviceTypeName(current_device.type(), true);
    SlotTable slots;
    ExecutionPlan plan = make_plan(*graph_, request, slots);
    for (const NodeArg* in : graph_->inputs()) input_slots_.push_back(slots.find(in->name()));
    slot_count_ = slots.size();
    executor_ = std::make_unique<Executor>(std::move(plan), current_device);
  }

  std::vector<at::Tensor> run(std::vector<at::Tensor> inputs) const override {
    Frame frame;
    binding_.bind(inputs, frame.symbols);
    frame.slots.resize(slot_count_);
    executor_->load_constants(frame);
    for (size_t i = 0; i < inputs.size(); ++i)
      if (input_slots_[i] >= 0) frame.slots[input_slots_[i]] = std::move(inputs[i]);
    inputs.clear();
    executor_->run(frame);
    std::vector<at::Tensor> outputs;
    outputs.reserve(executor_->plan().output_slots.size());
    for (const int slot : executor_->plan().output_slots) outputs.push_back(frame.slots[slot]);
    return outputs;
  }

  std::vector<int64_t> output_sizes(const std::vector<at::Tensor>& inputs, size_t output) const override {
    SymbolTable symbols;
    binding_.bind(inputs, symbols);
    std::vector<int64_t> sizes;
    const auto& shape = graph_->outputs()[output]->type().shape;
    if (shape)
      for (const Dim& d : *shape) sizes.push_back(known_size(d, symbols));
    return sizes;
  }

 private:
  static int64_t known_size(const Dim& d, const SymbolTable& symbols) {
    std::vector<std::string> names;
    d.collect_symbols(names);
    for (const std::string& name : names)
      if (!symbols.count(name)) return 0;
    return d.evaluate(symbols);
  }

  std::shared_ptr<const Graph> graph_;  // the plan's nodes
  InputBinding binding_;
  std::vector<int> input_slots_;
  size_t slot_count_ = 0;
  std::unique_ptr<Executor> executor_;
};

[[maybe_unused]] const bool registered = [] {
  set_subgraph_factory([](std::shared_ptr<const Graph> graph) -> std::shared_ptr<const Subgraph> {
    return std::make_shared<const SubgraphRunner>(std::move(graph));
  });
  return true;
}();

}  // namespace

SubgraphDeviceScope::SubgraphDeviceScope(c10::Device device) : before_(current_device) { current_device = device; }
SubgraphDeviceScope::~SubgraphDeviceScope() { current_device = before_; }

}  // namespace ortmodule
