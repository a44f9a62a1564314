// NVRTC and the driver, loaded at run time: the library is built where neither is.
//
// What was compiled is kept in a folder ($ORTMODULE_KERNEL_CACHE, else ortmodule/kernels in the user's cache folder), a
// file for a source and an architecture, so that a source is compiled once on a machine. A file holds all that its
// machine code was made of, which is compared: a name is a hash alone.
//
// Whatever the runtime does makes a device's primary context current in the thread that asks for it; the driver does
// not. A thread of autograd's that has asked for nothing yet has no context, so that each call of ours sees to it
// (OnDevice).
#include <dlfcn.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <mutex>
#include <vector>

#include "base/atomic_file.h"
#include "base/status.h"
#include "cuda/generated.h"
#include "cuda/nvrtc_words.h"

namespace ortmodule::cuda {
namespace {

// What is used of nvrtc.h and cuda.h, by the names there.
using Program = struct ProgramOfNvrtc*;
using Module = struct ModuleOfDriver*;
using Function = struct FunctionOfDriver*;
using Context = struct ContextOfDriver*;

struct Nvrtc {
  int (*version)(int*, int*);
  const char* (*error_string)(int);
  int (*create)(Program*, const char* source, const char* name, int count, const char* const* texts,
                const char* const* names);
  int (*compile)(Program, int count, const char* const* options);
  int (*log_size)(Program, size_t*);
  int (*log)(Program, char*);
  int (*cubin_size)(Program, size_t*);
  int (*cubin)(Program, char*);
  int (*destroy)(Program*);
};

struct Driver {
  int (*attribute)(int* value, int attribute, int device);
  int (*retain)(Context*, int device);
  int (*current)(Context*);
  int (*push)(Context);
  int (*pop)(Context*);
  int (*load)(Module*, const void* image);
  int (*function)(Function*, Module, const char* name);
  int (*launch)(Function, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned shared, void* stream,
                void** parameters, void** extra);
  int (*error_string)(int, const char**);
};
constexpr int kMajor = 75, kMinor = 76;  // CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_*

void* open_first(const std::vector<const char*>& names, std::string& why) {
  for (const char* name : names)
    if (void* library = dlopen(name, RTLD_NOW | RTLD_LOCAL)) return library;
  if (const char* text = dlerror()) why = text;
  return nullptr;
}

template <typename F>
void find(void* library, const char* name, F& to, std::string& why) {
  to = reinterpret_cast<F>(dlsym(library, name));
  if (!to) why.assign("there is no ").append(name);
}

const Nvrtc* nvrtc(std::string& why) {
  static std::string error;
  static const Nvrtc* found = []() -> const Nvrtc* {
    static Nvrtc n;
    void* library = open_first({"libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so"}, error);
    if (!library) return nullptr;
    error.clear();
    find(library, "nvrtcVersion", n.version, error);
    find(library, "nvrtcGetErrorString", n.error_string, error);
    find(library, "nvrtcCreateProgram", n.create, error);
    find(library, "nvrtcCompileProgram", n.compile, error);
    find(library, "nvrtcGetProgramLogSize", n.log_size, error);
    find(library, "nvrtcGetProgramLog", n.log, error);
    find(library, "nvrtcGetCUBINSize", n.cubin_size, error);
    find(library, "nvrtcGetCUBIN", n.cubin, error);
    find(library, "nvrtcDestroyProgram", n.destroy, error);
    return error.empty() ? &n : nullptr;
  }();
  why = error;
  return found;
}

const Driver* driver(std::string& why) {
  static std::string error;
  static const Driver* found = []() -> const Driver* {
    static Driver d;
    void* library = open_first({"libcuda.so.1"}, error);
    if (!library) return nullptr;
    error.clear();
    find(library, "cuDeviceGetAttribute", d.attribute, error);
    find(library, "cuDevicePrimaryCtxRetain", d.retain, error);
    find(library, "cuCtxGetCurrent", d.current, error);
    find(library, "cuCtxPushCurrent_v2", d.push, error);
    find(library, "cuCtxPopCurrent_v2", d.pop, error);
    find(library, "cuModuleLoadData", d.load, error);
    find(library, "cuModuleGetFunction", d.function, error);
    find(library, "cuLaunchKernel", d.launch, error);
    find(library, "cuGetErrorString", d.error_string, error);
    return error.empty() ? &d : nullptr;
  }();
  why = error;
  return found;
}

std::string log_of(const Nvrtc& n, Program program) {
  size_t size = 0;
  if (n.log_size(program, &size) || size < 2) return {};
  std::string text(size, '\0');
  n.log(program, text.data());
  text.resize(std::strlen(text.c_str()));
  return text;
}

std::string machine_code(const Nvrtc& n, const std::string& source, int architecture) {
  std::vector<const char*> texts, names;
  const auto add = [&](const EmbeddedHeader& header) {
    names.push_back(header.name);
    texts.push_back(header.text);
  };
  for (const EmbeddedHeader& header : kNvrtcWords) add(header);
  for (size_t i = 0; i < kEmbeddedHeaderCount; ++i) add(kEmbeddedHeaders[i]);
  Program program = nullptr;
  int error =
      n.create(&program, source.c_str(), "fused.cu", static_cast<int>(names.size()), texts.data(), names.data());
  ORTMODULE_CHECK(error == 0, kRuntime, "NVRTC: ", n.error_string(error));
  const std::string target = "--gpu-architecture=sm_" + std::to_string(architecture);
  // Our headers have functions of the host's, too, which NVRTC refuses otherwise.
  const char* options[] = {target.c_str(), "--std=c++20", "--device-as-default-execution-space",
                           "--extra-device-vectorization", "-lineinfo"};
  error = n.compile(program, 4, options);
  const std::string log = log_of(n, program);
  std::string code;
  if (error == 0) {
    size_t size = 0;
    error = n.cubin_size(program, &size);
    code.resize(size);
    if (error == 0) error = n.cubin(program, code.data());
  }
  n.destroy(&program);
  ORTMODULE_CHECK(error == 0, kRuntime, "NVRTC: ", n.error_string(error), "\n", log);
  return code;
}

// Empty: nothing is kept.
std::filesystem::path cache_folder() {
  if (const char* given = std::getenv("ORTMODULE_KERNEL_CACHE")) return given;
  if (const char* home = std::getenv("XDG_CACHE_HOME")) return std::filesystem::path(home) / "ortmodule" / "kernels";
  if (const char* home = std::getenv("HOME")) return std::filesystem::path(home) / ".cache" / "ortmodule" / "kernels";
  return {};
}

uint64_t hash_of(const std::string& text) {  // FNV-1a
  uint64_t hash = 0xcbf29ce484222325u;
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
  return hash;
}

std::string kept_code(const Nvrtc& n, const std::string& source, int architecture) {
  int major = 0, minor = 0;
  n.version(&major, &minor);
  std::string key = str("sm_", architecture, " nvrtc ", major, ".", minor, "\n");
  for (size_t i = 0; i < kEmbeddedHeaderCount; ++i) key += kEmbeddedHeaders[i].text;
  key += source;
  const std::filesystem::path folder = cache_folder();
  if (folder.empty()) return machine_code(n, source, architecture);
  char name[64];
  std::snprintf(name, sizeof name, "sm_%d-%016llx.kernel", architecture, static_cast<unsigned long long>(hash_of(key)));
  const std::string path = (folder / name).string();
  std::ifstream file(path, std::ios::binary);
  const std::string held{std::istreambuf_iterator<char>(file), {}};
  if (held.size() > key.size() && held.compare(0, key.size(), key) == 0) return held.substr(key.size());
  std::string code = machine_code(n, source, architecture);
  try {  // a folder that cannot be written costs time alone
    std::filesystem::create_directories(folder);
    AtomicFile to(path);
    to.append(key);
    to.append(code);
    to.commit();
  } catch (const std::exception&) {
  }
  return code;
}

// A context is current in this thread while this lives; `error` is the driver's.
class OnDevice {
 public:
  OnDevice(const Driver& driver, Context context) : driver_(driver) {
    Context now = nullptr;
    error = driver_.current(&now);
    if (error || now == context) return;
    error = driver_.push(context);
    pushed_ = error == 0;
  }
  ~OnDevice() {
    Context ignored = nullptr;
    if (pushed_) driver_.pop(&ignored);
  }
  OnDevice(const OnDevice&) = delete;
  OnDevice& operator=(const OnDevice&) = delete;

  int error = 0;

 private:
  const Driver& driver_;
  bool pushed_ = false;
};

// One source on one device.
struct Loaded {
  Context context = nullptr;  // the device's primary one, which torch holds as long
  Module module = nullptr;
  std::mutex mutex;
  std::map<std::string, Function> functions;
};

const char* driver_text(int error) {
  std::string ignored;
  const Driver* d = driver(ignored);
  const char* text = nullptr;
  return d && d->error_string(error, &text) == 0 && text ? text : "an unknown error";
}

void* compile(const char* source, int device, char* error, size_t error_size) {
  const auto say = [&](const std::string& text) {
    std::snprintf(error, error_size, "%s", text.c_str());
    return nullptr;
  };
  std::string why;
  const Nvrtc* n = nvrtc(why);
  const Driver* d = n ? driver(why) : nullptr;
  if (!d) return say(why);
  int major = 0, minor = 0;
  if (const int failed = d->attribute(&major, kMajor, device)) return say(driver_text(failed));
  if (const int failed = d->attribute(&minor, kMinor, device)) return say(driver_text(failed));
  try {
    const std::string code = kept_code(*n, source, major * 10 + minor);
    auto loaded = std::make_unique<Loaded>();
    if (const int failed = d->retain(&loaded->context, device)) return say(driver_text(failed));
    const OnDevice here(*d, loaded->context);
    if (here.error) return say(driver_text(here.error));
    if (const int failed = d->load(&loaded->module, code.data())) return say(driver_text(failed));
    return loaded.release();  // for as long as the process
  } catch (const std::exception& failed) {
    return say(failed.what());
  }
}

int launch(void* compiled, const GeneratedLaunch& l, void* stream) {
  std::string why;
  const Driver& d = *driver(why);
  auto& loaded = *static_cast<Loaded*>(compiled);
  const OnDevice here(d, loaded.context);
  if (here.error) return here.error;
  Function function = nullptr;
  {
    const std::lock_guard<std::mutex> lock(loaded.mutex);
    Function& found = loaded.functions[l.kernel];
    if (!found)
      if (const int error = d.function(&found, loaded.module, l.kernel)) return error;
    function = found;
  }
  std::vector<void*> parameters;
  for (size_t i = 0; i < l.address_count; ++i) parameters.push_back(const_cast<void**>(&l.addresses[i]));
  parameters.push_back(const_cast<int64_t*>(l.numbers));
  return d.launch(function, l.blocks[0], l.blocks[1], 1, l.threads, 1, 1, 0, stream, parameters.data(), nullptr);
}

}  // namespace

const SourceCompiler* nvrtc_compiler(std::string* why) {
  static const SourceCompiler compiler{"NVRTC", &compile, &launch, &driver_text};
  std::string reason;
  const bool there = nvrtc(reason) && driver(reason);
  if (why) *why = reason;
  return there ? &compiler : nullptr;
}

std::string compile_with_nvrtc(const std::string& source, int architecture) {
  std::string why;
  const Nvrtc* n = nvrtc(why);
  ORTMODULE_CHECK(n, kUnsupported, "NVRTC was not found (", why, "); it comes with torch's CUDA builds");
  return machine_code(*n, source, architecture);
}

}  // namespace ortmodule::cuda
