#include "cuda/simt/block.h"

#include <algorithm>
#include <exception>
#include <memory>
#include <random>
#include <sstream>

#include "cuda/simt/access.h"
#include "cuda/simt/fiber.h"
#include "cuda/simt/shared.h"

namespace ortmodule::cuda::simt {

thread_local Thread* running = nullptr;
thread_local Grid grid;

namespace {

enum class State { kRuns, kWaitsForWarp, kWaitsForBlock, kDone };

// Thrown where a thread waits whose block is given up.
struct GivenUp {};

// A fiber that runs one thread after the other: making one takes longer than a small thread.
struct Runner {
  explicit Runner(std::function<void()> body) : fiber(std::move(body)) {}
  Fiber fiber;
  Thread thread;
  State state = State::kDone;
  bool started = false;  // is in the midst of a thread, unless it is done
  std::exception_ptr error;
};

std::string text(dim3 at) {
  std::ostringstream out;
  out << '(' << at.x << ", " << at.y << ", " << at.z << ')';
  return out.str();
}

}  // namespace

class Block {
 public:
  void run(Order order, std::mt19937_64& random, const std::function<void()>& kernel) {
    kernel_ = &kernel;
    start(static_cast<unsigned>(grid.threads.count()));
    try {
      while (done_ < count_) {
        const int warp = next_warp(order, random);
        if (warp >= 0)
          run_warp(static_cast<unsigned>(warp), order, random);
        else
          release_block();
      }
    } catch (...) {
      give_up();
      throw;
    }
  }

  Runner& of(const Thread& thread) { return *runners_[thread.number]; }

  // Hands over from the thread that runs.
  void leave(Runner& r) {
    r.fiber.leave();
    if (given_up_) throw GivenUp();
  }

  uint32_t waits() const { return waits_; }
  uint32_t warp_waits(unsigned warp) const { return warps_[warp].waits; }

 private:
  struct Warp {
    unsigned runs = 0, at_warp = 0, at_block = 0, done = 0;
    uint32_t waits = 0;
  };

  void start(unsigned count) {
    count_ = count;
    done_ = 0;
    waits_ = 0;
    warps_.assign(count / kWarp, Warp{kWarp});
    turns_.resize(kWarp);
    while (runners_.size() < count) runners_.push_back(make_runner());
    for (unsigned i = 0; i < count; ++i) {
      Runner& r = *runners_[i];
      r.state = State::kRuns;
      r.started = false;
      r.thread = Thread{};
      r.thread.number = i;
      const dim3 d = grid.threads;
      r.thread.index = dim3(i % d.x, i / d.x % d.y, i / (d.x * d.y));
    }
  }

  std::unique_ptr<Runner> make_runner() {
    return std::make_unique<Runner>([this, number = runners_.size()] { run_threads(*runners_[number]); });
  }

  [[noreturn]] void run_threads(Runner& r) {
    for (;;) {
      try {
        (*kernel_)();
      } catch (const GivenUp&) {
      } catch (...) {
        r.error = std::current_exception();
      }
      r.state = State::kDone;
      r.fiber.leave();
    }
  }

  // Threads that wait end there, so that their fibers are free.
  void give_up() {
    given_up_ = true;
    for (const auto& r : runners_) {
      if (r->state == State::kDone) continue;
      running = &r->thread;
      if (r->started) r->fiber.enter();
      r->state = State::kDone;
    }
    running = nullptr;
    given_up_ = false;
  }

  // One with threads that run; below 0: all wait or are done.
  int next_warp(Order order, std::mt19937_64& random) const {
    const int count = static_cast<int>(warps_.size());
    const int first = order == Order::kShuffled ? static_cast<int>(random() % count) : 0;
    for (int i = 0; i < count; ++i) {
      const int w = order == Order::kBackward ? count - 1 - i : (first + i) % count;
      if (warps_[w].runs) return w;
    }
    return -1;
  }

  void run_warp(unsigned w, Order order, std::mt19937_64& random) {
    for (unsigned i = 0; i < kWarp; ++i) turns_[i] = order == Order::kBackward ? kWarp - 1 - i : i;
    if (order == Order::kShuffled) std::shuffle(turns_.begin(), turns_.end(), random);
    Warp& warp = warps_[w];
    for (const unsigned lane : turns_) {
      Runner& r = *runners_[w * kWarp + lane];
      if (r.state != State::kRuns) continue;
      running = &r.thread;
      r.started = true;
      r.fiber.enter();
      running = nullptr;
      if (r.error) std::rethrow_exception(std::exchange(r.error, nullptr));
      --warp.runs;
      (r.state == State::kDone ? warp.done : r.state == State::kWaitsForWarp ? warp.at_warp : warp.at_block) += 1;
      done_ += r.state == State::kDone;
    }
    if (!warp.at_warp) return;
    if (warp.at_warp != kWarp)
      throw KernelError(said(str_of(kWarp - warp.at_warp) + " of the 32 threads of warp " + str_of(w) +
                             " do not take part in a shuffle, a vote or __syncwarp"));
    ++warp.waits;
    warp.at_warp = 0;
    release(w);
  }

  void release(unsigned w) {
    for (unsigned i = w * kWarp; i < (w + 1) * kWarp; ++i) runners_[i]->state = State::kRuns;
    warps_[w].runs = kWarp;
  }

  // All wait for the block, or some are done.
  void release_block() {
    unsigned at_block = 0;
    for (const Warp& warp : warps_) at_block += warp.at_block;
    if (at_block != count_)
      throw KernelError(
          said("__syncthreads is not reached by " + str_of(count_ - at_block) + " of " + str_of(count_) + " threads"));
    ++waits_;
    for (unsigned w = 0; w < warps_.size(); ++w) {
      warps_[w].at_block = 0;
      release(w);
    }
  }

  static std::string str_of(unsigned number) { return std::to_string(number); }
  static std::string said(const std::string& what) {
    return std::string(grid.kernel) + ", block " + text(grid.block) + ": " + what;
  }

  const std::function<void()>* kernel_ = nullptr;
  std::vector<std::unique_ptr<Runner>> runners_;
  std::vector<Warp> warps_;
  std::vector<unsigned> turns_;
  unsigned count_ = 0, done_ = 0;
  uint32_t waits_ = 0;
  bool given_up_ = false;
};

namespace {

// Of this thread of the host; never destroyed, for there may be fibers when it ends.
thread_local Block* const the_block = new Block;

}  // namespace

Block& block() { return *the_block; }

void wait(Wait what) {
  Runner& r = the_block->of(*running);
  r.state = what == Wait::kWarp ? State::kWaitsForWarp : State::kWaitsForBlock;
  the_block->leave(r);
}

uint32_t block_waits() { return the_block->waits(); }
uint32_t warp_waits(unsigned warp) { return the_block->warp_waits(warp); }

const Thread& lane_of_warp(unsigned lane) {
  Thread other;
  other.number = running->warp() * kWarp + lane % kWarp;
  return the_block->of(other).thread;
}

void run_grid(const Grid& of, Order order, uint64_t seed, const std::function<void()>& kernel) {
  grid = of;
  std::mt19937_64 random(seed);
  const uint64_t count = of.blocks.count();
  std::vector<uint64_t> turns;
  if (order == Order::kShuffled) {
    for (uint64_t i = 0; i < count; ++i) turns.push_back(i);
    std::shuffle(turns.begin(), turns.end(), random);
  }
  for (uint64_t i = 0; i < count; ++i) {
    const uint64_t at = turns.empty() ? (order == Order::kBackward ? count - 1 - i : i) : turns[i];
    const dim3 g = of.blocks;
    grid.block = dim3(static_cast<unsigned>(at % g.x), static_cast<unsigned>(at / g.x % g.y),
                      static_cast<unsigned>(at / (uint64_t{g.x} * g.y)));
    start_shared_memory();
    block().run(order, random, kernel);
    AccessLog::of_this_thread().end_block();
  }
}

void fail(const std::string& what) {
  throw KernelError(std::string(grid.kernel) + ", block " + text(grid.block) + ", thread " + text(running->index) +
                    ": " + what);
}

}  // namespace ortmodule::cuda::simt
