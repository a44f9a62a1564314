// The CPU's kernel of FusedKernel: an interpreter that runs a program tile by tile.
//
// A tile is a run of elements in row-major order of the iteration space (or as the inputs lie), small enough that what
// the program computes of it stays in the first-level cache; every instruction is one vector loop over it (tile_ops.h).
// Contiguous floats are read where they are, and written where they belong by the instruction that makes them: scratch
// memory holds what lies between, and what needs converting or gathering. A tile of a program with row values is a
// number of whole rows. Tiles are independent, so the order of threads changes nothing; sums over columns are taken by
// a number of chunks that is the number of threads, and added in order.
#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>

#include <algorithm>
#include <memory>
#include <mutex>

#include "base/status.h"
#include "kernels/aten_bridge.h"
#include "kernels/conversion.h"
#include "kernels/kernel_context.h"
#include "kernels/philox.h"
#include "kernels/philox_state.h"
#include "kernels/small_tensor.h"
#include "ops/fused/binding.h"
#include "ops/fused/tile_ops.h"
#include "records/kernel_registry.h"

namespace ortmodule {
namespace {

constexpr int64_t kGrain = 1 << 17;    // instructions times elements that are worth a thread
constexpr int64_t kRowsPerBlock = 32;  // of a column's sum: blocks are added to the total, which keeps rounding small

struct StoredOutput {
  char* data = nullptr;
  at::ScalarType type = at::kFloat;
};

// One run: where inputs and outputs are.
struct Run {
  const FusedPlan& plan;
  const FusedBinding& binding;
  std::vector<const char*> inputs;
  std::vector<StoredOutput> outputs;
  std::vector<int> direct;     // per value: the output whose memory it is computed into, -1
  std::vector<float> singles;  // per value: numbers and inputs of one element
};

// Sums over columns of the rows that one chunk has seen.
class ColumnSums {
 public:
  ColumnSums(size_t outputs, int64_t width) : width_(width), block_(outputs * width), total_(outputs * width) {}

  // Adds a row of x, or of x times y where there is a y.
  void add(size_t sum, const TileOperand& x, const TileOperand& y) {
    float* sums = block_.data() + sum * width_;
    if (y.data)
      multiply_add_(sums, x, y, {sums, false}, width_);
    else
      add_(sums, x, {sums, false}, {}, width_);
  }
  void row_done() {
    if (++rows_ % kRowsPerBlock == 0) flush();
  }
  void flush() {
    add_(total_.data(), {total_.data(), false}, {block_.data(), false}, {}, static_cast<int64_t>(total_.size()));
    std::fill(block_.begin(), block_.end(), 0.0f);
  }
  const float* total(size_t output) const { return total_.data() + output * width_; }

 private:
  int64_t width_, rows_ = 0;
  std::vector<float> block_, total_;
  TileFn add_ = tile_ops().of[static_cast<size_t>(Opcode::kAdd)];
  TileFn multiply_add_ = tile_ops().pair[2][static_cast<size_t>(Second::kAdd)];
};

float* scratch(int64_t floats) {
  thread_local std::vector<float> memory;
  if (static_cast<int64_t>(memory.size()) < floats + 16) memory.resize(floats + 16);
  return reinterpret_cast<float*>((reinterpret_cast<uintptr_t>(memory.data()) + 63) / 64 * 64);
}

// y = x * scale where the element's word is at least the threshold, else x * 0: as PhiloxDropout's own kernel.
struct Masking : PhiloxStream {
  uint32_t threshold;
  float scale;
};

ORTMODULE_INLINE void keep_words(const uint32_t* words, uint32_t threshold, float scale, const float* x, float* y,
                                 int64_t n) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) y[i] = x[i] * (words[i] >= threshold ? scale : 0.0f);
}

// Elements [first, first + n) of the stream.
void mask_any(Masking m, const float* x, float* y, int64_t first, int64_t n) {
  alignas(64) uint32_t words[kPhiloxBlock];
  for (int64_t done = 0; done < n;) {
    const int64_t offset = (first + done) % kPhiloxBlock, count = std::min(kPhiloxBlock - offset, n - done);
    philox_block(m.seed, m.offset, static_cast<uint64_t>((first + done) / kPhiloxBlock), words);
    keep_words(words + offset, m.threshold, m.scale, x + done, y + done, count);
    done += count;
  }
}

#if defined(__x86_64__)
ORTMODULE_AVX2 void mask_avx2(Masking m, const float* x, float* y, int64_t first, int64_t n) {
  alignas(64) uint32_t words[kPhiloxBlock];
  for (int64_t done = 0; done < n;) {
    const int64_t offset = (first + done) % kPhiloxBlock, count = std::min(kPhiloxBlock - offset, n - done);
    philox_block_avx2(m.seed, m.offset, static_cast<uint64_t>((first + done) / kPhiloxBlock), words);
    keep_words(words + offset, m.threshold, m.scale, x + done, y + done, count);
    done += count;
  }
}
#endif

void philox_tile(float* y, const TileOperand& x, const PhiloxStream& stream, double ratio, int64_t first, int64_t n) {
  const float* from = x.data;
  if (x.single) {
    std::fill(y, y + n, *x.data);
    from = y;
  }
  if (ratio == 0 || ratio == 1) {
    const float scale = ratio == 0 ? 1.0f : 0.0f;
    for (int64_t i = 0; i < n; ++i) y[i] = from[i] * scale;
    return;
  }
  const Masking m{stream, philox_threshold(ratio), static_cast<float>(1.0 / (1.0 - ratio))};
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx2")) return mask_avx2(m, from, y, first, n);
#endif
  mask_any(m, from, y, first, n);
}

// Brings elements [first, first + n) of an operand's own order into `to`.
void gather(const FusedOperand& o, const char* base, int64_t first, int64_t n, float* to) {
  const size_t axes = o.sizes.size();
  const int64_t bytes = static_cast<int64_t>(c10::elementSize(o.type));
  const int64_t inner = o.sizes.back(), step = o.strides.back();
  int64_t column = first % inner, run = first / inner;
  for (int64_t done = 0; done < n; column = 0, ++run) {
    int64_t offset = column * step, rest = run;
    for (size_t axis = axes - 1; axis-- > 0; rest /= o.sizes[axis]) offset += rest % o.sizes[axis] * o.strides[axis];
    const int64_t count = std::min(inner - column, n - done);
    if (step == 0) {
      float value;
      load_elements(o.type, base + offset * bytes, 1, &value, 1);
      std::fill(to + done, to + done + count, value);
    } else {
      load_elements(o.type, base + offset * bytes, step, to + done, count);
    }
    done += count;
  }
}

class TileRunner {
 public:
  explicit TileRunner(const Run& run)
      : run_(run), plan_(run.plan), program_(run.plan.program), binding_(run.binding), width_(run.binding.width) {
    // Two lines more than a tile needs: places that are a multiple of 4 KiB apart would get in each other's way.
    const int64_t round = 16;
    tile_ = (binding_.tile + round - 1) / round * round + 2 * round;
    const int64_t rows = binding_.by_rows ? binding_.tile / std::max<int64_t>(width_, 1) : 0;
    row_tile_ = (rows + round - 1) / round * round;
    memory_ = scratch(plan_.full_slots * tile_ + plan_.row_slots * std::max(row_tile_, tile_ * !binding_.by_rows));
    at_.resize(program_.value_count());
    for (int v = 0; v < program_.value_count(); ++v)
      at_[v] = {&run.singles[v], plan_.number[v] != 0 ||
                                     (v < program_.inputs && binding_.operands[v].mode == FusedOperand::Mode::kSingle)};
  }

  void tile(int64_t first, int64_t n, ColumnSums* sums) {
    first_ = first;
    n_ = n;
    rows_ = binding_.by_rows ? n / width_ : 0;
    for (int i = 0; i < program_.inputs; ++i)
      if (!plan_.state[i] && !at_[i].single) at_[i].data = input(i);
    for (const FusedStep& s : plan_.steps) step(s);
    for (size_t o = 0; o < program_.outputs.size(); ++o) store(o);
    if (sums) add_columns(*sums);
  }

 private:
  bool by_row(int value) const { return binding_.by_rows && plan_.row[value]; }

  float* place(int value) const {
    // Where rows are treated like any other value they need the room of one.
    if (plan_.row[value]) {
      const int64_t size = binding_.by_rows ? row_tile_ : tile_;
      return memory_ + plan_.full_slots * tile_ + plan_.slot[value] * size;
    }
    return memory_ + plan_.slot[value] * tile_;
  }

  const float* input(int i) {
    const FusedOperand& o = binding_.operands[i];
    const char* base = run_.inputs[i];
    const bool row = by_row(i);
    const int64_t first = row ? first_ / width_ : first_, n = row ? rows_ : n_;
    if (o.mode == FusedOperand::Mode::kDirect) return reinterpret_cast<const float*>(base) + first;
    if (o.mode == FusedOperand::Mode::kRepeated)
      if (const int64_t at = first % o.sizes.back(); at + n <= o.sizes.back())
        return reinterpret_cast<const float*>(base) + at;
    float* to = place(i);
    gather(o, base, first, n, to);
    return to;
  }

  // Where a result goes: its output's memory or scratch.
  float* target(int value) const {
    const int output = run_.direct[value];
    if (output < 0) return place(value);
    return reinterpret_cast<float*>(run_.outputs[output].data) + (by_row(value) ? first_ / width_ : first_);
  }

  void step(const FusedStep& s) {
    float* to = target(s.result);
    at_[s.result] = {to, false};
    TileOperand operands[3] = {};
    for (int a = 0; a < 3; ++a)
      if (s.arguments[a] >= 0) operands[a] = at_[s.arguments[a]];
    switch (s.kind) {
      case FusedStep::Kind::kRotate:
        return rotate(to, operands[0]);
      case FusedStep::Kind::kPhilox: {
        const auto* state = reinterpret_cast<const int64_t*>(run_.inputs[s.arguments[1]]);
        return philox_tile(to, operands[0], philox_stream(state, s.stream), s.number, first_, n_);
      }
      case FusedStep::Kind::kRowSum:
      case FusedStep::Kind::kRowMean:
        for (int64_t r = 0; r < rows_; ++r) {
          const float sum = row_sum(operands, s.product, r);
          to[r] = s.kind == FusedStep::Kind::kRowMean ? sum / static_cast<float>(width_) : sum;
        }
        return;
      case FusedStep::Kind::kElements:
        break;
    }
    if (by_row(s.result)) return s.fn(to, operands[0], operands[1], operands[2], rows_);
    bool any = false;
    for (int a = 0; a < 3; ++a) any |= is_row(s.arguments[a]);
    if (!any) return s.fn(to, operands[0], operands[1], operands[2], n_);
    for (int64_t r = 0; r < rows_; ++r)
      s.fn(to + r * width_, in_row(s.arguments[0], r), in_row(s.arguments[1], r), in_row(s.arguments[2], r), width_);
  }

  void rotate(float* to, const TileOperand& x) const {
    if (!x.single) return tile_ops().rotate(to, x.data, rows_, width_);
    for (int64_t i = 0; i < n_; ++i) to[i] = i % width_ < width_ / 2 ? -*x.data : *x.data;
  }

  // Whether a value has one element per row in memory, which stands for its whole row.
  bool is_row(int value) const { return value >= 0 && !at_[value].single && by_row(value); }

  // What a value is in row r of the tile.
  TileOperand in_row(int value, int64_t r) const {
    if (value < 0) return {};
    const TileOperand o = at_[value];
    if (o.single) return o;
    return by_row(value) ? TileOperand{o.data + r, true} : TileOperand{o.data + r * width_, false};
  }

  float row_sum(const TileOperand (&operands)[3], bool product, int64_t r) const {
    const TileOperand &x = operands[0], &y = operands[1];
    const int64_t offset = r * width_;
    if (!product) return x.single ? *x.data * static_cast<float>(width_) : tile_ops().sum(x.data + offset, width_);
    if (x.single && y.single) return *x.data * *y.data * static_cast<float>(width_);
    if (x.single) return *x.data * tile_ops().sum(y.data + offset, width_);
    if (y.single) return *y.data * tile_ops().sum(x.data + offset, width_);
    return tile_ops().dot(x.data + offset, y.data + offset, width_);
  }

  void store(size_t o) {
    const FusedProgram::Output& out = program_.outputs[o];
    const StoredOutput& to = run_.outputs[o];
    if (!to.data || is_column(out.form) || run_.direct[out.value] == static_cast<int>(o)) return;
    const bool row = by_row(out.value);
    const int64_t first = row ? first_ / width_ : first_, n = row ? rows_ : n_;
    char* data = to.data + first * static_cast<int64_t>(c10::elementSize(to.type));
    const TileOperand from = at_[out.value];
    if (!from.single) return store_elements(to.type, from.data, data, n);
    for (int64_t i = 0; i < n; ++i)
      store_elements(to.type, from.data, data + i * static_cast<int64_t>(c10::elementSize(to.type)), 1);
  }

  void add_columns(ColumnSums& sums) {
    for (int64_t r = 0; r < rows_; ++r) {
      for (size_t k = 0; k < plan_.column_sums.size(); ++k)
        sums.add(k, in_row(plan_.column_sums[k].first, r), in_row(plan_.column_sums[k].second, r));
      sums.row_done();
    }
  }

  const Run& run_;
  const FusedPlan& plan_;
  const FusedProgram& program_;
  const FusedBinding& binding_;
  int64_t width_, tile_, row_tile_, first_ = 0, n_ = 0, rows_ = 0;
  float* memory_;
  std::vector<TileOperand> at_;
};

// An input whose memory output `o` may take: nobody else needs it, and no instruction reads it after the output's
// elements are written over its own.
int replaceable(const KernelContext& c, const FusedPlan& plan, const FusedBinding& binding, size_t o,
                const std::vector<char>& taken) {
  const FusedProgram::Output& out = plan.program.outputs[o];
  const int end = static_cast<int>(plan.steps.size()), made = plan.made[out.value];
  if (out.form != OutputForm::kFull || made < 0) return -1;
  const at::ScalarType type = to_scalar_type(out.dtype);
  for (int i = 0; i < plan.program.inputs; ++i) {
    if (plan.state[i] || taken[i] || plan.last_read[i] == end || !c.may_overwrite(i)) continue;
    const bool in_place = binding.operands[i].mode == FusedOperand::Mode::kDirect && type == at::kFloat;
    if (in_place && plan.last_read[i] > made) continue;
    const at::Tensor& t = c.in(i);
    if (t.scalar_type() != type || t.sizes() != c10::IntArrayRef(binding.sizes)) continue;
    if (binding.order.empty() ? t.is_contiguous() : t.strides() == c10::IntArrayRef(binding.strides())) return i;
  }
  return -1;
}

class FusedKernelState {
 public:
  explicit FusedKernelState(const Node& node) : plan_(read_program(node)), name_(node.describe()) {}

  void operator()(KernelContext& c) const {
    std::vector<const at::Tensor*> inputs;
    for (int i = 0; i < plan_.program.inputs; ++i) {
      inputs.push_back(&c.in(i));
      if (plan_.state[i]) {
        philox_state_words(*inputs[i]);
        ORTMODULE_CHECK(inputs[i]->is_contiguous(), kRuntime, "the random state should be contiguous (", name_, ")");
      }
      ORTMODULE_CHECK(plan_.state[i] || converts(inputs[i]->scalar_type()), kRuntime, "[FusedKernel] input ", i,
                      " has the type ", inputs[i]->scalar_type(), " (", name_, ")");
    }
    const std::shared_ptr<const FusedBinding> binding = bound(inputs);
    Run run{plan_, *binding, {}, {}, {}, {}};
    run.direct.assign(plan_.program.value_count(), -1);
    run.singles.assign(plan_.program.value_count(), 0);
    std::vector<at::Tensor> outputs = make_outputs(c, run);
    for (int i = 0; i < plan_.program.inputs; ++i) {
      run.inputs.push_back(static_cast<const char*>(inputs[i]->const_data_ptr()));
      if (!plan_.state[i] && binding->operands[i].mode == FusedOperand::Mode::kSingle && binding->count > 0)
        load_elements(inputs[i]->scalar_type(), run.inputs[i], 1, &run.singles[i], 1);
    }
    for (size_t k = 0; k < plan_.program.code.size(); ++k)
      run.singles[plan_.program.inputs + k] = static_cast<float>(plan_.program.code[k].number);
    if (binding->count > 0)
      execute(run);
    else
      for (at::Tensor& t : outputs)
        if (t.defined()) t.zero_();
    for (size_t o = 0; o < outputs.size(); ++o)
      if (outputs[o].defined()) c.out(o, std::move(outputs[o]));
  }

 private:
  std::shared_ptr<const FusedBinding> bound(const std::vector<const at::Tensor*>& inputs) const {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      if (last_ && FusedBinding::matches(last_->key, inputs.data(), inputs.size())) return last_;
    }
    auto fresh = bind_fused(plan_, inputs, name_);
    const std::lock_guard<std::mutex> lock(mutex_);
    return last_ = std::move(fresh);
  }

  std::vector<at::Tensor> make_outputs(KernelContext& c, Run& run) const {
    std::vector<at::Tensor> outputs(plan_.program.outputs.size());
    std::vector<char> taken(plan_.program.inputs, 0);
    for (size_t o = 0; o < outputs.size(); ++o) {
      const FusedProgram::Output& out = plan_.program.outputs[o];
      run.outputs.push_back({nullptr, to_scalar_type(out.dtype)});
      if (!c.wants(o)) continue;
      const int from = replaceable(c, plan_, run.binding, o, taken);
      if (from >= 0) {
        taken[from] = 1;
        outputs[o] = c.in(from);
      } else {
        const auto sizes = run.binding.sizes_of(out.form);
        const at::ScalarType type = run.outputs[o].type;
        const at::TensorOptions options(type);
        outputs[o] = !run.binding.order.empty() ? at::empty_strided(sizes, run.binding.strides(), options)
                     : type == at::kFloat       ? make_float(sizes)
                                                : at::empty(sizes, options);
      }
      run.outputs[o].data = static_cast<char*>(outputs[o].mutable_data_ptr());
      if (plan_.made[out.value] >= 0 && !is_column(out.form) && run.outputs[o].type == at::kFloat &&
          run.direct[out.value] < 0)
        run.direct[out.value] = static_cast<int>(o);
    }
    return outputs;
  }

  void execute(const Run& run) const {
    const FusedBinding& b = run.binding;
    const int64_t tiles = (b.count + b.tile - 1) / b.tile;
    const auto cost = static_cast<int64_t>(plan_.steps.size() + 2);
    const auto run_tiles = [&](int64_t begin, int64_t end, ColumnSums* sums) {
      TileRunner runner(run);
      for (int64_t t = begin; t < end; ++t) runner.tile(t * b.tile, std::min(b.tile, b.count - t * b.tile), sums);
      if (sums) sums->flush();
    };
    if (plan_.column_sums.empty()) {
      at::parallel_for(0, tiles, std::max<int64_t>(1, kGrain / (b.tile * cost)),
                       [&](int64_t begin, int64_t end) { run_tiles(begin, end, nullptr); });
      return;
    }
    const int64_t worth = std::max<int64_t>(1, b.count * cost / kGrain);
    const int64_t chunks = std::min<int64_t>({at::get_num_threads(), tiles, worth});
    std::vector<ColumnSums> sums(chunks, ColumnSums(plan_.column_sums.size(), b.width));
    at::parallel_for(0, chunks, 1, [&](int64_t begin, int64_t end) {
      for (int64_t k = begin; k < end; ++k) run_tiles(tiles * k / chunks, tiles * (k + 1) / chunks, &sums[k]);
    });
    std::vector<float> total(b.width);
    for (size_t i = 0; i < plan_.column_sums.size(); ++i) {
      const StoredOutput& to = run.outputs[plan_.column_sums[i].output];
      if (!to.data) continue;
      std::fill(total.begin(), total.end(), 0.0f);
      for (const ColumnSums& part : sums)
        for (int64_t j = 0; j < b.width; ++j) total[j] += part.total(i)[j];
      store_elements(to.type, total.data(), to.data, b.width);
    }
  }

  FusedPlan plan_;
  std::string name_;
  mutable std::mutex mutex_;
  mutable std::shared_ptr<const FusedBinding> last_;
};

}  // namespace

ORTMODULE_KERNEL("ai.ortmodule", FusedKernel, "cpu", [](const Node& node) -> Kernel {
  return [state = std::make_shared<const FusedKernelState>(node)](KernelContext& c) { (*state)(c); };
}).inplace();

}  // namespace ortmodule
