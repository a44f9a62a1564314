// Global memory of a kernel: elements one by one, and as many of them at once as 16 bytes hold.
//
// On a GPU Global<T> is a pointer and each access one instruction. In the simulated one it knows its buffer, and
// counts. Included by kernel.cuh alone.
#pragma once

namespace ortmodule::cuda {

constexpr int kVectorBytes = 16;

// Elements that are loaded or stored at once.
template <typename T, int N>
struct alignas(sizeof(T) * N) Vector {
  T at[N];
};

template <typename T>
constexpr int kVectorWidth = kVectorBytes / static_cast<int>(sizeof(T));

#ifdef __CUDACC__

template <typename T>
using Global = T*;

template <typename T>
Global<T> global(const void* address) {
  return static_cast<T*>(const_cast<void*>(address));
}
template <typename T>
__device__ __forceinline__ std::remove_const_t<T> load(T* p, int64_t i) {
  return p[i];
}
template <typename T>
__device__ __forceinline__ void store(T* p, int64_t i, std::type_identity_t<T> value) {
  p[i] = value;
}
template <int N, typename T>
__device__ __forceinline__ Vector<std::remove_const_t<T>, N> load_vector(T* p, int64_t i) {
  return *reinterpret_cast<const Vector<std::remove_const_t<T>, N>*>(p + i);
}
template <int N, typename T>
__device__ __forceinline__ void store_vector(T* p, int64_t i, const Vector<T, N>& value) {
  *reinterpret_cast<Vector<T, N>*>(p + i) = value;
}
// What was there before.
template <typename T>
__device__ __forceinline__ T atomic_add(T* p, int64_t i, std::type_identity_t<T> value) {
  return atomicAdd(p + i, value);
}

#else

template <typename T>
using Global = simt::Global<T>;

template <typename T>
Global<T> global(const void* address) {
  return Global<T>(address);
}
template <typename T>
std::remove_const_t<T> load(Global<T> p, int64_t i, simt::Site site = simt::Site::here()) {
  return *p.access(i, sizeof(T), false, site);
}
template <typename T>
void store(Global<T> p, int64_t i, std::type_identity_t<T> value, simt::Site site = simt::Site::here()) {
  *p.access(i, sizeof(T), true, site) = value;
}
template <int N, typename T>
Vector<std::remove_const_t<T>, N> load_vector(Global<T> p, int64_t i, simt::Site site = simt::Site::here()) {
  Vector<std::remove_const_t<T>, N> value;
  std::memcpy(&value, p.access(i, sizeof(value), false, site), sizeof(value));
  return value;
}
template <int N, typename T>
void store_vector(Global<T> p, int64_t i, const Vector<T, N>& value, simt::Site site = simt::Site::here()) {
  std::memcpy(p.access(i, sizeof(value), true, site), &value, sizeof(value));
}
template <typename T>
T atomic_add(Global<T> p, int64_t i, std::type_identity_t<T> value, simt::Site site = simt::Site::here()) {
  T* const at = p.access(i, sizeof(T), true, site);
  const T before = *at;
  *at = before + value;
  return before;
}

#endif

// Whether vectors of N elements of T can be taken from these addresses, at multiples of `step` elements.
template <typename T, typename... Addresses>
bool takes_vectors(int64_t step, Addresses... addresses) {
  return step % kVectorWidth<T> == 0 && ((reinterpret_cast<uintptr_t>(addresses) % kVectorBytes == 0) && ...);
}

}  // namespace ortmodule::cuda
