#include "ops/fused/cuda_schedule.h"

#include <algorithm>

namespace ortmodule {

CudaSchedule::CudaSchedule(const FusedProgram& program, const CudaVariant& variant)
    : program_(program), variant_(variant) {
  const auto values = static_cast<size_t>(program.value_count());
  level_.assign(values, 0);
  used_.assign(values, 0);
  barred_.assign(values, 0);
  find_levels();
  // What can be had from held values is not held itself; leaving one out may change what else is read again.
  for (int round = 0; round < 3; ++round) {
    find_needs();
    bool changed = false;
    for (int value = program.inputs; value < program.value_count(); ++value) {
      if (!held_[value] || program.code[value - program.inputs].op == Opcode::kPhiloxDropout) continue;
      const Instruction& i = program.code[value - program.inputs];
      const bool at_hand = std::all_of(i.arguments.begin(), i.arguments.end(),
                                       [&](int a) { return a < 0 || is_row(a) || held_[a] || !may_hold(a); });
      if (at_hand) barred_[value] = 1;
      changed |= at_hand;
    }
    if (!changed) break;
  }
}

void CudaSchedule::find_levels() {
  const int inputs = program_.inputs;
  std::vector<int> stack;
  for (size_t o = 0; o < program_.outputs.size(); ++o)
    if (variant_.wanted[o]) stack.push_back(program_.outputs[o].value);
  while (!stack.empty()) {
    const int value = stack.back();
    stack.pop_back();
    if (used_[value]) continue;
    used_[value] = 1;
    if (value < inputs) continue;
    for (int a : program_.code[value - inputs].arguments)
      if (a >= 0) stack.push_back(a);
  }
  int deepest = 0;
  for (int value = inputs; value < program_.value_count(); ++value) {
    const Instruction& i = program_.code[value - inputs];
    for (int a : i.arguments)
      if (a >= 0) level_[value] = std::max(level_[value], level_[a]);
    if (is_reduction(i.op)) ++level_[value];
    if (used_[value]) deepest = std::max(deepest, level_[value]);
  }
  loops_ = deepest + 1;
  reductions_.assign(static_cast<size_t>(loops_), {});
  for (int value = inputs; value < program_.value_count(); ++value)
    if (used_[value] && is_reduction(program_.code[value - inputs].op)) reductions_[level_[value] - 1].push_back(value);
}

// A value that no reduction stands before, and that memory does not give again for nothing.
bool CudaSchedule::may_hold(int value) const {
  if (variant_.held == 0 || is_row(value) || level_[value] > 0) return false;
  if (value >= program_.inputs) return program_.code[value - program_.inputs].op != Opcode::kNumber;
  const CudaOperand& operand = variant_.inputs[value];
  return !program_.is_state(value) && !operand.single && !operand.repeated;
}

void CudaSchedule::find_needs() {
  const int inputs = program_.inputs;
  held_.assign(level_.size(), 0);
  needed_.assign(level_.size(), {});
  for (size_t o = 0; o < program_.outputs.size(); ++o)
    if (variant_.wanted[o]) needed_[program_.outputs[o].value].insert(loops_ - 1);
  for (int value = program_.value_count() - 1; value >= 0; --value) {
    if (!used_[value]) continue;
    if (variant_.by_rows && needed_[value].size() > 1 && may_hold(value) && !barred_[value]) held_[value] = 1;
    if (value < inputs) continue;
    const Instruction& i = program_.code[value - inputs];
    if (i.op == Opcode::kRotateHalf) continue;  // it reads other columns than those that a thread holds
    for (int a : i.arguments) {
      if (a < 0) continue;
      if (is_reduction(i.op))
        needed_[a].insert(level_[value] - 1);
      else if (held_[value])
        needed_[a].insert(*needed_[value].begin());
      else if (!is_row(value))
        needed_[a].insert(needed_[value].begin(), needed_[value].end());
    }
  }
}

int CudaSchedule::held_count() const { return static_cast<int>(std::count(held_.begin(), held_.end(), 1)); }

}  // namespace ortmodule
