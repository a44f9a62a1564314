#include "ops/fused/cuda_source.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "base/status.h"
#include "ops/fused/cuda_places.h"
#include "ops/fused/cuda_schedule.h"

namespace ortmodule {
namespace {

// Where a value is computed: names of the element's place, and of what is computed there already.
struct Site {
  std::string index, column, suffix;
  int loop = 0;
  bool own = true;       // these are the columns of the thread: held values are
  bool factors = false;  // the warp has made dropout's factors
  std::map<int, std::string> names{};
};

class Writer {
 public:
  Writer(const FusedProgram& program, const CudaVariant& variant)
      : program_(program),
        variant_(variant),
        schedule_(program, variant),
        places_(program, variant),
        name_(cuda_kernel_name(program, variant)) {
    find_columns();
  }

  std::string run() {
    line("// Made by ops/fused/cuda_source.cpp (Note [Generated kernels]).");
    line("#include \"cuda/generated.cuh\"");
    line("namespace ortmodule::cuda {");
    line("using namespace generated;");
    line(str("constexpr int N = ", variant_.vector, ";"));
    line(str("typedef ", variant_.wide ? "int64_t" : "int", " Index;"));
    head();
    variant_.by_rows ? rows() : elements();
    line("}");
    if (!columns_.empty()) total();
    launcher();
    line("}  // namespace ortmodule::cuda");
    return std::move(text_);
  }

 private:
  // -- the frame
  // -------------------------------------------------------------------------------------------------------

  void find_columns() {
    for (size_t o = 0; o < program_.outputs.size(); ++o)
      if (variant_.wanted[o] && is_column(program_.outputs[o].form)) columns_.push_back(static_cast<int>(o));
  }

  bool passes(size_t o) const { return variant_.wanted[o] && !is_column(program_.outputs[o].form); }
  bool is_row(int value) const { return variant_.by_rows && variant_.row[value]; }
  const Instruction* code_of(int value) const {
    return value < program_.inputs ? nullptr : &program_.code[value - program_.inputs];
  }
  bool draws_fast() const { return variant_.vector % 4 == 0 && (variant_.whole_draws || !variant_.by_rows); }

  // Type and name of each parameter but the numbers.
  std::vector<std::pair<std::string, std::string>> parameters() const {
    std::vector<std::pair<std::string, std::string>> all;
    for (int i = 0; i < program_.inputs; ++i)
      if (!program_.is_state(i)) all.emplace_back(str("const ", element_name(variant_.inputs[i].type)), str("in", i));
    for (size_t o = 0; o < program_.outputs.size(); ++o)
      if (passes(o)) all.emplace_back(element_name(program_.outputs[o].dtype), str("out", o));
    if (!columns_.empty()) all.emplace_back("float", "parts");
    return all;
  }

  int threads() const { return variant_.by_rows ? (variant_.team == 32 ? 128 : variant_.team) : kCudaThreads; }

  // Left to itself, ptxas may spill a register or two of a kernel by rows for one block more at once.
  std::string bounds() const { return variant_.by_rows ? str(", ", kRowThreads / threads()) : ""; }

  void head() {
    std::string list;
    for (const auto& [type, name] : parameters()) list += "Global<" + type + "> ORTMODULE_APART " + name + ", ";
    line(str("extern \"C\" __global__ void __launch_bounds__(", threads(), bounds(), ") ", name_, "(", list, "Numbers<",
             places_.count(), "> numbers) {"));
    line("const Index count = static_cast<Index>(numbers.at[0]), rows = static_cast<Index>(numbers.at[1]);");
    line("const Index width = static_cast<Index>(numbers.at[2]);");
    line("(void)count, (void)rows, (void)width;");
    if (draws_fast() && any_draw()) line(str("ORTMODULE_SHARED(uint32_t, words, ", threads(), " * N);"));
    for (int i = 0; i < program_.inputs; ++i)
      if (schedule_.used(i) && !program_.is_state(i) && variant_.inputs[i].single)
        line(str("const float s", i, " = to_float(load(in", i, ", 0));"));
  }

  bool any_draw() const {
    for (size_t k = 0; k < program_.code.size(); ++k)
      if (draws(program_.code[k]) && schedule_.used(program_.inputs + static_cast<int>(k))) return true;
    return false;
  }

  void elements() {
    line(str("const Index index = (static_cast<Index>(blockIdx.x) * ", kCudaThreads, " + threadIdx.x) * N;"));
    line(str("const Index place = ", places_.remainder("index", "width", kWidthDivider), ";"));
    line("(void)place;");
    Site site{"index", "place", "", 0, true, draws_fast()};
    for (int value = 0; value < program_.value_count(); ++value)
      if (schedule_.used(value) && code_of(value) && draws(*code_of(value)) && draws_fast()) factors(value, site);
    line("if (index >= count) return;");
    for (size_t o = 0; o < program_.outputs.size(); ++o)
      if (passes(o)) store_full(o, site);
  }

  void rows() {
    const int team = variant_.team, held = variant_.held;
    line(str("using Threads = Team<", team, ">;"));
    line("const Index thread = Threads::thread();");
    const bool chunked = schedule_.loops() == 1 && held > 0;
    line(str("const Index first_column = ",
             chunked ? str("static_cast<Index>(blockIdx.y) * ", team * held, " * N") : "0", ";"));
    for (size_t k = 0; k < columns_.size(); ++k) line(str("float sum", k, "[", held, "][N] = {};"));
    line("for (Index row = static_cast<Index>(Threads::row()); row < rows;");
    line("     row += static_cast<Index>(gridDim.x) * Threads::kPerBlock) {");
    for (int value = 0; value < program_.value_count(); ++value)
      if (schedule_.held(value)) line(str("float h", value, "[", held, "][N];"));
    Site row{"row", "0", "r", 0, true, false};
    row_ = &row;
    for (int loop = 0; loop < schedule_.loops(); ++loop) {
      row_values(loop);
      over_columns(loop);
      if (loop + 1 < schedule_.loops()) reduce(loop);
    }
    for (size_t o = 0; o < program_.outputs.size(); ++o)
      if (passes(o) && is_row(program_.outputs[o].value))
        line(str("if (thread == 0", chunked ? " && blockIdx.y == 0" : "", ") store(out", o, ", row, from_float<",
                 element_name(program_.outputs[o].dtype), ">(", scalar(program_.outputs[o].value), "));"));
    line("}");
    if (!columns_.empty()) store_sums();
  }

  // Row values that are known after `loop` reductions.
  void row_values(int loop) {
    for (int value = 0; value < program_.value_count(); ++value) {
      if (!schedule_.used(value) || !is_row(value) || schedule_.level(value) != loop) continue;
      const Instruction* i = code_of(value);
      if (!i) {
        if (variant_.inputs[value].single || program_.is_state(value)) continue;
        line(str("const float r", value, " = to_float(load(in", value, ", ", offset(value, *row_, ""), "));"));
      } else if (!is_reduction(i->op) && i->op != Opcode::kNumber) {
        line(str("const float r", value, " = ", call(*i, *row_), ";"));
      }
    }
  }

  // The loop over a thread's columns: what the loop's reductions add, or what is stored.
  void over_columns(int loop) {
    const bool last = loop + 1 == schedule_.loops();
    bool any = !last;
    for (size_t o = 0; o < program_.outputs.size(); ++o)
      any |= last && variant_.wanted[o] && (is_column(program_.outputs[o].form) || !is_row(program_.outputs[o].value));
    if (!any) return;
    if (!last)
      for (int value : schedule_.reductions(loop)) line(str("float a", value, " = 0;"));
    if (variant_.held > 0) {
      line("#pragma unroll");
      line(str("for (int v = 0; v < ", variant_.held, "; ++v) {"));
      line(str("const Index column = first_column + (v * ", variant_.team, " + thread) * N;"));
    } else {
      line(str("for (Index start = 0; start < width; start += ", variant_.team, " * N) {"));
      line("const Index column = start + thread * N;");
    }
    line("const Index index = row * width + column;");
    line("(void)index;");
    Site site{"index", "column", str("_", loop), loop, true, false};
    if (draws_fast()) {
      for (int value = 0; value < program_.value_count(); ++value) {
        const Instruction* i = code_of(value);
        if (!i || !draws(*i) || !schedule_.computed_in(value, loop)) continue;
        site.factors = true;
        factors(value, site);
      }
    }
    line("if (column < width) {");
    if (last) {
      for (size_t o = 0; o < program_.outputs.size(); ++o)
        if (passes(o) && !is_row(program_.outputs[o].value)) store_full(o, site);
      for (size_t k = 0; k < columns_.size(); ++k) {
        const int value = program_.outputs[columns_[k]].value;
        element_loop(str("sum", k, "[v][k] += ", element(value, site)));
      }
    } else {
      for (int value : schedule_.reductions(loop))
        element_loop(str("a", value, " += ", element(code_of(value)->arguments[0], site)));
    }
    line("}");
    line("}");
  }

  void reduce(int loop) {
    const std::vector<int>& sums = schedule_.reductions(loop);
    std::string list;
    for (int value : sums) list += (list.empty() ? "a" : ", a") + std::to_string(value);
    line(str("float all", loop, "[", sums.size(), "] = {", list, "};"));
    line(str("Threads::template reduce<Sum>(all", loop, ");"));
    for (size_t k = 0; k < sums.size(); ++k) {
      const bool mean = code_of(sums[k])->op == Opcode::kRowMean;
      line(str("const float r", sums[k], " = all", loop, "[", k, "]", mean ? " / static_cast<float>(width)" : "", ";"));
    }
  }

  // A part for each block, whose warps add theirs where they have rows of their own.
  void store_sums() {
    line("#pragma unroll");
    line(str("for (int v = 0; v < ", variant_.held, "; ++v) {"));
    line(str("const Index column = first_column + (v * ", variant_.team, " + thread) * N;"));
    for (size_t k = 0; k < columns_.size(); ++k) {
      if (variant_.team == 32) line(str("add_warps<N>(sum", k, "[v]);"));
      line(str("if (", variant_.team == 32 ? "threadIdx.x < 32 && " : "", "column < width) store_floats<N>(parts, (",
               "int64_t{blockIdx.x} * ", columns_.size(), " + ", k, ") * width + column, sum", k, "[v]);"));
    }
    line("}");
  }

  // What is added up, and where to.
  std::vector<std::pair<std::string, std::string>> total_parameters() const {
    std::vector<std::pair<std::string, std::string>> all{{"const float", "parts"}};
    for (size_t k = 0; k < columns_.size(); ++k)
      all.emplace_back(element_name(program_.outputs[columns_[k]].dtype), str("to", k));
    return all;
  }

  // One launch adds all of them: blocks (i, k) those of the k-th.
  void total() {
    std::string list;
    for (const auto& [type, name] : total_parameters()) list += "Global<" + type + "> " + name + ", ";
    line("extern \"C\" __global__ void __launch_bounds__(1024) " + name_ + "_total(" + list + "Numbers<2> numbers) {");
    line("const int teams = static_cast<int>(numbers.at[0]);");
    line("const int64_t width = numbers.at[1];");
    for (size_t k = 0; k < columns_.size(); ++k)
      line(str("if (blockIdx.y == ", k, ") add_column_parts(parts + ", k, " * width, to", k, ", teams, ",
               columns_.size(), " * width, width);"));
    line("}");
  }

  // For the simulated GPU, whose host calls it.
  void launcher() {
    line("#ifndef __CUDACC__");
    line("extern \"C\" int generated_launch(const GeneratedLaunch& l, void* stream) {");
    line("const dim3 blocks(l.blocks[0], l.blocks[1]);");
    const auto call = [&](const std::string& name, const std::vector<std::pair<std::string, std::string>>& all, int n) {
      line("if (std::strcmp(l.kernel, \"" + name + "\") == 0) {");
      line(str("if (l.address_count != ", all.size(), " || l.number_count != ", n, ") return 1;"));
      line(str("Numbers<", n, "> numbers;"));
      line("std::memcpy(&numbers, l.numbers, sizeof(numbers));");
      std::string list;
      for (size_t i = 0; i < all.size(); ++i) list += str("global<", all[i].first, ">(l.addresses[", i, "]), ");
      line("return launch(\"" + name + "\", &" + name + ", blocks, l.threads, stream, " + list + "numbers);");
      line("}");
    };
    call(name_, parameters(), places_.count());
    if (!columns_.empty()) call(name_ + "_total", total_parameters(), 2);
    line("return 1;");
    line("}");
    line("#endif");
  }

  // -- values
  // ----------------------------------------------------------------------------------------------------------

  // Of a value that is one for the row or for all.
  std::string scalar(int value) const {
    const Instruction* i = code_of(value);
    if (i && i->op == Opcode::kNumber) return literal(i->number);
    if (!i && variant_.inputs[value].single) return str("s", value);
    return str("r", value);
  }
  bool is_scalar(int value) const {
    const Instruction* i = code_of(value);
    if (i ? i->op == Opcode::kNumber : variant_.inputs[value].single) return true;
    return is_row(value);
  }

  // The value's k-th element here, in an expression.
  std::string element(int value, Site& site) {
    if (is_scalar(value)) return scalar(value);
    return full(value, site) + "[k]";
  }

  std::string call(const Instruction& i, Site& site) {
    std::string arguments;
    for (int a = 0; a < opcode_info(i.op).arguments; ++a) {
      if (i.op == Opcode::kPhiloxDropout && a == 1) continue;
      arguments += (a ? ", " : "") + element(i.arguments[a], site);
    }
    return str("op_", opcode_info(i.op).name, "(", arguments, ")");
  }

  // Emits the value's N elements here and gives their array's name.
  std::string full(int value, Site& site) {
    if (const auto known = site.names.find(value); known != site.names.end()) return known->second;
    const bool held = site.own && schedule_.held(value);
    if (held && schedule_.first_loop(value) < site.loop) return site.names[value] = str("h", value, "[v]");
    const std::string name = held ? str("h", value, "[v]") : str("v", value, site.suffix);
    const Instruction* i = code_of(value);
    if (i && i->op == Opcode::kRotateHalf) {
      rotate(*i, name, site);
    } else if (i && i->op == Opcode::kPhiloxDropout) {
      drop(value, *i, name, site);
    } else if (i) {
      // Arguments first: what they emit stands before this value's loop.
      const std::string made = call(*i, site);
      if (!held) line(str("float ", name, "[N];"));
      element_loop(name + "[k] = " + made);
    } else {
      if (!held) line(str("float ", name, "[N];"));
      load(value, name, site);
    }
    return site.names[value] = name;
  }

  void rotate(const Instruction& i, const std::string& name, Site& site) {
    const std::string at = "_" + name.substr(0, name.find('[')) + site.suffix;
    line(str("const Index half", at, " = width / 2;"));
    line(str("const bool left", at, " = ", site.column, " < half", at, ";"));
    line(str("const Index column", at, " = left", at, " ? ", site.column, " + half", at, " : ", site.column, " - half",
             at, ";"));
    line(str("const Index index", at, " = ", site.index, " - ", site.column, " + column", at, ";"));
    line(str("(void)index", at, ";"));
    Site other{"index" + at, "column" + at, at, site.loop, false, false};
    const std::string from = element(i.arguments[0], other);
    line(str("float ", name, "[N];"));
    element_loop(str(name, "[k] = left", at, " ? -", from, " : ", from));
  }

  std::string key(int value) const {
    const int at = places_.words(value - program_.inputs);
    return str("PhiloxKey{static_cast<uint64_t>(numbers.at[", at, "]), static_cast<uint64_t>(numbers.at[", at + 1,
               "])}, Drop{",
               static_cast<uint32_t>(std::min(std::llround(code_of(value)->number * 4294967296.0), 4294967295LL)),
               "u, ", literal(1.0 / (1.0 - code_of(value)->number)), "}");
  }

  // The warp's factors for a dropout of the thread's columns.
  void factors(int value, Site& site) {
    const std::string name = str("f", value, site.suffix);
    line(str("float ", name, "[N];"));
    line(str("drop_factors<N>(", key(value), ", ", site.index, ", words, ", name, ");"));
  }

  void drop(int value, const Instruction& i, const std::string& name, Site& site) {
    const std::string from = element(i.arguments[0], site);
    if (name[0] != 'h') line(str("float ", name, "[N];"));
    if (!draws(i)) return element_loop(str(name, "[k] = ", from, " * ", i.number == 0 ? "1.0f" : "0.0f"));
    const std::string factor =
        site.factors ? str("f", value, site.suffix, "[k]") : str("drop_factor(", key(value), ", ", site.index, " + k)");
    element_loop(str(name, "[k] = ", from, " * ", factor));
  }

  // -- memory
  // ----------------------------------------------------------------------------------------------------------

  std::string last_step(int i, const std::string& k) const {
    const int64_t step = variant_.inputs[i].last_stride;
    if (k.empty() || step == 0) return "";
    return step == 1 ? " + " + k : " + " + k + " * " + places_.stride(i, variant_.inputs[i].axes - 1);
  }

  // Where the element at the site's place is, and the k-th one behind it in the same run.
  std::string offset(int i, const Site& site, const std::string& k) {
    const CudaOperand& o = variant_.inputs[i];
    if (o.axes == 1) {
      if (o.last_stride == 1) return site.index + last_step(i, k);
      return o.last_stride == 0 ? "0" : str(site.index, " * ", places_.stride(i, 0), last_step(i, k));
    }
    const std::string name = str("o", next_++);
    const bool rows = o.in_rows && variant_.by_rows;
    const int last = o.axes - 1;
    line(str("Index ", name, " = 0;"));
    line("{");
    line(str("Index rest = ", rows ? "row" : site.index, ";"));
    if (rows) {
      line(str(name, " = ",
               o.last_stride == 1   ? site.column
               : o.last_stride == 0 ? "0"
                                    : site.column + " * " + places_.stride(i, last),
               ";"));
    } else {
      take_axis(name, i, last, o.last_stride == 1 ? "1" : o.last_stride == 0 ? "0" : places_.stride(i, last));
    }
    for (int axis = last - 1; axis > 0; --axis) take_axis(name, i, axis, places_.stride(i, axis));
    line(str(name, " += rest * ", places_.stride(i, 0), ";"));
    line("}");
    return name + last_step(i, k);
  }

  // Takes an axis off what is left of the place, and adds its part to the offset.
  void take_axis(const std::string& name, int i, int axis, const std::string& stride) {
    line("{");
    line(str("const Index next = ", places_.quotient("rest", places_.size(i, axis), places_.divider(i, axis)), ";"));
    line(str(name, " += (rest - next * ", places_.size(i, axis), ") * ", stride, ";"));
    line("rest = next;");
    line("}");
  }

  void load(int i, const std::string& name, Site& site) {
    const CudaOperand& o = variant_.inputs[i];
    if (!o.whole) {  // the k-th element has a place of its own
      line("#pragma unroll");
      line("for (int k = 0; k < N; ++k) {");
      Site one{"(" + site.index + " + k)", "(" + site.column + " + k)", site.suffix + "k", site.loop, false, false};
      const std::string place = offset(i, one, "");
      line(str(name, "[k] = to_float(load(in", i, ", ", place, "));"));
      line("}");
      return;
    }
    const std::string first = offset(i, site, "");
    if (o.last_stride == 1 && o.vectors) return line(str("load_floats<N>(in", i, ", ", first, ", ", name, ");"));
    if (o.last_stride == 0) {
      const std::string one = str("one", next_++);
      line(str("const float ", one, " = to_float(load(in", i, ", ", first, "));"));
      return element_loop(str(name, "[k] = ", one));
    }
    element_loop(str(name, "[k] = to_float(load(in", i, ", ", first, last_step(i, "k"), "))"));
  }

  void store_full(size_t o, Site& site) {
    const FusedProgram::Output& out = program_.outputs[o];
    std::string from;
    if (is_scalar(out.value)) {
      from = str("w", next_++);
      line(str("float ", from, "[N];"));
      element_loop(str(from, "[k] = ", scalar(out.value)));
    } else {
      from = full(out.value, site);
    }
    line(str("store_floats<N>(out", o, ", ", site.index, ", ", from, ");"));
  }

  void element_loop(const std::string& statement) {
    line("#pragma unroll");
    line("for (int k = 0; k < N; ++k) " + statement + ";");
  }

  void line(const std::string& text) { text_ += text + "\n"; }

  const FusedProgram& program_;
  const CudaVariant& variant_;
  CudaSchedule schedule_;
  CudaPlaces places_;
  const std::string name_;
  int next_ = 0;
  std::vector<int> columns_;  // outputs that are sums over columns, wanted
  Site* row_ = nullptr;
  std::string text_;
};

}  // namespace

std::string cuda_source(const FusedProgram& program, const CudaVariant& variant) {
  return Writer(program, variant).run();
}

}  // namespace ortmodule
