// A block of threads on one thread of the host: what threads of a GPU may count on, and nothing more.
//
// Note [Simulated threads]
// Each thread of a block is a fiber, which runs until it waits: for its warp (shuffles, votes, __syncwarp) or for its
// block (__syncthreads). Who goes on first is chosen: a warp runs as far as it can before the next one does, from the
// first to the last, from the last to the first, or warps in turns drawn by chance; lanes and blocks likewise. A kernel
// whose results depend on that choice has a race. Shared memory says itself who wrote what since which barrier
// (shared.h). A wait that not all threads of the block or the warp reach is an error, as is a warp that is not whole.
// What this cannot show: speed, asynchronous copies, memory ordering between blocks that run at once.
#pragma once

#include <cstdint>
#include <functional>
#include <stdexcept>
#include <string>
#include <vector>

namespace ortmodule::cuda {

struct dim3 {
  unsigned x = 1, y = 1, z = 1;
  constexpr dim3(unsigned a = 1, unsigned b = 1, unsigned c = 1) : x(a), y(b), z(c) {}
  constexpr uint64_t count() const { return uint64_t{x} * y * z; }
};

namespace simt {

constexpr unsigned kWarp = 32;

enum class Order { kForward, kBackward, kShuffled };

// What a kernel did wrong; on a GPU a fault, a hang or numbers that are not what they should be.
class KernelError : public std::runtime_error {
  using std::runtime_error::runtime_error;
};

// One thread that runs, as its kernel sees it.
struct Thread {
  dim3 index;
  unsigned number = 0;  // in its block
  unsigned exchanges = 0;
  uint64_t sent[2] = {};  // to its warp, by turns

  unsigned warp() const { return number / kWarp; }
  unsigned lane() const { return number % kWarp; }
};

struct Grid {
  const char* kernel = "";
  dim3 blocks, threads, block;  // `block`: the one that runs
};

enum class Wait { kWarp, kBlock };

class Block;

// The thread that runs here, and its grid. Only inside a kernel.
extern thread_local Thread* running __attribute__((tls_model("initial-exec")));
extern thread_local Grid grid;
Block& block();

// Hands over until all of the warp or the block wait for the same.
void wait(Wait what);
// How often the block, and a warp of it, have waited: what was written before the last wait is seen.
uint32_t block_waits();
uint32_t warp_waits(unsigned warp);
// What the warp's threads sent last; every one of them has.
const Thread& lane_of_warp(unsigned lane);

// Runs `kernel` for every thread of the grid, in this order; the seed draws what is shuffled. Throws KernelError.
void run_grid(const Grid& of, Order order, uint64_t seed, const std::function<void()>& kernel);

// "layer_norm, block (3, 0, 0), thread (7, 0, 0): " in front of what went wrong in the thread that runs.
[[noreturn]] void fail(const std::string& what);

}  // namespace simt
}  // namespace ortmodule::cuda
