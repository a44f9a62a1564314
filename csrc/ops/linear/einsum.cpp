// Einsum. The gradient of an operand is an Einsum again: the output's term and the other operands' terms, summed to
// the operand's own term. A letter that is in no other term (it was summed alone) comes with a vector of ones, and a
// repeated letter (a diagonal was taken) with an identity matrix that spreads it over two letters.
#include <algorithm>

#include "base/status.h"
#include "records/grad_context.h"
#include "records/infer_context.h"
#include "records/registry.h"

namespace ortmodule {
namespace {

struct Equation {
  std::vector<std::string> terms;
  std::string output;
};

Equation parse_equation(const Node& node) {
  std::string text = node.get_string("equation", "");
  std::erase(text, ' ');
  Equation e;
  const size_t arrow = text.find("->");
  std::string left = text.substr(0, arrow);
  for (size_t at; (at = left.find(',')) != std::string::npos; left = left.substr(at + 1))
    e.terms.push_back(left.substr(0, at));
  e.terms.push_back(left);
  if (arrow != std::string::npos) {
    e.output = text.substr(arrow + 2);
    return e;
  }
  // The implicit output: letters that appear once, in alphabetical order, behind the broadcast dimensions.
  std::string letters;
  bool ellipsis = false;
  for (const std::string& term : e.terms)
    for (char ch : term) (ch == '.' ? (ellipsis = true, void()) : letters.push_back(ch));
  std::sort(letters.begin(), letters.end());
  for (char ch : letters)
    if (std::count(letters.begin(), letters.end(), ch) == 1) e.output.push_back(ch);
  if (ellipsis) e.output = "..." + e.output;
  return e;
}

void infer_einsum(InferContext& c) {
  const Equation e = parse_equation(c.node());
  if (e.terms.size() != c.input_count())
    c.error(str("the equation has ", e.terms.size(), " terms for ", c.input_count(), " inputs"));
  std::map<char, Dim> dims;
  for (size_t i = 0; i < e.terms.size(); ++i) {
    const Shape* s = c.shape(i);
    if (!s || e.terms[i].find('.') != std::string::npos) return c.out(0, c.dtype(0), std::nullopt);
    if (s->size() != e.terms[i].size())
      c.error(str("input ", i, " has shape ", shape_text(*s), ", its term is '", e.terms[i], "'"));
    for (size_t d = 0; d < s->size(); ++d) {
      const auto [at, added] = dims.emplace(e.terms[i][d], (*s)[d]);
      if (!added && at->second.is_known() && at->second.value() == 1) at->second = (*s)[d];
    }
  }
  Shape out;
  for (char ch : e.output) {
    if (!dims.count(ch)) c.error(str("the output letter '", std::string(1, ch), "' is in no term"));
    out.push_back(dims.at(ch));
  }
  c.out(0, c.dtype(0), std::move(out));
}

// Ones of the sizes that the operand has at `axis`, `times` times.
NodeArg* ones(GradContext& c, NodeArg* operand, size_t axis, size_t times) {
  std::vector<NodeArg*> parts;
  const auto& shape = operand->type().shape;
  if (shape && (*shape)[axis].is_known()) {
    parts.assign(times, c.sizes({(*shape)[axis]}));
  } else {
    const auto at = static_cast<int64_t>(axis);
    parts.assign(times, c.emit("Slice", {c.sizes_of(operand), c.ints({at}), c.ints({at + 1})}));
  }
  NodeArg* sizes = times == 1 ? parts[0] : c.emit("Concat", parts, {{"axis", int64_t{0}}});
  return c.emit("Expand", {c.scalar(1, operand), sizes});
}

char unused_letter(const std::string& text) {
  for (char ch = 'a'; ch <= 'z'; ++ch)
    for (char letter : {ch, static_cast<char>(ch - 'a' + 'A')})
      if (text.find(letter) == std::string::npos) return letter;
  return '\0';
}

// Appends what operand `i` alone has to the gradient's equation; returns the operand's term without repetitions.
std::string own_letters(GradContext& c, size_t i, const Equation& e, std::string& text, std::vector<NodeArg*>& inputs) {
  const std::string& term = e.terms[i];
  const std::string elsewhere = text;
  std::string target;
  for (size_t k = 0; k < term.size(); ++k) {
    const char letter = term[k];
    const size_t first = term.find(letter);
    if (letter == '.') {
      ORTMODULE_CHECK(elsewhere.find('.') != std::string::npos, kUnsupported, "[Einsum] no gradient for the term '",
                      term, "': its '...' is in no other term (", c.node().describe(), ")");
      target += letter;
      continue;
    }
    ORTMODULE_CHECK(term.find('.') == std::string::npos || elsewhere.find(letter) != std::string::npos, kUnsupported,
                    "[Einsum] no gradient for the term '", term, "': beside '...' its letter '", std::string(1, letter),
                    "' is in no other term (", c.node().describe(), ")");
    if (first == k) {
      target += letter;
      if (elsewhere.find(letter) == std::string::npos) {
        text += str(",", std::string(1, letter));
        inputs.push_back(ones(c, c.I(i), k, 1));
      }
      continue;
    }
    const char fresh = unused_letter(text + term + target);
    ORTMODULE_CHECK(fresh && term.find('.') == std::string::npos, kUnsupported, "[Einsum] no gradient for the term '",
                    term, "' (", c.node().describe(), ")");
    text += str(",", std::string{letter, fresh});
    inputs.push_back(c.emit("EyeLike", {ones(c, c.I(i), k, 2)}));
    target += fresh;
  }
  return target;
}

void einsum_gradient(GradContext& c) {
  const Equation e = parse_equation(c.node());
  for (size_t i = 0; i < c.input_count(); ++i) {
    if (!c.needs(i)) continue;
    std::string text = e.output;
    std::vector<NodeArg*> inputs{c.GO(0)};
    for (size_t j = 0; j < e.terms.size(); ++j) {
      if (j == i) continue;
      text += "," + e.terms[j];
      inputs.push_back(c.I(j));
    }
    const std::string target = own_letters(c, i, e, text, inputs);
    NodeArg* grad = c.emit("Einsum", inputs, {{"equation", text + "->" + target}});
    c.GI(i, c.reduce_to(grad, c.I(i)));
  }
}

}  // namespace

ORTMODULE_OP("", Einsum, 12)
    .variadic_input("Inputs")
    .output("Output")
    .required_attr("equation", AttrKind::kString)
    .infer(infer_einsum)
    .grad({"Inputs"}, einsum_gradient);

}  // namespace ortmodule
