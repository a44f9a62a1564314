// Recursive descent over the form that text.h shows.
#include <charconv>
#include <cmath>
#include <cstring>

#include "base/status.h"
#include "graph/text.h"

namespace ortmodule {
namespace {

struct Pending {  // inputs are connected when every line was read: a value may be used before its line
  Node* node;
  std::vector<std::string> inputs;
  std::vector<size_t> positions;
};

class Parser {
 public:
  explicit Parser(std::string_view text) : text_(text) {}

  std::unique_ptr<Graph> run() {
    auto graph = std::make_unique<Graph>();
    graph_text(*graph, false);
    while (keyword("function")) {
      FunctionBody f;
      f.domain = string();
      f.name = string();
      expect("=");
      f.body = std::make_shared<Graph>();
      graph_text(*f.body, true);
      graph->functions().push_back(std::move(f));
    }
    skip();
    if (pos_ != text_.size()) error("expected a node, a constant or the end");
    return graph;
  }

 private:
  // -- characters ----------------------------------------------------------------------------------------------------
  [[noreturn]] void error_at(size_t at, const std::string& what) const {
    size_t line = 1, column = 1;
    for (size_t i = 0; i < at && i < text_.size(); ++i) {
      ++column;
      if (text_[i] == '\n') ++line, column = 1;
    }
    fail(ErrorCode::kParse, "line ", line, ", column ", column, ": ", what);
  }
  [[noreturn]] void error(const std::string& what) const { error_at(pos_, what); }

  void skip() {
    while (pos_ < text_.size()) {
      if (text_[pos_] == '#')
        while (pos_ < text_.size() && text_[pos_] != '\n') ++pos_;
      else if (std::isspace(static_cast<unsigned char>(text_[pos_])))
        ++pos_;
      else
        return;
    }
  }
  bool peek(std::string_view token) {
    skip();
    return text_.substr(pos_, token.size()) == token;
  }
  bool accept(std::string_view token) {
    if (!peek(token)) return false;
    pos_ += token.size();
    return true;
  }
  void expect(std::string_view token) {
    if (!accept(token)) error("expected '" + std::string(token) + "'");
  }
  static bool plain(char c) { return std::isalnum(static_cast<unsigned char>(c)) || c == '_' || c == '.' || c == '/'; }
  bool keyword(std::string_view word) {
    if (!peek(word) || (pos_ + word.size() < text_.size() && plain(text_[pos_ + word.size()]))) return false;
    pos_ += word.size();
    return true;
  }

  std::string string() {
    expect("\"");
    std::string out;
    while (true) {
      if (pos_ == text_.size() || text_[pos_] == '\n') error("the string is not closed");
      char c = text_[pos_++];
      if (c == '"') return out;
      if (c == '\\') {
        if (pos_ == text_.size()) error("the string is not closed");
        c = text_[pos_++];
        if (c == 'n') {
          c = '\n';
        } else if (c == 'x') {
          unsigned byte = 0;
          const char* end = text_.data() + std::min(pos_ + 2, text_.size());
          if (std::from_chars(text_.data() + pos_, end, byte, 16).ptr != text_.data() + pos_ + 2)
            error("expected two hexadecimal digits");
          pos_ += 2;
          c = static_cast<char>(byte);
        } else if (c != '"' && c != '\\') {
          error("unknown escape");
        }
      }
      out += c;
    }
  }

  std::string name() {
    if (peek("\"")) return string();
    const size_t start = pos_;
    while (pos_ < text_.size() && plain(text_[pos_])) ++pos_;
    if (pos_ == start) error("expected a name");
    return std::string(text_.substr(start, pos_ - start));
  }

  // A number with its kind: integers have no '.', exponent, inf or nan.
  std::variant<int64_t, double> number() {
    skip();
    const size_t start = pos_;
    if (start == text_.size()) error("expected a number");
    if (text_[start] == '-' || text_[start] == '+') ++pos_;
    while (pos_ < text_.size() && (std::isalnum(static_cast<unsigned char>(text_[pos_])) || text_[pos_] == '.' ||
                                   ((text_[pos_] == '-' || text_[pos_] == '+') && text_[pos_ - 1] == 'e')))
      ++pos_;
    const char *first = text_.data() + start + (text_[start] == '+' ? 1 : 0), *last = text_.data() + pos_;
    int64_t i = 0;
    if (auto [end, code] = std::from_chars(first, last, i); code == std::errc() && end == last) return i;
    uint64_t u = 0;  // beyond int64: kept as its bits
    if (auto [end, code] = std::from_chars(first, last, u); code == std::errc() && end == last)
      return static_cast<int64_t>(u);
    double d = 0;
    if (auto [end, code] = std::from_chars(first, last, d); code != std::errc() || end != last || first == last)
      error_at(start, "expected a number");
    return d;
  }
  int64_t integer() {
    skip();
    const size_t start = pos_;
    const auto value = number();
    if (!std::holds_alternative<int64_t>(value)) error_at(start, "expected an integer");
    return std::get<int64_t>(value);
  }

  // -- types and tensors ---------------------------------------------------------------------------------------------
  TypeInfo type() {
    skip();
    const size_t start = pos_;
    TypeInfo info;
    info.dtype = dtype_from_name(name());
    if (info.dtype == DType::kUndefined) error_at(start, "unknown element type");
    expect("[");
    if (accept("?")) {
      expect("]");
      return info;
    }
    info.shape.emplace();
    while (!accept("]")) {
      if (!info.shape->empty()) expect(",");
      skip();
      const size_t at = pos_;
      int depth = 0;
      while (pos_ < text_.size() && text_[pos_] != '\n' && (depth > 0 || (text_[pos_] != ',' && text_[pos_] != ']'))) {
        depth += text_[pos_] == '(' ? 1 : text_[pos_] == ')' ? -1 : 0;
        ++pos_;
      }
      try {
        info.shape->push_back(Dim::parse(text_.substr(at, pos_ - at)));
      } catch (const Error& e) {
        error_at(at, e.what());
      }
    }
    return info;
  }

  TensorData tensor(const char* separator) {
    skip();
    const size_t start = pos_;
    const TypeInfo info = type();
    TensorData data{info.dtype, {}, nullptr};
    if (!info.shape) error_at(start, "a constant needs a shape");
    uint64_t count = 1;
    for (const Dim& d : *info.shape) {
      if (!d.is_known() || d.value() < 0) error_at(start, "a constant's dims must be numbers");
      if (__builtin_mul_overflow(count, static_cast<uint64_t>(d.value()), &count)) error_at(start, "too many elements");
      data.dims.push_back(d.value());
    }
    if (*separator) expect(separator);
    skip();
    const size_t at = pos_;
    std::string bytes;
    if (keyword("hex")) {
      const std::string digits = string();
      for (size_t i = 0; i < digits.size(); i += 2) {
        unsigned byte = 0;
        const char *first = digits.data() + i, *last = digits.data() + std::min(i + 2, digits.size());
        if (std::from_chars(first, last, byte, 16).ptr != first + 2)
          error_at(at, "expected pairs of hexadecimal digits");
        bytes += static_cast<char>(byte);
      }
    } else {
      expect("[");
      for (uint64_t n = 0; !accept("]"); ++n) {
        if (n) expect(",");
        append_element(info.dtype, number(), at, bytes);
      }
      const size_t width = dtype_size(info.dtype);
      if (bytes.size() != count * width)
        error_at(at, str("expected ", count, " elements, got ", width ? bytes.size() / width : 0));
    }
    data.bytes = std::move(bytes);
    return data;
  }

  void append_element(DType dtype, const std::variant<int64_t, double>& value, size_t at, std::string& bytes) {
    if (is_floating(dtype)) {
      const double d = std::visit([](auto v) { return static_cast<double>(v); }, value);
      bytes += *TensorData::scalar(dtype, d).bytes;
      return;
    }
    const size_t width = dtype_size(dtype);
    const auto* i = std::get_if<int64_t>(&value);
    if (!i || width == 0) error_at(at, "an element does not fit " + std::string(dtype_name(dtype)));
    bytes.append(reinterpret_cast<const char*>(i), width);  // little-endian: the low bytes come first
  }

  // -- lines ---------------------------------------------------------------------------------------------------------
  void graph_text(Graph& graph, bool braces) {
    if (++depth_ > 50) error("subgraphs nested too deeply");
    if (!keyword("graph")) error("expected 'graph'");
    graph.set_name(name());
    expect("(");
    for (bool first = true; !accept(")"); first = false) {
      if (!first) expect(",");
      const std::string input = name();
      graph.add_input(input, accept(":") ? type() : TypeInfo{});
    }
    std::vector<std::string> outputs;
    std::vector<size_t> positions;
    if (accept("->")) {
      expect("(");
      while (!accept(")")) {
        if (!outputs.empty()) expect(",");
        skip();
        positions.push_back(pos_);
        outputs.push_back(name());
      }
    }
    if (braces) expect("{");
    std::vector<Pending> pending;
    while (braces ? !accept("}") : !at_end()) line(graph, pending);
    for (const Pending& p : pending)
      for (size_t i = 0; i < p.inputs.size(); ++i)
        if (!p.inputs[i].empty()) p.node->set_input(i, find(graph, p.inputs[i], p.positions[i]));
    for (size_t i = 0; i < outputs.size(); ++i) graph.add_output(find(graph, outputs[i], positions[i]));
    --depth_;
  }

  bool at_end() {
    skip();
    if (pos_ == text_.size()) return true;
    const size_t start = pos_;
    const bool function = keyword("function");
    pos_ = start;
    return function;
  }

  NodeArg* find(Graph& graph, const std::string& name, size_t at) {
    NodeArg* value = graph.find(name);
    if (!value) error_at(at, "no value is called '" + name + "'");
    return value;
  }

  void line(Graph& graph, std::vector<Pending>& pending) {
    if (keyword("opset")) {
      const std::string domain = string();
      graph.opsets()[domain] = integer();
    } else if (keyword("metadata")) {
      const std::string key = string();
      graph.metadata()[key] = string();
    } else if (keyword("const")) {
      expect("%");
      const std::string value = name();
      expect(":");
      graph.add_initializer(value, tensor("="));
    } else {
      node(graph, pending);
    }
  }

  void node(Graph& graph, std::vector<Pending>& pending) {
    std::vector<std::string> outputs;
    std::vector<TypeInfo> types;
    if (peek("%") || peek("_,") || peek("_ ")) {
      do {
        const bool present = accept("%");
        outputs.push_back(present ? name() : (expect("_"), std::string()));
        types.push_back(present && accept(":") ? type() : TypeInfo{});
      } while (accept(","));
      expect("=");
    }
    std::string domain, op = name();
    if (accept("::")) {
      domain = op;
      op = name();
    }
    Pending p{nullptr, {}, {}};
    expect("(");
    while (!accept(")")) {
      if (!p.inputs.empty()) expect(",");
      skip();
      p.positions.push_back(pos_);
      p.inputs.push_back(accept("%") ? name() : (expect("_"), std::string()));
    }
    Attributes attributes;
    if (accept("{")) {
      for (bool first = true; !accept("}"); first = false) {
        if (!first) expect(",");
        const std::string key = name();
        expect("=");
        attributes[key] = attribute();
      }
    }
    std::map<std::string, std::string> notes;
    if (accept("@{")) {
      for (bool first = true; !accept("}"); first = false) {
        if (!first) expect(",");
        const bool own = !peek("\"");  // words; metadata keys are strings
        const std::string key = (own ? "" : "\"") + name();
        expect("=");
        notes[key] = string();
      }
    }
    size_t prefix = 0;
    while (prefix < outputs.size() && !outputs[prefix].empty()) ++prefix;
    p.node = graph.add_node(domain, op, {}, {outputs.begin(), outputs.begin() + static_cast<ptrdiff_t>(prefix)},
                            std::move(attributes), nullptr, notes.count("name") ? notes.at("name") : "");
    for (size_t i = prefix; i < outputs.size(); ++i) {
      if (outputs[i].empty()) continue;
      if (graph.find(outputs[i])) error("the name '" + outputs[i] + "' is given to two values");
      graph.materialize_output(p.node, i, outputs[i]);
    }
    for (size_t i = 0; i < types.size(); ++i)
      if (p.node->output(i)) p.node->output(i)->set_type(std::move(types[i]));
    for (const auto& [key, value] : notes)
      if (key[0] == '"') p.node->metadata()[key.substr(1)] = value;
    if (notes.count("phase") && notes.at("phase") == "backward") p.node->set_phase(Phase::kBackward);
    if (notes.count("provider"))
      p.node->place(notes.at("provider"), notes.at(notes.count("device") ? "device" : "provider"));
    pending.push_back(std::move(p));
  }

  AttributeValue attribute() {
    if (peek("\"")) return string();
    if (keyword("tensor")) return tensor("");
    if (peek("graph") && !peek("graph=")) {
      auto body = std::make_shared<Graph>();
      graph_text(*body, true);
      return body;
    }
    if (accept("ints[]")) return std::vector<int64_t>{};
    if (accept("floats[]")) return std::vector<double>{};
    if (accept("strings[]")) return std::vector<std::string>{};
    if (accept("[")) return list();
    const auto value = number();
    if (const auto* i = std::get_if<int64_t>(&value)) return *i;
    return std::get<double>(value);
  }

  AttributeValue list() {
    if (accept("]")) return std::vector<int64_t>{};
    if (peek("\"")) {
      std::vector<std::string> strings{string()};
      while (!accept("]")) expect(","), strings.push_back(string());
      return strings;
    }
    std::vector<std::variant<int64_t, double>> values{number()};
    while (!accept("]")) expect(","), values.push_back(number());
    std::vector<int64_t> ints;
    std::vector<double> floats;
    for (const auto& v : values) {
      if (const auto* i = std::get_if<int64_t>(&v)) ints.push_back(*i);
      floats.push_back(std::visit([](auto x) { return static_cast<double>(x); }, v));
    }
    if (ints.size() == values.size()) return ints;
    return floats;
  }

  std::string_view text_;
  size_t pos_ = 0;
  int depth_ = 0;
};

}  // namespace

std::unique_ptr<Graph> parse_text(std::string_view text) { return Parser(text).run(); }

}  // namespace ortmodule
