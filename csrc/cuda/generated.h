// Kernels whose source is made at run time: who compiles and launches them for the devices of a type.
//
// "cuda" has NVRTC and the driver, which are loaded when a session first wants them (nvrtc.cpp); a device of the tests
// may be given another compiler. Not here: what the sources are (ops/fused/cuda_source.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "ortmodule/export.h"

namespace ortmodule::cuda {

struct GeneratedLaunch {
  const char* kernel;  // of the source's
  unsigned blocks[2], threads;
  const void* const* addresses;  // the kernel's first parameters, in their order
  size_t address_count;
  const int64_t* numbers;  // its last parameter, Numbers<number_count>
  size_t number_count;
};

struct SourceCompiler {
  const char* made_by;  // for messages
  // What was compiled, for a device by its number, which stays forever; null, and `error` says why. Several threads
  // call it at the same time, each with another source.
  void* (*compile)(const char* source, int device, char* error, size_t error_size);
  // Queues the work and returns 0, or the error of the launch.
  int (*launch)(void* compiled, const GeneratedLaunch& launch, void* stream);
  const char* (*error_text)(int error);
};

// Gives the devices of a type this compiler, which stays forever.
ORTMODULE_API void use_compiler(const std::string& device_type, const SourceCompiler* compiler);

// Null where there is none: for "cuda" where NVRTC or the driver is missing.
const SourceCompiler* compiler_of(const std::string& device_type);

// A source for a device, of which there is one in a process: equal programs of a model's layers share it. It stays
// forever.
class Compilation;
// Nothing is compiled yet.
Compilation& compilation_of(const SourceCompiler& compiler, int device, const std::string& source);
// A thread of a pool compiles it beside others, unless somebody waits for it before. Errors are told to who waits.
void compile_ahead(Compilation& compilation);
// What the compiler made of it; waits until it has. Throws kRuntime with its words where it refuses.
void* compiled(Compilation& compilation);

// NVRTC by itself, without a GPU: the machine code of a source for an architecture such as 90. Throws kUnsupported
// where NVRTC is missing, kRuntime with the compiler's words where it refuses the source.
ORTMODULE_API std::string compile_with_nvrtc(const std::string& source, int architecture);

// Null, and `why`, where NVRTC or the driver cannot be loaded.
const SourceCompiler* nvrtc_compiler(std::string* why = nullptr);

}  // namespace ortmodule::cuda
