#include "products/constant_factor.h"

#include <array>
#include <map>
#include <utility>

#include "base/mapped_pages.h"

namespace ortmodule {

// Holds the matrix, so that nothing else comes to lie where its panels are looked up.
struct ConstantFactor::Packed {
  at::Tensor matrix;
  PackedFactor panels;
};

namespace {

// Where a matrix lies and how.
using Place = std::array<int64_t, 5>;

Place place_of(const at::Tensor& b) {
  return {reinterpret_cast<int64_t>(b.const_data_ptr()), b.size(0), b.size(1), b.stride(0), b.stride(1)};
}

bool is_plain(const at::Tensor& b) {
  return b.is_cpu() && b.scalar_type() == at::kFloat && b.layout() == at::kStrided && b.dim() == 2 && b.numel() > 0 &&
         !b.is_neg();
}

}  // namespace

std::shared_ptr<ConstantFactor> ConstantFactor::of(const Node& node, size_t i) {
  const NodeArg* value = node.input(i);
  const Node* view = value ? value->producer() : nullptr;
  if (view && view->qualified_op() == "Transpose") value = view->input(0);
  return value && value->constant() ? std::make_shared<ConstantFactor>() : nullptr;
}

std::shared_ptr<const ConstantFactor::Packed> ConstantFactor::shared(const at::Tensor& b) {
  static std::mutex mutex;
  static auto& all = *new std::map<Place, std::weak_ptr<const Packed>>();  // sessions may outlive static objects
  const std::lock_guard lock(mutex);
  std::erase_if(all, [](const auto& entry) { return entry.second.expired(); });
  std::weak_ptr<const Packed>& known = all[place_of(b)];
  if (auto found = known.lock()) return found;
  const StridedMatrix matrix{b.const_data_ptr<float>(), b.stride(0), b.stride(1)};
  auto made = std::make_shared<const Packed>(Packed{b, PackedFactor(b.size(1), b.size(0), matrix)});
  known = made;
  if (b.is_non_overlapping_and_dense()) release_pages(b.const_data_ptr(), b.nbytes());
  return made;
}

const PackedFactor* ConstantFactor::panels(const at::Tensor& b) {
  if (!is_plain(b)) return nullptr;
  std::call_once(once_, [&] { packed_ = shared(b); });
  return place_of(packed_->matrix) == place_of(b) ? &packed_->panels : nullptr;
}

}  // namespace ortmodule
