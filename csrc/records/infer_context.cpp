#include "records/infer_context.h"

#include <functional>

#include "base/status.h"

namespace ortmodule {

DType InferContext::dtype(size_t i) const { return has(i) ? node_.input(i)->type().dtype : DType::kUndefined; }

const Shape* InferContext::shape(size_t i) const {
  return has(i) && node_.input(i)->type().shape ? &*node_.input(i)->type().shape : nullptr;
}

const Shape* InferContext::shape_of_rank(size_t i, size_t rank) const {
  const Shape* s = shape(i);
  if (s && s->size() != rank) error(str("input ", i, " should have ", rank, " dimensions, got ", shape_text(*s)));
  return s;
}

const TensorData* InferContext::constant(size_t i) const { return has(i) ? node_.input(i)->constant() : nullptr; }

std::optional<std::vector<Dim>> InferContext::dims_value(size_t i) const {
  if (!has(i)) return std::nullopt;
  if (const TensorData* data = constant(i)) {
    if (data->dims.size() > 1) return std::nullopt;
    std::vector<Dim> out;
    for (int64_t v : data->to_ints()) out.emplace_back(v);
    return out;
  }
  return node_.input(i)->known_dims();
}

std::optional<std::vector<int64_t>> InferContext::ints_value(size_t i) const {
  auto dims = dims_value(i);
  if (!dims) return std::nullopt;
  std::vector<int64_t> out;
  for (const Dim& d : *dims) {
    if (!d.is_known()) return std::nullopt;
    out.push_back(d.value());
  }
  return out;
}

void InferContext::out(size_t i, DType dtype, std::optional<Shape> shape) {
  if (NodeArg* value = node_.output(i)) value->set_type({dtype, std::move(shape)});
}

void InferContext::same_as(size_t output, size_t input) {
  if (NodeArg* value = node_.output(output)) value->set_type(node_.input(input)->type());
}

void InferContext::known(size_t i, std::vector<Dim> elements) {
  if (NodeArg* value = node_.output(i)) value->set_known_dims(std::move(elements));
}

Dim InferContext::fresh_dim() {
  // Unique per output slot of a node: stable over repeated inference, so that resolve() reaches a fixed point.
  return Dim::symbol("u_" + std::to_string(node_.id()) + "_0");
}

Shape InferContext::fresh_shape(size_t rank) {
  constexpr size_t kMost = 4096;  // a model may declare a list of sizes of any length
  if (rank > kMost) error(str("a tensor of ", rank, " dimensions"));
  Shape s;
  for (size_t i = 0; i < rank; ++i)
    s.push_back(Dim::symbol("u_" + std::to_string(node_.id()) + "_" + std::to_string(i)));
  return s;
}

std::optional<Shape> InferContext::broadcast(const Shape* a, const Shape* b) const {
  if (!a || !b) return std::nullopt;
  const size_t rank = std::max(a->size(), b->size());
  Shape out(rank);
  for (size_t i = 0; i < rank; ++i) {
    const Dim x = i < rank - a->size() ? Dim(1) : (*a)[i - (rank - a->size())];
    const Dim y = i < rank - b->size() ? Dim(1) : (*b)[i - (rank - b->size())];
    const bool x_one = x.is_known() && x.value() == 1, y_one = y.is_known() && y.value() == 1;
    if (x_one || x == y)
      out[i] = y;
    else if (y_one)
      out[i] = x;
    else if (x.is_known() && y.is_known())
      error(str("shapes ", shape_text(*a), " and ", shape_text(*b), " do not broadcast"));
    else if (x.is_known() || y.is_known())
      out[i] = x.is_known() ? x : y;  // a symbol beside a number > 1 must be that number or 1: the number either way
    else  // either may be 1 at some sizes; the same name for the same two at every inference
      out[i] = Dim::symbol(str("u_", node_.id(), "_", std::hash<std::string>()(str(x.text(), " | ", y.text()))));
  }
  return out;
}

size_t InferContext::axis(int64_t axis, size_t rank) const {
  const auto r = static_cast<int64_t>(rank);
  if (axis < -r || axis >= r) error(str("axis ", axis, " is outside [", -r, ", ", r, ")"));
  return static_cast<size_t>(axis < 0 ? axis + r : axis);
}

void InferContext::error(const std::string& message) const {
  fail(ErrorCode::kInvalidGraph, "[", node_.op(), "] ", message, " (", node_.describe(), ")");
}

void infer_same(InferContext& c) { c.same_as(0, 0); }

namespace {

void check_same_dtype(InferContext& c) {
  if (c.has(1) && c.dtype(0) != c.dtype(1))
    c.error(str("inputs should have one type, got ", dtype_name(c.dtype(0)), " and ", dtype_name(c.dtype(1))));
}

}  // namespace

void infer_broadcast(InferContext& c) {
  check_same_dtype(c);
  c.out(0, c.dtype(0), c.broadcast(c.shape(0), c.shape(1)));
}

void infer_compare(InferContext& c) {
  check_same_dtype(c);
  c.out(0, DType::kBool, c.broadcast(c.shape(0), c.shape(1)));
}

}  // namespace ortmodule
