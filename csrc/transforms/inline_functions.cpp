// Inlining of model-local functions.
//
// A body is copied in front of its call with fresh names for its values. Attributes that refer to one of the function
// take the call's value, else the function's default, else they are left away. An argument that the call leaves away
// is an absent input of the nodes that read it. Nodes keep the operator version that the function's own imports say.
#include "transforms/inline_functions.h"

#include <algorithm>
#include <map>
#include <tuple>

#include "base/status.h"
#include "graph/subgraph.h"
#include "records/registry.h"
#include "records/subgraphs/copy_nodes.h"

namespace ortmodule {
namespace {

using Key = std::tuple<std::string, std::string, std::string>;  // domain, name, overload

std::string standard_domain(const std::string& domain) { return domain == "ai.onnx" ? "" : domain; }

class Inliner {
 public:
  Inliner(const std::vector<FunctionBody>& functions, const Limits& limits) : limits_(limits) {
    for (const FunctionBody& f : functions) functions_[{standard_domain(f.domain), f.name, f.overload}] = &f;
  }

  // Functions that call each other twice double the graph each time: counted before a node is copied.
  void check_size(const Graph& graph) {
    if (size_of(graph, 0) > limits_.nodes)
      exceed("inlining the model's functions gives more nodes than the limit of ", limits_.nodes,
             " (SessionOptions.max_nodes)");
  }

  void run(Graph& graph, std::vector<const FunctionBody*>& chain) {
    graph.for_each([&](Node& node) {
      for_each_subgraph(node, [&](const std::string&, Graph& body) { run(body, chain); });
      const FunctionBody* function = callee(node);
      if (!function) return;
      ORTMODULE_CHECK_GRAPH(std::find(chain.begin(), chain.end(), function) == chain.end(), "the function ",
                            function->name, " calls itself (", node.describe(), ")");
      check_depth(chain.size(), node);
      chain.push_back(function);
      inline_call(graph, node, *function, chain);
      chain.pop_back();
      ++calls_;
    });
  }

  size_t calls() const { return calls_; }

 private:
  // Nodes after inlining, up to one more than the limit. One that calls itself is run()'s to report.
  size_t size_of(const Graph& graph, size_t depth) {
    size_t nodes = 0;
    graph.for_each([&](Node& node) {
      ++nodes;
      for_each_subgraph(node, [&](const std::string&, Graph& body) { nodes += size_of(body, depth); });
      if (const FunctionBody* function = callee(node)) {
        check_depth(depth, node);
        const auto [known, added] = sizes_.emplace(function, 0);
        if (added) known->second = size_of(*function->body, depth + 1);
        nodes += known->second;
      }
      nodes = std::min(nodes, limits_.nodes + 1);
    });
    return nodes;
  }

  void check_depth(size_t depth, const Node& call) const {
    if (depth >= limits_.nesting)
      exceed("functions call each other deeper than the limit of ", limits_.nesting, " (SessionOptions.max_nesting; ",
             call.describe(), ")");
  }

  const FunctionBody* callee(const Node& node) const {
    const auto overload = node.metadata().find(kOverloadKey);
    const std::string name = overload == node.metadata().end() ? "" : overload->second;
    const auto it = functions_.find({standard_domain(node.domain()), node.op(), name});
    if (it == functions_.end()) return nullptr;
    const auto opset = node.graph().opsets().find(node.domain());
    const int64_t version = opset == node.graph().opsets().end() ? INT64_MAX : opset->second;
    return Registry::instance().find(node.domain(), node.op(), version) ? nullptr : it->second;
  }

  // The formal attribute's value for this call, or null.
  static const AttributeValue* argument(const Node& call, const FunctionBody& function, const std::string& formal) {
    if (const AttributeValue* given = call.find_attribute(formal)) return given;
    const auto it = function.defaults.find(formal);
    return it == function.defaults.end() ? nullptr : &it->second;
  }

  // Gives referring attributes their values, in subgraphs as well.
  static void bind_attributes(Graph& graph, const Node& call, const FunctionBody& function) {
    const std::string prefix = kReferencePrefix;
    graph.for_each([&](Node& node) {
      for_each_subgraph(node, [&](const std::string&, Graph& body) { bind_attributes(body, call, function); });
      std::map<std::string, std::string> kept;
      for (const auto& [key, value] : node.metadata()) {
        if (key.compare(0, prefix.size(), prefix) != 0) {
          kept.emplace(key, value);
          continue;
        }
        const std::string formal = value.substr(value.find(' ') + 1);
        if (const AttributeValue* bound = argument(call, function, formal))
          node.set_attribute(key.substr(prefix.size()), *bound);
      }
      node.metadata() = std::move(kept);
    });
  }

  // An input of the function that the call leaves away is absent wherever the body reads it.
  static void drop_input(Graph& graph, NodeArg* input) {
    while (!input->uses().empty()) {
      const Use use = input->uses().back();
      const std::vector<std::string> names = use.node->get_strings(kCapturedAttribute);
      const size_t first = explicit_input_count(*use.node);
      use.node->set_input(use.index, nullptr);
      if (use.index < first) continue;
      for_each_subgraph(*use.node, [&](const std::string&, Graph& body) {
        NodeArg* inner = body.find(names[use.index - first]);
        if (inner && inner->is_graph_input()) drop_input(body, inner);
      });
    }
    ORTMODULE_CHECK_GRAPH(!input->is_graph_output(), "the output '", input->name(), "' of '", graph.name(),
                          "' is an argument that is left away");
    graph.remove_input(input);
  }

  // Constants that a reference made: the rest of the core knows them as initializers.
  static void fold_constants(Graph& graph) {
    graph.for_each([&](Node& node) {
      for_each_subgraph(node, [](const std::string&, Graph& body) { fold_constants(body); });
      if (node.op() != "Constant" || !node.domain().empty() || node.attributes().size() != 1 || !node.output(0)) return;
      const auto& [name, value] = *node.attributes().begin();
      TensorData data;
      if (const auto* tensor = std::get_if<TensorData>(&value))
        data = *tensor;
      else if (const auto* i = std::get_if<int64_t>(&value))
        data = TensorData::scalar_int(*i);
      else if (const auto* f = std::get_if<double>(&value))
        data = TensorData::scalar(DType::kFloat, *f);
      else if (const auto* ints = std::get_if<std::vector<int64_t>>(&value))
        data = TensorData::of_ints(*ints);
      else
        return;
      graph.replace_all_uses(node.output(0), graph.add_initializer(graph.fresh_name(node.output(0)->name()), data));
      graph.remove(&node);
    });
  }

  void inline_call(Graph& graph, Node& call, const FunctionBody& function, std::vector<const FunctionBody*>& chain) {
    const std::unique_ptr<Graph> body = function.body->clone();
    ORTMODULE_CHECK_GRAPH(
        call.inputs().size() <= body->inputs().size() && call.outputs().size() <= body->outputs().size(),
        "the function ", function.name, " takes ", body->inputs().size(), " inputs and has ", body->outputs().size(),
        " outputs, the call gives ", call.inputs().size(), " and wants ", call.outputs().size(), " (", call.describe(),
        ")");
    for (const std::string& formal : function.attributes)
      ORTMODULE_CHECK_GRAPH(argument(call, function, formal) || !is_referred(*body, formal), "the attribute '", formal,
                            "' of function ", function.name, " has no value (", call.describe(), ")");
    bind_attributes(*body, call, function);
    fold_constants(*body);
    const std::vector<NodeArg*> formals = body->inputs();
    for (size_t i = 0; i < formals.size(); ++i)
      if (!call.input(i)) drop_input(*body, formals[i]);
    run(*body, chain);
    splice(graph, call, *body, function.body->inputs());
  }

  static bool is_referred(const Graph& graph, const std::string& formal) {
    bool found = false;
    graph.for_each([&](Node& node) {
      for (const auto& [key, value] : node.metadata())
        found = found || (key.rfind(kReferencePrefix, 0) == 0 && value.substr(value.find(' ') + 1) == formal);
      for_each_subgraph(node, [&](const std::string&, Graph& body) { found = found || is_referred(body, formal); });
    });
    return found;
  }

  // Copies the body's nodes in front of the call and lets its results take the place of the call's.
  static void splice(Graph& graph, Node& call, Graph& body, const std::vector<NodeArg*>& formals) {
    ValueMap map;
    for (size_t i = 0; i < formals.size(); ++i)
      if (NodeArg* inner = body.find(formals[i]->name()); inner && inner->is_graph_input()) map[inner] = call.input(i);
    for (const auto& [inner, node] : copy_nodes(body, call, map))
      for (size_t i = 0; i < inner->outputs().size(); ++i)
        if (inner->outputs()[i]) node->output(i)->set_type(inner->outputs()[i]->type());

    std::vector<std::pair<size_t, std::string>> kept;  // graph outputs that the call made, by position
    for (size_t position = 0; position < graph.outputs().size(); ++position)
      if (graph.outputs()[position]->producer() == &call)
        kept.emplace_back(position, graph.outputs()[position]->name());
    for (size_t i = 0; i < call.outputs().size(); ++i)
      if (NodeArg* out = call.outputs()[i]) graph.replace_all_uses(out, map.at(body.outputs()[i]));
    graph.remove(&call);
    for (const auto& [position, name] : kept) {
      NodeArg* named = graph.find(name);
      if (!named) named = graph.add_node("", "Identity", {graph.outputs()[position]}, {name})->output(0);
      graph.set_output(position, named);
    }
  }

  std::map<Key, const FunctionBody*> functions_;
  const Limits& limits_;
  std::map<const FunctionBody*, size_t> sizes_;
  size_t calls_ = 0;
};

}  // namespace

size_t inline_functions(Graph& graph, const Limits& limits) {
  if (graph.functions().empty()) return 0;
  const std::vector<FunctionBody> functions = std::move(graph.functions());
  graph.functions().clear();
  Inliner inliner(functions, limits);
  std::vector<const FunctionBody*> chain;
  inliner.check_size(graph);
  inliner.run(graph, chain);
  return inliner.calls();
}

}  // namespace ortmodule
