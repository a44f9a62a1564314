// Headers of generated kernels as texts in this library: NVRTC reads no files. CMake makes them of csrc/cuda/*.cuh.
#pragma once

#include <cstddef>

namespace ortmodule::cuda {

struct EmbeddedHeader {
  const char* name;  // as it is included
  const char* text;
};

extern const EmbeddedHeader kEmbeddedHeaders[];
extern const size_t kEmbeddedHeaderCount;

}  // namespace ortmodule::cuda
