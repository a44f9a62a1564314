// What kernels include of the toolkit and of the standard library, for NVRTC, which has no such files: as much of it as
// csrc/cuda/*.cuh use.
#pragma once

#include "cuda/embedded.h"

namespace ortmodule::cuda {

constexpr EmbeddedHeader kNvrtcWords[] = {
    {"cuda_runtime.h", ""},
    {"cstddef", ""},
    {"cstdint", R"(
#pragma once
typedef signed char int8_t;
typedef unsigned char uint8_t;
typedef short int16_t;
typedef unsigned short uint16_t;
typedef int int32_t;
typedef unsigned int uint32_t;
typedef long int64_t;
typedef unsigned long uint64_t;
typedef unsigned long uintptr_t;
)"},
    {"type_traits", R"(
#pragma once
namespace std {
template <typename T, T v>
struct integral_constant {
  static constexpr T value = v;
  using type = integral_constant;
  __host__ __device__ constexpr operator T() const { return v; }
  __host__ __device__ constexpr T operator()() const { return v; }
};
using true_type = integral_constant<bool, true>;
using false_type = integral_constant<bool, false>;
template <typename T> struct remove_const { using type = T; };
template <typename T> struct remove_const<const T> { using type = T; };
template <typename T> using remove_const_t = typename remove_const<T>::type;
template <typename T> struct type_identity { using type = T; };
template <typename T> using type_identity_t = typename type_identity<T>::type;
template <typename A, typename B> inline constexpr bool is_same_v = false;
template <typename A> inline constexpr bool is_same_v<A, A> = true;
}  // namespace std
)"},
    {"cuda_fp16.h", R"(
#pragma once
struct __half { unsigned short bits; };
__device__ __forceinline__ float __half2float(__half x) {
  float y;
  asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x.bits));
  return y;
}
__device__ __forceinline__ __half __float2half_rn(float x) {
  __half y;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(y.bits) : "f"(x));
  return y;
}
)"},
    {"cuda_bf16.h", R"(
#pragma once
struct __nv_bfloat16 { unsigned short bits; };
__device__ __forceinline__ float __bfloat162float(__nv_bfloat16 x) {
  return __uint_as_float(static_cast<unsigned int>(x.bits) << 16);
}
__device__ __forceinline__ __nv_bfloat16 __float2bfloat16_rn(float x) {
  __nv_bfloat16 y;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(y.bits) : "f"(x));
  return y;
}
)"},
};

}  // namespace ortmodule::cuda
