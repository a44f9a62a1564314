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

  // Fills `symbols`; throws kInvalidArgument naming the input, what was expected and what came. Where checked[i] is set
  // the caller knows that value i has the type and the sizes of one that was bound before, and it is passed over if no
  // symbol depends on it.
  void bind(const std::vector<at::Tensor>& values, SymbolTable& symbols,
            const std::vector<char>* checked = nullptr) const;
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
  static void check_sequence(const Input& input, const at::Tensor& value);
  [[noreturn]] static void mismatch(const Input& input, const at::Tensor& value, const SymbolTable& symbols,
                                    size_t axis);
  std::vector<Input> inputs_;
  std::vector<char> fixed_;  // per input: a tensor of which no size is a symbol
};

}  // namespace ortmodule
