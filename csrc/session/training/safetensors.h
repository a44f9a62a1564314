// Files of named tensors in the safetensors format: a JSON header with types, shapes and places, then the bytes.
//
// What is read was written by anybody: every number of the header is checked before it is used.
#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <string>

namespace ortmodule {

struct TensorFile {
  std::map<std::string, at::Tensor> tensors;  // contiguous, on the CPU
  std::map<std::string, std::string> metadata;
};

// Throws kInvalidArgument where there is no such file, kParse for one that breaks the format, kUnsupported for a type
// that torch has not.
TensorFile read_safetensors(const std::string& path);

// Puts the file in place whole or not at all (AtomicFile). Tensors may lie anywhere and have any strides. Throws
// kRuntime where the system does not write, kUnsupported for a type that the format has not.
void write_safetensors(const std::string& path, const TensorFile& file);

}  // namespace ortmodule
