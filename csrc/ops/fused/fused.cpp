// FusedKernel: a cluster of elementwise operators and reductions as one node (fused_program.h), made by the fusion pass
// after the gradient. Its body are the separate operators again: what an oracle computes.
#include <functional>

#include "base/status.h"
#include "records/body_formula.h"
#include "records/fused_program.h"
#include "records/infer_context.h"
#include "records/registry.h"

namespace ortmodule {
namespace {

// The iteration space: what the inputs broadcast to.
std::optional<Shape> space(const InferContext& c, const FusedProgram& program) {
  std::optional<Shape> out = Shape{};
  for (int i = 0; i < program.inputs && out; ++i) {
    if (program.is_state(i)) continue;
    out = c.shape(i) ? c.broadcast(&*out, c.shape(i)) : std::nullopt;
  }
  return out;
}

void infer_fused(InferContext& c) {
  const FusedProgram program = read_program(c.node());
  for (size_t i = 0; i < c.node().inputs().size(); ++i)
    if (!c.node().input(i)) c.error(str("input ", i, " is not given"));
  const std::optional<Shape> full = space(c, program);
  for (size_t i = 0; i < program.outputs.size(); ++i) {
    const FusedProgram::Output& out = program.outputs[i];
    std::optional<Shape> shape = full;
    if (shape && out.form != OutputForm::kFull) {
      if (shape->empty()) c.error("a reduction of a scalar");
      const Dim last = shape->back();
      if (out.form == OutputForm::kRow) shape->back() = 1;
      if (out.form == OutputForm::kRowDropped) shape->pop_back();
      if (out.form == OutputForm::kColumn) shape = Shape{last};
      if (out.form == OutputForm::kColumnKept) {
        std::fill(shape->begin(), shape->end(), Dim(1));
        shape->back() = last;
      }
    }
    c.out(i, out.dtype, std::move(shape));
  }
}

// Emits one instruction in plain operators; booleans are floats in a program.
class Expansion {
 public:
  explicit Expansion(BodyContext& c) : c_(c), f_(c), program_(read_program(c.node())) {}

  void run() {
    for (int i = 0; i < program_.inputs; ++i)
      values_.push_back(program_.is_state(i) ? c_.in(i) : f_.cast(c_.in(i), DType::kFloat));
    for (const Instruction& i : program_.code) values_.push_back(expand(i));
    for (size_t k = 0; k < program_.outputs.size(); ++k)
      if (c_.wants(k)) c_.out(k, stored(program_.outputs[k]));
  }

 private:
  NodeArg* is_true(NodeArg* x) { return f_.cast(x, DType::kBool); }
  NodeArg* compared(const char* op, NodeArg* x, NodeArg* y) { return f_.cast(c_.emit(op, {x, y}), DType::kFloat); }
  NodeArg* plain(const char* op, const std::vector<NodeArg*>& in) { return c_.emit(op, in); }

  // sqrt(2 / pi) (x + 0.044715 x^3)
  NodeArg* gelu_argument(NodeArg* x) {
    return f_.mul(f_.add(x, f_.mul(f_.mul(f_.mul(x, x), x), 0.044715)), 0.7978845608028654);
  }
  NodeArg* gelu_grad(NodeArg* dy, NodeArg* x) {
    NodeArg* cdf = f_.mul(f_.add(f_.unary("Erf", f_.mul(x, 0.7071067811865476)), 1), 0.5);
    NodeArg* pdf = f_.mul(f_.unary("Exp", f_.mul(f_.mul(x, x), -0.5)), 0.3989422804014327);
    return f_.mul(dy, f_.add(cdf, f_.mul(x, pdf)));
  }
  NodeArg* gelu_tanh_grad(NodeArg* dy, NodeArg* x) {
    NodeArg* t = f_.unary("Tanh", gelu_argument(x));
    NodeArg* slope = f_.mul(f_.add(f_.mul(f_.mul(x, x), 3 * 0.044715), 1), 0.7978845608028654);
    NodeArg* tail = f_.mul(f_.mul(x, f_.from(1, f_.mul(t, t))), slope);
    return f_.mul(dy, f_.mul(f_.add(f_.add(t, 1), tail), 0.5));
  }
  NodeArg* silu_grad(NodeArg* dy, NodeArg* x) {
    NodeArg* s = f_.sigmoid(x);
    return f_.mul(dy, f_.mul(s, f_.add(f_.mul(x, f_.from(1, s)), 1)));
  }

  NodeArg* expand(const Instruction& i) {
    const auto at = [&](int a) { return i.arguments[a] < 0 ? nullptr : values_[i.arguments[a]]; };
    NodeArg *x = at(0), *y = at(1), *z = at(2);
    switch (i.op) {
      case Opcode::kNumber:
        return c_.node().graph().constant(TensorData::scalar(DType::kFloat, i.number));
      case Opcode::kAdd:
        return f_.add(x, y);
      case Opcode::kSub:
        return f_.sub(x, y);
      case Opcode::kMul:
        return f_.mul(x, y);
      case Opcode::kDiv:
        return f_.div(x, y);
      case Opcode::kMin:
        return plain("Min", {x, y});
      case Opcode::kMax:
        return plain("Max", {x, y});
      case Opcode::kLess:
        return compared("Less", x, y);
      case Opcode::kLessEqual:
        return compared("LessOrEqual", x, y);
      case Opcode::kGreater:
        return compared("Greater", x, y);
      case Opcode::kGreaterEqual:
        return compared("GreaterOrEqual", x, y);
      case Opcode::kEqual:
        return compared("Equal", x, y);
      case Opcode::kAnd:
        return compared("And", is_true(x), is_true(y));
      case Opcode::kOr:
        return compared("Or", is_true(x), is_true(y));
      case Opcode::kXor:
        return compared("Xor", is_true(x), is_true(y));
      case Opcode::kWhere:
        return f_.where(is_true(x), y, z);
      case Opcode::kNot:
        return f_.from(1, x);
      case Opcode::kNeg:
        return f_.unary("Neg", x);
      case Opcode::kAbs:
        return f_.unary("Abs", x);
      case Opcode::kSqrt:
        return f_.unary("Sqrt", x);
      case Opcode::kRsqrt:
        return f_.unary("Reciprocal", f_.unary("Sqrt", x));
      case Opcode::kReciprocal:
        return f_.unary("Reciprocal", x);
      case Opcode::kExp:
        return f_.unary("Exp", x);
      case Opcode::kLog:
        return f_.unary("Log", x);
      case Opcode::kTanh:
        return f_.unary("Tanh", x);
      case Opcode::kErf:
        return f_.unary("Erf", x);
      case Opcode::kSigmoid:
        return f_.sigmoid(x);
      case Opcode::kRelu:
        return f_.unary("Relu", x);
      case Opcode::kGelu:
        return f_.unary("Gelu", x);
      case Opcode::kGeluTanh:
        return c_.emit("Gelu", {x}, {{"approximate", std::string("tanh")}});
      case Opcode::kSilu:
        return f_.mul(x, f_.sigmoid(x));
      case Opcode::kGeluGrad:
        return gelu_grad(x, y);
      case Opcode::kGeluTanhGrad:
        return gelu_tanh_grad(x, y);
      case Opcode::kSiluGrad:
        return silu_grad(x, y);
      case Opcode::kTanhGrad:
        return f_.mul(x, f_.from(1, f_.mul(y, y)));
      case Opcode::kSigmoidGrad:
        return f_.mul(x, f_.mul(y, f_.from(1, y)));
      case Opcode::kRoundBFloat16:
        return f_.cast(f_.cast(x, DType::kBFloat16), DType::kFloat);
      case Opcode::kRoundHalf:
        return f_.cast(f_.cast(x, DType::kFloat16), DType::kFloat);
      case Opcode::kRotateHalf:
        return c_.emit("ai.ortmodule::RotateHalf", {x});
      case Opcode::kPhiloxDropout:
        return c_.emit("ai.ortmodule::PhiloxDropout",
                       {x, c_.node().graph().constant(TensorData::scalar(DType::kDouble, i.number)), y},
                       {{"stream", i.stream}});
      case Opcode::kRowSum:
        return f_.sum(x, {-1});
      case Opcode::kRowMean:
        return f_.mean(x, {-1});
      case Opcode::kCount:
        break;
    }
    fail(ErrorCode::kInternal, "an opcode without a body");
  }

  NodeArg* stored(const FusedProgram::Output& out) {
    NodeArg* value = values_[out.value];
    const int64_t rank = f_.rank(value);
    if (out.form == OutputForm::kRowDropped) value = f_.squeeze(value, {rank - 1});
    if (out.form == OutputForm::kColumn || out.form == OutputForm::kColumnKept) {
      std::vector<int64_t> axes;
      for (int64_t axis = 0; axis + 1 < rank; ++axis) axes.push_back(axis);
      value = f_.sum(value, axes, out.form == OutputForm::kColumnKept);
    }
    value = f_.cast(value, out.dtype);
    return value->producer() ? value : c_.emit("Identity", {value});
  }

  BodyContext& c_;
  BodyFormula f_;
  FusedProgram program_;
  std::vector<NodeArg*> values_;
};

}  // namespace

ORTMODULE_OP("ai.ortmodule", FusedKernel, 1)
    .variadic_input("inputs")
    .output("outputs", Presence::kVariadic)
    .required_attr("program", AttrKind::kStrings)
    .required_attr("outputs", AttrKind::kStrings)
    .attr("rows", AttrKind::kInts)
    .infer(infer_fused)
    .traits(kCheap)
    .not_differentiable()
    .body([](BodyContext& c) { Expansion(c).run(); });

}  // namespace ortmodule
