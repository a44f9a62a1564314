// "cuda" kernels of GroupedMatMul and its gradient (grouped_matmul.cu) for small products: the host need not know where
// the groups end, so that it does not wait for the device.
//
// Large ones are the "aten" kernels', a product for each group by the library: there a host that waits, some 30 us, is
// worth less than tensor cores.
#include <ATen/ops/empty.h>

#include "kernels/cuda_kernel.h"
#include "ops/linear/grouped_matmul_launch.h"

namespace ortmodule {
namespace {

constexpr double kMostFlops = 4e8;  // about as long as a wait, at a tenth of a large GPU's float32 rate
constexpr int64_t kMostGroups = 65534;

bool is_small(double rows, double inner, double outer) { return 2 * rows * inner * outer <= kMostFlops; }

bool counts(const KernelContext& c, const at::Tensor& ends) {
  const bool integers = ends.scalar_type() == at::kLong || ends.scalar_type() == at::kInt;
  return cuda_plain(c, ends) && ends.dim() == 1 && ends.numel() <= kMostGroups && integers;
}

bool is_rows(const KernelContext& c, const at::Tensor& x, at::ScalarType type) {
  return x.dim() == 2 && cuda_plain(c, x) && cuda_element(x) && x.scalar_type() == type;
}

// A matrix for each group, of any strides: models hold them transposed.
bool is_matrices(const KernelContext& c, const at::Tensor& w, int64_t groups, at::ScalarType type) {
  return w.dim() == 3 && w.size(0) == groups && w.scalar_type() == type && w.device() == c.device() && w.numel() > 0 &&
         w.layout() == at::kStrided && !w.is_neg();
}

at::Tensor multiplied(const CudaQueue& queue, cuda::GroupedForm form, const at::Tensor& ends, const at::Tensor& a,
                      const at::Tensor& b, c10::IntArrayRef sizes, int64_t inner, int64_t outer) {
  at::Tensor to = at::empty(sizes, a.options());
  const bool matrices = b.dim() == 3;
  queue.run("grouped_matmul", cuda::GroupedMatMulLaunch{
                                  *cuda_element(a),
                                  form,
                                  a.size(0),
                                  inner,
                                  outer,
                                  ends.numel(),
                                  ends.const_data_ptr<int64_t>(),
                                  address(a),
                                  address(b),
                                  {matrices ? b.stride(0) : 0, matrices ? b.stride(1) : 0, matrices ? b.stride(2) : 0},
                                  mutable_address(to)});
  return to;
}

Kernel make_forward(const Node& node) {
  return cuda_kernel(node, [](KernelContext& c, const CudaQueue& queue) {
    const at::Tensor &x = c.in(0), &w = c.in(1);
    if (!counts(c, c.in(2)) || !is_rows(c, x, x.scalar_type()) ||
        !is_matrices(c, w, c.in(2).numel(), x.scalar_type()) || x.size(1) != w.size(1) ||
        !is_small(x.size(0), w.size(1), w.size(2)))
      return false;
    c.out(0, multiplied(queue, cuda::GroupedForm::kForward, c.in(2).to(at::kLong), x, w, {x.size(0), w.size(2)},
                        w.size(1), w.size(2)));
    return true;
  });
}

Kernel make_gradient(const Node& node) {
  return cuda_kernel(node, [](KernelContext& c, const CudaQueue& queue) {
    const at::Tensor& dy = c.in(0);
    const at::ScalarType type = dy.scalar_type();
    if (!counts(c, c.in(3)) || !is_rows(c, dy, type)) return false;
    const int64_t rows = dy.size(0), outer = dy.size(1), groups = c.in(3).numel();
    if (c.wants(0)) {
      const at::Tensor& w = c.in(2);
      if (!is_matrices(c, w, groups, type) || w.size(2) != outer || !is_small(rows, w.size(1), outer)) return false;
    }
    if (c.wants(1)) {
      const at::Tensor& x = c.in(1);
      if (!is_rows(c, x, type) || x.size(0) != rows || !is_small(rows, x.size(1), outer)) return false;
    }
    const at::Tensor ends = c.in(3).to(at::kLong);
    if (c.wants(0)) {
      const at::Tensor& w = c.in(2);
      c.out(0, multiplied(queue, cuda::GroupedForm::kInput, ends, dy, w, {rows, w.size(1)}, w.size(1), outer));
    }
    if (c.wants(1)) {
      const at::Tensor& x = c.in(1);
      c.out(1,
            multiplied(queue, cuda::GroupedForm::kWeight, ends, x, dy, {groups, x.size(1), outer}, x.size(1), outer));
    }
    return true;
  });
}

}  // namespace

ORTMODULE_KERNEL("ai.ortmodule", GroupedMatMul, "cuda", make_forward).types(kCudaTypes);
ORTMODULE_KERNEL("ai.ortmodule", GroupedMatMulGrad, "cuda", make_gradient).types(kCudaTypes);

}  // namespace ortmodule
