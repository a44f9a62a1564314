// Gradients by a second forward, for operators of many variants whose derivative nobody has written as one kernel.
//
// XGrad(dY..., X...) -> dX... computes the operator again under autograd and differentiates that (rerun_kernel.h). It
// costs one more forward and keeps nothing but the inputs. Operators on a model's hot path have kernels of their own.
#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include "records/grad_context.h"
#include "records/infer_context.h"
#include "records/registry.h"

namespace ortmodule {

// Emits `op` with the node's attributes: one slot per output of the public schema (absent where nothing flows in),
// then the node's inputs. Its outputs are the inputs' gradients.
inline void rerun_gradient(GradContext& c, const std::string& op) {
  const OpRecord& record = *c.node().record();
  size_t outputs = c.node().outputs().size();
  if (record.outputs().back().presence != Presence::kVariadic) outputs = std::min(outputs, record.first_saved());
  std::vector<NodeArg*> arguments;
  bool flows = false;
  for (size_t i = 0; i < outputs; ++i) {
    arguments.push_back(c.GO(i));
    flows = flows || c.GO(i);
  }
  std::vector<bool> wanted;
  bool any = false;
  for (size_t i = 0; i < c.input_count(); ++i) {
    arguments.push_back(c.I(i));
    wanted.push_back(c.needs(i));
    any = any || c.needs(i);
  }
  if (!flows || !any) return;
  Attributes attributes = c.node().attributes();
  attributes["forward_outputs"] = static_cast<int64_t>(outputs);
  const auto grads = c.emit_some(op, arguments, wanted, std::move(attributes));
  for (size_t i = 0; i < grads.size(); ++i) c.GI(i, grads[i]);
}

// as in `...("ai.ortmodule", LSTMGrad, 1).apply(rerun_record);`
inline void rerun_record(OpRecord& r) {
  r.variadic_input("arguments")
      .output("grads", Presence::kVariadic)
      .required_attr("forward_outputs", AttrKind::kInt)
      .infer([](InferContext& c) {
        const auto first = static_cast<size_t>(c.attr_int("forward_outputs", 1));
        for (size_t i = 0; first + i < c.input_count(); ++i)
          if (c.wants(i)) c.same_as(i, first + i);
      })
      .not_differentiable();
}

}  // namespace ortmodule
