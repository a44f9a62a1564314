// A dimension: an integer or a symbolic expression over named symbols ("batch", "2*seq").
//
// Arithmetic that leaves int64, or an expression of more than 1,000 terms, throws Error(kInvalidArgument).
// Expressions are kept as polynomials with integer coefficients over atoms; an atom is a symbol or an opaque
// function of expressions (floor division, modulo, max, min). Equal polynomials have one text, so that equality of
// dims is equality of texts and CSE, broadcasting and size algebra need no solver. Text is what sympy prints and
// reads ("s0*(s1 + 2)//4" comes from torch.export verbatim).
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "ortmodule/export.h"

namespace ortmodule {

// Receives a dim's expression from the leaves up; values are the visitor's own handles. See Dim::visit.
class DimVisitor {
 public:
  enum class Op { kAdd, kMul, kFloorDiv, kMod, kMax, kMin };
  virtual ~DimVisitor() = default;
  virtual size_t number(int64_t value) = 0;
  virtual size_t symbol(const std::string& name) = 0;
  virtual size_t apply(Op op, size_t a, size_t b) = 0;
};

// Symbol name -> value, bound from a run's input shapes.
using SymbolTable = std::unordered_map<std::string, int64_t>;

struct DimAtom;

class Dim {
 public:
  Dim() : value_(0) {}
  Dim(int64_t value) : value_(value) {}  // NOLINT: a dim is written as a number everywhere
  // Parses an expression; throws Error(kParse) with the text and the position.
  static Dim parse(std::string_view text);
  // A lone symbol. `name` must be an identifier.
  static Dim symbol(const std::string& name);

  bool is_known() const { return poly_ == nullptr; }
  int64_t value() const { return value_; }  // only when is_known()
  // The symbol's name when the expression is one lone symbol.
  std::optional<std::string> lone_symbol() const;
  ORTMODULE_API std::string text() const;

  // Value under a binding; throws Error(kInvalidArgument) naming the first unbound symbol or a division by zero.
  int64_t evaluate(const SymbolTable& symbols) const;
  void collect_symbols(std::vector<std::string>& names) const;
  // Hands the expression over as a sum of products; returns the handle of the whole.
  size_t visit(DimVisitor& visitor) const;

  friend Dim operator+(const Dim& a, const Dim& b);
  friend Dim operator-(const Dim& a, const Dim& b);
  friend Dim operator*(const Dim& a, const Dim& b);
  static Dim floor_div(const Dim& a, const Dim& b);  // Python's //
  static Dim mod(const Dim& a, const Dim& b);        // Python's %
  static Dim max(const Dim& a, const Dim& b);
  static Dim min(const Dim& a, const Dim& b);
  // a / b when b divides a as polynomials (term by term), nothing otherwise.
  static std::optional<Dim> exact_div(const Dim& a, const Dim& b);

  ORTMODULE_API friend bool operator==(const Dim& a, const Dim& b);
  friend bool operator!=(const Dim& a, const Dim& b) { return !(a == b); }

 private:
  // Monomial: atom text -> power. Polynomial: monomial -> coefficient. Both ordered, so the text is canonical.
  struct Poly;
  static Dim from_poly(Poly poly);
  static Poly as_poly(const Dim& d);
  static Dim function(const char* name, const Dim& a, const Dim& b);

  int64_t value_;
  std::shared_ptr<const Poly> poly_;  // null when the dim is a number
};

using Shape = std::vector<Dim>;

std::string shape_text(const Shape& shape);
// Product of the dims from `first` to `last` (excluded).
Dim product(const Shape& shape, size_t first, size_t last);

}  // namespace ortmodule
