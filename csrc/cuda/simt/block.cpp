#include "cuda/simt/block.h"

#include <algorithm>
#include <boost/context/fiber.hpp>
#include <boost/context/protected_fixedsize_stack.hpp>
#include <exception>
#include <memory>
#include <random>
#include <sstream>

#include "cuda/simt/access.h"
#include "cuda/simt/shared.h"

namespace ortmodule::cuda::simt {

thread_local Thread* running = nullptr;
thread_local Grid grid;

namespace {

constexpr size_t kStack = 64 << 10;

using Context = boost::context::fiber;

enum class State { kRuns, kWaitsForWarp, kWaitsForBlock, kDone };

// A fiber that runs one thread after the other: making one takes longer than a small thread.
struct Fiber {
  Context context, scheduler;
  Thread thread;
  State state = State::kDone;
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
      fibers_.clear();  // some are in the midst of a thread
      running = nullptr;
      throw;
    }
  }

  Fiber& of(const Thread& thread) { return *fibers_[thread.number]; }
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
    while (fibers_.size() < count) fibers_.push_back(make_fiber());
    for (unsigned i = 0; i < count; ++i) {
      Fiber& f = *fibers_[i];
      f.state = State::kRuns;
      f.thread = Thread{};
      f.thread.number = i;
      const dim3 d = grid.threads;
      f.thread.index = dim3(i % d.x, i / d.x % d.y, i / (d.x * d.y));
    }
  }

  std::unique_ptr<Fiber> make_fiber() {
    auto made = std::make_unique<Fiber>();
    Fiber* f = made.get();
    f->context =
        Context(std::allocator_arg, boost::context::protected_fixedsize_stack(kStack), [this, f](Context&& scheduler) {
          f->scheduler = std::move(scheduler);
          for (;;) {
            try {
              (*kernel_)();
            } catch (const boost::context::detail::forced_unwind&) {
              throw;
            } catch (...) {
              f->error = std::current_exception();
            }
            f->state = State::kDone;
            f->scheduler = std::move(f->scheduler).resume();
          }
          return std::move(f->scheduler);
        });
    return made;
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
      Fiber& f = *fibers_[w * kWarp + lane];
      if (f.state != State::kRuns) continue;
      running = &f.thread;
      f.context = std::move(f.context).resume();
      running = nullptr;
      if (f.error) std::rethrow_exception(std::exchange(f.error, nullptr));
      --warp.runs;
      (f.state == State::kDone ? warp.done : f.state == State::kWaitsForWarp ? warp.at_warp : warp.at_block) += 1;
      done_ += f.state == State::kDone;
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
    for (unsigned i = w * kWarp; i < (w + 1) * kWarp; ++i) fibers_[i]->state = State::kRuns;
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
  std::vector<std::unique_ptr<Fiber>> fibers_;
  std::vector<Warp> warps_;
  std::vector<unsigned> turns_;
  unsigned count_ = 0, done_ = 0;
  uint32_t waits_ = 0;
};

namespace {

// Of this thread of the host; never destroyed, for there may be fibers when it ends.
thread_local Block* const the_block = new Block;

}  // namespace

Block& block() { return *the_block; }

void wait(Wait what) {
  Fiber& f = the_block->of(*running);
  f.state = what == Wait::kWarp ? State::kWaitsForWarp : State::kWaitsForBlock;
  f.scheduler = std::move(f.scheduler).resume();
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
