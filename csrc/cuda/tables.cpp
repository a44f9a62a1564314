#include "cuda/tables.h"

#include <dlfcn.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <map>
#include <mutex>

#include "base/status.h"

namespace ortmodule::cuda {
namespace {

constexpr const char* kLibrary = "libortmodule_cuda.so";

std::mutex mutex;

std::map<std::string, const LaunchTable*>& tables() {
  static std::map<std::string, const LaunchTable*> all;
  return all;
}

void check(const LaunchTable* table) {
  ORTMODULE_CHECK(table, kRuntime, "there is no table of CUDA kernels");
  ORTMODULE_CHECK(table->abi == kAbi, kRuntime, "the CUDA kernels (", kLibrary, ") have ABI ", table->abi,
                  ", the engine has ", kAbi, ": they were built from different sources; build both again");
}

// Empty: there is no such library.
std::string library_path() {
  Dl_info here{};
  if (!dladdr(reinterpret_cast<const void*>(&load_library), &here) || !here.dli_fname) return {};
  std::error_code ignored;
  const std::filesystem::path path = std::filesystem::path(here.dli_fname).parent_path() / kLibrary;
  return std::filesystem::exists(path, ignored) ? path.string() : std::string();
}

}  // namespace

void load_library() {
  if (table_of("cuda")) return;
  const std::string path = library_path();
  if (path.empty()) return;
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  ORTMODULE_CHECK(library, kRuntime, "the CUDA kernels could not be loaded: ", dlerror());
  const auto function = reinterpret_cast<LaunchTableFunction>(dlsym(library, kLaunchTableSymbol));
  ORTMODULE_CHECK(function, kRuntime, path, " has no table of CUDA kernels; build it again");
  use_table("cuda", function());
}

void use_table(const std::string& device_type, const LaunchTable* table) {
  check(table);
  const std::lock_guard<std::mutex> lock(mutex);
  tables()[device_type] = table;
}

const LaunchTable* table_of(const std::string& device_type) {
  const std::lock_guard<std::mutex> lock(mutex);
  const auto found = tables().find(device_type);
  return found == tables().end() ? nullptr : found->second;
}

const Launch* find_launch(const LaunchTable& table, const char* name, size_t argument_bytes) {
  const Launch* end = table.launches + table.count;
  const Launch* found = std::lower_bound(table.launches, end, name, [](const Launch& launch, const char* wanted) {
    return std::strcmp(launch.name, wanted) < 0;
  });
  if (found == end || std::strcmp(found->name, name) != 0) return nullptr;
  ORTMODULE_CHECK(found->argument_bytes == argument_bytes, kInternal, "the CUDA kernel ", name, " takes ",
                  found->argument_bytes, " bytes of arguments, the engine has ", argument_bytes);
  return found;
}

}  // namespace ortmodule::cuda
