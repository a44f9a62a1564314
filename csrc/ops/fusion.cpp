#include "ops/fusion.h"

#include <bit>
#include <cstdint>

#include "ops/registry.h"

namespace ortmodule {

FusionFacts& FusionFacts::instance() {
  static FusionFacts facts;
  return facts;
}

bool FusionFacts::set(const std::string& domain, const std::string& op, FusionFn fn, bool over_rows) {
  return facts_.emplace(domain.empty() ? op : domain + "::" + op, FusionFact{fn, over_rows}).second;
}

const FusionFact* FusionFacts::find(const Node& node) const {
  // By the record's name: a graph may hold a standard operator under our own domain.
  const auto it = node.record() ? facts_.find(node.record()->qualified_name()) : facts_.end();
  return it == facts_.end() ? nullptr : &it->second;
}

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
