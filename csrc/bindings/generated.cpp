#include "bindings/generated.h"

#include <pybind11/stl.h>
#include <torch/csrc/utils/pybind.h>

#include <string>
#include <vector>

#include "cuda/generated.h"
#include "ops/fused/fused_cuda.h"

namespace ortmodule {

namespace py = pybind11;

void register_generated(py::module_& m) {
  m.def(
      "fused_cuda_sources",
      [](std::vector<std::string> program, std::vector<std::string> outputs, std::vector<int64_t> rows,
         const std::vector<at::Tensor>& inputs) {
        return fused_cuda_sources(
            {{"program", std::move(program)}, {"outputs", std::move(outputs)}, {"rows", std::move(rows)}}, inputs);
      },
      py::arg("program"), py::arg("outputs"), py::arg("rows"), py::arg("inputs"));
  m.def(
      "compile_with_nvrtc",
      [](const std::string& source, int architecture) {
        return py::bytes(cuda::compile_with_nvrtc(source, architecture));
      },
      py::arg("source"), py::arg("architecture"));
}

}  // namespace ortmodule
