// Einsum. The gradient of an operand is an Einsum again: the output's term and the other operands' terms, summed to
// the operand's own term. That is exact when no term repeats a letter and every letter of the operand appears in
// another term; other equations (traces, sums over a private letter) are refused with a message.
#include <algorithm>

#include "base/status.h"
#include "ops/grad_context.h"
#include "ops/infer_context.h"
#include "ops/registry.h"

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

void einsum_gradient(GradContext& c) {
  const Equation e = parse_equation(c.node());
  for (size_t i = 0; i < c.input_count(); ++i) {
    if (!c.needs(i)) continue;
    std::string letters = e.output, text = e.output;
    std::vector<NodeArg*> inputs{c.GO(0)};
    for (size_t j = 0; j < e.terms.size(); ++j) {
      if (j == i) continue;
      letters += e.terms[j];
      text += "," + e.terms[j];
      inputs.push_back(c.I(j));
    }
    for (char ch : e.terms[i])
      ORTMODULE_CHECK(ch != '.' && std::count(e.terms[i].begin(), e.terms[i].end(), ch) == 1 &&
                          letters.find(ch) != std::string::npos,
                      kUnsupported, "[Einsum] no gradient for the term '", e.terms[i], "' of '",
                      c.node().get_string("equation", ""), "' (", c.node().describe(),
                      "); write it as matrix products and sums");
    NodeArg* grad = c.emit("Einsum", inputs, {{"equation", text + "->" + e.terms[i]}});
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
