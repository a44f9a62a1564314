#include "ops/fused/binding.h"

#include <algorithm>
#include <numeric>

#include "base/status.h"

namespace ortmodule {
namespace {

constexpr int64_t kScratchFloats = 1 << 14;  // of one thread's full values: near the first-level cache
constexpr int64_t kLargestTile = 2048, kSmallestTile = 512;
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

// Whether no element lies within another's run of the axes behind it, from the outermost in memory on.
bool is_nested(const at::Tensor& t, const std::vector<int64_t>& order) {
  int64_t end = 0;  // beyond the elements of the axes so far, from the innermost on
  for (auto axis = order.rbegin(); axis != order.rend(); ++axis) {
    if (t.size(*axis) == 1) continue;
    if (t.stride(*axis) <= end) return false;
    end += (t.size(*axis) - 1) * t.stride(*axis);
  }
  return true;
}

// The order of the first tensor that has all elements and lies without gaps, where it is not row by row; for lack of
// such ones, of one with gaps where the plan is for strided results.
std::vector<int64_t> order_of(const std::vector<const at::Tensor*>& inputs, const FusedPlan& plan,
                              const FusedBinding& space) {
  std::vector<int64_t> with_gaps;
  for (size_t i = 0; i < inputs.size(); ++i) {
    const at::Tensor& t = *inputs[i];
    if (plan.state[i] || t.sizes() != c10::IntArrayRef(space.sizes)) continue;
    if (t.is_contiguous()) return {};
    const bool dense = t.is_non_overlapping_and_dense();
    if (!dense && (!plan.strided || !with_gaps.empty())) continue;
    std::vector<int64_t> order(space.sizes.size());
    std::iota(order.begin(), order.end(), int64_t{0});
    std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) { return t.stride(a) > t.stride(b); });
    if (plan.rotates && order.back() != static_cast<int64_t>(order.size()) - 1) continue;  // a row's halves are one run
    if (dense) return order;
    if (is_nested(t, order)) with_gaps = std::move(order);
  }
  return with_gaps;
}

FusedOperand operand_of(const at::Tensor& t, const FusedBinding& space, bool row) {
  FusedOperand out;
  out.type = t.scalar_type();
  out.sizes = space.sizes;
  out.strides.assign(space.sizes.size(), 0);
  const size_t missing = space.sizes.size() - t.dim();
  for (int64_t i = 0; i < t.dim(); ++i)
    if (t.size(i) != 1) out.strides[missing + i] = t.stride(i);
  if (!space.order.empty()) {
    const std::vector<int64_t> strides = out.strides;
    for (size_t i = 0; i < space.order.size(); ++i) {
      out.sizes[i] = space.sizes[space.order[i]];
      out.strides[i] = strides[space.order[i]];
    }
  }
  if (row) {
    out.sizes.pop_back();
    out.strides.pop_back();
  }
  collapse(out);
  const bool floats = out.type == at::kFloat;
  if (std::all_of(out.strides.begin(), out.strides.end(), [](int64_t s) { return s == 0; }))
    out.mode = FusedOperand::Mode::kSingle;
  else if (floats && out.sizes.size() == 1 && out.strides[0] == 1)
    out.mode = FusedOperand::Mode::kDirect;
  else if (floats && out.sizes.size() == 2 && out.strides[0] == 0 && out.strides[1] == 1)
    out.mode = FusedOperand::Mode::kRepeated;
  return out;
}

}  // namespace

FusedPlan::FusedPlan(FusedProgram p, bool in_strides)
    : program(std::move(p)), row(program.row_values()), strided(in_strides) {
  const int values = program.value_count();
  last_read.assign(values, -1);
  made.assign(values, -1);
  slot.assign(values, -1);
  number.assign(values, 0);
  for (int i = 0; i < program.inputs; ++i) state.push_back(program.is_state(i));
  for (size_t k = 0; k < program.code.size(); ++k) number[program.inputs + k] = program.code[k].op == Opcode::kNumber;
  whole_rows = program.needs_whole_rows();
  const auto truth = [](char r) { return r != 0; };
  knows_rows = std::any_of(row.begin(), row.end(), truth);
  find_steps();
  const auto is_random = [](const Instruction& i) { return i.op == Opcode::kPhiloxDropout; };
  bool of_rows = !column_sums.empty() || std::any_of(row.begin() + program.inputs, row.end(), truth);
  for (const FusedProgram::Output& out : program.outputs) of_rows |= row[out.value] != 0;
  row_results = whole_rows || of_rows;
  any_order = !of_rows && (strided || !rotates) && std::none_of(program.code.begin(), program.code.end(), is_random);

  const int end = static_cast<int>(steps.size());
  for (int k = 0; k < end; ++k) {
    made[steps[k].result] = k;
    for (int a : steps[k].arguments)
      if (a >= 0) last_read[a] = k;
  }
  for (const FusedProgram::Output& out : program.outputs)
    if (!is_column(out.form)) last_read[out.value] = end;
  for (const FusedColumn& sum : column_sums) {
    last_read[sum.first] = end;
    if (sum.second >= 0) last_read[sum.second] = end;
  }

  // Inputs are brought in before the first step; the place of a value is free after its last reader.
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
  for (int k = 0; k < end; ++k) {
    for (int value = 0; value < values; ++value)
      if (slot[value] >= 0 && last_read[value] == k) (row[value] ? free_row : free_full).push_back(slot[value]);
    take(steps[k].result);
  }
}

void FusedPlan::find_steps() {
  const int inputs = program.inputs;
  std::vector<int> reads(program.value_count(), 0);
  for (const Instruction& i : program.code)
    for (int a : i.arguments)
      if (a >= 0) ++reads[a];
  for (const FusedProgram::Output& out : program.outputs) ++reads[out.value];
  find_column_sums(reads);

  const auto code_of = [&](int value) { return value < inputs ? nullptr : &program.code[value - inputs]; };
  // A full value of an instruction that nothing else reads.
  const auto once = [&](int value, std::initializer_list<Opcode> ops) {
    const Instruction* i = code_of(value);
    return i && reads[value] == 1 && !row[value] && std::find(ops.begin(), ops.end(), i->op) != ops.end();
  };
  std::vector<char> absorbed(program.value_count(), 0);
  std::vector<FusedStep> reversed;
  for (int result = program.value_count() - 1; result >= inputs; --result) {
    const Instruction& i = program.code[result - inputs];
    if (i.op == Opcode::kNumber || absorbed[result] || reads[result] == 0) continue;
    FusedStep step;
    std::copy(i.arguments.begin(), i.arguments.end(), step.arguments);
    step.result = result;
    step.number = i.number;
    step.stream = i.stream;
    const auto absorb = [&](int value) {
      absorbed[value] = 1;
      return code_of(value);
    };
    if (i.op == Opcode::kPhiloxDropout) {
      step.kind = FusedStep::Kind::kPhilox;
    } else if (i.op == Opcode::kRotateHalf) {
      step.kind = FusedStep::Kind::kRotate;
      rotates = true;
    } else if (i.op == Opcode::kRowSum || i.op == Opcode::kRowMean) {
      step.kind = i.op == Opcode::kRowSum ? FusedStep::Kind::kRowSum : FusedStep::Kind::kRowMean;
      if (once(i.arguments[0], {Opcode::kMul})) {
        const Instruction* product = absorb(i.arguments[0]);
        std::copy(product->arguments.begin(), product->arguments.end(), step.arguments);
        step.product = !row[product->arguments[0]] && !row[product->arguments[1]];
        if (!step.product) {
          absorbed[i.arguments[0]] = 0;
          std::copy(i.arguments.begin(), i.arguments.end(), step.arguments);
        }
      }
    } else {
      step.fn = tile_ops().of[static_cast<size_t>(i.op)];
      const bool second = i.op == Opcode::kAdd || i.op == Opcode::kSub || i.op == Opcode::kMul;
      // Rather an operand that cannot be one of two itself.
      const auto candidate = [&](int a) { return once(i.arguments[a], {Opcode::kAdd, Opcode::kSub, Opcode::kMul}); };
      const auto pairs_itself = [&](int a) {
        const Instruction* first = code_of(i.arguments[a]);
        return std::any_of(first->arguments.begin(), first->arguments.begin() + 2,
                           [&](int x) { return once(x, {Opcode::kAdd, Opcode::kSub, Opcode::kMul}); });
      };
      if (second && (candidate(0) || candidate(1))) {
        const int a = !candidate(0) || (candidate(1) && pairs_itself(0)) ? 1 : 0;
        const Instruction* first = absorb(i.arguments[a]);
        const Second how = i.op == Opcode::kAdd   ? Second::kAdd
                           : i.op == Opcode::kMul ? Second::kMul
                           : a == 0               ? Second::kSub
                                                  : Second::kSubFrom;
        const int op = first->op == Opcode::kAdd ? 0 : first->op == Opcode::kSub ? 1 : 2;
        step.fn = tile_ops().pair[op][static_cast<int>(how)];
        step.arguments[2] = i.arguments[1 - a];
        step.arguments[0] = first->arguments[0];
        step.arguments[1] = first->arguments[1];
      }
    }
    reversed.push_back(step);
  }
  steps.assign(reversed.rbegin(), reversed.rend());
}

void FusedPlan::find_column_sums(std::vector<int>& reads) {
  for (size_t o = 0; o < program.outputs.size(); ++o) {
    const FusedProgram::Output& out = program.outputs[o];
    if (!is_column(out.form)) continue;
    FusedColumn sum{static_cast<int>(o), out.value};
    const int k = out.value - program.inputs;
    if (k >= 0 && reads[out.value] == 1 && program.code[k].op == Opcode::kMul) {
      sum.first = program.code[k].arguments[0];
      sum.second = program.code[k].arguments[1];
      --reads[out.value];  // the product itself is not needed
    }
    column_sums.push_back(sum);
  }
}

std::vector<int64_t> FusedBinding::sizes_of(OutputForm form) const {
  std::vector<int64_t> out = sizes;
  switch (form) {
    case OutputForm::kRow:
      out.back() = 1;
      break;
    case OutputForm::kRowDropped:
      out.pop_back();
      break;
    case OutputForm::kColumn:
      return {width};
    case OutputForm::kColumnKept:
      std::fill(out.begin(), out.end(), 1);
      out.back() = width;
      break;
    default:
      break;
  }
  return out;
}

std::vector<int64_t> FusedBinding::strides() const {
  std::vector<int64_t> out(sizes.size());
  int64_t step = 1;
  for (size_t i = sizes.size(); i-- > 0;) {
    const size_t axis = order.empty() ? i : static_cast<size_t>(order[i]);
    out[axis] = step;
    step *= sizes[axis];
  }
  return out;
}

bool FusedBinding::matches(const std::vector<int64_t>& key, const at::Tensor* const* inputs, size_t count) {
  size_t at = 0;
  for (size_t i = 0; i < count; ++i) {
    const at::Tensor& t = *inputs[i];
    const auto rank = static_cast<size_t>(t.dim());
    if (at + 2 + 2 * rank > key.size() || key[at] != static_cast<int64_t>(t.scalar_type()) || key[at + 1] != t.dim())
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
      ORTMODULE_CHECK(size == sizes[d] || size == 1 || sizes[d] == 1, kRuntime, "[FusedKernel] input ", i, " of shape ",
                      sizes, " does not broadcast to ", c10::IntArrayRef(out->sizes), " (", node, ")");
      if (size == 1) size = sizes[d];
    }
  }
  ORTMODULE_CHECK(!out->sizes.empty() || (!plan.knows_rows && plan.column_sums.empty()), kRuntime,
                  "[FusedKernel] a reduction of a scalar (", node, ")");
  out->count = 1;
  for (int64_t size : out->sizes) out->count *= size;
  out->width = out->sizes.empty() ? 1 : out->sizes.back();
  out->rows = out->width ? out->count / out->width : 0;
  ORTMODULE_CHECK(!plan.rotates || out->width % 2 == 0, kRuntime, "[FusedKernel] rows of ", out->width,
                  " elements have no halves (", node, ")");
  if (plan.any_order) out->order = order_of(inputs, plan, *out);
  // Inputs of one element per row broadcast like any other where no result has that form.
  out->by_rows = plan.row_results || (plan.knows_rows && out->order.empty() && out->width >= kNarrow);
  for (size_t i = 0; i < inputs.size(); ++i) {
    const bool row = out->by_rows && plan.row[i];
    ORTMODULE_CHECK(!row || inputs[i]->dim() == 0 || inputs[i]->size(-1) == 1, kRuntime, "[FusedKernel] input ", i,
                    " should have one element per row, got shape ", inputs[i]->sizes(), " (", node, ")");
    out->operands.push_back(plan.state[i] ? FusedOperand{} : operand_of(*inputs[i], *out, row));
  }
  out->tile = std::clamp(kScratchFloats / std::max(plan.full_slots, 1) / 64 * 64, kSmallestTile, kLargestTile);
  if (out->by_rows) out->tile = std::max<int64_t>(out->tile / std::max<int64_t>(out->width, 1), 1) * out->width;
  out->tile = std::max<int64_t>(out->tile, 1);
  return out;
}

}  // namespace ortmodule
