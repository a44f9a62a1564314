#include "ops/pool/dilated_mean.h"

#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/convolution.h>
#include <ATen/ops/div.h>
#include <ATen/ops/ones.h>
#include <c10/util/DimVector.h>

namespace ortmodule {
namespace {

// Pads per axis with which the windows end exactly at the padded end; `real_end` are the pads that were asked for.
struct Frame {
  std::vector<int64_t> begin, end, real_end, out;

  Frame(const PoolAttributes& a, c10::IntArrayRef x) {
    for (size_t i = 0; i < a.rank(); ++i) {
      const int64_t size = x[i + 2], first = a.pads[i], last = a.pads[i + a.rank()], stride = a.strides[i];
      const int64_t span = size + first + last - a.extent(i);
      int64_t count = (a.ceil ? span + stride - 1 : span) / stride + 1;
      // A window starts inside the input or its left pad.
      if (a.ceil && (count - 1) * stride >= size + first) --count;
      begin.push_back(first);
      real_end.push_back(last);
      end.push_back((count - 1) * stride + a.extent(i) - size - first);
      out.push_back(count);
    }
  }
};

// constant_pad_nd's list: the last dimension first; negative numbers cut.
c10::DimVector pads(const std::vector<int64_t>& begin, const std::vector<int64_t>& end, int64_t sign) {
  c10::DimVector list;
  for (size_t i = begin.size(); i-- > 0;) {
    list.push_back(sign * begin[i]);
    list.push_back(sign * end[i]);
  }
  return list;
}

at::Tensor window_of_ones(const PoolAttributes& a, const at::TensorOptions& options) {
  c10::DimVector sizes{1, 1};
  sizes.append(a.kernel.begin(), a.kernel.end());
  return at::ones(sizes, options);
}

at::Tensor window_sums(const at::Tensor& x, const PoolAttributes& a, bool transposed) {
  c10::DimVector planes(x.sizes());
  planes[0] = x.size(0) * x.size(1);
  planes[1] = 1;
  const std::vector<int64_t> zeros(a.rank(), 0);
  const at::Tensor y = at::convolution(x.reshape(planes), window_of_ones(a, x.options()), at::Tensor(), a.strides,
                                       zeros, a.dilations, transposed, zeros, 1);
  c10::DimVector sizes(y.sizes());
  sizes[0] = x.size(0);
  sizes[1] = x.size(1);
  return y.reshape(sizes);
}

// How many elements each window counts.
at::Tensor counts(const Frame& f, c10::IntArrayRef x, const PoolAttributes& a, bool include_pad,
                  const at::TensorOptions& options) {
  std::vector<int64_t> sizes = x.vec();
  sizes[0] = sizes[1] = 1;
  std::vector<int64_t> begin = f.begin, end = f.end;
  if (include_pad)
    for (size_t i = 0; i < a.rank(); ++i) {
      sizes[i + 2] += f.begin[i] + f.real_end[i];
      begin[i] = 0;
      end[i] -= f.real_end[i];
    }
  return window_sums(at::constant_pad_nd(at::ones(sizes, options), pads(begin, end, 1)), a, false);
}

}  // namespace

at::Tensor dilated_mean(const at::Tensor& x, const PoolAttributes& a, bool include_pad) {
  const Frame f(a, x.sizes());
  const at::Tensor sums = window_sums(at::constant_pad_nd(x, pads(f.begin, f.end, 1)), a, false);
  return at::div(sums, counts(f, x.sizes(), a, include_pad, x.options()));
}

at::Tensor dilated_mean_grad(const at::Tensor& dy, c10::IntArrayRef x_sizes, const PoolAttributes& a,
                             bool include_pad) {
  const Frame f(a, x_sizes);
  const at::Tensor share = at::div(dy, counts(f, x_sizes, a, include_pad, dy.options()));
  return at::constant_pad_nd(window_sums(share, a, true), pads(f.begin, f.end, -1));
}

}  // namespace ortmodule
