// Conversions, packing and masks of tiled attention.
#include "ops/attention/flash_tiles.h"

#include <ATen/ops/empty.h>

#include <cstring>
#include <type_traits>
#include <vector>

#include "kernels/conversion.h"
#include "kernels/cpu_simd.h"
#include "kernels/philox_state.h"
#include "kernels/processor.h"
#include "ops/attention/flash_rows.h"

namespace ortmodule {
namespace {

// Numbers of T, one of conversion.h's types, and doubles.
template <at::ScalarType type>
void load_as_float(const void* data, int64_t at, int64_t stride, int64_t n, float* out) {
  if constexpr (type == at::kDouble) {
    const double* from = static_cast<const double*>(data) + at;
    for (int64_t i = 0; i < n; ++i) out[i] = static_cast<float>(from[i * stride]);
  } else {
    load_elements(type, static_cast<const char*>(data) + at * c10::elementSize(type), stride, out, n);
  }
}

void load_bool(const void* data, int64_t at, int64_t stride, int64_t n, float* out) {
  const bool* from = static_cast<const bool*>(data) + at;
  for (int64_t i = 0; i < n; ++i) out[i] = from[i * stride] ? 0.0f : kNoScore;
}

ORTMODULE_SIMD void multiply(const float* values, float factor, float* out, int64_t n) {
  for (int64_t i = 0; i < n; ++i) out[i] = values[i] * factor;
}

template <typename T>
void store_float(void* data, int64_t at, int64_t stride, int64_t n, const float* values, float factor) {
  T* to = static_cast<T*>(data) + at;
  if (stride != 1 || std::is_same_v<T, double>) {
    for (int64_t i = 0; i < n; ++i) to[i * stride] = static_cast<T>(values[i] * factor);
  } else if constexpr (std::is_same_v<T, float>) {
    multiply(values, factor, to, n);
  } else {
    constexpr int64_t kPart = 256;
    float part[kPart];
    for (int64_t i = 0; i < n; i += kPart) {
      const int64_t count = std::min(kPart, n - i);
      multiply(values + i, factor, part, count);
      store_elements(c10::CppTypeToScalarType<T>::value, part, to + i, count);
    }
  }
}

// They lie in the room of floats.
typedef uint16_t Half __attribute__((may_alias));
typedef uint32_t Word __attribute__((may_alias));

// out[i] = (even[i], odd[i]), the first in the low half. Without an odd row its place is zero.
ORTMODULE_SIMD void pair_up(const uint16_t* even, const uint16_t* odd, Word* out, int64_t n) {
  if (!odd) {
    for (int64_t i = 0; i < n; ++i) out[i] = even[i];
  } else {
    for (int64_t i = 0; i < n; ++i) out[i] = even[i] | static_cast<uint32_t>(odd[i]) << 16;
  }
}

}  // namespace

TileView::TileView(const at::Tensor& t) : data_(t.data_ptr()) {
  for (size_t axis = 0; axis < 4; ++axis) strides_[axis] = t.size(axis) == 1 && axis != 3 ? 0 : t.stride(axis);
  switch (t.scalar_type()) {
    case at::kFloat:
      load_ = load_as_float<at::kFloat>, store_ = store_float<float>;
      direct_ = strides_[3] == 1;
      break;
    case at::kBFloat16:
      load_ = load_as_float<at::kBFloat16>, store_ = store_float<at::BFloat16>;
      break;
    case at::kHalf:
      load_ = load_as_float<at::kHalf>, store_ = store_float<at::Half>;
      break;
    case at::kDouble:
      load_ = load_as_float<at::kDouble>, store_ = store_float<double>;
      break;
    default:
      load_ = load_bool;
  }
}

void TileView::copy(int64_t b, int64_t h, int64_t row, int64_t n, void* out) const {
  const Half* from = static_cast<const Half*>(data_) + at(b, h, row, 0);
  if (strides_[3] == 1) {
    std::memcpy(out, from, n * sizeof(Half));
  } else {
    for (int64_t i = 0; i < n; ++i) static_cast<Half*>(out)[i] = from[i * strides_[3]];
  }
}

bool flash_supports(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const at::Tensor& mask) {
  const at::ScalarType type = q.scalar_type();
  if (!q.is_cpu() || (type != at::kFloat && type != at::kBFloat16 && type != at::kHalf)) return false;
  if (k.scalar_type() != type || v.scalar_type() != type || q.dim() != 4 || k.dim() != 4 || v.dim() != 4) return false;
  if (q.numel() == 0 || k.numel() == 0 || v.numel() == 0 || k.size(1) == 0) return false;
  if (q.size(0) != k.size(0) || k.size(0) != v.size(0) || k.size(1) != v.size(1) || q.size(1) % k.size(1) != 0 ||
      q.size(3) != k.size(3) || k.size(2) != v.size(2))
    return false;
  return !mask.defined() || (mask.dim() <= 4 && (mask.scalar_type() == at::kBool || mask.is_floating_point()));
}

FlashProblem::FlashProblem(const FlashInputs& in)
    : batch(in.q.size(0)),
      heads(in.q.size(1)),
      key_heads(in.k.size(1)),
      queries(in.q.size(2)),
      keys(in.k.size(2)),
      size(in.q.size(3)),
      value_size(in.v.size(3)),
      group(heads / key_heads),
      size_room(round_up(size, panel_width())),
      value_room(round_up(value_size, panel_width())),
      pairs(in.q.scalar_type() == at::kBFloat16 && pairs_pay()),
      key_room(round_up(keys, panel_width())),
      causal(in.causal),
      scale(in.scale),
      dropout(in.dropout),
      q(in.q),
      k(in.k),
      v(in.v) {
  // Tiles of equal height, as near to 64 rows as it goes: a tile of scores and its operands stay in the second-level
  // cache, and few products end in a strip of less than a register file's rows.
  const int64_t tiles = std::max<int64_t>(1, (queries + 32) / 64);
  query_tile = (queries + tiles - 1) / tiles;
  if (in.mask.defined()) mask = TileView(in.mask.expand({batch, heads, queries, keys}));
}

int64_t FlashProblem::visible_keys(int64_t b, int64_t h, float* row_buffer) const {
  if (!mask || mask.stride(2) != 0) return keys;
  mask.load(b, h, 0, 0, keys, row_buffer);
  int64_t n = keys;
  while (n > 0 && row_buffer[n - 1] == kNoScore) --n;
  return n;
}

void FlashProblem::words(int64_t b, int64_t h, int64_t row, int64_t column, int64_t n, uint32_t* out) const {
  const int64_t per_row = (keys + kPhiloxColumns - 1) / kPhiloxColumns;
  const int64_t first = ((b * heads + h) * queries + row) * per_row + column / kPhiloxColumns;
  philox_words(dropout.seed, dropout.offset, static_cast<uint64_t>(first), (n + kPhiloxColumns - 1) / kPhiloxColumns,
               out);
}

Rows FlashProblem::rows(const TileView& from, int64_t b, int64_t h, int64_t row, int64_t rows, int64_t n, int64_t room,
                        float* copy) const {
  if (reads_in_place(from, n)) return {from.in_place(b, h, row, 0), from.stride(2)};
  load_rows(from, b, h, row, rows, n, room, copy);
  return {copy, room};
}

void FlashProblem::load_rows(const TileView& from, int64_t b, int64_t h, int64_t row, int64_t rows, int64_t n,
                             int64_t room, float* out) const {
  for (int64_t i = 0; i < rows; ++i, out += room) {
    if (pairs) {
      out[terms(n) - 1] = 0;  // the second half of the last pair of an odd number
      from.copy(b, h, row + i, n, out);
    } else {
      from.load(b, h, row + i, 0, n, out);
      std::fill(out + n, out + room, 0.0f);
    }
  }
}

void FlashProblem::load_summed_rows(const TileView& from, int64_t b, int64_t h, int64_t row, int64_t rows, int64_t n,
                                    int64_t room, float* out) const {
  if (!pairs) return load_rows(from, b, h, row, rows, n, room, out);
  std::vector<uint16_t> two(2 * n);
  for (int64_t i = 0; i < rows; i += 2, out += room) {
    const bool last = i + 1 == rows;
    from.copy(b, h, row + i, n, two.data());
    if (!last) from.copy(b, h, row + i + 1, n, two.data() + n);
    pair_up(two.data(), last ? nullptr : two.data() + n, reinterpret_cast<Word*>(out), n);
    std::fill(out + n, out + room, 0.0f);
  }
}

void FlashProblem::pack_transposed(const TileView& from, int64_t b, int64_t h, int64_t n, float* panels,
                                   float* buffer) const {
  const int64_t width = panel_width(), room = round_up(n, width);
  for (int64_t j = 0; j < keys; j += width) {
    const int64_t count = std::min(width, keys - j);
    if (const float* here = from.in_place(b, h, j, 0)) {
      pack_columns(panels, j, here, from.stride(2), count, n);
    } else {
      load_rows(from, b, h, j, count, n, room, buffer);
      pack_columns(panels, j, buffer, room, count, terms(n));
    }
  }
}

Panels FlashProblem::rows_of(const TileView& from, int64_t b, int64_t h, int64_t n, int64_t room, float* copy) const {
  constexpr int64_t kFewRows = 64;
  if (reads_in_place(from, n) && queries * group <= kFewRows)
    return Panels::in_rows(from.in_place(b, h, 0, 0), from.stride(2));
  load_summed_rows(from, b, h, 0, keys, n, room, copy);
  return Panels::in_rows(copy, room);
}

LeftOperand FlashProblem::over_columns(const float* tile, int64_t rows, int64_t columns, float* narrow) const {
  if (!pairs) return {tile, kKeyTile, 1};
  for (int64_t i = 0; i < rows; ++i) round_to_pairs(tile + i * kKeyTile, columns, narrow + i * kKeyTile);
  return {narrow, kKeyTile, 1};
}

LeftOperand FlashProblem::over_rows(const float* tile, int64_t rows, int64_t columns, float* narrow) const {
  if (!pairs) return {tile, 1, kKeyTile};
  for (int64_t i = 0; i < rows; i += 2) {
    const float* even = tile + i * kKeyTile;
    round_to_pairs(even, i + 1 < rows ? even + kKeyTile : nullptr, columns, narrow + i / 2 * kKeyTile);
  }
  return {narrow, 1, kKeyTile};
}

AttentionDropoutState dropout_state(double ratio, const PhiloxStream& stream) {
  AttentionDropoutState out;
  out.active = ratio > 0;
  out.seed = stream.seed;
  out.offset = stream.offset;
  out.threshold = philox_threshold(ratio);
  out.factor = static_cast<float>(1.0 / (1.0 - ratio));
  return out;
}

at::Tensor flash_keep_mask(at::IntArrayRef sizes, const AttentionDropoutState& dropout) {
  const at::Tensor mask = at::empty(sizes, at::TensorOptions(at::kBool));
  bool* kept = mask.mutable_data_ptr<bool>();
  const int64_t keys = sizes[3], rows = sizes[0] * sizes[1] * sizes[2];
  const int64_t blocks = (keys + kPhiloxColumns - 1) / kPhiloxColumns;
  std::vector<uint32_t> words(blocks * kPhiloxColumns);
  for (int64_t row = 0; row < rows; ++row) {
    philox_words(dropout.seed, dropout.offset, static_cast<uint64_t>(row * blocks), blocks, words.data());
    for (int64_t j = 0; j < keys; ++j) kept[row * keys + j] = words[j] >= dropout.threshold;
  }
  return mask;
}

at::Tensor scratch_memory(int64_t threads, int64_t floats) {
  return at::empty({threads * floats}, at::TensorOptions(at::kFloat));
}

}  // namespace ortmodule
