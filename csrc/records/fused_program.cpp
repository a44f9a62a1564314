#include "records/fused_program.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <sstream>

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

constexpr const char* kForms[] = {"full", "row", "row_dropped", "column", "column_kept"};
static_assert(std::size(kForms) == static_cast<size_t>(OutputForm::kCount));

bool has_number(Opcode op) { return op == Opcode::kNumber || op == Opcode::kPhiloxDropout; }

std::string number_text(double number) {
  char text[40];
  std::snprintf(text, sizeof text, "%.17g", number);
  return text;
}

class Reader {
 public:
  explicit Reader(const Node& node) : node_(node) {}

  Instruction instruction(const std::string& line, int result) const {
    std::istringstream words(line);
    std::string word;
    Instruction out;
    if (!(words >> word) || value(word, line) != result || !(words >> word) || word != "=") bad(line);
    if (!(words >> word)) bad(line);
    const auto* info =
        std::find_if(std::begin(kOpcodes), std::end(kOpcodes), [&](const OpcodeInfo& i) { return word == i.name; });
    if (info == std::end(kOpcodes)) bad(line);
    out.op = static_cast<Opcode>(info - kOpcodes);
    for (int i = 0; i < info->arguments; ++i) {
      if (!(words >> word)) bad(line);
      out.arguments[i] = value(word, line);
      if (out.arguments[i] >= result) bad(line);
    }
    if (has_number(out.op)) {
      if (!(words >> word)) bad(line);
      char* end = nullptr;
      out.number = std::strtod(word.c_str(), &end);
      if (*end) bad(line);
    }
    if (out.op == Opcode::kPhiloxDropout && !(words >> out.stream)) bad(line);
    if (words >> word) bad(line);
    return out;
  }

  FusedProgram::Output output(const std::string& line, int values) const {
    std::istringstream words(line);
    std::string form, dtype, number;
    if (!(words >> form >> dtype >> number)) bad(line);
    const auto* found = std::find_if(std::begin(kForms), std::end(kForms), [&](const char* f) { return form == f; });
    FusedProgram::Output out{value(number, line), dtype_from_name(dtype), static_cast<OutputForm>(found - kForms)};
    if (found == std::end(kForms) || out.dtype == DType::kUndefined || out.value >= values) bad(line);
    return out;
  }

  [[noreturn]] void bad(const std::string& line) const {
    fail(ErrorCode::kInvalidGraph, "[FusedKernel] '", line, "' is no line of a program (", node_.describe(), ")");
  }

 private:
  int value(const std::string& word, const std::string& line) const {
    char* end = nullptr;
    if (word.size() < 2 || word[0] != '%') bad(line);
    const long number = std::strtol(word.c_str() + 1, &end, 10);
    if (*end || number < 0 || number > 1 << 20) bad(line);
    return static_cast<int>(number);
  }
  const Node& node_;
};

void check_kinds(const FusedProgram& program, const Reader& reader, const Attributes& text) {
  const std::vector<char> rows = program.row_values();
  const auto lines = std::get<std::vector<std::string>>(text.at("program"));
  for (size_t k = 0; k < program.code.size(); ++k) {
    const Instruction& i = program.code[k];
    const bool reduces = i.op == Opcode::kRowSum || i.op == Opcode::kRowMean;
    if ((reduces || i.op == Opcode::kRotateHalf) && rows[i.arguments[0]]) reader.bad(lines[k]);
    if (i.op == Opcode::kPhiloxDropout && (i.arguments[1] >= program.inputs || rows[i.arguments[0]]))
      reader.bad(lines[k]);
    for (int a = 0; a < opcode_info(i.op).arguments; ++a)
      if (i.arguments[a] < program.inputs && program.is_state(i.arguments[a]) &&
          !(i.op == Opcode::kPhiloxDropout && a == 1))
        reader.bad(lines[k]);
  }
  for (const FusedProgram::Output& out : program.outputs) {
    const bool row = out.form == OutputForm::kRow || out.form == OutputForm::kRowDropped;
    if (row != static_cast<bool>(rows[out.value])) reader.bad("%" + str(out.value) + " as an output");
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
    std::string line = str("%", program.inputs + static_cast<int>(k), " = ", opcode_info(i.op).name);
    for (int a = 0; a < opcode_info(i.op).arguments; ++a) line += str(" %", i.arguments[a]);
    if (has_number(i.op)) line += " " + number_text(i.number);
    if (i.op == Opcode::kPhiloxDropout) line += str(" ", i.stream);
    lines.push_back(std::move(line));
  }
  for (const FusedProgram::Output& out : program.outputs)
    outputs.push_back(str(kForms[static_cast<size_t>(out.form)], " ", dtype_name(out.dtype), " %", out.value));
  return {{"program", std::move(lines)}, {"outputs", std::move(outputs)}, {"rows", std::move(rows)}};
}

FusedProgram read_program(const Node& node) {
  const Reader reader(node);
  FusedProgram program;
  program.inputs = static_cast<int>(node.inputs().size());
  program.row_input.assign(program.inputs, 0);
  for (int64_t row : node.get_ints("rows")) {
    ORTMODULE_CHECK_GRAPH(row >= 0 && row < program.inputs, "[FusedKernel] there is no input ", row, " (",
                          node.describe(), ")");
    program.row_input[row] = 1;
  }
  for (const std::string& line : node.get_strings("program"))
    program.code.push_back(reader.instruction(line, program.value_count()));
  for (const std::string& line : node.get_strings("outputs"))
    program.outputs.push_back(reader.output(line, program.value_count()));
  ORTMODULE_CHECK_GRAPH(program.outputs.size() == node.outputs().size(), "[FusedKernel] the program has ",
                        program.outputs.size(), " outputs, the node ", node.outputs().size(), " (", node.describe(),
                        ")");
  check_kinds(program, reader, node.attributes());
  return program;
}

}  // namespace ortmodule
