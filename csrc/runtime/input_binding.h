// Checks a run's inputs against the graph's declared types and binds the graph's symbolic sizes from their shapes.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

#include "base/dim.h"
#include "graph/graph.h"

namespace ortmodule {

class InputBinding {
 public:
  explicit InputBinding(const std::vector<NodeArg*>& inputs);

  // Fills `symbols`; throws kInvalidArgument naming the input, what was expected and what came. Of values that
  // are not among `unchecked` the caller knows that they have the type and the sizes of ones that were bound before:
  // they are passed over where no symbol depends on them.
  void bind(const std::vector<at::Tensor>& values, SymbolTable& symbols,
            const std::vector<size_t>* unchecked = nullptr) const;
  size_t size() const { return inputs_.size(); }
  const std::string& name(size_t i) const { return inputs_[i].name; }

 private:
  struct Axis {
    int64_t known = -1;  // the number, or -1
    std::string symbol;  // a lone symbol, or empty
    Dim expression;      // anything else
  };
  struct Input {
    std::string name;
    at::ScalarType dtype;
    bool sequence, optional;
    bool has_shape;
    std::vector<Axis> axes;
  };
  // Returns whether a size is an expression, which needs all symbols.
  bool bind_one(const Input& input, const at::Tensor& value, SymbolTable& symbols) const;
  static void check_sequence(const Input& input, const at::Tensor& value);
  [[noreturn]] static void mismatch(const Input& input, const at::Tensor& value, const SymbolTable& symbols,
                                    size_t axis);
  std::vector<Input> inputs_;
  std::vector<size_t> open_;  // those with a size that is no number, sequences and what may be left out
};

}  // namespace ortmodule
