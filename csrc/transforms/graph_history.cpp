#include "transforms/graph_history.h"

#include <algorithm>
#include <sstream>
#include <unordered_set>
#include <variant>

#include "graph/text.h"

namespace ortmodule {
namespace {

// Sizes, axes and flags, not tables.
constexpr int64_t kMostIntegers = 16;
constexpr size_t kMostListed = 64, kMostFloats = 8, kMostTexts = 256;

std::string number_text(double value) {
  std::ostringstream out;
  out.precision(9);
  out << value;
  return out.str();
}

template <typename T, typename F>
std::string list_text(const std::vector<T>& values, const char* separator, F&& print) {
  std::string out;
  for (const T& value : values) out += (out.empty() ? "" : separator) + print(value);
  return out;
}

std::string integers(const std::vector<int64_t>& values) {
  return "[" + list_text(values, ", ", [](int64_t v) { return std::to_string(v); }) + "]";
}

std::string type_of(const TensorData& data) {
  return TypeInfo{data.dtype, Shape(data.dims.begin(), data.dims.end())}.text();
}

// The elements of a tensor that is no weight; empty for any other.
std::string small_text(const TensorData& data) {
  const bool scalar = data.dims.empty();
  if (data.dtype == DType::kFloat || data.dtype == DType::kDouble || is_reduced_floating(data.dtype))
    return scalar ? number_text(data.to_doubles()[0]) : "";
  if (data.dtype != DType::kBool && !is_integer(data.dtype)) return "";
  if (dtype_size(data.dtype) == 0 || data.elements() > kMostIntegers) return "";
  return scalar ? std::to_string(data.to_ints()[0]) : integers(data.to_ints());
}

std::string attribute_text(const AttributeValue& value) {
  struct Visitor {
    std::string operator()(int64_t v) const { return std::to_string(v); }
    std::string operator()(double v) const { return number_text(v); }
    std::string operator()(const std::string& v) const { return v; }
    // Operators of trees and linear models hold their weights in lists.
    std::string operator()(const std::vector<int64_t>& v) const {
      return v.size() > kMostListed ? std::to_string(v.size()) + " integers" : integers(v);
    }
    std::string operator()(const std::vector<double>& v) const {
      if (v.size() > kMostFloats) return std::to_string(v.size()) + " floats";
      return "[" + list_text(v, ", ", number_text) + "]";
    }
    std::string operator()(const std::vector<std::string>& v) const {
      if (v.size() > kMostTexts) return std::to_string(v.size()) + " texts";
      return list_text(v, "\n", [](const std::string& text) { return text; });
    }
    std::string operator()(const TensorData& v) const {
      const std::string text = small_text(v);
      return type_of(v) + (text.empty() ? "" : " " + text);
    }
    std::string operator()(const std::shared_ptr<Graph>& v) const { return to_text(*v, {.max_elements = 0}); }
  };
  return std::visit(Visitor{}, value);
}

NodeVersion version_of(const Node& node) {
  NodeVersion out{node.id(), node.qualified_op(), node.name(), node.provider(), node.phase(), {}, {}, {}, {}};
  for (const NodeArg* in : node.inputs()) out.inputs.push_back(in ? in->name() : "");
  for (const NodeArg* value : node.outputs())
    out.outputs.emplace_back(value ? value->name() : "", value ? value->type().text() : "");
  for (const auto& [name, value] : node.attributes()) out.attributes.emplace_back(name, attribute_text(value));
  out.metadata = node.metadata();
  return out;
}

}  // namespace

void GraphHistory::before(const PassRun& run, const Graph& graph) {
  if (next_) next_->before(run, graph);
}

void GraphHistory::after(const PassRun& run, const Graph& graph) {
  if (next_) next_->after(run, graph);
  if (closed_ || !graph_ || run.modifications == 0) return;
  GraphEvent event;
  event.stage = stage_name(run.stage);
  event.pass = run.pass;
  event.round = run.round;
  event.seconds = run.seconds;
  event.modifications = run.modifications;
  note(std::move(event));
}

void GraphHistory::stage(const std::string& name, double seconds, const Graph& graph) {
  if (closed_) return;
  if (!graph_) graph_ = &graph;
  GraphEvent event;
  event.stage = name;
  event.seconds = seconds;
  note(std::move(event));
}

void GraphHistory::note(GraphEvent event) {
  std::map<size_t, size_t> current;
  std::vector<size_t> order, stayed;
  long before = -1;
  graph_->for_each([&](const Node& node) {
    NodeVersion version = version_of(node);
    const auto known = current_.find(node.id());
    size_t place = known == current_.end() ? versions_.size() : known->second;
    if (known == current_.end()) {
      event.added.emplace_back(place, before);
      versions_.push_back(std::move(version));
    } else {
      stayed.push_back(node.id());
      if (versions_[place] != version) {
        event.replaced.emplace_back(place, versions_.size());
        place = versions_.size();
        versions_.push_back(std::move(version));
      }
    }
    current.emplace(node.id(), place);
    order.push_back(node.id());
    before = static_cast<long>(node.id());
  });
  std::vector<size_t> expected;
  for (const size_t node : order_) {
    if (current.count(node))
      expected.push_back(node);
    else
      event.removed.push_back(current_.at(node));
  }
  if (expected != stayed) event.order = order;
  std::vector<std::string> outputs;
  for (const NodeArg* value : graph_->outputs()) outputs.push_back(value->name());
  if (outputs != outputs_) event.outputs = outputs;
  const bool differs = !event.added.empty() || !event.removed.empty() || !event.replaced.empty() ||
                       !event.order.empty() || !event.outputs.empty();
  if (!event.pass.empty() && !differs) return;
  event.nodes = order.size();
  current_ = std::move(current);
  order_ = std::move(order);
  outputs_ = std::move(outputs);
  note_sources();
  events_.push_back(std::move(event));
}

void GraphHistory::note_sources() {
  const auto add = [&](const NodeArg& value) {
    const TensorData* data = value.constant();
    GraphSource source{value.name(), value.type().text(), !value.is_graph_input(), data ? small_text(*data) : ""};
    const auto [place, fresh] = source_places_.emplace(source.name, sources_.size());
    if (fresh)
      sources_.push_back(std::move(source));
    else
      sources_[place->second] = std::move(source);
  };
  for (const NodeArg* in : graph_->inputs()) add(*in);
  for (const NodeArg* value : graph_->initializers()) add(*value);
}

}  // namespace ortmodule
