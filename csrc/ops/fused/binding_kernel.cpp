#include "ops/fused/binding.h"

#include <algorithm>

#include "base/status.h"

namespace ortmodule {
namespace {

constexpr int64_t kScratchFloats = 8192;  // of one thread's full values: within the first-level cache
constexpr int64_t kLargestTile = 1024, kSmallestTile = 256;
constexpr int64_t kNarrow = 16;  // rows below this many elements are not worth a loop of their own

std::vector<int64_t> key_of(const std::vector<const at::Tensor*>& inputs) {
  std::vector<int64_t> key;
  for (const at::Tensor* t : inputs) {
    key.push_back(static_cast<int64_t>(t->scalar_type()));
    key.push_back(t->dim());
    key.insert(key.end(), t->sizes().begin(), t->sizes().end());
    key.insert(key.end(), t->strides().begin(), t->strides().end());
  }
  return key;
}

// Neighbouring axes that are one step apart in memory become one.
void collapse(FusedOperand& operand) {
  std::vector<int64_t> sizes, strides;
  for (size_t i = 0; i < operand.sizes.size(); ++i) {
    if (operand.sizes[i] == 1) continue;
    if (!sizes.empty() && strides.back() == operand.strides[i] * operand.sizes[i]) {
      sizes.back() *= operand.sizes[i];
      strides.back() = operand.strides[i];
    } else {
      sizes.push_back(operand.sizes[i]);
      strides.push_back(operand.strides[i]);
    }
  }
  if (sizes.empty()) {
    sizes.push_back(1);
    strides.push_back(0);
  }
  operand.sizes = std::move(sizes);
  operand.strides = std::move(strides);
}

FusedOperand operand_of(const at::Tensor& t, const std::vector<int64_t>& space, bool row) {
  FusedOperand out;
  out.type = t.scalar_type();
  out.sizes = space;
  out.strides.assign(space.size(), 0);
  const size_t missing = space.size() - t.dim();
  for (int64_t i = 0; i < t.dim(); ++i)
    if (t.size(i) != 1) out.strides[missing + i] = t.stride(i);
  if (row) {
    out.sizes.pop_back();
    out.strides.pop_back();
  }
  const int64_t width = space.empty() ? 1 : space.back();
  collapse(out);
  const bool floats = out.type == at::kFloat;
  if (std::all_of(out.strides.begin(), out.strides.end(), [](int64_t s) { return s == 0; }))
    out.mode = FusedOperand::Mode::kSingle;
  else if (floats && out.sizes.size() == 1 && out.strides[0] == 1)
    out.mode = FusedOperand::Mode::kDirect;
  else if (floats && !row && out.sizes.size() == 2 && out.strides[0] == 0 && out.strides[1] == 1 &&
           out.sizes[1] == width)
    out.mode = FusedOperand::Mode::kRepeated;
  return out;
}

}  // namespace

FusedPlan::FusedPlan(FusedProgram p) : program(std::move(p)), row(program.row_values()) {
  const int values = program.value_count();
  last_read.assign(values, -1);
  slot.assign(values, -1);
  number.assign(values, 0);
  for (int i = 0; i < program.inputs; ++i) state.push_back(program.is_state(i));
  for (size_t k = 0; k < program.code.size(); ++k) {
    number[program.inputs + k] = program.code[k].op == Opcode::kNumber;
    for (int a = 0; a < opcode_info(program.code[k].op).arguments; ++a)
      last_read[program.code[k].arguments[a]] = static_cast<int>(k);
  }
  for (const FusedProgram::Output& out : program.outputs) {
    last_read[out.value] = static_cast<int>(program.code.size());
    columns |= out.form == OutputForm::kColumn || out.form == OutputForm::kColumnKept;
  }
  whole_rows = program.reduces_rows();
  knows_rows = std::any_of(row.begin(), row.end(), [](char r) { return r != 0; });

  // Inputs are brought in before the first instruction; the place of a value is free after its last reader.
  std::vector<int> free_full, free_row;
  const auto take = [&](int value) {
    auto& pool = row[value] ? free_row : free_full;
    int& count = row[value] ? row_slots : full_slots;
    if (pool.empty()) {
      slot[value] = count++;
    } else {
      slot[value] = pool.back();
      pool.pop_back();
    }
  };
  for (int i = 0; i < program.inputs; ++i)
    if (!state[i]) take(i);
  for (size_t k = 0; k < program.code.size(); ++k) {
    const int result = program.inputs + static_cast<int>(k);
    if (number[result]) continue;
    for (int value = 0; value < result; ++value)
      if (slot[value] >= 0 && last_read[value] == static_cast<int>(k)) (row[value] ? free_row : free_full).push_back(slot[value]);
    take(result);
  }
}

bool FusedBinding::matches(const std::vector<int64_t>& key, const at::Tensor* const* inputs, size_t count) {
  size_t at = 0;
  for (size_t i = 0; i < count; ++i) {
    const at::Tensor& t = *inputs[i];
    const auto rank = static_cast<size_t>(t.dim());
    if (at + 2 + 2 * rank > key.size() || key[at] != static_cast<int64_t>(t.scalar_type()) ||
        key[at + 1] != t.dim())
      return false;
    at += 2;
    if (!std::equal(t.sizes().begin(), t.sizes().end(), key.begin() + static_cast<long>(at))) return false;
    at += rank;
    if (!std::equal(t.strides().begin(), t.strides().end(), key.begin() + static_cast<long>(at))) return false;
    at += rank;
  }
  return at == key.size();
}

std::shared_ptr<const FusedBinding> bind_fused(const FusedPlan& plan, const std::vector<const at::Tensor*>& inputs,
                                               const std::string& node) {
  auto out = std::make_shared<FusedBinding>();
  out->key = key_of(inputs);
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (plan.state[i]) continue;
    const auto sizes = inputs[i]->sizes();
    if (sizes.size() > out->sizes.size()) out->sizes.insert(out->sizes.begin(), sizes.size() - out->sizes.size(), 1);
    const size_t missing = out->sizes.size() - sizes.size();
    for (size_t d = 0; d < sizes.size(); ++d) {
      int64_t& size = out->sizes[missing + d];
      ORTMODULE_CHECK(size == sizes[d] || size == 1 || sizes[d] == 1, kRuntime, "[FusedKernel] input ", i,
                      " of shape ", sizes, " does not broadcast to ", c10::IntArrayRef(out->sizes), " (", node, ")");
      if (size == 1) size = sizes[d];
    }
  }
  ORTMODULE_CHECK(!out->sizes.empty() || (!plan.knows_rows && !plan.columns), kRuntime,
                  "[FusedKernel] a reduction of a scalar (", node, ")");
  out->count = 1;
  for (int64_t size : out->sizes) out->count *= size;
  out->width = out->sizes.empty() ? 1 : out->sizes.back();
  out->rows = out->width ? out->count / out->width : 0;
  // Inputs of one element per row broadcast like any other where no result has that form.
  bool row_results = plan.whole_rows || plan.columns;
  for (int v = plan.program.inputs; v < plan.program.value_count(); ++v) row_results |= plan.row[v] != 0;
  for (const FusedProgram::Output& o : plan.program.outputs) row_results |= plan.row[o.value] != 0;
  out->by_rows = row_results || (plan.knows_rows && out->width >= kNarrow);
  for (size_t i = 0; i < inputs.size(); ++i) {
    const bool row = out->by_rows && plan.row[i];
    ORTMODULE_CHECK(!row || inputs[i]->dim() == 0 || inputs[i]->size(-1) == 1, kRuntime, "[FusedKernel] input ", i,
                    " should have one element per row, got shape ", inputs[i]->sizes(), " (", node, ")");
    out->operands.push_back(plan.state[i] ? FusedOperand{} : operand_of(*inputs[i], out->sizes, row));
  }
  out->tile = std::clamp(kScratchFloats / std::max(plan.full_slots, 1) / 64 * 64, kSmallestTile, kLargestTile);
  if (out->by_rows) out->tile = std::max<int64_t>(out->tile / std::max<int64_t>(out->width, 1), 1) * out->width;
  out->tile = std::max<int64_t>(out->tile, 1);
  return out;
}

}  // namespace ortmodule
