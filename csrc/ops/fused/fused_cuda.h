// The sources that the "cuda" kernel of FusedKernel makes, to look at and to compile where there is no GPU.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

#include "ortmodule/export.h"
#include "records/fused_program.h"

namespace ortmodule {

// Of a program over inputs that lie as these, which may be of the meta device; two where rows are too long for one.
ORTMODULE_API std::vector<std::string> fused_cuda_sources(const Attributes& program,
                                                          const std::vector<at::Tensor>& inputs);

}  // namespace ortmodule
