// Kernels of LinearCrossEntropy and its gradient; see Note [Scores in chunks] beside the records.
#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/log_softmax.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/sum.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "base/status.h"
#include "kernels/conversion.h"
#include "ops/loss/loss_rows.h"
#include "ops/loss/loss_support.h"
#include "products/matmul_provider.h"
#include "records/kernel_registry.h"

namespace ortmodule {
namespace {

constexpr const char* kName = "LinearCrossEntropy";
constexpr int64_t kChunkScores = int64_t{1} << 26;  // 256 MiB of float
constexpr int64_t kLeastRows = 256;                 // a product with fewer is slow
constexpr int64_t kWeightBlock = 8192;              // rows of dw that are added at once

// The loss of one chunk, whose scores become their gradient (for dy = 1) where that is wanted; the sum is not yet
// divided by `total`, the gradient is. Scores narrower than float are widened a row at a time.
double cpu_chunk(const at::Tensor& scores, const Labels& labels, double total, bool mean, bool gradient) {
  const int64_t rows = scores.size(0), classes = scores.size(1);
  const at::ScalarType type = scores.scalar_type();
  const int64_t row_bytes = classes * scores.element_size();
  const at::Tensor losses = at::empty({rows}, at::kDouble);
  auto* x = static_cast<char*>(scores.mutable_data_ptr());
  double* loss = losses.mutable_data_ptr<double>();
  at::parallel_for(0, rows, row_grain(classes), [&](int64_t begin, int64_t end) {
    std::vector<float> wide(type == at::kFloat ? 0 : classes);
    for (int64_t r = begin; r < end; ++r) {
      void* const place = x + r * row_bytes;
      loss[r] = 0;
      if (labels.ignored(r)) {
        if (gradient) std::memset(place, 0, static_cast<size_t>(row_bytes));
        continue;
      }
      float* const row = type == at::kFloat ? static_cast<float*>(place) : wide.data();
      if (type != at::kFloat) load_elements(type, place, 1, row, classes);
      const float max = row_max(row, classes);
      const auto log_sum = static_cast<float>(std::log(row_exp_sum(row, max, classes)));
      const float weight = labels.weight_of(r);
      loss[r] = -(row[labels.data[r]] - max - log_sum) * weight;
      if (!gradient) continue;
      const auto factor = static_cast<float>(mean ? weight / total : weight);
      row_scaled_softmax(row, max, log_sum, factor, row, classes);
      row[labels.data[r]] -= factor;
      if (type != at::kFloat) store_elements(type, row, place, classes);
    }
  });
  double sum = 0;
  for (int64_t r = 0; r < rows; ++r) sum += loss[r];
  return sum;
}

// The same for any type and device; returns the gradient in the scores' type.
at::Tensor any_chunk(const at::Tensor& scores, const at::Tensor& labels, const at::Tensor& weight, int64_t ignored,
                     const at::Tensor& total, bool gradient, at::Tensor& loss) {
  const auto type = total.scalar_type();
  at::Tensor log_prob = at::log_softmax(scores.to(type), 1);
  const at::Tensor counts = labels.ne(ignored), index = at::mul(labels, counts).unsqueeze(1);
  at::Tensor factor = counts.to(type).unsqueeze(1);
  if (weight.defined()) factor = factor * weight.to(type).index_select(0, index.squeeze(1)).unsqueeze(1);
  loss.sub_(at::sum(log_prob.gather(1, index) * factor));
  if (!gradient) return {};
  factor = (factor / total).masked_fill(counts.logical_not().unsqueeze(1), 0);
  log_prob.exp_().mul_(factor);
  log_prob.scatter_add_(1, index, -factor);
  return log_prob.to(scores.scalar_type());
}

struct Gradients {
  at::Tensor d_scores, dx, dw, db;
};

// Adds a chunk that is not the last one.
void add_products(Gradients& sums, const at::Tensor& g, const at::Tensor& x, const at::Tensor& w, int64_t begin,
                  bool wants_dx, bool wants_dw, bool wants_db) {
  if (wants_dx) sums.dx.narrow(0, begin, g.size(0)).copy_(matrix_product(g, w));
  if (wants_dw && !sums.dw.defined()) {
    sums.dw = matrix_product(g.t(), x);
  } else if (wants_dw) {
    for (int64_t v = 0; v < w.size(0); v += kWeightBlock) {
      const int64_t n = std::min(kWeightBlock, w.size(0) - v);
      sums.dw.narrow(0, v, n).add_(matrix_product(g.narrow(1, v, n).t(), x));
    }
  }
  if (wants_db) sums.db = sums.db.defined() ? sums.db.add_(at::sum(g, 0)) : at::sum(g, 0);
}

int64_t chunk_rows(int64_t rows, int64_t classes, int64_t chunk) {
  const int64_t most = chunk > 0 ? std::max<int64_t>(1, chunk / std::max<int64_t>(1, classes))
                                 : std::max(kLeastRows, kChunkScores / std::max<int64_t>(1, classes));
  if (rows <= most) return rows;
  const int64_t chunks = (rows + most - 1) / most;
  return (rows + chunks - 1) / chunks;  // of one size, for the library's sake
}

void forward(KernelContext& c, const LossOptions& options, int64_t chunk) {
  const at::Tensor &x = c.in(0), &w = c.in(1), bias = c.in_or_undefined(2);
  const int64_t rows = x.size(0), classes = w.size(0);
  const at::Tensor labels = int64_labels(c.in(3)).contiguous();
  at::Tensor weight = c.has(4) ? c.in(4).contiguous() : at::Tensor();
  ORTMODULE_CHECK(labels.numel() == rows, kRuntime, "[", kName, "] ", rows, " rows, ", labels.numel(), " labels");
  Labels::check_weights(weight, classes, kName);
  const bool mean = options.reduction == LossOptions::kMean, gradient = c.wants(1);
  const bool fast = x.is_cpu() && converts(x.scalar_type()) && classes > 0;
  const auto type = computed_in(x.scalar_type());

  double cpu_total = 1, cpu_loss = 0;
  at::Tensor total, loss;
  Labels list{nullptr, nullptr, classes, options.ignore_index};
  if (labels.is_cpu()) {
    list.data = labels.const_data_ptr<int64_t>();
    list.check(rows, kName);
  }
  if (fast) {
    if (weight.defined()) weight = weight.to(at::kFloat);
    list.weight = weight.defined() ? weight.const_data_ptr<float>() : nullptr;
    if (mean) cpu_total = list.total(rows);
  } else {
    loss = at::zeros({}, x.options().dtype(type));
    const at::Tensor counts = labels.ne(options.ignore_index);
    total =
        mean ? at::sum(weight.defined() ? weight.to(type).index_select(0, labels * counts) * counts : counts.to(type))
             : at::zeros({}, x.options().dtype(type)).add_(1);
  }

  Gradients sums;
  const int64_t step = std::max<int64_t>(1, chunk_rows(rows, classes, chunk));
  const int64_t last = rows == 0 ? 0 : (rows - 1) / step * step;
  if (gradient && last > 0 && c.wants(2)) sums.dx = at::empty({last, x.size(1)}, x.options());
  for (int64_t begin = 0; begin == 0 || begin < rows; begin += step) {
    const int64_t n = std::min(step, rows - begin);
    const at::Tensor part = x.narrow(0, begin, n);
    at::Tensor g = linear_product(part, w, bias);
    if (fast) {
      g = g.contiguous();
      Labels mine = list;
      mine.data += begin;
      cpu_loss += cpu_chunk(g, mine, cpu_total, mean, gradient);
    } else {
      g = any_chunk(g, labels.narrow(0, begin, n), weight, options.ignore_index, total, gradient, loss);
    }
    if (!gradient) continue;
    if (begin == last)
      sums.d_scores = g;
    else
      add_products(sums, g, part, w, begin, c.wants(2), c.wants(3), c.wants(4));
  }
  if (fast) {
    loss = at::empty({}, x.options().dtype(at::kFloat));
    *loss.mutable_data_ptr<float>() = static_cast<float>(mean ? cpu_loss / cpu_total : cpu_loss);
  } else if (mean) {
    loss.div_(total);
  }
  c.out(0, loss);
  c.out(1, sums.d_scores);
  // Nothing was done early where there is one chunk.
  const auto or_empty = [&](const at::Tensor& t, at::IntArrayRef sizes) {
    return t.defined() ? t : at::empty(sizes, x.options());
  };
  if (c.wants(2)) c.out(2, or_empty(sums.dx, {0, x.size(1)}));
  if (c.wants(3)) c.out(3, or_empty(sums.dw, {0, x.size(1)}));
  if (c.wants(4)) c.out(4, or_empty(sums.db, {0}));
}

void backward(KernelContext& c) {
  const at::Tensor& dy = c.in(0);
  // On a CPU the factor is 1 for loss.backward(), and a pass over everything is saved.
  const bool unit = dy.is_cpu() && dy.item().toDouble() == 1.0;
  const auto scaled = [&](size_t i) {
    const at::Tensor& t = c.in(i);
    if (unit || t.numel() == 0) return t;
    if (!c.may_overwrite(i)) return at::mul(t, dy.to(t.scalar_type()));
    at::Tensor own = t;
    return own.mul_(dy.to(t.scalar_type()));
  };
  const at::Tensor g = scaled(1);
  if (c.wants(0)) {
    const at::Tensor dx = matrix_product(g, c.in(3)), early = scaled(4);
    c.out(0, early.size(0) > 0 ? at::cat({early, dx}) : dx);
  }
  if (c.wants(1)) {
    const at::Tensor &x = c.in(2), part = x.narrow(0, x.size(0) - g.size(0), g.size(0));
    if (c.in(5).numel() == 0) {
      c.out(1, matrix_product(g.t(), part));
    } else {
      const bool own = c.may_overwrite(5);
      at::Tensor dw = scaled(5);
      if (unit && !own) dw = dw.clone();
      for (int64_t v = 0; v < g.size(1); v += kWeightBlock) {
        const int64_t n = std::min(kWeightBlock, g.size(1) - v);
        dw.narrow(0, v, n).add_(matrix_product(g.narrow(1, v, n).t(), part));
      }
      c.out(1, dw);
    }
  }
  if (c.wants(2)) {
    const at::Tensor db = at::sum(g, 0);
    c.out(2, c.in(6).numel() == 0 ? db : db + scaled(6));
  }
}

}  // namespace

ORTMODULE_KERNEL("ai.ortmodule", LinearCrossEntropy, "aten", [](const Node& node) -> Kernel {
  return
      [options = LossOptions(node), chunk = node.get_int("chunk", 0)](KernelContext& c) { forward(c, options, chunk); };
});
ORTMODULE_KERNEL("ai.ortmodule", LinearCrossEntropyGrad, "aten", [](const Node&) -> Kernel {
  return backward;
}).inplace();

}  // namespace ortmodule
