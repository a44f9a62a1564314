#include "graph/text.h"

#include <charconv>
#include <cmath>

#include "base/status.h"

namespace ortmodule {
namespace {

// What may stand in a name without quotes; parse_text.cpp reads the same set.
bool is_plain(const std::string& name) {
  if (name.empty() || name == "_") return false;
  for (const char c : name)
    if (!std::isalnum(static_cast<unsigned char>(c)) && c != '_' && c != '.' && c != '/') return false;
  return true;
}

std::string quote(const std::string& text) {
  constexpr const char* kHex = "0123456789abcdef";
  std::string out = "\"";
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\')
      (out += '\\') += c;
    else if (c == '\n')
      out += "\\n";
    else if (byte < 32 || byte == 127)
      (out += "\\x") += {kHex[byte >> 4], kHex[byte & 15]};
    else
      out += c;
  }
  return out + "\"";
}

std::string name_text(const std::string& name) { return is_plain(name) ? name : quote(name); }

template <typename T>
std::string number_text(T value) {
  char buffer[40];
  const auto end = std::to_chars(buffer, buffer + sizeof(buffer), value).ptr;
  std::string out(buffer, end);
  // An integral double must not read as an integer.
  if (out.find_first_not_of("-0123456789") == std::string::npos) out += ".0";
  return out;
}

std::string type_text(const TypeInfo& type) { return type.dtype == DType::kUndefined ? "" : ": " + type.text(); }

class Printer {
 public:
  explicit Printer(const TextOptions& options) : options_(options) {}

  std::string header(const Graph& graph) const {
    std::string out = "graph " + name_text(graph.name()) + "(";
    for (size_t i = 0; i < graph.inputs().size(); ++i) {
      const NodeArg& in = *graph.inputs()[i];
      out += (i ? ", " : "") + name_text(in.name()) + type_text(in.type());
    }
    out += ") -> (";
    for (size_t i = 0; i < graph.outputs().size(); ++i) out += (i ? ", " : "") + name_text(graph.outputs()[i]->name());
    return out + ")";
  }

  std::string lines(const Graph& graph, const std::string& indent) const {
    std::string out;
    for (const auto& [domain, version] : graph.opsets())
      out += indent + "opset " + quote(domain) + " " + std::to_string(version) + "\n";
    for (const auto& [key, value] : graph.metadata())
      out += indent + "metadata " + quote(key) + " " + quote(value) + "\n";
    for (const NodeArg* value : graph.initializers())
      out += indent + "const %" + name_text(value->name()) + ": " + tensor(*value->constant(), " = ") + "\n";
    graph.for_each([&](Node& n) { out += indent + node(n, indent) + "\n"; });
    return out;
  }

  std::string node(const Node& n, const std::string& indent) const {
    std::string out;
    for (size_t i = 0; i < n.outputs().size(); ++i) {
      const NodeArg* value = n.outputs()[i];
      out += (i ? ", " : "") + (value ? "%" + name_text(value->name()) + type_text(value->type()) : std::string("_"));
    }
    if (!n.outputs().empty()) out += " = ";
    if (!n.domain().empty()) out += name_text(n.domain()) + "::";
    out += name_text(n.op()) + "(";
    for (size_t i = 0; i < n.inputs().size(); ++i)
      out += (i ? ", " : "") + (n.inputs()[i] ? "%" + name_text(n.inputs()[i]->name()) : std::string("_"));
    out += ")";
    if (!n.attributes().empty()) {
      const char* separator = " {";
      for (const auto& [key, value] : n.attributes()) {
        out += separator + name_text(key) + "=" + attribute(value, indent);
        separator = ", ";
      }
      out += "}";
    }
    return out + notes(n);
  }

 private:
  static std::string notes(const Node& n) {
    std::string out;
    const auto note = [&](const std::string& key, const std::string& value) {
      out += (out.empty() ? " @{" : ", ") + key + "=" + quote(value);
    };
    const NodeArg* first = n.outputs().empty() ? nullptr : n.outputs()[0];
    if (n.name() != (n.outputs().empty() ? n.op() : first ? first->name() : "")) note("name", n.name());
    if (n.phase() == Phase::kBackward) note("phase", "backward");
    if (!n.provider().empty()) note("provider", n.provider());
    if (n.device() != n.provider()) note("device", n.device());
    for (const auto& [key, value] : n.metadata()) note(quote(key), value);
    return out.empty() ? out : out + "}";
  }

  std::string tensor(const TensorData& data, const char* separator) const {
    std::string out = TypeInfo{data.dtype, Shape(data.dims.begin(), data.dims.end())}.text() + separator;
    if (is_numeric(data.dtype)) return out + elements(data);
    constexpr const char* kHex = "0123456789abcdef";
    std::string hex;
    for (const char c : *data.bytes) hex += {kHex[static_cast<unsigned char>(c) >> 4], kHex[c & 15]};
    return out + "hex " + quote(hex);
  }

  static bool is_numeric(DType dtype) {
    return dtype == DType::kBool || dtype == DType::kFloat || dtype == DType::kDouble || is_reduced_floating(dtype) ||
           (is_integer(dtype) && dtype_size(dtype) > 0);
  }

  std::string elements(const TensorData& data) const {
    std::string out = "[";
    size_t printed = 0;
    const auto add = [&](const std::string& text) { out += (printed++ ? ", " : "") + text; };
    if (is_floating(data.dtype)) {
      for (const double v : data.to_doubles()) {
        if (printed == options_.max_elements) return out + (printed ? ", ...]" : "...]");
        add(data.dtype == DType::kDouble ? number_text(v) : number_text(static_cast<float>(v)));
      }
    } else {
      for (const int64_t v : data.to_ints()) {
        if (printed == options_.max_elements) return out + (printed ? ", ...]" : "...]");
        add(data.dtype == DType::kUInt64 ? std::to_string(static_cast<uint64_t>(v)) : std::to_string(v));
      }
    }
    return out + "]";
  }

  template <typename T, typename F>
  static std::string list(const char* kind, const std::vector<T>& values, F&& print) {
    if (values.empty()) return std::string(kind) + "[]";
    std::string out = "[";
    for (size_t i = 0; i < values.size(); ++i) out += (i ? ", " : "") + print(values[i]);
    return out + "]";
  }

  std::string attribute(const AttributeValue& value, const std::string& indent) const {
    struct Visitor {
      const Printer& printer;
      const std::string& indent;
      std::string operator()(int64_t v) const { return std::to_string(v); }
      std::string operator()(double v) const { return number_text(v); }
      std::string operator()(const std::string& v) const { return quote(v); }
      std::string operator()(const std::vector<int64_t>& v) const {
        return list("ints", v, [](int64_t i) { return std::to_string(i); });
      }
      std::string operator()(const std::vector<double>& v) const { return list("floats", v, number_text<double>); }
      std::string operator()(const std::vector<std::string>& v) const { return list("strings", v, quote); }
      std::string operator()(const TensorData& v) const { return "tensor " + printer.tensor(v, " "); }
      std::string operator()(const std::shared_ptr<Graph>& v) const {
        return printer.header(*v) + " {\n" + printer.lines(*v, indent + "  ") + indent + "}";
      }
    };
    return std::visit(Visitor{*this, indent}, value);
  }

  const TextOptions& options_;
};

}  // namespace

std::string to_text(const Graph& graph, const TextOptions& options) {
  const Printer printer(options);
  std::string out = printer.header(graph) + "\n" + printer.lines(graph, "  ");
  for (const FunctionBody& f : graph.functions())
    out += "function " + quote(f.domain) + " " + quote(f.name) + " = " + printer.header(*f.body) + " {\n" +
           printer.lines(*f.body, "  ") + "}\n";
  return out;
}

std::string to_text(const Node& node, const TextOptions& options) { return Printer(options).node(node, ""); }

}  // namespace ortmodule
