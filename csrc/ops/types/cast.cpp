// Operators that change the element type: Cast, CastLike and BitCast.
#include <map>

#include "base/status.h"
#include "records/fusion_context.h"
#include "records/grad_context.h"
#include "records/infer_context.h"
#include "records/registry.h"
#include "records/upgrade.h"

namespace ortmodule {
namespace {

void check_rules(InferContext& c) {
  const std::string mode = c.node().get_string("round_mode", "up");
  if (mode != "up" && mode != "down" && mode != "nearest")
    c.error(str("round_mode should be 'up', 'down' or 'nearest', got '", mode, "'"));
}

void infer_cast(InferContext& c, DType to) {
  check_rules(c);
  c.out(0, to, c.shape(0) ? std::optional<Shape>(*c.shape(0)) : std::nullopt);
  if (is_integer(to) && dtype_bits(to) >= 32)
    if (auto dims = c.dims_value(0)) c.known(0, std::move(*dims));
}

// Attribute 'to' is a TensorProto data type.
DType target(const InferContext& c) {
  const int64_t to = c.attr_int("to", 0);
  if (dtype_name(static_cast<DType>(to)) == "undefined" || to != static_cast<int32_t>(to))
    c.error(str("attribute 'to' names no type: ", to));
  return static_cast<DType>(to);
}

// Metadata of a Cast that autocast made, and of its gradient.
constexpr const char* kAutocast = "autocast";

void cast_gradient(GradContext& c) {
  NodeArg* dx = c.cast(c.GO(0), c.I(0)->type().dtype);
  const auto mark = c.node().metadata().find(kAutocast);
  if (mark != c.node().metadata().end() && dx != c.GO(0)) dx->producer()->metadata().insert(*mark);
  c.GI(0, dx);
}

void cast_rules(OpRecord& r) { r.attr("saturate", AttrKind::kInt).attr("round_mode", AttrKind::kString); }

// The type was a name once.
void upgrade_cast(UpgradeContext& c) {
  static const std::map<std::string, DType> kTypes{
      {"FLOAT", DType::kFloat},     {"UINT8", DType::kUInt8},   {"INT8", DType::kInt8},     {"UINT16", DType::kUInt16},
      {"INT16", DType::kInt16},     {"INT32", DType::kInt32},   {"INT64", DType::kInt64},   {"BOOL", DType::kBool},
      {"FLOAT16", DType::kFloat16}, {"DOUBLE", DType::kDouble}, {"UINT32", DType::kUInt32}, {"UINT64", DType::kUInt64}};
  const std::string name = c.node().get_string("to", "");
  const auto it = kTypes.find(name);
  if (it == kTypes.end()) c.unsupported("the type '" + name + "' is not supported");
  c.set("to", static_cast<int64_t>(it->second));
  c.rewrite({c.I(0)});
}

// The same type is no work: the output is the input.
ORTMODULE_OP("", Cast, 6)
    .older(1, 5, upgrade_cast)
    .input("input")
    .output("output")
    .required_attr("to", AttrKind::kInt)
    .apply(cast_rules)
    .traits(kElementwise | kCheap | kView)
    .infer([](InferContext& c) { infer_cast(c, target(c)); })
    .grad({"input"}, cast_gradient)
    // A value of a program has no type of its own: rounding happens where it is stored, and where the graph asks for
    // it. Autocast does not: it only wants narrow operands.
    .fuses([](FusionContext& c) {
      const DType to = c.node().output(0)->type().dtype;
      const bool rounds = !c.node().metadata().contains(kAutocast);
      int result = c.in(0);
      if (to == DType::kBool)
        result = c.emit(Opcode::kNot, c.emit(Opcode::kEqual, result, c.number(0)));
      else if (rounds && to == DType::kBFloat16)
        result = c.emit(Opcode::kRoundBFloat16, result);
      else if (rounds && to == DType::kFloat16)
        result = c.emit(Opcode::kRoundHalf, result);
      c.out(0, result);
      return true;
    });

ORTMODULE_OP("", CastLike, 15)
    .input("input")
    .input("target_type")
    .output("output")
    .apply(cast_rules)
    .traits(kElementwise | kCheap | kView)
    .no_grad({"target_type"})
    .infer([](InferContext& c) { infer_cast(c, c.dtype(1)); })
    .grad({"input"}, cast_gradient);

// The bits stay, so that nothing flows back.
ORTMODULE_OP("", BitCast, 26)
    .input("input")
    .output("output")
    .required_attr("to", AttrKind::kInt)
    .traits(kElementwise | kCheap | kView)
    .not_differentiable()
    .infer([](InferContext& c) {
      const DType from = c.dtype(0), to = target(c);
      if (from != DType::kUndefined && (dtype_bits(to) == 0 || dtype_bits(from) != dtype_bits(to)))
        c.error(str(dtype_name(from), " and ", dtype_name(to), " differ in width"));
      c.out(0, to, c.shape(0) ? std::optional<Shape>(*c.shape(0)) : std::nullopt);
    });

}  // namespace
}  // namespace ortmodule
