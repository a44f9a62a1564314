// ATen kernels of Col2Im, its gradient, and CenterCropPad.
#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/index_select.h>
#include <ATen/ops/zeros.h>

#include "base/near_numbers.h"
#include "base/status.h"
#include "kernels/host_values.h"
#include "kernels/kernel_context.h"
#include "records/kernel_registry.h"

namespace ortmodule {
namespace {

// Where the columns of an image lie in the padded image.
struct Columns {
  std::vector<int64_t> pads;  // torch's order, the last axis first
  c10::DimVector padded;
  int64_t image_elements = 1, block_elements = 1, blocks = 1;
  at::Tensor positions;  // [block_elements * blocks], flat in the padded image

  Columns(c10::IntArrayRef image, c10::IntArrayRef block, const std::vector<int64_t>& dilations,
          const std::vector<int64_t>& given_pads, const std::vector<int64_t>& strides, c10::Device device) {
    const size_t n = image.size();
    const auto fits = [&](const std::vector<int64_t>& list, size_t count) {
      return list.empty() || list.size() == count;
    };
    ORTMODULE_CHECK(
        are_near(image) && are_near(block) && are_near(dilations) && are_near(given_pads) && are_near(strides),
        kRuntime, "[Col2Im] image_shape ", image, ", block_shape ", block,
        " or an attribute has numbers that are too large");
    ORTMODULE_CHECK(n > 0 && block.size() == n && fits(dilations, n) && fits(given_pads, 2 * n) && fits(strides, n),
                    kRuntime, "[Col2Im] image_shape ", image, ", block_shape ", block,
                    " and the attributes should speak of as many axes");
    const auto number = [](const std::vector<int64_t>& list, size_t i, int64_t fallback) {
      return list.empty() ? fallback : list[i];
    };
    positions = at::zeros({1, 1}, at::TensorOptions(at::kLong).device(device));
    pads.assign(2 * n, 0);
    for (size_t i = 0; i < n; ++i) {
      const int64_t before = number(given_pads, i, 0), after = number(given_pads, i + n, 0);
      const int64_t stride = number(strides, i, 1), dilation = number(dilations, i, 1);
      const int64_t size = image[i] + before + after, span = size - dilation * (block[i] - 1) - 1;
      ORTMODULE_CHECK(
          image[i] > 0 && block[i] > 0 && stride > 0 && dilation > 0 && before >= 0 && after >= 0 && span >= 0,
          kRuntime, "[Col2Im] a block of ", block[i], " does not fit an image of ", image[i]);
      const int64_t count = span / stride + 1;
      pads[2 * (n - 1 - i)] = before;
      pads[2 * (n - 1 - i) + 1] = after;
      padded.push_back(size);
      const at::TensorOptions options = positions.options();
      const at::Tensor places = at::arange(block[i], options)
                                    .mul_(dilation)
                                    .unsqueeze(1)
                                    .add(at::arange(count, options).mul_(stride).unsqueeze(0));
      positions = positions.mul(size).view({block_elements, 1, blocks, 1}).add(places.view({1, block[i], 1, count}));
      image_elements *= size;
      block_elements *= block[i];
      blocks *= count;
      positions = positions.reshape({block_elements, blocks});
    }
    positions = positions.view(-1);
  }
};

struct Col2ImAttributes {
  std::vector<int64_t> dilations, pads, strides;
  explicit Col2ImAttributes(const Node& node)
      : dilations(node.get_ints("dilations")), pads(node.get_ints("pads")), strides(node.get_ints("strides")) {}
  Columns columns(c10::IntArrayRef image, c10::IntArrayRef block, c10::Device device) const {
    return Columns(image, block, dilations, pads, strides, device);
  }
};

Kernel make_col2im(const Node& node) {
  return [a = Col2ImAttributes(node), image = HostInts(node, 1), block = HostInts(node, 2)](KernelContext& c) {
    c10::DimVector s1, s2;
    const at::Tensor& x = c.in(0);
    const Columns m = a.columns(image.read(c, s1), block.read(c, s2), x.device());
    ORTMODULE_CHECK(x.dim() == 3 && x.size(1) % m.block_elements == 0 && x.size(2) == m.blocks, kRuntime,
                    "[Col2Im] an input of shape ", x.sizes(), " does not hold blocks of ", m.block_elements,
                    " elements at ", m.blocks, " places");
    const int64_t channels = x.size(1) / m.block_elements, planes = x.size(0) * channels;
    at::Tensor y = at::zeros({planes, m.image_elements}, x.options());
    y.index_add_(1, m.positions, x.reshape({planes, m.block_elements * m.blocks}));
    c10::DimVector sizes{x.size(0), channels};
    sizes.append(m.padded.begin(), m.padded.end());
    std::vector<int64_t> cut;
    for (int64_t p : m.pads) cut.push_back(-p);
    c.out(0, at::constant_pad_nd(y.view(sizes), cut));
  };
}

Kernel make_col2im_grad(const Node& node) {
  return [a = Col2ImAttributes(node), block = HostInts(node, 1)](KernelContext& c) {
    c10::DimVector storage;
    const at::Tensor& dy = c.in(0);
    const Columns m = a.columns(dy.sizes().slice(2), block.read(c, storage), dy.device());
    const at::Tensor padded = at::constant_pad_nd(dy, m.pads).reshape({dy.size(0) * dy.size(1), m.image_elements});
    c.out(0, at::index_select(padded, 1, m.positions).view({dy.size(0), dy.size(1) * m.block_elements, m.blocks}));
  };
}

Kernel make_center_crop_pad(const Node& node) {
  return [axes = node.get_ints("axes"), sizes = HostInts(node, 1)](KernelContext& c) {
    c10::DimVector storage;
    const at::Tensor& x = c.in(0);
    const c10::IntArrayRef wanted = sizes.read(c, storage);
    const auto rank = static_cast<size_t>(x.dim());
    const size_t count = axes.empty() ? rank : axes.size();
    ORTMODULE_CHECK(wanted.size() == count, kRuntime, "[CenterCropPad] expected ", count, " sizes, got ",
                    wanted.size());
    std::vector<int64_t> pads(2 * rank, 0);
    for (size_t k = 0; k < count; ++k) {
      const int64_t axis = axes.empty() ? static_cast<int64_t>(k) : positive_axis(axes[k], x.dim(), "CenterCropPad");
      ORTMODULE_CHECK(wanted[k] >= 0, kRuntime, "[CenterCropPad] a size of ", wanted[k]);
      // The odd element is cut or added at the end.
      const int64_t more = wanted[k] - x.size(axis), before = more / 2;
      pads[2 * (rank - 1 - static_cast<size_t>(axis))] = before;
      pads[2 * (rank - 1 - static_cast<size_t>(axis)) + 1] = more - before;
    }
    c.out(0, at::constant_pad_nd(x, pads));
  };
}

}  // namespace

ORTMODULE_KERNEL("", Col2Im, "aten", make_col2im);
ORTMODULE_KERNEL("ai.ortmodule", Col2ImGrad, "aten", make_col2im_grad);
ORTMODULE_KERNEL("", CenterCropPad, "aten", make_center_crop_pad);

}  // namespace ortmodule
