#include "ops/custom/custom_ops.h"

#include <mutex>
#include <optional>
#include <shared_mutex>
#include <unordered_map>
#include <utility>

#include "records/grad_context.h"
#include "records/infer_context.h"
#include "records/registry_lock.h"

namespace ortmodule {
namespace {

// -- what `infer` sees
// -------------------------------------------------------------------------------------------------

template <typename T>
const T* attribute(const OrtmoduleContext* c, const char* name) {
  const auto found = c->attributes->find(name ? name : "");
  return found == c->attributes->end() ? nullptr : std::get_if<T>(&found->second);
}

template <typename T>
size_t list_attribute(const OrtmoduleContext* c, const char* name, const T** values) {
  const auto* list = attribute<std::vector<T>>(c, name);
  *values = list ? list->data() : nullptr;
  return list ? list->size() : 0;
}

void say(const OrtmoduleContext* c, const std::string& text) {
  if (c->error.empty()) c->error = text;
}

int input_type(const OrtmoduleContext* c, size_t i, OrtmoduleTensorType* type) {
  *type = {nullptr, -1, 0};
  if (!c->infer) return say(c, "input_type is a function for `infer`"), 0;
  if (i >= c->inputs || !c->infer->has(i)) return 0;
  type->dtype = static_cast<int32_t>(c->infer->dtype(i));
  const Shape* shape = c->infer->shape(i);
  if (!shape) return 1;
  std::vector<int64_t>& sizes = c->sizes.emplace_back();
  for (size_t axis = 0; axis < shape->size(); ++axis)
    sizes.push_back((*shape)[axis].is_known() ? (*shape)[axis].value() : ORTMODULE_DIM_OF(i, axis));
  type->sizes = sizes.data();
  type->rank = static_cast<int32_t>(sizes.size());
  return 1;
}

Dim dim_of(const InferContext& c, int64_t size) {
  if (size >= 0) return Dim(size);
  const auto code = static_cast<size_t>(-2 - size);
  const Shape* shape = code / 64 < c.input_count() ? c.shape(code / 64) : nullptr;
  if (!shape || code % 64 >= shape->size())
    c.error(str("an output has the size of axis ", code % 64, " of input ", code / 64, ", which has no such axis"));
  return (*shape)[code % 64];
}

void set_output_type(OrtmoduleContext* c, size_t i, const OrtmoduleTensorType* type) {
  if (!c->infer) return say(c, "set_output_type is a function for `infer`");
  const auto dtype = static_cast<DType>(type->dtype);
  if (dtype_size(dtype) == 0) return say(c, str("output ", i, " has the unknown element type ", type->dtype));
  if (type->rank < 0) return c->infer->out(i, dtype, std::nullopt);
  Shape shape;
  try {
    for (size_t axis = 0; axis < static_cast<size_t>(type->rank); ++axis) {
      // The symbols of several outputs differ.
      const size_t number = i * 64 + axis;
      const bool unknown = type->sizes[axis] == ORTMODULE_DIM_UNKNOWN;
      shape.push_back(unknown ? c->infer->fresh_shape(number + 1)[number] : dim_of(*c->infer, type->sizes[axis]));
    }
  } catch (const Error& error) {  // must not pass through the library
    return say(c, error.what());
  }
  c->infer->out(i, dtype, std::move(shape));
}

void infer_custom(const OrtmoduleCustomOp& op, InferContext& c) {
  if (!op.infer) {
    for (size_t i = 0; i < c.node().outputs().size(); ++i) c.same_as(i, 0);
    return;
  }
  OrtmoduleContext context;
  context.attributes = &c.node().attributes();
  context.inputs = c.input_count();
  context.outputs = c.node().outputs().size();
  context.infer = &c;
  static const OrtmoduleApi api = common_custom_api();
  call_custom(op.infer, context, api, op.user_data, ErrorCode::kInvalidGraph, c.node().describe());
}

// -- gradients
// ---------------------------------------------------------------------------------------------------------

NodeArg* gradient_operand(GradContext& c, const std::string& name,
                          const std::unordered_map<std::string, NodeArg*>& between) {
  if (name.empty()) return nullptr;
  const auto wire = wired(name);
  if (!wire) return between.at(name);
  const auto& [kind, i] = *wire;
  if (kind == "I") return c.I(i);
  if (kind == "O") return c.O(i);
  return c.GO(i) ? c.GO(i) : c.zeros_like(c.O(i));
}

void custom_gradient(const OrtmoduleCustomOp& op, GradContext& c) {
  std::unordered_map<std::string, NodeArg*> between;
  for (size_t k = 0; k < op.gradient_count; ++k) {
    const OrtmoduleGradientNode& node = op.gradient[k];
    std::vector<NodeArg*> inputs;
    for (size_t i = 0; i < node.input_count; ++i) inputs.push_back(gradient_operand(c, node.inputs[i], between));
    std::vector<bool> wanted;
    bool any = false;
    for (size_t i = 0; i < node.output_count; ++i) {
      const auto wire = wired(node.outputs[i]);
      wanted.push_back(wire ? c.needs(wire->second) : *node.outputs[i] != '\0');
      any = any || wanted.back();
    }
    if (!any) continue;
    const bool standard = split_op(node.op).first.empty();
    const auto values = c.emit_some(node.op, inputs, wanted, standard ? Attributes{} : c.node().attributes());
    for (size_t i = 0; i < values.size(); ++i) {
      const auto wire = wired(node.outputs[i]);
      if (!wire) {
        between[node.outputs[i]] = values[i];
      } else if (values[i]) {
        const TypeInfo &have = values[i]->type(), &want = c.I(wire->second)->type();
        ORTMODULE_CHECK_GRAPH(have.dtype == want.dtype || have.dtype == DType::kUndefined, "[", c.node().qualified_op(),
                              "] the library's gradient of input ", wire->second, " has type ", have.text(),
                              ", the input has ", want.text(), " (", c.node().describe(), ")");
        c.GI(wire->second, values[i]);
      }
    }
  }
}

void no_gradient(GradContext& c) {
  fail(ErrorCode::kUnsupported, "[", c.node().qualified_op(),
       "] the library gives no gradient for this operator; ortmodule.register_gradient can (", c.node().describe(),
       ")");
}

// -- registration
// ------------------------------------------------------------------------------------------------------

struct Loaded {
  const OrtmoduleCustomOp* op;
  std::string library;
};

std::unordered_map<const OpRecord*, Loaded>& loaded_ops() {
  static auto& ops = *new std::unordered_map<const OpRecord*, Loaded>;
  return ops;
}

Presence presence_of(uint32_t flags) {
  return flags & ORTMODULE_VARIADIC   ? Presence::kVariadic
         : flags & ORTMODULE_OPTIONAL ? Presence::kOptional
                                      : Presence::kRequired;
}

OpRecord make_record(const OrtmoduleCustomOp& op, const char* file) {
  OpRecord record(op.domain, op.name, op.since_version, file);
  std::vector<std::string> differentiable, not_differentiable;
  for (size_t i = 0; i < op.input_count; ++i) {
    const OrtmoduleParameter& p = op.inputs[i];
    if (p.flags & ORTMODULE_ON_HOST) {
      record.host_input(p.name, presence_of(p.flags));
      continue;
    }
    record.input(p.name, presence_of(p.flags));
    (p.flags & ORTMODULE_NO_GRADIENT ? not_differentiable : differentiable).push_back(p.name);
  }
  for (size_t i = 0; i < op.output_count; ++i) record.output(op.outputs[i].name, presence_of(op.outputs[i].flags));
  record.infer([&op](InferContext& c) { infer_custom(op, c); });
  record.traits(op.flags & ORTMODULE_RANDOM ? kCustom | kRandom : kCustom);
  if (op.flags & ORTMODULE_NOT_DIFFERENTIABLE || differentiable.empty()) {
    record.not_differentiable();
  } else {
    if (op.gradient_count == 0) record.traits(kOpenGradient);
    record.no_grad(not_differentiable);
    record.grad(differentiable, op.gradient_count > 0 ? GradFn([&op](GradContext& c) { custom_gradient(op, c); })
                                                      : GradFn(no_gradient));
  }
  record.check_complete();
  return record;
}

}  // namespace

std::optional<std::pair<std::string, size_t>> wired(const std::string& name) {
  const size_t open = name.find('(');
  if (open == std::string::npos || name.back() != ')') return std::nullopt;
  const std::string kind = name.substr(0, open), digits = name.substr(open + 1, name.size() - open - 2);
  const bool number =
      !digits.empty() && digits.size() < 4 && digits.find_first_not_of("0123456789") == std::string::npos;
  if (!number || (kind != "I" && kind != "O" && kind != "GO" && kind != "GI")) return std::nullopt;
  return std::make_pair(kind, static_cast<size_t>(std::stoul(digits)));
}

OrtmoduleApi common_custom_api() {
  OrtmoduleApi api{};
  api.struct_size = sizeof(OrtmoduleApi);
  api.abi_version = ORTMODULE_CUSTOM_OP_ABI_VERSION;
  api.input_count = [](const OrtmoduleContext* c) { return c->inputs; };
  api.output_count = [](const OrtmoduleContext* c) { return c->outputs; };
  api.attribute_int = [](const OrtmoduleContext* c, const char* name, int64_t fallback) {
    const auto* value = attribute<int64_t>(c, name);
    return value ? *value : fallback;
  };
  api.attribute_float = [](const OrtmoduleContext* c, const char* name, double fallback) {
    const auto* value = attribute<double>(c, name);
    return value ? *value : fallback;
  };
  api.attribute_string = [](const OrtmoduleContext* c, const char* name, const char* fallback) {
    const auto* value = attribute<std::string>(c, name);
    return value ? value->c_str() : fallback;
  };
  api.attribute_ints = list_attribute<int64_t>;
  api.attribute_floats = list_attribute<double>;
  api.input_type = input_type;
  api.set_output_type = set_output_type;
  api.input = [](const OrtmoduleContext* c, size_t, OrtmoduleTensor*) {
    return say(c, "input is a function for `compute`"), 0;
  };
  api.output = [](OrtmoduleContext* c, size_t, int32_t, const int64_t*, OrtmoduleTensor*) {
    return say(c, "output is a function for `compute`"), 0;
  };
  api.stream = [](const OrtmoduleContext*) -> void* { return nullptr; };
  api.fail = [](OrtmoduleContext* c, const char* message) { say(c, message ? message : ""); };
  return api;
}

void call_custom(OrtmoduleFunction function, OrtmoduleContext& context, const OrtmoduleApi& api, void* user_data,
                 ErrorCode code, const std::string& where) {
  int result = 0;
  try {
    result = function(&context, &api, user_data);
  } catch (const std::exception& error) {  // against the header's rules, but it would end the process
    context.error = str("a C++ exception left the library: ", error.what());
  } catch (...) {
    context.error = "a C++ exception left the library";
  }
  if (result == 0 && context.error.empty()) return;
  fail(code, context.error.empty() ? str("the library's function failed with ", result) : context.error, " (", where,
       ")");
}

const OrtmoduleCustomOp* custom_op_of(const OpRecord& record) {
  const std::shared_lock<std::shared_mutex> lock(registry_mutex());
  const auto found = loaded_ops().find(&record);
  return found == loaded_ops().end() ? nullptr : found->second.op;
}

void register_custom_ops(const std::vector<const OrtmoduleCustomOp*>& ops, const std::string& library) {
  const char* file = (new std::string(library))->c_str();  // records live as long as the process
  std::vector<OpRecord> records;
  for (const OrtmoduleCustomOp* op : ops) {
    const OpRecord* known = Registry::instance().find(op->domain, op->name, op->since_version);
    ORTMODULE_CHECK_ARG(!known || known->since() != op->since_version, "the library '", library,
                        "' defines the operator ", op->domain, "::", op->name, ", which ",
                        known && custom_op_of(*known) ? str("the library '", known->file(), "' defined already")
                                                      : std::string("is one of ORTModule's own"));
    records.push_back(make_record(*op, file));
  }
  const std::unique_lock<std::shared_mutex> lock(registry_mutex());
  for (size_t i = 0; i < ops.size(); ++i) {
    OpRecord& record = Registry::instance().add(ops[i]->domain, ops[i]->name, ops[i]->since_version, file);
    record = std::move(records[i]);
    loaded_ops()[&record] = {ops[i], library};
    const int last = 1 << 30;
    KernelRegistry::instance()
        .add(ops[i]->domain, ops[i]->name, "aten", make_custom_kernel, file)
        .opset(ops[i]->since_version, last)
        .runs_foreign_code()
        .rare_types(RareTypes::kAsIs);
  }
}

}  // namespace ortmodule
