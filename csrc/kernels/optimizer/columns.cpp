#include "kernels/optimizer/columns.h"

#include <algorithm>
#include <bit>

#include "kernels/conversion.h"
#include "kernels/cpu_simd.h"
#include "kernels/optimizer/eight_bit.h"
#include "kernels/philox.h"

namespace ortmodule {
namespace {

// The low 16 bits of a float are added to random ones, whose carry rounds up. Infinities and NaN stay.
ORTMODULE_SIMD void store_drawn(const float* from, uint16_t* to, int64_t n, const uint32_t* words) {
  for (int64_t i = 0; i < n; ++i) {
    const auto bits = std::bit_cast<uint32_t>(from[i]);
    const uint32_t finite = -static_cast<uint32_t>((bits & 0x7f800000u) != 0x7f800000u);
    const uint32_t nan = -static_cast<uint32_t>((bits & 0x7fffffffu) > 0x7f800000u);
    to[i] = static_cast<uint16_t>(((bits + (words[i] & 0xffffu & finite)) >> 16) | (0x40u & nan));
  }
}

ORTMODULE_SIMD void draw(const Rounding& rounding, int64_t block, uint32_t* words) {
  philox_block(rounding.seed, rounding.stream, static_cast<uint64_t>(block), words);
}

void store_stochastically(const float* from, uint16_t* to, int64_t begin, int64_t n, const Rounding& rounding) {
  uint32_t words[kPhiloxBlock];
  for (int64_t i = 0; i < n; i += kPhiloxBlock) {
    draw(rounding, (begin + i) / kPhiloxBlock, words);
    store_drawn(from + i, to + i, std::min(kPhiloxBlock, n - i), words);
  }
}

char* address(const Column& column, int64_t begin) {
  return static_cast<char*>(column.data) + begin * static_cast<int64_t>(c10::elementSize(column.type));
}

}  // namespace

template <>
bool is_direct<float>(const Column& column) {
  return !column || (column.type == at::kFloat && column.form == Form::kPlain);
}
template <>
bool is_direct<double>(const Column&) {
  return true;  // no other type meets doubles
}

template <>
double* opened(const Column& column, int64_t begin, int64_t, double*) {
  return column ? static_cast<double*>(column.data) + begin : nullptr;
}
template <>
float* opened(const Column& column, int64_t begin, int64_t n, float* scratch) {
  if (!column) return nullptr;
  if (is_direct<float>(column)) return static_cast<float*>(column.data) + begin;
  if (column.form == Form::kPlain)
    load_elements(column.type, address(column, begin), 1, scratch, n);
  else
    decode_state(column.form == Form::kSigned, static_cast<const uint8_t*>(column.data) + begin,
                 column.scales + begin / kStateBlock, scratch, n);
  return scratch;
}

template <>
void close(const Column&, int64_t, int64_t, const double*, const Rounding&) {}
template <>
void close(const Column& column, int64_t begin, int64_t n, const float* values, const Rounding& rounding) {
  if (!column || values == static_cast<const float*>(column.data) + begin) return;
  if (column.form != Form::kPlain)
    encode_state(column.form == Form::kSigned, values, static_cast<uint8_t*>(column.data) + begin,
                 column.scales + begin / kStateBlock, n);
  else if (rounding.stochastic && column.type == at::kBFloat16)
    store_stochastically(values, reinterpret_cast<uint16_t*>(address(column, begin)), begin, n, rounding);
  else
    store_elements(column.type, values, address(column, begin), n);
}

}  // namespace ortmodule
