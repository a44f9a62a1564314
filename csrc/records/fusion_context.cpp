#include "records/fusion_context.h"

#include <bit>
#include <cstdint>

namespace ortmodule {

std::optional<double> FusionContext::constant(size_t i) const {
  const NodeArg* in = node_->input(i);
  if (!in || !in->constant() || in->constant()->elements() != 1) return std::nullopt;
  return in->constant()->to_doubles().at(0);
}

std::optional<std::vector<int64_t>> FusionContext::ints(size_t i) const {
  const NodeArg* in = node_->input(i);
  if (!in || !in->constant()) return std::nullopt;
  return in->constant()->to_ints();
}

bool FusionContext::is_last_axis(size_t i) const {
  const auto& shape = node_->input(i)->type().shape;
  const int64_t axis = node_->get_int("axis", -1);
  return axis == -1 || (shape && axis == static_cast<int64_t>(shape->size()) - 1);
}

int FusionContext::number(double value) {
  for (size_t k = 0; k < program_.code.size(); ++k)
    if (program_.code[k].op == Opcode::kNumber &&
        std::bit_cast<uint64_t>(program_.code[k].number) == std::bit_cast<uint64_t>(value))
      return program_.inputs + static_cast<int>(k);
  return append({Opcode::kNumber, {-1, -1, -1}, value});
}

int FusionContext::append(const Instruction& instruction) {
  program_.code.push_back(instruction);
  return program_.value_count() - 1;
}

}  // namespace ortmodule
