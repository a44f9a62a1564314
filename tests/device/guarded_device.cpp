// A device that has no hardware: "guarded", whose memory the host cannot touch outside of the device's own operators.
//
// It stands where a GPU would where there is none. Its operators are the CPU's: operands are copied to the host,
// computed and copied back. Its memory is mapped without access, and opened only while such a copy runs, so that a
// kernel that reads or writes device memory from the host ends the process, as it would fail on a GPU. Like a GPU it
// has an autograd thread of its own and 0-d results that must be asked for. Not here: streams, events and timing.
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/EmptyTensor.h>
#include <ATen/InferSize.h>
#include <ATen/TensorOperators.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/native/CPUFallback.h>
#include <ATen/native/Resize.h>
#include <ATen/native/TensorFactories.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/convolution.h>
#include <ATen/ops/convolution_backward.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/histc.h>
#include <ATen/ops/native_batch_norm.h>
#include <ATen/ops/set_native.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/view_as_complex_native.h>
#include <ATen/ops/view_as_real_native.h>
#include <ATen/ops/view_native.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/Allocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <sys/mman.h>
#include <torch/library.h>

#include <map>
#include <mutex>

namespace {

constexpr auto kDevice = c10::DeviceType::PrivateUse1;
constexpr size_t kBytes = size_t{16} << 30;  // of addresses; pages are taken when they are written
constexpr size_t kPage = 4096;               // no two tensors share one

// One range of addresses for all of the device's memory, closed to the host but where a Window is open.
class DeviceMemory {
 public:
  static DeviceMemory& instance() {
    static DeviceMemory* const memory = new DeviceMemory;  // tensors may outlive every static object
    return *memory;
  }

  void* take(size_t bytes) {
    const size_t size = (bytes + kPage - 1) / kPage * kPage;
    const std::lock_guard<std::mutex> lock(mutex_);
    for (auto it = free_.begin(); it != free_.end(); ++it) {
      if (it->second < size) continue;
      char* const start = it->first;
      if (it->second > size) free_[start + size] = it->second - size;
      free_.erase(start);
      taken_[start] = size;
      return start;
    }
    TORCH_CHECK_WITH(OutOfMemoryError, false, "the guarded device has no ", bytes, " bytes left");
  }

  void give_back(void* pointer) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto taken = taken_.find(static_cast<char*>(pointer));
    auto it = free_.emplace(taken->first, taken->second).first;
    taken_.erase(taken);
    const auto next = std::next(it);
    if (next != free_.end() && it->first + it->second == next->first) {
      it->second += next->second;
      free_.erase(next);
    }
    if (it == free_.begin()) return;
    const auto before = std::prev(it);
    if (before->first + before->second == it->first) {
      before->second += it->second;
      free_.erase(it);
    }
  }

  // Lets the host at the memory that was taken at `pointer`, or no longer. Others' memory is left as it is.
  void open(const void* pointer, bool on) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto taken = taken_.find(static_cast<char*>(const_cast<void*>(pointer)));
    if (taken == taken_.end()) return;
    int& windows = windows_[taken->first];
    windows += on ? 1 : -1;
    if (windows == (on ? 1 : 0)) mprotect(taken->first, taken->second, on ? PROT_READ | PROT_WRITE : PROT_NONE);
    if (windows == 0) windows_.erase(taken->first);
  }

 private:
  DeviceMemory() {
    void* base = mmap(nullptr, kBytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    TORCH_CHECK(base != MAP_FAILED, "no addresses for the guarded device");
    base_ = static_cast<char*>(base);
    free_[base_] = kBytes;
  }

  std::mutex mutex_;
  char* base_;
  std::map<char*, size_t> free_, taken_;
  std::map<char*, int> windows_;  // open ones
};

// While it lives, the host can reach the memory at `pointer`, if it is the device's.
class Window {
 public:
  explicit Window(const void* pointer) : pointer_(pointer) { DeviceMemory::instance().open(pointer_, true); }
  explicit Window(const at::Tensor& x) : Window(x.storage().data()) {}
  ~Window() { DeviceMemory::instance().open(pointer_, false); }
  Window(const Window&) = delete;
  Window& operator=(const Window&) = delete;

 private:
  const void* const pointer_;
};

struct DeviceAllocator final : c10::Allocator {
  static void release(void* pointer) {
    if (pointer) DeviceMemory::instance().give_back(pointer);
  }
  c10::DataPtr allocate(size_t bytes) override {
    void* pointer = bytes ? DeviceMemory::instance().take(bytes) : nullptr;
    return {pointer, pointer, &release, c10::Device(kDevice, 0)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* to, const void* from, size_t bytes) const override {
    const Window reads(from), writes(to);
    default_copy_data(to, from, bytes);
  }
};

DeviceAllocator allocator;
REGISTER_ALLOCATOR(kDevice, &allocator);

struct GuardImpl final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return kDevice; }
  c10::Device exchangeDevice(c10::Device) const override { return {kDevice, 0}; }
  c10::Device getDevice() const override { return {kDevice, 0}; }
  void setDevice(c10::Device) const override {}
  void uncheckedSetDevice(c10::Device) const noexcept override {}
  c10::Stream getStream(c10::Device) const override { return c10::Stream(c10::Stream::DEFAULT, {kDevice, 0}); }
  c10::Stream getDefaultStream(c10::Device device) const override { return getStream(device); }
  c10::Stream exchangeStream(c10::Stream stream) const override { return stream; }
  c10::DeviceIndex deviceCount() const noexcept override { return 1; }
  void record(void**, const c10::Stream&, c10::DeviceIndex, c10::EventFlag) const override {}
  void block(void*, const c10::Stream&) const override {}
  bool queryEvent(void*) const override { return true; }
  void destroyEvent(void*, c10::DeviceIndex) const noexcept override {}
};

C10_REGISTER_GUARD_IMPL(PrivateUse1, GuardImpl);

struct Hooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  c10::DeviceIndex deviceCount() const override { return 1; }
  c10::DeviceIndex getCurrentDevice() const override { return 0; }
  const at::Generator& getDefaultGenerator(c10::DeviceIndex) const override {
    return at::detail::getDefaultCPUGenerator();
  }
  void resizePrivateUse1Bytes(const c10::Storage& storage, size_t bytes) const override {
    at::DataPtr data = storage.allocator()->allocate(bytes);
    if (storage.data()) allocator.copy_data(data.get(), storage.data(), std::min(bytes, storage.nbytes()));
    storage.set_data_ptr_noswap(std::move(data));
    storage.set_nbytes(bytes);
  }
};

const bool hooks_registered = [] {
  at::RegisterPrivateUse1HooksInterface(new Hooks);
  return true;
}();

at::Tensor empty(at::IntArrayRef sizes, std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
                 std::optional<at::Device>, std::optional<bool>, std::optional<at::MemoryFormat> format) {
  return at::detail::empty_generic(sizes, &allocator, c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
                                   c10::dtype_or_default(dtype), format);
}

at::Tensor empty_strided(at::IntArrayRef sizes, at::IntArrayRef strides, std::optional<at::ScalarType> dtype,
                         std::optional<at::Layout>, std::optional<at::Device>, std::optional<bool>) {
  return at::detail::empty_strided_generic(
      sizes, strides, &allocator, c10::DispatchKeySet(c10::DispatchKey::PrivateUse1), c10::dtype_or_default(dtype));
}

// The same memory as a tensor of the host; good while a Window is open.
at::Tensor on_host(const at::Tensor& x) {
  if (x.is_cpu()) return x;
  at::Tensor host = at::from_blob(x.data_ptr(), x.sizes(), x.strides(), x.options().device(at::kCPU));
  host._set_conj(x.is_conj());
  host._set_neg(x.is_neg());
  return host;
}

at::Tensor copy_from(const at::Tensor& from, const at::Tensor& to, bool) {
  const Window reads(from), writes(to);
  on_host(to).copy_(on_host(from));
  return to;
}

at::Tensor copy_from_and_resize(const at::Tensor& from, const at::Tensor& to) {
  if (to.sizes() != from.sizes()) to.resize_(from.sizes());
  return copy_from(from, to, false);
}

at::Scalar item(const at::Tensor& x) {
  const Window window(x);
  return on_host(x).clone().item();
}

const at::Tensor& resize_(const at::Tensor& x, c10::IntArrayRef sizes, std::optional<at::MemoryFormat>) {
  const size_t bytes = at::detail::computeStorageNbytesContiguous(sizes, x.itemsize(), x.storage_offset());
  if (bytes > x.storage().nbytes()) at::detail::getPrivateUse1Hooks().resizePrivateUse1Bytes(x.storage(), bytes);
  x.unsafeGetTensorImpl()->set_sizes_contiguous(sizes);
  return x;
}

at::Tensor convolution(const at::Tensor& x, const at::Tensor& w, const std::optional<at::Tensor>& bias,
                       c10::SymIntArrayRef stride, c10::SymIntArrayRef padding, c10::SymIntArrayRef dilation,
                       bool transposed, c10::SymIntArrayRef output_padding, c10::SymInt groups) {
  std::optional<at::Tensor> b;
  if (bias && bias->defined()) b = bias->cpu();
  return at::convolution_symint(x.cpu(), w.cpu(), b, stride, padding, dilation, transposed, output_padding, groups)
      .to(x.device());
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> convolution_backward(const at::Tensor& dy, const at::Tensor& x,
                                                                    const at::Tensor& w, c10::SymIntArrayRef stride,
                                                                    c10::SymIntArrayRef padding,
                                                                    c10::SymIntArrayRef dilation, bool transposed,
                                                                    c10::SymIntArrayRef output_padding,
                                                                    c10::SymInt groups, std::array<bool, 3> wanted) {
  const c10::SymInt channels = dy.sym_size(1);
  auto [dx, dw, db] =
      at::convolution_backward_symint(dy.cpu(), x.cpu(), w.cpu(), c10::SymIntArrayRef(&channels, 1), stride, padding,
                                      dilation, transposed, output_padding, groups, wanted);
  const auto back = [&](const at::Tensor& t) { return t.defined() ? t.to(x.device()) : t; };
  return {back(dx), back(dw), back(db)};
}

// Its schema does not say that it writes the running statistics.
std::tuple<at::Tensor, at::Tensor, at::Tensor> batch_norm(const at::Tensor& x, const std::optional<at::Tensor>& weight,
                                                          const std::optional<at::Tensor>& bias,
                                                          const std::optional<at::Tensor>& mean,
                                                          const std::optional<at::Tensor>& variance, bool training,
                                                          double momentum, double epsilon) {
  const auto host = [](const std::optional<at::Tensor>& t) { return t && t->defined() ? t->cpu() : at::Tensor(); };
  const at::Tensor host_mean = host(mean), host_variance = host(variance);
  auto [y, kept_mean, kept_scale] =
      at::native_batch_norm(x.cpu(), host(weight), host(bias), host_mean, host_variance, training, momentum, epsilon);
  if (host_mean.defined() && training) mean->copy_(host_mean);
  if (host_variance.defined() && training) variance->copy_(host_variance);
  return {y.to(x.device()), kept_mean.to(x.device()), kept_scale.to(x.device())};
}

at::Tensor histogram(const at::Tensor& x, int64_t bins, const at::Scalar& least, const at::Scalar& most) {
  return at::histc(x.cpu().to(at::kFloat), bins, least, most).to(x.device(), x.scalar_type());  // of integers too
}

// The cells of LSTM and GRU, which torch asks of every accelerator.
using Optional = const std::optional<at::Tensor>&;

std::tuple<at::Tensor, at::Tensor, at::Tensor> lstm_cell(const at::Tensor& x, const at::Tensor& h, const at::Tensor& cx,
                                                         Optional bias_x, Optional bias_h) {
  at::Tensor sum = x + h;
  if (bias_x && bias_x->defined()) sum = sum + *bias_x + *bias_h;
  const auto parts = sum.chunk(4, 1);
  const at::Tensor i = parts[0].sigmoid(), f = parts[1].sigmoid(), g = parts[2].tanh(), o = parts[3].sigmoid();
  const at::Tensor cy = f * cx + i * g;
  return {o * cy.tanh(), cy, at::cat({i, f, g, o}, 1)};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> lstm_cell_backward(Optional dhy, Optional dcy, const at::Tensor& cx,
                                                                  const at::Tensor& cy, const at::Tensor& kept,
                                                                  bool has_bias) {
  const auto gates = kept.chunk(4, 1);
  const at::Tensor &i = gates[0], &f = gates[1], &g = gates[2], &o = gates[3], t = cy.tanh();
  const at::Tensor dh = dhy && dhy->defined() ? *dhy : at::zeros_like(cy);
  at::Tensor dc = dh * o * (1 - t * t);
  if (dcy && dcy->defined()) dc = dc + *dcy;
  const at::Tensor d =
      at::cat({dc * g * i * (1 - i), dc * cx * f * (1 - f), dc * i * (1 - g * g), dh * t * o * (1 - o)}, 1);
  return {d, dc * f, has_bias ? d.sum(0) : at::Tensor()};
}

std::tuple<at::Tensor, at::Tensor> gru_cell(const at::Tensor& x, const at::Tensor& h, const at::Tensor& hx,
                                            Optional bias_x, Optional bias_h) {
  const bool biased = bias_x && bias_x->defined();
  const auto of_x = (biased ? x + *bias_x : x).chunk(3, 1), of_h = (biased ? h + *bias_h : h).chunk(3, 1);
  const at::Tensor r = (of_x[0] + of_h[0]).sigmoid(), z = (of_x[1] + of_h[1]).sigmoid();
  const at::Tensor n = (of_x[2] + r * of_h[2]).tanh();
  return {n + z * (hx - n), at::cat({r, z, n, hx, of_h[2]}, 1)};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor> gru_cell_backward(const at::Tensor& d,
                                                                                         const at::Tensor& kept,
                                                                                         bool has_bias) {
  const auto parts = kept.chunk(5, 1);
  const at::Tensor &r = parts[0], &z = parts[1], &n = parts[2], &hx = parts[3], &h = parts[4];
  const at::Tensor dn = d * (1 - z) * (1 - n * n), dz = d * (hx - n) * z * (1 - z), dr = dn * h * r * (1 - r);
  const at::Tensor dx = at::cat({dr, dz, dn}, 1), dh = at::cat({dr, dz, dn * r}, 1);
  return {dx, dh, d * z, has_bias ? dx.sum(0) : at::Tensor(), has_bias ? dh.sum(0) : at::Tensor()};
}

// A GPU's operators take the host's tensors as numbers and as indices alone, and write none of them.
void check_devices(const c10::OperatorHandle& op, torch::jit::Stack& stack) {
  const auto& arguments = op.schema().arguments();
  const bool indexes = op.schema().name().find("index") != std::string::npos;
  for (size_t k = 0; k < arguments.size(); ++k) {
    c10::IValue& value = stack[stack.size() - arguments.size() + k];
    const bool written = arguments[k].alias_info() && arguments[k].alias_info()->isWrite();
    const auto check = [&](const at::Tensor& t) {
      TORCH_CHECK(!t.defined() || !t.is_cpu() || (!written && (indexes || t.dim() == 0)),
                  "Expected all tensors to be on the same device, but ", op.schema().name(), " got one on the host of ",
                  "shape ", t.sizes(), " as '", arguments[k].name(), "'");
    };
    if (value.isTensorList()) {
      for (const at::Tensor& t : value.toTensorVector()) check(t);
    } else if (value.isTensor()) {
      check(value.toTensor());
      // The first tensor's device is the result's in what follows.
      if (value.toTensor().defined()) value = value.toTensor().to(c10::Device(kDevice, 0));
    }
  }
}

void compute_on_host(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  check_devices(op, *stack);
  at::native::cpu_fallback(op, stack, /*error_on_views=*/false);
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("empty.memory_format", &empty);
  m.impl("empty_strided", &empty_strided);
  m.impl("as_strided", &at::native::as_strided_tensorimpl);
  m.impl("view", static_cast<at::Tensor (*)(const at::Tensor&, at::IntArrayRef)>(&at::native::view));
  m.impl("_reshape_alias", &at::native::_reshape_alias);
  m.impl("unfold", &at::native::unfold);
  m.impl("view_as_real", &at::native::view_as_real);
  m.impl("view_as_complex", &at::native::view_as_complex);
  m.impl("resize_", &resize_);
  m.impl("set_.source_Tensor", &at::native::set_tensor_);
  m.impl("set_.source_Storage", &at::native::set_);
  m.impl("set_.source_Storage_storage_offset", &at::native::set_storage_cpu_);
  m.impl("_copy_from", &copy_from);
  m.impl("_copy_from_and_resize", &copy_from_and_resize);
  m.impl("_local_scalar_dense", &item);
  m.impl("native_batch_norm", &batch_norm);
  m.impl("histc", &histogram);
  m.impl("_thnn_fused_lstm_cell", &lstm_cell);
  m.impl("_thnn_fused_lstm_cell_backward_impl", &lstm_cell_backward);
  m.impl("_thnn_fused_gru_cell", &gru_cell);
  m.impl("_thnn_fused_gru_cell_backward", &gru_cell_backward);
  m.impl("convolution_overrideable", &convolution);
  m.impl("convolution_backward_overrideable", &convolution_backward);
}

// A copy of a conjugated or negated view is what on_host says; the usual way, a copy first, would not end.
TORCH_LIBRARY_IMPL(aten, Conjugate, m) { m.impl("_copy_from", torch::CppFunction::makeFallthrough()); }
TORCH_LIBRARY_IMPL(aten, Negative, m) { m.impl("_copy_from", torch::CppFunction::makeFallthrough()); }

TORCH_LIBRARY_IMPL(_, AutocastPrivateUse1, m) { m.fallback(torch::CppFunction::makeFallthrough()); }

TORCH_LIBRARY_IMPL(_, PrivateUse1, m) { m.fallback(torch::CppFunction::makeFromBoxedFunction<&compute_on_host>()); }

}  // namespace
