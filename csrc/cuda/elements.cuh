// Types of elements: conversion to the float that kernels compute in, and the choice of a kernel by type.
#pragma once

#include "cuda/kernel.cuh"

namespace ortmodule::cuda {

#ifdef __CUDACC__
using Half = __half;
using BFloat16 = __nv_bfloat16;
__device__ __forceinline__ float to_float(Half x) { return __half2float(x); }
__device__ __forceinline__ float to_float(BFloat16 x) { return __bfloat162float(x); }
__device__ __forceinline__ Half to_half(float x) { return __float2half_rn(x); }
__device__ __forceinline__ BFloat16 to_bfloat16(float x) { return __float2bfloat16_rn(x); }
#endif

__device__ __forceinline__ float to_float(float x) { return x; }

template <typename T>
__device__ __forceinline__ T from_float(float x) {
  if constexpr (std::is_same_v<T, Half>)
    return to_half(x);
  else if constexpr (std::is_same_v<T, BFloat16>)
    return to_bfloat16(x);
  else
    return x;
}

// As floats: N elements at i.
template <int N, typename T>
__device__ __forceinline__ void load_floats(Global<T> p, int64_t i, float (&to)[N]) {
  if constexpr (N == 1) {
    to[0] = to_float(load(p, i));
  } else if constexpr (N * sizeof(T) <= kVectorBytes) {
    const auto values = load_vector<N>(p, i);
#pragma unroll
    for (int k = 0; k < N; ++k) to[k] = to_float(values.at[k]);
  } else {  // floats beside 16-bit elements: two vectors
    constexpr int kPart = kVectorWidth<T>;
#pragma unroll
    for (int first = 0; first < N; first += kPart) {
      const auto values = load_vector<kPart>(p, i + first);
#pragma unroll
      for (int k = 0; k < kPart; ++k) to[first + k] = to_float(values.at[k]);
    }
  }
}

template <int N, typename T>
__device__ __forceinline__ void store_floats(Global<T> p, int64_t i, const float (&from)[N]) {
  if constexpr (N == 1) {
    store(p, i, from_float<T>(from[0]));
  } else if constexpr (N * sizeof(T) <= kVectorBytes) {
    Vector<T, N> values;
#pragma unroll
    for (int k = 0; k < N; ++k) values.at[k] = from_float<T>(from[k]);
    store_vector<N>(p, i, values);
  } else {
    constexpr int kPart = kVectorWidth<T>;
#pragma unroll
    for (int first = 0; first < N; first += kPart) {
      Vector<T, kPart> values;
#pragma unroll
      for (int k = 0; k < kPart; ++k) values.at[k] = from_float<T>(from[first + k]);
      store_vector<kPart>(p, i + first, values);
    }
  }
}

template <typename T>
struct TypeTag {
  using Type = T;
};

// Calls f(TypeTag<T>()) for the type of elements.
template <typename F>
int by_element(Element type, F f) {
  switch (type) {
    case Element::kHalf:
      return f(TypeTag<Half>());
    case Element::kBFloat16:
      return f(TypeTag<BFloat16>());
    default:
      return f(TypeTag<float>());
  }
}

// Calls f(std::integral_constant<bool, vectors>()).
template <typename F>
int by_flag(bool flag, F f) {
  return flag ? f(std::true_type()) : f(std::false_type());
}

}  // namespace ortmodule::cuda
