// Backward of tiled attention (flash.h): scores and probabilities are computed again tile by tile.
//
// Note [Work of the attention backward]
// A unit is one key head of one batch element with its group of query heads: its thread owns dk and dv. dq is final
// after the inner loop over keys. Where units are fewer than threads, the query tiles of a unit are split into shares,
// each with its own dk and dv, which are added afterwards. A mask's gradient is summed over what the mask is broadcast
// over: units that add to the same slice go to one thread, in order, if there are slices for all threads; otherwise
// each thread sums into a copy of its own. Sums thus depend on the number of threads, never on timing.
#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <tuple>
#include <vector>

#include "ops/attention/flash_gradients.h"
#include "ops/attention/flash_rows.h"
#include "ops/attention/flash_tiles.h"

namespace ortmodule {
namespace {

struct Targets {
  TileView dq, dk, dv;  // empty where not wanted
  // Where a unit has several shares, dk and dv are collected here: fp32 [shares, batch, key heads, keys, room].
  float *dk_shares = nullptr, *dv_shares = nullptr;
  bool mask = false;
};

// The gradient of a mask as fp32 with the mask's own sizes; a stride is zero where the mask is broadcast.
struct MaskGrad {
  float* data = nullptr;
  int64_t strides[4] = {};

  void add(int64_t b, int64_t h, int64_t row, int64_t column, const float* grads, int64_t n) const {
    float* to = data + b * strides[0] + h * strides[1] + row * strides[2] + column * strides[3];
    if (strides[3] == 0)
      *to += sum_row(grads, n);
    else
      add_row(to, grads, n);
  }
};

class Backward {
 public:
  Backward(const FlashProblem& p, const Targets& to, Scratch scratch)
      : p_(p),
        to_(to),
        keys_t_(scratch.take(p.size * p.key_room)),
        values_t_(scratch.take(p.value_size * p.key_room)),
        keys_copy_(scratch.take(p.keys * p.size_room)),
        buffer_(scratch.take(32 * std::max(p.size_room, p.value_room))),
        row_(scratch.take(std::max(p.key_room, kKeyTile))),
        q_(scratch.take(p.query_tile * p.size_room)),
        dy_(scratch.take(p.query_tile * p.value_room)),
        summed_q_(p.pairs ? scratch.take(p.terms(p.query_tile) * p.size_room) : nullptr),
        summed_dy_(p.pairs ? scratch.take(p.terms(p.query_tile) * p.value_room) : nullptr),
        dq_(scratch.take(p.query_tile * p.size_room)),
        p_tile_(scratch.take(p.query_tile * kKeyTile)),
        ds_tile_(scratch.take(p.query_tile * kKeyTile)),
        narrow_(p.pairs ? scratch.take(p.query_tile * kKeyTile) : nullptr),
        delta_(scratch.take(p.query_tile)),
        dk_room_(to.dk && !to.dk_shares ? scratch.take(p.keys * p.size_room) : nullptr),
        dv_room_(to.dv && !to.dv_shares ? scratch.take(p.keys * p.value_room) : nullptr),
        floats_(scratch.used()) {}

  int64_t scratch_floats() const { return floats_; }

  // One share of a unit: the query tiles with t % shares == share.
  void task(int64_t b, int64_t key_head, int64_t share, int64_t shares, const TileView& dy, const TileView& y,
            const float* lse, const MaskGrad& mask_grad) {
    p_.pack_transposed(p_.k, b, key_head, p_.size, keys_t_, buffer_);
    p_.pack_transposed(p_.v, b, key_head, p_.value_size, values_t_, buffer_);
    if (to_.dq) keys_ = p_.rows_of(p_.k, b, key_head, p_.size, p_.size_room, keys_copy_);
    const int64_t place = ((share * p_.batch + b) * p_.key_heads + key_head) * p_.keys;
    float* dk = to_.dk_shares ? to_.dk_shares + place * p_.size_room : dk_room_;
    float* dv = to_.dv_shares ? to_.dv_shares + place * p_.value_room : dv_room_;
    if (to_.dk) std::fill(dk, dk + p_.keys * p_.size_room, 0.0f);
    if (to_.dv) std::fill(dv, dv + p_.keys * p_.value_room, 0.0f);
    dk_ = dk, dv_ = dv;
    for (int64_t h = key_head * p_.group; h < (key_head + 1) * p_.group; ++h) {
      const int64_t visible = p_.visible_keys(b, h, row_);
      for (int64_t t = share; t < p_.query_tiles(); t += shares) {
        const int64_t row = t * p_.query_tile;
        query_tile(b, h, row, std::min(p_.query_tile, p_.queries - row), visible, dy, y, lse, mask_grad);
      }
    }
    for (int64_t j = 0; j < p_.keys; ++j) {
      if (dk_room_) to_.dk.store(b, key_head, j, p_.size, dk + j * p_.size_room, p_.scale);
      if (dv_room_) to_.dv.store(b, key_head, j, p_.value_size, dv + j * p_.value_room, 1);
    }
  }

 private:
  void query_tile(int64_t b, int64_t h, int64_t row, int64_t rows, int64_t visible, const TileView& dy,
                  const TileView& y, const float* lse, const MaskGrad& mask_grad) {
    q_rows_ = p_.rows(p_.q, b, h, row, rows, p_.size, p_.size_room, q_);
    dy_rows_ = p_.rows(dy, b, h, row, rows, p_.value_size, p_.value_room, dy_);
    if (p_.pairs) {
      p_.load_summed_rows(p_.q, b, h, row, rows, p_.size, p_.size_room, summed_q_);
      p_.load_summed_rows(dy, b, h, row, rows, p_.value_size, p_.value_room, summed_dy_);
    }
    find_deltas(b, h, row, rows, dy, y);
    lse_ = lse + (b * p_.heads + h) * p_.queries + row;
    const int64_t end = std::min(visible, p_.causal_keys(row + rows - 1));
    if (end == 0) std::fill(dq_, dq_ + rows * p_.size_room, 0.0f);
    for (int64_t column = 0; column < end; column += kKeyTile)
      key_tile(b, h, {row, rows, column, std::min(kKeyTile, end - column)}, mask_grad);
    if (to_.dq)
      for (int64_t i = 0; i < rows; ++i) to_.dq.store(b, h, row + i, p_.size, dq_ + i * p_.size_room, p_.scale);
  }

  void find_deltas(int64_t b, int64_t h, int64_t row, int64_t rows, const TileView& dy, const TileView& y) {
    const float *here = dy.in_place(b, h, row, 0), *there = y.in_place(b, h, row, 0);
    if (here && there) return dot_rows(here, dy.stride(2), there, y.stride(2), rows, p_.value_size, delta_);
    for (int64_t i = 0; i < rows; ++i)
      dot_rows(floats(dy, b, h, row + i, buffer_), 0, floats(y, b, h, row + i, buffer_ + p_.value_room), 0, 1,
               p_.value_size, delta_ + i);
  }

  // A row of values, where it is or in `buffer`.
  const float* floats(const TileView& from, int64_t b, int64_t h, int64_t row, float* buffer) const {
    if (const float* here = from.in_place(b, h, row, 0)) return here;
    from.load(b, h, row, 0, p_.value_size, buffer);
    return buffer;
  }

  void key_tile(int64_t b, int64_t h, const Tile& tile, const MaskGrad& mask_grad) {
    const Panels keys_t = packed(keys_t_, p_.terms(p_.size)).from_column(tile.column);
    const Panels values_t = packed(values_t_, p_.terms(p_.value_size)).from_column(tile.column);
    const Triangle scores = p_.triangle(Triangle::kResult, tile),
                   transposed = p_.triangle(Triangle::kLeftTransposed, tile);
    p_.product(tile.rows, tile.columns, p_.size, q_rows_.left(), keys_t, p_tile_, kKeyTile, false, scores);
    p_.product(tile.rows, tile.columns, p_.value_size, dy_rows_.left(), values_t, ds_tile_, kKeyTile, false, scores);
    MaskRows masks(p_, b, h, row_);
    for (int64_t i = 0; i < tile.rows; ++i) {
      const int64_t n = std::clamp<int64_t>(p_.causal_keys(tile.row + i) - tile.column, 0, tile.columns);
      score_grads(b, h, tile, i, masks.row(tile, i), n);
      if (to_.mask && n > 0) mask_grad.add(b, h, tile.row + i, tile.column, ds_tile_ + i * kKeyTile, n);
    }
    const int64_t rows = tile.rows, columns = tile.columns;
    if (to_.dv)
      p_.product(columns, p_.value_size, rows, p_.over_rows(p_tile_, rows, columns, narrow_),
                 p_.pairs ? Panels::in_rows(summed_dy_, p_.value_room) : dy_rows_.right(),
                 dv_ + tile.column * p_.value_room, p_.value_room, true, transposed);
    if (to_.dk)
      p_.product(columns, p_.size, rows, p_.over_rows(ds_tile_, rows, columns, narrow_),
                 p_.pairs ? Panels::in_rows(summed_q_, p_.size_room) : q_rows_.right(),
                 dk_ + tile.column * p_.size_room, p_.size_room, true, transposed);
    if (to_.dq)
      p_.product(rows, p_.size, columns, p_.over_columns(ds_tile_, rows, columns, narrow_),
                 keys_.from_row(p_.terms(tile.column)), dq_, p_.size_room, tile.column > 0,
                 p_.triangle(Triangle::kLeft, tile));
  }

  // Turns row i of the tile from scores and dp into what v was multiplied with and the gradient of the scores.
  void score_grads(int64_t b, int64_t h, const Tile& tile, int64_t i, const float* bias, int64_t n) {
    float *p = p_tile_ + i * kKeyTile, *ds = ds_tile_ + i * kKeyTile;
    if (lse_[i] == kNoScore) n = 0;  // the row saw no key
    if (p_.keeps_raw_scores())
      raw_probability_row(p, p_.scale, lse_[i], n);
    else
      probability_row(p, bias, p_.scale, lse_[i], n);
    if (p_.dropout.active && n > 0) {
      uint32_t words[kKeyTile];
      p_.words(b, h, tile.row + i, tile.column, n, words);
      dropped_score_grad_row(ds, p, words, p_.dropout.threshold, p_.dropout.factor, delta_[i], n);
    } else {
      score_grad_row(ds, p, delta_[i], n);
    }
    std::fill(p + n, p + tile.columns, 0.0f);
    std::fill(ds + n, ds + tile.columns, 0.0f);
  }

  const FlashProblem& p_;
  const Targets& to_;
  float *keys_t_, *values_t_, *keys_copy_, *buffer_, *row_, *q_, *dy_, *summed_q_, *summed_dy_, *dq_;
  float *p_tile_, *ds_tile_, *narrow_, *delta_;
  float *dk_room_, *dv_room_;  // null where not wanted or collected in shares
  int64_t floats_;
  Panels keys_{};  // of the task at hand, as are the next
  float *dk_ = nullptr, *dv_ = nullptr;
  Rows q_rows_{}, dy_rows_{};  // of the tile at hand
  const float* lse_ = nullptr;
};

// Which units run on which thread: see the note above.
struct Schedule {
  std::vector<std::pair<int64_t, int64_t>> units;  // (batch element, key head); those of a slice are neighbors
  std::vector<int64_t> begin;                      // per lane: its first unit; then the number of units
  int64_t shares = 1;
  bool lanes_collide = false;

  Schedule(const FlashProblem& p, bool mask_grad, const MaskGrad& mask) {
    const int64_t threads = at::get_num_threads(), count = p.batch * p.key_heads;
    const bool over_batch = mask_grad && mask.strides[0] == 0, over_heads = mask_grad && mask.strides[1] == 0;
    // Batch elements innermost where they share a slice.
    for (int64_t u = 0; u < count; ++u) {
      const int64_t outer = over_batch ? p.batch : p.key_heads;
      const int64_t a = u / outer, b = u % outer;
      units.emplace_back(over_batch ? b : a, over_batch ? a : b);
    }
    const int64_t slice = (over_batch ? p.batch : 1) * (over_heads ? p.key_heads : 1), slices = count / slice;
    if (!mask_grad && count < threads) shares = std::min(p.query_tiles(), (threads + count - 1) / count);
    lanes_collide = mask_grad && slices < threads && slice > 1;
    const int64_t grain = lanes_collide ? 1 : slice, lanes = std::min(threads, count / grain);
    for (int64_t lane = 0; lane <= lanes; ++lane) begin.push_back(count / grain * lane / lanes * grain);
  }
  int64_t lanes() const { return static_cast<int64_t>(begin.size()) - 1; }
};

// Adds the shares of a gradient [shares, batch, key heads, keys, room] and rounds it to the result's type.
void finish(const FlashProblem& p, int64_t shares, float* sums, int64_t columns, int64_t room, float factor,
            const TileView& to) {
  const int64_t share = p.batch * p.key_heads * p.keys * room;
  at::parallel_for(0, p.batch * p.key_heads * p.keys, 64, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      float* sum = sums + row * room;
      for (int64_t s = 1; s < shares; ++s) add_row(sum, sum + s * share, columns);
      const int64_t head = row / p.keys;
      to.store(head / p.key_heads, head % p.key_heads, row % p.keys, columns, sum, factor);
    }
  });
}

}  // namespace

FlashGrads flash_backward(const FlashInputs& inputs, const at::Tensor& dy, const at::Tensor& y, const at::Tensor& lse,
                          const FlashWants& wants) {
  const FlashProblem p(inputs);
  FlashGrads grads;
  Targets to;
  MaskGrad mask_grad;
  to.mask = wants.mask;
  if (wants.mask) {
    const auto sizes = inputs.mask.sizes();
    const at::Tensor shaped = at::zeros(sizes, inputs.mask.options().dtype(at::kFloat));
    grads.mask = shaped;
    const at::Tensor full = shaped.expand({p.batch, p.heads, p.queries, p.keys});
    for (size_t axis = 0; axis < 4; ++axis) mask_grad.strides[axis] = full.size(axis) == 1 ? 0 : full.stride(axis);
    mask_grad.data = shaped.mutable_data_ptr<float>();
  }
  const Schedule schedule(p, wants.mask, mask_grad);
  std::tie(grads.q, grads.k, grads.v) = std::tuple_cat(gradients_like(inputs, wants));
  if (wants.q) to.dq = TileView(grads.q);
  if (wants.k) to.dk = TileView(grads.k);
  if (wants.v) to.dv = TileView(grads.v);
  const auto sums = inputs.q.options().dtype(at::kFloat);
  const int64_t rows = schedule.shares * p.batch * p.key_heads * p.keys;
  at::Tensor dk, dv, copies;
  if (wants.k && schedule.shares > 1)
    to.dk_shares = (dk = at::empty({rows * p.size_room}, sums)).mutable_data_ptr<float>();
  if (wants.v && schedule.shares > 1)
    to.dv_shares = (dv = at::empty({rows * p.value_room}, sums)).mutable_data_ptr<float>();
  const int64_t mask_floats = wants.mask ? grads.mask.numel() : 0;
  if (schedule.lanes_collide) copies = at::zeros({(schedule.lanes() - 1) * mask_floats}, sums);

  const TileView dy_view(dy), y_view(y);
  const auto* lse_data = lse.const_data_ptr<float>();
  const int64_t floats = Backward(p, to, Scratch(nullptr)).scratch_floats();
  const int64_t lanes = schedule.lanes() * schedule.shares;
  const at::Tensor memory = scratch_memory(std::min<int64_t>(at::get_num_threads(), lanes), floats);
  auto* scratch = memory.mutable_data_ptr<float>();
  at::parallel_for(0, lanes, 1, [&](int64_t begin, int64_t end) {
    Backward backward(p, to, Scratch(scratch + at::get_thread_num() * floats));
    for (int64_t at = begin; at < end; ++at) {
      const int64_t lane = at / schedule.shares, share = at % schedule.shares;
      MaskGrad own = mask_grad;
      if (schedule.lanes_collide && lane > 0) own.data = copies.mutable_data_ptr<float>() + (lane - 1) * mask_floats;
      for (int64_t u = schedule.begin[lane]; u < schedule.begin[lane + 1]; ++u) {
        const auto [b, key_head] = schedule.units[u];
        backward.task(b, key_head, share, schedule.shares, dy_view, y_view, lse_data, own);
      }
    }
  });

  if (schedule.lanes_collide)
    for (int64_t lane = 1; lane < schedule.lanes(); ++lane)
      add_row(mask_grad.data, copies.const_data_ptr<float>() + (lane - 1) * mask_floats, mask_floats);
  if (wants.mask) grads.mask = grads.mask.to(inputs.mask.scalar_type());
  if (to.dk_shares) finish(p, schedule.shares, to.dk_shares, p.size, p.size_room, p.scale, to.dk);
  if (to.dv_shares) finish(p, schedule.shares, to.dv_shares, p.value_size, p.value_room, 1, to.dv);
  return grads;
}

}  // namespace ortmodule
