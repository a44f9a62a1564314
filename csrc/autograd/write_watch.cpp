#include "autograd/write_watch.h"

#include <ATen/core/function_schema.h>
#include <ATen/core/ivalue.h>
#include <ATen/record_function.h>
#include <c10/util/ScopeExit.h>

#include <functional>
#include <memory>
#include <optional>

namespace ortmodule {
namespace {

WriteListener* heard_by = nullptr;
thread_local bool is_within = false;  // a listener's answer, on this thread

// The tensors of an argument, in lists and lists of lists as well.
void visit(const c10::IValue& value, const std::function<void(const at::Tensor&)>& each) {
  if (value.isTensor()) {
    each(value.toTensor());
  } else if (value.isTensorList()) {
    for (const at::Tensor& t : value.toTensorVector()) each(t);
  } else if (value.isList()) {
    for (const c10::IValue& item : value.toListRef()) visit(item, each);
  }
}

bool is_written(const c10::FunctionSchema& schema, size_t argument) {
  if (schema.name().starts_with("c10d::")) return true;
  if (argument >= schema.arguments().size()) return false;
  const c10::AliasInfo* const alias = schema.arguments()[argument].alias_info();
  return alias && alias->isWrite();
}

std::unique_ptr<at::ObserverContext> before(const at::RecordFunction& call) {
  if (is_within) return nullptr;
  const c10::ArrayRef<const c10::IValue> inputs = call.inputs();
  std::optional<c10::FunctionSchema> schema;  // a copy: looked up for the few that matter
  for (size_t i = 0; i < inputs.size(); ++i)
    visit(inputs[i], [&](const at::Tensor& t) {
      if (!t.defined() || !heard_by->concerns(t)) return;
      if (!schema) schema = call.operator_schema();
      if (!schema || !is_written(*schema, i)) return;
      is_within = true;
      const auto answered = c10::make_scope_exit([] { is_within = false; });
      heard_by->before_write(t);
    });
  return nullptr;
}

}  // namespace

void listen_to_writes(WriteListener& listener, bool on) {
  heard_by = &listener;
  static const at::CallbackHandle handle =
      at::addGlobalCallback(at::RecordFunctionCallback(&before).needsInputs(true).scopes({at::RecordScope::FUNCTION}));
  if (on)
    at::reenableCallback(handle);
  else
    at::disableCallback(handle);
}

}  // namespace ortmodule
