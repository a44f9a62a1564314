// Which table of launch functions the kernels of a device are launched through.
//
// "cuda" has the one of libortmodule_cuda.so, if that was built; a device of the tests may be given another.
#pragma once

#include <string>

#include "cuda/launch_table.h"
#include "ortmodule/export.h"

namespace ortmodule::cuda {

// Looks for libortmodule_cuda.so beside the library that this is part of, the first time. Where there is none the
// device's kernels are ATen's. Throws kRuntime, each time, if it is there and does not fit or does not load.
void load_library();

// Gives the devices of a type ("cuda", "guarded") this table, which stays forever. Throws kRuntime for another ABI.
ORTMODULE_API void use_table(const std::string& device_type, const LaunchTable* table);

// Null where there is none.
const LaunchTable* table_of(const std::string& device_type);

// By name; null where the table has none. Throws kInternal where it takes other arguments.
const Launch* find_launch(const LaunchTable& table, const char* name, size_t argument_bytes);

}  // namespace ortmodule::cuda
