#include "cuda/simt/launch.h"

#include <atomic>
#include <memory>
#include <mutex>

#include "cuda/simt/shared.h"

namespace ortmodule::cuda::simt {
namespace {

constexpr int kBadConfiguration = 9;  // as CUDA numbers it
constexpr uint64_t kMostThreads = 1024, kMostBlocks = (1ull << 31) - 1, kMostBlocksYz = 65535;

std::mutex mutex;
Settings the_settings;
std::map<std::string, KernelCount> the_counts;
std::atomic<Enqueue> the_enqueue{nullptr};

struct Job {
  Grid grid;
  size_t shared_bytes;
  std::function<void()> kernel;
};

void run(void* data) {
  const std::unique_ptr<Job> job(static_cast<Job*>(data));
  Settings settings;
  {
    const std::lock_guard<std::mutex> lock(mutex);
    settings = the_settings;
  }
  AccessLog& log = AccessLog::of_this_thread();
  log.start(settings.count_sectors);
  set_dynamic_shared(job->shared_bytes);
  run_grid(job->grid, settings.order, settings.seed, job->kernel);
  const std::lock_guard<std::mutex> lock(mutex);
  KernelCount& count = the_counts[job->grid.kernel];
  ++count.launches;
  count.threads += job->grid.blocks.count() * job->grid.threads.count();
  count.traffic.add(log.traffic());
}

}  // namespace

void set_settings(const Settings& settings) {
  const std::lock_guard<std::mutex> lock(mutex);
  the_settings = settings;
}

void set_enqueue(Enqueue enqueue) { the_enqueue = enqueue; }

std::map<std::string, KernelCount> counts() {
  const std::lock_guard<std::mutex> lock(mutex);
  return the_counts;
}

void reset_counts() {
  const std::lock_guard<std::mutex> lock(mutex);
  the_counts.clear();
}

int queue(const Grid& grid, size_t shared_bytes, void* stream, std::function<void()> kernel) {
  const uint64_t threads = grid.threads.count();
  if (threads == 0 || threads > kMostThreads || threads % kWarp || grid.blocks.count() == 0 ||
      grid.blocks.x > kMostBlocks || grid.blocks.y > kMostBlocksYz || grid.blocks.z > kMostBlocksYz ||
      shared_bytes > kMostSharedBytes)
    return kBadConfiguration;
  auto job = std::make_unique<Job>(Job{grid, shared_bytes, std::move(kernel)});
  if (const Enqueue enqueue = the_enqueue)
    enqueue(stream, &run, job.release());
  else
    run(job.release());
  return 0;
}

const char* error_text(int error) {
  return error == kBadConfiguration ? "blocks, threads or shared memory that no GPU has" : "unknown error";
}

}  // namespace ortmodule::cuda::simt
