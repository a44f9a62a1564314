#include "autograd/kept_edges.h"

#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include <torch/csrc/autograd/variable.h>

#include <type_traits>
#include <unordered_map>
#include <utility>

#include "autograd/node_support.h"
#include "base/side_by_side.h"
#include "base/status.h"

namespace ortmodule {

using torch::autograd::AccumulateGrad;
using torch::autograd::AutogradMeta;
using torch::autograd::Edge;

namespace {

using WeakNode = decltype(AutogradMeta::grad_accumulator_);

// A leaf that is another one at each step (an input) is given up.
constexpr int kMaxLosses = 4;

// What torch allocates for one: with std::make_shared up to torch 2.12, whose counts are two words.
constexpr size_t kAccumulatorBytes =
    sizeof(AccumulateGrad) + (std::is_same_v<NodePtr, std::shared_ptr<torch::autograd::Node>> ? 2 * sizeof(void*) : 0);

template <typename Weak, typename Strong>
bool refers_to(const Weak& weak, const Strong& node) {
  if constexpr (requires { weak._unsafe_get_target(); })
    return weak._unsafe_get_target() == node.get();
  else
    return !weak.owner_before(node) && !node.owner_before(weak);
}

bool is_hooked(const AutogradMeta& leaf) { return !leaf.hooks_.empty() || leaf.post_acc_grad_hooks_; }

const at::Tensor& leaf_of(const Edge& edge) { return static_cast<AccumulateGrad&>(*edge.function).variable; }

// An accumulator remembers the stream it was made on; a view's history may change.
bool may_be_kept(const at::Tensor& leaf) {
  return leaf.is_cpu() && !torch::autograd::impl::get_view_autograd_meta(leaf);
}

bool has_sizes_of(const Edge& edge, const at::Tensor& leaf) {
  const auto& metadata = edge.function->input_metadata(0);
  return !metadata.is_nested_tensor() && !metadata.is_cpp_nested_tensor() &&
         metadata.shape_as_dim_vector().equals(leaf.sym_sizes());
}

}  // namespace

// The sessions' one hold on an accumulator.
class KeptAccumulator {
 public:
  static std::shared_ptr<const KeptAccumulator> of(const Edge& edge) {
    const std::lock_guard<std::mutex> lock(registry().mutex);
    std::weak_ptr<const KeptAccumulator>& entry = registry().by_node[edge.function.get()];
    std::shared_ptr<const KeptAccumulator> kept = entry.lock();
    if (!kept) entry = kept = std::make_shared<const KeptAccumulator>(edge.function);
    return kept;
  }

  static bool is_kept(const Edge& edge) {
    const std::lock_guard<std::mutex> lock(registry().mutex);
    const auto entry = registry().by_node.find(edge.function.get());
    return entry != registry().by_node.end() && !entry->second.expired();
  }

  explicit KeptAccumulator(NodePtr node) : edge_(std::move(node), 0), leaf_(leaf_of(edge_).unsafeGetTensorImpl()) {}
  ~KeptAccumulator() {
    const std::lock_guard<std::mutex> lock(registry().mutex);
    const auto it = registry().by_node.find(edge_.function.get());
    if (it != registry().by_node.end() && it->second.expired()) registry().by_node.erase(it);
  }
  KeptAccumulator(const KeptAccumulator&) = delete;
  KeptAccumulator& operator=(const KeptAccumulator&) = delete;

  const Edge& edge() const { return edge_; }

  // What autograd knows of `x`, if x is the leaf that this accumulator is of; else null.
  const AutogradMeta* leaf_meta(const at::Tensor& x) const {
    return x.unsafeGetTensorImpl() == leaf_ ? meta_of(x, edge_) : nullptr;
  }
  // The same for a leaf that this accumulator was of at the step before, whose edge `edge` is.
  static const AutogradMeta* meta_of(const at::Tensor& leaf, const Edge& edge) {
    const auto* const meta = static_cast<const AutogradMeta*>(leaf.unsafeGetTensorImpl()->autograd_meta());
    return meta && !meta->grad_fn_ && refers_to(meta->grad_accumulator_, edge.function) ? meta : nullptr;
  }

 private:
  struct Registry {
    std::mutex mutex;
    std::unordered_map<const void*, std::weak_ptr<const KeptAccumulator>> by_node;
  };
  static Registry& registry() {
    static Registry* const lives_on = new Registry;  // sessions may end with the process
    return *lives_on;
  }

  const Edge edge_;
  const c10::TensorImpl* const leaf_;  // the accumulator holds it
};

// Whether a history holds the accumulator, beside `edge` and the sessions. No list of edges may lie idle.
static bool is_held_elsewhere(const Edge& edge) {
  return edge.function.use_count() > (KeptAccumulator::is_kept(edge) ? 2 : 1);
}

EarlyAccumulators::EarlyAccumulators(const std::vector<at::Tensor>& leaves) {
  std::vector<Edge> edges;
  edges.reserve(leaves.size());
  {
    const SideBySide accumulators(kAccumulatorBytes, leaves.size());
    for (const at::Tensor& leaf : leaves) {
      if (!leaf.requires_grad() || !leaf.is_leaf() || !may_be_kept(leaf)) continue;
      Edge edge = torch::autograd::impl::gradient_edge(leaf);
      if (has_sizes_of(edge, leaf)) edges.push_back(std::move(edge));
    }
  }
  for (const Edge& edge : edges) kept_.push_back(KeptAccumulator::of(edge));
}

// A place for one list of edges. Nothing is freed under its lock, which may be waited for with the GIL.
struct IdleEdges {
  std::mutex mutex;
  const KeptEdges* owner = nullptr;
  StepEdges edges;

  static IdleEdges& instance() {
    static IdleEdges* const lives_on = new IdleEdges;  // leaves may be gone when the process ends
    return *lives_on;
  }
};

StepEdges KeptEdges::take_idle() {
  IdleEdges& idle = IdleEdges::instance();
  StepEdges taken;
  bool own = false;
  {
    const std::lock_guard<std::mutex> lock(idle.mutex);
    own = idle.owner == this;
    idle.owner = nullptr;
    std::swap(taken, idle.edges);
  }
  return own ? std::move(taken) : StepEdges{};
}

void KeptEdges::give_back(StepEdges edges) noexcept {
  // Those of other accumulators than the session keeps now, or of a third step in a row, are of no use.
  if (!edges.kept || edges.kept.get() != current_.load() || edges.kept.use_count() > 3) return;
  for (size_t k = 0; k < edges.edges.size(); ++k) {
    if ((*edges.kept)[k]) continue;
    edges.edges[k] = {};
    edges.leaves[k] = nullptr;
  }
  IdleEdges& idle = IdleEdges::instance();
  const std::lock_guard<std::mutex> lock(idle.mutex);
  if (idle.owner) return;  // parameters go after the lock
  idle.owner = this;
  std::swap(idle.edges, edges);
}

KeptEdges::TakenIdle::TakenIdle(KeptEdges& owner, const std::shared_ptr<const KeptAccumulators>& kept)
    : owner_(owner), edges_(owner.take_idle()) {
  if (edges_.kept != kept) edges_ = {};
}

// This and release() are called without the GIL, which a tensor may take when it comes to be held and when it goes.
StepEdges KeptEdges::find(const std::vector<at::Tensor>& inputs, const std::vector<size_t>& places,
                          const std::vector<bool>& wanted) {
  const size_t count = places.size();
  StepEdges out = take_idle();
  const std::lock_guard<std::mutex> lock(mutex_);
  if (!kept_) {
    kept_ = std::make_shared<const KeptAccumulators>(count);
    seen_.assign(count, nullptr);
    losses_.resize(count, 0);
  }
  if (out.kept != kept_ || out.edges.size() != count) {
    out.edges.assign(count, {});
    out.leaves.assign(count, nullptr);
    out.impls.assign(count, nullptr);
  }
  out.hooked = 0;
  std::shared_ptr<KeptAccumulators> changed;
  const auto change = [&](size_t k) -> std::shared_ptr<const KeptAccumulator>& {
    if (!changed) changed = std::make_shared<KeptAccumulators>(*kept_);
    return (*changed)[k];
  };
  for (size_t k = 0; k < count; ++k) {
    if (!wanted[k]) continue;
    const at::Tensor& x = inputs[places[k]];
    Edge& edge = out.edges[k];
    // As it was at the step before: then what is kept of it need not even be looked at.
    if (edge.is_valid() && out.impls[k] == x.unsafeGetTensorImpl()) {
      const AutogradMeta* meta = KeptAccumulator::meta_of(x, edge);
      if (meta && meta->requires_grad_) {
        out.hooked += is_hooked(*meta);
        continue;
      }
    }
    out.impls[k] = nullptr;
    const KeptAccumulator* kept = (*kept_)[k].get();
    if (const AutogradMeta* meta = kept ? kept->leaf_meta(x) : nullptr) {
      edge = meta->requires_grad_ ? kept->edge() : Edge();
      out.leaves[k] = meta->requires_grad_ ? &leaf_of(edge) : nullptr;
      out.impls[k] = x.unsafeGetTensorImpl();
      out.hooked += meta->requires_grad_ && is_hooked(*meta);
      continue;
    }
    edge = {};
    out.leaves[k] = nullptr;
    if (kept) {
      ++losses_[k];
      change(k) = nullptr;
    }
    if (!x.requires_grad()) continue;
    edge = torch::autograd::impl::gradient_edge(x);
    if (!x.is_leaf()) continue;
    const bool may_keep = may_be_kept(x);
    if (may_keep && !has_sizes_of(edge, x)) {
      ORTMODULE_CHECK(!is_held_elsewhere(edge), kRuntime, "[Expect] the graph holds where no history that is alive ",
                      "leads to the accumulator that a leaf had when its sizes were others");
      torch::autograd::impl::set_grad_accumulator(x, WeakNode(NodePtr()));
      edge = torch::autograd::impl::gradient_edge(x);
    }
    out.leaves[k] = &leaf_of(edge);
    out.hooked += is_hooked(*torch::autograd::impl::get_autograd_meta(x));
    const bool again = seen_[k] == x.unsafeGetTensorImpl() || KeptAccumulator::is_kept(edge);
    if (may_keep && again && losses_[k] < kMaxLosses) change(k) = KeptAccumulator::of(edge);
    seen_[k] = x.unsafeGetTensorImpl();
  }
  if (changed) kept_ = std::move(changed);
  current_ = kept_.get();
  out.kept = kept_;
  return out;
}

void KeptEdges::release() {
  current_ = nullptr;
  const StepEdges idle = take_idle();  // both go after the lock: leaves may be freed with them
  std::shared_ptr<const KeptAccumulators> kept;
  const std::lock_guard<std::mutex> lock(mutex_);
  kept_.swap(kept);
}

}  // namespace ortmodule
