// What forward and backward of tiled attention share: the call in plain numbers and strides, tiles, scratch memory.
#pragma once

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <limits>

#include "ops/attention/flash.h"
#include "products/tile_product.h"

namespace ortmodule {

// A tensor [batch, heads, rows, columns] of any floating type or bool, read and written as fp32.
class TileView {
 public:
  TileView() = default;
  explicit TileView(const at::Tensor& t);

  explicit operator bool() const { return data_ != nullptr; }
  // Columns [column, column + n) of a row into out. A bool reads as 0 (true) and -inf (false).
  void load(int64_t b, int64_t h, int64_t row, int64_t column, int64_t n, float* out) const {
    load_(data_, at(b, h, row, column), strides_[3], n, out);
  }
  // Columns [0, n) of a row as they are, two bytes each.
  void copy(int64_t b, int64_t h, int64_t row, int64_t n, void* out) const;
  // Row = values * factor, rounded to the tensor's type.
  void store(int64_t b, int64_t h, int64_t row, int64_t n, const float* values, float factor) const {
    store_(data_, at(b, h, row, 0), strides_[3], n, values, factor);
  }
  // The values where they are, if they are fp32 side by side; else null.
  const float* in_place(int64_t b, int64_t h, int64_t row, int64_t column) const {
    return direct_ ? static_cast<const float*>(data_) + at(b, h, row, column) : nullptr;
  }
  int64_t stride(size_t axis) const { return strides_[axis]; }

 private:
  int64_t at(int64_t b, int64_t h, int64_t row, int64_t column) const {
    return b * strides_[0] + h * strides_[1] + row * strides_[2] + column * strides_[3];
  }
  void* data_ = nullptr;
  int64_t strides_[4] = {};
  bool direct_ = false;
  void (*load_)(const void*, int64_t, int64_t, int64_t, float*) = nullptr;
  void (*store_)(void*, int64_t, int64_t, int64_t, const float*, float) = nullptr;
};

// Keys per tile: a multiple of the widest panel and of a Philox block.
constexpr int64_t kKeyTile = 128;
constexpr int64_t kPhiloxColumns = 64;
constexpr float kNoScore = -std::numeric_limits<float>::infinity();

// Floats that are whole vectors at every instruction-set level.
constexpr int64_t kWholeVectors = 16;

// Rows in memory, `step` floats apart.
struct Rows {
  const float* data;
  int64_t step;

  LeftOperand left() const { return {data, step, 1}; }
  Panels right() const { return Panels::in_rows(data, step); }
};

// One tile of scores: rows [row, row + rows) of the queries by columns [column, column + columns) of the keys.
struct Tile {
  int64_t row, rows, column, columns;
};

struct FlashProblem {
  explicit FlashProblem(const FlashInputs& inputs);

  int64_t batch, heads, key_heads, queries, keys, size, value_size;
  int64_t group;                  // query heads per key head
  int64_t size_room, value_room;  // rounded up to panels
  bool pairs;                     // products are of pairs of bfloat16: see the note below
  int64_t query_tile, key_room;   // rows of a tile; keys rounded up to panels
  bool causal;
  float scale;
  AttentionDropoutState dropout;
  TileView q, k, v, mask;

  // The largest of raw scores is that of the scaled ones, which need not be written then; lse is in their units. The
  // scale is applied to differences, for which forward and backward compute the same numbers: scaled scores of a
  // million are rounded to sixteenths, of which e is taken to the power.
  bool keeps_raw_scores() const { return !mask && scale > 0; }
  int64_t query_tiles() const { return (queries + query_tile - 1) / query_tile; }
  // How many of the first keys a tile of queries may look at: all, fewer under causality or where a mask that is the
  // same for all queries hides the last ones. `row_buffer` has room for all keys.
  int64_t visible_keys(int64_t b, int64_t h, float* row_buffer) const;
  int64_t causal_keys(int64_t row) const { return causal ? std::min(keys, row + 1) : keys; }
  // The words that decide a row of a tile.
  void words(int64_t b, int64_t h, int64_t row, int64_t column, int64_t n, uint32_t* out) const;

  // Note [Operands in pairs]
  // Where the tensors are bfloat16 and the processor multiplies pairs of them, operands stay bfloat16, two summands to
  // the room of a float: pairs of columns for a product over the columns, of rows for one over the rows. Probabilities
  // and gradients of scores are rounded to bfloat16 between two products, as PyTorch's kernels do; all else is fp32.
  // Otherwise operands are floats, and one copy serves products over rows and over columns.

  // How many floats, or pairs, n summands are.
  int64_t terms(int64_t n) const { return pairs ? (n + 1) / 2 : n; }
  // c[m, n] = a b or c += a b over `k` summands.
  void product(int64_t m, int64_t n, int64_t k, const LeftOperand& a, const Panels& b, float* c, int64_t ld, bool add,
               const Triangle& triangle) const {
    (pairs ? pair_product : tile_product)(m, n, terms(k), a, b, c, ld, add, triangle);
  }
  // What causality leaves of a product in which the tile of scores is the result or the left operand.
  Triangle triangle(Triangle::Matrix scores, const Tile& tile) const {
    return causal ? Triangle{scores, tile.row - tile.column} : Triangle{};
  }
  // Whether rows of n floats are read where they lie: by the few products of a short length, in whole vectors.
  bool reads_in_place(const TileView& from, int64_t n) const {
    return !pairs && keys <= kKeyTile && n % kWholeVectors == 0 && from.in_place(0, 0, 0, 0);
  }
  // Rows of one head of a tensor, for products over their columns and, without pairs, over the rows: where they lie, or
  // `room` floats apart in `copy`.
  Rows rows(const TileView& from, int64_t b, int64_t h, int64_t row, int64_t rows, int64_t n, int64_t room,
            float* copy) const;
  // A copy of them: `room` floats apart in out.
  void load_rows(const TileView& from, int64_t b, int64_t h, int64_t row, int64_t rows, int64_t n, int64_t room,
                 float* out) const;
  // The same for products over the rows: terms(rows) rows of `room` floats, filled up with zeros.
  void load_summed_rows(const TileView& from, int64_t b, int64_t h, int64_t row, int64_t rows, int64_t n, int64_t room,
                        float* out) const;
  // All rows of one head as columns of the right operand, for products over the head size.
  void pack_transposed(const TileView& from, int64_t b, int64_t h, int64_t n, float* panels, float* buffer) const;
  // All rows of one head as rows of the right operand, for products over the keys: where they lie if few rows of the
  // other operand come to read them, else side by side in `copy`.
  Panels rows_of(const TileView& from, int64_t b, int64_t h, int64_t n, int64_t room, float* copy) const;
  // A tile of fp32 numbers, kKeyTile apart, as the left operand of a product over its columns, and transposed, over its
  // rows. `narrow`: room for a tile.
  LeftOperand over_columns(const float* tile, int64_t rows, int64_t columns, float* narrow) const;
  LeftOperand over_rows(const float* tile, int64_t rows, int64_t columns, float* narrow) const;
};

// The mask's values for one tile, row by row.
class MaskRows {
 public:
  MaskRows(const FlashProblem& p, int64_t b, int64_t h, float* buffer) : p_(p), b_(b), h_(h), buffer_(buffer) {}
  // Null without a mask. Rows of a tile are asked for in order.
  const float* row(const Tile& tile, int64_t i) {
    if (!p_.mask) return nullptr;
    if (const float* here = p_.mask.in_place(b_, h_, tile.row + i, tile.column)) return here;
    if (i == 0 || p_.mask.stride(2) != 0) p_.mask.load(b_, h_, tile.row + i, tile.column, tile.columns, buffer_);
    return buffer_;
  }

 private:
  const FlashProblem& p_;
  int64_t b_, h_;
  float* buffer_;
};

// Hands out consecutive pieces of one buffer, each on a cache line.
class Scratch {
 public:
  explicit Scratch(float* data) : data_(data) {}
  float* take(int64_t floats) {
    float* piece = data_ ? data_ + used_ : nullptr;
    used_ += round_up(floats, 16);
    return piece;
  }
  int64_t used() const { return used_; }

 private:
  float* data_;
  int64_t used_ = 0;
};

// `threads` buffers in one allocation; buffer t begins at data() + t * floats.
at::Tensor scratch_memory(int64_t threads, int64_t floats);

}  // namespace ortmodule
