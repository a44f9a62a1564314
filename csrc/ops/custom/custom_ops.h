// Operators from shared libraries of users, described through the C header <ortmodule/custom_op.h>.
//
// Loading validates the whole description before anything is registered, so that a broken library leaves nothing
// behind. What it adds is as any other record from then on: schema, type rule, gradient (wiring as data), kernel. Not
// here: the calls of `compute` (custom_ops_kernel.cpp, which knows tensors).
#pragma once

#include <ortmodule/custom_op.h>

#include <deque>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/status.h"
#include "ops/custom/query.h"
#include "records/kernel_registry.h"
#include "records/registry.h"

namespace ortmodule {

class InferContext;
class KernelContext;

// The description behind a record; null for the engine's own.
const OrtmoduleCustomOp* custom_op_of(const OpRecord& record);

Kernel make_custom_kernel(const Node& node);

}  // namespace ortmodule

// One call of a library's function; what <ortmodule/custom_op.h> leaves opaque.
struct OrtmoduleContext {
  const ortmodule::Attributes* attributes = nullptr;
  size_t inputs = 0, outputs = 0;
  ortmodule::InferContext* infer = nullptr;    // in `infer`
  ortmodule::KernelContext* kernel = nullptr;  // in `compute`
  const std::vector<ortmodule::DType>* output_types = nullptr;
  mutable std::deque<std::vector<int64_t>> sizes;  // what tensors and types point to
  mutable std::string error;
};

namespace ortmodule {

// "I(2)" -> {"I", 2}, for I, O, GO and GI; nothing for any other name.
std::optional<std::pair<std::string, size_t>> wired(const std::string& name);
// Adds the operators of one library, all or none; their descriptions are sound. One library at a time.
void register_custom_ops(const std::vector<const OrtmoduleCustomOp*>& ops, const std::string& library);
// The functions that `infer` and `compute` share; the others say that they do not belong here.
OrtmoduleApi common_custom_api();
// Calls a function of a library; throws kRuntime or kInvalidGraph (`code`) with the library's text.
void call_custom(OrtmoduleFunction function, OrtmoduleContext& context, const OrtmoduleApi& api, void* user_data,
                 ErrorCode code, const std::string& where);

}  // namespace ortmodule
