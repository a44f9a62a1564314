// How many threads have a row of a generated kernel together, and programs that no single kernel serves.
#include <algorithm>

#include "ops/fused/cuda_schedule.h"
#include "ops/fused/cuda_source.h"

namespace ortmodule {
namespace {

constexpr int kMostHeldFloats = 64;  // of a thread, beside what it computes with

}  // namespace

CudaLoad cuda_load(const FusedProgram& program, const CudaVariant& variant) {
  const CudaSchedule schedule(program, variant);
  CudaLoad load{schedule.held_count(), 0, schedule.loops()};
  for (size_t o = 0; o < program.outputs.size(); ++o)
    load.sums += variant.wanted[o] && is_column(program.outputs[o].form);
  return load;
}

bool choose_team(const FusedProgram& program, CudaVariant& variant, int64_t width) {
  variant.held = 1;
  const CudaLoad load = cuda_load(program, variant);
  if (load.stages == 1 && load.sums) {  // nothing is needed of a whole row: a block has a tile of columns
    variant.team = 32;
    return true;
  }
  const int floats = variant.vector * (load.held + load.sums);
  const int most = floats ? std::clamp(kMostHeldFloats / floats, 1, 4) : 4;
  const int64_t vectors = (width + variant.vector - 1) / variant.vector;
  for (int team : {32, 128, 256, 512}) {
    const int64_t each = (vectors + team - 1) / team;
    if (each > most) continue;
    variant.team = team;
    variant.held = static_cast<int>(std::min<int64_t>(each, most));
    return true;
  }
  variant.team = 512;
  variant.held = 0;
  return load.sums == 0;
}

SplitProgram split_columns(const FusedProgram& program) {
  SplitProgram split{program, program, {}};
  const std::vector<char> rows = program.row_values();
  split.first.outputs.clear();
  split.second.outputs.clear();
  for (const FusedProgram::Output& out : program.outputs)
    (is_column(out.form) ? split.second : split.first).outputs.push_back(out);
  // Reductions become inputs, which stand before all instructions: numbers of later values move up.
  std::vector<int> reductions;
  for (size_t k = 0; k < program.code.size(); ++k)
    if (is_reduction(program.code[k].op)) reductions.push_back(program.inputs + static_cast<int>(k));
  const int added = static_cast<int>(reductions.size());
  FusedProgram& second = split.second;
  second.inputs += added;
  second.row_input.resize(static_cast<size_t>(second.inputs), 1);
  std::vector<int> moved(static_cast<size_t>(program.value_count()));
  for (int value = 0; value < program.value_count(); ++value)
    moved[value] = value < program.inputs ? value : value + added;
  for (int r = 0; r < added; ++r) {
    split.rows.push_back(static_cast<int>(split.first.outputs.size()));
    split.first.outputs.push_back({reductions[r], DType::kFloat, OutputForm::kRow});
    moved[reductions[r]] = program.inputs + r;
  }
  for (size_t k = 0; k < second.code.size(); ++k) {
    Instruction& i = second.code[k];
    if (is_reduction(i.op)) {  // nobody reads what stood here
      i = {};
      continue;
    }
    for (int& a : i.arguments)
      if (a >= 0) a = moved[a];
  }
  for (FusedProgram::Output& out : second.outputs) out.value = moved[out.value];
  return split;
}

}  // namespace ortmodule
