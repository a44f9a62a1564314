// CUDA source of a fused program (records/fused_program.h), made for how its operands lie.
//
// Note [Generated kernels]
// One generator writes all of them. A program that looks at no whole row is one thread for N elements side by side.
// One that does is a team of threads for a row, a warp or a block, in stages: each ends in reductions over the row,
// and values that a later stage needs too are held in registers where the row fits into them, so that memory is read
// once. Sums over columns are added up by each team over its rows and written for each block; a second kernel adds
// those, in an order that the sizes give. Where no reduction is over rows, blocks have tiles: 4 rows of a warp's
// columns at once. What rotates halves of rows alone is no program by rows. Dropout's words are made by warps together
// (cuda/philox.cuh).
// Sizes, strides and random states are numbers of the launch: a source serves all sizes that lie alike, all layers
// of a model and all runs. Elements are loaded as 16 bytes where alignment and sizes allow it.
// Not here: which operands a run has (fused_cuda_kernel.cpp), who compiles it (cuda/generated.h).
#pragma once

#include <string>
#include <vector>

#include "records/fused_program.h"

namespace ortmodule {

// How an input lies in the space, outermost axis first, neighbours that are one step apart in memory joined.
struct CudaOperand {
  DType type = DType::kFloat;
  bool single = false;    // one element for all
  bool per_row = false;   // an element for each row of a kernel by rows: axes are those of the rows
  bool in_rows = false;   // the last axis is the row's
  bool repeated = false;  // the same again along the first axis
  bool whole = false;     // N neighbours lie in one run of the last axis
  bool vectors = false;   // and may be loaded at once
  int axes = 1;
  int64_t last_stride = 1;  // 0, 1 or any other
};

struct CudaVariant {
  std::vector<CudaOperand> inputs;
  std::vector<char> wanted;  // per output
  std::vector<char> row;     // per value, of a kernel by rows: one element for each row
  bool by_rows = false;
  bool whole_draws =
      false;          // a row is a multiple of 64 elements, so that a warp has its dropout's words from one place
  bool wide = false;  // elements are counted in 64 bits
  int vector = 1;     // N
  int team = 32;      // threads that have a row together
  int held = 0;       // vectors of a row that a thread holds; 0: none, they are read again
};

constexpr int kRowThreads = 512;   // of kernels by rows that a multiprocessor has at once, at least: 128 registers each
constexpr int kCudaThreads = 256;  // of a block of a kernel that is not by rows

// What decides how long a row may be that is held.
struct CudaLoad {
  int held = 0, sums = 0, stages = 1;  // values, sums over columns, loops over a row
};
CudaLoad cuda_load(const FusedProgram& program, const CudaVariant& variant);

// Chooses `team` and `held` for rows of `width` elements; false where sums over columns find no registers.
bool choose_team(const FusedProgram& program, CudaVariant& variant, int64_t width);

// What it computes, as an identifier of at most 50 letters: "fused_add_layer_norm", "fused_silu_mul".
std::string cuda_kernel_name(const FusedProgram& program, const CudaVariant& variant);

// Two kernels: one of that name, and one with "_total" behind it where there are sums over columns. Addresses of the
// first: inputs that are no state, then outputs that are wanted and no sums over columns, then the blocks' parts where
// there are such sums. Numbers: elements, rows, width and its divider; of each input that is neither state nor single
// the sizes of all axes but the first, their dividers, and all strides; of each dropout with a ratio between 0 and 1
// its two words. Of the total: the parts and the sums' outputs; blocks, width.
std::string cuda_source(const FusedProgram& program, const CudaVariant& variant);

// Those of its sums over columns that no single kernel can add up for rows so long: a program without them that also
// gives the row values they need, and one with nothing else that reads those as inputs (behind the program's own).
struct SplitProgram {
  FusedProgram first, second;
  std::vector<int> rows;  // outputs of `first` behind the program's own: what `second` reads
};
SplitProgram split_columns(const FusedProgram& program);

inline bool is_reduction(Opcode op) { return op == Opcode::kRowSum || op == Opcode::kRowMean; }
// Whether the instruction draws: a ratio of 0 or 1 needs no words.
inline bool draws(const Instruction& i) { return i.op == Opcode::kPhiloxDropout && i.number > 0 && i.number < 1; }

}  // namespace ortmodule
