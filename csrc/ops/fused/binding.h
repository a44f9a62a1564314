// A fused program made ready: what is known of it before a run (Plan), and what follows from the sizes, strides and
// types of a run's inputs (Binding), which is kept until they change.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "ops/fused/tile_ops.h"
#include "records/fused_program.h"

namespace ortmodule {

// What the interpreter does at once: an instruction, or two where one reads what only the other makes.
struct FusedStep {
  enum class Kind { kElements, kRotate, kPhilox, kRowSum, kRowMean } kind = Kind::kElements;
  TileFn fn = nullptr;  // of kElements
  int arguments[3] = {-1, -1, -1};
  int result = -1;
  double number = 0;
  int64_t stream = 0;
  bool product = false;  // a row's sum is of the products of two arguments
};

// The sum over columns of one value, or of the product of two.
struct FusedColumn {
  int output, first, second = -1;
};

// Known when the kernel is made.
struct FusedPlan {
  // `strided`: results lie as what they are made of also where rows are rotated, or where that is a part of more. So it
  // is best where attention takes strides.
  explicit FusedPlan(FusedProgram p, bool strided = false);

  FusedProgram program;
  std::vector<FusedStep> steps;
  std::vector<FusedColumn> column_sums;
  std::vector<char> row;       // per value
  std::vector<char> number;    // per value
  std::vector<char> state;     // per input
  std::vector<int> slot;       // per value: its place in a thread's scratch memory, full and row values apart
  std::vector<int> last_read;  // per value: the last step that reads it, -1: none; their number: the end of a tile
  std::vector<int> made;       // per value: the step that makes it, -1: none
  int full_slots = 0, row_slots = 0;
  bool whole_rows = false;   // an instruction needs all of a row: a tile holds whole ones
  bool rotates = false;      // has rows whose halves change over
  bool knows_rows = false;   // has row values: a tile holds whole rows where the sizes allow no other
  bool strided = false;      // as given
  bool row_results = false;  // makes row values, or sums over columns, or reads whole rows
  bool any_order = false;    // a row's place decides nothing: no row values, no sums over columns, no random numbers

 private:
  void find_steps();
  void find_column_sums(std::vector<int>& reads);
};

// Where the elements of an input are, by their position in the iteration space.
struct FusedOperand {
  enum class Mode {
    kSingle,    // one element for all
    kDirect,    // contiguous floats: read in place
    kRepeated,  // contiguous floats, the same again and again: read in place where a tile meets no end of them
    kLoaded,    // anything else: brought into scratch memory
  };
  Mode mode = Mode::kLoaded;
  at::ScalarType type = at::kFloat;
  std::vector<int64_t> sizes, strides;  // outermost first, collapsed
};

struct FusedBinding {
  // Inputs as they were: per input its type, its rank, its sizes and its strides.
  std::vector<int64_t> key;
  std::vector<int64_t> sizes;  // of the iteration space
  // Its axes from the outermost in memory to the innermost, where elements may be computed in any order: as the inputs
  // lie (channels last, say), so that they are read along memory and results lie as eager's do. Else empty.
  std::vector<int64_t> order;
  int64_t count = 0, rows = 0, width = 0;
  int64_t tile = 0;  // elements; a multiple of width where rows are whole
  bool by_rows = false;
  std::vector<FusedOperand> operands;

  // Of results by their form.
  std::vector<int64_t> sizes_of(OutputForm form) const;
  // Of results that have the space's sizes.
  std::vector<int64_t> strides() const;
  static bool matches(const std::vector<int64_t>& key, const at::Tensor* const* inputs, size_t count);
};

// Throws kRuntime, naming `node`, for sizes that do not broadcast.
std::shared_ptr<const FusedBinding> bind_fused(const FusedPlan& plan, const std::vector<const at::Tensor*>& inputs,
                                               const std::string& node);

}  // namespace ortmodule
