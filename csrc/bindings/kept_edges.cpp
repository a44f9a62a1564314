#include "bindings/kept_edges.h"

#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include <torch/csrc/autograd/variable.h>

#include <unordered_map>

namespace ortmodule {

using torch::autograd::AccumulateGrad;
using torch::autograd::AutogradMeta;
using torch::autograd::Edge;

namespace {

// Edge::function is a std::shared_ptr up to torch 2.12 and an intrusive_ptr after it.
using NodePtr = decltype(Edge::function);
using WeakNode = decltype(AutogradMeta::grad_accumulator_);

// A leaf that is another one at each step (an input) is given up.
constexpr int kMaxLosses = 4;

template <typename Weak, typename Strong>
bool refers_to(const Weak& weak, const Strong& node) {
  if constexpr (requires { weak._unsafe_get_target(); })
    return weak._unsafe_get_target() == node.get();
  else
    return !weak.owner_before(node) && !node.owner_before(weak);
}

const at::Tensor& leaf_of(const Edge& edge) { return static_cast<AccumulateGrad&>(*edge.function).variable; }

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
    if (x.unsafeGetTensorImpl() != leaf_) return nullptr;
    const AutogradMeta* meta = torch::autograd::impl::get_autograd_meta(x);
    return meta && !meta->grad_fn_ && refers_to(meta->grad_accumulator_, edge_.function) ? meta : nullptr;
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

// This and release() are called without the GIL, which a tensor may take when it comes to be held and when it goes.
std::shared_ptr<const KeptAccumulators> KeptEdges::find(const std::vector<at::Tensor>& inputs,
                                                        const std::vector<size_t>& places,
                                                        const std::vector<bool>& wanted,
                                                        torch::autograd::edge_list& edges,
                                                        std::vector<const at::Tensor*>& leaves) {
  const size_t count = places.size();
  edges.resize(count);
  leaves.resize(count, nullptr);
  const std::lock_guard<std::mutex> lock(mutex_);
  if (!kept_) {
    kept_ = std::make_shared<const KeptAccumulators>(count);
    seen_.assign(count, nullptr);
    losses_.resize(count, 0);
  }
  std::shared_ptr<KeptAccumulators> changed;
  const auto change = [&](size_t k) -> std::shared_ptr<const KeptAccumulator>& {
    if (!changed) changed = std::make_shared<KeptAccumulators>(*kept_);
    return (*changed)[k];
  };
  for (size_t k = 0; k < count; ++k) {
    if (!wanted[k]) continue;
    const at::Tensor& x = inputs[places[k]];
    const KeptAccumulator* kept = (*kept_)[k].get();
    if (const AutogradMeta* meta = kept ? kept->leaf_meta(x) : nullptr) {
      if (!meta->requires_grad_) continue;
      edges[k] = kept->edge();
      leaves[k] = &leaf_of(edges[k]);
      continue;
    }
    if (kept) {
      ++losses_[k];
      change(k) = nullptr;
    }
    if (!x.requires_grad()) continue;
    edges[k] = torch::autograd::impl::gradient_edge(x);
    if (!x.is_leaf()) continue;
    const bool may_keep = x.is_cpu() && !torch::autograd::impl::get_view_autograd_meta(x);
    if (may_keep && !has_sizes_of(edges[k], x)) {
      torch::autograd::impl::set_grad_accumulator(x, WeakNode(NodePtr()));
      edges[k] = torch::autograd::impl::gradient_edge(x);
    }
    leaves[k] = &leaf_of(edges[k]);
    if (may_keep && seen_[k] == x.unsafeGetTensorImpl() && losses_[k] < kMaxLosses)
      change(k) = KeptAccumulator::of(edges[k]);
    seen_[k] = x.unsafeGetTensorImpl();
  }
  if (changed) kept_ = std::move(changed);
  return kept_;
}

void KeptEdges::release() {
  std::shared_ptr<const KeptAccumulators> kept;  // goes after the lock: leaves may be freed with it
  const std::lock_guard<std::mutex> lock(mutex_);
  kept_.swap(kept);
}

}  // namespace ortmodule
