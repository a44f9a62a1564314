// Optional, OptionalHasElement, OptionalGetElement. An absent value is an undefined tensor at run time.
#include "base/container_type.h"
#include "base/status.h"
#include "records/infer_context.h"
#include "records/registry.h"

namespace ortmodule {
namespace {

// `type` (what the optional would hold) is needed where there is no input.
ORTMODULE_OP("", Optional, 15)
    .optional_input("input")
    .output("output")
    .attr("type", AttrKind::kInt)
    .traits(kTakesContainers)
    .not_differentiable()
    .infer([](InferContext& c) {
      const auto declared = static_cast<DType>(c.attr_int("type", 0));
      const DType content = c.has(0) ? c.dtype(0) : declared;
      if (!c.has(0) && declared == DType::kUndefined) c.error("needs an input or the attribute 'type'");
      if (is_optional(content)) c.error(str("an optional cannot hold ", dtype_name(content)));
      c.out(0, optional_of(content), std::nullopt);
    });

ORTMODULE_OP("", OptionalHasElement, 15)
    .optional_input("input")
    .output("output")
    .traits(kTakesContainers)
    .not_differentiable()
    .infer([](InferContext& c) { c.out(0, DType::kBool, Shape{}); });

ORTMODULE_OP("", OptionalGetElement, 15)
    .input("input")
    .output("output")
    .traits(kTakesContainers)
    .not_differentiable()
    .infer([](InferContext& c) {
      if (is_optional(c.dtype(0)))
        c.out(0, content_of(c.dtype(0)), std::nullopt);
      else
        c.same_as(0, 0);
    });

}  // namespace
}  // namespace ortmodule
