// The program of a FusedKernel: what one pass over memory computes, as a list of instructions on values.
//
// It is backend-neutral: on the CPU an interpreter runs it tile by tile (fused/fused_kernel.cpp), and it holds all that
// a generator of device code needs. A node carries it as readable attributes:
//
//     program = ["%2 = add %0 %1", "%3 = number 0.5", "%4 = mul %2 %3"]   outputs = ["full float %4"]   rows = []
//
// Note [Values of a program]
// Values 0 .. inputs - 1 are the node's inputs, value inputs + k is the result of instruction k. Every value is one of
// two kinds. A full value has the shape of the iteration space, S = [.., N], to which all inputs broadcast. A row value
// has one element for each row, S with 1 in place of N: the inputs listed in `rows`, reductions over the last axis
// (row_sum, row_mean), and what is computed of row values and numbers alone. All are computed in float, whatever the
// types of inputs and outputs: 16-bit values are rounded once, when they are stored, and where a program says so
// (round_bfloat16, round_half). Booleans are 0 and 1.
// An output of the form `column` is the sum of a full value over all axes but the last.
//
// Which operators become which instructions stands beside their records (fusion.h). Not here: what to fuse
// (transforms/fuse.cpp).
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "graph/graph.h"

namespace ortmodule {

enum class Opcode {
  kNumber,  // the constant `number`
  kAdd,
  kSub,
  kMul,
  kDiv,
  kMin,  // NaN wins
  kMax,
  kLess,
  kLessEqual,
  kGreater,
  kGreaterEqual,
  kEqual,
  kAnd,
  kOr,
  kXor,
  kWhere,  // condition, if true, if false
  kNot,
  kNeg,
  kAbs,
  kSqrt,
  kRsqrt,
  kReciprocal,
  kExp,
  kLog,
  kTanh,
  kErf,
  kSigmoid,
  kRelu,
  kGelu,      // with the error function
  kGeluTanh,  // its approximation by tanh
  kSilu,
  kGeluGrad,  // dy, x
  kGeluTanhGrad,
  kSiluGrad,
  kTanhGrad,  // dy, y
  kSigmoidGrad,
  kRoundBFloat16,  // to the nearest number of the type
  kRoundHalf,
  kRotateHalf,     // of each row: [-x2, x1] for [x1, x2]; a full value of an even N
  kPhiloxDropout,  // x, state (an int64[2] input); `number`: the ratio. The element's place in S in `stream` decides.
  kRowSum,
  kRowMean,
  kCount,
};

struct OpcodeInfo {
  const char* name;
  int arguments;
};
const OpcodeInfo& opcode_info(Opcode op);

struct Instruction {
  Opcode op = Opcode::kNumber;
  std::array<int, 3> arguments{-1, -1, -1};
  double number = 0;
  int64_t stream = 0;  // Note [Random state]
};

enum class OutputForm {
  kFull,
  kRow,         // [.., 1]
  kRowDropped,  // [..]: without the last axis
  kColumn,      // [N]
  kColumnKept,  // [1, .., 1, N]
  kCount,
};
inline bool is_column(OutputForm form) { return form == OutputForm::kColumn || form == OutputForm::kColumnKept; }

struct FusedProgram {
  struct Output {
    int value;
    DType dtype;
    OutputForm form;
  };
  int inputs = 0;
  std::vector<char> row_input;  // per input
  std::vector<Instruction> code;
  std::vector<Output> outputs;

  int value_count() const { return inputs + static_cast<int>(code.size()); }
  // Whether input i is read as the state of a random stream, which has no place in the iteration space.
  bool is_state(int input) const;
  // Per value: whether it is a row value.
  std::vector<char> row_values() const;
  // Whether an instruction needs all of a row at once.
  bool needs_whole_rows() const;
};

Attributes write_program(const FusedProgram& program);
// Throws kInvalidGraph, naming the node and the line, for what is no program.
FusedProgram read_program(const Node& node);

}  // namespace ortmodule
