#include "cuda/generated.h"

#include <map>
#include <mutex>
#include <utility>

#include "base/status.h"

namespace ortmodule::cuda {
namespace {

std::mutex mutex;

std::map<std::string, const SourceCompiler*>& compilers() {
  static std::map<std::string, const SourceCompiler*> all;
  return all;
}

}  // namespace

void use_compiler(const std::string& device_type, const SourceCompiler* compiler) {
  const std::lock_guard<std::mutex> lock(mutex);
  compilers()[device_type] = compiler;
}

const SourceCompiler* compiler_of(const std::string& device_type) {
  {
    const std::lock_guard<std::mutex> lock(mutex);
    const auto found = compilers().find(device_type);
    if (found != compilers().end()) return found->second;
  }
  return device_type == "cuda" ? nvrtc_compiler() : nullptr;
}

void* compiled(const SourceCompiler& compiler, int device, const std::string& source) {
  static std::map<std::pair<int, std::string>, void*> all;
  static std::mutex compiling;
  const std::lock_guard<std::mutex> lock(compiling);
  void*& made = all[{device, source}];
  if (!made) {
    std::string error(1 << 14, '\0');
    made = compiler.compile(source.c_str(), device, error.data(), error.size());
    ORTMODULE_CHECK(made, kRuntime, "a generated kernel does not compile with ", compiler.made_by, ": ", error.c_str(),
                    "; Options(fusion=False) trains without generated kernels");
  }
  return made;
}

}  // namespace ortmodule::cuda
