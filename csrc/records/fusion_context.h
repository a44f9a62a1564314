// How an operator becomes instructions of a fused program: what `OpRecord::fuses` is given.
//
//     ORTMODULE_OP("", Add, 14)...fuses(instruction<Opcode::kAdd>);
//
// A function emits instructions for one node and says which values its outputs are; it returns false for a mode that
// the program cannot express, and the node then stays as it is. The fusion pass has checked types and shapes before:
// inputs broadcast to the iteration space, everything is a float, a 16-bit float or a boolean.
//
// Normalizations that are one operator join only where the device's programs serve them (whole_rows): on the CPU their
// own kernels keep a row in registers and were faster than a program (LayerNormalization of 512 x 768 floats: 0.14 ms
// against 0.20, its gradient 0.20 against 0.36). The same formula written out in separate operators gains (RMSNorm with
// a residual sum: 0.28 ms against 0.38).
#pragma once

#include <optional>
#include <vector>

#include "records/fused_program.h"

namespace ortmodule {

// What a fusing function sees. The fusion pass implements where inputs come from.
class FusionContext {
 public:
  explicit FusionContext(FusedProgram& program) : program_(program) {}
  virtual ~FusionContext() = default;

  const Node& node() const { return *node_; }
  size_t input_count() const { return node_->inputs().size(); }
  bool has(size_t i) const { return node_->input(i) != nullptr; }
  bool wants(size_t i) const { return node_->output(i) != nullptr; }
  // The number of a constant input of one element.
  std::optional<double> constant(size_t i) const;
  // The integers of a small constant input; none when it is absent or not constant.
  std::optional<std::vector<int64_t>> ints(size_t i) const;

  // Whether a normalization may become a part of a program (Prices::whole_rows).
  virtual bool whole_rows() const { return false; }
  // Whether the node's attribute `axis` names the last one of input i alone.
  bool is_last_axis(size_t i) const;

  virtual int in(size_t i) = 0;
  // Says what output i is.
  virtual void out(size_t i, int value, OutputForm form = OutputForm::kFull) = 0;

  int emit(Opcode op, int a, int b = -1, int c = -1) { return append({op, {a, b, c}}); }
  int number(double value);
  int append(const Instruction& instruction);

 protected:
  const Node* node_ = nullptr;  // the node at hand
  FusedProgram& program_;
};

// One instruction of the node's inputs, in their order.
template <Opcode op>
bool instruction(FusionContext& c) {
  const int count = opcode_info(op).arguments;
  int arguments[3] = {-1, -1, -1};
  for (int i = 0; i < count; ++i) arguments[i] = c.in(static_cast<size_t>(i));
  c.out(0, c.emit(op, arguments[0], arguments[1], arguments[2]));
  return true;
}

}  // namespace ortmodule
