// Forward of tiled attention (flash.h): tasks of one key head and a range of query tiles, each on one thread.
//
// A row's result does not depend on how tasks fall to threads, so that any number of threads gives the same bits.
#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>

#include <cmath>

#include "ops/attention/flash_rows.h"
#include "ops/attention/flash_tiles.h"

namespace ortmodule {
namespace {

class Forward {
 public:
  Forward(const FlashProblem& p, Scratch scratch)
      : p_(p),
        keys_t_(scratch.take(p.size * p.key_room)),
        values_copy_(scratch.take(p.keys * p.value_room)),
        buffer_(scratch.take(32 * std::max(p.size_room, p.value_room))),
        row_(scratch.take(std::max(p.key_room, kKeyTile))),
        q_(scratch.take(p.query_tile * p.size_room)),
        scores_(scratch.take(p.query_tile * kKeyTile)),
        narrow_(p.pairs ? scratch.take(p.query_tile * kKeyTile) : nullptr),
        y_(scratch.take(p.query_tile * p.value_room)),
        largest_(scratch.take(p.query_tile)),
        sum_(scratch.take(p.query_tile)),
        floats_(scratch.used()) {}

  int64_t scratch_floats() const { return floats_; }

  void task(int64_t b, int64_t key_head, int64_t first_tile, int64_t end_tile, const TileView& y, float* lse) {
    p_.pack_transposed(p_.k, b, key_head, p_.size, keys_t_, buffer_);
    values_ = p_.rows_of(p_.v, b, key_head, p_.value_size, p_.value_room, values_copy_);
    for (int64_t h = key_head * p_.group; h < (key_head + 1) * p_.group; ++h) {
      const int64_t visible = p_.visible_keys(b, h, row_);
      for (int64_t t = first_tile; t < end_tile; ++t) {
        const int64_t row = t * p_.query_tile;
        query_tile(b, h, row, std::min(p_.query_tile, p_.queries - row), visible, y, lse);
      }
    }
  }

 private:
  void query_tile(int64_t b, int64_t h, int64_t row, int64_t rows, int64_t visible, const TileView& y, float* lse) {
    q_rows_ = p_.rows(p_.q, b, h, row, rows, p_.size, p_.size_room, q_);
    std::fill(largest_, largest_ + rows, kNoScore);
    std::fill(sum_, sum_ + rows, 0.0f);
    const int64_t end = std::min(visible, p_.causal_keys(row + rows - 1));
    if (end == 0) std::fill(y_, y_ + rows * p_.value_room, 0.0f);
    for (int64_t column = 0; column < end; column += kKeyTile)
      key_tile(b, h, {row, rows, column, std::min(kKeyTile, end - column)});
    float* row_lse = lse + (b * p_.heads + h) * p_.queries + row;
    const float factor = p_.dropout.active ? p_.dropout.factor : 1.0f;
    for (int64_t i = 0; i < rows; ++i) {
      const bool none = sum_[i] == 0;
      y.store(b, h, row + i, p_.value_size, y_ + i * p_.value_room, none ? 0.0f : factor / sum_[i]);
      row_lse[i] = none ? kNoScore : static_cast<float>(double{largest_[i]} + std::log(double{sum_[i]}) / scale_);
    }
  }

  void key_tile(int64_t b, int64_t h, const Tile& tile) {
    uint32_t words[kKeyTile];
    const Panels keys = packed(keys_t_, p_.terms(p_.size)).from_column(tile.column);
    p_.product(tile.rows, tile.columns, p_.size, q_rows_.left(), keys, scores_, kKeyTile, false,
               p_.triangle(Triangle::kResult, tile));
    MaskRows masks(p_, b, h, row_);
    for (int64_t i = 0; i < tile.rows; ++i) {
      float* s = scores_ + i * kKeyTile;
      const float* bias = masks.row(tile, i);
      const int64_t n = std::clamp<int64_t>(p_.causal_keys(tile.row + i) - tile.column, 0, tile.columns);
      const float largest = std::max(largest_[i], raw_ ? largest_in_row(s, n) : scale_row(s, bias, p_.scale, n));
      // A row that has seen nothing but -inf has no shift of its own: its exponentials are zero with any.
      const float shift = largest == kNoScore ? 0.0f : largest;
      const float correction = tile.column > 0 ? std::exp((largest_[i] - shift) * scale_) : 0.0f;
      sum_[i] = sum_[i] * correction + exp_row(s, scale_, shift, n);
      largest_[i] = largest;
      if (tile.column > 0 && correction != 1) multiply_row(y_ + i * p_.value_room, correction, p_.value_room);
      if (p_.dropout.active && n > 0) {
        p_.words(b, h, tile.row + i, tile.column, n, words);
        drop_row(s, words, p_.dropout.threshold, n);
      }
      std::fill(s + n, s + tile.columns, 0.0f);
    }
    p_.product(tile.rows, p_.value_size, tile.columns, p_.over_columns(scores_, tile.rows, tile.columns, narrow_),
               values_.from_row(p_.terms(tile.column)), y_, p_.value_room, tile.column > 0,
               p_.triangle(Triangle::kLeft, tile));
  }

  const FlashProblem& p_;
  const bool raw_ = p_.keeps_raw_scores();
  const float scale_ = raw_ ? p_.scale : 1.0f;  // of the scores as their rows hold them
  float *keys_t_, *values_copy_, *buffer_, *row_, *q_, *scores_, *narrow_, *y_, *largest_, *sum_;
  int64_t floats_;
  Panels values_{};  // of the task at hand
  Rows q_rows_{};    // of the tile at hand
};

}  // namespace

FlashResult flash_forward(const FlashInputs& inputs) {
  const FlashProblem p(inputs);
  at::Tensor y = at::empty({p.batch, p.queries, p.heads, p.value_size}, inputs.q.options()).transpose(1, 2);
  at::Tensor lse = at::empty({p.batch, p.heads, p.queries}, inputs.q.options().dtype(at::kFloat));
  const TileView to(y);
  auto* lse_data = lse.mutable_data_ptr<float>();

  // Enough tasks to fill the threads evenly; every further range of tiles packs the keys again.
  const int64_t threads = at::get_num_threads(), pairs = p.batch * p.key_heads, tiles = p.query_tiles();
  const int64_t ranges = pairs >= 4 * threads ? 1 : std::min(tiles, (4 * threads + pairs - 1) / pairs);
  const int64_t floats = Forward(p, Scratch(nullptr)).scratch_floats();
  const at::Tensor memory = scratch_memory(std::min(threads, pairs * ranges), floats);
  auto* scratch = memory.mutable_data_ptr<float>();
  at::parallel_for(0, pairs * ranges, 1, [&](int64_t begin, int64_t end) {
    Forward forward(p, Scratch(scratch + at::get_thread_num() * floats));
    for (int64_t task = begin; task < end; ++task) {
      const int64_t pair = task / ranges, range = task % ranges;
      forward.task(pair / p.key_heads, pair % p.key_heads, range * tiles / ranges, (range + 1) * tiles / ranges, to,
                   lse_data);
    }
  });
  return {std::move(y), std::move(lse)};
}

}  // namespace ortmodule
