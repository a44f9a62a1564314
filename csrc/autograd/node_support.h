// What our autograd nodes share.
#pragma once

#include <torch/csrc/autograd/function.h>

#include <algorithm>
#include <memory>
#include <string_view>
#include <type_traits>
#include <typeinfo>

namespace ortmodule {

// Edge::function is a std::shared_ptr up to torch 2.12 and an intrusive_ptr after it.
using NodePtr = decltype(torch::autograd::Edge::function);

template <typename Made, typename Pointer = NodePtr, typename... Args>
auto make_node(Args&&... args) {
  if constexpr (std::is_same_v<Pointer, std::shared_ptr<torch::autograd::Node>>)
    return std::make_shared<Made>(std::forward<Args>(args)...);
  else
    return c10::make_intrusive<Made>(std::forward<Args>(args)...);
}

// Whether any of a node's hooks is a user's, in Python.
template <typename Hooks>
bool any_of_python(const Hooks& hooks) {
  return std::any_of(hooks.begin(), hooks.end(), [](const auto& hook) {
    const auto& one = *hook;
    return std::string_view(typeid(one).name()).find("PyFunction") != std::string_view::npos;
  });
}

}  // namespace ortmodule
