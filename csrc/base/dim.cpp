#include "base/dim.h"

#include <algorithm>
#include <cctype>

#include "base/status.h"

namespace ortmodule {

// An atom's identity is its text; functions keep their operands so that they can be evaluated.
struct DimAtom {
  enum class Kind { kSymbol, kFloorDiv, kMod, kMax, kMin } kind = Kind::kSymbol;
  std::string text;
  Dim a, b;
};

using AtomPtr = std::shared_ptr<const DimAtom>;

namespace {

struct AtomLess {
  bool operator()(const AtomPtr& x, const AtomPtr& y) const { return x->text < y->text; }
};
using Monomial = std::map<AtomPtr, int, AtomLess>;

struct MonomialLess {
  bool operator()(const Monomial& x, const Monomial& y) const {
    return std::lexicographical_compare(x.begin(), x.end(), y.begin(), y.end(), [](const auto& p, const auto& q) {
      return p.first->text != q.first->text ? p.first->text < q.first->text : p.second < q.second;
    });
  }
};

constexpr size_t kMaxTerms = 1000;  // a polynomial's power grows fast; a real size expression has a handful

int64_t checked_add(int64_t a, int64_t b) {
  int64_t sum = 0;
  ORTMODULE_CHECK_ARG(!__builtin_add_overflow(a, b, &sum), "a dimension overflows: ", a, " + ", b);
  return sum;
}

int64_t checked_mul(int64_t a, int64_t b) {
  int64_t product = 0;
  ORTMODULE_CHECK_ARG(!__builtin_mul_overflow(a, b, &product), "a dimension overflows: ", a, " * ", b);
  return product;
}

int64_t floor_div_int(int64_t a, int64_t b) {
  ORTMODULE_CHECK_ARG(b != 0, "division by zero in a dimension");
  if (b == -1) return checked_mul(a, -1);
  const int64_t q = a / b;
  return (a % b != 0 && ((a < 0) != (b < 0))) ? q - 1 : q;
}

int64_t mod_int(int64_t a, int64_t b) {
  ORTMODULE_CHECK_ARG(b != 0, "modulo by zero in a dimension");
  if (b == -1) return 0;
  const int64_t r = a % b;
  return (r != 0 && ((r < 0) != (b < 0))) ? r + b : r;
}

}  // namespace

struct Dim::Poly {
  std::map<Monomial, int64_t, MonomialLess> terms;

  void add(const Monomial& m, int64_t c) {
    int64_t& slot = terms[m];
    slot = checked_add(slot, c);
    if (slot == 0) terms.erase(m);
    ORTMODULE_CHECK_ARG(terms.size() <= kMaxTerms, "a size expression of more than ", kMaxTerms, " terms");
  }
};

Dim Dim::from_poly(Poly poly) {
  if (poly.terms.empty()) return Dim(0);
  if (poly.terms.size() == 1 && poly.terms.begin()->first.empty()) return Dim(poly.terms.begin()->second);
  Dim d;
  d.poly_ = std::make_shared<const Poly>(std::move(poly));
  return d;
}

Dim::Poly Dim::as_poly(const Dim& d) {
  if (d.poly_) return *d.poly_;
  Poly p;
  if (d.value_ != 0) p.terms[Monomial{}] = d.value_;
  return p;
}

Dim Dim::symbol(const std::string& name) {
  auto atom = std::make_shared<DimAtom>();
  atom->text = name;
  Poly p;
  p.terms[Monomial{{atom, 1}}] = 1;
  return from_poly(std::move(p));
}

std::optional<std::string> Dim::lone_symbol() const {
  if (!poly_ || poly_->terms.size() != 1) return std::nullopt;
  const auto& [monomial, coefficient] = *poly_->terms.begin();
  if (coefficient != 1 || monomial.size() != 1 || monomial.begin()->second != 1) return std::nullopt;
  const DimAtom& atom = *monomial.begin()->first;
  if (atom.kind != DimAtom::Kind::kSymbol) return std::nullopt;
  return atom.text;
}

std::string Dim::text() const {
  if (!poly_) return std::to_string(value_);
  std::string out;
  for (const auto& [monomial, coefficient] : poly_->terms) {
    const bool negative = coefficient < 0;
    const uint64_t magnitude = negative ? 0 - static_cast<uint64_t>(coefficient) : static_cast<uint64_t>(coefficient);
    if (out.empty())
      out = negative ? "-" : "";
    else
      out += negative ? " - " : " + ";
    std::string factors;
    if (magnitude != 1 || monomial.empty()) factors = std::to_string(magnitude);
    for (const auto& [atom, power] : monomial) {
      if (!factors.empty()) factors += "*";
      factors += atom->text;
      if (power != 1) factors += "**" + std::to_string(power);
    }
    out += factors;
  }
  return out;
}

int64_t Dim::evaluate(const SymbolTable& symbols) const {
  if (!poly_) return value_;
  int64_t total = 0;
  for (const auto& [monomial, coefficient] : poly_->terms) {
    int64_t term = coefficient;
    for (const auto& [atom, power] : monomial) {
      int64_t v = 0;
      if (atom->kind == DimAtom::Kind::kSymbol) {
        auto it = symbols.find(atom->text);
        ORTMODULE_CHECK_ARG(it != symbols.end(), "the size '", atom->text, "' is not bound by any input's shape");
        v = it->second;
      } else {
        const int64_t a = atom->a.evaluate(symbols), b = atom->b.evaluate(symbols);
        switch (atom->kind) {
          case DimAtom::Kind::kFloorDiv:
            v = floor_div_int(a, b);
            break;
          case DimAtom::Kind::kMod:
            v = mod_int(a, b);
            break;
          case DimAtom::Kind::kMax:
            v = std::max(a, b);
            break;
          default:
            v = std::min(a, b);
            break;
        }
      }
      for (int i = 0; i < power; ++i) term = checked_mul(term, v);
    }
    total = checked_add(total, term);
  }
  return total;
}

void Dim::collect_symbols(std::vector<std::string>& names) const {
  if (!poly_) return;
  for (const auto& [monomial, coefficient] : poly_->terms) {
    for (const auto& [atom, power] : monomial) {
      if (atom->kind == DimAtom::Kind::kSymbol) {
        if (std::find(names.begin(), names.end(), atom->text) == names.end()) names.push_back(atom->text);
      } else {
        atom->a.collect_symbols(names);
        atom->b.collect_symbols(names);
      }
    }
  }
}

size_t Dim::visit(DimVisitor& visitor) const {
  using Op = DimVisitor::Op;
  if (!poly_) return visitor.number(value_);
  std::optional<size_t> total;
  for (const auto& [monomial, coefficient] : poly_->terms) {
    std::optional<size_t> term;
    if (coefficient != 1 || monomial.empty()) term = visitor.number(coefficient);
    for (const auto& [atom, power] : monomial) {
      size_t factor = 0;
      if (atom->kind == DimAtom::Kind::kSymbol) {
        factor = visitor.symbol(atom->text);
      } else {
        const size_t a = atom->a.visit(visitor), b = atom->b.visit(visitor);
        const Op op = atom->kind == DimAtom::Kind::kFloorDiv ? Op::kFloorDiv
                      : atom->kind == DimAtom::Kind::kMod    ? Op::kMod
                      : atom->kind == DimAtom::Kind::kMax    ? Op::kMax
                                                             : Op::kMin;
        factor = visitor.apply(op, a, b);
      }
      for (int i = 0; i < power; ++i) term = term ? visitor.apply(Op::kMul, *term, factor) : factor;
    }
    total = total ? visitor.apply(Op::kAdd, *total, *term) : *term;
  }
  return *total;
}

Dim operator+(const Dim& a, const Dim& b) {
  if (a.is_known() && b.is_known()) return Dim(checked_add(a.value_, b.value_));
  Dim::Poly p = Dim::as_poly(a);
  const Dim::Poly right = Dim::as_poly(b);
  for (const auto& [m, c] : right.terms) p.add(m, c);
  return Dim::from_poly(std::move(p));
}

Dim operator-(const Dim& a, const Dim& b) { return a + Dim(-1) * b; }

Dim operator*(const Dim& a, const Dim& b) {
  if (a.is_known() && b.is_known()) return Dim(checked_mul(a.value_, b.value_));
  const Dim::Poly left = Dim::as_poly(a), right = Dim::as_poly(b);
  Dim::Poly p;
  for (const auto& [m, c] : left.terms) {
    for (const auto& [n, d] : right.terms) {
      Monomial mn = m;
      for (const auto& [atom, power] : n) mn[atom] += power;
      p.add(mn, checked_mul(c, d));
    }
  }
  return Dim::from_poly(std::move(p));
}

Dim Dim::function(const char* name, const Dim& a, const Dim& b) {
  auto atom = std::make_shared<DimAtom>();
  const std::string which = name;
  atom->a = a;
  atom->b = b;
  if (which == "//") {
    atom->kind = DimAtom::Kind::kFloorDiv;
    atom->text = "((" + a.text() + ")//(" + b.text() + "))";
  } else if (which == "%") {
    atom->kind = DimAtom::Kind::kMod;
    atom->text = "Mod(" + a.text() + ", " + b.text() + ")";
  } else {
    atom->kind = which == "Max" ? DimAtom::Kind::kMax : DimAtom::Kind::kMin;
    std::string x = a.text(), y = b.text();
    if (y < x) std::swap(x, y);
    atom->text = which + "(" + x + ", " + y + ")";
  }
  Poly p;
  p.terms[Monomial{{atom, 1}}] = 1;
  return from_poly(std::move(p));
}

Dim Dim::floor_div(const Dim& a, const Dim& b) {
  if (a.is_known() && b.is_known()) return Dim(floor_div_int(a.value_, b.value_));
  if (b.is_known() && b.value_ == 1) return a;
  if (auto exact = exact_div(a, b)) return *exact;
  return function("//", a, b);
}

Dim Dim::mod(const Dim& a, const Dim& b) {
  if (a.is_known() && b.is_known()) return Dim(mod_int(a.value_, b.value_));
  if (exact_div(a, b)) return Dim(0);
  return function("%", a, b);
}

Dim Dim::max(const Dim& a, const Dim& b) {
  if (a == b) return a;
  if (a.is_known() && b.is_known()) return Dim(std::max(a.value_, b.value_));
  return function("Max", a, b);
}

Dim Dim::min(const Dim& a, const Dim& b) {
  if (a == b) return a;
  if (a.is_known() && b.is_known()) return Dim(std::min(a.value_, b.value_));
  return function("Min", a, b);
}

std::optional<Dim> Dim::exact_div(const Dim& a, const Dim& b) {
  if (a == b && !(b.is_known() && b.value_ == 0)) return Dim(1);
  const Poly divisor = as_poly(b);
  if (divisor.terms.size() != 1) return std::nullopt;
  const auto& [m, c] = *divisor.terms.begin();
  Poly quotient;
  const Poly dividend = as_poly(a);
  for (const auto& [n, d] : dividend.terms) {
    if (c == 0 || (c == -1 && d == INT64_MIN) || d % c != 0) return std::nullopt;
    Monomial rest = n;
    for (const auto& [atom, power] : m) {
      auto it = rest.find(atom);
      if (it == rest.end() || it->second < power) return std::nullopt;
      if ((it->second -= power) == 0) rest.erase(it);
    }
    quotient.add(rest, d / c);
  }
  return from_poly(std::move(quotient));
}

bool operator==(const Dim& a, const Dim& b) {
  if (a.is_known() || b.is_known()) return a.is_known() && b.is_known() && a.value_ == b.value_;
  return a.poly_ == b.poly_ || a.text() == b.text();
}

namespace {

// Recursive descent over sympy's printed form.
class DimParser {
 public:
  explicit DimParser(std::string_view text) : text_(text) {}

  Dim run() {
    Dim d = sum();
    skip();
    if (pos_ != text_.size()) error("unexpected character");
    return d;
  }

 private:
  [[noreturn]] void error(const char* what) {
    fail(ErrorCode::kParse, "size expression '", text_, "': ", what, " at position ", pos_);
  }
  void skip() {
    while (pos_ < text_.size() && std::isspace(static_cast<unsigned char>(text_[pos_]))) ++pos_;
  }
  bool accept(std::string_view token) {
    skip();
    if (text_.substr(pos_, token.size()) != token) return false;
    pos_ += token.size();
    return true;
  }
  void expect(std::string_view token) {
    if (!accept(token)) error("missing separator or parenthesis");
  }

  Dim sum() {
    Dim d = term();
    while (true) {
      if (accept("+"))
        d = d + term();
      else if (accept("-"))
        d = d - term();
      else
        return d;
    }
  }

  Dim term() {
    Dim d = unary();
    while (true) {
      skip();
      if (text_.substr(pos_, 2) == "**") error("misplaced power");
      if (accept("//"))
        d = Dim::floor_div(d, unary());
      else if (accept("*"))
        d = d * unary();
      else if (accept("%"))
        d = Dim::mod(d, unary());
      else
        return d;
    }
  }

  Dim unary() {
    if (++depth_ > 200) error("too deeply nested");
    Dim d = accept("-") ? Dim(-1) * unary() : power();
    --depth_;
    return d;
  }

  Dim power() {
    Dim base = primary();
    skip();
    if (text_.substr(pos_, 2) != "**") return base;
    pos_ += 2;
    const Dim exponent = primary();
    if (!exponent.is_known() || exponent.value() < 0 || exponent.value() > 16) error("unsupported power");
    Dim d(1);
    for (int64_t i = 0; i < exponent.value(); ++i) d = d * base;
    return d;
  }

  Dim primary() {
    skip();
    if (pos_ == text_.size()) error("unexpected end");
    if (accept("(")) {
      Dim d = sum();
      expect(")");
      return d;
    }
    const char c = text_[pos_];
    if (std::isdigit(static_cast<unsigned char>(c))) {
      int64_t v = 0;
      while (pos_ < text_.size() && std::isdigit(static_cast<unsigned char>(text_[pos_]))) {
        const int64_t digit = text_[pos_] - '0';
        if (v > (INT64_MAX - digit) / 10) error("number too large");
        v = v * 10 + digit;
        ++pos_;
      }
      return Dim(v);
    }
    if (!std::isalpha(static_cast<unsigned char>(c)) && c != '_') error("unexpected character");
    const size_t start = pos_;
    while (pos_ < text_.size() &&
           (std::isalnum(static_cast<unsigned char>(text_[pos_])) || text_[pos_] == '_' || text_[pos_] == '.'))
      ++pos_;
    const std::string name(text_.substr(start, pos_ - start));
    if (!accept("(")) return Dim::symbol(name);
    if (name == "Max" || name == "Min") {
      Dim d = sum();
      while (accept(",")) d = name == "Max" ? Dim::max(d, sum()) : Dim::min(d, sum());
      expect(")");
      return d;
    }
    const Dim a = sum();
    if (name == "FloorDiv" || name == "Mod" || name == "PythonMod") {
      expect(",");
      const Dim b = sum();
      expect(")");
      return name == "FloorDiv" ? Dim::floor_div(a, b) : Dim::mod(a, b);
    }
    error("unknown function");
  }

  std::string_view text_;
  size_t pos_ = 0;
  int depth_ = 0;
};

}  // namespace

Dim Dim::parse(std::string_view text) { return DimParser(text).run(); }

std::string shape_text(const Shape& shape) {
  std::string out = "[";
  for (size_t i = 0; i < shape.size(); ++i) out += (i ? ", " : "") + shape[i].text();
  return out + "]";
}

Dim product(const Shape& shape, size_t first, size_t last) {
  Dim d(1);
  for (size_t i = first; i < last; ++i) d = d * shape[i];
  return d;
}

}  // namespace ortmodule
