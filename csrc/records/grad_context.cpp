#include "records/grad_context.h"

#include "base/status.h"
#include "records/registry.h"
#include "records/resolve.h"

namespace ortmodule {
namespace {

// Emits one node with its types; outputs that are not wanted stay absent.
std::vector<NodeArg*> emit_node(Graph& graph, Phase phase, const Node& origin, Node* before, const std::string& op,
                                const std::vector<NodeArg*>& inputs, const std::vector<bool>& wanted,
                                Attributes attributes) {
  const auto [domain, name] = split_op(op);
  Node* node = graph.add_node(domain, name, inputs, {}, std::move(attributes), before,
                              origin.name() + (phase == Phase::kBackward ? "_grad/" : "/") + name);
  node->set_phase(phase);
  std::vector<NodeArg*> outputs(wanted.size(), nullptr);
  for (size_t i = 0; i < wanted.size(); ++i)
    if (wanted[i]) outputs[i] = graph.materialize_output(node, i, graph.fresh_name(node->name()));
  infer_node(*node);
  return outputs;
}

bool mixes_types(const Node& node) {
  DType first = DType::kUndefined;
  for (const NodeArg* in : node.inputs()) {
    const DType dtype = in ? in->type().dtype : DType::kUndefined;
    if (!is_floating(dtype)) continue;
    if (first != DType::kUndefined && dtype != first) return true;
    first = dtype;
  }
  return false;
}

}  // namespace

std::pair<std::string, std::string> split_op(const std::string& qualified) {
  const size_t at = qualified.rfind("::");
  if (at == std::string::npos) return {"", qualified};
  return {qualified.substr(0, at), qualified.substr(at + 2)};
}

NodeArg* GradContext::O(size_t i) {
  if (NodeArg* value = node_.output(i)) return value;
  NodeArg* value = graph_.materialize_output(&node_, i, node_.name() + "_out");
  infer_node(node_);
  return value;
}

bool GradContext::heard_all() const {
  for (size_t i = 0; i < grad_outputs_.size(); ++i)
    if (grad_outputs_[i] && !heard_[i]) return false;
  return true;
}

void GradContext::GI(size_t i, NodeArg* value) {
  if (!needs(i) || !value) return;
  const TypeInfo &have = value->type(), &want = I(i)->type();
  if (have.dtype != want.dtype && have.dtype != DType::kUndefined && want.dtype != DType::kUndefined) {
    // A formula holds for inputs of one type; what a model mixes, the standard does not allow.
    ORTMODULE_CHECK(!mixes_types(node_) && is_floating(have.dtype), kUnsupported, "[", node_.op(),
                    "] has inputs of several floating types, and ", "with these no gradient (", node_.describe(), ")");
    ORTMODULE_INTERNAL(false, "the gradient of input ", i, " of ", node_.describe(), " has type ", have.text(),
                       ", the input has ", want.text());
  }
  grad_inputs_[i] = value;
}

NodeArg* GradContext::saved(const std::string& name) {
  const size_t slot = node_.record()->output_slot(name);
  NodeArg* value = node_.output(slot);
  if (value) return value;
  value = graph_.materialize_output(&node_, slot, node_.name() + "_" + name);
  infer_node(node_);
  return value;
}

NodeArg* GradContext::emit(const std::string& op, const std::vector<NodeArg*>& inputs, Attributes attributes) {
  return emit_some(op, inputs, {true}, std::move(attributes))[0];
}

std::vector<NodeArg*> GradContext::emit_n(const std::string& op, const std::vector<NodeArg*>& inputs, size_t outputs,
                                          Attributes attributes) {
  return emit_some(op, inputs, std::vector<bool>(outputs, true), std::move(attributes));
}

std::vector<NodeArg*> GradContext::emit_some(const std::string& op, const std::vector<NodeArg*>& inputs,
                                             const std::vector<bool>& wanted, Attributes attributes) {
  return emit_node(graph_, Phase::kBackward, node_, nullptr, op, inputs, wanted, std::move(attributes));
}

NodeArg* GradContext::ints(const std::vector<int64_t>& values) { return graph_.constant(TensorData::of_ints(values)); }
NodeArg* GradContext::scalar_int(int64_t value) { return graph_.constant(TensorData::scalar_int(value)); }

NodeArg* GradContext::scalar(double value, const NodeArg* like) {
  return graph_.constant(TensorData::scalar(like->type().dtype, value));
}

NodeArg* GradContext::sizes(const std::vector<Dim>& dims) {
  std::vector<int64_t> values;
  std::vector<std::string> texts;
  for (const Dim& d : dims) {
    if (d.is_known()) values.push_back(d.value());
    texts.push_back(d.text());
  }
  if (values.size() == dims.size()) return ints(values);
  return emit(std::string(kOwnDomain) + "::Sizes", {}, {{"exprs", texts}});
}

NodeArg* GradContext::size_scalar(const Dim& dim) {
  if (dim.is_known()) return scalar_int(dim.value());
  return emit(std::string(kOwnDomain) + "::Sizes", {},
              {{"exprs", std::vector<std::string>{dim.text()}}, {"scalar", int64_t{1}}});
}

namespace {

// Symbols that a rule invented ("u_<node>_<axis>") or that PyTorch calls unbacked ("u0") are bound by no input.
bool bound_by_inputs(const Graph& graph, const Shape& shape) {
  std::vector<std::string> names;
  for (const Dim& d : shape) d.collect_symbols(names);
  if (names.empty()) return true;
  for (const std::string& name : names) {
    bool found = false;
    for (const NodeArg* in : graph.inputs()) {
      if (!in->type().shape) continue;
      for (const Dim& d : *in->type().shape) found = found || d.lone_symbol() == name;
      if (found) break;
    }
    if (!found) return false;
  }
  return true;
}

}  // namespace

NodeArg* GradContext::sizes_of(const NodeArg* value) {
  if (value->type().shape && bound_by_inputs(graph_, *value->type().shape)) return sizes(*value->type().shape);
  // A small host vector, computed in forward where the value lives, instead of the value itself.
  auto* v = const_cast<NodeArg*>(value);
  for (const Use& use : v->uses())
    if (use.node->op() == "Shape" && use.node->domain().empty() && use.node->attributes().empty())
      return use.node->output(0);
  const Phase phase = v->producer() ? v->producer()->phase() : Phase::kForward;
  return emit_node(graph_, phase, node_, nullptr, "Shape", {v}, {true}, {})[0];
}

NodeArg* GradContext::cast(NodeArg* value, DType dtype) {
  if (value->type().dtype == dtype) return value;
  return emit("Cast", {value}, {{"to", static_cast<int64_t>(dtype)}});
}

NodeArg* GradContext::zeros_like(NodeArg* value) {
  return emit("ConstantOfShape", {sizes_of(value)}, {{"value", [&] {
                                                        TensorData t = TensorData::scalar(value->type().dtype, 0);
                                                        t.dims = {1};
                                                        return t;
                                                      }()}});
}

NodeArg* GradContext::reduce_to(NodeArg* grad, NodeArg* like) {
  const TypeInfo &from = grad->type(), &to = like->type();
  if (from.shape && to.shape) {
    if (*from.shape == *to.shape) return grad;
    // Leading axes that `like` lacks and axes where it is 1; anything else must agree.
    const size_t extra = from.shape->size() - std::min(from.shape->size(), to.shape->size());
    std::vector<int64_t> dropped, kept;
    bool simple = from.shape->size() >= to.shape->size();
    for (size_t i = 0; simple && i < from.shape->size(); ++i) {
      if (i < extra) {
        dropped.push_back(static_cast<int64_t>(i));
        continue;
      }
      const Dim& t = (*to.shape)[i - extra];
      if ((*from.shape)[i] == t) continue;
      if (t.is_known() && t.value() == 1)
        kept.push_back(static_cast<int64_t>(i));
      else
        simple = false;
    }
    if (simple) {
      NodeArg* out = grad;
      if (!kept.empty()) out = emit("ReduceSum", {out, ints(kept)}, {{"keepdims", int64_t{1}}});
      if (!dropped.empty()) out = emit("ReduceSum", {out, ints(dropped)}, {{"keepdims", int64_t{0}}});
      return out;
    }
  }
  return emit(std::string(kOwnDomain) + "::ReduceSumTo", {grad, sizes_of(like)});
}

NodeArg* BodyContext::emit(const std::string& op, const std::vector<NodeArg*>& inputs, Attributes attributes) {
  return emit_n(op, inputs, 1, std::move(attributes))[0];
}

std::vector<NodeArg*> BodyContext::emit_n(const std::string& op, const std::vector<NodeArg*>& inputs, size_t outputs,
                                          Attributes attributes) {
  return emit_node(graph_, node_.phase(), node_, &node_, op, inputs, std::vector<bool>(outputs, true),
                   std::move(attributes));
}

NodeArg* BodyContext::ints(const std::vector<int64_t>& values) { return graph_.constant(TensorData::of_ints(values)); }
NodeArg* BodyContext::scalar_int(int64_t value) { return graph_.constant(TensorData::scalar_int(value)); }
NodeArg* BodyContext::scalar(double value, const NodeArg* like) {
  return graph_.constant(TensorData::scalar(like->type().dtype, value));
}

}  // namespace ortmodule
