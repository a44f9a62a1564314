// ATen kernels of Where, Identity, Copy, StopGradient, WithValue and Expect.
#include <ATen/ops/clone.h>
#include <ATen/ops/where.h>

#include <string>

#include "base/status.h"
#include "kernels/kernel_context.h"
#include "records/kernel_registry.h"

namespace ortmodule {
namespace {

ORTMODULE_KERNEL("", Where, "aten", [](const Node&) -> Kernel {
  return [](KernelContext& c) { c.out(0, at::where(c.in(0), c.in(1), c.in(2))); };
});

Kernel pass_on(const Node&) {
  return [](KernelContext& c) { c.out(0, c.in(0)); };
}

ORTMODULE_KERNEL("", Identity, "aten", pass_on);
ORTMODULE_KERNEL("ai.ortmodule", Copy, "aten", [](const Node&) -> Kernel {
  return [](KernelContext& c) { c.out(0, c.may_overwrite(0) ? c.in(0) : at::clone(c.in(0))); };
});
ORTMODULE_KERNEL("ai.ortmodule", StopGradient, "aten", pass_on);
ORTMODULE_KERNEL("ai.ortmodule", WithValue, "aten", pass_on);

ORTMODULE_KERNEL("ai.ortmodule", Expect, "aten", [](const Node& node) -> Kernel {
  const bool expected = node.get_int("expected", 1) != 0;
  const std::string question = node.get_string("question", "a question");
  return [expected, question](KernelContext& c) {
    ORTMODULE_CHECK((c.double_value(0) != 0) == expected, kRuntime, "[Expect] the graph holds where ", question,
                    expected ? " is true" : " is false", ", which it is not in this call");
    c.out(0, c.in(0));
  };
});

}  // namespace
}  // namespace ortmodule
