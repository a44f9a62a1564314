#include <c10/core/Device.h>
#include <c10/core/Layout.h>
#include <c10/core/MemoryFormat.h>

#include <charconv>
#include <cmath>

#include "base/status.h"
#include "kernels/aten_bridge.h"
#include "ops/aten/arguments.h"

namespace ortmodule {
namespace {

std::vector<std::string> split(const std::string& text) {
  std::vector<std::string> parts;
  int depth = 0;  // commas inside Max(a, b) separate nothing
  std::string part;
  for (char ch : text) {
    depth += (ch == '(') - (ch == ')');
    if (ch == ',' && depth == 0) {
      parts.push_back(std::move(part));
      part.clear();
    } else {
      part.push_back(ch);
    }
  }
  if (!part.empty() || !parts.empty()) parts.push_back(std::move(part));
  return parts;
}

// Python's repr of a float, "inf" and "nan" included.
double parse_double(const std::string& text) {
  size_t used = 0;
  const double value = std::stod(text, &used);
  ORTMODULE_CHECK_GRAPH(used == text.size(), "'", text, "' is no number");
  return value;
}

std::string without_prefix(const std::string& text) { return text.rfind("torch.", 0) == 0 ? text.substr(6) : text; }

c10::Layout parse_layout(const std::string& text) {
  for (const c10::Layout l : {c10::kStrided, c10::kSparse, c10::kSparseCsr, c10::kMkldnn})
    if (c10::str(l) == text || (l == c10::kStrided && text == "strided")) return l;
  fail(ErrorCode::kInvalidGraph, "'", text, "' is no layout");
}

c10::MemoryFormat parse_memory_format(const std::string& text) {
  if (text == "contiguous_format") return c10::MemoryFormat::Contiguous;
  if (text == "channels_last") return c10::MemoryFormat::ChannelsLast;
  if (text == "channels_last_3d") return c10::MemoryFormat::ChannelsLast3d;
  if (text == "preserve_format") return c10::MemoryFormat::Preserve;
  fail(ErrorCode::kInvalidGraph, "'", text, "' is no memory format");
}

// The argument's type without its "?".
c10::TypePtr plain_type(const c10::Argument& argument) {
  const auto optional = argument.type()->cast<c10::OptionalType>();
  return optional ? optional->getElementType() : argument.type();
}

bool takes_optional_tensors(const c10::Argument& argument) {
  const auto list = plain_type(argument)->cast<c10::ListType>();
  return list && list->getElementType()->kind() == c10::TypeKind::OptionalType;
}

bool takes_float(const c10::Argument& argument) { return plain_type(argument)->kind() == c10::TypeKind::FloatType; }

}  // namespace

AtenArguments::AtenArguments(const Node& node, const c10::FunctionSchema& schema)
    : where_(str("[ATen] ", schema.name(), " (", node.describe(), ")")), symbols_(node.get_strings("symbols")) {
  const std::vector<std::string> texts = node.get_strings("arguments");
  ORTMODULE_CHECK_GRAPH(texts.size() <= schema.arguments().size(), where_, ": ", texts.size(), " arguments for the ",
                        schema.arguments().size(), " of ", c10::toString(schema));
  for (size_t i = 0; i < schema.arguments().size(); ++i) {
    const c10::Argument& argument = schema.arguments()[i];
    try {
      slots_.push_back(parse(i < texts.size() ? texts[i] : "-", argument));
    } catch (const std::logic_error& e) {  // std::stod and std::stoll
      bad(texts[i], argument, e.what());
    } catch (const Error& e) {
      bad(i < texts.size() ? texts[i] : "-", argument, e.what());
    }
  }
  ORTMODULE_CHECK_GRAPH(next_input_ + symbols_.size() == node.inputs().size(), where_, ": the arguments take ",
                        next_input_, " inputs and the symbols ", symbols_.size(), ", the node has ",
                        node.inputs().size());
}

void AtenArguments::bad(const std::string& text, const c10::Argument& argument, const std::string& why) const {
  fail(ErrorCode::kInvalidGraph, where_, ": '", text, "' does not fit argument '", argument.name(), "' of type ",
       argument.type()->str(), ": ", why);
}

AtenArguments::Slot AtenArguments::parse(const std::string& text, const c10::Argument& argument) {
  Slot slot;
  const char kind = text.empty() ? '?' : text[0];
  const std::string rest = text.size() > 2 && text[1] == ':' ? text.substr(2) : "";
  switch (kind) {
    case '-':
      if (argument.default_value())
        slot.value = *argument.default_value();
      else if (argument.type()->kind() != c10::TypeKind::OptionalType)
        fail(ErrorCode::kInvalidGraph, "it has no default");
      return slot;
    case 'n':
      return slot;
    case 't':
      slot.kind = Slot::kTensor;
      slot.inputs = {static_cast<int>(next_input_++)};
      return slot;
    case 'T': {
      const std::string marks = text.substr(1);
      const bool counted = marks.empty() || std::isdigit(static_cast<unsigned char>(marks[0]));
      slot.kind = takes_optional_tensors(argument) ? Slot::kOptionalTensors : Slot::kTensors;
      const size_t count = marks.empty() ? 0 : counted ? std::stoul(marks) : marks.size();
      for (size_t i = 0; i < count; ++i)
        slot.inputs.push_back(counted || marks[i] == 't' ? static_cast<int>(next_input_++) : -1);
      return slot;
    }
    case 'i':
    case 'I': {
      slot.kind = kind == 'i' ? Slot::kInt : Slot::kInts;
      bool known = true;
      for (const std::string& e : kind == 'i' ? std::vector<std::string>{rest} : split(rest)) {
        slot.expressions.push_back(Dim::parse(e));
        known = known && slot.expressions.back().is_known();
      }
      if (!known) return slot;
      std::vector<int64_t> values;
      for (const Dim& d : slot.expressions) values.push_back(d.value());
      if (kind == 'I')
        slot.value = values;
      else if (takes_float(argument))  // a boxed call converts nothing
        slot.value = static_cast<double>(values.at(0));
      else
        slot.value = values.at(0);
      slot.kind = Slot::kConstant;
      return slot;
    }
    case 'f':
      slot.value = parse_double(rest);
      return slot;
    case 'F': {
      std::vector<double> values;
      for (const std::string& v : split(rest)) values.push_back(parse_double(v));
      slot.value = values;
      return slot;
    }
    case 'b':
      slot.value = rest == "1";
      return slot;
    case 'B': {
      c10::List<bool> values;
      for (const std::string& v : split(rest)) values.push_back(v == "1");
      slot.value = values;
      return slot;
    }
    case 's':
      slot.value = rest;
      return slot;
    case 'd':
      slot.value = static_cast<int64_t>(to_scalar_type(static_cast<DType>(std::stol(rest))));
      return slot;
    case 'c': {
      const std::string number = rest.size() > 2 ? rest.substr(2) : "";
      if (rest.rfind("i:", 0) == 0) {
        const Dim value = Dim::parse(number);
        if (value.is_known()) {
          slot.value = value.value();
        } else {
          slot.kind = Slot::kInt;
          slot.expressions = {value};
        }
      } else if (rest.rfind("f:", 0) == 0) {
        slot.value = parse_double(number);
      } else if (rest.rfind("b:", 0) == 0) {
        slot.value = number == "1";
      } else {
        fail(ErrorCode::kInvalidGraph, "a Scalar is c:i:, c:f: or c:b:");
      }
      return slot;
    }
    case 'v':
      slot.value = c10::Device(rest);
      return slot;
    case 'l':
      slot.value = static_cast<int64_t>(parse_layout(without_prefix(rest)));
      return slot;
    case 'm':
      slot.value = static_cast<int64_t>(parse_memory_format(without_prefix(rest)));
      return slot;
    default:
      fail(ErrorCode::kInvalidGraph, "unknown kind");
  }
}

torch::jit::Stack AtenArguments::stack(const KernelContext& c, const std::vector<at::Tensor>& inputs) const {
  SymbolTable extended;
  const SymbolTable* table = &c.symbols();
  if (!symbols_.empty()) {
    extended = c.symbols();
    for (size_t i = 0; i < symbols_.size(); ++i) extended[symbols_[i]] = c.int_value(next_input_ + i);
    table = &extended;
  }
  const auto tensor = [&](int i) { return inputs[static_cast<size_t>(i)]; };
  torch::jit::Stack out;
  out.reserve(slots_.size());
  for (const Slot& slot : slots_) {
    switch (slot.kind) {
      case Slot::kConstant:
        out.push_back(slot.value);
        break;
      case Slot::kTensor:
        out.emplace_back(tensor(slot.inputs[0]));
        break;
      case Slot::kTensors: {
        c10::List<at::Tensor> list;
        for (int i : slot.inputs) list.push_back(tensor(i));
        out.emplace_back(std::move(list));
        break;
      }
      case Slot::kOptionalTensors: {
        c10::List<std::optional<at::Tensor>> list;
        for (int i : slot.inputs) list.push_back(i < 0 ? std::nullopt : std::optional<at::Tensor>(tensor(i)));
        out.emplace_back(std::move(list));
        break;
      }
      case Slot::kInt:
        out.emplace_back(slot.expressions[0].evaluate(*table));
        break;
      case Slot::kInts: {
        c10::List<int64_t> list;
        for (const Dim& d : slot.expressions) list.push_back(d.evaluate(*table));
        out.emplace_back(std::move(list));
        break;
      }
    }
  }
  return out;
}

}  // namespace ortmodule
