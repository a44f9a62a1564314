// Which of a call's tensors are the same tensor: an argument twice, an argument that is a parameter or a buffer.
//
// A forward can ask (`a is b`), and a write into one is seen through the other: a graph holds for the calls of its own
// kind alone. Tensors that share memory and are not the same are told apart only where the graph writes into one of
// them; whether that matters is decided in Python (graph_transition/aliases.py).
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <utility>
#include <vector>

namespace ortmodule {

class ArgumentAliases {
 public:
  // (argument, what it is): an earlier argument's index; or a tensor of the module, as ~(its number).
  using Found = std::vector<std::pair<size_t, int64_t>>;

  // Takes a call's tensors (undefined where a leaf is none). The module's are then shown one by one with `meet`.
  void begin(const std::vector<at::Tensor>& arguments);

  // `mask`: mask(), which a walk over many keeps in a register.
  void meet(const at::Tensor& of_module, size_t number, uint64_t mask) {
    if (mask & bit(of_module.unsafeGetTensorImpl())) look_up(of_module.unsafeGetTensorImpl(), number);
  }
  uint64_t mask() const { return mask_; }

  const Found& found() const { return found_; }

  // Whether a tensor that is overwritten has memory in common with an argument that is another tensor. `written`: the
  // tensors, of which the first `of_arguments` are arguments; of those it is said where anybody else holds the memory.
  bool write_meets(const std::vector<const at::Tensor*>& written, size_t of_arguments) const;

 private:
  // A tensor's place in a set of 64: one that is not in it need not be looked for.
  static uint64_t bit(const c10::TensorImpl* tensor) {
    return uint64_t{1} << (reinterpret_cast<uintptr_t>(tensor) >> 6 & 63);
  }
  void look_up(const c10::TensorImpl* tensor, size_t number);

  const std::vector<at::Tensor>* arguments_ = nullptr;
  uint64_t mask_ = 0;
  Found found_;
};

}  // namespace ortmodule
