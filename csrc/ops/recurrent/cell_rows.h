// The cells' formulas for one row of the batch, forward and backward, in one pass over the row.
//
// T is the element type of tensors, Wide<T> what is computed in and what gradients are carried in from step to step.
// `product` is the row's previous output times w_hh. The float forms are compiled for each instruction-set level.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <type_traits>

#include "kernels/cpu_simd.h"

namespace ortmodule {

template <typename T>
using Wide = std::conditional_t<std::is_same_v<T, double>, double, float>;

// a where all bits of the mask are set, b where none is: no ?:, as in simd_exp.
ORTMODULE_INLINE float masked(uint32_t mask, float a, float b) {
  return std::bit_cast<float>((std::bit_cast<uint32_t>(a) & mask) | (std::bit_cast<uint32_t>(b) & ~mask));
}

ORTMODULE_INLINE float cell_sigmoid(float x) {
  const float e = simd_exp(-std::bit_cast<float>(std::bit_cast<uint32_t>(x) & 0x7fffffffu));
  const auto negative = static_cast<uint32_t>(std::bit_cast<int32_t>(x) >> 31);
  return masked(negative, e, 1.0f) / (1.0f + e);
}
ORTMODULE_INLINE double cell_sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

// Near zero Cephes' polynomial, as (1 - e) loses digits there.
ORTMODULE_INLINE float cell_tanh(float x) {
  const uint32_t sign = std::bit_cast<uint32_t>(x) & 0x80000000u;
  const float a = std::bit_cast<float>(std::bit_cast<uint32_t>(x) & 0x7fffffffu), e = simd_exp(-2.0f * a);
  const float far = (1.0f - e) / (1.0f + e), z = x * x;
  float p = -5.70498872745e-3f;
  p = p * z + 2.06390887954e-2f;
  p = p * z - 5.37397155531e-2f;
  p = p * z + 1.33314422036e-1f;
  p = p * z - 3.33332819422e-1f;
  const float signed_far = std::bit_cast<float>(std::bit_cast<uint32_t>(far) | sign);
  return masked(-static_cast<uint32_t>(a < 0.625f), x + x * z * p, signed_far);
}
ORTMODULE_INLINE double cell_tanh(double x) { return std::tanh(x); }

// `gates` holds the input's part and becomes i, f, g, o. `hidden` is o tanh(cell).
template <typename T>
ORTMODULE_INLINE void lstm_forward(int64_t n, const T* __restrict__ product, T* __restrict__ gates,
                                   const T* __restrict__ before, T* __restrict__ cell, T* __restrict__ hidden) {
  using W = Wide<T>;
#pragma omp simd
  for (int64_t j = 0; j < n; ++j) {
    const W i = cell_sigmoid(W(gates[j]) + W(product[j]));
    const W f = cell_sigmoid(W(gates[n + j]) + W(product[n + j]));
    const W g = cell_tanh(W(gates[2 * n + j]) + W(product[2 * n + j]));
    const W o = cell_sigmoid(W(gates[3 * n + j]) + W(product[3 * n + j]));
    const W c = f * W(before[j]) + i * g;
    gates[j] = T(i);
    gates[n + j] = T(f);
    gates[2 * n + j] = T(g);
    gates[3 * n + j] = T(o);
    cell[j] = T(c);
    hidden[j] = T(o * cell_tanh(c));
  }
}

// `dh` is the whole gradient of the hidden state; `dc` comes from the step after and goes to the step before.
template <typename T>
ORTMODULE_INLINE void lstm_backward(int64_t n, const T* __restrict__ gates, const T* __restrict__ before,
                                    const T* __restrict__ cell, const Wide<T>* __restrict__ dh,
                                    Wide<T>* __restrict__ dc, T* __restrict__ dgates) {
  using W = Wide<T>;
#pragma omp simd
  for (int64_t j = 0; j < n; ++j) {
    const W i = W(gates[j]), f = W(gates[n + j]), g = W(gates[2 * n + j]), o = W(gates[3 * n + j]);
    const W t = cell_tanh(W(cell[j])), d = dc[j] + dh[j] * o * (1 - t * t);
    dgates[j] = T(d * g * i * (1 - i));
    dgates[n + j] = T(d * W(before[j]) * f * (1 - f));
    dgates[2 * n + j] = T(d * i * (1 - g * g));
    dgates[3 * n + j] = T(dh[j] * t * o * (1 - o));
    dc[j] = d * f;
  }
}

// `input` is the input's part of r, z, n; `bias` what is added to the product. `gates` becomes r, z, n, product of n.
template <typename T>
ORTMODULE_INLINE void gru_forward(int64_t n, const T* __restrict__ product, const T* __restrict__ bias,
                                  const T* __restrict__ input, const T* __restrict__ before, T* __restrict__ gates,
                                  T* __restrict__ hidden) {
  using W = Wide<T>;
#pragma omp simd
  for (int64_t j = 0; j < n; ++j) {
    const W r = cell_sigmoid(W(input[j]) + (W(product[j]) + W(bias[j])));
    const W z = cell_sigmoid(W(input[n + j]) + (W(product[n + j]) + W(bias[n + j])));
    const W p = W(product[2 * n + j]) + W(bias[2 * n + j]);
    const W c = cell_tanh(W(input[2 * n + j]) + r * p);
    gates[j] = T(r);
    gates[n + j] = T(z);
    gates[2 * n + j] = T(c);
    gates[3 * n + j] = T(p);
    hidden[j] = T(c + z * (W(before[j]) - c));
  }
}

// `dh` becomes the part of the previous output's gradient that does not pass through w_hh.
template <typename T>
ORTMODULE_INLINE void gru_backward(int64_t n, const T* __restrict__ gates, const T* __restrict__ before,
                                   Wide<T>* __restrict__ dh, T* __restrict__ dinput, T* __restrict__ dproduct) {
  using W = Wide<T>;
#pragma omp simd
  for (int64_t j = 0; j < n; ++j) {
    const W r = W(gates[j]), z = W(gates[n + j]), c = W(gates[2 * n + j]), p = W(gates[3 * n + j]);
    const W dn = dh[j] * (1 - z) * (1 - c * c), dz = dh[j] * (W(before[j]) - c) * z * (1 - z);
    const W dr = dn * p * r * (1 - r);
    dinput[j] = T(dr);
    dinput[n + j] = T(dz);
    dinput[2 * n + j] = T(dn);
    dproduct[j] = T(dr);
    dproduct[n + j] = T(dz);
    dproduct[2 * n + j] = T(dn * r);
    dh[j] = dh[j] * z;
  }
}

template <bool relu, typename T>
ORTMODULE_INLINE void elman_forward(int64_t n, const T* __restrict__ product, const T* __restrict__ input,
                                    T* __restrict__ hidden) {
  using W = Wide<T>;
#pragma omp simd
  for (int64_t j = 0; j < n; ++j) {
    const W x = W(input[j]) + W(product[j]);
    if constexpr (relu)
      hidden[j] = T(x > 0 ? x : x != x ? x : W(0));  // NaN stays NaN
    else
      hidden[j] = T(cell_tanh(x));
  }
}

template <bool relu, typename T>
ORTMODULE_INLINE void elman_backward(int64_t n, const T* __restrict__ hidden, const Wide<T>* __restrict__ dh,
                                     T* __restrict__ dgates) {
  using W = Wide<T>;
#pragma omp simd
  for (int64_t j = 0; j < n; ++j) {
    const W h = W(hidden[j]);
    if constexpr (relu)
      dgates[j] = T(h > 0 ? dh[j] : W(0));
    else
      dgates[j] = T(dh[j] * (1 - h * h));
  }
}

}  // namespace ortmodule
