// What passes that look for several nodes which are one operator ask of a graph.
#pragma once

#include <cmath>
#include <optional>
#include <vector>

#include "graph/graph.h"

namespace ortmodule {

inline bool has_one_use(const NodeArg* value) { return value->uses().size() == 1 && !value->is_graph_output(); }

// The node of this operator that makes a value, which nothing else reads; null.
inline const Node* made_by(const NodeArg* value, const char* op) {
  const Node* node = value ? value->producer() : nullptr;
  return node && node->qualified_op() == op && has_one_use(value) ? node : nullptr;
}

// A constant of one element.
inline std::optional<double> number(const NodeArg* value) {
  if (!value || !value->constant()) return std::nullopt;
  const std::vector<double> all = value->constant()->to_doubles();
  return all.size() == 1 ? std::optional(all[0]) : std::nullopt;
}

inline bool is_about(std::optional<double> value, double wanted) {
  return value && std::abs(*value - wanted) <= 1e-4 * std::abs(wanted);
}

inline bool same_shape(const NodeArg* a, const NodeArg* b) {
  return a->type().shape && a->type().shape == b->type().shape;
}

// A number per element of the last axis of `x`, the same in every run: an initializer or an input of the graph.
inline bool is_row_of(const NodeArg* value, const NodeArg* x) {
  if (!value || value->producer()) return false;
  const auto &row = value->type().shape, &shape = x->type().shape;
  return row && shape && row->size() == 1 && !shape->empty() && row->back() == shape->back() &&
         value->type().dtype == x->type().dtype;
}

// Whether a node of a normalization is over the last axis alone, with a scale (and a bias, if any) of its size, and
// nobody reads its statistics.
inline bool normalizes_rows(const Node& node) {
  const NodeArg *x = node.input(0), *y = node.output(0);
  if (!x || !y || !x->type().shape || !same_shape(x, y) || !is_row_of(node.input(1), x)) return false;
  const int64_t axis = node.get_int("axis", -1);
  if (axis != -1 && axis != static_cast<int64_t>(x->type().shape->size()) - 1) return false;
  for (size_t i = 1; i < node.outputs().size(); ++i)
    if (node.output(i)) return false;
  return !node.input(2) || is_row_of(node.input(2), x);
}

// A product, taken apart: what nothing else reads of Mul, Div by a number, and Pow with 2 or 3.
struct Product {
  double scale = 1;
  std::vector<const NodeArg*> factors;

  // Whether it is `factor` so many times, and nothing else but a number.
  bool is_power(const NodeArg* factor, size_t times) const {
    for (const NodeArg* one : factors)
      if (one != factor) return false;
    return factors.size() == times;
  }
};

// `value` itself may have other readers where `root` says so.
inline void take_apart(const NodeArg* value, Product& out, bool root = false) {
  const Node* node = value->producer();
  if (const auto constant = number(value)) {
    out.scale *= *constant;
    return;
  }
  const std::string op = node && (root || has_one_use(value)) ? node->qualified_op() : std::string();
  const std::optional<double> second = op.empty() ? std::nullopt : number(node->input(1));
  if (op == "Mul") {
    take_apart(node->input(0), out);
    if (node->input(1) != node->input(0)) return take_apart(node->input(1), out);
    out.factors.push_back(node->input(1));  // a square's factor has two uses
  } else if (op == "Div" && second) {
    take_apart(node->input(0), out);
    out.scale /= *second;
  } else if (op == "Pow" && (second == 2.0 || second == 3.0)) {
    out.factors.insert(out.factors.end(), static_cast<size_t>(*second), node->input(0));
  } else {
    out.factors.push_back(value);
  }
}

inline Product product_of(const NodeArg* value, bool root = false) {
  Product out;
  take_apart(value, out, root);
  return out;
}

}  // namespace ortmodule
