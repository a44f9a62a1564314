#include "runtime/input_binding.h"

#include <algorithm>

#include "base/container_type.h"
#include "base/status.h"
#include "kernels/aten_bridge.h"
#include "kernels/sequence_value.h"

namespace ortmodule {

InputBinding::InputBinding(const std::vector<NodeArg*>& inputs) {
  for (const NodeArg* arg : inputs) {
    const DType type = arg->type().dtype;
    // A body's input may be of unknown type: then any tensor fits.
    const bool typed = element_of(type) != DType::kUndefined;
    Input input{arg->name(),
                typed ? to_scalar_type(element_of(type)) : at::ScalarType::Undefined,
                is_sequence(type),
                is_optional(type),
                arg->type().shape.has_value(),
                {}};
    if (input.has_shape) {
      for (const Dim& d : *arg->type().shape) {
        Axis axis;
        if (d.is_known())
          axis.known = d.value();
        else if (auto symbol = d.lone_symbol())
          axis.symbol = *symbol;
        else
          axis.expression = d;
        input.axes.push_back(std::move(axis));
      }
    }
    const bool known = std::all_of(input.axes.begin(), input.axes.end(), [](const Axis& a) { return a.known >= 0; });
    if (!known || input.sequence || input.optional) open_.push_back(inputs_.size());
    inputs_.push_back(std::move(input));
  }
}

void InputBinding::mismatch(const Input& input, const at::Tensor& value, const SymbolTable& symbols, size_t axis) {
  Shape wanted;
  for (const Axis& a : input.axes) {
    if (a.known >= 0)
      wanted.emplace_back(a.known);
    else
      wanted.push_back(a.symbol.empty() ? a.expression : Dim::symbol(a.symbol));
  }
  std::string bound;
  if (axis < input.axes.size() && !input.axes[axis].symbol.empty())
    bound = str(" (", input.axes[axis].symbol, " is ", symbols.at(input.axes[axis].symbol), " in another input)");
  fail(ErrorCode::kInvalidArgument, "input '", input.name, "' should have shape ", shape_text(wanted), ", got ",
       value.sizes(), bound);
}

void InputBinding::check_sequence(const Input& input, const at::Tensor& value) {
  ORTMODULE_CHECK_ARG(holds_sequence(value), "input '", input.name, "' should be a sequence, got a tensor");
  if (input.dtype == at::ScalarType::Undefined) return;
  for (const at::Tensor& element : sequence_elements(value))
    ORTMODULE_CHECK_ARG(element.scalar_type() == input.dtype, "input '", input.name, "' should hold tensors of type ",
                        c10::toString(input.dtype), ", got ", c10::toString(element.scalar_type()));
}

bool InputBinding::bind_one(const Input& input, const at::Tensor& value, SymbolTable& symbols) const {
  if (input.optional && !value.defined()) return false;
  ORTMODULE_CHECK_ARG(value.defined(), "input '", input.name, "' is missing");
  if (input.sequence) {
    check_sequence(input, value);
    return false;
  }
  if (input.dtype == at::ScalarType::Undefined) return false;
  ORTMODULE_CHECK_ARG(value.has_storage() || !holds_sequence(value), "input '", input.name,
                      "' should be a tensor, got a sequence");
  ORTMODULE_CHECK_ARG(value.scalar_type() == input.dtype, "input '", input.name, "' should be of type ",
                      c10::toString(input.dtype), ", got ", c10::toString(value.scalar_type()));
  if (!input.has_shape) return false;
  const auto sizes = value.sizes();
  if (sizes.size() != input.axes.size()) mismatch(input, value, symbols, SIZE_MAX);
  bool expressions = false;
  for (size_t k = 0; k < input.axes.size(); ++k) {
    const Axis& axis = input.axes[k];
    if (axis.known >= 0) {
      if (sizes[k] != axis.known) mismatch(input, value, symbols, SIZE_MAX);
    } else if (!axis.symbol.empty()) {
      auto [it, fresh] = symbols.try_emplace(axis.symbol, sizes[k]);
      if (!fresh && it->second != sizes[k]) mismatch(input, value, symbols, k);
    } else {
      expressions = true;
    }
  }
  return expressions;
}

void InputBinding::bind(const std::vector<at::Tensor>& values, SymbolTable& symbols,
                        const std::vector<size_t>* unchecked) const {
  ORTMODULE_CHECK_ARG(values.size() == inputs_.size(), "expected ", inputs_.size(), " inputs, got ", values.size());
  bool expressions = false;
  if (unchecked) {
    for (const auto* some : {unchecked, &open_})
      for (const size_t i : *some) expressions |= bind_one(inputs_[i], values[i], symbols);
  } else {
    for (size_t i = 0; i < inputs_.size(); ++i) expressions |= bind_one(inputs_[i], values[i], symbols);
  }
  if (!expressions) return;
  for (size_t i = 0; i < inputs_.size(); ++i)
    for (size_t k = 0; k < inputs_[i].axes.size(); ++k) {
      const Axis& axis = inputs_[i].axes[k];
      if (axis.known < 0 && axis.symbol.empty() && axis.expression.evaluate(symbols) != values[i].size(k))
        mismatch(inputs_[i], values[i], symbols, SIZE_MAX);
    }
}

}  // namespace ortmodule
