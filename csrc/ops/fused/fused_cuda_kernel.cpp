// "cuda" kernel of FusedKernel: the program as a generated kernel (Note [Generated kernels]), compiled when it first
// runs over operands that lie so. Not here: the source (cuda_source.cpp), the compiler (cuda/generated.h).
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/zeros.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <limits>
#include <list>
#include <mutex>

#include "base/status.h"
#include "cuda/generated.h"
#include "kernels/aten_bridge.h"
#include "kernels/kernel_context.h"
#include "kernels/philox_state.h"
#include "ops/fused/binding.h"
#include "ops/fused/cuda_source.h"
#include "ops/fused/fused_cuda.h"
#include "records/kernel_registry.h"

namespace ortmodule {
namespace {

// Blocks that add up columns, as fill a GPU of some 130 multiprocessors: of tiles (4 warps), of 4 warps with a row
// each, of one team. Fewer leave it idle, more are parts to add up again.
constexpr int64_t kMostTiles = 2112, kMostWarpBlocks = 528, kMostTeamBlocks = 1056;
constexpr size_t kVariantsKept = 8;  // of operands' places, for one node

using Inputs = std::vector<const at::Tensor*>;

// What divided() of cuda/generated.cuh takes for this size, of at least 1: a factor and how far to shift.
int64_t divider_of(int64_t size) {
  int64_t shift = 0;
  while ((int64_t{1} << shift) < size) ++shift;
  if (shift > 31) return 0;  // elements are counted in 64 bits then, and divided
  return (shift << 32) | (((int64_t{1} << 32) * ((int64_t{1} << shift) - size) / size + 1) & 0xffffffff);
}

struct Queue {
  const cuda::SourceCompiler& compiler;
  c10::Device device;
  void* stream = nullptr;

  void run(void* compiled, const cuda::GeneratedLaunch& launch) const {
    const int error = compiler.launch(compiled, launch, stream);
    ORTMODULE_CHECK(error == 0, kRuntime, "a generated kernel could not be launched: ", compiler.error_text(error));
  }
};

// A program over operands that lie in one way.
struct Variant {
  std::shared_ptr<const FusedBinding> binding;
  std::vector<char> wanted;
  std::vector<int64_t> misaligned;  // per input: its address beyond a multiple of 16
  CudaVariant source;
  std::vector<int64_t> numbers;
  std::vector<size_t> states;  // where each draw's two words go
  unsigned blocks[2] = {1, 1};
  bool splits = false;
  std::string kernel;
  cuda::Compilation* compilation = nullptr;
};

class GeneratedProgram {
 public:
  GeneratedProgram(FusedProgram program, std::string name)
      : plan_(std::move(program), /*strided=*/true), name_(std::move(name)) {}

  // Outputs that are not wanted stay undefined.
  std::vector<at::Tensor> run(const Queue& queue, const Inputs& inputs, const std::vector<char>& wanted) const {
    const std::shared_ptr<const Variant> variant = variant_for(queue, inputs, wanted);
    if (variant->splits) return run_split(queue, inputs, wanted);
    std::vector<at::Tensor> outputs = make_outputs(queue, *variant);
    if (variant->binding->count == 0) {
      for (at::Tensor& t : outputs)
        if (t.defined()) t.zero_();
      return outputs;
    }
    launch(queue, *variant, inputs, outputs);
    return outputs;
  }

  bool rotates() const { return plan_.rotates; }

  // Lets what a run over such inputs needs be compiled beside what else the session does before it.
  void expect(const Queue& queue, const Inputs& inputs, const std::vector<char>& wanted) const {
    const std::shared_ptr<const Variant> variant = variant_for(queue, inputs, wanted);
    if (variant->compilation) cuda::compile_ahead(*variant->compilation);
    if (!variant->splits) return;
    const Parts p = parts(wanted);
    const at::Tensor row = row_of(*variant);
    p.first.expect(queue, inputs, p.first_wanted);
    p.second.expect(queue, with_rows(inputs, std::vector<const at::Tensor*>(p.rows.size(), &row)), p.second_wanted);
  }

  std::vector<std::string> sources(const Inputs& inputs, const std::vector<char>& wanted) const {
    Variant variant;
    variant.wanted = wanted;
    variant.binding = bind_fused(plan_, inputs, name_);
    prepare(variant, inputs);
    if (!variant.splits) return {cuda_source(program(), variant.source)};
    const Parts p = parts(wanted);
    const at::Tensor row = row_of(variant);
    std::vector<std::string> both = p.first.sources(inputs, p.first_wanted);
    const Inputs more = with_rows(inputs, std::vector<const at::Tensor*>(p.rows.size(), &row));
    for (std::string& source : p.second.sources(more, p.second_wanted)) both.push_back(std::move(source));
    return both;
  }

 private:
  const FusedProgram& program() const { return plan_.program; }

  std::shared_ptr<const Variant> variant_for(const Queue& queue, const Inputs& inputs,
                                             const std::vector<char>& wanted) const {
    std::vector<int64_t> misaligned;
    for (const at::Tensor* t : inputs)
      misaligned.push_back(static_cast<int64_t>(reinterpret_cast<uintptr_t>(t->const_data_ptr()) % 16));
    const std::lock_guard<std::mutex> lock(mutex_);
    for (auto it = kept_.begin(); it != kept_.end(); ++it) {
      if ((*it)->wanted != wanted || (*it)->misaligned != misaligned ||
          !FusedBinding::matches((*it)->binding->key, inputs.data(), inputs.size()))
        continue;
      kept_.splice(kept_.begin(), kept_, it);
      return kept_.front();
    }
    auto made = std::make_shared<Variant>();
    made->wanted = wanted;
    made->misaligned = misaligned;
    made->binding = bind_fused(plan_, inputs, name_);
    prepare(*made, inputs);
    if (!made->splits && made->binding->count > 0) {
      made->kernel = cuda_kernel_name(program(), made->source);
      made->compilation =
          &cuda::compilation_of(queue.compiler, queue.device.index(), cuda_source(program(), made->source));
    }
    kept_.push_front(std::move(made));
    if (kept_.size() > kVariantsKept) kept_.pop_back();
    return kept_.front();
  }

  void prepare(Variant& v, const Inputs& inputs) const {
    const FusedBinding& b = *v.binding;
    CudaVariant& s = v.source;
    s.wanted = v.wanted;
    s.row = plan_.row;
    bool columns = false;
    for (size_t o = 0; o < program().outputs.size(); ++o)
      columns |= v.wanted[o] && is_column(program().outputs[o].form);
    s.by_rows = columns || (b.by_rows && plan_.knows_rows);
    s.vector = vector_of(b, s.by_rows);
    s.whole_draws = b.width % 64 == 0;
    s.wide = b.count > std::numeric_limits<int32_t>::max() / 2;
    for (int i = 0; i < program().inputs; ++i) {
      s.inputs.push_back(plan_.state[i] ? CudaOperand{} : operand(v, i, *inputs[i]));
      int64_t end = 0;
      for (int64_t d = 0; d < inputs[i]->dim(); ++d) end += (inputs[i]->size(d) - 1) * inputs[i]->stride(d);
      s.wide |= end > std::numeric_limits<int32_t>::max() / 2;
    }
    if (b.count == 0) return;
    v.blocks[0] =
        static_cast<unsigned>((b.count + int64_t{kCudaThreads} * s.vector - 1) / (int64_t{kCudaThreads} * s.vector));
    if (s.by_rows) {
      v.splits = !choose_team(program(), s, b.width);
      const bool warps = s.team == 32;
      int64_t blocks = warps ? (b.rows + 3) / 4 : b.rows;
      const int64_t chunk = int64_t{s.team} * s.held * s.vector;
      const bool one_stage = chunk > 0 && cuda_load(program(), s).stages == 1;
      if (one_stage) v.blocks[1] = static_cast<unsigned>((b.width + chunk - 1) / chunk);
      if (columns) {
        const int64_t most = one_stage ? kMostTiles / v.blocks[1] : warps ? kMostWarpBlocks : kMostTeamBlocks;
        blocks = std::min(blocks, std::max<int64_t>(most, 1));
      }
      v.blocks[0] = static_cast<unsigned>(blocks);
    }
    write_numbers(v);
  }

  // Elements that a thread takes side by side: 16 bytes of the narrowest type, where rows and halves of rows allow it.
  int vector_of(const FusedBinding& b, bool by_rows) const {
    bool narrow = false;
    for (int i = 0; i < program().inputs; ++i)
      narrow |=
          !plan_.state[i] && b.operands[i].mode != FusedOperand::Mode::kSingle && b.operands[i].type != at::kFloat;
    for (const FusedProgram::Output& out : program().outputs)
      narrow |= out.form == OutputForm::kFull && out.dtype != DType::kFloat;
    const int64_t run = plan_.rotates ? b.width / 2 : by_rows ? b.width : b.count;
    for (int n = narrow ? 8 : 4; n > 1; n /= 2)
      if (run % n == 0) return n;
    return 1;
  }

  CudaOperand operand(const Variant& v, int i, const at::Tensor& t) const {
    const FusedOperand& from = v.binding->operands[i];
    const int n = v.source.vector;
    CudaOperand o;
    o.type = to_dtype(from.type);
    o.single = from.mode == FusedOperand::Mode::kSingle;
    o.axes = static_cast<int>(from.sizes.size());
    o.per_row = v.source.by_rows && plan_.row[i];
    o.in_rows = v.source.by_rows && !o.per_row && o.axes > 1 && from.sizes.back() == v.binding->width;
    o.repeated = o.axes > 1 && from.strides[0] == 0;
    const int64_t last = from.strides.back();
    o.last_stride = last == 0 || last == 1 ? last : 2;
    o.whole = o.axes == 1 || from.sizes.back() % n == 0;
    const auto bytes = static_cast<int64_t>(c10::elementSize(from.type));
    const int64_t aligned = std::min<int64_t>(16, n * bytes);
    o.vectors = o.whole && last == 1 && reinterpret_cast<uintptr_t>(t.const_data_ptr()) % aligned == 0;
    for (size_t axis = 0; axis + 1 < from.strides.size(); ++axis)
      o.vectors &= from.strides[axis] * bytes % aligned == 0;
    return o;
  }

  void write_numbers(Variant& v) const {
    const FusedBinding& b = *v.binding;
    v.numbers = {b.count, b.rows, b.width, divider_of(b.width)};
    for (int i = 0; i < program().inputs; ++i) {
      if (plan_.state[i] || v.source.inputs[i].single) continue;
      const FusedOperand& o = b.operands[i];
      v.numbers.insert(v.numbers.end(), o.sizes.begin() + 1, o.sizes.end());
      for (size_t axis = 1; axis < o.sizes.size(); ++axis) v.numbers.push_back(divider_of(o.sizes[axis]));
      v.numbers.insert(v.numbers.end(), o.strides.begin(), o.strides.end());
    }
    for (const Instruction& i : program().code) {
      if (!draws(i)) continue;
      v.states.push_back(v.numbers.size());
      v.numbers.insert(v.numbers.end(), 2, 0);
    }
  }

  std::vector<at::Tensor> make_outputs(const Queue& queue, const Variant& v) const {
    const FusedBinding& b = *v.binding;
    std::vector<at::Tensor> outputs(program().outputs.size());
    for (size_t o = 0; o < outputs.size(); ++o) {
      if (!v.wanted[o]) continue;
      const auto& out = program().outputs[o];
      const at::TensorOptions options = at::TensorOptions(to_scalar_type(out.dtype)).device(queue.device);
      outputs[o] = b.order.empty() ? at::empty(b.sizes_of(out.form), options)
                                   : at::empty_strided(b.sizes_of(out.form), b.strides(), options);
    }
    return outputs;
  }

  void launch(const Queue& queue, const Variant& v, const Inputs& inputs,
              const std::vector<at::Tensor>& outputs) const {
    const FusedBinding& b = *v.binding;
    std::vector<const void*> addresses;
    std::vector<size_t> columns;
    for (int i = 0; i < program().inputs; ++i)
      if (!plan_.state[i]) addresses.push_back(inputs[i]->const_data_ptr());
    for (size_t o = 0; o < outputs.size(); ++o) {
      if (!v.wanted[o]) continue;
      if (is_column(program().outputs[o].form))
        columns.push_back(o);
      else
        addresses.push_back(outputs[o].mutable_data_ptr());
    }
    const int64_t teams = v.blocks[0];
    const auto sums = static_cast<int64_t>(columns.size());
    at::Tensor parts;
    if (sums) {
      parts = at::empty({teams * sums * b.width}, at::TensorOptions(at::kFloat).device(queue.device));
      addresses.push_back(parts.mutable_data_ptr());
    }
    std::vector<int64_t> numbers = v.numbers;
    size_t next = 0;
    for (const Instruction& i : program().code) {
      if (!draws(i)) continue;
      const PhiloxStream drawn = philox_stream(philox_state_words(*inputs[i.arguments[1]]).data(), i.stream);
      numbers[v.states[next]] = static_cast<int64_t>(drawn.seed);
      numbers[v.states[next++] + 1] = static_cast<int64_t>(drawn.offset);
    }
    const unsigned threads = !v.source.by_rows     ? kCudaThreads
                             : v.source.team == 32 ? 128u
                                                   : static_cast<unsigned>(v.source.team);
    void* const compiled = cuda::compiled(*v.compilation);
    queue.run(compiled, {v.kernel.c_str(),
                         {v.blocks[0], v.blocks[1]},
                         threads,
                         addresses.data(),
                         addresses.size(),
                         numbers.data(),
                         numbers.size()});
    if (!sums) return;
    std::vector<const void*> totals{parts.const_data_ptr()};
    for (size_t o : columns) totals.push_back(outputs[o].mutable_data_ptr());
    const int64_t sizes[] = {teams, b.width};
    const unsigned blocks[2] = {static_cast<unsigned>((b.width + 31) / 32), static_cast<unsigned>(sums)};
    const std::string total = v.kernel + "_total";
    queue.run(compiled, {total.c_str(), {blocks[0], blocks[1]}, 1024, totals.data(), totals.size(), sizes, 2});
  }

  // Of rows that are too long for sums over columns beside reductions: what each row gives, and the sums, which read
  // it.
  struct Parts {
    const GeneratedProgram &first, &second;
    const std::vector<int>& rows;  // outputs of the first that the second reads
    std::vector<char> first_wanted, second_wanted;
  };

  Parts parts(const std::vector<char>& wanted) const {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      if (!first_) {
        SplitProgram split = split_columns(program());
        rows_ = std::move(split.rows);
        first_ = std::make_unique<GeneratedProgram>(std::move(split.first), name_);
        second_ = std::make_unique<GeneratedProgram>(std::move(split.second), name_);
      }
    }
    Parts all{*first_, *second_, rows_, {}, {}};
    for (size_t o = 0; o < wanted.size(); ++o)
      (is_column(program().outputs[o].form) ? all.second_wanted : all.first_wanted).push_back(wanted[o]);
    all.first_wanted.resize(first_->program().outputs.size(), 1);
    return all;
  }

  // What the first gives of a row, without elements.
  static at::Tensor row_of(const Variant& v) {
    return at::empty(v.binding->sizes_of(OutputForm::kRow), at::TensorOptions(at::kFloat).device(at::kMeta));
  }

  static Inputs with_rows(Inputs inputs, const Inputs& rows) {
    inputs.insert(inputs.end(), rows.begin(), rows.end());
    return inputs;
  }

  std::vector<at::Tensor> run_split(const Queue& queue, const Inputs& inputs, const std::vector<char>& wanted) const {
    const Parts p = parts(wanted);
    const std::vector<at::Tensor> first = p.first.run(queue, inputs, p.first_wanted);
    Inputs rows;
    for (int row : p.rows) rows.push_back(&first[row]);
    const std::vector<at::Tensor> second = p.second.run(queue, with_rows(inputs, rows), p.second_wanted);
    std::vector<at::Tensor> outputs;
    size_t next[2] = {0, 0};
    for (const FusedProgram::Output& out : program().outputs)
      outputs.push_back(is_column(out.form) ? second[next[1]++] : first[next[0]++]);
    return outputs;
  }

  FusedPlan plan_;
  std::string name_;
  mutable std::mutex mutex_;
  mutable std::list<std::shared_ptr<const Variant>> kept_;
  mutable std::unique_ptr<GeneratedProgram> first_, second_;  // with rows_: null until they are wanted
  mutable std::vector<int> rows_;
};

bool computes_with(at::ScalarType type) {
  return type == at::kFloat || type == at::kHalf || type == at::kBFloat16 || type == at::kBool;
}

void run(const GeneratedProgram& program, const std::vector<char>& states, const std::string& name, KernelContext& c) {
  const c10::Device device = c.device();
  const cuda::SourceCompiler* compiler = cuda::compiler_of(c10::DeviceTypeName(device.type(), true));
  ORTMODULE_CHECK(compiler, kRuntime, "[FusedKernel] nothing compiles generated kernels for ", device.str(),
                  ": NVRTC was not found (", name, "); train with Options(fusion=False)");
  const c10::DeviceGuard on(device);
  const c10::impl::VirtualGuardImpl guard(device.type());
  std::vector<at::Tensor> brought;  // single numbers that a graph has on the host
  brought.reserve(c.input_count());
  Inputs inputs;
  for (size_t i = 0; i < c.input_count(); ++i) {
    const at::Tensor* t = &c.in(i);
    if (states[i]) {
      if (!t->is_cpu()) t = &brought.emplace_back(t->cpu());  // of a graph that was made elsewhere
      philox_state_words(*t);
    } else {
      ORTMODULE_CHECK(computes_with(t->scalar_type()), kRuntime, "[FusedKernel] input ", i, " has the type ",
                      t->scalar_type(), " (", name, ")");
      if (t->device() != device) t = &brought.emplace_back(t->to(device));
    }
    inputs.push_back(t);
  }
  std::vector<char> wanted;
  for (size_t o = 0; o < c.output_count(); ++o) wanted.push_back(c.wants(o));
  const Queue queue{*compiler, device, guard.getStreamNativeHandle(guard.getStream(device))};
  std::vector<at::Tensor> outputs = program.run(queue, inputs, wanted);
  for (size_t o = 0; o < outputs.size(); ++o)
    if (outputs[o].defined()) c.out(o, std::move(outputs[o]));
}

// The strides of `whole` in sizes that have axes of one element more or fewer; row-major ones where it has others.
std::vector<int64_t> strides_in(const at::Tensor& whole, const std::vector<int64_t>& sizes) {
  std::vector<int64_t> strides(sizes.size(), 1);
  int64_t at = 0;
  for (size_t i = 0; i < sizes.size(); ++i) {
    if (sizes[i] == 1) continue;
    while (at < whole.dim() && whole.size(at) == 1) ++at;
    if (at == whole.dim() || whole.size(at) != sizes[i]) return at::empty(sizes, whole.options()).strides().vec();
    strides[i] = whole.stride(at++);
  }
  return strides;
}

// A value of a run as its type tells it, without elements, in row-major order unless it is a view of such a one; a size
// that only a run knows counts as 64. Undefined where its rank is not known.
at::Tensor expected(const NodeArg& value) {
  const TypeInfo& type = value.type();
  if (!type.shape || type.dtype == DType::kUndefined) return {};
  std::vector<int64_t> sizes;
  for (const Dim& dim : *type.shape) {
    std::vector<std::string> names;
    dim.collect_symbols(names);
    SymbolTable symbols;
    for (const std::string& name : names) symbols[name] = 64;
    sizes.push_back(std::max<int64_t>(dim.evaluate(symbols), 0));
  }
  const at::TensorOptions options = at::TensorOptions(to_scalar_type(type.dtype)).device(at::kMeta);
  const Node* from = value.producer();
  const std::string op = from ? from->qualified_op() : "";
  if (op != "Transpose" && op != "Split" && op != "Squeeze" && op != "Unsqueeze") return at::empty(sizes, options);
  const at::Tensor whole = expected(*from->input(0));
  if (!whole.defined()) return {};
  std::vector<int64_t> strides = whole.strides().vec();
  if (op == "Transpose") {
    const std::vector<int64_t> order = from->get_ints("perm");
    if (order.size() != sizes.size()) return at::empty(sizes, options);
    for (size_t i = 0; i < order.size(); ++i) strides[i] = whole.stride(order[i]);
  } else if (op != "Split") {
    strides = strides_in(whole, sizes);
  }
  return at::empty_strided(sizes, strides, options);
}

// Of a program that rotates rows: heads lie within a position, as attention's projections and its gradients have them.
at::Tensor with_heads_inside(const at::Tensor& t) {
  if (t.dim() != 4 || !t.is_contiguous()) return t;
  return at::empty({t.size(0), t.size(2), t.size(1), t.size(3)}, t.options()).transpose(1, 2);
}

// A guess of sizes and places that does not come true costs a thread's time and nothing else.
void expect(const GeneratedProgram& program, const Node& node) {
  if (node.device().empty()) return;
  const c10::Device device(node.device());
  const cuda::SourceCompiler* compiler = cuda::compiler_of(c10::DeviceTypeName(device.type(), true));
  if (!compiler) return;  // a run tells
  try {
    std::vector<at::Tensor> values;
    for (const NodeArg* value : node.inputs()) {
      const at::Tensor found = value ? expected(*value) : at::Tensor();
      if (!found.defined()) return;
      values.push_back(program.rotates() ? with_heads_inside(found) : found);
    }
    Inputs inputs;
    for (const at::Tensor& t : values) inputs.push_back(&t);
    std::vector<char> wanted;
    for (const NodeArg* output : node.outputs()) wanted.push_back(output != nullptr);
    program.expect({*compiler, device}, inputs, wanted);
  } catch (const Error&) {  // sizes that a run would refuse
  }
}

}  // namespace

std::vector<std::string> fused_cuda_sources(const Attributes& attributes, const std::vector<at::Tensor>& inputs) {
  Graph graph("program");
  std::vector<NodeArg*> values;
  for (size_t i = 0; i < inputs.size(); ++i) values.push_back(graph.add_input(str("x", i), TypeInfo()));
  const size_t outputs = std::get<std::vector<std::string>>(attributes.at("outputs")).size();
  const Node* node =
      graph.add_node("ai.ortmodule", "FusedKernel", values, std::vector<std::string>(outputs), attributes);
  Inputs given;
  for (const at::Tensor& t : inputs) given.push_back(&t);
  return GeneratedProgram(read_program(*node), node->describe()).sources(given, std::vector<char>(outputs, 1));
}

ORTMODULE_KERNEL("ai.ortmodule", FusedKernel, "cuda", [](const Node& node) -> Kernel {
  FusedProgram read = read_program(node);
  std::vector<char> states;
  for (int i = 0; i < read.inputs; ++i) states.push_back(read.is_state(i));
  const auto program = std::make_shared<const GeneratedProgram>(std::move(read), node.describe());
  expect(*program, node);
  return [program, states, name = node.describe()](KernelContext& c) { run(*program, states, name, c); };
});

}  // namespace ortmodule
