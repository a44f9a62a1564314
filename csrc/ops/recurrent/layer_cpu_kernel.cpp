// The recurrent layer on the CPU: the input's part of all steps is one matrix product, then each thread takes rows of
// the batch through all steps, so that no step waits for a thread.
//
// Rows are independent in a recurrence; only w_hh is shared, and it is packed once. Backward leaves the gradients of
// all steps' gates behind, from which the weights' gradients are one product each.
#include <ATen/Dispatch.h>
#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/add.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/sum.h>
#include <ATen/ops/tanh.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <vector>

#include "ops/recurrent/cell_rows.h"
#include "ops/recurrent/layer.h"
#include "products/matmul_provider.h"
#include "products/tile_product.h"

namespace ortmodule {
namespace {

// The float rows at the best instruction-set level; other types as they are.
ORTMODULE_SIMD void lstm_rows(int64_t n, const float* product, float* gates, const float* before, float* cell,
                              float* hidden) {
  lstm_forward(n, product, gates, before, cell, hidden);
}
template <typename T>
void lstm_rows(int64_t n, const T* product, T* gates, const T* before, T* cell, T* hidden) {
  lstm_forward(n, product, gates, before, cell, hidden);
}
ORTMODULE_SIMD void lstm_back(int64_t n, const float* gates, const float* before, const float* cell, const float* dh,
                              float* dc, float* dgates) {
  lstm_backward(n, gates, before, cell, dh, dc, dgates);
}
template <typename T>
void lstm_back(int64_t n, const T* gates, const T* before, const T* cell, const Wide<T>* dh, Wide<T>* dc, T* dgates) {
  lstm_backward(n, gates, before, cell, dh, dc, dgates);
}
ORTMODULE_SIMD void gru_rows(int64_t n, const float* product, const float* bias, const float* input,
                             const float* before, float* gates, float* hidden) {
  gru_forward(n, product, bias, input, before, gates, hidden);
}
template <typename T>
void gru_rows(int64_t n, const T* product, const T* bias, const T* input, const T* before, T* gates, T* hidden) {
  gru_forward(n, product, bias, input, before, gates, hidden);
}
ORTMODULE_SIMD void gru_back(int64_t n, const float* gates, const float* before, float* dh, float* dinput,
                             float* dproduct) {
  gru_backward(n, gates, before, dh, dinput, dproduct);
}
template <typename T>
void gru_back(int64_t n, const T* gates, const T* before, Wide<T>* dh, T* dinput, T* dproduct) {
  gru_backward(n, gates, before, dh, dinput, dproduct);
}
ORTMODULE_SIMD void tanh_rows(int64_t n, const float* product, const float* input, float* hidden) {
  elman_forward<false>(n, product, input, hidden);
}
template <typename T>
void tanh_rows(int64_t n, const T* product, const T* input, T* hidden) {
  elman_forward<false>(n, product, input, hidden);
}

struct Sizes {
  int64_t steps, batch, hidden, outputs, gates;
  bool batch_first;
  Sizes(const LayerForm& form, const LayerInputs& in)
      : steps(in.x.size(form.batch_first ? 1 : 0)),
        batch(in.x.size(form.batch_first ? 0 : 1)),
        hidden(in.w_hh.size(0) / form.gates()),
        outputs(in.w_hh.size(1)),
        gates(form.gates()),
        batch_first(form.batch_first) {}
  int64_t row(int64_t step, int64_t b) const { return batch_first ? b * steps + step : step * batch + b; }
  int64_t next_sequence() const { return batch_first ? steps : 1; }  // in rows
  std::vector<int64_t> sequence(int64_t width) const {
    return batch_first ? std::vector<int64_t>{batch, steps, width} : std::vector<int64_t>{steps, batch, width};
  }
};

// c[rows, n] = a w^T or a w, for a few rows at a time.
template <typename T>
class RowProduct {
 public:
  RowProduct() = default;
  RowProduct(const at::Tensor& w, bool transposed)
      : w_(transposed ? w.t() : w), k_(w_.size(0)), n_(w_.size(1)), ld_(n_) {
    if constexpr (std::is_same_v<T, float>) {
      ld_ = round_up(n_, panel_width());
      panels_ = at::empty({ld_ * k_}, w.options());
      const at::Tensor rows = transposed ? w.contiguous() : w.t().contiguous();
      pack_columns(panels_.mutable_data_ptr<float>(), 0, rows.const_data_ptr<float>(), k_, n_, k_);
    }
  }
  int64_t ld() const { return ld_; }
  void operator()(int64_t rows, const T* a, int64_t lda, T* c) const {
    if (rows == 0) return;
    if constexpr (std::is_same_v<T, float>) {
      tile_product(rows, n_, k_, {a, lda, 1}, packed(panels_.const_data_ptr<float>(), k_), c, ld_, false);
    } else {
      const auto options = w_.options();
      at::Tensor out = at::from_blob(c, {rows, n_}, {ld_, 1}, options);
      at::mm_out(out, at::from_blob(const_cast<T*>(a), {rows, k_}, {lda, 1}, options), w_);
    }
  }

 private:
  at::Tensor w_, panels_;
  int64_t k_ = 0, n_ = 0, ld_ = 0;
};

// Rows of the batch, all steps of them, over the threads. Products of types that the BLAS has are threaded themselves.
template <typename T, typename F>
void over_batch(const Sizes& z, F&& chunk) {
  if constexpr (std::is_same_v<T, float>) {
    const int64_t work = z.steps * z.gates * z.hidden * z.outputs;
    at::parallel_for(0, z.batch, std::max<int64_t>(1, 65536 / std::max<int64_t>(work, 1)), chunk);
  } else if (z.batch > 0) {
    chunk(0, z.batch);
  }
}
template <typename F>
void each_row(const Sizes& z, int64_t rows, F&& f) {
  at::parallel_for(0, rows, std::max<int64_t>(1, 8192 / std::max<int64_t>(z.gates * z.hidden, 1)),
                   [&](int64_t begin, int64_t end) {
                     for (int64_t r = begin; r < end; ++r) f(r);
                   });
}

at::Tensor state_or_zeros(const at::Tensor& state, int64_t batch, int64_t width, const at::Tensor& like) {
  return state.defined() ? state.contiguous() : at::zeros({batch, width}, like.options());
}

template <typename T>
void run_forward(const LayerForm& form, const Sizes& z, const LayerInputs& in, const at::Tensor& h0,
                 const at::Tensor& c0, const at::Tensor& input, const LayerOutputs& out) {
  const int64_t hidden = z.hidden, width = z.outputs;
  const bool lstm = form.cell == CellKind::kLstm, gru = form.cell == CellKind::kGru, projected = in.w_hr.defined();
  const RowProduct<T> recurrent(in.w_hh, true), projection = projected ? RowProduct<T>(in.w_hr, true) : RowProduct<T>();
  const at::Tensor none = gru && !in.b_hh.defined() ? at::zeros({3 * hidden}, in.x.options()) : at::Tensor();
  const at::Tensor bias_row = gru ? (in.b_hh.defined() ? in.b_hh.contiguous() : none) : at::Tensor();
  const T *first_h = h0.const_data_ptr<T>(), *first_c = lstm ? c0.const_data_ptr<T>() : nullptr,
          *bias = gru ? bias_row.const_data_ptr<T>() : nullptr;
  T *inputs = input.mutable_data_ptr<T>(), *y = out.y.mutable_data_ptr<T>(),
    *gates = gru ? out.gates.mutable_data_ptr<T>() : nullptr, *cells = lstm ? out.cells.mutable_data_ptr<T>() : nullptr;
  over_batch<T>(z, [&](int64_t b0, int64_t b1) {
    const int64_t rows = b1 - b0, ld = recurrent.ld();
    std::vector<T> product(static_cast<size_t>(rows * ld)), outputs(static_cast<size_t>(rows * hidden * projected)),
        narrow(static_cast<size_t>(rows * projection.ld()));
    for (int64_t s = 0; s < z.steps; ++s) {
      const int64_t t = form.reverse ? z.steps - 1 - s : s, before = form.reverse ? t + 1 : t - 1;
      const T* h = s == 0 ? first_h + b0 * width : y + z.row(before, b0) * width;
      const int64_t h_step = s == 0 ? width : z.next_sequence() * width;
      recurrent(rows, h, h_step, product.data());
      each_row(z, rows, [&](int64_t r) {
        const int64_t row = z.row(t, b0 + r);
        const T* p = product.data() + r * ld;
        T *in_row = inputs + row * z.gates * hidden, *o = projected ? outputs.data() + r * hidden : y + row * hidden;
        if (lstm) {
          const T* c = s == 0 ? first_c + (b0 + r) * hidden : cells + z.row(before, b0 + r) * hidden;
          lstm_rows(hidden, p, in_row, c, cells + row * hidden, o);
        } else if (gru) {
          gru_rows(hidden, p, bias, in_row, h + r * h_step, gates + row * 4 * hidden, o);
        } else if (form.cell == CellKind::kTanh) {
          tanh_rows(hidden, p, in_row, o);
        } else {
          elman_forward<true>(hidden, p, in_row, o);
        }
      });
      if (!projected) continue;
      projection(rows, outputs.data(), hidden, narrow.data());
      for (int64_t r = 0; r < rows; ++r)
        std::copy_n(narrow.data() + r * projection.ld(), width, y + z.row(t, b0 + r) * width);
    }
  });
}

struct StepGradients {
  at::Tensor input, product, totals, h0, c0;  // of all steps; `input` is `product` but for a GRU
};

template <typename T>
void run_backward(const LayerForm& form, const Sizes& z, const LayerInputs& in, const at::Tensor& h0,
                  const at::Tensor& c0, const LayerOutputs& saved, const LayerGradients& grads, StepGradients& out) {
  using W = Wide<T>;
  const int64_t hidden = z.hidden, width = z.outputs, block = z.gates * hidden;
  const bool lstm = form.cell == CellKind::kLstm, gru = form.cell == CellKind::kGru, projected = in.w_hr.defined();
  const RowProduct<T> recurrent(in.w_hh, false),
      projection = projected ? RowProduct<T>(in.w_hr, false) : RowProduct<T>();
  const auto pointer = [](const at::Tensor& t) { return t.defined() ? t.const_data_ptr<T>() : nullptr; };
  const auto writable = [](const at::Tensor& t) { return t.defined() ? t.mutable_data_ptr<T>() : nullptr; };
  const T *dy = pointer(grads.dy), *dh_n = pointer(grads.dh_n), *dc_n = pointer(grads.dc_n), *y = pointer(saved.y),
          *gates = pointer(saved.gates), *cells = pointer(saved.cells), *first_h = pointer(h0), *first_c = pointer(c0);
  T *dinput = writable(out.input), *dproduct = writable(out.product), *totals = writable(out.totals),
    *dh0 = writable(out.h0), *dc0 = writable(out.c0);
  over_batch<T>(z, [&](int64_t b0, int64_t b1) {
    const int64_t rows = b1 - b0, ld = recurrent.ld();
    std::vector<W> dh(static_cast<size_t>(rows * width)), dc(static_cast<size_t>(rows * hidden)),
        dhidden(static_cast<size_t>(rows * hidden * projected));
    std::vector<T> product(static_cast<size_t>(rows * ld)), wide(static_cast<size_t>(rows * projection.ld()));
    for (int64_t i = 0; dh_n && i < rows * width; ++i) dh[static_cast<size_t>(i)] = W(dh_n[b0 * width + i]);
    for (int64_t i = 0; dc_n && i < rows * hidden; ++i) dc[static_cast<size_t>(i)] = W(dc_n[b0 * hidden + i]);
    for (int64_t s = z.steps - 1; s >= 0; --s) {
      const int64_t t = form.reverse ? z.steps - 1 - s : s, before = form.reverse ? t + 1 : t - 1;
      each_row(z, rows, [&](int64_t r) {
        const int64_t row = z.row(t, b0 + r);
        W* d = dh.data() + r * width;
        for (int64_t j = 0; dy && j < width; ++j) d[j] += W(dy[row * width + j]);
        for (int64_t j = 0; projected && j < width; ++j) totals[row * width + j] = T(d[j]);
      });
      if (projected) projection(rows, totals + z.row(t, b0) * width, z.next_sequence() * width, wide.data());
      each_row(z, rows, [&](int64_t r) {
        const int64_t row = z.row(t, b0 + r);
        W* d = dh.data() + r * width;
        T* g = dproduct + row * block;
        if (lstm) {
          W* e = projected ? dhidden.data() + r * hidden : d;
          for (int64_t j = 0; projected && j < hidden; ++j)
            e[j] = W(wide[static_cast<size_t>(r * projection.ld() + j)]);
          const T* c = s == 0 ? first_c + (b0 + r) * hidden : cells + z.row(before, b0 + r) * hidden;
          lstm_back(hidden, gates + row * 4 * hidden, c, cells + row * hidden, e, dc.data() + r * hidden, g);
        } else if (gru) {
          const T* h = s == 0 ? first_h + (b0 + r) * width : y + z.row(before, b0 + r) * width;
          gru_back(hidden, gates + row * 4 * hidden, h, d, dinput + row * block, g);
        } else if (form.cell == CellKind::kTanh) {
          elman_backward<false>(hidden, y + row * width, d, g);
        } else {
          elman_backward<true>(hidden, y + row * width, d, g);
        }
      });
      if (s == 0 && !dh0) break;
      recurrent(rows, dproduct + z.row(t, b0) * block, z.next_sequence() * block, product.data());
      each_row(z, rows, [&](int64_t r) {
        W* d = dh.data() + r * width;
        const T* p = product.data() + r * ld;
        for (int64_t j = 0; j < width; ++j) d[j] = gru ? d[j] + W(p[j]) : W(p[j]);
      });
    }
    for (int64_t i = 0; dh0 && i < rows * width; ++i) dh0[b0 * width + i] = T(dh[static_cast<size_t>(i)]);
    for (int64_t i = 0; dc0 && i < rows * hidden; ++i) dc0[b0 * hidden + i] = T(dc[static_cast<size_t>(i)]);
  });
}

template <typename F>
void of_type(const at::Tensor& x, F&& f) {
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, x.scalar_type(), "RecurrentLayer", [&] { f(scalar_t{}); });
}

at::Tensor as_rows(const at::Tensor& t) { return t.contiguous().flatten(0, 1); }

}  // namespace

LayerOutputs layer_forward(const LayerForm& form, const LayerInputs& in) {
  const Sizes z(form, in);
  const at::Tensor h0 = state_or_zeros(in.h0, z.batch, z.outputs, in.x);
  const at::Tensor c0 = form.cell == CellKind::kLstm ? state_or_zeros(in.c0, z.batch, z.hidden, in.x) : at::Tensor();
  const bool both = in.b_ih.defined() && form.cell != CellKind::kGru;
  const at::Tensor input = linear_product(in.x, in.w_ih, both ? at::add(in.b_ih, in.b_hh) : in.b_ih).contiguous();
  LayerOutputs out;
  out.y = at::empty(z.sequence(z.outputs), in.x.options());
  if (form.cell == CellKind::kLstm) out.cells = at::empty(z.sequence(z.hidden), in.x.options());
  if (form.cell == CellKind::kLstm) out.gates = input;
  if (form.cell == CellKind::kGru) out.gates = at::empty(z.sequence(4 * z.hidden), in.x.options());
  of_type(in.x, [&](auto of) { run_forward<decltype(of)>(form, z, in, h0, c0, input, out); });
  // A copy: a view would keep the whole sequence alive.
  const auto last = [&](const at::Tensor& all, const at::Tensor& first) {
    return z.steps == 0 ? first.clone() : all.select(z.batch_first ? 1 : 0, form.reverse ? 0 : z.steps - 1).clone();
  };
  out.h_n = last(out.y, h0);
  if (form.cell == CellKind::kLstm) out.c_n = last(out.cells, c0);
  return out;
}

std::array<at::Tensor, kLayerInputs> layer_backward(const LayerForm& form, const LayerInputs& in,
                                                    const LayerOutputs& saved, const LayerGradients& grads,
                                                    const std::array<bool, kLayerInputs>& wanted) {
  const Sizes z(form, in);
  const bool lstm = form.cell == CellKind::kLstm, gru = form.cell == CellKind::kGru, projected = in.w_hr.defined();
  const auto options = in.x.options();
  const at::Tensor h0 = state_or_zeros(in.h0, z.batch, z.outputs, in.x);
  const at::Tensor c0 = lstm ? state_or_zeros(in.c0, z.batch, z.hidden, in.x) : at::Tensor();
  const auto whole = [](const at::Tensor& t) { return t.defined() ? t.contiguous() : t; };
  const LayerOutputs kept{saved.y.contiguous(), {}, {}, whole(saved.gates), whole(saved.cells)};
  StepGradients d;
  d.product = at::empty(z.sequence(z.gates * z.hidden), options);
  d.input = gru ? at::empty(z.sequence(3 * z.hidden), options) : d.product;
  if (projected) d.totals = at::empty(z.sequence(z.outputs), options);
  if (wanted[5]) d.h0 = at::empty({z.batch, z.outputs}, options);
  if (wanted[6]) d.c0 = at::empty({z.batch, z.hidden}, options);
  const LayerGradients flowing{whole(grads.dy), whole(grads.dh_n), whole(grads.dc_n)};
  of_type(in.x, [&](auto of) { run_backward<decltype(of)>(form, z, in, h0, c0, kept, flowing, d); });

  std::array<at::Tensor, kLayerInputs> out;
  const at::Tensor from_input = d.input.flatten(0, 1), from_product = d.product.flatten(0, 1);
  if (wanted[0]) out[0] = matrix_product(from_input, in.w_ih).view(in.x.sizes());
  if (wanted[1]) out[1] = matrix_product(from_input.t(), as_rows(in.x));
  if (wanted[2]) {
    // What each step multiplied: y one step later, behind the first state.
    const int64_t axis = z.batch_first ? 1 : 0, length = std::max<int64_t>(z.steps - 1, 0);
    const at::Tensor first = h0.unsqueeze(axis).narrow(axis, 0, z.steps > 0),
                     rest = kept.y.narrow(axis, form.reverse && z.steps > 0 ? 1 : 0, length);
    const at::Tensor earlier = form.reverse ? at::cat({rest, first}, axis) : at::cat({first, rest}, axis);
    out[2] = matrix_product(from_product.t(), as_rows(earlier));
  }
  if (wanted[3]) out[3] = at::sum(from_input, 0);
  if (wanted[4]) out[4] = gru || !wanted[3] ? at::sum(from_product, 0) : out[3].clone();
  out[5] = d.h0;
  out[6] = d.c0;
  if (wanted[7]) {
    const at::Tensor hidden = at::mul(kept.gates.narrow(-1, 3 * z.hidden, z.hidden), kept.cells.tanh());
    out[7] = matrix_product(d.totals.flatten(0, 1).t(), as_rows(hidden));
  }
  return out;
}

}  // namespace ortmodule
