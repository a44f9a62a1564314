// The gradient of a scatter with a reduction, for ScatterElements and ScatterND: both compose it of themselves and of
// the gather that reads what they write.
//
// The formulas are torch's: equal extremes share dy evenly. A zero among the factors of a product is taken as the only
// factor at its position.
#pragma once

#include <string>

#include "base/status.h"
#include "records/grad_context.h"

namespace ortmodule {

// Inputs of the node: data, indices, updates.
inline void scatter_gradient(GradContext& c, const std::string& gather, const Attributes& attributes) {
  const std::string scatter = c.node().op(), reduction = c.node().get_string("reduction", "none");
  NodeArg *x = c.I(0), *at = c.I(1), *u = c.I(2), *dy = c.GO(0);
  const auto read = [&](NodeArg* value) { return c.emit(gather, {value, at}, attributes); };
  const auto write = [&](NodeArg* into, NodeArg* values, const std::string& how) {
    Attributes with = attributes;
    with["reduction"] = how;
    return c.emit(scatter, {into, at, values}, std::move(with));
  };
  if (reduction == "none") {
    if (c.needs(0)) c.GI(0, write(dy, c.zeros_like(u), "none"));
    if (c.needs(2)) c.GI(2, read(dy));
  } else if (reduction == "add") {
    c.GI(0, dy);
    if (c.needs(2)) c.GI(2, read(dy));
  } else if (reduction == "mul") {
    if (c.needs(0)) c.GI(0, write(dy, u, "mul"));
    if (!c.needs(2)) return;
    NodeArg* others = c.emit("Div", {read(c.emit("Mul", {dy, c.O(0)})), u});
    NodeArg* zero = c.emit("Equal", {u, c.scalar(0, u)});
    c.GI(2, c.emit("Where", {zero, read(c.emit("Mul", {dy, x})), others}));
  } else {
    const DType type = dy->type().dtype;
    NodeArg* kept = c.cast(c.emit("Equal", {x, c.O(0)}), type);
    NodeArg* taken = c.cast(c.emit("Equal", {u, read(c.O(0))}), type);
    // Where nothing is written, the data itself is the one extreme.
    NodeArg* share = c.emit("Div", {dy, write(kept, taken, "add")});
    if (c.needs(0)) c.GI(0, c.emit("Mul", {kept, share}));
    if (c.needs(2)) c.GI(2, c.emit("Mul", {taken, read(share)}));
  }
}

}  // namespace ortmodule
