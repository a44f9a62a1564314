#include "shapes.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>
#include <c10/core/DefaultDtype.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <mutex>
#include <string>
#include <type_traits>
#include <unordered_map>
#include <utility>

#include "host_view.h"

namespace guarded {
namespace {

using torch::jit::Stack;

constexpr size_t kMostKept = 20000;

bool is_number(const at::Tensor& t) { return t.is_cpu() && t.unsafeGetTensorImpl()->is_wrapped_number(); }

at::Tensor shape_only(const at::Tensor& t) {
  if (is_number(t)) return t;  // meta kernels in Python ask for its value
  return at::empty_strided(t.sizes(), t.strides(), t.options().device(at::kMeta));
}

// What a meta kernel can know, as bytes.
class Key {
 public:
  explicit Key(const c10::OperatorHandle& op) {
    text_ = op.operator_name().name + '.' + op.operator_name().overload_name;
    add(c10::get_default_dtype_as_scalartype());
  }

  // Whether the value is of a kind that is known here.
  bool add_value(const c10::IValue& value) {
    if (value.isTensor() || value.isTensorList() || value.isOptionalTensorList()) {
      map_tensors(value, [this](const at::Tensor& t) {
        add_tensor(t);
        return t;
      });
      if (value.isTensor()) add(value.toTensor().defined());
      if (value.isTensorList()) add(value.toTensorVector().size());
      if (value.isOptionalTensorList())
        for (const auto& t : value.toOptionalTensorVector()) add(t && t->defined());
    } else if (value.isBool()) {
      add('b', value.toBool());
    } else if (value.isInt()) {
      add('i', value.toInt());
    } else if (value.isDouble()) {
      add('d', value.toDouble());
    } else if (value.isIntList()) {
      add('I');
      add_sizes(value.toIntVector());
    } else if (value.isBoolList()) {
      add('B', value.toBoolList().size());
      for (const bool flag : value.toBoolList()) add(flag);
    } else if (value.isString()) {
      add('s', value.toStringRef().size());
      text_ += value.toStringRef();
    } else if (value.isNone()) {
      add('n');
    } else {
      return false;
    }
    return true;
  }

  const std::string& text() const { return text_; }

 private:
  template <typename... T>
  void add(T... values) {
    static_assert((std::is_scalar_v<T> && ...));
    (text_.append(reinterpret_cast<const char*>(&values), sizeof values), ...);
  }
  void add_sizes(at::IntArrayRef sizes) {
    add(sizes.size());
    for (const int64_t size : sizes) add(size);
  }
  void add_tensor(const at::Tensor& t) {
    add('t', t.scalar_type(), is_number(t));
    add_sizes(t.sizes());
    add_sizes(t.strides());
  }

  std::string text_;
};

// On a GPU what a convolution makes of operands with channels last lies so too; meta kernels do not say it.
void lay_out_pictures(const c10::OperatorHandle& op, Shapes& shapes) {
  const std::string& name = op.operator_name().name;
  const bool gradient = name == "aten::convolution_backward";
  if (!gradient && name != "aten::convolution") return;
  auto format = at::MemoryFormat::Contiguous;
  for (size_t operand = gradient ? 1 : 0; operand < (gradient ? 3u : 2u); ++operand)
    if (shapes.operands[operand].toTensor().suggest_memory_format() == at::MemoryFormat::ChannelsLast)
      format = at::MemoryFormat::ChannelsLast;
  for (size_t r = 0; r < (gradient ? 2u : 1u); ++r)
    if (const at::Tensor t = shapes.results[r].toTensor(); t.defined() && t.dim() == 4)
      shapes.results[r] = at::empty(t.sizes(), t.options().memory_format(format));
}

std::shared_ptr<const Shapes> ask(const c10::OperatorHandle& op, const Stack& operands) {
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  const c10::impl::ExcludeDispatchKeyGuard below_autocast(c10::autocast_dispatch_keyset);
  auto shapes = std::make_shared<Shapes>();
  shapes->operands = map_stack(operands, shape_only);
  shapes->results = shapes->operands;
  try {
    op.callBoxed(shapes->results);
  } catch (const std::exception&) {
    return nullptr;
  }
  for (const c10::IValue& value : shapes->results)
    for (const at::Tensor& t : tensors_of(value))
      if (!t.is_meta()) return nullptr;
  lay_out_pictures(op, *shapes);
  return shapes;
}

}  // namespace

std::shared_ptr<const Shapes> shapes_of(const c10::OperatorHandle& op, const Stack& operands) {
  Key key(op);
  for (const c10::IValue& value : operands)
    if (!key.add_value(value)) return ask(op, operands);
  static std::mutex mutex;
  static auto* const kept = new std::unordered_map<std::string, std::shared_ptr<const Shapes>>;
  {
    const std::lock_guard<std::mutex> lock(mutex);
    if (const auto found = kept->find(key.text()); found != kept->end()) return found->second;
  }
  auto shapes = ask(op, operands);
  if (!shapes) return nullptr;
  const std::lock_guard<std::mutex> lock(mutex);  // not while asking, which may wait for the GIL
  if (kept->size() >= kMostKept) kept->clear();
  kept->emplace(key.text(), shapes);
  return shapes;
}

}  // namespace guarded
