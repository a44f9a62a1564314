// "cuda" kernels of LinearCrossEntropy and its gradient (Note [Scores in chunks]): products by ATen, everything else of
// a chunk by one kernel (chunk_loss.cu), in place.
//
// Scores lie in rows of a multiple of 16 bytes, whatever the number of classes, and products run over whole rows, with
// weights of 0 behind the last class: libraries have no fast kernels for other sizes (a product for 50,257 classes took
// 4 to 6 times as long on an H200). Gradients of the weight are added by the product itself. The loss's own gradient is
// on the device, so it is multiplied in at the end, where little is left. Other types, and rows without classes, are
// the "aten" kernel's.
#include <ATen/TensorOperators.h>
#include <ATen/ops/as_strided.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/sum.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <limits>

#include "kernels/cuda_kernel.h"
#include "ops/loss/chunk_loss_launch.h"
#include "ops/loss/loss_support.h"

namespace ortmodule {
namespace {

constexpr int64_t kCudaChunkScores = int64_t{1} << 28;  // 512 MiB of 16 bits: a product as large as that is at its best
constexpr int64_t kRowBytes = 16;

int64_t rows_of_chunk(int64_t rows, int64_t classes, int64_t chunk) {
  const int64_t most = std::max<int64_t>(1, (chunk > 0 ? chunk : kCudaChunkScores) / classes);
  const int64_t chunks = (rows + most - 1) / most;
  return (rows + chunks - 1) / chunks;
}

struct Operands {
  at::Tensor x, w, bias, labels, weight, total;
};

// What gradients are divided by: the weights of the labels that count.
at::Tensor total_of(const Operands& o, int64_t ignore_index) {
  const at::Tensor counts = o.labels.ne(ignore_index);
  if (!o.weight.defined()) return at::sum(counts, at::kFloat);
  return at::sum(o.weight.index_select(0, o.labels * counts) * counts);
}

// How many classes a row of scores has room for.
int64_t room_of(int64_t classes, const at::Tensor& x) {
  const int64_t round = kRowBytes / x.element_size();
  return (classes + round - 1) / round * round;
}

// The weight [classes, width] with rows of 0 behind it, up to `room`.
at::Tensor with_room(const at::Tensor& w, int64_t room) {
  if (w.size(0) == room) return w;
  const at::Tensor out = at::empty({room, w.size(1)}, w.options());
  out.narrow(0, 0, w.size(0)).copy_(w);
  out.narrow(0, w.size(0), room - w.size(0)).zero_();
  return out;
}

// Whether `t` is the first part of rows or of a matrix of `elements` that starts where it does.
bool has_room(const at::Tensor& t, int64_t elements) {
  const auto held = static_cast<int64_t>(t.storage().nbytes()) / t.element_size();
  return t.storage_offset() + elements <= held;
}

struct Chunks {
  at::Tensor scores, dx, dw, db;  // of the last one; of those before, dw with room
};

Chunks run_chunks(const Operands& o, const LossOptions& options, const at::Tensor& losses, int64_t step, bool gradient,
                  const std::array<bool, 3>& wanted, const CudaQueue& queue) {
  Chunks out;
  const int64_t rows = o.x.size(0), classes = o.w.size(0), last = (rows - 1) / step * step;
  const int64_t room = room_of(classes, o.x);
  if (gradient && last > 0 && wanted[0]) out.dx = at::empty({last, o.x.size(1)}, o.x.options());
  const at::Tensor w = with_room(o.w, room), columns = w.t();
  for (int64_t begin = 0; begin < rows; begin += step) {
    const int64_t n = std::min(step, rows - begin);
    const at::Tensor part = o.x.narrow(0, begin, n);
    at::Tensor all = at::empty({n, room}, o.x.options()), scores = all.narrow(1, 0, classes);
    at::mm_out(all, part, columns);
    if (o.bias.defined()) scores.add_(o.bias);
    queue.run("chunk_loss",
              cuda::ChunkLossLaunch{*cuda_element(o.x), n, classes, room, options.ignore_index, mutable_address(scores),
                                    address(o.labels.narrow(0, begin, n)), address(o.weight), address(o.total),
                                    mutable_address(losses.narrow(0, begin, n)), gradient});
    if (gradient && room > classes) all.narrow(1, classes, room - classes).zero_();  // the kernel writes there, too
    if (begin == last) {
      out.scores = scores;
    } else if (gradient) {
      if (wanted[0]) {
        at::Tensor to = out.dx.narrow(0, begin, n);
        at::mm_out(to, all, w);
      }
      if (wanted[1] && out.dw.defined())
        out.dw.addmm_(all.t(), part);
      else if (wanted[1])
        out.dw = at::mm(all.t(), part);
      if (wanted[2]) out.db = out.db.defined() ? out.db.add_(at::sum(scores, 0)) : at::sum(scores, 0);
    }
  }
  if (out.dw.defined()) out.dw = out.dw.narrow(0, 0, classes);
  return out;
}

Kernel make_chunked_forward(const Node& node) {
  return cuda_kernel(
      node, [options = LossOptions(node), chunk = node.get_int("chunk", 0)](KernelContext& c, const CudaQueue& queue) {
        Operands o{c.in(0), c.in(1), c.in_or_undefined(2), c.in(3), c.in_or_undefined(4), {}};
        constexpr int64_t kMost = std::numeric_limits<int32_t>::max() / 2;
        if (!cuda_plain(c, o.x) || !cuda_plain(c, o.w) || !cuda_element(o.x) ||
            o.x.scalar_type() != o.w.scalar_type() || o.x.dim() != 2 || o.w.size(0) > kMost || o.x.size(0) > kMost)
          return false;
        if (!cuda_plain(c, o.labels) || o.labels.dim() != 1 || o.labels.numel() != o.x.size(0)) return false;
        if (o.weight.defined() && (!cuda_plain(c, o.weight) || o.weight.numel() != o.w.size(0))) return false;
        o.labels = o.labels.to(at::kLong);
        if (o.weight.defined()) o.weight = o.weight.to(at::kFloat);
        const bool mean = options.reduction == LossOptions::kMean, gradient = c.wants(1);
        if (mean) o.total = total_of(o, options.ignore_index);
        const at::Tensor losses = cuda_workspace(c, o.x.size(0));
        const int64_t step = rows_of_chunk(o.x.size(0), o.w.size(0), chunk);
        Chunks made = run_chunks(o, options, losses, step, gradient, {c.wants(2), c.wants(3), c.wants(4)}, queue);
        at::Tensor loss = at::sum(losses);
        if (mean) loss.div_(o.total);
        c.out(0, std::move(loss));
        if (gradient) c.out(1, std::move(made.scores));
        const auto or_empty = [&](const at::Tensor& t, at::IntArrayRef sizes) {
          return t.defined() ? t : at::empty(sizes, o.x.options());
        };
        if (c.wants(2)) c.out(2, or_empty(made.dx, {0, o.x.size(1)}));
        if (c.wants(3)) c.out(3, or_empty(made.dw, {0, o.x.size(1)}));
        if (c.wants(4)) c.out(4, or_empty(made.db, {0}));
        return true;
      });
}

// Gradient of the weight [classes, width]: of the last chunk, whose rows have `room`, and `sums` of those before.
at::Tensor weight_gradient(const at::Tensor& all, const at::Tensor& part, const at::Tensor& sums, bool overwrite,
                           int64_t classes) {
  if (sums.numel() == 0) return at::mm(all.t(), part).narrow(0, 0, classes);
  const int64_t room = all.size(1), width = part.size(1);
  at::Tensor dw;
  if (overwrite && sums.is_contiguous() && has_room(sums, room * width)) {
    dw = at::as_strided(sums, {room, width}, {width, 1});
    dw.addmm_(all.t(), part);
  } else {
    dw = at::mm(all.t(), part);
    dw.narrow(0, 0, classes).add_(sums);
  }
  return dw.narrow(0, 0, classes);
}

// dy, d_scores, x, w, and what the chunks before the last have given to dx, dw and db.
Kernel make_chunked_gradient(const Node& node) {
  return cuda_kernel(node, [](KernelContext& c, const CudaQueue&) {
    const at::Tensor &g = c.in(1), &x = c.in(2);
    if (!cuda_element(g) || g.dim() != 2 || g.numel() == 0 || g.stride(1) != 1) return false;
    const at::Tensor dy = c.in(0).to(g.scalar_type());
    const int64_t early = x.size(0) - g.size(0), classes = g.size(1), room = room_of(classes, g);
    // A copy that somebody made of the scores has no room behind its rows.
    const bool roomy = g.stride(0) == room && has_room(g, g.size(0) * room);
    const at::Tensor all = roomy ? at::as_strided(g, {g.size(0), room}, {room, 1}) : g;
    if (c.wants(0)) {
      at::Tensor dx = at::empty({x.size(0), x.size(1)}, x.options());
      at::Tensor first = dx.narrow(0, 0, early), last = dx.narrow(0, early, g.size(0));
      at::mm_out(last, all, roomy ? with_room(c.in(3), room) : c.in(3));
      last.mul_(dy);
      if (early > 0) at::mul_out(first, c.in(4), dy);
      c.out(0, std::move(dx));
    }
    if (c.wants(1)) {
      const at::Tensor part = x.narrow(0, early, g.size(0));
      c.out(1, weight_gradient(all, part, c.in(5), c.may_overwrite(5), classes).mul_(dy));
    }
    if (c.wants(2)) {
      const at::Tensor db = at::sum(g, 0);
      c.out(2, (c.in(6).numel() == 0 ? db : db + c.in(6)).mul_(dy));
    }
    return true;
  });
}

}  // namespace

ORTMODULE_KERNEL("ai.ortmodule", LinearCrossEntropy, "cuda", make_chunked_forward).types(kCudaTypes);
ORTMODULE_KERNEL("ai.ortmodule", LinearCrossEntropyGrad, "cuda", make_chunked_gradient);

}  // namespace ortmodule
