#include "kernels/sequence_value.h"

#include <c10/core/TensorImpl.h>

#include "base/status.h"

namespace ortmodule {
namespace {

class SequenceImpl final : public c10::TensorImpl {
 public:
  SequenceImpl(std::vector<at::Tensor> elements, at::ScalarType type)
      : c10::TensorImpl(c10::DispatchKeySet(), c10::scalarTypeToTypeMeta(type), c10::Device(c10::kCPU)),
        elements_(std::move(elements)) {}
  const std::vector<at::Tensor>& elements() const { return elements_; }

 private:
  const char* tensorimpl_type_name() const override { return "ortmodule::SequenceImpl"; }
  std::vector<at::Tensor> elements_;
};

const SequenceImpl* find(const at::Tensor& value) {
  return dynamic_cast<const SequenceImpl*>(value.unsafeGetTensorImpl());
}

const SequenceImpl& get(const at::Tensor& value) {
  const SequenceImpl* impl = find(value);
  ORTMODULE_CHECK(impl, kRuntime, "expected a sequence, got ", value.defined() ? "a tensor" : "nothing");
  return *impl;
}

}  // namespace

at::Tensor make_sequence(std::vector<at::Tensor> elements, at::ScalarType element_type) {
  return at::Tensor(c10::make_intrusive<SequenceImpl>(std::move(elements), element_type));
}

bool holds_sequence(const at::Tensor& value) { return find(value) != nullptr; }

const std::vector<at::Tensor>& sequence_elements(const at::Tensor& value) { return get(value).elements(); }

at::ScalarType sequence_element_type(const at::Tensor& value) { return c10::typeMetaToScalarType(get(value).dtype()); }

}  // namespace ortmodule
