#include "transforms/recompute.h"

#include <algorithm>
#include <cmath>
#include <unordered_map>
#include <vector>

#include "base/container_type.h"
#include "base/max_flow.h"
#include "base/status.h"
#include "records/recompute_form.h"
#include "records/registry.h"
#include "records/resolve.h"
#include "transforms/earlier_values.h"
#include "transforms/pass_registry.h"

namespace ortmodule {
namespace {

constexpr double kUnknownSize = 64;
// The price of a byte moved, in bytes kept: a normalization and an activation that stream (four passes) are worth one
// kept activation, an exponential is not.
constexpr double kNearlyFree = 0.2;
constexpr double kOfViews = 1;  // at which a view is worth it, and nothing that reads and writes
// Without a budget the price falls further as long as what is computed again stays below a share of the step: beside
// products over many channels an activation function is worth its bytes, beside small ones it is not.
constexpr double kLowestPrice = kNearlyFree / 16;
constexpr int kPriceRounds = 6;
constexpr double kStepOverForward = 3;  // a gradient of a product is two products
constexpr double kLeast = 1e-3;         // small host values cost next to nothing
constexpr double kViewPasses = 0.05;    // passes a view counts for: mostly none, now and then a copy
// Later layers count as up to this much slower to recompute, so that alike layers are given up one by one, the first
// ones first: backward needs those last, when the others are gone.
constexpr double kLaterIsDearer = 0.25;
constexpr int kBudgetRounds = 24;

bool is_forward_value(const NodeArg* value) {
  return value && value->producer() && value->producer()->phase() == Phase::kForward;
}

// A sharded weight as a whole: all ranks can have it again, and none is to keep it.
bool is_gathered_again(const Node& node) {
  return node.record()->has(kCollective) && node.get_int("again", 0) && node.input(0)->is_graph_input();
}

// Whether the node itself can run a second time.
bool repeatable(const Node& node) {
  const OpRecord& record = *node.record();
  if (record.has(kRandom) || record.has(kSideEffect)) return false;
  if (record.has(kCollective)) return is_gathered_again(node);
  if (node.domain() == kAtenDomain) return false;
  if (node.record()->recompute_form()) return false;  // it has another way, or none
  for (const auto& [name, value] : node.attributes())
    if (std::holds_alternative<std::shared_ptr<Graph>>(value)) return false;
  for (const auto* list : {&node.inputs(), &node.outputs()})
    for (const NodeArg* value : *list)
      if (value && is_container(value->type().dtype)) return false;
  return true;
}

std::optional<RecomputeForm> form_of(const NodeArg& value) {
  const Node& node = *value.producer();
  const RecomputeFormFn form = node.record()->recompute_form();
  return form && value.output_index() == 0 ? form(node) : std::nullopt;
}

// Values of the forward half, and graph inputs, that backward nodes read.
std::vector<NodeArg*> read_by_backward(const Graph& graph) {
  std::vector<NodeArg*> out;
  std::vector<char> seen(graph.value_id_bound(), 0);
  graph.for_each([&](Node& node) {
    if (node.phase() != Phase::kBackward) return;
    for (NodeArg* in : node.inputs()) {
      if (!in || in->constant() || seen[in->id()]) continue;
      if (!is_forward_value(in) && !in->is_graph_input()) continue;
      seen[in->id()] = 1;
      out.push_back(in);
    }
  });
  return out;
}

// Estimates of bytes and time.
class Costs {
 public:
  Costs(const Graph& graph, const RecomputeOptions& options)
      : prices_(options.prices), sizes_(options.sizes), node_count_(std::max<size_t>(graph.node_count(), 1)) {
    // Where a launch costs nothing all work scales with what such a symbol counts as.
    if (prices_.launch_bytes > 0) graph.for_each([&](const Node& node) { estimate_lists(node); });
  }

  double bytes(const NodeArg& value) const {
    const TypeInfo& type = value.type();
    if (value.producer() && value.producer()->record()->has(kHostOutput)) return kLeast;
    const double elements = type.shape ? count_elements(*type.shape, size_) : kUnknownSize * kUnknownSize;
    return std::max(elements * static_cast<double>(dtype_size(type.dtype)), kLeast);
  }

  double time(const Node& node) const {
    const OpRecord& record = *node.record();
    if (record.has(kHostOutput)) return kLeast;
    if (record.has(Trait::kView)) {
      const bool converts =
          node.input(0) && node.output(0) && node.input(0)->type().dtype != node.output(0)->type().dtype;
      return traffic(node.inputs(), node.outputs()) * (converts ? prices_.conversion_passes : kViewPasses);
    }
    if (record.flops_fn() && shapes_known(node)) return record.flops_fn()(node, size_) / prices_.flops_per_byte;
    const double passes = record.has(kCheap) ? 1 : record.memory_passes().value_or(prices_.not_cheap_passes);
    return traffic(node.inputs(), node.outputs()) * passes + prices_.launch_bytes;
  }
  double time(const RecomputeForm& form, const NodeArg& result) const {
    return traffic(form.inputs, {const_cast<NodeArg*>(&result)}) + prices_.launch_bytes;
  }

  double dearer(size_t position) const {
    return 1 + kLaterIsDearer * static_cast<double>(position) / static_cast<double>(node_count_);
  }

 private:
  double traffic(const std::vector<NodeArg*>& inputs, const std::vector<NodeArg*>& outputs) const {
    double total = 0;
    for (const auto* list : {&inputs, &outputs})
      for (const NodeArg* value : *list)
        if (value) total += bytes(*value);
    return total;
  }
  // The length of a list that the data decide (rows whose labels count) counts as the most that it can be: as many as
  // its numbers or flags.
  void estimate_lists(const Node& node) {
    for (const NodeArg* out : node.outputs()) {
      std::vector<std::string> fresh;
      if (out && out->type().shape)
        for (const Dim& dim : *out->type().shape) dim.collect_symbols(fresh);
      std::erase_if(fresh, [&](const std::string& name) { return sizes_.contains(name); });
      if (fresh.empty() || std::ranges::count(fresh, fresh.front()) != std::ssize(fresh)) continue;
      double most = 0;
      for (const NodeArg* in : node.inputs())
        if (in && in->type().shape && (is_integer(in->type().dtype) || in->type().dtype == DType::kBool))
          most = std::max(most, count_elements(*in->type().shape, size_));
      if (most > 0) sizes_[fresh.front()] = static_cast<int64_t>(most);
    }
  }
  static bool shapes_known(const Node& node) {
    for (const auto* list : {&node.inputs(), &node.outputs()})
      for (const NodeArg* value : *list)
        if (value && !value->type().shape) return false;
    return true;
  }

  Prices prices_;
  SymbolTable sizes_;
  size_t node_count_;
  SizeOf size_ = [this](const Dim& dim) {
    if (dim.is_known()) return static_cast<double>(dim.value());
    SymbolTable table = sizes_;
    std::vector<std::string> names;
    dim.collect_symbols(names);
    for (const std::string& name : names) table.try_emplace(name, static_cast<int64_t>(kUnknownSize));
    try {
      return std::max(0.0, static_cast<double>(dim.evaluate(table)));
    } catch (const Error&) {  // a division by zero under these sizes
      return kUnknownSize;
    }
  };
};

using ValueSet = std::vector<char>;  // by value id

// See Note [The cut].
class Cut {
 public:
  Cut(const Graph& graph, const EarlierValues& earlier, const RecomputeOptions& options)
      : graph_(graph), earlier_(earlier), costs_(graph, options) {
    needed_ = read_by_backward(graph);
    free_.assign(graph.value_id_bound(), 0);
    for (const NodeArg* value : options.readable) free_[value->id()] = 1;
    for (const NodeArg* value : needed_)
      if (value->is_graph_input()) free_[value->id()] = 1;
  }

  double bytes_now() {
    double total = 0;
    for (const NodeArg* value : needed_)
      if (!value->is_graph_input()) total += costs_.bytes(*value);
    return total;
  }

  double forward_time() const {
    double total = 0;
    graph_.for_each([&](const Node& node) {
      if (node.phase() == Phase::kForward) total += costs_.time(node);
    });
    return total;
  }

  struct Solution {
    ValueSet kept;
    double bytes = 0;  // of these, and of copies of what lies outside
    double time = 0;   // of what is computed again
  };
  // The values to keep when a byte moved costs `weight` bytes kept; contractions and copies of weights are repeated
  // only where asked for.
  Solution solve(double weight, bool everything) {
    MaxFlow flow(2);
    std::vector<size_t> vertex(graph_.value_id_bound(), 0);  // on the sink's side: available in backward
    const auto vertex_of = [&](const NodeArg* value) {
      size_t& v = vertex[value->id()];
      return v ? v : v = flow.add_vertex();
    };
    std::unordered_map<const NodeArg*, size_t> copies;  // of outside values, and their vertices
    const auto copy_of = [&](const NodeArg* value) {
      size_t& v = copies[value];
      if (!v) flow.add_edge(kSource, v = flow.add_vertex(), costs_.bytes(*value));
      return v;
    };
    const auto needs = [&](const Node& node, size_t recipe, const std::vector<NodeArg*>& inputs) {
      for (const NodeArg* in : inputs) {
        if (!in || in->constant()) continue;
        if (earlier_.reads_copy(node, in) && (is_forward_value(in) || free_[in->id()])) {
          flow.add_edge(copy_of(in), recipe, MaxFlow::kUnbounded);
        } else if (is_forward_value(in)) {
          flow.add_edge(vertex_of(in), recipe, MaxFlow::kUnbounded);
        } else if (!free_[in->id()]) {
          flow.add_edge(kSource, recipe, MaxFlow::kUnbounded);
        }
      }
    };
    std::vector<std::pair<const NodeArg*, size_t>> recipes;  // value, the vertex that computes it again
    std::vector<std::pair<size_t, double>> times;            // of these vertices
    ValueSet parts(graph_.value_id_bound(), 0);  // of what is gathered again: one that is kept keeps the whole
    size_t position = 0;
    graph_.for_each([&](Node& node) {
      if (node.phase() != Phase::kForward) return;
      const double dearer = weight * costs_.dearer(position++);
      const size_t again = flow.add_vertex();
      const bool dear = node.record()->flops_fn() || is_autocast_copy(node);
      const bool may = repeatable(node) && (everything || !dear);
      const bool is_part = is_gathered_again(node) ||
                           (may && node.record()->has(Trait::kView) && node.input(0) && parts[node.input(0)->id()]);
      const double time = is_part ? 0 : costs_.time(node);
      flow.add_edge(kSource, again, may ? time * dearer : MaxFlow::kUnbounded);
      times.emplace_back(again, time);
      needs(node, again, node.inputs());
      for (const NodeArg* out : node.outputs()) {
        if (!out) continue;
        size_t recipe = again;
        if (const auto form = form_of(*out)) {
          recipe = flow.add_vertex();
          const double alone = costs_.time(*form, *out);
          flow.add_edge(kSource, recipe, alone * dearer);
          times.emplace_back(recipe, alone);
          needs(node, recipe, form->inputs);
        }
        parts[out->id()] = is_part;
        flow.add_edge(recipe, vertex_of(out), is_part ? MaxFlow::kUnbounded : costs_.bytes(*out));
        recipes.emplace_back(out, recipe);
      }
    });
    for (const NodeArg* value : needed_)
      if (is_forward_value(value)) flow.add_edge(vertex_of(value), kSink, MaxFlow::kUnbounded);
    flow.solve(kSource, kSink);
    Solution out;
    out.kept.assign(graph_.value_id_bound(), 0);
    for (const auto& [value, recipe] : recipes) {
      if (flow.on_source_side(vertex[value->id()]) || !flow.on_source_side(recipe)) continue;
      out.kept[value->id()] = 1;
      out.bytes += costs_.bytes(*value);
    }
    for (const auto& [value, copy] : copies)
      if (!flow.on_source_side(copy)) out.bytes += costs_.bytes(*value);
    for (const auto& [recipe, time] : times)
      if (!flow.on_source_side(recipe)) out.time += time;
    return out;
  }

 private:
  static constexpr size_t kSource = 0, kSink = 1;
  const Graph& graph_;
  const EarlierValues& earlier_;
  Costs costs_;
  std::vector<NodeArg*> needed_;
  std::vector<char> free_;  // graph inputs that backward may read
};

// Gives backward nodes copies of forward nodes in place of values that are not kept, each right before its first use.
class Rewriter {
 public:
  Rewriter(Graph& graph, EarlierValues& earlier, const ValueSet& kept)
      : graph_(graph), earlier_(earlier), kept_(kept) {}

  // False when a value can neither be read nor computed.
  bool run() {
    for (Node* node : graph_.nodes()) {
      if (node->phase() != Phase::kBackward) continue;
      for (size_t i = 0; i < node->inputs().size(); ++i) {
        NodeArg* in = node->inputs()[i];
        if (!is_forward_value(in) || kept_[in->id()]) continue;
        NodeArg* again = compute(in, node);
        if (!again) return false;
        node->set_input(i, again);
      }
    }
    make_pass("dead_node_elimination")->apply(graph_, {});  // what a copied node gives beside the wanted output
    return true;
  }
  size_t nodes() const { return nodes_; }

 private:
  bool is_at_hand(const NodeArg* value) const {
    return !is_forward_value(value) || (value->id() < kept_.size() && kept_[value->id()]) || again_.count(value);
  }
  NodeArg* at_hand(NodeArg* value) const {
    const auto it = again_.find(value);
    return it == again_.end() ? value : it->second;
  }

  // Depth first without recursion: chains can be as long as the model.
  NodeArg* compute(NodeArg* wanted, Node* before) {
    std::vector<NodeArg*> stack{wanted};
    while (!stack.empty()) {
      NodeArg* value = stack.back();
      if (is_at_hand(value)) {
        stack.pop_back();
        continue;
      }
      const auto form = form_of(*value);
      if (!form && !repeatable(*value->producer())) return nullptr;
      const std::vector<NodeArg*>& inputs = form ? form->inputs : value->producer()->inputs();
      const size_t depth = stack.size();
      for (NodeArg* in : inputs)
        if (in && !is_at_hand(in) && !earlier_.reads_copy(*value->producer(), in)) stack.push_back(in);
      if (stack.size() > depth) continue;
      form ? repeat(*value, *form, before) : repeat(*value->producer(), before);
      stack.pop_back();
    }
    return at_hand(wanted);
  }

  Node* add(const std::string& domain, const std::string& op, const std::vector<NodeArg*>& inputs,
            const std::vector<std::string>& outputs, const Attributes& attributes, const Node& origin, Node* before) {
    std::vector<NodeArg*> mine;
    for (NodeArg* in : inputs)
      mine.push_back(!in ? nullptr : earlier_.reads_copy(origin, in) ? earlier_.copy_of(in) : at_hand(in));
    Node* node =
        graph_.add_node(domain, op, mine, outputs, attributes, before, graph_.fresh_name(origin.name() + "_again"));
    node->metadata() = origin.metadata();
    node->metadata()["recompute"] = "1";
    node->set_phase(Phase::kBackward);
    infer_node(*node);
    ++nodes_;
    return node;
  }

  void repeat(const Node& node, Node* before) {
    std::vector<std::string> names;
    for (const NodeArg* out : node.outputs()) names.push_back(out ? graph_.fresh_name(out->name() + "_again") : "");
    Node* copy = add(node.domain(), node.op(), node.inputs(), names, node.attributes(), node, before);
    for (size_t i = 0; i < node.outputs().size(); ++i)
      if (node.outputs()[i]) set_again(node.outputs()[i], copy->output(i));
  }

  void repeat(const NodeArg& value, const RecomputeForm& form, Node* before) {
    Node* node = add(form.domain, form.op, form.inputs, {graph_.fresh_name(value.name() + "_again")}, form.attributes,
                     *value.producer(), before);
    set_again(&value, node->output(0));
  }

  void set_again(const NodeArg* value, NodeArg* again) {
    again->set_type(value->type());
    again->set_known_dims(value->known_dims());
    again_.emplace(value, again);
  }

  Graph& graph_;
  EarlierValues& earlier_;
  const ValueSet& kept_;
  std::unordered_map<const NodeArg*, NodeArg*> again_;
  size_t nodes_ = 0;
};

Cut::Solution choose_nearly_free(Cut& cut, double share) {
  Cut::Solution best = cut.solve(kNearlyFree, false);
  const double limit = share * kStepOverForward * cut.forward_time();
  double low = kLowestPrice, high = kNearlyFree;
  for (int i = 0; i < kPriceRounds && best.time < limit; ++i) {
    const double middle = std::sqrt(low * high);
    Cut::Solution tried = cut.solve(middle, false);
    const bool fits = tried.time <= limit;
    (fits ? high : low) = middle;
    if (fits) best = std::move(tried);
  }
  return best;
}

Cut::Solution choose(Cut& cut, const RecomputeOptions& options, double before) {
  const std::optional<double>& budget = options.budget;
  if (!budget)
    return before <= options.little ? cut.solve(kOfViews, false)
                                    : choose_nearly_free(cut, options.prices.recomputed_share);
  Cut::Solution best = cut.solve(kNearlyFree, false);
  const double limit = *budget <= 1 ? *budget * before : *budget;
  if (best.bytes <= limit) return best;
  // The largest weight that fits, by bisection of its exponent; where none fits, the least memory there is.
  double low = kNearlyFree * 1e-7, high = kNearlyFree;
  best = cut.solve(low, true);
  if (best.bytes > limit) return best;
  for (int i = 0; i < kBudgetRounds; ++i) {
    const double middle = std::sqrt(low * high);
    Cut::Solution tried = cut.solve(middle, true);
    const bool fits = tried.bytes <= limit;
    (fits ? low : high) = middle;
    if (fits) best = std::move(tried);
  }
  return best;
}

}  // namespace

RecomputeResult recompute(Graph& graph, const RecomputeOptions& options) {
  RecomputeResult result;
  EarlierValues earlier(graph);
  Cut cut(graph, earlier, options);
  result.kept_before = cut.bytes_now();
  const Cut::Solution chosen = choose(cut, options, result.kept_before);
  result.kept_after = chosen.bytes;
  Rewriter rewriter(graph, earlier, chosen.kept);
  ORTMODULE_CHECK(rewriter.run(), kInternal, "the cut of kept values leaves a value that cannot be recomputed");
  result.nodes = rewriter.nodes();
  return result;
}

bool recompute_from(Graph& graph, const std::unordered_set<std::string>& kept) {
  ValueSet set(graph.value_id_bound(), 0);
  for (const std::string& name : kept)
    if (const NodeArg* value = graph.find(name)) set[value->id()] = 1;
  EarlierValues earlier(graph);
  return Rewriter(graph, earlier, set).run();
}

}  // namespace ortmodule
