// Kernel of MatMulNBits: dequantizes the weight, then one product.
#include <ATen/core/Tensor.h>
#include <ATen/ops/add.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/stack.h>

#include "base/status.h"
#include "kernels/rerun_kernel.h"

namespace ortmodule {
namespace {

// bytes[..., m] as [..., m * 8 / bits] numbers, low bits first.
at::Tensor unpacked(const at::Tensor& bytes, int64_t bits) {
  if (bits == 8) return bytes;
  std::vector<at::Tensor> parts;
  for (int64_t shift = 0; shift < 8; shift += bits)
    parts.push_back(bytes.bitwise_right_shift(shift).bitwise_and((1 << bits) - 1));
  return at::stack(parts, -1).flatten(-2);
}

constexpr int64_t kMostBlock = int64_t{1} << 30;

TensorFunction matmul_nbits(const Node& node) {
  const int64_t k = node.get_int("K", 0), n = node.get_int("N", 0), bits = node.get_int("bits", 4),
                block = node.get_int("block_size", 0);
  return [=, name = node.describe()](std::vector<at::Tensor> in) -> std::vector<at::Tensor> {
    in.resize(6);
    const at::Tensor &a = in[0], &b = in[1], &scales = in[2], &zeros = in[3], &bias = in[5];
    ORTMODULE_CHECK(!in[4].defined(), kUnsupported, "[MatMulNBits] g_idx is not supported (", name, ")");
    // Sizes of a broken file may be too large to be multiplied: they are held against those of tensors first.
    const bool known = a.dim() >= 1 && a.size(-1) == k && block > 0 && block <= kMostBlock;
    const int64_t blocks = known ? (k + block - 1) / block : 0, blob = known ? block * bits / 8 : 0;
    const bool scaled = blocks ? scales.numel() % blocks == 0 && scales.numel() / blocks == n : !scales.numel();
    ORTMODULE_CHECK(known && scaled && b.scalar_type() == at::kByte && b.numel() == scales.numel() * blob &&
                        (!bias.defined() || bias.numel() == n),
                    kRuntime, "[MatMulNBits] A ", a.sizes(), ", B ", b.sizes(), " and scales ", scales.sizes(),
                    " do not fit K ", k, ", N ", n, " and blocks of ", block, " (", name, ")");
    const at::ScalarType type = a.scalar_type();
    at::Tensor w = unpacked(b.reshape({n, blocks, blob}), bits).to(type);
    if (!zeros.defined()) {
      w = w.sub(static_cast<double>(1 << (bits - 1)));
    } else {
      const bool packed = zeros.scalar_type() == at::kByte;
      const int64_t per_row = packed ? (blocks * bits + 7) / 8 : blocks;
      ORTMODULE_CHECK(zeros.numel() == n * per_row, kRuntime, "[MatMulNBits] zero_points ", zeros.sizes(),
                      " do not fit ", n, " rows of ", blocks, " blocks (", name, ")");
      at::Tensor z = zeros.reshape({n, per_row});
      if (packed) z = unpacked(z, bits).narrow(1, 0, blocks);
      w = w.sub(z.to(type).unsqueeze(2));
    }
    w = w.mul(scales.to(type).reshape({n, blocks, 1})).flatten(1).narrow(1, 0, k);
    const at::Tensor y = at::matmul(a, w.t());
    return {bias.defined() ? at::add(y, bias.reshape({n})) : y};
  };
}

}  // namespace

ORTMODULE_KERNEL("com.microsoft", MatMulNBits, "aten", function_kernel_of<matmul_nbits>);
ORTMODULE_KERNEL("ai.ortmodule", MatMulNBitsGrad, "aten", rerun_kernel_of<matmul_nbits>);

}  // namespace ortmodule
