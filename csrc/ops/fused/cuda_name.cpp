// What a generated kernel is called: by what it computes, for a profiler's reader. The same program over operands that
// lie alike has the same name, so that a name makes no second source of one.
#include <algorithm>
#include <vector>

#include "ops/fused/cuda_schedule.h"
#include "ops/fused/cuda_source.h"

namespace ortmodule {
namespace {

constexpr size_t kLongest = 50;  // letters, without "_total"

class Namer {
 public:
  Namer(const FusedProgram& program, const CudaVariant& variant)
      : program_(program), variant_(variant), schedule_(program, variant) {
    for (size_t k = 0; k < program.code.size(); ++k) {
      if (!used(k)) continue;
      const Opcode op = program.code[k].op;
      means_ += op == Opcode::kRowMean;
      sums_ += op == Opcode::kRowSum;
      has_root_ |= op == Opcode::kRsqrt || op == Opcode::kSqrt;
      has_half_ |= op == Opcode::kNumber && program.code[k].number == -0.5;
      rotates_ |= op == Opcode::kRotateHalf;
    }
  }

  std::string run() {
    const std::string norm = norm_name();
    for (size_t k = 0; k < program_.code.size(); ++k) {
      if (!used(k)) continue;
      const Instruction& i = program_.code[k];
      if (!norm.empty() && is_reduction(i.op)) say(norm);
      say(word(i, !norm.empty()));
    }
    bool columns = false;
    for (size_t o = 0; o < program_.outputs.size(); ++o)
      columns |= variant_.wanted[o] && is_column(program_.outputs[o].form);
    if (columns && norm.empty()) say("column_sum");
    if (said_.empty()) say("cast");
    std::string name = "fused";
    for (const std::string& w : said_) {
      if (name.size() + 1 + w.size() > kLongest) break;
      name += "_" + w;
    }
    return name;
  }

 private:
  bool used(size_t k) const { return schedule_.used(program_.inputs + static_cast<int>(k)); }

  // By the reductions that normalizations and their gradients are made of; empty for others.
  std::string norm_name() const {
    if (means_ && has_root_) return means_ > 1 ? "layer_norm" : "rms_norm";
    if (means_ > 1) return "layer_norm_grad";
    if (sums_ && has_half_) return "rms_norm_grad";
    return {};
  }

  // Once for what stands several times side by side.
  void say(const std::string& word) {
    if (word.empty() || (!said_.empty() && said_.back() == word)) return;
    if (word.find("norm") != std::string::npos && std::find(said_.begin(), said_.end(), word) != said_.end()) return;
    said_.push_back(word);
  }

  bool is_full_input(int value) const {
    return value >= 0 && value < program_.inputs && !variant_.inputs[value].single &&
           !variant_.inputs[value].repeated && !variant_.inputs[value].per_row;
  }

  // Empty: it goes without saying. Beside a norm or a rotation sums and products are mostly theirs.
  std::string word(const Instruction& i, bool norm) const {
    switch (i.op) {
      case Opcode::kNumber:
      case Opcode::kRoundBFloat16:
      case Opcode::kRoundHalf:
        return {};
      case Opcode::kRotateHalf:
        return "rotary";
      case Opcode::kPhiloxDropout:
        return "dropout";
      case Opcode::kAdd:
        if (rotates_) return {};
        if (norm) return is_full_input(i.arguments[0]) || is_full_input(i.arguments[1]) ? "add" : "";
        return "add";
      case Opcode::kSub:
      case Opcode::kMul:
      case Opcode::kDiv:
      case Opcode::kNeg:
      case Opcode::kRsqrt:
      case Opcode::kSqrt:
      case Opcode::kRowSum:
      case Opcode::kRowMean:
        return norm || rotates_ ? "" : opcode_info(i.op).name;
      default:
        return opcode_info(i.op).name;
    }
  }

  const FusedProgram& program_;
  const CudaVariant& variant_;
  const CudaSchedule schedule_;
  int means_ = 0, sums_ = 0;
  bool has_root_ = false, has_half_ = false, rotates_ = false;
  std::vector<std::string> said_;
};

}  // namespace

std::string cuda_kernel_name(const FusedProgram& program, const CudaVariant& variant) {
  return Namer(program, variant).run();
}

}  // namespace ortmodule
