// The program of a cluster (fuse.h), as its operators say it: FusionContext's other side.
//
// A value that is written is known by its number; inputs are numbered from far on until all are known. Not here: which
// nodes are a cluster.
#pragma once

#include <algorithm>
#include <unordered_map>
#include <vector>

#include "base/status.h"
#include "graph/graph.h"
#include "records/fusion_context.h"
#include "records/prices.h"
#include "records/registry.h"

namespace ortmodule {

inline bool is_number(const NodeArg& value) { return value.constant() && value.constant()->elements() == 1; }

inline bool is_one(const Dim& dim) { return dim.is_known() && dim.value() == 1; }

// Writes the program of the nodes of a cluster, in their order.
class ClusterWriter : public FusionContext {
 public:
  struct Output {
    NodeArg* value;
    int number;
    OutputForm form;
  };

  explicit ClusterWriter(const Prices& prices) : FusionContext(code_), whole_rows_(prices.whole_rows) {}

  // False where the operator's function refuses the node.
  bool add(Node& node) {
    node_ = at_ = &node;
    return node.record()->fusion_fn()(*this);
  }

  bool whole_rows() const override { return whole_rows_; }

  int in(size_t i) override {
    NodeArg* value = at_->input(i);
    ORTMODULE_INTERNAL(value, "a fused node reads an absent input (", at_->describe(), ")");
    if (const auto known = numbers_.find(value); known != numbers_.end()) return known->second;
    if (is_number(*value)) return number(value->constant()->to_doubles().at(0));
    return numbers_[value] = add_input(value);
  }

  void out(size_t i, int value, OutputForm form) override {
    NodeArg* result = at_->output(i);
    if (!result) return;
    outputs_.push_back({result, value, form});
    if (form == OutputForm::kFull || form == OutputForm::kRow) numbers_[result] = value;
  }

  const std::vector<NodeArg*>& inputs() const { return inputs_; }
  const std::vector<Output>& outputs() const { return outputs_; }
  size_t instructions() const { return code_.code.size(); }

  // The program over `space` with the outputs that `wanted` says; inputs come first in its numbering.
  template <typename F>
  FusedProgram finish(const Shape& space, F wanted) const {
    FusedProgram program;
    program.inputs = static_cast<int>(inputs_.size());
    program.code = code_.code;
    for (Instruction& i : program.code)
      for (int& argument : i.arguments)
        if (argument >= 0) argument = final_number(argument);
    const bool has_rows = !space.empty() && !is_one(space.back());
    for (const NodeArg* in : inputs_) {
      const bool row = has_rows && in->type().shape && !in->type().shape->empty() && is_one(in->type().shape->back());
      program.row_input.push_back(row && in->type().dtype != DType::kInt64);
    }
    // A single element fits row values and full ones; it is a row value where there are any.
    const std::vector<char> rows = program.row_values();
    if (has_rows && std::find(rows.begin(), rows.end(), 1) != rows.end())
      for (size_t i = 0; i < inputs_.size(); ++i)
        if (inputs_[i]->type().shape && inputs_[i]->type().shape->empty()) program.row_input[i] = 1;
    for (const Output& out : outputs_)
      if (wanted(out.value)) program.outputs.push_back({final_number(out.number), out.value->type().dtype, out.form});
    return program;
  }
  int final_number(int number) const {
    return number >= kInputBase ? number - kInputBase : number + static_cast<int>(inputs_.size());
  }

 private:
  static constexpr int kInputBase = 1 << 16;  // while a program is written, its inputs are numbered from here

  int add_input(NodeArg* value) {
    inputs_.push_back(value);
    return kInputBase + static_cast<int>(inputs_.size()) - 1;
  }

  FusedProgram code_;
  bool whole_rows_;
  Node* at_ = nullptr;
  std::vector<NodeArg*> inputs_;
  std::vector<Output> outputs_;
  std::unordered_map<const NodeArg*, int> numbers_;
};

}  // namespace ortmodule
