// Gradients of If, Loop and Scan; see Note [Gradients of subgraphs] in records/subgraphs/subgraph_gradient.h.
//
// If's is another If. Loop's and Scan's are operators that run the forward body again to have the carried values of
// each iteration, then the body's gradient from the last iteration to the first.
#include "ops/control/control_gradient.h"

#include <algorithm>

#include "base/status.h"
#include "graph/subgraph.h"
#include "ops/control/scan.h"
#include "records/infer_context.h"
#include "records/registry.h"
#include "records/subgraphs/subgraph_gradient.h"

namespace ortmodule {
namespace {

// Captured inputs whose gradient is wanted: their slots in the node and their names and types inside.
struct Wanted {
  std::vector<size_t> slots;
  std::vector<std::pair<std::string, TypeInfo>> values;
};

Wanted wanted_captures(GradContext& c) {
  Wanted wanted;
  const std::vector<std::string> names = c.node().get_strings(kCapturedAttribute);
  const size_t first = explicit_input_count(c.node());
  for (size_t k = 0; k < names.size(); ++k) {
    if (!c.needs(first + k)) continue;
    wanted.slots.push_back(first + k);
    wanted.values.emplace_back(names[k], c.I(first + k)->type());
  }
  return wanted;
}

// What the gradient operators of Loop and Scan are made of.
struct Iterated {
  size_t first_state, states;  // slots of the carried values among the node's inputs
  size_t first_state_input;    // the first one's place among the body's inputs
  size_t first_state_output;   // and among the body's outputs
  std::vector<size_t> more;    // further differentiated inputs of the body: Scan's slices, by body input
  const char* op;
};

void iterated_gradient(GradContext& c, const Iterated& it, Attributes attributes) {
  Node& node = c.node();
  const std::shared_ptr<Graph> body = find_subgraph(node, "body");
  const Wanted captures = wanted_captures(c);
  std::vector<NodeArg*> inputs(node.inputs().begin(),
                               node.inputs().begin() + static_cast<long>(explicit_input_count(node)));
  std::vector<size_t> ys;
  std::vector<std::pair<std::string, TypeInfo>> xs;
  std::vector<int64_t> active, state_dys, stacks, stack_dys, scanned;
  const auto add_input = [&](NodeArg* value) {
    inputs.push_back(value);
    return static_cast<int64_t>(inputs.size() - 1);
  };
  const auto add_x = [&](const NodeArg* x) { xs.emplace_back(x->name(), x->type()); };
  for (size_t i = 0; i < it.states; ++i) {
    const NodeArg* state = body->inputs()[it.first_state_input + i];
    if (!is_floating(state->type().dtype)) continue;
    active.push_back(static_cast<int64_t>(i));
    ys.push_back(it.first_state_output + i);
    add_x(state);
    state_dys.push_back(c.GO(i) ? add_input(c.GO(i)) : -1);
  }
  for (size_t k = it.states; k < node.outputs().size(); ++k) {
    if (!c.GO(k)) continue;
    stacks.push_back(static_cast<int64_t>(k - it.states));
    ys.push_back(it.first_state_output + k);
    stack_dys.push_back(add_input(c.GO(k)));
  }
  for (const size_t i : it.more) {
    if (!is_floating(body->inputs()[i]->type().dtype)) continue;
    scanned.push_back(static_cast<int64_t>(i - it.states));
    add_x(body->inputs()[i]);
  }
  xs.insert(xs.end(), captures.values.begin(), captures.values.end());
  for (auto& x : xs)  // the type inside, where the body has the value
    if (const NodeArg* inner = body->find(x.first)) x.second = inner->type();
  BodyGradient gradient = differentiate_body(*body, ys, xs, "body", node);

  // Only the condition and the carried values are needed to find the states again.
  std::shared_ptr<Graph> forward = body->clone();
  const std::vector<NodeArg*> outputs = forward->outputs();
  forward->clear_outputs();
  for (size_t i = 0; i < it.first_state_output + it.states; ++i) forward->add_output(outputs[i]);

  std::vector<bool> results;
  std::vector<size_t> slots;
  for (const int64_t i : active) slots.push_back(it.first_state + static_cast<size_t>(i));
  for (const int64_t k : scanned) slots.push_back(it.first_state + it.states + static_cast<size_t>(k));
  slots.insert(slots.end(), captures.slots.begin(), captures.slots.end());
  for (const size_t slot : slots) results.push_back(c.needs(slot));
  std::vector<int64_t> like;
  for (const size_t slot : slots) {
    const size_t first = explicit_input_count(node);  // captured values move behind the gradients
    like.push_back(static_cast<int64_t>(slot < first ? slot : slot - first + inputs.size()));
  }
  for (size_t k = explicit_input_count(node); k < node.inputs().size(); ++k) inputs.push_back(node.inputs()[k]);
  attributes["body"] = forward;
  attributes["gradient"] = gradient.graph;
  attributes["dy_names"] = gradient.dy_names;
  attributes["states"] = static_cast<int64_t>(it.states);
  attributes["active"] = active;
  attributes["state_dys"] = state_dys;
  attributes["stacks"] = stacks;
  attributes["stack_dys"] = stack_dys;
  attributes["scanned"] = scanned;
  attributes["like"] = like;
  attributes[kCapturedAttribute] = node.get_strings(kCapturedAttribute);
  const std::vector<NodeArg*> grads = c.emit_some(str(kOwnDomain, "::", it.op), inputs, results, std::move(attributes));
  for (size_t i = 0; i < slots.size(); ++i)
    if (grads[i]) c.GI(slots[i], grads[i]);
}

// Output i is the gradient of input like[i].
void infer_iterated_gradient(InferContext& c) {
  const std::vector<int64_t> like = c.node().get_ints("like");
  for (size_t i = 0; i < c.node().outputs().size(); ++i) {
    const NodeArg* x = i < like.size() ? c.node().input(static_cast<size_t>(like[i])) : nullptr;
    if (!x) c.error(str("output ", i, " is the gradient of no input"));
    c.out(i, x->type().dtype, x->type().shape);
  }
}

void iterated(OpRecord& r) {
  r.variadic_input("inputs")
      .output("gradients", Presence::kVariadic)
      .required_attr("body", AttrKind::kGraph)
      .required_attr("gradient", AttrKind::kGraph)
      .infer(infer_iterated_gradient)
      .not_differentiable();
}

ORTMODULE_OP("ai.ortmodule", LoopGrad, 1).apply(iterated);
ORTMODULE_OP("ai.ortmodule", ScanGrad, 1).apply(iterated);

}  // namespace

void if_gradient(GradContext& c) {
  Node& node = c.node();
  const Wanted wanted = wanted_captures(c);
  std::vector<size_t> ys;
  for (size_t i = 0; i < node.outputs().size(); ++i)
    if (c.GO(i)) ys.push_back(i);
  std::vector<NodeArg*> inputs = node.inputs();
  std::vector<std::string> names = node.get_strings(kCapturedAttribute);
  Attributes attributes;
  for (const char* branch : {"then_branch", "else_branch"}) {
    BodyGradient gradient = differentiate_body(*find_subgraph(node, branch), ys, wanted.values, branch, node);
    for (size_t k = 0; k < ys.size(); ++k) {
      if (gradient.dy_names[k].empty()) continue;
      names.push_back(gradient.dy_names[k]);
      inputs.push_back(c.GO(ys[k]));
    }
    attributes[branch] = gradient.graph;
  }
  attributes[kCapturedAttribute] = names;
  const std::vector<NodeArg*> grads = c.emit_n("If", inputs, wanted.slots.size(), std::move(attributes));
  for (size_t i = 0; i < wanted.slots.size(); ++i) c.GI(wanted.slots[i], grads[i]);
}

void loop_gradient(GradContext& c) {
  const size_t explicit_inputs = explicit_input_count(c.node());
  const size_t carried = explicit_inputs > 2 ? explicit_inputs - 2 : 0;
  iterated_gradient(c, {2, carried, 2, 1, {}, "LoopGrad"}, {});
}

void scan_gradient(GradContext& c) {
  const ScanLayout layout(c.node());
  std::vector<size_t> slices;
  for (size_t k = 0; k < layout.scanned; ++k) slices.push_back(layout.states + k);
  iterated_gradient(c, {0, layout.states, 0, 0, slices, "ScanGrad"},
                    {{"input_axes", layout.input_axes},
                     {"input_directions", layout.input_directions},
                     {"output_axes", layout.output_axes},
                     {"output_directions", layout.output_directions}});
}

}  // namespace ortmodule
