// What a type and shape rule sees. A rule sets every output's type; where a dim cannot be known it sets a fresh
// symbol or leaves the shape away, never a guess. Rules throw kInvalidGraph for what cannot be right.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "graph/graph.h"

namespace ortmodule {

class InferContext {
 public:
  explicit InferContext(Node& node) : node_(node) {}

  Node& node() const { return node_; }
  size_t input_count() const { return node_.inputs().size(); }
  bool has(size_t i) const { return node_.input(i) != nullptr; }
  bool wants(size_t i) const { return node_.output(i) != nullptr; }
  DType dtype(size_t i) const;
  // Null when the rank is unknown.
  const Shape* shape(size_t i) const;
  // The shape; throws kInvalidGraph when the rank differs from `rank`. Null when unknown.
  const Shape* shape_of_rank(size_t i, size_t rank) const;
  // A constant input's tensor, or null.
  const TensorData* constant(size_t i) const;
  // Elements of a 0-d or 1-d int64 input that are known as dims: a constant, or what known() said of its producer.
  std::optional<std::vector<Dim>> dims_value(size_t i) const;
  // The same when all are integers.
  std::optional<std::vector<int64_t>> ints_value(size_t i) const;

  int64_t attr_int(const char* name, int64_t fallback) const { return node_.get_int(name, fallback); }
  double attr_float(const char* name, double fallback) const { return node_.get_float(name, fallback); }

  // Outputs; setting an absent output is allowed and does nothing.
  void out(size_t i, DType dtype, std::optional<Shape> shape);
  void same_as(size_t output, size_t input);  // type and shape of an input

  // Declares the elements of a small int64 output (Sizes, Shape, ...), so that Reshape and the like know their dims.
  void known(size_t i, std::vector<Dim> elements);

  // A shape whose dims are fresh symbols: rank known, sizes known at run time only.
  Shape fresh_shape(size_t rank);
  Dim fresh_dim();
  // Multidirectional broadcast; nothing when either is unknown; throws kInvalidGraph when two known dims clash.
  std::optional<Shape> broadcast(const Shape* a, const Shape* b) const;
  // `axis` in [-rank, rank) made non-negative; throws kInvalidGraph otherwise.
  size_t axis(int64_t axis, size_t rank) const;
  [[noreturn]] void error(const std::string& message) const;  // kInvalidGraph with operator and node

 private:
  Node& node_;
};

// Shared rules.
void infer_same(InferContext& c);       // output 0 like input 0
void infer_broadcast(InferContext& c);  // output 0: dtype of input 0, broadcast of inputs 0 and 1
void infer_compare(InferContext& c);    // output 0: bool, broadcast of inputs 0 and 1

}  // namespace ortmodule
