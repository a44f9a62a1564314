#include "cuda/generated.h"

#include <algorithm>
#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <tuple>
#include <utility>

#include "base/inter_op_pool.h"
#include "base/status.h"

namespace ortmodule::cuda {
namespace {

constexpr unsigned kMostThreads = 16;  // a compiler takes some 100 MB in each

std::mutex mutex;

std::map<std::string, const SourceCompiler*>& compilers() {
  static std::map<std::string, const SourceCompiler*> all;
  return all;
}

}  // namespace

class Compilation {
 public:
  Compilation(const SourceCompiler& compiler, int device, std::string source)
      : compiler_(compiler), device_(device), source_(std::move(source)) {}

  // Compiles unless a thread has; waits while one does.
  void finish() {
    if (done_) return;
    const std::lock_guard<std::mutex> lock(mutex_);
    if (done_) return;
    error_.resize(1 << 14);
    made_ = compiler_.compile(source_.c_str(), device_, error_.data(), error_.size());
    error_.resize(made_ ? 0 : error_.find('\0'));
    done_ = true;
  }

  void* result() {
    finish();
    ORTMODULE_CHECK(made_, kRuntime, "a generated kernel does not compile with ", compiler_.made_by, ": ", error_,
                    "; Options(fusion=False) trains without generated kernels");
    return made_;
  }

  // True for the first who asks.
  bool claim_ahead() { return !ahead_.exchange(true); }

 private:
  const SourceCompiler& compiler_;
  const int device_;
  const std::string source_;
  std::mutex mutex_;
  std::atomic<bool> done_ = false, ahead_ = false;
  void* made_ = nullptr;
  std::string error_;
};

namespace {

// Threads that compile ahead. They sleep when there is nothing to do, and are waited for when the process ends: what
// NVRTC keeps goes then, too. Sources that no thread has begun with stay as they are.
class Threads {
 public:
  void compile(Compilation& compilation) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (ending_) return;
    if (!pool_ || !pool_->alive())
      pool_ = std::make_shared<InterOpPool>(std::clamp(std::thread::hardware_concurrency(), 1u, kMostThreads), false);
    pool_->schedule([this, &compilation] {
      if (!ending_) compilation.finish();
    });
  }

  ~Threads() { ending_ = true; }

 private:
  std::mutex mutex_;
  std::atomic<bool> ending_ = false;
  std::shared_ptr<InterOpPool> pool_;  // goes first
};

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

Compilation& compilation_of(const SourceCompiler& compiler, int device, const std::string& source) {
  using Key = std::tuple<const SourceCompiler*, int, std::string>;
  static auto* const all = new std::map<Key, std::unique_ptr<Compilation>>;  // threads may end after this library
  const std::lock_guard<std::mutex> lock(mutex);
  std::unique_ptr<Compilation>& found = (*all)[Key(&compiler, device, source)];
  if (!found) found = std::make_unique<Compilation>(compiler, device, source);
  return *found;
}

void compile_ahead(Compilation& compilation) {
  static Threads threads;
  if (!compilation.claim_ahead()) return;
  try {
    threads.compile(compilation);
  } catch (const Error&) {  // no threads: who waits for it compiles it
  }
}

void* compiled(Compilation& compilation) { return compilation.result(); }

}  // namespace ortmodule::cuda
