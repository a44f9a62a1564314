// Collectives: what a rank has becomes what all ranks of a process group have together.
//
// Note [Collectives]
// A collective is an operator like others: it has a shape rule, a gradient that is a collective again, and a kernel,
// which calls torch's functional collectives by the group's name; NCCL, gloo and whatever else torch has serve alike.
// What sets it apart is that all ranks must run the same ones in the same order. So no pass merges, folds, repeats or
// reorders them (kCollective), and each order of execution keeps theirs. With `async` the result may be read by a
// CollectiveWait alone: between the two lies what runs meanwhile (transforms/split_collectives.h).
//
// A gradient is that of the sum over ranks of what each makes of its result. Where all make the same of it (`alike`:
// what tensor parallelism does between its layers) that counts once: what AllReduce passes back is what it is given,
// and CopyToRanks is its other half, which is nothing forward and AllReduce backward (Shoeybi et al., Megatron-LM,
// 2019).
#include "base/status.h"
#include "records/grad_context.h"
#include "records/infer_context.h"
#include "records/registry.h"

namespace ortmodule {
namespace {

int64_t world_of(const InferContext& c) {
  const int64_t world = c.attr_int("world", 1);
  if (world < 1) c.error(str("expected a world of at least one rank, got ", world));
  return world;
}

// The first axis, whose parts lie with the ranks.
const Shape* with_rows(const InferContext& c) {
  const Shape* x = c.shape(0);
  if (x && x->empty()) c.error("a scalar has no axis to be divided among ranks");
  return x;
}

Shape divided(const InferContext& c, const Shape& x, int64_t world) {
  if (x[0].is_known() && x[0].value() % world)
    c.error(str("the first axis of ", x[0].value(), " cannot be divided among ", world, " ranks"));
  Shape out = x;
  const auto even = Dim::exact_div(x[0], Dim(world));
  out[0] = even ? *even : Dim::floor_div(x[0], Dim(world));
  return out;
}

void infer_all_gather(InferContext& c) {
  const int64_t world = world_of(c);
  const int64_t to = c.attr_int("to", static_cast<int64_t>(c.dtype(0)));
  const auto dtype = static_cast<DType>(to);
  if (to != static_cast<int32_t>(to) || dtype_name(dtype) == "undefined")
    c.error(str("attribute 'to' names no type: ", to));
  const Shape* x = with_rows(c);
  if (!x) return c.out(0, dtype, std::nullopt);
  Shape out = *x;
  out[0] = out[0] * Dim(world);
  c.out(0, dtype, std::move(out));
}

void infer_reduce_scatter(InferContext& c) {
  const int64_t world = world_of(c);
  const Shape* x = with_rows(c);
  c.out(0, c.dtype(0), x ? std::optional<Shape>(divided(c, *x, world)) : std::nullopt);
}

void infer_all_to_all(InferContext& c) {
  const int64_t world = world_of(c);
  if (const Shape* x = with_rows(c)) divided(c, *x, world);
  c.same_as(0, 0);
}

void infer_all_reduce(InferContext& c) {
  world_of(c);
  c.same_as(0, 0);
}

void check_reduction(const Node& node) {
  const std::string reduction = node.get_string("reduction", "sum");
  ORTMODULE_CHECK_GRAPH(reduction == "sum" || reduction == "max" || reduction == "min", "[", node.op(),
                        "] expected the reduction sum, max or min, got '", reduction, "' (", node.describe(), ")");
}

template <void (*rule)(InferContext&)>
void reduced(InferContext& c) {
  check_reduction(c.node());
  rule(c);
}

bool is_alike(const Node& node) { return node.get_int("alike", 0) != 0; }

// As eager's collectives have it.
template <const char* const& op>
void gradient(GradContext& c) {
  const Node& node = c.node();
  ORTMODULE_CHECK(node.get_string("reduction", "sum") == "sum", kUnsupported, "[", node.op(),
                  "] only a sum has a gradient, not '", node.get_string("reduction", ""), "' (", node.describe(), ")");
  c.GI(0, c.emit(op, {c.GO(0)}, {{"group", node.get_string("group", "")}, {"world", node.get_int("world", 1)}}));
}

// The same in the type of this rank's part, whatever was gathered.
void gathered_gradient(GradContext& c) {
  const Node& node = c.node();
  const int64_t world = node.get_int("world", 1);
  NodeArg* whole = c.cast(c.GO(0), c.I(0)->type().dtype);
  NodeArg* part =
      c.emit("ai.ortmodule::ReduceScatter", {whole}, {{"group", node.get_string("group", "")}, {"world", world}});
  if (is_alike(node)) part = c.emit("Mul", {part, c.scalar(1.0 / static_cast<double>(world), part)});
  c.GI(0, part);
}

constexpr const char* kAllGather = "ai.ortmodule::AllGather";
constexpr const char* kAllReduce = "ai.ortmodule::AllReduce";
constexpr const char* kAllToAll = "ai.ortmodule::AllToAll";
constexpr const char* kCopyToRanks = "ai.ortmodule::CopyToRanks";

void reduced_gradient(GradContext& c) {
  if (is_alike(c.node())) return gradient<kCopyToRanks>(c);
  gradient<kAllReduce>(c);
}

void copied_gradient(GradContext& c) {
  const Node& node = c.node();
  const int64_t world = node.get_int("world", 1), alike = 1;
  c.GI(0, c.emit(kAllReduce, {c.GO(0)}, {{"group", node.get_string("group", "")}, {"world", world}, {"alike", alike}}));
}

void collective(OpRecord& r) {
  r.input("x")
      .output("y")
      .required_attr("group", AttrKind::kString)  // the name of a process group
      .required_attr("world", AttrKind::kInt)     // how many ranks it has
      .attr("async", AttrKind::kInt)
      .traits(kCollective);
}

}  // namespace

// x[n, ..] of each rank -> y[world * n, ..], in the order of the ranks, as elements of the type `to`
ORTMODULE_OP("ai.ortmodule", AllGather, 1)
    .apply(collective)
    .attr("to", AttrKind::kInt)      // a TensorProto data type; without it that of x
    .attr("again", AttrKind::kInt)   // what it gathers is freed after forward, and gathered again by backward
    .attr("window", AttrKind::kInt)  // bytes that may be on their way when it starts (split_collectives.h)
    .attr("alike", AttrKind::kInt)   // Note [Collectives]
    .infer(infer_all_gather)
    .grad({"x"}, gathered_gradient);

// x[world * n, ..] -> y[n, ..]: this rank's part of the sum over ranks
ORTMODULE_OP("ai.ortmodule", ReduceScatter, 1)
    .apply(collective)
    .attr("reduction", AttrKind::kString)  // sum, max, min
    .infer(reduced<infer_reduce_scatter>)
    .grad({"x"}, gradient<kAllGather>);

// The sum over ranks, on each of them.
ORTMODULE_OP("ai.ortmodule", AllReduce, 1)
    .apply(collective)
    .attr("reduction", AttrKind::kString)  // sum, max, min
    .attr("alike", AttrKind::kInt)         // Note [Collectives]
    .infer(reduced<infer_all_reduce>)
    .grad({"x"}, reduced_gradient);

// x, which is the same on all ranks, for each to make something else of.
ORTMODULE_OP("ai.ortmodule", CopyToRanks, 1)
    .input("x")
    .output("y")
    .required_attr("group", AttrKind::kString)
    .required_attr("world", AttrKind::kInt)
    .infer(infer_same)
    .traits(kView)
    .grad({"x"}, copied_gradient);

// x[world * n, ..]: part r goes to rank r -> y, whose part r is rank r's
ORTMODULE_OP("ai.ortmodule", AllToAll, 1).apply(collective).infer(infer_all_to_all).grad({"x"}, gradient<kAllToAll>);

// The result of a collective that has been started, once it is there.
ORTMODULE_OP("ai.ortmodule", CollectiveWait, 1)
    .input("x")
    .output("y")
    .infer(infer_same)
    .traits(kView | kCollective)
    .grad({"x"}, [](GradContext& c) { c.GI(0, c.GO(0)); });

}  // namespace ortmodule
