#include "kernels/aten_bridge.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>

#include <cstring>

#include "base/status.h"
#include "kernels/kernel_context.h"

namespace ortmodule {
namespace {

constexpr std::pair<DType, at::ScalarType> kTypes[] = {
    {DType::kFloat, at::kFloat},
    {DType::kDouble, at::kDouble},
    {DType::kFloat16, at::kHalf},
    {DType::kBFloat16, at::kBFloat16},
    {DType::kInt64, at::kLong},
    {DType::kInt32, at::kInt},
    {DType::kInt16, at::kShort},
    {DType::kInt8, at::kChar},
    {DType::kUInt8, at::kByte},
    {DType::kBool, at::kBool},
    {DType::kUInt16, at::kUInt16},
    {DType::kUInt32, at::kUInt32},
    {DType::kUInt64, at::kUInt64},
    {DType::kComplex64, at::kComplexFloat},
    {DType::kComplex128, at::kComplexDouble},
    {DType::kFloat8E4M3FN, at::kFloat8_e4m3fn},
    {DType::kFloat8E4M3FNUZ, at::kFloat8_e4m3fnuz},
    {DType::kFloat8E5M2, at::kFloat8_e5m2},
    {DType::kFloat8E5M2FNUZ, at::kFloat8_e5m2fnuz},
    {DType::kFloat8E8M0, at::kFloat8_e8m0fnu},
    // A byte per element (base/dtype.h). Below the types that are torch's own: to_dtype() takes the first.
    {DType::kInt4, at::kChar},
    {DType::kInt2, at::kChar},
    {DType::kUInt4, at::kByte},
    {DType::kUInt2, at::kByte},
    {DType::kFloat4E2M1, at::kByte},
    {DType::kFloat6E2M3, at::kByte},
    {DType::kFloat6E3M2, at::kByte},
};

}  // namespace

at::ScalarType to_scalar_type(DType dtype) {
  for (const auto& [ours, theirs] : kTypes)
    if (ours == dtype) return theirs;
  fail(ErrorCode::kUnsupported, "torch has no element type for ", dtype_name(dtype));
}

DType to_dtype(at::ScalarType type) {
  for (const auto& [ours, theirs] : kTypes)
    if (theirs == type) return ours;
  fail(ErrorCode::kUnsupported, "ONNX has no element type for torch's ", c10::toString(type));
}

namespace {

at::TensorOptions options_of(const TensorData& data) {
  const auto options = at::TensorOptions().dtype(to_scalar_type(data.dtype)).device(at::kCPU);
  const size_t needed = static_cast<size_t>(data.elements()) * options.dtype().itemsize();
  ORTMODULE_CHECK_GRAPH(needed == data.bytes->size(), "a constant of type ", dtype_name(data.dtype), " with ",
                        data.elements(), " elements holds ", data.bytes->size(), " bytes instead of ", needed);
  return options;
}

}  // namespace

at::Tensor shared_tensor_from(const TensorData& data) {
  const auto address = reinterpret_cast<uintptr_t>(data.bytes->data());
  if (data.bytes->size() < kManyBytes || address % kTensorAlignment != 0) return tensor_from(data);
  return at::from_blob(
      const_cast<char*>(data.bytes->data()), data.dims, [owner = data.bytes.owner()](void*) {}, options_of(data));
}

at::Tensor tensor_from(const TensorData& data) {
  at::Tensor out = at::empty(data.dims, options_of(data));
  if (out.nbytes() != 0) std::memcpy(out.data_ptr(), data.bytes->data(), out.nbytes());
  return out;
}

TensorData tensor_data_from(const at::Tensor& tensor) {
  const at::Tensor host = tensor.to(at::kCPU).contiguous();
  TensorData data;
  data.dtype = to_dtype(host.scalar_type());
  data.dims = host.sizes().vec();
  data.bytes = SharedBytes::aligned(host.nbytes(), [&](char* to) {
    if (host.nbytes() != 0) std::memcpy(to, host.const_data_ptr(), host.nbytes());
  });
  return data;
}

TensorData shared_data_from(const at::Tensor& tensor) {
  if (!tensor.is_cpu() || !tensor.is_contiguous()) return tensor_data_from(tensor);
  const std::string_view bytes(static_cast<const char*>(tensor.const_data_ptr()), tensor.nbytes());
  return {to_dtype(tensor.scalar_type()), tensor.sizes().vec(), {std::make_shared<const at::Tensor>(tensor), bytes}};
}

// Placement brings what a record declares as a host's input; a copy in here would be one that no plan shows.
const at::Tensor& KernelContext::host(size_t i) const {
  const at::Tensor& value = in(i);
  ORTMODULE_INTERNAL(value.is_cpu(), "input ", i, " is read on the host and lies on ", value.device().str());
  return value;
}

std::vector<int64_t> KernelContext::ints(size_t i) const {
  const at::Tensor t =
      host(i).scalar_type() == at::kLong && host(i).is_contiguous() ? host(i) : host(i).to(at::kLong).contiguous();
  const auto* data = t.const_data_ptr<int64_t>();
  return {data, data + t.numel()};
}

int64_t KernelContext::int_value(size_t i) const { return host(i).item().toLong(); }
double KernelContext::double_value(size_t i) const { return host(i).item().toDouble(); }

}  // namespace ortmodule
