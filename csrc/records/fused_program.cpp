#include "records/fused_program.h"

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <string_view>
#include <unordered_map>

#include "base/status.h"

namespace ortmodule {
namespace {

constexpr OpcodeInfo kOpcodes[] = {
    {"number", 0},
    {"add", 2},
    {"sub", 2},
    {"mul", 2},
    {"div", 2},
    {"min", 2},
    {"max", 2},
    {"less", 2},
    {"less_equal", 2},
    {"greater", 2},
    {"greater_equal", 2},
    {"equal", 2},
    {"and", 2},
    {"or", 2},
    {"xor", 2},
    {"where", 3},
    {"not", 1},
    {"neg", 1},
    {"abs", 1},
    {"sqrt", 1},
    {"rsqrt", 1},
    {"reciprocal", 1},
    {"exp", 1},
    {"log", 1},
    {"tanh", 1},
    {"erf", 1},
    {"sigmoid", 1},
    {"relu", 1},
    {"gelu", 1},
    {"gelu_tanh", 1},
    {"silu", 1},
    {"gelu_grad", 2},
    {"gelu_tanh_grad", 2},
    {"silu_grad", 2},
    {"tanh_grad", 2},
    {"sigmoid_grad", 2},
    {"round_bfloat16", 1},
    {"round_half", 1},
    {"rotate_half", 1},
    {"philox_dropout", 2},
    {"row_sum", 1},
    {"row_mean", 1},
};
static_assert(std::size(kOpcodes) == static_cast<size_t>(Opcode::kCount));

constexpr std::string_view kForms[] = {"full", "row", "row_dropped", "column", "column_kept"};
static_assert(std::size(kForms) == static_cast<size_t>(OutputForm::kCount));

bool has_number(Opcode op) { return op == Opcode::kNumber || op == Opcode::kPhiloxDropout; }

[[noreturn]] void bad_line(const Node& node, const std::string& line) {
  fail(ErrorCode::kInvalidGraph, "[FusedKernel] '", line, "' is no line of a program (", node.describe(), ")");
}

std::string number_text(double number) {
  char text[40];
  std::snprintf(text, sizeof text, "%.17g", number);
  return text;
}

Opcode opcode_of(std::string_view name) {
  static const std::unordered_map<std::string_view, Opcode> opcodes = [] {
    std::unordered_map<std::string_view, Opcode> out;
    for (size_t i = 0; i < std::size(kOpcodes); ++i) out.emplace(kOpcodes[i].name, static_cast<Opcode>(i));
    return out;
  }();
  const auto found = opcodes.find(name);
  return found == opcodes.end() ? Opcode::kCount : found->second;
}

// Reads one line of a program, or of its outputs, word by word; a graph of many small kernels has tens of thousands.
class Line {
 public:
  Line(const Node& node, const std::string& text) : node_(node), text_(text), rest_(text) {}

  Instruction instruction(int result) {
    Instruction out;
    if (value() != result || word() != "=") bad();
    out.op = opcode_of(word());
    if (out.op == Opcode::kCount) bad();
    for (int i = 0; i < opcode_info(out.op).arguments; ++i) {
      out.arguments[i] = value();
      if (out.arguments[i] >= result) bad();
    }
    if (has_number(out.op)) out.number = parsed<double>(word());
    if (out.op == Opcode::kPhiloxDropout) out.stream = parsed<int64_t>(word());
    end();
    return out;
  }

  FusedProgram::Output output(int values) {
    const std::string_view form = word();
    const DType dtype = dtype_from_name(std::string(word()));
    const auto* found = std::find(std::begin(kForms), std::end(kForms), form);
    const FusedProgram::Output out{value(), dtype, static_cast<OutputForm>(found - std::begin(kForms))};
    if (found == std::end(kForms) || dtype == DType::kUndefined || out.value >= values) bad();
    end();
    return out;
  }

 private:
  // The next word; none is left: an empty one, which nothing that is expected equals.
  std::string_view word() {
    rest_.remove_prefix(std::min(rest_.find_first_not_of(' '), rest_.size()));
    const std::string_view out = rest_.substr(0, rest_.find(' '));
    rest_.remove_prefix(out.size());
    return out;
  }

  template <typename T>
  T parsed(std::string_view digits) const {
    T out{};
    const char* const last = digits.data() + digits.size();
    const auto [stopped, error] = std::from_chars(digits.data(), last, out);
    if (error != std::errc() || stopped != last) bad();
    return out;
  }

  int value() {
    const std::string_view name = word();
    if (name.size() < 2 || name[0] != '%') bad();
    const int number = parsed<int>(name.substr(1));
    if (number < 0 || number > 1 << 20) bad();
    return number;
  }

  void end() {
    if (!word().empty()) bad();
  }

  [[noreturn]] void bad() const { bad_line(node_, text_); }

  const Node& node_;
  const std::string& text_;
  std::string_view rest_;
};

void check_kinds(const FusedProgram& program, const Node& node, const std::vector<std::string>& lines) {
  const std::vector<char> rows = program.row_values();
  for (size_t k = 0; k < program.code.size(); ++k) {
    const Instruction& i = program.code[k];
    const bool reduces = i.op == Opcode::kRowSum || i.op == Opcode::kRowMean;
    if ((reduces || i.op == Opcode::kRotateHalf) && rows[i.arguments[0]]) bad_line(node, lines[k]);
    if (i.op == Opcode::kPhiloxDropout && (i.arguments[1] >= program.inputs || rows[i.arguments[0]]))
      bad_line(node, lines[k]);
    for (int a = 0; a < opcode_info(i.op).arguments; ++a)
      if (i.arguments[a] < program.inputs && program.is_state(i.arguments[a]) &&
          !(i.op == Opcode::kPhiloxDropout && a == 1))
        bad_line(node, lines[k]);
  }
  for (const FusedProgram::Output& out : program.outputs) {
    const bool row = out.form == OutputForm::kRow || out.form == OutputForm::kRowDropped;
    if (row != static_cast<bool>(rows[out.value])) bad_line(node, str("%", out.value, " as an output"));
  }
}

}  // namespace

const OpcodeInfo& opcode_info(Opcode op) { return kOpcodes[static_cast<size_t>(op)]; }

bool FusedProgram::is_state(int input) const {
  return std::any_of(code.begin(), code.end(),
                     [&](const Instruction& i) { return i.op == Opcode::kPhiloxDropout && i.arguments[1] == input; });
}

std::vector<char> FusedProgram::row_values() const {
  std::vector<char> rows(row_input);
  rows.resize(inputs, 0);
  for (const Instruction& i : code) {
    // Numbers fit both kinds; one that stands alone is full.
    bool any_row = false, all_fit = true;
    for (int a = 0; a < opcode_info(i.op).arguments; ++a) {
      const int value = i.arguments[a];
      const bool number = value >= inputs && code[value - inputs].op == Opcode::kNumber;
      any_row |= rows[value] != 0;
      all_fit &= rows[value] != 0 || number;
    }
    rows.push_back(i.op == Opcode::kRowSum || i.op == Opcode::kRowMean || (any_row && all_fit));
  }
  return rows;
}

bool FusedProgram::needs_whole_rows() const {
  return std::any_of(code.begin(), code.end(), [](const Instruction& i) {
    return i.op == Opcode::kRowSum || i.op == Opcode::kRowMean || i.op == Opcode::kRotateHalf;
  });
}

Attributes write_program(const FusedProgram& program) {
  std::vector<std::string> lines, outputs;
  std::vector<int64_t> rows;
  for (int i = 0; i < program.inputs; ++i)
    if (program.row_input[i]) rows.push_back(i);
  for (size_t k = 0; k < program.code.size(); ++k) {
    const Instruction& i = program.code[k];
    std::string line = "%" + std::to_string(program.inputs + k) + " = " + opcode_info(i.op).name;
    for (int a = 0; a < opcode_info(i.op).arguments; ++a) line += " %" + std::to_string(i.arguments[a]);
    if (has_number(i.op)) line += " " + number_text(i.number);
    if (i.op == Opcode::kPhiloxDropout) line += " " + std::to_string(i.stream);
    lines.push_back(std::move(line));
  }
  for (const FusedProgram::Output& out : program.outputs)
    outputs.push_back(str(kForms[static_cast<size_t>(out.form)], " ", dtype_name(out.dtype), " %", out.value));
  return {{"program", std::move(lines)}, {"outputs", std::move(outputs)}, {"rows", std::move(rows)}};
}

FusedProgram read_program(const Node& node) {
  const std::vector<std::string> lines = node.get_strings("program");
  FusedProgram program;
  program.code.reserve(lines.size());
  program.inputs = static_cast<int>(node.inputs().size());
  program.row_input.assign(program.inputs, 0);
  for (int64_t row : node.get_ints("rows")) {
    ORTMODULE_CHECK_GRAPH(row >= 0 && row < program.inputs, "[FusedKernel] there is no input ", row, " (",
                          node.describe(), ")");
    program.row_input[row] = 1;
  }
  for (const std::string& line : lines) program.code.push_back(Line(node, line).instruction(program.value_count()));
  for (const std::string& line : node.get_strings("outputs"))
    program.outputs.push_back(Line(node, line).output(program.value_count()));
  ORTMODULE_CHECK_GRAPH(program.outputs.size() == node.outputs().size(), "[FusedKernel] the program has ",
                        program.outputs.size(), " outputs, the node ", node.outputs().size(), " (", node.describe(),
                        ")");
  check_kinds(program, node, lines);
  return program;
}

}  // namespace ortmodule
