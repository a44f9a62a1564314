// What a .cu file includes: the words of CUDA, global and shared memory, launches, and the table that they are put in.
//
//     __global__ void __launch_bounds__(256) twice(Global<const float> x, Global<float> y, int64_t n) {
//       const int64_t i = int64_t{blockIdx.x} * 256 + threadIdx.x;
//       if (i < n) store(y, i, 2 * load(x, i));
//     }
//     int run_twice(const TwiceArguments& a, void* stream) {
//       return launch("twice", twice, blocks_for(a.n, 256), 256, stream, global<const float>(a.x), ...);
//     }
//     ORTMODULE_CUDA_LAUNCH(twice, TwiceArguments, run_twice);
//
// The same file is compiled by nvcc for GPUs, and by the host's compiler for the tests' simulated one
// (Note [Simulated threads]): so memory is reached by load() and store() alone, shared memory is declared by
// ORTMODULE_SHARED, a block is whole warps, and all of a warp take part in its shuffles. Includes nothing of torch.
#pragma once

#ifdef __CUDACC__
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cstdint>
#else
#include "cuda/simt/vocabulary.h"
#endif

#include <type_traits>

#include "cuda/launch_table.h"

namespace ortmodule::cuda {

constexpr int kWarpSize = 32;

// --- shared memory
// -----------------------------------------------------------------------------------------------------

#ifdef __CUDACC__
#define ORTMODULE_SHARED(type, name, count) __shared__ type name[count]
#else
#define ORTMODULE_SHARED(type, name, count)              \
  static const char name##_declared = 0;                 \
  const ::ortmodule::cuda::simt::SharedArray<type> name( \
      ::ortmodule::cuda::simt::shared_memory(&name##_declared, count, sizeof(type)), count)
#endif

// --- launches
// ----------------------------------------------------------------------------------------------------------

#ifndef __CUDACC_RTC__
// Queues a kernel; `name` is what its launches are counted under. The error of the launch, 0 where there is none.
template <typename... Parameters, typename... Arguments>
int launch([[maybe_unused]] const char* name, void (*kernel)(Parameters...), dim3 blocks, dim3 threads, void* stream,
           const Arguments&... arguments) {
#ifdef __CUDACC__
  kernel<<<blocks, threads, 0, static_cast<cudaStream_t>(stream)>>>(arguments...);
  return static_cast<int>(cudaGetLastError());
#else
  return simt::queue({name, blocks, threads, {}}, 0, stream, [=] { kernel(arguments...); });
#endif
}

#endif

inline unsigned blocks_for(int64_t items, int64_t per_block) {
  return static_cast<unsigned>((items + per_block - 1) / per_block);
}

// --- the table
// ---------------------------------------------------------------------------------------------------------

#ifndef __CUDACC_RTC__
// Puts a launch function in this library's table. `name` is found by the engine.
void add_launch(const Launch& launch);

template <typename Arguments, int (*run)(const Arguments&, void*)>
struct AddedLaunch {
  explicit AddedLaunch(const char* name) {
    add_launch({name, sizeof(Arguments), [](const void* arguments, void* stream) {
                  return run(*static_cast<const Arguments*>(arguments), stream);
                }});
  }
};

#define ORTMODULE_CUDA_LAUNCH(name, Arguments, run) \
  [[maybe_unused]] static const ::ortmodule::cuda::AddedLaunch<Arguments, run> name##_added(#name)
#endif

}  // namespace ortmodule::cuda

#include "cuda/memory.cuh"
