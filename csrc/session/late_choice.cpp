#include "session/late_choice.h"

#include <algorithm>
#include <unordered_set>

#include "base/status.h"
#include "records/registry.h"

namespace ortmodule {
namespace {

int place_of(const std::vector<size_t>& places, size_t place) {
  const auto it = std::find(places.begin(), places.end(), place);
  return it == places.end() ? -1 : static_cast<int>(it - places.begin());
}

// Whether a tensor of this output is known before it is computed: rows of elements, of sizes that the inputs have.
bool is_foreseen(const NodeArg& output, const std::unordered_set<std::string>& bound) {
  if (!output.type().shape || !output.producer()) return false;
  for (const Dim& dim : *output.type().shape) {
    std::vector<std::string> symbols;
    dim.collect_symbols(symbols);
    for (const std::string& symbol : symbols)
      if (!bound.count(symbol)) return false;
  }
  // A view may have its elements in another order, or be the very tensor that somebody else has.
  return output.producer()->record() && !output.producer()->record()->has(kView);
}

// The second run draws the same as the first: one state for all, found again, and the same streams of it.
bool draws_again(const CompiledModel& whole, const CompiledModel& quick) {
  return whole.draws == quick.draws && std::all_of(whole.draws.begin(), whole.draws.end(), [](const std::string& draw) {
           return draw == "ai.ortmodule::RandomState" || draw.starts_with("ai.ortmodule::Philox");
         });
}

}  // namespace

std::shared_ptr<LatePlan> late_plan(const CompiledModel& whole, const CompiledModel& quick, std::string& why) {
  const auto refused = [&](const char* reason) {
    why = reason;
    return nullptr;
  };
  const TrainingProgram &all = whole.agent->program(), &some = quick.agent->program();
  if (whole.input_names != quick.input_names || all.x_inputs != some.x_inputs) return refused("its inputs are others");
  if (!draws_again(whole, quick)) return refused("what is random in it cannot be drawn a second time");
  std::unordered_set<std::string> bound;
  for (const NodeArg* input : whole.graph->inputs())
    for (const Dim& dim : input->type().shape.value_or(Shape{}))
      if (const auto symbol = dim.lone_symbol()) bound.insert(*symbol);
  auto plan = std::make_shared<LatePlan>();
  plan->quick = quick.agent;
  for (size_t i = 0; i < whole.output_names.size(); ++i) {
    const auto it = std::find(quick.output_names.begin(), quick.output_names.end(), whole.output_names[i]);
    plan->quick_outputs.push_back(it == quick.output_names.end() ? -1
                                                                 : static_cast<int>(it - quick.output_names.begin()));
    if (it == quick.output_names.end() && !is_foreseen(*whole.graph->outputs()[i], bound))
      return refused("how an output lies in memory is known when it is computed, and not before");
  }
  for (size_t output : all.y_outputs) {
    const int place = plan->quick_outputs[output];
    const int y = place < 0 ? -1 : place_of(some.y_outputs, static_cast<size_t>(place));
    if (place >= 0 && y < 0) return refused("gradients reach other outputs");
    plan->quick_ys.push_back(y);
  }
  return plan;
}

}  // namespace ortmodule
